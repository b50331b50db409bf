//! A standing bundle, its answers, and the reasons for a missing answer.

use std::{fmt::Debug, sync::Arc};

use alloy_primitives::I256;
use bytes::Bytes;

use crate::{chain::Unexecutable, engine::Engine, ledger::Snapshot, scheduler::TaskError};

/// A standing bundle.
pub trait Bundle: Debug + Send + Sync + 'static {
    /// The answer, which is announced if it is another than before.
    type Answer: Answer;

    /// Returns whether it runs on newly opened blocks only.
    fn every_block(&self) -> bool {
        false
    }

    /// Runs once on a snapshot, to whose state the overlay of `engine` was reset. The overlay records the reads. A run
    /// that missed state or was stopped is repeated, so it must have no other effect.
    fn run(&self, engine: &mut Engine<'_>, snapshot: &Arc<Snapshot>) -> BundleRun<Self::Answer>;

    /// Returns the answer to a run that could not give its own.
    fn failed(&self, error: BundleError) -> Self::Answer;
}

/// An answer that clients hold.
pub trait Answer: Clone + Debug + PartialEq + Send + Sync + 'static {
    /// Returns about how many bytes it takes besides its own size.
    fn bytes(&self) -> usize;
}

impl Answer for Bytes {
    fn bytes(&self) -> usize {
        self.len()
    }
}

/// The end of one run of a bundle.
#[derive(Clone, Debug)]
pub struct BundleRun<A> {
    /// The answer. `None` if the objective is not above the client's minimum.
    pub answer: Option<A>,
    /// The objective, if the bundle has one. Bundles with a greater one run first.
    pub gained: Option<I256>,
    /// Whether the run came to its end.
    pub complete: bool,
}

/// The reason why a bundle has an answer that is not its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// The run has reached something that presim cannot execute. The answer holds until what led the run there
    /// changes.
    #[error("{0}")]
    Unexecutable(Unexecutable),
    /// The answer has no room in the client's memory.
    #[error("the answer and its reads take {bytes} bytes more, and {left} are left (--watch-mb)")]
    NoRoom {
        /// The additional bytes of the answer and its reads compared with the previous ones.
        bytes: usize,
        /// The bytes that are left.
        left: usize,
    },
}

/// The reason why a run gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StaleReason {
    /// The bundle was not run.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The deadline ended the run.
    #[error("the bundle was not run to its end in time")]
    Unfinished,
}
