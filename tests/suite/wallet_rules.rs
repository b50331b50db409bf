//! The rules of the wallet: a row for each rule and error code, their order, and the form of the answers.

use presim::testing::source::devnet::world::{dev_genesis, dev_signers};
use serde_json::{Value, json};

use crate::support::{PATHS, TestNode, token_file};

/// An address that tests never fund, and whose key nobody has.
const NOBODY: &str = "0x00000000000000000000000000000000000000fe";

/// Returns the message of each error code; that of an unknown id (5730) is EIP-5792's.
fn message(code: i64) -> &'static str {
    match code {
        -32602 => "The wallet cannot parse the request",
        -32000 => "Version not supported",
        4001 => "User rejected the request",
        4100 => "The requested account and/or method has not been authorized by the user",
        5700 => "The wallet does not support a capability that was not marked as optional",
        5710 => "EIP-7702 not supported on the specified chain ID",
        5720 => "There is already a batch submitted with the specified batch ID",
        5730 => "No batch with the specified batch ID is known",
        5740 => "The batch is too large for the wallet to process",
        5750 => "EIP-7702 upgrade rejected for this chain and account",
        5760 => "The wallet does not support atomic execution but the request requires it",
        other => panic!("no code of the wallet's: {other}"),
    }
}

/// Returns the parameters of a batch that breaks no rule.
fn batch(from: &str) -> Value {
    let calls = json!([{"to": NOBODY, "value": "0x1"}, {"to": NOBODY, "value": "0x0", "data": "0x00ff"}]);
    json!([{"version": "2.0.0", "from": from, "chainId": "0x7a69", "atomicRequired": false, "calls": calls}])
}

/// Returns the parameters of a batch with a change.
fn changed(from: &str, change: Change) -> Value {
    let mut params = batch(from);
    change(&mut params);
    params
}

fn remove(object: &mut Value, field: &str) {
    object.as_object_mut().expect("an object").remove(field).expect("the field is there");
}

type Change = fn(&mut Value);

/// A change that makes a valid batch break a rule, the error code, and a part of the error's `data`.
type Row = (Change, i64, &'static str);

fn check_refusal(answer: &Value, code: i64, detail: &str, what: &str) {
    let error = &answer["error"];
    assert_eq!((&error["code"], &error["message"]), (&json!(code), &json!(message(code))), "{what}: {answer}");
    let data = error["data"].as_str().unwrap_or_else(|| panic!("{what}: no text in data: {answer}"));
    assert!(data.contains(detail), "{what}: data without {detail:?}: {answer}");
}

/// Sends each row's batch from this account in each dialect and checks that it is refused as the row says.
async fn check_rows(node: &TestNode, from: &str, paths: &[&str], rows: &[Row]) {
    for (change, code, detail) in rows {
        for path in paths {
            let params = changed(from, *change);
            let what = format!("{path} {params:.300}");
            check_refusal(&node.call(path, "wallet_sendCalls", params).await, *code, detail, &what);
        }
    }
}

/// Checks the answer to an accepted batch and returns its id.
fn taken(answer: &Value, what: &str) -> String {
    let result = &answer["result"];
    assert_eq!(result["status"], "pending", "{what}: {answer}");
    assert_eq!(result["id"], result["batchId"], "{what}: {answer}");
    assert!(result["capabilities"].is_object(), "{what}: {answer}");
    result["id"].as_str().unwrap_or_else(|| panic!("{what}: no id: {answer}")).to_owned()
}

/// Sends the batch with each of these changes in each dialect and checks that it is accepted.
async fn check_taken(node: &TestNode, from: &str, paths: &[&str], changes: &[Change]) {
    for change in changes {
        for path in paths {
            let params = changed(from, *change);
            let what = format!("{path} {params:.300}");
            taken(&node.call(path, "wallet_sendCalls", params).await, &what);
        }
    }
}

/// Installs a filter on the pool, which must see no transaction of a refused batch.
async fn watch_pool(node: &TestNode) -> Value {
    node.result("/", "eth_newPendingTransactionFilter", json!([])).await
}

async fn nothing_was_sent(node: &TestNode, watch: Value) {
    assert_eq!(node.result("/", "eth_getFilterChanges", json!([watch])).await, json!([]));
}

// The rules, one by one.

#[tokio::test(flavor = "multi_thread")]
async fn another_version_is_minus_32000_whatever_else_is_in_the_request() {
    let node = TestNode::quiet();
    let from = node.account(0).to_string();
    let watch = watch_pool(&node).await;
    let rows: [Row; 8] = [
        (|params| params[0]["version"] = json!("1.0"), -32000, "params[0].version: \"1.0\": expected \"2.0.0\""),
        (|params| params[0]["version"] = json!("2.0.1"), -32000, "params[0].version"),
        (|params| params[0]["version"] = json!("2"), -32000, "params[0].version"),
        (|params| params[0]["version"] = json!(" 2.0.0"), -32000, "params[0].version"),
        (|params| params[0]["version"] = json!(""), -32000, "params[0].version"),
        (|params| *params = json!([{"version": "3.0.0", "bundle": [1]}]), -32000, "params[0].version"),
        (|params| *params = json!([{"version": "3.0.0"}, 1]), -32000, "params[0].version"),
        (|params| params[0]["version"] = json!("9".repeat(10_000)), -32000, "params[0].version"),
    ];
    check_rows(&node, &from, &PATHS, &rows).await;
    nothing_was_sent(&node, watch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_the_wrong_form_is_minus_32602_and_names_the_field() {
    let node = TestNode::quiet();
    let from = node.account(0).to_string();
    let watch = watch_pool(&node).await;
    let rows: [Row; 67] = [
        // Parameters.
        (|params| *params = params[0].take(), -32602, "params: expected an array"),
        (|params| *params = json!([]), -32602, "params: invalid length 0"),
        (|params| *params = json!([params[0], params[0]]), -32602, "params"),
        (|params| *params = json!([params[0], null]), -32602, "params"),
        (|params| *params = json!([null]), -32602, "params[0]"),
        (|params| *params = json!(["2.0.0"]), -32602, "params[0]"),
        (|params| *params = json!([["2.0.0"]]), -32602, "params[0]"),
        (|params| *params = json!([{}]), -32602, "version"),
        // Version.
        (|params| remove(&mut params[0], "version"), -32602, "version"),
        (|params| params[0]["version"] = json!(2), -32602, "params[0].version"),
        (|params| params[0]["version"] = json!(null), -32602, "params[0].version"),
        (|params| params[0]["version"] = json!(["2.0.0"]), -32602, "params[0].version"),
        // Id.
        (|params| params[0]["id"] = json!(""), -32602, "params[0].id"),
        (|params| params[0]["id"] = json!(1), -32602, "params[0].id"),
        (|params| params[0]["id"] = json!({}), -32602, "params[0].id"),
        (|params| params[0]["id"] = json!("a".repeat(8_195)), -32602, "params[0].id"),
        // Sender.
        (|params| params[0]["from"] = json!(&NOBODY[..41]), -32602, "params[0].from"),
        (|params| params[0]["from"] = json!(format!("{NOBODY}0")), -32602, "params[0].from"),
        (|params| params[0]["from"] = json!(NOBODY.replace("fe", "fg")), -32602, "params[0].from"),
        (|params| params[0]["from"] = json!(NOBODY.replace("0x", "0X")), -32602, "params[0].from"),
        (|params| params[0]["from"] = json!(&NOBODY[2..]), -32602, "params[0].from"),
        (|params| params[0]["from"] = json!(format!("0x{}", &NOBODY[..40])), -32602, "params[0].from"),
        (|params| params[0]["from"] = json!(""), -32602, "params[0].from"),
        (|params| params[0]["from"] = json!(254), -32602, "params[0].from"),
        // Chain.
        (|params| remove(&mut params[0], "chainId"), -32602, "chainId"),
        (|params| params[0]["chainId"] = json!("0x7A69"), -32602, "params[0].chainId"),
        (|params| params[0]["chainId"] = json!("0x07a69"), -32602, "params[0].chainId"),
        (|params| params[0]["chainId"] = json!("0x00"), -32602, "params[0].chainId"),
        (|params| params[0]["chainId"] = json!("0x"), -32602, "params[0].chainId"),
        (|params| params[0]["chainId"] = json!("7a69"), -32602, "params[0].chainId"),
        (|params| params[0]["chainId"] = json!("0x7a69 "), -32602, "params[0].chainId"),
        (|params| params[0]["chainId"] = json!("0x+7a69"), -32602, "params[0].chainId"),
        (|params| params[0]["chainId"] = json!(31_337), -32602, "params[0].chainId"),
        (|params| params[0]["chainId"] = json!(null), -32602, "params[0].chainId"),
        // Atomicity.
        (|params| remove(&mut params[0], "atomicRequired"), -32602, "atomicRequired"),
        (|params| params[0]["atomicRequired"] = json!("true"), -32602, "params[0].atomicRequired"),
        (|params| params[0]["atomicRequired"] = json!(1), -32602, "params[0].atomicRequired"),
        (|params| params[0]["atomicRequired"] = json!(null), -32602, "params[0].atomicRequired"),
        // Calls.
        (|params| remove(&mut params[0], "calls"), -32602, "calls"),
        (|params| params[0]["calls"] = json!([]), -32602, "params[0].calls: empty"),
        (|params| params[0]["calls"] = params[0]["calls"][0].take(), -32602, "params[0].calls"),
        (|params| params[0]["calls"][1] = json!(null), -32602, "params[0].calls[1]"),
        (|params| params[0]["calls"][1] = json!([NOBODY, "0x0"]), -32602, "params[0].calls[1]"),
        (|params| params[0]["calls"][1]["to"] = json!(&NOBODY[..41]), -32602, "params[0].calls[1].to"),
        (|params| params[0]["calls"][1]["to"] = json!("nobody.eth"), -32602, "params[0].calls[1].to"),
        (|params| params[0]["calls"][1]["value"] = json!(1), -32602, "params[0].calls[1].value"),
        (|params| params[0]["calls"][1]["value"] = json!("1"), -32602, "params[0].calls[1].value"),
        (|params| params[0]["calls"][1]["value"] = json!("0x01"), -32602, "params[0].calls[1].value"),
        (|params| params[0]["calls"][1]["value"] = json!("-0x1"), -32602, "params[0].calls[1].value"),
        (
            |params| params[0]["calls"][1]["value"] = json!(format!("0x1{}", "0".repeat(64))),
            -32602,
            "params[0].calls[1].value",
        ),
        (|params| params[0]["calls"][1]["data"] = json!("0x0"), -32602, "params[0].calls[1].data"),
        (|params| params[0]["calls"][1]["data"] = json!("00ff"), -32602, "params[0].calls[1].data"),
        (|params| params[0]["calls"][1]["data"] = json!("0xgg"), -32602, "params[0].calls[1].data"),
        (|params| params[0]["calls"][1]["data"] = json!([0, 255]), -32602, "params[0].calls[1].data"),
        // Capabilities.
        (|params| params[0]["capabilities"] = json!(["atomic"]), -32602, "params[0].capabilities"),
        (|params| params[0]["capabilities"] = json!("atomic"), -32602, "params[0].capabilities"),
        (|params| params[0]["capabilities"] = json!({"atomic": true}), -32602, "params[0].capabilities.atomic"),
        (|params| params[0]["capabilities"] = json!({"x": {"optional": "yes"}}), -32602, "params[0].capabilities.x"),
        (|params| params[0]["calls"][0]["capabilities"] = json!([]), -32602, "params[0].calls[0].capabilities"),
        (
            |params| params[0]["calls"][0]["capabilities"] = json!({"x": {"optional": 1}}),
            -32602,
            "params[0].calls[0].capabilities.x.optional",
        ),
        (|params| override_gas(params, json!("0x5208")), -32602, "params[0].calls[0].capabilities.gasLimitOverride"),
        (|params| override_gas(params, json!({})), -32602, "gasLimitOverride: missing field `value`"),
        (|params| override_gas(params, json!({"value": 21_000})), -32602, "gasLimitOverride.value"),
        (|params| override_gas(params, json!({"value": "21000"})), -32602, "gasLimitOverride.value"),
        (|params| override_gas(params, json!({"value": "0x0"})), -32602, "gasLimitOverride"),
        (|params| override_gas(params, json!({"value": "0x10000000000000000"})), -32602, "gasLimitOverride.value"),
        (|params| override_gas(params, json!({"value": "0x5208", "optional": 1})), -32602, "gasLimitOverride.optional"),
    ];
    check_rows(&node, &from, &PATHS, &rows).await;
    nothing_was_sent(&node, watch).await;
}

fn override_gas(params: &mut Value, asked: Value) {
    params[0]["calls"][0]["capabilities"] = json!({"gasLimitOverride": asked});
}

#[tokio::test(flavor = "multi_thread")]
async fn what_api_md_requires_is_required_on_root_alone() {
    let node = TestNode::quiet();
    let from = node.account(0).to_string();
    let watch = watch_pool(&node).await;
    let rows: [Row; 9] = [
        (|params| remove(&mut params[0], "from"), -32602, "params[0].from: missing"),
        (|params| params[0]["from"] = json!(null), -32602, "params[0].from: missing"),
        // Where `to` may be absent, the call creates a contract, which an atomic batch cannot do.
        (|params| remove(&mut params[0]["calls"][1], "to"), -32602, "params[0].calls[1].to: missing"),
        (|params| params[0]["calls"][1]["to"] = json!(null), -32602, "params[0].calls[1].to: missing"),
        (|params| remove(&mut params[0]["calls"][1], "value"), -32602, "params[0].calls[1].value: missing"),
        (|params| params[0]["calls"][1]["value"] = json!(null), -32602, "params[0].calls[1].value: missing"),
        (|params| params[0]["gas"] = json!("0x5208"), -32602, "params[0].gas: unknown field"),
        (|params| params[0]["calls"][1]["gas"] = json!("0x5208"), -32602, "params[0].calls[1].gas: unknown field"),
        (|params| params[0]["calls"][1]["input"] = json!("0x"), -32602, "params[0].calls[1].input: unknown field"),
    ];
    check_rows(&node, &from, &["/"], &rows).await;
    let creation: Row = (
        |params| {
            params[0]["atomicRequired"] = json!(true);
            remove(&mut params[0]["calls"][1], "to");
        },
        -32602,
        "params[0].calls[1].to: ",
    );
    check_rows(&node, &from, &["/standard"], &[creation]).await;
    nothing_was_sent(&node, watch).await;
    let changes: Vec<Change> = rows.iter().map(|(change, ..)| *change).collect();
    check_taken(&node, &from, &["/standard"], &changes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_breaks_no_rule_is_taken() {
    let node = TestNode::quiet();
    let from = node.account(0).to_string();
    let changes: [Change; 11] = [
        |_| {},
        |params| remove(&mut params[0]["calls"][1], "data"),
        |params| params[0]["calls"][1]["data"] = json!("0x"),
        |params| params[0]["capabilities"] = json!({}),
        |params| params[0]["capabilities"] = json!({"atomic": {}}),
        // An optional capability may contain anything.
        |params| {
            params[0]["capabilities"] =
                json!({"x": {"optional": true, "any": [1, -1, 0.5, null, true, "a", {"b": [{}]}]}});
        },
        |params| params[0]["calls"][0]["capabilities"] = json!({"x": {"any": {"optional": 7}, "optional": true}}),
        |params| override_gas(params, json!({"value": "0x186a0"})),
        |params| override_gas(params, json!({"value": "0x186a0", "optional": false, "more": {"a": 1}})),
        |params| params[0]["calls"] = json!([params[0]["calls"][0]]),
        |params| {
            params[0]["from"] = json!(params[0]["from"].as_str().expect("a string").to_uppercase().replace('X', "x"))
        },
    ];
    check_taken(&node, &from, &PATHS, &changes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_id_is_the_senders_or_32_random_bytes() {
    let node = TestNode::quiet();
    let from = node.account(0).to_string();
    let mut made = Vec::new();
    for (index, path) in PATHS.into_iter().enumerate() {
        let id = taken(&node.call(path, "wallet_sendCalls", batch(&from)).await, path);
        let digits = id.strip_prefix("0x").expect("hex");
        assert!(digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        made.push(id);
        for given in [format!("{index}"), format!("a \"batch\" of mine: ☃ {index}"), format!("{index:a>8194}")] {
            let mut params = batch(&from);
            params[0]["id"] = json!(given);
            assert_eq!(taken(&node.call(path, "wallet_sendCalls", params).await, path), given);
        }
    }
    assert_ne!(made[0], made[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_chain_is_5710() {
    let node = TestNode::quiet();
    let from = node.account(0).to_string();
    let watch = watch_pool(&node).await;
    let rows: [Row; 4] = [
        (|params| params[0]["chainId"] = json!("0x1"), 5710, "params[0].chainId: 0x1: expected 0x7a69"),
        (|params| params[0]["chainId"] = json!("0x0"), 5710, "params[0].chainId: 0x0: expected 0x7a69"),
        // The chain's id plus 2^64.
        (|params| params[0]["chainId"] = json!("0x10000000000007a69"), 5710, "params[0].chainId"),
        (|params| params[0]["chainId"] = json!(format!("0x7a69{}", "0".repeat(1_000))), 5710, "params[0].chainId"),
    ];
    check_rows(&node, &from, &PATHS, &rows).await;
    nothing_was_sent(&node, watch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_atomic_batch_before_prague_is_5710_or_in_the_standard_dialect_5760() {
    let signers = dev_signers().unwrap();
    let mut genesis = dev_genesis(&signers, 1_000);
    (genesis.config.prague_time, genesis.config.osaka_time) = (None, None);
    let node = TestNode::on(&genesis, &["--feed", "devnet", "--traffic", "0", "--sub-block-ms", "60000"]);
    let from = format!("{:?}", signers[0].address());
    let watch = watch_pool(&node).await;
    for (path, code) in PATHS.iter().zip([5710, 5760]) {
        let rows: [Row; 2] = [
            (|params| params[0]["atomicRequired"] = json!(true), code, "params[0].atomicRequired"),
            (|params| params[0]["chainId"] = json!("0x1"), 5710, "params[0].chainId"),
        ];
        check_rows(&node, &from, &[path], &rows).await;
    }
    nothing_was_sent(&node, watch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_of_somebody_else_is_4100() {
    let node = TestNode::quiet();
    let from = node.account(0).to_string();
    let rows: [Row; 1] = [(|params| params[0]["from"] = json!(NOBODY), 4100, "params[0].from")];
    check_rows(&node, &from, &PATHS, &rows).await;
    for path in PATHS {
        let answer = node.call(path, "wallet_getCapabilities", json!([NOBODY])).await;
        check_refusal(&answer, 4100, "params[0]", path);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_policy_denies_is_4001() {
    let node = TestNode::quiet_with(&["--wallet-approval", "deny"]);
    let from = node.account(0).to_string();
    let watch = watch_pool(&node).await;
    check_rows(&node, &from, &PATHS, &[(|_| {}, 4001, "--wallet-approval")]).await;
    nothing_was_sent(&node, watch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capability_that_is_not_supported_and_not_optional_is_5700() {
    let node = TestNode::quiet();
    let from = node.account(0).to_string();
    let watch = watch_pool(&node).await;
    let rows: [Row; 7] = [
        (
            |params| params[0]["capabilities"] = json!({"paymasterService": {"url": "https://pay.example"}}),
            5700,
            "params[0].capabilities.paymasterService",
        ),
        (|params| params[0]["capabilities"] = json!({"x": {"optional": false}}), 5700, "params[0].capabilities.x"),
        (
            |params| params[0]["capabilities"] = json!({"y": {"optional": true}, "x": {"any": {"optional": true}}}),
            5700,
            "params[0].capabilities.x",
        ),
        (|params| params[0]["calls"][1]["capabilities"] = json!({"x": {}}), 5700, "params[0].calls[1].capabilities.x"),
        // Each capability at the other's level.
        (
            |params| params[0]["capabilities"] = json!({"gasLimitOverride": {"value": "0x5208"}}),
            5700,
            "params[0].capabilities.gasLimitOverride",
        ),
        (
            |params| params[0]["calls"][0]["capabilities"] = json!({"atomic": {}}),
            5700,
            "params[0].calls[0].capabilities.atomic",
        ),
        (|params| params[0]["capabilities"] = json!({"x".repeat(10_000): {}}), 5700, "params[0].capabilities.xxx"),
    ];
    check_rows(&node, &from, &PATHS, &rows).await;
    nothing_was_sent(&node, watch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_a_batch_has_is_5720() {
    let node = TestNode::quiet();
    let (first, second) = (node.account(0).to_string(), node.account(1).to_string());
    let with_id = |from: &str, id: &str| {
        let mut params = batch(from);
        params[0]["id"] = json!(id);
        params
    };
    for (path, other) in [("/", "/standard"), ("/standard", "/")] {
        let id = format!("the first on {path}");
        taken(&node.call(path, "wallet_sendCalls", with_id(&first, &id)).await, path);
        // The id is taken in both dialects and for other accounts.
        for (again, from) in [(path, &first), (other, &first), (path, &second)] {
            let answer = node.call(again, "wallet_sendCalls", with_id(from, &id)).await;
            check_refusal(&answer, 5720, "params[0].id", again);
        }
        // Another id is free, even if it differs only in case.
        taken(&node.call(path, "wallet_sendCalls", with_id(&first, &id.to_uppercase())).await, path);
    }
    // An id that the node generated is taken as well.
    let made = taken(&node.call("/", "wallet_sendCalls", batch(&first)).await, "/");
    check_refusal(&node.call("/", "wallet_sendCalls", with_id(&first, &made)).await, 5720, "params[0].id", "/");
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_calls_or_too_much_data_are_5740() {
    let node = TestNode::quiet_with(&["--wallet-max-calls", "3", "--wallet-max-bytes", "100"]);
    let from = node.account(0).to_string();
    let watch = watch_pool(&node).await;
    let rows: [Row; 3] = [
        (|params| set_calls(params, 4, 0), 5740, "params[0].calls: 4 calls: expected at most 3"),
        (|params| set_calls(params, 1, 101), 5740, "params[0].calls: 101 bytes of data in all: expected at most 100"),
        // Each call alone would be within the bound.
        (|params| set_calls(params, 2, 51), 5740, "params[0].calls: 102 bytes"),
    ];
    check_rows(&node, &from, &PATHS, &rows).await;
    nothing_was_sent(&node, watch).await;
    let allowed: [Change; 3] =
        [|params| set_calls(params, 3, 0), |params| set_calls(params, 1, 100), |params| set_calls(params, 2, 50)];
    check_taken(&node, &from, &PATHS, &allowed).await;
}

fn set_calls(params: &mut Value, count: usize, bytes: usize) {
    let call = json!({"to": NOBODY, "value": "0x0", "data": format!("0x{}", "11".repeat(bytes))});
    params[0]["calls"] = Value::Array(vec![call; count]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_that_policy_denies_is_5750() {
    let node = TestNode::quiet_with(&["--wallet-upgrade", "deny"]);
    let from = node.account(0).to_string();
    let watch = watch_pool(&node).await;
    let rows: [Row; 1] = [(|params| params[0]["atomicRequired"] = json!(true), 5750, "params[0].atomicRequired")];
    check_rows(&node, &from, &PATHS, &rows).await;
    nothing_was_sent(&node, watch).await;
    for path in PATHS {
        let capabilities = node.result(path, "wallet_getCapabilities", json!([from])).await;
        assert_eq!(capabilities["0x7a69"]["atomic"]["status"], "unsupported", "{path}");
    }
    check_taken(&node, &from, &PATHS, &[|_| {}]).await;
}

// The order of the rules.

/// A change that breaks each rule, in the order of the rules; `None` for the node's policy.
const VIOLATIONS: [(i64, Option<Change>); 9] = [
    (-32000, Some(|params| params[0]["version"] = json!("1.0"))),
    (-32602, Some(|params| params[0]["calls"][0]["data"] = json!("0x0"))),
    (5710, Some(|params| params[0]["chainId"] = json!("0x1"))),
    (4100, Some(|params| params[0]["from"] = json!(NOBODY))),
    (4001, None),
    (5700, Some(|params| params[0]["capabilities"] = json!({"x": {}}))),
    (5720, Some(|params| params[0]["id"] = json!("taken"))),
    (5740, Some(|params| set_calls(params, 4, 0))),
    (5750, Some(|params| params[0]["atomicRequired"] = json!(true))),
];

#[tokio::test(flavor = "multi_thread")]
async fn of_two_broken_rules_the_first_is_told() {
    let node = TestNode::quiet_with(&["--wallet-max-calls", "3", "--wallet-upgrade", "deny"]);
    let from = node.account(0).to_string();
    let mut first = batch(&from);
    first[0]["id"] = json!("taken");
    taken(&node.call("/", "wallet_sendCalls", first).await, "the id is taken");
    let breaking = VIOLATIONS.iter().filter_map(|(code, change)| Some((*code, (*change)?)));
    for (index, (code, earlier)) in breaking.clone().enumerate() {
        for (other, later) in breaking.clone().skip(index + 1) {
            // The later rule's change comes first, because the earlier one is applied to its result.
            let mut params = changed(&from, later);
            earlier(&mut params);
            for path in PATHS {
                let answer = node.call(path, "wallet_sendCalls", params.clone()).await;
                check_refusal(&answer, code, "", &format!("{path}: {code} before {other}"));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_comes_after_the_account_and_before_the_capabilities() {
    let flags = ["--wallet-approval", "deny", "--wallet-max-calls", "3", "--wallet-upgrade", "deny"];
    let node = TestNode::quiet_with(&flags);
    let from = node.account(0).to_string();
    let place = VIOLATIONS.iter().position(|(code, _)| *code == 4001).expect("it is one of them");
    for (index, (code, change)) in VIOLATIONS.iter().enumerate() {
        let Some(change) = change else { continue };
        for path in PATHS {
            let answer = node.call(path, "wallet_sendCalls", changed(&from, *change)).await;
            check_refusal(&answer, if index < place { *code } else { 4001 }, "", &format!("{path}: {code}"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_refused_after_its_id_was_found_free_leaves_it_free() {
    let node = TestNode::quiet_with(&["--wallet-max-calls", "3", "--wallet-upgrade", "deny"]);
    let from = node.account(0).to_string();
    for path in PATHS {
        for (code, change) in VIOLATIONS.iter().filter(|(code, _)| [5740, 5750].contains(code)) {
            let with_id = |mut params: Value| {
                params[0]["id"] = json!(format!("{path} {code}"));
                params
            };
            let refused = with_id(changed(&from, change.expect("a change breaks it")));
            check_refusal(&node.call(path, "wallet_sendCalls", refused).await, *code, "", path);
            taken(&node.call(path, "wallet_sendCalls", with_id(batch(&from))).await, path);
        }
    }
}

// Access to the wallet.

#[tokio::test(flavor = "multi_thread")]
async fn with_a_wallet_token_file_only_its_tokens_may_use_the_wallet() {
    let (for_node, for_wallet) = (token_file(&[("node", 1_000)]), token_file(&[("wallet", 1_000)]));
    let wallet_flag = ["--wallet-token-file", for_wallet.path().to_str().unwrap()];
    let both = [&wallet_flag[..], &["--token-file", for_node.path().to_str().unwrap()]].concat();
    for (flags, stranger) in [(&wallet_flag[..], None), (&both[..], Some("node"))] {
        let node = TestNode::quiet_with(flags);
        let from = node.account(0).to_string();
        for path in PATHS {
            for (method, params) in [
                ("wallet_sendCalls", batch(&from)),
                ("wallet_getCallsStatus", json!(["1"])),
                ("wallet_showCallsStatus", json!(["1"])),
                ("wallet_getCapabilities", json!([from])),
            ] {
                let answer = node.call_by(stranger, path, method, params).await;
                check_refusal(&answer, 4100, "Authorization: Bearer", &format!("{path} {method}"));
            }
            // The rest of the node stays accessible.
            assert_eq!(node.call_by(stranger, path, "eth_chainId", json!([])).await["result"], "0x7a69");
            let answer = node.call_by(Some("wallet"), path, "wallet_sendCalls", batch(&from)).await;
            taken(&answer, path);
            // Rules that come before the account's are reported to any client.
            let params = changed(&from, |params| params[0]["chainId"] = json!("0x1"));
            check_refusal(&node.call_by(stranger, path, "wallet_sendCalls", params).await, 5710, "", path);
        }
    }
}

// The other methods.

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_not_known_is_5730() {
    let node = TestNode::quiet();
    for path in PATHS {
        for method in ["wallet_getCallsStatus", "wallet_showCallsStatus"] {
            check_refusal(&node.call(path, method, json!(["nobody's"])).await, 5730, "nobody's", method);
            for params in [json!([]), json!([1]), json!([""]), json!(["a", "b"]), json!({"id": "a"}), json!([null])] {
                assert_eq!(node.error(path, method, params.clone()).await["code"], -32602, "{path} {method} {params}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_was_taken_has_a_status() {
    let node = TestNode::quiet();
    let from = node.account(0).to_string();
    for path in PATHS {
        let id = taken(&node.call(path, "wallet_sendCalls", batch(&from)).await, path);
        let status = node.result(path, "wallet_getCallsStatus", json!([id])).await;
        assert_eq!((&status["version"], &status["id"]), (&json!("2.0.0"), &json!(id)), "{status}");
        assert_eq!((&status["chainId"], &status["atomic"]), (&json!("0x7a69"), &json!(false)), "{status}");
        // No transaction is in a block before the next sub-block.
        assert_eq!((&status["status"], status.get("receipts")), (&json!(100), None), "{status}");
        assert_eq!(node.result(path, "wallet_showCallsStatus", json!([id])).await, Value::Null);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_capabilities_of_an_account_are_told_by_chain() {
    let node = TestNode::quiet();
    let from = node.account(0).to_string();
    let all = json!({"0x7a69": {"atomic": {"status": "ready"}, "gasLimitOverride": {"supported": true}}});
    for path in PATHS {
        for (params, expected) in [
            (json!([from]), &all),
            (json!([from, null]), &all),
            (json!([from, ["0x7a69"]]), &all),
            (json!([from, ["0x1", "0x7A69"]]), &all),
            (json!([from, ["0x1", format!("0x7a69{}", "0".repeat(60))]]), &json!({})),
            (json!([from, []]), &json!({})),
        ] {
            assert_eq!(node.result(path, "wallet_getCapabilities", params.clone()).await, *expected, "{path} {params}");
        }
        let wrong = [
            json!([]),
            json!([null]),
            json!(["0x1"]),
            json!([from, "0x1"]),
            json!([from, [1]]),
            json!([from, ["0x01"]]),
            json!([from, ["0x1"], 1]),
            json!({"account": from}),
        ];
        for params in wrong {
            let error = node.error(path, "wallet_getCapabilities", params.clone()).await;
            assert_eq!(error["code"], -32602, "{path} {params}: {error}");
        }
    }
}
