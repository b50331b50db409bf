//! Receipts and provisional hashes on an upstream's chain.

use alloy_primitives::B256;
use serde_json::{Value, json};

use super::{
    built::{OP_CHAIN, store, transfer},
    follower, head,
    late::stage,
    stage::EVERY,
};
use crate::support::hex;

#[tokio::test(flavor = "multi_thread")]
async fn receipts_of_an_upstream_wait_on_standard_until_latest_has_their_block() {
    let (upstream, node) = follower().await;
    let newest = node.height().await;
    let (here, ahead) = (B256::repeat_byte(1), B256::repeat_byte(2));
    let place = move |hash: &Value| {
        let block = if *hash == json!(ahead) { newest + 1 } else { newest };
        json!({"blockHash": B256::repeat_byte(3), "blockNumber": hex(block), "transactionIndex": "0x0", "of": hash})
    };
    upstream.script(move |method, params| (method == "eth_getTransactionByHash").then(|| Ok(place(&params[0]))));
    upstream.lie(move |method, params, answer| match method {
        "eth_getTransactionReceipt" => place(&params[0]),
        "eth_getBlockReceipts" if [json!(here), json!(ahead)].contains(&params[0]) => json!([place(&params[0])]),
        _ => answer,
    });
    for method in ["eth_getTransactionReceipt", "eth_getBlockReceipts", "eth_getTransactionByHash"] {
        let told = async |path: &str, hash: B256| node.result(path, method, json!([hash])).await;
        let whole = |hash: B256| match method {
            "eth_getBlockReceipts" => json!([place(&json!(hash))]),
            _ => place(&json!(hash)),
        };
        for path in ["/", "/standard"] {
            assert_eq!(told(path, here).await, whole(here), "{method} on {path}");
        }
        assert_eq!(told("/", ahead).await, whole(ahead), "{method}");
        let waiting = match method {
            "eth_getTransactionByHash" => json!({
                "blockHash": null, "blockNumber": null, "blockTimestamp": null, "transactionIndex": null, "of": ahead,
            }),
            _ => Value::Null,
        };
        assert_eq!(told("/standard", ahead).await, waiting, "{method}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pre_confirmed_receipt_waits_here_and_its_hash_names_the_canonical_block() {
    let stage = stage(&["--keep-snapshots", "2"]).await;
    let (node, upstream) = (&stage.node, &stage.upstream);
    let second = stage.first.next(vec![transfer(OP_CHAIN, 0, 1), transfer(OP_CHAIN, 1, 1)], 0);
    let third = second.next(vec![transfer(OP_CHAIN, 2, 2), store(OP_CHAIN, 3, 5)], 0);
    stage.play(&[second, third.clone()], &[2, 1], EVERY).await;
    let hash = json!([third.tx_hash(1)]);
    let receipt = node.result("/", "eth_getTransactionReceipt", hash.clone()).await;
    assert_eq!(receipt["blockNumber"], hex(third.number()));
    assert_ne!(receipt["blockHash"], json!(third.hash()));
    let asked = upstream.asked("eth_getTransactionReceipt");
    assert_eq!(node.result("/standard", "eth_getTransactionReceipt", hash.clone()).await, Value::Null);
    let tx = node.result("/standard", "eth_getTransactionByHash", hash.clone()).await;
    assert_eq!((&tx["hash"], &tx["blockHash"]), (&hash[0], &Value::Null));
    // The deposit waits in no pool.
    let deposit = node.result("/standard", "eth_getTransactionReceipt", json!([third.tx_hash(0)])).await;
    assert_eq!(deposit, Value::Null);
    assert_eq!(upstream.asked("eth_getTransactionReceipt"), asked, "the node knows the receipts itself");

    upstream.push(third.block.clone());
    head(node, third.hash()).await;
    let told = node.result("/standard", "eth_getTransactionReceipt", hash.clone()).await;
    assert_eq!((&told["blockHash"], &told["transactionHash"]), (&json!(third.hash()), &hash[0]));
    // Further ahead than snapshots are retained.
    let mut newest = third.clone();
    for nonce in 4..7 {
        newest = newest.next(vec![transfer(OP_CHAIN, nonce, 1)], 0);
        upstream.push(newest.block.clone());
        head(node, newest.hash()).await;
    }
    let block = node.result("/", "eth_getBlockByHash", json!([receipt["blockHash"], false])).await;
    assert_eq!(block["hash"], json!(third.hash()));
}
