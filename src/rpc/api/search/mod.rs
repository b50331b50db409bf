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
        Attempt, Backend,
        client::Client,
        request::{Request, open_answer},
        runner::RequestRunner,
    },
};
use crate::{
    engine::Engine,
    ledger::Snapshot,
    scheduler::LaneName,
    search::{BegunSearch, RunRate, SearchError, SearchOutcome, Searcher, search_whole},
};

impl Serve for Search {
    type Part = ();
    type Answer = Found;
    const EXAMPLE: Example = Example {
        params: r#"[{"blockStateCalls": [{"calls": [{"to": "0x00000000000000000000000000000000000000aa", "value": "0x1"}]}], "vary": [{"path": "blocks[0].calls[0].value", "values": ["0x1", "0x2"]}], "objective": "coinbase"}, "pending"]"#,
        answer: r#"{"best": [{"values": ["0x1"], "objective": "0", "gasUsed": "0x5208", "status": "0x1"}], "runs": 2, "complete": true, "fork": "osaka"}"#,
    };

    /// Runs the variants, and answers with the best ones. At the deadline, the answer has the best so far.
    async fn serve((): &(), runner: &Arc<RequestRunner>, mut request: Request) -> Result<Vec<u8>> {
        let arrived = Instant::now();
        let left = request.ticket.deadline().saturating_duration_since(arrived);
        let ((begun, form), _) = loop {
            match runner.run(request.clone(), begin_search).await {
                Err(RpcError::UnknownBlock(unknown)) => request = runner.with_older(request, unknown).await?,
                begun => break begun?,
            }
        };
        let (begun, is_past) = (Arc::new(begun), request.published.older() > 0);
        // A fifth of the time is left for the outputs.
        let stops = arrived + left.mul_f64(0.8);
        let rate = SearchRate::begin(request.caller.client.clone(), begun.first.len(), stops)?;
        let show = {
            let (backend, caller, room) = (runner.backend.clone(), request.caller.clone(), request.room.clone());
            let head = open_answer(&request.id);
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
            params: request.params,
            lane: if is_past { LaneName::Past } else { LaneName::Bundle },
        };
        searcher.finish(&begun, &rate, show).await
    }
}

/// The rate of a client that searches.
#[derive(Clone)]
struct SearchRate {
    client: Arc<Client>,
    /// The runs that are counted and not drawn yet.
    counted: Arc<AtomicU32>,
}

impl SearchRate {
    /// Begins a search whose first `runs` have to be drawn until `stops`.
    fn begin(client: Arc<Client>, runs: usize, stops: Instant) -> Result<Self> {
        // The request itself has been counted.
        let others = u32::try_from(runs.saturating_sub(1)).unwrap_or(u32::MAX);
        let counted = client.admit_first(others, stops)?.saturating_add(1);
        Ok(Self { client, counted: Arc::new(AtomicU32::new(counted)) })
    }
}

impl RunRate for SearchRate {
    fn try_draw(&self) -> bool {
        self.client.admit(NonZeroU32::MIN).is_ok()
    }

    async fn draw(&self, runs: usize, until: Instant) -> bool {
        let runs = u32::try_from(runs).unwrap_or(u32::MAX);
        // The update never fails.
        let (Ok(counted) | Err(counted)) =
            self.counted.fetch_update(Relaxed, Relaxed, |counted| Some(counted.saturating_sub(runs)));
        self.client.admit_by(runs.saturating_sub(counted), until).await
    }
}

/// Parses the parameters, and runs the beginning of the search. Returns the search with the form of its result.
fn begin_search(backend: &Backend, run: &mut Attempt<'_>) -> Result<(BegunSearch, ResultForm)> {
    let request = params::parse::<Search>(run.params, run.dialect)?.into_request(run.dialect, &backend.limits.shape)?;
    let SearchRequest { search, selector, form } = request;
    let snapshot = backend.select(run, selector)?;
    let rules = backend.rules(run.dialect);
    let dialect = run.dialect;
    let mut engine = backend.engine(&rules, run.reset_to(&snapshot));
    let begun = BegunSearch::begin(&mut engine, &snapshot, &search);
    Ok((begun.map_err(|error| dialect.simulation_error(error))?, form))
}

/// Runs a whole search in one run on a snapshot, records its reads, and writes its outcome. Returns the best
/// objective, and whether the search is complete.
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
