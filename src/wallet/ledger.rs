//! The batches that were taken, and the ids that are in use.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use alloy_primitives::{Address, B256};
use alloy_rlp::{RlpDecodable, RlpEncodable};
use redb::{ReadableTable, ReadableTableMetadata, TableDefinition, WriteTransaction};

use super::{BatchId, WalletError};
use crate::store::{Store, StoreError};

/// Batches by their id.
const BATCHES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("batches");
/// Their ids in the order of their coming.
const ORDER: TableDefinition<'_, u64, &str> = TableDefinition::new("batch order");

/// Batches that are forgotten for one that comes, where there are too many.
const FORGOTTEN_AT_ONCE: u64 = 16;

/// A batch that was taken. How far it has come is not written: that follows from the chain.
#[derive(Clone, Debug, PartialEq, Eq, RlpEncodable, RlpDecodable)]
#[rlp(trailing)]
pub struct TakenBatch {
    /// Who sends it.
    pub from: Address,
    /// EIP-155 chain id.
    pub chain_id: u64,
    /// Whether it is sent as one.
    pub atomic: bool,
    /// The contract that executes it, where it is sent as one.
    pub executor: Address,
    /// Its transactions, but for one that deploys the batch executor.
    pub transactions: Vec<B256>,
    /// The one that deploys the batch executor, where it was not there.
    pub deployment: Option<B256>,
    /// The newest block when it was taken: its transactions are in later ones. `None` in a record of before this was written.
    pub taken_on: Option<u64>,
}

/// The batches on the disk (or, on a node that keeps nothing, in memory), the newest of them, and the ids of those on their way there.
#[derive(Clone, Debug)]
pub struct Ledger {
    store: Store,
    reserved: Arc<Mutex<HashSet<BatchId>>>,
    kept: u64,
}

/// A claim to an id: no other batch has it while this is held, nor after its batch was written.
#[derive(Debug)]
pub struct IdClaim {
    id: BatchId,
    reserved: Arc<Mutex<HashSet<BatchId>>>,
}

impl Ledger {
    /// A ledger in `store` that keeps the last `kept` batches.
    pub fn new(store: Store, kept: u64) -> Self {
        Self { store, reserved: Arc::default(), kept }
    }

    /// Where it is kept.
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// Claims an id.
    ///
    /// # Errors
    /// That another batch has it.
    pub fn reserve(&self, id: BatchId) -> Result<IdClaim, WalletError> {
        if !lock(&self.reserved).insert(id.clone()) {
            return Err(WalletError::taken(&id));
        }
        // From here on nobody else can write it; one that was written before is there to be read.
        let claim = IdClaim { id, reserved: self.reserved.clone() };
        match self.get(&claim.id)? {
            Some(_) => Err(WalletError::taken(&claim.id)),
            None => Ok(claim),
        }
    }

    /// The batch with this id, if it was taken.
    ///
    /// # Errors
    /// That the store cannot be read.
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

    /// What writes a batch under an id that is claimed. The oldest is forgotten where there are too many.
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
            // A few at a time where the bound was lowered: others wait for this commit.
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
    /// The id.
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
