//! Blocks, receipts and transactions in raw bytes: those that the hashes and roots of the chain are of.

use alloy_eips::eip2718::{Decodable2718, Encodable2718};
use alloy_primitives::{B256, Bytes, keccak256};
use alloy_rlp::{BufMut, Decodable};
use alloy_trie::root::ordered_trie_root_with_encoder;
use presim::testing::{chain::ChainTx, source::devnet::world::dev_signers};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    sending::{blob_tx, blobs, hashes, key, raw_blob, sign},
    support::{PATHS, TestNode, hex, items, number},
};

const UNKNOWN: &str = "0x7777777777777777777777777777777777777777777777777777777777777777";

fn typed<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

/// Checks that the raw bytes of a block are those of the block that `eth_getBlockByNumber` returns. Returns the number
/// of its transactions.
async fn is_encoded(node: &TestNode, path: &str, at: &Value) -> usize {
    let calls = [
        ("eth_getBlockByNumber", json!([at, false])),
        ("eth_getHeaderByNumber", json!([at])),
        ("debug_getRawHeader", json!([at])),
        ("debug_getRawBlock", json!([at])),
        ("debug_getRawReceipts", json!([at])),
    ];
    let [block, header, raw_header, raw_block, receipts] = node.batch(path, &calls).await.try_into().unwrap();
    let without = |block: &Value| {
        let mut block = block.clone();
        for key in ["size", "transactions", "uncles", "withdrawals"] {
            block.as_object_mut().unwrap().remove(key);
        }
        block
    };
    assert_eq!(header, without(&block));
    assert_eq!(json!(keccak256(typed::<Bytes>(&raw_header))), block["hash"], "{at} on {path}");

    let rlp: Bytes = typed(&raw_block);
    assert_eq!(rlp.len() as u64, number(&block["size"]));
    let decoded = alloy_consensus::Block::<ChainTx>::decode(&mut &rlp[..]).unwrap();
    assert_eq!(json!(decoded.header.hash_slow()), block["hash"]);
    let uncles: Vec<B256> = decoded.body.ommers.iter().map(alloy_consensus::Header::hash_slow).collect();
    assert_eq!(json!(uncles), block["uncles"]);
    let transactions = &decoded.body.transactions;
    assert_eq!(json!(transactions.iter().map(ChainTx::tx_hash).collect::<Vec<_>>()), block["transactions"]);

    let receipts: Vec<Bytes> = typed(&receipts);
    assert_eq!(receipts.len(), transactions.len());
    let root = ordered_trie_root_with_encoder(&receipts, |receipt, out| out.put_slice(receipt));
    assert_eq!(json!(root), block["receiptsRoot"], "{at} on {path}");
    transactions.len()
}

/// Checks that each transaction of a sealed block has the same raw bytes by its hash and by its place.
async fn transactions_are_encoded(node: &TestNode, path: &str, at: u64) {
    let block = node.result(path, "eth_getBlockByNumber", json!([hex(at), false])).await;
    for (index, hash) in items(&block["transactions"]).iter().enumerate() {
        let index = hex(index as u64);
        let calls = [
            ("debug_getRawTransaction", json!([hash])),
            ("eth_getRawTransactionByHash", json!([hash])),
            ("eth_getRawTransactionByBlockNumberAndIndex", json!([hex(at), index])),
            ("eth_getRawTransactionByBlockHashAndIndex", json!([block["hash"], index])),
        ];
        let all = node.batch(path, &calls).await;
        assert!(all.iter().all(|raw| *raw == all[0]), "{all:?}");
        let raw: Bytes = typed(&all[0]);
        assert_eq!(json!(keccak256(&raw)), *hash);
        assert_eq!(json!(ChainTx::decode_2718_exact(&raw).unwrap().tx_hash()), *hash);
    }
}

/// The chain has blocks of every fork, uncles, withdrawals, and transactions of every type.
#[tokio::test(flavor = "multi_thread")]
async fn each_block_of_the_official_chain_has_its_hash_and_its_roots_in_raw_bytes() {
    let Some(node) = TestNode::official() else { return };
    let head = node.node.info().head;
    for path in PATHS {
        for at in 0..=head {
            is_encoded(&node, path, &hex(at)).await;
            transactions_are_encoded(&node, path, at).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_block_being_built_is_encoded_as_it_is_shown() {
    let node = TestNode::start(&["--sub-block-ms", "10"]);
    node.sealed(2).await;
    let mut transactions = 0;
    while transactions == 0 {
        transactions = is_encoded(&node, "/", &json!("pending")).await;
    }
    is_encoded(&node, "/standard", &json!("pending")).await;
    let head = node.node.snapshots().load().head().number();
    is_encoded(&node, "/", &hex(head)).await;
    transactions_are_encoded(&node, "/", head).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_empty_bytes_and_an_unknown_hash_is_an_error() {
    let node = TestNode::quiet();
    for path in PATHS {
        for (method, params, expected) in [
            ("debug_getRawHeader", json!(["0x777"]), json!("0x")),
            ("debug_getRawBlock", json!(["0x777"]), json!("0x")),
            ("debug_getRawReceipts", json!(["0x777"]), Value::Null),
            ("debug_getRawTransaction", json!([UNKNOWN]), json!("0x")),
            ("eth_getRawTransactionByHash", json!([UNKNOWN]), json!("0x")),
            ("eth_getRawTransactionByBlockNumberAndIndex", json!(["0x0", "0x0"]), json!("0x")),
            ("eth_getRawTransactionByBlockHashAndIndex", json!([UNKNOWN, "0x0"]), json!("0x")),
            ("eth_getHeaderByNumber", json!(["0x777"]), Value::Null),
            ("eth_getHeaderByHash", json!([UNKNOWN]), Value::Null),
        ] {
            assert_eq!(node.result(path, method, params).await, expected, "{method} on {path}");
        }
        for method in ["debug_getRawHeader", "debug_getRawBlock", "debug_getRawReceipts"] {
            let genesis = node.result(path, "eth_getBlockByNumber", json!(["earliest"])).await;
            let by_hash = node.result(path, method, json!([genesis["hash"]])).await;
            assert_eq!(by_hash, node.result(path, method, json!(["earliest"])).await, "{method} on {path}");
            let error = node.error(path, method, json!([UNKNOWN])).await;
            let expected = format!("header not found: no block with hash {UNKNOWN}");
            assert_eq!(error, json!({"code": -32000, "message": expected}), "{method} on {path}");
            let error = node.error(path, method, json!(["2"])).await;
            let message = error["message"].as_str().unwrap();
            assert!(error["code"] == -32602 && message.contains("params[0]: \"2\""), "{error}");
        }
        let error = node.error(path, "debug_getRawTransaction", json!([&UNKNOWN[2..]])).await;
        assert_eq!(error["code"], -32602, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_transaction_is_encoded_without_its_blobs_in_the_pool_and_in_a_block() {
    let cells = blobs(b"cells").build_7594().unwrap();
    let tx = blob_tx(0, hashes(&cells));
    let (bare, sent) = (sign(tx.clone(), &key(0)), raw_blob(tx, cells, &key(0)));
    let still = TestNode::still(&dev_signers().unwrap(), &[]);
    let moving = TestNode::start(&["--traffic", "0", "--sub-block-ms", "50"]);
    still.result("/", "eth_sendRawTransaction", json!([sent])).await;
    moving.result("/", "eth_sendRawTransactionSync", json!([sent, 30_000])).await;
    for node in [still, moving] {
        for method in ["debug_getRawTransaction", "eth_getRawTransactionByHash"] {
            let raw: Bytes = typed(&node.result("/", method, json!([bare.tx_hash()])).await);
            assert_eq!(raw, bare.encoded_2718());
        }
    }
}
