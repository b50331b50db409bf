//! Following a fleet's stream: each message is applied once, in order, or the state begins anew with the newest image.

use std::{fmt, sync::Arc, time::Instant};

use futures::StreamExt;

use super::{
    apply::Applier,
    clock::LeaderClock,
    reading::{FollowError, StreamReading},
};
use crate::{
    clock::now,
    fleet::servers::{Arrivals, FleetError, FleetPort, ImageKey},
    ledger::{
        Retention, SnapshotId, Snapshots,
        codec::{LeaderTime, StateImage},
    },
    state::CodeCache,
};

/// The state of a fleet as far as its stream was read.
///
/// It is a cell of its own: what is shown to clients is the newest of it, so that it goes back nowhere while the state begins
/// anew with an image.
pub struct Following {
    port: Arc<dyn FleetPort>,
    /// The state as far as the stream was read.
    reading: StreamReading,
    /// The id and the sequence from which this state began.
    pub(in crate::fleet) origin: (u64, u64),
    /// The messages after the last one, while they are asked for.
    messages: Option<Arrivals>,
}

/// The settings and the caches with which a node follows, whatever image it begins with.
#[derive(Clone, Debug)]
pub struct ReplicaBase {
    /// The bytecode cache.
    pub codes: Arc<CodeCache>,
    /// The part of the past that is retained.
    pub kept: Retention,
    /// The most bytes of the cache of the upstream's state.
    pub cache: usize,
    /// The bounds of the leader's clock.
    pub clock: LeaderClock,
}

impl ReplicaBase {
    /// Returns an applier of messages to the state of an image, or the problem of the image.
    fn read(&self, key: &ImageKey, bytes: &[u8]) -> Result<Applier, String> {
        let state = StateImage::read(bytes, &self.codes, self.kept, self.cache).map_err(|error| error.to_string())?;
        let dated = self.clock.earliest_or_own(SnapshotId(key.id).epoch(), LeaderTime(key.dated));
        state.update(|chain| chain.date(dated));
        Ok(self.applier(state))
    }

    /// Returns an applier of messages to `state`.
    pub fn applier(&self, state: Snapshots) -> Applier {
        Applier::new(state, self.codes.clone(), self.clock.clone())
    }
}

impl fmt::Debug for Following {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Following")
            .field("origin", &self.origin)
            .field("sequence", &self.sequence())
            .finish_non_exhaustive()
    }
}

impl Following {
    /// Follows from `state`, whose last change is the message at `sequence`.
    pub fn from(port: Arc<dyn FleetPort>, applier: Applier, sequence: u64) -> Self {
        let origin = (applier.state().load().last.0, sequence);
        Self { port, reading: StreamReading::from(applier, sequence), origin, messages: None }
    }

    /// Begins with the newest image of the fleet; `None` if there is none yet.
    ///
    /// # Errors
    ///
    /// Returns [`FleetError::Nats`] if NATS does not answer, and [`FleetError::Image`] if the image cannot be used.
    pub async fn bootstrap(port: &Arc<dyn FleetPort>, base: &ReplicaBase) -> Result<Option<Self>, FleetError> {
        let Some(key) = port.fact::<ImageKey>(ImageKey::KEY).await? else { return Ok(None) };
        let bytes = port.image(&key).await?;
        let (base, read_key) = (base.clone(), key.clone());
        let read = tokio::task::spawn_blocking(move || base.read(&read_key, &bytes)).await;
        let applier = read.unwrap_or_else(|error| Err(error.to_string())).map_err(FleetError::Image)?;
        tracing::info!(id = format!("{:#x}", key.id), bytes = key.bytes, "the state begins with the fleet's image");
        let ends = port.ends().await?;
        // The image has all that there is if nothing was published since the stream was created anew.
        let sequence = if ends.messages == 0 { key.sequence.min(ends.last) } else { key.sequence };
        Ok(Some(Self::from(port.clone(), applier, sequence)))
    }

    /// Returns the state as far as the stream was read.
    pub const fn state(&self) -> &Snapshots {
        self.reading.state()
    }

    /// Returns the sequence of the last message that was applied.
    pub const fn sequence(&self) -> u64 {
        self.reading.sequence
    }

    /// Returns the sequence of the last part that was read, whose message may not have come whole.
    pub const fn read(&self) -> u64 {
        self.reading.read
    }

    /// Asks for the messages again, because none has come for a time.
    pub fn ask_again(&mut self) {
        self.messages = None;
        self.reading.begin_again();
    }

    /// Asks for the messages, unless they are asked for already.
    ///
    /// # Errors
    ///
    /// Returns [`FollowError::Fleet`] if NATS does not answer, and [`FollowError::Gap`] if the stream ends before the last
    /// message that was applied, because it was created anew or has lost its end.
    pub async fn open(&mut self) -> Result<(), FollowError> {
        if self.messages.is_none() {
            let (end, read) = (self.port.ends().await?.last, self.sequence());
            if end < read {
                return Err(FollowError::Gap(format!(
                    "the stream was created anew or has lost its end: it ends with message {end}, and {read} was read"
                )));
            }
            self.messages = Some(self.port.read(read + 1).await?);
            self.reading.begin_again();
        }
        Ok(())
    }

    /// Returns whether the messages are asked for.
    pub const fn is_open(&self) -> bool {
        self.messages.is_some()
    }

    /// Waits for the next part of a message, and applies the message if the part is its last. Returns the id of the last
    /// message that was applied, and the time at which the part arrived. Cancelling it loses nothing.
    ///
    /// # Errors
    ///
    /// Returns [`FollowError::Gap`] if the next message is not in the stream, [`FollowError::Mismatch`] if it cannot be
    /// applied, and [`FollowError::Fleet`] if NATS does not answer.
    pub async fn next(&mut self) -> Result<(SnapshotId, Instant), FollowError> {
        self.open().await?;
        let Some(messages) = &mut self.messages else { return Ok((self.state().load().last, now())) };
        let message = messages.next().await;
        let arrived = now();
        let arrival = message.unwrap_or_else(|| Err(FleetError::nats("the stream cannot be read", "it ended")));
        let (sequence, part) = arrival.inspect_err(|_| self.ask_again())?;
        self.reading.arrive(sequence, part)?;
        Ok((self.state().load().last, arrived))
    }
}
