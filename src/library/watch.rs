//! The stream of snapshots.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
};

use futures::{Stream, StreamExt, stream};
use tokio::sync::watch;

use super::requests::Snapshot;
use crate::ledger::Snapshots;

/// A stream of snapshots, which begins with the newest one.
///
/// It yields the newest snapshot whenever one was published after the last that it has yielded. A slow consumer misses the
/// snapshots between, and nothing waits for it: no code of the consumer runs on the threads of the node. The stream ends
/// with the node, and may be polled after its end.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use futures::StreamExt;
///
/// let node = presim::Node::start(presim::Config::default()).await?;
/// let mut watch: presim::Watch = node.watch();
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
        // The receiver also wakes on changes of metadata, and on a snapshot that was loaded at the wake before.
        let next = async |(mut changes, snapshots, last): (watch::Receiver<_>, Weak<Snapshots>, _)| loop {
            changes.changed().await.ok()?;
            let newest = snapshots.upgrade()?.settled();
            let id = Some(newest.id);
            if id != last {
                return Some((Snapshot(newest), (changes, snapshots, id)));
            }
        };
        Self(Box::pin(stream::unfold((changes, snapshots, None), next).fuse()))
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;

    use super::*;
    use crate::{
        chain::{BlockHashes, ChainSpec, genesis_block},
        ledger::{FeedState, Retention, Snapshot as LedgerSnapshot},
        source::devnet::world::dev_genesis,
        state::{CodeCache, LocalWorld},
    };

    #[test]
    fn a_snapshot_is_yielded_once_and_the_end_again_and_again() {
        let genesis = dev_genesis(&[], 0);
        let spec = ChainSpec::new(genesis.config.clone(), Duration::from_secs(1)).expect("its rules");
        let world = LocalWorld::of_genesis(&genesis, &CodeCache::new(1 << 20));
        let block = genesis_block(&genesis, &spec, world.state_root());
        let first = LedgerSnapshot::at_head(world, Arc::new(block), BlockHashes::default());
        let retention = Retention { blocks: 1, snapshots: 1, history: 1, history_bytes: u64::MAX };
        let snapshots = Arc::new(Snapshots::new(first, FeedState::Static, retention));

        let mut watch = Watch::new(&snapshots);
        let yielded = watch.next().now_or_never().flatten().expect("the newest");
        assert_eq!(yielded.id(), snapshots.newest().id.0);
        snapshots.update(|chain| chain.show_feed(FeedState::live(Duration::from_secs(1))));
        assert!(watch.next().now_or_never().is_none(), "the state of the feed is no snapshot");
        drop(snapshots);
        for _ in 0..2 {
            assert!(matches!(watch.next().now_or_never(), Some(None)));
        }
    }
}
