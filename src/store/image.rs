//! The cached state of an upstream, kept in a file beside the store. Without the file the node fetches it again.

use std::io::{self, ErrorKind, Read, Write};

use alloy_primitives::{B256, keccak256};
use rustix::fs::OFlags;

use super::DataDir;
use crate::state::RemoteImage;

/// Name of the file in the data directory.
pub const FILE: &str = "upstream-state.bin";
/// First bytes of the file: kind and version. The keccak256 hash of the image and the image in RLP follow.
const MAGIC: &[u8; 8] = b"presimU1";

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

    /// Replaces the stored image atomically.
    ///
    /// # Errors
    /// Returns the system's error if the file cannot be written, synced or moved into place.
    pub fn write(&self, dir: &DataDir) -> io::Result<()> {
        let fresh = format!("{FILE}.new");
        let mut file = dir.create(&fresh)?;
        file.write_all(MAGIC)?;
        file.write_all(self.digest.as_slice())?;
        file.write_all(&self.encoded)?;
        file.sync_all()?;
        dir.rename(&fresh, FILE)
    }
}

/// Returns the stored image, whose encoding may have at most `most` bytes, or `None` if there is none.
///
/// # Errors
/// Returns an error of kind `InvalidData` if the file is damaged or of another version, else the system's error.
pub fn read_image(dir: &DataDir, most: usize) -> io::Result<Option<RemoteImage>> {
    let file = match dir.open_file(FILE, OFlags::RDONLY) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let damaged = |problem: String| io::Error::new(ErrorKind::InvalidData, format!("{FILE}: {problem}"));
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
