//! Pre-confirmed blocks that are not what the chain does: each counts once.

use std::time::Duration;

use alloy_primitives::B256;
use presim::state::FeedProblem;

use super::{
    built::{CHASES, OP_CHAIN, transfer},
    feed, head,
    late::stage,
    stage::chases,
    until,
};
use crate::support::TestNode;

/// Returns the number of pre-confirmed blocks of each fate.
fn fates(node: &TestNode) -> [f64; 5] {
    ["canonical", "overtaken", "restarted", "replaced", "dropped"]
        .map(|fate| node.metric(&format!("presim_preconfirmed_total{{outcome=\"{fate}\"}}")))
}

/// The transactions and receipts are those of the canonical block, and its randomness is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_is_not_what_it_was_pre_confirmed_as_counts_once() {
    let stage = stage(&[]).await;
    let own = stage.first.next(vec![transfer(OP_CHAIN, 0, 5)], 1);
    let next = own.next(vec![transfer(OP_CHAIN, 1, 6)], 1);
    let mut told = own.flashblocks(&[2]).remove(0);
    told.base.as_mut().expect("a base").prev_randao = B256::repeat_byte(9);
    stage.server.send(&told);
    stage.server.send(&next.flashblocks(&[1, 1])[0]);
    until(&stage.node, "both", |published| published.newest.header().number == next.number()).await;
    stage.upstream.push(own.block.clone());
    head(&stage.node, own.hash()).await;
    assert_eq!(fates(&stage.node), [0.0, 0.0, 0.0, 0.0, 2.0]);
}

/// The canonical block has more than the sub-blocks that have come. While it is executed, the stream breaks.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_was_overtaken_is_not_counted_as_dropped_too() {
    let stage = stage(&["--upstream-timeout-ms", "60000"]).await;
    let block = chases(&stage.first, CHASES[0].0, 2, 1).remove(0);
    let payloads = block.flashblocks(&[1, 1, 1]);
    stage.server.send(&payloads[0]);
    until(&stage.node, "the first", |published| published.newest.open.is_some()).await;
    let reads = stage.upstream.asked("eth_getStorageAt");
    stage.upstream.slow("eth_getStorageAt", Duration::from_secs(2));
    stage.upstream.push(block.block.clone());
    stage.upstream.is_asked("eth_getStorageAt", reads + 1).await;
    stage.server.send(&block.next(vec![transfer(OP_CHAIN, 2, 1)], 1).flashblocks(&[1, 1])[1]);
    feed(&stage.node, Some(FeedProblem::Gap)).await;
    head(&stage.node, block.hash()).await;
    assert_eq!(fates(&stage.node), [0.0, 1.0, 0.0, 0.0, 0.0]);
}
