//! The sources of state, and the one writer that turns them into snapshots.

pub mod apply;
pub mod chain_file;
pub mod devnet;
pub mod fleet;
pub mod journal;
pub mod live;
pub mod publishing;
pub mod replica;
pub mod status;
pub mod testing;

use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use actix::{Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Message, WrapFuture};
use futures::{FutureExt, future::LocalBoxFuture};

use self::{
    journal::Journal,
    publishing::{LiveOutlet, NotLeading, StreamSending, StreamWriter},
    status::FeedStatus,
};
use crate::{
    ledger::{Chain, FeedProblem, FeedState, Record, SnapshotId, Snapshots, Stamp, Unfit},
    pool::Pool,
    store::StoreError,
    telemetry::{Counter, Gauge, Histogram, Metrics, PUBLISH_SECONDS, Pulse},
};

/// A source of a chain's states. A new source implements this trait, and [`node`](crate::node) selects it.
pub trait FeedSource: std::fmt::Debug + Send {
    /// Publishes the states of the chain, for as long as it is polled. Resolves only if no more states will come.
    fn run(self: Box<Self>, feed: Feed) -> LocalBoxFuture<'static, ()>;
}

/// The means by which a source publishes. There is one value, so the source is the only writer of snapshots.
#[derive(Debug)]
pub struct Feed {
    /// The cell of published snapshots.
    pub snapshots: Arc<Snapshots>,
    /// The transactions that are in no block yet.
    pub pool: Arc<Pool>,
    /// The health of the feed.
    pub status: FeedStatus,
    /// The node's metrics.
    pub metrics: Metrics,
    /// The stream of the fleet, while this node leads one.
    pub stream: Option<StreamWriter>,
    /// The outbox of changes for the stream of the fleet, where a change is shown only once the stream has it.
    outlet: Option<Arc<LiveOutlet>>,
    published: Counter,
    divergences: Counter,
    publish_seconds: Histogram,
}

/// The reason why a change is not published.
#[derive(Debug, thiserror::Error)]
pub enum Unpublished {
    /// The change could not be written to the journal.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another node leads the fleet now.
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
    /// The change does not stand on what is published.
    #[error(transparent)]
    Unfit(#[from] Unfit),
}

impl Unpublished {
    /// Returns the problem of the feed; `None` if another node leads the fleet.
    pub const fn problem(&self) -> Option<FeedProblem> {
        match self {
            Self::Store(_) => Some(FeedProblem::Store),
            Self::NotLeading(_) => None,
            Self::Unfit(_) => Some(FeedProblem::Execution),
        }
    }
}

impl Feed {
    /// Creates a feed into `snapshots`.
    pub fn new(snapshots: Arc<Snapshots>, pool: Arc<Pool>, metrics: &Metrics) -> Self {
        Self {
            status: FeedStatus::new(snapshots.load().feed(), metrics),
            published: metrics.counter("presim_snapshots_total", "Snapshots published.", &[]),
            divergences: metrics.counter(
                "presim_divergences_total",
                "Differences from a producer's word: of what was pre-confirmed, or on a replica of what the stream has.",
                &[],
            ),
            publish_seconds: metrics.histogram(
                PUBLISH_SECONDS,
                "From taking a sub-block to its snapshot being published.",
                &[],
            ),
            metrics: metrics.clone(),
            stream: None,
            outlet: None,
            snapshots,
            pool,
        }
    }

    /// Counts a difference from a producer's word.
    fn count_divergence(&self) {
        self.divergences.increment(1);
    }

    /// Returns a feed into `snapshots` that nobody sees: its changes go into `outlet`. It shares the metrics, but for the
    /// health of the feed.
    #[must_use]
    pub fn beside(&self, snapshots: Arc<Snapshots>, outlet: Arc<LiveOutlet>) -> Self {
        Self {
            status: FeedStatus::new(snapshots.load().feed(), &Metrics::default()),
            pool: self.pool.clone(),
            metrics: self.metrics.clone(),
            stream: None,
            outlet: Some(outlet),
            published: self.published.clone(),
            divergences: self.divergences.clone(),
            publish_seconds: self.publish_seconds.clone(),
            snapshots,
        }
    }

    /// Publishes a change that is not recorded, and waits for nothing: other nodes have it first only where the feed has an
    /// outlet.
    ///
    /// # Errors
    ///
    /// Returns [`Unfit`] as [`Chain::apply`] does. Nothing has changed then.
    pub fn apply(&self, record: Record) -> Result<SnapshotId, Unfit> {
        match &self.outlet {
            Some(outlet) => outlet.apply(&self.snapshots, record),
            None => self.snapshots.apply(record),
        }
    }

    /// Publishes a change as [`apply`](Self::apply) does, which fits any chain.
    pub fn note(&self, record: Record) {
        if let Err(unfit) = self.apply(record) {
            tracing::error!(%unfit, "a change of the chain is not published");
        }
    }

    /// Publishes a change: writes it to the journal if there is one, sends it to the stream of the fleet if this node leads
    /// one, and shows it only then. So whatever a client has seen is on disk and in the stream.
    ///
    /// Without a stream it does not wait, and without a journal it allocates nothing besides the snapshot.
    ///
    /// # Errors
    ///
    /// Returns [`Unpublished`] if the journal cannot be written, or another node leads the fleet. Nothing is shown then.
    pub async fn publish(&mut self, journal: Option<&Journal>, record: Record) -> Result<SnapshotId, Unpublished> {
        if journal.is_none() && self.stream.is_none() {
            return Ok(self.apply(record)?);
        }
        let published = self.snapshots.load();
        let stamp = Stamp::now(published.last.next());
        if let Some(journal) = journal {
            journal.record(&published, stamp.id, &record)?;
        }
        if self.stream.is_some() {
            self.send(&published, stamp, &record).await?;
        }
        self.snapshots.apply_as(stamp, record)?;
        Ok(stamp.id)
    }

    /// Sends a change to the stream of the fleet, and returns when the stream has it. While the stream takes nothing, the
    /// feed is degraded and shows nothing new.
    async fn send(&mut self, published: &Arc<Chain>, stamp: Stamp, record: &Record) -> Result<(), NotLeading> {
        let Some(stream) = &self.stream else { return Ok(()) };
        match stream.message(published, stamp, record) {
            Some(sending) => self.send_message(sending).await,
            None => Ok(()),
        }
    }

    /// Sends a message to the stream, and returns when the stream has it. While the stream takes nothing, the feed is
    /// degraded.
    async fn send_message(&mut self, mut sending: StreamSending) -> Result<(), NotLeading> {
        let Some(stream) = &mut self.stream else { return Err(NotLeading) };
        let before = self.status.state();
        let mut is_shown = false;
        let sent = loop {
            match stream.try_send(&mut sending).await {
                Ok(true) => break Ok(()),
                Ok(false) if is_shown => {}
                Ok(false) => {
                    is_shown = true;
                    tracing::warn!("the stream of the fleet takes nothing: nothing new is shown until it does");
                    let degraded = FeedState::Degraded(FeedProblem::Stream);
                    self.status.show_state(degraded);
                    self.snapshots.update(|chain| chain.show_feed(degraded));
                }
                Err(not_leading) => {
                    self.stream = None;
                    break Err(not_leading);
                }
            }
        };
        // A node that no longer leads has no trouble with the stream either.
        if is_shown {
            tracing::info!("the stream of the fleet is no trouble any more");
            self.status.show_state(before);
            self.snapshots.update(|chain| chain.show_feed(before));
        }
        sent
    }

    /// Sets the feed's health, and returns whether it has changed, as [`FeedStatus`] counts it.
    pub fn set_state(&mut self, state: FeedState) -> bool {
        if state == self.status.state() {
            return false;
        }
        let is_other = self.status.show_state(state);
        // Applied last, so that a client that sees the state finds it in the metrics, too.
        self.note(Record::Feed(state));
        is_other
    }

    /// Sets the feed's health as [`set_state`](Self::set_state) does, for the whole fleet.
    pub async fn publish_state(&mut self, state: FeedState) -> bool {
        if state == self.status.state() {
            return false;
        }
        let is_other = self.status.show_state(state);
        // A node that no longer leads hears of the state from the leader.
        let _ = self.publish(None, Record::Feed(state)).await;
        is_other
    }

    /// Counts a snapshot that was just published, of input that arrived at `since`.
    pub fn count(&self, since: Instant) {
        if let Some(outlet) = &self.outlet {
            return outlet.count(since);
        }
        self.published.increment(1);
        self.publish_seconds.record(since.elapsed());
    }
}

/// A chain without a feed.
#[derive(Debug)]
pub struct Still;

impl FeedSource for Still {
    fn run(self: Box<Self>, _: Feed) -> LocalBoxFuture<'static, ()> {
        std::future::ready(()).boxed_local()
    }
}

/// The only writer of snapshots: an actor that runs the chain's source.
pub struct StateFeed {
    /// The source, until it runs.
    source: Option<(Box<dyn FeedSource>, Feed)>,
    snapshots: Arc<Snapshots>,
    pool: Arc<Pool>,
    age: Gauge,
    lag: Gauge,
    waiting: Gauge,
    block: Gauge,
    block_time: Gauge,
    pooled: Gauge,
    /// Whether the source has panicked, after which no more states come.
    has_failed: bool,
}

impl StateFeed {
    /// Creates a feed of `source`.
    pub fn new(source: Box<dyn FeedSource>, feed: Feed) -> Self {
        let (snapshots, pool, metrics) = (feed.snapshots.clone(), feed.pool.clone(), &feed.metrics);
        Self {
            age: metrics.gauge("presim_snapshot_age_seconds", "Age of the newest snapshot.", &[]),
            lag: metrics.gauge(
                "presim_feed_lag_seconds",
                "Time since the oldest sub-block or block that is not applied yet arrived; 0 where the feed is not late.",
                &[],
            ),
            waiting: metrics.gauge(
                "presim_feed_lag_sub_blocks",
                "Sub-blocks, or blocks without pre-confirmations, that wait while the feed is late.",
                &[],
            ),
            block: metrics.gauge("presim_head_number", "Number of the newest sealed block.", &[]),
            block_time: metrics.gauge(
                "presim_head_timestamp_seconds",
                "Timestamp of the newest sealed block, in Unix seconds.",
                &[],
            ),
            pooled: metrics.gauge("presim_pool_transactions", "Transactions that wait to be mined.", &[]),
            has_failed: false,
            source: Some((source, feed)),
            snapshots,
            pool,
        }
    }
}

impl Actor for StateFeed {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        if let Some((source, feed)) = self.source.take() {
            let snapshots = self.snapshots.clone();
            let followed = async move {
                let has_failed = AssertUnwindSafe(source.run(feed)).catch_unwind().await.is_err();
                if has_failed {
                    tracing::error!("the feed has failed and ended: restart the node");
                    let degraded = Record::FallBack(FeedState::Degraded(FeedProblem::Execution));
                    if let Err(unfit) = snapshots.apply(degraded) {
                        tracing::error!(%unfit, "the end of the feed is not published");
                    }
                }
                has_failed
            };
            context.spawn(followed.into_actor(self).map(|has_failed, feed, _| feed.has_failed = has_failed));
        }
        context.run_interval(Duration::from_millis(100), |feed, _| {
            let published = feed.snapshots.load();
            let state = published.feed();
            let lag = state.lag();
            feed.age.set(published.newest.published.elapsed().as_secs_f64());
            feed.lag.set(lag.map_or(0.0, |lag| lag.since.elapsed().as_secs_f64()));
            feed.waiting.set(lag.map_or(0.0, |lag| f64::from(lag.waiting)));
            feed.block.set(published.head().number() as f64);
            feed.block_time.set(published.head().header.timestamp as f64);
            feed.pooled.set(feed.pool.len() as f64);
        });
    }
}

impl Handler<Pulse> for StateFeed {
    type Result = bool;

    fn handle(&mut self, _: Pulse, _: &mut Self::Context) -> bool {
        !self.has_failed
    }
}

/// Stops publishing.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct StopFeed;

impl Handler<StopFeed> for StateFeed {
    type Result = ();

    fn handle(&mut self, _: StopFeed, context: &mut Self::Context) {
        context.stop();
    }
}
