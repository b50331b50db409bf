//! Bounds on how long a run may take.

use std::{
    cell::OnceCell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use crate::lock;

/// Counts the loops of a run, and checks at intervals whether the run may continue.
///
/// Every EVM loop passes a `JUMPDEST` and every recursion a call, so the engine ticks on both. A tick is one decrement.
/// Only each `Meter::STRIDE`th reads the clock and the cancel flag, so the meter costs a run nothing measurable.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    fuel: u32,
    strides_left: Option<u32>,
    /// Gas that precompiles may still use. `None` if the run need not be short.
    precompile_gas: Option<u64>,
    spent: MeterCount,
    deadline: Option<Instant>,
    cancelled: Option<Arc<AtomicBool>>,
    pause: Option<Pause>,
    stopped: Option<Stopped>,
}

/// The work that a meter has counted, bounded or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterCount {
    /// The strides that have begun.
    pub strides: u32,
    /// The gas that precompiles have used.
    pub precompile_gas: u64,
}

/// A callback that a run invokes whenever it reads the clock, so that another job may run in between.
#[derive(Clone)]
pub struct Pause(Arc<dyn Fn() + Send + Sync>);

impl Pause {
    /// Creates a pause that calls `meanwhile`.
    pub fn new(meanwhile: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(meanwhile))
    }
}

impl std::fmt::Debug for Pause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pause")
    }
}

/// The progress of one thread: the number of meter checks, plus whatever else the thread counts. Any thread may read
/// it, and it is written without a lock.
#[derive(Debug, Default)]
pub struct Progress(AtomicU64);

thread_local! {
    static PROGRESS: OnceCell<Arc<Progress>> = const { OnceCell::new() };
}

impl Progress {
    /// Counts the checks of all meters on the calling thread from now on. A thread has one progress: a second call has
    /// no effect.
    pub fn count_checks(self: &Arc<Self>) {
        PROGRESS.with(|progress| _ = progress.set(self.clone()));
    }

    /// Counts one step. Only the thread itself may call it, because two concurrent steps may count as one.
    pub fn advance(&self) {
        self.0.store(self.0.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Returns the number of steps so far.
    pub fn steps(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The reason why a run was stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// The deadline has passed.
    #[error("the request ran past its deadline")]
    Deadline,
    /// No client waits for the answer any more.
    #[error("the request was cancelled")]
    Cancelled,
    /// The run is longer than its bound. The request runs again, on a worker.
    #[error("the request is too long to run inline, or in the pause of another")]
    TooLong,
}

impl Meter {
    /// Ticks between two reads of the clock: some tens of microseconds.
    const STRIDE: u32 = 4096;
    /// Ticks for the work around a call or a block: some microseconds.
    const BETWEEN_CALLS: u32 = 512;
    /// Strides left to a run that has missed state: some milliseconds.
    const DOOMED_STRIDES: u32 = 256;

    /// Gas that all precompiles of a short run may use together: some tens of microseconds of the most expensive
    /// precompile.
    const PRECOMPILE_GAS: u64 = 100_000;

    /// Creates a meter that stops a run at `deadline` or when `cancelled` is set. Each read of the clock calls `pause`.
    pub fn until(deadline: Instant, cancelled: Arc<AtomicBool>, pause: Option<Pause>) -> Self {
        Self { deadline: Some(deadline), cancelled: Some(cancelled), pause, ..Self::default() }
    }

    /// Moves the deadline to `deadline` if that is earlier: a request may tighten the limit of the node, never extend it.
    pub fn limit_time(&mut self, deadline: Instant) {
        self.deadline = Some(self.deadline.map_or(deadline, |own| own.min(deadline)));
    }

    /// Checks all bounds, before a long part of a run that does not tick.
    ///
    /// # Errors
    ///
    /// Returns the [`Stopped`] reason if the run must stop.
    pub fn check(&mut self) -> Result<(), Stopped> {
        self.poll();
        self.stopped.map_or(Ok(()), Err)
    }

    /// Counts the work before and after a call or a block that runs no code: filling in defaults, encoding and hashing.
    ///
    /// # Errors
    ///
    /// Returns the [`Stopped`] reason if the run must stop.
    pub fn between_calls(&mut self) -> Result<(), Stopped> {
        self.count(Self::BETWEEN_CALLS)
    }

    /// Counts work outside the EVM of `cost` ticks, which take some nanoseconds each.
    ///
    /// # Errors
    ///
    /// Returns the [`Stopped`] reason if the run must stop.
    pub fn count(&mut self, cost: u32) -> Result<(), Stopped> {
        self.tick(cost);
        self.stopped.map_or(Ok(()), Err)
    }

    /// Bounds a run that has missed state. Its result is discarded; it continues only to find further missing state.
    pub fn bound_doomed_run(&mut self) {
        self.strides_left = Some(self.strides_left.map_or(Self::DOOMED_STRIDES, |left| left.min(Self::DOOMED_STRIDES)));
        self.fuel = self.fuel.min(Self::STRIDE);
    }

    /// Creates a meter that stops a run after about `strides` times `Meter::STRIDE` ticks, or when its precompiles would
    /// take long.
    pub fn short(strides: u32) -> Self {
        let mut meter = Self::default();
        meter.bound(strides);
        meter
    }

    /// Also stops the run after about `strides` times `Meter::STRIDE` ticks, or when its precompiles would take long.
    pub const fn bound(&mut self, strides: u32) {
        self.bound_to(strides, Self::PRECOMPILE_GAS);
    }

    /// Also stops the run after about `strides` times `Meter::STRIDE` ticks, or when its precompiles would use more gas.
    pub const fn bound_to(&mut self, strides: u32, precompile_gas: u64) {
        self.strides_left = Some(strides);
        self.precompile_gas = Some(precompile_gas);
    }

    /// Returns the gas that the precompiles of the run may still use, or `None` if it is not bounded.
    pub const fn precompile_gas(&self) -> Option<u64> {
        self.precompile_gas
    }

    /// Counts gas that a precompile has used.
    pub const fn take_precompile_gas(&mut self, gas: u64) {
        self.spent.precompile_gas = self.spent.precompile_gas.saturating_add(gas);
        if let Some(left) = &mut self.precompile_gas {
            *left = left.saturating_sub(gas);
        }
    }

    /// Returns the work that was counted so far.
    pub const fn spent(&self) -> MeterCount {
        self.spent
    }

    /// Returns whether the run is bounded in strides, and so must be short.
    pub const fn is_short(&self) -> bool {
        self.strides_left.is_some()
    }

    /// Stops the run for a reason that the meter itself does not detect.
    pub const fn stop(&mut self, why: Stopped) {
        self.stopped = Some(why);
    }

    /// Returns the number of ticks so far, modulo 2³². A stride that has ended counts in full.
    pub const fn ticks(&self) -> u32 {
        self.spent.strides.wrapping_mul(Self::STRIDE).wrapping_sub(self.fuel)
    }

    /// Counts `cost` ticks if the stride has so many left. If not, returns false, and [`Meter::tick`] must count them.
    #[inline]
    pub const fn take(&mut self, cost: u32) -> bool {
        let Some(left) = self.fuel.checked_sub(cost) else { return false };
        self.fuel = left;
        true
    }

    /// Counts `cost` ticks. Returns false if the run must stop.
    #[inline]
    pub fn tick(&mut self, cost: u32) -> bool {
        if self.take(cost) {
            return true;
        }
        // An expensive opcode may take several strides at once.
        let strides = 1 + cost / Self::STRIDE;
        self.spent.strides = self.spent.strides.saturating_add(strides - 1);
        if let Some(left) = &mut self.strides_left {
            *left = left.saturating_sub(strides - 1);
        }
        self.poll()
    }

    /// Returns why the run was stopped, or `None` if it was not.
    pub const fn stopped(&self) -> Option<Stopped> {
        self.stopped
    }

    /// Invokes the pause, unless the thread holds a [lock], then checks all bounds. Returns false if the run must stop.
    #[cold]
    pub fn poll(&mut self) -> bool {
        self.fuel = Self::STRIDE;
        self.spent.strides = self.spent.strides.saturating_add(1);
        PROGRESS.with(|progress| {
            if let Some(progress) = progress.get() {
                progress.advance();
            }
        });
        if let Some(Pause(pause)) = &self.pause
            && !lock::is_held()
        {
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

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::SeqCst},
        },
        time::{Duration, Instant},
    };

    use super::{Meter, Pause};
    use crate::lock::{Mutex, RwLock};

    #[test]
    fn a_run_does_not_pause_while_its_thread_holds_a_lock() {
        let paused = Arc::new(AtomicUsize::new(0));
        let counter = paused.clone();
        let pause = Pause::new(move || {
            counter.fetch_add(1, SeqCst);
        });
        let deadline = Instant::now() + Duration::from_secs(3600);
        let mut meter = Meter::until(deadline, Arc::default(), Some(pause));
        let (mutex, shared) = (Mutex::new(1), RwLock::new(2));
        let pauses = |meter: &mut Meter| {
            let before = paused.load(SeqCst);
            assert!(meter.poll());
            paused.load(SeqCst) - before
        };
        assert_eq!(pauses(&mut meter), 1);
        {
            let _held = mutex.lock();
            assert_eq!(pauses(&mut meter), 0);
            let _read = shared.read();
            assert_eq!(pauses(&mut meter), 0);
        }
        assert_eq!(pauses(&mut meter), 1);
        let held = shared.write();
        assert_eq!(pauses(&mut meter), 0);
        drop(held);
        assert_eq!(pauses(&mut meter), 1);
    }
}
