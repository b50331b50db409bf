//! The events that the answer to a sent transaction waits for, and the outbox of a node whose blocks another builds.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use alloy_primitives::{B256, Bytes};
use tokio::sync::oneshot;

use super::PoolError;
use crate::store::Commit;

/// The event that the answer to a sent transaction waits for.
#[derive(Debug)]
#[must_use = "nothing may be acknowledged before it"]
pub enum Acknowledgement {
    /// The transaction is on the disk, and where there is a fleet in its stream.
    Kept(Commit),
    /// The node that builds the blocks has checked the transaction.
    Checked(SubmittedTransaction),
}

impl From<Commit> for Acknowledgement {
    fn from(commit: Commit) -> Self {
        Self::Kept(commit)
    }
}

/// A transaction that is on its way to the node that builds the blocks.
#[derive(Debug)]
pub struct SubmittedTransaction {
    /// The hash.
    pub hash: B256,
    /// Whether the stream of the fleet has the transaction.
    pub stored: Arc<AtomicBool>,
    /// The verdict of the node that builds the blocks.
    pub verdict: oneshot::Receiver<Result<(), PoolError>>,
}

/// A transaction of another node of the fleet, as this node's pool has taken it.
#[derive(Debug)]
pub struct ForwardedTransaction {
    /// The hash.
    pub hash: B256,
    /// The commit of the transaction, or the reason why the pool rejects it.
    pub verdict: Result<Commit, PoolError>,
}

impl SubmittedTransaction {
    /// Returns whether the stream of the fleet has the transaction, so that it will be checked.
    pub fn is_stored(&self) -> bool {
        self.stored.load(Relaxed)
    }
}

/// An outbox of transactions for the nodes of a fleet that mine them.
pub trait TxOutbox: fmt::Debug + Send + Sync {
    /// Returns whether it takes more transactions now: those that are on their way are bounded.
    fn has_room(&self) -> bool;

    /// Returns whether another node builds the blocks now, so that the verdict of its pool counts.
    fn is_elsewhere(&self) -> bool;

    /// Sends a transaction in EIP-2718 bytes to the node that builds the blocks, for its verdict.
    fn submit(&self, hash: B256, raw: Bytes) -> SubmittedTransaction;

    /// Sends transactions in EIP-2718 bytes, in this order, once `kept` is done. The returned commit is done when the fleet
    /// has them for good.
    fn send(&self, transactions: Vec<(B256, Bytes)>, kept: Commit) -> Commit;
}
