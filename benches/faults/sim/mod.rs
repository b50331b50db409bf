//! A simulation of presim's own state machines under faults: journal, pool, ledger, devnet and store as production runs
//! them, on one thread, with their time, arrivals and storage as inputs.
//!
//! A [`Script`] follows from its seed. Each of its steps is an arrival, a move of the clock, a commit or a fault. After
//! each step, and after each restart, the [`Record`](record::Record) compares what the node shows with what it has
//! acknowledged before. A script that breaks an invariant is shrunk to a short one.

#[cfg(feature = "fleet")]
mod fleet;
mod life;
mod live;
mod record;
mod run;
mod script;
mod shrink;

use std::{num::NonZero, sync::Mutex, thread};

#[cfg(feature = "fleet")]
pub use self::fleet::{FleetCounts, FleetMutant, FleetScript, run_fleet};
pub use self::{
    life::Mutant,
    live::{LiveCounts, LiveMutant, LiveScript, run_live},
    run::{Counts, Violation, run},
    script::Script,
    shrink::shrink,
};

/// Runs seeds on all cores. Their threads are none of rayon's: a node reads images and frees what it drops on those, and would
/// wait until all seeds are done.
pub fn run_on_all_cores(seeds: Vec<u64>, run: impl Fn(u64) + Sync) {
    let seeds = Mutex::new(seeds.into_iter());
    let next = || seeds.lock().expect("no thread panics with the lock").next();
    thread::scope(|threads| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            threads.spawn(|| {
                while let Some(seed) = next() {
                    run(seed);
                }
            });
        }
    });
}

/// The seeds of live chains that found a bug, each with a line on what it found. The suite runs them all.
pub const LIVE_FOUND: &[(u64, &str)] = &[
    (
        123,
        "A block retired as it was pre-confirmed although the canonical one had another transfer in the place of one.",
    ),
    (2743, "The same, after a reorg."),
];

/// The seeds of fleets that found a bug, each with a line on what it found. The suite runs them all.
#[cfg(feature = "fleet")]
pub const FLEET_FOUND: &[(u64, &str)] = &[(
    359,
    "A change that the leader's disk had failed to write was there after a restart, under an id that the stream had for the failure.",
)];

/// The seeds that found a bug, each with a line on what it found. The suite runs them all.
pub const FOUND: &[(u64, &str)] = &[
    (
        183,
        "On a store that had failed, a batch read old blocks for its fees, which panicked, instead of naming the failure.",
    ),
    (3520, "A batch counted as pruned when its first transaction's block was, though others of it still waited."),
    (6431, "The same as 3520, after a restart."),
];
