//! The lane actors, which export the lanes' metrics and drain the lanes at shutdown.

use std::{
    sync::{Arc, atomic::Ordering::Acquire},
    time::Instant,
};

use actix::{Actor, AsyncContext, Context, Handler, Message, ResponseFuture};

use super::{constants::MEASURE_INTERVAL, flow::LaneName, lane::Lane, submit::Executor};
use crate::telemetry::{Gauge, Metrics, Pulse};

/// Exports one lane's metrics and drains it at shutdown. Jobs go straight to the lane's queue, not through the actor.
pub struct LaneActor {
    lane: Arc<Lane>,
    executor: Executor,
    waiting: Gauge,
    running: Gauge,
    overloaded: Gauge,
}

impl LaneActor {
    /// Creates the actor of `lane` and registers its gauges with `metrics`.
    pub fn new(lane: LaneName, executor: Executor, metrics: &Metrics) -> Self {
        let labels = [("lane", lane.into())];
        Self {
            lane: executor.lane(lane).clone(),
            executor,
            waiting: metrics.gauge("presim_queue_depth", "Jobs waiting for a worker.", &labels),
            running: metrics.gauge("presim_jobs_running", "Jobs running on a worker.", &labels),
            overloaded: metrics.gauge("presim_queue_overloaded", "1 while the lane is overloaded, else 0.", &labels),
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
            actor.running.set(lane.running.load(Acquire) as f64);
            actor.overloaded.set(f64::from(u8::from(lane.load.is_overloaded())));
        });
    }
}

impl Handler<Pulse> for LaneActor {
    type Result = bool;

    fn handle(&mut self, _: Pulse, _: &mut Self::Context) -> bool {
        true
    }
}

/// Closes the executor to new jobs. The message is answered when no request waits or runs in the lane.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Drain;

impl Handler<Drain> for LaneActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: Drain, _: &mut Self::Context) -> Self::Result {
        self.executor.close();
        let lane = self.lane.clone();
        Box::pin(async move { lane.drained().await })
    }
}
