//! The outcome of a search: its variants by rank, and the best one's outputs.

use alloy_primitives::I256;

use super::begun::BegunSearch;
use crate::{
    engine::{Engine, Outputs, Simulated, SimulationError, Variant, VariantEnd},
    meter::Stopped,
    state::ReadSet,
};

/// The outcome of a search.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SearchOutcome {
    /// The best variants, the best first, as many as the search asks for.
    pub best: Vec<Variant>,
    /// The number of variants that ran.
    pub runs: usize,
    /// Gas that the calls of all variants used.
    pub gas_used: u64,
    /// Whether the search came to its end in time.
    pub complete: bool,
    /// The best variant with its outputs. `None` if the search does not ask for them, if the variant was refused, or if
    /// no time was left.
    pub shown: Option<Simulated>,
    /// The name of the fork whose rules apply in the first block.
    pub fork: &'static str,
    /// The reads of the shown variant, if they are among its outputs.
    pub(crate) reads: Option<ReadSet>,
}

impl SearchOutcome {
    /// Ranks the variants that ran.
    pub(super) fn of(
        BegunSearch { search, fork, .. }: &BegunSearch,
        mut variants: Vec<Variant>,
        complete: bool,
    ) -> Self {
        let (runs, gas_used) = (variants.len(), variants.iter().map(Variant::gas_used).sum());
        variants.sort_by(|one, other| other.rank(one, search.aim));
        // The search for a maximum may try a value twice.
        variants.dedup_by(|one, other| one.values == other.values);
        variants.truncate(search.top);
        Self { best: variants, runs, gas_used, complete, shown: None, fork, reads: None }
    }

    /// Runs the best variant with its outputs, if the search requests them, in an overlay that was reset to the
    /// snapshot. Records its reads if `records`, or if they are among the outputs.
    ///
    /// # Errors
    ///
    /// Returns [`Stopped`] if the run was cancelled, or must run elsewhere.
    pub(super) fn show(
        mut self,
        engine: &mut Engine<'_>,
        BegunSearch { search, snapshot, .. }: &BegunSearch,
        records: bool,
    ) -> Result<Self, Stopped> {
        let Some(variant) = self.best.first().filter(|_| search.shows) else { return Ok(self) };
        let simulation = search.to_show(&variant.values);
        let shows_reads = simulation.outputs.contains(Outputs::READ_SET);
        engine.overlay.record_reads(records || shows_reads);
        match engine.simulate(snapshot, &simulation) {
            Ok(simulated) => {
                self.shown = Some(simulated);
                self.reads = shows_reads.then(|| engine.overlay.reads());
            }
            Err(SimulationError::Stopped(Stopped::Deadline)) => self.complete = false,
            Err(SimulationError::Stopped(stopped)) => return Err(stopped),
            // A variant that was refused has no result: its error is in the list.
            Err(_) => {}
        }
        Ok(self)
    }

    /// Returns the objective of the best variant, if that ran to its end.
    pub fn objective(&self) -> Option<I256> {
        match self.best.first()?.end {
            VariantEnd::Ran { objective, .. } => Some(objective),
            VariantEnd::Dropped(_) | VariantEnd::Refused(..) => None,
        }
    }
}
