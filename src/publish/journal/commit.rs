//! Writing a change before it is visible.

use std::sync::Arc;

use super::{Journal, base, prune, tables::write_record};
use crate::{
    ledger::{Chain, codec::Entry},
    pool,
    publish::{Change, Sink},
    store::{StoreError, StoredTx},
};

impl Journal {
    /// Writes a change, and waits until it is on disk. Removes the included transactions from the stored pool, and
    /// prunes on disk the blocks that were pruned in memory. A change without a snapshot of a chain that is built here
    /// is not written.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::write_now`](crate::store::Store::write_now). The change must then not be published.
    pub fn write(&self, change: Change) -> Result<(), StoreError> {
        let Change { id, entry: Some(entry @ (Entry::SubBlock(_) | Entry::Seal(_))), codes, sealed, oldest_body } =
            change
        else {
            return Ok(());
        };
        // The state of the base is one of the `kept` states.
        let base = sealed.as_ref().map(|block| (block.number() + 1).saturating_sub(self.kept));
        self.store.write_now(move |transaction| {
            write_record(transaction, id, &entry, &codes)?;
            pool::forget(transaction, entry.transactions().iter().map(StoredTx::hash))?;
            if let Some(base) = base {
                base::follow(transaction, base)?;
                prune::prune(transaction, oldest_body, prune::MAX_PER_SEAL)?;
            }
            Ok(())
        })?;
        if let Some(block) = sealed {
            block.keep(self.keeper());
        }
        Ok(())
    }
}

/// A change is on disk before it is visible.
impl Sink for Journal {
    fn failure(&self) -> Option<StoreError> {
        self.store.failure().cloned()
    }

    fn take(&mut self, change: Change, _: &Arc<Chain>) -> Result<(), StoreError> {
        self.write(change)
    }
}
