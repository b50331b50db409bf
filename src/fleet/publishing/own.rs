//! Publishing a chain of presim's own: it is built here while this node leads, and followed while another does.

use futures::{FutureExt, future::LocalBoxFuture};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::{LOOK_INTERVAL, Publisher};
use crate::{
    fleet::{pool, servers::FleetLink, verdicts::PoolVerdicts},
    ledger::FeedState,
    source::{Feed, FeedSource, devnet::DevnetSource},
};

/// A chain that is published: built here while this node leads, followed while another does.
#[derive(Debug)]
pub struct PublishedSource {
    /// The node's part in its fleet.
    pub publisher: Publisher,
    /// The devnet that builds the chain; `None` if it stands still.
    pub devnet: Option<DevnetSource>,
    /// The connection over which sent transactions come; `None` if no client sends any.
    pub link: Option<FleetLink>,
}

impl FeedSource for PublishedSource {
    fn run(mut self: Box<Self>, mut feed: Feed) -> LocalBoxFuture<'static, ()> {
        async move {
            let _filling = self.link.take().map(|link| {
                let verdicts = PoolVerdicts::new(link.client.clone(), self.publisher.leads.subscribe());
                pool::fill(link, feed.pool.clone(), Some(verdicts))
            });
            loop {
                self.publisher.lead_next(&mut feed, 0).await;
                self.lead(&mut feed).await;
            }
        }
        .boxed_local()
    }
}

impl PublishedSource {
    /// Builds and publishes the chain until another node leads, or this one's disk fails.
    async fn lead(&mut self, feed: &mut Feed) {
        let state = self.devnet.as_ref().map_or(FeedState::Static, DevnetSource::health);
        let mut sequence = self.publisher.stream.writer().await.as_ref().map_or(0, |stream| stream.sequence);
        // The stream may end with the trouble of the leader before.
        feed.set_state(state);
        let _ = feed.committed().await;
        let mut leading = self.publisher.leading(feed).await;
        let every = self.devnet.as_ref().map_or(LOOK_INTERVAL, |devnet| devnet.every);
        let mut ticks = interval_at(Instant::now() + every, every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // A chain that stands still has no message that would find another leader.
        while self.publisher.stream.is_leased().await && feed.failure().is_none() {
            sequence = self.publisher.stream.writer().await.as_ref().map_or(sequence, |stream| stream.sequence);
            self.publisher.show_pause(feed, &mut leading).await;
            self.publisher.write_due_image(feed, &mut leading, || true).await;
            tokio::select! {
                biased;
                _ = ticks.tick() => if let Some(devnet) = &mut self.devnet {
                    devnet.go_on(feed).await;
                },
                () = self.publisher.look(&mut leading) => {}
            }
        }
        drop(leading);
        *self.publisher.stream.writer().await = None;
        self.step_down(feed, sequence);
    }

    /// Follows again, from the last message that is known to be in the stream.
    fn step_down(&mut self, feed: &Feed, sequence: u64) {
        tracing::warn!("this node leads the fleet no more: it follows");
        self.publisher.ceased = Some(Instant::now());
        if self.publisher.follower.has_failed_disk() {
            self.publisher.follower.following = None;
            return;
        }
        let last = feed.snapshots.load().last;
        let taken_back = self.publisher.follower.journal.as_ref().map_or(Ok(()), |journal| journal.take_back(last));
        match taken_back {
            Ok(()) => self.publisher.follower.go_on_from(&feed.snapshots, sequence),
            Err(error) => {
                tracing::error!(%error, "what the stream has not taken cannot be removed from the data directory: the state begins with an image");
                self.publisher.follower.following = None;
            }
        }
    }
}
