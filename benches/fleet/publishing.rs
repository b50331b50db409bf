//! The way of a snapshot from the ingester to its replicas, and what it costs.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use presim::testing::ledger::{SnapshotId, Snapshots};
use support::{
    TestNode,
    figures::{self, percentiles, verdict},
    nats::NatsServer,
};

use crate::{
    Chain, Extent, FLEET, SUB_BLOCKS, ingester, median,
    process::{Histogram, NodeProcess, PUBLISHING, cpu_of},
    replica, serve,
};

/// The snapshots at the beginning that are not counted, while caches fill.
const FIRST: usize = 10;

/// Measures the time from the making of a snapshot, after which the ingester publishes it, to its being visible on a replica.
///
/// Both nodes are in this process, so that they have one clock and the times are read where they arise.
pub fn visible(extent: Extent) {
    let runtime = runtime();
    let mut worst = Vec::new();
    for _ in 0..extent.runs {
        let server = serve();
        let url = server.url();
        let flags = ["--log", "warn"];
        let chain = Chain::busy(SUB_BLOCKS);
        let publishing = chain.publishing(&url);
        let publishing: Vec<&str> = publishing.iter().map(String::as_str).collect();
        let leader = TestNode::start(&[&publishing[..], &flags].concat());
        let replica = TestNode::start(&[&["--follow", &url], &flags[..]].concat());
        let times = runtime.block_on(follow(leader.node.snapshots(), replica.node.snapshots(), extent.sub_blocks));
        let published = leader.node.snapshots().load();
        let blocks: Vec<usize> = published.blocks(1, u64::MAX).map(|block| block.body().transactions.len()).collect();
        let each = blocks.iter().sum::<usize>() / (blocks.len() * SUB_BLOCKS);
        println!("  {each} transactions in each sub-block");
        let (opening, grown): (Vec<_>, Vec<_>) = times.iter().partition(|(opens, _)| *opens);
        let part = |times: Vec<(bool, Duration)>| percentiles(times.into_iter().map(|(_, time)| time).collect());
        println!("  sub-blocks that end no block:");
        part(grown);
        println!("  those that open a block on a canonical one, whose roots the replica checks:");
        part(opening);
        println!("  all:");
        worst.push(part(times));
    }
    verdict("publish to visible on a replica, ms at p99", median("ms at p99 of each run", worst), 8.0);
}

/// Returns the times of `count` snapshots from the leader to the replica, and whether each opens a block on one that was sealed.
async fn follow(leader: &Snapshots, replica: &Snapshots, count: usize) -> Vec<(bool, Duration)> {
    let (mut made, mut seen) = (BTreeMap::new(), BTreeMap::new());
    let (mut last_made, mut last_seen) = (SnapshotId::default(), replica.newest().id);
    let mut changes = replica.changes();
    while seen.len() < FIRST + count {
        changes.changed().await.expect("the replica follows");
        let now = Instant::now();
        for snapshot in replica.load().snapshots_after(last_seen) {
            seen.insert(snapshot.id, (snapshot.index() == 0, now));
            last_seen = snapshot.id;
        }
        for snapshot in leader.load().snapshots_after(last_made) {
            made.insert(snapshot.id, snapshot.published);
            last_made = snapshot.id;
        }
    }
    // The replica may see the last ones before the leader shows them.
    let times = seen.into_iter().skip(FIRST).filter_map(|(id, (opens, seen))| {
        let made = made.get(&id)?;
        Some((opens, seen.saturating_duration_since(*made)))
    });
    times.collect()
}

/// Sums since the start of a node.
#[derive(Clone, Copy)]
struct Usage {
    /// Seconds of publishing.
    publishing: f64,
    snapshots: f64,
    /// Seconds of CPU time.
    cpu: f64,
}

impl Usage {
    fn of(node: &NodeProcess) -> Self {
        let (publishing, snapshots) = node.publishing();
        Self { publishing, snapshots, cpu: node.cpu().as_secs_f64() }
    }

    /// Returns the milliseconds of publishing and of CPU time for each snapshot since an earlier moment.
    fn each_since(self, earlier: Self) -> (f64, f64) {
        let snapshots = (self.snapshots - earlier.snapshots).max(1.0);
        (1e3 * (self.publishing - earlier.publishing) / snapshots, 1e3 * (self.cpu - earlier.cpu) / snapshots)
    }
}

/// Measures the ingester without replicas and with three, in turn.
pub fn cost(extent: Extent) {
    let server = serve();
    let url = server.url();
    let chain = Chain::busy(SUB_BLOCKS);
    let node = ingester(&chain.publishing(&url), &[]);
    wait(&node, FIRST);
    let (mut times, mut cpus) = (Vec::new(), Vec::new());
    let (mut alone, mut with, mut replicas_use) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..extent.runs {
        let (without, _) = phase(&node, &server, extent.sub_blocks, &[]);
        let replicas = [(); 3].map(|()| replica(&url, &[]));
        wait(&node, FIRST);
        let (among, each) = phase(&node, &server, extent.sub_blocks, &replicas);
        times.push(among.time - without.time);
        cpus.push(among.cpu - without.cpu);
        replicas_use.extend(each);
        alone.push(without);
        with.push(among);
    }
    let of = |phases: &[Phase], value: fn(&Phase) -> f64| figures::median(phases.iter().map(value).collect());
    let line = |name: &str, phases: &[Phase]| {
        let [time, cpu, server] = [of(phases, |one| one.time), of(phases, |one| one.cpu), of(phases, |one| one.server)];
        println!("  {name}: {time:.2} ms to publish, CPU of {cpu:.2} ms; nats-server: CPU of {server:.2} ms");
    };
    println!("  medians for each snapshot");
    line("ingester alone", &alone);
    line("with three replicas", &with);
    let (time, cpu): (Vec<f64>, Vec<f64>) = replicas_use.into_iter().unzip();
    println!(
        "  each replica: {:.2} ms from arrival to visible, CPU of {:.2} ms",
        figures::median(time),
        figures::median(cpu)
    );
    let state = runtime().block_on(async { server.stream(FLEET).await.cached_info().state.clone() });
    println!("  the stream: {} bytes a message", state.bytes / state.messages.max(1));
    verdict("time to publish that three replicas add, ms", median("rounds", times), 0.5);
    verdict("CPU that three replicas add to the ingester's, ms", median("rounds", cpus), 0.5);
}

/// Compares the publishing of sub-blocks on a replica with that on a node that executes them. The medians are those of sub-blocks that end
/// no block, because one in [`SUB_BLOCKS`] ends one.
pub fn applying(extent: Extent) {
    let (server, chain) = (serve(), Chain::busy(SUB_BLOCKS));
    let single = ingester(&chain.devnet.flags(), &[]);
    let _leader = ingester(&chain.publishing(&server.url()), &[]);
    let both = [replica(&server.url(), &[]), single];
    let mut ratios = Vec::new();
    for _ in 0..extent.runs {
        let begun = both.each_ref().map(|node| node.histogram(PUBLISHING));
        wait(&both[0], both[0].publishing().1 as usize + extent.sub_blocks);
        let [applying, executing] = [0, 1].map(|at| {
            let mut times = Histogram::default();
            times.add(&both[at].histogram(PUBLISHING), &begun[at]);
            1e3 * times.percentile(0.5)
        });
        println!("  {applying:.2} ms to apply a message, {executing:.2} ms to execute a sub-block");
        ratios.push(applying / executing);
    }
    verdict("applying beside executing", median("ratios of the runs", ratios), 0.2);
}

/// Means of a phase for each snapshot, in milliseconds.
#[derive(Clone, Copy)]
struct Phase {
    time: f64,
    cpu: f64,
    /// CPU time of `nats-server`.
    server: f64,
}

/// Runs `count` sub-blocks. Returns what they took the ingester and the server, and each of the replicas.
fn phase(node: &NodeProcess, server: &NatsServer, count: usize, replicas: &[NodeProcess]) -> (Phase, Vec<(f64, f64)>) {
    let begun = (Usage::of(node), cpu_of(&server.child));
    let followed: Vec<Usage> = replicas.iter().map(Usage::of).collect();
    wait(node, begun.0.snapshots as usize + count);
    let ended = (Usage::of(node), cpu_of(&server.child));
    let (time, cpu) = ended.0.each_since(begun.0);
    let server = 1e3 * (ended.1 - begun.1).as_secs_f64() / (ended.0.snapshots - begun.0.snapshots);
    let each = replicas.iter().zip(followed);
    let each = each.map(|(node, begun)| Usage::of(node).each_since(begun));
    (Phase { time, cpu, server }, each.collect())
}

/// Waits until a node has published so many snapshots.
fn wait(node: &NodeProcess, count: usize) {
    while node.publishing().1 < count as f64 {
        thread::sleep(Duration::from_millis(100));
    }
}

/// Returns a runtime for what the bench asks for itself.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a thread")
}
