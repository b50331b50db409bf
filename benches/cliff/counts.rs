//! Instructions per request, which must not depend on the pending changes or the state's size, by callgrind.

use std::{collections::HashMap, hint::black_box, process::Command};

use alloy_primitives::{Address, TxKind};
use presim::testing::{
    chain::ChainSpec,
    engine::{BaseFeeRule, Call, CallRequest, Engine, SimBlock, Simulation, SimulationRules},
    ledger::Snapshot,
    meter::Meter,
    state::{CodeCache, Overlay},
};

use crate::{verdict, world};

/// The argument that makes this program its own child, followed by: what to count, accounts, changed slots.
pub const CHILD: &str = "count";

const REQUESTS: u64 = 200;
/// The files of the code that records reads.
const RECORDER: [&str; 2] = ["engine/evm/record.rs", "state/overlay/record.rs"];
const SMALL: u64 = 1_001;
const LARGE: u64 = 1_000_000;

pub fn run() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("  skipped: no valgrind here");
        return;
    }
    let (silent, recorded) = (profile("simulation", SMALL, 0), profile("recorded simulation", SMALL, 0));
    let own = recorder(&silent.lines);
    println!("  simulation: {} instructions, {own} of them the recorder's; {} recorded", silent.each, recorded.each);
    verdict("simulation: the recorder's part where it is off", own as f64 / silent.each as f64, 0.005);
    verdict("simulation: its reads recorded, times not", recorded.each as f64 / silent.each as f64, 1.1);
    for kind in ["call", "simulation"] {
        let small = count(kind, SMALL, 0);
        let pending = count(kind, SMALL, world::SLOTS);
        let large = count(kind, LARGE, 0);
        println!(
            "  {kind}: {small} instructions, {pending} with {} slots pending, {large} with {LARGE} accounts",
            world::SLOTS
        );
        verdict(&format!("{kind}: {} changed slots pending, times none", world::SLOTS), spread(pending, small), 1.05);
        verdict(&format!("{kind}: {LARGE} accounts, times {SMALL}"), spread(large, small), 1.15);
    }
}

fn spread(a: u64, b: u64) -> f64 {
    a.max(b) as f64 / a.min(b) as f64
}

/// The instructions of requests.
struct Profile {
    /// The instructions of one request.
    each: u64,
    /// callgrind's own list: the cost of each line of code.
    lines: String,
}

/// Returns the instructions of one request.
fn count(kind: &str, accounts: u64, pending: u64) -> u64 {
    profile(kind, accounts, pending).each
}

/// Counts the instructions of requests.
fn profile(kind: &str, accounts: u64, pending: u64) -> Profile {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("counts");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*counted_requests*", "--collect-atstart=no"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe().expect("this program"))
        .args([CHILD, kind, &accounts.to_string(), &pending.to_string()])
        .output()
        .expect("valgrind runs");
    let lines = std::fs::read_to_string(&out).unwrap_or_default();
    let total =
        lines.lines().find_map(|line| line.strip_prefix("totals: ")).and_then(|total| total.trim().parse::<u64>().ok());
    match total {
        Some(total) => Profile { each: total / REQUESTS, lines },
        None => panic!("callgrind counted nothing: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// Returns the instructions of one request that are of the recorder's code, inlined or not.
///
/// callgrind's list names the file before the lines that are in it, by a number and, where the number is new, by its
/// path: <https://valgrind.org/docs/manual/cl-format.html>.
fn recorder(lines: &str) -> u64 {
    let (mut files, mut sum) = (HashMap::new(), 0);
    let (mut of_function, mut is_own, mut is_call) = (false, false, false);
    for line in lines.lines() {
        if let Some((key @ ("fl" | "fi" | "fe"), name)) = line.split_once('=') {
            let (id, path) = name.split_once(' ').unwrap_or((name, ""));
            is_own = *files.entry(id.to_owned()).or_insert_with(|| RECORDER.iter().any(|file| path.ends_with(file)));
            if key == "fl" {
                of_function = is_own;
            }
        } else if line.starts_with("fn=") {
            is_own = of_function;
        } else if line.starts_with("calls=") {
            // The next line has the cost of the callee, which has lines of its own.
            is_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let cost = line.split(' ').nth(1).and_then(|cost| cost.parse::<u64>().ok()).unwrap_or_default();
            if is_own && !std::mem::take(&mut is_call) {
                sum += cost;
            }
            is_call = false;
        }
    }
    sum / REQUESTS
}

/// Runs the requests as the child under callgrind.
pub fn child(arguments: &[String]) {
    let [kind, accounts, pending] = arguments else { panic!("expected what to count, accounts and changed slots") };
    let world = world::build(accounts.parse().expect("accounts"));
    let snapshot = world::snapshot(&world, pending.parse().expect("changed slots"));
    let requests: Vec<Request> = (1..=REQUESTS).map(|sender| Request::new(kind, world::address(sender))).collect();
    let records = kind == "recorded simulation";
    let mut worker =
        Worker { records, spec: world::spec(), codes: CodeCache::new(1 << 20), overlay: Overlay::of_thread() };
    // One-time work is not part of a request's cost.
    requests.iter().take(20).for_each(|request| worker.run(request, &snapshot));
    counted_requests(&mut || requests.iter().for_each(|request| worker.run(request, &snapshot)));
}

/// callgrind counts only while this function runs.
#[inline(never)]
fn counted_requests(all: &mut dyn FnMut()) {
    all();
}

enum Request {
    Call(Box<CallRequest>),
    Simulation(Simulation),
}

impl Request {
    /// Returns a call of the contract, or a simulation of three, by `from`. Each sender is elsewhere in the maps.
    fn new(kind: &str, from: Address) -> Self {
        let call = Call { from, to: TxKind::Call(world::contract()), ..Call::default() };
        match kind {
            "call" => Self::Call(Box::new(CallRequest { call, ..CallRequest::default() })),
            _ => {
                let block = SimBlock { calls: vec![call.into(); 3], ..SimBlock::default() };
                Self::Simulation(Simulation { blocks: vec![block], trace_transfers: true, ..Simulation::default() })
            }
        }
    }
}

/// The state that a worker keeps between requests.
struct Worker {
    /// Whether what a run reads is recorded.
    records: bool,
    spec: ChainSpec,
    codes: CodeCache,
    overlay: Overlay,
}

impl Worker {
    /// Runs a request on `snapshot` in a reused overlay.
    fn run(&mut self, request: &Request, snapshot: &Snapshot) {
        const RULES: SimulationRules = SimulationRules {
            base_fee: BaseFeeRule::Block,
            keeps_prev_randao: true,
            block_time: Some(std::time::Duration::from_secs(1)),
            state_roots: false,
            gas_cap: 50_000_000,
            max_blocks: 256,
            max_trace: 1 << 20,
            estimate_tolerance: 0.0,
        };
        let Self { records, spec, codes, overlay } = self;
        overlay.reset(snapshot.world.clone(), snapshot.hashes.clone(), Meter::default());
        overlay.record_reads(*records);
        let mut engine = Engine { spec, rules: &RULES, codes, overlay: &mut *overlay };
        match request {
            Request::Call(request) => {
                black_box(engine.call(snapshot.header(), request).expect("a result"));
            }
            Request::Simulation(request) => {
                black_box(engine.simulate(snapshot, request).expect("a result"));
            }
        }
        if *records {
            black_box(overlay.reads());
        }
        overlay.shrink();
    }
}
