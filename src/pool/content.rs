//! The content of the pool as clients see it.

use std::sync::Arc;

use alloy_consensus::{TxEnvelope, transaction::Recovered};
use alloy_primitives::Address;

use super::Pool;

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

impl Pool {
    /// Returns the transactions of all senders, in order of the senders' addresses. The producer's own transactions of
    /// [`take_own`](Self::take_own) are not among them, because they do not wait.
    pub fn content(&self) -> Vec<SenderContent> {
        let mut content: Vec<_> = {
            let inner = self.lock();
            let world = &self.snapshots.newest().world;
            inner.queue.senders().into_iter().map(|sender| inner.queue.content(sender, world)).collect()
        };
        content.sort_unstable_by_key(|sender| sender.address);
        content
    }

    /// Returns the transactions of one sender.
    pub fn content_from(&self, sender: Address) -> SenderContent {
        let inner = self.lock();
        inner.queue.content(sender, &self.snapshots.newest().world)
    }

    /// Returns the numbers of transactions.
    pub fn status(&self) -> PoolStatus {
        let inner = self.lock();
        inner.queue.status(&self.snapshots.newest().world)
    }
}
