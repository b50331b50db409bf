//! What a generator writes down: histograms and counts, by interval and by workload.

use std::time::Duration;

use hdrhistogram::{CreationError, Histogram};

use crate::fault::{Fault, Faults};

/// Longest latency told apart, in microseconds: two minutes. What is longer counts as this.
const MAX_LATENCY_US: u64 = 120_000_000;
/// Oldest snapshot told apart, in milliseconds: one hour.
const MAX_AGE_MS: u64 = 3_600_000;
/// Wrong answers of each kind whose text is kept.
const EXAMPLES: usize = 3;
/// An open-loop request is sent late when it has waited for longer than this for a free connection.
pub const LATE: Duration = Duration::from_millis(1);

/// A histogram of three significant digits.
#[derive(Clone, Debug)]
pub struct Hist(Histogram<u64>);

impl Hist {
    /// Of latencies, in microseconds.
    ///
    /// # Errors
    /// The histogram's bounds are refused.
    pub fn latency() -> Result<Self, CreationError> {
        Self::up_to(MAX_LATENCY_US)
    }

    /// Of ages, in milliseconds.
    ///
    /// # Errors
    /// The histogram's bounds are refused.
    pub fn age() -> Result<Self, CreationError> {
        Self::up_to(MAX_AGE_MS)
    }

    fn up_to(max: u64) -> Result<Self, CreationError> {
        Histogram::new_with_max(max, 3).map(Self)
    }

    /// One like this, with nothing in it.
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

    /// The value that this share of all values, between 0 and 1, does not exceed.
    pub fn quantile(&self, share: f64) -> u64 {
        self.0.value_at_quantile(share).min(self.0.max())
    }

    /// How many values are greater.
    pub fn count_above(&self, value: u64) -> u64 {
        self.0.len() - self.0.count_between(0, value)
    }
}

/// What happened in one interval of a run.
#[derive(Clone, Debug)]
pub struct Interval {
    /// Its place; the last is everything after the end of the run, while answers were still waited for.
    pub index: usize,
    /// From arrival to answer, of right answers and of those that did not come in time.
    pub latency: Hist,
    /// From sending to answer, of the same.
    pub service: Hist,
    /// Ages of the snapshots that `pending` answers came from.
    pub age: Hist,
    /// Right answers to what arrived during the run.
    pub right: u64,
    /// Right answers that came in this interval, to what arrived during the warm-up too: the throughput.
    pub answered: u64,
    pub faults: Faults,
    /// `pending` answers of which the snapshot is known.
    pub dated: u64,
    /// Those from a snapshot older than one that the target had told of before the request was sent.
    pub stale: u64,
    /// Requests that waited for a free connection for longer than [`LATE`].
    pub late: u64,
}

impl Interval {
    /// # Errors
    /// A histogram's bounds are refused.
    pub fn new() -> Result<Self, CreationError> {
        let latency = Hist::latency()?;
        Ok(Self::of(0, [latency.clone(), latency], Hist::age()?))
    }

    /// Another one, in which nothing has happened.
    #[must_use]
    pub fn emptied(&self, index: usize) -> Self {
        Self::of(index, [self.latency.emptied(), self.service.emptied()], self.age.emptied())
    }

    /// Counts of nothing, with these histograms.
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

    /// Adds what another generator saw, or what another interval had.
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

/// What one workload of the mix did.
#[derive(Clone, Debug)]
pub struct Kind {
    pub latency: Hist,
    pub right: u64,
    pub faults: Faults,
}

impl Kind {
    fn new() -> Result<Self, CreationError> {
        Ok(Self { latency: Hist::latency()?, right: 0, faults: Faults::default() })
    }
}

/// What a generator saw in all of a run, beside its intervals.
#[derive(Clone, Debug)]
pub struct Totals {
    pub kinds: Vec<Kind>,
    /// Requests that were sent, of those that arrived during the run.
    pub requests: u64,
    /// How long it took to refuse (-32005), in microseconds.
    pub refusals: Hist,
    /// Texts of what was wrong, some of each kind.
    pub examples: Vec<(Fault, String)>,
    /// Connections made after the first ones.
    pub reconnects: u64,
    /// Sampled answers that were not compared, as the checker had too many to do.
    pub not_sampled: u64,
}

impl Totals {
    /// # Errors
    /// A histogram's bounds are refused.
    pub fn new(kinds: usize) -> Result<Self, CreationError> {
        Ok(Self {
            kinds: vec![Kind::new()?; kinds],
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

/// One generator's pen.
pub struct Recorder {
    pub interval: Interval,
    pub totals: Totals,
}

/// What became of a request that was sent, or was to be.
pub struct Done<'a> {
    pub workload: usize,
    /// From arrival to answer.
    pub latency: Duration,
    /// From sending to answer; none where it was never sent.
    pub service: Option<Duration>,
    pub outcome: Result<(), (Fault, &'a str)>,
}

impl Recorder {
    /// # Errors
    /// A histogram's bounds are refused.
    pub fn new(kinds: usize) -> Result<Self, CreationError> {
        Ok(Self { interval: Interval::new()?, totals: Totals::new(kinds)? })
    }

    pub fn done(&mut self, done: &Done<'_>) {
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

    /// Something that went wrong and is no workload's.
    pub fn fault(&mut self, fault: Fault, text: &str) {
        self.interval.faults.count(fault);
        self.totals.example(fault, || text.to_owned());
    }

    /// Begins an interval, and returns the one that ended.
    pub fn turn(&mut self, index: usize) -> Interval {
        let next = self.interval.emptied(index);
        std::mem::replace(&mut self.interval, next)
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
