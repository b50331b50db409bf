//! The node's own transactions on an upstream's chain: those that wait to be sent and mined, and those that stand aside.
//!
//! A transaction on an upstream's chain is settled only when its block is final: until then a reorg may take it back,
//! and of two versions with one nonce either may be mined. So a transaction whose nonce is used, or that another version
//! has replaced, stands aside with its bytes on the disk. It waits again if its nonce is free again.

use std::{collections::BTreeMap, sync::Arc};

use alloy_consensus::{Transaction, TxEnvelope, transaction::Recovered};
use alloy_primitives::{
    Address, B256,
    map::{AddressMap, B256Map},
};

use super::{
    BlocksBuilt, Pool, Pooled,
    queue::{Queue, known_nonce, nonce_of},
};
use crate::state::World;

/// The transactions that stand aside.
#[derive(Debug, Default)]
pub(super) struct Aside {
    by_nonce: AddressMap<BTreeMap<u64, Vec<Arc<Pooled>>>>,
    by_hash: B256Map<Arc<Pooled>>,
}

impl Aside {
    pub(super) fn has(&self, hash: &B256) -> bool {
        self.by_hash.contains_key(hash)
    }

    fn get(&self, hash: &B256) -> Option<&Arc<Pooled>> {
        self.by_hash.get(hash)
    }

    pub(super) fn push(&mut self, pooled: Arc<Pooled>) {
        if self.by_hash.insert(*pooled.tx.tx_hash(), pooled.clone()).is_none() {
            let versions = self.by_nonce.entry(pooled.tx.signer()).or_default().entry(pooled.tx.nonce()).or_default();
            versions.push(pooled);
        }
    }

    pub(super) fn remove(&mut self, hash: &B256) -> Option<Arc<Pooled>> {
        let pooled = self.by_hash.remove(hash)?;
        let (sender, nonce) = (pooled.tx.signer(), pooled.tx.nonce());
        if let Some(nonces) = self.by_nonce.get_mut(&sender) {
            if let Some(versions) = nonces.get_mut(&nonce) {
                versions.retain(|version| version.tx.tx_hash() != hash);
                if versions.is_empty() {
                    nonces.remove(&nonce);
                }
            }
            if nonces.is_empty() {
                self.by_nonce.remove(&sender);
            }
        }
        Some(pooled)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    /// Returns the newest version of each transaction whose nonce is free on `world`.
    pub(super) fn free_on(&self, world: &World) -> Vec<Arc<Pooled>> {
        let mut free = Vec::new();
        for (sender, nonces) in &self.by_nonce {
            let Some(next) = known_nonce(world, sender) else { continue };
            let newest = |versions: &Vec<Arc<Pooled>>| versions.iter().max_by_key(|pooled| pooled.arrived).cloned();
            free.extend(nonces.range(next..).filter_map(|(_, versions)| newest(versions)));
        }
        free
    }

    fn all(&self) -> Vec<Arc<Pooled>> {
        self.by_hash.values().cloned().collect()
    }
}

impl Pool {
    /// Returns the transactions of `sender` that wait, in the order in which they will be mined, stored or not. On an
    /// upstream's chain they may have gaps, which transactions that were sent elsewhere fill.
    pub fn waiting_of(&self, sender: &Address) -> Vec<Arc<Recovered<TxEnvelope>>> {
        let with_gaps = self.limits.built == BlocksBuilt::Upstream;
        let inner = self.lock();
        inner.queue.waiting_of(sender, nonce_of(&self.snapshots.newest().world, sender), with_gaps)
    }

    /// Returns the node's own transactions that wait and are on the disk, for each account in the order of their nonces.
    pub fn own_waiting(&self) -> Vec<Arc<Pooled>> {
        self.lock().queue.own_waiting()
    }

    /// Returns the node's own transactions that do not wait, but may still be mined, or taken back.
    pub fn own_aside(&self) -> Vec<Arc<Pooled>> {
        self.lock().queue.aside().map_or_else(Vec::new, Aside::all)
    }

    /// Returns the own transaction with this hash, whether it waits or stands aside.
    pub fn own_pooled(&self, hash: &B256) -> Option<Arc<Pooled>> {
        let inner = self.lock();
        let waiting = inner.queue.get(hash).filter(|pooled| pooled.own).cloned();
        waiting.or_else(|| inner.queue.aside()?.get(hash).cloned())
    }

    /// Returns the nonce of an account in the newest snapshot, 0 if it is not known.
    pub fn nonce_of(&self, account: &Address) -> u64 {
        nonce_of(&self.snapshots.newest().world, account)
    }

    /// Returns the newest own transaction that waits with this nonce and is on the disk.
    pub fn own_with_nonce(&self, sender: &Address, nonce: u64) -> Option<Arc<Pooled>> {
        self.lock().queue.stored_with_nonce(sender, nonce)
    }

    /// Returns the per cent by which a replacement must pay more.
    pub const fn price_bump(&self) -> u32 {
        self.limits.price_bump
    }

    /// Forgets transactions that stand aside, because their fate is final and stored.
    pub fn forget_aside(&self, hashes: impl IntoIterator<Item = B256>) {
        self.lock().queue.forget_aside(hashes);
    }

    /// Waits until an own transaction is stored, so that it may be sent. A notification before the call counts.
    pub async fn stored(&self) {
        self.stored.notified().await;
    }
}

impl Queue {
    /// Sets aside the transactions whose nonces are used, and takes back those whose nonces are free again.
    pub(super) fn take_back(&mut self, world: &World) {
        let Some(aside) = self.aside() else { return };
        for pooled in aside.free_on(world) {
            self.put_back(pooled);
        }
    }
}
