//! The leader's end of the stream: each message is in the stream, with the sequence that was expected, before anyone sees it.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::lease::Lease;
use crate::{
    clock::now,
    fleet::servers::{FleetMetrics, FleetPort, PartAck, StreamEntry},
    ledger::{
        SnapshotId,
        codec::{Frame, LeaderTime, StreamMessage, frames},
    },
};

/// The pause before a message that was not taken is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The time for which a message is sent without success while the lease is renewed. After it, the node stops
/// leading, because another node may be able to publish.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);

/// The time without a renewal of the lease or an acknowledgement after which publishing is paused. Including the time
/// between two checks, the pause is shown within 2 s, even if there is nothing to publish.
const SILENT_AFTER: Duration = Duration::from_millis(1_250);

/// The bytes that a part takes in the stream in addition to its payload: its subject and its headers.
const STORED: usize = 200;

/// The node no longer leads the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this node leads the fleet no more")]
pub struct NotLeading;

/// The leader's end of the stream.
#[derive(Debug)]
pub struct StreamWriter {
    port: Arc<dyn FleetPort>,
    lease: Lease,
    /// The metrics. They count the parts that the stream has not acknowledged.
    metrics: FleetMetrics,
    /// The sequence of the last message of the stream, which this node wrote.
    pub(super) sequence: u64,
    /// The id of that message.
    pub(super) id: SnapshotId,
    /// The messages and the bytes that were published since the newest image.
    pub(super) since_image: (u64, u64),
    /// The moment at which the stream has acknowledged the last message.
    acknowledged: Instant,
}

/// A message that is on its way.
#[derive(Debug)]
pub struct StreamSending {
    id: SnapshotId,
    frames: Vec<Frame>,
    /// The number of parts that the stream is known to have.
    taken: usize,
    begun: Instant,
}

impl StreamWriter {
    /// Creates the end of a node that holds the `lease` and has read the stream up to the message at `sequence` with the id `id`.
    pub fn new(
        port: Arc<dyn FleetPort>,
        lease: Lease,
        metrics: FleetMetrics,
        (sequence, id): (u64, SnapshotId),
    ) -> Self {
        Self { port, lease, metrics, sequence, id, since_image: (0, 0), acknowledged: Instant::now() }
    }

    /// Begins to lead. The next message announces the epoch, with the id `epoch`.
    ///
    /// # Errors
    ///
    /// Returns [`NotLeading`] if another message was published in the meantime, so that another node leads.
    pub async fn lead(&mut self, epoch: SnapshotId, node: &str) -> Result<(), NotLeading> {
        let message = StreamMessage::epoch(LeaderTime::of(now()), self.id, node.to_owned());
        let mut sending = self.sending(epoch, &message);
        while !self.try_send(&mut sending).await? {}
        Ok(())
    }

    /// Returns the encoded message about a change, on its way.
    pub fn sending(&self, id: SnapshotId, message: &[u8]) -> StreamSending {
        StreamSending { id, frames: frames(message, self.port.max_part()), taken: 0, begun: Instant::now() }
    }

    /// Sends a message, and returns whether the stream has it. Until then, the same message is sent again: a part that
    /// had arrived is recognised by its name, and one that had not must still be the next.
    ///
    /// # Errors
    ///
    /// Returns [`NotLeading`] if the stream has another node's message in the place of this one or has lost its end, or
    /// if it does not take this one while another node holds the lease, or for some time while this node renews it.
    pub async fn try_send(&mut self, sending: &mut StreamSending) -> Result<bool, NotLeading> {
        let first = self.sequence + sending.taken as u64;
        let parts = &sending.frames[sending.taken..];
        let acks = self.port.send(sending.id, parts, first).await;
        let is_taken = |ack: &&PartAck| **ack == PartAck::Taken;
        self.metrics.dropped_sends.increment((parts.len() - acks.iter().filter(is_taken).count()) as u64);
        sending.taken += acks.iter().take_while(is_taken).count();
        if acks.contains(&PartAck::OutOfSequence) {
            self.look_for(sending).await?;
        }
        if sending.taken == sending.frames.len() {
            let bytes: usize = sending.frames.iter().map(|frame| frame.bytes.len() + STORED).sum();
            self.sequence += sending.frames.len() as u64;
            self.id = sending.id;
            self.since_image.0 += 1;
            self.since_image.1 += bytes as u64;
            self.acknowledged = Instant::now();
            return Ok(true);
        }
        if self.lease.renewed().is_none_or(|renewed| renewed >= sending.begun + PUBLISH_TIMEOUT) {
            return Err(NotLeading);
        }
        tokio::time::sleep(RETRY_PAUSE).await;
        Ok(false)
    }

    /// Searches the stream for the parts of a message, after the stream reported another sequence than expected: the
    /// answer to an earlier attempt was lost, and the server forgets the names of messages after some time.
    ///
    /// # Errors
    ///
    /// Returns [`NotLeading`] if the stream has another node's message at that position, or has lost its end.
    async fn look_for(&self, sending: &mut StreamSending) -> Result<(), NotLeading> {
        while let Some(frame) = sending.frames.get(sending.taken) {
            match self.port.at(self.sequence + sending.taken as u64 + 1).await {
                Ok(StreamEntry::Part { id, index }) if (id, index) == (sending.id, frame.index) => {
                    sending.taken += 1;
                }
                Ok(StreamEntry::Part { .. } | StreamEntry::Foreign) => return Err(NotLeading),
                // The stream was created again, or has lost its end.
                Ok(StreamEntry::Empty) if self.port.ends().await.is_ok_and(|ends| ends.last < self.sequence) => {
                    return Err(NotLeading);
                }
                Ok(StreamEntry::Empty) | Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    /// Returns whether no other node has been seen to hold the lease.
    pub fn is_leased(&self) -> bool {
        self.lease.renewed().is_some()
    }

    /// Returns whether the servers have answered nothing since [`SILENT_AFTER`], so that no message would be published now.
    pub fn is_paused(&self) -> bool {
        self.lease.renewed().is_some_and(|renewed| renewed.max(self.acknowledged).elapsed() >= SILENT_AFTER)
    }
}
