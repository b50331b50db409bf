//! The codec of what is published: one encoded form of blocks, sub-blocks and state changes, for the journal on disk and for
//! the stream of a fleet.
//!
//! A [`ChangeRecord`] has the additions of one change of the published state. The journal writes its parts to tables; a
//! [`StreamMessage`] carries them to the replicas, in the frames of `frame`. [`replay`] makes snapshots of them again. An
//! [`StateImage`] is everything that is published at one moment, from which a replica begins.

mod change;
mod frame;
mod health;
mod image;
mod live;
mod message;
mod record;
pub mod replay;
mod time;

pub use self::{
    change::ChangeRecord,
    frame::{Frame, MAX_BYTES, VERSION, frames, join, pack, unpack, unpack_short, unpacked_bytes},
    health::MessageError,
    image::{ImageContent, LiveImage, StateImage},
    live::{CodesByHash, LiveCanonical, LiveHead, LiveMessage, LiveRecord, LiveSubBlock, StoredChanges},
    message::{StreamChange, StreamMessage},
    record::{JournalEntry, StoredAccount, StoredBody, StoredChange, StoredHeader},
    time::LeaderTime,
};
