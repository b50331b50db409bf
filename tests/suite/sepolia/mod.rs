//! A scripted Sepolia that goes into Amsterdam (EIP-7773) is followed over HTTP. Every answer of the node that follows is
//! that of a node which has executed the whole chain with all of its state.

mod chain;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use alloy_eips::eip7928::AccountChanges;
use alloy_primitives::{Address, B256, U256};
use presim::testing::ledger::FeedProblem;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use serde_json::{Value, json};

use self::chain::{
    DESTROYED, ENDLESS, FACTORY, FORWARDER, LOGGER, READER, REVERTER, SEPOLIA, SLOT, STORE, Sepolia, SepoliaBlock,
    creates, stores, word,
};
use crate::{
    live::{stage::launch, with_usual},
    process::text,
    support::{TestNode, hex, request, say},
    upstream::{SmallUpstream, UpstreamChain},
};

const ALICE: &str = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";
/// The fields of simulated blocks that follow from their state roots.
const UNLIKE: [&str; 5] = ["stateRoot", "hash", "parentHash", "blockHash", "blockAccessListHash"];
const STRANGER: Address = Address::repeat_byte(0x5a);
/// The index of the call of [`READER`] among the calls.
const READS: usize = 12;

/// A chain, an upstream that has its first block, and a node with the whole chain.
struct SepoliaStage {
    blocks: Vec<Arc<SepoliaBlock>>,
    upstream: SmallUpstream,
    whole: TestNode,
}

impl SepoliaStage {
    async fn new(before: u64, after: u64, seed: u64) -> Self {
        let Sepolia { genesis, first, blocks, seen } = Sepolia::build(before, after, seed);
        let kinds = (seen.types.len(), seen.statuses.len(), seen.requests.len());
        assert_eq!(kinds, (5, 2, 5), "{:?} {:?} {:?}", seen.types, seen.statuses, seen.requests);
        let upstream = SmallUpstream::start(SEPOLIA, UpstreamChain::new(vec![first.upstream.clone()])).await;
        let all: Vec<_> = [first].into_iter().chain(blocks).map(Arc::new).collect();
        let known: BTreeMap<String, Arc<SepoliaBlock>> = all
            .iter()
            .flat_map(|block| [(name(block), block.clone()), (block.upstream.hash.to_string(), block.clone())])
            .collect();
        upstream.script(move |method, params| {
            let at = |index: usize| {
                let named = params[index].get("blockHash").unwrap_or(&params[index]);
                known.get(named.as_str()?)
            };
            let list = || Some(at(0)?.access_list.as_ref());
            Some(Ok(match method {
                "eth_getBlockAccessList" => list()?.map_or(Value::Null, |list| list.iter().map(access).collect()),
                "debug_getRawBlockAccessList" => {
                    let Some(list) = list()? else { return Some(Err((-32001, "the block has no access list"))) };
                    json!(alloy_primitives::Bytes::from(alloy_rlp::encode(list)))
                }
                "eth_getProof" => {
                    let address = serde_json::from_value(params[0].clone()).ok()?;
                    let slots: Vec<U256> = serde_json::from_value(params[1].clone()).ok()?;
                    at(2)?.proof(address, &slots)
                }
                _ => return None,
            }))
        });
        let rlp: Vec<u8> = all[1..].iter().flat_map(|block| block.rlp.clone()).collect();
        let starting = tokio::task::spawn_blocking(move || {
            let folder = tempfile::tempdir().expect("a directory");
            let [genesis_file, chain_file] = ["genesis.json", "chain.rlp"].map(|name| folder.path().join(name));
            std::fs::write(&genesis_file, genesis.to_string()).expect("it is written");
            std::fs::write(&chain_file, rlp).expect("it is written");
            let flags = ["--genesis", text(&genesis_file), "--chain", text(&chain_file), "--keep-blocks", "1000"];
            TestNode::start(&[&flags[..], &["--log", "off"]].concat())
        });
        Self { blocks: all, upstream, whole: starting.await.expect("no panic") }
    }

    /// Starts a node on the first block, and has it follow the others. Compares its answers after each.
    async fn follow(&self, flags: &[&str], seed: u64) {
        let flags = with_usual(&[&["--upstream-poll-ms", "10", "--log", "off"], flags].concat());
        let node = launch(&self.upstream.url(), None, &flags).await.expect("Sepolia is a known network");
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut answers = 0;
        for block in &self.blocks[1..] {
            self.upstream.push(block.upstream.clone());
            node.sealed(block.number()).await;
            let path = if rng.random() { "/" } else { "/standard" };
            let asked = questions(block, &mut rng);
            let [mine, theirs] = [&node, &self.whole].map(|node| ask(node, path, &asked));
            let (mine, theirs) = tokio::join!(mine, theirs);
            let mut different = Vec::new();
            for (index, (method, params)) in asked.iter().enumerate() {
                let [mine, theirs] = [&mine, &theirs].map(|answers| comparable(method, path, &answers[index]));
                compare(&format!("{path} {method} {params}"), &mine, &theirs, &mut different);
            }
            assert!(different.is_empty(), "at block {}:\n{}", block.number(), different.join("\n"));
            answers += asked.len();
        }
        let blocks = self.blocks.len() - 1;
        say(&format!("{answers} answers on {blocks} blocks were equal"));
        let has_list = |block: &&Arc<SepoliaBlock>| block.access_list.is_some() && !block.number().is_multiple_of(32);
        let listed = self.blocks[1..].iter().filter(has_list).count();
        for (outcome, count) in [("listed", listed), ("executed", blocks - listed)] {
            let metric = format!("presim_upstream_blocks_total{{outcome=\"{outcome}\"}}");
            assert_eq!(node.metric(&metric), count as f64, "{outcome}");
        }
        for problem in FeedProblem::ALL {
            let name = format!("presim_feed_fallbacks_total{{reason=\"{}\"}}", problem.as_str());
            assert_eq!(node.metric(&name), 0.0, "{problem:?}");
        }
    }
}

fn name(block: &SepoliaBlock) -> String {
    format!("{:#x}", block.number())
}

/// Returns an account of an access list as execution-apis has it: slots and their values are words.
fn access(account: &AccountChanges) -> Value {
    let words = |slot: &U256| B256::from(*slot);
    let slots = account.storage_changes.iter().map(|slot| {
        let changes = slot.changes.iter();
        let changes =
            changes.map(|change| json!({"index": change.block_access_index, "value": words(&change.new_value)}));
        json!({"key": words(&slot.slot), "changes": changes.collect::<Value>()})
    });
    let mut json = serde_json::to_value(account).expect("it is JSON");
    json["storageChanges"] = slots.collect();
    json["storageReads"] = account.storage_reads.iter().map(|slot| json!(words(slot))).collect();
    json
}

/// Asks questions in one batch.
async fn ask(node: &TestNode, path: &str, asked: &[(&'static str, Value)]) -> Vec<Value> {
    let batch = asked.iter().enumerate().map(|(id, (method, params))| request(id as u64, method, params.clone()));
    let Value::Array(answers) = node.send(path, &batch.collect()).await else { panic!("no batch") };
    answers
}

/// Tells where two values differ.
fn compare(at: &str, mine: &Value, theirs: &Value, different: &mut Vec<String>) {
    match (mine, theirs) {
        (Value::Object(mine), Value::Object(theirs)) => {
            let keys: BTreeSet<&String> = mine.keys().chain(theirs.keys()).collect();
            for key in keys {
                let [mine, theirs] = [mine, theirs].map(|fields| fields.get(key).unwrap_or(&Value::Null));
                compare(&format!("{at} .{key}"), mine, theirs, different);
            }
        }
        (Value::Array(mine), Value::Array(theirs)) if mine.len() == theirs.len() => {
            for (index, (mine, theirs)) in mine.iter().zip(theirs).enumerate() {
                compare(&format!("{at} [{index}]"), mine, theirs, different);
            }
        }
        _ if mine != theirs => different.push(format!("{at}: {mine} is not {theirs}")),
        _ => {}
    }
}

/// Returns an answer without what differs because the node that follows does not have the whole state: the state roots of
/// simulated blocks, and so their hashes, which the next block writes to its state (EIP-2935) and has in its access list. On
/// `/` neither node computes state roots, and all of these are compared.
fn comparable(method: &str, path: &str, answer: &Value) -> Value {
    if (method, path) == ("eth_simulateV1", "/standard") { without_hashes(answer) } else { answer.clone() }
}

fn without_hashes(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(key, _)| !UNLIKE.contains(&key.as_str()));
            kept.map(|(key, value)| (key.clone(), without_hashes(value))).collect()
        }
        Value::Array(all) => all.iter().map(without_hashes).collect(),
        other => other.clone(),
    }
}

/// Returns questions about a block, and about runs on it.
fn questions(block: &SepoliaBlock, rng: &mut SmallRng) -> Vec<(&'static str, Value)> {
    let (at, hash) = (hex(block.number()), block.upstream.hash);
    let slot = rng.random_range(0..12);
    let new = Address::from(rng.random::<[u8; 20]>());
    let known = block.touched[rng.random_range(0..block.touched.len())];
    let mut asked = vec![
        ("eth_getBlockByNumber", json!([at, true])),
        ("eth_getBlockByHash", json!([hash, false])),
        ("eth_getHeaderByNumber", json!([at])),
        ("debug_getRawHeader", json!([at])),
        ("debug_getRawBlock", json!([at])),
        ("eth_getBlockReceipts", json!([at])),
        ("debug_getRawReceipts", json!([at])),
        ("eth_getLogs", json!([{"fromBlock": at, "toBlock": at}])),
        ("eth_getLogs", json!([{"blockHash": hash, "address": LOGGER}])),
        ("eth_getBlockAccessList", json!([at])),
        ("eth_getBlockAccessList", json!([hash])),
        ("eth_getStorageAt", json!([STORE, word(slot), at])),
        ("eth_getStorageAt", json!([SLOT, "0x0", at])),
        ("eth_getProof", json!([STORE, [hex(slot)], at])),
    ];
    for address in [known, block.touched[0], new] {
        asked.push(("eth_getBalance", json!([address, at])));
        asked.push(("eth_getTransactionCount", json!([address, at])));
        asked.push(("eth_getCode", json!([address, at])));
    }
    for tx in block.transactions.iter().take(2) {
        asked.push(("eth_getTransactionReceipt", json!([tx])));
        asked.push(("eth_getTransactionByHash", json!([tx])));
    }
    // Calls of every kind, to new accounts and to known ones.
    let call =
        |to: Address, value: u64, input: Value| json!({"from": ALICE, "to": to, "value": hex(value), "input": input});
    let calls = [
        call(new, 1, json!("0x")),
        call(known, 1, json!("0x")),
        call(STORE, 0, json!(word(slot))),
        call(STORE, 0, json!(stores(slot, 0))),
        call(STORE, 0, json!(stores(rng.random_range(0..24), 5))),
        call(REVERTER, 0, json!("0x")),
        call(LOGGER, 0, json!(word(slot))),
        call(DESTROYED, 2, json!(new.into_word())),
        call(SLOT, 0, json!("0x")),
        call(FORWARDER, 3, json!(new.into_word())),
        call(FACTORY, 3, json!(creates())),
        json!({"from": ALICE, "to": null, "value": "0x1", "input": creates()}),
        call(READER, 0, json!(known.into_word())),
    ];
    for _ in 0..3 {
        let call = &calls[rng.random_range(0..calls.len())];
        asked.push(("eth_call", json!([call, at])));
        asked.push(("eth_estimateGas", json!([call, at])));
        asked.push(("eth_createAccessList", json!([call, at])));
        asked.push(("debug_traceCall", json!([call, at, {"tracer": "callTracer", "tracerConfig": {"withLog": true}}])));
    }
    asked.push(("eth_call", json!([calls[READS], at])));
    // The last of the calls reads the parent's hash, which differs if the parent is simulated.
    // One call alone may use up all of its gas.
    let mut one = |of: &[Value]| {
        let mut call = of[rng.random_range(0..of.len())].clone();
        call["gas"] = json!("0x200000");
        call
    };
    let mut some = |of: &[Value]| -> Vec<Value> { (0..4).map(|_| one(of)).collect() };
    let (first, second) = (some(&calls), some(&calls[..READS]));
    let state = json!({STRANGER.to_string(): {"balance": "0x77", "code": "0x4b5f5260205ff3"}});
    let blocks = json!([
        {"calls": first, "stateOverrides": state},
        {"blockOverrides": {"gasLimit": "0x1c9c380"}, "calls": second},
    ]);
    asked.push(("eth_simulateV1", json!([{"blockStateCalls": blocks, "traceTransfers": rng.random::<bool>()}, at])));
    let valid = json!([{"stateOverrides": {ALICE: {"balance": "0x56bc75e2d63100000"}}, "calls": [
        {"from": ALICE, "to": new, "value": "0x1", "input": "0x", "gas": "0x7a120", "maxFeePerGas": "0x4a817c800"},
    ]}]);
    asked.push(("eth_simulateV1", json!([{"blockStateCalls": valid, "validation": true}, at])));
    asked.push(("debug_traceCall", json!([calls[rng.random_range(0..calls.len())], at, {"tracer": "prestateTracer", "tracerConfig": {"diffMode": true}}])));
    asked.push((
        "debug_traceCall",
        json!([
            call(ENDLESS, 0, json!("0x")).as_object().map(|call| {
                let mut call = call.clone();
                call.insert("gas".to_owned(), json!("0x5600"));
                call
            }),
            at,
            {}
        ]),
    ));
    if block.number().is_multiple_of(8) {
        asked.push(("debug_traceBlockByNumber", json!([at, {"tracer": "callTracer"}])));
        asked.push(("debug_traceTransaction", json!([block.transactions[0], {}])));
    }
    asked
}

#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_blocks_through_amsterdam_are_answered_as_by_a_node_with_the_whole_state() {
    let stage = SepoliaStage::new(150, 150, 1).await;
    stage.follow(&[], 1).await;
    assert_eq!(stage.upstream.asked("eth_getProof"), stage.blocks.len() - 1, "only those that clients have asked for");
}

#[tokio::test(flavor = "multi_thread")]
async fn state_that_is_checked_by_proofs_is_right_on_both_sides_of_the_fork() {
    let stage = SepoliaStage::new(30, 30, 2).await;
    stage.follow(&["--verify-proofs"], 2).await;
}
