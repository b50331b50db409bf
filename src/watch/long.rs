//! Long bundles, each of which runs separately from the others.
//!
//! A bundle that would delay the others too much runs apart from them: on few workers of the node, until the deadline,
//! and even while newer snapshots arrive. Its answer is announced separately, with the snapshot for which it holds:
//! the current one, or, if its reads have changed since, the one on which it ran. In the second case it is due again.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{task::JoinSet, time::sleep};

use super::{
    attendance::Attendance,
    bundle::Bundle,
    bundles::{ChainPoint, StandingRun},
    chunk::Chunk,
    history::StateHistory,
    list::{Watch, WatchState},
    listener::Listener,
    task::WatchTask,
};
use crate::scheduler::LaneName;

/// The interval at which a long run on the only worker looks whether another job waits.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The end of the run of a long bundle.
pub struct LongEnd<B: Bundle, L: Listener<B>> {
    at: u32,
    run: StandingRun<B::Answer>,
    /// The point of the chain at which the run began.
    point: Arc<ChainPoint>,
    /// Until the end is recorded, no other run of the bundle begins.
    _running: LongRun<B, L>,
}

impl<B: Bundle, L: Listener<B>> WatchTask<B, L> {
    /// Begins runs of long bundles, as many as are due and may run at once.
    pub(super) fn begin_long(self: &Arc<Self>, long: &mut JoinSet<Option<LongEnd<B, L>>>) {
        let (due, running) = {
            let state = self.watch.state();
            (state.long_due().count(), state.running.len())
        };
        while long.len() < (running + due).min(self.list.most_long) {
            long.spawn(self.clone().run_long());
        }
    }

    /// Runs the next long bundle on the newest snapshot, once a worker may take it.
    async fn run_long(self: Arc<Self>) -> Option<LongEnd<B, L>> {
        let _permit = self.list.long_permits.acquire().await;
        let published = self.host.snapshots.load();
        let snapshot = self.stands_on(&published)?;
        let (running, chunk, point) = {
            let mut state = self.watch.state();
            // If a newer snapshot has arrived, the bundle runs once the due bundles of that snapshot are known.
            let point = state.bundles.point().filter(|_| state.bundles.at() == Some(snapshot.id))?;
            let at = state.long_due().next()?;
            let bundle = state.bundles.bundles()[at as usize].request.clone();
            let running = LongRun::of(&self.watch, &mut state, at);
            let bundles = vec![(at, bundle)];
            (running, Arc::new(Chunk { bundles, snapshot, rules: self.rules, is_long: true }), point)
        };
        let ticket = self.host.executor.ticket(&self.flow);
        let ended = tokio::select! {
            ended = chunk.run(&self.host, ticket) => ended,
            () = self.only_worker_is_needed() => return None,
        };
        ended.into_iter().next().map(|(at, run)| LongEnd { at, run, point, _running: running })
    }

    /// Returns when a job waits for the only worker of the node, which a long run must leave to it. Long requests and
    /// other bundles do not run in the pauses of a run.
    async fn only_worker_is_needed(&self) {
        let executor = &self.host.executor;
        if executor.workers() > 1 {
            return std::future::pending().await;
        }
        loop {
            sleep(POLL_INTERVAL).await;
            if LaneName::ALL.iter().any(|lane| executor.waiting(*lane) > 0) {
                return;
            }
        }
    }

    /// Records the end of a run of a long bundle, and announces it.
    pub(super) async fn end_long(&self, ended: Option<LongEnd<B, L>>, history: &StateHistory) {
        let Some(LongEnd { at, run, point, _running }) = ended else { return };
        self.list.runs.increment(1);
        let news = {
            let mut room = self.list.room(self.watch.owner.as_deref());
            let mut state = self.watch.state();
            let Some(now) = state.bundles.name() else { return };
            if matches!(run, StandingRun::Stale(_)) {
                state.long_rests_until = Some(Instant::now() + Attendance::RETRY_PAUSE);
            }
            let run = Self::within_room(&state, at, run, &mut room);
            let is_answer = matches!(run, StandingRun::Answered { .. });
            let stale = state.bundles.bundles()[at as usize].stale.clone();
            state.bundles.record_from(&point, history, at, run);
            let holds = state.bundles.holds_at(&state.bundles.bundles()[at as usize]).filter(|_| is_answer);
            let mut news = self.watch.listener.begin(holds.unwrap_or(now), true);
            self.add_late(&mut news, &state, at, is_answer, stale.as_ref());
            self.watch.count_bytes(&state);
            news
        };
        self.send_end(news, true).await;
    }
}

/// A long bundle that runs. It counts as running until this is dropped.
struct LongRun<B: Bundle, L: Listener<B>> {
    watch: Arc<Watch<B, L>>,
    at: u32,
}

impl<B: Bundle, L: Listener<B>> LongRun<B, L> {
    fn of(watch: &Arc<Watch<B, L>>, state: &mut WatchState<B>, at: u32) -> Self {
        state.running.push(at);
        Self { watch: watch.clone(), at }
    }
}

impl<B: Bundle, L: Listener<B>> Drop for LongRun<B, L> {
    fn drop(&mut self) {
        self.watch.state().running.retain(|at| *at != self.at);
    }
}
