//! Pruning: removes the bodies of old blocks as new blocks arrive. Their headers stay.

use std::{ops::Range, sync::Arc};

use alloy_primitives::{B256, Sealable};

use super::{Chain, drop_aside};
use crate::{chain::SealedBlock, ledger::UnknownBlock};

/// The largest number of blocks pruned at once, so that publishing does not wait for a whole history after the bound
/// was lowered.
const PRUNED_AT_ONCE: usize = 16;

/// The blocks of which some data is retained: all from the oldest to the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetainedBlocks {
    /// The number of the oldest of these blocks.
    pub oldest: u64,
    /// The number of blocks that are retained as the chain advances. `None` if none is pruned.
    pub window: Option<u64>,
}

impl Chain {
    /// Returns the blocks whose states are retained.
    pub fn retained_states(&self) -> RetainedBlocks {
        RetainedBlocks { oldest: self.oldest_state(), window: Some(self.kept.blocks as u64) }
    }

    /// Returns the blocks that are retained with their transactions, receipts and logs. Genesis may be another one.
    pub fn retained_bodies(&self) -> RetainedBlocks {
        let pruned = self.pruned();
        let bare = self.blocks.iter().rev().find(|(_, block)| self.is_upstreams() && block.is_bare());
        let oldest = match bare {
            Some((bare, _)) => bare + 1,
            None if pruned.is_empty() => pruned.start.saturating_sub(1),
            None => pruned.end,
        };
        // An upstream's blocks are retained as long as their states.
        let window = if self.is_upstreams() { self.kept.blocks as u64 } else { self.kept.history };
        RetainedBlocks { oldest, window: Some(window).filter(|blocks| *blocks < u64::MAX) }
    }

    /// Returns the number of the oldest block after genesis with a body, or the number of the next block if there is
    /// none.
    pub fn oldest_history(&self) -> u64 {
        self.pruned().end
    }

    /// Returns the numbers of the pruned blocks: after genesis, and before the oldest block that is not pruned.
    fn pruned(&self) -> Range<u64> {
        let after_genesis = self.blocks.get_min().map_or(0, |(genesis, _)| genesis + 1);
        let oldest = self.blocks.range(after_genesis..).next().map_or(after_genesis, |(oldest, _)| *oldest);
        after_genesis..oldest
    }

    /// Returns the number of the pruned block with this hash.
    pub(super) fn pruned_number(&self, hash: B256) -> Option<u64> {
        self.archive.as_ref()?.number(hash).filter(|number| self.pruned().contains(number))
    }

    /// Checks that every block of a range, both ends included, is known with its body.
    ///
    /// # Errors
    ///
    /// Returns [`UnknownBlock::History`] if a block was pruned; [`UnknownBlock::Pruned`] if the range begins before the oldest
    /// known block of an upstream's chain, or of a fork of it; on an upstream's chain, [`UnknownBlock::Bare`] if only a block's
    /// header is known.
    pub fn has_blocks(&self, from: u64, to: u64) -> Result<(), UnknownBlock> {
        if let Some(oldest) = self.forked_at().filter(|oldest| from < *oldest) {
            return Err(UnknownBlock::Pruned { number: from, oldest });
        }
        if !self.is_upstreams() {
            let (pruned, first) = (self.pruned(), from.max(self.pruned().start));
            let reaches = pruned.contains(&first) && first <= to;
            return if reaches { Err(UnknownBlock::History { number: first, oldest: pruned.end }) } else { Ok(()) };
        }
        match self.blocks.get_min() {
            Some((oldest, _)) if from < *oldest => Err(UnknownBlock::Pruned { number: from, oldest: *oldest }),
            _ => {
                let bare = self
                    .blocks
                    .range(from..)
                    .take_while(|(number, _)| **number <= to)
                    .find(|(_, block)| block.is_bare());
                bare.map_or(Ok(()), |(number, _)| Err(UnknownBlock::Bare { number: *number }))
            }
        }
    }

    /// Returns the reason why only the header of block `number` is known.
    pub fn no_body(&self, number: u64) -> UnknownBlock {
        match self.is_upstreams() {
            true => UnknownBlock::Bare { number },
            false => UnknownBlock::History { number, oldest: self.oldest_history() },
        }
    }

    /// Returns the sealed block of this number; of a pruned block, its header.
    pub fn sealed_block(&self, number: u64) -> Option<Arc<SealedBlock>> {
        if let Some(block) = self.blocks.get(&number) {
            return Some(block.clone());
        }
        if !self.pruned().contains(&number) {
            return None;
        }
        let header = self.old_headers.get(number).or_else(|| self.archive.as_ref()?.header(number))?;
        Some(Arc::new(SealedBlock::bare(header.seal_slow())))
    }

    /// Prunes the oldest blocks after genesis, a few at once, until they are within the bounds of [`Retention`]. Their
    /// headers stay. An upstream's blocks are not pruned, but [put away](Self::drop_old_block).
    ///
    /// [`Retention`]: super::Retention
    pub(super) fn prune(&mut self) {
        let first_kept = (self.head().number() + 1).saturating_sub(self.kept.history);
        for _ in 0..PRUNED_AT_ONCE {
            let number = self.oldest_history();
            let Some(block) = self.blocks.get(&number).filter(|_| !self.is_upstreams()).cloned() else { return };
            let is_too_much =
                self.body_bytes > self.kept.history_bytes && block.body_bytes() > 0 && number < self.oldest_state();
            if number >= first_kept && !is_too_much {
                return;
            }
            // While the disk cannot be read nothing is pruned, so that all other requests are answered.
            let Some(hashes) = block.transaction_hashes() else { return };
            for hash in hashes {
                self.transactions.remove(&hash);
            }
            self.remove_block(number);
            self.provisional.remove(number..=number);
            if block.is_kept() {
                self.numbers.remove(&block.hash());
            } else {
                self.old_headers.insert(&block.header);
            }
            drop_aside(block);
        }
    }
}
