//! Makes random OP-stack transactions and executes them with op-revm: the oracle of the project's own rules of the OP stack.
//!
//! - `make --seed S [--first I] --count N` writes the cases `I` to `I + N` of a seed, with their outcomes.
//! - `edges` writes the cases that were written by hand.
//! - `run` reads cases from standard input, and writes them with their outcomes.

mod case;
mod corrections;
mod dice;
mod edges;
mod execute;
mod generate;
mod precompiles;
mod program;
mod transactions;

use std::io::{self, BufRead, BufWriter, Write};

use case::Case;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut out = BufWriter::new(io::stdout().lock());
    let written = match arguments.first().map(String::as_str) {
        Some("make") => {
            let [seed, first, count] = [("--seed", 1), ("--first", 0), ("--count", 1_000)]
                .map(|(name, usual)| number(&arguments, name).unwrap_or(usual));
            (first..first + count).try_for_each(|index| write(&mut out, generate::case(seed, index)))
        }
        Some("edges") => edges::all().into_iter().try_for_each(|case| write(&mut out, case)),
        Some("run") => io::stdin().lock().lines().try_for_each(|line| {
            let case = serde_json::from_str(&line?).map_err(io::Error::other)?;
            write(&mut out, case)
        }),
        other => panic!("{other:?}: expected `make`, `edges` or `run`"),
    };
    match written.and_then(|()| out.flush()) {
        // The reader has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

fn number(arguments: &[String], name: &str) -> Option<u64> {
    let text = arguments.iter().skip_while(|argument| *argument != name).nth(1)?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} {text}: expected a number")))
}

/// Writes a case with its outcomes.
fn write(out: &mut impl Write, mut case: Case) -> io::Result<()> {
    case.outcomes = execute::execute(&case);
    serde_json::to_writer(&mut *out, &case)?;
    out.write_all(b"\n")
}
