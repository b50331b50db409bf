//! The state of a batch, as it follows from the chain, the pool and the stored outcomes.

use alloy_consensus::{Transaction, TxReceipt};
use alloy_primitives::{Address, B256};

use super::{
    BatchExecutor, BatchId, BatchStatus, CallsReceipt, CallsState, TakenBatch, TakenTx, TxOutcome, Wallet, WalletError,
    executor::has_code, outcome::ran_code,
};
use crate::{
    chain::ChainSpec,
    ledger::{Chain, Included, Selector, Snapshot},
    state::Overlay,
    store::StoreError,
};

/// The fate of one transaction of a batch.
enum Fate {
    /// The transaction is in a block. On an upstream's chain, the second field is whether code ran in it, if that is
    /// known.
    FetchOutcome(CallsReceipt, Option<bool>),
    /// The transaction is in no block yet. Holds the version that waits.
    Waits(B256),
    /// The transaction can be in no block any more, because this transaction has used its nonce, if that is known.
    Lost(Option<B256>),
    /// The transaction was in a block that was pruned.
    Pruned,
}

impl Wallet {
    /// Returns the state of a batch, with its receipts.
    ///
    /// # Errors
    /// Returns [`WalletError::Unknown`] if no batch has this id, [`WalletError::Pruned`] if the blocks that hold it
    /// were pruned, and [`WalletError::Store`] if the store cannot be read.
    pub fn status(&self, id: BatchId, overlay: &Overlay) -> Result<BatchStatus, WalletError> {
        let batch = self.ledger.get(&id)?.ok_or_else(|| WalletError::unknown(&id))?;
        // In this order, because a transaction leaves the pool only after its snapshot was published, or its outcome stored.
        let waiting: Vec<Option<B256>> =
            batch.transactions.iter().map(|hash| self.newest_held(&batch, *hash)).collect();
        let published = self.pool.published();
        let mut receipts = Vec::with_capacity(waiting.len());
        let (mut lost, mut pruned) = (0, 0);
        let (mut waits, mut taken) = (Vec::new(), Vec::new());
        for (hash, held) in batch.transactions.iter().zip(waiting) {
            match self.fate(&published, &batch, *hash, held)? {
                Fate::FetchOutcome(mut receipt, ran) => {
                    receipt.success &= !batch.atomic || ran != Some(false);
                    receipts.push(receipt);
                }
                Fate::Pruned => pruned += 1,
                Fate::Waits(version) => waits.push(version),
                Fate::Lost(by) => {
                    lost += 1;
                    taken.push(TakenTx { hash: *hash, by });
                }
            }
        }
        // A transaction that is not found may have been in a block that was pruned. The outcomes on an upstream's chain are
        // stored.
        let first = batch.taken_on.unwrap_or_default() + 1;
        if self.sending.is_none() && lost > 0 && published.has_blocks(first, published.head().number()).is_err() {
            (lost, pruned) = (0, lost + pruned);
        }
        // A batch with a waiting part is pending, regardless of the rest.
        if pruned > 0 && receipts.len() + lost + pruned == batch.transactions.len() {
            return Err(WalletError::pruned(&id));
        }
        // The deployment may have been replaced, or have failed because another one came first. If the executor was not
        // deployed in time, the calls were not made.
        if let Some(deployment) = batch.deployment
            && !matches!(self.fate(&published, &batch, deployment, None)?, Fate::FetchOutcome(receipt, _) if receipt.success)
        {
            for receipt in &mut receipts {
                receipt.success &= was_deployed_before(&published, batch.executor, receipt, overlay);
            }
        }
        let state = state_of(batch.transactions.len(), &receipts, lost + pruned);
        let (waiting, taken) = match &self.sending {
            Some(sending) => {
                (waits.iter().filter_map(|hash| sending.waiting(hash, &self.pool, &self.fees)).collect(), taken)
            }
            None => (Vec::new(), Vec::new()),
        };
        Ok(BatchStatus { id, chain_id: batch.chain_id, state, atomic: batch.atomic, receipts, waiting, taken })
    }

    /// Returns the newest version of a transaction that the pool holds.
    fn newest_held(&self, batch: &TakenBatch, hash: B256) -> Option<B256> {
        let held = batch.versions(hash).filter(|(version, _)| self.pool.holds(version));
        held.last().map(|(version, _)| version)
    }

    fn fate(&self, published: &Chain, batch: &TakenBatch, hash: B256, held: Option<B256>) -> Result<Fate, StoreError> {
        for (version, cancels) in batch.versions(hash) {
            match receipt_of(&self.spec, published, &version) {
                Some(_) if cancels => return Ok(Fate::Lost(Some(version))),
                Some((receipt, ran)) => return Ok(Fate::FetchOutcome(receipt, ran.filter(|_| self.sending.is_some()))),
                // The upstream is asked for the receipts of a block that is known by its header only.
                None if self.sending.is_none() && published.is_mined(&version) => return Ok(Fate::Pruned),
                None => {}
            }
        }
        let mut taken = None;
        if let Some(sending) = &self.sending {
            for (version, cancels) in batch.versions(hash) {
                let known = match sending.outcome(&version) {
                    Some(known) => Some(known),
                    // A stored outcome of a transaction in the pool is void if the sending does not know it.
                    None => self.ledger.outcome(&version)?.filter(|_| !self.pool.holds(&version)),
                };
                match known {
                    Some(TxOutcome::FetchOutcome(..)) if cancels => return Ok(Fate::Lost(Some(version))),
                    Some(TxOutcome::FetchOutcome(receipt, ran)) => return Ok(Fate::FetchOutcome(receipt, ran)),
                    Some(TxOutcome::Taken(by)) => taken = Some(by.hash),
                    None => {}
                }
            }
        }
        // While the feed is broken its open block is not shown, but the chain may still continue it.
        let building = batch.versions(hash).map(|(version, _)| version).find(|version| published.is_building(version));
        Ok(match (taken, held.or(building)) {
            (Some(by), _) => Fate::Lost(by),
            (None, Some(version)) => Fate::Waits(version),
            (None, None) => Fate::Lost(None),
        })
    }
}

/// Returns the receipt of a transaction that is in a block that is not pruned, or in the one being built, and whether code
/// ran in it, if its gas tells.
pub(super) fn receipt_of(spec: &ChainSpec, published: &Chain, hash: &B256) -> Option<(CallsReceipt, Option<bool>)> {
    let (block, index) = published.transaction(hash)?;
    let header = block.header();
    let receipt = |included: Included<'_>| {
        let receipt = CallsReceipt {
            logs: included.receipt.logs().to_vec(),
            success: included.receipt.status(),
            block_hash: header.hash(),
            block_number: header.number,
            gas_used: included.gas_used,
            tx_hash: *hash,
        };
        (receipt, ran_code(&**included.tx, included.tx.signer(), included.evm_gas_used(), spec.evm_fork(header)))
    };
    block.transaction(index).map(receipt)
}

/// Whether the batch executor was deployed before the transaction of this receipt ran, in an earlier block or earlier
/// in the same one. If that state is no longer kept, the executor counts as deployed if it is now.
fn was_deployed_before(published: &Chain, executor: Address, receipt: &CallsReceipt, overlay: &Overlay) -> bool {
    let is_there = |at: &Snapshot| has_code(at, executor, overlay);
    match published.select(Selector::Number(receipt.block_number.saturating_sub(1))) {
        Err(_) => return is_there(&published.newest),
        Ok(before) if is_there(&before) => return true,
        Ok(_) => {}
    }
    let Some(deployment) = BatchExecutor::new(Some(executor)).deployment() else { return false };
    let Some((block, _)) = published.transaction(&receipt.tx_hash) else { return false };
    let mut before = block.transactions().take_while(|included| *included.tx.tx_hash() != receipt.tx_hash);
    before.any(|included| {
        included.tx.to() == deployment.to && *included.tx.input() == deployment.data && included.receipt.status()
    })
}

/// Returns the state of a batch of `count` transactions: `receipts` of them are in a block, and `lost` never can be.
fn state_of(count: usize, receipts: &[CallsReceipt], lost: usize) -> CallsState {
    let succeeded = receipts.iter().filter(|receipt| receipt.success).count();
    match receipts.len() {
        included if included + lost < count => CallsState::Pending,
        0 => CallsState::Failed,
        _ if succeeded == count => CallsState::Confirmed,
        _ if succeeded == 0 => CallsState::Reverted,
        _ => CallsState::PartlyReverted,
    }
}
