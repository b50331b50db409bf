//! The cost of taking, publishing, sealing and keeping states, at two sizes of world.

use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use alloy_primitives::{Address, U256, keccak256};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use presim::testing::{
    ledger::{Record, Snapshot, Snapshots},
    state::{AccountChange, LocalWorld},
};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use revm::state::AccountInfo;
use support::TestNode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SIZES: [u64; 2] = [10_000, 1_000_000];
/// The number of slots that a sub-block changes.
const CHANGED: u64 = 1_000;
/// The node's default number of kept snapshots.
const KEPT: usize = 64;

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    // Nothing but the bench publishes, and the node keeps its default number of snapshots.
    let node = TestNode::still(&[], &[]);
    let snapshots = node.node.snapshots();
    take(&mut criterion, snapshots);
    for size in SIZES {
        let world = build(size);
        for shape in Shape::ALL {
            memory(size, &world, shape);
        }
        publish(&mut criterion, snapshots, size, &world);
        seal(&mut criterion, size, &world);
    }
    criterion.final_summary();
}

/// Takes a snapshot while another thread publishes one every 200 µs.
fn take(criterion: &mut Criterion, snapshots: &Arc<Snapshots>) {
    snapshots.apply(Record::SubBlock(after(&snapshots.newest(), |world| *world = build(1_000)))).expect("it fits");
    let done = Arc::new(AtomicBool::new(false));
    let publisher = std::thread::spawn({
        let (snapshots, done) = (snapshots.clone(), done.clone());
        move || {
            const EVERY: Duration = Duration::from_micros(200);
            let (start, mut published) = (Instant::now(), 0);
            while !done.load(Relaxed) {
                snapshots.apply(Record::SubBlock(after(&snapshots.newest(), |_| {}))).expect("it fits");
                published += 1;
                std::thread::sleep((EVERY * published).saturating_sub(start.elapsed()));
            }
            (published, start.elapsed())
        }
    });
    let mut group = criterion.benchmark_group("take");
    group.throughput(Throughput::Elements(1));
    group.bench_function("newest", |bencher| bencher.iter(|| black_box(snapshots.newest())));
    group.bench_function("load", |bencher| bencher.iter(|| black_box(snapshots.load())));
    group.finish();
    done.store(true, Relaxed);
    let (published, time) = publisher.join().expect("the publisher");
    eprintln!("take: {published} snapshots were published meanwhile, in {:.2} s", time.as_secs_f64());
}

/// Publishes a sub-block's changes: from the world before them to the new snapshot in readers' hands, with the oldest
/// snapshot evicted. The target is 5 ms, and at most twice the time at a hundred times the size.
fn publish(criterion: &mut Criterion, snapshots: &Snapshots, size: u64, world: &LocalWorld) {
    let mut group = criterion.benchmark_group("publish");
    group.throughput(Throughput::Elements(CHANGED));
    for shape in Shape::ALL {
        let begin = after(&snapshots.newest(), |now| *now = world.clone());
        snapshots.apply(Record::SubBlock(begin)).expect("it fits");
        let mut random = SmallRng::seed_from_u64(1);
        let publish = |changes: Vec<AccountChange>| {
            snapshots
                .apply(Record::SubBlock(after(&snapshots.newest(), |world| world.apply_many(&changes))))
                .expect("it fits")
        };
        // From here on, each new snapshot evicts an old one.
        for _ in 0..KEPT {
            publish(shape.changes(CHANGED, &mut random));
        }
        group.bench_function(BenchmarkId::new(shape.name(), size), |bencher| {
            bencher.iter_batched(|| shape.changes(CHANGED, &mut random), publish, BatchSize::PerIteration);
        });
    }
    group.finish();
}

/// Computes the state root after a sub-block's changes, from a world with a known root.
fn seal(criterion: &mut Criterion, size: u64, world: &LocalWorld) {
    let start = Instant::now();
    black_box(world.state_root());
    eprintln!("seal: the first root of {size} accounts took {:.2} s", start.elapsed().as_secs_f64());
    let mut group = criterion.benchmark_group("state_root");
    group.throughput(Throughput::Elements(CHANGED));
    for shape in Shape::ALL {
        let mut random = SmallRng::seed_from_u64(1);
        group.bench_function(BenchmarkId::new(shape.name(), size), |bencher| {
            bencher.iter_batched_ref(
                || {
                    let mut changed = world.clone();
                    changed.apply_many(&shape.changes(CHANGED, &mut random));
                    changed
                },
                |changed| changed.state_root(),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

/// Measures the memory of 256 worlds that differ in 100 slots each.
fn memory(size: u64, world: &LocalWorld, shape: Shape) {
    const WORLDS: u64 = 256;
    const SLOTS: u64 = 100;
    let mut random = SmallRng::seed_from_u64(2);
    let before = resident();
    let mut worlds = vec![world.clone()];
    for _ in 0..WORLDS {
        let mut next = worlds[worlds.len() - 1].clone();
        next.apply_many(&shape.changes(SLOTS, &mut random));
        worlds.push(next);
    }
    let grown = resident().saturating_sub(before);
    eprintln!(
        "memory: {WORLDS} worlds of {size} accounts, {SLOTS} slots of {} changed in each: {:.1} MiB more resident, {:.0} KiB a world, {} bytes a slot",
        shape.name(),
        grown as f64 / f64::from(1 << 20),
        grown as f64 / 1024. / WORLDS as f64,
        grown / (WORLDS * SLOTS),
    );
    black_box(worlds);
}

/// The distribution of the changed slots.
#[derive(Clone, Copy)]
enum Shape {
    OneContract,
    ManyContracts,
}

impl Shape {
    const ALL: [Self; 2] = [Self::OneContract, Self::ManyContracts];

    const fn name(self) -> &'static str {
        match self {
            Self::OneContract => "one_contract",
            Self::ManyContracts => "many_contracts",
        }
    }

    /// Returns new values for `count` of the [`CHANGED`] slots.
    fn changes(self, count: u64, random: &mut SmallRng) -> Vec<AccountChange> {
        let first = random.random_range(0..CHANGED);
        let slots = (0..count).map(|n| ((first + n) % CHANGED, U256::from(random.random_range(1..u64::MAX))));
        match self {
            Self::OneContract => {
                vec![change(0, slots.map(|(slot, value)| (U256::from(slot), value)))]
            }
            Self::ManyContracts => slots.map(|(n, value)| change(1 + n, [(U256::ZERO, value)])).collect(),
        }
    }
}

fn change(account: u64, slots: impl IntoIterator<Item = (U256, U256)>) -> AccountChange {
    let info = Some(AccountInfo { balance: U256::from(1), nonce: 1, ..AccountInfo::default() });
    AccountChange { address: address(account), info, storage_cleared: false, slots: slots.into_iter().collect() }
}

/// Builds `size` accounts: the first with [`CHANGED`] slots, as many after it with one, the rest with ether only.
fn build(size: u64) -> LocalWorld {
    let start = Instant::now();
    let mut world = LocalWorld::default();
    for number in 0..size {
        let slots = if number == 0 { CHANGED } else { u64::from(number <= CHANGED) };
        world.apply_many(&[change(number, (0..slots).map(|slot| (U256::from(slot), U256::from(number + 1))))]);
        if (number + 1) % 250_000 == 0 {
            eprintln!("building a world: {} of {size} accounts, {:.1} s", number + 1, start.elapsed().as_secs_f64());
        }
    }
    world
}

/// Returns an address, spread like real addresses and the same in each run.
fn address(number: u64) -> Address {
    Address::from_word(keccak256(number.to_be_bytes()))
}

/// Returns a snapshot after `on` with a changed world.
fn after(on: &Snapshot, change: impl FnOnce(&mut LocalWorld)) -> Snapshot {
    let mut world = on.world.local().expect("all of it is here").clone();
    change(&mut world);
    Snapshot::new(world, on.head.clone(), None, on.hashes.clone())
}

/// Returns this process's resident memory in bytes.
fn resident() -> u64 {
    const PAGE: u64 = 4096;
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number of pages") * PAGE
}
