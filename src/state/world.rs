//! The world state: all accounts after a block or a sub-block.

use std::{convert::Infallible, sync::Arc};

use alloy_genesis::Genesis;
use alloy_primitives::{Address, B256, U256, keccak256, map::DefaultHashBuilder};
use rayon::prelude::*;
use revm::state::AccountInfo;

use super::{
    Account, AccountChange, CodeCache, RemoteView,
    parallel::{join, may_divide},
    trie::{Trie, TrieValue},
};

type Gone = imbl::GenericHashSet<Address, DefaultHashBuilder, imbl::shared_ptr::DefaultSharedPtr>;
type Accounts = imbl::GenericHashMap<Address, Arc<Account>, DefaultHashBuilder, imbl::shared_ptr::DefaultSharedPtr>;

/// All accounts of a chain at one moment.
///
/// A clone costs a few reference counts, whatever the size. A changed clone costs its changes: the paths to the changed
/// accounts are new, everything else is shared. Hundreds of worlds that differ little therefore take little more memory
/// than one.
#[derive(Clone, Debug)]
pub enum World {
    /// All of the state is local.
    Local(LocalWorld),
    /// The state is an upstream's.
    Remote(RemoteWorld),
}

/// A state that is wholly local: over the same accounts, a structure-sharing map to read from and a lazily hashed trie
/// to prove with.
#[derive(Clone, Debug, Default)]
pub struct LocalWorld {
    accounts: Accounts,
    trie: Trie<Arc<Account>>,
}

/// The state of an upstream after a block, and the changes since. State that is not held here is looked up in the
/// cache, as far as it is known. This world has no trie, because a part of a state has no root.
#[derive(Clone, Debug)]
pub struct RemoteWorld {
    view: RemoteView,
    /// Accounts that were changed.
    changed: Accounts,
    /// Accounts that no longer exist.
    gone: Gone,
}

/// The result of looking up an account.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// The account; `None` if it does not exist.
    Known(Option<AccountInfo>),
    /// The cache does not know the account. The upstream does.
    Unknown,
}

impl World {
    /// Returns the state of an upstream, unchanged.
    pub fn on(view: RemoteView) -> Self {
        Self::Remote(RemoteWorld { view, changed: Accounts::default(), gone: Gone::default() })
    }

    /// Returns the world if all of its state is local.
    pub const fn local(&self) -> Option<&LocalWorld> {
        match self {
            Self::Local(local) => Some(local),
            Self::Remote(_) => None,
        }
    }

    /// Returns the upstream's state that it is based on; `None` if all state is local.
    pub const fn remote(&self) -> Option<&RemoteView> {
        match self {
            Self::Local(_) => None,
            Self::Remote(remote) => Some(&remote.view),
        }
    }

    /// Returns the upstream's state if it has the account; `None` if the account is known not to exist there any more.
    pub(super) fn remote_of(&self, address: &Address) -> Option<&RemoteView> {
        match self {
            Self::Local(_) => None,
            Self::Remote(remote) => (!remote.is_gone(address)).then_some(&remote.view),
        }
    }

    /// Returns the account at `address`, here or in the upstream's state.
    pub fn look_up(&self, address: &Address) -> Lookup {
        if let Some(account) = self.account(address) {
            return Lookup::Known(Some(account.info()));
        }
        match self.remote_of(address).map(|view| view.account(address)) {
            None => Lookup::Known(None),
            Some(Some(info)) => Lookup::Known(info),
            Some(None) => Lookup::Unknown,
        }
    }

    /// Returns the account at `address`, if it is held here: of an upstream's state, [`look_up`](Self::look_up) asks
    /// that too.
    pub fn account(&self, address: &Address) -> Option<&Arc<Account>> {
        match self {
            Self::Local(local) => local.accounts.get(address),
            Self::Remote(remote) => remote.changed.get(address),
        }
    }

    /// Returns all accounts that are held here, in no particular order.
    pub fn accounts(&self) -> impl Iterator<Item = (&Address, &Arc<Account>)> {
        match self {
            Self::Local(local) => local.accounts.iter(),
            Self::Remote(remote) => remote.changed.iter(),
        }
    }

    /// Returns whether it is an upstream's state as that has it.
    pub fn is_unchanged_remote(&self) -> bool {
        matches!(self, Self::Remote(remote) if remote.changed.is_empty() && remote.gone.is_empty())
    }

    /// Applies the changes of a run.
    pub fn apply_many(&mut self, changes: &[AccountChange]) {
        match self {
            Self::Local(local) => local.apply_many(changes),
            Self::Remote(remote) => changes.iter().for_each(|change| remote.apply(change)),
        }
    }
}

impl Default for World {
    fn default() -> Self {
        Self::Local(LocalWorld::default())
    }
}

impl From<LocalWorld> for World {
    fn from(local: LocalWorld) -> Self {
        Self::Local(local)
    }
}

impl LocalWorld {
    /// Up to this many changed accounts, a second thread costs requests more than it saves here.
    const PARALLEL_FROM: usize = 128;

    /// Returns the state that a geth-format genesis file describes.
    pub fn of_genesis(genesis: &Genesis, codes: &CodeCache) -> Self {
        let mut world = Self::default();
        for (address, alloc) in &genesis.alloc {
            let mut account = Account::default();
            (account.nonce, account.balance) = (alloc.nonce.unwrap_or_default(), alloc.balance);
            if let Some(code) = alloc.non_empty_code() {
                account.code = codes.chain(code.clone());
            }
            for (slot, value) in alloc.storage_slots() {
                account.set_slot(slot.into(), value);
            }
            world.insert(*address, account);
        }
        world
    }

    /// Returns the account at `address`.
    pub fn account(&self, address: &Address) -> Option<&Arc<Account>> {
        self.accounts.get(address)
    }

    /// Returns all accounts, in no particular order.
    pub fn accounts(&self) -> impl Iterator<Item = (&Address, &Arc<Account>)> {
        self.accounts.iter()
    }

    /// Returns the account trie.
    pub const fn trie(&self) -> &Trie<Arc<Account>> {
        &self.trie
    }

    /// Returns the state root. Hashes only what changed since the last call.
    pub fn state_root(&self) -> B256 {
        self.trie.root_hash()
    }

    /// Returns the state root, computed on all threads of rayon's global pool if the calling thread may divide its work.
    pub fn state_root_in_parallel(&self) -> B256 {
        self.trie.root_hash_in_parallel()
    }

    /// Inserts `account`, which is whole, at `address`, replacing what was there.
    pub fn insert(&mut self, address: Address, account: Account) {
        let account = Arc::new(account);
        self.trie.insert(keccak256(address), account.clone());
        self.accounts.insert(address, account);
    }

    /// Applies the changes of a run: first each account by itself, then the map and the trie, which are independent. Many
    /// changes are applied on several threads if the calling thread may divide its work.
    pub fn apply_many(&mut self, changes: &[AccountChange]) {
        let change = |change: &AccountChange| {
            let known = self.account(&change.address).map(|known| Account::clone(known));
            let changed = known.unwrap_or_default().changed(change).map(Arc::new);
            (change.address, keccak256(change.address), changed)
        };
        let in_parallel = changes.len() >= Self::PARALLEL_FROM && may_divide();
        let changed: Vec<(Address, B256, Option<Arc<Account>>)> = if in_parallel {
            changes.par_iter().with_min_len(Self::PARALLEL_FROM / 4).map(change).collect()
        } else {
            changes.iter().map(change).collect()
        };
        let (accounts, trie) = (&mut self.accounts, &mut self.trie);
        let mut change_map = || {
            for (address, _, account) in &changed {
                match account {
                    Some(account) => drop(accounts.insert(*address, account.clone())),
                    None => drop(accounts.remove(address)),
                }
            }
        };
        let mut change_trie = || {
            for (_, path, account) in &changed {
                match account {
                    Some(account) => trie.insert(*path, account.clone()),
                    None => trie.remove(*path),
                }
            }
        };
        if in_parallel {
            join(change_map, change_trie);
        } else {
            change_map();
            change_trie();
        }
    }
}

impl RemoteWorld {
    fn is_gone(&self, address: &Address) -> bool {
        !self.gone.is_empty() && self.gone.contains(address)
    }

    fn apply(&mut self, change: &AccountChange) {
        let address = change.address;
        let known = self.changed.get(&address).map(|known| Account::clone(known));
        // The upstream's storage of a deleted account does not count.
        let begins = || if self.is_gone(&address) { Account::untracked() } else { Account::partial() };
        match known.unwrap_or_else(begins).changed(change) {
            Some(account) => {
                self.gone.remove(&address);
                self.changed.insert(address, Arc::new(account));
            }
            None => {
                self.gone.insert(address);
                self.changed.remove(&address);
            }
        }
    }
}

impl TrieValue for Arc<Account> {
    fn encode_value(&self, out: &mut Vec<u8>) {
        self.as_ref().encode_value(out);
    }

    fn hash_in_parallel(&self) {
        self.as_ref().hash_in_parallel();
    }
}

impl revm::DatabaseRef for LocalWorld {
    type Error = Infallible;

    fn basic_ref(&self, address: Address) -> Result<Option<AccountInfo>, Infallible> {
        Ok(self.account(&address).map(|account| account.info()))
    }

    fn code_by_hash_ref(&self, _: B256) -> Result<revm::bytecode::Bytecode, Infallible> {
        // `basic_ref` returns every account with its code, so revm never asks.
        Ok(revm::bytecode::Bytecode::default())
    }

    fn storage_ref(&self, address: Address, slot: U256) -> Result<U256, Infallible> {
        Ok(self.account(&address).map_or(U256::ZERO, |account| account.slot(&slot)))
    }

    fn block_hash_ref(&self, _: u64) -> Result<B256, Infallible> {
        // A world has no blocks. Snapshots have them.
        Ok(B256::ZERO)
    }
}
