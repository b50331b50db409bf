//! `eth_sendBundle` on a devnet: all transactions of a bundle in a row, or none of them.
//!
//! Blocks are mined on request, so that a test decides what is in each. A mined block has one sub-block.

use alloy_consensus::{TxEip1559, TxEip4844, TxLegacy};
use alloy_eips::eip7594::BlobTransactionSidecarEip7594;
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, bytes, keccak256};
use alloy_rpc_types_mev::{EthBundleHash, EthSendBundle};
use presim::testing::source::devnet::world::dev_signers;
use serde_json::{Value, json};

use crate::{
    disk::Disk,
    live,
    power_loss::start_on,
    process,
    sending::{blob_tx, blobs, hashes, key, plain, raw, raw_blob, sign},
    support::{PATHS, TestNode, hex, items, number, token, token_file},
    witness::Rpc,
};

const GWEI: u128 = 1_000_000_000;

/// A devnet that mines on request.
struct MiningNode {
    node: TestNode,
}

impl MiningNode {
    fn new(flags: &[&str]) -> Self {
        Self {
            node: TestNode::start(
                &[&["--testing", "--world", "--gas-limit", "60000000", "--dialect", "project", "--no-mining"], flags]
                    .concat(),
            ),
        }
    }

    /// Returns the number of the block being built.
    async fn open(&self) -> u64 {
        self.node.height().await + 1
    }

    /// Sends a bundle for the block being built. Returns its hash.
    async fn send(&self, txs: &[Bytes], more: Value) -> Value {
        let bundle = self.bundle(txs, more).await;
        self.node.result("/", "eth_sendBundle", bundle).await["bundleHash"].take()
    }

    async fn refusal(&self, txs: &[Bytes], more: Value) -> (i64, String) {
        let error = self.node.error("/", "eth_sendBundle", self.bundle(txs, more).await).await;
        (error["code"].as_i64().unwrap(), error["message"].as_str().unwrap().to_owned())
    }

    async fn bundle(&self, txs: &[Bytes], more: Value) -> Value {
        let mut bundle = json!({"txs": txs, "blockNumber": hex(self.open().await)});
        bundle.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!([bundle])
    }

    /// Mines a block. Returns the hashes of its transactions.
    async fn mine(&self) -> Vec<Value> {
        self.node.result("/", "evm_mine", json!([])).await;
        items(&self.node.block("latest").await["transactions"]).to_vec()
    }

    async fn pool(&self, tx: &Bytes) -> Value {
        self.node.result("/", "eth_sendRawTransaction", json!([tx])).await
    }

    async fn status(&self, tx: &Bytes) -> Value {
        self.node.result("/", "eth_getTransactionReceipt", json!([hash(tx)])).await["status"].take()
    }

    async fn account(&self, index: usize) -> (U256, u64) {
        let at = json!([key(index).address(), "pending"]);
        let balance = self.node.result("/", "eth_getBalance", at.clone()).await;
        let nonce = number(&self.node.result("/", "eth_getTransactionCount", at).await);
        (balance.as_str().unwrap().parse().unwrap(), nonce)
    }
}

fn hash(tx: &Bytes) -> B256 {
    keccak256(tx)
}

fn hashes_of(txs: &[Bytes]) -> Vec<Value> {
    txs.iter().map(|tx| json!(hash(tx))).collect()
}

/// Returns a payment of an account.
fn pays(index: usize, nonce: u64) -> Bytes {
    raw(plain(nonce), &key(index))
}

/// Returns a transaction that reverts: `PUSH0 PUSH0 REVERT` as creation code.
fn reverts(index: usize, nonce: u64) -> Bytes {
    let tx = TxEip1559 { to: TxKind::Create, gas_limit: 100_000, value: U256::ZERO, ..plain(nonce) };
    raw(TxEip1559 { input: bytes!("5f5ffd"), ..tx }, &key(index))
}

// All or none.

#[tokio::test(flavor = "multi_thread")]
async fn the_transactions_of_a_bundle_are_mined_in_a_row() {
    for path in PATHS {
        let node = MiningNode::new(&[]);
        let rich = raw(TxEip1559 { max_priority_fee_per_gas: 5 * GWEI, ..plain(0) }, &key(5));
        node.pool(&rich).await;
        // A tip of nothing: the pool would not take it.
        let free = raw(TxEip1559 { max_priority_fee_per_gas: 0, ..plain(0) }, &key(1));
        let txs = [pays(0, 0), free, pays(0, 1)];
        let bundle = EthSendBundle { txs: txs.to_vec(), block_number: node.open().await, ..EthSendBundle::default() };
        let answer = node.node.result(path, "eth_sendBundle", json!([bundle])).await;
        let answer: EthBundleHash = serde_json::from_value(answer).unwrap();
        assert_eq!(answer.bundle_hash, bundle.bundle_hash());

        // The bundle is private until it is mined.
        assert_eq!(node.node.result(path, "eth_getTransactionByHash", json!([hash(&txs[0])])).await, Value::Null);
        assert_eq!(node.node.result(path, "txpool_status", json!([])).await["pending"], "0x1");
        assert_eq!(node.mine().await, [hashes_of(&txs), hashes_of(&[rich])].concat());
        for tx in &txs {
            assert_eq!(node.status(tx).await, "0x1");
        }
        assert_eq!(node.mine().await, Vec::<Value>::new(), "it is mined once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_bundle_that_fails_is_on_the_chain() {
    let node = MiningNode::new(&[]);
    let gas = |gas_limit| raw(TxEip1559 { gas_limit, ..plain(0) }, &key(2));
    let cheap = raw(TxEip1559 { max_fee_per_gas: 1, max_priority_fee_per_gas: 1, ..plain(0) }, &key(2));
    let poor = raw(TxEip1559 { value: U256::MAX >> 8, ..plain(0) }, &key(2));
    for (why, last) in [
        ("reverts", vec![reverts(2, 0)]),
        ("has the nonce of the first", vec![raw(TxEip1559 { gas_limit: 22_000, ..plain(0) }, &key(0))]),
        ("has a nonce too high", vec![pays(2, 1)]),
        ("pays less than the base fee", vec![cheap]),
        ("costs more than its sender has", vec![poor]),
        (
            "runs out of gas",
            vec![{
                let tx = TxEip1559 { to: TxKind::Create, input: bytes!("5b5f56"), gas_limit: 60_000, ..plain(0) };
                raw(tx, &key(2))
            }],
        ),
    ] {
        let before = [node.account(0).await, node.account(1).await, node.account(2).await];
        let txs = [vec![pays(0, 0), pays(1, 0)], last].concat();
        node.send(&txs, json!({})).await;
        assert_eq!(node.mine().await, Vec::<Value>::new(), "the last {why}");
        assert_eq!([node.account(0).await, node.account(1).await, node.account(2).await], before, "the last {why}");
        for tx in &txs {
            assert_eq!(node.node.result("/", "eth_getTransactionByHash", json!([hash(tx)])).await, Value::Null);
        }
    }
    // A bundle that fails leaves room for others, the next bundle and the pool's transactions.
    let bad = [gas(21_000), reverts(1, 0)];
    let good = [gas(21_001)];
    node.send(&bad, json!({})).await;
    node.send(&good, json!({})).await;
    let pooled = pays(0, 0);
    node.pool(&pooled).await;
    assert_eq!(node.mine().await, hashes_of(&[good[0].clone(), pooled]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_that_needs_more_gas_than_the_block_has_left_is_not_mined() {
    // Each transaction uses all of its 15 million gas: JUMPDEST PUSH0 JUMP.
    let spends = |index: usize, nonce: u64| {
        let tx = TxEip1559 { to: TxKind::Create, input: bytes!("5b5f56"), gas_limit: 15_000_000, ..plain(nonce) };
        raw(tx, &key(index))
    };
    let node = MiningNode::new(&[]);
    let txs: Vec<Bytes> = (0..5).map(|index| spends(index, 0)).collect();
    let all = json!({"revertingTxHashes": hashes_of(&txs)});
    node.send(&txs, all).await;
    assert_eq!(node.mine().await, Vec::<Value>::new(), "the block has 60 million gas");
    let four = json!({"revertingTxHashes": hashes_of(&txs[..4])});
    node.send(&txs[..4], four).await;
    assert_eq!(node.mine().await, hashes_of(&txs[..4]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_may_revert_is_mined_without_success() {
    let node = MiningNode::new(&[]);
    let txs = [pays(0, 0), reverts(1, 0), pays(0, 1)];
    node.send(&txs, json!({"revertingTxHashes": [hash(&txs[0])]})).await;
    assert_eq!(node.mine().await, Vec::<Value>::new(), "another may revert, this one not");
    node.send(&txs, json!({"revertingTxHashes": [hash(&txs[1])]})).await;
    assert_eq!(node.mine().await, hashes_of(&txs));
    assert_eq!([node.status(&txs[0]).await, node.status(&txs[1]).await], ["0x1", "0x0"]);
    // An invalid transaction cannot be mined at all.
    let txs = [pays(2, 0), pays(3, 7)];
    node.send(&txs, json!({"revertingTxHashes": hashes_of(&txs)})).await;
    assert_eq!(node.mine().await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn blobs_and_legacy_transactions_are_in_bundles_too() {
    let node = MiningNode::new(&[]);
    let sidecar: BlobTransactionSidecarEip7594 = blobs(b"a blob").build_7594().unwrap();
    let blob: TxEip4844 = blob_tx(0, hashes(&sidecar));
    let plain_blob = sign(blob.clone(), &key(0));
    let network = raw_blob(blob, sidecar, &key(0));
    let legacy = TxLegacy {
        chain_id: Some(31337),
        gas_price: 10 * GWEI,
        gas_limit: 21_000,
        to: Address::ZERO.into(),
        ..TxLegacy::default()
    };
    let legacy = raw(legacy, &key(1));
    node.send(&[network, legacy.clone()], json!({})).await;
    assert_eq!(node.mine().await, [json!(plain_blob.tx_hash()), json!(hash(&legacy))]);
}

// The block.

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_waits_for_its_block_and_ends_with_it() {
    let node = MiningNode::new(&[]);
    let open = node.open().await;
    let later = [pays(0, 0)];
    node.send(&later, json!({"blockNumber": hex(open + 2)})).await;
    // A JSON number is a number too.
    let late = [pays(1, 1)];
    node.send(&late, json!({"blockNumber": open + 1})).await;
    for _ in 0..2 {
        assert_eq!(node.mine().await, Vec::<Value>::new());
    }
    // The nonce before it is used now, but its block is sealed.
    node.pool(&pays(1, 0)).await;
    assert_eq!(node.mine().await, hashes_of(&[later[0].clone(), pays(1, 0)]));
    assert_eq!(node.mine().await, Vec::<Value>::new());

    for (block, fits) in [(open + 3, false), (open + 4, true), (open + 29, true), (open + 30, false), (0, false)] {
        let bundle = json!([{"txs": [pays(5, 0)], "blockNumber": hex(block)}]);
        let answer = node.node.call("/", "eth_sendBundle", bundle).await;
        let error = format!(
            "params[0].blockNumber: block {block}: expected the block being built, {}, or one of the 25 after it",
            open + 4
        );
        match fits {
            true => assert!(answer["result"]["bundleHash"].is_string(), "{answer}"),
            false => {
                assert_eq!((&answer["error"]["code"], &answer["error"]["message"]), (&json!(-32000), &json!(error)))
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_is_tried_in_each_sub_block_of_its_block() {
    let node =
        MiningNode { node: TestNode::start(&["--traffic", "0", "--sub-block-ms", "20", "--sub-blocks", "10000"]) };
    let second = pays(0, 1);
    node.send(std::slice::from_ref(&second), json!({})).await;
    node.node.publishes(3).await;
    assert_eq!(node.status(&second).await, Value::Null);
    let first = pays(0, 0);
    node.pool(&first).await;
    node.node.mined(&json!(hash(&second))).await;
    let block = node.node.block("pending").await;
    assert_eq!(block["transactions"], json!([hash(&first), hash(&second)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_is_mined_only_at_its_time() {
    let node = MiningNode::new(&[]);
    for (nonce, field, offset, is_mined) in [
        (0, "minTimestamp", 1, false),
        (0, "maxTimestamp", -1, false),
        (0, "minTimestamp", 0, true),
        (1, "maxTimestamp", 0, true),
    ] {
        let open = node.node.block("pending").await;
        let time = number(&open["timestamp"]).saturating_add_signed(offset);
        let tx = pays(0, nonce);
        node.send(std::slice::from_ref(&tx), json!({field: time})).await;
        let expected = if is_mined { hashes_of(&[tx]) } else { Vec::new() };
        assert_eq!(node.mine().await, expected, "{field}: {offset} s");
    }
    // Zero is no bound.
    let tx = pays(0, 2);
    node.send(std::slice::from_ref(&tx), json!({"minTimestamp": "0x0", "maxTimestamp": 0})).await;
    assert_eq!(node.mine().await, hashes_of(&[tx]));
}

// Beside the pool.

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_comes_before_the_pool_and_may_have_its_transactions() {
    let node = MiningNode::new(&[]);
    // Another transaction with the nonce of one in the pool: the bundle's is mined, and the pool's is dropped.
    let (pooled, follows) = (raw(TxEip1559 { value: U256::from(5), ..plain(0) }, &key(0)), pays(0, 1));
    node.pool(&pooled).await;
    node.pool(&follows).await;
    let own = pays(0, 0);
    node.send(std::slice::from_ref(&own), json!({})).await;
    assert_eq!(node.mine().await, hashes_of(std::slice::from_ref(&own)));
    assert_eq!(node.status(&pooled).await, Value::Null);
    assert_eq!(node.mine().await, hashes_of(&[follows]), "the next nonce waits for the next sub-block");
    assert_eq!(node.node.result("/", "txpool_status", json!([])).await, json!({"pending": "0x0", "queued": "0x0"}));

    // The transaction of the pool itself, with one after it.
    let (victim, after) = (pays(1, 0), pays(1, 1));
    node.pool(&victim).await;
    node.pool(&after).await;
    let backrun = [victim.clone(), pays(2, 0)];
    node.send(&backrun, json!({})).await;
    assert_eq!(node.mine().await, [hashes_of(&backrun), hashes_of(&[after])].concat());
    assert_eq!(node.node.result("/", "txpool_status", json!([])).await, json!({"pending": "0x0", "queued": "0x0"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_bundles_with_the_same_nonces_the_first_is_mined() {
    let node = MiningNode::new(&[]);
    let first = [pays(0, 0), pays(1, 0)];
    let second = [pays(2, 0), pays(1, 0)];
    node.send(&first, json!({})).await;
    node.send(&second, json!({})).await;
    assert_eq!(node.mine().await, hashes_of(&first));
    assert_eq!(node.account(2).await.1, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_is_sent_again_replaced_and_cancelled() {
    let node = MiningNode::new(&["--pool-bundles", "2"]);
    let [one, other] = [[pays(0, 0)], [pays(1, 0)]];
    // The same bundle twice is one bundle.
    assert_eq!(node.send(&one, json!({})).await, node.send(&one, json!({})).await);
    node.send(&other, json!({"replacementUuid": "mine"})).await;
    // A bundle under the same name takes its place, for another block too.
    let third = [pays(2, 0)];
    let later = hex(node.open().await + 1);
    node.send(&third, json!({"uuid": "mine", "blockNumber": later})).await;
    let (code, text) = node.refusal(&other, json!({})).await;
    assert_eq!(code, -32005, "{text}");
    assert!(text.starts_with("2 bundles wait already: expected at most 2 (--pool-bundles)"), "{text}");
    assert_eq!(node.mine().await, hashes_of(&one));
    assert_eq!(node.mine().await, hashes_of(&third));

    node.send(&other, json!({"replacementUuid": "mine"})).await;
    let cancel = async |name: &str| node.node.result("/", "eth_cancelBundle", json!([{"replacementUuid": name}])).await;
    assert_eq!(cancel("another").await, false);
    assert_eq!(cancel("mine").await, true);
    assert_eq!(cancel("mine").await, false);
    assert_eq!(node.mine().await, Vec::<Value>::new());
}

// Reads the outcome of the bundle.

#[tokio::test(flavor = "multi_thread")]
async fn the_outcome_of_a_bundle_says_where_it_is_or_why_it_was_dropped() {
    for path in PATHS {
        let node = MiningNode::new(&[]);
        let outcome = async |hash: &Value| node.node.result(path, "presim_outcome", json!([hash])).await;
        let pending = json!({"status": "pending"});
        let dropped = |reason: String| json!({"status": "dropped", "reason": reason});
        assert_eq!(outcome(&json!(B256::ZERO)).await, Value::Null);

        let open = node.open().await;
        let good = node.send(&[pays(0, 0), pays(1, 0)], json!({})).await;
        let bad = node.send(&[pays(2, 0), reverts(3, 0)], json!({})).await;
        let early = node.send(&[pays(4, 0)], json!({"maxTimestamp": 1})).await;
        for hash in [&good, &bad, &early] {
            assert_eq!(outcome(hash).await, pending);
        }
        node.mine().await;
        assert_eq!(outcome(&good).await, json!({"status": "mined", "blockNumber": hex(open)}));
        assert_eq!(outcome(&bad).await, dropped(format!("block {open} is sealed: transaction 1 of the bundle fails")));
        let untried = "the bundle was not tried, because no block had a timestamp that it allows, or time for it";
        assert_eq!(outcome(&early).await, dropped(format!("block {open} is sealed: {untried}")));

        // Sent again, it waits again.
        let later = json!({"blockNumber": hex(open + 2), "replacementUuid": "mine"});
        assert_eq!(node.send(&[pays(4, 0)], later.clone()).await, early);
        assert_eq!(outcome(&early).await, pending);
        let next = node.send(&[pays(5, 0)], later).await;
        assert_eq!(outcome(&early).await, dropped("it was replaced".to_owned()));
        node.node.result(path, "eth_cancelBundle", json!([{"replacementUuid": "mine"}])).await;
        assert_eq!(outcome(&next).await, dropped("it was cancelled".to_owned()));

        // One of its transactions is mined by another way.
        let parts = node.send(&[pays(4, 0), pays(5, 1)], json!({})).await;
        node.pool(&pays(4, 0)).await;
        node.mine().await;
        let alone =
            format!("transaction 0 of the bundle ({}) is in block {} without the others", hash(&pays(4, 0)), open + 1);
        assert_eq!(outcome(&parts).await, dropped(alone));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_without_a_block_is_for_the_one_being_built_and_up_to_its_last() {
    let node = MiningNode::new(&[]);
    let send =
        async |bundle: Value| node.node.result("/", "eth_sendBundle", json!([bundle])).await["bundleHash"].take();
    let outcome = async |hash: &Value| node.node.result("/", "presim_outcome", json!([hash])).await;
    let open = node.open().await;
    let now = send(json!({"txs": [pays(0, 0)]})).await;
    // The nonce before its own is used in the second block from here.
    let [waits, expires] = [2, 1].map(|blocks| open + blocks);
    let waits = send(json!({"txs": [pays(1, 1)], "maxBlockNumber": hex(waits)})).await;
    let expires = send(json!({"txs": [pays(2, 1)], "maxBlockNumber": expires})).await;
    assert_eq!(node.mine().await, hashes_of(&[pays(0, 0)]));
    assert_eq!(outcome(&now).await, json!({"status": "mined", "blockNumber": hex(open)}));
    node.pool(&pays(1, 0)).await;
    assert_eq!(outcome(&expires).await, json!({"status": "pending"}));
    assert_eq!(node.mine().await, hashes_of(&[pays(1, 0)]));
    assert_eq!(outcome(&waits).await, json!({"status": "pending"}));
    let reason = outcome(&expires).await["reason"].take();
    assert!(
        reason.as_str().unwrap().starts_with(&format!("block {} is sealed: transaction 0 of the bundle: ", open + 1))
    );
    assert_eq!(node.mine().await, hashes_of(&[pays(1, 1)]));
    assert_eq!(outcome(&waits).await, json!({"status": "mined", "blockNumber": hex(open + 2)}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_s_names_are_its_own() {
    let file = token_file(&[("a", 10_000), ("b", 10_000)]);
    let node = TestNode::quiet_with(&["--token-file", process::text(file.path())]);
    let call = async |client: usize, method: &str, param: Value| {
        node.call_as(&token(["a", "b"][client]), method, json!([param])).await["result"].take()
    };
    let name = json!({"replacementUuid": "0b4ee1a6-6d2f-4c52-8b0b-6a2f1ad2d1f0"});
    let mut bundle = name.clone();
    (bundle["txs"], bundle["blockNumber"]) = (json!([pays(0, 0)]), json!("0x1"));
    let sent = call(0, "eth_sendBundle", bundle).await["bundleHash"].take();
    assert!(sent.is_string());
    assert_eq!(call(1, "presim_outcome", sent.clone()).await, Value::Null, "it is another client's");
    assert_eq!(call(0, "presim_outcome", sent).await["status"], "pending");
    assert_eq!(call(1, "eth_cancelBundle", name.clone()).await, false);
    assert_eq!(call(0, "eth_cancelBundle", name).await, true);
}

// Refusals.

#[tokio::test(flavor = "multi_thread")]
async fn bad_bundles_are_refused_and_their_field_named() {
    let node = MiningNode::new(&["--pool-bytes", "20000"]);
    let good = pays(0, 0);
    let long = raw(TxEip1559 { input: vec![0; 120_000].into(), gas_limit: 3_000_000, ..plain(0) }, &key(0));
    let second = raw(TxEip1559 { input: vec![0; 120_000].into(), gas_limit: 3_000_000, ..plain(1) }, &key(0));
    let third = raw(TxEip1559 { input: vec![0; 120_000].into(), gas_limit: 3_000_000, ..plain(2) }, &key(0));
    let foreign = raw(TxEip1559 { chain_id: 1, ..plain(0) }, &key(0));
    let weak = raw(TxEip1559 { gas_limit: 20_999, ..plain(0) }, &key(0));
    let with = |more: Value| {
        let mut bundle = json!({"txs": [good], "blockNumber": "0x1"});
        bundle.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!([bundle])
    };
    let of = |index: usize, tx: &Bytes| format!("params[0].txs[{index}] ({}): ", hash(tx));
    for (params, code, text) in [
        (json!([]), -32602, "invalid length 0, expected 1 parameter: the bundle".to_owned()),
        (json!([{"blockNumber": "0x1"}]), -32602, "missing field `txs`".to_owned()),
        (
            with(json!({"maxBlockNumber": "0x0"})),
            -32000,
            "params[0].maxBlockNumber: block 0: expected 1, the first block that may have the bundle, or one after it up to 26"
                .to_owned(),
        ),
        (with(json!({"maxBlockNumber": 27})), -32000, "params[0].maxBlockNumber: block 27: expected".to_owned()),
        (with(json!({"txs": []})), -32602, "params[0].txs: empty".to_owned()),
        (with(json!({"txs": ["0x02"]})), -32602, "params[0].txs[0]: not a signed transaction".to_owned()),
        (
            with(json!({"txs": [good, good]})),
            -32602,
            "params[0].txs[1]: expected another transaction than txs[0]".to_owned(),
        ),
        (
            with(json!({"txs": vec![good.clone(); 101]})),
            -32005,
            "params[0].txs: too many transactions: 101, at most 100".to_owned(),
        ),
        (with(json!({"txs": [good, foreign]})), -32000, of(1, &foreign) + "invalid sender: invalid chain id"),
        (with(json!({"txs": [weak]})), -32000, of(0, &weak) + "intrinsic gas too low"),
        (with(json!({"txs": [long, second, third]})), -32005, "params[0].txs: 360".to_owned()),
        (
            with(json!({"txs": [long]})),
            -32005,
            "the bundles that wait already leave 20000 bytes: expected at least 120".to_owned(),
        ),
        (with(json!({"blockNumber": "latest"})), -32602, "params[0].blockNumber".to_owned()),
        (
            with(json!({"minTimestamp": 2, "maxTimestamp": 1})),
            -32602,
            "params[0].maxTimestamp: 1: expected at least minTimestamp, 2".to_owned(),
        ),
        (with(json!({"revertingTxHashes": [B256::ZERO]})), -32602, "params[0].revertingTxHashes[0]: 0x00".to_owned()),
        (with(json!({"revertingTxHashes": ["0x1"]})), -32602, "params[0].revertingTxHashes[0]".to_owned()),
        (with(json!({"replacementUuid": ""})), -32602, "params[0].replacementUuid: 0 bytes".to_owned()),
        (with(json!({"replacementUuid": "a".repeat(65)})), -32602, "params[0].replacementUuid: 65 bytes".to_owned()),
        (with(json!({"droppingTxHashes": []})), -32602, "params[0].droppingTxHashes: unknown field".to_owned()),
    ] {
        let error = node.node.error("/", "eth_sendBundle", params).await;
        assert_eq!(error["code"], code, "{text}: {error}");
        assert!(error["message"].as_str().unwrap().contains(&text), "{text}: {error}");
    }
    let error = node.node.error("/", "eth_cancelBundle", json!([{}])).await;
    assert_eq!(error["code"], -32602, "{error}");
    assert_eq!(node.mine().await, Vec::<Value>::new());
    // The other dialect ignores fields that it does not know.
    let open = hex(node.open().await);
    let bundle = with(json!({"blockNumber": open, "builders": ["flashbots"], "revertingTxHashes": null}));
    node.node.result("/standard", "eth_sendBundle", bundle).await;
    assert_eq!(node.mine().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_with_a_nonce_that_is_used_is_refused() {
    let node = MiningNode::new(&[]);
    node.pool(&pays(0, 0)).await;
    node.pool(&pays(0, 1)).await;
    assert_eq!(node.mine().await.len(), 2);
    let (first, used) = (pays(1, 0), raw(TxEip1559 { value: U256::from(3), ..plain(1) }, &key(0)));
    let expected = format!("params[0].txs[1] ({}): nonce too low: next nonce 2, tx nonce 1", hash(&used));
    assert_eq!(node.refusal(&[first.clone(), used], json!({})).await, (-32000, expected));
    // A nonce that is not used yet may come before in the block.
    let txs = [first, pays(0, 2)];
    node.send(&txs, json!({})).await;
    assert_eq!(node.mine().await, hashes_of(&txs));
    // The state to which the chain returns decides.
    let saved = node.node.result("/", "evm_snapshot", json!([])).await;
    let tx = pays(0, 3);
    node.send(std::slice::from_ref(&tx), json!({})).await;
    assert_eq!(node.mine().await, hashes_of(std::slice::from_ref(&tx)));
    assert_eq!(node.refusal(std::slice::from_ref(&tx), json!({})).await.0, -32000, "it is mined already");
    node.node.result("/", "evm_revert", json!([saved])).await;
    node.send(std::slice::from_ref(&tx), json!({})).await;
    assert_eq!(node.mine().await, hashes_of(&[tx]));
}

#[tokio::test(flavor = "multi_thread")]
async fn bundles_are_refused_where_no_blocks_are_built() {
    let bundle = json!([{"txs": [pays(0, 0)], "blockNumber": "0x1"}]);
    let name = json!([{"replacementUuid": "mine"}]);
    let still = TestNode::still(&dev_signers().unwrap(), &[]);
    let (_upstream, follower) = live::follower().await;
    for (node, words) in [(&still, "this node builds no blocks"), (&follower, "the chain is an upstream's")] {
        for path in PATHS {
            for (method, params) in [("eth_sendBundle", &bundle), ("eth_cancelBundle", &name)] {
                let error = node.error(path, method, params.clone()).await;
                assert_eq!(error["code"], -32000, "{error}");
                assert!(error["message"].as_str().unwrap().starts_with(words), "{error}");
            }
        }
    }
}

// Restarts.

#[tokio::test(flavor = "multi_thread")]
async fn a_mined_bundle_survives_a_restart_and_a_waiting_one_does_not() {
    let disk = Disk::default();
    let quick = ["--traffic", "0", "--sub-block-ms", "20", "--sub-blocks", "10000"];
    let node = start_on(&disk, &quick);
    let rpc = Rpc::new(node.url("/"));
    let txs = [pays(0, 0), pays(1, 0), pays(0, 1)];
    rpc.result("eth_sendBundle", json!([{"txs": txs, "blockNumber": "0x1"}])).await;
    rpc.result("eth_sendBundle", json!([{"txs": [pays(2, 1)], "blockNumber": "0x1"}])).await;
    node.mined(&json!(hash(&txs[2]))).await;
    let before = rpc.result("eth_getBlockReceipts", json!(["pending"])).await;
    node.node.stop();

    let node = start_on(&disk, &quick);
    let rpc = Rpc::new(node.url("/"));
    assert_eq!(rpc.result("eth_getBlockReceipts", json!(["pending"])).await, before);
    assert_eq!(items(&before).len(), 3);
    let first = pays(2, 0);
    rpc.result("eth_sendRawTransactionSync", json!([first, 30_000])).await;
    node.publishes(2).await;
    assert_eq!(rpc.result("eth_getTransactionReceipt", json!([hash(&pays(2, 1))])).await, Value::Null);
}
