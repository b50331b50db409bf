//! The parts of messages in the stream.

use alloy_primitives::Bytes;
use async_nats::HeaderMap;

use super::{FleetError, FleetPort, PlaceInStream, StreamEnds};
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

/// Returns the id of the stream's last message that is one of presim's; `None` if it has none.
///
/// # Errors
///
/// Returns [`FleetError::Nats`] if NATS does not answer.
pub async fn end_of(port: &dyn FleetPort) -> Result<Option<SnapshotId>, FleetError> {
    let StreamEnds { first, last, .. } = port.ends().await?;
    for sequence in (first.max(1)..=last).rev() {
        if let PlaceInStream::Part { id, .. } = port.at(sequence).await? {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Returns the sequence of the last part of the message `wanted`; `None` if the stream does not have it. Ids grow with the
/// sequence.
///
/// # Errors
///
/// Returns [`FleetError::Nats`] if NATS does not answer.
pub async fn find(port: &dyn FleetPort, wanted: SnapshotId) -> Result<Option<u64>, FleetError> {
    let StreamEnds { first: mut low, last: mut high, .. } = port.ends().await?;
    let mut found = None;
    while low <= high {
        let middle = low + (high - low) / 2;
        let mut sequence = middle;
        let part = loop {
            match port.at(sequence).await? {
                PlaceInStream::Part { id, is_last, .. } => break Some((id, is_last)),
                _ if sequence == high => break None,
                _ => sequence += 1,
            }
        };
        match part {
            Some((id, is_last)) if id <= wanted => {
                if id == wanted && is_last {
                    found = Some(sequence);
                }
                low = sequence + 1;
            }
            _ => match middle.checked_sub(1) {
                Some(before) => high = before,
                None => break,
            },
        }
    }
    Ok(found)
}
