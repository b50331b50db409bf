//! Sub-blocks that are late: each is applied, and the feed says how far it lags.

use std::time::Duration;

use alloy_primitives::{Address, U256};
use op_alloy::rpc_types_engine::OpFlashblockPayload;
use presim::testing::ledger::FeedProblem;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::{
    built::{Built, CHASES, ETHEREUM, OP_CHAIN, SOMEBODY, transfer},
    feed, head, health,
    stage::{EVERY, LiveStage, busy, chain_of, chases, launch, serve},
    until, with_usual,
};
use crate::{
    process::eventually,
    support::{BOUND, TestNode},
    upstream::{Fault, SmallUpstream, UpstreamChain},
};

/// Starts a stage on the chain of the OP stack.
pub async fn stage(flags: &[&str]) -> LiveStage {
    LiveStage::new(Built::op_stack(), SmallUpstream::url, &with_usual(flags)).await
}

/// Waits until the newest snapshot is this sub-block.
async fn reaches(stage: &LiveStage, block: &Built, index: u32) {
    until(&stage.node, "the sub-block", |published| {
        let newest = &published.newest;
        newest.open.is_some() && (newest.header().number, newest.index()) == (block.number(), index)
    })
    .await;
}

/// One transaction a sub-block, the deposit beside the first.
const SINGLE: [usize; 5] = [2, 1, 1, 1, 1];

#[tokio::test(flavor = "multi_thread")]
async fn sub_blocks_whose_state_takes_several_round_trips_are_all_applied() {
    for (contract, _) in CHASES {
        for ms in [5, 50] {
            let stage = stage(&[]).await;
            stage.upstream.delay(Duration::from_millis(ms));
            let blocks = chases(&stage.first, contract, SINGLE.len(), 2);
            stage.play(&blocks, &SINGLE, EVERY).await;
            stage.never_fell();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn canonical_blocks_that_come_slowly_hold_up_no_sub_block() {
    for ms in [500, 1_500] {
        let stage = stage(&[]).await;
        let blocks = chases(&stage.first, CHASES[0].0, SINGLE.len(), 4);
        stage.upstream.slow("eth_getBlockByHash", Duration::from_millis(ms));
        stage.play(&blocks, &SINGLE, EVERY).await;
        stage.never_fell();
        stage.upstream.push(blocks[3].block.clone());
        head(&stage.node, blocks[3].hash()).await;
        assert_eq!(stage.node.metric("presim_preconfirmed_total{outcome=\"canonical\"}"), 4.0);
    }
}

/// A server that sends nothing for a while, and then all at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_stream_costs_nothing_when_it_goes_on() {
    let stage = stage(&[]).await;
    let blocks = chases(&stage.first, CHASES[0].0, SINGLE.len(), 3);
    stage.play(&blocks[..1], &SINGLE, EVERY).await;
    stage.server.stall(true);
    for payload in blocks[1].flashblocks(&SINGLE) {
        stage.server.send(&payload);
    }
    // The chain goes on meanwhile.
    stage.upstream.push(blocks[0].block.clone());
    head(&stage.node, blocks[0].hash()).await;
    assert_eq!(stage.applied(), 5.0);
    stage.server.stall(false);
    reaches(&stage, &blocks[1], 4).await;
    stage.play(&blocks[2..], &SINGLE, EVERY).await;
    assert_eq!(stage.applied(), 15.0);
    stage.never_fell();
}

/// A stall that outlasts its bound costs the sub-blocks that it has held back, and the rest of their block.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_silent_too_long_is_followed_again_from_the_next_block() {
    let stage = stage(&["--flashblocks-silent-ms", "1000"]).await;
    let blocks = chases(&stage.first, CHASES[0].0, SINGLE.len(), 2);
    let payloads = blocks[0].flashblocks(&SINGLE);
    stage.server.send(&payloads[0]);
    until(&stage.node, "the first", |published| published.newest.open.is_some()).await;
    stage.server.stall(true);
    payloads[1..].iter().for_each(|payload| stage.server.send(payload));
    feed(&stage.node, Some(FeedProblem::Silent)).await;
    stage.server.stall(false);
    stage.upstream.push(blocks[0].block.clone());
    head(&stage.node, blocks[0].hash()).await;
    // The next block alone is counted.
    assert_eq!(stage.applied(), 1.0);
    stage.play(&blocks[1..], &SINGLE, EVERY).await;
    assert_eq!(stage.applied(), 6.0);
}

/// An upstream that stops to answer holds sub-blocks back, and loses none.
#[tokio::test(flavor = "multi_thread")]
async fn sub_blocks_whose_state_comes_after_a_stall_are_all_applied() {
    let stage = stage(&[]).await;
    let blocks = chases(&stage.first, CHASES[1].0, SINGLE.len(), 3);
    stage.play(&blocks[..1], &SINGLE, EVERY).await;
    stage.upstream.fail(Fault::Silence, usize::MAX);
    for payload in blocks[1..].iter().flat_map(|block| block.flashblocks(&SINGLE)) {
        stage.server.send(&payload);
    }
    until(&stage.node, "late", |published| published.feed().lag().is_some_and(|lag| lag.waiting == 10)).await;
    assert_eq!(stage.applied(), 5.0);
    stage.upstream.well();
    reaches(&stage, &blocks[2], 4).await;
    assert_eq!(stage.applied(), 15.0);
    stage.never_fell();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_lags_and_catches_up_costs_no_sub_block() {
    let stage = stage(&[]).await;
    let blocks = chases(&stage.first, CHASES[0].0, SINGLE.len(), 4);
    let sent: Vec<_> = blocks.iter().flat_map(|block| block.flashblocks(&SINGLE)).collect();
    for payload in &sent {
        stage.server.send(payload);
    }
    reaches(&stage, &blocks[3], 4).await;
    assert_eq!(stage.node.node.snapshots().load().head().number(), stage.first.number());
    for block in &blocks {
        stage.upstream.push(block.block.clone());
    }
    head(&stage.node, blocks[3].hash()).await;
    stage.never_fell();
    assert_eq!(stage.applied(), sent.len() as f64);
    assert_eq!(stage.node.metric("presim_preconfirmed_total{outcome=\"canonical\"}"), 4.0);
}

/// Each block is begun by one builder and started again by the other, whose block it is in the end.
#[tokio::test(flavor = "multi_thread")]
async fn builders_that_alternate_are_followed_at_each_change() {
    let stage = stage(&[]).await;
    let mut blocks: Vec<Built> = Vec::new();
    let mut sent = 0;
    for at in 0..6 {
        let on = blocks.last().unwrap_or(&stage.first);
        let given_up = on.next(vec![transfer(OP_CHAIN, at, 7), transfer(OP_CHAIN, at + 1, 7)], 1);
        let kept = on.next(vec![transfer(OP_CHAIN, at, 5)], 2);
        let payloads = [given_up.flashblocks(&[2, 1]), kept.flashblocks(&[1, 1])].concat();
        for payload in &payloads {
            stage.server.send(payload);
            sent += 1;
            let subs = f64::from(sent);
            until(&stage.node, "applied", |_| stage.applied() == subs).await;
        }
        let paid = 5 * (at + 1);
        let balance = stage.node.result("/", "eth_getBalance", json!([SOMEBODY, "pending"])).await;
        assert_eq!(balance, json!(format!("{paid:#x}")));
        stage.upstream.push(kept.block.clone());
        head(&stage.node, kept.hash()).await;
        blocks.push(kept);
    }
    stage.never_fell();
    let count = |outcome| stage.node.metric(&format!("presim_preconfirmed_total{{outcome=\"{outcome}\"}}"));
    assert_eq!((count("canonical"), count("restarted")), (6.0, 6.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_that_is_late_says_how_late_and_serves_the_newest_there_is() {
    let stage = stage(&[]).await;
    let blocks = chases(&stage.first, CHASES[2].0, SINGLE.len(), 1);
    let payloads = blocks[0].flashblocks(&SINGLE);
    stage.server.send(&payloads[0]);
    let number = blocks[0].number();
    until(&stage.node, "the first", |published| published.newest.header().number == number).await;
    // The state that the next sub-blocks read never comes.
    stage.upstream.delay(BOUND * 4);
    stage.server.send(&payloads[1]);
    stage.server.send(&payloads[2]);
    until(&stage.node, "late", |published| published.feed().lag().is_some_and(|lag| lag.waiting == 2)).await;
    let (status, document, freshness) = health(&stage.node).await;
    let place = format!("block={number}, index=0, ");
    assert!(freshness.contains(&place) && freshness.contains(", feed=lagging, lag_ms="), "{freshness}");
    assert!(freshness.contains(", lag_sub_blocks=2, verified=full"), "{freshness}");
    assert!(status == 200 || document["ageMs"].as_u64() > Some(1_000), "{document}");
    assert_eq!((&document["lagSubBlocks"], &document["lagCause"]), (&json!(2), &json!("upstream")), "{document}");
    let told = stage.node.result("/", "presim_snapshot", json!([])).await;
    assert_eq!(
        (&told["feed"], &told["reason"], &told["lagSubBlocks"]),
        (&json!("lagging"), &json!("upstream"), &json!(2))
    );
    assert!(told["lagMs"].as_u64() >= Some(200), "{told}");
    assert_eq!(stage.node.metric("presim_feed_state{state=\"lagging\"}"), 1.0);
    // The gauges follow within a tenth of a second.
    let shown = async {
        let mut clock = tokio::time::interval(Duration::from_millis(20));
        while stage.node.metric("presim_feed_lag_sub_blocks") != 2.0 {
            clock.tick().await;
        }
    };
    tokio::time::timeout(BOUND, shown).await.expect("the gauges show it in time");
    assert!(stage.node.metric("presim_feed_lag_seconds") > 0.1);
    let block = stage.node.block("pending").await;
    assert_eq!(block["number"], json!(format!("{number:#x}")));
    // The canonical block does not wait for ever.
    stage.upstream.well();
    stage.upstream.push(blocks[0].block.clone());
    head(&stage.node, blocks[0].hash()).await;
    feed(&stage.node, None).await;
    stage.never_fell();
}

/// An upstream that answers for another chain must not look like a reorg.
#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_of_another_chain_is_an_error_that_is_shown() {
    let stage = stage(&[]).await;
    let next = stage.first.next(vec![transfer(OP_CHAIN, 0, 5)], 1);
    let payloads = next.flashblocks(&[2]);
    stage.server.send(&payloads[0]);
    until(&stage.node, "the first", |published| published.newest.open.is_some()).await;
    let other = Built::ethereum();
    let others = [other.next(vec![], 7), other.next(vec![], 7).next(vec![], 8)];
    stage.upstream.lie(|method, _, result| if method == "eth_chainId" { json!("0x7ab7") } else { result });
    stage.upstream.change(|chain| *chain = UpstreamChain::new(others.iter().map(|one| one.block.clone()).collect()));
    feed(&stage.node, Some(FeedProblem::OtherChain)).await;
    let (status, document, _) = health(&stage.node).await;
    assert_eq!((status, &document["cause"]), (503, &json!("other_chain")), "{document}");
    assert_eq!(stage.node.metric("presim_reorgs_total"), 0.0);
    // The sub-blocks of its own chain are not followed meanwhile, because their state cannot be asked for.
    stage.server.send(&payloads[0]);
    assert_eq!(stage.applied(), 1.0);
    let balance = stage.node.result("/", "eth_getBalance", json!([SOMEBODY, "pending"])).await;
    assert_eq!(balance, "0x0");
    // The upstream comes back.
    stage.upstream.well();
    let (first, one) = (stage.first.block.clone(), next.block.clone());
    stage.upstream.change(|chain| *chain = UpstreamChain::new(vec![first]));
    stage.upstream.push(one);
    head(&stage.node, next.hash()).await;
    let balance = stage.node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await;
    assert_eq!(balance, "0x5");
    // All sub-blocks of the next block are applied.
    let after = next.next(vec![transfer(OP_CHAIN, 1, 6), transfer(OP_CHAIN, 2, 7)], 1);
    stage.play(&[after], &[2, 1], EVERY).await;
    assert_eq!(stage.applied(), 3.0);
    let balance = stage.node.result("/", "eth_getBalance", json!([SOMEBODY, "pending"])).await;
    assert_eq!(balance, "0x12");
}

/// A client may pin its requests to a sub-block, whatever becomes of the block, as long as the chain has it.
#[tokio::test(flavor = "multi_thread")]
async fn the_snapshots_of_a_block_stay_when_it_is_complete_and_when_it_is_canonical() {
    let stage = stage(&[]).await;
    let one = stage.first.next(vec![transfer(OP_CHAIN, 0, 5), transfer(OP_CHAIN, 1, 6)], 1);
    let two = one.next(vec![transfer(OP_CHAIN, 2, 7), transfer(OP_CHAIN, 3, 8)], 1);
    let mut pinned = Vec::new();
    let mut balance = 0;
    for (block, values) in [(&one, [5, 6]), (&two, [7, 8])] {
        for (index, (payload, value)) in block.flashblocks(&[2, 1]).iter().zip(values).enumerate() {
            stage.server.send(payload);
            reaches(&stage, block, index as u32).await;
            balance += value;
            pinned.push((stage.node.node.snapshots().newest().id, balance));
        }
    }
    let as_they_were = async || {
        for (id, balance) in &pinned {
            let state = json!({"snapshotId": format!("{:#x}", id.0)});
            let told = stage.node.result("/", "eth_getBalance", json!([SOMEBODY, state])).await;
            assert_eq!(told, format!("{balance:#x}"), "{id:?}");
        }
    };
    as_they_were().await;
    for block in [&one, &two] {
        stage.upstream.push(block.block.clone());
        head(&stage.node, block.hash()).await;
        as_they_were().await;
    }
    stage.never_fell();
}

/// Whether the other chain is shorter, or continues the block that is known: neither is a gap or a reorg.
#[tokio::test(flavor = "multi_thread")]
async fn a_shorter_chain_and_one_of_the_same_genesis_are_other_chains_too() {
    const OTHER: u64 = ETHEREUM + 1;
    let first = Built::ethereum();
    let one = first.next(vec![], 1);
    let same_genesis = Built::ethereum_with(OTHER);
    assert_eq!(same_genesis.hash(), first.hash());
    let continued = same_genesis.next(vec![transfer(OTHER, 0, 5)], 1);
    let cases: [(&str, &[&Built], Vec<Built>); 2] = [
        ("shorter", &[&first, &one], vec![Built::op_stack()]),
        ("continued", &[&first], vec![same_genesis, continued]),
    ];
    for (name, own, others) in cases {
        let upstream = serve(own).await;
        let node = launch(&upstream.url(), Some(&first.config), &with_usual(&[])).await.expect("it starts");
        let head_before = node.node.snapshots().load().head().hash();
        upstream.lie(|method, _, result| if method == "eth_chainId" { json!(format!("{OTHER:#x}")) } else { result });
        upstream.change(|chain| *chain = UpstreamChain::new(others.iter().map(|one| one.block.clone()).collect()));
        feed(&node, Some(FeedProblem::OtherChain)).await;
        let published = node.node.snapshots().load();
        assert_eq!(published.head().hash(), head_before, "{name}");
        assert_eq!(node.metric("presim_reorgs_total"), 0.0, "{name}");
    }
}

/// The node behind an address may become another one between two blocks. The chain id comes with each block.
#[tokio::test(flavor = "multi_thread")]
async fn no_block_of_another_chain_is_taken_even_right_after_one_of_its_own() {
    let first = Built::ethereum();
    let (one, two) = (first.next(vec![], 1), first.next(vec![], 1).next(vec![], 2));
    let upstream = serve(&[&first]).await;
    let node = launch(&upstream.ws_url(), Some(&first.config), &[]).await.expect("it starts");
    upstream.push(one.block.clone());
    head(&node, one.hash()).await;
    upstream.lie(|method, _, result| if method == "eth_chainId" { json!("0x3e7") } else { result });
    upstream.push(two.block.clone());
    feed(&node, Some(FeedProblem::OtherChain)).await;
    assert_eq!(node.node.snapshots().load().head().hash(), one.hash());
    upstream.well();
    head(&node, two.hash()).await;
    feed(&node, None).await;
}

/// Without `--verify-proofs` a header is not hashed again, so that a fault of the upstream may show another number.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_whose_number_is_not_the_next_one_is_refused() {
    let first = Built::ethereum();
    let one = first.next(vec![], 1);
    for wrong in ["0x0", "0x5", "0xffffffffffffffff"] {
        let upstream = serve(&[&first]).await;
        let node = launch(&upstream.ws_url(), Some(&first.config), &[]).await.expect("it starts");
        upstream.lie(move |method, _, mut result| {
            if method == "eth_getBlockByHash" {
                result["number"] = json!(wrong);
            }
            result
        });
        upstream.push(one.block.clone());
        feed(&node, Some(FeedProblem::Mismatch)).await;
        assert_eq!(node.node.snapshots().load().head().hash(), first.hash(), "{wrong}");
        upstream.well();
        head(&node, one.hash()).await;
        feed(&node, None).await;
    }
}

/// The state that a block reads takes long to come. Meanwhile the blocks after it are announced.
#[tokio::test(flavor = "multi_thread")]
async fn announced_blocks_are_fetched_while_the_one_before_is_executed() {
    let first = Built::op_stack();
    let upstream = serve(&[&first]).await;
    let flags = with_usual(&["--upstream-timeout-ms", "60000"]);
    let node = launch(&upstream.ws_url(), Some(&first.config), &flags).await.expect("it starts");
    feed(&node, None).await;
    let blocks = chases(&first, CHASES[0].0, 1, 4);
    let by_hash = "eth_getBlockByHash";
    let (before, reads) = (upstream.asked(by_hash), upstream.asked("eth_getStorageAt"));
    upstream.slow("eth_getStorageAt", Duration::from_secs(5));
    upstream.push(blocks[0].block.clone());
    upstream.is_asked("eth_getStorageAt", reads + 1).await;
    for (at, block) in blocks.iter().enumerate().skip(1) {
        upstream.push(block.block.clone());
        upstream.is_asked(by_hash, before + at + 1).await;
        assert_eq!(node.node.snapshots().load().head().hash(), first.hash(), "the first one is still executed");
    }
    upstream.slow("eth_getStorageAt", Duration::ZERO);
    head(&node, blocks[3].hash()).await;
    assert_eq!(upstream.asked(by_hash) - before, 4, "each block is asked for once");
    assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"executed\"}"), 4.0);
    feed(&node, None).await;
}

/// While a block is executed, another branch becomes canonical.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_that_is_announced_while_a_block_is_executed_is_followed() {
    let first = Built::op_stack();
    let upstream = serve(&[&first]).await;
    let flags = with_usual(&["--upstream-timeout-ms", "60000"]);
    let node = launch(&upstream.ws_url(), Some(&first.config), &flags).await.expect("it starts");
    feed(&node, None).await;
    let given_up = chases(&first, CHASES[0].0, 1, 1).remove(0);
    let kept = first.next(vec![transfer(OP_CHAIN, 0, 5)], 2);
    let after = kept.next(vec![transfer(OP_CHAIN, 1, 6)], 2);
    let (by_hash, reads) = (upstream.asked("eth_getBlockByHash"), upstream.asked("eth_getStorageAt"));
    upstream.slow("eth_getStorageAt", Duration::from_secs(2));
    upstream.push(given_up.block.clone());
    upstream.is_asked("eth_getStorageAt", reads + 1).await;
    upstream.reorganise(vec![kept.block.clone(), after.block.clone()]);
    upstream.is_asked("eth_getBlockByHash", by_hash + 2).await;
    upstream.slow("eth_getStorageAt", Duration::ZERO);
    head(&node, after.hash()).await;
    feed(&node, None).await;
    assert_eq!(node.metric("presim_reorgs_total"), 1.0);
    assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, "0xb");
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_were_missed_are_asked_for_side_by_side_and_the_feed_says_that_it_lags() {
    const MISSED: usize = 10;
    let first = Built::ethereum();
    let blocks = chain_of(&first, MISSED, |_| Vec::new());
    let upstream = serve(&[&first]).await;
    let node = launch(&upstream.ws_url(), Some(&first.config), &[]).await.expect("it starts");
    feed(&node, None).await;
    let (by_hash, by_number) = ("eth_getBlockByHash", "eth_getBlockByNumber");
    let before = (upstream.asked(by_hash), upstream.asked(by_number));
    // The lag is seen while the blocks between are fetched.
    upstream.slow(by_number, Duration::from_secs(1));
    upstream.change(|chain| {
        *chain = UpstreamChain::new(
            std::iter::once(&first).chain(&blocks[..MISSED - 1]).map(|one| one.block.clone()).collect(),
        )
    });
    upstream.push(blocks[MISSED - 1].block.clone());
    until(&node, "late", |published| published.feed().lag().is_some_and(|lag| lag.waiting > 2)).await;
    head(&node, blocks[MISSED - 1].hash()).await;
    feed(&node, None).await;
    assert_eq!(upstream.asked(by_hash) - before.0, 1, "the newest block alone is asked for by its hash");
    // The tags and the newest block are asked for by number, too.
    assert!(upstream.asked(by_number) - before.1 >= MISSED - 1);
}

/// A builder may leave out roots, hashes, bloom and gas.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_tells_no_roots_stays_live_across_canonical_blocks() {
    let stage = stage(&[]).await;
    let blocks = chases(&stage.first, CHASES[0].0, SINGLE.len(), 3);
    for block in &blocks {
        for mut payload in block.untold(&SINGLE) {
            (payload.diff.state_root, payload.diff.block_hash) = Default::default();
            stage.server.send(&payload);
        }
        reaches(&stage, block, 4).await;
        stage.upstream.push(block.block.clone());
        head(&stage.node, block.hash()).await;
    }
    stage.never_fell();
    assert_eq!(stage.node.metric("presim_preconfirmed_total{outcome=\"canonical\"}"), 3.0);
}

/// Some builders leave out fields, write the index in hexadecimal, and say when a block is complete.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_in_the_shape_of_another_builder_is_followed() {
    let stage = stage(&[]).await;
    let blocks = chases(&stage.first, CHASES[0].0, SINGLE.len(), 2);
    for block in &blocks {
        let payloads = block.flashblocks(&SINGLE);
        for payload in &payloads {
            let mut json = serde_json::to_value(payload).expect("JSON");
            json["index"] = json!(format!("{:#x}", payload.index));
            for field in ["withdrawals", "withdrawals_root", "receipts_root"] {
                json["diff"].as_object_mut().expect("an object").remove(field);
            }
            stage.server.send_json(&json);
        }
        stage.server.send_json(&json!({"payload_id": payloads[0].payload_id, "end": true}));
        reaches(&stage, block, 4).await;
        assert_eq!(stage.node.node.snapshots().newest().verified.as_str(), "partial", "gas and bloom are compared");
        stage.upstream.push(block.block.clone());
        head(&stage.node, block.hash()).await;
    }
    stage.never_fell();
    assert_eq!(stage.applied(), 10.0);
    assert_eq!(stage.node.metric("presim_flashblocks_total{outcome=\"unreadable\"}"), 0.0);
    assert_eq!(stage.node.metric("presim_preconfirmed_total{outcome=\"canonical\"}"), 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_cut_and_does_not_come_back_is_given_up() {
    let stage = stage(&["--flashblocks-silent-ms", "1000"]).await;
    let next = stage.first.next(vec![transfer(OP_CHAIN, 0, 5)], 1);
    stage.server.send(&next.flashblocks(&[1, 1])[0]);
    until(&stage.node, "the first", |published| published.newest.open.is_some()).await;
    stage.server.refuse(true);
    stage.server.drop_connections();
    until(&stage.node, "late", |published| {
        published.feed().lag().is_some_and(|lag| lag.cause == FeedProblem::Disconnected)
            && published.newest.open.is_some()
    })
    .await;
    feed(&stage.node, Some(FeedProblem::Disconnected)).await;
    until(&stage.node, "canonical", |published| published.newest.open.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn junk_in_the_middle_costs_nothing_but_itself() {
    let stage = stage(&[]).await;
    let blocks = chases(&stage.first, CHASES[0].0, SINGLE.len(), 2);
    for block in &blocks {
        for payload in block.flashblocks(&SINGLE) {
            stage.server.send_message(Message::binary(vec![0xff; 40]));
            stage.server.send(&payload);
            stage.server.send_message(Message::text("{\"type\":\"keepalive\"}"));
        }
    }
    reaches(&stage, &blocks[1], 4).await;
    stage.never_fell();
    assert_eq!(stage.node.metric("presim_flashblocks_total{outcome=\"unreadable\"}"), 20.0);
    assert_eq!(stage.applied(), 10.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_builder_tells_is_checked_at_each_sub_block_and_said() {
    let stage = stage(&[]).await;
    let blocks = chases(&stage.first, CHASES[0].0, SINGLE.len(), 1);
    let number = blocks[0].number();
    let (told, untold) = (blocks[0].flashblocks(&SINGLE), blocks[0].untold(&SINGLE));
    let gas_only = |index: usize| {
        let mut payload: OpFlashblockPayload = untold[index].clone();
        payload.diff.gas_used = told[index].diff.gas_used;
        payload.metadata.new_account_balances.clear();
        payload
    };
    let with_metadata = |index: usize, metadata: Value| {
        let mut json = serde_json::to_value(&untold[index]).expect("JSON");
        json["metadata"] = metadata;
        json
    };
    let steps = [
        (json!(told[0]), "full"),
        (json!(gas_only(1)), "partial"),
        (with_metadata(2, json!({"receipts": {}, "new_account_balances": {}})), "none"),
        (json!(told[3]), "full"),
    ];
    for (index, (payload, expected)) in steps.into_iter().enumerate() {
        stage.server.send_json(&payload);
        reaches(&stage, &blocks[0], index as u32).await;
        let (_, _, freshness) = health(&stage.node).await;
        assert!(freshness.ends_with(&format!("verified={expected}")), "{index}: {freshness}");
        let told = stage.node.result("/", "presim_snapshot", json!([])).await;
        assert_eq!(told["verified"], expected, "{index}");
    }
    let mut lie = told[4].clone();
    lie.diff.receipts_root = told[3].diff.receipts_root;
    stage.server.send(&lie);
    feed(&stage.node, Some(FeedProblem::Mismatch)).await;
    let known = stage.node.node.snapshots().divergences.newest_first();
    assert_eq!(
        (known.len(), known[0].block, known[0].index, known[0].field.as_str()),
        (1, number, Some(4), "receipts_root")
    );
    assert_eq!(known[0].announced, lie.diff.receipts_root.to_string());
    assert_eq!(known[0].computed, told[4].diff.receipts_root.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canonical_block_with_other_transactions_is_a_divergence() {
    let stage = stage(&[]).await;
    let own = stage.first.next(vec![transfer(OP_CHAIN, 0, 5), transfer(OP_CHAIN, 1, 6)], 1);
    let other = stage.first.next(vec![transfer(OP_CHAIN, 0, 5), transfer(OP_CHAIN, 1, 7)], 1);
    stage.server.send(&own.flashblocks(&[3])[0]);
    until(&stage.node, "applied", |published| published.newest.open.is_some()).await;
    stage.upstream.push(other.block.clone());
    head(&stage.node, other.hash()).await;
    let known = stage.node.node.snapshots().divergences.newest_first();
    assert_eq!((known.len(), known[0].block, known[0].index), (1, own.number(), None));
    assert_eq!((known[0].field.as_str(), known[0].transaction), ("transactions[2]", Some(own.tx_hash(2))));
    assert_eq!(known[0].announced, other.tx_hash(2).to_string());
    assert_eq!(stage.node.metric("presim_preconfirmed_total{outcome=\"replaced\"}"), 1.0);
    assert_eq!(stage.node.result("/", "eth_getBalance", json!([SOMEBODY, "pending"])).await, "0xc");
}

#[tokio::test(flavor = "multi_thread")]
async fn busy_sub_blocks_are_applied_in_order() {
    // Built before the server runs, which has to answer pings meanwhile.
    let blocks = busy(&Built::op_stack(), 4, 2);
    let stage = stage(&[]).await;
    stage.play(&blocks, &[101, 100, 100, 100], EVERY).await;
    stage.never_fell();
    let recipient = Address::repeat_byte(0x20);
    let balance = stage.node.result("/", "eth_getBalance", json!([recipient, "pending"])).await;
    assert_eq!(balance, json!(blocks.last().expect("a block").balance(recipient)));
    assert!(blocks.last().expect("a block").balance(recipient) > U256::ZERO);
}

/// A block becomes canonical with more transactions than have come of it, and takes long to be executed. The builder goes on
/// with the block after it meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_built_on_a_beginning_of_a_block_that_is_canonical_as_a_whole() {
    let stage = stage(&["--upstream-timeout-ms", "60000"]).await;
    let blocks = chases(&stage.first, CHASES[0].0, 3, 2);
    let [one, two] = [&blocks[0], &blocks[1]].map(|block| block.flashblocks(&[2, 1, 1]));
    stage.server.send(&one[0]);
    reaches(&stage, &blocks[0], 0).await;
    let reads = stage.upstream.asked("eth_getStorageAt");
    stage.upstream.slow("eth_getStorageAt", Duration::from_secs(2));
    stage.upstream.push(blocks[0].block.clone());
    stage.upstream.is_asked("eth_getStorageAt", reads + 1).await;
    two.iter().for_each(|payload| stage.server.send(payload));
    head(&stage.node, blocks[0].hash()).await;
    stage.upstream.slow("eth_getStorageAt", Duration::ZERO);
    reaches(&stage, &blocks[1], 2).await;
    stage.upstream.push(blocks[1].block.clone());
    head(&stage.node, blocks[1].hash()).await;
    stage.never_fell();
    assert!(stage.node.node.snapshots().divergences.newest_first().is_empty());
    let count = |outcome| stage.node.metric(&format!("presim_preconfirmed_total{{outcome=\"{outcome}\"}}"));
    assert_eq!((count("overtaken"), count("canonical")), (1.0, 1.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_verified_no_further_than_the_pre_confirmed_blocks_below_it() {
    let stage = stage(&[]).await;
    let blocks = chases(&stage.first, CHASES[0].0, 1, 3);
    let mut partial = blocks[0].untold(&[2])[0].clone();
    partial.diff.gas_used = blocks[0].flashblocks(&[2])[0].diff.gas_used;
    let payloads = [partial, blocks[1].flashblocks(&[2]).remove(0), blocks[2].flashblocks(&[2]).remove(0)];
    let told = async |block: &Built, expected: &str| {
        until(&stage.node, "applied", |published| published.newest.header().number == block.number()).await;
        let told = stage.node.result("/", "presim_snapshot", json!([])).await;
        assert_eq!(told["verified"], expected, "block {}", block.number());
    };
    for (block, payload) in blocks.iter().zip(&payloads) {
        stage.server.send(payload);
        told(block, "partial").await;
    }
}

/// Returns the seconds from the timestamp of a block to now.
fn seconds_since(block: &Built) -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    now.as_secs() - block.header().timestamp
}

/// Returns the status of `/ready`, and the document.
async fn ready(node: &TestNode) -> (u16, Value) {
    let answer = node.client.get(node.url("/ready")).send().await.expect("it answers");
    (answer.status().as_u16(), answer.json().await.expect("JSON"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_newest_block_is_too_old_is_not_ready() {
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    let tolerant = launch(&upstream.url(), Some(&first.config), &with_usual(&[])).await.expect("it starts");
    let flags = with_usual(&["--ready-lag-ms", "3600000"]);
    let strict = launch(&upstream.url(), Some(&first.config), &flags).await.expect("it starts");
    assert_eq!(ready(&tolerant).await.0, 200);
    let (status, document) = ready(&strict).await;
    assert_eq!((status, &document["cause"]), (503, &json!("lagging")), "{document}");
    let reason = document["reason"].as_str().expect("a reason");
    assert!(reason.contains("canonical block, 0") && reason.contains("--ready-lag-ms"), "{reason}");
    let newest = first.next_after(seconds_since(&first), Vec::new(), 1);
    upstream.push(newest.block.clone());
    head(&strict, newest.hash()).await;
    let (status, document) = ready(&strict).await;
    assert_eq!(status, 200, "{document}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_feed_is_too_late_is_not_ready_until_it_has_caught_up() {
    let stage = stage(&["--ready-lag-ms", "500"]).await;
    // The timestamps of its blocks are in the future, so that they are not old.
    let ahead = stage.first.next_after(seconds_since(&stage.first) + 86_400, Vec::new(), 1);
    stage.upstream.push(ahead.block.clone());
    head(&stage.node, ahead.hash()).await;
    let blocks = chases(&ahead, CHASES[0].0, 1, 2);
    stage.server.send(&blocks[0].flashblocks(&[2])[0]);
    until(&stage.node, "applied", |published| published.newest.open.is_some()).await;
    assert_eq!(ready(&stage.node).await.0, 200);
    stage.upstream.fail(Fault::Silence, usize::MAX);
    stage.server.send(&blocks[1].flashblocks(&[2])[0]);
    let reason = eventually("it is too late", async || {
        let (status, document) = ready(&stage.node).await;
        (status == 503).then(|| document["reason"].as_str().expect("a reason").to_owned())
    });
    let reason = reason.await;
    assert!(reason.starts_with("the feed is ") && reason.contains("--ready-lag-ms"), "{reason}");
    stage.upstream.well();
    eventually("it has caught up", async || (ready(&stage.node).await.0 == 200).then_some(())).await;
    stage.never_fell();
}
