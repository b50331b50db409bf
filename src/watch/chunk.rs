//! The runs of bundles on a worker.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::timeout_at;

use super::{
    bundle::{Bundle, BundleError, BundleRun, StaleReason},
    bundles::StandingRun,
    list::WatchList,
    listener::Listener,
};
use crate::{
    engine::{Engine, SimulationRules},
    ledger::Snapshot,
    meter::{Meter, MeterCount},
    scheduler::{Host, LaneName, RunTarget, Task, TaskError, TaskName, Ticket},
    state::Overlay,
};

/// The time after which a run on a worker takes no other bundle.
const CHUNK_TIME: Duration = Duration::from_millis(1);
/// The strides of the meter after which a bundle is long, and may not hold others up: some tens of milliseconds at most,
/// less than a sub-block takes, so that the others are announced with each. Not a time, because a busy machine makes no
/// bundle long.
const LONG_STRIDES: u32 = 256;
/// Gas that the precompiles of a bundle may use in that time.
const LONG_PRECOMPILES: u64 = 2_000_000;
/// The part of both bounds within which a long bundle must run to be one of the others again. Less than the whole, so
/// that it does not change with each run, and counted as the bounds are, because a fast machine makes no bundle short.
const SHORT: MeterCount = MeterCount { strides: LONG_STRIDES / 4, precompile_gas: LONG_PRECOMPILES / 4 };

/// The ends of runs, each with the index of its bundle.
pub type Ended<B> = Vec<(u32, StandingRun<<B as Bundle>::Answer>)>;

/// Bundles that run on a worker one after the other.
#[derive(Debug)]
pub struct Chunk<B> {
    pub bundles: Vec<(u32, Arc<B>)>,
    pub snapshot: Arc<Snapshot>,
    pub rules: SimulationRules,
    /// Whether the run may take until the deadline, because no other bundle waits for its end.
    pub is_long: bool,
}

/// The run of a chunk.
struct ChunkRun<B> {
    host: Arc<Host>,
    chunk: Arc<Chunk<B>>,
}

impl<B: Bundle> Task for ChunkRun<B> {
    /// The ends of the first runs, as many as there was time for.
    type Answer = Ended<B>;

    fn name(&self) -> TaskName {
        &"standing bundles"
    }

    fn target(&self) -> RunTarget {
        RunTarget::On(LaneName::Watch)
    }

    fn run(&self, overlay: &mut Overlay, mut meter: Meter) -> Self::Answer {
        let Chunk { bundles, snapshot, rules, is_long } = self.chunk.as_ref();
        let Host { spec, codes, .. } = self.host.as_ref();
        let began = Instant::now();
        let mut ended = Vec::with_capacity(bundles.len());
        for (at, bundle) in bundles {
            if !is_long {
                meter.bound_to(LONG_STRIDES, LONG_PRECOMPILES);
            }
            overlay.reset(snapshot.world.clone(), snapshot.hashes.clone(), std::mem::take(&mut meter));
            overlay.record_reads(true);
            let BundleRun { answer, gained, complete } =
                bundle.run(&mut Engine { spec, rules, codes, overlay: &mut *overlay }, snapshot);
            // All runs share the deadline.
            meter = std::mem::take(&mut overlay.meter);
            if let Some(why) = overlay.take_unexecutable() {
                let answer = Some(bundle.failed(BundleError::Unexecutable(why)));
                let reads = overlay.reads();
                ended.push((*at, StandingRun::Answered { answer, reads, gained: None, is_long: false }));
                // The meter has stopped.
                break;
            }
            if overlay.has_missed() {
                // The whole chunk runs again. The rest runs now to find what else it will miss, for a single fetch.
                if meter.stopped().is_some() || began.elapsed() > CHUNK_TIME {
                    break;
                }
                continue;
            }
            if meter.stopped().is_some() || !complete {
                let run = if *is_long { StandingRun::Stale(StaleReason::Unfinished) } else { StandingRun::TooLong };
                ended.push((*at, run));
                break;
            }
            let MeterCount { strides, precompile_gas } = meter.spent();
            let is_long = *is_long && (strides > SHORT.strides || precompile_gas > SHORT.precompile_gas);
            ended.push((*at, StandingRun::Answered { answer, reads: overlay.reads(), gained, is_long }));
            if began.elapsed() > CHUNK_TIME {
                break;
            }
        }
        ended
    }
}

impl<B: Bundle> Chunk<B> {
    /// Runs the chunk on a worker of `host`. Returns the ends of its first runs, as many as there was time for; if no
    /// worker has taken it, all are stale.
    pub async fn run(self: &Arc<Self>, host: &Arc<Host>, ticket: Ticket) -> Ended<B> {
        let run = ChunkRun { host: host.clone(), chunk: self.clone() };
        let ended = host.executor.submit(run, ticket, host.source.as_ref()).await;
        ended.unwrap_or_else(|error| self.stale_by(&error))
    }

    fn stale_by(&self, error: &TaskError) -> Ended<B> {
        self.bundles.iter().map(|(at, _)| (*at, StandingRun::Stale(error.clone().into()))).collect()
    }
}

impl<B: Bundle, L: Listener<B>> WatchList<B, L> {
    /// Runs a chunk, as [`Chunk::run`] does, once all watches together have room for it.
    pub(super) async fn run_chunk(&self, host: &Arc<Host>, ticket: Ticket, chunk: &Arc<Chunk<B>>) -> Ended<B> {
        // With this many permits per run, no more runs of all watches are in progress than this watch alone may have.
        let count = host.executor.workers().div_ceil(self.width(&host.executor));
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let permits = timeout_at(ticket.deadline().into(), self.permits.acquire_many(count)).await;
        let ended = chunk.run(host, ticket).await;
        drop(permits);
        ended
    }
}
