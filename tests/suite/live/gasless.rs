//! X Layer's gasless transactions on a live chain.

use alloy_primitives::{Bytes, U256};
use serde_json::json;

use super::{
    built::{Built, GASLESS_CONTRACT, SOMEBODY, gasless, sent_by},
    head,
    lagoon::applied,
    stage::LiveStage,
    start, until, with_usual,
};
use crate::{
    gasless::contract,
    op_chain::{BASE_FEE_VAULT, L1_FEE_VAULT, SEQUENCER_FEE_VAULT},
    support::{TestNode, hex},
    upstream::SmallUpstream,
};

/// Checks that a state of the node has the balances of a block.
async fn has_balances(node: &TestNode, block: &Built, at: &str) {
    let senders = ["f39fd6e51aad88f6f4ce6ab8827279cfffb92266", "70997970c51812dc3a010c7d01b50e0d17dc79c8"];
    let senders = senders.map(|sender| sender.parse().unwrap());
    for account in senders.into_iter().chain([SOMEBODY, BASE_FEE_VAULT, L1_FEE_VAULT, SEQUENCER_FEE_VAULT]) {
        let told = node.result("/", "eth_getBalance", json!([account, at])).await;
        assert_eq!(told, json!(block.balance(account)), "{account}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gasless_transaction_is_executed_in_sub_blocks_and_blocks_with_state_that_is_fetched() {
    let first = Built::x_layer(&contract(&[(SOMEBODY, &[], 21_000)]));
    let stage = LiveStage::new(first, SmallUpstream::url, &with_usual(&[])).await;
    // A sub-block asks for the contract, its code and its slot.
    let pays = |nonce| sent_by(1, 196, nonce, SOMEBODY, 7, Bytes::new());
    let one = stage.first.next(vec![gasless(0, 0), pays(0)], 1);
    let before = stage.upstream.asked("eth_getStorageAt");
    stage.server.send_json(&one.restated(0, 0, false));
    applied(&stage.node, 1, 0).await;
    assert!(stage.upstream.asked("eth_getStorageAt") > before, "the slot is fetched");
    has_balances(&stage.node, &one, "pending").await;
    let snapshot = stage.node.result("/", "presim_snapshot", json!([])).await;
    assert_eq!(snapshot["verified"], "full", "{snapshot}");
    stage.upstream.push(one.block.clone());
    head(&stage.node, one.hash()).await;
    // A block without sub-blocks.
    let two = one.next(vec![pays(1), gasless(0, 1)], 1);
    stage.upstream.push(two.block.clone());
    head(&stage.node, two.hash()).await;
    has_balances(&stage.node, &two, "latest").await;
    stage.never_fell();
    assert_eq!(stage.node.metric("presim_upstream_blocks_total{outcome=\"executed\"}"), 2.0);
    assert_eq!(stage.node.result("/", "presim_divergences", json!([])).await, json!([]));
    // A transaction that is sent goes on to the upstream.
    let sent = Bytes::from(alloy_eips::Encodable2718::encoded_2718(&gasless(0, 2)));
    stage.node.result("/", "eth_sendRawTransaction", json!([sent])).await;
    assert_eq!(stage.upstream.sent(), [sent]);
}

/// The contract's state is missing until the upstream gives it, and the answer is not that of an empty contract.
#[tokio::test(flavor = "multi_thread")]
async fn state_of_the_contract_that_is_missing_is_fetched_for_a_checked_call() {
    let first = Built::x_layer(&contract(&[(SOMEBODY, &[], 21_000)]));
    let upstream = super::serve(&[&first]).await;
    let node = start(&upstream.url(), &first.config, &[]).await;
    until(&node, "the head", |published| published.head().hash() == first.hash()).await;
    let own = json!(GASLESS_CONTRACT);
    assert_eq!(upstream.asked("eth_getStorageAt"), 0);
    let from = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";
    let call = |gas: u64| {
        let call = json!({ "from": from, "to": SOMEBODY, "value": "0x1", "gas": hex(gas), "gasPrice": "0x0" });
        json!([{ "blockStateCalls": [{ "calls": [call] }], "validation": true }, "latest"])
    };
    let ran = node.result("/", "eth_simulateV1", call(21_000)).await;
    assert_eq!(ran[0]["calls"][0]["status"], "0x1", "{ran}");
    assert!(upstream.asked("eth_getStorageAt") > 0, "{own}");
    let error = node.error("/", "eth_simulateV1", call(21_001)).await;
    assert_eq!(error["code"], -38012, "{error}");
    assert_ne!(first.balance(from.parse().unwrap()), U256::ZERO);
}
