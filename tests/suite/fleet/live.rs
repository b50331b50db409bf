//! An upstream's chain that is published: replicas answer as the node that follows the upstream, under the same ids.

use std::time::{Duration, Instant};

use alloy_primitives::{Address, B256, U256};
use presim::state::{FeedProblem, FeedState, Selector, SnapshotId};
use serde_json::{Value, json};

use super::{agree, reach, server::NatsServer, start, until};
use crate::{
    live::{
        built::{Built, CHASES, ETHEREUM, OP_CHAIN, SOMEBODY, STORE, TOKEN, base_time, store, transfer},
        stage::{EVERY, LiveStage, busy, chases, launch, serve},
        with_usual,
    },
    support::{TestNode, hex, number, say},
    upstream::SmallUpstream,
};

/// Starts a node that follows an upstream and publishes its chain as the fleet `test`.
async fn ingester(server: &NatsServer, upstream: &str, config: &Value, flags: &[&str]) -> TestNode {
    let url = server.url();
    let all = [&["--publish", url.as_str(), "--fleet", "test"], flags].concat();
    let started = launch(upstream, Some(config), &with_usual(&all)).await;
    started.unwrap_or_else(|error| panic!("the node did not start: {error:#}"))
}

/// Starts a node that follows the fleet `test`, and has no upstream.
fn replica(server: &NatsServer, flags: &[&str]) -> TestNode {
    start(&[&["--follow", &server.url(), "--fleet", "test"], flags].concat())
}

/// Waits until a node's newest canonical block is this one.
async fn head(node: &TestNode, hash: B256) {
    until("the head", async || node.node.snapshots().load().head().hash() == hash).await;
}

/// Reads that say all of a snapshot, of state that blocks have changed and of state that only the upstream has.
fn live_reads(node: &TestNode, id: SnapshotId) -> Vec<(&'static str, Value)> {
    let at = json!({ "snapshotId": hex(id.0) });
    let trail = B256::from(U256::from(7 << 8));
    let chase = json!({ "to": CHASES[2].0, "data": trail });
    let stored = json!({ "to": STORE, "data": B256::repeat_byte(9) });
    let simulated = json!({ "blockStateCalls": [{ "calls": [stored, chase, { "to": SOMEBODY, "value": "0x0" }] }] });
    let newest = node.node.snapshots().load().select(Selector::Snapshot(id)).expect("it is retained");
    let sealed = json!(newest.head.hash());
    vec![
        ("eth_getBlockByNumber", json!([at, true])),
        ("eth_getBlockReceipts", json!([at])),
        ("eth_getLogs", json!([{ "fromBlock": at, "toBlock": at }])),
        ("eth_getBalance", json!([SOMEBODY, at])),
        ("eth_getTransactionCount", json!(["0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266", at])),
        ("eth_getCode", json!([TOKEN, at])),
        ("eth_getStorageAt", json!([STORE, "0x0", at])),
        ("eth_call", json!([stored, at])),
        ("eth_call", json!([chase, at])),
        ("eth_simulateV1", json!([simulated, at])),
        ("eth_getBlockByHash", json!([sealed, true])),
        ("eth_getBlockReceipts", json!([sealed])),
    ]
}

/// Checks that all nodes answer the same at the newest snapshot of the first. Returns the snapshot's id.
async fn same(nodes: &[&TestNode]) -> SnapshotId {
    let id = nodes[0].node.snapshots().newest().id;
    for node in &nodes[1..] {
        reach(node, id).await;
    }
    for path in ["/", "/standard"] {
        agree(nodes, &live_reads(nodes[0], id), path).await;
    }
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_answer_as_the_node_that_follows_the_upstream() {
    let Some(server) = NatsServer::start() else { return };
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    let leader = ingester(&server, &upstream.url(), &first.config, &[]).await;
    let replicas = [(); 2].map(|()| replica(&server, &[]));
    let nodes: Vec<_> = [&leader].into_iter().chain(&replicas).collect();
    let mut at = first;
    for nonce in 0..5 {
        at = at.next(vec![transfer(ETHEREUM, 2 * nonce, 5), store(ETHEREUM, 2 * nonce + 1, nonce + 3)], 1);
        upstream.push(at.block.clone());
        head(&leader, at.hash()).await;
        same(&nodes).await;
    }
    for node in &nodes {
        assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, json!(at.balance(SOMEBODY)));
    }
}
