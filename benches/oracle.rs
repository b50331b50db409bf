//! Random OP-stack transactions, and blocks of Lagoon, by the project's own rules and by the oracle's: `cargo bench --bench oracle`.
//!
//! The program in `benches/oracle/` makes the transactions and executes them with op-revm under each fork. This bench
//! builds it, reads its cases, and compares. `-- --count N` compares N transactions (1,000,000 unless told), `--seed S` others,
//! and `--first I` begins with transaction I, as the name of a case tells it. Then it compares the edges of blocks and `--blocks N`
//! random ones (10,000 unless told). `cargo bench` alone leaves this bench out.

#[path = "oracle/compare.rs"]
mod compare;

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Child, Command, ExitCode, Stdio},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use self::compare::{block_case::BlockCase, blocks::compare_block, case::Case, compare};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/oracle/Cargo.toml");

/// The result of all comparisons so far.
#[derive(Default)]
struct Total {
    /// Transactions under one fork.
    compared: usize,
    /// Transactions that differ under some fork.
    different: usize,
    /// The first of them, with its differences.
    first: Option<String>,
}

fn main() -> ExitCode {
    if env::args().any(|argument| argument == "--test" || argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let [count, seed, first] =
        [("--count", 1_000_000), ("--seed", 1), ("--first", 0)].map(|(name, usual)| number(name).unwrap_or(usual));
    // Once, so that the programs do not wait for each other's build.
    let built = oracle("build").status().expect("cargo");
    assert!(built.success(), "the oracle was not built: {built}");

    let bar = ProgressBar::new(count);
    let style = "{bar:40} {pos}/{len} transactions, {per_sec}, {eta} left {msg}";
    bar.set_style(ProgressStyle::with_template(style).expect("a template"));
    bar.enable_steady_tick(Duration::from_millis(200));
    let (began, total) = (Instant::now(), Mutex::new(Total::default()));
    let parts = thread::available_parallelism().map_or(1, |cores| cores.get() as u64).min(count.max(1));
    thread::scope(|scope| {
        for part in 0..parts {
            let (begin, end) = (count * part / parts, count * (part + 1) / parts);
            let (bar, total) = (&bar, &total);
            scope.spawn(move || compare_part(seed, first + begin, end - begin, bar, total));
        }
    });
    bar.finish_and_clear();
    let total = total.into_inner().expect("no thread panicked");
    let elapsed = began.elapsed();
    println!(
        "{count} transactions of seed {seed}, {} executions in {elapsed:.1?}, {:.0} transactions a second: {} differ",
        total.compared,
        count as f64 / elapsed.as_secs_f64(),
        total.different,
    );
    let blocks = compare_blocks(seed, number("--blocks").unwrap_or(10_000));
    match total.first.or(blocks) {
        None => ExitCode::SUCCESS,
        Some(first) => {
            println!("\n{first}");
            ExitCode::FAILURE
        }
    }
}

/// Compares the edges of blocks, and `count` random ones. Returns the first difference.
fn compare_blocks(seed: u64, count: u64) -> Option<String> {
    let (seed, number) = (seed.to_string(), count.to_string());
    let (mut compared, mut different, mut first, began) = (0, 0, None, Instant::now());
    for arguments in [&["block-edges"][..], &["make-blocks", "--seed", &seed, "--count", &number]] {
        let mut program = oracle("run").arg("--").args(arguments).stdout(Stdio::piped()).spawn().expect("cargo");
        let output = BufReader::with_capacity(1 << 20, program.stdout.take().expect("its output is piped"));
        for line in output.lines() {
            let line = line.expect("the output of the oracle");
            let case: BlockCase = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            compared += 1;
            if let Err(differences) = compare_block(&case) {
                different += 1;
                first.get_or_insert_with(|| format!("{differences}{line}"));
            }
        }
        let ended = program.wait().expect("the oracle");
        assert!(ended.success(), "the oracle failed: {ended}");
    }
    println!("{compared} blocks, {count} of them random, in {:.1?}: {different} differ", began.elapsed());
    first
}

/// Compares the transactions of one program.
fn compare_part(seed: u64, first: u64, count: u64, bar: &ProgressBar, total: &Mutex<Total>) {
    let mut program = make(seed, first, count);
    let output = BufReader::with_capacity(1 << 20, program.stdout.take().expect("its output is piped"));
    let mut read = 0;
    for line in output.lines() {
        let line = line.expect("the output of the oracle");
        let case: Case = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let compared = compare(&case);
        let mut total = total.lock().expect("no thread panicked");
        match compared {
            Ok(compared) => total.compared += compared,
            Err(differences) => {
                total.different += 1;
                total.first.get_or_insert_with(|| format!("{differences}{line}"));
                bar.set_message(format!("{} differ", total.different));
            }
        }
        drop(total);
        read += 1;
        bar.inc(1);
    }
    let ended = program.wait().expect("the oracle");
    assert!(ended.success() && read == count, "the oracle made {read} of {count} transactions: {ended}");
}

/// Starts a program that makes transactions.
fn make(seed: u64, first: u64, count: u64) -> Child {
    let [seed, first, count] = [seed, first, count].map(|number| number.to_string());
    let mut command = oracle("run");
    command.args(["--", "make", "--seed", &seed, "--first", &first, "--count", &count]);
    command.stdout(Stdio::piped()).spawn().expect("cargo")
}

fn oracle(what: &str) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args([what, "--quiet", "--release", "--manifest-path", MANIFEST]);
    command
}

/// Returns the number that follows an argument.
fn number(name: &str) -> Option<u64> {
    let given = env::args().skip_while(|argument| argument != name).nth(1)?;
    Some(given.parse().unwrap_or_else(|_| panic!("{name} {given}: expected a number")))
}
