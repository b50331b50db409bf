//! A real block on a whole node: from the upstream, as Flashblocks, and as a simulation.

use std::sync::Arc;

use alloy_consensus::{Transaction, transaction::SignerRecoverable};
use alloy_primitives::{B256, Bloom};
use op_alloy::rpc_types_engine::OpFlashblockPayload;
use serde_json::{Value, json};

use super::{head, health, start, until};
use crate::{
    block_traces::are_of,
    op_chain::config,
    support::{BOUND, TestNode, items, number},
    upstream::{Cumulative, Fixture, FlashblocksServer, SmallUpstream, UpstreamChain, cut},
};

/// Starts an upstream whose newest block is the fixture's parent.
async fn upstream(fixture: &Fixture) -> SmallUpstream {
    let mut parent = fixture.parent();
    // The parent's receipts and header are not known.
    parent.receipts = None;
    parent.fields["gasUsed"] = json!("0x5208");
    SmallUpstream::start(fixture.chain_id, UpstreamChain::new(vec![parent])).await
}

async fn node(fixture: &Fixture, url: &str, flags: &[&str]) -> TestNode {
    start(url, &config(fixture.chain_id, "jovian"), flags).await
}

fn hash(fixture: &Fixture) -> B256 {
    serde_json::from_value(fixture.block["hash"].clone()).unwrap()
}

/// Checks that a block has the gas, the receipts and the bloom of the fixture's header.
fn is_the_block(block: &Value, fixture: &Fixture) {
    for field in ["gasUsed", "blobGasUsed", "receiptsRoot", "logsBloom", "number", "transactionsRoot"] {
        assert_eq!(block[field], fixture.block[field], "{field}");
    }
}

/// Checks that the newest block is the fixture's and was executed by the node.
async fn is_executed(node: &TestNode, fixture: &Fixture) {
    let latest = node.block("latest").await;
    is_the_block(&latest, fixture);
    assert_eq!(latest["hash"], fixture.block["hash"]);
    assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"executed\"}"), 1.0);
    let receipts = node.result("/", "eth_getBlockReceipts", json!(["latest"])).await;
    let receipts = items(&receipts);
    assert_eq!(receipts.len(), fixture.raw.len());
    assert!(
        receipts[0]["depositNonce"].is_string() && receipts[0]["depositReceiptVersion"] == "0x1",
        "{}",
        receipts[0]
    );
    for receipt in &receipts[1..] {
        for field in ["l1Fee", "l1GasPrice", "l1GasUsed"] {
            assert!(receipt[field].is_string(), "{field}: {receipt}");
        }
        assert!(receipt.get("depositNonce").is_none());
    }
    assert_eq!(receipts.last().unwrap()["cumulativeGasUsed"], fixture.block["gasUsed"]);
    let traces = node.result("/", "debug_traceBlockByNumber", json!(["latest", {"tracer": "callTracer"}])).await;
    are_of(&traces, &json!(receipts));
    let range = json!(["latest", 0, receipts[1]["to"], "0x", 1]);
    assert!(node.error("/", "debug_storageRangeAt", range).await["message"].as_str().unwrap().contains("upstream"));
    // The receipt of a single transaction is the same.
    let one = node.result("/", "eth_getTransactionReceipt", json!([receipts[3]["transactionHash"]])).await;
    assert_eq!(&one, &receipts[3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_block_is_followed_by_asking() {
    let Some(fixture) = Fixture::rise() else { return };
    for fixture in [fixture.on_hashed_parent(), fixture] {
        let upstream = upstream(&fixture).await;
        let node = node(&fixture, &upstream.url(), &[]).await;
        upstream.push(fixture.block(None));
        head(&node, hash(&fixture)).await;
        is_executed(&node, &fixture).await;
        assert_eq!(upstream.subscribers(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_block_is_followed_by_a_subscription() {
    let Some(fixture) = Fixture::rise() else { return };
    let upstream = upstream(&fixture).await;
    // Polling would find the block only after a minute.
    let node = node(&fixture, &upstream.ws_url(), &["--upstream-poll-ms", "60000"]).await;
    upstream.is_asked("eth_subscribe", 1).await;
    upstream.push(fixture.block(None));
    head(&node, hash(&fixture)).await;
    is_executed(&node, &fixture).await;
}

/// Cuts the fixture into sub-blocks. The cumulative fields are zero, because the node does not check them.
fn sub_blocks(fixture: &Fixture, split: &[usize]) -> Vec<OpFlashblockPayload> {
    cut(fixture, split, |_| Cumulative { gas_used: 0, receipts_root: B256::ZERO, logs_bloom: Bloom::ZERO })
}

async fn pending(node: &TestNode, number: u64, index: u32) {
    until(node, "a sub-block", |published| {
        let newest = &published.newest;
        !published.feed().is_degraded()
            && newest.open.is_some()
            && (newest.header().number, newest.index()) == (number, index)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_block_is_the_same_in_any_sub_blocks() {
    let Some(fixture) = Fixture::rise() else { return };
    let block = fixture.header().number;
    for (split, compressed) in
        [(vec![7], false), (vec![1; 7], true), (vec![2, 0, 3, 2], false), (vec![0, 7, 0], true), (vec![1, 6], false)]
    {
        let (upstream, server) = (upstream(&fixture).await, FlashblocksServer::start().await);
        let node = node(&fixture, &upstream.url(), &["--flashblocks", &server.url()]).await;
        server.connected(1).await;
        let mut sent = 0;
        for payload in sub_blocks(&fixture, &split) {
            if compressed {
                server.send_brotli(&payload)
            } else {
                server.send(&payload)
            }
            sent += payload.diff.transactions.len();
            pending(&node, block, payload.index as u32).await;
            let (_, _, freshness) = health(&node).await;
            let place = format!("block={block}, index={},", payload.index);
            assert!(freshness.contains(&place) && !freshness.contains("feed=degraded"), "{split:?}: {freshness}");
            let count = node.result("/", "eth_getBlockTransactionCountByNumber", json!(["pending"])).await;
            assert_eq!(number(&count), sent as u64, "{split:?}");
        }
        let shown = node.block("pending").await;
        is_the_block(&shown, &fixture);
        let fallen = |node: &TestNode| node.metric("presim_feed_fallbacks_total{reason=\"mismatch\"}");
        upstream.push(fixture.block(None));
        head(&node, hash(&fixture)).await;
        is_executed(&node, &fixture).await;
        assert_eq!((health(&node).await.1["feed"].as_str(), fallen(&node)), (Some("live"), 0.0), "{split:?}");
        // The block was known when the upstream served it, so nothing was fetched.
        assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"not_executed\"}"), 0.0);
    }
}

/// Returns the block's calls as a simulation in the block's own context, without deposits. Each call has the gas,
/// nonce, price and access list of its transaction.
fn simulation(fixture: &Fixture) -> Value {
    let calls: Vec<Value> = fixture
        .decoded()
        .iter()
        .filter(|tx| !tx.is_deposit())
        .map(|tx| {
            let mut call = json!({
                "from": tx.recover_signer().unwrap(), "to": tx.to(), "gas": format!("{:#x}", tx.gas_limit()),
                "nonce": format!("{:#x}", tx.nonce()), "value": tx.value(), "input": tx.input(),
                "chainId": format!("{:#x}", fixture.chain_id),
            });
            if let Some(list) = tx.access_list() {
                call["accessList"] = json!(list);
            }
            match tx.gas_price() {
                Some(price) => call["gasPrice"] = json!(format!("{price:#x}")),
                None => {
                    call["maxFeePerGas"] = json!(format!("{:#x}", tx.max_fee_per_gas()));
                    let tip = tx.max_priority_fee_per_gas().unwrap_or_default();
                    call["maxPriorityFeePerGas"] = json!(format!("{tip:#x}"));
                }
            }
            call
        })
        .collect();
    let block = &fixture.block;
    let overrides = json!({
        "number": block["number"], "time": block["timestamp"], "gasLimit": block["gasLimit"],
        "feeRecipient": block["miner"], "prevRandao": block["mixHash"], "baseFeePerGas": block["baseFeePerGas"],
    });
    json!({"blockStateCalls": [{"blockOverrides": overrides, "calls": calls}], "validation": true})
}

fn gas_of(receipts: &Value) -> Vec<u64> {
    let used = |receipt: &Value| number(&receipt["gasUsed"]);
    items(receipts).iter().skip(1).map(used).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_calls_of_a_real_block_use_the_same_gas_in_a_simulation() {
    let Some(fixture) = Fixture::rise() else { return };
    let (upstream, server) = (upstream(&fixture).await, FlashblocksServer::start().await);
    let flags = ["--flashblocks", &server.url(), "--gas-cap", "1500000000", "--deadline-ms", "60000"];
    let node = node(&fixture, &upstream.url(), &flags).await;
    server.connected(1).await;
    let simulated = |answer: Value| -> Vec<u64> {
        items(&answer[0]["calls"])
            .iter()
            .map(|call| {
                assert!(call["status"].is_string(), "{call}");
                number(&call["gasUsed"])
            })
            .collect()
    };
    let parent = format!("{:#x}", fixture.header().number - 1);
    let mut seen = Vec::new();
    for path in ["/", "/standard"] {
        // The deposit only changes L1 fees, which unsigned calls do not pay, so it is left out.
        let params = json!([simulation(&fixture), parent]);
        let answer = node.result(path, "eth_simulateV1", params).await;
        // The header continues the chain's own.
        for field in ["extraData", "requestsHash"] {
            assert_eq!(answer[0][field], fixture.block[field], "{path} {field}");
        }
        seen.push((format!("{path} at the parent"), simulated(answer)));
    }
    // The same calls after the deposit: on the sub-block that contains only it.
    server.send(&sub_blocks(&fixture, &[1, 6])[0]);
    pending(&node, fixture.header().number, 0).await;
    let mut on_pending = simulation(&fixture);
    on_pending["blockStateCalls"][0].as_object_mut().unwrap().remove("blockOverrides");
    let answer = node.result("/", "eth_simulateV1", json!([on_pending, "pending"])).await;
    seen.push(("on the deposit".to_owned(), simulated(answer)));

    upstream.push(fixture.block(None));
    head(&node, hash(&fixture)).await;
    is_executed(&node, &fixture).await;
    let expected = gas_of(&node.result("/", "eth_getBlockReceipts", json!(["latest"])).await);
    for (how, gas) in seen {
        assert_eq!(gas, expected, "{how}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_is_not_what_it_says_is_not_executed() {
    let Some(fixture) = Fixture::rise() else { return };
    let upstream = upstream(&fixture).await;
    let node = node(&fixture, &upstream.url(), &[]).await;
    // The upstream claims balances of zero, so that the block cannot be executed on its state.
    let mut poor = (*fixture.state).clone();
    poor.values_mut().for_each(|account| account.balance = Default::default());
    upstream.change(|chain| chain.canonical[0].state = Arc::new(poor));
    let mut block = fixture.block(None);
    block.receipts = None;
    upstream.push(block);
    head(&node, hash(&fixture)).await;
    assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"executed\"}"), 0.0);
    let latest = tokio::time::timeout(BOUND, node.result("/", "eth_getBlockByNumber", json!(["latest", true]))).await;
    let latest = latest.expect("it answers");
    assert_eq!((&latest["hash"], &latest["gasUsed"]), (&fixture.block["hash"], &fixture.block["gasUsed"]));
    // The state is fetched from the upstream again.
    let (address, account) = fixture.state.iter().find(|(_, account)| !account.balance.is_zero()).unwrap();
    assert_eq!(node.result("/", "eth_getBalance", json!([address, "latest"])).await, json!(account.balance));
}
