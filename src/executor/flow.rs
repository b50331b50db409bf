//! Clients, their jobs, and queues that are fair among clients.

use std::sync::{
    Arc,
    atomic::{
        AtomicBool, AtomicI64, AtomicUsize,
        Ordering::{AcqRel, Acquire, Relaxed, SeqCst},
    },
};

use crossbeam::queue::SegQueue;

use super::load::FlowLane;
use crate::{meter::Pause, state::Overlay, telemetry::Counter};

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

/// The queues of the workers, in the order of their priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueName {
    /// Reads of what is known, and sends.
    Read,
    /// Calls.
    Short,
    /// Bundles.
    Bundle,
    /// Calls that were too long to run inline, or in the pause of another run.
    LongShort,
    /// Bundles that were.
    LongBundle,
}

impl QueueName {
    pub const ALL: [Self; 5] = [Self::Read, Self::Short, Self::Bundle, Self::LongShort, Self::LongBundle];

    /// The queue of a lane's jobs.
    pub const fn of(lane: LaneName, is_long: bool) -> Self {
        match (lane, is_long) {
            (LaneName::Read, _) => Self::Read,
            (LaneName::Short, false) => Self::Short,
            (LaneName::Bundle, false) => Self::Bundle,
            (LaneName::Short, true) => Self::LongShort,
            (LaneName::Bundle, true) => Self::LongBundle,
        }
    }
}

/// A client as the scheduler sees it: a token, or a connection without one.
#[derive(Debug)]
pub struct Flow {
    queues: [FlowQueue; QueueName::ALL.len()],
    lanes: [FlowLane; LaneName::ALL.len()],
}

/// A client's jobs in one queue.
#[derive(Debug, Default)]
struct FlowQueue {
    jobs: SegQueue<Job>,
    /// Whether the queue's list has the client.
    is_listed: AtomicBool,
    /// Nanoseconds that its jobs may take before it is another client's turn. Negative after a job that took more.
    credit: AtomicI64,
}

impl Flow {
    /// A client of whom nothing is known yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { queues: Default::default(), lanes: Default::default() })
    }

    /// What is known of its requests in a lane.
    pub const fn lane(&self, lane: LaneName) -> &FlowLane {
        &self.lanes[lane as usize]
    }
}

/// A task that waits for a worker.
pub struct Job {
    /// What it is expected to take, in nanoseconds.
    pub cost: u64,
    /// Runs it.
    pub work: Box<dyn Work>,
}

/// What bounds a run.
#[derive(Clone, Copy)]
pub enum Bound {
    /// Its deadline. It is paused for others.
    Deadline,
    /// Its deadline.
    None,
    /// Its deadline, and so many strides of the meter.
    Strides(u32),
}

/// A task of any type.
pub trait Work: Send {
    /// Runs it, and tells who waits for it. False if it was too long for its bound: then it is to be run again.
    fn run(&mut self, beside: &Beside, overlay: &mut Overlay, bound: Bound) -> bool;

    /// Its client.
    fn flow(&self) -> Arc<Flow>;
}

/// What a run has of its worker.
#[derive(Debug)]
pub struct Beside {
    /// What the run is paused for.
    pub pause: Pause,
    /// Jobs that panicked.
    pub panics: Counter,
}

/// A queue whose clients take turns, by the time that their jobs take (deficit round robin, Shreedhar and Varghese 1995).
///
/// The list has each client with jobs once. A turn takes the first client off it. If the client has credit, one of its jobs is taken and charged
/// to it, and the client goes to the end of the list if it has more. If not, it goes to the end with a quantum more credit. A client without
/// jobs has no credit to keep, so nobody saves up turns.
#[derive(Debug, Default)]
pub struct FairQueue {
    flows: SegQueue<Arc<Flow>>,
    waiting: AtomicUsize,
}

impl FairQueue {
    /// Adds a job of its flow.
    pub fn push(&self, name: QueueName, flow: &Arc<Flow>, job: Job) {
        let queue = &flow.queues[name as usize];
        self.waiting.fetch_add(1, AcqRel);
        queue.jobs.push(job);
        self.list(queue, flow);
    }

    /// Takes the next job. `quantum` is what a job takes in the mean, in nanoseconds.
    pub fn pop(&self, name: QueueName, quantum: u64) -> Option<Job> {
        let quantum = i64::try_from(quantum).unwrap_or(i64::MAX).max(1_000);
        while let Some(flow) = self.flows.pop() {
            let queue = &flow.queues[name as usize];
            if self.flows.is_empty() {
                // Alone it waits for nobody, and owes nobody.
                queue.credit.store(0, Relaxed);
            } else if queue.credit.load(Relaxed) < 0 {
                queue.credit.fetch_add(quantum, Relaxed);
                self.flows.push(flow);
                continue;
            }
            let job = queue.jobs.pop();
            queue.is_listed.store(false, SeqCst);
            if queue.jobs.is_empty() {
                queue.credit.store(0, Relaxed);
            }
            if let Some(job) = &job {
                queue.credit.fetch_sub(i64::try_from(job.cost).unwrap_or(i64::MAX), Relaxed);
            }
            // What was pushed meanwhile may have found the flow listed.
            if !queue.jobs.is_empty() {
                self.list(queue, &flow);
            }
            if job.is_some() {
                self.waiting.fetch_sub(1, AcqRel);
                return job;
            }
        }
        None
    }

    /// Jobs that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Acquire)
    }

    fn list(&self, queue: &FlowQueue, flow: &Arc<Flow>) {
        if !queue.is_listed.swap(true, SeqCst) {
            self.flows.push(flow.clone());
        }
    }
}
