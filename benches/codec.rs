//! The throughput of JSON parsing and encoding, in bytes a second.
//!
//! Runs the bodies of `../shared/bench`. `parse` turns the text of a request, envelope and parameters, into the input
//! of the engine. `encode` turns the engine's output into the text of the result.

mod world;

use std::{hint::black_box, time::Duration};

use criterion::{BenchmarkId, Criterion, Throughput};
use jsonrpsee::types::Request;
use presim::testing::{
    engine::{Outputs, Simulated, Simulation},
    rpc::{self, dialect::PRESIM},
    state::Overlay,
};

use crate::world::{BodiesChain, Body, MAX_RESPONSE, SHAPE, bodies};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const WORKLOADS: [&str; 6] = ["call_balance", "call_quote", "sim_swap", "sim_sandwich", "sim_override", "sim_big"];

fn main() {
    let Some(chain) = BodiesChain::load() else { return };
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_millis(1500))
        .configure_from_args();
    for name in WORKLOADS {
        let Some(bodies) = bodies(name) else { continue };
        parse(&mut criterion, name, &bodies);
        if bodies.iter().all(|body| body.method.info.name == "eth_simulateV1") {
            let simulated = bodies.iter().map(|body| chain.simulate(&simulation(body), &mut Overlay::default()));
            encode(&mut criterion, name, &simulated.collect::<Vec<_>>());
        }
    }
    criterion.final_summary();
}

fn parse(criterion: &mut Criterion, name: &str, bodies: &[Body]) {
    let mut group = criterion.benchmark_group("parse");
    group.throughput(Throughput::Bytes(bodies.iter().map(|body| body.text.len() as u64).sum()));
    group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
        bencher.iter(|| bodies.iter().for_each(parse_one));
    });
    group.finish();
}

fn parse_one(body: &Body) {
    let request: Request<'_> = serde_json::from_str(&body.text).expect("one request");
    let params = request.params.as_ref().expect("it has parameters").get();
    match &*request.method {
        "eth_call" => drop(black_box(rpc::parse_call(params, &PRESIM).expect("a call"))),
        "eth_simulateV1" => {
            drop(black_box(rpc::parse_simulation(params, &PRESIM, &SHAPE).expect("a simulation")));
        }
        method => panic!("no workload has {method:?}"),
    }
}

fn simulation(body: &Body) -> Simulation {
    rpc::parse_simulation(body.params.get(), &PRESIM, &SHAPE).expect("a simulation").simulation
}

fn encode(criterion: &mut Criterion, name: &str, simulated: &[Simulated]) {
    let mut out = Vec::new();
    let view = rpc::SimulationView {
        dialect: &PRESIM,
        names_fork: true,
        outputs: Outputs::SIMULATE_V1,
        full_transactions: false,
        errors: None,
        reads: None,
        limit: MAX_RESPONSE,
    };
    let mut write = |simulated: &Simulated| {
        out.clear();
        rpc::write_simulation(&mut out, simulated, &view).expect("it is short enough");
        black_box(&out).len()
    };
    let bytes: usize = simulated.iter().map(&mut write).sum();
    let mut group = criterion.benchmark_group("encode");
    group.throughput(Throughput::Bytes(bytes as u64));
    group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
        bencher.iter(|| simulated.iter().map(&mut write).sum::<usize>());
    });
    group.finish();
}
