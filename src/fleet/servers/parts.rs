//! The parts of messages in the stream.

use alloy_primitives::Bytes;
use async_nats::HeaderMap;

use crate::ledger::SnapshotId;

/// The header with the id of a message.
const ID: &str = "presim-id";
/// The header with the index of a message's part, and the number of its parts.
const PART: &str = "presim-part";

/// Returns the headers of a part of the message `id`.
pub fn headers(id: SnapshotId, index: u32, count: u32) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(ID, format!("{:#x}", id.0).as_str());
    headers.insert(PART, format!("{index}/{count}").as_str());
    headers
}

/// A part of a message as it arrives.
#[derive(Clone, Debug)]
pub struct ArrivedPart {
    /// The id of its message.
    pub id: SnapshotId,
    /// The index of the part.
    pub index: u32,
    /// The number of the message's parts.
    pub count: u32,
    /// The bytes of the part.
    pub bytes: Bytes,
}

impl ArrivedPart {
    /// Reads a part; `None` if it is none of presim's.
    pub fn read(headers: Option<&HeaderMap>, payload: Bytes) -> Option<Self> {
        let headers = headers?;
        let id = headers.get(ID)?.as_str().strip_prefix("0x")?;
        let (index, count) = headers.get(PART)?.as_str().split_once('/')?;
        let (index, count) = (index.parse().ok()?, count.parse().ok()?);
        let id = SnapshotId(u64::from_str_radix(id, 16).ok()?);
        (index < count).then_some(Self { id, index, count, bytes: payload })
    }
}
