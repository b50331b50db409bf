//! Standing bundles: what clients ask of them, and the watches that stand.

mod follow;
mod long;
mod news;
pub mod request;
mod run;
pub mod serve;
mod summary;
mod task;

pub use self::summary::StandingSummary;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use alloy_primitives::map::HashMap;
use tokio::sync::{Notify, Semaphore, watch};

use self::request::WatchedBundle;
use crate::rpc::protocol::error::{Result, RpcError};
use crate::rpc::run::subscriptions::Subscriptions;
use crate::watch::WatchId;
use crate::{
    ledger::Selector,
    scheduler::Executor,
    telemetry::{Counter, Gauge, Metrics},
    watch::{Attendance, SnapshotName, StandingBundle, StandingBundles},
};

/// The bytes that a watch counts besides its bundles.
const WATCH_BYTES: usize = 64 << 10;

/// The bounds of standing bundles.
#[derive(Clone, Copy, Debug, Default)]
pub struct WatchLimits {
    /// Maximum number of bundles of one watch.
    pub bundles: usize,
    /// Maximum bytes of the requests, reads and answers of one token's bundles.
    pub bytes: usize,
    /// Share of the workers that may run standing bundles while others wait.
    pub share: f64,
    /// Time for which bundles are kept without a connection or a poll.
    pub retention: Duration,
}

/// All standing bundles of a node.
#[derive(Clone, Debug)]
pub struct Watches(Arc<WatchList>);

#[derive(Debug)]
struct WatchList {
    watches: Mutex<HashMap<WatchId, Arc<Watch>>>,
    limits: WatchLimits,
    subscriptions: Arc<Subscriptions>,
    /// Turns true when the node stops.
    stopping: watch::Sender<bool>,
    /// A permit for each worker. A run takes several while others wait, so that all runs together keep their share.
    permits: Semaphore,
    /// A permit for each worker that may run a long bundle. Another worker is left for the others, if there is one.
    long_permits: Semaphore,
    /// The number of these workers.
    most_long: usize,
    standing: Gauge,
    runs: Counter,
}

/// The bundles that a client lets stand.
#[derive(Debug)]
struct Watch {
    id: WatchId,
    /// The client's name; `None` if clients have no tokens, so that the id alone gives access.
    owner: Option<String>,
    selector: Selector,
    state: Mutex<WatchState>,
    /// The number of bundles.
    count: usize,
    /// The bytes of requests, reads and answers.
    bytes: AtomicUsize,
    /// Wakes who polls, when the runs on a snapshot have ended. The value counts these.
    news: watch::Sender<u64>,
    /// Wakes the task that runs the bundles.
    wake: Notify,
}

#[derive(Debug)]
struct WatchState {
    bundles: StandingBundles<Arc<WatchedBundle>>,
    /// The long bundles that run now.
    running: Vec<u32>,
    /// The time until which long bundles that gave no answer rest, if no snapshot comes before.
    long_rests_until: Option<Instant>,
    attendance: Attendance,
    /// Whether bundles that run once a block may run.
    begins_block: bool,
    /// The last snapshot of which nothing more will be told: nothing is behind, or a newer one has come. `None` before
    /// the first.
    complete_at: Option<SnapshotName>,
}

impl Watches {
    /// Creates an empty list.
    pub fn new(limits: WatchLimits, executor: &Executor, subscriptions: Arc<Subscriptions>, metrics: &Metrics) -> Self {
        let workers = executor.workers();
        let long = ((workers as f64 * limits.share) as usize).clamp(1, workers.saturating_sub(1).max(1));
        Self(Arc::new(WatchList {
            watches: Mutex::default(),
            limits,
            subscriptions,
            stopping: watch::Sender::new(false),
            permits: Semaphore::new(workers),
            long_permits: Semaphore::new(long),
            most_long: long,
            standing: metrics.gauge("presim_standing_bundles", "Bundles that stand.", &[]),
            runs: metrics.counter("presim_standing_runs_total", "Runs of standing bundles.", &[]),
        }))
    }

    /// Ends what polls wait for, because the node stops. They are answered with what there is.
    pub fn stop_waiting(&self) {
        self.0.stopping.send_replace(true);
    }
}

impl WatchList {
    fn watches(&self) -> MutexGuard<'_, HashMap<WatchId, Arc<Watch>>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a client's watch.
    fn find(&self, id: WatchId, client: Option<&str>) -> Result<Arc<Watch>> {
        let found = self.watches().get(&id).filter(|watch| watch.owner.as_deref() == client).cloned();
        found.ok_or_else(|| {
            RpcError::new(-32000, format!("params[0]: {id}: no such watch: it was taken back, or its time is over"))
        })
    }

    /// Returns the bytes that a client's bundles may still take.
    fn room(&self, owner: Option<&str>) -> usize {
        self.room_among(&self.watches(), owner)
    }

    fn room_among(&self, watches: &HashMap<WatchId, Arc<Watch>>, owner: Option<&str>) -> usize {
        let own = watches.values().filter(|watch| watch.owner.as_deref() == owner);
        self.limits.bytes.saturating_sub(own.map(|watch| watch.bytes.load(Relaxed)).sum())
    }

    /// Adds a watch, if there is still room for it.
    fn add(&self, watch: Arc<Watch>) -> Result<()> {
        let mut watches = self.watches();
        let (bytes, room) = (watch.bytes.load(Relaxed), self.room_among(&watches, watch.owner.as_deref()));
        if bytes > room {
            let text = format!("params[0]: the bundles take {bytes} bytes, and {room} are left (--watch-mb)");
            return Err(RpcError::limit(text));
        }
        watches.insert(watch.id, watch);
        self.count(&watches);
        Ok(())
    }

    fn remove(&self, id: WatchId) -> bool {
        let mut watches = self.watches();
        let removed = watches.remove(&id);
        self.count(&watches);
        drop(watches);
        if let Some(watch) = &removed {
            watch.wake.notify_one();
            self.subscriptions.end_watch(id);
        }
        removed.is_some()
    }

    /// Returns the number of runs that may be under way.
    fn width(&self, executor: &Executor) -> usize {
        match executor.is_asked() {
            true => ((executor.workers() as f64 * self.limits.share) as usize).max(1),
            false => executor.workers(),
        }
    }

    fn count(&self, watches: &HashMap<WatchId, Arc<Watch>>) {
        let bundles: usize = watches.values().map(|watch| watch.count).sum();
        self.standing.set(bundles as f64);
    }
}

impl Watch {
    fn state(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a client asks for news.
    fn attend(&self) {
        self.state().attendance.ask(Instant::now());
        self.wake.notify_one();
    }
}

impl WatchState {
    /// Returns whether a bundle may run on the current snapshot.
    fn may_run(&self) -> impl Fn(&Arc<WatchedBundle>) -> bool + use<> {
        let begins_block = self.begins_block;
        move |bundle| begins_block || !bundle.every_block
    }

    /// Returns the long bundles that are due and neither run nor rest.
    fn long_due(&self) -> impl Iterator<Item = u32> {
        let rests = self.long_rests_until.is_some_and(|until| Instant::now() < until);
        let is_stale = |at: u32| self.bundles.bundles()[at as usize].stale().is_some();
        let due = self.bundles.long_due(self.may_run());
        due.into_iter().filter(move |at| !(self.running.contains(at) || rests && is_stale(*at)))
    }

    /// Returns the bundles that are behind.
    fn behind(&self) -> impl Iterator<Item = &StandingBundle<Arc<WatchedBundle>>> {
        self.bundles.behind(self.may_run())
    }

    /// Notes if nothing is behind.
    fn note_complete(&mut self) {
        if self.behind().next().is_none() {
            self.complete_at = self.bundles.name();
        }
    }

    /// Returns whether nothing is behind.
    fn is_complete(&self) -> bool {
        self.complete_at.is_some_and(|complete_at| self.bundles.at() == Some(complete_at.id))
    }
}
