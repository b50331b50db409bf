//! Instructions per request, which must not depend on the pending changes or the state's size, by callgrind.

use std::{collections::HashMap, hint::black_box, process::Command};

use presim::testing::{
    answer,
    rpc::{dialect::PRESIM, parse_simulation},
    state::Overlay,
};
use serde_json::json;

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

/// Runs the requests as the child under callgrind: calls of the contract, or simulations of three of them. Each sender is elsewhere in the
/// maps.
pub fn child(arguments: &[String]) {
    let [kind, accounts, pending] = arguments else { panic!("expected what to count, accounts and changed slots") };
    let node = &world::node(accounts.parse().expect("accounts"), pending.parse().expect("changed slots")).node;
    let (snapshot, backend) = (node.snapshots().newest(), &node.runner().backend);
    let calls =
        (1..=REQUESTS).map(|sender| json!({ "from": world::address(sender), "to": world::contract(), "value": "0x0" }));
    let mut overlay = Overlay::of_thread();
    let mut run: Box<dyn FnMut(usize)> = if kind == "call" {
        let (params, mut out) = (calls.map(|call| json!([call, "latest"]).to_string()).collect::<Vec<_>>(), Vec::new());
        Box::new(move |at| answer(node, "eth_call", &params[at], &mut overlay, &mut out).expect("a result"))
    } else {
        let simulations = calls.map(|call| {
            let payload = json!({ "blockStateCalls": [{ "calls": [call, call, call] }], "traceTransfers": true });
            let params = json!([payload, "latest"]).to_string();
            parse_simulation(&params, &PRESIM, &backend.limits.shape).expect("a simulation").simulation
        });
        let (simulations, rules): (Vec<_>, _) = (simulations.collect(), backend.rules(&PRESIM));
        let records = kind == "recorded simulation";
        Box::new(move |at| {
            overlay.reset(snapshot.world.clone(), snapshot.hashes.clone(), Default::default());
            overlay.record_reads(records);
            black_box(backend.engine(&rules, &mut overlay).simulate(&snapshot, &simulations[at]).expect("a result"));
            if records {
                black_box(overlay.reads());
            }
            overlay.shrink();
        })
    };
    // One-time work is not part of a request's cost.
    (0..20).for_each(&mut run);
    counted_requests(&mut || (0..REQUESTS as usize).for_each(&mut run));
}

/// callgrind counts only while this function runs.
#[inline(never)]
fn counted_requests(all: &mut dyn FnMut()) {
    all();
}
