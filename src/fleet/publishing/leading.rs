//! A leading node: writes each change that it reads to the stream, and shows the change once the stream has
//! acknowledged it.

use std::time::Duration;

use tokio::{sync::watch, task::JoinSet, time::Interval};

use super::{
    Publisher,
    images::ImageWriter,
    queue::{ChangeQueue, QueuedChange},
    upkeep::{FleetUpkeep, ImageNeed, UpkeepLook},
    writer::{NotLeading, StreamWriter},
};
use crate::{
    fleet::{replica::beat, servers::ImageKey, settings::JoiningSettings},
    ledger::{FeedProblem, FeedState, SnapshotId, Snapshots},
    source::Feed,
};

/// The most time between two looks whether an image is due, and whether publishing is paused.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// A node that leads: its writer of the stream, and its other tasks as a leader.
pub(super) struct Leading<'a> {
    writer: StreamWriter,
    settings: &'a JoiningSettings,
    _pulse: JoinSet<()>,
    images: ImageWriter,
    upkeep: FleetUpkeep,
    looks: Interval,
    /// Whether an image is due, regardless of the number of messages since the last.
    is_wanted: bool,
    /// The health of the feed before publishing was paused, if it is.
    before_pause: Option<FeedState>,
    leads: &'a watch::Sender<bool>,
}

impl<'a> Leading<'a> {
    /// Starts the other tasks of a leader.
    pub async fn begin(publisher: &'a Publisher, feed: &Feed, writer: StreamWriter) -> Self {
        let Publisher { port, chain, node, settings, follower, leads, .. } = publisher;
        let newest = port.fact(ImageKey::KEY).await.ok().flatten();
        let images = ImageWriter::new(port.clone(), newest, publisher.max_image_bytes);
        let upkeep = FleetUpkeep::begin(UpkeepLook {
            port: port.clone(),
            chain: chain.clone(),
            snapshots: feed.snapshots.clone(),
            from: SnapshotId::begin(writer.id.epoch()),
            keep: settings.image_keep,
            is_writing: images.is_writing.clone(),
            metrics: follower.metrics.clone(),
        });
        leads.send_replace(true);
        Self {
            writer,
            _pulse: beat(port, feed.snapshots.clone(), node.clone()),
            is_wanted: images.newest.is_none(),
            images,
            upkeep,
            settings,
            looks: tokio::time::interval(LOOK_INTERVAL),
            before_pause: None,
            leads,
        }
    }

    /// Publishes the changes of `queue`, which are the changes of the chain in `own`, until another node leads.
    pub async fn publish(mut self, feed: &mut Feed, queue: &ChangeQueue, own: &Snapshots) {
        // A quiet chain has no message that would find another leader.
        while self.writer.is_leased() {
            self.show_pause(feed, self.writer.is_paused());
            self.write_due_image(feed, queue);
            tokio::select! {
                biased;
                change = queue.next(own) => if let Err(NotLeading) = self.send(feed, change).await {
                    break;
                },
                need = self.upkeep.need() => {
                    if need == ImageNeed::Lost {
                        self.images.newest = None;
                    }
                    self.is_wanted = true;
                }
                _ = self.looks.tick() => {}
            }
        }
        // Problems with the stream no longer concern a node that does not lead.
        self.show_pause(feed, false);
    }

    /// Sends a change to the stream, and shows it once the stream has it.
    async fn send(&mut self, feed: &mut Feed, change: QueuedChange) -> Result<(), NotLeading> {
        let QueuedChange { message, after, arrived } = change;
        let mut sending = self.writer.sending(after.last, &message);
        while !self.writer.try_send(&mut sending).await? {
            self.show_pause(feed, true);
        }
        if self.before_pause.take().is_some() {
            tracing::info!("publishing resumed");
        }
        let state = after.feed();
        feed.show(after, state);
        feed.pool.advance();
        if let Some(arrived) = arrived {
            feed.count(arrived);
        }
        Ok(())
    }

    /// Shows that publishing is paused, or that it is no longer.
    fn show_pause(&mut self, feed: &mut Feed, is_paused: bool) {
        let paused = FeedState::Degraded(FeedProblem::Stream);
        if is_paused && self.before_pause.is_none() {
            self.before_pause = Some(feed.status.state());
            tracing::warn!("publishing is paused: the stream of the fleet takes nothing");
            feed.show_state(paused);
        } else if !is_paused && let Some(before) = self.before_pause.take() {
            tracing::info!("publishing resumed");
            feed.show_state(before);
        }
    }

    /// Writes an image if one is due and the published state allows it.
    fn write_due_image(&mut self, feed: &Feed, queue: &ChangeQueue) {
        self.is_wanted |= self.images.has_failed();
        let (messages, bytes) = self.writer.since_image;
        // Half of the stream remains for nodes that are still reading the image.
        let JoiningSettings { image_every, servers, .. } = self.settings;
        let is_due = self.is_wanted || messages >= *image_every || bytes >= servers.stream_bytes / 4;
        if !self.images.can_write() || !is_due {
            return;
        }
        let published = feed.snapshots.load();
        if published.last == self.writer.id && queue.reset_codes_if_idle() {
            self.writer.since_image = (0, 0);
            self.images.write(published, self.writer.sequence);
            self.is_wanted = false;
        }
    }
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        self.leads.send_replace(false);
    }
}
