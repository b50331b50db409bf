//! The node's own transactions on an upstream's chain that are set aside.
//!
//! A transaction on an upstream's chain is settled only when its block is final: until then a reorg may revert it, and
//! any of several versions with one nonce may be mined. So a transaction is set aside, and stays on the disk, if its
//! nonce is used or another version has replaced it. It waits again if its nonce becomes free.

use std::{collections::BTreeMap, sync::Arc};

use alloy_consensus::Transaction;
use alloy_primitives::{
    B256,
    map::{AddressMap, B256Map},
};

use super::{Pooled, account::known_nonce};
use crate::state::World;

/// The transactions that are set aside.
#[derive(Debug, Default)]
pub(super) struct Aside {
    by_nonce: AddressMap<BTreeMap<u64, Vec<Arc<Pooled>>>>,
    by_hash: B256Map<Arc<Pooled>>,
}

impl Aside {
    pub(super) fn has(&self, hash: &B256) -> bool {
        self.by_hash.contains_key(hash)
    }

    pub(super) fn get(&self, hash: &B256) -> Option<&Arc<Pooled>> {
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

    pub(super) fn all(&self) -> Vec<Arc<Pooled>> {
        self.by_hash.values().cloned().collect()
    }
}
