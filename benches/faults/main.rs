//! presim's own state machines under simulated faults, a script for each seed: `cargo bench --bench faults`.
//!
//! `-- --seeds N` runs the seeds from 0 to N, 10,000 unless told, and those that have found a bug before: of chains that
//! are built here, of live chains, and of fleets. `--fleet-seeds N` runs those of fleets alone. `--seed S`, `--live-seed S` and
//! `--fleet-seed S` replay one. The script of a seed that breaks an invariant is shrunk and printed.

#[path = "../../tests/suite/disk.rs"]
#[allow(dead_code, reason = "the suite uses the rest of it")]
mod disk;
mod sim;

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use sim::{
    Counts, FLEET_FOUND, FOUND, FleetCounts, FleetMutant, FleetScript, LIVE_FOUND, LiveCounts, LiveMutant, LiveScript,
    Mutant, Script, Violation, run, run_fleet, run_live, run_on_all_cores, shrink,
};

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let number = |text: &str| text.parse().unwrap_or_else(|error| panic!("{text}: {error}: expected a number"));
    let of_fleets = |count: u64| from_zero(count, FLEET_FOUND);
    let all = |count: u64| (from_zero(count, FOUND), from_zero(count, LIVE_FOUND), of_fleets(count));
    let (seeds, live, fleets) = match asked.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => all(10_000),
        ["--seeds", seeds] => all(number(seeds)),
        ["--fleet-seeds", seeds] => (Vec::new(), Vec::new(), of_fleets(number(seeds))),
        ["--seed", seed] => (vec![number(seed)], Vec::new(), Vec::new()),
        ["--live-seed", seed] => (Vec::new(), vec![number(seed)], Vec::new()),
        ["--fleet-seed", seed] => (Vec::new(), Vec::new(), vec![number(seed)]),
        other => panic!(
            "{other:?}: expected `--seeds N`, `--fleet-seeds N`, or `--seed S` of one, or `--live-seed S`, `--fleet-seed S`"
        ),
    };
    // A panic is reported with its seed.
    std::panic::set_hook(Box::new(|_| ()));
    let counts = Mutex::new(Counts::default());
    let broken = run_all("", seeds, |seed| {
        let ran = run(&Script::of(seed), Mutant::None)?;
        counts.lock().unwrap().add(&ran);
        Ok(())
    });
    println!("{}", counts.into_inner().unwrap());
    let live_counts = Mutex::new(LiveCounts::default());
    let live_broken = run_all("live ", live, |seed| {
        let ran = run_live(&LiveScript::of(seed), LiveMutant::None)?;
        live_counts.lock().unwrap().add(&ran);
        Ok(())
    });
    println!("{}", live_counts.into_inner().unwrap());
    let fleet_counts = Mutex::new(FleetCounts::default());
    let fleet_broken = run_all("fleet ", fleets, |seed| {
        let ran = run_fleet(&FleetScript::of(seed), FleetMutant::None)?;
        fleet_counts.lock().unwrap().add(&ran);
        Ok(())
    });
    println!("{}", fleet_counts.into_inner().unwrap());
    let failed = broken.is_some() || live_broken.is_some() || fleet_broken.is_some();
    if let Some((seed, violation)) = broken {
        let (script, violation) = shrink(Script::of(seed), violation, Mutant::None);
        println!("\nseed {seed}, shrunk to {script}{violation}");
    }
    if let Some((seed, violation)) = live_broken {
        let (script, violation) = shrink(LiveScript::of(seed), violation, LiveMutant::None);
        println!("\nlive seed {seed}, shrunk to {script}{violation}");
    }
    if let Some((seed, violation)) = fleet_broken {
        let (script, violation) = shrink(FleetScript::of(seed), violation, FleetMutant::None);
        println!("\nfleet seed {seed}, shrunk to {script}{violation}");
    }
    if failed {
        std::process::exit(1);
    }
}

/// Runs seeds on all cores, and prints those that break an invariant. Returns the first of them.
fn run_all(kind: &str, seeds: Vec<u64>, run: impl Fn(u64) -> Result<(), Violation> + Sync) -> Option<(u64, Violation)> {
    let (began, count) = (Instant::now(), seeds.len());
    let bar = ProgressBar::new(count as u64);
    let style = "{bar:40} {pos}/{len} {prefix}seeds, {per_sec}, {eta} left {msg}";
    bar.set_style(ProgressStyle::with_template(style).unwrap());
    bar.set_prefix(kind.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    let broken = Mutex::new(Vec::new());
    run_on_all_cores(seeds, |seed| {
        if let Err(violation) = run(seed) {
            let mut broken = broken.lock().unwrap();
            broken.push((seed, violation));
            bar.set_message(format!("{} broken", broken.len()));
        }
        bar.inc(1);
    });
    bar.finish_and_clear();
    let elapsed = began.elapsed();
    println!("{count} {kind}seeds in {elapsed:.1?}, {:.1} a second", count as f64 / elapsed.as_secs_f64());
    let mut broken = broken.into_inner().unwrap();
    broken.sort_by_key(|(seed, _)| *seed);
    for (seed, violation) in &broken {
        println!("{kind}seed {seed}: {violation}");
    }
    broken.into_iter().next()
}

/// Returns the first `count` seeds and those that have found a bug.
fn from_zero(count: u64, found: &[(u64, &str)]) -> Vec<u64> {
    (0..count).chain(found.iter().map(|(seed, _)| *seed).filter(|seed| *seed >= count)).collect()
}
