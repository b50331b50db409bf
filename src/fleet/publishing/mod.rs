//! Publishing to a fleet: a node that makes snapshots leads the fleet, or follows the node that does and takes over when it
//! fails.
//!
//! The [lease] says which node tries to lead, and the stream decides: the first message of a leader is its epoch, with
//! the sequence that must be the stream's last, and each message after it expects the one before. A node that has lost the
//! lead finds that out with its next message at the latest, which nobody has seen by then.

mod images;
mod lease;
mod live;
mod outlet;
mod sink;
mod upkeep;
mod writer;

pub use self::{
    images::ImageWriter,
    lease::{Lease, LeaseWatch},
    live::PublishedLive,
    outlet::{LiveOutlet, OutletStep},
    sink::StreamSink,
    upkeep::{FleetUpkeep, ImageNeed},
    writer::{NotLeading, StreamSending, StreamWriter},
};

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, task::JoinSet, time::Instant};

use self::upkeep::UpkeepLook;
use super::{
    replica::{Follower, Following, beat},
    servers::{Bucket, EPOCH_KEY, FleetChain, FleetError, FleetPort, FleetRole, ImageKey},
};
use crate::source::Feed;
use crate::{
    clock::Clock,
    ledger::{FeedProblem, FeedState, SnapshotId, StateImage, epoch},
    objects,
    store::Store,
};

/// The most time between two looks whether an image is due, and whether publishing is paused.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// The time without a state from which the stream can be followed, after which a node may lead from what it shows: a message
/// of the stream or an image is lost, and no node leads that could mend it. Nodes that can follow lead before that.
const LOST: Duration = Duration::from_secs(5);
/// The time for which a node that could not publish leaves the lease to others.
const LEASE_PAUSE: Duration = Duration::from_secs(3);
/// The time without a new message, while a node that has the lease reads the stream to its end, after which it gives up.
const STALLED: Duration = Duration::from_secs(2);

/// Settings of a node that publishes.
#[derive(Clone, Debug)]
pub struct PublishingLimits {
    /// The name of this node, for people.
    pub node: String,
    /// The messages after an image, past which a new one is written.
    pub image_every: u64,
    /// The time for which an image stays after a newer one is complete.
    pub image_keep: Duration,
    /// The bytes of the stream, past which its oldest messages are deleted.
    pub stream_bytes: u64,
    /// The most bytes of an image, before compression.
    pub max_image_bytes: u64,
}

/// A node's part in publishing: it follows the leader, takes over, and leads.
#[derive(Debug)]
pub struct Publisher {
    /// The connection to the fleet.
    pub port: Arc<dyn FleetPort>,
    /// The chain of the fleet.
    pub chain: FleetChain,
    /// The time, from which epochs follow.
    pub clock: Arc<dyn Clock>,
    /// The node's store, for its epochs.
    pub store: Store,
    /// The follower of the stream.
    pub follower: Follower,
    /// Settings.
    pub limits: PublishingLimits,
    /// Whether this node leads, for those who answer only then.
    pub leads: watch::Sender<bool>,
    /// The lease, if this node took it before it began with a chain of its own.
    pub lease: Option<Lease>,
    /// The moment at which this node ceased to lead, if it did.
    pub ceased: Option<Instant>,
    /// The sink of what this node publishes while it leads.
    pub stream: StreamSink,
}

/// The reason why a node does not begin to lead.
#[derive(Debug, thiserror::Error)]
enum NotBegun {
    #[error(transparent)]
    Fleet(#[from] FleetError),
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
    #[error("the stream has messages that this node has not read")]
    Behind,
}

/// The work of a node beside the chain while it leads.
struct Leading {
    _pulse: JoinSet<()>,
    images: ImageWriter,
    upkeep: FleetUpkeep,
    looks: tokio::time::Interval,
    /// Whether an image is due, however few messages came after the last.
    is_wanted: bool,
    /// The health of the feed before publishing was paused, if it is.
    before_pause: Option<FeedState>,
    leads: watch::Sender<bool>,
}

impl Publisher {
    /// Follows the leader until the lease is free, and this node has it and has read the stream to its end. Then begins to
    /// lead, in an epoch after `least` that is returned.
    async fn lead_next(&mut self, feed: &mut Feed, least: u64) -> u64 {
        loop {
            let lease = self.follow(feed).await;
            match self.begin(feed, lease, least).await {
                Ok(epoch) => return epoch,
                Err(NotBegun::Behind) => self.ceased = Some(Instant::now()),
                Err(error) => {
                    tracing::warn!(%error, "this node cannot lead the fleet yet");
                    self.ceased = Some(Instant::now());
                    self.repair(feed).await;
                }
            }
        }
    }

    /// Follows the leader until the lease is free, and takes it.
    async fn follow(&mut self, feed: &mut Feed) -> Lease {
        if let Some(lease) = self.lease.take() {
            return lease;
        }
        let mut watch = LeaseWatch::new(self.port.clone(), &self.limits.node);
        let (mut lost, mut looked) = (None, Instant::now());
        loop {
            self.follower.step(feed, FleetRole::Standby).await;
            let can_lead = match self.follower.following {
                Some(_) => {
                    lost = None;
                    true
                }
                None if self.follower.problem == Some(FeedProblem::OtherChain) => false,
                None => lost.get_or_insert_with(Instant::now).elapsed() >= LOST,
            };
            let may_lead = can_lead
                && self.store.failure().is_none()
                && self.ceased.is_none_or(|ceased| ceased.elapsed() >= LEASE_PAUSE);
            if looked.elapsed() < lease::RENEWAL_INTERVAL || !may_lead {
                continue;
            }
            looked = Instant::now();
            match watch.try_take().await {
                Ok(Some(lease)) => return lease,
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, "the lease cannot be read");
                    self.repair(feed).await;
                }
            }
        }
    }

    /// Creates what the fleet needs on its servers and has lost there. Where no node leads, images may fill the servers, and
    /// no leader deletes them: all but the newest are deleted.
    async fn repair(&self, feed: &Feed) {
        if !self.port.is_connected() {
            return;
        }
        if let Err(error) = self.port.repair().await {
            tracing::debug!(%error, "what the fleet needs on its servers cannot be created");
        }
        let problem = feed.snapshots.load().feed().problem();
        if matches!(problem, Some(FeedProblem::Partition | FeedProblem::Stream))
            && let Err(error) = self.port.retain_newest_image().await
        {
            tracing::debug!(%error, "old images of the fleet cannot be deleted");
        }
    }

    /// Begins to lead after the last message of the stream, which must have been read.
    async fn begin(&mut self, feed: &mut Feed, mut lease: Lease, least: u64) -> Result<u64, NotBegun> {
        let ends = self.port.ends().await?;
        let (first, end) = (ends.first, ends.last);
        if self.follower.following.is_none() {
            tracing::warn!(end, "no node has the end of the stream: this one leads from what it shows");
            self.follower.go_on_from(&feed.snapshots, end);
        }
        let mut moved = (0, Instant::now());
        loop {
            // A leader that failed may have left a message without its last parts, which nobody will complete.
            let read = self.follower.following.as_ref().map(Following::read).ok_or(NotBegun::Behind)?;
            if read >= end {
                break;
            }
            if read > moved.0 {
                moved = (read, Instant::now());
            }
            if first > read + 1 || moved.1.elapsed() >= STALLED {
                // The next message was deleted, or does not come.
                self.follower.discard_image();
                return Err(NotBegun::Behind);
            }
            if !lease.is_held() {
                return Err(NotLeading.into());
            }
            self.follower.step(feed, FleetRole::Standby).await;
        }
        let published = feed.snapshots.load();
        let epoch = take_epoch(&*self.port, &self.store, &*self.clock, published.last.epoch().max(least)).await?;
        let (sequence, follows, node) = (end, published.last, self.limits.node.as_str());
        lease.metrics = Some(self.follower.metrics.clone());
        let stream = StreamWriter::lead(lease, sequence, follows, SnapshotId::begin(epoch), node).await?;
        feed.snapshots.update(|chain| chain.begin_epoch(epoch));
        *self.stream.writer().await = Some(stream);
        tracing::info!(epoch, "this node leads the fleet");
        self.follower.begin_to_lead(node, SnapshotId::begin(epoch));
        Ok(epoch)
    }

    /// Begins the work of a node beside the chain while it leads.
    async fn leading(&self, feed: &Feed) -> Leading {
        let newest = self.port.fact(ImageKey::KEY).await.ok().flatten();
        let images = ImageWriter::new(self.port.clone(), newest, self.limits.max_image_bytes);
        let upkeep = FleetUpkeep::begin(UpkeepLook {
            port: self.port.clone(),
            chain: self.chain.clone(),
            snapshots: feed.snapshots.clone(),
            from: SnapshotId::begin(feed.snapshots.load().last.epoch()),
            keep: self.limits.image_keep,
            is_writing: images.is_writing.clone(),
            metrics: self.follower.metrics.clone(),
        });
        self.leads.send_replace(true);
        Leading {
            _pulse: beat(&self.port, feed.snapshots.clone(), self.limits.node.clone()),
            is_wanted: images.newest.is_none(),
            images,
            upkeep,
            looks: tokio::time::interval(LOOK_INTERVAL),
            before_pause: None,
            leads: self.leads.clone(),
        }
    }

    /// Writes an image where one is due and what is published allows one: `may` is asked last.
    async fn write_due_image(&self, feed: &Feed, leading: &mut Leading, may: impl FnOnce() -> bool) {
        let mut end = self.stream.writer().await;
        let Some(stream) = &mut *end else { return };
        leading.is_wanted |= leading.images.has_failed();
        let (messages, bytes) = stream.since_image;
        // Half of the stream is left for those who read the image.
        let is_due = leading.is_wanted || messages >= self.limits.image_every || bytes >= self.limits.stream_bytes / 4;
        if !leading.images.can_write() || !is_due {
            return;
        }
        let published = feed.snapshots.load();
        if published.last != stream.id || !may() {
            return;
        }
        if let Some(image) = StateImage::of(&published) {
            stream.since_image = (0, 0);
            leading.images.write(image, stream.sequence);
            leading.is_wanted = false;
        }
    }

    /// Shows that publishing is paused, or that it is no longer. A change that waits for the stream shows it too, but there may be
    /// none for a long time.
    async fn show_pause(&self, feed: &mut Feed, leading: &mut Leading) {
        let paused = FeedState::Degraded(FeedProblem::Stream);
        let is_paused = self.stream.writer().await.as_ref().is_some_and(StreamWriter::is_paused);
        match (is_paused, leading.before_pause) {
            (true, None) => {
                leading.before_pause = Some(feed.status.state());
                if feed.show_state(paused) {
                    tracing::warn!("publishing is paused: the servers of the fleet do not answer");
                }
            }
            (false, Some(before)) => {
                leading.before_pause = None;
                // A change that was published since has brought the health of its own.
                if feed.status.state() == paused && feed.show_state(before) {
                    tracing::info!("the servers of the fleet answer again");
                }
            }
            _ => {}
        }
    }

    /// Waits until an image may be due for another reason than messages, or for some time.
    async fn look(&self, leading: &mut Leading) {
        tokio::select! {
            biased;
            need = leading.upkeep.need() => {
                if need == ImageNeed::Lost {
                    leading.images.newest = None;
                }
                leading.is_wanted = true;
            }
            _ = leading.looks.tick() => {}
        }
    }
}

/// Takes the next epoch of the fleet after `last`, by compare-and-set, and writes it to the store.
///
/// # Errors
///
/// Returns [`FleetError::Nats`] if NATS does not answer, or [`FleetError::Store`] if the store cannot be written.
pub async fn take_epoch(port: &dyn FleetPort, store: &Store, clock: &dyn Clock, last: u64) -> Result<u64, FleetError> {
    loop {
        let entry = port.entry(Bucket::Facts, EPOCH_KEY).await?;
        let (known, revision) = match &entry {
            Some(entry) => (objects::from_slice(&entry.value).unwrap_or(0), entry.revision),
            None => (0_u64, 0),
        };
        let epoch = epoch::take(store, known.max(last), clock.unix())?;
        if port.update(Bucket::Facts, EPOCH_KEY, epoch.to_string().into(), revision).await?.is_some() {
            return Ok(epoch);
        }
    }
}

impl Drop for Leading {
    fn drop(&mut self) {
        self.leads.send_replace(false);
    }
}
