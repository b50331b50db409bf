//! `presim_search`: a beginning that runs once, then the variants side by side, then the best one's outputs.

pub mod request;
pub mod result;

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use alloy_primitives::{I256, U256};

use self::{
    request::{Search, SearchRequest},
    result::Found,
};
use super::{Example, Serve, simulate::SimulationView};
use crate::rpc::{
    json, params,
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

impl Serve for Search {
    type Part = ();
    type Answer = Found;
    const EXAMPLE: Example = Example {
        params: r#"[{"blockStateCalls": [{"calls": [{"to": "0x00000000000000000000000000000000000000aa", "value": "0x1"}]}], "vary": [{"path": "blocks[0].calls[0].value", "values": ["0x1", "0x2"]}], "objective": "coinbase"}, "pending"]"#,
        answer: r#"{"best": [{"values": ["0x1"], "objective": "0", "gasUsed": "0x5208", "status": "0x1"}], "runs": 2, "complete": true}"#,
    };

    /// Runs the variants, and answers with the best ones. At the deadline, the answer has the best so far.
    async fn serve((): &(), runner: &Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        let arrived = Instant::now();
        let left = request.ticket.deadline().saturating_duration_since(arrived);
        // A fifth of the time is left for the outputs.
        let stops = arrived + left.mul_f64(0.8);
        let first = move |backend: &Backend, run: &mut Run<'_>| begin_search(backend, run, stops);
        let begun = Arc::new(runner.run_step(PLACE, request.clone(), first).await?.0);
        let values = &begun.request.search.values;
        let (mut variants, mut complete) = try_all(runner, &request, &begun, &values.first()).await?;
        if let SearchedValues::Maximize { tolerance, .. } = values
            && complete
        {
            (variants, complete) = narrow(runner, &request, &begun, variants, *tolerance).await?;
        }
        let finish = {
            let (begun, variants) = (begun.clone(), variants.clone());
            move |backend: &Backend, run: &mut Run<'_>| {
                let BegunSearch { request, snapshot, rules, .. } = &*begun;
                show_best(backend, run, snapshot, rules, request, variants.clone(), complete, false).map(drop)
            }
        };
        let mut out = begin(&request.id, "result");
        match runner.run_step(PLACE, request, finish).await {
            // No time is left to run the best variant for its outputs.
            Err(error) if error.is_deadline() => {
                let runs = variants.len();
                result::write(&mut out, &ranked(&begun.request, variants), runs, false, None)?;
                json::check_length(&out, runner.limits().max_response)?;
                Ok(out)
            }
            finished => finished.map(|((), answer)| answer),
        }
    }
}

/// Runs the variants with these values side by side. Returns those that ran in time, and whether all did.
async fn try_all(
    runner: &Arc<RequestRunner>,
    request: &Request,
    begun: &Arc<BegunSearch>,
    values: &[Vec<U256>],
) -> Result<(Vec<Variant>, bool)> {
    count_variants(request, values.len())?;
    let size = values.len().div_ceil(PARTS).clamp(MIN_PART, MAX_PART);
    let batch = runner.batch();
    let parts = values.chunks(size).map(|part| {
        let (begun, part) = (begun.clone(), part.to_vec());
        let entry = Request { ticket: request.ticket.clone().of(&batch), ..request.clone() };
        let work = move |backend: &Backend, run: &mut Run<'_>| try_variants(backend, run, &begun, &part);
        runner.run_step(PLACE, entry, work)
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
    runner: &Arc<RequestRunner>,
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
                if tried > counted.load(Relaxed) {
                    client.admit(NonZeroU32::MIN)?;
                    counted.store(tried, Relaxed);
                }
                Ok(())
            };
            narrow_on(backend, run, &begun, variants.clone(), tolerance, count)
        }
    };
    match runner.run_step(PLACE, request.clone(), work).await {
        Err(error) if error.is_deadline() => Ok((variants, false)),
        narrowed => Ok(narrowed?.0),
    }
}

/// Counts variants against the client's rate, as so many requests.
fn count_variants(request: &Request, count: usize) -> Result<()> {
    // The request itself has been counted.
    let count = u32::try_from(count.saturating_sub(1)).unwrap_or(u32::MAX);
    NonZeroU32::new(count).map_or(Ok(()), |count| request.caller.client.admit(count))
}

fn begin_search(backend: &Backend, run: &mut Run<'_>, stops: Instant) -> Result<BegunSearch> {
    let request = params::parse::<Search>(run.params, run.dialect)?.into_request(run.dialect, &backend.limits.shape)?;
    let snapshot = backend.select(run.published, request.selector)?;
    let rules = backend.rules(run.dialect);
    let (simulation, until) = (request.search.to_rank(), request.search.beginning());
    let beginning = backend.engine(&rules, run.reset_to(&snapshot)).begin(&snapshot, &simulation, None, until);
    let beginning = beginning.map_err(|error| run.dialect.simulation_error(error))?;
    Ok(BegunSearch { request, snapshot, rules, beginning, stops })
}

fn try_variants(
    backend: &Backend,
    run: &mut Run<'_>,
    begun: &BegunSearch,
    values: &[Vec<U256>],
) -> Result<(Vec<Variant>, bool)> {
    let BegunSearch { request: SearchRequest { search, .. }, snapshot, rules, beginning, stops } = begun;
    run.meter.limit_time(*stops);
    let mut engine = backend.engine(rules, run.reset_to(snapshot));
    let (mut simulation, values) = (search.to_rank(), values.iter().map(Vec::as_slice));
    Ok(engine.try_variants(snapshot, search, &mut simulation, beginning, values)?)
}

fn narrow_on(
    backend: &Backend,
    run: &mut Run<'_>,
    begun: &BegunSearch,
    mut variants: Vec<Variant>,
    tolerance: U256,
    mut count: impl FnMut() -> Result<()>,
) -> Result<(Vec<Variant>, bool)> {
    let BegunSearch { request: SearchRequest { search, .. }, snapshot, rules, beginning, stops } = begun;
    run.meter.limit_time(*stops);
    let mut engine = backend.engine(rules, run.reset_to(snapshot));
    let mut simulation = search.to_rank();
    let mut counted = Ok(());
    let may_try = || {
        counted = count();
        counted.is_ok()
    };
    let complete = engine.narrow(snapshot, search, &mut simulation, beginning, &mut variants, tolerance, may_try)?;
    counted.map(|()| (variants, complete))
}

/// Runs a whole search on a snapshot, and records what it reads. Returns the best objective, and whether the search
/// came to its end.
pub fn search_on(
    backend: &Backend,
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
    let mut engine = backend.engine(rules, overlay);
    let beginning = engine.begin(snapshot, &simulation, None, search.beginning());
    let beginning = beginning.map_err(|error| dialect.simulation_error(error))?;
    let values = search.values.first();
    let values = values.iter().map(Vec::as_slice);
    let (mut variants, mut complete) = engine.try_variants(snapshot, search, &mut simulation, &beginning, values)?;
    if let SearchedValues::Maximize { tolerance, .. } = &search.values
        && complete
    {
        complete = engine.narrow(snapshot, search, &mut simulation, &beginning, &mut variants, *tolerance, || true)?;
    }
    // The best variant reads nothing else, besides what its outputs show.
    let before = run.overlay.reads();
    run.meter = std::mem::take(&mut run.overlay.meter);
    let (best, complete) = show_best(backend, run, snapshot, rules, request, variants, complete, true)?;
    run.overlay.add_reads(before);
    Ok((best, complete))
}

/// Ranks the variants, runs the best one with its outputs, and writes the answer. Returns the best objective, and
/// whether the search came to its end.
#[expect(clippy::too_many_arguments, reason = "the parts of one search")]
fn show_best(
    backend: &Backend,
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
    backend.gas.increment(variants.iter().map(Variant::gas_used).sum());
    let variants = ranked(request, variants);
    let mut best = None;
    if let (Some(shown), Some(variant)) = (shown, variants.first()) {
        let simulation = search.to_show(&variant.values);
        let overlay = run.reset_to(snapshot);
        overlay.record_reads(stands || simulation.outputs.contains(Outputs::READ_SET));
        // A variant that was refused has no result: its error is in the list.
        match backend.engine(rules, overlay).simulate(snapshot, &simulation) {
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
            limit: backend.limits.max_response,
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

/// Returns the best variants of a search, the best first, as many as it asks for.
fn ranked(SearchRequest { search, .. }: &SearchRequest, mut variants: Vec<Variant>) -> Vec<Variant> {
    variants.sort_by(|one, other| other.rank(one, search.aim));
    // The search for a maximum may come to a value twice.
    variants.dedup_by(|one, other| one.values == other.values);
    variants.truncate(search.top);
    variants
}
