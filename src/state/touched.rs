//! The parts of the state that changes touch, to compare with what runs have read.

use alloy_primitives::{
    Address, KECCAK256_EMPTY, U256,
    map::{AddressMap, HashSet},
};
use revm::state::AccountInfo;

use super::{AccountChange, AccountReads, Lookup, World};

/// The parts of the state in which two states may differ.
#[derive(Clone, Debug, Default)]
pub struct Touched(AddressMap<TouchedAccount>);

/// The parts of an account in which two states may differ.
#[derive(Clone, Debug, Default)]
pub struct TouchedAccount {
    /// The parts of the account itself.
    pub parts: AccountReads,
    /// Whether any slot may differ.
    pub all_slots: bool,
    /// The slots that differ.
    pub slots: HashSet<U256>,
}

impl Touched {
    /// Adds the parts in which the state differs from `before` after `changes`.
    pub fn add(&mut self, before: &World, changes: &[AccountChange]) {
        for change in changes {
            let touched = self.0.entry(change.address).or_default();
            touched.parts |= match before.look_up(&change.address) {
                Lookup::Known(info) => difference(info.as_ref(), change.info.as_ref()),
                Lookup::Unknown => AccountReads::all() - AccountReads::STORAGE,
            };
            let account = before.account(&change.address);
            // An account that is deleted loses its storage, regardless of the rest of the change.
            touched.all_slots |= (change.storage_cleared || change.info.is_none())
                && match account {
                    Some(account) => account.is_partial() || account.slots().next().is_some(),
                    None => before.remote().is_some(),
                };
            let differs = |slot: &U256, value: &U256| match account {
                Some(account) => account.known_slot(slot) != Some(*value),
                None => before.remote().is_some() || !value.is_zero(),
            };
            touched
                .slots
                .extend(change.slots.iter().filter(|(slot, value)| differs(slot, value)).map(|(slot, _)| *slot));
            if touched.all_slots || !touched.slots.is_empty() {
                touched.parts |= AccountReads::STORAGE;
            }
        }
    }

    /// Adds the parts in `other`.
    pub fn merge(&mut self, other: &Self) {
        for (address, account) in &other.0 {
            let touched = self.0.entry(*address).or_default();
            touched.parts |= account.parts;
            touched.all_slots |= account.all_slots;
            touched.slots.extend(&account.slots);
        }
    }

    /// Returns the accounts with the parts that are touched.
    pub fn accounts(&self) -> impl Iterator<Item = (&Address, &TouchedAccount)> {
        self.0.iter()
    }
}

/// Returns the parts of an account itself in which two of its states differ.
fn difference(before: Option<&AccountInfo>, after: Option<&AccountInfo>) -> AccountReads {
    let none = AccountInfo { code_hash: KECCAK256_EMPTY, ..AccountInfo::default() };
    let (one, other) = (before.unwrap_or(&none), after.unwrap_or(&none));
    // A balance in the upper half could overflow by a transfer of as much.
    let existence = |info: Option<&AccountInfo>| {
        (info.is_some(), info.is_some_and(AccountInfo::is_empty), info.is_some_and(|info| info.balance.bit(255)))
    };
    let mut parts = AccountReads::empty();
    parts.set(AccountReads::BALANCE, one.balance != other.balance);
    parts.set(AccountReads::NONCE, one.nonce != other.nonce);
    parts.set(AccountReads::CODE, one.code_hash != other.code_hash);
    parts.set(AccountReads::EXISTENCE, existence(before) != existence(after));
    parts
}
