//! The stream of snapshots.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
};

use futures::{Stream, stream};

use super::requests::Snapshot;
use crate::ledger::Snapshots;

/// A stream of snapshots, which begins with the newest one.
///
/// It yields the newest snapshot whenever one was published after the last that it has yielded. A slow consumer misses the
/// snapshots between, and nothing waits for it: no code of the consumer runs on the threads of the node. The stream ends
/// with the node.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use futures::StreamExt;
///
/// let node = presim::Node::start(presim::Config::default()).await?;
/// let mut watch = node.watch();
/// let first = watch.next().await.ok_or("the node has stopped")?;
/// let second = watch.next().await.ok_or("the node has stopped")?;
/// assert!(first.id() < second.id());
/// # Ok(node.stop().await) }
/// ```
pub struct Watch(Pin<Box<dyn Stream<Item = Snapshot> + Send>>);

impl Watch {
    pub(super) fn new(snapshots: &Arc<Snapshots>) -> Self {
        let mut changes = snapshots.changes();
        changes.mark_changed();
        let snapshots: Weak<Snapshots> = Arc::downgrade(snapshots);
        Self(Box::pin(stream::unfold((changes, snapshots), async |(mut changes, snapshots)| {
            changes.changed().await.ok()?;
            let newest = Snapshot(snapshots.upgrade()?.settled());
            Some((newest, (changes, snapshots)))
        })))
    }
}

impl Stream for Watch {
    type Item = Snapshot;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Snapshot>> {
        self.0.as_mut().poll_next(cx)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}
