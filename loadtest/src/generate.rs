//! What a generator is made of: a load, and what the tasks of its thread share.
//!
//! In an open loop requests arrive on a clock and wait in a queue for a connection that is free. Latency counts from the arrival, so that a stall of
//! the target is seen by all who arrive while it lasts, as its users would see it; it cannot hold back the requests that would have shown it.

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

/// What the tasks of a thread share.
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
    /// The generator of this number, whose run begins after the warm-up.
    pub fn new(segment: &Segment, thread: usize, begun: Instant, recorder: Recorder) -> Self {
        let start = begun + segment.warmup;
        Self {
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
        }
    }

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
