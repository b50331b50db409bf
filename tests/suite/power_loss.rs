//! The power fails, or the disk is full: acknowledged data stays.

use std::{ffi::OsString, path::Path, sync::Arc, time::Duration};

use presim::testing::{Config, Node, store::Store, telemetry::Metrics};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use serde_json::{Value, json};

use crate::{
    disk::{Disk, Leaves},
    process::eventually,
    support::{TestNode, http, say},
    witness::{Rpc, Witness, seed},
};

/// The number of power cuts, in equal numbers of each kind.
const CUTS: usize = 25;

/// The error of a store whose disk is full.
pub const FULL: &str = "the store failed: I/O error: No space left on device (os error 28): nothing more is published or acknowledged until the \
    disk is repaired and the node is restarted";

/// Starts a node on a disk, with quick sub-blocks and little traffic.
fn start(disk: &Disk, flags: &[&str]) -> TestNode {
    start_on(disk, &[&["--sub-block-ms", "25", "--sub-blocks", "4", "--traffic", "1"], flags].concat())
}

/// Starts a node on a disk.
pub fn start_on(disk: &Disk, flags: &[&str]) -> TestNode {
    let own = ["presim", "--listen", "127.0.0.1:0"];
    let config = Config::load(own.iter().chain(flags).map(OsString::from)).unwrap();
    let metrics = Metrics::default();
    let store = Store::open_on(disk.clone(), Path::new("the test's disk"), &metrics)
        .unwrap_or_else(|error| panic!("the store is not opened: {error}"));
    let node =
        Node::start_on(store, config, metrics).unwrap_or_else(|error| panic!("the node did not start: {error:#}"));
    TestNode { node, client: http() }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_outlives_power_cuts() {
    let seed = seed();
    let mut rng = SmallRng::seed_from_u64(seed);
    say(&format!("power cuts at random moments: PRESIM_TEST_SEED={seed}"));
    let witness = Arc::new(Witness::default());
    let mut disk = Disk::default();
    let mut dirty = 0;
    for cut in 0..CUTS {
        // Few states are kept, so that cuts hit the moves of the base.
        let node = start(&disk, &["--keep-blocks", "3"]);
        let rpc = Rpc::new(node.url("/"));
        witness.check(&rpc).await;
        let clients = witness.clients(&rpc, rng.random());
        // The cut comes at a moment that is unrelated to what the node does.
        tokio::time::sleep(Duration::from_millis(rng.random_range(50..400))).await;
        let (frozen, leaves) = (witness.clone(), Leaves::ALL[cut % Leaves::ALL.len()]);
        let (after, random) = (rng.random_range(0..100), SmallRng::from_rng(&mut rng));
        let (left, unsynced) = disk.cut(after, leaves, random, move || frozen.freeze()).await;
        dirty += usize::from(unsynced);
        node.node.stop();
        clients.join_all().await;
        witness.thaw();
        disk = left;
    }
    let node = start(&disk, &[]);
    let rpc = Rpc::new(node.url("/"));
    witness.check(&rpc).await;
    let counts = witness.finish(&rpc).await;
    say(&format!("{CUTS} power cuts, {dirty} of them with something unsynced: {counts}"));
    assert!(dirty > 0 && counts.answered > CUTS && counts.atomic > 0 && counts.raw > CUTS, "{counts}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_stops_sending_and_loses_nothing_that_was_answered() {
    let witness = Arc::new(Witness::default());
    let disk = Disk::default();
    let node = start(&disk, &["--log", "off"]);
    let rpc = Rpc::new(node.url("/"));
    let mut clients = witness.clients(&rpc, 1);
    // Ensures data in a sealed block and data after it.
    node.sealed(2).await;
    eventually("a batch is answered", async || (witness.taken().len() > 20).then_some(())).await;
    disk.fill();
    let health = async || -> Value { node.client.get(node.url("/health")).send().await.unwrap().json().await.unwrap() };
    eventually("it is seen", async || (health().await["feed"] == "degraded").then_some(())).await;
    clients.abort_all();
    while clients.join_next().await.is_some() {}

    let health = health().await;
    assert_eq!((&health["status"], &health["cause"]), (&json!("unhealthy"), &json!("store")));
    assert!(health["reason"].as_str().unwrap().contains(FULL), "{health}");
    let from = node.node.info().accounts[1].address();
    let batch = json!([{"version": "2.0.0", "id": "late", "from": from, "chainId": "0x7a69", "atomicRequired": false,
        "calls": [{"to": from, "value": "0x1"}]}]);
    let sending = json!([{"from": from, "to": from, "value": "0x1"}]);
    for (method, params) in [("wallet_sendCalls", batch), ("eth_sendTransaction", sending)] {
        let answer = rpc.call(method, params).await;
        assert_eq!((&answer["error"]["code"], &answer["error"]["message"]), (&json!(-32603), &json!(FULL)), "{method}");
    }

    let latest = rpc.result("eth_getBlockByNumber", json!(["latest", true])).await;
    assert_eq!(rpc.result("eth_getBlockByNumber", json!(["pending", true])).await["hash"], latest["hash"]);
    rpc.result("eth_call", json!([{"to": from, "data": "0x"}, "pending"])).await;
    let answered = witness.taken();
    let statuses = rpc.results("wallet_getCallsStatus", answered.iter().map(|id| json!([id]))).await;
    for status in &statuses {
        assert!([json!(100), json!(200)].contains(&status["status"]), "{status}");
    }
    assert!(statuses.iter().any(|status| status["status"] == 200), "{statuses:?}");
    assert_eq!(rpc.call("wallet_getCallsStatus", json!(["late"])).await["error"]["code"], 5730);
    let again = rpc.call(
        "wallet_sendCalls",
        json!([{"version": "2.0.0", "id": answered[0], "from": from, "chainId": "0x7a69",
        "atomicRequired": false, "calls": [{"to": from, "value": "0x1"}]}]),
    );
    assert_eq!(again.await["error"]["code"], 5720);

    node.node.stop();
    let node = start(&disk.copy(), &[]);
    let rpc = Rpc::new(node.url("/"));
    witness.check(&rpc).await;
    let counts = witness.finish(&rpc).await;
    assert!(counts.answered == answered.len() && counts.raw > 0, "{counts}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_feed_is_named_wherever_one_looks_and_strict_pending_refuses() {
    let disk = Disk::default();
    let node = start(&disk, &["--log", "off", "--strict-pending"]);
    assert_eq!(node.metric("presim_feed_state{state=\"live\"}"), 1.0);
    assert_eq!(node.metric("presim_feed_fallbacks_total{reason=\"store\"}"), 0.0);
    disk.fill();
    let health = async || -> Value { node.client.get(node.url("/health")).send().await.unwrap().json().await.unwrap() };
    eventually("it is seen", async || (health().await["feed"] == "degraded").then_some(())).await;

    let health = health().await;
    let reason = format!("the feed is broken: {FULL}; pending is the canonical head");
    assert_eq!((&health["cause"], &health["reason"]), (&json!("store"), &json!(reason)));
    assert_eq!(node.metric("presim_feed_state{state=\"live\"}"), 0.0);
    assert_eq!(node.metric("presim_feed_state{state=\"store\"}"), 1.0);
    assert_eq!(node.metric("presim_feed_state{state=\"gap\"}"), 0.0);
    assert_eq!(node.metric("presim_feed_fallbacks_total{reason=\"store\"}"), 1.0);
    let snapshot = node.result("/", "presim_snapshot", json!([])).await;
    assert_eq!((&snapshot["feed"], &snapshot["reason"]), (&json!("degraded"), &json!("store")));

    let from = node.node.info().accounts[1].address();
    let error = node.error("/", "eth_getBalance", json!([from, "pending"])).await;
    let text = "pending is refused: the feed is broken (store: the store fails), and --strict-pending is set";
    assert_eq!((&error["code"], &error["message"]), (&json!(-32000), &json!(text)));
    node.result("/", "eth_getBalance", json!([from, "latest"])).await;
}
