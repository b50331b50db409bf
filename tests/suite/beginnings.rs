//! Shared beginnings: what several simulations begin with runs once, and no answer differs.

use serde_json::{Value, json};

use crate::support::{TestNode, shared, token, token_file};

/// Code that adds 1 to slot 0 and returns it, with a log. A call with data reverts with it.
const COUNTS: &str = "0x366016575f54600101805f555f5260205fa060205ff35b365f5f37365ffd";
const COUNTER: &str = "0x00000000000000000000000000000000000c0471";
const FROM: &str = "0x000000000000000000000000000000000000f00d";
const SHARED: &str = "presim_shared_beginnings_total";

fn counts() -> Value {
    json!({ "from": FROM, "to": COUNTER })
}

/// Returns a call that ends a bundle in its own way.
fn own(index: u64) -> Value {
    match index % 3 {
        0 => json!({ "from": FROM, "to": COUNTER, "data": format!("0x{index:02x}") }),
        1 => json!({ "from": FROM, "to": COUNTER, "gas": format!("{:#x}", 60_000 + index) }),
        _ => json!({ "from": FROM, "to": format!("0x{index:040x}"), "value": "0x1" }),
    }
}

fn bundle(calls: Vec<Value>, more: &Value) -> Value {
    let mut payload = json!({ "blockStateCalls": [{
        "stateOverrides": { COUNTER: { "code": COUNTS }, FROM: { "balance": "0xde0b6b3a7640000" } },
        "calls": calls,
    }] });
    payload.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    payload
}

#[tokio::test]
async fn answers_are_those_of_runs_that_share_nothing() {
    // Both have the same genesis: that of a devnet has the time of its start.
    let genesis = json!({
        "config": {
            "chainId": 31337, "homesteadBlock": 0, "eip150Block": 0, "eip155Block": 0, "eip158Block": 0, "byzantiumBlock": 0,
            "constantinopleBlock": 0, "petersburgBlock": 0, "istanbulBlock": 0, "berlinBlock": 0, "londonBlock": 0,
            "terminalTotalDifficulty": 0, "shanghaiTime": 0, "cancunTime": 0, "pragueTime": 0,
        },
        "alloc": {}, "timestamp": "0x1", "gasLimit": "0x3938700", "difficulty": "0x0", "baseFeePerGas": "0x3b9aca00",
    });
    let sharing = TestNode::on(&genesis, &["--feed", "static"]);
    let alone = TestNode::on(&genesis, &["--feed", "static", "--prefix-cache-mb", "0"]);
    let outputs = [
        json!({}),
        json!({ "validation": false, "traceTransfers": true }),
        json!({ "outputs": ["status", "gasUsed"] }),
        json!({ "outputs": ["header", "returnData", "logs", "error", "transfers", "stateDiff", "accessList", "readSet", "assets", "coinbase", "trace"] }),
        json!({ "when": [{ "block": 0, "call": 3, "status": "any" }] }),
        json!({ "when": [{ "block": 0, "call": 1, "status": "failure" }] }),
    ];
    for path in ["/", "/standard"] {
        for more in &outputs {
            for round in 0..3 {
                for index in 0..10 {
                    let beginning = if index % 2 == 0 { 3 } else { 2 };
                    let mut calls = vec![counts(); beginning];
                    calls.push(own(index));
                    let mut request = bundle(calls, more);
                    let blocks = request["blockStateCalls"].as_array_mut().unwrap();
                    match index {
                        // A later block makes the first one's hash matter.
                        5 => {
                            blocks.push(json!({ "calls": [counts(), { "from": FROM, "to": COUNTER, "data": "0x01" }] }))
                        }
                        // These differ in their last blocks only: in a call, or in an override.
                        6..8 => {
                            blocks[0]["calls"] = json!([counts(), counts()]);
                            blocks.push(json!({ "blockOverrides": { "number": "0x7" }, "calls": [counts()] }));
                            blocks.push(json!({}));
                            blocks.push(json!({ "calls": [counts(), own(index)] }));
                        }
                        8 => {
                            blocks[0]["calls"] = json!([counts(), counts()]);
                            blocks.push(json!({ "blockOverrides": { "number": "0x7" }, "calls": [counts()] }));
                            blocks.push(json!({}));
                            let nonce = json!({ COUNTER: { "nonce": "0x5" } });
                            blocks.push(json!({ "stateOverrides": nonce, "calls": [counts(), own(7)] }));
                        }
                        9 => blocks.splice(0..1, vec![json!({}); 40]).for_each(drop),
                        _ => {}
                    }
                    let params = json!([request, "latest"]);
                    let shared = sharing.call(path, "presim_simulate", params.clone()).await;
                    let single = alone.call(path, "presim_simulate", params).await;
                    assert_eq!(shared, single, "{path} {more} {round} {index}");
                }
            }
        }
    }
    assert!(sharing.metric(SHARED) > 100.0, "{}", sharing.metric(SHARED));
    assert_eq!(alone.metric(SHARED), 0.0);
    let gas = "presim_gas_simulated_total";
    assert_eq!(sharing.metric(gas), alone.metric(gas));
}

#[tokio::test]
async fn a_beginning_is_shared_from_the_second_time_on_and_only_if_all_of_it_is_the_same() {
    let node = TestNode::quiet();
    let run = async |request: &Value| {
        let before = node.metric(SHARED);
        node.call("/", "presim_simulate", json!([request, "latest"])).await;
        node.metric(SHARED) - before
    };
    let first = bundle(vec![counts(), counts(), own(0)], &json!({}));
    assert_eq!(run(&first).await, 0.0);
    let second = bundle(vec![counts(), counts(), own(1)], &json!({}));
    // The second runs the beginning, which the third continues.
    assert_eq!(run(&second).await, 0.0);
    assert_eq!(run(&bundle(vec![counts(), counts(), own(2)], &json!({}))).await, 1.0);
    for other in [
        bundle(vec![counts(), counts(), own(3)], &json!({ "validation": true })),
        bundle(vec![counts(), counts(), own(3)], &json!({ "traceTransfers": true })),
        bundle(vec![counts(), counts(), own(3)], &json!({ "outputs": ["status"] })),
        bundle(vec![counts(), counts(), own(3)], &json!({ "when": [] })),
        {
            let mut other = bundle(vec![counts(), counts(), own(3)], &json!({}));
            other["blockStateCalls"][0]["stateOverrides"][FROM]["balance"] = "0xde0b6b3a7640001".into();
            other
        },
        {
            let mut other = bundle(vec![counts(), counts(), own(3)], &json!({}));
            other["blockStateCalls"][0]["blockOverrides"] = json!({ "baseFeePerGas": "0x0" });
            other
        },
    ] {
        assert_eq!(run(&other).await, 0.0, "{other}");
    }
}

#[tokio::test]
async fn beginnings_go_on_through_blocks_where_no_roots_are_computed() {
    let node = TestNode::quiet();
    let run = async |path: &str, later: Value| {
        let before = node.metric(SHARED);
        let mut request = bundle(vec![counts()], &json!({}));
        request["blockStateCalls"].as_array_mut().unwrap().extend([json!({}), json!({ "calls": [counts()] }), later]);
        let answer = node.result(path, "presim_simulate", json!([request, "latest"])).await;
        (node.metric(SHARED) - before, answer[2]["calls"][0]["returnData"].clone())
    };
    let second = Value::from(format!("0x{:064x}", 2));
    for (index, shared) in [(0, 0.0), (1, 0.0), (2, 1.0), (3, 1.0)] {
        // A block of its own ends each bundle.
        let later = json!({ "blockOverrides": { "feeRecipient": format!("0x{index:040x}") }, "calls": [own(index)] });
        assert_eq!(run("/", later).await, (shared, second.clone()), "{index}");
    }
    // The number of a block is a part of what comes before it, because blocks fill the gap.
    assert_eq!(run("/", json!({ "blockOverrides": { "time": "0xffffffff" } })).await.0, 1.0);
    for shared in [0.0, 1.0] {
        let far = json!({ "blockOverrides": { "number": "0x9" } });
        assert_eq!(run("/", far).await, (shared, second.clone()));
    }
    // The roots of later blocks follow from those of the first.
    for (index, shared) in [(0, 0.0), (1, 0.0), (2, 1.0)] {
        assert_eq!(run("/standard", json!({ "calls": [own(index)] })).await, (shared, second.clone()), "{index}");
    }
}

#[tokio::test]
async fn another_snapshot_shares_nothing_with_the_one_before() {
    let node = TestNode::start(&["--traffic", "0", "--testing", "--world", "--dialect", "project", "--no-mining"]);
    let request = |index| {
        let calls = vec![json!({ "from": FROM, "to": COUNTER }), own(index)];
        json!([{ "blockStateCalls": [{ "stateOverrides": { FROM: { "balance": "0xffff" } }, "calls": calls }] }, "pending"])
    };
    let set = async |value: u64| {
        let params = json!([COUNTER, "0x0", format!("0x{value:064x}")]);
        node.result("/", "anvil_setStorageAt", params).await;
    };
    node.result("/", "anvil_setCode", json!([COUNTER, COUNTS])).await;
    for value in [5, 9, 5] {
        set(value).await;
        for index in 0..4 {
            let ran = node.result("/", "presim_simulate", request(index)).await;
            let counted = ran[0]["calls"][0]["returnData"].as_str().unwrap();
            assert_eq!(counted, format!("0x{:064x}", value + 1), "{index}");
        }
    }
}

#[tokio::test]
async fn recorded_bodies_have_the_same_answers() {
    let Some(genesis) = shared("bench/genesis.json") else { return };
    let genesis = genesis.to_str().unwrap();
    let sharing = TestNode::quiet_with(&["--genesis", genesis]);
    let alone = TestNode::quiet_with(&["--genesis", genesis, "--prefix-cache-mb", "0"]);
    for name in ["sim_swap", "sim_sandwich", "sim_multi", "sim_override"] {
        let Some(file) = shared(&format!("bench/{name}.ndjson")) else { return };
        let bodies = std::fs::read_to_string(file).unwrap();
        for (index, body) in bodies.lines().take(4).flat_map(|body| [body; 3]).enumerate() {
            let (one, other) = (sharing.post("/", body.to_owned()).await, alone.post("/", body.to_owned()).await);
            assert!(one == other, "{name}: answer {index} differs");
        }
    }
    assert!(sharing.metric(SHARED) > 0.0);
}

#[tokio::test]
async fn clients_share_nothing_with_each_other() {
    let file = token_file(&[("a", 1_000), ("b", 1_000)]);
    let node = TestNode::quiet_with(&["--token-file", file.path().to_str().unwrap()]);
    let run = async |client: &str, index: u64| {
        let before = node.metric(SHARED);
        let request = bundle(vec![counts(), counts(), own(index)], &json!({}));
        let answer = node.call_as(&token(client), "presim_simulate", json!([request, "latest"])).await;
        assert!(answer["result"].is_array(), "{answer}");
        node.metric(SHARED) - before
    };
    assert_eq!([run("a", 0).await, run("a", 1).await, run("a", 2).await], [0.0, 0.0, 1.0]);
    assert_eq!([run("b", 3).await, run("b", 4).await, run("b", 5).await], [0.0, 0.0, 1.0]);
}
