//! The manners of nodes and their providers: strict ones, ones with limits, and ones that ask for a pause.

use serde_json::json;

use super::{
    built::{Built, ETHEREUM, SOMEBODY, STORE, transfer},
    feed, head, serve, start,
};
use crate::{
    support::{TestNode, hex},
    upstream::{Manner, SmallUpstream},
};
use std::time::Duration;

use alloy_primitives::Address;
use presim::state::FeedProblem;

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
