//! The chain on disk, from which a restarted node resumes.
//!
//! The store holds the blocks up to one of them (the *base*), the state after it, and a record of each snapshot that was
//! published after the base. A restart reads the base and replays the records, which restores the same snapshots under
//! the same ids, including those of recent blocks and of the block being built. The base follows the head at the
//! distance of the blocks whose state is kept: sealing a block applies the oldest block's records to the base, and moves the
//! block from there to the tables of blocks. A sub-block therefore writes only what it changed, and a body is stored once.
//!
//! Pruning deletes the body of a block, in the commit of a block that is sealed later. Headers stay.

mod base;
mod format;
mod progress;
mod prune;
mod replace;
mod restore;

use std::sync::Arc;

use alloy_consensus::Header;
use alloy_genesis::ChainConfig;
use alloy_primitives::{B256, KECCAK256_EMPTY};
use redb::{ReadTransaction, ReadableTableMetadata, TableDefinition, WriteTransaction};
use serde::{Deserialize, Serialize};

use self::{
    base::{Base, read_base, write_base},
    restore::JournalReader,
};
use super::devnet::world::TradingWorld;
use crate::{
    chain::{BlockBody, BlockKeeper, SealedBlock},
    ledger::{
        Chain, FeedState, Record, Retention, Snapshot, SnapshotId, Snapshots,
        codec::{CodesByHash, Entry, StoredAccount, StoredBody, StoredHeader},
    },
    pool,
    state::{CodeCache, LocalWorld},
    store::{Store, StoreError, StoredTx, WeakStore, corrupted, decode, encode, open_if_there, write_version},
};

const ABOUT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("about");
/// Headers by block number up to the base, each with the hashes of the block's transactions unless the block was pruned.
const HEADERS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("headers");
/// The numbers of the same blocks, by hash.
const NUMBERS: TableDefinition<'_, [u8; 32], u64> = TableDefinition::new("numbers");
/// Bodies with receipts of the same blocks, except pruned ones.
const BODIES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("bodies");
/// The changes after the base by id, each an [`Entry`].
const RECORDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("records");
/// The base: accounts, their slots, and bytecode by hash.
const ACCOUNTS: TableDefinition<'_, [u8; 20], &[u8]> = TableDefinition::new("accounts");
const SLOTS: TableDefinition<'_, ([u8; 20], [u8; 32]), [u8; 32]> = TableDefinition::new("slots");
const CODES: TableDefinition<'_, [u8; 32], &[u8]> = TableDefinition::new("codes");

/// The description of the chain in a store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChainIdentity {
    /// The [`format::LAYOUT`] of the presim that wrote the description.
    layout: u32,
    /// The hash of the genesis block.
    pub genesis: B256,
    /// Whether the chain is the built-in devnet.
    pub builtin: bool,
    /// The hash of the genesis file's bytes; `None` for the built-in devnet.
    pub genesis_file: Option<B256>,
    /// The hash of the chain file whose blocks the chain began with; `None` without one.
    pub chain_file: Option<B256>,
    /// The number of the head when the store was created.
    pub founded: u64,
    /// The geth-format `config` with the chain's forks.
    pub config: ChainConfig,
    /// The addresses of the trading world's contracts; `None` on a chain without them.
    pub trading: Option<TradingWorld>,
}

impl ChainIdentity {
    /// Describes a chain in the newest layout. Without a genesis file it is the built-in devnet.
    pub const fn new(
        genesis: B256,
        genesis_file: Option<B256>,
        chain_file: Option<B256>,
        founded: u64,
        config: ChainConfig,
        trading: Option<TradingWorld>,
    ) -> Self {
        let builtin = genesis_file.is_none();
        Self { layout: format::LAYOUT, genesis, builtin, genesis_file, chain_file, founded, config, trading }
    }

    /// Describes another chain, which replaces this one in its store: its blocks are not those of a file.
    #[must_use]
    pub fn replaced_by(&self, genesis: B256, config: ChainConfig, trading: Option<TradingWorld>) -> Self {
        Self { genesis, config, trading, founded: u64::MAX, ..self.clone() }
    }

    /// Reads the description of the chain in `store`. Returns `None` if the store holds no chain yet.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::read`].
    pub fn read(store: &Store) -> Result<Option<Self>, StoreError> {
        store.read(|transaction| {
            let Some(table) = open_if_there(transaction, ABOUT)? else { return Ok(None) };
            let Some(text) = table.get("chain")? else { return Ok(None) };
            let unreadable = |error: serde_json::Error| corrupted(format!("the row about.chain is malformed: {error}"));
            serde_json::from_slice(text.value()).map(Some).map_err(unreadable)
        })
    }

    fn write(&self, table: &mut redb::Table<'_, &str, &[u8]>) -> Result<(), redb::Error> {
        let text = serde_json::to_vec(self).map_err(|error| corrupted(error.to_string()))?;
        table.insert("chain", text.as_slice())?;
        Ok(())
    }
}

/// The journal of a chain: writes its blocks and records to a store, and restores the chain from it.
#[derive(Debug)]
pub struct Journal {
    store: Store,
    /// The number of newest blocks whose state is kept. The base is the oldest of them.
    kept: u64,
}

impl Journal {
    /// Creates a journal in `store` that keeps the states of the last `kept` blocks.
    pub const fn new(store: Store, kept: u64) -> Self {
        Self { store, kept }
    }

    /// Writes a new chain: `blocks` up to its head, and the head's state as the base.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::write_now`].
    pub fn found(
        &self,
        identity: &ChainIdentity,
        blocks: Vec<Arc<SealedBlock>>,
        head: &Snapshot,
    ) -> Result<(), StoreError> {
        let identity = identity.clone();
        let base = Base { number: head.head.number(), id: head.id.0 };
        let world = head.world.clone();
        let keeper = self.keeper();
        let founded = blocks.clone();
        self.store.write_now(move |transaction| {
            for block in &blocks {
                write_block(transaction, block)?;
            }
            let (mut accounts, mut slots) = (transaction.open_table(ACCOUNTS)?, transaction.open_table(SLOTS)?);
            let mut codes = transaction.open_table(CODES)?;
            // Sorted like the tables, because sorted inserts are faster.
            let mut all: Vec<_> = world.local().into_iter().flat_map(LocalWorld::accounts).collect();
            all.sort_unstable_by_key(|(address, _)| **address);
            for (address, account) in all {
                accounts.insert(address.0.0, encode(&StoredAccount::from(&**account)).as_slice())?;
                if account.code.hash != KECCAK256_EMPTY {
                    codes.insert(account.code.hash.0, account.code.bytecode.original_byte_slice())?;
                }
                let mut each: Vec<_> = account.slots().collect();
                each.sort_unstable();
                for (key, value) in each {
                    slots.insert((address.0.0, key.to_be_bytes()), value.to_be_bytes())?;
                }
            }
            let mut table = transaction.open_table(ABOUT)?;
            identity.write(&mut table)?;
            write_base(&mut table, base)?;
            drop(table);
            write_version(transaction)?;
            transaction.open_table(RECORDS)?;
            Ok(())
        })?;
        founded.iter().filter(|block| !block.is_bare()).for_each(|block| block.keep(keeper.clone()));
        Ok(())
    }

    /// Writes a change of `published` under `id`, and waits until it is on disk. Removes the included transactions from the
    /// stored pool, and prunes on disk the blocks that were pruned in memory. A change that brings no snapshot of a chain that is
    /// built here is not written.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::write_now`]. The change must then not be published.
    pub fn record(&self, published: &Chain, id: SnapshotId, change: &Record) -> Result<(), StoreError> {
        let sealed = match change {
            Record::SubBlock(_) => None,
            Record::Seal { sealed, .. } => Some(&sealed.head),
            _ => return Ok(()),
        };
        let mut codes = CodesByHash::default();
        let Some(entry) = Entry::of(published, change, &mut codes) else { return Ok(()) };
        // The state of the base is one of the `kept` states.
        let base = sealed.map(|block| (block.number() + 1).saturating_sub(self.kept));
        let oldest = published.oldest_history();
        self.store.write_now(move |transaction| {
            write_record(transaction, id, &entry, &codes)?;
            pool::forget(transaction, entry.transactions().iter().map(StoredTx::hash))?;
            if let Some(base) = base {
                base::follow(transaction, base)?;
                prune::prune(transaction, oldest, prune::MAX_PER_SEAL)?;
            }
            Ok(())
        })?;
        if let Some(block) = sealed {
            block.keep(self.keeper());
        }
        Ok(())
    }

    /// Returns the error of the commit that failed, or `None` while the store can be written.
    pub fn failure(&self) -> Option<&StoreError> {
        self.store.failure()
    }

    /// Returns the keeper that reads blocks from the store.
    pub fn keeper(&self) -> Arc<dyn BlockKeeper> {
        Arc::new(Blocks(self.store.weak()))
    }

    /// Restores the chain from the store, under progress bars. Checks the head's state root.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Damaged`] if the stored chain is inconsistent, and the other errors of [`Store::read`].
    pub fn restore(&self, codes: &CodeCache, feed: FeedState, kept: Retention) -> Result<Snapshots, StoreError> {
        self.store.read(|transaction| JournalReader::new(transaction, codes, self.keeper())?.read(feed, kept))
    }

    /// Restores the chain by replaying the records on `snapshots`, whose newest snapshot must be the base.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`restore`](Self::restore).
    pub fn replay_on(&self, snapshots: &Snapshots, codes: &CodeCache) -> Result<(), StoreError> {
        self.store.read(|transaction| JournalReader::new(transaction, codes, self.keeper())?.go_on(snapshots))
    }

    /// Returns the id of the snapshot that sealed the base.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::read`].
    pub fn base_id(&self) -> Result<SnapshotId, StoreError> {
        self.store.read(|transaction| Ok(SnapshotId(read_base(&transaction.open_table(ABOUT)?)?.id)))
    }

    /// Returns whether any snapshot was published after the base.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::read`].
    pub fn has_records(&self) -> Result<bool, StoreError> {
        self.store.read(|transaction| Ok(!transaction.open_table(RECORDS)?.is_empty()?))
    }

    /// Returns the number of the block whose state is the base.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::read`].
    pub fn base(&self) -> Result<u64, StoreError> {
        self.store.read(|transaction| Ok(read_base(&transaction.open_table(ABOUT)?)?.number))
    }
}

/// Reads blocks from the store while it is open.
#[derive(Debug)]
struct Blocks(WeakStore);

impl Blocks {
    fn try_read<T>(&self, what: impl FnOnce(&ReadTransaction) -> Result<T, redb::Error>) -> Result<T, StoreError> {
        let store = self.0.upgrade().ok_or(StoreError::Stopping)?;
        // Of a disk that has failed, redb reads what is still in memory, and nothing else.
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
        Some(read.map_or_else(Vec::new, |stored| stored.read().1))
    }

    fn header(&self, number: u64) -> Option<Header> {
        self.read(|transaction| Self::header(transaction, number)).map(|stored| stored.read().0)
    }

    fn number(&self, hash: B256) -> Option<u64> {
        self.read(|transaction| Ok(transaction.open_table(NUMBERS)?.get(hash.0)?.map(|number| number.value())))
    }
}

/// Writes a block's header, and its body if it is known.
fn write_block(transaction: &WriteTransaction, block: &SealedBlock) -> Result<(), redb::Error> {
    let body = block.find_body().map(|body| StoredBody::from(&*body));
    write_stored(transaction, block.hash(), &StoredHeader::from(block), body.as_ref())
}

/// Writes a block under its hash.
fn write_stored(
    transaction: &WriteTransaction,
    hash: B256,
    header: &StoredHeader,
    body: Option<&StoredBody>,
) -> Result<(), redb::Error> {
    let number = header.header.number;
    transaction.open_table(HEADERS)?.insert(number, encode(header).as_slice())?;
    transaction.open_table(NUMBERS)?.insert(hash.0, number)?;
    if let Some(body) = body {
        transaction.open_table(BODIES)?.insert(number, encode(body).as_slice())?;
    }
    Ok(())
}

/// Writes a change, and the codes that it brings.
fn write_record(
    transaction: &WriteTransaction,
    id: SnapshotId,
    entry: &Entry,
    codes: &CodesByHash,
) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(CODES)?;
    for code in codes.0.values() {
        table.insert(code.hash.0, code.bytecode.original_byte_slice())?;
    }
    transaction.open_table(RECORDS)?.insert(id.0, entry.write().as_ref())?;
    Ok(())
}
