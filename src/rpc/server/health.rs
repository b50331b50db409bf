//! `/health` and `/ready`: whether all is well, and whether requests may be sent here.

use http::StatusCode;

use super::response::{HttpResponse, respond};
use crate::rpc::json;
use crate::{
    ledger::{Chain, FeedLag, FeedProblem, FeedState},
    store::StoreError,
    upstream::UpstreamState,
};

/// The number of sub-block times without a snapshot after which a feed counts as stalled.
const STALLED_AFTER: u128 = 5;

/// The most late blocks that are named.
const LATE_SHOWN: usize = 16;

/// Returns the reason why `pending` is not what the chain has pre-confirmed, or why nothing can be stored.
fn failed(published: &Chain, failure: Option<&StoreError>) -> Option<(FeedProblem, String)> {
    let broken = |why: &str| format!("the feed is broken: {why}; pending is the canonical head");
    // Clients whose requests need the store see the same text of its failure.
    match (published.feed(), failure.map(ToString::to_string)) {
        (FeedState::Degraded(FeedProblem::Store), Some(failure)) => Some((FeedProblem::Store, broken(&failure))),
        (FeedState::Degraded(problem), _) => Some((problem, broken(problem.meaning()))),
        (_, Some(failure)) => Some((FeedProblem::Store, failure)),
        (FeedState::Live { .. } | FeedState::Lagging(_) | FeedState::Static, None) => None,
    }
}

/// Returns the reason why a node that follows is not where its leader is.
fn behind(feed: FeedState) -> Option<(FeedProblem, String)> {
    let lag = feed.lag().filter(|lag| lag.cause == FeedProblem::Behind)?;
    let text = format!("{}: it is not proven to show what the leader had {} ms ago", lag.cause.meaning(), lag.ms());
    Some((lag.cause, text))
}

/// Returns the reason why a feed counts as stalled whose newest snapshot is `age` milliseconds old.
fn stalled(feed: FeedState, age: u128) -> Option<(FeedProblem, String)> {
    let every_ms = match feed {
        FeedState::Live { every_ms } | FeedState::Lagging(FeedLag { every_ms, .. }) => every_ms,
        FeedState::Static | FeedState::Degraded(_) => return None,
    };
    let text = format!("the newest snapshot is {age} ms old, and one should come every {every_ms} ms");
    (age > STALLED_AFTER * u128::from(every_ms)).then_some((FeedProblem::Lagging, text))
}

/// Answers `/health`: whether all is well, for monitoring. A feed that has stalled is not.
pub fn health(
    published: &Chain,
    upstream: Option<UpstreamState>,
    warning: Option<String>,
    failure: Option<&StoreError>,
) -> HttpResponse {
    let (feed, age) = (published.feed(), published.newest.published.elapsed().as_millis());
    let problem = failed(published, failure).or_else(|| behind(feed)).or_else(|| stalled(feed, age));
    let status = if problem.is_some() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let mut out = Vec::with_capacity(160);
    match &problem {
        None => out.extend_from_slice(b"{\"status\":\"ok\""),
        Some((cause, reason)) => reasons(&mut out, "unhealthy", reason, *cause),
    }
    out.extend_from_slice(b",\"feed\":");
    json::string(&mut out, feed.as_str());
    if let Some(lag) = feed.lag() {
        let (ms, waiting, cause) = (lag.ms(), lag.waiting, lag.cause.as_str());
        out.extend_from_slice(format!(r#","lagMs":{ms},"lagSubBlocks":{waiting},"lagCause":"{cause}""#).as_bytes());
    }
    match upstream {
        None => {}
        Some(UpstreamState::Ok) => out.extend_from_slice(b",\"upstream\":\"ok\""),
        Some(UpstreamState::Degraded(problem)) => {
            out.extend_from_slice(b",\"upstream\":\"degraded\",\"upstreamProblem\":");
            json::string(&mut out, &problem);
        }
    }
    late_blocks(&mut out, published);
    if let Some(text) = warning {
        out.extend_from_slice(b",\"warning\":");
        json::string(&mut out, &text);
    }
    out.extend_from_slice(format!(",\"ageMs\":{age}}}").as_bytes());
    let mut response = respond(out, Some((published, false)));
    *response.status_mut() = status;
    response
}

/// Appends the blocks whose receipts the upstream has not told yet, the oldest ones if they are many.
fn late_blocks(out: &mut Vec<u8>, published: &Chain) {
    let late = published.late_blocks().take(LATE_SHOWN).map(|(number, late)| {
        let (hash, ms) = (late.hash, late.since.elapsed().as_millis());
        format!(r#"{{"number":"{number:#x}","hash":"{hash}","ms":{ms}}}"#)
    });
    let late: Vec<_> = late.collect();
    if !late.is_empty() {
        out.extend_from_slice(format!(r#","lateBlocks":[{}]"#, late.join(",")).as_bytes());
    }
}

/// Answers `/ready`: whether requests may be sent here, for load balancers. A feed that is only late is usable, because
/// its newest snapshot is consistent, and each answer names its age. A node that is behind its leader is not: it has not come to
/// the end of the stream, and other nodes of the fleet have.
pub fn ready(published: &Chain, failure: Option<&StoreError>) -> HttpResponse {
    let feed = published.feed();
    let problem = failed(published, failure).or_else(|| behind(feed));
    let mut out = Vec::with_capacity(160);
    match &problem {
        None => out.extend_from_slice(b"{\"status\":\"ready\""),
        Some((cause, reason)) => reasons(&mut out, "not ready", reason, *cause),
    }
    out.extend_from_slice(b",\"feed\":");
    json::string(&mut out, feed.as_str());
    out.push(b'}');
    let mut response = respond(out, Some((published, false)));
    if problem.is_some() {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

/// Answers `/health` and `/ready` of a node that is starting.
pub fn starting(reason: &str) -> HttpResponse {
    let mut out = Vec::with_capacity(160);
    reasons(&mut out, "starting", reason, FeedProblem::Connecting);
    out.push(b'}');
    let mut answer = respond(out, None);
    *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    answer
}

/// Appends an object without its end: the status, the reason, and its name for machines.
fn reasons(out: &mut Vec<u8>, status: &str, reason: &str, cause: FeedProblem) {
    out.extend_from_slice(b"{\"status\":");
    json::string(out, status);
    out.extend_from_slice(b",\"reason\":");
    json::string(out, reason);
    out.extend_from_slice(b",\"cause\":");
    json::string(out, cause.as_str());
}
