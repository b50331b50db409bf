//! A search in one run.

use std::sync::Arc;

use super::{begun::BegunSearch, outcome::SearchOutcome};
use crate::{
    engine::{BundleSearch, Engine, SearchedValues, SimulationError},
    ledger::Snapshot,
};

/// Runs a whole search in an overlay that was reset to `snapshot`, and records there what the search reads.
///
/// # Errors
///
/// Returns the error of the bundle's beginning, which then applies to every variant, or [`SimulationError::Stopped`]
/// if the run was stopped before its end.
pub fn search_whole(
    engine: &mut Engine<'_>,
    snapshot: &Arc<Snapshot>,
    search: &Arc<BundleSearch>,
) -> Result<SearchOutcome, SimulationError> {
    engine.overlay.record_reads(true);
    let begun = BegunSearch::begin(engine, snapshot, search)?;
    let (mut variants, mut complete) = begun.try_variants(engine, &begun.first)?;
    if let SearchedValues::Maximize { tolerance, .. } = search.values
        && complete
    {
        complete = begun.narrow(engine, &mut variants, tolerance, || true)?;
    }
    // The best variant reads nothing else, besides what its outputs show.
    let before = engine.overlay.reads();
    let meter = std::mem::take(&mut engine.overlay.meter);
    engine.overlay.reset(snapshot.world.clone(), snapshot.hashes.clone(), meter);
    let outcome = SearchOutcome::of(&begun, variants, complete).show(engine, &begun, true)?;
    engine.overlay.add_reads(before);
    Ok(outcome)
}
