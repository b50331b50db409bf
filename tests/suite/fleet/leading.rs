//! Of several nodes that publish one leads, another takes over, and no id is given twice.

use std::{collections::BTreeMap, sync::Arc};

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use futures::StreamExt;
use presim::testing::ledger::SnapshotId;

use super::{
    QUICK, advance, agree_on, ingester, reach, replica, server::NatsServer, start, try_start, until, with_flags,
};
use crate::{
    live::{
        built::Built,
        stage::{launch, serve},
    },
    process::Presim,
    support::TestNode,
    upstream::StreamedDevnet,
};

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
        let open = newest.open.as_ref().map(|open| (open.transactions.len(), open.receipts_root_and_bloom().0));
        let told = format!("{} {open:?}", newest.head_hash());
        let known = self.0.entry(newest.id.0).or_insert_with(|| told.clone());
        assert_eq!(*known, told, "{:#x} names two states", newest.id.0);
        newest.id.0
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ingester_killed_at_any_moment_is_followed_by_itself() {
    let Some(server) = NatsServer::start() else { return };
    let (url, data) = (server.url(), tempfile::tempdir().expect("a directory"));
    let chain = StreamedDevnet::start(&["--sub-block-ms", "20", "--sub-blocks", "4"]).await;
    let kept = ["--data-dir", data.path().to_str().expect("UTF-8")];
    let run = || with_flags(&chain, "test", &url, &kept, |flags| tokio::task::block_in_place(|| Presim::start(flags)));
    let mut shown = Shown::default();
    let mut leader = run();
    let watcher = replica(&url, &[]);
    for round in 0..2 * rounds() {
        let last = advance(&watcher, 7 + round as u64).await;
        shown.add(&watcher);
        leader.child.kill().expect("it runs");
        leader.child.wait().expect("it ends");
        leader = run();
        until("the chain goes on in another epoch", async || {
            let newest = SnapshotId(shown.add(&watcher));
            newest.epoch() > last.epoch() && newest.0 > SnapshotId::begin(newest.epoch()).0 + 3
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_chain_or_version_is_refused_with_both_named() {
    let Some(server) = NatsServer::start() else { return };
    let (url, chain) = (server.url(), StreamedDevnet::start(&QUICK).await);
    let leader = ingester(&chain, &url, &[]);
    advance(&leader, 3).await;
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    let other = launch(&upstream.url(), Some(&first.config), &["--publish", &url, "--fleet", "test"]).await;
    let error = format!("{:#}", other.err().expect("it is refused"));
    assert!(
        error.contains("the fleet test is of chain 31337 of genesis") && error.contains("this node's chain is"),
        "{error}"
    );
    drop(leader);
    let anew = ["--publish", &url, "--fleet", "test", "--publish-anew"];
    let anew = launch(&upstream.url(), Some(&first.config), &anew).await.expect("restarting the fleet's stream");
    let follower = replica(&url, &[]);
    assert_eq!(follower.node.info().chain_id, anew.node.info().chain_id);
    drop((anew, follower));
    let jetstream = async_nats::jetstream::new(server.connect().await);
    let facts = jetstream.get_key_value("presim_test").await.expect("facts");
    let theirs = facts.get("chain").await.expect("an answer").expect("a chain");
    let mut theirs: serde_json::Value = serde_json::from_slice(&theirs).expect("JSON");
    let own = theirs["version"].as_u64().expect("a version");
    theirs["version"] = (own + 1).into();
    facts.put("chain", theirs.to_string().into()).await.expect("it is written");
    let leads = launch(&upstream.url(), Some(&first.config), &["--publish", &url, "--fleet", "test"]).await;
    for refused in [leads.err(), try_start(&["--follow", &url]).err()] {
        let error = format!("{:#}", refused.expect("it is refused"));
        assert!(error.contains(&format!("of version {}, and this presim has version {own}", own + 1)), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_that_begin_a_fleet_at_once_begin_one_chain() {
    for _ in 0..rounds() {
        let Some(server) = NatsServer::start() else { return };
        let url = server.url();
        let chain = Arc::new(StreamedDevnet::start(&QUICK).await);
        let start = |url: String| {
            let chain = chain.clone();
            tokio::task::spawn_blocking(move || with_flags(&chain, "test", &url, &[], TestNode::start))
        };
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
        agree_on(&[&nodes[0], &nodes[1]], id, "/").await;
    }
}

/// A server lists a stream that it creates before the stream accepts messages. Here the stream accepts none until the node
/// has read the fleet's facts twice, after which the node writes them.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_takes_no_message_yet_is_waited_for() {
    let Some(server) = NatsServer::start() else { return };
    let url = server.url();
    let chain = Arc::new(StreamedDevnet::start(&QUICK).await);
    let client = server.connect().await;
    let jetstream = async_nats::jetstream::new(client.clone());
    let bucket = |subject: &str| Config {
        name: "KV_presim_test".to_owned(),
        subjects: vec![subject.to_owned()],
        max_messages_per_subject: 1,
        discard: DiscardPolicy::New,
        allow_rollup: true,
        deny_delete: true,
        ..Config::default()
    };
    jetstream.create_stream(bucket("elsewhere.>")).await.expect("it is created");
    let mut advisories = client.subscribe("$JS.EVENT.ADVISORY.API").await.expect("it is subscribed");
    client.flush().await.expect("the server answers");
    let upstream = chain.clone();
    let starting = tokio::task::spawn_blocking(move || with_flags(&upstream, "test", &url, &[], TestNode::start));
    let mut looks = 0;
    while looks < 2 {
        let advisory = advisories.next().await.expect("an advisory");
        let text = String::from_utf8_lossy(&advisory.payload);
        looks += usize::from(text.contains("$JS.API.STREAM.MSG.GET.KV_presim_test"));
    }
    // The node's first write, which no stream accepts, fails within one round trip.
    for _ in 0..50 {
        jetstream.get_stream("KV_presim_test").await.expect("the server answers");
    }
    jetstream.update_stream(bucket("$KV.presim_test.>")).await.expect("it is changed");
    let leader = starting.await.expect("it starts");
    advance(&leader, 2).await;
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
