//! The whole state at one moment.

use std::{convert::Infallible, sync::Arc};

use alloy_primitives::{Address, B256, U256, keccak256, map::DefaultHashBuilder};
use rayon::prelude::*;

use super::{
    Account,
    overlay::AccountChange,
    trie::{Trie, TrieValue},
};

type Accounts = imbl::GenericHashMap<Address, Arc<Account>, DefaultHashBuilder, imbl::shared_ptr::DefaultSharedPtr>;

/// Every account of a chain at one moment.
///
/// A structure-sharing map to read from and a lazily hashed trie to prove with, over the same accounts. A clone costs two
/// reference counts, whatever the size; a changed clone costs what changed: the paths to the changed accounts are new, all else is
/// shared. So hundreds of worlds that differ little are kept for the price of their differences.
#[derive(Clone, Debug, Default)]
pub struct World {
    accounts: Accounts,
    trie: Trie<Arc<Account>>,
}

impl World {
    /// Changed accounts that are not worth another thread.
    const AT_ONCE: usize = 32;

    /// The account at `address`, if it exists.
    pub fn account(&self, address: &Address) -> Option<&Arc<Account>> {
        self.accounts.get(address)
    }

    /// How many accounts exist.
    pub fn len(&self) -> usize {
        self.accounts.len()
    }

    /// Whether no account exists.
    pub fn is_empty(&self) -> bool {
        self.accounts.is_empty()
    }

    /// All accounts, in no order.
    pub fn accounts(&self) -> impl Iterator<Item = (&Address, &Arc<Account>)> {
        self.accounts.iter()
    }

    /// The account trie.
    pub const fn trie(&self) -> &Trie<Arc<Account>> {
        &self.trie
    }

    /// The state root. Hashes what has changed since it was last asked for.
    pub fn state_root(&self) -> B256 {
        self.trie.root_hash()
    }

    /// Puts `account` at `address`, in the place of what was there.
    pub fn insert(&mut self, address: Address, account: Account) {
        let account = Arc::new(account);
        self.trie.insert(keccak256(address), account.clone());
        self.accounts.insert(address, account);
    }

    /// Removes the account at `address`.
    pub fn remove(&mut self, address: &Address) {
        if self.accounts.remove(address).is_some() {
            self.trie.remove(keccak256(address));
        }
    }

    /// Applies what a run changed: each account by itself first, and then the map and the trie, which do not need each other, side
    /// by side.
    pub fn apply_many(&mut self, changes: &[AccountChange]) {
        let changed: Vec<(Address, B256, Option<Arc<Account>>)> = changes
            .par_iter()
            .with_min_len(Self::AT_ONCE)
            .map(|change| (change.address, keccak256(change.address), self.changed(change).map(Arc::new)))
            .collect();
        let (accounts, trie) = (&mut self.accounts, &mut self.trie);
        let change_map = || {
            for (address, _, account) in &changed {
                match account {
                    Some(account) => drop(accounts.insert(*address, account.clone())),
                    None => drop(accounts.remove(address)),
                }
            }
        };
        let change_trie = || {
            for (_, path, account) in &changed {
                match account {
                    Some(account) => trie.insert(*path, account.clone()),
                    None => trie.remove(*path),
                }
            }
        };
        rayon::join(change_map, change_trie);
    }

    /// What an account is after a change; none where it is gone.
    fn changed(&self, change: &AccountChange) -> Option<Account> {
        let (balance, nonce, code) = change.info.as_ref()?;
        let mut account = self.account(&change.address).map(|known| Account::clone(known)).unwrap_or_default();
        (account.balance, account.nonce, account.code) = (*balance, *nonce, code.clone());
        if change.storage_cleared {
            account.clear_storage();
        }
        account.set_slots(&change.slots);
        Some(account)
    }
}

impl TrieValue for Arc<Account> {
    fn encode_value(&self, out: &mut Vec<u8>) {
        self.as_ref().encode_value(out);
    }
}

impl revm::DatabaseRef for World {
    type Error = Infallible;

    fn basic_ref(&self, address: Address) -> Result<Option<revm::state::AccountInfo>, Infallible> {
        Ok(self.account(&address).map(|account| account.info()))
    }

    fn code_by_hash_ref(&self, _: B256) -> Result<revm::bytecode::Bytecode, Infallible> {
        // `basic_ref` hands every account out with its code, so revm never asks.
        Ok(revm::bytecode::Bytecode::default())
    }

    fn storage_ref(&self, address: Address, slot: U256) -> Result<U256, Infallible> {
        Ok(self.account(&address).map_or(U256::ZERO, |account| account.slot(&slot)))
    }

    fn block_hash_ref(&self, _: u64) -> Result<B256, Infallible> {
        // A world knows no blocks: a snapshot does.
        Ok(B256::ZERO)
    }
}
