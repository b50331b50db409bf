//! The step from one state to the next: the changes between them.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::state::{AccountChange, Touched, World, merged_changes};

/// The identity of a state with its block context, in this process: no two that may differ have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateId(u64);

impl StateId {
    /// Returns an identity that no other state has.
    pub(super) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Relaxed))
    }
}

/// The changes from one state to another.
#[derive(Debug)]
pub struct StateStep {
    /// The state before the changes.
    pub from: StateId,
    /// The state after them.
    pub to: StateId,
    /// The world state before the changes.
    pub before: World,
    /// The changes, each account once.
    pub changes: Arc<Vec<AccountChange>>,
    /// The parts of the state that the changes touch, computed on first use.
    touched: OnceLock<Arc<Touched>>,
}

impl StateStep {
    /// Creates a step from the state `from`, which is `before`, to `to`.
    pub fn new(from: StateId, before: World, to: StateId, changes: Arc<Vec<AccountChange>>) -> Self {
        Self { from, to, before, changes, touched: OnceLock::new() }
    }

    /// Returns the changes of steps in a row, each account once.
    pub fn merged(path: &[Arc<Self>]) -> Vec<AccountChange> {
        merged_changes(path.iter().flat_map(|step| step.changes.iter()))
    }

    /// Returns the parts of the state that the changes touch.
    pub fn touched(&self) -> &Arc<Touched> {
        self.touched.get_or_init(|| {
            let mut touched = Touched::default();
            touched.add(&self.before, &self.changes);
            Arc::new(touched)
        })
    }
}
