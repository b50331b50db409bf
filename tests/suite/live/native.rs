//! Runs that presim cannot execute: native contracts, transaction types and methods that only the upstream has.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use alloy_primitives::{Address, B256};
use serde_json::{Value, json};

use super::{
    built::{Built, ETHEREUM, OP_CHAIN, SOMEBODY, base_time, sent_by, store, transfer},
    feed, head, health, refused, serve, start, until,
};
use crate::{
    support::{BOUND, TestNode, hex},
    upstream::{FlashblocksServer, SmallUpstream},
};

/// The native contract of these tests.
const NATIVE: Address = Address::repeat_byte(0xb2);
/// A contract that calls [`NATIVE`] and returns nothing.
const CALLER: &str = "0x5f5f5f5f5f73b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b25af100";

/// The calls that a scripted upstream was asked to execute: methods and params.
type Asked = Arc<Mutex<Vec<(String, Value)>>>;

/// Starts an upstream that executes what presim cannot, and a node that follows it.
async fn pair(flags: &[&str]) -> (SmallUpstream, TestNode, Built, Asked) {
    let first = Built::op_stack();
    let upstream = serve(&[&first]).await;
    let asked = Asked::default();
    let kept = asked.clone();
    upstream.script(move |method, params| {
        kept.lock().unwrap().push((method.to_owned(), params.clone()));
        match method {
            "eth_call" if params[0]["data"] == "0xdead" => Some(Err((3, "execution reverted"))),
            "eth_call" => Some(Ok(json!("0x1234"))),
            "eth_simulateV1" => Some(Ok(json!([{"number": "0x7", "calls": []}]))),
            "eth_estimateGas" => Some(Ok(json!("0x5300"))),
            "optimism_syncStatus" => Some(Ok(json!({"head": 7, "text": "a  b"}))),
            "base_sendEncryptedTransaction" => Some(Ok(json!("0x1"))),
            _ => None,
        }
    });
    let native = NATIVE.to_string();
    let node = start(&upstream.url(), &first.config, &[&["--native", native.as_str()], flags].concat()).await;
    (upstream, node, first, asked)
}

/// Posts a request, and returns the answer with its freshness.
async fn post(node: &TestNode, path: &str, method: &str, params: Value) -> (Value, String) {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let answer = node.client.post(node.url(path)).json(&body).timeout(BOUND).send().await.expect("it answers");
    let freshness = answer.headers()["x-presim-snapshot"].to_str().expect("a text").to_owned();
    (answer.json().await.expect("JSON"), freshness)
}

/// An upstream would ignore the name of a fork, and answer by the rules of the block.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_under_another_fork_is_not_executed_by_the_upstream() {
    let (_upstream, node, _, asked) = pair(&[]).await;
    let block = |to: Address, fork: Value| json!({"calls": [{"to": to}], "blockOverrides": fork});
    let under = json!({"fork": "jovian"});
    for (path, method, params) in [
        ("/", "eth_call", json!([{"to": NATIVE}, "latest", {}, under])),
        ("/", "eth_estimateGas", json!([{"to": NATIVE}, "latest", {}, under])),
        // The block that reaches the contract has its own rules, and another has not.
        (
            "/standard",
            "eth_simulateV1",
            json!([{"blockStateCalls": [block(NATIVE, json!({})), block(SOMEBODY, under.clone())]}, "latest"]),
        ),
    ] {
        let error = node.error(path, method, params).await;
        let text = error["message"].as_str().expect("a text");
        assert!(error["code"] == -32000 && text.contains("under other forks"), "{method}: {error}");
    }
    assert!(
        !asked
            .lock()
            .unwrap()
            .iter()
            .any(|(method, _)| ["eth_call", "eth_estimateGas", "eth_simulateV1"].contains(&method.as_str()))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_reaches_a_native_contract_is_executed_by_the_upstream_at_the_same_block() {
    let (_upstream, node, first, asked) = pair(&[]).await;
    let at = json!({"blockHash": first.hash(), "requireCanonical": false});
    let code = json!({SOMEBODY.to_string(): {"code": CALLER}});
    let cases = [
        ("/", "eth_call", json!([{"to": NATIVE}, "latest"]), json!("0x1234")),
        ("/standard", "eth_call", json!([{"to": NATIVE}, "pending"]), json!("0x1234")),
        // A call within the call, and an override that leads there.
        ("/", "eth_call", json!([{"to": SOMEBODY}, "latest", code]), json!("0x1234")),
        ("/", "eth_estimateGas", json!([{"to": NATIVE}]), json!("0x5300")),
        (
            "/standard",
            "eth_simulateV1",
            json!([{"blockStateCalls": [{"calls": [{"to": NATIVE}]}]}, "latest"]),
            json!([{"number": "0x7", "calls": []}]),
        ),
    ];
    for (index, (path, method, params, expected)) in cases.into_iter().enumerate() {
        let (answer, freshness) = post(&node, path, method, params.clone()).await;
        assert_eq!(answer["result"], expected, "{method}: {answer}");
        assert!(freshness.ends_with(", execution=upstream"), "{method}: {freshness}");
        let (last, given) = asked.lock().unwrap().last().cloned().unwrap();
        assert_eq!((last.as_str(), &given[0], &given[1]), (method, &params[0], &at));
        assert_eq!(given.get(2), params.get(2));
        assert_eq!(node.metric("presim_executed_by_upstream_total"), (index + 1) as f64);
    }
    // A revert has the dialect's words.
    let (answer, freshness) =
        post(&node, "/standard", "eth_call", json!([{"to": NATIVE, "data": "0xdead"}, "latest"])).await;
    assert_eq!(answer["error"]["code"], 3, "{answer}");
    assert!(freshness.ends_with(", execution=upstream"), "{freshness}");
    // Anything else is executed here.
    let (answer, freshness) = post(&node, "/", "eth_call", json!([{"to": SOMEBODY}, "latest"])).await;
    assert_eq!((&answer["result"], freshness.contains("execution")), (&json!("0x"), false), "{freshness}");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_upstream_cannot_execute_it_either_it_is_refused_with_the_reason() {
    let first = Built::op_stack();
    let upstream = serve(&[&first]).await;
    let server = FlashblocksServer::start().await;
    let (url, native) = (server.url(), NATIVE.to_string());
    let node = start(&upstream.url(), &first.config, &["--flashblocks", &url, "--native", &native]).await;
    server.connected(1).await;
    let next = first.next(vec![transfer(OP_CHAIN, 0, 5), store(OP_CHAIN, 1, 4)], 1);
    server.send(&next.flashblocks(&[2, 1])[0]);
    until(&node, "applied", |published| published.newest.open.is_some()).await;
    // The upstream does not have what is pre-confirmed.
    let told = refused(&node, "eth_call", json!([{"to": NATIVE}, "pending"]), -32000, BOUND).await;
    assert!(told.contains(&NATIVE.to_string()) && told.contains("expected latest"), "{told}");
    let simulated = json!([{"blockStateCalls": [{"calls": [{"to": NATIVE}]}]}, "latest"]);
    let told = refused(&node, "eth_simulateV1", simulated.clone(), -32000, BOUND).await;
    assert!(told.contains("/standard"), "{told}");
    let told = refused(&node, "presim_simulate", simulated, -32000, BOUND).await;
    assert!(told.contains("expected eth_call"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_reach_a_native_contract_are_taken_as_the_upstream_has_them() {
    let first = Built::op_stack();
    let upstream = serve(&[&first]).await;
    let server = FlashblocksServer::start().await;
    let (url, native) = (server.url(), NATIVE.to_string());
    let node = start(&upstream.url(), &first.config, &["--flashblocks", &url, "--native", &native]).await;
    server.connected(1).await;
    let next = first.next(vec![transfer(OP_CHAIN, 0, 5), sent_by(0, OP_CHAIN, 1, NATIVE, 0, Default::default())], 1);
    let payloads = next.flashblocks(&[2, 1]);
    server.send(&payloads[0]);
    until(&node, "applied", |published| published.newest.open.is_some()).await;
    server.send(&payloads[1]);
    feed(&node, Some(presim::testing::ledger::FeedProblem::Execution)).await;
    upstream.push(next.block.clone());
    head(&node, next.hash()).await;
    assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"not_executed\"}"), 1.0);
    assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, "0x5");
    let told = node.result("/", "presim_snapshot", json!([])).await;
    assert_eq!(told["verified"], "none");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_with_an_unknown_transaction_type_is_followed() {
    let (upstream, node, first, _) = pair(&[]).await;
    let next = first.next(vec![transfer(OP_CHAIN, 0, 5)], 1);
    let mut block = next.block.clone();
    let hash = B256::repeat_byte(0x79);
    let foreign = json!({"hash": hash, "type": "0x79", "blockHash": next.hash(), "calls": [], "sender": SOMEBODY});
    block.transactions.push(foreign);
    block.receipts = None;
    upstream.push(block);
    head(&node, next.hash()).await;
    assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, "0x5");
    let latest = node.result("/", "eth_getBlockByNumber", json!(["latest", true])).await;
    assert_eq!((&latest["hash"], &latest["transactions"][2]["hash"]), (&json!(next.hash()), &json!(hash)));
    // The chain goes on.
    let after = next.next(vec![transfer(OP_CHAIN, 1, 6)], 1);
    upstream.push(after.block.clone());
    head(&node, after.hash()).await;
    assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"executed\"}"), 1.0);
    assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, "0xb");
}

#[tokio::test(flavor = "multi_thread")]
async fn methods_that_are_listed_go_to_the_upstream_as_they_are() {
    let (_upstream, node, _, asked) = pair(&[]).await;
    let (answer, _) = post(&node, "/", "optimism_syncStatus", json!([1, {"a": "b"}])).await;
    assert_eq!(answer["result"], json!({"head": 7, "text": "a  b"}));
    assert_eq!(asked.lock().unwrap().last().unwrap(), &("optimism_syncStatus".to_owned(), json!([1, {"a": "b"}])));
    let told = refused(&node, "optimism_rollupConfig", json!([]), -32601, BOUND).await;
    assert!(told.contains("not exist"), "{told}");
    // Writes are not in the list.
    let before = asked.lock().unwrap().len();
    let told = refused(&node, "base_sendEncryptedTransaction", json!([]), -32601, BOUND).await;
    assert!(told.contains("rpc.discover"), "{told}");
    assert_eq!(asked.lock().unwrap().len(), before);
    let (_upstream, node, _, _) = pair(&["--forward", "base_*"]).await;
    assert_eq!(node.result("/", "base_sendEncryptedTransaction", json!([])).await, "0x1");
    refused(&node, "optimism_syncStatus", json!([]), -32601, BOUND).await;
}

/// A chain under Denim: a canonical block every 200 ms, of which five share a timestamp, and no pre-confirmations.
#[tokio::test(flavor = "multi_thread")]
async fn canonical_blocks_of_a_fifth_of_a_second_are_snapshots() {
    let first = Built::denim();
    let began = first.header().timestamp;
    let upstream = serve(&[&first]).await;
    upstream.script(|method, _| (method == "eth_call").then(|| Ok(json!("0x2a"))));
    let native = NATIVE.to_string();
    let node = start(&upstream.ws_url(), &first.config, &["--native", &native]).await;
    let mut clock = tokio::time::interval(Duration::from_millis(200));
    let mut newest = first;
    for at in 0..10_u64 {
        let number = newest.number() + 1;
        let txs =
            vec![base_time(number, (at + 1) % 5 * 200), store(OP_CHAIN, 2 * at, at), transfer(OP_CHAIN, 2 * at + 1, 1)];
        let next = newest.next_after(u64::from(at % 5 == 4), txs, 1);
        clock.tick().await;
        upstream.push(next.block.clone());
        head(&node, next.hash()).await;
        let published = node.node.snapshots().load();
        assert!(published.newest.open.is_none());
        assert_eq!(published.newest.head_hash(), next.hash());
        let calls = [
            ("eth_getBalance", json!([SOMEBODY, "pending"])),
            ("eth_getBalance", json!([SOMEBODY, "latest"])),
            ("eth_getBlockByNumber", json!(["pending", true])),
            ("eth_getLogs", json!([{"fromBlock": hex(number)}])),
        ];
        let [pending, latest, block, logs] = node.batch("/", &calls).await.try_into().expect("four");
        assert_eq!((&pending, &latest), (&hex(at + 1), &hex(at + 1)));
        let ms = began * 1000 + (at + 1) * 200;
        assert_eq!((&block["timestamp"], &block["timestampMs"]), (&hex(ms / 1000), &hex(ms)), "{at}");
        assert_eq!(
            (&block["transactions"][1]["type"], &block["transactions"][3]["blockTimestampMs"]),
            (&json!("0x7e"), &hex(ms))
        );
        assert_eq!(logs[0]["blockTimestampMs"], hex(ms), "{logs}");
        newest = next;
    }
    assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"executed\"}"), 10.0);
    assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"not_executed\"}"), 0.0);
    assert_eq!(node.metric("presim_reorgs_total"), 0.0);
    let (answer, freshness) = post(&node, "/", "eth_call", json!([{"to": NATIVE}, "pending"])).await;
    assert_eq!((&answer["result"], freshness.ends_with("execution=upstream")), (&json!("0x2a"), true), "{freshness}");
    // A block that calls it is taken as the upstream has it, and the chain goes on.
    let called = newest.next_after(
        0,
        vec![base_time(newest.number() + 1, 200), sent_by(1, OP_CHAIN, 0, NATIVE, 0, Default::default())],
        1,
    );
    let after = called.next_after(0, vec![base_time(called.number() + 1, 400), transfer(OP_CHAIN, 20, 1)], 1);
    for block in [called, after] {
        upstream.push(block.block.clone());
        head(&node, block.hash()).await;
    }
    assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"executed\"}"), 11.0);
    assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"not_executed\"}"), 1.0);
    assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "pending"])).await, hex(11));
}

/// The upstream is upgraded while the node runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_fork_that_the_upstream_learns_of_later_is_said_too() {
    let first = Built::op_stack();
    let upstream = serve(&[&first]).await;
    let node = start(&upstream.url(), &first.config, &["--upstream-forks-s", "1"]).await;
    // The upstream has no `eth_config` yet.
    upstream.is_asked("eth_config", 2).await;
    assert_eq!(health(&node).await.1["warning"], Value::Null);
    upstream.script(move |method, _| {
        let config = |time: u64| json!({"activationTime": time, "chainId": "0x1092", "forkId": "0x01020304"});
        let told = json!({"current": config(0), "next": config(1_893_456_000), "last": config(1_893_456_000)});
        (method == "eth_config").then_some(Ok(told))
    });
    upstream.is_asked("eth_config", upstream.asked("eth_config") + 1).await;
    let said = async {
        loop {
            let document = health(&node).await.1;
            if document["warning"].is_string() {
                return document;
            }
        }
    };
    let document = tokio::time::timeout(BOUND, said).await.expect("it is said in time");
    assert!(document["warning"].as_str().is_some_and(|text| text.contains("1893456000")), "{document}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_that_is_newer_than_presim_is_said() {
    let first = Built::op_stack();
    let upstream = serve(&[&first]).await;
    let config = |time: u64| json!({"activationTime": time, "chainId": "0x1092", "forkId": "0x01020304"});
    upstream.script(move |method, _| {
        let told = json!({"current": config(0), "next": config(1_893_456_000), "last": config(1_893_456_000)});
        (method == "eth_config").then_some(Ok(told))
    });
    let node = start(&upstream.url(), &first.config, &[]).await;
    let (status, document, _) = health(&node).await;
    assert_eq!(status, 200);
    assert!(document["warning"].as_str().is_some_and(|text| text.contains("1893456000")), "{document}");
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_of_a_fork_that_is_not_executed_are_taken_as_the_upstream_has_them() {
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    upstream.script(|method, _| (method == "eth_call").then(|| Ok(json!("0x1234"))));
    let before = first.next(vec![transfer(ETHEREUM, 0, 5)], 1);
    let block = before.next(vec![transfer(ETHEREUM, 1, 6)], 1);
    let fork = format!("bogota={}", block.header().timestamp);
    let node = start(&upstream.url(), &first.config, &["--fork", &fork]).await;
    let (status, document, _) = health(&node).await;
    assert_eq!(status, 200);
    assert!(document["warning"].as_str().is_some_and(|text| text.contains("bogota")), "{document}");
    upstream.push(before.block.clone());
    head(&node, before.hash()).await;
    let call = json!([{"to": SOMEBODY}, "latest"]);
    let (answer, freshness) = post(&node, "/", "eth_call", call.clone()).await;
    assert_eq!((&answer["result"], freshness.contains("execution")), (&json!("0x"), false), "{answer}");
    assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"not_executed\"}"), 0.0);
    upstream.push(block.block.clone());
    head(&node, block.hash()).await;
    assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"not_executed\"}"), 1.0);
    assert_eq!(health(&node).await.0, 200);
    let (answer, freshness) = post(&node, "/", "eth_call", call).await;
    assert_eq!(answer["result"], "0x1234", "{answer}");
    assert!(freshness.ends_with(", execution=upstream"), "{freshness}");
    assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, hex(11));
}
