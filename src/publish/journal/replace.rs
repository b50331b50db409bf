//! Replacing the chain in a store by another, and removing its newest changes.

use redb::ReadableTable;

use super::{
    Journal,
    base::read_base,
    tables::{ABOUT, ACCOUNTS, BODIES, CODES, ChainIdentity, HEADERS, NUMBERS, RECORDS, SLOTS, write_record},
};
use crate::{
    ledger::{
        Chain, SnapshotId,
        codec::{CodesByHash, Entry, SubBlock},
    },
    pool,
    store::{StoreError, corrupted},
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
            transaction.delete_table(RECORDS)?;
            transaction.delete_table(ACCOUNTS)?;
            transaction.delete_table(SLOTS)?;
            transaction.delete_table(CODES)?;
            Ok(())
        })?;
        let (latest, newest) = (published.latest(), &published.newest);
        let blocks = (0..=latest.head.number()).filter_map(|number| published.sealed_block(number));
        self.found(identity, blocks.collect(), latest)?;
        let mut codes = CodesByHash::default();
        let path = newest.path.iter().position(|step| step.from == latest.state).map(|first| &newest.path[first..]);
        let Some(open) = path.and_then(|path| SubBlock::built(newest, None, path, &mut codes)) else { return Ok(()) };
        let (id, entry) = (newest.id, Entry::SubBlock(Box::new(open)));
        self.store.write_now(move |transaction| write_record(transaction, id, &entry, &codes))
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

    /// Removes the records after `last`, and puts their transactions back into the stored
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
            for row in transaction.open_table(RECORDS)?.range(last.0 + 1..)? {
                Entry::decode(row?.1.value())?;
            }
            Ok(())
        })?;
        self.store.write_now(move |transaction| {
            let mut records = transaction.open_table(RECORDS)?;
            let mut back = Vec::new();
            loop {
                let newest = records.last()?.map(|(id, _)| id.value());
                let Some(id) = newest.filter(|id| *id > last.0) else { break };
                let entry = records.remove(id)?.map(|entry| Entry::decode(entry.value())).transpose()?;
                back.splice(..0, entry.iter().flat_map(Entry::transactions).cloned());
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
            let newest = transaction.open_table(RECORDS)?;
            let newest = newest.iter()?.rev().take(most).map(|row| Ok(row?.0.value()));
            let mut ids = newest.collect::<Result<Vec<_>, redb::Error>>()?;
            let base = read_base(&transaction.open_table(ABOUT)?)?.id;
            if ids.len() < most && ids.last() != Some(&base) {
                ids.push(base);
            }
            Ok(ids.into_iter().map(SnapshotId).collect())
        })
    }
}
