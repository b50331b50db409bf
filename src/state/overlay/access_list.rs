//! The access list of a block's committed runs ([EIP-7928](https://eips.ethereum.org/EIPS/eip-7928)).

use alloy_eips::eip7928::{BlockAccessIndex, BlockAccessList};
use alloy_primitives::{Address, map::AddressMap};
use revm::state::Account;

use super::{AccessList, Overlay};

impl AccessList {
    /// Adds the accounts that a run has loaded, and its changes.
    pub fn add(&mut self, accounts: &AddressMap<Account>) {
        for (address, account) in accounts {
            self.list.update_account(BlockAccessIndex::new(self.index), *address, account);
        }
    }
}

impl Overlay {
    /// Begins to list the accesses of committed runs. The next one is at `index` in its block.
    pub fn list_accesses(&mut self, index: u64) {
        self.access_list = Some(Box::new(AccessList { index, ..AccessList::default() }));
    }

    /// Returns whether the accesses of committed runs are listed.
    pub fn lists_accesses(&self) -> bool {
        self.access_list.is_some()
    }

    /// Moves to the next index in the block, before a transaction or after the last. Does nothing unless accesses are
    /// listed.
    pub fn next_access_index(&mut self) {
        if let Some(access_list) = &mut self.access_list {
            access_list.index += 1;
        }
    }

    /// Lists an account that was accessed without a run. Does nothing unless accesses are listed.
    pub fn list_account(&mut self, address: Address) {
        if let Some(access_list) = &mut self.access_list {
            access_list.list.accounts.entry(address).or_default();
        }
    }

    /// Returns the list, and stops listing. Returns `None` unless accesses were listed.
    pub fn take_access_list(&mut self) -> Option<BlockAccessList> {
        self.access_list.take().map(|access_list| access_list.list.into_alloy_bal())
    }
}
