//! Wrong, hostile and absurd input: each gets one valid answer, and the node continues.

use presim::testing::source::devnet::world::{dev_genesis, dev_signers};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config as Cases, TestError, TestRunner},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    process::text,
    support::{CODE_AT, Socket, TestNode, chain_id, request, shared},
};

/// The second dev account.
const ACCOUNT: &str = "0x70997970c51812dc3a010c7d01b50e0d17dc79c8";
/// A transfer of one wei that the second dev account has signed.
const SIGNED: &str = "0x02f86e827a6980847735940085174876e80083030d409400000000000000000000000000000000000c01ba0180c001a012646864a06130c8ba1e5051c0f0e58b0b94adf2531132f5f28515d7b7eb4da7a07b7f3d0a9b75aa49daaaa3f10979416c7e271d07df42b5657f3a4fe57a5b2c33";

/// Returns what violates JSON-RPC 2.0 in an answer; `None` if it is valid.
fn fault(answer: &Value) -> Option<&'static str> {
    let Some(answer) = answer.as_object() else { return Some("no object") };
    if answer.get("jsonrpc") != Some(&json!("2.0")) {
        return Some("jsonrpc is not 2.0");
    }
    if !answer.get("id").is_some_and(|id| id.is_null() || id.is_u64() || id.is_string()) {
        return Some("no id that may be one");
    }
    match (answer.get("result"), answer.get("error")) {
        (Some(_), None) => None,
        (None, Some(error)) if error["code"].is_i64() && error["message"].is_string() => None,
        (None, Some(_)) => Some("an error without code and message"),
        _ => Some("not one of result and error"),
    }
}

/// Sends a body over HTTP and over a WebSocket. Returns the answer, which must be the same.
async fn at_both_doors(node: &TestNode, body: impl Into<Vec<u8>>) -> Value {
    let body = body.into();
    let (_, text) = node.post("/", body.clone()).await;
    let answer: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("no JSON: {error}: {text}"));
    let mut socket = Socket::open(node, "/").await;
    // A binary message, because some bodies are not UTF-8.
    socket.write_binary(body.clone()).await.expect("it takes a message");
    let over_websocket = socket.read().await.expect("it answers");
    assert_eq!(over_websocket, answer, "{:.200}", String::from_utf8_lossy(&body));
    answer
}

/// Sends a body that must be answered by one error outside a batch, and returns the answer.
async fn refused(node: &TestNode, body: impl Into<Vec<u8>>) -> Value {
    let answer = at_both_doors(node, body).await;
    assert_eq!(fault(&answer), None, "{answer}");
    assert!(answer["error"].is_object(), "{answer}");
    answer
}

async fn serves(node: &TestNode) {
    assert_eq!(node.result("/", "eth_chainId", json!([])).await, "0x7a69");
}

// Invalid JSON.

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_json_is_minus_32700_with_id_null() {
    let node = TestNode::quiet();
    let whole = r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}"#;
    let mut bodies: Vec<Vec<u8>> =
        ["", "   ", "{", "}", "[", "[1,", "[1,2", "{]", "nul", "\"", "'x'", "{'id':1}", "\u{feff}{}", "0x1", "NaN"]
            .map(|text| text.as_bytes().to_vec())
            .into();
    bodies.push(whole.as_bytes()[..whole.len() - 1].to_vec());
    bodies.push(format!("{whole}x").into_bytes());
    bodies.push(format!("{whole}{whole}").into_bytes());
    bodies.push(format!("[{whole},]").into_bytes());
    bodies.push(b"{\"id\":\"\xff\xfe\"}".to_vec());
    bodies.push(vec![0; 64]);
    for body in bodies {
        let answer = refused(&node, body.clone()).await;
        let shown = String::from_utf8_lossy(&body);
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32700), &Value::Null), "{shown:?}: {answer}");
    }
    serves(&node).await;
}

// JSON that is not a request.

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_request_is_minus_32600() {
    let node = TestNode::quiet();
    let bodies = [
        json!(1),
        json!("eth_chainId"),
        Value::Null,
        json!(true),
        json!({}),
        json!([]),
        json!({"jsonrpc": "2.0", "id": 1}),
        json!({"id": 1, "method": "eth_chainId"}),
        json!({"jsonrpc": "1.0", "id": 1, "method": "eth_chainId", "params": []}),
        json!({"jsonrpc": 2, "id": 1, "method": "eth_chainId", "params": []}),
        json!({"jsonrpc": 2.0, "id": 1, "method": "eth_chainId", "params": []}),
        json!({"jsonrpc": null, "id": 1, "method": "eth_chainId", "params": []}),
        json!({"jsonrpc": "2.0", "id": 1, "method": 5}),
        json!({"jsonrpc": "2.0", "id": 1, "method": null}),
        json!({"jsonrpc": "2.0", "id": 1, "method": ["eth_chainId"]}),
    ];
    for body in bodies {
        let answer = refused(&node, body.to_string()).await;
        assert_eq!(answer["error"]["code"], -32600, "{body}: {answer}");
    }
}

/// A request is an object: the order of its fields means nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_of_a_batch_that_is_no_request_is_answered_in_its_place() {
    let node = TestNode::quiet();
    let invalid = json!({"jsonrpc": "2.0", "id": null, "error": {
        "code": -32600,
        "message": "invalid request: expected an object with jsonrpc \"2.0\", an id and a method",
    }});
    let right = |id: u64| json!({"jsonrpc": "2.0", "id": id, "result": "0x7a69"});
    let invalid = |count: usize| vec![invalid.clone(); count];
    let call = request(8, "eth_chainId", json!([]));
    // Nested arrays in the parameters of an entry are none of the batch.
    let many = json!([[{"transactions": [{"to": null}]}], {"blockNumber": "latest"}]);
    let many = request(9, "eth_callMany", many);
    let many_answer = json!({"jsonrpc": "2.0", "id": 9, "result": [[{"value": "0x"}]]});
    for (body, answers) in [
        (r#"["2.0",7,"eth_chainId",[]]"#.to_owned(), invalid(4)),
        (r#" [ "2.0" , 7 , "eth_chainId" ]"#.to_owned(), invalid(3)),
        (r#"[["2.0",7,"eth_chainId",[]]]"#.to_owned(), invalid(1)),
        (r#"[["2.0","eth_chainId",[]]]"#.to_owned(), invalid(1)),
        ("[[7]]".to_owned(), invalid(1)),
        (format!("[{call},5,{call}]"), [vec![right(8)], invalid(1), vec![right(8)]].concat()),
        (format!("[ [\"2.0\",7,\"eth_chainId\",[]] ,\n [5], {call}]"), [invalid(2), vec![right(8)]].concat()),
        (
            format!("[{call},[\"2.0\",7,\"eth_chainId\",[]],{many}]"),
            [vec![right(8)], invalid(1), vec![many_answer.clone()]].concat(),
        ),
        (format!("[{many},{call}]"), vec![many_answer, right(8)]),
    ] {
        assert_eq!(at_both_doors(&node, body.clone()).await, Value::Array(answers), "{body}");
    }
}

/// A body of the test vectors, and the code of the error that answers it.
#[derive(Deserialize)]
struct VectorBody {
    body_hex: String,
    error: Option<i64>,
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bodies_of_the_vectors_get_their_codes() {
    let Some(path) = shared("vectors/envelopes.json") else { return };
    let bodies: Vec<VectorBody> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let node = TestNode::quiet();
    for VectorBody { body_hex, error } in &bodies {
        let answer = at_both_doors(&node, const_hex::decode(body_hex).expect("hex")).await;
        assert_eq!(answer["error"]["code"].as_i64(), *error, "{body_hex}: {answer}");
    }
    assert_eq!(bodies.len(), 34);
}

/// jsonrpsee parses a request whose id has an escape. Another one takes a short cut.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_answered_alike_by_the_short_cut_and_by_jsonrpsee() {
    let Some(genesis) = shared("bench/genesis.json") else { return };
    let node = TestNode::start(&["--genesis", text(&genesis), "--feed", "static", "--block-time", "1"]);
    let mut requests = vec![
        ("eth_getBalance".to_owned(), json!([ACCOUNT, "latest"])),
        ("eth_call".to_owned(), json!([{"to": ACCOUNT}, "latest", {ACCOUNT: {"code": "0x60206000f3"}}])),
        ("eth_call".to_owned(), json!([{"to": ACCOUNT}, "latest", {ACCOUNT: {"code": "0x5f5ffd"}}])),
        ("eth_simulateV1".to_owned(), json!([{"blockStateCalls": [{"calls": [{"to": ACCOUNT}]}]}, "latest"])),
        ("eth_call".to_owned(), json!([{"to": ACCOUNT, "foo": 1}, "latest"])),
        ("eth_getBlockByNumber".to_owned(), json!(["0x7", false])),
        ("eth_nothing".to_owned(), json!([])),
        ("eth_subscribe".to_owned(), json!(["newHeads"])),
    ];
    for workload in ["call_balance", "call_quote", "get_code", "sim_swap", "sim_override"] {
        let text = std::fs::read_to_string(shared(&format!("bench/{workload}.ndjson")).unwrap()).unwrap();
        requests.extend(text.lines().take(2).map(|line| {
            let request: Value = serde_json::from_str(line).expect("a request");
            (request["method"].as_str().expect("a name").to_owned(), request["params"].clone())
        }));
    }
    for (method, params) in requests {
        let ask = async |id: &str| {
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
            node.post("/", body).await
        };
        assert_eq!(ask(r#""A""#).await, ask(r#""\u0041""#).await, "{method} {params}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_usable_id_is_minus_32600_with_id_null() {
    let node = TestNode::quiet();
    let ids = ["-1", "1.5", "1e3", "-0.0", "18446744073709551616", "{}", "{\"a\":1}", "[]", "[1]", "true", "false"];
    let bodies = ids
        .map(|id| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"eth_chainId","params":[]}}"#))
        .into_iter()
        .chain([r#"{"jsonrpc":"2.0","method":"eth_chainId","params":[]}"#.to_owned()]);
    for body in bodies {
        let alone = refused(&node, body.clone()).await;
        let answers = at_both_doors(&node, format!("[{body}]")).await;
        for answer in [&alone, &answers[0]] {
            assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32600), &Value::Null), "{body}: {answer}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_usable_id_is_echoed() {
    let node = TestNode::quiet();
    let ids =
        ["0", "1", "18446744073709551615", "\"\"", "\"abc\"", "\"-1\"", r#""\u0041\"\\\n""#, "\"ünïcode\"", "null"];
    for id in ids {
        for (method, key) in [("eth_chainId", "result"), ("eth_nothing", "error")] {
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":[]}}"#);
            let answer = at_both_doors(&node, body).await;
            assert!(answer.get(key).is_some(), "{id}: {answer}");
            assert_eq!(fault(&answer), None, "{answer}");
            if key == "error" {
                let message = answer["error"]["message"].as_str().expect("a message");
                assert!(answer["error"]["code"] == -32601 && message.contains("eth_nothing"), "{answer}");
            }
            // The values are compared, because the node may escape characters differently.
            let id: Value = serde_json::from_str(id).expect("JSON");
            assert_eq!(answer["id"], id, "{answer}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_method_is_known_however_its_name_is_escaped() {
    let node = TestNode::quiet();
    let (_, text) = node.post("/", r#"{"jsonrpc":"2.0","id":1,"method":"eth\u005fchainId","params":[]}"#).await;
    assert!(text.contains("\"0x7a69\""), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_member_is_refused() {
    let node = TestNode::quiet();
    let answer = refused(&node, r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"eth_chainId","params":[]}"#).await;
    assert_eq!(answer["error"]["code"], -32600);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_content_type_is_415() {
    let node = TestNode::quiet();
    for kind in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""] {
        let sent = node.client.post(node.url("/")).header("content-type", kind).body(chain_id()).send().await;
        let response = sent.expect("it answers");
        assert_eq!(response.status(), 415, "{kind}");
        let answer: Value = serde_json::from_str(&response.text().await.expect("a body")).expect("JSON");
        assert_eq!(fault(&answer), None, "{kind}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_method_or_path_of_http_is_told_so_in_json_rpc() {
    let node = TestNode::quiet();
    let (all, posts) = (Some("GET, HEAD, POST"), Some("POST"));
    let cases = [
        ("GET", "/", 405, all),
        ("PUT", "/", 405, all),
        ("OPTIONS", "/", 405, all),
        ("DELETE", "/standard", 405, posts),
        ("OPTIONS", "/standard", 405, posts),
        ("POST", "/nothing", 404, None),
    ];
    for (method, path, status, allowed) in cases {
        let method = method.parse().expect("a method");
        let response = node.client.request(method, node.url(path)).send().await.expect("it answers");
        assert_eq!(response.status(), status, "{path}");
        let told = response.headers().get("allow").map(|allowed| allowed.to_str().expect("a text"));
        assert_eq!(told, allowed, "{path}");
        let answer: Value = serde_json::from_str(&response.text().await.expect("a body")).expect("JSON");
        assert_eq!(fault(&answer), None, "{path}: {answer}");
        assert_eq!(answer["error"]["code"], -32600, "{path}");
    }
}

// Parameters.

#[tokio::test(flavor = "multi_thread")]
async fn parameters_that_are_no_array_are_minus_32602() {
    let node = TestNode::quiet();
    for method in ["eth_call", "eth_simulateV1", "eth_getCode", "eth_chainId"] {
        for params in [json!({}), json!({"to": CODE_AT}), json!("pending"), json!(5), json!(true)] {
            let error = node.error("/", method, params.clone()).await;
            assert_eq!(error["code"], -32602, "{method} {params}: {error}");
            assert!(
                error["message"].as_str().is_some_and(|text| text.contains("params")),
                "{method} {params}: {error}"
            );
        }
    }
}

/// Sends each value as `field` of an otherwise valid call object, alone and in a bundle. All must be refused.
async fn refuses_in_a_call(node: &TestNode, field: &str, values: &[Value]) {
    for value in values {
        let mut call = json!({"to": CODE_AT});
        call[field] = value.clone();
        let error = node.error("/", "eth_call", json!([call, "pending"])).await;
        assert_eq!(error["code"], -32602, "{field} {value}: {error}");
        let place = format!("params[0].{field}");
        assert!(error["message"].as_str().is_some_and(|text| text.contains(&place)), "{field} {value}: {error}");
        let params = json!([{"blockStateCalls": [{"calls": [{"to": CODE_AT}, call]}]}, "pending"]);
        let error = node.error("/", "eth_simulateV1", params).await;
        assert_eq!(error["code"], -32602, "{field} {value}: {error}");
        let place = format!("params[0].blockStateCalls[0].calls[1].{field}");
        assert!(error["message"].as_str().is_some_and(|text| text.contains(&place)), "{field} {value}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_none_is_named() {
    let node = TestNode::quiet();
    let values = [
        json!("0x"),
        json!("0x12"),
        json!(format!("{CODE_AT}0")),
        json!(format!("{CODE_AT}00")),
        json!(&CODE_AT[2..]),
        json!(&CODE_AT[..41]),
        json!(format!("0x{}", "g".repeat(40))),
        json!(format!("0x{}", "é".repeat(20))),
        json!(format!("0x0x{}", "1".repeat(38))),
        json!(5),
        json!(true),
        json!({}),
        json!([CODE_AT]),
    ];
    refuses_in_a_call(&node, "from", &values).await;
    refuses_in_a_call(&node, "to", &values).await;
    for value in values {
        let error = node.error("/", "eth_getCode", json!([value, "pending"])).await;
        assert_eq!(error["code"], -32602, "{value}");
        assert!(error["message"].as_str().is_some_and(|text| text.contains("params[0]")), "{value}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn data_that_is_no_hex_of_whole_bytes_is_named() {
    let node = TestNode::quiet();
    let values = ["0x1", "0x123", "0xzz", "", "12", "0X12", "0x 1", "x", "0x0x12", "0x0X12"].map(|text| json!(text));
    refuses_in_a_call(&node, "data", &values).await;
    refuses_in_a_call(&node, "input", &values).await;
    refuses_in_a_call(&node, "data", &[json!(5), json!([]), json!(false)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quantity_that_is_none_or_out_of_range_is_named() {
    let node = TestNode::quiet();
    let wrong = [
        json!("0x"),
        json!(""),
        json!("0x01"),
        json!("-0x1"),
        json!("0x-1"),
        json!("0xg"),
        json!("21000"),
        json!(21000),
        json!(1.5),
    ];
    let beyond = |bits: usize| json!(format!("0x1{}", "0".repeat(bits / 4)));
    for (field, bits) in [
        ("gas", 64),
        ("nonce", 64),
        ("gasPrice", 128),
        ("maxFeePerGas", 128),
        ("maxPriorityFeePerGas", 128),
        ("value", 256),
    ] {
        refuses_in_a_call(&node, field, &wrong).await;
        refuses_in_a_call(&node, field, &[beyond(bits), beyond(4_000)]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_does_not_repeat_all_of_an_endless_value() {
    let node = TestNode::quiet();
    let error = node.error("/", "eth_call", json!([{"to": format!("0x{}", "0".repeat(1 << 20))}, "pending"])).await;
    assert_eq!(error["code"], -32602);
    assert!(error["message"].as_str().is_some_and(|text| text.len() < 1_000));
    let error = node.error("/", &"x".repeat(1 << 20), json!([])).await;
    assert_eq!(error["code"], -32601);
    assert!(error["message"].as_str().is_some_and(|text| text.len() < 1_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_field_with_an_endless_name_is_not_repeated_in_full() {
    let node = TestNode::quiet();
    let mut call = json!({"to": CODE_AT});
    call["x".repeat(1 << 20)] = json!(1);
    let error = node.error("/", "eth_call", json!([call, "pending"])).await;
    assert_eq!(error["code"], -32602);
    assert!(error["message"].as_str().is_some_and(|text| text.len() < 1_000), "a message as long as the name");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_selector_that_is_none_is_named() {
    let node = TestNode::quiet();
    let selectors = [
        json!("newest"),
        json!(""),
        json!("0x"),
        json!("0x00"),
        json!("0x10000000000000000"),
        json!("1"),
        json!(1),
        json!(true),
        json!([]),
        json!({}),
        json!({"blockHash": "0x12"}),
        json!({"blockNumber": "0x0", "snapshotId": "0x0"}),
    ];
    for selector in selectors {
        for (method, first) in [
            ("eth_call", json!({"to": CODE_AT})),
            ("eth_simulateV1", json!({"blockStateCalls": [{}]})),
            ("eth_getCode", json!(CODE_AT)),
        ] {
            let error = node.error("/", method, json!([first, selector])).await;
            assert_eq!(error["code"], -32602, "{method} {selector}: {error}");
            assert!(
                error["message"].as_str().is_some_and(|text| text.contains("params[1]")),
                "{method} {selector}: {error}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_of_the_wrong_shape_is_named() {
    let node = TestNode::quiet();
    let cases = [
        (json!({}), "blockStateCalls"),
        (json!({"blockStateCalls": []}), "blockStateCalls"),
        (json!({"blockStateCalls": null}), "blockStateCalls"),
        (json!({"blockStateCalls": {}}), "blockStateCalls"),
        (json!({"blockStateCalls": [5]}), "blockStateCalls[0]"),
        (json!({"blockStateCalls": [{"calls": {}}]}), "blockStateCalls[0].calls"),
        (json!({"blockStateCalls": [{"calls": [null]}]}), "blockStateCalls[0].calls[0]"),
        (json!({"blockStateCalls": [{"stateOverrides": []}]}), "blockStateCalls[0].stateOverrides"),
        (json!({"blockStateCalls": [{"stateOverrides": {"0x12": {}}}]}), "blockStateCalls[0].stateOverrides"),
        (json!({"blockStateCalls": [{"stateOverrides": {CODE_AT: {"code": "0x1"}}}]}), "code"),
        (json!({"blockStateCalls": [{"blockOverrides": {"number": 5}}]}), "blockStateCalls[0].blockOverrides.number"),
        (json!({"blockStateCalls": [{"blockOverrides": {"number": "0x10000000000000000"}}]}), "blockOverrides.number"),
        (json!({"blockStateCalls": [{"blockOverrides": {"time": "0x10000000000000000"}}]}), "blockOverrides.time"),
        (json!({"blockStateCalls": [{}], "validation": "true"}), "params[0].validation"),
        (json!({"blockStateCalls": [{}], "traceTransfers": 1}), "params[0].traceTransfers"),
    ];
    for (payload, place) in cases {
        let error = node.error("/", "eth_simulateV1", json!([payload, "pending"])).await;
        assert_eq!(error["code"], -32602, "{payload}: {error}");
        assert!(error["message"].as_str().is_some_and(|text| text.contains(place)), "{payload}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_at_the_edge_of_their_range_are_answered() {
    let node = TestNode::quiet();
    let most = format!("0x{}", "f".repeat(64));
    let calls = [
        json!({"to": CODE_AT, "gas": "0xffffffffffffffff"}),
        json!({"to": CODE_AT, "gas": "0x0"}),
        json!({"to": CODE_AT, "nonce": "0xffffffffffffffff"}),
        json!({"to": CODE_AT, "value": most}),
        json!({"to": CODE_AT, "gasPrice": "0xffffffffffffffffffffffffffffffff"}),
        json!({"to": CODE_AT, "gasPrice": "0xffffffffffffffffffffffffffffffff", "value": most, "gas": "0xffffffffffffffff"}),
        json!({"to": null, "nonce": "0xffffffffffffffff", "data": "0x00"}),
    ];
    let mut requests = Vec::new();
    for call in calls {
        requests.push(("eth_call", json!([call, "pending"])));
        for validation in [false, true] {
            let payload = json!({"validation": validation, "blockStateCalls": [{"calls": [call, {"to": CODE_AT}]}]});
            requests.push(("eth_simulateV1", json!([payload, "pending"])));
        }
    }
    let blocks = [
        json!({"time": "0xffffffffffffffff"}),
        json!({"number": "0xffffffffffffffff"}),
        json!({"gasLimit": "0xffffffffffffffff"}),
        json!({"gasLimit": "0x0"}),
        json!({"baseFeePerGas": "0xffffffffffffffff"}),
        json!({"blobBaseFee": "0xffffffffffffffffffffffffffffffff"}),
    ];
    for block in blocks {
        requests.push(("eth_call", json!([{"to": CODE_AT}, "pending", {}, block])));
        requests.push(("eth_simulateV1", json!([{"blockStateCalls": [{"blockOverrides": block}, {}]}, "pending"])));
        requests.push((
            "eth_simulateV1",
            json!([{"validation": true, "blockStateCalls": [{"blockOverrides": block}]}, "pending"]),
        ));
    }
    let mut wrong = Vec::new();
    for (method, params) in requests {
        for path in ["/", "/standard"] {
            let answer = node.call(path, method, params.clone()).await;
            if fault(&answer).is_some() || answer["error"]["code"] == -32603 {
                wrong.push(format!("{path} {method} {params}: {answer}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    serves(&node).await;
}

// Resource exhaustion.

#[tokio::test(flavor = "multi_thread")]
async fn brackets_a_hundred_thousand_deep_are_refused() {
    let node = TestNode::quiet();
    let deep = |open: &str, close: &str| format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
    let (arrays, objects) = (deep("[", "]"), deep("{\"a\":", "}"));
    let bodies = [
        "[".repeat(100_000),
        "{\"a\":".repeat(100_000),
        format!(r#"{{"jsonrpc":"2.0","id":{arrays},"method":"eth_chainId"}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":{arrays}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"eth_call","params":{arrays}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"eth_call","params":[{{"to":{arrays}}},"pending"]}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"eth_call","params":[{{"to":null,"foo":{arrays}}},"pending"]}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"eth_call","params":[{{"to":null}},{arrays}]}}"#),
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"eth_simulateV1","params":[{{"blockStateCalls":{arrays}}},"pending"]}}"#
        ),
        objects,
    ];
    for body in bodies {
        refused(&node, body).await;
    }
    let (_, text) = node.post("/", arrays).await;
    let answers: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(answers[0]["error"]["code"], -32600, "an array of one array is a batch of no requests");
    serves(&node).await;
}

/// Runs a call of this code, which must fail, and returns the error.
async fn stops(code: &str) -> Value {
    let node = TestNode::quiet();
    let error = node.error("/", "eth_call", json!([{"to": CODE_AT}, "pending", {CODE_AT: {"code": code}}])).await;
    let payload =
        json!({"blockStateCalls": [{"stateOverrides": {CODE_AT: {"code": code}}, "calls": [{"to": CODE_AT}]}]});
    let answer = node.call("/", "eth_simulateV1", json!([payload, "pending"])).await;
    assert_eq!(fault(&answer), None, "{answer}");
    serves(&node).await;
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_without_end_is_out_of_gas() {
    // MSTORE at 2^32 - 1, at 2^64 - 1, at 2^256 - 1; RETURN and KECCAK256 of 2^32 - 1 bytes.
    let codes =
        ["0x600163ffffffff52", "0x600167ffffffffffffffff52", "0x60015f1952", "0x63ffffffff5ff3", "0x63ffffffff5f20"];
    for code in codes {
        let error = stops(code).await;
        assert_eq!((&error["code"], &error["message"]), (&json!(-32000), &json!("out of gas")), "{code}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_grows_word_by_word_is_out_of_gas() {
    // JUMPDEST MSIZE MSIZE MSTORE PUSH0 JUMP
    let error = stops("0x5b5959525f56").await;
    assert_eq!((&error["code"], &error["message"]), (&json!(-32000), &json!("out of gas")));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_call_themselves_without_end_are_stopped() {
    // JUMPDEST CALL(GAS, ADDRESS, 0, …) POP PUSH0 JUMP
    let error = stops("0x5b5f5f5f5f5f305af1505f56").await;
    assert!([json!(-32000), json!(-32016)].contains(&error["code"]), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn contracts_that_create_themselves_without_end_are_stopped() {
    // JUMPDEST CODECOPY(0, 0, CODESIZE) CREATE(0, 0, CODESIZE) POP PUSH0 JUMP
    let error = stops("0x5b385f5f39385f5ff0505f56").await;
    assert!([json!(-32000), json!(-32016)].contains(&error["code"]), "{error}");
}

// Generated input.

fn hex_text() -> impl Strategy<Value = String> {
    prop_oneof![
        "0x[0-9a-f]{0,70}",
        "0x[0-9a-f]{40}",
        "0x[1-9a-f][0-9a-f]{0,15}",
        Just(CODE_AT.to_owned()),
        Just("pending".to_owned()),
        Just("latest".to_owned()),
    ]
}

fn key() -> impl Strategy<Value = String> {
    const NAMES: &str = "to from gas gasPrice value data input nonce code balance state stateDiff calls blockStateCalls \
        stateOverrides blockOverrides number time gasLimit validation traceTransfers jsonrpc id method params \
        blockHash accessList";
    let names: Vec<&str> = NAMES.split(' ').collect();
    prop_oneof![4 => prop::sample::select(names).prop_map(str::to_owned), 1 => hex_text(), 1 => ".{0,8}"]
}

/// Generates any JSON, with the words of requests.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        hex_text().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            vec((key(), inner), 0..6).prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn method() -> impl Strategy<Value = &'static str> {
    const METHODS: &str = "eth_call eth_simulateV1 eth_estimateGas eth_createAccessList eth_callBundle mev_simBundle eth_callMany \
        debug_traceCall debug_traceCallMany eth_getCode eth_getStorageAt eth_getStorageValues eth_getProof \
        eth_getBlockByNumber eth_getTransactionByBlockNumberAndIndex eth_getLogs eth_feeHistory \
        eth_sendRawTransaction eth_sendRawTransactionSync eth_sendTransaction eth_subscribe wallet_sendCalls \
        wallet_getCallsStatus wallet_showCallsStatus wallet_getCapabilities eth_chainId presim_snapshot rpc.discover \
        eth_nothing";
    prop::sample::select(METHODS.split(' ').collect::<Vec<_>>())
}

fn valid_request() -> impl Strategy<Value = Value> {
    let call = json!({"from": CODE_AT, "to": CODE_AT, "gas": "0x186a0", "value": "0x0", "data": "0x00112233", "nonce": "0x0",
        "accessList": [{"address": CODE_AT, "storageKeys": [format!("0x{:064x}", 1)]}]});
    let state = json!({CODE_AT: {"code": "0x60016000526020600060ff", "balance": "0xff", "nonce": "0x1", "stateDiff": {format!("0x{:064x}", 1): format!("0x{:064x}", 2)}}});
    let block = json!({"number": "0x3", "time": "0x7fffffff", "gasLimit": "0x989680", "feeRecipient": CODE_AT, "baseFeePerGas": "0x7"});
    let bundle = json!({"blockStateCalls": [{"calls": [call, call], "stateOverrides": state, "blockOverrides": block}, {"calls": [call]}],
        "validation": false, "traceTransfers": true, "returnFullTransactions": true});
    let signed = json!({"txs": [SIGNED], "blockNumber": "0x1", "stateBlockNumber": "pending", "timestamp": 0x7fff_ffff, "coinbase": CODE_AT,
        "gasLimit": "0x989680", "baseFee": "0x7", "timeout": 100});
    let shared = json!({"version": "v0.1", "inclusion": {"block": "0x1", "maxBlock": "0xff"}, "body": [{"tx": SIGNED, "canRevert": true}],
        "validity": {"refund": [{"bodyIdx": 0, "percent": 50}], "refundConfig": [{"address": CODE_AT, "percent": 100}]}});
    let bundles = json!([{"transactions": [call, call], "blockOverride": block}, {"transactions": [call]}]);
    let context = json!({"blockNumber": "pending", "transactionIndex": 0});
    let trace = json!({"tracer": "muxTracer", "tracerConfig": {"callTracer": {"withLog": true}, "flatCallTracer": {}, "prestateTracer": {"diffMode": true}},
        "stateOverrides": state, "blockOverrides": block, "txIndex": "0x0", "timeout": "1m0.5s"});
    let batch = |id: &str, atomic: bool| {
        let limit =
            json!({"gasLimitOverride": {"value": "0x186a0"}, "other": {"optional": true, "url": ["a", {"b": 1.5}]}});
        json!({"version": "2.0.0", "id": id, "from": ACCOUNT, "chainId": "0x7a69", "atomicRequired": atomic,
            "calls": [{"to": CODE_AT, "value": "0x1", "data": "0x00112233", "capabilities": limit}, {"to": ACCOUNT, "value": "0x0"}],
            "capabilities": {"atomic": {}, "other": {"optional": true}}})
    };
    let requests = [
        ("eth_call", json!([call, "pending", state, block])),
        ("eth_simulateV1", json!([bundle, "pending"])),
        ("eth_estimateGas", json!([call, "pending", state, block])),
        ("eth_createAccessList", json!([call, "pending", state, block])),
        ("eth_callBundle", json!([signed])),
        ("mev_simBundle", json!([shared, {"parentBlock": "pending", "coinbase": CODE_AT, "timeout": 100}])),
        ("eth_callMany", json!([bundles, context, state, 100])),
        ("debug_traceCall", json!([call, "pending", trace])),
        ("debug_traceCallMany", json!([bundles, context, {"enableMemory": true, "limit": 3, "timeout": "1s"}])),
        ("eth_getCode", json!([CODE_AT, {"blockNumber": "0x0"}])),
        ("eth_getStorageAt", json!([CODE_AT, "0x0", "pending"])),
        ("eth_getProof", json!([CODE_AT, ["0x0", format!("0x{:064x}", 1)], "latest"])),
        ("eth_getBlockByNumber", json!(["pending", true])),
        ("eth_getLogs", json!([{"fromBlock": "earliest", "toBlock": "pending", "address": [CODE_AT], "topics": [null, [format!("0x{:064x}", 1)]]}])),
        ("eth_feeHistory", json!(["0x4", "pending", [0, 50.5, 100]])),
        ("eth_sendRawTransaction", json!([SIGNED])),
        ("eth_sendRawTransactionSync", json!([SIGNED, 1])),
        ("eth_sendTransaction", json!([call])),
        ("wallet_sendCalls", json!([batch("one", false)])),
        ("wallet_sendCalls", json!([batch("two", true)])),
        ("wallet_getCallsStatus", json!(["one"])),
        ("wallet_showCallsStatus", json!(["two"])),
        ("wallet_getCapabilities", json!([ACCOUNT, ["0x7a69", "0x1"]])),
        ("eth_chainId", json!([])),
    ]
    .map(|(method, params)| request(1, method, params));
    let batch = Value::from(requests.to_vec());
    prop_oneof![4 => prop::sample::select(requests.to_vec()), 1 => Just(batch)]
}

/// Replaces the value to which the `steps` lead by `new`.
fn replace(at: &mut Value, steps: &[prop::sample::Index], new: Value) {
    match (steps.split_first(), at) {
        (Some((step, rest)), Value::Array(items)) if !items.is_empty() => {
            let index = step.index(items.len());
            replace(&mut items[index], rest, new);
        }
        (Some((step, rest)), Value::Object(members)) if !members.is_empty() => {
            let index = step.index(members.len());
            replace(members.values_mut().nth(index).expect("the index is below the length"), rest, new);
        }
        (_, at) => *at = new,
    }
}

/// Generates bodies: any JSON, requests with any parameters, and valid requests with changed values or bytes.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let bytes = |value: Value| value.to_string().into_bytes();
    prop_oneof![
        any_json().prop_map(bytes),
        (method(), any_json(), any_json()).prop_map(move |(method, id, params)| bytes(
            json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        )),
        (method(), vec(any_json(), 0..4)).prop_map(move |(method, params)| bytes(request(1, method, json!(params)))),
        (valid_request(), vec(any::<prop::sample::Index>(), 0..7), any_json()).prop_map(
            move |(mut request, steps, new)| {
                replace(&mut request, &steps, new);
                bytes(request)
            }
        ),
        (valid_request(), vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..6)).prop_map(
            move |(request, changes)| {
                let mut body = bytes(request);
                for (place, byte, kind) in changes {
                    let place = place.index(body.len());
                    match kind {
                        0 => body[place] = byte,
                        1 => body.insert(place, byte),
                        _ if body.len() > 1 => drop(body.remove(place)),
                        _ => {}
                    }
                }
                body
            }
        ),
    ]
}

/// Sends a body to both dialects. The error describes what was wrong with an answer.
async fn is_answered(node: &TestNode, body: &[u8]) -> Result<(), String> {
    let sent: Option<Value> = serde_json::from_slice(body).ok();
    for path in ["/", "/standard"] {
        let (_, text) = node.post(path, body.to_vec()).await;
        let answer: Value = serde_json::from_str(&text).map_err(|error| format!("{path}: no JSON: {error}: {text}"))?;
        let wanted = sent.as_ref().and_then(Value::as_array).map(Vec::len).filter(|entries| *entries > 0);
        let answers = match (wanted, answer) {
            (Some(entries), Value::Array(answers)) if answers.len() == entries => answers,
            (Some(entries), other) => return Err(format!("{path}: no {entries} answers: {other}")),
            (None, single) => vec![single],
        };
        for answer in answers {
            if let Some(fault) = fault(&answer) {
                return Err(format!("{path}: {fault}: {answer}"));
            }
            if answer["error"]["code"] == -32603 {
                return Err(format!("{path}: an internal error: {answer}"));
            }
        }
    }
    let chain = node.call("/", "eth_chainId", json!([])).await;
    (chain["result"] == "0x7a69").then_some(()).ok_or_else(|| format!("eth_chainId afterwards: {chain}"))
}

#[test]
fn whatever_is_sent_is_answered_once_and_the_node_goes_on() {
    let io = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads");
    let node = TestNode::start(
        &[
            &["--traffic", "0", "--sub-block-ms", "60000", "--deadline-ms", "2000"][..],
            &["--max-sync-timeout-ms", "100"],
        ]
        .concat(),
    );
    let cases = Cases { cases: 256, max_shrink_iters: 200, failure_persistence: None, ..Cases::default() };
    let ran =
        TestRunner::new(cases).run(&body(), |body| io.block_on(is_answered(&node, &body)).map_err(TestCaseError::fail));
    match ran {
        Ok(()) => {}
        Err(TestError::Fail(reason, body)) => panic!("{reason}\nbody: {}", String::from_utf8_lossy(&body)),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_expected_is_said_in_words_of_json() {
    let node = TestNode::quiet();
    for (method, params, text) in [
        ("eth_callBundle", json!([null]), "params[0]: invalid type: null, expected an object"),
        ("eth_callMany", json!([[{"transactions": []}], "latest"]), "expected an object"),
        ("debug_traceCall", json!([{"to": CODE_AT}, "latest", "callTracer"]), "params[2]: "),
        ("eth_feeHistory", json!([3, "latest", ["a"]]), "params[2][0]: invalid type: string \"a\", expected a number"),
        (
            "eth_getProof",
            json!([CODE_AT, "0x0", "latest"]),
            "params[1]: invalid type: string \"0x0\", expected an array",
        ),
    ] {
        let error = node.error("/", method, params.clone()).await;
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(text) && !message.contains("struct"), "{method} {params}: {error}");
    }
}

/// A struct is an object on the wire: the order in which its fields are declared means nothing to a client.
#[tokio::test(flavor = "multi_thread")]
async fn an_array_in_the_place_of_an_object_is_refused() {
    let node = TestNode::quiet();
    let calls = json!([{ "calls": [{ "to": ACCOUNT }] }]);
    let search = json!({ "blockStateCalls": calls, "vary": [["blocks[0].calls[0].value"]], "objective": "gasUsed" });
    for (method, payload, place) in [
        ("presim_simulate", json!([calls]), "params[0]"),
        ("presim_simulate", json!({ "blockStateCalls": [[{}]] }), "params[0].blockStateCalls[0]"),
        ("presim_simulate", json!({ "blockStateCalls": calls, "when": [[0, 0, "any"]] }), "params[0].when[0]"),
        ("presim_search", search, "params[0].vary[0]"),
        ("presim_watch", json!([["a"]]), "params[0][0]"),
        ("eth_sendBundle", json!([[SIGNED]]), "params[0]"),
        ("eth_call", json!([ACCOUNT]), "params[0]"),
    ] {
        for path in ["/", "/standard"] {
            let error = node.error(path, method, json!([payload, "pending"])).await;
            let expected = format!("{place}: invalid type: sequence, expected an object");
            assert_eq!((&error["code"], &error["message"]), (&json!(-32602), &json!(expected)), "{path} {method}");
        }
    }
}

#[test]
fn an_array_in_the_place_of_an_object_of_a_genesis_is_refused() {
    let genesis = serde_json::to_value(dev_genesis(&dev_signers().unwrap(), 1_000)).unwrap();
    let mut account = genesis.clone();
    let first = account["alloc"].as_object_mut().unwrap().values_mut().next().unwrap();
    *first = json!([null, "0x1"]);
    let whole = json!([genesis["config"], genesis["alloc"], genesis["gasLimit"], genesis["difficulty"]]);
    for wrong in [account, whole] {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), wrong.to_string()).unwrap();
        let error = TestNode::refusal(&["--genesis", file.path().to_str().unwrap()]);
        assert!(error.contains("invalid type: sequence, expected an object"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_are_named_in_the_words_of_the_protocol() {
    let node = TestNode::quiet();
    let search = |path: &str| {
        let vary = json!([{ "path": path, "values": [1] }]);
        let calls = json!([{ "calls": [{ "to": ACCOUNT }] }, {}]);
        json!([{ "blockStateCalls": calls, "vary": vary, "objective": "gasUsed" }, "latest"])
    };
    let share = |percent: u64| {
        let validity = json!({ "refund": [{ "bodyIdx": 0, "percent": percent }] });
        json!([{ "version": "v0.1", "inclusion": { "block": "0x1" }, "body": [{ "tx": SIGNED }], "validity": validity }])
    };
    for (method, params, expected) in [
        ("presim_results", json!([1, "0x0"]), "expected 16 bytes: 0x and 32 hex digits"),
        ("mev_simBundle", share(300), "expected a whole number from 0 to 255"),
        ("eth_sendBundle", json!([]), "expected 1 parameter: the bundle"),
        ("eth_cancelBundle", json!([]), "expected 1 parameter: an object with the replacementUuid"),
        ("eth_sendRawTransaction", json!([]), "expected 1 parameter: a signed transaction"),
        ("presim_search", search("blocks[2].calls[0].value"), "expected a block, from 0 to 1"),
        ("presim_search", search("blocks[0].calls[1].value"), "expected a call of the block, from 0 to 0"),
        ("presim_search", search("blocks[1].calls[0].value"), "expected a call of the block, but there is none"),
    ] {
        let error = node.error("/", method, params).await;
        assert!(error["message"].as_str().unwrap().ends_with(expected), "{method}: {error}");
    }
    for body in ["null", "7", "\"text\""] {
        let answer = refused(&node, body).await;
        assert_eq!(
            answer["error"]["message"], "invalid request: expected an object with jsonrpc \"2.0\", an id and a method",
            "{body}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_type_of_a_call_is_a_quantity_and_on_standard_an_integer_too() {
    let node = TestNode::quiet();
    let with_type = |kind: Value| json!({"from": ACCOUNT, "to": CODE_AT, "type": kind});
    let requests = |call: &Value| {
        [
            ("eth_call", json!([call, "latest"])),
            ("eth_estimateGas", json!([call])),
            ("eth_createAccessList", json!([call])),
            ("eth_simulateV1", json!([{"blockStateCalls": [{"calls": [call]}]}, "latest"])),
            ("eth_callMany", json!([[{"transactions": [call]}], {"blockNumber": "latest"}])),
            ("debug_traceCall", json!([call, "latest"])),
        ]
    };
    for kind in [json!("0x2"), json!(2), json!(0)] {
        for (method, params) in requests(&with_type(kind.clone())) {
            node.result("/standard", method, params.clone()).await;
            let answer = node.call("/", method, params).await;
            if kind.is_string() {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
            } else {
                let message = answer["error"]["message"].as_str().unwrap_or_default();
                assert_eq!(answer["error"]["code"], -32602, "{method}: {answer}");
                assert!(message.contains(".type: ") || message.contains("].type"), "{method}: {message}");
                assert!(message.contains("expected a quantity"), "{method}: {message}");
            }
        }
    }
    for kind in [json!("2"), json!("0x"), json!(-1), json!(2.5), json!(true), json!([2])] {
        for path in ["/", "/standard"] {
            let error = node.error(path, "eth_call", json!([with_type(kind.clone()), "latest"])).await;
            assert_eq!(error["code"], -32602, "{kind}: {error}");
        }
    }
}
