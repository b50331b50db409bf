//! The workers, their queues, and the way of a job.

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
    time::{Duration, Instant},
};

use crossbeam::queue::SegQueue;
use metrics::{Counter, Histogram};
use tokio::sync::oneshot;

use super::{
    LaneName,
    admission::{Admission, NoPlace},
    batch::{Batch, Claim, Turn},
};
use crate::{
    state::{Meter, Overlay, Pause},
    telemetry::Metrics,
};

/// How many workers, and how much may wait for them.
#[derive(Clone, Copy, Debug)]
pub struct ExecutorConfig {
    /// CPU workers.
    pub workers: usize,
    /// Requests that may wait in the lane of short calls.
    pub queue_short: usize,
    /// Requests that may wait in the lane of bundles.
    pub queue_bundle: usize,
    /// How long a request may expect to wait in a lane that keeps up, where more than a few wait already.
    pub queue_wait: Duration,
    /// How long a request may expect to wait in an overloaded lane, in per cent of what one takes.
    pub overload_wait: u32,
    /// From a job's arrival to its end.
    pub deadline: Duration,
}

/// Why a job was not run, or not to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The lane is full.
    #[error("too busy: {waiting} {lane} requests are waiting already")]
    QueueFull {
        /// Which lane.
        lane: LaneName,
        /// How many it holds.
        waiting: usize,
    },
    /// The lane is overloaded, and the wait would be long.
    #[error("too busy: the {lane} lane is overloaded, and the request would wait {} µs", wait.as_micros())]
    Overloaded {
        /// Which lane.
        lane: LaneName,
        /// The expected wait.
        wait: Duration,
    },
    /// The client's own share of the lane is full.
    #[error("too busy: your share of the {lane} lane, {share} requests, is in use")]
    ShareFull {
        /// Which lane.
        lane: LaneName,
        /// The client's share.
        share: usize,
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

/// A job's claim on its time: when it must be done, and whether anyone still waits for it.
#[derive(Clone, Debug)]
pub struct Ticket {
    deadline: Instant,
    cancelled: Arc<AtomicBool>,
    /// The batch that it is an entry of.
    batch: Option<Arc<Batch>>,
}

impl Ticket {
    /// The same for an entry of `batch`.
    pub fn of(self, batch: &Arc<Batch>) -> Self {
        Self { batch: Some(batch.clone()), ..self }
    }

    /// Whether it is of an entry of a batch.
    pub const fn is_entry(&self) -> bool {
        self.batch.is_some()
    }

    /// Waits until its batch may run one more.
    pub async fn turn(&self) -> Option<Turn<'_>> {
        Some(self.batch.as_ref()?.turn().await)
    }

    /// The same for another run of its job: a run that has ended counts as cancelled.
    pub fn again(&self) -> Self {
        Self { cancelled: Arc::default(), ..self.clone() }
    }

    /// When it must be done.
    pub const fn deadline(&self) -> Instant {
        self.deadline
    }
}

type Job = Box<dyn FnOnce(&mut Overlay) + Send>;

/// The queues and the pool. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Executor {
    shared: Arc<Shared>,
    pool: Arc<rayon::ThreadPool>,
    pause: Pause,
    workers: usize,
    overload_wait: u32,
    deadline: Duration,
}

#[derive(Debug)]
struct Shared {
    short: Lane,
    bundle: Lane,
    panics: PanicCounter,
    turns: AtomicUsize,
    stopping: AtomicBool,
}

struct Lane {
    name: LaneName,
    admission: Arc<Admission>,
    /// Bounded by what is admitted: a request brings one job, or a few of a batch at a time.
    jobs: SegQueue<Job>,
    running: AtomicUsize,
    refused: Counter,
    waited: Histogram,
}

/// A counter with a `Debug` that says nothing.
struct PanicCounter(Counter);

impl std::fmt::Debug for PanicCounter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Counter")
    }
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("name", &self.name).field("waiting", &self.jobs.len()).finish_non_exhaustive()
    }
}

thread_local! {
    /// The memory of this worker's runs: one overlay for its own job, one for a short call that passes a bundle.
    static OVERLAYS: RefCell<Vec<Overlay>> = const { RefCell::new(Vec::new()) };
}

impl Executor {
    /// Starts the workers.
    ///
    /// # Errors
    /// What the system says when it gives no threads.
    pub fn start(config: ExecutorConfig, metrics: &Metrics) -> Result<Self, rayon::ThreadPoolBuildError> {
        let shared = Arc::new(Shared {
            short: Lane::new(LaneName::Short, &config, metrics),
            bundle: Lane::new(LaneName::Bundle, &config, metrics),
            panics: PanicCounter(metrics.counter(
                "presim_panics_total",
                "Jobs that panicked and were answered with -32603.",
                &[],
            )),
            turns: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
        });
        let workers = config.workers.max(1);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(workers)
            .thread_name(|index| format!("presim-worker-{index}"))
            .build()?;
        let passing = shared.clone();
        let pause = Pause::new(move || passing.let_short_calls_pass());
        let ExecutorConfig { overload_wait, deadline, .. } = config;
        Ok(Self { shared, pool: Arc::new(pool), pause, workers, overload_wait, deadline })
    }

    /// A ticket for a request that has just arrived.
    pub fn ticket(&self) -> Ticket {
        Ticket { deadline: Instant::now() + self.deadline, cancelled: Arc::default(), batch: None }
    }

    /// Requests that have just arrived as one.
    pub fn batch(&self) -> Arc<Batch> {
        // Some rounds wait behind the one that runs, so that no worker waits for the front.
        Arc::new(Batch::new(4 * self.workers))
    }

    /// Runs `work` on a worker, in an overlay that `work` must reset, and returns what it returns. Dropping the future cancels the
    /// job: one that waits is never begun, one that runs is stopped.
    pub async fn run<T: Send + 'static>(
        &self,
        lane: LaneName,
        ticket: Ticket,
        work: impl FnOnce(&mut Overlay, Meter) -> T + Send + 'static,
    ) -> Result<T, Refused> {
        let (answer, answered) = oneshot::channel();
        let pause = (lane == LaneName::Bundle).then(|| self.pause.clone());
        let shared = self.shared.clone();
        let claim = self.admit(lane, &ticket)?;
        let arrived = Instant::now();
        let on_drop = CancelOnDrop(Some(ticket.cancelled.clone()));
        let job: Job = Box::new(move |overlay| {
            shared.lane(lane).waited.record(arrived.elapsed());
            if ticket.cancelled.load(Relaxed) {
                return;
            }
            if Instant::now() >= ticket.deadline {
                let _ = answer.send(Err(Refused::Deadline));
                return;
            }
            let meter = Meter::until(ticket.deadline, ticket.cancelled, pause);
            let began = Instant::now();
            let done = catch_unwind(AssertUnwindSafe(|| work(overlay, meter)));
            // Before the answer, so that a client that sends its next request at once finds its place free.
            claim.served(began.elapsed());
            let _ = answer.send(done.map_err(|panic| shared.panicked(panic.as_ref())));
        });
        self.push(lane, job);
        let done = answered.await.unwrap_or(Err(Refused::Stopping));
        // The job has ended. Its request may run again.
        on_drop.disarm();
        done
    }

    /// Lets a worker have the calling thread's core where a job waits that none has begun: the system would let a thread that never sleeps
    /// go on for milliseconds.
    pub fn give_way(&self) {
        if !(self.shared.short.jobs.is_empty() && self.shared.bundle.jobs.is_empty()) {
            std::thread::yield_now();
        }
    }

    /// Runs `work` on the calling thread, caught if it panics: for what is so short that handing it over would cost more.
    pub fn run_in_place<T>(&self, work: impl FnOnce(&mut Overlay) -> T) -> Result<T, Refused> {
        let mut overlay = borrow_overlay();
        let done = catch_unwind(AssertUnwindSafe(|| work(&mut overlay)));
        give_back(overlay);
        done.map_err(|panic| self.shared.panicked(panic.as_ref()))
    }

    /// How many jobs wait in a lane, how many of it run, and whether it is overloaded.
    pub fn load(&self, lane: LaneName) -> (usize, usize, bool) {
        let lane = self.shared.lane(lane);
        (lane.jobs.len(), lane.running.load(Relaxed), lane.admission.is_overloaded())
    }

    /// Whether a lane had to refuse something lately.
    pub fn is_overloaded(&self, lane: LaneName) -> bool {
        self.shared.lane(lane).admission.is_overloaded()
    }

    /// How many jobs wait or run, in both lanes.
    pub fn inside(&self) -> usize {
        self.shared.short.admission.inside() + self.shared.bundle.admission.inside()
    }

    /// How many workers there are: by default one a core.
    pub const fn workers(&self) -> usize {
        self.workers
    }

    /// How long a request may expect to wait where too much is asked, in per cent of what one takes.
    pub const fn overload_wait(&self) -> u32 {
        self.overload_wait
    }

    /// Refuses every further job.
    pub fn close(&self) {
        self.shared.stopping.store(true, Relaxed);
    }

    /// Refuses a request of a lane that had no place elsewhere, and counts it as the lane's own: the lane stays overloaded.
    pub fn refuse(&self, lane: LaneName, no_place: NoPlace) -> Refused {
        self.shared.lane(lane).admission.has_refused();
        self.refused(lane, no_place)
    }

    fn admit(&self, lane: LaneName, ticket: &Ticket) -> Result<Claim, Refused> {
        if self.shared.stopping.load(Relaxed) {
            return Err(Refused::Stopping);
        }
        let queue = self.shared.lane(lane);
        let claim = match &ticket.batch {
            Some(batch) => batch.enter(lane, &queue.admission),
            None => queue.admission.enter().map(Claim::Own),
        };
        claim.map_err(|no_place| self.refused(lane, no_place))
    }

    fn refused(&self, lane: LaneName, no_place: NoPlace) -> Refused {
        let queue = self.shared.lane(lane);
        queue.refused.increment(1);
        match no_place {
            NoPlace::Full => Refused::QueueFull { lane, waiting: queue.admission.most() },
            NoPlace::TooLong(wait) => Refused::Overloaded { lane, wait },
        }
    }

    fn push(&self, lane: LaneName, job: Job) {
        self.shared.lane(lane).jobs.push(job);
        let shared = self.shared.clone();
        // One turn for each job: a turn may find its job already done by a bundle that let it pass.
        self.pool.spawn(move || shared.turn());
    }
}

impl Shared {
    const fn lane(&self, name: LaneName) -> &Lane {
        match name {
            LaneName::Short => &self.short,
            LaneName::Bundle => &self.bundle,
        }
    }

    /// Runs one job: a short call if one waits, but every [`Self::BUNDLE_TURN`]th time a bundle, so that no stream of short calls
    /// keeps bundles waiting for ever.
    fn turn(&self) {
        let first_bundle = self.turns.fetch_add(1, Relaxed).is_multiple_of(Self::BUNDLE_TURN);
        let [first, second] = if first_bundle { [&self.bundle, &self.short] } else { [&self.short, &self.bundle] };
        if !first.run_next() {
            second.run_next();
        }
    }

    const BUNDLE_TURN: usize = 8;

    /// Runs the short calls that wait now; those that come meanwhile wait for the next pause.
    fn let_short_calls_pass(&self) {
        for _ in 0..self.short.jobs.len() {
            if !self.short.run_next() {
                break;
            }
        }
    }

    fn panicked(&self, panic: &(dyn std::any::Any + Send)) -> Refused {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let id = NEXT.fetch_add(1, Relaxed) as u64;
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no text");
        self.panics.0.increment(1);
        tracing::error!(id, panic = text, "a job panicked");
        Refused::Panicked { id }
    }
}

impl Lane {
    fn new(name: LaneName, config: &ExecutorConfig, metrics: &Metrics) -> Self {
        let most = match name {
            LaneName::Short => config.queue_short,
            LaneName::Bundle => config.queue_bundle,
        };
        let labels = [("lane", name.as_str())];
        Self {
            name,
            admission: Arc::new(Admission::new(
                config.workers,
                most,
                config.queue_wait,
                config.overload_wait,
                Admission::BETWEEN_ARRIVALS,
            )),
            jobs: SegQueue::new(),
            running: AtomicUsize::new(0),
            refused: metrics.counter(
                "presim_queue_refused_total",
                "Requests refused because their lane was full or overloaded.",
                &labels,
            ),
            waited: metrics.histogram("presim_queue_wait_seconds", "From a job's arrival to its start.", &labels),
        }
    }

    fn run_next(&self) -> bool {
        // Counted before it is taken, so that a job in hand is never overlooked.
        self.running.fetch_add(1, AcqRel);
        let job = self.jobs.pop();
        let found = job.is_some();
        if let Some(job) = job {
            let mut overlay = borrow_overlay();
            job(&mut overlay);
            give_back(overlay);
        }
        self.running.fetch_sub(1, AcqRel);
        found
    }

    /// Whether nothing waits and nothing runs.
    fn idle(&self) -> bool {
        self.jobs.is_empty() && self.running.load(Acquire) == 0
    }
}

impl Executor {
    /// Whether nothing waits and nothing runs.
    pub fn idle(&self) -> bool {
        self.shared.short.idle() && self.shared.bundle.idle()
    }
}

fn borrow_overlay() -> Overlay {
    OVERLAYS.with_borrow_mut(Vec::pop).unwrap_or_else(Overlay::of_thread)
}

fn give_back(mut overlay: Overlay) {
    overlay.rest();
    OVERLAYS.with_borrow_mut(|overlays| overlays.push(overlay));
}

/// Sets the flag when the one who waits goes away before the job has ended.
struct CancelOnDrop(Option<Arc<AtomicBool>>);

impl CancelOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(flag) = &self.0 {
            flag.store(true, Relaxed);
        }
    }
}
