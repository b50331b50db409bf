//! Clients, their jobs, and the queues that divide the workers fairly among clients.

use std::sync::{
    Arc,
    atomic::{
        AtomicBool, AtomicI64, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
};

use crossbeam::queue::SegQueue;

use super::load::ClientLoad;
use crate::meter::Pause;

/// The name of a lane, as metrics and errors show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum LaneName {
    /// Reads that execute no call, and sends.
    Read,
    /// Single calls.
    Short,
    /// Simulations of bundles, and other requests of many calls.
    Bundle,
    /// Requests that run at blocks older than the retained ones, after all current requests.
    Past,
    /// Watched bundles, which run behind all others.
    Watch,
}

impl LaneName {
    /// All lanes, in the order of their discriminants.
    pub const ALL: [Self; 5] = [Self::Read, Self::Short, Self::Bundle, Self::Past, Self::Watch];

    /// Returns the flag that sets how many requests may wait in the lane.
    pub const fn flag(self) -> &'static str {
        match self {
            Self::Read | Self::Short => "--queue-short",
            Self::Bundle | Self::Past => "--queue-bundle",
            Self::Watch => "--watch-share",
        }
    }
}

/// The name of a worker queue. Requests of the past and watched bundles have one queue each, the other lanes two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueName {
    /// The lane of the queue's jobs.
    pub lane: LaneName,
    /// Whether the jobs are too long to run inline or in the pause of another run.
    is_long: bool,
}

impl QueueName {
    const READ: Self = Self::of(LaneName::Read, false);
    const SHORT: Self = Self::of(LaneName::Short, false);
    const BUNDLE: Self = Self::of(LaneName::Bundle, false);
    const LONG_READ: Self = Self::of(LaneName::Read, true);
    const LONG_SHORT: Self = Self::of(LaneName::Short, true);
    const LONG_BUNDLE: Self = Self::of(LaneName::Bundle, true);
    const PAST: Self = Self::of(LaneName::Past, false);
    const WATCH: Self = Self::of(LaneName::Watch, false);

    /// All queues, in the order of priority.
    pub const ALL: [Self; 8] = [
        Self::READ,
        Self::SHORT,
        Self::BUNDLE,
        Self::LONG_READ,
        Self::LONG_SHORT,
        Self::LONG_BUNDLE,
        Self::PAST,
        Self::WATCH,
    ];

    /// The queue with which a worker begins a turn, by the turn's number. Three of six turns begin with long jobs, one
    /// with bundles, one with reads and one with the past, so that short calls block no queue forever.
    pub const FIRST: [Self; 6] =
        [Self::LONG_BUNDLE, Self::LONG_SHORT, Self::LONG_READ, Self::BUNDLE, Self::READ, Self::PAST];

    /// The queues of jobs that may run in the pause of a long run.
    pub const PASSING: [Self; 3] = [Self::READ, Self::SHORT, Self::BUNDLE];

    /// Returns the queue for a job of `lane`.
    pub const fn of(lane: LaneName, is_long: bool) -> Self {
        Self { lane, is_long: is_long && !matches!(lane, LaneName::Past | LaneName::Watch) }
    }

    /// Returns the index of the queue in an array of all queues.
    pub const fn index(self) -> usize {
        self.lane as usize + if self.is_long { LaneName::ALL.len() } else { 0 }
    }
}

/// A client as the scheduler sees it: a bearer token, or a connection without one.
#[derive(Debug)]
pub struct ClientShare {
    queues: [FlowQueue; QueueName::ALL.len()],
    loads: [ClientLoad; LaneName::ALL.len()],
}

/// A client's jobs in one queue.
#[derive(Debug, Default)]
struct FlowQueue {
    jobs: SegQueue<Job>,
    /// Whether the client is in the queue's list of clients.
    is_listed: AtomicBool,
    /// Run time in nanoseconds until the next client's turn. Negative after a job that cost more than was left.
    credit: AtomicI64,
}

impl ClientShare {
    /// Creates a client without samples.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { queues: Default::default(), loads: Default::default() })
    }

    /// Returns the load that the client puts on `lane`.
    pub const fn load(&self, lane: LaneName) -> &ClientLoad {
        &self.loads[lane as usize]
    }
}

/// A task that waits for a worker.
pub struct Job {
    /// Expected run time, in nanoseconds.
    pub cost: u64,
    pub work: Box<dyn QueuedWork>,
}

/// A queued task of any type.
pub trait QueuedWork: Send {
    /// Runs the task and answers its request. The run calls `pause` whenever it pauses. Returns false if it exceeded
    /// `strides` of its meter and must run again. Every run also ends at its deadline.
    fn run(&mut self, pause: Option<&Pause>, strides: Option<u32>) -> bool;
}

/// A queue that divides run time fairly among clients (deficit round robin, Shreedhar and Varghese 1995).
///
/// The list holds each client with jobs once. A turn removes the first client. If it has credit, one of its jobs is
/// taken and charged to it, and the client goes to the end of the list if it has more jobs. Otherwise it goes to the
/// end with another quantum of credit. A client without jobs loses its credit, so that no client saves up turns.
#[derive(Debug, Default)]
pub struct FairQueue {
    flows: SegQueue<Arc<ClientShare>>,
    waiting: AtomicUsize,
}

impl FairQueue {
    pub fn push(&self, name: QueueName, flow: &Arc<ClientShare>, job: Job) {
        let queue = &flow.queues[name.index()];
        self.waiting.fetch_add(1, Relaxed);
        queue.jobs.push(job);
        self.list(queue, flow);
    }

    /// Takes the next job with its client. `quantum` is the mean run time of a job in nanoseconds. It is 0 if unknown,
    /// and then no client owes more than one turn.
    pub fn pop(&self, name: QueueName, quantum: u64) -> Option<(Arc<ClientShare>, Job)> {
        let quantum = i64::try_from(quantum).unwrap_or(i64::MAX);
        while let Some(flow) = self.flows.pop() {
            let queue = &flow.queues[name.index()];
            if self.flows.is_empty() {
                // The only client competes with no other, so it starts without credit or debt.
                queue.credit.store(0, Relaxed);
            } else if let credit @ ..0 = queue.credit.load(Relaxed) {
                queue.credit.fetch_add(if quantum == 0 { -credit } else { quantum }, Relaxed);
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
            // A job pushed meanwhile may have found the flow still listed.
            if !queue.jobs.is_empty() {
                self.list(queue, &flow);
            }
            if let Some(job) = job {
                self.waiting.fetch_sub(1, Relaxed);
                return Some((flow, job));
            }
        }
        None
    }

    pub fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    fn list(&self, queue: &FlowQueue, flow: &Arc<ClientShare>) {
        if !queue.is_listed.swap(true, SeqCst) {
            self.flows.push(flow.clone());
        }
    }
}
