//! The version of a store's format.

use redb::{Database, ReadableDatabase, TableDefinition, WriteTransaction};

/// The format that this program writes. A store without a version has version 0.
pub const FORMAT: u32 = 1;

const STORE: TableDefinition<'_, &str, u32> = TableDefinition::new("store");
const VERSION: &str = "version";

/// Returns the version of a store.
pub fn read_version(db: &Database) -> Result<u32, redb::Error> {
    match db.begin_read()?.open_table(STORE) {
        Ok(table) => Ok(table.get(VERSION)?.map_or(0, |version| version.value())),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// Writes this program's format as the store's version.
///
/// # Errors
///
/// Returns redb's error if the table cannot be written.
pub fn write_version(transaction: &WriteTransaction) -> Result<(), redb::Error> {
    transaction.open_table(STORE)?.insert(VERSION, FORMAT)?;
    Ok(())
}
