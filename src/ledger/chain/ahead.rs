//! Pre-confirmed blocks: what is known of them beside their snapshots, and the snapshots that follow from it.
//!
//! A live source calls this after executing, a follower after decoding, so that both come to the same states.

use std::sync::Arc;

use super::Chain;
use crate::{
    chain::SealedBlock,
    ledger::{Publication, Selector, Snapshot, Verified},
    state::{AccountChange, MergedChanges, RemoteState, RemoteView, World},
};

/// The changes of a pre-confirmed block so far: of its steps, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct ChangesAhead(imbl::Vector<Arc<Vec<AccountChange>>>);

/// The changes of a canonical block.
#[derive(Clone, Debug)]
pub enum BlockChanges {
    /// The block was not executed: its state is the upstream's.
    Unknown,
    /// The changes of the same block as it was pre-confirmed.
    AsPreconfirmed,
    /// Each account once.
    These(Arc<Vec<AccountChange>>),
}

/// A block does not stand on the blocks that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("block {0} does not stand on the blocks that are known")]
pub struct Unfit(pub u64);

impl ChangesAhead {
    /// Creates the changes of a block from those of its parts.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a Arc<Vec<AccountChange>>>) -> Self {
        Self(parts.into_iter().cloned().collect())
    }

    /// Adds the changes of the steps to `snapshot`.
    pub fn add(&mut self, snapshot: &Snapshot) {
        self.0.extend(snapshot.path.iter().map(|step| step.shared_changes().clone()));
    }

    /// Returns the changes, each account once.
    pub fn merged(&self) -> Vec<AccountChange> {
        let mut merged = MergedChanges::default();
        self.0.iter().for_each(|part| merged.add(part));
        merged.to_vec()
    }
}

impl Chain {
    /// Returns the snapshot of the pre-confirmed block of this number: the one after it if the block is complete, and the newest
    /// one if it is being built.
    pub fn preconfirmed(&self, number: u64) -> Option<&Arc<Snapshot>> {
        match &self.newest.open {
            Some(open) if open.header.number == number => Some(&self.newest),
            _ => self.sealed.get(&number).filter(|_| number > self.latest.head.number()),
        }
    }

    /// Returns the state after `block`, which is a pre-confirmed block that is complete, with no block open. It is based on `view`,
    /// the state after the canonical head, so that layers do not accumulate.
    ///
    /// # Errors
    ///
    /// Returns [`Unfit`] if no such block is pre-confirmed.
    pub fn completed(&self, view: RemoteView, block: SealedBlock) -> Result<Snapshot, Unfit> {
        let number = block.number();
        let same = self.preconfirmed(number).ok_or(Unfit(number))?;
        let mut world = World::on(view);
        for (_, changes) in self.changes_ahead.range(..=number) {
            world.apply_many(&changes.merged());
        }
        let after = Snapshot::sealed(world, Arc::new(block), same.hashes.clone());
        Ok(after.after(same, Arc::default()).with_verified(same.verified))
    }

    /// Returns the publication of the canonical block after the head, and lets the cache of the upstream's state advance with it.
    /// The pre-confirmed blocks on it stay if it is one of them, unchanged.
    ///
    /// # Errors
    ///
    /// Returns [`Unfit`] if the block does not stand on a canonical block, or is not pre-confirmed where its changes are to be
    /// those. Nothing has changed then.
    pub fn next_canonical(
        &self,
        remote: &Arc<RemoteState>,
        block: SealedBlock,
        changes: BlockChanges,
        verified: Verified,
    ) -> Result<Publication, Unfit> {
        let (number, hash) = (block.number(), block.hash());
        let unfit = || Unfit(number);
        let parent = self.select(Selector::Hash(block.header.parent_hash)).ok();
        let parent = parent.filter(|parent| parent.open.is_none()).ok_or_else(unfit)?;
        let mut same = None;
        let changes = match changes {
            BlockChanges::Unknown => None,
            BlockChanges::These(changes) => Some(changes),
            BlockChanges::AsPreconfirmed => {
                same = Some(self.preconfirmed(number).ok_or_else(unfit)?);
                let (first, changes) = self.changes_ahead.get_min().ok_or_else(unfit)?;
                Some(Arc::new(if *first == number { changes.merged() } else { return Err(unfit()) }))
            }
        };
        let view = match &changes {
            Some(changes) => remote.advance(number, hash, changes),
            None => remote.cut(number, hash),
        };
        let after = Snapshot::sealed(World::on(view.ok_or_else(unfit)?), Arc::new(block), parent.hashes.clone());
        let after = match (same, changes) {
            (Some(same), _) => after.after(same, Arc::default()),
            (None, Some(changes)) => after.after(&parent, changes),
            (None, None) => after,
        };
        let after = after.with_verified(verified);
        let child = self.preconfirmed(number + 1).filter(|_| same.is_some());
        let stays = child.is_some_and(|child| child.header().parent_hash == hash);
        Ok(if stays { Publication::Confirm(after) } else { Publication::Canonical(after) })
    }
}
