//! State at blocks that are older than those that a node retains, or than the one at which it began.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use alloy_consensus::TxReceipt;
use alloy_primitives::{Address, B256};
use serde_json::{Value, json};

use super::{
    built::{Built, ETHEREUM, SOMEBODY, STORE, store, transfer},
    head,
    receipts::with_log_fields,
    serve,
    stage::launch,
    start,
};
use crate::{
    remote_state::{Proxy, ProxyReply, refused},
    support::{TestNode, hex, shared},
    upstream::SmallUpstream,
};

/// The blocks of the chain, the first of which is the one at which it begins.
const BLOCKS: u64 = 12;

/// Flags for the states of two blocks.
const KEPT: [&str; 4] = ["--keep-blocks", "2", "--flashblocks-ahead", "1"];

/// Starts a node on the newest block of a chain whose blocks send their number to an account, and store it.
async fn chain(flags: &[&str]) -> (SmallUpstream, TestNode, Vec<Built>) {
    let mut blocks = vec![Built::ethereum()];
    for number in 1..BLOCKS {
        let on = blocks.last().unwrap();
        let nonce = 2 * (number - 1);
        let next = on.next(vec![transfer(ETHEREUM, nonce, number), store(ETHEREUM, nonce + 1, number)], 1);
        blocks.push(next);
    }
    let upstream = serve(&[&blocks[0]]).await;
    for block in &blocks[1..] {
        upstream.push(with_log_fields(block));
    }
    let places: HashMap<B256, B256> =
        blocks[1..].iter().flat_map(|block| [0, 1].map(|at| (block.tx_hash(at), block.hash()))).collect();
    upstream.script(move |method, params| {
        let hash: B256 = serde_json::from_value(params[0].clone()).ok()?;
        let place = || places.get(&hash).map_or(Value::Null, |block| json!({"hash": hash, "blockHash": block}));
        (method == "eth_getTransactionByHash").then(|| Ok(place()))
    });
    let node = start(&upstream.ws_url(), &blocks[0].config, flags).await;
    head(&node, blocks.last().unwrap().hash()).await;
    (upstream, node, blocks)
}

/// Returns the call of a contract without code, made of the override's, that returns a slot of [`STORE`] and a balance.
fn look() -> (Value, Value) {
    // SELFBALANCE of the account that is overridden tells its balance, SLOAD the slot of its storage.
    let call = json!({"to": STORE, "data": "0x"});
    let overrides = json!({STORE.to_string(): {"code": format!("0x5f545f5273{}31602052604060 00f3", SOMEBODY.to_string().trim_start_matches("0x")).replace(' ', "")}});
    (call, overrides)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_run_at_any_block_of_which_the_upstream_has_the_state() {
    let (upstream, node, blocks) = chain(&KEPT).await;
    let (call, overrides) = look();
    let word = |value: u64| format!("{:064x}", value);
    for (number, block) in (0..BLOCKS).zip(&blocks) {
        let sum: u64 = (1..=number).sum();
        let expected = format!("0x{}{}", word(number), word(sum));
        for selector in [json!(hex(number)), json!({"blockHash": block.hash()}), json!({"blockNumber": hex(number)})] {
            let params = json!([call, selector, overrides]);
            assert_eq!(node.result("/", "eth_call", params).await, expected, "{selector}");
        }
        let simulated = json!([{"blockStateCalls": [{"calls": [call], "stateOverrides": overrides}]}, hex(number)]);
        let simulated = node.result("/", "eth_simulateV1", simulated).await;
        assert_eq!(simulated[0]["calls"][0]["returnData"], expected);
        assert_eq!(simulated[0]["number"], hex(number + 1));
        assert_eq!(simulated[0]["parentHash"], json!(block.hash()));
        let gas = json!([{"from": blocks[1].sender(0), "to": SOMEBODY, "value": "0x1"}, hex(number)]);
        assert_eq!(node.result("/", "eth_estimateGas", gas).await, "0x5208");
    }
    // Each value is fetched once for a block that is named by its hash.
    let asked = upstream.asked(&format!("eth_getStorageAt {STORE:#x}"));
    let again = json!([call, {"blockHash": blocks[3].hash()}, overrides]);
    assert_eq!(node.result("/", "eth_call", again).await, format!("0x{}{}", word(3), word(6)));
    assert_eq!(upstream.asked(&format!("eth_getStorageAt {STORE:#x}")), asked);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_run_in_the_middle_of_any_block() {
    let (_upstream, node, blocks) = chain(&KEPT).await;
    let (call, overrides) = look();
    let word = |value: u64| format!("{:064x}", value);
    let sender = blocks[1].sender(0);
    for number in 1..BLOCKS {
        let block = &blocks[usize::try_from(number).unwrap()];
        for index in 0..=2 {
            // The first transaction sends the block's number, the second stores it.
            let before: u64 = (1..number).sum();
            let sent = before + if index > 0 { number } else { 0 };
            let stored = if index > 1 { number } else { number - 1 };
            let seen = format!("0x{}{}", word(stored), word(sent));
            for name in [json!({"blockHash": block.hash()}), json!({"blockNumber": hex(number)})] {
                let mut at = name.clone();
                at["transactionIndex"] = json!(index);
                let read = async |method: &str, params: Value| node.result("/", method, params).await;
                assert_eq!(read("eth_call", json!([call, at, overrides])).await, seen, "{at}");
                assert_eq!(read("eth_getBalance", json!([SOMEBODY, at])).await, hex(sent));
                assert_eq!(read("eth_getTransactionCount", json!([sender, at])).await, hex(2 * (number - 1) + index));
                assert_eq!(read("eth_getStorageAt", json!([STORE, "0x0", at])).await, format!("0x{}", word(stored)));
                let values = read("eth_getStorageValues", json!([{STORE.to_string(): ["0x0"]}, at])).await;
                assert_eq!(values[format!("{STORE:#x}")][0], format!("0x{}", word(stored)));
                let simulated = json!([{"blockStateCalls": [{"calls": [call], "stateOverrides": overrides}]}, at]);
                for path in ["/", "/standard"] {
                    let simulated = node.result(path, "eth_simulateV1", simulated.clone()).await;
                    assert_eq!(simulated[0]["calls"][0]["returnData"], seen);
                    // The calls run in the block itself.
                    assert_eq!(simulated[0]["number"], hex(number));
                    assert_eq!(simulated[0]["parentHash"], json!(block.header().parent_hash));
                }
                let searched = json!([{
                    "blockStateCalls": [{"calls": [call], "stateOverrides": overrides}], "objective": "gasUsed",
                    "vary": [{"path": "blocks[0].calls[0].value", "values": ["0x0"]}], "outputs": ["returnData"],
                }, at]);
                let found = read("presim_search", searched).await;
                assert_eq!(found["result"][0]["calls"][0]["returnData"], seen, "{found}");
                let context = json!({"blockNumber": name, "transactionIndex": index});
                let many = read("eth_callMany", json!([[{"transactions": [call]}], context, overrides])).await;
                assert_eq!(many[0][0]["value"], seen);
            }
        }
        let whole = json!([SOMEBODY, {"blockNumber": hex(number), "transactionIndex": -1}]);
        assert_eq!(node.result("/", "eth_getBalance", whole).await, hex((1..=number).sum::<u64>()));
        let beyond = json!([SOMEBODY, {"blockNumber": hex(number), "transactionIndex": 3}]);
        let error = node.error("/", "eth_getBalance", beyond).await;
        let text = format!("transactionIndex: 3: out of range: block {number} has 2 transactions");
        assert_eq!((&error["code"], &error["message"]), (&json!(-32602), &json!(text)));
    }
    // Where a block is named, a state within one is none.
    let within = json!({"blockNumber": "0x3", "transactionIndex": 1});
    for (method, params) in [
        ("eth_getBlockByNumber", json!([within, false])),
        ("eth_getProof", json!([SOMEBODY, [], within])),
        ("debug_traceBlockByNumber", json!([within])),
    ] {
        let error = node.error("/", method, params).await;
        assert!(error["message"].as_str().unwrap().contains("transactionIndex"), "{method}: {error}");
    }
    let both = json!({"snapshotId": "0x1", "transactionIndex": 1});
    assert_eq!(node.error("/", "eth_getBalance", json!([SOMEBODY, both])).await["code"], -32602);
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_of_any_block_are_traced() {
    let (_upstream, node, blocks) = chain(&KEPT).await;
    let tracer = json!({"tracer": "callTracer"});
    for number in 1..BLOCKS {
        let block = &blocks[usize::try_from(number).unwrap()];
        let (hashes, receipts) = ([block.tx_hash(0), block.tx_hash(1)], block.receipts());
        let mut used = 0;
        let all = node.result("/", "debug_traceBlockByNumber", json!([hex(number), tracer])).await;
        assert_eq!(all.as_array().map(Vec::len), Some(2));
        for (index, hash) in hashes.iter().enumerate() {
            let trace = node.result("/", "debug_traceTransaction", json!([hash, tracer])).await;
            assert_eq!((&all[index]["result"], &all[index]["txHash"]), (&trace, &json!(hash)));
            let cumulative = receipts[index].cumulative_gas_used();
            assert_eq!(trace["gasUsed"], hex(cumulative - std::mem::replace(&mut used, cumulative)));
        }
        assert_eq!(all[0]["result"]["value"], hex(number));
        let by_hash = node.result("/", "debug_traceBlockByHash", json!([block.hash(), tracer])).await;
        assert_eq!(by_hash, all);
        let flat = node.result("/", "trace_transaction", json!([hashes[0]])).await;
        assert_eq!((&flat[0]["action"]["value"], &flat[0]["blockNumber"]), (&json!(hex(number)), &json!(number)));
        let flat = node.result("/", "trace_block", json!([hex(number)])).await;
        assert_eq!(flat.as_array().map(Vec::len), Some(2));
        let replayed = node.result("/", "trace_replayBlockTransactions", json!([hex(number), ["trace"]])).await;
        assert_eq!(replayed.as_array().map(Vec::len), Some(2));
    }
    let nobody = B256::repeat_byte(9);
    assert_eq!(node.error("/", "debug_traceTransaction", json!([nobody])).await["message"], "transaction not found");
    let error = node.error("/", "debug_traceBlockByHash", json!([nobody])).await;
    assert_eq!(error["message"], format!("block {nobody} not found"));
    assert_eq!(node.error("/", "debug_traceBlockByNumber", json!([hex(BLOCKS + 1)])).await["code"], -32000);
    assert_eq!(
        node.error("/", "debug_traceBlockByNumber", json!(["0x0"])).await["message"],
        "genesis is not traceable"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn state_that_the_upstream_does_not_have_is_refused_at_once() {
    let (upstream, node, blocks) = chain(&KEPT).await;
    let (call, overrides) = look();
    let at = |selector: Value| json!([call, selector, overrides]);
    upstream.refuse("eth_getBalance", Some((-32000, "missing trie node 00 (path ) state 0x00 is not available")));
    let asked = upstream.asked("eth_getBalance");
    for selector in [json!("0x3"), json!({"blockHash": blocks[3].hash()})] {
        let error = node.error("/", "eth_call", at(selector)).await;
        assert_eq!(error["code"], 4444, "{error}");
        assert!(error["message"].as_str().unwrap().contains("the state of block 3"), "{error}");
    }
    assert_eq!(upstream.asked("eth_getBalance"), asked + 2, "it is not asked again");
    upstream.refuse("eth_getBalance", None);
    node.result("/", "eth_call", at(json!("0x3"))).await;
    // A block that nobody has, one to come, and one of a devnet's past are unknown as ever.
    for selector in [json!({"blockHash": B256::repeat_byte(9)}), json!(hex(BLOCKS + 1))] {
        assert_eq!(node.error("/", "eth_call", at(selector)).await["code"], -32000);
    }
    let quiet = TestNode::quiet();
    let nobody = json!([{"to": Address::ZERO}, {"blockHash": B256::repeat_byte(9)}]);
    assert_eq!(quiet.error("/", "eth_call", nobody).await["code"], -32000);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_chain_is_the_same_on_a_node_that_asks_one_that_has_it() {
    let Some(folder) = shared("vectors/execution-apis") else { return };
    let (genesis, chain) = (folder.join("genesis.json"), folder.join("chain.rlp"));
    let genesis = genesis.to_str().unwrap();
    let whole = TestNode::start(&["--genesis", genesis, "--chain", chain.to_str().unwrap()]);
    let upstream = whole.url("/standard");
    let asking = launch(&upstream, None, &[&["--genesis", genesis][..], &KEPT].concat()).await.unwrap();
    let head = whole.height().await;
    let mut traced = 0;
    for height in 1..=head {
        let same = async |method: &str, params: Value| {
            let [one, other] = [
                asking.call("/standard", method, params.clone()).await,
                whole.call("/standard", method, params.clone()).await,
            ];
            assert_eq!(one, other, "{height}: {method} {params}");
            other["result"].clone()
        };
        let at = json!(hex(height));
        let block = whole.result("/standard", "eth_getBlockByNumber", json!([at, true])).await;
        let receipts = whole.result("/standard", "eth_getBlockReceipts", json!([at])).await;
        let (transactions, receipts) = (block["transactions"].as_array().unwrap(), receipts.as_array().unwrap());
        for (index, (tx, receipt)) in transactions.iter().zip(receipts).enumerate() {
            let trace = same("debug_traceTransaction", json!([tx["hash"], {"tracer": "callTracer"}])).await;
            assert_eq!(trace["gasUsed"], receipt["gasUsed"], "{height}/{index}");
            let context = json!({"blockNumber": at, "transactionIndex": index});
            let call = json!({"from": tx["from"], "to": tx["to"], "data": tx["input"], "value": tx["value"]});
            same("eth_callMany", json!([[{"transactions": [call]}], context])).await;
            same("eth_getBalance", json!([tx["from"], context])).await;
            same("eth_getTransactionCount", json!([tx["from"], context])).await;
            let outputs = ["status", "gasUsed", "returnData", "error"];
            let simulated = json!([{"blockStateCalls": [{"calls": [call]}], "outputs": outputs}, context]);
            same("presim_simulate", simulated).await;
            traced += 1;
        }
    }
    assert!(traced > 50, "only {traced} transactions");
}

/// With proofs, a node that asks has one more round trip for the same values. An archive without proofs is refused with the reason.
#[tokio::test(flavor = "multi_thread")]
async fn past_state_is_proven_where_proofs_are_asked_for() {
    let Some(folder) = shared("vectors/execution-apis") else { return };
    let (genesis, chain) = (folder.join("genesis.json"), folder.join("chain.rlp"));
    let genesis = genesis.to_str().unwrap();
    let whole = TestNode::start(&["--genesis", genesis, "--chain", chain.to_str().unwrap()]);
    let head = whole.height().await;
    let proofs = |request: &Value| {
        let is = |call: &Value| call["method"] == "eth_getProof";
        request.as_array().map_or_else(|| is(request), |all| all.iter().any(is))
    };
    let (asked, lacks) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let script = {
        let (asked, lacks) = (asked.clone(), lacks.clone());
        move |_, request: &Value| {
            if !proofs(request) {
                return ProxyReply::Pass;
            }
            asked.fetch_add(1, Relaxed);
            match lacks.load(Relaxed) {
                true => ProxyReply::Answer(200, refused(request, "proofs are not available").to_string()),
                false => ProxyReply::Pass,
            }
        }
    };
    let proxy = Proxy::start(&whole, Duration::ZERO, script).await;
    let flags = [&["--genesis", genesis, "--verify-proofs"][..], &KEPT].concat();
    let asking = launch(&proxy.url, None, &flags).await.unwrap();
    let mut compared = 0;
    for height in (1..head - 3).step_by(3) {
        let at = json!(hex(height));
        let block = whole.result("/standard", "eth_getBlockByNumber", json!([at, true])).await;
        let before = asked.load(Relaxed);
        for (index, tx) in block["transactions"].as_array().unwrap().iter().enumerate() {
            let call = json!({"from": tx["from"], "to": tx["to"], "data": tx["input"], "value": tx["value"]});
            let context = json!({"blockNumber": at, "transactionIndex": index});
            for (method, params) in [
                ("eth_getBalance", json!([tx["from"], at])),
                ("eth_call", json!([call, at])),
                ("eth_getTransactionCount", json!([tx["from"], context])),
            ] {
                let [one, other] = [&asking, &whole].map(|node| node.call("/standard", method, params.clone()));
                assert_eq!(one.await, other.await, "{height}: {method} {params}");
            }
            compared += 1;
        }
        let has_any = block["transactions"].as_array().is_some_and(|all| !all.is_empty());
        assert!(!has_any || asked.load(Relaxed) > before, "{height}: nothing was proven");
    }
    assert!(compared > 10, "only {compared} transactions");
    lacks.store(true, Relaxed);
    let error = asking.error("/standard", "eth_getBalance", json!([SOMEBODY, "0x2"])).await;
    assert!(error["message"].as_str().unwrap().contains("proof"), "{error}");
}
