//! A pre-confirmed block as it was published.

use std::sync::Arc;

use alloy_consensus::{Header, TxReceipt};
use alloy_primitives::B256;

use super::import::ReceiptTotals;
use crate::{
    chain::{BlockTotals, ChainReceipt, receipts_root_and_bloom},
    ledger::Snapshot,
};

/// A pre-confirmed block that is not canonical yet: the snapshot after it, or the newest one while it is being built.
pub(super) struct Preconfirmed(pub(super) Arc<Snapshot>);

impl Preconfirmed {
    /// Returns the hashes of the block's transactions so far, in order, without the post-execution transaction.
    pub(super) fn transaction_hashes(&self) -> Vec<B256> {
        match &self.0.open {
            Some(open) => open.transactions.iter().map(|tx| *tx.tx_hash()).collect(),
            None => self.0.head.transaction_hashes().unwrap_or_default(),
        }
    }

    /// Returns the hashes of the block's transactions so far, in order, as a canonical block has them: with the post-execution
    /// transaction.
    pub(super) fn canonical_hashes(&self) -> Vec<B256> {
        let refunds = match &self.0.open {
            Some(open) => open.refunds.clone(),
            None => self.0.head.refunds(&self.0.head.body()),
        };
        self.transaction_hashes().into_iter().chain(refunds.hash()).collect()
    }

    /// Returns the receipts so far, as a canonical block has them, and the totals that follow from them, which were
    /// computed along with the sub-blocks.
    pub(super) fn outcome(&self) -> (Vec<ChainReceipt>, ReceiptTotals) {
        match &self.0.open {
            Some(open) => {
                let BlockTotals { gas_used, logs_bloom, .. } = open.totals();
                let receipts_root = open.canonical_receipts_root();
                let receipts = open.receipts.iter().cloned().chain(open.post_exec_receipt()).collect();
                (receipts, ReceiptTotals { gas_used, receipts_root, logs_bloom })
            }
            None => {
                let (header, body) = (self.0.head.header.inner(), self.0.head.body());
                let Header { gas_used, mut receipts_root, logs_bloom, .. } = *header;
                let mut receipts = body.receipts.clone();
                if self.0.head.refunds(&body).transaction().is_some() {
                    // The block does not list the post-execution transaction until it is canonical.
                    let cumulative_gas_used = receipts.last().map_or(0, TxReceipt::cumulative_gas_used);
                    receipts.push(ChainReceipt::PostExec { cumulative_gas_used });
                    (receipts_root, _) = receipts_root_and_bloom(&receipts);
                }
                (receipts, ReceiptTotals { gas_used, receipts_root, logs_bloom })
            }
        }
    }
}
