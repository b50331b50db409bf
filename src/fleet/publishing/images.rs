//! Images of the published state, from which nodes join the fleet.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{task::JoinSet, time::Instant};

use crate::{
    fleet::servers::{FleetError, FleetPort, ImageKey},
    ledger::{
        Chain,
        codec::{LeaderTime, image, unpacked_bytes},
    },
};

/// The pause after a failed write of an image. It doubles with each further failure.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The longest of these pauses.
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(60);

/// Writes images while the feed continues, one at a time.
#[derive(Debug)]
pub struct ImageWriter {
    port: Arc<dyn FleetPort>,
    /// The most bytes of an image, before compression.
    max_bytes: u64,
    /// The image that is being written, if there is one.
    task: JoinSet<Result<ImageKey, FleetError>>,
    /// Whether an image is being written. Read by the task that deletes old images.
    pub(super) is_writing: Arc<AtomicBool>,
    /// The newest complete image, if this node knows one. `None` if it was lost.
    pub(super) newest: Option<ImageKey>,
    /// The moment until which no image is written, and the length of the pause, if the last write failed.
    pause: Option<(Instant, Duration)>,
}

impl ImageWriter {
    /// Creates the writer of a leader. The newest image is `newest`. Readers take images of at most `max_bytes`.
    pub fn new(port: Arc<dyn FleetPort>, newest: Option<ImageKey>, max_bytes: u64) -> Self {
        Self { port, max_bytes, task: JoinSet::new(), is_writing: Arc::default(), newest, pause: None }
    }

    /// Returns whether an image can be written: no write is running, and the pause after the last failure is over.
    pub fn can_write(&self) -> bool {
        self.task.is_empty() && self.pause.is_none_or(|(until, _)| Instant::now() >= until)
    }

    /// Starts to write the image of `chain`, unless it is the newest image already. `sequence` is the position of the
    /// chain's last change in the stream.
    pub fn write(&mut self, chain: Arc<Chain>, sequence: u64) {
        if self.newest.as_ref().is_some_and(|newest| newest.id == chain.last.0) {
            return;
        }
        let (port, max_bytes) = (self.port.clone(), self.max_bytes);
        self.is_writing.store(true, Relaxed);
        self.task.spawn(async move { write(&*port, chain, sequence, max_bytes).await });
    }

    /// Takes the outcome of the image being written, if it is done. Returns whether writing it failed.
    pub fn has_failed(&mut self) -> bool {
        let Some(written) = self.task.try_join_next() else { return false };
        self.is_writing.store(false, Relaxed);
        match written.unwrap_or_else(|error| Err(FleetError::Image(error.to_string()))) {
            Ok(key) => {
                tracing::info!(id = format!("{:#x}", key.id), bytes = key.bytes, "an image of the fleet is complete");
                (self.newest, self.pause) = (Some(key), None);
                false
            }
            Err(error) => {
                let pause = self.pause.map_or(RETRY_PAUSE, |(_, pause)| (pause * 2).min(MAX_RETRY_PAUSE));
                tracing::warn!(%error, ?pause, "the fleet's image was not written: retrying");
                self.pause = Some((Instant::now() + pause, pause));
                true
            }
        }
    }
}

/// Writes an image, reads it back, and makes it the newest. A failed write leaves nothing behind.
async fn write(port: &dyn FleetPort, chain: Arc<Chain>, sequence: u64, max_bytes: u64) -> Result<ImageKey, FleetError> {
    let (id, dated) = (chain.last, LeaderTime::of(chain.newest.published));
    let bytes = tokio::task::spawn_blocking(move || image::write(&chain)).await;
    let bytes = bytes.map_err(|error| FleetError::Image(error.to_string()))?;
    let unpacked = unpacked_bytes(&bytes);
    if unpacked > max_bytes {
        let text = format!("the state takes {unpacked} bytes, and readers take images of at most {max_bytes}");
        return Err(FleetError::Image(text));
    }
    let name = format!("{:x}", id.0);
    let key = ImageKey { name, id: id.0, sequence, bytes: bytes.len() as u64, dated: dated.0 };
    match publish(port, &key, &bytes).await {
        Ok(newest) if newest == key => Ok(key),
        failed => {
            port.retain_newest_image().await?;
            failed?;
            Err(FleetError::Image("another node has written a newer one".to_owned()))
        }
    }
}

/// Writes the bytes of an image and makes it the newest. Returns the newest image, which may be another node's.
async fn publish(port: &dyn FleetPort, key: &ImageKey, bytes: &[u8]) -> Result<ImageKey, FleetError> {
    port.put_image(&key.name, bytes).await?;
    if port.image(key).await? != bytes {
        return Err(FleetError::Image("it reads otherwise than it was written".to_owned()));
    }
    port.write_fact(ImageKey::KEY, key, |known| known.id <= key.id).await
}
