//! The stream as its leader writes it: NATS in production, and a model of it in the simulation of `benches/faults`.

use std::{fmt, num::NonZeroUsize};

use async_nats::{
    Subject,
    jetstream::{
        context::PublishErrorKind,
        message::PublishMessage,
        stream::{RawMessageErrorKind, Stream},
    },
};
use futures::{
    FutureExt,
    future::{BoxFuture, join_all},
};

use super::lease::Lease;
use crate::{
    ledger::{SnapshotId, codec::Frame},
    source::fleet::{ArrivedPart, FleetError, FleetLink, headers, subject},
};

/// The fate of a part that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartAck {
    /// The stream has it.
    Taken,
    /// The stream ends with another message than the part was to follow.
    OutOfPlace,
    /// The stream does not take it, or does not answer.
    Unknown,
}

/// The message at a place of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceInStream {
    /// A part of presim's: the id of its message and its index.
    Part(SnapshotId, u32),
    /// No message of presim's, or one that was deleted, so that nobody knows whose it was.
    Foreign,
    /// The stream ends before.
    Empty,
    /// The stream does not answer.
    Unknown,
}

/// The stream as its leader writes it.
pub trait StreamPort: fmt::Debug + Send {
    /// Returns the most bytes of a part.
    fn max_part(&self) -> NonZeroUsize;

    /// Sends parts of the message `id` one after the other, the first of which is to follow the message at `expected`. Where
    /// one is refused, those after it are, too. Returns the fates of those that could be sent, in order. A part that the
    /// stream has got before under the same name is taken, whatever it is to follow.
    fn send<'a>(&'a self, id: SnapshotId, parts: &'a [Frame], expected: u64) -> BoxFuture<'a, Vec<PartAck>>;

    /// Returns the message at a place.
    fn at(&self, sequence: u64) -> BoxFuture<'_, PlaceInStream>;

    /// Returns whether no other node has been seen to hold the lease.
    fn is_held(&self) -> bool;
}

/// The stream of NATS.
#[derive(Debug)]
pub struct NatsPort {
    link: FleetLink,
    stream: Stream,
    subject: Subject,
    lease: Lease,
}

impl NatsPort {
    /// Opens the stream of a fleet, for a node that holds the lease.
    ///
    /// # Errors
    ///
    /// Returns [`FleetError::Nats`] if the stream cannot be opened.
    pub async fn open(link: FleetLink, lease: Lease) -> Result<Self, FleetError> {
        let (stream, subject) = (link.stream().await?, subject(link.names.feed()));
        Ok(Self { link, stream, subject, lease })
    }
}

impl StreamPort for NatsPort {
    fn max_part(&self) -> NonZeroUsize {
        self.link.max_part()
    }

    fn send<'a>(&'a self, id: SnapshotId, parts: &'a [Frame], expected: u64) -> BoxFuture<'a, Vec<PartAck>> {
        async move {
            let mut acks = Vec::with_capacity(parts.len());
            for (expected, frame) in (expected..).zip(parts) {
                let message = PublishMessage::build()
                    .headers(headers(id, frame.index, frame.count))
                    .payload(frame.bytes.0.clone())
                    .message_id(format!("{:x}-{}", id.0, frame.index))
                    .expected_last_sequence(expected);
                match self.link.jetstream.send_publish(self.subject.clone(), message).await {
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
                        PublishErrorKind::WrongLastSequence => PartAck::OutOfPlace,
                        _ => PartAck::Unknown,
                    }
                }
            });
            acks.collect()
        }
        .boxed()
    }

    fn at(&self, sequence: u64) -> BoxFuture<'_, PlaceInStream> {
        async move {
            match self.stream.get_raw_message(sequence).await {
                Ok(message) => match ArrivedPart::read(Some(&message.headers), message.payload.into()) {
                    Some(part) => PlaceInStream::Part(part.id, part.index),
                    None => PlaceInStream::Foreign,
                },
                Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => {
                    let last = self.stream.get_info().await.map(|info| info.state.last_sequence);
                    if last.is_ok_and(|last| last >= sequence) { PlaceInStream::Foreign } else { PlaceInStream::Empty }
                }
                Err(_) => PlaceInStream::Unknown,
            }
        }
        .boxed()
    }

    fn is_held(&self) -> bool {
        self.lease.is_held()
    }
}
