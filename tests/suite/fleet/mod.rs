//! Fleets: nodes that publish and nodes that follow, over real NATS servers.

mod anew;
mod cluster;
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
mod secured;
mod wallet;

use std::time::Duration;

use alloy_primitives::B256;
use presim::testing::ledger::{Selector, SnapshotId};
use serde_json::{Value, json};
pub use support::nats as server;

use crate::{
    live::with_usual,
    support::{BOUND, TestNode, hex, request},
    upstream::{KEEPER, StreamedDevnet},
};

/// Flags of a chain with short blocks.
pub const QUICK: [&str; 4] = ["--sub-block-ms", "50", "--sub-blocks", "4"];

/// Starts a node that publishes a chain to a server as the fleet `test`.
pub fn ingester(chain: &StreamedDevnet, url: &str, flags: &[&str]) -> TestNode {
    ingester_of(chain, "test", url, flags)
}

/// Starts a node that publishes a chain to a server as a fleet.
pub fn ingester_of(chain: &StreamedDevnet, fleet: &str, url: &str, flags: &[&str]) -> TestNode {
    with_flags(chain, fleet, url, flags, start)
}

/// Calls `start` with the flags of a node that publishes a chain.
pub fn with_flags<T>(
    chain: &StreamedDevnet,
    fleet: &str,
    url: &str,
    flags: &[&str],
    start: impl FnOnce(&[&str]) -> T,
) -> T {
    let followed = chain.flags();
    let followed: Vec<&str> = followed.iter().map(String::as_str).collect();
    start(&with_usual(&[&["--publish", url, "--fleet", fleet], &followed[..], flags].concat()))
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

/// Waits until a node has published the change `id` or a newer one.
pub async fn reach(node: &TestNode, id: SnapshotId) {
    let mut changes = node.node.snapshots().changes();
    let wait = async {
        while node.node.snapshots().load().last < id {
            changes.changed().await.expect("the node publishes");
        }
    };
    let reached = tokio::time::timeout(BOUND, wait).await;
    assert!(reached.is_ok(), "{:#x} is not reached: {:#x}", id.0, node.node.snapshots().load().last.0);
}

/// Waits until a node has published `count` more changes, and a snapshot in their epoch. Returns the id of its newest snapshot.
pub async fn advance(node: &TestNode, count: u64) -> SnapshotId {
    let now = node.node.snapshots().load().last;
    let mut changes = node.node.snapshots().changes();
    let wait = async {
        loop {
            let chain = node.node.snapshots().load();
            if chain.last.0 >= now.0 + count && chain.newest.id.epoch() == chain.last.epoch() {
                return chain.newest.id;
            }
            changes.changed().await.expect("the node publishes");
        }
    };
    tokio::time::timeout(BOUND, wait).await.expect("the chain goes on")
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

/// Reads that say all of a snapshot: blocks with their transactions, receipts, logs, calls and a simulation. `None` if its block was
/// replaced.
pub fn reads(node: &TestNode, id: SnapshotId) -> Option<Vec<(&'static str, Value)>> {
    let at = json!({ "snapshotId": hex(id.0) });
    let snapshot = node.node.snapshots();
    let user = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";
    let kept = json!({ "to": KEEPER });
    // A block that was sealed by then, whatever has been sealed since.
    let number = snapshot.load().select(Selector::Snapshot(id)).ok()?.head.number();
    Some(vec![
        ("eth_getBlockByNumber", json!([at, true])),
        ("eth_getBlockReceipts", json!([at])),
        ("eth_getLogs", json!([{ "fromBlock": at, "toBlock": at }])),
        ("eth_getBalance", json!([user, at])),
        ("eth_getTransactionCount", json!([user, at])),
        ("eth_getCode", json!([KEEPER, at])),
        ("eth_call", json!([kept, at])),
        ("eth_getStorageAt", json!([KEEPER, "0x0", at])),
        (
            "eth_simulateV1",
            json!([{ "blockStateCalls": [{ "calls": [{ "to": KEEPER, "data": B256::repeat_byte(9) }, kept] }] }, at]),
        ),
        ("eth_getBlockByNumber", json!([hex(number), true])),
        ("eth_getBlockReceipts", json!([hex(number)])),
    ])
}

/// Asks nodes the same, which must be answered the same, to the byte.
pub async fn agree(nodes: &[&TestNode], asked: &[(&'static str, Value)], path: &str) -> usize {
    try_agree(nodes, asked, path).await.expect("the snapshot is retained")
}

/// Like [`agree`], but returns `None` if a node says that the snapshot is not retained, because its block was replaced.
pub async fn try_agree(nodes: &[&TestNode], asked: &[(&'static str, Value)], path: &str) -> Option<usize> {
    let (first, others) = nodes.split_first().expect("a node");
    for (method, params) in asked {
        let body = request(1, method, params.clone()).to_string();
        let (_, expected) = first.post(path, body.clone()).await;
        for other in others {
            let (_, answer) = other.post(path, body.clone()).await;
            if [&expected, &answer].iter().any(|answer| answer.contains("is not retained: those from")) {
                return None;
            }
            assert_eq!(answer, expected, "{method} {params}");
        }
        assert!(!expected.contains("\"error\""), "{method} {params}: {expected}");
    }
    Some(asked.len() * others.len())
}

/// Asks nodes for all of the snapshot `id`, or of a later one of the first node if its block was replaced. They must answer the same.
pub async fn agree_on(nodes: &[&TestNode], mut id: SnapshotId, path: &str) -> usize {
    for _ in 0..50 {
        if let Some(reads) = reads(nodes[0], id)
            && let Some(count) = try_agree(nodes, &reads, path).await
        {
            return count;
        }
        id = advance(nodes[0], 1).await;
        for node in nodes {
            reach(node, id).await;
        }
    }
    panic!("the blocks of 50 snapshots were replaced");
}
