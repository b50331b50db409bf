//! The requests that run alike on chains of either family, and the choice of the family for each.

use std::convert::Infallible;

use alloy_consensus::{Header, transaction::Recovered};
use alloy_primitives::Address;
use revm::context::result::{EVMError, ExecutionResult, ResultAndState};

use super::{
    Engine, Ethereum, OpStack,
    access_list::Accessed,
    error::{RunError, SimulationError},
    estimate::Estimate,
    evm::{FamilyEvm, TxSetup},
    recorder,
    request::CallRequest,
    simulate::{BlocksToRun, RunProgress, TokenInfo},
    trace::{Trace, TraceBudget, Tracer},
};
use crate::{
    chain::{ChainSpec, ChainTx, Family},
    ledger::Snapshot,
    state::Overlay,
};

/// The functions that are generic over the family, for one of them.
struct FamilyRuns {
    call: fn(&mut Engine<'_>, &Header, &CallRequest, bool) -> Result<ExecutionResult, SimulationError>,
    create_access_list: fn(&mut Engine<'_>, &Header, &CallRequest) -> Result<Accessed, SimulationError>,
    estimate_gas: fn(&mut Engine<'_>, &Header, &CallRequest) -> Result<Estimate, SimulationError>,
    token_info: fn(&mut Engine<'_>, &Header, Address) -> TokenInfo,
    run_blocks: fn(&mut Engine<'_>, &Snapshot, BlocksToRun<'_>) -> Result<RunProgress, RunError>,
    trace: fn(&IncludedTx<'_>, &Tracer, &mut Overlay, &Explain<'_>) -> Traced,
}

/// A transaction of a block, to be traced.
pub(super) struct IncludedTx<'a> {
    pub spec: &'a ChainSpec,
    /// The header of the block, as its transactions see it.
    pub header: &'a Header,
    pub tx: &'a Recovered<ChainTx>,
    /// Bytes that the trace may take.
    pub limit: usize,
}

/// The trace of a transaction, and its result.
type Traced = Result<(Trace, ResultAndState), SimulationError>;

/// Converts an error of the EVM.
type Explain<'a> = dyn Fn(EVMError<Infallible>, &mut Overlay) -> SimulationError + 'a;

impl FamilyRuns {
    const fn new<F: FamilyEvm>() -> Self {
        Self {
            call: |engine, header, request, keeps| engine.call_on::<F>(header, request, keeps),
            create_access_list: |engine, header, request| engine.access_list_on::<F>(header, request),
            estimate_gas: |engine, header, request| engine.estimate_on::<F>(header, request),
            token_info: |engine, header, token| engine.token_info_on::<F>(header, token),
            run_blocks: |engine, snapshot, run| engine.run_blocks_on::<F>(snapshot, run),
            trace: |included, tracer, overlay, explain| {
                let IncludedTx { spec, header, tx, limit } = *included;
                let setup = TxSetup::<F>::signed(tx, spec, F::env(spec, header));
                recorder::trace(setup, tracer, None, &mut TraceBudget::new(limit), overlay, explain)
            },
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

/// Traces a transaction of a block. Its changes are not kept.
pub(super) fn trace(
    included: &IncludedTx<'_>,
    tracer: &Tracer,
    overlay: &mut Overlay,
    explain: &Explain<'_>,
) -> Traced {
    (FamilyRuns::of(included.spec).trace)(included, tracer, overlay, explain)
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
