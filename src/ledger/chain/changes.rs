//! The changes of blocks.

use std::sync::Arc;

use crate::{
    ledger::Snapshot,
    state::{AccountChange, MergedChanges},
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

impl Unfit {
    /// Returns the error about block `number`, unless it `fits`.
    pub(super) const fn unless(fits: bool, number: u64) -> Result<(), Self> {
        if fits { Ok(()) } else { Err(Self(number)) }
    }
}

impl ChangesAhead {
    /// Adds the changes of the steps to `snapshot`.
    pub fn add(&mut self, snapshot: &Snapshot) {
        self.0.extend(snapshot.path.iter().map(|step| step.changes.clone()));
    }

    /// Returns the changes, each account once.
    pub fn merged(&self) -> Vec<AccountChange> {
        let mut merged = MergedChanges::default();
        self.0.iter().for_each(|part| merged.add(part));
        merged.to_vec()
    }
}
