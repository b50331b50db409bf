//! The whole state at one moment.

use std::{convert::Infallible, sync::Arc};

use alloy_genesis::Genesis;
use alloy_primitives::{Address, B256, U256, keccak256, map::DefaultHashBuilder};
use rayon::prelude::*;
use revm::state::AccountInfo;

use super::{
    Account, AccountChange, Code, CodeCache, RemoteView,
    trie::{Trie, TrieValue},
};

type Gone = imbl::GenericHashSet<Address, DefaultHashBuilder, imbl::shared_ptr::DefaultSharedPtr>;
type Accounts = imbl::GenericHashMap<Address, Arc<Account>, DefaultHashBuilder, imbl::shared_ptr::DefaultSharedPtr>;

/// Every account of a chain at one moment.
///
/// A structure-sharing map to read from and a lazily hashed trie to prove with, over the same accounts. A clone costs two
/// reference counts, whatever the size; a changed clone costs what changed: the paths to the changed accounts are new, all else is
/// shared. So hundreds of worlds that differ little are kept for the price of their differences.
///
/// A world may stand [on](World::on) the state of an upstream. Then it holds what was changed since, and what it does not hold is looked up
/// there, as far as the cache knows it. Such a world has no trie: a part of a state has no root.
#[derive(Clone, Debug, Default)]
pub struct World {
    accounts: Accounts,
    trie: Trie<Arc<Account>>,
    base: Option<Base>,
}

/// The state of an upstream, less what was taken away since.
#[derive(Clone, Debug)]
struct Base {
    view: RemoteView,
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

    /// The state of an upstream, unchanged.
    pub fn on(view: RemoteView) -> Self {
        Self { base: Some(Base { view, gone: Gone::default() }), ..Self::default() }
    }

    /// The state of an upstream that it stands on; none where all of it is here.
    pub fn remote(&self) -> Option<&RemoteView> {
        self.base.as_ref().map(|base| &base.view)
    }

    /// The same of an account that it does not hold: none where it is known to be gone.
    pub(super) fn remote_of(&self, address: &Address) -> Option<&RemoteView> {
        let base = self.base.as_ref()?;
        (base.gone.is_empty() || !base.gone.contains(address)).then_some(&base.view)
    }

    /// The account at `address`, here or in the remote base.
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

    /// The account at `address`, if it is held here: where there is a remote base, [`look_up`](Self::look_up) asks that too.
    pub fn account(&self, address: &Address) -> Option<&Arc<Account>> {
        self.accounts.get(address)
    }

    /// How many accounts are held.
    pub fn len(&self) -> usize {
        self.accounts.len()
    }

    /// Whether no account is held.
    pub fn is_empty(&self) -> bool {
        self.accounts.is_empty()
    }

    /// All accounts that are held, in no order.
    pub fn accounts(&self) -> impl Iterator<Item = (&Address, &Arc<Account>)> {
        self.accounts.iter()
    }

    /// The account trie; empty where there is a remote base.
    pub const fn trie(&self) -> &Trie<Arc<Account>> {
        &self.trie
    }

    /// The state root. Hashes what has changed since it was last asked for. Zero, which is no root, where there is a remote base.
    pub fn state_root(&self) -> B256 {
        if self.base.is_some() { B256::ZERO } else { self.trie.root_hash() }
    }

    /// The same, by all threads of rayon's global pool: not for the threads of another.
    pub fn state_root_in_parallel(&self) -> B256 {
        if self.base.is_some() { B256::ZERO } else { self.trie.root_hash_in_parallel() }
    }

    /// Puts `account`, which is whole, at `address`, in the place of what was there.
    pub fn insert(&mut self, address: Address, account: Account) {
        if let Some(base) = &mut self.base {
            base.gone.remove(&address);
            self.accounts.insert(address, Arc::new(account));
            return;
        }
        let account = Arc::new(account);
        self.trie.insert(keccak256(address), account.clone());
        self.accounts.insert(address, account);
    }

    /// Removes the account at `address`.
    pub fn remove(&mut self, address: &Address) {
        if let Some(base) = &mut self.base {
            base.gone.insert(*address);
            self.accounts.remove(address);
            return;
        }
        if self.accounts.remove(address).is_some() {
            self.trie.remove(keccak256(address));
        }
    }

    /// Applies what a run changed: each account by itself first, and then the map and the trie, which do not need each other, side
    /// by side.
    pub fn apply_many(&mut self, changes: &[AccountChange]) {
        if self.base.is_some() {
            return changes.iter().for_each(|change| match self.changed(change) {
                Some(account) => self.insert(change.address, account),
                None => self.remove(&change.address),
            });
        }
        let change =
            |change: &AccountChange| (change.address, keccak256(change.address), self.changed(change).map(Arc::new));
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

    /// What an account is after a change; none where it is gone.
    fn changed(&self, change: &AccountChange) -> Option<Account> {
        let info = change.info.as_ref()?;
        let held = self.account(&change.address).map(|known| Account::clone(known));
        let mut account = held.unwrap_or_else(|| match &self.base {
            None => Account::default(),
            Some(base) if base.gone.contains(&change.address) => Account::untracked(),
            Some(_) => Account::partial(),
        });
        (account.balance, account.nonce, account.code) = (info.balance, info.nonce, Code::of(info));
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

    fn hash_in_parallel(&self) {
        self.as_ref().hash_in_parallel();
    }
}

impl revm::DatabaseRef for World {
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
