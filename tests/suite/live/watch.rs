//! Standing bundles on an upstream's state.

use alloy_primitives::{Address, U256, hex};
use serde_json::{Value, json};

use super::{
    built::{Built, ETHEREUM, SOMEBODY, STORE, store, transfer},
    head, serve, start,
};
use crate::{
    support::{BOUND, Socket, TestNode, items, request},
    upstream::Fault,
    watch::{Held, newest, stand},
};

/// The account that an override gives the bundles' code.
const RUNNER: &str = "0x0000000000000000000000000000000000004e11";

fn bundle(name: &str, account: &str, code: &str) -> Value {
    json!({ "name": name, "simulate": {
        "blockStateCalls": [{
            "stateOverrides": { account: { "code": code } },
            "calls": [{ "to": account, "gas": "0x186a0" }],
        }],
        "outputs": ["returnData", "gasUsed"],
    } })
}

/// Returns a bundle that reads a balance.
pub fn reads_balance(name: &str, of: Address) -> Value {
    bundle(name, RUNNER, &format!("0x73{}315f5260205ff3", hex::encode(of)))
}

/// Returns bundles that read slot 0 of a contract, the balance of its transfers' recipient, and many other balances.
fn bundles() -> Vec<Value> {
    let slot = bundle("slot", &STORE.to_string(), "0x5f545f5260205ff3");
    let others =
        (1..=70).map(|number| reads_balance(&format!("other {number}"), Address::with_last_byte(100 + number)));
    [slot, reads_balance("balance", SOMEBODY)].into_iter().chain(others).collect()
}

/// Waits for the news of the newest snapshot, and compares what the client holds with fresh runs.
async fn check(held: &mut Held, socket: &mut Socket, watch: &Value, node: &TestNode, bundles: &[Value], what: &str) {
    held.until(socket, watch, &newest(node).await).await;
    held.check(node, bundles, what).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn standing_bundles_follow_an_upstream_through_reorgs_and_faults() {
    let genesis = Built::ethereum();
    let one = genesis.next(vec![transfer(ETHEREUM, 0, 7), store(ETHEREUM, 1, 5)], 1);
    let two = one.next(vec![transfer(ETHEREUM, 2, 8)], 1);
    let other = one.next(vec![store(ETHEREUM, 2, 9), transfer(ETHEREUM, 3, 1)], 2);
    let last = other.next(vec![transfer(ETHEREUM, 4, 2)], 2);
    let upstream = serve(&[&genesis, &one]).await;
    // Few rounds, so that bundles which need other state must have it fetched together.
    let node = start(&upstream.url(), &genesis.config, &["--upstream-rounds", "6", "--deadline-ms", "3000"]).await;
    let mut socket = Socket::open(&node, "/").await;
    let bundles = bundles();
    upstream.fail(Fault::ServerError, usize::MAX);
    let watch = stand(&mut socket, json!([bundles])).await["watch"].take();
    let mut held = Held::new();
    let news = socket.notification(&watch).await;
    let behind = items(&news["behind"]);
    assert_eq!(behind.len(), bundles.len(), "{news}");
    assert!(behind.iter().any(|one| one["stale"]["code"] == -32603), "an upstream that fails is no answer: {news}");
    assert!(held.take(&news), "the last part");
    let before = node.metric("presim_standing_runs_total");
    upstream.well();
    check(&mut held, &mut socket, &watch, &node, &bundles, "at first").await;
    let runs = node.metric("presim_standing_runs_total") - before;
    // A client that was told only what was behind is told the rest.
    let mut later = Socket::open(&node, "/").await;
    let again = later.call("presim_rewatch", json!([watch, news["id"]])).await;
    assert_eq!(items(&again["result"]["changed"]).len(), bundles.len(), "{again}");
    socket.call("presim_rewatch", json!([watch, again["result"]["id"]])).await;
    assert!(runs < 3.0 * bundles.len() as f64, "many bundles miss state in one round: {runs} runs");

    upstream.push(two.block.clone());
    head(&node, two.hash()).await;
    check(&mut held, &mut socket, &watch, &node, &bundles, "after a block").await;
    let before = node.metric("presim_standing_runs_total");
    upstream.reorganise(vec![other.block.clone(), last.block.clone()]);
    head(&node, last.hash()).await;
    check(&mut held, &mut socket, &watch, &node, &bundles, "after a reorg").await;
    let runs = node.metric("presim_standing_runs_total") - before;
    assert!(runs <= 4.0, "only what either branch has touched is due: {runs} runs");
    let word = |value: u64| json!(format!("{value:#066x}"));
    assert_eq!(held.answers["slot"]["result"][0]["calls"][0]["returnData"], word(9));
    assert_eq!(held.answers["balance"]["result"][0]["calls"][0]["returnData"], word(10));
}

/// Most bundles are answered at once, and one waits for the upstream meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn parts_are_numbered_from_0_for_the_connection_that_takes_a_watch_over() {
    let genesis = Built::ethereum();
    let upstream = serve(&[&genesis]).await;
    let flags = ["--workers", "2", "--deadline-ms", "600000", "--upstream-timeout-ms", "600000"];
    let node = start(&upstream.url(), &genesis.config, &flags).await;
    // All but the last balance is known before.
    let known = reads_balance("", SOMEBODY);
    node.result("/", "presim_simulate", json!([known["simulate"], "pending"])).await;
    upstream.slow("eth_getBalance", 10 * BOUND);
    let quick = (0..64).map(|number| reads_balance(&number.to_string(), SOMEBODY));
    let waits = reads_balance("waits", Address::with_last_byte(250));
    let bundles: Vec<Value> = quick.chain([waits]).collect();
    let mut one = Socket::open(&node, "/").await;
    let begun = stand(&mut one, json!([bundles])).await;
    let watch = &begun["watch"];
    let mut told = 0;
    for part in 0.. {
        let news = one.notification(watch).await;
        assert_eq!((&news["part"], &news["last"]), (&json!(part), &json!(false)), "{news}");
        told += items(&news["changed"]).len();
        if told == 64 {
            break;
        }
    }
    let mut other = Socket::open(&node, "/").await;
    let again = other.call("presim_rewatch", json!([watch, begun["id"]])).await["result"].take();
    assert_eq!(items(&again["changed"]).len(), 64, "{again}");
    assert_eq!(again["behind"], json!([{ "name": "waits", "id": null }]));
    upstream.answer_now();
    let news = other.notification(watch).await;
    assert_eq!((&news["part"], &news["last"], &news["behind"]), (&json!(0), &json!(true), &json!([])), "{news}");
    assert_eq!(news["changed"][0]["name"], "waits", "{news}");
}

/// Each run of bundles waits for a balance that the upstream does not tell, so the balances that it is asked for show how
/// many runs are under way.
#[tokio::test(flavor = "multi_thread")]
async fn while_others_wait_bundles_run_on_no_more_than_their_share_of_the_workers() {
    let genesis = Built::ethereum();
    let account = |number: u64| Address::from_word(U256::from(0x10_0000 + number).into());
    let asked = |number: u64| format!("eth_getBalance {:#x}", account(number));
    let flags = ["--workers", "4", "--watch-share", "0.5", "--deadline-ms", "600000", "--gas-cap", "1000000000000"];
    for others_wait in [false, true] {
        let upstream = serve(&[&genesis]).await;
        let node = start(&upstream.url(), &genesis.config, &flags).await;
        let post = |method: &str, params: Value| {
            let post = node.client.post(node.url("/")).json(&request(1, method, params));
            tokio::spawn(async move { post.send().await })
        };
        // A call that runs until its client is gone.
        let spins = json!([{ "to": RUNNER, "gas": "0xe8d4a51000" }, "latest", { RUNNER: { "code": "0x5b5f56" } }]);
        let waiting = others_wait.then(|| post("eth_call", spins));
        let runs = async {
            while others_wait && node.metric("presim_jobs_running{lane=\"short\"}") < 1.0 {
                newest(&node).await;
            }
        };
        tokio::time::timeout(BOUND, runs).await.expect("it runs");
        upstream.slow("eth_getBalance", 2 * BOUND);
        // Two runs of 64 bundles each.
        for first in [0, 128] {
            let bundles: Vec<Value> =
                (first..first + 128).map(|number| reads_balance(&number.to_string(), account(number))).collect();
            node.result("/", "presim_watch", json!([bundles])).await;
        }
        let firsts = [0, 64, 128, 192].map(asked);
        upstream.are_asked(&firsts, if others_wait { 2 } else { 4 }).await;
        if let Some(waiting) = waiting {
            // A request that comes later, and goes first.
            let later = json!([reads_balance("", account(999))["simulate"], "latest"]);
            let later = post("presim_simulate", later);
            upstream.is_asked(&asked(999), 1).await;
            assert_eq!(firsts.iter().filter(|first| upstream.asked(first) > 0).count(), 2, "half of the workers");
            later.abort();
            waiting.abort();
        }
    }
}
