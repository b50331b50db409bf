//! Tasks that wait for a worker, and their runs.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{AcqRel, Relaxed},
        },
    },
    time::Instant,
};

use tokio::sync::oneshot;

use super::{
    batch::JobPermit,
    flow::{Bound, Flow, QueuedWork, WorkerHooks},
    lane::{Lane, Refused},
    task::{Task, Ticket},
};
use crate::{
    meter::{Meter, Stopped},
    state::{Missed, Overlay},
    store::StoreError,
    telemetry::Counter,
};

/// The result of one run, and how the run ended.
pub struct RunOutcome<D> {
    pub done: D,
    /// Whether the run was stopped because it exceeded the bound of its meter.
    pub too_long: bool,
    /// State that the run did not find. If there is any, the other fields mean nothing.
    pub missed: Missed,
}

/// A queued task, with its ticket, its permit in the lane and the channel for its answer.
pub struct QueuedTask<T: Task> {
    pub task: Arc<T>,
    pub ticket: Ticket,
    /// Set when the request no longer waits for the answer.
    pub cancelled: Arc<AtomicBool>,
    pub lane: Arc<Lane>,
    pub permit: Option<JobPermit>,
    pub answer: Option<oneshot::Sender<Result<RunOutcome<T::Done>, Refused>>>,
    /// When the task was queued; `None` once its first run has begun.
    pub arrived: Option<Instant>,
}

impl<T: Task> QueuedWork for QueuedTask<T> {
    fn run(&mut self, beside: &WorkerHooks, overlay: &mut Overlay, bound: Bound) -> bool {
        if let Some(arrived) = self.arrived.take() {
            self.lane.waited.record(arrived.elapsed());
        }
        if self.cancelled.load(Relaxed) {
            return true;
        }
        let began = Instant::now();
        let done = if began >= self.ticket.deadline {
            Err(Refused::Deadline)
        } else {
            let pause = matches!(bound, Bound::Deadline).then(|| beside.pause.clone());
            let mut meter = Meter::until(self.ticket.deadline, self.cancelled.clone(), pause);
            if let Bound::Strides(strides) = bound {
                meter.bound(strides);
            }
            self.lane.running.fetch_add(1, AcqRel);
            let done = run_caught(self.task.as_ref(), overlay, meter);
            self.lane.running.fetch_sub(1, AcqRel);
            let took = began.elapsed();
            self.lane.load.serve(took);
            if let (Bound::Strides(_), Ok(ran)) = (bound, &done)
                && ran.too_long
                && ran.missed.is_empty()
            {
                return false;
            }
            self.ticket.flow.load(self.lane.name).cost.learn(took);
            // The permit is released before the answer is sent, so that the client's next request finds it free.
            if let Some(permit) = self.permit.take() {
                permit.served(took);
            }
            done.map_err(|panic| panicked(&beside.panics, panic.as_ref()))
        };
        if let Some(answer) = self.answer.take() {
            let _ = answer.send(done);
        }
        true
    }

    fn flow(&self) -> Arc<Flow> {
        self.ticket.flow.clone()
    }
}

/// Runs a task. Returns the payload if the task panics, and drops the overlay, which may be left in any state.
pub fn run_caught<T: Task>(
    task: &T,
    overlay: &mut Overlay,
    meter: Meter,
) -> Result<RunOutcome<T::Done>, Box<dyn std::any::Any + Send>> {
    catch_unwind(AssertUnwindSafe(|| {
        let done = task.run(overlay, meter);
        RunOutcome { done, too_long: overlay.meter.stopped() == Some(Stopped::TooLong), missed: overlay.take_missed() }
    }))
    .inspect_err(|_| *overlay = Overlay::of_thread())
}

/// Counts a panic and writes it to the log. Returns the error that answers the request. A failed store is no panic: see
/// [`BlockKeeper`](crate::chain::BlockKeeper).
pub fn panicked(panics: &Counter, panic: &(dyn std::any::Any + Send)) -> Refused {
    if let Some(failure) = panic.downcast_ref::<StoreError>() {
        return Refused::Store(failure.clone());
    }
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let id = NEXT.fetch_add(1, Relaxed) as u64;
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no text");
    panics.increment(1);
    tracing::error!(id, panic = text, "a job panicked");
    Refused::Panicked { id }
}

/// Cancels a job by setting the flag, if its request is dropped before the job ends.
pub struct CancelOnDrop(pub Option<Arc<AtomicBool>>);

impl CancelOnDrop {
    /// Leaves the flag unset, because the job has ended.
    pub fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(flag) = &self.0 {
            flag.store(true, Relaxed);
        }
    }
}
