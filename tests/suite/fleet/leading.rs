//! Of several nodes that publish one leads, another takes over, and no id is given twice.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use presim::ledger::SnapshotId;
use serde_json::json;

use super::{advance, agree, ingester, reach, reads, replica, server::NatsServer, start, try_start, until};
use crate::{
    process::{Presim, file},
    support::{BOUND, TestNode, say},
};

/// A genesis of another chain than the built-in devnet's.
pub const GENESIS: &str = r#"{
    "config": {
        "chainId": 31337, "homesteadBlock": 0, "eip150Block": 0, "eip155Block": 0, "eip158Block": 0, "byzantiumBlock": 0,
        "constantinopleBlock": 0, "petersburgBlock": 0, "istanbulBlock": 0, "berlinBlock": 0, "londonBlock": 0,
        "terminalTotalDifficulty": "0x0", "terminalTotalDifficultyPassed": true, "shanghaiTime": 0
    },
    "alloc": {}, "difficulty": "0x0", "gasLimit": "0x1c9c380", "nonce": "0x0", "timestamp": "0x65000000"
}"#;

/// Rounds of a failure in the suite. `PRESIM_FLEET_ROUNDS` asks for more.
fn rounds() -> usize {
    std::env::var("PRESIM_FLEET_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2)
}

/// The states that a replica has shown, by their ids.
#[derive(Default)]
struct Shown(BTreeMap<u64, String>);

impl Shown {
    /// Adds the newest snapshot of a node, which must be what the id meant before.
    fn add(&mut self, node: &TestNode) -> u64 {
        let newest = node.node.snapshots().newest();
        let root = newest.world.local().map(|world| world.state_root());
        let told =
            format!("{root:?} {} {:?}", newest.head_hash(), newest.open.as_ref().map(|open| open.transactions.len()));
        let known = self.0.entry(newest.id.0).or_insert_with(|| told.clone());
        assert_eq!(*known, told, "{:#x} names two states", newest.id.0);
        newest.id.0
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_takes_over_after_kill_9() {
    let Some(server) = NatsServer::start() else { return };
    let url = server.url();
    let flags = ["--publish", url.as_str(), "--fleet", "test", "--sub-block-ms", "50", "--sub-blocks", "5"];
    let mut leader = tokio::task::block_in_place(|| Presim::start(&flags));
    let watcher = replica(&url, &["--keep-snapshots", "1000"]);
    let mut shown = Shown::default();
    let mut slowest = Duration::ZERO;
    for _ in 0..rounds() {
        let standby = tokio::task::block_in_place(|| Presim::start(&flags));
        let last = advance(&watcher, 10).await;
        shown.add(&watcher);
        let killed = Instant::now();
        leader.child.kill().expect("it runs");
        leader.child.wait().expect("it ends");
        let mut changes = watcher.node.snapshots().changes();
        let epoch = loop {
            let newest = watcher.node.snapshots().newest().id;
            if newest.epoch() > last.epoch() {
                break newest.epoch();
            }
            tokio::time::timeout(BOUND, changes.changed()).await.expect("it is taken over").expect("on");
        };
        let took = killed.elapsed();
        slowest = slowest.max(took);
        assert!(epoch > last.epoch());
        shown.add(&watcher);
        leader = standby;
    }
    say(&format!("a standby took over within {slowest:?}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ingester_killed_at_any_moment_goes_on_from_its_directory_and_the_streams_end() {
    let Some(server) = NatsServer::start() else { return };
    let (url, data) = (server.url(), tempfile::tempdir().expect("a directory"));
    let dir = data.path().to_str().expect("UTF-8").to_owned();
    let flags = ["--publish", &url, "--fleet", "test", "--data-dir", &dir, "--sub-block-ms", "20", "--sub-blocks", "4"];
    let mut shown = Shown::default();
    let mut leader = tokio::task::block_in_place(|| Presim::start(&flags));
    let watcher = replica(&url, &[]);
    for round in 0..2 * rounds() {
        let last = advance(&watcher, 7 + round as u64).await;
        shown.add(&watcher);
        leader.child.kill().expect("it runs");
        leader.child.wait().expect("it ends");
        leader = tokio::task::block_in_place(|| Presim::start(&flags));
        until("the chain goes on", async || shown.add(&watcher) > last.0 + 3).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_answers_as_the_leader_does() {
    let Some(server) = NatsServer::start() else { return };
    let leader = ingester(&server.url(), &["--sub-block-ms", "50"]);
    advance(&leader, 2).await;
    let dir = tempfile::tempdir().expect("a directory");
    let kept = ["--sub-block-ms", "50", "--data-dir", dir.path().to_str().expect("UTF-8")];
    let standby = ingester(&server.url(), &kept);
    let id = advance(&leader, 30).await;
    reach(&standby, id).await;
    agree(&[&leader, &standby], &reads(&leader, id), "/").await;
    drop(leader);
    let id = advance(&standby, 3).await;
    let hash = standby.node.snapshots().newest().head_hash();
    drop(standby);
    // Alone again, with what it has followed and built in its directory.
    let again = ingester(&server.url(), &kept);
    assert!(again.node.snapshots().newest().id >= id, "it goes on where it was");
    let block = again.result("/", "eth_getBlockByHash", json!([hash, false])).await;
    assert!(block.is_object(), "the block that the standby had built: {block}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_chain_history_or_version_is_refused_with_both_named() {
    let Some(server) = NatsServer::start() else { return };
    let url = server.url();
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let [first, second] = [&dirs[0], &dirs[1]].map(|dir| dir.path().to_str().expect("UTF-8").to_owned());
    let publish =
        |dir: &str| try_start(&["--publish", &url, "--fleet", "test", "--data-dir", dir, "--sub-block-ms", "50"]);
    // A chain of its own, which never was the fleet's.
    let genesis = file(GENESIS);
    let genesis = genesis.path().to_str().expect("UTF-8");
    let leader = publish(&first).expect("it starts");
    advance(&leader, 3).await;
    let refused = |dir: &str| format!("{:#}", publish(dir).err().expect("it is refused"));
    let other = ["--publish", &url, "--fleet", "test", "--data-dir", &second, "--genesis", genesis, "--feed", "devnet"];
    let error = format!("{:#}", try_start(&other).err().expect("it is refused"));
    assert!(
        error.contains("the fleet test is of chain 31337 of genesis") && error.contains("this node's chain is"),
        "{error}"
    );
    drop(leader);
    // The same chain, and a history of its own since.
    let apart = start(&["--data-dir", &first, "--sub-block-ms", "50"]);
    advance(&apart, 30).await;
    drop(apart);
    let stream = server.stream("test").await;
    let end = stream.get_info().await.expect("it answers").state.last_sequence;
    assert!(end > 0);
    let error = refused(&first);
    assert!(
        error.contains("the data directory ends with snapshot 0x") && error.contains("does not have it"),
        "{error}"
    );
    let anew = start(&["--publish", &url, "--fleet", "test", "--data-dir", &first, "--publish-anew"]);
    let follower = replica(&url, &[]);
    assert_eq!(follower.node.info().chain_id, anew.node.info().chain_id);
    drop((anew, follower));
    let jetstream = async_nats::jetstream::new(server.connect().await);
    let facts = jetstream.get_key_value("presim_test").await.expect("facts");
    let chain = facts.get("chain").await.expect("an answer").expect("a chain");
    let mut chain: serde_json::Value = serde_json::from_slice(&chain).expect("JSON");
    let own = std::mem::replace(&mut chain["version"], 9.into());
    facts.put("chain", chain.to_string().into()).await.expect("it is written");
    for error in [refused(&first), format!("{:#}", try_start(&["--follow", &url]).err().expect("it is refused"))] {
        assert!(error.contains(&format!("of version 9, and this presim has version {own}")), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_that_begin_a_fleet_at_once_begin_one_chain() {
    for _ in 0..rounds() {
        let Some(server) = NatsServer::start() else { return };
        let url = server.url();
        let start = |url: String| tokio::task::spawn_blocking(move || ingester(&url, &["--sub-block-ms", "50"]));
        let (one, two) = tokio::join!(start(url.clone()), start(url));
        let nodes = [one.expect("it starts"), two.expect("it starts")];
        let mut shown = Shown::default();
        let mut seen = 0;
        until("both show one chain", async || {
            nodes.iter().for_each(|node| seen = seen.max(shown.add(node)));
            let [one, two] = nodes.each_ref().map(|node| node.node.snapshots().load());
            one.last == two.last && one.head().number() > 0
        })
        .await;
        let id = advance(&nodes[0], 2).await;
        reach(&nodes[1], id).await;
        agree(&[&nodes[0], &nodes[1]], &reads(&nodes[0], id), "/").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_are_never_given_twice_whatever_restarts() {
    let dir = tempfile::tempdir().expect("a directory");
    let flags = ["--data-dir", dir.path().to_str().expect("UTF-8"), "--sub-block-ms", "20"];
    let mut last = SnapshotId::default();
    for _ in 0..4 {
        let node = start(&flags);
        let newest = node.node.snapshots().newest().id;
        assert!(newest >= last, "a restored snapshot keeps its id");
        let next = advance(&node, 3).await;
        assert!(next.epoch() > last.epoch(), "each start takes an epoch: {:#x} after {:#x}", next.0, last.0);
        last = next;
    }
}
