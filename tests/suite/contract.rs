//! The API contract of `/`, row by row, and its differences on `/standard`.

use alloy_primitives::{Address, B256, U256, hex, keccak256};
use serde_json::{Value, json};

use crate::support::{CODE_AT, PATHS, TestNode, number};

/// Another address without an account.
const OTHER: &str = "0x00000000000000000000000000000000000c0de1";
/// An address that stays without an account.
const NOBODY: &str = "0x00000000000000000000000000000000000000fe";
/// The address of the logs of native currency transfers.
const EMITTER: &str = "0xeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee";
const GWEI: u64 = 1_000_000_000;

/// Returns code that returns the word which these opcodes leave on the stack.
fn returning(opcodes: &str) -> String {
    format!("0x{opcodes}60005260206000f3")
}

/// Returns code that reverts with these bytes, at most 255.
fn reverting(data: &[u8]) -> String {
    format!("0x60{len:02x}600c60003960{len:02x}6000fd{data}", len = data.len(), data = hex::encode(data))
}

/// Encodes `Error(string)` with a text of up to 32 bytes.
fn error_string(text: &str) -> Vec<u8> {
    let mut data = hex!("08c379a0").to_vec();
    data.extend_from_slice(&U256::from(32).to_be_bytes::<32>());
    data.extend_from_slice(&U256::from(text.len()).to_be_bytes::<32>());
    data.extend_from_slice(text.as_bytes());
    data.resize(100, 0);
    data
}

fn word(value: impl TryInto<U256, Error: std::fmt::Debug>) -> Value {
    json!(format!("{:#066x}", value.try_into().expect("it fits")))
}

fn address_word(address: &str) -> Value {
    json!(format!("0x{:0>64}", address.trim_start_matches("0x").to_lowercase()))
}

/// Returns the address of the devnet's wrapped ether.
fn weth(node: &TestNode) -> Address {
    node.node.info().trading.expect("the devnet has a trading world").weth
}

/// Encodes calldata of a function with one address parameter.
fn with_address(signature: &str, address: &str) -> String {
    format!("0x{}{:0>64}", hex::encode(&keccak256(signature)[..4]), address.trim_start_matches("0x"))
}

/// Returns `eth_call` parameters that run this code at [`CODE_AT`].
fn calling(code: &str) -> Value {
    json!([{"to": CODE_AT}, "pending", {CODE_AT: {"code": code}}])
}

/// Returns a bundle of one block with one call, which runs this code at [`CODE_AT`].
fn bundle(code: &str) -> Value {
    json!([{"blockStateCalls": [{"stateOverrides": {CODE_AT: {"code": code}}, "calls": [{"to": CODE_AT}]}]}, "pending"])
}

/// Returns the result of the first call of the first block.
fn first_call(blocks: &Value) -> &Value {
    &blocks[0]["calls"][0]
}

fn is_hex(value: &Value) -> bool {
    value
        .as_str()
        .and_then(|text| text.strip_prefix("0x"))
        .is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit)))
}

// eth_call.

#[tokio::test(flavor = "multi_thread")]
async fn each_field_of_a_call_is_what_the_code_sees() {
    let node = TestNode::quiet();
    let sender = format!("{:?}", node.account(0));
    let cases = [
        ("from", "33", json!({"from": sender}), address_word(&sender)),
        ("no from", "33", json!({}), address_word("0x0")),
        ("to", "30", json!({}), address_word(CODE_AT)),
        ("value", "34", json!({"from": sender, "value": "0x1f4"}), word(500)),
        ("data", "600035", json!({"data": format!("0x{:064x}", 7)}), word(7)),
        ("input", "600035", json!({"input": format!("0x{:064x}", 8)}), word(8)),
        ("no data", "36", json!({}), word(0)),
        ("gasPrice", "3a", json!({"from": sender, "gasPrice": "0x77359400"}), word(2 * GWEI)),
        (
            "maxFeePerGas",
            "3a",
            json!({"from": sender, "maxFeePerGas": "0xb2d05e00", "maxPriorityFeePerGas": "0xb2d05e00"}),
            word(3 * GWEI),
        ),
        ("no price", "3a", json!({"from": sender}), word(0)),
        ("gas", "5a", json!({"gas": "0xc350"}), word(50_000 - 21_000 - 2)),
        // The most that a request may have.
        ("no gas", "5a", json!({}), word(50_000_000 - 21_000 - 2)),
        ("nonce", "33", json!({"from": sender, "nonce": "0x63"}), address_word(&sender)),
        ("accessList", "30", json!({"accessList": [{"address": OTHER, "storageKeys": []}]}), address_word(CODE_AT)),
    ];
    for (name, opcodes, mut call, expected) in cases {
        call["to"] = json!(CODE_AT);
        let params = json!([call, "pending", {CODE_AT: {"code": returning(opcodes)}}]);
        assert_eq!(node.result("/", "eth_call", params).await, expected, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_to_is_refused_by_name() {
    let node = TestNode::quiet();
    let error = node.error("/", "eth_call", json!([{"data": "0x"}, "pending"])).await;
    assert_eq!(error["code"], -32602);
    assert!(error["message"].as_str().is_some_and(|text| text.contains("params[0].to")), "{error}");
    let error = node.error("/", "eth_simulateV1", json!([{"blockStateCalls": [{"calls": [{}]}]}, "pending"])).await;
    assert_eq!(error["code"], -32602);
    assert!(
        error["message"].as_str().is_some_and(|text| text.contains("params[0].blockStateCalls[0].calls[0].to")),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_to_null_creates_a_contract() {
    let node = TestNode::quiet();
    let params = json!([{"to": null, "data": "0x600160005360016000f3"}, "pending"]);
    assert_eq!(node.result("/", "eth_call", params).await, "0x01");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_its_block_is_refused_by_name() {
    let node = TestNode::quiet();
    let cases = [
        ("eth_call", json!([{"to": NOBODY}])),
        ("eth_simulateV1", json!([{"blockStateCalls": [{}]}])),
        ("eth_getCode", json!([NOBODY])),
    ];
    for (method, params) in cases {
        let error = node.error("/", method, params).await;
        assert_eq!(error["code"], -32602, "{method}");
        assert!(error["message"].as_str().is_some_and(|text| text.contains("params[1]")), "{method}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn standard_does_without_to_and_block() {
    let node = TestNode::quiet();
    let cases = [
        ("eth_call", json!([{"data": "0x600160005360016000f3"}])),
        ("eth_call", json!([{"to": NOBODY, "foo": 1}])),
        ("eth_simulateV1", json!([{"blockStateCalls": [{"calls": [{}]}]}])),
        ("eth_getCode", json!([NOBODY])),
    ];
    for (method, params) in cases {
        node.result("/standard", method, params).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_field_is_named_where_it_is() {
    let node = TestNode::quiet();
    let sim = |block: Value| json!([{"blockStateCalls": [block]}, "pending"]);
    let cases = [
        ("eth_call", json!([{"to": NOBODY, "foo": 1}, "pending"]), "params[0].foo".to_owned()),
        ("eth_call", json!([{"to": NOBODY}, {"blockNumber": "0x0", "foo": 1}]), "params[1].foo".to_owned()),
        ("eth_call", json!([{"to": NOBODY}, "pending", {CODE_AT: {"foo": 1}}]), format!("params[2].{CODE_AT}.foo")),
        ("eth_call", json!([{"to": NOBODY}, "pending", {}, {"foo": 1}]), "params[3].foo".to_owned()),
        (
            "eth_call",
            json!([{"to": NOBODY, "accessList": [{"address": NOBODY, "storageKeys": [], "foo": 1}]}, "pending"]),
            "params[0].accessList[0].foo".to_owned(),
        ),
        ("eth_simulateV1", json!([{"blockStateCalls": [{}], "foo": 1}, "pending"]), "params[0].foo".to_owned()),
        ("eth_simulateV1", sim(json!({"foo": 1})), "params[0].blockStateCalls[0].foo".to_owned()),
        (
            "eth_simulateV1",
            sim(json!({"calls": [{"to": NOBODY}, {"to": NOBODY, "foo": 1}]})),
            "params[0].blockStateCalls[0].calls[1].foo".to_owned(),
        ),
        (
            "eth_simulateV1",
            sim(json!({"stateOverrides": {CODE_AT: {"foo": 1}}})),
            format!("params[0].blockStateCalls[0].stateOverrides.{CODE_AT}.foo"),
        ),
        (
            "eth_simulateV1",
            sim(json!({"blockOverrides": {"foo": 1}})),
            "params[0].blockStateCalls[0].blockOverrides.foo".to_owned(),
        ),
        ("eth_getCode", json!([NOBODY, {"blockNumber": "0x0", "foo": 1}]), "params[1].foo".to_owned()),
    ];
    for (method, params, place) in cases {
        let error = node.error("/", method, params).await;
        assert_eq!(error["code"], -32602, "{place}: {error}");
        assert!(error["message"].as_str().is_some_and(|text| text.contains(&place)), "{place}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reverting_call_is_minus_32000_with_its_data() {
    let node = TestNode::quiet();
    let data = error_string("not today");
    let error = node.error("/", "eth_call", calling(&reverting(&data))).await;
    assert_eq!(
        error,
        json!({"code": -32000, "message": "execution reverted", "data": format!("0x{}", hex::encode(data))})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revert_of_a_contract_of_the_chain_bears_its_custom_error() {
    let node = TestNode::quiet();
    let call = json!({"to": weth(&node), "data": format!("0x{}{:064x}", hex::encode(&keccak256("withdraw(uint256)")[..4]), 1)});
    let error = node.error("/", "eth_call", json!([call, "pending"])).await;
    assert_eq!((&error["code"], &error["message"]), (&json!(-32000), &json!("execution reverted")));
    assert!(error["data"].as_str().is_some_and(|data| data.len() >= 10), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reverting_call_on_standard_is_3_with_its_reason() {
    let node = TestNode::quiet();
    let data = error_string("not today");
    let error = node.error("/standard", "eth_call", calling(&reverting(&data))).await;
    let expected =
        json!({"code": 3, "message": "execution reverted: not today", "data": format!("0x{}", hex::encode(data))});
    assert_eq!(error, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_the_evm_stops_says_why() {
    let node = TestNode::quiet();
    for (code, text) in [("0xfe", "invalid opcode: INVALID"), ("0x01", "stack underflow"), ("0x600056", "invalid jump")]
    {
        for path in PATHS {
            let error = node.error(path, "eth_call", calling(code)).await;
            assert_eq!(error["code"], -32000, "{code}: {error}");
            assert!(error["message"].as_str().is_some_and(|message| message.contains(text)), "{code}: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn state_overrides_are_what_the_call_sees() {
    let node = TestNode::quiet();
    let (slot, value) = (format!("0x{:064x}", 0), format!("0x{:064x}", 42));
    let cases = [
        ("code", "6009", json!({}), word(9)),
        ("balance", "47", json!({"balance": "0x64"}), word(100)),
        ("state", "600054", json!({"state": {slot.as_str(): value}}), word(42)),
        ("stateDiff", "600054", json!({"stateDiff": {slot.as_str(): value}}), word(42)),
    ];
    for (name, opcodes, mut account, expected) in cases {
        account["code"] = json!(returning(opcodes));
        let params = json!([{"to": CODE_AT}, "pending", {CODE_AT: account}]);
        assert_eq!(node.result("/", "eth_call", params).await, expected, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn state_replaces_all_slots_and_state_diff_only_its_own() {
    let node = TestNode::quiet();
    let weth = weth(&node);
    let total = json!({"to": weth, "data": format!("0x{}", hex::encode(&keccak256("totalSupply()")[..4]))});
    let before = node.result("/", "eth_call", json!([total, "pending"])).await;
    assert_ne!(before, word(0));
    let unrelated = json!({format!("0x{:064x}", 0xffff): format!("0x{:064x}", 1)});
    let diff = json!([total, "pending", {format!("{weth:?}"): {"stateDiff": unrelated}}]);
    assert_eq!(node.result("/", "eth_call", diff).await, before);
    let state = json!([total, "pending", {format!("{weth:?}"): {"state": unrelated}}]);
    assert_eq!(node.result("/", "eth_call", state).await, word(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn state_and_state_diff_together_are_refused() {
    let node = TestNode::quiet();
    let error = node
        .error("/", "eth_call", json!([{"to": CODE_AT}, "pending", {CODE_AT: {"state": {}, "stateDiff": {}}}]))
        .await;
    assert_eq!(error["code"], -32602);
    assert!(error["message"].as_str().is_some_and(|text| text.contains("stateDiff")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_precompile_moves_where_an_override_says() {
    let node = TestNode::quiet();
    let identity = "0x0000000000000000000000000000000000000004";
    let params = json!([{"to": OTHER, "data": "0x0102"}, "pending", {identity: {"movePrecompileToAddress": OTHER}}]);
    assert_eq!(node.result("/", "eth_call", params).await, "0x0102");
}

#[tokio::test(flavor = "multi_thread")]
async fn overrides_leave_the_state_as_it_was() {
    let node = TestNode::quiet();
    node.result("/", "eth_call", calling(&returning("6009"))).await;
    assert_eq!(node.result("/", "eth_getCode", json!([CODE_AT, "pending"])).await, "0x");
}

#[tokio::test(flavor = "multi_thread")]
async fn block_overrides_are_what_the_call_sees() {
    let node = TestNode::quiet();
    let randao = format!("0x{:064x}", 77);
    let cases = [
        ("number", json!("0x64"), "43", word(100)),
        ("time", json!("0x7fffffff"), "42", word(0x7fff_ffff)),
        ("timestamp", json!("0x7fffffff"), "42", word(0x7fff_ffff)),
        ("gasLimit", json!("0x989680"), "45", word(10_000_000)),
        ("feeRecipient", json!(OTHER), "41", address_word(OTHER)),
        ("prevRandao", json!(randao), "44", word(77)),
        ("baseFeePerGas", json!("0x7"), "48", word(7)),
        ("blobBaseFee", json!("0x9"), "4a", word(9)),
    ];
    for (field, value, opcodes, expected) in cases {
        let params = json!([{"to": CODE_AT}, "pending", {CODE_AT: {"code": returning(opcodes)}}, {field: value}]);
        assert_eq!(node.result("/", "eth_call", params).await, expected, "eth_call {field}");
        let block = json!({"stateOverrides": {CODE_AT: {"code": returning(opcodes)}}, "blockOverrides": {field: value}, "calls": [{"to": CODE_AT}]});
        let blocks = node.result("/", "eth_simulateV1", json!([{"blockStateCalls": [block]}, "0x0"])).await;
        assert_eq!(first_call(&blocks)["returnData"], expected, "eth_simulateV1 {field}");
    }
}

// eth_simulateV1.

#[tokio::test(flavor = "multi_thread")]
async fn a_simulated_block_has_every_field_with_its_type() {
    let node = TestNode::quiet();
    let blocks = node.result("/", "eth_simulateV1", bundle(&returning("43"))).await;
    let block = &blocks[0];
    let words = "hash parentHash stateRoot mixHash parentBeaconBlockRoot receiptsRoot requestsHash sha3Uncles \
        transactionsRoot withdrawalsRoot";
    let quantities =
        "number timestamp gasLimit gasUsed baseFeePerGas blobGasUsed excessBlobGas difficulty size".split(' ');
    let others = [("miner", 42), ("nonce", 18), ("logsBloom", 514)];
    for (field, length) in words.split(' ').map(|field| (field, 66)).chain(others) {
        assert!(is_hex(&block[field]), "{field}: {}", block[field]);
        assert_eq!(block[field].as_str().map(str::len), Some(length), "{field}");
    }
    for field in quantities {
        assert!(is_hex(&block[field]), "{field}: {}", block[field]);
        assert_eq!(block[field], format!("{:#x}", number(&block[field])), "{field} is a quantity");
    }
    assert!(is_hex(&block["extraData"]));
    for field in ["calls", "transactions"] {
        assert_eq!(block[field].as_array().map(Vec::len), Some(1), "{field}");
    }
    for field in ["uncles", "withdrawals"] {
        assert_eq!(block[field], json!([]), "{field}");
    }
    assert!(is_hex(&block["transactions"][0]), "transactions are hashes: {}", block["transactions"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_result_has_every_field_with_its_type() {
    let node = TestNode::quiet();
    let blocks = node.result("/", "eth_simulateV1", bundle(&returning("43"))).await;
    let call = first_call(&blocks);
    assert_eq!(call["status"], "0x1");
    assert!(number(&call["gasUsed"]) > 21_000);
    assert_eq!(call["returnData"], word(1));
    assert_eq!(call["logs"], json!([]));
    assert_eq!(call.get("error"), None);
    let blocks = node.result("/", "eth_simulateV1", bundle("0x00")).await;
    assert_eq!(first_call(&blocks)["returnData"], "0x", "a call that returns nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_root_is_zero_on_root_and_computed_on_standard() {
    let node = TestNode::quiet();
    let zero = json!(B256::ZERO);
    let root = &node.result("/", "eth_simulateV1", bundle("0x00")).await[0]["stateRoot"];
    assert_eq!(root, &zero);
    let computed = &node.result("/standard", "eth_simulateV1", bundle("0x00")).await[0]["stateRoot"];
    assert_ne!(computed, &zero);
}

#[tokio::test(flavor = "multi_thread")]
async fn gaps_are_left_out_on_root_and_shown_on_standard() {
    let node = TestNode::quiet();
    let params = json!([{"blockStateCalls": [{"blockOverrides": {"number": "0x2"}}, {}, {"blockOverrides": {"number": "0x6"}}]}, "pending"]);
    let numbers = |blocks: Value| -> Vec<u64> {
        blocks.as_array().expect("a list").iter().map(|block| number(&block["number"])).collect()
    };
    assert_eq!(numbers(node.result("/", "eth_simulateV1", params.clone()).await), [2, 3, 6]);
    assert_eq!(numbers(node.result("/standard", "eth_simulateV1", params).await), [1, 2, 3, 4, 5, 6]);
}

#[tokio::test(flavor = "multi_thread")]
async fn blockhash_sees_the_simulated_blocks() {
    let node = TestNode::quiet();
    let previous = returning("6001430340");
    let call = json!({"stateOverrides": {CODE_AT: {"code": previous}}, "calls": [{"to": CODE_AT}]});
    let mut after_a_gap = call.clone();
    after_a_gap["blockOverrides"] = json!({"number": "0x5"});
    for path in PATHS {
        let params = json!([{"blockStateCalls": [call, {"calls": [{"to": CODE_AT}]}, after_a_gap]}, "pending"]);
        let blocks = node.result(path, "eth_simulateV1", params).await;
        assert_eq!(blocks[1]["calls"][0]["returnData"], blocks[0]["hash"], "{path}");
        for block in blocks.as_array().expect("a list").iter().filter(|block| block["calls"] != json!([])) {
            assert_eq!(block["calls"][0]["returnData"], block["parentHash"], "{path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_sees_what_the_calls_and_blocks_before_it_did() {
    let node = TestNode::quiet();
    let (sender, weth) = (format!("{:?}", node.account(3)), weth(&node));
    let deposit = json!({"from": sender, "to": weth, "value": "0x7"});
    let balance = json!({"to": weth, "data": with_address("balanceOf(address)", &sender)});
    let params =
        json!([{"blockStateCalls": [{"calls": [deposit, balance]}, {"calls": [deposit, balance]}]}, "pending"]);
    let blocks = node.result("/", "eth_simulateV1", params).await;
    assert_eq!(blocks[0]["calls"][1]["returnData"], word(7));
    assert_eq!(blocks[1]["calls"][1]["returnData"], word(14));
    let after = node.result("/", "eth_call", json!([balance, "pending"])).await;
    assert_eq!(after, word(0), "nothing is kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_call_bears_its_reason_as_a_string_on_root() {
    let node = TestNode::quiet();
    let panic = [hex!("4e487b71").as_slice(), &U256::from(0x11).to_be_bytes::<32>()].concat();
    let (text, panic) = (error_string("not today"), panic.as_slice());
    let cases = [
        (reverting(&text), "not today", text.as_slice()),
        (reverting(&[]), "execution reverted", &[][..]),
        (reverting(panic), "overflow", panic),
        ("0xfe".to_owned(), "invalid opcode: INVALID", &[][..]),
    ];
    for (code, reason, data) in cases {
        let blocks = node.result("/", "eth_simulateV1", bundle(&code)).await;
        let call = first_call(&blocks);
        assert_eq!(call["returnData"], format!("0x{}", hex::encode(data)), "{reason}");
        assert_eq!(call["status"], "0x0", "{reason}");
        assert!(call["error"].as_str().is_some_and(|text| text.contains(reason)), "{reason}: {call}");
        assert_eq!(call["logs"], json!([]), "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_call_bears_an_object_on_standard() {
    let node = TestNode::quiet();
    let data = error_string("not today");
    let blocks = node.result("/standard", "eth_simulateV1", bundle(&reverting(&data))).await;
    let expected =
        json!({"code": 3, "message": "execution reverted: not today", "data": format!("0x{}", hex::encode(data))});
    assert_eq!(first_call(&blocks)["error"], expected);
    let blocks = node.result("/standard", "eth_simulateV1", bundle("0xfe")).await;
    assert_eq!(first_call(&blocks)["error"], json!({"code": -32015, "message": "invalid opcode: INVALID"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_after_a_failed_one_still_runs() {
    let node = TestNode::quiet();
    let state = json!({CODE_AT: {"code": "0xfe"}, OTHER: {"code": returning("6005")}});
    let calls = json!([{"to": CODE_AT, "gas": "0x10000"}, {"to": OTHER}]);
    let params = json!([{"blockStateCalls": [{"stateOverrides": state, "calls": calls}]}, "pending"]);
    let blocks = node.result("/", "eth_simulateV1", params).await;
    assert_eq!((&blocks[0]["calls"][0]["status"], &blocks[0]["calls"][1]["status"]), (&json!("0x0"), &json!("0x1")));
    assert_eq!(blocks[0]["calls"][1]["returnData"], word(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gas_of_a_block_is_that_of_its_calls() {
    let node = TestNode::quiet();
    let params = json!([{"blockStateCalls": [{"calls": [{"to": NOBODY}, {"to": NOBODY}]}]}, "pending"]);
    let blocks = node.result("/", "eth_simulateV1", params).await;
    assert_eq!(blocks[0]["calls"][0]["gasUsed"], "0x5208");
    assert_eq!(blocks[0]["gasUsed"], "0xa410");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_bears_its_address_topics_data_and_place() {
    let node = TestNode::quiet();
    // MSTORE(0, 5); LOG1(0, 32, 9), twice.
    let log = "600960206000a1";
    let blocks = node.result("/", "eth_simulateV1", bundle(&format!("0x6005600052{log}{log}00"))).await;
    let (block, logs) = (&blocks[0], &first_call(&blocks)["logs"]);
    assert_eq!(logs.as_array().map(Vec::len), Some(2));
    for (index, log) in logs.as_array().expect("a list").iter().enumerate() {
        assert_eq!(log["address"], CODE_AT);
        assert_eq!(log["topics"], json!([word(9)]));
        assert_eq!(log["data"], word(5));
        assert_eq!(log["blockHash"], block["hash"]);
        assert_eq!(log["blockNumber"], block["number"]);
        assert_eq!(log["transactionHash"], block["transactions"][0]);
        assert_eq!(log["transactionIndex"], "0x0");
        assert_eq!(log["logIndex"], format!("{index:#x}"));
    }
}

/// Returns the logs of a bundle of one call with or without `traceTransfers`.
async fn logs_of(node: &TestNode, trace: bool, state: Value, call: Value) -> Vec<Value> {
    let params =
        json!([{"traceTransfers": trace, "blockStateCalls": [{"stateOverrides": state, "calls": [call]}]}, "pending"]);
    let blocks = node.result("/", "eth_simulateV1", params).await;
    first_call(&blocks)["logs"].as_array().expect("a list").clone()
}

fn is_transfer(log: &Value, from: &str, to: &str, value: u64) {
    assert_eq!(log["address"], EMITTER);
    let topic = json!(keccak256("Transfer(address,address,uint256)"));
    assert_eq!(log["topics"], json!([topic, address_word(from), address_word(to)]));
    assert_eq!(log["data"], word(value));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_is_a_log_only_where_transfers_are_traced() {
    let node = TestNode::quiet();
    let sender = format!("{:?}", node.account(0));
    let call = json!({"from": sender, "to": NOBODY, "value": "0x7"});
    assert_eq!(logs_of(&node, false, json!({}), call.clone()).await, Vec::<Value>::new());
    let logs = logs_of(&node, true, json!({}), call).await;
    assert_eq!(logs.len(), 1);
    is_transfer(&logs[0], &sender, NOBODY, 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_of_nothing_is_no_log() {
    let node = TestNode::quiet();
    assert_eq!(logs_of(&node, true, json!({}), json!({"to": NOBODY, "value": "0x0"})).await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_selfdestruct_is_a_traced_transfer_after_the_one_that_paid_it() {
    let node = TestNode::quiet();
    let sender = format!("{:?}", node.account(0));
    let code = format!("0x73{}ff", &OTHER[2..]);
    let call = json!({"from": sender, "to": CODE_AT, "value": "0x5"});
    let logs = logs_of(&node, true, json!({CODE_AT: {"code": code, "balance": "0x0"}}), call).await;
    assert_eq!(logs.len(), 2);
    is_transfer(&logs[0], &sender, CODE_AT, 5);
    is_transfer(&logs[1], CODE_AT, OTHER, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_in_a_frame_that_reverts_is_not_traced() {
    let node = TestNode::quiet();
    let sender = format!("{:?}", node.account(0));
    // CALL(gas, OTHER, 3 wei), whose code reverts; then STOP.
    let code = format!("0x5f5f5f5f600373{}5af100", &OTHER[2..]);
    let state = json!({CODE_AT: {"code": code}, OTHER: {"code": "0x5f5ffd"}});
    let logs = logs_of(&node, true, state, json!({"from": sender, "to": CODE_AT, "value": "0x5"})).await;
    assert_eq!(logs.len(), 1);
    is_transfer(&logs[0], &sender, CODE_AT, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_contract_that_is_created_with_ether_gets_it_in_a_log() {
    let node = TestNode::quiet();
    let sender = format!("{:?}", node.account(0));
    let nonce = number(&node.result("/", "eth_getTransactionCount", json!([sender, "pending"])).await);
    let created = sender.parse::<Address>().unwrap().create(nonce);
    // The init code writes an empty log and returns no code.
    let logs =
        logs_of(&node, true, json!({}), json!({"from": sender, "to": null, "value": "0x5", "data": "0x5f5fa0"})).await;
    assert_eq!(logs.len(), 2);
    is_transfer(&logs[0], &sender, &format!("{created:?}"), 5);
    assert_eq!(logs[1]["address"], json!(created));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_cannot_be_made_is_no_log_but_counts_as_one_in_geth() {
    let node = TestNode::quiet();
    // CALL(gas, OTHER, 3 wei) without the balance for it; LOG0(0, 0).
    let code = format!("0x5f5f5f5f600373{}5af15f5fa000", &OTHER[2..]);
    let block = json!({"stateOverrides": {CODE_AT: {"code": code, "balance": "0x0"}}, "calls": [{"to": CODE_AT}]});
    for (path, index) in [("/", "0x0"), ("/standard", "0x1")] {
        let params = json!([{"traceTransfers": true, "blockStateCalls": [block]}, "pending"]);
        let blocks = node.result(path, "eth_simulateV1", params).await;
        let logs = first_call(&blocks)["logs"].as_array().expect("a list");
        assert_eq!((logs.len(), &logs[0]["logIndex"]), (1, &json!(index)), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn receipts_have_the_logs_of_contracts_alone() {
    let node = TestNode::quiet();
    let (sender, weth) = (format!("{:?}", node.account(0)), weth(&node));
    let block = json!({"calls": [{"from": sender, "to": weth, "value": "0x7"}]});
    let (mut roots, mut blooms) = (Vec::new(), Vec::new());
    for trace in [false, true] {
        let params = json!([{"traceTransfers": trace, "blockStateCalls": [block]}, "pending"]);
        let blocks = node.result("/standard", "eth_simulateV1", params).await;
        roots.push(blocks[0]["receiptsRoot"].clone());
        blooms.push(blocks[0]["logsBloom"].clone());
    }
    assert_eq!((&roots[0], &blooms[0]), (&roots[1], &blooms[1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn transfers_stand_among_real_logs_in_order() {
    let node = TestNode::quiet();
    let (sender, weth) = (format!("{:?}", node.account(0)), weth(&node));
    let logs = logs_of(&node, true, json!({}), json!({"from": sender, "to": weth, "value": "0x7"})).await;
    assert_eq!(logs.len(), 2);
    is_transfer(&logs[0], &sender, &format!("{weth:?}"), 7);
    assert_eq!(logs[1]["topics"][0], json!(keccak256("Deposit(address,uint256)")));
    assert_eq!((&logs[0]["logIndex"], &logs[1]["logIndex"]), (&json!("0x0"), &json!("0x1")));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_chains_rules_refuse_has_the_code_of_execution_apis() {
    let node = TestNode::quiet();
    let sender = format!("{:?}", node.account(5));
    let fees = json!({"maxFeePerGas": "0x77359400", "maxPriorityFeePerGas": "0x0"});
    let call = |extra: Value| {
        let mut call = json!({"from": sender, "to": NOBODY, "gas": "0x186a0"});
        for (key, value) in fees.as_object().into_iter().chain(extra.as_object()).flatten() {
            call[key] = value.clone();
        }
        json!([{"calls": [call]}])
    };
    let nonce_5 = |nonce: &str| {
        let mut blocks = call(json!({"nonce": nonce}));
        blocks[0]["stateOverrides"] = json!({sender.as_str(): {"nonce": "0x5"}});
        blocks
    };
    let init_code = format!("0x{}", "00".repeat(49_153));
    let cases = [
        (-38010, nonce_5("0x4")),
        (-38011, nonce_5("0x6")),
        (-38012, call(json!({"maxFeePerGas": "0x1"}))),
        (-38013, call(json!({"gas": "0x5207"}))),
        (-38014, call(json!({"value": "0xffffffffffffffffffffffff"}))),
        (-38015, call(json!({"gas": "0x5f5e100"}))),
        (-38020, json!([{"blockOverrides": {"number": "0x3"}}, {"blockOverrides": {"number": "0x3"}}])),
        (-38020, json!([{"blockOverrides": {"number": "0x0"}}])),
        (-38021, json!([{}, {"blockOverrides": {"time": "0x1"}}])),
        (-38025, call(json!({"to": null, "data": init_code, "gas": "0xf42400"}))),
        (-38026, json!([{"blockOverrides": {"number": "0xffff"}}])),
    ];
    for path in PATHS {
        for (code, blocks) in &cases {
            let params = json!([{"validation": true, "blockStateCalls": blocks}, "pending"]);
            let answer = node.call(path, "eth_simulateV1", params).await;
            assert_eq!(
                answer["error"]["code"],
                *code,
                "{path}: {}",
                &answer.to_string()[..400.min(answer.to_string().len())]
            );
            // Of a bundle with many calls, the one that is refused is named. geth does not name it.
            let names = answer["error"]["message"].as_str().unwrap().starts_with("blockStateCalls[0].calls[0]: ");
            let is_a_calls = matches!(code, -38015..=-38010 | -38025);
            assert_eq!(names, is_a_calls && path == "/", "{path}: {code}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_validation_nonce_and_price_are_not_checked() {
    let node = TestNode::quiet();
    let call = json!({"from": format!("{:?}", node.account(5)), "to": NOBODY, "nonce": "0x63"});
    let params = json!([{"blockStateCalls": [{"calls": [call, {"to": NOBODY}]}]}, "pending"]);
    let blocks = node.result("/", "eth_simulateV1", params).await;
    assert_eq!((&blocks[0]["calls"][0]["status"], &blocks[0]["calls"][1]["status"]), (&json!("0x1"), &json!("0x1")));
}

#[tokio::test(flavor = "multi_thread")]
async fn full_transactions_are_shown_where_asked_for() {
    let node = TestNode::quiet();
    let sender = format!("{:?}", node.account(4));
    let call = json!({"from": sender, "to": NOBODY, "value": "0x9", "data": "0x0102", "gas": "0x186a0"});
    let block = json!({"stateOverrides": {sender.as_str(): {"nonce": "0x7"}}, "calls": [call]});
    let mut payload = json!({"blockStateCalls": [block]});
    let hashes = node.result("/", "eth_simulateV1", json!([payload, "pending"])).await;
    payload["returnFullTransactions"] = json!(true);
    let blocks = node.result("/", "eth_simulateV1", json!([payload, "pending"])).await;
    let transaction = &blocks[0]["transactions"][0];
    let expected = [
        ("hash", hashes[0]["transactions"][0].clone()),
        ("from", json!(sender)),
        ("to", json!(NOBODY)),
        ("value", json!("0x9")),
        ("input", json!("0x0102")),
        ("nonce", json!("0x7")),
        ("gas", json!("0x186a0")),
        ("blockHash", blocks[0]["hash"].clone()),
        ("blockNumber", blocks[0]["number"].clone()),
        ("transactionIndex", json!("0x0")),
    ];
    for (field, value) in expected {
        assert_eq!(transaction[field], value, "{field}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_simulated_creation_deploys_code_that_later_calls_find() {
    let node = TestNode::quiet();
    let sender = format!("{:?}", node.account(6));
    let created = node.account(6).create(0);
    // Init code that returns the runtime code `6007 6000 52 6020 6000 f3`.
    let runtime = "600760005260206000f3";
    let init = format!("0x69{runtime}600052600a6016f3");
    let calls = json!([{"from": sender, "to": null, "data": init}, {"to": created}]);
    let blocks = node.result("/", "eth_simulateV1", json!([{"blockStateCalls": [{"calls": calls}]}, "pending"])).await;
    assert_eq!(blocks[0]["calls"][0]["returnData"], format!("0x{runtime}"));
    assert_eq!(blocks[0]["calls"][1]["returnData"], word(7));
}

// eth_getCode.

#[tokio::test(flavor = "multi_thread")]
async fn the_code_of_an_account_of_a_person_is_0x() {
    let node = TestNode::quiet();
    for address in [format!("{:?}", node.account(0)), NOBODY.to_owned()] {
        for selector in ["pending", "latest", "0x0"] {
            assert_eq!(node.result("/", "eth_getCode", json!([address, selector])).await, "0x", "{address} {selector}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_code_of_a_contract_is_its_bytecode() {
    let node = TestNode::quiet();
    for selector in ["pending", "latest", "earliest"] {
        let code = node.result("/", "eth_getCode", json!([weth(&node), selector])).await;
        assert!(is_hex(&code));
        // solc begins every contract with these bytes.
        assert!(code.as_str().is_some_and(|code| code.starts_with("0x60806040") && code.len() > 1_000), "{code}");
        // The code behaves the same at another address.
        let data = with_address("balanceOf(address)", NOBODY);
        let params = json!([{"to": CODE_AT, "data": data}, selector, {CODE_AT: {"code": code}}]);
        assert_eq!(node.result("/", "eth_call", params).await, word(0));
    }
}
