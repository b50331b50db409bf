//! The blocks in the store, for readers while the node runs.

use alloy_consensus::Header;
use alloy_primitives::B256;
use redb::ReadTransaction;

use super::tables::{BODIES, HEADERS, NUMBERS};
use crate::{
    chain::{BlockBody, BlockKeeper},
    ledger::codec::{StoredBody, StoredHeader},
    store::{StoreError, WeakStore, decode},
};

/// Reads blocks from the store while it is open.
#[derive(Debug)]
pub struct Blocks(pub WeakStore);

impl Blocks {
    fn try_read<T>(&self, what: impl FnOnce(&ReadTransaction) -> Result<T, redb::Error>) -> Result<T, StoreError> {
        let store = self.0.upgrade().ok_or(StoreError::Stopping)?;
        // After a disk failure, redb reads only what is still in memory.
        if let Some(failure) = store.failure() {
            return Err(failure.clone());
        }
        store.read(what)
    }

    fn read<T>(&self, what: impl FnOnce(&ReadTransaction) -> Result<T, redb::Error>) -> T {
        // The trait asks for the panic, because no answer would be right.
        match self.try_read(what) {
            Ok(read) => read,
            Err(failure @ StoreError::Failed(_)) => std::panic::resume_unwind(Box::new(failure)),
            Err(error) => panic!("a block cannot be read: {error}"),
        }
    }

    fn header(transaction: &ReadTransaction, number: u64) -> Result<Option<StoredHeader>, redb::Error> {
        transaction.open_table(HEADERS)?.get(number)?.map(|bytes| decode(bytes.value())).transpose()
    }
}

impl BlockKeeper for Blocks {
    fn body(&self, number: u64) -> Option<BlockBody> {
        self.read(|transaction| {
            let bytes = transaction.open_table(BODIES)?.get(number)?;
            bytes.map(|bytes| decode::<StoredBody>(bytes.value())?.read()).transpose()
        })
    }

    fn transactions(&self, number: u64) -> Option<Vec<B256>> {
        let read = self.try_read(|transaction| Self::header(transaction, number)).ok()?;
        Some(read.map_or_else(Vec::new, |stored| stored.hashes))
    }

    fn header(&self, number: u64) -> Option<Header> {
        self.read(|transaction| Self::header(transaction, number)).map(|stored| stored.header)
    }

    fn number(&self, hash: B256) -> Option<u64> {
        self.read(|transaction| Ok(transaction.open_table(NUMBERS)?.get(hash.0)?.map(|number| number.value())))
    }
}
