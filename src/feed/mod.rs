//! Sources of state, and the one writer that turns what they give into snapshots.

pub mod apply;
pub mod chain_file;
pub mod devnet;
pub mod flashblocks;
pub mod journal;
pub mod live;
pub mod status;
pub mod upstream;
pub mod world;

use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message, WrapFuture};
use futures::FutureExt;

use alloy_evm::block::BlockExecutionError;

use self::{
    devnet::{Devnet, Step},
    journal::Journal,
    live::{Live, LiveSource},
    status::FeedStatus,
};
use crate::{
    pool::Pool,
    state::{FeedProblem, FeedState, Snapshots},
    store::StoreError,
    telemetry::{Counter, Gauge, Histogram, Metrics, PUBLISH_SECONDS},
};

/// Where the states of a chain come from.
#[derive(Debug)]
pub enum Source {
    /// From nowhere: the chain stands still.
    Static,
    /// Blocks that are built here.
    Devnet(Box<Devnet>),
    /// A chain that lives elsewhere.
    Live(Box<LiveSource>),
}

/// The only writer of snapshots. Ticks its source, publishes what comes.
pub struct StateFeed {
    source: Option<Devnet>,
    live: Option<Live>,
    journal: Option<Journal>,
    every: Duration,
    status: FeedStatus,
    snapshots: Arc<Snapshots>,
    pool: Arc<Pool>,
    published: Counter,
    publish_seconds: Histogram,
    age: Gauge,
    block: Gauge,
    pooled: Gauge,
}

impl StateFeed {
    /// A feed of `source`. A devnet is asked for a sub-block of what waits in `pool`, `every` so often. With a `journal`, what is published is
    /// on the disk before.
    pub fn new(
        source: Source,
        journal: Option<Journal>,
        every: Duration,
        snapshots: Arc<Snapshots>,
        pool: Arc<Pool>,
        metrics: &Metrics,
    ) -> Self {
        let (source, live) = match source {
            Source::Static => (None, None),
            Source::Devnet(devnet) => (Some(*devnet), None),
            Source::Live(source) => (None, Some(Live::new(*source, snapshots.clone(), metrics))),
        };
        Self {
            source,
            live,
            journal,
            every,
            status: FeedStatus::new(snapshots.clone(), metrics),
            snapshots,
            pool,
            published: metrics.counter("presim_snapshots_total", "Snapshots published.", &[]),
            publish_seconds: metrics.histogram(
                PUBLISH_SECONDS,
                "From taking a sub-block to its snapshot being published.",
                &[],
            ),
            age: metrics.gauge("presim_snapshot_age_seconds", "Age of the newest snapshot.", &[]),
            block: metrics.gauge("presim_head_number", "Number of the newest sealed block.", &[]),
            pooled: metrics.gauge("presim_pool_transactions", "Transactions that wait to be mined.", &[]),
        }
    }

    fn tick(&mut self) {
        let Some(source) = &mut self.source else { return };
        let began = Instant::now();
        let newest = self.snapshots.newest();
        let published = match self.journal.as_ref().and_then(Journal::failure) {
            // It would come to nothing, and subscribers would be told of transactions that never come.
            Some(failure) => Err(FeedError::from(failure.clone())),
            None => source
                .step(&newest, &self.pool)
                .map_err(FeedError::from)
                .and_then(|step| publish(&self.snapshots, self.journal.as_ref(), step).map_err(FeedError::from)),
        };
        if let Err(error) = published {
            self.pool.drop_own();
            if self.status.set(FeedState::Degraded(error.problem())) {
                tracing::error!(%error, "the devnet cannot go on");
            }
            return;
        }
        self.pool.advance();
        if self.status.is_degraded() {
            tracing::info!("the devnet goes on");
            let every_ms = u64::try_from(self.every.as_millis()).unwrap_or(u64::MAX);
            self.status.set(FeedState::Live { every_ms });
        }
        self.published.increment(1);
        self.publish_seconds.record(began.elapsed());
    }
}

/// Why nothing can be published.
#[derive(Debug, thiserror::Error)]
enum FeedError {
    #[error(transparent)]
    Execution(#[from] BlockExecutionError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl FeedError {
    const fn problem(&self) -> FeedProblem {
        match self {
            Self::Execution(_) => FeedProblem::Execution,
            Self::Store(_) => FeedProblem::Store,
        }
    }
}

/// Publishes a step, once it is on the disk where there is a journal.
///
/// # Errors
/// That it cannot be written. Nothing is published then.
pub fn publish(snapshots: &Snapshots, journal: Option<&Journal>, step: Step) -> Result<(), StoreError> {
    if let Some(journal) = journal {
        journal.record(&snapshots.load(), &step)?;
    }
    let Step { sealed, next } = step;
    match sealed {
        None => snapshots.publish(next.snapshot),
        Some(sealed) => {
            let head = &sealed.snapshot.head;
            tracing::debug!(number = head.number(), hash = %head.hash(), "sealed");
            snapshots.publish_sealed(sealed.snapshot, Some(next.snapshot));
        }
    }
    Ok(())
}

impl Actor for StateFeed {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        if self.source.is_some() {
            context.run_interval(self.every, |feed, _| feed.tick());
        }
        if let Some(live) = self.live.take() {
            let snapshots = self.snapshots.clone();
            let followed = async move {
                if AssertUnwindSafe(live.run()).catch_unwind().await.is_err() {
                    tracing::error!("following the upstream has failed, and ended: start the node again");
                    snapshots.fall_back(FeedState::Degraded(FeedProblem::Execution));
                }
            };
            context.spawn(followed.into_actor(self));
        }
        context.run_interval(Duration::from_millis(100), |feed, _| {
            let newest = feed.snapshots.newest();
            feed.age.set(newest.published.elapsed().as_secs_f64());
            feed.block.set(feed.snapshots.load().head().number() as f64);
            feed.pooled.set(feed.pool.len() as f64);
        });
    }
}

/// Publish nothing more.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct StopFeed;

impl Handler<StopFeed> for StateFeed {
    type Result = ();

    fn handle(&mut self, _: StopFeed, context: &mut Self::Context) {
        context.stop();
    }
}
