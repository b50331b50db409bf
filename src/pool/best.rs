//! The order in which transactions are mined: by the fee for the producer, and each sender's by nonce.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BinaryHeap, VecDeque},
    sync::Arc,
};

use alloy_consensus::{Transaction, TxEnvelope, transaction::Recovered};

use super::Pooled;

/// The gas that a block has left.
#[derive(Clone, Copy, Debug)]
pub struct BlockSpace {
    /// Gas.
    pub gas: u64,
    /// Blob gas.
    pub blob_gas: u64,
}

/// The transactions that could be mined now, best first. A view at one moment, without transactions that arrive later.
#[derive(Debug)]
pub struct Best {
    fees: BlockFees,
    heap: BinaryHeap<Ready>,
}

/// The prices of gas in a block, in wei.
#[derive(Clone, Copy, Debug)]
pub struct BlockFees {
    /// The price per unit of gas; zero before London.
    pub base: u64,
    /// The price per unit of blob gas; zero before Cancun.
    pub blob: u128,
}

/// The next transaction of a sender, and those that can follow it.
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

    /// Returns the best transaction that fits into `room`. Its sender's next is returned after
    /// [`included`](Self::included) was called; senders whose next one does not fit are skipped.
    pub fn next(&mut self, room: BlockSpace) -> Option<Ready> {
        loop {
            let ready = self.heap.pop()?;
            let tx = ready.transaction();
            if tx.gas_limit() <= room.gas && tx.blob_gas_used().unwrap_or_default() <= room.blob_gas {
                return Some(ready);
            }
        }
    }

    /// Notes that the block includes the transaction, so that its sender's next may follow.
    pub fn included(&mut self, ready: Ready) {
        self.heap.extend(self.fees.head_of(ready.following));
    }
}

impl BlockFees {
    /// Returns the first of a sender's transactions, if it pays the block's price.
    fn head_of(self, mut run: VecDeque<Arc<Pooled>>) -> Option<Ready> {
        let next = run.pop_front()?;
        let tip = next.tx.effective_tip_per_gas(self.base)?;
        let pays_blobs = next.tx.max_fee_per_blob_gas().is_none_or(|fee| fee >= self.blob);
        pays_blobs.then_some(Ready { tip, next, following: run })
    }
}

impl Ready {
    /// Returns the transaction.
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
