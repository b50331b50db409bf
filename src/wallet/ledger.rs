//! The accepted batches, and the ids in use.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use alloy_primitives::{Address, B256};
use alloy_rlp::{RlpDecodable, RlpEncodable};
use redb::{ReadableTable, ReadableTableMetadata, TableDefinition, WriteTransaction};

use super::{BatchId, WalletError};
use crate::store::{Store, StoreError};

/// Batches by id.
const BATCHES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("batches");
/// Ids in order of arrival.
const ORDER: TableDefinition<'_, u64, &str> = TableDefinition::new("batch order");

/// The most batches that are removed at once to make room.
const FORGOTTEN_AT_ONCE: u64 = 16;

/// An accepted batch. Its state is not stored, because it follows from the chain.
#[derive(Clone, Debug, PartialEq, Eq, RlpEncodable, RlpDecodable)]
#[rlp(trailing)]
pub struct TakenBatch {
    /// The account that sends the batch.
    pub from: Address,
    /// The chain id (EIP-155).
    pub chain_id: u64,
    /// Whether the batch is one transaction.
    pub atomic: bool,
    /// The contract that executes the batch, if it is atomic.
    pub executor: Address,
    /// The transactions, without the one that deploys the batch executor.
    pub transactions: Vec<B256>,
    /// The transaction that deploys the batch executor, if it was needed.
    pub deployment: Option<B256>,
    /// The newest block when the batch was accepted. Its transactions are in later blocks. `None` in records older than
    /// this field.
    pub taken_on: Option<u64>,
}

/// The stored batches (in memory on a node without a data directory), the newest of them, and the ids of those being
/// written.
#[derive(Clone, Debug)]
pub struct Ledger {
    store: Store,
    reserved: Arc<Mutex<HashSet<BatchId>>>,
    kept: u64,
}

/// A claim to an id. While it is held, and after the batch was written, no other batch gets the id.
#[derive(Debug)]
pub struct IdClaim {
    id: BatchId,
    reserved: Arc<Mutex<HashSet<BatchId>>>,
}

impl Ledger {
    /// Creates a ledger in `store` that retains the last `kept` batches.
    pub fn new(store: Store, kept: u64) -> Self {
        Self { store, reserved: Arc::default(), kept }
    }

    /// Returns the store.
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// Claims an id.
    ///
    /// # Errors
    ///
    /// Returns [`WalletError::Duplicate`] if another batch has the id.
    pub fn reserve(&self, id: BatchId) -> Result<IdClaim, WalletError> {
        if !lock(&self.reserved).insert(id.clone()) {
            return Err(WalletError::taken(&id));
        }
        // From here on no other request can write the id, and a batch written before is visible below.
        let claim = IdClaim { id, reserved: self.reserved.clone() };
        match self.get(&claim.id)? {
            Some(_) => Err(WalletError::taken(&claim.id)),
            None => Ok(claim),
        }
    }

    /// Returns the batch with this id, if there is one.
    ///
    /// # Errors
    ///
    /// Returns a [`StoreError`] if the store cannot be read.
    pub fn get(&self, id: &BatchId) -> Result<Option<TakenBatch>, StoreError> {
        self.store.read(|transaction| {
            let table = match transaction.open_table(BATCHES) {
                Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
                table => table?,
            };
            let bytes = table.get(id.as_str())?;
            let read = |bytes: redb::AccessGuard<'_, &[u8]>| alloy_rlp::decode_exact(bytes.value());
            bytes
                .map(read)
                .transpose()
                .map_err(|error| redb::Error::Corrupted(format!("a batch cannot be read: {error}")))
        })
    }

    /// Returns the write of a batch under a claimed id. The write removes the oldest batches beyond the bound.
    pub fn writing(
        &self,
        id: &BatchId,
        batch: &TakenBatch,
    ) -> impl FnOnce(&WriteTransaction) -> Result<(), redb::Error> + Send + 'static {
        let (id, bytes, kept) = (id.clone(), alloy_rlp::encode(batch), self.kept);
        move |transaction| {
            let (mut batches, mut order) = (transaction.open_table(BATCHES)?, transaction.open_table(ORDER)?);
            batches.insert(id.as_str(), bytes.as_slice())?;
            let next = order.last()?.map_or(0, |(number, _)| number.value() + 1);
            order.insert(next, id.as_str())?;
            // A few at a time, because others wait for this commit.
            for _ in 0..order.len()?.saturating_sub(kept).min(FORGOTTEN_AT_ONCE) {
                if let Some((_, oldest)) = order.pop_first()? {
                    batches.remove(oldest.value())?;
                }
            }
            Ok(())
        }
    }
}

impl IdClaim {
    /// Returns the id.
    pub const fn id(&self) -> &BatchId {
        &self.id
    }
}

impl Drop for IdClaim {
    fn drop(&mut self) {
        lock(&self.reserved).remove(&self.id);
    }
}

fn lock(reserved: &Mutex<HashSet<BatchId>>) -> MutexGuard<'_, HashSet<BatchId>> {
    reserved.lock().unwrap_or_else(PoisonError::into_inner)
}
