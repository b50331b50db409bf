//! The servers of a fleet as its nodes use them: NATS in production, and a model in the simulation of faults.

use std::{fmt, num::NonZeroUsize, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};

use super::{ArrivedPart, FleetChain, FleetError, ImageKey, WALLET_KEY};
use crate::{
    ledger::{
        SnapshotId,
        codec::{Frame, VERSION},
    },
    objects,
};

/// The time limit for a server's answer: a little more than two round trips in a network that delays each message by 2
/// s.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit for the stream to acknowledge a message, before the message is sent again.
pub const ACK_TIMEOUT: Duration = Duration::from_secs(1);
/// The time in which another node must reply.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// The fate of a part that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartAck {
    /// The stream has it.
    Taken,
    /// The stream ends with another message than the part was to follow.
    OutOfSequence,
    /// The stream does not take it, or does not answer.
    Unknown,
}

/// The message at a sequence of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEntry {
    /// A part of presim's.
    Part {
        /// The id of its message.
        id: SnapshotId,
        /// The index of the part.
        index: u32,
    },
    /// Not a message of presim, or a deleted one, so that its sender is unknown.
    Foreign,
    /// The stream ends before.
    Empty,
}

/// The extent of the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamEnds {
    /// The sequence of the oldest message.
    pub first: u64,
    /// The sequence of the newest message. It does not change when messages are deleted.
    pub last: u64,
    /// The number of messages.
    pub messages: u64,
    /// The bytes of the messages.
    pub bytes: u64,
}

/// The parts of a stream as they arrive, each with its sequence. `None` is a message of another program.
pub type Arrivals = BoxStream<'static, Result<(u64, Option<ArrivedPart>), FleetError>>;

/// A key-value bucket of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bucket {
    /// The facts that nodes know of the fleet: its chain, its last epoch, and its newest image.
    Facts,
    /// The lease.
    Lease,
}

/// The last value of a key.
#[derive(Clone, Debug)]
pub struct BucketEntry {
    /// The value; empty if the key was deleted.
    pub value: Bytes,
    /// The revision, to be passed to the next update.
    pub revision: u64,
}

/// A subject of the fleet. Only the messages of the feed are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Topic {
    /// The messages of the stream.
    Feed,
    /// The leader's newest id.
    Pulse,
    /// Questions for the leader's clock.
    Clock,
    /// Requests for an image.
    WantImage,
    /// Requests for the upstream's state that the leader knows.
    State,
    /// Requests that only the leader can answer. Only nodes of the fleet may publish to it.
    Leader,
    /// JSON-RPC. Replicas answer it.
    Rpc,
}

/// A short message.
#[derive(Clone, Debug)]
pub struct ShortMessage {
    /// The content.
    pub payload: Bytes,
    /// The address for a reply, if one is expected.
    pub reply: Option<String>,
}

/// The servers of a fleet: a stream, buckets, images, and short messages.
///
/// Each call fails with [`FleetError::Nats`] if the servers do not answer in time, or refuse. The call may have had its effect
/// then.
#[async_trait]
pub trait FleetPort: fmt::Debug + Send + Sync {
    /// Returns the name of the fleet.
    fn fleet(&self) -> &str;

    /// Returns whether the servers are reached.
    fn is_connected(&self) -> bool;

    /// Recreates the fleet's streams and buckets that the servers lack.
    async fn repair(&self) -> Result<(), FleetError>;

    /// Deletes the messages of the stream.
    async fn purge(&self) -> Result<(), FleetError>;

    /// Returns the most bytes of a part.
    fn max_part(&self) -> NonZeroUsize;

    /// Returns the extent of the stream.
    async fn ends(&self) -> Result<StreamEnds, FleetError>;

    /// Asks for the messages of the stream from a sequence on.
    async fn read(&self, from: u64) -> Result<Arrivals, FleetError>;

    /// Returns the message at a sequence of the stream.
    async fn at(&self, sequence: u64) -> Result<StreamEntry, FleetError>;

    /// Sends the parts of the message `id` in order. The first one must follow the message at `expected`. If a part is
    /// rejected, so are those after it. Returns the outcomes of the parts that could be sent, in order. A part that the
    /// stream already has under the same name is accepted, regardless of what it must follow.
    async fn send(&self, id: SnapshotId, parts: &[Frame], expected: u64) -> Vec<PartAck>;

    /// Returns the last value of a key; `None` if it never had one.
    async fn entry(&self, bucket: Bucket, key: &str) -> Result<Option<BucketEntry>, FleetError>;

    /// Sets a key whose last revision is `revision` (0 if it never had a value). Returns the new revision, or `None` if
    /// the key has another revision.
    async fn update(&self, bucket: Bucket, key: &str, value: Bytes, revision: u64) -> Result<Option<u64>, FleetError>;

    /// Writes an image.
    async fn put_image(&self, name: &str, bytes: &[u8]) -> Result<(), FleetError>;

    /// Reads an image. Fails with [`FleetError::Image`] if it has another length than its key says.
    async fn image(&self, key: &ImageKey) -> Result<Vec<u8>, FleetError>;

    /// Returns the names of the images.
    async fn images(&self) -> Result<Vec<String>, FleetError>;

    /// Deletes all images but these, and the remains of failed writes.
    async fn retain_images(&self, kept: &[String]) -> Result<(), FleetError>;

    /// Publishes a short message. If it is lost, the caller repeats it.
    async fn publish(&self, topic: Topic, payload: Bytes);

    /// Listens to a topic.
    async fn subscribe(&self, topic: Topic) -> Result<BoxStream<'static, ShortMessage>, FleetError>;

    /// Publishes an empty message, and returns the first reply, or `None` if none arrives in time.
    async fn request(&self, topic: Topic) -> Option<Bytes>;

    /// Replies to a message.
    async fn reply(&self, to: String, payload: Bytes);
}

impl dyn FleetPort + '_ {
    /// Returns a fact of the fleet; `None` if it is not known yet.
    ///
    /// # Errors
    ///
    /// Returns [`FleetError::Nats`] if NATS does not answer, or the fact is malformed.
    pub async fn fact<T: for<'a> Deserialize<'a>>(&self, key: &str) -> Result<Option<T>, FleetError> {
        let entry = self.entry(Bucket::Facts, key).await?.filter(|entry| !entry.value.is_empty());
        let read = entry.map(|entry| objects::from_slice(&entry.value)).transpose();
        read.map_err(FleetError::of_nats("a fact of the fleet is malformed"))
    }

    /// Writes a fact of the fleet if `replaces` accepts the known one. Returns the resulting fact.
    ///
    /// # Errors
    ///
    /// Returns [`FleetError::Nats`] if NATS does not take it.
    pub async fn write_fact<T: Clone + Serialize + for<'a> Deserialize<'a>>(
        &self,
        key: &str,
        value: &T,
        replaces: impl Fn(&T) -> bool + Send,
    ) -> Result<T, FleetError> {
        let text = serde_json::to_vec(value).map_err(FleetError::of_nats("a fact cannot be written"))?;
        let text = Bytes::from(text);
        loop {
            let entry = self.entry(Bucket::Facts, key).await?;
            let revision = entry.as_ref().map_or(0, |entry| entry.revision);
            if let Some(entry) = entry.filter(|entry| !entry.value.is_empty()) {
                let known = objects::from_slice(&entry.value);
                let known = known.map_err(FleetError::of_nats("a fact of the fleet is malformed"))?;
                if !replaces(&known) {
                    return Ok(known);
                }
            }
            if self.update(Bucket::Facts, key, text.clone(), revision).await?.is_some() {
                return Ok(value.clone());
            }
        }
    }

    /// Deletes the fleet's messages and the stored facts about its chain, so that it starts again. Its last epoch
    /// stays.
    ///
    /// # Errors
    ///
    /// Returns [`FleetError::Nats`] if NATS rejects the request, or does not answer.
    pub async fn clear(&self) -> Result<(), FleetError> {
        self.purge().await?;
        for key in [FleetChain::KEY, ImageKey::KEY, WALLET_KEY] {
            while let Some(entry) = self.entry(Bucket::Facts, key).await?.filter(|entry| !entry.value.is_empty()) {
                self.update(Bucket::Facts, key, Bytes::new(), entry.revision).await?;
            }
        }
        Ok(())
    }

    /// Returns the chain of the fleet, or `None` if no node has led it yet.
    ///
    /// # Errors
    ///
    /// Returns [`FleetError::Version`] if the fleet is of another version, and [`FleetError::Nats`] if NATS does not
    /// answer.
    pub async fn chain(&self) -> Result<Option<FleetChain>, FleetError> {
        #[derive(Deserialize)]
        struct FleetVersion {
            version: u8,
        }
        let Some(FleetVersion { version }) = self.fact(FleetChain::KEY).await? else { return Ok(None) };
        if version != VERSION {
            return Err(FleetError::Version { fleet: self.fleet().to_owned(), theirs: version });
        }
        self.fact(FleetChain::KEY).await
    }

    /// Deletes all images but the newest, and the remains of failed writes.
    ///
    /// # Errors
    ///
    /// Returns [`FleetError::Nats`] if NATS refuses, or does not answer.
    pub async fn retain_newest_image(&self) -> Result<(), FleetError> {
        let newest = self.fact::<ImageKey>(ImageKey::KEY).await?;
        self.retain_images(&newest.into_iter().map(|newest| newest.name).collect::<Vec<_>>()).await
    }

    /// Asks the leader for a new image. If the request is lost, the caller repeats it.
    pub async fn want_image(&self) {
        self.publish(Topic::WantImage, Bytes::new()).await;
    }
}
