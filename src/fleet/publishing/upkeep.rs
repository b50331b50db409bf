//! The leader's maintenance of the fleet's data on the servers: rewrites what was lost, and deletes old images.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::StreamExt;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, MissedTickBehavior},
};

use crate::{
    clock::now,
    fleet::servers::{FleetChain, FleetError, FleetMetrics, FleetPort, ImageKey, Topic},
    ledger::{FeedProblem, SnapshotId, Snapshots, codec::LeaderTime},
};

/// The time between two checks of the servers.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(2);
/// The maximum number of older images that are retained for nodes that read them, even if each was the newest only briefly. The
/// store of images has no other bound.
const MAX_OLDER_IMAGES: usize = 2;

/// A reason to write an image, other than the number of messages since the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageNeed {
    /// A node asks for one, or the stream no longer has the message after the newest.
    Newer,
    /// The servers have lost the newest.
    Lost,
}

/// Checks the servers periodically, until it is dropped.
#[derive(Debug)]
pub struct FleetUpkeep {
    needs: mpsc::Receiver<ImageNeed>,
    _tasks: JoinSet<()>,
}

/// One check of the servers.
pub(super) struct UpkeepLook {
    pub port: Arc<dyn FleetPort>,
    pub chain: FleetChain,
    pub snapshots: Arc<Snapshots>,
    /// The first id of this leader.
    pub from: SnapshotId,
    /// The time for which an image stays after a newer one is complete.
    pub keep: Duration,
    pub is_writing: Arc<AtomicBool>,
    pub metrics: FleetMetrics,
}

impl FleetUpkeep {
    pub(super) fn begin(look: UpkeepLook) -> Self {
        let (needed, needs) = mpsc::channel(1);
        let (port, wanted) = (look.port.clone(), needed.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            loop {
                if let Ok(mut wishes) = port.subscribe(Topic::WantImage).await {
                    while wishes.next().await.is_some() {
                        // A full queue has a need already.
                        let _ = wanted.try_send(ImageNeed::Newer);
                    }
                }
                tokio::time::sleep(UPKEEP_INTERVAL).await;
            }
        });
        tasks.spawn(async move {
            let mut ticks = tokio::time::interval(UPKEEP_INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut older = BTreeMap::new();
            loop {
                ticks.tick().await;
                look.metrics.connected.set(f64::from(look.port.is_connected()));
                match look.once(&mut older).await {
                    Ok(Some(need)) => drop(needed.try_send(need)),
                    Ok(None) => {}
                    Err(error) => {
                        tracing::debug!(%error, "what the fleet has on its servers cannot be read");
                        if let Err(error) = look.port.repair().await {
                            tracing::debug!(%error, "what the fleet needs on its servers cannot be created");
                        }
                    }
                }
            }
        });
        Self { needs, _tasks: tasks }
    }

    /// Waits for a reason to write an image.
    pub async fn need(&mut self) -> ImageNeed {
        match self.needs.recv().await {
            Some(need) => need,
            None => std::future::pending().await,
        }
    }
}

impl UpkeepLook {
    /// Writes the fleet's chain again if it was lost, and deletes old images. `older` has the images that were not the
    /// newest at the previous check, and since when. Returns a reason to write an image.
    async fn once(&self, older: &mut BTreeMap<u64, Instant>) -> Result<Option<ImageNeed>, FleetError> {
        self.port.write_fact(FleetChain::KEY, &self.chain, |_| false).await?;
        let newest: Option<ImageKey> = self.port.fact(ImageKey::KEY).await?;
        let (ends, images) = (self.port.ends().await?, self.port.images().await?);
        let Some(newest) = newest.filter(|newest| images.contains(&newest.name)) else {
            return Ok(Some(ImageNeed::Lost));
        };
        let age = LeaderTime::of(now()).since(LeaderTime(newest.dated));
        self.metrics.image_age.set(Duration::from_micros(u64::try_from(age).unwrap_or(0)));
        if !self.is_writing.load(Relaxed) {
            self.delete_old(&newest, images, older).await?;
        }
        let leads_on = ends.first <= newest.sequence + 1 && newest.sequence <= ends.last;
        Ok((!leads_on).then_some(ImageNeed::Newer))
    }

    /// Deletes images that have not been the newest for some time, regardless of the node that wrote them. If the
    /// stream takes nothing, old images may occupy its space, so all but the newest are deleted.
    async fn delete_old(
        &self,
        newest: &ImageKey,
        images: Vec<String>,
        older: &mut BTreeMap<u64, Instant>,
    ) -> Result<(), FleetError> {
        let is_short = self.snapshots.load().feed().problem() == Some(FeedProblem::Stream);
        let now = Instant::now();
        let ids = images.iter().filter_map(|name| u64::from_str_radix(name, 16).ok());
        // An image of this leader with a greater id than the newest is about to be.
        let (old, mut kept): (Vec<u64>, Vec<u64>) =
            ids.partition(|id| *id < newest.id || *id > newest.id && *id < self.from.0);
        *older = old.into_iter().map(|id| (id, older.get(&id).copied().unwrap_or(now))).collect();
        let young = older.iter().rev().filter(|(_, since)| !is_short && now.duration_since(**since) <= self.keep);
        kept.extend(young.take(MAX_OLDER_IMAGES).map(|(id, _)| *id));
        if kept.len() < images.len() || is_short {
            let kept: Vec<String> = kept.into_iter().map(|id| format!("{id:x}")).collect();
            self.port.retain_images(&kept).await?;
        }
        Ok(())
    }
}
