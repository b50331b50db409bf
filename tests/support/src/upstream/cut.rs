//! Cuts a block into sub-blocks, as its builder would have sent them.

use std::collections::BTreeMap;

use alloy_consensus::Header;
use alloy_eips::eip4895::Withdrawals;
use alloy_primitives::{B64, B256, Bloom, U256, keccak256};
use op_alloy::rpc_types_engine::{
    OpFlashblockPayload, OpFlashblockPayloadBase, OpFlashblockPayloadDelta, OpFlashblockPayloadMetadata,
};

use super::Fixture;

/// The cumulative fields of a block after some of its transactions.
#[derive(Clone, Copy, Debug)]
pub struct Cumulative {
    pub gas_used: u64,
    pub receipts_root: B256,
    pub logs_bloom: Bloom,
}

/// Returns the fields of a block that its first sub-block has.
pub fn base_of(header: &Header) -> OpFlashblockPayloadBase {
    OpFlashblockPayloadBase {
        parent_beacon_block_root: header.parent_beacon_block_root.unwrap_or_default(),
        parent_hash: header.parent_hash,
        fee_recipient: header.beneficiary,
        prev_randao: header.mix_hash,
        block_number: header.number,
        gas_limit: header.gas_limit,
        timestamp: header.timestamp,
        extra_data: header.extra_data.clone(),
        base_fee_per_gas: U256::from(header.base_fee_per_gas.unwrap_or_default()),
    }
}

/// Cuts a block into sub-blocks of `split[index]` transactions. `after(n)` returns the block's fields after its first
/// `n` transactions and is not called for all of them. The metadata has only the block number.
pub fn cut(fixture: &Fixture, split: &[usize], after: impl Fn(usize) -> Cumulative) -> Vec<OpFlashblockPayload> {
    assert_eq!(split.iter().sum::<usize>(), fixture.raw.len(), "the split has all transactions");
    let header = fixture.header();
    let hash: B256 = serde_json::from_value(fixture.block["hash"].clone()).expect("a hash");
    let withdrawals: Withdrawals = serde_json::from_value(fixture.block["withdrawals"].clone()).unwrap_or_default();
    let base = base_of(&header);
    let payload_id = B64::from_slice(&keccak256(hash)[..8]);
    let mut done = 0;
    let mut payloads = Vec::new();
    for (index, count) in split.iter().enumerate() {
        let transactions = fixture.raw[done..done + count].to_vec();
        done += count;
        let is_last = index + 1 == split.len();
        let so_far = match done == fixture.raw.len() {
            true => Cumulative {
                gas_used: header.gas_used,
                receipts_root: header.receipts_root,
                logs_bloom: header.logs_bloom,
            },
            false => after(done),
        };
        // A partial block has a state root and a hash of its own.
        let own = |salt: u8| keccak256([hash.as_slice(), &[salt], &(index as u64).to_be_bytes()].concat());
        let diff = OpFlashblockPayloadDelta {
            state_root: if is_last { header.state_root } else { own(1) },
            receipts_root: so_far.receipts_root,
            logs_bloom: so_far.logs_bloom,
            gas_used: so_far.gas_used,
            block_hash: if is_last { hash } else { own(2) },
            transactions,
            withdrawals: if is_last { withdrawals.to_vec() } else { Vec::new() },
            withdrawals_root: header.withdrawals_root.unwrap_or_default(),
            blob_gas_used: header.blob_gas_used,
        };
        let mut payload = OpFlashblockPayload {
            index: index as u64,
            base: (index == 0).then(|| base.clone()),
            diff,
            metadata: OpFlashblockPayloadMetadata {
                block_number: header.number,
                new_account_balances: BTreeMap::new(),
                receipts: BTreeMap::new(),
            },
            ..Default::default()
        };
        payload.payload_id.0 = payload_id;
        payloads.push(payload);
    }
    payloads
}
