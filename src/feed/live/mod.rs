//! A live chain: an upstream's canonical blocks, and the sub-blocks of the blocks after them.
//!
//! `canonical` imports the upstream's blocks, and `ahead` applies the sub-blocks of Flashblocks. Both write the same
//! snapshots, so one task does both, in `Live::run`.

mod ahead;
mod canonical;

pub use self::ahead::PreConfirmed;
pub use self::canonical::{canonical_snapshot, told_receipts};

use std::{sync::Arc, time::Duration};

use alloy_evm::block::BlockExecutionError;
use alloy_primitives::B256;
use futures::{FutureExt, future::LocalBoxFuture};
use tokio::time::Instant;

use super::{
    Feed, FeedSource,
    flashblocks::{Event, Events, FlashblockSequence},
    upstream::{BlockError, FetchError, Fetcher, Heads, UpstreamError},
};
use crate::{
    chain::ChainSpec,
    state::{FeedProblem, FeedState, Missed, RemoteState},
    telemetry::Counter,
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
    /// The time-out for the upstream to return a block.
    pub wait: Duration,
    /// The time for executing a canonical block, fetching included.
    pub execute: Duration,
    /// The time for applying a sub-block, from its arrival.
    pub apply: Duration,
    /// The time between the sub-blocks of a stream.
    pub sub_block: Duration,
    /// Whether blocks whose headers do not have their hashes are refused.
    pub verify: bool,
    /// The number of blocks to catch up with one by one. A greater gap is skipped.
    pub gap: usize,
}

/// The follower of a live chain, and the only writer of its snapshots.
struct Live {
    source: LiveSource,
    feed: Feed,
    /// The number of times the upstream has announced an older block than the newest.
    looks: u32,
    /// The reason why the upstream's newest block cannot be followed. Logged once.
    problem: Option<String>,
    /// The time between blocks on the chain's clock.
    block_time: Duration,
    executed: Counter,
    skipped: Counter,
    mismatched: Counter,
    reorgs: Counter,
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
    },
    /// A transaction cannot be decoded.
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
        Err(Self::Mismatch { what, computed: computed.to_string(), told: told.to_string() })
    }

    /// Returns the feed's problem for this error.
    const fn problem(&self) -> FeedProblem {
        match self {
            Self::Upstream(_) | Self::Fetch(_) | Self::Unknown(_) => FeedProblem::Upstream,
            Self::Late(_) => FeedProblem::Lagging,
            Self::Block(_) | Self::Mismatch { .. } => FeedProblem::Mismatch,
            Self::Execution(_) | Self::Transaction { .. } => FeedProblem::Execution,
            Self::Gone(_) => FeedProblem::Reorg,
        }
    }
}

impl FeedSource for LiveSource {
    fn run(self: Box<Self>, feed: Feed) -> LocalBoxFuture<'static, ()> {
        Live::new(*self, feed).run().boxed_local()
    }
}

impl Live {
    /// Creates a follower of `source`, which publishes to `feed`. The snapshots of `feed` begin with a canonical block.
    fn new(source: LiveSource, feed: Feed) -> Self {
        let blocks = |outcome| {
            let help = "Canonical blocks of the upstream, by what became of what was known of its state.";
            feed.metrics.counter("presim_upstream_blocks_total", help, &[("outcome", outcome)])
        };
        Self {
            problem: None,
            looks: 0,
            block_time: Duration::from_secs(source.spec.block_time()),
            executed: blocks("executed"),
            skipped: blocks("not_executed"),
            mismatched: blocks("mismatch"),
            reorgs: feed.metrics.counter("presim_reorgs_total", "Times that the upstream took another branch.", &[]),
            source,
            feed,
        }
    }

    /// Follows the chain for as long as it is polled.
    async fn run(mut self) {
        if let Some(source) = &mut self.source.flashblocks {
            let head = self.feed.snapshots.load().head().clone();
            // Nothing is pre-confirmed yet, so there is no action to execute.
            source.rules.canonical(&canonical::about(&head.header, &head.body().transactions));
        }
        self.meet_head().await;
        loop {
            tokio::select! {
                // Canonical news first, because it decides about the pre-confirmed blocks.
                biased;
                tags = self.source.heads.changed() => match tags {
                    Some(tags) => self.feed.snapshots.set_tags(tags),
                    None => self.meet_head().await,
                },
                event = next(&mut self.source.flashblocks) => self.meet(event).await,
            }
        }
    }

    /// Handles a new head of the upstream, or its failure.
    async fn meet_head(&mut self) {
        let error = match self.source.heads.newest() {
            Ok(hash) => self.follow(hash).await.err(),
            Err(error) => Some(LiveError::Upstream(error)),
        };
        match error {
            Some(error) => {
                let text = error.to_string();
                if self.problem.as_ref() != Some(&text) {
                    tracing::warn!(error = text, "the upstream's newest block cannot be followed");
                }
                self.problem = Some(text);
                self.source.heads.again();
                if self.source.flashblocks.is_none() {
                    self.set(FeedState::Degraded(error.problem()));
                }
            }
            None => {
                self.problem = None;
                if self.source.flashblocks.is_none() {
                    self.set(self.live());
                }
            }
        }
    }

    /// Handles an event of the stream.
    async fn meet(&mut self, event: Option<Event>) {
        let Some(source) = &mut self.source.flashblocks else { return };
        let actions = match event {
            Some(Event::Flashblock { flashblock, received }) => {
                let late = received.elapsed() > self.source.limits.apply;
                let actions = source.rules.flashblock(flashblock);
                return self.act(actions, received, late).await;
            }
            Some(Event::Garbage(error)) => {
                tracing::warn!(%error, "the stream sent a message that is not a Flashblock");
                source.rules.fail(FeedProblem::Gap)
            }
            Some(Event::Silent) => source.rules.fail(FeedProblem::Lagging),
            Some(Event::Lagged { missed }) => {
                tracing::warn!(missed, "Flashblocks arrived faster than they were applied");
                source.rules.fail(FeedProblem::Lagging)
            }
            Some(Event::Connected) => {
                tracing::info!("connected to the Flashblocks server");
                return;
            }
            Some(Event::Disconnected(error)) => {
                tracing::warn!(%error, "the Flashblocks connection failed");
                source.rules.disconnected()
            }
            // The runtime ends.
            None => std::future::pending().await,
        };
        self.act(actions, Instant::now(), false).await;
    }

    /// Returns the rules of the stream, if there is one.
    fn rules(&mut self) -> Option<&mut FlashblockSequence<PreConfirmed>> {
        self.source.flashblocks.as_mut().map(|source| &mut source.rules)
    }

    /// Returns the pre-confirmed blocks that are not canonical yet, oldest first.
    fn made(&self) -> impl Iterator<Item = &PreConfirmed> {
        self.source.flashblocks.iter().flat_map(|source| source.rules.made())
    }

    /// Drops the states of pre-confirmed blocks.
    fn let_go(&mut self) {
        if let Some(rules) = self.rules() {
            rules.let_go();
        }
    }

    /// Returns the state of a healthy feed.
    fn live(&self) -> FeedState {
        let every = match &self.source.flashblocks {
            Some(_) => self.source.limits.sub_block,
            None => self.block_time,
        };
        FeedState::Live { every_ms: u64::try_from(every.as_millis()).unwrap_or(u64::MAX) }
    }

    fn set(&mut self, state: FeedState) {
        if self.feed.status.set(state) {
            match state.problem() {
                Some(problem) => tracing::warn!("the feed is degraded: {}", problem.meaning()),
                None => tracing::info!("the feed is live"),
            }
        }
    }

    /// Fetches the state that a run has missed, within `time` of `began`.
    async fn fetch(&self, missed: Missed, began: Instant, time: Duration) -> Result<(), LiveError> {
        match self.source.fetcher.fetch(&missed, None, began + time).await {
            Err(FetchError::Deadline(_)) => Err(LiveError::Late(time)),
            fetched => Ok(fetched?),
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
