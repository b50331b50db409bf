//! The reasons why an answer is not a block.

use alloy_primitives::B256;

/// The reason why an upstream's answer is not the block that it claims to be.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// A field of the block is malformed.
    #[error("{field}: {problem}")]
    Field { field: String, problem: String },
    /// The block has the hashes of its transactions instead of the transactions.
    #[error("transactions: expected whole transactions, got hashes")]
    Hashes,
    /// The signature of the transaction with this index is invalid.
    #[error("transactions[{0}]: the signature is not valid")]
    Signature(usize),
    /// The header does not hash to the hash of the block.
    #[error("the header of block {number} hashes to {computed}, but the upstream gives the hash {announced}")]
    Hash { number: u64, computed: B256, announced: B256 },
    /// The transactions do not have the root in the header.
    #[error("the transactions of block {number} have the root {computed}, but its header has {announced}")]
    Transactions { number: u64, computed: B256, announced: B256 },
    /// The withdrawals do not have the root in the header.
    #[error("the withdrawals of block {number} do not have the root in its header")]
    Withdrawals { number: u64 },
}
