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
mod own;
mod port;
mod writer;

pub use self::{
    images::{ImageWriter, read as read_image},
    lease::{Lease, LeaseWatch},
    live::PublishedLive,
    outlet::{LiveOutlet, OutletStep},
    own::PublishedSource,
    port::{NatsPort, PartAck, PlaceInStream, StreamPort},
    writer::{NotLeading, StreamSending, StreamWriter},
};

use std::time::{Duration, Instant};

use async_nats::Subscriber;
use futures::StreamExt;
use tokio::sync::watch;

use super::{
    Feed,
    fleet::{EPOCH_KEY, FleetError, FleetLink, ImageKey, subject},
    journal::Journal,
    replica::{Follower, Following, LeaderPulse},
};
use crate::{
    clock::{Clock, SystemClock},
    ledger::{SnapshotId, StateImage, epoch},
    store::{Store, StoreError},
};

/// The time between two looks at the stream's limits.
const LIMITS_INTERVAL: Duration = Duration::from_secs(1);
/// The time without a state from which the stream can be followed, after which a node may lead from what it shows: a message
/// of the stream or an image is lost, and no node leads that could mend it. Nodes that can follow lead before that.
const LOST: Duration = Duration::from_secs(5);
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
}

/// A node's part in publishing, whatever it publishes: it follows the leader, takes over, and leads.
#[derive(Debug)]
pub struct Publisher {
    /// The connection to the fleet.
    pub link: FleetLink,
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
}

/// The reason why an epoch is not taken.
#[derive(Debug, thiserror::Error)]
pub enum EpochError {
    /// NATS does not answer.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The reason why a node does not begin to lead.
#[derive(Debug, thiserror::Error)]
enum NotBegun {
    #[error(transparent)]
    Fleet(#[from] FleetError),
    #[error(transparent)]
    Epoch(#[from] EpochError),
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
    #[error("the stream goes on after what this node has read")]
    Behind,
}

/// The work of a node beside the chain while it leads.
struct Leading {
    _pulse: LeaderPulse,
    images: ImageWriter,
    /// Requests for an image.
    asked: Option<Subscriber>,
    looks: tokio::time::Interval,
    /// Whether an image is due, however few messages came after the last.
    is_wanted: bool,
    leads: watch::Sender<bool>,
}

impl Publisher {
    /// Follows the leader until the lease is free, and this node has it and has read the stream to its end. Then begins to
    /// lead, in an epoch after `least` that is returned.
    async fn lead_next(&mut self, feed: &mut Feed, journal: Option<&Journal>, least: u64) -> u64 {
        loop {
            let lease = self.follow(feed, journal).await;
            match self.begin(feed, journal, lease, least).await {
                Ok(epoch) => return epoch,
                Err(NotBegun::Behind | NotBegun::NotLeading(_)) => {}
                Err(error) => {
                    tracing::warn!(%error, "this node cannot lead the fleet yet");
                    tokio::time::sleep(lease::RENEWAL_INTERVAL).await;
                }
            }
        }
    }

    /// Follows the leader until the lease is free, and takes it.
    async fn follow(&mut self, feed: &mut Feed, journal: Option<&Journal>) -> Lease {
        if let Some(lease) = self.lease.take() {
            return lease;
        }
        let (mut watch, mut lost) = (None, None);
        let mut looked = Instant::now();
        loop {
            self.follower.step(feed, journal).await;
            let may_lead = match self.follower.following() {
                Some(_) => {
                    lost = None;
                    true
                }
                None => lost.get_or_insert_with(Instant::now).elapsed() >= LOST,
            };
            if looked.elapsed() < lease::RENEWAL_INTERVAL || !may_lead {
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
    async fn begin(
        &mut self,
        feed: &mut Feed,
        journal: Option<&Journal>,
        lease: Lease,
        least: u64,
    ) -> Result<u64, NotBegun> {
        let stream = self.link.stream().await?;
        let (first, end) = (stream.cached_info().state.first_sequence, stream.cached_info().state.last_sequence);
        if self.follower.following().is_none() {
            tracing::warn!(end, "no node has the end of the stream: this one leads from what it shows");
            self.follower.go_on_from(&feed.snapshots, end);
        }
        let mut moved = (0, Instant::now());
        loop {
            // A leader that failed may have left a message without its last parts, which nobody will complete.
            let read = self.follower.following().map(Following::read).ok_or(NotBegun::Behind)?;
            if read >= end {
                break;
            }
            if read > moved.0 {
                moved = (read, Instant::now());
            }
            if first > read + 1 || moved.1.elapsed() >= STALLED {
                // The next message was deleted, or does not come.
                self.follower.give_up();
                return Err(NotBegun::Behind);
            }
            if !lease.is_held() {
                return Err(NotLeading.into());
            }
            self.follower.step(feed, journal).await;
        }
        let published = feed.snapshots.load();
        let epoch = take_epoch(&self.link, &self.store, published.last.epoch().max(least)).await?;
        let (sequence, follows, node) = (end, published.last, self.limits.node.as_str());
        let port = Box::new(NatsPort::open(self.link.clone(), lease).await?);
        let stream = StreamWriter::lead(port, sequence, follows, SnapshotId::begin(epoch), node).await?;
        feed.snapshots.update(|chain| chain.begin_epoch(epoch));
        feed.stream = Some(stream);
        tracing::info!(epoch, "this node leads the fleet");
        Ok(epoch)
    }

    /// Begins the work of a node beside the chain while it leads.
    async fn leading(&self, feed: &Feed) -> Leading {
        let newest = self.link.fact(ImageKey::KEY).await.ok().flatten();
        let from = SnapshotId::begin(feed.snapshots.load().last.epoch());
        let images = ImageWriter::new(self.link.clone(), newest, from, self.limits.image_keep);
        let asked = self.link.client.subscribe(subject(self.link.names.want_image())).await.ok();
        let is_wanted = images.newest().is_none();
        self.leads.send_replace(true);
        Leading {
            _pulse: LeaderPulse::begin(self.link.client.clone(), &self.link, feed.snapshots.clone()),
            images,
            asked,
            looks: tokio::time::interval(LIMITS_INTERVAL),
            is_wanted,
            leads: self.leads.clone(),
        }
    }

    /// Writes an image where one is due and what is published allows one: `may` is asked last.
    async fn write_due_image(&self, feed: &mut Feed, leading: &mut Leading, may: impl FnOnce() -> bool) {
        let Some(stream) = &mut feed.stream else { return };
        leading.images.done().await;
        let (messages, bytes) = stream.since_image();
        // Half of the stream is left for those who read the image.
        let is_due = leading.is_wanted || messages >= self.limits.image_every || bytes >= self.limits.stream_bytes / 4;
        if leading.images.is_writing() || !is_due {
            return;
        }
        let published = feed.snapshots.load();
        let (sequence, id) = stream.end();
        if published.last != id || !may() {
            return;
        }
        if let Some(image) = StateImage::of(&published) {
            stream.imaged();
            leading.images.write(image, sequence);
            leading.is_wanted = false;
        }
    }

    /// Waits until an image may be due for another reason than messages: a node asks for one, or the stream no longer has
    /// what follows the newest.
    async fn look(&self, leading: &mut Leading) {
        tokio::select! {
            _ = leading.looks.tick() => leading.is_wanted |= self.is_overtaken(&leading.images).await,
            () = heard(&mut leading.asked) => leading.is_wanted = true,
        }
    }

    /// Returns whether the stream no longer has what follows the newest image, and no newer one is being written.
    async fn is_overtaken(&self, images: &ImageWriter) -> bool {
        if images.is_writing() {
            return false;
        }
        let Ok(stream) = self.link.stream().await else { return false };
        let first = stream.cached_info().state.first_sequence;
        images.newest().is_none_or(|newest| first > newest.sequence + 1)
    }
}

/// Takes the next epoch of the fleet after `last`, by compare-and-set, and writes it to the store.
///
/// # Errors
///
/// Returns [`EpochError`] if NATS does not answer, or the store cannot be written.
pub async fn take_epoch(link: &FleetLink, store: &Store, last: u64) -> Result<u64, EpochError> {
    let unread = |error: &dyn std::fmt::Display| FleetError::nats("the fleet's epoch cannot be taken", error);
    let facts = link.facts().await?;
    loop {
        let entry = facts.entry(EPOCH_KEY).await.map_err(|error| unread(&error))?;
        let (known, revision) = match &entry {
            Some(entry) => (serde_json::from_slice(&entry.value).unwrap_or(0), entry.revision),
            None => (0_u64, 0),
        };
        let epoch = epoch::take(store, known.max(last), SystemClock::default().unix())?;
        let text = serde_json::to_vec(&epoch).map_err(|error| unread(&error))?;
        match facts.update(EPOCH_KEY, text.into(), revision).await {
            Ok(_) => return Ok(epoch),
            Err(error) if error.kind() == async_nats::jetstream::kv::UpdateErrorKind::WrongLastRevision => {}
            Err(error) => return Err(unread(&error).into()),
        }
    }
}

impl Drop for Leading {
    fn drop(&mut self) {
        self.leads.send_replace(false);
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
