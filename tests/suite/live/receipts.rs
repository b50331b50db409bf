//! Blocks that are not executed here, and whose receipts the upstream does not have yet when it announces them.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

use alloy_primitives::{Address, B256, U256};
use serde_json::{Value, json};

use super::{
    built::{Built, OP_CHAIN, STORE, sent_by, store},
    head, health, serve, start, until,
};
use crate::{
    process::eventually,
    support::{BOUND, Socket, TestNode, hex},
    upstream::SmallUpstream,
};

/// The native contract of these tests.
const NATIVE: Address = Address::repeat_byte(0xb2);

/// An upstream that answers `null` for the receipts of a block, and a node that follows it.
struct LateStage {
    upstream: SmallUpstream,
    node: TestNode,
    first: Built,
    /// Whether the receipts are withheld.
    withheld: Arc<AtomicBool>,
}

impl LateStage {
    /// Starts a node that cannot execute blocks which call [`NATIVE`]. The receipts of all blocks but the first are
    /// withheld.
    async fn new(flags: &[&str]) -> Self {
        let first = Built::op_stack();
        let upstream = serve(&[&first]).await;
        let withheld = Arc::new(AtomicBool::new(true));
        let (is_withheld, own) = (withheld.clone(), json!(first.hash()));
        upstream.lie(move |method, params, result| match method {
            "eth_getBlockReceipts" if params[0] != own && is_withheld.load(SeqCst) => Value::Null,
            _ => result,
        });
        let native = NATIVE.to_string();
        let node = start(&upstream.url(), &first.config, &[&["--native", native.as_str()], flags].concat()).await;
        Self { upstream, node, first, withheld }
    }

    fn tell(&self) {
        self.withheld.store(false, SeqCst);
    }

    async fn push(&self, block: &Built) {
        self.upstream.push(with_log_fields(block));
        head(&self.node, block.hash()).await;
    }

    /// Returns the words of the logs that a filter tells from now on, of which there are to be `count`.
    async fn polled(&self, filter: &Value, count: usize) -> Vec<Value> {
        let mut words = Vec::new();
        let polling = async {
            while words.len() < count {
                let changes = self.node.result("/", "eth_getFilterChanges", json!([filter])).await;
                words.extend(changes.as_array().expect("a list").iter().map(|log| log["topics"][0].clone()));
            }
        };
        tokio::time::timeout(BOUND, polling).await.expect("the filter tells them in time");
        words
    }
}

/// Returns the block as an upstream serves it, whose logs have all of their fields.
pub fn with_log_fields(block: &Built) -> crate::upstream::UpstreamBlock {
    complete_logs(block.block.clone())
}

/// Returns a block whose logs have all of their fields.
pub fn complete_logs(mut served: crate::upstream::UpstreamBlock) -> crate::upstream::UpstreamBlock {
    let (hash_of_block, number) = (served.hash, served.number);
    let (mut at, receipts) = (0, served.receipts.as_mut().expect("receipts"));
    for (index, receipt) in receipts.iter_mut().enumerate() {
        let hash = receipt["transactionHash"].clone();
        for log in receipt["logs"].as_array_mut().expect("a list") {
            log["blockHash"] = json!(hash_of_block);
            log["blockNumber"] = json!(hex(number));
            log["transactionHash"] = hash.clone();
            log["transactionIndex"] = json!(hex(index as u64));
            log["logIndex"] = json!(hex(at));
            log["removed"] = json!(false);
            at += 1;
        }
    }
    served
}

fn word(value: u64) -> Value {
    json!(B256::from(U256::from(value)))
}

/// Builds a block that stores a word and that presim cannot execute.
fn not_executed(on: &Built, nonce: u64, value: u64) -> Built {
    let calls_native = sent_by(0, OP_CHAIN, nonce + 1, NATIVE, 0, Default::default());
    on.next(vec![store(OP_CHAIN, nonce, value), calls_native], 1)
}

async fn log_of(socket: &mut Socket, id: &Value) -> (Value, bool) {
    let log = socket.notification(id).await;
    (log["topics"][0].clone(), log["removed"] == json!(true))
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_whose_receipts_come_late_are_told_and_those_of_later_blocks_wait() {
    let stage = LateStage::new(&[]).await;
    let node = &stage.node;
    let one = not_executed(&stage.first, 0, 7);
    let two = one.next(vec![store(OP_CHAIN, 2, 8)], 1);
    let mut socket = Socket::open(node, "/").await;
    let heads = socket.subscribe(json!(["newHeads"])).await;
    let logs = socket.subscribe(json!(["logs", {"address": STORE}])).await;
    let filter = node.result("/", "eth_newFilter", json!([{"address": STORE}])).await;
    let other = node.result("/", "eth_newFilter", json!([{"address": NATIVE}])).await;
    for block in [&one, &two] {
        stage.push(block).await;
        assert_eq!(socket.notification(&heads).await["hash"], json!(block.hash()), "the head is told at once");
    }
    // The logs of the second block are known, and wait.
    assert_eq!(node.result("/", "eth_getFilterChanges", json!([filter])).await, json!([]));
    assert_eq!(node.result("/", "eth_getFilterChanges", json!([other])).await, json!([]));
    let (status, document, _) = health(node).await;
    assert_eq!(status, 200, "{document}");
    let named = &document["lateBlocks"];
    assert_eq!((&named[0]["number"], &named[0]["hash"]), (&json!(hex(one.number())), &json!(one.hash())), "{document}");
    assert_eq!(named[1], Value::Null);
    stage.tell();
    assert_eq!(log_of(&mut socket, &logs).await, (word(7), false));
    assert_eq!(log_of(&mut socket, &logs).await, (word(8), false));
    assert_eq!(stage.polled(&filter, 2).await, [word(7), word(8)]);
    assert_eq!(health(node).await.1["lateBlocks"], Value::Null);
    // The block is whole now, and answered without the upstream.
    let asked = stage.upstream.asked("eth_getLogs");
    let range = json!([{"fromBlock": hex(one.number()), "toBlock": "latest"}]);
    let told = node.result("/", "eth_getLogs", range).await;
    assert_eq!((&told[0]["topics"][0], &told[1]["topics"][0]), (&word(7), &word(8)), "{told}");
    assert_eq!(stage.upstream.asked("eth_getLogs"), asked);
    assert_eq!(node.metric("presim_feed_fallbacks_total{reason=\"upstream\"}"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_of_later_blocks_wait_only_so_long_and_the_late_ones_are_told_when_they_come() {
    for bound in [["--upstream-late-ms", "100"], ["--upstream-late-mb", "0"]] {
        let stage = LateStage::new(&bound).await;
        let node = &stage.node;
        let one = not_executed(&stage.first, 0, 7);
        let two = one.next(vec![store(OP_CHAIN, 2, 8)], 1);
        let mut socket = Socket::open(node, "/").await;
        let logs = socket.subscribe(json!(["logs", {"address": STORE}])).await;
        let filter = node.result("/", "eth_newFilter", json!([{"address": STORE}])).await;
        stage.push(&one).await;
        stage.push(&two).await;
        assert_eq!(log_of(&mut socket, &logs).await, (word(8), false), "{bound:?}");
        assert_eq!(stage.polled(&filter, 1).await, [word(8)], "{bound:?}");
        assert_eq!(health(node).await.1["lateBlocks"][0]["hash"], json!(one.hash()));
        stage.tell();
        assert_eq!(log_of(&mut socket, &logs).await, (word(7), false), "{bound:?}");
        assert_eq!(stage.polled(&filter, 1).await, [word(7)], "{bound:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_block_that_is_reorganised_away_is_told_neither_as_new_nor_as_removed() {
    let stage = LateStage::new(&[]).await;
    let node = &stage.node;
    let one = not_executed(&stage.first, 0, 7);
    let other = stage.first.next(vec![store(OP_CHAIN, 0, 9)], 2);
    let after = other.next(vec![store(OP_CHAIN, 1, 10)], 2);
    let mut socket = Socket::open(node, "/").await;
    let logs = socket.subscribe(json!(["logs", {"address": STORE}])).await;
    stage.push(&one).await;
    stage.upstream.reorganise(vec![with_log_fields(&other), with_log_fields(&after)]);
    head(node, after.hash()).await;
    assert_eq!(log_of(&mut socket, &logs).await, (word(9), false));
    assert_eq!(log_of(&mut socket, &logs).await, (word(10), false));
    assert_eq!(node.node.snapshots().load().late_blocks().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wait_for_receipts_ends_when_their_block_is_final() {
    let stage = LateStage::new(&[]).await;
    let node = &stage.node;
    let one = not_executed(&stage.first, 0, 7);
    let two = one.next(vec![store(OP_CHAIN, 2, 8)], 1);
    let mut socket = Socket::open(node, "/").await;
    let logs = socket.subscribe(json!(["logs", {"address": STORE}])).await;
    stage.push(&one).await;
    stage.push(&two).await;
    assert_eq!(node.node.snapshots().load().late_blocks().count(), 1);
    stage.upstream.change(|chain| chain.finalized = Some(one.number()));
    assert_eq!(log_of(&mut socket, &logs).await, (word(8), false));
    assert_eq!(health(node).await.1["lateBlocks"], Value::Null);
}

/// Nothing but the logs is known of a block with a transaction of an unknown type.
#[tokio::test(flavor = "multi_thread")]
async fn logs_of_a_block_with_an_unknown_transaction_type_are_told() {
    let stage = LateStage::new(&[]).await;
    let node = &stage.node;
    let one = stage.first.next(vec![store(OP_CHAIN, 0, 7)], 1);
    let mut served = with_log_fields(&one);
    let hash = B256::repeat_byte(0x79);
    served.transactions.push(json!({"hash": hash, "type": "0x79", "blockHash": one.hash(), "calls": []}));
    let receipts = served.receipts.as_mut().expect("receipts");
    receipts.push(json!({"transactionHash": hash, "type": "0x79", "status": "0x1", "logs": [], "calls": []}));
    let mut socket = Socket::open(node, "/").await;
    let logs = socket.subscribe(json!(["logs", {"address": STORE}])).await;
    let filter = node.result("/", "eth_newFilter", json!([{"address": STORE}])).await;
    stage.upstream.push(served);
    head(node, one.hash()).await;
    assert_eq!(node.result("/", "eth_getFilterChanges", json!([filter])).await, json!([]));
    stage.tell();
    let log = socket.notification(&logs).await;
    assert_eq!((&log["topics"][0], &log["transactionHash"]), (&word(7), &json!(one.tx_hash(1))), "{log}");
    assert_eq!((&log["transactionIndex"], &log["logIndex"]), (&json!("0x1"), &json!("0x0")), "{log}");
    assert_eq!(stage.polled(&filter, 1).await, [word(7)]);
}

/// One of several nodes behind an address may be a block behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_null_for_an_announced_block_degrades_nothing() {
    let first = Built::op_stack();
    let upstream = serve(&[&first]).await;
    let node = start(&upstream.ws_url(), &first.config, &["--upstream-poll-ms", "60000"]).await;
    eventually("it subscribes", async || (upstream.subscribers() > 0).then_some(())).await;
    let one = first.next(vec![store(OP_CHAIN, 0, 7)], 1);
    let (left, hash, behind) = (AtomicUsize::new(3), json!(one.hash()), first.block.json(true));
    upstream.lie(move |method, params, result| {
        let is_about_it = method == "eth_getBlockByHash" && params[0] == hash;
        let is_newest = method == "eth_getBlockByNumber" && params[0] == "latest";
        match left.load(SeqCst) {
            0 => result,
            _ if is_about_it => {
                left.fetch_sub(1, SeqCst);
                Value::Null
            }
            _ if is_newest => behind.clone(),
            _ => result,
        }
    });
    upstream.push(one.block.clone());
    head(&node, one.hash()).await;
    until(&node, "live", |published| !published.feed().is_degraded()).await;
    for problem in presim::testing::ledger::FeedProblem::ALL {
        let name = format!("presim_feed_fallbacks_total{{reason=\"{}\"}}", problem.as_str());
        assert_eq!(node.metric(&name), 0.0, "{problem:?}");
    }
    assert_eq!(node.metric("presim_reorgs_total"), 0.0);
}

/// The error of a node that does not have a method.
const UNKNOWN: Option<(i64, &str)> = Some((-32601, "the method does not exist/is not available"));

/// Where `eth_getBlockReceipts` is unknown, the logs of the block are asked for, and where these are not given, single receipts.
#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_without_block_receipts_is_asked_for_logs_or_for_single_receipts() {
    for missing in [&["eth_getBlockReceipts"][..], &["eth_getBlockReceipts", "eth_getLogs"]] {
        let stage = LateStage::new(&[]).await;
        stage.tell();
        missing.iter().for_each(|method| stage.upstream.refuse(method, UNKNOWN));
        let node = &stage.node;
        let one = not_executed(&stage.first, 0, 7);
        let two = one.next(vec![store(OP_CHAIN, 2, 8)], 1);
        let mut socket = Socket::open(node, "/").await;
        let logs = socket.subscribe(json!(["logs", {"address": STORE}])).await;
        let filter = node.result("/", "eth_newFilter", json!([{"address": STORE}])).await;
        stage.push(&one).await;
        stage.push(&two).await;
        assert_eq!(log_of(&mut socket, &logs).await, (word(7), false), "{missing:?}");
        assert_eq!(log_of(&mut socket, &logs).await, (word(8), false), "{missing:?}");
        assert_eq!(stage.polled(&filter, 2).await, [word(7), word(8)], "{missing:?}");
        let (status, document, _) = health(node).await;
        assert_eq!((status, &document["lateBlocks"]), (200, &Value::Null), "{missing:?}: {document}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_whose_logs_the_upstream_does_not_give_is_late_until_it_does() {
    let stage = LateStage::new(&[]).await;
    stage.tell();
    for method in ["eth_getBlockReceipts", "eth_getLogs", "eth_getTransactionReceipt"] {
        stage.upstream.refuse(method, UNKNOWN);
    }
    let node = &stage.node;
    let one = not_executed(&stage.first, 0, 7);
    let mut socket = Socket::open(node, "/").await;
    let logs = socket.subscribe(json!(["logs", {"address": STORE}])).await;
    let filter = node.result("/", "eth_newFilter", json!([{"address": STORE}])).await;
    stage.push(&one).await;
    let (status, document, _) = health(node).await;
    assert_eq!((status, &document["lateBlocks"][0]["hash"]), (200, &json!(one.hash())), "{document}");
    stage.upstream.refuse("eth_getLogs", None);
    assert_eq!(log_of(&mut socket, &logs).await, (word(7), false));
    assert_eq!(stage.polled(&filter, 1).await, [word(7)]);
    assert_eq!(health(node).await.1["lateBlocks"], Value::Null);
}

/// A newer block that is not known does not concern a range that ends before it.
#[tokio::test(flavor = "multi_thread")]
async fn logs_of_complete_blocks_are_answered_here_while_a_newer_block_is_bare() {
    let stage = LateStage::new(&[]).await;
    let node = &stage.node;
    let one = stage.first.next(vec![store(OP_CHAIN, 0, 7)], 1);
    let two = not_executed(&one, 1, 8);
    let at = hex(one.number());
    let range = json!({"address": STORE, "fromBlock": at, "toBlock": at});
    let filter = node.result("/", "eth_newFilter", json!([range])).await;
    stage.push(&one).await;
    stage.push(&two).await;
    let asked = stage.upstream.asked("eth_getLogs");
    for (method, params) in [("eth_getLogs", json!([range])), ("eth_getFilterLogs", json!([filter]))] {
        let told = node.result("/", method, params).await;
        assert_eq!((&told[0]["topics"][0], &told[1]), (&word(7), &Value::Null), "{method}: {told}");
    }
    assert_eq!(stage.upstream.asked("eth_getLogs"), asked, "nothing goes to the upstream");
}
