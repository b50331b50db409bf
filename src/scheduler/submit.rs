//! The executor: decides where and when each request runs.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{
    batch::{Batch, JobPermit},
    constants::{BATCH_ENTRIES, INLINE_BYTES, INLINE_STRIDES, PAUSE_BYTES, PAUSE_STRIDES, WARNING_INTERVAL},
    flow::{Bound, FairQueue, Flow, Job, LaneName, QueueName, WorkerHooks},
    inline::ThreadQueue,
    job::{CancelOnDrop, QueuedTask, RunOutcome, panicked, run_caught},
    lane::{ExecutorConfig, Lane, Refused},
    load::Demand,
    task::{RunPlace, Task, Ticket},
    worker::Worker,
};
use crate::{
    meter::{Meter, Pause},
    state::Missed,
    telemetry::Metrics,
};

/// Runs requests inline or on the workers of a rayon pool. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Executor {
    shared: Arc<ExecutorState>,
    pool: Arc<rayon::ThreadPool>,
    config: ExecutorConfig,
}

#[derive(Debug)]
pub struct ExecutorState {
    lanes: [Arc<Lane>; LaneName::ALL.len()],
    queues: [FairQueue; QueueName::ALL.len()],
    /// Number of threads that run a request inline or are about to.
    busy_inline: AtomicUsize,
    beside: WorkerHooks,
    turns: AtomicUsize,
    stopping: AtomicBool,
    began: Instant,
    /// When a rejection was last logged, in seconds from `began`; 0 for never.
    last_warning: AtomicU64,
}

impl Executor {
    /// Starts the workers.
    ///
    /// # Errors
    ///
    /// Returns [`rayon::ThreadPoolBuildError`] if the system does not provide the threads.
    pub fn start(config: ExecutorConfig, metrics: &Metrics) -> Result<Self, rayon::ThreadPoolBuildError> {
        let shared = Arc::new_cyclic(|shared: &Weak<ExecutorState>| ExecutorState {
            beside: WorkerHooks {
                pause: {
                    let shared = shared.clone();
                    Pause::new(move || {
                        if let Some(shared) = shared.upgrade() {
                            shared.run_one_while_paused();
                        }
                    })
                },
                panics: metrics.counter(
                    "presim_panics_total",
                    "Jobs that panicked and were answered with -32603.",
                    &[],
                ),
            },
            lanes: LaneName::ALL.map(|name| Arc::new(Lane::new(name, &config, metrics))),
            queues: Default::default(),
            busy_inline: AtomicUsize::new(0),
            turns: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            began: Instant::now(),
            last_warning: AtomicU64::new(0),
        });
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(config.workers.max(1))
            .thread_name(|index| format!("presim-worker-{index}"))
            .build()?;
        Ok(Self { shared, pool: Arc::new(pool), config })
    }

    /// Creates a ticket for a request of `flow` that has just arrived. Its deadline counts from now.
    pub fn ticket(&self, flow: &Arc<Flow>) -> Ticket {
        Ticket { deadline: Instant::now() + self.config.deadline, flow: flow.clone(), batch: None }
    }

    /// Estimates the queue in the calling thread's sockets. Each thread that reads requests runs one such future.
    pub async fn watch_thread(&self) {
        let queue = Worker::with_queue(Arc::clone);
        queue.sample(self.config.queue_wait).await;
    }

    /// Creates the batch of requests that have just arrived as one.
    pub fn batch(&self) -> Arc<Batch> {
        Arc::new(Batch::new(BATCH_ENTRIES * self.config.workers.max(1)))
    }

    /// Runs a task to its end, and returns the result of its last run. Dropping the future cancels the task: a run that
    /// waits never begins, and a run that has begun is stopped.
    ///
    /// # Errors
    ///
    /// Returns [`Refused`] if the request was rejected, if its deadline passed before a worker was free, if it
    /// panicked, or if the node is stopping. Returns the error of [`Task::fetch`] if state cannot be fetched.
    pub async fn submit<T: Task>(&self, task: T, ticket: Ticket) -> Result<T::Done, T::Error> {
        let (lane, may_be_inline) = match task.place() {
            RunPlace::Inline => return self.look_up(task).await,
            RunPlace::On(lane) => (lane, false),
            RunPlace::InlineThen(lane) => (lane, !ticket.is_entry() && task.size() <= INLINE_BYTES),
        };
        let lane = self.lane(lane);
        let backlog_age = Worker::with_queue(|queue| queue.count_read());
        if backlog_age > lane.backlog_limit() && !matches!(lane.name, LaneName::Read | LaneName::Watch) {
            lane.load.overload(Instant::now());
        }
        let demand = lane.load.weigh(ticket.flow.load(lane.name), Instant::now);
        let _permit = lane.load.count_below_quota(demand, ticket.flow.load(lane.name));
        let mut is_long = task.size() > PAUSE_BYTES;
        let mut missed = Missed::default();
        if may_be_inline && let Some(ran) = self.run_inline(lane, &task, &ticket, demand).await? {
            is_long = ran.too_long && ran.missed.is_empty();
            if !is_long && ran.missed.is_empty() {
                return Ok(ran.done);
            }
            missed = ran.missed;
        }
        // The box keeps the future small for requests that end inline.
        Box::pin(self.run_to_end(lane, task, ticket, demand, is_long, missed)).await
    }

    /// Runs a task on workers, and again whenever the state that it missed has been fetched.
    async fn run_to_end<T: Task>(
        &self,
        lane: &Arc<Lane>,
        task: T,
        ticket: Ticket,
        demand: Demand,
        is_long: bool,
        mut missed: Missed,
    ) -> Result<T::Done, T::Error> {
        let (mut task, mut round) = (Arc::new(task), 0);
        loop {
            if !missed.is_empty() {
                round += 1;
                if let Some(other) = task.fetch(missed, round).await? {
                    task = Arc::new(other);
                }
            }
            let ran = self.run_on(lane, &task, &ticket, demand, is_long).await?;
            if ran.missed.is_empty() {
                return Ok(ran.done);
            }
            missed = ran.missed;
        }
    }

    /// Runs a look-up inline, and again whenever the state that it missed has been fetched.
    async fn look_up<T: Task>(&self, mut task: T) -> Result<T::Done, T::Error> {
        let mut round = 0;
        loop {
            let ran = self.run_here(&task, Meter::default())?;
            if ran.missed.is_empty() {
                return Ok(ran.done);
            }
            round += 1;
            if let Some(other) = task.fetch(ran.missed, round).await? {
                task = other;
            }
        }
    }

    /// Runs a task once inline with a small bound. Returns `None` if the task must run on a worker instead.
    async fn run_inline<T: Task>(
        &self,
        lane: &Lane,
        task: &T,
        ticket: &Ticket,
        demand: Demand,
    ) -> Result<Option<RunOutcome<T::Done>>, Refused> {
        let known = ticket.flow.load(lane.name);
        if demand != Demand::AtEase && known.is_often_too_long() {
            return Ok(None);
        }
        let enter =
            |queue: &Arc<_>| ThreadQueue::enter(queue, &self.shared.busy_inline, demand, self.config.overload_wait);
        let Some(permit) = Worker::with_queue(enter) else {
            // The lane's workers would only take time from the inline threads, and move each answer between threads.
            if demand == Demand::AboveQuota && self.all_cores_are_busy() {
                return Err(self.overloaded(lane));
            }
            return Ok(None);
        };
        // Yields once before running, so that requests which have already arrived are admitted or rejected first: a
        // thread that runs a request reads and rejects none.
        tokio::task::yield_now().await;
        let began = Instant::now();
        let ran = self.run_here(task, Meter::short(INLINE_STRIDES))?;
        let took = began.elapsed();
        permit.served(took);
        lane.load.serve(took);
        let too_long = ran.too_long && ran.missed.is_empty();
        known.learn_inline(took, too_long, &lane.cost);
        Ok(Some(ran))
    }

    /// Runs a task once on a worker.
    async fn run_on<T: Task>(
        &self,
        lane: &Arc<Lane>,
        task: &Arc<T>,
        ticket: &Ticket,
        demand: Demand,
        is_long: bool,
    ) -> Result<RunOutcome<T::Done>, Refused> {
        if self.shared.stopping.load(Relaxed) {
            return Err(Refused::Stopping);
        }
        let _entry = ticket.entry().await;
        let permit = match &ticket.batch {
            Some(batch) => batch.enter(lane, demand),
            None => lane.admit(demand).map(JobPermit::Own),
        };
        let permit = permit.map_err(|refused| self.rejected(lane, refused))?;
        let (answer, answered) = oneshot::channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let on_drop = CancelOnDrop(Some(cancelled.clone()));
        let own = ticket.flow.load(lane.name).cost.mean();
        let waiting = QueuedTask {
            task: task.clone(),
            ticket: ticket.clone(),
            cancelled,
            lane: lane.clone(),
            permit: Some(permit),
            answer: Some(answer),
            arrived: Some(Instant::now()),
        };
        let cost = if own == 0 { lane.cost.mean() } else { own };
        self.shared.push(QueueName::of(lane.name, is_long), &ticket.flow, Job { cost, work: Box::new(waiting) });
        let shared = self.shared.clone();
        // Each job spawns one turn. A turn may find that its job has already run in the pause of another.
        self.pool.spawn(move || shared.turn());
        let done = answered.await.unwrap_or(Err(Refused::Stopping));
        on_drop.disarm();
        done
    }

    /// Runs a task on the calling thread and catches its panic. Handing a short task to a worker would cost more.
    fn run_here<T: Task>(&self, task: &T, meter: Meter) -> Result<RunOutcome<T::Done>, Refused> {
        // The system may let a thread that never sleeps continue for milliseconds while a worker waits for its core.
        if self.shared.queues.iter().any(|queue| queue.waiting() > 0) {
            std::thread::yield_now();
        }
        let done = Worker::with_overlay(|overlay| run_caught(task, overlay, meter));
        done.map_err(|panic| panicked(&self.shared.beside.panics, panic.as_ref()))
    }

    /// Returns whether requests occupy as many threads as there are workers. By default there is one worker per core.
    fn all_cores_are_busy(&self) -> bool {
        let inside: usize = self.shared.lanes.iter().map(|lane| lane.inside()).sum();
        self.shared.busy_inline.load(Relaxed) + inside >= self.config.workers.max(1)
    }

    /// Rejects a request of a client above its quota that cannot begin soon.
    fn overloaded(&self, lane: &Lane) -> Refused {
        let wait = lane.expected_wait();
        self.rejected(lane, Refused::Overloaded { lane: lane.name, wait, was_at_ease: false })
    }

    /// Counts a rejection, and logs a warning at most once a minute.
    fn rejected(&self, lane: &Lane, refused: Refused) -> Refused {
        lane.refused.increment(1);
        let Some((_, wait, flag)) = refused.busy() else { return refused };
        let last_warning = &self.shared.last_warning;
        let (now, last) = (1 + self.shared.began.elapsed().as_secs(), last_warning.load(Relaxed));
        if (last == 0 || now >= last + WARNING_INTERVAL.as_secs())
            && last_warning.compare_exchange(last, now, Relaxed, Relaxed).is_ok()
        {
            tracing::warn!(
                lane = %lane.name,
                wait_ms = wait.as_millis(),
                flag,
                "requests are rejected: {refused}"
            );
        }
        refused
    }

    /// Returns the time from a request's arrival to its deadline.
    pub const fn deadline(&self) -> Duration {
        self.config.deadline
    }

    /// Returns a receiver that gets a message from a worker, after the jobs that wait now.
    pub fn pulse(&self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.pool.spawn(move || {
            let _ = sender.send(());
        });
        receiver
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.config.workers.max(1)
    }

    /// Returns whether anyone waits for an answer: a request is in a lane other than that of standing bundles, or runs
    /// inline.
    pub fn is_asked(&self) -> bool {
        let lanes = self.shared.lanes.iter().filter(|lane| lane.name != LaneName::Watch);
        self.shared.busy_inline.load(Relaxed) > 0 || lanes.map(|lane| lane.inside()).sum::<usize>() > 0
    }

    /// Returns the lane with this name.
    pub fn lane(&self, lane: LaneName) -> &Arc<Lane> {
        &self.shared.lanes[lane as usize]
    }

    /// Returns the number of jobs that wait in a lane.
    pub fn waiting(&self, lane: LaneName) -> usize {
        let queues = [false, true].map(|is_long| QueueName::of(lane, is_long));
        let waiting = |queue: QueueName| self.shared.queues[queue as usize].waiting();
        if queues[0] == queues[1] { waiting(queues[0]) } else { queues.map(waiting).iter().sum() }
    }

    /// Rejects every further job that is to run on a worker.
    pub fn close(&self) {
        self.shared.stopping.store(true, Relaxed);
    }
}

impl ExecutorState {
    fn push(&self, queue: QueueName, flow: &Arc<Flow>, job: Job) {
        self.queues[queue as usize].push(queue, flow, job);
    }

    fn pop(&self, queue: QueueName) -> Option<Job> {
        let lane = match queue {
            QueueName::Read => LaneName::Read,
            QueueName::Short | QueueName::LongShort => LaneName::Short,
            QueueName::Bundle | QueueName::LongBundle => LaneName::Bundle,
            QueueName::Watch => LaneName::Watch,
        };
        self.queues[queue as usize].pop(queue, self.lanes[lane as usize].cost.mean())
    }

    /// Runs one job: the first of the highest queue that has one. Some turns begin with a lower queue.
    fn turn(&self) {
        let first = QueueName::FIRST[self.turns.fetch_add(1, Relaxed) % QueueName::FIRST.len()];
        let mut job = loop {
            if let Some(job) = [first].into_iter().chain(QueueName::ALL).find_map(|queue| self.pop(queue)) {
                break job;
            }
            if self.queues.iter().all(|queue| queue.waiting() == 0) {
                return;
            }
            // Another worker has taken the waiting job's client off the list, for as long as it takes to pop one job.
            std::thread::yield_now();
        };
        Worker::with_pauses(|| {
            Worker::with_overlay(|overlay| job.work.run(&self.beside, overlay, Bound::Deadline));
        });
    }

    /// Runs one job in the pause of another: a read, or a job with a small bound.
    fn run_one_while_paused(self: &Arc<Self>) {
        if QueueName::PASSING.iter().all(|queue| self.queues[*queue as usize].waiting() == 0) {
            return;
        }
        Worker::pause(|| {
            let found = QueueName::PASSING.into_iter().find_map(|queue| Some((queue, self.pop(queue)?)));
            let Some((queue, mut job)) = found else { return };
            let bound = if queue == QueueName::Read { Bound::None } else { Bound::Strides(PAUSE_STRIDES) };
            if !Worker::with_overlay(|overlay| job.work.run(&self.beside, overlay, bound)) {
                let flow = job.work.flow();
                let long = if queue == QueueName::Short { QueueName::LongShort } else { QueueName::LongBundle };
                self.push(long, &flow, job);
                // The turn spawned for this job may have passed meanwhile, and found nothing.
                let shared = self.clone();
                rayon::spawn(move || shared.turn());
            }
        });
    }
}
