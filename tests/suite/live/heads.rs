//! Upstreams that announce blocks which are only pre-confirmed, and whose hashes no block ever has.

use alloy_primitives::B256;
use presim::testing::ledger::FeedProblem;
use serde_json::{Value, json};

use super::{
    built::{Built, OP_CHAIN, transfer},
    feed, head, health, serve,
    stage::chain_of,
    start,
};
use crate::process::eventually;

/// Returns the announcement of a block that is only pre-confirmed.
fn pre_confirmed(number: u64, salt: u8) -> Value {
    json!({"number": format!("{number:#x}"), "hash": B256::repeat_byte(salt)})
}

#[tokio::test(flavor = "multi_thread")]
async fn announcements_of_pre_confirmed_blocks_degrade_nothing_and_the_head_moves() {
    let first = Built::op_stack();
    let upstream = serve(&[&first]).await;
    // Polling alone would find no block in time.
    let node = start(&upstream.ws_url(), &first.config, &["--upstream-poll-ms", "60000"]).await;
    eventually("it subscribes", async || (upstream.subscribers() > 0).then_some(())).await;
    let blocks = chain_of(&first, 5, |at| vec![transfer(OP_CHAIN, at as u64, 1)]);
    let mut salt = 1;
    for block in &blocks {
        upstream.change(|chain| chain.put(block.block.clone()));
        for _ in 0..3 {
            salt += 1;
            upstream.announce(pre_confirmed(block.number() + 1, salt));
        }
        head(&node, block.hash()).await;
        let (status, document, _) = health(&node).await;
        assert_eq!((status, &document["feed"]), (200, &json!("live")), "{document}");
    }
    for problem in FeedProblem::ALL {
        let name = format!("presim_feed_fallbacks_total{{reason=\"{}\"}}", problem.as_str());
        assert_eq!(node.metric(&name), 0.0, "{problem:?}");
    }
    assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"executed\"}"), 5.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hash_that_no_block_has_is_not_asked_for_ever_and_the_newest_block_is_polled_beside() {
    let first = Built::op_stack();
    let upstream = serve(&[&first]).await;
    let node = start(&upstream.ws_url(), &first.config, &["--upstream-late-ms", "0"]).await;
    eventually("it subscribes", async || (upstream.subscribers() > 0).then_some(())).await;
    let announced = pre_confirmed(first.number() + 1, 0xee);
    let by_hash = format!("eth_getBlockByHash {}", announced["hash"].as_str().expect("a hash"));
    upstream.announce(announced);
    upstream.is_asked(&by_hash, 1).await;
    // The subscription tells nothing of the next blocks.
    let blocks = chain_of(&first, 2, |at| vec![transfer(OP_CHAIN, at as u64, 1)]);
    for block in &blocks {
        upstream.change(|chain| chain.put(block.block.clone()));
        head(&node, block.hash()).await;
    }
    assert_eq!(upstream.asked(&by_hash), 1);
    assert_eq!(health(&node).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_of_another_branch_at_the_same_height_is_followed_once_the_node_that_answers_has_it() {
    let first = Built::op_stack();
    let upstream = serve(&[&first]).await;
    let node = start(&upstream.ws_url(), &first.config, &["--upstream-poll-ms", "60000"]).await;
    eventually("it subscribes", async || (upstream.subscribers() > 0).then_some(())).await;
    let one = first.next(vec![transfer(OP_CHAIN, 0, 1)], 1);
    upstream.push(one.block.clone());
    head(&node, one.hash()).await;
    // One node of the upstream announces a block that the one which answers does not have yet.
    let other = first.next(vec![transfer(OP_CHAIN, 0, 2)], 2);
    let latest = upstream.asked("eth_getBlockByNumber latest");
    upstream.announce(json!({"number": format!("{:#x}", other.number()), "hash": other.hash()}));
    upstream.is_asked("eth_getBlockByNumber latest", latest + 1).await;
    upstream.change(|chain| chain.put(other.block.clone()));
    head(&node, other.hash()).await;
    // The new branch's blocks are shown one by one, and the feed is live again after the last of them.
    feed(&node, None).await;
    assert_eq!(health(&node).await.0, 200);
}
