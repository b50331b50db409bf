//! Answers that wait to be compared with a reference's.

use bytes::Bytes;

/// An answer to compare with a reference.
pub struct Sample {
    /// Index of the target among the targets.
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
    /// The head, if the request asked for it.
    Block {
        number: u64,
        hash: String,
    },
    /// One of several states, for this reason.
    Unknown(&'static str),
    /// The state was changed by the request, which is not asked again; only its outcome can be.
    Write,
}
