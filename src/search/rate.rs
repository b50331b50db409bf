//! The rate from which the runs of a search are drawn.

use std::time::Instant;

/// The rate of the client that searches. Each variant is drawn from it when it is about to run.
pub trait RunRate: Clone + Send + Sync + 'static {
    /// Draws a run, if the rate has one now.
    fn try_draw(&self) -> bool;

    /// Draws `runs` as the rate has them. Returns false as soon as it is clear that it does not have them by `until`.
    fn draw(&self, runs: usize, until: Instant) -> impl Future<Output = bool> + Send;
}
