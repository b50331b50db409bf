//! `presim_search`: the values of a bundle that optimise an objective.

use std::time::{Duration, Instant};

use alloy_primitives::U256;
use serde_json::{Value, json};

use crate::support::{TestNode, number, token as token_of, token_file};

/// A token that anyone sets: a call stores x (1000 - x) for the word x of its data, and `balanceOf` returns this for any
/// account. A word above 1000 reverts.
const HILL: &str = "0x5f3560e01c6370a08231146026576004356103e88111602257806103e803025f55005b5f5ffd5b5f545f5260205ff3";
/// Code that sends its value to the fee recipient.
const PAYS: &str = "0x5f5f5f5f34415af100";
const TOKEN: &str = "0x00000000000000000000000000000000000070c0";
const PAYER: &str = "0x0000000000000000000000000000000000009a1e";
const FROM: &str = "0x000000000000000000000000000000000000f00d";
const OTHER: &str = "0x00000000000000000000000000000000000000ff";

/// Returns the data of a call that sets the token for `x`.
fn set(x: u64) -> String {
    format!("0x00000000{x:064x}")
}

/// Returns a payload of one block with these calls, with the contracts in place.
fn payload(calls: Value) -> Value {
    json!({ "blockStateCalls": [{
        "stateOverrides": {
            TOKEN: { "code": HILL },
            PAYER: { "code": PAYS },
            FROM: { "balance": "0xde0b6b3a7640000" },
        },
        "calls": calls,
    }] })
}

/// Returns the search of `payload` with these members.
fn search(payload: &Value, more: Value) -> Value {
    let mut search = payload.clone();
    search.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!([search, "latest"])
}

fn hill(x: u64) -> Value {
    payload(json!([{ "from": FROM, "to": TOKEN, "data": set(x) }]))
}

fn word(values: Value) -> Value {
    let mut place = json!({ "path": "blocks[0].calls[0].data", "word": 0 });
    place.as_object_mut().unwrap().extend(values.as_object().unwrap().clone());
    json!([place])
}

fn token() -> Value {
    json!({ "account": FROM, "token": TOKEN })
}

fn values(best: &Value) -> Vec<u64> {
    best["best"].as_array().unwrap().iter().map(|one| number(&one["values"][0])).collect()
}

#[tokio::test]
async fn each_form_of_values_finds_the_best_one() {
    let node = TestNode::quiet();
    for (form, runs, best) in [
        (json!({ "values": ["0x1", 500, "0x3e7"] }), 3, 500),
        (json!({ "from": 100, "to": 900, "step": 200 }), 5, 500),
        (json!({ "from": 0, "to": 950, "step": 300 }), 4, 600),
        (json!({ "from": 1, "to": 1000, "points": 4 }), 4, 334),
        (json!({ "from": 1, "to": 1000, "points": 4, "scale": "geometric" }), 4, 100),
    ] {
        for path in ["/", "/standard"] {
            let request = search(&hill(0), json!({ "vary": word(form.clone()), "objective": token() }));
            let found = node.result(path, "presim_search", request).await;
            assert_eq!((values(&found), found["runs"].as_u64()), (vec![best], Some(runs)), "{form}: {found}");
            let gain = (best * (1000 - best)).to_string();
            assert_eq!(found["best"][0]["objective"], gain.as_str(), "{form}: {found}");
            assert_eq!((&found["complete"], &found["best"][0]["status"]), (&json!(true), &json!("0x1")));
        }
    }
    let odd = (0..80).map(|index| (index * 7 % 97, 501 + index * 11 % 499, 500));
    for (from, to, best) in [(0, 1000, 500), (0, 400, 400), (600, 1000, 600), (7, 8, 8)].into_iter().chain(odd) {
        let form = json!({ "maximize": { "from": from, "to": to } });
        let request = search(&hill(0), json!({ "vary": word(form), "objective": token() }));
        let found = node.result("/", "presim_search", request).await;
        assert_eq!(values(&found), [best], "{from} to {to}: {found}");
    }
}

/// Where too little gas breaks the requirement and more changes nothing, the best is the least that is enough.
#[tokio::test]
async fn a_maximum_beside_variants_that_break_a_requirement_is_found() {
    let node = TestNode::quiet();
    for x in [1, 500, 999] {
        let bundle = hill(x);
        let block = &bundle["blockStateCalls"][0];
        let call = json!([block["calls"][0], "latest", block["stateOverrides"]]);
        let least = number(&node.result("/", "eth_estimateGas", call).await);
        for to in [least + 1, 60_000, 100_000, 1_000_000, 9_999_999] {
            let form = json!([{ "path": "blocks[0].calls[0].gas", "maximize": { "from": 21_000, "to": to } }]);
            let more = json!({ "vary": form, "objective": "gasUsed", "require": { "when": [] } });
            let found = node.result("/", "presim_search", search(&bundle, more)).await;
            assert_eq!((values(&found), &found["complete"]), (vec![least], &json!(true)), "{x} to {to}: {found}");
        }
    }
}

/// A wide interval takes a variant for each division by the golden section, and not more.
#[tokio::test]
async fn a_maximum_in_a_wide_interval_takes_few_variants() {
    let node = TestNode::quiet();
    let someone = "0x00000000000000000000000000000000005e0e0e";
    let bundle = payload(json!([{ "from": FROM, "to": someone, "value": "0x0" }]));
    for to in [1_000_000_007, 999_999_999_999_999_989_u64] {
        let maximize = json!({ "from": 1, "to": format!("{to:#x}") });
        let vary = json!([{ "path": "blocks[0].calls[0].value", "maximize": maximize }]);
        let more = json!({ "vary": vary, "objective": { "account": someone } });
        let found = node.result("/", "presim_search", search(&bundle, more)).await;
        assert_eq!((values(&found), &found["complete"]), (vec![to], &json!(true)), "{found}");
        let divisions = (to as f64).ln() / 1.618_f64.ln();
        assert!((found["runs"].as_u64().unwrap() as f64) < 20.0 + divisions, "{found}");
    }
}

#[tokio::test]
async fn variants_have_the_results_of_single_runs() {
    let node = TestNode::quiet();
    let first = json!({ "from": FROM, "to": TOKEN, "data": set(3) });
    let varied = json!({ "from": FROM, "to": TOKEN, "data": set(0) });
    let last = json!({ "from": FROM, "to": PAYER, "value": "0x5" });
    for (calls, path, at) in [
        (json!([varied, last]), "blocks[0].calls[0].data", 0),
        (json!([first, last, varied]), "blockStateCalls[0].calls[2].data", 2),
        (json!([first, varied, last]), "blocks[0].calls[1].data", 1),
    ] {
        let bundle = payload(calls);
        let tried: Vec<u64> = (0..40).map(|index| index * 27).collect();
        let vary = json!([{ "path": path, "word": 0, "values": tried }]);
        for dialect in ["/", "/standard"] {
            let request = search(
                &bundle,
                json!({ "vary": vary, "objective": token(), "top": 40, "outputs": ["returnData", "logs"] }),
            );
            let found = node.result(dialect, "presim_search", request).await;
            assert_eq!(found["best"].as_array().unwrap().len(), tried.len());
            for (rank, variant) in found["best"].as_array().unwrap().iter().enumerate() {
                let mut single = bundle.clone();
                let calls = &mut single["blockStateCalls"][0]["calls"];
                calls[at]["data"] = set(number(&variant["values"][0])).into();
                let asks = json!({ "to": TOKEN, "data": format!("0x70a08231{:0>64}", "0") });
                calls.as_array_mut().unwrap().push(asks);
                let ran = node.result(dialect, "eth_simulateV1", json!([single, "latest"])).await;
                let ran = ran[0]["calls"].as_array().unwrap();
                let told = ran.last().unwrap()["returnData"].as_str().unwrap();
                let balance = u64::from_str_radix(&told[told.len() - 16..], 16).unwrap();
                let gas: u64 = ran[..ran.len() - 1].iter().map(|call| number(&call["gasUsed"])).sum();
                assert_eq!(variant["objective"], balance.to_string().as_str(), "{variant}");
                assert_eq!(number(&variant["gasUsed"]), gas, "{variant}");
                if rank == 0 {
                    single["blockStateCalls"][0]["calls"].as_array_mut().unwrap().pop();
                    single["outputs"] = json!(["returnData", "logs"]);
                    let best = node.result(dialect, "presim_simulate", json!([single, "latest"])).await;
                    assert_eq!(found["result"], best);
                }
            }
        }
    }
}

#[tokio::test]
async fn a_place_may_be_in_a_later_block_or_an_override() {
    let node = TestNode::quiet();
    let mut bundle = hill(1);
    let later = json!({ "calls": [{ "from": FROM, "to": TOKEN, "data": set(0) }] });
    bundle["blockStateCalls"].as_array_mut().unwrap().push(later);
    for dialect in ["/", "/standard"] {
        let vary = json!([{ "path": "blocks[1].calls[0].data", "word": 0, "values": [1, 2, 499, 900] }]);
        let request = search(&bundle, json!({ "vary": vary, "objective": token() }));
        let found = node.result(dialect, "presim_search", request).await;
        assert_eq!((values(&found), &found["best"][0]["objective"]), (vec![499], &json!("249999")), "{found}");
    }
    let mut bundle = payload(json!([{ "from": FROM, "to": TOKEN, "data": set(10) }]));
    bundle["blockStateCalls"][0]["stateOverrides"][TOKEN]["stateDiff"] =
        json!({ format!("0x{:064x}", 0): format!("0x{:064x}", 5) });
    let path = format!("blocks[0].stateOverrides.{TOKEN}.stateDiff.0x0");
    let vary = json!([{ "path": path, "values": ["0x64", "0x32", "0x2710"] }]);
    let request = search(&bundle, json!({ "vary": vary, "objective": token(), "top": 3 }));
    let found = node.result("/", "presim_search", request).await;
    // The token holds 9900 after the call, whatever it held before.
    assert_eq!(values(&found), [50, 100, 10_000], "{found}");
    assert_eq!(found["best"][2]["objective"], "-100");
}

#[tokio::test]
async fn objectives_count_ether_the_producers_income_and_gas() {
    let node = TestNode::quiet();
    let bundle =
        payload(json!([{ "from": FROM, "to": OTHER, "value": "0x0" }, { "from": FROM, "to": PAYER, "value": "0x7" }]));
    let vary = json!([{ "path": "blocks[0].calls[0].value", "values": [5, 3, 9] }]);
    for (objective, best, gain) in [
        (json!({ "account": OTHER }), 9, 9_i64),
        (json!({ "account": FROM }), 3, -10),
        (json!({ "account": OTHER, "gasPrice": 1 }), 9, 0),
        (json!("coinbase"), 3, 7),
    ] {
        let request = search(&bundle, json!({ "vary": vary, "objective": objective }));
        let found = node.result("/", "presim_search", request).await;
        assert_eq!(values(&found), [best], "{objective}: {found}");
        let gas = i64::try_from(number(&found["best"][0]["gasUsed"])).unwrap();
        let gain = if objective["gasPrice"].is_null() { gain } else { 9 - gas };
        assert_eq!(found["best"][0]["objective"], gain.to_string().as_str(), "{objective}: {found}");
    }
    let bundle = hill(0);
    let request = search(
        &bundle,
        json!({ "vary": word(json!({ "values": ["0xffff", "0x0"] })), "objective": "gasUsed", "top": 2 }),
    );
    let found = node.result("/", "presim_search", request).await;
    assert_eq!(values(&found).len(), 2);
    let gas = |rank: usize| found["best"][rank]["objective"].as_str().unwrap().parse::<u64>().unwrap();
    assert!(gas(0) <= gas(1), "{found}");
}

#[tokio::test]
async fn what_breaks_a_requirement_ranks_below_all_and_ties_go_to_the_smaller_value() {
    let node = TestNode::quiet();
    let vary = word(json!({ "values": [2000, 300, 700, 1, 500] }));
    let more = json!({ "vary": vary, "objective": token(), "top": 5, "require": { "when": [], "least": "999" } });
    let found = node.result("/", "presim_search", search(&hill(0), more)).await;
    assert_eq!(values(&found), [500, 300, 700, 1, 2000], "{found}");
    let status = |rank: usize| found["best"][rank]["status"].as_str().unwrap();
    assert_eq!([0, 1, 2, 3, 4].map(status), ["0x1", "0x1", "0x1", "0x1", "0x0"], "{found}");
    assert_eq!(found["best"][4]["dropped"], json!({ "block": 0, "call": 0 }));
    let more = json!({ "vary": vary, "objective": token(), "top": 5, "require": { "least": "1000" } });
    let found = node.result("/", "presim_search", search(&hill(0), more)).await;
    assert_eq!(values(&found), [500, 300, 700, 1, 2000], "{found}");
    assert_eq!((&found["best"][3]["status"], &found["best"][3]["objective"]), (&json!("0x0"), &json!("999")));
    // Without conditions a call may fail, but its variant does not have the status of one that can be sent.
    let more = json!({ "vary": word(json!({ "values": [2000, 1000] })), "objective": token(), "top": 2 });
    let found = node.result("/", "presim_search", search(&hill(0), more)).await;
    assert_eq!((values(&found), &found["best"][0]["objective"]), (vec![1000, 2000], &json!("0")), "{found}");
    assert_eq!([0, 1].map(|rank: usize| &found["best"][rank]["status"]), [&json!("0x1"), &json!("0x0")], "{found}");
    let allowed = json!({ "when": [{ "block": 0, "call": 0, "status": "any" }] });
    let more = json!({ "vary": word(json!({ "values": [2000] })), "objective": token(), "require": allowed });
    let found = node.result("/", "presim_search", search(&hill(0), more)).await;
    assert_eq!(found["best"][0]["status"], "0x1", "a call that may fail: {found}");
    // A refused variant is told with its error.
    let vary = json!([{ "path": "blocks[0].calls[0].gas", "values": [1, 100_000] }]);
    let found = node
        .result("/", "presim_search", search(&hill(4), json!({ "vary": vary, "objective": "gasUsed", "top": 2 })))
        .await;
    assert_eq!((values(&found), &found["best"][1]["error"]["code"]), (vec![100_000, 1], &json!(-38013)), "{found}");
}

#[tokio::test]
async fn two_places_are_a_grid() {
    let node = TestNode::quiet();
    let bundle = payload(json!([
        { "from": FROM, "to": TOKEN, "data": set(0) },
        { "from": FROM, "to": OTHER, "value": "0x0" },
    ]));
    let vary = json!([
        { "path": "blocks[0].calls[0].data", "word": 0, "values": [1, 500] },
        { "path": "blocks[0].calls[1].value", "from": 1, "to": 3, "step": 1 },
    ]);
    let found = node
        .result("/", "presim_search", search(&bundle, json!({ "vary": vary, "objective": token(), "top": 6 })))
        .await;
    let pairs: Vec<(u64, u64)> = found["best"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (number(&one["values"][0]), number(&one["values"][1])))
        .collect();
    assert_eq!(pairs, [(500, 1), (500, 2), (500, 3), (1, 1), (1, 2), (1, 3)], "{found}");
}

#[tokio::test]
async fn wrong_searches_are_refused_with_the_field() {
    let node = TestNode::quiet_with(&["--max-search-runs", "100"]);
    let value = json!([{ "path": "blocks[0].calls[0].value", "values": [1] }]);
    for (vary, objective, more, text) in [
        (json!([]), token(), json!({}), "params[0].vary: 0 places"),
        (json!([value[0], value[0]]), token(), json!({}), "params[0].vary[1].path: names the same place again"),
        (
            json!([{ "path": "calls[0].value", "values": [1] }]),
            token(),
            json!({}),
            "params[0].vary[0].path: \"calls[0].value\"",
        ),
        (
            json!([{ "path": "blocks[1].calls[0].value", "values": [1] }]),
            token(),
            json!({}),
            "expected a block, from 0 to 0",
        ),
        (
            json!([{ "path": "blocks[0].calls[7].value", "values": [1] }]),
            token(),
            json!({}),
            "expected a call of the block, from 0 to 0",
        ),
        (
            json!([{ "path": "blocks[0].calls[0].data", "values": [1] }]),
            token(),
            json!({}),
            "params[0].vary[0].word: missing",
        ),
        (
            json!([{ "path": "blocks[0].calls[0].data", "word": 1, "values": [1] }]),
            token(),
            json!({}),
            "params[0].vary[0].word: 1: the data has 36 bytes",
        ),
        (
            json!([{ "path": "blocks[0].calls[0].gas", "values": ["0x10000000000000000"] }]),
            token(),
            json!({}),
            "at most 64 bits",
        ),
        (
            json!([{ "path": "blocks[0].calls[0].value", "values": [] }]),
            token(),
            json!({}),
            "params[0].vary[0].values: empty",
        ),
        (
            json!([{ "path": "blocks[0].calls[0].value", "values": [1], "from": 1 }]),
            token(),
            json!({}),
            "params[0].vary[0]: 2 forms of values",
        ),
        (
            json!([{ "path": "blocks[0].calls[0].value", "from": 1, "to": 5 }]),
            token(),
            json!({}),
            "params[0].vary[0]: from and to",
        ),
        (
            json!([{ "path": "blocks[0].calls[0].value", "from": 5, "to": 1, "step": 1 }]),
            token(),
            json!({}),
            "params[0].vary[0].to: 1",
        ),
        (
            json!([{ "path": "blocks[0].calls[0].value", "maximize": { "from": 5, "to": 5 } }]),
            token(),
            json!({}),
            "params[0].vary[0].maximize.to: 5",
        ),
        (
            json!([{ "path": "blocks[0].calls[0].value", "maximize": { "from": 5, "to": 9, "tolerance": 0 } }]),
            token(),
            json!({}),
            "params[0].vary[0].maximize.tolerance: 0",
        ),
        (
            json!([{ "path": "blocks[+0].calls[0].value", "values": [1] }]),
            token(),
            json!({}),
            "params[0].vary[0].path: \"blocks[+0]",
        ),
        (
            json!([{ "path": "blocks[0].calls[0].data", "word": -1, "values": [1] }]),
            token(),
            json!({}),
            "params[0].vary[0].word: invalid value: integer `-1`, expected a whole number, not below 0",
        ),
        (value.clone(), json!("profit"), json!({}), "params[0].objective"),
        (value.clone(), json!({ "account": FROM, "token": OTHER }), json!({}), "params[0].objective.token"),
        (value.clone(), json!("gasUsed"), json!({ "require": { "least": "0x1" } }), "params[0].require.least"),
        (value.clone(), token(), json!({ "require": { "least": "x" } }), "params[0].require.least"),
        (value.clone(), token(), json!({ "require": { "least": "" } }), "params[0].require.least"),
        (value.clone(), token(), json!({ "require": { "least": "-0x1" } }), "params[0].require.least"),
        (value.clone(), token(), json!({ "require": { "least": "1_0" } }), "params[0].require.least"),
        (
            value.clone(),
            token(),
            json!({ "require": { "when": [{ "block": 3, "call": 0, "status": "any" }] } }),
            "params[0].require.when[0].block: 3",
        ),
        (value.clone(), token(), json!({ "top": 0 }), "params[0].top: 0"),
        (value.clone(), token(), json!({ "when": [] }), "params[0].when: unknown field"),
    ] {
        let mut members = json!({ "vary": vary, "objective": objective });
        members.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let error = node.error("/", "presim_search", search(&hill(0), members)).await;
        assert!(error["message"].as_str().unwrap().contains(text), "{text}: {error}");
        assert_eq!(error["code"], -32602, "{error}");
    }
    for (named, path) in [
        ("gasPrice", "maxFeePerGas"),
        ("gasPrice", "maxPriorityFeePerGas"),
        ("maxFeePerGas", "gasPrice"),
        ("maxPriorityFeePerGas", "gasPrice"),
    ] {
        let mut bundle = hill(0);
        bundle["blockStateCalls"][0]["calls"][0][named] = "0x1".into();
        let vary = json!([{ "path": format!("blocks[0].calls[0].{path}"), "values": [1] }]);
        let error =
            node.error("/", "presim_search", search(&bundle, json!({ "vary": vary, "objective": token() }))).await;
        let expected = format!("params[0].vary[0].path: \"blocks[0].calls[0].{path}\": the call has");
        assert!(error["message"].as_str().unwrap().starts_with(&expected), "{error}");
    }
}

#[tokio::test]
async fn a_search_of_more_variants_than_the_node_runs_exceeds_a_limit_whatever_the_form_of_its_values() {
    let node = TestNode::quiet_with(&["--max-search-runs", "100"]);
    let value = |values: Value| {
        let mut place = json!({ "path": "blocks[0].calls[0].value" });
        place.as_object_mut().unwrap().extend(values.as_object().unwrap().clone());
        place
    };
    let wide = |tolerance: U256| {
        value(json!({ "maximize": { "from": 0, "to": U256::MAX, "tolerance": format!("{tolerance:#x}") } }))
    };
    let grid = |count: u64| {
        let gas = json!({ "path": "blocks[0].calls[0].gas", "from": 100_001, "to": 100_000 + count, "step": 1 });
        json!([value(json!({ "from": 1, "to": 10, "points": 10 })), gas])
    };
    let at_most = "expected at most 100 variants (--max-search-runs)";
    for (vary, text) in [
        (json!([value(json!({ "values": vec![1; 101] }))]), format!("vary[0].values: 101 values: {at_most}")),
        (json!([value(json!({ "from": 1, "to": 101, "step": 1 }))]), format!("vary[0].step: 101 values: {at_most}")),
        (
            json!([value(json!({ "from": 0, "to": U256::from(u128::MAX), "step": 1 }))]),
            format!("vary[0].step: {} values: {at_most}", U256::ONE << 128),
        ),
        (
            json!([value(json!({ "from": 1, "to": 1000, "points": 101 }))]),
            format!("vary[0].points: 101 values: {at_most}"),
        ),
        (
            json!([value(json!({ "from": 1, "to": 1000, "points": 101, "scale": "geometric" }))]),
            format!("vary[0].points: 101 values: {at_most}"),
        ),
        (grid(11), format!("vary: 110 variants: {at_most}")),
        (json!([wide(U256::ONE)]), "vary[0].maximize.tolerance: 1: takes up to ".to_owned()),
    ] {
        let more = json!({ "vary": vary, "objective": token() });
        let error = node.error("/", "presim_search", search(&hill(0), more)).await;
        assert_eq!(error["code"], -32005, "{error}");
        assert!(error["message"].as_str().unwrap().starts_with(&format!("params[0].{text}")), "{text}: {error}");
    }
    for (vary, runs) in [
        (json!([value(json!({ "values": (0..100).collect::<Vec<_>>() }))]), 100..=100),
        (json!([value(json!({ "from": 1, "to": 100, "step": 1 }))]), 100..=100),
        (grid(10), 100..=100),
        // The search for a maximum runs as few variants as a list may have.
        (json!([wide(U256::ONE << 200)]), 16..=100),
    ] {
        let more = json!({ "vary": vary, "objective": token() });
        let found = node.result("/", "presim_search", search(&hill(0), more)).await;
        assert!(runs.contains(&found["runs"].as_u64().unwrap()), "{vary}: {found}");
    }
}

#[tokio::test]
async fn the_read_set_of_the_best_has_what_the_objective_reads() {
    const ALPHA: &str = "0x9fe46736679d2d9a65f0992f2272de9f3c7fa6e0";
    let node = TestNode::quiet();
    // The bundle touches neither the token nor the account.
    let bundle = payload(json!([{ "from": FROM, "to": PAYER, "value": "0x0" }]));
    let vary = json!([{ "path": "blocks[0].calls[0].value", "values": [1, 2] }]);
    for (objective, account, parts, slots) in [
        (json!({ "account": OTHER }), OTHER, json!(["balance"]), 0),
        (json!({ "account": OTHER, "token": ALPHA }), ALPHA, json!(["code"]), 1),
        (json!("gasUsed"), OTHER, Value::Null, 0),
    ] {
        let more = json!({ "vary": vary, "objective": objective, "outputs": ["readSet"] });
        let found = node.result("/", "presim_search", search(&bundle, more)).await;
        let read = &found["result"][0]["readSet"]["accounts"][account];
        assert_eq!(read["parts"], parts, "{objective}: {found}");
        assert_eq!(read["slots"].as_array().map_or(0, Vec::len), slots, "{objective}: {found}");
    }
}

#[tokio::test]
async fn at_its_deadline_a_search_answers_with_the_best_so_far() {
    let node = TestNode::quiet_with(&["--deadline-ms", "400", "--gas-cap", "1000000000000000"]);
    // A loop until the gas is used up. The first variant is short, and all of them are far more than any machine runs until then.
    let spins = "0x5b600056";
    let mut bundle = payload(json!([{ "from": FROM, "to": OTHER, "gas": "0x1" }]));
    bundle["blockStateCalls"][0]["stateOverrides"][OTHER] = json!({ "code": spins });
    bundle["blockStateCalls"][0]["blockOverrides"]["gasLimit"] = json!("0x38d7ea4c68000");
    let vary =
        json!([{ "path": "blocks[0].calls[0].gas", "from": 1_000_000, "to": 1_000_000_000_000_u64, "points": 100 }]);
    let found =
        node.result("/", "presim_search", search(&bundle, json!({ "vary": vary, "objective": "gasUsed" }))).await;
    assert_eq!(found["complete"], false, "{found}");
    let runs = found["runs"].as_u64().unwrap();
    assert!(runs < 100, "{found}");
}

#[tokio::test]
async fn the_variants_of_a_search_are_drawn_from_the_rate_as_they_run() {
    let file = token_file(&[("a", 20)]);
    let node = TestNode::quiet_with(&["--token-file", file.path().to_str().unwrap(), "--deadline-ms", "60000"]);
    let ask = async |runs: usize| {
        let vary = word(json!({ "values": (0..runs).collect::<Vec<_>>() }));
        let request = search(&hill(0), json!({ "vary": vary, "objective": token() }));
        node.call_as(&token_of("a"), "presim_search", request).await
    };
    // The rate has 20 at once, and 20 more a second. 48 seconds, four fifths of the deadline, are not enough for as many as this.
    let refused = ask(2_000).await["error"].take();
    assert_eq!(refused["code"], -32005, "{refused}");
    let text = refused["message"].as_str().unwrap();
    assert!(text.starts_with("rate limit: \"a\" may send 20 requests per second: 1999 more take at least "), "{text}");
    // The rejected search has drawn nothing of what the rate had.
    for _ in 0..10 {
        let answer = node.call_as(&token_of("a"), "eth_chainId", json!([])).await;
        assert_eq!(answer["result"], "0x7a69", "{answer}");
    }
    let begun = Instant::now();
    let found = ask(60).await["result"].take();
    assert_eq!((&found["runs"], &found["complete"]), (&json!(60), &json!(true)), "{found}");
    assert!(begun.elapsed() >= Duration::from_millis(1_900), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_search_for_a_maximum_goes_on_at_the_rate_of_its_client() {
    let file = token_file(&[("a", 80)]);
    let node = TestNode::quiet_with(&["--token-file", file.path().to_str().unwrap(), "--deadline-ms", "60000"]);
    // The more is sent, the better: 16 variants, and 184 to narrow the interval, more than the client may send in a second.
    let mut bundle = payload(json!([{ "from": FROM, "to": OTHER, "value": "0x0" }]));
    bundle["blockStateCalls"][0]["stateOverrides"][FROM]["balance"] = json!(U256::MAX >> 1);
    let vary = json!([{ "path": "blocks[0].calls[0].value", "maximize": { "from": 1, "to": U256::ONE << 254 } }]);
    let asked = search(&bundle, json!({ "vary": vary, "objective": { "account": OTHER } }));
    let begun = Instant::now();
    let found = node.call_as(&token_of("a"), "presim_search", asked.clone()).await["result"].take();
    assert_eq!(found["complete"], true, "{found}");
    let runs = found["runs"].as_u64().unwrap();
    assert!(runs > 160, "{found}");
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    // Where the rate does not stop it, it finds the same.
    let free = TestNode::quiet().result("/", "presim_search", asked).await;
    assert_eq!((&free["best"], &free["runs"]), (&found["best"], &found["runs"]));
}
