//! From a batch to the transactions that carry it out, each with the gas that it turned out to need.

use alloy_eips::{eip7702::constants::PER_EMPTY_ACCOUNT_COST, eip7825::MAX_TX_GAS_LIMIT_OSAKA};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{Address, TxKind, U256};
use revm::{
    bytecode::Bytecode, context::result::ExecutionResult, context_interface::cfg::gas::calculate_initial_tx_gas,
};

use super::{BatchCall, BatchExecutor, BatchRequest, Delegation, SimulatedCall, WalletError, error::cut_to};
use crate::{
    chain::{ChainSpec, DEPLOYMENT_PROXY},
    engine::{
        self, Bundle, Bundles, Call, CallFees, CallRequest, Engine, Estimate, HaltText, ManyError, SimulationError,
        SimulationRules,
    },
    meter::{Meter, Stopped},
    state::{CodeCache, Overlay, Snapshot},
};

/// The transactions of a batch, to be signed with nonces that follow each other.
#[derive(Clone, Debug)]
pub struct Plan {
    /// In order.
    pub transactions: Vec<PlannedTx>,
    /// Whether the last of them makes all calls or none. What comes before it deploys the batch executor.
    pub atomic: bool,
    /// The code that the last of them delegates the account to.
    pub upgrade: Option<Address>,
    /// What each call did, where each was run alone.
    pub simulation: Vec<SimulatedCall>,
    /// Why all of them would fail together, where policy does not refuse that.
    pub failure: Option<String>,
}

/// What of a plan an approver agrees to, beside the calls: where it has changed, something else would be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Whether all calls are made or none.
    pub atomic: bool,
    /// The code that the account is to be delegated to.
    pub upgrade: Option<Address>,
    /// How many transactions are to be signed.
    pub transactions: usize,
}

impl Plan {
    /// What an approver agrees to.
    pub fn terms(&self) -> Terms {
        Terms { atomic: self.atomic, upgrade: self.upgrade, transactions: self.transactions.len() }
    }

    /// The most that its transactions can cost in fees for gas, in wei.
    pub fn most_fees(&self) -> U256 {
        let cost = |planned: &PlannedTx| U256::from(planned.gas) * U256::from(most_price(planned.call.fees));
        self.transactions.iter().map(cost).fold(U256::ZERO, U256::saturating_add)
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
    /// All but the nonce, the gas and the authorization.
    pub call: Call,
    /// Gas limit.
    pub gas: u64,
}

/// What plans are made with.
#[derive(Clone, Copy, Debug)]
pub struct Planner<'a> {
    pub spec: &'a ChainSpec,
    pub codes: &'a CodeCache,
    pub rules: &'a SimulationRules,
    pub executor: BatchExecutor,
    /// Gas above what was needed, in per cent.
    pub gas_margin: u64,
    /// Refuse an atomic batch that reverts.
    pub refuse_reverts: bool,
    /// The state to run on.
    pub snapshot: &'a Snapshot,
    /// What each transaction pays.
    pub fees: CallFees,
    /// Something of the account waits that may delegate it to another before the batch is mined.
    pub delegation_waits: bool,
    /// Accounts may be delegated.
    pub allow_upgrade: bool,
}

/// How a call went, with the gas limit that it is to have.
struct PlannedRun {
    result: ExecutionResult,
    gas: u64,
    /// Whether it needs more gas than a transaction may have.
    too_dear: bool,
}

impl PlannedRun {
    /// Why it failed, if it did, in [`LONGEST_REASON`] characters at most.
    fn failure(&self) -> Option<String> {
        let reason = match &self.result {
            ExecutionResult::Success { .. } => return None,
            ExecutionResult::Revert { output, .. } => revert_text(output),
            ExecutionResult::Halt { reason, .. } => HaltText(reason.clone()).to_string(),
        };
        Some(cut_to(&reason, LONGEST_REASON))
    }
}

impl Planner<'_> {
    /// Runs a batch of `account`'s on the snapshot, in `overlay`, as long as `meter` lets it, and plans its transactions.
    ///
    /// # Errors
    /// That the chain's rules refuse a transaction of it; of an atomic batch, that it reverts (where policy refuses that), that it needs
    /// more gas than a transaction may have, or that the batch executor cannot be there.
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
        // An account that is delegated already can make several calls at once, where that does no less than one after another.
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
        for (index, call) in batch.calls.iter().enumerate() {
            let place = format!("params[0].calls[{index}]");
            let call = self.call(call, account);
            let affordable = self.affordable(&call, overlay);
            let ran = self.run(&call, 0, overlay).map_err(|error| refused(&place, error))?;
            if ran.too_dear {
                return Err(self.too_large(&place, affordable));
            }
            used = used.saturating_add(ran.result.tx_gas_used());
            if used > self.rules.gas_cap {
                return Err(WalletError::TooLarge(format!(
                    "{place}: the calls so far have used {used} gas, and a whole request may use {}: --gas-cap",
                    self.rules.gas_cap
                )));
            }
            simulation.push(SimulatedCall { gas_used: ran.result.tx_gas_used(), error: ran.failure() });
            transactions.push(PlannedTx { call, gas: ran.gas });
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
            transactions.push(PlannedTx { call: deployment, gas: ran.gas });
        }
        let upgrade = match delegation {
            // Whatever waits before it: it is delegated when the batch is mined.
            Delegation::Executor if self.delegation_waits && self.allow_upgrade => Some(executor),
            Delegation::Executor if self.delegation_waits => {
                return Err(WalletError::Upgrade(format!(
                    "a transaction of {account} waits that may delegate it to another, and --wallet-upgrade is deny: expected it to be mined first"
                )));
            }
            Delegation::Executor => None,
            Delegation::None | Delegation::Other(_) => Some(executor),
            Delegation::Contract => {
                return Err(WalletError::Upgrade(format!("{account} is a contract, which cannot be delegated")));
            }
        };
        if upgrade.is_some() {
            // As the authorization will have it, which is not signed yet.
            let code = Bytecode::new_eip7702(executor).original_bytes();
            overlay.set(account, None, None, Some(self.codes.overriding(code)));
        }
        let execute =
            BatchCall { to: Some(account), value: U256::ZERO, data, gas_limit: None, capabilities: Vec::new() };
        let call = self.call(&execute, account);
        let affordable = self.affordable(&call, overlay);
        let upgrade_cost = if upgrade.is_some() { PER_EMPTY_ACCOUNT_COST } else { 0 };
        let ran = self.run(&call, upgrade_cost, overlay).map_err(|error| refused("params[0].calls", error))?;
        match &ran.result {
            // A callee that runs out of gas makes the batch revert.
            ExecutionResult::Revert { .. } if self.would_succeed_with_more(&call, overlay)? => {
                return Err(self.too_large("params[0].calls", affordable));
            }
            ExecutionResult::Revert { output, .. } if self.refuse_reverts => {
                return Err(WalletError::Reverted(output.clone()));
            }
            ExecutionResult::Halt { .. } if ran.too_dear => {}
            ExecutionResult::Halt { reason, .. } if self.refuse_reverts => {
                return Err(WalletError::Refused(HaltText(reason.clone()).to_string()));
            }
            _ => {}
        }
        let gas = ran.gas.saturating_add(upgrade_cost);
        if ran.too_dear || gas > self.most_gas() {
            return Err(self.too_large("params[0].calls", affordable));
        }
        transactions.push(PlannedTx { call, gas });
        Ok(Plan { transactions, atomic: true, upgrade, simulation: Vec::new(), failure: ran.failure() })
    }

    /// What stands at `place` needs more gas than `affordable`, which its account can pay, or than a transaction may have.
    fn too_large(&self, place: &str, affordable: u64) -> WalletError {
        let most = self.most_gas();
        if affordable < most {
            return WalletError::Refused(format!(
                "{place}: insufficient funds for gas * price + value: the account can pay {affordable} gas, and more is needed"
            ));
        }
        WalletError::TooLarge(format!("{place}: more than {most} gas is needed, the most of one transaction"))
    }

    /// Whether a call that fails with the most gas of a transaction succeeds with all that a request may use.
    fn would_succeed_with_more(&self, call: &Call, overlay: &mut Overlay) -> Result<bool, WalletError> {
        // Gas that no transaction can have is paid by nobody.
        let free = Call { fees: CallFees::default(), ..call.clone() };
        let ran = self.run_with(&free, self.rules.gas_cap, overlay);
        Ok(ran.map_err(|error| refused("params[0].calls", error))?.is_success())
    }

    /// The call that deploys the batch executor.
    fn deployment(&self, overlay: &Overlay) -> Result<BatchCall, WalletError> {
        let executor = self.executor.address();
        let deployment = self.executor.deployment().ok_or_else(|| {
            WalletError::Upgrade(format!("there is no contract at {executor}, which --wallet-executor names"))
        })?;
        if self.code_of(DEPLOYMENT_PROXY, overlay).is_empty() {
            return Err(WalletError::Upgrade(format!(
                "the batch executor is not on this chain, nor is the contract at {DEPLOYMENT_PROXY} that would deploy it: --wallet-executor names one that is"
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
            ..Call::default()
        }
    }

    fn engine<'e>(&'e self, overlay: &'e mut Overlay) -> Engine<'e> {
        Engine { spec: self.spec, rules: self.rules, codes: self.codes, overlay }
    }

    /// The most gas of a transaction here.
    fn most_gas(&self) -> u64 {
        let header = self.snapshot.header();
        let most = header.gas_limit.min(self.rules.gas_cap);
        if self.spec.is_osaka_active_at_timestamp(header.timestamp) { most.min(MAX_TX_GAS_LIMIT_OSAKA) } else { most }
    }

    /// Runs a call, keeps what it did, and tells the gas limit that it is to have: its own, else what it needed and a margin. Of the gas that
    /// its transaction can have, `reserved` is for something else.
    fn run(&self, call: &Call, reserved: u64, overlay: &mut Overlay) -> Result<PlannedRun, SimulationError> {
        if let Some(gas) = call.gas {
            return Ok(PlannedRun { result: self.run_with(call, gas, overlay)?, gas, too_dear: false });
        }
        let most = self.affordable(call, overlay).saturating_sub(reserved).max(TRANSFER_GAS);
        let request = CallRequest { call: Call { gas: Some(most), ..call.clone() }, ..CallRequest::default() };
        let estimate = self.engine(overlay).estimate_gas(self.snapshot.header(), &request)?;
        let with_margin = |gas: u64| gas.saturating_add(gas.saturating_mul(self.gas_margin) / 100).min(most);
        Ok(match estimate {
            Estimate::Gas { limit, .. } => {
                let result = self.run_with(call, limit, overlay)?;
                // What only moves ether needs what it needs.
                let gas = if limit == TRANSFER_GAS { limit } else { with_margin(limit) };
                PlannedRun { result, gas, too_dear: false }
            }
            // It fails with all the gas it can have. On the chain it may not: it gets twice what it used.
            Estimate::Revert(_) => {
                let result = self.run_with(call, most, overlay)?;
                let gas = with_margin(result.tx_gas_used().saturating_mul(2));
                PlannedRun { result, gas, too_dear: false }
            }
            // It uses up all it has, however much that is. With little it may run out before it comes to what halts it: the reason stays.
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

    /// The most gas that a transaction can have and its sender can pay, at least what any transaction needs.
    fn affordable(&self, call: &Call, overlay: &mut Overlay) -> u64 {
        let left = overlay.balance_and_nonce(call.from).0.saturating_sub(call.value);
        let paid: u64 = left.checked_div(U256::from(most_price(call.fees))).unwrap_or(U256::MAX).saturating_to();
        self.most_gas().min(paid).max(TRANSFER_GAS)
    }

    /// What a transaction of this call needs to begin.
    fn intrinsic_gas(&self, call: &Call) -> u64 {
        let fork = self.spec.evm_fork(self.snapshot.header());
        let needed = calculate_initial_tx_gas(fork, &call.data, call.to.is_create(), 0, 0, 0);
        needed.initial_total_gas.max(needed.floor_gas)
    }

    fn run_with(&self, call: &Call, gas: u64, overlay: &mut Overlay) -> Result<ExecutionResult, SimulationError> {
        let bundle = Bundle { calls: vec![Call { gas: Some(gas), ..call.clone() }], ..Bundle::default() };
        let request = Bundles { bundles: vec![bundle], ..Bundles::default() };
        let ran = self.engine(overlay).call_many(self.snapshot.header(), &request);
        let mut ran = ran.map_err(|error| match error {
            ManyError::Request(error) => error,
            ManyError::Call { error, .. } => *error,
        })?;
        ran.pop()
            .and_then(|mut bundle| bundle.pop())
            .ok_or_else(|| SimulationError::Internal("a call was run without a result".to_owned()))
    }
}

/// Gas of a transaction that only transfers ether.
const TRANSFER_GAS: u64 = 21_000;
/// Gas beyond the intrinsic of a transaction that halts when it is simulated: what it is given is lost, and nothing tells how much it would need
/// where it did not halt.
const HALTING_GAS: u64 = 100_000;
/// Characters of the reason of a failure, which a contract may make as long as its gas allows.
const LONGEST_REASON: usize = 256;

/// The most that a unit of gas can cost, in wei.
fn most_price(fees: CallFees) -> u128 {
    match fees {
        CallFees::GasPrice(price) => price,
        CallFees::Market { max_fee, .. } => max_fee.unwrap_or_default(),
    }
}

fn refused(what: &str, error: SimulationError) -> WalletError {
    match error {
        SimulationError::Stopped(Stopped::Deadline) => WalletError::Deadline,
        SimulationError::Internal(problem) => WalletError::Internal(problem),
        other => WalletError::Refused(format!("{what}: {other}")),
    }
}

/// The reason in the data of a revert, where it has one.
fn revert_text(data: &[u8]) -> String {
    engine::revert_reason(data).unwrap_or_else(|| "execution reverted".to_owned())
}
