//! A search that has run its beginning, from which its variants run.

use std::sync::Arc;

use alloy_primitives::U256;

use crate::{
    chain::ChainSpec,
    engine::{Beginning, BundleSearch, Engine, SimulationError, SimulationRules, Variant},
    ledger::Snapshot,
    meter::{Meter, Stopped},
    state::{CodeCache, Overlay},
};

/// A search on a snapshot that has run its beginning.
#[derive(Debug)]
pub struct BegunSearch {
    /// The search.
    pub search: BundleSearch,
    /// The snapshot on which the variants run.
    pub snapshot: Arc<Snapshot>,
    /// The values of the variants that run first.
    pub first: Vec<Vec<U256>>,
    spec: Arc<ChainSpec>,
    codes: Arc<CodeCache>,
    rules: SimulationRules,
    beginning: Beginning,
}

impl BegunSearch {
    /// Runs the beginning of a search in `overlay`, which is reset.
    ///
    /// # Errors
    ///
    /// Returns the error of the beginning, which no variant passes.
    pub fn begin(
        (spec, codes): (&Arc<ChainSpec>, &Arc<CodeCache>),
        rules: SimulationRules,
        snapshot: Arc<Snapshot>,
        search: BundleSearch,
        overlay: &mut Overlay,
        meter: Meter,
    ) -> Result<Self, SimulationError> {
        overlay.reset(snapshot.world.clone(), snapshot.hashes.clone(), meter);
        let mut engine = Engine { spec, rules: &rules, codes, overlay };
        let beginning = engine.begin(&snapshot, &search.to_rank(), None, search.beginning())?;
        let first = search.values.first();
        Ok(Self { search, snapshot, first, spec: spec.clone(), codes: codes.clone(), rules, beginning })
    }

    /// Returns an engine for the variants, which runs in `overlay`, for as long as `meter` allows.
    pub(super) fn engine<'a>(&'a self, overlay: &'a mut Overlay, meter: Meter) -> Engine<'a> {
        overlay.reset(self.snapshot.world.clone(), self.snapshot.hashes.clone(), meter);
        Engine { spec: &self.spec, rules: &self.rules, codes: &self.codes, overlay }
    }

    /// Runs the variants with these values, as [`Engine::try_variants`] does.
    pub(super) fn try_variants(
        &self,
        engine: &mut Engine<'_>,
        values: &[Vec<U256>],
    ) -> Result<(Vec<Variant>, bool), Stopped> {
        let (mut simulation, values) = (self.search.to_rank(), values.iter().map(Vec::as_slice));
        engine.try_variants(&self.snapshot, &self.search, &mut simulation, &self.beginning, values)
    }

    /// Searches for the best value between the neighbours of the best so far, as [`Engine::narrow`] does.
    pub(super) fn narrow(
        &self,
        engine: &mut Engine<'_>,
        variants: &mut Vec<Variant>,
        tolerance: U256,
        may_try: impl FnMut() -> bool,
    ) -> Result<bool, Stopped> {
        let mut simulation = self.search.to_rank();
        let (snapshot, search) = (&self.snapshot, &self.search);
        engine.narrow(snapshot, search, &mut simulation, &self.beginning, variants, tolerance, may_try)
    }
}
