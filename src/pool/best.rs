//! The order in which transactions are mined: by the tip for the producer, and for each sender by nonce.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BinaryHeap, VecDeque},
    sync::Arc,
};

use alloy_consensus::{Transaction, TxEnvelope, transaction::Recovered};

use super::Pooled;
use crate::chain::GasLeft;

/// The gas that a block has left.
#[derive(Clone, Copy, Debug)]
pub struct BlockSpace {
    /// Gas left.
    pub gas: GasLeft,
    /// Blob gas left.
    pub blob_gas: u64,
}

/// The transactions that can be mined at one moment, best first. Later arrivals in the pool are not included.
#[derive(Debug)]
pub struct Best {
    fees: BlockFees,
    heap: BinaryHeap<Ready>,
}

/// The fees that a block requires, in wei.
#[derive(Clone, Copy, Debug)]
pub struct BlockFees {
    /// Base fee per gas; zero before London.
    pub base: u64,
    /// Base fee per blob gas; zero before Cancun.
    pub blob: u128,
}

/// A sender's next transaction, and those of the same sender that can follow.
#[derive(Debug)]
pub struct Ready {
    tip: u128,
    next: Arc<Pooled>,
    following: VecDeque<Arc<Pooled>>,
}

impl Best {
    pub(super) fn new(fees: BlockFees, runs: impl Iterator<Item = VecDeque<Arc<Pooled>>>) -> Self {
        let heap = runs.filter_map(|run| fees.head_of(run)).collect();
        Self { fees, heap }
    }

    /// Returns the best transaction that fits in `room`. Its sender's next one follows only after this one was
    /// [`included`](Self::included). A sender whose next transaction does not fit is dropped.
    pub fn next(&mut self, room: BlockSpace) -> Option<Ready> {
        loop {
            let ready = self.heap.pop()?;
            let tx = ready.transaction();
            if room.gas.fits(tx.gas_limit()) && tx.blob_gas_used().unwrap_or_default() <= room.blob_gas {
                return Some(ready);
            }
        }
    }

    /// Records that the transaction is in the block, so that its sender's next one may follow.
    pub fn included(&mut self, ready: Ready) {
        self.heap.extend(self.fees.head_of(ready.following));
    }
}

impl BlockFees {
    /// Returns the first transaction of a run, with the rest of the run, if it pays the block's fees.
    fn head_of(self, mut run: VecDeque<Arc<Pooled>>) -> Option<Ready> {
        let next = run.pop_front()?;
        let tip = next.tx.effective_tip_per_gas(self.base)?;
        let pays_blobs = next.tx.max_fee_per_blob_gas().is_none_or(|fee| fee >= self.blob);
        pays_blobs.then_some(Ready { tip, next, following: run })
    }
}

impl Ready {
    /// Returns the signed transaction with its sender.
    pub fn transaction(&self) -> &Arc<Recovered<TxEnvelope>> {
        &self.next.tx
    }

    fn key(&self) -> (u128, Reverse<u64>) {
        (self.tip, Reverse(self.next.arrived))
    }
}

impl Ord for Ready {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ready {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Ready {}
