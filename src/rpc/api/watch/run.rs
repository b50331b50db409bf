//! The runs of standing bundles on a worker.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::I256;
use bytes::Bytes;
use tokio::time::timeout_at;

use super::WatchList;
use super::request::{WatchedBundle, WatchedPayload};
use crate::{
    engine::SimulationRules,
    ledger::{Chain, Selector, Snapshot},
    meter::MeterCount,
    rpc::{
        api::{search::search_on, simulate::simulate_on},
        json,
        protocol::error::{Result, RpcError},
        run::{Backend, Run, request::Request, runner::RequestRunner},
    },
    scheduler::{LaneName, RunPlace},
    watch::StandingRun,
};

/// The place of the runs.
const PLACE: RunPlace = RunPlace::On(LaneName::Watch);
/// The time after which a run on a worker takes no other bundle.
const CHUNK_TIME: Duration = Duration::from_millis(1);
/// The strides of the meter after which a bundle is long, and may not hold others up: some tens of milliseconds at most,
/// less than a sub-block takes, so that the others are told with each. Not a time, because a busy machine makes no
/// bundle long.
const LONG_STRIDES: u32 = 256;
/// Gas that the precompiles of a bundle may use in that time.
const LONG_PRECOMPILES: u64 = 2_000_000;
/// The part of both bounds within which a long bundle must run to be one of the others again. Less than the whole, so
/// that it does not change with each run, and counted as the bounds are, because a fast machine makes no bundle short.
const SHORT: MeterCount = MeterCount { strides: LONG_STRIDES / 4, precompile_gas: LONG_PRECOMPILES / 4 };

/// Bundles that run on a worker one after the other.
pub struct Chunk {
    pub bundles: Vec<(u32, Arc<WatchedBundle>)>,
    pub snapshot: Arc<Snapshot>,
    pub rules: SimulationRules,
    /// Whether the run may take until the deadline, because no other bundle waits for its end.
    pub is_long: bool,
}

impl Backend {
    /// Returns the snapshot on which bundles stand: the newest, or the newest sealed block.
    ///
    /// # Errors
    ///
    /// Returns -32000 if the feed is broken and `--strict-pending` is set.
    pub fn standing_on(&self, published: &Chain, selector: Selector) -> Result<Arc<Snapshot>> {
        let selected = self.select(published, selector)?;
        // A fallback publishes the canonical state under a new id.
        Ok(if selected.state == published.newest.state { published.newest.clone() } else { selected })
    }

    /// Runs bundles of a chunk in order, as many as there is time for. Returns the ends of their runs.
    pub fn run_standing(&self, run: &mut Run<'_>, chunk: &Chunk) -> Vec<(u32, StandingRun)> {
        let began = Instant::now();
        let mut ended = Vec::with_capacity(chunk.bundles.len());
        for (at, bundle) in &chunk.bundles {
            run.out = Vec::new();
            if !chunk.is_long {
                run.meter.bound_to(LONG_STRIDES, LONG_PRECOMPILES);
            }
            let (snapshot, rules) = (&chunk.snapshot, &chunk.rules);
            let done = match &bundle.payload {
                WatchedPayload::Simulate(request) => {
                    simulate_on(self, run, snapshot, rules, request, true).map(|()| (None, true))
                }
                WatchedPayload::Search(request) => search_on(self, run, snapshot, rules, request),
            };
            // The deadline is that of all runs.
            run.meter = std::mem::take(&mut run.overlay.meter);
            if let Some(why) = run.overlay.take_unexecutable() {
                // The answer stands as long as what has led the run there.
                let (text, reads) = (text_of(&RpcError::Unexecutable(why)), run.overlay.reads());
                let text = Some(member("error", &text));
                ended.push((*at, StandingRun::Answered { text, reads, gained: None, is_long: false }));
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
            if !is_whole && !chunk.is_long {
                ended.push((*at, StandingRun::TooLong));
                break;
            }
            if !is_whole {
                let late = RpcError::new(-32016, "the bundle was not run to its end in time");
                ended.push((*at, StandingRun::Stale(text_of(&late))));
                break;
            }
            let reads = run.overlay.reads();
            // An error is told whatever the objective, which it does not have.
            let text = (name == "error" || bundle.shows(gained)).then(|| member(name, &text));
            let MeterCount { strides, precompile_gas } = run.meter.spent();
            let is_long = chunk.is_long && (strides > SHORT.strides || precompile_gas > SHORT.precompile_gas);
            ended.push((*at, StandingRun::Answered { text, reads, gained, is_long }));
            if began.elapsed() > CHUNK_TIME {
                break;
            }
        }
        run.out = Vec::new();
        ended
    }
}

impl WatchList {
    /// Runs a chunk. Returns the ends of its first runs, as many as there was time for.
    ///
    /// # Errors
    ///
    /// Returns an error if no worker has taken the chunk.
    pub async fn run_chunk(
        &self,
        runner: &Arc<RequestRunner>,
        request: Request,
        chunk: &Arc<Chunk>,
    ) -> Result<Vec<(u32, StandingRun)>> {
        let deadline = request.ticket.deadline();
        // With so many permits a run, no more runs of all watches are under way than this one alone may have.
        let count = runner.executor.workers().div_ceil(self.width(&runner.executor));
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let permits = timeout_at(deadline.into(), self.permits.acquire_many(count)).await;
        let ended = run_on_worker(runner, request, chunk).await;
        drop(permits);
        ended
    }
}

/// Runs a chunk. Returns the ends of its first runs, or an error if no worker has taken it.
pub async fn run_on_worker(
    runner: &Arc<RequestRunner>,
    request: Request,
    chunk: &Arc<Chunk>,
) -> Result<Vec<(u32, StandingRun)>> {
    let chunk = chunk.clone();
    let work = move |backend: &Backend, run: &mut Run<'_>| Ok(backend.run_standing(run, &chunk));
    runner.run_step(PLACE, request, work).await.map(|(ended, _)| ended)
}

impl WatchedBundle {
    /// Returns whether an answer with this objective is told.
    fn shows(&self, gained: Option<I256>) -> bool {
        self.above.is_none_or(|above| gained.is_some_and(|gained| gained > above))
    }
}

/// Returns a member of a JSON object.
pub fn member(name: &str, value: &[u8]) -> Bytes {
    [b"\"", name.as_bytes(), b"\":", value].concat().into()
}

/// Returns an error as JSON.
pub fn text_of(error: &RpcError) -> Bytes {
    let mut out = Vec::new();
    json::value(&mut out, &error.clone().into_object());
    out.into()
}
