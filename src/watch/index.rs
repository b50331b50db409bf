//! The index from read state to its readers.

use alloy_primitives::{Address, U256, map::HashMap};

use crate::{
    engine::ContextChange,
    state::{AccountReads, BlockReads, ReadSet, Touched},
};

/// A value that a bundle may have read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum ReadKey {
    /// A part of an account.
    Part(Address, AccountReads),
    /// A slot.
    Slot(Address, U256),
    /// Any slot of an account.
    AnySlot(Address),
    /// Any read of an account. It decides the cost if the fee recipient changes (EIP-3651).
    Access(Address),
    /// A field of the block.
    Field(BlockReads),
    /// The hash of an earlier block.
    Hash,
    /// Anything.
    Everything,
}

/// The bundles that have read each value.
#[derive(Debug, Default)]
pub struct ReadIndex {
    readers: HashMap<ReadKey, Vec<u32>>,
}

impl ReadIndex {
    /// Replaces the reads of the bundle `reader`.
    pub fn replace(&mut self, reader: u32, before: &ReadSet, now: &ReadSet) {
        if before == now {
            return;
        }
        let (mut old, mut new) = (keys(before), keys(now));
        old.sort_unstable();
        new.sort_unstable();
        for key in old.iter().filter(|key| new.binary_search(key).is_err()) {
            if let Some(readers) = self.readers.get_mut(key) {
                if let Some(at) = readers.iter().position(|one| *one == reader) {
                    readers.swap_remove(at);
                }
                if readers.is_empty() {
                    self.readers.remove(key);
                }
            }
        }
        for key in new.iter().filter(|key| old.binary_search(key).is_err()) {
            self.readers.entry(*key).or_default().push(reader);
        }
    }

    /// Calls `found` with each bundle that has read a touched value. A bundle may be found several times.
    pub fn touched(&self, touched: &Touched, mut found: impl FnMut(u32)) {
        let mut find = |key: ReadKey| self.readers.get(&key).into_iter().flatten().for_each(|reader| found(*reader));
        find(ReadKey::Everything);
        for (address, account) in touched.accounts() {
            account.parts.iter().for_each(|part| find(ReadKey::Part(*address, part)));
            if account.all_slots {
                find(ReadKey::AnySlot(*address));
            } else {
                account.slots.iter().for_each(|slot| find(ReadKey::Slot(*address, *slot)));
            }
        }
    }

    /// Calls `found` with each bundle that has read a part of the block that has changed. Bounds of gas are not
    /// considered.
    pub fn changed(&self, change: &ContextChange, mut found: impl FnMut(u32)) {
        let mut find = |key: ReadKey| self.readers.get(&key).into_iter().flatten().for_each(|reader| found(*reader));
        find(ReadKey::Everything);
        change.fields.iter().for_each(|field| find(ReadKey::Field(field)));
        if change.hashes {
            find(ReadKey::Hash);
        }
        change.recipients.into_iter().flatten().for_each(|address| find(ReadKey::Access(address)));
    }

    /// Returns about how many bytes the index takes for a set of reads.
    pub fn size(reads: &ReadSet) -> usize {
        const KEY: usize = size_of::<(ReadKey, Vec<u32>)>() / 2 + 8;
        let slots: usize = reads.accounts.iter().map(|account| account.slots.len()).sum();
        (4 * reads.accounts.len() + slots + 4) * KEY
    }
}

/// Returns the values that are in a set, each once.
fn keys(reads: &ReadSet) -> Vec<ReadKey> {
    if reads.everything {
        return vec![ReadKey::Everything];
    }
    let mut keys: Vec<ReadKey> = reads.block.iter().map(ReadKey::Field).collect();
    if !reads.hashes.is_empty() {
        keys.push(ReadKey::Hash);
    }
    for account in &reads.accounts {
        let address = account.address;
        keys.push(ReadKey::Access(address));
        keys.extend(account.parts.iter().map(|part| ReadKey::Part(address, part)));
        keys.extend(account.slots.iter().map(|slot| ReadKey::Slot(address, *slot)));
        if !account.slots.is_empty() {
            keys.push(ReadKey::AnySlot(address));
        }
    }
    keys
}
