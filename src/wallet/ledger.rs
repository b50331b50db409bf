//! The accepted batches, and the ids that are in use.

use std::{collections::HashSet, sync::Arc};

use alloy_primitives::{Address, B256};
use alloy_rlp::{RlpDecodable, RlpEncodable};
use redb::{ReadableTable, ReadableTableMetadata, TableDefinition, WriteTransaction};

use super::{BatchId, TxOutcome, WalletError, outcome};
use crate::lock::Mutex;
use crate::store::{Store, StoreError, decode, encode, open_if_there};

/// Batches by id.
const BATCHES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("batches");
/// Ids of the batches by order of arrival.
const ORDER: TableDefinition<'_, u64, &str> = TableDefinition::new("batch order");

/// Maximum number of old batches that are deleted with one write.
const MAX_FORGOTTEN_AT_ONCE: u64 = 16;

/// An accepted batch. Its state is not stored, because it follows from the chain.
#[derive(Clone, Debug, PartialEq, Eq, RlpEncodable, RlpDecodable)]
#[rlp(trailing)]
pub struct TakenBatch {
    /// The account that sends the batch.
    pub from: Address,
    /// EIP-155 chain id.
    pub chain_id: u64,
    /// Whether one transaction executes all calls or none.
    pub atomic: bool,
    /// The batch executor, which executes the calls if `atomic`.
    pub executor: Address,
    /// Hashes of its transactions, except the one in `deployment`.
    pub transactions: Vec<B256>,
    /// Hash of the transaction that deploys the batch executor. `None` if the batch needs none.
    pub deployment: Option<B256>,
    /// The newest block when the batch was accepted; its transactions are in later ones. `None` in an older record.
    pub taken_on: Option<u64>,
    /// The transactions that an approver has signed in the place of others. `None` if there are none.
    pub replacements: Option<Vec<Replacement>>,
}

/// A transaction that was signed in the place of another of its batch, with the same nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, RlpEncodable, RlpDecodable)]
pub struct Replacement {
    /// Hash of the batch's transaction that it replaces, as [`TakenBatch`] has it.
    pub of: B256,
    /// Hash of the new transaction.
    pub hash: B256,
    /// Whether it does nothing, so that the transaction is cancelled.
    pub cancels: bool,
}

impl TakenBatch {
    /// Returns the versions of one of its transactions, the oldest first, each with whether it cancels the others.
    pub fn versions(&self, hash: B256) -> impl Iterator<Item = (B256, bool)> {
        let later = self.replacements.iter().flatten().filter(move |later| later.of == hash);
        std::iter::once((hash, false)).chain(later.map(|later| (later.hash, later.cancels)))
    }

    /// Returns the hashes of all its transactions, in all their versions.
    fn hashes(&self) -> impl Iterator<Item = B256> {
        let later = self.replacements.iter().flatten().map(|later| later.hash);
        self.transactions.iter().chain(&self.deployment).copied().chain(later)
    }
}

/// The newest batches in the store, which is in memory without a data directory, and the ids of batches not yet stored.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// The store of the ledger.
    pub store: Store,
    reserved: Arc<Mutex<HashSet<BatchId>>>,
    kept: u64,
}

/// A claim to an id, which no other batch gets while the claim is held or its batch is stored. Released on drop.
#[derive(Debug)]
pub struct IdClaim {
    pub id: BatchId,
    reserved: Arc<Mutex<HashSet<BatchId>>>,
}

impl Ledger {
    /// Creates a ledger in `store` that keeps the last `kept` batches.
    pub fn new(store: Store, kept: u64) -> Self {
        Self { store, reserved: Arc::default(), kept }
    }

    /// Claims an id for a batch.
    ///
    /// # Errors
    /// Returns [`WalletError::Duplicate`] if another batch has the id, and [`WalletError::Store`] if reading fails.
    pub fn reserve(&self, id: BatchId) -> Result<IdClaim, WalletError> {
        if !self.reserved.lock().insert(id.clone()) {
            return Err(WalletError::taken(&id));
        }
        // From here on no other batch can be stored under the id, and one that was stored before can be read.
        let claim = IdClaim { id, reserved: self.reserved.clone() };
        match self.get(&claim.id)? {
            Some(_) => Err(WalletError::taken(&claim.id)),
            None => Ok(claim),
        }
    }

    /// Returns the batch with this id, or `None` if there is none.
    ///
    /// # Errors
    /// Returns [`StoreError::Damaged`] or [`StoreError::Open`] if the store cannot be read.
    pub fn get(&self, id: &BatchId) -> Result<Option<TakenBatch>, StoreError> {
        self.store.read(|transaction| {
            let Some(table) = open_if_there(transaction, BATCHES)? else { return Ok(None) };
            let bytes = table.get(id.as_str())?;
            bytes.map(|bytes| decode(bytes.value())).transpose()
        })
    }

    /// Returns the id of the batch whose id is `text`, or else the ids of the first batches that begin with it.
    ///
    /// # Errors
    /// Returns [`StoreError::Damaged`] or [`StoreError::Open`] if the store cannot be read.
    pub fn find(&self, text: &str) -> Result<Vec<BatchId>, StoreError> {
        self.store.read(|transaction| {
            let Some(table) = open_if_there(transaction, BATCHES)? else { return Ok(Vec::new()) };
            let mut found = Vec::new();
            for row in table.range(text..)?.take(2) {
                let id = row?.0.value().to_owned();
                let (is_whole, begins) = (id == text, id.starts_with(text));
                found.extend(BatchId::new(id).filter(|_| begins));
                if is_whole {
                    break;
                }
            }
            Ok(found)
        })
    }

    /// Returns the outcome of a transaction, or `None` if none is stored. It is final if the pool does not hold the transaction.
    ///
    /// # Errors
    /// Returns [`StoreError::Damaged`] or [`StoreError::Open`] if the store cannot be read.
    pub fn outcome(&self, hash: &B256) -> Result<Option<TxOutcome>, StoreError> {
        self.store.read(|transaction| outcome::read(transaction, hash))
    }

    /// Returns the closure that stores a batch under a claimed id, and deletes the oldest ones beyond the limit. A batch that is
    /// stored again, after transactions were replaced, keeps its place.
    pub fn writing(
        &self,
        id: &BatchId,
        batch: &TakenBatch,
    ) -> impl FnOnce(&WriteTransaction) -> Result<(), redb::Error> + Send + 'static {
        let (id, bytes, kept) = (id.clone(), encode(batch), self.kept);
        move |transaction| {
            let (mut batches, mut order) = (transaction.open_table(BATCHES)?, transaction.open_table(ORDER)?);
            if batches.insert(id.as_str(), bytes.as_slice())?.is_some() {
                return Ok(());
            }
            let next = order.last()?.map_or(0, |(number, _)| number.value() + 1);
            order.insert(next, id.as_str())?;
            // If the limit was lowered, only a few at a time are deleted, because other writes wait for this commit.
            for _ in 0..order.len()?.saturating_sub(kept).min(MAX_FORGOTTEN_AT_ONCE) {
                if let Some((_, oldest)) = order.pop_first()?
                    && let Some(batch) = batches.remove(oldest.value())?
                {
                    outcome::forget(transaction, decode::<TakenBatch>(batch.value())?.hashes())?;
                }
            }
            Ok(())
        }
    }
}

impl Drop for IdClaim {
    fn drop(&mut self) {
        self.reserved.lock().remove(&self.id);
    }
}
