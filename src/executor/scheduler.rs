//! The executor: where each request runs, and when.

use std::{
    cell::{Cell, RefCell},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use tokio::sync::oneshot;

use super::{
    batch::{Batch, Claim},
    flow::{Beside, Bound, FairQueue, Flow, Job, LaneName, QueueName},
    inline::Inline,
    job::{CancelOnDrop, Ran, Waiting, panicked, run_caught},
    lane::{ExecutorConfig, Lane, Refused},
    load::Standing,
    task::{Place, Task, Ticket},
};
use crate::{
    meter::{Meter, Pause},
    state::{Missed, Overlay},
    telemetry::Metrics,
};

/// The scheduler. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Executor {
    shared: Arc<Shared>,
    pool: Arc<rayon::ThreadPool>,
    config: ExecutorConfig,
}

#[derive(Debug)]
pub struct Shared {
    lanes: [Arc<Lane>; LaneName::ALL.len()],
    queues: [FairQueue; QueueName::ALL.len()],
    inline: Inline,
    beside: Beside,
    turns: AtomicUsize,
    stopping: AtomicBool,
    began: Instant,
    /// When the log was last told of rejections, in seconds from `began`; 0 for never.
    told: AtomicU64,
}

thread_local! {
    /// The memory of this thread's runs: one overlay for its own job, one for a job that runs in its pause.
    static OVERLAYS: RefCell<Vec<Overlay>> = const { RefCell::new(Vec::new()) };
    /// When the job of this thread may next be paused for another; `None` while it is.
    static NEXT_PAUSE: Cell<Option<Instant>> = const { Cell::new(None) };
}

impl Executor {
    /// Strides of the meter that a request may run inline: some hundreds of microseconds at most.
    const INLINE: u32 = 12;
    /// Strides that a request may run in the pause of another: some milliseconds at most.
    const IN_PAUSE: u32 = 64;
    /// Bytes of parameters that a request may have to be run inline: what has more is a bundle that takes long, or takes long to read.
    const INLINE_BYTES: usize = 8 << 10;
    /// The same, to be run in the pause of another.
    const IN_PAUSE_BYTES: usize = 64 << 10;
    /// Some of so many turns of a worker begin with what is long, and one with a bundle, so that no stream of short calls keeps those waiting for ever.
    const ROUND: usize = 4;

    /// Starts the workers.
    ///
    /// # Errors
    /// Returns what the system says when it gives no threads.
    pub fn start(config: ExecutorConfig, metrics: &Metrics) -> Result<Self, rayon::ThreadPoolBuildError> {
        let shared = Arc::new_cyclic(|shared: &Weak<Shared>| Shared {
            beside: Beside {
                pause: {
                    let shared = shared.clone();
                    Pause::new(move || {
                        if let Some(shared) = shared.upgrade() {
                            shared.let_one_pass();
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
            inline: Inline::default(),
            turns: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            began: Instant::now(),
            told: AtomicU64::new(0),
        });
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(config.workers.max(1))
            .thread_name(|index| format!("presim-worker-{index}"))
            .build()?;
        Ok(Self { shared, pool: Arc::new(pool), config })
    }

    /// A ticket for a request of `flow` that has just arrived.
    pub fn ticket(&self, flow: &Arc<Flow>) -> Ticket {
        Ticket { deadline: Instant::now() + self.config.deadline, flow: flow.clone(), batch: None }
    }

    /// Watches what waits in the sockets of the calling thread, for as long as its event loop runs. Each thread that reads requests has one.
    pub async fn watch_thread(&self) {
        Inline::watch(self.config.queue_wait).await;
    }

    /// Requests that have just arrived as one.
    pub fn batch(&self) -> Arc<Batch> {
        // Some rounds wait behind the one that runs, so that no worker waits for the front.
        Arc::new(Batch::new(4 * self.config.workers.max(1)))
    }

    /// Runs a task to its end, and returns what its last run made. Dropping the future cancels it: a run that waits is never begun, and one that
    /// has begun is stopped.
    ///
    /// # Errors
    /// Returns [`Refused`] if it was rejected, if its time was up before a worker was free, or if it panicked; and what [`Task::fetch`] returns.
    pub async fn submit<T: Task>(&self, task: T, ticket: Ticket) -> Result<T::Done, T::Error> {
        let (lane, may_be_inline) = match task.place() {
            Place::Inline => return self.look_up(task).await,
            Place::On(lane) => (lane, false),
            Place::InlineThen(lane) => (lane, !ticket.is_entry() && task.size() <= Self::INLINE_BYTES),
        };
        let lane = self.lane(lane);
        if Inline::read() > lane.patience() && lane.name != LaneName::Read {
            lane.overload();
        }
        let standing = lane.weigh(&ticket.flow);
        let _share = lane.load.share(standing, ticket.flow.lane(lane.name));
        let mut is_long = task.size() > Self::IN_PAUSE_BYTES;
        let mut missed = Missed::default();
        if may_be_inline && let Some(ran) = self.run_inline(lane, &task, &ticket, standing).await? {
            is_long = ran.too_long && ran.missed.is_empty();
            if !is_long && ran.missed.is_empty() {
                return Ok(ran.done);
            }
            missed = ran.missed;
        }
        // A request that ends inline is not moved with what it takes to wait for a worker.
        Box::pin(self.run_to_end(lane, task, ticket, standing, is_long, missed)).await
    }

    /// Runs a task on workers, and again when what it has missed is there.
    async fn run_to_end<T: Task>(
        &self,
        lane: &Arc<Lane>,
        task: T,
        ticket: Ticket,
        standing: Standing,
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
            let ran = self.run_on(lane, &task, &ticket, standing, is_long).await?;
            if ran.missed.is_empty() {
                return Ok(ran.done);
            }
            missed = ran.missed;
        }
    }

    /// Runs a look-up inline, and again when what it has missed is there.
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

    /// Runs a task once inline, in a small bound; `None` if too many wait for the thread.
    async fn run_inline<T: Task>(
        &self,
        lane: &Lane,
        task: &T,
        ticket: &Ticket,
        standing: Standing,
    ) -> Result<Option<Ran<T::Done>>, Refused> {
        let known = ticket.flow.lane(lane.name);
        if standing != Standing::AtEase && known.is_often_too_long() {
            return Ok(None);
        }
        let Some(permit) = self.shared.inline.enter(standing, self.config.overload_wait) else {
            // The lane's workers would take the time from this thread and those like it, and give each answer a way between threads.
            if standing == Standing::AboveShare && self.all_cores_are_busy() {
                return Err(self.overloaded(lane));
            }
            return Ok(None);
        };
        // Whoever would run here first lets those in who have arrived already. So how many they are is known, and once one would wait for long, the
        // rest goes to the lane: a thread that runs reads nothing, and rejects nothing.
        tokio::task::yield_now().await;
        let began = Instant::now();
        let ran = self.run_here(task, Meter::short(Self::INLINE))?;
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
        standing: Standing,
        is_long: bool,
    ) -> Result<Ran<T::Done>, Refused> {
        if self.shared.stopping.load(Relaxed) {
            return Err(Refused::Stopping);
        }
        let _turn = ticket.turn().await;
        let claim = match &ticket.batch {
            Some(batch) => batch.enter(lane, standing),
            None => lane.admit(standing).map(Claim::Own),
        };
        let claim = claim.map_err(|refused| self.rejected(lane, refused))?;
        let (answer, answered) = oneshot::channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let on_drop = CancelOnDrop(Some(cancelled.clone()));
        let own = ticket.flow.lane(lane.name).cost.mean();
        let waiting = Waiting {
            task: task.clone(),
            ticket: ticket.clone(),
            cancelled,
            lane: lane.clone(),
            claim: Some(claim),
            answer: Some(answer),
            arrived: Some(Instant::now()),
        };
        let cost = if own == 0 { lane.cost.mean() } else { own };
        self.shared.push(QueueName::of(lane.name, is_long), &ticket.flow, Job { cost, work: Box::new(waiting) });
        let shared = self.shared.clone();
        // One turn for each job: a turn may find its job already done in the pause of another.
        self.pool.spawn(move || shared.turn());
        let done = answered.await.unwrap_or(Err(Refused::Stopping));
        on_drop.disarm();
        done
    }

    /// Runs a task on the calling thread, caught if it panics: for what is so short that handing it over would cost more.
    fn run_here<T: Task>(&self, task: &T, meter: Meter) -> Result<Ran<T::Done>, Refused> {
        // The system would let a thread that never sleeps go on for milliseconds, while a worker waits for its core.
        if self.shared.queues.iter().any(|queue| queue.waiting() > 0) {
            std::thread::yield_now();
        }
        let mut overlay = borrow_overlay();
        let done = run_caught(task, &mut overlay, meter);
        give_back(overlay);
        done.map_err(|panic| panicked(&self.shared.beside.panics, panic.as_ref()))
    }

    /// Whether as many threads run as there are cores. By default there is a worker a core, and a thread for connections.
    fn all_cores_are_busy(&self) -> bool {
        let inside: usize = self.shared.lanes.iter().map(|lane| lane.inside()).sum();
        self.shared.inline.busy() + inside >= self.config.workers.max(1)
    }

    /// Rejects a request of a client above its share, which cannot begin soon.
    fn overloaded(&self, lane: &Lane) -> Refused {
        let wait = lane.expected_wait();
        self.rejected(lane, Refused::Overloaded { lane: lane.name, wait, was_at_ease: false })
    }

    /// Counts a rejection. The first of a minute is a warning in the log.
    fn rejected(&self, lane: &Lane, refused: Refused) -> Refused {
        lane.refused.increment(1);
        let Some((_, wait, flag)) = refused.busy() else { return refused };
        let (now, told) = (1 + self.shared.began.elapsed().as_secs(), self.shared.told.load(Relaxed));
        if (told == 0 || now >= told + 60) && self.shared.told.compare_exchange(told, now, Relaxed, Relaxed).is_ok() {
            tracing::warn!(
                lane = lane.name.as_str(),
                wait_ms = wait.as_millis(),
                flag,
                "requests are rejected: {refused}"
            );
        }
        refused
    }

    /// A lane.
    pub fn lane(&self, lane: LaneName) -> &Arc<Lane> {
        &self.shared.lanes[lane as usize]
    }

    /// Jobs that wait in a lane.
    pub fn waiting(&self, lane: LaneName) -> usize {
        let queues = [false, true].map(|is_long| QueueName::of(lane, is_long));
        let waiting = |queue: QueueName| self.shared.queues[queue as usize].waiting();
        if queues[0] == queues[1] { waiting(queues[0]) } else { queues.map(waiting).iter().sum() }
    }

    /// Rejects every further job.
    pub fn close(&self) {
        self.shared.stopping.store(true, Relaxed);
    }
}

impl Shared {
    fn push(&self, queue: QueueName, flow: &Arc<Flow>, job: Job) {
        self.queues[queue as usize].push(queue, flow, job);
    }

    fn pop(&self, queue: QueueName) -> Option<Job> {
        let lane = match queue {
            QueueName::Read => LaneName::Read,
            QueueName::Short | QueueName::LongShort => LaneName::Short,
            QueueName::Bundle | QueueName::LongBundle => LaneName::Bundle,
        };
        self.queues[queue as usize].pop(queue, self.lanes[lane as usize].cost.mean())
    }

    /// Runs one job: the first of the highest queue that has one. Some turns begin with another queue.
    fn turn(&self) {
        let first = match self.turns.fetch_add(1, Relaxed) % Executor::ROUND {
            0 => Some(QueueName::LongBundle),
            1 => Some(QueueName::LongShort),
            2 => Some(QueueName::Bundle),
            _ => None,
        };
        let mut job = loop {
            if let Some(job) = first.into_iter().chain(QueueName::ALL).find_map(|queue| self.pop(queue)) {
                break job;
            }
            if self.queues.iter().all(|queue| queue.waiting() == 0) {
                return;
            }
            // Another worker has the client of the job that waits in its hands, for as long as it takes to take one of its jobs.
            std::thread::yield_now();
        };
        NEXT_PAUSE.set(Some(Instant::now()));
        let mut overlay = borrow_overlay();
        job.work.run(&self.beside, &mut overlay, Bound::Deadline);
        give_back(overlay);
        NEXT_PAUSE.set(None);
    }

    /// In the pause of a run: runs one job that is known to be short, or has a small bound. What such jobs take, the paused run gets next: so a stream
    /// of them has half of the worker, and the paused run the other.
    fn let_one_pass(self: &Arc<Self>) {
        const PASSING: [QueueName; 3] = [QueueName::Read, QueueName::Short, QueueName::Bundle];
        if PASSING.iter().all(|queue| self.queues[*queue as usize].waiting() == 0) {
            return;
        }
        let Some(next) = NEXT_PAUSE.get() else { return };
        let began = Instant::now();
        if began < next {
            return;
        }
        let found = PASSING.into_iter().find_map(|queue| Some((queue, self.pop(queue)?)));
        let Some((queue, mut job)) = found else { return };
        NEXT_PAUSE.set(None);
        let mut overlay = borrow_overlay();
        let bound = if queue == QueueName::Read { Bound::None } else { Bound::Strides(Executor::IN_PAUSE) };
        let ended = job.work.run(&self.beside, &mut overlay, bound);
        give_back(overlay);
        NEXT_PAUSE.set(Some(Instant::now() + began.elapsed()));
        if !ended {
            let flow = job.work.flow();
            self.push(if queue == QueueName::Short { QueueName::LongShort } else { QueueName::LongBundle }, &flow, job);
            // Its own turn may have come meanwhile, and found nothing.
            let shared = self.clone();
            rayon::spawn(move || shared.turn());
        }
    }
}

fn borrow_overlay() -> Overlay {
    OVERLAYS.with_borrow_mut(Vec::pop).unwrap_or_else(Overlay::of_thread)
}

fn give_back(mut overlay: Overlay) {
    overlay.rest();
    OVERLAYS.with_borrow_mut(|overlays| overlays.push(overlay));
}
