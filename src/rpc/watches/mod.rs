//! Standing bundles: what clients ask of them, and the watches that stand.

mod long;
mod news;
mod run;
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
use tokio::{
    sync::{Notify, Semaphore, watch},
    time::{timeout, timeout_at},
};

use self::{run::Chunk, task::WatchTask};
use super::{
    access::Client,
    encode::{self, Object},
    error::RpcError,
    front::{Front, RequestRunner},
    methods::{Backend, Run, WatchMethod},
    request::{Request, begin},
    subscriptions::Subscriptions,
    wire::{self, WatchId, WatchRequest, WatchedBundle},
};
use crate::{
    executor::{Executor, LaneName, RunPlace},
    ledger::{Selector, SnapshotId},
    telemetry::{Counter, Gauge, Metrics},
    watch::{Attendance, SnapshotName, StandingBundle, StandingBundles, StandingRun},
};

/// The place of the runs.
const PLACE: RunPlace = RunPlace::On(LaneName::Watch);
/// The place where payloads are parsed.
const PARSE: RunPlace = RunPlace::On(LaneName::Bundle);
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
    pub keep: Duration,
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
    seats: Semaphore,
    /// A permit for each worker that may run a long bundle. Another worker is left for the others, if there is one.
    long_seats: Semaphore,
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
    settled: Option<SnapshotName>,
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
            seats: Semaphore::new(workers),
            long_seats: Semaphore::new(long),
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
    fn find(&self, id: WatchId, client: Option<&str>) -> Result<Arc<Watch>, RpcError> {
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
    fn add(&self, watch: Arc<Watch>) -> Result<(), RpcError> {
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

    /// Runs a chunk. Returns the ends of its first runs, as many as there was time for.
    ///
    /// # Errors
    ///
    /// Returns an error if no worker has taken the chunk.
    async fn run_chunk(
        &self,
        runner: &RequestRunner,
        request: Request,
        chunk: &Arc<Chunk>,
    ) -> Result<Vec<(u32, StandingRun)>, RpcError> {
        let deadline = request.ticket.deadline();
        // With so many permits a run, no more runs of all watches are under way than this one alone may have.
        let permits = runner.executor.workers().div_ceil(self.width(&runner.executor));
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        let seat = timeout_at(deadline.into(), self.seats.acquire_many(permits)).await;
        let ended = run_on_worker(runner, request, chunk).await;
        drop(seat);
        ended
    }

    fn count(&self, watches: &HashMap<WatchId, Arc<Watch>>) {
        let bundles: usize = watches.values().map(|watch| watch.count).sum();
        self.standing.set(bundles as f64);
    }
}

/// Runs a chunk. Returns the ends of its first runs, or an error if no worker has taken it.
async fn run_on_worker(
    runner: &RequestRunner,
    request: Request,
    chunk: &Arc<Chunk>,
) -> Result<Vec<(u32, StandingRun)>, RpcError> {
    let chunk = chunk.clone();
    let work = move |backend: &Backend, run: &mut Run<'_>| Ok(backend.run_standing(run, &chunk));
    runner.run_step(PLACE, request, work).await.map(|(ended, _)| ended)
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
    fn note_settled(&mut self) {
        if self.behind().next().is_none() {
            self.settled = self.bundles.name();
        }
    }

    /// Returns whether nothing is behind.
    fn is_settled(&self) -> bool {
        self.settled.is_some_and(|settled| self.bundles.at() == Some(settled.id))
    }
}

impl Front {
    /// Answers a method of the standing bundles.
    ///
    /// # Errors
    ///
    /// Returns -32602 if the parameters are wrong, -32005 if the client's bundles take too much memory, and -32000 if
    /// the client has no such watch, except to `presim_unwatch` if nobody has.
    pub(super) async fn watch(&self, method: WatchMethod, request: Request) -> Result<Vec<u8>, RpcError> {
        let list = &self.watches.0;
        let client = request.caller.client.as_deref().map(Client::name);
        let dialect = request.caller.dialect;
        let mut out = begin(&request.id, "result");
        match method {
            WatchMethod::Begin => return self.begin_watch(request).await,
            WatchMethod::Again => {
                let (id, since) = wire::parse_rewatch(&request.params, dialect)?;
                let watch = list.find(id, client)?;
                let starting = request.starting.as_ref().ok_or_else(|| {
                    RpcError::new(-32601, "presim_rewatch needs a WebSocket connection: presim_results polls over HTTP")
                })?;
                starting.watch(id)?;
                watch.attend();
                watch.write_again(since, &mut out);
            }
            WatchMethod::Results => {
                let (id, since, wait) = wire::parse_results(&request.params, dialect)?;
                let watch = list.find(id, client)?;
                self.poll(&watch, since, Duration::from_millis(wait), &request).await?;
                watch.write_results(since, &mut out);
            }
            WatchMethod::End => {
                let id = wire::parse_unwatch(&request.params, dialect)?;
                // Only a watch that stands can be another client's.
                if list.watches().contains_key(&id) {
                    list.find(id, client)?;
                }
                encode::value(&mut out, &list.remove(id));
            }
        }
        encode::check_length(&out, self.limits().max_response)?;
        Ok(out)
    }

    /// Lets the bundles of a request stand.
    async fn begin_watch(&self, request: Request) -> Result<Vec<u8>, RpcError> {
        let list = &self.watches.0;
        let most = list.limits.bundles;
        let owner = request.caller.client.as_deref().map(|client| client.name().to_owned());
        let room = list.room(owner.as_deref()).saturating_sub(WATCH_BYTES);
        let parse = move |backend: &Backend, run: &mut Run<'_>| {
            wire::parse_watch(run.params, run.dialect, &backend.limits.shape, most, room)
        };
        let (parsed, mut out) = self.run_step(PARSE, request.clone(), parse).await?;
        let WatchRequest { bundles, selector, bytes } = parsed;
        let requests = WATCH_BYTES + bytes;
        let bundles = StandingBundles::new(bundles.into_iter().map(|(name, bundle)| (name, Arc::new(bundle))));
        let bytes = requests + bundles.bytes();
        let state = WatchState {
            bundles,
            running: Vec::new(),
            long_rests_until: None,
            attendance: Attendance::new(Instant::now()),
            begins_block: true,
            settled: None,
        };
        let watch = Arc::new(Watch {
            id: WatchId(rand::random()),
            count: state.bundles.bundles().len(),
            owner,
            selector,
            state: Mutex::new(state),
            bytes: AtomicUsize::new(bytes),
            news: watch::Sender::new(0),
            wake: Notify::new(),
        });
        let first = self.runner.backend.select(&request.published, selector)?.id;
        list.add(watch.clone())?;
        if let Some(starting) = &request.starting {
            starting.watch(watch.id).inspect_err(|_| {
                list.remove(watch.id);
            })?;
        }
        let mut object = Object::new(&mut out);
        encode::string(object.key("watch"), &watch.id.to_string());
        // All that is told of this snapshot is new, so that who asks what changed after `id` misses nothing.
        object.quantity("id", first.0.saturating_sub(1));
        object.end();
        let caller = request.caller;
        let task = WatchTask {
            list: list.clone(),
            runner: self.runner.clone(),
            snapshots: self.snapshots.clone(),
            rules: self.runner.backend.rules(caller.dialect),
            requests,
            watch,
            caller,
            method: request.method,
        };
        let (list, id) = (list.clone(), task.watch.id);
        tokio::spawn(async move {
            if let Err(error) = tokio::spawn(Arc::new(task).follow()).await {
                tracing::error!(%error, "standing bundles are dropped");
                list.remove(id);
            }
        });
        Ok(out)
    }

    /// Waits until an answer has changed after a snapshot and what is due has run, at most for some time.
    async fn poll(&self, watch: &Watch, since: SnapshotId, wait: Duration, request: &Request) -> Result<(), RpcError> {
        let has_changed = |state: &WatchState| state.bundles.changed_after(since).next().is_some();
        let is_done = || {
            let state = watch.state();
            state.is_settled() && has_changed(&state)
        };
        let mut news = watch.news.subscribe();
        watch.attend();
        if wait.is_zero() || is_done() {
            return Ok(());
        }
        let Ok(_seat) = self.waiters.seats.try_acquire() else {
            let text = format!("too busy: {} requests wait already", self.waiters.count);
            return Err(RpcError::limit(text));
        };
        drop(request.starting.as_ref().and_then(|starting| starting.release()));
        let _poll = Poll::of(watch);
        let changed = async {
            // Runs that end with something behind are news, too.
            while !is_done() && news.changed().await.is_ok() && !has_changed(&watch.state()) {}
        };
        let mut stopping = self.watches.0.stopping.subscribe();
        // Without news in time, the answer says so.
        tokio::select! {
            _ = timeout(wait.min(self.limits().sync.most), changed) => {}
            _ = stopping.wait_for(|stopping| *stopping) => {}
        }
        Ok(())
    }
}

/// A request that polls. Counted until it is dropped.
struct Poll<'a>(&'a Watch);

impl<'a> Poll<'a> {
    fn of(watch: &'a Watch) -> Self {
        watch.state().attendance.begin_poll();
        Self(watch)
    }
}

impl Drop for Poll<'_> {
    fn drop(&mut self) {
        self.0.state().attendance.end_poll(Instant::now());
        self.0.wake.notify_one();
    }
}
