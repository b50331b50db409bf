//! The format of a chain's tables, and the migration of stores in an older format.

use alloy_consensus::Header;
use alloy_eips::eip7928::BlockAccessList;
use alloy_primitives::B256;
use alloy_rlp::RlpDecodable;
use redb::{ReadableTable, ReadableTableMetadata, TableDefinition, WriteTransaction};

use super::{
    Journal,
    progress::Progress,
    tables::{ABOUT, BODIES, ChainIdentity, HEADERS, LAYOUT, NUMBERS, RECORDS},
};
use crate::{
    ledger::{
        Verified,
        codec::{Block, Entry, Maybe, Seal, StoredBody, StoredChange, StoredHeader, StoredSubBlock, SubBlock},
    },
    store::{FORMAT, StoreError, corrupted, decode, write_version},
};

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
        // Version 0 has no index of blocks by their hashes.
        let count = self.store.read(|transaction| Ok(transaction.open_table(HEADERS)?.len()?))?;
        let progress = Progress::new(count, "indexing blocks");
        let (mut done, mut next) = (0, 0);
        while self.store.version() == 0 {
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
            write_records(transaction)?;
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

/// The records of versions 0 and 1, by id and part: one id seals a block by part 0 and opens the next by part 1. The blocks
/// that they seal are in the tables of blocks.
const JOURNAL: TableDefinition<'_, (u64, u8), &[u8]> = TableDefinition::new("journal");

/// A record of versions 0 and 1.
enum OldRecord {
    SubBlock(Box<SubBlock>),
    Seal(OldSeal),
}

/// The opening of a block.
#[derive(RlpDecodable)]
#[rlp(trailing)]
struct OldOpen {
    header: Header,
    changes: Vec<StoredChange>,
    access_list: Option<BlockAccessList>,
}

#[derive(RlpDecodable)]
struct OldSeal {
    number: u64,
    changes: Vec<StoredChange>,
}

impl OldRecord {
    fn read(bytes: &[u8]) -> Result<Self, redb::Error> {
        let sub_block =
            |opens, content| Box::new(SubBlock { opens: Maybe(opens), content, verified: Verified::Full as u8 });
        Ok(match bytes.split_first() {
            Some((0, fields)) => {
                let OldOpen { header, changes, access_list } = decode(fields)?;
                let content = StoredSubBlock { changes, access_list, ..StoredSubBlock::default() };
                Self::SubBlock(sub_block(Some(header), content))
            }
            Some((1, fields)) => Self::SubBlock(sub_block(None, decode(fields)?)),
            Some((2, fields)) => Self::Seal(decode(fields)?),
            _ => return Err(corrupted("a record of the chain has an unknown kind")),
        })
    }
}

/// Writes the records of a store of version 0 or 1 anew, each with the block that it seals, which the tables of blocks have no
/// longer.
fn write_records(transaction: &WriteTransaction) -> Result<(), redb::Error> {
    let (old, mut records) = (transaction.open_table(JOURNAL)?, transaction.open_table(RECORDS)?);
    let (mut known, mut sealed) = (0, None);
    for row in old.iter()? {
        let (key, bytes) = row?;
        let id = key.value().0;
        let entry = match (OldRecord::read(bytes.value())?, sealed.take()) {
            (OldRecord::Seal(seal), None) => {
                sealed = Some(seal_of(transaction, seal, known)?);
                continue;
            }
            (OldRecord::SubBlock(sub_block), sealed) => {
                let added = sub_block.content.transactions.len();
                known = if sub_block.opens.0.is_some() { added } else { known + added };
                match sealed {
                    Some(seal) => Entry::Seal(Box::new(Seal { next: Maybe(Some(*sub_block)), ..seal })),
                    None => Entry::SubBlock(sub_block),
                }
            }
            _ => return Err(corrupted("a block is sealed twice")),
        };
        records.insert(id, entry.write().as_ref())?;
    }
    if sealed.is_some() {
        return Err(corrupted("the last record is missing"));
    }
    drop(old);
    transaction.delete_table(JOURNAL)?;
    Ok(())
}

/// Takes the block that a record seals out of the tables of blocks, without its first `known` transactions.
fn seal_of(transaction: &WriteTransaction, seal: OldSeal, known: usize) -> Result<Seal, redb::Error> {
    let OldSeal { number, changes } = seal;
    let missing = || corrupted(format!("block {number} is missing"));
    let header = transaction.open_table(HEADERS)?.remove(number)?.map(|row| decode::<StoredHeader>(row.value()));
    let body = transaction.open_table(BODIES)?.remove(number)?.map(|row| decode::<StoredBody>(row.value()));
    let (header, mut body) = (header.ok_or_else(missing)??.header, body.ok_or_else(missing)??);
    let hash = header.hash_slow();
    transaction.open_table(NUMBERS)?.remove(hash.0)?;
    body.transactions.drain(..known.min(body.transactions.len()));
    body.receipts.drain(..known.min(body.receipts.len()));
    let (known, logs) = (known as u64, Maybe(None));
    let block = Block { hash, header, verified: Verified::Full as u8, known, body: Maybe(Some(body)), logs };
    Ok(Seal { block, changes, next: Maybe(None) })
}
