//! `debug_traceCall` and `debug_traceCallMany`: the traces of calls in the trading world, compared with simulations of
//! the same calls.

use std::time::{Duration, Instant};

use alloy_primitives::{Address, Bytes, U256, address, hex, keccak256};
use alloy_sol_types::{SolCall, SolValue, sol};
use serde_json::{Value, json};

use crate::support::{TestNode, number, request};

sol! {
    interface IRouter {
        function swapExactTokensForTokens(uint256 amountIn, uint256 amountOutMin, address[] calldata path, address to, uint256 deadline) external returns (uint256[] memory amounts);
    }
}

pub const ALPHA: Address = address!("0x9fE46736679d2D9a65F0992F2272dE9f3c7fa6e0");
pub const BETA: Address = address!("0xe7f1725E7734CE288F8367e1Bb143E90bb3F0512");
pub const PAIR: Address = address!("0x29E8a5C605502EDe39C69d75DEb36483dDda2C9D");
pub const ROUTER: Address = address!("0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9");
/// Account a1 of the trading world.
pub const TRADER: Address = address!("0x70997970C51812dc3A010C7d01b50e0d17dc79C8");
/// An address without an account.
pub const PROBE: Address = address!("0x00000000000000000000000000000000000abcde");

/// The BETA that 1,000 ALPHA buy on the fresh state.
const THOUSAND_ALPHA_IN_BETA: u128 = 996_006_981_039_903_216_493;

fn ether(count: u64) -> U256 {
    U256::from(count) * U256::from(10).pow(U256::from(18))
}

/// Returns a swap of 1,000 ALPHA for at least this much BETA.
pub fn swap(least: U256) -> Value {
    let swap = IRouter::swapExactTokensForTokensCall {
        amountIn: ether(1000),
        amountOutMin: least,
        path: vec![ALPHA, BETA],
        to: TRADER,
        deadline: U256::MAX,
    };
    json!({"from": TRADER, "to": ROUTER, "data": Bytes::from(swap.abi_encode())})
}

/// Returns the slot of `account`'s balance in a token.
fn balance_slot(account: Address) -> String {
    keccak256((account, U256::ZERO).abi_encode()).to_string()
}

fn word(value: &Value) -> U256 {
    value.as_str().unwrap_or_else(|| panic!("no word: {value}")).parse().unwrap()
}

async fn trace(node: &TestNode, call: Value, options: Value) -> Value {
    node.result("/", "debug_traceCall", json!([call, "latest", options])).await
}

async fn simulate(node: &TestNode, call: Value) -> Value {
    node.result("/", "eth_simulateV1", json!([{"blockStateCalls": [{"calls": [call]}]}, "latest"])).await[0]["calls"][0]
        .take()
}

/// Returns all frames of a `callTracer` result, each before its children.
fn frames(root: &Value) -> Vec<&Value> {
    let mut all = vec![root];
    for call in root["calls"].as_array().into_iter().flatten() {
        all.extend(frames(call));
    }
    all
}

fn selector(frame: &Value) -> &str {
    frame["input"].as_str().unwrap().get(..10).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_frames_of_a_swap_are_a_tree_and_use_what_its_simulation_uses() {
    let node = TestNode::quiet();
    let traced =
        trace(&node, swap(U256::ONE), json!({"tracer": "callTracer", "tracerConfig": {"withLog": true}})).await;
    let simulated = simulate(&node, swap(U256::ONE)).await;

    assert_eq!(traced["type"], "CALL");
    assert_eq!(traced["from"], json!(TRADER));
    assert_eq!(traced["to"], json!(ROUTER));
    assert_eq!(traced["value"], "0x0");
    assert_eq!(traced["input"], swap(U256::ONE)["data"]);
    assert_eq!(traced["output"], simulated["returnData"]);
    assert_eq!(number(&traced["gasUsed"]), number(&simulated["gasUsed"]));
    assert_eq!(number(&traced["gas"]), 50_000_000);
    let amounts = <Vec<U256>>::abi_decode(&hex::decode(traced["output"].as_str().unwrap()).unwrap()).unwrap();
    assert_eq!(amounts, [ether(1000), U256::from(THOUSAND_ALPHA_IN_BETA)]);

    // The router moves the tokens to the pair and calls its swap; the pair sends BETA and reads both balances.
    let all = frames(&traced);
    let found = |from: Address, to: Address, selector_: &str| {
        all.iter().any(|f| f["from"] == json!(from) && f["to"] == json!(to) && selector(f) == selector_)
    };
    assert!(found(ROUTER, ALPHA, "0x23b872dd"), "transferFrom: {traced}");
    assert!(found(ROUTER, PAIR, "0x022c0d9f"), "swap: {traced}");
    assert!(found(PAIR, BETA, "0xa9059cbb"), "transfer: {traced}");
    assert!(found(PAIR, ALPHA, "0x70a08231") && found(PAIR, BETA, "0x70a08231"), "balanceOf: {traced}");
    assert!(all.iter().all(|frame| frame.get("error").is_none()), "{traced}");
    let statics = all.iter().filter(|frame| frame["type"] == "STATICCALL");
    assert!(statics.clone().count() > 0 && statics.into_iter().all(|frame| frame.get("value").is_none()), "{traced}");

    let mut logs: Vec<&Value> = all.iter().flat_map(|frame| frame["logs"].as_array().into_iter().flatten()).collect();
    logs.sort_by_key(|log| number(&log["index"]));
    let essence = |log: &Value| json!([log["address"], log["topics"], log["data"]]);
    let expected: Vec<Value> = simulated["logs"].as_array().unwrap().iter().map(essence).collect();
    assert!(expected.len() >= 4);
    assert_eq!(logs.into_iter().map(essence).collect::<Vec<_>>(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_top_call_leaves_the_other_frames_out() {
    let node = TestNode::quiet();
    let options = json!({"tracer": "callTracer", "tracerConfig": {"onlyTopCall": true, "withLog": true}});
    let (top, all) = (
        trace(&node, swap(U256::ONE), options).await,
        trace(&node, swap(U256::ONE), json!({"tracer": "callTracer"})).await,
    );
    assert!(all["calls"].as_array().is_some_and(|calls| !calls.is_empty()));
    assert!(top.get("calls").is_none() && top.get("logs").is_none(), "{top}");
    for field in ["from", "to", "gas", "gasUsed", "input", "output", "type", "value"] {
        assert_eq!(top[field], all[field], "{field}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reverting_call_is_a_trace_with_its_reason_and_without_logs() {
    let node = TestNode::quiet();
    let call = swap(ether(1000));
    let traced = trace(&node, call.clone(), json!({"tracer": "callTracer", "tracerConfig": {"withLog": true}})).await;
    assert_eq!(traced["error"], "execution reverted");
    assert_eq!(traced["revertReason"], "Router: insufficient output amount");
    let simulated = simulate(&node, call).await;
    assert_eq!(simulated["status"], "0x0");
    assert_eq!(number(&traced["gasUsed"]), number(&simulated["gasUsed"]));
    assert_eq!(traced["output"], simulated["returnData"]);
    assert!(frames(&traced).iter().all(|frame| frame.get("logs").is_none()), "{traced}");

    // The logs of a failing frame and of the frames in it are left out.
    let code = |code: &str| json!({"stateOverrides": {PROBE.to_string(): {"code": code}}, "tracer": "callTracer", "tracerConfig": {"withLog": true}});
    let kept = trace(&node, json!({"to": PROBE}), code("0x5f5fa000")).await;
    assert_eq!(kept["logs"].as_array().map(Vec::len), Some(1));
    let lost = trace(&node, json!({"to": PROBE}), code("0x5f5fa05f5ffd")).await;
    assert_eq!(lost["error"], "execution reverted");
    assert!(lost.get("logs").is_none(), "{lost}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_prestate_is_what_the_state_holds_before_the_call() {
    let node = TestNode::quiet();
    let state = trace(&node, swap(U256::ONE), json!({"tracer": "prestateTracer"})).await;
    let accounts = state.as_object().unwrap();
    for contract in [ROUTER, ALPHA, BETA, PAIR] {
        let account = &accounts[&format!("{contract:#x}")];
        assert_eq!(account["code"], node.result("/", "eth_getCode", json!([contract, "latest"])).await, "{contract}");
        for (slot, value) in account["storage"].as_object().into_iter().flatten() {
            let expected = node.result("/", "eth_getStorageAt", json!([contract, slot, "latest"])).await;
            assert_eq!(*value, expected, "{contract} {slot}");
        }
    }
    let alpha = &accounts[&format!("{ALPHA:#x}")]["storage"];
    assert_eq!(word(&alpha[balance_slot(TRADER)]), ether(100_000));
    assert_eq!(word(&alpha[balance_slot(PAIR)]), ether(1_000_000));
    let trader = &accounts[&format!("{TRADER:#x}")];
    let nonce = number(&node.result("/", "eth_getTransactionCount", json!([TRADER, "latest"])).await);
    assert_eq!(trader["nonce"].as_u64().unwrap_or(0), nonce, "a nonce of zero is not shown");
    assert_eq!(trader["balance"], node.result("/", "eth_getBalance", json!([TRADER, "latest"])).await);

    // A created account is not in the prestate. CREATE deploys no code, so the address is its only state.
    let created = "0x5f5f5ff000";
    let options = |diff: bool| json!({"tracer": "prestateTracer", "tracerConfig": {"diffMode": diff}, "stateOverrides": {PROBE.to_string(): {"code": created}}});
    let address = format!("{:#x}", PROBE.create(0));
    let before = trace(&node, json!({"to": PROBE}), options(false)).await;
    assert!(before.get(format!("{PROBE:#x}")).is_some() && before.get(&address).is_none(), "{before}");
    let diff = trace(&node, json!({"to": PROBE}), options(true)).await;
    assert!(diff["pre"].get(&address).is_none(), "{diff}");
    assert_eq!(diff["post"][&address]["nonce"], 1, "{diff}");

    let bare = trace(
        &node,
        swap(U256::ONE),
        json!({"tracer": "prestateTracer", "tracerConfig": {"disableCode": true, "disableStorage": true}}),
    )
    .await;
    assert_eq!(bare.as_object().unwrap().keys().collect::<Vec<_>>(), accounts.keys().collect::<Vec<_>>());
    for (address, account) in bare.as_object().unwrap() {
        assert!(account.get("code").is_none() && account.get("storage").is_none(), "{address}: {account}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_difference_is_what_the_call_changes() {
    let node = TestNode::quiet();
    let diff = json!({"tracer": "prestateTracer", "tracerConfig": {"diffMode": true}});
    let swapped = trace(&node, swap(U256::ONE), diff.clone()).await;
    let (alpha, beta) = (format!("{ALPHA:#x}"), format!("{BETA:#x}"));
    let at = |when: &str, token: &str, account| word(&swapped[when][token]["storage"][balance_slot(account)]);
    let out = U256::from(THOUSAND_ALPHA_IN_BETA);
    assert_eq!(at("pre", &alpha, TRADER) - at("post", &alpha, TRADER), ether(1000));
    assert_eq!(at("post", &alpha, PAIR) - at("pre", &alpha, PAIR), ether(1000));
    assert_eq!(at("post", &beta, TRADER) - at("pre", &beta, TRADER), out);
    assert_eq!(at("pre", &beta, PAIR) - at("post", &beta, PAIR), out);
    // The router and the code of the tokens are unchanged.
    assert!(swapped["post"].get(format!("{ROUTER:#x}")).is_none(), "{swapped}");
    assert!(swapped["post"][&alpha].get("code").is_none(), "{swapped}");

    // A transfer that pays for its gas, in wei.
    let price = 10_000_000_000_u64;
    let call = json!({"from": TRADER, "to": PROBE, "value": "0x5", "gas": "0x5208", "gasPrice": format!("{price:#x}")});
    let paid = trace(&node, call, diff).await;
    let (trader, probe) = (format!("{TRADER:#x}"), format!("{PROBE:#x}"));
    let spent = word(&paid["pre"][&trader]["balance"]) - word(&paid["post"][&trader]["balance"]);
    assert_eq!(spent, U256::from(21_000 * price + 5));
    // A nonce of zero is left out.
    assert_eq!(paid["post"][&trader]["nonce"], paid["pre"][&trader]["nonce"].as_u64().unwrap_or(0) + 1);
    assert_eq!(paid["post"][&probe]["balance"], "0x5");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_counts_of_functions_are_those_of_the_frames() {
    let node = TestNode::quiet();
    let options = json!({"tracer": "muxTracer", "tracerConfig": {"4byteTracer": null, "callTracer": {}, "noopTracer": {}, "prestateTracer": {"diffMode": true}}});
    let mux = trace(&node, swap(U256::ONE), options).await;
    let mut expected = serde_json::Map::new();
    for frame in frames(&mux["callTracer"]) {
        let bytes = (frame["input"].as_str().unwrap().len() - 2) / 2;
        let count = expected.entry(format!("{}-{}", selector(frame), bytes - 4)).or_insert(json!(0));
        *count = json!(count.as_u64().unwrap() + 1);
    }
    assert_eq!(mux["4byteTracer"], Value::Object(expected));
    assert_eq!(mux["4byteTracer"]["0x38ed1739-256"], 1, "{mux}");
    assert_eq!(mux["noopTracer"], json!({}));
    assert_eq!(mux["callTracer"], trace(&node, swap(U256::ONE), json!({"tracer": "callTracer"})).await);
    let diff = json!({"tracer": "prestateTracer", "tracerConfig": {"diffMode": true}});
    assert_eq!(mux["prestateTracer"], trace(&node, swap(U256::ONE), diff).await);
    assert_eq!(mux["4byteTracer"], trace(&node, swap(U256::ONE), json!({"tracer": "4byteTracer"})).await);

    // A precompile call has no selector: PUSH0 ×5, the identity precompile, GAS, CALL with four bytes.
    let options =
        json!({"tracer": "4byteTracer", "stateOverrides": {PROBE.to_string(): {"code": "0x5f5f60045f5f60045af100"}}});
    assert_eq!(trace(&node, json!({"to": PROBE, "data": "0x01020304"}), options).await, json!({"0x01020304-0": 1}));
}

#[tokio::test(flavor = "multi_thread")]
async fn flat_frames_are_those_of_the_tree_with_their_addresses() {
    let node = TestNode::quiet();
    let flat = trace(&node, swap(U256::ONE), json!({"tracer": "flatCallTracer"})).await;
    let tree = trace(&node, swap(U256::ONE), json!({"tracer": "callTracer"})).await;
    let (all, flat) = (frames(&tree), flat.as_array().unwrap());
    assert_eq!(flat.len(), all.len());
    for (frame, shown) in all.iter().zip(flat) {
        assert_eq!(shown["action"]["to"], frame["to"]);
        assert_eq!(shown["action"]["input"], frame["input"]);
        assert_eq!(shown["subtraces"], frame["calls"].as_array().map_or(0, Vec::len));
        let mut at = &tree;
        for index in shown["traceAddress"].as_array().unwrap() {
            at = &at["calls"][index.as_u64().unwrap() as usize];
        }
        assert_eq!(at, *frame, "{}", shown["traceAddress"]);
    }

    // A contract that calls another and then destroys itself: the SELFDESTRUCT comes last in both tracers.
    let options = |tracer: &str| json!({"tracer": tracer, "stateOverrides": {PROBE.to_string(): {"code": "0x5f5f5f5f5f60ee5af15060bbff", "balance": "0x7"}}});
    let tree = trace(&node, json!({"to": PROBE}), options("callTracer")).await;
    let kinds: Vec<&Value> = tree["calls"].as_array().unwrap().iter().map(|call| &call["type"]).collect();
    assert_eq!(kinds, ["CALL", "SELFDESTRUCT"], "{tree}");
    assert_eq!(tree["calls"][1]["value"], "0x7");
    let flat = trace(&node, json!({"to": PROBE}), options("flatCallTracer")).await;
    assert_eq!(flat[0]["subtraces"], 2, "{flat}");
    assert_eq!(flat[1]["traceAddress"], json!([0]));
    assert_eq!((&flat[2]["type"], &flat[2]["traceAddress"]), (&json!("suicide"), &json!([1])), "{flat}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_struct_logger_tells_each_opcode_as_geth_does() {
    let node = TestNode::quiet();
    // PUSH1 2, PUSH1 3, ADD, PUSH0, MSTORE, PUSH1 42, PUSH0, SSTORE, PUSH0, SLOAD, POP, PUSH1 32, PUSH0, RETURN
    let state = json!({PROBE.to_string(): {"code": "0x60026003015f52602a5f555f545060205ff3"}});
    let call = json!({"to": PROBE, "gas": "0x186a0"});
    let traced =
        trace(&node, call.clone(), json!({"stateOverrides": state, "enableMemory": true, "enableReturnData": true}))
            .await;
    // 100,000 less the intrinsic 21,000. SSTORE of a cold slot from zero: 2,100 + 20,000; warm SLOAD: 100 (EIP-2929).
    let expected: &[(u64, &str, u64, u64, &[&str])] = &[
        (0, "PUSH1", 79_000, 3, &[]),
        (2, "PUSH1", 78_997, 3, &["0x2"]),
        (4, "ADD", 78_994, 3, &["0x2", "0x3"]),
        (5, "PUSH0", 78_991, 2, &["0x5"]),
        (6, "MSTORE", 78_989, 6, &["0x5", "0x0"]),
        (7, "PUSH1", 78_983, 3, &[]),
        (9, "PUSH0", 78_980, 2, &["0x2a"]),
        (10, "SSTORE", 78_978, 22_100, &["0x2a", "0x0"]),
        (11, "PUSH0", 56_878, 2, &[]),
        (12, "SLOAD", 56_876, 100, &["0x0"]),
        (13, "POP", 56_776, 2, &["0x2a"]),
        (14, "PUSH1", 56_774, 3, &[]),
        (16, "PUSH0", 56_771, 2, &["0x20"]),
        (17, "RETURN", 56_769, 0, &["0x20", "0x0"]),
    ];
    let steps = traced["structLogs"].as_array().unwrap();
    assert_eq!(steps.len(), expected.len());
    for (step, (pc, op, gas, cost, stack)) in steps.iter().zip(expected) {
        let told = json!([step["pc"], step["op"], step["gas"], step["gasCost"], step["stack"], step["depth"]]);
        assert_eq!(told, json!([pc, op, gas, cost, stack, 1]));
        let memory = (*pc > 6).then(|| json!([format!("{:#066x}", 5)]));
        assert_eq!(step.get("memory"), memory.as_ref(), "at {pc}");
        let storage =
            matches!(*op, "SSTORE" | "SLOAD").then(|| json!({format!("{:#066x}", 0): format!("{:#066x}", 42)}));
        assert_eq!(step.get("storage"), storage.as_ref(), "at {pc}");
        assert!(step.get("error").is_none() && step.get("refund").is_none(), "at {pc}");
    }
    assert_eq!(traced["gas"], 43_231);
    assert_eq!(traced["failed"], false);
    assert_eq!(traced["returnValue"], format!("0x{:064x}", 5));

    let less = json!({"stateOverrides": state, "disableStack": true, "disableStorage": true, "limit": 9});
    let less = trace(&node, call, less).await;
    assert_eq!(less["structLogs"].as_array().map(Vec::len), Some(9));
    for step in less["structLogs"].as_array().unwrap() {
        for field in ["stack", "storage", "memory", "returnData"] {
            assert!(step.get(field).is_none(), "{field}: {step}");
        }
    }
    assert_eq!(less["gas"], 43_231);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_struct_logger_counts_refunds_over_frames_and_tells_what_could_not_run() {
    let node = TestNode::quiet();
    let inner = address!("0x00000000000000000000000000000000000000ef");
    // The inner contract clears its slot 0, for a refund of 4,800 (EIP-3529). The outer one calls it and stops.
    let state = json!({
        PROBE.to_string(): {"code": "0x5f5f5f5f5f60ef5af100"},
        inner.to_string(): {"code": "0x5f5f5500", "state": {format!("{:#066x}", 0): format!("{:#066x}", 1)}},
    });
    let traced = trace(&node, json!({"to": PROBE, "gas": "0x30d40"}), json!({"stateOverrides": state})).await;
    let steps = traced["structLogs"].as_array().unwrap();
    let told: Vec<Value> = steps.iter().map(|step| json!([step["op"], step["depth"], step["refund"]])).collect();
    let none = Value::Null;
    assert_eq!(
        told[6..],
        [
            json!(["GAS", 1, none]),
            json!(["CALL", 1, none]),
            json!(["PUSH0", 2, none]),
            json!(["PUSH0", 2, none]),
            json!(["SSTORE", 2, none]),
            json!(["STOP", 2, 4800]),
            json!(["STOP", 1, 4800]),
        ]
    );
    // The call's cost includes the gas that it passes on: all but 1/64 of what is left after the cold account's 2,600.
    let (call, child) = (&steps[7], &steps[8]);
    let left = call["gas"].as_u64().unwrap() - 2600;
    assert_eq!(child["gas"].as_u64().unwrap(), left - left / 64);
    assert_eq!(call["gasCost"].as_u64().unwrap(), 2600 + left - left / 64);

    for (code, gas, op, error) in [
        ("0x01", "0x186a0", "ADD", Some("stack underflow (0 <=> 2)")),
        ("0x600160026003", "0x520a", "PUSH1", Some("out of gas")),
        ("0x5f5ffd", "0x186a0", "REVERT", None),
        ("0xfe", "0x186a0", "INVALID", None),
        ("0x0c", "0x186a0", "opcode 0xc not defined", None),
    ] {
        let options = json!({"stateOverrides": {PROBE.to_string(): {"code": code}}});
        let traced = trace(&node, json!({"to": PROBE, "gas": gas}), options).await;
        let last = traced["structLogs"].as_array().unwrap().last().unwrap();
        assert_eq!(last["op"], op, "{code}: {traced}");
        assert_eq!(last.get("error").and_then(Value::as_str), error, "{code}: {traced}");
        assert_eq!(traced["failed"], true);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn overrides_of_state_and_block_hold_in_a_trace() {
    let node = TestNode::quiet();
    // NUMBER, TIMESTAMP, COINBASE and BASEFEE of the block, and the caller's balance.
    let code = "0x435f52426020524160405248606052333160805260a05ff3";
    let options = json!({
        "tracer": "callTracer",
        "stateOverrides": {PROBE.to_string(): {"code": code}, TRADER.to_string(): {"balance": "0x77"}},
        "blockOverrides": {"number": "0x1234", "time": "0x77777777", "feeRecipient": BETA, "baseFeePerGas": "0x9"},
    });
    let call = json!({"from": TRADER, "to": PROBE});
    let traced = node.result("/", "debug_traceCall", json!([call, "pending", options])).await;
    let output = hex::decode(traced["output"].as_str().unwrap()).unwrap();
    let words: Vec<U256> = output.chunks(32).map(U256::from_be_slice).collect();
    let beneficiary = U256::from_be_slice(BETA.as_slice());
    assert_eq!(words, [U256::from(0x1234), U256::from(0x7777_7777), beneficiary, U256::from(9), U256::from(0x77)]);
    // For geth, a call without a gas price has a base fee of 0.
    let standard = node.result("/standard", "debug_traceCall", json!([call, "pending", options])).await;
    let output = hex::decode(standard["output"].as_str().unwrap()).unwrap();
    assert_eq!(U256::from_be_slice(&output[96..128]), U256::ZERO);
}

#[tokio::test(flavor = "multi_thread")]
async fn traces_of_bundles_see_what_the_calls_before_them_did() {
    let node = TestNode::quiet();
    let bundles = json!([{"transactions": [swap(U256::ONE), swap(U256::ONE)]}, {"transactions": [swap(U256::ONE)]}]);
    let traces = node
        .result("/", "debug_traceCallMany", json!([bundles, {"blockNumber": "latest"}, {"tracer": "callTracer"}]))
        .await;
    let simulated = node
        .result(
            "/",
            "eth_simulateV1",
            json!([{"blockStateCalls": [{"calls": [swap(U256::ONE), swap(U256::ONE), swap(U256::ONE)]}]}, "latest"]),
        )
        .await;
    let calls = simulated[0]["calls"].as_array().unwrap();
    let traces = [&traces[0][0], &traces[0][1], &traces[1][0]];
    for (trace, call) in traces.iter().zip(calls) {
        assert_eq!(trace["output"], call["returnData"]);
        assert_eq!(number(&trace["gasUsed"]), number(&call["gasUsed"]));
    }
    assert_ne!(traces[0]["output"], traces[1]["output"], "the second swap gives less");
    assert_ne!(traces[1]["output"], traces[2]["output"], "and the third less again");

    // The gas cap covers all calls of a request.
    let small = TestNode::start(&["--traffic", "0", "--sub-block-ms", "60000", "--gas-cap", "50000"]);
    let call = json!({"to": PROBE});
    let params = json!([[{"transactions": [call, call, call]}], {"blockNumber": "latest"}, {"tracer": "callTracer"}]);
    let error = small.error("/", "debug_traceCallMany", params).await;
    assert_eq!(error["code"], -32000);
    assert!(error["message"].as_str().unwrap().contains("intrinsic gas too low: have 8000, want 21000"), "{error}");
}

/// Code that makes a trace long by repeating one thing without end, and the tracer that records it.
const LOOPS: &[(&str, &str, Option<&str>)] = &[
    // JUMPDEST, PUSH0, JUMP
    ("steps", "0x5b5f56", None),
    // Reads one MiB of memory in a loop.
    ("memory", "0x5f620fffff535b5f5150600556", None),
    // CALL of an empty account in a loop.
    ("frames", "0x5b5f5f5f5f5f60ee5af1505f56", Some("callTracer")),
    ("flat frames", "0x5b5f5f5f5f5f60ee5af1505f56", Some("flatCallTracer")),
    // LOG0 in a loop.
    ("logs", "0x5b5f5fa05f56", Some("callTracer")),
    // BALANCE of a new account each time.
    ("accounts", "0x5f5b600101803150600156", Some("prestateTracer")),
    // CALL with a counter as its selector.
    ("selectors", "0x5f5b6001018060e01b5f525f5f60045f5f60ee5af150600156", Some("4byteTracer")),
];

#[tokio::test(flavor = "multi_thread")]
async fn no_trace_takes_more_memory_than_it_may() {
    let node = TestNode::start(&["--traffic", "0", "--sub-block-ms", "60000", "--max-trace-bytes", "1000000"]);
    for (what, code, tracer) in LOOPS {
        let state = json!({PROBE.to_string(): {"code": code}});
        let options = json!({"tracer": tracer, "stateOverrides": state, "enableMemory": true, "tracerConfig": null});
        let mut options = options;
        if *what == "logs" {
            options["tracerConfig"] = json!({"withLog": true});
        }
        let error = node.error("/", "debug_traceCall", json!([{"to": PROBE}, "latest", options])).await;
        assert_eq!(error["code"], -32005, "{what}: {error}");
        assert!(error["message"].as_str().unwrap().contains("--max-trace-bytes"), "{what}: {error}");
    }
    // The bound covers all traces of a request.
    let (call, options) = (swap(U256::ONE), json!({"disableStack": true}));
    trace(&node, call.clone(), options.clone()).await;
    let params = json!([[{"transactions": vec![call; 20]}], {"blockNumber": "latest"}, options]);
    assert_eq!(node.error("/", "debug_traceCallMany", params).await["code"], -32005);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_as_deep_as_the_evm_goes_is_told() {
    let node = TestNode::start(&["--traffic", "0", "--sub-block-ms", "60000", "--gas-cap", "18446744073709551615"]);
    // A contract that calls itself until the call depth limit.
    let state = json!({PROBE.to_string(): {"code": "0x5f5f5f5f5f305af100"}});
    let call = json!({"to": PROBE, "gas": "0xffffffffffff"});
    let geths = |tracer: &str| json!([call, "latest", {"tracer": tracer, "stateOverrides": state}]);
    let too_deep = "\"error\":\"max call depth exceeded\"";
    for (method, params, frame, frames, end) in [
        ("debug_traceCall", geths("callTracer"), "\"type\":\"CALL\"", 1026, too_deep),
        ("debug_traceCall", geths("flatCallTracer"), "\"type\":\"call\"", 1026, too_deep),
        // The last call does not begin.
        (
            "trace_call",
            json!([call, ["vmTrace"], "latest", state]),
            "\"code\":\"0x5f",
            1025,
            "\"op\":\"CALL\",\"sub\":null",
        ),
    ] {
        // The nesting is too deep for a JSON parser, so the frames are counted in the text.
        let (status, text) = node.post("/", request(1, method, params).to_string()).await;
        assert_eq!(status, 200);
        assert_eq!((text.matches(frame).count(), text.matches(end).count()), (frames, 1), "{method} {frame}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_trace_ends_with_its_deadline() {
    let node = TestNode::quiet_with(&["--deadline-ms", "60000", "--gas-cap", "18446744073709551615"]);
    let state = json!({PROBE.to_string(): {"code": "0x5b5f56"}});
    let call = json!({"to": PROBE, "gas": "0xffffffffffffff"});
    let options = json!({"tracer": "callTracer", "timeout": "150ms", "stateOverrides": state});
    let bundles = json!([{"transactions": [call]}]);
    for (method, params) in [
        ("debug_traceCall", json!([call, "latest", options])),
        ("debug_traceCallMany", json!([bundles, {"blockNumber": "latest"}, options])),
        ("eth_callMany", json!([bundles, {"blockNumber": "latest"}, state, 150])),
    ] {
        let began = Instant::now();
        assert_eq!(node.error("/", method, params).await["code"], -32016, "{method}");
        assert!(began.elapsed() >= Duration::from_millis(150), "{method}");
    }
    // A request cannot exceed the node's own time limit.
    let node = TestNode::quiet_with(&["--deadline-ms", "200", "--gas-cap", "18446744073709551615"]);
    let options = json!({"tracer": "callTracer", "timeout": "10h", "stateOverrides": state});
    assert_eq!(node.error("/", "debug_traceCall", json!([call, "latest", options])).await["code"], -32016);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_refused_and_its_field_named() {
    let node = TestNode::quiet();
    let call = json!({"to": PROBE});
    let with = |options: Value| json!([call, "latest", options]);
    let many = |context: Value, options: Value| json!([[{"transactions": [call]}], context, options]);
    let latest = json!({"blockNumber": "latest"});
    for (method, params, code, text) in [
        ("debug_traceCall", json!([]), -32602, "params"),
        ("debug_traceCall", json!([{}, "latest"]), -32602, "params[0].to: missing"),
        ("debug_traceCall", json!([call, "latest", {}, 1]), -32602, "more parameters"),
        ("debug_traceCall", with(json!({"tracer": 5})), -32602, "params[2].tracer: invalid type"),
        (
            "debug_traceCall",
            with(json!({"tracer": "fooTracer"})),
            -32602,
            "params[2].tracer: \"fooTracer\": unknown tracer",
        ),
        (
            "debug_traceCall",
            with(json!({"tracer": "{result: function() {}}"})),
            -32602,
            "params[2].tracer: JavaScript tracers are not supported",
        ),
        ("debug_traceCall", with(json!({"nonsense": 1})), -32602, "params[2].nonsense: unknown field"),
        (
            "debug_traceCall",
            with(json!({"tracer": "callTracer", "tracerConfig": {"nonsense": 1}})),
            -32602,
            "params[2].tracerConfig.nonsense: unknown field",
        ),
        (
            "debug_traceCall",
            with(json!({"tracer": "callTracer", "tracerConfig": {"withLog": 1}})),
            -32602,
            "params[2].tracerConfig.withLog: invalid type",
        ),
        (
            "debug_traceCall",
            with(json!({"tracer": "callTracer", "tracerConfig": 7})),
            -32602,
            "params[2].tracerConfig: invalid type",
        ),
        (
            "debug_traceCall",
            with(json!({"tracer": "4byteTracer", "tracerConfig": {"a": 1}})),
            -32602,
            "params[2].tracerConfig.a: unknown field",
        ),
        ("debug_traceCall", with(json!({"tracer": "muxTracer"})), -32602, "params[2].tracerConfig: missing"),
        (
            "debug_traceCall",
            with(json!({"tracer": "muxTracer", "tracerConfig": {"fooTracer": {}}})),
            -32602,
            "params[2].tracerConfig.fooTracer: \"fooTracer\": unknown",
        ),
        (
            "debug_traceCall",
            with(json!({"tracer": "muxTracer", "tracerConfig": {"muxTracer": {}}})),
            -32602,
            "params[2].tracerConfig.muxTracer: a muxTracer cannot be nested",
        ),
        (
            "debug_traceCall",
            with(json!({"timeout": "soon"})),
            -32602,
            "params[2].timeout: \"soon\": expected a duration",
        ),
        ("debug_traceCall", with(json!({"timeout": "-5s"})), -32602, "params[2].timeout: \"-5s\""),
        ("debug_traceCall", with(json!({"timeout": 5})), -32602, "params[2].timeout: invalid type"),
        ("debug_traceCall", with(json!({"limit": -1})), -32602, "params[2].limit: invalid value"),
        ("debug_traceCall", with(json!({"txIndex": "7"})), -32602, "params[2].txIndex"),
        ("debug_traceCall", with(json!({"txIndex": "0x0"})), -32602, "params[2].txIndex: no transaction in genesis"),
        (
            "debug_traceCall",
            with(json!({"blockOverrides": {"withdrawals": []}})),
            -32602,
            "params[2].blockOverrides.withdrawals: not supported by debug_traceCall",
        ),
        (
            "debug_traceCall",
            with(json!({"stateOverrides": {PROBE.to_string(): {"state": {}, "stateDiff": {}}}})),
            -32602,
            "params[2].stateOverrides.0x",
        ),
        ("debug_traceCall", json!([call, "0xffff", {}]), -32000, "header not found"),
        ("debug_traceCall", json!([{"to": PROBE, "chainId": "0x5"}, "latest"]), -32000, "chainId does not match"),
        ("debug_traceCallMany", json!([[], latest]), -32602, "params[0]: empty bundles"),
        ("debug_traceCallMany", json!([[{"transactions": []}], latest]), -32602, "params[0]: empty bundles"),
        ("debug_traceCallMany", json!([[{}], latest]), -32602, "params[0][0]: missing field `transactions`"),
        (
            "debug_traceCallMany",
            many(json!({"blockNumber": "latest", "transactionIndex": -2}), json!({})),
            -32602,
            "params[1].transactionIndex: invalid value",
        ),
        (
            "debug_traceCallMany",
            many(latest.clone(), json!({"txIndex": "0x0"})),
            -32602,
            "params[2].txIndex: not supported",
        ),
        ("debug_traceCallMany", many(latest.clone(), json!({"tracer": "x"})), -32602, "params[2].tracer"),
    ] {
        let answer = node.call("/", method, params.clone()).await;
        let error = &answer["error"];
        assert_eq!(error["code"], code, "{method} {params}: {answer}");
        assert!(error["message"].as_str().unwrap().contains(text), "{method} {params}: expected {text:?} in {error}");
    }
    // As in geth, unknown fields are ignored.
    node.result(
        "/standard",
        "debug_traceCall",
        json!([{}, "latest", {"nonsense": 1, "tracer": "callTracer", "tracerConfig": {"nonsense": 1}}]),
    )
    .await;
}
