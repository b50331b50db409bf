//! Answers that are put aside to be compared with a reference.

use bytes::Bytes;

/// An answer to compare with a reference.
pub struct Sample {
    /// The target's place.
    pub target: usize,
    pub request: Bytes,
    pub workload: usize,
    pub answer: Bytes,
    pub pin: Pin,
}

/// The state that an answer came from, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pin {
    Snapshot(u64),
    /// The head, where the request asked for it.
    Block {
        number: u64,
        hash: String,
    },
    /// It may be any of several.
    Unknown(&'static str),
    /// The request changed the state: it is not asked again, but what became of it can be.
    Write,
}
