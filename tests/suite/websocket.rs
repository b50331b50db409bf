//! The WebSocket endpoint: the same answers as over HTTP, its own limits, and how connections end.

use serde_json::json;
use tokio_tungstenite::{connect_async, tungstenite::Error};

use crate::support::{BOUND, CODE_AT, ONE_WORKER, PATHS, Socket, TestNode, chain_id, endless_bundle, request};

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_answered_as_over_http() {
    let node = TestNode::quiet();
    let weth = node.node.info().trading.expect("the devnet trades").weth;
    let calls = [
        ("eth_chainId", json!([])),
        ("eth_getCode", json!([weth, "pending"])),
        ("eth_call", json!([{"to": CODE_AT}, "pending", {CODE_AT: {"code": "0x600160005260206000f3"}}])),
        // The code of its error is that of the path's dialect.
        ("eth_call", json!([{"to": CODE_AT}, "pending", {CODE_AT: {"code": "0x5f5ffd"}}])),
        ("eth_simulateV1", json!([{"blockStateCalls": [{"calls": [{"to": CODE_AT}]}]}, "pending"])),
        ("eth_call", json!([{"to": CODE_AT, "foo": 1}, "pending"])),
        ("eth_call", json!({})),
        ("eth_nothing", json!([])),
    ];
    let mut messages: Vec<_> = calls.map(|(method, params)| request(1, method, params)).into();
    messages.push(json!([
        request(7, "eth_simulateV1", json!([{"blockStateCalls": [{}]}, "pending"])),
        request(8, "eth_nothing", json!([])),
        {"jsonrpc": "2.0", "method": "eth_chainId", "params": []},
        5,
        request(9, "eth_chainId", json!([])),
    ]));
    for path in PATHS {
        let mut socket = Socket::open(&node, path).await;
        for message in &messages {
            assert_eq!(socket.send(message.to_string()).await, node.send(path, message).await, "{path} {message}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_is_none_is_not_upgraded() {
    let node = TestNode::quiet();
    let refused = connect_async(format!("ws://{}/nothing", node.at())).await;
    match refused {
        Err(Error::Http(response)) => assert_eq!(response.status().as_u16(), 404),
        other => panic!("{other:?}"),
    }
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
    let node = TestNode::quiet_with(&ONE_WORKER);
    let mut socket = Socket::open(&node, "/").await;
    socket.write(request(2, "eth_simulateV1", endless_bundle()).to_string()).await.expect("it takes a message");
    let first = socket.send(chain_id()).await;
    assert_eq!(first["id"], 1, "the short one does not wait for the bundle: {first}");
}

/// Two of the three requests that may be under way last for ever. Only when the third one ends is the next message read.
#[tokio::test(flavor = "multi_thread")]
async fn more_than_may_be_under_way_waits_unread() {
    let node = TestNode::quiet_with(&[&ONE_WORKER[2..], &["--workers", "3", "--max-ws-in-flight", "3"]].concat());
    let mut socket = Socket::open(&node, "/").await;
    let bundles = json!([{"transactions": [{"to": CODE_AT, "gas": "0x38d7ea4c68000"}]}]);
    let ends = json!([bundles, {"blockNumber": "latest"}, {CODE_AT: {"code": "0x5b600056"}}, 1_000]);
    for message in [
        request(2, "eth_simulateV1", endless_bundle()),
        request(3, "eth_simulateV1", endless_bundle()),
        request(4, "eth_callMany", ends),
        request(5, "eth_chainId", json!([])),
    ] {
        socket.write(message.to_string()).await.expect("it takes a message");
    }
    let ended = socket.read().await.expect("an answer");
    assert_eq!((&ended["id"], &ended["error"]["code"]), (&json!(4), &json!(-32016)), "{ended}");
    let next = socket.read().await.expect("an answer");
    assert_eq!((&next["id"], &next["result"]), (&json!(5), &json!("0x7a69")), "{next}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_the_node_closes_its_sockets() {
    let node = TestNode::quiet();
    let mut sockets = Vec::new();
    for path in PATHS {
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
