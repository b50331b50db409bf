//! Who may run on the thread that read the request, and whether that thread is behind.

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

use super::load::{Cost, Standing, nanos};

thread_local! {
    static HERE: Arc<Slot> = Arc::default();
}

/// What runs inline on a thread, or is about to. A thread runs one request at a time, and what waits for it came over its connections.
#[derive(Debug, Default)]
struct Slot {
    inside: AtomicUsize,
    cost: Cost,
    /// Requests that it has read.
    read: AtomicUsize,
    /// How long a long queue has stood in its sockets, in nanoseconds; 0 if none does.
    stood: AtomicU64,
}

/// The threads on which requests run inline.
#[derive(Debug, Default)]
pub struct Inline {
    /// Threads that run something, or are about to.
    busy: Arc<AtomicUsize>,
}

/// A permit to run inline on a thread. Released on drop.
#[derive(Debug)]
pub struct InlinePermit {
    slot: Arc<Slot>,
    busy: Arc<AtomicUsize>,
}

impl Inline {
    /// Requests that may always wait for a thread while their lane is at ease.
    const FEW: usize = 8;
    /// Requests that may wait for a thread, and how long where they are more than a few.
    const MOST: usize = 1024;
    const LONGEST: Duration = Duration::from_millis(2);

    /// A permit to run on the calling thread; `None` if its wait would be too long. `overload_wait` is in per cent of what a request takes.
    pub fn enter(&self, standing: Standing, overload_wait: u32) -> Option<InlinePermit> {
        let slot = HERE.with(Arc::clone);
        let before = slot.inside.fetch_add(1, AcqRel);
        if before == 0 {
            self.busy.fetch_add(1, Relaxed);
        }
        let wait = (before as u64).saturating_mul(slot.cost.mean());
        let longest = match standing {
            Standing::AboveShare | Standing::BelowShare => slot.cost.most().saturating_mul(overload_wait.into()) / 100,
            Standing::AtEase | Standing::Unknown if before > Self::FEW => nanos(Self::LONGEST),
            Standing::AtEase | Standing::Unknown => u64::MAX,
        };
        let permit = InlinePermit { slot, busy: self.busy.clone() };
        (before == 0 || (before <= Self::MOST && wait <= longest)).then_some(permit)
    }

    /// How often it is looked at a thread's queue.
    const LOOK_EVERY: Duration = Duration::from_millis(25);
    /// Looks in a row that must have found a long one: a pause of the whole process is one.
    const LONG_LOOKS: u32 = 2;
    /// Requests that are a long queue of a thread, if their wait is long too.
    const MANY: f64 = 32.0;

    /// Notes that the calling thread has read a request. Returns how long a long queue has stood in the thread's sockets, where nobody else sees it.
    pub fn read() -> Duration {
        HERE.with(|slot| {
            slot.read.fetch_add(1, Relaxed);
            Duration::from_nanos(slot.stood.load(Relaxed))
        })
    }

    /// Watches the queue in the calling thread's sockets, for as long as its event loop runs.
    ///
    /// Whatever becomes ready waits as long as all that was ready before it takes. So a timer is late by that time, and what was read in it is how
    /// many waited. As with the queue of a [lane](super::lane::Lane), it is long if they are many and wait for long: an eightieth of `patience`.
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

    /// How many of the threads run something, or are about to.
    pub fn busy(&self) -> usize {
        self.busy.load(Relaxed)
    }
}

impl InlinePermit {
    /// Releases the permit after a run that took this long.
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
