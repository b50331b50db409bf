//! The order in which transactions are mined: by the tip for the producer, and for each sender by nonce.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque},
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
    /// Whether tips do not count.
    is_fifo: bool,
    /// Each sender's next transaction and its followers, ordered by tip, then by arrival. Arrivals are unique.
    runs: BTreeMap<(u128, Reverse<u64>), VecDeque<Arc<Pooled>>>,
}

/// The fees that a block requires, in wei.
#[derive(Clone, Copy, Debug)]
pub struct BlockFees {
    /// Base fee per gas; zero before London.
    pub base: u64,
    /// Base fee per blob gas; zero before Cancun.
    pub blob: u128,
}

/// A sender's next transaction, and the sender's transactions that can follow it.
#[derive(Debug)]
pub struct Ready {
    next: Arc<Pooled>,
    following: VecDeque<Arc<Pooled>>,
}

impl Best {
    pub(super) fn new(fees: BlockFees, is_fifo: bool, runs: impl Iterator<Item = VecDeque<Arc<Pooled>>>) -> Self {
        let mut best = Self { fees, is_fifo, runs: BTreeMap::new() };
        runs.for_each(|run| best.add(run));
        best
    }

    /// Adds a run of one sender's transactions, if the first pays the block's fees.
    fn add(&mut self, run: VecDeque<Arc<Pooled>>) {
        let Some(first) = run.front() else { return };
        let pays_blobs = first.tx.max_fee_per_blob_gas().is_none_or(|fee| fee >= self.fees.blob);
        if let Some(tip) = first.tx.effective_tip_per_gas(self.fees.base).filter(|_| pays_blobs) {
            let tip = if self.is_fifo { 0 } else { tip };
            self.runs.insert((tip, Reverse(first.arrived)), run);
        }
    }

    /// Returns the best transaction that fits in `room`. Its sender's next one follows only after this one was
    /// [`included`](Self::included). A sender whose next transaction does not fit is dropped.
    pub fn next(&mut self, room: BlockSpace) -> Option<Ready> {
        loop {
            let (_, mut following) = self.runs.pop_last()?;
            let next = following.pop_front()?;
            if room.gas.fits(next.tx.gas_limit()) && next.tx.blob_gas_used().unwrap_or_default() <= room.blob_gas {
                return Some(Ready { next, following });
            }
        }
    }

    /// Records that the transaction is in the block, so that its sender's next one may follow.
    pub fn included(&mut self, ready: Ready) {
        self.add(ready.following);
    }
}

impl Ready {
    /// Returns the signed transaction with its sender.
    pub fn transaction(&self) -> &Arc<Recovered<TxEnvelope>> {
        &self.next.tx
    }
}
