//! The gas fees of transactions that the node signs.

use alloy_consensus::Transaction;
use arc_swap::ArcSwapOption;

use crate::{
    chain::ChainSpec,
    engine::CallFees,
    ledger::{Block, Chain, SnapshotId},
    pool::LeastFees,
};

/// geth's suggestion of a tip: recent blocks that it considers, tips taken of each, and the percentile of all of them.
const TIP_BLOCKS: u64 = 20;
const TIPS_A_BLOCK: usize = 3;
const TIP_PERCENTILE: usize = 60;
/// Tips below this, in wei, are ignored, as in geth.
const IGNORED_TIP: u128 = 2;
/// The tip that is suggested if recent blocks have none, and the maximum suggestion: 1 and 500 gwei.
const DEFAULT_TIP: u128 = 1_000_000_000;
const MAX_TIP: u128 = 500_000_000_000;

/// The fees of the chain's next block, and the fees to offer for it.
#[derive(Debug)]
pub struct Fees {
    spec: ChainSpec,
    /// Minimum tip of the pool, in wei per gas.
    min_tip: u128,
    /// The last suggested tip, with its snapshot.
    tip: ArcSwapOption<(SnapshotId, u128)>,
}

/// Fees that no transaction can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeeError {
    /// A transaction with authorizations (EIP-7702) has a gas price instead of the fees of EIP-1559.
    #[error("gasPrice: not allowed in a transaction with authorizations: expected maxFeePerGas")]
    PriceWithAuthorizations,
    /// The fees of EIP-1559 are given before London.
    #[error("maxFeePerGas and maxPriorityFeePerGas are not valid before London is active")]
    BeforeLondon,
    /// The tip exceeds the whole fee. Both are in wei per gas.
    #[error("maxFeePerGas ({fee}) < maxPriorityFeePerGas ({tip})")]
    TipAboveFee { fee: u128, tip: u128 },
}

impl Fees {
    /// Creates the fees of a chain whose pool requires a tip of at least `min_tip` wei per gas.
    pub const fn new(spec: ChainSpec, min_tip: u128) -> Self {
        Self { spec, min_tip, tip: ArcSwapOption::const_empty() }
    }

    /// Returns the base fee of the block being built, or else of the next one, in wei per gas. `None` before London.
    pub fn base_fee(&self, published: &Chain) -> Option<u64> {
        let head = published.head().header.inner();
        match published.pending().and_then(|snapshot| snapshot.open.as_ref()) {
            Some(open) => open.header.base_fee_per_gas,
            None => self.spec.next_base_fee(head, head.number + 1, self.spec.next_timestamp(head.timestamp)),
        }
    }

    /// Returns the least price in wei per gas at which the next block may take a transaction: the base fee and the minimum tip.
    pub fn least_price(&self, published: &Chain) -> u128 {
        self.base_fee(published).map_or(0, u128::from).saturating_add(self.min_tip)
    }

    /// Returns the tip to offer in wei per gas: a percentile of recent tips, but at least the minimum of the pool.
    pub fn tip(&self, published: &Chain) -> u128 {
        let id = published.newest.id;
        if let Some(known) = self.tip.load().as_ref().filter(|known| known.0 == id) {
            return known.1;
        }
        let tip = suggested_tip(published).max(self.min_tip);
        self.tip.store(Some((id, tip).into()));
        tip
    }

    /// Completes `asked` with the suggested tip, and with a fee of twice the base fee plus the tip (geth's
    /// `setDefaults`). Each value filled in is at least `least`, so that it replaces a waiting transaction.
    /// `authorizes` is whether the transaction has authorizations.
    ///
    /// # Errors
    /// Returns [`FeeError`] if no transaction can offer these fees: a gas price together with authorizations, fees of
    /// EIP-1559 before London, or a tip above the fee.
    pub fn fill(
        &self,
        asked: CallFees,
        authorizes: bool,
        least: LeastFees,
        published: &Chain,
    ) -> Result<CallFees, FeeError> {
        let (max_fee, max_priority) = match (asked, self.base_fee(published)) {
            (CallFees::GasPrice(_), _) if authorizes => return Err(FeeError::PriceWithAuthorizations),
            (CallFees::GasPrice(_), _) => return Ok(asked),
            (CallFees::Market { max_fee: None, max_priority: None }, None) => {
                return Ok(CallFees::GasPrice(self.tip(published).max(least.max_fee)));
            }
            (CallFees::Market { .. }, None) => return Err(FeeError::BeforeLondon),
            (CallFees::Market { max_fee, max_priority }, Some(_)) => (max_fee, max_priority),
        };
        let tip = max_priority.unwrap_or_else(|| self.tip(published).max(least.tip));
        let twice_base = 2 * u128::from(self.base_fee(published).unwrap_or_default());
        let fee = max_fee.unwrap_or_else(|| twice_base.saturating_add(tip).max(least.max_fee));
        if fee < tip {
            return Err(FeeError::TipAboveFee { fee, tip });
        }
        Ok(CallFees::Market { max_fee: Some(fee), max_priority: Some(tip) })
    }
}

fn suggested_tip(published: &Chain) -> u128 {
    let mut tips: Vec<u128> = Vec::new();
    // `pending` is `None` while the feed is broken, because the chain may not continue its open block.
    let open = published.pending().and_then(Block::newest);
    let newest = open.as_ref().map_or(published.head().number(), |open| open.number());
    let first = newest.saturating_sub(TIP_BLOCKS - 1);
    let sealed = published.blocks(first, published.head().number()).filter_map(Block::sealed);
    for block in sealed.chain(open) {
        let base_fee = block.context().base_fee_per_gas.unwrap_or_default();
        let producer = block.context().beneficiary;
        let mut paid: Vec<u128> = block
            .transactions()
            .filter(|included| included.tx.signer() != producer)
            .filter_map(|included| included.tx.effective_tip_per_gas(base_fee))
            .filter(|tip| *tip >= IGNORED_TIP)
            .collect();
        paid.sort_unstable();
        tips.extend(paid.into_iter().take(TIPS_A_BLOCK));
    }
    tips.sort_unstable();
    let at = tips.len().saturating_sub(1) * TIP_PERCENTILE / 100;
    tips.get(at).copied().unwrap_or(DEFAULT_TIP).min(MAX_TIP)
}
