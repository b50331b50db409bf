//! Canonical blocks: followed from parent to child, and published as they were pre-confirmed or executed.
//!
//! Only this file changes the canonical chain, one block at a time. Long tasks are in [`import`](super::import), and
//! run while the stream continues.

use std::{sync::Arc, time::Duration};

use alloy_primitives::B256;
use futures::FutureExt;
use tokio::time::Instant;

use super::flashblocks::{Action, CanonicalBlock};
use super::{
    catch_up::{CatchUp, WaitingBlock},
    error::LiveError,
    import::{CanonicalNews, ForkPoint, Found, ImportedBlock, NotExecuted, summary_of, summary_of_sealed},
    lookahead::Lookahead,
    state::Live,
};
use crate::{
    chain::{BlockHashes, SealedBlock},
    ledger::{BlockChanges, FeedProblem, FeedState, Record, Selector, Verified},
    upstream::{AnnouncedReceipts, UpstreamBlock},
};

/// The time, as a number of blocks and a minimum, for which an older block must be the upstream's newest before its
/// chain counts as gone back: one of several nodes behind an address may be some blocks behind.
const GONE_BACK: (u32, Duration) = (4, Duration::from_secs(2));

impl Live {
    /// Returns whether canonical blocks are being imported.
    pub(super) fn is_importing(&self) -> bool {
        let CatchUp { task, path, search, .. } = &self.catch_up;
        task.is_some() || !path.is_empty() || search.is_some()
    }

    /// Starts the next steps: imports the next block of the path, and searches for the path to a new head.
    pub(super) fn start_next(&mut self) {
        while self.catch_up.task.is_none()
            && let Some(waiting) = self.catch_up.path.pop_front_if(|first| !first.lookahead.is_fetching())
        {
            let WaitingBlock { block, since, mut lookahead, opened } = waiting;
            if let Some(block) = self.import(block, &mut lookahead) {
                self.catch_up.path.push_front(WaitingBlock { block, since, lookahead, opened });
                break;
            }
        }
        if !self.catch_up.may_search(self.chain.limits.gap) {
            return;
        }
        let Some(since) = self.catch_up.search_due.take() else { return };
        self.catch_up.leaves_path = false;
        match self.heads.newest() {
            Ok(newest) => {
                let name = |waiting: &WaitingBlock| (waiting.block.number(), waiting.block.hash());
                let waiting = self.catch_up.path.iter().map(name).collect();
                let find = self.chain.clone().find(newest, waiting, self.feed.snapshots.clone());
                self.catch_up.search = Some((find.map(CanonicalNews::Found).boxed_local(), since));
            }
            Err(error) => self.on_path(since, Err(error.into())),
        }
    }

    /// Takes the result of a task that ran while the stream continued.
    pub(super) fn on_news(&mut self, news: CanonicalNews) {
        let done = match news {
            CanonicalNews::Found(found) => {
                let since = self.catch_up.search.take().map_or_else(Instant::now, |(_, since)| since);
                return self.on_path(since, found);
            }
            CanonicalNews::Waits => return,
            CanonicalNews::OtherChain(error) => Err(error),
            CanonicalNews::Executed(executed, receipts) => match self.catch_up.path.pop_front() {
                Some(WaitingBlock { block, .. }) => self.finish(block, executed, receipts),
                None => Ok(()),
            },
            CanonicalNews::Restart(block, receipts, skipped) => {
                self.restart(*block, receipts, skipped);
                Ok(())
            }
        };
        self.end_step(done);
    }

    /// Takes the path to the upstream's newest block, which was announced at `since`. While blocks are imported, the
    /// path must continue from the last of them. Otherwise the search is repeated when the imports are done.
    fn on_path(&mut self, since: Instant, found: Result<Found, LiveError>) {
        if let Ok(Found { unknown: Some(unknown), .. }) = &found {
            self.heads.retry_for(*unknown, self.chain.limits.late);
        }
        let last = self.catch_up.path.back().map(|waiting| waiting.block.hash());
        let head = self.feed.snapshots.load().head().hash();
        let done = match (found, last) {
            (Ok(Found { fork: ForkPoint::Waiting(hash), path, .. }), last) if hash == last.unwrap_or(head) => {
                self.catch_up.found_while_importing += if last.is_some() { path.len() } else { 0 };
                self.catch_up.append(path, since);
                Ok(())
            }
            // The path has ended with an error.
            (Ok(Found { fork: ForkPoint::Waiting(_), .. }), None) => return self.catch_up.search_from(since),
            (_, Some(_)) => {
                self.catch_up.leaves_path = true;
                return self.catch_up.search_from(since);
            }
            // The upstream has announced a later block than its newest one.
            (Ok(Found { fork: ForkPoint::Known(_), path, unknown: Some(_) }), None) if path.is_empty() => Ok(()),
            (Ok(Found { fork: ForkPoint::Known(fork), path, .. }), None) => self.begin_path(Some(fork), path, since),
            (Ok(Found { fork: ForkPoint::Unknown, path, .. }), None) => self.begin_path(None, path, since),
            (Err(error), None) => Err(error),
        };
        self.end_step(done);
    }

    /// Ends a step of catching up: an error ends the path.
    fn end_step(&mut self, done: Result<(), LiveError>) {
        if done.is_err() {
            self.catch_up.path.clear();
        }
        if self.catch_up.task.is_none() && self.catch_up.path.len() <= self.catch_up.found_while_importing
            || done.is_err()
        {
            self.catch_up.found_while_importing = 0;
            self.set_health(done);
        }
        self.queue.find_parent();
    }

    /// Sets the feed's health after the upstream's newest block was followed, or could not be.
    fn set_health(&mut self, done: Result<(), LiveError>) {
        let Err(error) = done else {
            (self.problem, self.is_other_chain, self.catch_up.unknown_since) = (None, false, None);
            if self.flashblocks.is_none() && !self.blocks_are_late() {
                self.set(self.live());
            }
            return;
        };
        if matches!(error, LiveError::Unknown(_) | LiveError::NoNewest) {
            let since = *self.catch_up.unknown_since.get_or_insert_with(Instant::now);
            if since.elapsed() < self.chain.limits.late {
                tracing::debug!(%error, "the upstream is asked again");
                return self.heads.retry();
            }
        }
        let text = error.to_string();
        if self.problem.as_ref() != Some(&text) {
            tracing::warn!(error = text, "the upstream's newest block cannot be followed");
        }
        self.problem = Some(text);
        self.is_other_chain = matches!(error, LiveError::OtherChain { .. });
        self.heads.retry();
        if self.flashblocks.is_none() {
            self.set(FeedState::Degraded(error.problem()));
        } else if self.is_other_chain {
            self.fail(error.problem());
        }
    }

    /// Takes the path from a known block, `fork`, to the upstream's newest, and begins to import its blocks.
    fn begin_path(
        &mut self,
        fork: Option<Arc<SealedBlock>>,
        path: Vec<UpstreamBlock>,
        since: Instant,
    ) -> Result<(), LiveError> {
        let head = self.feed.snapshots.load().head().clone();
        match fork {
            Some(fork) if fork.hash() == head.hash() => self.older_since = None,
            // Only a lasting answer means that the chain has gone back.
            Some(_) if path.is_empty() && !self.has_gone_back() => {
                self.heads.retry();
                return Ok(());
            }
            Some(fork) if fork.number() < head.number() => {
                self.older_since = None;
                self.reorgs.increment(1);
                tracing::warn!(from = head.number(), to = fork.number(), "the upstream took another branch");
                // No request is answered from the abandoned branch while the other one is imported.
                let is_back = self.go_back(fork.number(), FeedProblem::Reorg);
                if !is_back && !path.is_empty() {
                    self.begin_restart(path);
                    return Ok(());
                }
                self.queue.0.clear();
                if path.is_empty() {
                    let actions = self.reconcile(&summary_of_sealed(&fork));
                    self.apply_actions(actions, Instant::now());
                }
            }
            Some(_) => {}
            None => {
                tracing::warn!(from = head.number(), "too far behind the upstream: skipping blocks");
                if !path.is_empty() {
                    self.begin_restart(path);
                }
                return Ok(());
            }
        }
        self.catch_up.append(path, since);
        Ok(())
    }

    /// Returns whether an older block has been the upstream's newest for so long that the chain counts as gone back.
    fn has_gone_back(&mut self) -> bool {
        let (blocks, least) = GONE_BACK;
        let since = *self.older_since.get_or_insert_with(Instant::now);
        since.elapsed() >= (blocks * self.block_time).max(least)
    }

    /// Imports the next canonical block as it was pre-confirmed, or begins to execute it. Returns the block if its
    /// execution has begun, or if it waits until its sub-blocks are applied.
    fn import(&mut self, block: UpstreamBlock, lookahead: &mut Lookahead) -> Option<UpstreamBlock> {
        let number = block.number();
        let parent = self.feed.snapshots.load().select(Selector::Hash(block.header.parent_hash)).ok();
        let Some(parent) = parent.filter(|parent| parent.open.is_none()) else {
            self.end_step(Err(LiveError::Gone(number)));
            return None;
        };
        let summary = summary_of(&block);
        let confirmed = self.flashblocks.as_ref().is_some_and(|source| source.rules.confirms(&summary));
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
            // The rules consider the block equal to the pre-confirmed one, so the blocks that they keep are built on a
            // different state.
            self.fail(FeedProblem::Mismatch);
        }
        let actions = self.reconcile(&summary);
        // Sub-blocks that were held until now wait in the queue until the block is published.
        self.apply_actions(actions, Instant::now());
        if let Some(done) = retired {
            let done = self.finish(block, Ok(done), AnnouncedReceipts::Never);
            self.end_step(done);
            return None;
        }
        // Nothing is built on the pre-confirmed blocks until something else is published.
        self.superseded = Some(self.feed.snapshots.newest().state);
        let (time, waits) = (self.time_for_next(), self.catch_up.waits.clone());
        let executing = self.chain.clone().import(block.clone(), parent, lookahead.take_predicted(), time, waits);
        self.catch_up.task = Some(executing.boxed_local());
        Some(block)
    }

    /// Returns the time limit for executing the next block. It shrinks as the lag approaches the bound beyond which
    /// blocks are skipped.
    fn time_for_next(&self) -> Duration {
        let limits = &self.chain.limits;
        let most = u32::try_from(limits.gap).unwrap_or(u32::MAX);
        let left = self.block_time * most.saturating_sub(self.catch_up.waiting());
        if limits.execute.is_zero() { limits.execute } else { limits.execute.min(left.max(self.block_time)) }
    }

    /// Publishes a canonical block: with its pre-confirmed or executed state, or, if there is none, with an unknown
    /// state.
    fn finish(
        &mut self,
        block: UpstreamBlock,
        done: Result<ImportedBlock, NotExecuted>,
        receipts: AnnouncedReceipts,
    ) -> Result<(), LiveError> {
        let (began, number, hash) = (Instant::now(), block.number(), block.hash());
        let parent = self.feed.snapshots.load().select(Selector::Hash(block.header.parent_hash));
        let parent = parent.map_err(|_| LiveError::Gone(number))?;
        let (changes, receipts, verified) = match done {
            Ok(ImportedBlock { changes, receipts }) => {
                let is_listed = matches!(changes, BlockChanges::Listed(_));
                if is_listed { &self.listed } else { &self.executed }.increment(1);
                let verified = if is_listed { Verified::List } else { Verified::Full };
                (changes, AnnouncedReceipts::Whole(receipts), verified)
            }
            Err(NotExecuted { error, touched }) => {
                let mismatch = matches!(error, LiveError::Mismatch { .. });
                if matches!(error, LiveError::Panicked | LiveError::Block(_) | LiveError::Transaction { .. }) {
                    self.diverged(number, None, &error);
                }
                if mismatch && block.header.block_access_list_hash.is_some() && self.chain.fetcher.has_lists() {
                    self.chain.fetcher.distrust_lists();
                    self.diverged(number, None, &error);
                }
                if mismatch { &self.mismatched } else { &self.skipped }.increment(1);
                tracing::warn!(number, %hash, %error, "a block cannot be executed: its state is fetched again");
                let changes = touched.map_or(BlockChanges::Unknown, |touched| BlockChanges::Touched(touched.into()));
                (changes, receipts, Verified::None)
            }
        };
        self.block_time = self.chain.spec.prescribed_block_time(block.header.timestamp).unwrap_or_else(|| {
            let seconds = block.header.timestamp.saturating_sub(parent.head.header.timestamp);
            Duration::from_secs(seconds.clamp(1, 3600))
        });
        let is_refused = receipts.is_refused();
        let block = block.into_sealed(receipts);
        let published = self.feed.publish(Record::Canonical { block, changes, verified });
        let id = published.map_err(|_| LiveError::Gone(number))?;
        if self.feed.snapshots.newest().id == id {
            self.feed.count(began.into_std());
        }
        self.expect_content(number, hash, is_refused);
        Ok(())
    }

    /// Returns the actions that a canonical block requires.
    fn reconcile(&mut self, block: &CanonicalBlock) -> Vec<Action> {
        self.flashblocks.as_mut().map(|source| source.rules.canonical(block)).unwrap_or_default()
    }

    /// Returns the results of a block as it was pre-confirmed, if it became canonical unchanged.
    fn retire(&self, block: &UpstreamBlock) -> Option<ImportedBlock> {
        let own = self.preconfirmed(block.number())?;
        let (receipts, totals) = own.outcome();
        // The same gas and receipts are not enough: a transfer of another value has them too.
        let is_same = own.environment_difference(&block.header).is_none()
            && own.canonical_hashes() == block.transaction_hashes()
            && totals.check(block).is_ok();
        is_same.then_some(ImportedBlock { changes: BlockChanges::AsPreconfirmed, receipts })
    }

    /// Starts again at the first block of a path, which is ordered newest first. The blocks between the head and that
    /// block are skipped.
    fn begin_restart(&mut self, mut path: Vec<UpstreamBlock>) {
        let (chain, head) = (self.chain.clone(), self.feed.snapshots.load().head().clone());
        let block = path.remove(0);
        let asked = async move {
            let (receipts, skipped) = futures::join!(chain.receipts(&block), chain.clone().skipped(&head, path));
            CanonicalNews::Restart(Box::new(block), receipts, skipped)
        };
        self.catch_up.task = Some(asked.boxed_local());
    }

    /// Publishes the blocks between the head and the block at which the state starts again. Their logs are delivered
    /// when the upstream has sent them. Returns whether they lead from the head to `parent`.
    fn skip(&mut self, skipped: Vec<SealedBlock>, parent: B256) -> bool {
        let head = self.feed.snapshots.load().head().hash();
        let leads = skipped.first().is_some_and(|first| first.header.parent_hash == head);
        if !leads || skipped.last().is_none_or(|last| last.hash() != parent) {
            return false;
        }
        for block in skipped {
            let (number, hash) = (block.number(), block.hash());
            let record = Record::Canonical { block, changes: BlockChanges::Unknown, verified: Verified::None };
            if self.feed.publish(record).is_err() {
                return false;
            }
            self.skipped.increment(1);
            if self.feed.snapshots.load().is_late(number, hash) {
                self.late.push(number, hash);
            }
        }
        true
    }

    /// Starts again at a block. If `skipped` do not lead there from the head, its ancestors are unknown.
    fn restart(&mut self, block: UpstreamBlock, receipts: AnnouncedReceipts, skipped: Vec<SealedBlock>) {
        let (from, to) = (self.feed.snapshots.load().head().number() + 1, block.number().saturating_sub(1));
        let (number, hash, is_refused) = (block.number(), block.hash(), receipts.is_refused());
        let actions = self.reconcile(&summary_of(&block));
        let hashes = BlockHashes::of(&block.header);
        self.queue.0.clear();
        let leads = self.skip(skipped, block.header.parent_hash);
        let block = block.into_sealed(receipts);
        if leads {
            self.feed.publish_or_log(Record::Canonical {
                block,
                changes: BlockChanges::Unknown,
                verified: Verified::None,
            });
        } else {
            if from <= to {
                tracing::warn!(from, to, "the logs of skipped blocks are not delivered");
            }
            self.feed.publish_or_log(Record::Restart { block, hashes, verified: Verified::None });
        }
        self.expect_content(number, hash, is_refused);
        self.apply_actions(actions, Instant::now());
    }
}
