//! The path of a request: routed by the table of methods, run by the executor, and counted.

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

use alloy_primitives::Address;

use super::{
    error::{Outcome, Result, RpcError},
    leader::Leader,
    methods::{Backend, Handler, LeaderUse, MethodRoute, UpstreamUse},
    remote::StateCompletion,
    request::{Request, begin},
    runner::{RequestRunner, Waiters},
    status::StatusBoard,
    testing::Testing,
    watches::Watches,
};
use crate::{
    ledger::Snapshots,
    scheduler::Executor,
    telemetry::{Counter, Histogram, Metrics},
};

/// The handler of all requests, whatever their transport.
#[derive(Debug)]
pub struct Front {
    /// The runs of requests.
    pub runner: Arc<RequestRunner>,
    metrics: Metrics,
    /// The scope of the methods for testing.
    pub(super) testing: Testing,
    /// The bundles that stand.
    pub(super) watches: Watches,
    /// The load of the last seconds, for who asks.
    board: StatusBoard,
    /// Counters by method and outcome, each created on its first use.
    counts: Vec<[OnceLock<Counted>; Outcome::ALL.len()]>,
    unknown: Counted,
    /// The counter of requests that were rejected because of load.
    refusals: Counted,
}

/// The answer to a request, or its error.
#[derive(Debug)]
pub struct Answered {
    /// The answer up to the end of its result, or the error that answers the request instead.
    pub answer: Result<Vec<u8>>,
    /// Whether the upstream executed the request, because presim cannot.
    pub by_upstream: bool,
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
            runner: Arc::new(RequestRunner {
                backend,
                executor,
                snapshots,
                waiters: Arc::new(waiters),
                remote: None,
                leader: None,
            }),
            metrics: metrics.clone(),
            testing: Testing::Off,
            watches,
            board: StatusBoard::new(metrics),
            counts,
            unknown,
            refusals,
        }
    }

    /// Sets the completion of state that is an upstream's.
    #[must_use]
    pub fn with_remote(mut self, remote: StateCompletion) -> Self {
        Arc::make_mut(&mut self.runner).remote = Some(Arc::new(remote));
        self
    }

    /// Sets the leader, on a node of a fleet.
    #[must_use]
    pub fn with_leader(mut self, leader: Arc<dyn Leader>) -> Self {
        Arc::make_mut(&mut self.runner).leader = Some(leader);
        self
    }

    /// Sets the scope of the methods for testing.
    #[must_use]
    pub fn with_testing(self, testing: Testing) -> Self {
        Self { testing, ..self }
    }

    /// Sets the contracts of the chain that the status names.
    #[must_use]
    pub fn with_contracts(self, contracts: Vec<(&'static str, Address)>) -> Self {
        Self { board: self.board.with_contracts(contracts), ..self }
    }

    /// Runs a request.
    pub async fn answer(&self, request: Request) -> Answered {
        let (arrived, method, runner) = (Instant::now(), request.method, &self.runner);
        let mut by_upstream = false;
        if let Some(leader) = runner.leader_for(&request) {
            // Boxed, as below.
            let asks = match matches!(method.leader, LeaderUse::Wallet) && leader.publishes() {
                true => leader.leaves_wallet_to_leader().await,
                false => Ok(true),
            };
            match asks {
                Ok(false) => {}
                Ok(true) => {
                    let answer = Box::pin(runner.ask(leader, request)).await;
                    return self.counted(method, arrived, Answered { answer, by_upstream });
                }
                Err(error) => return self.counted(method, arrived, Answered { answer: Err(error), by_upstream }),
            }
        }
        let answer = match (method.handler, &runner.remote) {
            (Handler::Subscribe | Handler::Unsubscribe, _) => Self::subscribe(&request),
            // Boxed, because rare futures are large and would be moved with every request.
            (Handler::Status, _) => Box::pin(self.board.answer(&request, runner, &self.watches)).await,
            (Handler::Change(parse, done), _) => Box::pin(self.testing.change(parse, done, request)).await,
            (Handler::Search, _) => Box::pin(runner.search(request)).await,
            (Handler::Watch(watch), _) => Box::pin(self.watches.answer(watch, request, runner)).await,
            (Handler::SendAndWait, _) => Box::pin(runner.send_and_wait(request)).await,
            (Handler::SendCalls, _) => Box::pin(runner.send_calls(request)).await,
            (Handler::SendTransaction, _) => Box::pin(runner.send_transaction(request)).await,
            (Handler::SignMessage(parse), _) => Box::pin(runner.sign_message(parse, request)).await,
            (Handler::Run(run), Some(remote)) if method.upstream != UpstreamUse::Unasked => {
                Box::pin(runner.run_beside(remote, run, request)).await
            }
            (Handler::Run(run), Some(remote)) if remote.lacks_rules => {
                Box::pin(runner.run_or_forward(remote, run, request, &mut by_upstream)).await
            }
            (Handler::Run(run), _) => runner.run(run, request).await.map(|(_, answer)| answer),
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

    /// Counts a request with an unknown method.
    pub fn count_unknown(&self, parsed: Instant) {
        self.unknown.count(parsed);
    }

    /// Subscribes or unsubscribes, if the request's connection can.
    fn subscribe(request: &Request) -> Result<Vec<u8>> {
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
