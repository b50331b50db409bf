//! An upstream's chain that is published, under faults: reorgs, broken streams, failing leaders, and a stream that stops.

use std::{
    collections::BTreeMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use async_nats::jetstream::{self, stream};
use presim::testing::ledger::{FeedProblem, FeedState, SnapshotId};
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use super::{
    advance,
    live::{follow, head, ingester, live_reads, publishing, replica, same},
    reach,
    server::NatsServer,
    until,
};
use crate::{
    live::{
        built::{Built, CHASES, ETHEREUM, OP_CHAIN, SOMEBODY, chase, store, transfer},
        stage::{EVERY, LiveStage, chain_of, chases, genesis_of, serve},
        with_usual,
    },
    process::{Presim, file, text},
    support::{BOUND, TestNode, hex, request, say},
    upstream::{FlashblocksServer, SmallUpstream},
};

/// One transaction a sub-block, the deposit beside the first.
const SINGLE: [usize; 5] = [2, 1, 1, 1, 1];

/// The states that ids have meant on any node.
#[derive(Default)]
struct Meanings(Mutex<BTreeMap<u64, String>>);

impl Meanings {
    /// Notes what the retained ids of a node mean, which must be what they have meant before.
    fn note(&self, node: &TestNode) {
        let mut known = self.0.lock().expect("no thread panics with it");
        for snapshot in node.node.snapshots().load().snapshots_after(SnapshotId::default()) {
            let open = snapshot.open.as_ref().map(|open| (open.index, open.receipts_root_and_bloom()));
            let means = format!("{} {open:?} {:?}", snapshot.head_hash(), snapshot.verified);
            let before = known.entry(snapshot.id.0).or_insert_with(|| means.clone());
            assert_eq!(*before, means, "{:#x} means two things", snapshot.id.0);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reorg_is_followed_by_replicas_and_the_dead_branch_is_answered_nowhere() {
    let Some(server) = NatsServer::start() else { return };
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    let leader = ingester(&server, &upstream.url(), &first.config, &[]).await;
    let old = replica(&server, &[]);
    let meanings = Meanings::default();
    let trunk = branch(&first, 2, 5, 1);
    let dead = branch(&trunk[1], 2, 7, 1);
    for block in trunk.iter().chain(&dead) {
        upstream.push(block.block.clone());
        head(&leader, block.hash()).await;
    }
    // This one knows the newest block alone.
    let young = replica(&server, &[]);
    let nodes = [&leader, &old, &young];
    let gone = same(&nodes).await;
    nodes.iter().for_each(|node| meanings.note(node));
    let live = branch(&trunk[1], 3, 11, 2);
    upstream.reorganise(live.iter().map(|block| block.block.clone()).collect());
    head(&leader, live[2].hash()).await;
    same(&nodes).await;
    nodes.iter().for_each(|node| meanings.note(node));
    for node in nodes {
        let at = json!([SOMEBODY, { "snapshotId": hex(gone.0) }]);
        let error = node.error("/", "eth_getBalance", at).await;
        assert!(error["message"].as_str().is_some_and(|text| text.contains("not retained")), "{error}");
        assert_eq!(
            node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await,
            json!(live[2].balance(SOMEBODY))
        );
        assert!(node.result("/", "eth_getTransactionReceipt", json!([dead[1].tx_hash(0)])).await.is_null());
    }
}

/// Builds blocks of one transfer and one stored word each.
fn branch(on: &Built, count: usize, value: u64, salt: u8) -> Vec<Built> {
    let mut blocks: Vec<Built> = Vec::new();
    for _ in 0..count {
        let at = blocks.last().unwrap_or(on);
        let nonce = 2 * at.number();
        blocks.push(at.next(vec![transfer(ETHEREUM, nonce, value), store(ETHEREUM, nonce + 1, value)], salt));
    }
    blocks
}

/// Waits until `/health` of a node says that publishing is paused.
async fn paused(node: &TestNode) {
    until("publishing is paused", async || {
        let answer = node.client.get(node.url("/health")).timeout(BOUND).send().await.expect("it answers");
        let (status, health) = (answer.status(), answer.json::<serde_json::Value>().await.expect("JSON"));
        let reason = health["reason"].as_str().unwrap_or_default();
        status == 503 && health["cause"] == "stream" && reason.contains("publishing is paused")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_its_servers_is_unhealthy_also_while_there_is_nothing_to_publish() {
    let Some(mut server) = NatsServer::start() else { return };
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    let leader = ingester(&server, &upstream.url(), &first.config, &[]).await;
    let (before, asked) = (leader.node.snapshots().load().last, upstream.asked("eth_getBlockByHash"));
    server.kill();
    paused(&leader).await;
    assert_eq!(leader.node.snapshots().load().last, before, "it is no change of the chain");
    assert_eq!(upstream.asked("eth_getBlockByHash"), asked, "there was no block");
    server.restart();
    until("it publishes again", async || !leader.node.snapshots().load().feed().is_degraded()).await;
}

/// Asks a leader and a replica for all of what they show while the stream takes nothing and the upstream's chain becomes
/// `next` after the blocks of `trunk`.
async fn stays_answerable(trunk: usize, next: impl FnOnce(&[Built]) -> Vec<Built>) {
    let Some(mut server) = NatsServer::start() else { return };
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    let leader = ingester(&server, &upstream.url(), &first.config, &[]).await;
    let follower = replica(&server, &[]);
    let blocks = branch(&first, trunk, 5, 1);
    for block in &blocks {
        upstream.push(block.block.clone());
        head(&leader, block.hash()).await;
    }
    let nodes = [&leader, &follower];
    let shown = same(&nodes).await;
    let reads = live_reads(&leader, shown);
    let mut answers = Vec::new();
    for (method, params) in &reads {
        answers.push(leader.result("/", method, params.clone()).await);
    }
    server.kill();
    paused(&leader).await;
    let executed = || leader.metric("presim_upstream_blocks_total{outcome=\"executed\"}");
    let next = next(&blocks);
    let tip = next.last().expect("a block");
    let is_extended = next[0].number() > blocks.len() as u64;
    let before = executed();
    upstream.reorganise(next.iter().map(|block| block.block.clone()).collect());
    match is_extended {
        // Too many blocks to execute them: the newest is begun with again.
        true => upstream.is_asked(&format!("eth_getBlockReceipts {}", tip.hash()), 1).await,
        false => until("the branch is executed", async || executed() == before + next.len() as f64).await,
    }
    let before = executed();
    let last = branch(tip, 1, 17, 3).remove(0);
    upstream.push(last.block.clone());
    until("the block after it is executed", async || executed() == before + 1.0).await;
    assert_eq!(leader.node.snapshots().newest().id, shown);
    // State that was not known is fetched by the hash of the block that is shown.
    let head_hash = blocks.last().expect("a block").hash();
    let found = leader.result("/", "eth_call", json!([follow(900), "latest"])).await;
    assert_eq!(found, leader.result("/", "eth_call", json!([follow(900), head_hash])).await);
    upstream.change(|chain| chain.left.clear());
    for _ in 0..2 {
        for node in nodes {
            for ((method, params), expected) in reads.iter().zip(&answers) {
                let answer = node.call("/", method, params.clone()).await;
                assert_eq!(answer["result"], *expected, "{method} {params}: {answer}");
            }
        }
        let error = leader.call("/", "eth_call", json!([follow(901), "latest"])).await;
        if is_extended {
            assert!(error["result"].is_string(), "the upstream still has the block: {error}");
        } else {
            assert_eq!(error["error"]["code"], -32000, "{error}");
            let text = error["error"]["message"].as_str().expect("a message");
            assert!(text.contains(&head_hash.to_string()), "{text}");
        }
    }
    server.restart();
    for node in nodes {
        head(node, last.hash()).await;
    }
    same(&nodes).await;
    until("it is live", async || !leader.node.snapshots().load().feed().is_degraded()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_shown_stays_answerable_while_eight_blocks_are_reorganised_and_the_stream_takes_nothing() {
    stays_answerable(10, |blocks| branch(&blocks[1], 9, 11, 2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_shown_stays_answerable_while_the_state_begins_anew_and_the_stream_takes_nothing() {
    stays_answerable(2, |blocks| branch(&blocks[1], 70, 11, 2)).await;
}

/// Starts a stage whose node publishes.
async fn stage(server: &NatsServer, flags: &[&str]) -> LiveStage {
    let url = server.url();
    let all = [&publishing(&url), flags].concat();
    LiveStage::new(Built::op_stack(), SmallUpstream::url, &with_usual(&all)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fall_back_and_its_end_are_seen_by_replicas() {
    let Some(server) = NatsServer::start() else { return };
    let stage = stage(&server, &[]).await;
    let follower = replica(&server, &[]);
    let blocks = chases(&stage.first, CHASES[0].0, SINGLE.len(), 3);
    stage.play(&blocks[..1], &SINGLE, Duration::from_millis(20)).await;
    let nodes = [&stage.node, &follower];
    same(&nodes).await;
    // A sub-block is missing.
    let payloads = blocks[1].flashblocks(&SINGLE);
    stage.server.send(&payloads[0]);
    stage.server.send(&payloads[2]);
    let gap = FeedState::Degraded(FeedProblem::Gap);
    until("the gap", async || follower.node.snapshots().load().feed() == gap).await;
    assert!(follower.node.snapshots().load().pending().is_none());
    for block in &blocks[..2] {
        stage.upstream.push(block.block.clone());
        head(&stage.node, block.hash()).await;
    }
    same(&nodes).await;
    stage.play(&blocks[2..], &SINGLE, Duration::from_millis(20)).await;
    same(&nodes).await;
    until("the end of it", async || !follower.node.snapshots().load().feed().is_degraded()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_stream_takes_nothing_the_leader_reads_on_and_shows_nothing() {
    let Some(mut server) = NatsServer::start() else { return };
    let stage = stage(&server, &[]).await;
    let follower = replica(&server, &["--max-catch-up-ms", "5000"]);
    let blocks = chases(&stage.first, CHASES[0].0, SINGLE.len(), 3);
    stage.play(&blocks[..1], &SINGLE, Duration::from_millis(20)).await;
    let nodes = [&stage.node, &follower];
    let before = same(&nodes).await;
    server.kill();
    let applied = stage.applied();
    for (at, block) in blocks.iter().enumerate().skip(1) {
        block.flashblocks(&SINGLE).iter().for_each(|payload| stage.server.send(payload));
        stage.upstream.push(blocks[at - 1].block.clone());
    }
    let stopped = FeedState::Degraded(FeedProblem::Stream);
    until("the stream is missed", async || stage.node.node.snapshots().load().feed() == stopped).await;
    until("the leader reads on", async || stage.applied() >= applied + 10.0).await;
    assert_eq!(stage.node.node.snapshots().newest().id, before, "nobody has seen what the stream does not have");
    server.restart();
    let last = (blocks[2].number(), 4);
    for node in nodes {
        until("the last sub-block", async || {
            let newest = node.node.snapshots().newest();
            (newest.header().number, newest.index()) == last
        })
        .await;
    }
    same(&nodes).await;
    until("the feed is live", async || !stage.node.node.snapshots().load().feed().is_degraded()).await;
    stage.upstream.push(blocks[1].block.clone());
    stage.upstream.push(blocks[2].block.clone());
    head(&stage.node, blocks[2].hash()).await;
    same(&nodes).await;
}

/// Sends the sub-blocks of blocks at the pace of a builder. A block becomes canonical when the next one has begun.
async fn build(server: &FlashblocksServer, upstream: &SmallUpstream, blocks: &[Built]) {
    let mut clock = tokio::time::interval(EVERY);
    for (at, block) in blocks.iter().enumerate() {
        for (index, payload) in block.flashblocks(&SINGLE).iter().enumerate() {
            clock.tick().await;
            server.send(payload);
            if index == 1 && at > 0 {
                upstream.push(blocks[at - 1].block.clone());
            }
        }
    }
}

/// Checks that two nodes answer the same while the chain goes on. The snapshots of a block are retained until the next begins.
async fn same_meanwhile(one: &TestNode, other: &TestNode) {
    'again: loop {
        let id = one.node.snapshots().newest().id;
        reach(other, id).await;
        for (method, params) in live_reads(one, id) {
            let body = request(1, method, params.clone()).to_string();
            let answers = [one.post("/", body.clone()).await.1, other.post("/", body).await.1];
            if answers.iter().any(|answer| answer.contains("is not retained")) {
                continue 'again;
            }
            assert_eq!(answers[0], answers[1], "{method} {params}");
        }
        return;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_reads_the_same_source_takes_over_after_kill_9() {
    let Some(nats) = NatsServer::start() else { return };
    let first = Built::op_stack();
    let (upstream, server) = (serve(&[&first]).await, FlashblocksServer::start().await);
    let (url, endpoint, stream, genesis) =
        (nats.url(), upstream.url(), server.url(), file(&genesis_of(&first.config).to_string()));
    let flags = [
        &publishing(&url)[..],
        &["--upstream", &endpoint, "--flashblocks", &stream, "--genesis", text(genesis.path())],
        &["--keep-snapshots", "1000"],
    ]
    .concat();
    let flags = with_usual(&flags);
    let mut leader = tokio::task::block_in_place(|| Presim::start(&flags));
    let standby = super::start(&flags);
    server.connected(2).await;
    let watcher = replica(&nats, &["--keep-snapshots", "1000"]);
    let meanings = Meanings::default();
    let blocks = chain_of(&first, 12, |block| {
        let at = |sub: usize| (block * SINGLE.len() + sub) as u64;
        (0..SINGLE.len()).map(|sub| chase(0, OP_CHAIN, at(sub), CHASES[0].0, at(sub))).collect()
    });
    let building = build(&server, &upstream, &blocks);
    let watching = async {
        let last = advance(&watcher, 20).await;
        [&watcher, &standby].into_iter().for_each(|node| meanings.note(node));
        same_meanwhile(&watcher, &standby).await;
        let last = last.max(watcher.node.snapshots().newest().id);
        let killed = Instant::now();
        leader.child.kill().expect("it runs");
        leader.child.wait().expect("it ends");
        let mut changes = watcher.node.snapshots().changes();
        while watcher.node.snapshots().newest().id.epoch() == last.epoch() {
            let changed = tokio::time::timeout(BOUND, changes.changed()).await;
            changed.expect("it is taken over").expect("the node publishes");
        }
        let took = killed.elapsed();
        say(&format!("the first snapshot of the standby came after {took:?}"));
        // The block being built goes on, and `pending` does not wait for the next one.
        assert!(watcher.node.snapshots().newest().open.is_some());
        for _ in 0..5 {
            advance(&watcher, 3).await;
            [&watcher, &standby].into_iter().for_each(|node| meanings.note(node));
            same_meanwhile(&standby, &watcher).await;
        }
    };
    tokio::join!(building, watching);
    let last = blocks.last().expect("a block");
    upstream.push(last.block.clone());
    head(&watcher, last.hash()).await;
    same(&[&standby, &watcher]).await;
    [&watcher, &standby].into_iter().for_each(|node| meanings.note(node));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ingester_that_stops_is_followed_by_itself_and_ids_only_grow() {
    let Some(server) = NatsServer::start() else { return };
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    let watcher_flags = ["--keep-snapshots", "1000"];
    let mut leader = ingester(&server, &upstream.url(), &first.config, &[]).await;
    let watcher = replica(&server, &watcher_flags);
    let (meanings, mut at, mut last) = (Meanings::default(), first.clone(), SnapshotId::default());
    for round in 0..3 {
        at = at.next(vec![transfer(ETHEREUM, round, 3)], 1);
        upstream.push(at.block.clone());
        head(&leader, at.hash()).await;
        let id = same(&[&leader, &watcher]).await;
        assert!(id > last, "{:#x} after {:#x}", id.0, last.0);
        last = id;
        meanings.note(&watcher);
        drop(leader);
        leader = ingester(&server, &upstream.url(), &first.config, &[]).await;
    }
    let reads = live_reads(&watcher, watcher.node.snapshots().newest().id);
    assert!(!reads.is_empty());
    meanings.note(&watcher);
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_tell_the_divergences_that_the_leader_has_found() {
    let Some(server) = NatsServer::start() else { return };
    let stage = stage(&server, &[]).await;
    let follower = replica(&server, &[]);
    let blocks = chases(&stage.first, CHASES[0].0, SINGLE.len(), 2);
    stage.play(&blocks[..1], &SINGLE, Duration::from_millis(20)).await;
    assert_eq!(follower.result("/", "presim_divergences", json!([])).await, json!([]));
    let payloads = blocks[1].flashblocks(&SINGLE);
    let mut lie = serde_json::to_value(&payloads[0]).expect("a payload is JSON");
    lie["diff"]["receipts_root"] = json!(alloy_primitives::B256::repeat_byte(9));
    stage.server.send_message(Message::text(lie.to_string()));
    let mismatch = FeedState::Degraded(FeedProblem::Mismatch);
    until("the lie is found", async || follower.node.snapshots().load().feed() == mismatch).await;
    let found = follower.result("/", "presim_divergences", json!([])).await;
    assert_eq!(found[0]["block"], hex(blocks[1].number()), "{found}");
    assert_eq!(found, stage.node.result("/", "presim_divergences", json!([])).await);
    assert_eq!(stage.node.metric("presim_divergences_total"), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_of_the_server_shows_nothing_new_of_an_upstream_until_there_is_room() {
    // Room for the fleet's streams, and a little more.
    let Some(server) = NatsServer::start_in("12MB", &[]) else { return };
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    let leader = ingester(&server, &upstream.url(), &first.config, &["--publish-mb", "4"]).await;
    let follower = replica(&server, &[]);
    let before = same(&[&leader, &follower]).await;
    let jetstream = jetstream::new(server.connect().await);
    let config = stream::Config { name: "other".to_owned(), subjects: vec!["other".to_owned()], ..Default::default() };
    let other = jetstream.create_stream(config).await.expect("a stream");
    // Large messages first, and then small ones, until not even a small change fits.
    for size in [256 << 10, 4 << 10, 64] {
        let junk = vec![7; size];
        let filled =
            async { while jetstream.publish("other", junk.clone().into()).await.expect("it is sent").await.is_ok() {} };
        tokio::time::timeout(BOUND, filled).await.expect("the disk becomes full");
    }
    let mut blocks = vec![first];
    for nonce in 0..3 {
        let next = blocks.last().expect("a block").next(vec![store(ETHEREUM, nonce, nonce + 3)], 1);
        upstream.push(next.block.clone());
        blocks.push(next);
    }
    let stopped = FeedState::Degraded(FeedProblem::Stream);
    until("the leader says so", async || leader.node.snapshots().load().feed() == stopped).await;
    for node in [&leader, &follower] {
        assert_eq!(node.node.snapshots().newest().id, before, "nobody sees what the stream has not taken");
    }
    other.purge().await.expect("it is purged");
    for node in [&leader, &follower] {
        head(node, blocks[3].hash()).await;
        until("it is live", async || !node.node.snapshots().load().feed().is_degraded()).await;
    }
    same(&[&leader, &follower]).await;
}
