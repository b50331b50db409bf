//! The cell that holds the published chain, read without a lock.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::{Chain, Divergences, FeedState, Record, Retention, Snapshot, SnapshotId, Stamp, Unfit};

/// The lock-free cell that holds the published chain. It has one writer and any number of readers.
#[derive(Debug)]
pub struct Snapshots {
    cell: ArcSwap<Chain>,
    changed: watch::Sender<SnapshotId>,
    /// The values that were published as pre-confirmed and did not become canonical.
    pub divergences: Arc<Divergences>,
}

impl From<Chain> for Snapshots {
    fn from(chain: Chain) -> Self {
        Self {
            changed: watch::Sender::new(chain.newest.id),
            cell: ArcSwap::from_pointee(chain),
            divergences: Arc::default(),
        }
    }
}

impl Snapshots {
    /// Creates a cell with its first snapshot, as [`Chain::new`] does.
    pub fn new(first: Snapshot, feed: FeedState, kept: Retention) -> Self {
        Chain::new(first, feed, kept).into()
    }

    /// Returns the published chain, by one atomic load.
    pub fn load(&self) -> Arc<Chain> {
        self.cell.load_full()
    }

    /// Returns the newest snapshot.
    pub fn newest(&self) -> Arc<Snapshot> {
        self.cell.load().newest.clone()
    }

    /// Returns the newest snapshot, or the one before a draft ([`Chain::settled`]).
    pub fn settled(&self) -> Arc<Snapshot> {
        self.cell.load().settled().clone()
    }

    /// Returns a receiver that wakes on each publication. The receiver loads the publication itself.
    pub fn changes(&self) -> watch::Receiver<SnapshotId> {
        self.changed.subscribe()
    }

    /// Publishes a change under the next id, and returns the id.
    ///
    /// # Errors
    ///
    /// Returns [`Unfit`] as [`Chain::apply`] does. Nothing is published then.
    pub fn apply(&self, record: Record) -> Result<SnapshotId, Unfit> {
        let stamp = Stamp::now(self.next_id());
        self.try_update(|chain| chain.apply(stamp, record)).map(|()| stamp.id)
    }

    /// Returns the id of the next change.
    pub fn next_id(&self) -> SnapshotId {
        self.cell.load().last.next()
    }

    /// Publishes the chain after several changes at once.
    ///
    /// # Errors
    ///
    /// Returns the error of `change`. Nothing is then published.
    pub fn try_update<E>(&self, change: impl FnOnce(&mut Chain) -> Result<(), E>) -> Result<(), E> {
        let mut next = Chain::clone(&self.cell.load());
        change(&mut next)?;
        self.replace_all(Arc::new(next));
        Ok(())
    }

    /// Publishes a change of the chain's metadata, which takes no id.
    pub fn update(&self, change: impl FnOnce(&mut Chain)) {
        let mut next = Chain::clone(&self.cell.load());
        change(&mut next);
        self.replace_all(Arc::new(next));
    }

    /// Replaces everything that is published.
    pub fn replace_all(&self, published: Arc<Chain>) {
        let newest = published.newest.id;
        self.cell.store(published);
        self.changed.send_replace(newest);
    }

    /// Creates a second cell that begins with the same publication. Both have the same divergences.
    #[must_use]
    pub fn mirror(&self) -> Self {
        Self { divergences: self.divergences.clone(), ..Chain::clone(&self.load()).into() }
    }
}
