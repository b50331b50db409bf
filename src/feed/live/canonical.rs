//! Canonical blocks: followed from parent to child, executed on the known state, and checked.
//!
//! Asking the upstream for blocks and executing them happens beside the stream: each is a future that the feed's task polls
//! between sub-blocks. Only this file changes the canonical chain, one block at a time.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use alloy_consensus::{Header, Transaction};
use alloy_primitives::{B256, Sealed};
use futures::{FutureExt, future::LocalBoxFuture};
use tokio::time::Instant;

use super::{Live, LiveChain, LiveError};
use crate::{
    chain::{BlockBody, BlockHashes, ChainReceipt, SealedBlock, receipts_root_and_bloom},
    feed::{
        apply::{close, extend_known, open_block_with, scout, stand_on},
        flashblocks::{Action, CanonicalBlock},
        upstream::{Hints, Upstream, UpstreamBlock, receipts},
    },
    state::{
        AccountChange, FeedLag, FeedProblem, FeedState, MergedChanges, Publication, RemoteView, Selector, Snapshot,
        Snapshots, Verified, World,
    },
};

/// The number of times an older block has to be the upstream's newest before its chain counts as gone back.
const LOOKS: u32 = 8;
/// The number of blocks by which the upstream may be ahead before the published state counts as late.
const BEHIND: usize = 2;
/// The gas after which the execution of a canonical block lets sub-blocks run.
const SLICE: u64 = 10_000_000;

/// The canonical blocks that are being imported.
#[derive(Default)]
pub(super) struct CatchUp {
    /// The blocks to import, each the parent of the next.
    path: VecDeque<UpstreamBlock>,
    /// The time since which the first of them waits for its sub-blocks to be applied.
    waits_since: Option<Instant>,
    /// The task for the first of them, or to find the path.
    task: Option<LocalBoxFuture<'static, CanonicalNews>>,
    /// Whether the upstream's newest block is to be looked at again.
    pub is_due: bool,
}

/// The result of what was done beside the stream.
pub(super) enum CanonicalNews {
    /// The way from a known block to the upstream's newest was looked for.
    Found(Result<Found, LiveError>),
    /// The first block of the path was executed, or the upstream was asked for its receipts.
    Executed(Result<ImportedBlock, LiveError>, Option<Vec<ChainReceipt>>),
    /// The receipts of a block to begin anew at were asked for.
    BeginAnew(Box<UpstreamBlock>, Option<Vec<ChainReceipt>>),
}

/// The way to the upstream's newest block.
pub(super) struct Found {
    /// The newest known block that is an ancestor, or the block itself.
    fork: Option<Arc<SealedBlock>>,
    /// The blocks after it, newest first.
    path: Vec<UpstreamBlock>,
}

/// The results of a canonical block.
pub(super) struct ImportedBlock {
    changes: Vec<AccountChange>,
    receipts: Vec<ChainReceipt>,
    /// The snapshot that has the same state, if the block was pre-confirmed unchanged.
    pre_confirmed: Option<Arc<Snapshot>>,
}

impl CatchUp {
    /// Waits for the result of the task.
    pub async fn news(&mut self) -> CanonicalNews {
        let Some(task) = &mut self.task else { return std::future::pending().await };
        let news = task.await;
        self.task = None;
        news
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
                None if self.catch_up.is_due => {
                    self.catch_up.is_due = false;
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
            CanonicalNews::Found(Ok(found)) => self.found(found),
            CanonicalNews::Found(Err(error)) => Err(error),
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
        let Err(error) = done else {
            (self.problem, self.is_other_chain) = (None, false);
            if self.flashblocks.is_none() {
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
        if path.len() > BEHIND && self.flashblocks.is_none() {
            let waiting = u32::try_from(path.len()).unwrap_or(u32::MAX);
            let since = std::time::Instant::now();
            self.set(FeedState::Lagging(FeedLag {
                since,
                waiting,
                cause: FeedProblem::Lagging,
                every_ms: self.every_ms(),
            }));
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
        let actions = self.judge(&about);
        // Sub-blocks that were held until now wait in the queue until the block is published.
        self.act(actions, Instant::now());
        if let Some(done) = retired {
            let done = self.finish(block, &parent, Ok(done), None, true);
            self.step(done);
            return None;
        }
        if confirmed && is_applied {
            // The rules took the block for the pre-confirmed one, so the blocks that they keep are built on a different
            // state.
            self.fail(FeedProblem::Mismatch);
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
        let (receipts, gas_used) = ahead.outcome(&newest);
        // The same gas and receipts are not enough: a transfer of another value has them too.
        let is_same = ahead.environment_difference(&block.header).is_none()
            && ahead.transaction_hashes(&newest) == block.transaction_hashes()
            && check(block, gas_used, &receipts).is_ok();
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

impl LiveChain {
    /// Walks back from the upstream's newest block to the newest block that is known.
    async fn find(self, newest: B256, snapshots: Arc<Snapshots>) -> Result<Found, LiveError> {
        let canonical = |hash: B256| {
            let published = snapshots.load();
            let known = published.select(Selector::Hash(hash)).ok()?;
            let is_canonical = known.open.is_none() && known.head.number() <= published.head().number();
            is_canonical.then(|| known.head.clone())
        };
        let mut path: Vec<UpstreamBlock> = Vec::new();
        let mut hash = newest;
        let fork = loop {
            let known = canonical(hash);
            let is_next = match (path.len(), &known) {
                (0, Some(known)) => known.hash() == snapshots.load().head().hash(),
                (1, None) => false,
                _ => true,
            };
            if !is_next {
                // A node of another chain may answer at the same address now.
                self.check_chain().await?;
            }
            if let Some(known) = known {
                break Some(known);
            }
            if path.len() == self.limits.gap {
                break None;
            }
            let block = self.block(hash).await?;
            if block.number() <= snapshots.load().oldest_state() {
                path.push(block);
                break None;
            }
            hash = block.header.parent_hash;
            path.push(block);
        };
        Ok(Found { fork, path })
    }

    /// Checks that the upstream is still a node of the chain.
    async fn check_chain(&self) -> Result<(), LiveError> {
        let told = self.fetcher.upstream().chain_id(Instant::now() + self.limits.wait).await?;
        let expected = self.spec.chain_id();
        if told == expected { Ok(()) } else { Err(LiveError::OtherChain { expected, told }) }
    }

    /// Returns the upstream's block of this hash.
    async fn block(&self, hash: B256) -> Result<UpstreamBlock, LiveError> {
        let deadline = Instant::now() + self.limits.wait;
        let json = self.fetcher.upstream().block_by_hash(hash, deadline).await?;
        let block = UpstreamBlock::read(json.ok_or(LiveError::Unknown(hash))?.get(), self.spec.family())?;
        LiveError::unless_equal("hash of the block", block.hash(), hash)?;
        if let Err(error) = block.check(self.spec.family()) {
            if self.limits.verify {
                return Err(error.into());
            }
            tracing::warn!(%error, "the upstream's block is not consistent");
        }
        Ok(block)
    }

    /// Executes a block on its parent, or else asks for its receipts.
    async fn import(self, block: UpstreamBlock, parent: Arc<Snapshot>) -> CanonicalNews {
        let executed = self.execute(&block, &parent).await;
        let receipts = if executed.is_err() { self.receipts(&block).await } else { None };
        CanonicalNews::Executed(executed, receipts)
    }

    /// Executes a block on its parent's state, as far as that is known or can be fetched in time.
    async fn execute(&self, block: &UpstreamBlock, parent: &Snapshot) -> Result<ImportedBlock, LiveError> {
        let (began, time) = (Instant::now(), self.limits.execute);
        if time.is_zero() || block.has_ommers {
            return Err(LiveError::Late(time));
        }
        // Most calls of native contracts are seen before anything is executed.
        let mut called = block.transactions.iter().filter_map(|tx| tx.to());
        if let Some(native) = called.find(|to| self.remote.is_native(to)) {
            return Err(LiveError::Native(native));
        }
        if let Some(foreign) = &block.foreign {
            return Err(LiveError::ForeignType { index: foreign.index, kind: foreign.kind });
        }
        let view = self.remote.view(parent.head.number(), parent.head_hash());
        // The state right after the parent, without the pre-confirmed blocks on it.
        let view = view.ok_or(LiveError::Gone(parent.head.number()))?;
        let on = stand_on(World::on(view), parent.head.clone(), parent.hashes.clone());
        let fetch = async |missed, hints| {
            LiveError::unless_native(&missed)?;
            let fetched = tokio::time::timeout_at(began + time, self.clone().fetch(missed, hints)).await;
            fetched.map_err(|_| LiveError::Late(time))?.map_err(LiveError::from)
        };
        let mut at = loop {
            let opened = open_block_with(&self.spec, &on, block.header.inner().clone())?;
            if opened.missed.is_empty() {
                break opened;
            }
            fetch(opened.missed, Hints::default()).await?;
        };
        let mut changes = MergedChanges::default();
        let mut unknown: Vec<usize> = (0..block.transactions.len()).collect();
        let mut executed = 0;
        let mut is_first = true;
        loop {
            changes.add(&at.changes);
            let Some(open) = &at.snapshot.open else { return Err(LiveError::Gone(block.number())) };
            let rest = &block.transactions[executed..];
            if rest.is_empty() {
                break;
            }
            let stretch = extend_known(&self.spec, &at.snapshot, open, rest, SLICE);
            executed += stretch.executed;
            if let Some(error) = stretch.failed {
                return Err(LiveError::Transaction { index: executed, problem: error.to_string() });
            }
            (at.snapshot, at.changes) = (stretch.snapshot, stretch.changes);
            let mut missed = stretch.missed;
            if missed.is_empty() {
                // Lets sub-blocks run.
                tokio::task::yield_now().await;
                continue;
            }
            unknown.retain(|index| *index >= executed);
            unknown = scout(&self.spec, &at.snapshot, &block.transactions, &unknown, &mut missed);
            let hinted = unknown.iter().filter_map(|index| block.transactions.get(*index));
            let hints = if std::mem::take(&mut is_first) { Hints::of_transactions(hinted) } else { Hints::default() };
            fetch(missed, hints).await?;
        }
        let closed = loop {
            let Some(open) = &at.snapshot.open else { return Err(LiveError::Gone(block.number())) };
            let closed = close(&self.spec, &at.snapshot, open, block.withdrawals.as_ref())?;
            if closed.missed.is_empty() {
                break closed;
            }
            fetch(closed.missed, Hints::default()).await?;
        };
        changes.add(&closed.changes);
        check(block, closed.gas_used, &closed.receipts)?;
        Ok(ImportedBlock { changes: changes.to_vec(), receipts: closed.receipts, pre_confirmed: None })
    }

    /// Returns the receipts of a block that is not executed here, as the upstream has them. `None` for a block whose
    /// transactions are not known: the upstream is asked for both.
    async fn receipts(&self, block: &UpstreamBlock) -> Option<Vec<ChainReceipt>> {
        if block.foreign.is_some() {
            return None;
        }
        told_receipts(self.fetcher.upstream(), block, Instant::now() + self.limits.wait).await
    }
}

/// Returns a canonical block as the rules of a stream want it.
pub(super) fn about(header: &Sealed<Header>, transactions: Vec<B256>) -> CanonicalBlock {
    CanonicalBlock {
        number: header.number,
        hash: header.hash(),
        parent_hash: header.parent_hash,
        receipts_root: header.receipts_root,
        transactions,
    }
}

/// Returns the receipts of a block from the upstream; `None` if it does not have them, or they are not the block's.
pub async fn told_receipts(upstream: &Upstream, block: &UpstreamBlock, deadline: Instant) -> Option<Vec<ChainReceipt>> {
    let problem = match receipts(upstream, block.hash(), deadline).await {
        Ok(receipts) => match check(block, block.header.gas_used, &receipts) {
            Ok(()) => return Some(receipts),
            Err(error) => error,
        },
        Err(error) => error.into(),
    };
    tracing::warn!(number = block.number(), %problem, "the receipts of a block are not available: requests for them go to the upstream");
    None
}

/// Returns the snapshot of a canonical block. Without receipts, only its header is known.
pub fn canonical_snapshot(
    view: RemoteView,
    block: UpstreamBlock,
    receipts: Option<Vec<ChainReceipt>>,
    hashes: BlockHashes,
) -> Snapshot {
    let UpstreamBlock { header, transactions, withdrawals, foreign, .. } = block;
    // A block whose transactions are not all known has no body here.
    let sealed = match receipts.filter(|_| foreign.is_none()) {
        Some(receipts) => {
            SealedBlock::named(header, BlockBody { transactions, receipts, ommers: Vec::new(), withdrawals })
        }
        None => SealedBlock::bare(header),
    };
    stand_on(World::on(view), Arc::new(sealed), hashes)
}

/// Checks gas and receipts against the block's header.
pub(super) fn check(block: &UpstreamBlock, gas_used: u64, receipts: &[ChainReceipt]) -> Result<(), LiveError> {
    let header = &block.header;
    LiveError::unless_equal("gasUsed", gas_used, header.gas_used)?;
    let (root, bloom) = receipts_root_and_bloom(receipts);
    LiveError::unless_equal("receiptsRoot", root, header.receipts_root)?;
    LiveError::unless_equal("logsBloom", bloom, header.logs_bloom)
}
