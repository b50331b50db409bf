//! Selectors of the state that a request runs on, and the errors for those that select nothing.

use alloy_eips::BlockHashOrNumber;
use alloy_primitives::B256;

use super::SnapshotId;

/// A selector of the state that a request runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Selector {
    /// The newest sealed block.
    Latest,
    /// The newest snapshot.
    Pending,
    /// The newest safe block.
    Safe,
    /// The newest final block.
    Finalized,
    /// The oldest block: genesis.
    Earliest,
    /// A sealed block by its number, or the block being built.
    Number(u64),
    /// A sealed block by its hash.
    Hash(B256),
    /// A snapshot by its id, exactly as `pending` was when it was the newest.
    Snapshot(SnapshotId),
    /// The state in the middle of a block: after its opening system calls and `count` of its transactions, before its withdrawals and
    /// closing system calls. No chain retains it: it is computed for the request.
    Within {
        /// The block.
        block: BlockHashOrNumber,
        /// The number of transactions.
        count: u64,
    },
}

impl From<BlockHashOrNumber> for Selector {
    fn from(block: BlockHashOrNumber) -> Self {
        match block {
            BlockHashOrNumber::Hash(hash) => Self::Hash(hash),
            BlockHashOrNumber::Number(number) => Self::Number(number),
        }
    }
}

/// The reason why a selector selects no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownBlock {
    /// The chain has not reached the block.
    #[error("header not found: block {number} is after the newest, {newest}")]
    Future { number: u64, newest: u64 },
    /// The block exists, but its state is no longer retained.
    #[error("state of block {number} is not retained: the oldest retained is {oldest}")]
    Pruned { number: u64, oldest: u64 },
    /// The block was pruned: its header is retained, its body is not. The text is geth's.
    #[error("pruned history unavailable")]
    History { number: u64, oldest: u64 },
    /// Only the header of the block is known here.
    #[error("block {number} is known only by its header")]
    Bare { number: u64 },
    /// Not all fields of the block are known here, so that it cannot be encoded.
    #[error("block {number} is not known in all its fields")]
    Partial { number: u64 },
    /// The upstream has not named the block of this tag.
    #[error("header not found: the upstream names no {tag} block")]
    Untagged { tag: &'static str },
    /// No retained block has this hash.
    #[error("header not found: no block with hash {hash}")]
    Hash { hash: B256 },
    /// Nothing of the block is known here, or only its header, and the request needs its transactions. The text is
    /// geth's.
    #[error("block {}{block} not found", if block.as_number().is_some() { "#" } else { "" })]
    Contents { block: BlockHashOrNumber },
    /// No retained block has this transaction. The text is geth's.
    #[error("transaction not found")]
    Transaction { hash: B256 },
    /// A state in the middle of a block was named where only blocks are allowed.
    #[error("transactionIndex: names the state within a block: expected a block")]
    Within,
    /// No retained snapshot has this id.
    #[error("snapshot {id:#x} is not retained: those from {oldest:#x} to {newest:#x} are")]
    Snapshot { id: u64, oldest: u64, newest: u64 },
}
