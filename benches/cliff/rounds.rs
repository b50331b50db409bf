//! Claims that compare two running nodes or paths, measured in turn, round by round.

use std::{path::Path, time::Duration};

use crate::{
    cores::Cores,
    load::{self, Bodies, LoadOutcome, quantile},
    recorded, verdict,
};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(2);
/// Percentiles need many short rounds, because a hiccup spoils one. Five snapshots are published in each.
const TAIL_ROUNDS: usize = 21;
const TAIL_ROUND: Duration = Duration::from_secs(1);
const TAIL_WARM_UP: Duration = Duration::from_millis(300);
const CONNECTIONS: usize = 8;

/// Compares the p99 while a snapshot is published every 200 ms, with traffic, with that on a static chain.
///
/// The nodes use half of the cores in turn and the load the others, or the p99 would be the load's wait for a core.
pub fn publishing(folder: &Path, names: &[&str]) {
    let all = Cores::of_thread();
    let [of_nodes, of_load] = all.halves();
    of_nodes.hold();
    let moving = recorded(folder, &["--traffic", "50"]);
    let still = recorded(folder, &["--traffic", "0", "--sub-block-ms", "60000"]);
    of_load.hold();
    for name in names {
        let Some(bodies) = Bodies::read(folder, name, "/") else { continue };
        // A third of the capacity, because a fully loaded machine is not this claim's subject.
        let rate = {
            let _resting = moving.rest();
            load::closed(still.listen, &bodies, CONNECTIONS, ROUND).rate() / 3.
        };
        let [a, b] = [(&moving, &still), (&still, &moving)].map(|(node, other)| {
            move |bodies: &Bodies| {
                let _resting = other.rest();
                let [_, seen] = load::open_warm(node.listen, bodies, rate, TAIL_WARM_UP, TAIL_ROUND);
                seen
            }
        });
        let p99 = |seen: &LoadOutcome| quantile(&seen.results, 0.99);
        let claim = format!("{name} at {rate:.0}/s: p99 while publishing, times standing");
        report(&claim, TAIL_ROUNDS, &bodies, &bodies, &a, &b, &p99, |ratio| (ratio, 1.2));
    }
    all.hold();
}

/// Compares the throughput of `/standard`, which computes roots, with that of `/`.
pub fn roots(folder: &Path, names: &[&str]) {
    let node = recorded(folder, &[]);
    for name in names {
        let bodies = |path| Bodies::read(folder, name, path);
        let (Some(standard), Some(project)) = (bodies("/standard"), bodies("/")) else { continue };
        let run = |bodies: &Bodies| load::closed(node.listen, bodies, CONNECTIONS, ROUND);
        report(
            &format!("{name}: `/`'s throughput, times `/standard`'s"),
            ROUNDS,
            &standard,
            &project,
            &run,
            &run,
            &LoadOutcome::rate,
            |ratio| (1. / ratio, 1. / 0.6),
        );
    }
}

/// Runs `a` and `b` in turn, `rounds` times, and judges the median of the ratios.
#[expect(clippy::too_many_arguments, reason = "it is what a claim of this form consists of")]
fn report(
    claim: &str,
    rounds: usize,
    for_a: &Bodies,
    for_b: &Bodies,
    a: &dyn Fn(&Bodies) -> LoadOutcome,
    b: &dyn Fn(&Bodies) -> LoadOutcome,
    measure: &dyn Fn(&LoadOutcome) -> f64,
    judge: impl Fn(f64) -> (f64, f64),
) {
    let pairs: Vec<(f64, f64)> = (0..rounds).map(|_| (measure(&a(for_a)), measure(&b(for_b)))).collect();
    let median = |of: &dyn Fn(&(f64, f64)) -> f64| quantile(&pairs.iter().map(of).collect::<Vec<_>>(), 0.5);
    let ratios: Vec<f64> = pairs.iter().map(|(a, b)| a / b).collect();
    println!("  {claim}: medians {:.6} and {:.6}, ratios {ratios:.2?}", median(&|pair| pair.0), median(&|pair| pair.1));
    let (value, most) = judge(median(&|(a, b)| a / b));
    verdict(claim, value, most);
}
