//! The cost of standing bundles beside asking for all of them again: `cargo bench --bench standing`.
//!
//! 10,000 bundles of two swaps over 300 pools stand on a devnet, in a process of its own. In each sub-block, transfers
//! touch what 5 % of the bundles have read; then the same where each snapshot opens a block. Compared is the CPU time of
//! the node per sub-block: with nothing, with the standing bundles, and with all bundles asked for again in batches. Each
//! figure is printed with its goal, when the first and the last changed answer arrive after the snapshot, the time to
//! publish, and the memory of the bundles among them. Skips where the benchmark's genesis is absent.

#[path = "world/process.rs"]
mod process;

use std::{
    collections::BTreeMap,
    env,
    path::Path,
    time::{Duration, Instant},
};

use alloy_primitives::{Address, B256, U256, hex, keccak256};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use support::figures::verdict;
use tokio::net::TcpStream;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async, tungstenite::Message};

use crate::process::NodeProcess;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BENCH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/bench");
const BUNDLES: usize = 10_000;
const POOLS: usize = 300;
/// The accounts that hold the tokens.
const SEARCHERS: usize = 1_000;
/// The pools that a sub-block touches. Each bundle is in two of them.
const TOUCHED: usize = 8;
const SUB_BLOCK: Duration = Duration::from_millis(1_000);
/// The sub-blocks of a phase, and of one whose percentiles are told.
const ROUNDS: usize = 12;
const MANY_ROUNDS: usize = 60;

fn main() {
    if env::args().any(|arg| arg == "--test" || arg == "--list") {
        return;
    }
    let Some(world) = PoolWorld::load() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a thread");
    runtime.block_on(measure(&world, false));
    println!("\neach snapshot opens a block, whose time the pools store:");
    runtime.block_on(measure(&world, true));
}

/// A chain with many pools of the same two tokens.
struct PoolWorld {
    genesis: tempfile::NamedTempFile,
    owner: String,
    token: String,
    pools: Vec<Address>,
    tokens: [Address; 2],
    /// The first of the accounts that hold the tokens.
    searcher: Address,
}

impl PoolWorld {
    /// Adds copies of the benchmark's pool to its genesis.
    fn load() -> Option<Self> {
        let Ok(text) = std::fs::read(Path::new(BENCH).join("genesis.json")) else {
            println!("skipped: no genesis.json in {BENCH}");
            return None;
        };
        let mut genesis: Value = serde_json::from_slice(&text).expect("a genesis");
        let world = std::fs::read(Path::new(BENCH).join("world.json")).expect("the world's addresses");
        let world: Value = serde_json::from_slice(&world).expect("the world's addresses");
        let address = |name: &str| -> Address { world[name].as_str().unwrap().parse().unwrap() };
        let (pair, tokens) = (address("pair"), [address("t0"), address("t1")]);
        let pools: Vec<Address> =
            (0..POOLS as u64).map(|at| Address::left_padding_from(&(0x9001_0000 + at).to_be_bytes())).collect();
        let alloc = genesis["alloc"].as_object_mut().unwrap();
        let mut accounts: BTreeMap<Address, String> =
            alloc.keys().map(|key| (key.trim_start_matches("0x").parse().unwrap(), key.clone())).collect();
        let copied = alloc[&accounts[&pair]].clone();
        for token in tokens {
            let storage = alloc[&accounts[&token]]["storage"].as_object().unwrap().clone();
            // The slot of a balance in a mapping follows from the mapping's own slot.
            let slot = |holder: Address, mapping: u8| {
                keccak256([holder.into_word(), B256::with_last_byte(mapping)].concat()).to_string()
            };
            let held = (0..16).find_map(|mapping| Some((mapping, storage.get(&slot(pair, mapping))?.clone())));
            let (mapping, balance) = held.expect("the pool holds the token");
            let storage = alloc[&accounts[&token]]["storage"].as_object_mut().unwrap();
            for pool in &pools {
                storage.insert(slot(*pool, mapping), balance.clone());
            }
        }
        for pool in &pools {
            alloc.insert(pool.to_string().to_lowercase(), copied.clone());
            accounts.insert(*pool, pool.to_string());
        }
        let file = tempfile::Builder::new().suffix(".json").tempfile().expect("a file");
        serde_json::to_writer(&file, &genesis).expect("it is written");
        let owner = world["owner"].as_str().unwrap().to_owned();
        let searcher = world["searchers"][0].as_str().unwrap().parse().unwrap();
        Some(Self { genesis: file, owner, token: tokens[0].to_string(), pools, tokens, searcher })
    }

    /// Returns a bundle that swaps in one pool and back in another.
    fn bundle(&self, index: usize) -> Value {
        let (one, other) = (self.pools[index % POOLS], self.pools[(index * 7 + index / POOLS + 1) % POOLS]);
        // An account that the chain's transactions do not touch.
        let from = Address::from_word(
            (U256::from_be_bytes(self.searcher.into_word().0) + U256::from(index % SEARCHERS)).into(),
        );
        let word = |value: U256| hex::encode(value.to_be_bytes::<32>());
        let transfer = |token: Address, to: Address, amount: U256| {
            let data = format!("0xa9059cbb{}{}", hex::encode(to.into_word()), word(amount));
            json!({ "from": from, "to": token, "data": data, "gas": "0x186a0" })
        };
        let swap = |pool: Address, out: [U256; 2]| {
            let to = hex::encode(from.into_word());
            let data =
                format!("0x022c0d9f{}{}{to}{}{}", word(out[0]), word(out[1]), word(U256::from(128)), word(U256::ZERO));
            json!({ "from": from, "to": pool, "data": data, "gas": "0x30d40" })
        };
        let amount = U256::from(1_000_000 + index as u64);
        let got = amount / U256::from(4);
        let calls = json!([
            transfer(self.tokens[0], one, amount),
            swap(one, [U256::ZERO, got]),
            transfer(self.tokens[1], other, got),
            swap(other, [got / U256::from(8), U256::ZERO]),
        ]);
        let outputs = json!(["status", "gasUsed", "logs"]);
        json!({ "blockStateCalls": [{ "calls": calls }], "outputs": outputs })
    }
}

type Stream = WebSocketStream<MaybeTlsStream<TcpStream>>;

async fn open(node: &NodeProcess) -> Stream {
    connect_async(format!("ws://{}", node.listen)).await.expect("it connects").0
}

async fn read(stream: &mut Stream) -> Value {
    loop {
        match stream.next().await.expect("a message").expect("a message") {
            Message::Text(text) => return serde_json::from_str(&text).expect("JSON"),
            _ => continue,
        }
    }
}

async fn call(stream: &mut Stream, method: &str, params: Value) -> Value {
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    stream.send(Message::text(request.to_string())).await.expect("it is sent");
    loop {
        let mut answer = read(stream).await;
        // An answer to a message that cannot be read has no id.
        if answer.get("id").is_some() {
            assert!(answer.get("error").is_none(), "{method}: {}", answer["error"]);
            return answer["result"].take();
        }
    }
}

/// The measurements of a phase.
#[derive(Default)]
struct Phase {
    /// The node's CPU time in each sub-block.
    cpu: Vec<Duration>,
    changed: usize,
    first: Vec<Duration>,
    last: Vec<Duration>,
}

/// Measures all phases. If `opens`, each snapshot opens a block.
async fn measure(world: &PoolWorld, opens: bool) {
    let ms = SUB_BLOCK.as_millis().to_string();
    // Without `opens`, no block opens in any phase: one that opens makes all bundles due, because Uniswap V2 stores its time.
    let sub_blocks = if opens { "1" } else { "1000" };
    let genesis = world.genesis.path().to_str().expect("a path");
    let flags = ["--genesis", genesis, "--traffic", "0", "--sub-block-ms", &ms, "--sub-blocks", sub_blocks];
    let node = NodeProcess::start(&[&flags[..], &["--prefix-cache-mb", "0"]].concat());
    let mut sender = open(&node).await;
    let mut snapshots = open(&node).await;
    let heard = call(&mut snapshots, "eth_subscribe", json!(["presim_snapshots"])).await;
    assert!(heard.is_string());
    let bundles: Vec<Value> = (0..BUNDLES).map(|index| world.bundle(index)).collect();
    let sent = call(&mut sender, "eth_getTransactionCount", json!([world.owner, "latest"])).await;
    let mut nonce =
        u64::from_str_radix(sent.as_str().expect("a quantity").trim_start_matches("0x"), 16).expect("a number");

    // Nothing but the transfers.
    let mut published = vec![node.publishing()];
    let nothing = phase(world, &node, &mut sender, &mut snapshots, None, &[], ROUNDS, &mut nonce).await;
    published.push(node.publishing());
    // All bundles again, for each sub-block.
    let all = phase(world, &node, &mut sender, &mut snapshots, None, &bundles, ROUNDS, &mut nonce).await;
    // The bundles stand.
    let mut watcher = open(&node).await;
    let named: Vec<Value> =
        bundles.iter().enumerate().map(|(at, bundle)| json!({ "name": at.to_string(), "simulate": bundle })).collect();
    let before = node.resident();
    call(&mut watcher, "presim_watch", json!([named])).await;
    loop {
        let news = read(&mut watcher).await;
        let news = &news["params"]["result"];
        if news["last"] == true && news["behind"].as_array().is_some_and(Vec::is_empty) {
            break;
        }
    }
    let memory = node.resident().saturating_sub(before) >> 20;
    let rounds = if opens { ROUNDS } else { MANY_ROUNDS };
    published.push(node.publishing());
    let standing = phase(world, &node, &mut sender, &mut snapshots, Some(&mut watcher), &[], rounds, &mut nonce).await;
    published.push(node.publishing());

    let cpu = |phase: &Phase| percentile(&phase.cpu, 0.5).as_secs_f64() * 1e3;
    let [nothing, all, stand] = [&nothing, &all, &standing].map(cpu);
    println!(
        "{BUNDLES} bundles of two swaps over {POOLS} pools, {TOUCHED} pools touched by each sub-block: {} changed answers each",
        standing.changed / rounds
    );
    println!(
        "CPU a sub-block: {nothing:.0} ms alone, {all:.0} ms with all asked for again, {stand:.0} ms with all standing"
    );
    let ratio = (stand - nothing).max(1.0) / (all - nothing);
    verdict("CPU that is added, standing beside asked for again", ratio, if opens { 0.6 } else { 1.0 / 15.0 });
    if !opens {
        let ms = |times: &[Duration]| percentile(times, 0.99).as_secs_f64() * 1e3;
        verdict("p99 of the first changed answer after its snapshot, ms", ms(&standing.first), 5.0);
        verdict("p99 of the last changed answer after its snapshot, ms", ms(&standing.last), 60.0);
        verdict("memory of the standing bundles, MiB", memory as f64, 200.0);
    }
    let mean = |at: usize| (published[at + 1].0 - published[at].0) / (published[at + 1].1 - published[at].1);
    println!("mean time to publish: {:.2} ms alone, {:.2} ms with all standing", mean(0) * 1e3, mean(2) * 1e3);
    verdict("time to publish, standing beside alone", mean(2) / mean(0), 1.2);
}

/// Returns the time below which this part of the times is.
fn percentile(times: &[Duration], part: f64) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    let at = (times.len() as f64 * part) as usize;
    times.get(at.min(times.len().saturating_sub(1))).copied().unwrap_or_default()
}

/// Runs some sub-blocks.
#[allow(clippy::too_many_arguments, reason = "the parts of one phase")]
async fn phase(
    world: &PoolWorld,
    node: &NodeProcess,
    sender: &mut Stream,
    snapshots: &mut Stream,
    mut watcher: Option<&mut Stream>,
    ask: &[Value],
    rounds: usize,
    nonce: &mut u64,
) -> Phase {
    let mut phase = Phase::default();
    next(snapshots).await;
    let mut client = if ask.is_empty() { None } else { Some(open(node).await) };
    for round in 0..rounds {
        let cpu = node.cpu();
        for pool in (0..TOUCHED).map(|at| world.pools[(round * TOUCHED + at) % POOLS]) {
            let data =
                format!("0xa9059cbb{}{}", hex::encode(pool.into_word()), hex::encode(U256::ONE.to_be_bytes::<32>()));
            let tx = json!({ "from": world.owner, "to": world.token, "data": data, "gas": "0x186a0", "nonce": format!("{nonce:#x}") });
            call(sender, "eth_sendTransaction", json!([tx])).await;
            *nonce += 1;
        }
        let (id, published) = loop {
            let news = next(snapshots).await;
            if news.1 > 0 {
                break (news.0, Instant::now());
            }
        };
        if let Some(client) = &mut client {
            for part in ask.chunks(100) {
                let batch: Vec<Value> = part
                    .iter()
                    .map(|bundle| json!({ "jsonrpc": "2.0", "id": 1, "method": "presim_simulate", "params": [bundle, { "snapshotId": id }] }))
                    .collect();
                client.send(Message::text(Value::Array(batch).to_string())).await.expect("it is sent");
                let answers = read(client).await;
                assert!(
                    answers.as_array().is_some_and(|answers| answers.iter().all(|one| one.get("result").is_some())),
                    "{answers}"
                );
            }
        }
        if let Some(watcher) = &mut watcher {
            let mut first = None;
            loop {
                let news = read(watcher).await;
                let news = &news["params"]["result"];
                if news["id"] != id {
                    continue;
                }
                let changed = news["changed"].as_array().map_or(0, Vec::len);
                phase.changed += changed;
                if changed > 0 {
                    first.get_or_insert_with(|| published.elapsed());
                }
                if news["last"] == true {
                    break;
                }
            }
            phase.first.extend(first);
            phase.last.push(published.elapsed());
        }
        phase.cpu.push(node.cpu().saturating_sub(cpu));
    }
    phase
}

/// Returns the id of the next snapshot, and the number of its transactions.
async fn next(snapshots: &mut Stream) -> (Value, usize) {
    let mut news = read(snapshots).await;
    let news = news["params"]["result"].take();
    (news["id"].clone(), news["transactions"].as_array().map_or(0, Vec::len))
}
