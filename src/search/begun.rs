//! A search that has run its beginning, from which its variants run.

use std::{cmp::Ordering, sync::Arc};

use alloy_primitives::U256;

use crate::{
    engine::{Beginning, BundleSearch, Engine, Simulation, SimulationError, Variant, golden},
    ledger::Snapshot,
    meter::Stopped,
};

/// A search on a snapshot that has run its beginning.
#[derive(Debug)]
pub struct BegunSearch {
    /// The search.
    pub search: Arc<BundleSearch>,
    /// The snapshot on which the variants run.
    pub snapshot: Arc<Snapshot>,
    /// The values of the variants that run first.
    pub first: Vec<Vec<U256>>,
    /// The name of the fork whose rules apply in the first block.
    pub fork: &'static str,
    beginning: Beginning,
}

impl BegunSearch {
    /// Runs the beginning of a search in an overlay that was reset to `snapshot`.
    ///
    /// # Errors
    ///
    /// Returns the error of the beginning, which no variant passes.
    pub fn begin(
        engine: &mut Engine<'_>,
        snapshot: &Arc<Snapshot>,
        search: &Arc<BundleSearch>,
    ) -> Result<Self, SimulationError> {
        let beginning = engine.begin(snapshot, &search.to_rank(), None, search.beginning())?;
        let fork = engine.first_fork(snapshot, &search.simulation)?;
        let first = search.values.first();
        Ok(Self { search: search.clone(), snapshot: snapshot.clone(), first, fork, beginning })
    }

    /// Runs the variants with `values`, each from the beginning. If the meter stops a run, stops early and returns the
    /// variants that ran. Also returns whether all ran.
    ///
    /// # Errors
    ///
    /// Returns [`Stopped`] if the run was cancelled, or must run elsewhere.
    pub(super) fn try_variants(
        &self,
        engine: &mut Engine<'_>,
        values: &[Vec<U256>],
    ) -> Result<(Vec<Variant>, bool), Stopped> {
        let (mut simulation, mut variants) = (self.search.to_rank(), Vec::new());
        for values in values {
            let Some(variant) = self.try_variant(engine, &mut simulation, values)? else {
                return Ok((variants, false));
            };
            variants.push(variant);
        }
        Ok((variants, true))
    }

    /// Runs a variant. Returns `None` if the meter stops it. `simulation` is [`BundleSearch::to_rank`]'s, and its targets
    /// are overwritten.
    fn try_variant(
        &self,
        engine: &mut Engine<'_>,
        simulation: &mut Simulation,
        values: &[U256],
    ) -> Result<Option<Variant>, Stopped> {
        self.search.set(simulation, values);
        let ran = engine.resume(&self.snapshot, simulation, &self.beginning);
        match self.search.variant(values.to_vec(), ran) {
            Err(Stopped::Deadline) => Ok(None),
            variant => variant.map(Some),
        }
    }

    /// Narrows the interval between the neighbours of the best of `variants`, which have one value each, by
    /// golden-section search, and adds the variants it tried. Calls `may_try` before each, and returns early if it is
    /// `false`. Calling it again with these variants continues the search. Returns whether the search is complete.
    ///
    /// # Errors
    ///
    /// Returns [`Stopped`] if the run was cancelled, or must run elsewhere.
    pub(super) fn narrow(
        &self,
        engine: &mut Engine<'_>,
        variants: &mut Vec<Variant>,
        tolerance: U256,
        mut may_try: impl FnMut() -> bool,
    ) -> Result<bool, Stopped> {
        let aim = self.search.aim;
        variants.sort_by(|one, other| one.values.cmp(&other.values));
        let best = variants.iter().enumerate().max_by(|(_, one), (_, other)| one.rank(other, aim));
        let Some((index, best)) = best else { return Ok(true) };
        let (mut best, mut simulation) = (best.clone(), self.search.to_rank());
        let value = |index: usize| variants[index].values[0];
        let mut low = value(index.saturating_sub(1));
        let mut high = value((index + 1).min(variants.len() - 1));
        loop {
            let at = best.values[0];
            let (below, above) = (at - low, high - at);
            let (width, is_above) = if above >= below { (above, true) } else { (below, false) };
            if width <= tolerance {
                return Ok(true);
            }
            if !may_try() {
                return Ok(false);
            }
            // The next value divides the longer side. One that is not better bounds the interval from now on, also where
            // it breaks a requirement.
            let step = (width - golden(width)).max(U256::ONE);
            let next = if is_above { at + step } else { at - step };
            let Some(tried) = self.try_variant(engine, &mut simulation, &[next])? else { return Ok(false) };
            let is_better = tried.rank(&best, aim) == Ordering::Greater;
            let bound = if is_better { at } else { next };
            // The interval shrinks to the worse of the two values.
            *(if is_above == is_better { &mut low } else { &mut high }) = bound;
            variants.push(tried.clone());
            if is_better {
                best = tried;
            }
        }
    }
}
