//! The sources of state, and the one writer that turns them into snapshots.

pub mod chain_file;
pub mod devnet;
pub mod given;
pub mod live;
pub mod status;
pub mod sub_block;
pub mod testing;
#[cfg(test)]
#[expect(clippy::disallowed_types, reason = "no meter runs in the tests")]
mod tests;

use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use actix::{Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Message, WrapFuture};
use futures::{FutureExt, future::LocalBoxFuture};

use self::status::FeedStatus;
use crate::{
    ledger::{Chain, FeedProblem, FeedState, Record, SnapshotId, Snapshots, Stamp},
    pool::Pool,
    publish::{Change, Sink, Unpublished},
    store::StoreError,
    telemetry::{Counter, Gauge, Histogram, Metrics, PUBLISH_SECONDS, Pulse},
};

/// A source of a chain's states. A new source implements this trait, and [`node`](crate::node) selects it.
pub trait FeedSource: std::fmt::Debug + Send {
    /// Publishes the states of the chain, for as long as it is polled. Resolves only if no more states will follow.
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
    /// The sink that takes changes before they are visible, if there is one.
    sink: Option<Box<dyn Sink>>,
    published: Counter,
    divergences: Counter,
    publish_seconds: Histogram,
}

impl Feed {
    /// Creates a feed into `snapshots`. `sink` takes each change first.
    pub fn new(snapshots: Arc<Snapshots>, sink: Option<Box<dyn Sink>>, pool: Arc<Pool>, metrics: &Metrics) -> Self {
        Self {
            status: FeedStatus::new(snapshots.load().feed(), metrics),
            published: metrics.counter("presim_snapshots_total", "Snapshots published."),
            divergences: metrics.counter(
                "presim_divergences_total",
                "Divergences from the builder's data, or on a replica from the leader's.",
            ),
            publish_seconds: metrics
                .histogram(PUBLISH_SECONDS, "Time from taking a sub-block to publishing its snapshot."),
            metrics: metrics.clone(),
            sink,
            snapshots,
            pool,
        }
    }

    /// Counts a difference from a producer's word.
    pub fn count_divergence(&self) {
        self.divergences.increment(1);
    }

    /// Returns a feed into `snapshots` that clients do not see: its changes go to `sink`. It shares the metrics, except
    /// the health of the feed and the metrics of visible snapshots.
    #[must_use]
    pub fn unseen(&self, snapshots: Arc<Snapshots>, sink: Box<dyn Sink>) -> Self {
        let unseen = Self::new(snapshots, Some(sink), self.pool.clone(), &Metrics::default());
        Self { metrics: self.metrics.clone(), divergences: self.divergences.clone(), ..unseen }
    }

    /// Publishes a change, and returns its id. The sink takes the change before it is visible, so everything that a
    /// client has seen is on disk. Without a sink, nothing is allocated except the snapshot.
    ///
    /// # Errors
    ///
    /// Returns [`Unpublished::Unfit`] as [`Chain::apply`] does, and [`Unpublished::Store`] if the sink cannot take the
    /// change. The chain is then unchanged.
    pub fn publish(&mut self, record: Record) -> Result<SnapshotId, Unpublished> {
        let Some(sink) = self.sink.as_mut().filter(|sink| sink.takes()) else {
            return Ok(self.snapshots.apply(record)?);
        };
        let before = self.snapshots.load();
        let stamp = Stamp::now(before.last.next());
        let change = Change::of(&before, stamp.id, &record);
        let mut after = Chain::clone(&before);
        after.apply(stamp, record)?;
        let after = Arc::new(after);
        sink.take(change, &after)?;
        self.snapshots.replace_all(after);
        Ok(stamp.id)
    }

    /// Publishes a change that fits any chain.
    pub fn publish_or_log(&mut self, record: Record) {
        if let Err(error) = self.publish(record) {
            tracing::error!(%error, "a change of the chain is not published");
        }
    }

    /// Returns the reason why nothing can be published any more, if the sink knows one.
    pub fn failure(&self) -> Option<StoreError> {
        self.sink.as_ref().and_then(|sink| sink.failure())
    }

    /// Sets the feed's health, and returns whether it has changed, as [`FeedStatus`] counts it. It is visible as a change is that is
    /// [published](Self::publish).
    pub fn set_state(&mut self, state: FeedState) -> bool {
        if state == self.status.state() {
            return false;
        }
        let is_other = self.status.show_state(state);
        // Published last, so that a client that sees the state finds it in the metrics, too.
        self.publish_or_log(Record::Feed(state));
        is_other
    }

    /// Shows a health of the feed that concerns this node alone, and returns whether it has changed. It is no change of the chain.
    pub fn show_state(&mut self, state: FeedState) -> bool {
        if state == self.status.state() {
            return false;
        }
        let mut chain = Chain::clone(&self.snapshots.load());
        chain.show_feed(state);
        self.show(chain.into(), state)
    }

    /// Shows a chain that another node has published, or that is in the stream of a fleet, with the health of its feed. Returns whether
    /// the health has changed.
    pub fn show(&mut self, chain: Arc<Chain>, state: FeedState) -> bool {
        let is_other = self.status.show_state(state);
        self.snapshots.replace_all(chain);
        is_other
    }

    /// Counts a snapshot that was just published, of input that arrived at `since`.
    pub fn count(&mut self, since: Instant) {
        self.published.increment(1);
        self.publish_seconds.record(since.elapsed());
        if let Some(sink) = &mut self.sink {
            sink.note_arrival(since);
        }
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
    /// Whether the source has panicked, so that no more states follow.
    has_failed: bool,
}

impl StateFeed {
    /// Creates a feed of `source`.
    pub fn new(source: Box<dyn FeedSource>, feed: Feed) -> Self {
        let (snapshots, pool, metrics) = (feed.snapshots.clone(), feed.pool.clone(), &feed.metrics);
        Self {
            age: metrics.gauge("presim_snapshot_age_seconds", "Age of the newest snapshot."),
            lag: metrics.gauge(
                "presim_feed_lag_seconds",
                "Time since the arrival of the oldest sub-block or block that is not applied yet; 0 if the feed is not late."),
            waiting: metrics.gauge(
                "presim_feed_lag_sub_blocks",
                "Sub-blocks, or blocks without pre-confirmations, that wait while the feed is late."),
            block: metrics.gauge("presim_head_number", "Number of the newest sealed block."),
            block_time: metrics.gauge(
                "presim_head_timestamp_seconds",
                "Timestamp of the newest sealed block, in Unix seconds."),
            pooled: metrics.gauge("presim_pool_transactions", "Transactions waiting to be mined."),
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
                    let (number, feed) =
                        (snapshots.load().head().number(), FeedState::Degraded(FeedProblem::Execution));
                    if let Err(unfit) = snapshots.apply(Record::GoBack { number, feed }) {
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
