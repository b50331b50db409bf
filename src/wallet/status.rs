//! What the wallet tells of a batch and of itself.

use alloy_primitives::{B256, Log};

use super::{BatchId, CallsState};

/// What is said of a batch that is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// Its id: as given, or as made.
    pub id: BatchId,
    /// What each call did when the batch was simulated at `pending`, in order; empty where that is not known of each alone.
    pub simulation: Vec<SimulatedCall>,
}

/// What a call did in a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedCall {
    /// Gas that it used.
    pub gas_used: u64,
    /// Why it failed, where it did: the reason of its revert, or what stopped it.
    pub error: Option<String>,
}

/// How far a batch has come: EIP-5792's `wallet_getCallsStatus`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchStatus {
    /// Its id.
    pub id: BatchId,
    /// EIP-155 id of its chain.
    pub chain_id: u64,
    /// How far it has come.
    pub state: CallsState,
    /// Whether it is sent as one: all calls or none.
    pub atomic: bool,
    /// The receipts of its transactions that are in a block, in the order of the chain: one where it is atomic, else one a call.
    pub receipts: Vec<CallsReceipt>,
}

/// What EIP-5792 shows of a receipt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallsReceipt {
    /// The logs of the batch's calls.
    pub logs: Vec<Log>,
    /// Whether the transaction did not revert.
    pub success: bool,
    /// The hash of its block; of a block being built, as far as that goes.
    pub block_hash: B256,
    /// The number of its block.
    pub block_number: u64,
    /// Gas that the transaction used.
    pub gas_used: u64,
    /// The transaction's hash.
    pub tx_hash: B256,
}

/// Whether an account's batches can be atomic on a chain: the capability `atomic` of EIP-5792.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicSupport {
    /// They are: the account is delegated to the batch executor.
    Supported,
    /// They can be: the account is delegated with its first.
    Ready,
    /// They cannot: the chain is before Prague, or policy refuses to delegate the account.
    Unsupported,
}

impl AtomicSupport {
    /// The capability's `status`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Supported => "supported",
            Self::Ready => "ready",
            Self::Unsupported => "unsupported",
        }
    }
}
