//! Writing a change before it is shown.

use super::{Journal, base, prune, tables::write_record};
use crate::{
    ledger::{
        Chain, Record, SnapshotId,
        codec::{CodesByHash, Entry},
    },
    pool,
    store::{StoreError, StoredTx},
};

impl Journal {
    /// Writes a change of `published` under `id`, and waits until it is on disk. Removes the included transactions from the
    /// stored pool, and prunes on disk the blocks that were pruned in memory. A change that brings no snapshot of a chain that is
    /// built here is not written.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::write_now`]. The change must then not be published.
    pub fn record(&self, published: &Chain, id: SnapshotId, change: &Record) -> Result<(), StoreError> {
        let sealed = match change {
            Record::SubBlock(_) => None,
            Record::Seal { sealed, .. } => Some(&sealed.head),
            _ => return Ok(()),
        };
        let mut codes = CodesByHash::default();
        let Some(entry) = Entry::of(published, change, &mut codes) else { return Ok(()) };
        // The state of the base is one of the `kept` states.
        let base = sealed.map(|block| (block.number() + 1).saturating_sub(self.kept));
        let oldest = published.oldest_history();
        self.store.write_now(move |transaction| {
            write_record(transaction, id, &entry, &codes)?;
            pool::forget(transaction, entry.transactions().iter().map(StoredTx::hash))?;
            if let Some(base) = base {
                base::follow(transaction, base)?;
                prune::prune(transaction, oldest, prune::MAX_PER_SEAL)?;
            }
            Ok(())
        })?;
        if let Some(block) = sealed {
            block.keep(self.keeper());
        }
        Ok(())
    }
}
