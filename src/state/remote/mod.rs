//! The known state of an upstream, block by block.

mod cell;
mod chain;
mod codes;
mod image;
mod misses;
mod recent;
#[cfg(test)]
mod tests;
mod versions;

pub(crate) use cell::Cell;
pub use image::{ImageAccount, ImageHash, ImageSlot, RemoteImage};
pub use misses::{Miss, Missed};

use std::{
    hash::BuildHasher,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use alloy_primitives::{Address, B256, U256, map::DefaultHashBuilder};
use crossbeam::queue::SegQueue;
use dashmap::DashMap;
use revm::state::AccountInfo;

use self::{
    cell::{AccountFields, Known, Used},
    codes::Codes,
    recent::{Anchor, RecentBlocks},
    versions::Versions,
};
use super::Code;
use crate::lock::RwLock;

/// A concurrent cache of an upstream's accounts, slots and block hashes, bounded in bytes.
///
/// Every value is held as versions: `from` is the block at which it was seen or written, `until` the block that changed
/// it, open if none did. A read at block N takes the version that covers N. A new block that was executed here
/// therefore costs only its changes, and the states of some hundred blocks share what did not change between them.
///
/// A value that is fetched at block N while the chain advances is valid up to the next block that changed it. That
/// block is found by the fingerprints of the keys that each retained block changed. Two keys with one fingerprint only
/// end a version early. Fetched values are inserted under a shared lock and blocks under an exclusive one, which no
/// reader takes.
///
/// Every reader has a [`RemoteView`] of one block of one branch. After a reorg removes that block, the view knows
/// nothing: it neither reads values of the new branch, nor inserts values that were fetched for it.
///
/// A read sets a mark. Eviction goes through the entries in order of insertion: a marked entry loses its mark and moves
/// to the end.
pub struct RemoteState {
    accounts: DashMap<Address, Arc<Cell>, DefaultHashBuilder>,
    hashes: DashMap<u64, B256, DefaultHashBuilder>,
    chain: RwLock<RecentBlocks>,
    codes: Arc<Codes>,
    /// Whether its blocks are those that a fleet publishes, and not those of an upstream that this node follows.
    is_of_fleet: bool,
    /// Every entry once, in order of insertion.
    order: SegQueue<(Address, Option<U256>)>,
    fingerprints: DefaultHashBuilder,
    limit: usize,
    bytes: AtomicUsize,
    entries: AtomicUsize,
    hits: AtomicU64,
    misses: AtomicU64,
    evicted: AtomicU64,
}

/// The size and the hit counts of a [`RemoteState`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteStats {
    /// The number of accounts and slots.
    pub entries: usize,
    /// Their size in bytes, bytecode included.
    pub bytes: usize,
    /// Reads that found a value.
    pub hits: u64,
    /// Reads that found none.
    pub misses: u64,
    /// Entries that were evicted.
    pub evicted: u64,
}

/// A value that was fetched.
#[expect(missing_docs, reason = "the names of the fields say what they hold")]
#[derive(Clone, Debug)]
pub enum Fetched {
    /// An account. One without balance, nonce and code does not exist (EIP-161).
    Account { address: Address, balance: U256, nonce: u64, code: Code },
    /// A storage slot.
    Slot { address: Address, slot: U256, value: U256 },
    /// The hash of an ancestor of the block that it was fetched for.
    BlockHash { number: u64, hash: B256 },
}

/// The state of an upstream after one block. Cheap to clone.
#[derive(Clone)]
pub struct RemoteView {
    state: Arc<RemoteState>,
    anchor: Arc<Anchor>,
}

impl RemoteState {
    /// The number of ancestors' hashes that are held, far more than the 256 that `BLOCKHASH` can read.
    const HASHES: usize = 1 << 14;
    /// The bytes of an account's entry and of a slot's, in tables of average load, with their entry in the eviction
    /// order.
    const ACCOUNT_BYTES: usize = 420;
    const SLOT_BYTES: usize = 230;

    /// Creates a cache of up to `limit` bytes for a chain whose head has this number and hash.
    pub fn new(limit: usize, number: u64, hash: B256) -> Arc<Self> {
        Arc::new(Self::empty(limit, number, hash, false))
    }

    /// Creates the same for the chain that a fleet publishes.
    pub fn of_fleet(limit: usize, number: u64, hash: B256) -> Arc<Self> {
        Arc::new(Self::empty(limit, number, hash, true))
    }

    fn empty(limit: usize, number: u64, hash: B256, is_of_fleet: bool) -> Self {
        Self {
            is_of_fleet,
            accounts: DashMap::default(),
            hashes: DashMap::default(),
            chain: RwLock::new(RecentBlocks::new(number, hash)),
            codes: Arc::default(),
            order: SegQueue::new(),
            fingerprints: DefaultHashBuilder::default(),
            limit,
            bytes: AtomicUsize::new(0),
            entries: AtomicUsize::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Returns whether its blocks are those that a fleet publishes.
    pub const fn is_of_fleet(&self) -> bool {
        self.is_of_fleet
    }

    /// Returns the cache's size and hit counts.
    pub fn stats(&self) -> RemoteStats {
        RemoteStats {
            entries: self.entries.load(Relaxed),
            bytes: self.held(),
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            evicted: self.evicted.load(Relaxed),
        }
    }

    /// Adds to the counts of reads. Runs count locally first, because a shared counter would be contended.
    pub fn count(&self, hits: u64, misses: u64) {
        self.hits.fetch_add(hits, Relaxed);
        self.misses.fetch_add(misses, Relaxed);
    }

    /// Inserts values that were fetched at the block of `view`. Returns false and inserts nothing if that block is no
    /// longer part of the chain.
    pub fn insert(&self, view: &RemoteView, values: impl IntoIterator<Item = Fetched>) -> bool {
        for value in values {
            let chain = self.chain.read();
            if !view.is_alive() {
                return false;
            }
            let (block, since, oldest) = (view.number(), view.anchor.since, chain.oldest());
            match value {
                Fetched::Account { address, balance, nonce, code } => {
                    let until = chain.next_change(block, &[self.account_print(&address)]);
                    let exists = !balance.is_zero() || nonce != 0 || !code.bytecode.is_empty();
                    let fields = exists.then(|| AccountFields { balance, nonce, code: self.codes.hold(&code) });
                    self.with(address, |known| known.info.value.insert(block, until, since, fields, oldest));
                }
                Fetched::Slot { address, slot, value } => {
                    let until = chain.next_change(block, &self.slot_prints(&address, &slot));
                    let insert = |versions: &mut Versions<U256>| versions.insert(block, until, since, value, oldest);
                    self.with(address, |known| self.change_slot(known, address, slot, insert));
                }
                Fetched::BlockHash { number, hash } if number < block => {
                    if self.hashes.len() >= Self::HASHES {
                        self.hashes.clear();
                    }
                    self.hashes.insert(number, hash);
                }
                Fetched::BlockHash { .. } => {}
            }
            drop(chain);
            self.evict();
        }
        true
    }

    fn account_print(&self, address: &Address) -> u64 {
        self.fingerprints.hash_one(address)
    }

    /// Returns the fingerprints of the two changes that end a slot's value: a write to it, and clearing the account's
    /// storage.
    fn slot_prints(&self, address: &Address, slot: &U256) -> [u64; 2] {
        [self.fingerprints.hash_one((address, slot)), self.cleared_print(address)]
    }

    fn cleared_print(&self, address: &Address) -> u64 {
        self.fingerprints.hash_one((address, "storage"))
    }

    /// Changes an account's known state, with its table entry locked, so that it is not evicted meanwhile.
    fn with<T>(&self, address: Address, change: impl FnOnce(&mut Known) -> T) -> T {
        let mut is_new = false;
        let cell = self.accounts.entry(address).or_insert_with(|| {
            is_new = true;
            Arc::default()
        });
        if is_new {
            self.entries.fetch_add(1, Relaxed);
            self.bytes.fetch_add(Self::ACCOUNT_BYTES, Relaxed);
        }
        let mut known = cell.0.write();
        let before = known.info.value.count_older();
        let changed = change(&mut known);
        known.info.mark();
        self.recount::<Option<AccountFields>>(before, known.info.value.count_older());
        drop(known);
        // Inserted into the table first, so that eviction finds it there.
        if is_new {
            self.order.push((address, None));
        }
        changed
    }

    fn change_slot(&self, known: &mut Known, address: Address, slot: U256, change: impl FnOnce(&mut Versions<U256>)) {
        let mut is_new = false;
        let entry = known.slots.entry(slot).or_insert_with(|| {
            is_new = true;
            Used::default()
        });
        let before = entry.value.count_older();
        change(&mut entry.value);
        entry.mark();
        self.recount::<U256>(before, entry.value.count_older());
        if is_new {
            self.entries.fetch_add(1, Relaxed);
            self.bytes.fetch_add(Self::SLOT_BYTES, Relaxed);
            self.order.push((address, Some(slot)));
        }
    }

    /// Updates the count of versions that are not the newest.
    fn recount<T: Clone + Default + PartialEq>(&self, before: usize, after: usize) {
        if after >= before {
            self.bytes.fetch_add((after - before) * Versions::<T>::BYTES, Relaxed);
        } else {
            self.bytes.fetch_sub((before - after) * Versions::<T>::BYTES, Relaxed);
        }
    }

    fn held(&self) -> usize {
        self.bytes.load(Relaxed) + self.codes.bytes()
    }

    /// Evicts the least recently used entries until the cache is within its bound.
    fn evict(&self) {
        // Each entry is visited at most twice, because the first visit clears its mark.
        let mut looks = 2 * self.order.len() + 2;
        while self.held() > self.limit && looks > 0 {
            looks -= 1;
            let Some((address, slot)) = self.order.pop() else { break };
            let freed = match slot {
                None => self.evict_account(&address),
                Some(slot) => self.evict_slot(&address, &slot),
            };
            match freed {
                Some(bytes) => {
                    self.bytes.fetch_sub(bytes, Relaxed);
                    self.entries.fetch_sub(1, Relaxed);
                    self.evicted.fetch_add(1, Relaxed);
                }
                None => self.order.push((address, slot)),
            }
        }
    }

    /// Evicts an account that is not marked and has no slots. Returns its bytes; `None` if it stays.
    fn evict_account(&self, address: &Address) -> Option<usize> {
        let (_, cell) = self.accounts.remove_if(address, |_, cell| {
            let mut known = cell.0.write();
            !known.info.take_mark() && known.slots.is_empty()
        })?;
        let older = cell.0.read().info.value.count_older();
        Some(Self::ACCOUNT_BYTES + older * Versions::<Option<AccountFields>>::BYTES)
    }

    fn evict_slot(&self, address: &Address, slot: &U256) -> Option<usize> {
        let cell = self.accounts.get(address)?;
        let mut known = cell.0.write();
        if known.slots.get_mut(slot)?.take_mark() {
            return None;
        }
        let entry = known.slots.remove(slot)?;
        if known.slots.capacity() > 4 * known.slots.len().max(8) {
            known.slots.shrink_to_fit();
        }
        Some(Self::SLOT_BYTES + entry.value.count_older() * Versions::<U256>::BYTES)
    }
}

impl RemoteView {
    /// Returns the block's number.
    pub fn number(&self) -> u64 {
        self.anchor.number
    }

    /// Returns the block's hash.
    pub fn hash(&self) -> B256 {
        self.anchor.hash
    }

    /// Returns the cache that it reads.
    pub const fn state(&self) -> &Arc<RemoteState> {
        &self.state
    }

    /// Returns whether the block is still part of the chain.
    pub fn is_alive(&self) -> bool {
        self.anchor.is_alive()
    }

    /// Returns an account. The outer `None` means unknown, the inner one that the account does not exist.
    pub fn account(&self, address: &Address) -> Option<Option<AccountInfo>> {
        self.info_of(&*self.cell(address)?)
    }

    /// Returns a storage slot, if it is known.
    pub fn slot(&self, address: &Address, slot: &U256) -> Option<U256> {
        self.slot_of(&*self.cell(address)?, slot)
    }

    /// Returns the hash of the block of this number, if it is known. Later blocks have the hash zero, as `BLOCKHASH`
    /// requires.
    pub fn block_hash(&self, number: u64) -> Option<B256> {
        match number.cmp(&self.number()) {
            std::cmp::Ordering::Less => {
                let hash = self.state.hashes.get(&number).map(|hash| *hash);
                hash.filter(|_| self.is_alive())
            }
            std::cmp::Ordering::Equal => Some(self.hash()),
            std::cmp::Ordering::Greater => Some(B256::ZERO),
        }
    }

    /// Returns whether a piece of the state is known.
    pub fn knows(&self, miss: &Miss) -> bool {
        match miss {
            Miss::Account(address) => self.account(address).is_some(),
            Miss::Slot(address, slot) => self.slot(address, slot).is_some(),
            Miss::BlockHash(number) => self.block_hash(*number).is_some(),
        }
    }

    /// Returns the cell of an account, so that repeated reads need no look-up.
    pub(crate) fn cell(&self, address: &Address) -> Option<Arc<Cell>> {
        self.state.accounts.get(address).map(|cell| cell.clone())
    }

    pub(crate) fn info_of(&self, cell: &Cell) -> Option<Option<AccountInfo>> {
        // The value is read before `is_alive`, because another branch writes values only after the block has died.
        let info = cell.info(self.anchor.number, self.anchor.since)?;
        self.is_alive().then_some(info)
    }

    pub(crate) fn slot_of(&self, cell: &Cell, slot: &U256) -> Option<U256> {
        let value = cell.slot(slot, self.anchor.number, self.anchor.since)?;
        self.is_alive().then_some(value)
    }
}

impl std::fmt::Debug for RemoteState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteState").field("head", &self.head()).field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for RemoteView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteView").field("number", &self.number()).field("hash", &self.hash()).finish_non_exhaustive()
    }
}

impl PartialEq for RemoteView {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.anchor, &other.anchor)
    }
}
