//! `presim fork`: a chain that is built here on a block of another node's.

use std::ffi::OsString;

use alloy_primitives::{Address, B256, U256, address, hex::encode_prefixed};
use presim::testing::{Node, command::Command};
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::support::{TestNode, hex, http, number};

const ALICE: Address = address!("0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266");
const BOB: Address = address!("0x70997970c51812dc3a010c7d01b50e0d17dc79c8");
/// An account without a key that anyone knows.
const WHALE: Address = address!("0x00000000000000000000000000000000000ba1e0");
const ETHER: u64 = 1_000_000_000_000_000_000;

/// Starts a chain with the trading world and three blocks: a swap, and ether for an account.
async fn upstream() -> TestNode {
    let node = TestNode::start(&["--testing", "--world"]);
    let value = json!([{ "from": ALICE, "to": WHALE, "value": hex(ETHER) }]);
    node.result("/", "eth_sendTransaction", value.clone()).await;
    swap(&node, &node).await;
    node.result("/", "eth_sendTransaction", value).await;
    node
}

fn fork_of(upstream: &TestNode, flags: &[&str]) -> TestNode {
    let url = upstream.url("/standard");
    let flags = [&["--testing", "--fork-url", &url], flags].concat();
    block_in_place(|| TestNode::start(&flags))
}

/// Buys ALPHA for an ether of the first account, by the contracts of `world`. Returns the receipt.
async fn swap(world: &TestNode, on: &TestNode) -> Value {
    let trading = world.node.info().trading.expect("the trading world");
    let word = |address: Address| address.into_word();
    let number = |number: u64| B256::from(U256::from(number));
    let words =
        [number(0), number(0x80), word(ALICE), number(u64::MAX), number(2), word(trading.weth), word(trading.alpha)];
    let data = encode_prefixed([&[0x7f, 0xf3, 0x6a, 0xb5], words.concat().as_slice()].concat());
    send(on, json!({ "from": ALICE, "to": trading.router, "value": hex(ETHER), "data": data })).await
}

/// Sends a transaction that is mined when it arrives. Returns its receipt.
async fn send(on: &TestNode, transaction: Value) -> Value {
    let sent = on.result("/", "eth_sendTransaction", json!([transaction])).await;
    on.result("/", "eth_getTransactionReceipt", json!([sent])).await
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_mined_here_on_state_that_is_fetched_and_nothing_is_sent_there() {
    let upstream = upstream().await;
    let fork = fork_of(&upstream, &[]);
    assert_eq!(fork.height().await, 3);
    assert_eq!(fork.result("/", "eth_chainId", json!([])).await, "0x7a69");
    assert_eq!(fork.balance(ALICE, "latest").await, U256::from(ETHER) * U256::from(10_000), "as --balance says");
    assert_eq!(fork.balance(WHALE, "latest").await, U256::from(2 * ETHER), "the upstream's");
    let count = json!([ALICE, "latest"]);
    let nonces = [&upstream, &fork].map(|node| node.result("/", "eth_getTransactionCount", count.clone()));
    let [theirs, ours] = nonces;
    assert_eq!(ours.await, theirs.await);

    let receipt = swap(&upstream, &fork).await;
    assert_eq!((&receipt["status"], &receipt["blockNumber"]), (&json!("0x1"), &json!("0x4")));
    let theirs = swap(&upstream, &upstream).await;
    assert_eq!(theirs["logs"][0]["data"], receipt["logs"][0]["data"], "the pair had the same reserves");
    assert_eq!(theirs["gasUsed"], receipt["gasUsed"]);

    // An account of the upstream's, in whose name a transaction is sent, as raw bytes cannot be.
    fork.result("/", "anvil_impersonateAccount", json!([WHALE])).await;
    let receipt = send(&fork, json!({ "from": WHALE, "to": BOB, "value": hex(ETHER) })).await;
    assert_eq!(receipt["status"], "0x1");
    assert_eq!(fork.balance(BOB, "latest").await, U256::from(ETHER) * U256::from(10_001));
    assert_eq!((upstream.height().await, fork.height().await), (4, 5));
    assert_eq!(upstream.balance(WHALE, "latest").await, U256::from(2 * ETHER), "nothing was sent to the upstream");

    let mined = fork.block("latest").await;
    assert_eq!(mined["stateRoot"], json!(B256::ZERO));
    let parent = fork.block("0x4").await;
    assert_eq!(parent["parentHash"], upstream.block("0x3").await["hash"]);
    assert!(number(&parent["timestamp"]) > number(&upstream.block("0x3").await["timestamp"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_transaction_is_checked_by_the_account_that_the_upstream_has() {
    let upstream = upstream().await;
    let fork = fork_of(&upstream, &["--accounts", "1"]);
    // The second account has its ether from the upstream, and nobody has asked for it here yet.
    let call = json!([{ "from": BOB, "to": WHALE, "value": "0x1", "gas": "0x5208", "nonce": "0x0", "gasPrice": hex(10_000_000_000) }]);
    let raw = upstream.result("/", "eth_signTransaction", call).await["raw"].take();
    let hash = fork.result("/", "eth_sendRawTransaction", json!([raw])).await;
    assert_eq!(fork.result("/", "eth_getTransactionReceipt", json!([hash])).await["status"], "0x1");
    let low = json!([{ "from": ALICE, "to": WHALE, "value": "0x1", "gas": "0x5208", "nonce": "0x0", "gasPrice": hex(10_000_000_000) }]);
    let raw = upstream.result("/", "eth_signTransaction", low).await["raw"].take();
    let error = fork.error("/", "eth_sendRawTransaction", json!([raw])).await;
    assert!(error["message"].as_str().is_some_and(|text| text.contains("nonce too low")), "{error}");
    let receipt = json!([fork.error("/", "eth_sendRawTransactionSync", json!([raw])).await["message"]]);
    assert!(receipt[0].as_str().is_some_and(|text| text.contains("nonce too low")), "{receipt}");
    assert_eq!(upstream.height().await, 3, "nothing is forwarded");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_past_is_the_upstreams_up_to_the_block_and_its_own_after_it() {
    let upstream = upstream().await;
    let fork = fork_of(&upstream, &["--fork-block-number", "2"]);
    assert_eq!(fork.height().await, 2);
    assert_eq!(fork.balance(WHALE, "latest").await, U256::from(ETHER));
    let ours = swap(&upstream, &fork).await;

    for number in ["0x0", "0x1", "0x2"] {
        assert_eq!(fork.block(number).await["hash"], upstream.block(number).await["hash"]);
        let receipts = fork.result("/", "eth_getBlockReceipts", json!([number])).await;
        assert_eq!(receipts, upstream.result("/", "eth_getBlockReceipts", json!([number])).await);
    }
    assert_eq!(fork.block("earliest").await["hash"], upstream.block("0x0").await["hash"]);
    let third = upstream.block("0x3").await;
    assert_ne!(fork.block("0x3").await["hash"], third["hash"]);
    assert_eq!(fork.result("/", "eth_getBlockByHash", json!([third["hash"], false])).await, Value::Null);
    let later = third["transactions"][0].clone();
    assert_eq!(fork.result("/", "eth_getTransactionReceipt", json!([later])).await, Value::Null, "not of this chain");
    assert_eq!(fork.result("/", "eth_getTransactionByHash", json!([later])).await, Value::Null);
    assert_eq!(fork.block("0x9").await, Value::Null);

    let second = upstream.block("0x2").await;
    let swapped = second["transactions"][0].clone();
    let receipt = fork.result("/", "eth_getTransactionReceipt", json!([swapped])).await;
    assert_eq!(receipt["blockNumber"], "0x2");
    let first = upstream.block("0x1").await["transactions"][0].clone();
    assert_eq!(fork.result("/", "eth_getTransactionByHash", json!([first])).await["blockNumber"], "0x1");

    let logs = async |from: &str, to: Value| {
        let filter = match to {
            Value::Null => json!([{ "fromBlock": from }]),
            to => json!([{ "fromBlock": from, "toBlock": to }]),
        };
        let logs = fork.result("/", "eth_getLogs", filter).await;
        logs.as_array().expect("logs").iter().map(|log| number(&log["blockNumber"])).collect::<Vec<_>>()
    };
    let each = ours["logs"].as_array().expect("logs").len();
    let (of_second, of_third) = (vec![2; each], vec![3; each]);
    assert_eq!(logs("0x0", json!("0x2")).await, of_second);
    assert_eq!(logs("0x0", json!("0x1")).await, [0; 0]);
    assert_eq!(logs("0x0", json!("latest")).await, [of_second.clone(), of_third.clone()].concat());
    assert_eq!(logs("0x1", Value::Null).await, [of_second, of_third.clone()].concat());
    assert_eq!(logs("0x3", json!("latest")).await, of_third);
    assert_eq!(logs("earliest", json!("0x2")).await, vec![2; each]);

    let fees = fork.result("/", "eth_feeHistory", json!(["0x5", "latest", []])).await;
    assert_eq!((&fees["oldestBlock"], fees["gasUsedRatio"].as_array().map(Vec::len)), (&json!("0x2"), Some(2)));
    for count in ["0x2", "0x9"] {
        let fees = fork.result("/", "eth_feeHistory", json!([count, "0x1", []])).await;
        assert_eq!(fees["oldestBlock"], "0x0");
    }

    let proof = fork.result("/", "eth_getProof", json!([WHALE, [], "0x2"])).await;
    assert_eq!(proof["balance"], hex(ETHER));
    assert_eq!(fork.result("/", "eth_getProof", json!([WHALE, [], "0x0"])).await["balance"], "0x0");
    let error = fork.error("/", "eth_getProof", json!([WHALE, [], "latest"])).await;
    let text = "blocks that are mined here have no state root, and no proofs: expected block 2, or one before";
    assert_eq!((error["code"].as_i64(), error["message"].as_str()), (Some(-32000), Some(text)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_returns_to_saved_states_and_begins_again_on_another_block_or_node() {
    let upstream = upstream().await;
    let fork = fork_of(&upstream, &["--fork-block-number", "3"]);
    let info = fork.result("/", "anvil_nodeInfo", json!([])).await;
    assert_eq!(info["forkConfig"]["forkBlockNumber"], 3);
    let saved = fork.result("/", "evm_snapshot", json!([])).await;
    fork.result("/", "anvil_setBalance", json!([WHALE, "0x7"])).await;
    // An account that the fork has not seen keeps its code when its balance is set.
    let router = upstream.node.info().trading.expect("the trading world").router;
    fork.result("/", "anvil_setBalance", json!([router, "0x7"])).await;
    assert_ne!(fork.result("/", "eth_getCode", json!([router, "latest"])).await, "0x");
    swap(&upstream, &fork).await;
    assert_eq!(fork.result("/", "evm_revert", json!([saved])).await, true);
    assert_eq!((fork.height().await, fork.balance(WHALE, "latest").await), (3, U256::from(2 * ETHER)));
    swap(&upstream, &fork).await;

    fork.result("/", "anvil_reset", json!([{ "forking": { "blockNumber": 1 } }])).await;
    assert_eq!((fork.height().await, fork.balance(WHALE, "latest").await), (1, U256::from(ETHER)));
    assert_eq!(fork.block("latest").await["hash"], upstream.block("0x1").await["hash"]);
    let metadata = fork.result("/", "anvil_metadata", json!([])).await;
    assert_eq!(metadata["forkedNetwork"]["forkBlockNumber"], 1);
    assert_eq!(swap(&upstream, &fork).await["blockNumber"], "0x2");
    fork.result("/", "hardhat_reset", json!([])).await;
    assert_eq!(fork.height().await, 1, "the block on which it began last");

    // Another node of the chain, on which the account has more.
    let other = TestNode::start(&["--testing", "--world"]);
    other.result("/", "anvil_setBalance", json!([WHALE, "0x9"])).await;
    other.result("/", "anvil_mine", json!([4])).await;
    let forking = json!([{ "forking": { "jsonRpcUrl": other.url("/standard") } }]);
    fork.result("/", "hardhat_reset", forking).await;
    assert_eq!((fork.height().await, fork.balance(WHALE, "latest").await), (4, U256::from(9)));
    send(&fork, json!({ "from": ALICE, "to": WHALE, "value": "0x1" })).await;
    assert_eq!(fork.balance(WHALE, "latest").await, U256::from(10));

    let foreign = TestNode::start(&["--testing", "--chain-id", "5"]);
    let forking = json!([{ "forking": { "jsonRpcUrl": foreign.url("/standard") } }]);
    let error = fork.error("/", "anvil_reset", forking).await;
    let text = "the upstream's chain is 5, and this fork is of chain 31337: start another fork for that chain";
    assert_eq!(error["message"], text);
    let error = fork.error("/", "anvil_reset", json!([{ "forking": { "blockNumber": 99 } }])).await;
    assert_eq!(error["message"], "the upstream has no block 0x63");
    assert_eq!(fork.balance(WHALE, "latest").await, U256::from(10), "a reset that fails changes nothing");
    let error = foreign.error("/", "anvil_reset", json!([{ "forking": { "blockNumber": 1 } }])).await;
    assert_eq!(error["message"], "this chain is no fork: start one with `presim fork URL`");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_node_gives_the_state_when_one_does_not() {
    let upstream = upstream().await;
    let fork = fork_of(&upstream, &["--upstream-timeout-ms", "200", "--no-mining"]);
    let beta = upstream.node.info().trading.expect("the trading world").beta;
    let foreign = TestNode::start(&["--testing"]);
    let unused = foreign.result("/", "anvil_setRpcUrl", json!([upstream.url("/standard")])).await;
    assert_eq!(unused, Value::Null, "no fork fetches anything");
    // A fork at the same block has the state, too.
    let other = fork_of(&upstream, &[]);
    assert_eq!(other.result("/", "eth_getBalance", json!([beta, "latest"])).await, "0x0");
    let url = other.url("/standard");
    fork.result("/", "anvil_setRpcUrl", json!([url])).await;
    drop(upstream);
    assert_ne!(fork.result("/", "eth_getCode", json!([beta, "latest"])).await, "0x");
    let error = fork.error("/", "anvil_setRpcUrl", json!(["nowhere"])).await;
    assert_eq!(error["code"], -32000);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_upstream_a_fork_answers_what_it_knows_and_says_what_is_missing() {
    let upstream = upstream().await;
    let fork = fork_of(&upstream, &["--upstream-timeout-ms", "200"]);
    let router = upstream.node.info().trading.expect("the trading world").router;
    swap(&upstream, &fork).await;
    let known = fork.balance(WHALE, "latest").await;
    let beta = upstream.node.info().trading.expect("the trading world").beta;
    drop(upstream);

    assert_eq!(fork.balance(WHALE, "latest").await, known);
    let call = json!([{ "from": ALICE, "to": WHALE, "value": "0x1" }, "latest"]);
    assert_eq!(fork.result("/", "eth_call", call.clone()).await, "0x");
    assert_eq!(fork.result("/", "eth_estimateGas", call).await, "0x5208");
    let error = fork.error("/", "eth_getCode", json!([beta, "latest"])).await;
    assert!(error["message"].as_str().is_some_and(|text| text.contains("upstream")), "{error}");
    let error = fork.error("/", "anvil_setBalance", json!([beta, "0x1"])).await;
    assert!(error["message"].as_str().is_some_and(|text| text.contains("upstream")), "{error}");

    // With its gas given, nothing runs before it is mined, which needs state that nobody gives.
    let call = json!([{ "from": ALICE, "to": beta, "gas": "0x186a0" }]);
    let error = fork.error("/", "eth_sendTransaction", call).await;
    let begins = "the transaction waits in the pool, and cannot be mined now: ";
    assert!(error["message"].as_str().is_some_and(|text| text.starts_with(begins)), "{error}");
    assert_eq!(fork.result("/", "txpool_status", json!([])).await["pending"], "0x1");
    assert_ne!(fork.result("/", "eth_getCode", json!([router, "latest"])).await, "0x");
    // On another node it goes on.
    let again = TestNode::start(&["--testing", "--world"]);
    let forking = json!([{ "forking": { "jsonRpcUrl": again.url("/standard") } }]);
    fork.result("/", "anvil_dropAllTransactions", json!([])).await;
    fork.result("/", "anvil_reset", forking).await;
    let receipt = send(&fork, json!({ "from": ALICE, "to": WHALE, "value": "0x1" })).await;
    assert_eq!(receipt["blockNumber"], "0x1");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_fetched_is_kept_by_block_in_a_data_directory() {
    let upstream = upstream().await;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_str().expect("UTF-8");
    let flags = ["--data-dir", path, "--fork-block-number", "3"];
    let fetched = |node: &TestNode| node.metric("presim_upstream_waves_total");
    let fork = fork_of(&upstream, &flags);
    swap(&upstream, &fork).await;
    let before = fetched(&fork);
    fork.node.stop();
    let hash = upstream.block("0x3").await["hash"].as_str().expect("a hash").trim_start_matches("0x").to_owned();
    let files: Vec<_> =
        std::fs::read_dir(path).expect("it is there").map(|file| file.expect("a file").file_name()).collect();
    assert_eq!(files, [OsString::from(format!("fork-31337-{hash}.bin"))], "nothing of the chain itself");

    let fork = fork_of(&upstream, &flags);
    assert_eq!(fork.height().await, 3, "the chain starts again");
    let receipt = swap(&upstream, &fork).await;
    assert_eq!(receipt["status"], "0x1");
    assert!(fetched(&fork) < before, "{} of {before} waves", fetched(&fork));
    drop(fork);
    // A file of no use is of no harm.
    std::fs::write(directory.path().join(format!("fork-31337-{hash}.bin")), b"damaged").expect("it is written");
    let fork = fork_of(&upstream, &flags);
    assert_eq!(swap(&upstream, &fork).await["status"], "0x1");
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_wait_in_a_draft_without_automine_and_many_are_mined_at_once() {
    let upstream = upstream().await;
    let fork = fork_of(&upstream, &["--no-mining"]);
    let to = |index: u64| Address::from_word(B256::from(U256::from(0xabc0 + index)));
    for index in 0..20 {
        let call = json!([{ "from": ALICE, "to": to(index), "value": "0x1", "gas": "0x5208" }]);
        fork.result("/", "eth_sendTransaction", call).await;
    }
    assert_eq!(fork.balance(to(19), "pending").await, U256::ONE);
    assert_eq!(fork.height().await, 3);
    fork.result("/", "evm_mine", json!([])).await;
    assert_eq!(fork.block("latest").await["transactions"].as_array().map(Vec::len), Some(20));
    let fork = fork_of(&upstream, &["--block-time", "1"]);
    let sent = fork.result("/", "eth_sendTransaction", json!([{ "from": ALICE, "to": WHALE, "value": "0x1" }])).await;
    fork.sealed(4).await;
    fork.sealed(5).await;
    assert_eq!(fork.result("/", "eth_getTransactionReceipt", json!([sent])).await["status"], "0x1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dumped_fork_has_what_was_changed_and_a_state_is_loaded_on_a_fork() {
    let upstream = upstream().await;
    let fork = fork_of(&upstream, &[]);
    fork.result("/", "anvil_setBalance", json!([WHALE, "0x7"])).await;
    let dumped = fork.result("/", "anvil_dumpState", json!([])).await;
    let other = fork_of(&upstream, &["--fork-block-number", "1"]);
    assert_eq!(other.result("/", "anvil_loadState", json!([dumped])).await, true);
    assert_eq!(other.balance(WHALE, "latest").await, U256::from(7));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_is_the_flags_of_testing_with_an_url() {
    let upstream = upstream().await;
    let started = |args: &[&str]| {
        let fork = ["presim", "fork", &upstream.url("/standard"), "--port", "0"];
        let args = fork.iter().chain(args).map(OsString::from);
        match Command::load(args).expect("it is a command") {
            Command::Run(config) => block_in_place(|| Node::start(*config)),
            other => panic!("no node: {other:?}"),
        }
    };
    let node = started(&["--block", "2", "--accounts", "2", "--balance", "5"]).expect("it starts");
    let fork = TestNode { node, client: http() };
    assert_eq!(fork.height().await, 2);
    assert_eq!(fork.node.info().accounts.len(), 2);
    assert_eq!(fork.balance(BOB, "latest").await, U256::from(5 * ETHER));
    let error = started(&["--block", "77"]).expect_err("there is no such block");
    assert!(format!("{error:#}").contains("the upstream has no block 0x4d"), "{error:#}");
    let error = started(&["--gas-limit", "20000000", "--base-fee", "9"]).map(|node| {
        let header = node.snapshots().newest().header().clone();
        (header.gas_limit, header.base_fee_per_gas)
    });
    assert_eq!(error.expect("it starts"), (20_000_000, Some(9)));
}

#[test]
fn what_a_fork_cannot_be_is_refused_with_the_reason() {
    let refused = |line: &str| match Command::load(line.split(' ').map(OsString::from)) {
        Err(error) => error.to_string(),
        Ok(command) => panic!("{line}: {command:?}"),
    };
    for (line, says) in [
        ("presim fork", "<URL>"),
        ("presim fork nowhere", "IPC socket"),
        ("presim fork http://127.0.0.1:1 --publish nats://127.0.0.1:1", "--publish"),
        ("presim --fork-url http://127.0.0.1:1", "--fork-url needs --testing"),
        ("presim --testing --fork-block-number 3", "--fork-url"),
        ("presim --testing --fork-url http://127.0.0.1:1 --publish nats://127.0.0.1:1", "--publish needs --upstream"),
        ("presim --testing --fork-url http://127.0.0.1:1 --chain-id 5", "--fork-url and --chain-id"),
        ("presim --testing --fork-url http://127.0.0.1:1 --upstream http://127.0.0.1:1", "`presim fork URL`"),
        ("presim --testing --fork-url http://127.0.0.1:1 --world", "--world"),
        ("presim --testing --data-dir /tmp/x", "--testing and --data-dir"),
        ("presim --port 8546", "--port needs --testing"),
    ] {
        let text = refused(line);
        assert!(text.contains(says), "{line}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rules_are_those_that_are_given_or_that_the_upstream_announces() {
    let old = TestNode::start(&["--testing", "--hardfork", "cancun"]);
    let hardfork = async |node: &TestNode| node.result("/", "anvil_nodeInfo", json!([])).await["hardFork"].take();
    assert_eq!(hardfork(&fork_of(&old, &[])).await, "Cancun", "as eth_config says");
    assert_eq!(hardfork(&fork_of(&old, &["--hardfork", "prague"])).await, "Prague");
    // Before Cancun a chain has nothing to announce.
    let older = TestNode::start(&["--testing", "--hardfork", "shanghai"]);
    let url = older.url("/standard");
    let error = block_in_place(|| TestNode::try_start(&["--testing", "--fork-url", &url]))
        .err()
        .expect("its rules are not known");
    let text = format!("{error:#}");
    assert!(text.contains("--hardfork NAME") && text.contains("shanghai"), "{text}");
    assert_eq!(hardfork(&fork_of(&older, &["--hardfork", "shanghai"])).await, "Shanghai");
}
