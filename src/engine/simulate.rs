//! `eth_simulateV1` and `presim_simulate`: calls in consecutive blocks, each block with its overrides and with the
//! requested outputs.

mod blocks;
mod calls;
mod context;
mod listing;
mod outputs;
mod plan;
mod progress;
mod questions;
mod reads;
mod results;
mod simulator;

pub(super) use plan::{CallRules, PlannedBlock, PlannedHeader};
pub(super) use progress::RunProgress;
pub(super) use simulator::BlocksToRun;

pub use context::{BlockContext, ContextChange};
pub use outputs::{AccountDiff, Asset, CoinbaseIncome, NetChange, TokenInfo, ValueChange};
pub use progress::{Beginning, RunPoint};
pub use results::{BlockListing, CallOutcome, CallResult, Simulated, SimulatedBlock, SimulatedTx};

use alloy_consensus::Header;
use alloy_primitives::Address;
use alloy_rpc_types_trace::geth::CallConfig;

use self::{
    plan::plan,
    questions::token_info,
    reads::note_plan,
    simulator::{BlockEnd, Simulator},
};
use super::{
    Engine,
    call::{environment, lift_checks},
    error::{RunError, SimulationError},
    evm::{FamilyEvm, RunEvm},
    precompiles::RunPrecompiles,
    request::{BlockOverrides, Outputs, Simulation},
    trace::Tracer,
};
use crate::{
    ledger::Snapshot,
    state::{StateRoots, TransferLogs},
};

impl Engine<'_> {
    /// Runs `simulation` on `snapshot`. The overlay must be over the snapshot's state. A simulated block with the
    /// number of the block being built continues that block, because the calls would land there.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] if a block or a call is refused, or if the meter stopped the run.
    pub fn simulate(&mut self, snapshot: &Snapshot, simulation: &Simulation) -> Result<Simulated, SimulationError> {
        let state = self.simulate_from(snapshot, simulation, None, None)?;
        Ok(state.end(self.rules, simulation))
    }

    /// Runs the beginning of `simulation` up to `until`, from a shorter beginning if there is one. Returns the state
    /// from which [`Engine::resume`] continues. If the bundle ends earlier, returns its end.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] if a block or a call is refused, or if the meter stopped the run.
    pub fn begin(
        &mut self,
        snapshot: &Snapshot,
        simulation: &Simulation,
        from: Option<&Beginning>,
        until: RunPoint,
    ) -> Result<Beginning, SimulationError> {
        let progress = self.simulate_from(snapshot, simulation, from, Some(until))?;
        Ok(Beginning { overlay: self.overlay.save(), progress })
    }

    /// Runs the rest of `simulation`. It must begin like the simulation that created `beginning` on the same snapshot.
    /// The results equal the results of a run from the start.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] if a block or a call is refused, or if the meter stopped the run.
    pub fn resume(
        &mut self,
        snapshot: &Snapshot,
        simulation: &Simulation,
        beginning: &Beginning,
    ) -> Result<Simulated, SimulationError> {
        let state = self.simulate_from(snapshot, simulation, Some(beginning), None)?;
        Ok(state.end(self.rules, simulation))
    }

    /// Returns the name of the fork whose rules apply to the first block of `simulation` on `snapshot`.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] if a block is refused.
    pub fn first_fork(&self, snapshot: &Snapshot, simulation: &Simulation) -> Result<&'static str, SimulationError> {
        let plan = plan(self.spec, snapshot, simulation, self.rules)?;
        Ok(plan.first().map_or_else(|| self.spec.fork_name(snapshot.header()), PlannedBlock::fork_name))
    }

    pub(super) fn token_info_on<F: FamilyEvm>(&mut self, header: &Header, token: Address) -> TokenInfo {
        let mut env = environment::<F>(self.spec, header, &BlockOverrides::default());
        lift_checks(&mut env);
        let precompiles = RunPrecompiles::of(self.spec, env.cfg_env.spec);
        let mut evm = RunEvm::<F>::new(self.overlay, env, precompiles);
        let info = token_info(token, &mut evm);
        evm.finish();
        info
    }

    fn simulate_from(
        &mut self,
        snapshot: &Snapshot,
        simulation: &Simulation,
        from: Option<&Beginning>,
        until: Option<RunPoint>,
    ) -> Result<RunProgress, SimulationError> {
        if let Some(Beginning { overlay, progress }) = from {
            self.overlay.restore(overlay);
            if progress.dropped.is_some() {
                return Ok(progress.clone());
            }
        }
        let plan = plan(self.spec, snapshot, simulation, self.rules);
        note_plan(self.spec, simulation, plan.as_deref().ok(), self.overlay);
        let outputs = simulation.outputs;
        let frames =
            Tracer::Calls(CallConfig { with_log: Some(outputs.contains(Outputs::LOGS)), ..Default::default() });
        let tracers = if outputs.contains(Outputs::TRACE) { std::slice::from_ref(&frames) } else { &[] };
        let from = from.map(|from| &from.progress);
        Ok(self.run_blocks(snapshot, BlocksToRun { plan: plan?, simulation, tracers, from, until })?)
    }

    pub(super) fn run_blocks_on<F: FamilyEvm>(
        &mut self,
        snapshot: &Snapshot,
        BlocksToRun { plan, simulation, tracers, from, until }: BlocksToRun<'_>,
    ) -> Result<RunProgress, RunError> {
        let Self { spec, rules, codes, ref mut overlay } = *self;
        let mut state = from.cloned().unwrap_or_else(|| RunProgress::new(rules));
        state.blocks.reserve_exact(plan.len().saturating_sub(state.blocks.len()));
        let shows_transfers = simulation.outputs.intersects(Outputs::TRANSFERS | Outputs::ASSETS);
        let transfers = match (simulation.trace_transfers, shows_transfers) {
            (true, _) => TransferLogs::Numbered,
            (false, true) => TransferLogs::Aside,
            (false, false) => TransferLogs::Hidden,
        };
        let env = F::env(spec, &snapshot.head.header);
        let precompiles = RunPrecompiles::of(spec, env.cfg_env.spec);
        let mut simulator = Simulator {
            codes,
            rules,
            // Each block sets its own environment.
            evm: RunEvm::<F>::new(overlay, env, precompiles).with_transfers(transfers),
            simulation,
            tracers,
            state,
            until,
            last: plan.len().saturating_sub(1),
            parent: &snapshot.head.header,
            roots: snapshot.world.local().filter(|_| rules.state_roots).map(StateRoots::of),
        };
        let ran = simulator.blocks(plan);
        let Simulator { evm, state, .. } = simulator;
        let overlay = evm.finish();
        // The causes of an error are read, too.
        if !matches!(ran, Ok(BlockEnd::Paused)) {
            overlay.note_block(state.reads.fields);
        }
        match ran {
            Ok(_) => Ok(state),
            Err(error @ (SimulationError::Stopped(_) | SimulationError::Internal(_))) => Err(error.into()),
            Err(error) => Err(RunError { index: state.at, error: error.into() }),
        }
    }
}
