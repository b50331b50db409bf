//! Calls and simulations of bundles.

use revm::context::result::ExecutionResult;

use super::{Asked, Backend, Worker};
use crate::{
    engine::HaltText,
    rpc::{encode, error::RpcError, wire},
};

/// Calls of a simulation that may run where its request was read. More of them take longer than the way to a worker.
const IN_PLACE_CALLS: usize = 8;

impl Backend {
    pub(super) fn call(&self, asked: Asked<'_>, worker: Worker<'_>, out: &mut Vec<u8>) -> Result<(), RpcError> {
        let Asked { params, published, dialect, .. } = asked;
        let (request, selector) = wire::parse_call(params, dialect)?;
        let snapshot = self.select(published, selector)?;
        let overlay = worker.stand_on(&snapshot);
        let rules = self.rules(dialect);
        let result = self
            .engine(&rules, overlay)
            .call(snapshot.header(), &request)
            .map_err(|error| RpcError::from(error).outside_simulation())?;
        self.gas.0.increment(result.tx_gas_used());
        match result {
            ExecutionResult::Success { output, .. } => {
                encode::data(out, output.data());
                Ok(())
            }
            ExecutionResult::Revert { output, .. } => Err((dialect.revert)(output)),
            ExecutionResult::Halt { reason, .. } => Err((dialect.halt)(HaltText(reason).to_string())),
        }
    }

    pub(super) fn simulate(&self, asked: Asked<'_>, worker: Worker<'_>, out: &mut Vec<u8>) -> Result<(), RpcError> {
        let Asked { params, published, dialect, .. } = asked;
        let (simulation, selector, full_transactions) = wire::parse_simulation(params, dialect, &self.limits.shape)?;
        if worker.meter.is_short() && simulation.calls() > IN_PLACE_CALLS {
            return Err(worker.give_up());
        }
        let snapshot = self.select(published, selector)?;
        let overlay = worker.stand_on(&snapshot);
        let rules = self.rules(dialect);
        let blocks = self.engine(&rules, overlay).simulate(&snapshot, &simulation)?;
        self.gas.0.increment(blocks.iter().map(|block| block.header.gas_used).sum());
        encode::simulation(out, &blocks, dialect, full_transactions, self.limits.max_response)
    }
}
