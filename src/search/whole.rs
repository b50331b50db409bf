//! A search in one run.

use super::outcome::SearchOutcome;
use crate::{
    engine::{BundleSearch, Engine, SearchedValues, SimulationError},
    ledger::Snapshot,
};

/// Runs a whole search in an overlay that was reset to `snapshot`, and records there what the search reads.
///
/// # Errors
///
/// Returns the error of the bundle's beginning, which no variant passes, or [`SimulationError::Stopped`] if the run was
/// stopped before its end.
pub fn search_whole(
    engine: &mut Engine<'_>,
    snapshot: &Snapshot,
    search: &BundleSearch,
) -> Result<SearchOutcome, SimulationError> {
    engine.overlay.record_reads(true);
    let mut simulation = search.to_rank();
    let beginning = engine.begin(snapshot, &simulation, None, search.beginning())?;
    let values = search.values.first();
    let values = values.iter().map(Vec::as_slice);
    let (mut variants, mut complete) = engine.try_variants(snapshot, search, &mut simulation, &beginning, values)?;
    if let SearchedValues::Maximize { tolerance, .. } = search.values
        && complete
    {
        complete = engine.narrow(snapshot, search, &mut simulation, &beginning, &mut variants, tolerance, || true)?;
    }
    // The best variant reads nothing else, besides what its outputs show.
    let before = engine.overlay.reads();
    let meter = std::mem::take(&mut engine.overlay.meter);
    engine.overlay.reset(snapshot.world.clone(), snapshot.hashes.clone(), meter);
    let outcome = SearchOutcome::of(search, variants, complete).show(engine, snapshot, search, true)?;
    engine.overlay.add_reads(before);
    Ok(outcome)
}
