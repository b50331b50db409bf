//! `/health` and `/ready`: whether all is well, and whether requests may be sent here.

use std::time::Duration;

use alloy_primitives::{B256, U64};
use http::{StatusCode, Uri};
use serde::Serialize;

use crate::rpc::json;
use crate::rpc::run::ExecutedBy;
use crate::rpc::server::response::{AnsweredOn, HttpResponse, respond};
use crate::{
    clock::{Clock, SystemClock},
    ledger::{Chain, FeedLag, FeedProblem, FeedState},
    scheduler::Stall,
    store::StoreError,
    upstream::UpstreamState,
};

/// The number of sub-block times without a snapshot after which a feed counts as stalled.
const STALLED_AFTER: u128 = 5;

/// The most late blocks that are named.
const LATE_SHOWN: usize = 16;

/// The answer of `/health` or `/ready`.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Health {
    status: &'static str,
    #[serde(flatten)]
    problem: Option<Problem>,
    #[serde(skip_serializing_if = "Option::is_none")]
    feed: Option<&'static str>,
    #[serde(flatten)]
    lag: Option<Lag>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream_problem: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    late_blocks: Vec<LateBlock>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    age_ms: Option<u128>,
}

/// A reason why not all is well, and its name for machines.
#[derive(Serialize)]
struct Problem {
    reason: String,
    cause: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Lag {
    lag_ms: u128,
    lag_sub_blocks: u32,
    lag_cause: &'static str,
}

/// A block whose receipts the upstream has not reported yet.
#[derive(Serialize)]
struct LateBlock {
    number: U64,
    hash: B256,
    ms: u128,
}

impl Problem {
    fn new(cause: FeedProblem, reason: String) -> Self {
        Self { reason, cause: cause.as_str() }
    }
}

impl Health {
    fn into_response(self, published: Option<&Chain>) -> HttpResponse {
        let mut body = Vec::with_capacity(160);
        json::value(&mut body, &self);
        let mut response =
            respond(body, published.map(|published| AnsweredOn { published, spec: None, by: ExecutedBy::Node }));
        if self.problem.is_some() {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        response
    }
}

/// Returns the reason why `pending` differs from the chain's pre-confirmed state, or why nothing can be stored.
fn failed(published: &Chain, failure: Option<&StoreError>) -> Option<Problem> {
    let broken = |why: &str| format!("the feed is broken: {why}; pending is the canonical head");
    // Clients whose requests need the store see the same text of its failure.
    match (published.feed(), failure.map(ToString::to_string)) {
        (FeedState::Degraded(FeedProblem::Store), Some(failure)) => {
            Some(Problem::new(FeedProblem::Store, broken(&failure)))
        }
        (FeedState::Degraded(problem), _) => Some(Problem::new(problem, broken(problem.meaning()))),
        (_, Some(failure)) => Some(Problem::new(FeedProblem::Store, failure)),
        (FeedState::Live { .. } | FeedState::Lagging(_) | FeedState::Static, None) => None,
    }
}

/// The `cause` of a worker that makes no progress.
const WORKERS: &str = "workers";

/// Returns the reason why requests wait for a worker that makes no progress.
fn hung(stall: Option<Stall>) -> Option<Problem> {
    stall.map(|stall| Problem { reason: stall.to_string(), cause: WORKERS })
}

/// Returns why a following node is behind its leader, or `None` if it is not.
fn behind(feed: FeedState) -> Option<Problem> {
    let lag = feed.lag().filter(|lag| lag.cause == FeedProblem::Behind)?;
    let text = format!("{}: it is not proven to show what the leader had {} ms ago", lag.cause.meaning(), lag.ms());
    Some(Problem::new(lag.cause, text))
}

/// Returns why a feed counts as stalled, or `None` if it does not. Its newest snapshot is `age` milliseconds old.
fn stalled(feed: FeedState, age: u128) -> Option<Problem> {
    let every_ms = match feed {
        FeedState::Live { every_ms } | FeedState::Lagging(FeedLag { every_ms, .. }) => every_ms,
        FeedState::Static | FeedState::Degraded(_) => return None,
    };
    let text = format!("the newest snapshot is {age} ms old, and one should come every {every_ms} ms");
    (age > STALLED_AFTER * u128::from(every_ms)).then(|| Problem::new(FeedProblem::Lagging, text))
}

/// Returns why a node is not ready if its feed is late by more than `most`, or its newest canonical block older. The
/// larger of the two counts.
fn too_late(published: &Chain, most: Duration) -> Option<Problem> {
    let feed = published.feed();
    if matches!(feed, FeedState::Static) {
        return None;
    }
    let (most, head) = (most.as_millis(), published.head());
    let age = SystemClock::default().unix().saturating_sub(Duration::from_secs(head.header.timestamp)).as_millis();
    let lag = feed.lag().map_or(0, |lag| lag.ms());
    let what = match lag > age {
        true => format!("the feed is {lag} ms late"),
        false => format!("the newest canonical block, {}, is {age} ms old", head.number()),
    };
    let text = || format!("{what}: expected at most {most} ms (--ready-lag-ms)");
    (lag.max(age) > most).then(|| Problem::new(FeedProblem::Lagging, text()))
}

/// Returns whether a path is for load balancers and monitoring, which may use any address of a node.
pub fn is_for_operators(uri: &Uri) -> bool {
    matches!(uri.path(), "/health" | "/ready" | "/metrics")
}

/// Answers `/health`: whether all is well, for monitoring. A feed or a worker that has stalled is not.
pub fn health(
    published: &Chain,
    upstream: Option<UpstreamState>,
    warning: Option<String>,
    failure: Option<&StoreError>,
    stall: Option<Stall>,
) -> HttpResponse {
    let (feed, age) = (published.feed(), published.newest.published.elapsed().as_millis());
    let problem = failed(published, failure).or_else(|| hung(stall));
    let problem = problem.or_else(|| behind(feed)).or_else(|| stalled(feed, age));
    let lag = |lag: &FeedLag| Lag { lag_ms: lag.ms(), lag_sub_blocks: lag.waiting, lag_cause: lag.cause.as_str() };
    let late = published.late_blocks().take(LATE_SHOWN).map(|(number, late)| LateBlock {
        number: U64::from(number),
        hash: late.hash,
        ms: late.waiting_since.elapsed().as_millis(),
    });
    let (upstream, upstream_problem) = match upstream {
        None => (None, None),
        Some(UpstreamState::Ok) => (Some("ok"), None),
        Some(UpstreamState::Degraded(problem)) => (Some("degraded"), Some(problem.to_string())),
    };
    let health = Health {
        status: if problem.is_some() { "unhealthy" } else { "ok" },
        problem,
        feed: Some(feed.as_str()),
        lag: feed.lag().map(lag),
        upstream,
        upstream_problem,
        late_blocks: late.collect(),
        warning,
        age_ms: Some(age),
    };
    health.into_response(Some(published))
}

/// Answers `/ready`: whether a load balancer may send requests here. A late feed is usable, unless it is later than
/// `most_late`, because its newest snapshot is consistent, and each answer names its age. A node that is behind its
/// leader is not usable: it has not reached the end of the stream, and other nodes of the fleet have. Neither is a
/// node with a worker that makes no progress.
pub fn ready(
    published: &Chain,
    failure: Option<&StoreError>,
    stall: Option<Stall>,
    most_late: Option<Duration>,
) -> HttpResponse {
    let feed = published.feed();
    let problem = failed(published, failure).or_else(|| hung(stall)).or_else(|| behind(feed));
    let problem = problem.or_else(|| too_late(published, most_late?));
    let status = if problem.is_some() { "not ready" } else { "ready" };
    Health { status, problem, feed: Some(feed.as_str()), ..Health::default() }.into_response(Some(published))
}

/// Answers `/health` and `/ready` of a node that is starting.
pub fn starting(reason: String) -> HttpResponse {
    let problem = Some(Problem::new(FeedProblem::Connecting, reason));
    Health { status: "starting", problem, ..Health::default() }.into_response(None)
}
