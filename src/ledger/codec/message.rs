//! The messages of a fleet's stream.

use alloy_primitives::Bytes;
use alloy_rlp::{RlpDecodable, RlpEncodable};

use super::{
    decode::EntryError, entry::Entry, frame::MAX_STREAM_BYTES, items::ItemBudget, stored::Maybe, time::LeaderTime,
};
use crate::{
    ledger::SnapshotId,
    store::{corrupted, encode},
};

/// A message of the stream. Each has an id of its own.
pub enum StreamMessage {
    /// A node leads from here on.
    Epoch {
        /// The id of the message before.
        follows: SnapshotId,
        /// The name of the node, for people.
        leader: String,
    },
    /// Changes of the chain under one id.
    Changes(StreamChanges),
}

/// Changes of the chain under one id, with the codes of the accounts that they change.
pub struct StreamChanges {
    /// The id of the change before them. `None` if it is the id before theirs.
    pub follows: Option<SnapshotId>,
    /// The changes, in order: one, or all between the chain that the readers have seen and the current one.
    pub entries: Vec<Entry>,
    /// The codes that the reader may not know, each once.
    pub codes: Vec<Bytes>,
    /// Whether the reader must forget the codes of earlier messages, because later messages contain the codes that they
    /// need again.
    pub forgets: bool,
}

#[derive(RlpEncodable, RlpDecodable)]
struct EpochFields {
    follows: u64,
    leader: String,
}

#[derive(RlpEncodable, RlpDecodable)]
struct ChangesFields {
    follows: Maybe<u64>,
    entries: Vec<Bytes>,
    codes: Vec<Bytes>,
    forgets: bool,
}

const EPOCH: u8 = 0;
const CHANGES: u8 = 1;

fn framed(dated: LeaderTime, kind: u8, fields: &[u8]) -> Vec<u8> {
    [dated.0.to_be_bytes().as_slice(), &[kind], fields].concat()
}

impl StreamChanges {
    /// Returns the bytes of the message about changes with these fields, with the time at which the newest snapshot after them was
    /// published.
    pub fn write<'a>(
        dated: LeaderTime,
        follows: Option<SnapshotId>,
        entries: impl IntoIterator<Item = &'a Entry>,
        codes: Vec<Bytes>,
        forgets: bool,
    ) -> Vec<u8> {
        let follows = Maybe(follows.map(|id| id.0));
        let entries = entries.into_iter().map(Entry::write).collect();
        framed(dated, CHANGES, &encode(&ChangesFields { follows, entries, codes, forgets }))
    }
}

impl StreamMessage {
    /// Returns the bytes of the message that a node leads from here on.
    pub fn epoch(dated: LeaderTime, follows: SnapshotId, leader: String) -> Vec<u8> {
        framed(dated, EPOCH, &encode(&EpochFields { follows: follows.0, leader }))
    }

    /// Reads a message, and the time at which the newest snapshot after it was published.
    ///
    /// # Errors
    ///
    /// Returns [`EntryError::Message`] if the bytes are not a message.
    pub fn read(bytes: &[u8]) -> Result<(LeaderTime, Self), EntryError> {
        let mut items = ItemBudget::of(MAX_STREAM_BYTES);
        let (dated, bytes) = bytes.split_first_chunk::<8>().ok_or_else(|| corrupted("it is too short"))?;
        let message = match bytes.split_first() {
            Some((&EPOCH, fields)) => {
                let EpochFields { follows, leader } = items.decode(fields)?;
                Self::Epoch { follows: SnapshotId(follows), leader }
            }
            Some((&CHANGES, fields)) => {
                let ChangesFields { follows, entries, codes, forgets } = items.decode(fields)?;
                let entries =
                    entries.iter().map(|entry| Entry::arrived(entry, &mut items)).collect::<Result<_, _>>()?;
                Self::Changes(StreamChanges { follows: follows.0.map(SnapshotId), entries, codes, forgets })
            }
            _ => return Err(corrupted("its kind is unknown").into()),
        };
        Ok((LeaderTime(u64::from_be_bytes(*dated)), message))
    }
}
