//! The blocks that the cache retains, and the keys that each of them changed.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Acquire},
    },
};

use alloy_primitives::B256;

use super::versions::OPEN;

/// The newest blocks without a gap, oldest first. Never empty.
#[derive(Debug)]
pub(super) struct RecentBlocks {
    pub blocks: VecDeque<Recorded>,
    /// The number of blocks that are retained, and so of states.
    pub kept: usize,
    /// Set to false when the chain restarts, so that blocks that are no longer retained die, too.
    pub era: Arc<AtomicBool>,
}

#[derive(Debug)]
pub(super) struct Recorded {
    pub anchor: Arc<Anchor>,
    changed: Changed,
}

/// The keys that a block changed.
#[derive(Debug)]
pub(super) enum Changed {
    /// Unknown.
    Anything,
    /// The sorted fingerprints of the changed keys.
    These(Box<[u64]>),
}

/// A block of the chain, and whether it is still part of it.
#[derive(Debug)]
pub(super) struct Anchor {
    pub number: u64,
    pub hash: B256,
    /// The block at which the newest gap in knowledge before this one ends. Values that began earlier are not valid
    /// here.
    pub since: u64,
    pub alive: AtomicBool,
    era: Arc<AtomicBool>,
}

impl Anchor {
    pub fn is_alive(&self) -> bool {
        self.alive.load(Acquire) && self.era.load(Acquire)
    }
}

impl RecentBlocks {
    /// The number of blocks that are retained, unless it is set.
    const KEPT: usize = 256;

    pub fn new(number: u64, hash: B256) -> Self {
        let mut chain = Self { blocks: VecDeque::new(), kept: Self::KEPT, era: Arc::new(AtomicBool::new(true)) };
        chain.push(number, hash, number, Changed::Anything);
        chain
    }

    /// Returns the number of the oldest block whose state is kept.
    pub fn oldest(&self) -> u64 {
        self.blocks.front().map_or(0, |block| block.anchor.number)
    }

    pub fn head(&self) -> Option<&Arc<Anchor>> {
        self.blocks.back().map(|block| &block.anchor)
    }

    /// Returns the first block after `block` that changed a key with one of these fingerprints; [`OPEN`] if there is
    /// none. If the following blocks are no longer retained, it is the very next one.
    pub fn next_change(&self, block: u64, prints: &[u64]) -> u64 {
        let skipped = (block + 1).checked_sub(self.oldest()).and_then(|count| usize::try_from(count).ok());
        let Some(skipped) = skipped else { return block + 1 };
        let change = self.blocks.iter().skip(skipped).find(|later| match &later.changed {
            Changed::Anything => true,
            Changed::These(changed) => prints.iter().any(|print| changed.binary_search(print).is_ok()),
        });
        change.map_or(OPEN, |later| later.anchor.number)
    }

    pub fn push(&mut self, number: u64, hash: B256, since: u64, changed: Changed) -> Arc<Anchor> {
        let anchor = Arc::new(Anchor { number, hash, since, alive: AtomicBool::new(true), era: self.era.clone() });
        self.blocks.push_back(Recorded { anchor: anchor.clone(), changed });
        while self.blocks.len() > self.kept {
            self.blocks.pop_front();
        }
        anchor
    }

    pub fn find(&self, number: u64, hash: B256) -> Option<&Arc<Anchor>> {
        let found = self.blocks.iter().rev().find(|block| block.anchor.number == number)?;
        (found.anchor.hash == hash).then_some(&found.anchor)
    }
}
