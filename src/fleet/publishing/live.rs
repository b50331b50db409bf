//! Publishing an upstream's chain. Every node with `--publish` reads its source all the time, into a cell that nobody sees;
//! the one that leads publishes what it reads, and the others show what the leader has published.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::LocalBoxFuture};
use tokio::time::Instant;

use super::{LiveOutlet, OutletStep, Publisher};
use crate::{
    fleet::{servers::FleetLink, state},
    ledger::Snapshots,
    source::{Feed, FeedSource, live::LiveSource},
};

/// The most bytes of changes that wait for the stream.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// The time that a node which takes over has to come to the canonical head that its fleet has seen.
const CATCH_UP: Duration = Duration::from_millis(500);

/// An upstream's chain that is published.
#[derive(Debug)]
pub struct PublishedLive {
    /// The node's part in its fleet.
    pub publisher: Publisher,
    /// The upstream's chain.
    pub source: LiveSource,
    /// The cell into which this node reads its source, and which nobody sees.
    pub own: Arc<Snapshots>,
    /// The connection over which replicas ask for state; `None` if they have it elsewhere.
    pub link: Option<FleetLink>,
}

impl FeedSource for PublishedLive {
    fn run(self: Box<Self>, mut feed: Feed) -> LocalBoxFuture<'static, ()> {
        let Self { mut publisher, source, own, link } = *self;
        let outlet = Arc::new(LiveOutlet::new(MAX_WAITING_BYTES));
        let fetcher = source.fetcher.clone();
        let reading = Box::new(source).run(feed.unseen(own.clone(), Box::new(outlet.clone())));
        let publishing = async move {
            loop {
                let epoch = publisher.lead_next(&mut feed, own.load().last.epoch()).await;
                reach_head(&own, &feed.snapshots).await;
                outlet.begin(&own, epoch, feed.snapshots.load());
                let chains = [feed.snapshots.clone(), own.clone()];
                let serving = link.clone().map(|link| state::serve(link, fetcher.clone(), chains));
                lead(&publisher, &mut feed, &own, &outlet).await;
                drop(serving);
                outlet.end();
                tracing::warn!("this node leads the fleet no more: it follows");
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

/// Publishes what the node reads until another node leads.
async fn lead(publisher: &Publisher, feed: &mut Feed, own: &Snapshots, outlet: &LiveOutlet) {
    let mut leading = publisher.leading(feed).await;
    // A quiet chain has no message that would find another leader.
    while publisher.stream.is_leased().await {
        publisher.show_pause(feed, &mut leading).await;
        publisher.write_due_image(feed, &mut leading, || outlet.reset_codes_if_idle()).await;
        let step = tokio::select! {
            biased;
            step = outlet.next(own) => step,
            () = publisher.look(&mut leading) => continue,
        };
        send_and_show(publisher, feed, step).await;
    }
    *publisher.stream.writer().await = None;
}

/// Sends a change to the stream, and shows it once the stream has it.
async fn send_and_show(publisher: &Publisher, feed: &mut Feed, step: OutletStep) {
    let OutletStep { id, message, after, arrived } = step;
    publisher.stream.take_message(id, message);
    // A node that leads no more finds that out by its lease.
    if feed.commit(after).await.is_err() {
        return;
    }
    feed.pool.advance();
    if let Some(arrived) = arrived {
        feed.count(arrived);
    }
}
