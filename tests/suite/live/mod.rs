//! Live chains: a whole node with an upstream, with and without Flashblocks.

mod built;
mod faults;
mod flags;
mod late;
mod native;
mod reorgs;
mod rise;
mod rules;
mod startup;
mod wallet;
mod watch;

use std::time::Duration;

use alloy_primitives::{Address, B256};
use presim::state::{FeedProblem, Published};
use serde_json::{Value, json};

use crate::{
    support::{BOUND, TestNode},
    upstream::{SmallUpstream, UpstreamChain},
};

/// The default settings, which a test's flags override: frequent polling and generous timeouts.
const USUAL: [(&str, &str); 3] =
    [("--upstream-poll-ms", "20"), ("--upstream-execute-ms", "30000"), ("--flashblocks-silent-ms", "60000")];

/// Starts a node with this upstream, whose chain has this `config`.
async fn try_start(upstream: &str, config: Option<&Value>, flags: &[&str]) -> eyre::Result<TestNode> {
    let genesis = config.map(|config| {
        json!({
            "config": config, "alloc": {}, "difficulty": "0x0", "gasLimit": "0x1c9c380", "nonce": "0x0",
            "timestamp": "0x0", "extraData": "0x", "mixHash": B256::ZERO, "coinbase": Address::ZERO,
        })
    });
    let mut all = vec!["--upstream".to_owned(), upstream.to_owned()];
    all.extend(flags.iter().map(ToString::to_string));
    for (flag, value) in USUAL {
        if !flags.contains(&flag) {
            all.extend([flag.to_owned(), value.to_owned()]);
        }
    }
    // A node starts a runtime of its own, which is not possible on a thread of another one.
    let starting = tokio::task::spawn_blocking(move || {
        let folder = tempfile::tempdir()?;
        if let Some(genesis) = genesis {
            let file = folder.path().join("genesis.json");
            std::fs::write(&file, genesis.to_string())?;
            all.extend(["--genesis".to_owned(), file.display().to_string()]);
        }
        let flags: Vec<&str> = all.iter().map(String::as_str).collect();
        TestNode::try_start(&flags)
    });
    tokio::time::timeout(BOUND * 2, starting).await.expect("it starts, or says why not, in time").expect("no panic")
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

/// Starts an upstream that has these blocks.
async fn serve(blocks: &[&built::Built]) -> SmallUpstream {
    let chain = UpstreamChain::new(blocks.iter().map(|built| built.block.clone()).collect());
    SmallUpstream::start(blocks[0].spec.chain_id(), chain).await
}

/// Waits until the published state satisfies a condition.
async fn until(node: &TestNode, what: &str, mut is_so: impl FnMut(&Published) -> bool) {
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
            published.feed
        );
    }
}

/// Waits until the newest canonical block is this one.
async fn head(node: &TestNode, hash: B256) {
    until(node, "the head", |published| published.head().hash() == hash).await;
}

/// Waits until the feed has this problem; `None` means until it is live.
async fn feed(node: &TestNode, problem: Option<FeedProblem>) {
    until(node, "the feed", |published| published.feed.problem() == problem).await;
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
