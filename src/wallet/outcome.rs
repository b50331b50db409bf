//! The outcomes of the wallet's transactions on an upstream's chain, and their table.
//!
//! The blocks of an upstream's chain are retained for a while only. So an outcome is stored when it is final, in the commit
//! that deletes the transaction from the pool's table.

use alloy_primitives::{B256, Log};
use alloy_rlp::{RlpDecodable, RlpEncodable};
use redb::{ReadTransaction, TableDefinition, WriteTransaction};

use super::CallsReceipt;
use crate::store::{decode, encode, open_if_there};

/// Outcomes by hash of the transaction.
const OUTCOMES: TableDefinition<'_, [u8; 32], &[u8]> = TableDefinition::new("outcomes");

/// The outcome of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxOutcome {
    /// The transaction is in a block.
    Landed(CallsReceipt),
    /// Another transaction has used its nonce, so that it can be in no block.
    Taken(NonceTaker),
}

/// The transaction that has used the nonce of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NonceTaker {
    /// Hash of the transaction. `None` if the upstream does not tell.
    pub hash: Option<B256>,
    /// Number of its block, or that of the newest block when it was looked for.
    pub block_number: u64,
    /// Hash of that block.
    pub block_hash: B256,
}

impl TxOutcome {
    /// Returns number and hash of the block that decides the outcome.
    pub const fn block(&self) -> (u64, B256) {
        match self {
            Self::Landed(receipt) => (receipt.block_number, receipt.block_hash),
            Self::Taken(by) => (by.block_number, by.block_hash),
        }
    }
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
}

/// Writes final outcomes.
pub(super) fn write(transaction: &WriteTransaction, outcomes: Vec<(B256, TxOutcome)>) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(OUTCOMES)?;
    for (hash, outcome) in outcomes {
        let (block_number, block_hash) = outcome.block();
        let (landed, by) = match outcome {
            TxOutcome::Landed(CallsReceipt { logs, success, gas_used, .. }) => {
                (Some(StoredLanding { success, gas_used, logs }), None)
            }
            TxOutcome::Taken(by) => (None, by.hash),
        };
        table.insert(hash.0, encode(&StoredOutcome { block_number, block_hash, landed, by }).as_slice())?;
    }
    Ok(())
}

/// Reads the outcome of a transaction.
pub(super) fn read(transaction: &ReadTransaction, hash: &B256) -> Result<Option<TxOutcome>, redb::Error> {
    let Some(table) = open_if_there(transaction, OUTCOMES)? else { return Ok(None) };
    let Some(row) = table.get(hash.0)? else { return Ok(None) };
    let StoredOutcome { block_number, block_hash, landed, by } = decode(row.value())?;
    Ok(Some(match landed {
        Some(StoredLanding { success, gas_used, logs }) => {
            TxOutcome::Landed(CallsReceipt { logs, success, block_hash, block_number, gas_used, tx_hash: *hash })
        }
        None => TxOutcome::Taken(NonceTaker { hash: by, block_number, block_hash }),
    }))
}

/// Deletes the outcomes of a batch that is forgotten.
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
