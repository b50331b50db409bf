//! Raw transactions that are sent to a replica: the node that builds the blocks checks them.

use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope};
use alloy_eips::Encodable2718;
use alloy_primitives::{Address, TxKind, U256, hex, keccak256};
use alloy_signer::SignerSync;
use presim::source::devnet::world::dev_signers;
use serde_json::{Value, json};

use super::{advance, ingester, permissions::listed, reach, replica, server::NatsServer, start, until};
use crate::support::{TestNode, number};

/// A chain that moves only when it is told to, so that transactions wait.
const STILL: [&str; 4] = ["--traffic", "0", "--sub-block-ms", "60000"];

/// Returns a transfer of one wei that a dev account has signed, which pays so many Gwei.
fn transfer(account: usize, nonce: u64, gwei: u64) -> String {
    let signer = &dev_signers().expect("the mnemonic is valid")[account];
    let price = u128::from(gwei) * 1_000_000_000;
    let tx = TxEip1559 {
        chain_id: 31_337,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: price,
        max_priority_fee_per_gas: price,
        to: TxKind::Call(Address::repeat_byte(0x77)),
        value: U256::ONE,
        ..TxEip1559::default()
    };
    let signature = signer.sign_hash_sync(&tx.signature_hash()).expect("it signs");
    hex::encode_prefixed(TxEnvelope::from(tx.into_signed(signature)).encoded_2718())
}

fn hash(raw: &str) -> String {
    keccak256(hex::decode(raw).expect("hex")).to_string()
}

async fn send(node: &TestNode, raw: &str) -> Value {
    node.call("/", "eth_sendRawTransaction", json!([raw])).await
}

async fn nonce(node: &TestNode, account: usize) -> u64 {
    let address = dev_signers().expect("the mnemonic is valid")[account].address();
    number(&node.result("/", "eth_getTransactionCount", json!([address, "latest"])).await)
}

fn dropped(node: &TestNode, reason: &str) -> f64 {
    node.metric(&format!("presim_dropped_total{{reason=\"{reason}\"}}"))
}

/// Returns the number of transactions that wait in the leader's pool.
async fn waiting(node: &TestNode) -> u64 {
    let status = node.result("/", "txpool_status", json!([])).await;
    number(&status["pending"]) + number(&status["queued"])
}

#[tokio::test(flavor = "multi_thread")]
async fn the_builders_verdict_is_the_answer_of_a_replica() {
    let listed = listed();
    let Some(server) = NatsServer::start_with(&[&listed]) else { return };
    let as_user = |name: &str| format!("nats://{name}:secret-of-{name}@127.0.0.1:{}", server.port);
    let limits = ["--pool-account-transactions", "16"];
    let leader = start(&[&["--publish", &as_user("ingester"), "--fleet", "test"], &STILL[..], &limits].concat());
    let follower = start(&["--follow", &as_user("replica"), "--fleet", "test"]);
    let first = nonce(&leader, 0).await;
    let raw = transfer(0, first, 100);
    let answer = send(&follower, &raw).await;
    assert_eq!(answer["result"], hash(&raw), "{answer}");
    for (raw, expected) in [
        // Sent again, it is not lost in what the stream takes for a repetition.
        (raw.clone(), "already known"),
        (transfer(0, first, 101), "replacement transaction underpriced"),
        (transfer(0, first.saturating_sub(1), 300), "nonce too low"),
    ] {
        let answer = send(&follower, &raw).await;
        assert_eq!(answer["error"]["code"], -32000, "{answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains(expected)), "{answer}");
    }
    let raw = transfer(0, first, 120);
    assert_eq!(send(&follower, &raw).await["result"], hash(&raw), "it pays enough");
    // Of many that are sent at once, those wait at the leader that are acknowledged.
    let sent: Vec<String> = (1..41).map(|at| transfer(0, first + at, 100)).collect();
    let answers = futures::future::join_all(sent.iter().map(|raw| send(&follower, raw))).await;
    let acknowledged = answers.iter().filter(|answer| answer["result"].is_string()).count() as u64;
    assert!((1..40).contains(&acknowledged), "{answers:?}");
    assert_eq!(waiting(&leader).await, acknowledged + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_no_builder_has_checked_stays_in_the_stream_until_one_does() {
    let Some(server) = NatsServer::start() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let kept = ["--traffic", "0", "--sub-block-ms", "50", "--data-dir", dir.path().to_str().expect("UTF-8")];
    let leader = ingester(&server.url(), &kept);
    let follower = replica(&server.url(), &["--deadline-ms", "1500"]);
    reach(&follower, advance(&leader, 2).await).await;
    let first = nonce(&leader, 0).await;
    let mined = transfer(0, first, 100);
    assert!(send(&follower, &mined).await["result"].is_string());
    let receipt = async |hash: &str| follower.call("/", "eth_getTransactionReceipt", json!([hash])).await;
    until("it is mined", async || receipt(&hash(&mined)).await["result"].is_object()).await;
    drop(leader);
    // One that will be mined, and one whose nonce is used.
    let (good, bad) = (transfer(0, first + 1, 100), transfer(0, first, 200));
    for raw in [&good, &bad] {
        let answer = send(&follower, raw).await;
        assert_eq!(answer["error"]["code"], -32016, "{answer}");
        assert_eq!(answer["error"]["data"], json!({ "hash": hash(raw) }), "{answer}");
        let text = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(text.contains("is stored") && text.contains("not checked yet"), "{answer}");
    }
    let jetstream = async_nats::jetstream::new(server.connect().await);
    let stream = jetstream.get_stream("presim-pool_test").await.expect("the fleet has it");
    let config = &stream.cached_info().config;
    assert!(config.max_age.is_zero(), "{:?}", config.max_age);
    assert_eq!(config.discard, async_nats::jetstream::stream::DiscardPolicy::New);
    assert_eq!(dropped(&follower, "rejected"), 0.0);
    let leader = ingester(&server.url(), &kept);
    until("the stored one is mined", async || receipt(&hash(&good)).await["result"].is_object()).await;
    until("the rejected one is counted", async || dropped(&follower, "rejected") == 1.0).await;
    assert_eq!(dropped(&leader, "rejected"), 0.0, "it has acknowledged none");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_dropped_later_is_counted_by_the_node_that_has_acknowledged_it() {
    let Some(server) = NatsServer::start() else { return };
    let leader = ingester(&server.url(), &STILL);
    let follower = replica(&server.url(), &[]);
    let first = nonce(&leader, 0).await;
    assert!(send(&follower, &transfer(0, first, 100)).await["result"].is_string());
    assert!(send(&leader, &transfer(0, first, 200)).await["result"].is_string(), "it replaces the other");
    until("the replica counts it", async || dropped(&follower, "replaced") == 1.0).await;
    assert_eq!(dropped(&leader, "replaced"), 0.0);
    assert!(send(&follower, &transfer(0, first, 400)).await["result"].is_string(), "it replaces the leader's");
    until("the leader counts its own", async || dropped(&leader, "replaced") == 1.0).await;
    assert_eq!(dropped(&follower, "replaced"), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_that_is_published_anew_takes_no_transaction_of_the_one_before() {
    let Some(server) = NatsServer::start() else { return };
    let leader = ingester(&server.url(), &STILL);
    let old = transfer(0, nonce(&leader, 0).await, 100);
    assert_eq!(send(&leader, &old).await["result"], hash(&old));
    drop(leader);
    let anew = ingester(&server.url(), &[&STILL[..], &["--publish-anew"]].concat());
    let follower = replica(&server.url(), &[]);
    // The leader reads in order, so that it would have read the old one before it gives its verdict.
    let new = transfer(1, nonce(&anew, 1).await, 100);
    assert_eq!(send(&follower, &new).await["result"], hash(&new));
    assert_eq!(waiting(&anew).await, 1);
}
