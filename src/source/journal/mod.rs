//! The chain on disk, from which a restarted node resumes.
//!
//! The store holds all blocks, the state after one of them (the *base*), and a record of each snapshot that was
//! published after the base. A restart reads the base and replays the records, which restores the same snapshots under
//! the same ids, including those of recent blocks and of the block being built. The base follows the head at the
//! distance of the blocks whose state is kept: sealing a block applies the oldest block's records to the base. A
//! sub-block therefore writes only what it changed.
//!
//! Pruning deletes the body of a block, in the commit of a block that is sealed later. Headers stay.

mod format;
mod progress;
mod prune;
mod replace;
mod restore;

use std::sync::Arc;

use alloy_consensus::Header;
use alloy_genesis::ChainConfig;
use alloy_primitives::{B256, KECCAK256_EMPTY};
use redb::{ReadTransaction, ReadableTable, ReadableTableMetadata, TableDefinition, WriteTransaction};
use serde::{Deserialize, Serialize};

use self::restore::JournalReader;
use super::devnet::world::TradingWorld;
use crate::{
    chain::{BlockBody, BlockKeeper, SealedBlock},
    ledger::{
        Chain, FeedState, Record, Retention, Snapshot, SnapshotId, Snapshots,
        codec::{ChangeRecord, JournalEntry, StoredAccount, StoredBody, StoredChange, StoredHeader},
    },
    pool,
    state::{CodeCache, LocalWorld},
    store::{Store, StoreError, WeakStore, corrupted, decode, encode, open_if_there, write_version},
};

const ABOUT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("about");
/// Headers by block number, each with the hashes of the block's transactions unless the block was pruned.
const HEADERS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("headers");
/// The numbers of all blocks, by hash.
const NUMBERS: TableDefinition<'_, [u8; 32], u64> = TableDefinition::new("numbers");
/// Bodies with receipts by block number, except those of pruned blocks.
const BODIES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("bodies");
/// Records of snapshots by id and part. If one id seals a block and opens the next, the parts are 0 and 1.
const JOURNAL: TableDefinition<'_, (u64, u8), &[u8]> = TableDefinition::new("journal");
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

/// The block whose state is the base.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Base {
    number: u64,
    /// The id of the snapshot that sealed the block.
    id: u64,
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
            transaction.open_table(JOURNAL)?;
            Ok(())
        })?;
        founded.iter().filter(|block| !block.is_bare()).for_each(|block| block.keep(keeper.clone()));
        Ok(())
    }

    /// Writes what `change` adds to `published` under `id`, and waits until it is on disk. Removes the included
    /// transactions from the stored pool, and prunes on disk the blocks that were pruned in memory. A change that brings no
    /// snapshot of a chain that is built here is not written.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::write_now`]. The change must then not be published.
    pub fn record(&self, published: &Chain, id: SnapshotId, change: &Record) -> Result<(), StoreError> {
        let Some(record) = ChangeRecord::of(published, change) else { return Ok(()) };
        let ChangeRecord { entries, sealed, codes, included, .. } = record;
        let oldest = published.oldest_history();
        let (kept, written) = (self.kept, sealed.clone());
        self.store.write_now(move |transaction| {
            let mut table = transaction.open_table(CODES)?;
            for code in &codes {
                table.insert(code.hash.0, code.bytecode.original_byte_slice())?;
            }
            drop(table);
            let mut table = transaction.open_table(JOURNAL)?;
            for (part, entry) in (0..).zip(entries) {
                table.insert((id.0, part), entry.write().as_slice())?;
            }
            drop(table);
            pool::forget(transaction, included)?;
            if let Some(block) = written {
                write_block(transaction, &block)?;
                // The state of the base is one of the `kept` states.
                follow(transaction, (block.number() + 1).saturating_sub(kept))?;
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
        self.store.read(|transaction| Ok(!transaction.open_table(JOURNAL)?.is_empty()?))
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
    transaction.open_table(HEADERS)?.insert(block.number(), encode(&StoredHeader::from(block)).as_slice())?;
    transaction.open_table(NUMBERS)?.insert(block.hash().0, block.number())?;
    if let Some(body) = block.find_body() {
        transaction.open_table(BODIES)?.insert(block.number(), encode(&StoredBody::from(&*body)).as_slice())?;
    }
    Ok(())
}

/// Applies the oldest records to the base, until it is the state after block `number`.
fn follow(transaction: &WriteTransaction, number: u64) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(ABOUT)?;
    let mut base = read_base(&table)?;
    if base.number >= number {
        return Ok(());
    }
    let mut journal = transaction.open_table(JOURNAL)?;
    let (mut accounts, mut slots) = (transaction.open_table(ACCOUNTS)?, transaction.open_table(SLOTS)?);
    while base.number < number {
        let Some((key, entry)) =
            journal.pop_first()?.map(|(key, entry)| (key.value(), JournalEntry::read(entry.value())))
        else {
            return Err(corrupted("the records of the newest blocks are missing"));
        };
        let entry = entry?;
        if let JournalEntry::Seal { number, .. } = &entry {
            base = Base { number: *number, id: key.0 };
        }
        for change in entry.changes() {
            let StoredChange { address, account, storage_cleared, slots: written } = change;
            if storage_cleared {
                slots.retain_in((address.0.0, [0; 32])..=(address.0.0, [0xff; 32]), |_, _| false)?;
            }
            match account.first() {
                Some(account) => drop(accounts.insert(address.0.0, encode(account).as_slice())?),
                None => {
                    accounts.remove(address.0.0)?;
                    continue;
                }
            }
            for slot in written {
                let key = (address.0.0, slot.key.to_be_bytes());
                if slot.value.is_zero() {
                    slots.remove(key)?;
                } else {
                    slots.insert(key, slot.value.to_be_bytes())?;
                }
            }
        }
    }
    write_base(&mut table, base)
}

fn parse_base(text: &[u8]) -> Result<Base, redb::Error> {
    serde_json::from_slice(text).map_err(|error| corrupted(format!("the row about.base is malformed: {error}")))
}

fn write_base(table: &mut redb::Table<'_, &str, &[u8]>, base: Base) -> Result<(), redb::Error> {
    let text = serde_json::to_vec(&base).map_err(|error| corrupted(error.to_string()))?;
    table.insert("base", text.as_slice())?;
    Ok(())
}

fn read_base(table: &impl ReadableTable<&'static str, &'static [u8]>) -> Result<Base, redb::Error> {
    let text = table.get("base")?.ok_or_else(|| corrupted("the row about.base is missing"))?;
    parse_base(text.value())
}
