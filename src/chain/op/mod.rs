//! The rules of the OP stack (<https://specs.optimism.io>): its forks, fees, transactions and block times.

mod base_fee;
mod base_time;
mod fastlz;
mod fork;
mod gasless;
mod l1;
mod post_exec;
mod tx;

pub(super) use base_fee::{BEDROCK, OpStackParams};

pub use base_time::{BASE_TIME, BASE_TIME_SLOT, block_instant, millis_part, timestamp_ms};
pub use fork::OpFork;
pub use gasless::{gasless_allowance, gasless_contract, gasless_question};
pub use l1::{L1_BLOCK, L1BlockInfo};
pub use post_exec::{GasRefunds, InvalidPostExec, RefundTooLarge, Settlement};
pub use tx::{DepositTerms, OpTx};

use alloy_primitives::{Address, address};

/// The vaults that get the fees of signed transactions
/// (<https://specs.optimism.io/protocol/exec-engine.html#fee-vaults>): the base fee vault, the L1 fee vault, and from
/// Isthmus on the operator fee vault. Priority fees go to the block's fee recipient, as on Ethereum.
pub const BASE_FEE_VAULT: Address = address!("4200000000000000000000000000000000000019");
/// See [`BASE_FEE_VAULT`].
pub const L1_FEE_VAULT: Address = address!("420000000000000000000000000000000000001A");
/// See [`BASE_FEE_VAULT`].
pub const OPERATOR_FEE_VAULT: Address = address!("420000000000000000000000000000000000001B");
