//! Pre-confirmed blocks, and the states after them.

use std::sync::Arc;

use super::{Chain, Unfit, changes::ChangesAhead};
use crate::{chain::SealedBlock, ledger::Snapshot, state::AccountChange};

impl Chain {
    /// Returns the snapshot of the pre-confirmed block of this number: the one after it if the block is complete, and the newest
    /// one if it is being built.
    pub fn preconfirmed(&self, number: u64) -> Option<&Arc<Snapshot>> {
        match &self.newest.open {
            Some(open) if open.header.number == number => Some(&self.newest),
            _ => self.sealed.get(&number).filter(|_| number > self.latest.head.number()),
        }
    }

    /// Returns the changes of a pre-confirmed block so far, each account once.
    pub fn changes_ahead(&self, number: u64) -> Vec<AccountChange> {
        self.changes_ahead.get(&number).map(ChangesAhead::merged).unwrap_or_default()
    }

    /// Returns the state after `block`, a complete pre-confirmed block, with no block open. It is based on the state
    /// after the canonical head, so that layers do not accumulate.
    ///
    /// # Errors
    ///
    /// Returns [`Unfit`] if no such block is pre-confirmed.
    pub fn as_parent(&self, block: SealedBlock) -> Result<Snapshot, Unfit> {
        let number = block.number();
        let same = self.preconfirmed(number).ok_or(Unfit(number))?;
        let mut world = self.latest.world.clone();
        for (_, changes) in self.changes_ahead.range(..=number) {
            world.apply_many(&changes.merged());
        }
        let after = Snapshot::sealed(world, Arc::new(block), same.hashes.clone());
        Ok(after.after(same, Arc::default()).with_verified(same.verified))
    }
}
