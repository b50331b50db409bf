//! Traces of real transactions: they equal what happened, on imported chains, devnets and chains of the OP stack.

use std::fs;

use alloy_primitives::{B256, U256, keccak256};
use serde_json::{Value, json};

use crate::{
    support::{TestNode, hex, items, number, shared},
    tracing::{ALPHA, PROBE, TRADER, swap},
};

/// Checks that a block's traces name the transactions of its receipts, in order, and use the same gas.
pub fn are_of(traces: &Value, receipts: &Value) {
    assert_eq!(items(traces).len(), items(receipts).len(), "{traces}");
    for (trace, receipt) in items(traces).iter().zip(items(receipts)) {
        assert_eq!(trace["txHash"], receipt["transactionHash"]);
        let gas = &trace["result"];
        let used = gas["gas"].as_u64().filter(|_| gas.get("structLogs").is_some());
        assert_eq!(used.unwrap_or_else(|| number(&gas["gasUsed"])), number(&receipt["gasUsed"]), "{receipt}");
        let failed = gas["failed"].as_bool().unwrap_or(gas.get("error").is_some());
        assert_eq!(failed, receipt["status"] == "0x0", "{trace}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_trace_of_the_official_chain_uses_the_gas_of_its_receipt() {
    let Some(node) = TestNode::official() else { return };
    let head = node.height().await;
    let calls = json!({"tracer": "callTracer", "tracerConfig": {"withLog": true}});
    let mut traced = 0;
    for block in 1..=head {
        let receipts = node.result("/", "eth_getBlockReceipts", json!([hex(block)])).await;
        let steps = json!({"disableStack": true, "disableStorage": true});
        for options in [&calls, &steps] {
            are_of(&node.result("/", "debug_traceBlockByNumber", json!([hex(block), options])).await, &receipts);
        }
        let hash = node.block(hex(block)).await["hash"].take();
        let traces = node.result("/", "debug_traceBlockByHash", json!([hash, calls])).await;
        for (trace, receipt) in items(&traces).iter().zip(items(&receipts)) {
            let one = node.result("/", "debug_traceTransaction", json!([trace["txHash"], calls])).await;
            assert_eq!(one, trace["result"]);
            assert_eq!((&one["from"], logs(&one)), (&receipt["from"], items(&receipt["logs"]).len()));
            traced += 1;
        }
    }
    assert!(head == 54 && traced > 100, "{traced} transactions of {head} blocks");
}

/// Counts the logs of all frames.
fn logs(frame: &Value) -> usize {
    let own = frame["logs"].as_array().map_or(0, Vec::len);
    own + frame["calls"].as_array().into_iter().flatten().map(logs).sum::<usize>()
}

/// The vectors are checked by their schema alone, but struct logs are the same in every client.
#[tokio::test(flavor = "multi_thread")]
async fn struct_logs_are_those_of_the_official_vectors() {
    let Some(node) = TestNode::official() else { return };
    let Some(folder) = shared("vectors/execution-apis") else { return };
    let mut compared = 0;
    for method in ["debug_traceBlockByNumber", "debug_traceBlockByHash", "debug_traceTransaction"] {
        for file in fs::read_dir(folder.join(method)).unwrap() {
            let text = fs::read_to_string(file.unwrap().path()).unwrap();
            let lines = |mark: &'static str| text.lines().filter_map(move |line| line.strip_prefix(mark));
            for (asked, expected) in lines(">> ").zip(lines("<< ")) {
                let (_, got) = node.post("/standard", asked.to_owned()).await;
                let (got, expected): (Value, Value) =
                    (serde_json::from_str(&got).unwrap(), serde_json::from_str(expected).unwrap());
                assert_eq!(got, expected, "{asked}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 4, "{compared}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_tracer_sees_a_transaction_in_the_context_of_its_block() {
    let Some(node) = TestNode::official() else { return };
    let head = node.result("/", "eth_getBlockByNumber", json!(["latest", true])).await;
    let block = &head["number"];
    let tracers = json!({"callTracer": {}, "flatCallTracer": {}, "4byteTracer": {}, "noopTracer": {},
        "prestateTracer": {"diffMode": true}});
    let options = json!({"tracer": "muxTracer", "tracerConfig": tracers});
    let traces = node.result("/", "debug_traceBlockByNumber", json!([block, options])).await;
    let receipts = node.result("/", "eth_getBlockReceipts", json!([block])).await;
    assert!(!items(&traces).is_empty());
    for (index, (trace, receipt)) in items(&traces).iter().zip(items(&receipts)).enumerate() {
        let flat = &trace["result"]["flatCallTracer"][0];
        assert_eq!((&flat["blockHash"], &flat["transactionHash"]), (&head["hash"], &receipt["transactionHash"]));
        assert_eq!((&flat["transactionPosition"], &flat["blockNumber"]), (&json!(index), &json!(number(block))));
        assert_eq!(trace["result"]["noopTracer"], json!({}));
        // The producer of the block gets the tip, and the sender pays all the gas.
        let diff = &trace["result"]["prestateTracer"];
        let change = |address: &Value| {
            let address = address.as_str().unwrap();
            let at = |time: &str| diff[time][address]["balance"].as_str().map(|text| text.parse::<U256>().unwrap());
            (at("pre").unwrap_or_default(), at("post").unwrap_or_default())
        };
        let [gas, price, base_fee] =
            [&receipt["gasUsed"], &receipt["effectiveGasPrice"], &head["baseFeePerGas"]].map(number);
        let (before, after) = change(&head["miner"]);
        assert_eq!(after.saturating_sub(before), U256::from(gas) * U256::from(price - base_fee), "{trace}");
        let (before, after) = change(&receipt["from"]);
        let tx = &head["transactions"][index];
        if receipt["status"] == "0x1" && tx["blobVersionedHashes"].is_null() {
            let value: U256 = tx["value"].as_str().unwrap().parse().unwrap();
            assert_eq!(before - after, U256::from(gas) * U256::from(price) + value, "{trace}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_block_being_built_is_traced_as_far_as_it_is_built() {
    let node = TestNode::start(&["--sub-block-ms", "20", "--sub-blocks", "10000", "--traffic", "200"]);
    let mut call = swap(U256::from(1));
    call["gas"] = json!("0x100000");
    let hash = node.result("/", "eth_sendTransaction", json!([call])).await;
    node.mined(&hash).await;
    let options = json!({"tracer": "callTracer"});
    let calls = [
        ("debug_traceBlockByNumber", json!(["pending", options])),
        ("eth_getBlockReceipts", json!(["pending"])),
        ("debug_traceTransaction", json!([hash, options])),
        ("eth_getBlockByNumber", json!(["pending", false])),
    ];
    let [traces, receipts, one, block] = <[Value; 4]>::try_from(node.batch("/", &calls).await).unwrap();
    are_of(&traces, &receipts);
    let own = items(&traces).iter().find(|trace| trace["txHash"] == hash).expect("it is in the block");
    assert_eq!(own["result"], one);
    assert_eq!(one["from"], TRADER.to_string().to_lowercase());
    assert!(one["calls"].is_array() && items(&receipts).len() > 1, "{} transactions", items(&receipts).len());
    let by_hash = node.result("/", "debug_traceBlockByHash", json!([block["hash"], options])).await;
    assert_eq!(by_hash, traces, "the hash names that moment of the block");
}

#[tokio::test(flavor = "multi_thread")]
async fn sealed_blocks_of_a_devnet_are_traced_while_their_states_are_kept() {
    let node = TestNode::start(&["--sub-block-ms", "10", "--sub-blocks", "4", "--traffic", "50", "--keep-blocks", "3"]);
    node.sealed(6).await;
    let options = json!({"tracer": "callTracer"});
    let calls = [
        ("debug_traceBlockByNumber", json!(["latest", options])),
        ("eth_getBlockReceipts", json!(["latest"])),
        ("eth_blockNumber", json!([])),
    ];
    let answers = node.batch("/", &calls).await;
    are_of(&answers[0], &answers[1]);
    let kept = number(&answers[2]) - 3;
    let error = node.error("/", "debug_traceBlockByNumber", json!([hex(kept)])).await;
    assert_eq!(error["code"], -32000);
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("--keep-blocks") && message.contains("is not traceable"), "{message}");
    let old = node.block(hex(kept)).await;
    if let Some(transaction) = items(&old["transactions"]).first() {
        let error = node.error("/", "debug_traceTransaction", json!([transaction])).await;
        assert!(error["message"].as_str().unwrap().contains("--keep-blocks"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trace_of_a_block_is_bounded_in_memory_and_in_bytes() {
    let Some(folder) = shared("vectors/execution-apis") else { return };
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let chain = ["--genesis", &file("genesis.json"), "--chain", &file("chain.rlp")];
    for (flag, bytes) in [("--max-trace-bytes", "10000"), ("--max-response", "10000")] {
        let node = TestNode::start(&[&chain[..], &[flag, bytes]].concat());
        let error = node.error("/", "debug_traceBlockByNumber", json!(["0x1"])).await;
        assert_eq!(error["code"], -32005, "{flag}: {error}");
        // Another tracer needs less.
        node.result("/", "debug_traceBlockByNumber", json!(["0x1", {"tracer": "noopTracer"}])).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storage_is_listed_page_by_page_in_the_order_of_its_hashed_keys() {
    let node = TestNode::quiet();
    let page = async |start: &Value, most: u64| {
        node.result("/", "debug_storageRangeAt", json!(["pending", 0, ALPHA, start, most])).await
    };
    let all = page(&json!("0x"), 1000).await;
    let slots = all["storage"].as_object().unwrap();
    assert!(all["nextKey"].is_null() && slots.len() > 7, "{all}");
    for (hash, slot) in slots {
        let key: B256 = serde_json::from_value(slot["key"].clone()).unwrap();
        assert_eq!(hash.parse::<B256>().unwrap(), keccak256(key));
        assert_eq!(slot["value"], node.result("/", "eth_getStorageAt", json!([ALPHA, key, "latest"])).await);
    }
    let (mut start, mut listed) = (json!("0x"), Vec::new());
    while !start.is_null() {
        let one = page(&start, 3).await;
        assert!(one["storage"].as_object().unwrap().len() == 3 || one["nextKey"].is_null());
        listed.extend(one["storage"].as_object().unwrap().clone());
        start = one["nextKey"].clone();
    }
    assert_eq!(json!(listed.into_iter().collect::<serde_json::Map<_, _>>()), all["storage"]);
    let none = page(&json!("0x"), 0).await;
    assert_eq!((&none["storage"], &none["nextKey"]), (&json!({}), &json!(slots.keys().min().unwrap())));
    let empty = node.result("/", "debug_storageRangeAt", json!(["pending", "0x0", PROBE, "0x", 1])).await;
    assert_eq!(empty, json!({"storage": {}, "nextKey": null}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storage_is_listed_as_it_was_before_a_transaction() {
    let Some(node) = TestNode::official() else { return };
    let options = json!({"tracer": "prestateTracer", "tracerConfig": {"diffMode": true}});
    let mut compared = 0;
    for block in 1..=20 {
        let traces = node.result("/", "debug_traceBlockByNumber", json!([hex(block), options])).await;
        for (index, trace) in items(&traces).iter().enumerate() {
            let post = trace["result"]["post"].as_object().unwrap();
            for (contract, changed) in post.iter().filter(|(_, account)| account.get("storage").is_some()) {
                let at = async |index: usize| {
                    let params = json!([hex(block), index, contract, "0x", 1000]);
                    node.result("/", "debug_storageRangeAt", params).await["storage"].take()
                };
                let (before, after) = (at(index).await, at(index + 1).await);
                for (key, value) in changed["storage"].as_object().unwrap() {
                    let hash = keccak256(key.parse::<B256>().unwrap()).to_string();
                    assert_eq!(after[&hash], json!({"key": key, "value": value}));
                    assert_ne!(before[&hash]["value"], *value);
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 0, "no transaction stores anything");
    let error = node.error("/", "debug_storageRangeAt", json!(["0x2", 1000, PROBE, "0x", 1])).await;
    assert!(error["message"].as_str().unwrap().starts_with("params[1]: 1000: out of range"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_in_the_chain_is_not_traced() {
    let node = TestNode::quiet();
    let unknown = format!("0x{:064x}", 1);
    let genesis = node.block("0x0").await["hash"].take();
    for (method, params, message) in [
        ("debug_traceBlockByNumber", json!(["0x0"]), "genesis is not traceable".to_owned()),
        ("debug_traceBlockByHash", json!([genesis]), "genesis is not traceable".to_owned()),
        ("debug_traceBlockByNumber", json!(["0x63"]), "block #99 not found".to_owned()),
        ("debug_traceBlockByHash", json!([unknown]), format!("block {unknown} not found")),
        ("debug_traceTransaction", json!([unknown]), "transaction not found".to_owned()),
    ] {
        let error = node.error("/", method, params.clone()).await;
        assert_eq!(error, json!({"code": -32000, "message": message}), "{method} {params}");
    }
    // Overrides are for calls. geth ignores them.
    let options = json!({"stateOverrides": {PROBE.to_string(): {}}});
    let error = node.error("/", "debug_traceBlockByNumber", json!(["0x0", options])).await;
    assert_eq!(error["code"], -32602);
    assert!(error["message"].as_str().unwrap().starts_with("params[1].stateOverrides: "), "{error}");
    assert_eq!(node.error("/standard", "debug_traceBlockByNumber", json!(["0x0", options])).await["code"], -32000);
    let error = node.error("/", "debug_traceTransaction", json!([unknown, {"tracer": "none"}])).await;
    assert!(error["message"].as_str().unwrap().starts_with("params[1].tracer: "), "{error}");
}
