//! The results of `wallet_getCallsStatus`, from the answer to the sealed block.

use alloy_consensus::TxEip1559;
use alloy_primitives::{B256, U256, bytes};
use presim::testing::wallet::BatchExecutor;
use serde_json::{Value, json};

use super::{
    NOBODY, QUICK, QUIET, REVERTER, WITNESS, WalletChain, account, batch, call, came, key, nonce, send, settled,
    status, status_when, watch_pool,
};
use crate::{
    sending::raw,
    support::{TestNode, items, number},
};

/// Checks that each receipt of a status equals that of `eth_getTransactionReceipt`.
async fn check_receipts(node: &TestNode, status: &Value) {
    for receipt in items(&status["receipts"]) {
        let whole = node.result("/", "eth_getTransactionReceipt", json!([receipt["transactionHash"]])).await;
        for field in ["status", "blockHash", "blockNumber", "gasUsed", "transactionHash"] {
            assert_eq!(receipt[field], whole[field], "{field}: {receipt} {whole}");
        }
        let logs = items(&whole["logs"]).iter();
        let logs: Vec<Value> =
            logs.map(|log| json!({"address": log["address"], "data": log["data"], "topics": log["topics"]})).collect();
        assert_eq!(receipt["logs"], Value::Array(logs), "{receipt} {whole}");
        assert_eq!(receipt.as_object().unwrap().len(), 6, "{receipt}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_confirmed_by_the_sub_block_that_has_it_and_then_by_the_sealed_block() {
    let (chain, from) = (WalletChain::new(), account(1));
    // Leaves time to read the status before, between and after sub-blocks.
    let node = chain.node(&[&["--sub-block-ms", "500", "--sub-blocks", "4"]]);
    let watch = watch_pool(&node).await;
    let begins = async || node.node.snapshots().newest().open.as_ref().filter(|open| open.index == 0).map(drop);
    node.when("a block begins", begins).await;
    let calls = [call(WITNESS, 1, bytes!("aa")), call(REVERTER, 0, bytes!()), call(NOBODY, 1, bytes!())];
    let (id, _) = send(&node, batch(from, false, &calls)).await;
    let before = status(&node, &id).await;
    assert_eq!((&before["status"], before.get("receipts")), (&json!(100), None), "{before}");
    let hashes: Vec<B256> =
        came(&node, &watch).await.into_iter().map(|hash| serde_json::from_value(hash).unwrap()).collect();
    assert_eq!(hashes.len(), 3);

    // The first publication with the transactions also has the status.
    node.mined(&json!(hashes[0])).await;
    let mined = status(&node, &id).await;
    assert_eq!(mined["status"], 600, "{mined}");
    let open = node.node.snapshots().newest();
    assert_eq!(open.head.number() + 1, number(&mined["receipts"][0]["blockNumber"]), "the block is still being built");
    let listed: Vec<B256> = items(&mined["receipts"])
        .iter()
        .map(|receipt| serde_json::from_value(receipt["transactionHash"].clone()).unwrap())
        .collect();
    assert_eq!(listed, hashes);
    check_receipts(&node, &mined).await;

    node.sealed(open.head.number() + 1).await;
    let sealed = status(&node, &id).await;
    assert_eq!(sealed["status"], 600, "{sealed}");
    let block = node.result("/", "eth_getBlockByNumber", json!([sealed["receipts"][0]["blockNumber"], false])).await;
    for receipt in items(&sealed["receipts"]) {
        assert_eq!(receipt["blockHash"], block["hash"], "{sealed}");
    }
    check_receipts(&node, &sealed).await;
    let without = crate::support::without_block_hash;
    assert_eq!(without(&sealed), without(&mined));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_transactions_are_replaced_has_failed() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.lasting(&[&QUIET]);
    let replacement = |nonce| TxEip1559 {
        chain_id: 31_337,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: 100_000_000_000,
        max_priority_fee_per_gas: 50_000_000_000,
        to: NOBODY.into(),
        value: U256::from(1),
        ..TxEip1559::default()
    };
    let one = [call(WITNESS, 0, bytes!("01"))];
    let (alone, _) = send(&node, batch(from, false, &one)).await;
    let (partly, _) = send(&node, batch(from, false, &[one.clone(), one.clone()].concat())).await;
    // An atomic batch, and the deployment of its executor.
    let (atomic, _) = send(&node, batch(account(2), true, &one)).await;
    for (key, nonce) in [(key(1), 0), (key(1), 2), (key(2), 1)] {
        node.result("/", "eth_sendRawTransaction", json!([raw(replacement(nonce), &key)])).await;
    }
    // The batches have not failed while the replacements wait, because those could still be dropped.
    assert_eq!((nonce(&node, from).await, nonce(&node, account(2)).await), (3, 2));
    node.node.stop();

    let node = chain.lasting(&[&QUICK]);
    for (id, code, receipts) in [(&alone, 400, 0), (&partly, 600, 1), (&atomic, 400, 0)] {
        // The remaining transactions are mined in order.
        status_when(&node, &partly, |status| status["status"] != 100).await;
        let status = settled(&node, id).await;
        let count = status.get("receipts").map_or(0, |receipts| items(receipts).len());
        assert_eq!((&status["status"], count), (&json!(code), receipts), "{id}: {status}");
        check_receipts(&node, &json!({"receipts": status.get("receipts").cloned().unwrap_or(json!([]))})).await;
    }
    assert_eq!(nonce(&node, from).await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_atomic_batch_whose_deployment_is_replaced_is_not_confirmed() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.lasting(&[&QUIET]);
    let (id, _) = send(&node, batch(from, true, &[call(WITNESS, 5, bytes!("01"))])).await;
    let tx = TxEip1559 {
        chain_id: 31_337,
        nonce: 0,
        gas_limit: 21_000,
        max_fee_per_gas: 100_000_000_000,
        max_priority_fee_per_gas: 50_000_000_000,
        to: NOBODY.into(),
        ..TxEip1559::default()
    };
    node.result("/", "eth_sendRawTransaction", json!([raw(tx, &key(1))])).await;
    node.node.stop();

    let node = chain.lasting(&[&QUICK]);
    let status = settled(&node, &id).await;
    assert_eq!(status["status"], 500, "{status}");
    // The status stays the same after the executor is deployed.
    let (next, _) = send(&node, batch(account(2), true, &[call(WITNESS, 0, bytes!("02"))])).await;
    assert_eq!(settled(&node, &next).await["status"], 200);
    assert_eq!(self::status(&node, &id).await["status"], 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_atomic_batch_whose_deployment_is_replaced_is_confirmed_where_another_deployed() {
    let chain = WalletChain::new();
    let node = chain.lasting(&[&QUIET]);
    let one = [call(WITNESS, 5, bytes!("01"))];
    let (id, _) = send(&node, batch(account(1), true, &one)).await;
    let (other, _) = send(&node, batch(account(2), true, &one)).await;
    let mut tx = TxEip1559 {
        chain_id: 31_337,
        nonce: 0,
        gas_limit: 21_000,
        max_fee_per_gas: 100_000_000_000,
        max_priority_fee_per_gas: 1_500_000_000,
        to: NOBODY.into(),
        ..TxEip1559::default()
    };
    node.result("/", "eth_sendRawTransaction", json!([raw(tx.clone(), &key(1))])).await;
    // This deployment pays most, so it is mined first.
    let deployment = BatchExecutor::new(None).deployment().unwrap();
    tx = TxEip1559 {
        gas_limit: 3_000_000,
        max_priority_fee_per_gas: 50_000_000_000,
        to: deployment.to.unwrap().into(),
        input: deployment.data,
        ..tx
    };
    node.result("/", "eth_sendRawTransaction", json!([raw(tx, &key(3))])).await;
    node.node.stop();
    let node = chain.lasting(&[&QUICK]);
    for id in [&id, &other] {
        let status = settled(&node, id).await;
        assert_eq!((&status["status"], items(&status["receipts"][0]["logs"]).len()), (&json!(200), 1), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_stays_what_it_was_when_the_state_of_its_block_is_gone() {
    let (chain, from) = (WalletChain::new(), account(1));
    let flags = ["--sub-block-ms", "20", "--sub-blocks", "1", "--keep-blocks", "2"];
    let node = chain.lasting(&[&flags]);
    let calls = [call(WITNESS, 0, bytes!("01"))];
    let (sequential, _) = send(&node, batch(from, false, &calls)).await;
    let (atomic, _) = send(&node, batch(from, true, &calls)).await;
    for id in [&sequential, &atomic] {
        let first = settled(&node, id).await;
        assert_eq!(first["status"], 200, "{first}");
        node.sealed(number(&first["receipts"][0]["blockNumber"]) + 10).await;
    }
    let before = (status(&node, &sequential).await, status(&node, &atomic).await);
    assert_eq!((&before.0["status"], &before.1["status"]), (&json!(200), &json!(200)), "{before:?}");
    check_receipts(&node, &before.0).await;
    node.node.stop();
    let node = chain.lasting(&[&flags]);
    let after = (status(&node, &sequential).await, status(&node, &atomic).await);
    assert_eq!(after, before);
}
