//! The lanes: their bounds, and the rules by which they admit and reject requests.

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

use tokio::sync::Notify;

use super::{
    constants::{ALWAYS_ADMITTED, AT_EASE_PART, BACKLOG_WAIT, BETWEEN_ARRIVALS, LONG_BACKLOG_WAIT, LONG_QUEUE},
    cost::{Cost, nanos},
    flow::LaneName,
    load::{Demand, Load},
};
use crate::{
    store::StoreError,
    telemetry::{Counter, Histogram, Metrics},
};

/// The number of workers, and the bounds on the requests that wait for them.
#[derive(Clone, Copy, Debug)]
pub struct ExecutorConfig {
    /// Number of CPU workers; 0 counts as 1.
    pub workers: usize,
    /// Most requests that may wait in the lane of short calls. The lane of reads has the same bound.
    pub queue_short: usize,
    /// Most requests that may wait in the lane of bundles.
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
pub enum Refused {
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

impl Refused {
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

/// A lane: the number of requests that wait or run in it, and the rules by which it admits more.
///
/// A lane at ease admits a request if few wait, or if the expected wait is short (`--queue-wait-ms`) and there is no
/// backlog. An overloaded lane ([`Load`]) admits a request if it can begin soon (`--overload-wait`), or if its client
/// asks for less than its quota. The expected wait follows from the requests ahead and their mean run time.
#[derive(Debug)]
pub struct Lane {
    pub name: LaneName,
    workers: usize,
    /// Most requests that may wait.
    most: usize,
    queue_wait: Duration,
    /// Longest expected wait while the lane is overloaded, in per cent of a request's run time.
    overload_wait: u32,
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
    is_empty: Notify,
    pub refused: Counter,
    pub waited: Histogram,
}

/// A permit to wait or run in a lane. Released on drop.
#[derive(Debug)]
pub struct LanePermit(Arc<Lane>);

impl Lane {
    pub fn new(name: LaneName, config: &ExecutorConfig, metrics: &Metrics) -> Self {
        let labels = [("lane", name.into())];
        Self {
            name,
            workers: config.workers.max(1),
            most: match name {
                LaneName::Read | LaneName::Short => config.queue_short,
                LaneName::Bundle => config.queue_bundle,
                // The standing bundles are run a few at a time.
                LaneName::Watch => usize::MAX,
            },
            queue_wait: config.queue_wait,
            overload_wait: config.overload_wait,
            inside: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            cost: Cost::default(),
            load: Load::new(config.workers.max(1)),
            began: Instant::now(),
            backlog_since: AtomicU64::new(0),
            is_empty: Notify::new(),
            refused: metrics.counter(
                "presim_queue_refused_total",
                "Requests rejected because their lane was full or overloaded.",
                &labels,
            ),
            waited: metrics.histogram("presim_queue_wait_seconds", "Time from a job's arrival to its start.", &labels),
        }
    }

    /// Admits a request of a client with this demand.
    ///
    /// # Errors
    ///
    /// Returns [`Refused::QueueFull`] if as many requests wait as may, and [`Refused::Overloaded`] if the expected wait
    /// is too long for the demand. Either error leaves the lane overloaded.
    pub fn admit(self: &Arc<Self>, demand: Demand) -> Result<LanePermit, Refused> {
        // The permit is taken before the check, so that two requests at once never share the last one.
        let permit = LanePermit(self.clone());
        let inside = self.inside.fetch_add(1, AcqRel) + 1;
        let waiting = inside.saturating_sub(self.workers);
        let wait = self.wait(waiting);
        let refused = if waiting > self.most {
            Refused::QueueFull { lane: self.name, waiting: self.most, wait }
        } else if !matches!(self.name, LaneName::Read | LaneName::Watch)
            && waiting > 0
            && wait > self.longest_wait(waiting, wait, demand)
        {
            Refused::Overloaded { lane: self.name, wait, was_at_ease: demand == Demand::AtEase }
        } else {
            return Ok(permit);
        };
        self.load.overload(Instant::now());
        Err(refused)
    }

    /// Returns the longest age of a backlog in the sockets of a thread: `--queue-wait-ms`, or less if the lane was
    /// overloaded lately.
    pub fn backlog_limit(&self) -> Duration {
        self.queue_wait.min(self.load.at_ease_for() / AT_EASE_PART)
    }

    pub fn inside(&self) -> usize {
        self.inside.load(Acquire)
    }

    /// Returns the expected wait of the next request.
    pub fn expected_wait(&self) -> Duration {
        self.wait((self.inside() + 1).saturating_sub(self.workers))
    }

    /// Waits until no request waits or runs in the lane.
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

    /// Returns the longest expected wait of a request that is admitted.
    fn longest_wait(&self, waiting: usize, wait: Duration, demand: Demand) -> Duration {
        match demand {
            Demand::AtEase if waiting <= ALWAYS_ADMITTED * self.workers => {
                if self.backlog_since.load(Relaxed) > 0 {
                    self.backlog_since.store(0, Relaxed);
                }
                Duration::MAX
            }
            Demand::AtEase if self.has_backlog(waiting, wait) => Duration::ZERO,
            Demand::AtEase => self.queue_wait,
            Demand::BelowQuota => Duration::MAX,
            Demand::AboveQuota | Demand::Unknown => {
                Duration::from_nanos(self.cost.overload_wait(self.overload_wait)).max(BETWEEN_ARRIVALS)
            }
        }
    }

    /// Returns whether many requests wait because of a long backlog, rather than a burst that is being worked off
    /// (`CoDel`'s distinction, RFC 8289): for longer than a request may wait, there were always more than a few waiting
    /// requests. Clients that wait for their answers cause such a backlog too, so it is only long if many requests wait,
    /// or if they wait for long.
    fn has_backlog(&self, waiting: usize, wait: Duration) -> bool {
        let (now, most) = (nanos(self.began.elapsed()).max(1), self.queue_wait);
        let is_long =
            wait > most / BACKLOG_WAIT || (waiting > LONG_QUEUE * self.workers && wait > most / LONG_BACKLOG_WAIT);
        match self.backlog_since.load(Relaxed) {
            0 => self.backlog_since.store(now, Relaxed),
            since if is_long => return now.saturating_sub(since) > nanos(most),
            _ => {}
        }
        false
    }
}

impl LanePermit {
    /// Releases the permit after a run of length `took`, which counts towards the lane's cost.
    pub fn served(self, took: Duration) {
        self.0.cost.learn(took);
    }
}

impl Drop for LanePermit {
    fn drop(&mut self) {
        if self.0.inside.fetch_sub(1, AcqRel) == 1 {
            self.0.is_empty.notify_waiters();
        }
    }
}
