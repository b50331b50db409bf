//! How a request names the state that it runs on, and what is told where nothing goes by that name.

use alloy_primitives::B256;

use super::SnapshotId;

/// Names the state that a request runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The newest sealed block.
    Latest,
    /// The newest snapshot.
    Pending,
    /// The newest block that is safe.
    Safe,
    /// The newest final block.
    Finalized,
    /// The oldest block: genesis.
    Earliest,
    /// A sealed block by its number, or the one being built.
    Number(u64),
    /// A sealed block by its hash.
    Hash(B256),
    /// A snapshot by its number, exactly as `pending` was when it was the newest.
    Snapshot(SnapshotId),
}

impl Selector {
    /// The tag, where it is one.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Latest => "latest",
            Self::Pending => "pending",
            Self::Safe => "safe",
            Self::Finalized => "finalized",
            Self::Earliest => "earliest",
            Self::Number(_) | Self::Hash(_) | Self::Snapshot(_) => "",
        }
    }
}

/// A selector that names nothing that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownBlock {
    /// The chain has not come so far.
    #[error("header not found: block {number} is past the newest, {newest}")]
    Future {
        /// What was asked for.
        number: u64,
        /// The newest block.
        newest: u64,
    },
    /// The block exists, its state is no longer kept.
    #[error("state of block {number} is not kept: the oldest kept is {oldest}")]
    Pruned {
        /// What was asked for.
        number: u64,
        /// The oldest block with state.
        oldest: u64,
    },
    /// The block was pruned: its header is kept, and what is in it is not. The text is geth's.
    #[error("pruned history unavailable")]
    History {
        /// What was asked for.
        number: u64,
        /// The oldest block after genesis that is kept.
        oldest: u64,
    },
    /// Only the header of the block is known here.
    #[error("block {number} is known by its header alone")]
    Bare {
        /// Its number.
        number: u64,
    },
    /// The upstream has not said which block a tag is.
    #[error("header not found: the upstream names no {tag} block")]
    Untagged {
        /// What was asked for.
        tag: &'static str,
    },
    /// No block with that hash is kept.
    #[error("header not found: no block with hash {hash}")]
    Hash {
        /// What was asked for.
        hash: B256,
    },
    /// No such snapshot is kept.
    #[error("snapshot {id:#x} is not kept: those from {oldest:#x} to {newest:#x} are")]
    Snapshot {
        /// What was asked for.
        id: u64,
        /// The oldest kept.
        oldest: u64,
        /// The newest.
        newest: u64,
    },
}
