//! The manners of nodes and their providers: strict ones, ones with limits, and ones that ask for a pause.

use std::time::Duration;

use alloy_primitives::{Address, B256};
use presim::testing::ledger::FeedProblem;
use serde_json::{Value, json};

use super::{
    built::{Built, ETHEREUM, SOMEBODY, STORE, transfer},
    feed, head, serve, start,
};
use crate::{
    process::eventually,
    support::{BOUND, TestNode, hex},
    upstream::{Fault, Manner, SmallUpstream},
};

/// Starts an upstream with these manners, and a node that follows it over HTTP or over a WebSocket.
async fn pair(manners: &[Manner], is_socket: bool, flags: &[&str]) -> (SmallUpstream, TestNode, Built) {
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    manners.iter().for_each(|manner| upstream.has(*manner));
    let url = if is_socket { upstream.ws_url() } else { upstream.url() };
    let node = start(&url, &first.config, flags).await;
    (upstream, node, first)
}

/// Checks that a node follows the upstream to a block after `last`, and fetches state there. Returns the block.
async fn follows(upstream: &SmallUpstream, node: &TestNode, last: &Built, nonce: u64) -> Built {
    let next = last.next(vec![transfer(ETHEREUM, nonce, 7)], 1);
    upstream.push(next.block.clone());
    head(node, next.hash()).await;
    let balance = node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await;
    assert_eq!(balance, json!(next.balance(SOMEBODY)));
    next
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_keeps_to_json_rpc_2_is_followed() {
    for is_socket in [false, true] {
        let (upstream, node, first) = pair(&[Manner::Strict], is_socket, &[]).await;
        follows(&upstream, &node, &first, 0).await;
        assert!(upstream.asked("eth_chainId") > 0 && upstream.asked("eth_config") > 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_is_null_beside_a_result_is_none() {
    for is_socket in [false, true] {
        let (upstream, node, first) = pair(&[Manner::NullErrors], is_socket, &[]).await;
        follows(&upstream, &node, &first, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_size_of_batches_that_a_node_accepts_is_learned() {
    for (most, status) in [(16, 200), (7, 400), (7, 413), (1, 200), (1, 413)] {
        let (upstream, node, _) = pair(&[Manner::SmallBatches(most, status)], false, &[]).await;
        let slots = async |from: u64| {
            let slots: Vec<_> = (from..from + 40).map(hex).collect();
            let answer = node.result("/", "eth_getStorageValues", json!([{STORE.to_string(): slots}, "latest"])).await;
            assert_eq!(answer.as_object().and_then(|all| all.values().next()?.as_array()).map(Vec::len), Some(40));
        };
        slots(0).await;
        let rejected = upstream.rejected();
        assert!(rejected > 0, "{most} {status}");
        slots(1_000).await;
        slots(2_000).await;
        assert_eq!(upstream.rejected(), rejected, "{most} {status}: the size is remembered");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_a_node_asks_for_holds_up_all_requests() {
    let (upstream, node, first) = pair(&[], false, &[]).await;
    upstream.pause("1", Duration::from_secs(1));
    let balance = node.result("/", "eth_getBalance", json!([Address::repeat_byte(0x99), "latest"])).await;
    assert_eq!(balance, "0x0");
    // The polls of the newest block and of the tags, and the request, may have been under way together.
    let hasty = upstream.hasty();
    assert!((1..=6).contains(&hasty), "{hasty} requests came during the pause");
    follows(&upstream, &node, &first, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_request_is_too_much_for_a_node_gets_its_error_and_holds_up_nobody() {
    let (upstream, node, first) = pair(&[], false, &[]).await;
    upstream.refuse("eth_getTransactionByHash", Some((-32005, "limit exceeded")));
    let error = node.error("/", "eth_getTransactionByHash", json!([B256::repeat_byte(7)])).await;
    assert_eq!((&error["code"], &error["message"]), (&json!(-32005), &json!("limit exceeded")));
    assert_eq!(upstream.asked("eth_getTransactionByHash"), 1, "it is not sent again");
    follows(&upstream, &node, &first, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_without_end_is_bounded_and_ends_nothing() {
    let (upstream, node, _) = pair(&[], false, &[]).await;
    upstream.pause("18446744073709551615", Duration::from_secs(3_600));
    // The task that follows the newest block goes on: it has found out that nothing is answered.
    feed(&node, Some(FeedProblem::Upstream)).await;
    assert_eq!(node.metric("presim_upstream_state"), 0.0);
    assert!(upstream.hasty() <= 6, "{} requests came during the pause", upstream.hasty());
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_answers_are_accepted() {
    let (upstream, node, first) = pair(&[Manner::Compressed], false, &[]).await;
    follows(&upstream, &node, &first, 0).await;
    assert!(upstream.compressed() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_that_a_node_does_not_have_is_asked_for_once_a_connection() {
    let (upstream, node, first) = pair(&[Manner::NoSubscriptions], true, &[]).await;
    let one = follows(&upstream, &node, &first, 0).await;
    let poll = "eth_getBlockByNumber latest";
    upstream.is_asked(poll, upstream.asked(poll) + 10).await;
    assert_eq!(upstream.asked("eth_subscribe"), 1);
    upstream.go_away();
    feed(&node, Some(FeedProblem::Upstream)).await;
    upstream.come_back().await;
    follows(&upstream, &node, &one, 1).await;
    upstream.is_asked(poll, upstream.asked(poll) + 10).await;
    assert_eq!(upstream.asked("eth_subscribe"), upstream.connections());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_that_falls_silent_is_replaced() {
    let (upstream, node, first) = pair(&[], true, &["--upstream-timeout-ms", "500"]).await;
    let one = follows(&upstream, &node, &first, 0).await;
    assert_eq!(upstream.connections(), 1);
    upstream.fail(Fault::Silence, usize::MAX);
    eventually("another connection", async || (upstream.connections() > 1).then_some(())).await;
    upstream.well();
    follows(&upstream, &node, &one, 1).await;
}

/// An upstream that answers what is no JSON is asked more and more seldom.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_bring_nothing_usable_are_made_more_and_more_seldom() {
    let (upstream, node, first) = pair(&[], true, &[]).await;
    let before = upstream.connections();
    upstream.fail(Fault::Garbage, usize::MAX);
    eventually("several connections", async || (upstream.connections() >= before + 16).then_some(())).await;
    let connected = upstream.connected_at();
    let gaps: Vec<Duration> = connected[before - 1..].windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps[1..].iter().all(|gap| *gap >= Duration::from_millis(240)), "{gaps:?}");
    assert!(gaps[gaps.len() - 1] > Duration::from_millis(400), "{gaps:?}");
    upstream.well();
    follows(&upstream, &node, &first, 0).await;
}

/// Two answers that are too large together, and one that is too large alone.
#[tokio::test(flavor = "multi_thread")]
async fn the_answers_of_an_upstream_are_bounded_together() {
    let flags = ["--upstream-answers-mb", "1", "--forward", "big_*", "--upstream-poll-ms", "60000"];
    let patient = ["--deadline-ms", "30000", "--upstream-timeout-ms", "30000"];
    let (upstream, node, _) = pair(&[], false, &[flags.as_slice(), &patient].concat()).await;
    upstream.script(|method, _| match method {
        "big_one" => Some(Ok(json!("1".repeat(700 << 10)))),
        "big_two" => Some(Ok(json!("2".repeat(2 << 20)))),
        _ => None,
    });
    let is_cut = |answer: &Value| {
        let text = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(answer["error"]["code"] == -32603 && text.contains("--upstream-answers-mb"), "{text}");
    };
    is_cut(&node.call("/", "big_two", json!([])).await);
    upstream.withhold(true);
    let one = node.call("/", "big_one", json!([]));
    let other = node.call("/", "big_one", json!([]));
    let (one, other) = (std::pin::pin!(one), std::pin::pin!(other));
    let first = tokio::time::timeout(BOUND, futures::future::select(one, other)).await.expect("one is cut off in time");
    let (cut, rest) = first.factor_first();
    is_cut(&cut);
    upstream.withhold(false);
    let answer = rest.await;
    assert_eq!(answer["result"].as_str().map(str::len), Some(700 << 10), "{}", answer["error"]);
}
