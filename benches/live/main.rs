//! A live chain, end to end: a node follows a builder's stream over a WebSocket and an upstream over another, all on
//! loopback. Measured is the time from the sending of a sub-block to the snapshot after it, and each goal is printed with
//! its verdict.
//!
//! `cargo bench --bench live -- all` runs each part three times with 1,000 sub-blocks, and prints the medians of the runs:
//!
//! - `busy`: 100 transfers and token calls in each sub-block, warm, one each 50 ms.
//! - `heavy`: 57 transactions with 150 Mgas in each sub-block, ten to a block, against revm alone, in turn; and the last five sub-blocks
//!   of a block against the first five.
//! - `far`: an upstream 50 ms away, 6 dependent reads in each sub-block, one each 200 ms.
//! - `distant`: canonical blocks without pre-confirmations, one each 200 ms, of an upstream whose messages take 50 ms in each
//!   direction, with 3 and 6 dependent reads in each block, with traces and without. Measured is by how many blocks the
//!   published head is behind, every 10 ms.
//! - `listed`: a block of Amsterdam of 3,000 transactions, executed, and applied from its access list.
//! - `shadow`: blocks of 3,000 swaps and of 3,000 transfers without a difference under the next fork, executed, and shadowed under it.
//! - `canonical`: blocks of 100 transfers and token calls without pre-confirmations, one each 200 ms, as under Denim.
//!
//! The names of parts select some of them, a number sets the number of sub-blocks, a second one that of runs, and a third one the
//! milliseconds between two blocks of `distant`: `distant 1500 1` takes five minutes for each of its four lines, `distant 60 1 1000`
//! has blocks of a second. Without a name all run once, with 50 sub-blocks.

mod bare;
mod full_block;
mod listed;
mod shadow;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope};
use alloy_primitives::{Address, B256, TxKind};
use alloy_signer::SignerSync;
use presim::testing::{
    chain::ChainTx,
    ledger::{Chain, FeedProblem},
    source::devnet::world::dev_signers,
};
use serde_json::{Value, json};

use support::{
    BOUND,
    built::{BASE_TIME, BURNER, Built, CHASES, DEPOSITOR, OP_CHAIN, TRAILS, base_time, chase, is_on_trail},
    figures::{median, percentiles, verdict},
    op_chain::L1_BLOCK,
    stage::{EVERY, LiveStage, busy, busy_transactions, chain_of, chases, encode, launch, serve},
    upstream::SmallUpstream,
};

use self::{bare::BareChain, full_block::Doing};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The parts, in the order in which they run.
const PARTS: [&str; 7] = ["busy", "heavy", "far", "distant", "canonical", "listed", "shadow"];
/// The runs of a part that is asked for, and the sub-blocks of each.
const WHOLE: Extent = Extent { runs: 3, sub_blocks: 1_000, every: EVERY };
/// The same without a name of a part.
const SHORT: Extent = Extent { runs: 1, sub_blocks: 50, every: EVERY };

/// The most milliseconds that 99 of 100 busy sub-blocks may take.
const BUSY_MS: f64 = 8.0;
/// The most time of a heavy sub-block, as a multiple of revm's.
const HEAVY_RATIO: f64 = 1.15;
/// The most milliseconds that 99 of 100 sub-blocks may lag whose state is far.
const FAR_MS: f64 = 400.0;
/// The time of a message from or to a distant upstream.
const ONE_WAY: Duration = Duration::from_millis(50);
/// The dependent reads of a distant block, whether the upstream traces, and the most blocks that 99 of 100 samples are behind.
const DISTANT: [(usize, bool, f64); 4] = [(3, true, 2.0), (6, true, 2.0), (3, false, 4.0), (6, false, 6.0)];
/// The most milliseconds from the announcement of 99 of 100 canonical blocks to their snapshots: the next one comes then.
const CANONICAL_MS: f64 = 200.0;

/// The extent to which a part is run.
#[derive(Clone, Copy)]
struct Extent {
    runs: usize,
    sub_blocks: usize,
    /// The time between two blocks of a distant upstream.
    every: Duration,
}

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    if asked.iter().any(|argument| argument == "--test" || argument == "--list") {
        return;
    }
    let words = asked.iter().map(String::as_str).filter(|argument| !argument.starts_with('-'));
    let (names, numbers): (Vec<&str>, Vec<&str>) = words.partition(|word| word.parse::<usize>().is_err());
    if let Some(unknown) = names.iter().find(|name| !PARTS.contains(name) && **name != "all") {
        panic!("{unknown}: expected all, names of {PARTS:?}, or a number of sub-blocks");
    }
    let mut extent = if names.is_empty() { SHORT } else { WHOLE };
    let number = |at: usize| numbers.get(at).and_then(|number| number.parse::<usize>().ok());
    (extent.sub_blocks, extent.runs) = (number(0).unwrap_or(extent.sub_blocks), number(1).unwrap_or(extent.runs));
    if let Some(every) = number(2) {
        extent.every = Duration::from_millis(every as u64);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    for part in PARTS.into_iter().filter(|part| names.is_empty() || names.contains(part) || names.contains(&"all")) {
        println!("\n{part}: {} runs of {} sub-blocks", extent.runs, extent.sub_blocks);
        runtime.block_on(async {
            match part {
                "busy" => busy_part(extent).await,
                "heavy" => heavy_part(extent).await,
                "far" => far_part(extent).await,
                "distant" => distant_part(extent).await,
                "listed" => listed_part(extent).await,
                "shadow" => shadow_part(extent).await,
                _ => canonical_part(extent).await,
            }
        });
    }
}

async fn busy_part(extent: Extent) {
    const SPLIT: [usize; 5] = [101, 100, 100, 100, 100];
    let blocks = busy(&Built::op_stack(), SPLIT.len(), extent.sub_blocks.div_ceil(SPLIT.len()) + 1);
    let encoded = encode(&blocks, &SPLIT);
    // The first block fills the cache.
    let ((cold, warm), (cold_encoded, warm_encoded)) = (blocks.split_at(1), encoded.split_at(1));
    let mut worst = Vec::new();
    for _ in 0..extent.runs {
        let stage = LiveStage::new(Built::op_stack(), SmallUpstream::ws_url, &[]).await;
        stage.play_encoded(cold, cold_encoded, EVERY).await;
        stage.upstream.push(cold[0].block.clone());
        worst.push(percentiles(stage.play_encoded(warm, warm_encoded, Duration::from_millis(50)).await));
        stage.never_fell();
    }
    verdict("ms at p99", median(worst), BUSY_MS);
}

async fn far_part(extent: Extent) {
    /// One transaction a sub-block, the deposit beside the first.
    const SPLIT: [usize; 5] = [2, 1, 1, 1, 1];
    let (contract, _) = CHASES[2];
    let blocks = chases(&Built::op_stack(), contract, SPLIT.len(), extent.sub_blocks.div_ceil(SPLIT.len()));
    let encoded = encode(&blocks, &SPLIT);
    let mut worst = Vec::new();
    for _ in 0..extent.runs {
        let stage = LiveStage::new(Built::op_stack(), SmallUpstream::ws_url, &[]).await;
        stage.upstream.delay(Duration::from_millis(50));
        let lags = stage.play_encoded(&blocks, &encoded, EVERY).await;
        println!("  applied: {} of {}", stage.applied(), lags.len());
        worst.push(percentiles(lags));
        stage.never_fell();
    }
    verdict("ms of lag at p99", median(worst), FAR_MS);
}

async fn heavy_part(extent: Extent) {
    const SUBS: usize = 10;
    const COUNT: usize = 57;
    const GAS: u64 = 2_690_000;
    // Large enough for the base fee to stay.
    const GAS_LIMIT: u64 = 10_000_000_000;
    let signers = dev_signers().expect("keys");
    let burn = |at: usize| -> ChainTx {
        let tx = TxEip1559 {
            chain_id: OP_CHAIN,
            nonce: (at / signers.len()) as u64,
            gas_limit: GAS,
            max_fee_per_gas: 20_000_000_000,
            to: TxKind::Call(BURNER),
            ..TxEip1559::default()
        };
        let signature = signers[at % signers.len()].sign_hash_sync(&tx.signature_hash()).expect("a signature");
        TxEnvelope::from(tx.into_signed(signature)).into()
    };
    let first = Built::op_stack_of(GAS_LIMIT);
    let in_block = SUBS * COUNT;
    let blocks = chain_of(&first, extent.sub_blocks.div_ceil(SUBS), |block| {
        (0..in_block).map(|at| burn(block * in_block + at)).collect()
    });
    let mut split = [COUNT; SUBS];
    split[0] += 1;
    let encoded = encode(&blocks, &split);
    let (mut ratios, mut lasts) = (Vec::new(), Vec::new());
    for _ in 0..extent.runs {
        // The stream waits for revm.
        let flags = ["--flashblocks-silent-ms", "60000"];
        let stage = LiveStage::new(first.clone(), SmallUpstream::ws_url, &flags).await;
        let mut bare = BareChain::new(&first);
        let (mut own, mut alone) = (Vec::new(), Vec::new());
        for (at, (block, messages)) in blocks.iter().zip(&encoded).enumerate() {
            let parts = bare.parts(block, &split);
            for (index, (message, part)) in messages.iter().cloned().zip(parts).enumerate() {
                let began = Instant::now();
                stage.server.send_message(message);
                published(&stage, block.number(), index as u32).await;
                own.push(began.elapsed());
                if index == 0 && at > 0 {
                    stage.upstream.push(blocks[at - 1].block.clone());
                    canonical(&stage, blocks[at - 1].number()).await;
                }
                let began = Instant::now();
                let gas = bare.run(&part);
                alone.push(began.elapsed());
                assert!(gas > 149_000_000, "{gas}");
            }
            assert_eq!(bare.gas(), block.header().gas_used, "revm uses the same gas");
        }
        stage.never_fell();
        let each = own.iter().zip(&alone).map(|(own, alone)| own.as_secs_f64() / alone.as_secs_f64());
        let ratio = median(each.collect());
        let half = |from: usize| -> f64 {
            own.chunks_exact(SUBS).flat_map(|block| &block[from..from + SUBS / 2]).map(Duration::as_secs_f64).sum()
        };
        lasts.push(half(SUBS / 2) / half(0));
        percentiles(own);
        let times: Vec<f64> = alone.iter().map(Duration::as_secs_f64).collect();
        println!("  revm alone: p50 {:.2} ms, ratio {ratio:.3}", median(times) * 1e3);
        ratios.push(ratio);
    }
    verdict("times revm", median(ratios), HEAVY_RATIO);
    println!("  the last five sub-blocks of a block, times the first five: {:.3}", median(lasts));
}

/// The most time of applying a block from its list, as a part of executing it: with senders and receipts, and without.
const LISTED: (f64, f64) = (0.5, 0.1);

async fn listed_part(extent: Extent) {
    let (whole, alone) = listed::run(extent.runs.max(5)).await;
    verdict("of executing, senders and receipts included", whole, LISTED.0);
    verdict("of executing, without them", alone, LISTED.1);
}

/// The most time of shadowing a block without differences, as a multiple of executing it.
const SHADOW: f64 = 2.5;

async fn shadow_part(extent: Extent) {
    for doing in [Doing::Swap, Doing::Transfer] {
        println!("  {doing:?}");
        verdict("times executing", shadow::run(extent.runs.max(5), doing).await, SHADOW);
    }
}

async fn distant_part(extent: Extent) {
    for (reads, is_traced, most) in DISTANT {
        println!("  {reads} dependent reads, {}", if is_traced { "traced" } else { "without traces" });
        let (contract, _) = CHASES.into_iter().find(|(_, of)| *of == reads).expect("a contract");
        let (is_quick, seconds) = (extent.every < Duration::from_secs(1), extent.every.as_secs());
        let first = if is_quick { Built::denim() } else { Built::op_stack() };
        let mut blocks: Vec<Built> = Vec::new();
        for at in 0..extent.sub_blocks as u64 {
            let on = blocks.last().unwrap_or(&first);
            let chase = chase(0, OP_CHAIN, at, contract, at % TRAILS);
            let next = if is_quick {
                let transactions = vec![base_time(on.number() + 1, (at + 1) % 5 * 200), chase];
                on.next_after(u64::from(at % 5 == 4), transactions, 1)
            } else {
                on.next_after(seconds, vec![chase], 1)
            };
            blocks.push(next);
        }
        let mut worst = Vec::new();
        for _ in 0..extent.runs {
            let upstream = Arc::new(serve(&[&first]).await);
            upstream.delay(2 * ONE_WAY);
            if is_traced {
                let parents = std::iter::once(&first).chain(&blocks);
                let traces: HashMap<B256, Value> = parents
                    .zip(&blocks)
                    .zip(0..)
                    .map(|((on, block), at)| (block.hash(), trace_of_chase(on, block, contract, at % TRAILS)))
                    .collect();
                upstream.script(move |method, params| {
                    let hash: B256 = serde_json::from_value(params[0].clone()).ok()?;
                    (method == "debug_traceBlockByHash").then(|| traces.get(&hash).cloned().map(Ok))?
                });
            }
            let node = launch(&upstream.ws_url(), Some(&first.config), &[]).await.expect("it starts");
            let messages = upstream.asked("messages");
            let (newest, lags) = (AtomicU64::new(first.number()), Mutex::new(Vec::new()));
            let head = || node.node.snapshots().load().head().number();
            let play = async {
                let mut clock = tokio::time::interval(extent.every);
                for block in &blocks {
                    clock.tick().await;
                    upstream.change(|chain| chain.put(block.block.clone()));
                    newest.store(block.number(), Relaxed);
                    let (upstream, fields) = (upstream.clone(), block.block.fields.clone());
                    tokio::spawn(async move {
                        tokio::time::sleep(ONE_WAY).await;
                        upstream.announce(fields);
                    });
                }
            };
            let sample = async {
                let mut clock = tokio::time::interval(Duration::from_millis(10));
                loop {
                    clock.tick().await;
                    lags.lock().expect("no panic").push(newest.load(Relaxed) - head());
                }
            };
            tokio::select! { () = play => {}, () = sample => {} }
            let last = blocks.last().expect("a block").number();
            let mut changes = node.node.snapshots().changes();
            let end = async {
                while head() < last {
                    changes.changed().await.expect("the node publishes");
                }
            };
            tokio::time::timeout(BOUND, end).await.expect("the last block is followed in time");
            let count = blocks.len() as f64;
            let executed = node.metric("presim_upstream_blocks_total{outcome=\"executed\"}");
            let each = (upstream.asked("messages") - messages) as f64 / count;
            let waves = node.metric("presim_upstream_waves_total") / count;
            let mut lags = lags.into_inner().expect("no panic");
            lags.sort_unstable();
            let at = |share: f64| lags[((lags.len() - 1) as f64 * share).round() as usize];
            println!(
                "  blocks behind: p50 {}, p99 {}, most {}; executed {executed} of {count}; for each block {each:.1} messages, {waves:.1} waves of state",
                at(0.5),
                at(0.99),
                at(1.0),
            );
            worst.push(at(0.99) as f64);
        }
        verdict("blocks behind at p99", median(worst), if is_quick { most } else { 1.0 });
    }
}

/// Returns the trace of the block after `on`, which has a [`chase`], as the prestate tracer has it.
fn trace_of_chase(on: &Built, block: &Built, contract: Address, trail: u64) -> Value {
    let whole = [DEPOSITOR, L1_BLOCK, BASE_TIME, block.sender(block.raw().len() - 1), block.header().beneficiary];
    let mut result: serde_json::Map<String, Value> =
        whole.map(|address| (address.to_string(), on.traced(address, |_| true))).into_iter().collect();
    result.insert(contract.to_string(), on.traced(contract, |slot| is_on_trail(slot, trail)));
    json!([{ "result": result }])
}

async fn canonical_part(extent: Extent) {
    let first = Built::denim();
    let mut nonces = Default::default();
    let mut blocks: Vec<Built> = Vec::new();
    for at in 0..extent.sub_blocks as u64 {
        let on = blocks.last().unwrap_or(&first);
        let mut transactions = vec![base_time(on.number() + 1, (at + 1) % 5 * 200)];
        transactions.extend(busy_transactions(&mut nonces, 100));
        let next = on.next_after(u64::from(at % 5 == 4), transactions, 1);
        blocks.push(next);
    }
    let mut worst = Vec::new();
    for _ in 0..extent.runs {
        let upstream = serve(&[&first]).await;
        let node = launch(&upstream.ws_url(), Some(&first.config), &[]).await.expect("it starts");
        let (mut clock, mut times) = (tokio::time::interval(EVERY), Vec::new());
        for block in &blocks {
            clock.tick().await;
            let began = Instant::now();
            upstream.push(block.block.clone());
            let mut changes = node.node.snapshots().changes();
            let wait = async {
                while node.node.snapshots().load().head().hash() != block.hash() {
                    changes.changed().await.expect("the node publishes");
                }
            };
            tokio::time::timeout(BOUND, wait).await.expect("the block is followed in time");
            times.push(began.elapsed());
        }
        let executed = node.metric("presim_upstream_blocks_total{outcome=\"executed\"}");
        assert_eq!(executed, blocks.len() as f64, "all blocks are executed");
        worst.push(percentiles(times));
    }
    verdict("ms from the announcement at p99", median(worst), CANONICAL_MS);
}

/// Waits until a sub-block is published.
async fn published(stage: &LiveStage, number: u64, index: u32) {
    reaches(stage, "the sub-block is applied", |snapshots| {
        let newest = &snapshots.newest;
        newest.open.is_some() && (newest.header().number, newest.index()) == (number, index)
    })
    .await;
}

/// Waits until a block is canonical.
async fn canonical(stage: &LiveStage, number: u64) {
    reaches(stage, "the block is canonical", |snapshots| snapshots.head().number() == number).await;
}

async fn reaches(stage: &LiveStage, what: &str, is_so: impl Fn(&Chain) -> bool) {
    let snapshots = stage.node.node.snapshots();
    let mut changes = snapshots.changes();
    let wait = async {
        while !is_so(&snapshots.load()) {
            let problem = snapshots.load().feed().problem();
            assert!(problem.is_none_or(|problem| problem == FeedProblem::Connecting), "{what}: {problem:?}");
            changes.changed().await.expect("the node publishes");
        }
    };
    assert!(tokio::time::timeout(BOUND, wait).await.is_ok(), "{what}: not in time");
}
