//! Sudden changes of a request's cost that must not happen: at twice the load, while publishing, with the size of the
//! state and of the pending changes, with roots. Each claim is printed with its verdict.
//!
//! `cargo bench --bench cliff` runs the short parts. Part names (`all` for all) and workloads after `--` select others.

mod bursts;
mod cores;
mod counts;
mod fairness;
mod load;
mod overload;
mod recovery;
mod rounds;
mod seal;
mod world;

#[path = "../world/process.rs"]
mod process;

use std::path::Path;

use support::figures::verdict;

use self::process::NodeProcess;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BODIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/bench");

/// The parts, in the order in which they run.
const PARTS: [&str; 8] = ["fairness", "bursts", "recovery", "overload", "publishing", "roots", "seal", "counts"];
/// The parts that `cargo bench` runs, which end within two minutes together.
const SHORT: [&str; 2] = ["roots", "seal"];

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if let Some((counts::CHILD, rest)) = asked.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return counts::child(rest);
    }
    let folder = Path::new(BODIES);
    let has_bodies = folder.join("genesis.json").exists();
    let (parts, names): (Vec<_>, Vec<_>) =
        asked.iter().map(String::as_str).partition(|argument| PARTS.contains(argument) || *argument == "all");
    let wanted = |part: &&str| match parts.as_slice() {
        [] => SHORT.contains(part),
        parts => parts.contains(part) || parts.contains(&"all"),
    };
    for part in PARTS.into_iter().filter(wanted) {
        println!("\n{part}");
        match part {
            "seal" => seal::run(),
            "counts" => counts::run(),
            "fairness" => fairness::run(),
            "recovery" => recovery::run(),
            _ if !has_bodies => println!("  skipped: no genesis.json in {BODIES}"),
            "overload" => overload::run(folder, or(&names, &["sim_swap", "sim_sandwich", "sim_multi", "sim_big"])),
            "bursts" => bursts::run(folder),
            "publishing" => rounds::publishing(folder, or(&names, &["call_quote", "sim_sandwich"])),
            _ => rounds::roots(folder, or(&names, &["sim_swap", "sim_sandwich", "sim_multi"])),
        }
    }
}

/// Starts a devnet on its own genesis with these flags. Each request runs as a whole.
fn devnet(flags: &[&str]) -> NodeProcess {
    NodeProcess::start(&[&["--prefix-cache-mb", "0"], flags].concat())
}

/// Starts a devnet on the genesis of `folder` with further flags.
fn recorded(folder: &Path, flags: &[&str]) -> NodeProcess {
    let genesis = folder.join("genesis.json");
    devnet(&[&["--genesis", genesis.to_str().expect("the path is UTF-8"), "--feed", "devnet"], flags].concat())
}

/// Returns what was asked for, or all if nothing was.
fn or<'a>(asked: &'a [&'a str], all: &'a [&'a str]) -> &'a [&'a str] {
    if asked.is_empty() { all } else { asked }
}
