//! The loop of a watch: it follows the snapshots, and runs the bundles whose answers each may have changed.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::{sync::watch, task::JoinSet, time::sleep};

use super::{
    bundle::Bundle,
    bundles::StandingRun,
    chunk::{Chunk, Ended},
    history::StateHistory,
    listener::Listener,
    long::LongEnd,
    task::WatchTask,
};
use crate::{
    engine::BlockContext,
    ledger::{Snapshot, SnapshotId},
    scheduler::Ticket,
};

/// The most bundles of one run on a worker.
const CHUNK: usize = 64;
/// The number of steps between states that are remembered.
const STEPS: usize = 512;

/// Bundles that are due, each with its index in its watch.
type Due<B> = VecDeque<(u32, Arc<B>)>;

impl<B: Bundle, L: Listener<B>> WatchTask<B, L> {
    /// Follows the snapshots in a task of the list's runtime, until the watch is removed.
    pub fn spawn(self) {
        let (list, id) = (self.list.clone(), self.watch.id);
        let following = list.runtime.spawn(Arc::new(self).follow());
        list.runtime.clone().spawn(async move {
            if let Err(error) = following.await {
                tracing::error!(%error, "standing bundles are dropped");
                list.remove(id);
            }
        });
    }

    async fn follow(self: Arc<Self>) {
        let mut changes = self.host.snapshots.changes();
        let mut history = StateHistory::new(STEPS);
        let mut seen = SnapshotId::default();
        let mut block = None;
        // Dropped with this task, which ends the runs.
        let mut long: JoinSet<Option<LongEnd<B, L>>> = JoinSet::new();
        loop {
            changes.borrow_and_update();
            let is_attended = self.look();
            if is_attended {
                let published = self.host.snapshots.load();
                published.snapshots_after(seen).for_each(|snapshot| history.learn(snapshot));
                history.learn(published.latest());
                seen = published.newest.id;
                if let Some(snapshot) = self.stands_on(&published) {
                    self.catch_up(&snapshot, &history, &mut block, &mut changes, &mut long).await;
                }
            } else {
                // The client has left: only the bundles and their answers are kept. When it returns, the snapshots
                // that the node retains show which bundles are due.
                (history, seen) = (StateHistory::new(STEPS), SnapshotId::default());
            }
            let Some(rest) = self.idle_for() else {
                self.list.remove(self.watch.id);
                return;
            };
            tokio::select! {
                // Ends of runs go first, because there are few, and snapshots may always be waiting.
                biased;
                Some(ended) = long.join_next() => self.end_long(ended.ok().flatten(), &history).await,
                changed = changes.changed(), if is_attended => if changed.is_err() { return },
                () = self.watch.wake.notified() => {}
                () = sleep(rest) => {}
            }
            if self.list.get(self.watch.id).is_none() {
                return;
            }
        }
    }

    /// Returns how long the watch may idle, or `None` if its retention has passed.
    fn idle_for(&self) -> Option<Duration> {
        self.look();
        let state = self.watch.state();
        state.attendance.idle_for(self.list.limits.retention, state.behind().next().is_some(), Instant::now())
    }

    /// Notes whether a client has a connection. Returns whether bundles run.
    fn look(&self) -> bool {
        let has_connection = self.watch.listener.is_there();
        let mut state = self.watch.state();
        let now = Instant::now();
        state.attendance.update(has_connection, now);
        state.attendance.may_run(now)
    }

    /// Moves to a snapshot, and runs the due bundles until a newer snapshot arrives.
    async fn catch_up(
        self: &Arc<Self>,
        snapshot: &Arc<Snapshot>,
        history: &StateHistory,
        block: &mut Option<u64>,
        changes: &mut watch::Receiver<SnapshotId>,
        long: &mut JoinSet<Option<LongEnd<B, L>>>,
    ) {
        let Ok(context) = BlockContext::of(&self.host.spec, snapshot, &self.rules) else { return };
        let (due, is_new) = {
            let mut state = self.watch.state();
            let is_new = state.bundles.at() != Some(snapshot.id);
            if is_new {
                let number = snapshot.header().number;
                let opens = block.replace(number) != Some(number);
                // Bundles that run once a block and were passed over run on its next snapshot.
                state.begins_block = opens
                    || state.begins_block && {
                        let every = |bundle: &Arc<B>| bundle.every_block();
                        state.bundles.behind(every).next().is_some()
                    };
                state.complete_at = state.bundles.name();
                state.long_rests_until = None;
                state.bundles.advance(snapshot, context, history);
                state.note_complete();
            }
            let due: Due<B> = state
                .bundles
                .due(state.may_run())
                .into_iter()
                .map(|at| (at, state.bundles.bundles()[at as usize].request.clone()))
                .collect();
            (due, is_new)
        };
        if is_new || !due.is_empty() {
            self.run_due(snapshot, due, changes).await;
        }
        self.begin_long(long);
    }

    /// Runs bundles in parallel, and announces their answers as they arrive.
    async fn run_due(&self, snapshot: &Arc<Snapshot>, mut due: Due<B>, changes: &watch::Receiver<SnapshotId>) {
        let executor = &self.host.executor;
        let batch = executor.batch();
        let mut running = FuturesUnordered::new();
        let (name, is_late) = {
            let state = self.watch.state();
            let Some(name) = state.bundles.name() else { return };
            // The news are late if their last part was sent.
            (name, state.bundles.announced_behind)
        };
        let listener = &self.watch.listener;
        let mut news = listener.begin(name, is_late);
        let mut stale_chunk = 1;
        loop {
            let is_newest = self.is_newest(snapshot, changes);
            let width = self.list.width(executor);
            while is_newest && running.len() < width && !due.is_empty() {
                let bundles = self.next_chunk(&mut due, &mut stale_chunk);
                let (snapshot, rules) = (snapshot.clone(), self.rules);
                let chunk = Arc::new(Chunk { bundles, snapshot, rules, is_long: false });
                running.push(self.run_chunk(executor.ticket(&self.flow).of(&batch), chunk));
            }
            let Some((chunk, ended)) = running.next().await else { break };
            let ran = ended.len();
            // A run that was too long is repeated.
            let whole = ended.iter().filter(|(_, run)| !matches!(run, StandingRun::TooLong)).count();
            self.list.runs.increment(whole as u64);
            {
                let mut room = self.list.room(self.watch.owner.as_deref());
                let mut state = self.watch.state();
                for (at, run) in ended {
                    let run = Self::within_room(&state, at, run, &mut room);
                    if is_late {
                        let is_answer = matches!(run, StandingRun::Answered { .. });
                        let stale = state.bundles.bundles()[at as usize].stale.clone();
                        state.bundles.record(at, run);
                        self.add_late(&mut news, &state, at, is_answer, stale.as_ref());
                    } else if let Some((name, answer)) = state.bundles.record(at, run) {
                        listener.add_answer(&mut news, name, answer.answer.as_ref());
                    }
                }
                self.watch.count_bytes(&state);
            }
            chunk.bundles[ran..].iter().rev().for_each(|bundle| due.push_front(bundle.clone()));
            let is_last = running.is_empty() && (due.is_empty() || !self.is_newest(snapshot, changes));
            if !is_last && !is_late {
                listener.send(&mut news).await;
            }
        }
        self.send_end(news, is_late).await;
    }

    /// Whether the bundles still run on this snapshot. A newer one supersedes it.
    fn is_newest(&self, snapshot: &Snapshot, changes: &watch::Receiver<SnapshotId>) -> bool {
        let stands = || {
            let newest = self.stands_on(&self.host.snapshots.load());
            newest.is_some_and(|newest| newest.id == snapshot.id)
        };
        changes.has_changed().is_ok_and(|has_changed| !has_changed || stands())
    }

    /// Takes the next bundles to run together on a worker. Bundles whose last run gave no answer run apart from the
    /// others, and few at first, so that the culprit is soon isolated.
    fn next_chunk(&self, due: &mut Due<B>, stale_chunk: &mut usize) -> Vec<(u32, Arc<B>)> {
        let state = self.watch.state();
        let bundles = state.bundles.bundles();
        let is_stale = |(at, _): &(u32, Arc<B>)| bundles[*at as usize].stale.is_some();
        let count = if due.front().is_some_and(is_stale) {
            std::mem::replace(stale_chunk, (2 * *stale_chunk).min(CHUNK)).min(due.len())
        } else {
            due.iter().take(CHUNK).take_while(|bundle| !is_stale(bundle)).count()
        };
        due.drain(..count).collect()
    }

    /// Runs a chunk. Returns it with the ends of the runs, of which there may be fewer.
    async fn run_chunk(&self, ticket: Ticket, chunk: Arc<Chunk<B>>) -> (Arc<Chunk<B>>, Ended<B>) {
        let ended = self.list.run_chunk(&self.host, ticket, &chunk).await;
        (chunk, ended)
    }
}
