//! An upstream that is slow, overloaded, wrong or unreachable, and requests that only the upstream can answer.

use std::time::Duration;

use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope, proofs::calculate_transaction_root};
use alloy_eips::{Decodable2718, Encodable2718};
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, keccak256};
use alloy_signer::SignerSync;
use presim::testing::{
    ledger::{FeedProblem, Selector},
    source::devnet::world::dev_signers,
};
use serde_json::{Value, json};

use super::{
    built::{Built, ETHEREUM, SOMEBODY, store, transfer},
    feed, head, health,
    receipts::with_log_fields,
    refused, serve,
    stage::chain_of,
    start, until,
};
use crate::{
    support::{BOUND, TestNode, hex},
    upstream::{Fault, SmallUpstream, UpstreamBlock},
};

/// The deadline of a request in these tests, in ms.
const DEADLINE: &str = "1500";
/// Returns an account that no test has requested yet.
fn fresh(number: u8) -> Address {
    Address::with_last_byte(number)
}

/// Starts an upstream of three blocks, and a node on the second.
async fn pair(flags: &[&str]) -> (SmallUpstream, TestNode, [Built; 3]) {
    let genesis = Built::ethereum();
    let one = genesis.next(vec![transfer(ETHEREUM, 0, 7), store(ETHEREUM, 1, 5)], 1);
    let two = one.next(vec![transfer(ETHEREUM, 2, 8)], 1);
    let upstream = serve(&[&genesis, &one]).await;
    let flags = [&["--deadline-ms", DEADLINE], flags].concat();
    let node = start(&upstream.url(), &genesis.config, &flags).await;
    (upstream, node, [genesis, one, two])
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_here_is_served_and_what_is_not_is_refused_with_the_cause() {
    let faults = [
        (Fault::TooManyRequests, "429"),
        (Fault::LimitExceeded, "-32005"),
        (Fault::ServerError, "500"),
        (Fault::Garbage, "no JSON-RPC response"),
        (Fault::NoAnswer, ""),
        (Fault::Closed, ""),
        (Fault::Silence, "within"),
    ];
    let (upstream, node, [_, _, two]) = pair(&["--upstream-timeout-ms", "300"]).await;
    assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, "0x7");
    for (number, (fault, cause)) in faults.into_iter().enumerate() {
        upstream.fail(fault, usize::MAX);
        let params = json!([fresh(100 + number as u8), "latest"]);
        let told = refused(&node, "eth_getBalance", params.clone(), -32603, BOUND).await;
        assert!(told.contains("upstream") && told.contains(cause), "{fault:?}: {told}");
        assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, "0x7", "{fault:?}");
        feed(&node, Some(FeedProblem::Upstream)).await;
        let (status, document, freshness) = health(&node).await;
        assert_eq!((status, &document["cause"]), (503, &json!("upstream")), "{fault:?}: {document}");
        assert!(freshness.contains("feed=degraded"), "{freshness}");
        let ready = node.client.get(node.url("/ready")).send().await.expect("it answers");
        assert_eq!(ready.status(), 503, "{fault:?}");
        let ready: Value = ready.json().await.expect("JSON");
        assert_eq!((&ready["status"], &ready["reason"]), (&json!("not ready"), &document["reason"]), "{fault:?}");
        assert_eq!(node.metric("presim_upstream_state"), 0.0, "{fault:?}");
        assert_eq!(node.metric("presim_feed_state{state=\"upstream\"}"), 1.0, "{fault:?}");
        upstream.well();
        feed(&node, None).await;
        assert_eq!(node.result("/", "eth_getBalance", params).await, "0x0", "{fault:?}");
        assert_eq!(health(&node).await.1["feed"], "live");
    }
    assert!(node.metric("presim_upstream_retries_total") > 0.0);
    assert!(node.metric("presim_upstream_requests_total{outcome=\"failed\"}") >= 7.0);
    upstream.push(two.block.clone());
    head(&node, two.hash()).await;
    assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, "0xf");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_that_passes_is_not_seen_by_who_asked() {
    let (upstream, node, _) = pair(&["--upstream-poll-ms", "60000"]).await;
    for (number, fault) in
        [Fault::TooManyRequests, Fault::LimitExceeded, Fault::ServerError, Fault::Garbage, Fault::Closed]
            .into_iter()
            .enumerate()
    {
        upstream.fail(fault, 1);
        let params = json!([fresh(100 + number as u8), "latest"]);
        assert_eq!(node.result("/", "eth_getBalance", params).await, "0x0", "{fault:?}");
    }
}

/// Returns a block with one more transaction, which pays more than any account can have. Its header has the root of all
/// transactions if `is_own`.
fn with_impossible_transaction(built: &Built, on: &Built, is_own: bool) -> UpstreamBlock {
    let tx = TxEip1559 {
        chain_id: ETHEREUM,
        gas_limit: 100_000,
        max_fee_per_gas: 20_000_000_000,
        to: TxKind::Call(SOMEBODY),
        value: U256::MAX,
        ..TxEip1559::default()
    };
    let signer = &dev_signers().expect("keys")[1];
    let signature = signer.sign_hash_sync(&tx.signature_hash()).expect("it signs");
    let envelope = TxEnvelope::from(tx.into_signed(signature));
    let decode = |raw: &Bytes| TxEnvelope::decode_2718_exact(raw).expect("a transaction");
    let all: Vec<TxEnvelope> = built.raw().iter().map(decode).chain([envelope.clone()]).collect();
    let mut header = built.header().clone();
    if is_own {
        header.transactions_root = calculate_transaction_root(&all);
    }
    let mut block = UpstreamBlock::with_header(header, on.block.state.clone());
    block.transactions = built.block.transactions.clone();
    let mut json = serde_json::to_value(&envelope).expect("a transaction is JSON");
    json["from"] = json!(signer.address());
    json["blockHash"] = json!(block.hash);
    block.transactions.push(json);
    block
}

/// An upstream can put anything into its blocks.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_cannot_be_is_a_divergence_and_the_chain_is_followed_on() {
    for is_own in [true, false] {
        let genesis = Built::ethereum();
        let one = genesis.next(vec![transfer(ETHEREUM, 0, 7)], 1);
        let upstream = serve(&[&genesis]).await;
        let node = start(&upstream.url(), &genesis.config, &[]).await;
        let impossible = with_impossible_transaction(&one, &genesis, is_own);
        upstream.push(impossible.clone());
        head(&node, impossible.hash).await;
        assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"executed\"}"), 0.0, "{is_own}");
        let kept = node.node.snapshots().divergences.newest_first();
        let named = kept.first().map(|divergence| divergence.field.clone());
        assert_eq!(named.as_deref(), Some(if is_own { "transactions[1]" } else { "transactionsRoot" }));
        // The feed goes on.
        let other = genesis.next(vec![transfer(ETHEREUM, 0, 8)], 2);
        let after = other.next(vec![transfer(ETHEREUM, 1, 9)], 2);
        upstream.reorganise(vec![other.block.clone(), after.block.clone()]);
        head(&node, after.hash()).await;
        feed(&node, None).await;
        assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"executed\"}"), 2.0, "{is_own}");
        assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, "0x11");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_256_states_of_an_upstream_are_kept_if_that_is_set() {
    const BLOCKS: usize = 300;
    let genesis = Built::ethereum();
    let upstream = serve(&[&genesis]).await;
    let node = start(&upstream.url(), &genesis.config, &["--keep-blocks", "1000", "--block-time", "200ms"]).await;
    let blocks = chain_of(&genesis, BLOCKS, |at| vec![transfer(ETHEREUM, at as u64, 1)]);
    // Blocks of 200 ms: so many are those of a minute, which are caught up with.
    upstream.reorganise(blocks.iter().map(|built| built.block.clone()).collect());
    head(&node, blocks[BLOCKS - 1].hash()).await;
    assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"executed\"}"), BLOCKS as f64);
    for at in [0, 10, 150, BLOCKS - 1] {
        let params = json!([SOMEBODY, hex(blocks[at].number())]);
        assert_eq!(node.result("/", "eth_getBalance", params).await, hex(at as u64 + 1), "{at}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_is_slow_is_waited_for() {
    let (upstream, node, [_, _, two]) = pair(&[]).await;
    upstream.delay(Duration::from_millis(100));
    assert_eq!(node.result("/", "eth_getBalance", json!([fresh(1), "latest"])).await, "0x0");
    upstream.push(two.block.clone());
    head(&node, two.hash()).await;
    assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"executed\"}"), 1.0);
    upstream.delay(BOUND);
    let told = refused(&node, "eth_getBalance", json!([fresh(2), "latest"]), -32603, BOUND).await;
    assert!(told.contains("upstream"), "{told}");
}

async fn away_and_back(is_socket: bool) {
    let genesis = Built::ethereum();
    let one = genesis.next(vec![transfer(ETHEREUM, 0, 7)], 1);
    let two = one.next(vec![transfer(ETHEREUM, 1, 8)], 1);
    let upstream = serve(&[&genesis, &one]).await;
    let url = if is_socket { upstream.ws_url() } else { upstream.url() };
    let node = start(&url, &genesis.config, &["--deadline-ms", DEADLINE]).await;
    assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, "0x7");
    upstream.go_away();
    let told = refused(&node, "eth_getBalance", json!([fresh(1), "latest"]), -32603, BOUND).await;
    assert!(told.contains("upstream"), "{told}");
    assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, "0x7");
    feed(&node, Some(FeedProblem::Upstream)).await;
    assert_eq!(health(&node).await.0, 503);
    // The chain has continued meanwhile.
    upstream.push(two.block.clone());
    upstream.come_back_after(4).await;
    head(&node, two.hash()).await;
    feed(&node, None).await;
    assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, "0xf");
    assert_eq!(node.result("/", "eth_getBalance", json!([fresh(1), "latest"])).await, "0x0");
    assert_eq!(node.metric("presim_upstream_state"), 1.0);
}

/// The upstream answers again after several attempts to reach it.
#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_goes_away_and_comes_back() {
    tokio::join!(away_and_back(false), away_and_back(true));
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_are_sent_on_and_older_blocks_are_asked_for() {
    let (upstream, node, [genesis, one, two]) = pair(&[]).await;
    let raw = two.raw()[0].clone();
    let hash = node.result("/", "eth_sendRawTransaction", json!([raw])).await;
    assert_eq!(hash, json!(keccak256(&raw)));
    assert_eq!(upstream.has_sent(1).await, std::slice::from_ref(&raw));
    upstream.refuse("eth_sendRawTransaction", Some((-32000, "nonce too low")));
    let told = refused(&node, "eth_sendRawTransaction", json!([raw]), -32000, BOUND).await;
    assert_eq!(told, "nonce too low");
    assert_eq!(upstream.has_sent(1).await.len(), 1);
    upstream.refuse("eth_sendRawTransaction", None);

    // Blocks before the node's start come from the upstream.
    let block = node.block("0x0").await;
    assert_eq!(block["hash"], json!(genesis.hash()));
    let block = node.result("/", "eth_getBlockByHash", json!([genesis.hash(), false])).await;
    assert_eq!(block["number"], "0x0");
    for method in ["debug_getRawHeader", "debug_getRawBlock", "debug_getRawReceipts", "eth_getHeaderByNumber"] {
        upstream.refuse(method, Some((-32601, "asked")));
        assert_eq!(refused(&node, method, json!(["0x0"]), -32601, BOUND).await, "asked");
    }
    upstream.refuse("debug_getRawTransaction", Some((-32601, "asked")));
    assert_eq!(refused(&node, "debug_getRawTransaction", json!([keccak256("none")]), -32601, BOUND).await, "asked");
    // Blocks after its start are its own.
    upstream.push(two.block.clone());
    head(&node, two.hash()).await;
    let header = node.result("/", "debug_getRawHeader", json!(["latest"])).await;
    assert_eq!(keccak256(header.as_str().unwrap().parse::<Bytes>().unwrap()), two.hash());
    assert_eq!(node.result("/", "debug_getRawTransaction", json!([two.tx_hash(0)])).await, json!(raw));
    let told = node.result("/", "eth_capabilities", json!([])).await;
    let window = json!({"type": "window", "retentionBlocks": "0x100"});
    // The logs of this upstream lack fields, so that the body of the block that the node began with is not its own.
    for (kinds, oldest) in [(&["state", "stateproofs"][..], &one), (&["tx", "logs", "receipts", "blocks"], &two)] {
        let own = json!({"disabled": false, "oldestBlock": hex(oldest.number()), "deleteStrategy": window});
        kinds.iter().for_each(|kind| assert_eq!(told[kind], own, "{kind} of {told}"));
    }
    let asked = upstream.asked("eth_getTransactionReceipt");
    let receipt = node.result("/", "eth_getTransactionReceipt", json!([two.tx_hash(0)])).await;
    assert_eq!(receipt["blockHash"], json!(two.hash()));
    assert_eq!(upstream.asked("eth_getTransactionReceipt"), asked);
    let receipt = node.result("/", "eth_getTransactionReceipt", json!([one.tx_hash(1)])).await;
    assert_eq!(receipt["transactionHash"], json!(one.tx_hash(1)));
    let none = node.result("/", "eth_getTransactionReceipt", json!([keccak256("none")])).await;
    assert!(none.is_null());
    let logs = node.result("/", "eth_getLogs", json!([{"fromBlock": "0x0", "toBlock": "latest"}])).await;
    assert_eq!(logs[0]["topics"][0], json!(format!("{:#066x}", 5)), "{logs}");
    assert_eq!(upstream.asked("eth_getLogs"), 1);
    let logs = node.result("/", "eth_getLogs", json!([{"fromBlock": hex(two.number()), "toBlock": "latest"}])).await;
    assert_eq!((logs, upstream.asked("eth_getLogs")), (json!([]), 1));
}

/// The headers of some chains have fields that presim does not know, so that what it knows has another hash.
#[tokio::test(flavor = "multi_thread")]
async fn a_header_that_is_not_known_in_full_is_encoded_by_the_upstream() {
    let (upstream, node, [_, _, two]) = pair(&[]).await;
    let hash = json!(two.hash());
    upstream.lie(move |method, _, mut block| {
        if method.starts_with("eth_getBlockBy") && block["hash"] == hash {
            block["nonce"] = json!("0x0000000000000001");
        }
        block
    });
    upstream.push(two.block.clone());
    head(&node, two.hash()).await;
    for method in ["debug_getRawHeader", "debug_getRawBlock"] {
        upstream.refuse(method, Some((-32601, "asked")));
        for at in [json!("latest"), json!(two.hash())] {
            assert_eq!(refused(&node, method, json!([at]), -32601, BOUND).await, "asked");
        }
    }
    let shown = node.result("/", "eth_getHeaderByNumber", json!(["latest"])).await;
    assert_eq!((&shown["hash"], &shown["nonce"]), (&json!(two.hash()), &json!("0x0000000000000001")));
    let receipts: Vec<Bytes> = two.receipts().iter().map(|receipt| receipt.encoded_2718().into()).collect();
    assert_eq!(node.result("/", "debug_getRawReceipts", json!(["latest"])).await, json!(receipts));
}

#[tokio::test(flavor = "multi_thread")]
async fn safe_and_finalized_are_the_upstreams() {
    let (upstream, node, [genesis, one, two]) = pair(&[]).await;
    upstream.change(|chain| (chain.finalized, chain.safe) = (Some(genesis.number()), Some(one.number())));
    upstream.push(two.block.clone());
    head(&node, two.hash()).await;
    until(&node, "tags", |published| {
        published.select(Selector::Safe).is_ok_and(|safe| safe.head.number() == one.number())
    })
    .await;
    let hash = |tag: &'static str| {
        let node = &node;
        async move { node.result("/", "eth_getBlockByNumber", json!([tag, false])).await["hash"].clone() }
    };
    assert_eq!(hash("safe").await, json!(one.hash()));
    assert_eq!(hash("finalized").await, json!(genesis.hash()));
    assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "safe"])).await, "0x7");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_takes_no_hash_for_a_block_is_asked_by_its_number() {
    let (upstream, node, [_, _, two]) = pair(&[]).await;
    upstream.take_no_hashes();
    assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, "0x7");
    upstream.push(two.block.clone());
    head(&node, two.block.hash).await;
    assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, "0xf");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_over_wrong_state_of_the_upstream_names_the_mismatch() {
    let genesis = Built::ethereum();
    let one = genesis.next(vec![transfer(ETHEREUM, 0, 7)], 1);
    let two = one.next(vec![store(ETHEREUM, 1, 5), transfer(ETHEREUM, 2, 8)], 1);
    let word = json!(B256::with_last_byte(9));
    for (method, lie, traced, mismatch) in [
        ("eth_getStorageAt", word.clone(), 0, "transaction 0 used"),
        ("eth_getStorageAt", word, 1, "transaction 0 used"),
        ("eth_getBalance", json!("0x0"), 0, "transaction 0: "),
        ("eth_getTransactionCount", json!("0x9"), 1, "transaction 0: "),
    ] {
        let upstream = serve(&[&genesis, &one]).await;
        upstream.lie(move |asked, _, result| if asked == method { lie.clone() } else { result });
        let node = start(&upstream.url(), &genesis.config, &[]).await;
        upstream.push(with_log_fields(&two));
        head(&node, two.hash()).await;
        let error = node.error("/", "debug_traceTransaction", json!([two.tx_hash(traced)])).await;
        assert_eq!(error["code"], -32000, "{method}: {error}");
        let text = error["message"].as_str().expect("a message");
        for part in ["block 2 cannot be replayed", mismatch, &one.hash().to_string()] {
            assert!(text.contains(part), "{method}: {part} in {text}");
        }
    }
}
