//! Replaces a batch's waiting transactions on an approver's command: with higher fees, or to cancel them.

use std::sync::Arc;

use alloy_consensus::{Transaction, TxEnvelope, transaction::Recovered};
use alloy_primitives::{Address, B256, TxKind, U256};
use eyre::{Report, eyre};
use serde::{Deserialize, Serialize};

use crate::{
    engine::{Call, CallFees},
    pool::{LeastFees, PoolNonce, Pooled},
    state::{Held, Missed, Overlay},
    store::Commit,
    wallet::{
        BatchId, FeeBounds, Replacement, TakenBatch, TxFields, Wallet,
        data_fee::DataFee,
        error::cut,
        plan::{gas_fee, most_price, total, with_margin},
    },
};

/// Gas of a transaction that does nothing.
const EMPTY_TX_GAS: u64 = 21_000;
/// Number of times that state is fetched for the fees other than gas: their parameters are in the slots of one
/// contract.
const DATA_FEE_ROUNDS: usize = 3;

/// The kind of a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Replacing {
    /// The same transactions with higher fees.
    Bump,
    /// Transactions that do nothing.
    Cancel,
}

/// The fees of a replacement, before anything is signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacementQuote {
    /// Id of the batch.
    pub id: BatchId,
    /// Number of transactions.
    pub transactions: usize,
    /// The fees, with the margin of an approval.
    pub bounds: FeeBounds,
}

/// A batch whose transactions were replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacedBatch {
    /// Id of the batch.
    pub id: BatchId,
    /// The hash of each transaction, and the hash of its replacement.
    pub transactions: Vec<(B256, B256)>,
}

impl Wallet {
    /// Returns the fees of a replacement, as an operator is to be shown them.
    ///
    /// # Errors
    /// Returns an error about the first problem.
    pub async fn quote(&self, id: &str, how: Replacing) -> eyre::Result<ReplacementQuote> {
        let (id, batch) = self.find_to_replace(id).await?;
        let waiting = self.waiting_of(&batch, how);
        if waiting.is_empty() {
            return Err(settled(id.as_str()));
        }
        let gas = total(waiting.iter().map(|one| one.most_fee(self.raised(&one.pooled.tx))));
        let data = self.data_fees(&waiting).await;
        let margin = self.policy.fee_margin;
        let bounds = FeeBounds { gas: with_margin(gas, margin), data, margin };
        Ok(ReplacementQuote { id, transactions: waiting.len(), bounds })
    }

    /// Signs the waiting transactions of a batch once more, with the same nonces, and stores them, to be sent. `bounds` are the
    /// fees that the operator was shown.
    ///
    /// # Errors
    /// Returns an error about the first problem. Nothing is replaced then.
    pub async fn replace(&self, id: &str, how: Replacing, bounds: FeeBounds) -> eyre::Result<ReplacedBatch> {
        let sending = self.sending.as_ref().ok_or_else(no_upstream)?;
        // One after another, because each begins with the state that the previous one has stored.
        let _alone = sending.replacing.lock().await;
        let (id, batch) = self.find_to_replace(id).await?;
        let data = self.data_fees(&self.waiting_of(&batch, how)).await;
        bounds.check_data(data).map_err(Report::msg)?;
        let (replaced, commit) = self.replace_in(&id, batch, how, bounds)?;
        commit.wait().await?;
        for (of, hash) in &replaced.transactions {
            tracing::info!(id = ?cut(id.as_str()), %of, %hash, ?how, "an approver has replaced a transaction");
        }
        Ok(replaced)
    }

    /// Finds the batch with this id or the only one whose id begins with it, and asks the upstream for the fees.
    async fn find_to_replace(&self, id: &str) -> eyre::Result<(BatchId, TakenBatch)> {
        let sending = self.sending.as_ref().ok_or_else(no_upstream)?;
        let mut found = self.ledger.find(id)?;
        let (Some(id), true) = (found.pop(), found.is_empty()) else { return Err(unknown(id)) };
        let batch = self.ledger.get(&id)?.ok_or_else(|| unknown(id.as_str()))?;
        sending.refresh(batch.from, self.pool.published().head().hash()).await;
        Ok((id, batch))
    }

    /// Returns the transactions of a batch that wait and are to be replaced.
    fn waiting_of(&self, batch: &TakenBatch, how: Replacing) -> Vec<ToReplace> {
        // The executor does no harm, and later batches may rely on it.
        let deployment = batch.deployment.filter(|_| how == Replacing::Bump);
        let all = deployment.into_iter().chain(batch.transactions.iter().copied());
        all.filter_map(|of| Some(ToReplace { of, pooled: self.waiting_version(batch, of)?, how })).collect()
    }

    fn replace_in(
        &self,
        id: &BatchId,
        mut batch: TakenBatch,
        how: Replacing,
        bounds: FeeBounds,
    ) -> eyre::Result<(ReplacedBatch, Commit)> {
        let signer = self.accounts.find(batch.from).ok_or_else(|| {
            eyre!("{} is not an account of the wallet: start the node with its key (--wallet-key-file)", batch.from)
        })?;
        let choosing = signer.choosing.lock();
        let waiting = self.waiting_of(&batch, how);
        if waiting.is_empty() {
            return Err(settled(id.as_str()));
        }
        let total = |fees: &[CallFees]| total(waiting.iter().zip(fees).map(|(one, fees)| one.most_fee(*fees)));
        let mut fees: Vec<CallFees> = waiting.iter().map(|one| self.raised(&one.pooled.tx)).collect();
        if total(&fees) > bounds.gas {
            // As little more as a replacement must offer, and the next block takes.
            fees = waiting.iter().map(|one| self.least_raised(&one.pooled.tx)).collect();
            let needed = total(&fees);
            if needed > bounds.gas {
                return Err(Report::msg(bounds.exceeded_by(needed)));
            }
        }
        let (mut signed, mut replacements) = (Vec::new(), Vec::new());
        for (one, fees) in waiting.iter().zip(fees) {
            let filled = TxFields { chain_id: batch.chain_id, nonce: one.pooled.tx.nonce(), gas: one.gas() };
            let tx = signer
                .sign(Call { fees, ..one.call() }, filled)
                .map_err(|error| eyre!("it cannot be signed: {error}"))?;
            replacements.push(Replacement { of: one.of, hash: *tx.tx_hash(), cancels: how == Replacing::Cancel });
            signed.push(tx);
        }
        batch.replacements.get_or_insert_default().extend(&replacements);
        let write = self.ledger.writing(id, &batch);
        let added = self.pool.add_own(PoolNonce::Any, signed, &self.ledger.store, write, |_| ());
        drop(choosing);
        let transactions = replacements.iter().map(|one| (one.of, one.hash)).collect();
        Ok((ReplacedBatch { id: id.clone(), transactions }, added?))
    }

    /// Returns the version of a transaction that waits.
    fn waiting_version(&self, batch: &TakenBatch, of: B256) -> Option<Arc<Pooled>> {
        let pooled = batch.versions(of).filter_map(|(version, _)| self.pool.own_pooled(&version)).last()?;
        let (sender, nonce) = (pooled.tx.signer(), pooled.tx.nonce());
        self.pool.own_with_nonce(&sender, nonce).filter(|waiting| Arc::ptr_eq(waiting, &pooled))
    }

    /// Returns the estimated fees that the OP stack takes in addition to gas for replacements of these transactions,
    /// in wei. Zero on other chains, and if the state for the estimate cannot be fetched.
    async fn data_fees(&self, waiting: &[ToReplace]) -> U256 {
        let Some(sending) = &self.sending else { return U256::ZERO };
        let mut held = Held::default();
        for _ in 0..DATA_FEE_ROUNDS {
            match self.estimated_data_fees(waiting) {
                Ok(fees) => return fees,
                Err(missed) => held.extend(sending.fetch(&missed).await),
            }
        }
        U256::ZERO
    }

    fn estimated_data_fees(&self, waiting: &[ToReplace]) -> Result<U256, Missed> {
        let published = self.pool.published();
        let snapshot = &published.newest;
        let mut overlay = Overlay::new(snapshot.world.clone(), snapshot.hashes.clone());
        let fee = DataFee::at(&self.spec, snapshot, &mut overlay);
        let missed = overlay.take_missed();
        if !missed.is_empty() {
            return Err(missed);
        }
        let each = fee.iter().flat_map(|fee| waiting.iter().map(move |one| (fee, one)));
        let each = each.map(|(fee, one)| {
            let call = Call { fees: self.raised(&one.pooled.tx), ..one.call() };
            fee.of(&call, one.gas(), call.authorization_list.is_some())
        });
        Ok(total(each))
    }

    /// Returns fees high enough to replace a transaction and to enter the next block, with room for later blocks.
    fn raised(&self, tx: &TxEnvelope) -> CallFees {
        let asked =
            CallFees::Market { max_fee: None, max_priority: self.sending.as_ref().and_then(|sending| sending.tip()) };
        self.raised_to(
            tx,
            self.fees.fill(asked, false, LeastFees::default(), &self.pool.published()).unwrap_or_default(),
        )
    }

    /// Returns the lowest fees that replace a transaction and enter the next block.
    fn least_raised(&self, tx: &TxEnvelope) -> CallFees {
        let least = self.fees.least_price(&self.pool.published());
        self.raised_to(tx, CallFees::Market { max_fee: Some(least), max_priority: None })
    }

    /// Returns fees high enough to replace a transaction, and at least `usual`.
    fn raised_to(&self, tx: &TxEnvelope, usual: CallFees) -> CallFees {
        let bump = u128::from(self.pool.price_bump());
        let more = |fee: u128| fee.saturating_add((fee.saturating_mul(bump)).div_ceil(100)).saturating_add(1);
        match (tx.max_priority_fee_per_gas(), usual) {
            (Some(tip), CallFees::Market { max_fee, max_priority }) => CallFees::Market {
                max_fee: Some(more(tx.max_fee_per_gas()).max(max_fee.unwrap_or_default())),
                max_priority: Some(more(tip).max(max_priority.unwrap_or_default())),
            },
            (Some(tip), CallFees::GasPrice(_)) => {
                CallFees::Market { max_fee: Some(more(tx.max_fee_per_gas())), max_priority: Some(more(tip)) }
            }
            (None, usual) => CallFees::GasPrice(more(tx.max_fee_per_gas()).max(most_price(usual))),
        }
    }
}

fn no_upstream() -> Report {
    eyre!("the node does not send to an upstream: only there do batches wait for long")
}

fn unknown(id: &str) -> Report {
    eyre!("no batch has the id {}, or more than one id begins with it", cut(id))
}

fn settled(id: &str) -> Report {
    eyre!("no transaction of {} waits: see its status", cut(id))
}

/// A transaction that waits and is to be replaced.
struct ToReplace {
    /// Hash of the batch's transaction.
    of: B256,
    /// The version of it that waits.
    pooled: Arc<Pooled>,
    how: Replacing,
}

impl ToReplace {
    /// Returns the call of the replacement, without fees and gas limit.
    fn call(&self) -> Call {
        match self.how {
            Replacing::Bump => same(&self.pooled.tx),
            Replacing::Cancel => {
                Call { from: self.pooled.tx.signer(), to: TxKind::Call(Address::ZERO), ..Call::default() }
            }
        }
    }

    /// Returns the gas limit of the replacement.
    fn gas(&self) -> u64 {
        if self.how == Replacing::Cancel { EMPTY_TX_GAS } else { self.pooled.tx.gas_limit() }
    }

    /// Returns the maximum gas fee of the replacement in wei.
    fn most_fee(&self, fees: CallFees) -> U256 {
        gas_fee(self.gas(), most_price(fees))
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
