//! A large block in sub-blocks: each sub-block costs only its own transactions, not those before it.
//!
//! 571 transactions with 1.5 Ggas in ten sub-blocks, on an OP-stack chain whose state is an upstream's and already
//! cached. Prints the time of each sub-block: recovery of the senders, execution, and publication of its snapshot.
//!
//! Then 10,000 transactions in a hundred sub-blocks. Prints the time that the provisional header of each sub-block's
//! snapshot takes, which a subscriber of whole blocks or transactions needs.

use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_consensus::{Header, Receipt, ReceiptEnvelope, SignableTransaction, TxEip1559, transaction::Recovered};
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, Log, TxKind, U256, address, bytes};
use alloy_signer::SignerSync;
use eyre::{WrapErr, ensure, eyre};
use presim::testing::{
    chain::{BlockBody, BlockHashes, ChainSpec, ChainTx, SealedBlock},
    engine::open_block_with,
    ledger::{FeedState, Record, Retention, Snapshot, Snapshots, SubBlockStart},
    source::{devnet::world::dev_signers, sub_block::extend},
    state::{CodeCache, Fetched, Miss, RemoteSettings, RemoteState, World},
    upstream::recover,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TRANSACTIONS: u64 = 571;
const SUB_BLOCKS: usize = 10;
const KEPT: Retention = Retention { blocks: 16, snapshots: 64, history: u64::MAX, history_bytes: u64::MAX };
const GAS: u64 = 2_630_000;
const ROUNDS: usize = 5;
/// The sub-blocks of the long block, and the transactions in each.
const LONG: usize = 100;
const LONG_SIZE: usize = 100;
/// Hashes until little gas is left, and counts in a slot of the caller.
const BURNER: Address = address!("00000000000000000000000000000000000b0a7e");
const BURNER_CODE: Bytes = bytes!("5b6020600020505a61ea60106000573354600101335500");

fn main() -> eyre::Result<()> {
    let spec = chain()?;
    let transactions = transactions(&spec)?;
    let mut rounds: Vec<Vec<Duration>> = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push(round(&spec, &transactions)?);
    }
    println!("{TRANSACTIONS} transactions in {SUB_BLOCKS} sub-blocks, medians of {ROUNDS} rounds");
    let median = |index: usize| {
        let mut times: Vec<Duration> = rounds.iter().map(|round| round[index]).collect();
        times.sort_unstable();
        times[times.len() / 2]
    };
    let times: Vec<Duration> = (0..SUB_BLOCKS).map(median).collect();
    for (index, time) in times.iter().enumerate() {
        println!("  sub-block {index}: {:.1} ms", time.as_secs_f64() * 1e3);
    }
    let half = |part: &[Duration]| part.iter().sum::<Duration>().as_secs_f64();
    let (first, last) = times.split_at(SUB_BLOCKS / 2);
    println!("  the last five, times the first five: {:.3}", half(last) / half(first));

    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push(headers(&spec, &transactions)?);
    }
    println!("headers of {LONG} sub-blocks of {LONG_SIZE} transactions, medians of {ROUNDS} rounds");
    let median = |index: usize| {
        let mut times: Vec<Duration> = rounds.iter().map(|round| round[index]).collect();
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64()
    };
    let times: Vec<f64> = (0..LONG).map(median).collect();
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let (first, last) = (mean(&times[..LONG / 10]), mean(&times[LONG - LONG / 10..]));
    println!("  the first ten: {:.3} ms, the last ten: {:.3} ms, ratio {:.3}", first * 1e3, last * 1e3, last / first);
    Ok(())
}

/// Returns the time of the provisional header after each sub-block of a block of transactions with two logs each.
fn headers(spec: &ChainSpec, transactions: &[ChainTx]) -> eyre::Result<Vec<Duration>> {
    let senders = recover(transactions.to_vec()).map_err(|index| eyre!("transaction {index} has no sender"))?;
    let mut at = begin(spec)?;
    let mut senders = senders.into_iter().cycle();
    let mut times = Vec::new();
    for _ in 0..LONG {
        let mut open = at.open.clone().ok_or_else(|| eyre!("no block is open"))?;
        open.index += 1;
        for tx in senders.by_ref().take(LONG_SIZE) {
            open.header.gas_used += 60_000;
            let log = Log::new_unchecked(BURNER, vec![B256::repeat_byte(1); 3], Bytes::from(vec![7; 32]));
            let receipt = Receipt {
                status: true.into(),
                cumulative_gas_used: open.header.gas_used,
                logs: vec![log.clone(), log],
            };
            open.push(tx, ReceiptEnvelope::Eip1559(receipt.with_bloom()).into());
        }
        at = Snapshot::new(at.world.clone(), at.head.clone(), Some(open), at.hashes.clone());
        let began = Instant::now();
        black_box(at.open_block());
        times.push(began.elapsed());
    }
    Ok(times)
}

/// Returns a chain with all forks of the OP stack from the start.
fn chain() -> eyre::Result<ChainSpec> {
    let forks = ["regolith", "canyon", "ecotone", "fjord", "granite", "holocene", "isthmus", "jovian"];
    let mut config = serde_json::json!({
        "chainId": 4153, "bedrockBlock": 0, "terminalTotalDifficulty": 0, "terminalTotalDifficultyPassed": true,
        "optimism": { "eip1559Elasticity": 6, "eip1559Denominator": 50, "eip1559DenominatorCanyon": 250 },
    });
    for fork in forks {
        config[format!("{fork}Time")] = 0.into();
    }
    Ok(ChainSpec::new(serde_json::from_value(config)?, std::time::Duration::from_secs(1))?)
}

fn transactions(spec: &ChainSpec) -> eyre::Result<Vec<ChainTx>> {
    let signers = dev_signers()?;
    (0..TRANSACTIONS)
        .map(|index| {
            let signer = &signers[usize::try_from(index)? % signers.len()];
            let tx = TxEip1559 {
                chain_id: spec.chain_id(),
                nonce: index / signers.len() as u64,
                gas_limit: GAS,
                max_fee_per_gas: 1_000_000_000,
                to: TxKind::Call(BURNER),
                ..TxEip1559::default()
            };
            let signature = signer.sign_hash_sync(&tx.signature_hash())?;
            Ok(ChainTx::Signed(tx.into_signed(signature).into()))
        })
        .collect()
}

/// Applies the block once and returns the time of each sub-block.
fn round(spec: &ChainSpec, transactions: &[ChainTx]) -> eyre::Result<Vec<Duration>> {
    let mut at = begin(spec)?;
    let snapshots = Snapshots::new(Snapshot::at_head(at.world.clone(), at.head.clone(), at.hashes.clone()), LIVE, KEPT);
    let (mut times, mut start) = (Vec::new(), SubBlockStart::Opens);
    let size = transactions.len().div_ceil(SUB_BLOCKS);
    for part in transactions.chunks(size) {
        let began = Instant::now();
        let senders: Vec<Recovered<ChainTx>> =
            recover(part.to_vec()).map_err(|index| eyre!("transaction {index} has no sender"))?;
        let open = at.open.as_ref().ok_or_else(|| eyre!("no block is open"))?;
        let mut failed = None;
        let applied = extend(spec, &at, open, |sub_block| {
            for tx in senders {
                if let Err(error) = sub_block.push(tx) {
                    failed.get_or_insert(error);
                }
            }
        });
        if let Some(failed) = failed.filter(|_| applied.missed.is_empty()) {
            return Err(failed).wrap_err("a transaction cannot be included");
        }
        ensure!(applied.missed.is_empty(), "the state is not complete: {:?}", applied.missed);
        snapshots.apply(Record::Preconfirmed { complete: None, start, open: applied.snapshot.copy() })?;
        start = SubBlockStart::Extends;
        times.push(began.elapsed());
        at = applied.snapshot;
        black_box(&at);
    }
    let used = at.header().gas_used;
    ensure!(used > 1_400_000_000, "the block has used {used} gas");
    Ok(times)
}

const LIVE: FeedState = FeedState::Live { every_ms: 200 };

/// Returns the open block on a state without cache misses.
fn begin(spec: &ChainSpec) -> eyre::Result<Snapshot> {
    let parent = Header {
        number: 1,
        timestamp: 1_000,
        gas_limit: 2_000_000_000,
        base_fee_per_gas: Some(1),
        withdrawals_root: Some(B256::ZERO),
        blob_gas_used: Some(0),
        excess_blob_gas: Some(0),
        parent_beacon_block_root: Some(B256::ZERO),
        requests_hash: Some(B256::ZERO),
        // Jovian: denominator 250, elasticity 6, no minimum base fee.
        extra_data: bytes!("01000000fa000000060000000000000000"),
        ..Header::default()
    };
    let header = Header { number: 2, timestamp: 1_001, parent_hash: parent.hash_slow(), ..parent.clone() };
    let head = SealedBlock::new(parent, BlockBody::default());
    let view = RemoteState::begin(RemoteSettings::of_bytes(1 << 30), head.number(), head.hash());
    let codes = CodeCache::new(1 << 20);
    let account = |address: Address, balance: U256, code: Bytes| Fetched::Account {
        address,
        balance,
        nonce: 0,
        code: codes.chain(code),
    };
    let ether = U256::from(10).pow(U256::from(24));
    let users = dev_signers()?;
    view.insert(users.iter().map(|user| account(user.address(), ether, Bytes::new())));
    view.insert([account(BURNER, U256::ZERO, BURNER_CODE)]);
    let mut hashes = BlockHashes::default();
    hashes.push(head.number(), head.hash());
    let on = Snapshot::at_head(World::on(view.clone()), Arc::new(head), hashes);
    // All other state that the block reads is empty. It is discovered by cache misses, as in the feed.
    let txs = transactions(spec)?;
    loop {
        let opened = open_block_with(spec, &on, header.clone())?;
        let first = txs.iter().take(users.len()).cloned().map(|tx| tx.recovered()).collect::<Result<Vec<_>, _>>()?;
        let open = opened.snapshot.open.clone().ok_or_else(|| eyre!("no block is open"))?;
        let tried = extend(spec, &opened.snapshot, &open, |sub_block| {
            for tx in first {
                // Failures are ignored here, because the state may still be incomplete.
                let _ = sub_block.push(tx);
            }
        });
        if opened.missed.is_empty() && tried.missed.is_empty() {
            return Ok(opened.snapshot);
        }
        for (_, missed) in opened.missed.by_view().chain(tried.missed.by_view()) {
            let value = |miss: &Miss| match *miss {
                Miss::Account(address) => account(address, U256::ZERO, Bytes::new()),
                Miss::Slot(address, slot) => Fetched::Slot { address, slot, value: U256::ZERO },
                Miss::BlockHash(number) => Fetched::BlockHash { number, hash: KECCAK256_EMPTY },
            };
            view.insert(missed.iter().map(value));
        }
    }
}
