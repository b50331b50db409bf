//! The wallet's answers about a batch and about itself.

use alloy_primitives::{B256, Log};

use super::{BatchId, CallsState};

/// The answer for an accepted batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// The batch's id, given or generated.
    pub id: BatchId,
    /// The result of each call when the batch was simulated at `pending`, in order; empty if the calls were not run
    /// separately.
    pub simulation: Vec<SimulatedCall>,
}

/// The result of a call in a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedCall {
    /// Gas that the call used.
    pub gas_used: u64,
    /// The reason of the failure: the revert's reason, or the cause of the halt. `None` if the call succeeded.
    pub error: Option<String>,
}

/// The state of a batch, as EIP-5792's `wallet_getCallsStatus` returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchStatus {
    /// The batch's id.
    pub id: BatchId,
    /// The id of the batch's chain (EIP-155).
    pub chain_id: u64,
    /// The batch's state.
    pub state: CallsState,
    /// Whether all calls are made or none.
    pub atomic: bool,
    /// The receipts of the batch's transactions in blocks, in the order of the chain: a single one if the batch is
    /// atomic, else one per call.
    pub receipts: Vec<CallsReceipt>,
}

/// The fields of a receipt that EIP-5792 names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallsReceipt {
    /// The logs of the batch's calls.
    pub logs: Vec<Log>,
    /// Whether the transaction did not revert.
    pub success: bool,
    /// The hash of the block; the provisional hash of a block being built.
    pub block_hash: B256,
    /// The number of the block.
    pub block_number: u64,
    /// Gas that the transaction used.
    pub gas_used: u64,
    /// The transaction's hash.
    pub tx_hash: B256,
}

/// Whether an account's batches can be atomic on a chain (the capability `atomic` of EIP-5792).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicSupport {
    /// Batches are atomic: the account is delegated to the batch executor.
    Supported,
    /// Batches can be atomic: the account is delegated with its first batch.
    Ready,
    /// Batches cannot be atomic: the chain is before Prague, or policy does not allow to delegate the account.
    Unsupported,
}

impl AtomicSupport {
    /// Returns the capability's `status`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Supported => "supported",
            Self::Ready => "ready",
            Self::Unsupported => "unsupported",
        }
    }
}
