//! `txpool_*`: the transactions that wait, and those behind a nonce gap.

use std::{pin::pin, sync::mpsc};

use alloy_consensus::TxEip1559;
use alloy_primitives::{Address, Bytes, TxKind, U256};
use futures::poll;
use presim::testing::source::devnet::world::dev_signers;
use rand::{SeedableRng, rngs::SmallRng};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::{
    disk::{Disk, Leaves},
    power_loss::start_on,
    sending::{key, plain, raw},
    support::{PATHS, TestNode},
    witness::Rpc,
};

async fn send(node: &TestNode, raw: &Bytes) -> Value {
    node.result("/", "eth_sendRawTransaction", json!([raw])).await
}

fn of(address: Address) -> String {
    address.to_checksum(None)
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_behind_a_gap_are_queued_until_it_is_filled() {
    let node = TestNode::still(&dev_signers().unwrap(), &[]);
    let create = TxEip1559 { to: TxKind::Create, gas_limit: 60_000, ..plain(0) };
    let create = send(&node, &raw(create, &key(1))).await;
    let mut sent = Vec::new();
    for nonce in [0, 1, 3, 10] {
        sent.push(send(&node, &raw(TxEip1559 { value: U256::from(nonce), ..plain(nonce) }, &key(0))).await);
    }
    let (first, second) = (of(key(0).address()), of(key(1).address()));
    let line = |value: u64| {
        json!(format!("0x00000000000000000000000000000000000aBCdE: {value} wei + 21000 gas × 10000000000 wei"))
    };
    for path in PATHS {
        assert_eq!(node.result(path, "txpool_status", json!([])).await, json!({"pending": "0x3", "queued": "0x2"}));
        let inspected = json!({
            "pending": {
                &first: {"0": line(0), "1": line(1)},
                &second: {"0": "contract creation: 1 wei + 60000 gas × 10000000000 wei"},
            },
            "queued": {&first: {"3": line(3), "10": line(10)}},
        });
        let inspect = node.result(path, "txpool_inspect", json!([])).await;
        assert_eq!(inspect["pending"][&first], inspected["pending"][&first]);
        assert_eq!(inspect, inspected);
        let mut shown = Vec::new();
        for hash in [&create, &sent[0], &sent[1], &sent[2], &sent[3]] {
            shown.push(node.result(path, "eth_getTransactionByHash", json!([hash])).await);
        }
        let content = json!({
            "pending": {&first: {"0": shown[1], "1": shown[2]}, &second: {"0": shown[0]}},
            "queued": {&first: {"3": shown[3], "10": shown[4]}},
        });
        assert_eq!(node.result(path, "txpool_content", json!([])).await, content);
        let from = node.result(path, "txpool_contentFrom", json!([key(0).address()])).await;
        assert_eq!(from, json!({"pending": content["pending"][&first], "queued": content["queued"][&first]}));
        let nobody = node.result(path, "txpool_contentFrom", json!([Address::ZERO])).await;
        assert_eq!(nobody, json!({"pending": {}, "queued": {}}));
    }
    send(&node, &raw(plain(2), &key(0))).await;
    assert_eq!(node.result("/", "txpool_status", json!([])).await, json!({"pending": "0x5", "queued": "0x1"}));
    let from = node.result("/", "txpool_contentFrom", json!([key(0).address()])).await;
    assert_eq!(from["pending"].as_object().unwrap().keys().collect::<Vec<_>>(), ["0", "1", "2", "3"]);
    assert_eq!(from["queued"].as_object().unwrap().keys().collect::<Vec<_>>(), ["10"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mined_transaction_is_no_longer_in_the_content() {
    let node = TestNode::start(&["--traffic", "0", "--sub-block-ms", "50"]);
    send(&node, &raw(plain(2), &key(0))).await;
    node.result("/", "eth_sendRawTransactionSync", json!([raw(plain(0), &key(0)), 30_000])).await;
    assert_eq!(node.result("/", "txpool_status", json!([])).await, json!({"pending": "0x0", "queued": "0x1"}));
    let content = node.result("/", "txpool_content", json!([])).await;
    assert_eq!(content["pending"], json!({}));
    assert_eq!(content["queued"][of(key(0).address())]["2"]["nonce"], "0x2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_content_that_is_too_long_is_refused() {
    let node = TestNode::still(&dev_signers().unwrap(), &["--max-response", "2048"]);
    for nonce in 0..8 {
        send(&node, &raw(plain(nonce), &key(0))).await;
    }
    for (method, params) in
        [("txpool_content", json!([])), ("txpool_contentFrom", json!([key(0).address()])), ("eth_chainId", json!([]))]
    {
        let answer = node.call("/", method, params).await;
        let expected = if method == "eth_chainId" { Value::Null } else { json!(-32005) };
        assert_eq!(answer["error"]["code"], expected, "{answer}");
    }
    assert_eq!(node.result("/", "txpool_status", json!([])).await["pending"], "0x8");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_not_on_the_disk_yet_is_invisible() {
    let disk = Disk::default();
    let node = start_on(&disk, &["--traffic", "0", "--sub-block-ms", "60000"]);
    let rpc = Rpc::new(node.url("/"));
    let first = send(&node, &raw(plain(0), &key(0))).await;
    let before = rpc.result("txpool_content", json!([])).await;
    assert_eq!(before["pending"][of(key(0).address())]["0"]["hash"], first);

    // The next write waits in the disk until it is let go.
    let (reaches, reached) = oneshot::channel();
    let (lets_go, let_go) = mpsc::channel::<()>();
    let stop = move || {
        let _ = reaches.send(());
        let _ = let_go.recv();
    };
    let mut cutting = pin!(disk.cut(0, Leaves::All, SmallRng::seed_from_u64(0), stop));
    assert!(poll!(cutting.as_mut()).is_pending());
    let sending = {
        let rpc = Rpc::new(node.url("/"));
        let raws = [plain(1), plain(2)].map(|tx| json!([raw(tx, &key(0))]));
        tokio::spawn(async move { rpc.each("eth_sendRawTransaction", raws).await })
    };
    reached.await.expect("it is written");
    assert_eq!(rpc.result("txpool_content", json!([])).await, before);
    assert_eq!(rpc.result("txpool_contentFrom", json!([key(0).address()])).await["queued"], json!({}));
    assert_eq!(rpc.result("txpool_status", json!([])).await, json!({"pending": "0x1", "queued": "0x0"}));
    lets_go.send(()).unwrap();
    cutting.await;
    for answer in sending.await.unwrap() {
        assert!(answer["result"].is_string(), "{answer}");
    }
    assert_eq!(rpc.result("txpool_status", json!([])).await, json!({"pending": "0x3", "queued": "0x0"}));
}
