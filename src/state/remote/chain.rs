//! The chain of blocks that a cache follows: a block is appended, blocks are removed by a reorg, or the chain starts again.

use std::sync::{Arc, OnceLock, atomic::Ordering::Release};

use alloy_primitives::{Address, B256, U256};

use super::{
    RemoteState, RemoteView,
    cache::Anchor,
    cell::{AccountFields, Known},
    recent::{Changed, RecentBlocks},
    versions::Versions,
};
use crate::state::{AccountChange, Code};

impl RemoteView {
    /// Appends a block to this one. It was executed here and checked, and `changes` is everything that it changed, so all
    /// other cached values stay valid.
    ///
    /// Returns `None` and does nothing unless this block is the newest of its cache, and `number` follows it.
    pub fn advance(&self, number: u64, hash: B256, changes: &[AccountChange]) -> Option<Self> {
        self.append(number, hash, changes, false)
    }

    /// Appends a block to this one as [`advance`](Self::advance) does, with the changes in its access list. For
    /// accounts without `info`, the cached versions of balance, nonce and code end before the block.
    ///
    /// Returns `None` and does nothing unless this block is the newest of its cache, and `number` follows it.
    pub fn advance_by_list(&self, number: u64, hash: B256, changes: &[AccountChange]) -> Option<Self> {
        self.append(number, hash, changes, true)
    }

    fn append(&self, number: u64, hash: B256, changes: &[AccountChange], is_listed: bool) -> Option<Self> {
        let (state, since) = (&self.state, self.anchor.since);
        let mut chain = state.chain.write();
        if !self.is_followed_by(number, &chain) {
            return None;
        }
        let (shared, oldest) = (&state.shared, chain.oldest());
        let mut prints = Vec::new();
        for change in changes {
            let address = change.address;
            if change.storage_cleared {
                prints.push(shared.cleared_print(&address));
            }
            state.with_known(address, |known| {
                if change.storage_cleared {
                    known.slots.values_mut().for_each(|slot| slot.value.end(number));
                }
                let fields = change.info.as_ref().map(|info| AccountFields {
                    balance: info.balance,
                    nonce: info.nonce,
                    code: shared.codes.hold(&Code::of(info)),
                });
                if is_listed && fields.is_none() {
                    known.info.value.end(number);
                    prints.push(shared.account_print(&address));
                // Most accounts whose slots change have no other changes, and stay known on both sides of the block.
                } else if known.info.value.begin(number, since, fields, oldest) {
                    prints.push(shared.account_print(&address));
                }
                for (slot, value) in &change.slots {
                    let begin = |versions: &mut Versions<U256>| versions.begin(number, since, *value, oldest);
                    if state.change_slot(known, address, *slot, begin) {
                        prints.push(shared.slot_prints(&address, slot)[0]);
                    }
                }
            });
        }
        prints.sort_unstable();
        prints.dedup();
        let after = self.push(&mut chain, number, hash, since, Changed::These(prints.into()));
        drop(chain);
        state.evict();
        Some(after)
    }

    /// Appends a block to this one that was not executed here, and that may have changed these accounts and slots: their cached
    /// values end before it, and all others stay valid. The values in `touched` are of no meaning.
    ///
    /// Returns `None` and does nothing unless this block is the newest of its cache, and `number` follows it.
    pub fn touch(&self, number: u64, hash: B256, touched: &[AccountChange]) -> Option<Self> {
        let (state, since) = (&self.state, self.anchor.since);
        let mut chain = state.chain.write();
        if !self.is_followed_by(number, &chain) {
            return None;
        }
        let shared = &state.shared;
        let mut prints = Vec::new();
        for AccountChange { address, storage_cleared, slots, .. } in touched {
            prints.push(shared.account_print(address));
            prints.extend(storage_cleared.then(|| shared.cleared_print(address)));
            prints.extend(slots.keys().map(|slot| shared.slot_prints(address, slot)[0]));
            state.change_known(address, |known| {
                known.info.value.end(number);
                for (slot, versions) in &mut known.slots {
                    if *storage_cleared || slots.contains_key(slot) {
                        versions.value.end(number);
                    }
                }
            });
        }
        prints.sort_unstable();
        prints.dedup();
        Some(self.push(&mut chain, number, hash, since, Changed::These(prints.into())))
    }

    /// Appends a block to this one that was not executed here. All cached values end before it.
    ///
    /// Returns `None` and does nothing unless this block is the newest of its cache, and `number` follows it.
    pub fn push_unknown_block(&self, number: u64, hash: B256) -> Option<Self> {
        let mut chain = self.state.chain.write();
        let follows = self.is_followed_by(number, &chain);
        follows.then(|| self.push(&mut chain, number, hash, number, Changed::Anything))
    }

    /// Makes this block the newest of its cache again, because a reorg has removed the blocks after it. The views of
    /// the removed blocks stay readable: their values move into a cache of the abandoned branch.
    ///
    /// Returns false and does nothing unless the cache retains this block. The chain then has to
    /// [start again](Self::begin_anew).
    pub fn go_back(&self) -> bool {
        let state = &self.state;
        let mut chain = state.chain.write();
        let Some(removed) = chain.split_after(&self.anchor) else { return false };
        // From now on, no further views of a removed block are created, except as clones.
        let read: Vec<_> = removed.iter().filter_map(|block| block.anchor.upgrade()).collect();
        let number = self.number();
        let touched = state.changed_since(number);
        if !read.is_empty() {
            let branch = Arc::new(RemoteState::with(state.shared.clone(), removed, Some(self.clone())));
            touched.iter().for_each(|address| branch.take_since(number, state, address));
            state.shared.add(&branch);
            // The views change over before anything below is undone, so that none takes a value of the new branch for one of its own.
            for anchor in read {
                let _ = anchor.branch.set(branch.clone());
            }
        }
        state.hashes.retain(|of, _| *of < number);
        for address in touched {
            state.change_known(&address, |known| {
                known.info.value.revert_to(number);
                known.slots.values_mut().for_each(|slot| slot.value.revert_to(number));
            });
        }
        drop(chain);
        state.evict();
        true
    }

    /// Begins again at any block, of which nothing is known, with a cache of its own. This block's cache is left as it is,
    /// for as long as it has views.
    #[must_use]
    pub fn begin_anew(&self, number: u64, hash: B256) -> Self {
        self.state.is_left.store(true, Release);
        RemoteState::first(self.state.shared.clone(), number, hash)
    }

    fn is_followed_by(&self, number: u64, chain: &RecentBlocks<Anchor>) -> bool {
        chain.head().is_some_and(|head| head.is(&self.anchor)) && self.number().checked_add(1) == Some(number)
    }

    fn push(&self, chain: &mut RecentBlocks<Anchor>, number: u64, hash: B256, since: u64, changed: Changed) -> Self {
        let state = &self.state;
        state.hashes.insert(self.number(), self.hash());
        state.hashes.remove(&number.saturating_sub(RemoteState::HASHES as u64));
        let anchor = Arc::new(Anchor { number, hash, since, branch: OnceLock::new() });
        chain.push(number, hash, &anchor, changed);
        Self { state: state.clone(), anchor }
    }
}

impl RemoteState {
    /// Returns the accounts of which anything has changed after the block `last`.
    fn changed_since(&self, last: u64) -> Vec<Address> {
        let has_changed = |known: &Known| {
            known.info.value.has_changed_since(last)
                || known.slots.values().any(|slot| slot.value.has_changed_since(last))
        };
        let changed = self.accounts.iter().filter(|cell| has_changed(&cell.0.read()));
        changed.map(|cell| *cell.key()).collect()
    }

    /// Copies the versions of an account that began after the block `last` from `of`.
    fn take_since(&self, last: u64, of: &Self, address: &Address) {
        let Some(cell) = of.accounts.get(address).map(|cell| cell.clone()) else { return };
        let before = cell.0.read();
        self.with_known(*address, |known| {
            if let Some(info) = before.info.value.since(last) {
                known.info.value = info;
            }
            for (slot, versions) in &before.slots {
                if let Some(since) = versions.value.since(last) {
                    self.change_slot(known, *address, *slot, |slot| *slot = since);
                }
            }
        });
    }

    /// Changes the known state of an account that is in the table.
    fn change_known(&self, address: &Address, change: impl FnOnce(&mut Known)) {
        let Some(cell) = self.accounts.get(address) else { return };
        let older = |known: &Known| {
            let slots: usize = known.slots.values().map(|slot| slot.value.count_older()).sum();
            (known.info.value.count_older(), slots)
        };
        let mut known = cell.0.write();
        let before = older(&known);
        change(&mut known);
        let after = older(&known);
        self.recount::<Option<AccountFields>>(before.0, after.0);
        self.recount::<U256>(before.1, after.1);
    }
}
