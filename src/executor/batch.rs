//! Requests that arrived as one: a JSON-RPC batch.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    LaneName,
    admission::{Admission, NoPlace, Place},
};

/// Requests that arrived as one. Together they take one place in a lane, and a few of them are there at a time: a long batch is
/// admitted like a single request, and holds others up no longer than a few of its entries take.
#[derive(Debug)]
pub struct Batch {
    turns: Semaphore,
    short: Mutex<Stay>,
    bundle: Mutex<Stay>,
}

/// What a batch has in a lane.
#[derive(Debug, Default)]
struct Stay {
    /// There while any of its jobs is in the lane.
    place: Option<Place>,
    jobs: usize,
    /// What its jobs have taken since it has the place.
    took: Duration,
}

/// The right of an entry to be in its lane.
#[derive(Debug)]
pub struct Turn<'a> {
    /// Given back when dropped.
    _permit: Option<SemaphorePermit<'a>>,
}

/// A job's claim on its lane, given back when dropped.
#[derive(Debug)]
pub enum Claim {
    /// A place of its own.
    Own(Place),
    /// A share of its batch's.
    Shared(Share),
}

/// A job's share of its batch's place.
#[derive(Debug)]
pub struct Share {
    batch: Arc<Batch>,
    lane: LaneName,
}

impl Batch {
    /// A batch of which `at_once` entries may be in the lanes.
    pub fn new(at_once: usize) -> Self {
        Self { turns: Semaphore::new(at_once), short: Mutex::default(), bundle: Mutex::default() }
    }

    /// Waits until one more entry may be in its lane.
    pub async fn turn(&self) -> Turn<'_> {
        // It fails only where the semaphore is closed, and nobody closes it.
        Turn { _permit: self.turns.acquire().await.ok() }
    }

    /// A share of the batch's place in `lane`, which is taken where it has none.
    pub fn enter(self: &Arc<Self>, lane: LaneName, admission: &Arc<Admission>) -> Result<Claim, NoPlace> {
        let mut stay = self.stay(lane);
        if stay.place.is_none() {
            stay.place = Some(admission.enter()?);
        }
        stay.jobs += 1;
        Ok(Claim::Shared(Share { batch: self.clone(), lane }))
    }

    fn stay(&self, lane: LaneName) -> MutexGuard<'_, Stay> {
        let stay = match lane {
            LaneName::Short => &self.short,
            LaneName::Bundle => &self.bundle,
        };
        // Nothing panics with it in hand.
        stay.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    /// Gives the claim back after a run that took this long.
    pub fn served(self, took: Duration) {
        match self {
            Self::Own(place) => place.served(took),
            Self::Shared(share) => share.batch.stay(share.lane).took += took,
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut stay = self.batch.stay(self.lane);
        stay.jobs -= 1;
        if stay.jobs == 0 {
            let Stay { place, took, .. } = std::mem::take(&mut *stay);
            // What was cancelled before it ran tells nothing of what requests take.
            if let Some(place) = place.filter(|_| !took.is_zero()) {
                place.served(took);
            }
        }
    }
}
