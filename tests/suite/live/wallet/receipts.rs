//! Receipts that come late, and outcomes that stay what they were through restarts and many blocks.

use std::time::Duration;

use alloy_primitives::{U256, bytes};
use serde_json::{Value, json};

use super::{LiveWallet, call, mined};
use crate::{
    live::{
        built::{SOMEBODY, STORE},
        head,
    },
    process::eventually,
    support::hex,
};

/// The metric of outcomes that are stored for good.
const SETTLED: &str = "presim_wallet_settled_total{fate=\"mined\"}";
/// Longer than any test lasts.
const NEVER: Duration = Duration::from_secs(3_600);

/// Has a node with a wallet find, after a restart, that a batch was mined, while the upstream does not tell `hidden`.
async fn mined_unseen(flags: &[&str], hidden: &'static [&'static str]) -> (LiveWallet, String) {
    let mut live = LiveWallet::ethereum(flags).await;
    let id = live.send(0, false, &[call(STORE, 0, bytes!("07"))]).await;
    let sent = live.sent(1).await;
    live.stop_and_forget().await;
    let block = live.mine_unseen(mined(sent));
    live.upstream.lie(move |method, params, truth| match hidden.contains(&method) {
        // Of blocks, only those are hidden that are asked for with their transactions.
        true if method == "eth_getTransactionReceipt" || params[0] == block && params[1] == true => Value::Null,
        _ => truth,
    });
    live.start(flags).await;
    (live, id)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_that_is_late_by_many_blocks_is_asked_for_again_until_it_comes() {
    let (mut live, id) = mined_unseen(&[], &["eth_getTransactionReceipt"]).await;
    // A block of the upstream has the transaction, so nothing else can have used its nonce.
    let mut asked = live.upstream.asked("eth_getTransactionReceipt");
    for _ in 0..3 {
        live.mine(vec![]).await;
        live.upstream.is_asked("eth_getTransactionReceipt", asked + 1).await;
        asked = live.upstream.asked("eth_getTransactionReceipt");
        let status = live.status(&id).await;
        assert_eq!((&status["status"], status["capabilities"]["transactions"].get("replaced")), (&json!(100), None));
    }
    live.upstream.well();
    live.settled(&id, 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_counts_as_replaced_is_confirmed_by_a_late_receipt() {
    let hidden = &["eth_getTransactionReceipt", "eth_getBlockByNumber"];
    let (mut live, id) = mined_unseen(&["--wallet-receipt-wait-ms", "100"], hidden).await;
    // Neither its receipt nor its block is told, and its nonce is used.
    let status = live.settled(&id, 400).await;
    assert_eq!(status["capabilities"]["transactions"]["replaced"][0]["by"], Value::Null, "{status}");
    // Such an outcome is not stored for good, even if the block in which it was seen is final.
    let number = live.newest.number() + 1;
    live.upstream.change(|chain| chain.finalized = Some(number));
    live.mine(vec![]).await;
    live.mine(vec![]).await;
    live.upstream.well();
    let status = live.settled(&id, 200).await;
    assert_eq!(status["capabilities"].get("transactions"), None, "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_is_not_frozen_by_a_number_of_blocks() {
    let flags = ["--keep-blocks", "20", "--wallet-final-s", "3600"];
    let mut live = LiveWallet::ethereum(&flags).await;
    let id = live.send(0, false, &[call(STORE, 0, bytes!("07"))]).await;
    let sent = live.sent(1).await;
    let before = live.newest.clone();
    live.mine(mined(sent.clone())).await;
    live.settled(&id, 200).await;
    for _ in 0..8 {
        live.mine(vec![]).await;
    }
    assert_eq!(live.node().metric(SETTLED), 0.0);
    // The upstream has called no block final, so another branch may still come.
    let mut branch = vec![before.next(vec![], 2)];
    for _ in 0..9 {
        branch.push(branch[branch.len() - 1].next(vec![], 2));
    }
    live.upstream.reorganise(branch.iter().map(|built| built.block.clone()).collect());
    live.newest = branch.pop().unwrap();
    head(live.node(), live.newest.hash()).await;
    live.settled(&id, 100).await;
    live.mine(mined(sent)).await;
    live.settled(&id, 200).await;

    // The outcome outlives its block, which is not retained any more.
    for _ in 0..24 {
        live.mine(vec![]).await;
    }
    live.settled(&id, 200).await;
    assert_eq!(live.node().metric(SETTLED), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_is_stored_for_good_after_the_time_that_the_operator_has_set() {
    let mut live = LiveWallet::ethereum(&["--wallet-final-s", "1"]).await;
    let id = live.send(0, false, &[call(STORE, 0, bytes!("07"))]).await;
    let sent = live.sent(1).await;
    live.mine(mined(sent)).await;
    live.settled(&id, 200).await;
    while live.node().metric(SETTLED) == 0.0 {
        live.mine(vec![]).await;
    }
    live.settled(&id, 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_confirmed_is_confirmed_after_a_restart_before_the_upstream_says_so() {
    let mut live = LiveWallet::ethereum(&[]).await;
    let mut ids = Vec::new();
    for value in 0..8 {
        ids.push(live.send(0, false, &[call(SOMEBODY, value, bytes!())]).await);
    }
    let sent = live.sent(8).await;
    let before = live.newest.clone();
    live.mine(mined(sent)).await;
    for id in &ids {
        live.settled(id, 200).await;
    }
    live.stop_and_forget().await;
    live.mine_unseen(vec![]);
    live.upstream.slow("eth_getTransactionReceipt", NEVER);
    live.start(&[]).await;
    for id in &ids {
        let status = live.status(id).await;
        assert_eq!((&status["status"], status["receipts"][0]["status"].as_str()), (&json!(200), Some("0x1")));
    }
    // A branch without them takes the place of the chain while the node is down.
    live.stop_and_forget().await;
    let mut branch = vec![before.next(vec![], 2)];
    for _ in 0..4 {
        branch.push(branch[branch.len() - 1].next(vec![], 2));
    }
    live.upstream.reorganise(branch.iter().map(|built| built.block.clone()).collect());
    live.newest = branch.pop().unwrap();
    live.start(&[]).await;
    for id in &ids {
        live.settled(id, 100).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn receipts_of_many_batches_are_asked_for_together() {
    let mut live = LiveWallet::ethereum(&[]).await;
    let mut ids = Vec::new();
    for value in 0..20 {
        ids.push(live.send(0, false, &[call(SOMEBODY, value, bytes!())]).await);
    }
    let sent = live.sent(20).await;
    live.stop_and_forget().await;
    live.mine_unseen(mined(sent));
    let asked = live.upstream.asked("eth_getTransactionReceipt");
    live.upstream.slow("eth_getTransactionReceipt", Duration::from_millis(100));
    live.start(&[]).await;
    live.settled(&ids[0], 200).await;
    assert!(live.upstream.asked("eth_getTransactionReceipt") >= asked + 20, "one after another");
    for id in &ids {
        live.settled(id, 200).await;
    }
    assert_eq!(live.newest.balance(SOMEBODY), U256::from((0..20).sum::<u64>()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_that_was_found_is_not_replaced_by_a_guess() {
    let mut live = LiveWallet::ethereum(&[]).await;
    let id = live.send(0, false, &[call(SOMEBODY, 1, bytes!())]).await;
    let sent = live.sent(1).await;
    live.mine(mined(sent)).await;
    live.settled(&id, 200).await;
    let block = hex(live.newest.number());
    live.stop_and_forget().await;
    live.mine_unseen(vec![]);
    // The upstream has lost the receipt, and the block with its transactions.
    live.upstream.lie(move |method, params, truth| match method {
        "eth_getTransactionReceipt" => Value::Null,
        "eth_getBlockByNumber" if params[0] == block && params[1] == true => Value::Null,
        _ => truth,
    });
    live.start(&["--wallet-receipt-wait-ms", "100", "--wallet-final-s", "1"]).await;
    eventually("it is stored for good", async || (live.node().metric(SETTLED) == 1.0).then_some(())).await;
    let status = live.status(&id).await;
    assert_eq!((&status["status"], &status["receipts"][0]["status"]), (&json!(200), &json!("0x1")), "{status}");
}
