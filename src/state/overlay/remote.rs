//! The reads of a remote base, with the state that runs miss there and the reasons why a run cannot be executed.

use alloy_primitives::U256;
use revm::state::{AccountId, AccountInfo};

use super::{Overlay, RemoteAccount};
use crate::{
    chain::{ActiveNatives, Unexecutable},
    meter::Stopped,
    state::remote::{Miss, Missed, RemoteView},
};

impl Overlay {
    /// The number of misses after which runs stop, so that they are fetched.
    const MISSES: usize = 1 << 12;

    /// Returns whether the base is an upstream's state.
    pub const fn is_remote(&self) -> bool {
        self.base.remote().is_some()
    }

    /// Returns whether anything was missed since the last [`take_missed`](Self::take_missed). If so, results of runs
    /// are invalid.
    pub fn has_missed(&self) -> bool {
        !self.missed.borrow().is_empty()
    }

    /// Takes the state of a remote base that runs found unknown since the last call.
    pub fn take_missed(&mut self) -> Missed {
        self.missed.take()
    }

    /// Adds the state that other runs have missed, if the next results depend on it.
    pub fn add_missed(&mut self, missed: Missed) {
        self.missed.get_mut().extend(missed);
    }

    /// Returns the reason why runs cannot be executed here, if they have missed nothing else.
    pub fn unexecutable(&self) -> Option<Unexecutable> {
        self.missed.borrow().unexecutable()
    }

    /// Takes the result of [`unexecutable`](Self::unexecutable).
    pub fn take_unexecutable(&mut self) -> Option<Unexecutable> {
        let why = self.unexecutable()?;
        self.take_missed();
        Some(why)
    }

    /// Sets the native contracts that the next runs cannot execute.
    pub fn guard(&mut self, natives: ActiveNatives) {
        self.natives = natives;
    }

    /// Records that a run uses an account that presim cannot execute, and stops the run. Any use of a native contract
    /// counts, in any frame, because its code is not what presim would execute.
    #[cold]
    pub(super) fn reach(&mut self, why: Unexecutable) {
        self.missed.borrow_mut().reach(why);
        self.meter.stop(Stopped::TooLong);
        self.meter.poll();
    }

    /// Fills a new entry from the remote base.
    #[cold]
    pub(super) fn read_remote(&mut self, id: usize) {
        let entry = &mut self.entries[id];
        let is_partial = entry.base.as_ref().map(|account| account.is_partial());
        let view = match is_partial {
            Some(false) => None,
            Some(true) => self.base.remote(),
            None => self.base.remote_of(&entry.now.address),
        };
        let Some(view) = view.cloned() else { return };
        let (address, cell) = (entry.now.address, view.cell(&entry.now.address));
        if is_partial.is_none() {
            match view.account_in(cell.as_deref(), &address) {
                Some(info) => {
                    self.hits += 1;
                    // An account that does not exist has no storage.
                    let Some(mut info) = info else { return };
                    if let Some(codes) = &mut self.codes {
                        codes.replace(&mut info);
                    }
                    entry.now.info = Some(AccountInfo { account_id: AccountId::new(id), ..info });
                }
                None => self.miss(&view, Miss::Account(address)),
            }
        }
        self.entries[id].remote = Some(RemoteAccount { view, cell });
    }

    #[cold]
    pub(super) fn miss(&mut self, view: &RemoteView, miss: Miss) {
        self.meter.bound_doomed_run();
        if self.note_miss(view, miss) >= Self::MISSES {
            self.meter.stop(Stopped::TooLong);
            self.meter.poll();
        }
    }

    /// Notes a miss. Returns the number of misses now.
    pub(super) fn note_miss(&self, view: &RemoteView, miss: Miss) -> usize {
        view.state().count(0, 1);
        self.missed.borrow_mut().push(view, miss)
    }

    /// Returns a slot that only the remote base has.
    pub(super) fn remote_slot(&mut self, id: usize, slot: U256) -> U256 {
        let entry = &self.entries[id];
        let Some(RemoteAccount { view, cell }) = &entry.remote else { return U256::ZERO };
        if let Some(value) = view.slot_in(cell.as_deref(), &entry.now.address, &slot) {
            self.hits += 1;
            return value;
        }
        let (view, miss) = (view.clone(), Miss::Slot(entry.now.address, slot));
        self.miss(&view, miss);
        U256::ZERO
    }
}
