//! The state after one block, as it is read and as fetched values are added to it.

use std::{
    cmp::Ordering,
    sync::{Arc, atomic::Ordering::Acquire},
};

use alloy_primitives::{Address, B256, U256};
use revm::state::AccountInfo;

use super::{
    Cell, Fetched, Held, Miss, RemoteState, RemoteView,
    cache::Anchor,
    cell::AccountFields,
    held::{HeldValue, HeldValues},
    versions::Versions,
};

impl RemoteView {
    /// Returns the block's number.
    pub fn number(&self) -> u64 {
        self.anchor.number
    }

    /// Returns the block's hash.
    pub fn hash(&self) -> B256 {
        self.anchor.hash
    }

    /// Returns the cache of the chain that the block was appended to.
    pub const fn state(&self) -> &Arc<RemoteState> {
        &self.state
    }

    /// Returns whether the block is no longer part of the chain: a reorg has removed it, or the chain has started again.
    pub fn is_abandoned(&self) -> bool {
        self.anchor.branch.get().is_some() || self.state.is_left.load(Acquire)
    }

    /// Returns an account. The outer `None` means unknown, the inner one that the account does not exist.
    pub fn account(&self, address: &Address) -> Option<Option<AccountInfo>> {
        self.account_in(self.cell(address).as_deref(), address)
    }

    /// Returns a storage slot, if it is known.
    pub fn slot(&self, address: &Address, slot: &U256) -> Option<U256> {
        self.slot_in(self.cell(address).as_deref(), address, slot)
    }

    /// Returns the hash of the block of this number, if it is known. Later blocks have the hash zero, as `BLOCKHASH`
    /// requires.
    pub fn block_hash(&self, number: u64) -> Option<B256> {
        if number > self.number() {
            return Some(B256::ZERO);
        }
        let find = |state: &RemoteState, block: &Anchor| match number.cmp(&block.number) {
            Ordering::Less => state.hashes.get(&number).map(|hash| *hash),
            Ordering::Equal => Some(block.hash),
            Ordering::Greater => None,
        };
        self.find(find, |_, _| false).or_else(|| self.held_values().block_hash(self.hash(), number))
    }

    /// Returns whether a piece of the state is known.
    pub fn knows(&self, miss: &Miss) -> bool {
        match miss {
            Miss::Account(address) => self.account(address).is_some(),
            Miss::Slot(address, slot) => self.slot(address, slot).is_some(),
            Miss::BlockHash(number) => self.block_hash(*number).is_some(),
        }
    }

    /// Adds values that were fetched at the block to the cache.
    pub fn insert(&self, values: impl IntoIterator<Item = Fetched>) {
        self.split(values).for_each(|(key, value)| self.cache(key, &value));
    }

    /// Adds values as [`insert`](Self::insert) does, and holds them.
    pub fn insert_held(&self, values: impl IntoIterator<Item = Fetched>) -> Held {
        Held::of(self, self.split(values).inspect(|(key, value)| self.cache(*key, value)))
    }

    /// Holds values without adding them to the cache.
    pub fn hold(&self, values: impl IntoIterator<Item = Fetched>) -> Held {
        Held::of(self, self.split(values))
    }

    fn split(&self, values: impl IntoIterator<Item = Fetched>) -> impl Iterator<Item = (Miss, HeldValue)> {
        values.into_iter().map(|value| value.split(&self.state.shared.codes))
    }

    fn cache(&self, key: Miss, value: &HeldValue) {
        let block = self.number();
        loop {
            let home = self.home();
            // No block is appended or removed meanwhile.
            let chain = home.chain.read();
            if !Arc::ptr_eq(home, self.home()) {
                continue;
            }
            let (since, oldest, shared) = (self.anchor.since, chain.oldest(), &home.shared);
            match (key, value) {
                (Miss::Account(address), HeldValue::Account(fields)) => {
                    let until = chain.next_change(block, &[shared.account_print(&address)]);
                    let fields = fields.clone();
                    home.with_known(address, |known| known.info.value.insert(block, until, since, fields, oldest));
                }
                (Miss::Slot(address, slot), HeldValue::Slot(value)) => {
                    let until = chain.next_change(block, &shared.slot_prints(&address, &slot));
                    let insert = |versions: &mut Versions<U256>| versions.insert(block, until, since, *value, oldest);
                    home.with_known(address, |known| home.change_slot(known, address, slot, insert));
                }
                (Miss::BlockHash(number), HeldValue::Hash(hash)) if number < block => {
                    if home.hashes.len() >= RemoteState::HASHES {
                        home.hashes.clear();
                    }
                    home.hashes.insert(number, *hash);
                }
                _ => {}
            }
            drop(chain);
            return home.evict();
        }
    }

    /// Returns the cache with the block's own values: the branch's cache if the branch is abandoned.
    fn home(&self) -> &Arc<RemoteState> {
        self.anchor.branch.get().unwrap_or(&self.state)
    }

    /// Returns the cell of an account, so that repeated reads need no look-up.
    pub(crate) fn cell(&self, address: &Address) -> Option<Arc<Cell>> {
        self.state.accounts.get(address).map(|cell| cell.clone())
    }

    /// Returns an account, given its cell in the cache.
    pub(crate) fn account_in(&self, cell: Option<&Cell>, address: &Address) -> Option<Option<AccountInfo>> {
        if let Some(info) = cell.and_then(|cell| cell.info(self.anchor.number, self.anchor.since))
            && self.anchor.branch.get().is_none()
        {
            return Some(info);
        }
        let fields = self.fields_elsewhere(address)?;
        Some(fields.as_ref().map(AccountFields::info))
    }

    /// Returns a storage slot of an account, given the account's cell in the cache.
    pub(crate) fn slot_in(&self, cell: Option<&Cell>, address: &Address, slot: &U256) -> Option<U256> {
        // The value is read before the look at the branch, because the cache gets values of another branch only after
        // the block's own has been set.
        if let Some(value) = cell.and_then(|cell| cell.slot(slot, self.anchor.number, self.anchor.since))
            && self.anchor.branch.get().is_none()
        {
            return Some(value);
        }
        self.slot_elsewhere(address, slot)
    }

    #[cold]
    fn fields_elsewhere(&self, address: &Address) -> Option<Option<AccountFields>> {
        let find = |state: &RemoteState, block: &Anchor| state.accounts.get(address)?.fields(block.number, block.since);
        let print = [self.state.shared.account_print(address)];
        let found = self.find(find, |branch, block| branch.is_changed_on(block, &print));
        found.or_else(|| self.held_values().account(self.hash(), *address))
    }

    #[cold]
    fn slot_elsewhere(&self, address: &Address, slot: &U256) -> Option<U256> {
        let find =
            |state: &RemoteState, block: &Anchor| state.accounts.get(address)?.slot(slot, block.number, block.since);
        let prints = self.state.shared.slot_prints(address, slot);
        let found = self.find(find, |branch, block| branch.is_changed_on(block, &prints));
        found.or_else(|| self.held_values().slot(self.hash(), *address, *slot))
    }

    /// Finds a value at the block in its cache, or, if a reorg has removed the block, in the cache of the abandoned
    /// branch. If the branch neither has nor has changed the value, it is the value at the block where the branch
    /// begins, which a later reorg may have removed too.
    fn find<T>(
        &self,
        find: impl Fn(&RemoteState, &Anchor) -> Option<T>,
        is_changed: impl Fn(&RemoteState, &Anchor) -> bool,
    ) -> Option<T> {
        let mut at = self;
        loop {
            let home = at.home();
            let found = find(home, &at.anchor);
            if !Arc::ptr_eq(home, at.home()) {
                continue;
            }
            match &home.fork {
                Some(fork) if found.is_none() && !is_changed(home, &at.anchor) => at = fork,
                _ => return found,
            }
        }
    }

    /// Returns the value of a piece of the state, if it is known.
    pub(super) fn value(&self, key: &Miss) -> Option<HeldValue> {
        match key {
            Miss::Account(address) => self.fields_elsewhere(address).map(HeldValue::Account),
            Miss::Slot(address, slot) => self.slot(address, slot).map(HeldValue::Slot),
            Miss::BlockHash(number) => self.block_hash(*number).map(HeldValue::Hash),
        }
    }

    pub(super) fn held_values(&self) -> &HeldValues {
        &self.state.shared.held
    }
}

impl RemoteState {
    /// Returns whether this abandoned branch has changed a value of one of these fingerprints between the block where it begins
    /// and `block`, or may have.
    fn is_changed_on(&self, block: &Anchor, prints: &[u64]) -> bool {
        let is_cut = self.fork.as_ref().is_none_or(|fork| block.since > fork.number());
        is_cut || self.chain.read().has_changed(block.number, prints)
    }
}

impl std::fmt::Debug for RemoteView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteView").field("number", &self.number()).field("hash", &self.hash()).finish_non_exhaustive()
    }
}

impl PartialEq for RemoteView {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.anchor, &other.anchor)
    }
}
