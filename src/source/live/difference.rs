//! Differences between a pre-confirmed block and its builder's word, or the canonical block: kept for people to read.

use std::time::SystemTime;

use alloy_primitives::B256;

use super::{error::LiveError, preconfirmed::Preconfirmed, state::Live};
use crate::{
    ledger::Divergence,
    upstream::{BlockError, UpstreamBlock},
};

impl Live {
    /// Keeps the difference between a sub-block and its builder's word, or between a canonical block and its header or the
    /// chain's rules. Other errors are no differences.
    pub(super) fn diverged(&self, block: u64, sub_block: Option<u64>, error: &LiveError) {
        let (field, computed, announced, transaction) = match error {
            LiveError::Mismatch { what, computed, announced, transaction } => {
                ((*what).to_owned(), computed.clone(), announced.clone(), *transaction)
            }
            LiveError::Block(BlockError::Transactions { computed, announced, .. }) => {
                ("transactionsRoot".to_owned(), computed.to_string(), announced.to_string(), None)
            }
            LiveError::Transaction { index, problem } => {
                (format!("transactions[{index}]"), problem.clone(), "a transaction of the block".to_owned(), None)
            }
            LiveError::Panicked => ("execution".to_owned(), error.to_string(), "a valid block".to_owned(), None),
            _ => return,
        };
        let at = SystemTime::now();
        self.retain(Divergence { at, block, index: sub_block, transaction, field, computed, announced });
    }

    /// Records the difference between a canonical block and its pre-confirmed version. A block with more transactions
    /// than had been pre-confirmed does not differ, unless all of them had been: `is_complete`.
    pub(super) fn note_difference(&self, block: &UpstreamBlock, is_complete: bool) {
        let Some(own) = self.preconfirmed(block.number()) else { return };
        // A later sub-block may have brought other refunds, too.
        let hashes = if is_complete { own.canonical_hashes() } else { own.transaction_hashes() };
        let told = block.transaction_hashes();
        let is_prefix = told.starts_with(&hashes);
        let (transaction, (field, computed, announced)) = match own.environment_difference(&block.header) {
            Some((field, computed, announced)) => (None, (field.to_owned(), computed, announced)),
            None if is_prefix && !is_complete => return,
            None if !is_prefix => {
                let at = hashes.iter().zip(&told).take_while(|(own, told)| own == told).count();
                let name = |hash: Option<&B256>| hash.map_or_else(|| "none".to_owned(), ToString::to_string);
                let values = (format!("transactions[{at}]"), name(hashes.get(at)), name(told.get(at)));
                (hashes.get(at).copied(), values)
            }
            None => {
                if let Err(error) = own.outcome().1.check(block) {
                    self.diverged(block.number(), None, &error);
                }
                return;
            }
        };
        let (at, block) = (SystemTime::now(), block.number());
        self.retain(Divergence { at, block, index: None, transaction, field, computed, announced });
    }

    fn retain(&self, divergence: Divergence) {
        let Divergence { block, field, computed, announced, .. } = &divergence;
        tracing::warn!(block, field, computed, announced, "pre-confirmed content differs from the canonical chain");
        self.feed.snapshots.divergences.push(divergence);
        self.feed.count_divergence();
    }
}

impl Preconfirmed {
    /// Returns the first field of the environment that differs in `header`: its name, the own value, and the other one.
    pub(super) fn environment_difference(
        &self,
        header: &alloy_consensus::Header,
    ) -> Option<(&'static str, String, String)> {
        let own = self.0.header();
        macro_rules! compare {
            ($($field:ident $name:literal),*) => {
                $(if own.$field != header.$field {
                    return Some(($name, format!("{:?}", own.$field), format!("{:?}", header.$field)));
                })*
            };
        }
        compare!(
            parent_hash "parentHash", beneficiary "miner", timestamp "timestamp", gas_limit "gasLimit",
            base_fee_per_gas "baseFeePerGas", mix_hash "mixHash", parent_beacon_block_root "parentBeaconBlockRoot",
            extra_data "extraData"
        );
        None
    }
}
