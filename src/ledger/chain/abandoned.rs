//! Blocks that are no longer canonical, for clients that learn of this with their next request.

use std::sync::Arc;

use alloy_eips::BlockNumHash;
use alloy_primitives::B256;

use super::{Chain, drop_aside};
use crate::chain::SealedBlock;

impl Chain {
    /// Returns whether a block is canonical, as far as known: a block older than the known ones counts as canonical,
    /// unless it would be the parent of the oldest and is not.
    pub fn is_canonical(&self, block: BlockNumHash) -> bool {
        let child = || self.blocks.get(&(block.number + 1));
        match self.blocks.get(&block.number) {
            _ if block.number > self.head().number() => false,
            Some(known) => known.hash() == block.hash,
            None => child().is_none_or(|child| child.header.parent_hash == block.hash),
        }
    }

    /// Returns the block with this hash if a reorg has removed it, or the chain has returned to a moment before it. As
    /// many abandoned blocks are retained as blocks with state.
    pub fn abandoned(&self, hash: B256) -> Option<&Arc<SealedBlock>> {
        self.abandoned.iter().rev().find(|block| block.hash() == hash)
    }

    /// Retains a block that is no longer canonical. Its keeper has another one under its number soon.
    pub(super) fn abandon(&mut self, block: Arc<SealedBlock>) {
        self.abandoned.push_back(if block.is_kept() { Arc::new(block.without_keeper()) } else { block });
        while self.abandoned.len() > self.kept.blocks {
            if let Some(oldest) = self.abandoned.pop_front() {
                drop_aside(oldest);
            }
        }
    }

    /// Returns the chain as it was `then`, plus the blocks that this abandons.
    pub(super) fn back_to(&self, then: &Self) -> Self {
        let mut back = Self { abandoned: self.abandoned.clone(), ..then.clone() };
        let canonical = self.blocks.range(..=self.head().number()).rev().take(self.kept.blocks).map(|(_, block)| block);
        let is_gone = |block: &&Arc<SealedBlock>| !then.is_canonical(block.id());
        let gone: Vec<_> = canonical.take_while(is_gone).cloned().collect();
        gone.into_iter().rev().for_each(|block| back.abandon(block));
        back
    }
}
