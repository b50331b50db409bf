//! What a load test found: the same for the table, the JSON and the HTML.

mod chart;
mod html;
mod plots;
mod table;
pub mod text;

use serde::Serialize;

pub use html::html;
pub use table::table;

use crate::{
    check::Checked,
    fault::Faults,
    machine::Machine,
    record::{Hist, Interval, Kind},
};

/// Quantiles of the distribution plot: the nines between them are evenly spaced there.
const QUANTILES: [f64; 25] = [
    0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.965, 0.98, 0.99, 0.995, 0.9975, 0.999,
    0.9995, 0.9999, 0.99995, 0.99999, 1.0,
];

/// A whole load test.
#[derive(Debug, Serialize)]
pub struct Report {
    /// When it began, in HTTP's date format.
    pub started: String,
    /// The command line, without the values of headers.
    pub command: Vec<String>,
    pub machine: Machine,
    /// What was sent, in a sentence.
    pub load: String,
    pub mix: String,
    pub open: bool,
    /// The limit that the knee's p99 has, in microseconds.
    pub knee_p99_us: f64,
    pub seed: u64,
    /// It was ended by Ctrl-C.
    pub ended_early: bool,
    pub targets: Vec<TargetReport>,
    pub ratios: Vec<Ratio>,
    pub assertions: Vec<Verdict>,
    /// What a reader should know before the figures.
    pub notes: Vec<String>,
}

/// What one target did, in all of its rounds.
#[derive(Debug, Serialize)]
pub struct TargetReport {
    pub name: String,
    pub url: String,
    /// What it says that it is.
    pub client: String,
    pub presim: bool,
    pub summary: Summary,
    pub workloads: Vec<WorkloadReport>,
    pub rounds: Vec<Round>,
    pub timeline: Vec<Row>,
    /// Where in the timeline each load began.
    pub begins: Vec<Begin>,
    pub steps: Vec<Step>,
    pub knee: Option<Knee>,
    pub distribution: Vec<Quantile>,
    pub checked: Checked,
    /// Texts of what was wrong, some of each kind.
    pub examples: Vec<Example>,
}

/// Whether an assertion holds.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    pub assertion: String,
    /// What was measured; none where there is nothing to measure, and the assertion fails.
    pub measured: Option<String>,
    pub holds: bool,
}

/// The figures of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Measured, without warm-ups, in seconds.
    pub seconds: f64,
    pub requests: u64,
    pub right: u64,
    /// Right answers a second, by the moment of the answer.
    pub throughput: f64,
    /// Arrivals a second; none in a closed loop.
    pub offered: Option<f64>,
    pub errors: u64,
    /// Arrivals that ended in an error, among all: between 0 and 1.
    pub error_rate: f64,
    pub faults: Faults,
    /// From arrival to answer.
    pub latency: Latency,
    /// From sending to answer.
    pub service: Latency,
    pub refusal_p99_us: Option<u64>,
    /// Requests that waited for a free connection for more than a millisecond.
    pub late: u64,
    pub reconnects: u64,
    pub age: Option<Age>,
    pub checked: u64,
    /// In requests a second.
    pub knee: Option<f64>,
    /// Throughput to that of the second target.
    pub ratio: Option<f64>,
    /// Processor time of the generator, in cores.
    pub generator_cores: Option<f64>,
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

/// How old the snapshots of `pending` answers were, in milliseconds, and how many were older than need be.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Age {
    pub answers: u64,
    pub p50: u64,
    pub p99: u64,
    pub max: u64,
    pub stale: u64,
}

impl Age {
    /// None where no answer said its age.
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

/// What one kind of request did.
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
    pub fn new(name: String, weight: u32, kind: &Kind) -> Self {
        let errors = kind.faults.total();
        Self { name, weight, right: kind.right, errors, faults: kind.faults, latency: Latency::from(&kind.latency) }
    }
}

/// One turn of a target.
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
    /// Seconds of measuring this target before its end.
    pub at: f64,
    /// Its length in seconds.
    pub width: f64,
    /// Arrivals a second; none in a closed loop.
    pub offered: Option<f64>,
    pub right_per_second: f64,
    pub errors_per_second: f64,
    /// Right answers among all that ended, between 0 and 1; 0 where nothing did.
    pub answered_share: f64,
    pub latency: Latency,
    pub age: Option<Age>,
}

/// When a load began.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Begin {
    /// Seconds of measuring this target before it.
    pub at: f64,
    /// Arrivals a second; none in a closed loop, or where the rate changes.
    pub offered: Option<f64>,
    pub connections: usize,
}

/// A load that was tried.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Step {
    /// Arrivals a second; none in a closed loop.
    pub offered: Option<f64>,
    pub connections: usize,
    /// Right answers a second, by the moment they came.
    pub achieved: f64,
    pub p50: u64,
    pub p99: u64,
    pub errors: u64,
    /// It was carried: see `--knee-p99`.
    pub held: bool,
}

/// The load from which on more load brings no more, or what it brings is too late.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Knee {
    /// Requests a second: in an open loop those offered, in a closed one those answered right.
    pub rate: f64,
    /// Closed loop: connections that bring it.
    pub connections: Option<usize>,
    /// The load did not rise past it: the knee may be higher.
    pub at_least: bool,
}

/// A point of the distribution.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Quantile {
    pub quantile: f64,
    pub latency_us: u64,
}

/// A wrong answer, or what else went wrong.
#[derive(Clone, Debug, Serialize)]
pub struct Example {
    pub fault: &'static str,
    pub text: String,
}

/// How the first target compares with another: each figure is the median over rounds of the first's to the other's, with the least and the
/// greatest.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    pub of: String,
    pub to: String,
    pub throughput: Spread,
    pub p50: Spread,
    pub p99: Spread,
}

/// A median with its extremes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub greatest: f64,
}

impl Spread {
    /// None where there is nothing to compare.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        let (least, greatest) = (*values.first()?, *values.last()?);
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Self { median: (low + high) / 2.0, least, greatest })
    }
}

impl Report {
    /// Whether all assertions hold.
    pub fn holds(&self) -> bool {
        self.assertions.iter().all(|verdict| verdict.holds)
    }
}

impl Summary {
    /// The value of an assertion's metric: microseconds, a count, or a share. None where it was not measured.
    pub fn metric(&self, name: &str) -> Option<f64> {
        use crate::fault::Fault;
        let count = |count: u64| Some(count as f64);
        // Without a single answer there is no latency that could be said to hold.
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

/// Right answers among all that ended, between 0 and 1; 0 where nothing did.
pub fn share(interval: &Interval) -> f64 {
    let all = interval.right + interval.faults.total();
    if all == 0 { 0.0 } else { interval.right as f64 / all as f64 }
}

/// The distribution of a histogram, up to the quantile that a single answer decides.
pub fn distribution(hist: &Hist) -> Vec<Quantile> {
    let count = hist.count() as f64;
    let shown = QUANTILES.into_iter().filter(|quantile| *quantile >= 1.0 || (1.0 - quantile) * count >= 1.0);
    let points = shown.map(|quantile| Quantile { quantile, latency_us: hist.quantile(quantile) });
    if hist.count() == 0 { Vec::new() } else { points.collect() }
}

/// Share of the highest throughput that the knee of a closed loop has: from there on more connections bring little but waiting.
const NEARLY_ALL: f64 = 0.95;

/// The knee among the loads up to which every one was held: in an open loop the highest rate, in a closed loop the fewest connections that bring
/// nearly the highest throughput. None where the first was not held.
pub fn knee(steps: &[Step]) -> Option<Knee> {
    let mut rising: Vec<&Step> = steps.iter().collect();
    let load = |step: &Step| step.offered.unwrap_or(step.connections as f64);
    rising.sort_by(|a, b| load(a).total_cmp(&load(b)));
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
