//! Reads a stream: its parts arrive in order, each message is applied once, and no gap is skipped.

use std::sync::Arc;

use super::apply::{Applier, FollowError};
use crate::{
    fleet::servers::ArrivedPart,
    ledger::{
        Chain, SnapshotId,
        codec::{MAX_STREAM_BYTES, StreamMessage, join},
    },
};

/// The chain of a fleet as far as its stream was read.
#[derive(Debug)]
pub struct StreamReading {
    applier: Applier,
    /// The sequence of the last message that was applied.
    pub(super) sequence: u64,
    /// The parts of a message whose last part has not arrived.
    parts: MessageParts,
    /// The sequence of the last part that was read. Its message may be incomplete.
    pub(super) read: u64,
    /// The greatest id of a part that was read.
    newest: SnapshotId,
}

/// The parts of a message that have arrived, in order.
#[derive(Debug, Default)]
struct MessageParts {
    list: Vec<ArrivedPart>,
    /// The memory that they take.
    bytes: usize,
}

impl MessageParts {
    /// Adds the next part. Returns the bytes of all, if these are more than a message may have.
    fn push(&mut self, part: ArrivedPart) -> Result<(), usize> {
        self.bytes += part.bytes.len() + size_of::<ArrivedPart>();
        self.list.push(part);
        if self.bytes > MAX_STREAM_BYTES { Err(self.bytes) } else { Ok(()) }
    }
}

impl StreamReading {
    /// Continues from the chain of `applier`. Its last change is the message at `sequence`.
    pub fn from(applier: Applier, sequence: u64) -> Self {
        let newest = applier.chain().last;
        Self { applier, sequence, parts: MessageParts::default(), read: sequence, newest }
    }

    /// Returns the chain as far as the stream was read.
    pub const fn chain(&self) -> &Arc<Chain> {
        self.applier.chain()
    }

    /// Begins again after the last message that was applied.
    pub fn begin_again(&mut self) {
        self.parts = MessageParts::default();
        self.read = self.sequence;
    }

    /// Takes the part that has arrived with a sequence, and applies its message if the part is its last. `None` is a
    /// message of another program. Parts without their last part are dropped when another message begins.
    ///
    /// # Errors
    ///
    /// Returns [`FollowError::Gap`] if an earlier message is missing or the message cannot be read, and
    /// [`FollowError::Mismatch`] if the message cannot be applied.
    pub fn arrive(&mut self, sequence: u64, part: Option<ArrivedPart>) -> Result<(), FollowError> {
        if sequence <= self.read {
            return match part.filter(|part| part.id > self.newest) {
                // The sequences of a stream never restart, and its ids grow with them.
                Some(_) => Err(FollowError::Gap(format!(
                    "the stream was created again: it has another message {sequence} than the one that was read"
                ))),
                None => Ok(()),
            };
        }
        if sequence != self.read + 1 {
            return Err(FollowError::Gap(format!(
                "the stream has no message {}: the next is {sequence}",
                self.read + 1
            )));
        }
        self.read = sequence;
        let Some(part) = part else {
            tracing::warn!(sequence, "ignored a message of the stream that presim did not write");
            self.parts = MessageParts::default();
            self.sequence = sequence;
            return Ok(());
        };
        if self
            .parts
            .list
            .last()
            .is_some_and(|last| (last.id, last.index + 1, last.count) != (part.id, part.index, part.count))
        {
            self.parts = MessageParts::default();
        }
        if self.parts.list.len() as u64 != u64::from(part.index) {
            // The beginning of the message was published by a node that failed, or before this one's place.
            self.sequence = sequence;
            return Ok(());
        }
        let (id, is_last) = (part.id, part.index + 1 == part.count);
        self.newest = self.newest.max(id);
        let unread = |problem| FollowError::Gap(format!("message {sequence} of the stream cannot be read: {problem}"));
        if let Err(bytes) = self.parts.push(part) {
            self.parts = MessageParts::default();
            return Err(unread(format!("its parts take {bytes} bytes or more: expected at most {MAX_STREAM_BYTES}")));
        }
        if !is_last {
            return Ok(());
        }
        let parts: Vec<_> = std::mem::take(&mut self.parts).list.into_iter().map(|part| part.bytes).collect();
        // The change was applied already, or bears an older epoch than one that was seen.
        if id <= self.chain().last {
            self.sequence = sequence;
            return Ok(());
        }
        let message = join(&parts, MAX_STREAM_BYTES).map_err(|error| error.to_string());
        let message = message.and_then(|message| StreamMessage::read(&message).map_err(|error| error.to_string()));
        let (dated, message) = message.map_err(unread)?;
        self.applier.apply(id, dated, message)?;
        self.sequence = sequence;
        Ok(())
    }
}
