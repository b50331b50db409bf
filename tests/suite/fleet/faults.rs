//! Fleets under simulated faults: production's nodes over a model of their servers. `cargo bench --bench faults` runs more seeds.

use std::sync::Mutex;

use crate::{
    faults::sim::{FLEET_FOUND, FleetCounts, FleetMutant, FleetScript, run_fleet, run_on_all_cores, shrink},
    support::say,
};

/// The seeds of fleets that the suite runs, besides those that have found a bug.
const FLEET_SEEDS: u64 = 200;

#[test]
fn no_seed_of_a_fleet_breaks_an_invariant() {
    let total = Mutex::new(FleetCounts::default());
    let found = FLEET_FOUND.iter().map(|(seed, _)| *seed);
    run_on_all_cores((0..FLEET_SEEDS).chain(found).collect(), |seed| {
        match run_fleet(&FleetScript::of(seed), FleetMutant::None) {
            Ok(counts) => total.lock().unwrap().add(&counts),
            Err(violation) => {
                let (script, violation) = shrink(FleetScript::of(seed), violation, FleetMutant::None);
                panic!("seed {seed}, shrunk to {script}{violation}");
            }
        }
    });
    let total = total.into_inner().unwrap();
    say(&total.to_string());
    assert!(total.takeovers > 100 && total.kills > 50 && total.shown > 2_000, "{total}");
    // Each fault has its scripts, and each kind of step, waiting too, comes several times.
    assert!(total.scripts.len() == 12 && total.scripts.values().all(|scripts| *scripts >= 16), "{total}");
    assert!(total.faults.len() == 23 && total.faults.values().all(|steps| *steps >= 4), "{total}");
}

#[test]
fn a_seed_of_a_fleet_tells_the_same_story_each_time() {
    for seed in 0..10 {
        let script = FleetScript::of(seed);
        let story = || run_fleet(&script, FleetMutant::None).unwrap();
        assert_eq!(story(), story(), "seed {seed}");
    }
}

#[test]
fn a_message_that_is_dropped_is_found() {
    fleet_is_found(FleetMutant::Dropped);
}

#[test]
fn messages_that_are_swapped_are_found() {
    fleet_is_found(FleetMutant::Swapped);
}

#[test]
fn a_message_that_is_repeated_is_found() {
    fleet_is_found(FleetMutant::Repeated);
}

#[test]
fn a_leader_without_an_epoch_is_found() {
    fleet_is_found(FleetMutant::NoEpoch);
}

#[test]
fn a_stream_that_takes_messages_in_any_place_is_found() {
    fleet_is_found(FleetMutant::NoExpectation);
}

fn fleet_is_found(mutant: FleetMutant) {
    let found = (0..20).find_map(|seed| Some((seed, run_fleet(&FleetScript::of(seed), mutant).err()?)));
    let (seed, violation) = found.unwrap_or_else(|| panic!("{mutant:?} is not found by 20 seeds"));
    let (script, violation) = shrink(FleetScript::of(seed), violation, mutant);
    say(&format!("{mutant:?}, by seed {seed}, shrunk to {script}{violation}"));
    assert!(script.steps.len() <= 8, "{script}");
}
