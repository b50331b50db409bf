//! The changes of a block as its access list has them ([EIP-7928](https://eips.ethereum.org/EIPS/eip-7928)).

use alloy_eips::eip7928::{AccountChanges, BlockAccessList};
use revm::state::AccountInfo;

use super::{AccountChange, Code, CodeCache, Lookup, World};

/// Returns the changes of a block from its access list, on the state before the block, each account once. An account
/// has no `info` if its balance, nonce and code are neither known before nor all in the list.
pub fn listed_changes(list: &BlockAccessList, before: &World, codes: &CodeCache) -> Vec<AccountChange> {
    list.iter().filter_map(|account| change(account, before, codes)).collect()
}

fn change(account: &AccountChanges, before: &World, codes: &CodeCache) -> Option<AccountChange> {
    let AccountChanges { address, storage_changes, balance_changes, nonce_changes, code_changes, .. } = account;
    // The last change of each value is its change by the whole block.
    let last_of = |changes: &alloy_eips::eip7928::SlotChanges| Some((changes.slot, changes.changes.last()?.new_value));
    let slots = storage_changes.iter().filter_map(last_of).collect::<alloy_primitives::map::HashMap<_, _>>();
    let balance = balance_changes.last().map(|change| change.post_balance);
    let nonce = nonce_changes.last().map(|change| change.new_nonce);
    let code = code_changes.last().map(|change| codes.chain(change.new_code.clone()));
    if slots.is_empty() && balance.is_none() && nonce.is_none() && code.is_none() {
        return None;
    }
    let known = match before.look_up(address) {
        Lookup::Known(info) => Some(info.unwrap_or_default()),
        Lookup::Unknown => (balance.is_some() && nonce.is_some() && code.is_some()).then(AccountInfo::default),
    };
    let after = |mut info: AccountInfo| {
        info.balance = balance.unwrap_or(info.balance);
        info.nonce = nonce.unwrap_or(info.nonce);
        if let Some(Code { hash, bytecode }) = code {
            (info.code_hash, info.code) = (hash, Some(bytecode));
        }
        info
    };
    // An account that is left empty no longer exists (EIP-161).
    let info = known.map(after).filter(|info| !info.is_empty());
    Some(AccountChange { address: *address, info, storage_cleared: false, slots })
}
