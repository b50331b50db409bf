//! The lanes: their bounds, and the rules by which they admit and reject requests.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::{Duration, Instant},
};

use super::{
    constants::{
        ALWAYS_ADMITTED, AT_EASE_PART, BACKLOG_WAIT, BETWEEN_ARRIVALS, LONG_BACKLOG_WAIT, LONG_QUEUE, WARNING_INTERVAL,
    },
    cost::{Cost, nanos},
    flow::LaneName,
    load::{Demand, Load},
};
use crate::{
    store::StoreError,
    telemetry::{Counter, Gauge, Histogram, Metrics},
};

/// The number of workers, and the bounds on the requests that wait for them.
#[derive(Clone, Copy, Debug)]
pub struct ExecutorConfig {
    /// Number of CPU workers; 0 counts as 1.
    pub workers: usize,
    /// Most requests that may wait in the lane of short calls. The lane of reads has the same bound.
    pub queue_short: usize,
    /// Most requests that may wait in the lane of bundles. The lane of the past has the same bound.
    pub queue_bundle: usize,
    /// Longest expected wait in a lane at ease, if more than a few requests wait there already.
    pub queue_wait: Duration,
    /// Longest expected wait in an overloaded lane, in per cent of a request's run time.
    pub overload_wait: u32,
    /// Time from a request's arrival to its deadline.
    pub deadline: Duration,
}

/// Why a request was not run, or not run to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// The lane holds as many waiting requests as it may.
    #[error("too busy: {waiting} {lane} requests are waiting already")]
    QueueFull {
        /// The lane that rejected the request.
        lane: LaneName,
        /// Number of requests that wait, which is the lane's bound.
        waiting: usize,
        /// The expected wait of the request.
        wait: Duration,
    },
    /// The request was expected to wait too long.
    #[error("too busy: the {lane} lane is overloaded, and the request would wait {} µs", wait.as_micros())]
    Overloaded {
        /// The lane that rejected the request.
        lane: LaneName,
        /// The expected wait of the request.
        wait: Duration,
        /// Whether the lane was at ease until this request.
        was_at_ease: bool,
    },
    /// The deadline passed before a worker was free.
    #[error("the request waited past its deadline")]
    Deadline,
    /// The run panicked.
    #[error("internal error {id:#x}: the log has more under this id")]
    Panicked {
        /// The id of the panic in the log.
        id: u64,
    },
    /// The run needed data of the store, which has failed.
    #[error(transparent)]
    Store(StoreError),
    /// The node is stopping.
    #[error("the node is stopping")]
    Stopping,
}

impl Rejected {
    /// Returns the lane that had no room, the expected wait, and the flag that bounds it; `None` for any other reason.
    pub const fn busy(&self) -> Option<(LaneName, Duration, &'static str)> {
        match *self {
            Self::QueueFull { lane, wait, .. } => Some((lane, wait, lane.flag())),
            Self::Overloaded { lane, wait, was_at_ease: true } => Some((lane, wait, "--queue-wait-ms")),
            Self::Overloaded { lane, wait, was_at_ease: false } => Some((lane, wait, "--overload-wait")),
            Self::Deadline | Self::Panicked { .. } | Self::Store(_) | Self::Stopping => None,
        }
    }
}

/// A lane: its bounds and deadline, the number of requests that wait or run in it, and the rules by which it admits more.
/// The [executor](super::Executor) measures its load, and closes it.
///
/// A lane at ease admits a request if few wait, or if the expected wait is short (`--queue-wait-ms`) and there is no
/// backlog. An overloaded lane ([`Load`]) admits a request if it can begin soon (`--overload-wait`), or if its client
/// asks for less than its quota. The expected wait follows from the requests ahead and their mean run time.
#[derive(Debug)]
pub struct Lane {
    pub name: LaneName,
    config: ExecutorConfig,
    /// Most requests that may wait.
    most: usize,
    /// Number of requests that were admitted and are not answered: they wait, run, or have state fetched.
    under_way: AtomicUsize,
    /// Number of requests that wait or run.
    inside: AtomicUsize,
    /// Number of jobs that run on a worker.
    pub running: AtomicUsize,
    /// The run time of a request on a worker.
    pub cost: Cost,
    pub load: Load,
    began: Instant,
    /// When more than a few requests began to wait, in nanoseconds from `began`; 0 while few wait.
    backlog_since: AtomicU64,
    is_closed: AtomicBool,
    rejected: Counter,
    /// When a rejection was last logged, in seconds from `began`; 0 for never.
    last_warning: AtomicU64,
    pub waited: Histogram,
    gauges: LaneGauges,
    /// Counts the jobs of all lanes that panicked.
    pub panics: Counter,
}

/// The gauges of a lane, which are set each time that its load is measured.
#[derive(Debug)]
struct LaneGauges {
    waiting: Gauge,
    running: Gauge,
    overloaded: Gauge,
}

/// Counts a request as in progress in a lane, until it is dropped.
#[derive(Debug)]
pub struct UnderWay<'a>(&'a AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// A permit to wait or run in a lane. Released on drop.
#[derive(Debug)]
pub struct LanePermit {
    lane: Arc<Lane>,
    /// Total run time of the jobs that had the permit, in nanoseconds; 0 if none has run.
    took: AtomicU64,
}

impl Lane {
    pub fn new(name: LaneName, config: &ExecutorConfig, metrics: &Metrics) -> Self {
        let labels = [("lane", name.into())];
        Self {
            name,
            config: *config,
            most: match name {
                LaneName::Read | LaneName::Short => config.queue_short,
                LaneName::Bundle | LaneName::Past => config.queue_bundle,
                // The watched bundles are run a few at a time.
                LaneName::Watch => usize::MAX,
            },
            under_way: AtomicUsize::new(0),
            inside: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            cost: Cost::default(),
            load: Load::new(config.workers),
            began: Instant::now(),
            backlog_since: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            rejected: metrics.counter_with(
                "presim_queue_rejected_total",
                "Requests rejected because their lane was full or overloaded.",
                &labels,
            ),
            last_warning: AtomicU64::new(0),
            waited: metrics.histogram_with(
                "presim_queue_wait_seconds",
                "Time from a job's arrival to its start.",
                &labels,
            ),
            gauges: LaneGauges {
                waiting: metrics.gauge_with("presim_queue_depth", "Jobs waiting for a worker.", &labels),
                running: metrics.gauge_with("presim_jobs_running", "Jobs running on a worker.", &labels),
                overloaded: metrics.gauge_with(
                    "presim_queue_overloaded",
                    "1 while the lane is overloaded, else 0.",
                    &labels,
                ),
            },
            panics: metrics.counter("presim_panics_total", "Jobs that panicked and were answered with -32603."),
        }
    }

    /// Returns whether the lane rejects requests for their expected wait. Reads are short, and few watched bundles run at
    /// a time.
    pub const fn may_be_overloaded(&self) -> bool {
        matches!(self.name, LaneName::Short | LaneName::Bundle | LaneName::Past)
    }

    /// Admits a request of a client with this demand.
    ///
    /// # Errors
    ///
    /// Returns [`Rejected::QueueFull`] if as many requests wait as may, and [`Rejected::Overloaded`] if the expected wait
    /// is too long for the demand. Either error leaves the lane overloaded.
    pub fn admit(self: &Arc<Self>, demand: Demand) -> Result<LanePermit, Rejected> {
        // The permit is taken before the check, so that two requests at once never both get the last one.
        let permit = LanePermit { lane: self.clone(), took: AtomicU64::new(0) };
        let inside = self.inside.fetch_add(1, Relaxed) + 1;
        let waiting = inside.saturating_sub(self.config.workers);
        let wait = self.wait(waiting);
        let rejected = if waiting > self.most {
            Rejected::QueueFull { lane: self.name, waiting: self.most, wait }
        } else if waiting > 0 && self.may_be_overloaded() && wait > self.longest_wait(waiting, wait, demand) {
            Rejected::Overloaded { lane: self.name, wait, was_at_ease: demand == Demand::AtEase }
        } else {
            return Ok(permit);
        };
        self.load.overload(Instant::now());
        Err(rejected)
    }

    /// Counts a rejection, and logs a warning at most once in `WARNING_INTERVAL`.
    pub fn reject(&self, rejected: Rejected) -> Rejected {
        self.rejected.increment(1);
        let Some((_, wait, flag)) = rejected.busy() else { return rejected };
        let (now, last) = (1 + self.began.elapsed().as_secs(), self.last_warning.load(Relaxed));
        let is_due = last == 0 || now >= last + WARNING_INTERVAL.as_secs();
        if is_due && self.last_warning.compare_exchange(last, now, Relaxed, Relaxed).is_ok() {
            tracing::warn!(lane = %self.name, wait_ms = wait.as_millis(), flag, "requests are rejected: {rejected}");
        }
        rejected
    }

    /// Returns the longest age of a backlog in the sockets of a thread: `--queue-wait-ms`, or less if the lane was
    /// overloaded lately.
    pub fn backlog_limit(&self) -> Duration {
        self.config.queue_wait.min(self.load.at_ease_for() / AT_EASE_PART)
    }

    /// Returns the number of requests that wait or run.
    pub fn inside(&self) -> usize {
        self.inside.load(Relaxed)
    }

    /// Returns the expected wait of the next request.
    pub fn expected_wait(&self) -> Duration {
        self.wait((self.inside() + 1).saturating_sub(self.config.workers))
    }

    /// Admits a request that will run on a worker, or have state fetched, until it is answered.
    ///
    /// # Errors
    ///
    /// Returns [`Rejected::Stopping`] if the lane is closed.
    pub fn begin(&self) -> Result<UnderWay<'_>, Rejected> {
        // Counted before the check, so that a lane which is closed and unused stays unused.
        self.under_way.fetch_add(1, SeqCst);
        let under_way = UnderWay(&self.under_way);
        if self.is_closed.load(SeqCst) { Err(Rejected::Stopping) } else { Ok(under_way) }
    }

    /// Rejects all further requests.
    pub fn close(&self) {
        self.is_closed.store(true, SeqCst);
    }

    /// Returns whether a request is in progress, or a job whose request was cancelled has not ended yet.
    pub fn is_used(&self) -> bool {
        self.under_way.load(SeqCst) > 0 || self.inside() > 0
    }

    /// Measures the load, and sets the gauges. `waiting` jobs wait in the queues of the lane.
    pub fn measure(&self, now: Instant, waiting: usize) {
        self.load.measure(now);
        self.gauges.waiting.set(waiting as f64);
        self.gauges.running.set(self.running.load(Relaxed) as f64);
        self.gauges.overloaded.set(f64::from(u8::from(self.load.is_overloaded())));
    }

    fn wait(&self, waiting: usize) -> Duration {
        Duration::from_nanos((waiting as u64).saturating_mul(self.cost.mean()) / self.config.workers as u64)
    }

    /// Returns the longest expected wait of a request that is admitted.
    fn longest_wait(&self, waiting: usize, wait: Duration, demand: Demand) -> Duration {
        match demand {
            Demand::AtEase if waiting <= ALWAYS_ADMITTED * self.config.workers => {
                if self.backlog_since.load(Relaxed) > 0 {
                    self.backlog_since.store(0, Relaxed);
                }
                Duration::MAX
            }
            Demand::AtEase if self.has_backlog(waiting, wait) => Duration::ZERO,
            Demand::AtEase => self.config.queue_wait,
            Demand::BelowQuota => Duration::MAX,
            Demand::AboveQuota | Demand::Unknown => {
                Duration::from_nanos(self.cost.overload_wait(self.config.overload_wait)).max(BETWEEN_ARRIVALS)
            }
        }
    }

    /// Returns whether many requests wait because of a long backlog, rather than a burst that is being worked off
    /// (`CoDel`'s distinction, RFC 8289): for longer than a request may wait, there were always more than a few waiting
    /// requests. Clients that wait for their answers cause such a backlog too, so it is only long if many requests wait,
    /// or if they wait for long.
    fn has_backlog(&self, waiting: usize, wait: Duration) -> bool {
        let (now, most) = (nanos(self.began.elapsed()).max(1), self.config.queue_wait);
        let is_long = wait > most / BACKLOG_WAIT
            || (waiting > LONG_QUEUE * self.config.workers && wait > most / LONG_BACKLOG_WAIT);
        match self.backlog_since.load(Relaxed) {
            0 => self.backlog_since.store(now, Relaxed),
            since if is_long => return now.saturating_sub(since) > nanos(most),
            _ => {}
        }
        false
    }
}

impl LanePermit {
    /// Adds a run of length `took`. The runs together count towards the lane's cost as one request.
    pub fn add(&self, took: Duration) {
        self.took.fetch_add(nanos(took), Relaxed);
    }
}

impl Drop for LanePermit {
    fn drop(&mut self) {
        let took = *self.took.get_mut();
        // A request that was cancelled before it ran says nothing about the cost of requests.
        if took > 0 {
            self.lane.cost.learn(Duration::from_nanos(took));
        }
        self.lane.inside.fetch_sub(1, Relaxed);
    }
}
