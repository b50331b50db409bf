//! Transactions that leave the pool without being mined, after they were acknowledged.

use alloy_primitives::B256;

use crate::telemetry::{Counter, Metrics};

/// The reason why a transaction is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum DropReason {
    /// Another transaction with its nonce pays more.
    Replaced,
    /// The pool was full, and others pay more.
    Evicted,
    /// Another transaction with its nonce was mined.
    NonceUsed,
    /// The chain's rules do not allow it in a block.
    Unminable,
    /// A client has removed it, with --testing.
    Withdrawn,
    /// The node that builds the blocks has rejected it, and it was acknowledged as not checked yet.
    Rejected,
}

impl DropReason {
    /// All reasons.
    pub const ALL: [Self; 6] =
        [Self::Replaced, Self::Evicted, Self::NonceUsed, Self::Unminable, Self::Withdrawn, Self::Rejected];

    /// Returns the label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A transaction that has left the pool without being mined.
#[derive(Clone, Copy, Debug)]
pub struct DroppedTransaction {
    /// The hash.
    pub hash: B256,
    /// The reason.
    pub reason: DropReason,
}

/// The counts of dropped transactions.
#[derive(Clone, Debug)]
pub struct PoolDrops([Counter; DropReason::ALL.len()]);

impl PoolDrops {
    /// Creates the counts.
    pub fn new(metrics: &Metrics) -> Self {
        Self(DropReason::ALL.map(|reason| {
            metrics.counter_with(
                "presim_dropped_total",
                "Acknowledged transactions that were dropped without being mined, by reason.",
                &[("reason", reason.as_str())],
            )
        }))
    }

    /// Counts a transaction, and logs it.
    pub fn count(&self, hash: B256, reason: DropReason) {
        self.0[reason as usize].increment(1);
        tracing::warn!(%hash, reason = reason.as_str(), "an acknowledged transaction is dropped");
    }
}
