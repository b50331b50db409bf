//! The official execution tests: state tests through the engine, and chains through the importer.

mod blocks;
mod built;
#[allow(dead_code, reason = "the suite uses the rest of it")]
mod cases;
mod chains;
mod network;
mod precompiled;
mod precompiles;
mod shadow;
mod state;

use std::{collections::BTreeMap, sync::Mutex, time::Duration};

use rayon::prelude::*;
use support::{say, say_missing, shared};

use self::cases::{AMSTERDAM, ARCHIVE, TestConfig, files};
use crate::chain::ChainSpec;

/// The reason why a case is not run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Reason {
    /// `PRESIM_OFFICIAL_ALL` runs these files too.
    TakesMinutes,
    NoContent,
    MergeAtDifficulty,
    AnotherBranch,
    NothingCorrupted,
}

/// The table of reasons.
const REASONS: [(Reason, &str); 5] = [
    (Reason::TakesMinutes, "CALLBlake2f_MaxRounds: 4,294,967,295 rounds of BLAKE2 take a minute and a half"),
    (Reason::NoContent, "the archive has a pointer of Git LFS instead of the file"),
    (Reason::MergeAtDifficulty, "the merge comes at a total difficulty: a genesis of presim names its block"),
    (Reason::AnotherBranch, "a block of another branch: an import takes one chain"),
    (Reason::NothingCorrupted, "the entry of the access list that the test corrupts is not there at the final prices"),
];

const TAKE_MINUTES: [&str; 1] = ["stTimeConsuming/CALLBlake2f_MaxRounds.json"];

/// The outcome of one case.
enum CaseOutcome {
    Passed,
    Skipped(Reason),
    Failed(String),
}

/// Counts of outcomes, by fork.
#[derive(Default)]
struct Tally {
    passed: BTreeMap<String, usize>,
    skipped: BTreeMap<Reason, usize>,
    failures: Vec<String>,
}

/// Runs `run` on each of the [`files`] of a folder, and prints the counts by fork.
///
/// `run` is given the path and the content of a file, and reports each case with its fork and its name.
fn run_all(
    archive: &str,
    folder: &str,
    run: impl Fn(&str, &[u8], &mut dyn FnMut(&str, &str, CaseOutcome)) + Sync,
) -> Option<Tally> {
    let files = files(archive, folder)?;
    let tally = Mutex::new(Tally::default());
    files.par_iter().for_each(|(path, content)| {
        let mut outcomes = Vec::new();
        let slow =
            TAKE_MINUTES.iter().any(|file| path.ends_with(file)) && std::env::var_os("PRESIM_OFFICIAL_ALL").is_none();
        let skipped = if slow {
            Some(Reason::TakesMinutes)
        } else {
            content.starts_with(b"version https://git-lfs").then_some(Reason::NoContent)
        };
        if let Some(reason) = skipped {
            outcomes.push((String::new(), String::new(), CaseOutcome::Skipped(reason)));
        } else {
            run(path, content, &mut |fork, name, outcome| {
                outcomes.push((fork.to_owned(), name.to_owned(), outcome));
            });
        }
        let mut tally = tally.lock().unwrap();
        for (fork, name, outcome) in outcomes {
            match outcome {
                CaseOutcome::Passed => *tally.passed.entry(fork).or_default() += 1,
                CaseOutcome::Skipped(reason) => *tally.skipped.entry(reason).or_default() += 1,
                CaseOutcome::Failed(problem) => tally.failures.push(format!("{path} {name} {fork}: {problem}")),
            }
        }
    });
    let tally = tally.into_inner().unwrap();
    for (fork, count) in &tally.passed {
        say(&format!("OFFICIAL {folder}: {fork}: {count} passed"));
    }
    for (reason, text) in REASONS {
        if let Some(count) = tally.skipped.get(&reason) {
            say(&format!("OFFICIAL {folder}: {count} skipped: {text}"));
        }
    }
    Some(tally)
}

fn assert_none_failed(tally: &Tally) {
    let shown = tally.failures.iter().take(40).cloned().collect::<Vec<_>>().join("\n");
    assert!(tally.failures.is_empty(), "{} cases failed:\n{shown}", tally.failures.len());
    assert!(!tally.passed.is_empty(), "no case ran");
}

/// Returns the rules of a network; `None` if it has no name of the table.
fn spec(network: &str, config: Option<&TestConfig>) -> Option<ChainSpec> {
    let config = serde_json::from_value(network::genesis_config(network, config)?).ok()?;
    Some(ChainSpec::new(config, Duration::from_secs(12)).unwrap())
}
