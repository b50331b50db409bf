//! The executor's input: a task, its ticket, and the source of the state that its runs miss.

use std::{fmt::Debug, sync::Arc, time::Instant};

use async_trait::async_trait;
use tokio::sync::SemaphorePermit;

use super::{
    batch::Batch,
    flow::{ClientShare, LaneName},
    lane::Rejected,
    pulse::TaskName,
};
use crate::{
    chain::Unexecutable,
    meter::Meter,
    state::{FetchError, Held, Missed, Overlay},
};

/// The thread on which a request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunTarget {
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

    /// Returns the name of the task, for the log of a worker that it keeps busy: of a request, its method.
    fn name(&self) -> TaskName;

    /// Returns where the task runs.
    fn target(&self) -> RunTarget;

    /// Returns the parameters of the request, or an empty text. A task with large parameters takes long to parse or to run, and
    /// does not run inline. A [`FetchMissed`] may use them to predict what the task will miss.
    fn params(&self) -> &str {
        ""
    }

    /// Runs once, for as long as `meter` allows. The task must reset `overlay` first. The executor repeats a run that
    /// [has missed](Overlay::has_missed) state or was too long for its meter, so such a run must have no other effect.
    fn run(&self, overlay: &mut Overlay, meter: Meter) -> Self::Answer;

    /// Returns the task to run instead of this one after a reorg has removed its block, as soon as there is a newer state
    /// to run on. Returns `None` if the task is bound to its state, or no newer state is shown for now.
    fn on_newer(&self) -> impl Future<Output = Option<Self>> + Send {
        std::future::ready(None)
    }
}

/// A source of all the state that a run has missed, for [`Executor::submit`](super::Executor::submit). A
/// [`StateSource`](crate::state::StateSource) has the state of single blocks.
#[async_trait]
pub trait FetchMissed: Debug + Send + Sync {
    /// Returns the most rounds of one task that may miss state.
    fn rounds(&self) -> usize;

    /// Fetches the state that a run has missed. The next run finds it while the returned value is held. In the first
    /// round of a task, `params` are its [parameters](Task::params), from which more state to fetch may be predicted.
    ///
    /// # Errors
    ///
    /// Returns a [`FetchError`] if a missed value is still unknown.
    async fn fetch(&self, missed: &Missed, params: Option<&str>, deadline: Instant) -> Result<Held, FetchError>;
}

/// The source of a chain whose whole state is local, on which no run misses state.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalState;

#[async_trait]
impl FetchMissed for LocalState {
    fn rounds(&self) -> usize {
        1
    }

    async fn fetch(&self, _: &Missed, _: Option<&str>, _: Instant) -> Result<Held, FetchError> {
        Err(FetchError::Local)
    }
}

/// The reason why a task has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// The task was not run, or not run to its end.
    #[error(transparent)]
    Rejected(#[from] Rejected),
    /// The state that a run has missed could not be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// A run has reached something that presim cannot execute.
    #[error("{0}")]
    Unexecutable(Unexecutable),
}

/// The deadline of a request, its client, and the batch of which it is an entry.
#[derive(Clone, Debug)]
pub struct Ticket {
    pub(super) deadline: Instant,
    pub(super) flow: Arc<ClientShare>,
    pub(super) batch: Option<Arc<Batch>>,
}

impl Ticket {
    /// Makes the ticket an entry of `batch`.
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
