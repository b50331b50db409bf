//! The health of the feed, for clients and metrics.

use std::sync::Arc;

use crate::{
    state::{FeedProblem, FeedState, Snapshots},
    telemetry::{Counter, Gauge, Metrics},
};

/// The writer of the feed's health into snapshots and metrics. The feed has one.
#[derive(Debug)]
pub struct FeedStatus {
    state: FeedState,
    snapshots: Arc<Snapshots>,
    live: Gauge,
    still: Gauge,
    problems: [(FeedProblem, Gauge, Counter); FeedProblem::ALL.len()],
}

impl FeedStatus {
    /// Returns the status that `snapshots` begin with.
    pub fn new(snapshots: Arc<Snapshots>, metrics: &Metrics) -> Self {
        let gauge = |state| {
            let help =
                "1 for the state that the feed is in (live, lagging, static, or why it is degraded), 0 for the others.";
            metrics.gauge("presim_feed_state", help, &[("state", state)])
        };
        let problems = FeedProblem::ALL.map(|problem| {
            let help = "Times that pending fell back to the canonical head, by reason.";
            let fallbacks = metrics.counter("presim_feed_fallbacks_total", help, &[("reason", problem.as_str())]);
            (problem, gauge(problem.as_str()), fallbacks)
        });
        let state = snapshots.load().feed;
        let status = Self { state, snapshots, live: gauge("live"), still: gauge("static"), problems };
        status.show();
        status
    }

    /// Returns the health of the feed.
    pub const fn state(&self) -> FeedState {
        self.state
    }

    /// Returns whether `pending` is the canonical head because the feed is broken.
    pub const fn is_degraded(&self) -> bool {
        self.state.is_degraded()
    }

    /// Sets the feed's health, and returns whether it has changed. Another reason counts as a change, another lag does
    /// not.
    pub fn set(&mut self, state: FeedState) -> bool {
        if state == self.state {
            return false;
        }
        let is_other = (state.as_str(), state.cause()) != (self.state.as_str(), self.state.cause());
        self.state = state;
        if !is_other {
            self.snapshots.set_feed(state);
            return false;
        }
        for (problem, _, fallbacks) in &self.problems {
            if state.problem() == Some(*problem) {
                fallbacks.increment(1);
            }
        }
        self.show();
        // Set last, so that a client that sees the state finds it in the metrics, too.
        self.snapshots.set_feed(state);
        true
    }

    fn show(&self) {
        let flag = |is: bool| if is { 1.0 } else { 0.0 };
        self.live.set(flag(matches!(self.state, FeedState::Live { .. })));
        self.still.set(flag(self.state == FeedState::Static));
        for (problem, gauge, _) in &self.problems {
            // A feed that is late is not degraded, whatever it is late for.
            let is_late = *problem == FeedProblem::Lagging && self.state.lag().is_some();
            gauge.set(flag(is_late || self.state.problem() == Some(*problem)));
        }
    }
}
