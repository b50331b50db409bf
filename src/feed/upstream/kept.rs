//! What is known of an upstream's state, kept on the disk from one start to the next.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use alloy_primitives::{B256, keccak256};
use alloy_rlp::{Decodable, Encodable};

use crate::state::{RemoteImage, RemoteState};

/// The file in which the cache of a chain is kept. It is a copy: what is wrong with it costs the time of fetching it again.
#[derive(Clone, Debug)]
pub struct KeptState {
    path: PathBuf,
}

impl KeptState {
    /// That of a chain, in a data directory.
    pub fn new(dir: &Path, chain_id: u64) -> Self {
        Self { path: dir.join(format!("upstream-{chain_id}.state")) }
    }

    /// What was kept; none where nothing was, or it cannot be read.
    pub fn load(&self) -> Option<RemoteImage> {
        let shown = self.path.display();
        let bytes = match std::fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(%error, "{shown} cannot be read: the upstream is asked for all of its state");
                return None;
            }
        };
        let image = bytes.split_first_chunk::<32>().and_then(|(hash, image)| {
            (keccak256(image) == B256::from(hash)).then(|| RemoteImage::decode(&mut &*image).ok()).flatten()
        });
        if image.is_none() {
            tracing::warn!("{shown} is not whole: the upstream is asked for all of its state");
        }
        image
    }

    /// Keeps what is known at the newest block, in the place of what was kept before.
    ///
    /// # Errors
    /// What the disk says; what was kept before is still there then.
    pub fn save(&self, remote: &Arc<RemoteState>) -> io::Result<()> {
        let Some(view) = remote.newest() else { return Ok(()) };
        let image = remote.export(&view);
        let mut bytes = Vec::with_capacity(32 + image.length());
        bytes.extend_from_slice(B256::ZERO.as_slice());
        image.encode(&mut bytes);
        let hash = keccak256(&bytes[32..]);
        bytes[..32].copy_from_slice(hash.as_slice());
        let dir = self.path.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        file.write_all(&bytes)?;
        file.as_file().sync_all()?;
        file.persist(&self.path)?;
        Ok(())
    }
}
