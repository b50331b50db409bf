//! The parts of a generator: its load, and the state that the tasks of its thread share.
//!
//! In an open loop requests arrive on a clock and wait in a queue for a free connection. Latency counts from the
//! arrival, so that all requests that arrive during a stall show it, as users would see it; it cannot hold them back.

use std::{
    cell::{Cell, RefCell},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rand::{Rng, SeedableRng, rngs::SmallRng};
use tokio::sync::mpsc;

use crate::{
    body::Body,
    queue::Queue,
    record::{Interval, Recorder, Totals},
    sample::Sample,
    schedule::Rate,
    target::Target,
    usage::NodeProcess,
};

/// The timing of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LoopKind {
    /// Each connection sends its next request when it has the answer to the last one.
    Closed,
    /// Requests arrive on a clock.
    Open { rate: Rate, poisson: bool },
}

/// A load with its duration.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub load: LoopKind,
    pub connections: usize,
    pub duration: Duration,
}

impl Part {
    /// Returns the arrivals per second; `None` in a closed loop, or if the rate changes.
    pub fn constant_rate(&self) -> Option<f64> {
        match self.load {
            LoopKind::Open { rate, .. } if rate.from == rate.to => Some(rate.from),
            _ => None,
        }
    }
}

/// All bodies of a run, with the weights of their kinds.
#[derive(Debug)]
pub struct Bodies {
    /// Name, weight and bodies of each workload, in the order of the mix.
    pub kinds: Vec<(String, u32, Vec<Body>)>,
}

/// A run of one load on one target.
#[derive(Clone)]
pub struct Segment {
    /// Index of the target among the targets.
    pub place: usize,
    pub target: Target,
    /// The process of the target, if it may be observed.
    pub process: Option<NodeProcess>,
    pub bodies: Arc<Bodies>,
    pub load: LoopKind,
    pub threads: usize,
    pub connections: usize,
    pub max_outstanding: usize,
    pub warmup: Duration,
    pub duration: Duration,
    pub interval: Duration,
    pub timeout: Duration,
    /// One request in this many is compared with a reference; 0 for none.
    pub sample: u64,
    /// Whether the target is asked for the snapshot of answers that do not name it.
    pub dating: bool,
    pub seed: u64,
    /// The first id of the segment's requests.
    pub first_id: u64,
    pub stop: Arc<AtomicBool>,
    /// The id of the newest snapshot that the target has announced.
    pub newest: Arc<AtomicU64>,
    pub samples: mpsc::Sender<Sample>,
}

/// A message from a generator to its segment.
pub enum GeneratorMessage {
    Interval(Box<Interval>),
    Ended {
        totals: Box<Totals>,
        /// Number of requests that were sent, including those of the warm-up.
        sent: u64,
    },
    /// The generator could not run, for this reason.
    Failed(String),
}

/// The state that the tasks of a thread share.
pub struct Generator {
    pub segment: Segment,
    pub start: Instant,
    end: Instant,
    pub recorder: RefCell<Recorder>,
    pub queue: Queue,
    rng: RefCell<SmallRng>,
    id: Cell<u64>,
    pub sent: Cell<u64>,
    until_sample: Cell<u64>,
}

impl Generator {
    /// Creates the generator of this thread, whose run begins after the warm-up.
    pub fn new(segment: &Segment, thread: usize, begun: Instant, recorder: Recorder) -> Self {
        let start = begun + segment.warmup;
        Self {
            segment: segment.clone(),
            start,
            end: start + segment.duration,
            recorder: RefCell::new(recorder),
            queue: Queue::default(),
            rng: RefCell::new(SmallRng::seed_from_u64(segment.seed.wrapping_add(thread as u64))),
            // Each thread has a range of ids of its own.
            id: Cell::new(segment.first_id + (thread as u64) * (1 << 31)),
            sent: Cell::new(0),
            until_sample: Cell::new(segment.sample),
        }
    }

    /// Returns whether the run was stopped by Ctrl-C.
    pub fn stopped(&self) -> bool {
        self.segment.stop.load(Ordering::Relaxed)
    }

    /// Records an event if its request belongs to the run: those that arrived during the warm-up do not.
    pub fn record(&self, arrived: Instant, record: impl FnOnce(&mut Recorder)) {
        if arrived >= self.start {
            record(&mut self.recorder.borrow_mut());
        }
    }

    /// Picks the next request, with the probabilities of the mix.
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

    /// Returns whether the next answer is to be compared with a reference's.
    pub fn is_sampled(&self) -> bool {
        let left = self.until_sample.get();
        if left == 0 {
            return false;
        }
        self.until_sample.set(if left == 1 { self.segment.sample } else { left - 1 });
        left == 1
    }

    /// Takes `count` ids, and returns the first.
    pub fn next_ids(&self, count: u64) -> u64 {
        self.id.replace(self.id.get() + count)
    }

    /// Waits for the next request, and returns when it arrived; `None` when the run is over.
    pub async fn arrival(&self) -> Option<Instant> {
        match self.segment.load {
            LoopKind::Open { .. } => self.queue.take().await,
            LoopKind::Closed => {
                let now = Instant::now();
                (now < self.end && !self.stopped()).then_some(now)
            }
        }
    }

    /// Returns whether no request will be due any more.
    pub fn is_over(&self) -> bool {
        match self.segment.load {
            LoopKind::Open { .. } => self.queue.closed.get() && self.queue.waiting.borrow().is_empty(),
            LoopKind::Closed => Instant::now() >= self.end || self.stopped(),
        }
    }
}
