//! Polled filters, for clients that cannot subscribe.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use serde_json::{Value, json};

use crate::support::{BOUND, TestNode, hex, items, number, request, token, token_file};

/// Starts a devnet with quick blocks and without traffic, so that a test sends all its transactions.
fn quick(flags: &[&str]) -> TestNode {
    TestNode::start(&[&["--traffic", "0", "--sub-block-ms", "20", "--sub-blocks", "2"], flags].concat())
}

/// Sends ether into WETH, which logs the deposit, and returns its receipt once it is sealed.
async fn deposit(node: &TestNode, wei: u64) -> Value {
    let info = node.node.info();
    let call = json!({"from": info.accounts[1].address(), "to": info.trading.unwrap().weth, "value": hex(wei), "data": "0xd0e30db0"});
    let hash = node.result("/", "eth_sendTransaction", json!([call])).await;
    node.sealed(number(&node.receipt(&hash).await["blockNumber"])).await;
    node.receipt(&hash).await
}

async fn changes(node: &TestNode, filter: &Value) -> Vec<Value> {
    items(&node.result("/", "eth_getFilterChanges", json!([filter])).await).to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_tells_each_log_once() {
    let node = quick(&[]);
    let weth = node.node.info().trading.unwrap().weth;
    let before = deposit(&node, 1).await;
    let filter = node.result("/", "eth_newFilter", json!([{"address": weth, "fromBlock": "earliest"}])).await;
    assert_eq!(changes(&node, &filter).await, Vec::<Value>::new(), "what was before it is not new");

    let first = deposit(&node, 2).await;
    assert_eq!(changes(&node, &filter).await, items(&first["logs"]));
    assert_eq!(changes(&node, &filter).await, Vec::<Value>::new());
    let second = deposit(&node, 3).await;
    let third = deposit(&node, 4).await;
    assert_eq!(changes(&node, &filter).await, [items(&second["logs"]), items(&third["logs"])].concat());

    // Returns all logs of the range, including those that were already returned.
    let all: Vec<Value> =
        [&before, &first, &second, &third].iter().flat_map(|receipt| items(&receipt["logs"]).to_vec()).collect();
    let range = node.result("/", "eth_getFilterLogs", json!([filter])).await;
    assert_eq!(items(&range)[items(&range).len() - all.len()..], all);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_of_topics_and_blocks_tells_of_those_alone() {
    let node = quick(&[]);
    let weth = node.node.info().trading.unwrap().weth;
    let nothing = json!([{"address": weth, "topics": [format!("0x{}", "11".repeat(32))]}]);
    let other = node.result("/", "eth_newFilter", nothing).await;
    let bounded = node.result("/", "eth_newFilter", json!([{"address": weth, "toBlock": "0x0"}])).await;
    deposit(&node, 1).await;
    assert_eq!(changes(&node, &other).await, Vec::<Value>::new());
    assert_eq!(changes(&node, &bounded).await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_of_blocks_tells_each_hash_once_and_in_order() {
    let node = quick(&[]);
    let filter = node.result("/", "eth_newBlockFilter", json!([])).await;
    let from = node.height().await;
    let mut told = Vec::new();
    while told.len() < 10 {
        node.sealed(from + told.len() as u64 + 1).await;
        told.extend(changes(&node, &filter).await);
    }
    let first = node.result("/", "eth_getBlockByHash", json!([told[0]])).await;
    for (index, hash) in told.iter().enumerate() {
        let block =
            node.result("/", "eth_getBlockByNumber", json!([hex(number(&first["number"]) + index as u64)])).await;
        assert_eq!(block["hash"], *hash);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_of_pending_transactions_tells_each_hash_once() {
    let node = TestNode::quiet();
    let filter = node.result("/", "eth_newPendingTransactionFilter", json!([])).await;
    let from = node.node.info().accounts[1].address();
    let mut sent = Vec::new();
    for value in 1..4 {
        sent.push(
            node.result("/", "eth_sendTransaction", json!([{"from": from, "to": from, "value": hex(value)}])).await,
        );
    }
    assert_eq!(changes(&node, &filter).await, sent);
    assert_eq!(changes(&node, &filter).await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_much_for_one_answer_is_left_for_the_next() {
    let node = quick(&["--max-logs", "2"]);
    let weth = node.node.info().trading.unwrap().weth;
    let filter = node.result("/", "eth_newFilter", json!([{"address": weth}])).await;
    let mut logs = Vec::new();
    for wei in 1..6 {
        logs.extend(items(&deposit(&node, wei).await["logs"]).to_vec());
    }
    let mut told = Vec::new();
    for _ in 0..3 {
        told.extend(changes(&node, &filter).await);
    }
    assert_eq!(told, logs);
}

/// A poll pauses for each block of which it reads the logs, and the worker then runs another poll of the same filter.
#[tokio::test(flavor = "multi_thread")]
async fn polls_of_one_filter_in_one_batch_end_and_report_each_log_once() {
    let node = quick(&["--workers", "1"]);
    let weth = node.node.info().trading.unwrap().weth;
    let filter = node.result("/", "eth_newFilter", json!([{"address": weth}])).await;
    let pending = node.result("/", "eth_newPendingTransactionFilter", json!([])).await;
    let blocks = node.result("/", "eth_newBlockFilter", json!([])).await;
    let mut expected = Vec::new();
    for wei in 1..9 {
        expected.extend(items(&deposit(&node, wei).await["logs"]).to_vec());
    }
    let polls: Vec<(&str, Value)> = (0..24)
        .map(|at| match at % 4 {
            0 => ("eth_getFilterLogs", json!([filter])),
            1 => ("eth_getFilterChanges", json!([blocks])),
            2 => ("eth_getFilterChanges", json!([pending])),
            _ => ("eth_getFilterChanges", json!([filter])),
        })
        .collect();
    let answers = tokio::time::timeout(BOUND, node.batch("/", &polls)).await.expect("the polls end");
    let returned = |kind: usize| -> Vec<Value> {
        answers.iter().skip(kind).step_by(4).flat_map(|answer| items(answer).to_vec()).collect()
    };
    assert_eq!(returned(3), expected, "each log once, in order");
    assert_eq!(returned(2).len(), 8, "each transaction once");
    let hashes = returned(1);
    for receipt in &expected {
        assert_eq!(hashes.iter().filter(|hash| **hash == receipt["blockHash"]).count(), 1, "each block once");
    }
    let quote = json!([{"to": weth, "data": "0x"}, "latest"]);
    assert!(node.call("/", "eth_estimateGas", quote).await.get("result").is_some(), "the worker is free");
}

/// Four connections that poll one filter while blocks are made share its logs.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_poll_one_filter_share_its_logs() {
    let node = quick(&["--workers", "2"]);
    let weth = node.node.info().trading.unwrap().weth;
    let filter = node.result("/", "eth_newFilter", json!([{"address": weth}])).await;
    let ended = AtomicBool::new(false);
    let poll = async || {
        let mut returned = Vec::new();
        loop {
            let is_last = ended.load(SeqCst);
            returned.extend(changes(&node, &filter).await);
            if is_last {
                return returned;
            }
        }
    };
    let sent = async {
        let mut expected = Vec::new();
        for wei in 1..9 {
            expected.extend(items(&deposit(&node, wei).await["logs"]).to_vec());
        }
        ended.store(true, SeqCst);
        expected
    };
    let all = async { tokio::join!(poll(), poll(), poll(), poll(), sent) };
    let (one, two, three, four, expected) = tokio::time::timeout(BOUND, all).await.expect("the polls end");
    let mut returned = [one, two, three, four].concat();
    returned.sort_by_key(|log| number(&log["blockNumber"]));
    assert_eq!(returned, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_whose_answer_is_rejected_loses_nothing() {
    let node = quick(&["--max-response", "20000"]);
    let info = node.node.info();
    let (weth, router) = (info.trading.unwrap().weth, info.trading.unwrap().router);
    let logs = node.result("/", "eth_newFilter", json!([{"address": weth}])).await;
    let blocks = node.result("/", "eth_newBlockFilter", json!([])).await;
    let pending = node.result("/", "eth_newPendingTransactionFilter", json!([])).await;
    let receipt = deposit(&node, 1).await;
    // The answers together are longer than the bound.
    let code = request(4, "eth_getCode", json!([router, "latest"]));
    let mut batch: Vec<Value> = vec![code; 8];
    for filter in [&logs, &blocks, &pending] {
        batch.push(request(1, "eth_getFilterChanges", json!([filter])));
    }
    let answer = node.send("/", &Value::Array(batch)).await;
    assert_eq!(answer["error"]["code"], -32005, "{answer}");
    assert_eq!(changes(&node, &logs).await, items(&receipt["logs"]));
    assert!(changes(&node, &blocks).await.contains(&receipt["blockHash"]));
    assert_eq!(changes(&node, &pending).await, [receipt["transactionHash"].clone()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_polled_filter_reports_a_revert_as_a_reorg() {
    let node = TestNode::start(&["--testing", "--world", "--dialect", "project", "--no-mining"]);
    let info = node.node.info();
    let (from, weth) = (info.accounts[1].address(), info.trading.unwrap().weth);
    let mine = async |wei: u64| {
        let call = json!({"from": from, "to": weth, "value": hex(wei), "data": "0xd0e30db0"});
        let hash = node.result("/", "eth_sendTransaction", json!([call])).await;
        node.result("/", "anvil_mine", json!([])).await;
        node.result("/", "eth_getTransactionReceipt", json!([hash])).await
    };
    let logs = node.result("/", "eth_newFilter", json!([{"address": weth}])).await;
    let blocks = node.result("/", "eth_newBlockFilter", json!([])).await;
    let saved = node.result("/", "evm_snapshot", json!([])).await;
    let (one, two) = (mine(1).await, mine(2).await);
    assert_eq!(changes(&node, &logs).await, [items(&one["logs"]), items(&two["logs"])].concat());
    assert_eq!(changes(&node, &blocks).await, [one["blockHash"].clone(), two["blockHash"].clone()]);
    node.result("/", "evm_revert", json!([saved])).await;
    let three = mine(3).await;
    let removed = |receipt: &Value| {
        let mut log = receipt["logs"][0].clone();
        log["removed"] = json!(true);
        log
    };
    assert_eq!(changes(&node, &logs).await, [removed(&two), removed(&one), three["logs"][0].clone()]);
    assert_eq!(changes(&node, &blocks).await, [three["blockHash"].clone()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_filter_is_refused() {
    let node = TestNode::start(&["--traffic", "0", "--sub-block-ms", "60000", "--max-filters", "2"]);
    let blocks = node.result("/", "eth_newBlockFilter", json!([])).await;
    let pending = node.result("/", "eth_newPendingTransactionFilter", json!([])).await;
    let hash = format!("0x{}", "00".repeat(32));
    for (method, params, code, text) in [
        ("eth_getFilterChanges", json!(["0xffffff"]), -32000, "params[0]: filter not found: 0xffffff"),
        ("eth_getFilterLogs", json!(["0xffffff"]), -32000, "params[0]: filter not found: 0xffffff"),
        ("eth_getFilterLogs", json!([blocks]), -32000, "is not about logs"),
        ("eth_getFilterLogs", json!([pending]), -32000, "is not about logs"),
        ("eth_getFilterChanges", json!([]), -32602, "1 parameter: the id"),
        ("eth_getFilterChanges", json!([1]), -32602, "params[0]"),
        ("eth_newFilter", json!([{"blockHash": hash}]), -32602, "params[0].blockHash"),
        ("eth_newFilter", json!([{"fromBlock": hash}]), -32602, "params[0].fromBlock"),
        ("eth_newFilter", json!([{"toBlock": {"snapshotId": "0x1"}}]), -32602, "params[0].toBlock"),
        ("eth_newFilter", json!([{"address": "0x1"}]), -32602, "params[0].address"),
    ] {
        let error = node.error("/", method, params.clone()).await;
        assert_eq!(error["code"], code, "{method} {params}: {error}");
        assert!(error["message"].as_str().unwrap().contains(text), "{method} {params}: {error}");
    }
    // A filter is removed only once.
    assert_eq!(node.result("/", "eth_uninstallFilter", json!([blocks])).await, json!(true));
    assert_eq!(node.result("/", "eth_uninstallFilter", json!([blocks])).await, json!(false));
}

/// A client with a token of its own.
struct Named<'a> {
    node: &'a TestNode,
    token: &'a str,
}

impl Named<'_> {
    async fn call(&self, method: &str, params: Value) -> Value {
        self.node.call_as(self.token, method, params).await
    }

    async fn install(&self) -> Value {
        self.call("eth_newBlockFilter", json!([])).await["result"].take()
    }

    /// Returns whether the client's filter still exists. The poll counts as a use.
    async fn has(&self, filter: &Value) -> bool {
        let answer = self.call("eth_getFilterChanges", json!([filter])).await;
        if answer["result"].is_array() {
            return true;
        }
        let text = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(answer["error"]["code"] == -32000 && text.contains("filter not found"), "{answer}");
        false
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_bound_the_longest_unasked_filter_of_the_client_that_has_most_goes() {
    let file = token_file(&[("a", 10_000), ("b", 10_000)]);
    let tokens = ["a", "b"].map(token);
    let node = TestNode::quiet_with(&["--max-filters", "4", "--token-file", file.path().to_str().unwrap()]);
    let [greedy, modest] = tokens.each_ref().map(|token| Named { node: &node, token });
    let (first, second, third) = (greedy.install().await, greedy.install().await, greedy.install().await);
    assert!(greedy.has(&first).await, "now the second has gone unasked for longest");
    let its = modest.install().await;

    // Another client's filter evicts one of the client that has most.
    let another = modest.install().await;
    assert!(!greedy.has(&second).await && greedy.has(&first).await && greedy.has(&third).await);
    // A client that has as many as any other evicts its own filters.
    let mut newest = greedy.install().await;
    assert!(!greedy.has(&first).await, "the longest unasked");
    for _ in 0..50 {
        newest = greedy.install().await;
    }
    assert!(greedy.has(&newest).await);
    assert!(modest.has(&its).await && modest.has(&another).await, "others lose nothing by it");
    assert!(!greedy.has(&third).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_without_names_share_the_bound_and_lose_the_longest_unasked() {
    let node = TestNode::quiet_with(&["--max-filters", "2"]);
    let install = async || node.result("/", "eth_newFilter", json!([{}])).await;
    let (first, second) = (install().await, install().await);
    assert_eq!(changes(&node, &first).await, Vec::<Value>::new());
    let third = install().await;
    let error = node.error("/", "eth_getFilterChanges", json!([second])).await;
    let text = format!("params[0]: filter not found: {}: no such filter, or it has expired", second.as_str().unwrap());
    assert_eq!((&error["code"], &error["message"]), (&json!(-32000), &json!(text)));
    for kept in [first, third] {
        assert_eq!(changes(&node, &kept).await, Vec::<Value>::new());
    }
}
