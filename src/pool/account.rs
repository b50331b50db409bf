//! A pooled transaction, and the checks of its sender's account: geth's `ValidateTransactionWithState`.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use alloy_consensus::{Transaction, TxEnvelope, Typed2718, transaction::Recovered};
use alloy_eips::eip2718::EIP4844_TX_TYPE_ID;
use alloy_primitives::{Address, U256};
use revm::state::AccountInfo;

use super::PoolError;
use crate::state::{Lookup, World};

/// A transaction in the pool.
#[derive(Debug)]
pub struct Pooled {
    /// The signed transaction, with its sender.
    pub tx: Arc<Recovered<TxEnvelope>>,
    /// Arrival number. Of two transactions that pay the same, the earlier is mined first.
    pub arrived: u64,
    /// The sender's nonce once the transaction is mined.
    pub(super) next: u64,
    /// Length of the EIP-2718 encoding in bytes.
    pub(super) size: usize,
    /// Maximum cost to the sender, in wei.
    pub(super) cost: U256,
    /// Whether this node signed the transaction. If so, it is never evicted.
    pub own: bool,
    /// Whether the transaction is not on the disk yet. Until then it is neither mined nor visible.
    pub(super) held: AtomicBool,
}

impl From<Recovered<TxEnvelope>> for Pooled {
    /// Converts a transaction that has passed the checks of its form, before the pool is locked, because that takes time.
    fn from(tx: Recovered<TxEnvelope>) -> Self {
        let (next, size, cost) = (nonce_after(&tx), tx.eip2718_encoded_length(), cost_of(&tx));
        Self { tx: Arc::new(tx), arrived: 0, next, size, cost, own: false, held: AtomicBool::new(false) }
    }
}

impl Pooled {
    pub(super) fn is_held(&self) -> bool {
        self.held.load(Relaxed)
    }

    /// Whether the transaction delegates its own sender (EIP-7702), so that it uses more than one nonce.
    pub fn delegates_sender(&self) -> bool {
        self.next > self.tx.nonce() + 1
    }
}

/// Minimum price increase for replacing a blob transaction, in percent, as in geth.
const BLOB_PRICE_BUMP: u32 = 100;

/// The least fees of a transaction, in wei per gas. Zero if it replaces no other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeastFees {
    /// Least maximum fee, or gas price.
    pub max_fee: u128,
    /// Least priority fee.
    pub tip: u128,
}

impl LeastFees {
    /// Returns the least fees of a transaction without blobs that replaces `old`, where a replacement pays `bump` percent more.
    pub(super) fn of_replacement(old: &TxEnvelope, bump: u32) -> Self {
        let bump = if old.ty() == EIP4844_TX_TYPE_ID { bump.max(BLOB_PRICE_BUMP) } else { bump };
        let least = |fee: u128| raised(fee, bump).saturating_to::<u128>().max(fee.saturating_add(1));
        Self { max_fee: least(old.max_fee_per_gas()), tip: least(old.priority_fee_or_price()) }
    }
}

/// Returns `fee` and `bump` percent of it, rounded down as geth does.
fn raised(fee: u128, bump: u32) -> U256 {
    U256::from(fee) * U256::from(100 + u64::from(bump)) / U256::from(100)
}

/// Returns the sender's nonce after a transaction. Authorizations of the sender's own account raise it further
/// (EIP-7702).
fn nonce_after(tx: &Recovered<TxEnvelope>) -> u64 {
    let mut next = tx.nonce() + 1;
    for authorization in tx.authorization_list().unwrap_or_default() {
        let fits = authorization.nonce() == next
            && (authorization.chain_id().is_zero() || tx.chain_id().map(U256::from) == Some(*authorization.chain_id()));
        if fits && authorization.recover_authority().is_ok_and(|authority| authority == tx.signer()) {
            next += 1;
        }
    }
    next
}

/// Returns the maximum cost of a transaction to its sender: gas, blob gas and value, in wei.
fn cost_of(tx: &TxEnvelope) -> U256 {
    let gas = U256::from(tx.gas_limit()).saturating_mul(U256::from(tx.max_fee_per_gas()));
    let blobs = U256::from(tx.blob_gas_used().unwrap_or_default())
        .saturating_mul(U256::from(tx.max_fee_per_blob_gas().unwrap_or_default()));
    gas.saturating_add(blobs).saturating_add(tx.value())
}

pub(super) fn check_account(
    tx: &Recovered<TxEnvelope>,
    account: Option<AccountInfo>,
    cost: U256,
    queued: U256,
    replaced: Option<&Pooled>,
    contracts_may_send: bool,
) -> Result<(), PoolError> {
    let (next, balance) = account.as_ref().map_or((0, U256::ZERO), |account| (account.nonce, account.balance));
    if tx.nonce() < next {
        return Err(PoolError::NonceTooLow { next, nonce: tx.nonce() });
    }
    if let Some(AccountInfo { code_hash, code: Some(code), .. }) = account
        && !contracts_may_send
        && !code.is_empty()
        && !code.is_eip7702()
    {
        return Err(PoolError::SenderNotEoa { address: tx.signer(), code_hash });
    }
    if balance < cost {
        return Err(PoolError::Funds { balance, cost });
    }
    // Of a replacement, only the cost that it adds counts.
    let more = replaced.map_or(cost, |replaced| cost.saturating_sub(replaced.cost));
    if balance < queued.saturating_add(more) {
        return Err(PoolError::QueuedFunds { balance, queued, cost: more });
    }
    Ok(())
}

/// Checks that each fee of a replacement is at least `bump` percent higher than the same fee of the replaced
/// transaction.
pub(super) fn check_replacement(new: &TxEnvelope, old: &TxEnvelope, bump: u32) -> Result<(), PoolError> {
    let blobs = [new, old].iter().any(|tx| tx.ty() == EIP4844_TX_TYPE_ID);
    let bump = if blobs { bump.max(BLOB_PRICE_BUMP) } else { bump };
    let mut fees = vec![
        ("gas fee cap", new.max_fee_per_gas(), old.max_fee_per_gas()),
        ("gas tip cap", new.priority_fee_or_price(), old.priority_fee_or_price()),
    ];
    if let (Some(new), Some(old)) = (new.max_fee_per_blob_gas(), old.max_fee_per_blob_gas()) {
        fees.push(("blob gas fee cap", new, old));
    }
    for (what, new, old) in fees {
        if new <= old || U256::from(new) < raised(old, bump) {
            return Err(PoolError::ReplacementUnderpriced { what, new, old, bump });
        }
    }
    Ok(())
}

/// Returns the next nonce of an account, 0 if it is not known.
pub(super) fn nonce_of(world: &World, address: &Address) -> u64 {
    known_nonce(world, address).unwrap_or_default()
}

/// Returns the next nonce of an account, or `None` if it is in unknown state of an upstream.
pub(super) fn known_nonce(world: &World, address: &Address) -> Option<u64> {
    if let Some(account) = world.account(address) {
        return Some(account.nonce);
    }
    match world.look_up(address) {
        Lookup::Known(info) => Some(info.map_or(0, |info| info.nonce)),
        Lookup::Unknown => None,
    }
}
