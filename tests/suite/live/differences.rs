//! Pre-confirmed blocks that are not what the chain does: each counts once, and a base that contradicts the parent is found.

use std::time::Duration;

use alloy_primitives::{B256, U256};
use op_alloy::rpc_types_engine::OpFlashblockPayloadBase;
use presim::testing::ledger::FeedProblem;

use super::{
    built::{Built, CHASES, OP_CHAIN, transfer},
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

/// Sends the first sub-block of a block on `parent`, whose base `lie` changes, and returns the difference that is found.
async fn difference(parent: &Built, follows: bool, lie: impl Fn(&mut OpFlashblockPayloadBase)) -> Option<[String; 3]> {
    let stage = stage(&[]).await;
    let next = match follows {
        false => stage.first.next(vec![transfer(OP_CHAIN, 0, 5)], 1),
        true => {
            stage.upstream.push(parent.block.clone());
            head(&stage.node, parent.hash()).await;
            parent.next(vec![transfer(OP_CHAIN, 1, 5)], 1)
        }
    };
    let mut told = next.flashblocks(&[2]).remove(0);
    lie(told.base.as_mut().expect("a base"));
    stage.server.send(&told);
    until(&stage.node, "judged", |published| {
        published.newest.open.is_some() || published.feed().problem() == Some(FeedProblem::Mismatch)
    })
    .await;
    let known = stage.node.node.snapshots().divergences.newest_first();
    known.first().map(|known| [known.field.clone(), known.computed.clone(), known.announced.clone()])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_base_that_does_not_follow_from_the_parent_is_a_divergence() {
    let parent = Built::op_stack().next(vec![transfer(OP_CHAIN, 0, 5)], 1);
    let fee = parent.next(Vec::new(), 1).header().base_fee_per_gas.expect("a base fee");
    let other = U256::from(fee + 1);
    let higher = |base: &mut OpFlashblockPayloadBase| base.base_fee_per_gas = other;
    let expected = Some(["base_fee_per_gas".to_owned(), fee.to_string(), other.to_string()]);
    assert_eq!(difference(&parent, true, higher).await, expected);
    assert_eq!(difference(&parent, true, |_| {}).await, None);
    // Nothing shows that the chain keeps the rule before a canonical block has been followed.
    assert_eq!(difference(&parent, false, higher).await, None);
    let before = Built::op_stack().header().timestamp;
    let found = difference(&parent, false, |base| base.timestamp = before).await.expect("a difference");
    assert_eq!((found[0].as_str(), &found[2]), ("timestamp", &before.to_string()));
}
