//! The roots of a block's transactions and receipts, with the transactions' hashes: in parallel and in sequence.
//!
//! Transactions have 300 bytes and receipts 900, like those of swaps.

use std::{hint::black_box, time::Duration};

use alloy_primitives::keccak256;
use alloy_trie::root::ordered_trie_root_encoded;
use criterion::{BenchmarkId, Criterion, Throughput};
use presim::testing::chain::ordered_roots;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let mut group = criterion.benchmark_group("lists");
    for count in [1, 3, 20, 200] {
        // All entries differ, as in a block.
        let list = |length| (0..count).map(|place| vec![place as u8; length]).collect::<Vec<_>>();
        let (transactions, receipts) = (list(300), list(900));
        let [transactions, receipts] =
            [&transactions, &receipts].map(|list| list.iter().map(Vec::as_slice).collect::<Vec<_>>());
        group.throughput(Throughput::Elements(count));
        group.bench_function(BenchmarkId::new("side_by_side", count), |bencher| {
            bencher.iter(|| ordered_roots([black_box(&transactions), &receipts], &transactions));
        });
        group.bench_function(BenchmarkId::new("one_after_another", count), |bencher| {
            bencher.iter(|| {
                let hashes: Vec<_> = black_box(&transactions).iter().map(keccak256).collect();
                (ordered_trie_root_encoded(&transactions), ordered_trie_root_encoded(&receipts), hashes)
            });
        });
    }
    group.finish();
    criterion.final_summary();
}
