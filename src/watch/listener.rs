//! The receivers of the news of standing bundles.

use std::fmt::Debug;

use super::{
    bundle::{Bundle, StaleReason},
    bundles::SnapshotName,
};

/// A receiver of the news of a watch. It collects and sends them in its own format.
pub trait Listener<B: Bundle>: Debug + Send + Sync + 'static {
    /// The news of a snapshot that are collected, and not sent.
    type News: Send;

    /// Returns whether the news reach a client. If they reach none, and no client polls, bundles run for
    /// [`Attendance::IDLE`](super::Attendance::IDLE) more.
    fn is_there(&self) -> bool;

    /// Begins the news of a snapshot. They are late if the [end](Self::end) of its news was sent before.
    fn begin(&self, snapshot: SnapshotName, is_late: bool) -> Self::News;

    /// Adds an answer, or `None` if the objective of the bundle is not above the client's minimum.
    fn add_answer(&self, news: &mut Self::News, bundle: &str, answer: Option<&B::Answer>);

    /// Adds a bundle that is behind to news that are late.
    fn add_behind(&self, news: &mut Self::News, bundle: Behind<'_>);

    /// Sends what may be sent before the end of the news.
    fn send(&self, news: &mut Self::News) -> impl Future<Output = ()> + Send;

    /// Sends the rest of the news. If they are not late, they end the snapshot's news and list all bundles that are
    /// behind, which `behind` passes to its argument.
    fn end(&self, news: Self::News, behind: &BehindNow<'_>) -> impl Future<Output = ()> + Send;

    /// Notes that the watch is over.
    fn close(&self);
}

/// A function that passes each bundle that is behind now to its argument.
pub type BehindNow<'a> = dyn Fn(&mut dyn FnMut(Behind<'_>)) + Send + Sync + 'a;

/// A bundle that is behind: its answer holds only up to a snapshot.
#[derive(Clone, Copy, Debug)]
pub struct Behind<'a> {
    /// The name of the bundle.
    pub name: &'a str,
    /// The newest snapshot for which its answer is known to hold. `None` before its first run.
    pub holds_at: Option<SnapshotName>,
    /// The reason why its last run gave no answer, if it gave none.
    pub stale: Option<&'a StaleReason>,
}
