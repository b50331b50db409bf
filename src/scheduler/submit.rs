//! The executor: decides where and when each request runs.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Instant,
};

use tokio::{
    sync::oneshot,
    time::{MissedTickBehavior, interval, sleep},
};

use super::{
    batch::{Batch, JobPermit},
    constants::{
        BATCH_ENTRIES, DRAIN_POLL, INLINE_BYTES, INLINE_DATA_BYTES, INLINE_OBJECTS, INLINE_STRIDES, MEASURE_INTERVAL,
        PAUSE_BYTES,
    },
    flow::{ClientShare, Job, LaneName, QueueName},
    job::{CancelOnDrop, QueuedTask, RunOutcome, run_caught},
    lane::{ExecutorConfig, Lane, Rejected},
    load::Demand,
    pool::WorkQueues,
    pulse::{Stall, WorkerPulse},
    task::{FetchMissed, RunTarget, Task, TaskError, Ticket},
    worker::{NewWorker, Worker},
};
use crate::{meter::Meter, state::Missed, telemetry::Metrics};

/// Runs requests inline or on the workers of a rayon pool. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Executor {
    pool: Arc<WorkQueues>,
    threads: Arc<rayon::ThreadPool>,
    pulses: Arc<[Arc<WorkerPulse>]>,
    config: ExecutorConfig,
}

/// The way of a request to a worker.
pub(super) struct Route<'a> {
    lane: &'a Arc<Lane>,
    demand: Demand,
    is_long: bool,
}

impl Route<'_> {
    /// Weighs a request again after its state was fetched. If the lane was at ease when the request arrived and is
    /// overloaded now, the request counts as one below the client's quota, unless the client exceeds it.
    pub(super) fn weigh_again(&mut self, ticket: &Ticket) {
        if self.demand == Demand::AtEase {
            self.demand = self.lane.load.weigh(ticket.flow.load(self.lane.name), Instant::now);
        }
    }
}

/// Whether a request with these parameters is likely to end inline.
fn is_short(params: &str) -> bool {
    let objects = || memchr::memchr_iter(b'{', params.as_bytes()).count();
    params.len() <= INLINE_BYTES || params.len() <= INLINE_DATA_BYTES && objects() <= INLINE_OBJECTS
}

impl Executor {
    /// Starts an executor whose workers are not supervised.
    ///
    /// # Errors
    ///
    /// Returns the system's error if threads cannot be created.
    pub fn start(config: ExecutorConfig, metrics: &Metrics) -> io::Result<Self> {
        let (executor, workers) = Self::prepare(config, metrics)?;
        for worker in workers {
            worker.start()?;
        }
        Ok(executor)
    }

    /// Creates an executor, and its workers, which run jobs once they are [started](super::WorkerActor::spawn).
    ///
    /// # Errors
    ///
    /// Returns an error if the pool cannot be created.
    pub fn prepare(config: ExecutorConfig, metrics: &Metrics) -> io::Result<(Self, Vec<NewWorker>)> {
        let config = ExecutorConfig { workers: config.workers.max(1), ..config };
        let mut workers = Vec::with_capacity(config.workers);
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(config.workers)
            .spawn_handler(|thread| {
                workers.push(NewWorker::new(thread));
                Ok(())
            })
            .build()
            .map_err(io::Error::other)?;
        let pulses = workers.iter().map(|worker| worker.pulse.clone()).collect();
        Ok((Self { pool: WorkQueues::new(&config, metrics), threads: Arc::new(threads), pulses, config }, workers))
    }

    /// Measures the load of the lanes at intervals, and sets their gauges. A node runs one such future.
    pub async fn measure_lanes(&self) {
        let mut ticks = interval(MEASURE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = Instant::now();
            self.pool.lanes.iter().for_each(|lane| lane.measure(now, self.waiting(lane.name)));
        }
    }

    /// Closes the lanes to further requests. Returns when no request waits, runs, or has state fetched.
    pub async fn drain(&self) {
        self.pool.lanes.iter().for_each(|lane| lane.close());
        while self.pool.lanes.iter().any(|lane| lane.is_used()) {
            sleep(DRAIN_POLL).await;
        }
    }

    /// Creates a ticket for a request of `flow` that has just arrived. Its deadline counts from now.
    pub fn ticket(&self, flow: &Arc<ClientShare>) -> Ticket {
        Ticket { deadline: Instant::now() + self.config.deadline, flow: flow.clone(), batch: None }
    }

    /// Estimates the queue in the calling thread's sockets. Each thread that reads requests runs one such future.
    pub async fn watch_thread(&self) {
        let queue = Worker::with_queue(Arc::clone);
        queue.sample(self.config.queue_wait).await;
    }

    /// Creates the batch of requests that have just arrived as one.
    pub fn batch(&self) -> Arc<Batch> {
        Arc::new(Batch::new(BATCH_ENTRIES * self.config.workers))
    }

    /// Runs a task to its end, and returns the answer of its last run. State that a run misses is fetched from `source`.
    /// Dropping the future cancels the task: a run that waits never begins, and a run that has begun is stopped.
    ///
    /// # Errors
    ///
    /// Returns [`TaskError::Rejected`] if the request was rejected, if its deadline passed before a worker was free, if it
    /// panicked, or if the node is stopping; [`TaskError::Fetch`] if state cannot be fetched; and
    /// [`TaskError::Unexecutable`] if a run has reached something that presim cannot execute.
    pub async fn submit<T: Task>(
        &self,
        task: T,
        ticket: Ticket,
        source: &dyn FetchMissed,
    ) -> Result<T::Answer, TaskError> {
        let (lane, may_be_inline) = match task.target() {
            RunTarget::Inline => {
                let ran = self.run_once_inline(self.lane(LaneName::Read), &task, Meter::default())?;
                if ran.missed.is_empty() {
                    return Ok(ran.answer);
                }
                let _under_way = self.lane(LaneName::Read).begin()?;
                return Box::pin(self.complete(task, &ticket, None, ran.missed, source)).await;
            }
            RunTarget::On(lane) => (lane, false),
            RunTarget::InlineThen(lane) => (lane, !ticket.is_entry() && is_short(task.params())),
        };
        let lane = self.lane(lane);
        let backlog_age = Worker::with_queue(|queue| queue.count_read());
        if backlog_age > lane.backlog_limit() && lane.may_be_overloaded() {
            lane.load.overload(Instant::now());
        }
        let client = ticket.flow.load(lane.name);
        let demand = lane.load.weigh(client, Instant::now);
        let mut is_long = task.params().len() > PAUSE_BYTES;
        let mut missed = Missed::default();
        if may_be_inline && let Some(ran) = self.try_inline(lane, &task, &ticket, demand).await? {
            if ran.missed.is_empty() && !ran.too_long {
                return Ok(ran.answer);
            }
            (is_long, missed) = (ran.too_long, ran.missed);
        }
        let _under_way = lane.begin()?;
        let route = Route { lane, demand, is_long };
        // The box keeps the future small for requests that end inline.
        Box::pin(self.complete(task, &ticket, Some(route), missed, source)).await
    }

    /// Runs a task once inline with a small bound. Returns `None` if the task must run on a worker instead.
    async fn try_inline<T: Task>(
        &self,
        lane: &Lane,
        task: &T,
        ticket: &Ticket,
        demand: Demand,
    ) -> Result<Option<RunOutcome<T::Answer>>, Rejected> {
        let client = ticket.flow.load(lane.name);
        if demand != Demand::AtEase && client.is_often_too_long() {
            return Ok(None);
        }
        let busy = &self.pool.busy_inline;
        let Some(permit) = Worker::with_queue(|queue| queue.enter(busy, demand, self.config.overload_wait)) else {
            // The lane's workers would only take time from the inline threads, and move each answer between threads.
            if demand == Demand::AboveQuota && self.all_cores_are_busy() {
                let wait = lane.expected_wait();
                return Err(lane.reject(Rejected::Overloaded { lane: lane.name, wait, was_at_ease: false }));
            }
            return Ok(None);
        };
        let _quota = lane.load.count_below_quota(demand, client);
        // Yields once before running, so that requests which have already arrived are admitted or rejected first: a
        // thread that runs a request reads and rejects none.
        tokio::task::yield_now().await;
        let began = Instant::now();
        let ran = self.run_once_inline(lane, task, Meter::short(INLINE_STRIDES))?;
        let took = began.elapsed();
        permit.served(took);
        lane.load.serve(took);
        client.learn_inline(took, ran.too_long, &lane.cost);
        Ok(Some(ran))
    }

    /// Runs a task once on a worker. It counts as load of its lane only for as long as it waits for the worker and runs.
    pub(super) async fn run_on_worker<T: Task>(
        &self,
        task: &Arc<T>,
        ticket: &Ticket,
        route: &Route<'_>,
    ) -> Result<RunOutcome<T::Answer>, Rejected> {
        let Route { lane, demand, is_long } = route;
        let _entry = ticket.entry().await;
        let client = ticket.flow.load(lane.name);
        let _quota = lane.load.count_below_quota(*demand, client);
        let permit = match &ticket.batch {
            Some(batch) => batch.enter(lane, *demand),
            None => lane.admit(*demand).map(JobPermit::Own),
        };
        let permit = permit.map_err(|rejected| lane.reject(rejected))?;
        let (answer, answered) = oneshot::channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let _cancel = CancelOnDrop(cancelled.clone());
        let own = client.cost.mean();
        let cost = if own == 0 { lane.cost.mean() } else { own };
        let work = Box::new(QueuedTask {
            task: task.clone(),
            ticket: ticket.clone(),
            cancelled,
            lane: Arc::clone(lane),
            permit: Some(permit),
            answer: Some(answer),
            arrived: Some(Instant::now()),
        });
        self.pool.push(QueueName::of(lane.name, *is_long), &ticket.flow, Job { cost, work });
        let pool = self.pool.clone();
        // Each job spawns one turn. A turn may find that its job has already run in another job's pause.
        self.threads.spawn(move || pool.turn());
        answered.await.unwrap_or(Err(Rejected::Stopping))
    }

    /// Runs a task once on the calling thread. Handing a short task to a worker would cost more.
    pub(super) fn run_once_inline<T: Task>(
        &self,
        lane: &Lane,
        task: &T,
        meter: Meter,
    ) -> Result<RunOutcome<T::Answer>, Rejected> {
        // The system may let a thread that never sleeps continue for milliseconds while a worker waits for its core.
        if self.has_waiting() {
            std::thread::yield_now();
        }
        Worker::with_overlay(|overlay| run_caught(task, overlay, meter, &lane.panics))
    }

    /// Returns the number of requests that run inline, wait in `lanes`, or run there.
    fn under_way(&self, lanes: &[LaneName]) -> usize {
        let inside: usize = lanes.iter().map(|lane| self.lane(*lane).inside()).sum();
        self.pool.busy_inline.load(Relaxed) + inside
    }

    /// Returns whether requests occupy as many threads as there are workers. By default there is one worker per core.
    fn all_cores_are_busy(&self) -> bool {
        self.under_way(&LaneName::ALL) >= self.config.workers
    }

    /// Whether any request waits in a lane other than the one of watched bundles, or runs inline.
    pub fn is_asked(&self) -> bool {
        self.under_way(&[LaneName::Read, LaneName::Short, LaneName::Bundle, LaneName::Past]) > 0
    }

    /// Returns a worker that makes no progress although jobs wait. Known only of workers that have an
    /// [actor](super::WorkerActor).
    pub fn stall(&self) -> Option<Stall> {
        self.pulses.iter().find_map(|pulse| pulse.stall())
    }

    /// Returns the number of workers.
    pub const fn workers(&self) -> usize {
        self.config.workers
    }

    /// Returns the lane with this name.
    pub fn lane(&self, lane: LaneName) -> &Arc<Lane> {
        &self.pool.lanes[lane as usize]
    }

    /// Returns the number of jobs that wait in a lane.
    pub fn waiting(&self, lane: LaneName) -> usize {
        self.pool.waiting(QueueName::ALL.into_iter().filter(|queue| queue.lane == lane))
    }

    /// Returns whether a job waits in any lane.
    pub(super) fn has_waiting(&self) -> bool {
        self.pool.waiting(QueueName::ALL) > 0
    }
}
