//! `pending` as an account's next batch will find it: with the transactions of the account that still wait.

use std::sync::Arc;

use alloy_consensus::{Transaction, TxEnvelope, transaction::Recovered};
use alloy_primitives::{Address, B256, map::AddressMap};

use super::{BatchExecutor, WalletError};
use crate::{
    chain::{ChainSpec, ChainTx},
    engine::ChainExecutor,
    ledger::{Chain, Selector, Snapshot, StateId},
    lock::Mutex,
    meter::{Meter, Stopped},
    pool::Pool,
    state::{AccountChange, Overlay},
};

/// The state on which an account's next batch is planned.
#[derive(Clone, Debug)]
pub(super) struct PlanBase {
    /// The published state, not older than what has left the pool.
    pub published: Arc<Chain>,
    /// `pending` after the transactions of the account that wait.
    pub snapshot: Arc<Snapshot>,
    /// The account's nonce at `pending`, before those transactions.
    pub nonce: u64,
    /// The waiting transaction that deploys the batch executor.
    pub deployment: Option<B256>,
}

/// The states after the waiting transactions, by account. Each continues where the one before it ended.
#[derive(Debug)]
pub struct AheadStates {
    spec: ChainSpec,
    pool: Arc<Pool>,
    states: Mutex<AddressMap<Arc<Mutex<Option<AheadState>>>>>,
}

#[derive(Debug)]
struct AheadState {
    /// The state of `pending` on which the transactions ran.
    base: StateId,
    transactions: Vec<B256>,
    snapshot: Arc<Snapshot>,
}

impl AheadState {
    /// Whether it is a state on `base` after the first of `waiting`.
    fn begins(&self, base: &Snapshot, waiting: &[Arc<Recovered<TxEnvelope>>]) -> bool {
        self.base == base.state
            && self.transactions.len() <= waiting.len()
            && self.transactions.iter().zip(waiting).all(|(hash, tx)| hash == tx.tx_hash())
    }
}

impl AheadStates {
    /// Creates the states of a wallet whose transactions wait in `pool`.
    pub fn new(spec: ChainSpec, pool: Arc<Pool>) -> Self {
        Self { spec, pool, states: Mutex::default() }
    }

    /// Returns the state on which the next batch of `account` is planned. Only states of the wallet's own accounts are retained.
    /// State of an upstream that is not known is noted in `overlay`.
    ///
    /// # Errors
    /// Returns [`WalletError::Refused`] if there is no `pending`, and [`WalletError::Deadline`] if `meter` stops the run.
    pub(super) fn plan_base(
        &self,
        account: Address,
        is_own: bool,
        executor: BatchExecutor,
        overlay: &mut Overlay,
        meter: &mut Meter,
    ) -> Result<PlanBase, WalletError> {
        let state = if is_own { self.states.lock().entry(account).or_default().clone() } else { Arc::default() };
        // Locked throughout, so that each waiting transaction runs once, and on newer snapshots only.
        let mut state = state.lock();
        let waiting = self.pool.waiting_of(&account);
        // In this order, because a transaction leaves the pool only after its snapshot was published.
        let published = self.pool.published();
        let base = pending(&published)?;
        let nonce = overlay.look_up(&base.world, account).map_or(0, |info| info.nonce);
        let waiting: Vec<_> = waiting.into_iter().filter(|tx| tx.nonce() >= nonce).collect();
        let deployment = executor.deployment();
        let deploys = |tx: &&Arc<Recovered<TxEnvelope>>| {
            deployment.as_ref().is_some_and(|call| tx.to() == call.to && *tx.input() == call.data)
        };
        let deployment = waiting.iter().find(deploys).map(|tx| *tx.tx_hash());
        let snapshot = if waiting.is_empty() || overlay.has_missed() {
            base
        } else {
            self.after(&mut state, &base, &waiting, overlay, meter)?
        };
        Ok(PlanBase { published, snapshot, nonce, deployment })
    }

    /// Returns the state on `base` after all of `waiting`.
    fn after(
        &self,
        state: &mut Option<AheadState>,
        base: &Arc<Snapshot>,
        waiting: &[Arc<Recovered<TxEnvelope>>],
        overlay: &mut Overlay,
        meter: &mut Meter,
    ) -> Result<Arc<Snapshot>, WalletError> {
        let (on, done) = match state.as_ref().filter(|state| state.begins(base, waiting)) {
            Some(known) => (known.snapshot.clone(), known.transactions.len()),
            None => (base.clone(), 0),
        };
        if done == waiting.len() {
            return Ok(on);
        }
        // Not in the worker's overlay, because the changes enter a world that lasts.
        let mut own = Overlay::new(on.world.clone(), on.hashes.clone());
        // The run does not pause, because the state is locked.
        own.meter = meter.clone();
        run(&self.spec, &on, &waiting[done..], &mut own);
        let changes: Vec<AccountChange> = own.changes().cloned().collect();
        let snapshot = Arc::new(base.with_world(on.world.clone().with_changes_to_run_on(&changes)));
        if let Some(why) = own.meter.stopped() {
            if why == Stopped::Deadline {
                return Err(WalletError::Deadline);
            }
            meter.stop(why);
        }
        let missed = own.take_missed();
        if missed.is_empty() && meter.stopped().is_none() {
            let transactions = waiting.iter().map(|tx| *tx.tx_hash()).collect();
            *state = Some(AheadState { base: base.state, transactions, snapshot: snapshot.clone() });
        }
        overlay.add_missed(missed);
        Ok(snapshot)
    }
}

/// Returns the snapshot on which batches are simulated.
pub(super) fn pending(published: &Chain) -> Result<Arc<Snapshot>, WalletError> {
    published.select(Selector::Pending).map_err(|error| WalletError::Refused(error.to_string()))
}

/// Runs transactions in order. One that would be valid in no block, which another may fill, has no effect.
fn run(spec: &ChainSpec, on: &Snapshot, waiting: &[Arc<Recovered<TxEnvelope>>], overlay: &mut Overlay) {
    let mut executor = ChainExecutor::new(spec, overlay, on.header(), None, &[]).lenient();
    for tx in waiting {
        let chain_tx = Recovered::new_unchecked(ChainTx::from(tx.inner().clone()), tx.signer());
        if let Err(error) = executor.execute_ahead(&chain_tx) {
            tracing::debug!(hash = %tx.tx_hash(), %error, "a waiting transaction is not part of the simulation");
        }
        if executor.overlay().meter.between_calls().is_err() {
            return;
        }
    }
}
