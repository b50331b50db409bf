//! Differences between a pre-confirmed block and its builder's word, or the canonical block: kept for people to read.

use std::time::SystemTime;

use alloy_primitives::B256;

use super::{Live, LiveError, PreConfirmed};
use crate::{
    feed::upstream::{BlockError, UpstreamBlock},
    state::Divergence,
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

    /// Keeps the difference between a canonical block and the same block as it was pre-confirmed. A block that became
    /// canonical with more transactions than had been pre-confirmed does not differ, unless all were: `is_complete`.
    pub(super) fn note_difference(&self, block: &UpstreamBlock, is_complete: bool) {
        let Some(ahead) = self.preconfirmed().find(|ahead| ahead.number == block.number()) else { return };
        let own = ahead.transaction_hashes(&self.feed.snapshots.newest());
        let theirs = block.transaction_hashes();
        let is_prefix = theirs.starts_with(&own);
        let difference = match ahead.environment_difference(&block.header) {
            Some(difference) => difference,
            None if is_prefix && !is_complete => return,
            None if !is_prefix => {
                let at = own.iter().zip(&theirs).take_while(|(own, theirs)| own == theirs).count();
                let name = |hash: Option<&B256>| hash.map_or_else(|| "none".to_owned(), ToString::to_string);
                let (computed, announced) = (name(own.get(at)), name(theirs.get(at)));
                let transaction = own.get(at).copied();
                let field = format!("transactions[{at}]");
                return self.retain(Divergence {
                    at: SystemTime::now(),
                    block: ahead.number,
                    index: None,
                    transaction,
                    field,
                    computed,
                    announced,
                });
            }
            None => {
                let (_, totals) = ahead.outcome(&self.feed.snapshots.newest());
                match totals.check(block) {
                    Err(error) => return self.diverged(ahead.number, None, &error),
                    Ok(()) => return,
                }
            }
        };
        let (field, computed, announced) = difference;
        self.retain(Divergence {
            at: SystemTime::now(),
            block: ahead.number,
            index: None,
            transaction: None,
            field: field.to_owned(),
            computed,
            announced,
        });
    }

    fn retain(&self, divergence: Divergence) {
        let Divergence { block, field, computed, announced, .. } = &divergence;
        tracing::warn!(block, field, computed, announced, "what was pre-confirmed is not what the chain does");
        self.feed.snapshots.divergences.push(divergence);
        self.feed.count_divergence();
    }
}

impl PreConfirmed {
    /// Returns the first field of the environment that differs in `header`: its name, the own value, and the other one.
    pub(super) fn environment_difference(
        &self,
        header: &alloy_consensus::Header,
    ) -> Option<(&'static str, String, String)> {
        let own = &self.header;
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
