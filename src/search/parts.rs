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

use super::{begun::BegunSearch, outcome::SearchOutcome};
use crate::{
    chain::ChainSpec,
    engine::{BundleSearch, Engine, SearchedValues, SimulationError, SimulationRules, Variant},
    ledger::Snapshot,
    meter::{Meter, Stopped},
    scheduler::{Executor, FetchMissed, LaneName, Refused, RunTarget, Task, TaskError, Ticket},
    state::{CodeCache, Overlay},
};

/// The fewest and the most variants of one part.
const MIN_PART: usize = 8;
const MAX_PART: usize = 256;
/// The number of parts into which a long search is divided.
const PARTS: usize = 16;

/// Runs one search on the workers, in the lane of bundles.
#[derive(Clone)]
pub struct Searcher {
    /// The executor.
    pub executor: Executor,
    /// The source of the state that runs miss.
    pub source: Arc<dyn FetchMissed>,
    /// The deadline of the search, and its client.
    pub ticket: Ticket,
    /// The time at which variants stop, so that some is left for the best one's outputs.
    pub stops: Instant,
    /// The parameters of the request, by which the source may predict what is missed. May be empty.
    pub params: ByteString,
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
            Self::Task(TaskError::Refused(Refused::Deadline))
                | Self::Simulation(SimulationError::Stopped(Stopped::Deadline))
        )
    }
}

impl From<Stopped> for SearchError {
    fn from(stopped: Stopped) -> Self {
        Self::Simulation(stopped.into())
    }
}

/// The run of a search's beginning on a worker.
struct BeginRun {
    chain: (Arc<ChainSpec>, Arc<CodeCache>),
    rules: SimulationRules,
    snapshot: Arc<Snapshot>,
    search: BundleSearch,
    params: ByteString,
}

/// The run of a part of a search that has begun, on a worker.
struct PartRun<W> {
    begun: Arc<BegunSearch>,
    /// The time at which the variants of the part stop.
    stops: Option<Instant>,
    work: W,
    params: ByteString,
}

impl Task for BeginRun {
    type Answer = Result<BegunSearch, SimulationError>;

    fn target(&self) -> RunTarget {
        RunTarget::On(LaneName::Bundle)
    }

    fn params(&self) -> &str {
        &self.params
    }

    fn run(&self, overlay: &mut Overlay, meter: Meter) -> Self::Answer {
        let Self { chain: (spec, codes), rules, snapshot, search, .. } = self;
        BegunSearch::begin((spec, codes), *rules, snapshot.clone(), search.clone(), overlay, meter)
    }
}

impl<T, W> Task for PartRun<W>
where
    T: Send + 'static,
    W: Fn(&BegunSearch, &mut Engine<'_>) -> Result<T, Stopped> + Send + Sync + 'static,
{
    type Answer = Result<T, Stopped>;

    fn target(&self) -> RunTarget {
        RunTarget::On(LaneName::Bundle)
    }

    fn params(&self) -> &str {
        &self.params
    }

    fn run(&self, overlay: &mut Overlay, mut meter: Meter) -> Self::Answer {
        if let Some(stops) = self.stops {
            meter.limit_time(stops);
        }
        (self.work)(&self.begun, &mut self.begun.engine(overlay, meter))
    }
}

impl Searcher {
    /// Runs a search on a snapshot.
    ///
    /// # Errors
    ///
    /// Returns [`SearchError`] if the bundle's beginning cannot run, or if the search was not run at all.
    pub async fn search(
        &self,
        (spec, codes): (&Arc<ChainSpec>, &Arc<CodeCache>),
        rules: SimulationRules,
        snapshot: Arc<Snapshot>,
        search: BundleSearch,
    ) -> Result<SearchOutcome, SearchError> {
        let chain = (spec.clone(), codes.clone());
        let begin = BeginRun { chain, rules, snapshot, search, params: self.params.clone() };
        let begun = self.executor.submit(begin, self.ticket.clone(), self.source.as_ref()).await??;
        let begun = Arc::new(begun);
        self.finish(&begun, || Ok(()), Ok).await
    }

    /// Runs the variants of a search that has begun, and has `show` turn the outcome into the answer on the worker that
    /// ran the best variant. At the deadline, the outcome has the best variants so far. `may_try` is asked before each
    /// variant besides the [first](BegunSearch::first) ones.
    ///
    /// # Errors
    ///
    /// Returns the error of `may_try` or of `show`, or an error if a part was not run.
    pub async fn finish<T: Send + 'static, E: From<SearchError> + Send + 'static>(
        &self,
        begun: &Arc<BegunSearch>,
        may_try: impl Fn() -> Result<(), E> + Send + Sync + 'static,
        show: impl Fn(SearchOutcome) -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<T, E> {
        let (mut variants, mut complete) = self.try_all(begun).await?;
        if let SearchedValues::Maximize { tolerance, .. } = begun.search.values
            && complete
        {
            (variants, complete) = self.narrow(begun, variants, tolerance, may_try).await?;
        }
        let ranked = SearchOutcome::of(&begun.search, variants, complete);
        let show = Arc::new(show);
        let work = {
            let (ranked, show) = (ranked.clone(), show.clone());
            move |begun: &BegunSearch, engine: &mut Engine<'_>| {
                let outcome = ranked.clone().show(engine, &begun.snapshot, &begun.search, false)?;
                // Such a run is repeated.
                if engine.overlay.has_missed() {
                    return Err(Stopped::Cancelled);
                }
                Ok(show(outcome))
            }
        };
        match self.run(begun, self.ticket.clone(), None, work).await {
            Ok(shown) => shown,
            // No time is left to run the best variant for its outputs.
            Err(error) if error.is_deadline() => show(SearchOutcome { complete: false, ..ranked }),
            Err(error) => Err(error.into()),
        }
    }

    /// Runs the first variants side by side. Returns those that ran in time, and whether all did.
    async fn try_all(&self, begun: &Arc<BegunSearch>) -> Result<(Vec<Variant>, bool), SearchError> {
        let count = begun.first.len();
        let size = count.div_ceil(PARTS).clamp(MIN_PART, MAX_PART);
        let batch = self.executor.batch();
        let parts = (0..count).step_by(size).map(|from| {
            let part = from..(from + size).min(count);
            let work = move |begun: &BegunSearch, engine: &mut Engine<'_>| {
                begun.try_variants(engine, &begun.first[part.clone()])
            };
            self.run(begun, self.ticket.clone().of(&batch), Some(self.stops), work)
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

    /// Searches for the best value between the neighbours of the best so far.
    async fn narrow<E: From<SearchError> + Send + 'static>(
        &self,
        begun: &Arc<BegunSearch>,
        variants: Vec<Variant>,
        tolerance: U256,
        may_try: impl Fn() -> Result<(), E> + Send + Sync + 'static,
    ) -> Result<(Vec<Variant>, bool), E> {
        let work = {
            let (before, asked) = (variants.clone(), AtomicUsize::new(0));
            move |begun: &BegunSearch, engine: &mut Engine<'_>| {
                let (mut variants, mut tried, mut refused) = (before.clone(), 0, Ok(()));
                let may_try = || {
                    tried += 1;
                    // A run that is repeated, because it has missed state, has asked for its variants before.
                    if tried > asked.load(Relaxed) {
                        refused = may_try();
                        if refused.is_ok() {
                            asked.store(tried, Relaxed);
                        }
                    }
                    refused.is_ok()
                };
                let complete = begun.narrow(engine, &mut variants, tolerance, may_try)?;
                Ok(refused.map(|()| (variants, complete)))
            }
        };
        match self.run(begun, self.ticket.clone(), Some(self.stops), work).await {
            Ok(narrowed) => narrowed,
            Err(error) if error.is_deadline() => Ok((variants, false)),
            Err(error) => Err(error.into()),
        }
    }

    /// Runs a part of a search that has begun. Its variants stop at `stops`.
    async fn run<T: Send + 'static>(
        &self,
        begun: &Arc<BegunSearch>,
        ticket: Ticket,
        stops: Option<Instant>,
        work: impl Fn(&BegunSearch, &mut Engine<'_>) -> Result<T, Stopped> + Send + Sync + 'static,
    ) -> Result<T, SearchError> {
        let part = PartRun { begun: begun.clone(), stops, work, params: self.params.clone() };
        Ok(self.executor.submit(part, ticket, self.source.as_ref()).await??)
    }
}
