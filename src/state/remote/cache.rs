//! The caches of an upstream's state, and the views of its blocks that read them.

use std::{
    hash::BuildHasher,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use alloy_primitives::{Address, B256, U256, map::DefaultHashBuilder};
use crossbeam::queue::SegQueue;
use dashmap::DashMap;

use super::{
    cell::{AccountFields, Cell, Known, Used},
    codes::Codes,
    held::HeldValues,
    recent::{Changed, RecentBlocks},
    versions::Versions,
};
use crate::lock::{Mutex, RwLock};

/// A concurrent cache of an upstream's accounts, slots and block hashes.
///
/// Every value is held as versions: `from` is the block at which it was seen or written, `until` the block that changed
/// it, open if none did. A read at block N takes the version that covers N. A new block that was executed here
/// therefore costs only its changes, and the states of some hundred blocks share their common values.
///
/// A value that is fetched at block N while the chain advances is valid up to the next block that changed it. That
/// block is found by the fingerprints of the keys that each retained block changed. Two keys with the same fingerprint
/// only end a version early. Fetched values are inserted under a shared lock and blocks under an exclusive one. Readers
/// take neither.
///
/// Every reader has a [`RemoteView`] of one block, which stays readable for as long as it exists: the shown state may
/// be older than the executed one while the stream of a fleet takes nothing, and its branch may have been left by the
/// chain. A cache is therefore owned only by its views. The cache stays with the chain, because most of its values hold
/// on all branches. If a reorg removes blocks that have views, the values that hold only for these blocks move into a
/// small cache of the abandoned branch. The views then read this cache first, and below it the state of the block where
/// the branch begins. If the chain starts again, it begins with another cache. A cache is dropped with its last view.
///
/// All of them together are bounded in bytes. A read sets a mark. Eviction goes through the entries of the largest
/// cache in order of insertion: a marked entry loses its mark and moves to the end.
/// cache in order of insertion: a marked entry loses its mark and moves to the end.
pub struct RemoteState {
    pub(super) accounts: DashMap<Address, Arc<Cell>, DefaultHashBuilder>,
    pub(super) hashes: DashMap<u64, B256, DefaultHashBuilder>,
    pub(super) chain: RwLock<RecentBlocks<Anchor>>,
    pub(super) shared: Arc<Shared>,
    /// The block at which the branch begins, in the cache of an abandoned branch.
    pub(super) fork: Option<RemoteView>,
    /// Whether the chain has started again with another cache.
    pub(super) is_left: AtomicBool,
    /// Every entry once, in order of insertion.
    order: SegQueue<(Address, Option<U256>)>,
    bytes: AtomicUsize,
    entries: AtomicUsize,
}

/// The state of an upstream after one block. Cheap to clone.
///
/// A view stays readable even if its block is pruned or abandoned: it keeps the known values of its block. Unknown
/// values are fetched by the block's hash.
#[derive(Clone)]
pub struct RemoteView {
    /// The cache of the chain that the block was appended to.
    pub(super) state: Arc<RemoteState>,
    pub(super) anchor: Arc<Anchor>,
}

/// A block as its views have it.
#[derive(Debug)]
pub(super) struct Anchor {
    pub number: u64,
    pub hash: B256,
    /// The block at which the newest gap in knowledge before this one ends. Values that began earlier are not valid
    /// here.
    pub since: u64,
    /// The cache of the abandoned branch that the block is on, once a reorg has removed the block.
    pub branch: OnceLock<Arc<RemoteState>>,
}

/// The common part of the caches of one chain: its current cache, the caches of abandoned branches, and the caches from
/// before the chain started again.
pub(super) struct Shared {
    pub settings: RemoteSettings,
    pub codes: Arc<Codes>,
    pub held: HeldValues,
    /// One for all of them, because the blocks of an abandoned branch keep their fingerprints.
    fingerprints: DefaultHashBuilder,
    caches: Mutex<Vec<Weak<RemoteState>>>,
    /// The totals over all caches.
    pub bytes: AtomicUsize,
    pub entries: AtomicUsize,
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub evicted: AtomicU64,
}

/// The settings of a chain's caches.
#[derive(Clone, Copy, Debug)]
pub struct RemoteSettings {
    /// The most bytes of all of them together.
    pub bytes: usize,
    /// The number of blocks whose states are retained, at least 1.
    pub blocks: usize,
    /// Whether the blocks are published by a fleet, instead of by an upstream that this node follows.
    pub is_of_fleet: bool,
}

/// The size and the hit counts of a chain's caches.
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

impl RemoteSettings {
    /// Returns settings for so many bytes, with the states of 256 blocks, for an upstream that this node follows.
    pub const fn of_bytes(bytes: usize) -> Self {
        Self { bytes, blocks: 256, is_of_fleet: false }
    }
}

impl Shared {
    pub fn new(settings: RemoteSettings) -> Self {
        Self {
            settings,
            codes: Arc::default(),
            held: HeldValues::default(),
            fingerprints: DefaultHashBuilder::default(),
            caches: Mutex::default(),
            bytes: AtomicUsize::new(0),
            entries: AtomicUsize::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Adds a cache to the totals.
    pub fn add(&self, cache: &Arc<RemoteState>) {
        let mut caches = self.caches.lock();
        caches.retain(|cache| cache.strong_count() > 0);
        caches.push(Arc::downgrade(cache));
    }

    /// Returns whether the caches have more bytes than they may.
    pub fn is_full(&self) -> bool {
        self.held_bytes() > self.settings.bytes
    }

    /// Returns the cache with the most bytes, which is evicted from first. So an abandoned branch, which is small,
    /// keeps its values while the chain grows, and two large caches share the space.
    pub fn largest(&self) -> Option<Arc<RemoteState>> {
        let caches: Vec<Arc<RemoteState>> = self.caches.lock().iter().filter_map(Weak::upgrade).collect();
        caches.into_iter().max_by_key(|cache| cache.bytes.load(Relaxed))
    }

    fn held_bytes(&self) -> usize {
        self.bytes.load(Relaxed) + self.codes.bytes()
    }

    /// Returns the fingerprint of a change of balance, nonce or code.
    pub fn account_print(&self, address: &Address) -> u64 {
        self.fingerprints.hash_one(address)
    }

    /// Returns the fingerprints of the two changes that end a slot's value: a write to it, and clearing the account's
    /// storage.
    pub fn slot_prints(&self, address: &Address, slot: &U256) -> [u64; 2] {
        [self.fingerprints.hash_one((address, slot)), self.cleared_print(address)]
    }

    pub fn cleared_print(&self, address: &Address) -> u64 {
        self.fingerprints.hash_one((address, "storage"))
    }
}

impl RemoteState {
    /// The number of ancestors' hashes that are held, far more than the 256 that `BLOCKHASH` can read.
    pub(super) const HASHES: usize = 1 << 14;
    /// The bytes of an account's entry and of a slot's, in tables of average load, with their entry in the eviction
    /// order.
    const ACCOUNT_BYTES: usize = 420;
    const SLOT_BYTES: usize = 230;
    /// The entries of a cache from which on it is dropped on another thread, because that takes long.
    const MANY: usize = 1 << 12;

    /// Creates a cache for a chain whose head has this number and hash, and returns the view of that block.
    pub fn begin(settings: RemoteSettings, number: u64, hash: B256) -> RemoteView {
        Self::first(Arc::new(Shared::new(settings)), number, hash)
    }

    pub(super) fn first(shared: Arc<Shared>, number: u64, hash: B256) -> RemoteView {
        let mut chain = RecentBlocks::new(shared.settings.blocks.max(1));
        let anchor = Arc::new(Anchor { number, hash, since: number, branch: OnceLock::new() });
        chain.push(number, hash, &anchor, Changed::Anything);
        let state = Arc::new(Self::with(shared, chain, None));
        state.shared.add(&state);
        RemoteView { state, anchor }
    }

    /// Creates an empty cache of these blocks, which follow the block `fork` on an abandoned branch.
    pub(super) fn with(shared: Arc<Shared>, chain: RecentBlocks<Anchor>, fork: Option<RemoteView>) -> Self {
        Self {
            accounts: DashMap::default(),
            hashes: chain.iter().map(|block| (block.number, block.hash)).collect(),
            chain: RwLock::new(chain),
            shared,
            fork,
            is_left: AtomicBool::new(false),
            order: SegQueue::new(),
            bytes: AtomicUsize::new(0),
            entries: AtomicUsize::new(0),
        }
    }

    /// Returns whether its blocks are published by a fleet.
    pub fn is_of_fleet(&self) -> bool {
        self.shared.settings.is_of_fleet
    }

    /// Returns the size and the hit counts of all caches of its chain.
    pub fn stats(&self) -> RemoteStats {
        RemoteStats {
            entries: self.shared.entries.load(Relaxed),
            bytes: self.shared.held_bytes(),
            hits: self.shared.hits.load(Relaxed),
            misses: self.shared.misses.load(Relaxed),
            evicted: self.shared.evicted.load(Relaxed),
        }
    }

    /// Adds to the counts of reads. Runs count locally first, because a shared counter would be contended.
    pub fn count(&self, hits: u64, misses: u64) {
        self.shared.hits.fetch_add(hits, Relaxed);
        self.shared.misses.fetch_add(misses, Relaxed);
    }

    /// Changes an account's known state, with its table entry locked, so that it is not evicted meanwhile.
    pub(super) fn with_known<T>(&self, address: Address, change: impl FnOnce(&mut Known) -> T) -> T {
        let mut is_new = false;
        let cell = self.accounts.entry(address).or_insert_with(|| {
            is_new = true;
            Arc::default()
        });
        if is_new {
            self.add_entry(Self::ACCOUNT_BYTES);
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

    pub(super) fn change_slot<T>(
        &self,
        known: &mut Known,
        address: Address,
        slot: U256,
        change: impl FnOnce(&mut Versions<U256>) -> T,
    ) -> T {
        let mut is_new = false;
        let entry = known.slots.entry(slot).or_insert_with(|| {
            is_new = true;
            Used::default()
        });
        let before = entry.value.count_older();
        let changed = change(&mut entry.value);
        entry.mark();
        self.recount::<U256>(before, entry.value.count_older());
        if is_new {
            self.add_entry(Self::SLOT_BYTES);
            self.order.push((address, Some(slot)));
        }
        changed
    }

    fn add_entry(&self, bytes: usize) {
        for entries in [&self.entries, &self.shared.entries] {
            entries.fetch_add(1, Relaxed);
        }
        self.grow(bytes);
    }

    /// Updates the count of versions that are not the newest.
    pub(super) fn recount<T: Clone + Default + PartialEq>(&self, before: usize, after: usize) {
        if after >= before {
            self.grow((after - before) * Versions::<T>::BYTES);
        } else {
            self.shrink((before - after) * Versions::<T>::BYTES);
        }
    }

    fn grow(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Relaxed);
        self.shared.bytes.fetch_add(bytes, Relaxed);
    }

    fn shrink(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Relaxed);
        self.shared.bytes.fetch_sub(bytes, Relaxed);
    }

    /// Evicts the least recently used entries of the largest cache until all caches together are within their bound.
    pub(super) fn evict(&self) {
        while self.shared.is_full() && self.shared.largest().is_some_and(|largest| largest.evict_one()) {}
    }

    /// Evicts the least recently used entry. Returns false if there is none.
    fn evict_one(&self) -> bool {
        // Each entry is visited at most twice, because the first visit clears its mark.
        for _ in 0..2 * self.order.len() + 2 {
            let Some((address, slot)) = self.order.pop() else { return false };
            let freed = match slot {
                None => self.evict_account(&address),
                Some(slot) => self.evict_slot(&address, &slot),
            };
            let Some(bytes) = freed else {
                self.order.push((address, slot));
                continue;
            };
            self.shrink(bytes);
            for entries in [&self.entries, &self.shared.entries] {
                entries.fetch_sub(1, Relaxed);
            }
            self.shared.evicted.fetch_add(1, Relaxed);
            return true;
        }
        false
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

impl Drop for RemoteState {
    fn drop(&mut self) {
        self.shared.bytes.fetch_sub(*self.bytes.get_mut(), Relaxed);
        let entries = *self.entries.get_mut();
        self.shared.entries.fetch_sub(entries, Relaxed);
        if entries >= Self::MANY {
            let accounts = std::mem::take(&mut self.accounts);
            rayon::spawn(move || drop(accounts));
        }
    }
}

impl std::fmt::Debug for RemoteState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let head = self.chain.read().head().map(|head| (head.number, head.hash));
        f.debug_struct("RemoteState").field("head", &head).field("stats", &self.stats()).finish_non_exhaustive()
    }
}
