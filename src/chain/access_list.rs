//! Block access lists ([EIP-7928](https://eips.ethereum.org/EIPS/eip-7928)).

use std::sync::Arc;

use alloy_eips::eip7928::{BlockAccessList, bal::Bal, total_bal_items};

/// The gas of a block's limit for each account and slot that its list may have.
const ITEM_COST: u64 = 2_000;

/// Merges the access lists of a block's parts, from the part `first` on. Returns `None` if none of these parts has a
/// list.
pub fn merged_access_list(parts: &imbl::Vector<Arc<BlockAccessList>>, first: usize) -> Option<BlockAccessList> {
    let mut merged: Option<Bal> = None;
    for part in (first..parts.len()).filter_map(|index| parts.get(index)) {
        merged.get_or_insert_default().merge(part.iter().cloned());
    }
    merged.map(|mut list| {
        list.sort();
        list.into_inner()
    })
}

/// Returns the most accounts and slots in the list of a block with this gas limit.
pub const fn most_access_list_items(gas_limit: u64) -> u64 {
    gas_limit / ITEM_COST
}

/// Returns the number of accounts and slots in a list.
pub fn access_list_items(list: &BlockAccessList) -> u64 {
    total_bal_items(list)
}
