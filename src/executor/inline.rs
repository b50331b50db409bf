//! Who may run on the thread that read the request, and whether that thread is behind.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{AcqRel, Relaxed},
        },
    },
    time::{Duration, Instant},
};

use super::{
    lane::Lane,
    load::{Cost, Standing},
};

thread_local! {
    static HERE: Arc<Slot> = Arc::default();
}

/// What runs inline on a thread, or is about to. A thread runs one request at a time, and what waits for it came over its connections.
#[derive(Debug, Default)]
struct Slot {
    inside: AtomicUsize,
    cost: Cost,
    /// Requests that it has read.
    arrived: AtomicUsize,
    /// Whether it has been late for long.
    is_late: AtomicBool,
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
            Standing::AboveShare => slot.cost.most().saturating_mul(overload_wait.into()) / 100,
            _ if before > Self::FEW => super::load::nanos(Self::LONGEST),
            _ => u64::MAX,
        };
        let permit = InlinePermit { slot, busy: self.busy.clone() };
        (before == 0 || (before <= Self::MOST && wait <= longest)).then_some(permit)
    }

    /// How often it is looked whether a thread is late.
    const LOOK_EVERY: Duration = Duration::from_millis(25);
    /// Looks in a row at which it must have been late: a pause of the whole process is one.
    const LATE_LOOKS: u32 = 4;

    /// Notes that the calling thread has read a request. Returns whether the thread is late.
    pub fn arrive() -> bool {
        HERE.with(|slot| {
            slot.arrived.fetch_add(1, Relaxed);
            slot.is_late.load(Relaxed)
        })
    }

    /// Watches how late the calling thread gets to what is ready, for as long as its event loop runs.
    ///
    /// Where requests are short, overload shows nowhere else: a thread that is busy with reading, running and rejecting leaves what comes in the
    /// sockets, and the lanes are short. As with a [queue that stands](Lane), it is late if for `patience` it was never on time: whatever was ready
    /// waited for many other requests, and for long.
    pub async fn watch(patience: Duration) {
        let slot = HERE.with(Arc::clone);
        let (mut on_time, mut late_looks) = (Instant::now(), 0);
        loop {
            let (due, arrived) = (Instant::now() + Self::LOOK_EVERY, slot.arrived.load(Relaxed));
            tokio::time::sleep_until(due.into()).await;
            let late = due.elapsed();
            let arrived = slot.arrived.load(Relaxed).wrapping_sub(arrived) as f64;
            // Those that came while this was ready.
            let before = arrived * late.as_secs_f64() / (Self::LOOK_EVERY + late).as_secs_f64();
            if Lane::is_long(before as usize, late, patience) {
                late_looks += 1;
            } else {
                (on_time, late_looks) = (Instant::now(), 0);
            }
            slot.is_late.store(late_looks >= Self::LATE_LOOKS && on_time.elapsed() > patience, Relaxed);
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
