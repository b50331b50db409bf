//! Admits requests to run on the thread that read them, and detects when such a thread falls behind.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{AcqRel, Relaxed},
        },
    },
    time::{Duration, Instant},
};

use super::load::{Cost, LoadStanding, nanos};

thread_local! {
    static HERE: Arc<ThreadSlot> = Arc::default();
}

/// The inline requests of one thread, which runs one at a time while the others from its connections wait.
#[derive(Debug, Default)]
struct ThreadSlot {
    inside: AtomicUsize,
    cost: Cost,
    /// Number of requests that the thread has read.
    read: AtomicUsize,
    /// Nanoseconds for which the thread's sockets have held a long queue; 0 if they hold none.
    stood: AtomicU64,
}

/// The threads on which requests run inline.
#[derive(Debug, Default)]
pub struct Inline {
    /// Number of threads that run a request inline or are about to.
    busy: Arc<AtomicUsize>,
}

/// A permit to run inline on a thread. Released on drop.
#[derive(Debug)]
pub struct InlinePermit {
    slot: Arc<ThreadSlot>,
    busy: Arc<AtomicUsize>,
}

impl Inline {
    /// Number of requests that may always wait for a thread while their lane is at ease.
    const FEW: usize = 8;
    /// Most requests that may wait for a thread, and their longest expected wait if they are more than [`Self::FEW`].
    const MOST: usize = 1024;
    const LONGEST: Duration = Duration::from_millis(2);

    /// Returns a permit to run on the calling thread, or `None` if the expected wait is too long. `overload_wait` is in
    /// per cent of a request's run time.
    pub fn enter(&self, standing: LoadStanding, overload_wait: u32) -> Option<InlinePermit> {
        let slot = HERE.with(Arc::clone);
        let before = slot.inside.fetch_add(1, AcqRel);
        if before == 0 {
            self.busy.fetch_add(1, Relaxed);
        }
        let wait = (before as u64).saturating_mul(slot.cost.mean());
        let longest = match standing {
            LoadStanding::AboveShare | LoadStanding::BelowShare => {
                slot.cost.most().saturating_mul(overload_wait.into()) / 100
            }
            LoadStanding::AtEase | LoadStanding::Unknown if before > Self::FEW => nanos(Self::LONGEST),
            LoadStanding::AtEase | LoadStanding::Unknown => u64::MAX,
        };
        let permit = InlinePermit { slot, busy: self.busy.clone() };
        (before == 0 || (before <= Self::MOST && wait <= longest)).then_some(permit)
    }

    /// Time between two samples of a thread's queue.
    const LOOK_EVERY: Duration = Duration::from_millis(25);
    /// Consecutive samples that must show a long queue. One is not enough: a pause of the whole process looks the same.
    const LONG_LOOKS: u32 = 2;
    /// Number of waiting requests above which a thread's queue is long, if their wait is long too.
    const MANY: f64 = 32.0;

    /// Counts a request that the calling thread has read. Returns how long its sockets have held a long queue.
    pub fn read() -> Duration {
        HERE.with(|slot| {
            slot.read.fetch_add(1, Relaxed);
            Duration::from_nanos(slot.stood.load(Relaxed))
        })
    }

    /// Estimates the queue in the calling thread's sockets, for as long as the thread's event loop runs.
    ///
    /// An event waits until all events that were ready before it are handled. So a timer is late by that time, and the
    /// requests read meanwhile are those that waited. As in a [lane](super::lane::Lane), the queue is long if many
    /// requests wait, and wait for longer than an eightieth of `patience`.
    pub async fn watch(patience: Duration) {
        let slot = HERE.with(Arc::clone);
        let (mut short, mut long_looks) = (Instant::now(), 0);
        loop {
            let (due, read) = (Instant::now() + Self::LOOK_EVERY, slot.read.load(Relaxed));
            tokio::time::sleep_until(due.into()).await;
            let late = due.elapsed();
            let read = slot.read.load(Relaxed).wrapping_sub(read) as f64;
            let waited = read * late.as_secs_f64() / (Self::LOOK_EVERY + late).as_secs_f64();
            if waited > Self::MANY && late > patience / 80 {
                long_looks += 1;
            } else {
                (short, long_looks) = (Instant::now(), 0);
            }
            let stood = if long_looks < Self::LONG_LOOKS { 0 } else { nanos(short.elapsed()) };
            slot.stood.store(stood, Relaxed);
        }
    }

    pub fn busy(&self) -> usize {
        self.busy.load(Relaxed)
    }
}

impl InlinePermit {
    /// Releases the permit after a run of length `took`, which counts towards the thread's cost.
    pub fn served(self, took: Duration) {
        self.slot.cost.learn(took);
    }
}

impl Drop for InlinePermit {
    fn drop(&mut self) {
        if self.slot.inside.fetch_sub(1, AcqRel) == 1 {
            self.busy.fetch_sub(1, Relaxed);
        }
    }
}
