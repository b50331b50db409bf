//! Canonical blocks that were published as headers alone, because the upstream did not give their receipts when it announced
//! them: one of several nodes behind an address may be a block behind. The upstream is asked for the content of each again,
//! until the block is final or no longer canonical.

use std::{collections::VecDeque, time::Duration};

use alloy_primitives::B256;
use futures::{
    FutureExt,
    future::{LocalBoxFuture, join_all},
};
use tokio::time::Instant;

use super::parts::LiveChain;
use crate::{chain::SealedBlock, ledger::Chain, upstream::AnnouncedReceipts};

/// The pause before the upstream is asked for a block's content for the second time. It doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause before the upstream is asked for a block's content again.
const MAX_PAUSE: Duration = Duration::from_secs(8);
/// Maximum blocks whose contents are requested at once.
const MAX_ASKED_AT_ONCE: usize = 8;

/// The blocks whose content is awaited, and the requests for it.
#[derive(Default)]
pub(super) struct LateContents {
    /// Oldest first.
    waiting: VecDeque<LateContent>,
    /// The questions under way.
    asked: Option<LocalBoxFuture<'static, Vec<Option<SealedBlock>>>>,
}

/// A block whose content is awaited.
#[derive(Clone, Copy)]
struct LateContent {
    number: u64,
    hash: B256,
    /// The pause before the next question after this one.
    pause: Duration,
    /// The time of the next question.
    due: Instant,
}

impl LateContents {
    /// Adds a block.
    pub fn push(&mut self, number: u64, hash: B256) {
        let due = Instant::now() + FIRST_PAUSE;
        self.waiting.push_back(LateContent { number, hash, pause: 2 * FIRST_PAUSE, due });
    }

    /// Returns the time of the next question.
    pub fn due(&self) -> Option<Instant> {
        let next = self.waiting.iter().map(|late| late.due).min();
        next.filter(|_| self.asked.is_none())
    }

    /// Waits for the answers, and returns the blocks that the upstream has given with their content.
    pub async fn announced(&mut self) -> Vec<SealedBlock> {
        let Some(asked) = &mut self.asked else { return std::future::pending().await };
        let contents = asked.await;
        self.asked = None;
        contents.into_iter().flatten().collect()
    }

    /// Requests the contents that are due, and forgets the blocks whose content is known or no longer needed.
    pub fn ask(&mut self, published: &Chain, chain: &LiveChain) {
        self.waiting.retain(|late| published.is_late(late.number, late.hash));
        if self.asked.is_some() {
            return;
        }
        let now = Instant::now();
        let mut asked = Vec::new();
        for late in self.waiting.iter_mut().filter(|late| late.due <= now).take(MAX_ASKED_AT_ONCE) {
            late.due = now + late.pause;
            late.pause = (2 * late.pause).min(MAX_PAUSE);
            asked.push(chain.clone().content(late.hash));
        }
        if !asked.is_empty() {
            self.asked = Some(join_all(asked).boxed_local());
        }
    }

    /// Removes the block with this hash. Returns whether its content was awaited.
    pub fn remove(&mut self, hash: B256) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|late| late.hash != hash);
        self.waiting.len() < before
    }
}

impl LiveChain {
    /// Asks the upstream for the content of a block, and returns the block with it; `None` if the upstream does not give it.
    async fn content(self, hash: B256) -> Option<SealedBlock> {
        let deadline = Instant::now() + self.limits.wait;
        let (family, verify) = (self.spec.family(), self.limits.verify);
        let (block, receipts) = AnnouncedReceipts::ask_with_block(&self.upstream, hash, family, verify, deadline).await;
        let is_there = matches!(receipts, AnnouncedReceipts::Whole(_) | AnnouncedReceipts::Logs(_));
        block.filter(|_| is_there).map(|block| block.into_sealed(receipts))
    }
}
