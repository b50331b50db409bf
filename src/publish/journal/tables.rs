//! The tables of a chain in the store, and the rows that more than one of them has.

use alloy_genesis::ChainConfig;
use alloy_primitives::B256;
use redb::{ReadableTable, Table, TableDefinition, WriteTransaction};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    chain::{SealedBlock, TradingWorld},
    ledger::{
        SnapshotId,
        codec::{CodesByHash, Entry, StoredBody, StoredHeader},
    },
    store::{Store, StoreError, corrupted, encode, open_if_there},
};

/// The layout in [`ChainIdentity`]. Programs from before the store had a version check only the layout, and reject this number.
pub const LAYOUT: u32 = 2;

/// The description of the chain, and its base.
pub const ABOUT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("about");
/// The row of the description.
pub const CHAIN: &str = "chain";
/// The row of the base.
pub const BASE: &str = "base";
/// Headers by block number up to the base, each with the hashes of the block's transactions unless the block was pruned.
pub const HEADERS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("headers");
/// The numbers of the same blocks, by hash.
pub const NUMBERS: TableDefinition<'_, [u8; 32], u64> = TableDefinition::new("numbers");
/// Bodies with receipts of the same blocks, except pruned ones.
pub const BODIES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("bodies");
/// The changes after the base by id, each an [`Entry`].
pub const RECORDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("records");
/// The accounts of the base.
pub const ACCOUNTS: TableDefinition<'_, [u8; 20], &[u8]> = TableDefinition::new("accounts");
/// The slots of the base.
pub const SLOTS: TableDefinition<'_, ([u8; 20], [u8; 32]), [u8; 32]> = TableDefinition::new("slots");
/// The bytecode of the base and of the records, by hash.
pub const CODES: TableDefinition<'_, [u8; 32], &[u8]> = TableDefinition::new("codes");

/// The description of the chain in a store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChainIdentity {
    /// The [`LAYOUT`] of the presim that wrote the description.
    pub layout: u32,
    /// The hash of the genesis block.
    pub genesis: B256,
    /// Whether the chain is the built-in devnet.
    pub builtin: bool,
    /// The hash of the genesis file's bytes; `None` for the built-in devnet.
    pub genesis_file: Option<B256>,
    /// The hash of the chain file from which the chain's first blocks were imported. `None` without one.
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
        Self { layout: LAYOUT, genesis, builtin, genesis_file, chain_file, founded, config, trading }
    }

    /// Reads the description of the chain in `store`. Returns `None` if the store holds no chain yet.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::read`].
    pub fn read(store: &Store) -> Result<Option<Self>, StoreError> {
        store.read(|transaction| open_if_there(transaction, ABOUT)?.map_or(Ok(None), |table| read_about(&table, CHAIN)))
    }
}

/// Returns a row of the table about the chain, if it is there.
///
/// # Errors
///
/// Returns [`redb::Error::Corrupted`] if the row is malformed.
pub fn read_about<T: DeserializeOwned>(
    table: &impl ReadableTable<&'static str, &'static [u8]>,
    row: &str,
) -> Result<Option<T>, redb::Error> {
    let malformed = |error| corrupted(format!("the row about.{row} is malformed: {error}"));
    table.get(row)?.map(|text| serde_json::from_slice(text.value()).map_err(malformed)).transpose()
}

/// Writes a row of the table about the chain.
pub fn write_about(table: &mut Table<'_, &str, &[u8]>, row: &str, value: &impl Serialize) -> Result<(), redb::Error> {
    let text = serde_json::to_vec(value).map_err(|error| corrupted(error.to_string()))?;
    table.insert(row, text.as_slice())?;
    Ok(())
}

/// Writes a block's header, and its body if it is known.
pub fn write_block(transaction: &WriteTransaction, block: &SealedBlock) -> Result<(), redb::Error> {
    let body = block.find_body().map(|body| StoredBody::after(&body, 0));
    write_stored(transaction, block.hash(), &StoredHeader::from(block), body.as_ref())
}

/// Writes a block under its hash.
pub fn write_stored(
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
pub fn write_record(
    transaction: &WriteTransaction,
    id: SnapshotId,
    entry: &Entry,
    codes: &CodesByHash,
) -> Result<(), redb::Error> {
    write_codes(transaction, codes)?;
    transaction.open_table(RECORDS)?.insert(id.0, entry.write().as_ref())?;
    Ok(())
}

/// Writes codes under their hashes.
pub fn write_codes(transaction: &WriteTransaction, codes: &CodesByHash) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(CODES)?;
    for code in codes.0.values() {
        table.insert(code.hash.0, code.bytecode.original_byte_slice())?;
    }
    Ok(())
}
