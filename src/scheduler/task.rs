//! The executor's input: a task and its ticket.

use std::{sync::Arc, time::Instant};

use tokio::sync::SemaphorePermit;

use super::{
    batch::Batch,
    flow::{Flow, LaneName},
    lane::Refused,
};
use crate::{
    meter::Meter,
    state::{Missed, Overlay},
};

/// The thread on which a request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunPlace {
    /// Inline, because the request is a look-up.
    Inline,
    /// Inline first, with a small bound; on a worker of the lane if it exceeds the bound.
    InlineThen(LaneName),
    /// On a worker of the lane.
    On(LaneName),
}

/// A request as the executor sees it: work that can run any number of times, on any thread.
pub trait Task: Sized + Send + Sync + 'static {
    /// The answer that a run returns.
    type Answer: Send + 'static;
    /// The error that answers a request without a result.
    type Error: From<Refused>;

    /// Returns where the task runs.
    fn place(&self) -> RunPlace;

    /// Returns the size of the parameters in bytes. A task with large ones takes long to parse, and never runs inline.
    fn size(&self) -> usize;

    /// Runs once, for as long as `meter` allows. The task must reset `overlay` first. The executor repeats a run that
    /// [has missed](Overlay::has_missed) state or was too long for its meter, so such a run must have no other effect.
    fn run(&self, overlay: &mut Overlay, meter: Meter) -> Self::Answer;

    /// Fetches the state that a run has missed; `round` counts from 1. Returns a task to run instead of this one, if
    /// there is one. No worker waits meanwhile.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be fetched.
    fn fetch(&self, missed: Missed, round: usize) -> impl Future<Output = Result<Option<Self>, Self::Error>> + Send;
}

/// The deadline of a request, its client, and the batch of which it is an entry.
#[derive(Clone, Debug)]
pub struct Ticket {
    pub(super) deadline: Instant,
    pub(super) flow: Arc<Flow>,
    pub(super) batch: Option<Arc<Batch>>,
}

impl Ticket {
    /// Turns the ticket into that of an entry of `batch`.
    pub fn of(self, batch: &Arc<Batch>) -> Self {
        Self { batch: Some(batch.clone()), ..self }
    }

    /// Moves the deadline to `deadline`, if that is earlier.
    #[must_use]
    pub fn until(self, deadline: Instant) -> Self {
        Self { deadline: self.deadline.min(deadline), ..self }
    }

    /// Returns whether the request is an entry of a batch.
    pub const fn is_entry(&self) -> bool {
        self.batch.is_some()
    }

    /// Returns the time by which the request must be done.
    pub const fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Waits until the batch may run one more entry. Returns `None` at once if the request is not in a batch.
    pub(super) async fn entry(&self) -> Option<SemaphorePermit<'_>> {
        // `acquire` fails only if the semaphore is closed, and it never is.
        self.batch.as_ref()?.entries.acquire().await.ok()
    }
}
