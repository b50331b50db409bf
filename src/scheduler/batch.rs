//! JSON-RPC batches: requests that arrived as one.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::sync::Semaphore;

use super::{
    flow::LaneName,
    lane::{Lane, LanePermit, Rejected},
    load::Demand,
};
use crate::lock::Mutex;

/// Requests that arrived as one. They have one permit in a lane together, and only a few of them are in the lanes at a
/// time: a long batch is admitted like a single request, and delays others no longer than a few of its entries take.
#[derive(Debug)]
pub struct Batch {
    /// The permits of the entries that are in the lanes.
    pub entries: Semaphore,
    /// The permit in each lane, while any of the entries is there.
    permits: [Mutex<Weak<LanePermit>>; LaneName::ALL.len()],
}

/// A job's permit to be in its lane. Released on drop.
#[derive(Debug)]
pub enum JobPermit {
    Own(LanePermit),
    /// The permit of the job's batch, which the last of its jobs releases.
    OfBatch(Arc<LanePermit>),
}

impl Batch {
    /// Creates a batch of which at most `at_once` entries are in the lanes at a time.
    pub fn new(at_once: usize) -> Self {
        Self { entries: Semaphore::new(at_once), permits: Default::default() }
    }

    /// Returns the batch's permit in `lane`, which the batch takes there if it holds none.
    ///
    /// # Errors
    ///
    /// Returns the error of [`Lane::admit`] if the batch needs a permit and `lane` rejects it.
    pub fn enter(&self, lane: &Arc<Lane>, demand: Demand) -> Result<JobPermit, Rejected> {
        // No code panics while it holds this lock.
        let mut held = self.permits[lane.name as usize].lock();
        if let Some(permit) = held.upgrade() {
            return Ok(JobPermit::OfBatch(permit));
        }
        let permit = Arc::new(lane.admit(demand)?);
        *held = Arc::downgrade(&permit);
        Ok(JobPermit::OfBatch(permit))
    }
}

impl JobPermit {
    /// Releases the permit after a run of length `took`, which counts towards the lane's cost.
    pub fn served(self, took: Duration) {
        match &self {
            Self::Own(permit) => permit.add(took),
            Self::OfBatch(permit) => permit.add(took),
        }
    }
}
