//! Runs one segment: starts its threads, and adds up their reports by interval.

use std::{
    collections::BTreeMap,
    sync::{Arc, Barrier, atomic::Ordering},
    time::{Duration, Instant},
};

use eyre::{Result, bail};
use tokio::sync::mpsc;

use crate::{
    generate::{GeneratorMessage, LoopKind, Segment},
    progress::Progress,
    record::{Interval, Totals},
    report::{Age, Latency, Row, share},
    thread,
    usage::{Usage, UsageMeter},
    watch::watch,
};

/// The outcome of a segment.
pub struct Outcome {
    /// Intervals of the run, without requests that ended after it.
    pub rows: Vec<Row>,
    /// The sum of all intervals, including requests that ended after the run.
    pub all: Interval,
    /// Right answers received between the beginning and the end of the run.
    pub right_in_time: u64,
    pub totals: Totals,
    /// Requests that were sent, including those of the warm-up. Later ids follow theirs.
    pub sent: u64,
    /// Measured duration, which is shorter than the segment's if the run was ended early.
    pub measured: Duration,
    /// Usage of the machine, the warm-up included.
    pub usage: Usage,
    /// Why the target was not watched to the end; `None` if it was, or if it was not to be.
    pub unwatched: Option<String>,
}

/// Runs a segment to its end. If `watched`, follows the target's announcements meanwhile.
///
/// # Errors
///
/// Returns an error if a generator cannot run or panics.
pub async fn run(segment: &Segment, watched: bool, progress: &mut Progress) -> Result<Outcome> {
    let (reports, mut told) = mpsc::unbounded_channel();
    let watcher = watched.then(|| {
        let (target, newest, patience) = (segment.target.clone(), segment.newest.clone(), segment.timeout);
        tokio::spawn(async move { watch(&target, patience, newest).await })
    });
    let mut meter = UsageMeter::start(segment.process);
    let begun = Instant::now();
    let barrier = Arc::new(Barrier::new(segment.threads));
    let threads: Vec<_> = (0..segment.threads)
        .map(|thread| {
            let (segment, barrier, reports) = (segment.clone(), barrier.clone(), reports.clone());
            std::thread::spawn(move || thread::run(&segment, thread, &barrier, &reports))
        })
        .collect();
    drop(reports);

    let mut collected = Collected::new(segment)?;
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    let mut stopped = None;
    loop {
        tokio::select! {
            report = told.recv() => match report {
                Some(GeneratorMessage::Interval(interval)) => collected.interval(*interval, progress),
                Some(GeneratorMessage::Ended { totals, sent }) => collected.ended(*totals, sent),
                Some(GeneratorMessage::Failed(why)) => bail!("a generator could not run: {why}"),
                None => break,
            },
            _ = tick.tick() => {
                progress.tick();
                meter.look();
                if stopped.is_none() && segment.stop.load(Ordering::Relaxed) {
                    stopped = Some(Instant::now());
                }
            }
        }
    }
    if stopped.is_none() && segment.stop.load(Ordering::Relaxed) {
        stopped = Some(Instant::now());
    }
    for thread in threads {
        if thread.join().is_err() {
            bail!("a generator thread panicked");
        }
    }
    let usage = meter.end();
    let unwatched = match watcher {
        Some(watcher) if watcher.is_finished() => watcher.await.ok(),
        Some(watcher) => {
            watcher.abort();
            None
        }
        None => None,
    };
    let measured = match stopped {
        Some(stopped) => stopped.saturating_duration_since(begun + segment.warmup).min(segment.duration),
        None => segment.duration,
    };
    Ok(collected.outcome(measured, usage, unwatched))
}

/// The sums of the threads' reports so far.
struct Collected<'a> {
    segment: &'a Segment,
    /// Intervals that not all threads have reported, with the number of threads that have.
    open: BTreeMap<usize, (Interval, usize)>,
    rows: Vec<Row>,
    all: Interval,
    right_in_time: u64,
    totals: Totals,
    sent: u64,
}

impl<'a> Collected<'a> {
    fn new(segment: &'a Segment) -> Result<Self> {
        Ok(Self {
            segment,
            open: BTreeMap::new(),
            rows: Vec::new(),
            all: Interval::new()?,
            right_in_time: 0,
            totals: Totals::new(segment.bodies.kinds.len())?,
            sent: 0,
        })
    }

    fn interval(&mut self, interval: Interval, progress: &mut Progress) {
        let index = interval.index;
        match self.open.get_mut(&index) {
            Some((sum, threads)) => {
                sum.add(&interval);
                *threads += 1;
            }
            None => {
                self.open.insert(index, (interval, 1));
            }
        }
        if self.open.get(&index).is_some_and(|(_, threads)| *threads == self.segment.threads)
            && let Some((interval, _)) = self.open.remove(&index)
        {
            self.close(interval, self.segment.duration);
            if let Some(row) = self.rows.last() {
                progress.row(row, &self.all.faults);
            }
        }
    }

    fn ended(&mut self, totals: Totals, sent: u64) {
        self.totals.add(totals);
        self.sent += sent;
    }

    /// Adds an interval to the sums. An interval after the end of the run has no row.
    fn close(&mut self, interval: Interval, measured: Duration) {
        let Segment { interval: width, load, duration, .. } = *self.segment;
        let start = width.mul_f64(interval.index as f64);
        let end = (start + width).min(measured);
        if end > start {
            let seconds = (end - start).as_secs_f64();
            let offered = match load {
                LoopKind::Open { rate, .. } => Some(rate.arrivals(start, end, duration) / seconds),
                LoopKind::Closed => None,
            };
            self.right_in_time += interval.answered;
            self.rows.push(Row {
                at: start.as_secs_f64(),
                width: seconds,
                offered,
                right_per_second: interval.answered as f64 / seconds,
                answered_share: share(&interval),
                errors_per_second: interval.faults.total() as f64 / seconds,
                latency: Latency::from(&interval.latency),
                age: Age::of(&interval),
            });
        }
        self.all.add(&interval);
    }

    fn outcome(mut self, measured: Duration, usage: Usage, unwatched: Option<String>) -> Outcome {
        // Threads that were ended early may have been in different intervals.
        for (_, (interval, _)) in std::mem::take(&mut self.open) {
            self.close(interval, measured);
        }
        self.rows.sort_by(|a, b| a.at.total_cmp(&b.at));
        Outcome {
            rows: self.rows,
            all: self.all,
            right_in_time: self.right_in_time,
            totals: self.totals,
            sent: self.sent,
            measured,
            usage,
            unwatched,
        }
    }
}
