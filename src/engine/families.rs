//! The requests that run alike on chains of either family, and the choice of the family for each.

use alloy_consensus::Header;
use alloy_primitives::Address;
use revm::context::result::ExecutionResult;

use super::{
    Engine, Ethereum, OpStack,
    access_list::Accessed,
    error::{RunError, SimulationError},
    estimate::Estimate,
    evm::FamilyEvm,
    request::CallRequest,
    simulate::{BlocksToRun, RunProgress, TokenInfo},
};
use crate::{
    chain::{ChainSpec, Family},
    ledger::Snapshot,
};

/// The functions that are generic over the family, for one of them.
struct FamilyRuns {
    call: fn(&mut Engine<'_>, &Header, &CallRequest, bool) -> Result<ExecutionResult, SimulationError>,
    create_access_list: fn(&mut Engine<'_>, &Header, &CallRequest) -> Result<Accessed, SimulationError>,
    estimate_gas: fn(&mut Engine<'_>, &Header, &CallRequest) -> Result<Estimate, SimulationError>,
    token_info: fn(&mut Engine<'_>, &Header, Address) -> TokenInfo,
    run_blocks: fn(&mut Engine<'_>, &Snapshot, BlocksToRun<'_>) -> Result<RunProgress, RunError>,
}

impl FamilyRuns {
    const fn new<F: FamilyEvm>() -> Self {
        Self {
            call: |engine, header, request, keeps| engine.call_on::<F>(header, request, keeps),
            create_access_list: |engine, header, request| engine.access_list_on::<F>(header, request),
            estimate_gas: |engine, header, request| engine.estimate_on::<F>(header, request),
            token_info: |engine, header, token| engine.token_info_on::<F>(header, token),
            run_blocks: |engine, snapshot, run| engine.run_blocks_on::<F>(snapshot, run),
        }
    }

    /// Returns the functions for the family of a chain.
    fn of(spec: &ChainSpec) -> &'static Self {
        match spec.family() {
            Family::Ethereum => &const { Self::new::<Ethereum>() },
            Family::OpStack => &const { Self::new::<OpStack>() },
        }
    }
}

impl Engine<'_> {
    /// Runs a call in `header`'s block, and discards its changes.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] if the call or an override is refused, or if the meter stopped the run.
    pub fn call(&mut self, header: &Header, request: &CallRequest) -> Result<ExecutionResult, SimulationError> {
        (FamilyRuns::of(self.spec).call)(self, header, request, false)
    }

    /// As [`Engine::call`], but keeps the call's changes in the overlay.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] if the call or an override is refused, or if the meter stopped the run.
    pub fn commit_call(&mut self, header: &Header, request: &CallRequest) -> Result<ExecutionResult, SimulationError> {
        (FamilyRuns::of(self.spec).call)(self, header, request, true)
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
        (FamilyRuns::of(self.spec).create_access_list)(self, header, request)
    }

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
    pub fn estimate_gas(&mut self, header: &Header, request: &CallRequest) -> Result<Estimate, SimulationError> {
        (FamilyRuns::of(self.spec).estimate_gas)(self, header, request)
    }

    /// Asks a contract for the symbol and the decimals of its token, on the state under the overlay and in the block of
    /// `header`. What the contract does not tell in time is `None`.
    pub fn token_info(&mut self, header: &Header, token: Address) -> TokenInfo {
        (FamilyRuns::of(self.spec).token_info)(self, header, token)
    }

    /// Runs blocks of calls. Every request for calls that follow one another is a plan of such blocks.
    pub(super) fn run_blocks(&mut self, snapshot: &Snapshot, run: BlocksToRun<'_>) -> Result<RunProgress, RunError> {
        (FamilyRuns::of(self.spec).run_blocks)(self, snapshot, run)
    }
}
