//! presim's own state machines under simulated faults, a script for each seed: `cargo bench --bench faults`.
//!
//! `-- --seeds N` runs the seeds from 0 to N, 10,000 unless told, and those that have found a bug before. `--seed S`
//! replays one. The script of a seed that breaks an invariant is shrunk and printed.

#[path = "../../tests/suite/disk.rs"]
#[allow(dead_code, reason = "the suite uses the rest of it")]
mod disk;
mod sim;

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use sim::{Counts, FOUND, Mutant, Script, run, shrink};

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let number = |text: &str| text.parse().unwrap_or_else(|error| panic!("{text}: {error}: expected a number"));
    let seeds = match asked.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => from_zero(10_000),
        ["--seeds", seeds] => from_zero(number(seeds)),
        ["--seed", seed] => vec![number(seed)],
        other => panic!("{other:?}: expected `--seeds N` or `--seed S`"),
    };
    let (began, count) = (Instant::now(), seeds.len());
    let bar = ProgressBar::new(count as u64);
    bar.set_style(ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {per_sec}, {eta} left {msg}").unwrap());
    bar.enable_steady_tick(Duration::from_millis(200));
    let (counts, broken) = (Mutex::new(Counts::default()), Mutex::new(Vec::new()));
    // A panic is reported with its seed.
    std::panic::set_hook(Box::new(|_| ()));
    seeds.into_par_iter().for_each(|seed| {
        match run(&Script::of(seed), Mutant::None) {
            Ok(ran) => counts.lock().unwrap().add(&ran),
            Err(violation) => {
                broken.lock().unwrap().push((seed, violation));
                bar.set_message(format!("{} broken", broken.lock().unwrap().len()));
            }
        }
        bar.inc(1);
    });
    bar.finish_and_clear();
    let (counts, mut broken) = (counts.into_inner().unwrap(), broken.into_inner().unwrap());
    let elapsed = began.elapsed();
    println!("{count} seeds in {elapsed:.1?}, {:.1} a second: {counts}", count as f64 / elapsed.as_secs_f64());
    broken.sort_by_key(|(seed, _)| *seed);
    for (seed, violation) in &broken {
        println!("seed {seed}: {violation}");
    }
    if let Some((seed, violation)) = broken.into_iter().next() {
        let (script, violation) = shrink(Script::of(seed), violation, Mutant::None);
        println!("\nseed {seed}, shrunk to {script}{violation}");
        std::process::exit(1);
    }
}

/// Returns the first `count` seeds and those that have found a bug.
fn from_zero(count: u64) -> Vec<u64> {
    (0..count).chain(FOUND.iter().map(|(seed, _)| *seed).filter(|seed| *seed >= count)).collect()
}
