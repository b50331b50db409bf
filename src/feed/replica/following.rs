//! Following a fleet's stream: each message is applied once, in order, or the state begins anew with the newest image.

use std::{fmt, sync::Arc};

use async_nats::jetstream::consumer::{DeliverPolicy, push};
use futures::StreamExt;

use super::{
    apply::{Applier, ApplyError},
    live::{FollowedState, LiveReplica},
};
use crate::{
    feed::{
        codec::{ImageContent, MessageError, StateImage, StreamMessage, join},
        fleet::{ArrivedPart, FleetError, FleetLink, ImageKey},
        journal::Journal,
        publishing::read_image,
    },
    state::{CodeCache, Retention, SnapshotId, Snapshots},
};

/// The state of a fleet as far as its stream was read.
///
/// It is a cell of its own: what is shown to clients is the newest of it, so that it goes back nowhere while the state begins
/// anew with an image.
pub struct Following {
    link: FleetLink,
    applier: Applier,
    /// The id and the sequence from which this state began.
    origin: (u64, u64),
    /// The sequence of the last message that was applied.
    sequence: u64,
    /// The messages after it, while they are asked for.
    messages: Option<push::Ordered>,
    /// The parts of a message whose last part has not come.
    parts: Vec<ArrivedPart>,
    /// The sequence of the last part.
    read: u64,
}

/// The settings and the caches with which a node follows, whatever image it begins with.
#[derive(Clone, Debug)]
pub struct ReplicaBase {
    /// The bytecode cache.
    pub codes: Arc<CodeCache>,
    /// The part of the past that is retained.
    pub kept: Retention,
    /// The settings of the cache of an upstream's state, for a fleet that follows one.
    pub state: FollowedState,
}

impl ReplicaBase {
    /// Returns an applier of messages to the state of an image, or the problem of the image.
    fn read(&self, bytes: &[u8]) -> Result<Applier, String> {
        let Self { codes, kept, state } = self;
        match StateImage::read(bytes, codes, *kept).map_err(|error| error.to_string())? {
            ImageContent::Local(snapshots) => Ok(Applier::new(*snapshots, codes.clone())),
            ImageContent::Live(image) => {
                let begun = LiveReplica::begin(*image, state, codes, *kept).map_err(|error| error.to_string())?;
                Ok(Applier::of_live(begun.0, codes.clone(), begun.1))
            }
        }
    }
}

impl fmt::Debug for Following {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Following")
            .field("origin", &self.origin)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

/// The reason why the stream cannot be followed from here.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// NATS does not answer, or refuses. It may be tried again.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// The state has to begin anew with an image, because the stream does not have what comes next.
    #[error("{0}")]
    Gap(String),
    /// A message cannot be applied, because it differs from what this node computes.
    #[error("{0}")]
    Mismatch(String),
}

impl From<ApplyError> for FollowError {
    fn from(error: ApplyError) -> Self {
        match error {
            ApplyError::Gap { .. } | ApplyError::Unfit { .. } => Self::Gap(error.to_string()),
            ApplyError::Message(_) | ApplyError::Mismatch { .. } => Self::Mismatch(error.to_string()),
        }
    }
}

impl From<MessageError> for FollowError {
    fn from(error: MessageError) -> Self {
        Self::Mismatch(error.to_string())
    }
}

impl Following {
    /// Follows from `state`, whose last change is the message at `sequence`.
    pub fn from(link: FleetLink, applier: Applier, sequence: u64) -> Self {
        let origin = (applier.state().load().last.0, sequence);
        Self { link, applier, origin, sequence, messages: None, parts: Vec::new(), read: sequence }
    }

    /// Begins with the newest image of the fleet; `None` if there is none yet.
    ///
    /// # Errors
    ///
    /// Returns [`FleetError::Nats`] if NATS does not answer, and [`FleetError::Image`] if the image cannot be used.
    pub async fn bootstrap(link: &FleetLink, base: &ReplicaBase) -> Result<Option<Self>, FleetError> {
        let Some(key) = link.fact::<ImageKey>(ImageKey::KEY).await? else { return Ok(None) };
        let bytes = read_image(&link.images().await?, &key.name).await?;
        let base = base.clone();
        let read = tokio::task::spawn_blocking(move || base.read(&bytes)).await;
        let applier = read.unwrap_or_else(|error| Err(error.to_string())).map_err(FleetError::Image)?;
        tracing::info!(id = format!("{:#x}", key.id), bytes = key.bytes, "the state begins with the fleet's image");
        Ok(Some(Self::from(link.clone(), applier, key.sequence)))
    }

    /// Returns the state as far as the stream was read.
    pub const fn state(&self) -> &Snapshots {
        self.applier.state()
    }

    /// Returns the id and the sequence from which this state began.
    pub const fn origin(&self) -> (u64, u64) {
        self.origin
    }

    /// Returns the sequence of the last message that was applied.
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Asks for the messages again, because none has come for a time.
    pub fn ask_again(&mut self) {
        self.messages = None;
        self.parts.clear();
        self.read = self.sequence;
    }

    /// Asks for the messages, unless they are asked for already.
    ///
    /// # Errors
    ///
    /// Returns [`FleetError::Nats`] if NATS does not answer.
    pub async fn open(&mut self) -> Result<(), FleetError> {
        if self.messages.is_none() {
            self.messages = Some(open(&self.link, self.sequence + 1).await?);
            self.read = self.sequence;
        }
        Ok(())
    }

    /// Waits for the next part of a message, and applies the message if the part is its last. Returns the id of the last
    /// message that was applied. Cancelling it loses nothing.
    ///
    /// # Errors
    ///
    /// Returns [`FollowError::Gap`] if the next message is not in the stream, [`FollowError::Mismatch`] if it cannot be
    /// applied, and [`FollowError::Fleet`] if NATS does not answer.
    pub async fn next(&mut self, journal: Option<&Journal>) -> Result<SnapshotId, FollowError> {
        self.open().await?;
        let Some(messages) = &mut self.messages else { return Ok(self.last()) };
        let message = match messages.next().await {
            Some(Ok(message)) => message,
            other => {
                self.ask_again();
                let problem =
                    other.and_then(Result::err).map_or_else(|| "it ended".to_owned(), |error| error.to_string());
                return Err(FleetError::nats("the stream cannot be read", problem).into());
            }
        };
        let arrived = message.info().map(|info| info.stream_sequence);
        let sequence = arrived.map_err(|error| FleetError::nats("a message has no sequence", error))?;
        if sequence <= self.read {
            return Ok(self.last());
        }
        if sequence != self.read + 1 {
            return Err(FollowError::Gap(format!(
                "the stream has no message {}: the next is {sequence}",
                self.read + 1
            )));
        }
        self.read = sequence;
        let part = ArrivedPart::read(message.headers.as_ref(), message.payload.clone().into());
        self.take(sequence, part, journal)?;
        Ok(self.last())
    }

    /// Takes a part. Parts without their last are dropped when another message begins.
    fn take(&mut self, sequence: u64, part: Option<ArrivedPart>, journal: Option<&Journal>) -> Result<(), FollowError> {
        let Some(part) = part else {
            tracing::warn!(sequence, "a message of the stream is none of presim's: it is ignored");
            self.parts.clear();
            self.sequence = sequence;
            return Ok(());
        };
        if self
            .parts
            .last()
            .is_some_and(|last| (last.id, last.index + 1, last.count) != (part.id, part.index, part.count))
        {
            self.parts.clear();
        }
        if self.parts.len() as u64 != u64::from(part.index) {
            // The beginning of the message was published by a node that failed, or before this one's place.
            self.sequence = sequence;
            return Ok(());
        }
        let (id, is_last) = (part.id, part.index + 1 == part.count);
        self.parts.push(part);
        if !is_last {
            return Ok(());
        }
        let parts: Vec<_> = std::mem::take(&mut self.parts).into_iter().map(|part| part.bytes).collect();
        if self.applier.is_old(id) {
            self.sequence = sequence;
            return Ok(());
        }
        let message = join(&parts).map_err(|error| FollowError::Mismatch(error.to_string()))?;
        self.applier.apply(id, StreamMessage::read(&message)?, journal)?;
        self.sequence = sequence;
        Ok(())
    }

    fn last(&self) -> SnapshotId {
        self.applier.state().load().last
    }

    /// Returns the parts from which the state goes on elsewhere.
    pub fn into_applier(self) -> Applier {
        self.applier
    }
}

/// Asks for the messages of the stream from `sequence` on.
async fn open(link: &FleetLink, sequence: u64) -> Result<push::Ordered, FleetError> {
    let unread = |problem: String| FleetError::nats("the stream cannot be read", problem);
    let consumer = push::OrderedConfig {
        deliver_subject: link.client.new_inbox(),
        filter_subject: link.names.feed(),
        deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: sequence },
        ..push::OrderedConfig::default()
    };
    let consumer = link.stream().await?.create_consumer(consumer).await;
    let consumer = consumer.map_err(|error| unread(error.to_string()))?;
    consumer.messages().await.map_err(|error| unread(error.to_string()))
}
