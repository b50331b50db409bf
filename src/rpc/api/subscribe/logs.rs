//! The order in which the logs of canonical blocks are announced: block by block. If the upstream has not reported a
//! block's receipts yet, the logs of later blocks wait for them, within bounds. Past the bounds, the logs of the late
//! block are announced when they arrive.

use std::{collections::VecDeque, time::Instant};

use alloy_primitives::B256;

use super::round::{AnnouncedLogs, Round};
use crate::{
    chain::SealedBlock,
    ledger::{Block, BlockLogs, Chain, LateBounds},
};

/// The logs of the canonical blocks that were announced.
pub struct LogsOfBlocks {
    bounds: LateBounds,
    /// The blocks whose logs are to be announced, oldest first. The first one is late.
    waiting: VecDeque<WaitingLogs>,
    /// The bytes of the logs in `waiting` that are known.
    bytes: usize,
    /// The late blocks that no other block waits for any more.
    late: Vec<WaitingLogs>,
    /// The blocks whose logs were announced, oldest first, while a reorg can still remove them.
    announced: VecDeque<(u64, B256, AnnouncedLogs)>,
}

/// A block whose logs are to be announced.
struct WaitingLogs {
    number: u64,
    hash: B256,
    since: Instant,
    bytes: usize,
    /// The number of the first transactions that were announced before the block; `None` if its content was known then.
    known: Option<usize>,
}

impl LogsOfBlocks {
    /// Begins after the canonical head of `published`.
    pub fn after(published: &Chain, bounds: LateBounds) -> Self {
        let head = published.head();
        let whole = Block::sealed(head).map(|whole| (head.number(), head.hash(), AnnouncedLogs::Whole(whole)));
        let announced = whole.into_iter().collect();
        Self { bounds, waiting: VecDeque::new(), bytes: 0, late: Vec::new(), announced }
    }

    /// Adds the next canonical block. Its first `known` transactions were announced before.
    pub fn push(&mut self, block: &SealedBlock, known: usize) {
        let (number, hash, bytes) = (block.number(), block.hash(), block.log_bytes());
        self.bytes += bytes;
        let known = block.is_bare().then_some(known);
        self.waiting.push_back(WaitingLogs { number, hash, since: Instant::now(), bytes, known });
    }

    /// Returns the time at which the logs of later blocks wait no longer.
    pub fn due(&self) -> Option<Instant> {
        self.waiting.front().map(|first| first.since + self.bounds.wait)
    }

    /// Announces everything that can be announced now.
    pub fn catch_up(&mut self, published: &Chain, round: &mut Round<'_>) {
        for late in std::mem::take(&mut self.late) {
            if !self.announce(&late, published, round) {
                self.late.push(late);
            }
        }
        while let Some(first) = self.waiting.pop_front() {
            let is_told = self.announce(&first, published, round);
            let may_wait = first.since.elapsed() < self.bounds.wait && self.bytes - first.bytes <= self.bounds.bytes;
            if !is_told && may_wait {
                return self.waiting.push_front(first);
            }
            self.bytes -= first.bytes;
            if !is_told {
                tracing::warn!(
                    number = first.number,
                    "the logs of later blocks are announced before those of this block"
                );
                self.late.push(first);
            }
        }
    }

    /// Announces the logs of a block. Returns false if they are late.
    fn announce(&mut self, block: &WaitingLogs, published: &Chain, round: &mut Round<'_>) -> bool {
        let logs = match published.logs_of(block.number, block.hash) {
            BlockLogs::Whole(whole) => AnnouncedLogs::Whole(whole),
            BlockLogs::Alone(alone) => AnnouncedLogs::Alone(alone),
            BlockLogs::Late { .. } => return false,
            BlockLogs::Unknown => return true,
        };
        round.logs_of(&logs, false);
        if let (AnnouncedLogs::Whole(whole), Some(known)) = (&logs, block.known) {
            round.transactions_of(whole, known);
        }
        self.announced.push_back((block.number, block.hash, logs));
        true
    }

    /// Announces the logs of a block that is no longer canonical as removed, if they were announced.
    pub fn take_back(&mut self, hash: B256, round: &mut Round<'_>) {
        self.late.retain(|late| late.hash != hash);
        self.waiting.retain(|waiting| waiting.hash != hash);
        self.bytes = self.waiting.iter().map(|waiting| waiting.bytes).sum();
        if let Some(at) = self.announced.iter().rposition(|(_, known, _)| *known == hash)
            && let Some((.., logs)) = self.announced.remove(at)
        {
            round.logs_of(&logs, true);
        }
    }

    /// Forgets the blocks before `number`, which no reorg can remove.
    pub fn forget_before(&mut self, number: u64) {
        while self.announced.pop_front_if(|(known, ..)| *known < number).is_some() {}
    }
}
