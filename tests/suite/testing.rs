//! `--testing`: clients mine, edit state, move time, save and return, and send in any account's name.

use std::{ffi::OsString, time::Duration};

use alloy_consensus::{Header, TxEnvelope};
use alloy_eips::Decodable2718;
use alloy_primitives::{Address, B256, Bytes, U256, address, bytes};
use presim::testing::{Config, source::testing::state_file::StateFile};
use serde_json::{Value, json};

use crate::support::{Socket, TestNode, hex, number};

const ALICE: Address = address!("0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266");
const BOB: Address = address!("0x70997970c51812dc3a010c7d01b50e0d17dc79c8");
/// An account without a key that anyone knows.
const WHALE: Address = address!("0x00000000000000000000000000000000000ba1e0");
const ETHER: u64 = 1_000_000_000_000_000_000;

fn testing() -> TestNode {
    TestNode::start(&["--testing", "--no-mining"])
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_mined_on_request_with_what_waits_in_the_pool() {
    let node = testing();
    assert_eq!(node.height().await, 0);
    let sent = node.result("/", "eth_sendTransaction", json!([{ "from": ALICE, "to": BOB, "value": "0x7" }])).await;
    assert_eq!(node.result("/", "evm_mine", json!([])).await, "0x0");
    assert_eq!(node.height().await, 1);
    assert_eq!(node.block("latest").await["transactions"], json!([sent]));
    assert_eq!(node.result("/", "eth_getTransactionReceipt", json!([sent])).await["status"], "0x1");

    assert_eq!(node.result("/", "anvil_mine", json!(["0x3"])).await, Value::Null);
    assert_eq!(node.result("/", "hardhat_mine", json!([2, 60])).await, true);
    assert_eq!(node.height().await, 6);
    let times = [number(&node.block("0x5").await["timestamp"]), number(&node.block("0x6").await["timestamp"])];
    assert_eq!(times[1] - times[0], 60, "the interval of hardhat_mine");

    let later = times[1] + 1_000;
    node.result("/", "evm_mine", json!([{ "timestamp": later, "blocks": 2 }])).await;
    assert_eq!(number(&node.block("0x7").await["timestamp"]), later);
    assert_eq!(node.height().await, 8);
    assert_eq!(node.result("/", "anvil_mine", json!([0])).await, Value::Null);
    assert_eq!(node.height().await, 8, "no block was asked for");

    let node = TestNode::start(&["--testing", "--testing-limit", "300"]);
    let error = node.error("/", "anvil_mine", json!([301])).await;
    assert_eq!(error["code"], -32602);
    assert_eq!(error["message"], "params[0]: 301 blocks: expected at most 300 (--testing-limit)");
    node.result("/", "anvil_mine", json!([300])).await;
    assert!(node.height().await >= 300, "the bound itself can be mined");
}

#[tokio::test(flavor = "multi_thread")]
async fn edited_state_is_seen_at_latest_and_pending_and_by_the_next_block() {
    let node = testing();
    // Returns the word at slot 5: PUSH1 5 SLOAD PUSH0 MSTORE PUSH1 32 PUSH0 RETURN.
    let code = bytes!("6005545f5260205ff3");
    node.result("/", "anvil_setCode", json!([WHALE, code])).await;
    assert_eq!(node.result("/", "hardhat_setBalance", json!([WHALE, hex(5)])).await, true);
    assert_eq!(node.result("/", "anvil_setStorageAt", json!([WHALE, "0x5", B256::with_last_byte(9)])).await, true);
    assert_eq!(node.result("/", "evm_setAccountNonce", json!([WHALE, "0x4d2"])).await, true);
    assert_eq!(node.height().await, 0, "an edit mines no block");
    for at in ["latest", "pending"] {
        assert_eq!(node.balance(WHALE, at).await, U256::from(5));
        assert_eq!(node.result("/", "eth_getTransactionCount", json!([WHALE, at])).await, "0x4d2");
        assert_eq!(node.result("/", "eth_getCode", json!([WHALE, at])).await, json!(code));
        let word = node.result("/", "eth_call", json!([{ "to": WHALE }, at])).await;
        assert_eq!(word, json!(B256::with_last_byte(9)));
    }
    node.result("/", "anvil_mine", json!([])).await;
    let (head, proof) = (node.block("latest").await, json!([WHALE, ["0x5"], "latest"]));
    let proof = node.result("/", "eth_getProof", proof).await;
    assert_eq!(proof["storageProof"][0]["value"], "0x9");
    let root = proof["accountProof"][0].as_str().expect("the root node").parse::<Bytes>().expect("bytes");
    assert_eq!(json!(alloy_primitives::keccak256(root)), head["stateRoot"], "the next block's root has the edits");

    let error = node.error("/", "anvil_setBalance", json!([WHALE, "5"])).await;
    assert_eq!(error["code"], -32602, "{error}");
    let error = node.error("/", "anvil_setStorageAt", json!([WHALE, "0x5"])).await;
    assert_eq!(error["code"], -32602, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn time_moves_forward_and_the_next_block_has_the_time_that_was_set() {
    let node = testing();
    let genesis = number(&node.block("0x0").await["timestamp"]);
    let ahead = node.result("/", "evm_increaseTime", json!([3_600])).await;
    assert!((3_600..3_610).contains(&ahead.as_u64().expect("seconds")), "{ahead}");
    let pending = number(&node.block("pending").await["timestamp"]);
    assert!((genesis + 3_600..genesis + 3_700).contains(&pending), "{genesis} {pending}");
    node.result("/", "evm_mine", json!([])).await;
    assert_eq!(number(&node.block("latest").await["timestamp"]), pending);

    let set = pending + 86_400;
    assert_eq!(node.result("/", "evm_setNextBlockTimestamp", json!([hex(set)])).await, Value::Null);
    // NUMBER and TIMESTAMP of the block to come, as a contract sees them.
    let seen = json!([{ "to": WHALE }, "pending", { (WHALE.to_string()): { "code": "0x425f5260205ff3" } }]);
    assert_eq!(node.result("/", "eth_call", seen).await, json!(B256::from(U256::from(set))));
    node.result("/", "anvil_mine", json!([2])).await;
    assert_eq!(number(&node.block("0x2").await["timestamp"]), set);
    let after = number(&node.block("0x3").await["timestamp"]);
    assert!((set + 1..set + 100).contains(&after), "the clock continues from {set}: {after}");

    let error = node.error("/", "evm_increaseTime", json!([u64::MAX])).await;
    assert_eq!(error["message"], "timestamp 18446744073709551615: expected at most 2^63 - 1");
    let error = node.error("/", "anvil_setNextBlockTimestamp", json!([after])).await;
    let text = format!("timestamp {after} is lower than or equal to the previous block's timestamp {after}");
    assert_eq!((error["code"].as_i64(), error["message"].as_str()), (Some(-32000), Some(text.as_str())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_with_transactions_is_sealed_before_the_time_or_the_state_changes() {
    let node = TestNode::start(&["--testing", "--dialect", "project", "--block-time", "500s", "--sub-block-ms", "50"]);
    let pre_confirmed = async || {
        let call = json!([{ "from": ALICE, "to": BOB, "value": "0x1" }]);
        let receipt = json!([node.result("/", "eth_sendTransaction", call).await]);
        node.mined(&receipt[0]).await;
        receipt
    };
    let receipt = pre_confirmed().await;
    let time = number(&node.block("pending").await["timestamp"]);
    node.result("/", "evm_setNextBlockTimestamp", json!([time + 500])).await;
    assert_eq!(number(&node.block("latest").await["timestamp"]), time, "what was pre-confirmed stays");
    node.result("/", "anvil_setBalance", json!([WHALE, "0x1"])).await;
    assert_eq!(node.result("/", "eth_getTransactionReceipt", receipt).await["blockNumber"], "0x1");
    assert_eq!(number(&node.block("pending").await["timestamp"]), time + 500);

    let sent = pre_confirmed().await;
    node.result("/", "anvil_setBalance", json!([ALICE, "0x0"])).await;
    let receipt = node.result("/", "eth_getTransactionReceipt", sent.clone()).await;
    assert_eq!((&receipt["blockNumber"], node.height().await), (&json!("0x2"), 2));
    let trace = node.result("/", "debug_traceTransaction", sent).await;
    assert_eq!(hex(trace["gas"].as_u64().expect("gas")), receipt["gasUsed"], "it is run again as it was");
    assert_eq!(node.balance(ALICE, "pending").await, U256::ZERO);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revert_restores_blocks_state_and_time_under_ids_that_were_never_given() {
    let node = testing();
    node.result("/", "anvil_mine", json!([2])).await;
    let saved = node.result("/", "evm_snapshot", json!([])).await;
    assert_eq!(saved, "0x0");
    let (before, head) = (node.balance(BOB, "latest").await, node.block("latest").await);
    let id = number(&node.result("/", "presim_snapshot", json!([])).await["id"]);

    let sent = node.result("/", "eth_sendTransaction", json!([{ "from": ALICE, "to": BOB, "value": "0x7" }])).await;
    node.result("/", "anvil_setBalance", json!([WHALE, hex(9)])).await;
    node.result("/", "evm_increaseTime", json!([1_000])).await;
    node.result("/", "anvil_mine", json!([3])).await;
    assert_eq!(node.balance(BOB, "latest").await, before + U256::from(7));
    assert_eq!(node.result("/", "anvil_snapshot", json!([])).await, "0x1");
    let last = number(&node.result("/", "presim_snapshot", json!([])).await["id"]);

    assert_eq!(node.result("/", "evm_revert", json!([saved])).await, true);
    assert_eq!(node.height().await, 2);
    assert_eq!(node.block("latest").await, head);
    assert_eq!(node.balance(BOB, "pending").await, before);
    assert_eq!(node.balance(WHALE, "pending").await, U256::ZERO);
    assert!(node.result("/", "eth_getTransactionReceipt", json!([sent])).await.is_null());
    assert!(node.block("0x3").await["transactions"] == json!([]), "the block being built is empty again");
    let again = number(&node.result("/", "presim_snapshot", json!([])).await["id"]);
    assert_eq!(again, last + 1, "ids go on, so that none is given twice");
    let at = |id: u64| json!([BOB, { "snapshotId": hex(id) }]);
    assert_eq!(node.result("/", "eth_getBalance", at(id)).await, json!(before), "an id of before means what it meant");
    let error = node.error("/", "eth_getBalance", at(last)).await;
    assert_eq!(error["code"], -32000, "an id of what was undone means nothing: {error}");

    assert_eq!(node.result("/", "evm_revert", json!([saved])).await, false, "a state is returned to once");
    assert_eq!(node.result("/", "evm_revert", json!(["0x1"])).await, false, "later states went with it");
    node.result("/", "anvil_mine", json!([])).await;
    let time = number(&node.block("0x3").await["timestamp"]);
    assert!(time < number(&head["timestamp"]) + 500, "the clock went back, too");
    assert_eq!(node.result("/", "evm_snapshot", json!([])).await, "0x2", "no id of a saved state is given twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_hear_of_a_revert_as_of_a_reorg() {
    let node = testing();
    // Writes an empty log: PUSH0 PUSH0 LOG0.
    node.result("/", "anvil_setCode", json!([WHALE, "0x5f5fa0"])).await;
    let saved = node.result("/", "evm_snapshot", json!([])).await;
    let mut socket = Socket::open(&node, "/").await;
    let logs = socket.subscribe(json!(["logs", {}])).await;
    node.result("/", "eth_sendTransaction", json!([{ "from": ALICE, "to": WHALE }])).await;
    node.result("/", "anvil_mine", json!([])).await;
    let log = socket.notification(&logs).await;
    assert_eq!(log["removed"], false);
    let heads = socket.subscribe(json!(["newHeads"])).await;
    node.result("/", "evm_revert", json!([saved])).await;
    let removed = socket.notification(&logs).await;
    assert_eq!((&removed["removed"], &removed["transactionHash"]), (&json!(true), &log["transactionHash"]));
    assert_eq!(socket.notification(&heads).await["number"], "0x0", "the head that the chain returned to");
    node.result("/", "anvil_mine", json!([])).await;
    assert_eq!(socket.notification(&heads).await["number"], "0x1");
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_are_sent_in_the_name_of_any_account_contracts_included() {
    let node = testing();
    let call = json!([{ "from": WHALE, "to": BOB, "value": hex(3) }]);
    assert_eq!(node.error("/", "eth_sendTransaction", call.clone()).await["message"], "No Signer available");
    node.result("/", "anvil_impersonateAccount", json!([WHALE])).await;
    node.result("/", "anvil_setBalance", json!([WHALE, hex(ETHER)])).await;
    node.result("/", "anvil_setCode", json!([WHALE, "0x00"])).await;
    let before = node.balance(BOB, "latest").await;
    let sent = [
        node.result("/", "eth_sendTransaction", call.clone()).await,
        node.result("/", "eth_sendTransaction", call.clone()).await,
    ];
    node.result("/", "anvil_mine", json!([])).await;
    for (nonce, hash) in sent.iter().enumerate() {
        let tx = node.result("/", "eth_getTransactionByHash", json!([hash])).await;
        assert_eq!((&tx["from"], &tx["nonce"]), (&json!(WHALE), &hex(nonce as u64)));
        assert_eq!(node.result("/", "eth_getTransactionReceipt", json!([hash])).await["status"], "0x1");
        let trace = node.result("/", "debug_traceTransaction", json!([hash, { "tracer": "callTracer" }])).await;
        assert_eq!((&trace["from"], &trace["error"]), (&json!(WHALE), &Value::Null), "it is run again as it was");
    }
    assert_eq!(node.balance(BOB, "latest").await, before + U256::from(6));
    node.result("/", "hardhat_stopImpersonatingAccount", json!([WHALE])).await;
    assert_eq!(node.error("/", "eth_sendTransaction", call).await["message"], "No Signer available");

    let node = TestNode::start(&["--testing", "--testing-limit", "1"]);
    node.result("/", "hardhat_impersonateAccount", json!([WHALE])).await;
    node.result("/", "hardhat_impersonateAccount", json!([WHALE])).await;
    assert_eq!(node.error("/", "anvil_impersonateAccount", json!([BOB])).await["code"], -32005);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_built_block_is_what_the_chain_would_seal_and_changes_nothing() {
    let node = testing();
    node.result("/", "anvil_mine", json!([])).await;
    let parent = node.block("latest").await;
    let time = number(&parent["timestamp"]) + 100;
    let attributes = json!({
        "timestamp": hex(time), "prevRandao": B256::with_last_byte(1), "suggestedFeeRecipient": BOB,
        "parentBeaconBlockRoot": B256::ZERO,
        "withdrawals": [{ "index": "0x0", "validatorIndex": "0x1", "address": WHALE, "amount": "0x2" }],
    });
    let sent = node.result("/", "eth_sendTransaction", json!([{ "from": ALICE, "to": BOB, "value": "0x7" }])).await;
    let build = async |attributes: &Value, transactions: Value| {
        let params = json!([parent["hash"], attributes, transactions, "0x70"]);
        node.call("/", "testing_buildBlockV1", params).await
    };
    let built = build(&attributes, Value::Null).await;
    let payload = &built["result"]["executionPayload"];
    assert_eq!((&payload["parentHash"], &payload["extraData"]), (&parent["hash"], &json!("0x70")), "{built}");
    let raw: Bytes = serde_json::from_value(payload["transactions"][0].clone()).expect("a transaction");
    TxEnvelope::decode_2718_exact(&raw).expect("it is signed");
    // The same block from the given transaction.
    let given = build(&attributes, json!([raw])).await;
    assert_eq!(given, built);
    assert_ne!(build(&attributes, json!([])).await["result"]["executionPayload"]["blockHash"], payload["blockHash"]);
    assert_eq!(node.block("latest").await, parent, "the chain has not changed");
    let waiting = node.result("/", "eth_getTransactionByHash", json!([sent])).await;
    assert!(waiting.is_object() && waiting["blockHash"].is_null(), "the transaction still waits: {waiting}");

    // The hash is that of the header which the payload describes.
    let root = |field: &str| serde_json::from_value::<B256>(payload[field].clone()).expect("a hash");
    assert_ne!(root("stateRoot"), Header::default().state_root);
    let mut wrong = attributes.clone();
    wrong["timestamp"] = parent["timestamp"].clone();
    let error = build(&wrong, json!([])).await["error"].clone();
    assert!(error["message"].as_str().is_some_and(|text| text.starts_with("params[1].timestamp: ")), "{error}");
    let mut wrong = attributes.clone();
    wrong.as_object_mut().expect("an object").remove("withdrawals");
    let error = build(&wrong, json!([])).await["error"].clone();
    assert_eq!(error["message"], "params[1].withdrawals: missing: blocks have it from Shanghai on");
    let error = build(&attributes, json!(["0x02c0"])).await["error"].clone();
    assert!(error["message"].as_str().is_some_and(|text| text.starts_with("params[2][0]: ")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_flag_there_are_no_methods_for_testing_and_a_static_chain_only_builds() {
    let node = TestNode::quiet();
    for method in ["evm_mine", "anvil_setBalance", "testing_buildBlockV1"] {
        let error = node.error("/", method, json!([])).await;
        assert_eq!(error["code"], -32601);
        assert_eq!(error["message"], format!("{method} is for testing: start the node with --testing"));
    }
    let beside = |flags: &[&str]| {
        let args = ["presim", "--testing"].iter().chain(flags).map(OsString::from);
        Config::load(args).expect_err("it is refused").to_string()
    };
    for (flags, text) in [
        (&["--data-dir", "/tmp/presim-unused"][..], "--testing and --data-dir: "),
        (&["--upstream", "http://127.0.0.1:1"], "--testing and --upstream: "),
        (&["--genesis", "g", "--chain", "c", "--feed", "devnet"], "--testing and --chain with --feed devnet: "),
        (&["--sub-block-ms", "100"], "--sub-block-ms and --testing: blocks are mined as transactions arrive"),
        (&["--sub-blocks", "5"], "--sub-blocks and --testing: "),
        (&["--traffic", "4"], "--traffic and --testing: "),
        (&["--sub-blocks", "5", "--block-time", "2s"], "--sub-blocks and --block-time: "),
        (&["--no-mining", "--block-time", "2s"], "--no-mining and --block-time: "),
    ] {
        let error = beside(flags);
        assert!(error.contains(text), "{flags:?}: {error}");
    }
    let Some(folder) = crate::support::shared("vectors/execution-apis") else { return };
    let genesis = folder.join("genesis.json");
    let node = TestNode::start(&["--testing", "--feed", "static", "--genesis", genesis.to_str().expect("UTF-8")]);
    let error = node.error("/", "evm_mine", json!([])).await;
    assert_eq!(
        (&error["code"], &error["message"]),
        (&json!(-32601), &json!("evm_mine needs a devnet: this chain is static"))
    );
}

/// Sends ether from an account, and returns the receipt that is there when the answer is.
async fn sent_and_mined(node: &TestNode, from: Address, value: u64) -> Value {
    let call = json!([{ "from": from, "to": BOB, "value": hex(value) }]);
    let hash = node.result("/", "eth_sendTransaction", call).await;
    let receipt = node.result("/", "eth_getTransactionReceipt", json!([hash])).await;
    assert_eq!(receipt["transactionHash"], hash, "{receipt}");
    receipt
}

#[tokio::test(flavor = "multi_thread")]
async fn with_automine_each_transaction_has_its_block_when_its_sender_has_the_answer() {
    let node = TestNode::start(&["--testing"]);
    assert_eq!(node.result("/", "hardhat_getAutomine", json!([])).await, true);
    let version = node.result("/", "web3_clientVersion", json!([])).await;
    assert!(version.as_str().is_some_and(|version| version.starts_with("anvil/presim-v")), "{version}");
    let status = node.result("/", "presim_status", json!([])).await;
    assert_eq!(status["feed"]["state"], "static", "nothing is mined by time");
    for number in 1..=5 {
        let receipt = sent_and_mined(&node, ALICE, number).await;
        assert_eq!((&receipt["blockNumber"], &receipt["transactionIndex"]), (&hex(number), &hex(0)));
        assert_eq!(node.balance(BOB, "latest").await, node.balance(BOB, "pending").await);
    }
    // Several at once have a block each.
    let call = ("eth_sendTransaction", json!([{ "from": ALICE, "to": BOB, "value": "0x1" }]));
    for hash in node.batch("/", &[call.clone(), call.clone(), call]).await {
        let receipt = node.result("/", "eth_getTransactionReceipt", json!([hash])).await;
        assert_eq!(receipt["transactionIndex"], "0x0", "{receipt}");
    }
    assert_eq!(node.height().await, 8);
    // A transaction behind a gap waits, and both are mined when it is filled.
    let nonce = number(&node.result("/", "eth_getTransactionCount", json!([ALICE, "latest"])).await);
    let with = |nonce: u64| json!([{ "from": ALICE, "to": BOB, "value": "0x1", "nonce": hex(nonce) }]);
    let second = node.result("/", "eth_sendTransaction", with(nonce + 1)).await;
    assert_eq!(node.result("/", "eth_getTransactionReceipt", json!([second])).await, Value::Null);
    assert_eq!(node.height().await, 8, "no block is mined for it");
    node.result("/", "eth_sendTransaction", with(nonce)).await;
    let receipt = node.result("/", "eth_getTransactionReceipt", json!([second])).await;
    assert_eq!((&receipt["blockNumber"], node.height().await), (&hex(10), 10), "{receipt}");
    // Without it, blocks are mined on request.
    assert_eq!(node.result("/", "anvil_setAutomine", json!([false])).await, Value::Null);
    let waiting = node.result("/", "eth_sendTransaction", with(nonce + 2)).await;
    assert_eq!(node.height().await, 10);
    // Transactions that wait are mined when it begins again.
    node.result("/", "anvil_setAutomine", json!([true])).await;
    let receipt = node.result("/", "eth_getTransactionReceipt", json!([waiting])).await;
    assert_eq!(receipt["blockNumber"], hex(11), "{receipt}");
}

/// The block being built has waited since the one before it.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_has_the_time_at_which_it_is_mined_unless_its_time_was_set() {
    for flags in [&["--testing"][..], &["--testing", "--no-mining"]] {
        let node = TestNode::start(flags);
        let mined = async || {
            node.result("/", "eth_sendTransaction", json!([{ "from": ALICE, "to": BOB, "value": "0x1" }])).await;
            if flags.len() > 1 {
                node.result("/", "evm_mine", json!([])).await;
            }
            number(&node.block("latest").await["timestamp"])
        };
        let opened = number(&node.block("pending").await["timestamp"]);
        let second = || std::time::SystemTime::UNIX_EPOCH.elapsed().expect("it is later").as_secs();
        while second() <= opened {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(mined().await > opened, "{flags:?}");
        // A time that was set stays until a block has it, whatever is changed meanwhile.
        let set = second() + 1_000;
        node.result("/", "evm_setNextBlockTimestamp", json!([set])).await;
        node.result("/", "anvil_setBalance", json!([WHALE, "0x1"])).await;
        while second() + 1_000 <= set {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(mined().await, set, "{flags:?}");
        // The clock goes on from there, moved or not.
        let ahead = node.result("/", "evm_increaseTime", json!([500])).await.as_u64().expect("seconds");
        assert!((1_500..1_600).contains(&ahead), "{ahead}");
        assert!(mined().await >= set + 500, "{flags:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_mined_at_an_interval_with_what_waits() {
    let node = TestNode::start(&["--testing", "--block-time", "250ms"]);
    let status = node.result("/", "presim_status", json!([])).await;
    assert_eq!(status["feed"], json!({ "state": "live", "everyMs": 250 }));
    node.sealed(2).await;
    // A transaction that waits for its block is in a draft, and can be replaced; in a sub-block it stays.
    let node = TestNode::start(&["--testing", "--block-time", "1000s"]);
    let priced =
        |price: u64| json!([{ "from": ALICE, "to": BOB, "value": "0x7", "nonce": "0x0", "gasPrice": hex(price) }]);
    node.result("/", "eth_sendTransaction", priced(10_000_000_000)).await;
    let better = node.result("/", "eth_sendTransaction", priced(20_000_000_000)).await;
    assert_eq!(node.block("pending").await["transactions"], json!([better]));
    assert_eq!(node.height().await, 0);
    node.result("/", "evm_mine", json!([])).await;
    assert_eq!(node.block("latest").await["transactions"], json!([better]));
    let node = testing();
    assert_eq!(node.result("/", "anvil_getIntervalMining", json!([])).await, Value::Null);
    node.result("/", "evm_setIntervalMining", json!([1])).await;
    assert_eq!(node.result("/", "anvil_getIntervalMining", json!([])).await, 1);
    let call = json!([{ "from": ALICE, "to": BOB, "value": "0x7" }]);
    let raw = node.result("/", "eth_sendTransaction", call).await;
    node.mined(&raw).await;
    // None is mined by time any more.
    node.result("/", "anvil_setIntervalMining", json!([0])).await;
    let status = node.result("/", "presim_status", json!([])).await;
    assert_eq!(status["feed"]["state"], "static");
    let error = node.error("/", "evm_setIntervalMining", json!([])).await;
    assert_eq!(error["code"], -32602, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_of_the_next_block_are_chosen() {
    for flags in [&["--testing"][..], &["--testing", "--no-mining"]] {
        let node = TestNode::start(flags);
        let mine = async || {
            node.result("/", "evm_mine", json!([])).await;
            node.block("latest").await
        };
        let before = node.block("pending").await;
        assert_eq!(node.result("/", "hardhat_setCoinbase", json!([WHALE])).await, true);
        assert_eq!(node.result("/", "evm_setBlockGasLimit", json!(["0x1000000"])).await, true);
        assert_eq!(node.result("/", "anvil_setNextBlockBaseFeePerGas", json!(["0x77359400"])).await, Value::Null);
        assert_eq!(node.result("/", "hardhat_setPrevRandao", json!([B256::repeat_byte(7)])).await, true);
        let chosen =
            |block: &Value| ["miner", "gasLimit", "baseFeePerGas", "mixHash"].map(|field| block[field].clone());
        let expected = [json!(WHALE), hex(0x100_0000), hex(2_000_000_000), json!(B256::repeat_byte(7))];
        assert_eq!(chosen(&node.block("pending").await), expected, "{flags:?}");
        // A change of the state keeps them, and a call sees them.
        node.result("/", "anvil_addBalance", json!([WHALE, 1])).await;
        // Returns the base fee: BASEFEE PUSH0 MSTORE PUSH1 32 PUSH0 RETURN.
        let call =
            json!([{ "from": ALICE, "data": "0x485f5260205ff3", "maxFeePerGas": hex(2_000_000_000) }, "pending"]);
        let base_fee = node.result("/", "eth_call", call).await;
        assert_eq!(base_fee, json!(B256::from(U256::from(2_000_000_000_u64))));
        let mined = mine().await;
        assert_eq!(chosen(&mined), expected, "{flags:?}");
        // Base fee and randomness are those of one block.
        let next = mine().await;
        assert_eq!((&next["miner"], &next["gasLimit"]), (&json!(WHALE), &hex(0x100_0000)));
        assert!(number(&next["baseFeePerGas"]) < 2_000_000_000 && next["mixHash"] != mined["mixHash"], "{next}");
        // A state that is returned to has what was chosen at the time.
        let saved = node.result("/", "evm_snapshot", json!([])).await;
        node.result("/", "anvil_setCoinbase", json!([BOB])).await;
        assert_eq!(mine().await["miner"], json!(BOB));
        assert_eq!(node.result("/", "evm_revert", json!([saved])).await, true);
        assert_eq!(mine().await["miner"], json!(WHALE));
        // Blocks at an interval of their timestamps, whatever the time is.
        assert_eq!(node.result("/", "anvil_removeBlockTimestampInterval", json!([])).await, false);
        assert_eq!(node.result("/", "evm_setBlockTimestampInterval", json!([1_000])).await, Value::Null);
        let [one, two] = [mine().await, mine().await];
        assert_eq!(number(&two["timestamp"]) - number(&one["timestamp"]), 1_000);
        assert_eq!(node.result("/", "anvil_removeBlockTimestampInterval", json!([])).await, true);
        // The beginning is as it was.
        assert_eq!(node.result("/", "hardhat_reset", json!([])).await, true);
        assert_eq!((node.height().await, node.balance(WHALE, "latest").await), (0, U256::ZERO));
        assert_eq!(chosen(&node.block("pending").await), chosen(&before));
        let gone = node.result("/", "evm_revert", json!([saved])).await;
        assert_eq!(gone, false, "saved states are forgotten");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_blocks_are_mined_in_the_place_of_the_newest() {
    let node = testing();
    let send = async |from: Address, value: u64| {
        let hash =
            node.result("/", "eth_sendTransaction", json!([{ "from": from, "to": WHALE, "value": hex(value) }])).await;
        node.result("/", "evm_mine", json!([])).await;
        hash
    };
    let stranger = Address::repeat_byte(0x5a);
    node.result("/", "anvil_setBalance", json!([stranger, "0xde0b6b3a7640000"])).await;
    let [kept, lost, _] = [send(ALICE, 1).await, send(ALICE, 2).await, send(BOB, 4).await];
    let (first, second) = (node.block("0x1").await, node.block("0x2").await);
    // From an account with a key, in the name of one without, signed, and with a nonce that follows.
    let signed = json!([{ "from": BOB, "to": WHALE, "value": "0x10", "nonce": "0x0", "gas": "0x5208", "gasPrice": "0xb2d05e00" }]);
    let signed = node.result("/", "eth_signTransaction", signed).await["raw"].clone();
    let transactions = json!([
        [{ "from": stranger, "to": WHALE, "value": "0x20" }, 1],
        [{ "from": ALICE, "to": WHALE, "value": "0x8" }, 1],
        [{ "from": ALICE, "to": WHALE, "value": "0x40" }, 1],
        [signed, 0],
    ]);
    assert_eq!(node.result("/", "anvil_reorg", json!([2, transactions])).await, Value::Null);
    assert_eq!((node.height().await, node.block("0x1").await["hash"].clone()), (3, first["hash"].clone()));
    let blocks = [node.block("0x2").await, node.block("0x3").await];
    assert_ne!(blocks[0]["hash"], second["hash"]);
    let counts = blocks.each_ref().map(|block| block["transactions"].as_array().map(Vec::len));
    assert_eq!(counts, [Some(1), Some(3)]);
    assert_eq!(node.balance(WHALE, "latest").await, U256::from(0x79));
    assert_eq!(node.result("/", "eth_getTransactionReceipt", json!([lost])).await, Value::Null);
    assert_eq!(node.result("/", "eth_getTransactionReceipt", json!([kept])).await["blockNumber"], hex(1));
    // A transaction is found by its sender and nonce, in a block, in the pool and not at all.
    let by_sender = async |sender: Address, nonce: u64| {
        node.result("/", "eth_getTransactionBySenderAndNonce", json!([sender, hex(nonce)])).await
    };
    assert_eq!(by_sender(ALICE, 0).await["hash"], kept);
    assert_eq!(by_sender(stranger, 0).await["blockNumber"], hex(3));
    assert_eq!(by_sender(stranger, 1).await, Value::Null);
    let waiting = node.result("/", "eth_sendTransaction", json!([{ "from": BOB, "to": WHALE }])).await;
    assert_eq!(by_sender(BOB, 1).await["hash"], waiting);
    node.result("/", "anvil_dropTransaction", json!([waiting])).await;
    // The transaction that cannot be mined is named, and the rest is mined.
    let transactions = json!([[{ "from": ALICE, "to": WHALE, "nonce": "0x0" }, 0], [{ "from": BOB, "to": WHALE, "value": "0x80" }, 0]]);
    let error = node.error("/", "anvil_reorg", json!([1, transactions])).await;
    let text = error["message"].as_str().unwrap_or_default();
    assert!(text.contains("1 transactions cannot be mined") && text.contains("nonce"), "{error}");
    assert_eq!((node.height().await, node.balance(WHALE, "latest").await), (3, U256::from(0x91)));
    for (params, text) in [
        (json!([9]), "params[0]: 9 blocks: expected at most 3"),
        (
            json!([1, [[{ "from": ALICE, "to": WHALE }, 1]]]),
            "params[1][0][1]: no new block has the index 1: expected less than 1",
        ),
        (json!([1, [["0x02", 0]]]), "params[1][0][0]"),
        (json!([1, [[{ "from": "0x1" }, 0]]]), "params[1][0][0].from"),
    ] {
        let error = node.error("/", "anvil_reorg", params).await;
        assert_eq!(error["code"], -32602, "{error}");
        assert!(error["message"].as_str().is_some_and(|message| message.starts_with(text)), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_rolled_back_and_transactions_dropped() {
    let node = testing();
    let send = async |from: Address, nonce: u64| {
        let call = json!([{ "from": from, "to": WHALE, "value": "0x1", "nonce": hex(nonce) }]);
        node.result("/", "eth_sendTransaction", call).await
    };
    for nonce in 0..3 {
        send(ALICE, nonce).await;
        node.result("/", "evm_mine", json!([])).await;
    }
    let second = node.block("0x2").await["hash"].clone();
    assert_eq!(node.result("/", "anvil_rollback", json!([])).await, Value::Null);
    assert_eq!((node.height().await, node.block("latest").await["hash"].clone()), (2, second));
    assert_eq!(node.balance(WHALE, "pending").await, U256::from(2));
    let error = node.error("/", "anvil_rollback", json!([3])).await;
    assert_eq!(
        (error["code"].as_i64(), error["message"].as_str().unwrap_or_default()),
        (
            Some(-32602),
            "params[0]: 3 blocks: expected at most 2, the blocks before which the state is retained (--keep-blocks)"
        )
    );
    // The chain goes on from there.
    let again = send(ALICE, 2).await;
    node.result("/", "evm_mine", json!([])).await;
    assert_eq!(node.result("/", "eth_getTransactionReceipt", json!([again])).await["blockNumber"], hex(3));

    let (one, two, other) = (send(ALICE, 3).await, send(ALICE, 4).await, send(BOB, 0).await);
    let waiting = async || {
        let status = node.result("/", "txpool_status", json!([])).await;
        (number(&status["pending"]), number(&status["queued"]))
    };
    assert_eq!(waiting().await, (3, 0));
    assert_eq!(node.result("/", "anvil_dropTransaction", json!([one])).await, one);
    assert_eq!(node.result("/", "anvil_dropTransaction", json!([one])).await, Value::Null);
    assert_eq!(waiting().await, (1, 1), "the one behind it waits for its nonce");
    assert_eq!(node.result("/", "hardhat_dropTransaction", json!([two])).await, true);
    assert_eq!(node.result("/", "hardhat_dropTransaction", json!([two])).await, false);
    send(ALICE, 3).await;
    node.result("/", "anvil_removePoolTransactions", json!([ALICE])).await;
    assert_eq!(waiting().await, (1, 0));
    node.result("/", "anvil_dropAllTransactions", json!([])).await;
    assert_eq!(waiting().await, (0, 0));
    node.result("/", "evm_mine", json!([])).await;
    assert_eq!(node.result("/", "eth_getTransactionReceipt", json!([other])).await, Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn any_account_sends_and_the_chain_describes_itself() {
    let node = TestNode::start(&["--testing"]);
    node.result("/", "anvil_setBalance", json!([WHALE, hex(ETHER)])).await;
    let call = json!([{ "from": WHALE, "to": BOB, "value": "0x1" }]);
    assert_eq!(node.error("/", "eth_sendTransaction", call.clone()).await["code"], -32602);
    let sent = node.result("/", "eth_sendUnsignedTransaction", call.clone()).await;
    assert_eq!(node.result("/", "eth_getTransactionReceipt", json!([sent])).await["from"], json!(WHALE));
    node.result("/", "anvil_autoImpersonateAccount", json!([true])).await;
    let sent = node.result("/", "eth_sendTransaction", call.clone()).await;
    assert_eq!(node.result("/", "eth_getTransactionReceipt", json!([sent])).await["from"], json!(WHALE));
    node.result("/", "hardhat_autoImpersonateAccount", json!([false])).await;
    assert_eq!(node.error("/", "eth_sendTransaction", call).await["message"], "No Signer available");

    let (head, pending) = (node.block("latest").await, node.block("pending").await);
    let info = node.result("/", "anvil_nodeInfo", json!([])).await;
    assert_eq!((&info["currentBlockNumber"], &info["currentBlockHash"]), (&head["number"], &head["hash"]));
    assert_eq!(info["environment"]["baseFee"], pending["baseFeePerGas"]);
    assert_eq!((&info["hardFork"], &info["environment"]["chainId"]), (&json!("Osaka"), &json!(31_337)));
    let saved = node.result("/", "evm_snapshot", json!([])).await;
    let metadata = node.result("/", "hardhat_metadata", json!([])).await;
    let id = saved.as_str().expect("an id");
    assert_eq!(metadata["snapshots"], json!({ id: [number(&head["number"]), head["hash"]] }));
    assert_eq!(metadata["clientVersion"], node.result("/", "web3_clientVersion", json!([])).await);
    // A reset begins another instance.
    node.result("/", "anvil_reset", json!([])).await;
    let again = node.result("/", "anvil_metadata", json!([])).await;
    assert_eq!((&again["latestBlockNumber"], &again["snapshots"]), (&json!(0), &json!({})));
    assert_ne!(metadata["instanceId"], again["instanceId"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_root_speaks_the_standard_dialect_unless_it_is_told_otherwise() {
    let revert = json!([{ "data": "0x60006000fd" }, "latest"]);
    let node = TestNode::start(&["--testing"]);
    assert_eq!(
        node.error("/", "eth_call", revert.clone()).await,
        node.error("/standard", "eth_call", revert.clone()).await
    );
    let node = TestNode::start(&["--testing", "--dialect", "project"]);
    assert_ne!(node.error("/", "eth_call", revert.clone()).await, node.error("/standard", "eth_call", revert).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_under_test_has_funded_accounts_and_nothing_else() {
    let node = TestNode::start(&["--testing"]);
    let accounts = node.result("/", "eth_accounts", json!([])).await;
    assert_eq!((accounts.as_array().map(Vec::len), &accounts[0]), (Some(10), &json!(ALICE)));
    for account in accounts.as_array().expect("a list") {
        assert_eq!(node.result("/", "eth_getTransactionCount", json!([account, "latest"])).await, "0x0");
        assert_eq!(node.result("/", "eth_getBalance", json!([account, "latest"])).await, "0x21e19e0c9bab2400000");
    }
    assert!(node.node.info().trading.is_none(), "there is no trading world");
    assert_eq!(node.block("latest").await["gasLimit"], hex(30_000_000));
    // The deployment proxy creates a contract at the address of EIP-1014.
    let proxy = address!("0x4e59b44847b379578588920cA78FbF26c0B4956C");
    let init = "600a600c600039600a6000f3602a60005260206000f3";
    let create = json!([{ "from": ALICE, "to": proxy, "data": format!("0x{:064x}{init}", 7) }]);
    let receipt = json!([node.result("/", "eth_sendTransaction", create).await]);
    assert_eq!(node.result("/", "eth_getTransactionReceipt", receipt).await["status"], "0x1");
    let created = proxy.create2_from_code(B256::from(U256::from(7)), alloy_primitives::hex::decode(init).expect("hex"));
    assert_eq!(node.result("/", "eth_getCode", json!([created, "latest"])).await, "0x602a60005260206000f3");
    // No cap bounds the gas of a transaction.
    let dear = json!([{ "from": ALICE, "to": BOB, "gas": hex(29_000_000) }]);
    node.result("/", "eth_sendTransaction", dear.clone()).await;
    let capped = TestNode::start(&["--testing", "--enable-tx-gas-limit"]);
    assert_eq!(capped.error("/", "eth_sendTransaction", dear).await["code"], -32000);

    let node = TestNode::start(&["--testing", "--world"]);
    assert!(node.node.info().trading.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn flags_of_anvil_shape_the_chain() {
    const TIME: u64 = 2_000_000_000;
    let flags = "--testing --accounts 3 --balance 7 --chain-id 1234 --gas-limit 20000000 --base-fee 5000000000 --timestamp \
                 2000000000 --hardfork Shanghai --code-size-limit 100000 --auto-impersonate --order fifo --no-mining";
    let node = TestNode::start(&flags.split_whitespace().collect::<Vec<_>>());
    assert_eq!(node.result("/", "eth_chainId", json!([])).await, hex(1234));
    assert_eq!(node.result("/", "eth_accounts", json!([])).await.as_array().map(Vec::len), Some(3));
    assert_eq!(node.balance(BOB, "latest").await, U256::from(7 * u128::from(ETHER)));
    let first = node.block("earliest").await;
    assert_eq!(
        [&first["gasLimit"], &first["baseFeePerGas"], &first["timestamp"]],
        [&hex(20_000_000), &hex(5_000_000_000), &hex(TIME)]
    );
    assert_eq!((first.get("withdrawalsRoot").is_some(), first.get("blobGasUsed").is_some()), (true, false));
    assert_eq!(node.result("/", "anvil_nodeInfo", json!([])).await["hardFork"], "Shanghai");
    // A contract of 50,000 bytes, which EIP-170 does not allow: PUSH2 50000 PUSH0 RETURN.
    let large = json!([{ "from": ALICE, "data": "0x61c3505ff3", "gas": hex(15_000_000) }]);
    let large = json!([node.result("/", "eth_sendTransaction", large).await]);
    node.result("/", "evm_mine", json!([])).await;
    let receipt = node.result("/", "eth_getTransactionReceipt", large).await;
    assert_eq!(receipt["status"], "0x1", "{receipt}");
    let mined = number(&node.block("latest").await["timestamp"]);
    assert!((TIME..TIME + 600).contains(&mined), "the clock goes on from there: {mined}");
    // Transactions are mined as they arrive, in any account's name.
    node.result("/", "anvil_setBalance", json!([WHALE, hex(ETHER)])).await;
    let send = async |from: Address, tip: u64| {
        let call =
            json!([{ "from": from, "to": BOB, "maxPriorityFeePerGas": hex(tip), "maxFeePerGas": hex(20_000_000_000) }]);
        node.result("/", "eth_sendTransaction", call).await
    };
    let sent = [send(WHALE, 1).await, send(ALICE, 2_000_000_000).await];
    node.result("/", "evm_mine", json!([])).await;
    assert_eq!(node.block("latest").await["transactions"], json!(sent));
    // Other words, other accounts.
    let words = "legal winner thank year wave sausage worth useful legal winner thank yellow";
    let node = TestNode::start(&["--testing", "--mnemonic", words, "--hardfork", "london"]);
    let accounts = node.result("/", "eth_accounts", json!([])).await;
    assert_ne!(accounts[0], json!(ALICE));
    let call = json!([{ "from": accounts[0], "to": BOB, "value": "0x1" }]);
    let sent = json!([node.result("/", "eth_sendTransaction", call).await]);
    assert_eq!(node.result("/", "eth_getTransactionReceipt", sent).await["status"], "0x1");
}

#[tokio::test]
async fn flags_of_a_chain_under_test_are_refused_without_it() {
    let load = |flags: &str| Config::load(["presim"].into_iter().chain(flags.split(' ')).map(OsString::from));
    for flags in ["--accounts 3", "--hardfork cancun", "--world", "--port 8546", "--auto-impersonate"] {
        let error = load(flags).expect_err("it is refused").to_string();
        assert!(error.contains("--testing"), "{flags}: {error}");
    }
    let error = load("--testing --hardfork atlantis").expect_err("it is refused").to_string();
    assert!(error.contains("'atlantis'") && error.contains("cancun"), "{error}");
    let config = load("--testing --host 0.0.0.0 --port 9000 --token-file tokens").expect("an address with tokens");
    assert_eq!(config.listen, "0.0.0.0:9000".parse().expect("an address"));
    load("--testing --host 0.0.0.0").expect_err("an address without tokens");
    let help = |flags: &str| load(flags).expect_err("a text").to_string();
    assert!(help("--testing --help").contains("--hardfork") && !help("--help").contains("--hardfork"));
}

/// Libraries for tests compare the texts of errors.
#[tokio::test(flavor = "multi_thread")]
async fn errors_have_the_texts_that_anvil_gives_them() {
    let node = TestNode::start(&["--testing"]);
    // Reverts with its call data: CALLDATASIZE PUSH0 PUSH0 CALLDATACOPY CALLDATASIZE PUSH0 REVERT.
    let echo = "0x365f5f37365ffd";
    node.result("/", "anvil_setCode", json!([WHALE, echo])).await;
    let reverted = async |data: &str| {
        let error = node.error("/standard", "eth_call", json!([{ "to": WHALE, "data": data }, "latest"])).await;
        assert_eq!(error["code"], 3, "{error}");
        assert_eq!(error["data"], data);
        error["message"].as_str().expect("a text").to_owned()
    };
    let panic = format!("0x4e487b71{:064x}", 0x11);
    assert_eq!(reverted(&panic).await, "execution reverted: panic: arithmetic underflow or overflow (0x11)");
    assert_eq!(reverted("0x12345678").await, "execution reverted: custom error 0x12345678");
    let with_data = format!("0x12345678{:064x}", 0xff);
    assert_eq!(reverted(&with_data).await, format!("execution reverted: custom error 0x12345678: {:064x}", 0xff));
    let text = format!("0x08c379a0{:064x}{:064x}{:0<64}", 32, 2, "6e6f");
    assert_eq!(reverted(&text).await, "execution reverted: no");
    assert_eq!(reverted("0x").await, "execution reverted");

    let told = async |method: &str, params: Value| {
        let error = node.error("/", method, params).await;
        (error["code"].as_i64().expect("a code"), error["message"].as_str().expect("a text").to_owned())
    };
    let dear = json!([{ "from": ALICE, "to": BOB, "value": hex(u64::MAX), "maxFeePerGas": "0xffffffffffffffff", "gas": "0x5208" }]);
    assert_eq!(
        told("eth_sendTransaction", dear).await,
        (-32003, "Insufficient funds for gas * price + value".to_owned())
    );
    let poor = json!([{ "from": WHALE, "to": BOB, "value": "0x1" }, "latest"]);
    assert_eq!(told("eth_call", poor.clone()).await, (-32003, "Insufficient funds for gas * price + value".to_owned()));
    let low = json!([{ "from": ALICE, "to": BOB, "gas": "0x5207" }]);
    assert_eq!(
        told("eth_sendTransaction", low).await,
        (-32000, "intrinsic gas too high -- CallGasCostMoreThanGasLimit".to_owned())
    );
    // A transaction that reverts is mined if its gas is given.
    let gas_given = json!([{ "from": ALICE, "to": WHALE, "data": "0x12345678", "gas": "0x186a0" }]);
    let mined = json!([node.result("/", "eth_sendTransaction", gas_given).await]);
    assert_eq!(node.result("/", "eth_getTransactionReceipt", mined).await["status"], "0x0");
    // If not, it gets that of a block, because no limit lets it succeed.
    let call = json!([{ "from": ALICE, "to": WHALE, "data": "0x12345678" }]);
    let mined = json!([node.result("/", "eth_sendTransaction", call.clone()).await]);
    assert_eq!(node.result("/", "eth_getTransactionReceipt", mined).await["status"], "0x0");
    assert_eq!(told("eth_estimateGas", call).await, (3, "execution reverted: custom error 0x12345678".to_owned()));
    let filled = told("eth_fillTransaction", json!([{ "from": ALICE, "to": WHALE, "data": "0x12345678" }])).await;
    assert_eq!(filled, (3, "execution reverted: custom error 0x12345678".to_owned()));
    // A transfer costs what it costs, whoever has the ether.
    let transfer = json!([{ "from": WHALE, "to": BOB, "value": hex(ETHER) }]);
    assert_eq!(node.result("/", "eth_estimateGas", transfer).await, "0x5208");
    let funds = told("eth_call", json!([{ "from": WHALE, "to": BOB, "value": hex(ETHER) }])).await;
    assert_eq!(funds, (-32003, "Insufficient funds for gas * price + value".to_owned()));
    // Without --testing they are geth's.
    let node = TestNode::quiet();
    let error = node.error("/standard", "eth_call", poor).await;
    assert!(error["message"].as_str().is_some_and(|text| text.starts_with("err: insufficient funds")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_is_dumped_and_loaded_by_another_chain() {
    let node = TestNode::start(&["--testing"]);
    node.result("/", "anvil_setBalance", json!([WHALE, hex(ETHER)])).await;
    node.result("/", "anvil_setCode", json!([WHALE, "0x6005545f5260205ff3"])).await;
    node.result("/", "anvil_setStorageAt", json!([WHALE, "0x5", B256::repeat_byte(9)])).await;
    node.result("/", "anvil_setNonce", json!([BOB, "0x7"])).await;
    let dumped = node.result("/", "anvil_dumpState", json!([])).await;
    let seen = async |node: &TestNode| {
        let called = node.result("/", "eth_call", json!([{ "to": WHALE }, "latest"])).await;
        let nonce = node.result("/", "eth_getTransactionCount", json!([BOB, "pending"])).await;
        (called, nonce, node.balance(WHALE, "latest").await)
    };
    let expected = (json!(B256::repeat_byte(9)), hex(7), U256::from(ETHER));
    assert_eq!(seen(&node).await, expected);
    // Gzipped as anvil has it.
    let bytes: Bytes = dumped.as_str().expect("hex").parse().expect("hex");
    assert_eq!(bytes[..2], [0x1f, 0x8b]);
    let other = TestNode::start(&["--testing", "--accounts", "1"]);
    assert_eq!(other.result("/", "hardhat_loadState", json!([dumped])).await, true);
    assert_eq!(seen(&other).await, expected);
    for (state, problem) in [("0x1f8b00", "no gzipped data: "), ("0x7b7d", "missing field `accounts`"), ("0x", "EOF")] {
        let error = other.error("/", "anvil_loadState", json!([state])).await;
        let text = error["message"].as_str().expect("a text");
        assert!(error["code"] == -32602 && text.starts_with("params[0]: ") && text.contains(problem), "{error}");
    }
    // In a file, from the start.
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), &bytes).expect("it is written");
    let path = file.path().to_str().expect("UTF-8");
    let third = TestNode::start(&["--testing", "--load-state", path]);
    assert_eq!(seen(&third).await, expected);
    let accounts = |node: &TestNode| -> Value {
        let file = StateFile::of(node.node.snapshots().load().latest());
        let state: Value = serde_json::from_slice(&file.json().expect("JSON")).expect("JSON");
        state["accounts"].clone()
    };
    assert!(accounts(&third) == accounts(&node), "all accounts are the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_block_being_built_is_a_draft_of_what_waits() {
    let node = testing();
    let (mut one_socket, mut other) = (Socket::open(&node, "/").await, Socket::open(&node, "/").await);
    let heads = one_socket.subscribe(json!(["newHeads"])).await;
    let logs = other.subscribe(json!(["logs", {}])).await;
    // Logs nothing but its call: PUSH0 PUSH0 LOG0.
    node.result("/", "anvil_setCode", json!([WHALE, "0x5f5fa0"])).await;
    let send = async |from: Address, nonce: u64, value: u64, tip: u64| {
        let fees = json!({ "maxFeePerGas": hex(50_000_000_000 + tip * 10_000_000), "maxPriorityFeePerGas": hex(tip) });
        let mut call = json!({ "from": from, "to": BOB, "value": hex(value), "nonce": hex(nonce), "gas": "0x5208" });
        call.as_object_mut().expect("an object").extend(fees.as_object().expect("an object").clone());
        node.result("/", "eth_sendTransaction", json!([call])).await
    };
    let drafted = async || node.block("pending").await["transactions"].clone();
    let before = node.balance(BOB, "latest").await;
    let seen = async || [node.balance(BOB, "latest").await, node.balance(BOB, "pending").await].map(|now| now - before);

    let one = send(ALICE, 0, 5, 1_000).await;
    assert_eq!((drafted().await, seen().await), (json!([one]), [U256::ZERO, U256::from(5)]));
    for path in ["/", "/standard"] {
        let receipt = node.result(path, "eth_getTransactionReceipt", json!([one])).await;
        let tx = node.result(path, "eth_getTransactionByHash", json!([one])).await;
        assert_eq!((receipt, &tx["blockNumber"], &tx["hash"]), (Value::Null, &Value::Null, &one), "{path}");
    }
    assert_eq!(node.result("/", "txpool_status", json!([])).await, json!({ "pending": "0x1", "queued": "0x0" }));
    assert_eq!(node.result("/", "eth_getTransactionCount", json!([ALICE, "pending"])).await, "0x1");
    // Another takes its place, and one more follows.
    let instead = send(ALICE, 0, 7, 2_000).await;
    let two = send(ALICE, 1, 1, 1_000).await;
    assert_eq!((drafted().await, seen().await), (json!([instead, two]), [U256::ZERO, U256::from(8)]));
    // Changes of state and clock mine nothing, and are in the draft.
    let time = number(&node.block("latest").await["timestamp"]) + 1_000;
    node.result("/", "evm_setNextBlockTimestamp", json!([time])).await;
    node.result("/", "anvil_addBalance", json!([BOB, "0x64"])).await;
    assert_eq!(node.height().await, 0);
    assert_eq!((drafted().await, seen().await), (json!([instead, two]), [U256::from(100), U256::from(108)]));
    assert_eq!(number(&node.block("pending").await["timestamp"]), time);
    // A simulation goes on from there.
    let simulated =
        json!([{ "blockStateCalls": [{ "calls": [{ "from": BOB, "to": WHALE, "value": "0x1" }] }] }, "pending"]);
    let simulated = node.result("/standard", "eth_simulateV1", simulated).await;
    assert_eq!(simulated[0]["calls"][0]["status"], "0x1", "{simulated}");
    // A transaction that is dropped is out of it.
    let saved = node.result("/", "evm_snapshot", json!([])).await;
    node.result("/", "anvil_dropTransaction", json!([two])).await;
    let call = json!([{ "from": ALICE, "to": WHALE, "nonce": "0x1", "gas": "0x186a0" }]);
    let logging = node.result("/", "eth_sendTransaction", call).await;
    assert_eq!(drafted().await, json!([instead, logging]));
    node.result("/", "evm_mine", json!([])).await;
    let mined = node.block("latest").await;
    assert_eq!((&mined["transactions"], number(&mined["timestamp"])), (&json!([instead, logging]), time));
    assert_eq!(drafted().await, json!([]));
    // Subscribers hear of the block once, and of no draft.
    assert_eq!(one_socket.notification(&heads).await["hash"], mined["hash"]);
    node.result("/", "evm_mine", json!([])).await;
    assert_eq!(one_socket.notification(&heads).await["number"], hex(2));
    let log = other.notification(&logs).await;
    assert_eq!((&log["transactionHash"], &log["removed"]), (&logging, &json!(false)));
    // The saved state comes back, and what waits is drafted on it.
    let again = send(ALICE, 2, 1, 1_000).await;
    assert_eq!(node.result("/", "evm_revert", json!([saved])).await, true);
    assert_eq!((node.height().await, drafted().await), (0, json!([])), "{again} waits for a nonce");
    let log = other.notification(&logs).await;
    assert_eq!((&log["transactionHash"], &log["removed"]), (&logging, &json!(true)), "it was told once");
    let first = send(ALICE, 0, 3, 1_000).await;
    assert_eq!(drafted().await, json!([first]));
    // Mined on arrival, all that waits has its blocks.
    let second = send(ALICE, 1, 3, 1_000).await;
    node.result("/", "evm_setAutomine", json!([true])).await;
    for hash in [first, second, again] {
        let receipt = node.result("/", "eth_getTransactionReceipt", json!([hash])).await;
        assert_eq!(receipt["status"], "0x1", "{receipt}");
    }
    assert_eq!((node.height().await, drafted().await), (3, json!([])));
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_mined_in_detail_and_the_chain_id_changes() {
    let node = testing();
    // Reverts with the text "no": MSTORE of Error(string), and REVERT.
    let reverting = bytes!(
        "7f08c379a0000000000000000000000000000000000000000000000000000000005f5260206004526002602452616e6f60f01b60445260645ffd"
    );
    node.result("/", "anvil_setCode", json!([WHALE, reverting])).await;
    // Returns the word at slot 5: PUSH1 5 SLOAD PUSH0 MSTORE PUSH1 32 PUSH0 RETURN.
    let other = address!("0x00000000000000000000000000000000000ba1e1");
    node.result("/", "anvil_setCode", json!([other, "0x6005545f5260205ff3"])).await;
    for (index, to) in [WHALE, other].into_iter().enumerate() {
        let call = json!([{ "from": ALICE, "to": to, "gas": "0x20000", "nonce": hex(index as u64) }]);
        node.result("/", "eth_sendTransaction", call).await;
    }
    let blocks = node.result("/", "evm_mine_detailed", json!([{ "blocks": 2 }])).await;
    let transactions = blocks[0]["transactions"].as_array().expect("transactions");
    assert_eq!((blocks.as_array().map(Vec::len), transactions.len()), (Some(2), 2));
    assert_eq!(transactions[0]["revertReason"], "no");
    assert_eq!(transactions[1]["output"], json!(B256::ZERO));
    assert_eq!(transactions[1]["blockNumber"], "0x1");
    assert_eq!(node.result("/", "anvil_mine_detailed", json!([])).await[0]["number"], "0x3");

    node.result("/", "anvil_setChainId", json!([5])).await;
    assert_eq!(node.result("/", "eth_chainId", json!([])).await, "0x5");
    assert_eq!(node.result("/", "net_version", json!([])).await, "5");
    let sent = node.result("/", "eth_sendTransaction", json!([{ "from": ALICE, "to": BOB, "value": "0x1" }])).await;
    node.result("/", "evm_mine", json!([])).await;
    assert_eq!(node.result("/", "eth_getTransactionByHash", json!([sent])).await["chainId"], "0x5");
    // CHAINID MSTORE RETURN.
    let code = json!([{ "to": WHALE }, "latest", { (WHALE.to_string()): { "code": "0x465f5260205ff3" } }]);
    assert_eq!(node.result("/", "eth_call", code).await, json!(B256::with_last_byte(5)));
    assert_eq!(node.error("/", "anvil_setChainId", json!([0])).await["code"], -32602);
}

#[tokio::test(flavor = "multi_thread")]
async fn balances_and_allowances_of_tokens_are_set_where_the_token_reads_them() {
    let node = TestNode::start(&["--testing", "--world"]);
    let trading = node.node.info().trading.expect("the trading world");
    let read = async |to: Address, data: Bytes| {
        node.result("/", "eth_call", json!([{ "to": to, "data": data }, "latest"])).await
    };
    let word = |address: Address| address.into_word();
    let balance_of = Bytes::from([&[0x70, 0xa0, 0x82, 0x31], word(WHALE).as_slice()].concat());
    let allowance = Bytes::from([&[0xdd, 0x62, 0xed, 0x3e], word(WHALE).as_slice(), word(BOB).as_slice()].concat());
    for token in [trading.alpha, trading.weth] {
        node.result("/", "anvil_dealERC20", json!([WHALE, token, "0x1234"])).await;
        assert_eq!(read(token, balance_of.clone()).await, json!(B256::from(U256::from(0x1234))));
        node.result("/", "anvil_setERC20Allowance", json!([WHALE, BOB, token, "0x77"])).await;
        assert_eq!(read(token, allowance.clone()).await, json!(B256::from(U256::from(0x77))));
    }
    let error = node.error("/", "hardhat_dealERC20", json!([WHALE, BOB, "0x1"])).await;
    assert_eq!(error["message"], format!("no slot of {BOB} is what it answers: set its storage by anvil_setStorageAt"));
}
