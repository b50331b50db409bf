//! `cargo run --release -p profiles -- WORKLOAD`: records presim under load, and shows where its time goes.
//!
//! Builds presim, starts it as a devnet on the genesis of the workloads, loads it with the bodies of one, or of a class of `loadtest bodies`,
//! samples it with perf, and writes a flame graph (`WORKLOAD.svg`) and a table (`WORKLOAD.md`): CPU time by part and by symbol.

mod load;
mod node;
mod parts;
mod perf;
mod table;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{Parser, ValueEnum};
use eyre::{WrapErr, bail, ensure};
use inferno::flamegraph;
use loadtest::classes::{Class, ClassBodies, RecordedWorld};
use tempfile::TempDir;

use crate::{load::Load, node::Node};

const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Records presim under load: a flame graph and a table of where the time goes.
#[derive(Debug, Parser)]
#[command(name = "profiles")]
struct Args {
    /// The workload: BODIES/WORKLOAD.ndjson has its requests, one a line. Or a class of `loadtest bodies`.
    workload: String,
    /// The seed of the requests of a class.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The block selector that replaces `latest` in the bodies.
    #[arg(long, default_value = "pending")]
    tag: String,
    /// Seconds to record.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Connections, each with one request at a time.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1000))]
    connections: u16,
    /// The folder of the bodies, `bodies.lua` and `genesis.json`.
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/bench"), hide_default_value = true)]
    bodies: PathBuf,
    /// The folder for the flame graph and the table.
    #[arg(long, value_name = "DIR", default_value = "target/profiles")]
    out: PathBuf,
    /// The Cargo profile that presim is built with.
    #[arg(long, default_value = "release")]
    profile: String,
    /// A presim that is built already, with symbols and line tables.
    #[arg(long, value_name = "FILE", conflicts_with = "profile")]
    presim: Option<PathBuf>,
}

fn main() -> ExitCode {
    match record(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn record(args: &Args) -> eyre::Result<()> {
    perf::check()?;
    let made = TempDir::new()?;
    let recorded = args.bodies.join(&args.workload).with_extension("ndjson");
    let bodies = match Class::from_str(&args.workload, false) {
        _ if recorded.is_file() => recorded,
        Ok(class) => bodies_of(class, args, made.path())?,
        Err(_) => bail!("no workload {}: expected a class, or its requests in {}", args.workload, recorded.display()),
    };
    let presim = match &args.presim {
        Some(presim) => presim.clone(),
        None => node::build(&args.profile)?,
    };
    let node = Node::start(&presim, &args.bodies.join("genesis.json"))?;
    let load =
        Load { script: args.bodies.join("bodies.lua"), bodies, tag: args.tag.clone(), connections: args.connections };

    // A warm-up, which also measures the rate without a recorder.
    let rate = load.run(node.url(), Duration::from_secs(3))?.finish()?;
    let time = Duration::from_secs(args.seconds);
    let loaded = load.run(node.url(), time + Duration::from_secs(1))?;
    let samples = perf::record(node.id(), time)?;
    let recorded_rate = loaded.finish()?;
    drop(node);

    let stacks = samples.stacks()?;
    ensure!(!stacks.is_empty(), "perf saw nothing: was presim under load?");
    fs::create_dir_all(&args.out).wrap_err_with(|| format!("cannot make {}", args.out.display()))?;
    let file = |extension: &str| args.out.join(&args.workload).with_extension(extension);
    let facts = table::Facts {
        workload: &args.workload,
        tag: &args.tag,
        connections: args.connections,
        time,
        rate,
        recorded_rate,
    };
    let text = table::render(&facts, &stacks);
    fs::write(file("md"), &text)?;
    flame(&args.workload, &stacks, fs::File::create(file("svg"))?)?;
    print!("{text}");
    println!("\n{} and {}", file("svg").display(), file("md").display());
    Ok(())
}

/// Writes requests of a class to a file in `folder`, whose path is returned.
fn bodies_of(class: Class, args: &Args, folder: &Path) -> eyre::Result<PathBuf> {
    const COUNT: u64 = 48;
    let world = RecordedWorld::read(&args.bodies)?;
    let bodies = ClassBodies { world: &world, seed: args.seed, tag: "latest" };
    let file = folder.join("bodies.ndjson");
    let lines: Vec<String> = (0..COUNT).map(|number| bodies.body(class, number) + "\n").collect();
    fs::write(&file, lines.concat())?;
    Ok(file)
}

/// The share of all samples, in percent, from which on a frame is drawn. Narrower frames cannot be read, and make the
/// file large.
const NARROWEST: f64 = 0.15;

fn flame(workload: &str, stacks: &[perf::Stack], file: fs::File) -> eyre::Result<()> {
    let mut options = flamegraph::Options::default();
    options.title = format!("presim, {workload}: CPU time");
    options.count_name = "samples".to_owned();
    options.colors = flamegraph::color::Palette::Multi(flamegraph::color::MultiPalette::Rust);
    options.deterministic = true;
    options.min_width = NARROWEST;
    let folded: Vec<String> = stacks.iter().map(perf::Stack::to_string).collect();
    flamegraph::from_lines(&mut options, folded.iter().map(String::as_str), file)?;
    Ok(())
}
