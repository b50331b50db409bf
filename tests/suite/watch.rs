//! Standing bundles: `presim_watch` and what belongs to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use rand::{Rng, SeedableRng, rngs::SmallRng};
use serde_json::{Value, json};

use crate::{
    random_bundles::{ACCOUNTS, POOL_CODES, SLOTS, account, bundle, pool_code},
    support::{BOUND, Socket, TestNode, items, number, request, token, token_file},
};

/// Starts a devnet that moves on only when it is told to.
fn node() -> TestNode {
    node_with(&[])
}

pub fn node_with(flags: &[&str]) -> TestNode {
    TestNode::start(
        &[&["--traffic", "0", "--testing", "--world", "--dialect", "project", "--no-mining"], flags].concat(),
    )
}

/// Makes a change of the chain.
async fn change(node: &TestNode, random: &mut SmallRng, saved: &mut Vec<Value>) {
    let account = account(random.random_range(0..ACCOUNTS));
    let (method, params) = match random.random_range(0..14) {
        0 | 1 => ("anvil_setBalance", json!([account, format!("{:#x}", random.random_range(0..4) * 50)])),
        2 => ("anvil_setNonce", json!([account, format!("{:#x}", random.random_range(0..3))])),
        3 => ("anvil_setCode", json!([account, pool_code(random.random_range(0..POOL_CODES))])),
        4..=7 => (
            "anvil_setStorageAt",
            json!([
                account,
                format!("{:#x}", random.random_range(0..SLOTS)),
                format!("{:#066x}", random.random_range(0..3))
            ]),
        ),
        8 => ("evm_increaseTime", json!([random.random_range(1..50)])),
        9 => ("evm_snapshot", json!([])),
        10 if !saved.is_empty() => {
            let at = random.random_range(0..saved.len());
            let id = saved[at].clone();
            saved.truncate(at);
            ("evm_revert", json!([id]))
        }
        11 => {
            let signer = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266";
            let sent = json!([{ "from": signer, "to": account, "value": "0x1", "gas": "0x30d40" }]);
            let _ = node.call("/", "eth_sendTransaction", sent).await;
            ("evm_mine", json!([]))
        }
        _ => ("evm_mine", json!([])),
    };
    let done = node.result("/", method, params).await;
    if method == "evm_snapshot" {
        saved.push(done);
    }
}

/// Returns a search over a bundle's first value.
fn search(random: &mut SmallRng, mut payload: Value) -> Value {
    payload["vary"] = json!([{ "path": "blocks[0].calls[0].value", "values": [0, 1, 60] }]);
    payload["objective"] = match random.random_range(0..4) {
        0 => json!("gasUsed"),
        1 => json!("coinbase"),
        _ => json!({ "account": account(random.random_range(0..ACCOUNTS)), "gasPrice": random.random_range(0..2) }),
    };
    payload
}

/// The state that a client holds of its standing bundles.
pub struct Held {
    pub id: Value,
    pub answers: BTreeMap<String, Value>,
    pub behind: BTreeMap<String, Value>,
    /// The number of the next part, and whether all parts of the snapshot have come.
    next: (u64, bool),
}

impl Held {
    pub fn new() -> Self {
        Self { id: Value::Null, answers: BTreeMap::new(), behind: BTreeMap::new(), next: (0, false) }
    }

    /// Takes a notification, or the result of a poll. Returns whether it was the last of its snapshot.
    pub fn take(&mut self, news: &Value) -> bool {
        for one in items(&news["changed"]) {
            let mut answer = one.clone();
            let name = answer["name"].as_str().unwrap().to_owned();
            answer
                .as_object_mut()
                .unwrap()
                .retain(|member, _| !["name", "id", "blockNumber"].contains(&member.as_str()));
            self.behind.remove(&name);
            self.answers.insert(name, answer);
        }
        if news["late"] == true {
            assert_eq!((news.get("part"), news.get("last")), (None, None), "{news}");
            assert!(self.id.is_null() || number(&news["id"]) <= number(&self.id), "late for {}: {news}", self.id);
            for one in items(&news["behind"]) {
                self.behind.insert(one["name"].as_str().unwrap().to_owned(), one.clone());
            }
            return true;
        }
        if news.get("part").is_some() {
            if news["id"] != self.id {
                self.next = (0, false);
            }
            assert_eq!(
                (number_of(&news["part"]), false),
                self.next,
                "parts of {}, whose end came before: {news}",
                self.id
            );
            self.next = (self.next.0 + 1, news["last"] == true);
        }
        self.id = news["id"].clone();
        if news.get("part").is_none_or(|part| part == 0) {
            self.behind.clear();
        }
        for one in news.get("behind").map(items).into_iter().flatten() {
            self.behind.insert(one["name"].as_str().unwrap().to_owned(), one.clone());
        }
        news.get("last").is_none_or(|last| last == true)
    }

    /// Takes notifications until those of a snapshot have come to their end.
    pub async fn until(&mut self, socket: &mut Socket, watch: &Value, id: &Value) {
        let mut is_last = true;
        while !is_last || self.id.is_null() || number(&self.id) < number(id) || !self.behind.is_empty() {
            let news = tokio::time::timeout(BOUND, socket.notification(watch)).await;
            is_last = self
                .take(&news.unwrap_or_else(|_| panic!("no news of {id}: {} and behind {:?}", self.id, self.behind)));
        }
    }

    /// Compares all answers with fresh ones.
    pub async fn check(&self, node: &TestNode, bundles: &[Value], what: &str) {
        let requests = bundles.iter().zip(0..).map(|(bundle, id)| {
            let method = if bundle.get("search").is_some() { "presim_search" } else { "presim_simulate" };
            let payload = bundle.get("search").or(bundle.get("simulate")).unwrap();
            request(id, method, json!([payload, { "snapshotId": self.id }]))
        });
        let mut answers = node.send("/", &requests.collect()).await;
        for (bundle, fresh) in bundles.iter().zip(answers.as_array_mut().unwrap()) {
            let fresh = fresh.as_object_mut().unwrap();
            fresh.retain(|key, _| key == "result" || key == "error");
            let name = bundle["name"].as_str().unwrap();
            let held = self.answers.get(name).unwrap_or_else(|| panic!("no answer of {name}"));
            assert_eq!(*held, Value::Object(fresh.clone()), "{name} at {} {what}\n{bundle}", self.id);
        }
    }
}

fn number_of(part: &Value) -> u64 {
    part.as_u64().unwrap()
}

/// Lets bundles stand, and returns the answer.
pub async fn stand(socket: &mut Socket, params: Value) -> Value {
    let mut answer = socket.call("presim_watch", params).await;
    assert!(answer["result"]["watch"].is_string(), "{answer}");
    answer["result"].take()
}

pub async fn newest(node: &TestNode) -> Value {
    node.result("/", "presim_snapshot", json!([])).await["id"].clone()
}

/// The steps of the suite, and of one seed. More are run with `PRESIM_WATCH_STEPS`.
const STEPS: u64 = 2_000;
const SEED_STEPS: u64 = 250;

#[tokio::test]
async fn what_a_watcher_holds_is_what_a_fresh_run_gives() {
    let steps = std::env::var("PRESIM_WATCH_STEPS").map_or(STEPS, |steps| steps.parse().unwrap());
    for seed in 0..steps.div_ceil(SEED_STEPS) {
        let mut random = SmallRng::seed_from_u64(seed);
        let node = node();
        let mut saved = Vec::new();
        for _ in 0..30 {
            change(&node, &mut random, &mut saved).await;
        }
        let bundles: Vec<Value> = (0..24)
            .map(|index| {
                let payload = bundle(&mut random, true);
                match index % 6 {
                    0 => json!({ "name": format!("b{index}"), "search": search(&mut random, payload) }),
                    _ => json!({ "name": format!("b{index}"), "simulate": payload }),
                }
            })
            .collect();
        let mut socket = Socket::open(&node, "/").await;
        let begun = stand(&mut socket, json!([bundles])).await;
        let mut held = Held::new();
        held.until(&mut socket, &begun["watch"], &newest(&node).await).await;
        held.check(&node, &bundles, "at first").await;
        let before = node.metric("presim_standing_runs_total");
        for step in 0..SEED_STEPS {
            change(&node, &mut random, &mut saved).await;
            held.until(&mut socket, &begun["watch"], &newest(&node).await).await;
            held.check(&node, &bundles, &format!("seed {seed} step {step}")).await;
        }
        let runs = node.metric("presim_standing_runs_total") - before;
        assert!(runs < 0.6 * SEED_STEPS as f64 * bundles.len() as f64, "{runs} runs");
    }
}

fn simulate(calls: Value) -> Value {
    json!({ "blockStateCalls": [{ "calls": calls }], "outputs": ["returnData"] })
}

/// Returns a bundle that reads slot 0 of an account, whose code returns it.
pub fn reads_slot(name: &str, number: u64) -> Value {
    json!({ "name": name, "simulate": simulate(json!([{ "to": account(number), "gas": "0x186a0" }])) })
}

pub fn read(value: u64) -> Value {
    json!([{ "fork": "osaka", "calls": [{ "returnData": format!("{value:#066x}") }] }])
}

pub async fn set_slot(node: &TestNode, account: u64, value: u64) {
    let params = json!([self::account(account), "0x0", format!("{value:#066x}")]);
    node.result("/", "anvil_setStorageAt", params).await;
}

/// Starts a chain on which the code of the first two accounts returns their slots 0, which are 1.
pub async fn two_readers(flags: &[&str]) -> TestNode {
    with_readers(node_with(flags)).await
}

async fn with_readers(node: TestNode) -> TestNode {
    for number in 0..2 {
        node.result("/", "anvil_setCode", json!([account(number), pool_code(0)])).await;
        set_slot(&node, number, 1).await;
    }
    node
}

#[tokio::test]
async fn only_what_a_change_touches_runs_again_and_is_told() {
    let node = two_readers(&[]).await;
    let mut socket = Socket::open(&node, "/").await;
    let bundles = json!([[reads_slot("a", 0), reads_slot("b", 1)], "pending"]);
    let begun = stand(&mut socket, bundles).await;
    let watch = &begun["watch"];
    assert_eq!(watch.as_str().unwrap().len(), 34, "{watch}");
    let first = socket.notification(watch).await;
    assert_eq!(number(&first["id"]), number(&begun["id"]) + 1);
    assert_eq!((&first["part"], &first["last"], &first["behind"]), (&json!(0), &json!(true), &json!([])));
    assert_eq!(first["changed"], json!([{ "name": "a", "result": read(1) }, { "name": "b", "result": read(1) }]));
    let runs = node.metric("presim_standing_runs_total");

    set_slot(&node, 1, 5).await;
    let told = socket.notification(watch).await;
    assert_eq!(told["changed"], json!([{ "name": "b", "result": read(5) }]), "{told}");
    // Neither a new block nor another account makes them due.
    node.result("/", "evm_mine", json!([])).await;
    let told = socket.notification(watch).await;
    assert_eq!((&told["changed"], &told["behind"]), (&json!([]), &json!([])), "{told}");
    // A slot that is written with the value that it has is no change.
    set_slot(&node, 1, 5).await;
    assert_eq!(socket.notification(watch).await["changed"], json!([]));
    assert_eq!(node.metric("presim_standing_runs_total") - runs, 1.0);

    // An answer that comes out the same is not told.
    let saved = node.result("/", "evm_snapshot", json!([])).await;
    set_slot(&node, 0, 7).await;
    assert_eq!(socket.notification(watch).await["changed"], json!([{ "name": "a", "result": read(7) }]));
    node.result("/", "evm_revert", json!([saved])).await;
    let told = socket.notification(watch).await;
    assert_eq!(told["changed"], json!([{ "name": "a", "result": read(1) }]), "the other branch touched it: {told}");
    assert_eq!(told["id"], newest(&node).await);

    // Another connection is not told of it.
    let refused = Socket::open(&node, "/").await.call("eth_unsubscribe", json!([watch])).await;
    let expected =
        format!("params[0]: subscription not found: {} does not belong to this connection", watch.as_str().unwrap());
    assert_eq!(refused["error"], json!({ "code": -32000, "message": expected }));
    let ended = socket.call("presim_unwatch", json!([watch])).await;
    assert_eq!(ended["result"], true);
    let error = node.error("/", "presim_results", json!([watch, "0x0"])).await;
    assert_eq!(error["code"], -32000, "{error}");
    assert!(error["message"].as_str().unwrap().contains("no such watch"), "{error}");
    set_slot(&node, 0, 9).await;
    let other = stand(&mut socket, json!([[reads_slot("c", 0)]])).await;
    let message = socket.read().await.unwrap();
    assert_eq!(message["params"]["subscription"], other["watch"], "{message}");
    assert_eq!(node.metric("presim_standing_bundles"), 1.0);
}

#[tokio::test]
async fn bundles_are_polled_and_taken_over() {
    let node = two_readers(&[]).await;
    let begun = node.result("/", "presim_watch", json!([[reads_slot("a", 0), reads_slot("b", 1)]])).await;
    let watch = begun["watch"].clone();
    let long = json!(5_000);
    let first = node.result("/", "presim_results", json!([watch, begun["id"], long])).await;
    assert_eq!(number(&first["id"]), number(&begun["id"]) + 1);
    let mut held = Held::new();
    held.take(&first);
    assert_eq!((held.answers.len(), held.behind.len()), (2, 0), "a poll waits until nothing is behind: {first}");
    let since = first["id"].clone();
    // A poll ends with the change that it waits for.
    let (told, ()) = tokio::join!(node.result("/", "presim_results", json!([watch, since, long])), async {
        node.result("/", "evm_mine", json!([])).await;
        set_slot(&node, 0, 3).await;
    });
    assert_eq!(told["changed"], json!([{ "name": "a", "id": newest(&node).await, "result": read(3) }]), "{told}");
    let none = node.result("/", "presim_results", json!([watch, told["id"], 10])).await;
    assert_eq!(none["changed"], json!([]), "{none}");

    // A connection takes them over, with what it has missed, and another takes them from it.
    let mut one = Socket::open(&node, "/").await;
    let again = one.call("presim_rewatch", json!([watch, since])).await["result"].clone();
    let changed = json!([{ "name": "a", "id": newest(&node).await, "result": read(3) }]);
    assert_eq!((&again["watch"], &again["changed"]), (&watch, &changed));
    set_slot(&node, 1, 4).await;
    let mut news = one.notification(&watch).await;
    while news["changed"] == json!([]) {
        news = one.notification(&watch).await;
    }
    assert_eq!(news["changed"], json!([{ "name": "b", "result": read(4) }]));
    let mut other = Socket::open(&node, "/").await;
    let again = other.call("presim_rewatch", json!([watch, news["id"]])).await["result"].clone();
    assert_eq!(again["changed"], json!([]), "{again}");
    set_slot(&node, 1, 6).await;
    let mut news = other.notification(&watch).await;
    while news["changed"] == json!([]) {
        news = other.notification(&watch).await;
    }
    assert_eq!(news["changed"], json!([{ "name": "b", "result": read(6) }]));
    let error = node.error("/", "presim_rewatch", json!([watch, "0x0"])).await;
    assert_eq!(error["code"], -32601, "{error}");
}

/// The id of a sealed block selects the block that was opened on it, so the answers name the block, too.
#[tokio::test]
async fn the_answers_on_sealed_blocks_are_those_of_their_block_number() {
    // A simulation on a sealed block has the time of the interval after it, and the block being built that of now.
    let testing = ["--traffic=0", "--testing", "--world", "--dialect=project"];
    let slow = [&testing[..], &["--block-time=600s", "--sub-block-ms=60000"]].concat();
    let node = with_readers(TestNode::start(&slow)).await;
    // NUMBER, TIMESTAMP and COINBASE.
    node.result("/", "anvil_setCode", json!([account(2), "0x435f52426020524160405260605ff3"])).await;
    let bundle = json!({ "name": "b", "simulate": simulate(json!([
        { "to": account(2), "gas": "0x186a0" },
        { "to": account(0), "gas": "0x186a0" },
    ])) });
    let fresh = async |at: Value| node.result("/", "presim_simulate", json!([bundle["simulate"], at])).await;
    let mut socket = Socket::open(&node, "/").await;
    let begun = stand(&mut socket, json!([[bundle], "latest"])).await;
    let watch = &begun["watch"];
    for block in 0..3 {
        let told = socket.notification(watch).await;
        assert_eq!(told["blockNumber"], format!("{block:#x}"), "{told}");
        let expected = json!([{ "name": "b", "result": fresh(told["blockNumber"].clone()).await }]);
        assert_eq!(told["changed"], expected);
        assert_ne!(told["changed"][0]["result"], fresh(json!({ "snapshotId": told["id"] })).await, "{told}");
        let name = json!({ "id": told["id"], "blockNumber": told["blockNumber"] });
        let expected = json!([{
            "name": "b", "id": name["id"], "blockNumber": name["blockNumber"], "result": expected[0]["result"],
        }]);
        let polled = node.result("/", "presim_results", json!([watch, begun["id"]])).await;
        assert_eq!((&polled["blockNumber"], &polled["changed"]), (&told["blockNumber"], &expected), "{polled}");
        let again = socket.call("presim_rewatch", json!([watch, begun["id"]])).await["result"].take();
        assert_eq!((&again["blockNumber"], &again["changed"]), (&told["blockNumber"], &expected), "{again}");
        node.result("/", "evm_mine", json!([])).await;
    }
    // A snapshot has an id of its own.
    let begun = stand(&mut socket, json!([[bundle]])).await;
    let told = socket.notification(&begun["watch"]).await;
    assert_eq!(told["changed"][0]["result"], fresh(json!({ "snapshotId": told["id"] })).await);
}

#[tokio::test]
async fn news_at_pending_names_the_block_that_is_being_built() {
    let node = two_readers(&[]).await;
    let mut socket = Socket::open(&node, "/").await;
    let watch = stand(&mut socket, json!([[reads_slot("a", 0)]])).await["watch"].clone();
    for _ in 0..3 {
        let told = socket.notification(&watch).await;
        let block = node.block("pending").await;
        for (named, expected) in
            [("blockNumber", "number"), ("timestamp", "timestamp"), ("baseFeePerGas", "baseFeePerGas")]
        {
            assert!(block[expected].is_string(), "{block}");
            assert_eq!(told[named], block[expected], "{named}: {told}");
        }
        node.result("/", "evm_mine", json!([])).await;
    }
}

#[tokio::test]
async fn bundles_are_taken_back_once() {
    let node = two_readers(&[]).await;
    let watch = node.result("/", "presim_watch", json!([[reads_slot("a", 0)]])).await["watch"].clone();
    for stood in [true, false, false] {
        assert_eq!(node.result("/", "presim_unwatch", json!([watch])).await, stood);
    }
}

#[tokio::test]
async fn some_bundles_run_once_a_block_or_tell_only_what_is_worth_it() {
    let node = two_readers(&[]).await;
    let mut once = reads_slot("once", 0);
    once["every"] = "block".into();
    // The value of slot 0 is what the call pays to the account that is watched.
    let pays = "0x5f5f5f5f5f5473000000000000000000000000000000000000dead5af100";
    node.result("/", "anvil_setCode", json!([account(2), pays])).await;
    node.result("/", "anvil_setBalance", json!([account(2), "0xffffff"])).await;
    let search = json!({ "name": "gain", "only": { "above": "10" }, "search": {
        "blockStateCalls": [{ "calls": [{ "to": account(2), "gas": "0x186a0" }] }],
        "vary": [{ "path": "blocks[0].calls[0].gas", "values": ["0x186a0", "0x7530"] }],
        "objective": { "account": "0x000000000000000000000000000000000000dead" },
    } });
    let mut socket = Socket::open(&node, "/").await;
    let watch = stand(&mut socket, json!([[once, search]])).await["watch"].clone();
    let first = socket.notification(&watch).await;
    assert_eq!(first["changed"], json!([{ "name": "once", "result": read(1) }]), "nothing is gained: {first}");

    set_slot(&node, 2, 11).await;
    let told = socket.notification(&watch).await;
    let changed = items(&told["changed"]);
    assert_eq!((changed.len(), &changed[0]["name"]), (1, &json!("gain")), "{told}");
    assert_eq!(changed[0]["result"]["best"][0]["objective"], "11");
    for (value, expected) in [(9, json!([{ "name": "gain", "below": true }])), (8, json!([]))] {
        set_slot(&node, 2, value).await;
        assert_eq!(socket.notification(&watch).await["changed"], expected);
    }
    // An error is an answer, whatever the objective.
    let mut other = Socket::open(&node, "/").await;
    let search = json!({ "name": "error", "only": { "above": "10" }, "search": {
        "blockStateCalls": [{ "calls": [{ "to": account(2), "gas": "0x186a0" }] }],
        "vary": [{ "path": "blocks[0].calls[0].gas", "values": ["0x186a0"] }],
        "objective": { "account": account(0), "token": account(9) },
    } });
    let fails = stand(&mut other, json!([[search]])).await["watch"].clone();
    let told = other.notification(&fails).await;
    assert_eq!((&told["changed"][0]["name"], &told["changed"][0]["error"]["code"]), (&json!("error"), &json!(-32602)));
    // Changes open a block again, which is the same block: the bundle waits for the next.
    set_slot(&node, 0, 2).await;
    let told = socket.notification(&watch).await;
    assert_eq!((&told["changed"], &told["behind"]), (&json!([]), &json!([])), "{told}");
    node.result("/", "evm_mine", json!([])).await;
    let told = socket.notification(&watch).await;
    assert_eq!(told["changed"], json!([{ "name": "once", "result": read(2) }]), "{told}");
}

#[tokio::test]
async fn wrong_bundles_are_refused_by_name() {
    let node = two_readers(&["--max-watched", "40", "--watch-mb", "1"]).await;
    let good = reads_slot("a", 0);
    let blocks = |at: usize| json!({ "name": at.to_string(), "simulate": { "blockStateCalls": vec![json!({}); 200] } });
    let many_blocks: Vec<Value> = (0..40).map(blocks).collect();
    let too_many: Vec<Value> = (0..41).map(|at| reads_slot(&at.to_string(), 0)).collect();
    let with = |member: &str, value: Value| {
        let mut bundle = good.clone();
        bundle[member] = value;
        bundle
    };
    let search = json!({
        "blockStateCalls": [{ "calls": [{ "to": account(0), "gas": "0x186a0" }] }],
        "vary": [{ "path": "blocks[0].calls[0].value", "values": ["0x0"] }],
        "objective": "gasUsed",
    });
    let mut without_gas = search.clone();
    without_gas["blockStateCalls"][0]["calls"] = json!([{ "to": account(0) }]);
    for (params, code, expected) in [
        (json!([[]]), -32602, "params[0]: empty"),
        (json!([[good, good]]), -32602, "params[0][1].name: \"a\" again"),
        (json!([too_many]), -32005, "--max-watched"),
        (json!([[{ "name": "a" }]]), -32602, "params[0][0]: expected either simulate or search"),
        (json!([[with("search", search.clone())]]), -32602, "params[0][0]: expected either simulate or search"),
        (
            json!([[{ "name": "a", "simulate": simulate(json!([{ "to": account(0) }])) }]]),
            -32602,
            "params[0][0].simulate.blockStateCalls[0].calls[0].gas: missing",
        ),
        (
            json!([[{ "name": "a", "search": without_gas }]]),
            -32602,
            "params[0][0].search.blockStateCalls[0].calls[0].gas: missing",
        ),
        (
            json!([[{ "name": "a", "simulate": { "blockStateCalls": [] } }]]),
            -32602,
            "params[0][0].simulate.blockStateCalls: empty",
        ),
        (json!([[with("every", json!("minute"))]]), -32602, "every"),
        (json!([[with("only", json!({ "above": "1" }))]]), -32602, "params[0][0].only: without an objective"),
        (json!([[with("never", json!(1))]]), -32602, "never"),
        (
            json!([[{ "name": "a", "search": search, "only": { "above": "1" } }]]),
            -32602,
            "params[0][0].only.above: not with the objective gasUsed",
        ),
        (json!([[good], "earliest"]), -32602, "params[1]: one state"),
        (json!([[good], { "snapshotId": "0x1" }]), -32602, "params[1]: one state"),
        (json!([[with("name", json!("n".repeat(1_100_000)))]]), -32005, "--watch-mb"),
        // Blocks take more memory than their text.
        (json!([many_blocks]), -32005, "bundles take"),
    ] {
        let error = node.error("/", "presim_watch", params.clone()).await;
        let message = error["message"].as_str().unwrap();
        assert_eq!(error["code"], code, "{message}");
        assert!(message.contains(expected), "{message}: expected {expected}");
    }
    for (method, params) in [
        ("presim_results", json!(["0x01", "0x0"])),
        ("presim_results", json!(["0x00000000000000000000000000000001", "latest"])),
        ("presim_rewatch", json!(["0x00000000000000000000000000000001"])),
        ("presim_unwatch", json!([])),
    ] {
        assert_eq!(node.error("/", method, params).await["code"], -32602, "{method}");
    }
    let nobody = json!(["0x00000000000000000000000000000001"]);
    assert_eq!(node.result("/", "presim_unwatch", nobody).await, false);
    assert_eq!(node.metric("presim_standing_bundles"), 0.0);
}

#[tokio::test]
async fn snapshots_and_their_changes_are_told() {
    let node = two_readers(&[]).await;
    let mut socket = Socket::open(&node, "/").await;
    let start = newest(&node).await;
    let snapshots = socket.subscribe(json!(["presim_snapshots"])).await;
    let all = socket.subscribe(json!(["presim_stateChanges"])).await;
    let one = socket.subscribe(json!(["presim_stateChanges", { "address": account(1), "slots": ["0x0"] }])).await;
    set_slot(&node, 1, 5).await;
    let slot = format!("{:#066x}", 0);
    let change = json!({ account(1): { "storage": { &slot: { "from": read_word(1), "to": read_word(5) } } } });
    let told = socket.notification(&snapshots).await;
    assert_eq!((&told["id"], &told["transactions"]), (&newest(&node).await, &json!([])), "{told}");
    assert!(items(&told["touched"]).contains(&json!(account(1))), "{told}");
    let told = socket.notification(&all).await;
    assert_eq!(told["changes"][account(1)], change[account(1)], "{told}");
    let told = socket.notification(&one).await;
    assert_eq!((&told["changes"], &told["logs"]), (&change, &json!([])), "{told}");

    // A return to an earlier state tells the difference back.
    let saved = node.result("/", "evm_snapshot", json!([])).await;
    set_slot(&node, 1, 6).await;
    assert_eq!(socket.notification(&one).await["changes"][account(1)]["storage"][&slot]["to"], read_word(6));
    node.result("/", "evm_revert", json!([saved])).await;
    let told = socket.notification(&one).await;
    assert_eq!(told["changes"][account(1)]["storage"][&slot], json!({ "from": read_word(6), "to": read_word(5) }));

    // A transaction's hash, its logs and its transfer.
    let sender = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";
    node.result("/", "anvil_setCode", json!([account(2), "0x602a5f5260205fa000"])).await;
    let sent = json!([{ "from": sender, "to": account(2), "value": "0x7", "gas": "0x30d40" }]);
    let mut socket = Socket::open(&node, "/").await;
    let snapshots = socket.subscribe(json!(["presim_snapshots"])).await;
    let logs = socket.subscribe(json!(["presim_stateChanges", { "address": [account(2)] }])).await;
    let since = socket.subscribe(json!(["presim_stateChanges", { "address": account(1), "from": start }])).await;
    let gone = socket.subscribe(json!(["presim_stateChanges", { "from": "0xffffffff" }])).await;
    let hash = node.result("/", "eth_sendTransaction", sent).await;
    // The draft has the state after it, and the transaction waits.
    let told = socket.notification(&snapshots).await;
    assert!(told["transactions"] == json!([]) && items(&told["touched"]).contains(&json!(account(2))), "{told}");
    let told = socket.notification(&logs).await;
    let paid = json!({ account(2): { "balance": { "from": "0x0", "to": "0x7" } } });
    assert_eq!((&told["changes"], &told["logs"]), (&paid, &json!([])), "{told}");
    let told = socket.notification(&since).await;
    assert_eq!(told["changes"], change, "since the snapshot that was named: {told}");
    let told = socket.notification(&gone).await;
    assert_eq!(told, json!({ "reset": true, "id": newest(&node).await }));
    node.result("/", "evm_mine", json!([])).await;
    let told = socket.notification(&snapshots).await;
    // The transaction is in the block that was sealed, and not in the one that begins.
    let block = node.result("/", "eth_blockNumber", json!([])).await;
    assert_eq!(told["sealed"], json!([{ "blockNumber": block, "transactions": [hash] }]), "{told}");
    assert_eq!((&told["index"], &told["transactions"]), (&json!("0x0"), &json!([])), "{told}");
    let told = socket.notification(&logs).await;
    assert_eq!(told["changes"], json!({}), "{told}");
    let log = json!([{ "address": account(2), "topics": [], "data": read_word(42), "transactionHash": hash }]);
    assert_eq!(told["logs"], log);

    // A subscriber that resumes is told the logs since then, too.
    let mut socket = Socket::open(&node, "/").await;
    let resumed = socket.subscribe(json!(["presim_stateChanges", { "address": account(2), "from": start }])).await;
    let slots = json!(["presim_stateChanges", { "address": account(2), "slots": ["0x0"] }]);
    let slots = socket.subscribe(slots).await;
    set_slot(&node, 1, 8).await;
    let told = socket.notification(&resumed).await;
    assert_eq!((&told["logs"], &told["changes"][account(2)]["balance"]["to"]), (&log, &json!("0x7")), "{told}");
    // Logs are not told to who asks for slots, unless one of these has changed.
    let sent = json!([{ "from": sender, "to": account(2), "value": "0x7", "gas": "0x30d40" }]);
    node.result("/", "eth_sendTransaction", sent).await;
    assert_eq!(items(&socket.notification(&resumed).await["logs"]).len(), 0, "it waits");
    node.result("/", "evm_mine", json!([])).await;
    assert_eq!(items(&socket.notification(&resumed).await["logs"]).len(), 1);
    set_slot(&node, 2, 9).await;
    let told = socket.notification(&slots).await;
    assert_eq!(told["changes"][account(2)]["storage"][&slot]["to"], read_word(9), "{told}");
}

fn read_word(value: u64) -> String {
    format!("{value:#066x}")
}

/// Client libraries take the result of `eth_subscribe` for an id, and route the notifications that name it.
#[tokio::test]
async fn a_library_subscribes_to_standing_bundles() {
    let node = two_readers(&[]).await;
    for (path, block) in [("/", &["pending"][..]), ("/standard", &["latest"]), ("/standard", &[])] {
        let mut socket = Socket::open(&node, path).await;
        let other = socket.subscribe(json!(["newHeads"])).await;
        let mut params = vec![json!("presim_watch"), json!([reads_slot("a", 0)])];
        params.extend(block.iter().map(|block| json!(block)));
        set_slot(&node, 0, 1).await;
        let id = socket.subscribe(json!(params)).await;
        let first = socket.notification(&id).await;
        assert_eq!(first["changed"], json!([{ "name": "a", "result": read(1) }]), "{path} {first}");
        set_slot(&node, 0, 5).await;
        let told = loop {
            let news = socket.notification(&id).await;
            if news["changed"] != json!([]) {
                break news;
            }
        };
        assert_eq!(told["changed"], json!([{ "name": "a", "result": read(5) }]), "{path} {told}");
        // The id is the name of the watch.
        let polled = node.result("/", "presim_results", json!([id, "0x0"])).await;
        assert_eq!(polled["changed"].as_array().map(Vec::len), Some(1), "{polled}");
        for ended in [&id, &other] {
            assert_eq!(socket.call("eth_unsubscribe", json!([ended])).await["result"], true, "{path} {ended}");
            assert_eq!(socket.call("eth_unsubscribe", json!([ended])).await["error"]["code"], -32000, "{path} {ended}");
        }
        assert_eq!(node.metric("presim_standing_bundles"), 0.0);
        let error = node.error("/", "presim_results", json!([id, "0x0"])).await;
        assert_eq!(error["code"], -32000, "the bundles ended with the subscription: {error}");
    }
}

#[tokio::test]
async fn mistakes_of_a_subscription_to_standing_bundles_name_its_own_parameters() {
    let node = two_readers(&[]).await;
    let mut socket = Socket::open(&node, "/").await;
    let good = json!([reads_slot("a", 0)]);
    let without_gas =
        json!([{ "name": "a", "simulate": { "blockStateCalls": [{ "calls": [{ "to": account(0) }] }] } }]);
    for (params, expected) in [
        (json!(["presim_watch"]), "expected 2 or 3 parameters"),
        (json!(["presim_watch", []]), "params[1]: empty"),
        (json!(["presim_watch", [{ "name": 5 }]]), "params[1][0].name: "),
        (json!(["presim_watch", without_gas]), "params[1][0].simulate.blockStateCalls[0].calls[0].gas: missing"),
        (json!(["presim_watch", good, "0x1"]), "params[2]: one state"),
        (json!(["presim_watch", good, "pending", null]), "more parameters than the method takes"),
        (json!(["newHeads", null, "pending"]), "params[2]: expected nothing"),
    ] {
        let error = socket.call("eth_subscribe", params.clone()).await["error"].take();
        assert_eq!(error["code"], -32602, "{params}: {error}");
        assert!(error["message"].as_str().unwrap().contains(expected), "{params}: {error}");
    }
    let error = node.error("/", "eth_subscribe", json!(["presim_watch", good])).await;
    assert_eq!(error["code"], -32601, "{error}");
    let error = socket.call("eth_unsubscribe", json!(["0x00000000000000000000000000000001"])).await["error"].take();
    assert_eq!(error["code"], -32000, "{error}");
}

#[tokio::test]
async fn long_news_comes_in_numbered_parts() {
    let node = node();
    // Returns 32 kB of zeros, and slot 0 at their beginning.
    node.result("/", "anvil_setCode", json!([account(0), "0x5f545f526180005ff3"])).await;
    let names: Vec<String> = (0..40).map(|index| index.to_string()).collect();
    let bundles: Vec<Value> = names.iter().map(|name| reads_slot(name, 0)).collect();
    let mut socket = Socket::open(&node, "/").await;
    let watch = stand(&mut socket, json!([bundles])).await["watch"].clone();
    for value in [0, 5] {
        let (mut told, mut part) = (Vec::new(), 0);
        loop {
            let news = socket.notification(&watch).await;
            assert_eq!(news["part"], part, "{}", news["part"]);
            part += 1;
            let changed = items(&news["changed"]);
            let text: usize = changed.iter().map(|one| one.to_string().len()).sum();
            assert!(text <= 1 << 20, "a part of {text} bytes");
            told.extend(changed.iter().map(|one| one["name"].as_str().unwrap().to_owned()));
            if news["last"] == true {
                break;
            }
            assert_eq!(news["behind"], json!([]), "only the last part tells what is behind");
        }
        assert!(part > 2, "{part} parts");
        told.sort_by_key(|name| name.parse::<u32>().unwrap());
        assert_eq!(told, names);
        set_slot(&node, 0, value + 5).await;
    }
}

#[tokio::test]
async fn long_lists_of_what_is_behind_come_in_numbered_parts() {
    let node = node_with(&["--deadline-ms", "300", "--gas-cap", "100000000000"]);
    // A loop until the gas is used up, which takes longer than a request has.
    node.result("/", "anvil_setCode", json!([account(0), "0x5b600056"])).await;
    let names: Vec<String> = (0..15).map(|index| format!("{index}{}", "n".repeat(100_000))).collect();
    let call = json!([{ "to": account(0), "gas": "0x174876e800" }]);
    let payload = |calls: &Value| json!({ "blockStateCalls": [{ "calls": calls, "blockOverrides": { "gasLimit": "0x174876e800" } }], "outputs": [] });
    let bundles: Vec<Value> = names.iter().map(|name| json!({ "name": name, "simulate": payload(&call) })).collect();
    let mut socket = Socket::open(&node, "/").await;
    let watch = stand(&mut socket, json!([bundles])).await["watch"].clone();
    let (mut behind, mut part) = (Vec::new(), 0);
    loop {
        let news = socket.notification(&watch).await;
        assert_eq!((&news["part"], &news["changed"]), (&json!(part), &json!([])));
        part += 1;
        assert!(news["behind"].to_string().len() <= (1 << 20) + 2);
        behind.extend(items(&news["behind"]).iter().map(|one| one["name"].as_str().unwrap().to_owned()));
        if news["last"] == true {
            break;
        }
    }
    assert_eq!((part, behind), (2, names.clone()));
    // Each of them runs to its deadline, one after the other, which is told once.
    let mut stale = BTreeSet::new();
    while stale.len() < names.len() {
        let news = socket.notification(&watch).await;
        assert_eq!((&news["late"], &news["changed"], news.get("part")), (&json!(true), &json!([]), None));
        for one in items(&news["behind"]) {
            assert_eq!((&one["id"], &one["stale"]["code"]), (&Value::Null, &json!(-32016)));
            assert!(stale.insert(one["name"].as_str().unwrap().to_owned()), "the same reason is told again");
        }
    }
}

#[tokio::test]
async fn an_answer_without_room_is_an_error_and_a_watch_without_a_client_ends() {
    let node = node_with(&["--watch-mb", "1", "--watch-keep-s", "1"]);
    node.result("/", "anvil_setCode", json!([account(0), "0x5f545f526180005ff3"])).await;
    let bundles: Vec<Value> = (0..20).map(|index| reads_slot(&index.to_string(), 0)).collect();
    let begun = node.result("/", "presim_watch", json!([bundles])).await;
    let told = node.result("/", "presim_results", json!([begun["watch"], begun["id"], 5_000])).await;
    let (answers, errors): (Vec<&Value>, Vec<&Value>) =
        items(&told["changed"]).iter().partition(|one| one.get("result").is_some());
    assert!(answers.len() > 10 && !errors.is_empty(), "{} answers, {} errors", answers.len(), errors.len());
    for one in errors {
        assert_eq!(one["error"]["code"], -32005, "{one}");
        assert!(one["error"]["message"].as_str().unwrap().contains("--watch-mb"), "{one}");
    }
    let refused = node.error("/", "presim_watch", json!([bundles])).await;
    assert_eq!(refused["code"], -32005, "{refused}");
    // The client does not come back.
    let gone = async {
        while node.metric("presim_standing_bundles") > 0.0 {
            newest(&node).await;
        }
    };
    tokio::time::timeout(BOUND, gone).await.expect("it ends");
    let error = node.error("/", "presim_results", json!([begun["watch"], "0x0"])).await;
    assert_eq!(error["code"], -32000, "{error}");
}

/// No client is connected, and none polls.
#[tokio::test]
async fn a_watch_keeps_its_answers_and_no_snapshot_that_is_past() {
    let node = two_readers(&["--keep-snapshots", "1", "--keep-blocks", "1"]).await;
    let begun = node.result("/", "presim_watch", json!([[reads_slot("a", 0), reads_slot("b", 1)]])).await;
    let (published, snapshot) = {
        let published = node.node.snapshots().load();
        (Arc::downgrade(&published), Arc::downgrade(&published.newest))
    };
    let told = node.result("/", "presim_results", json!([begun["watch"], begun["id"], 5_000])).await;
    assert_eq!(items(&told["changed"]).len(), 2, "{told}");
    for value in 2..5 {
        set_slot(&node, 0, value).await;
        node.result("/", "evm_mine", json!([])).await;
    }
    let gone = async {
        while published.strong_count() > 0 || snapshot.strong_count() > 0 {
            newest(&node).await;
        }
    };
    tokio::time::timeout(BOUND, gone).await.expect("nothing holds what was published when the bundles began to stand");
    let mut told = told;
    while told["changed"][0]["result"] != read(4) {
        told = node.result("/", "presim_results", json!([begun["watch"], told["id"], 5_000])).await;
    }
}

#[tokio::test]
async fn a_watch_belongs_to_its_token() {
    let file = token_file(&[("a", 1_000), ("b", 1_000)]);
    let node = node_with(&["--token-file", file.path().to_str().unwrap()]);
    let begun = node.call_as(&token("a"), "presim_watch", json!([[reads_slot("a", 0)]])).await;
    let watch = &begun["result"]["watch"];
    for method in ["presim_results", "presim_unwatch"] {
        let params = if method == "presim_results" { json!([watch, "0x0"]) } else { json!([watch]) };
        let other = node.call_as(&token("b"), method, params.clone()).await;
        assert_eq!(other["error"]["code"], -32000, "{other}");
        let own = node.call_as(&token("a"), method, params).await;
        assert!(own.get("result").is_some(), "{own}");
    }
}
