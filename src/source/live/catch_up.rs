//! The canonical blocks that are still to be published, and the search for the upstream's newest one.

use std::{cell::Cell, collections::VecDeque, rc::Rc, sync::Arc, task::Poll, time::Duration};

use futures::{FutureExt, future::LocalBoxFuture};
use tokio::time::Instant;

use super::{import::CanonicalNews, lookahead::Lookahead, parts::LiveChain};
use crate::{
    engine::BlockRun,
    ledger::Snapshot,
    state::{Missed, World},
    upstream::UpstreamBlock,
};

/// The canonical blocks that are being imported.
#[derive(Default)]
pub(super) struct CatchUp {
    /// The blocks to import, each the parent of the next.
    pub(super) path: VecDeque<WaitingBlock>,
    /// The number of blocks at the end of the path that were found while earlier ones were imported.
    pub(super) found_while_importing: usize,
    /// The time since which the first block waits for its sub-blocks to be applied.
    pub(super) waits_since: Option<Instant>,
    /// The task for the first block, or for starting again.
    pub(super) task: Option<LocalBoxFuture<'static, CanonicalNews>>,
    /// Whether the task waits for state, so that there is time for the blocks behind the first.
    pub(super) waits: Rc<Cell<bool>>,
    /// The last `waits` that [`news`](Self::news) has reported.
    reported_waits: bool,
    /// The time since which a search for the upstream's newest block is due.
    pub(super) search_due: Option<Instant>,
    /// The search for the path to the upstream's newest block, also while blocks before it are executed, and the time at
    /// which the block was announced.
    pub(super) search: Option<(LocalBoxFuture<'static, CanonicalNews>, Instant)>,
    /// Whether the newest block is not a descendant of the path, so that it is searched for at the path's end.
    pub(super) leaves_path: bool,
    /// The time since which the upstream lacks a block that it has announced, or an ancestor of it.
    pub(super) unknown_since: Option<Instant>,
}

/// A canonical block that is to be imported.
pub(super) struct WaitingBlock {
    pub(super) block: UpstreamBlock,
    /// The time at which the upstream announced this block, or a later one.
    pub(super) since: Instant,
    /// The state that it will read.
    pub(super) lookahead: Lookahead,
    /// The block after its opening system calls, on the state of the round of prefetching.
    pub(super) opened: Option<Arc<Snapshot>>,
}

impl WaitingBlock {
    /// Creates a block that was announced at `since`.
    pub fn new(block: UpstreamBlock, since: Instant) -> Self {
        Self { block, since, lookahead: Lookahead::default(), opened: None }
    }

    /// Runs a part of it on an older state, the newest available, and fetches the state that it lacks.
    fn prefetch(&mut self, chain: &LiveChain, on: &Snapshot) {
        if self.lookahead.is_new() && chain.applies_list(&self.block) {
            return self.lookahead.list(chain, self.block.clone());
        }
        let missed = match &self.opened {
            Some(_) => Missed::default(),
            None => self.open(chain, on),
        };
        let Some(opened) = &self.opened else { return self.lookahead.end() };
        if self.lookahead.is_new() && chain.fetcher.traces_blocks() && !self.block.transactions.is_empty() {
            self.opened = None;
            return self.lookahead.trace(chain, self.block.hash(), missed);
        }
        self.lookahead.prefetch(chain, opened, &self.block.transactions, 0, missed);
        if !self.lookahead.wants_prefetch() {
            // The next round is on the newest state then.
            self.opened = None;
        }
    }

    /// Opens the block, if presim can execute it. Returns the state that its system calls and its withdrawals have
    /// missed.
    fn open(&mut self, chain: &LiveChain, on: &Snapshot) -> Missed {
        let (block, spec) = (&self.block, &chain.spec);
        let Some(view) = on.world.remote().filter(|_| block.foreign.is_none()).cloned() else {
            return Missed::default();
        };
        let on = Snapshot::at_head(World::on(view), on.head.clone(), on.hashes.clone());
        let Ok((run, mut missed)) = BlockRun::begin(spec, &on, block.header.inner().clone()) else {
            return Missed::default();
        };
        if self.lookahead.is_new() {
            run.read_at_end(spec, block.withdrawals.as_ref(), &mut missed);
        }
        self.opened = Some(run.at().clone());
        missed.state()
    }
}

impl CatchUp {
    /// Waits for the result of the task or of the search, or until there is something to do for the blocks that wait.
    pub async fn news(&mut self) -> CanonicalNews {
        std::future::poll_fn(|context| {
            if let Some(task) = &mut self.task {
                if let Poll::Ready(news) = task.poll_unpin(context) {
                    self.task = None;
                    self.waits.set(false);
                    return Poll::Ready(news);
                }
                if std::mem::replace(&mut self.reported_waits, self.waits.get()) != self.waits.get() {
                    return Poll::Ready(CanonicalNews::Waits);
                }
            }
            if let Some((search, _)) = &mut self.search
                && let Poll::Ready(news) = search.poll_unpin(context)
            {
                return Poll::Ready(news);
            }
            for waiting in &mut self.path {
                if let Poll::Ready(fetched) = waiting.lookahead.poll(context) {
                    if let Err(error) = fetched {
                        tracing::debug!(%error, "the state for a block could not be fetched in advance");
                        waiting.lookahead.end();
                    }
                    return Poll::Ready(CanonicalNews::Waits);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Returns whether there is time to prefetch the state that the next blocks will read, and one of the `most`
    /// blocks after the first lacks some.
    pub fn can_prefetch(&mut self, most: usize) -> bool {
        self.next_to_prefetch(most).is_some()
    }

    /// Fetches state that one of the `most` blocks after the first will read. `on` is the newest canonical state.
    pub fn prefetch(&mut self, most: usize, chain: &LiveChain, on: &Snapshot) {
        if let Some(waiting) = self.next_to_prefetch(most) {
            waiting.prefetch(chain, on);
            waiting.lookahead.wait_at_most(chain.limits.execute);
        }
    }

    fn next_to_prefetch(&mut self, most: usize) -> Option<&mut WaitingBlock> {
        let is_idle = match self.task {
            Some(_) => self.waits.get(),
            None => self.path.front().is_some_and(|first| first.lookahead.is_fetching()),
        };
        let mut behind = self.path.iter_mut().skip(1).take(most).filter(|_| is_idle);
        behind.find(|waiting| waiting.lookahead.wants_prefetch())
    }

    /// Schedules a search for the upstream's newest block.
    pub fn search(&mut self) {
        self.search_from(Instant::now());
    }

    /// Schedules a search for the path to the upstream's newest block, which was announced at `since`.
    pub fn search_from(&mut self, since: Instant) {
        self.search_due.get_or_insert(since);
    }

    /// Appends blocks, newest first, the newest of which was announced at `since`.
    pub fn append(&mut self, path: Vec<UpstreamBlock>, since: Instant) {
        self.path.extend(path.into_iter().rev().map(|block| WaitingBlock::new(block, since)));
    }

    /// Returns the time since which a newer block than the published one is announced.
    pub fn since(&self) -> Option<Instant> {
        let first = self.path.front().map(|waiting| waiting.since);
        let announced = first.or_else(|| self.search.as_ref().map(|(_, since)| *since)).or(self.search_due);
        announced.into_iter().chain(self.unknown_since).min()
    }

    /// Returns the number of blocks that are known to wait.
    pub fn waiting(&self) -> u32 {
        u32::try_from(self.path.len()).unwrap_or(u32::MAX)
    }

    /// Returns whether to search for the upstream's newest block now: at most `gap` blocks wait to be imported.
    pub fn may_search(&self, gap: usize) -> bool {
        let is_free = match self.path.len() {
            0 => self.task.is_none(),
            waiting => waiting < gap && !self.leaves_path,
        };
        is_free && self.search.is_none() && self.search_due.is_some()
    }

    /// Returns the time at which a block no longer waits for its sub-blocks.
    pub fn deadline(&self, execute: Duration) -> Option<Instant> {
        self.waits_since.map(|since| since + execute)
    }
}
