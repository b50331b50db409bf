//! The requests that run alike on chains of either family, and the choice of the family for each.

use alloy_consensus::Header;
use alloy_primitives::Address;
use revm::context::result::ExecutionResult;

use super::{
    Engine,
    access_list::Accessed,
    error::{RunError, SimulationError},
    estimate::Estimate,
    evm::with_family,
    request::CallRequest,
    simulate::{BlocksToRun, RunProgress, TokenInfo},
};
use crate::ledger::Snapshot;

/// Defines methods of the engine, each by one that is generic over the family.
macro_rules! by_family {
    ($($(#[$doc:meta])* $visible:vis fn $name:ident($($arg:ident: $type:ty),*) -> $output:ty = $generic:ident($($given:expr),*);)*) => {
        impl Engine<'_> {
            $($(#[$doc])* $visible fn $name(&mut self, $($arg: $type),*) -> $output {
                with_family!(self.spec, |F| self.$generic::<F>($($given),*))
            })*
        }
    };
}

by_family! {
    /// Runs a call in `header`'s block, and discards its changes.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] if the call or an override is refused, or if the meter stopped the run.
    pub fn call(header: &Header, request: &CallRequest) -> Result<ExecutionResult, SimulationError> = call_on(header, request, false);

    /// As [`Engine::call`], but keeps the call's changes in the overlay.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] if the call or an override is refused, or if the meter stopped the run.
    pub fn commit_call(header: &Header, request: &CallRequest) -> Result<ExecutionResult, SimulationError>
        = call_on(header, request, true);

    /// Finds the access list of a call in `header`'s block, beginning with the call's own list.
    ///
    /// The accounts and slots touched may depend on the list, because gas does. So the call runs with a growing list
    /// until a run adds nothing (geth's `AccessList`). The call pays for each entry, so its gas bounds the runs.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] if the call or an override is refused, or if the meter stopped the run.
    pub fn create_access_list(header: &Header, request: &CallRequest) -> Result<Accessed, SimulationError>
        = access_list_on(header, request);

    /// Finds the smallest gas limit with which a call succeeds in `header`'s block.
    ///
    /// The search is geth's. The call has succeeded with the limit that is returned. Without a tolerance
    /// ([`SimulationRules::estimate_tolerance`](super::SimulationRules::estimate_tolerance)), it has failed with one less,
    /// or has used more than that. The search does not go below the gas that the call used with all it may have, even if
    /// it could do something else with less.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] if the call or an override is refused, or if the meter stopped the run.
    pub fn estimate_gas(header: &Header, request: &CallRequest) -> Result<Estimate, SimulationError> = estimate_on(header, request);

    /// Asks a contract for the symbol and the decimals of its token, on the state under the overlay and in the block of
    /// `header`. What the contract does not tell in time is `None`.
    pub fn token_info(header: &Header, token: Address) -> TokenInfo = token_info_on(header, token);

    /// Runs blocks of calls. Every request for calls that follow one another is a plan of such blocks.
    pub(super) fn run_blocks(snapshot: &Snapshot, run: BlocksToRun<'_>) -> Result<RunProgress, RunError>
        = run_blocks_on(snapshot, run);
}
