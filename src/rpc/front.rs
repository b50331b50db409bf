//! The path of a request: routed by the table of methods, run by the executor, and counted.

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

use alloy_primitives::{Address, B256};
use serde::Serialize;
use tokio::sync::{Semaphore, watch};

use super::{
    encode,
    error::{Outcome, RpcError},
    leader::{self, Leader},
    methods::{Backend, Handler, LeaderUse, MethodRoute, RequestLimits, Run, UpstreamUse},
    remote::StateCompletion,
    request::{Caller, Request, begin},
    status::StatusBoard,
    testing::Testing,
    watches::Watches,
    wire,
};
use crate::{
    executor::{Batch, Executor, RunPlace, Task, Ticket},
    ledger::{Chain, SnapshotId, Snapshots, UnknownBlock},
    meter::Meter,
    pool::{Acknowledgement, Pool, SubmittedTransaction},
    state::{Missed, Overlay},
    store::StoreError,
    telemetry::{Counter, Histogram, Metrics},
    upstream::UpstreamState,
    wallet::Wallet,
};

/// The handler of all requests, whatever their transport.
#[derive(Debug)]
pub struct Front {
    pub(super) runner: RequestRunner,
    pub(super) snapshots: Arc<Snapshots>,
    pub(super) waiters: Waiters,
    metrics: Metrics,
    /// The scope of the methods for testing.
    pub(super) testing: Testing,
    /// The bundles that stand.
    pub(super) watches: Watches,
    /// The load of the last seconds, for who asks.
    pub(super) board: StatusBoard,
    /// Counters by method and outcome, each created on its first use.
    counts: Vec<[OnceLock<Counted>; Outcome::ALL.len()]>,
    unknown: Counted,
    /// The counter of requests that were rejected because of load.
    refusals: Counted,
}

/// The executor with all that a run needs besides its request. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RequestRunner {
    pub(super) backend: Arc<Backend>,
    pub(super) executor: Executor,
    /// The completion of state from an upstream, if there is one.
    pub(super) remote: Option<Arc<StateCompletion>>,
    /// The client of the leader, on a node of a fleet.
    pub(super) leader: Option<Arc<dyn Leader>>,
}

/// The answer to a request, or its error.
#[derive(Debug)]
pub struct Answered {
    /// The answer up to the end of its result, or the error that answers the request instead.
    pub answer: Result<Vec<u8>, RpcError>,
    /// Whether the upstream executed the request, because presim cannot.
    pub by_upstream: bool,
}

/// Permits to wait for receipts. Waiting holds no worker: each publication wakes the task, which looks for its receipt.
#[derive(Debug)]
pub struct Waiters {
    pub(super) seats: Semaphore,
    pub(super) count: usize,
}

impl Waiters {
    /// Creates `count` permits.
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
    /// Creates a front before `backend` counting into `metrics`.
    pub fn new(
        backend: Arc<Backend>,
        snapshots: Arc<Snapshots>,
        executor: Executor,
        waiters: Waiters,
        watches: Watches,
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
            runner: RequestRunner { backend, executor, remote: None, leader: None },
            snapshots,
            waiters,
            metrics: metrics.clone(),
            testing: Testing::Off,
            watches,
            board: StatusBoard::new(metrics),
            counts,
            unknown,
            refusals,
        }
    }

    /// Returns the same, on state that is an upstream's.
    #[must_use]
    pub fn with_remote(self, remote: StateCompletion) -> Self {
        let runner = RequestRunner { remote: Some(Arc::new(remote)), ..self.runner };
        Self { runner, ..self }
    }

    /// Returns the same, on a node of a fleet.
    #[must_use]
    pub fn with_leader(self, leader: Arc<dyn Leader>) -> Self {
        let runner = RequestRunner { leader: Some(leader), ..self.runner };
        Self { runner, ..self }
    }

    /// Returns the same, with these methods for testing.
    #[must_use]
    pub fn with_testing(self, testing: Testing) -> Self {
        Self { testing, ..self }
    }

    /// Returns the same, naming these contracts of the chain in its status.
    #[must_use]
    pub fn with_contracts(self, contracts: Vec<(&'static str, Address)>) -> Self {
        Self { board: self.board.with_contracts(contracts), ..self }
    }

    /// Returns the health of the upstream, if there is one.
    pub fn upstream(&self) -> Option<UpstreamState> {
        Some(self.runner.remote.as_ref()?.fetcher.upstream()?.state())
    }

    /// Returns a fork of the chain that presim does not execute, as a sentence.
    pub fn unknown_fork(&self) -> Option<String> {
        if let Some(scheduled) = self.runner.backend.spec.unexecuted_fork() {
            return Some(format!("presim does not execute {scheduled}, which the chain has"));
        }
        let time = self.runner.remote.as_ref()?.fetcher.upstream()?.newer_fork()?;
        Some(format!("the upstream has a fork at {time} that presim does not know"))
    }

    /// Returns the reason why nothing can be stored any more, if there is one.
    pub fn store_failure(&self) -> Option<&StoreError> {
        self.runner.backend.wallet.ledger.store().failure()
    }

    /// Returns what is published now.
    pub fn published(&self) -> Arc<Chain> {
        self.snapshots.load()
    }

    /// Returns a receiver that wakes on each publication.
    pub(super) fn changes(&self) -> watch::Receiver<SnapshotId> {
        self.snapshots.changes()
    }

    /// Returns the limits on requests.
    pub(super) fn limits(&self) -> &RequestLimits {
        &self.runner.backend.limits
    }

    /// Returns the transaction pool.
    pub(super) fn pool(&self) -> &Pool {
        &self.runner.backend.pool
    }

    /// Returns the wallet.
    pub(super) fn wallet(&self) -> &Wallet {
        &self.runner.backend.wallet
    }

    /// Returns a ticket for a request that has just arrived.
    pub fn ticket(&self, caller: &Caller) -> Ticket {
        let ticket = self.runner.executor.ticket(&caller.flow);
        match caller.until {
            Some(deadline) => ticket.until(deadline),
            None => ticket,
        }
    }

    /// Creates a batch of requests that have just arrived together.
    pub fn batch(&self) -> Arc<Batch> {
        self.runner.executor.batch()
    }

    /// Runs a request.
    pub async fn answer(&self, request: Request) -> Answered {
        let (arrived, method) = (Instant::now(), request.method);
        let mut by_upstream = false;
        if let Some(leader) = self.runner.leader_for(&request) {
            // Boxed, as below.
            let asks = match method.leader == LeaderUse::Wallet && leader.publishes() {
                true => leader.leaves_wallet_to_leader().await,
                false => Ok(true),
            };
            match asks {
                Ok(false) => {}
                Ok(true) => {
                    let answer = Box::pin(self.ask(leader, request)).await;
                    return self.counted(method, arrived, Answered { answer, by_upstream });
                }
                Err(error) => return self.counted(method, arrived, Answered { answer: Err(error), by_upstream }),
            }
        }
        let answer = match (method.handler, &self.runner.remote) {
            (Handler::Subscribe | Handler::Unsubscribe, _) => Self::subscribe(&request),
            // Boxed, because rare futures are large and would be moved with every request.
            (Handler::Status, _) => Box::pin(self.status(&request)).await,
            (Handler::Change(parse, done), _) => Box::pin(self.change(parse, done, request)).await,
            (Handler::Search, _) => Box::pin(self.search(request)).await,
            (Handler::Watch(watch), _) => Box::pin(self.watch(watch, request)).await,
            (Handler::SendAndWait, _) => Box::pin(self.send_and_wait(request)).await,
            (Handler::SendCalls, _) => Box::pin(self.send_calls(request)).await,
            (Handler::SendTransaction, _) => Box::pin(self.send_transaction(request)).await,
            (Handler::SignMessage(parse), _) => Box::pin(self.sign_message(parse, request)).await,
            (Handler::Run(run), Some(remote)) if method.upstream != UpstreamUse::Unasked => {
                Box::pin(self.run_beside(remote, run, request)).await
            }
            (Handler::Run(run), Some(remote)) if remote.lacks_rules => {
                Box::pin(self.run_or_forward(remote, run, request, &mut by_upstream)).await
            }
            (Handler::Run(run), _) => self.run(run, request).await,
        };
        self.counted(method, arrived, Answered { answer, by_upstream })
    }

    /// Counts the answer to a request that arrived at `arrived`.
    fn counted(&self, method: &'static MethodRoute, arrived: Instant, answered: Answered) -> Answered {
        let outcome = answered.answer.as_ref().map_or_else(RpcError::outcome, |_| Outcome::Ok);
        self.counts[method.index][outcome as usize]
            .get_or_init(|| Counted::new(&self.metrics, method.name, outcome))
            .count(arrived);
        answered
    }

    /// Has the leader of the fleet answer a request, if this node cannot.
    pub(super) async fn ask(&self, leader: &dyn Leader, request: Request) -> Result<Vec<u8>, RpcError> {
        let mut out = begin(&request.id, "result");
        let mut own = None;
        let may_know =
            request.method.leader == LeaderUse::IfUnknown && request.method.upstream == UpstreamUse::IfUnknown;
        if let (Handler::Run(run), true) = (request.method.handler, may_know) {
            match self.run(run, request.clone()).await {
                Ok(answer) if self.is_unknown(&request, &answer[out.len()..]) => own = Some(Ok(answer)),
                // A snapshot is known by the nodes of the fleet under the same id, and an old one by none of them.
                Err(error @ RpcError::UnknownBlock(UnknownBlock::Snapshot { .. })) => return Err(error),
                Err(error @ RpcError::UnknownBlock(_)) => own = Some(Err(error)),
                answered => return answered,
            }
        }
        let start = out.len();
        match (leader::ask(leader, &request).await, own) {
            (Ok(result), _) => out.extend_from_slice(result.get().as_bytes()),
            (Err(error), Some(own)) => match (&self.runner.remote, own) {
                // The leader knows no more than this node, or is not there to say whether it does.
                (None, own @ Err(_)) => return own,
                (None, Ok(_)) => return Err(error),
                (Some(remote), _) if remote.fetcher.upstream().is_some() => remote.forward(&request, &mut out).await?,
                (Some(_), Err(own)) => return Err(own),
                // Of an upstream's chain this node has the newest blocks alone, so it cannot say that there is none.
                (Some(_), Ok(_)) => return Err(error),
            },
            (Err(error), None) => return Err(error),
        }
        self.runner.backend.withhold(&request, &self.published(), &mut out, start);
        Ok(out)
    }

    /// Runs a request on a chain of which presim cannot execute everything. What it cannot, the upstream executes.
    async fn run_or_forward(
        &self,
        remote: &StateCompletion,
        run: Runs,
        request: Request,
        by_upstream: &mut bool,
    ) -> Result<Vec<u8>, RpcError> {
        match self.run(run, request.clone()).await {
            Err(RpcError::Unexecutable(why)) => {
                let mut out = begin(&request.id, "result");
                if let Some(leader) = self.runner.leader.as_ref().filter(|_| self.runner.has_no_upstream()) {
                    out.extend_from_slice(leader::ask(&**leader, &request).await?.get().as_bytes());
                    *by_upstream = true;
                    return Ok(out);
                }
                remote.execute(why, &request, &mut out, by_upstream).await?;
                Ok(out)
            }
            answered => answered,
        }
    }

    /// Returns the upstream that answers a method which presim does not have, if one does.
    pub(super) fn forwards(&self, method: &str) -> Option<&StateCompletion> {
        self.runner.remote.as_deref().filter(|remote| remote.forwarded.has(method))
    }

    /// Runs a request, and asks the upstream if presim cannot answer it.
    async fn run_beside(&self, remote: &StateCompletion, run: Runs, request: Request) -> Result<Vec<u8>, RpcError> {
        let mut out = begin(&request.id, "result");
        match request.method.upstream {
            UpstreamUse::Proves => remote.forward_proof(&request, &mut out).await?,
            UpstreamUse::Sends => {
                let raw = wire::parse_raw(&request.params, request.caller.dialect)?;
                encode::data(&mut out, remote.send_on(&raw, &request).await?.as_slice());
            }
            UpstreamUse::IfUnknown | UpstreamUse::Unasked => match self.run(run, request.clone()).await {
                Ok(answer) if self.is_unknown(&request, &answer[out.len()..]) => {
                    self.forward(remote, &request, &mut out).await?;
                }
                // An upstream knows nothing of snapshots.
                Err(error @ RpcError::UnknownBlock(UnknownBlock::Snapshot { .. })) => return Err(error),
                Err(RpcError::UnknownBlock(_)) => self.forward(remote, &request, &mut out).await?,
                answered => return answered,
            },
        }
        Ok(out)
    }

    /// Has the upstream answer a request that presim cannot answer.
    async fn forward(&self, remote: &StateCompletion, request: &Request, out: &mut Vec<u8>) -> Result<(), RpcError> {
        let start = out.len();
        remote.forward(request, out).await?;
        self.runner.backend.withhold(request, &self.published(), out, start);
        Ok(())
    }

    /// Returns whether a result says that this node knows no such block or transaction: null, or no raw bytes.
    fn is_unknown(&self, request: &Request, result: &[u8]) -> bool {
        matches!(result, b"null" | b"\"0x\"") && !self.runner.backend.withholds(request)
    }

    /// Counts a request with an unknown method.
    pub fn count_unknown(&self, parsed: Instant) {
        self.unknown.count(parsed);
    }

    /// Subscribes or unsubscribes, if the request's connection can.
    fn subscribe(request: &Request) -> Result<Vec<u8>, RpcError> {
        let name = request.method.name;
        let starting = request.starting.as_ref().ok_or_else(|| {
            RpcError::new(
                -32601,
                format!("{name} needs a WebSocket connection: notifications cannot be sent over HTTP"),
            )
        })?;
        let mut out = begin(&request.id, "result");
        match request.method.handler {
            Handler::Subscribe => starting.subscribe(&request.params, &mut out)?,
            _ => starting.unsubscribe(&request.params, &mut out)?,
        }
        Ok(out)
    }

    /// Counts the rejection of a request that was parsed at `parsed`.
    pub fn count_refusal(&self, parsed: Instant) {
        self.refusals.count(parsed);
    }

    /// Runs a request by its handler.
    pub(super) async fn run(&self, run: Runs, request: Request) -> Result<Vec<u8>, RpcError> {
        self.run_step(request.method.place, request, run).await.map(|((), answer)| answer)
    }

    /// Runs a step of a request, as [`RequestRunner::run_step`] does.
    pub(super) async fn run_step<T: Send + 'static>(
        &self,
        place: RunPlace,
        request: Request,
        work: impl Fn(&Backend, &mut Run<'_>) -> Result<T, RpcError> + Clone + Send + Sync + 'static,
    ) -> Result<(T, Vec<u8>), RpcError> {
        self.runner.run_step(place, request, work).await
    }
}

impl RequestRunner {
    /// Returns the client of the leader if another node has a part in answering a method. The leader has the pool and
    /// the accounts, blocks whose bodies this node does not have, and the upstream where this node has none.
    fn leader_for(&self, request: &Request) -> Option<&dyn Leader> {
        let leader = self.leader.as_deref()?;
        // A node that stands by beside an upstream has the same source as the leader.
        let stands_for_itself = leader.leads() || leader.publishes() && self.remote.is_some();
        let has_part = match request.method.leader {
            LeaderUse::Wallet => true,
            _ if stands_for_itself => false,
            LeaderUse::Always => true,
            LeaderUse::AtPending => request.params.contains("\"pending\""),
            LeaderUse::IfUnknown => match request.method.upstream {
                UpstreamUse::IfUnknown => true,
                UpstreamUse::Proves | UpstreamUse::Sends => self.has_no_upstream(),
                UpstreamUse::Unasked => false,
            },
        };
        has_part.then_some(leader)
    }

    /// Returns whether the state is an upstream's that only the leader of the fleet follows.
    fn has_no_upstream(&self) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.fetcher.upstream().is_none())
    }

    /// Runs a step of a request at a place, and waits until its commit is on disk. Returns the step's value, and the
    /// answer as far as the step has written it.
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

/// The type of handlers that run on a snapshot.
pub(super) type Runs = fn(&Backend, &mut Run<'_>) -> Result<(), RpcError>;

/// A request with the work that is done in one run: a handler, or a part of one.
struct RequestStep<F> {
    backend: Arc<Backend>,
    remote: Option<Arc<StateCompletion>>,
    place: RunPlace,
    request: Request,
    work: F,
}

/// The outcome of a step.
struct Stepped<T> {
    result: Result<T, RpcError>,
    out: Vec<u8>,
    commit: Acknowledgement,
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
        // An answer counts for its connection from the moment when it is made, because it may wait for the connection's
        // thread.
        if result.is_ok() && !overlay.has_missed() && !self.request.method.commits && self.place != RunPlace::Inline {
            result = self.request.room.take(&mut out).and(result);
        }
        Stepped { result, out, commit }
    }

    async fn fetch(&self, missed: Missed, round: usize) -> Result<Option<Self>, RpcError> {
        if let Some(why) = missed.unexecutable() {
            return Err(RpcError::Unexecutable(why));
        }
        let Some(remote) = &self.remote else {
            return Err(RpcError::internal("a run has missed state on a chain whose state is local"));
        };
        let published = remote.complete(round, &missed, &self.request).await?;
        Ok(published.map(|published| {
            let Self { backend, remote, place, request, work } = self;
            let request = Request { published, ..request.clone() };
            Self { backend: backend.clone(), remote: remote.clone(), place: *place, request, work: work.clone() }
        }))
    }
}

/// Waits until what an answer acknowledges is on disk or checked, until the request's deadline.
///
/// # Errors
///
/// Returns an error if the commit failed, if the transaction is rejected, or if neither is known at the request's deadline.
async fn kept(acknowledgement: Acknowledgement, ticket: &Ticket) -> Result<(), RpcError> {
    let commit = match acknowledgement {
        Acknowledgement::Kept(commit) => commit,
        Acknowledgement::Checked(submitted) => return checked(submitted, ticket).await,
    };
    if commit.is_done() {
        return Ok(());
    }
    match tokio::time::timeout_at(ticket.deadline().into(), commit.wait()).await {
        Ok(Ok(())) => Ok(()),
        // Whether the write reached the disk after all is seen when the store is opened again.
        Ok(Err(error)) => Err(RpcError::from(error)
            .with_message(|text| format!("{text}: it may still be sent after a restart of the node"))),
        Err(_) => Err(RpcError::new(-32016, UNSTORED)),
    }
}

const UNSTORED: &str = "it was not stored in time, and its outcome is unknown: it may still be sent";

/// The `data` of an error about a transaction that may still be mined.
#[derive(Serialize)]
struct SentHash {
    hash: B256,
}

/// Waits for the verdict of the node that builds the blocks.
async fn checked(mut submitted: SubmittedTransaction, ticket: &Ticket) -> Result<(), RpcError> {
    if let Ok(Ok(verdict)) = tokio::time::timeout_at(ticket.deadline().into(), &mut submitted.verdict).await {
        return verdict.map_err(RpcError::from);
    }
    let hash = submitted.hash;
    let text = match submitted.is_stored() {
        true => format!(
            "no node that builds blocks has answered in time: transaction {hash} is stored, and not checked yet: it will be mined or dropped"
        ),
        false => UNSTORED.to_owned(),
    };
    Err(RpcError::with_data(-32016, text, SentHash { hash }))
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
