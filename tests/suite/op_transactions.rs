//! OP-stack transactions that were recorded with op-revm, under each fork, and blocks with refunds of gas. `benches/oracle/README.md` says how.

#[path = "../../benches/oracle/compare.rs"]
mod compare;

use std::{collections::BTreeMap, path::PathBuf};

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use serde::de::DeserializeOwned;

use self::compare::{
    FORKS,
    block_case::{BlockCase, BlockOutcome},
    blocks::compare_block,
    case::{Case, Outcome, Status},
    compare,
};

const TRANSACTIONS: &str = "op-transactions.jsonl.zst";
const BLOCKS: &str = "op-blocks.jsonl.zst";

/// Returns the recorded cases of a fixture: the edges that were written by hand, and random ones.
fn recorded<C: DeserializeOwned>(name: &str) -> Vec<C> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/suite/fixtures").join(name);
    let text = zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap();
    serde_json::Deserializer::from_slice(&text).into_iter().map(|case| case.expect("a case")).collect()
}

#[test]
fn recorded_transactions_have_the_outcomes_of_the_oracle() {
    let cases: Vec<Case> = recorded(TRANSACTIONS);
    assert_eq!(cases.len(), 1_000);
    let compared: Vec<Result<usize, String>> = cases.par_iter().map(compare).collect();
    let differences: Vec<&String> = compared.iter().filter_map(|compared| compared.as_ref().err()).collect();
    assert!(differences.is_empty(), "{} differ, the first:\n{}", differences.len(), differences[0]);
    assert_eq!(compared.iter().flatten().sum::<usize>(), 10_000);
}

#[test]
fn recorded_transactions_end_in_every_way_under_every_fork() {
    let mut ends: BTreeMap<&str, [usize; 4]> = BTreeMap::new();
    let cases: Vec<Case> = recorded(TRANSACTIONS);
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

#[test]
fn recorded_blocks_with_refunds_have_the_outcomes_of_the_oracle() {
    let cases: Vec<BlockCase> = recorded(BLOCKS);
    let invalid = cases.iter().filter(|case| matches!(case.outcome, Some(BlockOutcome::Invalid(_)))).count();
    assert_eq!((cases.len(), invalid), (337, 56));
    let differences: Vec<String> = cases.par_iter().filter_map(|case| compare_block(case).err()).collect();
    assert!(differences.is_empty(), "{} differ, the first:\n{}", differences.len(), differences[0]);
}
