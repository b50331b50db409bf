//! The answers of the wallet about a batch and about its capabilities.

use alloy_primitives::{B256, Log};
use schemars::JsonSchema;
use serde::Serialize;

use super::{BatchId, CallsState};

/// The result of a call in a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedCall {
    /// Gas that the call used.
    pub gas_used: u64,
    /// The reason of the revert or halt. `None` if the call succeeded.
    pub error: Option<String>,
}

/// The state of a batch: the answer of EIP-5792's `wallet_getCallsStatus`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchStatus {
    /// Id of the batch.
    pub id: BatchId,
    /// EIP-155 chain id.
    pub chain_id: u64,
    /// State of the batch.
    pub state: CallsState,
    /// Whether one transaction makes all calls or none.
    pub atomic: bool,
    /// Receipts of the transactions that are in a block, in order: a single one if `atomic`, else one for each call.
    pub receipts: Vec<CallsReceipt>,
    /// On an upstream's chain, the transactions that are in no block yet.
    pub waiting: Vec<WaitingTx>,
    /// On an upstream's chain, the transactions whose nonces others have used.
    pub taken: Vec<TakenTx>,
}

/// A transaction of a batch that is in no block yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingTx {
    /// Hash of the version that waits.
    pub hash: B256,
    /// The sender's nonce.
    pub nonce: u64,
    /// The reason why it waits.
    pub reason: String,
}

/// A transaction of a batch that can be in no block, because another has used its nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenTx {
    /// Hash of the transaction.
    pub hash: B256,
    /// Hash of the other transaction. `None` if it is not known.
    pub by: Option<B256>,
}

/// A receipt with the fields of EIP-5792.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallsReceipt {
    /// Logs of the transaction.
    pub logs: Vec<Log>,
    /// Whether the transaction did not revert.
    pub success: bool,
    /// Hash of the block. For a block that is being built, the hash of its current state.
    pub block_hash: B256,
    /// Number of the block.
    pub block_number: u64,
    /// Gas that the transaction used.
    pub gas_used: u64,
    /// Hash of the transaction.
    pub tx_hash: B256,
}

/// The capability `atomic` of EIP-5792: whether an account's batches can be atomic on a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AtomicSupport {
    /// The account is delegated to the batch executor.
    Supported,
    /// The first atomic batch delegates the account.
    Ready,
    /// The chain is before Prague, the account or the executor does not allow it, or the policy forbids the delegation.
    Unsupported,
}
