//! The newest snapshot and the recent ones, read without a lock.

mod ahead;
mod history;
mod late;
mod provisional;

use std::{sync::Arc, time::Instant};

use alloy_primitives::B256;
use arc_swap::ArcSwap;
use tokio::sync::watch;

use self::{ahead::ChangesAhead, history::OldHeaders, provisional::ProvisionalHashes};
pub use self::{
    ahead::{BlockChanges, Unfit},
    history::RetainedBlocks,
    late::{BlockLogs, LateBlock, LateBounds},
};
use super::{
    Block, CaughtUp, Divergences, FeedLag, FeedProblem, FeedState, KnownBlock, Publication, Selector, Snapshot,
    SnapshotId, UnknownBlock,
};
use crate::chain::{BlockKeeper, SealedBlock};

/// The published state of the chain at one moment: the newest snapshot, those before it, and the sealed blocks.
///
/// One immutable value, so that a reader who loads it once sees tags that belong together. Publishing makes the next
/// value, whose maps share their structure with the last, so it costs only the additions.
#[derive(Clone, Debug)]
pub struct Chain {
    /// The newest snapshot.
    pub newest: Arc<Snapshot>,
    /// The id of the last change. That of the newest snapshot, unless changes without a snapshot came after it.
    pub last: SnapshotId,
    /// The number of times that the chain has returned to an earlier moment.
    pub returns: u64,
    /// The health of the feed, as its source has told it last.
    feed: FeedState,
    /// The word on whether this node has caught up with its leader; `None` on a node that follows none.
    caught_up: Option<Arc<CaughtUp>>,
    /// The extent of the past that is retained as the chain goes on.
    kept: Retention,
    /// The snapshot right after the newest canonical block. Complete pre-confirmed blocks on it are not canonical yet.
    latest: Arc<Snapshot>,
    /// The upstream's tags; `None` on presim's own chain, where every sealed block is final.
    tags: Option<Tags>,
    /// Recent snapshots by their ids.
    recent: imbl::OrdMap<u64, Arc<Snapshot>>,
    /// The snapshot right after each sealed block, with no block open.
    sealed: imbl::OrdMap<u64, Arc<Snapshot>>,
    /// The changes of the pre-confirmed blocks, by number, since the canonical head.
    changes_ahead: imbl::OrdMap<u64, ChangesAhead>,
    /// The numbers of blocks by their hashes. The archive, if there is one, has those of pruned blocks.
    numbers: imbl::HashMap<B256, u64>,
    /// The hashes that were returned for the blocks that are not pruned while these were being built, as far as they are
    /// not those of recent snapshots.
    provisional: ProvisionalHashes,
    /// The sealed blocks that are not pruned.
    blocks: imbl::OrdMap<u64, Arc<SealedBlock>>,
    /// The block number and the index of each transaction in those blocks.
    transactions: imbl::HashMap<B256, (u64, usize)>,
    /// The headers of the pruned blocks that are not in the archive.
    old_headers: OldHeaders,
    /// The storage outside of memory for headers and hashes of pruned blocks.
    archive: Option<Arc<dyn BlockKeeper>>,
    /// The canonical blocks whose content the upstream has not told yet, by number.
    late: imbl::OrdMap<u64, LateBlock>,
}

/// The upstream's `safe` and `finalized` blocks, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tags {
    /// The newest safe block.
    pub safe: Option<u64>,
    /// The newest final block.
    pub finalized: Option<u64>,
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
}

/// The lock-free cell that holds what is published. It has one writer and any number of readers.
#[derive(Debug)]
pub struct Snapshots {
    cell: ArcSwap<Chain>,
    changed: watch::Sender<SnapshotId>,
    /// The values that were published as pre-confirmed and did not become canonical.
    pub divergences: Arc<Divergences>,
}

impl Snapshots {
    /// Creates a cell with its first snapshot, whose head is a sealed block. `kept` says how much of the past is
    /// retained.
    pub fn new(first: Snapshot, feed: FeedState, kept: Retention) -> Self {
        let first = Arc::new(first);
        let kept = Retention {
            blocks: kept.blocks.max(1),
            snapshots: kept.snapshots.max(1),
            history: kept.history.max(kept.blocks.max(1) as u64),
        };
        let mut published = Chain {
            newest: first.clone(),
            last: first.id,
            returns: 0,
            latest: first.clone(),
            tags: None,
            feed,
            caught_up: None,
            kept,
            recent: imbl::OrdMap::unit(first.id.0, first.clone()),
            sealed: imbl::OrdMap::new(),
            changes_ahead: imbl::OrdMap::new(),
            numbers: imbl::HashMap::new(),
            provisional: ProvisionalHashes::default(),
            blocks: imbl::OrdMap::new(),
            transactions: imbl::HashMap::new(),
            old_headers: OldHeaders::default(),
            archive: None,
            late: imbl::OrdMap::new(),
        };
        published.add_block(&first);
        let changed = watch::Sender::new(published.newest.id);
        Self { changed, cell: ArcSwap::from_pointee(published), divergences: Arc::default() }
    }

    /// Returns what is published now, by one atomic load.
    pub fn load(&self) -> Arc<Chain> {
        self.cell.load_full()
    }

    /// Returns the newest snapshot.
    pub fn newest(&self) -> Arc<Snapshot> {
        self.cell.load().newest.clone()
    }

    /// Returns a receiver that wakes on each publication. The receiver loads the publication itself.
    pub fn changes(&self) -> watch::Receiver<SnapshotId> {
        self.changed.subscribe()
    }

    /// Publishes a change under the next id, and returns the id.
    pub fn apply(&self, publication: Publication) -> SnapshotId {
        let id = self.next_id();
        self.apply_as(id, publication);
        id
    }

    /// Publishes a change under the id that its first publisher gave it: on a restart, and on a replica. Ids only grow,
    /// except that the block opened on the first may come under the first's id.
    pub fn apply_as(&self, id: SnapshotId, publication: Publication) {
        self.replace(|published| {
            published.last = id;
            published.apply(id, publication);
        });
    }

    /// Returns the id of the next change.
    pub fn next_id(&self) -> SnapshotId {
        self.cell.load().last.next()
    }

    /// Publishes a change as [`apply_as`](Self::apply_as) does, whose snapshots were published by another node at this moment.
    pub fn apply_dated(&self, id: SnapshotId, moment: Instant, publication: Publication) {
        self.apply_as(id, publication.dated(moment));
    }

    /// Publishes the same, whose newest snapshot and newest canonical block were published by another node at this moment.
    pub fn date(&self, moment: Instant) {
        self.replace(|published| {
            let dated = |snapshot: &Snapshot| {
                let mut copy = snapshot.copy();
                copy.published = moment;
                Arc::new(copy)
            };
            published.latest = dated(&published.latest);
            let latest = published.latest.clone();
            published.sealed.insert(latest.head.number(), latest);
            published.newest = dated(&published.newest);
            published.recent.insert(published.newest.id.0, published.newest.clone());
        });
    }

    /// Begins an epoch: the changes from here on have its ids. Published snapshots keep theirs. A node that begins one follows
    /// no other.
    pub fn begin_epoch(&self, epoch: u64) {
        self.replace(|published| {
            published.last = published.last.max(SnapshotId::begin(epoch));
            published.caught_up = None;
        });
    }

    /// Publishes the same under an id, and forgets the ids before: they were this node's own, and no other node of its
    /// fleet has them.
    pub fn rename(&self, id: SnapshotId) {
        self.replace(|published| published.rename(id));
    }

    /// Shows another health of the feed than the last change told, because of something that concerns this node alone. It
    /// takes no sequence.
    pub fn show_feed(&self, feed: FeedState) {
        self.replace(|published| published.feed = feed);
    }

    /// Replaces everything that is published by what a node that follows has reached, with the health of the feed and the word
    /// on whether the node has caught up.
    pub fn follow(&self, reached: &Chain, feed: FeedState, caught_up: &Arc<CaughtUp>) {
        self.replace_all(Arc::new(Chain { feed, caught_up: Some(caught_up.clone()), ..reached.clone() }));
    }

    /// Replaces everything that is published.
    pub fn replace_all(&self, published: Arc<Chain>) {
        let newest = published.newest.id;
        self.cell.store(published);
        self.changed.send_replace(newest);
    }

    /// Creates a second cell that begins with the same publication. Both have the same divergences.
    #[must_use]
    pub fn mirror(&self) -> Self {
        let published = self.load();
        Self {
            changed: watch::Sender::new(published.newest.id),
            cell: ArcSwap::new(published),
            divergences: self.divergences.clone(),
        }
    }

    /// Adds blocks before the first, whose states are unknown, each with the hashes of its transactions.
    pub fn add_history(&self, blocks: impl IntoIterator<Item = (Arc<SealedBlock>, Vec<B256>)>) {
        self.replace(|published| blocks.into_iter().for_each(|(block, hashes)| published.index(&block, hashes)));
    }

    /// Sets the storage for blocks outside of memory.
    pub fn set_archive(&self, archive: Arc<dyn BlockKeeper>) {
        self.replace(|published| published.archive = Some(archive));
    }

    fn replace(&self, change: impl FnOnce(&mut Chain)) {
        let mut next = Chain::clone(&self.cell.load());
        change(&mut next);
        let newest = next.newest.id;
        self.cell.store(Arc::new(next));
        self.changed.send_replace(newest);
    }
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
    /// Returns the health of the feed now. A node that follows is live for as long as it is proven to have caught up.
    pub fn feed(&self) -> FeedState {
        match (self.feed, self.caught_up.as_ref().and_then(|word| word.late_since())) {
            (FeedState::Live { every_ms } | FeedState::Lagging(FeedLag { every_ms, .. }), Some(since)) => {
                FeedState::Lagging(FeedLag { since, waiting: 0, cause: FeedProblem::Behind, every_ms })
            }
            (state, _) => state,
        }
    }

    /// Applies a change whose snapshots get this id.
    fn apply(&mut self, id: SnapshotId, publication: Publication) {
        match publication {
            Publication::SubBlock(next) => self.push(Arc::new(next.named(id))),
            Publication::Seal { sealed, next } => {
                let next = next.map(|mut next| {
                    // The sealed block's own state is not found by an id.
                    next.path.splice(..0, sealed.path.iter().cloned());
                    next.named(id)
                });
                let sealed = self.stand_on(sealed.named(id));
                self.push(next.map_or(sealed, Arc::new));
            }
            Publication::Canonical(canonical) => {
                let number = canonical.head.number();
                self.forget_blocks_from(number);
                // The sub-blocks of a block that became canonical unchanged are states of the chain.
                let unchanged = canonical.path.first().is_some_and(|step| step.from == self.newest.state)
                    && self.newest.open.as_ref().is_some_and(|open| open.header.number == number);
                if unchanged || self.has_begun(&canonical.head) {
                    self.retain_hashes_of(number);
                } else {
                    self.provisional.remove(number..=number);
                }
                self.provisional.remove(number + 1..=u64::MAX);
                self.forget_snapshots_from(if unchanged { number + 1 } else { number });
                self.expect_content(&canonical.head);
                self.changes_ahead.clear();
                let canonical = self.stand_on(canonical.named(id));
                self.push(canonical);
            }
            Publication::PreConfirmed { complete, mut open } => {
                match complete {
                    Some(complete) => {
                        open.path.splice(..0, complete.path.iter().cloned());
                        // The snapshots of its sub-blocks stay. Those of the block on it are of an earlier attempt.
                        self.forget_blocks_from(complete.head.number());
                        self.forget_snapshots_from(complete.head.number() + 1);
                        self.provisional.remove(complete.head.number() + 1..=u64::MAX);
                        self.forget_changes_from(complete.head.number() + 1);
                        self.add_block(&Arc::new(complete.named(id)));
                    }
                    None if open.index() == 0 => self.forget_from(open.header().number),
                    None => {}
                }
                self.changes_ahead.entry(open.header().number).or_default().add(&open);
                self.prune_states();
                self.push(Arc::new(open.named(id)));
            }
            Publication::Confirm(canonical) => {
                let known = self.sealed.get(&canonical.head.number()).map_or(id, |known| known.id);
                let canonical = Arc::new(canonical.named(known));
                self.add_block(&canonical);
                self.expect_content(&canonical.head);
                self.changes_ahead.remove(&canonical.head.number());
                self.latest = canonical;
            }
            Publication::Ahead { complete, open } => {
                self.forget_from(self.latest.head.number() + 1);
                for (complete, changes) in complete {
                    self.changes_ahead.insert(complete.head.number(), ChangesAhead::of([&changes]));
                    self.add_block(&Arc::new(complete.named(id)));
                }
                if let Some(open) = open {
                    self.changes_ahead.entry(open.header().number).or_default().add(&open);
                    self.push(Arc::new(open.named(id)));
                }
            }
            Publication::GoBack { number, feed } => {
                self.feed = feed;
                let Some(fork) = self.sealed.get(&number) else { return };
                let fork = Arc::new(fork.copy().named(id));
                self.forget_from(number + 1);
                self.sealed.insert(number, fork.clone());
                self.latest = fork.clone();
                self.push(fork);
            }
            Publication::FallBack(feed) => {
                self.feed = feed;
                let number = self.latest.head.number();
                if self.newest.open.is_none() && self.newest.head.number() == number {
                    return;
                }
                let again = self.latest.copy().named(id);
                self.forget_from(number + 1);
                self.push(Arc::new(again));
            }
            Publication::Restart(first) => {
                self.forget_from(0);
                let first = Arc::new(first.named(id));
                self.add_block(&first);
                self.expect_content(&first.head);
                self.latest = first.clone();
                self.push(first);
            }
            Publication::Return(then) => {
                let returns = self.returns + 1;
                *self = Self { feed: self.feed, last: id, returns, ..Self::clone(&then) };
                let mut again = then.newest.copy().named(id);
                again.published = Instant::now();
                self.push(Arc::new(again));
            }
            Publication::Tags(tags) => {
                self.tags = Some(tags);
                self.give_up_final();
            }
            Publication::Content(block) => self.complete(block),
            Publication::Feed(feed) => self.feed = feed,
        }
    }

    fn rename(&mut self, id: SnapshotId) {
        let again = |snapshot: &Snapshot| Arc::new(snapshot.copy().named(id));
        self.last = id;
        self.sealed = self.sealed.iter().map(|(number, snapshot)| (*number, again(snapshot))).collect();
        self.latest = again(&self.latest);
        self.newest = again(&self.newest);
        self.recent = imbl::OrdMap::unit(id.0, self.newest.clone());
    }

    /// Adds a block as the newest canonical one.
    fn stand_on(&mut self, snapshot: Snapshot) -> Arc<Snapshot> {
        let snapshot = Arc::new(snapshot);
        self.add_block(&snapshot);
        self.latest = snapshot.clone();
        self.prune_states();
        snapshot
    }

    /// Removes the states beyond those that are retained, and prunes blocks.
    fn prune_states(&mut self) {
        while self.sealed.len() > self.kept.blocks {
            let (oldest, rest) = self.sealed.without_min();
            // Pre-confirmed blocks are built on the newest canonical block.
            if oldest.as_ref().is_some_and(|oldest| oldest.head.number() >= self.latest.head.number()) {
                break;
            }
            self.sealed = rest;
            if let Some(oldest) = oldest {
                self.put_away(&oldest.head);
                drop_aside(oldest);
            }
        }
        // Blocks from before an image, of which only the headers are known.
        while self.tags.is_some() && self.blocks.len() > self.kept.blocks {
            let oldest = self.blocks.get_min().map(|(_, block)| block.clone());
            let Some(oldest) = oldest.filter(|oldest| oldest.number() < self.oldest_state()) else { break };
            self.put_away(&oldest);
        }
        self.prune(self.kept.history);
    }

    /// Returns the snapshot that `selector` selects.
    ///
    /// # Errors
    ///
    /// Returns an [`UnknownBlock`] if there is no such block, or its state is not retained.
    pub fn select(&self, selector: Selector) -> Result<Arc<Snapshot>, UnknownBlock> {
        match selector {
            // While the feed is degraded, its open block is not what the chain will do.
            Selector::Pending if self.feed.is_degraded() => Ok(self.latest.clone()),
            Selector::Pending => Ok(self.newest.clone()),
            Selector::Latest => Ok(self.latest.clone()),
            Selector::Safe | Selector::Finalized | Selector::Earliest => self.sealed(self.tagged(selector)?),
            Selector::Number(number) => match &self.newest.open {
                Some(open) if open.header.number == number && !self.feed.is_degraded() => Ok(self.newest.clone()),
                _ => self.sealed(number),
            },
            Selector::Hash(hash) => match self.numbers.get(&hash) {
                Some(number) => self.sealed(*number),
                None => match (self.given_out(hash), self.provisional.number(&hash)) {
                    (Some(snapshot), _) => Ok(snapshot.clone()),
                    (None, Some(number)) => self.select(Selector::Number(number)),
                    (None, None) => self.sealed(self.pruned_number(hash).ok_or(UnknownBlock::Hash { hash })?),
                },
            },
            Selector::Snapshot(SnapshotId(id)) => self.recent.get(&id).cloned().ok_or_else(|| UnknownBlock::Snapshot {
                id,
                oldest: self.recent.get_min().map_or(id, |(oldest, _)| *oldest),
                newest: self.newest.id.0,
            }),
        }
    }

    /// Returns the state right after the newest canonical block.
    pub const fn latest(&self) -> &Arc<Snapshot> {
        &self.latest
    }

    /// Returns the states after the complete pre-confirmed blocks, oldest first.
    pub fn ahead(&self) -> impl Iterator<Item = &Arc<Snapshot>> {
        self.sealed.range(self.latest.head.number() + 1..).map(|(_, snapshot)| snapshot)
    }

    /// Returns the state after the sealed block of this number, if it is retained.
    pub fn state_after(&self, number: u64) -> Option<&Arc<Snapshot>> {
        self.sealed.get(&number)
    }

    /// Returns the upstream's tags; `None` on presim's own chain.
    pub const fn tags(&self) -> Option<Tags> {
        self.tags
    }

    /// Returns the number of the oldest block whose state is kept.
    pub fn oldest_state(&self) -> u64 {
        self.sealed.get_min().map_or(0, |(number, _)| *number)
    }

    /// Returns the number of the newest block that the upstream calls final. `None` if it has told none, and on a chain of
    /// presim's own, whose blocks are all final.
    pub fn finalized(&self) -> Option<u64> {
        self.tags?.finalized
    }

    /// Returns the newest canonical block.
    pub fn head(&self) -> &Arc<SealedBlock> {
        &self.latest.head
    }

    /// Returns the number of the block that a tag names.
    fn tagged(&self, tag: Selector) -> Result<u64, UnknownBlock> {
        let newest = self.head().number();
        let known = |number: Option<u64>| number.ok_or(UnknownBlock::Untagged { tag: tag.name() });
        match (tag, self.tags) {
            (Selector::Safe, Some(tags)) => known(tags.safe),
            (Selector::Finalized, Some(tags)) => known(tags.finalized),
            // An upstream's blocks are known from the one at which presim began to follow.
            (Selector::Earliest, Some(_)) => Ok(0),
            (Selector::Earliest, None) => Ok(self.blocks.get_min().map_or(0, |(number, _)| *number)),
            // Blocks that presim seals are never reverted.
            _ => Ok(newest),
        }
    }

    /// Returns the snapshot whose open block `pending` is: the newest, unless it builds none or the feed is degraded.
    pub fn pending(&self) -> Option<&Arc<Snapshot>> {
        (!self.feed.is_degraded() && self.newest.open.is_some()).then_some(&self.newest)
    }

    /// Returns the retained snapshot whose open block was returned under this hash, as in receipts and logs of
    /// pre-confirmed transactions. Once the snapshot is not retained, the hash stands for the block that became of it.
    fn given_out(&self, hash: B256) -> Option<&Arc<Snapshot>> {
        let mut recent = self.recent.iter().rev().map(|(_, snapshot)| snapshot);
        recent.find(|snapshot| snapshot.given_out() == Some(hash))
    }

    /// Returns whether the block being built is a beginning of `block`.
    fn has_begun(&self, block: &SealedBlock) -> bool {
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

    /// Returns the block that `selector` selects, with its body; `None` if there is no such block.
    ///
    /// # Errors
    ///
    /// Returns an [`UnknownBlock`] if the snapshot is not retained, or only the header of the block is known.
    pub fn block(&self, selector: Selector) -> Result<Option<Block>, UnknownBlock> {
        let Some(known) = self.find(selector)? else { return Ok(None) };
        let number = known.number();
        Block::load(known).map(Some).ok_or_else(|| self.no_body(number))
    }

    /// Returns the block that `selector` selects, pruned or not; `None` if there is no such block. Headers are never
    /// pruned, so this finds blocks whose state is not retained, too.
    ///
    /// # Errors
    ///
    /// Returns an [`UnknownBlock`] if the snapshot is not retained.
    pub fn find(&self, selector: Selector) -> Result<Option<KnownBlock>, UnknownBlock> {
        let sealed = |number: u64| self.sealed_block(number).map(KnownBlock::Sealed);
        let head = || KnownBlock::Sealed(self.head().clone());
        Ok(match selector {
            Selector::Pending => Some(self.pending().map_or_else(head, |open| KnownBlock::Newest(open.clone()))),
            Selector::Latest => Some(head()),
            Selector::Safe | Selector::Finalized | Selector::Earliest => sealed(self.tagged(selector)?),
            Selector::Number(number) => match self.pending() {
                Some(open) if open.header().number == number => Some(KnownBlock::Newest(open.clone())),
                _ => sealed(number),
            },
            Selector::Hash(hash) => match self.numbers.get(&hash) {
                Some(number) => sealed(*number),
                None => match (self.given_out(hash), self.provisional.number(&hash)) {
                    (Some(open), _) => Some(KnownBlock::Newest(open.clone())),
                    (None, Some(number)) => self.find(Selector::Number(number))?,
                    (None, None) => self.pruned_number(hash).and_then(sealed),
                },
            },
            Selector::Snapshot(_) => Some(KnownBlock::Newest(self.select(selector)?)),
        })
    }

    /// Returns the retained snapshots from `id` on, in order.
    pub fn since(&self, id: SnapshotId) -> impl Iterator<Item = &Arc<Snapshot>> {
        self.recent.range(id.0..).map(|(_, snapshot)| snapshot)
    }

    /// Returns the retained snapshots after `id`, in order.
    pub fn snapshots_after(&self, id: SnapshotId) -> impl Iterator<Item = &Arc<Snapshot>> {
        self.recent.range(id.0 + 1..).map(|(_, snapshot)| snapshot)
    }

    /// Returns the sealed blocks of a range, both ends included, in order, without pruned ones.
    pub fn blocks(&self, from: u64, to: u64) -> impl Iterator<Item = &Arc<SealedBlock>> {
        self.blocks.range(from..=to).map(|(_, block)| block)
    }

    /// Returns the block of a transaction, possibly the one being built, and the transaction's index there.
    pub fn transaction(&self, hash: &B256) -> Option<(Block, usize)> {
        if let Some((number, index)) = self.transactions.get(hash) {
            return Some((Block::sealed(self.blocks.get(number)?)?, *index));
        }
        let snapshot = self.pending()?;
        let index = snapshot.open.as_ref()?.positions.get(hash)?;
        Some((Block::newest(snapshot)?, *index))
    }

    /// Returns whether a transaction is in a sealed block that is not pruned.
    pub fn is_mined(&self, hash: &B256) -> bool {
        self.transactions.contains_key(hash)
    }

    /// Returns whether a transaction is in the block being built, visible or not.
    pub fn is_building(&self, hash: &B256) -> bool {
        self.newest.open.as_ref().is_some_and(|open| open.positions.contains_key(hash))
    }

    fn sealed(&self, number: u64) -> Result<Arc<Snapshot>, UnknownBlock> {
        self.sealed.get(&number).cloned().ok_or_else(|| {
            let newest = self.head().number();
            match self.sealed.get_min() {
                Some((oldest, _)) if number < *oldest => UnknownBlock::Pruned { number, oldest: *oldest },
                _ => UnknownBlock::Future { number, newest },
            }
        })
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
            self.forget_transactions(&block);
            self.numbers.remove(&block.hash());
            self.blocks.remove(&last);
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
                // A hash lives as long as its block, which is here or still to come.
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
        self.blocks.insert(block.number(), block.clone());
        for (index, hash) in transactions.into_iter().enumerate() {
            self.transactions.insert(hash, (block.number(), index));
        }
    }

    /// Stops retaining the state after `block`, and its body if the archive has it. An upstream's block is removed as a
    /// whole.
    fn put_away(&mut self, block: &SealedBlock) {
        if self.tags.is_some() {
            self.forget_transactions(block);
            self.numbers.remove(&block.hash());
            self.provisional.remove(block.number()..=block.number());
            self.blocks.remove(&block.number());
            self.late.remove(&block.number());
        } else if let Some(block) = block.without_body() {
            self.blocks.insert(block.number(), Arc::new(block));
        }
    }

    fn forget_transactions(&mut self, block: &SealedBlock) {
        for hash in block.transaction_hashes().unwrap_or_default() {
            self.transactions.remove(&hash);
        }
    }
}
