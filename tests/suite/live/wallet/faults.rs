//! Faults under a wallet on a live chain: an upstream that is slow or disagrees about a nonce, and a disk that is full.

use std::time::{Duration, Instant};

use alloy_consensus::Transaction;
use alloy_primitives::{U256, bytes};
use serde_json::json;

use super::{LiveWallet, call, key, mined, reason};
use crate::{
    disk::Disk,
    live::built::{Built, ETHEREUM, SOMEBODY, sent_by},
    power_loss::FULL,
};

/// Longer than any test lasts.
const NEVER: Duration = Duration::from_secs(3_600);

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_taken_from_a_slow_upstream_and_its_status_tells_of_the_time_out() {
    let mut live = LiveWallet::ethereum(&["--upstream-timeout-ms", "300"]).await;
    // The state that the batches read is known.
    live.send(0, false, &[call(SOMEBODY, 1, bytes!())]).await;
    let first = live.sent(1).await.pop().unwrap();
    // Each answer is late, but in time.
    live.upstream.delay(Duration::from_millis(100));
    let late = live.send(0, false, &[call(SOMEBODY, 2, bytes!())]).await;
    let waits = live.status_when(&late, |status| reason(status).contains("the upstream has it")).await;
    assert_eq!(waits["status"], 100, "{waits}");
    live.upstream.delay(Duration::ZERO);

    // No answer comes in time: neither the nonce, nor whether the transaction is taken.
    for method in ["eth_getTransactionCount", "eth_sendRawTransaction"] {
        live.upstream.slow(method, NEVER);
    }
    let began = Instant::now();
    let id = live.send(0, false, &[call(SOMEBODY, 4, bytes!())]).await;
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(300), "it waits for the nonce, and did so for {took:?}");
    let waits = live.status_when(&id, |status| reason(status).contains("eth_sendRawTransaction")).await;
    assert!(reason(&waits).contains("no answer within"), "{waits}");
    assert_eq!((&waits["status"], live.sent(2).await.len()), (&json!(100), 2), "{waits}");
    // The requests from before are never answered. New ones are sent.
    for method in ["eth_getTransactionCount", "eth_sendRawTransaction"] {
        live.upstream.slow(method, Duration::ZERO);
    }
    let sent = live.sent(3).await;
    assert_eq!(sent.iter().map(Transaction::nonce).collect::<Vec<_>>(), [0, 1, 2], "the known nonces count");
    assert_eq!(sent[0], first);
    live.mine(mined(sent)).await;
    live.settled(&late, 200).await;
    live.settled(&id, 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_finds_a_nonce_too_low_knows_a_block_that_settles_the_batch() {
    let mut live = LiveWallet::ethereum(&[]).await;
    live.upstream.refuse("eth_sendRawTransaction", Some((-32000, "nonce too low: next nonce 1, tx nonce 0")));
    let id = live.send(0, false, &[call(SOMEBODY, 1, bytes!())]).await;
    let waits = live.status_when(&id, |status| reason(status).contains("nonce too low: next nonce 1")).await;
    assert_eq!((&waits["status"], live.upstream.sent().len()), (&json!(100), 0), "{waits}");
    // The block comes, with a foreign transaction of this nonce.
    let foreign = sent_by(0, ETHEREUM, 0, SOMEBODY, 3, bytes!());
    let by = *foreign.tx_hash();
    live.mine(vec![foreign]).await;
    let status = live.settled(&id, 400).await;
    assert_eq!(status["capabilities"]["transactions"]["replaced"][0]["by"], json!(by), "{status}");

    // Or with the wallet's own, which the upstream has from before.
    live.upstream.refuse("eth_sendRawTransaction", None);
    let id = live.send(0, false, &[call(SOMEBODY, 1, bytes!())]).await;
    let own = live.sent(1).await;
    assert_eq!(own[0].nonce(), 1);
    live.upstream.refuse("eth_sendRawTransaction", Some((-32003, "nonce too low")));
    live.status_when(&id, |status| reason(status).contains("error -32003: nonce too low")).await;
    live.mine(mined(own)).await;
    live.settled(&id, 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_takes_no_batch_and_the_ones_before_go_on() {
    let disk = Disk::default();
    let mut live = LiveWallet::unstarted(Built::ethereum(), Some(disk.clone())).await;
    live.start(&["--log", "off"]).await;
    let id = live.send(0, false, &[call(SOMEBODY, 1, bytes!())]).await;
    let sent = live.sent(1).await;
    disk.fill();
    // The first finds out, and the next are refused before anything is signed.
    for more in [": it may still be sent after a restart of the node", ""] {
        let batch = live.batch(0, false, &[call(SOMEBODY, 2, bytes!())]);
        let refused = live.node().error("/", "wallet_sendCalls", batch).await;
        assert_eq!((&refused["code"], &refused["message"]), (&json!(-32603), &json!(format!("{FULL}{more}"))));
    }
    // The stored transaction is still sent again, and followed. The other one was never sent.
    live.upstream.has_sent(live.upstream.sent().len() + 2).await;
    live.mine(mined(sent.clone())).await;
    live.settled(&id, 200).await;
    // Final, its outcome cannot be stored, and is not lost.
    let number = live.newest.number();
    live.upstream.change(|chain| chain.finalized = Some(number));
    live.mine(vec![]).await;
    live.settled(&id, 200).await;
    assert_eq!(live.sent(1).await, sent, "only what is stored is sent");

    // Started again on a disk with room, the node settles the batch and takes others.
    live.stop().await;
    live.disk = Some(disk.copy());
    live.start(&[]).await;
    live.settled(&id, 200).await;
    let next = live.send(0, false, &[call(SOMEBODY, 4, bytes!())]).await;
    let second = live.sent(2).await.pop().unwrap();
    assert_eq!((second.nonce(), second.value()), (1, U256::from(4)));
    live.mine(mined(vec![second])).await;
    live.settled(&next, 200).await;
    assert_eq!(live.newest.balance(SOMEBODY), U256::from(5), "of {}", key(0).address());
}
