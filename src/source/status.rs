//! The health of the feed, for clients and metrics.

use crate::{
    ledger::{FeedProblem, FeedState},
    telemetry::{Counter, Gauge, Metrics},
};

/// The health of the feed, and the metrics that show it. The feed has one.
#[derive(Debug)]
pub struct FeedStatus {
    state: FeedState,
    live: Gauge,
    still: Gauge,
    problems: Vec<(FeedProblem, Gauge, Counter)>,
}

impl FeedStatus {
    /// Creates the status of a feed that begins in `state`.
    pub fn new(state: FeedState, metrics: &Metrics) -> Self {
        let gauge = |state| {
            let help =
                "1 for the state that the feed is in (live, lagging, static, or why it is degraded), 0 for the others.";
            metrics.gauge_with("presim_feed_state", help, &[("state", state)])
        };
        let problems = FeedProblem::ALL.iter().map(|problem| {
            let help = "Times that pending fell back to the canonical head, by reason.";
            let fallbacks = metrics.counter_with("presim_feed_fallbacks_total", help, &[("reason", problem.as_str())]);
            (*problem, gauge(problem.as_str()), fallbacks)
        });
        let status = Self { state, live: gauge("live"), still: gauge("static"), problems: problems.collect() };
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

    /// Shows the feed's health in the metrics, and returns whether it has changed. Another reason counts as a change,
    /// another lag does not.
    pub fn show_state(&mut self, state: FeedState) -> bool {
        let is_other = (state.as_str(), state.cause()) != (self.state.as_str(), self.state.cause());
        self.state = state;
        if !is_other {
            return false;
        }
        for (problem, _, fallbacks) in &self.problems {
            if state.problem() == Some(*problem) {
                fallbacks.increment(1);
            }
        }
        self.show();
        true
    }

    fn show(&self) {
        let flag = |is: bool| if is { 1.0 } else { 0.0 };
        self.live.set(flag(matches!(self.state, FeedState::Live { .. })));
        self.still.set(flag(self.state == FeedState::Static));
        for (problem, gauge, _) in &self.problems {
            // A late feed is not degraded, regardless of the reason.
            let is_late = *problem == FeedProblem::Lagging && self.state.lag().is_some();
            gauge.set(flag(is_late || self.state.problem() == Some(*problem)));
        }
    }
}
