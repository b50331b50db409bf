//! Evaluates the runs: the figures of each target, its knee, and how targets compare.

use hdrhistogram::CreationError;

use crate::{
    args::Args,
    check::Checked,
    fault::Fault,
    generate::{Bodies, Part},
    record::{Interval, Totals},
    report::{
        Age, Begin, Example, Latency, MedianRange, Ratio, Round, Row, Step, Summary, TargetReport, WorkloadReport,
        distribution, knee, noise, share,
    },
    segment::Outcome,
    target::Found,
    usage::Usage,
};

/// Share of the arrivals that must be answered right for a load to be held.
const CARRIED: f64 = 0.99;

/// Cores that other processes may use without a note.
const OTHERS: f64 = 0.1;

/// The parts of one turn of a target in order, with their outcomes.
pub type Turn = Vec<(Part, Outcome)>;

/// Evaluates one turn of a target.
///
/// # Errors
///
/// Returns [`CreationError`] if a histogram cannot be created.
pub fn round(outcomes: &Turn) -> Result<Round, CreationError> {
    let all = sum(outcomes)?;
    let seconds: f64 = outcomes.iter().map(|(_, outcome)| outcome.measured.as_secs_f64()).sum();
    let right: u64 = outcomes.iter().map(|(_, outcome)| outcome.right_in_time).sum();
    Ok(Round {
        throughput: rate(right as f64, seconds),
        p50: all.latency.quantile(0.5),
        p99: all.latency.quantile(0.99),
        errors: all.faults.total(),
    })
}

fn sum<'a>(outcomes: impl IntoIterator<Item = &'a (Part, Outcome)>) -> Result<Interval, CreationError> {
    let mut all = Interval::new()?;
    for (_, outcome) in outcomes {
        all.add(&outcome.all);
    }
    Ok(all)
}

/// Compares the first target with each other one, round by round.
pub fn ratios(found: &[Found], rounds: &[Vec<Round>]) -> Vec<Ratio> {
    let of = |other: &[Round], pick: fn(&Round) -> f64| {
        MedianRange::of(rounds[0].iter().zip(other).map(|(a, b)| pick(a) / pick(b)).collect())
    };
    let others = found.iter().zip(rounds).skip(1);
    others
        .filter_map(|(other, rounds)| {
            Some(Ratio {
                of: found[0].target.name.clone(),
                to: other.target.name.clone(),
                throughput: of(rounds, |round| round.throughput)?,
                p50: of(rounds, |round| round.p50 as f64)?,
                p99: of(rounds, |round| round.p99 as f64)?,
            })
        })
        .collect()
}

/// The results of all runs on a target.
pub struct Finished {
    pub found: Found,
    pub turns: Vec<Turn>,
    pub rounds: Vec<Round>,
    pub checked: Checked,
    /// The ratio of its throughput to the second target's; `None` for all but the first of several targets.
    pub ratio: Option<f64>,
}

/// Evaluates a target, and adds what a reader should know before the figures to `notes`.
///
/// # Errors
///
/// Returns [`CreationError`] if a histogram cannot be created.
pub fn target_report(
    args: &Args,
    finished: Finished,
    bodies: &Bodies,
    notes: &mut Vec<String>,
) -> Result<TargetReport, CreationError> {
    let Finished { found, turns, rounds, checked, ratio } = finished;
    let steps = steps(args, &turns)?;
    let knee = knee(&steps);
    let outcomes: Turn = turns.into_iter().flatten().collect();
    let mut all = sum(&outcomes)?;
    let seconds: f64 = outcomes.iter().map(|(_, outcome)| outcome.measured.as_secs_f64()).sum();
    let right: u64 = outcomes.iter().map(|(_, outcome)| outcome.right_in_time).sum();
    let usage = Usage::sum(outcomes.iter().map(|(_, outcome)| &outcome.usage)).unwrap_or_default().cores();
    let mut timeline = Vec::new();
    let mut totals = Totals::new(bodies.kinds.len())?;
    let mut begin = 0.0;
    let mut begins = Vec::new();
    for (part, outcome) in outcomes {
        begins.push(Begin { at: begin, offered: part.constant_rate(), connections: part.connections });
        timeline.extend(outcome.rows.into_iter().map(|row| Row { at: row.at + begin, ..row }));
        begin += outcome.measured.as_secs_f64();
        totals.add(outcome.totals);
        if let Some(why) = outcome.unwatched {
            let note = format!("{} was not watched for new snapshots: {why}", found.target);
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    // Mismatches were counted as right when they arrived, because they were found later.
    all.right = all.right.saturating_sub(checked.mismatches);
    all.faults.count_many(Fault::Mismatch, checked.mismatches);
    for (workload, count) in &checked.by_workload {
        if let Some(kind) = totals.kinds.get_mut(*workload) {
            kind.right = kind.right.saturating_sub(*count);
            kind.faults.count_many(Fault::Mismatch, *count);
        }
    }
    if totals.not_sampled > 0 {
        notes.push(format!("{}: {} samples were not compared: there were too many.", found.target, totals.not_sampled));
    }
    if args.reference.is_some() && checked.equal + checked.mismatches == 0 {
        notes.push(format!("No answer of {} could be compared with the reference.", found.target));
    }
    if let Some(note) = noise(&steps) {
        notes.push(format!("{}: {note}", found.target));
    }
    if let Some(others) = usage.others.filter(|others| *others > OTHERS) {
        notes.push(format!(
            "{}: other processes used {others:.2} cores of this machine during the run, so the figures depend on them, too.",
            found.target
        ));
    }
    if usage.generator.is_some_and(|cores| cores > 0.9 * f64::from(args.threads)) {
        notes.push(format!(
            "{}: the generator was busy all the time: it may have been what was measured. More --threads may help, if there are cores for them.",
            found.target
        ));
    }
    let errors = all.faults.total();
    // In an open loop a failed connection attempt ends no request: it waits for the next attempt.
    let tries = if args.is_open() { all.faults.of(Fault::Connect) } else { 0 };
    let failed = errors - tries;
    let offered = timeline.iter().map(|row| row.offered.map(|rate| rate * row.width)).sum::<Option<f64>>();
    let summary = Summary {
        seconds,
        requests: totals.requests,
        right: all.right,
        throughput: rate(right as f64, seconds),
        offered: offered.filter(|_| args.is_open()).map(|arrivals| rate(arrivals, seconds)),
        errors,
        error_rate: rate(failed as f64, (all.right + failed) as f64),
        faults: all.faults,
        latency: Latency::from(&all.latency),
        service: Latency::from(&all.service),
        refusal_p99_us: (totals.refusals.count() > 0).then(|| totals.refusals.quantile(0.99)),
        late: all.late,
        reconnects: totals.reconnects,
        age: Age::of(&all),
        checked: checked.equal + checked.mismatches,
        knee: knee.map(|knee| knee.rate),
        ratio,
        usage,
    };
    let workloads = bodies
        .kinds
        .iter()
        .zip(&totals.kinds)
        .map(|((name, weight, _), kind)| WorkloadReport::new(name.clone(), *weight, kind))
        .collect();
    let mut examples: Vec<Example> =
        totals.examples.into_iter().map(|(fault, text)| Example { fault: fault.name(), text }).collect();
    examples.extend(checked.examples.iter().map(|text| Example { fault: Fault::Mismatch.name(), text: text.clone() }));
    Ok(TargetReport {
        name: found.target.name.clone(),
        url: found.target.url(),
        client: found.client,
        presim: found.presim,
        summary,
        workloads,
        rounds,
        timeline,
        begins,
        steps,
        knee,
        distribution: distribution(&all.latency),
        checked,
        examples,
    })
}

/// Returns the loads that were tried: the steps, over all rounds, or the intervals of a ramp. A target that falls
/// behind an open loop shows in the p99, because latency counts from the arrival.
fn steps(args: &Args, turns: &[Turn]) -> Result<Vec<Step>, CreationError> {
    let held = |share: f64, p99: u64| share >= CARRIED && p99 as f64 <= args.knee_p99.as_micros() as f64;
    if args.ramp.is_some() {
        let rows = turns.iter().flatten().flat_map(|(part, outcome)| outcome.rows.iter().map(|row| (*part, row)));
        let step = |(part, row): (Part, &Row)| {
            let errors = (row.errors_per_second * row.width).round() as u64;
            let Latency { p50, p99, .. } = row.latency;
            let held = held(row.answered_share, p99);
            let (offered, connections) = (Some(row.offered?), part.connections);
            Some(Step { offered, connections, achieved: row.right_per_second, p50, p99, errors, held, usage: None })
        };
        return Ok(rows.filter_map(step).collect());
    }
    if args.steps.is_none() && args.connection_steps.is_none() {
        return Ok(Vec::new());
    }
    let places = turns.iter().map(Vec::len).max().unwrap_or(0);
    let mut steps = Vec::new();
    for place in 0..places {
        let rounds: Vec<&(Part, Outcome)> = turns.iter().filter_map(|turn| turn.get(place)).collect();
        let Some((part, _)) = rounds.first() else { break };
        let all = sum(rounds.iter().copied())?;
        let seconds: f64 = rounds.iter().map(|(_, outcome)| outcome.measured.as_secs_f64()).sum();
        let right: u64 = rounds.iter().map(|(_, outcome)| outcome.right_in_time).sum();
        let (p50, p99) = (all.latency.quantile(0.5), all.latency.quantile(0.99));
        let (achieved, held, errors) = (rate(right as f64, seconds), held(share(&all), p99), all.faults.total());
        let usage = Usage::sum(rounds.iter().map(|(_, outcome)| &outcome.usage)).map(|usage| usage.cores());
        steps.push(Step {
            offered: part.constant_rate(),
            connections: part.connections,
            achieved,
            p50,
            p99,
            errors,
            held,
            usage,
        });
    }
    Ok(steps)
}

fn rate(count: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { count / seconds } else { 0.0 }
}
