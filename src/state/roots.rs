//! The state roots of simulated blocks.

use std::sync::Arc;

use alloy_primitives::{Address, B256, U256, keccak256, map::AddressMap};
use alloy_trie::{EMPTY_ROOT_HASH, TrieAccount};

use super::{
    Account, AccountChange, LocalWorld,
    trie::{Draft, DraftValue, Scratch, TrieValue},
};

/// The state root of a [`LocalWorld`] after changes, block by block, without building the changed world.
///
/// Only tries are changed, not the maps that are read, because a run reads its changes in its own overlay.
#[derive(Debug)]
pub struct StateRoots<'a> {
    world: &'a LocalWorld,
    accounts: Draft<'a, Arc<Account>, TrieAccount>,
    /// The storage tries of the accounts whose storage changed.
    storages: AddressMap<Draft<'a, U256, U256>>,
    scratch: Scratch,
}

impl<'a> StateRoots<'a> {
    /// Starts with the state of `world`.
    pub fn of(world: &'a LocalWorld) -> Self {
        let accounts = Draft::of(world.trie());
        Self { world, accounts, storages: AddressMap::default(), scratch: Scratch::default() }
    }

    /// Returns the state root after `changes`, which apply on top of the earlier ones.
    pub fn after<'b>(&mut self, changes: impl IntoIterator<Item = &'b AccountChange>) -> B256 {
        let changes: Vec<&AccountChange> = changes.into_iter().collect();
        for change in &changes {
            self.change_storage(change);
        }
        let mut storages: Vec<_> = self.storages.values_mut().collect();
        Draft::hash_together(&mut storages, &mut self.scratch);
        for change in changes {
            let path = keccak256(change.address);
            match &change.info {
                Some(info) => {
                    let (nonce, balance, code_hash) = (info.nonce, info.balance, info.code_hash);
                    let storage_root = self.storage_root_of(change.address);
                    self.accounts.insert(path, TrieAccount { nonce, balance, storage_root, code_hash });
                }
                None => self.accounts.remove(path),
            }
        }
        Draft::hash_together(&mut [&mut self.accounts], &mut self.scratch);
        self.accounts.root_hash(&mut self.scratch)
    }

    /// Returns the root of an account's storage after the changes so far.
    pub fn storage_root_of(&mut self, address: Address) -> B256 {
        match self.storages.get_mut(&address) {
            Some(storage) => storage.root_hash(&mut self.scratch),
            None => self.known(&address).map_or(EMPTY_ROOT_HASH, |account| account.storage_trie().root_hash()),
        }
    }

    fn change_storage(&mut self, change: &AccountChange) {
        if change.storage_cleared || change.info.is_none() {
            self.storages.insert(change.address, Draft::empty());
        }
        if change.slots.is_empty() {
            return;
        }
        let base = self.known(&change.address);
        let storage = self
            .storages
            .entry(change.address)
            .or_insert_with(|| base.map_or_else(Draft::empty, |account| Draft::of(account.storage_trie())));
        for (key, value) in &change.slots {
            let path = keccak256(key.to_be_bytes::<32>());
            if value.is_zero() {
                storage.remove(path);
            } else {
                storage.insert(path, *value);
            }
        }
    }

    fn known(&self, address: &Address) -> Option<&'a Account> {
        self.world.account(address).map(Arc::as_ref)
    }
}

impl TrieValue for TrieAccount {
    fn encode_value(&self, out: &mut Vec<u8>) {
        alloy_rlp::Encodable::encode(self, out);
    }
}

impl DraftValue<Arc<Account>> for TrieAccount {
    fn is(&self, known: &Arc<Account>) -> bool {
        *self == known.trie_account()
    }
}

#[cfg(test)]
mod tests;
