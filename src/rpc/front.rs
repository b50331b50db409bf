//! The way of a request: routed, run in place or on a lane, counted.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Instant,
};

use bytestring::ByteString;
use metrics::{Counter, Histogram};
use tokio::sync::watch;

use super::{
    access::Client,
    dialect::Dialect,
    error::{Outcome, RpcError},
    in_place::InPlace,
    memory::{HeldBytes, MemoryShare},
    methods::{Asked, Backend, Method, Place, RequestLimits},
    remote::{Remote, Rounds},
    subscriptions::Starting,
    wait::Waiters,
};
use crate::{
    executor::{Batch, Executor, LaneName, Ticket},
    feed::{pool::Pool, upstream::UpstreamState},
    state::{Meter, Missed, Overlay, Published, SnapshotId, Snapshots, Stopped},
    store::{Commit, StoreError},
    telemetry::Metrics,
    wallet::Wallet,
};

/// What both doors hand their requests to.
#[derive(Debug)]
pub struct Front {
    backend: Arc<Backend>,
    snapshots: Arc<Snapshots>,
    executor: Executor,
    pub(super) waiters: Waiters,
    metrics: Metrics,
    /// Who may run in place.
    in_place: InPlace,
    /// Where the state is an upstream's.
    pub(super) remote: Option<Remote>,
    /// By method and outcome; each is there once it has something to count.
    counts: Vec<[OnceLock<Counted>; Outcome::ALL.len()]>,
    unknown: Counted,
    /// Those that were not begun, because too much else is to be done.
    refusals: Counted,
}

struct Counted {
    requests: Counter,
    seconds: Histogram,
}

impl std::fmt::Debug for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Counted")
    }
}

/// One request on its way.
#[derive(Clone, Debug)]
pub struct Job {
    /// The parameters: a slice of the body.
    pub params: ByteString,
    /// What was published when it arrived.
    pub published: Arc<Published>,
    /// How its client speaks.
    pub dialect: &'static Dialect,
    /// Its client, where clients have names.
    pub client: Option<Arc<Client>>,
    /// Whether its client may use the wallet.
    pub may_use_wallet: bool,
    /// Its time.
    pub ticket: Ticket,
    /// Where it may subscribe: a connection that stays.
    pub starting: Option<Arc<Starting>>,
    /// The room that its answer takes.
    pub room: AnswerRoom,
    /// Whether it came alone; the entries of a batch go to the lanes, to run side by side.
    pub alone: bool,
}

/// The room that an answer takes from when it is made, so that answers which wait for their connection's thread count too.
#[derive(Clone, Debug)]
pub struct AnswerRoom(Arc<Mutex<HeldBytes>>);

impl AnswerRoom {
    /// No room yet, of this share.
    pub fn of(share: &Arc<MemoryShare>) -> Self {
        Self(Arc::new(Mutex::new(share.clone().nothing())))
    }

    /// Takes room for a text, or lets the text go.
    fn take(&self, text: &mut Vec<u8>) -> Result<(), RpcError> {
        let mut held = self.held();
        if held.grow(text.len()) {
            return Ok(());
        }
        let length = std::mem::take(text).len();
        Err(held.share().memory().full("the answer", length))
    }

    /// The room that was taken.
    pub fn taken(&self) -> HeldBytes {
        let mut held = self.held();
        let nothing = held.share().clone().nothing();
        std::mem::replace(&mut *held, nothing)
    }

    /// Whoever panicked while it held the count left it right: each change is one step.
    fn held(&self) -> MutexGuard<'_, HeldBytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Job {
    pub(super) fn asked(&self) -> Asked<'_> {
        Asked {
            params: &self.params,
            published: &self.published,
            dialect: self.dialect,
            client: self.client.as_deref().map(Client::name),
            may_use_wallet: self.may_use_wallet,
        }
    }
}

impl Front {
    /// Strides of the meter that a call may run in place: some hundreds of microseconds at most.
    const IN_PLACE: u32 = 12;
    /// Bytes of parameters that a call may have to be run in place: what has more is a bundle that takes long, or takes long to read.
    const IN_PLACE_BYTES: usize = 8 << 10;

    /// A front before `backend` whose connections live on so many threads, counting into `metrics`.
    pub fn new(
        backend: Arc<Backend>,
        snapshots: Arc<Snapshots>,
        executor: Executor,
        waiters: Waiters,
        io_threads: usize,
        metrics: &Metrics,
    ) -> Self {
        let counts = Method::ALL.iter().map(|_| Default::default()).collect();
        let unknown = Counted::new(metrics, "unknown", Outcome::Invalid);
        let in_place = InPlace::new(io_threads, executor.overload_wait());
        let refusals = Counted {
            requests: metrics.counter("presim_refusals_total", "Requests refused because a lane was too busy.", &[]),
            seconds: metrics.histogram(
                "presim_refusal_seconds",
                "From a request being parsed to its refusal being ready to be written.",
                &[],
            ),
        };
        Self {
            backend,
            snapshots,
            executor,
            waiters,
            metrics: metrics.clone(),
            in_place,
            remote: None,
            counts,
            unknown,
            refusals,
        }
    }

    /// The same, on state that is an upstream's.
    #[must_use]
    pub fn with_remote(self, remote: Remote) -> Self {
        Self { remote: Some(remote), ..self }
    }

    /// How the upstream is, where there is one.
    pub fn upstream(&self) -> Option<UpstreamState> {
        self.remote.as_ref().map(|remote| remote.fetcher.upstream().state())
    }

    /// Why nothing can be stored any more, if so.
    pub fn store_failure(&self) -> Option<&StoreError> {
        self.backend.wallet.ledger.store().failure()
    }

    /// What is published now.
    pub fn published(&self) -> Arc<Published> {
        self.snapshots.load()
    }

    /// Wakes whoever waits for what is published next.
    pub(super) fn changes(&self) -> watch::Receiver<SnapshotId> {
        self.snapshots.changes()
    }

    /// Limits on requests.
    pub(super) fn limits(&self) -> &RequestLimits {
        &self.backend.limits
    }

    /// The transaction pool.
    pub(super) fn pool(&self) -> &Pool {
        &self.backend.pool
    }

    /// The wallet.
    pub(super) fn wallet(&self) -> &Wallet {
        &self.backend.wallet
    }

    /// A ticket for a request that has just arrived.
    pub fn ticket(&self) -> Ticket {
        self.executor.ticket()
    }

    /// Requests that have just arrived as one.
    pub fn batch(&self) -> Arc<Batch> {
        self.executor.batch()
    }

    /// Answers a request: the JSON of its result is appended to `out`, or the error returned. `out` comes back in any case.
    pub async fn run(&self, method: &str, job: Job, out: Vec<u8>) -> (Vec<u8>, Result<(), RpcError>) {
        let arrived = Instant::now();
        let Some(method) = Method::by_name(method) else {
            let error = RpcError::method(method);
            self.unknown.count(arrived);
            return (out, Err(error));
        };
        let (out, result) = match method.place() {
            Place::Connection => Self::subscribe(method, &job, out),
            Place::Here => self.run_where_read(method, job, out).await,
            Place::HereThen(lane) if job.alone && job.params.len() <= Self::IN_PLACE_BYTES => {
                self.run_here_then_on(lane, method, job, out).await
            }
            Place::On(lane) if let Some(remote) = &self.remote => self.run_beside(remote, lane, method, job, out).await,
            Place::HereThen(lane) | Place::On(lane) => self.run_on(lane, method, job, out).await,
            Place::OnThenWait(lane) => self.send_and_wait(lane, job, out).await,
            Place::OnThenAsk(lane) => self.send_calls(lane, job, out).await,
        };
        let outcome = result.as_ref().map_or_else(RpcError::outcome, |()| Outcome::Ok);
        self.counts[method as usize][outcome as usize]
            .get_or_init(|| Counted::new(&self.metrics, method.name(), outcome))
            .count(arrived);
        (out, result)
    }

    /// Subscribes or unsubscribes, where there is a connection to do so on.
    fn subscribe(method: Method, job: &Job, mut out: Vec<u8>) -> (Vec<u8>, Result<(), RpcError>) {
        let result = match &job.starting {
            Some(starting) => starting.answer(method, &job.params, &mut out),
            None => Err(RpcError::new(
                -32601,
                format!("{} needs a WebSocket connection: notifications have nowhere to go over HTTP", method.name()),
            )),
        };
        (out, result)
    }

    /// Counts the refusal of a request that was parsed then.
    pub fn count_refusal(&self, parsed: Instant) {
        self.refusals.count(parsed);
    }

    /// Runs on the calling thread if few others want to, and what is short ends there; all else goes to a lane.
    ///
    /// Whoever would run here first lets those in who have arrived already. So how many they are is known, and once somebody would wait for
    /// long, the rest goes to the lane: a thread that runs reads nothing, and refuses nothing.
    ///
    /// Where the lane is overloaded, what has no place here is refused unless a core is free: the lane's workers would take the time from
    /// this thread and those like it, and give each answer a way between threads.
    async fn run_here_then_on(
        &self,
        lane: LaneName,
        method: Method,
        job: Job,
        out: Vec<u8>,
    ) -> (Vec<u8>, Result<(), RpcError>) {
        let overloaded = self.executor.is_overloaded(lane);
        if overloaded && self.in_place.often_too_long(lane) {
            return self.run_on(lane, method, job, out).await;
        }
        let place = match self.in_place.enter(overloaded) {
            Ok(place) => place,
            Err(no_place) if overloaded && self.all_cores_are_busy() => {
                return (out, Err(self.executor.refuse(lane, no_place).into()));
            }
            Err(_) => return self.run_on(lane, method, job, out).await,
        };
        tokio::task::yield_now().await;
        let (start, began) = (out.len(), Instant::now());
        let ran = self.run_here(method, &job, out, Meter::short(Self::IN_PLACE));
        self.in_place.ended(place, lane, began.elapsed(), ran.too_long);
        let Ran { mut out, result, too_long, missed } = ran;
        if !missed.is_empty() {
            out.truncate(start);
            return self.run_on_after(missed, lane, method, job, out).await;
        }
        if too_long {
            out.truncate(start);
            return self.run_on(lane, method, job, out).await;
        }
        (out, result)
    }

    /// Whether as many threads run as there are cores. By default there is a worker a core, and a thread for connections.
    fn all_cores_are_busy(&self) -> bool {
        let cores = self.executor.workers().max(self.in_place.threads());
        self.in_place.busy() + self.executor.inside() >= cores
    }

    /// Runs a look-up on the calling thread, and again when what it missed is there.
    async fn run_where_read(&self, method: Method, mut job: Job, mut out: Vec<u8>) -> (Vec<u8>, Result<(), RpcError>) {
        let start = out.len();
        let mut rounds = Rounds::default();
        loop {
            let ran = self.run_here(method, &job, out, Meter::default());
            if ran.missed.is_empty() {
                return (ran.out, ran.result);
            }
            out = ran.out;
            out.truncate(start);
            if let Err(error) = self.complete(&mut rounds, &ran.missed, &mut job).await {
                return (out, Err(error));
            }
        }
    }

    /// Runs on the calling thread.
    fn run_here(&self, method: Method, job: &Job, mut out: Vec<u8>, meter: Meter) -> Ran {
        self.executor.give_way();
        let ran = self.executor.run_in_place(|overlay| {
            // What acknowledges something runs on a lane.
            let result = self.backend.answer(method, job.asked(), overlay, meter, &mut out).map(drop);
            (result, overlay.meter.stopped() == Some(Stopped::TooLong), overlay.take_missed())
        });
        match ran {
            Ok((result, too_long, missed)) => Ran { out, result, too_long, missed },
            Err(refused) => Ran { out, result: Err(refused.into()), too_long: false, missed: Missed::default() },
        }
    }

    /// Runs a method on a lane.
    pub(super) async fn run_on(
        &self,
        lane: LaneName,
        method: Method,
        job: Job,
        out: Vec<u8>,
    ) -> (Vec<u8>, Result<(), RpcError>) {
        self.run_on_after(Missed::default(), lane, method, job, out).await
    }

    /// The same, once what a first run has missed is there.
    async fn run_on_after(
        &self,
        missed: Missed,
        lane: LaneName,
        method: Method,
        job: Job,
        out: Vec<u8>,
    ) -> (Vec<u8>, Result<(), RpcError>) {
        let mut answer = out.clone();
        let ticket = job.ticket.clone();
        let ran = self
            .on_lane_after(missed, lane, job, move |backend, job, overlay, meter| {
                let mut result = backend.answer(method, job.asked(), overlay, meter, &mut answer);
                if result.is_ok() && !method.commits() && !overlay.has_missed() {
                    result = job.room.take(&mut answer).and(result);
                }
                (answer, result)
            })
            .await;
        match ran {
            Ok((answer, Ok(commit))) => (answer, kept(commit, &ticket).await),
            Ok((answer, Err(error))) => (answer, Err(error)),
            Err(refused) => (out, Err(refused)),
        }
    }

    /// Runs `work` on a lane, in its client's seat there.
    pub(super) async fn on_lane<T: Send + 'static>(
        &self,
        lane: LaneName,
        job: Job,
        work: impl FnOnce(&Backend, &Job, &mut Overlay, Meter) -> T + Clone + Send + 'static,
    ) -> Result<T, RpcError> {
        self.on_lane_after(Missed::default(), lane, job, work).await
    }

    /// Runs `work` once what a first run has missed is there, and again for as long as it misses something: `work` may do nothing that lasts
    /// where its overlay [has missed](Overlay::has_missed) something.
    async fn on_lane_after<T: Send + 'static>(
        &self,
        mut missed: Missed,
        lane: LaneName,
        mut job: Job,
        work: impl FnOnce(&Backend, &Job, &mut Overlay, Meter) -> T + Clone + Send + 'static,
    ) -> Result<T, RpcError> {
        if self.remote.is_none() {
            return self.once_on_lane(lane, job, work).await.map(|(done, _)| done);
        }
        let mut rounds = Rounds::default();
        loop {
            if !missed.is_empty() {
                self.complete(&mut rounds, &missed, &mut job).await?;
            }
            let done;
            let round = Job { ticket: job.ticket.again(), ..job.clone() };
            (done, missed) = self.once_on_lane(lane, round, work.clone()).await?;
            if missed.is_empty() {
                return Ok(done);
            }
        }
    }

    async fn once_on_lane<T: Send + 'static>(
        &self,
        lane: LaneName,
        job: Job,
        work: impl FnOnce(&Backend, &Job, &mut Overlay, Meter) -> T + Send + 'static,
    ) -> Result<(T, Missed), RpcError> {
        let ticket = job.ticket.clone();
        let _turn = ticket.turn().await;
        let seat = job.client.as_ref().map(|client| client.sit(lane)).transpose()?;
        let backend = self.backend.clone();
        let ran = self.executor.run(lane, ticket.clone(), move |overlay, meter| {
            let _seat = seat;
            let done = work(&backend, &job, overlay, meter);
            (done, overlay.take_missed())
        });
        Ok(ran.await?)
    }
}

/// How a run on the calling thread went.
struct Ran {
    out: Vec<u8>,
    result: Result<(), RpcError>,
    /// It was longer than what may be done so.
    too_long: bool,
    /// What it did not find: then the rest says nothing.
    missed: Missed,
}

/// Waits until what an answer acknowledges is on the disk, as long as its request has time.
///
/// # Errors
/// That it is not, or not yet.
pub(super) async fn kept(commit: Commit, ticket: &Ticket) -> Result<(), RpcError> {
    if commit.is_done() {
        return Ok(());
    }
    match tokio::time::timeout_at(ticket.deadline().into(), commit.wait()).await {
        Ok(Ok(())) => Ok(()),
        // Whether the disk has it after all is seen when the store is opened again.
        Ok(Err(error)) => Err(RpcError::from(error).with_message(|text| format!("{text}: it may still be sent when the node is started again"))),
        Err(_) => Err(RpcError::new(-32016, "the disk has not taken it in time: it may still be sent")),
    }
}

impl Counted {
    fn new(metrics: &Metrics, method: &'static str, outcome: Outcome) -> Self {
        let labels = [("method", method), ("outcome", outcome.as_str())];
        Self {
            requests: metrics.counter("presim_requests_total", "Requests answered.", &labels),
            seconds: metrics.histogram("presim_request_seconds", "From a request's arrival to its answer.", &labels),
        }
    }

    fn count(&self, arrived: Instant) {
        self.requests.increment(1);
        self.seconds.record(arrived.elapsed());
    }
}
