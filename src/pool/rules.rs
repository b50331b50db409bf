//! The checks of a transaction that do not depend on accounts: geth's `ValidateTransaction`, in its order.

use alloy_consensus::{
    Header, Transaction, TxEnvelope, Typed2718,
    crypto::SECP256K1N_HALF,
    transaction::{Recovered, SignerRecoverable},
};
use alloy_eips::{
    eip2718::{EIP1559_TX_TYPE_ID, EIP4844_TX_TYPE_ID, EIP7702_TX_TYPE_ID, LEGACY_TX_TYPE_ID},
    eip4844::{BYTES_PER_BLOB, kzg_to_versioned_hash},
    eip7594::{BlobTransactionSidecarVariant, CELLS_PER_EXT_BLOB},
    eip7840::BlobParams,
};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::Address;
use revm::primitives::hardfork::SpecId;

use super::{PoolError, SentTransaction};
use crate::{
    chain::{ChainSpec, Family, initial_gas},
    engine::kzg_settings,
};

/// Maximum length of a transaction without blobs, in bytes: geth's four slots of 32 KiB.
const MAX_SIZE: usize = 4 * 32 * 1024;
/// Maximum length of a blob transaction with its sidecar, in bytes, as in geth.
const MAX_BLOB_SIZE: usize = 1024 * 1024;

/// Checks a transaction for a block like `head`, and recovers its sender if it is not known. Verifies blob proofs too.
pub fn check(
    spec: &ChainSpec,
    head: &Header,
    min_tip: u128,
    sent: SentTransaction,
) -> Result<Recovered<TxEnvelope>, PoolError> {
    let SentTransaction { tx, sidecar, size, signer } = sent;
    let blobs = spec.blob_params(head.timestamp);
    if let (Some(hashes), Some(params)) = (tx.blob_versioned_hashes(), &blobs) {
        let limit = params.max_blobs_per_tx.min(params.max_blob_count);
        if hashes.len() as u64 > limit {
            return Err(PoolError::TooManyBlobs { count: hashes.len(), limit });
        }
    }
    let limit = if tx.is_eip4844() { MAX_BLOB_SIZE } else { MAX_SIZE };
    if size > limit {
        return Err(PoolError::Oversized { size, limit });
    }
    check_type(spec, head, tx.ty())?;
    check_gas_limit(spec, head, &tx)?;
    if tx.max_priority_fee_per_gas().is_some_and(|tip| tx.max_fee_per_gas() < tip) {
        return Err(PoolError::TipAboveFee);
    }
    let sender = signer.map_or_else(|| recover(spec, &tx), Ok)?;
    if tx.nonce() == u64::MAX {
        return Err(PoolError::NonceMax);
    }
    check_intrinsic_gas(spec, head, &tx, sender)?;
    let tip = tx.priority_fee_or_price();
    if tip < min_tip {
        return Err(PoolError::TipTooLow { tip, needed: min_tip });
    }
    if tx.authorization_list().is_some_and(<[_]>::is_empty) {
        return Err(PoolError::NoAuthorizations);
    }
    if let (Some(hashes), Some(params)) = (tx.blob_versioned_hashes(), blobs) {
        let fee = tx.max_fee_per_blob_gas().unwrap_or_default();
        let osaka = spec.is_osaka_active_at_timestamp(head.timestamp);
        check_blobs(hashes, fee, sidecar, params, osaka)?;
    }
    Ok(Recovered::new_unchecked(tx, sender))
}

fn check_type(spec: &ChainSpec, head: &Header, kind: u8) -> Result<(), PoolError> {
    let needs = match kind {
        LEGACY_TX_TYPE_ID => return Ok(()),
        _ if !spec.is_berlin_active_at_block(head.number) => "Berlin",
        EIP1559_TX_TYPE_ID if !spec.is_london_active_at_block(head.number) => "London",
        EIP4844_TX_TYPE_ID if !spec.is_cancun_active_at_timestamp(head.timestamp) => "Cancun",
        EIP4844_TX_TYPE_ID if spec.family() == Family::OpStack => return Err(PoolError::UnknownType(kind)),
        EIP7702_TX_TYPE_ID if !spec.is_prague_active_at_timestamp(head.timestamp) => "Prague",
        _ => return Ok(()),
    };
    Err(PoolError::TypeNotYet { kind, fork: needs })
}

fn check_gas_limit(spec: &ChainSpec, head: &Header, tx: &TxEnvelope) -> Result<(), PoolError> {
    let (gas, size) = (tx.gas_limit(), tx.input().len());
    let limit = spec.most_init_code();
    if tx.is_create() && size > limit && spec.is_shanghai_active_at_timestamp(head.timestamp) {
        return Err(PoolError::InitCode { size, limit });
    }
    let cap = spec.most_tx_gas(head.timestamp);
    if gas > cap {
        return Err(PoolError::GasCap { cap, gas });
    }
    if gas > head.gas_limit {
        return Err(PoolError::BlockGas);
    }
    Ok(())
}

fn recover(spec: &ChainSpec, tx: &TxEnvelope) -> Result<Address, PoolError> {
    let want = spec.chain_id();
    if let Some(have) = tx.chain_id().filter(|have| *have != want) {
        return Err(PoolError::ChainId { have, want });
    }
    tx.recover_signer().map_err(|_| {
        let signature = tx.signature();
        let zero = signature.r().is_zero() || signature.s().is_zero();
        PoolError::Signature(if zero || signature.s() > SECP256K1N_HALF {
            "invalid transaction v, r, s values"
        } else {
            "recovery failed"
        })
    })
}

fn check_intrinsic_gas(spec: &ChainSpec, head: &Header, tx: &TxEnvelope, sender: Address) -> Result<(), PoolError> {
    let gas = tx.gas_limit();
    // geth's pool counts by the rules of Homestead even before that fork.
    let fork = spec.evm_fork(head).max(SpecId::HOMESTEAD);
    let needed = initial_gas(fork, sender, tx);
    if gas < needed.initial_total_gas() {
        return Err(PoolError::IntrinsicGas { gas, needed: needed.initial_total_gas() });
    }
    if gas < needed.floor_gas() {
        return Err(PoolError::FloorGas { gas, needed: needed.floor_gas() });
    }
    Ok(())
}

/// Checks a blob transaction and its sidecar by EIP-4844, in the order of geth's `validateBlobTx`.
///
/// From Osaka on, the network form has cell proofs (EIP-7594). geth still accepts the older form and converts it. The
/// blobs are not needed later, so the older proofs are checked here, which is as good and a hundred times faster.
fn check_blobs(
    hashes: &[alloy_primitives::B256],
    fee: u128,
    sidecar: Option<BlobTransactionSidecarVariant>,
    params: BlobParams,
    osaka: bool,
) -> Result<(), PoolError> {
    let sidecar = sidecar.ok_or(PoolError::MissingSidecar)?;
    if sidecar.is_eip7594() && !osaka {
        return Err(PoolError::SidecarVersion { want: 0, got: 1 });
    }
    if fee < params.min_blob_fee {
        return Err(PoolError::BlobFeeTooLow { fee, needed: params.min_blob_fee });
    }
    if hashes.is_empty() {
        return Err(PoolError::NoBlobs);
    }
    let parts = [("blobs", sidecar.blobs().len()), ("blob commitments", sidecar.commitments().len())];
    if let Some((what, count)) = parts.into_iter().find(|(_, count)| *count != hashes.len()) {
        return Err(PoolError::SidecarCount { what, count, hashes: hashes.len() });
    }
    for (index, (given, commitment)) in hashes.iter().zip(sidecar.commitments()).enumerate() {
        let computed = kzg_to_versioned_hash(commitment.as_slice());
        if computed != *given {
            return Err(PoolError::BlobHash { index, computed, given: *given });
        }
    }
    let (count, expected) = match &sidecar {
        BlobTransactionSidecarVariant::Eip4844(plain) => (plain.proofs.len(), hashes.len()),
        BlobTransactionSidecarVariant::Eip7594(cells) => (cells.cell_proofs.len(), hashes.len() * CELLS_PER_EXT_BLOB),
    };
    if count != expected {
        return Err(PoolError::ProofCount { count, expected });
    }
    sidecar.validate(hashes, kzg_settings()).map_err(|error| PoolError::Kzg(error.to_string()))
}

const _: () = assert!(MAX_BLOB_SIZE > 6 * BYTES_PER_BLOB, "a transaction may have six blobs from Osaka on");
