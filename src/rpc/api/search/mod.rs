//! `presim_search`: the search of parameters, and its outcome as JSON.

pub mod request;
pub mod result;

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Instant,
};

use alloy_primitives::I256;

use self::{
    request::{ResultForm, Search, SearchRequest},
    result::Found,
};
use super::{Example, Serve};
use crate::rpc::{
    json, params,
    protocol::{
        dialect::Dialect,
        error::{Result, RpcError},
    },
    run::{
        Backend, Run,
        client::{Client, TooFast},
        request::{Request, begin},
        runner::RequestRunner,
    },
};
use crate::{
    engine::Engine,
    ledger::Snapshot,
    scheduler::{LaneName, RunTarget},
    search::{BegunSearch, RunRate, SearchError, SearchOutcome, Searcher, search_whole},
};

/// The target of the run in which a search begins.
const TARGET: RunTarget = RunTarget::On(LaneName::Bundle);

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
        let ((begun, form), _) = runner.run_step(TARGET, request.clone(), begin_search).await?;
        let begun = Arc::new(begun);
        // A fifth of the time is left for the outputs.
        let stops = arrived + left.mul_f64(0.8);
        let rate = run_rate(&request.caller.client, begun.first.len(), stops)?;
        let show = {
            let (backend, caller, room) = (runner.backend.clone(), request.caller.clone(), request.room.clone());
            let head = begin(&request.id, "result");
            move |outcome: SearchOutcome| {
                let mut out = head.clone();
                backend.gas.increment(outcome.gas_used);
                let most = backend.limits.max_response;
                result::write(&mut out, &outcome, &form, caller.dialect, most)?;
                json::check_length(&out, most)?;
                // The answer counts for its connection from here on, because it may wait for the connection's thread.
                room.take(&mut out).map(|()| out)
            }
        };
        let searcher = Searcher {
            host: runner.host.clone(),
            rules: runner.backend.rules(request.caller.dialect),
            ticket: request.ticket,
            stops,
            rate,
            params: request.params,
        };
        searcher.finish(&begun, show).await
    }
}

/// Returns the rate at which a client may run the variants of a search, each of which counts as a request.
///
/// # Errors
///
/// Returns -32005 if the first `runs` variants cannot all run before the search stops.
fn run_rate(client: &Arc<Client>, runs: usize, stops: Instant) -> Result<RunRate> {
    let within = stops.saturating_duration_since(Instant::now());
    let drawn = client.begin_several(runs, within).map_err(|TooFast { name, rate, most }| {
        RpcError::limit(format!(
            "params[0].vary: {runs} variants, each of which counts as a request: {name:?} may send {rate} requests per second, and the search \
             has {} ms: expected at most {most} variants, or more time (--deadline-ms)",
            within.as_millis()
        ))
    })?;
    let (client, drawn) = (client.clone(), AtomicU32::new(drawn));
    Ok(RunRate::new(move |most| {
        // Takes those that have been drawn already, the request itself among them.
        let before = drawn.fetch_update(Relaxed, Relaxed, |left| Some(left.saturating_sub(most.get())));
        match NonZeroU32::new(before.unwrap_or_default().min(most.get())) {
            Some(taken) => Ok(taken),
            None => client.draw(most),
        }
    }))
}

/// Parses the parameters, and runs the beginning of the search. Returns the search with the form of its result.
fn begin_search(backend: &Backend, run: &mut Run<'_>) -> Result<(BegunSearch, ResultForm)> {
    let request = params::parse::<Search>(run.params, run.dialect)?.into_request(run.dialect, &backend.limits.shape)?;
    let SearchRequest { search, selector, form } = request;
    let snapshot = backend.select(run.published, selector)?;
    let rules = backend.rules(run.dialect);
    let begun = BegunSearch::begin(&mut backend.engine(&rules, run.reset_to(&snapshot)), &snapshot, &search);
    Ok((begun.map_err(|error| run.dialect.simulation_error(error))?, form))
}

/// Runs a whole search in one run on a snapshot, records what it reads, and writes its outcome. Returns the best objective,
/// and whether the search came to its end.
///
/// # Errors
///
/// Returns the error of the bundle's beginning, or -32005 if the best variant's result becomes longer than the limit.
pub fn search_on(
    backend: &Backend,
    dialect: &'static Dialect,
    engine: &mut Engine<'_>,
    snapshot: &Arc<Snapshot>,
    SearchRequest { search, form, .. }: &SearchRequest,
    out: &mut Vec<u8>,
) -> Result<(Option<I256>, bool)> {
    let outcome = search_whole(engine, snapshot, search).map_err(|error| dialect.simulation_error(error))?;
    backend.gas.increment(outcome.gas_used);
    result::write(out, &outcome, form, dialect, backend.limits.max_response)?;
    Ok((outcome.objective(), outcome.complete))
}

impl From<SearchError> for RpcError {
    fn from(error: SearchError) -> Self {
        match error {
            SearchError::Task(error) => error.into(),
            SearchError::Simulation(error) => error.into(),
        }
    }
}
