//! The outlet of a live chain: its changes on their way to the stream.
//!
//! A live chain waits for nothing but its own events. So it publishes into a cell that nobody sees and that it executes on,
//! and each change goes through the outlet: first into the stream, and after the acknowledgement into the cell that clients
//! see. While the stream takes nothing, the chain goes on, and the outlet holds its changes up to a bound. Past it they are
//! dropped, and the stream gets the whole moment instead as soon as it takes messages again.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use alloy_primitives::{B256, Bytes, map::B256Set};
use tokio::sync::Notify;

use crate::{
    chain::SealedBlock,
    ledger::{
        Chain, Publication, SnapshotId, Snapshots,
        codec::{CodesByHash, LeaderTime, LiveChange, LiveMessage, LiveMoment, StreamMessage},
    },
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
    /// Whether changes were dropped since the last moment.
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
    fn missing(&mut self, codes: CodesByHash) -> (Vec<Bytes>, bool) {
        let forgets = self.bytes == 0 || self.bytes > KNOWN;
        if forgets {
            *self = Self::default();
        }
        let mut missing = Vec::new();
        for (hash, code) in codes {
            if self.hashes.insert(hash) {
                let code = code.bytecode.original_bytes();
                self.bytes += B256::len_bytes() + code.len();
                missing.push(code);
            }
        }
        (missing, forgets)
    }
}

impl OutletQueue {
    fn push(&mut self, id: SnapshotId, after: Arc<Chain>, (change, codes): (LiveChange, CodesByHash)) {
        let (codes, forgets) = self.known.missing(codes);
        self.push_message(id, after, StreamMessage::Live(LiveMessage { change, codes, forgets }));
    }

    fn push_message(&mut self, id: SnapshotId, after: Arc<Chain>, message: StreamMessage) {
        let message = message.write(LeaderTime::of(after.newest.published));
        self.bytes += message.len();
        self.steps.push_back(OutletStep { id, message, after, arrived: None });
    }

    /// Adds all that is published, under this id.
    fn push_moment(&mut self, id: SnapshotId, snapshots: &Snapshots) {
        snapshots.rename(id);
        self.is_overfull = false;
        let published = snapshots.load();
        let (mut moment, mut codes) = LiveMoment::of(&published);
        if let Some(seen) = &self.seen {
            moment.since(seen, &published, &mut codes);
        }
        let announced = self.seen.as_ref().map(|seen| announced_since(seen, &published)).unwrap_or_default();
        self.push(id, published, (LiveChange::Moment(Box::new(moment)), codes));
        for block in announced {
            let publication = Publication::Content(block);
            let change = LiveChange::of(&snapshots.load(), &publication);
            let id = snapshots.apply(publication);
            if let Some(change) = change {
                self.push(id, snapshots.load(), change);
            }
        }
    }

    fn drop_steps(&mut self) {
        self.steps.clear();
        (self.bytes, self.known) = (0, KnownToReaders::default());
    }
}

/// Returns the blocks of what is published of which only the headers were known when the fleet has `seen` them.
fn announced_since(seen: &Chain, published: &Chain) -> Vec<SealedBlock> {
    let known = seen.late_blocks().filter_map(|(number, late)| {
        let block = published.sealed_block(number).filter(|block| block.hash() == late.hash)?;
        let is_announced = !block.is_bare() || block.logs_alone().is_some();
        is_announced.then(|| SealedBlock::clone(&block))
    });
    known.collect()
}

impl LiveOutlet {
    /// Creates an outlet in which at most `held` bytes of messages wait.
    pub fn new(held: usize) -> Self {
        Self { held, waiting: Mutex::default(), filled: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, OutletQueue> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes a change into the chain's own cell, and sends it on its way if this node leads.
    pub fn apply(&self, snapshots: &Snapshots, publication: Publication) -> SnapshotId {
        let mut waiting = self.lock();
        if !waiting.leads || waiting.is_overfull {
            return snapshots.apply(publication);
        }
        let change = LiveChange::of(&snapshots.load(), &publication);
        let feed = if let Publication::Feed(feed) = &publication { Some(*feed) } else { None };
        let id = snapshots.apply(publication);
        let after = snapshots.load();
        match (change, feed) {
            (Some(change), _) => waiting.push(id, after, change),
            (None, Some(feed)) => waiting.push_message(id, after, StreamMessage::Feed(feed)),
            // No other change is one of an upstream's chain.
            (None, None) => waiting.is_overfull = true,
        }
        if waiting.bytes > self.held {
            tracing::warn!("the stream of the fleet takes too little: the changes that wait for it are dropped");
            waiting.drop_steps();
            waiting.is_overfull = true;
        }
        drop(waiting);
        self.filled.notify_one();
        id
    }

    /// Notes that the input of the newest change arrived at `since`.
    pub fn count(&self, since: Instant) {
        if let Some(newest) = self.lock().steps.back_mut() {
            newest.arrived = Some(since);
        }
    }

    /// Begins to send changes in this epoch, the first of them all that is published in the chain's own cell. The fleet has
    /// `seen` the chain before.
    pub fn begin(&self, snapshots: &Snapshots, epoch: u64, seen: Arc<Chain>) {
        let mut waiting = self.lock();
        waiting.drop_steps();
        (waiting.leads, waiting.seen) = (true, Some(seen));
        waiting.push_moment(SnapshotId::begin(epoch).next(), snapshots);
    }

    /// Ends sending changes.
    pub fn end(&self) {
        let mut waiting = self.lock();
        waiting.drop_steps();
        (waiting.leads, waiting.seen) = (false, None);
    }

    /// Waits for the next change on its way. `snapshots` is the chain's own cell.
    pub async fn next(&self, snapshots: &Snapshots) -> OutletStep {
        loop {
            if let Some(step) = self.take(snapshots) {
                return step;
            }
            self.filled.notified().await;
        }
    }

    fn take(&self, snapshots: &Snapshots) -> Option<OutletStep> {
        let mut waiting = self.lock();
        if waiting.is_overfull {
            waiting.push_moment(snapshots.next_id(), snapshots);
        }
        let step = waiting.steps.pop_front()?;
        waiting.bytes -= step.message.len();
        waiting.seen = Some(step.after.clone());
        Some(step)
    }

    /// Lets later messages bring all codes again, because an image does not have those of earlier ones. Returns false and
    /// does nothing if messages are on their way, which the image does not have.
    pub fn reset_codes_if_idle(&self) -> bool {
        let mut waiting = self.lock();
        let is_idle = waiting.steps.is_empty() && !waiting.is_overfull;
        if is_idle {
            waiting.known = KnownToReaders::default();
        }
        is_idle
    }
}

#[cfg(test)]
mod tests {
    use alloy_consensus::Header;

    use super::*;
    use crate::{
        chain::{BlockBody, BlockHashes},
        ledger::{FeedState, Retention, Snapshot, Tags},
        state::{RemoteState, World},
    };

    fn chain() -> Snapshots {
        let block = SealedBlock::new(Header { number: 7, ..Header::default() }, BlockBody::default());
        let remote = RemoteState::new(1 << 20, 7, block.hash());
        let world = World::on(remote.newest().expect("its first block"));
        let first = Snapshot::at_head(world, Arc::new(block), BlockHashes::default());
        Snapshots::new(first, FeedState::Static, Retention { blocks: 8, snapshots: 8, history: 8 })
    }

    fn finalized(number: u64) -> Publication {
        Publication::Tags(Tags { safe: None, finalized: Some(number) })
    }

    fn is_moment(step: &OutletStep) -> bool {
        matches!(StreamMessage::read(&step.message), Ok((_, StreamMessage::Live(message))) if message.is_moment())
    }

    fn finalized_after(step: &OutletStep) -> Option<u64> {
        step.after.finalized()
    }

    #[tokio::test]
    async fn changes_of_a_leader_come_in_order_after_all_that_there_was() {
        let (outlet, own) = (LiveOutlet::new(1 << 20), chain());
        outlet.apply(&own, finalized(1));
        outlet.begin(&own, 9, own.load());
        outlet.apply(&own, finalized(2));
        outlet.apply(&own, Publication::Feed(FeedState::Live { every_ms: 200 }));
        let steps = [outlet.next(&own).await, outlet.next(&own).await, outlet.next(&own).await];
        let ids = steps.each_ref().map(|step| step.id.0 - SnapshotId::begin(9).0);
        assert_eq!(ids, [1, 2, 3]);
        assert!(is_moment(&steps[0]) && !is_moment(&steps[1]));
        assert_eq!(steps.each_ref().map(finalized_after), [Some(1), Some(2), Some(2)]);
        assert!(outlet.reset_codes_if_idle());
    }

    #[tokio::test]
    async fn what_the_stream_does_not_take_is_bounded_and_the_stream_gets_all_there_is_in_its_place() {
        let (outlet, own) = (LiveOutlet::new(500), chain());
        outlet.begin(&own, 9, own.load());
        assert!(is_moment(&outlet.next(&own).await));
        for number in 0..1_000 {
            outlet.apply(&own, finalized(number));
            assert!(outlet.lock().bytes <= 500);
        }
        let step = outlet.next(&own).await;
        assert!(is_moment(&step));
        assert_eq!((step.id, finalized_after(&step)), (own.load().last, Some(999)));
        outlet.apply(&own, finalized(1_000));
        let next = outlet.next(&own).await;
        assert_eq!((next.id, is_moment(&next)), (step.id.next(), false), "the changes after it come one by one again");
    }

    #[tokio::test]
    async fn a_node_that_stands_by_sends_nothing() {
        let (outlet, own) = (LiveOutlet::new(500), chain());
        outlet.begin(&own, 9, own.load());
        outlet.end();
        outlet.apply(&own, finalized(1));
        assert!(outlet.take(&own).is_none());
    }
}
