//! Processes batches from arrival to the pool: checks the rules, plans, asks for approval and signs, in this order.

use std::{cmp::Ordering, sync::Arc};

use alloy_consensus::{TxEnvelope, transaction::Recovered};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{Address, B256};

use super::{
    Accounts, Approvals, AtomicSupport, BatchExecutor, BatchId, BatchRequest, Delegation, FeeBounds, Fees, Ledger,
    Policy, Sending, SigningAccount, SimulatedCall, TakenBatch, TxFields, WalletError,
    ahead::{PlanBase, pending, plan_base},
    data_fee::DataFee,
    executor::has_code,
    ledger::IdClaim,
    plan::{Plan, PlannedTx, Planner},
    rules::{check_capabilities, check_chain, check_size},
};
use crate::{
    chain::{ChainSpec, DEPLOYMENT_PROXY},
    engine::{self, Call, CallFees},
    ledger::{Chain, Snapshot},
    lock::Mutex,
    meter::Meter,
    pool::{LeastFees, Pool, PoolNonce},
    state::{CodeCache, Overlay},
    store::{Commit, StoreError},
};

/// Maximum number of retries with new nonces, if other transactions have taken the chosen ones.
pub const NONCE_TRIES: u32 = 8;

/// The wallet of a node.
#[derive(Debug)]
pub struct Wallet {
    /// The chain.
    pub spec: ChainSpec,
    /// Cache of analysed bytecode.
    pub codes: Arc<CodeCache>,
    /// The pool to which its transactions are added.
    pub pool: Arc<Pool>,
    /// The accounts that the wallet signs for.
    pub accounts: Accounts,
    /// The fees that its transactions offer.
    pub fees: Fees,
    /// The batches that wait for approval.
    pub approvals: Arc<Approvals>,
    /// The accepted batches.
    pub ledger: Ledger,
    /// The settings.
    pub policy: Policy,
    /// The rules and limits of its simulations.
    pub rules: engine::SimulationRules,
    /// The sending to an upstream. `None` on a chain of presim's own.
    pub sending: Option<Arc<Sending>>,
}

/// A batch that has passed the rules and was simulated, but is not signed yet. Dropping it frees its id.
#[derive(Debug)]
pub struct PreparedBatch {
    pub(super) batch: BatchRequest,
    pub(super) claim: IdClaim,
    pub(super) account: Address,
    pub(super) plan: Plan,
    /// The fees that an approver is shown.
    pub(super) bounds: FeeBounds,
    pub(super) base: PlanBase,
}

impl PreparedBatch {
    /// Returns the id that the sender gave, or a random one.
    pub fn id(&self) -> &BatchId {
        &self.claim.id
    }

    /// Returns the result of each call in the simulation at `pending`, in order. It is empty if all were simulated as one.
    pub fn simulation(&self) -> &[SimulatedCall] {
        &self.plan.simulation
    }

    /// Whether the batch is a transaction of `eth_sendTransaction`, whose answer is its hash.
    pub const fn is_transaction(&self) -> bool {
        self.batch.transaction.is_some()
    }

    /// Returns the snapshot on which the batch was simulated if one of its calls fails there, for which the client has set no gas
    /// limit.
    pub fn failed_on(&self) -> Option<&Arc<Snapshot>> {
        let calls = self.batch.calls.iter().zip(&self.plan.simulation);
        let mut failed = calls.filter(|(call, simulated)| call.gas_limit.is_none() && simulated.error.is_some());
        failed.next().map(|_| &self.base.snapshot)
    }
}

impl Wallet {
    /// Checks a batch, claims its id, and simulates it at `pending`. `client`: whether its client may use the wallet.
    ///
    /// # Errors
    /// Returns the error of the first rule that the batch breaks, or the error of the simulation.
    pub fn admit(
        &self,
        batch: BatchRequest,
        client: bool,
        overlay: &mut Overlay,
        mut meter: Meter,
    ) -> Result<PreparedBatch, WalletError> {
        let account = match batch.from {
            Some(from) => self.accounts.find(from),
            None => self.accounts.first(),
        };
        let address = account.map_or(Address::ZERO, SigningAccount::address);
        let base = self.plan_base(account, overlay, &mut meter)?;
        let claim = self.check(&batch, client, account, &base.snapshot, overlay)?;
        check_nonce(&batch, || self.next_nonces(address, base.nonce, 1))?;
        let plan = self.plan(&batch, address, &base, overlay, meter)?;
        let bounds = plan.bounds(self.policy.fee_margin);
        Ok(PreparedBatch { batch, claim, account: address, plan, bounds, base })
    }

    /// Checks a batch whose form is right by the rules, in their order, and claims its id. The claim is dropped if a later
    /// rule rejects the batch, which must free the id.
    fn check(
        &self,
        batch: &BatchRequest,
        client: bool,
        account: Option<&SigningAccount>,
        snapshot: &Snapshot,
        overlay: &Overlay,
    ) -> Result<IdClaim, WalletError> {
        check_chain(batch, self.spec.chain_id(), self.is_prague(snapshot))?;
        self.check_use(client)?;
        let account = account.map(SigningAccount::address).ok_or_else(|| match batch.from {
            Some(from) => WalletError::foreign_account("params[0].from", from),
            None => WalletError::Unauthorized("the wallet has no account (--wallet-key-file)".into()),
        })?;
        self.check_policy()?;
        check_capabilities(batch)?;
        let claim = self.ledger.reserve(batch.id.clone().unwrap_or_else(BatchId::random))?;
        // In this order, because a withdrawn batch gives up its claim only after the approvals know its id.
        self.approvals.check_id(&claim.id)?;
        check_size(batch, &self.policy)?;
        let is_delegated = || self.delegation(snapshot, account, overlay) == Delegation::Executor;
        if batch.atomic_required && !self.policy.allow_upgrade && !is_delegated() {
            return Err(WalletError::Upgrade(
                "params[0].atomicRequired: the account is not delegated to the batch executor, and --wallet-upgrade is deny: expected false"
                    .into(),
            ));
        }
        Ok(claim)
    }

    /// Simulates an approved batch again at the current `pending`, because the chain has advanced since it was shown.
    /// Lowers its prices if its fees would exceed the ones shown.
    ///
    /// # Errors
    /// Returns the error of the simulation, or [`WalletError::Rejected`] if an unapproved field would be signed.
    pub fn renew(
        &self,
        prepared: &mut PreparedBatch,
        overlay: &mut Overlay,
        mut meter: Meter,
    ) -> Result<(), WalletError> {
        let base = self.plan_base(self.accounts.find(prepared.account), overlay, &mut meter)?;
        let mut plan = self.plan(&prepared.batch, prepared.account, &base, overlay, meter)?;
        let (approved, now) = (prepared.plan.terms(), plan.terms());
        if approved != now {
            return Err(WalletError::Rejected(format!(
                "the chain has changed since the batch was shown: it was approved as {approved}, and would be {now}: send it again"
            )));
        }
        // A plan without all of its state is made again.
        if !overlay.has_missed() {
            plan.fit_into(prepared.bounds, self.fees.least_price(&base.published))?;
        }
        (prepared.plan, prepared.base) = (plan, base);
        Ok(())
    }

    /// Checks that the store can be written. Called before fees are filled in, which may read old blocks from a store
    /// that has failed.
    ///
    /// # Errors
    /// Returns [`StoreError::Failed`] if a commit has failed.
    pub fn check_store(&self) -> Result<(), StoreError> {
        self.ledger.store.failure().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    fn plan(
        &self,
        batch: &BatchRequest,
        account: Address,
        base: &PlanBase,
        overlay: &mut Overlay,
        meter: Meter,
    ) -> Result<Plan, WalletError> {
        self.check_store()?;
        let PlanBase { published, snapshot, nonce, .. } = base;
        let chosen = batch.transaction.as_ref();
        let asked = match chosen.map(|chosen| chosen.fees).unwrap_or_default() {
            CallFees::Market { max_fee, max_priority } => {
                let tip = || self.sending.as_ref().and_then(|sending| sending.tip());
                CallFees::Market { max_fee, max_priority: max_priority.or_else(tip) }
            }
            price => price,
        };
        let fees = self.fees.fill(asked, batch.atomic_required, LeastFees::default(), published);
        overlay.reset(snapshot.world.clone(), snapshot.hashes.clone(), Meter::default());
        let data_fee = self.sending.as_ref().and_then(|_| DataFee::at(&self.spec, snapshot, overlay));
        let planner = Planner {
            spec: &self.spec,
            codes: &self.codes,
            rules: &self.rules,
            policy: self.policy,
            executor: self.executor(),
            snapshot,
            fees: fees.map_err(|error| WalletError::Refused(error.to_string()))?,
            data_fee: data_fee.as_ref(),
            access_list: chosen.and_then(|chosen| chosen.access_list.as_ref()),
            delegation_waits: self.pool.delegates(&account) || self.has_strangers(account, *nonce),
        };
        planner.plan(batch, account, overlay, meter)
    }

    /// Whether the upstream has transactions of the account that wait and were sent elsewhere.
    fn has_strangers(&self, account: Address, nonce: u64) -> bool {
        let count = self.sending.as_ref().and_then(|sending| sending.count(&account));
        count.is_some_and(|count| count > self.pool.next_nonce(account, nonce))
    }

    /// Signs a batch and adds its transactions to the pool. The batch is accepted once the [`Commit`] completes. Returns the
    /// hash of its last transaction, too.
    ///
    /// # Errors
    /// Returns the error of the signer or of the pool. Nothing of the batch is sent then.
    pub fn submit(&self, prepared: PreparedBatch) -> Result<(Commit, Option<B256>), WalletError> {
        let PreparedBatch { batch, claim, account, plan, base, .. } = prepared;
        let signer = self.own("params[0].from", account)?;
        let (id, claim) = (claim.id.clone(), Arc::new(claim));
        let choosing = signer.choosing.lock();
        let taken_on = self.pool.published().head().number();
        let mut tries = 0;
        let sent = loop {
            check_nonce(&batch, || self.next_nonces(account, base.nonce, 1))?;
            let transactions = self.sign(signer, &plan, base.nonce)?;
            let last = transactions.last().map(|tx| *tx.tx_hash());
            let (deploying, shown) = transactions.split_at(if plan.atomic { transactions.len() - 1 } else { 0 });
            let taken = TakenBatch {
                from: account,
                chain_id: self.spec.chain_id(),
                atomic: plan.atomic,
                executor: self.executor().address(),
                transactions: shown.iter().map(|tx| *tx.tx_hash()).collect(),
                // An earlier batch of the account may be about to deploy it.
                deployment: deploying.first().map(|tx| *tx.tx_hash()).or(base.deployment.filter(|_| plan.atomic)),
                taken_on: Some(taken_on),
                replacements: None,
            };
            let write = self.ledger.writing(&id, &taken);
            // Keeps the claim to the id until the batch is on the disk.
            let claimed = claim.clone();
            let store = &self.ledger.store;
            match self.pool.add_own(PoolNonce::Free, transactions, store, write, move |_| drop(claimed)) {
                // Another holder of the key has sent a raw transaction first. The transaction signed here was not
                // sent.
                Err(error) if error.is_nonce() && tries < NONCE_TRIES => tries += 1,
                done => break (done?, last),
            }
        };
        drop(choosing);
        Ok(sent)
    }

    /// Signs the transactions of a plan with the next nonces of the account, whose nonce at `pending` is `nonce`.
    fn sign(
        &self,
        signer: &SigningAccount,
        plan: &Plan,
        nonce: u64,
    ) -> Result<Vec<Recovered<TxEnvelope>>, WalletError> {
        let chain_id = self.spec.chain_id();
        let last = plan.transactions.len().saturating_sub(1);
        let mut next = nonce;
        let mut transactions = Vec::with_capacity(plan.transactions.len());
        for (index, PlannedTx { call, gas, .. }) in plan.transactions.iter().enumerate() {
            let upgrade = plan.upgrade.filter(|_| index == last);
            // A transaction behind a gap may have the next nonce, or the one that the authorization needs.
            let nonce = self.next_nonces(signer.address(), next, if upgrade.is_some() { 2 } else { 1 });
            next = nonce + 1;
            let mut call = Call { gas: None, ..call.clone() };
            if let Some(executor) = upgrade {
                // The transaction itself uses the nonce before the authorization's.
                call.authorization_list = Some(vec![signer.authorize(executor, chain_id, nonce + 1)?]);
            }
            transactions.push(signer.sign(call, TxFields { chain_id, nonce, gas: *gas })?);
        }
        Ok(transactions)
    }

    /// Returns the first of `count` consecutive nonces from `nonce` on that are free, here and at the upstream.
    fn next_nonces(&self, account: Address, nonce: u64, count: u64) -> u64 {
        // Transactions that were sent elsewhere wait at the upstream.
        let there = self.sending.as_ref().and_then(|sending| sending.count(&account));
        self.pool.next_nonces(account, nonce.max(there.unwrap_or_default()), count)
    }

    /// Returns whether batches of an account can be atomic.
    ///
    /// # Errors
    /// Returns [`WalletError::Unauthorized`] for a foreign account, [`WalletError::Refused`] if there is no `pending`.
    pub fn support(
        &self,
        account: Address,
        published: &Chain,
        overlay: &Overlay,
    ) -> Result<AtomicSupport, WalletError> {
        self.own("params[0]", account)?;
        let snapshot = pending(published)?;
        Ok(match self.delegation(&snapshot, account, overlay) {
            _ if !self.is_prague(&snapshot) || !self.can_be_executed(&snapshot, overlay) => AtomicSupport::Unsupported,
            Delegation::Executor => AtomicSupport::Supported,
            Delegation::Possible if self.policy.allow_upgrade => AtomicSupport::Ready,
            Delegation::Possible | Delegation::Contract => AtomicSupport::Unsupported,
        })
    }

    /// Whether the batch executor is deployed, or can be.
    fn can_be_executed(&self, snapshot: &Snapshot, overlay: &Overlay) -> bool {
        let has_code = |address| has_code(snapshot, address, overlay);
        has_code(self.executor().address()) || (self.executor().deployment().is_some() && has_code(DEPLOYMENT_PROXY))
    }

    fn plan_base(
        &self,
        account: Option<&SigningAccount>,
        overlay: &mut Overlay,
        meter: &mut Meter,
    ) -> Result<PlanBase, WalletError> {
        let none = Mutex::default();
        let account = account.map_or((Address::ZERO, &none), |account| (account.address(), &account.ahead));
        plan_base(&self.spec, &self.pool, account, self.executor(), overlay, meter)
    }

    fn executor(&self) -> BatchExecutor {
        BatchExecutor::new(self.policy.executor)
    }

    fn delegation(&self, snapshot: &Snapshot, account: Address, overlay: &Overlay) -> Delegation {
        let code = overlay.look_up(&snapshot.world, account).and_then(|account| account.code);
        code.map_or(Delegation::Possible, |code| self.executor().delegation(&code))
    }

    fn is_prague(&self, snapshot: &Snapshot) -> bool {
        self.spec.is_prague_active_at_timestamp(snapshot.header().timestamp)
    }
}

/// Checks that the client's nonce is the account's next one. Any other would replace a waiting transaction, or wait
/// until a later transaction makes it valid, and the approver would see neither.
fn check_nonce(batch: &BatchRequest, next: impl FnOnce() -> u64) -> Result<(), WalletError> {
    let Some(nonce) = batch.transaction.as_ref().and_then(|chosen| chosen.nonce) else { return Ok(()) };
    let next = next();
    let problem = match nonce.cmp(&next) {
        Ordering::Equal => return Ok(()),
        Ordering::Less => "low",
        Ordering::Greater => "high",
    };
    Err(WalletError::Refused(format!("nonce too {problem}: next nonce {next}, tx nonce {nonce}")))
}
