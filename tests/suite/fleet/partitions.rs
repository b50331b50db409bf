//! Ways between a fleet's nodes, its server and its clients that are cut and mended under load, and servers that fail.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use async_nats::jetstream;
use presim::testing::ledger::{FeedState, SnapshotId};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{
    QUICK, advance, agree_on, ingester, ingester_of, proxy::CutProxy, reach, server::NatsServer, start, try_start,
    until,
};
use crate::{
    process::Presim,
    support::{TestNode, http, request, say},
    upstream::StreamedDevnet,
};

/// Rounds of a failure in the suite. `PRESIM_FLEET_ROUNDS` asks for more.
fn rounds() -> usize {
    std::env::var("PRESIM_FLEET_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2)
}

/// The flags of all nodes, by which what is asked about an old id is mostly still retained.
const KEPT: [&str; 4] = ["--keep-snapshots", "1000", "--keep-blocks", "1000"];

/// The answers that clients have got under each id, from whichever node.
type Answers = Arc<Mutex<BTreeMap<u64, Value>>>;

/// A client that asks two nodes in turn, and never wants to go back.
struct RestlessClient {
    asking: JoinHandle<()>,
    is_over: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
}

impl RestlessClient {
    /// Asks nodes at these addresses: what is the newest snapshot from the last one on, and what is its block.
    fn start(addresses: Vec<String>, answers: Answers) -> Self {
        let (is_over, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (over, count) = (is_over.clone(), answered.clone());
        let asking = tokio::spawn(async move {
            let http = http();
            let mut seen = 0;
            for address in addresses.iter().cycle() {
                if over.load(Relaxed) {
                    return;
                }
                let body = json!([
                    request(1, "presim_snapshot", json!([])),
                    request(2, "eth_getBlockByNumber", json!(["pending", false])),
                    request(3, "eth_getBalance", json!(["0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266", "pending"])),
                ]);
                let asked = http.post(address).timeout(Duration::from_secs(2)).json(&body);
                let asked = asked.header("x-presim-min-snapshot", format!("{seen:#x}"));
                // A way that is cut answers nothing, and a node that is behind says so.
                let Ok(response) = asked.send().await else { continue };
                let Ok(Value::Array(entries)) = response.json().await else { continue };
                let [snapshot, block, balance] = &entries[..] else { continue };
                let Some(id) = snapshot["result"]["id"].as_str() else { continue };
                let id = u64::from_str_radix(id.trim_start_matches("0x"), 16).expect("a quantity");
                assert!(id >= seen, "{address} went back from {seen:#x} to {id:#x}");
                seen = id;
                if snapshot["result"]["feed"] != "live" && snapshot["result"]["feed"] != "lagging" {
                    // `pending` is another state there.
                    continue;
                }
                let told = json!([block["result"], balance["result"]]);
                let mut answers = answers.lock().expect("no client panics with it");
                let known = answers.entry(id).or_insert_with(|| told.clone());
                assert_eq!(*known, told, "{id:#x} is answered in two ways, by {address}");
                count.fetch_add(1, Relaxed);
            }
        });
        Self { asking, is_over, answered }
    }

    /// Waits for so many more answers.
    async fn hear(&self, more: u64) {
        let before = self.answered.load(Relaxed);
        until("the client is answered", async || {
            assert!(!self.asking.is_finished(), "the client has failed");
            self.answered.load(Relaxed) >= before + more
        })
        .await;
    }

    /// Ends, and returns the number of answers.
    async fn end(self) -> u64 {
        self.is_over.store(true, Relaxed);
        self.asking.await.expect("nothing was answered in two ways, and nothing went back");
        self.answered.load(Relaxed)
    }
}

/// Waits until all nodes show a live feed.
async fn all_are_live(nodes: &[&TestNode]) {
    until("all feeds are live", async || {
        nodes.iter().all(|node| matches!(node.node.snapshots().load().feed(), FeedState::Live { .. }))
    })
    .await;
}

/// Waits until a node has a newer snapshot than `id`.
async fn is_past(node: &TestNode, id: SnapshotId) -> SnapshotId {
    reach(node, id.next()).await;
    node.node.snapshots().newest().id
}

#[tokio::test(flavor = "multi_thread")]
async fn ways_that_are_cut_and_mended_leave_no_id_with_two_answers() {
    let Some(server) = NatsServer::start() else { return };
    let [to_first, to_second, to_a, to_b] = [
        CutProxy::to(server.port).await,
        CutProxy::to(server.port).await,
        CutProxy::to(server.port).await,
        CutProxy::to(server.port).await,
    ];
    let chain = StreamedDevnet::start(&QUICK).await;
    let publish = |way: &CutProxy| ingester(&chain, &way.url(), &KEPT);
    let first = publish(&to_first);
    advance(&first, 2).await;
    let second = publish(&to_second);
    let follow = |way: &CutProxy| start(&[&["--follow", &way.url(), "--max-catch-up-ms", "500"], &KEPT[..]].concat());
    let (a, b) = (follow(&to_a), follow(&to_b));
    let (client_to_a, client_to_b) = (
        CutProxy::to(a.node.info().listen.expect("it listens").port()).await,
        CutProxy::to(b.node.info().listen.expect("it listens").port()).await,
    );
    let answers = Answers::default();
    let addresses: Vec<String> =
        [&client_to_a, &client_to_b].iter().map(|way| format!("http://{}/", way.address)).collect();
    let clients = [(); 2].map(|()| RestlessClient::start(addresses.clone(), answers.clone()));
    let nodes = [&first, &second, &a, &b];
    for round in 0..rounds() {
        // Each pair in turn: a node that publishes and the server, a replica and the server, a client and a replica.
        for (pair, way) in [&to_first, &to_a, &client_to_b, &to_second, &to_b, &client_to_a].into_iter().enumerate() {
            for client in &clients {
                client.hear(5).await;
            }
            let before = a.node.snapshots().newest().id.max(b.node.snapshots().newest().id);
            way.cut();
            // The others go on: another node leads, or the other replica answers.
            let other = if pair == 1 { &b } else { &a };
            is_past(other, before).await;
            for client in &clients {
                client.hear(5).await;
            }
            way.mend();
            all_are_live(&nodes).await;
            let newest = nodes.iter().map(|node| node.node.snapshots().load().last).max().expect("a node");
            for node in nodes {
                is_past(node, newest).await;
            }
            say(&format!("round {round}, pair {pair}: mended at {:#x}", newest.0));
        }
    }
    for client in clients {
        assert!(client.end().await > 100);
    }
    let id = advance(&a, 1).await;
    for node in nodes {
        reach(node, id).await;
    }
    agree_on(&nodes, id, "/").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_cut_off_answers_nothing_older_than_its_client_has_seen() {
    let Some(server) = NatsServer::start() else { return };
    // The canonical head of a block of many sub-blocks is older than what was shown.
    let chain = StreamedDevnet::start(&["--sub-block-ms", "50", "--sub-blocks", "1000"]).await;
    let leader = ingester(&chain, &server.url(), &[]);
    advance(&leader, 2).await;
    let way = CutProxy::to(server.port).await;
    let follower = start(&["--follow", &way.url()]);
    let seen = advance(&leader, 3).await;
    reach(&follower, seen).await;
    let http = http();
    let ask = async || {
        let body = request(1, "eth_getBlockByNumber", json!(["pending", false]));
        let asked = http.post(follower.url("/")).header("x-presim-min-snapshot", format!("{:#x}", seen.0)).json(&body);
        asked.send().await.expect("it answers").json::<Value>().await.expect("JSON")
    };
    assert!(ask().await["result"].is_object());
    way.cut();
    until("it notices", async || follower.node.snapshots().load().feed().is_degraded()).await;
    let answer = ask().await;
    let text = answer["error"]["message"].as_str().unwrap_or_default();
    assert!(answer["error"]["code"] == -32000 && text.contains("the feed is degraded"), "{answer}");
    way.mend();
    all_are_live(&[&follower]).await;
    assert!(ask().await["result"].is_object());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_or_a_replica_killed_under_load_leaves_no_id_with_two_answers() {
    let Some(mut server) = NatsServer::start() else { return };
    let url = server.url();
    let chain = StreamedDevnet::start(&QUICK).await;
    let leader = ingester(&chain, &url, &KEPT);
    advance(&leader, 2).await;
    let steady = start(&[&["--follow", &url], &KEPT[..]].concat());
    let run = || tokio::task::block_in_place(|| Presim::start(&[&["--follow", &url], &KEPT[..]].concat()));
    let answers = Answers::default();
    for _ in 0..rounds() {
        let mut other = run();
        let client = RestlessClient::start(
            vec![steady.url("/"), format!("{}/", other.url.trim_end_matches('/'))],
            answers.clone(),
        );
        client.hear(20).await;
        other.child.kill().expect("it runs");
        other.child.wait().expect("it ends");
        client.hear(20).await;
        let before = leader.node.snapshots().load().last;
        server.kill();
        client.hear(1).await;
        server.restart();
        is_past(&leader, before).await;
        is_past(&steady, leader.node.snapshots().newest().id).await;
        client.hear(20).await;
        client.end().await;
    }
    all_are_live(&[&leader, &steady]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_a_thousand_snapshots_behind_catches_up() {
    let Some(server) = NatsServer::start() else { return };
    let chain = StreamedDevnet::start(&["--sub-block-ms", "10", "--sub-blocks", "4", "--traffic", "1"]).await;
    let leader = ingester(&chain, &server.url(), &KEPT);
    advance(&leader, 2).await;
    let way = CutProxy::to(server.port).await;
    let follower = start(&[&["--follow", way.url().as_str()][..], &KEPT[..]].concat());
    reach(&follower, advance(&leader, 1).await).await;
    way.cut();
    let stood = follower.node.snapshots().load().last;
    let id = advance(&leader, 1_000).await;
    assert!(follower.node.snapshots().load().last.0 < stood.0 + 100, "it was cut off");
    way.mend();
    reach(&follower, id).await;
    let id = advance(&leader, 1).await;
    reach(&follower, id).await;
    agree_on(&[&leader, &follower], id, "/").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_fleets_of_a_server_and_what_is_in_no_fleet_disturb_nobody() {
    let Some(server) = NatsServer::start() else { return };
    let url = server.url();
    let chain = StreamedDevnet::start(&QUICK).await;
    let publish = |fleet: &str| ingester_of(&chain, fleet, &url, &[]);
    let (one, two) = (publish("one"), publish("two"));
    advance(&one, 2).await;
    advance(&two, 2).await;
    let error = format!("{:#}", try_start(&["--follow", &url]).err().expect("it is refused"));
    assert!(error.contains("one") && error.contains("two") && error.contains("--fleet"), "{error}");
    let follow = |fleet: &str| start(&["--follow", &url, "--fleet", fleet]);
    let (of_one, of_two) = (follow("one"), follow("two"));
    for (leader, follower) in [(&one, &of_one), (&two, &of_two)] {
        let id = advance(leader, 3).await;
        reach(follower, id).await;
        agree_on(&[leader, follower], id, "/").await;
    }
    drop((two, of_two));
    // Messages of another program take the place of the leader's next one.
    let jetstream = jetstream::new(server.connect().await);
    let stood = one.node.snapshots().load().last;
    for _ in 0..2 {
        let put = jetstream.publish("presim.one.feed", "no message of presim".into());
        put.await.expect("it is sent").await.expect("it is stored");
    }
    until("a node leads again, with an epoch of its own", async || {
        of_one.node.snapshots().newest().id.epoch() > stood.epoch()
    })
    .await;
    let id = advance(&one, 3).await;
    reach(&of_one, id).await;
    agree_on(&[&one, &of_one], id, "/").await;
}
