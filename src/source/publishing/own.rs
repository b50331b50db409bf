//! Publishing a chain of presim's own: it is built here while this node leads, and followed while another does.

use futures::{FutureExt, future::LocalBoxFuture};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::{LIMITS_INTERVAL, Publisher};
use crate::{
    ledger::FeedState,
    source::{
        Feed, FeedSource,
        devnet::DevnetSource,
        fleet::{FleetLink, PoolFilling, PoolVerdicts},
        journal::Journal,
    },
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
                PoolFilling::begin(link, feed.pool.clone(), Some(verdicts))
            });
            loop {
                let journal = self.devnet.as_ref().and_then(|devnet| devnet.journal.as_ref());
                self.publisher.lead_next(&mut feed, journal, 0).await;
                self.lead(&mut feed).await;
            }
        }
        .boxed_local()
    }
}

impl PublishedSource {
    fn journal(&self) -> Option<&Journal> {
        self.devnet.as_ref()?.journal.as_ref()
    }

    /// Builds and publishes the chain until another node leads.
    async fn lead(&mut self, feed: &mut Feed) {
        let state = match &self.devnet {
            Some(devnet) => FeedState::Live { every_ms: u64::try_from(devnet.every.as_millis()).unwrap_or(u64::MAX) },
            None => FeedState::Static,
        };
        let mut sequence = feed.stream.as_ref().map_or(0, |stream| stream.end().0);
        // The stream may end with the trouble of the leader before.
        feed.publish_state(state).await;
        let mut leading = self.publisher.leading(feed).await;
        let every = self.devnet.as_ref().map_or(LIMITS_INTERVAL, |devnet| devnet.every);
        let mut ticks = interval_at(Instant::now() + every, every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // A chain that stands still has no message that would find another leader.
        while let Some(stream) = feed.stream.as_ref().filter(|stream| stream.is_leased()) {
            sequence = stream.end().0;
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
        feed.stream = None;
        self.step_down(feed, sequence);
    }

    /// Follows again, from the last message that is known to be in the stream.
    fn step_down(&mut self, feed: &Feed, sequence: u64) {
        tracing::warn!("this node leads the fleet no more: it follows");
        self.publisher.ceased = Some(Instant::now());
        let last = feed.snapshots.load().last;
        match self.journal().map_or(Ok(()), |journal| journal.take_back(last)) {
            Ok(()) => self.publisher.follower.go_on_from(&feed.snapshots, sequence),
            Err(error) => {
                tracing::error!(%error, "what the stream has not taken cannot be removed from the data directory: the state begins with an image");
                self.publisher.follower.restart_with_image();
            }
        }
    }
}
