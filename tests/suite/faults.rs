//! The state machines under simulated faults. `cargo bench --bench faults` runs more seeds.

#[path = "../../benches/faults/sim/mod.rs"]
pub mod sim;

use std::sync::Mutex;

use self::sim::{
    Counts, FOUND, LIVE_FOUND, LiveCounts, LiveMutant, LiveScript, Mutant, Script, run, run_live, run_on_all_cores,
    shrink,
};
use crate::support::say;

/// The seeds that the suite runs, besides those that have found a bug.
const SEEDS: u64 = 200;

#[test]
fn no_seed_breaks_an_invariant() {
    let total = Mutex::new(Counts::default());
    let found = FOUND.iter().map(|(seed, _)| *seed);
    run_on_all_cores((0..SEEDS).chain(found).collect(), |seed| match run(&Script::of(seed), Mutant::None) {
        Ok(counts) => total.lock().unwrap().add(&counts),
        Err(violation) => {
            let (script, violation) = shrink(Script::of(seed), violation, Mutant::None);
            panic!("seed {seed}, shrunk to {script}{violation}");
        }
    });
    let total = total.into_inner().unwrap();
    say(&total.to_string());
    assert!(total.cuts > 100 && total.returns > 10 && total.batches > 50 && total.transactions > 500, "{total}");
}

#[test]
fn a_seed_tells_the_same_story_each_time() {
    for seed in 0..10 {
        let script = Script::of(seed);
        assert_eq!(run(&script, Mutant::None).unwrap(), run(&script, Mutant::None).unwrap(), "seed {seed}");
    }
}

#[test]
fn a_disk_that_does_not_sync_is_found() {
    is_found(Mutant::LyingSync, 20);
}

#[test]
fn an_answer_before_the_write_is_found() {
    is_found(Mutant::EarlyAnswer, 20);
}

#[test]
fn a_pool_that_is_not_stored_is_found() {
    is_found(Mutant::ForgetfulPool, 20);
}

#[test]
fn a_sub_block_that_is_not_recorded_is_found() {
    is_found(Mutant::NoJournal, 20);
}

/// The seeds of live chains that the suite runs, besides those that have found a bug.
const LIVE_SEEDS: u64 = 100;

#[test]
fn no_seed_of_a_live_chain_breaks_an_invariant() {
    let total = Mutex::new(LiveCounts::default());
    let found = LIVE_FOUND.iter().map(|(seed, _)| *seed);
    run_on_all_cores((0..LIVE_SEEDS).chain(found).collect(), |seed| {
        match run_live(&LiveScript::of(seed), LiveMutant::None) {
            Ok(counts) => total.lock().unwrap().add(&counts),
            Err(violation) => {
                let (script, violation) = shrink(LiveScript::of(seed), violation, LiveMutant::None);
                panic!("seed {seed}, shrunk to {script}{violation}");
            }
        }
    });
    let total = total.into_inner().unwrap();
    say(&total.to_string());
    assert!(total.pre_confirmed > 500 && total.reorgs > 50 && total.snapshots > 1000, "{total}");
    assert!(total.answers > 10_000, "{total}");
}

#[test]
fn a_seed_of_a_live_chain_tells_the_same_story_each_time() {
    for seed in 0..10 {
        let script = LiveScript::of(seed);
        let story = || run_live(&script, LiveMutant::None).unwrap();
        assert_eq!(story(), story(), "seed {seed}");
    }
}

#[test]
fn an_upstream_that_lies_is_found() {
    live_is_found(LiveMutant::LyingUpstream);
}

#[test]
fn sub_blocks_of_other_transactions_are_found() {
    live_is_found(LiveMutant::OtherTransactions);
}

#[test]
fn a_standing_bundle_that_forgets_what_it_read_is_found() {
    live_is_found(LiveMutant::ForgottenReads);
}

fn live_is_found(mutant: LiveMutant) {
    let found = (0..20).find_map(|seed| Some((seed, run_live(&LiveScript::of(seed), mutant).err()?)));
    let (seed, violation) = found.unwrap_or_else(|| panic!("{mutant:?} is not found by 20 seeds"));
    let (script, violation) = shrink(LiveScript::of(seed), violation, mutant);
    say(&format!("{mutant:?}, by seed {seed}, shrunk to {script}{violation}"));
    assert!(script.steps.len() <= 8, "{script}");
}

/// Checks that one of the first `seeds` seeds finds a mutant, and by a script that can be read.
fn is_found(mutant: Mutant, seeds: u64) {
    let found = (0..seeds).find_map(|seed| Some((seed, run(&Script::of(seed), mutant).err()?)));
    let (seed, violation) = found.unwrap_or_else(|| panic!("{mutant:?} is not found by {seeds} seeds"));
    let (script, violation) = shrink(Script::of(seed), violation, mutant);
    say(&format!("{mutant:?}, by seed {seed}, shrunk to {script}{violation}"));
    assert!(script.steps.len() <= 8, "{script}");
}
