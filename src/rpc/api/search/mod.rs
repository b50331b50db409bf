//! `presim_search`: a beginning that runs once, then the variants side by side, then the best one's outputs.

pub mod request;
mod result;

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use alloy_primitives::{I256, U256};

use self::request::SearchRequest;
use super::simulate::SimulationView;
use crate::rpc::{
    json,
    protocol::error::Result,
    run::{
        Backend, Run,
        request::{Request, begin},
        runner::RequestRunner,
    },
};
use crate::{
    engine::{Beginning, Outputs, SearchedValues, SimulationError, SimulationRules, Variant, VariantEnd},
    ledger::Snapshot,
    meter::Stopped,
    scheduler::{LaneName, RunPlace},
};

/// The place of the runs.
const PLACE: RunPlace = RunPlace::On(LaneName::Bundle);
/// The fewest and the most variants of one run.
const MIN_PART: usize = 8;
const MAX_PART: usize = 256;
/// The number of runs into which a long search is divided.
const PARTS: usize = 16;

/// A search that has run its beginning.
struct BegunSearch {
    request: SearchRequest,
    snapshot: Arc<Snapshot>,
    rules: SimulationRules,
    beginning: Beginning,
    /// When variants stop, so that time is left for the best one's outputs.
    stops: Instant,
}

impl RequestRunner {
    /// Runs the variants of a bundle, and answers with the best ones. At the deadline, the answer has the best so far.
    ///
    /// # Errors
    ///
    /// Returns -32602 if the search is invalid, -32005 if it has more variants than the client's rate allows, and the
    /// errors of `eth_simulateV1` if the beginning is refused.
    pub async fn search(self: &Arc<Self>, request: Request) -> Result<Vec<u8>> {
        let arrived = Instant::now();
        let left = request.ticket.deadline().saturating_duration_since(arrived);
        // A fifth of the time is left for the outputs.
        let stops = arrived + left.mul_f64(0.8);
        let first = move |backend: &Backend, run: &mut Run<'_>| backend.begin_search(run, stops);
        let begun = Arc::new(self.run_step(PLACE, request.clone(), first).await?.0);
        let values = &begun.request.search.values;
        let (mut variants, mut complete) = self.try_all(&request, &begun, &values.first()).await?;
        if let SearchedValues::Maximize { tolerance, .. } = values
            && complete
        {
            (variants, complete) = self.narrow(&request, &begun, variants, *tolerance).await?;
        }
        let finish = {
            let (begun, variants) = (begun.clone(), variants.clone());
            move |backend: &Backend, run: &mut Run<'_>| backend.finish_search(run, &begun, variants.clone(), complete)
        };
        let mut out = begin(&request.id, "result");
        match self.run_step(PLACE, request, finish).await {
            // No time is left to run the best variant for its outputs.
            Err(error) if error.is_deadline() => {
                let runs = variants.len();
                result::write(&mut out, &ranked(&begun.request, variants), runs, false, None)?;
                json::check_length(&out, self.limits().max_response)?;
                Ok(out)
            }
            finished => finished.map(|((), answer)| answer),
        }
    }

    /// Runs the variants with these values side by side. Returns those that ran in time, and whether all did.
    async fn try_all(
        self: &Arc<Self>,
        request: &Request,
        begun: &Arc<BegunSearch>,
        values: &[Vec<U256>],
    ) -> Result<(Vec<Variant>, bool)> {
        self.count_variants(request, values.len())?;
        let size = values.len().div_ceil(PARTS).clamp(MIN_PART, MAX_PART);
        let batch = self.batch();
        let parts = values.chunks(size).map(|part| {
            let (begun, part) = (begun.clone(), part.to_vec());
            let entry = Request { ticket: request.ticket.clone().of(&batch), ..request.clone() };
            let work = move |backend: &Backend, run: &mut Run<'_>| backend.try_variants(run, &begun, &part);
            self.run_step(PLACE, entry, work)
        });
        let (mut variants, mut complete) = (Vec::with_capacity(values.len()), true);
        for part in futures::future::join_all(parts).await {
            match part {
                Ok(((tried, is_whole), _)) => {
                    variants.extend(tried);
                    complete &= is_whole;
                }
                // The part waited until the deadline, so the search answers with the others.
                Err(error) if error.is_deadline() => complete = false,
                Err(error) => return Err(error),
            }
        }
        Ok((variants, complete))
    }

    /// Searches for the best value between the neighbours of the best so far. Each variant is counted against the
    /// client's rate before it runs.
    async fn narrow(
        self: &Arc<Self>,
        request: &Request,
        begun: &Arc<BegunSearch>,
        variants: Vec<Variant>,
        tolerance: U256,
    ) -> Result<(Vec<Variant>, bool)> {
        let work = {
            let (begun, variants, client) = (begun.clone(), variants.clone(), request.caller.client.clone());
            let counted = Arc::new(AtomicUsize::new(0));
            move |backend: &Backend, run: &mut Run<'_>| {
                let mut tried = 0;
                let count = || {
                    tried += 1;
                    // A run that is repeated, because it has missed state, has counted its variants before.
                    if let Some(client) = client.as_ref().filter(|_| tried > counted.load(Relaxed)) {
                        client.admit(NonZeroU32::MIN)?;
                        counted.store(tried, Relaxed);
                    }
                    Ok(())
                };
                backend.narrow(run, &begun, variants.clone(), tolerance, count)
            }
        };
        match self.run_step(PLACE, request.clone(), work).await {
            Err(error) if error.is_deadline() => Ok((variants, false)),
            narrowed => Ok(narrowed?.0),
        }
    }

    /// Counts variants against the client's rate, as so many requests.
    fn count_variants(&self, request: &Request, count: usize) -> Result<()> {
        let Some(client) = &request.caller.client else { return Ok(()) };
        // The request itself has been counted.
        let count = u32::try_from(count.saturating_sub(1)).unwrap_or(u32::MAX);
        NonZeroU32::new(count).map_or(Ok(()), |count| client.admit(count))
    }
}

impl Backend {
    fn begin_search(&self, run: &mut Run<'_>, stops: Instant) -> Result<BegunSearch> {
        let request = request::parse_search(run.params, run.dialect, &self.limits.shape)?;
        let snapshot = self.select(run.published, request.selector)?;
        let rules = self.rules(run.dialect);
        let (simulation, until) = (request.search.to_rank(), request.search.beginning());
        let beginning = self.engine(&rules, run.reset_to(&snapshot)).begin(&snapshot, &simulation, None, until);
        let beginning = beginning.map_err(|error| run.dialect.simulation_error(error))?;
        Ok(BegunSearch { request, snapshot, rules, beginning, stops })
    }

    fn try_variants(
        &self,
        run: &mut Run<'_>,
        begun: &BegunSearch,
        values: &[Vec<U256>],
    ) -> Result<(Vec<Variant>, bool)> {
        let BegunSearch { request: SearchRequest { search, .. }, snapshot, rules, beginning, stops } = begun;
        run.meter.limit_time(*stops);
        let mut engine = self.engine(rules, run.reset_to(snapshot));
        let (mut simulation, values) = (search.to_rank(), values.iter().map(Vec::as_slice));
        Ok(engine.try_variants(snapshot, search, &mut simulation, beginning, values)?)
    }

    fn narrow(
        &self,
        run: &mut Run<'_>,
        begun: &BegunSearch,
        mut variants: Vec<Variant>,
        tolerance: U256,
        mut count: impl FnMut() -> Result<()>,
    ) -> Result<(Vec<Variant>, bool)> {
        let BegunSearch { request: SearchRequest { search, .. }, snapshot, rules, beginning, stops } = begun;
        run.meter.limit_time(*stops);
        let mut engine = self.engine(rules, run.reset_to(snapshot));
        let mut simulation = search.to_rank();
        let mut counted = Ok(());
        let may_try = || {
            counted = count();
            counted.is_ok()
        };
        let complete =
            engine.narrow(snapshot, search, &mut simulation, beginning, &mut variants, tolerance, may_try)?;
        counted.map(|()| (variants, complete))
    }

    fn finish_search(
        &self,
        run: &mut Run<'_>,
        begun: &BegunSearch,
        variants: Vec<Variant>,
        complete: bool,
    ) -> Result<()> {
        let BegunSearch { request, snapshot, rules, .. } = begun;
        self.show_best(run, snapshot, rules, request, variants, complete, false).map(drop)
    }

    /// Runs a whole search on a snapshot, and records what it reads. Returns the best objective, and whether the search
    /// came to its end.
    pub fn search_on(
        &self,
        run: &mut Run<'_>,
        snapshot: &Snapshot,
        rules: &SimulationRules,
        request: &SearchRequest,
    ) -> Result<(Option<I256>, bool)> {
        let search = &request.search;
        let mut simulation = search.to_rank();
        let dialect = run.dialect;
        let overlay = run.reset_to(snapshot);
        overlay.record_reads(true);
        let mut engine = self.engine(rules, overlay);
        let beginning = engine.begin(snapshot, &simulation, None, search.beginning());
        let beginning = beginning.map_err(|error| dialect.simulation_error(error))?;
        let values = search.values.first();
        let values = values.iter().map(Vec::as_slice);
        let (mut variants, mut complete) =
            engine.try_variants(snapshot, search, &mut simulation, &beginning, values)?;
        if let SearchedValues::Maximize { tolerance, .. } = &search.values
            && complete
        {
            complete =
                engine.narrow(snapshot, search, &mut simulation, &beginning, &mut variants, *tolerance, || true)?;
        }
        // The best variant reads nothing else, besides what its outputs show.
        let before = run.overlay.reads();
        run.meter = std::mem::take(&mut run.overlay.meter);
        let (best, complete) = self.show_best(run, snapshot, rules, request, variants, complete, true)?;
        run.overlay.add_reads(before);
        Ok((best, complete))
    }

    /// Ranks the variants, runs the best one with its outputs, and writes the answer. Returns the best objective, and
    /// whether the search came to its end.
    #[allow(clippy::too_many_arguments, reason = "the parts of one search")]
    fn show_best(
        &self,
        run: &mut Run<'_>,
        snapshot: &Snapshot,
        rules: &SimulationRules,
        request: &SearchRequest,
        variants: Vec<Variant>,
        mut complete: bool,
        stands: bool,
    ) -> Result<(Option<I256>, bool)> {
        let SearchRequest { search, shown, .. } = request;
        let runs = variants.len();
        self.gas.increment(variants.iter().map(Variant::gas_used).sum());
        let variants = ranked(request, variants);
        let mut best = None;
        if let (Some(shown), Some(variant)) = (shown, variants.first()) {
            let simulation = search.to_show(&variant.values);
            let overlay = run.reset_to(snapshot);
            overlay.record_reads(stands || simulation.outputs.contains(Outputs::READ_SET));
            // A variant that was refused has no result: its error is in the list.
            match self.engine(rules, overlay).simulate(snapshot, &simulation) {
                Ok(simulated) => best = Some((simulated, shown, simulation.outputs)),
                Err(SimulationError::Stopped(Stopped::Deadline)) => complete = false,
                Err(error @ SimulationError::Stopped(_)) => return Err(error.into()),
                Err(_) => {}
            }
        }
        let reads = best.as_ref().filter(|(_, _, outputs)| outputs.contains(Outputs::READ_SET));
        let reads = reads.map(|_| run.overlay.reads());
        let result = best.as_ref().map(|(simulated, shown, outputs)| {
            let view = SimulationView {
                dialect: run.dialect,
                outputs: *outputs,
                full_transactions: shown.full_transactions,
                errors: Some(&shown.errors),
                reads: reads.as_ref(),
                limit: self.limits.max_response,
            };
            (simulated, view)
        });
        result::write(&mut run.out, &variants, runs, complete, result)?;
        let objective = variants.first().and_then(|best| match best.end {
            VariantEnd::Ran { objective, .. } => Some(objective),
            _ => None,
        });
        Ok((objective, complete))
    }
}

/// Returns the best variants of a search, the best first, as many as it asks for.
fn ranked(SearchRequest { search, .. }: &SearchRequest, mut variants: Vec<Variant>) -> Vec<Variant> {
    variants.sort_by(|one, other| other.rank(one, search.aim));
    // The search for a maximum may come to a value twice.
    variants.dedup_by(|one, other| one.values == other.values);
    variants.truncate(search.top);
    variants
}
