//! The order in which transactions are mined: whoever pays the producer most first, each sender's by nonce.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BinaryHeap, VecDeque},
    sync::Arc,
};

use alloy_consensus::{Transaction, TxEnvelope, transaction::Recovered};

use super::Pooled;

/// What is left of a block.
#[derive(Clone, Copy, Debug)]
pub struct BlockSpace {
    /// Gas.
    pub gas: u64,
    /// Blob gas.
    pub blob_gas: u64,
}

/// The transactions that could be mined now, best first. A moment's view: what comes into the pool later is not in it.
#[derive(Debug)]
pub struct Best {
    fees: BlockFees,
    heap: BinaryHeap<Ready>,
}

/// What a block asks for gas, in wei.
#[derive(Clone, Copy, Debug)]
pub struct BlockFees {
    /// A unit of gas; zero before London.
    pub base: u64,
    /// A unit of blob gas; zero before Cancun.
    pub blob: u128,
}

/// A transaction whose turn it is, and those of its sender that can follow.
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

    /// The best transaction that `room` is left for. Its sender's next is handed out when this one was [`included`](Self::included);
    /// senders whose next does not fit are passed over.
    pub fn next(&mut self, room: BlockSpace) -> Option<Ready> {
        loop {
            let ready = self.heap.pop()?;
            let tx = ready.transaction();
            if tx.gas_limit() <= room.gas && tx.blob_gas_used().unwrap_or_default() <= room.blob_gas {
                return Some(ready);
            }
        }
    }

    /// The transaction is in the block: its sender's next may follow.
    pub fn included(&mut self, ready: Ready) {
        self.heap.extend(self.fees.head_of(ready.following));
    }
}

impl BlockFees {
    /// The first of a sender's transactions, if it pays what the block asks.
    fn head_of(self, mut run: VecDeque<Arc<Pooled>>) -> Option<Ready> {
        let next = run.pop_front()?;
        let tip = next.tx.effective_tip_per_gas(self.base)?;
        let pays_blobs = next.tx.max_fee_per_blob_gas().is_none_or(|fee| fee >= self.blob);
        pays_blobs.then_some(Ready { tip, next, following: run })
    }
}

impl Ready {
    /// The transaction.
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
