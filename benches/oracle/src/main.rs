//! Makes random OP-stack transactions and executes them with op-revm: the oracle of the project's own rules of the OP stack.
//!
//! - `make --seed S [--first I] --count N` writes the cases `I` to `I + N` of a seed, with their outcomes.
//! - `edges` writes the cases that were written by hand.
//! - `run` reads cases from standard input, and writes them with their outcomes.
//! - `make-blocks`, `block-edges` and `run-blocks` do the same for blocks with refunds.

mod block_case;
mod block_edges;
mod case;
mod corrections;
mod dice;
mod edges;
mod execute;
mod execute_block;
mod generate;
mod generate_blocks;
mod l1_attributes;
mod post_exec;
mod precompiles;
mod program;
mod receipts;
mod transactions;

use std::io::{self, BufRead, BufWriter, Write};

use serde::Serialize;

use block_case::{BlockCase, BlockOutcome};
use case::Case;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut out = BufWriter::new(io::stdout().lock());
    let written = match arguments.first().map(String::as_str) {
        Some("make") => {
            let [seed, first, count] = range(&arguments);
            (first..first + count).try_for_each(|index| write(&mut out, generate::case(seed, index)))
        }
        Some("edges") => edges::all().into_iter().try_for_each(|case| write(&mut out, case)),
        Some("run") => io::stdin().lock().lines().try_for_each(|line| {
            let case = serde_json::from_str(&line?).map_err(io::Error::other)?;
            write(&mut out, case)
        }),
        Some("make-blocks") => {
            let [seed, first, count] = range(&arguments);
            (first..first + count).try_for_each(|index| {
                let case = generate_blocks::case(seed, index);
                let outcome = execute_block::execute(&case);
                assert!(matches!(outcome, BlockOutcome::Valid(_)), "{case:?} is {outcome:?}");
                write_line(&mut out, &BlockCase { outcome: Some(outcome), ..case })
            })
        }
        Some("block-edges") => block_edges::all().iter().try_for_each(|case| write_line(&mut out, case)),
        Some("run-blocks") => io::stdin().lock().lines().try_for_each(|line| {
            let case: BlockCase = serde_json::from_str(&line?).map_err(io::Error::other)?;
            let outcome = execute_block::execute(&case);
            write_line(&mut out, &BlockCase { outcome: Some(outcome), ..case })
        }),
        other => panic!("{other:?}: expected `make`, `edges`, `run`, `make-blocks`, `block-edges` or `run-blocks`"),
    };
    match written.and_then(|()| out.flush()) {
        // The reader has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Returns the seed, the number of the first case and the number of cases.
fn range(arguments: &[String]) -> [u64; 3] {
    [("--seed", 1), ("--first", 0), ("--count", 1_000)].map(|(name, usual)| number(arguments, name).unwrap_or(usual))
}

fn number(arguments: &[String], name: &str) -> Option<u64> {
    let text = arguments.iter().skip_while(|argument| *argument != name).nth(1)?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} {text}: expected a number")))
}

/// Writes a case with its outcomes.
fn write(out: &mut impl Write, mut case: Case) -> io::Result<()> {
    case.outcomes = execute::execute(&case);
    write_line(out, &case)
}

fn write_line(out: &mut impl Write, case: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, case)?;
    out.write_all(b"\n")
}
