//! One account of the upstream, with its known slots.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use alloy_primitives::{U256, map::HashMap};
use revm::state::AccountInfo;

use super::{codes::HeldCode, versions::Versions};
use crate::lock::RwLock;

/// An account by its blocks.
#[derive(Debug, Default)]
pub(crate) struct Cell(pub(super) RwLock<Known>);

/// The known state of an account.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Balance, nonce and code; `None` if the account does not exist.
    pub info: Used<Versions<Option<AccountFields>>>,
    /// The known slots.
    pub slots: HashMap<U256, Used<Versions<U256>>>,
}

/// Balance, nonce and code of an account.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AccountFields {
    pub balance: U256,
    pub nonce: u64,
    pub code: Option<Arc<HeldCode>>,
}

/// A value with a mark that reads set, for eviction.
#[derive(Debug, Default)]
pub(super) struct Used<T> {
    pub value: T,
    used: AtomicBool,
}

impl<T> Used<T> {
    pub fn mark(&self) {
        // Most reads find the mark set. A cache line that is only read stays in the cache of every core.
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
    }

    /// Clears the mark. Returns whether it was set.
    pub fn take_mark(&mut self) -> bool {
        std::mem::take(self.used.get_mut())
    }
}

impl Cell {
    /// Returns the account at a block. The outer `None` means unknown, the inner one that the account does not exist.
    pub fn info(&self, block: u64, since: u64) -> Option<Option<AccountInfo>> {
        let known = self.0.read();
        let fields = known.info.value.at(block, since)?;
        known.info.mark();
        Some(fields.as_ref().map(AccountFields::info))
    }

    /// Returns the same account as [`info`](Self::info), in the cache's representation.
    pub(super) fn fields(&self, block: u64, since: u64) -> Option<Option<AccountFields>> {
        let known = self.0.read();
        let fields = known.info.value.at(block, since)?;
        known.info.mark();
        Some(fields.clone())
    }

    /// Returns a slot at a block.
    pub fn slot(&self, key: &U256, block: u64, since: u64) -> Option<U256> {
        let known = self.0.read();
        let slot = known.slots.get(key)?;
        let value = slot.value.at(block, since)?;
        slot.mark();
        Some(*value)
    }
}

impl AccountFields {
    pub fn info(&self) -> AccountInfo {
        let code = self.code.as_ref().map(|held| held.code.clone()).unwrap_or_default();
        code.into_info(self.balance, self.nonce)
    }
}
