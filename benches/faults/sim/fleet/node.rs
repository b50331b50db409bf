//! The nodes of a fleet: production's, from their joining on, on a simulated disk.

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use alloy_primitives::{Address, B256};
use presim::{
    chain::ChainSpec,
    clock::Clock,
    config::Config,
    fleet::joining::{self, Joining, PublisherJoining},
    ledger::{SnapshotId, Snapshots},
    node,
    rpc::StartupReason,
    source::{Feed, FeedSource},
    state::CodeCache,
    store::Store,
    telemetry::Metrics,
    wallet::{BatchId, Ledger, TakenBatch},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{
    super::life::{BEGIN, SimDisk},
    servers::ModelPort,
};
use crate::disk::Disk;

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
    /// Whether the disk has a batch of the node's wallet, which stays whatever chain the node goes on with.
    has_batch: Arc<AtomicBool>,
    task: Option<JoinHandle<()>>,
}

impl SimNode {
    pub fn new(port: ModelPort, config: Config, max_image_bytes: u64) -> Self {
        Self {
            port,
            config,
            max_image_bytes,
            disk: Disk::default(),
            shown: Arc::default(),
            has_batch: Arc::default(),
            task: None,
        }
    }

    /// Returns what the node shows; `None` until it has started.
    pub fn shown(&self) -> Option<Shown> {
        self.shown.lock().expect("the simulation has one thread").clone()
    }

    /// Starts the node, again and again until it does not fail, as its supervisor does.
    pub fn start(&mut self, clock: &Arc<FleetClock>, is_anew: bool) {
        let (port, mut config, disk) = (self.port.clone(), self.config.clone(), self.disk.clone());
        let (clock, shown, max_image_bytes) = (clock.clone(), self.shown.clone(), self.max_image_bytes);
        let has_batch = self.has_batch.clone();
        config.fleet.publish_anew = is_anew;
        self.task = Some(tokio::task::spawn_local(async move {
            loop {
                let started = match config.fleet.follow {
                    None => publish(&port, &config, &disk, clock.clone(), &shown, max_image_bytes, &has_batch).await,
                    Some(_) => follow(&port, &config, &shown).await,
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

/// Returns a batch as a wallet stores it.
fn batch() -> TakenBatch {
    TakenBatch {
        from: Address::repeat_byte(1),
        chain_id: 1,
        atomic: false,
        executor: Address::ZERO,
        transactions: vec![B256::repeat_byte(2)],
        deployment: None,
        taken_on: Some(1),
        replacements: None,
    }
}

async fn publish(
    port: &ModelPort,
    config: &Config,
    disk: &Disk,
    clock: Arc<FleetClock>,
    shown: &Mutex<Option<Shown>>,
    max_image_bytes: u64,
    has_batch: &AtomicBool,
) -> eyre::Result<()> {
    let (metrics, codes, reason) = (Metrics::default(), Arc::new(CodeCache::new(CODES)), StartupReason::default());
    let disk = SimDisk { disk: disk.clone(), lies: false };
    let store = Store::open_stepped(disk, Path::new("the simulated disk"), &metrics)?;
    let (ledger, id, batch) = (Ledger::new(store.clone(), 1), BatchId::new("0x01".to_owned()), batch());
    let id = id.expect("an id");
    if !has_batch.load(Relaxed) {
        store.write_now(ledger.writing(&id, &batch))?;
        has_batch.store(true, Relaxed);
    }
    let (port, clock) = (Arc::new(port.clone()), clock as Arc<dyn Clock>);
    let (settings, report) = (config.joining(), |_: &str| ());
    let node = Joining { settings: &settings, port, codes: &codes, metrics: &metrics, report: &report };
    let joining = PublisherJoining { node, store: &store, clock };
    let mut published = node::join(config, &reason, &joining).await?;
    assert_eq!(ledger.get(&id)?.as_ref(), Some(&batch), "the wallet of the disk is lost");
    published.source.publisher.limits.max_image_bytes = max_image_bytes;
    let snapshots = Arc::new(published.chain.snapshots);
    let pool = node::pool(config, &published.chain.spec, &snapshots, &store, None)?;
    show(shown, &snapshots);
    Box::new(published.source).run(Feed::new(snapshots, published.sinks, pool, &metrics)).await;
    Ok(())
}

async fn follow(port: &ModelPort, config: &Config, shown: &Mutex<Option<Shown>>) -> eyre::Result<()> {
    let (metrics, codes) = (Metrics::default(), Arc::new(CodeCache::new(CODES)));
    let store = Store::in_memory(&metrics)?;
    let (settings, report, port) = (config.joining(), |_: &str| (), Arc::new(port.clone()));
    let joining = Joining { settings: &settings, port, codes: &codes, metrics: &metrics, report: &report };
    let (chain, snapshots, follower) = joining.follow(Instant::now() + joining::START).await?;
    let spec = ChainSpec::new(chain.config, Duration::from_millis(chain.block_time_ms))?;
    let snapshots = Arc::new(snapshots);
    let pool = node::pool(config, &spec, &snapshots, &store, None)?;
    show(shown, &snapshots);
    follower.run(Feed::new(snapshots, Vec::new(), pool, &metrics)).await;
    Ok(())
}
