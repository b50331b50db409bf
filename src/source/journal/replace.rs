//! Replacing the chain in a store by another, and removing its newest changes.

use redb::{ReadableTable, WriteTransaction};

use super::{ABOUT, ACCOUNTS, BODIES, CODES, ChainIdentity, HEADERS, JOURNAL, Journal, NUMBERS, SLOTS, read_base};
use crate::{
    ledger::{
        Chain, SnapshotId,
        codec::{ChangeRecord, JournalEntry, StoredBody, StoredHeader},
    },
    pool,
    store::{StoreError, StoredTx, corrupted, decode},
};

impl Journal {
    /// Replaces everything by `published`: its headers, the state after its head as the base, and the block being built.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::write_now`](crate::store::Store::write_now).
    pub fn replace(&self, identity: &ChainIdentity, published: &Chain) -> Result<(), StoreError> {
        self.store.write_now(|transaction| {
            transaction.delete_table(ABOUT)?;
            transaction.delete_table(HEADERS)?;
            transaction.delete_table(BODIES)?;
            transaction.delete_table(NUMBERS)?;
            transaction.delete_table(JOURNAL)?;
            transaction.delete_table(ACCOUNTS)?;
            transaction.delete_table(SLOTS)?;
            transaction.delete_table(CODES)?;
            Ok(())
        })?;
        let (latest, newest) = (published.latest(), &published.newest);
        let blocks = (0..=latest.head.number()).filter_map(|number| published.sealed_block(number));
        self.found(identity, blocks.collect(), latest)?;
        let Some((record, header)) = ChangeRecord::of_open(latest, newest) else { return Ok(()) };
        let id = newest.id;
        self.store.write_now(move |transaction| {
            let mut codes = transaction.open_table(CODES)?;
            for code in &record.codes {
                codes.insert(code.hash.0, code.bytecode.original_byte_slice())?;
            }
            drop(codes);
            let mut records = transaction.open_table(JOURNAL)?;
            let opened = JournalEntry::Open { header: Box::new(header), changes: Vec::new(), access_list: None };
            records.insert((id.0, 0), opened.write().as_slice())?;
            for (part, entry) in (1..).zip(record.entries) {
                records.insert((id.0, part), entry.write().as_slice())?;
            }
            Ok(())
        })
    }

    /// Replaces the chain by another state of the same chain, after which the journal goes on.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`replace`](Self::replace).
    pub fn replace_state(&self, published: &Chain) -> Result<(), StoreError> {
        // A journal is used after its chain was founded.
        let Some(identity) = ChainIdentity::read(&self.store)? else { return Ok(()) };
        self.replace(&ChainIdentity { founded: u64::MAX, ..identity }, published)
    }

    /// Removes the records after `last`, with the blocks that they seal, and puts their transactions back into the stored
    /// pool: they were written and never shown.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::write_now`](crate::store::Store::write_now); [`StoreError::Damaged`] if the base is after `last`.
    pub fn take_back(&self, last: SnapshotId) -> Result<(), StoreError> {
        // Read before anything is written, because an error in a write fails the store.
        self.store.read(|transaction| {
            if read_base(&transaction.open_table(ABOUT)?)?.id > last.0 {
                return Err(corrupted("what is to be taken back is part of the base"));
            }
            let bodies = transaction.open_table(BODIES)?;
            for row in transaction.open_table(JOURNAL)?.range((last.0 + 1, 0)..)? {
                if let JournalEntry::Seal { number, .. } = JournalEntry::read(row?.1.value())? {
                    bodies.get(number)?.map(|body| decode::<StoredBody>(body.value())).transpose()?;
                }
            }
            Ok(())
        })?;
        self.store.write_now(move |transaction| {
            let mut records = transaction.open_table(JOURNAL)?;
            let mut back = Vec::new();
            loop {
                let newest = records.last()?.map(|(key, _)| key.value());
                let Some(key) = newest.filter(|(id, _)| *id > last.0) else { break };
                let entry = records.remove(key)?.map(|entry| JournalEntry::read(entry.value())).transpose()?;
                match entry {
                    Some(JournalEntry::Seal { number, .. }) => back.splice(..0, remove_block(transaction, number)?),
                    Some(JournalEntry::SubBlock(sub_block)) => back.splice(..0, sub_block.transactions),
                    _ => continue,
                };
            }
            drop(records);
            pool::put_back(transaction, back)
        })
    }

    /// Returns the ids of the newest records and of the base, newest first, at most `most`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::read`](crate::store::Store::read).
    pub fn newest_ids(&self, most: usize) -> Result<Vec<SnapshotId>, StoreError> {
        self.store.read(|transaction| {
            let mut ids = Vec::new();
            for row in transaction.open_table(JOURNAL)?.iter()?.rev() {
                let (id, _) = row?.0.value();
                if ids.last() != Some(&id) {
                    ids.push(id);
                }
                if ids.len() == most {
                    break;
                }
            }
            let base = read_base(&transaction.open_table(ABOUT)?)?.id;
            if ids.len() < most && ids.last() != Some(&base) {
                ids.push(base);
            }
            Ok(ids.into_iter().map(SnapshotId).collect())
        })
    }
}

/// Deletes the block `number`. Returns its transactions.
fn remove_block(transaction: &WriteTransaction, number: u64) -> Result<Vec<StoredTx>, redb::Error> {
    if let Some(header) = transaction.open_table(HEADERS)?.remove(number)? {
        let (header, _) = decode::<StoredHeader>(header.value())?.read();
        transaction.open_table(NUMBERS)?.remove(header.hash_slow().0)?;
    }
    let body = transaction.open_table(BODIES)?.remove(number)?.map(|body| decode::<StoredBody>(body.value()));
    Ok(body.transpose()?.map_or_else(Vec::new, |body| body.transactions))
}
