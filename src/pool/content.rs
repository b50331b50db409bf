//! The content of the pool as clients see it.

use std::sync::Arc;

use alloy_consensus::{TxEnvelope, transaction::Recovered};
use alloy_primitives::Address;

/// The transactions of a sender that are in the pool and not held, in order of their nonces.
#[derive(Clone, Debug)]
pub struct SenderContent {
    /// The sender.
    pub address: Address,
    /// The transactions that can be mined now, in sequence.
    pub pending: Vec<Arc<Recovered<TxEnvelope>>>,
    /// The transactions that wait for an earlier nonce.
    pub queued: Vec<Arc<Recovered<TxEnvelope>>>,
}

/// The numbers of transactions in the pool that are not held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStatus {
    /// The transactions that can be mined now.
    pub pending: usize,
    /// The transactions that wait for an earlier nonce.
    pub queued: usize,
}
