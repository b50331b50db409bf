//! The watches of a node: each client's standing bundles, and their bounds.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use alloy_primitives::map::HashMap;
use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore, watch},
};

use super::{
    attendance::Attendance,
    bundle::Bundle,
    bundles::{SnapshotName, StandingBundle, StandingBundles},
    id::WatchId,
    listener::{Behind, Listener},
};
use crate::{
    ledger::{Selector, SnapshotId},
    lock::{Mutex, MutexGuard},
    scheduler::Executor,
    telemetry::{Counter, Gauge, Metrics},
};

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

/// All watches of a node.
#[derive(Debug)]
pub struct WatchList<B: Bundle, L: Listener<B>> {
    watches: Mutex<HashMap<WatchId, Arc<Watch<B, L>>>>,
    /// The runtime on which the watches follow the snapshots.
    pub(super) runtime: Handle,
    /// The bounds.
    pub limits: WatchLimits,
    /// Turns true when the node stops.
    stopping: watch::Sender<bool>,
    /// A permit for each worker. A run takes several while others wait, so that all runs together stay within their
    /// share.
    pub(super) permits: Semaphore,
    /// A permit for each worker that may run a long bundle. Another worker is left for the others, if there is one.
    pub(super) long_permits: Semaphore,
    /// The number of these workers.
    pub(super) most_long: usize,
    standing: Gauge,
    pub(super) runs: Counter,
}

/// The standing bundles of a client.
#[derive(Debug)]
pub struct Watch<B: Bundle, L> {
    /// The name by which the client asks for them.
    pub id: WatchId,
    /// The client's name; `None` if clients have no tokens, so that the id alone gives access.
    pub owner: Option<String>,
    /// The snapshots on which the bundles run: the ones that `pending` or `latest` selects.
    pub selector: Selector,
    /// The receiver of their news.
    pub(super) listener: L,
    state: Mutex<WatchState<B>>,
    /// The number of bundles.
    pub count: usize,
    /// The bytes of the requests alone.
    requests: usize,
    /// The bytes of requests, reads and answers.
    bytes: AtomicUsize,
    /// Wakes the requests that poll, when the runs on a snapshot have ended. The value counts these.
    pub(super) news: watch::Sender<u64>,
    /// Wakes the task that runs the bundles.
    pub(super) wake: Notify,
}

/// The bundles of a watch, and the state of its client.
#[derive(Debug)]
pub struct WatchState<B: Bundle> {
    /// The bundles.
    pub bundles: StandingBundles<Arc<B>, B::Answer>,
    /// The last snapshot whose news are complete: nothing is behind, or a newer snapshot has arrived. `None` before
    /// the first.
    pub complete_at: Option<SnapshotName>,
    /// The long bundles that run now.
    pub(super) running: Vec<u32>,
    /// The time until which long bundles without an answer pause, unless a snapshot arrives first.
    pub(super) long_rests_until: Option<Instant>,
    pub(super) attendance: Attendance,
    /// Whether bundles that run once a block may run.
    pub(super) begins_block: bool,
}

/// The bundles of a watch take more bytes than their client has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bundles take {bytes} bytes, and {left} are left (--watch-mb)")]
pub struct NoRoom {
    /// The bytes that they take.
    pub bytes: usize,
    /// The bytes that are left.
    pub left: usize,
}

impl<B: Bundle, L: Listener<B>> WatchList<B, L> {
    /// Creates an empty list, whose watches run on the current Tokio runtime.
    pub fn new(limits: WatchLimits, executor: &Executor, metrics: &Metrics) -> Self {
        let workers = executor.workers();
        let long = ((workers as f64 * limits.share) as usize).clamp(1, workers.saturating_sub(1).max(1));
        Self {
            watches: Mutex::default(),
            runtime: Handle::current(),
            limits,
            stopping: watch::Sender::new(false),
            permits: Semaphore::new(workers),
            long_permits: Semaphore::new(long),
            most_long: long,
            standing: metrics.gauge("presim_standing_bundles", "Standing bundles."),
            runs: metrics.counter("presim_standing_runs_total", "Runs of standing bundles."),
        }
    }

    /// Ends waiting polls, because the node stops. They are answered with the current news.
    pub fn stop_waiting(&self) {
        self.stopping.send_replace(true);
    }

    /// Returns a receiver that turns true when the node stops.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Returns a watch, if it exists.
    pub fn get(&self, id: WatchId) -> Option<Arc<Watch<B, L>>> {
        self.watches.lock().get(&id).cloned()
    }

    /// Returns the watches of a client.
    pub fn of(&self, owner: Option<&str>) -> Vec<Arc<Watch<B, L>>> {
        self.watches.lock().values().filter(|watch| watch.owner.as_deref() == owner).cloned().collect()
    }

    /// Returns the bytes that a client's bundles may still take.
    pub fn room(&self, owner: Option<&str>) -> usize {
        self.room_among(&self.watches.lock(), owner)
    }

    fn room_among(&self, watches: &HashMap<WatchId, Arc<Watch<B, L>>>, owner: Option<&str>) -> usize {
        let own = watches.values().filter(|watch| watch.owner.as_deref() == owner);
        self.limits.bytes.saturating_sub(own.map(|watch| watch.bytes.load(Relaxed)).sum())
    }

    /// Adds a watch. Its bundles run once a [`WatchTask`](super::WatchTask) follows the snapshots for them.
    ///
    /// # Errors
    ///
    /// Returns [`NoRoom`] if the bundles take more bytes than their client has left.
    pub fn add(&self, watch: &Arc<Watch<B, L>>) -> Result<(), NoRoom> {
        let mut watches = self.watches.lock();
        let (bytes, left) = (watch.bytes.load(Relaxed), self.room_among(&watches, watch.owner.as_deref()));
        if bytes > left {
            return Err(NoRoom { bytes, left });
        }
        watches.insert(watch.id, watch.clone());
        self.count(&watches);
        Ok(())
    }

    /// Removes a watch, and stops its runs. Returns whether it existed.
    pub fn remove(&self, id: WatchId) -> bool {
        let mut watches = self.watches.lock();
        let removed = watches.remove(&id);
        self.count(&watches);
        drop(watches);
        if let Some(watch) = &removed {
            watch.wake.notify_one();
            watch.listener.close();
        }
        removed.is_some()
    }

    /// Returns the number of runs that may be under way.
    pub(super) fn width(&self, executor: &Executor) -> usize {
        match executor.is_asked() {
            true => ((executor.workers() as f64 * self.limits.share) as usize).max(1),
            false => executor.workers(),
        }
    }

    fn count(&self, watches: &HashMap<WatchId, Arc<Watch<B, L>>>) {
        let bundles: usize = watches.values().map(|watch| watch.count).sum();
        self.standing.set(bundles as f64);
    }
}

impl<B: Bundle, L: Listener<B>> Watch<B, L> {
    /// The bytes that a watch counts besides its bundles.
    pub const BYTES: usize = 64 << 10;

    /// Creates the watch of a client. None of its bundles has run. The requests of the bundles take `requests` bytes.
    pub fn new(
        id: WatchId,
        owner: Option<String>,
        selector: Selector,
        bundles: impl IntoIterator<Item = (String, B)>,
        requests: usize,
        listener: L,
    ) -> Self {
        let bundles = StandingBundles::new(bundles.into_iter().map(|(name, bundle)| (name, Arc::new(bundle))));
        let requests = Self::BYTES + requests;
        let bytes = AtomicUsize::new(requests + bundles.bytes());
        let state = WatchState {
            bundles,
            complete_at: None,
            running: Vec::new(),
            long_rests_until: None,
            attendance: Attendance::new(Instant::now()),
            begins_block: true,
        };
        Self {
            id,
            owner,
            selector,
            listener,
            count: state.bundles.bundles().len(),
            state: Mutex::new(state),
            requests,
            bytes,
            news: watch::Sender::new(0),
            wake: Notify::new(),
        }
    }

    /// Locks the bundles.
    pub fn state(&self) -> MutexGuard<'_, WatchState<B>> {
        self.state.lock()
    }

    /// Notes how many bytes the bundles take.
    pub(super) fn count_bytes(&self, state: &WatchState<B>) {
        self.bytes.store(self.requests + state.bundles.bytes(), Relaxed);
    }

    /// Notes that a client asks for news.
    pub fn attend(&self) {
        self.state().attendance.ask(Instant::now());
        self.wake.notify_one();
    }

    /// Whether an answer has changed after a snapshot, and no due bundle is left to run.
    pub fn has_news_since(&self, since: SnapshotId) -> bool {
        let state = self.state();
        state.is_complete() && state.has_changed_after(since)
    }

    /// Begins to poll, which counts as a client that is there until the poll is dropped.
    pub fn poll(&self) -> Poll<'_, B, L> {
        self.state().attendance.begin_poll();
        Poll(self)
    }
}

/// A client that polls.
#[derive(Debug)]
pub struct Poll<'a, B: Bundle, L: Listener<B>>(&'a Watch<B, L>);

impl<B: Bundle, L: Listener<B>> Poll<'_, B, L> {
    /// Waits until an answer has changed after a snapshot, and the runs on the snapshot that changed it have ended.
    pub async fn changed_after(&self, since: SnapshotId) {
        let Self(watch) = self;
        let mut news = watch.news.subscribe();
        // Runs that end with something behind are news, too.
        while !watch.has_news_since(since) && news.changed().await.is_ok() && !watch.state().has_changed_after(since) {}
    }
}

impl<B: Bundle, L: Listener<B>> Drop for Poll<'_, B, L> {
    fn drop(&mut self) {
        self.0.state().attendance.end_poll(Instant::now());
        self.0.wake.notify_one();
    }
}

impl<B: Bundle> WatchState<B> {
    /// Returns whether a bundle may run on the current snapshot.
    pub(super) fn may_run(&self) -> impl Fn(&Arc<B>) -> bool + use<B> {
        let begins_block = self.begins_block;
        move |bundle| begins_block || !bundle.every_block()
    }

    /// Returns the long bundles that are due and neither run nor rest.
    pub(super) fn long_due(&self) -> impl Iterator<Item = u32> {
        let rests = self.long_rests_until.is_some_and(|until| Instant::now() < until);
        let is_stale = |at: u32| self.bundles.bundles()[at as usize].stale.is_some();
        let due = self.bundles.long_due(self.may_run());
        due.into_iter().filter(move |at| !(self.running.contains(at) || rests && is_stale(*at)))
    }

    /// Returns the bundles that are behind.
    pub fn behind(&self) -> impl Iterator<Item = Behind<'_>> {
        self.bundles.behind(self.may_run()).map(move |bundle| self.behind_of(bundle))
    }

    /// Returns how far a bundle is behind.
    pub(super) fn behind_of<'a>(&self, bundle: &'a StandingBundle<Arc<B>, B::Answer>) -> Behind<'a> {
        Behind { name: &bundle.name, holds_at: self.bundles.holds_at(bundle), stale: bundle.stale.as_ref() }
    }

    /// Records the current snapshot as complete if nothing is behind.
    pub(super) fn note_complete(&mut self) {
        if self.behind().next().is_none() {
            self.complete_at = self.bundles.name();
        }
    }

    /// Returns whether nothing is behind.
    fn is_complete(&self) -> bool {
        self.complete_at.is_some_and(|complete_at| self.bundles.at() == Some(complete_at.id))
    }

    fn has_changed_after(&self, since: SnapshotId) -> bool {
        self.bundles.changed_after(since).next().is_some()
    }
}
