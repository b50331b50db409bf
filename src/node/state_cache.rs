//! The cached state of an upstream, in the data directory.

use std::{io, sync::Arc, time::Duration};

use alloy_primitives::B256;

use crate::{
    ledger::Snapshots,
    state::{RemoteImage, RemoteView},
    store::{DataDir, StoredImage, UPSTREAM_FILE, drop_old_forks, fork_file, read_image},
};

/// Stores the cached state of an upstream, so that the node does not fetch it again after a restart.
#[derive(Debug)]
pub struct StateCache {
    /// The cell of the chain that reads it.
    read_by: Arc<Snapshots>,
    /// The directory in which it is stored.
    directory: DataDir,
    /// The chain id of a fork. Each of its blocks has its own cache.
    fork_of: Option<u64>,
    /// The digest of the image that was stored last.
    stored: tokio::sync::Mutex<Option<B256>>,
}

impl StateCache {
    /// The time between two writes.
    const INTERVAL: Duration = Duration::from_secs(60);

    /// Creates the cache that the chain of `read_by` reads; with `fork_of`, a fork of the chain with that id.
    pub fn new(read_by: Arc<Snapshots>, directory: DataDir, fork_of: Option<u64>) -> Self {
        Self { read_by, directory, fork_of, stored: tokio::sync::Mutex::default() }
    }

    /// Returns the stored state of a followed upstream from `directory`, of at most `most` bytes. If it is invalid, the
    /// state is fetched again, and nothing else is lost.
    pub fn followed(directory: &DataDir, most: usize) -> Option<RemoteImage> {
        read(directory, UPSTREAM_FILE, most)
    }

    /// Returns the stored state of the block with this hash, on which a fork of the chain begins, from `directory`.
    pub fn of_fork(directory: &DataDir, chain_id: u64, hash: B256, most: usize) -> Option<RemoteImage> {
        read(directory, &fork_file(chain_id, hash), most).filter(|image| image.hash == hash)
    }

    /// Stores the cache now, unless it is equal to the last stored one.
    pub async fn store(&self) {
        let Some(view) = self.read_by.load().latest().world.remote().cloned() else { return };
        // Held throughout, so that the write when the node stops waits for one that is under way.
        let mut stored = self.stored.lock().await;
        let (last, directory, fork_of) = (*stored, self.directory.clone(), self.fork_of);
        match tokio::task::spawn_blocking(move || write(&directory, &view, fork_of, last)).await {
            Ok(Ok(digest)) => *stored = Some(digest),
            Ok(Err(error)) => tracing::warn!(%error, "the cache of the upstream's state cannot be stored"),
            // The panic is logged by the hook.
            Err(_) => {}
        }
    }

    /// Stores the cache at intervals.
    pub async fn store_regularly(self: Arc<Self>) {
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + Self::INTERVAL, Self::INTERVAL);
        loop {
            ticks.tick().await;
            self.store().await;
        }
    }
}

fn read(directory: &DataDir, name: &str, most: usize) -> Option<RemoteImage> {
    read_image(directory, name, most).unwrap_or_else(|error| {
        tracing::warn!(%error, "the stored cache of the upstream's state is ignored");
        None
    })
}

/// Writes the known state at the block of `view`, unless its digest is `last`. Returns the digest.
fn write(directory: &DataDir, view: &RemoteView, fork_of: Option<u64>, last: Option<B256>) -> io::Result<B256> {
    let image = StoredImage::new(&view.export());
    if Some(image.digest()) != last {
        match fork_of {
            None => image.write(directory, UPSTREAM_FILE)?,
            Some(chain_id) => {
                image.write(directory, &fork_file(chain_id, view.hash()))?;
                drop_old_forks(directory)?;
            }
        }
    }
    Ok(image.digest())
}
