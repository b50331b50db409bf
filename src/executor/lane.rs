//! The executor actors: one owns each lane's figures and its end.

use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler, Message, ResponseFuture};
use metrics::Gauge;

use super::Executor;
use crate::telemetry::Metrics;

/// The two lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaneName {
    /// Single calls.
    Short,
    /// Simulations of bundles.
    Bundle,
}

impl LaneName {
    /// Its name in metrics and errors.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Bundle => "bundle",
        }
    }
}

impl std::fmt::Display for LaneName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Owns one lane's figures and its orderly end. Jobs do not pass through it: they go straight to the lane's queue.
pub struct LaneActor {
    lane: LaneName,
    executor: Executor,
    waiting: Gauge,
    running: Gauge,
    overloaded: Gauge,
}

impl LaneActor {
    /// The actor of `lane`.
    pub fn new(lane: LaneName, executor: Executor, metrics: &Metrics) -> Self {
        let labels = [("lane", lane.as_str())];
        Self {
            lane,
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
        context.run_interval(Duration::from_millis(100), |lane, _| {
            let (waiting, running, overloaded) = lane.executor.load(lane.lane);
            lane.waiting.set(waiting as f64);
            lane.running.set(running as f64);
            lane.overloaded.set(f64::from(u8::from(overloaded)));
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
        let executor = self.executor.clone();
        executor.close();
        Box::pin(async move {
            while !executor.idle() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
    }
}
