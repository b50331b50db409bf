//! The node's own transactions: waiting to be sent and mined, or set aside.

use std::sync::Arc;

use alloy_consensus::{TxEnvelope, transaction::Recovered};
use alloy_primitives::{Address, B256};

use super::{BlocksBuilt, Pool, Pooled, account::nonce_of};

impl Pool {
    /// Returns the transactions of `sender` that wait, in the order in which they will be mined, stored or not. On an
    /// upstream's chain they may have gaps, which transactions that were sent elsewhere fill.
    pub fn waiting_of(&self, sender: &Address) -> Vec<Arc<Recovered<TxEnvelope>>> {
        let with_gaps = self.settings.built == BlocksBuilt::Upstream;
        let inner = self.inner.lock();
        inner.queue.waiting_of(sender, nonce_of(&self.snapshots.settled().world, sender), with_gaps)
    }

    /// Returns the node's own transactions that wait and are on the disk, for each account in the order of their nonces.
    pub fn own_waiting(&self) -> Vec<Arc<Pooled>> {
        self.inner.lock().queue.own_waiting()
    }

    /// Returns the node's own transactions that are set aside: they may still be mined, or wait again after a reorg.
    pub fn own_aside(&self) -> Vec<Arc<Pooled>> {
        self.inner.lock().queue.aside().map_or_else(Vec::new, |aside| aside.values().cloned().collect())
    }

    /// Returns the own transaction with this hash, whether it waits or is set aside.
    pub fn own_pooled(&self, hash: &B256) -> Option<Arc<Pooled>> {
        let inner = self.inner.lock();
        let waiting = inner.queue.get(hash).filter(|pooled| pooled.own).cloned();
        waiting.or_else(|| inner.queue.aside()?.get(hash).cloned())
    }

    /// Returns the nonce of an account in the newest snapshot, 0 if it is not known.
    pub fn nonce_of(&self, account: &Address) -> u64 {
        nonce_of(&self.snapshots.settled().world, account)
    }

    /// Returns the newest own transaction that waits with this nonce and is on the disk.
    pub fn own_with_nonce(&self, sender: &Address, nonce: u64) -> Option<Arc<Pooled>> {
        let inner = self.inner.lock();
        inner.queue.with_nonce(sender, nonce).filter(|pooled| pooled.own && !pooled.is_held()).cloned()
    }

    /// Returns the percentage by which a replacement must pay more.
    pub const fn price_bump(&self) -> u32 {
        self.settings.price_bump
    }

    /// Forgets transactions that are set aside, because their fate is final and stored.
    pub fn forget_aside(&self, hashes: impl IntoIterator<Item = B256>) {
        self.inner.lock().queue.forget_aside(hashes);
    }

    /// Waits until an own transaction is stored, so that it may be sent. A notification before the call counts.
    pub async fn stored(&self) {
        self.stored.notified().await;
    }
}
