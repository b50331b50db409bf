//! A node that follows says how late it is, too much rather than too little, and is live only if it can prove it.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use presim::testing::ledger::{Selector, SnapshotId};
use serde_json::json;

use super::{QUICK, advance, ingester, proxy::SlowProxy, reach, server::NatsServer, start, until};
use crate::{
    process::Presim,
    support::{TestNode, http, request},
    upstream::StreamedDevnet,
};

/// The word of a node on its newest snapshot.
#[derive(Debug)]
struct Word {
    id: SnapshotId,
    age: Duration,
    feed: String,
}

/// Asks for the newest snapshot at an address.
async fn ask(url: &str) -> Word {
    let post = http().post(url).json(&request(1, "eth_blockNumber", json!([])));
    let response = post.send().await.expect("it answers");
    let header = response.headers().get("x-presim-snapshot").expect("the header").to_str().expect("a text").to_owned();
    let field = |name: &str| {
        let part = header.split(", ").find_map(|part| part.strip_prefix(name));
        part.unwrap_or_else(|| panic!("{name} in {header}")).to_owned()
    };
    let id = u64::from_str_radix(field("id=").trim_start_matches("0x"), 16).expect("an id");
    let age = Duration::from_millis(field("age_ms=").parse().expect("a number"));
    Word { id: SnapshotId(id), age, feed: field("feed=") }
}

/// Returns the age of a snapshot on the node that has made it, and the time for which there has been a newer one; `None` if its block
/// was replaced.
async fn ages(leader: &TestNode, id: SnapshotId) -> Option<(Duration, Option<Duration>)> {
    // The leader shows a snapshot once the stream has it, so that another node may be first.
    let snapshots = leader.node.snapshots();
    let mut changes = snapshots.changes();
    while snapshots.newest().id < id {
        changes.changed().await.expect("the leader publishes");
    }
    let published = snapshots.load();
    let snapshot = published.select(Selector::Snapshot(id)).ok()?;
    let newer = published.snapshots_after(id).next().map(|newer| newer.published.elapsed());
    Some((snapshot.published.elapsed(), newer))
}

/// Checks the word of a node on its newest snapshot: its age is not too little, and what is live misses nothing older than
/// the bound.
async fn check(leader: &TestNode, url: &str) -> Word {
    let mut begun = Instant::now();
    let mut word = ask(url).await;
    // The ages are taken after the answer, and less than `took` after it.
    let (age, missed) = loop {
        match ages(leader, word.id).await {
            Some(ages) => break ages,
            None => {
                advance(leader, 1).await;
                begun = Instant::now();
                word = ask(url).await;
            }
        }
    };
    let took = begun.elapsed();
    assert!(word.age + took + Duration::from_millis(1) >= age, "{word:?} of a snapshot that is {age:?} old");
    if word.feed == "live" {
        let missed = missed.unwrap_or_default();
        // The bound, and the time that the stream has taken to acknowledge the newer one.
        assert!(missed <= took + Duration::from_millis(1_000), "{word:?}, and a newer one is {missed:?} old");
    }
    word
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_behind_a_slow_way_says_how_old_its_answers_are_and_is_not_live() {
    let Some(server) = NatsServer::start() else { return };
    let chain = StreamedDevnet::start(&QUICK).await;
    let leader = ingester(&chain, &server.url(), &["--keep-snapshots", "10000"]);
    let way = SlowProxy::to(server.port).await;
    let follower = start(&["--follow", &way.url()]);
    reach(&follower, advance(&leader, 2).await).await;
    let (url, ready) = (follower.url("/"), follower.url("/ready"));
    until("it is live", async || check(&leader, &url).await.feed == "live").await;
    assert_eq!(reqwest::get(&ready).await.expect("it answers").status(), 200);
    way.delay(Duration::from_secs(2));
    until("its answers come by the slow way", async || {
        let word = check(&leader, &url).await;
        word.feed == "lagging" && word.age >= Duration::from_millis(1_900)
    })
    .await;
    for _ in 0..30 {
        let word = check(&leader, &url).await;
        assert!(word.feed != "live" && word.age >= Duration::from_millis(1_900), "{word:?}");
        let told = reqwest::get(&ready).await.expect("it answers");
        assert_eq!(told.status(), 503, "{}", told.text().await.expect("a text"));
        advance(&leader, 1).await;
    }
    way.delay(Duration::ZERO);
    until("it is live again", async || check(&leader, &url).await.feed == "live").await;
    assert_eq!(reqwest::get(&ready).await.expect("it answers").status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_was_stopped_for_a_time_is_not_live_before_it_has_caught_up() {
    let Some(server) = NatsServer::start() else { return };
    let chain = StreamedDevnet::start(&QUICK).await;
    let leader = ingester(&chain, &server.url(), &["--keep-snapshots", "10000"]);
    advance(&leader, 2).await;
    let follower = tokio::task::block_in_place(|| Presim::start(&["--follow", &server.url()]));
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &follower.child.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "the signal is sent");
    };
    until("it is live", async || check(&leader, &follower.url).await.feed == "live").await;
    for _ in 0..2 {
        signal("-STOP");
        // Two seconds of the chain.
        advance(&leader, 40).await;
        signal("-CONT");
        until("it is live again", async || check(&leader, &follower.url).await.feed == "live").await;
    }
}
