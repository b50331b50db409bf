//! Publishing an upstream's chain. Every node with `--publish` reads its source all the time, into a cell that clients
//! do not see. The leader publishes the changes that it reads; the other nodes show the leader's.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::LocalBoxFuture};
use tokio::time::Instant;

use super::{Publisher, leading::Leading, queue::ChangeQueue};
use crate::{
    fleet::{servers::FleetLink, state},
    ledger::Snapshots,
    source::{Feed, FeedSource, live::LiveSource},
};

/// The most bytes of changes that wait for the stream.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// The time limit for a node that takes over to reach the canonical head that its fleet has seen.
const CATCH_UP: Duration = Duration::from_millis(500);

/// An upstream's chain that is published.
#[derive(Debug)]
pub struct PublishedLive {
    /// The node's part in its fleet.
    pub publisher: Publisher,
    /// The upstream's chain.
    pub source: LiveSource,
    /// The cell into which this node reads its source. Clients do not see it.
    pub own: Arc<Snapshots>,
    /// The connection over which replicas ask for state. `None` if they have another source.
    pub link: Option<FleetLink>,
}

impl FeedSource for PublishedLive {
    fn run(self: Box<Self>, mut feed: Feed) -> LocalBoxFuture<'static, ()> {
        let Self { mut publisher, source, own, link } = *self;
        let queue = Arc::new(ChangeQueue::new(MAX_WAITING_BYTES));
        let fetcher = source.fetcher.clone();
        let reading = Box::new(source).run(feed.unseen(own.clone(), Box::new(queue.clone())));
        let publishing = async move {
            loop {
                let writer = publisher.lead_next(&mut feed, own.load().last.epoch()).await;
                reach_head(&own, &feed.snapshots).await;
                queue.begin(&own, writer.id.epoch(), feed.snapshots.load());
                let chains = [feed.snapshots.clone(), own.clone()];
                let serving = link.clone().map(|link| state::serve(link, fetcher.clone(), chains));
                Leading::begin(&publisher, &feed, writer).await.publish(&mut feed, &queue, &own).await;
                drop(serving);
                queue.end();
                tracing::warn!("this node no longer leads the fleet: it follows");
                publisher.ceased = Some(Instant::now());
                publisher.follower.following = None;
            }
        };
        async move {
            futures::join!(reading, publishing);
        }
        .boxed_local()
    }
}

/// Waits until the node's own chain has the canonical head that the fleet has seen, so that a takeover does not go back.
async fn reach_head(own: &Snapshots, seen: &Snapshots) {
    let head = seen.load().head().clone();
    let mut changes = own.changes();
    let reached = async {
        loop {
            let known = own.load();
            let is_behind = known.head().number() < head.number();
            if !is_behind || changes.changed().await.is_err() {
                return;
            }
        }
    };
    let _ = tokio::time::timeout_at(Instant::now() + CATCH_UP, reached).await;
}
