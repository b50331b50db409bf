//! The encoding of the store's rows: RLP throughout, like the chain's own data.

use alloy_consensus::transaction::Recovered;
use alloy_eips::eip2718::{Decodable2718, Encodable2718};
use alloy_primitives::{Address, B256, Bytes, keccak256};
use alloy_rlp::{Decodable, Encodable, RlpDecodable, RlpEncodable};
use redb::{ReadTransaction, TableDefinition};

/// Returns the RLP encoding of a value.
pub fn encode(value: &impl Encodable) -> Vec<u8> {
    alloy_rlp::encode(value)
}

/// Decodes a value from RLP.
///
/// # Errors
///
/// Returns [`redb::Error::Corrupted`] if `bytes` are not exactly one valid encoding.
pub fn decode<T: Decodable>(bytes: &[u8]) -> Result<T, redb::Error> {
    alloy_rlp::decode_exact(bytes).map_err(|error| corrupted(format!("a record cannot be read: {error}")))
}

/// Returns the error for a row that presim cannot have written.
pub fn corrupted(problem: impl Into<String>) -> redb::Error {
    redb::Error::Corrupted(problem.into())
}

/// Returns the text of a reader's error: the problem alone, if bytes are malformed.
pub fn problem_of(error: redb::Error) -> String {
    match error {
        redb::Error::Corrupted(problem) => problem,
        other => other.to_string(),
    }
}

/// A transaction stored with its sender, so that opening a chain recovers no signature.
#[derive(Clone, RlpEncodable, RlpDecodable)]
pub struct StoredTx {
    sender: Address,
    raw: Bytes,
}

impl<T: Encodable2718> From<&Recovered<T>> for StoredTx {
    fn from(tx: &Recovered<T>) -> Self {
        Self { sender: tx.signer(), raw: tx.inner().encoded_2718().into() }
    }
}

impl StoredTx {
    /// Returns the hash of the transaction.
    pub fn hash(&self) -> B256 {
        keccak256(&self.raw)
    }

    /// Decodes the transaction. The stored sender is trusted.
    ///
    /// # Errors
    ///
    /// Returns [`redb::Error::Corrupted`] if the bytes are not a transaction.
    pub fn read<T: Decodable2718>(self) -> Result<Recovered<T>, redb::Error> {
        let tx = T::decode_2718_exact(&self.raw)
            .map_err(|error| corrupted(format!("a transaction cannot be read: {error}")))?;
        Ok(Recovered::new_unchecked(tx, self.sender))
    }
}

/// Opens a table; `None` if it was never written to.
///
/// # Errors
///
/// Returns redb's error if the table cannot be opened.
pub fn open_if_there<K: redb::Key + 'static, V: redb::Value + 'static>(
    transaction: &ReadTransaction,
    table: TableDefinition<'_, K, V>,
) -> Result<Option<redb::ReadOnlyTable<K, V>>, redb::Error> {
    match transaction.open_table(table) {
        Ok(table) => Ok(Some(table)),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
