//! The nodes of a fleet: production's, from their joining on, on a simulated disk.

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{
    clock::Clock,
    config::Config,
    fleet::{
        joining::{self, Joining, PublisherJoining},
        publishing::PublishedLive,
        servers::FleetChain,
    },
    ledger::{SnapshotId, Snapshots},
    node,
    source::{Feed, FeedSource},
    state::CodeCache,
    store::Store,
    telemetry::Metrics,
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{
    super::{
        life::{BEGIN, SimDisk},
        live::following::SimFollowing,
    },
    chain::SimChain,
    servers::ModelPort,
};
use crate::faults::disk::Disk;

/// Bytes of the cache of bytecode.
const CODES: usize = 1 << 20;
/// The pause before a node whose start failed is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// The time of a simulation: that of its runtime, and a time of day that jumps.
#[derive(Debug)]
pub struct FleetClock {
    began: Instant,
    /// Seconds by which the time of day has jumped.
    jumped: AtomicI64,
}

impl FleetClock {
    pub fn new() -> Self {
        Self { began: Instant::now(), jumped: 0.into() }
    }

    pub fn jump(&self, seconds: i64) {
        self.jumped.fetch_add(seconds, Relaxed);
    }
}

impl Clock for FleetClock {
    fn unix(&self) -> Duration {
        let begin = Duration::from_secs(BEGIN.saturating_add_signed(self.jumped.load(Relaxed)));
        begin + self.began.elapsed()
    }

    fn monotonic(&self) -> Duration {
        self.began.elapsed()
    }
}

/// The snapshots that a node shows, once it has started.
#[derive(Clone, Debug)]
pub struct Shown {
    pub snapshots: Arc<Snapshots>,
    /// The ids of the last change and the newest snapshot when it started.
    pub begun: [SnapshotId; 2],
}

/// A node.
#[derive(Debug)]
pub struct SimNode {
    pub port: ModelPort,
    pub config: Config,
    /// The most bytes of an image that this node writes.
    pub max_image_bytes: u64,
    /// The disk of a node that publishes.
    pub disk: Disk,
    shown: Arc<Mutex<Option<Shown>>>,
    task: Option<JoinHandle<()>>,
}

impl SimNode {
    pub fn new(port: ModelPort, config: Config, max_image_bytes: u64) -> Self {
        Self { port, config, max_image_bytes, disk: Disk::default(), shown: Arc::default(), task: None }
    }

    /// Returns what the node shows; `None` until it has started.
    pub fn shown(&self) -> Option<Shown> {
        self.shown.lock().expect("the simulation has one thread").clone()
    }

    /// Starts the node, again and again until it does not fail, as its supervisor does.
    pub fn start(&mut self, chain: &Arc<SimChain>, clock: &Arc<FleetClock>, is_anew: bool) {
        let (port, mut config, disk) = (self.port.clone(), self.config.clone(), self.disk.clone());
        let (clock, shown, max_image_bytes) = (clock.clone(), self.shown.clone(), self.max_image_bytes);
        let chain = chain.clone();
        config.fleet.publish_anew = is_anew;
        self.task = Some(tokio::task::spawn_local(async move {
            loop {
                let started = match config.fleet.follow {
                    None => publish(&port, &config, &disk, &chain, clock.clone(), &shown, max_image_bytes).await,
                    Some(_) => follow(&port, &config, &chain, &shown).await,
                };
                if let Err(error) = started {
                    tracing::debug!("the node does not start: {error:#}");
                }
                sleep(RESTART_PAUSE).await;
            }
        }));
    }

    /// Ends the node.
    pub async fn kill(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            let ended = task.await;
            if let Err(error) = ended
                && let Ok(panic) = error.try_into_panic()
            {
                std::panic::resume_unwind(panic);
            }
        }
        *self.shown.lock().expect("the simulation has one thread") = None;
        // The clock stands while threads still have a part of it.
        sleep(Duration::from_millis(1)).await;
    }

    /// Panics if the node has.
    pub async fn check(&mut self) {
        if self.task.as_ref().is_some_and(JoinHandle::is_finished) {
            self.kill().await;
        }
    }
}

fn show(shown: &Mutex<Option<Shown>>, snapshots: &Arc<Snapshots>) {
    let published = snapshots.load();
    let begun = [published.last, published.newest.id];
    let begun = Shown { snapshots: snapshots.clone(), begun };
    *shown.lock().expect("the simulation has one thread") = Some(begun);
}

async fn publish(
    port: &ModelPort,
    config: &Config,
    disk: &Disk,
    chain: &SimChain,
    clock: Arc<FleetClock>,
    shown: &Mutex<Option<Shown>>,
    max_image_bytes: u64,
) -> eyre::Result<()> {
    let (metrics, codes) = (Metrics::default(), Arc::new(CodeCache::new(CODES)));
    let disk = SimDisk { disk: disk.clone(), lies: false };
    let store = Store::open_stepped(disk, Path::new("the simulated disk"), &metrics)?;
    let settings = config.joining();
    let SimFollowing { snapshots: own, source, .. } = chain.follow(settings.kept, &metrics).await;
    let (port, clock, report) = (Arc::new(port.clone()), clock as Arc<dyn Clock>, |_: &str| ());
    let node = Joining { settings: &settings, port, codes: &codes, metrics: &metrics, report: &report };
    let joining = PublisherJoining { node, store: &store, clock };
    let ours = FleetChain::of(&chain.truth.spec, chain.truth.genesis.hash, Vec::new());
    let (mut publisher, snapshots) = joining.join_live(ours, &own).await?;
    publisher.max_image_bytes = max_image_bytes;
    let snapshots = Arc::new(snapshots);
    let pool = node::pool(config, &chain.truth.spec, &snapshots, &store)?;
    show(shown, &snapshots);
    let feed = Feed::new(snapshots, None, pool, &metrics);
    Box::new(PublishedLive { publisher, source, own, link: None }).run(feed).await;
    Ok(())
}

async fn follow(port: &ModelPort, config: &Config, chain: &SimChain, shown: &Mutex<Option<Shown>>) -> eyre::Result<()> {
    let (metrics, codes) = (Metrics::default(), Arc::new(CodeCache::new(CODES)));
    let store = Store::in_memory(&metrics)?;
    let (settings, report, port) = (config.joining(), |_: &str| (), Arc::new(port.clone()));
    let joining = Joining { settings: &settings, port, codes: &codes, metrics: &metrics, report: &report };
    let (_, snapshots, follower) = joining.follow(Instant::now() + joining::START).await?;
    let snapshots = Arc::new(snapshots);
    let pool = node::pool(config, &chain.truth.spec, &snapshots, &store)?;
    show(shown, &snapshots);
    Box::new(follower).run(Feed::new(snapshots, None, pool, &metrics)).await;
    Ok(())
}
