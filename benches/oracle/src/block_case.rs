//! The format of a block case: a block of Lagoon on a state, and its outcome. One JSON object a line.
//!
//! The file names no type of any revm, as `case.rs`, so that the project can read the format by this same file.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, Bloom, Bytes, Log};
use serde::{Deserialize, Serialize};

use super::case::{Block, Changed, PostAccount, PreAccount, Status, diff};

/// A block, on a state.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockCase {
    /// The kind of the block, and the number that gives it again; or the name of an edge.
    pub name: String,
    pub chain_id: u64,
    pub fork: BlockFork,
    pub parent: Parent,
    pub block: Block,
    /// The extra data of the block's header, as Jovian encodes it.
    pub extra_data: Bytes,
    /// The whole state before the block.
    pub pre: BTreeMap<Address, PreAccount>,
    /// All transactions of the block in order, post-execution transactions included.
    pub transactions: Vec<BlockTransaction>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<BlockOutcome>,
}

/// The fork of a block.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum BlockFork {
    Karst,
    /// Karst's EVM, and post-execution transactions.
    Lagoon,
}

/// The fields of the parent's header from which the block's base fee follows. The parent has the fork of the block.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Parent {
    pub number: u64,
    pub timestamp: u64,
    pub gas_limit: u64,
    pub gas_used: u64,
    /// The DA footprint, from Jovian on.
    pub blob_gas_used: u64,
    pub base_fee: u64,
    pub extra_data: Bytes,
}

/// A transaction of a block.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct BlockTransaction {
    /// The sender, whatever the signature in `tx` says: it may be a vault. A post-execution transaction has the zero
    /// address.
    pub sender: Address,
    /// The transaction as EIP-2718 encodes it.
    pub tx: Bytes,
}

/// The outcome of a block.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum BlockOutcome {
    Invalid(InvalidBlock),
    Valid(Box<ValidBlock>),
}

/// The reasons why a block is invalid.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InvalidBlock {
    /// All rules that the block violates, in the order of [`BlockRule`]. A client may name any of them, because no order of
    /// the checks is specified. The rules of transactions are checked if the block violates none of those before.
    pub rules: Vec<BlockRule>,
    /// The index of the transaction whose execution or settlement fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transaction: Option<usize>,
    /// The class of the transaction's error, as in [`Outcome::Rejected`](super::case::Outcome::Rejected).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A rule that an invalid block violates.
///
/// Sources: [post-exec.md], sections "Encoding" and "Block-Level Structural Rules"; [sdm.md], sections "Validity Rules",
/// "Canonical Gas" and "Application Rules".
///
/// [post-exec.md]: https://github.com/ethereum-optimism/specs/blob/main/specs/protocol/lagoon/post-exec.md
/// [sdm.md]: https://github.com/ethereum-optimism/specs/blob/main/specs/protocol/lagoon/sdm.md
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub enum BlockRule {
    /// Before Lagoon, a block has no post-execution transaction.
    BeforeLagoon,
    /// A block has at most one post-execution transaction.
    MoreThanOne,
    /// The post-execution transaction is the last of its block.
    NotLast,
    /// The payload is one list in canonical RLP: two integers and a list of lists of two integers of at most 64 bits.
    Malformed,
    /// The payload and its entries have no further fields.
    ExtraFields,
    /// The version of the payload is 1.
    UnknownVersion,
    /// The number in the payload is the block's.
    WrongBlockNumber,
    /// The payload has an entry.
    NoEntries,
    /// The indices strictly increase.
    UnorderedIndices,
    /// A refund is above zero.
    ZeroRefund,
    /// No index is that of a deposit.
    IndexOfDeposit,
    /// No index is that of a post-execution transaction.
    IndexOfPostExec,
    /// Each index is below the number of transactions.
    IndexOutOfRange,
    /// A refund is at most the gas that the EVM reports.
    RefundAboveGas,
    /// No account pays more for a refund than it has. If the refund is not above the gas, each has just received as much.
    DebitBelowZero,
    /// Each transaction is valid, by the gas and the DA footprint that the block still has, too.
    InvalidTransaction,
}

/// The result of a valid block.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ValidBlock {
    /// The rules by which op-revm itself would have had another outcome. `README.md` lists them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// The gas of the block after refunds.
    pub gas_used: u64,
    /// The DA footprint of the block.
    pub blob_gas_used: u64,
    pub receipts_root: B256,
    pub logs_bloom: Bloom,
    /// The base fee of the block after this one.
    pub next_base_fee: u64,
    /// One for each transaction.
    pub transactions: Vec<ExecutedTransaction>,
    /// Each account that differs from the state before; `None` if it exists no longer.
    pub post: BTreeMap<Address, Option<PostAccount>>,
}

/// The result of a transaction of a valid block.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecutedTransaction {
    pub status: Status,
    /// The reason of a halt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The gas that the EVM reports, of which the EVM's own refund is subtracted. 0 for a post-execution transaction.
    pub evm_gas: u64,
    /// The refund of the payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_gas_refund: Option<u64>,
    /// `evm_gas` without `op_gas_refund`.
    pub gas_used: u64,
    /// The sum of `gas_used` so far.
    pub cumulative_gas_used: u64,
    /// The part of the block's DA footprint. 0 for a deposit and for a post-execution transaction.
    pub da_footprint: u64,
    #[serde(default, skip_serializing_if = "<[u8]>::is_empty")]
    pub output: Bytes,
    /// The address of the contract that the transaction itself created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Address>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logs: Vec<Log>,
    /// The nonce in the receipt of a deposit: the sender's before the transaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deposit_nonce: Option<u64>,
    /// The version in the receipt of a deposit, which is 1 from Canyon on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deposit_receipt_version: Option<u64>,
}

impl BlockCase {
    /// Returns the accounts that differ from the state before, with the slots that differ.
    pub fn diff(&self, changes: impl Iterator<Item = (Address, Changed)>) -> BTreeMap<Address, Option<PostAccount>> {
        diff(&self.pre, changes)
    }
}
