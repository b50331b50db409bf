//! The values that were fetched for requests, for as long as the requests need them.

use alloy_primitives::{Address, B256, U256, map::DefaultHashBuilder};
use dashmap::DashMap;

use super::{cell::AccountFields, miss::Miss};

/// A value at one block.
#[derive(Clone, Debug)]
pub(super) enum HeldValue {
    /// `None` if the account does not exist.
    Account(Option<AccountFields>),
    Slot(U256),
    Hash(B256),
}

/// The held values, by the hash of their block, with the number of their holders.
///
/// A cache may lack a value that was fetched a moment ago: it evicts, and it drops versions that ended before the
/// oldest block whose state it retains. These may be all versions of a block that aged while its values were fetched.
/// If runs only read the cache, they could fetch one value again and again. So the fetching task holds its values until
/// its runs are done, and reads find them here if the cache has none.
#[derive(Debug, Default)]
pub(super) struct HeldValues(DashMap<(B256, Miss), (HeldValue, usize), DefaultHashBuilder>);

impl HeldValues {
    pub fn account(&self, hash: B256, address: Address) -> Option<Option<AccountFields>> {
        match self.get(hash, Miss::Account(address))? {
            HeldValue::Account(fields) => Some(fields),
            _ => None,
        }
    }

    pub fn slot(&self, hash: B256, address: Address, slot: U256) -> Option<U256> {
        match self.get(hash, Miss::Slot(address, slot))? {
            HeldValue::Slot(value) => Some(value),
            _ => None,
        }
    }

    pub fn block_hash(&self, hash: B256, number: u64) -> Option<B256> {
        match self.get(hash, Miss::BlockHash(number))? {
            HeldValue::Hash(value) => Some(value),
            _ => None,
        }
    }

    fn get(&self, hash: B256, key: Miss) -> Option<HeldValue> {
        self.0.get(&(hash, key)).map(|held| held.0.clone())
    }

    pub fn add(&self, hash: B256, key: Miss, value: HeldValue) {
        self.0.entry((hash, key)).or_insert((value, 0)).1 += 1;
    }

    pub fn release(&self, hash: B256, key: Miss) {
        self.0.remove_if_mut(&(hash, key), |_, (_, holders)| {
            *holders -= 1;
            *holders == 0
        });
    }
}
