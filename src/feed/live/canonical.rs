//! Canonical blocks: followed from parent to child, and published as they were pre-confirmed or executed.
//!
//! Only this file changes the canonical chain, one block at a time. What takes time is done by [`import`](super::import),
//! beside the stream.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures::{FutureExt, future::LocalBoxFuture};
use tokio::time::Instant;

use super::{
    Live, LiveError,
    import::{CanonicalNews, Found, ImportedBlock, about, canonical_snapshot},
};
use crate::{
    chain::{BlockHashes, ChainReceipt},
    feed::{
        flashblocks::{Action, CanonicalBlock},
        upstream::UpstreamBlock,
    },
    state::{FeedProblem, FeedState, Publication, Selector, Snapshot, Verified},
};

/// The number of times an older block has to be the upstream's newest before its chain counts as gone back.
const LOOKS: u32 = 8;

/// The canonical blocks that are being imported.
#[derive(Default)]
pub(super) struct CatchUp {
    /// The blocks to import, each the parent of the next.
    path: VecDeque<UpstreamBlock>,
    /// The time since which the first of them waits for its sub-blocks to be applied.
    waits_since: Option<Instant>,
    /// The task for the first of them, or to find the path.
    task: Option<LocalBoxFuture<'static, CanonicalNews>>,
    /// The time since which the upstream's newest block is to be looked at again.
    due_since: Option<Instant>,
    /// The time at which the newest block that is imported, or looked for, was announced.
    looked_since: Option<Instant>,
}

impl CatchUp {
    /// Waits for the result of the task.
    pub async fn news(&mut self) -> CanonicalNews {
        let Some(task) = &mut self.task else { return std::future::pending().await };
        let news = task.await;
        self.task = None;
        news
    }

    /// Notes that the upstream's newest block is to be looked at.
    pub fn look(&mut self) {
        self.due_since.get_or_insert_with(Instant::now);
    }

    /// Returns the time since which a newer block than the published one is announced.
    pub fn since(&self) -> Option<Instant> {
        self.looked_since.or(self.due_since)
    }

    /// Returns the number of blocks that are known to wait.
    pub fn waiting(&self) -> u32 {
        u32::try_from(self.path.len()).unwrap_or(u32::MAX)
    }

    /// Returns the time at which a block no longer waits for its sub-blocks.
    pub fn deadline(&self, execute: Duration) -> Option<Instant> {
        self.waits_since.map(|since| since + execute)
    }
}

impl Live {
    /// Returns whether canonical blocks are being imported.
    pub(super) fn is_importing(&self) -> bool {
        self.catch_up.task.is_some() || !self.catch_up.path.is_empty()
    }

    /// Begins what is to be done next: imports the next block of the path, or looks for a path to a new head.
    pub(super) fn go_on(&mut self) {
        while self.catch_up.task.is_none() {
            match self.catch_up.path.pop_front() {
                Some(block) => {
                    if let Some(block) = self.import(block) {
                        self.catch_up.path.push_front(block);
                        return;
                    }
                }
                None if self.catch_up.due_since.is_some() => {
                    self.catch_up.looked_since = self.catch_up.due_since.take();
                    match self.heads.newest() {
                        Ok(newest) => {
                            let find = self.chain.clone().find(newest, self.feed.snapshots.clone());
                            self.catch_up.task = Some(find.map(CanonicalNews::Found).boxed_local());
                        }
                        Err(error) => self.followed(Err(error.into())),
                    }
                }
                None => return,
            }
        }
    }

    /// Takes the result of what was done beside the stream.
    pub(super) fn take(&mut self, news: CanonicalNews) {
        let done = match news {
            CanonicalNews::Found(found) => found.and_then(|found| self.found(found)),
            CanonicalNews::Executed(executed, receipts) => match self.catch_up.path.pop_front() {
                Some(block) => self.imported(block, executed, receipts),
                None => Ok(()),
            },
            CanonicalNews::BeginAnew(block, receipts) => {
                self.begin_anew(*block, receipts);
                Ok(())
            }
        };
        self.step(done);
    }

    /// Ends a step of catching up: an error ends the path.
    fn step(&mut self, done: Result<(), LiveError>) {
        if done.is_err() {
            self.catch_up.path.clear();
        }
        if done.is_err() || !self.is_importing() {
            self.followed(done);
        }
        self.queue.look_for_parent();
    }

    /// Sets the feed's health after the upstream's newest block was followed, or could not be.
    fn followed(&mut self, done: Result<(), LiveError>) {
        self.catch_up.looked_since = None;
        let Err(error) = done else {
            (self.problem, self.is_other_chain) = (None, false);
            if self.flashblocks.is_none() && !self.blocks_are_late() {
                self.set(self.live());
            }
            return;
        };
        let text = error.to_string();
        if self.problem.as_ref() != Some(&text) {
            tracing::warn!(error = text, "the upstream's newest block cannot be followed");
        }
        self.problem = Some(text);
        self.is_other_chain = matches!(error, LiveError::OtherChain { .. });
        self.heads.again();
        if self.flashblocks.is_none() {
            self.set(FeedState::Degraded(error.problem()));
        } else if self.is_other_chain {
            self.fail(error.problem());
        }
    }

    /// Takes the way to the upstream's newest block, and begins to import its blocks.
    fn found(&mut self, found: Found) -> Result<(), LiveError> {
        let Found { fork, mut path } = found;
        let head = self.feed.snapshots.load().head().clone();
        match fork {
            Some(fork) if fork.hash() == head.hash() => self.looks = 0,
            // One of several nodes behind an address may be late. Only a lasting answer means that the chain went back.
            Some(_) if path.is_empty() && self.looks < LOOKS => {
                self.looks += 1;
                self.heads.again();
                return Ok(());
            }
            Some(fork) if fork.number() < head.number() => {
                self.looks = 0;
                self.reorgs.increment(1);
                tracing::warn!(from = head.number(), to = fork.number(), "the upstream took another branch");
                if self.chain.remote.revert_to(fork.number(), fork.hash()).is_none() && !path.is_empty() {
                    self.anew(path.swap_remove(0));
                    return Ok(());
                }
                // Nothing is answered from the dead branch while the other one is imported.
                self.let_go();
                self.queue.clear();
                let feed = FeedState::Degraded(FeedProblem::Reorg);
                self.feed.apply(Publication::GoBack { number: fork.number(), feed });
                self.set(FeedState::Degraded(FeedProblem::Reorg));
                if path.is_empty() {
                    let actions = self.judge(&about(&fork.header, fork.transaction_hashes().unwrap_or_default()));
                    self.act(actions, Instant::now());
                }
            }
            Some(_) => {}
            None => {
                tracing::warn!(from = head.number(), "too far behind the upstream: the blocks between are skipped");
                if !path.is_empty() {
                    self.anew(path.swap_remove(0));
                }
                return Ok(());
            }
        }
        self.catch_up.path = path.into_iter().rev().collect();
        Ok(())
    }

    /// Imports the next canonical block as it was pre-confirmed, or begins to execute it. Returns the block if that has
    /// begun, or if it has to wait until its sub-blocks are applied.
    fn import(&mut self, block: UpstreamBlock) -> Option<UpstreamBlock> {
        let number = block.number();
        let parent = self.feed.snapshots.load().select(Selector::Hash(block.header.parent_hash)).ok();
        let Some(parent) = parent.filter(|parent| parent.open.is_none()) else {
            self.step(Err(LiveError::Gone(number)));
            return None;
        };
        let about = about(&block.header, block.transaction_hashes());
        let confirmed = self.flashblocks.as_ref().is_some_and(|source| source.rules.confirms(&about));
        let is_applied = !self.queue.has(number);
        if confirmed && !is_applied {
            // The rest of its sub-blocks costs less than the whole block.
            let since = *self.catch_up.waits_since.get_or_insert_with(Instant::now);
            if since.elapsed() < self.chain.limits.execute {
                return Some(block);
            }
        }
        self.catch_up.waits_since = None;
        // Taken before the rules drop the block.
        let retired = if confirmed && is_applied { self.retire(&block) } else { None };
        if is_applied && retired.is_none() {
            self.note_difference(&block, confirmed);
        }
        if confirmed && is_applied && retired.is_none() {
            // The rules take the block for the pre-confirmed one, so the blocks that they keep are built on a different
            // state.
            self.fail(FeedProblem::Mismatch);
        }
        let actions = self.judge(&about);
        // Sub-blocks that were held until now wait in the queue until the block is published.
        self.act(actions, Instant::now());
        if let Some(done) = retired {
            let done = self.finish(block, &parent, Ok(done), None, true);
            self.step(done);
            return None;
        }
        self.let_go();
        let executing = self.chain.clone().import(block.clone(), parent);
        self.catch_up.task = Some(executing.boxed_local());
        Some(block)
    }

    /// Takes a block that was executed, or that could not be.
    fn imported(
        &mut self,
        block: UpstreamBlock,
        done: Result<ImportedBlock, LiveError>,
        receipts: Option<Vec<ChainReceipt>>,
    ) -> Result<(), LiveError> {
        let parent = self.feed.snapshots.load().select(Selector::Hash(block.header.parent_hash));
        let parent = parent.map_err(|_| LiveError::Gone(block.number()))?;
        self.finish(block, &parent, done, receipts, false)
    }

    /// Publishes a canonical block: with the state that it was pre-confirmed or executed with, or, if there is none,
    /// with nothing known of its state.
    fn finish(
        &mut self,
        block: UpstreamBlock,
        parent: &Arc<Snapshot>,
        done: Result<ImportedBlock, LiveError>,
        receipts: Option<Vec<ChainReceipt>>,
        keeps_ahead: bool,
    ) -> Result<(), LiveError> {
        let (began, number, hash) = (Instant::now(), block.number(), block.hash());
        let mut done = match done {
            Ok(done) => {
                self.executed.increment(1);
                Some(done)
            }
            Err(error) => {
                let mismatch = matches!(error, LiveError::Mismatch { .. });
                if mismatch { &self.mismatched } else { &self.skipped }.increment(1);
                tracing::warn!(number, %hash, %error, "a block cannot be executed: its state is fetched anew");
                None
            }
        };
        let remote = &self.chain.remote;
        let (view, receipts) = match &mut done {
            Some(done) => (remote.advance(number, hash, &done.changes), Some(std::mem::take(&mut done.receipts))),
            None => (remote.cut(number, hash), receipts),
        };
        let view = view.ok_or(LiveError::Gone(number))?;
        self.block_time = self.chain.spec.prescribed_block_time(block.header.timestamp).unwrap_or_else(|| {
            let seconds = block.header.timestamp.saturating_sub(parent.head.header.timestamp);
            Duration::from_secs(seconds.clamp(1, 3600))
        });
        let mut hashes = parent.hashes.clone();
        hashes.push(number, hash);
        let mut snapshot = canonical_snapshot(view, block, receipts, hashes);
        snapshot = match done {
            Some(ImportedBlock { pre_confirmed: Some(same), .. }) => snapshot.after(&same, Arc::default()),
            Some(ImportedBlock { changes, .. }) => snapshot.after(parent, Arc::new(changes)),
            None => snapshot.with_verified(Verified::None),
        };
        if !keeps_ahead {
            self.let_go();
        }
        if self.made().next().is_some() {
            self.feed.apply(Publication::Confirm(snapshot));
        } else {
            self.feed.apply(Publication::Canonical(snapshot));
            self.feed.count(began.into_std());
        }
        Ok(())
    }

    /// Returns the actions that a canonical block requires.
    fn judge(&mut self, block: &CanonicalBlock) -> Vec<Action> {
        self.flashblocks.as_mut().map(|source| source.rules.canonical(block)).unwrap_or_default()
    }

    /// Returns the results of a block as it was pre-confirmed, if it became canonical unchanged.
    fn retire(&self, block: &UpstreamBlock) -> Option<ImportedBlock> {
        let ahead = self.made().next().filter(|ahead| ahead.number == block.number())?;
        let newest = self.feed.snapshots.newest();
        let (receipts, totals) = ahead.outcome(&newest);
        // The same gas and receipts are not enough: a transfer of another value has them too.
        let is_same = ahead.environment_difference(&block.header).is_none()
            && ahead.transaction_hashes(&newest) == block.transaction_hashes()
            && totals.check(block).is_ok();
        if !is_same {
            return None;
        }
        let pre_confirmed = match &newest.open {
            Some(open) if open.header.number == block.number() => Some(newest),
            _ => self.feed.snapshots.load().select(Selector::Hash(block.hash())).ok(),
        };
        Some(ImportedBlock { changes: ahead.changes(), receipts, pre_confirmed })
    }

    /// Begins to start again at a block without known ancestors.
    fn anew(&mut self, block: UpstreamBlock) {
        let chain = self.chain.clone();
        let asked = async move {
            let receipts = chain.receipts(&block).await;
            CanonicalNews::BeginAnew(Box::new(block), receipts)
        };
        self.catch_up.task = Some(asked.boxed_local());
    }

    /// Starts again at a block without known ancestors.
    fn begin_anew(&mut self, block: UpstreamBlock, receipts: Option<Vec<ChainReceipt>>) {
        let actions = self.judge(&about(&block.header, block.transaction_hashes()));
        let view = self.chain.remote.restart(block.number(), block.hash());
        let mut hashes = BlockHashes::default();
        if let Some(parent) = block.number().checked_sub(1) {
            hashes.push(parent, block.header.parent_hash);
        }
        hashes.push(block.number(), block.hash());
        self.let_go();
        self.queue.clear();
        let first = canonical_snapshot(view, block, receipts, hashes).with_verified(Verified::None);
        self.feed.apply(Publication::BeginAnew(first));
        self.act(actions, Instant::now());
    }
}
