//! Publishing to a fleet: a node that makes snapshots leads the fleet, or follows the node that does and takes over when it
//! fails.
//!
//! The [lease] says which node tries to lead, and the stream decides: the first message of a leader is its epoch, with
//! the sequence that must be the stream's last, and each message after it expects the one before. A node that has lost the
//! lead finds that out with its next message at the latest, which nobody has seen by then.

mod images;
mod lease;
mod port;
mod writer;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Release},
    },
    time::{Duration, Instant},
};

use async_nats::Subscriber;
use futures::{FutureExt, StreamExt, future::LocalBoxFuture};
use tokio::time::{MissedTickBehavior, interval_at};

pub use self::{
    images::{ImageWriter, read as read_image},
    lease::{Lease, LeaseWatch},
    port::{NatsPort, PartAck, PlaceInStream, StreamPort},
    writer::{NotLeading, StreamSending, StreamWriter},
};
pub use super::codec::{Frame, StateImage};
use super::{
    Feed, FeedSource,
    clock::{Clock, SystemClock},
    devnet::DevnetSource,
    epoch,
    fleet::{EPOCH_KEY, FleetError, FleetLink, ImageKey, PoolFilling, subject},
    replica::{Applier, Follower, Following, LeaderPulse},
};
use crate::{
    state::{CodeCache, FeedState, Retention, SnapshotId},
    store::{Store, StoreError},
};

/// The time between two looks at the stream's limits.
const LOOK: Duration = Duration::from_secs(1);

/// Settings of a node that publishes.
#[derive(Clone, Debug)]
pub struct PublishingLimits {
    /// The name of this node, for people.
    pub node: String,
    /// The messages after an image, past which a new one is written.
    pub image_every: u64,
    /// The bytes of the stream, past which its oldest messages are deleted.
    pub stream_bytes: u64,
    /// The part of the past that is retained.
    pub kept: Retention,
}

/// A chain that is published: built here while this node leads, followed while another does.
#[derive(Debug)]
pub struct PublishedSource {
    /// The connection to the fleet.
    pub link: FleetLink,
    /// The node's store, for its epochs.
    pub store: Store,
    /// The bytecode cache.
    pub codes: Arc<CodeCache>,
    /// The devnet that builds the chain; `None` if it stands still.
    pub devnet: Option<DevnetSource>,
    /// The follower of the stream.
    pub follower: Follower,
    /// Settings.
    pub limits: PublishingLimits,
    /// Whether this node leads, for those who answer only then.
    pub leads: Arc<AtomicBool>,
}

/// The reason why a node does not begin to lead.
#[derive(Debug, thiserror::Error)]
enum NotBegun {
    #[error(transparent)]
    Fleet(#[from] FleetError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
    #[error("the stream goes on after what this node has read")]
    Behind,
}

impl FeedSource for PublishedSource {
    fn run(mut self: Box<Self>, mut feed: Feed) -> LocalBoxFuture<'static, ()> {
        async move {
            let _filling = self.devnet.is_some().then(|| PoolFilling::begin(self.link.clone(), feed.pool.clone()));
            loop {
                let lease = self.follow(&mut feed).await;
                match self.begin(&mut feed, lease).await {
                    Ok(()) => self.lead(&mut feed).await,
                    Err(NotBegun::Behind | NotBegun::NotLeading(_)) => {}
                    Err(error) => {
                        tracing::warn!(%error, "this node cannot lead the fleet yet");
                        tokio::time::sleep(lease::EVERY).await;
                    }
                }
            }
        }
        .boxed_local()
    }
}

impl PublishedSource {
    /// Follows the leader until the lease is free, and takes it.
    async fn follow(&mut self, feed: &mut Feed) -> Lease {
        let mut watch = None;
        let mut looked = Instant::now();
        loop {
            let journal = self.devnet.as_ref().and_then(|devnet| devnet.journal.as_ref());
            self.follower.step(feed, journal).await;
            if looked.elapsed() < lease::EVERY || self.follower.following().is_none() {
                continue;
            }
            looked = Instant::now();
            let taken = async {
                let watch = match &mut watch {
                    Some(watch) => watch,
                    None => watch.insert(LeaseWatch::open(&self.link, &self.limits.node).await?),
                };
                watch.try_take().await
            };
            match taken.await {
                Ok(Some(lease)) => return lease,
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "the lease cannot be read"),
            }
        }
    }

    /// Begins to lead after the last message of the stream, which must have been read.
    async fn begin(&mut self, feed: &mut Feed, lease: Lease) -> Result<(), NotBegun> {
        let end = self.link.stream().await?.cached_info().state.last_sequence;
        loop {
            // A leader that failed may have left a message without its last parts, which nobody will complete.
            let read = self.follower.following().map(Following::read).ok_or(NotBegun::Behind)?;
            if read >= end {
                break;
            }
            if !lease.is_held() {
                return Err(NotLeading.into());
            }
            let journal = self.devnet.as_ref().and_then(|devnet| devnet.journal.as_ref());
            self.follower.step(feed, journal).await;
        }
        let published = feed.snapshots.load();
        let epoch = self.take_epoch(published.last).await?;
        let (sequence, follows, node) = (end, published.last, self.limits.node.as_str());
        let port = Box::new(NatsPort::open(self.link.clone(), lease).await?);
        let stream = StreamWriter::lead(port, sequence, follows, SnapshotId::begin(epoch), node).await?;
        feed.snapshots.begin_epoch(epoch);
        feed.stream = Some(stream);
        tracing::info!(epoch, "this node leads the fleet");
        Ok(())
    }

    /// Takes the next epoch of the fleet, by compare-and-set, and writes it to the store.
    async fn take_epoch(&self, last: SnapshotId) -> Result<u64, NotBegun> {
        let unread = |error: &dyn std::fmt::Display| FleetError::nats("the fleet's epoch cannot be taken", error);
        let facts = self.link.facts().await?;
        loop {
            let entry = facts.entry(EPOCH_KEY).await.map_err(|error| unread(&error))?;
            let (known, revision) = match &entry {
                Some(entry) => (serde_json::from_slice(&entry.value).unwrap_or(0), entry.revision),
                None => (0_u64, 0),
            };
            let epoch = epoch::take(&self.store, known.max(last.epoch()), SystemClock::default().unix())?;
            let text = serde_json::to_vec(&epoch).map_err(|error| unread(&error))?;
            match facts.update(EPOCH_KEY, text.into(), revision).await {
                Ok(_) => return Ok(epoch),
                Err(error) if error.kind() == async_nats::jetstream::kv::UpdateErrorKind::WrongLastRevision => {}
                Err(error) => return Err(unread(&error).into()),
            }
        }
    }

    /// Builds and publishes the chain until another node leads.
    async fn lead(&mut self, feed: &mut Feed) {
        let state = match &self.devnet {
            Some(devnet) => FeedState::Live { every_ms: u64::try_from(devnet.every.as_millis()).unwrap_or(u64::MAX) },
            None => FeedState::Static,
        };
        // The stream may end with the trouble of the leader before.
        feed.publish_state(state).await;
        let _pulse = LeaderPulse::begin(self.link.client.clone(), &self.link, feed.snapshots.clone());
        let mut images = ImageWriter::new(self.link.clone(), self.newest_image().await);
        let mut asked = self.link.client.subscribe(subject(self.link.names.want_image())).await.ok();
        let every = self.devnet.as_ref().map_or(LOOK, |devnet| devnet.every);
        let mut ticks = interval_at((Instant::now() + every).into(), every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looks = tokio::time::interval(LOOK);
        let mut wanted = images.newest().is_none();
        let mut sequence = 0;
        self.leads.store(true, Release);
        while let Some(stream) = &feed.stream {
            sequence = stream.end().0;
            self.tend(feed, &mut images, &mut wanted).await;
            tokio::select! {
                biased;
                _ = ticks.tick() => if let Some(devnet) = &mut self.devnet {
                    devnet.go_on(feed).await;
                },
                _ = looks.tick() => wanted |= self.is_overtaken(&images).await,
                () = heard(&mut asked) => wanted = true,
            }
        }
        self.leads.store(false, Release);
        self.step_down(feed, sequence);
    }

    /// Writes an image where one is due and what is published allows one.
    async fn tend(&self, feed: &mut Feed, images: &mut ImageWriter, wanted: &mut bool) {
        let Some(stream) = &mut feed.stream else { return };
        images.done().await;
        let (messages, bytes) = stream.since_image();
        // Half of the stream is left for those who read the image.
        let is_due = *wanted || messages >= self.limits.image_every || bytes >= self.limits.stream_bytes / 4;
        if images.is_writing() || !is_due {
            return;
        }
        let published = feed.snapshots.load();
        let (sequence, id) = stream.end();
        if published.last != id {
            return;
        }
        if let Some(image) = StateImage::of(&published) {
            stream.imaged();
            images.begin(image, sequence);
            *wanted = false;
        }
    }

    /// Returns whether the stream no longer has what follows the newest image.
    async fn is_overtaken(&self, images: &ImageWriter) -> bool {
        let Ok(stream) = self.link.stream().await else { return false };
        let first = stream.cached_info().state.first_sequence;
        images.newest().is_none_or(|newest| first > newest.sequence + 1)
    }

    async fn newest_image(&self) -> Option<ImageKey> {
        self.link.fact(ImageKey::KEY).await.ok().flatten()
    }

    /// Follows again, from the last message that is known to be in the stream.
    fn step_down(&mut self, feed: &Feed, sequence: u64) {
        tracing::warn!("another node leads the fleet now: this one follows it");
        let last = feed.snapshots.load().last;
        if let Some(journal) = self.devnet.as_ref().and_then(|devnet| devnet.journal.as_ref())
            && let Err(error) = journal.take_back(last)
        {
            tracing::error!(%error, "what the stream has not taken cannot be removed from the data directory");
        }
        let state = feed.snapshots.mirror();
        let applier = Applier::new(state, self.codes.clone());
        self.follower.go_on(Following::from(self.link.clone(), applier, sequence));
    }
}

/// Waits until a node asks for an image.
async fn heard(asked: &mut Option<Subscriber>) {
    let heard = match asked {
        Some(subscriber) => subscriber.next().await,
        None => None,
    };
    if heard.is_none() {
        std::future::pending().await
    }
}
