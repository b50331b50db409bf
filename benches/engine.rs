//! The cost of a simulation, compared with revm alone on the same calls.
//!
//! Runs the bodies of `../shared/bench`, one request each, on their genesis. `engine` is [`engine::simulate`] in a
//! reused overlay, with all results built. `bare_revm` is the lower bound: the same calls in the same order on a
//! `CacheDB`, committed, with their results dropped. `answer` is a worker's part of a request: parse, simulate, encode.
//! The computations of [`world::computations`] run in the same ways, each as one call of 3,000,000 gas to an account whose code is
//! overridden.

mod world;

use std::time::{Duration, Instant};

use alloy_primitives::hex;
use criterion::{Criterion, Throughput};
use presim::testing::state::Overlay;
use serde_json::json;
use support::figures::median;

use crate::world::{BodiesChain, Body, bare::Request, bodies, computations::computations, meter, parse_body};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const WORKLOADS: [&str; 4] = ["sim_swap", "sim_sandwich", "sim_multi", "sim_big"];
/// The maximum cost of presim, as a multiple of bare revm.
const TARGET: f64 = 1.25;

fn main() {
    let Some(chain) = BodiesChain::start(&[]) else { return };
    let mut criterion = Criterion::default()
        .sample_size(15)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1200))
        .configure_from_args();
    // When profiling, the comparison is skipped, so that the profile shows only the benches.
    let profiling = std::env::args().any(|argument| argument == "--profile-time");
    let mut ratios = Vec::new();
    let mut workloads = Vec::new();
    for name in WORKLOADS {
        let Some(bodies) = bodies(name) else { continue };
        workloads.push((name, bodies));
    }
    workloads.extend(computations().into_iter().map(|(name, code)| (name, vec![call(&code)])));
    for (name, bodies) in workloads {
        let requests: Vec<Request> = bodies.into_iter().map(|body| Request::new(&chain, body)).collect();
        bench(&mut criterion, name, &chain, &requests);
        if !profiling {
            ratios.push((name, interleaved(&chain, &requests)));
        }
    }
    println!(
        "\ntimes a body, medians of {ROUNDS} interleaved rounds (bare+system: with the system calls of each block)"
    );
    println!("{:14}{:>12}{:>12}{:>14}{:>12}{:>18}", "", "engine", "bare", "bare+system", "answer", "engine, no trace");
    for (name, [engine, bare, system, answer, untraced]) in &ratios {
        let us = |time: &f64| format!("{:.1} µs", time * 1e6);
        println!("{name:14}{:>12}{:>12}{:>14}{:>12}{:>18}", us(engine), us(bare), us(system), us(answer), us(untraced));
    }
    println!("\nratios, target engine/bare at most {TARGET}");
    for (name, [engine, bare, system, answer, untraced]) in &ratios {
        let verdict = if engine / bare <= TARGET { "met" } else { "MISSED" };
        println!(
            "{name:14} engine/bare {:.3} ({verdict})   engine/(bare+system) {:.3}   no trace/(bare+system) {:.3}   answer/engine {:.3}",
            engine / bare,
            engine / system,
            untraced / system,
            answer / engine
        );
    }
    criterion.final_summary();
}

fn call(code: &[u8]) -> Body {
    let to = "0xc0de000000000000000000000000000000000000";
    let block = json!({
        "stateOverrides": {to: {"code": hex::encode_prefixed(code)}},
        "calls": [{"to": to, "gas": "0x2dc6c0"}],
    });
    let params = json!([{"blockStateCalls": [block]}, "pending"]);
    parse_body(&json!({"jsonrpc": "2.0", "id": 1, "method": "eth_simulateV1", "params": params}).to_string())
}

fn bench(criterion: &mut Criterion, name: &str, chain: &BodiesChain, requests: &[Request]) {
    let calls: usize = requests.iter().map(Request::calls).sum();
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Elements(calls as u64));
    let mut overlay = Overlay::of_thread();
    group.bench_function("engine", |bencher| {
        bencher.iter(|| requests.iter().for_each(|request| chain.simulate(&request.sim, &mut overlay, meter())));
    });
    group.bench_function("bare_revm", |bencher| {
        bencher.iter(|| requests.iter().for_each(|request| chain.bare::<false>(request, |_| {})));
    });
    let mut out = Vec::new();
    group.bench_function("answer", |bencher| {
        bencher.iter(|| requests.iter().for_each(|request| chain.answer(&request.body, &mut overlay, &mut out)));
    });
    group.finish();
}

const ROUNDS: usize = 9;

/// Returns the seconds per request of: engine, bare revm, bare revm with system calls, answer, engine without traced
/// transfers. Each round runs all of them in turn, so that disturbances of the machine affect all alike.
fn interleaved(chain: &BodiesChain, requests: &[Request]) -> [f64; 5] {
    let untraced = requests.iter().map(|request| {
        let mut sim = request.sim.clone();
        sim.trace_transfers = false;
        sim
    });
    let untraced: Vec<_> = untraced.collect();
    let (mut overlay, mut out) = (Overlay::of_thread(), Vec::new());
    let mut rounds: [Vec<f64>; 5] = Default::default();
    for _ in 0..ROUNDS {
        let times = [
            time(requests, |request| chain.simulate(&request.sim, &mut overlay, meter())),
            time(requests, |request| chain.bare::<false>(request, |_| {})),
            time(requests, |request| chain.bare::<true>(request, |_| {})),
            time(requests, |request| chain.answer(&request.body, &mut overlay, &mut out)),
            time(&untraced, |sim| chain.simulate(sim, &mut overlay, meter())),
        ];
        rounds.iter_mut().zip(times).for_each(|(all, time)| all.push(time));
    }
    rounds.map(median)
}

fn time<T>(items: &[T], mut run: impl FnMut(&T)) -> f64 {
    const AT_LEAST: Duration = Duration::from_millis(60);
    let (start, mut passes) = (Instant::now(), 0);
    while passes == 0 || start.elapsed() < AT_LEAST {
        items.iter().for_each(&mut run);
        passes += items.len();
    }
    start.elapsed().as_secs_f64() / passes as f64
}
