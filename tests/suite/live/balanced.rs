//! An upstream that is several nodes behind one address, which do not have the same newest block.

use serde_json::json;

use super::{
    built::{Built, ETHEREUM, SOMEBODY, transfer},
    start,
};
use crate::{support::TestNode, upstream::BalancedUpstream};

/// The words with which nodes say that they do not have a block yet. Where there are none, the answer is `null`.
const WORDS: [Option<(i64, &str)>; 10] = [
    None,
    Some((-32000, "header not found")),
    Some((-32000, "Unknown block")),
    Some((-39001, "Unknown block")),
    Some((-32000, "missing trie node 5d1c (path ) state 0x5d1c is not available")),
    Some((-32000, "World state unavailable")),
    Some((-32000, "block number is out of range")),
    Some((-32602, "invalid params: block is out of range")),
    Some((-32001, "Resource not found")),
    Some((-32000, "block not found: hash 0x5d1c")),
];

/// Requests to the upstream that are waited for after each block.
const REQUESTS: usize = 12;

/// Checks that nothing is wrong with a node.
async fn is_well(node: &TestNode) {
    for path in ["/health", "/ready"] {
        let answer = node.client.get(node.url(path)).send().await.expect("it answers");
        let (status, text) = (answer.status(), answer.text().await.expect("a text"));
        assert_eq!(status, 200, "{path}: {text}");
    }
}

/// A replica that is behind is no fault, whatever it says.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_are_up_to_two_blocks_apart_are_no_fault() {
    let first = Built::ethereum();
    let upstream = BalancedUpstream::start(ETHEREUM, first.block.clone()).await;
    let node = start(&upstream.url(), &first.config, &[]).await;
    let (mut newest, mut nonce) = (first, 0);
    for words in WORDS {
        upstream.answer_unknown(words);
        for _ in 0..4 {
            newest = newest.next(vec![transfer(ETHEREUM, nonce, 1)], 1);
            nonce += 1;
            upstream.push(newest.block.clone());
            let enough = upstream.requests() + REQUESTS;
            while node.node.snapshots().load().head().hash() != newest.hash() || upstream.requests() < enough {
                is_well(&node).await;
            }
            // The state of the block is the newest, too.
            let balance = node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await;
            assert_eq!(balance, json!(newest.balance(SOMEBODY)), "{words:?}");
        }
    }
    assert!(upstream.behind() > WORDS.len(), "{} calls reached a replica that is behind", upstream.behind());
    let executed = node.metric("presim_upstream_blocks_total{outcome=\"executed\"}");
    assert_eq!(executed, nonce as f64, "each block is executed");
    assert_eq!(node.metric("presim_reorgs_total"), 0.0);
    assert_eq!(node.metric("presim_feed_fallbacks_total{reason=\"upstream\"}"), 0.0);
}
