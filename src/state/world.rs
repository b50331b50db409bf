//! The whole state at one moment.

use std::{convert::Infallible, sync::Arc};

use alloy_genesis::Genesis;
use alloy_primitives::{Address, B256, U256, keccak256, map::DefaultHashBuilder};
use rayon::prelude::*;
use revm::state::AccountInfo;

use super::{
    Account, AccountChange, CodeCache, RemoteView,
    trie::{Trie, TrieValue},
};

type Gone = imbl::GenericHashSet<Address, DefaultHashBuilder, imbl::shared_ptr::DefaultSharedPtr>;
type Accounts = imbl::GenericHashMap<Address, Arc<Account>, DefaultHashBuilder, imbl::shared_ptr::DefaultSharedPtr>;

/// Every account of a chain at one moment.
///
/// A clone costs a few reference counts, whatever the size; a changed clone costs what changed: the paths to the changed accounts are new, all
/// else is shared. So hundreds of worlds that differ little are kept for the price of their differences.
#[derive(Clone, Debug)]
pub enum World {
    /// All of the state is here.
    Local(LocalWorld),
    /// The state is an upstream's.
    Remote(RemoteWorld),
}

/// A state that is all here: a structure-sharing map to read from and a lazily hashed trie to prove with, over the same accounts.
#[derive(Clone, Debug, Default)]
pub struct LocalWorld {
    accounts: Accounts,
    trie: Trie<Arc<Account>>,
}

/// The state of an upstream after a block, and what was changed since. What is not here is looked up there, as far as the cache knows it. It
/// has no trie: a part of a state has no root.
#[derive(Clone, Debug)]
pub struct RemoteWorld {
    view: RemoteView,
    /// Accounts that were changed.
    changed: Accounts,
    /// Accounts that exist no more.
    gone: Gone,
}

/// What a world says of an account.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// There is this one, or none.
    Known(Option<AccountInfo>),
    /// It is not known yet: the upstream knows.
    Unknown,
}

impl World {
    /// The state of an upstream, unchanged.
    pub fn on(view: RemoteView) -> Self {
        Self::Remote(RemoteWorld { view, changed: Accounts::default(), gone: Gone::default() })
    }

    /// The world, where all of the state is here.
    pub const fn local(&self) -> Option<&LocalWorld> {
        match self {
            Self::Local(local) => Some(local),
            Self::Remote(_) => None,
        }
    }

    /// The same, for good.
    pub fn into_local(self) -> Option<LocalWorld> {
        match self {
            Self::Local(local) => Some(local),
            Self::Remote(_) => None,
        }
    }

    /// The state of an upstream that it stands on; none where all of it is here.
    pub const fn remote(&self) -> Option<&RemoteView> {
        match self {
            Self::Local(_) => None,
            Self::Remote(remote) => Some(&remote.view),
        }
    }

    /// The same of an account that it does not hold: none where it is known to be gone.
    pub(super) fn remote_of(&self, address: &Address) -> Option<&RemoteView> {
        match self {
            Self::Local(_) => None,
            Self::Remote(remote) => (!remote.is_gone(address)).then_some(&remote.view),
        }
    }

    /// The account at `address`, here or in the upstream's state.
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

    /// The account at `address`, if it is held here: of an upstream's state, [`look_up`](Self::look_up) asks that too.
    pub fn account(&self, address: &Address) -> Option<&Arc<Account>> {
        match self {
            Self::Local(local) => local.accounts.get(address),
            Self::Remote(remote) => remote.changed.get(address),
        }
    }

    /// Whether it is an upstream's state as that has it.
    pub fn is_unchanged_remote(&self) -> bool {
        matches!(self, Self::Remote(remote) if remote.changed.is_empty() && remote.gone.is_empty())
    }

    /// Applies what a run changed.
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
    /// Changed accounts that are not worth another thread: to wake it, and to have it look for more, would take from requests what is won.
    const AT_ONCE: usize = 128;

    /// The state that a geth-format genesis file describes.
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

    /// The account at `address`.
    pub fn account(&self, address: &Address) -> Option<&Arc<Account>> {
        self.accounts.get(address)
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

    /// The same, by all threads of rayon's global pool: not for the threads of another.
    pub fn state_root_in_parallel(&self) -> B256 {
        self.trie.root_hash_in_parallel()
    }

    /// Puts `account`, which is whole, at `address`, in the place of what was there.
    pub fn insert(&mut self, address: Address, account: Account) {
        let account = Arc::new(account);
        self.trie.insert(keccak256(address), account.clone());
        self.accounts.insert(address, account);
    }

    /// Applies what a run changed: each account by itself first, and then the map and the trie, which do not need each other, side
    /// by side.
    pub fn apply_many(&mut self, changes: &[AccountChange]) {
        let change = |change: &AccountChange| {
            let known = self.account(&change.address).map(|known| Account::clone(known));
            let changed = known.unwrap_or_default().changed(change).map(Arc::new);
            (change.address, keccak256(change.address), changed)
        };
        let in_parallel = changes.len() >= Self::AT_ONCE;
        let changed: Vec<(Address, B256, Option<Arc<Account>>)> = if in_parallel {
            changes.par_iter().with_min_len(Self::AT_ONCE / 4).map(change).collect()
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
            rayon::join(change_map, change_trie);
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
        // Of what has gone, nothing is the upstream's any more.
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
