//! The header of a block at its start, and the totals that complete it.

use alloy_consensus::{EMPTY_OMMER_ROOT_HASH, EMPTY_ROOT_HASH, Header, transaction::Recovered};
use alloy_eips::{eip7685::EMPTY_REQUESTS_HASH, eip7928::EMPTY_BLOCK_ACCESS_LIST_HASH};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{Address, B256, Bloom, Sealed};

use super::{ChainReceipt, ChainSpec, ChainTx, receipts_root_and_bloom, transactions_root};

/// The header fields that a block's producer chooses.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    /// Unix time, in seconds.
    pub timestamp: u64,
    /// The account that receives the block's fees.
    pub fee_recipient: Address,
    /// The beacon chain's randomness (EIP-4399).
    pub prev_randao: B256,
    /// The root of the parent beacon block (EIP-4788). Ignored before Cancun.
    pub beacon_root: B256,
    /// The most gas that the block may use.
    pub gas_limit: u64,
}

impl ChainSpec {
    /// Returns the header of block `number` on `parent` before any transaction has run. Fields that follow from the
    /// transactions, withdrawals and requests have their values in an empty block, and the state root is zero. The block
    /// has the slot after its parent's, or none if the parent has none (EIP-7843).
    pub fn next_header(&self, parent: &Sealed<Header>, number: u64, attributes: Attributes) -> Header {
        let timestamp = attributes.timestamp;
        let cancun = self.is_cancun_active_at_timestamp(timestamp);
        let amsterdam = self.is_amsterdam_active_at_timestamp(timestamp);
        Header {
            parent_hash: parent.hash(),
            ommers_hash: EMPTY_OMMER_ROOT_HASH,
            beneficiary: attributes.fee_recipient,
            state_root: B256::ZERO,
            number,
            gas_limit: attributes.gas_limit,
            timestamp,
            mix_hash: attributes.prev_randao,
            extra_data: self.next_extra_data(parent, timestamp),
            base_fee_per_gas: self.next_base_fee(parent, number, timestamp),
            excess_blob_gas: self.next_excess_blob_gas(parent, timestamp),
            blob_gas_used: cancun.then_some(0),
            parent_beacon_block_root: cancun.then_some(attributes.beacon_root),
            withdrawals_root: self.is_shanghai_active_at_timestamp(timestamp).then_some(EMPTY_ROOT_HASH),
            requests_hash: self.is_prague_active_at_timestamp(timestamp).then_some(EMPTY_REQUESTS_HASH),
            block_access_list_hash: amsterdam.then_some(EMPTY_BLOCK_ACCESS_LIST_HASH),
            slot_number: parent.slot_number.filter(|_| amsterdam).map(|slot| slot.saturating_add(1)),
            ..Header::default()
        }
    }
}

/// Returns the gas limit of the block after one with gas limit `parent`, on the way to `wanted`: it changes by less than
/// a 1024th (Yellow Paper, equation 47).
pub fn gas_limit_towards(wanted: u64, parent: u64) -> u64 {
    let step = (parent / 1024).saturating_sub(1);
    wanted.clamp(parent.saturating_sub(step), parent.saturating_add(step))
}

/// The header fields that follow from the transactions of a block.
#[derive(Clone, Copy, Debug)]
pub struct BlockTotals {
    /// Gas that the transactions used.
    pub gas_used: u64,
    /// Blob gas that the transactions used.
    pub blob_gas_used: u64,
    /// The root of the transaction trie.
    pub transactions_root: B256,
    /// The root of the receipt trie.
    pub receipts_root: B256,
    /// The union of the receipts' blooms.
    pub logs_bloom: Bloom,
}

impl BlockTotals {
    /// Returns the totals, with the roots and the bloom computed from the transactions and their receipts.
    pub fn of<'a>(
        transactions: impl IntoIterator<Item = &'a Recovered<ChainTx>>,
        receipts: impl IntoIterator<Item = &'a ChainReceipt>,
        gas_used: u64,
        blob_gas_used: u64,
    ) -> Self {
        let (receipts_root, logs_bloom) = receipts_root_and_bloom(receipts);
        let transactions_root = transactions_root(transactions);
        Self { gas_used, blob_gas_used, transactions_root, receipts_root, logs_bloom }
    }

    /// Writes the totals into the block's `header`. Blob gas is written only if the header has the field.
    pub fn close(&self, header: &mut Header) {
        header.gas_used = self.gas_used;
        header.blob_gas_used = header.blob_gas_used.map(|_| self.blob_gas_used);
        header.transactions_root = self.transactions_root;
        header.receipts_root = self.receipts_root;
        header.logs_bloom = self.logs_bloom;
    }
}
