//! The requests that run alike on chains of either family, and the choice of the family for each.

use alloy_consensus::Header;
use alloy_primitives::Address;
use revm::context::result::ExecutionResult;

use super::{
    Engine,
    access_list::Accessed,
    error::{RunError, SimulationError},
    estimate::Estimate,
    request::CallRequest,
    simulate::{BlocksToRun, RunProgress, TokenInfo},
};
use crate::ledger::Snapshot;

/// Evaluates an expression for the family of a chain, which it names as a type.
macro_rules! by_family {
    ($spec:expr, $family:ident => $run:expr) => {
        match $spec.family() {
            $crate::chain::Family::Ethereum => {
                type $family = $crate::engine::Ethereum;
                $run
            }
            $crate::chain::Family::OpStack => {
                type $family = $crate::engine::OpStack;
                $run
            }
        }
    };
}

pub(super) use by_family;

impl Engine<'_> {
    /// Runs a call in `header`'s block, and discards its changes.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] if the call or an override is refused, or if the meter stopped the run.
    pub fn call(&mut self, header: &Header, request: &CallRequest) -> Result<ExecutionResult, SimulationError> {
        by_family!(self.spec, F => self.call_on::<F>(header, request, false))
    }

    /// As [`Engine::call`], but keeps the call's changes in the overlay.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] if the call or an override is refused, or if the meter stopped the run.
    pub fn commit_call(&mut self, header: &Header, request: &CallRequest) -> Result<ExecutionResult, SimulationError> {
        by_family!(self.spec, F => self.call_on::<F>(header, request, true))
    }

    /// Finds the access list of a call in `header`'s block, beginning with the call's own list.
    ///
    /// The accounts and slots touched may depend on the list, because gas does. So the call runs with a growing list
    /// until a run adds nothing (geth's `AccessList`). The call pays for each entry, so its gas bounds the runs.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] if the call or an override is refused, or if the meter stopped the run.
    pub fn create_access_list(&mut self, header: &Header, request: &CallRequest) -> Result<Accessed, SimulationError> {
        by_family!(self.spec, F => self.access_list_on::<F>(header, request))
    }

    /// Finds the smallest gas limit with which a call succeeds in `header`'s block.
    ///
    /// The search is geth's. The call has succeeded with the returned limit. Without a tolerance
    /// ([`SimulationRules::estimate_tolerance`](super::SimulationRules::estimate_tolerance)), it has failed with one
    /// less, or has used more than that. The search does not go below the gas that the call used with its maximum,
    /// even if it could behave differently with less.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] if the call or an override is refused, or if the meter stopped the run.
    pub fn estimate_gas(&mut self, header: &Header, request: &CallRequest) -> Result<Estimate, SimulationError> {
        by_family!(self.spec, F => self.estimate_on::<F>(header, request))
    }

    /// Asks a contract for the symbol and the decimals of its token, on the state under the overlay and in the block
    /// of `header`. A value that the contract does not return in time is `None`.
    pub fn token_info(&mut self, header: &Header, token: Address) -> TokenInfo {
        by_family!(self.spec, F => self.token_info_on::<F>(header, token))
    }

    /// Runs blocks of calls. Every request for calls that follow one another is a plan of such blocks.
    pub(super) fn run_blocks(&mut self, snapshot: &Snapshot, run: BlocksToRun<'_>) -> Result<RunProgress, RunError> {
        by_family!(self.spec, F => self.run_blocks_on::<F>(snapshot, run))
    }
}
