//! A piece of state that a run needs.

use std::fmt;

use alloy_primitives::{Address, U256};

/// A piece of the upstream's state that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Miss {
    /// An account: balance, nonce and code.
    Account(Address),
    /// A storage slot.
    Slot(Address, U256),
    /// The hash of the block of this number.
    BlockHash(u64),
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Account(address) => write!(f, "account {address}"),
            Self::Slot(address, slot) => write!(f, "slot {slot:#x} of account {address}"),
            Self::BlockHash(number) => write!(f, "the hash of block {number}"),
        }
    }
}
