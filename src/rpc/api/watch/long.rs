//! Long bundles, each of which runs by itself beside the others.
//!
//! A bundle that takes longer than others may wait for is run apart from them: on few workers of the node, until the
//! deadline, and on while newer snapshots come. Its answer is told by itself at its end, with the snapshot that it holds
//! for: the current one, or the one on which it ran if what it has read has changed since. Then it is due again.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use tokio::{task::JoinSet, time::sleep};

use super::{
    Watch, WatchState,
    news::News,
    run::{Chunk, run_on_worker},
    task::{WatchTask, stale_by},
};
use crate::{
    scheduler::LaneName,
    watch::{Attendance, ChainPlace, StandingRun, StateHistory},
};

/// The interval at which a long run on the only worker looks whether another job waits.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The end of the run of a long bundle.
pub struct LongEnd {
    at: u32,
    run: StandingRun,
    /// The place in the chain at which the run began.
    place: Arc<ChainPlace>,
    /// Until the end is recorded, no other run of the bundle begins.
    _running: LongRun,
}

impl WatchTask {
    /// Begins runs of long bundles, as many as are due and may run at once.
    pub fn begin_long(self: &Arc<Self>, long: &mut JoinSet<Option<LongEnd>>) {
        let (due, running) = {
            let state = self.watch.state();
            (state.long_due().count(), state.running.len())
        };
        while long.len() < (running + due).min(self.list.most_long) {
            long.spawn(self.clone().run_long());
        }
    }

    /// Runs the next long bundle on the newest snapshot, once a worker may take it.
    async fn run_long(self: Arc<Self>) -> Option<LongEnd> {
        let _permit = self.list.long_permits.acquire().await;
        let published = self.runner.snapshots.load();
        let snapshot = self.runner.backend.standing_on(&published, self.watch.selector).ok()?;
        let (running, chunk, place) = {
            let mut state = self.watch.state();
            // If a newer snapshot has come, the bundle runs when it is known what is due there.
            let place = state.bundles.place().filter(|_| state.bundles.at() == Some(snapshot.id))?;
            let at = state.long_due().next()?;
            let bundle = state.bundles.bundles()[at as usize].request.clone();
            let running = LongRun::of(&self.watch, &mut state, at);
            let bundles = vec![(at, bundle)];
            (running, Arc::new(Chunk { bundles, snapshot, rules: self.rules, is_long: true }), place)
        };
        let ticket = self.runner.executor.ticket(self.caller.client.flow());
        let request = self.request(published, ticket);
        let ended = tokio::select! {
            ended = run_on_worker(&self.runner, request, &chunk) => {
                ended.unwrap_or_else(|error| stale_by(&chunk, &error))
            }
            () = self.only_worker_is_needed() => return None,
        };
        ended.into_iter().next().map(|(at, run)| LongEnd { at, run, place, _running: running })
    }

    /// Returns when a job waits for the only worker of the node, which a long run must leave to it. Long requests and
    /// other bundles do not run in the pauses of a run.
    async fn only_worker_is_needed(&self) {
        let executor = &self.runner.executor;
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

    /// Records the end of a run of a long bundle, and tells it.
    pub async fn end_long(&self, ended: Option<LongEnd>, history: &StateHistory) {
        let Some(LongEnd { at, run, place, _running }) = ended else { return };
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
            let stale = state.bundles.bundles()[at as usize].stale().cloned();
            state.bundles.record_from(&place, history, at, run);
            let holds = state.bundles.holds_at(&state.bundles.bundles()[at as usize]).filter(|_| is_answer);
            let mut news = News::of(&self.watch, holds.unwrap_or(now), true);
            news.add_late(&state, at, is_answer, stale.as_ref());
            self.watch.bytes.store(self.requests + state.bundles.bytes(), Relaxed);
            news
        };
        self.send_end(news).await;
    }
}

/// A long bundle that runs. It counts as running until this is dropped.
struct LongRun {
    watch: Arc<Watch>,
    at: u32,
}

impl LongRun {
    fn of(watch: &Arc<Watch>, state: &mut WatchState, at: u32) -> Self {
        state.running.push(at);
        Self { watch: watch.clone(), at }
    }
}

impl Drop for LongRun {
    fn drop(&mut self) {
        self.watch.state().running.retain(|at| *at != self.at);
    }
}
