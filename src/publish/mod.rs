//! Publishing: where a change is written before anyone sees it.
//!
//! A source makes a change to its own chain, and the [sinks](Sink), which are composed once at the start, take it in order. It is
//! visible when each sink that is waited for has committed it.

pub mod journal;

use std::{fmt, sync::Arc, time::Instant};

use futures::future::LocalBoxFuture;

use crate::{
    chain::SealedBlock,
    ledger::{
        Chain, FeedProblem, Record, SnapshotId, Unfit,
        codec::{CodesByHash, Entry, LeaderTime, StreamChanges},
    },
    store::StoreError,
};

/// Takes changes before they are visible.
pub trait Sink: fmt::Debug + Send {
    /// Returns the reason why nothing can be committed any more, so that nothing is built in vain.
    fn failure(&self) -> Option<Unpublished> {
        None
    }

    /// Returns whether it takes changes now. A change that no sink takes is not encoded.
    fn takes(&self) -> bool {
        true
    }

    /// Takes a change that leads to `after`. Returns true if readers may see the change only after `commit`.
    fn take(&mut self, change: &Arc<Change>, after: &Arc<Chain>) -> bool;

    /// Commits what was taken, or returns after a time in which that was not possible, to be called again.
    ///
    /// # Errors
    ///
    /// Returns [`Unpublished`] if it cannot be committed.
    fn commit(&mut self) -> LocalBoxFuture<'_, Result<Commit, Unpublished>>;

    /// Drops what was taken and is not committed.
    fn discard(&mut self);

    /// Notes that the input of the newest change arrived at `since`.
    fn note_arrival(&mut self, _since: Instant) {}
}

/// The outcome of a try to commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// All that was taken is committed.
    Done,
    /// Something is not, for this reason, and may be later.
    Waits(FeedProblem),
}

/// A change of a chain for the sinks, encoded once for all of them.
pub struct Change {
    /// The change's id.
    pub id: SnapshotId,
    /// The change; `None` if no other node follows it.
    pub entry: Option<Entry>,
    /// The codes that accounts get by it.
    pub codes: CodesByHash,
    /// The block that it seals.
    pub sealed: Option<Arc<SealedBlock>>,
    /// The oldest block whose body is retained before the change.
    pub oldest_body: u64,
}

impl Change {
    /// Returns the change that `record` makes to `on`, under this id.
    pub fn of(on: &Chain, id: SnapshotId, record: &Record) -> Arc<Self> {
        let mut codes = CodesByHash::default();
        let entry = Entry::of(on, record, &mut codes);
        let sealed = match record {
            Record::Seal { sealed, .. } => Some(sealed.head.clone()),
            _ => None,
        };
        Arc::new(Self { id, entry, codes, sealed, oldest_body: on.oldest_history() })
    }

    /// Returns the message of a stream about it, with all of its codes; `None` if no other node follows it.
    pub fn message(&self, dated: LeaderTime) -> Option<Vec<u8>> {
        Some(StreamChanges::write(dated, None, [self.entry.as_ref()?], self.codes.bytes(), true))
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The reason why a change is not published.
#[derive(Debug, thiserror::Error)]
pub enum Unpublished {
    /// The change could not be written to the journal.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another node publishes the chain now.
    #[error("another node publishes the chain now")]
    Superseded,
    /// The change does not stand on what is published.
    #[error(transparent)]
    Unfit(#[from] Unfit),
}

impl Unpublished {
    /// Returns the problem of the feed; `None` if another node publishes the chain now.
    pub const fn problem(&self) -> Option<FeedProblem> {
        match self {
            Self::Store(_) => Some(FeedProblem::Store),
            Self::Superseded => None,
            Self::Unfit(_) => Some(FeedProblem::Execution),
        }
    }
}
