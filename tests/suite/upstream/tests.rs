//! Tests of the test servers themselves.

use std::{sync::Arc, time::Duration};

use alloy_consensus::Header;
use alloy_genesis::GenesisAccount;
use alloy_primitives::{Address, B256, Bloom, Bytes, U256};
use futures::{SinkExt, StreamExt, future::join_all};
use op_alloy::{
    consensus::OpTxEnvelope,
    rpc_types_engine::{OpExecutionData, OpFlashblockPayload},
};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_tungstenite::{connect_async, tungstenite::Message};

use super::*;
use crate::support::{BOUND, http, items, request};

const SOMEBODY: Address = Address::repeat_byte(0x11);

/// Returns a state with one account that has this balance.
fn state(balance: u64) -> Arc<State> {
    let storage = [(B256::with_last_byte(1), B256::with_last_byte(7))].into();
    let account = GenesisAccount { nonce: Some(3), balance: U256::from(balance), ..Default::default() };
    let account = account.with_code(Some(Bytes::from_static(&[0x5f]))).with_storage(Some(storage));
    Arc::new([(SOMEBODY, account)].into())
}

/// Starts an upstream with a single block, number 100.
async fn upstream() -> (SmallUpstream, UpstreamBlock) {
    let header = Header { number: 100, timestamp: 1_000, base_fee_per_gas: Some(7), ..Default::default() };
    let first = UpstreamBlock::with_header(header, state(1));
    (SmallUpstream::start(31337, UpstreamChain::new(vec![first.clone()])).await, first)
}

async fn post(upstream: &SmallUpstream, body: Value) -> reqwest::Result<reqwest::Response> {
    http().post(upstream.url()).body(body.to_string()).send().await
}

async fn call(upstream: &SmallUpstream, method: &str, params: Value) -> Value {
    post(upstream, request(1, method, params)).await.expect("it answers").json().await.expect("it is JSON")
}

async fn result(upstream: &SmallUpstream, method: &str, params: Value) -> Value {
    let mut answer = call(upstream, method, params).await;
    assert!(answer.get("error").is_none(), "{method}: {answer}");
    answer["result"].take()
}

#[tokio::test]
async fn an_upstream_serves_its_blocks_and_their_states() {
    let (upstream, first) = upstream().await;
    upstream.push(first.next(state(2), 0));
    let head = upstream.head();
    assert_eq!(result(&upstream, "eth_chainId", json!([])).await, "0x7a69");
    assert_eq!(result(&upstream, "eth_blockNumber", json!([])).await, "0x65");
    let block = result(&upstream, "eth_getBlockByNumber", json!(["latest", false])).await;
    assert_eq!((&block["hash"], &block["parentHash"]), (&json!(head.hash), &json!(first.hash)));
    assert_eq!(result(&upstream, "eth_getBlockByHash", json!([head.hash, true])).await, block);
    assert_eq!(result(&upstream, "eth_getBlockByNumber", json!(["0x66", false])).await, Value::Null);
    assert_eq!(result(&upstream, "eth_getBlockReceipts", json!(["0x65"])).await, json!([]));

    let at = json!({"blockHash": first.hash, "requireCanonical": true});
    for (selector, balance) in
        [(json!("latest"), "0x2"), (json!("0x64"), "0x1"), (at, "0x1"), (json!("earliest"), "0x1")]
    {
        assert_eq!(result(&upstream, "eth_getBalance", json!([SOMEBODY, selector])).await, balance, "{selector}");
    }
    assert_eq!(result(&upstream, "eth_getTransactionCount", json!([SOMEBODY, "latest"])).await, "0x3");
    assert_eq!(result(&upstream, "eth_getCode", json!([SOMEBODY, "latest"])).await, "0x5f");
    let slots = [("0x1", B256::with_last_byte(7)), ("0x2", B256::ZERO)];
    for (slot, value) in slots {
        assert_eq!(result(&upstream, "eth_getStorageAt", json!([SOMEBODY, slot, "latest"])).await, json!(value));
    }
    let unknown = call(&upstream, "eth_getBalance", json!([SOMEBODY, "0x99"])).await;
    assert_eq!(unknown["error"]["code"], -32000, "{unknown}");
    assert_eq!(call(&upstream, "eth_createAccessList", json!([{}, "latest"])).await["error"]["code"], -32601);
    upstream.access_lists(|params| json!({"accessList": [], "gasUsed": params[0]["gas"]}));
    assert_eq!(result(&upstream, "eth_createAccessList", json!([{"gas": "0x5"}, "latest"])).await["gasUsed"], "0x5");

    result(&upstream, "eth_sendRawTransaction", json!(["0x0102"])).await;
    assert_eq!(upstream.has_sent(1).await, upstream.sent());
    assert_eq!(upstream.sent(), [Bytes::from_static(&[1, 2])]);

    upstream.change(|chain| (chain.safe, chain.finalized) = (Some(101), Some(100)));
    for (tag, hash) in [("safe", head.hash), ("finalized", first.hash)] {
        let block = result(&upstream, "eth_getBlockByNumber", json!([tag, false])).await;
        assert_eq!(block["hash"], json!(hash), "{tag}");
    }
}

#[tokio::test]
async fn an_upstream_answers_batches_and_counts_what_it_is_asked() {
    let (upstream, _) = upstream().await;
    let balance = request(1, "eth_getBalance", json!([SOMEBODY, "latest"]));
    let batch =
        json!([balance, request(2, "eth_getCode", json!([SOMEBODY, "latest"])), request(3, "no_method", json!([]))]);
    let answers: Value = post(&upstream, batch.clone()).await.unwrap().json().await.unwrap();
    assert_eq!(
        (&answers[0]["result"], &answers[1]["result"], &answers[2]["error"]["code"]),
        (&json!("0x1"), &json!("0x5f"), &json!(-32601))
    );
    assert_eq!((upstream.asked("eth_getBalance"), upstream.asked("eth_getCode"), upstream.waves()), (1, 1, 1));
    post(&upstream, batch).await.unwrap();
    result(&upstream, "eth_blockNumber", json!([])).await;
    upstream.is_asked("eth_getBalance", 2).await;
    assert_eq!(upstream.waves(), 2);
}

#[tokio::test]
async fn what_is_asked_before_an_answer_is_one_wave() {
    let (upstream, _) = upstream().await;
    upstream.delay(Duration::from_millis(300));
    let ask = || post(&upstream, request(1, "eth_getBalance", json!([SOMEBODY, "latest"])));
    let answers = join_all([ask(), ask(), ask()]).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!((upstream.waves(), upstream.asked("eth_getBalance")), (1, 3));
    ask().await.unwrap();
    assert_eq!(upstream.waves(), 2);
}

#[tokio::test]
async fn heads_are_told_over_websocket_and_a_reorg_leaves_its_blocks_to_be_had_by_hash() {
    let (upstream, first) = upstream().await;
    let (mut socket, _) = connect_async(upstream.ws_url()).await.unwrap();
    let subscribe = request(1, "eth_subscribe", json!(["newHeads"]));
    socket.send(Message::text(subscribe.to_string())).await.unwrap();
    let mut read = async || -> Value {
        let message = timeout(BOUND, socket.next()).await.unwrap().unwrap().unwrap();
        serde_json::from_str(message.to_text().unwrap()).unwrap()
    };
    let id = read().await["result"].take();
    let old = first.next(state(2), 1);
    upstream.push(old.clone());
    assert_eq!(read().await["params"], json!({"subscription": id, "result": old.fields}));

    let branch = first.next(state(3), 2);
    upstream.reorganise(vec![branch.clone(), branch.next(state(4), 2)]);
    assert_eq!(read().await["params"]["result"]["hash"], json!(branch.hash));
    assert_eq!(read().await["params"]["result"]["number"], "0x66");
    let balance = |selector: Value| json!([SOMEBODY, selector]);
    assert_eq!(result(&upstream, "eth_getBalance", balance(json!("0x65"))).await, "0x3");
    assert_eq!(result(&upstream, "eth_getBalance", balance(json!({"blockHash": old.hash}))).await, "0x2");
    let strict = balance(json!({"blockHash": old.hash, "requireCanonical": true}));
    assert_eq!(call(&upstream, "eth_getBalance", strict).await["error"]["code"], -32000);

    socket.send(Message::text(request(2, "eth_unsubscribe", json!([id])).to_string())).await.unwrap();
    let message = timeout(BOUND, socket.next()).await.unwrap().unwrap().unwrap();
    assert!(message.to_text().unwrap().contains("\"result\":true"), "{message}");
    assert_eq!(upstream.subscribers(), 0);
}

#[tokio::test]
async fn an_upstream_fails_as_it_is_told() {
    let (upstream, _) = upstream().await;
    let number = || request(1, "eth_blockNumber", json!([]));
    for (fault, status) in [(Fault::TooManyRequests, 429), (Fault::ServerError, 500)] {
        upstream.fail(fault, 1);
        assert_eq!(post(&upstream, number()).await.unwrap().status().as_u16(), status);
    }
    upstream.fail(Fault::LimitExceeded, 2);
    for _ in 0..2 {
        assert_eq!(call(&upstream, "eth_blockNumber", json!([])).await["error"]["code"], -32005);
    }
    upstream.fail(Fault::Garbage, 1);
    let text = post(&upstream, number()).await.unwrap().text().await.unwrap();
    assert!(serde_json::from_str::<Value>(&text).is_err(), "{text}");
    upstream.fail(Fault::NoAnswer, 1);
    assert!(call(&upstream, "eth_blockNumber", json!([])).await.get("jsonrpc").is_none());
    upstream.fail(Fault::Closed, usize::MAX);
    for _ in 0..2 {
        assert!(post(&upstream, number()).await.is_err());
    }
    upstream.fail(Fault::Silence, usize::MAX);
    let silent = http().post(upstream.url()).timeout(Duration::from_millis(200)).body(number().to_string());
    assert!(silent.send().await.unwrap_err().is_timeout());
    upstream.well();
    upstream.lie(|method, params, result| match method {
        "eth_getBalance" if params[1] == "latest" => json!("0xdead"),
        _ => result,
    });
    assert_eq!(result(&upstream, "eth_getBalance", json!([SOMEBODY, "latest"])).await, "0xdead");
    assert_eq!(result(&upstream, "eth_getBalance", json!([SOMEBODY, "0x64"])).await, "0x1");
    upstream.well();
    assert_eq!(result(&upstream, "eth_getBalance", json!([SOMEBODY, "latest"])).await, "0x1");
}

#[tokio::test]
async fn an_upstream_goes_away_and_comes_back() {
    let (upstream, _) = upstream().await;
    let (mut socket, _) = connect_async(upstream.ws_url()).await.unwrap();
    upstream.go_away();
    assert!(!matches!(timeout(BOUND, socket.next()).await.unwrap(), Some(Ok(_))));
    assert!(post(&upstream, request(1, "eth_chainId", json!([]))).await.is_err());
    assert_eq!(upstream.connections(), 1);
    upstream.come_back().await;
    assert_eq!(result(&upstream, "eth_chainId", json!([])).await, "0x7a69");
    assert_eq!(upstream.connections(), 2);
}

#[tokio::test]
async fn a_recorded_block_is_served_after_its_parent() {
    let Some(fixture) = Fixture::rise() else { return };
    for fixture in [fixture.on_hashed_parent(), fixture] {
        let upstream = SmallUpstream::start(fixture.chain_id, UpstreamChain::new(vec![fixture.parent()])).await;
        let parent = result(&upstream, "eth_getBlockByNumber", json!(["latest", true])).await;
        assert_eq!((&parent["hash"], &parent["number"]), (&fixture.block["parentHash"], &json!("0x7c2f0d")));
        upstream.push(fixture.block(None));
        let block = result(&upstream, "eth_getBlockByNumber", json!(["latest", true])).await;
        for field in ["hash", "parentHash", "gasUsed", "receiptsRoot", "logsBloom", "transactionsRoot"] {
            assert_eq!(block[field], fixture.block[field], "{field}");
        }
        let header: Header = serde_json::from_value(block.clone()).unwrap();
        assert_eq!(json!(header.hash_slow()), block["hash"]);
        let transactions = items(&block["transactions"]);
        assert_eq!((transactions.len(), &transactions[0]["type"]), (fixture.raw.len(), &json!("0x7e")));
        let read: Vec<op_alloy::rpc_types::Transaction> =
            serde_json::from_value(block["transactions"].clone()).unwrap();
        assert_eq!(read.iter().map(|tx| tx.inner.inner.inner().clone()).collect::<Vec<_>>(), fixture.decoded());
        let hashes = result(&upstream, "eth_getBlockByNumber", json!(["latest", false])).await;
        assert_eq!(items(&hashes["transactions"])[6], transactions[6]["hash"]);

        let (address, account) = fixture.state.iter().find(|(_, account)| account.storage.is_some()).unwrap();
        let (slot, value) = account.storage.as_ref().unwrap().first_key_value().unwrap();
        let at = json!({"blockHash": parent["hash"]});
        assert_eq!(result(&upstream, "eth_getStorageAt", json!([address, slot, at])).await, json!(value));
        assert_eq!(result(&upstream, "eth_getBalance", json!([address, at])).await, json!(account.balance));
    }
}

#[test]
fn a_block_is_cut_into_any_sub_blocks() {
    let Some(fixture) = Fixture::rise() else { return };
    let after = |count: usize| Cumulative {
        gas_used: count as u64,
        receipts_root: B256::with_last_byte(count as u8),
        logs_bloom: Bloom::ZERO,
    };
    for split in [vec![7], vec![1, 6], vec![1, 0, 2, 4, 0], vec![0, 1, 1, 1, 1, 1, 1, 1]] {
        let payloads = cut(&fixture, &split, after);
        let all: Vec<Bytes> = payloads.iter().flat_map(|payload| payload.diff.transactions.clone()).collect();
        assert_eq!(all, fixture.raw);
        let whole = OpExecutionData::from_flashblocks(&payloads).unwrap();
        let block = whole.payload.try_into_block_with_sidecar::<OpTxEnvelope>(&whole.sidecar).unwrap();
        assert_eq!(json!(block.header.hash_slow()), fixture.block["hash"], "{split:?}");
        let gas: Vec<u64> = payloads.iter().map(|payload| payload.diff.gas_used).collect();
        assert_eq!(*gas.last().unwrap(), fixture.header().gas_used);
        assert_eq!(gas[0] == split[0] as u64, split[0] < 7);
    }
}

#[tokio::test]
async fn a_flashblocks_server_sends_to_all_its_clients_and_drops_them() {
    let server = FlashblocksServer::start().await;
    let (mut one, _) = connect_async(server.url()).await.unwrap();
    let (mut two, _) = connect_async(server.url()).await.unwrap();
    server.connected(2).await;
    let payload = OpFlashblockPayload { index: 3, ..Default::default() };
    server.send(&payload);
    server.send_brotli(&payload);
    server.send_message(Message::text("garbage"));
    for socket in [&mut one, &mut two] {
        let text = timeout(BOUND, socket.next()).await.unwrap().unwrap().unwrap();
        assert_eq!(serde_json::from_str::<OpFlashblockPayload>(text.to_text().unwrap()).unwrap(), payload);
        let binary = timeout(BOUND, socket.next()).await.unwrap().unwrap().unwrap().into_data();
        let mut json = Vec::new();
        brotli::BrotliDecompress(&mut &*binary, &mut json).unwrap();
        assert_eq!(serde_json::from_slice::<OpFlashblockPayload>(&json).unwrap(), payload);
        let garbage = timeout(BOUND, socket.next()).await.unwrap().unwrap().unwrap();
        assert_eq!(garbage, Message::text("garbage"));
    }
    server.drop_connections();
    assert!(!matches!(timeout(BOUND, one.next()).await.unwrap(), Some(Ok(_))));
    server.open(0).await;
    server.refuse(true);
    assert!(connect_async(server.url()).await.is_err());
    server.refuse(false);

    server.stall(true);
    let stalled = tokio::spawn(connect_async(server.url()));
    server.connected(4).await;
    let (mut socket, _) = stalled.await.unwrap().unwrap();
    server.send(&payload);
    assert!(timeout(Duration::from_millis(100), socket.next()).await.is_err());
    server.stall(false);
    assert!(timeout(BOUND, socket.next()).await.unwrap().unwrap().unwrap().is_text());
    server.close("maintenance");
    let Some(Ok(Message::Close(Some(frame)))) = timeout(BOUND, socket.next()).await.unwrap() else {
        panic!("no close")
    };
    assert_eq!(frame.reason.as_str(), "maintenance");
}
