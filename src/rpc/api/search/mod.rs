//! `presim_search`: the search of parameters, and its outcome as JSON.

pub mod request;
pub mod result;

use std::{num::NonZeroU32, sync::Arc, time::Instant};

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
        request::{Request, begin},
        runner::RequestRunner,
    },
};
use crate::{
    engine::Engine,
    ledger::Snapshot,
    scheduler::{LaneName, RunTarget},
    search::{BegunSearch, SearchError, SearchOutcome, Searcher, search_whole},
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
        let client = request.caller.client.clone();
        // The request itself has been counted.
        let others = u32::try_from(begun.first.len().saturating_sub(1)).unwrap_or(u32::MAX);
        NonZeroU32::new(others).map_or(Ok(()), |others| client.admit(others))?;
        let may_try = move || client.admit(NonZeroU32::MIN);
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
            // A fifth of the time is left for the outputs.
            stops: arrived + left.mul_f64(0.8),
            params: request.params,
        };
        searcher.finish(&begun, may_try, show).await
    }
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
