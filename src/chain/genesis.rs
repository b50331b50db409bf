//! The genesis block, from a geth-format genesis file.

use alloy_consensus::{EMPTY_OMMER_ROOT_HASH, EMPTY_ROOT_HASH, Header};
use alloy_eips::{
    eip1559::INITIAL_BASE_FEE, eip4895::Withdrawals, eip7685::EMPTY_REQUESTS_HASH,
    eip7928::EMPTY_BLOCK_ACCESS_LIST_HASH,
};
use alloy_genesis::Genesis;
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{B64, B256};

use super::{BlockBody, ChainSpec, SealedBlock};

/// Returns the genesis block over `state_root`, with the header fields of the forks that are active in it.
pub fn genesis_block(genesis: &Genesis, spec: &ChainSpec, state_root: B256) -> SealedBlock {
    let (number, time) = (genesis.number.unwrap_or_default(), genesis.timestamp);
    let cancun = spec.is_cancun_active_at_timestamp(time);
    let amsterdam = spec.is_amsterdam_active_at_timestamp(time);
    let base_fee = genesis.base_fee_per_gas.and_then(|fee| u64::try_from(fee).ok()).unwrap_or(INITIAL_BASE_FEE);
    let withdrawals = spec.is_shanghai_active_at_timestamp(time).then(Withdrawals::default);
    let header = Header {
        parent_hash: genesis.parent_hash.unwrap_or_default(),
        number,
        timestamp: time,
        nonce: B64::from(genesis.nonce),
        extra_data: genesis.extra_data.clone(),
        gas_limit: genesis.gas_limit,
        difficulty: genesis.difficulty,
        mix_hash: genesis.mix_hash,
        beneficiary: genesis.coinbase,
        state_root,
        transactions_root: EMPTY_ROOT_HASH,
        receipts_root: EMPTY_ROOT_HASH,
        ommers_hash: EMPTY_OMMER_ROOT_HASH,
        base_fee_per_gas: spec.is_london_active_at_block(number).then_some(base_fee),
        withdrawals_root: spec.is_shanghai_active_at_timestamp(time).then_some(EMPTY_ROOT_HASH),
        parent_beacon_block_root: cancun.then_some(B256::ZERO),
        blob_gas_used: cancun.then_some(genesis.blob_gas_used.unwrap_or_default()),
        excess_blob_gas: cancun.then_some(genesis.excess_blob_gas.unwrap_or_default()),
        requests_hash: spec.is_prague_active_at_timestamp(time).then_some(EMPTY_REQUESTS_HASH),
        block_access_list_hash: amsterdam.then_some(EMPTY_BLOCK_ACCESS_LIST_HASH),
        slot_number: amsterdam.then_some(genesis.slot_number.unwrap_or_default()),
        ..Header::default()
    };
    SealedBlock::new(header, BlockBody { withdrawals, ..BlockBody::default() })
}
