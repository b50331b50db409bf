//! Fleets: nodes that publish and nodes that follow, over real NATS servers.

mod anew;
mod cluster;
mod faults;
mod following;
mod images;
mod lagoon;
mod lateness;
mod leading;
mod live;
mod live_faults;
mod losses;
mod partitions;
mod permissions;
mod proofs;
mod proxy;
mod recorded;
mod relay;
mod requests;
mod sending;
pub mod server;
mod signing;
mod wallet;

use std::time::Duration;

use presim::ledger::{Selector, SnapshotId};
use serde_json::{Value, json};

use crate::support::{BOUND, TestNode, hex, request};

/// Starts a node that publishes to a server as the fleet `test`.
pub fn ingester(url: &str, flags: &[&str]) -> TestNode {
    start(&[&["--publish", url, "--fleet", "test"], flags].concat())
}

/// Starts a node that follows the fleet `test` of a server.
pub fn replica(url: &str, flags: &[&str]) -> TestNode {
    start(&[&["--follow", url], flags].concat())
}

/// Starts a node, which blocks the thread while it talks to NATS.
pub fn start(flags: &[&str]) -> TestNode {
    try_start(flags).unwrap_or_else(|error| panic!("the node did not start: {error:#}"))
}

/// Like [`start`], but returns the error if the node refuses to start.
pub fn try_start(flags: &[&str]) -> eyre::Result<TestNode> {
    tokio::task::block_in_place(|| TestNode::try_start(flags))
}

/// Waits until a node has published the snapshot `id` or a newer one.
pub async fn reach(node: &TestNode, id: SnapshotId) {
    let mut changes = node.node.snapshots().changes();
    let wait = async {
        while node.node.snapshots().newest().id < id {
            changes.changed().await.expect("the node publishes");
        }
    };
    let reached = tokio::time::timeout(BOUND, wait).await;
    assert!(reached.is_ok(), "{:#x} is not reached: {:#x}", id.0, node.node.snapshots().newest().id.0);
}

/// Waits until a node has published `count` more changes. Returns the id of its newest snapshot.
pub async fn advance(node: &TestNode, count: u64) -> SnapshotId {
    let now = node.node.snapshots().load().last;
    let mut changes = node.node.snapshots().changes();
    let wait = async {
        while node.node.snapshots().load().last.0 < now.0 + count {
            changes.changed().await.expect("the node publishes");
        }
    };
    tokio::time::timeout(BOUND, wait).await.expect("the chain goes on");
    node.node.snapshots().newest().id
}

/// Waits until something holds, which nothing tells.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(BOUND, wait).await.is_ok(), "not in time: {what}");
}

/// Starts a node, again and again until it does not fail. If it always fails, the first cause is told.
pub async fn start_once_it_can(mut start: impl AsyncFnMut() -> eyre::Result<TestNode>) -> TestNode {
    let mut cause = None;
    let wait = async {
        loop {
            match start().await {
                Ok(node) => return node,
                Err(error) => cause.get_or_insert(error),
            };
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let started = tokio::time::timeout(BOUND, wait).await;
    started.unwrap_or_else(|_| panic!("no start succeeds. The first failed: {cause:?}"))
}

/// Reads that say all of a snapshot: blocks with their transactions, receipts, logs, calls and a simulation.
pub fn reads(node: &TestNode, id: SnapshotId) -> Vec<(&'static str, Value)> {
    let at = json!({ "snapshotId": hex(id.0) });
    let snapshot = node.node.snapshots();
    let trading = node.node.info().trading.expect("a trading world");
    let user = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";
    let (weth, pair) = (trading.weth, trading.factory);
    let supply = json!({ "to": weth, "data": "0x18160ddd" });
    // A block that was sealed by then, whatever has been sealed since.
    let number = snapshot.load().select(Selector::Snapshot(id)).expect("it is retained").head.number();
    vec![
        ("eth_getBlockByNumber", json!([at, true])),
        ("eth_getBlockReceipts", json!([at])),
        ("eth_getLogs", json!([{ "fromBlock": at, "toBlock": at }])),
        ("eth_getBalance", json!([user, at])),
        ("eth_getTransactionCount", json!([user, at])),
        ("eth_getCode", json!([pair, at])),
        ("eth_call", json!([supply, at])),
        ("eth_getProof", json!([weth, ["0x0"], at])),
        (
            "eth_simulateV1",
            json!([{ "blockStateCalls": [{ "calls": [supply, { "from": user, "to": weth, "value": "0x1" }] }] }, at]),
        ),
        ("eth_getBlockByNumber", json!([hex(number), true])),
        ("eth_getBlockReceipts", json!([hex(number)])),
    ]
}

/// Asks nodes the same, which must be answered the same, to the byte.
pub async fn agree(nodes: &[&TestNode], asked: &[(&'static str, Value)], path: &str) -> usize {
    let (first, others) = nodes.split_first().expect("a node");
    for (method, params) in asked {
        let body = request(1, method, params.clone()).to_string();
        let (_, expected) = first.post(path, body.clone()).await;
        assert!(!expected.contains("\"error\""), "{method} {params}: {expected}");
        for other in others {
            assert_eq!(other.post(path, body.clone()).await.1, expected, "{method} {params}");
        }
    }
    asked.len() * others.len()
}
