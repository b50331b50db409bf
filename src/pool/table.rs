//! The pool's table in the store.

use alloy_consensus::{TxEnvelope, transaction::Recovered};
use alloy_primitives::B256;
use alloy_rlp::{RlpDecodable, RlpEncodable};
use redb::{ReadTransaction, ReadableTable, TableDefinition, WriteTransaction};

use super::Pooled;
use crate::store::{StoredTx, decode, encode, open_if_there};

/// Pooled transactions by hash.
const POOL: TableDefinition<'_, [u8; 32], &[u8]> = TableDefinition::new("pool");

/// The row of a pooled transaction.
#[derive(RlpEncodable, RlpDecodable)]
pub struct StoredTransaction {
    arrived: u64,
    own: bool,
    tx: StoredTx,
}

impl From<&Pooled> for StoredTransaction {
    fn from(pooled: &Pooled) -> Self {
        Self { arrived: pooled.arrived, own: pooled.own, tx: StoredTx::from(&*pooled.tx) }
    }
}

pub fn write(
    transaction: &WriteTransaction,
    stored: impl IntoIterator<Item = (B256, StoredTransaction)>,
) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(POOL)?;
    for (hash, stored) in stored {
        table.insert(hash.0, encode(&stored).as_slice())?;
    }
    Ok(())
}

/// Deletes the rows of transactions that have left the pool.
///
/// # Errors
///
/// Returns redb's error if the table cannot be written.
pub fn forget(transaction: &WriteTransaction, hashes: impl IntoIterator<Item = B256>) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(POOL)?;
    for hash in hashes {
        table.remove(hash.0)?;
    }
    Ok(())
}

/// Returns the stored transactions in the order of arrival: arrival number, whether this node signed it, transaction.
pub fn read(transaction: &ReadTransaction) -> Result<Vec<(u64, bool, Recovered<TxEnvelope>)>, redb::Error> {
    let Some(table) = open_if_there(transaction, POOL)? else { return Ok(Vec::new()) };
    let mut kept = Vec::new();
    for row in table.iter()? {
        let StoredTransaction { arrived, own, tx } = decode(row?.1.value())?;
        kept.push((arrived, own, tx.read()?));
    }
    kept.sort_unstable_by_key(|(arrived, ..)| *arrived);
    Ok(kept)
}
