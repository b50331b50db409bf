//! A pre-confirmed block as it was published.

use std::sync::Arc;

use alloy_consensus::Header;
use alloy_primitives::B256;

use super::import::ReceiptTotals;
use crate::{
    chain::{BlockTotals, ChainReceipt},
    ledger::Snapshot,
};

/// A pre-confirmed block that is not canonical yet: the snapshot after it, or the newest one while it is being built.
pub(super) struct Preconfirmed(pub(super) Arc<Snapshot>);

impl Preconfirmed {
    /// Returns the hashes of the block's transactions so far, in order.
    pub(super) fn transaction_hashes(&self) -> Vec<B256> {
        match &self.0.open {
            Some(open) => open.transactions.iter().map(|tx| *tx.tx_hash()).collect(),
            None => self.0.head.transaction_hashes().unwrap_or_default(),
        }
    }

    /// Returns the receipts so far, and what follows from them, which was computed along with the sub-blocks.
    pub(super) fn outcome(&self) -> (Vec<ChainReceipt>, ReceiptTotals) {
        match &self.0.open {
            Some(open) => {
                let BlockTotals { gas_used, receipts_root, logs_bloom, .. } = open.totals();
                (open.receipts.iter().cloned().collect(), ReceiptTotals { gas_used, receipts_root, logs_bloom })
            }
            None => {
                let Header { gas_used, receipts_root, logs_bloom, .. } = *self.0.head.header.inner();
                (self.0.head.body().receipts.clone(), ReceiptTotals { gas_used, receipts_root, logs_bloom })
            }
        }
    }
}
