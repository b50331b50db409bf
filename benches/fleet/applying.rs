//! Applying the messages of sub-blocks beside executing the sub-blocks, in process and without a server.

use std::{
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_eips::{Decodable2718, Encodable2718};
use presim::{
    Config,
    testing::{
        chain::{ChainSpec, ChainTx},
        clock::SystemClock,
        fleet::{
            replica::{Applier, LeaderClock, StreamReading},
            servers::ArrivedPart,
        },
        ledger::{Frame, LeaderTime, OpenBlock, Record, Snapshot, SnapshotId, Snapshots, Stamp, StreamMessage, frames},
        node::{self, OwnChain},
        publish::Change,
        rpc::StartupReason,
        source::sub_block::extend,
        state::CodeCache,
        store::Store,
        telemetry::Metrics,
        upstream::recover,
    },
};

use crate::{BUSY, Extent, at_most, percentiles};

/// Builds a chain of sub-blocks, each of which is then applied from its message and executed.
pub fn applying(extent: Extent) {
    let flags = ["presim"].iter().chain(&BUSY).map(std::ffi::OsString::from);
    let config = Config::load(flags).expect("the flags are right");
    let metrics = Metrics::default();
    let (store, codes) = (Store::in_memory(&metrics).expect("memory"), Arc::new(CodeCache::new(1 << 26)));
    let clock = Arc::new(SystemClock::default());
    let chain = OwnChain::begin(&config, &codes, &store, &StartupReason::default(), clock).expect("a chain");
    let OwnChain { spec, snapshots, devnet, .. } = chain;
    let snapshots = Arc::new(snapshots);
    let pool = node::pool(&config, &spec, &snapshots, &store).expect("a pool");
    let mut devnet = devnet.expect("a devnet").devnet;

    let follows = snapshots.load().last;
    let mut reading = StreamReading::from(Applier::new(snapshots.load(), codes, LeaderClock::default()), 0);
    let epoch = SnapshotId::begin(follows.epoch() + 1);
    let begun = StreamMessage::epoch(LeaderTime::of(Instant::now()), follows, "a node".to_owned());
    let mut waiting = parts(epoch, &begun);
    snapshots.update(|chain| chain.begin_epoch(epoch.epoch()));

    let replica = snapshots.mirror();
    let mut sequence = 0;
    let (mut applied, mut checked, mut executed, mut count) = (Vec::new(), Vec::new(), Vec::new(), 0);
    while applied.len() < extent.runs * extent.sub_blocks {
        let published = snapshots.load();
        let on = published.newest.clone();
        let step = devnet.step(&on, &pool).expect("a sub-block");
        // The check of a sealed block computes roots.
        let is_sub_block = step.sealed.is_none();
        let before = on.open.as_ref().expect("a block").transactions.len();
        let grown = step.next.snapshot.open.as_ref().expect("a block");
        let texts: Vec<Vec<u8>> = match is_sub_block {
            true => grown.transactions.iter().skip(before).map(|tx| tx.encoded_2718()).collect(),
            false => Vec::new(),
        };
        let record = Record::from(step);
        let id = published.last.next();
        let message = Change::of(&published, id, &record).message(LeaderTime::of(Instant::now()));
        waiting.extend(parts(id, &message.expect("a change of the chain")));

        let began = Instant::now();
        for part in waiting.drain(..) {
            sequence += 1;
            reading.arrive(sequence, Some(part)).expect("the next part");
        }
        replica.replace_all(reading.chain().clone());
        let elapsed = began.elapsed();
        if is_sub_block {
            applied.push(elapsed);
            count += texts.len();
            let open = on.open.as_ref().expect("a block");
            executed.push(execute(&spec, &snapshots.mirror(), &on, open, id, &texts));
        } else {
            checked.push(elapsed);
        }
        snapshots.apply_as(Stamp::now(id), record).expect("it fits");
        pool.advance();
        assert_eq!(replica.newest().head_hash(), snapshots.newest().head_hash(), "both have the same head");
    }
    println!("  {} sub-blocks with {} transactions each, wall time", applied.len(), count / applied.len());
    println!("  executing:");
    let whole = middle(&executed);
    percentiles(executed);
    println!("  applying:");
    let part = middle(&applied);
    percentiles(applied);
    println!("  applying those that end a block, whose roots are checked:");
    percentiles(checked);
    at_most("applying beside executing", part / whole, 0.2);
}

fn middle(times: &[Duration]) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}

/// Returns the time of a sub-block from its transactions to its snapshot being published.
fn execute(
    spec: &ChainSpec,
    cell: &Snapshots,
    on: &Snapshot,
    open: &OpenBlock,
    id: SnapshotId,
    texts: &[Vec<u8>],
) -> Duration {
    let began = Instant::now();
    // Read again, because a transaction remembers its hash.
    let transactions = texts.iter().map(|text| ChainTx::decode_2718_exact(text).expect("a transaction")).collect();
    let senders = recover(transactions).expect("they are signed");
    let applied = extend(spec, on, open, |sub_block| {
        senders.into_iter().for_each(|tx| assert!(sub_block.push(tx).expect("it is valid")));
    });
    cell.apply_as(Stamp::now(id), Record::SubBlock(applied.snapshot)).expect("it fits");
    began.elapsed()
}

/// Returns the parts of a message as they arrive.
fn parts(id: SnapshotId, message: &[u8]) -> Vec<ArrivedPart> {
    let frames = frames(message, NonZeroUsize::new(1 << 20).expect("not zero"));
    frames.into_iter().map(|Frame { index, count, bytes }| ArrivedPart { id, index, count, bytes }).collect()
}
