//! Images of the published state, from which nodes join the fleet.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use async_nats::jetstream::object_store::{ObjectMetadata, ObjectStore};
use futures::TryStreamExt;
use tokio::{io::AsyncReadExt, task::JoinHandle, time::timeout};

use crate::{
    ledger::{
        SnapshotId,
        codec::{LeaderTime, StateImage},
    },
    source::fleet::{FleetError, FleetLink, ImageKey},
};

/// The most bytes of a part of an image.
const CHUNK: usize = 128 << 10;
/// The most time in which the images are listed.
const LIST: Duration = Duration::from_secs(2);
/// The most time without a part of an image that is read.
const PART: Duration = Duration::from_secs(10);

/// Writes images beside the feed, one at a time, and deletes old ones.
#[derive(Debug)]
pub struct ImageWriter {
    link: FleetLink,
    task: Option<JoinHandle<Result<ImageKey, FleetError>>>,
    newest: Option<ImageKey>,
    sweeping: JoinHandle<()>,
}

impl ImageWriter {
    /// Creates the writer of a leader that writes images from the id `from` on. The newest image is `newest`. Images stay for
    /// `keep` after a newer one is complete.
    pub fn new(link: FleetLink, newest: Option<ImageKey>, from: SnapshotId, keep: Duration) -> Self {
        let sweeping = tokio::spawn(sweep(link.clone(), from, keep));
        Self { link, task: None, newest, sweeping }
    }

    /// Returns the newest complete image.
    pub const fn newest(&self) -> Option<&ImageKey> {
        self.newest.as_ref()
    }

    /// Returns whether an image is being written.
    pub const fn is_writing(&self) -> bool {
        self.task.is_some()
    }

    /// Begins to write an image, whose last change has the sequence `sequence` in the stream, unless it is the newest already.
    pub fn write(&mut self, image: StateImage, sequence: u64) {
        if self.newest.as_ref().is_some_and(|newest| newest.id == image.id.0) {
            return;
        }
        let link = self.link.clone();
        self.task = Some(tokio::spawn(async move { write(&link, image, sequence).await }));
    }

    /// Takes the outcome of the image that was being written, if it is done: its sequence if it is complete.
    pub async fn done(&mut self) -> Option<u64> {
        let task = self.task.take_if(|task| task.is_finished())?;
        let key = match task.await {
            Ok(Ok(key)) => key,
            Ok(Err(error)) => {
                tracing::warn!(%error, "an image of the fleet was not written");
                return None;
            }
            Err(_) => return None,
        };
        tracing::info!(id = format!("{:#x}", key.id), bytes = key.bytes, "an image of the fleet is complete");
        let sequence = key.sequence;
        self.newest = Some(key);
        Some(sequence)
    }
}

impl Drop for ImageWriter {
    fn drop(&mut self) {
        self.sweeping.abort();
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Deletes the images that have not been the newest for `keep`, whichever node wrote them or was about to.
async fn sweep(link: FleetLink, from: SnapshotId, keep: Duration) {
    let mut old = BTreeMap::new();
    let mut ticks = tokio::time::interval((keep / 4).clamp(Duration::from_secs(1), Duration::from_secs(60)));
    loop {
        ticks.tick().await;
        if let Err(error) = sweep_once(&link, from, keep, &mut old).await {
            tracing::debug!(%error, "old images are not deleted yet");
        }
    }
}

/// Looks at the images once. `old` has those that were not the newest before, each since when.
async fn sweep_once(
    link: &FleetLink,
    from: SnapshotId,
    keep: Duration,
    old: &mut BTreeMap<String, Instant>,
) -> Result<(), FleetError> {
    let Some(newest) = link.fact::<ImageKey>(ImageKey::KEY).await? else { return Ok(()) };
    let images = link.images().await?;
    let unlisted = |problem: String| FleetError::nats("the images cannot be listed", problem);
    let listed = images.list().await.map_err(|error| unlisted(error.to_string()))?;
    // A list does not always end while images are written and deleted: NATS counts wrongly what is left of it.
    let names = timeout(LIST, listed.map_ok(|image| image.name).try_collect::<Vec<_>>()).await;
    let names = names.map_err(|_| unlisted(format!("not within {} s", LIST.as_secs())))?;
    let names = names.map_err(|error| unlisted(error.to_string()))?;
    // An image of this leader with a greater id than the newest is being written.
    let is_older =
        |name: &String| u64::from_str_radix(name, 16).is_ok_and(|id| id < newest.id || id > newest.id && id < from.0);
    let now = Instant::now();
    let since = |name: String| (old.get(&name).copied().unwrap_or(now), name);
    let still: Vec<_> = names.into_iter().filter(is_older).map(since).collect();
    old.clear();
    for (since, name) in still {
        if since.elapsed() <= keep {
            old.insert(name, since);
        } else {
            images.delete(&name).await.map_err(deletion)?;
        }
    }
    Ok(())
}

/// Writes an image, reads it back, and makes it the newest.
async fn write(link: &FleetLink, image: StateImage, sequence: u64) -> Result<ImageKey, FleetError> {
    let (id, dated) = (image.id, LeaderTime::of(image.published()));
    let bytes = tokio::task::spawn_blocking(move || image.write()).await;
    let bytes = bytes.map_err(|error| FleetError::Image(error.to_string()))?;
    let images = link.images().await?;
    let name = format!("{:x}", id.0);
    let chunk_size = Some(link.max_part().get().min(CHUNK));
    let metadata = ObjectMetadata { name: name.clone(), chunk_size, ..ObjectMetadata::default() };
    let written = images.put(metadata, &mut bytes.as_slice()).await;
    written.map_err(|error| FleetError::nats("an image cannot be written", error))?;
    let key = ImageKey { name, id: id.0, sequence, bytes: bytes.len() as u64, dated: dated.0 };
    if read(&images, &key).await? != bytes {
        return Err(FleetError::Image("it reads otherwise than it was written".to_owned()));
    }
    let known: Option<ImageKey> = link.fact(ImageKey::KEY).await?;
    if known.is_some_and(|known| known.id > key.id) {
        images.delete(&key.name).await.map_err(deletion)?;
        return Err(FleetError::Image("another node has written a newer one".to_owned()));
    }
    link.state_fact(ImageKey::KEY, &key).await?;
    Ok(key)
}

fn deletion(error: impl std::fmt::Display) -> FleetError {
    FleetError::nats("an image cannot be deleted", error)
}

/// Reads an image.
///
/// # Errors
///
/// Returns [`FleetError::Nats`] if there is none of this name, or it cannot be read whole, and [`FleetError::Image`] if it has
/// another length than its key says.
pub async fn read(images: &ObjectStore, key: &ImageKey) -> Result<Vec<u8>, FleetError> {
    let unread = |problem: String| FleetError::nats("an image cannot be read", problem);
    let object = images.get(&key.name).await.map_err(|error| unread(error.to_string()))?;
    let mut object = object.take(key.bytes.saturating_add(1));
    let mut bytes = Vec::new();
    // The parts of an image that is deleted meanwhile never come.
    loop {
        let part = timeout(PART, object.read_buf(&mut bytes)).await;
        let part = part.map_err(|_| unread(format!("no part came within {} s", PART.as_secs())))?;
        if part.map_err(|error| unread(error.to_string()))? == 0 {
            break;
        }
    }
    if bytes.len() as u64 == key.bytes {
        return Ok(bytes);
    }
    Err(FleetError::Image(format!("it has other than the {} bytes that its key says", key.bytes)))
}
