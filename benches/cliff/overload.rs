//! Twice the load that a node can carry: admitted requests keep their p99, the rest is rejected, memory stays flat.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    cores::Cores,
    load::{self, Bodies, quantile},
    process::NodeProcess,
    recorded, verdict,
};

/// The maximum p99 of admitted requests, as a multiple of the unloaded one.
const TARGET: f64 = 3.0;
/// The maximum time to reject a request on the server, in seconds.
const REFUSED_WITHIN: f64 = 5e-3;
/// The maximum growth of the peak memory from the first half of the overload to the second.
const GROWTH: f64 = 1.1;

/// The number of clients whose requests may all wait for two workers, however long they take (`--queue-wait-ms`).
const PATIENT: usize = 16;

const PROBE: Duration = Duration::from_secs(3);
const WARM_UP: Duration = Duration::from_secs(2);
const OVERLOAD: Duration = Duration::from_secs(5);

/// Runs the overload on each workload.
///
/// The node has half of the cores and the load generator the others, as if it ran on another machine. On shared cores,
/// the generator would take time that the node needs, and would send late while it waits for them.
pub fn run(folder: &Path, names: &[&str]) {
    let all = Cores::of_thread();
    let [of_node, of_load] = all.halves();
    println!("  the node has {} of {} cores, the load the others", of_node.count(), all.count());
    for name in names {
        let Some(bodies) = Bodies::read(folder, name, "/") else { continue };
        of_node.hold();
        let node = recorded(folder, &[]);
        of_load.hold();
        one(&node, name, &bodies);
    }
    all.hold();
    for name in names {
        patient(folder, name);
    }
}

fn one(node: &NodeProcess, name: &str, bodies: &Bodies) {
    let capacity = load::closed(node.listen, bodies, 8, PROBE).rate();
    let unloaded = load::open(node.listen, bodies, capacity / 10., PROBE);
    println!("{name}: carries {capacity:.0} requests a second");
    println!("  a tenth of it   {}", unloaded.line());
    // One uninterrupted load: the beginning of the overload is printed, the rest is judged.
    let ([first, seen], [before, after]) = std::thread::scope(|scope| {
        let peaks = scope.spawn(|| [WARM_UP + OVERLOAD / 2, OVERLOAD / 2].map(|time| peak(node, time)));
        let seen = load::open_warm(node.listen, bodies, 2. * capacity, WARM_UP, OVERLOAD);
        (seen, peaks.join().expect("the node runs"))
    });
    println!("  twice, begins   {}", first.line());
    println!("  twice, goes on  {}", seen.line());
    println!("  resident, MiB: at most {} at first, {} then", before >> 20, after >> 20);
    let ratio = quantile(&seen.results, 0.99) / quantile(&unloaded.results, 0.99);
    verdict(&format!("{name}: p99 of what is admitted, times the unloaded one"), ratio, TARGET);
    verdict(&format!("{name}: memory after and before"), after as f64 / before as f64, GROWTH);
    let refusals = node.histogram("presim_rejection_seconds");
    verdict(&format!("{name}: p99 of a refusal on the server, s"), refusals.percentile(0.99), REFUSED_WITHIN);
}

/// Returns the maximum resident memory of the node in this time.
fn peak(node: &NodeProcess, time: Duration) -> u64 {
    let began = Instant::now();
    let mut most = 0;
    while began.elapsed() < time {
        most = most.max(node.resident());
        std::thread::sleep(Duration::from_millis(20));
    }
    most
}

/// Checks that a few clients that wait for their answers are never rejected.
fn patient(folder: &Path, name: &str) {
    let Some(bodies) = Bodies::read(folder, name, "/") else { return };
    let node = recorded(folder, &[]);
    let seen = load::closed(node.listen, &bodies, PATIENT, PROBE);
    println!("{name}: {PATIENT} patient clients  {}", seen.line());
    verdict(&format!("{name}: refusals of {PATIENT} patient clients"), (seen.refusals.len() + seen.errors) as f64, 0.);
}
