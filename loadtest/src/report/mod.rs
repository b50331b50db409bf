//! The report of a load test, shown as a table, as JSON and as HTML.

mod chart;
mod html;
mod plots;
mod table;
pub mod text;

use std::fmt;

use serde::Serialize;

pub use html::html;
pub use table::table;

use crate::{
    check::Checked,
    fault::Faults,
    machine::Machine,
    record::{Hist, Interval, WorkloadTotals},
    usage::UsageCores,
};

/// Quantiles of the distribution plot, on which all nines take the same room.
const QUANTILES: [f64; 25] = [
    0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.965, 0.98, 0.99, 0.995, 0.9975, 0.999,
    0.9995, 0.9999, 0.99995, 0.99999, 1.0,
];

/// The report of a whole load test.
#[derive(Debug, Serialize)]
pub struct Report {
    /// When the test began, in HTTP's date format.
    pub started: String,
    /// The command line, without the values of headers.
    pub command: Vec<String>,
    pub machine: Machine,
    /// The load in a sentence.
    pub load: String,
    pub mix: String,
    pub open: bool,
    /// Longest p99 of a held step, in microseconds.
    pub knee_p99_us: f64,
    pub seed: u64,
    /// Whether Ctrl-C ended the test.
    pub ended_early: bool,
    pub targets: Vec<TargetReport>,
    pub ratios: Vec<Ratio>,
    pub assertions: Vec<Verdict>,
    /// Remarks that a reader should know before the figures.
    pub notes: Vec<String>,
}

/// The figures of one target over all of its rounds.
#[derive(Debug, Serialize)]
pub struct TargetReport {
    pub name: String,
    pub url: String,
    /// The client version that the target reports.
    pub client: String,
    pub presim: bool,
    pub summary: Summary,
    pub workloads: Vec<WorkloadReport>,
    pub rounds: Vec<Round>,
    pub timeline: Vec<Row>,
    /// The beginning of each load in the timeline.
    pub begins: Vec<Begin>,
    pub steps: Vec<Step>,
    pub knee: Option<Knee>,
    pub distribution: Vec<Quantile>,
    pub checked: Checked,
    /// Texts of faults, some of each kind.
    pub examples: Vec<Example>,
}

/// The verdict on an assertion.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    pub assertion: String,
    /// The measured value; `None` if nothing was measured, and the assertion fails.
    pub measured: Option<String>,
    pub holds: bool,
}

/// The figures of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Measured time in seconds, without warm-ups.
    pub seconds: f64,
    pub requests: u64,
    pub right: u64,
    /// Right answers per second, by the time of the answer.
    pub throughput: f64,
    /// Arrivals per second; `None` in a closed loop.
    pub offered: Option<f64>,
    pub errors: u64,
    /// Share of all arrivals that ended in an error, between 0 and 1.
    pub error_rate: f64,
    pub faults: Faults,
    /// Latency from arrival to answer.
    pub latency: Latency,
    /// Latency from sending to answer.
    pub service: Latency,
    pub refusal_p99_us: Option<u64>,
    /// Requests that waited longer than a millisecond for a free connection.
    pub late: u64,
    pub reconnects: u64,
    pub age: Option<Age>,
    pub checked: u64,
    /// The rate of the knee, in requests per second.
    pub knee: Option<f64>,
    /// Ratio of the throughput to the second target's.
    pub ratio: Option<f64>,
    /// Usage of the generator's machine.
    pub usage: UsageCores,
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latency {
    pub count: u64,
    pub mean: f64,
    pub p50: u64,
    pub p90: u64,
    pub p95: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
}

impl From<&Hist> for Latency {
    fn from(hist: &Hist) -> Self {
        Self {
            count: hist.count(),
            mean: hist.mean(),
            p50: hist.quantile(0.5),
            p90: hist.quantile(0.9),
            p95: hist.quantile(0.95),
            p99: hist.quantile(0.99),
            p999: hist.quantile(0.999),
            max: hist.max(),
        }
    }
}

/// The age of the snapshots of `pending` answers, in milliseconds, and how many of the answers were stale.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Age {
    pub answers: u64,
    pub p50: u64,
    pub p99: u64,
    pub max: u64,
    pub stale: u64,
}

impl Age {
    /// Returns `None` if no answer named its snapshot.
    pub fn of(interval: &Interval) -> Option<Self> {
        let hist = &interval.age;
        (interval.dated > 0).then(|| Self {
            answers: interval.dated,
            p50: hist.quantile(0.5),
            p99: hist.quantile(0.99),
            max: hist.max(),
            stale: interval.stale,
        })
    }
}

/// The figures of one kind of request.
#[derive(Debug, Serialize)]
pub struct WorkloadReport {
    pub name: String,
    pub weight: u32,
    pub right: u64,
    pub errors: u64,
    pub faults: Faults,
    pub latency: Latency,
}

impl WorkloadReport {
    pub fn new(name: String, weight: u32, kind: &WorkloadTotals) -> Self {
        let errors = kind.faults.total();
        Self { name, weight, right: kind.right, errors, faults: kind.faults, latency: Latency::from(&kind.latency) }
    }
}

/// The figures of one turn of a target.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Round {
    pub throughput: f64,
    pub p50: u64,
    pub p99: u64,
    pub errors: u64,
}

/// An interval of the plots.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Start of the interval, in seconds of measuring this target.
    pub at: f64,
    /// Length in seconds.
    pub width: f64,
    /// Arrivals per second; `None` in a closed loop.
    pub offered: Option<f64>,
    pub right_per_second: f64,
    pub errors_per_second: f64,
    /// Share of right answers among all requests that ended, between 0 and 1; 0 if none ended.
    pub answered_share: f64,
    pub latency: Latency,
    pub age: Option<Age>,
}

/// The beginning of a load.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Begin {
    /// Seconds of measuring this target before the load began.
    pub at: f64,
    /// Arrivals per second; `None` in a closed loop, or if the rate changes.
    pub offered: Option<f64>,
    pub connections: usize,
}

/// A load that was tried.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Step {
    /// Arrivals per second; `None` in a closed loop.
    pub offered: Option<f64>,
    pub connections: usize,
    /// Right answers per second, by the time of the answer.
    pub achieved: f64,
    pub p50: u64,
    pub p99: u64,
    pub errors: u64,
    /// Whether the target held the load: see `--knee-p99`.
    pub held: bool,
    /// Usage of the generator's machine; `None` for an interval of a ramp.
    pub usage: Option<UsageCores>,
}

/// The load beyond which more load brings no more right answers, or brings them too late.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Knee {
    /// Requests per second: those offered in an open loop, those answered right in a closed one.
    pub rate: f64,
    /// The connections that bring the rate, in a closed loop.
    pub connections: Option<usize>,
    /// Whether the load did not rise past the knee, which may then be higher.
    pub at_least: bool,
}

impl fmt::Display for Knee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.at_least { "≥ " } else { "" }, text::rate(self.rate))
    }
}

/// A point of the latency distribution.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Quantile {
    pub quantile: f64,
    pub latency_us: u64,
}

/// The text of a fault.
#[derive(Clone, Debug, Serialize)]
pub struct Example {
    pub fault: &'static str,
    pub text: String,
}

/// The first target compared with another. Each figure is the median over rounds of the first's to the other's, with
/// the least and the greatest.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    pub of: String,
    pub to: String,
    pub throughput: MedianRange,
    pub p50: MedianRange,
    pub p99: MedianRange,
}

/// A median with its extremes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MedianRange {
    pub median: f64,
    pub least: f64,
    pub greatest: f64,
}

impl MedianRange {
    /// Returns `None` if there is no finite value.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        let (least, greatest) = (*values.first()?, *values.last()?);
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Self { median: (low + high) / 2.0, least, greatest })
    }
}

impl Report {
    /// Returns whether all assertions hold.
    pub fn holds(&self) -> bool {
        self.assertions.iter().all(|verdict| verdict.holds)
    }
}

impl Summary {
    /// Returns the value of an assertion's metric: microseconds, a count, or a share; `None` if it was not measured.
    pub fn metric(&self, name: &str) -> Option<f64> {
        use crate::fault::Fault;
        let count = |count: u64| Some(count as f64);
        // Without an answer, no assertion on latency holds.
        let micros = |micros: u64| (self.latency.count > 0).then_some(micros as f64);
        let of = |fault| count(self.faults.of(fault));
        let millis = |pick: fn(&Age) -> u64| self.age.as_ref().map(|age| pick(age) as f64 * 1e3);
        match name {
            "p50" => micros(self.latency.p50),
            "p90" => micros(self.latency.p90),
            "p95" => micros(self.latency.p95),
            "p99" => micros(self.latency.p99),
            "p999" => micros(self.latency.p999),
            "max" => micros(self.latency.max),
            "mean" => micros(self.latency.mean as u64),
            "refusal_p99" => self.refusal_p99_us.map(|micros| micros as f64),
            "throughput" => Some(self.throughput),
            "requests" => count(self.requests),
            "errors" => count(self.errors),
            "error_rate" => Some(self.error_rate),
            "http_status" => of(Fault::HttpStatus),
            "not_json" => of(Fault::NotJson),
            "wrong_ids" => of(Fault::WrongId),
            "rpc_errors" => of(Fault::RpcError),
            "refused" => of(Fault::Refused),
            "failed_calls" => of(Fault::FailedCall),
            "mismatches" => of(Fault::Mismatch),
            "timeouts" => of(Fault::Timeout),
            "disconnects" => count(self.faults.of(Fault::Disconnected) + self.faults.of(Fault::Connect)),
            "dropped" => of(Fault::Dropped),
            "checked" => count(self.checked),
            "stale" => self.age.as_ref().map(|age| age.stale as f64),
            "age_p50" => millis(|age| age.p50),
            "age_p99" => millis(|age| age.p99),
            "age_max" => millis(|age| age.max),
            "knee" => self.knee,
            "ratio" => self.ratio,
            _ => None,
        }
    }
}

/// Returns the share of right answers among all requests that ended, between 0 and 1; 0 if none ended.
pub fn share(interval: &Interval) -> f64 {
    let all = interval.right + interval.faults.total();
    if all == 0 { 0.0 } else { interval.right as f64 / all as f64 }
}

/// Returns the distribution of a histogram, up to the quantile that a single answer decides.
pub fn distribution(hist: &Hist) -> Vec<Quantile> {
    let count = hist.count() as f64;
    let shown = QUANTILES.into_iter().filter(|quantile| *quantile >= 1.0 || (1.0 - quantile) * count >= 1.0);
    let points = shown.map(|quantile| Quantile { quantile, latency_us: hist.quantile(quantile) });
    if hist.count() == 0 { Vec::new() } else { points.collect() }
}

/// Share of the highest throughput that a closed loop has at its knee. More connections bring little but waiting.
const NEARLY_ALL: f64 = 0.95;

/// Returns the knee among the loads up to which every one was held: in an open loop the highest rate, in a closed loop
/// the fewest connections that bring nearly the highest throughput. Returns `None` if the first load was not held.
pub fn knee(steps: &[Step]) -> Option<Knee> {
    let rising = rising(steps);
    let held: Vec<&Step> = rising.iter().copied().take_while(|step| step.held).collect();
    let (last, all_held) = (held.last()?, held.len() == rising.len());
    if let Some(rate) = last.offered {
        return Some(Knee { rate, connections: None, at_least: all_held });
    }
    let most = held.iter().map(|step| step.achieved).fold(0.0, f64::max);
    let knee = held.iter().find(|step| step.achieved >= NEARLY_ALL * most)?;
    let at_least = all_held && knee.connections == last.connections;
    Some(Knee { rate: knee.achieved, connections: Some(knee.connections), at_least })
}

/// Returns the steps by rising load.
fn rising(steps: &[Step]) -> Vec<&Step> {
    let load = |step: &Step| step.offered.unwrap_or(step.connections as f64);
    let mut rising: Vec<&Step> = steps.iter().collect();
    rising.sort_by(|a, b| load(a).total_cmp(&load(b)));
    rising
}

/// Returns why the knee cannot be trusted: a load was not held, and a higher one was held again. Something else than the
/// load decided then, for example another process of the machine.
pub fn noise(steps: &[Step]) -> Option<String> {
    let rising = rising(steps);
    let missed = rising.iter().position(|step| !step.held)?;
    let again = rising[missed..].iter().rev().find(|step| step.held)?;
    let load = |step: &Step| match step.offered {
        Some(offered) => text::rate(offered),
        None => text::plural(step.connections, "connection"),
    };
    Some(format!(
        "the knee is noise: {} was not held, and {} was held again. Longer steps (--step-duration), several --rounds or a quieter machine decide it.",
        load(rising[missed]),
        load(again)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(held: &[(f64, bool)]) -> Vec<Step> {
        let step = |&(offered, held): &(f64, bool)| Step {
            offered: Some(offered),
            connections: 64,
            achieved: offered,
            p50: 1,
            p99: 1,
            errors: 0,
            held,
            usage: None,
        };
        held.iter().map(step).collect()
    }

    #[test]
    fn the_knee_of_a_closed_loop_is_where_more_connections_bring_no_more() {
        let closed = |connections: usize, achieved: f64, held: bool| Step {
            offered: None,
            connections,
            achieved,
            ..steps(&[(achieved, held)]).remove(0)
        };
        let found = |steps: &[Step]| knee(steps).map(|knee| (knee.connections, knee.at_least));
        let rising = [closed(1, 100.0, true), closed(2, 192.0, true), closed(4, 200.0, true), closed(8, 198.0, true)];
        assert_eq!(found(&rising), Some((Some(2), false)));
        assert_eq!(found(&rising[..2]), Some((Some(2), true)), "more connections may bring more");
        assert_eq!(found(&[closed(1, 100.0, true), closed(2, 200.0, false)]), Some((Some(1), false)));
        assert_eq!(found(&[closed(1, 100.0, false)]), None);
    }

    #[test]
    fn a_knee_is_noise_if_a_higher_load_was_held_again() {
        let note = noise(&steps(&[(1000.0, true), (2000.0, false), (3000.0, true), (4000.0, false)])).expect("noise");
        assert!(note.contains("2,000/s was not held, and 3,000/s was held again"), "{note}");
        for quiet in [&[(1000.0, true), (2000.0, true)][..], &[(1000.0, true), (2000.0, false), (3000.0, false)], &[]] {
            assert_eq!(noise(&steps(quiet)), None, "{quiet:?}");
        }
        // The order in which the steps were run does not matter.
        assert!(noise(&steps(&[(3000.0, true), (2000.0, false), (1000.0, true)])).is_some());
    }
}
