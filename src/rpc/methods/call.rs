//! `eth_call`, `eth_simulateV1` and `presim_simulate`.

use revm::context::result::ExecutionResult;

use super::{Backend, Run};
use crate::{
    engine::{CallRequest, HaltText, Outputs, SimulationRules},
    ledger::{Selector, Snapshot},
    rpc::{
        encode::{self, SimulationView},
        error::{Result, RpcError},
        wire::SimulationRequest,
    },
};

/// Maximum numbers of blocks and calls of a simulation that runs inline. More take longer than the hand-over to a worker.
const INLINE_BLOCKS: usize = 64;
const INLINE_CALLS: usize = 8;

impl Backend {
    pub(super) fn call(&self, run: &mut Run<'_>, (request, selector): (CallRequest, Selector)) -> Result<()> {
        let snapshot = self.select(run.published, selector)?;
        let (dialect, rules) = (run.dialect, self.rules(run.dialect));
        let result = self
            .engine(&rules, run.reset_to(&snapshot))
            .call(snapshot.header(), &request)
            .map_err(|error| RpcError::from(error).outside_simulation())?;
        self.gas.increment(result.tx_gas_used());
        match result {
            ExecutionResult::Success { output, .. } => {
                encode::data(&mut run.out, output.data());
                Ok(())
            }
            ExecutionResult::Revert { output, .. } => Err((dialect.revert)(output)),
            ExecutionResult::Halt { reason, .. } => Err((dialect.halt)(HaltText(reason).to_string())),
        }
    }

    pub(super) fn simulate(&self, run: &mut Run<'_>, request: SimulationRequest) -> Result<()> {
        let is_long = request.simulation.blocks.len() > INLINE_BLOCKS || request.simulation.calls() > INLINE_CALLS;
        if run.meter.is_short() && is_long {
            return Err(run.move_to_worker());
        }
        let snapshot = self.select(run.published, request.selector)?;
        self.simulate_on(run, &snapshot, &self.rules(run.dialect), &request, false)
    }

    /// Runs a simulation on a snapshot, and writes its result. If `stands`, what it reads is recorded, and its beginning
    /// is not shared with other requests.
    pub(in crate::rpc) fn simulate_on(
        &self,
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
        let mut engine = self.engine(rules, overlay);
        let simulated = match stands {
            true => engine.simulate(snapshot, simulation),
            false => self.beginnings.simulate(&mut engine, client, snapshot, simulation),
        }
        .map_err(|error| run.dialect.simulation_error(error))?;
        self.gas.increment(simulated.gas_used);
        let reads = shows_reads.then(|| run.overlay.reads());
        let view = SimulationView {
            dialect: run.dialect,
            outputs: simulation.outputs,
            full_transactions: *full_transactions,
            errors: Some(errors),
            reads: reads.as_ref(),
            limit: self.limits.max_response,
        };
        encode::simulation(&mut run.out, &simulated, &view)
    }
}
