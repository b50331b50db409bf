//! The chain at one moment: its canonical blocks, the pre-confirmed blocks on them, and the recent past.

mod abandoned;
mod ahead;
mod apply;
mod changes;
mod history;
mod late;
mod old_headers;
mod provisional;
mod reading;

use std::{sync::Arc, time::Instant};

use alloy_primitives::B256;
use serde::{Deserialize, Serialize};

use self::{changes::ChangesAhead, old_headers::OldHeaders, provisional::ProvisionalHashes};
pub use self::{
    changes::{BlockChanges, Unfit},
    history::RetainedBlocks,
    late::{BlockLogs, LateBounds},
};
use super::{CaughtUp, FeedState, KnownBlock, Snapshot, SnapshotId};
use crate::chain::{BlockKeeper, SealedBlock};

/// The published state of the chain at one moment: the newest snapshot, the earlier ones, and the sealed blocks.
///
/// It is immutable, so a reader who loads it once sees consistent tags. Publishing creates the next value. Its maps
/// share their structure with the previous one, so it costs only the additions.
#[derive(Clone, Debug)]
pub struct Chain {
    /// The newest snapshot.
    pub newest: Arc<Snapshot>,
    /// The id of the last change. Equal to the newest snapshot's, unless changes without a snapshot followed it.
    pub last: SnapshotId,
    /// The number of times that the chain has returned to an earlier moment.
    pub returns: u64,
    /// The health of the feed, as its source reported it last.
    feed: FeedState,
    /// The word on whether this node has caught up with its leader; `None` on a node that follows none.
    caught_up: Option<Arc<CaughtUp>>,
    /// The extent of the past that is retained as the chain advances.
    kept: Retention,
    /// The snapshot right after the newest canonical block. Complete pre-confirmed blocks on it are not canonical yet.
    latest: Arc<Snapshot>,
    /// The builder of its blocks.
    origin: Origin,
    /// Recent snapshots by their ids.
    recent: imbl::OrdMap<u64, Arc<Snapshot>>,
    /// The snapshot right after each sealed block, with no block open.
    sealed: imbl::OrdMap<u64, Arc<Snapshot>>,
    /// The changes of the pre-confirmed blocks, by number, since the canonical head.
    changes_ahead: imbl::OrdMap<u64, ChangesAhead>,
    /// The numbers of blocks by their hashes. Pruned blocks are in the archive, if there is one.
    numbers: imbl::HashMap<B256, u64>,
    /// The provisional hashes that were returned for unpruned blocks while these were being built, except the hashes of
    /// recent snapshots.
    provisional: ProvisionalHashes,
    /// The sealed blocks that are not pruned.
    blocks: imbl::OrdMap<u64, Arc<SealedBlock>>,
    /// The bytes of the bodies of these blocks that are in memory.
    body_bytes: u64,
    /// The block number and the index of each transaction in those blocks.
    transactions: imbl::HashMap<B256, (u64, usize)>,
    /// The headers of the pruned blocks that are not in the archive.
    old_headers: OldHeaders,
    /// The storage outside of memory for headers and hashes of pruned blocks.
    archive: Option<Arc<dyn BlockKeeper>>,
    /// The canonical blocks whose content the upstream has not sent yet, by number.
    late: imbl::OrdMap<u64, LateBlock>,
    /// The older blocks that a request needs.
    past: Past,
    /// The newest blocks that are no longer canonical, in the order in which they were abandoned.
    abandoned: imbl::Vector<Arc<SealedBlock>>,
}

/// The builder of a chain's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// presim, from genesis on. Every sealed block is final.
    Own,
    /// presim, on this upstream block, which is the oldest retained one. Every sealed block is final.
    Fork(u64),
    /// An upstream, which has reported these tags.
    Upstream(Tags),
}

/// The upstream's `safe` and `finalized` blocks, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tags {
    /// The newest safe block.
    pub safe: Option<u64>,
    /// The newest final block.
    pub finalized: Option<u64>,
}

/// A canonical block whose content the upstream has not sent yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateBlock {
    /// The block's hash.
    pub hash: B256,
    /// The time at which its header was published.
    pub waiting_since: Instant,
}

/// Blocks older than the retained ones, which a request has named.
#[derive(Clone, Debug, Default)]
pub struct Past {
    /// The states after blocks of which possibly only the header is known.
    pub states: Vec<Arc<Snapshot>>,
    /// The blocks with their transactions and receipts.
    pub blocks: Vec<Arc<SealedBlock>>,
}

impl Past {
    /// Returns the state after the block for which `is_it` holds.
    fn state(&self, is_it: impl Fn(&SealedBlock) -> bool) -> Option<&Arc<Snapshot>> {
        self.states.iter().find(|state| is_it(&state.head))
    }

    /// Returns the block for which `is_it` holds.
    fn block(&self, is_it: impl Fn(&SealedBlock) -> bool) -> Option<KnownBlock> {
        self.blocks.iter().find(|block| is_it(block)).cloned().map(KnownBlock::Sealed)
    }
}

/// The extent of the retained past.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Blocks whose state is retained, at least 1.
    pub blocks: usize,
    /// Snapshots that are retained by id, at least 1.
    pub snapshots: usize,
    /// Blocks that are retained with their bodies, besides genesis; at least as many as `blocks`. An upstream's blocks
    /// are retained as long as their states.
    pub history: u64,
    /// Bytes of the bodies in memory, beyond which the oldest are pruned. Blocks whose states are retained keep their
    /// bodies.
    pub history_bytes: u64,
}

/// Retains the hash that was returned for the block that a snapshot is building, if one was, beyond the snapshot.
fn retain_hash_of(snapshot: &Snapshot, hashes: &mut ProvisionalHashes) {
    if let Some(hash) = snapshot.given_out() {
        hashes.insert(snapshot.header().number, hash);
    }
}

/// Drops a snapshot or a block on another thread, because freeing its memory takes as long as making it did.
fn drop_aside(what: impl Send + 'static) {
    rayon::spawn(move || drop(what));
}

impl Chain {
    /// Creates a chain of one snapshot, whose head is a sealed block. `kept` is the extent of the past to retain.
    pub fn new(first: Snapshot, feed: FeedState, kept: Retention) -> Self {
        let first = Arc::new(first);
        let kept = Retention {
            blocks: kept.blocks.max(1),
            snapshots: kept.snapshots.max(1),
            history: kept.history.max(kept.blocks.max(1) as u64),
            history_bytes: kept.history_bytes,
        };
        let mut chain = Self {
            newest: first.clone(),
            last: first.id,
            returns: 0,
            latest: first.clone(),
            origin: Origin::Own,
            feed,
            caught_up: None,
            kept,
            recent: imbl::OrdMap::unit(first.id.0, first.clone()),
            sealed: imbl::OrdMap::new(),
            changes_ahead: imbl::OrdMap::new(),
            numbers: imbl::HashMap::new(),
            provisional: ProvisionalHashes::default(),
            blocks: imbl::OrdMap::new(),
            body_bytes: 0,
            transactions: imbl::HashMap::new(),
            old_headers: OldHeaders::default(),
            archive: None,
            late: imbl::OrdMap::new(),
            past: Past::default(),
            abandoned: imbl::Vector::new(),
        };
        chain.add_block(&first);
        chain
    }

    /// Turns the chain into one that is built here on its oldest block, which is an upstream's.
    #[must_use]
    pub fn forked(self) -> Self {
        Self { origin: Origin::Fork(self.oldest_state()), ..self }
    }

    /// Returns a copy for a request that names older blocks, which also has these.
    #[must_use]
    pub fn with_past(&self, found: &Past) -> Self {
        let mut copy = self.clone();
        copy.past.states.extend(found.states.iter().cloned());
        copy.past.blocks.extend(found.blocks.iter().cloned());
        copy
    }

    /// Returns the number of blocks beyond the retained ones, which a request has named.
    pub fn older(&self) -> usize {
        self.past.states.len() + self.past.blocks.len()
    }

    /// Adds blocks before the first one. Their states are unknown. Each has the hashes of its transactions.
    pub fn add_history(&mut self, blocks: impl IntoIterator<Item = (Arc<SealedBlock>, Vec<B256>)>) {
        blocks.into_iter().for_each(|(block, hashes)| self.index(&block, hashes));
    }

    /// Sets the storage for blocks outside of memory.
    pub fn set_archive(&mut self, archive: Arc<dyn BlockKeeper>) {
        self.archive = Some(archive);
    }

    /// Sets the moment at which another node has published the newest snapshot and the newest canonical block.
    pub fn set_time(&mut self, moment: Instant) {
        let dated = |snapshot: &Snapshot| {
            let mut copy = snapshot.copy();
            copy.published = moment;
            Arc::new(copy)
        };
        self.latest = dated(&self.latest);
        self.sealed.insert(self.latest.head.number(), self.latest.clone());
        self.newest = dated(&self.newest);
        self.recent.insert(self.newest.id.0, self.newest.clone());
    }

    /// Begins an epoch: later changes have its ids. Published snapshots keep theirs. A node that begins one follows no
    /// other node.
    pub fn begin_epoch(&mut self, epoch: u64) {
        self.last = self.last.max(SnapshotId::begin(epoch));
        self.caught_up = None;
    }

    /// Replaces the health that the feed reported, for a problem of this node only.
    pub fn show_feed(&mut self, feed: FeedState) {
        self.feed = feed;
    }

    /// Returns a copy for a node that follows: with the health of the feed, and whether the node has caught up.
    #[must_use]
    pub fn as_followed(&self, feed: FeedState, caught_up: &Arc<CaughtUp>) -> Self {
        Self { feed, caught_up: Some(caught_up.clone()), ..self.clone() }
    }

    /// Sets the id of the newest snapshot, and forgets the earlier ids: they were this node's own, and no other node of
    /// its fleet has them.
    pub fn set_id(&mut self, id: SnapshotId) {
        let again = |snapshot: &Snapshot| Arc::new(snapshot.copy().named(id));
        self.last = id;
        self.sealed = self.sealed.iter().map(|(number, snapshot)| (*number, again(snapshot))).collect();
        self.latest = again(&self.latest);
        self.newest = again(&self.newest);
        self.recent = imbl::OrdMap::unit(id.0, self.newest.clone());
    }

    /// Adds a block as the newest canonical one.
    fn add_canonical(&mut self, snapshot: Snapshot) -> Arc<Snapshot> {
        let snapshot = Arc::new(snapshot);
        self.add_block(&snapshot);
        self.latest = snapshot.clone();
        self.prune_states();
        snapshot
    }

    /// Removes the states beyond the retained ones, and prunes blocks.
    fn prune_states(&mut self) {
        while self.sealed.len() > self.kept.blocks {
            let (oldest, rest) = self.sealed.without_min();
            // Pre-confirmed blocks are built on the newest canonical block.
            if oldest.as_ref().is_some_and(|oldest| oldest.head.number() >= self.latest.head.number()) {
                break;
            }
            self.sealed = rest;
            if let Some(oldest) = oldest {
                self.drop_old_block(&oldest.head);
                drop_aside(oldest);
            }
        }
        // Blocks from before an image, of which only the headers are known.
        while self.is_upstreams() && self.blocks.len() > self.kept.blocks {
            let oldest = self.blocks.get_min().map(|(_, block)| block.clone());
            let Some(oldest) = oldest.filter(|oldest| oldest.number() < self.oldest_state()) else { break };
            self.drop_old_block(&oldest);
        }
        self.prune();
    }

    /// Returns whether the block being built is a beginning of `block`.
    fn open_is_prefix_of(&self, block: &SealedBlock) -> bool {
        let Some(open) = self.newest.open.as_ref().filter(|open| open.header.number == block.number()) else {
            return false;
        };
        let body = block.find_body();
        body.is_some_and(|body| {
            let mut hashes = body.transactions.iter().map(|tx| tx.tx_hash());
            open.header.parent_hash == block.header.parent_hash
                && open.transactions.iter().all(|tx| hashes.next() == Some(tx.tx_hash()))
        })
    }

    /// Retains the hashes that were returned for block `number` beyond the snapshots that have it.
    fn retain_hashes_of(&mut self, number: u64) {
        for snapshot in self.recent.values().filter(|snapshot| snapshot.header().number == number) {
            retain_hash_of(snapshot, &mut self.provisional);
        }
    }

    /// Removes the blocks from `number` on, and the snapshots on them or of them.
    fn forget_from(&mut self, number: u64) {
        self.forget_changes_from(number);
        self.forget_blocks_from(number);
        self.forget_snapshots_from(number);
        self.provisional.remove(number..=u64::MAX);
    }

    /// Removes the changes of the pre-confirmed blocks from `number` on.
    fn forget_changes_from(&mut self, number: u64) {
        while let Some(last) = self.changes_ahead.get_max().map(|(last, _)| *last).filter(|last| *last >= number) {
            self.changes_ahead.remove(&last);
        }
    }

    /// Removes the sealed blocks from `number` on.
    fn forget_blocks_from(&mut self, number: u64) {
        while let Some((last, block)) = self.blocks.get_max().filter(|(last, _)| *last >= number) {
            let (last, block) = (*last, block.clone());
            if last <= self.head().number() {
                self.abandon(block.clone());
            }
            self.forget_transactions(&block);
            self.numbers.remove(&block.hash());
            self.remove_block(last);
            self.late.remove(&last);
            if let Some(dead) = self.sealed.remove(&last) {
                drop_aside(dead);
            }
        }
    }

    /// Removes the snapshots of and on the blocks from `number` on.
    fn forget_snapshots_from(&mut self, number: u64) {
        let is_dead = |snapshot: &Snapshot| snapshot.header().number >= number;
        let dead: Vec<u64> = self.recent.iter().filter(|(_, snapshot)| is_dead(snapshot)).map(|(id, _)| *id).collect();
        for id in dead {
            self.recent.remove(&id);
        }
    }

    fn push(&mut self, next: Arc<Snapshot>) {
        self.recent.insert(next.id.0, next.clone());
        while let Some((oldest, rest)) = (self.recent.len() > self.kept.snapshots).then(|| self.recent.without_min()) {
            self.recent = rest;
            if let Some(oldest) = oldest {
                // A hash is retained as long as its block, which exists or is still to be added.
                let number = oldest.header().number;
                if self.blocks.contains_key(&number) || self.blocks.get_max().is_none_or(|(last, _)| number > *last) {
                    retain_hash_of(&oldest, &mut self.provisional);
                }
                drop_aside(oldest);
            }
        }
        self.newest = next;
    }

    fn add_block(&mut self, snapshot: &Arc<Snapshot>) {
        self.sealed.insert(snapshot.head.number(), snapshot.clone());
        self.index(&snapshot.head, snapshot.head.transaction_hashes().unwrap_or_default());
    }

    fn index(&mut self, block: &Arc<SealedBlock>, transactions: impl IntoIterator<Item = B256>) {
        self.numbers.insert(block.hash(), block.number());
        self.insert_block(block.clone());
        for (index, hash) in transactions.into_iter().enumerate() {
            self.transactions.insert(hash, (block.number(), index));
        }
    }

    /// Stops retaining the state after `block`, and its body if the archive has it. An upstream's block is removed as a
    /// whole.
    fn drop_old_block(&mut self, block: &SealedBlock) {
        if self.is_upstreams() {
            self.forget_transactions(block);
            self.numbers.remove(&block.hash());
            self.provisional.remove(block.number()..=block.number());
            self.remove_block(block.number());
            self.late.remove(&block.number());
        } else if let Some(block) = block.without_body() {
            self.insert_block(Arc::new(block));
        }
    }

    fn insert_block(&mut self, block: Arc<SealedBlock>) {
        self.body_bytes += block.body_bytes();
        if let Some(before) = self.blocks.insert(block.number(), block) {
            self.body_bytes -= before.body_bytes();
        }
    }

    fn remove_block(&mut self, number: u64) {
        if let Some(block) = self.blocks.remove(&number) {
            self.body_bytes -= block.body_bytes();
        }
    }

    fn forget_transactions(&mut self, block: &SealedBlock) {
        for hash in block.transaction_hashes().unwrap_or_default() {
            self.transactions.remove(&hash);
        }
    }
}
