//! `eth_callMany`, and calls in the middle of a block, on the devnet's growing blocks and on the official chain's.

use alloy_primitives::{Address, U256, hex};
use serde_json::{Value, json};

use crate::{
    support::{TestNode, number, shared},
    tracing::{PROBE, TRADER, swap},
};

/// Returns NUMBER, TIMESTAMP, COINBASE, BASEFEE and the balance of the caller, a word each.
const ENVIRONMENT: &str = "0x435f52426020524160405248606052333160805260a05ff3";
/// Increments its slot 0 and returns the new value.
const COUNTER: &str = "0x5f54600101805f555f5260205ff3";

fn word(value: &Value) -> U256 {
    value.as_str().unwrap_or_else(|| panic!("no word: {value}")).parse().unwrap()
}

fn words(result: &Value) -> Vec<U256> {
    let text = result["value"].as_str().unwrap_or_else(|| panic!("no value: {result}"));
    hex::decode(text).unwrap().chunks(32).map(U256::from_be_slice).collect()
}

/// Returns the code of a contract that returns the balance of `account`.
fn balance_of(account: Address) -> String {
    format!("0x73{}315f5260205ff3", hex::encode(account))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_sees_what_those_before_it_did() {
    let node = TestNode::quiet();
    let state = json!({PROBE.to_string(): {"code": COUNTER}});
    let call = json!({"to": PROBE});
    let bundles = json!([{"transactions": [call, call]}, {"transactions": []}, {"transactions": [call]}]);
    let results = node.result("/", "eth_callMany", json!([bundles, {"blockNumber": "latest"}, state])).await;
    assert_eq!(results.as_array().map(Vec::len), Some(3), "one list a bundle");
    assert_eq!([words(&results[0][0])[0], words(&results[0][1])[0]], [U256::from(1), U256::from(2)]);
    assert_eq!(results[1], json!([]));
    assert_eq!(words(&results[2][0])[0], U256::from(3));

    // Simulates the same swaps for comparison.
    let swaps = vec![swap(U256::ONE); 3];
    let bundles = json!([{"transactions": swaps}]);
    let results = node.result("/", "eth_callMany", json!([bundles, {"blockNumber": "latest"}])).await;
    let simulated =
        node.result("/", "eth_simulateV1", json!([{"blockStateCalls": [{"calls": swaps}]}, "latest"])).await;
    for (result, call) in results[0].as_array().unwrap().iter().zip(simulated[0]["calls"].as_array().unwrap()) {
        assert_eq!(result["value"], call["returnData"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_runs_in_its_own_block_and_one_that_says_nothing_in_the_next() {
    let node = TestNode::quiet();
    let state = json!({PROBE.to_string(): {"code": ENVIRONMENT}, TRADER.to_string(): {"balance": "0x77"}});
    let call = json!({"from": TRADER, "to": PROBE});
    let bundles = json!([
        {"transactions": [call]},
        {"transactions": [call]},
        {"transactions": [call], "blockOverride": {"number": "0x1000", "time": "0x77777777", "feeRecipient": PROBE, "baseFee": "0x9"}},
        {"transactions": [call], "blockOverrides": {"coinbase": TRADER}},
    ]);
    let results = node.result("/", "eth_callMany", json!([bundles, {"blockNumber": "pending"}, state])).await;
    let pending = node.block("pending").await;
    let (number, time) = (number(&pending["number"]), number(&pending["timestamp"]));
    let seen: Vec<Vec<U256>> = results.as_array().unwrap().iter().map(|bundle| words(&bundle[0])).collect();
    let numbers_and_times: Vec<[U256; 2]> = seen.iter().map(|words| [words[0], words[1]]).collect();
    let expected = [(number, time), (number + 1, time + 1), (0x1000, 0x7777_7777), (0x1001, 0x7777_7778)];
    assert_eq!(numbers_and_times, expected.map(|(number, time)| [U256::from(number), U256::from(time)]));
    let miner = word(&pending["miner"]);
    let (probe, trader) = (U256::from_be_slice(PROBE.as_slice()), U256::from_be_slice(TRADER.as_slice()));
    assert_eq!(seen.iter().map(|words| words[2]).collect::<Vec<_>>(), [miner, miner, probe, trader]);
    let base_fee = word(&pending["baseFeePerGas"]);
    assert_eq!(seen.iter().map(|words| words[3]).collect::<Vec<_>>(), [base_fee, base_fee, U256::from(9), base_fee]);
    assert!(seen.iter().all(|words| words[4] == U256::from(0x77)), "the overridden balance: {seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_fails_has_the_error_of_its_dialect_and_changes_nothing() {
    let node = TestNode::quiet();
    let failing = Address::with_last_byte(0xfa);
    let state = json!({
        PROBE.to_string(): {"code": COUNTER},
        // Calls the counter, which increments its slot, then executes INVALID.
        failing.to_string(): {"code": "0x5f5f5f5f5f620abcde5af1fe"},
    });
    let transactions = json!([{"to": failing, "gas": "0x30d40"}, {"to": PROBE}, swap(U256::MAX)]);
    let params = json!([[{"transactions": transactions}], {"blockNumber": "latest"}, state]);
    let [halted, counted, reverted] = {
        let results = node.result("/", "eth_callMany", params.clone()).await;
        [results[0][0].clone(), results[0][1].clone(), results[0][2].clone()]
    };
    assert_eq!(halted, json!({"error": {"code": -32000, "message": "invalid opcode: INVALID"}}));
    assert_eq!(words(&counted)[0], U256::from(1));
    let refused = node.error("/", "eth_call", json!([swap(U256::MAX), "latest"])).await;
    assert_eq!(reverted, json!({"error": refused}));

    // As in reth, the error is a string.
    let results = node.result("/standard", "eth_callMany", params).await;
    assert_eq!(results[0][0], json!({"error": "invalid opcode: INVALID"}));
    assert_eq!(results[0][2], json!({"error": "execution reverted: Router: insufficient output amount"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_open_block_can_be_entered_after_any_of_its_transactions() {
    // One block gets many transactions, because it is never sealed while the test runs.
    let node = TestNode::start(&["--sub-block-ms", "50", "--sub-blocks", "10000", "--keep-snapshots", "100000"]);
    let three = async || {
        let snapshot = node.result("/", "presim_snapshot", json!([])).await;
        let at = json!({"snapshotId": snapshot["id"]});
        let block = node.result("/", "eth_getBlockByNumber", json!(["pending", true])).await;
        let count = block["transactions"].as_array().map_or(0, Vec::len);
        let again = node.result("/", "presim_snapshot", json!([])).await;
        (count >= 3 && again["id"] == snapshot["id"]).then_some((at, block))
    };
    let (at, block) = node.when("a block with three transactions", three).await;
    let transactions = block["transactions"].as_array().unwrap();
    let sender: Address = transactions[0]["from"].as_str().unwrap().parse().unwrap();
    let nonce_before = number(&transactions[0]["nonce"]);
    let balance = |index: Value| {
        let (node, at) = (&node, &at);
        async move {
            let state = json!({PROBE.to_string(): {"code": balance_of(sender)}});
            let context = json!({"blockNumber": at, "transactionIndex": index});
            let results =
                node.result("/", "eth_callMany", json!([[{"transactions": [{"to": PROBE}]}], context, state])).await;
            words(&results[0][0])[0]
        }
    };
    let before = word(&node.result("/", "eth_getBalance", json!([sender, "latest"])).await);
    let all = word(&node.result("/", "eth_getBalance", json!([sender, at])).await);
    assert_eq!(balance(json!(0)).await, before, "0 is before any");
    assert_eq!(balance(json!(-1)).await, all, "-1 is after all");
    assert_eq!(balance(Value::Null).await, all, "and so is none");
    assert_eq!(balance(json!(transactions.len())).await, all);
    assert_ne!(balance(json!(1)).await, before, "the first transaction has cost its sender gas");

    // Traced at its own index, each transaction sees its own nonce.
    let trace = |index: Option<String>| {
        let (node, at) = (&node, &at);
        async move {
            let options = json!({"tracer": "prestateTracer", "txIndex": index});
            let state = node.result("/", "debug_traceCall", json!([{"from": sender, "to": PROBE}, at, options])).await;
            state[format!("{sender:#x}")]["nonce"].as_u64().unwrap_or(0)
        }
    };
    assert_eq!(trace(Some("0x0".into())).await, nonce_before);
    assert_eq!(trace(Some("0x1".into())).await, nonce_before + 1);

    let past = transactions.len() + 1;
    let params = json!([[{"transactions": [{"to": PROBE}]}], {"blockNumber": at, "transactionIndex": past}]);
    let error = node.error("/", "eth_callMany", params).await;
    assert_eq!(error["code"], -32602);
    let text = error["message"].as_str().unwrap();
    assert!(text.starts_with("params[1].transactionIndex: ") && text.contains("out of range"), "{text}");
}

/// Returns the call with the fields of a transaction.
fn as_call(tx: &Value) -> Value {
    let mut call = json!({});
    const FIELDS: &str = "from to gas value nonce accessList maxFeePerGas maxPriorityFeePerGas blobVersionedHashes \
        maxFeePerBlobGas authorizationList";
    for field in FIELDS.split(' ') {
        if let Some(value) = tx.get(field) {
            call[field] = value.clone();
        }
    }
    call["data"] = tx["input"].clone();
    if tx.get("maxFeePerGas").is_none() {
        call["gasPrice"] = tx["gasPrice"].clone();
    }
    call
}

#[tokio::test(flavor = "multi_thread")]
async fn the_transactions_of_the_official_chain_use_the_same_gas_again_where_they_stand() {
    let Some(folder) = shared("vectors/execution-apis") else { return };
    let (genesis, chain) = (folder.join("genesis.json"), folder.join("chain.rlp"));
    let node = TestNode::start(&["--genesis", genesis.to_str().unwrap(), "--chain", chain.to_str().unwrap()]);
    let head = node.height().await;
    let mut traced = 0;
    for height in 1..=head {
        let at = json!(format!("{height:#x}"));
        let block = node.result("/standard", "eth_getBlockByNumber", json!([at, true])).await;
        let receipts = node.result("/standard", "eth_getBlockReceipts", json!([at])).await;
        let transactions = block["transactions"].as_array().unwrap();
        for (index, (tx, receipt)) in transactions.iter().zip(receipts.as_array().unwrap()).enumerate() {
            let context = json!({"blockNumber": at, "transactionIndex": index});
            let bundles = json!([{"transactions": [as_call(tx)]}]);
            let params = json!([bundles, context, {"tracer": "callTracer", "tracerConfig": {"withLog": true}}]);
            let answer = node.call("/standard", "debug_traceCallMany", params).await;
            let trace = &answer["result"][0][0];
            assert_eq!(trace["gasUsed"], receipt["gasUsed"], "{height}/{index}: {answer} {receipt}");
            assert_eq!(
                trace.get("error").is_none(),
                receipt["status"] == "0x1" || receipt.get("status").is_none(),
                "{height}/{index}"
            );
            assert_eq!(trace["input"], tx["input"], "{height}/{index}");
            traced += 1;
        }
    }
    assert!(traced > 50, "only {traced} transactions");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_historic_block_is_entered_at_its_ends_as_its_own_and_its_parents_state() {
    let Some(folder) = shared("vectors/execution-apis") else { return };
    let (genesis, chain) = (folder.join("genesis.json"), folder.join("chain.rlp"));
    let node = TestNode::start(&["--genesis", genesis.to_str().unwrap(), "--chain", chain.to_str().unwrap()]);
    let head = node.height().await;
    let mut changed = 0;
    for height in 1..=head {
        let (at, parent) = (json!(format!("{height:#x}")), json!(format!("{:#x}", height - 1)));
        let block = node.result("/standard", "eth_getBlockByNumber", json!([at, true])).await;
        let Some(tx) = block["transactions"].as_array().unwrap().first() else { continue };
        let sender: Address = tx["from"].as_str().unwrap().parse().unwrap();
        // Stores and returns the sender's balance, with Frontier's opcodes only, because the chain begins there.
        let code = format!("0x73{}3160005260206000f3", hex::encode(sender));
        let state = json!({PROBE.to_string(): {"code": code}});
        let read = |index: i64| {
            let context = json!({"blockNumber": at, "transactionIndex": index});
            let params = json!([[{"transactions": [{"to": PROBE}]}], context, state]);
            async { words(&node.result("/standard", "eth_callMany", params).await[0][0])[0] }
        };
        let call = json!([{"to": PROBE}, at, state]);
        assert_eq!(read(-1).await, word(&node.result("/standard", "eth_call", call).await), "after {height}");
        let before = word(&node.result("/standard", "eth_getBalance", json!([sender, parent])).await);
        assert_eq!(read(0).await, before, "before {height}");
        changed += usize::from(read(-1).await != before);
    }
    assert!(changed > 20, "only {changed} blocks changed their first sender");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_bundles_are_refused_and_their_field_named() {
    let node = TestNode::quiet_with(&["--max-blocks", "2", "--max-block-calls", "3", "--max-calls", "4"]);
    let call = json!({"to": PROBE});
    let latest = json!({"blockNumber": "latest"});
    let one = json!([{"transactions": [call]}]);
    let of = |counts: &[usize]| -> Value {
        counts.iter().map(|count| json!({"transactions": vec![call.clone(); *count]})).collect()
    };
    for (params, code, text) in [
        (json!({}), -32602, "expected an array of positional parameters"),
        (json!([]), -32602, "1 to 4 parameters"),
        (json!([call, latest]), -32602, "params[0]: invalid type"),
        (json!([one, "latest"]), -32602, "params[1]: invalid type"),
        (json!([one, {"blockNumber": "newest"}]), -32602, "params[1].blockNumber: \"newest\""),
        (json!([one, {"blockNumber": "0x99"}]), -32000, "header not found"),
        (json!([one, {"blockNumber": {"snapshotId": "0x9999"}}]), -32000, "snapshot 0x9999 is not retained"),
        (
            json!([one, {"blockNumber": "latest", "transactionIndex": "one"}]),
            -32602,
            "params[1].transactionIndex: \"one\"",
        ),
        (
            json!([one, {"blockNumber": "latest", "transactionIndex": 1.5}]),
            -32602,
            "params[1].transactionIndex: invalid type",
        ),
        (
            json!([one, {"blockNumber": "latest", "transactionIndex": 7}]),
            -32602,
            "params[1].transactionIndex: 7: out of range",
        ),
        (
            json!([one, {"blockNumber": "earliest", "transactionIndex": 0}]),
            -32602,
            "params[1].transactionIndex: no transaction in genesis",
        ),
        (
            json!([one, latest, {}, -1]),
            -32602,
            "params[3]: invalid type: integer `-1`, expected a timeout in milliseconds",
        ),
        (json!([one, latest, {}, "5s"]), -32602, "params[3]: invalid type"),
        (json!([one, latest, {"0x1": {}}]), -32602, "params[2]"),
        (json!([[{"transactions": [{}]}], latest]), -32602, "params[0][0].transactions[0].to: missing"),
        (json!([[{"transactions": [call], "nonsense": 1}], latest]), -32602, "params[0][0].nonsense: unknown field"),
        (
            json!([[{"transactions": [call], "blockOverride": {"beaconRoot": PROBE.into_word()}}], latest]),
            -32602,
            "params[0][0].blockOverride.beaconRoot: not supported by eth_callMany",
        ),
        (json!([of(&[0, 0]), latest]), -32602, "params[0]: empty bundles"),
        (json!([of(&[1, 1, 1]), latest]), -32005, "params[0]: too many bundles: 3, at most 2"),
        (json!([of(&[4]), latest]), -32005, "params[0][0].transactions: too many calls"),
        (json!([of(&[2, 3]), latest]), -32005, "params[0][1].transactions: too many calls"),
        (
            json!([[{"transactions": [{"from": TRADER, "to": PROBE, "value": U256::MAX}]}], latest]),
            -32000,
            "insufficient funds",
        ),
    ] {
        let answer = node.call("/", "eth_callMany", params.clone()).await;
        let error = &answer["error"];
        assert_eq!(error["code"], code, "{params}: {answer}");
        assert!(error["message"].as_str().unwrap().contains(text), "{params}: expected {text:?} in {error}");
    }
    // As in Erigon and reth, a state context and its fields are optional.
    for params in [json!([one]), json!([one, {}]), json!([one, null, null, null])] {
        assert_eq!(node.result("/", "eth_callMany", params).await, json!([[{"value": "0x"}]]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_cannot_run_is_named() {
    let node = TestNode::quiet();
    let endless = json!({PROBE.to_string(): {"code": "0x5b600056"}});
    let latest = json!({"blockNumber": "latest"});
    let plain = json!({"to": PROBE});
    let rich = json!({"to": PROBE, "value": "0xffffffffffffffffffffffffff"});
    let bundles = json!([{"transactions": [plain]}, {"transactions": [plain, rich]}]);
    let greedy = json!([{"transactions": [plain, plain]}]);
    let no_gas = "no gas is left: the previous calls have used the 50000000 that a request may use: set the gas of each call, or raise --gas-cap";
    for (method, params, text) in [
        ("eth_callMany", json!([bundles, latest]), "params[0][1].transactions[1]: err: insufficient funds"),
        ("debug_traceCallMany", json!([bundles, latest]), "params[0][1].transactions[1]: err: insufficient funds"),
        ("debug_traceCall", json!([rich, "latest"]), "params[0]: err: insufficient funds"),
        ("eth_callMany", json!([greedy, latest, endless]), &format!("params[0][0].transactions[1]: {no_gas}")),
    ] {
        let error = node.error("/", method, params).await;
        assert_eq!(error["code"], -32000, "{error}");
        assert!(error["message"].as_str().unwrap().starts_with(text), "{method}: {error}");
    }
}
