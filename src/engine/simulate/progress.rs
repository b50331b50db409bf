//! The progress of a simulation, and the beginnings from which simulations continue.

use alloy_consensus::Header;
use alloy_primitives::{I256, Sealed, U256};

use super::{
    calls::BlockRun,
    outputs::Tokens,
    reads::RunReads,
    results::{Simulated, SimulatedBlock},
};
use crate::{
    engine::{
        request::{CallIndex, Simulation, SimulationRules},
        trace::TraceBudget,
    },
    state::SavedOverlay,
};

/// The point in the run of a simulation at which a beginning ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunPoint {
    /// The block, by its index in the request.
    pub block: usize,
    /// The number of calls of the block that run before this point. `None` if its overrides do not, either.
    pub calls: Option<usize>,
}

/// The beginning of a simulation, which several simulations continue.
#[derive(Clone, Debug)]
pub struct Beginning {
    pub(super) overlay: SavedOverlay,
    pub(super) progress: RunProgress,
}

impl Beginning {
    /// Returns about how many bytes it takes, without the snapshot's state.
    pub fn size(&self) -> usize {
        let RunProgress { blocks, run, traces, .. } = &self.progress;
        let run = run.as_ref().map_or(0, BlockRun::size);
        let taken = traces.limit - traces.left;
        self.overlay.size() + size_of::<Self>() + blocks.iter().map(SimulatedBlock::size).sum::<usize>() + run + taken
    }
}

/// The progress of a simulation, besides the state in the overlay.
#[derive(Clone, Debug, Default)]
pub(in crate::engine) struct RunProgress {
    /// The index of the planned block that runs.
    pub(super) index: usize,
    /// The blocks that have run.
    pub(super) blocks: Vec<SimulatedBlock>,
    /// The calls of the current block so far, if it has begun.
    pub(super) run: Option<BlockRun>,
    /// The header of the simulated block before the current one. If that block continues the block being built, it
    /// includes its gas. The hash covers the simulated calls only.
    pub(super) parent: Option<Sealed<Header>>,
    pub(super) gas_left: u64,
    pub(super) reads: RunReads,
    pub(super) traces: TraceBudget,
    /// The objective before the first call.
    pub(super) before: U256,
    /// By how much the objective has grown.
    pub(super) gained: I256,
    pub(super) tokens: Tokens,
    /// The call that runs, or that ran last.
    pub(super) at: Option<CallIndex>,
    /// The call that broke the bundle.
    pub(super) dropped: Option<CallIndex>,
}

impl RunProgress {
    pub(super) fn new(rules: &SimulationRules) -> Self {
        Self { gas_left: rules.gas_cap, traces: TraceBudget::new(rules.max_trace), ..Self::default() }
    }

    /// Returns the results of a complete run.
    pub(in crate::engine) fn end(self, rules: &SimulationRules, simulation: &Simulation) -> Simulated {
        Simulated {
            blocks: self.blocks,
            dropped: self.dropped,
            tokens: self.tokens,
            gas_used: rules.gas_cap - self.gas_left,
            objective: simulation.objective.map(|_| self.gained),
        }
    }
}
