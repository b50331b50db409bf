//! The generator: one thread with some of the connections, which sends requests when they are due, or when an answer has come.
//!
//! In an open loop requests arrive on a clock and wait in a queue for a connection that is free. Latency counts from the arrival, so that a stall of
//! the target is seen by all who arrive while it lasts, as its users would see it; it cannot hold back the requests that would have shown it.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rand::{Rng, SeedableRng, rngs::SmallRng};
use tokio::{sync::mpsc, task::LocalSet, time::timeout};

use crate::{
    body::Body,
    client::client,
    connection::Connection,
    fault::Fault,
    queue::{Queue, arrive},
    record::{Interval, Recorder, Totals},
    sample::Sample,
    schedule::{Arrivals, Rate},
    target::Target,
};

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Each connection sends when it has the answer to what it sent before.
    Closed,
    /// On a clock.
    Open { rate: Rate, poisson: bool },
}

/// A load that lasts for a while.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub load: Load,
    pub connections: usize,
    pub duration: Duration,
}

impl Part {
    /// Arrivals a second; none in a closed loop, or where the rate changes.
    pub fn constant_rate(&self) -> Option<f64> {
        match self.load {
            Load::Open { rate, .. } if rate.from == rate.to => Some(rate.from),
            _ => None,
        }
    }
}

/// All bodies of a run, with how often each kind comes.
#[derive(Debug)]
pub struct Bodies {
    /// By workload, in the order of the mix.
    pub kinds: Vec<(String, u32, Vec<Body>)>,
}

/// A run of one load on one target.
#[derive(Clone)]
pub struct Segment {
    /// The target's place among the targets.
    pub place: usize,
    pub target: Target,
    pub bodies: Arc<Bodies>,
    pub load: Load,
    pub threads: usize,
    pub connections: usize,
    pub max_outstanding: usize,
    pub warmup: Duration,
    pub duration: Duration,
    pub interval: Duration,
    pub timeout: Duration,
    /// One request in so many is compared with a reference; none where it is 0.
    pub sample: u64,
    /// The target is asked which snapshot answers came from that do not say it.
    pub dating: bool,
    pub seed: u64,
    /// The ids of the first request.
    pub first_id: u64,
    pub stop: Arc<AtomicBool>,
    /// The newest snapshot that the target has told of.
    pub newest: Arc<AtomicU64>,
    pub samples: mpsc::Sender<Sample>,
}

/// What generators tell while they run.
pub enum Report {
    Interval(Box<Interval>),
    Ended {
        totals: Box<Totals>,
        /// Requests that were sent, those of the warm-up included.
        sent: u64,
    },
    /// A generator could not run.
    Failed(String),
}

/// Runs one generator to the end of its segment.
pub fn run(segment: &Segment, thread: usize, barrier: &Barrier, reports: &mpsc::UnboundedSender<Report>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            barrier.wait();
            drop(reports.send(Report::Failed(format!("no runtime: {error}"))));
            return;
        }
    };
    let recorder = match Recorder::new(segment.bodies.kinds.len()) {
        Ok(recorder) => recorder,
        Err(error) => {
            barrier.wait();
            drop(reports.send(Report::Failed(format!("no histogram: {error}"))));
            return;
        }
    };
    let (totals, sent) = LocalSet::new().block_on(&runtime, generate(segment, thread, recorder, barrier, reports));
    drop(reports.send(Report::Ended { totals: Box::new(totals), sent }));
}

async fn generate(
    segment: &Segment,
    thread: usize,
    recorder: Recorder,
    barrier: &Barrier,
    reports: &mpsc::UnboundedSender<Report>,
) -> (Totals, u64) {
    let share = |of: usize| of / segment.threads + usize::from(thread < of % segment.threads);
    let open = (0..share(segment.connections)).map(|_| timeout(segment.timeout, Connection::open(&segment.target)));
    let connections = futures::future::join_all(open).await;
    barrier.wait();
    let begun = Instant::now();
    let start = begun + segment.warmup;
    let generator = Rc::new(Generator {
        segment: segment.clone(),
        start,
        end: start + segment.duration,
        recorder: RefCell::new(recorder),
        queue: Queue::default(),
        rng: RefCell::new(SmallRng::seed_from_u64(segment.seed.wrapping_add(thread as u64))),
        // Each thread has ids of its own, in turn.
        id: Cell::new(segment.first_id + (thread as u64) * (1 << 31)),
        sent: Cell::new(0),
        until_sample: Cell::new(segment.sample),
    });
    let scheduler = match segment.load {
        Load::Open { rate, poisson } => {
            let rng = poisson.then(|| SmallRng::seed_from_u64(segment.seed.rotate_left(32) ^ thread as u64));
            let offset = thread as f64 / segment.threads as f64;
            let arrivals = Arrivals::new(rate.share(segment.threads), segment.warmup, segment.duration, offset, rng);
            let most = share(segment.max_outstanding).max(1);
            Some(tokio::task::spawn_local(arrive(generator.clone(), arrivals, begun, most)))
        }
        Load::Closed => None,
    };
    let clients: Vec<_> = connections
        .into_iter()
        .map(|connection| {
            let connection = match connection {
                Ok(Ok(connection)) => Some(connection),
                Ok(Err(error)) => {
                    generator.record(start, |recorder| recorder.fault(Fault::Connect, &error.to_string()));
                    None
                }
                Err(_) => {
                    generator.record(start, |recorder| recorder.fault(Fault::Connect, "no connection in time"));
                    None
                }
            };
            tokio::task::spawn_local(client(generator.clone(), connection))
        })
        .collect();
    let turns = tokio::task::spawn_local(turn(generator.clone(), reports.clone()));
    if let Some(scheduler) = scheduler {
        // A panic in a task ends with it: the others still tell what they saw.
        drop(scheduler.await);
        generator.queue.close();
    }
    for client in clients {
        drop(client.await);
    }
    turns.abort();
    // What ended during the run and what ended after it do not belong together: the turn is taken even when the ticker was not in time.
    let last = generator.recorder.borrow_mut().turn(0);
    drop(reports.send(Report::Interval(Box::new(last))));
    let sent = generator.sent.get();
    let totals = generator.recorder.borrow().totals.clone();
    (totals, sent)
}

/// Sends off each interval when it has ended.
async fn turn(generator: Rc<Generator>, reports: mpsc::UnboundedSender<Report>) {
    let Segment { interval, duration, .. } = generator.segment;
    let mut index = 0;
    let mut end = Duration::ZERO;
    while end < duration {
        end = (end + interval).min(duration);
        tokio::time::sleep_until((generator.start + end).into()).await;
        index += 1;
        let ended = generator.recorder.borrow_mut().turn(index);
        if reports.send(Report::Interval(Box::new(ended))).is_err() {
            return;
        }
    }
}

/// What the tasks of a thread share.
pub struct Generator {
    pub segment: Segment,
    start: Instant,
    end: Instant,
    pub recorder: RefCell<Recorder>,
    pub queue: Queue,
    rng: RefCell<SmallRng>,
    id: Cell<u64>,
    pub sent: Cell<u64>,
    until_sample: Cell<u64>,
}

impl Generator {
    /// Ctrl-C was pressed.
    pub fn stopped(&self) -> bool {
        self.segment.stop.load(Ordering::Relaxed)
    }

    /// Writes down what belongs to the run: what arrived during the warm-up does not.
    pub fn record(&self, arrived: Instant, record: impl FnOnce(&mut Recorder)) {
        if arrived >= self.start {
            record(&mut self.recorder.borrow_mut());
        }
    }

    /// The next request: of a kind as the mix has it.
    pub fn pick(&self) -> Option<&Body> {
        let mut rng = self.rng.borrow_mut();
        let kinds = &self.segment.bodies.kinds;
        let total: u32 = kinds.iter().map(|(_, weight, _)| weight).sum();
        let mut at = rng.random_range(0..total.max(1));
        let (_, _, bodies) = kinds.iter().find(|(_, weight, _)| {
            let found = at < *weight;
            at = at.saturating_sub(*weight);
            found
        })?;
        bodies.get(rng.random_range(0..bodies.len().max(1)))
    }

    /// Whether the next answer is to be compared with a reference's.
    pub fn is_sampled(&self) -> bool {
        let left = self.until_sample.get();
        if left == 0 {
            return false;
        }
        self.until_sample.set(if left == 1 { self.segment.sample } else { left - 1 });
        left == 1
    }

    /// Takes so many ids, and returns the first.
    pub fn next_ids(&self, count: u64) -> u64 {
        self.id.replace(self.id.get() + count)
    }

    /// When the next request arrives; none when the run is over.
    pub async fn arrival(&self) -> Option<Instant> {
        match self.segment.load {
            Load::Open { .. } => self.queue.take().await,
            Load::Closed => {
                let now = Instant::now();
                (now < self.end && !self.stopped()).then_some(now)
            }
        }
    }

    /// No request will be due any more.
    pub fn is_over(&self) -> bool {
        match self.segment.load {
            Load::Open { .. } => self.queue.closed.get() && self.queue.waiting.borrow().is_empty(),
            Load::Closed => Instant::now() >= self.end || self.stopped(),
        }
    }
}
