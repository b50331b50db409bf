//! Large work is spread over the replicas of a fleet, and answered as one node answers it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use presim::state::SnapshotId;
use serde_json::{Value, json};

use super::{advance, ingester, reach, replica, server::NatsServer, until};
use crate::{
    process::Presim,
    support::{BOUND, Socket, TestNode, hex, items, number, request, say, signal, token, token_file},
    watch::stand,
};

/// A token that anyone sets: a call stores x (1000 - x) for the word x of its data, and `balanceOf` returns this for any
/// account. A word above 1000 reverts.
const HILL: &str = "0x5f3560e01c6370a08231146026576004356103e88111602257806103e803025f55005b5f5ffd5b5f545f5260205ff3";
const TOKEN: &str = "0x00000000000000000000000000000000000070c0";
const FROM: &str = "0x000000000000000000000000000000000000f00d";

/// Settings of a leader whose chain moves only when it is told to.
const STILL: [&str; 4] = ["--traffic", "3", "--sub-block-ms", "60000"];
const SHARDS: [&str; 2] = ["--shard-size", "20"];

/// Returns the parameters of a search for the top of the hill, which tries `count` values.
pub fn search(count: u64, at: &Value) -> Value {
    let call = json!({ "from": FROM, "to": TOKEN, "data": format!("0x00000000{:064x}", 0) });
    let blocks = json!([{
        "stateOverrides": { TOKEN: { "code": HILL }, FROM: { "balance": "0xde0b6b3a7640000" } },
        "calls": [call],
    }]);
    let vary = json!([{ "path": "blocks[0].calls[0].data", "word": 0, "from": 1, "to": count, "step": 1 }]);
    let objective = json!({ "account": FROM, "token": TOKEN });
    let payload = json!({
        "blockStateCalls": blocks, "vary": vary, "objective": objective, "top": 7, "outputs": ["assets", "readSet", "logs"],
    });
    json!([payload, at])
}

/// Returns a batch of calls of all kinds, with what is no call in between.
fn batch(count: u64, at: &Value) -> Value {
    let entry = |index: u64| match index % 7 {
        0 => request(index, "eth_call", json!([{ "to": FROM, "data": "0x1234" }, at])),
        1 => request(
            index,
            "eth_call",
            json!([{ "to": TOKEN, "data": format!("0x00000000{index:064x}") }, at, { TOKEN: { "code": HILL } }]),
        ),
        2 => request(index, "eth_getBalance", json!([FROM, at])),
        3 => request(index, "eth_estimateGas", json!([{ "from": FROM, "to": TOKEN }, at])),
        4 => request(index, "presim_nothing", json!([])),
        5 => request(index, "eth_simulateV1", json!([{ "blockStateCalls": [{ "calls": [{ "to": TOKEN }] }] }, at])),
        _ => {
            json!({ "jsonrpc": "2.0", "id": format!("a \"{index}\""), "method": "eth_call", "params": [{ "to": 7 }, at] })
        }
    };
    (0..count).map(entry).collect()
}

/// Waits until a node knows so many replicas.
pub async fn knows(node: &TestNode, count: f64) {
    until("the replicas are known", async || node.metric("presim_fleet_peers") == count).await;
}

/// Returns the number of shards with an outcome.
pub fn shards(node: &TestNode, outcome: &str) -> f64 {
    node.metric(&format!("presim_shards_total{{outcome=\"{outcome}\"}}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spread_search_or_batch_is_answered_as_by_one_node_to_the_byte() {
    let Some(server) = NatsServer::start() else { return };
    // A node that does all of it.
    let alone = ingester(&server.url(), &[&STILL[..], &["--shard-size", "0"]].concat());
    let replicas = [(); 2].map(|()| replica(&server.url(), &SHARDS));
    let id = alone.node.snapshots().newest().id;
    for replica in &replicas {
        reach(replica, id).await;
        knows(replica, 1.0).await;
    }
    let mut by_peers = 0.0;
    for (at, path) in [json!("pending"), json!("latest"), json!("0x0")]
        .into_iter()
        .flat_map(|at| ["/", "/standard"].map(|path| (at.clone(), path)))
    {
        for body in [request(1, "presim_search", search(300, &at)), batch(200, &at)] {
            let (_, expected) = alone.post(path, body.to_string()).await;
            assert!(expected.contains("\"result\""), "{expected}");
            for replica in &replicas {
                assert_eq!(replica.post(path, body.to_string()).await.1, expected, "{path} {at}");
            }
            let now = shards(&replicas[0], "peer");
            assert!(now > by_peers, "nothing of {body} was spread");
            by_peers = now;
        }
    }
    // A search that is wrong, and one that narrows an interval.
    for params in [json!([{ "blockStateCalls": [], "vary": [], "objective": "gasUsed" }, "pending"]), {
        let mut params = search(2, &json!("pending"));
        let place = &mut params[0]["vary"][0];
        *place = json!({ "path": place["path"], "word": 0, "maximize": { "from": 0, "to": 1000 } });
        params
    }] {
        let body = request(1, "presim_search", params).to_string();
        let (_, expected) = alone.post("/", body.clone()).await;
        assert_eq!(replicas[0].post("/", body).await.1, expected);
    }
    assert_eq!((shards(&alone, "peer"), shards(&alone, "self")), (0.0, 0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shards_of_a_replica_that_is_gone_are_done_by_others() {
    let Some(server) = NatsServer::start() else { return };
    let url = server.url();
    let leader = ingester(&url, &[&STILL[..], &["--shard-size", "0"]].concat());
    let gateway = replica(&url, &SHARDS);
    let mut other = tokio::task::block_in_place(|| Presim::start(&["--follow", &url, "--shard-size", "20"]));
    knows(&gateway, 1.0).await;
    let body = request(1, "presim_search", search(400, &json!("pending"))).to_string();
    let (_, expected) = leader.post("/", body.clone()).await;
    // A replica that stands still keeps the shards that it was sent.
    signal(other.child.id(), "STOP");
    assert_eq!(gateway.post("/", body.clone()).await.1, expected);
    assert!(shards(&gateway, "again") > 0.0, "no shard was under way");
    knows(&gateway, 0.0).await;
    let before = shards(&gateway, "self");
    assert_eq!(gateway.post("/", body.clone()).await.1, expected, "alone");
    assert_eq!(shards(&gateway, "self"), before, "what one node does alone is not spread");
    other.child.kill().expect("it runs");
    other.child.wait().expect("it ends");
    // Killed in the middle of it all.
    let mut other = tokio::task::block_in_place(|| Presim::start(&["--follow", &url, "--shard-size", "20"]));
    knows(&gateway, 1.0).await;
    let asked = async {
        for _ in 0..10 {
            assert_eq!(gateway.post("/", body.clone()).await.1, expected);
        }
    };
    let killed = async {
        let before = shards(&gateway, "peer");
        until("a shard was done there", async || shards(&gateway, "peer") > before).await;
        other.child.kill().expect("it runs");
        other.child.wait().expect("it ends");
    };
    tokio::join!(asked, killed);
    knows(&gateway, 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_counts_once_whoever_does_the_work() {
    let Some(server) = NatsServer::start() else { return };
    let leader = ingester(&server.url(), &STILL);
    advance(&leader, 0).await;
    let tokens = token_file(&[("a", 300)]);
    let flags = ["--token-file", tokens.path().to_str().expect("UTF-8"), "--shard-size", "10"];
    let replicas = [(); 2].map(|()| replica(&server.url(), &flags));
    knows(&replicas[0], 1.0).await;
    knows(&replicas[1], 1.0).await;
    // Each node counts what its own clients ask. Whether the other had counted it, too, is seen by asking that one.
    for replica in &replicas {
        let found = replica.call_as(&token("a"), "presim_search", search(299, &json!("pending"))).await;
        assert_eq!(found["result"]["runs"], 299, "{found}");
    }
    assert!(shards(&replicas[0], "peer") > 0.0 && shards(&replicas[0], "again") == 0.0);
    let refused = replicas[0].call_as(&token("a"), "presim_search", search(299, &json!("pending"))).await;
    assert!(refused["error"]["message"].as_str().is_some_and(|text| text.contains("rate limit")), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_with_other_settings_or_behind_is_left_out() {
    let Some(server) = NatsServer::start() else { return };
    let leader = ingester(&server.url(), &["--sub-block-ms", "50", "--shard-size", "20"]);
    let same = replica(&server.url(), &SHARDS);
    let _other = replica(&server.url(), &["--gas-cap", "1000000"]);
    knows(&leader, 1.0).await;
    // While the chain goes on, a shard is done on the very snapshot of its request, or here.
    for _ in 0..20 {
        let [on, found] = &leader
            .batch("/", &[("presim_snapshot", json!([])), ("presim_search", search(100, &json!("pending")))])
            .await[..]
        else {
            panic!("two answers");
        };
        let id = json!({ "snapshotId": on["id"] });
        assert_eq!(same.result("/", "presim_search", search(100, &id)).await, *found, "{on}");
    }
    assert!(shards(&leader, "peer") > 0.0);
}

/// The answers of a watch as its client was told them.
struct ToldAnswers {
    id: u64,
    answers: BTreeMap<String, Value>,
    behind: BTreeSet<String>,
}

impl ToldAnswers {
    /// Takes notifications until all of the snapshot `id` or a newer one was told, and nothing is behind.
    async fn until(&mut self, socket: &mut Socket, watch: &Value, id: SnapshotId) {
        loop {
            let news = tokio::time::timeout(BOUND, socket.notification(watch)).await.expect("news");
            let is_late = news["late"] == true;
            if !is_late {
                self.id = number(&news["id"]);
                self.behind.clear();
            }
            for one in items(&news["changed"]) {
                let name = one["name"].as_str().expect("a name").to_owned();
                self.behind.remove(&name);
                let before = self.answers.insert(name, one.clone());
                assert!(is_late || before.as_ref() != Some(one), "it is told twice");
            }
            let behind = news.get("behind").map(items).into_iter().flatten();
            self.behind.extend(behind.map(|one| one["name"].as_str().expect("a name").to_owned()));
            let is_end = is_late || news["last"] == true;
            if is_end && self.behind.is_empty() && self.id >= id.0 {
                return;
            }
        }
    }

    /// Compares all answers with those of a node that runs the bundles anew.
    async fn check(&self, node: &TestNode, bundles: &[Value]) {
        let at = json!({ "snapshotId": hex(self.id) });
        let asked =
            (0..).zip(bundles).map(|(id, bundle)| request(id, "presim_simulate", json!([bundle["simulate"], at])));
        let fresh = node.send("/", &asked.collect()).await;
        assert_eq!(self.answers.len(), bundles.len(), "an answer was never told");
        for (bundle, fresh) in bundles.iter().zip(items(&fresh)) {
            let told = &self.answers[bundle["name"].as_str().expect("a name")];
            assert_eq!((&told["result"], &told["error"]), (&fresh["result"], &fresh["error"]), "{bundle} at {at}");
        }
    }
}

/// Returns bundles that read the pools of the trading world, and some that read what does not change.
fn standing(node: &TestNode, count: usize) -> Vec<Value> {
    let (trading, pairs) = (node.node.info().trading.expect("a trading world"), &node.node.info().pairs);
    let bundle = |index: usize| {
        // `getReserves`, and `totalSupply`.
        let (to, data) = match index % 3 {
            0 => (trading.weth, "0x18160ddd"),
            _ => (pairs[index % pairs.len()].address, "0x0902f1ac"),
        };
        let from = format!("{:#042x}", 0x1000 + index);
        let call = json!({ "from": from, "to": to, "data": data, "gas": "0x186a0" });
        json!({ "name": format!("bundle {index}"), "simulate": { "blockStateCalls": [{ "calls": [call] }] } })
    };
    (0..count).map(bundle).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spread_watch_tells_each_change_once_whichever_replica_fails() {
    let Some(server) = NatsServer::start() else { return };
    let url = server.url();
    let kept = ["--keep-snapshots", "1000", "--keep-blocks", "1000"];
    let leader =
        ingester(&url, &[&kept[..], &["--sub-block-ms", "500", "--traffic", "8", "--shard-size", "0"]].concat());
    advance(&leader, 3).await;
    let gateway = replica(&url, &[&kept[..], &SHARDS].concat());
    let start = || tokio::task::block_in_place(|| Presim::start(&["--follow", &url, "--shard-size", "20"]));
    let mut other = start();
    knows(&gateway, 1.0).await;
    let bundles = standing(&leader, 80);
    let mut socket = Socket::open(&gateway, "/").await;
    let watch = stand(&mut socket, json!([bundles])).await["watch"].clone();
    let mut told = ToldAnswers { id: 0, answers: BTreeMap::new(), behind: BTreeSet::new() };
    let mut slowest = Duration::ZERO;
    for round in 0..3 {
        for _ in 0..4 {
            let id = advance(&leader, 1).await;
            told.until(&mut socket, &watch, id).await;
            told.check(&leader, &bundles).await;
        }
        assert!(shards(&gateway, "peer") > 0.0);
        // The replica stands still with the bundles that it was sent, or is killed.
        let failed = Instant::now();
        signal(other.child.id(), if round % 2 == 0 { "STOP" } else { "KILL" });
        let id = advance(&leader, 1).await;
        told.until(&mut socket, &watch, id).await;
        slowest = slowest.max(failed.elapsed());
        told.check(&leader, &bundles).await;
        knows(&gateway, 0.0).await;
        other.child.kill().expect("it runs");
        other.child.wait().expect("it ends");
        other = start();
        knows(&gateway, 1.0).await;
    }
    say(&format!("all of a snapshot after the failure of a replica was told within {slowest:?}"));
}
