//! One account: balance, nonce, code, and its storage as a map to read and a trie to prove.

use alloy_primitives::{
    Address, B256, KECCAK256_EMPTY, U256, keccak256,
    map::{AddressMap, DefaultHashBuilder, Entry, HashMap},
};
use alloy_trie::TrieAccount;
use revm::{bytecode::Bytecode, state::AccountInfo};

use super::{
    parallel::join,
    trie::{Trie, TrieValue},
};

/// Storage slots by key. Zero is never stored.
type Slots = imbl::GenericHashMap<U256, U256, DefaultHashBuilder, imbl::shared_ptr::DefaultSharedPtr>;

/// An account as a world holds it. Cheap to clone: storage and code are shared.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Balance in wei.
    pub balance: U256,
    /// The number of transactions sent, or of contracts created.
    pub nonce: u64,
    /// The analysed bytecode with its hash.
    pub code: Code,
    /// The slots that are not zero. A partial account has the slots that were written, zero or not.
    slots: Slots,
    /// The same slots under the Keccak hash of their keys, for the storage root. Empty unless `kind` is
    /// [`StorageKind::Whole`].
    trie: Trie<U256>,
    kind: StorageKind,
}

/// The extent to which an account's storage is held here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StorageKind {
    /// All slots, with their trie.
    #[default]
    Whole,
    /// All slots, in a world that keeps no tries.
    Untracked,
    /// The slots that were written. The remote base has the others.
    Partial,
}

/// Bytecode, analysed, with the Keccak hash of its bytes.
#[derive(Clone, Debug)]
pub struct Code {
    /// Keccak hash of the bytes; `KECCAK256_EMPTY` if there are none.
    pub hash: B256,
    /// The bytes with their jump table.
    pub bytecode: Bytecode,
}

impl Code {
    /// Returns the code of an account as revm reads it.
    pub fn of(info: &AccountInfo) -> Self {
        Self { hash: info.code_hash, bytecode: info.code.clone().unwrap_or_default() }
    }

    /// Returns an account with this code as revm reads it.
    pub fn into_info(self, balance: U256, nonce: u64) -> AccountInfo {
        AccountInfo { balance, nonce, code_hash: self.hash, account_id: None, code: Some(self.bytecode) }
    }
}

/// The net change of one account.
#[derive(Clone, Debug, Default)]
pub struct AccountChange {
    /// The account's address.
    pub address: Address,
    /// The account after the change, its code included; `None` if it no longer exists.
    pub info: Option<AccountInfo>,
    /// Whether all earlier slots were deleted.
    pub storage_cleared: bool,
    /// The slots that were written, and their new values.
    pub slots: HashMap<U256, U256>,
}

impl AccountChange {
    /// Appends a later change of the same account to this one.
    pub fn then(&mut self, later: Self) {
        self.info = later.info;
        if later.storage_cleared {
            self.storage_cleared = true;
            self.slots.clear();
        }
        self.slots.extend(later.slots);
    }
}

/// Returns the changes of several steps in a row, each account once.
pub fn merged_changes<'a>(steps: impl IntoIterator<Item = &'a AccountChange>) -> Vec<AccountChange> {
    let mut merged = AddressMap::<AccountChange>::default();
    for change in steps {
        match merged.entry(change.address) {
            Entry::Vacant(place) => drop(place.insert(change.clone())),
            Entry::Occupied(known) => known.into_mut().then(change.clone()),
        }
    }
    merged.into_values().collect()
}

impl Default for Code {
    fn default() -> Self {
        Self { hash: KECCAK256_EMPTY, bytecode: Bytecode::default() }
    }
}

impl Account {
    /// Up to this many changed slots, a second thread costs more than it saves.
    const PARALLEL_FROM: usize = 64;

    /// Returns an account of a world on a remote base: the base has the slots that are not written here.
    pub(super) fn partial() -> Self {
        Self { kind: StorageKind::Partial, ..Self::default() }
    }

    /// Returns an account of such a world of which the base has nothing.
    pub(super) fn untracked() -> Self {
        Self { kind: StorageKind::Untracked, ..Self::default() }
    }

    /// Returns whether the remote base has the slots that are not held here.
    pub(super) fn is_partial(&self) -> bool {
        self.kind == StorageKind::Partial
    }

    /// Returns the value of storage slot `key` if it is held here. Always `Some` unless the account is partial.
    pub(super) fn known_slot(&self, key: &U256) -> Option<U256> {
        let value = self.slots.get(key).copied();
        if self.is_partial() { value } else { Some(value.unwrap_or_default()) }
    }

    /// Returns the value of storage slot `key`; zero if nothing was stored.
    pub fn slot(&self, key: &U256) -> U256 {
        self.slots.get(key).copied().unwrap_or_default()
    }

    /// Stores `value` in slot `key`.
    pub fn set_slot(&mut self, key: U256, value: U256) {
        if value.is_zero() && !self.is_partial() {
            if self.slots.remove(&key).is_none() {
                return;
            }
        } else {
            self.slots.insert(key, value);
        }
        if self.kind == StorageKind::Whole {
            set_leaf(&mut self.trie, key, value);
        }
    }

    /// Stores values in many slots.
    pub fn set_slots(&mut self, written: &HashMap<U256, U256>) {
        if written.len() < Self::PARALLEL_FROM || self.kind != StorageKind::Whole {
            return written.iter().for_each(|(key, value)| self.set_slot(*key, *value));
        }
        let (slots, trie) = (&mut self.slots, &mut self.trie);
        let change_map = || {
            for (key, value) in written {
                if value.is_zero() {
                    slots.remove(key)
                } else {
                    slots.insert(*key, *value)
                };
            }
        };
        let change_trie = || {
            for (key, value) in written {
                set_leaf(trie, *key, *value);
            }
        };
        join(change_map, change_trie);
    }

    /// Returns the account after `change`; `None` if it no longer exists.
    pub(super) fn changed(mut self, change: &AccountChange) -> Option<Self> {
        let info = change.info.as_ref()?;
        (self.balance, self.nonce, self.code) = (info.balance, info.nonce, Code::of(info));
        if change.storage_cleared {
            self.clear_storage();
        }
        self.set_slots(&change.slots);
        Some(self)
    }

    /// Deletes all storage.
    pub fn clear_storage(&mut self) {
        self.slots = Slots::default();
        self.trie = Trie::default();
        if self.kind == StorageKind::Partial {
            self.kind = StorageKind::Untracked;
        }
    }

    /// Returns the slots that are not zero, in no particular order.
    pub fn slots(&self) -> impl Iterator<Item = (&U256, &U256)> {
        self.slots.iter()
    }

    /// Returns the storage trie. Empty for an account of a world on a remote base.
    pub const fn storage_trie(&self) -> &Trie<U256> {
        &self.trie
    }

    /// Returns the account as the account trie has it.
    pub fn trie_account(&self) -> TrieAccount {
        TrieAccount {
            nonce: self.nonce,
            balance: self.balance,
            storage_root: self.trie.root_hash(),
            code_hash: self.code.hash,
        }
    }

    /// Returns the account as revm reads it, with its code.
    pub fn info(&self) -> AccountInfo {
        self.code.clone().into_info(self.balance, self.nonce)
    }
}

/// Stores a slot in a storage trie. A zero removes the leaf.
fn set_leaf(trie: &mut Trie<U256>, key: U256, value: U256) {
    let path = keccak256(key.to_be_bytes::<32>());
    if value.is_zero() { trie.remove(path) } else { trie.insert(path, value) }
}

impl PartialEq for Account {
    fn eq(&self, other: &Self) -> bool {
        // Tries share their unchanged parts, so the comparison visits only the differences, and hashes nothing.
        self.balance == other.balance
            && self.nonce == other.nonce
            && self.code.hash == other.code.hash
            && self.kind == other.kind
            && match self.kind {
                StorageKind::Whole => self.trie == other.trie,
                StorageKind::Untracked | StorageKind::Partial => self.slots == other.slots,
            }
    }
}

impl TrieValue for Account {
    fn encode_value(&self, out: &mut Vec<u8>) {
        self.trie_account().encode_value(out);
    }

    fn hash_in_parallel(&self) {
        self.trie.root_hash_in_parallel();
    }
}
