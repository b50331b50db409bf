//! The run time of requests.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use super::constants::{DEVIATIONS, SAMPLES};

/// The run time of requests in nanoseconds: a mean and a mean deviation with exponential weights, as in RFC 6298.
#[derive(Debug, Default)]
pub struct Cost {
    mean: AtomicU64,
    deviation: AtomicU64,
}

impl Cost {
    /// Returns the mean; 0 before the first sample.
    pub fn mean(&self) -> u64 {
        self.mean.load(Relaxed)
    }

    /// Returns the longest wait of a request in an overloaded queue, in nanoseconds: `overload_wait` per cent of a run
    /// time that few requests exceed.
    pub fn overload_wait(&self, overload_wait: u32) -> u64 {
        let most = self.mean().saturating_add(self.deviation.load(Relaxed).saturating_mul(DEVIATIONS));
        most.saturating_mul(overload_wait.into()) / 100
    }

    /// Adds a sample. One of two concurrent samples may be lost, which does not matter to a mean of many.
    pub fn learn(&self, took: Duration) {
        let (took, mean) = (nanos(took), self.mean());
        if mean == 0 {
            self.mean.store(took, Relaxed);
            return;
        }
        self.deviation.store(weighted(self.deviation.load(Relaxed), took.abs_diff(mean)), Relaxed);
        self.mean.store(weighted(mean, took), Relaxed);
    }
}

/// Returns the mean after a new sample.
pub const fn weighted(mean: u64, new: u64) -> u64 {
    mean - mean / SAMPLES + new / SAMPLES
}

/// Converts a time to nanoseconds, saturating at [`u64::MAX`].
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
