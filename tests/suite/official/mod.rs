//! The official execution tests: state tests through the engine, and chains through the importer.

mod chains;
mod network;
mod rules;
mod state;

use std::{collections::BTreeMap, fs::File, io::Read, sync::Mutex};

use rayon::prelude::*;

use crate::support::{say, shared};

/// The archive of both projects' tests, as they publish them.
const ARCHIVE: &str = "vectors/ethereum-tests.tar.zst";

/// Files that are not run, with the reason. `PRESIM_OFFICIAL_ALL` runs them too.
const LEFT_OUT: [(&str, &str); 1] =
    [("stTimeConsuming/CALLBlake2f_MaxRounds.json", "4,294,967,295 rounds of BLAKE2 take a minute and a half")];

/// The outcome of one case.
enum CaseOutcome {
    Passed,
    /// The case cannot be run here, for a reason of the table.
    Skipped(&'static str),
    Failed(String),
}

/// Counts of outcomes, by fork.
#[derive(Default)]
struct Tally {
    passed: BTreeMap<String, usize>,
    skipped: BTreeMap<&'static str, usize>,
    failures: Vec<String>,
}

/// Runs `run` on each file of the archive whose path contains `folder`, and prints the counts by fork.
///
/// `run` is given the path and the content of a file, and reports each case with its fork and its name.
fn run_all(folder: &str, run: impl Fn(&str, &[u8], &mut dyn FnMut(&str, &str, CaseOutcome)) + Sync) -> Option<Tally> {
    let archive = shared(ARCHIVE)?;
    let mut archive = tar::Archive::new(zstd::Decoder::new(File::open(archive).unwrap()).unwrap());
    let mut files = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().display().to_string();
        if path.ends_with(".json") && path.contains(folder) {
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.push((path, content));
        }
    }
    let tally = Mutex::new(Tally::default());
    files.par_iter().for_each(|(path, content)| {
        let mut outcomes = Vec::new();
        let left_out = LEFT_OUT.iter().find(|(file, _)| path.ends_with(file));
        let left_out = left_out.filter(|_| std::env::var_os("PRESIM_OFFICIAL_ALL").is_none());
        if let Some((_, reason)) = left_out {
            outcomes.push((String::new(), String::new(), CaseOutcome::Skipped(reason)));
        } else if content.starts_with(b"version https://git-lfs") {
            outcomes.push((
                String::new(),
                String::new(),
                CaseOutcome::Skipped("a pointer of Git LFS, without its content"),
            ));
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
    for (reason, count) in &tally.skipped {
        say(&format!("OFFICIAL {folder}: {count} skipped: {reason}"));
    }
    Some(tally)
}

fn assert_none_failed(tally: &Tally) {
    let shown = tally.failures.iter().take(40).cloned().collect::<Vec<_>>().join("\n");
    assert!(tally.failures.is_empty(), "{} cases failed:\n{shown}", tally.failures.len());
    assert!(!tally.passed.is_empty(), "no case ran");
}
