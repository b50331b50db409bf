//! `eth_simulateV1` and `presim_simulate`: bundles of calls in blocks that follow one another.

mod params;
mod result;

pub use self::{
    params::{
        ConditionParam, OutputParam, Payload, SimBlockParam, Simulate, SimulateV1, SimulationRequest, conditions,
        parse_presim_simulation, parse_simulation,
    },
    result::{DroppedCall, SimulatedBlocks, SimulationView, write_simulation},
};

use super::{Example, Method};
use crate::{
    engine::{Outputs, Simulated},
    rpc::{
        protocol::{dialect::Dialect, error::Result},
        run::{Attempt, Backend},
    },
    state::Overlay,
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

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        simulate(backend, run, self.into_request(run.dialect, &backend.limits.shape)?)
    }
}

impl Method for Simulate {
    type Answer = SimulatedBlocks;
    const EXAMPLE: Example = Example {
        params: r#"[{"blockStateCalls": [{"calls": [{"to": "0x00000000000000000000000000000000000000aa", "value": "0x1"}]}], "outputs": ["status"]}, "pending"]"#,
        answer: r#"[{"fork": "osaka", "calls": [{"status": "0x1"}]}]"#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        simulate(backend, run, self.into_request(run.dialect, &backend.limits.shape)?)
    }
}

fn simulate(backend: &Backend, run: &mut Attempt<'_>, request: SimulationRequest) -> Result<()> {
    let is_long = request.simulation.blocks.len() > INLINE_BLOCKS || request.simulation.calls() > INLINE_CALLS;
    if run.meter.is_short() && is_long {
        return Err(run.move_to_worker());
    }
    let (snapshot, rules) = (backend.select(run, request.selector)?, backend.rules(run.dialect));
    let (dialect, client) = (run.dialect, run.client);
    run.by = backend.by(request.simulation.blocks.first().map(|block| &block.block));
    let overlay = run.reset_to(&snapshot);
    overlay.record_reads(request.simulation.outputs.contains(Outputs::READ_SET));
    let mut engine = backend.engine(&rules, overlay);
    let simulated = backend.beginnings.simulate(&mut engine, client, &snapshot, &request.simulation);
    let simulated = simulated.map_err(|error| dialect.simulation_error(error))?;
    write_simulated(backend, dialect, &request, &simulated, run.overlay, &mut run.out)
}

/// Counts the gas of a simulation that ran in `overlay`, and writes its result.
///
/// # Errors
///
/// Returns -32005 if the response becomes longer than the limit.
pub fn write_simulated(
    backend: &Backend,
    dialect: &'static Dialect,
    SimulationRequest { simulation, full_transactions, errors, names_fork, .. }: &SimulationRequest,
    simulated: &Simulated,
    overlay: &Overlay,
    out: &mut Vec<u8>,
) -> Result<()> {
    backend.gas.increment(simulated.gas_used);
    let reads = simulation.outputs.contains(Outputs::READ_SET).then(|| overlay.reads());
    let view = SimulationView {
        dialect,
        names_fork: *names_fork,
        outputs: simulation.outputs,
        full_transactions: *full_transactions,
        errors: Some(errors),
        reads: reads.as_ref(),
        limit: backend.limits.max_response,
    };
    write_simulation(out, simulated, &view)
}
