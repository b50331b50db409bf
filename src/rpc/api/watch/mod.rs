//! `presim_watch` and its companions: standing bundles of parameters, and their news as JSON.

mod news;
pub mod request;
mod run;
pub mod serve;
mod summary;

pub use self::summary::StandingSummary;

use std::sync::Arc;

use self::{news::Connections, run::NodeBundle};
use crate::{
    rpc::run::subscriptions::Subscriptions,
    scheduler::Executor,
    telemetry::Metrics,
    watch::{WatchId, WatchLimits, WatchList},
};

/// All standing bundles of a node.
#[derive(Clone, Debug)]
pub struct Watches {
    list: Arc<WatchList<NodeBundle, Connections>>,
    subscriptions: Arc<Subscriptions>,
}

impl Watches {
    /// Creates an empty list. News are sent to `subscriptions`.
    pub fn new(limits: WatchLimits, executor: &Executor, subscriptions: Arc<Subscriptions>, metrics: &Metrics) -> Self {
        Self { list: Arc::new(WatchList::new(limits, executor, metrics)), subscriptions }
    }

    /// Ends a watch. Returns whether it stood.
    pub fn end(&self, id: WatchId) -> bool {
        self.list.remove(id)
    }

    /// Ends waiting polls, because the node stops. They are answered with the current news.
    pub fn stop_waiting(&self) {
        self.list.stop_waiting();
    }
}
