//! Tasks that wait for a worker, and their runs.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use tokio::sync::oneshot;

use super::{
    batch::JobPermit,
    flow::QueuedWork,
    lane::{Lane, Rejected},
    pulse::RunningJob,
    task::{Task, Ticket},
    worker::Worker,
};
use crate::{
    meter::{Meter, Pause, Stopped},
    state::{Missed, Overlay},
    store::StoreError,
    telemetry::Counter,
};

/// The result of one run, and how the run ended.
pub struct RunOutcome<A> {
    pub answer: A,
    /// State that the run did not find. If there is any, the answer is meaningless.
    pub missed: Missed,
    /// Whether the run missed nothing, but stopped because it exceeded its meter's bound.
    pub too_long: bool,
}

/// A queued task, with its ticket, its permit in the lane and the channel for its answer.
pub struct QueuedTask<T: Task> {
    pub task: Arc<T>,
    pub ticket: Ticket,
    /// Set when the request no longer waits for the answer.
    pub cancelled: Arc<AtomicBool>,
    pub lane: Arc<Lane>,
    pub permit: Option<JobPermit>,
    pub answer: Option<oneshot::Sender<Result<RunOutcome<T::Answer>, Rejected>>>,
    /// When the task was queued; `None` once its first run has begun.
    pub arrived: Option<Instant>,
}

impl<T: Task> QueuedWork for QueuedTask<T> {
    fn run(&mut self, pause: Option<&Pause>, strides: Option<u32>) -> bool {
        if let Some(arrived) = self.arrived.take() {
            self.lane.waited.record(arrived.elapsed());
        }
        if self.cancelled.load(Relaxed) {
            return true;
        }
        let began = Instant::now();
        if began >= self.ticket.deadline {
            self.answer(Err(Rejected::Deadline));
            return true;
        }
        let mut meter = Meter::until(self.ticket.deadline, self.cancelled.clone(), pause.cloned());
        if let Some(strides) = strides {
            meter.bound(strides);
        }
        let job = RunningJob { lane: self.lane.name, name: self.task.name(), since: began };
        Worker::with_overlay(|overlay| {
            self.lane.running.fetch_add(1, Relaxed);
            let ran = Worker::run_job(job, || run_caught(self.task.as_ref(), overlay, meter, &self.lane.panics));
            self.lane.running.fetch_sub(1, Relaxed);
            let took = began.elapsed();
            self.lane.load.serve(took);
            if strides.is_some() && ran.as_ref().is_ok_and(|ran| ran.too_long) {
                return false;
            }
            self.ticket.flow.load(self.lane.name).cost.learn(took);
            // The permit is released before the answer is sent, so that the client's next request finds it free.
            if let Some(permit) = self.permit.take() {
                permit.served(took);
            }
            self.answer(ran);
            true
        })
    }
}

impl<T: Task> QueuedTask<T> {
    fn answer(&mut self, ran: Result<RunOutcome<T::Answer>, Rejected>) {
        if let Some(answer) = self.answer.take() {
            let _ = answer.send(ran);
        }
    }
}

/// Runs a task. If it panics, counts the panic, writes it to the log, and drops the overlay, which may be left in any
/// state.
///
/// # Errors
///
/// Returns the error that answers the request if the task panics. A failed store is no panic: see
/// [`BlockKeeper`](crate::chain::BlockKeeper).
pub fn run_caught<T: Task>(
    task: &T,
    overlay: &mut Overlay,
    meter: Meter,
    panics: &Counter,
) -> Result<RunOutcome<T::Answer>, Rejected> {
    let run = AssertUnwindSafe(|| {
        let answer = task.run(overlay, meter);
        let missed = overlay.take_missed();
        let too_long = missed.is_empty() && overlay.meter.stopped() == Some(Stopped::TooLong);
        RunOutcome { answer, missed, too_long }
    });
    catch_unwind(run).map_err(|panic| {
        *overlay = Overlay::of_thread();
        panicked(panics, panic.as_ref())
    })
}

fn panicked(panics: &Counter, panic: &(dyn Any + Send)) -> Rejected {
    if let Some(failure) = panic.downcast_ref::<StoreError>() {
        return Rejected::Store(failure.clone());
    }
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let id = NEXT.fetch_add(1, Relaxed);
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    panics.increment(1);
    tracing::error!(id, panic = text.unwrap_or("no text"), "a job panicked");
    Rejected::Panicked { id }
}

/// Cancels a job when its request is dropped. Has no effect if the job has ended.
pub struct CancelOnDrop(pub Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
