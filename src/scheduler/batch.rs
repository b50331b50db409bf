//! JSON-RPC batches: requests that arrived as one.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    flow::LaneName,
    lane::{Lane, LanePermit, Refused},
    load::Demand,
};

/// Requests that arrived as one. They share one permit in a lane, and only a few of them are in the lanes at a time: a
/// long batch is admitted like a single request, and delays others no longer than a few of its entries take.
#[derive(Debug)]
pub struct Batch {
    /// The permits of the entries that are in the lanes.
    entries: Semaphore,
    lanes: [Mutex<BatchLane>; LaneName::ALL.len()],
}

/// A batch's jobs in one lane, and the permit that they share.
#[derive(Debug, Default)]
struct BatchLane {
    /// `Some` while any of the jobs is in the lane.
    permit: Option<LanePermit>,
    jobs: usize,
    /// Total run time of the jobs since the permit was taken.
    took: Duration,
}

/// The right of an entry to be in its lane. Released on drop.
#[derive(Debug)]
pub struct EntryPermit<'a> {
    _permit: Option<SemaphorePermit<'a>>,
}

/// A job's permit to be in its lane: one of its own, or a share of its batch's. Released on drop.
#[derive(Debug)]
pub enum JobPermit {
    Own(LanePermit),
    Shared(BatchShare),
}

/// A job's share of its batch's permit.
#[derive(Debug)]
pub struct BatchShare {
    batch: Arc<Batch>,
    lane: LaneName,
}

impl Batch {
    /// Creates a batch of which at most `at_once` entries are in the lanes at a time.
    pub fn new(at_once: usize) -> Self {
        Self { entries: Semaphore::new(at_once), lanes: Default::default() }
    }

    /// Waits until one more entry may be in its lane.
    pub async fn entry(&self) -> EntryPermit<'_> {
        // `acquire` fails only if the semaphore is closed, and it never is.
        EntryPermit { _permit: self.entries.acquire().await.ok() }
    }

    /// Adds a job to `lane`, and takes the batch's permit there if the batch holds none.
    ///
    /// # Errors
    ///
    /// Returns the error of [`Lane::admit`] if the batch needs a permit and `lane` rejects it.
    pub fn enter(self: &Arc<Self>, lane: &Arc<Lane>, demand: Demand) -> Result<JobPermit, Refused> {
        let mut own = self.lane(lane.name);
        if own.permit.is_none() {
            own.permit = Some(lane.admit(demand)?);
        }
        own.jobs += 1;
        Ok(JobPermit::Shared(BatchShare { batch: self.clone(), lane: lane.name }))
    }

    fn lane(&self, lane: LaneName) -> MutexGuard<'_, BatchLane> {
        // No code panics while it holds this lock.
        self.lanes[lane as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JobPermit {
    /// Releases the permit after a run of length `took`, which counts towards the lane's cost.
    pub fn served(self, took: Duration) {
        match self {
            Self::Own(permit) => permit.served(took),
            Self::Shared(share) => share.batch.lane(share.lane).took += took,
        }
    }
}

impl Drop for BatchShare {
    fn drop(&mut self) {
        let mut own = self.batch.lane(self.lane);
        own.jobs -= 1;
        if own.jobs == 0 {
            let BatchLane { permit, took, .. } = std::mem::take(&mut *own);
            // A batch cancelled before any of its jobs ran says nothing about the cost of requests.
            if let Some(permit) = permit.filter(|_| !took.is_zero()) {
                permit.served(took);
            }
        }
    }
}
