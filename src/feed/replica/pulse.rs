//! The leader's pulse: its newest id and its age, on core NATS, so that the nodes that follow know how late they are.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_nats::Client;
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    feed::fleet::{FleetError, FleetLink, subject},
    state::{FeedLag, FeedProblem, FeedState, SnapshotId, Snapshots},
};

/// The time between two beats.
const EVERY: Duration = Duration::from_millis(100);
/// The time without a beat after which nothing is known of the leader.
const SILENT: Duration = Duration::from_secs(1);
/// The lag from which a node that follows says that it is late.
const LATE: Duration = Duration::from_millis(500);

/// A beat of the pulse.
#[derive(Serialize, Deserialize)]
struct Beat {
    /// The id of the leader's last change.
    id: u64,
    /// Milliseconds since that was published.
    age_ms: u64,
}

/// A beat as it has arrived.
#[derive(Clone, Copy, Debug)]
struct Heard {
    id: SnapshotId,
    /// The time on this node's clock at which the change was published, if the beat took no time.
    published: Instant,
    at: Instant,
}

/// The pulse as a node that follows hears it.
#[derive(Debug)]
pub struct PulseWatch {
    heard: watch::Receiver<Option<Heard>>,
    since: Instant,
    hearing: JoinHandle<()>,
}

impl PulseWatch {
    /// Listens to the pulse of a fleet.
    ///
    /// # Errors
    ///
    /// Returns [`FleetError::Nats`] if NATS does not take the subscription.
    pub async fn open(link: &FleetLink) -> Result<Self, FleetError> {
        let beats = link.client.subscribe(subject(link.names.pulse())).await;
        let mut beats = beats.map_err(|error| FleetError::nats("the leader's pulse cannot be heard", error))?;
        let (tell, heard) = watch::channel(None);
        let hearing = tokio::spawn(async move {
            while let Some(message) = beats.next().await {
                let Ok(Beat { id, age_ms }) = serde_json::from_slice(&message.payload) else { continue };
                let at = Instant::now();
                let published = at.checked_sub(Duration::from_millis(age_ms)).unwrap_or(at);
                tell.send_replace(Some(Heard { id: SnapshotId(id), published, at }));
            }
        });
        Ok(Self { heard, since: Instant::now(), hearing })
    }

    /// Returns the id of the leader's last change, as far as it is known.
    pub fn newest(&self) -> Option<SnapshotId> {
        self.heard.borrow().map(|heard| heard.id)
    }

    /// Returns the health of the feed on a node whose last change is `last`, where the leader's is `told`: that, unless
    /// nothing is heard of the leader, or this node is late.
    pub fn judge(&self, last: SnapshotId, told: FeedState) -> FeedState {
        let heard = *self.heard.borrow();
        if heard.map_or(self.since, |heard| heard.at).elapsed() >= SILENT {
            return FeedState::Degraded(FeedProblem::Partition);
        }
        let behind = heard.filter(|heard| heard.id > last && heard.published.elapsed() >= LATE);
        match (behind, told) {
            (Some(heard), FeedState::Live { every_ms }) => FeedState::Lagging(FeedLag {
                since: heard.published,
                waiting: u32::try_from(heard.id.0 - last.0).unwrap_or(u32::MAX),
                cause: FeedProblem::Lagging,
                every_ms,
            }),
            _ => told,
        }
    }
}

impl Drop for PulseWatch {
    fn drop(&mut self) {
        self.hearing.abort();
    }
}

/// The pulse of this node, while it leads.
#[derive(Debug)]
pub struct LeaderPulse(JoinHandle<()>);

impl LeaderPulse {
    /// Says the newest id of `snapshots` and its age at intervals, until it is dropped.
    pub fn begin(client: Client, link: &FleetLink, snapshots: Arc<Snapshots>) -> Self {
        let subject = subject(link.names.pulse());
        Self(tokio::spawn(async move {
            let mut ticks = tokio::time::interval(EVERY);
            let mut seen = (SnapshotId::default(), Instant::now());
            loop {
                ticks.tick().await;
                let published = snapshots.load();
                if published.last != seen.0 {
                    seen = (published.last, Instant::now());
                }
                // A change without a snapshot is younger than the newest snapshot.
                let age = published.newest.published.elapsed();
                let age = if published.newest.id == published.last { age } else { age.min(seen.1.elapsed()) };
                let age = age.as_millis();
                let beat = Beat { id: published.last.0, age_ms: u64::try_from(age).unwrap_or(u64::MAX) };
                let Ok(text) = serde_json::to_vec(&beat) else { continue };
                // A beat that is lost is followed by the next.
                let _ = client.publish(subject.clone(), text.into()).await;
            }
        }))
    }
}

impl Drop for LeaderPulse {
    fn drop(&mut self) {
        self.0.abort();
    }
}
