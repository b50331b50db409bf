//! OP-stack transactions that were recorded with op-revm, under each fork. `benches/oracle/README.md` says how.

#[path = "../../benches/oracle/compare.rs"]
mod compare;

use std::{collections::BTreeMap, path::PathBuf};

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

use self::compare::{
    FORKS,
    case::{Case, Outcome, Status},
    compare,
};

/// Returns the recorded cases: the edges that were written by hand, and random ones.
fn recorded() -> Vec<Case> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/suite/fixtures/op-transactions.jsonl.zst");
    let text = zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap();
    serde_json::Deserializer::from_slice(&text).into_iter().map(|case| case.expect("a case")).collect()
}

#[test]
fn recorded_transactions_have_the_outcomes_of_the_oracle() {
    let cases = recorded();
    assert_eq!(cases.len(), 1_000);
    let compared: Vec<Result<usize, String>> = cases.par_iter().map(compare).collect();
    let differences: Vec<&String> = compared.iter().filter_map(|compared| compared.as_ref().err()).collect();
    assert!(differences.is_empty(), "{} differ, the first:\n{}", differences.len(), differences[0]);
    assert_eq!(compared.iter().flatten().sum::<usize>(), 10_000);
}

#[test]
fn recorded_transactions_end_in_every_way_under_every_fork() {
    let mut ends: BTreeMap<&str, [usize; 4]> = BTreeMap::new();
    let cases = recorded();
    for (fork, outcome) in cases
        .iter()
        .flat_map(|case| &case.outcomes)
        .flat_map(|outcome| outcome.forks.iter().map(|fork| (fork.as_str(), &outcome.outcome)))
    {
        let end = match outcome {
            Outcome::Rejected(_) => 0,
            Outcome::Included(included) => match included.status {
                Status::Success => 1,
                Status::Revert => 2,
                Status::Halt => 3,
            },
        };
        ends.entry(fork).or_default()[end] += 1;
    }
    assert_eq!(ends.len(), FORKS.len());
    assert!(ends.values().flatten().all(|count| *count >= 20), "{ends:?}");
}
