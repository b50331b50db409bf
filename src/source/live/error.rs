//! The reasons why a block or a sub-block cannot be imported.

use std::{panic::AssertUnwindSafe, time::Duration};

use alloy_evm::block::BlockExecutionError;
use alloy_primitives::B256;

use super::flashblocks::{UnreadPostExec, UnreadTx};
use crate::{
    chain::{InvalidPostExec, Unexecutable},
    engine::InvalidTransaction,
    ledger::{FeedProblem, Unfit},
    state::{FetchError, Missed},
    upstream::{BlockError, UpstreamError},
};

/// The reason why a block or a sub-block could not be imported.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The upstream does not return the block.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// The upstream returns an invalid block.
    #[error("the upstream's block is invalid: {0}")]
    Block(#[from] BlockError),
    /// The state for the block cannot be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The block cannot be executed.
    #[error("the block cannot be executed: {0}")]
    Execution(#[from] BlockExecutionError),
    /// The upstream has announced a block that it does not have.
    #[error("the upstream does not have the block {0} that it announced")]
    Unknown(B256),
    /// The upstream has no newest block, or none with a hash.
    #[error("the upstream has no newest block")]
    NoNewest,
    /// The time was up.
    #[error("the work was not done within {} ms", .0.as_millis())]
    ExecutionTimeout(Duration),
    /// The block does not match its announcement.
    #[error("{what}: computed {computed}, announced {announced}")]
    Mismatch { what: &'static str, computed: String, announced: String, transaction: Option<B256> },
    /// A transaction cannot be read.
    #[error(transparent)]
    Unread(#[from] UnreadTx),
    /// A post-execution transaction cannot be read.
    #[error(transparent)]
    UnreadPostExec(#[from] UnreadPostExec),
    /// The post-execution transaction of a sub-block breaks a rule.
    #[error("diff.post_exec_tx: {0}")]
    PostExec(#[from] InvalidPostExec),
    /// The upstream is a node of another chain than at the start.
    #[error("the upstream's chain id is {announced} now, expected {expected}: it is a node of another chain")]
    OtherChain { expected: u64, announced: u64 },
    /// The block has a transaction of a type that presim does not know, or with an unknown payload.
    #[error("transaction {index} has the type {kind:#04x}: presim does not know it, or its payload")]
    ForeignType { index: usize, kind: u8 },
    /// The block cannot be executed here.
    #[error("{0}")]
    Unexecutable(Unexecutable),
    /// A transaction cannot be executed.
    #[error("transaction {index}: {problem}")]
    Transaction { index: usize, problem: String },
    /// The execution has panicked, because of a fault in this program.
    #[error("the execution has panicked")]
    Panicked,
    /// The chain took another branch meanwhile.
    #[error("block {0} is no longer part of the chain")]
    Gone(u64),
}

impl From<Unfit> for LiveError {
    fn from(Unfit(number): Unfit) -> Self {
        Self::Gone(number)
    }
}

impl From<InvalidTransaction> for LiveError {
    fn from(InvalidTransaction { index, error }: InvalidTransaction) -> Self {
        Self::Transaction { index, problem: error.to_string() }
    }
}

impl LiveError {
    /// Returns an error unless the computed value is the announced one.
    pub(super) fn unless_equal<T: PartialEq + std::fmt::Display>(
        what: &'static str,
        computed: T,
        announced: T,
    ) -> Result<(), Self> {
        if computed == announced {
            return Ok(());
        }
        let (computed, announced) = (computed.to_string(), announced.to_string());
        Err(Self::Mismatch { what, computed, announced, transaction: None })
    }

    /// Sets the transaction that does not match.
    pub(super) fn of_transaction(mut self, hash: B256) -> Self {
        if let Self::Mismatch { transaction, .. } = &mut self {
            *transaction = Some(hash);
        }
        self
    }

    /// Returns an error if a run has reached something that presim cannot execute, instead of missing state.
    pub(super) fn unless_executable(missed: &Missed) -> Result<(), Self> {
        missed.unexecutable().map_or(Ok(()), |why| Err(Self::Unexecutable(why)))
    }

    /// Returns the result of `execution`, or [`Panicked`](Self::Panicked): a block or a sub-block that cannot be executed ends
    /// no feed.
    pub(super) fn unless_panicked<T, E: From<Self>>(execution: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        std::panic::catch_unwind(AssertUnwindSafe(execution)).unwrap_or_else(|_| Err(Self::Panicked.into()))
    }

    /// Returns the feed's problem for this error.
    pub(super) const fn problem(&self) -> FeedProblem {
        match self {
            Self::Upstream(_) | Self::Fetch(_) | Self::Unknown(_) | Self::NoNewest => FeedProblem::Upstream,
            Self::ExecutionTimeout(_) => FeedProblem::TooLate,
            Self::OtherChain { .. } => FeedProblem::OtherChain,
            Self::Block(_) | Self::Mismatch { .. } => FeedProblem::Mismatch,
            Self::Execution(_)
            | Self::Panicked
            | Self::Transaction { .. }
            | Self::Unread(_)
            | Self::UnreadPostExec(_)
            | Self::PostExec(_)
            | Self::Unexecutable(_)
            | Self::ForeignType { .. } => FeedProblem::Execution,
            Self::Gone(_) => FeedProblem::Reorg,
        }
    }
}
