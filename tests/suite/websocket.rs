//! The WebSocket endpoint: the same answers as over HTTP, its own limits, and how connections end.

use serde_json::{Value, json};
use tokio_tungstenite::{connect_async, tungstenite::Error};

use crate::support::{BOUND, Socket, TestNode, request};

/// An address without an account, where tests put their code.
const CODE_AT: &str = "0x00000000000000000000000000000000000c0de0";
/// Builds a bundle that runs until its deadline.
fn endless_bundle(id: u64) -> String {
    let block = json!({
        "blockOverrides": {"gasLimit": "0x38d7ea4c68000"},
        "stateOverrides": {CODE_AT: {"code": "0x5b600056"}},
        "calls": [{"to": CODE_AT}],
    });
    request(id, "eth_simulateV1", json!([{"blockStateCalls": [block]}, "pending"])).to_string()
}

/// Starts a node on which such a bundle may run until its deadline.
fn slow(deadline_ms: &str, flags: &[&str]) -> TestNode {
    let slow = ["--workers", "1", "--deadline-ms", deadline_ms, "--gas-cap", "1000000000000000"];
    TestNode::quiet_with(&[&slow, flags].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_answered_as_over_http() {
    let node = TestNode::quiet();
    let weth = node.node.info().trading.expect("the devnet trades").weth;
    let mut socket = Socket::open(&node, "/").await;
    let calls = [
        ("eth_chainId", json!([])),
        ("eth_getCode", json!([weth, "pending"])),
        ("eth_call", json!([{"to": CODE_AT}, "pending", {CODE_AT: {"code": "0x600160005260206000f3"}}])),
        ("eth_call", json!([{"to": CODE_AT}, "pending", {CODE_AT: {"code": "0x5f5ffd"}}])),
        ("eth_simulateV1", json!([{"blockStateCalls": [{"calls": [{"to": CODE_AT}]}]}, "pending"])),
        ("eth_call", json!([{"to": CODE_AT, "foo": 1}, "pending"])),
        ("eth_call", json!({})),
        ("eth_nothing", json!([])),
    ];
    for (method, params) in calls {
        let over_http = node.call("/", method, params.clone()).await;
        assert_eq!(socket.call(method, params.clone()).await, over_http, "{method} {params}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_path_chooses_the_dialect() {
    let node = TestNode::quiet();
    let params = json!([{"to": CODE_AT}, "pending", {CODE_AT: {"code": "0x5f5ffd"}}]);
    for (path, code) in [("/", -32000), ("/standard", 3)] {
        let mut socket = Socket::open(&node, path).await;
        let answer = socket.call("eth_call", params.clone()).await;
        assert_eq!(answer["error"], json!({"code": code, "message": "execution reverted", "data": "0x"}), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_is_none_is_not_upgraded() {
    let node = TestNode::quiet();
    let refused = connect_async(format!("ws://{}/nothing", node.node.info().listen)).await;
    match refused {
        Err(Error::Http(response)) => assert_eq!(response.status().as_u16(), 404),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_answered_in_order() {
    let node = TestNode::quiet();
    let mut socket = Socket::open(&node, "/").await;
    let batch = json!([
        request(7, "eth_simulateV1", json!([{"blockStateCalls": [{}]}, "pending"])),
        request(8, "eth_nothing", json!([])),
        {"jsonrpc": "2.0", "method": "eth_chainId", "params": []},
        5,
        request(9, "eth_chainId", json!([])),
    ]);
    let answers = socket.send(batch.to_string()).await;
    let ids: Vec<&Value> = answers.as_array().expect("a batch").iter().map(|answer| &answer["id"]).collect();
    assert_eq!(ids, [&json!(7), &json!(8), &Value::Null, &Value::Null, &json!(9)], "{answers}");
    assert_eq!(answers[0]["result"].as_array().map(Vec::len), Some(1));
    assert_eq!(answers[1]["error"]["code"], -32601);
    assert_eq!(answers[2]["error"]["code"], -32600);
    assert_eq!(answers[3]["error"]["code"], -32600);
    assert_eq!(answers[4]["result"], "0x7a69");
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_are_bounded() {
    let node = TestNode::quiet_with(&["--max-batch", "3"]);
    let mut socket = Socket::open(&node, "/").await;
    let batch = |count| Value::Array(vec![request(1, "eth_chainId", json!([])); count]).to_string();
    assert_eq!(socket.send(batch(3)).await.as_array().map(Vec::len), Some(3));
    let answer = socket.send(batch(4)).await;
    assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32005), &Value::Null), "{answer}");
    let answer = socket.send("[]").await;
    assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32600), &Value::Null), "{answer}");
    assert_eq!(socket.call("eth_chainId", json!([])).await["result"], "0x7a69");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_json_is_minus_32700() {
    let node = TestNode::quiet();
    let mut socket = Socket::open(&node, "/").await;
    for text in ["", "{", "[1,", "nul", "\"", r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}x"#] {
        let answer = socket.send(text).await;
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32700), &Value::Null), "{text:?}: {answer}");
    }
    assert_eq!(socket.call("eth_chainId", json!([])).await["result"], "0x7a69");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_request_is_minus_32600() {
    let node = TestNode::quiet();
    let mut socket = Socket::open(&node, "/").await;
    for text in ["{}", r#"{"jsonrpc":"2.0","id":1}"#, r#"{"id":1,"method":"eth_chainId"}"#] {
        let answer = socket.send(text).await;
        assert_eq!(answer["error"]["code"], -32600, "{text}: {answer}");
    }
    assert_eq!(socket.call("eth_chainId", json!([])).await["result"], "0x7a69");
}

#[tokio::test(flavor = "multi_thread")]
async fn json_that_is_no_object_is_minus_32600() {
    let node = TestNode::quiet();
    let mut socket = Socket::open(&node, "/").await;
    for text in ["5", "null", "\"x\"", "true"] {
        let answer = socket.send(text).await;
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32600), &Value::Null), "{text}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_usable_id_is_minus_32600_with_id_null() {
    let node = TestNode::quiet();
    let mut socket = Socket::open(&node, "/").await;
    let ids = ["-1", "1.5", "18446744073709551616", "{}", "[]", "true"].map(|id| format!(r#""id":{id},"#));
    for id in ids.iter().map(String::as_str).chain([""]) {
        let answer = socket.send(format!(r#"{{"jsonrpc":"2.0",{id}"method":"eth_chainId","params":[]}}"#)).await;
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32600), &Value::Null), "{id}: {answer}");
    }
    assert_eq!(socket.call("eth_chainId", json!([])).await["result"], "0x7a69");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_usable_id_is_echoed() {
    let node = TestNode::quiet();
    let mut socket = Socket::open(&node, "/").await;
    for id in [json!(0), json!(u64::MAX), json!(""), json!("abc"), json!("-1"), Value::Null] {
        let answer =
            socket.send(json!({"jsonrpc": "2.0", "id": id, "method": "eth_chainId", "params": []}).to_string()).await;
        assert_eq!((&answer["result"], &answer["id"]), (&json!("0x7a69"), &id), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_past_max_body_is_refused_and_the_node_goes_on() {
    let node = TestNode::quiet_with(&["--max-body", "2000"]);
    let mut codes = Vec::new();
    for length in [2_100, 100_000] {
        let mut socket = Socket::open(&node, "/").await;
        let data = format!("0x{}", "00".repeat(length / 2));
        let mut answer = socket.call("eth_call", json!([{"to": CODE_AT, "data": data}, "pending"])).await;
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("--max-body")), "{answer}");
        codes.push(answer["error"]["code"].take());
    }
    let mut socket = Socket::open(&node, "/").await;
    assert_eq!(socket.call("eth_chainId", json!([])).await["result"], "0x7a69");
    assert_eq!(codes, [-32005, -32005]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_past_max_body_is_refused_though_its_entries_are_small() {
    let node = TestNode::quiet_with(&["--max-body", "2000"]);
    let mut socket = Socket::open(&node, "/").await;
    let batch = Value::Array(vec![request(1, "eth_chainId", json!([])); 45]).to_string();
    assert!((2_001..4_000).contains(&batch.len()), "{}", batch.len());
    let answer = socket.send(batch).await;
    assert_eq!(answer["error"]["code"], -32005, "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_past_max_response_is_refused() {
    let node = TestNode::quiet_with(&["--max-response", "4096"]);
    let mut socket = Socket::open(&node, "/").await;
    // RETURN(0, size)
    let returning =
        |size: u16| json!([{"to": CODE_AT}, "pending", {CODE_AT: {"code": format!("0x61{size:04x}6000f3")}}]);
    // The second answer is too long only with its JSON-RPC envelope.
    let batch = Value::Array(vec![request(1, "eth_call", returning(1_024)); 4]).to_string();
    let mut codes = Vec::new();
    for sent in [
        request(1, "eth_call", returning(4_096)).to_string(),
        request(1, "eth_call", returning(2_045)).to_string(),
        batch,
    ] {
        codes.push(socket.send(sent).await["error"]["code"].take());
    }
    assert_eq!(socket.call("eth_chainId", json!([])).await["result"], "0x7a69");
    assert_eq!(codes, [-32005, -32005, -32005]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_longer_than_a_message_may_be_is_sent() {
    let node = TestNode::quiet_with(&["--max-body", "2000"]);
    let mut socket = Socket::open(&node, "/").await;
    let answer =
        socket.call("eth_call", json!([{"to": CODE_AT}, "pending", {CODE_AT: {"code": "0x6180006000f3"}}])).await;
    assert_eq!(answer["result"].as_str().map(str::len), Some(2 + 2 * 0x8000));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_one_connection_run_side_by_side() {
    let node = slow("2000", &[]);
    let mut socket = Socket::open(&node, "/").await;
    socket.write(endless_bundle(1)).await.expect("it takes a message");
    let first = socket.send(request(2, "eth_chainId", json!([])).to_string()).await;
    assert_eq!(first["id"], 2, "the short one does not wait for the bundle: {first}");
    let second = socket.read().await.expect("the bundle is answered too");
    assert_eq!((&second["id"], &second["error"]["code"]), (&json!(1), &json!(-32016)));
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_may_be_under_way_waits_unread_and_is_answered() {
    let node = slow("300", &["--max-ws-in-flight", "3"]);
    let mut socket = Socket::open(&node, "/").await;
    for id in 0..12 {
        socket.write(endless_bundle(id)).await.expect("it takes a message");
    }
    let mut ids = Vec::new();
    for _ in 0..12 {
        let answer = socket.read().await.expect("an answer");
        assert_eq!(answer["error"]["code"], -32016, "{answer}");
        ids.push(answer["id"].as_u64().expect("an id"));
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..12).collect::<Vec<_>>());
    assert_eq!(socket.call("eth_chainId", json!([])).await["result"], "0x7a69");
}

#[tokio::test(flavor = "multi_thread")]
async fn as_much_under_way_as_allowed_is_answered() {
    let node = slow("2000", &["--max-ws-in-flight", "3"]);
    let mut socket = Socket::open(&node, "/").await;
    for id in 0..3 {
        socket.write(endless_bundle(id)).await.expect("it takes a message");
    }
    for _ in 0..3 {
        assert_eq!(socket.read().await.expect("an answer")["error"]["code"], -32016);
    }
    assert_eq!(socket.call("eth_chainId", json!([])).await["result"], "0x7a69");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_frees_the_worker() {
    let node = slow("60000", &[]);
    let mut socket = Socket::open(&node, "/").await;
    socket.write(endless_bundle(1)).await.expect("it takes a message");
    // This answer arrives after the bundle was read, so the bundle is running.
    socket.call("eth_chainId", json!([])).await;
    drop(socket);
    let params = json!([{"blockStateCalls": [{}]}, "pending"]);
    let next = tokio::time::timeout(BOUND, node.result("/", "eth_simulateV1", params)).await;
    assert!(next.is_ok(), "the worker still runs a bundle that nobody waits for");
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_the_node_closes_its_sockets() {
    let node = TestNode::quiet();
    let mut sockets = Vec::new();
    for path in ["/", "/standard"] {
        let mut socket = Socket::open(&node, path).await;
        assert_eq!(socket.call("eth_chainId", json!([])).await["result"], "0x7a69");
        sockets.push(socket);
    }
    let stopped = tokio::task::spawn_blocking(move || node.node.stop());
    for socket in &mut sockets {
        assert_eq!(socket.read().await, None);
    }
    tokio::time::timeout(BOUND, stopped).await.expect("it stops").expect("it stops without a panic");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_host_is_not_upgraded() {
    use tokio_tungstenite::tungstenite::client::IntoClientRequest;
    let node = TestNode::quiet();
    let mut request = format!("ws://{}/", node.node.info().listen).into_client_request().expect("a request");
    request.headers_mut().insert("host", "evil.example".parse().expect("a header"));
    match connect_async(request).await {
        Err(Error::Http(response)) => assert_eq!(response.status().as_u16(), 403),
        other => panic!("{other:?}"),
    }
}
