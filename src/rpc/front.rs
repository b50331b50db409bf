//! The way of a request: routed, run in place or on a lane, counted.

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

use metrics::{Counter, Histogram};
use tokio::sync::watch;

use super::{
    error::{Outcome, RpcError},
    in_place::InPlace,
    methods::{Backend, Handler, Method, Place, RequestLimits, Run, Upstream},
    remote::{Remote, Rounds},
    request::{Request, begin},
    wait::Waiters,
};
use crate::{
    executor::{Batch, Executor, LaneName, Ticket},
    feed::{pool::Pool, upstream::UpstreamState},
    state::{Meter, Missed, Published, SnapshotId, Snapshots, Stopped},
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

impl Front {
    /// Strides of the meter that a call may run in place: some hundreds of microseconds at most.
    const INLINE: u32 = 12;
    /// Bytes of parameters that a call may have to be run in place: what has more is a bundle that takes long, or takes long to read.
    const INLINE_BYTES: usize = 8 << 10;

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

    /// Answers a request: returns the answer up to the end of its result.
    ///
    /// # Errors
    /// Returns the error that answers the request instead.
    pub async fn answer(&self, request: Request) -> Result<Vec<u8>, RpcError> {
        let (arrived, method) = (Instant::now(), request.method);
        let answer = match (method.handler, &self.remote) {
            (Handler::Subscribe | Handler::Unsubscribe, _) => Self::subscribe(&request),
            (Handler::SendAndWait, _) => self.send_and_wait(request).await,
            (Handler::SendCalls, _) => self.send_calls(request).await,
            (Handler::Run(run), Some(remote)) if method.upstream != Upstream::Unasked => {
                self.run_beside(remote, run, request).await
            }
            (Handler::Run(run), _) => self.run(run, request).await,
        };
        let outcome = answer.as_ref().map_or_else(RpcError::outcome, |_| Outcome::Ok);
        self.counts[method.index][outcome as usize]
            .get_or_init(|| Counted::new(&self.metrics, method.name, outcome))
            .count(arrived);
        answer
    }

    /// Counts a request whose method there is not.
    pub fn count_unknown(&self, parsed: Instant) {
        self.unknown.count(parsed);
    }

    /// Subscribes or unsubscribes, where there is a connection to do so on.
    fn subscribe(request: &Request) -> Result<Vec<u8>, RpcError> {
        let name = request.method.name;
        let starting = request.starting.as_ref().ok_or_else(|| {
            RpcError::new(
                -32601,
                format!("{name} needs a WebSocket connection: notifications have nowhere to go over HTTP"),
            )
        })?;
        let mut out = begin(&request.id, "result");
        match request.method.handler {
            Handler::Subscribe => starting.subscribe(&request.params, &mut out)?,
            _ => starting.unsubscribe(&request.params, &mut out)?,
        }
        Ok(out)
    }

    /// Counts the refusal of a request that was parsed then.
    pub fn count_refusal(&self, parsed: Instant) {
        self.refusals.count(parsed);
    }

    /// Runs a request where its method runs.
    pub(super) async fn run(&self, run: Runs, request: Request) -> Result<Vec<u8>, RpcError> {
        match request.method.place {
            Place::Inline => self.run_look_up(run, request).await,
            Place::InlineThen(lane) if !request.ticket.is_entry() && request.params.len() <= Self::INLINE_BYTES => {
                self.run_inline_then_on(lane, run, request).await
            }
            Place::InlineThen(lane) | Place::On(lane) => {
                self.run_on(lane, Missed::default(), request, run).await.map(|((), answer)| answer)
            }
        }
    }

    /// Runs on the calling thread if few others want to, and what is short ends there; all else goes to a lane.
    ///
    /// Whoever would run here first lets those in who have arrived already. So how many they are is known, and once somebody would wait for
    /// long, the rest goes to the lane: a thread that runs reads nothing, and refuses nothing.
    ///
    /// Where the lane is overloaded, what has no place here is refused unless a core is free: the lane's workers would take the time from
    /// this thread and those like it, and give each answer a way between threads.
    async fn run_inline_then_on(&self, lane: LaneName, run: Runs, request: Request) -> Result<Vec<u8>, RpcError> {
        let overloaded = self.executor.is_overloaded(lane);
        let mut missed = Missed::default();
        if !overloaded || !self.in_place.often_too_long(lane) {
            match self.in_place.enter(overloaded) {
                Ok(place) => {
                    tokio::task::yield_now().await;
                    let began = Instant::now();
                    let ran = self.run_here(run, &request, Meter::short(Self::INLINE));
                    self.in_place.ended(place, lane, began.elapsed(), ran.too_long);
                    if ran.missed.is_empty() && !ran.too_long {
                        return ran.answer;
                    }
                    missed = ran.missed;
                }
                Err(no_place) if overloaded && self.all_cores_are_busy() => {
                    return Err(self.executor.refuse(lane, no_place).into());
                }
                Err(_) => {}
            }
        }
        self.run_on(lane, missed, request, run).await.map(|((), answer)| answer)
    }

    /// Whether as many threads run as there are cores. By default there is a worker a core, and a thread for connections.
    fn all_cores_are_busy(&self) -> bool {
        let cores = self.executor.workers().max(self.in_place.threads());
        self.in_place.busy() + self.executor.inside() >= cores
    }

    /// Runs a look-up on the calling thread, and again when what it missed is there.
    async fn run_look_up(&self, run: Runs, mut request: Request) -> Result<Vec<u8>, RpcError> {
        let mut rounds = Rounds::default();
        loop {
            let ran = self.run_here(run, &request, Meter::default());
            if ran.missed.is_empty() {
                return ran.answer;
            }
            self.complete(&mut rounds, &ran.missed, &mut request).await?;
        }
    }

    /// Runs on the calling thread.
    fn run_here(&self, run: Runs, request: &Request, meter: Meter) -> Ran {
        self.executor.give_way();
        let ran = self.executor.run_in_place(|overlay| {
            // What acknowledges something runs on a lane: nothing is committed here.
            let (result, out, _) = request.run(overlay, meter, &self.backend, run);
            let too_long = overlay.meter.stopped() == Some(Stopped::TooLong);
            Ran { answer: result.map(|()| out), too_long, missed: overlay.take_missed() }
        });
        ran.unwrap_or_else(|refused| Ran { answer: Err(refused.into()), too_long: false, missed: Missed::default() })
    }

    /// Runs `work` on a lane, in its client's seat there, and waits until what it commits is on the disk. Where the state is an upstream's it
    /// runs once what a first run has `missed` is there, and again for as long as it misses something.
    ///
    /// Returns what `work` returns, and the answer as far as it has made it.
    pub(super) async fn run_on<T: Send + 'static>(
        &self,
        lane: LaneName,
        mut missed: Missed,
        mut request: Request,
        work: impl FnOnce(&Backend, &mut Run<'_>) -> Result<T, RpcError> + Clone + Send + 'static,
    ) -> Result<(T, Vec<u8>), RpcError> {
        let mut rounds = Rounds::default();
        loop {
            if !missed.is_empty() {
                self.complete(&mut rounds, &missed, &mut request).await?;
                request.ticket = request.ticket.again();
            }
            let ticket = request.ticket.clone();
            let _turn = ticket.turn().await;
            let seat = request.caller.client.as_ref().map(|client| client.sit(lane)).transpose()?;
            let (backend, again, work) = (self.backend.clone(), request.clone(), work.clone());
            let ran = self.executor.run(lane, ticket.clone(), move |overlay, meter| {
                let _seat = seat;
                let (mut result, mut out, commit) = again.run(overlay, meter, &backend, work);
                let missed = overlay.take_missed();
                if result.is_ok() && missed.is_empty() && !again.method.commits {
                    result = again.room.take(&mut out).and(result);
                }
                (result, out, commit, missed)
            });
            let (result, out, commit, now_missed) = ran.await?;
            if now_missed.is_empty() {
                let done = result?;
                kept(commit, &ticket).await?;
                return Ok((done, out));
            }
            missed = now_missed;
        }
    }
}

/// A handler that runs.
pub(super) type Runs = fn(&Backend, &mut Run<'_>) -> Result<(), RpcError>;

/// How a run on the calling thread went.
struct Ran {
    answer: Result<Vec<u8>, RpcError>,
    /// It was longer than what may be done so.
    too_long: bool,
    /// What it did not find: then the rest says nothing.
    missed: Missed,
}

/// Waits until what an answer acknowledges is on the disk, as long as its request has time.
///
/// # Errors
/// Returns an error if the commit failed, or did not finish before the deadline of the request.
async fn kept(commit: Commit, ticket: &Ticket) -> Result<(), RpcError> {
    if commit.is_done() {
        return Ok(());
    }
    match tokio::time::timeout_at(ticket.deadline().into(), commit.wait()).await {
        Ok(Ok(())) => Ok(()),
        // Whether the disk has it after all is seen when the store is opened again.
        Ok(Err(error)) => Err(RpcError::from(error)
            .with_message(|text| format!("{text}: it may still be sent when the node is started again"))),
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
