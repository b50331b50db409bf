//! Pre-confirmed values that the chain did not keep.

use std::{collections::VecDeque, time::SystemTime};

use crate::lock::Mutex;
use alloy_primitives::B256;

/// A difference between a pre-confirmed block and its producer's word, or the canonical block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// The time at which it was found.
    pub at: SystemTime,
    /// The block's number.
    pub block: u64,
    /// The index of the sub-block; `None` if the canonical block differs.
    pub index: Option<u64>,
    /// The transaction, if the difference is one transaction's.
    pub transaction: Option<B256>,
    /// The name of the value that differs.
    pub field: String,
    /// The value that was computed or pre-confirmed here.
    pub computed: String,
    /// The value that the producer sent, or that the canonical block has.
    pub announced: String,
}

/// The last divergences, oldest first.
#[derive(Debug, Default)]
pub struct Divergences(Mutex<VecDeque<Divergence>>);

impl Divergences {
    /// The number of divergences that are retained.
    pub const KEPT: usize = 100;

    /// Adds the newest divergence.
    pub fn push(&self, divergence: Divergence) {
        let mut kept = self.0.lock();
        if kept.len() == Self::KEPT {
            kept.pop_front();
        }
        kept.push_back(divergence);
    }

    /// Returns the retained divergences, newest first.
    pub fn newest_first(&self) -> Vec<Divergence> {
        self.0.lock().iter().rev().cloned().collect()
    }
}
