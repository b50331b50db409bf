//! The rate at which the variants of a search may run.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

/// A function that draws runs from the rate of a client: as many as it is asked for, or fewer, but at least one. Returns the time until the
/// next one can be drawn if there is none now.
type DrawRuns = dyn Fn(NonZeroU32) -> Result<NonZeroU32, Duration> + Send + Sync;

/// The rate at which the client of a search may run variants.
#[derive(Clone)]
pub struct RunRate(Option<Arc<DrawRuns>>);

impl RunRate {
    /// A client without a rate.
    pub const UNLIMITED: Self = Self(None);

    /// Creates a rate from which `draw` draws up to a number of runs, at least one. It returns the time until the next run if there is
    /// none now.
    pub fn new(draw: impl Fn(NonZeroU32) -> Result<NonZeroU32, Duration> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(draw)))
    }

    /// Draws up to `most` runs. The error is the time until the next one.
    pub(super) fn draw(&self, most: NonZeroU32) -> Result<NonZeroU32, Duration> {
        self.0.as_ref().map_or(Ok(most), |draw| draw(most))
    }
}
