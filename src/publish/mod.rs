//! Publishing: where a change is written before it is visible.
//!
//! A source makes a change, and the [sink](Sink) of its feed takes it before it is visible: the journal of a chain that
//! is built here, or the queue of changes for the stream of a fleet.

pub mod journal;

use std::{fmt, sync::Arc, time::Instant};

use crate::{
    chain::SealedBlock,
    ledger::{
        Chain, FeedProblem, Record, SnapshotId, Unfit,
        codec::{CodesByHash, Entry},
    },
    store::StoreError,
};

/// Takes changes before they are visible.
pub trait Sink: fmt::Debug + Send {
    /// Returns the reason why the sink can take no more changes, so that sources stop building.
    fn failure(&self) -> Option<StoreError> {
        None
    }

    /// Returns whether the sink takes changes now. Otherwise a change is not encoded.
    fn takes(&self) -> bool {
        true
    }

    /// Takes a change that leads to `after`. The change becomes visible after this returns.
    ///
    /// # Errors
    ///
    /// Returns a [`StoreError`] if the change cannot be written. It must then not be published.
    fn take(&mut self, change: Change, after: &Arc<Chain>) -> Result<(), StoreError>;

    /// Notes that the input of the newest change arrived at `since`.
    fn note_arrival(&mut self, _since: Instant) {}
}

/// A change of a chain for a sink, in its encoded form.
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
    pub fn of(on: &Chain, id: SnapshotId, record: &Record) -> Self {
        let mut codes = CodesByHash::default();
        let entry = Entry::of(on, record, &mut codes);
        let sealed = match record {
            Record::Seal { sealed, .. } => Some(sealed.head.clone()),
            _ => None,
        };
        Self { id, entry, codes, sealed, oldest_body: on.oldest_history() }
    }

    /// Returns the message of a stream about it, with all of its codes. `None` if no other node follows it.
    #[cfg(test)]
    pub fn message(&self, dated: crate::ledger::LeaderTime) -> Option<Vec<u8>> {
        use crate::ledger::codec::StreamChanges;
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
    /// The change does not fit the published chain.
    #[error(transparent)]
    Unfit(#[from] Unfit),
}

impl Unpublished {
    /// Returns the problem of the feed.
    pub const fn problem(&self) -> FeedProblem {
        match self {
            Self::Store(_) => FeedProblem::Store,
            Self::Unfit(_) => FeedProblem::Execution,
        }
    }
}
