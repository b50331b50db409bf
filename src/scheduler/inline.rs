//! Admits requests to run on the thread that read them, and detects when such a thread falls behind.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use super::{
    constants::{ALWAYS_ADMITTED, INLINE_WAIT, LONG_BACKLOG_WAIT, LONG_SOCKET_QUEUE, SAMPLE_INTERVAL},
    cost::{Cost, nanos},
    load::Demand,
};

/// The inline requests of one thread, which runs one at a time while the others from its connections wait.
#[derive(Debug, Default)]
pub struct ThreadQueue {
    inside: AtomicUsize,
    cost: Cost,
    /// Number of requests that the thread has read.
    read: AtomicUsize,
    /// Nanoseconds for which the thread's sockets have held a long queue; 0 if they hold none.
    backlog_age: AtomicU64,
}

/// A permit to run inline on a thread. Released on drop.
#[derive(Debug)]
pub struct InlinePermit<'a> {
    queue: Arc<ThreadQueue>,
    busy: &'a AtomicUsize,
}

impl ThreadQueue {
    /// Returns a permit to run on the thread, or `None` if the expected wait is too long. `overload_wait` is in per cent
    /// of a request's run time, and `busy` counts the threads that run a request inline or are about to.
    pub fn enter<'a>(
        self: &Arc<Self>,
        busy: &'a AtomicUsize,
        demand: Demand,
        overload_wait: u32,
    ) -> Option<InlinePermit<'a>> {
        let before = self.inside.fetch_add(1, Relaxed);
        if before == 0 {
            busy.fetch_add(1, Relaxed);
        }
        let permit = InlinePermit { queue: self.clone(), busy };
        let wait = (before as u64).saturating_mul(self.cost.mean());
        let longest = match demand {
            Demand::AboveQuota | Demand::BelowQuota => self.cost.overload_wait(overload_wait),
            Demand::AtEase | Demand::Unknown if before > ALWAYS_ADMITTED => nanos(INLINE_WAIT),
            Demand::AtEase | Demand::Unknown => u64::MAX,
        };
        // Before the first sample, the expected wait is not known.
        let is_known = before <= ALWAYS_ADMITTED || self.cost.mean() > 0;
        (before == 0 || (is_known && wait <= longest)).then_some(permit)
    }

    /// Counts a request that the thread has read. Returns how long its sockets have held a long queue.
    pub fn count_read(&self) -> Duration {
        self.read.fetch_add(1, Relaxed);
        Duration::from_nanos(self.backlog_age.load(Relaxed))
    }

    /// Estimates the queue in the sockets of the thread whose event loop polls this future.
    ///
    /// An event waits until all events that were ready before it are handled. So a timer is late by that time, and the
    /// requests read meanwhile are the ones that waited. As in a [lane](super::lane::Lane), the queue is long if many
    /// requests wait, and each waits long.
    pub async fn sample(&self, queue_wait: Duration) {
        let mut since = None;
        loop {
            let (due, read) = (Instant::now() + SAMPLE_INTERVAL, self.read.load(Relaxed));
            tokio::time::sleep_until(due.into()).await;
            let now = Instant::now();
            let late = now.saturating_duration_since(due);
            let read = self.read.load(Relaxed).wrapping_sub(read) as f64;
            let waited = read * late.as_secs_f64() / (SAMPLE_INTERVAL + late).as_secs_f64();
            let is_long = waited > LONG_SOCKET_QUEUE && late > queue_wait / LONG_BACKLOG_WAIT;
            // One long sample is not enough for an age: a pause of the whole process looks the same.
            since = is_long.then(|| since.unwrap_or(now));
            self.backlog_age.store(since.map_or(0, |since| nanos(now - since)), Relaxed);
        }
    }
}

impl InlinePermit<'_> {
    /// Releases the permit after a run of length `took`, which counts towards the thread's cost.
    pub fn served(self, took: Duration) {
        self.queue.cost.learn(took);
    }
}

impl Drop for InlinePermit<'_> {
    fn drop(&mut self) {
        if self.queue.inside.fetch_sub(1, Relaxed) == 1 {
            self.busy.fetch_sub(1, Relaxed);
        }
    }
}
