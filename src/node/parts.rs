//! The pool and the wallet of a node, as its settings say.

use std::sync::Arc;

use crate::{
    chain::ChainSpec,
    config::Config,
    engine::{BaseFeeRule, SimulationRules},
    ledger::Snapshots,
    pool::Pool,
    state::CodeCache,
    store::{Store, StoreError},
    wallet::{Accounts, Approvals, Fees, Ledger, Wallet},
};

/// Returns the pool on `snapshots`, with the transactions that wait in `store` if it is durable.
///
/// # Errors
///
/// Returns the errors of [`Pool::restore`].
pub fn pool(
    config: &Config,
    spec: &ChainSpec,
    snapshots: &Arc<Snapshots>,
    store: &Store,
) -> Result<Arc<Pool>, StoreError> {
    let kept = store.is_durable().then(|| store.clone());
    let pool = Arc::new(Pool::new(spec.clone(), config.pool(spec), snapshots.clone(), kept));
    pool.restore()?;
    Ok(pool)
}

/// Returns the wallet that signs for `accounts`, sends to `pool`, and keeps its batches in `store`.
pub fn wallet(
    config: &Config,
    spec: &ChainSpec,
    codes: &Arc<CodeCache>,
    pool: &Arc<Pool>,
    accounts: Accounts,
    approvals: Arc<Approvals>,
    store: Store,
) -> Wallet {
    Wallet {
        spec: spec.clone(),
        codes: codes.clone(),
        pool: pool.clone(),
        accounts,
        fees: Fees::new(spec.clone(), u128::from(config.pool_min_tip)),
        approvals,
        ledger: Ledger::new(store, u64::from(config.wallet_keep_batches)),
        policy: config.wallet(),
        rules: SimulationRules {
            base_fee: BaseFeeRule::Block,
            keeps_prev_randao: true,
            block_time: None,
            state_roots: false,
            gas_cap: config.gas_cap,
            max_blocks: config.max_blocks,
            max_trace: 0,
            // geth's tolerance. It is less than the margin, and a slow call runs a few times instead of dozens.
            estimate_tolerance: 0.015,
        },
        sending: None,
    }
}
