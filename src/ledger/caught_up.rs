//! The word of a node that follows another on whether it is live, which holds for a time only.

use std::{
    sync::{
        LazyLock,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::clock::now;

/// The moment from which others are counted.
static BASE: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The latest moment of which it is proven that a node that follows shows all that its leader had then. It is looked at with
/// each answer, so that a node which was stopped for a time does not call itself live before it has heard of its leader again.
#[derive(Debug)]
pub struct CaughtUp {
    /// Microseconds from [`BASE`] to the moment.
    moment: AtomicI64,
    /// The age of the moment from which the node is late.
    late: Duration,
}

impl CaughtUp {
    /// Creates the word of a node that has shown nothing since `moment`, and is late from the age `late` on.
    pub fn new(moment: Instant, late: Duration) -> Self {
        let word = Self { moment: AtomicI64::new(0), late };
        word.set(moment);
        word
    }

    /// Sets the moment.
    pub fn set(&self, moment: Instant) {
        let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        let base = *BASE;
        self.moment.store(
            match moment.checked_duration_since(base) {
                Some(after) => micros(after),
                None => -micros(base.duration_since(moment)),
            },
            Relaxed,
        );
    }

    /// Returns the moment if it is too long ago, so that the node is late.
    pub fn late_since(&self) -> Option<Instant> {
        let (base, micros) = (*BASE, self.moment.load(Relaxed));
        let distance = Duration::from_micros(micros.unsigned_abs());
        let moment = if micros < 0 { base.checked_sub(distance) } else { base.checked_add(distance) };
        moment.filter(|moment| now().saturating_duration_since(*moment) >= self.late)
    }
}
