//! Changes of accounts.

use std::collections::BTreeMap;

use alloy_primitives::U256;
use revm::state::AccountInfo;

use super::{
    Shape, Signed,
    hex::{Data, Quantity, Word},
    shapes,
};
use crate::engine::{AccountDiff, ValueChange};

shapes! {
    /// The change of an account: the values before and after, where they differ.
    pub AccountDifference: &AccountDiff => |change| let {
        let none = AccountInfo::default();
        let ValueChange { from, to } = &change.info;
        let (from, to) = (from.as_ref().unwrap_or(&none), to.as_ref().unwrap_or(&none));
        let code = |info: &AccountInfo| info.code.as_ref().map(|code| code.original_bytes()).unwrap_or_default();
        let balances = (change.gets_fees, from.balance, to.balance);
        let slots = change.slots.iter().map(|(slot, value)| (slot.to_be_bytes::<32>(), (value.from, value.to)));
    } {
        balance: Option<BalanceDifference> = (from.balance != to.balance).then_some(balances),
        nonce: Option<Difference<Quantity<u64>>> = (from.nonce != to.nonce).then_some((from.nonce, to.nonce)),
        code: Option<Difference<Data>> = (from.code_hash != to.code_hash).then(|| (code(from), code(to))),
        storage: Option<BTreeMap<String, Difference<Word>>> = (!change.slots.is_empty()).then_some(slots),
    }

    /// The values before and after, or for the fee recipient by how much its balance changes.
    BalanceDifference: (bool, U256, U256) => |(gets_fees, from, to)| let {
        let change = || Signed(if to < from { (true, from - to) } else { (false, to - from) });
    } {
        from: Option<Quantity<U256>> = (!gets_fees).then_some(from),
        to: Option<Quantity<U256>> = (!gets_fees).then_some(to),
        /// A decimal number, which may be negative.
        change: Option<String> = gets_fees.then(change),
    }

    /// A value before and after.
    pub Difference<T>[T: Shape<V>, V]: (V, V) => |(from, to)| {
        from: T = from,
        to: T = to,
    }
}
