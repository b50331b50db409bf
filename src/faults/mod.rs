//! The state machines under simulated faults, as tests: journal, pool, ledger, devnet, live source, fleet and store as production
//! runs them, on one thread, with their time, arrivals and storage as inputs.
//!
//! A script follows from its seed. Each of its steps is an arrival, a move of the clock, a commit or a fault. After
//! each step, and after each restart, the invariants compare what the nodes show with what they have acknowledged before. A script
//! that breaks one is shrunk to a short one, and printed with its seed.
//!
//! `PRESIM_FAULT_SEEDS=0..10000` runs other seeds than usual; `PRESIM_FAULT_SEEDS=183..184` runs one of them.

#[allow(dead_code, reason = "the suite uses the rest of it")]
mod disk;
mod fleet;
mod life;
mod live;
mod record;
mod run;
mod script;
mod shrink;

use std::{num::NonZero, ops::Range, sync::Mutex, thread};

use self::{
    fleet::{FleetMutant, FleetScript},
    life::Mutant,
    live::{LiveMutant, LiveScript},
    script::Script,
    shrink::{Simulated, shrink},
};

/// Returns the seeds that were asked for, if any were.
fn asked() -> Option<Range<u64>> {
    let asked = std::env::var("PRESIM_FAULT_SEEDS").ok()?;
    let seeds = asked.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    Some(seeds.unwrap_or_else(|| panic!("PRESIM_FAULT_SEEDS is {asked:?}: expected FROM..TO")))
}

/// Runs the first `seeds` seeds, or those that were asked for, on all cores. Returns what the first ones did.
///
/// The threads are none of rayon's: a node reads images and frees what it drops on those, and would wait until all seeds are done.
fn unbroken<S: Simulated>(seeds: u64) -> Option<S::Counts> {
    let asked = asked();
    let run: Vec<u64> = match &asked {
        Some(asked) => asked.clone().collect(),
        None => (0..seeds).chain(S::FOUND.iter().copied()).collect(),
    };
    let (next, total) = (Mutex::new(run.into_iter()), Mutex::new(S::Counts::default()));
    let next = || next.lock().expect("no thread panics with the lock").next();
    thread::scope(|threads| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            threads.spawn(|| {
                while let Some(seed) = next() {
                    match S::of(seed).run(S::SOUND) {
                        Ok(ran) => S::add(&mut total.lock().expect("no thread panics with the lock"), &ran),
                        Err(violation) => {
                            let (script, violation) = shrink(S::of(seed), violation, S::SOUND);
                            panic!("seed {seed}, shrunk to {script}{violation}");
                        }
                    }
                }
            });
        }
    });
    let total = total.into_inner().expect("no thread panics with the lock");
    println!("{total}");
    asked.is_none().then_some(total)
}

/// Checks that a seed tells the same story each time.
fn repeats<S: Simulated>() {
    for seed in 0..10 {
        let script = S::of(seed);
        assert_eq!(script.run(S::SOUND).unwrap(), script.run(S::SOUND).unwrap(), "seed {seed}");
    }
}

/// Checks that one of the first 20 seeds finds a mutant, and by a script that can be read.
fn is_found<S: Simulated>(mutant: S::Mutant) {
    let found = (0..20).find_map(|seed| Some((seed, S::of(seed).run(mutant).err()?)));
    let (seed, violation) = found.unwrap_or_else(|| panic!("{mutant:?} is not found by 20 seeds"));
    let (mut script, violation) = shrink(S::of(seed), violation, mutant);
    println!("{mutant:?}, by seed {seed}, shrunk to {script}{violation}");
    assert!(script.steps().len() <= 8, "{script}");
}

#[test]
fn no_seed_breaks_an_invariant() {
    let Some(total) = unbroken::<Script>(200) else { return };
    assert!(total.cuts > 100 && total.returns > 10 && total.batches > 50 && total.transactions > 500, "{total}");
}

#[test]
fn no_seed_of_a_live_chain_breaks_an_invariant() {
    let Some(total) = unbroken::<LiveScript>(100) else { return };
    assert!(total.pre_confirmed > 500 && total.reorgs > 50 && total.snapshots > 1000, "{total}");
    assert!(total.answers > 10_000, "{total}");
}

#[test]
fn no_seed_of_a_fleet_breaks_an_invariant() {
    let Some(total) = unbroken::<FleetScript>(200) else { return };
    assert!(total.takeovers > 100 && total.kills > 50 && total.shown > 2_000, "{total}");
    // Each fault has its scripts, and each kind of step, waiting included, occurs several times.
    assert!(total.scripts.len() == 12 && total.scripts.values().all(|scripts| *scripts >= 16), "{total}");
    assert!(total.faults.len() == 23 && total.faults.values().all(|steps| *steps >= 4), "{total}");
}

#[test]
fn a_seed_tells_the_same_story_each_time() {
    repeats::<Script>();
    repeats::<LiveScript>();
    repeats::<FleetScript>();
}

#[test]
fn a_lossy_store_or_an_early_answer_is_found() {
    for mutant in [Mutant::LyingSync, Mutant::EarlyAnswer, Mutant::ForgetfulPool, Mutant::NoJournal] {
        is_found::<Script>(mutant);
    }
}

#[test]
fn a_lying_upstream_or_a_bundle_that_forgets_its_reads_is_found() {
    for mutant in [LiveMutant::LyingUpstream, LiveMutant::OtherTransactions, LiveMutant::ForgottenReads] {
        is_found::<LiveScript>(mutant);
    }
}

#[test]
fn a_stream_that_loses_order_or_epochs_is_found() {
    let mutants = [
        FleetMutant::Dropped,
        FleetMutant::Swapped,
        FleetMutant::Repeated,
        FleetMutant::NoEpoch,
        FleetMutant::NoExpectation,
    ];
    for mutant in mutants {
        is_found::<FleetScript>(mutant);
    }
}
