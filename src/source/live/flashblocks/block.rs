//! A block that sub-blocks have announced: its content so far, and its possible hash.

use std::{
    hash::{DefaultHasher, Hasher},
    sync::Arc,
};

use alloy_primitives::{B256, keccak256};

use super::decode::{Flashblock, PayloadId};
use crate::ledger::FeedProblem;

/// Maximum sub-blocks of one block: at 200 ms each, more than three minutes.
pub(super) const MAX_SUB_BLOCKS: usize = 1024;
/// The fields of a canonical block that the rules need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanonicalBlock {
    /// The block's number.
    pub number: u64,
    /// The block's hash.
    pub hash: B256,
    /// The hash of its parent.
    pub parent_hash: B256,
    /// The root of the receipts.
    pub receipts_root: B256,
    /// The hashes of the transactions, except the post-execution transaction, which is not in any sub-block's list.
    pub transactions: Vec<B256>,
    /// The hash of the post-execution transaction, if the block has one.
    pub post_exec: Option<B256>,
}

/// A block of the chain ahead.
#[derive(Debug)]
pub(super) struct Ahead {
    pub(super) number: u64,
    pub(super) parent: B256,
    pub(super) id: PayloadId,
    /// A digest of each sub-block, to recognize duplicates.
    pub(super) digests: Vec<u64>,
    /// The hashes of the transactions so far.
    pub(super) transactions: Vec<B256>,
    /// The hash of the post-execution transaction after its last sub-block, if it has one.
    pub(super) post_exec: Option<B256>,
    pub(super) receipts_root: B256,
    /// The hash of the block after its last sub-block; `None` if the builder did not compute it.
    pub(super) hash: Option<B256>,
    /// The sub-blocks, while they are held.
    pub(super) held: Vec<Arc<Flashblock>>,
    /// The newest sub-block, with the builder's latest values for the block.
    pub(super) newest: Arc<Flashblock>,
}

impl Ahead {
    /// Creates a block from its index 0.
    pub(super) fn new(flashblock: &Arc<Flashblock>, number: u64, parent: B256) -> Self {
        let mut block = Self {
            number,
            parent,
            id: flashblock.payload_id,
            digests: Vec::new(),
            transactions: Vec::new(),
            post_exec: None,
            receipts_root: B256::ZERO,
            hash: None,
            held: Vec::new(),
            newest: flashblock.clone(),
        };
        block.add(flashblock);
        block
    }

    pub(super) fn add(&mut self, flashblock: &Arc<Flashblock>) {
        self.newest = flashblock.clone();
        let diff = &flashblock.diff;
        self.digests.push(digest(flashblock));
        self.transactions.extend(diff.transactions.iter().map(keccak256));
        self.post_exec = post_exec_hash(flashblock);
        self.receipts_root = diff.receipts_root;
        // Without a state root, the block hash is invalid, regardless of the field.
        self.hash = (!diff.state_root.is_zero() && !diff.block_hash.is_zero()).then_some(diff.block_hash);
    }

    /// Returns whether it has this very sub-block.
    pub(super) fn has(&self, flashblock: &Flashblock) -> bool {
        let at = usize::try_from(flashblock.index).unwrap_or(usize::MAX);
        self.digests.get(at).is_some_and(|known| *known == digest(flashblock))
    }

    /// Returns whether this is its next sub-block.
    pub(super) fn check_next(&self, flashblock: &Flashblock) -> Result<(), FeedProblem> {
        let due = self.digests.len();
        let other_number = flashblock.block_number().is_some_and(|number| number != self.number);
        let other_parent = flashblock.base.as_ref().is_some_and(|base| base.parent_hash != self.parent);
        if due >= MAX_SUB_BLOCKS || other_number || other_parent {
            return Err(FeedProblem::OutOfOrder);
        }
        match flashblock.index.cmp(&(due as u64)) {
            std::cmp::Ordering::Less => Err(FeedProblem::OutOfOrder),
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => Err(FeedProblem::Gap),
        }
    }

    /// Returns whether it may have this hash, now that a block was begun on that.
    pub(super) fn may_be(&self, hash: B256) -> bool {
        self.hash.is_none_or(|own| own == hash)
    }

    /// Returns whether it has become this canonical block.
    pub(super) fn is(&self, block: &CanonicalBlock) -> bool {
        // A builder that leaves the root out sends zero. Whether it covers the receipt of a post-execution transaction is up to the
        // builder.
        let has_root = !self.receipts_root.is_zero() && self.post_exec.is_none();
        let same_receipts = !has_root || self.receipts_root == block.receipts_root;
        let same_content =
            same_receipts && self.transactions == block.transactions && self.post_exec == block.post_exec;
        self.hash == Some(block.hash) || (self.parent == block.parent_hash && same_content)
    }
}

/// Returns the hash of the post-execution transaction of the block so far. One that cannot be read is found when the sub-block is
/// executed.
fn post_exec_hash(flashblock: &Flashblock) -> Option<B256> {
    flashblock.post_exec.as_ref().ok()?.as_ref().map(|tx| tx.hash())
}

/// Returns a digest of the sub-block's content.
fn digest(flashblock: &Flashblock) -> u64 {
    let diff = &flashblock.diff;
    let mut hasher = DefaultHasher::new();
    if let Some(base) = &flashblock.base {
        hasher.write(base.parent_hash.as_slice());
        hasher.write_u64(base.block_number);
        hasher.write_u64(base.timestamp);
        hasher.write_u64(base.gas_limit);
        hasher.write(base.parent_beacon_block_root.as_slice());
        hasher.write(base.fee_recipient.as_slice());
        hasher.write(base.prev_randao.as_slice());
        hasher.write(&base.extra_data);
        hasher.write(&base.base_fee_per_gas.to_be_bytes::<32>());
    }
    hasher.write(diff.state_root.as_slice());
    hasher.write(diff.receipts_root.as_slice());
    hasher.write(diff.block_hash.as_slice());
    hasher.write(diff.withdrawals_root.as_slice());
    hasher.write(diff.logs_bloom.as_slice());
    hasher.write_u64(diff.gas_used);
    hasher.write_u64(diff.blob_gas_used.unwrap_or(u64::MAX));
    hasher.write(post_exec_hash(flashblock).as_ref().map_or(&[], B256::as_slice));
    for transaction in &diff.transactions {
        hasher.write_usize(transaction.len());
        hasher.write(transaction);
    }
    hasher.finish()
}
