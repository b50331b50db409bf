//! Subscriptions over `WebSockets`: each message is sent once, in order, to the right subscribers; slow ones are closed.

use std::{collections::BTreeMap, time::Instant};

use alloy_consensus::proofs::calculate_transaction_root;
use alloy_primitives::B256;
use presim::testing::{
    chain::receipts_root_and_bloom,
    ledger::{FeedLag, FeedProblem, FeedState, Selector, SnapshotId},
};
use serde_json::{Value, json};

use crate::support::{BOUND, PATHS, Socket, TestNode, hex, items, number, request, say, without_block_hash};

/// Starts a devnet that trades, with a block every hundred milliseconds.
fn busy(flags: &[&str]) -> TestNode {
    TestNode::start(&[&["--sub-block-ms", "10"], flags].concat())
}

/// Returns the topic of the tokens' `Transfer` event.
fn transfer() -> B256 {
    alloy_primitives::keccak256("Transfer(address,address,uint256)")
}

/// The notifications of a connection, by subscription.
struct Heard(BTreeMap<String, Vec<Value>>);

impl Heard {
    /// Reads notifications until `enough` returns true.
    async fn until(socket: &mut Socket, enough: impl Fn(&Self) -> bool) -> Self {
        let mut heard = Self(BTreeMap::new());
        let began = Instant::now();
        while !enough(&heard) {
            assert!(began.elapsed() < BOUND, "not heard in time");
            let mut message = socket.read().await.expect("a notification comes");
            let id = message["params"]["subscription"].as_str().unwrap_or_else(|| panic!("no notification: {message}"));
            heard.0.entry(id.to_owned()).or_default().push(message["params"]["result"].take());
        }
        heard
    }

    fn of(&self, id: &Value) -> &[Value] {
        self.0.get(id.as_str().expect("an id")).map_or(&[], Vec::as_slice)
    }
}

/// Subscribes with one message, so that all subscriptions begin at the same moment.
async fn subscribe_at_once<const N: usize>(socket: &mut Socket, subjects: [Value; N]) -> [Value; N] {
    let batch = subjects.map(|params| request(1, "eth_subscribe", params));
    let answers = socket.send(json!(batch.as_slice()).to_string()).await;
    std::array::from_fn(|index| {
        let id = &answers[index]["result"];
        assert!(id.is_string(), "{answers}");
        id.clone()
    })
}

/// Returns the header of a block, by removing the fields that only a block has.
fn header_of(mut block: Value) -> Value {
    let fields = block.as_object_mut().expect("a block");
    for field in ["transactions", "uncles", "withdrawals", "size"] {
        assert!(fields.remove(field).is_some(), "{field}");
    }
    block
}

async fn block(node: &TestNode, path: &str, at: u64, full: bool) -> Value {
    node.result(path, "eth_getBlockByNumber", json!([hex(at), full])).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_head_is_told_once_and_in_order() {
    let node = busy(&["--sub-blocks", "4"]);
    for path in PATHS {
        let mut socket = Socket::open(&node, path).await;
        let id = socket.subscribe(json!(["newHeads"])).await;
        let heard = Heard::until(&mut socket, |heard| heard.of(&id).len() == 20).await;
        let first = number(&heard.of(&id)[0]["number"]);
        for (at, head) in (first..).zip(heard.of(&id)) {
            assert_eq!(*head, header_of(block(&node, path, at, false).await), "{path}");
        }
    }
}

/// Returns the transactions of the blocks `from` to `to`.
async fn transactions(node: &TestNode, path: &str, from: u64, to: u64) -> Vec<Value> {
    let mut all = Vec::new();
    for at in from..=to {
        all.extend_from_slice(items(&block(node, path, at, true).await["transactions"]));
    }
    all
}

fn without_block_hashes(values: &[Value]) -> Vec<Value> {
    values.iter().map(without_block_hash).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_log_is_told_once_pre_confirmed_first_and_sealed_then() {
    let node = busy(&[]);
    let pair_event = json!({"topics": [transfer()]});
    for path in PATHS {
        let mut socket = Socket::open(&node, path).await;
        let subjects = [
            json!(["newHeads"]),
            json!(["logs", {}]),
            json!(["logs", pair_event]),
            json!(["pendingLogs"]),
            json!(["pendingLogs", pair_event]),
            json!(["logs", {"topics": [B256::repeat_byte(1)]}]),
        ];
        let [heads, logs, transfers, pending, pending_transfers, nothing] =
            subscribe_at_once(&mut socket, subjects).await;
        let heard = Heard::until(&mut socket, |heard| heard.of(&heads).len() == 4).await;
        // From the second head on, the subscriptions cover whole blocks.
        let numbers: Vec<u64> = heard.of(&heads).iter().map(|head| number(&head["number"])).collect();
        let (from, to) = (numbers[1], numbers[2]);
        let within = |id: &Value| -> Vec<Value> {
            let within = |log: &&Value| (from..=to).contains(&number(&log["blockNumber"]));
            heard.of(id).iter().filter(within).cloned().collect()
        };
        let range = |topics: Value| json!([{"fromBlock": hex(from), "toBlock": hex(to), "topics": topics}]);
        let all = node.result(path, "eth_getLogs", range(json!([]))).await;
        let only_transfers = node.result(path, "eth_getLogs", range(json!([transfer()]))).await;
        assert!(items(&all).len() > items(&only_transfers).len() && !items(&only_transfers).is_empty());
        assert_eq!(within(&logs), items(&all), "{path}");
        assert_eq!(within(&transfers), items(&only_transfers), "{path}");
        assert_eq!(without_block_hashes(&within(&pending)), without_block_hashes(items(&all)), "{path}");
        assert_eq!(without_block_hashes(&within(&pending_transfers)), without_block_hashes(items(&only_transfers)));
        assert!(heard.of(&nothing).is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pending_logs_come_before_the_block_is_sealed() {
    // The block is never sealed while this runs.
    let node = busy(&["--sub-blocks", "10000"]);
    let mut socket = Socket::open(&node, "/").await;
    let id = socket.subscribe(json!(["pendingLogs", {"topics": [transfer()]}])).await;
    for _ in 0..20 {
        let log = socket.notification(&id).await;
        assert_eq!((&log["blockNumber"], &log["topics"][0]), (&json!("0x1"), &json!(transfer())));
    }
    assert_eq!(node.result("/", "eth_blockNumber", json!([])).await, "0x0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flashblock_is_the_block_so_far() {
    let node = busy(&["--sub-blocks", "5"]);
    for path in PATHS {
        let mut socket = Socket::open(&node, path).await;
        let id = socket.subscribe(json!(["newFlashblocks"])).await;
        let heard = Heard::until(&mut socket, |heard| heard.of(&id).len() == 24).await;
        let mut sealed = 0;
        for pair in heard.of(&id).windows(2) {
            let (before, after) = (&pair[0], &pair[1]);
            let (old, new) = (items(&before["transactions"]), items(&after["transactions"]));
            if before["number"] == after["number"] {
                assert!(old.len() <= new.len(), "{path}");
                assert_eq!(without_block_hashes(old), without_block_hashes(&new[..old.len()]), "{path}");
                assert_eq!(before["parentHash"], after["parentHash"]);
            } else {
                // The last notification of a block is the sealed block. The next block begins empty on it.
                assert_eq!(number(&after["number"]), number(&before["number"]) + 1);
                assert_eq!(after["parentHash"], before["hash"]);
                assert!(new.is_empty());
                let mut sealed_block = before.clone();
                let id = sealed_block.as_object_mut().expect("a block").remove("snapshotId");
                assert_eq!(id.as_ref(), Some(&after["snapshotId"]), "{path}");
                assert_eq!(sealed_block, block(&node, path, number(&before["number"]), true).await, "{path}");
                sealed += 1;
            }
        }
        assert!(sealed >= 3, "{path}: {sealed} blocks were sealed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_transaction_is_told_once_under_its_block() {
    let node = busy(&["--sub-blocks", "3"]);
    let mut socket = Socket::open(&node, "/").await;
    let id = socket.subscribe(json!(["presim_snapshots"])).await;
    let (mut told, mut first, mut last): (BTreeMap<u64, Vec<Value>>, _, _) = (BTreeMap::new(), None, 0);
    while first.is_none_or(|first| last < first + 6) {
        let news = socket.notification(&id).await;
        last = number(&news["blockNumber"]);
        first = first.or(Some(last));
        if news["index"] == "0x0" {
            assert_eq!(news["transactions"], json!([]), "the block has only begun: {news}");
        }
        let sealed = news.get("sealed").map_or(&[][..], items);
        assert!(sealed.iter().all(|one| number(&one["blockNumber"]) < last), "{news}");
        for one in sealed.iter().chain([&news]) {
            told.entry(number(&one["blockNumber"])).or_default().extend_from_slice(items(&one["transactions"]));
        }
    }
    let mut seen = 0;
    for at in first.unwrap() + 1..last {
        let expected = block(&node, "/", at, false).await["transactions"].clone();
        assert_eq!(json!(told[&at]), expected, "block {at}");
        seen += items(&expected).len();
    }
    assert!(seen > 0, "the devnet trades");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flashblock_names_its_snapshot() {
    let node = busy(&["--sub-blocks", "5"]);
    for path in PATHS {
        let mut socket = Socket::open(&node, path).await;
        let id = socket.subscribe(json!(["newFlashblocks"])).await;
        let mut last = 0;
        for _ in 0..20 {
            let told = socket.notification(&id).await;
            let snapshot = number(&told["snapshotId"]);
            assert!(snapshot >= last, "{path}: {snapshot} after {last}");
            last = snapshot;
            // The snapshot is the state after the block's transactions: each sender has sent them.
            if let Some(tx) = items(&told["transactions"]).last() {
                let params = json!([tx["from"], {"snapshotId": told["snapshotId"]}]);
                let nonce = number(&node.result(path, "eth_getTransactionCount", params).await);
                assert_eq!(nonce, number(&tx["nonce"]) + 1, "{path}: {snapshot}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_roots_of_a_flashblock_are_those_of_its_transactions() {
    let node = busy(&["--sub-blocks", "30"]);
    let mut socket = Socket::open(&node, "/").await;
    let id = socket.subscribe(json!(["newFlashblocks"])).await;
    let mut seen = 0;
    while seen < 40 {
        let told = socket.notification(&id).await;
        let published = node.node.snapshots().load();
        // Snapshots that are pruned already are skipped.
        let Ok(snapshot) = published.select(Selector::Snapshot(SnapshotId(number(&told["snapshotId"])))) else {
            continue;
        };
        let Some(open) = snapshot.open.as_ref().filter(|open| json!(hex(open.header.number)) == told["number"]) else {
            continue;
        };
        let (receipts_root, bloom) = receipts_root_and_bloom(&open.receipts);
        assert_eq!(told["receiptsRoot"], json!(receipts_root));
        assert_eq!(told["logsBloom"], json!(bloom));
        let transactions: Vec<_> = open.transactions.iter().cloned().collect();
        assert_eq!(told["transactionsRoot"], json!(calculate_transaction_root(&transactions)));
        seen += 1;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_of_the_feed_is_told_at_once_and_on_each_change() {
    let node = TestNode::quiet();
    for path in PATHS {
        let mut socket = Socket::open(&node, path).await;
        let id = socket.subscribe(json!(["presim_feed"])).await;
        let first = socket.notification(&id).await;
        let before = node.node.snapshots().load().feed();
        assert_eq!(first, json!({"state": before.as_str(), "verified": "full"}), "{path}");
        let lag = FeedLag { since: Instant::now(), waiting: 3, cause: FeedProblem::Upstream, every_ms: 200 };
        node.node.snapshots().update(|chain| chain.show_feed(FeedState::Lagging(lag)));
        let late = socket.notification(&id).await;
        let expected = [json!("lagging"), json!("upstream"), json!(3), json!("full")];
        assert_eq!(["state", "cause", "lagSubBlocks", "verified"].map(|field| late[field].clone()), expected, "{path}");
        assert!(late["lagMs"].is_u64(), "{path}: {late}");
        // More of the same lag is no change.
        node.node.snapshots().update(|chain| chain.show_feed(FeedState::Lagging(FeedLag { waiting: 4, ..lag })));
        node.node.snapshots().update(|chain| chain.show_feed(FeedState::Degraded(FeedProblem::Gap)));
        let broken = socket.notification(&id).await;
        assert_eq!(broken, json!({"state": "degraded", "cause": "gap", "verified": "full"}), "{path}");
        // A later subscription is told the present state, the earlier one nothing.
        let other = socket.subscribe(json!(["presim_feed"])).await;
        let message = socket.read().await.expect("a notification");
        assert_eq!((&message["params"]["subscription"], &message["params"]["result"]), (&other, &broken), "{path}");
        node.node.snapshots().update(|chain| chain.show_feed(before));
        assert_eq!(socket.notification(&other).await, first, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_transaction_is_told_once_and_in_order() {
    let node = busy(&["--sub-blocks", "5"]);
    for path in PATHS {
        let mut socket = Socket::open(&node, path).await;
        let none = json!({"address": alloy_primitives::Address::repeat_byte(1)});
        let subjects = [
            json!(["newHeads"]),
            json!(["newFlashblockTransactions"]),
            json!(["newFlashblockTransactions", false]),
            json!(["newFlashblockTransactions", true]),
            json!(["newFlashblockTransactions", {"topics": [transfer()]}]),
            json!(["newFlashblockTransactions", none]),
        ];
        let [heads, by_default, hashes, full, transfers, nothing] = subscribe_at_once(&mut socket, subjects).await;
        let heard = Heard::until(&mut socket, |heard| heard.of(&heads).len() == 6).await;
        let numbers: Vec<u64> = heard.of(&heads).iter().map(|head| number(&head["number"])).collect();
        let all = transactions(&node, path, numbers[1], numbers[5]).await;
        assert!(all.len() > 20, "the devnet trades");
        // Notifications may begin in the middle of the first block and continue into the block after the last.
        let begins = |told: &[Value]| told.iter().position(|one| *one == all[0]["hash"]).expect("the first is told");
        let told = heard.of(&hashes);
        assert_eq!(told, heard.of(&by_default), "{path}");
        let start = begins(told);
        let wanted: Vec<Value> = all.iter().map(|tx| tx["hash"].clone()).collect();
        assert_eq!(told[start..start + wanted.len()], wanted, "{path}");

        // In full, a notification has the transaction and the fields of its receipt.
        let told = &heard.of(&full)[start..start + all.len()];
        for (tx, told) in all.iter().zip(told) {
            let receipt = node.result(path, "eth_getTransactionReceipt", json!([tx["hash"]])).await;
            let mut both = tx.as_object().expect("a transaction").clone();
            for field in ["contractAddress", "cumulativeGasUsed", "gasUsed", "logs", "logsBloom", "status"] {
                both.insert(field.to_owned(), receipt[field].clone());
            }
            assert_eq!(without_block_hash(told), without_block_hash(&json!(both)), "{path}");
        }
        let with_transfers: Vec<_> = told
            .iter()
            .filter(|tx| items(&tx["logs"]).iter().any(|log| log["topics"][0] == json!(transfer())))
            .collect();
        let filtered: Vec<_> = heard.of(&transfers).iter().filter(|tx| wanted.contains(&tx["hash"])).collect();
        assert_eq!(filtered, with_transfers, "{path}");
        assert!(!filtered.is_empty() && heard.of(&nothing).is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_unsubscribing_nothing_comes() {
    let node = busy(&[]);
    for path in PATHS {
        let mut socket = Socket::open(&node, path).await;
        let id = socket.subscribe(json!(["newFlashblocks"])).await;
        socket.notification(&id).await;
        socket.write(request(2, "eth_unsubscribe", json!([id])).to_string()).await.expect("it takes a message");
        let answer = loop {
            let message = socket.read().await.expect("an answer");
            if message["id"] == 2 {
                break message;
            }
        };
        assert_eq!(answer["result"], true, "{answer}");
        // Snapshots continue, but the next message on the connection is the answer.
        node.sealed(node.node.snapshots().newest().head.number() + 2).await;
        let again = socket.call("eth_unsubscribe", json!([id])).await;
        assert_eq!(again["error"]["code"], -32000, "{again}");
        let text = again["error"]["message"].as_str().expect("a message");
        assert!(text.contains("params[0]: subscription not found"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_is_its_connections_own() {
    let node = busy(&[]);
    let (mut one, mut other) = (Socket::open(&node, "/").await, Socket::open(&node, "/").await);
    let id = one.subscribe(json!(["newHeads"])).await;
    let refused = other.call("eth_unsubscribe", json!([id])).await;
    assert_eq!(refused["error"]["code"], -32000, "{refused}");
    one.notification(&id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_to_syncing_begins_and_ends_and_brings_nothing() {
    let node = busy(&[]);
    for path in PATHS {
        let mut socket = Socket::open(&node, path).await;
        let id = socket.subscribe(json!(["syncing"])).await;
        let block = node.node.snapshots().newest().head.number();
        node.sealed(block + 2).await;
        // The next message is the answer.
        socket.write(request(2, "eth_unsubscribe", json!([id])).to_string()).await.expect("it takes a message");
        assert_eq!(socket.read().await, Some(json!({"jsonrpc": "2.0", "id": 2, "result": true})));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_subscribed_to_is_named() {
    let node = TestNode::quiet();
    let cases = [
        ("eth_subscribe", json!([]), "1 or 2 parameters"),
        (
            "eth_subscribe",
            json!(["newHeads", null, 1]),
            "params[2]: invalid type: integer `1`, expected a block selector",
        ),
        ("eth_subscribe", json!(["newHeads", null, "latest", 1]), "more parameters"),
        ("eth_subscribe", json!(["newBlocks"]), "params[0]: unknown variant `newBlocks`, expected one of `newHeads`"),
        ("eth_subscribe", json!(["newheads"]), "params[0]"),
        ("eth_subscribe", json!([1]), "params[0]"),
        ("eth_subscribe", json!({"kind": "newHeads"}), "params: expected an array"),
        ("eth_subscribe", json!(["newHeads", true]), "params[1]: expected nothing"),
        ("eth_subscribe", json!(["newHeads", {}]), "params[1]: expected nothing"),
        ("eth_subscribe", json!(["newFlashblocks", true]), "params[1]: expected nothing"),
        ("eth_subscribe", json!(["syncing", true]), "params[1]: expected nothing"),
        ("eth_subscribe", json!(["presim_feed", {}]), "params[1]: expected nothing"),
        ("eth_subscribe", json!(["newPendingTransactions", {}]), "params[1]: expected a boolean"),
        ("eth_subscribe", json!(["newFlashblockTransactions", "yes"]), "params[1]"),
        ("eth_subscribe", json!(["logs", true]), "params[1]: expected a filter"),
        ("eth_subscribe", json!(["logs", {"address": "0x12"}]), "params[1].address"),
        ("eth_subscribe", json!(["logs", {"topics": ["0x12"]}]), "params[1].topics"),
        ("eth_subscribe", json!(["pendingLogs", {"topics": [null, null, null, null, null]}]), "params[1].topics: 5"),
        ("eth_unsubscribe", json!([]), "1 parameter: the id of a subscription"),
        ("eth_unsubscribe", json!([1]), "params[0]"),
        ("eth_unsubscribe", json!(["newHeads"]), "params[0]"),
    ];
    for path in PATHS {
        let mut socket = Socket::open(&node, path).await;
        for (method, params, text) in &cases {
            let answer = socket.call(method, params.clone()).await;
            let message = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{params} on {path}: {answer}"));
            assert!(answer["error"]["code"] == -32602 && message.contains(text), "{params} on {path}: {answer}");
        }
    }
    // A subscription has no block range. Libraries send one nevertheless, so only `/` rejects it.
    let with_blocks = json!(["logs", {"fromBlock": "latest"}]);
    let refused = Socket::open(&node, "/").await.call("eth_subscribe", with_blocks.clone()).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    let taken = Socket::open(&node, "/standard").await.call("eth_subscribe", with_blocks).await;
    assert!(taken["result"].is_string(), "{taken}");
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_nothing_to_subscribe_on_over_http() {
    let node = TestNode::quiet();
    for path in PATHS {
        for (method, params) in [("eth_subscribe", json!(["newHeads"])), ("eth_unsubscribe", json!(["0x1"]))] {
            let error = node.error(path, method, params.clone()).await;
            assert_eq!(error["code"], -32601, "{error}");
            assert!(error["message"].as_str().is_some_and(|text| text.contains("WebSocket")), "{error}");
            let batch = json!([request(1, method, params), request(2, "eth_chainId", json!([]))]);
            let answers = node.send(path, &batch).await;
            assert_eq!((&answers[0]["error"], &answers[1]["result"]), (&error, &json!("0x7a69")));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_of_a_batch_comes_before_what_it_subscribes_to() {
    let node = TestNode::start(&["--sub-block-ms", "1"]);
    for round in 0..20 {
        let mut socket = Socket::open(&node, PATHS[round % 2]).await;
        let batch = json!([
            request(1, "eth_subscribe", json!(["newFlashblocks"])),
            request(2, "eth_getBlockByNumber", json!(["pending", true])),
            request(3, "eth_subscribe", json!(["newFlashblockTransactions"])),
        ]);
        let answers = socket.send(batch.to_string()).await;
        let ids = [&answers[0]["result"], &answers[2]["result"]].map(|id| id.as_str().expect("an id").to_owned());
        assert_ne!(ids[0], ids[1]);
        let heard = Heard::until(&mut socket, |heard| heard.0.len() == 2).await;
        assert!(heard.0.keys().all(|id| ids.contains(id)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_too_long_to_answer_subscribes_to_nothing() {
    let node = busy(&["--max-response", "4096"]);
    let mut socket = Socket::open(&node, "/").await;
    let long = request(2, "rpc.discover", json!([]));
    let batch = json!([request(1, "eth_subscribe", json!(["newHeads"])), long.clone(), long.clone()]);
    // Each long answer becomes an error of its own; with these calls the batch is too long as a whole.
    let calls: Vec<_> = (0..40).map(|id| request(id, "eth_getBlockByNumber", json!(["0x0", false]))).collect();
    let batch = json!([items(&batch), &calls].concat());
    let answer = socket.send(batch.to_string()).await;
    assert_eq!(answer["error"]["code"], -32005, "{answer}");
    node.sealed(node.node.snapshots().newest().head.number() + 2).await;
    let next = socket.call("eth_chainId", json!([])).await;
    assert_eq!(next["result"], "0x7a69", "nothing else was sent");
    assert_eq!(node.metric("presim_subscriptions"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_may_have_so_many_subscriptions() {
    let node = TestNode::quiet_with(&["--max-subscriptions", "3"]);
    let mut socket = Socket::open(&node, "/").await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(socket.subscribe(json!(["newHeads"])).await);
    }
    let refused = socket.call("eth_subscribe", json!(["newHeads"])).await;
    assert_eq!(refused["error"]["code"], -32005, "{refused}");
    assert!(refused["error"]["message"].as_str().is_some_and(|text| text.contains("3 subscriptions already")));
    assert_eq!(socket.call("eth_unsubscribe", json!([ids[1]])).await["result"], true);
    socket.subscribe(json!(["logs"])).await;
    // The limit is per connection.
    Socket::open(&node, "/").await.subscribe(json!(["newHeads"])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_under_way_do_not_lift_the_bound() {
    let node = TestNode::quiet_with(&["--max-subscriptions", "3", "--workers", "1", "--deadline-ms", "500"]);
    let mut socket = Socket::open(&node, "/").await;
    // Each batch waits for a call that runs until its deadline, so no subscription has begun before the next batch.
    let code_at = "0x00000000000000000000000000000000000c0de0";
    let endless = json!([{"to": code_at}, "pending", {code_at: {"code": "0x5b600056"}}]);
    let batch = |id: u64| {
        let subscribe = (0..2).map(|_| request(id, "eth_subscribe", json!(["newHeads"])));
        json!(subscribe.chain([request(id, "eth_call", endless.clone())]).collect::<Vec<_>>()).to_string()
    };
    for id in 0..4 {
        socket.write(batch(id)).await.expect("it takes a message");
    }
    let (mut subscribed, mut refused) = (0, 0);
    for _ in 0..4 {
        let answers = socket.read().await.expect("an answer");
        for answer in &items(&answers)[..2] {
            match answer["error"]["code"].as_i64() {
                None => subscribed += 1,
                Some(code) => {
                    assert_eq!(code, -32005, "{answer}");
                    refused += 1;
                }
            }
        }
    }
    assert_eq!((subscribed, refused), (3, 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_connection_leaves_no_subscription_behind() {
    let node = busy(&[]);
    let mut sockets = Vec::new();
    for path in PATHS {
        let mut socket = Socket::open(&node, path).await;
        for kind in ["newHeads", "logs", "newFlashblocks"] {
            socket.write(request(1, "eth_subscribe", json!([kind])).to_string()).await.expect("it takes a message");
        }
        sockets.push(socket);
    }
    node.shows("presim_subscriptions 6").await;
    sockets.pop();
    node.shows("presim_subscriptions 3").await;
    sockets.clear();
    node.shows("presim_subscriptions 0").await;
    assert_eq!(node.metric("presim_subscribers_dropped_total"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_subscriber_is_told_why_and_let_go_and_nobody_else_notices() {
    for (flag, most, reason) in [
        ("--max-ws-notifications", "50", "more than 50 notifications are unsent"),
        ("--max-ws-unsent", "1000000", "more than 1000000 bytes are unsent"),
    ] {
        let node = TestNode::start(&["--sub-block-ms", "5", "--traffic", "8", flag, most]);
        let (mut slow, mut quick) = (Socket::open(&node, "/").await, Socket::open(&node, "/").await);
        let heads = quick.subscribe(json!(["newHeads"])).await;
        // The slow client subscribes many times and reads nothing.
        let batch: Vec<_> = (0..100).map(|id| request(id, "eth_subscribe", json!(["newFlashblocks"]))).collect();
        slow.write(json!(batch).to_string()).await.expect("it takes a message");
        let mut numbers = Vec::new();
        let began = Instant::now();
        while node.metric("presim_subscribers_dropped_total") == 0.0 {
            assert!(began.elapsed() < BOUND, "it is not let go");
            numbers.push(number(&quick.notification(&heads).await["number"]));
        }
        // The client now reads some of the notifications, and then the reason for the close.
        let mut last = Value::Null;
        while let Some(message) = slow.read().await {
            last = message;
        }
        assert_eq!((&last["error"]["code"], &last["id"]), (&json!(-32005), &Value::Null), "{last}");
        assert!(last["error"]["message"].as_str().is_some_and(|text| text.contains(reason)), "{last}");
        let frame = slow.closed.expect("the close says why");
        assert!(frame.reason.contains("slow subscriber") && frame.reason.contains(reason), "{frame:?}");
        for _ in 0..5 {
            numbers.push(number(&quick.notification(&heads).await["number"]));
        }
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
        assert_eq!(node.metric("presim_subscriptions"), 1.0);
        assert_eq!(node.metric("presim_subscribers_dropped_total"), 1.0);
    }
}

/// Returns the cumulative count of a histogram at each bound, in order; the last is the total.
fn buckets(node: &TestNode, name: &str) -> Vec<(f64, f64)> {
    let text = node.node.metrics().render();
    let bucket = |line: &str| {
        let (bound, count) = line.strip_prefix(name)?.strip_prefix("_bucket{le=\"")?.split_once("\"} ")?;
        Some((bound.parse().expect("a bound"), count.parse().expect("a count")))
    };
    text.lines().filter_map(bucket).collect()
}

/// Returns the bound of the bucket with the 99th percentile of the samples since `before`, and their number.
fn p99(before: &[(f64, f64)], after: &[(f64, f64)]) -> (f64, f64) {
    let since = |index: usize| after[index].1 - before.get(index).map_or(0.0, |bucket| bucket.1);
    let all = since(after.len() - 1);
    let index = (0..after.len()).find(|index| since(*index) >= 0.99 * all).expect("the last has all");
    (after[index].0, all)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_subscribers_hear_the_same_heads() {
    const SUBSCRIBERS: usize = 1000;
    const HEADS: usize = 5;
    let node = TestNode::start(&["--sub-block-ms", "50", "--sub-blocks", "10", "--max-connections", "1100"]);
    let name = "presim_publish_seconds";
    node.sealed(HEADS as u64).await;
    let alone = buckets(&node, name);

    let mut sockets = Vec::new();
    for _ in 0..SUBSCRIBERS {
        let mut socket = Socket::open(&node, "/").await;
        let id = socket.subscribe(json!(["newHeads"])).await;
        sockets.push((socket, id));
    }
    let before = buckets(&node, name);
    let first = node.node.snapshots().newest().head.number() + 2;
    let heard = sockets.into_iter().map(|(mut socket, id)| {
        tokio::spawn(async move {
            let mut heads = Vec::new();
            while heads.len() < HEADS {
                let head = socket.notification(&id).await;
                if number(&head["number"]) >= first {
                    heads.push(head);
                }
            }
            heads
        })
    });
    let heard: Vec<_> =
        futures::future::join_all(heard).await.into_iter().map(|heads| heads.expect("it hears")).collect();
    let after = buckets(&node, name);
    for (index, head) in heard[0].iter().enumerate() {
        assert_eq!(*head, header_of(block(&node, "/", first + index as u64, false).await));
    }
    assert!(heard.iter().all(|heads| *heads == heard[0]));
    let ((without, samples), (with, more)) = (p99(&[], &alone), p99(&before, &after));
    say(&format!(
        "presim_publish_seconds, p99 at most: {without} s without subscribers ({samples} snapshots), {with} s with {SUBSCRIBERS} ({more})"
    ));
    assert_ne!((samples, more), (0.0, 0.0));
}
