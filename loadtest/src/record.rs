//! The records of a generator: histograms and counts, by interval and by workload.

use std::time::Duration;

use hdrhistogram::{CreationError, Histogram};

use crate::fault::{Fault, Faults};

/// Longest latency in a histogram, in microseconds: two minutes. A longer one counts as this.
const MAX_LATENCY_US: u64 = 120_000_000;
/// Oldest age in a histogram, in milliseconds: one hour.
const MAX_AGE_MS: u64 = 3_600_000;
/// Most texts that are kept of each kind of fault.
const EXAMPLES: usize = 3;
/// An open-loop request is late if it waits longer than this for a free connection.
pub const LATE: Duration = Duration::from_millis(1);

/// A histogram with three significant digits.
#[derive(Clone, Debug)]
pub struct Hist(Histogram<u64>);

impl Hist {
    /// Creates a histogram of latencies, in microseconds.
    ///
    /// # Errors
    ///
    /// Returns [`CreationError`] if the histogram's bounds are invalid.
    pub fn latency() -> Result<Self, CreationError> {
        Self::up_to(MAX_LATENCY_US)
    }

    /// Creates a histogram of ages, in milliseconds.
    ///
    /// # Errors
    ///
    /// Returns [`CreationError`] if the histogram's bounds are invalid.
    pub fn age() -> Result<Self, CreationError> {
        Self::up_to(MAX_AGE_MS)
    }

    fn up_to(max: u64) -> Result<Self, CreationError> {
        Histogram::new_with_max(max, 3).map(Self)
    }

    /// Returns an empty histogram with the same bounds.
    #[must_use]
    pub fn emptied(&self) -> Self {
        Self(Histogram::new_from(&self.0))
    }

    pub fn record(&mut self, value: u64) {
        self.0.saturating_record(value);
    }

    pub fn add(&mut self, other: &Self) {
        self.0 += &other.0;
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }

    pub fn max(&self) -> u64 {
        self.0.max()
    }

    pub fn mean(&self) -> f64 {
        self.0.mean()
    }

    /// Returns the value that this share of all values, between 0 and 1, does not exceed.
    pub fn quantile(&self, share: f64) -> u64 {
        self.0.value_at_quantile(share).min(self.0.max())
    }
}

/// The events of one interval of a run.
#[derive(Clone, Debug)]
pub struct Interval {
    /// Index of the interval. The last one covers the time after the run, while answers are still awaited.
    pub index: usize,
    /// Latency from arrival to answer, of right answers and of requests that timed out.
    pub latency: Hist,
    /// Latency from sending to answer, of the same.
    pub service: Hist,
    /// Ages of the snapshots that `pending` answers came from.
    pub age: Hist,
    /// Right answers to requests that arrived during the run.
    pub right: u64,
    /// Right answers received in this interval, including those to requests of the warm-up: the throughput.
    pub answered: u64,
    pub faults: Faults,
    /// `pending` answers whose snapshot is known.
    pub dated: u64,
    /// `pending` answers from a snapshot older than one that the target had announced before the request was sent.
    pub stale: u64,
    /// Requests that waited for a free connection for longer than [`LATE`].
    pub late: u64,
}

impl Interval {
    /// # Errors
    ///
    /// Returns [`CreationError`] if a histogram's bounds are invalid.
    pub fn new() -> Result<Self, CreationError> {
        let latency = Hist::latency()?;
        Ok(Self::of(0, [latency.clone(), latency], Hist::age()?))
    }

    /// Returns an empty interval with this index.
    #[must_use]
    pub fn emptied(&self, index: usize) -> Self {
        Self::of(index, [self.latency.emptied(), self.service.emptied()], self.age.emptied())
    }

    /// Creates an interval with these histograms, and with all counts at zero.
    fn of(index: usize, [latency, service]: [Hist; 2], age: Hist) -> Self {
        Self {
            index,
            latency,
            service,
            age,
            right: 0,
            answered: 0,
            faults: Faults::default(),
            dated: 0,
            stale: 0,
            late: 0,
        }
    }

    /// Adds the events of another generator or another interval.
    pub fn add(&mut self, other: &Self) {
        self.latency.add(&other.latency);
        self.service.add(&other.service);
        self.age.add(&other.age);
        self.right += other.right;
        self.answered += other.answered;
        self.faults.add(&other.faults);
        self.dated += other.dated;
        self.stale += other.stale;
        self.late += other.late;
    }
}

/// The events of one workload of the mix.
#[derive(Clone, Debug)]
pub struct WorkloadTotals {
    pub latency: Hist,
    pub right: u64,
    pub faults: Faults,
}

impl WorkloadTotals {
    fn new() -> Result<Self, CreationError> {
        Ok(Self { latency: Hist::latency()?, right: 0, faults: Faults::default() })
    }
}

/// The events of a generator over a whole run, beside its intervals.
#[derive(Clone, Debug)]
pub struct Totals {
    pub kinds: Vec<WorkloadTotals>,
    /// Requests that were sent, without those that arrived during the warm-up.
    pub requests: u64,
    /// Time that the target took to reject requests (-32005), in microseconds.
    pub refusals: Hist,
    /// Texts of faults, some of each kind.
    pub examples: Vec<(Fault, String)>,
    /// Connections opened after the first ones.
    pub reconnects: u64,
    /// Sampled answers that were not compared, because too many waited for the checker.
    pub not_sampled: u64,
}

impl Totals {
    /// # Errors
    ///
    /// Returns [`CreationError`] if a histogram's bounds are invalid.
    pub fn new(kinds: usize) -> Result<Self, CreationError> {
        Ok(Self {
            kinds: vec![WorkloadTotals::new()?; kinds],
            requests: 0,
            refusals: Hist::latency()?,
            examples: Vec::new(),
            reconnects: 0,
            not_sampled: 0,
        })
    }

    pub fn example(&mut self, fault: Fault, text: impl FnOnce() -> String) {
        let known = || self.examples.iter().filter(|(known, _)| *known == fault);
        if known().count() < EXAMPLES {
            let text = text();
            if known().all(|(_, known)| *known != text) {
                self.examples.push((fault, text));
            }
        }
    }

    pub fn add(&mut self, other: Self) {
        for (kind, more) in self.kinds.iter_mut().zip(&other.kinds) {
            kind.latency.add(&more.latency);
            kind.right += more.right;
            kind.faults.add(&more.faults);
        }
        self.requests += other.requests;
        self.refusals.add(&other.refusals);
        for (fault, text) in other.examples {
            self.example(fault, || text);
        }
        self.reconnects += other.reconnects;
        self.not_sampled += other.not_sampled;
    }
}

/// The records of one generator.
pub struct Recorder {
    pub interval: Interval,
    pub totals: Totals,
}

/// The outcome of a request that was sent, or was due.
pub struct RequestOutcome<'a> {
    pub workload: usize,
    /// Time from arrival to answer.
    pub latency: Duration,
    /// Time from sending to answer; `None` if the request was never sent.
    pub service: Option<Duration>,
    pub outcome: Result<(), (Fault, &'a str)>,
}

impl Recorder {
    /// # Errors
    ///
    /// Returns [`CreationError`] if a histogram's bounds are invalid.
    pub fn new(kinds: usize) -> Result<Self, CreationError> {
        Ok(Self { interval: Interval::new()?, totals: Totals::new(kinds)? })
    }

    pub fn done(&mut self, done: &RequestOutcome<'_>) {
        let latency = micros(done.latency);
        let kind = &mut self.totals.kinds[done.workload];
        if matches!(done.outcome, Ok(()) | Err((Fault::Timeout, _))) {
            self.interval.latency.record(latency);
            if let Some(service) = done.service {
                self.interval.service.record(micros(service));
            }
            kind.latency.record(latency);
        }
        match done.outcome {
            Ok(()) => {
                self.interval.right += 1;
                kind.right += 1;
            }
            Err((fault, text)) => {
                kind.faults.count(fault);
                if let (Fault::Refused, Some(service)) = (fault, done.service) {
                    self.totals.refusals.record(micros(service));
                }
                self.fault(fault, text);
            }
        }
    }

    /// Counts a fault, and keeps its text as an example. A fault of a workload also counts there.
    pub fn fault(&mut self, fault: Fault, text: &str) {
        self.interval.faults.count(fault);
        self.totals.example(fault, || text.to_owned());
    }

    /// Begins the interval with this index, and returns the one that ended.
    pub fn turn(&mut self, index: usize) -> Interval {
        let next = self.interval.emptied(index);
        std::mem::replace(&mut self.interval, next)
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
