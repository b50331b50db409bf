//! Values of an upstream's state.

use std::sync::Arc;

use alloy_primitives::{Address, B256, U256};

use super::{cell::AccountFields, codes::Codes, held::HeldValue, miss::Miss};
use crate::state::Code;

/// A value that was fetched.
#[derive(Clone, Debug)]
pub enum Fetched {
    /// An account. One without balance, nonce and code does not exist (EIP-161).
    Account { address: Address, balance: U256, nonce: u64, code: Code },
    /// A storage slot.
    Slot { address: Address, slot: U256, value: U256 },
    /// The hash of an ancestor of the block that it was fetched for.
    BlockHash { number: u64, hash: B256 },
}

impl Fetched {
    /// Returns the key of the value, and the value.
    pub(super) fn split(self, codes: &Arc<Codes>) -> (Miss, HeldValue) {
        match self {
            Self::Account { address, balance, nonce, code } => {
                let exists = !balance.is_zero() || nonce != 0 || !code.bytecode.is_empty();
                let fields = exists.then(|| AccountFields { balance, nonce, code: codes.hold(&code) });
                (Miss::Account(address), HeldValue::Account(fields))
            }
            Self::Slot { address, slot, value } => (Miss::Slot(address, slot), HeldValue::Slot(value)),
            Self::BlockHash { number, hash } => (Miss::BlockHash(number), HeldValue::Hash(hash)),
        }
    }
}
