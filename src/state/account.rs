//! One account: balance, nonce, code, and its storage as a map to read and a trie to prove.

use alloy_primitives::{
    Address, B256, KECCAK256_EMPTY, U256, keccak256,
    map::{DefaultHashBuilder, HashMap},
};
use alloy_trie::TrieAccount;
use revm::{bytecode::Bytecode, state::AccountInfo};

use super::trie::{Trie, TrieValue};

/// Storage slots by key. Zero is never stored.
type Slots = imbl::GenericHashMap<U256, U256, DefaultHashBuilder, imbl::shared_ptr::DefaultSharedPtr>;

/// An account as a world holds it. Cheap to clone: storage and code are shared.
#[derive(Clone, Debug)]
pub struct Account {
    /// Balance in wei.
    pub balance: U256,
    /// Transactions sent, or contracts created.
    pub nonce: u64,
    /// The analysed bytecode with its hash.
    pub code: Code,
    /// The slots that are not zero. Of a partial account those that were written, zero or not.
    slots: Slots,
    /// The same slots under the Keccak hash of their key: the storage root. Empty where `kind` says that none is kept.
    trie: Trie<U256>,
    kind: StorageKind,
}

/// What of an account's storage is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StorageKind {
    /// All of it, with its trie.
    Whole,
    /// All of it, in a world that keeps no tries.
    Untracked,
    /// What was written; the rest is the remote base's.
    Partial,
}

/// Bytecode, analysed, with the Keccak hash of its bytes.
#[derive(Clone, Debug)]
pub struct Code {
    /// Keccak hash of the bytes; `KECCAK256_EMPTY` where there are none.
    pub hash: B256,
    /// The bytes and their jump table.
    pub bytecode: Bytecode,
}

impl Code {
    /// The code of an account as revm reads it.
    pub fn of(info: &AccountInfo) -> Self {
        Self { hash: info.code_hash, bytecode: info.code.clone().unwrap_or_default() }
    }
}

/// The net change of one account.
#[derive(Clone, Debug, Default)]
pub struct AccountChange {
    /// Which account.
    pub address: Address,
    /// The account now, its code included; none where it is gone.
    pub info: Option<AccountInfo>,
    /// Whether the storage of before is gone.
    pub storage_cleared: bool,
    /// Slots written.
    pub slots: HashMap<U256, U256>,
}

impl AccountChange {
    /// Makes it this change and then a later one of the same account.
    pub fn then(&mut self, later: Self) {
        self.info = later.info;
        if later.storage_cleared {
            self.storage_cleared = true;
            self.slots.clear();
        }
        self.slots.extend(later.slots);
    }
}

impl Default for Code {
    fn default() -> Self {
        Self { hash: KECCAK256_EMPTY, bytecode: Bytecode::default() }
    }
}

impl Default for Account {
    fn default() -> Self {
        Self {
            balance: U256::ZERO,
            nonce: 0,
            code: Code::default(),
            slots: Slots::default(),
            trie: Trie::default(),
            kind: StorageKind::Whole,
        }
    }
}

impl Account {
    /// Changed slots that are not worth another thread.
    const AT_ONCE: usize = 64;

    /// An account of a world on a remote base: what is not written here is in the base.
    pub(super) fn partial() -> Self {
        Self { kind: StorageKind::Partial, ..Self::default() }
    }

    /// An account of such a world that has nothing in the base.
    pub(super) fn untracked() -> Self {
        Self { kind: StorageKind::Untracked, ..Self::default() }
    }

    /// Whether slots that are not here are in the remote base.
    pub(super) fn is_partial(&self) -> bool {
        self.kind == StorageKind::Partial
    }

    /// The value of storage slot `key`, if it is here. Of an account that is whole, it always is.
    pub(super) fn known_slot(&self, key: &U256) -> Option<U256> {
        let value = self.slots.get(key).copied();
        if self.is_partial() { value } else { Some(value.unwrap_or_default()) }
    }

    /// The value of storage slot `key`; zero where nothing was stored.
    pub fn slot(&self, key: &U256) -> U256 {
        self.slots.get(key).copied().unwrap_or_default()
    }

    /// Stores `value` in slot `key`.
    pub fn set_slot(&mut self, key: U256, value: U256) {
        if self.kind != StorageKind::Whole {
            return self.set_untracked(key, value);
        }
        let path = keccak256(key.to_be_bytes::<32>());
        if value.is_zero() {
            if self.slots.remove(&key).is_some() {
                self.trie.remove(path);
            }
        } else {
            self.slots.insert(key, value);
            self.trie.insert(path, value);
        }
    }

    /// Stores values in many slots.
    pub fn set_slots(&mut self, written: &HashMap<U256, U256>) {
        if written.len() < Self::AT_ONCE || self.kind != StorageKind::Whole {
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
                let path = keccak256(key.to_be_bytes::<32>());
                if value.is_zero() { trie.remove(path) } else { trie.insert(path, *value) }
            }
        };
        rayon::join(change_map, change_trie);
    }

    /// What it is after a change; none where it is gone.
    pub(super) fn changed(mut self, change: &AccountChange) -> Option<Self> {
        let info = change.info.as_ref()?;
        (self.balance, self.nonce, self.code) = (info.balance, info.nonce, Code::of(info));
        if change.storage_cleared {
            self.clear_storage();
        }
        self.set_slots(&change.slots);
        Some(self)
    }

    /// Forgets all storage.
    pub fn clear_storage(&mut self) {
        self.slots = Slots::default();
        self.trie = Trie::default();
        if self.kind == StorageKind::Partial {
            self.kind = StorageKind::Untracked;
        }
    }

    fn set_untracked(&mut self, key: U256, value: U256) {
        if value.is_zero() && !self.is_partial() {
            self.slots.remove(&key);
        } else {
            self.slots.insert(key, value);
        }
    }

    /// The slots that are not zero, in no order.
    pub fn slots(&self) -> impl Iterator<Item = (&U256, &U256)> {
        self.slots.iter()
    }

    /// The storage trie; of an account in a world on a remote base, an empty one.
    pub const fn storage_trie(&self) -> &Trie<U256> {
        &self.trie
    }

    /// The account as the account trie has it.
    pub fn trie_account(&self) -> TrieAccount {
        TrieAccount {
            nonce: self.nonce,
            balance: self.balance,
            storage_root: self.trie.root_hash(),
            code_hash: self.code.hash,
        }
    }

    /// The account as revm reads it, with its code.
    pub fn info(&self) -> AccountInfo {
        AccountInfo {
            balance: self.balance,
            nonce: self.nonce,
            code_hash: self.code.hash,
            account_id: None,
            code: Some(self.code.bytecode.clone()),
        }
    }
}

impl PartialEq for Account {
    fn eq(&self, other: &Self) -> bool {
        // Tries share what did not change, so this walks the differences alone, and hashes nothing.
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
        alloy_rlp::Encodable::encode(&self.trie_account(), out);
    }

    fn hash_in_parallel(&self) {
        self.trie.root_hash_in_parallel();
    }
}
