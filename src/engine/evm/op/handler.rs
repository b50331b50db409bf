//! The handler of the OP stack's transactions: deposits, and the fees that signed transactions pay in addition to gas.

use std::marker::PhantomData;

use alloy_primitives::U256;
use revm::{
    Database,
    context::{
        CfgEnv, ContextTr, LocalContextTr,
        journaled_state::account::JournaledAccountTr,
        result::{EVMError, ExecutionResult, HaltReason, InvalidTransaction, OutOfGasError, ResultGas},
    },
    context_interface::{Block, Cfg, JournalTr, Transaction, context::take_error},
    handler::{
        EthFrame, EvmTr, FrameResult, Handler, MainnetHandler,
        post_execution::reimburse_caller,
        pre_execution::{calculate_caller_fee, validate_account_nonce_and_code_with_components},
    },
    inspector::{Inspector, InspectorEvmTr, InspectorHandler},
    interpreter::{Gas, GasTracker, InitialAndFloorGas, SuccessOrHalt, interpreter::EthInterpreter},
    state::EvmState,
};

use crate::chain::{
    BASE_FEE_VAULT, DepositTerms, L1_FEE_VAULT, L1BlockInfo, OPERATOR_FEE_VAULT, OpFork, OpTx, RefundTooLarge,
    Settlement,
};

type HandlerError<E> = EVMError<<<<E as EvmTr>::Context as ContextTr>::Db as Database>::Error>;
type MainnetOf<E> = MainnetHandler<E, HandlerError<E>, EthFrame>;

/// The context of a run by the rules of the OP stack.
pub trait OpContext:
    ContextTr<Tx = OpTx, Cfg = CfgEnv<OpFork>, Chain = OpBlockFees, Journal: JournalTr<State = EvmState>>
{
}

impl<C: ContextTr<Tx = OpTx, Cfg = CfgEnv<OpFork>, Chain = OpBlockFees, Journal: JournalTr<State = EvmState>>> OpContext
    for C
{
}

/// The parameters of the fees in a block, for as long as the transactions that run are of this block.
#[derive(Clone, Debug, Default)]
pub struct OpBlockFees {
    /// `None` until the first signed transaction runs: the block's first deposit sets the parameters.
    info: Option<L1BlockInfo>,
    /// The L1 fee in wei of the transaction that runs.
    l1_fee: U256,
}

impl OpBlockFees {
    /// Returns the fees of unsigned calls, which pay only for gas.
    pub fn waived() -> Self {
        Self { info: Some(L1BlockInfo::default()), l1_fee: U256::ZERO }
    }

    /// Returns the block's L1 parameters, read from `db` at the first use.
    pub(super) fn info<D: Database>(&mut self, db: &mut D, fork: OpFork) -> Result<&L1BlockInfo, D::Error> {
        match &mut self.info {
            Some(info) => Ok(info),
            unread => Ok(unread.insert(L1BlockInfo::read(db, fork)?)),
        }
    }
}

/// Runs the transactions of the OP stack. Besides gas, a signed transaction pays [an L1
/// fee](https://specs.optimism.io/protocol/exec-engine.html#l1-cost-fees-l1-fee-vault) and [an operator
/// fee](https://specs.optimism.io/protocol/isthmus/exec-engine.html#evm-fee-semantics), and the base fee goes to a vault.
/// [A deposit](https://specs.optimism.io/protocol/deposits.html#execution) pays nothing, mints, and is never invalid.
pub struct OpHandler<E>(PhantomData<fn() -> E>);

impl<E> Default for OpHandler<E> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<E: EvmTr<Context: OpContext, Frame = EthFrame>> OpHandler<E> {
    fn mainnet() -> MainnetOf<E> {
        MainnetHandler::default()
    }

    /// Ends a deposit that failed: only its mint and the sender's new nonce remain, and it has used all its gas.
    fn fail(evm: &mut E, reason: HaltReason) -> Result<ExecutionResult, HandlerError<E>> {
        let (_, tx, cfg, journal, _, local) = evm.ctx_mut().all_mut();
        journal.discard_tx();
        let mut sender = journal.load_account_mut(tx.caller())?.data;
        sender.bump_nonce();
        sender.incr_balance(U256::from(tx.deposit.map_or(0, |deposit| deposit.mint)));
        drop(sender);
        journal.commit_tx();
        let used = tx.deposit.and_then(|deposit| gas_before_regolith(tx, deposit, cfg.spec)).unwrap_or(tx.gas_limit());
        local.clear();
        evm.frame_stack().clear();
        Ok(ExecutionResult::Halt { reason, gas: ResultGas::default().with_total_gas_spent(used), logs: Vec::new() })
    }
}

/// Settles the refund of a transaction that has used `used` gas, after it has paid for all of it: returns the payment
/// for the refunded gas to the sender.
///
/// # Errors
///
/// Returns an error, which makes the block invalid, if the refund is more than the gas, or an account lacks the wei to
/// give back. The latter cannot happen, because each was paid as much before.
fn settle<E: EvmTr<Context: OpContext>>(evm: &mut E, used: u64) -> Result<(), HandlerError<E>> {
    let (block, tx, _, journal, fees, _) = evm.ctx_mut().all_mut();
    let Some(info) = fees.info.as_ref().filter(|_| tx.refund > 0) else { return Ok(()) };
    let base_fee = block.basefee();
    let settled = Settlement::of(tx.refund, used, tx.effective_gas_price(base_fee.into()), base_fee, info);
    let settled = settled.map_err(too_large)?;
    journal.balance_incr(tx.caller(), settled.sender)?;
    for (account, debit) in [
        (block.beneficiary(), settled.fee_recipient),
        (BASE_FEE_VAULT, settled.base_fee_vault),
        (OPERATOR_FEE_VAULT, settled.operator_fee_vault),
    ] {
        if !journal.load_account_mut(account)?.data.decr_balance(debit) {
            let problem = format!("{account} cannot pay back {debit} wei, which it got for refunded gas");
            return Err(InvalidTransaction::Str(problem.into()).into());
        }
    }
    Ok(())
}

fn too_large(refund: RefundTooLarge) -> InvalidTransaction {
    InvalidTransaction::Str(refund.to_string().into())
}

/// Returns the gas that a deposit uses before Regolith, however it ends: its limit, or nothing if it is the system's
/// (<https://specs.optimism.io/protocol/deposits.html#execution>). `None` from Regolith on.
fn gas_before_regolith(tx: &OpTx, deposit: DepositTerms, fork: OpFork) -> Option<u64> {
    (fork < OpFork::Regolith).then(|| if deposit.is_system { 0 } else { tx.gas_limit() })
}

/// Returns the gas that a transaction has used in the end.
fn gas_used(gas: &Gas) -> u64 {
    gas.used().saturating_sub(gas.reservoir())
}

impl<E: EvmTr<Context: OpContext, Frame = EthFrame>> Handler for OpHandler<E> {
    type Evm = E;
    type Error = HandlerError<E>;
    type HaltReason = HaltReason;

    /// L1 has checked a deposit, so only the EVM's own rules are left to check
    /// (<https://specs.optimism.io/protocol/deposits.html#validation-and-authorization-of-deposited-transactions>).
    fn validate_env(&self, evm: &mut E) -> Result<(), Self::Error> {
        let ctx = evm.ctx_ref();
        let (tx, cfg) = (ctx.tx(), ctx.cfg());
        let Some(deposit) = tx.deposit else { return Self::mainnet().validate_env(evm) };
        if deposit.is_system && cfg.spec >= OpFork::Regolith {
            return Err(InvalidTransaction::Str("a system deposit after Regolith".into()).into());
        }
        // EIP-3860 is a rule for transactions of type 2, as which a deposit is processed.
        if tx.kind().is_create() && cfg.spec >= OpFork::Canyon && tx.input().len() > cfg.max_initcode_size() {
            return Err(InvalidTransaction::CreateInitCodeSizeLimit.into());
        }
        Ok(())
    }

    /// A deposit has all its gas: the cap on the gas of a transaction (EIP-7825) is not for deposits
    /// (<https://github.com/ethereum-optimism/optimism/issues/22971>). For others, gas above it is the reservoir of EIP-8037.
    fn tx_gas(&self, evm: &mut E, initial: &InitialAndFloorGas) -> GasTracker {
        let ctx = evm.ctx_ref();
        let limit = ctx.tx().gas_limit();
        let cap = if ctx.tx().deposit.is_some() { u64::MAX } else { ctx.cfg().tx_gas_limit_cap() };
        let (remaining, reservoir) = initial.initial_gas_and_reservoir(limit, cap);
        GasTracker::new(limit, remaining, reservoir)
    }

    fn validate_against_state_and_deduct_caller(
        &self,
        evm: &mut E,
        _: &mut InitialAndFloorGas,
    ) -> Result<(), Self::Error> {
        let (block, tx, cfg, journal, fees, _) = evm.ctx_mut().all_mut();
        if let Some(deposit) = tx.deposit {
            let mut sender = journal.load_account_with_code_mut(tx.caller())?.data;
            let mut balance = sender.balance().saturating_add(U256::from(deposit.mint));
            if cfg.is_balance_check_disabled() {
                balance = balance.max(tx.value());
            }
            sender.set_balance(balance);
            if tx.kind().is_call() {
                sender.bump_nonce();
            }
            return Ok(());
        }
        let mut extra = U256::ZERO;
        if !tx.gasless {
            let info = fees.info(journal.db_mut(), cfg.spec)?;
            let l1_fee = info.data_fee(&tx.encoded);
            extra = l1_fee.saturating_add(info.operator_fee(tx.gas_limit()));
            fees.l1_fee = l1_fee;
        }
        let mut sender = journal.load_account_with_code_mut(tx.caller())?.data;
        validate_account_nonce_and_code_with_components(&sender.account().info, tx, cfg)?;
        let mut balance = *sender.balance();
        if !cfg.is_fee_charge_disabled() {
            balance = balance.checked_sub(extra).ok_or_else(|| InvalidTransaction::LackOfFundForMaxFee {
                fee: Box::new(extra),
                balance: Box::new(balance),
            })?;
        }
        let balance = calculate_caller_fee(balance, tx, block, cfg)?;
        sender.set_balance(balance);
        if tx.kind().is_call() {
            sender.bump_nonce();
        }
        Ok(())
    }

    fn last_frame_result(
        &mut self,
        evm: &mut E,
        result: &mut FrameResult,
        tx_gas: &mut GasTracker,
    ) -> Result<(), Self::Error> {
        Self::mainnet().last_frame_result(evm, result, tx_gas)?;
        let ctx = evm.ctx_ref();
        let tx = ctx.tx();
        if let Some(used) = tx.deposit.and_then(|deposit| gas_before_regolith(tx, deposit, ctx.cfg().spec)) {
            let gas = result.gas_mut();
            gas.set_spent(used);
            gas.set_refund(0);
        }
        Ok(())
    }

    /// Returns the payment for unused gas, including the operator fee, which was paid for the whole gas limit.
    fn reimburse_caller(&self, evm: &mut E, result: &mut FrameResult) -> Result<(), Self::Error> {
        let (_, tx, _, _, fees, _) = evm.ctx_mut().all_mut();
        let operator_fee = |gas| match &fees.info {
            Some(info) if tx.deposit.is_none() && !tx.gasless => info.operator_fee(gas),
            _ => U256::ZERO,
        };
        let unused = operator_fee(tx.gas_limit()).saturating_sub(operator_fee(gas_used(result.gas())));
        Ok(reimburse_caller(evm.ctx_mut(), result.gas(), unused)?)
    }

    /// Pays the fee recipient and the [vaults](https://specs.optimism.io/protocol/exec-engine.html#fee-vaults), and
    /// settles the transaction's refund.
    ///
    /// Calls that skip the base fee check have paid nothing, so no account is paid, as in op-geth: no ether is
    /// created.
    fn reward_beneficiary(&self, evm: &mut E, result: &mut FrameResult) -> Result<(), Self::Error> {
        let ctx = evm.ctx_ref();
        let is_free = ctx.cfg().is_base_fee_check_disabled() || ctx.cfg().is_fee_charge_disabled();
        if is_free || ctx.tx().deposit.is_some() {
            return Ok(());
        }
        let used = gas_used(result.gas());
        if ctx.tx().gasless {
            // Nothing was paid, so nothing is returned: X Layer's client would take it from the vaults, which is not
            // specified. A refund of more than the gas is still invalid.
            return Ok(Settlement::of(ctx.tx().refund, used, 0, 0, &L1BlockInfo::default())
                .map(drop)
                .map_err(too_large)?);
        }
        Self::mainnet().reward_beneficiary(evm, result)?;
        let (block, _, _, journal, fees, _) = evm.ctx_mut().all_mut();
        let operator_fee = fees.info.as_ref().map_or(U256::ZERO, |info| info.operator_fee(used));
        let base_fee = U256::from(u128::from(block.basefee()).saturating_mul(used.into()));
        for (vault, fee) in
            [(L1_FEE_VAULT, fees.l1_fee), (BASE_FEE_VAULT, base_fee), (OPERATOR_FEE_VAULT, operator_fee)]
        {
            journal.balance_incr(vault, fee)?;
        }
        settle(evm, used)
    }

    fn execution_result(
        &mut self,
        evm: &mut E,
        result: FrameResult,
        gas: ResultGas,
    ) -> Result<ExecutionResult, Self::Error> {
        if evm.ctx_ref().tx().deposit.is_some() {
            take_error::<Self::Error, _>(evm.ctx_mut().error())?;
            // This covers a sender without the value, which spec and op-geth take for a deposit that cannot begin.
            if let SuccessOrHalt::Halt(reason) = SuccessOrHalt::<HaltReason>::from(result.instruction_result()) {
                return Self::fail(evm, reason);
            }
        }
        Self::mainnet().execution_result(evm, result, gas)
    }

    fn catch_error(&self, evm: &mut E, error: Self::Error) -> Result<ExecutionResult, Self::Error> {
        if evm.ctx_ref().tx().deposit.is_some() && matches!(error, EVMError::Transaction(_)) {
            return Self::fail(evm, HaltReason::OutOfGas(OutOfGasError::Basic));
        }
        Self::mainnet().catch_error(evm, error)
    }
}

impl<E> InspectorHandler for OpHandler<E>
where
    E: InspectorEvmTr<
            Context: OpContext,
            Frame = EthFrame,
            Inspector: Inspector<<E as EvmTr>::Context, EthInterpreter>,
        >,
{
    type IT = EthInterpreter;
}
