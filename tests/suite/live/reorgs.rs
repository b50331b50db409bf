//! An upstream that reorganises.

use alloy_primitives::{B256, U256};
use presim::testing::ledger::SnapshotId;
use serde_json::{Value, json};

use super::{
    built::{Built, ETHEREUM, SOMEBODY, STORE, store, transfer},
    head, serve, start,
};
use crate::{
    support::{BOUND, Socket, TestNode, hex, items, number},
    upstream::SmallUpstream,
};

/// Builds blocks of one transfer and one stored word each, with nonces from `first_nonce` on.
fn branch(on: &Built, length: usize, first_nonce: u64, value: u64, salt: u8) -> Vec<Built> {
    let mut blocks: Vec<Built> = Vec::new();
    for at in 0..length as u64 {
        let parent = blocks.last().unwrap_or(on);
        let nonce = first_nonce + 2 * at;
        blocks.push(parent.next(vec![transfer(ETHEREUM, nonce, value), store(ETHEREUM, nonce + 1, value + at)], salt));
    }
    blocks
}

/// Checks that `latest` shows the state after this block.
async fn shows(node: &TestNode, built: &Built) {
    let slot = built.block.state[&STORE].storage.as_ref().and_then(|storage| storage.get(&B256::ZERO)).copied();
    for block in [json!("latest"), json!(hex(built.number())), json!(built.hash())] {
        let calls = [("eth_getBalance", json!([SOMEBODY, block])), ("eth_getStorageAt", json!([STORE, "0x0", block]))];
        let expected = [json!(built.balance(SOMEBODY)), json!(slot.unwrap_or_default())];
        assert_eq!(node.batch("/", &calls).await, expected, "{block}");
    }
    let latest = node.block("latest").await;
    assert_eq!((&latest["hash"], number(&latest["number"])), (&json!(built.hash()), built.number()));
    let snapshot = node.node.snapshots().newest().id;
    assert_eq!(
        node.result("/", "eth_getBalance", json!([SOMEBODY, { "snapshotId": format!("{:#x}", snapshot.0) }])).await,
        json!(built.balance(SOMEBODY))
    );
}

async fn gone(node: &TestNode, built: &Built, snapshot: SnapshotId) {
    let id = format!("{:#x}", snapshot.0);
    let error = node.error("/", "eth_getBalance", json!([SOMEBODY, { "snapshotId": id }])).await;
    assert!(error["message"].as_str().unwrap().contains("is not retained"), "{error}");
    assert!(node.node.snapshots().load().transaction(&built.tx_hash(0)).is_none());
}

async fn reorg(depth: usize, is_socket: bool) {
    let genesis = Built::ethereum();
    let base = branch(&genesis, 1, 0, 1, 1).remove(0);
    let dead = branch(&base, depth, 2, 10, 1);
    let branch = branch(&base, depth + 1, 2, 1_000, 2);
    let upstream = serve(&[&genesis, &base]).await;
    let (url, poll) = if is_socket { (upstream.ws_url(), "60000") } else { (upstream.url(), "20") };
    let node = start(&url, &base.config, &["--upstream-poll-ms", poll]).await;
    if is_socket {
        upstream.is_asked("eth_subscribe", 1).await;
    }
    let mut heads = Socket::open(&node, "/").await;
    let head_id = heads.subscribe(json!(["newHeads"])).await;
    let mut logs = Socket::open(&node, "/").await;
    let log_id = logs.subscribe(json!(["logs", { "address": STORE }])).await;

    let mut snapshots = Vec::new();
    for built in &dead {
        upstream.push(built.block.clone());
        head(&node, built.hash()).await;
        snapshots.push(node.node.snapshots().newest().id);
        shows(&node, built).await;
        assert_eq!(heads.notification(&head_id).await["hash"], json!(built.hash()));
        let log = logs.notification(&log_id).await;
        assert_eq!((&log["blockHash"], &log["removed"]), (&json!(built.hash()), &json!(false)));
    }
    upstream.reorganise(branch.iter().map(|built| built.block.clone()).collect());
    head(&node, branch[depth].hash()).await;
    shows(&node, &branch[depth]).await;
    assert_eq!(node.metric("presim_reorgs_total"), 1.0);
    let executed = node.metric("presim_upstream_blocks_total{outcome=\"executed\"}");
    assert_eq!(executed, (2 * depth + 1) as f64, "every block is executed here");
    for (built, snapshot) in dead.iter().zip(&snapshots) {
        gone(&node, built, *snapshot).await;
        assert!(
            node.node
                .snapshots()
                .load()
                .block(presim::testing::ledger::Selector::Hash(built.hash()))
                .unwrap()
                .is_none()
        );
    }
    for (at, built) in branch.iter().enumerate() {
        let hash = json!(built.hash());
        assert_eq!(heads.notification(&head_id).await["hash"], hash, "head {at}");
        let receipt = node.result("/", "eth_getTransactionReceipt", json!([built.tx_hash(0)])).await;
        assert_eq!(receipt["blockHash"], hash);
        let before = node.result("/", "eth_getBalance", json!([SOMEBODY, hex(built.number())])).await;
        assert_eq!(before, json!(built.balance(SOMEBODY)));
    }
    for built in dead.iter().rev() {
        let log = logs.notification(&log_id).await;
        assert_eq!((&log["blockHash"], &log["removed"]), (&json!(built.hash()), &json!(true)));
    }
    for (at, built) in branch.iter().enumerate() {
        let log = logs.notification(&log_id).await;
        let word = B256::from(U256::from(1_000 + at));
        assert_eq!(
            (&log["blockHash"], &log["removed"], &log["topics"][0]),
            (&json!(built.hash()), &json!(false), &json!(word))
        );
    }
    // The feed continues on the new branch.
    let next = branch[depth].next(vec![transfer(ETHEREUM, 4 + 2 * depth as u64, 5)], 2);
    upstream.push(next.block.clone());
    head(&node, next.hash()).await;
    shows(&node, &next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_replaced() {
    tokio::join!(reorg(1, false), reorg(3, false), reorg(3, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_that_begins_before_all_that_is_known_is_begun_anew() {
    let genesis = Built::ethereum();
    let dead = branch(&genesis, 2, 0, 1, 1);
    let upstream = serve(&[&genesis, &dead[0], &dead[1]]).await;
    let node = start(&upstream.url(), &genesis.config, &[]).await;
    shows(&node, &dead[1]).await;
    let other = branch(&genesis, 3, 0, 500, 2);
    upstream.reorganise(other.iter().map(|built| built.block.clone()).collect());
    head(&node, other[2].hash()).await;
    shows(&node, &other[2]).await;
    let error = node.call("/", "eth_getBalance", json!([SOMEBODY, dead[1].hash()])).await;
    assert_ne!(error.get("error"), None::<&Value>, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_block_the_upstream_has_dropped_goes_on_with_the_one_that_replaced_it() {
    let genesis = Built::ethereum();
    let dead = branch(&genesis, 1, 0, 10, 1).remove(0);
    let other = branch(&genesis, 2, 0, 1_000, 2);
    let upstream = serve(&[&genesis, &dead]).await;
    let node = start(&upstream.url(), &genesis.config, &[]).await;
    upstream.refuse("eth_getStorageAt", Some((-32000, "header not found")));
    let replace = async {
        upstream.is_asked("eth_getStorageAt", 1).await;
        upstream.reorganise(other.iter().map(|built| built.block.clone()).collect());
        upstream.change(|chain| chain.left.clear());
        upstream.refuse("eth_getStorageAt", None);
        head(&node, other[1].hash()).await;
    };
    let (slot, ()) = tokio::join!(node.result("/", "eth_getStorageAt", json!([STORE, "0x0", "latest"])), replace);
    let slot: U256 = serde_json::from_value(slot).unwrap();
    assert!(slot >= U256::from(1_000), "{slot}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_blocks_at_once_are_jumped_over() {
    let genesis = Built::ethereum();
    let blocks = branch(&genesis, 100, 0, 3, 1);
    let upstream = serve(&[&genesis]).await;
    let node = start(&upstream.url(), &genesis.config, &[]).await;
    upstream.reorganise(blocks[..30].iter().map(|built| built.block.clone()).collect());
    head(&node, blocks[29].hash()).await;
    shows(&node, &blocks[29]).await;
    assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"executed\"}"), 30.0);
    let filter = node.result("/", "eth_newFilter", json!([{ "address": STORE }])).await;
    upstream.reorganise(blocks[30..].iter().map(|built| built.block.clone()).collect());
    head(&node, blocks[99].hash()).await;
    shows(&node, &blocks[99]).await;
    // The logs of the blocks between come all the same, in order.
    let mut logs = Vec::new();
    while logs.len() < 70 {
        logs.extend(polled(&node, &filter).await);
    }
    assert_eq!(logs, reported(&blocks[30..], false));
    assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"executed\"}"), 30.0);
    let told = tokio::time::timeout(BOUND, node.result("/", "eth_getBlockByNumber", json!([hex(50), false]))).await;
    assert_eq!(told.expect("it answers")["hash"], json!(blocks[49].hash()), "it is the upstream's to tell");
}

/// Returns the block hash of each log that a poll returns, and whether the log is removed.
async fn polled(node: &TestNode, filter: &Value) -> Vec<(Value, bool)> {
    let logs = node.result("/", "eth_getFilterChanges", json!([filter])).await;
    items(&logs).iter().map(|log| (log["blockHash"].clone(), log["removed"] == json!(true))).collect()
}

fn reported(blocks: &[Built], removed: bool) -> Vec<(Value, bool)> {
    blocks.iter().map(|built| (json!(built.hash()), removed)).collect()
}

fn newest_first(blocks: &[Built]) -> Vec<Built> {
    blocks.iter().rev().cloned().collect()
}

async fn move_to(upstream: &SmallUpstream, node: &TestNode, blocks: &[Built]) {
    upstream.reorganise(blocks.iter().map(|built| built.block.clone()).collect());
    head(node, blocks.last().expect("a block").hash()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn polled_filters_report_what_a_reorg_removes_and_what_replaces_it() {
    let genesis = Built::ethereum();
    let dead = branch(&genesis, 3, 0, 10, 1);
    let live = branch(&genesis, 4, 0, 1_000, 2);
    for flags in [&[][..], &["--max-logs", "2"]] {
        let upstream = serve(&[&genesis]).await;
        let node = start(&upstream.url(), &genesis.config, flags).await;
        let install = async || node.result("/", "eth_newFilter", json!([{ "address": STORE }])).await;
        let (filter, unpolled) = (install().await, install().await);
        let other = node.result("/", "eth_newFilter", json!([{ "address": SOMEBODY }])).await;
        let blocks = node.result("/", "eth_newBlockFilter", json!([])).await;
        move_to(&upstream, &node, &dead).await;
        let all = async |filter: &Value, count: usize| {
            let mut found = Vec::new();
            while found.len() < count {
                found.extend(polled(&node, filter).await);
            }
            assert_eq!(polled(&node, filter).await, [], "each log once");
            found
        };
        assert_eq!(all(&filter, 3).await, reported(&dead, false));
        let hashes = async |count: usize| {
            let mut found = Vec::new();
            while found.len() < count {
                found.extend(items(&node.result("/", "eth_getFilterChanges", json!([blocks])).await).to_vec());
            }
            found
        };
        assert_eq!(hashes(3).await, dead.iter().map(|built| json!(built.hash())).collect::<Vec<_>>());
        move_to(&upstream, &node, &live).await;
        let expected = [reported(&newest_first(&dead), true), reported(&live, false)].concat();
        assert_eq!(all(&filter, 7).await, expected);
        assert_eq!(hashes(4).await, live.iter().map(|built| json!(built.hash())).collect::<Vec<_>>());
        assert_eq!(all(&unpolled, 4).await, reported(&live, false), "what was not reported is not removed");
        assert_eq!(polled(&node, &other).await, []);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_names_an_abandoned_block_whose_logs_are_forgotten_and_goes_on() {
    let genesis = Built::ethereum();
    let branches: Vec<_> =
        (1..6).map(|salt| branch(&genesis, 2 + usize::from(salt), 0, 100 * u64::from(salt), salt)).collect();
    let upstream = serve(&[&genesis]).await;
    let node = start(&upstream.url(), &genesis.config, &["--keep-blocks", "12", "--flashblocks-ahead", "2"]).await;
    let filter = node.result("/", "eth_newFilter", json!([{ "address": STORE }])).await;
    let blocks = node.result("/", "eth_newBlockFilter", json!([])).await;
    move_to(&upstream, &node, &branches[0]).await;
    assert_eq!(polled(&node, &filter).await, reported(&branches[0], false));
    node.result("/", "eth_getFilterChanges", json!([blocks])).await;
    for branch in &branches[1..] {
        move_to(&upstream, &node, branch).await;
    }
    let known = branches[0].last().expect("a block");
    for filter in [&filter, &blocks] {
        let error = node.error("/", "eth_getFilterChanges", json!([filter])).await;
        let text = error["message"].as_str().unwrap();
        assert!(error["code"] == -32000 && text.contains(&known.hash().to_string()), "{error}");
        assert_eq!(
            node.result("/", "eth_getFilterChanges", json!([filter])).await,
            json!([]),
            "the error is given once"
        );
    }
    let next = branches[4].last().expect("a block").next(vec![store(ETHEREUM, 14, 7)], 5);
    upstream.push(next.block.clone());
    head(&node, next.hash()).await;
    assert_eq!(polled(&node, &filter).await, reported(&[next], false));
}
