//! `eth_call` and `eth_simulateV1`.

use revm::context::result::ExecutionResult;

use super::{Backend, Run};
use crate::{
    engine::{CallRequest, HaltText, Simulation},
    rpc::{encode, error::RpcError},
    state::Selector,
};

/// Maximum number of calls of a simulation that runs inline. More calls take longer than the hand-over to a worker.
const IN_PLACE_CALLS: usize = 8;

impl Backend {
    pub(super) fn call(&self, run: &mut Run<'_>, (request, selector): (CallRequest, Selector)) -> Result<(), RpcError> {
        let snapshot = self.select(run.published, selector)?;
        let (dialect, rules) = (run.dialect, self.rules(run.dialect));
        let result = self
            .engine(&rules, run.stand_on(&snapshot))
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

    pub(super) fn simulate(
        &self,
        run: &mut Run<'_>,
        (simulation, selector, full_transactions): (Simulation, Selector, bool),
    ) -> Result<(), RpcError> {
        if run.meter.is_short() && simulation.calls() > IN_PLACE_CALLS {
            return Err(run.give_up());
        }
        let snapshot = self.select(run.published, selector)?;
        let rules = self.rules(run.dialect);
        let blocks = self.engine(&rules, run.stand_on(&snapshot)).simulate(&snapshot, &simulation)?;
        self.gas.increment(blocks.iter().map(|block| block.header.gas_used).sum());
        encode::simulation(&mut run.out, &blocks, run.dialect, full_transactions, self.limits.max_response)
    }
}
