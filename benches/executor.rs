//! The executor: the cost of passing a job to a worker and back, and two workers compared with two cores of bare revm.
//!
//! `hop` is an empty job from submission to answer, submitted by a task of a runtime like the node's: one at a time,
//! and eight at once as eight connections would. `in_place` is the same job on the caller's thread. The table at the
//! end runs the bodies of `../shared/bench` through the bundle lane, results built but not encoded, and compares two
//! threads that run the same calls in revm only. Both take turns, so that disturbances of the machine affect both
//! alike. Last is the throughput of two workers compared with one, in process, where no client uses a core.

mod world;

use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use criterion::{Criterion, Throughput};
use futures::future::join_all;
use presim::testing::{
    engine::Outputs,
    meter::Meter,
    scheduler::{ClientShare, LaneName, RunTarget, Task},
    state::Overlay,
};
use support::figures::median;
use tokio::runtime::Runtime;

use crate::world::{BodiesChain, bare::Request, bodies};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const WORKERS: usize = 2;
/// The number of concurrent jobs, in benches with several.
const AT_ONCE: usize = 8;
/// The number of turns of each side in the table.
const ROUNDS: usize = 15;
/// The minimum duration of a turn.
const TURN: Duration = Duration::from_millis(300);
/// The minimum throughput, as a share of bare revm's.
const TARGET: f64 = 0.9;
/// The minimum throughput of two workers, as a multiple of one worker's.
const SCALING: f64 = 1.8;

fn main() {
    let Some(chain) = start("2") else { return };
    let runtime = Runtime::new().expect("threads");
    hop(&chain, &runtime);
    if std::env::args().any(|arg| ["--test", "--list", "--profile-time"].contains(&arg.as_str())) {
        return;
    }
    against_bare(&runtime, &chain);
    scaling(&runtime, &chain);
}

/// Starts a node whose executor rejects nothing.
fn start(workers: &str) -> Option<Arc<BodiesChain>> {
    let queues = ["--queue-short", "65536", "--queue-bundle", "65536", "--queue-wait-ms", "60000"];
    let bounds = ["--overload-wait", "100", "--deadline-ms", "60000", "--workers", workers];
    BodiesChain::start(&[queues, bounds].concat()).map(Arc::new)
}

/// Runs work on the executor of a node.
async fn submit<W>(chain: &BodiesChain, client: &Arc<ClientShare>, target: RunTarget, work: W) -> bool
where
    W: Fn(&mut Overlay, Meter) + Send + Sync + 'static,
{
    let host = &chain.node.runner().host;
    host.executor.submit(Work { target, work }, host.executor.ticket(client), host.source.as_ref()).await.is_ok()
}

/// A job for the executor.
struct Work<F> {
    target: RunTarget,
    work: F,
}

impl<F: Fn(&mut Overlay, Meter) + Send + Sync + 'static> Task for Work<F> {
    type Answer = ();

    fn name(&self) -> &'static &'static str {
        &"the benchmark"
    }

    fn target(&self) -> RunTarget {
        self.target
    }

    fn run(&self, overlay: &mut Overlay, meter: Meter) {
        (self.work)(overlay, meter);
    }
}

fn hop(chain: &Arc<BodiesChain>, runtime: &Runtime) {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    let mut group = criterion.benchmark_group("hop");
    for lane in [LaneName::Short, LaneName::Bundle] {
        for at_once in [1, AT_ONCE] {
            group.throughput(Throughput::Elements(at_once as u64));
            group.bench_function(format!("{lane}_{at_once}_at_once"), |bencher| {
                bencher.iter_custom(|rounds| {
                    let chain = chain.clone();
                    runtime
                        .block_on(async { tokio::spawn(empty_jobs(chain, lane, at_once, rounds)).await })
                        .expect("no panic")
                });
            });
        }
    }
    group.throughput(Throughput::Elements(1));
    group.bench_function("in_place", |bencher| {
        let flow = ClientShare::new();
        let work = |overlay: &mut Overlay, _| black_box(overlay).log_numbers.restart();
        bencher.iter(|| runtime.block_on(submit(chain, &flow, RunTarget::Inline, work)));
    });
    group.finish();
    criterion.final_summary();
}

/// Returns the time of `rounds` rounds. Each round submits `at_once` empty jobs and waits for their answers.
async fn empty_jobs(chain: Arc<BodiesChain>, lane: LaneName, at_once: usize, rounds: u64) -> Duration {
    let (start, flow) = (Instant::now(), ClientShare::new());
    for _ in 0..rounds {
        let jobs = (0..at_once).map(|_| {
            let work = |overlay: &mut Overlay, _| {
                black_box(overlay);
            };
            submit(&chain, &flow, RunTarget::On(lane), work)
        });
        assert!(join_all(jobs).await.into_iter().all(|is_done| is_done), "an empty job runs");
    }
    start.elapsed()
}

fn against_bare(runtime: &Runtime, chain: &Arc<BodiesChain>) {
    println!(
        "\n{WORKERS} workers beside {WORKERS} threads of bare revm, {ROUNDS} interleaved rounds; ratios of throughput"
    );
    println!(
        "{:14}{:14}{:>14}{:>14}{:>10}{:>18}{:>8}",
        "", "outputs", "executor", "bare", "ratio", "quartiles", "goal"
    );
    let lean = Outputs::STATUS | Outputs::GAS_USED;
    for (name, outputs, target) in [
        ("sim_swap", Outputs::SIMULATE_V1, TARGET),
        ("sim_sandwich", Outputs::SIMULATE_V1, TARGET),
        ("sim_multi", Outputs::SIMULATE_V1, TARGET),
        ("sim_big", Outputs::SIMULATE_V1, TARGET),
        ("sim_swap", lean, 1.1),
        ("sim_sandwich", lean, 1.4),
    ] {
        let Some(bodies) = bodies(name) else { continue };
        let requests = bodies.into_iter().map(|body| {
            let mut request = Request::new(chain, body);
            request.sim.outputs = outputs;
            request
        });
        let requests: Arc<[Request]> = requests.collect();
        // Enough requests for about one turn, in a multiple of the workers.
        let (start, mut count) = (Instant::now(), 0);
        while start.elapsed() < TURN || count % WORKERS > 0 {
            chain.bare::<false>(&requests[count % requests.len()], |_| {});
            count += 1;
        }
        let count = (count * WORKERS).next_multiple_of(requests.len() * WORKERS);
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ours.push(through_executor(runtime, chain, &requests, count));
            bare.push(on_threads(WORKERS, chain, &requests, count));
        }
        let mut ratios: Vec<f64> = ours.iter().zip(&bare).map(|(ours, bare)| bare / ours).collect();
        ratios.sort_by(f64::total_cmp);
        let ratio = median(ratios.clone());
        let us = |times: Vec<f64>| format!("{:.1} µs", median(times) / count as f64 * 1e6);
        let quartiles = format!("{:.3} to {:.3}", ratios[ROUNDS / 4], ratios[ROUNDS - 1 - ROUNDS / 4]);
        let verdict = if ratio >= target { "met" } else { "MISSED" };
        let shown = if outputs == lean { "status, gas" } else { "all" };
        println!(
            "{name:14}{shown:14}{:>14}{:>14}{ratio:>10.3}{quartiles:>18}{target:>8} {verdict}",
            us(ours),
            us(bare)
        );
    }
}

/// Compares the throughput of two workers with one, and of two threads of bare revm, which share nothing, with one.
fn scaling(runtime: &Runtime, chain: &Arc<BodiesChain>) {
    let Some(bodies) = bodies("sim_big") else { return };
    let requests: Arc<[Request]> = bodies.into_iter().map(|body| Request::new(chain, body)).collect();
    let one = start("1").expect("its genesis is there");
    // Enough requests that the worker which ends last has little effect.
    let count = 8 * AT_ONCE;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let both = through_executor(runtime, chain, &requests, count);
        ours.push(through_executor(runtime, &one, &requests, count) / both);
        let both = on_threads(2, chain, &requests, count);
        bare.push(on_threads(1, chain, &requests, count) / both);
    }
    let [ours, bare] = [ours, bare].map(|mut ratios| {
        ratios.sort_by(f64::total_cmp);
        (median(ratios.clone()), ratios[ROUNDS / 4], ratios[ROUNDS - 1 - ROUNDS / 4])
    });
    let verdict = if ours.0 >= SCALING { "met" } else { "MISSED" };
    println!("\nsim_big, two beside one (median, quartiles); target {SCALING} for workers");
    println!("workers              {:.3}  {:.3} to {:.3}  {verdict}", ours.0, ours.1, ours.2);
    println!("threads of bare revm {:.3}  {:.3} to {:.3}", bare.0, bare.1, bare.2);
}

/// Runs `count` requests through the bundle lane, all queued at once. Returns the seconds taken.
fn through_executor(runtime: &Runtime, chain: &Arc<BodiesChain>, requests: &Arc<[Request]>, count: usize) -> f64 {
    let (start, flow) = (Instant::now(), ClientShare::new());
    let jobs = (0..count).map(|number| {
        let (own, requests) = (chain.clone(), requests.clone());
        let work = move |overlay: &mut Overlay, meter| {
            own.simulate(&requests[number % requests.len()].sim, overlay, meter);
        };
        submit(chain, &flow, RunTarget::On(LaneName::Bundle), work)
    });
    let done = runtime.block_on(join_all(jobs));
    assert!(done.into_iter().all(|is_done| is_done), "a request runs");
    start.elapsed().as_secs_f64()
}

/// Runs `count` requests in bare revm; each thread takes the next request when it is free. Returns the seconds taken.
fn on_threads(threads: usize, chain: &BodiesChain, requests: &[Request], count: usize) -> f64 {
    let (start, next) = (Instant::now(), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= count {
                        break;
                    }
                    chain.bare::<false>(&requests[number % requests.len()], |_| {});
                }
            });
        }
    });
    start.elapsed().as_secs_f64()
}
