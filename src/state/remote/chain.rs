//! The chain of blocks that the cache follows: a block is appended, or blocks are removed by a reorg.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Release},
};

use alloy_primitives::B256;

use super::{
    RemoteState, RemoteView,
    cell::{AccountFields, Known},
    recent::Changed,
};
use crate::state::{AccountChange, Code};

impl RemoteState {
    /// Retains the states of so many blocks from now on, at least 1.
    pub fn retain_blocks(&self, blocks: usize) {
        self.chain.write().kept = blocks.max(1);
    }

    /// Returns the number and hash of the newest block.
    pub fn head(&self) -> (u64, B256) {
        self.chain.read().head().map_or((0, B256::ZERO), |head| (head.number, head.hash))
    }

    /// Returns the state after the newest block.
    pub fn newest(self: &Arc<Self>) -> Option<RemoteView> {
        let anchor = self.chain.read().head()?.clone();
        Some(RemoteView { state: self.clone(), anchor })
    }

    /// Returns the state after a block; `None` unless it is one of the newest of the chain that are retained.
    pub fn view(self: &Arc<Self>, number: u64, hash: B256) -> Option<RemoteView> {
        let anchor = self.chain.read().find(number, hash)?.clone();
        Some(RemoteView { state: self.clone(), anchor })
    }

    /// Appends a block that was executed here and checked. `changes` is everything that it changed, so all other cached
    /// values stay valid.
    ///
    /// Returns `None` and does nothing unless `number` follows the newest block.
    pub fn advance(self: &Arc<Self>, number: u64, hash: B256, changes: &[AccountChange]) -> Option<RemoteView> {
        let mut chain = self.chain.write();
        let head = chain.head()?;
        if head.number.checked_add(1) != Some(number) {
            return None;
        }
        let (since, parent, oldest) = (head.since, head.clone(), chain.oldest());
        let mut prints = Vec::new();
        for change in changes {
            let address = change.address;
            prints.push(self.account_print(&address));
            if change.storage_cleared {
                prints.push(self.cleared_print(&address));
            }
            prints.extend(change.slots.keys().map(|slot| self.slot_prints(&address, slot)[0]));
            self.with(address, |known| {
                if change.storage_cleared {
                    known.slots.values_mut().for_each(|slot| slot.value.end(number));
                }
                let fields = change.info.as_ref().map(|info| AccountFields {
                    balance: info.balance,
                    nonce: info.nonce,
                    code: self.codes.hold(&Code::of(info)),
                });
                known.info.value.begin(number, since, fields, oldest);
                for (slot, value) in &change.slots {
                    self.change_slot(known, address, *slot, |slot| slot.begin(number, since, *value, oldest));
                }
            });
        }
        prints.sort_unstable();
        prints.dedup();
        self.hashes.insert(parent.number, parent.hash);
        self.hashes.remove(&number.saturating_sub(Self::HASHES as u64));
        let anchor = chain.push(number, hash, since, Changed::These(prints.into()));
        drop(chain);
        self.evict();
        Some(RemoteView { state: self.clone(), anchor })
    }

    /// Appends a block that was not executed here, or one several blocks ahead. All cached values end before it.
    ///
    /// Returns `None` and does nothing unless `number` is after the newest block.
    pub fn cut(self: &Arc<Self>, number: u64, hash: B256) -> Option<RemoteView> {
        let mut chain = self.chain.write();
        let head = chain.head()?.clone();
        if number <= head.number {
            return None;
        }
        if head.number + 1 == number {
            self.hashes.insert(head.number, head.hash);
            self.hashes.remove(&number.saturating_sub(Self::HASHES as u64));
        } else {
            // The blocks between are unknown, and so is whether the earlier ones are ancestors of this one.
            self.hashes.clear();
            chain.blocks.clear();
        }
        let anchor = chain.push(number, hash, number, Changed::Anything);
        Some(RemoteView { state: self.clone(), anchor })
    }

    /// Removes the blocks after `number` because of a reorg. Views of removed blocks know nothing from now on.
    ///
    /// Returns `None` if that block is not one of the newest that are retained. The chain then has to [`restart`](Self::restart).
    pub fn revert_to(self: &Arc<Self>, number: u64, hash: B256) -> Option<RemoteView> {
        let mut chain = self.chain.write();
        let anchor = chain.find(number, hash)?.clone();
        // Views die first, so that no reader takes a value written below for one of the old branch.
        for dead in chain.blocks.iter().filter(|block| block.anchor.number > number) {
            dead.anchor.alive.store(false, Release);
        }
        chain.blocks.retain(|block| block.anchor.number <= number);
        self.hashes.retain(|of, _| *of < number);
        self.change_all(|known| {
            known.info.value.revert_to(number);
            known.slots.values_mut().for_each(|slot| slot.value.revert_to(number));
        });
        Some(RemoteView { state: self.clone(), anchor })
    }

    /// Starts again at any block. Nothing is known of it, and every earlier view knows nothing from now on.
    pub fn restart(self: &Arc<Self>, number: u64, hash: B256) -> RemoteView {
        let mut chain = self.chain.write();
        chain.era.store(false, Release);
        self.hashes.clear();
        self.change_all(|known| {
            known.info.value.clear();
            known.slots.values_mut().for_each(|slot| slot.value.clear());
        });
        chain.blocks.clear();
        chain.era = Arc::new(AtomicBool::new(true));
        let anchor = chain.push(number, hash, number, Changed::Anything);
        RemoteView { state: self.clone(), anchor }
    }

    fn change_all(&self, change: impl Fn(&mut Known)) {
        let older = |known: &Known| {
            let slots: usize = known.slots.values().map(|slot| slot.value.count_older()).sum();
            (known.info.value.count_older(), slots)
        };
        for cell in &self.accounts {
            let mut known = cell.0.write();
            let before = older(&known);
            change(&mut known);
            let after = older(&known);
            self.recount::<Option<AccountFields>>(before.0, after.0);
            self.recount::<alloy_primitives::U256>(before.1, after.1);
        }
    }
}
