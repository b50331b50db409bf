//! Runs a script of a fleet.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use crate::{
    config::Config,
    fleet::servers::Bucket,
    ledger::{FeedState, Selector, SnapshotId},
};
use alloy_primitives::B256;
use tokio::{
    task::LocalSet,
    time::{Instant, sleep},
};

use super::{
    super::{
        record::{ALIVE, Broken, fingerprint},
        shrink::{Simulated, Violation},
    },
    chain::SimChain,
    node::{FleetClock, Shown, SimNode},
    script::{FleetFault, FleetScript, FleetStep, INGESTERS},
    servers::{FleetMutant, ModelPort, NODES, Servers, SharedServers, lock},
};
use crate::faults::disk::Disk;

const IDS: &str = "an id names one state on all nodes";
/// The last change of a node never goes back, and its newest snapshot only where messages were lost that the next leader has
/// not read: the stream or its oldest messages were deleted, or nobody can read one.
const BACK: &str = "no node goes back";
const FIRST: &str = "the stream has what anyone is shown";
const ORDER: &str = "the stream holds each id once, in order, and an epoch first";
/// The time between two looks at what the nodes show.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// The time after the faults in which all nodes must have the state of one leader, which goes on.
const RECOVERY: Duration = Duration::from_secs(120);

/// Totals of runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetCounts {
    pub steps: usize,
    /// The ids that were shown by any node, counted once.
    pub shown: usize,
    /// The epochs of the stream.
    pub takeovers: usize,
    pub kills: usize,
    /// The longest time after the faults until all was well, in milliseconds.
    pub recovery_ms: u128,
    /// The scripts about each fault.
    pub scripts: BTreeMap<FleetFault, usize>,
    /// The steps with each fault.
    pub faults: BTreeMap<String, usize>,
}

impl FleetCounts {
    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.shown += other.shown;
        self.takeovers += other.takeovers;
        self.kills += other.kills;
        self.recovery_ms = self.recovery_ms.max(other.recovery_ms);
        other.scripts.iter().for_each(|(fault, count)| *self.scripts.entry(*fault).or_default() += count);
        other.faults.iter().for_each(|(fault, count)| *self.faults.entry(fault.clone()).or_default() += count);
    }
}

impl fmt::Display for FleetCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, shown, takeovers, kills, recovery_ms, scripts, faults } = self;
        write!(f, "{steps} steps, {shown} snapshots shown, {takeovers} epochs, {kills} kills, ")?;
        write!(f, "at most {recovery_ms} ms until all was well again\nscripts of fleets:")?;
        scripts.iter().try_for_each(|(fault, count)| write!(f, " {fault:?} {count}"))?;
        write!(f, "\nfaults of fleets:")?;
        faults.iter().try_for_each(|(fault, count)| write!(f, " {fault} {count}"))
    }
}

/// Runs a script, and then lets the fleet go on without faults.
///
/// # Errors
///
/// Returns the [`Violation`] of the first invariant that does not hold.
pub fn run_fleet(script: &FleetScript, mutant: FleetMutant) -> Result<FleetCounts, Violation> {
    let mut step = 0;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let nodes = LocalSet::new();
        nodes.block_on(&runtime, async {
            let mut fleet = SimFleet::start(script, mutant).await?;
            for (index, what) in script.steps.iter().enumerate() {
                step = index;
                fleet.step(*what).await?;
            }
            step = script.steps.len();
            fleet.finish().await
        })
    }));
    let broken = match ran {
        Ok(Ok(counts)) => return Ok(counts),
        Ok(Err(broken)) => broken,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            (
                "nothing panics",
                text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default(),
            )
        }
    };
    Err(Violation { invariant: broken.0, text: broken.1, step })
}

struct SimFleet {
    chain: Arc<SimChain>,
    clock: Arc<FleetClock>,
    servers: SharedServers,
    nodes: Vec<SimNode>,
    /// The disks of the nodes that publish, at the beginning.
    old: Vec<Disk>,
    /// A hash of the state that was shown under each id.
    ids: BTreeMap<SnapshotId, B256>,
    /// The ids of the last change and of the newest snapshot that each node has shown last.
    last: [(SnapshotId, SnapshotId); NODES],
    /// The nodes whose disk has failed.
    failed: BTreeSet<usize>,
    counts: FleetCounts,
}

/// Returns the settings of a node.
fn config(node: usize, flags: &[String]) -> Config {
    let place = if node < INGESTERS { "--publish" } else { "--follow" };
    let mut all =
        vec!["presim".into(), place.into(), "nats://127.0.0.1:1".into(), "--fleet".into(), "simulated".into()];
    if node < INGESTERS {
        all.extend(["--upstream", "http://127.0.0.1:1", "--flashblocks-ahead", "1"].map(Into::into));
    }
    all.extend(flags.iter().map(Into::into));
    Config::load(all).expect("the flags are right")
}

impl SimFleet {
    /// Starts the nodes that publish, one of which leads and writes an image, and the replicas.
    async fn start(script: &FleetScript, mutant: FleetMutant) -> Result<Self, Broken> {
        let bounds = match script.fault {
            FleetFault::FullStore => (60_000, 100_000),
            _ => (400_000, 100_000_000),
        };
        let servers = Servers::new(bounds);
        let max_part = NonZeroUsize::new(script.max_part).expect("it is not 0");
        let nodes = script.flags.iter().enumerate().map(|(node, flags)| {
            let port = ModelPort { servers: servers.clone(), node, max_part, mutant, skipped: Arc::default() };
            let is_large = script.fault == FleetFault::LargeImages && node == 0;
            SimNode::new(port, config(node, flags), if is_large { 100 } else { u64::MAX })
        });
        let nodes = nodes.collect();
        let clock = Arc::new(FleetClock::new());
        let chain = Arc::new(SimChain::new(script.seed));
        let building = chain.clone();
        let (sub_blocks, traffic) = (script.sub_blocks, script.traffic);
        tokio::task::spawn_local(async move { building.go_on(sub_blocks, traffic).await });
        let mut fleet = Self {
            chain,
            clock,
            servers,
            nodes,
            old: Vec::new(),
            ids: BTreeMap::new(),
            last: Default::default(),
            failed: BTreeSet::new(),
            counts: FleetCounts { scripts: [(script.fault, 1)].into(), ..FleetCounts::default() },
        };
        // Where the first node's images are of no use, the other one begins.
        let first = usize::from(script.fault == FleetFault::LargeImages);
        fleet.nodes[first].start(&fleet.chain, &fleet.clock, false);
        fleet.wait(Duration::from_millis(1_500)).await?;
        fleet.nodes[1 - first].start(&fleet.chain, &fleet.clock, false);
        for node in INGESTERS..NODES {
            fleet.nodes[node].start(&fleet.chain, &fleet.clock, false);
        }
        fleet.wait(Duration::from_secs(4)).await?;
        for node in 0..INGESTERS {
            fleet.old.push(fleet.nodes[node].disk.copy());
        }
        Ok(fleet)
    }

    /// Begins a fault of the servers, the ways to them, or the clocks.
    fn begin(&mut self, step: FleetStep) {
        let until = |ms: u64| Some(Instant::now() + Duration::from_millis(ms));
        let mut servers = lock(&self.servers);
        match step {
            FleetStep::Cut { node, for_ms } => servers.ways[node].cut = until(for_ms),
            FleetStep::CutKeys { node, for_ms } => servers.ways[node].keyless = until(for_ms),
            FleetStep::Delay { node, by_ms, for_ms } => {
                servers.ways[node].delay = until(for_ms).map(|until| (Duration::from_millis(by_ms), until));
            }
            FleetStep::LoseAcks(node, count) => servers.ways[node].lost_acks = count,
            FleetStep::Refuse { node, for_ms } => servers.ways[node].refused = until(for_ms),
            FleetStep::Fill(for_ms) => servers.full = until(for_ms),
            FleetStep::Forget => servers.forget_names(),
            FleetStep::DeleteStream { is_created } => servers.delete_stream(is_created),
            FleetStep::Purge(keep) => servers.purge(keep),
            FleetStep::LoseImages => servers.lose_images(),
            FleetStep::LoseKey(key) => servers.lose_fact(key),
            FleetStep::LoseFacts => servers.lose_bucket(Bucket::Facts),
            FleetStep::LoseLease => servers.lose_bucket(Bucket::Lease),
            FleetStep::FailImages(count) => servers.failing_images = count,
            FleetStep::SlowImages(ms) => servers.image_time = Duration::from_millis(ms),
            FleetStep::Foreign => servers.insert(None),
            FleetStep::Corrupt(how) => servers.corrupts = Some(how),
            FleetStep::Jump(seconds) => self.clock.jump(seconds),
            FleetStep::FailDisk { node, after } => {
                self.nodes[node].disk.fail_after(after);
                self.failed.insert(node);
            }
            FleetStep::Wait(_) | FleetStep::Kill(_) | FleetStep::KillToOld(_) | FleetStep::Anew(_) => {}
        }
    }

    async fn step(&mut self, step: FleetStep) -> Result<(), Broken> {
        self.counts.steps += 1;
        *self.counts.faults.entry(step.name()).or_default() += 1;
        self.begin(step);
        match step {
            FleetStep::Wait(ms) => self.wait(Duration::from_millis(ms)).await,
            FleetStep::Kill(node) => self.restart(node, false, false).await,
            FleetStep::KillToOld(node) => self.restart(node, true, false).await,
            FleetStep::Anew(node) => self.restart(node, false, true).await,
            _ => self.check().await,
        }
    }

    /// Kills a node, and starts it again.
    async fn restart(&mut self, node: usize, is_old: bool, is_anew: bool) -> Result<(), Broken> {
        self.counts.kills += 1;
        self.nodes[node].kill().await;
        self.last[node] = Default::default();
        if self.failed.remove(&node) {
            self.nodes[node].disk = self.nodes[node].disk.copy();
        }
        if is_old {
            self.nodes[node].disk = self.old[node].copy();
        }
        self.nodes[node].start(&self.chain, &self.clock, is_anew);
        self.check().await
    }

    async fn wait(&mut self, time: Duration) -> Result<(), Broken> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            sleep(LOOK_INTERVAL.min(end - Instant::now())).await;
            self.check().await?;
        }
        Ok(())
    }

    /// Checks everything that the nodes show, and the stream.
    async fn check(&mut self) -> Result<(), Broken> {
        if let Some(broken) = &lock(&self.servers).broken {
            return Err((ORDER, broken.clone()));
        }
        for (node, running) in self.nodes.iter_mut().enumerate() {
            running.check().await;
            let Some(Shown { snapshots, begun, .. }) = running.shown() else { continue };
            let published = snapshots.load();
            let (last, newest) = (published.last, published.newest.id);
            let (last_before, newest_before) = self.last[node];
            // A leader that has not read what was lost goes on from before it: what it has not read, it does not know.
            let is_lossy = lock(&self.servers).has_lost && last.epoch() > last_before.epoch();
            if last < last_before || newest < newest_before && !is_lossy {
                let text = format!("node {node} went from {:#x} to {:#x}", newest_before.0, newest.0);
                return Err((BACK, text));
            }
            self.last[node] = (last, newest);
            if !begun.contains(&last) && !lock(&self.servers).whole.contains(&last) {
                return Err((FIRST, format!("node {node} shows {:#x}", last.0)));
            }
            let known = self.ids.range(..newest).rev().take(4).map(|(id, _)| *id);
            for id in known.chain([newest]).collect::<Vec<_>>() {
                let Ok(snapshot) = published.select(Selector::Snapshot(id)) else { continue };
                let shown = fingerprint(&snapshot);
                if *self.ids.entry(id).or_insert(shown) != shown {
                    return Err((IDS, format!("{:#x} is another on node {node}", id.0)));
                }
            }
        }
        Ok(())
    }

    /// Ends the faults, and checks that all nodes, one that joins too, come to the same state, which goes on.
    async fn finish(mut self) -> Result<FleetCounts, Broken> {
        {
            let mut servers = lock(&self.servers);
            (servers.ways, servers.full) = (Default::default(), None);
            (servers.failing_images, servers.image_time) = (0, Duration::ZERO);
        }
        if self.nodes[0].max_image_bytes == 100 {
            // A replica joins only where a node leads that can write an image.
            self.nodes[0].max_image_bytes = u64::MAX;
            self.restart(0, false, false).await?;
        }
        while let Some(node) = self.failed.first().copied() {
            self.restart(node, false, false).await?;
        }
        let ended = Instant::now();
        self.restart(NODES - 1, false, false).await?;
        let target = lock(&self.servers).whole.last().copied().unwrap_or_default();
        let mut shown = Vec::new();
        while ended.elapsed() < RECOVERY {
            self.wait(Duration::from_millis(200)).await?;
            shown = self.nodes.iter().map(|node| node.shown().map(|shown| shown.snapshots.load())).collect();
            let is_well = shown.iter().flatten().filter(|one| {
                one.last.0 > target.next().0
                    && matches!(one.feed(), FeedState::Live { .. } | FeedState::Lagging(_))
                    && shown.iter().flatten().all(|other| other.last.epoch() == one.last.epoch())
            });
            if is_well.count() == NODES {
                self.counts.shown = self.ids.len();
                self.counts.recovery_ms = ended.elapsed().as_millis();
                let servers = lock(&self.servers);
                self.counts.takeovers = servers.whole.iter().filter(|id| **id == SnapshotId::begin(id.epoch())).count();
                return Ok(self.counts.clone());
            }
        }
        let text = shown.iter().map(|one| match one {
            Some(one) => format!("{:#x} {:?}", one.last.0, one.feed()),
            None => "nothing".to_owned(),
        });
        let text: Vec<String> = text.collect();
        Err((ALIVE, format!("the nodes show {} after {:#x}", text.join(", "), target.0)))
    }
}

impl Simulated for FleetScript {
    type Mutant = FleetMutant;
    type Step = FleetStep;
    type Counts = FleetCounts;

    const SOUND: FleetMutant = FleetMutant::None;
    const FOUND: &[u64] = &[
        // A change that the leader's disk had failed to write was there after a restart, under an id that the stream
        // had for the failure.
        359,
    ];

    fn of(seed: u64) -> Self {
        Self::of(seed)
    }

    fn steps(&mut self) -> &mut Vec<FleetStep> {
        &mut self.steps
    }

    fn run(&self, mutant: FleetMutant) -> Result<FleetCounts, Violation> {
        run_fleet(self, mutant)
    }

    fn add(total: &mut FleetCounts, ran: &FleetCounts) {
        total.add(ran);
    }
}
