//! The codec of published changes: one encoded form, for the journal on disk and for the stream of a fleet.
//!
//! An [`Entry`] is the encoded form of a [`Record`](super::Record). The journal writes entries to its table; a
//! [`StreamMessage`] carries them to the replicas, in the frames of `frame`. `decode` turns entries back into records.
//! An [`image`] is the whole published state at one moment, from which a replica starts.

mod catch_up;
mod check;
mod codes;
mod decode;
mod entry;
mod frame;
pub mod image;
mod items;
mod json;
mod message;
mod stored;
mod time;

pub use self::{
    check::{check, unless_equal},
    codes::CodesByHash,
    decode::EntryError,
    entry::{Block, Entry},
    frame::{
        Frame, MAX_IMAGE_BYTES, MAX_SHORT_BYTES, MAX_STREAM_BYTES, VERSION, frames, join, read, unpacked_bytes, write,
    },
    message::{StreamChanges, StreamMessage},
    stored::{StoredAccount, StoredBody, StoredChange, StoredHeader, StoredReceipt, StoredSubBlock},
    time::LeaderTime,
};
