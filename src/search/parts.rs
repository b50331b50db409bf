//! A search in parts, which run side by side on the workers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use alloy_primitives::U256;
use bytestring::ByteString;

use super::{begun::BegunSearch, outcome::SearchOutcome, rate::RunRate};
use crate::{
    engine::{Engine, SearchedValues, SimulationError, SimulationRules, Variant},
    ledger::Snapshot,
    meter::{Meter, Stopped},
    scheduler::{Host, LaneName, Rejected, RunTarget, Task, TaskError, TaskName, Ticket},
    state::Overlay,
};

/// The fewest and the most variants of one part.
const MIN_PART: usize = 8;
const MAX_PART: usize = 256;
/// The number of parts into which a long search is divided.
const PARTS: usize = 16;

/// Runs one search on the workers, in the lane of bundles.
#[derive(Clone)]
pub struct Searcher {
    /// The workers.
    pub host: Arc<Host>,
    /// The rules of the runs.
    pub rules: SimulationRules,
    /// The deadline of the search, and its client.
    pub ticket: Ticket,
    /// The time at which variants stop, so that some is left for the best one's outputs.
    pub stops: Instant,
    /// The parameters of the request, from which the source may predict what will be missed. May be empty.
    pub params: ByteString,
    /// The lane in which it runs.
    pub lane: LaneName,
}

/// The reason why a search has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// A part was not run.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The beginning of the bundle cannot run, so no variant can.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
}

impl SearchError {
    /// Returns whether the deadline ended a part, or passed before a worker was free for it.
    const fn is_deadline(&self) -> bool {
        matches!(
            self,
            Self::Task(TaskError::Rejected(Rejected::Deadline))
                | Self::Simulation(SimulationError::Stopped(Stopped::Deadline))
        )
    }
}

/// A run of a search on a worker: of its beginning, of some of its variants, or of the best one with its outputs.
struct SearchRun<W> {
    searcher: Searcher,
    snapshot: Arc<Snapshot>,
    /// The time at which its variants stop.
    stops: Option<Instant>,
    work: W,
}

impl<T, W> Task for SearchRun<W>
where
    T: Send + 'static,
    W: Fn(&mut Engine<'_>) -> Result<T, SimulationError> + Send + Sync + 'static,
{
    type Answer = Result<T, SimulationError>;

    fn name(&self) -> TaskName {
        &"a search"
    }

    fn target(&self) -> RunTarget {
        RunTarget::On(self.searcher.lane)
    }

    fn params(&self) -> &str {
        &self.searcher.params
    }

    fn run(&self, overlay: &mut Overlay, mut meter: Meter) -> Self::Answer {
        let Self { searcher: Searcher { host, rules, .. }, snapshot, .. } = self;
        if let Some(stops) = self.stops {
            meter.limit_time(stops);
        }
        overlay.reset(snapshot.world.clone(), snapshot.hashes.clone(), meter);
        (self.work)(&mut Engine { spec: &host.spec, rules, codes: &host.codes, overlay })
    }
}

impl Searcher {
    /// Runs the variants of a search that has begun. `show` turns the outcome into the answer, on the worker that ran
    /// the best variant. Each run is drawn from `rate`. If the deadline passes, or `rate` allows no more runs before
    /// it, the outcome has the best variants so far.
    ///
    /// # Errors
    ///
    /// Returns the error of `show`, or an error if a part was not run.
    pub async fn finish<T: Send + 'static, E: From<SearchError> + Send + 'static>(
        &self,
        begun: &Arc<BegunSearch>,
        rate: &impl RunRate,
        show: impl Fn(SearchOutcome) -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<T, E> {
        let (mut variants, mut complete) = self.try_all(begun, rate).await?;
        if let SearchedValues::Maximize { tolerance, .. } = begun.search.values
            && complete
        {
            (variants, complete) = self.narrow(begun, variants, tolerance, rate).await?;
        }
        let ranked = SearchOutcome::of(begun, variants, complete);
        let show = Arc::new(show);
        let work = {
            let (begun, ranked, show) = (begun.clone(), ranked.clone(), show.clone());
            move |engine: &mut Engine<'_>| {
                let outcome = ranked.clone().show(engine, &begun, false)?;
                // Such a run is repeated.
                if engine.overlay.has_missed() {
                    return Err(Stopped::Cancelled.into());
                }
                Ok(show(outcome))
            }
        };
        match self.run(&begun.snapshot, self.ticket.clone(), None, work).await {
            Ok(shown) => shown,
            // No time is left to run the best variant for its outputs.
            Err(error) if error.is_deadline() => show(SearchOutcome { complete: false, ..ranked }),
            Err(error) => Err(error.into()),
        }
    }

    /// Runs the first variants in parallel. Returns the variants that ran in time, and whether all did.
    async fn try_all(
        &self,
        begun: &Arc<BegunSearch>,
        rate: &impl RunRate,
    ) -> Result<(Vec<Variant>, bool), SearchError> {
        let count = begun.first.len();
        let size = count.div_ceil(PARTS).clamp(MIN_PART, MAX_PART);
        let batch = self.host.executor.batch();
        let parts = (0..count).step_by(size).map(|from| {
            let part = from..(from + size).min(count);
            let (of, runs) = (begun.clone(), part.len());
            let work = move |engine: &mut Engine<'_>| Ok(of.try_variants(engine, &of.first[part.clone()])?);
            let run = self.run(&begun.snapshot, self.ticket.clone().of(&batch), Some(self.stops), work);
            async move {
                match rate.draw(runs, self.stops).await {
                    true => run.await,
                    false => Ok((Vec::new(), false)),
                }
            }
        });
        let (mut variants, mut complete) = (Vec::with_capacity(count), true);
        for part in futures::future::join_all(parts).await {
            match part {
                Ok((tried, is_whole)) => {
                    variants.extend(tried);
                    complete &= is_whole;
                }
                // The part waited until the deadline, so the search ends with the others.
                Err(error) if error.is_deadline() => complete = false,
                Err(error) => return Err(error),
            }
        }
        Ok((variants, complete))
    }

    /// Searches for the best value between the neighbours of the best so far. No worker waits for the rate: without a
    /// run to draw, the search leaves its worker, and continues once one is available.
    async fn narrow(
        &self,
        begun: &Arc<BegunSearch>,
        mut variants: Vec<Variant>,
        tolerance: U256,
        rate: &impl RunRate,
    ) -> Result<(Vec<Variant>, bool), SearchError> {
        let mut granted = 0;
        loop {
            let work = {
                let (begun, before, rate) = (begun.clone(), variants.clone(), rate.clone());
                let drawn = AtomicUsize::new(granted);
                move |engine: &mut Engine<'_>| {
                    let (mut variants, mut tried, mut has_run) = (before.clone(), 0, true);
                    let may_try = || {
                        tried += 1;
                        // A run that is repeated, because it has missed state, has drawn its variants before.
                        if tried > drawn.load(Relaxed) {
                            has_run = rate.try_draw();
                            if has_run {
                                drawn.store(tried, Relaxed);
                            }
                        }
                        has_run
                    };
                    let complete = begun.narrow(engine, &mut variants, tolerance, may_try)?;
                    Ok((variants, complete, has_run))
                }
            };
            match self.run(&begun.snapshot, self.ticket.clone(), Some(self.stops), work).await {
                Ok((narrowed, false, false)) if rate.draw(1, self.stops).await => (variants, granted) = (narrowed, 1),
                Ok((narrowed, complete, _)) => return Ok((narrowed, complete)),
                Err(error) if error.is_deadline() => return Ok((variants, false)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Runs a part of a search on a snapshot. Its variants stop at `stops`.
    async fn run<T: Send + 'static>(
        &self,
        snapshot: &Arc<Snapshot>,
        ticket: Ticket,
        stops: Option<Instant>,
        work: impl Fn(&mut Engine<'_>) -> Result<T, SimulationError> + Send + Sync + 'static,
    ) -> Result<T, SearchError> {
        let Host { executor, source, .. } = self.host.as_ref();
        let run = SearchRun { searcher: self.clone(), snapshot: snapshot.clone(), stops, work };
        Ok(executor.submit(run, ticket, source.as_ref()).await??)
    }
}
