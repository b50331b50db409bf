//! The rules that the tests have brought, each by itself, as a client sees it.

use std::sync::Arc;

use alloy_primitives::{Address, B256, U256};
use presim::testing::{
    chain::{BlockHashes, ChainSpec, genesis_block},
    ledger::Snapshot,
    source::chain_file::import_bytes,
    state::{CodeCache, LocalWorld},
};
use serde_json::json;

use crate::support::{TestNode, number};

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

/// EIP-779: the balances move before the block's transactions, and its first ten blocks carry the fork's name.
#[test]
fn the_first_block_of_the_dao_fork_carries_its_name() {
    let genesis: alloy_genesis::Genesis = serde_json::from_value(json!({
        "config": {"chainId": 1, "homesteadBlock": 0, "daoForkBlock": 1, "daoForkSupport": true},
        "alloc": {"0xd4fe7bc31cedb7bfb8a345f31e668033056b2728": {"balance": "0x7"}},
        "gasLimit": "0x1000000", "difficulty": "0x20000",
    }))
    .unwrap();
    let spec = ChainSpec::new(genesis.config.clone(), std::time::Duration::from_secs(12)).unwrap();
    let world = LocalWorld::of_genesis(&genesis, &CodeCache::new(1 << 20));
    let block = genesis_block(&genesis, &spec, world.state_root());
    let mut hashes = BlockHashes::default();
    hashes.push(0, block.hash());
    let base = Snapshot::at_head(world, Arc::new(block), hashes);
    let block = |extra: &'static [u8]| {
        let header = alloy_consensus::Header {
            parent_hash: base.head_hash(),
            number: 1,
            timestamp: 10,
            gas_limit: 0x1000000,
            difficulty: U256::from(0x20000),
            extra_data: extra.into(),
            ..Default::default()
        };
        let body = alloy_consensus::BlockBody::<presim::testing::chain::ChainTx>::default();
        alloy_rlp::encode(alloy_consensus::Block { header, body })
    };
    let error = |extra| import_bytes(&spec, base.copy(), &block(extra), |_, _| {}).err().unwrap().to_string();
    assert!(error(b"").contains("block 1: extraData: expected 0x64616f2d686172642d666f726b"), "{}", error(b""));
    // With its name it fails by its state root alone, which this test leaves out.
    assert!(error(b"dao-hard-fork").contains("block 1: stateRoot"), "{}", error(b"dao-hard-fork"));
}
