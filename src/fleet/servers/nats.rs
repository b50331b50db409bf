//! The servers of a fleet, implemented by NATS.

use std::{error::Error, num::NonZeroUsize, time::Duration};

use async_nats::{
    connection::State,
    jetstream::{
        consumer::{DeliverPolicy, push},
        context::{PublishError, PublishErrorKind},
        kv::{UpdateError, UpdateErrorKind},
        message::PublishMessage,
        object_store::{ObjectMetadata, ObjectStore},
        stream::{RawMessageErrorKind, Stream},
    },
};
use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_URL_SAFE};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, future::join_all, stream::BoxStream};
use tokio::{
    io::AsyncReadExt,
    time::{Instant, sleep, timeout},
};

use super::{
    Arrivals, ArrivedPart, Bucket, BucketEntry, FleetError, FleetLink, FleetPort, ImageKey, PartAck, REPLY_TIMEOUT,
    REQUEST_TIMEOUT, ShortMessage, StreamEnds, StreamEntry, Topic, headers,
};
use crate::ledger::{
    SnapshotId,
    codec::{Frame, MAX_IMAGE_BYTES},
};

/// The bytes that are left for the headers of a part.
const HEADERS: usize = 1_024;
/// The most bytes of a part of an image.
const MAX_IMAGE_PART: usize = 128 << 10;
/// The most time without a part of an image that is read.
const IMAGE_PART_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before a message that no stream has accepted is sent again.
const STREAM_PAUSE: Duration = Duration::from_millis(20);

impl FleetLink {
    async fn image_store(&self) -> Result<ObjectStore, FleetError> {
        let store = self.jetstream.get_object_store(&self.names.images()).await;
        store.map_err(FleetError::of_nats("the fleet's images cannot be read"))
    }

    /// Opens the stream of the bucket of images. Returns the subjects of its messages, too: `$O.<bucket>.M.<name>` of an image,
    /// and `$O.<bucket>.C.<nuid>` of its parts.
    async fn image_subjects(&self) -> Result<(Stream, Vec<String>), FleetError> {
        let (bucket, unlisted) = (self.names.images(), "the images cannot be listed");
        let stream = self.jetstream.get_stream(format!("OBJ_{bucket}")).await.map_err(FleetError::of_nats(unlisted))?;
        let listed =
            stream.info_with_subjects(format!("$O.{bucket}.>")).await.map_err(FleetError::of_nats(unlisted))?;
        let subjects: Result<Vec<_>, _> = listed.map_ok(|(subject, _)| subject).try_collect().await;
        Ok((stream, subjects.map_err(FleetError::of_nats(unlisted))?))
    }

    /// Returns the subject of an image's name and size.
    fn image_subject(&self, name: &str) -> String {
        format!("$O.{}.M.{}", self.names.images(), BASE64_URL_SAFE.encode(name))
    }
}

#[async_trait]
impl FleetPort for FleetLink {
    fn fleet(&self) -> &str {
        &self.names.fleet
    }

    fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    async fn repair(&self) -> Result<(), FleetError> {
        self.create().await
    }

    async fn purge(&self) -> Result<(), FleetError> {
        let stream = self.stream().await?;
        stream.purge().await.map_err(FleetError::of_nats("the fleet's stream cannot be purged"))?;
        Ok(())
    }

    fn max_part(&self) -> NonZeroUsize {
        let most = self.client.server_info().max_payload.saturating_sub(HEADERS);
        NonZeroUsize::new(most).unwrap_or(NonZeroUsize::MIN)
    }

    async fn ends(&self) -> Result<StreamEnds, FleetError> {
        let stream = self.stream().await?;
        let state = &stream.cached_info().state;
        let (first, last) = (state.first_sequence, state.last_sequence);
        Ok(StreamEnds { first, last, messages: state.messages, bytes: state.bytes })
    }

    async fn read(&self, from: u64) -> Result<Arrivals, FleetError> {
        let (stream, unread) = (self.stream().await?, "the stream cannot be read");
        let consumer = push::OrderedConfig {
            deliver_subject: self.client.new_inbox(),
            filter_subject: self.names.subject(Topic::Feed),
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: from },
            ..push::OrderedConfig::default()
        };
        let consumer = stream.create_consumer(consumer).await.map_err(FleetError::of_nats(unread))?;
        let messages = consumer.messages().await.map_err(FleetError::of_nats(unread))?;
        let arrivals = messages.map(move |message| {
            let message = message.map_err(FleetError::of_nats(unread))?;
            let sequence = message.info().map(|info| info.stream_sequence);
            let sequence = sequence.map_err(FleetError::of_nats("a message has no sequence"))?;
            Ok((sequence, ArrivedPart::read(message.headers.as_ref(), message.payload.clone().into())))
        });
        Ok(arrivals.boxed())
    }

    async fn at(&self, sequence: u64) -> Result<StreamEntry, FleetError> {
        let stream = self.stream().await?;
        match stream.get_raw_message(sequence).await {
            Ok(message) => Ok(match ArrivedPart::read(Some(&message.headers), message.payload.into()) {
                Some(ArrivedPart { id, index, .. }) => StreamEntry::Part { id, index },
                None => StreamEntry::Foreign,
            }),
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => {
                let is_before_end = self.ends().await?.last >= sequence;
                Ok(if is_before_end { StreamEntry::Foreign } else { StreamEntry::Empty })
            }
            Err(error) => Err(FleetError::nats("the stream cannot be read", error)),
        }
    }

    async fn send(&self, id: SnapshotId, parts: &[Frame], expected: u64) -> Vec<PartAck> {
        let mut acks = Vec::with_capacity(parts.len());
        for (expected, frame) in (expected..).zip(parts) {
            let message = PublishMessage::build()
                .headers(headers(id, frame.index, frame.count))
                .payload(frame.bytes.0.clone())
                .message_id(format!("{:x}-{}", id.0, frame.index))
                .expected_last_sequence(expected);
            match self.jetstream.send_publish(self.names.subject(Topic::Feed), message).await {
                Ok(ack) => acks.push(ack.into_future()),
                Err(error) => {
                    tracing::debug!(%error, "a message cannot be sent to the stream");
                    break;
                }
            }
        }
        // Awaited together, so that a message of several parts takes one round trip.
        let acks = join_all(acks).await.into_iter().map(|ack| match ack {
            Ok(_) => PartAck::Taken,
            Err(error) => {
                tracing::debug!(%error, "the stream does not take a message");
                match error.kind() {
                    PublishErrorKind::WrongLastSequence => PartAck::OutOfSequence,
                    _ => PartAck::Unknown,
                }
            }
        });
        acks.collect()
    }

    async fn entry(&self, bucket: Bucket, key: &str) -> Result<Option<BucketEntry>, FleetError> {
        let entry = self.bucket(bucket).await?.entry(key).await;
        let entry = entry.map_err(FleetError::of_nats("a key of the fleet cannot be read"))?;
        Ok(entry.map(|entry| BucketEntry { value: entry.value, revision: entry.revision }))
    }

    /// A server lists a stream that it creates for another node a moment before the stream accepts messages. A message that
    /// no stream has accepted is therefore sent again, within the time limit of a request.
    async fn update(&self, bucket: Bucket, key: &str, value: Bytes, revision: u64) -> Result<Option<u64>, FleetError> {
        let (store, last) = (self.bucket(bucket).await?, Instant::now() + REQUEST_TIMEOUT);
        loop {
            match store.update(key, value.clone(), revision).await {
                Ok(revision) => return Ok(Some(revision)),
                Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => return Ok(None),
                Err(error) if has_no_stream(&error) && Instant::now() < last => sleep(STREAM_PAUSE).await,
                Err(error) => return Err(FleetError::nats("a key of the fleet cannot be written", error)),
            }
        }
    }

    async fn put_image(&self, name: &str, mut bytes: &[u8]) -> Result<(), FleetError> {
        let chunk_size = Some(self.max_part().get().min(MAX_IMAGE_PART));
        let metadata = ObjectMetadata { name: name.to_owned(), chunk_size, ..ObjectMetadata::default() };
        let written = self.image_store().await?.put(metadata, &mut bytes).await;
        written.map(drop).map_err(FleetError::of_nats("an image cannot be written"))
    }

    async fn image(&self, key: &ImageKey) -> Result<Vec<u8>, FleetError> {
        let unread = "an image cannot be read";
        if key.bytes > MAX_IMAGE_BYTES as u64 {
            let text = format!("its key says {} bytes: expected at most {MAX_IMAGE_BYTES}", key.bytes);
            return Err(FleetError::Image(text));
        }
        let object = self.image_store().await?.get(&key.name).await.map_err(FleetError::of_nats(unread))?;
        let mut object = object.take(key.bytes.saturating_add(1));
        let mut bytes = Vec::new();
        // If an image is deleted while it is read, its remaining parts never arrive.
        loop {
            let part = timeout(IMAGE_PART_TIMEOUT, object.read_buf(&mut bytes)).await;
            let late = || format!("no part came within {} s", IMAGE_PART_TIMEOUT.as_secs());
            if part.map_err(|_| FleetError::nats(unread, late()))?.map_err(FleetError::of_nats(unread))? == 0 {
                break;
            }
        }
        if bytes.len() as u64 == key.bytes {
            return Ok(bytes);
        }
        Err(FleetError::Image(format!("it has other than the {} bytes that its key says", key.bytes)))
    }

    async fn images(&self) -> Result<Vec<String>, FleetError> {
        let (_, subjects) = self.image_subjects().await?;
        let named = self.image_subject("");
        let names = subjects.iter().filter_map(|subject| {
            let name = BASE64_URL_SAFE.decode(subject.strip_prefix(&named)?).ok()?;
            String::from_utf8(name).ok()
        });
        Ok(names.collect())
    }

    /// The client's own way to delete an image writes to the bucket first, for which a full server has no room.
    async fn retain_images(&self, kept: &[String]) -> Result<(), FleetError> {
        let (stream, subjects) = self.image_subjects().await?;
        let store = self.image_store().await?;
        let mut retained = Vec::new();
        for name in kept {
            if let Ok(info) = store.info(name).await {
                retained.push(self.image_subject(name));
                retained.push(format!("$O.{}.C.{}", self.names.images(), info.nuid));
            }
        }
        for subject in subjects.iter().filter(|subject| !retained.contains(subject)) {
            let purged = stream.purge().filter(subject).await;
            purged.map_err(FleetError::of_nats("an image cannot be deleted"))?;
        }
        Ok(())
    }

    async fn publish(&self, topic: Topic, payload: Bytes) {
        if let Err(error) = self.client.publish(self.names.subject(topic), payload).await {
            tracing::debug!(?topic, %error, "a message is not sent");
        }
    }

    async fn subscribe(&self, topic: Topic) -> Result<BoxStream<'static, ShortMessage>, FleetError> {
        let subscribed = self.client.subscribe(self.names.subject(topic)).await;
        let messages = subscribed.map_err(FleetError::of_nats("the leader cannot be heard"))?;
        let messages = messages.map(|message| ShortMessage {
            payload: message.payload,
            reply: message.reply.map(|reply| reply.to_string()),
        });
        Ok(messages.boxed())
    }

    async fn request(&self, topic: Topic) -> Option<Bytes> {
        let question = async_nats::Request::new().timeout(Some(REPLY_TIMEOUT));
        let reply = self.client.send_request(self.names.subject(topic), question).await;
        reply.ok().map(|reply| reply.payload)
    }

    async fn reply(&self, to: String, payload: Bytes) {
        if let Err(error) = self.client.publish(to, payload).await {
            tracing::debug!(%error, "a reply is not sent");
        }
    }
}

/// Returns whether no stream has accepted the message of an update.
fn has_no_stream(error: &UpdateError) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<PublishError>());
    source.is_some_and(|error| error.kind() == PublishErrorKind::StreamNotFound)
}
