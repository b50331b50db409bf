//! Clients, and queues that are fair among them.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{
        AtomicBool, AtomicI64, AtomicU64, AtomicUsize,
        Ordering::{AcqRel, Acquire, Relaxed, SeqCst},
    },
};

use crossbeam::queue::SegQueue;

use super::{LaneName, load::Cost, scheduler::Job};

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

/// What is known of a client's requests in one lane.
#[derive(Debug)]
pub struct FlowLane {
    /// What one takes.
    pub cost: Cost,
    /// How many of them are too long to run inline, lately: of 65,536.
    too_long: AtomicU64,
    /// The client's use of the lane, weighed by its [`Load`](super::load::Load).
    account: Mutex<Account>,
}

/// A client's use of an overloaded lane: a leaky bucket, which drains at the client's fair share of what the lane serves.
#[derive(Debug)]
pub struct Account {
    /// Nanoseconds of work. Infinite until it is first weighed, so that a client gets no share by coming anew for each request.
    pub level: f64,
    /// When the level was that.
    pub at: std::time::Instant,
    /// The window in which the client was last counted.
    pub window: u64,
}

impl Flow {
    /// A client of whom nothing is known yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            queues: Default::default(),
            lanes: std::array::from_fn(|_| FlowLane {
                cost: Cost::default(),
                too_long: AtomicU64::new(0),
                account: Mutex::new(Account { level: f64::INFINITY, at: std::time::Instant::now(), window: 0 }),
            }),
        })
    }

    /// What is known of its requests in a lane.
    pub const fn lane(&self, lane: LaneName) -> &FlowLane {
        &self.lanes[lane as usize]
    }
}

impl FlowLane {
    /// Samples in the mean, about.
    const WEIGHT: u64 = 16;
    /// A quarter.
    const LARGE: u64 = 1 << 14;

    /// Learns whether a request was too long to run inline. Of two at once one may be lost: it is a mean of many.
    pub fn learn_length(&self, too_long: bool) {
        let share = self.too_long.load(Relaxed);
        let new = if too_long { (1 << 16) / Self::WEIGHT } else { 0 };
        self.too_long.store(share - share / Self::WEIGHT + new, Relaxed);
    }

    /// Whether many are too long to run inline: then trying is a waste where there is no time to waste.
    pub fn is_often_too_long(&self) -> bool {
        self.too_long.load(Relaxed) > Self::LARGE
    }

    /// The client's use of the lane. Whoever panicked while it held the account left it whole.
    pub fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
                queue.credit.fetch_sub(i64::try_from(job.cost()).unwrap_or(i64::MAX), Relaxed);
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
