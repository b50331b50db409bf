//! Reading a chain: the state, the block or the transaction that a selector names.

use std::sync::Arc;

use alloy_primitives::B256;

use super::{Chain, Origin, Tags};
use crate::{
    chain::SealedBlock,
    ledger::{Block, FeedLag, FeedProblem, FeedState, KnownBlock, Selector, Snapshot, SnapshotId, UnknownBlock},
};

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

    /// Returns the snapshot that `selector` selects.
    ///
    /// # Errors
    ///
    /// Returns an [`UnknownBlock`] if there is no such block, or its state is not retained.
    pub fn select(&self, selector: Selector) -> Result<Arc<Snapshot>, UnknownBlock> {
        match selector {
            // While the feed is degraded, its open block does not predict the chain.
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
                    (None, None) => match self.past.state(|block| block.hash() == hash) {
                        Some(state) => Ok(state.clone()),
                        None => self.sealed(self.pruned_number(hash).ok_or(UnknownBlock::Hash { hash })?),
                    },
                },
            },
            Selector::Snapshot(SnapshotId(id)) => self.recent.get(&id).cloned().ok_or_else(|| UnknownBlock::Snapshot {
                id,
                oldest: self.recent.get_min().map_or(id, |(oldest, _)| *oldest),
                newest: self.newest.id.0,
            }),
            Selector::Within { .. } => Err(UnknownBlock::Within),
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

    /// Returns the upstream's tags; `None` on a chain that presim builds.
    pub const fn tags(&self) -> Option<Tags> {
        match self.origin {
            Origin::Upstream(tags) => Some(tags),
            Origin::Own | Origin::Fork(_) => None,
        }
    }

    /// Returns whether an upstream builds the chain.
    pub(super) const fn is_upstreams(&self) -> bool {
        matches!(self.origin, Origin::Upstream(_))
    }

    /// Returns the number of the upstream's block on which presim builds the chain; `None` on any other chain.
    pub const fn forked_at(&self) -> Option<u64> {
        match self.origin {
            Origin::Fork(number) => Some(number),
            Origin::Own | Origin::Upstream(_) => None,
        }
    }

    /// Returns the number of the oldest block whose state is retained.
    pub fn oldest_state(&self) -> u64 {
        self.sealed.get_min().map_or(0, |(number, _)| *number)
    }

    /// Returns the number of the newest block that the upstream reports as final. `None` if it has reported none, and
    /// on a chain that presim builds, whose blocks are all final.
    pub fn finalized(&self) -> Option<u64> {
        self.tags()?.finalized
    }

    /// Returns the newest canonical block.
    pub fn head(&self) -> &Arc<SealedBlock> {
        &self.latest.head
    }

    /// Returns the number of the block that a tag names.
    fn tagged(&self, tag: Selector) -> Result<u64, UnknownBlock> {
        let newest = self.head().number();
        let known = |number: Option<u64>| number.ok_or(UnknownBlock::Untagged { tag: tag.into() });
        match (tag, self.origin) {
            (Selector::Safe, Origin::Upstream(tags)) => known(tags.safe),
            (Selector::Finalized, Origin::Upstream(tags)) => known(tags.finalized),
            // An upstream's blocks are known from the one at which presim began.
            (Selector::Earliest, Origin::Upstream(_) | Origin::Fork(_)) => Ok(0),
            (Selector::Earliest, Origin::Own) => Ok(self.blocks.get_min().map_or(0, |(number, _)| *number)),
            // Blocks that presim seals are never reverted.
            _ => Ok(newest),
        }
    }

    /// Returns the snapshot whose open block is `pending`: the newest one, unless it has no open block or the feed is
    /// degraded.
    pub fn pending(&self) -> Option<&Arc<Snapshot>> {
        (!self.feed.is_degraded() && self.newest.open.is_some()).then_some(&self.newest)
    }

    /// Returns the retained snapshot whose open block was returned under this hash, as in receipts and logs of
    /// pre-confirmed transactions. Once the snapshot is not retained, the hash refers to the block that was sealed from
    /// it.
    fn given_out(&self, hash: B256) -> Option<&Arc<Snapshot>> {
        let mut recent = self.recent.iter().rev().map(|(_, snapshot)| snapshot);
        recent.find(|snapshot| snapshot.given_out() == Some(hash))
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

    /// Returns the block that `selector` selects, pruned or not, or `None` if there is no such block. Headers are never
    /// pruned, so this also finds blocks whose state is not retained.
    ///
    /// # Errors
    ///
    /// Returns an [`UnknownBlock`] if the snapshot is not retained.
    pub fn find(&self, selector: Selector) -> Result<Option<KnownBlock>, UnknownBlock> {
        let sealed = |number: u64| {
            let past = self.past.block(|block| block.number() == number);
            past.or_else(|| self.sealed_block(number).map(KnownBlock::Sealed))
        };
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
                    (None, None) => {
                        let past = self.past.block(|block| block.hash() == hash);
                        past.or_else(|| self.pruned_number(hash).and_then(sealed))
                    }
                },
            },
            Selector::Within { .. } => return Err(UnknownBlock::Within),
            Selector::Snapshot(_) => Some(KnownBlock::Newest(self.select(selector)?)),
        })
    }

    /// Returns the retained snapshots after `id`, in order.
    pub fn snapshots_after(&self, id: SnapshotId) -> impl Iterator<Item = &Arc<Snapshot>> {
        self.recent.range(id.0 + 1..).map(|(_, snapshot)| snapshot)
    }

    /// Returns the sealed blocks of a range, both ends included, in order, without pruned ones.
    pub fn blocks(&self, from: u64, to: u64) -> impl DoubleEndedIterator<Item = &Arc<SealedBlock>> {
        self.blocks.range(from..=to).map(|(_, block)| block)
    }

    /// Returns the block of a transaction, possibly the one being built, and the transaction's index there.
    pub fn transaction(&self, hash: &B256) -> Option<(Block, usize)> {
        if let Some((number, index)) = self.transactions.get(hash) {
            return Some((Block::sealed(self.blocks.get(number)?)?, *index));
        }
        for block in &self.past.blocks {
            let transactions = block.find_body();
            let index = transactions.and_then(|body| body.transactions.iter().position(|tx| tx.tx_hash() == hash));
            if let Some(index) = index {
                return Some((Block::sealed(block)?, index));
            }
        }
        let snapshot = self.pending()?;
        let index = snapshot.open.as_ref()?.positions.get(hash)?;
        Some((Block::newest(snapshot)?, *index))
    }

    /// Returns the number of the block that has a transaction, possibly the one being built.
    pub fn block_of(&self, hash: &B256) -> Option<u64> {
        if let Some((number, _)) = self.transactions.get(hash) {
            return Some(*number);
        }
        let open = self.pending()?.open.as_ref()?;
        open.positions.contains_key(hash).then_some(open.header.number)
    }

    /// Returns the state in which transactions are that do not wait any more: that before a draft, or else the newest.
    pub fn settled(&self) -> &Arc<Snapshot> {
        if self.newest.is_draft() { &self.latest } else { &self.newest }
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
        let past = || self.past.state(|block| block.number() == number).cloned();
        self.sealed.get(&number).cloned().or_else(past).ok_or_else(|| {
            let newest = self.head().number();
            match self.sealed.get_min() {
                Some((oldest, _)) if number < *oldest => UnknownBlock::Pruned { number, oldest: *oldest },
                _ => UnknownBlock::Future { number, newest },
            }
        })
    }
}
