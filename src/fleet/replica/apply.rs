//! Applying the messages of a stream: no transaction is executed, and what the sealed headers say is checked.

use std::sync::Arc;

use super::clock::LeaderClock;
use crate::{
    ledger::{
        Chain, SnapshotId, Stamp, Unfit,
        codec::{CodesByHash, EntryError, LeaderTime, StreamChanges, StreamMessage, check},
    },
    state::CodeCache,
};

/// Applies the messages of a stream to a chain.
#[derive(Debug)]
pub struct Applier {
    chain: Arc<Chain>,
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
    /// The message cannot be read, does not fit the chain, or is not what its headers say.
    #[error(transparent)]
    Entry(#[from] EntryError),
}

impl From<Unfit> for ApplyError {
    fn from(unfit: Unfit) -> Self {
        Self::Entry(unfit.into())
    }
}

impl Applier {
    /// Creates an applier of messages to `chain`. By `clock` the age of a snapshot is known.
    pub fn new(chain: Arc<Chain>, cache: Arc<CodeCache>, clock: LeaderClock) -> Self {
        Self { chain, cache, codes: CodesByHash::default(), clock }
    }

    /// Returns the chain after the messages so far.
    pub const fn chain(&self) -> &Arc<Chain> {
        &self.chain
    }

    /// Applies the message `id`, whose snapshot the leader has dated.
    ///
    /// # Errors
    ///
    /// Returns [`ApplyError::Gap`] if it is not the next message, and [`ApplyError::Entry`] if it does not fit the chain or a block is not
    /// what its header says. The chain is as it was then.
    pub fn apply(&mut self, id: SnapshotId, dated: LeaderTime, message: StreamMessage) -> Result<(), ApplyError> {
        let last = self.chain.last;
        let stamp = Stamp { id, at: self.clock.earliest_or_own(id.epoch(), dated) };
        let is_next = match &message {
            StreamMessage::Epoch { follows, .. } => *follows == last && id == SnapshotId::begin(id.epoch()),
            // Changes that were never published one by one are not missing.
            StreamMessage::Changes(changes) => changes.follows.map_or(id == last.next(), |follows| follows == last),
        };
        if !is_next {
            return Err(ApplyError::Gap { id: id.0, last: last.0 });
        }
        let mut next = Chain::clone(&self.chain);
        match message {
            StreamMessage::Epoch { leader, .. } => {
                tracing::info!(leader, epoch = id.epoch(), "a node leads the fleet");
                next.begin_epoch(id.epoch());
            }
            StreamMessage::Changes(StreamChanges { entries, codes, forgets, .. }) => {
                if forgets {
                    self.codes = CodesByHash::default();
                }
                self.codes.extend(codes, &self.cache);
                for entry in entries {
                    let record = entry.read(&next, &self.codes)?;
                    check(&record).map_err(ApplyError::Entry)?;
                    next.apply(stamp, record)?;
                }
            }
        }
        self.chain = next.into();
        Ok(())
    }
}
