//! The way of a request: routed by the table of methods, run by the executor, counted.

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

use tokio::sync::{Semaphore, watch};

use super::{
    encode,
    error::{Outcome, RpcError},
    methods::{Backend, Handler, MethodRoute, RequestLimits, Run, UpstreamUse},
    remote::StateCompletion,
    request::{Caller, Request, begin},
    wire,
};
use crate::{
    executor::{Batch, Executor, RunPlace, Task, Ticket},
    feed::upstream::UpstreamState,
    meter::Meter,
    pool::Pool,
    state::{Missed, Overlay, Published, SnapshotId, Snapshots},
    store::{Commit, StoreError},
    telemetry::{Counter, Histogram, Metrics},
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
    /// Where the state is an upstream's.
    pub(super) remote: Option<Arc<StateCompletion>>,
    /// By method and outcome; each is there once it has something to count.
    counts: Vec<[OnceLock<Counted>; Outcome::ALL.len()]>,
    unknown: Counted,
    /// Those that were not begun, because too much else is to be done.
    refusals: Counted,
}

/// The seats of those who wait for receipts. Waiting holds no worker: a task is woken by each publication, and looks.
#[derive(Debug)]
pub struct Waiters {
    pub(super) seats: Semaphore,
    pub(super) count: usize,
}

impl Waiters {
    /// Seats for `count`.
    pub fn new(count: usize) -> Self {
        Self { seats: Semaphore::new(count.min(Semaphore::MAX_PERMITS)), count }
    }
}

#[derive(Debug)]
struct Counted {
    requests: Counter,
    seconds: Histogram,
}

impl Front {
    /// A front before `backend` counting into `metrics`.
    pub fn new(
        backend: Arc<Backend>,
        snapshots: Arc<Snapshots>,
        executor: Executor,
        waiters: Waiters,
        metrics: &Metrics,
    ) -> Self {
        let counts = MethodRoute::ALL.iter().map(|_| Default::default()).collect();
        let unknown = Counted::new(metrics, "unknown", Outcome::Invalid);
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
            remote: None,
            counts,
            unknown,
            refusals,
        }
    }

    /// The same, on state that is an upstream's.
    #[must_use]
    pub fn with_remote(self, remote: StateCompletion) -> Self {
        Self { remote: Some(Arc::new(remote)), ..self }
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
    pub fn ticket(&self, caller: &Caller) -> Ticket {
        self.executor.ticket(&caller.flow)
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
            // What is rare is large, and would be moved with every request.
            (Handler::SendAndWait, _) => Box::pin(self.send_and_wait(request)).await,
            (Handler::SendCalls, _) => Box::pin(self.send_calls(request)).await,
            (Handler::Run(run), Some(remote)) if method.upstream != UpstreamUse::Unasked => {
                Box::pin(self.run_beside(remote, run, request)).await
            }
            (Handler::Run(run), _) => self.run(run, request).await,
        };
        let outcome = answer.as_ref().map_or_else(RpcError::outcome, |_| Outcome::Ok);
        self.counts[method.index][outcome as usize]
            .get_or_init(|| Counted::new(&self.metrics, method.name, outcome))
            .count(arrived);
        answer
    }

    /// Answers a request that the upstream can answer where presim cannot.
    async fn run_beside(&self, remote: &StateCompletion, run: Runs, request: Request) -> Result<Vec<u8>, RpcError> {
        let mut out = begin(&request.id, "result");
        match request.method.upstream {
            UpstreamUse::Proves => remote.forward_proof(&request, &mut out).await?,
            UpstreamUse::Sends => {
                let raw = wire::parse_raw(&request.params, request.caller.dialect)?;
                encode::data(&mut out, remote.send_on(&raw, &request).await?.as_slice());
            }
            UpstreamUse::IfUnknown | UpstreamUse::Unasked => match self.run(run, request.clone()).await {
                Ok(answer) if answer[out.len()..] == *b"null" => remote.forward(&request, &mut out).await?,
                Err(RpcError::UnknownBlock(_)) => remote.forward(&request, &mut out).await?,
                answered => return answered,
            },
        }
        Ok(out)
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

    /// Runs a request by its handler.
    pub(super) async fn run(&self, run: Runs, request: Request) -> Result<Vec<u8>, RpcError> {
        self.run_step(request.method.place, request, run).await.map(|((), answer)| answer)
    }

    /// Runs a step of a request at a place, and waits until what it commits is on the disk. Returns what the step returns, and the answer as far
    /// as it has made it.
    pub(super) async fn run_step<T: Send + 'static>(
        &self,
        place: RunPlace,
        request: Request,
        work: impl Fn(&Backend, &mut Run<'_>) -> Result<T, RpcError> + Clone + Send + Sync + 'static,
    ) -> Result<(T, Vec<u8>), RpcError> {
        let ticket = request.ticket.clone();
        let (backend, remote) = (self.backend.clone(), self.remote.clone());
        let step = RequestStep { backend, remote, place, request, work };
        let Stepped { result, out, commit } = self.executor.submit(step, ticket.clone()).await?;
        let done = result?;
        kept(commit, &ticket).await?;
        Ok((done, out))
    }
}

/// A handler that runs.
pub(super) type Runs = fn(&Backend, &mut Run<'_>) -> Result<(), RpcError>;

/// A request and what is done with it in one go: a handler, or a part of one.
struct RequestStep<F> {
    backend: Arc<Backend>,
    remote: Option<Arc<StateCompletion>>,
    place: RunPlace,
    request: Request,
    work: F,
}

/// What a step has made.
struct Stepped<T> {
    result: Result<T, RpcError>,
    out: Vec<u8>,
    commit: Commit,
}

impl<T, F> Task for RequestStep<F>
where
    T: Send + 'static,
    F: Fn(&Backend, &mut Run<'_>) -> Result<T, RpcError> + Clone + Send + Sync + 'static,
{
    type Done = Stepped<T>;
    type Error = RpcError;

    fn place(&self) -> RunPlace {
        self.place
    }

    fn size(&self) -> usize {
        self.request.params.len()
    }

    fn run(&self, overlay: &mut Overlay, meter: Meter) -> Stepped<T> {
        let (mut result, mut out, commit) = self.request.run(&mut *overlay, meter, &self.backend, &self.work);
        // An answer counts for its connection from when it is made, because it may wait for the connection's thread.
        if result.is_ok() && !overlay.has_missed() && !self.request.method.commits && self.place != RunPlace::Inline {
            result = self.request.room.take(&mut out).and(result);
        }
        Stepped { result, out, commit }
    }

    async fn fetch(&self, missed: Missed, round: usize) -> Result<Option<Self>, RpcError> {
        let Some(remote) = &self.remote else {
            return Err(RpcError::internal("a run has missed state on a chain that is all here"));
        };
        let published = remote.complete(round, &missed, &self.request).await?;
        Ok(published.map(|published| {
            let Self { backend, remote, place, request, work } = self;
            let request = Request { published, ..request.clone() };
            Self { backend: backend.clone(), remote: remote.clone(), place: *place, request, work: work.clone() }
        }))
    }
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
