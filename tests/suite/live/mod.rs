//! Live chains: a whole node with an upstream, with and without Flashblocks.

mod aged;
mod aliases;
mod balanced;
mod differences;
mod distant;
mod faults;
mod flags;
mod gasless;
mod heads;
pub mod lagoon;
mod late;
mod manners;
mod native;
mod past;
pub mod receipts;
mod reorgs;
mod rise;
mod rules;
mod startup;
mod wallet;
mod watch;

use std::time::Duration;

use alloy_primitives::B256;
use presim::testing::ledger::{Chain, FeedProblem};
use serde_json::Value;
pub use support::{built, stage};

use self::stage::{launch, serve};
use crate::{
    support::{BOUND, TestNode},
    upstream::SmallUpstream,
};

/// The default settings, which a test's flags override: frequent polling and generous timeouts.
const USUAL: [(&str, &str); 3] =
    [("--upstream-poll-ms", "20"), ("--upstream-execute-ms", "30000"), ("--flashblocks-silent-ms", "60000")];

/// Returns these flags, and those of [`USUAL`] that are not among them.
pub fn with_usual<'a>(flags: &[&'a str]) -> Vec<&'a str> {
    let rest = USUAL.iter().filter(|(flag, _)| !flags.contains(flag)).flat_map(|(flag, value)| [*flag, *value]);
    flags.iter().copied().chain(rest).collect()
}

/// Starts a node with this upstream, whose chain has this `config`.
async fn try_start(upstream: &str, config: Option<&Value>, flags: &[&str]) -> eyre::Result<TestNode> {
    launch(upstream, config, &with_usual(flags)).await
}

async fn start(upstream: &str, config: &Value, flags: &[&str]) -> TestNode {
    let started = try_start(upstream, Some(config), flags).await;
    started.unwrap_or_else(|error| panic!("the node did not start: {error:#}"))
}

/// Starts an upstream, and a node that follows it.
pub async fn follower() -> (SmallUpstream, TestNode) {
    let chain = built::Built::ethereum();
    let upstream = serve(&[&chain]).await;
    let node = start(&upstream.url(), &chain.config, &[]).await;
    (upstream, node)
}

/// Waits until the published state satisfies a condition.
async fn until(node: &TestNode, what: &str, mut is_so: impl FnMut(&Chain) -> bool) {
    let mut changes = node.node.snapshots().changes();
    let wait = async {
        while !is_so(&node.node.snapshots().load()) {
            changes.changed().await.expect("the node publishes");
        }
    };
    if tokio::time::timeout(BOUND, wait).await.is_err() {
        let published = node.node.snapshots().load();
        let newest = &published.newest;
        panic!(
            "{what}: not so in time: the head is {} {}, the newest snapshot is of block {} index {}, the feed is {:?}",
            published.head().number(),
            published.head().hash(),
            newest.header().number,
            newest.index(),
            published.feed()
        );
    }
}

/// Waits until the newest canonical block is this one.
async fn head(node: &TestNode, hash: B256) {
    until(node, "the head", |published| published.head().hash() == hash).await;
}

/// Waits until the feed has this problem; `None` means until it is live.
async fn feed(node: &TestNode, problem: Option<FeedProblem>) {
    until(node, "the feed", |published| published.feed().problem() == problem).await;
}

/// Returns the status, the document and the freshness header of `/health`.
async fn health(node: &TestNode) -> (u16, Value, String) {
    let answer = node.client.get(node.url("/health")).timeout(BOUND).send().await.expect("it answers");
    let freshness = answer.headers()["x-presim-snapshot"].to_str().expect("a text").to_owned();
    (answer.status().as_u16(), answer.json().await.expect("JSON"), freshness)
}

/// Checks that a request is refused with this code within `bound`, and returns the message.
async fn refused(node: &TestNode, method: &str, params: Value, code: i64, bound: Duration) -> String {
    let answered = tokio::time::timeout(bound, node.error("/", method, params)).await;
    let error = answered.unwrap_or_else(|_| panic!("{method} is not answered within {bound:?}"));
    assert_eq!(error["code"], code, "{error}");
    error["message"].as_str().expect("a message").to_owned()
}
