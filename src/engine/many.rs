//! `eth_callMany` and the traces of calls: each call sees the changes of the previous ones.

use std::borrow::Cow;

use super::{
    Engine,
    call::overridden,
    error::{RunError, SimulationError},
    request::{BlockOverrides, Outputs, SimBlock, Simulation, StateOverrides},
    simulate::{BlocksToRun, CallRules, PlannedBlock, PlannedHeader, Simulated},
    trace::Tracer,
};
use crate::ledger::Snapshot;

impl Engine<'_> {
    /// Runs bundles in the newest block of `snapshot`, one call after another, under the overrides `state`, and traces
    /// each call with the next of `tracers`. The last tracer serves all further calls. Without tracers, no call is
    /// traced.
    ///
    /// The rules follow Erigon, which introduced `eth_callMany`. The state overrides apply once, at the start. The
    /// default block number, timestamp and slot of a bundle are the previous bundle's, plus one.
    ///
    /// # Errors
    ///
    /// Returns a [`RunError`] if an override or a call is refused, if the traces exceed their budget, or if the meter
    /// stopped the run.
    pub fn call_many(
        &mut self,
        snapshot: &Snapshot,
        state: &StateOverrides,
        bundles: &[SimBlock],
        tracers: &[Tracer],
    ) -> Result<Simulated, RunError> {
        let header = snapshot.header();
        let (mut number, mut time, mut slot) = (header.number, header.timestamp, header.slot_number);
        let mut rules = self.spec;
        let plan = bundles.iter().enumerate().map(|(index, bundle)| {
            let own = &bundle.block;
            let block = BlockOverrides {
                number: Some(own.number.unwrap_or(number)),
                time: Some(own.time.unwrap_or(time)),
                slot_number: own.slot_number.or(slot),
                ..own.clone()
            };
            let spec = if block.fork.is_some() { block.rules(self.spec)? } else { rules };
            rules = spec;
            let header = overridden(spec, header, &block);
            let planned = PlannedBlock {
                spec,
                block: Cow::Borrowed(bundle),
                number: header.number,
                time: header.timestamp,
                millis: None,
                asked: Some(index),
                continues: None,
                rules: CallRules::Many(state),
                header: PlannedHeader::Given(header.into()),
            };
            (number, time) = (planned.number.saturating_add(1), planned.time.saturating_add(1));
            slot = block.slot_number.map(|slot| slot.saturating_add(1));
            Ok(planned)
        });
        let simulation = Simulation { outputs: Outputs::empty(), ..Simulation::default() };
        let plan = plan.collect::<Result<_, SimulationError>>()?;
        let run = BlocksToRun { plan, simulation: &simulation, tracers, from: None, until: None };
        Ok(self.run_blocks(snapshot, run)?.end(self.rules, &simulation))
    }
}
