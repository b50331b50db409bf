//! The changes of blocks.

use std::sync::Arc;

use alloy_primitives::{Address, map::HashMap};
use revm::Database;

use crate::{
    ledger::Snapshot,
    state::{AccountChange, Overlay, merged_changes},
};

/// The changes of a pre-confirmed block so far: of its steps, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct ChangesAhead(imbl::Vector<Arc<Vec<AccountChange>>>);

/// The changes of a canonical block.
#[derive(Clone, Debug)]
pub enum BlockChanges {
    /// The block was not executed: its state is the upstream's.
    Unknown,
    /// The block was not executed, and may have changed only these accounts and slots, or all slots of an account with
    /// `storage_cleared`. Each account is listed once. The values have no meaning.
    Touched(Arc<Vec<AccountChange>>),
    /// The changes in the access list (EIP-7928) of a block that was not executed. Accounts without `info` have unknown
    /// values. Each account is listed once.
    Listed(Arc<Vec<AccountChange>>),
    /// The changes of the same block as it was pre-confirmed.
    AsPreconfirmed,
    /// Each account once.
    These(Arc<Vec<AccountChange>>),
}

/// A block has an unknown parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("block {0} has an unknown parent")]
pub struct Unfit(pub u64);

impl Unfit {
    /// Returns the error about block `number`, unless it `fits`.
    pub(super) const fn unless(fits: bool, number: u64) -> Result<(), Self> {
        if fits { Ok(()) } else { Err(Self(number)) }
    }
}

impl From<Vec<AccountChange>> for ChangesAhead {
    fn from(changes: Vec<AccountChange>) -> Self {
        Self(imbl::Vector::unit(Arc::new(changes)))
    }
}

/// Returns the changes from one state of a block to `after`, another state of it: `before` and `changes` are the changes of both since
/// the start of the block, each account once. Accounts and slots that `before` alone has changed have their values of the
/// start in `after`.
pub(super) fn difference(before: &[AccountChange], changes: &[AccountChange], after: &Snapshot) -> Vec<AccountChange> {
    let mut all: HashMap<Address, AccountChange> =
        changes.iter().map(|change| (change.address, change.clone())).collect();
    let mut state = Overlay::new(after.world.clone(), after.hashes.clone());
    for old in before {
        let address = old.address;
        let Ok(info) = state.basic(address);
        let change = all.entry(address).or_insert_with(|| AccountChange { address, info, ..AccountChange::default() });
        // Storage that only one of the two has deleted belongs to a contract that the block created: older ones keep it
        // (EIP-6780).
        change.storage_cleared |= old.storage_cleared;
        for slot in old.slots.keys() {
            let Ok(value) = state.storage(address, *slot);
            change.slots.entry(*slot).or_insert(value);
        }
    }
    all.into_values().collect()
}

impl ChangesAhead {
    /// Adds the changes of the steps to `snapshot`.
    pub fn add(&mut self, snapshot: &Snapshot) {
        self.0.extend(snapshot.path.iter().map(|step| step.changes.clone()));
    }

    /// Returns the changes, each account once.
    pub fn merged(&self) -> Vec<AccountChange> {
        merged_changes(self.0.iter().flat_map(|part| part.iter()))
    }
}
