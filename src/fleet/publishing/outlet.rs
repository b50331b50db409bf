//! The outlet of a live chain: its changes on their way to the stream.
//!
//! A live chain waits for nothing but its own events. So it publishes into a cell that nobody sees and that it executes on,
//! and each change goes through the outlet: first into the stream, and after the acknowledgement into the cell that clients
//! see. While the stream takes nothing, the chain goes on, and the outlet holds its changes up to a bound. Past it they are
//! dropped, and the stream gets all that has changed in one message as soon as it takes messages again.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use alloy_primitives::{B256, Bytes, map::B256Set};
use futures::{FutureExt, future::LocalBoxFuture};
use tokio::sync::Notify;

use crate::{
    ledger::{
        Chain, SnapshotId, Snapshots,
        codec::{CodesByHash, Entry, LeaderTime, StreamChanges},
    },
    lock::Mutex,
    publish::{Change, Commit, Sink, Unpublished},
};

/// The most bytes of codes that readers have to know, past which later messages bring theirs again.
const KNOWN: usize = 32 << 20;

/// The changes of a live chain on their way to the stream.
#[derive(Debug)]
pub struct LiveOutlet {
    /// The most bytes of messages that wait for the stream.
    held: usize,
    waiting: Mutex<OutletQueue>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct OutletQueue {
    /// Whether this node leads the fleet. Otherwise changes are published into the chain's own cell alone.
    leads: bool,
    /// Whether changes were dropped that the next message has to bring.
    is_overfull: bool,
    steps: VecDeque<OutletStep>,
    bytes: usize,
    /// The published state that the fleet has come to, with the change that was taken last.
    seen: Option<Arc<Chain>>,
    known: KnownToReaders,
}

/// A change on its way.
#[derive(Debug)]
pub struct OutletStep {
    /// The change's id.
    pub id: SnapshotId,
    /// The message about it.
    pub message: Vec<u8>,
    /// The published state after the change.
    pub after: Arc<Chain>,
    /// The time at which its input arrived; `None` if it brings no snapshot.
    pub arrived: Option<Instant>,
}

/// The codes that the messages so far have brought.
#[derive(Debug, Default)]
struct KnownToReaders {
    hashes: B256Set,
    bytes: usize,
}

impl KnownToReaders {
    /// Returns the codes that a message has to bring, and whether readers have to forget those of earlier messages.
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

impl OutletQueue {
    /// Adds a message with `entries`, which lead to `after`.
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
        self.steps.push_back(OutletStep { id: after.last, message, after, arrived: None });
    }

    /// Adds one message with all that has changed since the fleet has seen the chain, under this id.
    fn push_all(&mut self, id: SnapshotId, snapshots: &Snapshots) {
        snapshots.update(|chain| chain.set_id(id));
        self.is_overfull = false;
        let (chain, mut codes) = (snapshots.load(), CodesByHash::default());
        let entries = Entry::between(self.seen.as_deref(), &chain, &mut codes);
        self.push(self.seen.as_ref().map(|seen| seen.last), chain, &entries, &codes);
    }

    fn drop_steps(&mut self) {
        self.steps.clear();
        (self.bytes, self.known) = (0, KnownToReaders::default());
    }
}

impl LiveOutlet {
    /// Creates an outlet in which at most `held` bytes of messages wait.
    pub fn new(held: usize) -> Self {
        Self { held, waiting: Mutex::default(), filled: Notify::new() }
    }

    /// Begins to send changes in this epoch, the first of them all that is published in the chain's own cell. The fleet has
    /// `seen` the chain before.
    pub fn begin(&self, snapshots: &Snapshots, epoch: u64, seen: Arc<Chain>) {
        let mut waiting = self.waiting.lock();
        waiting.drop_steps();
        (waiting.leads, waiting.seen) = (true, Some(seen));
        waiting.push_all(SnapshotId::begin(epoch).next(), snapshots);
    }

    /// Ends sending changes.
    pub fn end(&self) {
        let mut waiting = self.waiting.lock();
        waiting.drop_steps();
        (waiting.leads, waiting.seen) = (false, None);
    }

    /// Waits for the next change on its way. `snapshots` is the chain's own cell.
    pub async fn next(&self, snapshots: &Snapshots) -> OutletStep {
        loop {
            if let Some(step) = self.take_step(snapshots) {
                return step;
            }
            self.filled.notified().await;
        }
    }

    fn take_step(&self, snapshots: &Snapshots) -> Option<OutletStep> {
        let mut waiting = self.waiting.lock();
        if waiting.is_overfull {
            waiting.push_all(snapshots.next_id(), snapshots);
        }
        let step = waiting.steps.pop_front()?;
        waiting.bytes -= step.message.len();
        waiting.seen = Some(step.after.clone());
        Some(step)
    }

    /// Lets later messages bring all codes again, because an image does not have those of earlier ones. Returns false and
    /// does nothing if messages are on their way, which the image does not have.
    pub fn reset_codes_if_idle(&self) -> bool {
        let mut waiting = self.waiting.lock();
        let is_idle = waiting.steps.is_empty() && !waiting.is_overfull;
        if is_idle {
            waiting.known = KnownToReaders::default();
        }
        is_idle
    }
}

/// The sink of the chain that nobody sees. It is waited for nowhere: the chain goes on while the stream takes nothing.
impl Sink for Arc<LiveOutlet> {
    fn takes(&self) -> bool {
        let waiting = self.waiting.lock();
        waiting.leads && !waiting.is_overfull
    }

    fn take(&mut self, change: &Arc<Change>, after: &Arc<Chain>) -> bool {
        let mut waiting = self.waiting.lock();
        match &change.entry {
            Some(entry) => waiting.push(None, after.clone(), [entry], &change.codes),
            // No other change is one of an upstream's chain.
            None => waiting.is_overfull = true,
        }
        if waiting.bytes > self.held {
            tracing::warn!("the stream of the fleet takes too little: the changes that wait for it are sent as one");
            waiting.drop_steps();
            waiting.is_overfull = true;
        }
        drop(waiting);
        self.filled.notify_one();
        false
    }

    fn commit(&mut self) -> LocalBoxFuture<'_, Result<Commit, Unpublished>> {
        std::future::ready(Ok(Commit::Done)).boxed_local()
    }

    fn discard(&mut self) {}

    fn note_arrival(&mut self, since: Instant) {
        if let Some(newest) = self.waiting.lock().steps.back_mut() {
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

    fn apply(outlet: &Arc<LiveOutlet>, own: &Snapshots, record: Record) {
        let change = Change::of(&own.load(), own.next_id(), &record);
        own.apply(record).expect("it fits");
        assert!(!outlet.takes() || !outlet.clone().take(&change, &own.load()), "nothing waits for the stream");
    }

    fn finalized(number: u64) -> Record {
        Record::Tags(Tags { safe: None, finalized: Some(number) })
    }

    fn is_whole(step: &OutletStep) -> bool {
        matches!(StreamMessage::read(&step.message), Ok((_, StreamMessage::Changes(message))) if message.follows.is_some())
    }

    fn finalized_after(step: &OutletStep) -> Option<u64> {
        step.after.finalized()
    }

    #[tokio::test]
    async fn changes_of_a_leader_come_in_order_after_all_that_there_was() {
        let (outlet, own) = (Arc::new(LiveOutlet::new(1 << 20)), chain());
        apply(&outlet, &own, finalized(1));
        outlet.begin(&own, 9, own.load());
        apply(&outlet, &own, finalized(2));
        apply(&outlet, &own, Record::Feed(FeedState::Live { every_ms: 200 }));
        let steps = [outlet.next(&own).await, outlet.next(&own).await, outlet.next(&own).await];
        let ids = steps.each_ref().map(|step| step.id.0 - SnapshotId::begin(9).0);
        assert_eq!(ids, [1, 2, 3]);
        assert!(is_whole(&steps[0]) && !is_whole(&steps[1]));
        assert_eq!(steps.each_ref().map(finalized_after), [Some(1), Some(2), Some(2)]);
        assert!(outlet.reset_codes_if_idle());
    }

    #[tokio::test]
    async fn what_the_stream_does_not_take_is_bounded_and_the_stream_gets_all_there_is_in_its_place() {
        let (outlet, own) = (Arc::new(LiveOutlet::new(500)), chain());
        outlet.begin(&own, 9, own.load());
        assert!(is_whole(&outlet.next(&own).await));
        for number in 0..1_000 {
            apply(&outlet, &own, finalized(number));
            assert!(outlet.waiting.lock().bytes <= 500);
        }
        let step = outlet.next(&own).await;
        assert!(is_whole(&step));
        assert_eq!((step.id, finalized_after(&step)), (own.load().last, Some(999)));
        apply(&outlet, &own, finalized(1_000));
        let next = outlet.next(&own).await;
        assert_eq!((next.id, is_whole(&next)), (step.id.next(), false), "the changes after it come one by one again");
    }

    #[tokio::test]
    async fn a_node_that_stands_by_sends_nothing() {
        let (outlet, own) = (Arc::new(LiveOutlet::new(500)), chain());
        outlet.begin(&own, 9, own.load());
        outlet.end();
        apply(&outlet, &own, finalized(1));
        assert!(outlet.take_step(&own).is_none());
    }
}
