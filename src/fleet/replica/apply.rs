//! Applies the messages of a stream. Executes no transaction, and checks the result against the sealed headers.

use std::sync::Arc;

use super::clock::LeaderClock;
use crate::{
    fleet::servers::FleetError,
    ledger::{
        Chain, SnapshotId, Stamp,
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

/// The reason why the stream cannot be followed from here.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// NATS does not answer, or rejects the request. It may be tried again.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// The state must be loaded from an image again, because the stream lacks the next message.
    #[error("{0}")]
    Gap(String),
    /// A message cannot be applied, because it contradicts the values that this node computes.
    #[error("{0}")]
    Mismatch(String),
}

impl From<EntryError> for FollowError {
    fn from(error: EntryError) -> Self {
        match error {
            EntryError::Unfit(_) => Self::Gap(error.to_string()),
            _ => Self::Mismatch(error.to_string()),
        }
    }
}

impl Applier {
    /// Creates an applier of messages to `chain`. `clock` determines the ages of snapshots.
    pub fn new(chain: Arc<Chain>, cache: Arc<CodeCache>, clock: LeaderClock) -> Self {
        Self { chain, cache, codes: CodesByHash::default(), clock }
    }

    /// Returns the chain after the messages so far.
    pub const fn chain(&self) -> &Arc<Chain> {
        &self.chain
    }

    /// Applies the message `id`, which the leader published at `dated`.
    ///
    /// # Errors
    ///
    /// Returns [`FollowError::Gap`] if it is not the next message or does not fit the chain, and
    /// [`FollowError::Mismatch`] if it is malformed or a block contradicts its header. The chain is then unchanged.
    pub fn apply(&mut self, id: SnapshotId, dated: LeaderTime, message: StreamMessage) -> Result<(), FollowError> {
        let last = self.chain.last;
        let stamp = Stamp { id, at: self.clock.earliest_or_own(id.epoch(), dated) };
        let is_next = match &message {
            StreamMessage::Epoch { follows, .. } => *follows == last && id == SnapshotId::begin(id.epoch()),
            // Changes that were not published individually are not missing.
            StreamMessage::Changes(changes) => changes.follows.map_or(id == last.next(), |follows| follows == last),
        };
        if !is_next {
            return Err(FollowError::Gap(format!("message {:#x} is not the one after {:#x}", id.0, last.0)));
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
                    check(&record)?;
                    next.apply(stamp, record).map_err(EntryError::from)?;
                }
            }
        }
        self.chain = next.into();
        Ok(())
    }
}
