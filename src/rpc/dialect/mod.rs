//! Where presim's own contract and execution-apis differ. Nothing else knows that there are two.

mod project;
mod standard;

pub use project::PROJECT;
pub use standard::STANDARD;

use alloy_primitives::Bytes;
use jsonrpsee::types::ErrorObjectOwned;

use super::error::RpcError;
use crate::{
    chain::ChainSpec,
    engine::{BaseFeeRule, CallOutcome},
    wallet::WalletError,
};

/// One way to speak.
#[derive(Debug)]
pub struct Dialect {
    /// Refuse fields that no specification names.
    pub refuses_unknown_fields: bool,
    /// A call must say `to`, and a request its block.
    pub requires_to_and_selector: bool,
    /// The base fee that calls without validation see.
    pub base_fee: BaseFeeRule,
    /// Seconds between simulated blocks.
    pub block_time: fn(&ChainSpec) -> u64,
    /// Compute the state roots of simulated blocks; zero where not.
    pub state_roots: bool,
    /// How far above the smallest gas limit an estimate may be, as a part of it.
    pub estimate_tolerance: f64,
    /// Show the blocks that fill gaps.
    pub shows_fillers: bool,
    /// Show header fields before their fork, with their empty value.
    pub shows_early_fields: bool,
    /// The data of a revert is `returnData` too, not in the error alone.
    pub shows_revert_data: bool,
    /// `logIndex` counts logs that were reverted too.
    pub counts_reverted_logs: bool,
    /// The error of an `eth_call` that reverted with this data.
    pub revert: fn(Bytes) -> RpcError,
    /// Code and message of the refusal of an atomic batch on a chain that has no atomic batches.
    pub not_atomic: (i32, &'static str),
    /// The error of an `eth_call` that the EVM stopped.
    pub halt: fn(String) -> RpcError,
    /// The `error` of a failed call in `eth_callMany`, as JSON: what `eth_call` would have answered.
    pub many_error: fn(&mut Vec<u8>, &ErrorObjectOwned),
    /// The `error` of a failed call in a simulation, as JSON.
    pub call_error: fn(&mut Vec<u8>, &CallOutcome, &Bytes),
}

impl Dialect {
    /// The wallet's refusal: code and message of `api.md` 7.2, this case in `data`. The dialect says what a revert is, and a batch that cannot be
    /// atomic.
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
