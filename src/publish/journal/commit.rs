//! Writing a change before it is visible.

use std::sync::Arc;

use futures::{FutureExt, future::LocalBoxFuture};

use super::{Journal, base, prune, tables::write_record};
use crate::{
    ledger::{Chain, codec::Entry},
    pool,
    publish::{Change, Commit, Sink, Unpublished},
    store::{StoreError, StoredTx},
};

impl Journal {
    /// Writes a change, and waits until it is on disk. Removes the included transactions from the stored pool, and prunes on
    /// disk the blocks that were pruned in memory. A change that brings no snapshot of a chain that is built here is not written.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::write_now`](crate::store::Store::write_now). The change must then not be published.
    pub fn write(&self, change: &Arc<Change>) -> Result<(), StoreError> {
        if !is_written(change) {
            return Ok(());
        }
        // The state of the base is one of the `kept` states.
        let base = change.sealed.as_ref().map(|block| (block.number() + 1).saturating_sub(self.kept));
        let written = change.clone();
        self.store.write_now(move |transaction| {
            let Some(entry) = &written.entry else { return Ok(()) };
            write_record(transaction, written.id, entry, &written.codes)?;
            pool::forget(transaction, entry.transactions().iter().map(StoredTx::hash))?;
            if let Some(base) = base {
                base::follow(transaction, base)?;
                prune::prune(transaction, written.oldest_body, prune::MAX_PER_SEAL)?;
            }
            Ok(())
        })?;
        if let Some(block) = &change.sealed {
            block.keep(self.keeper());
        }
        Ok(())
    }
}

fn is_written(change: &Change) -> bool {
    matches!(change.entry, Some(Entry::SubBlock(_) | Entry::Seal(_)))
}

/// The sink that writes changes to the journal.
#[derive(Debug)]
pub struct JournalSink {
    journal: Journal,
    taken: Vec<Arc<Change>>,
}

impl From<Journal> for JournalSink {
    fn from(journal: Journal) -> Self {
        Self { journal, taken: Vec::new() }
    }
}

impl Sink for JournalSink {
    fn failure(&self) -> Option<Unpublished> {
        self.journal.failure().cloned().map(Unpublished::Store)
    }

    fn take(&mut self, change: &Arc<Change>, _: &Arc<Chain>) -> bool {
        if is_written(change) {
            self.taken.push(change.clone());
        }
        is_written(change)
    }

    fn commit(&mut self) -> LocalBoxFuture<'_, Result<Commit, Unpublished>> {
        let written = self.taken.drain(..).try_for_each(|change| self.journal.write(&change));
        std::future::ready(written.map(|()| Commit::Done).map_err(Unpublished::Store)).boxed_local()
    }

    fn discard(&mut self) {
        self.taken.clear();
    }
}
