//! The rules that the tests have brought, each by itself, as a client sees it.

use alloy_primitives::{Address, B256};
use serde_json::json;

use super::precompiled::{CALL_GAS, at, failing};
use crate::support::{TestNode, items, number};

const SENDER: Address = Address::repeat_byte(0xc0);

/// EIP-7610.
#[tokio::test(flavor = "multi_thread")]
async fn a_creation_where_there_is_storage_fails_and_takes_all_gas() {
    let node = TestNode::quiet();
    let created = SENDER.create(0);
    let slot = json!({B256::with_last_byte(1).to_string(): B256::with_last_byte(2)});
    for (storage, status, used) in [(json!({}), "0x1", None), (slot, "0x0", Some(0x40000))] {
        for traced in [false, true] {
            let payload = json!({
                "blockStateCalls": [{
                    "stateOverrides": {created.to_string(): {"state": storage}},
                    "calls": [{"from": SENDER, "input": "0x00", "gas": "0x40000"}, {"from": SENDER, "to": SENDER}],
                }],
                "traceTransfers": traced,
            });
            let blocks = node.result("/standard", "eth_simulateV1", json!([payload, "latest"])).await;
            let calls = &blocks[0]["calls"];
            assert_eq!(calls[0]["status"], status, "{calls}");
            assert!(used.is_none_or(|used| number(&calls[0]["gasUsed"]) == used), "{calls}");
            assert_eq!(calls[1]["status"], "0x1", "the nonce was used: {calls}");
        }
        let call = json!({"from": SENDER, "input": "0x00", "gas": "0x40000"});
        let options = json!({"tracer": "callTracer", "stateOverrides": {created.to_string(): {"state": storage}}});
        let trace = node.result("/standard", "debug_traceCall", json!([call, "latest", options])).await;
        assert_eq!(trace["error"].is_null(), status == "0x1", "an inspected run has the same rule: {trace}");
    }
}

/// EIP-2681; geth checks nonces before fees.
#[tokio::test(flavor = "multi_thread")]
async fn the_largest_nonce_is_invalid_where_nonces_are_checked() {
    let node = TestNode::quiet();
    let error = |tx: &'static str, state: &'static str| {
        let payload = json!({
            "blockStateCalls": [{
                "stateOverrides": {SENDER.to_string(): {"nonce": state, "balance": "0xffffffffffffffff"}},
                "calls": [{"from": SENDER, "to": SENDER, "nonce": tx}],
            }],
            "validation": true,
        });
        node.error("/standard", "eth_simulateV1", json!([payload, "latest"]))
    };
    assert_eq!(error("0xffffffffffffffff", "0xffffffffffffffff").await["code"], -32603);
    assert_eq!(error("0x1", "0x2").await["code"], -38010);
    assert_eq!(error("0x3", "0x2").await["code"], -38011);
    assert_eq!(error("0x2", "0x2").await["code"], -38012, "without a fee the base fee is too high");
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_of_no_account_is_refused() {
    let node = TestNode::quiet();
    for path in ["/", "/standard"] {
        let error = node.error(path, "eth_getStorageValues", json!([{}, "latest"])).await;
        assert_eq!(error["code"], -32602, "{error}");
        assert!(error["message"].as_str().unwrap().contains("params[0]: empty"), "{error}");
    }
}

/// EIP-1283 was active between Constantinople and Petersburg alone.
#[test]
fn a_genesis_in_constantinople_is_refused_by_the_eip_that_is_missing() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let genesis = json!({
        "config": {"chainId": 1, "homesteadBlock": 0, "constantinopleBlock": 0, "petersburgBlock": 10},
        "alloc": {}, "gasLimit": "0x1000000", "difficulty": "0x20000",
    });
    std::fs::write(file.path(), genesis.to_string()).unwrap();
    let error = TestNode::refusal(&["--genesis", file.path().to_str().unwrap()]);
    assert!(error.contains("config.petersburgBlock: 10") && error.contains("EIP-1283"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn precompiles_that_are_too_long_for_a_short_run_are_answered_by_a_longer_one() {
    let node = TestNode::quiet();
    let calls: Vec<_> = failing()
        .iter()
        .map(|(precompile, data)| json!({"to": at(*precompile), "input": data, "gas": format!("{CALL_GAS:#x}")}))
        .collect();
    for blocks in
        [json!([{"calls": calls}]), json!(calls.iter().map(|call| json!({"calls": [call]})).collect::<Vec<_>>())]
    {
        let blocks = node.result("/standard", "eth_simulateV1", json!([{"blockStateCalls": blocks}, "latest"])).await;
        let results: Vec<_> = items(&blocks).iter().flat_map(|block| items(&block["calls"]).to_vec()).collect();
        assert_eq!(results.len(), 3);
        for result in results {
            assert_eq!((&result["status"], number(&result["gasUsed"])), (&json!("0x0"), CALL_GAS), "{result}");
        }
    }
    for (call, (_, data)) in calls.iter().zip(failing()) {
        let error = node.error("/standard", "eth_call", json!([call, "latest"])).await;
        assert_eq!(error["code"], -32000, "{error} {data}");
    }
}
