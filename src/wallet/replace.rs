//! Replacing a batch's transactions that wait, at the word of an approver: with higher fees, or to cancel them.

use std::sync::Arc;

use alloy_consensus::{Transaction, TxEnvelope, transaction::Recovered};
use alloy_primitives::{Address, B256, TxKind, U256};

use super::{BatchId, Ledger, Replacement, SigningError, TakenBatch, TxFields, Wallet, error::cut};
use crate::{
    engine::{Call, CallFees},
    pool::{PoolError, PoolPlace, Pooled},
    store::StoreError,
};

/// Gas of a transaction that does nothing.
const NOTHING: u64 = 21_000;

/// The kind of a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacing {
    /// The same transactions with higher fees.
    Bump,
    /// Transactions that do nothing.
    Cancel,
}

/// A batch whose transactions were replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplacedBatch {
    /// Id of the batch.
    pub id: BatchId,
    /// The new transactions.
    pub transactions: Vec<Replacement>,
}

/// The reason why a batch's transactions are not replaced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplaceError {
    /// The node sends to no upstream.
    #[error("the node does not send to an upstream: only there do batches wait for long")]
    NoUpstream,
    /// No batch has the id, or ids that begin with it are several.
    #[error("no batch has the id {0}, or more than one id begins with it")]
    Unknown(String),
    /// Nothing of the batch waits.
    #[error("no transaction of {0} waits: see its status")]
    Settled(String),
    /// The account is not the wallet's any more.
    #[error("{0} is not an account of the wallet: start the node with its key (--wallet-key-file)")]
    NoKey(Address),
    /// The replacement cannot be signed.
    #[error("it cannot be signed: {0}")]
    Unsigned(String),
    /// The replacement is not taken.
    #[error("{0}")]
    Pool(String),
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Wallet {
    /// Signs the waiting transactions of a batch once more, with the same nonces, and stores them, to be sent.
    ///
    /// # Errors
    /// Returns the [`ReplaceError`] of the first problem. Nothing is replaced then.
    pub async fn replace(&self, id: &str, how: Replacing) -> Result<ReplacedBatch, ReplaceError> {
        let sending = self.sending.as_ref().ok_or(ReplaceError::NoUpstream)?;
        // One after another, because each begins with what the one before has stored.
        let _alone = sending.replacing.lock().await;
        let mut found = self.ledger.find(id)?;
        let (Some(id), true) = (found.pop(), found.is_empty()) else { return Err(ReplaceError::Unknown(cut(id))) };
        let batch = self.ledger.get(&id)?.ok_or_else(|| ReplaceError::Unknown(cut(id.as_str())))?;
        sending.look(batch.from, self.pool.published().head().hash()).await;
        let (replaced, commit) = self.replace_in(&id, batch, how)?;
        commit.wait().await?;
        for one in &replaced.transactions {
            tracing::info!(id = ?cut(id.as_str()), of = %one.of, hash = %one.hash, ?how, "an approver has replaced a transaction");
        }
        Ok(replaced)
    }

    fn replace_in(
        &self,
        id: &BatchId,
        mut batch: TakenBatch,
        how: Replacing,
    ) -> Result<(ReplacedBatch, crate::store::Commit), ReplaceError> {
        let signer = self.accounts.find(batch.from).ok_or(ReplaceError::NoKey(batch.from))?;
        let choosing = signer.choosing();
        // The executor harms nobody, and later batches may count on it.
        let deployment = batch.deployment.filter(|_| how == Replacing::Bump);
        let (mut signed, mut replacements) = (Vec::new(), Vec::new());
        for of in deployment.into_iter().chain(batch.transactions.iter().copied()) {
            let Some(pooled) = self.waiting_version(&batch, of) else { continue };
            let tx = &pooled.tx;
            let call = match how {
                Replacing::Bump => same(tx),
                Replacing::Cancel => {
                    Call { from: tx.signer(), to: TxKind::Call(Address::ZERO), value: U256::ZERO, ..Call::default() }
                }
            };
            let call = Call { fees: self.raised(tx), ..call };
            let gas = if how == Replacing::Cancel { NOTHING } else { tx.gas_limit() };
            let filled = TxFields { chain_id: batch.chain_id, nonce: tx.nonce(), gas };
            let tx =
                signer.sign(call, filled).map_err(|error: SigningError| ReplaceError::Unsigned(error.to_string()))?;
            replacements.push(Replacement { of, hash: *tx.tx_hash(), cancels: how == Replacing::Cancel });
            signed.push(tx);
        }
        if signed.is_empty() {
            return Err(ReplaceError::Settled(cut(id.as_str())));
        }
        batch.replacements.get_or_insert_default().extend(&replacements);
        let write = Ledger::rewriting(id, &batch);
        let added = self.pool.add_own_at(PoolPlace::Any, signed, self.ledger.store(), write, |_| ());
        drop(choosing);
        let commit = added.map_err(|error| match error {
            PoolError::Store(error) => ReplaceError::Store(error),
            other => ReplaceError::Pool(other.to_string()),
        })?;
        Ok((ReplacedBatch { id: id.clone(), transactions: replacements }, commit))
    }

    /// Returns the version of a transaction that waits.
    fn waiting_version(&self, batch: &TakenBatch, of: B256) -> Option<Arc<Pooled>> {
        let pooled = batch.versions(of).filter_map(|(version, _)| self.pool.own_pooled(&version)).last()?;
        let (sender, nonce) = (pooled.tx.signer(), pooled.tx.nonce());
        self.pool.own_with_nonce(&sender, nonce).filter(|waiting| Arc::ptr_eq(waiting, &pooled))
    }

    /// Returns fees that replace those of a transaction, and that the next block takes.
    fn raised(&self, tx: &TxEnvelope) -> CallFees {
        let bump = u128::from(self.pool.price_bump());
        let more = |fee: u128| fee.saturating_add((fee.saturating_mul(bump)).div_ceil(100)).saturating_add(1);
        let published = self.pool.published();
        let asked =
            CallFees::Market { max_fee: None, max_priority: self.sending.as_ref().and_then(|sending| sending.tip()) };
        let usual = self.fees.fill(asked, false, &published).unwrap_or_default();
        match (tx.max_priority_fee_per_gas(), usual) {
            (Some(tip), CallFees::Market { max_fee, max_priority }) => CallFees::Market {
                max_fee: Some(more(tx.max_fee_per_gas()).max(max_fee.unwrap_or_default())),
                max_priority: Some(more(tip).max(max_priority.unwrap_or_default())),
            },
            (Some(tip), CallFees::GasPrice(_)) => {
                CallFees::Market { max_fee: Some(more(tx.max_fee_per_gas())), max_priority: Some(more(tip)) }
            }
            (None, CallFees::GasPrice(price)) => CallFees::GasPrice(more(tx.max_fee_per_gas()).max(price)),
            (None, CallFees::Market { .. }) => CallFees::GasPrice(more(tx.max_fee_per_gas())),
        }
    }
}

/// Returns the call of a transaction, without its fees and limits.
fn same(tx: &Recovered<TxEnvelope>) -> Call {
    Call {
        from: tx.signer(),
        to: tx.kind(),
        value: tx.value(),
        data: tx.input().clone(),
        access_list: tx.access_list().filter(|list| !list.is_empty()).cloned(),
        authorization_list: tx.authorization_list().map(<[_]>::to_vec),
        ..Call::default()
    }
}
