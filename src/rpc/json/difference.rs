//! Changes of accounts.

use std::collections::BTreeMap;

use alloy_primitives::{Address, U256};
use revm::state::AccountInfo;

use super::Object;
use crate::engine::{AccountDiff, ValueChange};

/// Writes the changes of accounts, with the values before and after.
pub fn state_diff(out: &mut Vec<u8>, diff: &BTreeMap<Address, AccountDiff>) {
    let mut accounts = Object::new(out);
    for (address, change) in diff {
        let none = AccountInfo::default();
        let ValueChange { from, to } = &change.info;
        let (from, to) = (from.as_ref().unwrap_or(&none), to.as_ref().unwrap_or(&none));
        let mut object = Object::new(accounts.hex_key(address.as_slice()));
        if from.balance != to.balance {
            let mut balance = Object::new(object.key("balance"));
            if change.gets_fees {
                let (lost, amount) = difference(from.balance, to.balance);
                signed(balance.key("change"), lost, amount);
            } else {
                balance.u256("from", from.balance).u256("to", to.balance);
            }
            balance.end();
        }
        if from.nonce != to.nonce {
            let mut nonce = Object::new(object.key("nonce"));
            nonce.quantity("from", from.nonce).quantity("to", to.nonce);
            nonce.end();
        }
        if from.code_hash != to.code_hash {
            let bytes = |info: &AccountInfo| info.code.as_ref().map(|code| code.original_bytes()).unwrap_or_default();
            let mut code = Object::new(object.key("code"));
            code.data("from", &bytes(from)).data("to", &bytes(to));
            code.end();
        }
        if !change.slots.is_empty() {
            let mut storage = Object::new(object.key("storage"));
            for (slot, ValueChange { from, to }) in &change.slots {
                let mut values = Object::new(storage.hex_key(&slot.to_be_bytes::<32>()));
                values.data("from", &from.to_be_bytes::<32>()).data("to", &to.to_be_bytes::<32>());
                values.end();
            }
            storage.end();
        }
        object.end();
    }
    accounts.end();
}

/// Returns whether a value falls, and by how much it changes.
fn difference(from: U256, to: U256) -> (bool, U256) {
    if to < from { (true, from - to) } else { (false, to - from) }
}

/// Writes a number that may be negative as a decimal string, which the parsers of large numbers take.
pub fn signed(out: &mut Vec<u8>, negative: bool, amount: U256) {
    use std::io::Write;
    let sign = if negative { "-" } else { "" };
    let _ = write!(out, "\"{sign}{amount}\"");
}
