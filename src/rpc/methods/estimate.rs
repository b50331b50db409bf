//! The gas and the access list that a call needs: `eth_estimateGas`, `eth_createAccessList`.

use alloy_eips::eip2930::AccessList;
use revm::context::result::ExecutionResult;
use serde::Serialize;

use super::{Backend, Run};
use crate::{
    engine::{Accessed, CallRequest, Estimate, HaltText},
    ledger::{Selector, Snapshot},
    rpc::{
        encode,
        error::{Result, RpcError},
    },
};

/// The result of `eth_createAccessList`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AccessListResult {
    access_list: AccessList,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(serialize_with = "hex_quantity")]
    gas_used: u64,
}

impl Backend {
    pub(super) fn estimate_gas(&self, run: &mut Run<'_>, (request, selector): (CallRequest, Selector)) -> Result<()> {
        let snapshot = self.select(run.published, selector)?;
        let gas = self.needed_gas(&snapshot, &request, run)?;
        encode::quantity(&mut run.out, gas);
        Ok(())
    }

    /// Returns the smallest gas limit, within the dialect's tolerance, with which a call succeeds on `snapshot`.
    pub(super) fn needed_gas(&self, snapshot: &Snapshot, request: &CallRequest, run: &mut Run<'_>) -> Result<u64> {
        let (dialect, rules) = (run.dialect, self.rules(run.dialect));
        let estimate = self
            .engine(&rules, run.reset_to(snapshot))
            .estimate_gas(snapshot.header(), request)
            .map_err(|error| RpcError::from(error).outside_simulation())?;
        match estimate {
            Estimate::Gas { limit, simulated } => {
                self.gas.increment(simulated);
                Ok(limit)
            }
            Estimate::Revert(data) => Err((dialect.revert)(data)),
            Estimate::Halt(reason) => Err((dialect.halt)(HaltText(reason).to_string())),
            Estimate::TooLittle(allowance) => {
                Err(RpcError::new(-32000, format!("gas required exceeds allowance ({allowance})")))
            }
        }
    }

    pub(super) fn create_access_list(
        &self,
        run: &mut Run<'_>,
        (request, selector): (CallRequest, Selector),
    ) -> Result<()> {
        let snapshot = self.select(run.published, selector)?;
        let rules = self.rules(run.dialect);
        let Accessed { list, result, simulated } = self
            .engine(&rules, run.reset_to(&snapshot))
            .create_access_list(snapshot.header(), &request)
            .map_err(|error| RpcError::from(error).outside_simulation())?;
        self.gas.increment(simulated);
        let gas_used = result.tx_gas_used();
        let error = match result {
            ExecutionResult::Success { .. } => None,
            ExecutionResult::Revert { .. } => Some("execution reverted".to_owned()),
            ExecutionResult::Halt { reason, .. } => Some(HaltText(reason).to_string()),
        };
        encode::value(&mut run.out, &AccessListResult { access_list: list, error, gas_used });
        Ok(())
    }
}

fn hex_quantity<S: serde::Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{value:#x}"))
}
