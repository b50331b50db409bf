//! The wallet on a chain of the OP stack, with pre-confirmations.

use std::collections::BTreeMap;

use alloy_consensus::{Transaction, TxEnvelope, transaction::SignerRecoverable};
use alloy_primitives::{Address, B256, U256, bytes};
use presim::testing::chain::ChainTx;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{LiveWallet, call, key, mined, reason};
use crate::{
    live::{
        built::{Built, OP_CHAIN, SOMEBODY, sent_by},
        feed, head, until,
    },
    op_chain::{ATTRIBUTED, L1_BLOCK},
    process::eventually,
    support::items,
    upstream::FlashblocksServer,
};

/// Starts a wallet on the OP stack with a stream of pre-confirmations.
async fn with_stream(flags: &[&str]) -> (LiveWallet, FlashblocksServer) {
    let stream = FlashblocksServer::start().await;
    let url = stream.url();
    let live = LiveWallet::on(Built::op_stack(), &[&["--flashblocks", &url], flags].concat()).await;
    stream.connected(1).await;
    (live, stream)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_confirmed_by_a_sub_block_and_waits_again_if_its_block_is_not_canonical() {
    let (mut live, stream) = with_stream(&[]).await;
    let before = live.newest.clone();
    let id = live.send(0, false, &[call(SOMEBODY, 7, bytes!())]).await;
    let sent = live.sent(1).await;
    let block = before.next(mined(sent.clone()), 1);
    let parts = block.flashblocks(&[1, 1]);
    stream.send(&parts[0]);
    feed(live.node(), None).await;
    assert_eq!(live.status(&id).await["status"], 100);
    stream.send(&parts[1]);
    let status = live.settled(&id, 200).await;
    assert_eq!(live.node().node.snapshots().load().head().number(), before.number(), "it is not canonical yet");
    assert_eq!(status["receipts"][0]["transactionHash"], json!(sent[0].tx_hash()), "{status}");

    // Another block becomes canonical, without the batch.
    let times = live.upstream.sent().len();
    let other = before.next(vec![], 2);
    live.upstream.push(other.block.clone());
    head(live.node(), other.hash()).await;
    live.settled(&id, 100).await;
    live.upstream.has_sent(times + 1).await;
    assert!(live.upstream.sent().iter().all(|raw| *raw == live.upstream.sent()[0]), "nothing is signed twice");

    // Pre-confirmed again, and canonical, and final.
    let block = other.next(mined(sent), 1);
    block.flashblocks(&[1, 1]).iter().for_each(|part| stream.send(part));
    live.settled(&id, 200).await;
    live.upstream.push(block.block.clone());
    head(live.node(), block.hash()).await;
    live.newest = block;
    let status = live.settled(&id, 200).await;
    assert_eq!(status["receipts"][0]["blockHash"], json!(live.newest.hash()), "{status}");
    let number = live.newest.number();
    live.upstream.change(|chain| chain.finalized = Some(number));
    live.mine(vec![]).await;
    until(live.node(), "the tag", |published| published.finalized() == Some(number)).await;
    assert_eq!(live.settled(&id, 200).await["receipts"], status["receipts"]);
}

/// Sends a batch that waits for approval. Returns its answer to come, and what the approver is shown.
async fn ask(live: &LiveWallet) -> (JoinHandle<Value>, Value) {
    let request = live.batch(0, false, &[call(SOMEBODY, 7, bytes!())]);
    let (client, url) = (live.node().client.clone(), live.node().url("/"));
    let body = crate::support::request(1, "wallet_sendCalls", request);
    let asking = tokio::spawn(async move {
        let response = client.post(url).json(&body).send().await.expect("it answers");
        response.json::<Value>().await.expect("JSON")
    });
    let asked = eventually("it is asked for", async || {
        let list = live.operate(&["list", "--json"]).await.unwrap();
        let list: Value = serde_json::from_str(&list).unwrap();
        list["batches"].get(0).cloned()
    });
    (asking, asked.await)
}

/// Approves a batch. Returns the client's answer.
async fn approve(live: &LiveWallet, asking: JoinHandle<Value>, asked: &Value) -> Value {
    let [id, digest] = ["id", "digest"].map(|name| asked[name].as_str().unwrap());
    // Whether it is sent is seen in the client's answer.
    let _ = live.operate(&["approve", id, digest]).await;
    asking.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fee_for_data_on_l1_above_the_one_that_was_shown_is_not_paid() {
    let (mut live, _stream) = with_stream(&["--wallet-approval", "ask"]).await;
    let (asking, asked) = ask(&live).await;
    let shown: U256 = serde_json::from_value(asked["dataFees"].clone()).unwrap();
    // L1's base fee doubles, which is most of the fee.
    let risen = B256::from(U256::from(2 * ATTRIBUTED.base_fee));
    live.mine(vec![sent_by(2, OP_CHAIN, 0, L1_BLOCK, 0, risen.into())]).await;
    let answer = approve(&live, asking, &asked).await;
    let text = answer["error"]["data"].as_str().unwrap_or_else(|| panic!("{answer}"));
    assert!(answer["error"]["code"] == 4001 && text.contains(&presim::testing::wallet::ether(shown)), "{answer}");
    assert!(live.upstream.sent().is_empty(), "nothing is signed");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approver_sees_the_fee_for_data_on_l1() {
    let (mut live, _stream) = with_stream(&["--wallet-approval", "ask"]).await;
    let (asking, asked) = ask(&live).await;
    let fees: U256 = serde_json::from_value(asked["dataFees"].clone()).unwrap();
    let most: U256 = serde_json::from_value(asked["mostFees"].clone()).unwrap();
    assert!(!fees.is_zero() && fees < most, "{asked}");
    let shown = live.operate(&["list"]).await.unwrap();
    assert!(shown.contains(" for data on L1"), "{shown}");
    let answer = approve(&live, asking, &asked).await;
    let id = answer["result"]["id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
    let sent = live.sent(1).await;
    let before = live.newest.balance(key(0).address());
    live.mine(mined(sent.clone())).await;
    let status = live.settled(&id, 200).await;
    let gas = U256::from(crate::support::number(&status["receipts"][0]["gasUsed"]));
    let paid = before - live.newest.balance(key(0).address()) - U256::from(7);
    let base_fee = crate::support::number(&live.newest.block.fields["baseFeePerGas"]);
    let beside = paid - gas * U256::from(sent[0].effective_gas_price(Some(base_fee)));
    // Within a tenth, because the real signature has other bytes, and not all of the gas limit is used.
    assert!(
        !beside.is_zero() && beside <= fees && fees * U256::from(9) <= beside * U256::from(10),
        "{beside}, estimated {fees}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_leaves_nothing_for_the_fee_for_data_on_l1_is_refused() {
    let (live, _stream) = with_stream(&[]).await;
    live.send(0, false, &[call(SOMEBODY, 7, bytes!())]).await;
    let gas_fee = U256::from(21_000) * U256::from(live.sent(1).await[0].max_fee_per_gas());
    let most = live.newest.balance(key(1).address()) - gas_fee;
    let transfer = |value: U256| json!({"to": SOMEBODY, "value": value, "data": "0x"});
    let error = live.node().error("/", "wallet_sendCalls", live.batch(1, false, &[transfer(most)])).await;
    assert_eq!(error["code"], -32000, "{error}");
    let text = error.to_string();
    assert!(text.contains("params[0].calls[0]: insufficient funds") && text.contains("fee for data on L1"), "{error}");
    // Of two transfers, the fee for the data of the first counts too.
    live.send(1, false, &[transfer(most - U256::from(10).pow(U256::from(16)))]).await;
    live.sent(2).await;
}

/// Returns the transactions of an account with a nonce.
fn with_nonce(sent: &[TxEnvelope], account: Address, nonce: u64) -> Vec<TxEnvelope> {
    let mut found = sent.to_vec();
    found.retain(|tx| tx.nonce() == nonce && tx.recover_signer().unwrap() == account);
    found
}

/// Returns the sent transactions that the next block on `on` can have: of each nonce a version that chance chooses.
fn minable(sent: &[TxEnvelope], on: &Built, chance: &mut SmallRng) -> Vec<TxEnvelope> {
    let mut chosen = Vec::new();
    for account in [key(0).address(), key(1).address()] {
        let mut nonce = on.block.state[&account].nonce.unwrap_or_default();
        loop {
            let versions: Vec<TxEnvelope> = with_nonce(sent, account, nonce);
            if versions.is_empty() || chance.random_bool(0.2) {
                break;
            }
            chosen.push(versions[chance.random_range(0..versions.len())].clone());
            nonce += 1;
        }
    }
    chosen
}

/// Each batch transfers another power of two to one account, so that its balance says which transfers were made, and how often.
#[tokio::test(flavor = "multi_thread")]
async fn through_sub_blocks_reorgs_restarts_and_foreign_nonces_each_call_is_made_once_or_its_status_says_so() {
    let (mut live, stream) = with_stream(&[]).await;
    let url = stream.url();
    let flags = ["--flashblocks", url.as_str()];
    let mut chance = SmallRng::seed_from_u64(7);
    let (mut batches, mut foreign) = (BTreeMap::new(), Vec::new());
    let mut value = 1_u64;
    let mut connections = 1;
    for _ in 0..12 {
        for _ in 0..chance.random_range(1..4) {
            let count = chance.random_range(1..3);
            let values: Vec<u64> = (0..count).map(|at| value << at).collect();
            let calls: Vec<Value> = values.iter().map(|value| call(SOMEBODY, *value, bytes!())).collect();
            batches.insert(live.send(chance.random_range(0..2), false, &calls).await, values);
            value <<= count;
        }
        let count = batches.values().map(Vec::len).sum();
        let sent = live.sent(count).await;
        if chance.random_bool(0.4) {
            let who = chance.random_range(0..2);
            let nonce = live.newest.block.state[&key(who).address()].nonce.unwrap_or_default();
            let tx = sent_by(who, OP_CHAIN, nonce, Address::repeat_byte(0x22), 1, bytes!());
            if let ChainTx::Signed(tx) = tx {
                foreign.push(tx);
            }
        }
        let all = [sent, foreign.clone()].concat();
        let (base, salt) = (live.newest.clone(), chance.random());
        let chosen = minable(&all, &base, &mut chance);
        let split = [1, chosen.len()];
        let next = base.next(mined(chosen), salt);
        if chance.random_bool(0.6) {
            next.flashblocks(&split).iter().for_each(|part| stream.send(part));
        }
        // The block becomes canonical, or a sibling does, or a longer branch beside it.
        let branch = match chance.random_range(0..4) {
            0 => vec![base.next(mined(minable(&all, &base, &mut chance)), salt.wrapping_add(1))],
            1 => {
                live.upstream.push(next.block.clone());
                head(live.node(), next.hash()).await;
                let first = base.next(mined(minable(&all, &base, &mut chance)), salt.wrapping_add(1));
                let second = first.next(mined(minable(&all, &first, &mut chance)), salt);
                vec![first, second]
            }
            _ => vec![next],
        };
        live.upstream.reorganise(branch.iter().map(|built| built.block.clone()).collect());
        live.newest = branch.into_iter().next_back().unwrap();
        head(live.node(), live.newest.hash()).await;
        if chance.random_bool(0.3) {
            live.stop().await;
            live.start(&flags).await;
            connections += 1;
            stream.connected(connections).await;
        }
    }
    // At the end all that can be mined is.
    loop {
        let all = [live.sent(batches.values().map(Vec::len).sum()).await, foreign.clone()].concat();
        let mut certain = SmallRng::seed_from_u64(chance.random());
        let rest = minable(&all, &live.newest, &mut certain);
        let account_has_more = |account: Address| {
            let nonce = live.newest.block.state[&account].nonce.unwrap_or_default();
            !with_nonce(&all, account, nonce).is_empty()
        };
        if rest.is_empty() && ![key(0).address(), key(1).address()].into_iter().any(account_has_more) {
            break;
        }
        live.mine(mined(rest)).await;
    }
    let mut expected = U256::ZERO;
    for (id, values) in &batches {
        let status = live.status_when(id, |status| status["status"] != 100).await;
        let receipts = status.get("receipts").map_or(0, |receipts| items(receipts).len());
        match status["status"].as_u64().unwrap() {
            200 => values.iter().for_each(|value| expected += U256::from(*value)),
            400 => assert!(status["capabilities"]["transactions"]["replaced"].is_array() && receipts == 0, "{status}"),
            600 => {
                for receipt in items(&status["receipts"]) {
                    let hash: B256 = serde_json::from_value(receipt["transactionHash"].clone()).unwrap();
                    let sent = live.sent(0).await;
                    expected += sent.iter().find(|tx| *tx.tx_hash() == hash).expect("it was sent").value();
                }
            }
            other => panic!("{other}: {status} {}", reason(&status)),
        }
    }
    assert_eq!(live.newest.balance(SOMEBODY), expected, "each call was made once, or its batch says that it was not");
    assert!(!foreign.is_empty());
}
