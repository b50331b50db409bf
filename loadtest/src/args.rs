//! The command line.

use std::{path::PathBuf, str::FromStr, time::Duration};

use alloy_primitives::Address;
use clap::{Parser, Subcommand, ValueEnum};

use crate::{
    assertion::{self, Assertion},
    bodies::BodiesArgs,
    body::Tag,
    mix::{Mix, Workload},
    target::Header,
    usage::NodeProcess,
    world::ROUTER,
};

/// The mix that is sent by default.
const DEFAULT_MIX: &str = "balance=20,quote=20,code=5,swap=30,sandwich=10,override=5,multi=2,batch=2,search=1";

/// Load tests JSON-RPC nodes that simulate.
///
/// Sends a mix of calls and simulations built from the target's own accounts and markets, checks every answer, and
/// writes a table, a JSON and an HTML report. With --rate, --ramp or --steps the loop is open: requests arrive on a
/// clock whether or not the target keeps up, and latency counts from the arrival, so that a stall shows. Otherwise the
/// loop is closed: each connection sends its next request when it has its answer, on --connections connections, or on
/// each number of --connection-steps in turn.
///
/// Exit codes: 0 if all is well, 1 if an assertion failed, 2 for bad arguments or an unusable target.
#[derive(Clone, Debug, Parser)]
#[command(name = "loadtest", version, max_term_width = 110, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<OtherCommand>,
    /// Test these targets: http://HOST:PORT[/PATH], or https, ws, wss, or the path of a Unix socket. Several take turns, compared with the first
    #[arg(default_value = "http://127.0.0.1:8545")]
    pub urls: Vec<String>,

    /// Use WebSocket for http:// and https:// targets too
    #[arg(long, help_heading = "Target")]
    pub ws: bool,
    /// Send this header too, as in "Authorization: Bearer …". Reports show only its name. Repeat for more
    #[arg(long, value_name = "NAME: VALUE", help_heading = "Target")]
    pub header: Vec<Header>,
    /// Show the processor time and the memory of this process as the node's. Without it, the process that listens on a
    /// target's port on this machine is shown. Repeat for several targets, in their order
    #[arg(long, value_name = "PID", help_heading = "Target")]
    pub node_pid: Vec<u32>,
    /// Build the requests from the markets of this Uniswap V2 router
    #[arg(long, value_name = "ADDRESS", default_value_t = ROUTER, help_heading = "Target")]
    pub router: Address,
    /// Send requests from the first 32 of these accounts instead of those of `eth_accounts`. Separate by commas
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', help_heading = "Target")]
    pub senders: Vec<Address>,

    /// Open loop: send this many requests per second
    #[arg(long, value_name = "N", value_parser = rate, conflicts_with_all = ["ramp", "steps", "connection_steps"], help_heading = "Load")]
    pub rate: Option<f64>,
    /// Open loop: change the rate evenly over --duration, as in 100..5000
    #[arg(long, value_name = "A..B", conflicts_with_all = ["steps", "connection_steps"], help_heading = "Load")]
    pub ramp: Option<Ramp>,
    /// Open loop: run these rates for --step-duration each: 500,1000,2000, or 1000..10000x10 for ten from first to last
    #[arg(long, value_name = "RATES", conflicts_with = "connection_steps", help_heading = "Load")]
    pub steps: Option<Steps>,
    /// Closed loop: use these numbers of connections for --step-duration each: 1,2,4,8, or 1..64 to double up to 64
    #[arg(long, value_name = "COUNTS", conflicts_with = "connections", help_heading = "Load")]
    pub connection_steps: Option<ConnectionSteps>,
    /// Run each step for this long
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration, help_heading = "Load")]
    pub step_duration: Duration,
    /// Count a step (or interval of a ramp) as held only if its p99 is at most this, and at least 99 % of its requests
    /// were answered right. The knee of an open loop is the highest rate up to which all were held; that of a closed
    /// loop is at the fewest connections that bring 95 % of the highest throughput among those
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = duration, help_heading = "Load")]
    pub knee_p99: Duration,
    /// Spread the arrivals of an open loop in this way
    #[arg(long, value_enum, default_value_t = ArrivalSpacing::Even, help_heading = "Load")]
    pub arrivals: ArrivalSpacing,
    /// Open this many connections, with one request in flight on each: by default 8, or 64 in an open loop
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536), help_heading = "Load")]
    pub connections: Option<u32>,
    /// Open loop: let this many requests wait for a connection or an answer. More are not sent, and count as dropped
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000), help_heading = "Load")]
    pub max_outstanding: u32,
    /// Run on each target for this long, if there are no steps
    #[arg(
        long,
        value_name = "TIME",
        default_value = "10s",
        value_parser = duration,
        conflicts_with_all = ["steps", "connection_steps"],
        help_heading = "Load"
    )]
    pub duration: Duration,
    /// Apply the load for this long before anything counts, at each run and step
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration_or_none, help_heading = "Load")]
    pub warmup: Duration,
    /// Give each target this many turns: by default 3, or 1 if there is one target
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000), help_heading = "Load")]
    pub rounds: Option<u32>,
    /// Wait this long for an answer, then close the connection
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration, help_heading = "Load")]
    pub timeout: Duration,
    /// Generate load on this many threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256), help_heading = "Load")]
    pub threads: u32,

    /// Send these kinds of requests with these weights, as in swap=5,quote=3. Kinds: balance, quote, code, swap,
    /// sandwich, multi, big, override, search, batch, wallet, recorded (see the README) [default: recorded with
    /// --bodies, else balance=20,quote=20,code=5,swap=30,sandwich=10,override=5,multi=2,batch=2,search=1]
    #[arg(long, value_name = "KIND=N,…", help_heading = "Requests")]
    pub mix: Option<Mix>,
    /// Send the recorded JSON-RPC bodies of this file, one per line, with their ids as they are
    #[arg(long, value_name = "FILE", help_heading = "Requests")]
    pub bodies: Option<PathBuf>,
    /// Ask for this state: by default pending, and in recorded bodies the state that they name
    #[arg(long, value_enum, help_heading = "Requests")]
    pub tag: Option<Tag>,
    /// Choose the requests by this seed: the same seed makes the same requests in the same order
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Requests")]
    pub seed: u64,
    /// Make this many bodies of each kind
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Requests")]
    pub bodies_per_kind: u32,
    /// Limit the bytes of all bodies together
    #[arg(long, value_name = "BYTES", default_value_t = 268_435_456, help_heading = "Requests")]
    pub max_body_bytes: u64,

    /// Compare one answer in this many with a reference's, on the same state; 0 compares none
    #[arg(long, value_name = "N", default_value_t = 500, help_heading = "Checks")]
    pub check_sample: u64,
    /// Take reference answers from this node, on the same chain or on one that has the same state at the same block
    /// number. For pending answers it must know the target's snapshots, as a node on the same feed does. By default a
    /// target that is presim is its own reference, asked again for the same state; other targets have none
    #[arg(long, value_name = "URL", help_heading = "Checks")]
    pub reference: Option<String>,
    /// Do not ask presim for the snapshot of pending answers to batches and over a WebSocket (one `presim_snapshot` each,
    /// in a batch as one more entry). Such answers are then not dated, nor compared with a reference. Answers to single
    /// requests over HTTP name their snapshot anyway
    #[arg(long, help_heading = "Checks")]
    pub no_dating: bool,
    /// Do not subscribe to newFlashblocks: staleness is then known from the answers alone
    #[arg(long, help_heading = "Checks")]
    pub no_watch: bool,
    #[arg(
        long = "assert",
        value_name = "ASSERTIONS",
        value_delimiter = ',',
        help = "Check these conditions, as in p99<5ms,errors=0; the exit code is 1 if one fails. Repeat for more; --help lists all",
        long_help = assertion::help(),
        help_heading = "Checks"
    )]
    pub assertions: Vec<Assertion>,

    /// Write report.html and report.json into this directory
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub out: Option<PathBuf>,
    /// Write the HTML report to this file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,
    /// Write the JSON report to this file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub json: Option<PathBuf>,
}

/// The spread of arrivals in an open loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ArrivalSpacing {
    /// At equal distances
    Even,
    /// As a Poisson process: many independent users
    Poisson,
}

/// A rate that changes linearly, in requests per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ramp {
    pub from: f64,
    pub to: f64,
}

/// Rates to run one after another, in requests per second.
#[derive(Clone, Debug, PartialEq)]
pub struct Steps(pub Vec<f64>);

/// Numbers of connections to run one after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionSteps(pub Vec<usize>);

/// A command beside the load test.
#[derive(Clone, Debug, Subcommand)]
pub enum OtherCommand {
    /// Write request bodies made at random, which `--bodies` sends
    Bodies(BodiesArgs),
}

impl Args {
    /// Rejects arguments that cannot go together.
    ///
    /// # Errors
    ///
    /// Returns a text that names the arguments and the conflict.
    pub fn check(&self) -> Result<(), String> {
        if self.connections() < self.threads as usize {
            return Err(format!("--connections {} is less than --threads {}", self.connections(), self.threads));
        }
        if self.urls.len() > 26 {
            return Err(format!("{} targets, but at most 26 can be compared", self.urls.len()));
        }
        if let Some(least) = self.connection_steps.as_ref().and_then(|steps| steps.0.iter().min())
            && *least < self.threads as usize
        {
            return Err(format!("--connection-steps {least} is less than --threads {}", self.threads));
        }
        let about = |metric: &str| self.assertions.iter().find(|assertion| assertion.metric() == metric);
        if let (Some(assertion), false) = (about("knee"), self.has_knee()) {
            return Err(format!("--assert {assertion}: a knee needs --steps, --connection-steps or --ramp"));
        }
        if let (Some(assertion), true) = (about("ratio"), self.urls.len() < 2) {
            return Err(format!(
                "--assert {assertion}: there is one target, but a ratio compares the first with the second"
            ));
        }
        if self.reference.is_some() && self.check_sample == 0 {
            return Err("--reference is given, but --check-sample 0 compares no answer with it".to_owned());
        }
        if self.node_pid.len() > self.urls.len() {
            let (pids, targets) = (self.node_pid.len(), self.urls.len());
            return Err(format!(
                "--node-pid: {pids} processes for {targets} targets: give one for each, in their order"
            ));
        }
        if let Some(pid) = self.node_pid.iter().find(|pid| NodeProcess::by_id(**pid).is_none()) {
            return Err(format!(
                "--node-pid {pid}: there is no such process, or it cannot be observed (/proc/{pid}/stat)"
            ));
        }
        let recorded = self.mix().0.iter().any(|(workload, _)| *workload == Workload::Recorded);
        match (recorded, &self.bodies) {
            (true, None) => Err("--mix has recorded bodies: give their file with --bodies".to_owned()),
            (false, Some(_)) => Err("--bodies is given, but --mix does not have recorded".to_owned()),
            _ => Ok(()),
        }
    }

    /// Returns the mix, or its default.
    pub fn mix(&self) -> Mix {
        let default = if self.bodies.is_some() { "recorded=1" } else { DEFAULT_MIX };
        self.mix.clone().unwrap_or_else(|| default.parse().unwrap_or(Mix(Vec::new())))
    }

    pub fn is_open(&self) -> bool {
        self.rate.is_some() || self.ramp.is_some() || self.steps.is_some()
    }

    /// Returns whether the load changes, so that a knee can be found.
    pub fn has_knee(&self) -> bool {
        self.ramp.is_some() || self.steps.is_some() || self.connection_steps.is_some()
    }

    pub fn connections(&self) -> usize {
        self.connections.unwrap_or(if self.is_open() { 64 } else { 8 }) as usize
    }

    pub fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.urls.len() > 1 { 3 } else { 1 })
    }

    pub fn html(&self) -> Option<PathBuf> {
        self.html.clone().or_else(|| Some(self.out.as_ref()?.join("report.html")))
    }

    pub fn json(&self) -> Option<PathBuf> {
        self.json.clone().or_else(|| Some(self.out.as_ref()?.join("report.json")))
    }
}

impl FromStr for Ramp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (from, to) = text.split_once("..").ok_or("expected A..B, as in 100..5000")?;
        Ok(Self { from: rate(from)?, to: rate(to)? })
    }
}

impl FromStr for Steps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected rates as in 500,1000,2000, or 1000..10000x10";
        let Some((range, count)) = text.split_once('x') else {
            return text
                .split(',')
                .map(rate)
                .collect::<Result<_, _>>()
                .map(Self)
                .map_err(|error| format!("{error}; {expected}"));
        };
        let Ramp { from, to } = range.parse().map_err(|_| expected)?;
        let count: u32 = count.parse().map_err(|_| expected)?;
        if !(2..=1_000).contains(&count) {
            return Err("expected 2 to 1000 steps".to_owned());
        }
        let by = (to - from) / f64::from(count - 1);
        Ok(Self((0..count).map(|step| from + by * f64::from(step)).collect()))
    }
}

impl FromStr for ConnectionSteps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let connections = |text: &str| {
            let count = text.trim().parse().ok().filter(|count| (1..=65_536).contains(count));
            count.ok_or_else(|| {
                format!("{text:?} is not a number from 1 to 65536; expected 1,2,4,8, or 1..64 for doubling")
            })
        };
        let Some((from, to)) = text.split_once("..") else {
            return text.split(',').map(connections).collect::<Result<_, _>>().map(Self);
        };
        let (from, to) = (connections(from)?, connections(to)?);
        if from >= to {
            return Err(format!("{from}..{to} does not rise: expected a range as in 1..64"));
        }
        let doubled = std::iter::successors(Some(from), |count| Some(count * 2));
        Ok(Self(doubled.take_while(|count| *count < to).chain([to]).collect()))
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.trim().parse::<f64>().ok().filter(|rate| (1.0..=1e7).contains(rate));
    rate.ok_or_else(|| format!("{text:?} is not a rate: expected requests per second, from 1 to 10000000"))
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = duration_or_none(text)?;
    if duration < Duration::from_millis(1) { Err("expected at least 1ms".to_owned()) } else { Ok(duration) }
}

fn duration_or_none(text: &str) -> Result<Duration, String> {
    let expected = || format!("{text:?} is not a time: expected a number with us, ms, s or m, up to a day, as in 10s");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..digits].parse().map_err(|_| expected())?;
    let seconds = match text[digits..].trim() {
        "us" => number / 1e6,
        "ms" => number / 1e3,
        "s" => number,
        "m" | "min" => number * 60.0,
        _ => return Err(expected()),
    };
    if seconds > 86_400.0 { Err(expected()) } else { Ok(Duration::from_secs_f64(seconds)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_mix_is_one() {
        let args = Args::try_parse_from(["loadtest"]).expect("no argument is needed");
        assert_eq!(args.mix().to_string(), DEFAULT_MIX);
        assert_eq!(args.check(), Ok(()));
    }

    #[test]
    fn steps_are_a_list_or_a_range() {
        assert_eq!("500,1000".parse(), Ok(Steps(vec![500.0, 1000.0])));
        assert_eq!("1000..3000x3".parse(), Ok(Steps(vec![1000.0, 2000.0, 3000.0])));
        for wrong in ["", "500,x", "1..2", "1000..2000x1", "0"] {
            assert!(wrong.parse::<Steps>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn connection_steps_are_a_list_or_double() {
        assert_eq!("1,3,2".parse(), Ok(ConnectionSteps(vec![1, 3, 2])));
        assert_eq!("2..12".parse(), Ok(ConnectionSteps(vec![2, 4, 8, 12])));
        for wrong in ["", "0", "4..4", "8..1", "1..x", "1,,2"] {
            assert!(wrong.parse::<ConnectionSteps>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_time_has_a_unit() {
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["10", "s", "0s", "-1s", "2d", "100000s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
