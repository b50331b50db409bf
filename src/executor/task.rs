//! What is handed to the executor: a task and its ticket.

use std::{sync::Arc, time::Instant};

use super::{
    batch::{Batch, Turn},
    flow::{Flow, LaneName},
    lane::Refused,
};
use crate::{
    meter::Meter,
    state::{Missed, Overlay},
};

/// Where a request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Inline: it is a look-up.
    Inline,
    /// Inline first, in a small bound; past it, on a lane.
    InlineThen(LaneName),
    /// On a lane.
    On(LaneName),
}

/// A request as the executor sees it: work that can be run any number of times, on any thread.
pub trait Task: Sized + Send + Sync + 'static {
    /// What a run makes.
    type Done: Send + 'static;
    /// Why there is nothing made.
    type Error: From<Refused>;

    /// Where it runs.
    fn place(&self) -> Place;

    /// Bytes of its parameters. With more than a few it takes long to read, and is not run inline.
    fn size(&self) -> usize;

    /// Runs once, in an overlay that it must reset, as long as the meter lets it. A run that [has missed](Overlay::has_missed) state, or that
    /// was too long for its meter, is repeated: it does nothing that lasts.
    fn run(&self, overlay: &mut Overlay, meter: Meter) -> Self::Done;

    /// Fetches the state that a run has missed; `round` counts from 1. Returns the task that is run in place of this one, if another is. No worker
    /// waits meanwhile.
    ///
    /// # Errors
    /// Returns why the state cannot be had.
    fn fetch(&self, missed: Missed, round: usize) -> impl Future<Output = Result<Option<Self>, Self::Error>> + Send;
}

/// A request's time, its client, and the batch that it is an entry of.
#[derive(Clone, Debug)]
pub struct Ticket {
    pub(super) deadline: Instant,
    pub(super) flow: Arc<Flow>,
    pub(super) batch: Option<Arc<Batch>>,
}

impl Ticket {
    /// The same for an entry of `batch`.
    pub fn of(self, batch: &Arc<Batch>) -> Self {
        Self { batch: Some(batch.clone()), ..self }
    }

    /// Whether it is of an entry of a batch.
    pub const fn is_entry(&self) -> bool {
        self.batch.is_some()
    }

    /// When the request must be done.
    pub const fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Waits until its batch may run one more.
    pub(super) async fn turn(&self) -> Option<Turn<'_>> {
        Some(self.batch.as_ref()?.turn().await)
    }
}
