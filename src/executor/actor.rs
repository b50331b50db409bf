//! The actors of the lanes: their figures, and their orderly end.

use std::{
    sync::{Arc, atomic::Ordering::Acquire},
    time::{Duration, Instant},
};

use actix::{Actor, AsyncContext, Context, Handler, Message, ResponseFuture};

use super::{flow::LaneName, lane::Lane, scheduler::Executor};
use crate::telemetry::{Gauge, Metrics};

/// Owns one lane's figures and its orderly end. Jobs do not pass through it: they go straight to the lane's queue.
pub struct LaneActor {
    lane: Arc<Lane>,
    executor: Executor,
    waiting: Gauge,
    running: Gauge,
    overloaded: Gauge,
}

impl LaneActor {
    /// How often the figures are taken.
    const INTERVAL: Duration = Duration::from_millis(100);

    /// The actor of `lane`.
    pub fn new(lane: LaneName, executor: Executor, metrics: &Metrics) -> Self {
        let labels = [("lane", lane.as_str())];
        Self {
            lane: executor.lane(lane).clone(),
            executor,
            waiting: metrics.gauge("presim_queue_depth", "Jobs that wait for a worker.", &labels),
            running: metrics.gauge("presim_jobs_running", "Jobs that run.", &labels),
            overloaded: metrics.gauge("presim_queue_overloaded", "1 while the lane is overloaded, else 0.", &labels),
        }
    }
}

impl Actor for LaneActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.run_interval(Self::INTERVAL, |actor, _| {
            let lane = &actor.lane;
            lane.load.measure(Instant::now());
            actor.waiting.set(actor.executor.waiting(lane.name) as f64);
            actor.running.set(lane.running.load(Acquire) as f64);
            actor.overloaded.set(f64::from(u8::from(lane.load.is_overloaded())));
        });
    }
}

/// Take no further jobs, and answer when none is left.
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
