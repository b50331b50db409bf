//! A fleet on one machine: a devnet as the upstream, with a stream of its sub-blocks; an ingester, replicas and `nats-server`, all on
//! loopback. Each figure is printed with its goal.
//!
//! `cargo bench --bench fleet -- all` measures all figures at their whole extent:
//!
//! - `visible`: the time from the ingester's publishing of a sub-block of 100 transfers to its snapshot on a replica.
//! - `cost`: the time and the CPU that three replicas cost the ingester for each snapshot, and what each process uses.
//! - `applying`: the time from a message to its snapshot on a replica beside that from a sub-block to its snapshot on a node that executes it.
//! - `requests`: a replica's requests compared with a single node's on the same upstream, with the bodies of `../shared/bench`.
//! - `nats`: requests over NATS beside HTTP, on the same bodies.
//!
//! The names of figures select some of them. `small`, or no argument, runs a short version, whose figures mean little. Skips
//! where `nats-server` is absent.

mod publishing;
mod requests;

#[path = "../world/client.rs"]
mod client;
#[path = "../world/process.rs"]
mod process;

use std::{
    thread,
    time::{Duration, Instant},
};

use support::{
    BOUND,
    nats::{NatsServer, program},
    upstream::StreamedDevnet,
};
use tokio::runtime::Runtime;

use crate::process::{NodeProcess, get};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The name of the fleet.
const FLEET: &str = "bench";
/// The sub-blocks of a block.
const SUB_BLOCKS: usize = 4;

/// A figure: measures and prints it.
type Figure = fn(Extent);

const FIGURES: [(&str, Figure); 5] = [
    ("visible", publishing::visible),
    ("cost", publishing::cost),
    ("applying", publishing::applying),
    ("requests", requests::beside_a_single_node),
    ("nats", requests::over_nats),
];

/// The extent to which figures are measured.
#[derive(Clone, Copy)]
struct Extent {
    /// Runs, or rounds that take turns.
    runs: usize,
    /// Sub-blocks in each.
    sub_blocks: usize,
    /// The time of a turn of requests.
    turn: Duration,
}

const WHOLE: Extent = Extent { runs: 5, sub_blocks: 100, turn: Duration::from_secs(2) };
const SMALL: Extent = Extent { runs: 1, sub_blocks: 20, turn: Duration::from_millis(300) };

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    if asked.iter().any(|argument| argument == "--test" || argument == "--list") {
        return;
    }
    let mut names: Vec<&str> = asked.iter().map(String::as_str).filter(|argument| !argument.starts_with('-')).collect();
    let is_small = names.is_empty() || names.contains(&"small");
    names.retain(|name| *name != "small");
    let known = |name: &str| name == "all" || FIGURES.iter().any(|(known, _)| *known == name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        let figures = FIGURES.map(|(name, _)| name);
        panic!("{unknown}: expected all, small, or names of {figures:?}");
    }
    if program().is_none() {
        return println!("skipped: there is no nats-server");
    }
    for (name, figure) in FIGURES {
        if names.is_empty() || names.contains(&name) || names.contains(&"all") {
            println!("\n{name}{}", if is_small { " (small)" } else { "" });
            figure(if is_small { SMALL } else { WHOLE });
        }
    }
}

/// Starts the server of a figure.
fn serve() -> NatsServer {
    NatsServer::start().expect("its program is there")
}

/// The chain that a fleet follows, and the threads of its stream.
struct Chain {
    devnet: StreamedDevnet,
    _threads: Runtime,
}

impl Chain {
    /// Starts a devnet with 100 transfers in each sub-block.
    fn busy(sub_blocks: usize) -> Self {
        let threads = Runtime::new().expect("threads");
        let start =
            async move { StreamedDevnet::start(&["--traffic", "100", "--sub-blocks", &sub_blocks.to_string()]).await };
        let devnet = threads.block_on(async { tokio::spawn(start).await }).expect("it starts");
        Self { devnet, _threads: threads }
    }

    /// Returns the flags of a node that publishes the chain.
    fn publishing(&self, url: &str) -> Vec<String> {
        let fleet = ["--publish", url, "--fleet", FLEET].map(ToOwned::to_owned);
        fleet.into_iter().chain(self.devnet.flags()).collect()
    }
}

/// Starts a node that publishes, with further flags, in its own process.
fn ingester(publishing: &[String], flags: &[&str]) -> NodeProcess {
    let publishing: Vec<&str> = publishing.iter().map(String::as_str).collect();
    NodeProcess::start(&[&publishing[..], flags].concat())
}

/// Starts a replica in a process of its own, and returns when it is ready.
fn replica(url: &str, flags: &[&str]) -> NodeProcess {
    let node = NodeProcess::start(&[&["--follow", url, "--fleet", FLEET], flags].concat());
    let began = Instant::now();
    while !get(node.listen, "/ready").starts_with("HTTP/1.1 200") {
        assert!(began.elapsed() < BOUND, "the replica is not ready");
        thread::sleep(Duration::from_millis(2));
    }
    node
}

/// Returns the median of values, and prints all of them in order.
fn median(what: &str, mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let texts: Vec<String> = values.iter().map(|value| format!("{value:.3}")).collect();
    println!("  {what}: {}", texts.join(" "));
    values[values.len() / 2]
}
