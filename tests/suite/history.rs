//! `--keep-history`: old blocks are pruned from memory and disk, and their headers stay.

use std::{ffi::OsString, pin::pin};

use alloy_primitives::{Bytes, keccak256};
use futures::poll;
use presim::testing::{Config, source::devnet::world::traffic_signers};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use serde_json::{Value, json};

use crate::{
    disk::{Disk, Leaves},
    power_loss::start_on,
    process::text,
    support::{PATHS, TestNode, hex, items, number, say, shared},
    witness::Rpc,
};

/// Flags for a block with every sub-block and early pruning.
const QUICK: &[&str] =
    &["--sub-block-ms=10", "--sub-blocks=1", "--traffic=2", "--keep-blocks=3", "--keep-history=6", "--log=off"];
/// Flags with the same bounds for a chain without new blocks.
const STILL: &[&str] =
    &["--sub-block-ms", "60000", "--traffic", "0", "--keep-blocks", "3", "--keep-history", "6", "--log", "off"];

/// Returns a block before it is pruned.
async fn block(node: &TestNode, at: u64) -> Value {
    node.sealed(at).await;
    node.result("/", "eth_getBlockByNumber", json!([hex(at), true])).await
}

/// Checks that a pruned block is refused, its transactions are unknown, and its header and genesis stay.
async fn is_pruned(node: &TestNode, block: &Value) {
    let (at, hash) = (&block["number"], &block["hash"]);
    for path in PATHS {
        for (method, params) in [
            ("eth_getBlockByNumber", json!([at, true])),
            ("eth_getBlockByHash", json!([hash, false])),
            ("eth_getBlockReceipts", json!([at])),
            ("eth_getBlockTransactionCountByNumber", json!([at])),
            ("eth_getBlockTransactionCountByHash", json!([hash])),
            ("eth_getUncleCountByBlockNumber", json!([at])),
            ("eth_getUncleCountByBlockHash", json!([hash])),
            ("eth_getTransactionByBlockNumberAndIndex", json!([at, "0x0"])),
            ("eth_getTransactionByBlockHashAndIndex", json!([hash, "0x0"])),
            ("eth_getRawTransactionByBlockNumberAndIndex", json!([at, "0x0"])),
            ("debug_getRawBlock", json!([at])),
            ("debug_getRawReceipts", json!([hash])),
            ("eth_getLogs", json!([{"blockHash": hash}])),
            ("eth_getLogs", json!([{"fromBlock": at, "toBlock": at}])),
            ("eth_getLogs", json!([{"fromBlock": at, "toBlock": "latest"}])),
            ("eth_getLogs", json!([{"fromBlock": "earliest", "toBlock": "pending"}])),
            ("eth_feeHistory", json!(["0x1", at, [50.0]])),
        ] {
            let error = node.error(path, method, params.clone()).await;
            let told = (&error["code"], &error["message"]);
            assert_eq!(
                told,
                (&json!(4444), &json!("pruned history unavailable")),
                "{method} {params} on {path}: {error}"
            );
            assert!(error["data"].as_str().unwrap().contains("--keep-history"), "{error}");
        }
        for tx in items(&block["transactions"]) {
            assert_eq!(node.result(path, "eth_getTransactionByHash", json!([tx["hash"]])).await, Value::Null);
            assert_eq!(node.result(path, "eth_getTransactionReceipt", json!([tx["hash"]])).await, Value::Null);
            assert_eq!(node.result(path, "eth_getRawTransactionByHash", json!([tx["hash"]])).await, "0x");
        }
        // The header is kept, and answers that need only headers work.
        let fees = node.result(path, "eth_feeHistory", json!(["0x1", at, null])).await;
        assert_eq!((&fees["oldestBlock"], &fees["baseFeePerGas"][0]), (at, &block["baseFeePerGas"]), "{fees}");
        let header = node.result(path, "eth_getHeaderByHash", json!([hash])).await;
        assert!(header.as_object().unwrap().iter().all(|(key, value)| block[key] == *value), "{header}");
        assert_eq!(node.result(path, "eth_getHeaderByNumber", json!([at])).await, header);
        let raw = node.result(path, "debug_getRawHeader", json!([at])).await;
        assert_eq!(json!(keccak256(raw.as_str().unwrap().parse::<Bytes>().unwrap())), *hash);
        // The state is pruned like that of any old block.
        let error = node.error(path, "eth_getBalance", json!([block["miner"], {"blockHash": hash}])).await;
        let message = error["message"].as_str().unwrap();
        assert!(error["code"] == -32000 && message.contains("is not retained: the oldest retained is"), "{error}");
        // Genesis is never pruned.
        let genesis = node.result(path, "eth_getBlockByNumber", json!(["earliest", true])).await;
        assert_eq!(genesis["number"], "0x0");
        node.result(path, "eth_getLogs", json!([{"fromBlock": "0x0", "toBlock": "0x0"}])).await;
        let unknown = json!([format!("0x{}", "77".repeat(32)), false]);
        assert_eq!(node.result(path, "eth_getBlockByHash", unknown).await, Value::Null);
    }
}

/// Checks that exactly the newest `kept` blocks and genesis are kept.
async fn keeps(node: &TestNode, kept: u64) {
    let published = node.node.snapshots().load();
    let head = published.head().number();
    assert_eq!(published.oldest_history(), (head + 1).saturating_sub(kept).max(1), "head {head}");
    assert_eq!(published.blocks(0, u64::MAX).count() as u64, kept.min(head) + 1);
    assert!((0..=head).all(|number| published.sealed_block(number).is_some_and(|block| block.number() == number)));
}

/// Checks that the node says so of itself: from which block on it has states, and from which on whole blocks.
async fn tells(node: &TestNode, states: u64, bodies: Option<u64>) {
    let calls = [("eth_blockNumber", json!([])), ("eth_capabilities", json!([]))];
    let [head, told] = node.batch("/standard", &calls).await.try_into().unwrap();
    assert_eq!(told["head"]["number"], head);
    let is_retained = |kinds: &[&str], window: Option<u64>| {
        let oldest = window.map_or(0, |window| (number(&head) + 1).saturating_sub(window));
        let mut expected = json!({"disabled": false, "oldestBlock": hex(oldest)});
        if let Some(window) = window {
            expected["deleteStrategy"] = json!({"type": "window", "retentionBlocks": hex(window)});
        }
        for kind in kinds {
            assert_eq!(told[kind], expected, "{kind} of {told}");
        }
    };
    is_retained(&["state", "stateproofs"], Some(states));
    is_retained(&["tx", "logs", "receipts", "blocks"], bodies);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_old_blocks_goes_and_their_headers_stay() {
    for dir in [None, Some(tempfile::tempdir().unwrap())] {
        let data: Vec<&str> = dir.iter().flat_map(|dir| ["--data-dir", text(dir.path())]).collect();
        let node = TestNode::start(&[QUICK, &data].concat());
        let second = block(&node, 2).await;
        assert!(!items(&second["transactions"]).is_empty());
        node.sealed(40).await;
        keeps(&node, 6).await;
        tells(&node, 3, Some(6)).await;
        is_pruned(&node, &second).await;
        let kept = node.result("/", "eth_getLogs", json!([{"fromBlock": "latest", "toBlock": "pending"}])).await;
        assert!(kept.is_array());
        node.node.stop();
        if dir.is_some() {
            let node = TestNode::start(&[STILL, &data].concat());
            is_pruned(&node, &second).await;
            let (head, path) = (node.height().await, "/");
            for at in head - 4..=head {
                let block = node.result(path, "eth_getBlockByNumber", json!([hex(at), true])).await;
                assert!(!items(&block["transactions"]).is_empty(), "{block}");
                assert_eq!(node.result(path, "eth_getBlockByHash", json!([block["hash"], true])).await, block);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_beyond_their_memory_go_and_those_of_retained_states_stay() {
    let node = TestNode::start(&["--testing", "--keep-blocks", "3", "--keep-history-mb", "1", "--log", "off"]);
    let from = node.result("/", "eth_accounts", json!([])).await[0].clone();
    let fill = async |bytes: usize| {
        let data = format!("0x{}", "00".repeat(bytes));
        node.result("/", "eth_sendTransaction", json!([{"from": from, "to": from, "data": data}])).await;
    };
    fill(40_000).await;
    let first = block(&node, 1).await;
    for _ in 0..20 {
        fill(40_000).await;
    }
    // Twenty-one bodies of 40 kB are within the bound.
    assert_eq!(node.node.snapshots().load().oldest_history(), 1);
    for _ in 0..20 {
        fill(40_000).await;
    }
    let oldest = node.node.snapshots().load().oldest_history();
    assert!((16..=20).contains(&oldest), "{oldest}");
    is_pruned(&node, &first).await;
    let kept = node.result("/", "eth_getBlockByNumber", json!([hex(oldest), true])).await;
    assert_eq!(items(&kept["transactions"])[0]["input"].as_str().unwrap().len(), 80_002);
    // A block whose state is retained stays, however large it is.
    let node = TestNode::start(&["--testing", "--keep-blocks", "12", "--keep-history-mb", "1", "--log", "off"]);
    for _ in 0..20 {
        let data = format!("0x{}", "00".repeat(120_000));
        node.result("/", "eth_sendTransaction", json!([{"from": from, "to": from, "data": data}])).await;
    }
    assert_eq!(node.node.snapshots().load().oldest_history(), 20 - 11);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_blocks_are_kept_if_all_are_asked_for() {
    let node = TestNode::start(&[&QUICK[..4], &["--keep-history", "all"]].concat());
    let second = block(&node, 2).await;
    node.sealed(30).await;
    keeps(&node, u64::MAX).await;
    tells(&node, 3, None).await;
    assert_eq!(node.result("/", "eth_getBlockByNumber", json!(["0x2", true])).await, second);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_blocks_of_a_chain_file_count_too() {
    let Some(folder) = shared("vectors/execution-apis") else { return };
    let (genesis, chain) = (folder.join("genesis.json"), folder.join("chain.rlp"));
    let flags = ["--genesis", text(&genesis), "--chain", text(&chain), "--log", "off"];
    let whole = TestNode::start(&[&flags[..], &["--keep-history", "all"]].concat());
    let head = whole.height().await;
    let old = whole.result("/standard", "eth_getBlockByNumber", json!([hex(head - 9), true])).await;
    let fees = whole.result("/standard", "eth_feeHistory", json!(["0x14", "latest", null])).await;
    let dir = tempfile::tempdir().unwrap();
    let bounds = ["--keep-blocks", "2", "--keep-history", "9"];
    let data = ["--data-dir", text(dir.path())];
    for more in [&[][..], &data, &data] {
        let node = TestNode::start(&[&flags[..], &bounds, more].concat());
        keeps(&node, 9).await;
        let told = node.error("/standard", "eth_getBlockByHash", json!([old["hash"], true])).await;
        assert_eq!(told["code"], 4444, "{told}");
        let kept = json!([hex(head - 8), true]);
        let block = whole.result("/standard", "eth_getBlockByNumber", kept.clone()).await;
        assert_eq!(node.result("/standard", "eth_getBlockByNumber", kept).await, block);
        assert_eq!(node.result("/standard", "eth_feeHistory", json!(["0x14", "latest", null])).await, fees);
        let genesis = json!(["0x0", true]);
        let block = whole.result("/standard", "eth_getBlockByNumber", genesis.clone()).await;
        assert_eq!(node.result("/standard", "eth_getBlockByNumber", genesis).await, block);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lower_bound_prunes_at_the_start_and_a_higher_one_goes_on_with_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let data = ["--data-dir", text(dir.path())];
    let node = TestNode::start(&[&QUICK[..4], &["--keep-history", "all", "--log", "off"], &data].concat());
    let second = block(&node, 2).await;
    node.sealed(50).await;
    node.node.stop();

    let node = TestNode::start(&[STILL, &data].concat());
    keeps(&node, 6).await;
    is_pruned(&node, &second).await;
    let (head, oldest) = (node.node.info().head, node.node.snapshots().load().oldest_history());
    node.node.stop();

    let node = TestNode::start(&[&QUICK[..4], &["--keep-history", "all", "--log", "off"], &data].concat());
    node.sealed(head + 20).await;
    assert_eq!(node.node.snapshots().load().oldest_history(), oldest);
    let from_oldest = node.result("/", "eth_getLogs", json!([{"fromBlock": hex(oldest), "toBlock": "latest"}])).await;
    assert!(!items(&from_oldest).is_empty());
    is_pruned(&node, &second).await;
}

/// Blocks that a restart executes again are needed until then.
#[tokio::test(flavor = "multi_thread")]
async fn lowering_both_bounds_prunes_the_rest_as_the_chain_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let data = ["--data-dir", text(dir.path())];
    let node = TestNode::start(&[&QUICK[..3], &["--keep-blocks", "40", "--keep-history", "50"], &data].concat());
    node.sealed(60).await;
    let account = traffic_signers().unwrap()[0].address();
    node.node.stop();
    for _ in 0..2 {
        let node = TestNode::start(&[STILL, &data].concat());
        let before = node.result("/", "eth_getBalance", json!([account, "latest"])).await;
        node.node.stop();
        let node = TestNode::start(&[STILL, &data].concat());
        assert_eq!(node.result("/", "eth_getBalance", json!([account, "latest"])).await, before);
        let head = node.node.info().head;
        node.node.stop();
        let node = TestNode::start(&[QUICK, &data].concat());
        node.sealed(head + 12).await;
        keeps(&node, 6).await;
        node.node.stop();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_whose_blocks_are_pruned_is_told_once_and_goes_on() {
    let node = TestNode::start(QUICK);
    let logs = node.result("/", "eth_newFilter", json!([{}])).await;
    let blocks = node.result("/", "eth_newBlockFilter", json!([])).await;
    let ranged = node.result("/", "eth_newFilter", json!([{"fromBlock": "0x1"}])).await;
    let head = node.node.snapshots().load().head().number();
    node.sealed(head + 30).await;
    let error = node.error("/", "eth_getFilterChanges", json!([logs])).await;
    assert_eq!((&error["code"], &error["message"]), (&json!(4444), &json!("pruned history unavailable")));
    let error = node.error("/", "eth_getFilterLogs", json!([ranged])).await;
    assert_eq!(error["code"], 4444, "{error}");
    // Block hashes come from headers, which are kept.
    let hashes = node.result("/", "eth_getFilterChanges", json!([blocks])).await;
    assert!(items(&hashes).len() >= 29, "{hashes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_blocks_are_pruned_is_neither_lost_nor_free_again() {
    let dir = tempfile::tempdir().unwrap();
    let data = ["--data-dir", text(dir.path())];
    let node = TestNode::start(&[QUICK, &data].concat());
    let from = node.node.info().accounts[1].address();
    let batch = json!([{"version": "2.0.0", "id": "an old one", "from": from, "chainId": "0x7a69", "atomicRequired": false,
        "calls": [{"to": from, "value": "0x1"}]}]);
    node.result("/", "wallet_sendCalls", batch.clone()).await;
    let head = node.node.snapshots().load().head().number();
    node.sealed(head + 20).await;
    let check = async |node: &TestNode| {
        let error = node.error("/", "wallet_getCallsStatus", json!(["an old one"])).await;
        assert_eq!((&error["code"], &error["message"]), (&json!(4444), &json!("pruned history unavailable")));
        let error = node.error("/", "wallet_sendCalls", batch.clone()).await;
        assert_eq!(error["code"], 5720, "{error}");
    };
    check(&node).await;
    node.node.stop();
    check(&TestNode::start(&[STILL, &data].concat())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_file_is_used_again() {
    let mut sizes = Vec::new();
    for history in ["16", "all"] {
        let disk = Disk::default();
        let flags = ["--sub-block-ms", "4", "--sub-blocks", "1", "--traffic", "8", "--log", "off"];
        let node = start_on(&disk, &[&flags[..], &["--keep-blocks", "8", "--keep-history", history]].concat());
        node.sealed(600).await;
        sizes.push(disk.size());
    }
    say(&format!("600 blocks: {} bytes of file if 16 are kept, {} if all are", sizes[0], sizes[1]));
    // The file grows by doubling, so its size is coarse. Headers stay.
    assert!(2 * sizes[0] <= sizes[1], "{sizes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn power_cuts_while_blocks_are_pruned_leave_a_store_that_opens() {
    let mut rng = SmallRng::seed_from_u64(7);
    let mut disk = Disk::default();
    for cut in 0..10 {
        let node = start_on(&disk, QUICK);
        let head = node.node.info().head;
        node.sealed(head + 10).await;
        let leaves = Leaves::ALL[cut % Leaves::ALL.len()];
        let before = disk.clone();
        let mut cutting = pin!(before.cut(rng.random_range(0..50), leaves, SmallRng::from_rng(&mut rng), || ()));
        assert!(poll!(cutting.as_mut()).is_pending());
        let (left, _) = cutting.await;
        node.node.stop();
        disk = left;
        // A lower bound on some starts, so that a cut may also hit the pruning at the start.
        let bound = if cut % 2 == 0 { "20" } else { "4" };
        let node = start_on(&disk, &[&STILL[..6], &["--keep-history", bound, "--log", "off"]].concat());
        let rpc = Rpc::new(node.url("/"));
        let (oldest, head) = (node.node.snapshots().load().oldest_history(), node.node.info().head);
        assert!(head >= 10 && head + 1 - oldest >= 4, "{oldest}..={head}");
        for at in oldest..=head {
            rpc.result("eth_getBlockReceipts", json!([hex(at)])).await;
        }
        node.node.stop();
    }
}

#[test]
fn the_bound_is_a_number_or_all_and_no_less_than_the_states() {
    let load = |flags: &[&str]| {
        let args = ["presim"].iter().chain(flags).map(OsString::from);
        Config::load(args).map(|config| config.retention().history).map_err(|error| error.to_string())
    };
    assert_eq!(load(&[]), Ok(10_000));
    assert_eq!(load(&["--data-dir", "dir"]), Ok(100_000));
    assert_eq!(load(&["--keep-blocks", "20000"]), Ok(20_000));
    assert_eq!(load(&["--keep-history", "300"]), Ok(300));
    assert_eq!(load(&["--keep-history", "all"]), Ok(u64::MAX));
    let bytes = |flags: &[&str]| {
        let args = ["presim"].iter().chain(flags).map(OsString::from);
        Config::load(args).map(|config| config.retention().history_bytes).map_err(|error| error.to_string())
    };
    assert_eq!(bytes(&[]), Ok(256 << 20));
    assert_eq!(bytes(&["--keep-history", "300"]), Ok(u64::MAX));
    assert_eq!(bytes(&["--keep-history", "300", "--keep-history-mb", "8"]), Ok(8 << 20));
    for (flags, words) in [
        (&["--keep-history", "0"][..], "expected a number of blocks of at least 1, or `all`"),
        (&["--keep-history", "some"], "expected a number of blocks of at least 1, or `all`"),
        (&["--keep-history", "255"], "expected at least --keep-blocks (256)"),
    ] {
        let error = load(flags).unwrap_err();
        assert!(error.contains("--keep-history") && error.contains(words), "{flags:?}: {error}");
    }
}
