//! The sources of state, and the one writer that turns them into snapshots.

pub mod chain_file;
pub mod devnet;
pub mod live;
pub mod status;
pub mod sub_block;
pub mod testing;

use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use actix::{Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Message, WrapFuture};
use futures::{FutureExt, future::LocalBoxFuture};

use self::status::FeedStatus;
use crate::{
    ledger::{Chain, FeedProblem, FeedState, Record, SnapshotId, Snapshots, Stamp, Unfit},
    pool::Pool,
    publish::{Change, Commit, Sink, Unpublished},
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
    /// The sinks to which changes go before they are visible, in order.
    sinks: Vec<Box<dyn Sink>>,
    /// The chain after the changes that are not committed yet, if there are any.
    uncommitted: Option<Arc<Chain>>,
    published: Counter,
    divergences: Counter,
    publish_seconds: Histogram,
}

impl Feed {
    /// Creates a feed into `snapshots`, whose changes go to `sinks` first.
    pub fn new(snapshots: Arc<Snapshots>, sinks: Vec<Box<dyn Sink>>, pool: Arc<Pool>, metrics: &Metrics) -> Self {
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
            sinks,
            uncommitted: None,
            snapshots,
            pool,
        }
    }

    /// Counts a difference from a producer's word.
    pub fn count_divergence(&self) {
        self.divergences.increment(1);
    }

    /// Returns a feed into `snapshots` that nobody sees: its changes go to `sink`. It shares the metrics, but for the health of the
    /// feed and what is visible.
    #[must_use]
    pub fn unseen(&self, snapshots: Arc<Snapshots>, sink: Box<dyn Sink>) -> Self {
        let unseen = Self::new(snapshots, vec![sink], self.pool.clone(), &Metrics::default());
        Self { metrics: self.metrics.clone(), divergences: self.divergences.clone(), ..unseen }
    }

    /// Publishes a change, and returns its id. Where a sink is waited for, the change is visible once [`committed`](Self::committed)
    /// has returned, and what is published meanwhile stands on it. Elsewhere it is visible at once, and where no sink takes it nothing is
    /// allocated besides the snapshot.
    ///
    /// # Errors
    ///
    /// Returns [`Unfit`] as [`Chain::apply`] does. Nothing has changed then.
    pub fn publish(&mut self, record: Record) -> Result<SnapshotId, Unfit> {
        if self.uncommitted.is_none() && !self.sinks.iter().any(|sink| sink.takes()) {
            return self.snapshots.apply(record);
        }
        let before = self.uncommitted.clone().unwrap_or_else(|| self.snapshots.load());
        let stamp = Stamp::now(before.last.next());
        let change = Change::of(&before, stamp.id, &record);
        let mut after = Chain::clone(&before);
        after.apply(stamp, record)?;
        let after = Arc::new(after);
        let mut waits = self.uncommitted.is_some();
        for sink in &mut self.sinks {
            waits |= sink.take(&change, &after);
        }
        if waits {
            self.uncommitted = Some(after);
        } else {
            self.snapshots.replace_all(after);
        }
        Ok(stamp.id)
    }

    /// Publishes a change that fits any chain.
    pub fn publish_or_log(&mut self, record: Record) {
        if let Err(unfit) = self.publish(record) {
            tracing::error!(%unfit, "a change of the chain is not published");
        }
    }

    /// Waits until what was published is committed by each sink, in their order, and shows it. So whatever a client has seen is on disk
    /// and in the stream. While a sink cannot commit, the feed is degraded.
    ///
    /// # Errors
    ///
    /// Returns [`Unpublished`] if a sink cannot commit it. Nothing of it is shown then, or ever will be.
    pub async fn committed(&mut self) -> Result<(), Unpublished> {
        match self.uncommitted.take() {
            Some(after) => self.commit(after).await,
            None => Ok(()),
        }
    }

    /// Waits as [`committed`](Self::committed) does for what the sinks have taken, and shows `after`.
    ///
    /// # Errors
    ///
    /// Returns [`Unpublished`] as [`committed`](Self::committed) does.
    pub async fn commit(&mut self, after: Arc<Chain>) -> Result<(), Unpublished> {
        let (before, mut trouble) = (self.status.state(), None);
        let mut committed = Ok(());
        for sink in &mut self.sinks {
            committed = loop {
                match sink.commit().await {
                    Ok(Commit::Done) => break Ok(()),
                    Ok(Commit::Waits(problem)) if trouble == Some(problem) => {}
                    Ok(Commit::Waits(problem)) => {
                        trouble = Some(problem);
                        tracing::warn!("publishing paused: {}", problem.meaning());
                        show(&mut self.status, &self.snapshots, FeedState::Degraded(problem));
                    }
                    Err(unpublished) => break Err(unpublished),
                }
            };
            if committed.is_err() {
                break;
            }
        }
        // A node whose chain another one publishes now has no trouble with its sinks either.
        if let Some(problem) = trouble {
            tracing::info!("publishing resumed: {}", problem.meaning());
            show(&mut self.status, &self.snapshots, before);
        }
        match &committed {
            Ok(()) => {
                let state = after.feed();
                self.snapshots.replace_all(after);
                self.status.show_state(state);
            }
            Err(_) => self.sinks.iter_mut().for_each(|sink| sink.discard()),
        }
        committed
    }

    /// Returns the reason why nothing can be published any more, if a sink knows one.
    pub fn failure(&self) -> Option<Unpublished> {
        self.sinks.iter().find_map(|sink| sink.failure())
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
        show(&mut self.status, &self.snapshots, state)
    }

    /// Counts a snapshot that was just published, of input that arrived at `since`.
    pub fn count(&mut self, since: Instant) {
        self.published.increment(1);
        self.publish_seconds.record(since.elapsed());
        self.sinks.iter_mut().for_each(|sink| sink.note_arrival(since));
    }
}

/// Shows a health of the feed, and returns whether it has changed.
fn show(status: &mut FeedStatus, snapshots: &Snapshots, state: FeedState) -> bool {
    if state == status.state() {
        return false;
    }
    let is_other = status.show_state(state);
    snapshots.update(|chain| chain.show_feed(state));
    is_other
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
