//! The lanes' actors, which measure the lanes, drain them at shutdown, and check their workers.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Instant,
};

use actix::{Actor, AsyncContext, Context, Handler, Message, ResponseFuture};
use tokio::{
    sync::oneshot::{Receiver, error::TryRecvError},
    time::sleep,
};

use super::{
    constants::{DRAIN_POLL, MEASURE_INTERVAL, PULSE_GRACE},
    flow::LaneName,
    lane::Lane,
    submit::Executor,
};
use crate::telemetry::{Gauge, Metrics, Pulse};

/// Owns the life of one lane: its load and metrics, its drain at shutdown, and the pulse of its workers. Jobs go straight
/// to the lane's queue, not through the actor.
pub struct LaneActor {
    lane: Arc<Lane>,
    executor: Executor,
    waiting: Gauge,
    running: Gauge,
    overloaded: Gauge,
    /// The question that the workers have not answered yet, and when it was asked.
    asked: Option<(Instant, Receiver<()>)>,
}

impl LaneActor {
    /// Creates the actor of `lane` and registers its gauges with `metrics`.
    pub fn new(lane: LaneName, executor: Executor, metrics: &Metrics) -> Self {
        let labels = [("lane", lane.into())];
        Self {
            lane: executor.lane(lane).clone(),
            executor,
            waiting: metrics.gauge_with("presim_queue_depth", "Jobs waiting for a worker.", &labels),
            running: metrics.gauge_with("presim_jobs_running", "Jobs running on a worker.", &labels),
            overloaded: metrics.gauge_with(
                "presim_queue_overloaded",
                "1 while the lane is overloaded, else 0.",
                &labels,
            ),
            asked: None,
        }
    }
}

impl Actor for LaneActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.run_interval(MEASURE_INTERVAL, |actor, _| {
            let lane = &actor.lane;
            lane.load.measure(Instant::now());
            actor.waiting.set(actor.executor.waiting(lane.name) as f64);
            actor.running.set(lane.running.load(Relaxed) as f64);
            actor.overloaded.set(f64::from(u8::from(lane.load.is_overloaded())));
        });
    }
}

impl Handler<Pulse> for LaneActor {
    type Result = bool;

    /// Asks the workers, and returns whether they have answered the last question, or may still be busy with runs
    /// whose deadlines have just passed.
    fn handle(&mut self, _: Pulse, _: &mut Self::Context) -> bool {
        let (since, mut answer) = self.asked.take().unwrap_or_else(|| (Instant::now(), self.executor.pulse()));
        match answer.try_recv() {
            Ok(()) => return true,
            Err(TryRecvError::Closed) => return false,
            Err(TryRecvError::Empty) => self.asked = Some((since, answer)),
        }
        let (waited, lane) = (since.elapsed(), self.lane.name);
        let works = waited <= self.lane.deadline() + PULSE_GRACE;
        if !works {
            tracing::error!(%lane, waited_ms = waited.as_millis(), "the workers do not answer");
        }
        works
    }
}

/// Closes a lane to new jobs. The message is answered when no request waits or runs in the lane.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Drain;

impl Handler<Drain> for LaneActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: Drain, _: &mut Self::Context) -> Self::Result {
        let lane = self.lane.clone();
        lane.close();
        Box::pin(async move {
            while lane.inside() > 0 {
                sleep(DRAIN_POLL).await;
            }
        })
    }
}
