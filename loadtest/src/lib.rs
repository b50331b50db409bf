//! Measures how much of a real mix of calls and simulations a JSON-RPC node carries, how fast, and how correctly.
//!
//! The load test is a client like any other: it knows a node only by its address. Its modules, in the order of a test:
//!
//! - [`args`]: the command line. [`assertion`]: the conditions on a run.
//! - [`target`], [`connection`], [`tls`], [`rpc`], [`quantity`]: the targets, and the connections to them.
//! - [`world`], [`mix`], [`workload`], [`body`]: the accounts and markets of a target, and the requests made from them.
//! - [`bodies`], [`classes`]: bodies of many classes, made at random on a recorded world.
//! - [`schedule`], [`clock`], [`queue`], [`generate`], [`client`], [`thread`](mod@thread): the timing of requests, and
//!   the connections and threads that send them.
//! - [`answer`], [`sample`], [`pin`], [`check`], [`compare`], [`fault`]: whether an answer is right. [`dating`],
//!   [`watch`]: how fresh it is.
//! - [`record`], [`machine`], [`usage`], [`report`]: the figures, the machine that they were measured on, what was used of
//!   it, and the reports.
//! - [`plan`], [`segment`], [`progress`], [`findings`]: the sequence of runs, a single run, the progress display, and
//!   the evaluation.

mod answer;
mod args;
mod assertion;
mod bodies;
mod body;
mod check;
pub mod classes;
mod client;
mod clock;
mod compare;
mod connection;
mod dating;
mod fault;
mod findings;
mod generate;
mod machine;
mod mix;
mod pin;
mod plan;
mod progress;
mod quantity;
mod queue;
mod record;
mod report;
mod rpc;
mod sample;
mod schedule;
mod segment;
mod target;
mod thread;
mod tls;
mod usage;
mod watch;
mod workload;
mod world;

use std::{ffi::OsString, fs, path::Path, process::ExitCode};

use clap::Parser;
use eyre::{Context, Result};

use crate::{
    args::{Args, OtherCommand},
    report::Report,
};

/// The exit code if an assertion fails.
const NOT_HELD: u8 = 1;
/// The exit code for bad arguments, or a target that cannot be tested.
const REFUSED: u8 = 2;

/// Runs a command line, and reports on stderr why it could not.
pub fn command(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let words: Vec<OsString> = words.into_iter().collect();
    let args = match Args::try_parse_from(&words) {
        Ok(args) => args,
        Err(error) => {
            // An error of the output, such as a closed pipe, does not matter.
            drop(error.print());
            return if error.use_stderr() { REFUSED.into() } else { ExitCode::SUCCESS };
        }
    };
    if let Some(OtherCommand::Bodies(bodies)) = &args.command {
        return bodies.run().map_or_else(refused, |()| ExitCode::SUCCESS);
    }
    let report = args.check().map_err(eyre::Report::msg).and_then(|()| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().wrap_err("no runtime")?;
        writable(&args)?;
        runtime.block_on(plan::run(&args, shown(&words)))
    });
    match report.and_then(|report| write(&args, &report).map(|()| report)) {
        Ok(report) if report.holds() => ExitCode::SUCCESS,
        Ok(_) => NOT_HELD.into(),
        Err(error) => refused(error),
    }
}

fn refused(error: eyre::Report) -> ExitCode {
    eprintln!("loadtest: {error:#}");
    REFUSED.into()
}

/// Creates the reports' files before the run, so that no run is wasted.
fn writable(args: &Args) -> Result<()> {
    for file in [args.html(), args.json()].into_iter().flatten() {
        if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder).wrap_err_with(|| format!("{}: cannot be created", folder.display()))?;
        }
        fs::write(&file, "").wrap_err_with(|| format!("{}: cannot be written", file.display()))?;
    }
    Ok(())
}

fn write(args: &Args, report: &Report) -> Result<()> {
    print!("{}", report::table(report));
    let file = |path: &Path, text: String| {
        fs::write(path, text).wrap_err_with(|| format!("{}: cannot be written", path.display()))?;
        println!("wrote {}", path.display());
        Ok::<_, eyre::Report>(())
    };
    if let Some(path) = args.json() {
        file(&path, serde_json::to_string_pretty(report)?)?;
    }
    if let Some(path) = args.html() {
        file(&path, report::html(report))?;
    }
    Ok(())
}

/// Returns the command line as reports show it, without the values of headers, which may be secrets.
fn shown(words: &[OsString]) -> Vec<String> {
    let mut hide = false;
    words
        .iter()
        .map(|word| {
            let word = word.to_string_lossy();
            let hidden = |header: &str| format!("{}: …", header.split(':').next().unwrap_or_default());
            if std::mem::take(&mut hide) {
                return hidden(&word);
            }
            hide = word == "--header";
            match word.strip_prefix("--header=") {
                Some(header) => format!("--header={}", hidden(header)),
                None => word.into_owned(),
            }
        })
        .collect()
}
