//! Block access lists (EIP-7928), as execution-apis has them.

use alloy_eips::eip7928;
use alloy_primitives::U256;

use super::{
    Shape,
    hex::{Data, Fixed, Quantity, Word},
    shapes,
};

shapes! {
    /// The part of a block's access list about an account (EIP-7928).
    // All six fields are present, in the order of the list's RLP.
    pub AccountChanges: &eip7928::AccountChanges => |account| let {
        let balances = account.balance_changes.iter().map(|change| (change.block_access_index.get(), change.post_balance));
        let nonces = account.nonce_changes.iter().map(|change| (change.block_access_index.get(), change.new_nonce));
    } {
        address: Fixed<20> = account.address,
        storageChanges: Vec<SlotChanges> = &account.storage_changes,
        storageReads: Vec<Word> = account.storage_reads.iter().copied(),
        balanceChanges: Vec<ValueChange<Quantity<U256>>> = balances,
        nonceChanges: Vec<ValueChange<Quantity<u64>>> = nonces,
        codeChanges: Vec<CodeChange> = &account.code_changes,
    }

    SlotChanges: &eip7928::SlotChanges => |slot| let {
        let changes = slot.changes.iter().map(|change| (change.block_access_index.get(), change.new_value));
    } {
        key: Word = slot.slot,
        changes: Vec<ValueChange<Word>> = changes,
    }

    /// A value after the transaction with this index.
    #[schemars(inline)]
    ValueChange<T>[T: Shape<V>, V]: (u64, V) => |(index, value)| {
        index: Quantity<u64> = index,
        value: T = value,
    }

    CodeChange: &eip7928::CodeChange => |change| {
        index: Quantity<u64> = change.block_access_index.get(),
        code: Data = &change.new_code,
    }
}
