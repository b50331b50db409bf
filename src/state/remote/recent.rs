//! The blocks that a cache retains, and the keys that each of them changed.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
};

use alloy_primitives::B256;

use super::versions::OPEN;

/// The newest blocks without a gap, oldest first. `A` is a block as its views have it.
#[derive(Debug)]
pub(super) struct RecentBlocks<A> {
    blocks: VecDeque<Recorded<A>>,
    /// The number of blocks that are retained, and so of states.
    kept: usize,
}

/// A block, and its changes.
#[derive(Debug)]
pub(super) struct Recorded<A> {
    pub number: u64,
    pub hash: B256,
    changed: Changed,
    /// The block as its views have it, if there are any. The views own it, so that it is known whether there are.
    pub anchor: Weak<A>,
}

/// The keys that a block changed.
#[derive(Debug)]
pub(super) enum Changed {
    /// Unknown.
    Anything,
    /// The sorted fingerprints of the changed keys.
    These(Box<[u64]>),
}

impl<A> RecentBlocks<A> {
    pub const fn new(kept: usize) -> Self {
        Self { blocks: VecDeque::new(), kept }
    }

    /// Returns the number of the oldest block whose state is retained.
    pub fn oldest(&self) -> u64 {
        self.blocks.front().map_or(0, |block| block.number)
    }

    pub fn head(&self) -> Option<&Recorded<A>> {
        self.blocks.back()
    }

    /// Returns the first block after `block` that changed a key with one of these fingerprints; [`OPEN`] if there is
    /// none. If the following blocks are no longer retained, it is the very next one.
    pub fn next_change(&self, block: u64, prints: &[u64]) -> u64 {
        let skipped = (block + 1).checked_sub(self.oldest()).and_then(|count| usize::try_from(count).ok());
        let Some(skipped) = skipped else { return block + 1 };
        let change = self.blocks.iter().skip(skipped).find(|later| later.has_changed(prints));
        change.map_or(OPEN, |later| later.number)
    }

    /// Returns whether a block up to `last` has changed a key with one of these fingerprints.
    pub fn has_changed(&self, last: u64, prints: &[u64]) -> bool {
        self.blocks.iter().take_while(|block| block.number <= last).any(|block| block.has_changed(prints))
    }

    pub fn push(&mut self, number: u64, hash: B256, anchor: &Arc<A>, changed: Changed) {
        self.blocks.push_back(Recorded { number, hash, changed, anchor: Arc::downgrade(anchor) });
        while self.blocks.len() > self.kept {
            self.blocks.pop_front();
        }
    }

    /// Removes the blocks after this one, and returns them. `None` if it is not retained.
    pub fn split_after(&mut self, anchor: &Arc<A>) -> Option<Self> {
        let at = self.blocks.iter().rposition(|block| block.is(anchor))?;
        Some(Self { blocks: self.blocks.split_off(at + 1), kept: self.kept })
    }

    pub fn iter(&self) -> impl Iterator<Item = &Recorded<A>> {
        self.blocks.iter()
    }
}

impl<A> Recorded<A> {
    /// Returns whether it is the block of these views.
    pub fn is(&self, anchor: &Arc<A>) -> bool {
        std::ptr::eq(self.anchor.as_ptr(), Arc::as_ptr(anchor))
    }

    fn has_changed(&self, prints: &[u64]) -> bool {
        match &self.changed {
            Changed::Anything => true,
            Changed::These(changed) => prints.iter().any(|print| changed.binary_search(print).is_ok()),
        }
    }
}
