//! Publishing to a fleet: a node that produces snapshots leads the fleet, or follows the leader and takes over if it
//! fails.
//!
//! The [lease] determines which node tries to lead, and the stream decides: a leader's first message is its epoch, with
//! the sequence that must be the last in the stream, and each later message expects the one before it. A node that has
//! lost the lead finds out with its next message at the latest, before any node has seen that message.

mod images;
mod leading;
mod lease;
mod live;
mod queue;
mod upkeep;
mod writer;

pub use self::{
    lease::{Lease, LeaseWatch},
    live::PublishedLive,
};

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

use self::writer::{NotLeading, StreamWriter};
use super::{
    replica::{Follower, Following},
    servers::{Bucket, EPOCH_KEY, FleetChain, FleetError, FleetPort, FleetRole},
    settings::JoiningSettings,
};
use crate::source::Feed;
use crate::{
    clock::Clock,
    ledger::{FeedProblem, SnapshotId, epoch},
    objects,
    store::Store,
};

/// The time without a state from which the stream can be followed, after which a node may lead from the chain that it
/// shows: a message of the stream or an image is lost, and no leader exists that could repair the stream. Nodes that
/// can follow take the lead earlier.
const LOST: Duration = Duration::from_secs(5);
/// The time for which a node that could not publish leaves the lease to others.
const LEASE_PAUSE: Duration = Duration::from_secs(3);
/// The time without a new message after which a node that has the lease stops reading the stream to its end and gives
/// up.
const STALLED: Duration = Duration::from_secs(2);

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
    /// The name of this node, for people.
    pub node: String,
    /// Settings.
    pub settings: JoiningSettings,
    /// The most bytes of an image, before compression.
    pub max_image_bytes: u64,
    /// Whether this node leads. Read by services that answer only on the leader.
    pub leads: watch::Sender<bool>,
    /// The lease, if this node took it before it began to read its own chain.
    pub lease: Option<Lease>,
    /// The moment at which this node ceased to lead, if it did.
    pub ceased: Option<Instant>,
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

impl Publisher {
    /// Follows the leader until this node has the lease and has read the stream to its end. Then begins to lead, in an
    /// epoch after `least`. Returns the writer of the stream.
    async fn lead_next(&mut self, feed: &mut Feed, least: u64) -> StreamWriter {
        loop {
            let lease = self.follow(feed).await;
            match self.begin(feed, lease, least).await {
                Ok(writer) => return writer,
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
        let mut watch = LeaseWatch::new(self.port.clone(), &self.node);
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

    /// Recreates the fleet's data that its servers lack. Without a leader, images may fill the servers because no node
    /// deletes old ones, so this deletes all but the newest.
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

    /// Begins to lead after the last message of the stream, which this node must have read.
    async fn begin(&mut self, feed: &mut Feed, lease: Lease, least: u64) -> Result<StreamWriter, NotBegun> {
        let ends = self.port.ends().await?;
        let (first, end) = (ends.first, ends.last);
        if self.follower.following.is_none() {
            tracing::warn!(end, "no node has the end of the stream: leading from this node's snapshot");
            self.follower.go_on_from(feed.snapshots.load(), end);
        }
        let mut moved = (0, Instant::now());
        loop {
            // A failed leader may have left a message without its last parts. No node will complete it.
            let read = self.follower.following.as_ref().map(Following::read).ok_or(NotBegun::Behind)?;
            if read >= end {
                break;
            }
            if read > moved.0 {
                moved = (read, Instant::now());
            }
            if first > read + 1 || moved.1.elapsed() >= STALLED {
                // The next message was deleted, or does not arrive.
                self.follower.discard_image();
                return Err(NotBegun::Behind);
            }
            if lease.renewed().is_none() {
                return Err(NotLeading.into());
            }
            self.follower.step(feed, FleetRole::Standby).await;
        }
        let published = feed.snapshots.load();
        let epoch = take_epoch(&*self.port, &self.store, &*self.clock, published.last.epoch().max(least)).await?;
        let (first, node, metrics) = (SnapshotId::begin(epoch), &self.node, &self.follower.metrics);
        let mut writer = StreamWriter::new(self.port.clone(), lease, metrics.clone(), (end, published.last));
        writer.lead(first, node).await?;
        feed.snapshots.update(|chain| chain.begin_epoch(epoch));
        tracing::info!(epoch, "this node leads the fleet");
        self.follower.begin_to_lead(node, first);
        Ok(writer)
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
