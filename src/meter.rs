//! How long a run may go on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Instant,
};

/// Counts the loops of a run, and now and then looks whether it should still go on.
///
/// Every EVM loop passes a `JUMPDEST` and every recursion a call; the engine ticks on both. A tick is one decrement; only each
/// [`Meter::STRIDE`]th reads the clock and the cancel flag. So a run that stays in its bounds pays nothing that can be measured.
#[derive(Debug, Default)]
pub struct Meter {
    fuel: u32,
    strides_left: Option<u32>,
    deadline: Option<Instant>,
    cancelled: Option<Arc<AtomicBool>>,
    pause: Option<Pause>,
    stopped: Option<Stopped>,
}

/// What is done whenever a run looks at the clock: another job may run meanwhile.
#[derive(Clone)]
pub struct Pause(Arc<dyn Fn() + Send + Sync>);

impl Pause {
    /// A pause that calls `meanwhile`.
    pub fn new(meanwhile: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(meanwhile))
    }
}

impl std::fmt::Debug for Pause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pause")
    }
}

/// Why a run was stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// Its time was up.
    #[error("the request ran past its deadline")]
    Deadline,
    /// Nobody waits for the answer any more.
    #[error("the request was cancelled")]
    Cancelled,
    /// It is longer than its bound: it is run again on a worker.
    #[error("the request is too long to run inline")]
    TooLong,
}

impl Meter {
    /// Ticks between two looks at the clock: some tens of microseconds.
    const STRIDE: u32 = 4096;
    /// Strides of a run that has missed something: some milliseconds.
    const FOR_NOTHING: u32 = 256;

    /// Stops a run at `deadline`, or when `cancelled` is set. It is paused whenever it looks at the clock.
    pub fn until(deadline: Instant, cancelled: Arc<AtomicBool>, pause: Option<Pause>) -> Self {
        Self { deadline: Some(deadline), cancelled: Some(cancelled), pause, ..Self::default() }
    }

    /// Stops the run at `deadline` where that is before its own: a request may shorten what the node allows, never lengthen it.
    pub fn shorten(&mut self, deadline: Instant) {
        self.deadline = Some(self.deadline.map_or(deadline, |own| own.min(deadline)));
    }

    /// Between two calls of a run: looks whether it should go on.
    ///
    /// # Errors
    /// Returns why the run is stopped, if it is.
    pub fn between_calls(&mut self) -> Result<(), Stopped> {
        self.look();
        self.stopped.map_or(Ok(()), Err)
    }

    /// Stops a run soon that has turned out to be for nothing: it only looks for what else it will need.
    pub fn hurry(&mut self) {
        self.strides_left = Some(self.strides_left.map_or(Self::FOR_NOTHING, |left| left.min(Self::FOR_NOTHING)));
        self.fuel = self.fuel.min(Self::STRIDE);
    }

    /// Stops a run that takes more than about `strides` times [`Meter::STRIDE`] ticks.
    pub fn short(strides: u32) -> Self {
        Self { strides_left: Some(strides), ..Self::default() }
    }

    /// Stops the run also if it takes more than about `strides` times [`Meter::STRIDE`] ticks.
    pub const fn bound(&mut self, strides: u32) {
        self.strides_left = Some(strides);
    }

    /// Whether the run must be a short one.
    pub const fn is_short(&self) -> bool {
        self.strides_left.is_some()
    }

    /// Ends the run for a reason that the meter itself does not see.
    pub const fn stop(&mut self, why: Stopped) {
        self.stopped = Some(why);
    }

    /// Counts `cost` ticks where that is no time to look. False where it is: then nothing is counted, and [`Meter::tick`] looks.
    #[inline]
    pub const fn take(&mut self, cost: u32) -> bool {
        let Some(left) = self.fuel.checked_sub(cost) else { return false };
        self.fuel = left;
        true
    }

    /// Counts `cost` ticks. False when the run must stop.
    #[inline]
    pub fn tick(&mut self, cost: u32) -> bool {
        if self.take(cost) {
            return true;
        }
        // A dear opcode may be worth several strides at once.
        let strides = 1 + cost / Self::STRIDE;
        if let Some(left) = &mut self.strides_left {
            *left = left.saturating_sub(strides - 1);
        }
        self.look()
    }

    /// Why the run was stopped, if it was.
    pub const fn stopped(&self) -> Option<Stopped> {
        self.stopped
    }

    /// Has the pause, and looks at the clock and the flag now.
    #[cold]
    pub fn look(&mut self) -> bool {
        self.fuel = Self::STRIDE;
        if let Some(Pause(pause)) = &self.pause {
            pause();
        }
        if let Some(strides) = &mut self.strides_left {
            if *strides == 0 {
                self.stopped = Some(Stopped::TooLong);
            }
            *strides = strides.saturating_sub(1);
        }
        if self.cancelled.as_ref().is_some_and(|flag| flag.load(Relaxed)) {
            self.stopped = Some(Stopped::Cancelled);
        } else if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            self.stopped = Some(Stopped::Deadline);
        }
        self.stopped.is_none()
    }
}
