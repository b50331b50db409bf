//! A live chain: an upstream's canonical blocks, and the sub-blocks of the blocks after them.
//!
//! `canonical` imports the upstream's blocks, `ahead` applies the sub-blocks of Flashblocks, and `queue` holds those that
//! wait for their turn or for state. All write the same snapshots, so one task does it, in `Live::run`: it waits for nothing
//! but the next event, so that a slow upstream delays neither sub-blocks nor canonical blocks that do not need it.

mod ahead;
mod canonical;
mod difference;
mod queue;

pub use self::ahead::PreConfirmed;
pub use self::canonical::{canonical_snapshot, told_receipts};

use std::{sync::Arc, time::Duration};

use alloy_evm::block::BlockExecutionError;
use alloy_primitives::{Address, B256};
use futures::{FutureExt, future::LocalBoxFuture};
use tokio::time::Instant;

use self::{canonical::CatchUp, queue::SubBlockQueue};
use super::{
    Feed, FeedSource,
    flashblocks::{Event, Events, FlashblockSequence, Replaced, UnreadTx},
    upstream::{BlockError, FetchError, Fetcher, Heads, Hints, UpstreamError},
};
use crate::{
    chain::ChainSpec,
    state::{FeedLag, FeedProblem, FeedState, Missed, Publication, RemoteState},
    telemetry::{Counter, Metrics},
};

/// The parts and the settings with which a live chain is followed.
#[derive(Debug)]
pub struct LiveSource {
    /// The chain.
    pub spec: ChainSpec,
    /// Fetches state from the upstream.
    pub fetcher: Arc<Fetcher>,
    /// The cache of the upstream's state.
    pub remote: Arc<RemoteState>,
    /// The upstream's newest block, as it changes.
    pub heads: Heads,
    /// The stream of sub-blocks, if there is one.
    pub flashblocks: Option<FlashblockSource>,
    /// Bounds.
    pub limits: LiveLimits,
}

/// A stream of sub-blocks, and its rules.
#[derive(Debug)]
pub struct FlashblockSource {
    /// The stream.
    pub events: Events,
    /// The state machine of the sub-blocks.
    pub rules: FlashblockSequence<PreConfirmed>,
}

/// Bounds of a live chain.
#[derive(Clone, Copy, Debug)]
pub struct LiveLimits {
    /// The time-out for the upstream to return a block, or the state for a sub-block.
    pub wait: Duration,
    /// The time for executing a canonical block, fetching included.
    pub execute: Duration,
    /// The time between the sub-blocks of a stream, past which a sub-block counts as late.
    pub sub_block: Duration,
    /// The time without sub-blocks after which a stream counts as broken.
    pub silent: Duration,
    /// The lag past which `pending` is the canonical head; `None` if it may lag as long as it does.
    pub max_lag: Option<Duration>,
    /// The most bytes of sub-blocks that wait to be applied.
    pub held: usize,
    /// Whether blocks whose headers do not have their hashes are refused.
    pub verify: bool,
    /// The number of blocks to catch up with one by one. A greater gap is skipped.
    pub gap: usize,
}

/// The parts of a live chain that work beside the feed's task needs.
#[derive(Clone, Debug)]
struct LiveChain {
    spec: Arc<ChainSpec>,
    fetcher: Arc<Fetcher>,
    remote: Arc<RemoteState>,
    limits: LiveLimits,
}

/// The follower of a live chain, and the only writer of its snapshots.
struct Live {
    chain: LiveChain,
    heads: Heads,
    flashblocks: Option<FlashblockSource>,
    feed: Feed,
    /// The canonical blocks that are being imported.
    catch_up: CatchUp,
    /// The sub-blocks that are not applied yet.
    queue: SubBlockQueue,
    /// The time at which the stream was lost, while it may still come back in order.
    cut_since: Option<Instant>,
    /// The number of times the upstream has announced an older block than the newest.
    looks: u32,
    /// The reason why the upstream's newest block cannot be followed. Logged once.
    problem: Option<String>,
    /// Whether the upstream is a node of another chain now.
    is_other_chain: bool,
    /// The time between blocks on the chain's clock.
    block_time: Duration,
    executed: Counter,
    skipped: Counter,
    mismatched: Counter,
    reorgs: Counter,
    counts: PreConfirmedCounts,
}

/// The reason why a block or a sub-block could not be imported.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The upstream does not return the block.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// The upstream returns an invalid block.
    #[error("the upstream's block is invalid: {0}")]
    Block(#[from] BlockError),
    /// The state for the block cannot be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The block cannot be executed.
    #[error("the block cannot be executed: {0}")]
    Execution(#[from] BlockExecutionError),
    /// The upstream has announced a block that it does not have.
    #[error("the upstream does not have the block {0} that it announced")]
    Unknown(B256),
    /// The time was up.
    #[error("the work was not done within {} ms", .0.as_millis())]
    Late(Duration),
    /// The block does not match its announcement.
    #[error("{what}: computed {computed}, announced {told}")]
    Mismatch {
        /// The name of the differing value.
        what: &'static str,
        /// The value from execution.
        computed: String,
        /// The announced value.
        told: String,
        /// The transaction, if the value is one transaction's.
        transaction: Option<B256>,
    },
    /// A transaction cannot be read.
    #[error(transparent)]
    Unread(#[from] UnreadTx),
    /// The upstream is a node of another chain than at the start.
    #[error("the upstream's chain id is {told} now, expected {expected}: it is a node of another chain")]
    OtherChain {
        /// The chain id at the start.
        expected: u64,
        /// The chain id now.
        told: u64,
    },
    /// The block has a transaction of a type that presim does not know.
    #[error("transaction {index} has the type {kind:#04x}, which presim does not know")]
    ForeignType {
        /// The transaction's index, from 0.
        index: usize,
        /// The type (EIP-2718).
        kind: u8,
    },
    /// The block reaches a native contract of the chain.
    #[error("it reaches {0}, a native contract of the chain, which presim cannot execute")]
    Native(Address),
    /// A transaction cannot be executed.
    #[error("transaction {index}: {problem}")]
    Transaction {
        /// The transaction's index, from 0.
        index: usize,
        /// The problem of the transaction.
        problem: String,
    },
    /// The chain took another branch meanwhile.
    #[error("block {0} is no longer part of the chain")]
    Gone(u64),
}

impl LiveError {
    /// Returns an error unless the computed value is the announced one.
    fn unless_equal<T: PartialEq + std::fmt::Display>(what: &'static str, computed: T, told: T) -> Result<(), Self> {
        if computed == told {
            return Ok(());
        }
        Err(Self::Mismatch { what, computed: computed.to_string(), told: told.to_string(), transaction: None })
    }

    /// Returns the same error, as one of a transaction.
    fn of_transaction(mut self, hash: B256) -> Self {
        if let Self::Mismatch { transaction, .. } = &mut self {
            *transaction = Some(hash);
        }
        self
    }

    /// Returns an error if what was missed is no state, but a native contract.
    fn unless_native(missed: &Missed) -> Result<(), Self> {
        missed.native().map_or(Ok(()), |native| Err(Self::Native(native)))
    }

    /// Returns the feed's problem for this error.
    const fn problem(&self) -> FeedProblem {
        match self {
            Self::Upstream(_) | Self::Fetch(_) | Self::Unknown(_) => FeedProblem::Upstream,
            Self::Late(_) => FeedProblem::TooLate,
            Self::OtherChain { .. } => FeedProblem::OtherChain,
            Self::Block(_) | Self::Mismatch { .. } => FeedProblem::Mismatch,
            Self::Execution(_)
            | Self::Transaction { .. }
            | Self::Unread(_)
            | Self::Native(_)
            | Self::ForeignType { .. } => FeedProblem::Execution,
            Self::Gone(_) => FeedProblem::Reorg,
        }
    }
}

impl FeedSource for LiveSource {
    fn run(self: Box<Self>, feed: Feed) -> LocalBoxFuture<'static, ()> {
        Live::new(*self, feed).run().boxed_local()
    }
}

/// The pause before state that could not be fetched is asked for again.
const AGAIN: Duration = Duration::from_millis(250);

impl LiveChain {
    /// Fetches the state that runs have missed, and what `hints` predict. An error comes after a pause.
    async fn fetch(self, missed: Missed, hints: Hints) -> Result<(), FetchError> {
        let hints = (!hints.is_empty()).then_some(hints);
        let fetched = self.fetcher.fetch(&missed, hints.as_ref(), Instant::now() + self.limits.wait).await;
        if fetched.is_err() {
            tokio::time::sleep(AGAIN).await;
        }
        fetched
    }
}

impl Live {
    /// Creates a follower of `source`, which publishes to `feed`. The snapshots of `feed` begin with a canonical block.
    fn new(source: LiveSource, feed: Feed) -> Self {
        let blocks = |outcome| {
            let help = "Canonical blocks of the upstream, by what became of what was known of its state.";
            feed.metrics.counter("presim_upstream_blocks_total", help, &[("outcome", outcome)])
        };
        let LiveSource { spec, fetcher, remote, heads, flashblocks, limits } = source;
        Self {
            catch_up: CatchUp::default(),
            queue: SubBlockQueue::default(),
            cut_since: None,
            problem: None,
            is_other_chain: false,
            looks: 0,
            block_time: spec.block_time(),
            executed: blocks("executed"),
            skipped: blocks("not_executed"),
            mismatched: blocks("mismatch"),
            reorgs: feed.metrics.counter("presim_reorgs_total", "Times that the upstream took another branch.", &[]),
            counts: PreConfirmedCounts::new(&feed.metrics),
            chain: LiveChain { spec: Arc::new(spec), fetcher, remote, limits },
            heads,
            flashblocks,
            feed,
        }
    }

    /// Follows the chain for as long as it is polled.
    async fn run(mut self) {
        if let Some(source) = &mut self.flashblocks {
            let head = self.feed.snapshots.load().head().clone();
            // Nothing is pre-confirmed yet, so there is no action to execute.
            source.rules.canonical(&canonical::about(&head.header, head.transaction_hashes().unwrap_or_default()));
        }
        self.catch_up.is_due = true;
        loop {
            self.go_on();
            self.tend();
            let due = self.due();
            let can_work = self.queue.can_run() || self.queue.can_scout();
            tokio::select! {
                // Canonical news first, because it decides about the pre-confirmed blocks.
                biased;
                tags = self.heads.changed() => match tags {
                    Some(tags) => drop(self.feed.apply(Publication::Tags(tags))),
                    None => self.catch_up.is_due = true,
                },
                news = self.catch_up.news() => self.take(news),
                event = next(&mut self.flashblocks) => self.meet(event).await,
                fetched = self.queue.fetched() => if let Err(error) = fetched {
                    tracing::debug!(%error, "the state for a Flashblock could not be fetched: it is asked for again");
                },
                () = until(due) => {}
                () = std::future::ready(()), if can_work => self.work(),
            }
        }
    }

    /// Handles an event of the stream.
    async fn meet(&mut self, event: Option<Event>) {
        let Some(source) = &mut self.flashblocks else { return };
        let rules = &mut source.rules;
        let actions = match event {
            Some(Event::Flashblock { flashblock, received }) => {
                if !flashblock.metadata.unread.is_empty() {
                    tracing::debug!(fields = ?flashblock.metadata.unread, "fields of a Flashblock cannot be read");
                }
                let actions = rules.flashblock(flashblock);
                return self.act(actions, received);
            }
            Some(Event::Garbage(error)) => {
                tracing::warn!(%error, "the stream sent a message that is not a Flashblock");
                self.counts.unreadable.increment(1);
                return rules.missed();
            }
            Some(Event::Lagged { missed }) => {
                tracing::warn!(missed, "Flashblocks arrived faster than they were read");
                return rules.missed();
            }
            Some(Event::Connected) => {
                tracing::info!("connected to the Flashblocks server");
                return;
            }
            Some(Event::Disconnected(error)) => {
                tracing::warn!(%error, "the Flashblocks connection failed");
                if rules.problem().is_none() {
                    self.cut_since.get_or_insert_with(Instant::now);
                    return rules.missed();
                }
                rules.fail(FeedProblem::Disconnected)
            }
            Some(Event::Silent) => rules.fail(FeedProblem::Silent),
            // The runtime ends.
            None => std::future::pending().await,
        };
        self.act(actions, Instant::now());
    }

    /// Drops what may last no longer, and shows how late the feed is.
    fn tend(&mut self) {
        let limits = self.chain.limits;
        let Some(source) = &mut self.flashblocks else { return };
        if source.rules.problem().is_some() {
            return;
        }
        if self.is_other_chain {
            return self.fail(FeedProblem::OtherChain);
        }
        if self.cut_since.is_some_and(|since| since.elapsed() >= limits.silent) {
            return self.fail(FeedProblem::Disconnected);
        }
        let Some(since) = self.late_since() else {
            if self.feed.status.state().lag().is_some() {
                self.set(self.live());
            }
            return;
        };
        if limits.max_lag.is_some_and(|most| since.elapsed() >= most) {
            return self.fail(FeedProblem::TooLate);
        }
        if since.elapsed() >= limits.sub_block && !self.feed.status.is_degraded() {
            let waiting = u32::try_from(self.queue.len()).unwrap_or(u32::MAX);
            let cause = match () {
                () if self.queue.is_fetching() => FeedProblem::Upstream,
                () if self.cut_since.is_some() => FeedProblem::Disconnected,
                () => FeedProblem::Lagging,
            };
            let since = since.into_std();
            self.set(FeedState::Lagging(FeedLag { since, waiting, cause, every_ms: self.every_ms() }));
        }
    }

    /// Returns the time since which the newest snapshot is not the newest that there is.
    fn late_since(&self) -> Option<Instant> {
        self.queue.since().into_iter().chain(self.cut_since).min()
    }

    /// Returns the time at which [`tend`](Self::tend) or [`go_on`](Self::go_on) has something to do without any event.
    fn due(&self) -> Option<Instant> {
        let limits = &self.chain.limits;
        let import = self.catch_up.deadline(limits.execute);
        if self.flashblocks.as_ref().is_none_or(|source| source.rules.problem().is_some()) {
            return import;
        }
        let late = self.late_since();
        let is_live = matches!(self.feed.status.state(), FeedState::Live { .. });
        let becomes_late = late.filter(|_| is_live).map(|since| since + limits.sub_block);
        let too_late = late.and_then(|since| limits.max_lag.map(|most| since + most));
        let cut = self.cut_since.map(|since| since + limits.silent);
        [becomes_late, too_late, cut, import].into_iter().flatten().min()
    }

    /// Returns the pre-confirmed blocks that are not canonical yet, oldest first.
    fn made(&self) -> impl DoubleEndedIterator<Item = &PreConfirmed> {
        self.flashblocks.iter().flat_map(|source| source.rules.made())
    }

    /// Drops the states of pre-confirmed blocks.
    fn let_go(&mut self) {
        if let Some(source) = &mut self.flashblocks {
            source.rules.let_go();
        }
    }

    /// Returns the state of a healthy feed.
    fn live(&self) -> FeedState {
        FeedState::Live { every_ms: self.every_ms() }
    }

    /// Returns the milliseconds between two snapshots.
    fn every_ms(&self) -> u64 {
        let every = match &self.flashblocks {
            Some(_) => self.chain.limits.sub_block,
            None => self.block_time,
        };
        u64::try_from(every.as_millis()).unwrap_or(u64::MAX)
    }

    fn set(&mut self, state: FeedState) {
        let was_degraded = self.feed.status.is_degraded();
        if self.feed.set_state(state) {
            match state.problem() {
                Some(problem) => tracing::warn!("the feed is degraded: {}", problem.meaning()),
                None if was_degraded => tracing::info!("the feed is live"),
                None => tracing::debug!(?state, "the feed"),
            }
        }
    }
}

/// Counts of pre-confirmed blocks by their fate, and of the stream's messages.
#[derive(Debug)]
struct PreConfirmedCounts {
    applied: Counter,
    unreadable: Counter,
    canonical: Counter,
    dropped: Counter,
    restarted: Counter,
    overtaken: Counter,
    other: Counter,
}

impl PreConfirmedCounts {
    fn new(metrics: &Metrics) -> Self {
        let blocks = |outcome| {
            let help = "Pre-confirmed blocks, by what became of them.";
            metrics.counter("presim_preconfirmed_total", help, &[("outcome", outcome)])
        };
        let messages = |outcome| {
            let help = "Messages of the stream of sub-blocks.";
            metrics.counter("presim_flashblocks_total", help, &[("outcome", outcome)])
        };
        Self {
            applied: messages("applied"),
            unreadable: messages("unreadable"),
            canonical: blocks("canonical"),
            dropped: blocks("dropped"),
            restarted: blocks("restarted"),
            overtaken: blocks("overtaken"),
            other: blocks("replaced"),
        }
    }

    /// Returns the count of blocks that were replaced for this reason.
    const fn replaced(&self, by: Replaced) -> &Counter {
        match by {
            Replaced::Restart => &self.restarted,
            Replaced::Overtaken => &self.overtaken,
            Replaced::Canonical => &self.other,
        }
    }
}

/// Returns the next event of a stream; never resolves if there is none.
async fn next(source: &mut Option<FlashblockSource>) -> Option<Event> {
    match source {
        Some(source) => source.events.next().await,
        None => std::future::pending().await,
    }
}

/// Waits until `due`; never resolves if there is no time.
async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
