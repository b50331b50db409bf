//! A simulation that runs.

use alloy_consensus::Header;
use alloy_evm::Evm;
use alloy_primitives::Sealed;

use super::progress::RunProgress;
use crate::{
    chain::ChainSpec,
    engine::{
        evm::{FamilyEvm, RunEvm},
        request::{Simulation, SimulationRules},
        trace::Tracer,
    },
    state::{CodeCache, Overlay, StateRoots},
};

pub(super) struct Simulator<'a, F: FamilyEvm> {
    pub spec: &'a ChainSpec,
    pub codes: &'a CodeCache,
    pub rules: &'a SimulationRules,
    /// The EVM over the overlay. It serves one block after the other.
    pub evm: RunEvm<'a, F>,
    pub simulation: &'a Simulation,
    /// The tracers of the calls to come. The last one serves all further calls. Empty if no call is traced.
    pub tracers: &'a [Tracer],
    pub state: RunProgress,
    /// The header of the snapshot's head.
    pub parent: &'a Sealed<Header>,
    /// The tries after the previous block. `None` if no roots are computed.
    pub roots: Option<StateRoots<'a>>,
}

/// The end of a block's run.
pub(super) enum BlockEnd {
    /// The block is complete.
    Done,
    /// The run has come to the place up to which it was asked for.
    Paused,
    /// The call with this index did not end as the bundle requires.
    Broken(usize),
}

impl<F: FamilyEvm> Simulator<'_, F> {
    /// Returns the state after what has run, as far as it differs from the snapshot's.
    pub(super) fn overlay(&mut self) -> &mut Overlay {
        self.evm.db_mut()
    }

    /// Returns the header of the block before the current one.
    pub(super) fn parent(&self) -> &Sealed<Header> {
        self.state.parent.as_ref().unwrap_or(self.parent)
    }
}
