//! Lagoon on a live chain: canonical blocks and sub-blocks with refunds of gas.

use alloy_eips::Encodable2718;
use alloy_primitives::{Address, Bytes, hex, keccak256};
use presim::chain::{BASE_FEE_VAULT, OPERATOR_FEE_VAULT};
use serde_json::json;

use super::{
    built::{Built, OP_CHAIN, SOMEBODY, sent_by, transfer},
    head, refused,
    stage::serve,
    start, until,
};
use crate::{
    op_chain::{SEQUENCER_FEE_VAULT, post_exec},
    support::{BOUND, TestNode, hex, items},
    upstream::SmallUpstream,
};

/// Pushes a block to the upstream, and waits until the node has it.
async fn follows(node: &TestNode, block: &Built, upstream: &SmallUpstream) {
    upstream.push(block.block.clone());
    head(node, block.hash()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canonical_block_with_refunds_is_executed_and_stays_cached() {
    let first = Built::lagoon();
    let upstream = serve(&[&first]).await;
    let node = start(&upstream.url(), &first.config, &[]).await;
    let txs = |nonce| vec![transfer(OP_CHAIN, nonce, 5), sent_by(1, OP_CHAIN, nonce, SOMEBODY, 6, Bytes::new())];
    let mut block = first.next_refunded(txs(0), &[(1, 5_000), (2, 20_000)], 1);
    follows(&node, &block, &upstream).await;
    // `null` is accepted for a transaction without a refund, and the receipts are not even asked for.
    for at in 1..4 {
        let next = block.next_refunded(txs(at), &[(2, 1_000 * at)], 1);
        let before = ["eth_getBalance", "eth_getProof", "eth_getStorageAt", "eth_getBlockReceipts"]
            .map(|method| upstream.asked(method));
        follows(&node, &next, &upstream).await;
        let after = ["eth_getBalance", "eth_getProof", "eth_getStorageAt", "eth_getBlockReceipts"]
            .map(|method| upstream.asked(method));
        assert_eq!(before, after, "no state is fetched again, and no receipts");
        for account in [BASE_FEE_VAULT, SEQUENCER_FEE_VAULT, OPERATOR_FEE_VAULT, SOMEBODY] {
            let told = node.result("/", "eth_getBalance", json!([account, "latest"])).await;
            assert_eq!(told, json!(format!("{:#x}", next.balance(account))), "{account}");
        }
        let snapshot = node.result("/", "presim_snapshot", json!([])).await;
        assert_eq!(snapshot["verified"], "full", "{snapshot}");
        block = next;
    }
    assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"executed\"}"), 4.0);
    assert_eq!(node.result("/", "presim_divergences", json!([])).await, json!([]));
    let told = node.result("/standard", "eth_getBlockByNumber", json!(["latest", false])).await;
    assert_eq!(told["gasUsed"], hex(block.header().gas_used));
    // The type is not forwarded, either.
    let raw = Bytes::from(post_exec(9, &[(1, 1)]).encoded_2718());
    for method in ["eth_sendRawTransaction", "eth_sendRawTransactionSync"] {
        let error = refused(&node, method, json!([raw]), -32000, BOUND).await;
        assert_eq!(error, "transaction type not supported: 0x7d");
    }
    assert!(upstream.sent().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_block_and_a_payload_of_another_version_are_taken_as_the_upstream_has_them() {
    for (payload, is_invalid) in [
        // A block of another number, and a refund of more than the gas.
        (post_exec(7, &[(1, 5_000)]).encoded_2718(), true),
        (post_exec(1, &[(1, 21_001)]).encoded_2718(), true),
        // Version 2, and version 1 with a fourth field.
        (hex!("7dc80201c5c401821388").to_vec(), false),
        (hex!("7dc90101c5c401821388c0").to_vec(), false),
    ] {
        let first = Built::lagoon();
        let upstream = serve(&[&first]).await;
        let node = start(&upstream.url(), &first.config, &[]).await;
        let next = first.next(vec![transfer(OP_CHAIN, 0, 5)], 1);
        let mut block = next.block.clone();
        let hash = keccak256(&payload);
        let input = Bytes::from(payload[1..].to_vec());
        block.transactions.push(json!({
            "hash": hash, "type": "0x7d", "blockHash": next.hash(), "from": Address::ZERO, "gas": "0x0", "value": "0x0",
            "input": input, "blockNumber": "0x1", "transactionIndex": "0x2",
        }));
        // The header names the transactions that it has.
        let all: Vec<Bytes> = next.raw().iter().cloned().chain([payload.clone().into()]).collect();
        let root = alloy_trie::root::ordered_trie_root_encoded(&all);
        let mut header = next.header().clone();
        header.transactions_root = root;
        let named = header.hash_slow();
        block.fields["transactionsRoot"] = json!(root);
        block.fields["hash"] = json!(named);
        (block.hash, block.receipts) = (named, None);
        upstream.push(block);
        head(&node, named).await;
        assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, "0x5", "{input}");
        let snapshot = node.result("/", "presim_snapshot", json!([])).await;
        assert_eq!(snapshot["verified"], "none", "{input}: {snapshot}");
        let divergences = node.result("/", "presim_divergences", json!([])).await;
        assert_eq!(items(&divergences).len(), usize::from(is_invalid), "{input}: {divergences}");
    }
}

/// The state of an upstream that a restarted node knows has the refunds.
#[tokio::test(flavor = "multi_thread")]
async fn the_cache_of_an_upstreams_state_has_the_settled_balances() {
    let first = Built::lagoon();
    let upstream = serve(&[&first]).await;
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--data-dir", dir.path().to_str().unwrap()];
    let node = start(&upstream.url(), &first.config, &flags).await;
    let txs = |nonce| vec![transfer(OP_CHAIN, nonce, 5)];
    let second = first.next_refunded(txs(0), &[(1, 5_000)], 1);
    follows(&node, &second, &upstream).await;
    node.node.stop();
    let node = start(&upstream.url(), &first.config, &flags).await;
    until(&node, "the head", |published| published.head().hash() == second.hash()).await;
    let before = upstream.asked("eth_getBalance");
    assert_eq!(
        node.result("/", "eth_getBalance", json!([BASE_FEE_VAULT, "latest"])).await,
        json!(format!("{:#x}", second.balance(BASE_FEE_VAULT)))
    );
    assert_eq!(upstream.asked("eth_getBalance"), before, "it is in the cache");
    let third = second.next_refunded(txs(1), &[(1, 4_000)], 1);
    follows(&node, &third, &upstream).await;
    assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"executed\"}"), 1.0);
}
