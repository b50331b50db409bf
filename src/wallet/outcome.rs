//! The outcomes of the wallet's transactions on an upstream's chain, and their table.
//!
//! The blocks of an upstream's chain are retained for a while only. So an outcome is stored when it is known. It is final when
//! the transaction is not in the pool's table any more: one commit writes the final outcome and deletes the transaction there.

use alloy_consensus::Transaction;
use alloy_eips::eip7702::constants::{PER_AUTH_BASE_COST, PER_EMPTY_ACCOUNT_COST};
use alloy_primitives::{Address, B256, Log};
use alloy_rlp::{RlpDecodable, RlpEncodable};
use redb::{ReadTransaction, TableDefinition, WriteTransaction};
use revm::primitives::hardfork::SpecId;

use super::CallsReceipt;
use crate::{
    chain::initial_gas,
    store::{decode, encode, open_if_there},
};

/// Outcomes by hash of the transaction.
const OUTCOMES: TableDefinition<'_, [u8; 32], &[u8]> = TableDefinition::new("outcomes");

/// The outcome of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxOutcome {
    /// The transaction is in a block. The second field is whether code ran in it, if its gas shows that.
    FetchOutcome(CallsReceipt, Option<bool>),
    /// Another transaction has used its nonce, so that it can be in no block.
    Taken(NonceTaker),
}

/// The transaction that has used the nonce of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NonceTaker {
    /// Hash of the transaction. `None` if the upstream does not say.
    pub hash: Option<B256>,
    /// Number of its block, or of the newest block at the time of the search.
    pub block_number: u64,
    /// Hash of that block.
    pub block_hash: B256,
}

impl TxOutcome {
    /// Returns number and hash of the block that decides the outcome.
    pub const fn block(&self) -> (u64, B256) {
        match self {
            Self::FetchOutcome(receipt, _) => (receipt.block_number, receipt.block_hash),
            Self::Taken(by) => (by.block_number, by.block_hash),
        }
    }
}

/// Returns whether code ran in a successful transaction that calls a delegated account, judging by its gas: without
/// code, it uses only the gas it owes before it runs. `None` if the gas floor of its data hides this. `gas_used` is
/// the EVM's, before a sequencer's refund.
///
/// The code that an account is delegated to may be missing, if the transaction that deploys the batch executor was
/// replaced or reverted by a reorg. Such a transaction succeeds and does nothing.
pub(super) fn ran_code(tx: &impl Transaction, sender: Address, gas_used: u64, fork: SpecId) -> Option<bool> {
    let authorizations = tx.authorization_count().unwrap_or_default();
    let owed = initial_gas(fork, sender, tx);
    // Of an authority that exists, a part of the cost is refunded, up to a fifth of the gas (EIP-7702, EIP-3529).
    let refunded = |count: u64| {
        let refund = (count * (PER_EMPTY_ACCOUNT_COST - PER_AUTH_BASE_COST)).min(owed.initial_total_gas() / 5);
        owed.initial_total_gas() - refund
    };
    if gas_used == owed.floor_gas() {
        return None;
    }
    Some(!(0..=authorizations).any(|count| refunded(count) == gas_used))
}

/// The row of an outcome.
#[derive(RlpEncodable, RlpDecodable)]
#[rlp(trailing)]
struct StoredOutcome {
    block_number: u64,
    block_hash: B256,
    landed: Option<StoredLanding>,
    /// The transaction that has used the nonce.
    by: Option<B256>,
}

#[derive(RlpEncodable, RlpDecodable)]
struct StoredLanding {
    success: bool,
    gas_used: u64,
    logs: Vec<Log>,
    /// Whether code ran: 0 no, 1 yes, 2 not known.
    ran: u8,
}

/// Writes outcomes.
pub(super) fn write(transaction: &WriteTransaction, outcomes: Vec<(B256, TxOutcome)>) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(OUTCOMES)?;
    for (hash, outcome) in outcomes {
        let (block_number, block_hash) = outcome.block();
        let (landed, by) = match outcome {
            TxOutcome::FetchOutcome(CallsReceipt { logs, success, gas_used, .. }, ran) => {
                (Some(StoredLanding { success, gas_used, logs, ran: ran.map_or(2, u8::from) }), None)
            }
            TxOutcome::Taken(by) => (None, by.hash),
        };
        table.insert(hash.0, encode(&StoredOutcome { block_number, block_hash, landed, by }).as_slice())?;
    }
    Ok(())
}

/// Reads the outcome of a transaction, final or not.
pub(super) fn read(transaction: &ReadTransaction, hash: &B256) -> Result<Option<TxOutcome>, redb::Error> {
    let Some(table) = open_if_there(transaction, OUTCOMES)? else { return Ok(None) };
    let Some(row) = table.get(hash.0)? else { return Ok(None) };
    let StoredOutcome { block_number, block_hash, landed, by } = decode(row.value())?;
    Ok(Some(match landed {
        Some(StoredLanding { success, gas_used, logs, ran }) => TxOutcome::FetchOutcome(
            CallsReceipt { logs, success, block_hash, block_number, gas_used, tx_hash: *hash },
            (ran < 2).then_some(ran == 1),
        ),
        None => TxOutcome::Taken(NonceTaker { hash: by, block_number, block_hash }),
    }))
}

/// Deletes the outcomes of a forgotten batch, or outcomes that a reorg has made void.
pub(super) fn forget(
    transaction: &WriteTransaction,
    hashes: impl IntoIterator<Item = B256>,
) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(OUTCOMES)?;
    for hash in hashes {
        table.remove(hash.0)?;
    }
    Ok(())
}
