//! The state that a request runs on: selectors, retained snapshots, batches, the open block, and the devnet under load.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use alloy_primitives::{Address, B256, Bytes, U256, address, hex, keccak256};
use alloy_sol_types::{SolCall, sol};
use futures::{StreamExt, stream};
use presim::testing::source::devnet::world::{dev_signers, traffic_signers};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    process::eventually,
    support::{BOUND, PATHS, TestNode, hex, number, request, sequence},
};

sol! {
    interface IRouter {
        function getAmountsOut(uint256 amountIn, address[] calldata path) external view returns (uint256[] memory amounts);
        function swapExactTokensForTokens(uint256 amountIn, uint256 amountOutMin, address[] calldata path, address to, uint256 deadline) external returns (uint256[] memory amounts);
    }
}

/// An address without an account, where overrides put code.
const PROBE: Address = address!("0x00000000000000000000000000000000000abcde");

const NUMBER: &[u8] = &[0x43];
const TIMESTAMP: &[u8] = &[0x42];
const BASEFEE: &[u8] = &[0x48];
const PREVRANDAO: &[u8] = &[0x44];

fn balance(of: Address) -> Vec<u8> {
    [&[0x73], of.as_slice(), &[0x31]].concat()
}

fn block_hash(number: u64) -> Vec<u8> {
    [&[0x67], number.to_be_bytes().as_slice(), &[0x40]].concat()
}

/// Returns code that returns the word that each of these pieces pushes.
fn returning<T: AsRef<[u8]>>(pieces: &[T]) -> Bytes {
    let mut code = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        code.extend_from_slice(piece.as_ref());
        code.extend([0x61]);
        code.extend(u16::try_from(index * 32).unwrap().to_be_bytes());
        code.push(0x52);
    }
    code.push(0x61);
    code.extend(u16::try_from(pieces.len() * 32).unwrap().to_be_bytes());
    code.extend([0x5f, 0xf3]);
    code.into()
}

/// Returns `eth_call` parameters that read these words at `at`.
fn probe<T: AsRef<[u8]>>(pieces: &[T], at: &Value) -> Value {
    json!([{"to": PROBE}, at, {PROBE.to_string(): {"code": returning(pieces)}}])
}

fn words(data: &Value) -> Vec<U256> {
    let bytes = hex::decode(data.as_str().unwrap_or_else(|| panic!("no data: {data}"))).unwrap();
    bytes.chunks(32).map(U256::from_be_slice).collect()
}

async fn read<T: AsRef<[u8]>>(node: &TestNode, path: &str, pieces: &[T], at: Value) -> Vec<U256> {
    words(&node.result(path, "eth_call", probe(pieces, &at)).await)
}

async fn read_number(node: &TestNode, at: Value) -> u64 {
    read(node, "/", &[NUMBER], at).await[0].to()
}

/// Returns the blocks of a simulation.
async fn simulate(node: &TestNode, path: &str, blocks: Value, at: Value) -> Value {
    node.result(path, "eth_simulateV1", json!([{"blockStateCalls": blocks}, at])).await
}

async fn snapshot(node: &TestNode) -> Value {
    node.result("/", "presim_snapshot", json!([])).await
}

/// Waits for the first snapshot that satisfies a condition.
async fn until(node: &TestNode, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    node.when(what, async || Some(snapshot(node).await).filter(|snapshot| is(snapshot))).await
}

/// The answer to one request, with the id, block and index of its header.
struct DatedAnswer {
    value: Value,
    id: u64,
    block: u64,
    index: u64,
}

async fn answer(node: &TestNode, method: &str, params: Value) -> DatedAnswer {
    let request = node.client.post(node.url("/")).json(&request(1, method, params));
    let response = request.send().await.expect("the node answers");
    let header = response.headers().get("x-presim-snapshot").expect("a single answer bears x-presim-snapshot");
    let fields = header_fields(header.to_str().unwrap());
    let value = response.json().await.expect("the answer is JSON");
    let id = u64::from_str_radix(fields["id"].trim_start_matches("0x"), 16).unwrap();
    DatedAnswer { value, id, block: fields["block"].parse().unwrap(), index: fields["index"].parse().unwrap() }
}

fn header_fields(text: &str) -> BTreeMap<String, String> {
    let fields = text.split(", ").map(|field| field.split_once('=').expect("a field is name=value"));
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Returns code pieces that read the balances of all traders. Fees reduce their sum, so it identifies a state.
fn everybody() -> Vec<Vec<u8>> {
    traffic_signers().unwrap().into_iter().map(|signer| balance(signer.address())).collect()
}

const FAST: [&str; 4] = ["--sub-block-ms", "5", "--sub-blocks", "2"];

// Selectors.

#[tokio::test(flavor = "multi_thread")]
async fn each_tag_names_its_block() {
    let node = TestNode::quiet();
    for (tag, block) in [("pending", 1), ("latest", 0), ("safe", 0), ("finalized", 0), ("earliest", 0)] {
        assert_eq!(read_number(&node, json!(tag)).await, block, "{tag}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_the_open_block_is_pending() {
    let node = TestNode::quiet();
    let pending = simulate(&node, "/", json!([{}]), json!("pending")).await;
    for selector in [hex(1), json!({"blockNumber": "0x1"})] {
        assert_eq!(read_number(&node, selector.clone()).await, 1, "{selector}");
        assert_eq!(simulate(&node, "/", json!([{}]), selector.clone()).await, pending, "{selector}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn latest_is_the_block_before_the_open_one_while_blocks_come() {
    let node = TestNode::start(&FAST);
    until(&node, "head 3", |snapshot| number(&snapshot["head"]["number"]) >= 3).await;
    for tag in ["latest", "safe", "finalized", "pending"] {
        for _ in 0..50 {
            let answer = answer(&node, "eth_call", probe(&[NUMBER], &json!(tag))).await;
            let expected = if tag == "pending" { answer.block } else { answer.block - 1 };
            assert_eq!(words(&answer.value["result"])[0], U256::from(expected), "{tag}");
        }
    }
    assert_eq!(read_number(&node, json!("earliest")).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_is_the_same_by_number_by_object_and_by_hash() {
    let node = TestNode::start(&FAST);
    until(&node, "head 4", |snapshot| number(&snapshot["head"]["number"]) >= 4).await;
    let pieces = [vec![NUMBER.to_vec(), TIMESTAMP.to_vec()], everybody()].concat();
    for block in 0..=3 {
        let on_it = simulate(&node, "/", json!([{}]), hex(block)).await;
        assert_eq!(number(&on_it[0]["number"]), block + 1);
        let expected = read(&node, "/", &pieces, hex(block)).await;
        assert_eq!(expected[0], U256::from(block));
        let hash = &on_it[0]["parentHash"];
        for selector in [
            json!({"blockNumber": hex(block)}),
            json!({"blockHash": hash}),
            json!({"blockHash": hash, "requireCanonical": true}),
        ] {
            assert_eq!(read(&node, "/", &pieces, selector.clone()).await, expected, "{selector}");
            assert_eq!(simulate(&node, "/", json!([{}]), selector.clone()).await, on_it, "{selector}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_method_takes_every_selector() {
    let node = TestNode::quiet();
    let hash = snapshot(&node).await["head"]["hash"].take();
    let selectors = [
        json!("0x0"),
        json!("latest"),
        json!("pending"),
        json!("safe"),
        json!("finalized"),
        json!("earliest"),
        json!({"blockNumber": "0x0"}),
        json!({"blockHash": hash}),
        json!({"snapshotId": hex(node.id(0))}),
    ];
    for selector in selectors {
        node.result("/", "eth_call", json!([{"to": PROBE}, selector])).await;
        node.result("/", "eth_getCode", json!([PROBE, selector])).await;
        simulate(&node, "/", json!([{}]), selector).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_is_not_there_yet_is_refused_with_the_newest() {
    let node = TestNode::quiet();
    for selector in [hex(100), json!({"blockNumber": "0x64"})] {
        let error = node.error("/", "eth_call", json!([{"to": PROBE}, selector])).await;
        assert_eq!(error["code"], -32000);
        assert_eq!(error["message"], "header not found: block 100 is after the newest, 0");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_hash_is_refused_and_named() {
    let node = TestNode::quiet();
    let hash = B256::repeat_byte(7);
    let error = node.error("/", "eth_call", json!([{"to": PROBE}, {"blockHash": hash}])).await;
    assert_eq!(error["code"], -32000);
    assert!(error["message"].as_str().unwrap().contains(&hash.to_string()), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pruned_block_is_refused_with_the_oldest_kept() {
    let node = TestNode::start(&[&FAST[..], &["--keep-blocks", "3"]].concat());
    let first = node.block("earliest").await["hash"].take();
    until(&node, "head 6", |snapshot| number(&snapshot["head"]["number"]) >= 6).await;
    for (selector, block) in
        [(hex(1), 1), (json!({"blockNumber": "0x1"}), 1), (json!("earliest"), 0), (json!({"blockHash": first}), 0)]
    {
        for (method, params) in [
            ("eth_call", json!([{"to": PROBE}, selector])),
            ("eth_getCode", json!([PROBE, selector])),
            ("eth_simulateV1", json!([{"blockStateCalls": [{}]}, selector])),
        ] {
            let answer = answer(&node, method, params).await;
            // The head is the parent of the open block. The head and the two blocks before it are kept.
            let text = format!("state of block {block} is not retained: the oldest retained is {}", answer.block - 3);
            assert_eq!(answer.value["error"], json!({"code": -32000, "message": text}), "{method} at {selector}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_blocks_kept_answer() {
    let node = TestNode::start(&["--sub-block-ms", "200", "--sub-blocks", "4", "--keep-blocks", "3"]);
    until(&node, "head 4", |snapshot| number(&snapshot["head"]["number"]) >= 4).await;
    let asks = async {
        loop {
            let before = number(&snapshot(&node).await["head"]["number"]);
            let answers = [before, before - 1, before - 2].map(|block| probe(&[NUMBER], &hex(block)));
            let batch: Vec<_> = answers.into_iter().map(|params| request(1, "eth_call", params)).collect();
            let answers = node.send("/", &json!(batch)).await;
            if number(&snapshot(&node).await["head"]["number"]) == before {
                return (before, answers);
            }
        }
    };
    let (head, answers) = tokio::time::timeout(BOUND, asks).await.expect("a block lasts 800 ms");
    for (answer, back) in answers.as_array().unwrap().iter().zip(0..) {
        assert_eq!(words(&answer["result"])[0], U256::from(head - back), "{answer}");
    }
}

// Snapshots.

#[tokio::test(flavor = "multi_thread")]
async fn presim_snapshot_tells_id_block_index_age_head_and_feed() {
    let node = TestNode::quiet();
    let mut told = snapshot(&node).await;
    assert!(told["ageMs"].take().is_u64());
    let hash = simulate(&node, "/", json!([{}]), json!("latest")).await[0]["parentHash"].take();
    let expected = json!({
        "id": hex(node.id(1)), "blockNumber": "0x1", "index": "0x0", "ageMs": null,
        "head": {"number": "0x0", "hash": hash}, "feed": "live", "verified": "full", "fork": "osaka",
    });
    assert_eq!(told, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_age_of_a_snapshot_grows_until_the_next_comes() {
    let node = TestNode::quiet();
    let first = snapshot(&node).await["ageMs"].as_u64().unwrap();
    let grows = async || (snapshot(&node).await["ageMs"].as_u64()? >= first + 20).then_some(());
    eventually("older by 20 ms", grows).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_answer_bears_its_snapshot_in_a_header() {
    let node = TestNode::quiet();
    for method in ["eth_chainId", "presim_snapshot", "no_such_method"] {
        let response = node.client.post(node.url("/")).json(&request(1, method, json!([]))).send().await.unwrap();
        let fields = header_fields(response.headers()["x-presim-snapshot"].to_str().unwrap());
        assert!(fields["age_ms"].parse::<u64>().is_ok(), "{fields:?}");
        let names: Vec<_> = fields.keys().map(String::as_str).collect();
        assert_eq!(names, ["age_ms", "block", "feed", "fork", "id", "index", "verified"], "{method}");
        let (id, block, index, feed) = (&fields["id"], &fields["block"], &fields["index"], &fields["feed"]);
        let expected = format!("{:#x}", node.id(1));
        assert_eq!([id, block, index, feed], [expected.as_str(), "1", "0", "live"], "{method}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_bears_no_snapshot_in_a_header() {
    let node = TestNode::quiet();
    let batch = json!([request(1, "presim_snapshot", json!([]))]);
    let response = node.client.post(node.url("/")).json(&batch).send().await.unwrap();
    assert!(!response.headers().contains_key("x-presim-snapshot"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_can_be_had_again_exactly_as_pending_was() {
    let node = TestNode::start(&["--sub-block-ms", "20", "--sub-blocks", "3", "--keep-snapshots", "10000"]);
    let pieces = [vec![NUMBER.to_vec(), TIMESTAMP.to_vec(), BASEFEE.to_vec()], everybody()].concat();
    let mut seen = Vec::new();
    for _ in 0..100 {
        let simulation = json!([{"blockStateCalls": [{}, {}]}, "pending"]);
        for (method, params) in [("eth_call", probe(&pieces, &json!("pending"))), ("eth_simulateV1", simulation)] {
            let answer = answer(&node, method, params.clone()).await;
            seen.push((method, params, answer));
        }
    }
    let last = until(&node, "two blocks more", |s| number(&s["id"]) > seen.last().unwrap().2.id + 6).await;
    assert!(number(&last["id"]) > seen.last().unwrap().2.id);
    for (method, mut params, first) in seen {
        params[1] = json!({"snapshotId": format!("{:#x}", first.id)});
        assert_eq!(node.call("/", method, params).await, first.value, "{method} at snapshot {:#x}", first.id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_no_longer_kept_is_refused_with_those_that_are() {
    let node = TestNode::start(&[&FAST[..], &["--keep-snapshots", "4"]].concat());
    until(&node, "snapshot 20", |snapshot| sequence(&snapshot["id"]) >= 20).await;
    let gone = node.id(1);
    let answer = answer(&node, "eth_call", json!([{"to": PROBE}, {"snapshotId": hex(gone)}])).await;
    let text = format!("snapshot {gone:#x} is not retained: those from {:#x} to {:#x} are", answer.id - 3, answer.id);
    assert_eq!(answer.value["error"], json!({"code": -32000, "message": text}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_has_not_been_is_refused() {
    let node = TestNode::quiet();
    let [first, second, third] = [0, 1, 2].map(|sequence| node.id(sequence));
    let error = node.error("/", "eth_call", json!([{"to": PROBE}, {"snapshotId": hex(third)}])).await;
    let text = format!("snapshot {third:#x} is not retained: those from {first:#x} to {second:#x} are");
    assert_eq!(error["message"], text);
}

/// The error "those from a to b are kept" relies on this.
#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_numbered_without_gaps() {
    let node = TestNode::start(&[&FAST[..], &["--keep-snapshots", "100000"]].concat());
    let newest = number(&until(&node, "snapshot 20", |snapshot| sequence(&snapshot["id"]) >= 20).await["id"]);
    let mut missing = Vec::new();
    for id in node.id(0)..=newest {
        let answer = node.call("/", "eth_call", json!([{"to": PROBE}, {"snapshotId": hex(id)}])).await;
        if answer.get("error").is_some() {
            missing.push(id);
        }
    }
    assert!(missing.is_empty(), "of the snapshots up to {newest}, none has one of the numbers {missing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_runs_on_one_snapshot() {
    let node = TestNode::start(&["--sub-block-ms", "2", "--sub-blocks", "5"]);
    let pieces = [vec![NUMBER.to_vec()], everybody()].concat();
    let call = |id| request(id, "eth_call", probe(&pieces, &json!("pending")));
    let batch: Vec<_> =
        (0..50).map(|id| if id % 2 == 0 { request(id, "presim_snapshot", json!([])) } else { call(id) }).collect();
    let (batch, mut ids) = (json!(batch), Vec::new());
    for _ in 0..100 {
        let answers = node.send("/", &batch).await;
        let answers = answers.as_array().unwrap();
        assert_eq!(answers.len(), 50);
        let (told, read) = (&answers[0]["result"], &answers[1]["result"]);
        assert_eq!(words(read)[0], U256::from(number(&told["blockNumber"])));
        for (answer, id) in answers.iter().zip(0..) {
            assert_eq!(answer["id"], id);
            if id % 2 == 0 {
                assert_eq!(answer["result"]["id"], told["id"]);
            } else {
                assert_eq!(answer["result"], *read, "entry {id}");
            }
        }
        ids.push(number(&told["id"]));
    }
    assert!(ids.is_sorted(), "a later batch ran on an older snapshot: {ids:?}");
    assert!(ids.first() < ids.last(), "the devnet published nothing meanwhile");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_mixes_two_snapshots() {
    let node = Arc::new(TestNode::start(&["--sub-block-ms", "2", "--sub-blocks", "5", "--keep-snapshots", "100000"]));
    let pieces = [vec![NUMBER.to_vec(), TIMESTAMP.to_vec()], everybody()].concat();
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let (node, params) = (node.clone(), probe(&pieces, &json!("pending")));
        tasks.spawn(async move {
            let (mut seen, mut ids) = (Vec::new(), HashSet::new());
            while seen.len() < 400 || ids.len() <= 20 {
                let answer = answer(&node, "eth_call", params.clone()).await;
                let read = words(&answer.value["result"]);
                assert_eq!(read[0], U256::from(answer.block), "the call saw another block than its snapshot's");
                ids.insert(answer.id);
                seen.push((answer.id, (answer.block, answer.index, read)));
            }
            seen
        });
    }
    let mut by_id = HashMap::new();
    let mut id_of = HashMap::new();
    for (id, read) in tasks.join_all().await.into_iter().flatten() {
        assert_eq!(*id_of.entry((read.0, read.1)).or_insert(id), id, "block {} index {}", read.0, read.1);
        assert_eq!(*by_id.entry(id).or_insert_with(|| read.clone()), read, "snapshot {id:#x} gave two answers");
    }
    for (id, (_, _, first)) in by_id {
        let again = read(&node, "/", &pieces, json!({"snapshotId": hex(id)})).await;
        assert_eq!(again, first, "snapshot {id:#x}");
    }
}

// The open block.

#[tokio::test(flavor = "multi_thread")]
async fn a_simulation_at_pending_continues_the_open_block() {
    let node = TestNode::quiet();
    let told = snapshot(&node).await;
    let seen = read(&node, "/", &[NUMBER, TIMESTAMP, &[0x45], &[0x41]], json!("pending")).await;
    for path in PATHS {
        let block = simulate(&node, path, json!([{}]), json!("pending")).await[0].take();
        assert_eq!(block["number"], told["blockNumber"], "{path}");
        assert_eq!(block["parentHash"], told["head"]["hash"], "{path}");
        let fields = ["number", "timestamp", "gasLimit"].map(|field| U256::from(number(&block[field])));
        assert_eq!(fields[..], seen[..3], "{path}");
        assert_eq!(block["miner"].as_str().unwrap().parse::<Address>().unwrap(), Address::from_word(seen[3].into()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_after_the_open_one_follow_at_the_block_time_or_at_12_seconds_on_standard() {
    // 3 sub-blocks of 20 s make a block time of one minute.
    let node = TestNode::start(&["--traffic", "0", "--sub-block-ms", "20000", "--sub-blocks", "3"]);
    for (path, step) in [("/", 60), ("/standard", 12)] {
        let blocks = simulate(&node, path, json!([{}, {}, {}]), json!("pending")).await;
        let first = number(&blocks[0]["timestamp"]);
        for (index, block) in (0..).zip(blocks.as_array().unwrap()) {
            assert_eq!(number(&block["number"]), 1 + index, "{path}");
            assert_eq!(number(&block["timestamp"]), first + index * step, "{path}");
        }
        assert_eq!(blocks[1]["parentHash"], blocks[0]["hash"], "{path}");
        assert_eq!(blocks[2]["parentHash"], blocks[1]["hash"], "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_simulation_at_pending_has_the_gas_that_the_open_block_has_left() {
    let node = TestNode::start(&["--sub-block-ms", "20", "--sub-blocks", "10000", "--gas-cap", "100000000"]);
    let told = until(&node, "index 2", |snapshot| number(&snapshot["index"]) >= 2).await;
    let at = json!({"snapshotId": told["id"]});
    let block = simulate(&node, "/", json!([{}]), at.clone()).await[0].take();
    assert_eq!(block["gasUsed"], "0x0");
    let all = json!({"to": PROBE, "gas": block["gasLimit"]});
    let asks = json!([{"blockStateCalls": [{"calls": [all]}]}, at]);
    assert_eq!(node.error("/", "eth_simulateV1", asks).await["code"], -38015);
    let asks = json!([{"blockStateCalls": [{"calls": [{"to": PROBE, "gas": block["gasLimit"]}]}]}, "latest"]);
    node.result("/", "eth_simulateV1", asks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_the_root_a_call_sees_the_base_fee_of_its_block_and_pays_nothing() {
    let node = TestNode::quiet();
    let payer = node.account(1);
    let seen = read(&node, "/", &[BASEFEE.to_vec(), balance(payer)], json!("pending")).await;
    let code = json!({PROBE.to_string(): {"code": returning(&[BASEFEE.to_vec(), balance(payer)])}});
    let calls = json!([{"from": payer, "to": PROBE}, {"from": payer, "to": PROBE}]);
    let block =
        simulate(&node, "/", json!([{"calls": calls, "stateOverrides": code}]), json!("pending")).await[0].take();
    assert_eq!(seen[0], U256::from(875_000_000));
    assert_eq!(U256::from(number(&block["baseFeePerGas"])), seen[0]);
    assert_eq!(words(&block["calls"][0]["returnData"]), seen);
    assert_eq!(words(&block["calls"][1]["returnData"]), seen, "the first call cost its sender something");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_the_root_somebody_without_ether_may_call() {
    let node = TestNode::quiet();
    let poor = Address::repeat_byte(0x77);
    node.result("/", "eth_call", json!([{"from": poor, "to": PROBE}, "pending"])).await;
    let block = simulate(&node, "/", json!([{"calls": [{"from": poor, "to": PROBE}]}]), json!("pending")).await;
    assert_eq!(block[0]["calls"][0]["status"], "0x1");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_standard_a_free_call_sees_no_base_fee() {
    let node = TestNode::quiet();
    for at in ["pending", "latest"] {
        assert_eq!(read(&node, "/standard", &[BASEFEE], json!(at)).await, [U256::ZERO], "eth_call at {at}");
        let code = json!({PROBE.to_string(): {"code": returning(&[BASEFEE])}});
        let blocks = json!([{"calls": [{"to": PROBE}], "stateOverrides": code}]);
        let block = simulate(&node, "/standard", blocks, json!(at)).await[0].take();
        assert_eq!(block["baseFeePerGas"], "0x0", "at {at}");
        assert_eq!(words(&block["calls"][0]["returnData"]), [U256::ZERO], "at {at}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_standard_a_call_with_a_price_sees_the_base_fee() {
    let node = TestNode::quiet();
    let expected = read(&node, "/", &[BASEFEE], json!("pending")).await;
    let mut params = probe(&[BASEFEE], &json!("pending"));
    (params[0]["from"], params[0]["gasPrice"]) = (json!(node.account(1)), json!("0x77359400"));
    assert_eq!(words(&node.result("/standard", "eth_call", params).await), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_validation_both_dialects_have_the_base_fee_of_the_open_block() {
    let node = TestNode::quiet();
    let expected = read(&node, "/", &[BASEFEE], json!("pending")).await;
    for path in PATHS {
        let params = json!([{"blockStateCalls": [{}], "validation": true}, "pending"]);
        let block = node.result(path, "eth_simulateV1", params).await[0].take();
        assert_eq!([U256::from(number(&block["baseFeePerGas"]))], expected[..], "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_chain_that_stands_still_pending_is_latest() {
    let node = TestNode::still(&dev_signers().unwrap(), &[]);
    assert_eq!(snapshot(&node).await["feed"], "static");
    let pieces = [vec![NUMBER.to_vec(), TIMESTAMP.to_vec(), BASEFEE.to_vec()], everybody()].concat();
    for path in PATHS {
        let (pending, latest) = (json!("pending"), json!("latest"));
        let read_latest = read(&node, path, &pieces, latest.clone()).await;
        assert_eq!(read(&node, path, &pieces, pending.clone()).await, read_latest);
        assert_eq!(read_latest[..2], [U256::ZERO, U256::from(1_000)]);
        let on_latest = simulate(&node, path, json!([{}, {}]), latest).await;
        assert_eq!(simulate(&node, path, json!([{}, {}]), pending).await, on_latest);
        assert_eq!(on_latest[0]["number"], "0x1");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_that_stands_still_has_the_block_time_it_was_given() {
    let node = TestNode::still(&dev_signers().unwrap(), &["--block-time", "7"]);
    for (path, step) in [("/", 7), ("/standard", 12)] {
        let blocks = simulate(&node, path, json!([{}, {}]), json!("latest")).await;
        let times = [&blocks[0], &blocks[1]].map(|block| number(&block["timestamp"]));
        assert_eq!(times, [1_000 + step, 1_000 + 2 * step], "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_simulated_block_that_continues_the_open_one_has_its_prev_randao_on_slash() {
    let node = TestNode::quiet();
    let open = read(&node, "/", &[PREVRANDAO], json!("pending")).await[0];
    assert_ne!(open, U256::ZERO);
    let state = json!({PROBE.to_string(): {"code": returning(&[PREVRANDAO])}});
    let block = json!({"stateOverrides": state, "calls": [{"to": PROBE}]});
    let mut set = block.clone();
    set["blockOverrides"] = json!({"prevRandao": B256::with_last_byte(7)});
    let gap = json!({"blockOverrides": {"number": "0x2"}, "stateOverrides": state, "calls": [{"to": PROBE}]});
    for (path, first) in [("/", open), ("/standard", U256::ZERO)] {
        for (blocks, at, expected) in [
            (json!([block, block]), "pending", vec![first, U256::ZERO]),
            (json!([set]), "pending", vec![U256::from(7)]),
            (json!([block]), "latest", vec![U256::ZERO]),
        ] {
            let ran = simulate(&node, path, blocks, json!(at)).await;
            let seen: Vec<U256> =
                ran.as_array().unwrap().iter().map(|block| words(&block["calls"][0]["returnData"])[0]).collect();
            assert_eq!(seen, expected, "{path} {at}");
            let shown = ran.as_array().unwrap().iter().map(|block| words(&block["mixHash"])[0]);
            assert_eq!(shown.collect::<Vec<_>>(), expected, "{path} {at}");
        }
        // The block that continues fills a gap.
        let ran = simulate(&node, path, json!([gap]), json!("pending")).await;
        let asked = ran.as_array().unwrap().last().unwrap();
        assert_eq!((number(&asked["number"]), words(&asked["mixHash"])[0]), (2, U256::ZERO), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_base_fee_after_a_block_that_continues_follows_from_all_its_gas() {
    let flags = ["--testing", "--world", "--dialect=project", "--block-time=200s", "--sub-block-ms=20"];
    let node = TestNode::start(&flags);
    // Most of what the block may use: the floor is 40 gas a byte of data that is not zero (EIP-7623).
    for nonce in 0..4 {
        let input = vec![1; 100_000].into();
        let tx = crate::sending::raw(
            alloy_consensus::TxEip1559 { gas_limit: 4_100_000, input, ..crate::sending::plain(nonce) },
            &crate::sending::key(0),
        );
        node.result("/", "eth_sendRawTransactionSync", json!([tx, 60_000])).await;
    }
    // The parent of the second block has what is simulated, too: 4 times 1,000,000 units of gas.
    let spins = json!({PROBE.to_string(): {"code": "0x5b600056"}});
    let call = json!({"to": PROBE, "gas": "0xf4240"});
    let first = json!({"stateOverrides": spins, "calls": [call, call, call, call]});
    let blocks = json!([{"calls": []}, {}]);
    let answers = node
        .batch(
            "/",
            &[
                ("eth_getBlockByNumber", json!(["pending", false])),
                ("eth_simulateV1", json!([{"blockStateCalls": blocks}, "pending"])),
                ("eth_simulateV1", json!([{"blockStateCalls": [first, {}]}, "pending"])),
                (
                    "presim_simulate",
                    json!([{"blockStateCalls": [first, {
                    "stateOverrides": {PROBE.to_string(): {"code": returning(&[BASEFEE])}}, "calls": [{"to": PROBE}],
                }], "outputs": ["returnData"]}, "pending"]),
                ),
            ],
        )
        .await;
    let open = &answers[0];
    assert!(number(&open["gasUsed"]) > 16_000_000, "{open}");
    let after = |more: u64| {
        let (used, limit) = (number(&open["gasUsed"]) + more, number(&open["gasLimit"]));
        let params = alloy_eips::eip1559::BaseFeeParams::ethereum();
        alloy_eips::calc_next_block_base_fee(used, limit, number(&open["baseFeePerGas"]), params)
    };
    assert_ne!(after(0), after(4_000_000));
    let fee = |answer: &Value| number(&answer[1]["baseFeePerGas"]);
    assert_eq!((fee(&answers[1]), fee(&answers[2])), (after(0), after(4_000_000)));
    assert_eq!(words(&answers[3][1]["calls"][0]["returnData"])[0], U256::from(after(4_000_000)));
    assert_eq!(answers[2][1]["parentHash"], answers[2][0]["hash"]);
    // The chain does the same.
    node.result("/", "evm_mine", json!([])).await;
    let next = node.block("0x1").await;
    assert_eq!(next["gasUsed"], open["gasUsed"], "nothing else was in the block");
    let pending = node.block("pending").await;
    assert_eq!((number(&pending["number"]), number(&pending["baseFeePerGas"])), (2, after(0)));
    // A lower limit than the block has used: it counts as full.
    let low = json!([{"blockOverrides": {"gasLimit": "0x1"}}, {}]);
    let tx = crate::sending::raw(crate::sending::plain(4), &crate::sending::key(0));
    node.result("/", "eth_sendRawTransactionSync", json!([tx, 60_000])).await;
    for validation in [false, true] {
        let params = json!([{"blockStateCalls": low, "validation": validation}, "pending"]);
        let ran = node.result("/", "eth_simulateV1", params).await;
        assert_eq!(ran[1]["baseFeePerGas"], ran[0]["baseFeePerGas"], "a block without room has no target");
    }
}

// The devnet's chain.

#[tokio::test(flavor = "multi_thread")]
async fn sealed_blocks_chain() {
    let node = TestNode::start(&FAST);
    let mut heads = BTreeMap::new();
    let grows = async {
        while heads.len() < 10 {
            let mut told = snapshot(&node).await;
            heads.insert(number(&told["head"]["number"]), told["head"]["hash"].take());
        }
    };
    tokio::time::timeout(BOUND, grows).await.expect("blocks come");
    let newest = *heads.keys().last().unwrap();
    let mut times = Vec::new();
    for block in 0..=newest {
        let on_it = simulate(&node, "/", json!([{}]), hex(block)).await[0].take();
        let hash = &on_it["parentHash"];
        assert_eq!(heads.get(&block).unwrap_or(hash), hash, "block {block}");
        let seen = read(&node, "/", &[block_hash(block)], json!("pending")).await;
        assert_eq!(json!(B256::from(seen[0])), *hash, "BLOCKHASH({block})");
        assert_eq!(read_number(&node, json!({"blockHash": hash})).await, block);
        times.push(read(&node, "/", &[TIMESTAMP], hex(block)).await[0]);
    }
    assert!(times.is_sorted_by(|a, b| a < b), "times do not rise: {times:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hashes_of_blocks_in_the_history_contract_are_the_chain_s() {
    let node = TestNode::start(&FAST);
    until(&node, "head 5", |snapshot| number(&snapshot["head"]["number"]) >= 5).await;
    // The contract of EIP-2935.
    let history = "0x0000F90827F1C53a10cb7A02335B175320002935";
    for block in 0..4_u64 {
        let hash = simulate(&node, "/", json!([{}]), hex(block)).await[0]["parentHash"].take();
        let call = json!([{"to": history, "data": format!("0x{block:064x}")}, "pending"]);
        assert_eq!(node.result("/", "eth_call", call).await, hash, "block {block}");
    }
}

/// Returns the price of ALPHA in BETA, which each swap changes.
fn quote(node: &TestNode, at: Value) -> Value {
    let world = node.node.info().trading.expect("the devnet has its trading world");
    let call = IRouter::getAmountsOutCall {
        amountIn: U256::from(10).pow(U256::from(18)),
        path: vec![world.alpha, world.beta],
    };
    json!([{"to": world.router, "data": Bytes::from(call.abi_encode())}, at])
}

// Load.

/// Requests under way at once.
const CLIENTS: usize = 64;

/// `PRESIM_LOAD_REQUESTS` sets how many are sent, 10,000 by default.
#[tokio::test(flavor = "multi_thread")]
async fn mixed_requests_of_many_clients_are_all_answered_right_while_blocks_come() {
    let count =
        std::env::var("PRESIM_LOAD_REQUESTS").map_or(10_000, |text| text.parse::<u64>().expect("a number of requests"));
    let node = TestNode::start(&["--sub-block-ms", "200", "--deadline-ms", "120000", "--queue-wait-ms", "120000"]);
    let world = node.node.info().trading.expect("the devnet has its trading world");
    let trader = node.account(1);
    let swap = IRouter::swapExactTokensForTokensCall {
        amountIn: U256::from(1_000_000),
        amountOutMin: U256::ZERO,
        path: vec![world.alpha, world.beta],
        to: trader,
        deadline: U256::MAX,
    };
    let swap = json!({"from": trader, "to": world.router, "data": Bytes::from(swap.abi_encode())});
    let code = node.result("/", "eth_getCode", json!([world.router, "latest"])).await;
    assert_ne!(keccak256(hex::decode(code.as_str().unwrap()).unwrap()), keccak256(b""));
    let kinds: Vec<(&str, Value)> = ["pending", "latest"]
        .into_iter()
        .flat_map(|at| {
            [
                ("eth_call", quote(&node, json!(at))),
                ("eth_getCode", json!([world.router, at])),
                ("eth_simulateV1", json!([{"blockStateCalls": [{"calls": [swap]}]}, at])),
            ]
        })
        .collect();

    let before = sequence(&snapshot(&node).await["id"]);
    let asked = stream::iter(0..count).for_each_concurrent(CLIENTS, async |id| {
        let (method, params) = &kinds[id as usize % kinds.len()];
        let answer = node.send("/", &request(id, method, params.clone())).await;
        assert_eq!(answer["id"], id, "{method}: {answer}");
        let result = &answer["result"];
        match *method {
            "eth_getCode" => assert_eq!(*result, code, "{answer}"),
            "eth_simulateV1" => assert_eq!(result[0]["calls"][0]["status"], "0x1", "{answer}"),
            _ => assert_eq!(words(result).len(), 4, "{answer}"),
        }
    });
    asked.await;
    let told = snapshot(&node).await;
    assert!(sequence(&told["id"]) > before, "the devnet stands still under the load: {told}");
}
