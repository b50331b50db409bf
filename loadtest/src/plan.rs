//! A whole test: the targets are looked at, requests are made, each target has its turns, and what came of it is put together.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use eyre::{Context, Result};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    args::{Args, Ramp, Spread as Arrivals},
    body::{self, Tag},
    check::{Checked, Checker},
    fault::Fault,
    generate::{Bodies, Load, Segment},
    machine::Machine,
    progress::Progress,
    record::{Interval, Totals},
    report::{
        Age, Example, Latency, Ratio, Report, Round, Row, Spread, Step, Summary, TargetReport, WorkloadReport,
        distribution, knee, share,
    },
    rpc::Rpc,
    schedule::Rate,
    segment::{self, Outcome},
    target::Target,
    workload::{self, Making, Workload},
    world::World,
};

/// Samples that wait to be compared.
const SAMPLES: usize = 256;
/// Share of what arrives that must be answered right for a rate to be carried.
const CARRIED: f64 = 0.99;
/// Intervals of a target's turn: as many as a plot shows well, none shorter than the first bound (about the life of a snapshot, whose age would else
/// go up and down with the intervals) or longer than the second.
const INTERVALS: u32 = 120;
const INTERVAL: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// A target as it was found.
struct Found {
    target: Target,
    client: String,
    presim: bool,
    chain_id: Value,
}

/// Runs a test. `command` is the command line as the report shows it.
///
/// # Errors
/// A target cannot be reached or lacks what the requests need; the recorded bodies cannot be read.
pub async fn run(args: &Args, command: Vec<String>) -> Result<Report> {
    let started = httpdate::fmt_http_date(SystemTime::now());
    let mut found = Vec::new();
    for (place, url) in args.urls.iter().enumerate() {
        found.push(find(args, url, name(place)).await?);
    }
    let reference = match &args.reference {
        Some(url) => Some(find(args, url, "reference".to_owned()).await.wrap_err("--reference")?.target.over(false)),
        None => None,
    };
    let bodies = Arc::new(make(args, &found[0].target).await?);
    let stop = Arc::new(AtomicBool::new(false));
    tokio::spawn(stop_at_interrupt(stop.clone()));

    let targets: Vec<Target> = found.iter().map(|found| found.target.clone()).collect();
    let presim: Vec<bool> = found.iter().map(|found| found.presim).collect();
    let (samples, sampled) = mpsc::channel(SAMPLES);
    let checker = tokio::spawn(Checker::new(&targets, &presim, reference.as_ref(), args.timeout).run(sampled));

    let parts = parts(args);
    let length: Duration = parts.iter().map(|(_, duration)| args.warmup + *duration).sum();
    let turn: Duration = parts.iter().map(|(_, duration)| *duration).sum();
    let mut progress = Progress::new(length * args.rounds() * found.len() as u32);
    let mut runs: Vec<Vec<Vec<(Load, Outcome)>>> = found.iter().map(|_| Vec::new()).collect();
    let mut first_id = 0;
    'all: for round in 0..args.rounds() {
        for (place, found) in found.iter().enumerate() {
            let mut outcomes = Vec::new();
            for (load, duration) in &parts {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let segment = Segment {
                    place,
                    target: found.target.clone(),
                    bodies: bodies.clone(),
                    load: *load,
                    threads: args.threads as usize,
                    connections: args.connections(),
                    max_outstanding: args.max_outstanding as usize,
                    warmup: args.warmup,
                    duration: *duration,
                    interval: (turn / INTERVALS).clamp(INTERVAL.0, INTERVAL.1),
                    timeout: args.timeout,
                    sample: args.check_sample,
                    presim: found.presim,
                    seed: args.seed,
                    first_id,
                    stop: stop.clone(),
                    newest: Arc::new(AtomicU64::new(0)),
                    samples: samples.clone(),
                };
                progress.begin(what(args, found, round, load));
                let pending =
                    bodies.kinds.iter().any(|(.., bodies)| bodies.iter().any(|body| body.tag == Some(Tag::Pending)));
                let outcome = segment::run(&segment, found.presim && pending && !args.no_watch, &mut progress).await?;
                // Ids go on, so that a wallet batch is none that was sent before.
                first_id += outcome.requests.saturating_mul(2) + 1;
                outcomes.push((*load, outcome));
            }
            if outcomes.is_empty() {
                break 'all;
            }
            runs[place].push(outcomes);
        }
    }
    let ended_early = stop.load(Ordering::Relaxed);
    drop(samples);
    progress.begin("checking".to_owned());
    let checked = checker.await.wrap_err("the checker ended by a panic")?;
    progress.end();

    let mut notes = notes(args, &found);
    let rounds: Vec<Vec<Round>> =
        runs.iter().map(|rounds| rounds.iter().map(|round| round_of(round)).collect()).collect();
    let ratios = ratios(&found, &rounds);
    let mut targets = Vec::new();
    for (((found, runs), rounds), checked) in found.into_iter().zip(runs).zip(rounds).zip(checked) {
        let ratio = ratios.first().filter(|_| targets.is_empty()).map(|ratio| ratio.throughput.median);
        targets.push(target_report(args, found, runs, rounds, checked, &bodies, ratio, &mut notes));
    }
    let assertions = targets.first().map_or_else(Vec::new, |first| {
        args.assertions.iter().map(|assertion| assertion.verdict(&first.summary)).collect()
    });
    Ok(Report {
        started,
        command,
        machine: Machine::this(),
        load: describe(args),
        mix: args.mix().to_string(),
        open: args.is_open(),
        knee_p99_us: args.knee_p99.as_micros() as f64,
        seed: args.seed,
        ended_early,
        targets,
        ratios,
        assertions,
        notes,
    })
}

fn name(place: usize) -> String {
    // There are at most 26 targets.
    char::from(b'A' + (place % 26) as u8).to_string()
}

async fn find(args: &Args, url: &str, name: String) -> Result<Found> {
    let target = Target::parse(url, name, args.ws, &args.header)?;
    let mut rpc = Rpc::new(&target, args.timeout);
    let unreachable = || format!("{} cannot be tested: is a JSON-RPC node listening there?", target.url());
    let chain_id = rpc.call("eth_chainId", json!([])).await.wrap_err_with(unreachable)?;
    let client = rpc.call("web3_clientVersion", json!([])).await.unwrap_or_default();
    let presim = rpc.call("presim_snapshot", json!([])).await.is_ok();
    let client = client.as_str().unwrap_or("unknown").to_owned();
    Ok(Found { target, client, presim, chain_id })
}

async fn make(args: &Args, target: &Target) -> Result<Bodies> {
    let mix = args.mix();
    let mut kinds: Vec<Vec<body::Body>> = Vec::new();
    if mix.0.iter().any(|(workload, _)| *workload != Workload::Recorded) {
        let mut rpc = Rpc::new(target, args.timeout);
        let needs_router = mix.0.iter().any(|(workload, _)| workload.needs_market());
        let router = needs_router.then_some(args.router);
        let world = World::discover(&mut rpc, router, &args.senders).await.wrap_err_with(|| target.url())?;
        let making = Making {
            tag: args.tag.unwrap_or(Tag::Pending),
            seed: args.seed,
            count: args.bodies_per_kind as usize,
            max_bytes: args.max_body_bytes,
        };
        kinds = workload::make(&mix, &world, making)?;
    }
    kinds.resize_with(mix.0.len(), Vec::new);
    if let (Some(path), Some(place)) =
        (&args.bodies, mix.0.iter().position(|(workload, _)| *workload == Workload::Recorded))
    {
        kinds[place] = body::read(path, place, args.tag, args.max_body_bytes)?;
    }
    let kinds = mix.0.iter().zip(kinds).map(|((workload, weight), bodies)| (workload.to_string(), *weight, bodies));
    Ok(Bodies { kinds: kinds.collect() })
}

/// The loads of a turn, with how long each lasts.
fn parts(args: &Args) -> Vec<(Load, Duration)> {
    let poisson = args.arrivals == Arrivals::Poisson;
    let open = |rate| Load::Open { rate, poisson };
    if let Some(steps) = &args.steps {
        return steps.0.iter().map(|rate| (open(Rate::constant(*rate)), args.step_duration)).collect();
    }
    let load = match (args.rate, args.ramp) {
        (Some(rate), _) => open(Rate::constant(rate)),
        (None, Some(Ramp { from, to })) => open(Rate { from, to }),
        (None, None) => Load::Closed,
    };
    vec![(load, args.duration)]
}

fn what(args: &Args, found: &Found, round: u32, load: &Load) -> String {
    let round = if args.rounds() > 1 { format!(" round {}", round + 1) } else { String::new() };
    let rate = match load {
        Load::Open { rate, .. } if rate.from == rate.to => format!(" at {:.0}/s", rate.from),
        _ => String::new(),
    };
    format!("{}{round}{rate}", found.target.name)
}

/// The load in a sentence.
fn describe(args: &Args) -> String {
    let spread = if args.arrivals == Arrivals::Poisson { "Poisson arrivals" } else { "evenly spaced arrivals" };
    let connections = format!("{} connections, {} thread(s)", args.connections(), args.threads);
    let duration = args.duration;
    let load = match (args.rate, args.ramp, &args.steps) {
        (Some(rate), ..) => format!("open loop, {rate} requests/s for {duration:?}, {spread}"),
        (_, Some(Ramp { from, to }), _) => {
            format!("open loop, from {from} to {to} requests/s over {duration:?}, {spread}")
        }
        (.., Some(steps)) => {
            let rates: Vec<String> = steps.0.iter().map(|rate| format!("{rate:.0}")).collect();
            format!("open loop, {} requests/s, {:?} each, {spread}", rates.join(", "), args.step_duration)
        }
        _ => format!("closed loop for {duration:?}"),
    };
    let tag = match (args.tag, &args.bodies) {
        (Some(tag), _) => format!(", at {tag}"),
        (None, None) => ", at pending".to_owned(),
        (None, Some(_)) => String::new(),
    };
    format!("{load}, {connections}{tag}, after {:?} of warm-up", args.warmup)
}

fn notes(args: &Args, found: &[Found]) -> Vec<String> {
    let mut notes = Vec::new();
    for found in found {
        if !found.presim {
            notes.push(format!("{} is not presim: how fresh its answers are is not known.", found.target));
            if args.reference.is_none() && args.check_sample > 0 {
                notes.push(format!(
                    "{}: no answer was compared with a reference, as only presim can be its own (--reference).",
                    found.target
                ));
            }
        }
    }
    if found.iter().any(|other| other.chain_id != found[0].chain_id) {
        notes.push(
            "The targets have different chain ids: their answers, and their work, may not be the same.".to_owned(),
        );
    }
    notes
}

fn round_of(outcomes: &[(Load, Outcome)]) -> Round {
    let all = sum(outcomes);
    let seconds: f64 = outcomes.iter().map(|(_, outcome)| outcome.measured.as_secs_f64()).sum();
    let right: u64 = outcomes.iter().map(|(_, outcome)| outcome.right_in_time).sum();
    Round {
        throughput: rate(right as f64, seconds),
        p50: all.latency.quantile(0.5),
        p99: all.latency.quantile(0.99),
        errors: all.faults.total(),
    }
}

fn sum<'a>(outcomes: impl IntoIterator<Item = &'a (Load, Outcome)>) -> Interval {
    let mut all = Interval::new(0);
    for (_, outcome) in outcomes {
        all.add(&outcome.all);
    }
    all
}

/// The first target to each other, round by round.
fn ratios(found: &[Found], rounds: &[Vec<Round>]) -> Vec<Ratio> {
    let of = |other: &[Round], pick: fn(&Round) -> f64| {
        Spread::of(rounds[0].iter().zip(other).map(|(a, b)| pick(a) / pick(b)).collect())
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

#[expect(clippy::too_many_arguments, reason = "all that is known of a target, used once")]
fn target_report(
    args: &Args,
    found: Found,
    runs: Vec<Vec<(Load, Outcome)>>,
    rounds: Vec<Round>,
    checked: Checked,
    bodies: &Bodies,
    ratio: Option<f64>,
    notes: &mut Vec<String>,
) -> TargetReport {
    let steps = steps(args, &runs);
    let knee = knee(&steps);
    let outcomes: Vec<(Load, Outcome)> = runs.into_iter().flatten().collect();
    let mut all = sum(&outcomes);
    let seconds: f64 = outcomes.iter().map(|(_, outcome)| outcome.measured.as_secs_f64()).sum();
    let right: u64 = outcomes.iter().map(|(_, outcome)| outcome.right_in_time).sum();
    let requests = outcomes.iter().map(|(_, outcome)| outcome.requests).sum();
    let used = outcomes
        .iter()
        .try_fold((0.0, 0.0), |sum, (_, outcome)| outcome.processor.map(|(used, of)| (sum.0 + used, sum.1 + of)));
    let mut timeline = Vec::new();
    let mut totals = Totals::new(bodies.kinds.len());
    let mut begin = 0.0;
    for (_, outcome) in outcomes {
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
    for _ in 0..checked.mismatches {
        all.faults.count(Fault::Mismatch);
    }
    for (workload, count) in &checked.by_workload {
        for _ in 0..*count {
            totals.kinds[*workload].faults.count(Fault::Mismatch);
        }
    }
    if totals.not_sampled > 0 {
        notes.push(format!("{}: {} samples were not compared: there were too many.", found.target, totals.not_sampled));
    }
    let generator_cores = used.map(|(used, of)| used / of);
    if generator_cores.is_some_and(|cores| cores > 0.9 * f64::from(args.threads)) {
        notes.push(format!(
            "{}: the generator was busy all the time: it may have been what was measured. More --threads may help, if there are cores for them.",
            found.target
        ));
    }
    let errors = all.faults.total();
    let offered = timeline.iter().map(|row| row.offered.map(|rate| rate * row.width)).sum::<Option<f64>>();
    let summary = Summary {
        seconds,
        requests,
        right: all.right,
        throughput: rate(right as f64, seconds),
        offered: offered.filter(|_| args.is_open()).map(|arrivals| rate(arrivals, seconds)),
        errors,
        error_rate: rate(errors as f64, (all.right + errors) as f64),
        faults: all.faults,
        latency: Latency::from(&all.latency),
        service: Latency::from(&all.service),
        refusal_p99_us: (totals.refusals.count() > 0).then(|| totals.refusals.quantile(0.99)),
        late: all.late,
        reconnects: totals.reconnects,
        age: Age::of(&all),
        checked: checked.equal + checked.mismatches,
        knee,
        ratio,
        generator_cores,
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
    TargetReport {
        name: found.target.name.clone(),
        url: found.target.url(),
        client: found.client,
        presim: found.presim,
        summary,
        workloads,
        rounds,
        timeline,
        steps,
        knee,
        distribution: distribution(&all.latency),
        checked,
        examples,
    }
}

/// The rates that were tried: the steps, over all rounds, or the intervals of a ramp. That the target falls behind shows in the p99, as latency
/// counts from the arrival.
fn steps(args: &Args, runs: &[Vec<(Load, Outcome)>]) -> Vec<Step> {
    let held = |share: f64, p99: u64| share >= CARRIED && p99 as f64 <= args.knee_p99.as_micros() as f64;
    if args.ramp.is_some() {
        let rows = runs.iter().flatten().flat_map(|(_, outcome)| &outcome.rows);
        let step = |row: &Row| {
            let errors = (row.errors_per_second * row.width).round() as u64;
            let Latency { p50, p99, .. } = row.latency;
            let held = held(row.answered_share, p99);
            Some(Step { offered: row.offered?, achieved: row.right_per_second, p50, p99, errors, held })
        };
        return rows.filter_map(step).collect();
    }
    let count = args.steps.as_ref().map_or(0, |steps| steps.0.len());
    let step = |place: usize| {
        let rounds: Vec<&(Load, Outcome)> = runs.iter().filter_map(|round| round.get(place)).collect();
        let Load::Open { rate: Rate { from: offered, .. }, .. } = rounds.first()?.0 else { return None };
        let all = sum(rounds.iter().copied());
        let seconds: f64 = rounds.iter().map(|(_, outcome)| outcome.measured.as_secs_f64()).sum();
        let right: u64 = rounds.iter().map(|(_, outcome)| outcome.right_in_time).sum();
        let (p50, p99) = (all.latency.quantile(0.5), all.latency.quantile(0.99));
        let held = held(share(&all), p99);
        Some(Step { offered, achieved: rate(right as f64, seconds), p50, p99, errors: all.faults.total(), held })
    };
    (0..count).filter_map(step).collect()
}

fn rate(count: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { count / seconds } else { 0.0 }
}

/// The first Ctrl-C ends the run with its report, the second ends all.
async fn stop_at_interrupt(stop: Arc<AtomicBool>) {
    if tokio::signal::ctrl_c().await.is_err() {
        return;
    }
    eprintln!("ending early: the report follows; once more to leave at once");
    stop.store(true, Ordering::Relaxed);
    if tokio::signal::ctrl_c().await.is_ok() {
        std::process::exit(130);
    }
}
