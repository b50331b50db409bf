//! The writes of one run over a world that the run cannot change.

mod access_list;
mod read_only;
mod record;
mod remote;
mod saved;

pub use saved::SavedOverlay;

use std::{cell::RefCell, convert::Infallible, sync::Arc};

use alloy_primitives::{
    Address, B256, U256,
    map::{AddressMap, HashMap},
};
use revm::{
    Database, DatabaseCommit,
    bytecode::Bytecode,
    state::{Account as RunAccount, AccountId, AccountInfo, bal::Bal},
};

use super::{
    Account, AccountChange, LogNumbers, TransferLogs, World,
    account::Code,
    own_codes::OwnCodes,
    reads::{AccountReads, ReadRecord},
    remote::{Cell, Miss, Missed, RemoteView},
};
use crate::{
    chain::{ActiveNatives, BlockHashes},
    meter::Meter,
};

/// The changes of a run over a [`World`], as a revm database.
///
/// Accounts get a number when they are first read. revm passes it with each storage access, so a slot costs one look-up
/// by its key and none by its address. [`Overlay::reset`] keeps the memory, so a worker uses one overlay for all its
/// runs.
///
/// Over a world on a remote base, a run may read state that is not known yet. The run then continues with zero or with
/// no account, to find what else it will need. Its result is wrong, and [`Overlay::take_missed`] says so: only the
/// result of a run that missed nothing may be returned.
#[derive(Debug, Default)]
pub struct Overlay {
    base: World,
    hashes: BlockHashes,
    /// The number of the first block whose hash was pushed.
    first_pushed: Option<u64>,
    /// Copies of codes for the thread of the runs, if it runs the same codes repeatedly.
    codes: Option<Box<OwnCodes>>,
    ids: AddressMap<usize>,
    /// The entries. The first `ids.len()` are in use; the others keep their emptied maps for reuse.
    entries: Vec<OverlayEntry>,
    /// State of a remote base that was not known. Kept across resets until it is [taken](Overlay::take_missed).
    missed: RefCell<Missed>,
    /// The contracts that runs cannot execute.
    natives: ActiveNatives,
    /// Reads of the remote base that found a value and are not counted yet.
    hits: u64,
    /// The record of what runs read.
    reads: ReadRecord,
    /// The access list of committed runs. `None` unless accesses are listed.
    access_list: Option<Box<AccessList>>,
    /// The bounds that may stop the run.
    pub meter: Meter,
    /// The numbers of the current call's logs.
    pub log_numbers: LogNumbers,
}

/// The accounts and slots that committed runs have accessed, and the index in the block of the runs to be committed
/// next.
#[derive(Clone, Debug, Default)]
struct AccessList {
    list: Bal,
    /// 0 before the first transaction, then the transaction's number from 1 on, and one more after the last.
    index: u64,
}

#[derive(Clone, Debug, Default)]
struct OverlayEntry {
    /// The account in the base. Its slots are visible unless `bare`.
    base: Option<Arc<Account>>,
    /// The remote base that has the other slots.
    remote: Option<RemoteAccount>,
    /// Whether the base's slots were deleted.
    bare: bool,
    /// Slots written before the overlay last [restarted its changes](Overlay::restart_changes).
    written_before: HashMap<U256, U256>,
    /// Whether anything changed since the overlay last restarted its changes.
    is_changed: bool,
    /// The parts that runs read of the account in the base. `None` if no run has accessed it.
    read: Option<AccountReads>,
    /// The parts that an override gives, so that the base's are no longer read.
    given_parts: AccountReads,
    /// The account now, code included, and the changes of its storage since the overlay last restarted its changes.
    now: AccountChange,
}

/// An account of a remote base.
#[derive(Clone, Debug)]
struct RemoteAccount {
    view: RemoteView,
    /// `None` if nothing is known of the account.
    cell: Option<Arc<Cell>>,
}

impl Overlay {
    /// The number of accounts, and of slots per account, for which memory is retained from run to run.
    const KEPT: usize = 1 << 10;
    const KEPT_SLOTS: usize = 1 << 8;

    /// Creates an overlay without changes over `base`. `BLOCKHASH` reads `hashes`.
    pub fn new(base: World, hashes: BlockHashes) -> Self {
        Self { base, hashes, ..Self::default() }
    }

    /// Creates an overlay for the runs of one thread while other threads run the same contracts. It holds copies of
    /// their codes, so its changes must not enter a world that lasts.
    pub fn of_thread() -> Self {
        Self { codes: Some(Box::new(OwnCodes::new())), ..Self::default() }
    }

    /// Drops all changes and starts again over `base`, in the same memory.
    pub fn reset(&mut self, base: World, hashes: BlockHashes, meter: Meter) {
        for entry in &mut self.entries[..self.ids.len()] {
            entry.base = None;
            entry.remote = None;
            entry.now.info = None;
            for slots in [&mut entry.now.slots, &mut entry.written_before] {
                slots.clear();
                if slots.capacity() > Self::KEPT_SLOTS {
                    *slots = HashMap::default();
                }
            }
        }
        self.ids.clear();
        if let Some(view) = self.base.remote() {
            view.state().count(std::mem::take(&mut self.hits), 0);
        }
        self.base = base;
        (self.hashes, self.first_pushed) = (hashes, None);
        self.meter = meter;
        self.log_numbers.show_transfers(TransferLogs::Hidden);
        self.reads.clear();
        self.access_list = None;
        self.natives = ActiveNatives::default();
    }

    /// Drops the base, and the memory that a usual run does not need.
    pub fn shrink(&mut self) {
        self.reset(World::default(), BlockHashes::default(), Meter::default());
        self.take_missed();
        self.entries.truncate(Self::KEPT);
    }

    /// Adds a block hash that `BLOCKHASH` can read.
    pub fn push_hash(&mut self, number: u64, hash: B256) {
        self.hashes.push(number, hash);
        self.first_pushed.get_or_insert(number);
    }

    /// Returns the balance of `address` in wei, and its nonce, as the run sees them now.
    pub fn balance_and_nonce(&mut self, address: Address) -> (U256, u64) {
        self.entry(address).now.info.as_ref().map_or((U256::ZERO, 0), |info| (info.balance, info.nonce))
    }

    /// Returns the hash of the account's code, as the run sees it now. `None` if the account does not exist.
    pub fn code_hash(&mut self, address: Address) -> Option<B256> {
        self.entry(address).now.info.as_ref().map(|info| info.code_hash)
    }

    /// Returns whether a run has accessed the account at `address`.
    pub fn has_read(&self, address: &Address) -> bool {
        self.ids.contains_key(address)
    }

    /// Returns the account at `address` as the runs so far have left it, code included. `None` if it does not exist, or if
    /// no run has accessed it.
    pub fn info(&self, address: &Address) -> Option<AccountInfo> {
        self.ids.get(address).and_then(|id| self.entries[*id].now.info.clone())
    }

    /// Applies a state override of balance, nonce and code; `None` leaves a value as it is.
    pub fn set(&mut self, address: Address, balance: Option<U256>, nonce: Option<u64>, code: Option<Code>) {
        let id = self.id(address);
        let bytecode = code.as_ref().map(|code| self.bytecode(code));
        let entry = &mut self.entries[id];
        for (is_given, part) in [
            (balance.is_some(), AccountReads::BALANCE),
            (nonce.is_some(), AccountReads::NONCE),
            (code.is_some(), AccountReads::CODE),
        ] {
            entry.given_parts.set(part, is_given || entry.given_parts.contains(part));
        }
        let info = entry
            .now
            .info
            .get_or_insert_with(|| AccountInfo { account_id: AccountId::new(id), ..AccountInfo::default() });
        entry.is_changed = true;
        info.balance = balance.unwrap_or(info.balance);
        info.nonce = nonce.unwrap_or(info.nonce);
        if let Some(code) = code {
            info.code_hash = code.hash;
            info.code = bytecode;
        }
    }

    /// Deletes the storage of `address`, as the `state` field of a state override requires.
    pub fn clear_storage(&mut self, address: Address) {
        let entry = self.entry(address);
        entry.is_changed = true;
        entry.clear();
    }

    /// Writes a storage slot.
    pub fn set_slot(&mut self, address: Address, slot: U256, value: U256) {
        self.set_slots(address, &[(slot, value)]);
    }

    /// Writes several storage slots of an account.
    pub fn set_slots(&mut self, address: Address, slots: &[(U256, U256)]) {
        let entry = self.entry(address);
        entry.is_changed = true;
        entry.now.slots.extend(slots.iter().copied());
    }

    /// Returns whether the account has a slot that is not zero. Of an account of a remote base only the slots that were
    /// written are known, so the answer is false without them.
    pub fn has_storage(&mut self, address: Address) -> bool {
        let id = self.id(address);
        let entry = &mut self.entries[id];
        if self.reads.on && !entry.bare {
            *entry.read.get_or_insert_default() |= AccountReads::STORAGE;
        }
        entry.remote.is_none() && entry.has_storage()
    }

    /// Returns the net change of every account that changed since the overlay last [restarted its
    /// changes](Overlay::restart_changes).
    pub fn changes(&self) -> impl Iterator<Item = &AccountChange> {
        self.entries[..self.ids.len()].iter().filter(|entry| entry.is_changed).map(|entry| &entry.now)
    }

    /// Returns the base with the changes applied.
    pub fn changed_world(&self) -> World {
        self.changed().0
    }

    /// Returns the base with the changes applied, and the changes.
    pub fn changed(&self) -> (World, Vec<AccountChange>) {
        let (mut world, changes) = (self.base.clone(), self.changes().cloned().collect::<Vec<_>>());
        world.apply_many(&changes);
        (world, changes)
    }

    /// Returns an overlay without changes over the base with the changes applied. `BLOCKHASH` reads the same hashes.
    pub fn changed_copy(&self) -> Self {
        Self::new(self.changed_world(), self.hashes.clone())
    }

    /// Clears the recorded changes: [`Overlay::changes`] is empty again. Reads are unaffected.
    pub fn restart_changes(&mut self) {
        for entry in self.entries[..self.ids.len()].iter_mut().filter(|entry| entry.is_changed) {
            entry.written_before.extend(entry.now.slots.drain());
            (entry.now.storage_cleared, entry.is_changed) = (false, false);
        }
    }

    fn id(&mut self, address: Address) -> usize {
        let next = self.ids.len();
        let id = *self.ids.entry(address).or_insert(next);
        if id == next {
            if next == self.entries.len() {
                self.entries.push(OverlayEntry::default());
            }
            let base = self.base.account(&address).cloned();
            let info = base.as_ref().map(|account| AccountInfo {
                balance: account.balance,
                nonce: account.nonce,
                code_hash: account.code.hash,
                account_id: AccountId::new(next),
                code: Some(self.bytecode(&account.code)),
            });
            let entry = &mut self.entries[next];
            entry.now.address = address;
            entry.now.info = info;
            entry.base = base;
            (entry.bare, entry.now.storage_cleared, entry.is_changed) = (false, false, false);
            (entry.read, entry.given_parts) = (None, AccountReads::empty());
            if self.base.remote().is_some() {
                self.read_remote(next);
            }
        }
        id
    }

    fn entry(&mut self, address: Address) -> &mut OverlayEntry {
        let id = self.id(address);
        &mut self.entries[id]
    }

    fn bytecode(&mut self, code: &Code) -> Bytecode {
        match &mut self.codes {
            Some(codes) => codes.of(code),
            None => code.bytecode.clone(),
        }
    }

    fn slot(&mut self, id: usize, slot: U256) -> U256 {
        let entry = &self.entries[id];
        if let Some(value) = entry.written_slot(&slot) {
            return value;
        }
        if self.reads.on {
            self.reads.slots.insert((id, slot));
        }
        match entry.base_slot(&slot) {
            Some(value) => value,
            None => self.remote_slot(id, slot),
        }
    }
}

impl OverlayEntry {
    /// Returns a slot's value; `None` if only the remote base has it.
    fn held_slot(&self, slot: &U256) -> Option<U256> {
        self.written_slot(slot).or_else(|| self.base_slot(slot))
    }

    /// Returns a slot's value if it does not follow from the base.
    fn written_slot(&self, slot: &U256) -> Option<U256> {
        let written = self.now.slots.get(slot).or_else(|| self.written_before.get(slot)).copied();
        written.or_else(|| self.bare.then_some(U256::ZERO))
    }

    /// Returns a slot's value in the base; `None` if only the remote base has it.
    fn base_slot(&self, slot: &U256) -> Option<U256> {
        self.base.as_ref()?.known_slot(slot)
    }

    /// Returns whether a slot that is held here is not zero.
    fn has_storage(&self) -> bool {
        let is_written = |slot: &U256| self.now.slots.contains_key(slot) || self.written_before.contains_key(slot);
        let earlier = self.written_before.iter().filter(|(slot, _)| !self.now.slots.contains_key(*slot));
        self.now.slots.iter().chain(earlier).any(|(_, value)| !value.is_zero())
            || !self.bare
                && self
                    .base
                    .as_ref()
                    .is_some_and(|base| base.slots().any(|(slot, value)| !value.is_zero() && !is_written(slot)))
    }

    /// Deletes the storage.
    fn clear(&mut self) {
        (self.bare, self.now.storage_cleared) = (true, true);
        self.now.slots.clear();
        self.written_before.clear();
    }

    /// Records that a run read `parts`, except for those that an override gives.
    fn note(&mut self, parts: AccountReads) {
        let read = if parts.contains(AccountReads::EXISTENCE) && !self.given_parts.is_empty() {
            // If another part is overridden, the account's emptiness depends on each of the other parts.
            (parts - AccountReads::EXISTENCE) | AccountReads::INFO
        } else {
            parts
        };
        *self.read.get_or_insert_default() |= read - self.given_parts;
    }

    /// Deletes the storage of an empty account. Records the reads that this depends on if `records`.
    fn delete_empty(&mut self, records: bool) {
        if self.base.is_some() || self.remote.is_some() {
            if records {
                self.note(AccountReads::INFO | AccountReads::EXISTENCE);
            }
            self.clear();
        } else {
            // The base has no storage to delete. Reads of its slots are still recorded.
            self.now.slots.clear();
            self.written_before.clear();
        }
    }
}

impl Database for Overlay {
    type Error = Infallible;

    fn basic(&mut self, address: Address) -> Result<Option<AccountInfo>, Infallible> {
        if let Some(why) = self.natives.find(&address) {
            self.reach(why);
            return Ok(None);
        }
        Ok(self.entry(address).now.info.clone())
    }

    fn code_by_hash(&mut self, _: B256) -> Result<Bytecode, Infallible> {
        // `basic` returns every account with its code, so revm never asks.
        Ok(Bytecode::default())
    }

    fn storage(&mut self, address: Address, slot: U256) -> Result<U256, Infallible> {
        let id = self.id(address);
        Ok(self.slot(id, slot))
    }

    fn storage_by_account_id(&mut self, address: Address, id: AccountId, slot: U256) -> Result<U256, Infallible> {
        debug_assert_eq!(self.entries[id.get()].now.address, address);
        Ok(self.slot(id.get(), slot))
    }

    fn block_hash(&mut self, number: u64) -> Result<B256, Infallible> {
        if self.reads.on {
            self.reads.hashes.insert(number);
            // The hash of a simulated block follows from more than is recorded.
            self.reads.everything |= self.first_pushed.is_some_and(|first| number >= first);
        }
        if let Some(hash) = self.hashes.get(number) {
            return Ok(hash);
        }
        let Some(view) = self.base.remote() else { return Ok(B256::ZERO) };
        if let Some(hash) = view.block_hash(number) {
            return Ok(hash);
        }
        let view = view.clone();
        self.miss(&view, Miss::BlockHash(number));
        Ok(B256::ZERO)
    }
}

impl DatabaseCommit for Overlay {
    fn commit(&mut self, mut changes: AddressMap<RunAccount>) {
        self.absorb(&mut changes);
    }
}

impl Overlay {
    /// Drains the changes of a run from their map, which retains its memory.
    pub fn absorb(&mut self, changes: &mut AddressMap<RunAccount>) {
        if let Some(access_list) = &mut self.access_list {
            access_list.add(changes);
        }
        for (address, account) in changes.drain() {
            if !account.is_touched() {
                continue;
            }
            let id = self.id(address);
            let entry = &mut self.entries[id];
            entry.is_changed = true;
            if account.is_selfdestructed() {
                entry.now.info = None;
                entry.clear();
                continue;
            }
            // A touched, empty account does not exist (EIP-161). revm marks the ones that earlier forks keep as
            // created.
            if account.is_empty() && !account.is_created() {
                entry.now.info = None;
                entry.delete_empty(self.reads.on);
                continue;
            }
            if account.is_created() {
                entry.clear();
            }
            for (slot, value) in account.storage {
                if value.is_changed() {
                    entry.now.slots.insert(slot, value.present_value);
                }
            }
            entry.now.info = Some(AccountInfo { account_id: AccountId::new(id), ..account.info });
        }
    }
}
