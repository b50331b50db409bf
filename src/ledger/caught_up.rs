//! Whether a following node is live, as proven for a limited time.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;

use crate::clock::now;

/// The latest moment for which it is proven that a following node shows everything that its leader had then. Every
/// answer checks it, so that a node that was suspended does not report itself live before it has heard its leader
/// again.
#[derive(Debug)]
pub struct CaughtUp {
    moment: ArcSwap<Instant>,
    /// The age from which the node is late.
    late: Duration,
}

impl CaughtUp {
    /// Creates the value for a node whose state is proven up to `moment`, and which is late from the age `late` on.
    pub fn new(moment: Instant, late: Duration) -> Self {
        Self { moment: ArcSwap::from_pointee(moment), late }
    }

    /// Sets the moment.
    pub fn set(&self, moment: Instant) {
        self.moment.store(Arc::new(moment));
    }

    /// Returns the moment if it is so old that the node is late.
    pub fn late_since(&self) -> Option<Instant> {
        let moment = **self.moment.load();
        (now().saturating_duration_since(moment) >= self.late).then_some(moment)
    }
}
