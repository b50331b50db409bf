//! `pending` as an account's next batch will find it: with the transactions of the account that still wait.

use std::sync::Arc;

use alloy_consensus::{Transaction, TxEnvelope, transaction::Recovered};
use alloy_primitives::{Address, B256};

use super::{BatchExecutor, WalletError};
use crate::{
    chain::ChainSpec,
    engine::run_waiting,
    ledger::{Chain, Selector, Snapshot, StateId},
    lock::Mutex,
    meter::{Meter, Stopped},
    pool::Pool,
    state::Overlay,
};

/// The state on which an account's next batch is planned.
#[derive(Clone, Debug)]
pub(super) struct PlanBase {
    /// The published state, which includes all transactions that have left the pool.
    pub published: Arc<Chain>,
    /// `pending` after the transactions of the account that wait.
    pub snapshot: Arc<Snapshot>,
    /// The account's nonce at `pending`, before those transactions.
    pub nonce: u64,
    /// The waiting transaction that deploys the batch executor.
    pub deployment: Option<B256>,
}

/// The state after waiting transactions of an account, from which the transactions after them run.
#[derive(Debug)]
pub(super) struct AheadState {
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

/// Returns the state on which the next batch of `account` is planned. `state` is the last such state. State of an upstream that is not known
/// is noted in `overlay`.
///
/// # Errors
/// Returns [`WalletError::Refused`] if there is no `pending`, and [`WalletError::Deadline`] if `meter` stops the run.
pub(super) fn plan_base(
    spec: &ChainSpec,
    pool: &Pool,
    (account, state): (Address, &Mutex<Option<AheadState>>),
    executor: BatchExecutor,
    overlay: &mut Overlay,
    meter: &mut Meter,
) -> Result<PlanBase, WalletError> {
    // Locked throughout, so that each waiting transaction runs once, and on newer snapshots only.
    let mut state = state.lock();
    let waiting = pool.waiting_of(&account);
    // In this order, because a transaction leaves the pool only after its snapshot was published.
    let published = pool.published();
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
        after(spec, &mut state, &base, &waiting, overlay, meter)?
    };
    Ok(PlanBase { published, snapshot, nonce, deployment })
}

/// Returns the state on `base` after all of `waiting`.
fn after(
    spec: &ChainSpec,
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
    // The run does not pause, because the state is locked.
    let (world, missed, stopped) = run_waiting(spec, &on, &waiting[done..], meter.clone());
    let snapshot = Arc::new(base.with_world(world));
    match stopped {
        Some(Stopped::Deadline) => return Err(WalletError::Deadline),
        Some(why) => meter.stop(why),
        None => {}
    }
    if missed.is_empty() && meter.stopped().is_none() {
        let transactions = waiting.iter().map(|tx| *tx.tx_hash()).collect();
        *state = Some(AheadState { base: base.state, transactions, snapshot: snapshot.clone() });
    }
    overlay.add_missed(missed);
    Ok(snapshot)
}

/// Returns the snapshot on which batches are simulated.
pub(super) fn pending(published: &Chain) -> Result<Arc<Snapshot>, WalletError> {
    published.select(Selector::Pending).map_err(|error| WalletError::Refused(error.to_string()))
}
