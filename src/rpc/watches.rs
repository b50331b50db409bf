//! Standing bundles: their methods, and the task that runs what each snapshot may have changed.

use std::{
    cmp::Reverse,
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use alloy_primitives::{I256, map::HashMap};
use bytes::Bytes;
use bytestring::ByteString;
use futures::{StreamExt, stream::FuturesUnordered};
use serde::Serialize;
use tokio::{
    sync::{Notify, Semaphore, watch},
    time::{sleep, timeout, timeout_at},
};

use super::{
    access::Client,
    encode::{self, Object},
    error::RpcError,
    front::{Front, RequestRunner},
    methods::{Backend, Run, WatchMethod},
    request::{Request, begin},
    subscriptions::Subscriptions,
    wire::{self, WatchId, WatchRequest, WatchedBundle, WatchedPayload},
};
use crate::{
    engine::{BlockContext, SimulationRules},
    executor::{Executor, LaneName, RunPlace},
    state::{Published, ReadSet, Selector, Snapshot, SnapshotId, Snapshots},
    telemetry::{Counter, Gauge, Metrics},
    watch::{StandingAnswer, StandingBundle, StandingBundles, StandingRun, StateHistory},
};

/// The place where payloads are parsed.
const PARSE: RunPlace = RunPlace::On(LaneName::Bundle);
/// The place of the runs.
const PLACE: RunPlace = RunPlace::On(LaneName::Watch);
/// The most bundles of one run on a worker, and the time after which it takes no other.
const CHUNK: usize = 64;
const CHUNK_TIME: Duration = Duration::from_millis(1);
/// The bytes of answers above which a notification is sent before the snapshot is done.
const NOTIFICATION: usize = 1 << 20;
/// The number of steps between states that are remembered. They keep old states in memory.
const STEPS: usize = 512;
/// The bytes that a watch counts besides its bundles.
const WATCH_BYTES: usize = 64 << 10;
/// The time without a connection or a poll after which bundles are not run.
const UNATTENDED: Duration = Duration::from_secs(30);
/// The time after which bundles that gave no answer run again, if no snapshot comes before.
const AGAIN: Duration = Duration::from_secs(1);

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
    /// The runs that may be under way at once.
    seats: Semaphore,
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
    /// The number of requests that poll now.
    polls: usize,
    /// The end of the last poll, or the time since which there is no connection.
    attended: Instant,
    /// Whether there was a connection or a poll when this was looked at last.
    was_watched: bool,
    /// Whether bundles that run once a block may run.
    begins_block: bool,
    /// The last snapshot of which nothing more will be told: nothing is behind, or a newer one has come.
    settled: SnapshotId,
}

impl Watches {
    /// Creates an empty list.
    pub fn new(limits: WatchLimits, executor: &Executor, subscriptions: Arc<Subscriptions>, metrics: &Metrics) -> Self {
        Self(Arc::new(WatchList {
            watches: Mutex::default(),
            limits,
            subscriptions,
            seats: Semaphore::new(executor.workers()),
            standing: metrics.gauge("presim_standing_bundles", "Bundles that stand.", &[]),
            runs: metrics.counter("presim_standing_runs_total", "Runs of standing bundles.", &[]),
        }))
    }
}

/// A standing bundle, as the status of the node shows it to its client.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StandingSummary {
    name: String,
    /// The objective of the last run, in decimal.
    objective: Option<String>,
    /// The newest snapshot for which the answer is known to hold.
    holds_at: Option<String>,
    is_due: bool,
}

impl Watches {
    /// Returns how many bundles a client lets stand, and the `most` of them that gained most in their last run.
    pub fn best(&self, client: Option<&str>, most: usize) -> (usize, Vec<StandingSummary>) {
        let own: Vec<Arc<Watch>> =
            self.0.watches().values().filter(|watch| watch.owner.as_deref() == client).cloned().collect();
        let mut best: Vec<(Option<I256>, StandingSummary)> = Vec::new();
        for watch in &own {
            let state = watch.state();
            let mut bundles: Vec<_> = state.bundles.bundles().iter().collect();
            bundles.sort_by_key(|bundle| Reverse(bundle.gained()));
            best.extend(bundles.into_iter().take(most).map(|bundle| (bundle.gained(), StandingSummary::of(bundle))));
        }
        best.sort_by_key(|(gained, _)| Reverse(*gained));
        let count = own.iter().map(|watch| watch.count).sum();
        (count, best.into_iter().take(most).map(|(_, summary)| summary).collect())
    }
}

impl StandingSummary {
    fn of<R>(bundle: &StandingBundle<R>) -> Self {
        Self {
            name: bundle.name.clone(),
            objective: bundle.gained().map(|gained| gained.to_string()),
            holds_at: bundle.holds_at().map(|id| format!("{:#x}", id.0)),
            is_due: bundle.is_due(),
        }
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
        let watches = self.watches();
        let own = watches.values().filter(|watch| watch.owner.as_deref() == owner);
        self.limits.bytes.saturating_sub(own.map(|watch| watch.bytes.load(Relaxed)).sum())
    }

    fn add(&self, watch: Arc<Watch>) {
        let mut watches = self.watches();
        watches.insert(watch.id, watch);
        self.count(&watches);
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
        self.state().attended = Instant::now();
        self.wake.notify_one();
    }

    /// Writes the answer of a poll: what changed after `id`, and what is behind. The next poll is from the last snapshot
    /// of which nothing more will be told, so that it tells what comes late.
    fn write_results(&self, id: SnapshotId, out: &mut Vec<u8>) {
        let state = self.state();
        let mut object = Object::new(out);
        object.quantity("id", state.settled.0);
        write_changes(object, state.bundles.changed_after(id), &state);
    }

    /// Writes what a client lacks that was told the news of snapshot `id`, and what is behind.
    fn write_again(&self, id: SnapshotId, out: &mut Vec<u8>) {
        let state = self.state();
        let mut object = Object::new(out);
        encode::string(object.key("watch"), &self.id.to_string());
        object.quantity("id", state.settled.0);
        write_changes(object, state.bundles.news_since(id), &state);
    }
}

fn write_changes<'a>(
    mut object: Object<'_>,
    changed: impl Iterator<Item = (&'a str, &'a StandingAnswer)>,
    state: &WatchState,
) {
    encode::list(object.key("changed"), changed, |out, (name, answer)| write_news(out, name, &answer.text));
    write_behind(&mut object, state);
    object.end();
}

impl WatchState {
    /// Returns whether a bundle may run on the current snapshot.
    fn may_run(&self) -> impl Fn(&Arc<WatchedBundle>) -> bool + use<> {
        let begins_block = self.begins_block;
        move |bundle| begins_block || !bundle.every_block
    }

    /// Returns the bundles that are behind.
    fn behind(&self) -> impl Iterator<Item = &StandingBundle<Arc<WatchedBundle>>> {
        self.bundles.behind(self.may_run())
    }

    /// Notes if nothing is behind.
    fn note_settled(&mut self) {
        if self.behind().next().is_none() {
            self.settled = self.bundles.at().unwrap_or_default();
        }
    }

    /// Returns whether nothing is behind.
    fn is_settled(&self) -> bool {
        self.bundles.at() == Some(self.settled)
    }
}

fn write_news(out: &mut Vec<u8>, name: &str, text: &[u8]) {
    let mut object = Object::new(out);
    encode::string(object.key("name"), name);
    object.member(text);
    object.end();
}

fn write_behind(object: &mut Object<'_>, state: &WatchState) {
    encode::list(object.key("behind"), state.behind(), |out, bundle| {
        let mut object = Object::new(out);
        encode::string(object.key("name"), &bundle.name);
        match bundle.holds_at() {
            Some(id) => encode::quantity(object.key("id"), id.0),
            None => object.key("id").extend_from_slice(b"null"),
        }
        if let Some(reason) = bundle.stale() {
            object.key("stale").extend_from_slice(reason);
        }
        object.end();
    });
}

impl Front {
    /// Answers a method of the standing bundles.
    ///
    /// # Errors
    ///
    /// Returns -32602 if the parameters are wrong, -32005 if the client's bundles take too much memory, and -32000 if
    /// the client has no such watch.
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
                list.find(id, client)?;
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
        let parse = move |backend: &Backend, run: &mut Run<'_>| {
            wire::parse_watch(run.params, run.dialect, &backend.limits.shape, most)
        };
        let (WatchRequest { bundles, selector }, mut out) = self.run_step(PARSE, request.clone(), parse).await?;
        let owner = request.caller.client.as_deref().map(|client| client.name().to_owned());
        // A parsed request takes about as much again as its text.
        let bytes = WATCH_BYTES + 2 * request.params.len();
        let room = list.room(owner.as_deref());
        if bytes > room {
            let text = format!("params[0]: the bundles take {bytes} bytes, and {room} are left (--watch-mb)");
            return Err(RpcError::limit(text));
        }
        let bundles = StandingBundles::new(bundles.into_iter().map(|(name, bundle)| (name, Arc::new(bundle))));
        let state = WatchState {
            bundles,
            polls: 0,
            attended: Instant::now(),
            was_watched: false,
            begins_block: true,
            settled: SnapshotId::default(),
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
        if let Some(starting) = &request.starting {
            starting.watch(watch.id)?;
        }
        let mut object = Object::new(&mut out);
        encode::string(object.key("watch"), &watch.id.to_string());
        // All that is told of this snapshot is new, so that who asks what changed after `id` misses nothing.
        object.quantity("id", self.runner.backend.select(&request.published, selector)?.id.0.saturating_sub(1));
        object.end();
        list.add(watch.clone());
        let template = Request { params: ByteString::new(), starting: None, ..request };
        let task = WatchTask {
            list: list.clone(),
            runner: self.runner.clone(),
            snapshots: self.snapshots.clone(),
            rules: self.runner.backend.rules(template.caller.dialect),
            requests: bytes,
            watch,
            template,
        };
        let (list, id) = (list.clone(), task.watch.id);
        tokio::spawn(async move {
            if let Err(error) = tokio::spawn(task.follow()).await {
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
        // Without news in time, the answer says so.
        let _ = timeout(wait.min(self.limits().sync.most), changed).await;
        Ok(())
    }
}

/// A request that polls. Counted until it is dropped.
struct Poll<'a>(&'a Watch);

impl<'a> Poll<'a> {
    fn of(watch: &'a Watch) -> Self {
        watch.state().polls += 1;
        Self(watch)
    }
}

impl Drop for Poll<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.polls -= 1;
        state.attended = Instant::now();
        self.0.wake.notify_one();
    }
}

/// The task that keeps the answers of a watch up to date.
struct WatchTask {
    list: Arc<WatchList>,
    runner: RequestRunner,
    snapshots: Arc<Snapshots>,
    rules: SimulationRules,
    /// The bytes of the requests.
    requests: usize,
    watch: Arc<Watch>,
    /// The request that began the watch, without its parameters.
    template: Request,
}

/// Bundles that run on a worker one after the other.
struct Chunk {
    bundles: Vec<(u32, Arc<WatchedBundle>)>,
    snapshot: Arc<Snapshot>,
    rules: SimulationRules,
}

impl WatchTask {
    /// Follows the snapshots until the watch is removed.
    async fn follow(self) {
        let mut changes = self.snapshots.changes();
        let mut history = StateHistory::new(STEPS);
        let mut seen = SnapshotId::default();
        let mut block = None;
        loop {
            changes.borrow_and_update();
            let published = self.snapshots.load();
            published.snapshots_after(seen).for_each(|snapshot| history.learn(snapshot));
            history.learn(published.latest());
            seen = published.newest.id;
            if let Ok(selected) = self.runner.backend.select(&published, self.watch.selector) {
                // A fallback publishes the canonical state under a new id.
                let is_newest = selected.state == published.newest.state;
                let snapshot = if is_newest { published.newest.clone() } else { selected };
                self.catch_up(&published, &snapshot, &history, &mut block, &mut changes).await;
            }
            let Some(rest) = self.rest() else {
                self.list.remove(self.watch.id);
                return;
            };
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = self.watch.wake.notified() => {}
                () = sleep(rest) => {}
            }
            if !self.list.watches().contains_key(&self.watch.id) {
                return;
            }
        }
    }

    /// Returns for how long nothing is to be done if nothing happens, or `None` if the time of the watch is over.
    fn rest(&self) -> Option<Duration> {
        let is_watched = self.is_watched();
        let state = self.watch.state();
        let idle = state.attended.elapsed();
        let keep = self.list.limits.keep;
        let left = if is_watched { keep.max(AGAIN) } else { keep.saturating_sub(idle) };
        let has_due = idle < UNATTENDED && state.behind().next().is_some();
        let rest = if has_due { AGAIN } else { UNATTENDED };
        Some(rest.min(left)).filter(|rest| !rest.is_zero())
    }

    /// Returns whether a client has a connection, or polls. Notes the time if so.
    fn is_watched(&self) -> bool {
        let has_connection = self.list.subscriptions.has_watcher(self.watch.id);
        let mut state = self.watch.state();
        let is_watched = has_connection || state.polls > 0;
        if std::mem::replace(&mut state.was_watched, is_watched) || is_watched {
            state.attended = Instant::now();
        }
        is_watched
    }

    /// Moves to a snapshot, and runs what is due, as long as no newer snapshot comes.
    async fn catch_up(
        &self,
        published: &Arc<Published>,
        snapshot: &Arc<Snapshot>,
        history: &StateHistory,
        block: &mut Option<u64>,
        changes: &mut watch::Receiver<SnapshotId>,
    ) {
        let Ok(context) = BlockContext::of(&self.runner.backend.spec, snapshot, &self.rules) else { return };
        let (due, is_new) = {
            let mut state = self.watch.state();
            let is_new = state.bundles.at() != Some(snapshot.id);
            if is_new {
                let number = snapshot.header().number;
                let opens = block.replace(number) != Some(number);
                // Bundles that run once a block and were passed over run on its next snapshot.
                state.begins_block = opens
                    || state.begins_block && {
                        let every = |bundle: &Arc<WatchedBundle>| bundle.every_block;
                        state.bundles.behind(every).next().is_some()
                    };
                state.settled = state.bundles.at().unwrap_or_default();
                state.bundles.advance(snapshot, context, history);
                state.note_settled();
            }
            let due: VecDeque<(u32, Arc<WatchedBundle>)> = state
                .bundles
                .due(state.may_run())
                .into_iter()
                .map(|at| (at, state.bundles.bundles()[at as usize].request.clone()))
                .collect();
            (due, is_new)
        };
        let is_attended = self.is_watched() || self.watch.state().attended.elapsed() < UNATTENDED;
        if !is_attended || !is_new && due.is_empty() {
            return;
        }
        self.run_due(published, snapshot, due, changes).await;
    }

    /// Runs bundles side by side, and tells their answers as they come.
    async fn run_due(
        &self,
        published: &Arc<Published>,
        snapshot: &Arc<Snapshot>,
        mut due: VecDeque<(u32, Arc<WatchedBundle>)>,
        changes: &watch::Receiver<SnapshotId>,
    ) {
        let batch = self.runner.executor.batch();
        let mut running = FuturesUnordered::new();
        let mut news = News::of(snapshot.id);
        loop {
            // A newer snapshot supersedes this one.
            let is_newest = !changes.has_changed().unwrap_or(true);
            while is_newest && running.len() < self.width() && !due.is_empty() {
                let bundles: Vec<_> = due.drain(..due.len().min(CHUNK)).collect();
                let chunk = Arc::new(Chunk { bundles, snapshot: snapshot.clone(), rules: self.rules });
                let ticket = self.runner.executor.ticket(&self.template.caller.flow).of(&batch);
                let request = Request { published: published.clone(), ticket, ..self.template.clone() };
                running.push(self.run_chunk(request, chunk));
            }
            let Some((chunk, ended)) = running.next().await else { break };
            let ran = ended.len();
            self.list.runs.increment(ran as u64);
            {
                let mut room = self.list.room(self.watch.owner.as_deref());
                let mut state = self.watch.state();
                for (at, run) in ended {
                    let run = Self::within_room(&state, at, run, &mut room);
                    if let Some((name, answer)) = state.bundles.record(at, run) {
                        news.add(name, &answer.text);
                    }
                }
                self.watch.bytes.store(self.requests + state.bundles.bytes(), Relaxed);
            }
            chunk.bundles[ran..].iter().rev().for_each(|bundle| due.push_front(bundle.clone()));
            let is_last = running.is_empty() && (due.is_empty() || changes.has_changed().unwrap_or(true));
            while !is_last && let Some(part) = news.part() {
                self.tell(part).await;
            }
        }
        {
            let mut state = self.watch.state();
            state.note_settled();
            state.bundles.tell_behind();
        }
        for part in news.end(&self.watch) {
            self.tell(part).await;
        }
        self.watch.news.send_modify(|count| *count += 1);
    }

    /// Returns the number of runs that may be under way.
    fn width(&self) -> usize {
        let workers = self.runner.executor.workers();
        match self.runner.executor.is_asked() {
            true => ((workers as f64 * self.list.limits.share) as usize).max(1),
            false => workers,
        }
    }

    /// Runs a chunk. Returns it with the ends of the runs, of which there may be fewer.
    async fn run_chunk(&self, request: Request, chunk: Arc<Chunk>) -> (Arc<Chunk>, Vec<(u32, StandingRun)>) {
        let deadline = request.ticket.deadline();
        let seat = timeout_at(deadline.into(), self.list.seats.acquire()).await;
        let work = {
            let chunk = chunk.clone();
            move |backend: &Backend, run: &mut Run<'_>| Ok(backend.run_standing(run, &chunk))
        };
        let ended = match self.runner.run_step(PLACE, request, work).await {
            Ok((ended, _)) => ended,
            Err(error) => {
                let stale = |(at, _): &(u32, _)| (*at, StandingRun::Stale(text_of(&error)));
                chunk.bundles.iter().map(stale).collect()
            }
        };
        drop(seat);
        (chunk, ended)
    }

    /// Replaces an answer for which the client's memory does not suffice by an error, and what it has read by
    /// everything. `room` is the memory that is left.
    fn within_room(state: &WatchState, at: u32, run: StandingRun, room: &mut usize) -> StandingRun {
        let StandingRun::Answered { text: Some(text), reads, gained } = run else { return run };
        let grows = state.bundles.growth(at, &text, &reads);
        if let Some(left) = room.checked_sub(grows) {
            *room = left;
            return StandingRun::Answered { text: Some(text), reads, gained };
        }
        let error = format!("the answer and its reads take {grows} bytes more, and {room} are left (--watch-mb)");
        let text = member("error", &text_of(&RpcError::limit(error)));
        StandingRun::Answered { text: Some(text), reads: ReadSet::everything(), gained }
    }

    /// Tells news to the connection.
    async fn tell(&self, text: Vec<u8>) {
        if self.list.subscriptions.has_watcher(self.watch.id) {
            let text = self.list.subscriptions.memory().shared_text(text);
            self.list.subscriptions.tell_watcher(self.watch.id, &text).await;
        }
    }
}

/// The news of a snapshot, in parts.
struct News {
    id: SnapshotId,
    told: usize,
    /// The answers that are to be told, each element as many as a notification has room for.
    changed: VecDeque<Vec<u8>>,
}

impl News {
    const fn of(id: SnapshotId) -> Self {
        Self { id, told: 0, changed: VecDeque::new() }
    }

    fn add(&mut self, name: &str, text: &[u8]) {
        match self.changed.back_mut().filter(|changed| changed.len() + text.len() < NOTIFICATION) {
            Some(changed) => {
                changed.push(b',');
                write_news(changed, name, text);
            }
            None => {
                let mut changed = Vec::new();
                write_news(&mut changed, name, text);
                self.changed.push_back(changed);
            }
        }
    }

    /// Returns a part, if there is one to tell.
    fn part(&mut self) -> Option<Vec<u8>> {
        let changed = self.changed.pop_front()?;
        Some(self.write(&changed, None))
    }

    /// Returns the last parts, with what is behind.
    fn end(mut self, watch: &Watch) -> Vec<Vec<u8>> {
        let last = self.changed.pop_back().unwrap_or_default();
        let mut parts: Vec<Vec<u8>> = std::iter::from_fn(|| self.part()).collect();
        parts.push(self.write(&last, Some(&watch.state())));
        parts
    }

    fn write(&mut self, changed: &[u8], last: Option<&WatchState>) -> Vec<u8> {
        let mut out = Vec::with_capacity(changed.len() + 128);
        let mut object = Object::new(&mut out);
        object.quantity("id", self.id.0).number("part", self.told);
        encode::value(object.key("last"), &last.is_some());
        object.key("changed").extend_from_slice(&[b"[", changed, b"]"].concat());
        if let Some(state) = last {
            write_behind(&mut object, state);
        }
        object.end();
        self.told += 1;
        out
    }
}

/// Returns a member of a JSON object.
fn member(name: &str, value: &[u8]) -> Bytes {
    [b"\"", name.as_bytes(), b"\":", value].concat().into()
}

/// Returns an error as JSON.
fn text_of(error: &RpcError) -> Bytes {
    let mut out = Vec::new();
    encode::value(&mut out, &error.clone().into_object());
    out.into()
}

impl Backend {
    /// Runs bundles of a chunk in order, as many as there is time for. Returns the ends of their runs.
    fn run_standing(&self, run: &mut Run<'_>, chunk: &Chunk) -> Vec<(u32, StandingRun)> {
        let began = Instant::now();
        let mut ended = Vec::with_capacity(chunk.bundles.len());
        for (at, bundle) in &chunk.bundles {
            run.out = Vec::new();
            let (snapshot, rules) = (&chunk.snapshot, &chunk.rules);
            let done = match &bundle.payload {
                WatchedPayload::Simulate(request) => {
                    self.simulate_on(run, snapshot, rules, request, true).map(|()| (None, true))
                }
                WatchedPayload::Search(request) => self.search_on(run, snapshot, rules, request),
            };
            // The next run is bound by what this one has left.
            run.meter = std::mem::take(&mut run.overlay.meter);
            if let Some(native) = run.overlay.take_native() {
                // The answer stands as long as what has led the run there.
                let (text, reads) = (text_of(&RpcError::Native(native)), run.overlay.reads());
                let text = bundle.tells(None).then(|| member("error", &text));
                ended.push((*at, StandingRun::Answered { text, reads, gained: None }));
                // The meter has stopped.
                break;
            }
            if run.overlay.has_missed() {
                // The whole chunk runs again. The rest runs now to find what else it will miss, for a single fetch.
                if run.meter.stopped().is_some() || began.elapsed() > CHUNK_TIME {
                    break;
                }
                continue;
            }
            let is_whole = run.meter.stopped().is_none() && !matches!(done, Ok((_, false)));
            let (name, text, gained) = match done {
                Ok((gained, _)) => ("result", std::mem::take(&mut run.out).into(), gained),
                Err(error) => ("error", text_of(&error), None),
            };
            if !is_whole {
                let late = RpcError::new(-32016, "the bundle was not run to its end in time");
                ended.push((*at, StandingRun::Stale(text_of(&late))));
                break;
            }
            let reads = run.overlay.reads();
            let text = bundle.tells(gained).then(|| member(name, &text));
            ended.push((*at, StandingRun::Answered { text, reads, gained }));
            if began.elapsed() > CHUNK_TIME {
                break;
            }
        }
        run.out = Vec::new();
        ended
    }
}

impl WatchedBundle {
    /// Returns whether an answer with this objective is told.
    fn tells(&self, gained: Option<I256>) -> bool {
        self.above.is_none_or(|above| gained.is_some_and(|gained| gained > above))
    }
}
