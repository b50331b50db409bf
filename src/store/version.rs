//! A store's file, and the version of its format.

use redb::{Database, ReadableDatabase, TableDefinition, WriteTransaction};

use super::open_if_there;

/// Name of the file in the data directory.
pub(super) const FILE: &str = "presim.redb";

/// The format version that this program writes and reads. A store that records no version has version 0.
pub const FORMAT: u32 = 4;

const STORE: TableDefinition<'_, &str, u32> = TableDefinition::new("store");
const VERSION: &str = "version";

/// Returns the format version of a store.
pub(super) fn read_version(db: &Database) -> Result<u32, redb::Error> {
    let Some(table) = open_if_there(&db.begin_read()?, STORE)? else { return Ok(0) };
    Ok(table.get(VERSION)?.map_or(0, |version| version.value()))
}

/// Records that a store is in this program's format, [`FORMAT`].
///
/// # Errors
/// Returns redb's error if the version cannot be written.
pub(super) fn write_version(transaction: &WriteTransaction) -> Result<(), redb::Error> {
    transaction.open_table(STORE)?.insert(VERSION, FORMAT)?;
    Ok(())
}
