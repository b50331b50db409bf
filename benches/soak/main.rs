//! The memory of a node under a mixed load, and whether it levels off: `cargo bench --bench soak`.
//!
//! A devnet in a process of its own builds sub-blocks with traffic, while clients call, simulate, search, subscribe and
//! let bundles stand, of which every second client goes away without a word. Resident memory is sampled each second. It
//! must stay below a ceiling, and must not grow any more from the tenth minute on.
//!
//! A run takes 30 minutes. `-- --minutes N` is a shorter one, which must level off after a third of its time and retains
//! states, blocks and bundles for less, and `--ceiling-mb N` sets another ceiling. `cargo bench` alone leaves this bench
//! out.

mod clients;
mod curve;
#[path = "../world/process.rs"]
mod process;

use std::{
    env,
    time::{Duration, Instant},
};

use crate::{
    clients::Load,
    curve::{Curve, Sample},
    process::NodeProcess,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The length of a run in minutes.
const MINUTES: f64 = 30.;
/// The ceiling of resident memory in MiB.
const CEILING: f64 = 1_024.;
/// The time of a block of the devnet in seconds.
const BLOCK: f64 = 2.;

fn main() {
    if env::args().any(|arg| arg == "--test" || arg == "--list") {
        return;
    }
    let minutes = argument("--minutes").unwrap_or(MINUTES);
    let ceiling = argument("--ceiling-mb").unwrap_or(CEILING);
    let seconds = (60. * minutes).max(10.) as u64;
    // States, blocks and bundles that were left are dropped in time to show that memory levels off.
    let kept = (curve::settled(seconds as f64) / 3.).max(BLOCK);
    let [blocks, time] = [kept / BLOCK, kept].map(|number| format!("{number:.0}"));
    let kept = ["--keep-blocks", &blocks, "--keep-history", &blocks, "--watch-keep-s", &time];
    let node = NodeProcess::start(&[&["--traffic", "8"], &kept[..]].concat());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a thread");
    let curve = runtime.block_on(soak(&node, seconds));
    curve.write();
    curve.print();
    curve.judge(ceiling);
}

/// Returns the number that follows an argument.
fn argument(name: &str) -> Option<f64> {
    let given = env::args().skip_while(|arg| arg != name).nth(1)?;
    Some(given.parse().unwrap_or_else(|_| panic!("{name} {given}: expected a number")))
}

/// Loads the node for this many seconds, and samples its memory each second.
async fn soak(node: &NodeProcess, seconds: u64) -> Curve {
    let load = Load::begin(node.listen);
    let (began, mut curve) = (Instant::now(), Curve::default());
    for second in 1..=seconds {
        tokio::time::sleep(Duration::from_secs(second).saturating_sub(began.elapsed())).await;
        let memory = node.resident() >> 20;
        curve.add(Sample { seconds: began.elapsed().as_secs_f64(), memory: memory as f64 });
        if second % (seconds / 20).max(1) == 0 {
            println!("  {second:>5} of {seconds} s: {memory:>5} MiB; {}", load.done());
        }
    }
    curve
}
