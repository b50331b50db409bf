//! `eth_call`.

use revm::context::result::ExecutionResult;

use super::{Backend, Run};
use crate::{
    engine::{CallRequest, HaltText},
    ledger::Selector,
    rpc::{
        encode,
        error::{Result, RpcError},
    },
};

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
}
