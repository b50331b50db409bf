//! A chain that lives elsewhere: an upstream's canonical blocks, and the sub-blocks of those to come.
//!
//! [`canonical`] takes the upstream's blocks in, and [`ahead`] what Flashblocks tell of the blocks after them. Both write the same snapshots,
//! so one task does both, one thing after the other: [`Live::run`].

mod ahead;
mod canonical;

pub use self::ahead::PreConfirmed;
pub use self::canonical::{canonical_snapshot, told_receipts};

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_evm::block::BlockExecutionError;
use alloy_primitives::B256;
use futures::{FutureExt, future::LocalBoxFuture};

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

/// What a live chain is followed with.
#[derive(Debug)]
pub struct LiveSource {
    /// The chain.
    pub spec: ChainSpec,
    /// Brings state from the node that has it.
    pub fetcher: Arc<Fetcher>,
    /// Where state is kept.
    pub remote: Arc<RemoteState>,
    /// The upstream's newest block, again and again.
    pub heads: Heads,
    /// The sub-blocks, where there is a stream of them.
    pub flashblocks: Option<FlashblockSource>,
    /// Bounds.
    pub limits: LiveLimits,
}

/// A stream of sub-blocks, and its rules.
#[derive(Debug)]
pub struct FlashblockSource {
    /// What comes.
    pub events: Events,
    /// What it means.
    pub rules: FlashblockSequence<PreConfirmed>,
}

/// Bounds of a live chain.
#[derive(Clone, Copy, Debug)]
pub struct LiveLimits {
    /// For the upstream to give a block.
    pub wait: Duration,
    /// For executing a canonical block, fetching included.
    pub execute: Duration,
    /// For applying a sub-block, from when it came.
    pub apply: Duration,
    /// Between the sub-blocks of a stream.
    pub sub_block: Duration,
    /// Refuse blocks whose headers do not have their hashes.
    pub verify: bool,
    /// Blocks that are caught up with one by one; a greater gap is jumped over.
    pub gap: usize,
}

/// Follows a live chain. The only writer of its snapshots.
struct Live {
    source: LiveSource,
    feed: Feed,
    /// How often the upstream has told of an older block than the newest.
    looks: u32,
    /// Why the upstream's newest block is not followed; told of once.
    problem: Option<String>,
    /// From one block to the next, as the chain's clock has it.
    block_time: Duration,
    executed: Counter,
    skipped: Counter,
    mismatched: Counter,
    reorgs: Counter,
}

/// Why a block or a sub-block could not be taken in.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The upstream does not give it.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// The upstream gives something else.
    #[error("the upstream's block is refused: {0}")]
    Block(#[from] BlockError),
    /// The state that it needs cannot be had.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// It cannot be executed.
    #[error("it cannot be executed: {0}")]
    Execution(#[from] BlockExecutionError),
    /// The upstream told of a block that it does not have.
    #[error("the upstream does not have the block {0} that it told of")]
    Unknown(B256),
    /// There was no time left.
    #[error("it was not done within {} ms", .0.as_millis())]
    Late(Duration),
    /// It is not what it says it is.
    #[error("{what}: computed {computed}, told {told}")]
    Mismatch {
        /// What differs.
        what: &'static str,
        /// What execution gave.
        computed: String,
        /// What was told.
        told: String,
    },
    /// A transaction that cannot be read.
    #[error("transaction {index}: {problem}")]
    Transaction {
        /// Which, from 0.
        index: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// The chain went another way meanwhile.
    #[error("block {0} is not of the chain any more")]
    Gone(u64),
}

impl LiveError {
    /// Refuses what was computed where it is not what was told.
    fn unless_equal<T: PartialEq + std::fmt::Display>(what: &'static str, computed: T, told: T) -> Result<(), Self> {
        if computed == told {
            return Ok(());
        }
        Err(Self::Mismatch { what, computed: computed.to_string(), told: told.to_string() })
    }

    /// What it means for the feed.
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
    /// Follows `source`, and publishes to `feed`, whose snapshots begin with a canonical block of it.
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
            // Nothing has been pre-confirmed that it could bear upon.
            source.rules.canonical(&canonical::about(&head.header, &head.body().transactions));
        }
        self.meet_head().await;
        loop {
            tokio::select! {
                // What is pre-confirmed is judged by what is canonical: that comes first.
                biased;
                tags = self.source.heads.changed() => match tags {
                    Some(tags) => self.feed.snapshots.set_tags(tags),
                    None => self.meet_head().await,
                },
                event = next(&mut self.source.flashblocks) => self.meet(event).await,
            }
        }
    }

    /// The upstream's newest block is another, or it does not answer.
    async fn meet_head(&mut self) {
        let error = match self.source.heads.newest() {
            Ok(hash) => self.follow(hash).await.err(),
            Err(error) => Some(LiveError::Upstream(error)),
        };
        match error {
            Some(error) => {
                let text = error.to_string();
                if self.problem.as_ref() != Some(&text) {
                    tracing::warn!(error = text, "the upstream's newest block is not followed");
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

    /// Something came over the stream.
    async fn meet(&mut self, event: Option<Event>) {
        let Some(source) = &mut self.source.flashblocks else { return };
        let actions = match event {
            Some(Event::Flashblock { flashblock, received }) => {
                let late = received.elapsed() > self.source.limits.apply;
                let actions = source.rules.flashblock(flashblock);
                return self.act(actions, received, late).await;
            }
            Some(Event::Garbage(error)) => {
                tracing::warn!(%error, "the stream sent what is no Flashblock");
                source.rules.fail(FeedProblem::Gap)
            }
            Some(Event::Silent) => source.rules.fail(FeedProblem::Lagging),
            Some(Event::Lagged { missed }) => {
                tracing::warn!(missed, "Flashblocks came faster than they were applied");
                source.rules.fail(FeedProblem::Lagging)
            }
            Some(Event::Connected) => {
                tracing::info!("connected to the Flashblocks");
                return;
            }
            Some(Event::Disconnected(error)) => {
                tracing::warn!(%error, "no Flashblocks");
                source.rules.disconnected()
            }
            // The runtime ends.
            None => std::future::pending().await,
        };
        self.act(actions, Instant::now(), false).await;
    }

    /// The rules of the stream, where there is one.
    fn rules(&mut self) -> Option<&mut FlashblockSequence<PreConfirmed>> {
        self.source.flashblocks.as_mut().map(|source| &mut source.rules)
    }

    /// The pre-confirmed blocks that are not canonical yet, oldest first.
    fn made(&self) -> impl Iterator<Item = &PreConfirmed> {
        self.source.flashblocks.iter().flat_map(|source| source.rules.made())
    }

    /// Forgets what was made of pre-confirmed blocks.
    fn let_go(&mut self) {
        if let Some(rules) = self.rules() {
            rules.let_go();
        }
    }

    /// How the feed is while all is well.
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

    /// Fetches what a run has missed, by `deadline`.
    async fn fetch(&self, missed: Missed, began: Instant, time: Duration) -> Result<(), LiveError> {
        match self.source.fetcher.fetch(&missed, None, began + time).await {
            Err(FetchError::Deadline(_)) => Err(LiveError::Late(time)),
            fetched => Ok(fetched?),
        }
    }
}

/// The next event of a stream; never, where there is none.
async fn next(source: &mut Option<FlashblockSource>) -> Option<Event> {
    match source {
        Some(source) => source.events.next().await,
        None => std::future::pending().await,
    }
}
