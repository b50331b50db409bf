//! Runs a whole test: examines the targets, makes requests, gives each target its turns, and assembles the report.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use eyre::{Context, Result};
use serde_json::json;
use tokio::sync::mpsc;

use crate::{
    args::{Args, ArrivalSpacing as Arrivals, Ramp},
    body::{self, Tag},
    check::{Checker, Reference},
    findings::{self, Finished, Turn},
    generate::{Bodies, LoopKind, Part, Segment},
    machine::Machine,
    mix::Workload,
    progress::Progress,
    report::{Report, Round, text::plural},
    rpc::Rpc,
    schedule::Rate,
    segment,
    target::{Found, Protocol, Target},
    usage::NodeProcess,
    workload::{self, Making},
    world::World,
};

/// Most samples that wait to be compared.
const SAMPLES: usize = 256;
/// Intervals of a target's turn: as many as a plot shows well. None is shorter than the first bound (about the life of
/// a snapshot, whose age would otherwise go up and down with the intervals) or longer than the second.
const INTERVALS: u32 = 120;
const INTERVAL: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// Runs a test. `command` is the command line as the report shows it.
///
/// # Errors
///
/// Returns an error if a target cannot be reached or lacks what the requests need, or if `--bodies` cannot be read.
pub async fn run(args: &Args, command: Vec<String>) -> Result<Report> {
    let started = httpdate::fmt_http_date(SystemTime::now());
    let recorded = recorded(args)?;
    let mut found = Vec::new();
    for (place, url) in args.urls.iter().enumerate() {
        let found_here = find(args, url, name(place)).await?;
        let process = args.node_pid.get(place).and_then(|pid| NodeProcess::by_id(*pid)).or(found_here.process);
        found.push(Found { process, ..found_here });
    }
    let reference = match &args.reference {
        Some(url) => Some(find(args, url, "reference".to_owned()).await.wrap_err("--reference")?),
        None => None,
    };
    let references: Vec<Option<Reference>> =
        found.iter().map(|found| reference_of(found, reference.as_ref())).collect();
    let bodies = Arc::new(make(args, recorded, &found[0].target).await?);
    let stop = Arc::new(AtomicBool::new(false));
    tokio::spawn(stop_at_interrupt(stop.clone()));

    let targets: Vec<Target> = found.iter().map(|found| found.target.clone()).collect();
    let (samples, sampled) = mpsc::channel(SAMPLES);
    let checker = tokio::spawn(Checker::new(&targets, references, args.timeout).run(sampled));

    let parts = parts(args);
    let length: Duration = parts.iter().map(|part| args.warmup + part.duration).sum();
    let turn: Duration = parts.iter().map(|part| part.duration).sum();
    let mut progress = Progress::new(length * args.rounds() * found.len() as u32);
    let mut runs: Vec<Vec<Turn>> = found.iter().map(|_| Vec::new()).collect();
    let mut first_id = 0;
    'all: for round in 0..args.rounds() {
        for (place, found) in found.iter().enumerate() {
            let mut outcomes = Vec::new();
            for part in &parts {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let segment = Segment {
                    place,
                    target: found.target.clone(),
                    process: found.process,
                    bodies: bodies.clone(),
                    load: part.load,
                    threads: args.threads as usize,
                    connections: part.connections,
                    max_outstanding: args.max_outstanding as usize,
                    warmup: args.warmup,
                    duration: part.duration,
                    interval: interval(turn, part.duration),
                    timeout: args.timeout,
                    sample: args.check_sample,
                    dating: found.presim && !args.no_dating,
                    seed: args.seed,
                    first_id,
                    stop: stop.clone(),
                    newest: Arc::new(AtomicU64::new(0)),
                    samples: samples.clone(),
                };
                progress.begin(what(args, found, round, part));
                let pending =
                    bodies.kinds.iter().any(|(.., bodies)| bodies.iter().any(|body| body.tag == Some(Tag::Pending)));
                let outcome = segment::run(&segment, found.presim && pending && !args.no_watch, &mut progress).await?;
                // The ids go on, so that no wallet batch repeats one that was sent before.
                first_id += outcome.sent.saturating_mul(2) + 1;
                outcomes.push((*part, outcome));
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
    let checked = checker.await.wrap_err("the checker panicked")?;
    progress.end();

    let mut notes = notes(args, &found, reference.as_ref());
    let rounds: Vec<Vec<Round>> =
        runs.iter().map(|turns| turns.iter().map(findings::round).collect()).collect::<Result<_, _>>()?;
    let ratios = findings::ratios(&found, &rounds);
    let mut targets = Vec::new();
    for (((found, turns), rounds), checked) in found.into_iter().zip(runs).zip(rounds).zip(checked) {
        let ratio = ratios.first().filter(|_| targets.is_empty()).map(|ratio| ratio.throughput.median);
        let finished = Finished { found, turns, rounds, checked, ratio };
        targets.push(findings::target_report(args, finished, &bodies, &mut notes)?);
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
    // `Args::check` allows at most 26 targets.
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
    let block = rpc.call("eth_getBlockByNumber", json!(["0x0", false])).await.unwrap_or_default();
    let genesis = block["hash"].as_str().map(str::to_owned);
    let process = match target.protocol {
        Protocol::Lines => NodeProcess::listening_at(&target.path).await,
        _ => NodeProcess::listening_on(&target.host, target.port),
    };
    Ok(Found { target, client, presim, chain_id, genesis, process })
}

/// Returns the reference of a target: the named node, else the target itself if it can be asked about a state again.
fn reference_of(found: &Found, named: Option<&Found>) -> Option<Reference> {
    match named {
        Some(named) => {
            let same_chain = named.genesis.is_none() || found.genesis.is_none() || named.genesis == found.genesis;
            Some(Reference { target: named.target.for_calls(), same_chain })
        }
        None => found.presim.then(|| Reference { target: found.target.for_calls(), same_chain: true }),
    }
}

/// Reads the recorded bodies, and returns them with their index in the mix.
fn recorded(args: &Args) -> Result<Option<(usize, Vec<body::Body>)>> {
    let place = args.mix().0.iter().position(|(workload, _)| *workload == Workload::Recorded);
    match (&args.bodies, place) {
        (Some(path), Some(place)) => Ok(Some((place, body::read(path, place, args.tag, args.max_body_bytes)?))),
        _ => Ok(None),
    }
}

async fn make(args: &Args, recorded: Option<(usize, Vec<body::Body>)>, target: &Target) -> Result<Bodies> {
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
    if let Some((place, bodies)) = recorded {
        kinds[place] = bodies;
    }
    let kinds = mix.0.iter().zip(kinds).map(|((workload, weight), bodies)| (workload.to_string(), *weight, bodies));
    Ok(Bodies { kinds: kinds.collect() })
}

/// Returns the loads of a turn with their durations.
fn parts(args: &Args) -> Vec<Part> {
    let poisson = args.arrivals == Arrivals::Poisson;
    let open = |rate| LoopKind::Open { rate, poisson };
    if let Some(steps) = &args.steps {
        let part = |rate: &f64| Part {
            load: open(Rate::constant(*rate)),
            connections: args.connections(),
            duration: args.step_duration,
        };
        return steps.0.iter().map(part).collect();
    }
    if let Some(steps) = &args.connection_steps {
        let part = |connections: &usize| Part {
            load: LoopKind::Closed,
            connections: *connections,
            duration: args.step_duration,
        };
        return steps.0.iter().map(part).collect();
    }
    let load = match (args.rate, args.ramp) {
        (Some(rate), _) => open(Rate::constant(rate)),
        (None, Some(Ramp { from, to })) => open(Rate { from, to }),
        (None, None) => LoopKind::Closed,
    };
    vec![Part { load, connections: args.connections(), duration: args.duration }]
}

fn what(args: &Args, found: &Found, round: u32, part: &Part) -> String {
    let round = if args.rounds() > 1 { format!(" round {}", round + 1) } else { String::new() };
    let load = match part.constant_rate() {
        Some(rate) => format!(" at {rate:.0}/s"),
        None if args.connection_steps.is_some() => format!(" on {}", plural(part.connections, "connection")),
        None => String::new(),
    };
    format!("{}{round}{load}", found.target.name)
}

/// Returns the length of the plots' intervals, equal in a part because a shorter last one would look like a fall.
fn interval(turn: Duration, part: Duration) -> Duration {
    let wanted = (turn / INTERVALS).clamp(INTERVAL.0, INTERVAL.1);
    let count = (part.as_secs_f64() / wanted.as_secs_f64()).round().max(1.0);
    // Rounded up, so that there is no remainder.
    part.div_f64(count) + Duration::from_nanos(1)
}

/// Describes the load in a sentence.
fn describe(args: &Args) -> String {
    let spread = if args.arrivals == Arrivals::Poisson { "Poisson arrivals" } else { "evenly spaced arrivals" };
    let threads = plural(args.threads as usize, "thread");
    let connections = match &args.connection_steps {
        Some(_) => threads,
        None => format!("{}, {threads}", plural(args.connections(), "connection")),
    };
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
        _ => match &args.connection_steps {
            Some(steps) => {
                let steps: Vec<String> = steps.0.iter().map(usize::to_string).collect();
                format!("closed loop on {} connections, {:?} each", steps.join(", "), args.step_duration)
            }
            None => format!("closed loop for {duration:?}"),
        },
    };
    let tag = match (args.tag, &args.bodies) {
        (Some(tag), _) => format!(", at {tag}"),
        (None, None) => ", at pending".to_owned(),
        (None, Some(_)) => String::new(),
    };
    let warmup = if args.warmup.is_zero() { String::new() } else { format!(", after {:?} of warm-up", args.warmup) };
    format!("{load}, {connections}{tag}{warmup}")
}

fn notes(args: &Args, found: &[Found], reference: Option<&Found>) -> Vec<String> {
    let mut notes = Vec::new();
    for found in found.iter().filter(|found| reference_of(found, reference).is_some_and(|known| !known.same_chain)) {
        notes.push(format!(
            "The reference's block 0 is not that of {}: answers at latest are compared by block number, and of simulations what the calls did \
             (status, return data, gas, logs) without the headers of their blocks.",
            found.target
        ));
    }
    if reference.is_some_and(|reference| !reference.presim) && args.tag != Some(Tag::Latest) {
        notes.push(
            "The reference is not presim, so that it knows no snapshots: answers at pending are not compared (--tag latest).".to_owned(),
        );
    }
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
    if !args.no_dating && found.iter().any(|found| found.presim) && found.iter().any(|found| !found.presim) {
        notes.push(
            "With batches, and over a WebSocket, presim alone is asked for its snapshot as well: --no-dating has all targets answer the same."
                .to_owned(),
        );
    }
    if found.iter().any(|other| other.chain_id != found[0].chain_id) {
        notes.push(
            "The targets have different chain ids: their answers, and their work, may not be the same.".to_owned(),
        );
    }
    notes
}

/// Ends the run with its report at the first Ctrl-C, and the process at the second.
async fn stop_at_interrupt(stop: Arc<AtomicBool>) {
    if tokio::signal::ctrl_c().await.is_err() {
        return;
    }
    eprintln!("ending early: the report follows; press Ctrl-C again to quit at once");
    stop.store(true, Ordering::Relaxed);
    if tokio::signal::ctrl_c().await.is_ok() {
        std::process::exit(130);
    }
}
