//! The codes that accounts get by changes: an account names its code by the hash.

use std::sync::Arc;

use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, map::B256Map};

use super::stored::{Maybe, StoredChange};
use crate::{
    ledger::StateStep,
    state::{Account, AccountChange, Code, CodeCache, LocalWorld, StoredSlot, World},
    store::corrupted,
};

/// Code by its hash.
#[derive(Clone, Debug, Default)]
pub struct CodesByHash(pub B256Map<Code>);

impl CodesByHash {
    /// Adds code as it travels.
    pub fn extend(&mut self, brought: impl IntoIterator<Item = Bytes>, cache: &CodeCache) {
        let brought = brought.into_iter().map(|code| cache.chain(code.0.to_vec().into()));
        self.0.extend(brought.map(|code| (code.hash, code)));
    }

    /// Adds a code, unless it is the empty one.
    pub fn add(&mut self, code: &Code) {
        if code.hash != KECCAK256_EMPTY {
            self.0.entry(code.hash).or_insert_with(|| code.clone());
        }
    }

    /// Returns the codes as they travel.
    pub fn bytes(&self) -> Vec<Bytes> {
        let mut codes: Vec<&Code> = self.0.values().collect();
        codes.sort_unstable_by_key(|code| code.hash);
        codes.into_iter().map(|code| code.bytecode.original_bytes()).collect()
    }

    /// Returns the encoded form of the changes of steps, each account once, and adds the codes that their accounts did not have.
    pub fn new_of(&mut self, path: &[Arc<StateStep>]) -> Vec<StoredChange> {
        for step in path {
            for change in step.changes.iter() {
                let Some(info) = &change.info else { continue };
                let known = step.before.account(&change.address).map(|account| account.code.hash);
                if known != Some(info.code_hash) {
                    self.add(&Code::of(info));
                }
            }
        }
        match path {
            [step] => stored(&step.changes),
            // A later step may change an account again.
            path => stored(&StateStep::merged(path)),
        }
    }

    /// Returns the encoded form of changes, and adds the codes of all their accounts.
    pub fn all_of(&mut self, changes: &[AccountChange]) -> Vec<StoredChange> {
        changes.iter().filter_map(|change| change.info.as_ref()).for_each(|info| self.add(&Code::of(info)));
        stored(changes)
    }

    /// Returns the accounts of a state as changes of an empty one, in the order of their addresses, and adds their codes.
    pub fn all_accounts(&mut self, world: &LocalWorld) -> Vec<StoredChange> {
        let change = |(address, account): (&Address, &Arc<Account>)| {
            self.add(&account.code);
            StoredChange {
                address: *address,
                account: Maybe(Some((&account.info()).into())),
                storage_cleared: false,
                slots: StoredSlot::sorted(account.slots()),
            }
        };
        let mut accounts: Vec<StoredChange> = world.accounts().map(change).collect();
        accounts.sort_unstable_by_key(|change| change.address);
        accounts
    }

    /// Returns the code with this hash.
    ///
    /// # Errors
    ///
    /// Returns [`redb::Error::Corrupted`] if it is not here.
    pub fn find(&self, hash: B256) -> Result<Code, redb::Error> {
        if hash == KECCAK256_EMPTY {
            return Ok(Code::default());
        }
        self.0.get(&hash).cloned().ok_or_else(|| corrupted(format!("the code with hash {hash} is missing")))
    }

    /// Returns the changes of the state `world`, in which an account may keep the code that it has.
    ///
    /// # Errors
    ///
    /// Returns [`redb::Error::Corrupted`] if a code is neither here nor the account's own.
    pub fn read(&self, changes: Vec<StoredChange>, world: &World) -> Result<Vec<AccountChange>, redb::Error> {
        let read = |change: StoredChange| {
            let Some(account) = &change.account.0 else { return Ok(change.read(Code::default())) };
            let hash = account.code_hash;
            let code = self.find(hash).or_else(|missing| {
                let own = world.account(&change.address).map(|account| account.code.clone());
                own.filter(|code| code.hash == hash).ok_or(missing)
            })?;
            Ok(change.read(code))
        };
        changes.into_iter().map(read).collect()
    }
}

/// Returns the encoded form of changes, in the order of their addresses, so that the same changes have the same bytes.
fn stored(changes: &[AccountChange]) -> Vec<StoredChange> {
    let mut stored: Vec<_> = changes.iter().map(StoredChange::from).collect();
    stored.sort_unstable_by_key(|change| change.address);
    stored
}
