//! Runs a script of a fleet.

use std::{
    collections::BTreeMap,
    fmt,
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use alloy_primitives::B256;
use presim::{
    config::Config,
    ledger::{Selector, SnapshotId, Snapshots},
};

use super::{
    super::{
        Violation,
        life::{SimClock, config},
        record::{ALIVE, Broken, fingerprint},
    },
    FleetMutant, FleetScript, FleetStep,
    node::{SimFollower, SimIngester},
    script::{INGESTERS, NODES},
    stream::{Link, SharedStream, lock},
};

const IDS: &str = "an id names one state on all nodes";
const BACK: &str = "no node goes back";
const FIRST: &str = "the stream has what anyone is shown";
const ORDER: &str = "the stream holds each id once, in order, and an epoch first";
/// The time between sub-blocks, in microseconds.
const EVERY: u64 = 200_000;
/// The rounds after the faults in which everything must have come to an end.
const ROUNDS: usize = 20;

/// Totals of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetCounts {
    pub steps: usize,
    /// The ids that were shown by any node, counted once.
    pub shown: usize,
    pub takeovers: usize,
    /// The times that a leader found out that it leads no more.
    pub losses: usize,
    pub kills: usize,
    /// The times that a follower began anew with an image.
    pub anew: usize,
    pub images: usize,
}

impl FleetCounts {
    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.shown += other.shown;
        self.takeovers += other.takeovers;
        self.losses += other.losses;
        self.kills += other.kills;
        self.anew += other.anew;
        self.images += other.images;
    }
}

impl fmt::Display for FleetCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, shown, takeovers, losses, kills, anew, images } = self;
        write!(
            f,
            "{steps} steps, {shown} snapshots shown, {takeovers} takeovers, {losses} leaders that lost the lead, "
        )?;
        write!(f, "{kills} kills, {anew} begun anew, {images} images")
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
        runtime.block_on(async {
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
    config: Config,
    clock: Arc<SimClock>,
    model: SharedStream,
    max_part: NonZeroUsize,
    mutant: FleetMutant,
    ingesters: Vec<SimIngester>,
    replicas: Vec<SimFollower>,
    /// A hash of the state that was shown under each id.
    ids: BTreeMap<SnapshotId, B256>,
    /// The ids of the last change and of the newest snapshot that each node has shown last.
    last: [(SnapshotId, SnapshotId); NODES],
    /// The ids of the chain before it was published.
    before: Vec<SnapshotId>,
    counts: FleetCounts,
}

impl SimFleet {
    /// Starts the nodes that publish, one of which leads and writes an image, and then the replicas.
    async fn start(script: &FleetScript, mutant: FleetMutant) -> Result<Self, Broken> {
        let (config, clock, model) = (config(&script.flags, false), Arc::new(SimClock::new()), SharedStream::default());
        let start = |index| SimIngester::start(index, &model, &config, clock.clone()).map_err(not_started);
        let ingesters = (0..INGESTERS).map(start).collect::<Result<Vec<_>, _>>()?;
        let before = vec![ingesters[0].feed.snapshots.load().last, ingesters[0].feed.snapshots.newest().id];
        let max_part = NonZeroUsize::new(script.max_part).expect("it is not 0");
        let mut fleet = Self {
            config,
            clock,
            model,
            max_part,
            mutant,
            ingesters,
            replicas: Vec::new(),
            ids: BTreeMap::new(),
            last: Default::default(),
            before,
            counts: FleetCounts::default(),
        };
        fleet.take_over(0, true, false).await;
        fleet.image(0);
        for index in INGESTERS..NODES {
            let follower = SimFollower::of_image(index, &fleet.model, &fleet.config);
            fleet.replicas.push(follower.ok_or((ALIVE, "the leader has written no image".to_owned()))?);
        }
        fleet.check()?;
        Ok(fleet)
    }

    async fn step(&mut self, step: FleetStep) -> Result<(), Broken> {
        self.counts.steps += 1;
        match step {
            FleetStep::Tick(node) => self.tick(node).await,
            FleetStep::Read(node, count) => self.read(node, count),
            FleetStep::ReadAgain(node) => match self.leads(node) {
                true => {}
                false => self.follower(node).ask_again(),
            },
            FleetStep::TakeOver { node, steals, races } => self.take_over(node, steals, races).await,
            FleetStep::Cut { node, tries, loses_lease } => {
                let link = &mut lock(&self.model).links[node];
                (link.cut, link.loses_lease) = (tries, loses_lease && node < INGESTERS);
            }
            FleetStep::LoseAcks(node, count) => lock(&self.model).links[node].lost_acks = count,
            FleetStep::Fill(tries) => lock(&self.model).refusals = tries,
            FleetStep::Forget => lock(&self.model).forget_names(),
            FleetStep::Image => (0..INGESTERS).for_each(|node| self.image(node)),
            FleetStep::Purge(keep) => {
                if let Some(node) = (0..INGESTERS).find(|node| self.holds_lead(*node)) {
                    let images = self.counts.images;
                    self.image(node);
                    if self.counts.images > images {
                        lock(&self.model).purge(keep);
                    }
                }
            }
            FleetStep::Kill(node) => self.kill(node)?,
            FleetStep::Jump(seconds) => self.clock.jump(seconds),
        }
        self.check()
    }

    fn leads(&self, node: usize) -> bool {
        self.ingesters.get(node).is_some_and(SimIngester::leads)
    }

    /// Returns whether a node leads, and has the lease, too.
    fn holds_lead(&self, node: usize) -> bool {
        self.leads(node) && lock(&self.model).lease == Some(node)
    }

    fn follower(&mut self, node: usize) -> &mut SimFollower {
        match node.checked_sub(INGESTERS) {
            None => &mut self.ingesters[node].follower,
            Some(replica) => &mut self.replicas[replica],
        }
    }

    async fn tick(&mut self, node: usize) {
        self.clock.advance(EVERY);
        match self.leads(node) {
            true => {
                self.ingesters[node].tick().await;
                self.counts.losses += usize::from(!self.leads(node));
            }
            false => self.read(node, usize::MAX),
        }
    }

    fn read(&mut self, node: usize, count: usize) {
        if self.leads(node) {
            return;
        }
        let follower = self.follower(node);
        let was_anew = follower.reading.is_none();
        follower.read(count);
        let begun = was_anew && follower.reading.is_some();
        self.counts.anew += usize::from(begun);
    }

    /// Has a node take the lease and the lead, if it can read the stream to its end.
    async fn take_over(&mut self, node: usize, steals: bool, races: bool) {
        let holder = lock(&self.model).lease;
        let is_free = holder.is_none_or(|holder| !self.leads(holder) || lock(&self.model).links[holder].cut > 0);
        if self.leads(node) || !(is_free || steals) || lock(&self.model).links[node].cut > 0 {
            return;
        }
        lock(&self.model).lease = Some(node);
        self.read(node, usize::MAX);
        if races {
            self.tick((node + 1) % INGESTERS).await;
        }
        self.ingesters[node].lead(self.max_part, self.mutant).await;
        self.counts.takeovers += usize::from(self.leads(node));
    }

    fn image(&mut self, node: usize) {
        self.counts.images += usize::from(self.ingesters[node].image());
    }

    /// Ends a node, and starts it with the image. What it has not published is lost.
    fn kill(&mut self, node: usize) -> Result<(), Broken> {
        self.counts.kills += 1;
        self.last[node] = Default::default();
        lock(&self.model).links[node] = Link::default();
        match node.checked_sub(INGESTERS) {
            None => {
                let started = SimIngester::start(node, &self.model, &self.config, self.clock.clone());
                self.ingesters[node] = started.map_err(not_started)?;
            }
            Some(replica) => {
                let follower = SimFollower::of_image(node, &self.model, &self.config);
                self.replicas[replica] = follower.ok_or((ALIVE, "there is no image".to_owned()))?;
            }
        }
        Ok(())
    }

    fn shown(&self) -> Vec<Arc<Snapshots>> {
        let ingesters = self.ingesters.iter().map(|node| node.feed.snapshots.clone());
        ingesters.chain(self.replicas.iter().map(|node| node.snapshots.clone())).collect()
    }

    /// Checks everything that the nodes show, and the stream.
    fn check(&mut self) -> Result<(), Broken> {
        if let Some(broken) = &lock(&self.model).broken {
            return Err((ORDER, broken.clone()));
        }
        for (node, snapshots) in self.shown().into_iter().enumerate() {
            let published = snapshots.load();
            let (last, newest) = (published.last, published.newest.id);
            let (last_before, newest_before) = self.last[node];
            if last < last_before || newest < newest_before {
                let text = format!("node {node} went from {:#x} to {:#x}", newest_before.0, newest.0);
                return Err((BACK, text));
            }
            self.last[node] = (last, newest);
            if !self.before.contains(&last) && !lock(&self.model).whole.contains(&last) {
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

    /// Ends the faults, and checks that all nodes come to the same state, which goes on.
    async fn finish(mut self) -> Result<FleetCounts, Broken> {
        {
            let mut model = lock(&self.model);
            (model.links, model.refusals) = (Default::default(), 0);
        }
        let before = lock(&self.model).whole.last().copied().unwrap_or_default();
        for _ in 0..ROUNDS {
            for node in 0..INGESTERS {
                if !self.leads(node) && !(0..INGESTERS).any(|other| self.holds_lead(other)) {
                    self.take_over(node, true, false).await;
                }
                self.tick(node).await;
                self.image(node);
                self.check()?;
            }
            for node in 0..NODES {
                self.read(node, usize::MAX);
            }
            self.check()?;
            let published: Vec<_> = self.shown().iter().map(|snapshots| snapshots.load()).collect();
            let is_same = published.iter().all(|one| one.last == published[0].last);
            let is_live = published.iter().all(|one| !one.feed().is_degraded());
            if is_same && is_live && published[0].last.0 > before.next().0 {
                self.counts.shown = self.ids.len();
                return Ok(self.counts);
            }
        }
        let told: Vec<String> = self.last.iter().map(|(last, _)| format!("{:#x}", last.0)).collect();
        Err((ALIVE, format!("the nodes show {} after {:#x}", told.join(", "), before.0)))
    }
}

fn not_started(error: eyre::Report) -> Broken {
    ("a node starts", format!("{error:#}"))
}
