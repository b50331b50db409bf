//! Requests that arrived as one: a JSON-RPC batch.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    flow::LaneName,
    lane::{Lane, Permit, Refused},
    load::Standing,
};

/// Requests that arrived as one. Together they take one permit in a lane, and a few of them are there at a time: a long batch is
/// admitted like a single request, and holds others up no longer than a few of its entries take.
#[derive(Debug)]
pub struct Batch {
    turns: Semaphore,
    stays: [Mutex<Stay>; LaneName::ALL.len()],
}

/// What a batch has in a lane.
#[derive(Debug, Default)]
struct Stay {
    /// There while any of its jobs is in the lane.
    permit: Option<Permit>,
    jobs: usize,
    /// What its jobs have taken since it has the permit.
    took: Duration,
}

/// The right of an entry to be in its lane.
#[derive(Debug)]
pub struct Turn<'a> {
    /// Given back when dropped.
    _permit: Option<SemaphorePermit<'a>>,
}

/// What lets a job be in its lane. Released on drop.
#[derive(Debug)]
pub enum Claim {
    /// A permit of its own.
    Own(Permit),
    /// The permit of its batch.
    Shared(BatchShare),
}

/// A job's use of its batch's permit.
#[derive(Debug)]
pub struct BatchShare {
    batch: Arc<Batch>,
    lane: LaneName,
}

impl Batch {
    /// A batch of which `at_once` entries may be in the lanes.
    pub fn new(at_once: usize) -> Self {
        Self { turns: Semaphore::new(at_once), stays: Default::default() }
    }

    /// Waits until one more entry may be in its lane.
    pub async fn turn(&self) -> Turn<'_> {
        // It fails only where the semaphore is closed, and nobody closes it.
        Turn { _permit: self.turns.acquire().await.ok() }
    }

    /// Lets one more job be in `lane`. The batch takes its permit where it has none.
    ///
    /// # Errors
    /// Returns what [`Lane::admit`] does.
    pub fn enter(self: &Arc<Self>, lane: &Arc<Lane>, standing: Standing) -> Result<Claim, Refused> {
        let mut stay = self.stay(lane.name);
        if stay.permit.is_none() {
            stay.permit = Some(lane.admit(standing)?);
        }
        stay.jobs += 1;
        Ok(Claim::Shared(BatchShare { batch: self.clone(), lane: lane.name }))
    }

    fn stay(&self, lane: LaneName) -> MutexGuard<'_, Stay> {
        // Nothing panics with it in hand.
        self.stays[lane as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    /// Releases the claim after a run that took this long.
    pub fn served(self, took: Duration) {
        match self {
            Self::Own(permit) => permit.served(took),
            Self::Shared(share) => share.batch.stay(share.lane).took += took,
        }
    }
}

impl Drop for BatchShare {
    fn drop(&mut self) {
        let mut stay = self.batch.stay(self.lane);
        stay.jobs -= 1;
        if stay.jobs == 0 {
            let Stay { permit, took, .. } = std::mem::take(&mut *stay);
            // What was cancelled before it ran tells nothing of what requests take.
            if let Some(permit) = permit.filter(|_| !took.is_zero()) {
                permit.served(took);
            }
        }
    }
}
