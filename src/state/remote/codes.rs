//! The bytecode of the cached accounts, each code once.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use alloy_primitives::{B256, map::DefaultHashBuilder};
use dashmap::DashMap;

use crate::state::Code;

/// Bytecode by its hash, for as long as an account refers to it.
#[derive(Debug, Default)]
pub(super) struct Codes {
    by_hash: DashMap<B256, Weak<HeldCode>, DefaultHashBuilder>,
    bytes: AtomicUsize,
}

/// Bytecode that accounts share.
#[derive(Debug)]
pub(super) struct HeldCode {
    /// The code.
    pub code: Code,
    within: Arc<Codes>,
}

impl Codes {
    /// The bytes of an entry without the code itself.
    const ENTRY: usize = 160;

    /// Holds a code; `None` if it has no bytes.
    pub fn hold(self: &Arc<Self>, code: &Code) -> Option<Arc<HeldCode>> {
        if code.bytecode.is_empty() {
            return None;
        }
        let mut entry = self.by_hash.entry(code.hash).or_default();
        if let Some(held) = entry.upgrade() {
            return Some(held);
        }
        self.bytes.fetch_add(Self::cost(code), Relaxed);
        let held = Arc::new(HeldCode { code: code.clone(), within: self.clone() });
        *entry = Arc::downgrade(&held);
        Some(held)
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Returns the size of the bytes, their jump table and the entry.
    fn cost(code: &Code) -> usize {
        Self::ENTRY + code.bytecode.len() + code.bytecode.len() / 8
    }
}

impl Drop for HeldCode {
    fn drop(&mut self) {
        self.within.bytes.fetch_sub(Codes::cost(&self.code), Relaxed);
        // Another thread may have inserted a new entry meanwhile.
        self.within.by_hash.remove_if(&self.code.hash, |_, held| held.strong_count() == 0);
    }
}

impl PartialEq for HeldCode {
    fn eq(&self, other: &Self) -> bool {
        self.code.hash == other.code.hash
    }
}
