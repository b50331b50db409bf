//! Replicas that check the state of their upstream by its proofs.

use alloy_primitives::{Address, B256, U256};
use futures::{FutureExt, StreamExt};
use serde_json::{Value, json};

use super::{
    live::{head, ingester, replica},
    server::NatsServer,
};
use crate::{
    live::{
        built::{Built, CHASES, ETHEREUM, trail_slot, transfer},
        stage::serve,
    },
    support::TestNode,
    upstream::SmallUpstream,
};

/// The contract whose slots are read.
const CONTRACT: Address = CHASES[2].0;

/// Has an upstream prove the states of these blocks.
fn prove(upstream: &SmallUpstream, blocks: &[&Built]) {
    let blocks: Vec<Built> = blocks.iter().map(|block| (*block).clone()).collect();
    upstream.script(move |method, params| {
        if method != "eth_getProof" {
            return None;
        }
        let hash = params[2]["blockHash"].clone();
        let block = blocks.iter().find(|block| json!(block.hash()) == hash)?;
        let address = serde_json::from_value(params[0].clone()).ok()?;
        let slots: Vec<U256> = serde_json::from_value(params[1].clone()).ok()?;
        Some(Ok(block.proof(address, &slots)))
    });
}

/// An upstream with two blocks, which proves their states.
async fn proving_upstream() -> (SmallUpstream, Built, Built) {
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    let block = first.next(vec![transfer(ETHEREUM, 0, 5)], 1);
    prove(&upstream, &[&first, &block]);
    (upstream, first, block)
}

/// Reads the first slot of a trail.
async fn read(node: &TestNode, trail: u64) -> Value {
    node.call("/", "eth_getStorageAt", json!([CONTRACT, U256::from(trail_slot(trail)), "latest"])).await
}

/// Returns the value of that slot: it names the next one.
fn stored(trail: u64) -> Value {
    json!(B256::from(U256::from(trail_slot(trail) + 1)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_checks_proofs_asks_its_own_upstream_and_not_the_leader() {
    let Some(server) = NatsServer::start() else { return };
    let (upstream, first, block) = proving_upstream().await;
    let leader = ingester(&server, &upstream.url(), &first.config, &[]).await;
    let follower = replica(&server, &["--verify-proofs", "--upstream", &upstream.url()]);
    upstream.push(block.block.clone());
    for node in [&leader, &follower] {
        head(node, block.hash()).await;
    }
    let mut asked = server.connect().await.subscribe("presim.test.state").await.expect("it listens");
    let before = upstream.asked("eth_getProof");
    assert_eq!(read(&follower, 1).await["result"], stored(1));
    assert!(upstream.asked("eth_getProof") > before, "the value is proven");
    assert!(asked.next().now_or_never().is_none(), "the leader is asked for nothing");
    // A value that is not what is proven is rejected.
    upstream.lie(|method, _, mut result| {
        if method == "eth_getProof" {
            result["storageProof"][0]["value"] = json!("0x5");
        }
        result
    });
    let answer = read(&follower, 2).await;
    let text = answer["error"]["message"].as_str().unwrap_or_default();
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
    assert!(
        text.contains(&format!("slot {:#x} of {CONTRACT}", trail_slot(2))) && text.contains("does not check"),
        "{answer}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_checks_proofs_needs_an_upstream() {
    let refused =
        super::try_start(&["--follow", "nats://127.0.0.1:1", "--verify-proofs"]).err().expect("it is refused");
    let text = format!("{refused:#}");
    assert!(text.contains("--verify-proofs needs --upstream: the leader gives a replica no proofs"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_follows_an_upstream() {
    let refused = super::try_start(&["--publish", "nats://127.0.0.1:1"]).err().expect("it is refused");
    let text = format!("{refused:#}");
    assert!(text.contains("--publish needs --upstream: a fleet follows an upstream"), "{text}");
}
