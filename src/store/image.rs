//! The cached state of an upstream, kept in files next to the store: one for the followed chain, and one for each block
//! on which a fork began. Without a file, the node fetches the state again.

use std::{
    fs,
    io::{self, ErrorKind, Read, Write},
};

use alloy_primitives::{B256, keccak256};
use rustix::fs::OFlags;

use super::DataDir;
use crate::state::RemoteImage;

/// Name of the file in the data directory, on a chain that is followed.
pub const FILE: &str = "upstream-state.bin";

/// Returns the name of the file in the data directory of a fork of this chain at the block with this hash.
pub fn fork_file(chain_id: u64, hash: B256) -> String {
    format!("fork-{chain_id}-{hash:x}.bin")
}
/// The number of forked blocks whose state is retained.
const KEPT_FORKS: usize = 16;
/// First bytes of the file: kind and version. The keccak256 hash of the image and the image in RLP follow.
const MAGIC: &[u8; 8] = b"presimU1";

/// Deletes the images of forks, except those written last.
///
/// # Errors
/// Returns the system's error if the directory cannot be read, or a file not be deleted.
pub fn drop_old_forks(dir: &DataDir) -> io::Result<()> {
    let mut forks = Vec::new();
    for entry in fs::read_dir(dir.path())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("fork-") && name.ends_with(".bin") {
            forks.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    forks.sort();
    let old = forks.len().saturating_sub(KEPT_FORKS);
    forks.into_iter().take(old).try_for_each(|(_, path)| fs::remove_file(path))
}

/// An image in the form in which it is stored.
#[derive(Debug)]
pub struct StoredImage {
    digest: B256,
    encoded: Vec<u8>,
}

impl StoredImage {
    /// Encodes an image.
    pub fn new(image: &RemoteImage) -> Self {
        let encoded = alloy_rlp::encode(image);
        Self { digest: keccak256(&encoded), encoded }
    }

    /// Returns the hash of the encoding.
    pub const fn digest(&self) -> B256 {
        self.digest
    }

    /// Replaces the image that is stored under `name` atomically.
    ///
    /// # Errors
    /// Returns the system's error if the file cannot be written, synced or moved into place.
    pub fn write(&self, dir: &DataDir, name: &str) -> io::Result<()> {
        let fresh = format!("{name}.new");
        let mut file = dir.create(&fresh)?;
        file.write_all(MAGIC)?;
        file.write_all(self.digest.as_slice())?;
        file.write_all(&self.encoded)?;
        file.sync_all()?;
        dir.rename(&fresh, name)
    }
}

/// Returns the image stored under `name`, encoded in at most `most` bytes, or `None` if there is none.
///
/// # Errors
/// Returns an error of kind `InvalidData` if the file is damaged or of another version, else the system's error.
pub fn read_image(dir: &DataDir, name: &str, most: usize) -> io::Result<Option<RemoteImage>> {
    let file = match dir.open_file(name, OFlags::RDONLY) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let damaged = |problem: String| io::Error::new(ErrorKind::InvalidData, format!("{name}: {problem}"));
    let head = MAGIC.len() + B256::len_bytes();
    let mut bytes = Vec::new();
    file.take((head + most) as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > head + most {
        return Err(damaged(format!("longer than {most} bytes")));
    }
    let Some((start, encoded)) = bytes.split_at_checked(head) else { return Err(damaged("truncated".to_owned())) };
    if !start.starts_with(MAGIC) {
        return Err(damaged("not of this version".to_owned()));
    }
    if start[MAGIC.len()..] != *keccak256(encoded) {
        return Err(damaged("the checksum does not match".to_owned()));
    }
    alloy_rlp::decode_exact(encoded).map(Some).map_err(|error| damaged(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use alloy_primitives::{Address, U256};

    use super::*;
    use crate::state::{Fetched, RemoteSettings, RemoteState};

    #[test]
    fn an_image_on_the_disk_is_what_was_written_or_nothing() {
        let view = RemoteState::begin(RemoteSettings::of_bytes(1 << 20), 1, B256::ZERO);
        let slot = |slot| Fetched::Slot { address: Address::ZERO, slot: U256::from(slot), value: U256::from(slot + 1) };
        view.insert((0..9).map(slot));
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path(), false).unwrap();
        let error = |most| read_image(&data, FILE, most).unwrap_err().to_string();
        assert_eq!(read_image(&data, FILE, 1 << 20).unwrap(), None);
        // No link is followed. The image replaces the link itself.
        let target = dir.path().join("precious");
        std::fs::write(&target, "precious").unwrap();
        for name in [FILE.to_owned(), format!("{FILE}.new")] {
            symlink(&target, dir.path().join(name)).unwrap();
        }
        assert!(error(1 << 20).contains("is a link"));
        let image = view.export();
        StoredImage::new(&image).write(&data, FILE).unwrap();
        assert_eq!(read_image(&data, FILE, 1 << 20).unwrap(), Some(image));
        assert_eq!(std::fs::read(&target).unwrap(), b"precious");
        assert!(error(10).contains("longer than 10 bytes"));
        let file = dir.path().join(FILE);
        let mut bytes = std::fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&file, &bytes).unwrap();
        assert!(error(1 << 20).contains("the checksum does not match"));
    }
}
