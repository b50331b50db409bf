//! Applying the messages of a stream: no transaction is executed, and what the sealed headers say is checked.

use std::sync::Arc;

use super::clock::LeaderClock;
use crate::{
    ledger::{
        SnapshotId, Snapshots, Stamp, Unfit,
        codec::{CodesByHash, EntryError, LeaderTime, StreamChanges, StreamMessage, check},
    },
    state::CodeCache,
};

/// Applies the messages of a stream to a state.
#[derive(Debug)]
pub struct Applier {
    state: Snapshots,
    cache: Arc<CodeCache>,
    /// The codes that messages have brought, and that later ones name by their hashes.
    codes: CodesByHash,
    clock: LeaderClock,
}

/// The reason why a message is not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Messages before it are missing.
    #[error("message {id:#x} is not the one after {last:#x}")]
    Gap { id: u64, last: u64 },
    /// The message cannot be read, does not fit the state, or is not what its headers say.
    #[error(transparent)]
    Entry(#[from] EntryError),
}

impl From<Unfit> for ApplyError {
    fn from(unfit: Unfit) -> Self {
        Self::Entry(unfit.into())
    }
}

impl Applier {
    /// Creates an applier of messages to `state`. By `clock` the age of a snapshot is known.
    pub fn new(state: Snapshots, cache: Arc<CodeCache>, clock: LeaderClock) -> Self {
        Self { state, cache, codes: CodesByHash::default(), clock }
    }

    /// Returns the state.
    pub const fn state(&self) -> &Snapshots {
        &self.state
    }

    /// Applies the message `id`, whose snapshot the leader has dated.
    ///
    /// # Errors
    ///
    /// Returns [`ApplyError::Gap`] if it is not the next message, and [`ApplyError::Entry`] if it does not fit the state or a block is not
    /// what its header says. The state is as it was then.
    pub fn apply(&mut self, id: SnapshotId, dated: LeaderTime, message: StreamMessage) -> Result<(), ApplyError> {
        let last = self.state.load().last;
        let stamp = Stamp { id, at: self.clock.earliest_or_own(id.epoch(), dated) };
        let is_next = match &message {
            StreamMessage::Epoch { follows, .. } => *follows == last && id == SnapshotId::begin(id.epoch()),
            // Changes that were never published one by one are not missing.
            StreamMessage::Changes(changes) => changes.follows.map_or(id == last.next(), |follows| follows == last),
        };
        if !is_next {
            return Err(ApplyError::Gap { id: id.0, last: last.0 });
        }
        match message {
            StreamMessage::Epoch { leader, .. } => {
                tracing::info!(leader, epoch = id.epoch(), "a node leads the fleet");
                self.state.update(|chain| chain.begin_epoch(id.epoch()));
                Ok(())
            }
            StreamMessage::Changes(changes) => Ok(self.apply_changes(stamp, changes)?),
        }
    }

    fn apply_changes(&mut self, stamp: Stamp, changes: StreamChanges) -> Result<(), EntryError> {
        if changes.forgets {
            self.codes = CodesByHash::default();
        }
        self.codes.extend(changes.codes, &self.cache);
        self.state.try_update(|chain| {
            for entry in changes.entries {
                let record = entry.read(chain, &self.codes)?;
                check(&record)?;
                chain.apply(stamp, record)?;
            }
            Ok(())
        })
    }
}
