//! `eth_simulateV1` and `presim_simulate`: bundles of calls in blocks that follow one another.

mod params;
mod result;
mod schema;

pub use self::{
    params::{
        ConditionParam, OutputParam, Payload, SimBlockParam, Simulate, SimulateV1, SimulationRequest, conditions,
        parse_presim_simulation, parse_simulation,
    },
    result::{SimulationView, write_simulation},
    schema::{DroppedCall, SimulatedBlocks},
};

use super::{Example, Method};
use crate::{
    engine::{Outputs, SimulationRules},
    ledger::Snapshot,
    rpc::{
        json::Lookup,
        protocol::error::Result,
        run::{Backend, Run},
    },
};

/// Maximum numbers of blocks and calls of a simulation that runs inline. More take longer than the hand-over to a worker.
const INLINE_BLOCKS: usize = 64;
const INLINE_CALLS: usize = 8;

impl Method for SimulateV1 {
    type Answer = SimulatedBlocks;
    const EXAMPLE: Example = Example {
        params: r#"[{"blockStateCalls": [{"calls": [{"to": "0x00000000000000000000000000000000000000aa", "value": "0x1"}]}]}, "pending"]"#,
        answer: r#"[{"number": "0x2", "calls": [{"returnData": "0x", "logs": [], "gasUsed": "0x5208", "maxUsedGas": "0x5208", "status": "0x1"}]}]"#,
    };

    fn run(self, backend: &Backend, run: &mut Run<'_>) -> Result<Lookup> {
        let payload = Payload::from(self.payload);
        simulate(backend, run, payload.into_request(self.block, run.dialect, &backend.limits.shape, false)?)?;
        Ok(Lookup::Found)
    }
}

impl Method for Simulate {
    type Answer = SimulatedBlocks;
    const EXAMPLE: Example = Example {
        params: r#"[{"blockStateCalls": [{"calls": [{"to": "0x00000000000000000000000000000000000000aa", "value": "0x1"}]}], "outputs": ["status"]}, "pending"]"#,
        answer: r#"[{"calls": [{"status": "0x1"}]}]"#,
    };

    fn run(self, backend: &Backend, run: &mut Run<'_>) -> Result<Lookup> {
        simulate(backend, run, self.payload.into_request(self.block, run.dialect, &backend.limits.shape, true)?)?;
        Ok(Lookup::Found)
    }
}

fn simulate(backend: &Backend, run: &mut Run<'_>, request: SimulationRequest) -> Result<()> {
    let is_long = request.simulation.blocks.len() > INLINE_BLOCKS || request.simulation.calls() > INLINE_CALLS;
    if run.meter.is_short() && is_long {
        return Err(run.move_to_worker());
    }
    let snapshot = backend.select(run.published, request.selector)?;
    simulate_on(backend, run, &snapshot, &backend.rules(run.dialect), &request, false)
}

/// Runs a simulation on a snapshot, and writes its result. If `stands`, what it reads is recorded, and its beginning is not shared
/// with other requests.
///
/// # Errors
///
/// Returns the error of the simulation, or -32005 if the response becomes longer than the limit.
pub fn simulate_on(
    backend: &Backend,
    run: &mut Run<'_>,
    snapshot: &Snapshot,
    rules: &SimulationRules,
    SimulationRequest { simulation, full_transactions, errors, .. }: &SimulationRequest,
    stands: bool,
) -> Result<()> {
    let shows_reads = simulation.outputs.contains(Outputs::READ_SET);
    let client = run.client;
    let overlay = run.reset_to(snapshot);
    overlay.record_reads(shows_reads || stands);
    let mut engine = backend.engine(rules, overlay);
    let simulated = match stands {
        true => engine.simulate(snapshot, simulation),
        false => backend.beginnings.simulate(&mut engine, client, snapshot, simulation),
    }
    .map_err(|error| run.dialect.simulation_error(error))?;
    backend.gas.increment(simulated.gas_used);
    let reads = shows_reads.then(|| run.overlay.reads());
    let view = SimulationView {
        dialect: run.dialect,
        outputs: simulation.outputs,
        full_transactions: *full_transactions,
        errors: Some(errors),
        reads: reads.as_ref(),
        limit: backend.limits.max_response,
    };
    write_simulation(&mut run.out, &simulated, &view)
}
