//! Reads that assign no numbers to accounts: of the overlay itself, and of other worlds.

use std::convert::Infallible;

use alloy_primitives::{Address, B256, U256};
use revm::{DatabaseRef, bytecode::Bytecode, state::AccountInfo};

use super::{Overlay, RemoteAccount};
use crate::state::{Lookup, World, remote::Miss};

impl Overlay {
    /// Returns the account at `address` in `world`, which need not be the base, or `None` if it does not exist. Records
    /// a miss if the account is not known.
    pub fn look_up(&self, world: &World, address: Address) -> Option<AccountInfo> {
        match world.look_up(&address) {
            Lookup::Known(info) => info,
            Lookup::Unknown => {
                world.remote().map(|view| self.note_miss(view, Miss::Account(address)));
                None
            }
        }
    }

    /// Returns a storage slot in `world`, which need not be the base. Records a miss if the slot is not known.
    pub fn look_up_slot(&self, world: &World, address: Address, slot: U256) -> U256 {
        if let Some(value) = world.account(&address).and_then(|account| account.known_slot(&slot)) {
            return value;
        }
        let Some(view) = world.remote_of(&address) else { return U256::ZERO };
        view.slot(&address, &slot).unwrap_or_else(|| {
            self.note_miss(view, Miss::Slot(address, slot));
            U256::ZERO
        })
    }
}

/// Reads as [`Database`](revm::Database) does, without giving accounts a number.
impl DatabaseRef for Overlay {
    type Error = Infallible;

    fn basic_ref(&self, address: Address) -> Result<Option<AccountInfo>, Infallible> {
        if let Some(id) = self.ids.get(&address) {
            return Ok(self.entries[*id].now.info.clone());
        }
        Ok(self.look_up(&self.base, address))
    }

    fn code_by_hash_ref(&self, _: B256) -> Result<Bytecode, Infallible> {
        // `basic_ref` returns every account with its code.
        Ok(Bytecode::default())
    }

    fn storage_ref(&self, address: Address, slot: U256) -> Result<U256, Infallible> {
        let Some(id) = self.ids.get(&address) else { return Ok(self.look_up_slot(&self.base, address, slot)) };
        let entry = &self.entries[*id];
        if let Some(value) = entry.held_slot(&slot) {
            return Ok(value);
        }
        let Some(RemoteAccount { view, cell }) = &entry.remote else { return Ok(U256::ZERO) };
        Ok(view.slot_in(cell.as_deref(), &address, &slot).unwrap_or_else(|| {
            self.note_miss(view, Miss::Slot(address, slot));
            U256::ZERO
        }))
    }

    fn block_hash_ref(&self, number: u64) -> Result<B256, Infallible> {
        if let Some(hash) = self.hashes.get(number) {
            return Ok(hash);
        }
        let Some(view) = self.base.remote() else { return Ok(B256::ZERO) };
        Ok(view.block_hash(number).unwrap_or_else(|| {
            self.note_miss(view, Miss::BlockHash(number));
            B256::ZERO
        }))
    }
}
