//! Images of the published state, from which nodes join the fleet.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use async_nats::jetstream::object_store::{ObjectMetadata, ObjectStore};
use tokio::{io::AsyncReadExt, task::JoinHandle};

use crate::feed::{
    codec::StateImage,
    fleet::{FleetError, FleetLink, ImageKey},
};

/// The time for which an image stays after a newer one is complete, for nodes that read it.
const STAYS: Duration = Duration::from_secs(600);
/// The most bytes of a part of an image.
const CHUNK: usize = 128 << 10;

/// Writes images beside the feed, one at a time.
#[derive(Debug)]
pub struct ImageWriter {
    link: FleetLink,
    task: Option<JoinHandle<Result<ImageKey, FleetError>>>,
    /// The names of older images, each with the time at which a newer one was complete.
    old: VecDeque<(String, Instant)>,
    newest: Option<ImageKey>,
}

impl ImageWriter {
    /// Creates a writer of a fleet's images, whose newest is `newest`.
    pub const fn new(link: FleetLink, newest: Option<ImageKey>) -> Self {
        Self { link, task: None, old: VecDeque::new(), newest }
    }

    /// Returns the newest complete image.
    pub const fn newest(&self) -> Option<&ImageKey> {
        self.newest.as_ref()
    }

    /// Returns whether an image is being written.
    pub const fn is_writing(&self) -> bool {
        self.task.is_some()
    }

    /// Begins to write an image, whose last change has the sequence `sequence` in the stream.
    pub fn begin(&mut self, image: StateImage, sequence: u64) {
        let expired = |old: &mut (String, Instant)| old.1.elapsed() > STAYS;
        let expired: Vec<String> = std::iter::from_fn(|| self.old.pop_front_if(expired)).map(|old| old.0).collect();
        let link = self.link.clone();
        self.task = Some(tokio::spawn(async move { write(&link, image, sequence, expired).await }));
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
        if let Some(old) = self.newest.replace(key) {
            self.old.push_back((old.name, Instant::now()));
        }
        Some(sequence)
    }
}

impl Drop for ImageWriter {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Writes an image, reads it back, and makes it the newest. Deletes the images that have expired.
async fn write(
    link: &FleetLink,
    image: StateImage,
    sequence: u64,
    expired: Vec<String>,
) -> Result<ImageKey, FleetError> {
    let id = image.id;
    let bytes = tokio::task::spawn_blocking(move || image.write()).await;
    let bytes = bytes.map_err(|error| FleetError::Image(error.to_string()))?;
    let images = link.images().await?;
    for name in expired {
        if let Err(error) = images.delete(&name).await {
            tracing::debug!(%error, name, "an old image is not deleted");
        }
    }
    let name = format!("{:x}", id.0);
    let chunk_size = Some(link.max_part().get().min(CHUNK));
    let about = ObjectMetadata { name: name.clone(), chunk_size, ..ObjectMetadata::default() };
    let written = images.put(about, &mut bytes.as_slice()).await;
    written.map_err(|error| FleetError::nats("an image cannot be written", error))?;
    if read(&images, &name).await? != bytes {
        return Err(FleetError::Image("it reads otherwise than it was written".to_owned()));
    }
    let key = ImageKey { name, id: id.0, sequence, bytes: bytes.len() as u64 };
    let known: Option<ImageKey> = link.fact(ImageKey::KEY).await?;
    if known.is_some_and(|known| known.id > key.id) {
        return Err(FleetError::Image("another node has written a newer one".to_owned()));
    }
    link.state_fact(ImageKey::KEY, &key).await?;
    Ok(key)
}

/// Reads an image.
///
/// # Errors
///
/// Returns [`FleetError::Nats`] if there is none of this name, or it cannot be read whole.
pub async fn read(images: &ObjectStore, name: &str) -> Result<Vec<u8>, FleetError> {
    let unread = |problem: String| FleetError::nats("an image cannot be read", problem);
    let mut object = images.get(name).await.map_err(|error| unread(error.to_string()))?;
    let mut bytes = Vec::with_capacity(object.info().size);
    object.read_to_end(&mut bytes).await.map_err(|error| unread(error.to_string()))?;
    Ok(bytes)
}
