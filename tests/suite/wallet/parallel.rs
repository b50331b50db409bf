//! Many concurrent senders: every call lands once, and no nonce is used twice or left out.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::{Address, B256, Bytes};
use presim::testing::source::devnet::world::dev_signers;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{WITNESS, WalletChain, account, batch, call};
use crate::support::{TestNode, items, number, request, say};

const SENDERS: u64 = 32;
const ROUNDS: u64 = 3;

/// The batches that a sender sent, and those that were accepted.
enum Taken {
    /// A batch: its id and number of calls.
    Batch(String, usize),
    /// A transaction of `eth_sendTransaction`.
    Transaction(B256),
}

/// Returns unique data for a call.
fn marker(sender: u64, round: u64, call: u64) -> Bytes {
    Bytes::from(((sender << 32) | (round << 16) | call).to_be_bytes())
}

/// Runs one sender: in each round a batch of three calls, an atomic batch of two, and a transaction. Returns what was
/// accepted and the calls' markers.
async fn sender(client: reqwest::Client, url: String, index: u64, from: Address) -> (Vec<Taken>, Vec<Bytes>) {
    let (mut taken, mut marks) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let mut next = (0..).map(|at| marker(index, round, at));
        let mut calls = |count: usize| next.by_ref().take(count).collect::<Vec<Bytes>>();
        let (three, two, one) = (calls(3), calls(2), calls(1));
        let to_witness = |marks: &[Bytes]| marks.iter().map(|mark| call(WITNESS, 0, mark.clone())).collect::<Vec<_>>();
        let steps = [
            ("wallet_sendCalls", batch(from, false, &to_witness(&three))),
            ("wallet_sendCalls", batch(from, true, &to_witness(&two))),
            ("eth_sendTransaction", json!([{"from": from, "to": WITNESS, "data": one[0]}])),
        ];
        // Each sender uses another order.
        for step in 0..3 {
            let (method, params) = &steps[(step + index as usize) % 3];
            let post = client.post(&url).header("content-type", "application/json");
            let response = post.body(request(1, method, params.clone()).to_string()).send().await.expect("it answers");
            let answer: Value = response.json().await.expect("JSON");
            let result = &answer["result"];
            taken.push(match *method {
                "wallet_sendCalls" => {
                    let id = result["id"].as_str().unwrap_or_else(|| panic!("{index} {round}: {answer}"));
                    Taken::Batch(id.to_owned(), items(&params[0]["calls"]).len())
                }
                _ => Taken::Transaction(
                    serde_json::from_value(result.clone()).unwrap_or_else(|_| panic!("{index} {round}: {answer}")),
                ),
            });
        }
        marks.extend([three, two, one].concat());
    }
    (taken, marks)
}

/// Returns all transactions in blocks by sender and nonce.
async fn mined(node: &TestNode) -> BTreeMap<Address, Vec<(u64, B256)>> {
    let mut all: BTreeMap<Address, Vec<(u64, B256)>> = BTreeMap::new();
    let pending = node.result("/", "eth_getBlockByNumber", json!(["pending", true])).await;
    let last = number(&pending["number"]);
    for at in 0..=last {
        let block = if at == last {
            pending.clone()
        } else {
            node.result("/", "eth_getBlockByNumber", json!([format!("{at:#x}"), true])).await
        };
        for tx in items(&block["transactions"]) {
            let field = |name: &str| tx[name].clone();
            let from: Address = serde_json::from_value(field("from")).unwrap();
            all.entry(from).or_default().push((number(&tx["nonce"]), serde_json::from_value(field("hash")).unwrap()));
        }
    }
    all
}

/// Runs all senders at once, waits until everything is mined, and counts.
async fn check(node: &TestNode, from: &[Address], what: &str) {
    let mut senders = JoinSet::new();
    for index in 0..SENDERS {
        let from = from[index as usize % from.len()];
        senders.spawn(sender(node.client.clone(), node.url("/"), index, from));
    }
    let (mut taken, mut marks) = (Vec::new(), Vec::new());
    for (some, left) in senders.join_all().await {
        taken.extend(some);
        marks.extend(left);
    }

    // Everything is mined, and nothing reverts.
    let mut hashes = BTreeSet::new();
    let mut batches: Vec<Vec<B256>> = Vec::new();
    for one in &taken {
        match one {
            Taken::Batch(id, count) => {
                let status = super::settled(node, id).await;
                assert_eq!(status["status"], 200, "{what}: {status}");
                let receipts = items(&status["receipts"]);
                let expected = if status["atomic"] == true { 1 } else { *count };
                assert_eq!(receipts.len(), expected, "{what}: {status}");
                let of: Vec<B256> =
                    receipts.iter().map(|r| serde_json::from_value(r["transactionHash"].clone()).unwrap()).collect();
                batches.push(of);
            }
            Taken::Transaction(hash) => {
                node.mined(&json!(hash)).await;
                assert!(hashes.insert(*hash), "{what}: {hash} twice");
            }
        }
    }
    for hash in batches.iter().flatten() {
        assert!(hashes.insert(*hash), "{what}: {hash} is of two");
    }

    // Every call has left its marker once.
    let filter = json!([{"fromBlock": "0x0", "toBlock": "pending", "address": WITNESS}]);
    let logs = node.result("/", "eth_getLogs", filter).await;
    let mut seen: BTreeMap<Bytes, usize> = BTreeMap::new();
    for log in items(&logs) {
        *seen.entry(serde_json::from_value(log["data"].clone()).unwrap()).or_default() += 1;
    }
    for mark in &marks {
        assert_eq!(seen.remove(mark), Some(1), "{what}: {mark}");
    }
    assert!(seen.is_empty(), "{what}: calls that nobody sent: {seen:?}");

    // Each nonce is used once, without gaps, and those of a batch are consecutive.
    let mined = mined(node).await;
    let nonces: BTreeMap<B256, (Address, u64)> =
        mined.iter().flat_map(|(from, all)| all.iter().map(|(nonce, hash)| (*hash, (*from, *nonce)))).collect();
    for of in &batches {
        for two in of.windows(2) {
            let ((a, first), (b, second)) = (nonces[&two[0]], nonces[&two[1]]);
            assert_eq!((a, first + 1), (b, second), "{what}: the nonces of a batch");
        }
    }
    let mut count = 0;
    for from in from {
        let all = &mined[from];
        count += all.len();
        // An authorization also uses a nonce, the one after its transaction's.
        let mut next = all[0].0;
        for (nonce, hash) in all {
            assert_eq!(*nonce, next, "{what}: {from}: {all:?}");
            next += 1;
            let tx = node.result("/", "eth_getTransactionByHash", json!([hash])).await;
            next += tx["authorizationList"].as_array().map_or(0, Vec::len) as u64;
        }
        assert_eq!(super::nonce(node, *from).await, next, "{what}: {from}");
    }
    assert!(hashes.iter().all(|hash| nonces.contains_key(hash)), "{what}");
    say(&format!(
        "PARALLEL: {what}: {SENDERS} senders, {} accounts: {} batches and {} transactions taken, {} calls landed once each, {count} transactions mined",
        from.len(),
        batches.len(),
        taken.len() - batches.len(),
        marks.len(),
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_32_senders_on_one_account_every_call_lands_once() {
    let chain = WalletChain::new();
    let node = chain.lasting(&[&["--sub-block-ms", "100"]]);
    check(&node, &[account(1)], "one account").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_32_senders_on_ten_accounts_every_call_lands_once() {
    let chain = WalletChain::new();
    let node = chain.lasting(&[&["--sub-block-ms", "100"]]);
    check(&node, &accounts(), "all accounts").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn background_traffic_of_the_same_accounts_takes_no_nonce_of_theirs() {
    // The accounts that traffic prefers have no ether here.
    let chain = WalletChain::of(&dev_signers().unwrap());
    let node = chain.with_traffic("20", &[&["--sub-block-ms", "100"]]);
    node.sealed(1).await;
    assert!(!mined(&node).await.is_empty(), "there is traffic");
    check(&node, &accounts(), "all accounts, and traffic").await;
}

fn accounts() -> Vec<Address> {
    dev_signers().unwrap().iter().map(|signer| signer.address()).collect()
}
