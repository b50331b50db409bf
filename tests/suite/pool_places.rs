//! An acknowledged transaction that waits is not lost to later ones.

use std::time::Duration;

use alloy_consensus::{SignableTransaction, TxEip7702, TxEnvelope};
use alloy_eips::{Encodable2718, eip7702::Authorization};
use alloy_primitives::{Address, B256, Bytes, U256};
use alloy_signer::SignerSync;
use presim::testing::source::devnet::world::dev_signers;
use serde_json::{Value, json};

use crate::{
    disk::Disk,
    power_loss::{FULL, start_on},
    process::{file, text},
    support::{BOUND, Socket, TestNode, hex, number},
    witness::{Rpc, transfer},
};

const GWEI: u128 = 1_000_000_000;
const NOBODY: &str = "0x00000000000000000000000000000000000abcde";

fn batch(from: Value, atomic: bool) -> Value {
    let calls: Value = (0..2).map(|_| json!({"to": NOBODY, "value": "0x1"})).collect();
    json!([{"version": "2.0.0", "from": from, "chainId": "0x7a69", "atomicRequired": atomic, "calls": calls}])
}

/// Signs a transfer of an account of the test mnemonic.
fn signed(index: usize, nonce: u64, tip: u128) -> (B256, Value) {
    let signer = &dev_signers().unwrap()[index];
    let tx = transfer(signer, nonce, NOBODY.parse().unwrap(), 1, tip);
    (*tx.tx_hash(), json!([Bytes::from(tx.encoded_2718())]))
}

fn account(index: usize) -> Value {
    json!(dev_signers().unwrap()[index].address())
}

async fn is_known(rpc: &Rpc, hash: &Value) -> bool {
    !rpc.result("eth_getTransactionByHash", json!([hash])).await.is_null()
}

/// An account's own authorization needs the nonce after its transaction's (EIP-7702). The batch must leave that nonce
/// to a transaction that waits behind a gap.
#[tokio::test(flavor = "multi_thread")]
async fn a_delegating_batch_leaves_the_nonces_of_those_behind_a_gap() {
    let node = TestNode::start(&["--traffic", "0", "--sub-block-ms", "300"]);
    let rpc = Rpc::new(node.url("/"));
    // For the second account, the executor is already deployed.
    for from in [account(1), account(2)] {
        let nonce = number(&rpc.result("eth_getTransactionCount", json!([from, "pending"])).await);
        let sending = json!([{"from": from, "to": NOBODY, "value": "0x1", "nonce": hex(nonce + 1)}]);
        let behind = rpc.result("eth_sendTransaction", sending).await;
        let id = rpc.result("wallet_sendCalls", batch(from.clone(), true)).await["batchId"].take();
        assert!(is_known(&rpc, &behind).await);
        // The gap is filled, by the batch's own deployment or by this transaction.
        let last = rpc.result("eth_sendTransaction", json!([{"from": from, "to": NOBODY, "value": "0x1"}])).await;
        assert_eq!(node.receipt(&last).await["status"], "0x1");
        assert_eq!(node.receipt(&behind).await["status"], "0x1");
        let status = async || Some(rpc.result("wallet_getCallsStatus", json!([id])).await);
        let settled = async || status().await.filter(|status| status["status"] != 100);
        assert_eq!(node.when("the batch is mined", settled).await["status"], 200);
        let code = rpc.result("eth_getCode", json!([from, "pending"])).await;
        assert!(code.as_str().unwrap().starts_with("0xef0100"), "{code}");
    }
}

/// In a signed transaction the nonces are given, so it is refused.
#[tokio::test(flavor = "multi_thread")]
async fn an_authorization_does_not_use_up_the_nonce_of_one_that_waits() {
    let node = TestNode::quiet();
    let rpc = Rpc::new(node.url("/"));
    let signer = &dev_signers().unwrap()[4];
    let (behind, raw) = signed(4, 1, GWEI);
    rpc.result("eth_sendRawTransaction", raw).await;
    let authorization = Authorization { chain_id: U256::from(31_337), address: Address::ZERO, nonce: 1 };
    let signature = signer.sign_hash_sync(&authorization.signature_hash()).unwrap();
    let tx = TxEip7702 {
        chain_id: 31_337,
        gas_limit: 100_000,
        max_fee_per_gas: 10 * GWEI,
        max_priority_fee_per_gas: GWEI,
        authorization_list: vec![authorization.into_signed(signature)],
        ..TxEip7702::default()
    };
    let signature = signer.sign_hash_sync(&tx.signature_hash()).unwrap();
    let tx = Bytes::from(TxEnvelope::from(tx.into_signed(signature)).encoded_2718());
    let error = rpc.call("eth_sendRawTransaction", json!([tx])).await["error"].take();
    assert_eq!(error["code"], -32000, "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("uses up nonce 1, which another transaction in the pool has"), "{message}");
    assert!(is_known(&rpc, &json!(behind)).await);
}

/// The batch's first transaction evicts another, and its second finds no room: both effects are undone. Transactions
/// that wait over a restart are not evicted by narrower bounds.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_batch_gives_back_the_places_that_it_took() {
    let data = tempfile::tempdir().unwrap();
    let start = |bound: &str, time: &str| {
        let flags = ["--traffic", "0", "--sub-block-ms", time, "--pool-transactions", bound, "--log", "off"];
        TestNode::start(&[&flags[..], &["--data-dir", text(data.path())]].concat())
    };
    let node = start("2", "60000");
    let rpc = Rpc::new(node.url("/"));
    // The node's own transactions are not evicted.
    let own = rpc.result("eth_sendTransaction", json!([{"from": account(3), "to": NOBODY, "value": "0x1"}])).await;
    let cheap = rpc.result("eth_sendRawTransaction", signed(4, 0, 1).1).await;
    let answer = rpc.call("wallet_sendCalls", batch(account(1), false)).await;
    assert_eq!(answer["error"]["message"], "txpool is full", "{answer}");
    assert!(is_known(&rpc, &cheap).await && is_known(&rpc, &own).await);
    assert_eq!(rpc.result("eth_getTransactionCount", json!([account(1), "pending"])).await, "0x0");
    assert_eq!(rpc.result("eth_getTransactionCount", json!([account(4), "pending"])).await, "0x1");
    node.node.stop();

    let node = start("1", "300");
    for hash in [&own, &cheap] {
        assert_eq!(node.receipt(hash).await["status"], "0x1");
    }
}

/// A replacement that cannot be written is undone.
#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_that_does_not_come_to_the_disk_replaces_nothing() {
    let disk = Disk::default();
    let quiet = ["--traffic", "0", "--sub-block-ms", "60000", "--log", "off"];
    let node = start_on(&disk, &quiet);
    let rpc = Rpc::new(node.url("/"));
    let paying = |fee: u128| {
        let fee = format!("{fee:#x}");
        json!([{"from": account(3), "to": NOBODY, "nonce": "0x0", "maxFeePerGas": fee, "maxPriorityFeePerGas": fee}])
    };
    let first = rpc.result("eth_sendTransaction", paying(2 * GWEI)).await;
    let (late, raw) = signed(4, 0, GWEI);
    disk.fill();
    // The second replacement comes after the store is known to have failed.
    for (fee, after) in [(4 * GWEI, ": it may still be sent after a restart of the node"), (8 * GWEI, "")] {
        let answer = rpc.call("eth_sendTransaction", paying(fee)).await;
        assert_eq!(answer["error"], json!({"code": -32603, "message": format!("{FULL}{after}")}));
        assert!(is_known(&rpc, &first).await);
    }
    assert_eq!(rpc.call("eth_sendRawTransaction", raw).await["error"], json!({"code": -32603, "message": FULL}));
    assert!(!is_known(&rpc, &json!(late)).await);
    node.node.stop();
    let node = start_on(&disk.copy(), &["--traffic", "0", "--sub-block-ms", "300"]);
    assert_eq!(node.receipt(&first).await["status"], "0x1");
}

/// The feed of a static chain does not write, so a client's request is the first to find the disk full.
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_that_stands_still_says_that_its_disk_is_full_as_its_clients_read_it() {
    let disk = Disk::default();
    let forks = "homestead eip150 eip155 eip158 byzantium constantinople petersburg istanbul berlin london";
    let mut config: Value = forks.split(' ').map(|fork| (format!("{fork}Block"), json!(0))).collect();
    config["chainId"] = json!(31337);
    let alloc = json!({account(4).as_str().unwrap(): {"balance": "0xde0b6b3a7640000"}});
    let genesis = json!({"config": config, "alloc": alloc, "gasLimit": "0x1c9c380", "difficulty": "0x0"});
    let genesis = file(&genesis.to_string());
    let node = start_on(&disk, &["--genesis", text(genesis.path()), "--feed", "static", "--log", "off"]);
    let rpc = Rpc::new(node.url("/"));
    let health = async || node.client.get(node.url("/health")).send().await.unwrap();
    assert_eq!(health().await.status(), 200);
    disk.fill();
    let call = json!([{"from": account(4), "to": NOBODY, "value": "0x1"}, "latest"]);
    let (_, raw) = signed(4, 0, GWEI);
    let answer = rpc.call("eth_sendRawTransaction", raw).await;
    let message = format!("{FULL}: it may still be sent after a restart of the node");
    assert_eq!(answer["error"], json!({"code": -32603, "message": message}));
    let health = health().await;
    assert_eq!(health.status(), 503);
    let health: Value = health.json().await.unwrap();
    assert_eq!((&health["cause"], &health["reason"]), (&json!("store"), &json!(FULL)), "{health}");
    assert_eq!(health["feed"], "static", "what is published stands, and is answered from: {health}");
    rpc.result("eth_call", call).await;
}

/// Background transactions of a sub-block that could not be written are dropped, and no more are made.
#[tokio::test(flavor = "multi_thread")]
async fn a_feed_whose_store_has_failed_gathers_nothing() {
    let disk = Disk::default();
    let node = start_on(&disk, &["--traffic", "1", "--sub-block-ms", "50", "--log", "off"]);
    let rpc = Rpc::new(node.url("/"));
    let mut socket = Socket::open(&node, "/").await;
    let id = socket.subscribe(json!(["newPendingTransactions"])).await;
    node.sealed(1).await;
    disk.fill();
    let forgotten = async {
        let mut told: Vec<Value> = Vec::new();
        loop {
            if let Ok(hash) = tokio::time::timeout(Duration::from_millis(20), socket.notification(&id)).await {
                told.push(hash);
            }
            if let Some(hash) = told.last()
                && !is_known(&rpc, hash).await
            {
                return;
            }
        }
    };
    tokio::time::timeout(BOUND, forgotten).await.expect("what was told of last is known no more");
}
