//! The sources of missing state.

use std::fmt::Debug;

use alloy_primitives::B256;
use async_trait::async_trait;
use tokio::time::Instant;

use super::{Held, Miss, RemoteView};

/// A place that has the state of an upstream's blocks: a node that is asked, or another cache.
#[async_trait]
pub trait StateSource: Debug + Send + Sync {
    /// Fetches `missed` values of one block into the cache of `view`, and holds them.
    ///
    /// # Errors
    ///
    /// Returns a [`FetchError`] if a value is still unknown.
    async fn fetch(&self, view: &RemoteView, missed: &[Miss], deadline: Instant) -> Result<Held, FetchError>;
}

/// The reason why state could not be fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The source gave no usable answer. Holds its problem.
    #[error("{0}")]
    Unavailable(String),
    /// The state did not arrive by the deadline. Holds the upstream's problem, if it has one.
    #[error("the upstream did not return the state in time{0}")]
    Deadline(String),
    /// The block is no longer part of the upstream's chain, and its state could not be fetched.
    #[error(
        "block {number} ({hash}) is no longer part of the upstream's chain, and its state cannot be fetched: {problem}"
    )]
    Abandoned { number: u64, hash: B256, problem: String },
    /// The source has answered, but the answer lacks the requested value.
    #[error("{miss} at block {number} ({hash}) is still unknown: the upstream has answered without it")]
    Missing { miss: Miss, number: u64, hash: B256 },
    /// The leader of the fleet does not keep the state of the block.
    #[error("the state of block {number} ({hash}) is not here, and the leader of the fleet does not keep it")]
    NotKept { number: u64, hash: B256 },
    /// More than this many values are in flight.
    #[error("more than {0} values of the upstream's state are in flight: try again later")]
    Busy(usize),
    /// A run has missed state of a chain without an upstream, which is a bug in presim.
    #[error("a run has missed state on a chain whose state is local")]
    Local,
    /// The state was still incomplete after this many rounds of fetching.
    #[error("the state that the request needs was still incomplete after {0} rounds of fetching")]
    Rounds(usize),
}
