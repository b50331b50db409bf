//! loadtest: how much of a real mix of calls and simulations does a JSON-RPC node carry, how fast, and are its answers right?
//!
//! A client like any other: it knows the node by its address alone. From what is asked for to what is found:
//!
//! - [`args`]: the command line. [`assertion`]: what a run is held to.
//! - [`target`], [`connection`], [`tls`], [`rpc`], [`quantity`]: where requests go, and how.
//! - [`world`], [`mix`], [`workload`], [`body`]: what there is to trade with, and the requests made of it.
//! - [`schedule`], [`clock`], [`queue`], [`generate`], [`client`], [`thread`](mod@thread): when requests are sent; the connections and threads that send them.
//! - [`answer`], [`sample`], [`pin`], [`check`], [`compare`], [`fault`]: whether an answer is right. [`dating`], [`watch`]: how fresh it is.
//! - [`record`], [`machine`], [`report`]: what is measured, where, and how it is shown.
//! - [`plan`], [`segment`], [`progress`], [`findings`]: the runs one after another, one of them, what is told meanwhile, and what they come to.

pub mod answer;
pub mod args;
pub mod assertion;
pub mod body;
pub mod check;
pub mod client;
pub mod clock;
pub mod compare;
pub mod connection;
pub mod dating;
pub mod fault;
pub mod findings;
pub mod generate;
pub mod machine;
pub mod mix;
pub mod pin;
pub mod plan;
pub mod progress;
pub mod quantity;
pub mod queue;
pub mod record;
pub mod report;
pub mod rpc;
pub mod sample;
pub mod schedule;
pub mod segment;
pub mod target;
pub mod thread;
pub mod tls;
pub mod watch;
pub mod workload;
pub mod world;

use std::{ffi::OsString, fs, path::Path, process::ExitCode};

use clap::Parser;
use eyre::{Context, Result};

use crate::{args::Args, report::Report};

/// The exit code when an assertion does not hold.
const NOT_HELD: u8 = 1;
/// The exit code for bad arguments, or a target that cannot be tested.
const REFUSED: u8 = 2;

/// Does what a command line asks for, and says on stderr what stands in the way.
pub fn command(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let words: Vec<OsString> = words.into_iter().collect();
    let args = match Args::try_parse_from(&words) {
        Ok(args) => args,
        Err(error) => {
            // clap's own texts; a closed pipe is nobody's loss.
            drop(error.print());
            return if error.use_stderr() { REFUSED.into() } else { ExitCode::SUCCESS };
        }
    };
    let report = args.check().map_err(eyre::Report::msg).and_then(|()| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().wrap_err("no runtime")?;
        writable(&args)?;
        runtime.block_on(plan::run(&args, shown(&words)))
    });
    match report.and_then(|report| write(&args, &report).map(|()| report)) {
        Ok(report) if report.holds() => ExitCode::SUCCESS,
        Ok(_) => NOT_HELD.into(),
        Err(error) => {
            eprintln!("loadtest: {error:#}");
            REFUSED.into()
        }
    }
}

/// Makes the directories of the reports, so that a run is not for nothing.
fn writable(args: &Args) -> Result<()> {
    for file in [args.html(), args.json()].into_iter().flatten() {
        if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder).wrap_err_with(|| format!("{}: cannot be made", folder.display()))?;
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

/// The command line as reports show it: what is in a header may be a secret.
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
