//! The actors of the workers.

use std::{io, sync::Arc, thread::JoinHandle, time::Duration};

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message, ResponseFuture};
use tokio::time::sleep;

use super::{
    constants::DRAIN_POLL,
    pulse::{StallWatch, WorkerPulse},
    submit::Executor,
    worker::NewWorker,
};
use crate::telemetry::{Counter, Metrics, Pulse};

/// Owns one worker of the executor: starts its thread, watches its pulse, and confirms at shutdown that it is idle. Jobs go
/// straight from the queues to the worker, not through the actor.
pub struct WorkerActor {
    pulse: Arc<WorkerPulse>,
    thread: JoinHandle<()>,
    executor: Executor,
    watch: StallWatch,
    /// Time between two looks at the worker.
    look_interval: Duration,
    stalls: Counter,
}

impl WorkerActor {
    /// Starts `worker` of `executor`, and its actor. The worker counts as stalled if it makes no progress for `stall_after`
    /// while jobs wait.
    ///
    /// # Errors
    ///
    /// Returns the system's error if it gives no thread.
    pub fn spawn(
        worker: NewWorker,
        executor: Executor,
        stall_after: Duration,
        metrics: &Metrics,
    ) -> io::Result<Addr<Self>> {
        let help = "Times that a worker made no progress for --worker-stall-ms while requests waited.";
        let actor = Self {
            pulse: worker.pulse.clone(),
            thread: worker.start()?,
            executor,
            watch: StallWatch::new(),
            look_interval: stall_after / StallWatch::LOOKS,
            stalls: metrics.counter("presim_worker_stalls_total", help),
        };
        Ok(actor.start())
    }

    /// Checks the worker periodically. Late checks do not run in a burst.
    fn look_later(&self, context: &mut Context<Self>) {
        context.run_later(self.look_interval, |actor, context| {
            actor.look();
            actor.look_later(context);
        });
    }

    fn look(&mut self) {
        let (before, job) = (self.pulse.stall(), self.pulse.job());
        let is_stalled = self.watch.look(self.pulse.progress.steps(), job.is_some(), self.executor.has_waiting());
        self.pulse.set_stalled(is_stalled);
        match (before, self.pulse.stall()) {
            (None, Some(stall)) => {
                self.stalls.increment(1);
                let (lane, method) = job.map(|job| (<&str>::from(job.lane), *job.name)).unzip();
                tracing::error!(worker = stall.worker, lane, method, "{stall}");
            }
            (Some(stall), None) => tracing::warn!(worker = stall.worker, "the worker makes progress again"),
            _ => {}
        }
    }
}

impl Actor for WorkerActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        self.look_later(context);
    }
}

impl Handler<Pulse> for WorkerActor {
    type Result = bool;

    /// Returns whether the worker makes progress, or none is asked of it.
    fn handle(&mut self, _: Pulse, _: &mut Self::Context) -> bool {
        self.pulse.stall().is_none() && !self.thread.is_finished()
    }
}

/// Asks for the end of a worker's last job, after [`Executor::drain`]. The message is answered when the worker is idle.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Drain;

impl Handler<Drain> for WorkerActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: Drain, _: &mut Self::Context) -> Self::Result {
        let pulse = self.pulse.clone();
        Box::pin(async move {
            while pulse.job().is_some() {
                sleep(DRAIN_POLL).await;
            }
        })
    }
}
