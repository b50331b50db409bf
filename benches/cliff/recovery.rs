//! Recovery: requests that are still rejected after the load has fallen.
//!
//! One worker, simulations of 4 ms, Poisson arrivals: three times the worker's capacity for 1.5 s, then less for ten.

use std::time::Duration;

use serde_json::json;

use crate::{
    devnet,
    load::{self, Bodies},
    verdict,
};

/// The number of runs, of which the median is judged.
const RUNS: u64 = 5;
const BURST: f64 = 1.5;
const AFTER: f64 = 10.;
/// The intended duration of a simulation.
const TAKES: Duration = Duration::from_millis(4);
/// The maximum share of rejected requests.
const MOST: f64 = 0.01;

/// Returns a simulation that burns this much gas.
fn body(gas: u64) -> String {
    let to = "0x00000000000000000000000000000000000c0de0";
    let block =
        json!({"stateOverrides": {to: {"code": "0x5b600056"}}, "calls": [{"to": to, "gas": format!("{gas:#x}")}]});
    let params = json!([{"blockStateCalls": [block]}, "pending"]);
    json!({"jsonrpc": "2.0", "id": 1, "method": "eth_simulateV1", "params": params}).to_string()
}

pub fn run() {
    let node = devnet(&["--workers", "1", "--traffic", "0"]);
    // A first guess measures how much gas is burnt per second.
    let guess = 2_000_000;
    let second = Duration::from_secs(1);
    let rate = load::closed(node.listen, &Bodies::new([body(guess)], "/", None), 2, second).rate();
    let bodies = Bodies::new([body((guess as f64 * rate * TAKES.as_secs_f64()) as u64)], "/", None);
    let capacity = load::closed(node.listen, &bodies, 2, 2 * second).rate();
    println!("  carries {capacity:.0} requests a second");
    for (share, from) in [(0.4, 0.3), (0.8, 1.)] {
        let mut parts: Vec<f64> = (1..=RUNS)
            .map(|seed| {
                let seed = &mut (seed * 0x9e37_79b9_7f4a_7c15);
                let mut due = load::poisson(3. * capacity, 0., BURST, seed);
                due.extend(load::poisson(share * capacity, BURST, BURST + from + AFTER, seed));
                let marks = [BURST, BURST + from].map(Duration::from_secs_f64);
                let seen = load::scheduled(node.listen, &bodies, due, &marks);
                let part = |index: usize| {
                    let all = seen[index].results.len() + seen[index].refusals.len();
                    seen[index].refusals.len() as f64 / all.max(1) as f64
                };
                println!(
                    "  then {:3.0} %: rejected in the burst {:5.1} %, in the {from} s after it {:5.1} %, then {:5.2} %",
                    share * 100.,
                    part(0) * 100.,
                    part(1) * 100.,
                    part(2) * 100.
                );
                part(2)
            })
            .collect();
        parts.sort_by(f64::total_cmp);
        verdict(
            &format!("rejected from {from} s after the load fell to {share}, median"),
            parts[parts.len() / 2],
            MOST,
        );
    }
}
