//! The differences between presim's own contract and execution-apis.

mod anvil;
mod presim;
mod standard;

pub use self::anvil::ANVIL;
pub use self::presim::PRESIM;
pub use self::standard::STANDARD;

use std::{sync::OnceLock, time::Duration};

use alloy_primitives::Bytes;

use super::error::RpcError;
use crate::{
    engine::{BaseFeeRule, SimulationError},
    wallet::WalletError,
};

/// A dialect of JSON-RPC.
#[derive(Debug)]
pub struct Dialect {
    /// Whether fields that no specification names are refused.
    pub refuses_unknown_fields: bool,
    /// Whether a call must have a `to` field, and a request a block.
    pub requires_to_and_selector: bool,
    /// The base fee that calls without validation see.
    pub base_fee: BaseFeeRule,
    /// Whether a simulated block that continues the one being built has its `prevRandao`. If not, it has zero.
    pub keeps_prev_randao: bool,
    /// The time between simulated blocks; `None` for the chain's own.
    pub block_time: Option<Duration>,
    /// Whether `eth_sendTransaction` sends from accounts of the wallet, as a batch of one call.
    pub sends_from_wallet: bool,
    /// Whether state roots of simulated blocks are computed. If not, they are zero.
    pub state_roots: bool,
    /// The fraction by which an estimate may exceed the smallest gas limit.
    pub estimate_tolerance: f64,
    /// Whether receipts, and the block of a transaction, are shown only once `latest` has the block.
    pub receipts_wait: bool,
    /// Whether the `type` of a call may be a JSON number.
    pub takes_integer_types: bool,
    /// Whether blocks that fill gaps are shown.
    pub shows_fillers: bool,
    /// Whether header fields are shown before their fork, with their empty value.
    pub shows_early_fields: bool,
    /// Whether the data of a revert is also in `returnData`, not only in the error.
    pub shows_revert_data: bool,
    /// Whether `logIndex` counts reverted logs, too.
    pub counts_reverted_logs: bool,
    /// Whether the node answers as libraries for tests expect of anvil where that is more lenient than geth: keys of
    /// `txpool_*` in lower case; a transaction that fails gets the gas of a block, and a transfer its 21,000, without
    /// checking the sender's funds; `eth_fillTransaction` shows the price together with the fees, and a tip above its
    /// cap.
    pub for_tests: bool,
    /// Returns the error of an `eth_call` that reverted with this data.
    pub revert: fn(Bytes) -> RpcError,
    /// Returns an error in the dialect's form.
    pub told: fn(RpcError) -> RpcError,
    /// The code and the message for an atomic batch on a chain without atomic batches.
    pub not_atomic: (i32, &'static str),
    /// The form of the `error` of a failed call in `eth_callMany`: the error that `eth_call` would return.
    pub many_error: ErrorForm,
    /// The form of the `error` of a failed call in a simulation.
    pub call_error: ErrorForm,
    /// The documents of the methods by the scope of the node, each once it was asked for.
    pub documents: [OnceLock<String>; 4],
}

/// The form of the error of a call in a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorForm {
    /// The reason, as a string.
    Text,
    /// An object with code, message and data.
    Object,
}

impl Dialect {
    /// Returns the error of a simulation. The dialect of presim names the call in its text.
    pub fn simulation_error(&self, error: SimulationError) -> RpcError {
        match error {
            SimulationError::InCall { index, error } if self.refuses_unknown_fields => RpcError::from(*error)
                .with_message(|text| format!("blockStateCalls[{}].calls[{}]: {text}", index.block, index.call)),
            other => other.into(),
        }
    }

    /// Returns the wallet's error, with the code and the message of the contract and the details of this case in
    /// `data`. Reverts, and batches that cannot be atomic, have the dialect's codes.
    pub fn wallet_error(&self, error: WalletError) -> RpcError {
        match error {
            WalletError::Reverted(data) => (self.revert)(data),
            WalletError::NotAtomic(detail) => {
                let (code, message) = self.not_atomic;
                RpcError::with_data(code, message, detail)
            }
            WalletError::Internal(problem) => RpcError::internal(&problem),
            WalletError::Store(error) => error.into(),
            error => match error.detail() {
                Some(detail) => RpcError::with_data(error.code(), error.to_string(), detail),
                None => RpcError::new(error.code(), error.to_string()),
            },
        }
    }
}
