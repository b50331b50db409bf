//! The task of a watch: it follows the snapshots, and runs what each may have changed.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::{
    sync::watch,
    time::{sleep, timeout_at},
};

use super::{
    Watch, WatchList, WatchState,
    news::News,
    run::{Chunk, member, text_of},
};
use crate::{
    engine::{BlockContext, SimulationRules},
    executor::{LaneName, RunPlace},
    rpc::{
        error::RpcError,
        front::RequestRunner,
        methods::{Backend, Run},
        request::Request,
        wire::WatchedBundle,
    },
    state::{Published, ReadSet, Snapshot, SnapshotId, Snapshots},
    watch::{StandingRun, StateHistory},
};

/// The place of the runs.
const PLACE: RunPlace = RunPlace::On(LaneName::Watch);
/// The most bundles of one run on a worker.
const CHUNK: usize = 64;
/// The number of steps between states that are remembered. They keep old states in memory.
const STEPS: usize = 512;
/// The time without a connection or a poll after which bundles are not run.
const UNATTENDED: Duration = Duration::from_secs(30);
/// The time after which bundles that gave no answer run again, if no snapshot comes before.
const AGAIN: Duration = Duration::from_secs(1);

/// The task that keeps the answers of a watch up to date.
pub(super) struct WatchTask {
    pub list: Arc<WatchList>,
    pub runner: RequestRunner,
    pub snapshots: Arc<Snapshots>,
    pub rules: SimulationRules,
    /// The bytes of the requests.
    pub requests: usize,
    pub watch: Arc<Watch>,
    /// The request that began the watch, without its parameters.
    pub template: Request,
}

impl WatchTask {
    /// Follows the snapshots until the watch is removed.
    pub(super) async fn follow(self) {
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
        // With so many permits a run, no more runs of all watches are under way than this one alone may have.
        let permits = self.runner.executor.workers().div_ceil(self.width());
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        let seat = timeout_at(deadline.into(), self.list.seats.acquire_many(permits)).await;
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
