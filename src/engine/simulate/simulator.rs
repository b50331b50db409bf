//! A simulation that runs.

use alloy_consensus::Header;
use alloy_evm::Evm;
use alloy_primitives::Sealed;

use super::{
    plan::PlannedBlock,
    progress::{RunPoint, RunProgress},
};
use crate::{
    engine::{
        evm::{FamilyEvm, RunEvm},
        request::{Simulation, SimulationRules},
        trace::Tracer,
    },
    state::{CodeCache, Overlay, StateRoots},
};

/// Blocks of calls to run one after the other.
pub(in crate::engine) struct BlocksToRun<'a> {
    pub plan: Vec<PlannedBlock<'a>>,
    /// The flags of the request. Its blocks are the plan's, or it has none.
    pub simulation: &'a Simulation,
    /// The tracers of the calls, in order. The last one serves all further calls. Empty if no call is traced.
    pub tracers: &'a [Tracer],
    /// The blocks and calls that have run. `None` if none has.
    pub from: Option<&'a RunProgress>,
    /// The point up to which the blocks run. `None` runs all.
    pub until: Option<RunPoint>,
}

pub(super) struct Simulator<'a, F: FamilyEvm> {
    pub codes: &'a CodeCache,
    pub rules: &'a SimulationRules,
    /// The EVM over the overlay. It serves one block after the other.
    pub evm: RunEvm<'a, F>,
    pub simulation: &'a Simulation,
    /// The tracers of the remaining calls, as in [`BlocksToRun`].
    pub tracers: &'a [Tracer],
    pub state: RunProgress,
    /// The point up to which the blocks run. `None` runs all.
    pub until: Option<RunPoint>,
    /// The index of the last planned block.
    pub last: usize,
    /// The header of the snapshot's head.
    pub parent: &'a Sealed<Header>,
    /// The tries after the previous block. `None` if no roots are computed.
    pub roots: Option<StateRoots<'a>>,
}

/// The end of a block's run.
pub(super) enum BlockEnd {
    /// The block is complete.
    Done,
    /// The run has reached the requested end point.
    Paused,
    /// A call did not end as the bundle requires.
    Broken,
}

impl<F: FamilyEvm> Simulator<'_, F> {
    /// Returns the current state, as differences from the snapshot's.
    pub(super) fn overlay(&mut self) -> &mut Overlay {
        self.evm.db_mut()
    }

    /// Returns the header of the block before the current one.
    pub(super) fn parent(&self) -> &Sealed<Header> {
        self.state.parent.as_ref().unwrap_or(self.parent)
    }
}
