//! The path of a request: routed by the table of methods, run by the executor, and counted.

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

use alloy_primitives::Address;

use super::{
    method::{Handler, MethodRoute},
    services::Services,
    table,
};
use crate::rpc::{
    api::{log::Poll, status::StatusBoard, testing::changes::Testing, watch::Watches},
    protocol::error::{Outcome, Result, RpcError},
    run::{AnsweredBy, ExecutedBy, filters::Move, request::Request, runner::RequestRunner},
};
use crate::telemetry::{Counter, Histogram, Metrics};

/// The handler of all requests, on every transport.
#[derive(Debug)]
pub struct Dispatcher {
    /// The parts of the node that the methods use.
    pub services: Services,
    metrics: Metrics,
    /// Counters by method and outcome, each created on its first use.
    counts: Vec<[OnceLock<Counted>; Outcome::ALL.len()]>,
    unknown: Counted,
    /// The counter of requests that were rejected because of load.
    refusals: Counted,
}

/// Facts about an answer besides its text.
#[derive(Debug, Default)]
pub struct AnswerFacts {
    /// The rules by which the request was executed, and the node.
    pub by: ExecutedBy,
    /// The move that the answer of a poll makes once its bytes are granted.
    pub moves: Option<Move>,
}

#[derive(Debug)]
struct Counted {
    requests: Counter,
    seconds: Histogram,
}

impl Dispatcher {
    /// Creates a front before `runner` counting into `metrics`. The status names the `contracts` of the chain.
    pub fn new(
        runner: RequestRunner,
        watches: Watches,
        testing: Testing,
        contracts: Vec<(&'static str, Address)>,
        metrics: &Metrics,
    ) -> Self {
        let counts = table::ALL.iter().map(|_| Default::default()).collect();
        let unknown = Counted::new(metrics, "unknown", Outcome::Invalid);
        let refusals = Counted {
            requests: metrics.counter("presim_rejections_total", "Requests rejected because a lane was too busy."),
            seconds: metrics
                .histogram("presim_rejection_seconds", "Time from a parsed request to its written rejection."),
        };
        Self {
            services: Services {
                runner: Arc::new(runner),
                testing,
                board: StatusBoard::new(metrics, watches.clone(), contracts),
                watches,
            },
            metrics: metrics.clone(),
            counts,
            unknown,
            refusals,
        }
    }

    /// Answers a request of a method, which was parsed at `parsed`. Returns the answer up to the end of its result, and records the
    /// accompanying `facts`.
    ///
    /// # Errors
    ///
    /// Returns the error that answers the request instead.
    pub async fn answer(
        &self,
        method: &MethodRoute,
        request: Request,
        parsed: Instant,
        facts: &mut AnswerFacts,
    ) -> Result<Vec<u8>> {
        let answer = self.run_or_ask(method.handler, request, facts).await;
        let outcome = answer.as_ref().map_or_else(RpcError::outcome, |_| Outcome::Ok);
        self.counts[method.info.index][outcome as usize]
            .get_or_init(|| Counted::new(&self.metrics, method.info.name, outcome))
            .count(parsed);
        answer
    }

    /// Runs a request, or asks the node that can answer it. Rare futures are boxed, because they are large and would be moved with every
    /// request.
    async fn run_or_ask(&self, handler: Handler, request: Request, facts: &mut AnswerFacts) -> Result<Vec<u8>> {
        let (method, runner) = (request.method, &self.services.runner);
        if method.by == AnsweredBy::Wallet
            && let Some(leader) = &runner.leader
        {
            leader.ensure_wallet().await?;
        }
        if let Some(leader) = runner.leader_for(&request) {
            return Box::pin(runner.run_or_ask_leader(leader, handler, request)).await;
        }
        match (handler, &runner.remote) {
            (Handler::Serve(serve), _) => serve(&self.services, request).await,
            (Handler::Poll(poll), _) => {
                let Poll { answer, moves } = poll(runner, request).await?;
                facts.moves = Some(moves);
                answer
            }
            (Handler::Run(run), Some(remote))
                if matches!(method.by, AnsweredBy::WhoKnows | AnsweredBy::WholeState | AnsweredBy::Taker) =>
            {
                Box::pin(runner.run_or_ask_upstream(remote, run, request)).await
            }
            (Handler::Run(run), Some(remote))
                if request.published.tags().is_some() && may_name_a_block(&request.params) =>
            {
                Box::pin(runner.run_at_any_block(remote, run, request, &mut facts.by)).await
            }
            (Handler::Run(run), Some(remote)) if remote.lacks_rules => {
                Box::pin(runner.run_or_upstream_executes(remote, run, request, &mut facts.by)).await
            }
            (Handler::Run(run), _) => runner.run_by(request, run, &mut facts.by).await.map(|(_, answer)| answer),
        }
    }

    /// Counts a request with an unknown method.
    pub fn count_unknown(&self, parsed: Instant) {
        self.unknown.count(parsed);
    }

    /// Counts the rejection of a request that was parsed at `parsed`.
    pub fn count_refusal(&self, parsed: Instant) {
        self.refusals.count(parsed);
    }
}

/// Returns whether parameters may name a block other than by the tags that most do. A request that does may have to run again.
fn may_name_a_block(params: &str) -> bool {
    let params = params.trim_end();
    !["[]", r#""latest"]"#, r#""pending"]"#].iter().any(|usual| params.ends_with(usual))
}

impl Counted {
    fn new(metrics: &Metrics, method: &'static str, outcome: Outcome) -> Self {
        let labels = [("method", method), ("outcome", outcome.as_str())];
        Self {
            requests: metrics.counter_with("presim_requests_total", "Requests answered.", &labels),
            seconds: metrics.histogram_with(
                "presim_request_seconds",
                "Time from a request's arrival to its answer.",
                &labels,
            ),
        }
    }

    fn count(&self, arrived: Instant) {
        self.requests.increment(1);
        self.seconds.record(arrived.elapsed());
    }
}
