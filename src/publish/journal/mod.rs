//! The chain on disk, from which a restarted node resumes.
//!
//! The store holds the blocks up to one of them (the *base*), the state after it, and a record of each snapshot that
//! was published after the base. A restart reads the base and replays the records, which restores the same snapshots
//! under the same ids, including the snapshots of recent blocks and of the block being built. The base follows the head
//! at the distance of the blocks whose state is retained: sealing a block applies the oldest block's records to the
//! base, and moves the block from there to the tables of blocks. A sub-block therefore writes only its changes, and a
//! body is stored once.
//!
//! Pruning deletes the body of a block, in the commit of a block that is sealed later. Headers stay.

mod base;
mod blocks;
mod commit;
mod progress;
mod prune;
mod restore;
mod tables;

pub use self::tables::ChainIdentity;

use std::sync::Arc;

use redb::ReadableTableMetadata;

use self::{
    base::{Base, BaseState, read_base},
    blocks::Blocks,
    tables::{ABOUT, BASE, CHAIN, RECORDS, write_about, write_block, write_codes},
};
use crate::{
    chain::{BlockKeeper, SealedBlock},
    ledger::{Snapshot, codec::CodesByHash},
    store::{Store, StoreError},
};

/// The journal of a chain: writes its blocks and records to a store, and restores the chain from it.
#[derive(Clone, Debug)]
pub struct Journal {
    store: Store,
    /// The number of newest blocks whose state is retained. The base is the oldest of them.
    kept: u64,
}

impl Journal {
    /// Creates a journal in `store` that keeps the states of the last `kept` blocks.
    pub const fn new(store: Store, kept: u64) -> Self {
        Self { store, kept }
    }

    /// Writes a new chain: `blocks` up to its head, and the head's state as the base.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::write_now`].
    pub fn found(
        &self,
        identity: &ChainIdentity,
        blocks: Vec<Arc<SealedBlock>>,
        head: &Snapshot,
    ) -> Result<(), StoreError> {
        let identity = identity.clone();
        let base = Base { number: head.head.number(), id: head.id.0 };
        let world = head.world.clone();
        let keeper = self.keeper();
        let founded = blocks.clone();
        self.store.write_now(move |transaction| {
            for block in &blocks {
                write_block(transaction, block)?;
            }
            let mut codes = CodesByHash::default();
            // Sorted like the tables, because sorted inserts are faster.
            let accounts = world.local().map(|world| codes.all_accounts(world)).unwrap_or_default();
            BaseState::open(transaction)?.apply(accounts)?;
            write_codes(transaction, &codes)?;
            let mut table = transaction.open_table(ABOUT)?;
            write_about(&mut table, CHAIN, &identity)?;
            write_about(&mut table, BASE, &base)?;
            transaction.open_table(RECORDS)?;
            Ok(())
        })?;
        founded.iter().filter(|block| !block.is_bare()).for_each(|block| block.keep(keeper.clone()));
        Ok(())
    }

    /// Returns the keeper that reads blocks from the store.
    pub fn keeper(&self) -> Arc<dyn BlockKeeper> {
        Arc::new(Blocks(self.store.weak()))
    }

    /// Returns whether any snapshot was published after the base.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::read`].
    pub fn has_records(&self) -> Result<bool, StoreError> {
        self.store.read(|transaction| Ok(!transaction.open_table(RECORDS)?.is_empty()?))
    }

    /// Returns the block whose state is the base.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::read`].
    pub fn base(&self) -> Result<Base, StoreError> {
        self.store.read(|transaction| read_base(&transaction.open_table(ABOUT)?))
    }
}
