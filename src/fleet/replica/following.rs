//! Following a fleet's stream: each message is applied once, in order, or the state starts again with the newest image.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::StreamExt;

use super::{
    apply::{Applier, FollowError},
    clock::LeaderClock,
    reading::StreamReading,
};
use crate::{
    clock::now,
    fleet::servers::{Arrivals, FleetError, FleetPort, ImageKey},
    ledger::{
        Chain, Retention, SnapshotId,
        codec::{LeaderTime, image},
    },
    state::CodeCache,
};

/// The time without a message, before the end of the stream is reached, after which the messages are requested again.
const LOST: Duration = Duration::from_secs(1);

/// The chain of a fleet up to the last message read.
///
/// Clients see the newest chain reached so far, so it does not go back while the state is loaded from an image again.
pub struct Following {
    port: Arc<dyn FleetPort>,
    /// The chain as far as the stream was read.
    reading: StreamReading,
    /// The id and the sequence from which this chain began.
    pub(in crate::fleet) origin: (u64, u64),
    /// The messages after the last one, while they are asked for.
    messages: Option<Arrivals>,
}

/// The settings and the caches of a follower, which do not depend on the image that it starts from.
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
    /// Returns the chain of an image, or the problem of the image.
    fn read(&self, key: &ImageKey, bytes: &[u8]) -> Result<Chain, String> {
        let chain = image::read(bytes, &self.codes, self.kept, self.cache);
        let mut chain = chain.map_err(|error| error.to_string())?;
        chain.set_time(self.clock.earliest_or_own(SnapshotId(key.id).epoch(), LeaderTime(key.dated)));
        Ok(chain)
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
    /// Follows from `chain`. Its last change is the message at `sequence`.
    pub fn from(port: Arc<dyn FleetPort>, base: &ReplicaBase, chain: Arc<Chain>, sequence: u64) -> Self {
        let origin = (chain.last.0, sequence);
        let applier = Applier::new(chain, base.codes.clone(), base.clock.clone());
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
        let (reader, read_key) = (base.clone(), key.clone());
        let read = tokio::task::spawn_blocking(move || reader.read(&read_key, &bytes)).await;
        let chain = read.unwrap_or_else(|error| Err(error.to_string())).map_err(FleetError::Image)?;
        tracing::info!(id = format!("{:#x}", key.id), bytes = key.bytes, "the state begins with the fleet's image");
        let ends = port.ends().await?;
        // The image is complete if nothing was published since the stream was created again.
        let sequence = if ends.messages == 0 { key.sequence.min(ends.last) } else { key.sequence };
        Ok(Some(Self::from(port.clone(), base, chain.into(), sequence)))
    }

    /// Returns the chain as far as the stream was read.
    pub const fn chain(&self) -> &Arc<Chain> {
        self.reading.chain()
    }

    /// Returns the sequence of the last message that was applied.
    pub const fn sequence(&self) -> u64 {
        self.reading.sequence
    }

    /// Returns the sequence of the last part that was read. Its message may be incomplete.
    pub const fn read(&self) -> u64 {
        self.reading.read
    }

    /// Requests the messages again, because none has arrived for some time.
    pub fn ask_again(&mut self) {
        self.messages = None;
        self.reading.begin_again();
    }

    /// Requests the messages, unless they are requested already.
    ///
    /// # Errors
    ///
    /// Returns [`FollowError::Fleet`] if NATS does not answer, and [`FollowError::Gap`] if the stream ends before the last
    /// message that was applied, because it was created again or has lost its end.
    pub async fn open(&mut self) -> Result<(), FollowError> {
        if self.messages.is_none() {
            let (end, read) = (self.port.ends().await?.last, self.sequence());
            if end < read {
                return Err(FollowError::Gap(format!(
                    "the stream was created again or has lost its end: it ends with message {end}, and {read} was read"
                )));
            }
            self.messages = Some(self.port.read(read + 1).await?);
            self.reading.begin_again();
        }
        Ok(())
    }

    /// Reads the stream until every message that arrived in the meantime has been read.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`next`](Self::next).
    pub async fn reach_end(&mut self) -> Result<(), FollowError> {
        loop {
            let ends = self.port.ends().await?;
            self.open().await?;
            if self.read() >= ends.last {
                return Ok(());
            }
            if ends.first > self.read() + 1 {
                return Err(FollowError::Gap(format!("the stream has no message {} any more", self.read() + 1)));
            }
            while self.read() < ends.last {
                match tokio::time::timeout(LOST, self.next()).await {
                    Ok(followed) => drop(followed?),
                    Err(_) => {
                        self.ask_again();
                        break;
                    }
                }
            }
        }
    }

    /// Returns whether the messages are asked for.
    pub const fn is_open(&self) -> bool {
        self.messages.is_some()
    }

    /// Waits for the next part of a message, and applies the message if the part is its last. Returns the id of the
    /// last applied message, and the time at which the part arrived. Cancel safe.
    ///
    /// # Errors
    ///
    /// Returns [`FollowError::Gap`] if the next message is not in the stream, [`FollowError::Mismatch`] if it cannot be
    /// applied, and [`FollowError::Fleet`] if NATS does not answer.
    pub async fn next(&mut self) -> Result<(SnapshotId, Instant), FollowError> {
        self.open().await?;
        let Some(messages) = &mut self.messages else { return Ok((self.chain().last, now())) };
        let message = messages.next().await;
        let arrived = now();
        let arrival = message.unwrap_or_else(|| Err(FleetError::nats("the stream cannot be read", "it ended")));
        let (sequence, part) = arrival.inspect_err(|_| self.ask_again())?;
        self.reading.arrive(sequence, part)?;
        Ok((self.chain().last, arrived))
    }
}
