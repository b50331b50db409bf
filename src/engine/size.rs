//! The memory that requests take, for the bounds of their stores.

use alloy_eips::{Encodable2718, eip4895::Withdrawal};
use alloy_primitives::{Address, B256};

use super::request::{
    AccountOverride, BlockOverrides, CallIndex, RequiredEnd, SimBlock, SimCall, Simulation, StateOverrides,
    StorageOverride,
};

impl Simulation {
    /// Returns about how many bytes it takes.
    pub(crate) fn size(&self) -> usize {
        let conditions = self.when.as_ref().map_or(0, |when| when.0.capacity());
        size_of::<Self>()
            + conditions * (size_of::<(CallIndex, RequiredEnd)>() + 1)
            + self.blocks.iter().map(SimBlock::size).sum::<usize>()
    }
}

impl SimBlock {
    /// Returns about how many bytes it takes.
    pub(super) fn size(&self) -> usize {
        size_of::<Self>()
            + self.block.size()
            + size_of_accounts(&self.state)
            + self.calls.iter().map(SimCall::size).sum::<usize>()
    }
}

impl BlockOverrides {
    /// Returns about how many bytes it takes besides its own.
    fn size(&self) -> usize {
        self.withdrawals.as_ref().map_or(0, |list| list.len() * size_of::<Withdrawal>())
    }
}

impl SimCall {
    /// Returns about how many bytes it takes.
    fn size(&self) -> usize {
        let inner = match self {
            Self::Unsigned(call) => {
                call.data.len()
                    + call.access_list.as_ref().map_or(0, |list| list.size())
                    + call.blob_hashes.as_ref().map_or(0, |hashes| hashes.len() * size_of::<B256>())
                    + call.authorization_list.as_ref().map_or(0, |list| size_of_val(list.as_slice()))
            }
            // Lists of a transaction take up to twice the bytes of their encoding.
            Self::Signed(tx) => size_of_val(&**tx) + 2 * tx.encode_2718_len(),
        };
        size_of::<Self>() + inner
    }
}

/// Returns about how many bytes state overrides take.
fn size_of_accounts(accounts: &StateOverrides) -> usize {
    let size = |account: &AccountOverride| {
        let slots = match &account.storage {
            StorageOverride::Keep => 0,
            StorageOverride::Replace(slots) | StorageOverride::Diff(slots) => size_of_val(slots.as_slice()),
        };
        size_of::<(Address, AccountOverride)>() + account.code.as_ref().map_or(0, |code| code.len()) + slots
    };
    accounts.iter().map(|(_, account)| size(account)).sum()
}
