//! The queue of changes that an upstream's chain has produced and the fleet's stream has not acknowledged.
//!
//! A live chain waits only for its own events. It is therefore executed in a cell that clients do not see. The queue
//! takes each of its changes and passes it first to the stream, and after the acknowledgement to the cell that clients
//! see. While the stream takes nothing, the chain continues, and the queue holds its changes up to a bound. Beyond it,
//! they are dropped, and the stream gets all changes in one message as soon as it takes messages again.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use alloy_primitives::{B256, Bytes, map::B256Set};
use tokio::sync::Notify;

use crate::{
    ledger::{
        Chain, SnapshotId, Snapshots,
        codec::{CodesByHash, Entry, LeaderTime, StreamChanges},
    },
    lock::Mutex,
    publish::{Change, Sink},
    store::StoreError,
};

/// Maximum bytes of codes that readers have to remember. Beyond it, later messages contain their codes again.
const KNOWN: usize = 32 << 20;

/// The changes of a live chain on their way to the stream.
#[derive(Debug)]
pub struct ChangeQueue {
    /// The most bytes of messages that wait for the stream.
    held: usize,
    waiting: Mutex<WaitingChanges>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct WaitingChanges {
    /// The chain after the change that was taken last, which the fleet has reached. `None` while another node leads and
    /// this one sends nothing.
    seen: Option<Arc<Chain>>,
    /// Whether changes were dropped that the next message must contain.
    is_overfull: bool,
    list: VecDeque<QueuedChange>,
    bytes: usize,
    known: KnownToReaders,
}

/// A change on its way, or all changes since an earlier one.
#[derive(Debug)]
pub struct QueuedChange {
    /// The message about it.
    pub message: Vec<u8>,
    /// The chain after the change. Its id is the change's.
    pub after: Arc<Chain>,
    /// The time at which its input arrived. `None` if it has no snapshot.
    pub arrived: Option<Instant>,
}

/// The codes that the messages so far have brought.
#[derive(Debug, Default)]
struct KnownToReaders {
    hashes: B256Set,
    bytes: usize,
}

impl KnownToReaders {
    /// Returns the codes that a message must contain, and whether readers must forget the codes of earlier messages.
    fn missing(&mut self, codes: &CodesByHash) -> (Vec<Bytes>, bool) {
        let forgets = self.bytes == 0 || self.bytes > KNOWN;
        if forgets {
            *self = Self::default();
        }
        let mut missing = Vec::new();
        for (hash, code) in &codes.0 {
            if self.hashes.insert(*hash) {
                let code = code.bytecode.original_bytes();
                self.bytes += B256::len_bytes() + code.len();
                missing.push(code);
            }
        }
        (missing, forgets)
    }
}

impl WaitingChanges {
    /// Creates the queue of a node that leads, with one message: all changes in `own` since `seen`, the chain that the
    /// fleet has seen. The message and the chain get the id `id`.
    fn of_all(seen: Arc<Chain>, own: &Snapshots, id: SnapshotId) -> Self {
        own.update(|chain| chain.set_id(id));
        let (after, mut codes, mut waiting) = (own.load(), CodesByHash::default(), Self::default());
        let entries = Entry::between(Some(&seen), &after, &mut codes);
        waiting.push(Some(seen.last), after, &entries, &codes);
        waiting.seen = Some(seen);
        waiting
    }

    /// Adds a message with `entries`. They change the chain into `after`.
    fn push<'a>(
        &mut self,
        follows: Option<SnapshotId>,
        after: Arc<Chain>,
        entries: impl IntoIterator<Item = &'a Entry>,
        codes: &CodesByHash,
    ) {
        let (codes, forgets) = self.known.missing(codes);
        let dated = LeaderTime::of(after.newest.published);
        let message = StreamChanges::write(dated, follows, entries, codes, forgets);
        self.bytes += message.len();
        self.list.push_back(QueuedChange { message, after, arrived: None });
    }
}

impl ChangeQueue {
    /// Creates a queue in which at most `held` bytes of messages wait.
    pub fn new(held: usize) -> Self {
        Self { held, waiting: Mutex::default(), filled: Notify::new() }
    }

    /// Begins to send changes in this epoch. The first message has all changes from `seen`, the chain that the fleet
    /// has seen, to the chain in the `own` cell.
    pub fn begin(&self, own: &Snapshots, epoch: u64, seen: Arc<Chain>) {
        *self.waiting.lock() = WaitingChanges::of_all(seen, own, SnapshotId::begin(epoch).next());
    }

    /// Ends sending changes.
    pub fn end(&self) {
        *self.waiting.lock() = WaitingChanges::default();
    }

    /// Waits for the next change on its way. `own` is the chain's own cell.
    pub async fn next(&self, own: &Snapshots) -> QueuedChange {
        loop {
            if let Some(change) = self.pop(own) {
                return change;
            }
            self.filled.notified().await;
        }
    }

    fn pop(&self, own: &Snapshots) -> Option<QueuedChange> {
        let mut waiting = self.waiting.lock();
        if waiting.is_overfull
            && let Some(seen) = waiting.seen.take()
        {
            *waiting = WaitingChanges::of_all(seen, own, own.next_id());
        }
        let change = waiting.list.pop_front()?;
        waiting.bytes -= change.message.len();
        waiting.seen = Some(change.after.clone());
        Some(change)
    }

    /// Makes later messages contain all codes again, because an image does not have the codes of earlier messages.
    /// Returns false and does nothing while messages are in flight, because the image lacks them.
    pub fn reset_codes_if_idle(&self) -> bool {
        let mut waiting = self.waiting.lock();
        let is_idle = waiting.list.is_empty() && !waiting.is_overfull;
        if is_idle {
            waiting.known = KnownToReaders::default();
        }
        is_idle
    }
}

/// The sink of the cell that clients do not see.
impl Sink for Arc<ChangeQueue> {
    fn takes(&self) -> bool {
        let waiting = self.waiting.lock();
        waiting.seen.is_some() && !waiting.is_overfull
    }

    fn take(&mut self, change: Change, after: &Arc<Chain>) -> Result<(), StoreError> {
        let mut waiting = self.waiting.lock();
        match &change.entry {
            Some(entry) => waiting.push(None, after.clone(), [entry], &change.codes),
            // No other change is one of an upstream's chain.
            None => waiting.is_overfull = true,
        }
        if waiting.bytes > self.held {
            tracing::warn!("the fleet's stream is too slow: all waiting changes are sent as one message");
            *waiting = WaitingChanges { seen: waiting.seen.take(), is_overfull: true, ..WaitingChanges::default() };
        }
        drop(waiting);
        self.filled.notify_one();
        Ok(())
    }

    fn note_arrival(&mut self, since: Instant) {
        if let Some(newest) = self.waiting.lock().list.back_mut() {
            newest.arrived = Some(since);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloy_consensus::Header;

    use super::*;
    use crate::{
        chain::{BlockBody, BlockHashes, SealedBlock},
        ledger::{FeedState, Record, Retention, Snapshot, Tags, codec::StreamMessage},
        state::{RemoteSettings, RemoteState, World},
    };

    fn chain() -> Snapshots {
        let block = SealedBlock::new(Header { number: 7, ..Header::default() }, BlockBody::default());
        let world = World::on(RemoteState::begin(RemoteSettings::of_bytes(1 << 20), 7, block.hash()));
        let first = Snapshot::at_head(world, Arc::new(block), BlockHashes::default());
        Snapshots::new(
            first,
            FeedState::Static,
            Retention { blocks: 8, snapshots: 8, history: 8, history_bytes: u64::MAX },
        )
    }

    fn apply(queue: &Arc<ChangeQueue>, own: &Snapshots, record: Record) {
        let change = Change::of(&own.load(), own.next_id(), &record);
        own.apply(record).expect("it fits");
        if queue.takes() {
            queue.clone().take(change, &own.load()).expect("nothing is stored");
        }
    }

    fn finalized(number: u64) -> Record {
        Record::Tags(Tags { safe: None, finalized: Some(number) })
    }

    fn is_whole(step: &QueuedChange) -> bool {
        matches!(StreamMessage::read(&step.message), Ok((_, StreamMessage::Changes(message))) if message.follows.is_some())
    }

    fn finalized_after(step: &QueuedChange) -> Option<u64> {
        step.after.finalized()
    }

    #[tokio::test]
    async fn changes_of_a_leader_come_in_order_after_all_that_there_was() {
        let (queue, own) = (Arc::new(ChangeQueue::new(1 << 20)), chain());
        apply(&queue, &own, finalized(1));
        queue.begin(&own, 9, own.load());
        apply(&queue, &own, finalized(2));
        apply(&queue, &own, Record::Feed(FeedState::Live { every_ms: 200 }));
        let steps = [queue.next(&own).await, queue.next(&own).await, queue.next(&own).await];
        let ids = steps.each_ref().map(|step| step.after.last.0 - SnapshotId::begin(9).0);
        assert_eq!(ids, [1, 2, 3]);
        assert!(is_whole(&steps[0]) && !is_whole(&steps[1]));
        assert_eq!(steps.each_ref().map(finalized_after), [Some(1), Some(2), Some(2)]);
        assert!(queue.reset_codes_if_idle());
    }

    #[tokio::test]
    async fn what_the_stream_does_not_take_is_bounded_and_the_stream_gets_all_there_is_in_its_place() {
        let (queue, own) = (Arc::new(ChangeQueue::new(500)), chain());
        queue.begin(&own, 9, own.load());
        assert!(is_whole(&queue.next(&own).await));
        for number in 0..1_000 {
            apply(&queue, &own, finalized(number));
            assert!(queue.waiting.lock().bytes <= 500);
        }
        let step = queue.next(&own).await;
        assert!(is_whole(&step));
        assert_eq!((step.after.last, finalized_after(&step)), (own.load().last, Some(999)));
        apply(&queue, &own, finalized(1_000));
        let next = queue.next(&own).await;
        assert_eq!(
            (next.after.last, is_whole(&next)),
            (step.after.last.next(), false),
            "the changes after it come one by one again"
        );
    }

    #[tokio::test]
    async fn a_node_that_stands_by_sends_nothing() {
        let (queue, own) = (Arc::new(ChangeQueue::new(500)), chain());
        queue.begin(&own, 9, own.load());
        queue.end();
        apply(&queue, &own, finalized(1));
        assert!(queue.pop(&own).is_none());
    }
}
