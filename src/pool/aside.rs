//! The node's own transactions on an upstream's chain that are set aside.
//!
//! A transaction on an upstream's chain is settled only when its block is final: until then a reorg may revert it, and
//! any of several versions with one nonce may be mined. So a transaction is set aside, and stays on the disk, if its
//! nonce is used or another version has replaced it. It waits again if its nonce becomes free.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use alloy_consensus::Transaction;
use alloy_primitives::map::B256Map;

use super::{Pooled, account::known_nonce};
use crate::state::World;

/// The transactions that are set aside, by hash.
pub(super) type Aside = B256Map<Arc<Pooled>>;

/// Returns the newest version of each transaction whose nonce is free on `world`, for each account in the order of the nonces.
pub(super) fn free_on(aside: &Aside, world: &World) -> Vec<Arc<Pooled>> {
    let mut free = BTreeMap::<_, &Arc<Pooled>>::new();
    for pooled in aside.values() {
        let (sender, nonce) = (pooled.tx.signer(), pooled.tx.nonce());
        if known_nonce(world, &sender).is_none_or(|next| nonce < next) {
            continue;
        }
        match free.entry((sender, nonce)) {
            Entry::Occupied(other) if other.get().arrived > pooled.arrived => {}
            entry => drop(entry.insert_entry(pooled)),
        }
    }
    free.into_values().cloned().collect()
}
