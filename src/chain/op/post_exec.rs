//! The post-execution transaction of [Lagoon](https://github.com/ethereum-optimism/specs/blob/main/specs/protocol/lagoon/post-exec.md),
//! which ends a block, and the refunds of gas that it lists ([Sequencer-Defined
//! Metering](https://github.com/ethereum-optimism/specs/blob/main/specs/protocol/lagoon/sdm.md)).
//!
//! The rules that a refund follows by itself are here; the engine's handler applies the [`Settlement`] to the refunded
//! transaction.

use std::sync::Arc;

use alloy_consensus::transaction::Recovered;
use alloy_primitives::{B256, Sealable, Sealed, U256};
use op_alloy::consensus::post_exec::{SDMGasEntry, TxPostExec};

use super::L1BlockInfo;
use crate::chain::ChainTx;

/// The refunds of gas of a block's transactions, checked against the rules of a block. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct GasRefunds(Option<Arc<Sealed<TxPostExec>>>);

/// Two are equal if they are of the same post-execution transaction.
impl PartialEq for GasRefunds {
    fn eq(&self, other: &Self) -> bool {
        self.hash() == other.hash()
    }
}

impl Eq for GasRefunds {}

/// The rule that a post-execution transaction breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPostExec {
    /// Lagoon is not active.
    #[error("a post-execution transaction before Lagoon")]
    BeforeLagoon,
    /// Another transaction follows it, possibly of the same type.
    #[error("a post-execution transaction that is not the last of its block")]
    NotLast,
    /// The payload is another block's.
    #[error("a post-execution payload of block {found}: expected {number}")]
    OtherBlock { found: u64, number: u64 },
    /// The payload lists no refund.
    #[error("a post-execution payload without refunds")]
    Empty,
    /// The indices do not increase.
    #[error("a refund at index {index} after one at {before}: expected increasing indices")]
    Order { index: u64, before: u64 },
    /// A refund is zero.
    #[error("a refund of 0 gas at index {index}")]
    Zero { index: u64 },
    /// An index names no signed transaction.
    #[error("a refund at index {index}, which is not a signed transaction of the block")]
    NotSigned { index: u64 },
}

impl GasRefunds {
    /// Returns the refunds of a whole block, of this number. `is_lagoon` says whether Lagoon is active at its time.
    ///
    /// # Errors
    ///
    /// Returns the index of a post-execution transaction that breaks a rule of the block, and that rule.
    pub fn of_block(
        is_lagoon: bool,
        number: u64,
        transactions: &[Recovered<ChainTx>],
    ) -> Result<Self, (usize, InvalidPostExec)> {
        let post_exec = transactions.iter().enumerate().find_map(|(index, tx)| Some((index, tx.as_post_exec()?)));
        let Some((index, tx)) = post_exec else { return Ok(Self::default()) };
        if index + 1 < transactions.len() {
            return Err((index, InvalidPostExec::NotLast));
        }
        let kinds = |at: usize| transactions.get(at).map(Recovered::inner);
        Self::checked(is_lagoon, number, tx.clone(), kinds).map_err(|broken| (index, broken))
    }

    /// Returns the refunds of a payload in the block of this number. `at` returns the block's transactions by their indices.
    ///
    /// # Errors
    ///
    /// Returns the rule that the payload breaks.
    pub fn checked<'a>(
        is_lagoon: bool,
        number: u64,
        tx: Sealed<TxPostExec>,
        at: impl Fn(usize) -> Option<&'a ChainTx>,
    ) -> Result<Self, InvalidPostExec> {
        let payload = &tx.payload;
        if !is_lagoon {
            return Err(InvalidPostExec::BeforeLagoon);
        }
        let found = payload.block_number;
        if found != number {
            return Err(InvalidPostExec::OtherBlock { found, number });
        }
        if payload.gas_refund_entries.is_empty() {
            return Err(InvalidPostExec::Empty);
        }
        let mut last = None;
        for entry in &payload.gas_refund_entries {
            let index = entry.index;
            if let Some(before) = last.replace(index).filter(|before| *before >= index) {
                return Err(InvalidPostExec::Order { index, before });
            }
            if entry.gas_refund == 0 {
                return Err(InvalidPostExec::Zero { index });
            }
            let named = usize::try_from(index).ok().and_then(&at);
            if !matches!(named, Some(ChainTx::Signed(_))) {
                return Err(InvalidPostExec::NotSigned { index });
            }
        }
        Ok(Self(Some(Arc::new(tx))))
    }

    /// Returns the refunds of a block of which `last` is the last transaction. The block was checked before.
    pub fn of_last(last: &ChainTx) -> Self {
        Self(last.as_post_exec().map(|tx| Arc::new(tx.clone())))
    }

    /// Returns the refunds that a post-execution transaction lists. The caller has checked them.
    pub fn of_checked(tx: TxPostExec) -> Self {
        Self(Some(Arc::new(tx.seal_slow())))
    }

    /// Returns the post-execution transaction that lists them, if any.
    pub fn transaction(&self) -> Option<&Sealed<TxPostExec>> {
        self.0.as_deref()
    }

    /// Returns the hash of the post-execution transaction.
    pub fn hash(&self) -> Option<B256> {
        self.0.as_ref().map(|tx| tx.hash())
    }

    /// Returns the gas that is refunded to the transaction at `index`: zero if it has no refund.
    pub fn of(&self, index: usize) -> u64 {
        let entries = self.entries();
        // The indices increase.
        let found = entries.binary_search_by_key(&(index as u64), |entry| entry.index);
        found.ok().and_then(|at| entries.get(at)).map_or(0, |entry| entry.gas_refund)
    }

    /// Returns whether the first `count` transactions of the block have the same refunds as by `other`.
    pub fn agrees_on(&self, count: usize, other: &Self) -> bool {
        let first = |refunds: &Self| refunds.entries().partition_point(|entry| entry.index < count as u64);
        self.entries()[..first(self)] == other.entries()[..first(other)]
    }

    fn entries(&self) -> &[SDMGasEntry] {
        self.0.as_ref().map_or(&[], |tx| &tx.payload.gas_refund_entries)
    }
}

/// The refund of a transaction is more than the gas that it has used.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a refund of {refund} gas: expected at most {used}, which the transaction has used")]
pub struct RefundTooLarge {
    refund: u64,
    used: u64,
}

/// The changes of balances, in wei, that settle a refund
/// (<https://github.com/ethereum-optimism/specs/blob/main/specs/protocol/lagoon/sdm.md#settlement>). The L1 fee does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The credit of the sender, which is the sum of the debits.
    pub sender: U256,
    /// The debit of the block's fee recipient.
    pub fee_recipient: U256,
    /// The debit of the base fee vault.
    pub base_fee_vault: U256,
    /// The debit of the operator fee vault.
    pub operator_fee_vault: U256,
}

impl Settlement {
    /// Returns the settlement of a refund to a transaction that has used `used` gas at `price` wei each, in a block with this
    /// base fee.
    ///
    /// # Errors
    ///
    /// Returns [`RefundTooLarge`] if the refund is more than the gas.
    pub fn of(refund: u64, used: u64, price: u128, base_fee: u64, fees: &L1BlockInfo) -> Result<Self, RefundTooLarge> {
        let left = used.checked_sub(refund).ok_or(RefundTooLarge { refund, used })?;
        // A transaction with a lower price than the base fee is in no block.
        let tip = price.saturating_sub(base_fee.into());
        let wei = |price: u128| U256::from(refund) * U256::from(price);
        let (fee_recipient, base_fee_vault) = (wei(tip), wei(base_fee.into()));
        let operator_fee_vault = fees.operator_fee(used).saturating_sub(fees.operator_fee(left));
        // The products have at most 192 bits.
        let sender = fee_recipient + base_fee_vault + operator_fee_vault;
        Ok(Self { sender, fee_recipient, base_fee_vault, operator_fee_vault })
    }
}
