//! The rules and data of a chain: forks, genesis, blocks, transactions, receipts, and the EVM environment of a block.

mod access_list;
mod append_trie;
mod block;
mod chains;
mod deployment_proxy;
mod ethash;
mod family;
mod forks;
mod gas;
mod genesis;
mod header;
mod keccak;
mod natives;
mod op;
mod ordered;
mod receipt;
mod schedule;
mod spec;
mod trading;
mod tx;
mod under;

pub use access_list::{access_list_items, merged_access_list, most_access_list_items};
pub use append_trie::AppendTrie;
pub use block::{
    BlockBody, BlockHashes, BlockKeeper, SealedBlock, TransactionLogs, agrees_with_receipts, block_rlp, block_size,
    receipts_root_and_bloom, transactions_root,
};
pub use chains::AnnouncedForks;
pub use deployment_proxy::{DEPLOYMENT_PROXY, DEPLOYMENT_PROXY_CODE, deployment_address, deployment_data};
pub use family::Family;
pub use forks::{ChainSpecError, ForkAt, ForkName, ForkTime, first_changed, set_forks, set_newest_fork};
pub use gas::{BlockGas, GasLeft};
pub use genesis::genesis_block;
pub use header::{Attributes, BlockTotals, gas_limit_towards};
pub use keccak::keccak256_each;
pub use natives::{ActiveNatives, Natives, Unexecutable};
pub use op::{
    BASE_FEE_VAULT, BASE_TIME, BASE_TIME_SLOT, DepositTerms, GasRefunds, InvalidPostExec, L1_BLOCK, L1_FEE_VAULT,
    L1BlockInfo, OPERATOR_FEE_VAULT, OpFork, OpTx, RefundTooLarge, Settlement, block_instant, gasless_allowance,
    gasless_contract, gasless_question, millis_part, timestamp_ms,
};
pub use ordered::ordered_roots;
pub use receipt::{ChainReceipt, ChainReceiptBuilder, DepositReceiptFields};
pub use spec::{ChainSpec, Fork, LiftedRules};
pub use trading::TradingWorld;
pub use tx::{ChainTx, initial_gas, initial_gas_terms};
