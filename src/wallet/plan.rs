//! The plan of a batch: the transactions that carry it out, each with the gas limit that its simulation requires.

use alloy_eips::{eip2930::AccessList, eip7702::constants::PER_EMPTY_ACCOUNT_COST};
use alloy_primitives::{Address, TxKind, U256};
use revm::{
    bytecode::Bytecode, context::result::ExecutionResult, context_interface::cfg::gas::calculate_initial_tx_gas,
};
use serde::{Deserialize, Serialize};

use super::{
    BatchCall, BatchExecutor, BatchRequest, Delegation, Policy, SimulatedCall, WalletError, data_fee::DataFee, ether,
};
use crate::{
    chain::{ChainSpec, DEPLOYMENT_PROXY, initial_gas_terms},
    engine::{self, Call, CallFees, CallRequest, Engine, Estimate, HaltText, SimulationError, SimulationRules},
    ledger::Snapshot,
    meter::Meter,
    shown,
    state::{CodeCache, Overlay},
};

/// The transactions of a batch, to be signed with consecutive nonces.
#[derive(Clone, Debug)]
pub struct Plan {
    pub transactions: Vec<PlannedTx>,
    /// Whether the last transaction makes all calls or none. One before it deploys the batch executor.
    pub atomic: bool,
    /// The code that the last transaction delegates the account to.
    pub upgrade: Option<Address>,
    /// The result of each call. Empty if the calls were only simulated together.
    pub simulation: Vec<SimulatedCall>,
    /// The reason why the atomic batch fails in the simulation, if the policy allows it to be sent nevertheless.
    pub failure: Option<String>,
}

/// The terms of a plan that an approver agrees to, besides the calls. If they change, the approval is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    pub atomic: bool,
    /// The code that the account is to be delegated to.
    pub upgrade: Option<Address>,
    pub transactions: usize,
}

/// The fees to which an approver has agreed, in wei.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FeeBounds {
    /// Maximum gas fees. Transactions with higher ones are not signed.
    pub gas: U256,
    /// The estimated fees that the OP stack takes in addition to gas. A signature cannot bound them.
    pub data: U256,
    /// The part in percent by which a later estimate may exceed them.
    pub margin: u64,
}

impl FeeBounds {
    /// Checks a later estimate of the fees other than gas.
    ///
    /// # Errors
    /// Returns a text with both figures if the estimate exceeds the one shown by more than the margin.
    pub fn check_data(&self, now: U256) -> Result<(), String> {
        if now <= with_margin(self.data, self.margin) {
            return Ok(());
        }
        Err(format!(
            "the fees that the chain sets for data on L1 have risen: about {} ether was shown, and it is about {} now: send it again",
            ether(self.data),
            ether(now)
        ))
    }

    /// Returns the reason for not signing transactions that need at least `needed` wei of gas fees.
    pub fn exceeded_by(&self, needed: U256) -> String {
        format!(
            "the gas fees have risen: at most {} ether was shown, and at least {} is needed now: send it again",
            ether(self.gas),
            ether(needed)
        )
    }
}

/// Returns `fees` and `margin` percent of it.
pub(super) fn with_margin(fees: U256, margin: u64) -> U256 {
    fees.saturating_add(fees.saturating_mul(U256::from(margin)) / U256::from(100))
}

/// Returns the fee in wei of a gas limit at a price.
pub(super) fn gas_fee(gas: u64, price: u128) -> U256 {
    U256::from(gas).saturating_mul(U256::from(price))
}

pub(super) fn total(amounts: impl Iterator<Item = U256>) -> U256 {
    amounts.fold(U256::ZERO, U256::saturating_add)
}

impl Plan {
    pub fn terms(&self) -> Terms {
        Terms { atomic: self.atomic, upgrade: self.upgrade, transactions: self.transactions.len() }
    }

    /// Returns the maximum gas fees of the transactions in wei: the gas limit of each times its maximum price.
    fn gas_fees(&self) -> U256 {
        total(self.transactions.iter().map(|planned| gas_fee(planned.gas, most_price(planned.call.fees))))
    }

    /// Returns the estimated fees that the OP stack takes in addition to gas, in wei.
    pub fn data_fees(&self) -> U256 {
        total(self.transactions.iter().map(|planned| planned.data_fee))
    }

    /// Returns the fees to which an approver agrees: the plan's fees, plus `margin` percent.
    pub fn bounds(&self, margin: u64) -> FeeBounds {
        FeeBounds { gas: with_margin(self.gas_fees(), margin), data: self.data_fees(), margin }
    }

    /// Lowers the prices of the transactions until their fees are within `bounds`.
    ///
    /// # Errors
    /// Returns [`WalletError::Rejected`] with both figures if a price would be below `least`, in wei per gas, or if
    /// the fees other than gas exceed the bound.
    pub fn fit_into(&mut self, bounds: FeeBounds, least: u128) -> Result<(), WalletError> {
        bounds.check_data(self.data_fees()).map_err(WalletError::Rejected)?;
        if self.gas_fees() <= bounds.gas {
            return Ok(());
        }
        let gas: U256 = self.transactions.iter().map(|planned| U256::from(planned.gas)).sum();
        let price: u128 = bounds.gas.checked_div(gas).unwrap_or_default().saturating_to();
        if price < least {
            return Err(WalletError::Rejected(bounds.exceeded_by(gas.saturating_mul(U256::from(least)))));
        }
        for planned in &mut self.transactions {
            planned.call.fees = match planned.call.fees {
                CallFees::GasPrice(own) => CallFees::GasPrice(own.min(price)),
                CallFees::Market { max_fee, max_priority } => CallFees::Market {
                    max_fee: max_fee.map(|own| own.min(price)),
                    max_priority: max_priority.map(|own| own.min(price)),
                },
            };
        }
        Ok(())
    }
}

impl std::fmt::Display for Terms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { atomic, upgrade, transactions } = self;
        write!(f, "{transactions} transaction{}", if *transactions == 1 { "" } else { "s" })?;
        f.write_str(if *atomic { ", all calls or none" } else { ", one after another" })?;
        match upgrade {
            Some(code) => write!(f, ", the account delegated to {code}"),
            None => Ok(()),
        }
    }
}

/// A transaction to be signed.
#[derive(Clone, Debug)]
pub struct PlannedTx {
    /// The transaction without nonce, gas limit and authorization.
    pub call: Call,
    pub gas: u64,
    /// The estimated fees of the OP stack in addition to gas.
    pub data_fee: U256,
}

/// The context in which plans are made.
#[derive(Clone, Copy, Debug)]
pub struct Planner<'a> {
    pub spec: &'a ChainSpec,
    pub codes: &'a CodeCache,
    pub rules: &'a SimulationRules,
    pub policy: Policy,
    pub executor: BatchExecutor,
    pub snapshot: &'a Snapshot,
    /// The fees that each transaction offers.
    pub fees: CallFees,
    /// The fees of the OP stack in addition to gas. `None` on other chains.
    pub data_fee: Option<&'a DataFee>,
    /// The access list of the only call, if its client has given one.
    pub access_list: Option<&'a AccessList>,
    /// Whether a transaction waits that may re-delegate the account before the batch is mined.
    pub delegation_waits: bool,
}

/// The result of a call, and the gas limit for its transaction.
struct PlannedRun {
    result: ExecutionResult,
    gas: u64,
    /// Whether the call needs more gas than its transaction can have.
    too_dear: bool,
}

impl PlannedRun {
    /// Returns the reason of a failure, cut to [`MAX_REASON`] characters, or `None` if the call succeeded.
    fn failure(&self) -> Option<String> {
        let reason = match &self.result {
            ExecutionResult::Success { .. } => return None,
            ExecutionResult::Revert { output, .. } => {
                engine::revert_reason(output).unwrap_or_else(|| "execution reverted".to_owned())
            }
            ExecutionResult::Halt { reason, .. } => HaltText(reason.clone()).to_string(),
        };
        Some(shown::cut(&reason, MAX_REASON))
    }
}

impl Planner<'_> {
    /// Runs a batch of `account` on the snapshot, in `overlay` and bounded by `meter`, and plans its transactions.
    ///
    /// # Errors
    /// Returns [`WalletError::Refused`] if the chain's rules reject a transaction, [`WalletError::TooLarge`] if more
    /// gas is needed than a transaction or the request may have, and [`WalletError::Deadline`] if `meter` stops the
    /// run. For an atomic batch also [`WalletError::Shape`] if a call cannot be part of it, [`WalletError::Reverted`]
    /// if it reverts and the policy rejects that, and [`WalletError::Upgrade`] if the account cannot be delegated or
    /// the batch executor not deployed.
    pub fn plan(
        &self,
        batch: &BatchRequest,
        account: Address,
        overlay: &mut Overlay,
        meter: Meter,
    ) -> Result<Plan, WalletError> {
        overlay.reset(self.snapshot.world.clone(), self.snapshot.hashes.clone(), meter);
        let delegation = self.executor.delegation(&self.code_of(account, overlay));
        if batch.atomic_required {
            return self.atomic(batch, account, delegation, overlay);
        }
        let sequential = self.sequential(batch, account, overlay)?;
        // A delegated account can make several calls in one transaction, which is planned if none of them fails.
        let succeeds = sequential.simulation.iter().all(|call| call.error.is_none());
        let creates = batch.calls.iter().any(|call| call.to.is_none());
        let is_delegated = delegation == Delegation::Executor && !self.delegation_waits;
        if !is_delegated || batch.calls.len() < 2 || !succeeds || creates {
            return Ok(sequential);
        }
        let meter = std::mem::take(&mut overlay.meter);
        overlay.reset(self.snapshot.world.clone(), self.snapshot.hashes.clone(), meter);
        match self.atomic(batch, account, delegation, overlay) {
            Ok(atomic) => Ok(Plan { simulation: sequential.simulation, ..atomic }),
            Err(error @ (WalletError::Deadline | WalletError::Internal(_))) => Err(error),
            Err(_) => Ok(sequential),
        }
    }

    fn code_of(&self, address: Address, overlay: &Overlay) -> Bytecode {
        overlay.look_up(&self.snapshot.world, address).and_then(|account| account.code).unwrap_or_default()
    }

    fn sequential(&self, batch: &BatchRequest, account: Address, overlay: &mut Overlay) -> Result<Plan, WalletError> {
        let (mut transactions, mut simulation) = (Vec::new(), Vec::new());
        let mut used: u64 = 0;
        // Calls in a simulation do not pay the fees other than gas.
        let mut unpaid = U256::ZERO;
        for (index, call) in batch.calls.iter().enumerate() {
            let path = format!("params[0].calls[{index}]");
            let call = self.call(call, account);
            let affordable = self.affordable(&call, overlay);
            let funds = overlay.balance_and_nonce(account).0.saturating_sub(unpaid);
            let ran = self.run(&call, 0, overlay).map_err(|error| refused(&path, error))?;
            if ran.too_dear {
                return Err(self.too_large(&path, affordable));
            }
            used = used.saturating_add(ran.result.tx_gas_used());
            if used > self.rules.gas_cap {
                return Err(WalletError::TooLarge(format!(
                    "{path}: the calls so far have used {used} gas, and a whole request may use {}: --gas-cap",
                    self.rules.gas_cap
                )));
            }
            simulation.push(SimulatedCall { gas_used: ran.result.tx_gas_used(), error: ran.failure() });
            let planned = self.planned(call, ran.gas, false);
            check_funds(&path, funds, &planned)?;
            unpaid = unpaid.saturating_add(planned.data_fee);
            transactions.push(planned);
        }
        Ok(Plan { transactions, atomic: false, upgrade: None, simulation, failure: None })
    }

    fn atomic(
        &self,
        batch: &BatchRequest,
        account: Address,
        delegation: Delegation,
        overlay: &mut Overlay,
    ) -> Result<Plan, WalletError> {
        let data = BatchExecutor::execute_calldata(&batch.calls)?;
        let mut transactions = Vec::with_capacity(2);
        let executor = self.executor.address();
        if self.code_of(executor, overlay).is_empty() {
            let deployment = self.call(&self.deployment(overlay)?, account);
            let ran =
                self.run(&deployment, 0, overlay).map_err(|error| refused("deploying the batch executor", error))?;
            if !ran.result.is_success() {
                return Err(WalletError::Upgrade(format!("the batch executor cannot be deployed at {executor}")));
            }
            transactions.push(self.planned(deployment, ran.gas, false));
        }
        let upgrade = match delegation {
            // Delegated again, so that the batch runs regardless of the pooled transaction.
            Delegation::Executor if self.delegation_waits && self.policy.allow_upgrade => Some(executor),
            Delegation::Executor if self.delegation_waits => {
                return Err(WalletError::Upgrade(format!(
                    "a transaction of {account} waits that may delegate it to another, and --wallet-upgrade is deny: expected it to be mined first"
                )));
            }
            Delegation::Executor => None,
            Delegation::Possible => Some(executor),
            Delegation::Contract => {
                return Err(WalletError::Upgrade(format!("{account} is a contract, which cannot be delegated")));
            }
        };
        if upgrade.is_some() {
            // Simulates the effect of the authorization, which is not signed yet.
            let code = Bytecode::new_eip7702(executor).original_bytes();
            overlay.set(account, None, None, Some(self.codes.overriding(code)));
        }
        let execute =
            BatchCall { to: Some(account), value: U256::ZERO, data, gas_limit: None, capabilities: Vec::new() };
        let call = self.call(&execute, account);
        let affordable = self.affordable(&call, overlay);
        let unpaid = total(transactions.iter().map(|deployment: &PlannedTx| deployment.data_fee));
        let funds = overlay.balance_and_nonce(account).0.saturating_sub(unpaid);
        let upgrade_cost = if upgrade.is_some() { PER_EMPTY_ACCOUNT_COST } else { 0 };
        let ran = self.run(&call, upgrade_cost, overlay).map_err(|error| refused("params[0].calls", error))?;
        match &ran.result {
            // The batch reverts too if a callee runs out of gas.
            ExecutionResult::Revert { .. } if self.would_succeed_with_more(&call, overlay)? => {
                return Err(self.too_large("params[0].calls", affordable));
            }
            ExecutionResult::Revert { output, .. } if self.policy.refuse_reverts => {
                return Err(WalletError::Reverted(output.clone()));
            }
            ExecutionResult::Halt { .. } if ran.too_dear => {}
            ExecutionResult::Halt { reason, .. } if self.policy.refuse_reverts => {
                return Err(WalletError::Refused(HaltText(reason.clone()).to_string()));
            }
            _ => {}
        }
        let gas = ran.gas.saturating_add(upgrade_cost);
        if ran.too_dear || gas > self.most_gas() {
            return Err(self.too_large("params[0].calls", affordable));
        }
        let planned = self.planned(call, gas, upgrade.is_some());
        check_funds("params[0].calls", funds, &planned)?;
        transactions.push(planned);
        Ok(Plan { transactions, atomic: true, upgrade, simulation: Vec::new(), failure: ran.failure() })
    }

    fn planned(&self, call: Call, gas: u64, authorizes: bool) -> PlannedTx {
        let data_fee = self.data_fee.map_or(U256::ZERO, |fee| fee.of(&call, gas, authorizes));
        PlannedTx { call, gas, data_fee }
    }

    /// Returns the error for calls at `path` that need more gas than the account can pay or a transaction may have.
    fn too_large(&self, path: &str, affordable: u64) -> WalletError {
        let most = self.most_gas();
        if affordable < most {
            return WalletError::Refused(format!(
                "{path}: insufficient funds for gas * price + value: the account can pay {affordable} gas, but more is needed"
            ));
        }
        WalletError::TooLarge(format!("{path}: more than {most} gas is needed, the maximum of one transaction"))
    }

    /// Whether a call that fails with a transaction's maximum gas succeeds with a request's maximum.
    fn would_succeed_with_more(&self, call: &Call, overlay: &mut Overlay) -> Result<bool, WalletError> {
        // Without fees, because the account need not be able to pay for this gas.
        let free = Call { fees: CallFees::default(), ..call.clone() };
        let ran = self.run_with(&free, self.rules.gas_cap, overlay);
        Ok(ran.map_err(|error| refused("params[0].calls", error))?.is_success())
    }

    /// Returns the call that deploys the batch executor, or [`WalletError::Upgrade`] if it cannot be deployed.
    fn deployment(&self, overlay: &Overlay) -> Result<BatchCall, WalletError> {
        let executor = self.executor.address();
        let deployment = self.executor.deployment().ok_or_else(|| {
            WalletError::Upgrade(format!("there is no contract at {executor}, which --wallet-executor names"))
        })?;
        if self.code_of(DEPLOYMENT_PROXY, overlay).is_empty() {
            return Err(WalletError::Upgrade(format!(
                "neither the batch executor nor the contract at {DEPLOYMENT_PROXY} that deploys it is on this chain: name an executor that is by --wallet-executor"
            )));
        }
        Ok(deployment)
    }

    fn call(&self, call: &BatchCall, account: Address) -> Call {
        Call {
            from: account,
            to: call.to.map_or(TxKind::Create, TxKind::Call),
            gas: call.gas_limit,
            fees: self.fees,
            value: call.value,
            data: call.data.clone(),
            access_list: self.access_list.cloned(),
            ..Call::default()
        }
    }

    fn engine<'e>(&'e self, overlay: &'e mut Overlay) -> Engine<'e> {
        Engine { spec: self.spec, rules: self.rules, codes: self.codes, overlay }
    }

    /// Returns the maximum gas limit of a transaction.
    fn most_gas(&self) -> u64 {
        let header = self.snapshot.header();
        let most = header.gas_limit.min(self.rules.gas_cap);
        most.min(self.spec.most_tx_gas(header.timestamp))
    }

    /// Runs a call, keeps its writes in `overlay`, and determines its gas limit: the call's own, or else what it needed
    /// plus a margin. `reserved` gas of its transaction is not available to the call.
    fn run(&self, call: &Call, reserved: u64, overlay: &mut Overlay) -> Result<PlannedRun, SimulationError> {
        if let Some(gas) = call.gas {
            return Ok(PlannedRun { result: self.run_with(call, gas, overlay)?, gas, too_dear: false });
        }
        let most = self.affordable(call, overlay).saturating_sub(reserved).max(TRANSFER_GAS);
        let request = CallRequest { call: Call { gas: Some(most), ..call.clone() }, ..CallRequest::default() };
        let estimate = self.engine(overlay).estimate_gas(self.snapshot.header(), &request)?;
        let with_margin = |gas: u64| gas.saturating_add(gas.saturating_mul(self.policy.gas_margin) / 100).min(most);
        Ok(match estimate {
            Estimate::Gas { limit, .. } => {
                let result = self.run_with(call, limit, overlay)?;
                // A plain transfer needs no margin.
                let gas = if limit == TRANSFER_GAS { limit } else { with_margin(limit) };
                PlannedRun { result, gas, too_dear: false }
            }
            // The call reverts with the maximum gas, but may succeed on the chain. It gets twice the gas that it used.
            Estimate::Revert(_) => {
                let result = self.run_with(call, most, overlay)?;
                let gas = with_margin(result.tx_gas_used().saturating_mul(2));
                PlannedRun { result, gas, too_dear: false }
            }
            // A call that halts uses up any gas limit, so it gets a small one. It may then run out of gas before it
            // halts, so the reason is taken from the estimate.
            Estimate::Halt(halted) => {
                let gas = self.intrinsic_gas(call).saturating_add(HALTING_GAS).min(most);
                let mut result = self.run_with(call, gas, overlay)?;
                if let ExecutionResult::Halt { reason, .. } = &mut result {
                    *reason = halted;
                }
                PlannedRun { result, gas, too_dear: false }
            }
            Estimate::TooLittle(_) => {
                let result = self.run_with(call, most, overlay)?;
                PlannedRun { result, gas: most, too_dear: true }
            }
        })
    }

    /// Returns the maximum gas that a transaction can have and its sender can pay, but at least a transfer's gas.
    fn affordable(&self, call: &Call, overlay: &mut Overlay) -> u64 {
        let beside = self.data_fee.map_or(U256::ZERO, |fee| fee.of(call, self.most_gas(), true));
        let left = overlay.balance_and_nonce(call.from).0.saturating_sub(call.value).saturating_sub(beside);
        let paid: u64 = left.checked_div(U256::from(most_price(call.fees))).unwrap_or(U256::MAX).saturating_to();
        self.most_gas().min(paid).max(TRANSFER_GAS)
    }

    /// Returns the intrinsic gas of the transaction, or its floor if that is higher.
    fn intrinsic_gas(&self, call: &Call) -> u64 {
        let fork = self.spec.evm_fork(self.snapshot.header());
        let terms = initial_gas_terms(fork, call.from, call.to, call.value);
        let needed = calculate_initial_tx_gas(fork, &call.data, call.to.is_create(), 0, 0, 0, terms);
        needed.initial_total_gas().max(needed.floor_gas())
    }

    fn run_with(&self, call: &Call, gas: u64, overlay: &mut Overlay) -> Result<ExecutionResult, SimulationError> {
        let request = CallRequest { call: Call { gas: Some(gas), ..call.clone() }, ..CallRequest::default() };
        self.engine(overlay).commit_call(self.snapshot.header(), &request)
    }
}

/// Gas of a transaction that only transfers ether.
const TRANSFER_GAS: u64 = 21_000;
/// Gas beyond the intrinsic gas for a transaction that halts in the simulation. All of it is lost if the transaction
/// halts on the chain, and the gas that it would need otherwise is unknown.
const HALTING_GAS: u64 = 100_000;
/// Maximum length of the reason of a failure in characters, because a contract may choose a long one.
const MAX_REASON: usize = 256;

/// Returns the maximum price in wei per gas.
pub(super) fn most_price(fees: CallFees) -> u128 {
    match fees {
        CallFees::GasPrice(price) => price,
        CallFees::Market { max_fee, .. } => max_fee.unwrap_or_default(),
    }
}

/// Checks that an account with `funds` can pay a transaction, including the fees other than gas. Without such fees,
/// the simulation checks this.
fn check_funds(path: &str, funds: U256, planned: &PlannedTx) -> Result<(), WalletError> {
    let PlannedTx { call, gas, data_fee } = planned;
    let needed = gas_fee(*gas, most_price(call.fees)).saturating_add(call.value).saturating_add(*data_fee);
    if data_fee.is_zero() || needed <= funds {
        return Ok(());
    }
    Err(WalletError::Refused(format!(
        "{path}: insufficient funds for gas * price + value + fee for data on L1: the account has {funds} wei, and {needed} are needed"
    )))
}

fn refused(what: &str, error: SimulationError) -> WalletError {
    match error.into() {
        WalletError::Refused(problem) => WalletError::Refused(format!("{what}: {problem}")),
        other => other,
    }
}
