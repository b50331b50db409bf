//! The lanes: their bounds, their figures and their end.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
    time::{Duration, Instant},
};

use actix::{Actor, AsyncContext, Context, Handler, Message, ResponseFuture};
use tokio::sync::Notify;

use super::{
    Executor, ExecutorConfig, Flow, Refused,
    load::{Cost, Load, Standing, nanos},
};
use crate::telemetry::{Counter, Gauge, Histogram, Metrics};

/// The lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaneName {
    /// Reads of what is known, and sends.
    Read,
    /// Single calls.
    Short,
    /// Simulations of bundles.
    Bundle,
}

impl LaneName {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Read, Self::Short, Self::Bundle];

    /// Its name in metrics and errors.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Short => "short",
            Self::Bundle => "bundle",
        }
    }

    /// The flag that sets how many requests may wait in it.
    pub const fn flag(self) -> &'static str {
        match self {
            Self::Read | Self::Short => "--queue-short",
            Self::Bundle => "--queue-bundle",
        }
    }
}

impl std::fmt::Display for LaneName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A lane: how many requests wait or run in it, and who else may.
///
/// While it is at ease, a request is admitted if few wait, or if the expected wait is short (`--queue-wait-ms`) and no queue stands. While it is overloaded
/// ([`Load`]), a request is admitted if it can begin soon (`--overload-wait`), or if its client asks for less than its share. The expected wait
/// follows from how many are before it and from the mean of what requests take.
#[derive(Debug)]
pub struct Lane {
    pub name: LaneName,
    workers: usize,
    /// Requests that may wait.
    most: usize,
    queue_wait: Duration,
    /// The longest expected wait of an overloaded lane, in per cent of what a request takes.
    overload_wait: u64,
    /// Requests that wait or run.
    inside: AtomicUsize,
    /// Jobs that run.
    pub running: AtomicUsize,
    /// What a request takes on a worker.
    pub cost: Cost,
    pub load: Load,
    began: Instant,
    /// Since when a queue stands, in nanoseconds from `began`; 0 while none does.
    stands_since: AtomicU64,
    is_empty: Notify,
    pub refused: Counter,
    pub waited: Histogram,
}

/// A permit to wait or run in a lane. Released on drop.
#[derive(Debug)]
pub struct Permit(Arc<Lane>);

impl Lane {
    /// Requests a worker that may always wait while the lane is at ease: a handful of clients is served, however long what they ask takes.
    const FEW: usize = 8;
    /// Requests a worker that are many, if their wait is long too.
    const MANY: usize = 64;
    /// A wait that nobody is rejected for: with less, workers would run dry between two arrivals.
    const BETWEEN_ARRIVALS: Duration = Duration::from_micros(200);

    pub fn new(name: LaneName, config: &ExecutorConfig, metrics: &Metrics) -> Self {
        let labels = [("lane", name.as_str())];
        Self {
            name,
            workers: config.workers.max(1),
            most: match name {
                LaneName::Read | LaneName::Short => config.queue_short,
                LaneName::Bundle => config.queue_bundle,
            },
            queue_wait: config.queue_wait,
            overload_wait: config.overload_wait.into(),
            inside: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            cost: Cost::default(),
            load: Load::new(config.workers.max(1)),
            began: Instant::now(),
            stands_since: AtomicU64::new(0),
            is_empty: Notify::new(),
            refused: metrics.counter(
                "presim_queue_refused_total",
                "Requests refused because their lane was full or overloaded.",
                &labels,
            ),
            waited: metrics.histogram("presim_queue_wait_seconds", "From a job's arrival to its start.", &labels),
        }
    }

    /// How a request of `flow` that has just arrived stands to the load.
    pub fn weigh(&self, flow: &Flow) -> Standing {
        if !self.load.is_overloaded() {
            return Standing::AtEase;
        }
        self.load.weigh(flow.lane(self.name), self.cost.mean(), Instant::now())
    }

    /// Admits a request of this standing.
    ///
    /// # Errors
    /// Returns [`Refused::QueueFull`] if as many wait as may, and [`Refused::Overloaded`] if the wait would be too long.
    pub fn admit(self: &Arc<Self>, standing: Standing) -> Result<Permit, Refused> {
        // Taken first, so that two at once never share the last one.
        let permit = Permit(self.clone());
        let inside = self.inside.fetch_add(1, AcqRel) + 1;
        let waiting = inside.saturating_sub(self.workers);
        let wait = self.wait(waiting);
        let refused = if waiting > self.most {
            Refused::QueueFull { lane: self.name, waiting: self.most, wait }
        } else if self.name != LaneName::Read && waiting > 0 && wait > self.longest_wait(waiting, standing) {
            Refused::Overloaded { lane: self.name, wait, was_at_ease: standing == Standing::AtEase }
        } else {
            return Ok(permit);
        };
        self.overload();
        Err(refused)
    }

    /// More is asked than can be served.
    pub fn overload(&self) {
        self.load.overload(self.cost.mean(), Instant::now());
    }

    /// Requests that wait or run.
    pub fn inside(&self) -> usize {
        self.inside.load(Acquire)
    }

    /// Whether a queue stands, rather than being a burst that is worked off (as CoDel tells them apart, RFC 8289): for longer than a request may
    /// wait, there were never few who waited. Clients that wait for their answers make such a queue too: so it is only long if they are many, or
    /// if they wait for long.
    fn queue_stands(&self, waiting: usize) -> bool {
        let now = nanos(self.began.elapsed()).max(1);
        let since = self.stands_since.load(Relaxed);
        if waiting <= Self::FEW * self.workers {
            if since > 0 {
                self.stands_since.store(0, Relaxed);
            }
            return false;
        }
        if since == 0 {
            self.stands_since.store(now, Relaxed);
            return false;
        }
        let (wait, most) = (self.wait(waiting), self.queue_wait);
        let is_long = wait > most / 4 || (waiting > Self::MANY * self.workers && wait > most / 80);
        is_long && now.saturating_sub(since) > nanos(most)
    }

    /// How long the next request would wait.
    pub fn expected_wait(&self) -> Duration {
        self.wait((self.inside() + 1).saturating_sub(self.workers))
    }

    /// Waits until nothing waits and nothing runs.
    pub async fn drained(&self) {
        loop {
            let emptied = self.is_empty.notified();
            if self.inside() == 0 {
                return;
            }
            emptied.await;
        }
    }

    fn wait(&self, waiting: usize) -> Duration {
        Duration::from_nanos((waiting as u64).saturating_mul(self.cost.mean()) / self.workers as u64)
    }

    fn longest_wait(&self, waiting: usize, standing: Standing) -> Duration {
        match standing {
            Standing::AtEase => {
                let stands = self.queue_stands(waiting);
                match waiting > Self::FEW * self.workers {
                    true if stands => Duration::ZERO,
                    true => self.queue_wait,
                    false => Duration::MAX,
                }
            }
            Standing::BelowShare => Duration::MAX,
            Standing::AboveShare => {
                let soon = self.cost.most().saturating_mul(self.overload_wait) / 100;
                Duration::from_nanos(soon).max(Self::BETWEEN_ARRIVALS)
            }
        }
    }
}

impl Permit {
    /// Releases the permit after a run that took this long.
    pub fn served(self, took: Duration) {
        self.0.cost.learn(took);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.0.inside.fetch_sub(1, AcqRel) == 1 {
            self.0.is_empty.notify_waiters();
        }
    }
}

/// Owns one lane's figures and its orderly end. Jobs do not pass through it: they go straight to the lane's queue.
pub struct LaneActor {
    lane: Arc<Lane>,
    executor: Executor,
    waiting: Gauge,
    running: Gauge,
    overloaded: Gauge,
}

impl LaneActor {
    /// How often the figures are taken.
    const INTERVAL: Duration = Duration::from_millis(100);

    /// The actor of `lane`.
    pub fn new(lane: LaneName, executor: Executor, metrics: &Metrics) -> Self {
        let labels = [("lane", lane.as_str())];
        Self {
            lane: executor.lane(lane).clone(),
            executor,
            waiting: metrics.gauge("presim_queue_depth", "Jobs that wait for a worker.", &labels),
            running: metrics.gauge("presim_jobs_running", "Jobs that run.", &labels),
            overloaded: metrics.gauge("presim_queue_overloaded", "1 while the lane is overloaded, else 0.", &labels),
        }
    }
}

impl Actor for LaneActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.run_interval(Self::INTERVAL, |actor, _| {
            let lane = &actor.lane;
            lane.load.measure(lane.cost.mean(), Instant::now());
            actor.waiting.set(actor.executor.waiting(lane.name) as f64);
            actor.running.set(lane.running.load(Acquire) as f64);
            actor.overloaded.set(f64::from(u8::from(lane.load.is_overloaded())));
        });
    }
}

/// Take no further jobs, and answer when none is left.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Drain;

impl Handler<Drain> for LaneActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: Drain, _: &mut Self::Context) -> Self::Result {
        self.executor.close();
        let lane = self.lane.clone();
        Box::pin(async move { lane.drained().await })
    }
}
