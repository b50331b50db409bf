//! Canonical blocks that were published as headers only, because the upstream has not sent their content yet.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::{B256, Bloom};

use super::{Chain, LateBlock};
use crate::{
    chain::SealedBlock,
    ledger::{Block, Snapshot},
};

/// Bounds on how long the logs of later blocks wait for the logs of a late block.
#[derive(Clone, Copy, Debug)]
pub struct LateBounds {
    /// The time since the header of the late block was published.
    pub wait: Duration,
    /// The bytes of the logs that wait.
    pub bytes: usize,
}

/// The logs of a canonical block, as far as they are known.
#[derive(Debug)]
pub enum BlockLogs {
    /// The block has its whole body.
    Whole(Block),
    /// The logs are known, and the transactions are not ([`SealedBlock::logs_alone`]).
    Alone(Arc<SealedBlock>),
    /// The upstream has not sent them yet.
    Late {
        /// The time at which its header was published.
        since: Instant,
    },
    /// No logs will be known: the block is final, pruned or no longer canonical, or the upstream does not provide them.
    Unknown,
}

impl BlockLogs {
    /// Returns the logs of a block, if they are known.
    pub fn of(block: &Arc<SealedBlock>) -> Option<Self> {
        let whole = Block::sealed(block).map(Self::Whole);
        whole.or_else(|| block.logs_alone().map(|_| Self::Alone(block.clone())))
    }
}

impl Chain {
    /// Returns the canonical blocks whose content the upstream has not sent yet, oldest first.
    pub fn late_blocks(&self) -> impl Iterator<Item = (u64, &LateBlock)> {
        self.late.iter().map(|(number, late)| (*number, late))
    }

    /// Returns whether the upstream has not sent the content of this block yet.
    pub fn is_late(&self, number: u64, hash: B256) -> bool {
        self.late.get(&number).is_some_and(|late| late.hash == hash)
    }

    /// Returns the logs of the block with this number and hash.
    pub fn logs_of(&self, number: u64, hash: B256) -> BlockLogs {
        let Some(block) = self.blocks.get(&number).filter(|block| block.hash() == hash) else {
            return BlockLogs::Unknown;
        };
        BlockLogs::of(block).unwrap_or_else(|| match self.late.get(&number) {
            Some(late) if block.header.logs_bloom != Bloom::ZERO => BlockLogs::Late { since: late.waiting_since },
            _ => BlockLogs::Unknown,
        })
    }

    /// Returns whether later blocks' logs still wait for the logs of block `number`, which has been late since `since`.
    pub fn waits_for(&self, number: u64, since: Instant, bounds: LateBounds) -> bool {
        let bytes = || self.blocks(number + 1, self.head().number()).map(|later| later.log_bytes()).sum::<usize>();
        since.elapsed() < bounds.wait && bytes() <= bounds.bytes
    }

    /// Records a canonical block as late if only its header is known.
    pub(super) fn expect_content(&mut self, block: &SealedBlock) {
        if block.is_bare() && block.logs_alone().is_none() {
            self.late.insert(block.number(), LateBlock { hash: block.hash(), waiting_since: Instant::now() });
        }
    }

    /// Puts the content of a canonical block in the place of its header.
    pub(super) fn put_content(&mut self, block: SealedBlock) {
        let (number, hash) = (block.number(), block.hash());
        if self.late.get(&number).is_none_or(|late| late.hash != hash) {
            return;
        }
        self.late.remove(&number);
        if block.is_bare() && block.logs_alone().is_none() {
            return;
        }
        let block = Arc::new(block);
        self.index(&block, block.transaction_hashes().unwrap_or_default());
        let is_on = |snapshot: &Snapshot| snapshot.head_hash() == hash;
        let with_content = |snapshot: &Snapshot| Arc::new(snapshot.with_head(block.clone()));
        if let Some(after) = self.sealed.get(&number).filter(|after| is_on(after)) {
            let after = with_content(after);
            self.sealed.insert(number, after);
        }
        let recent = self.recent.iter().filter(|(_, one)| is_on(one)).map(|(id, one)| (*id, with_content(one)));
        let recent: Vec<_> = recent.collect();
        self.recent.extend(recent);
        // One copy per snapshot, because each copy computes its own provisional hash, which the others would not know.
        for snapshot in [&mut self.latest, &mut self.newest] {
            if is_on(snapshot) {
                let same = self.recent.get(&snapshot.id.0).filter(|one| one.state == snapshot.state);
                *snapshot = same.cloned().unwrap_or_else(|| with_content(snapshot));
            }
        }
    }

    /// Stops waiting for the content of final blocks. The upstream has been asked for it until now.
    pub(super) fn drop_final(&mut self) {
        let Some(finalized) = self.finalized() else { return };
        while let Some(number) = self.late.get_min().map(|(number, _)| *number).filter(|number| *number <= finalized) {
            self.late.remove(&number);
        }
    }
}
