//! The format of a chain's tables, and the migration of stores in an older format.

use alloy_primitives::B256;
use redb::ReadableTableMetadata;

use super::{ABOUT, ChainIdentity, HEADERS, Journal, NUMBERS, progress::Progress};
use crate::{
    ledger::codec::StoredHeader,
    store::{FORMAT, StoreError, decode, write_version},
};

/// The layout in [`ChainIdentity`]. Programs from before the store had a version check only the layout, and reject this number.
pub const LAYOUT: u32 = 2;
/// Blocks that one commit indexes.
const BLOCKS_PER_COMMIT: usize = 10_000;

impl Journal {
    /// Migrates the store to the newest format. New tables are filled first, in steps, and the version is written last,
    /// so that a store whose migration was interrupted opens, and is migrated again.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if the store cannot be read or written.
    pub fn migrate(&self, identity: &ChainIdentity) -> Result<(), StoreError> {
        if self.store.version() == FORMAT {
            return Ok(());
        }
        // Version 0 has no index of blocks by their hashes. Nothing else differs.
        let count = self.store.read(|transaction| Ok(transaction.open_table(HEADERS)?.len()?))?;
        let progress = Progress::new(count, "indexing blocks");
        let (mut done, mut next) = (0, 0);
        loop {
            let hashes = self.hashes(next)?;
            let Some((_, last)) = hashes.last() else { break };
            (done, next) = (done + hashes.len() as u64, last + 1);
            self.store.write_now(move |transaction| {
                let mut table = transaction.open_table(NUMBERS)?;
                hashes.iter().try_for_each(|(hash, number)| table.insert(hash.0, number).map(drop))?;
                Ok(())
            })?;
            progress.at(done);
        }
        let identity = ChainIdentity { layout: LAYOUT, ..identity.clone() };
        self.store.write_now(move |transaction| {
            identity.write(&mut transaction.open_table(ABOUT)?)?;
            write_version(transaction)
        })?;
        tracing::info!(blocks = count, "the data directory was migrated to format {FORMAT}");
        Ok(())
    }

    /// Returns the hashes and numbers of up to [`BLOCKS_PER_COMMIT`] blocks, beginning with block `from`.
    fn hashes(&self, from: u64) -> Result<Vec<(B256, u64)>, StoreError> {
        self.store.read(|transaction| {
            let table = transaction.open_table(HEADERS)?;
            let rows = table.range(from..)?.take(BLOCKS_PER_COMMIT).map(|row| {
                let (number, bytes) = row?;
                let (header, _) = decode::<StoredHeader>(bytes.value())?.read();
                Ok((header.hash_slow(), number.value()))
            });
            rows.collect()
        })
    }
}
