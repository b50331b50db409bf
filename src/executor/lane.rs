//! The lanes: their bounds, whom they admit, and why not.

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
    flow::{Flow, LaneName},
    load::{Cost, Load, Standing, nanos},
};
use crate::telemetry::{Counter, Histogram, Metrics};

/// How many workers, and how much may wait for them.
#[derive(Clone, Copy, Debug)]
pub struct ExecutorConfig {
    /// CPU workers.
    pub workers: usize,
    /// Requests that may wait in the lane of short calls, and in the lane of reads.
    pub queue_short: usize,
    /// Requests that may wait in the lane of bundles.
    pub queue_bundle: usize,
    /// How long a request may expect to wait in a lane that is at ease, where more than a few wait already.
    pub queue_wait: Duration,
    /// How long a request may expect to wait in an overloaded lane, in per cent of what one takes.
    pub overload_wait: u32,
    /// From a job's arrival to its end.
    pub deadline: Duration,
}

/// Why a request was not run, or not to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The lane is full.
    #[error("too busy: {waiting} {lane} requests are waiting already")]
    QueueFull {
        /// Which lane.
        lane: LaneName,
        /// How many it holds.
        waiting: usize,
        /// The expected wait.
        wait: Duration,
    },
    /// The wait would be too long.
    #[error("too busy: the {lane} lane is overloaded, and the request would wait {} µs", wait.as_micros())]
    Overloaded {
        /// Which lane.
        lane: LaneName,
        /// The expected wait.
        wait: Duration,
        /// Whether the lane was not overloaded before.
        was_at_ease: bool,
    },
    /// Its time was up before a worker was free.
    #[error("the request waited past its deadline")]
    Deadline,
    /// It panicked.
    #[error("internal error {id:#x}: the log has more under this id")]
    Panicked {
        /// What the log calls it.
        id: u64,
    },
    /// The node is stopping.
    #[error("the node is stopping")]
    Stopping,
}

impl Refused {
    /// The lane that had no room, the expected wait, and the flag that sets how long it may be; `None` if that was not the reason.
    pub const fn busy(&self) -> Option<(LaneName, Duration, &'static str)> {
        match *self {
            Self::QueueFull { lane, wait, .. } => Some((lane, wait, lane.flag())),
            Self::Overloaded { lane, wait, was_at_ease: true } => Some((lane, wait, "--queue-wait-ms")),
            Self::Overloaded { lane, wait, was_at_ease: false } => Some((lane, wait, "--overload-wait")),
            Self::Deadline | Self::Panicked { .. } | Self::Stopping => None,
        }
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
    /// A queue may stand in the sockets for a part of the time that the lane has been at ease: for one of so many.
    const PATIENCE: u32 = 4;
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
        self.load.weigh(flow.lane(self.name), Instant::now())
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
        self.load.overload(Instant::now());
    }

    /// How long a queue may stand in the sockets of a thread: `--queue-wait-ms`, and less where the lane was overloaded lately. At a load about what
    /// the workers can do a lane is at ease every now and then, and the queue in the sockets is the same one as before.
    pub fn patience(&self) -> Duration {
        self.queue_wait.min(self.load.at_ease_for() / Self::PATIENCE)
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
            Standing::AboveShare | Standing::Unknown => {
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
