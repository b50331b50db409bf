//! The parts of messages in the stream.

use alloy_primitives::Bytes;
use async_nats::{HeaderMap, jetstream::stream};

use super::{FleetError, FleetLink};
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

/// Returns the sequence and the id of the stream's last message that is one of presim's; `None` if it has none.
///
/// # Errors
///
/// Returns [`FleetError::Nats`] if NATS does not answer.
pub async fn end_of(link: &FleetLink) -> Result<Option<(u64, SnapshotId)>, FleetError> {
    let stream = link.stream().await?;
    let state = &stream.cached_info().state;
    for sequence in (state.first_sequence.max(1)..=state.last_sequence).rev() {
        if let Some((sequence, part)) = part_from(&stream, sequence, sequence).await? {
            return Ok(Some((sequence, part.id)));
        }
    }
    Ok(None)
}

/// Returns the sequence of the last part of the message `id`; `None` if the stream does not have it. Ids grow with the
/// sequence.
///
/// # Errors
///
/// Returns [`FleetError::Nats`] if NATS does not answer.
pub async fn find(stream: &stream::Stream, id: SnapshotId) -> Result<Option<u64>, FleetError> {
    let state = &stream.cached_info().state;
    let (mut low, mut high) = (state.first_sequence, state.last_sequence);
    let mut found = None;
    while low <= high {
        let middle = low + (high - low) / 2;
        match part_from(stream, middle, high).await? {
            None => match middle.checked_sub(1) {
                Some(before) => high = before,
                None => break,
            },
            Some((sequence, part)) if part.id < id => low = sequence + 1,
            Some((sequence, part)) if part.id == id => {
                if part.index + 1 == part.count {
                    found = Some(sequence);
                }
                low = sequence + 1;
            }
            Some(_) => match middle.checked_sub(1) {
                Some(before) => high = before,
                None => break,
            },
        }
    }
    Ok(found)
}

/// Returns the first part of presim's in a range of sequences.
async fn part_from(stream: &stream::Stream, from: u64, to: u64) -> Result<Option<(u64, ArrivedPart)>, FleetError> {
    for sequence in from..=to {
        match stream.get_raw_message(sequence).await {
            Ok(message) => {
                if let Some(part) = ArrivedPart::read(Some(&message.headers), message.payload.into()) {
                    return Ok(Some((sequence, part)));
                }
            }
            Err(error) if error.kind() == stream::LastRawMessageErrorKind::NoMessageFound => {}
            Err(error) => return Err(FleetError::nats("the stream cannot be read", error)),
        }
    }
    Ok(None)
}
