//! The word of a node that follows another on whether it is live, which holds for a time only.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;

use crate::clock::now;

/// The latest moment of which it is proven that a node that follows shows all that its leader had then. It is looked at with
/// each answer, so that a node which was stopped for a time does not call itself live before it has heard of its leader again.
#[derive(Debug)]
pub struct CaughtUp {
    moment: ArcSwap<Instant>,
    /// The age of the moment from which the node is late.
    late: Duration,
}

impl CaughtUp {
    /// Creates the word of a node that has shown nothing since `moment`, and is late from the age `late` on.
    pub fn new(moment: Instant, late: Duration) -> Self {
        Self { moment: ArcSwap::from_pointee(moment), late }
    }

    /// Sets the moment.
    pub fn set(&self, moment: Instant) {
        self.moment.store(Arc::new(moment));
    }

    /// Returns the moment if it is too long ago, so that the node is late.
    pub fn late_since(&self) -> Option<Instant> {
        let moment = **self.moment.load();
        (now().saturating_duration_since(moment) >= self.late).then_some(moment)
    }
}
