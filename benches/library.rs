//! The library: a bundle through `presim::Node`, compared with the same bundle on the executor alone; and the time from a
//! publication to a waiting stream, compared with a wake by the `tokio::sync::watch` under it.
//!
//! Both sides take turns, so that disturbances of the machine affect both alike.

mod world;

use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, future::join_all};
use presim::{
    Config, Node,
    simulation::Simulation,
    testing::{
        changes,
        meter::Meter,
        scheduler::{ClientShare, LaneName, RunTarget, Task},
        state::Overlay,
    },
};
use support::figures::median;
use tokio::runtime::Runtime;

use crate::world::{BODIES, BodiesChain, bare::Request, bodies};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of turns of each side.
const ROUNDS: usize = 15;
/// The bundles of a turn, and the publications.
const COUNT: usize = 2_000;
/// The most that the library may cost, as a multiple.
const GOALS: (f64, f64) = (1.03, 1.5);

fn main() {
    let bounds = ["--queue-bundle", "65536", "--queue-wait-ms", "60000", "--overload-wait", "100", "--workers", "2"];
    let Some(chain) = BodiesChain::start(&[&bounds[..], &["--deadline-ms", "60000"]].concat()) else { return };
    let runtime = Runtime::new().expect("threads");
    let genesis = std::path::Path::new(BODIES).join("genesis.json");
    let node = bounds.chunks(2).fold(Config::genesis(genesis), |config, pair| config.with(&pair[0][2..], pair[1]));
    let node =
        node.with("feed", "static").with("deadline-ms", 60_000).with("gas-cap", 1_u64 << 40).with("prefix-cache-mb", 0);
    let node = runtime.block_on(Node::start(node)).expect("it starts");
    if std::env::args().any(|arg| ["--test", "--list"].contains(&arg.as_str())) {
        return;
    }
    println!("{COUNT} bundles at once, {ROUNDS} interleaved rounds; medians, ratios with quartiles");
    let chain = Arc::new(chain);
    for name in ["sim_swap", "sim_sandwich"] {
        let Some(bodies) = bodies(name) else { continue };
        let sims: Vec<Arc<Simulation>> =
            bodies.into_iter().map(|body| Arc::new(Request::new(&chain, body).sim)).collect();
        let (mut library, mut executor) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            library.push(runtime.block_on(through_library(&node, &sims)));
            executor.push(runtime.block_on(through_executor(&chain, &sims)));
        }
        show(name, library, executor, GOALS.0);
    }
    runtime.block_on(node.stop());
    let (mut stream, mut bare) = (Vec::new(), Vec::new());
    let (node, mut feeder) = runtime.block_on(Node::start_fed(Config::default())).expect("it starts");
    let node = Arc::new(node);
    for _ in 0..ROUNDS {
        stream.push(runtime.block_on(from_publication(&node, &mut feeder)));
        bare.push(runtime.block_on(from_waking(&node, &mut feeder)));
    }
    show("watch", stream, bare, GOALS.1);
    // Dropped, it stops in the background.
    drop(node);
}

fn show(name: &str, library: Vec<f64>, other: Vec<f64>, goal: f64) {
    let mut ratios: Vec<f64> = library.iter().zip(&other).map(|(library, other)| library / other).collect();
    ratios.sort_by(f64::total_cmp);
    let (ratio, low, high) = (median(ratios.clone()), ratios[ROUNDS / 4], ratios[ROUNDS - 1 - ROUNDS / 4]);
    let verdict = if ratio <= goal { "met" } else { "MISSED" };
    let [library, other] = [library, other].map(|times| median(times) * 1e6);
    println!("{name:14}{library:>9.1} µs{other:>9.1} µs  {ratio:.3}  {low:.3} to {high:.3}  goal {goal} {verdict}");
}

/// Returns the seconds a bundle through the library.
async fn through_library(node: &Node, sims: &[Arc<Simulation>]) -> f64 {
    let began = Instant::now();
    let jobs = (0..COUNT).map(async |number| black_box(node.simulate(&sims[number % sims.len()]).await).is_ok());
    assert!(join_all(jobs).await.into_iter().all(|ran| ran), "a bundle runs");
    began.elapsed().as_secs_f64() / COUNT as f64
}

/// A bundle on the executor alone.
struct Work(Arc<BodiesChain>, Arc<Simulation>);

impl Task for Work {
    type Answer = ();

    fn name(&self) -> &'static &'static str {
        &"the benchmark"
    }

    fn target(&self) -> RunTarget {
        RunTarget::On(LaneName::Bundle)
    }

    fn run(&self, overlay: &mut Overlay, meter: Meter) {
        self.0.simulate(&self.1, overlay, meter);
    }
}

/// Returns the seconds a bundle on the executor alone.
async fn through_executor(chain: &Arc<BodiesChain>, sims: &[Arc<Simulation>]) -> f64 {
    let (host, client) = (&chain.node.runner().host, ClientShare::new());
    let began = Instant::now();
    let jobs = (0..COUNT).map(|number| {
        let work = Work(chain.clone(), sims[number % sims.len()].clone());
        host.executor.submit(work, host.executor.ticket(&client), host.source.as_ref())
    });
    assert!(join_all(jobs).await.into_iter().all(|done| done.is_ok()), "a bundle runs");
    began.elapsed().as_secs_f64() / COUNT as f64
}

/// Returns the median of the seconds from a publication to a task that waits for the stream.
async fn from_publication(node: &Node, feeder: &mut presim::Feeder) -> f64 {
    let mut stream = node.watch();
    stream.next().await.expect("the newest");
    let mut times = Vec::with_capacity(COUNT / 10);
    for _ in 0..COUNT / 10 {
        let waiting = tokio::spawn(async move {
            let age = stream.next().await.expect("a snapshot").age();
            (stream, age)
        });
        // The task waits before the snapshot is published.
        tokio::time::sleep(Duration::from_micros(300)).await;
        feeder.push([], false).await.expect("it is published");
        let (back, age) = waiting.await.expect("no panic");
        stream = back;
        times.push(age.as_secs_f64());
    }
    median(times)
}

/// Returns the median of the seconds from a publication to a task that waits for the channel on which the node tells of it.
async fn from_waking(node: &Arc<Node>, feeder: &mut presim::Feeder) -> f64 {
    let mut changes = changes(node);
    let mut times = Vec::with_capacity(COUNT / 10);
    for _ in 0..COUNT / 10 {
        changes.mark_unchanged();
        let node = node.clone();
        let waiting = tokio::spawn(async move {
            changes.changed().await.expect("the node runs");
            (changes, node.snapshot().age())
        });
        tokio::time::sleep(Duration::from_micros(300)).await;
        feeder.push([], false).await.expect("it is published");
        let (back, age) = waiting.await.expect("no panic");
        changes = back;
        times.push(age.as_secs_f64());
    }
    median(times)
}
