//! The pool and the wallet of a node, as its settings say.

use std::{sync::Arc, time::Duration};

use crate::{
    chain::ChainSpec,
    config::{ApprovalPolicy, Config, FeedName, RevertPolicy, UpgradePolicy},
    engine::{BaseFeeRule, SimulationRules},
    ledger::Snapshots,
    pool::{self, BlocksBuilt, Pool},
    source::fleet::FleetOutbox,
    state::CodeCache,
    store::{Store, StoreError},
    telemetry::Metrics,
    upstream::{Fetcher, Upstream},
    wallet::{Accounts, AheadStates, Approvals, Fees, Ledger, Policy, Sending, SendingSettings, Wallet},
};

/// Returns the pool on `snapshots`, with the transactions that wait in `store` if it is durable. Transactions also go to
/// `outbox`, if there is one.
///
/// # Errors
///
/// Returns the errors of [`Pool::restore`].
pub fn pool(
    config: &Config,
    spec: &ChainSpec,
    snapshots: &Arc<Snapshots>,
    store: &Store,
    outbox: Option<FleetOutbox>,
) -> Result<Arc<Pool>, StoreError> {
    let built = match config.feed() {
        _ if config.fleet.follow.is_some() => BlocksBuilt::Nowhere,
        _ if config.live.upstream.is_some() => BlocksBuilt::Upstream,
        FeedName::Devnet => BlocksBuilt::Here,
        FeedName::Static => BlocksBuilt::Nowhere,
    };
    let limits = pool::Settings {
        transactions: config.pool_transactions as usize,
        per_account: config.pool_account_transactions as usize,
        bytes: config.pool_bytes,
        price_bump: config.pool_price_bump,
        min_tip: u128::from(config.pool_min_tip),
        contracts_may_send: spec.contracts_may_send(),
        bundles: config.pool_bundles as usize,
        built,
    };
    let kept = store.is_durable().then(|| store.clone());
    let pool = Pool::new(spec.clone(), limits, snapshots.clone(), kept);
    let pool = Arc::new(match outbox {
        Some(outbox) => pool.with_outbox(outbox),
        None => pool,
    });
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
        policy: policy(config),
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
        ahead: AheadStates::new(spec.clone(), pool.clone()),
        sending: None,
    }
}

/// Returns the sending of the wallet's transactions to `upstream`, whose state `fetcher` fetches.
pub fn sending(
    config: &Config,
    spec: &ChainSpec,
    upstream: &Arc<Upstream>,
    fetcher: &Arc<Fetcher>,
    metrics: &Metrics,
) -> Arc<Sending> {
    let settings = SendingSettings {
        resend: Duration::from_millis(config.wallet_resend_ms),
        timeout: config.live.timeout(),
        batch: config.live.upstream_batch as usize,
        receipt_wait: Duration::from_millis(config.wallet_receipt_wait_ms),
        final_after: Duration::from_secs(config.wallet_final_s),
    };
    Arc::new(Sending::new(upstream.clone(), fetcher.clone(), settings, spec.family(), metrics))
}

fn policy(config: &Config) -> Policy {
    Policy {
        ask: config.wallet_approval == ApprovalPolicy::Ask,
        deny: config.wallet_approval == ApprovalPolicy::Deny,
        max_calls: config.wallet_max_calls as usize,
        max_bytes: config.wallet_max_bytes as usize,
        allow_upgrade: config.wallet_upgrade == UpgradePolicy::Allow,
        refuse_reverts: config.wallet_revert == RevertPolicy::Refuse,
        gas_margin: u64::from(config.wallet_gas_margin),
        fee_margin: u64::from(config.wallet_fee_margin),
        executor: config.wallet_executor,
    }
}
