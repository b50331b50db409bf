//! The EVM of the OP stack's chains, and the gasless transactions of X Layer.

use alloy_consensus::Header;
use alloy_eips::eip4788::SYSTEM_ADDRESS;
use alloy_evm::EvmEnv;
use alloy_primitives::TxKind;
use revm::{
    Inspector,
    context::{
        ContextSetters, TxEnv,
        result::{ExecutionResult, Output},
    },
    handler::{Handler, SystemCallTx},
    inspector::InspectorHandler,
};

use super::{OpBlockFees, OpHandler};
use crate::{
    chain::{ChainSpec, OpFork, OpTx, gasless_allowance, gasless_contract, gasless_question},
    engine::evm::family::{Error, FamilyEvm, Host, RunEvm},
};

/// The family of the OP stack, with deposits, and fees for the cost of a transaction on L1.
#[derive(Clone, Copy, Debug)]
pub struct OpStack;

impl FamilyEvm for OpStack {
    type Spec = OpFork;
    type Tx = OpTx;
    type Chain = OpBlockFees;

    const HAS_VAULTS: bool = true;
    const HAS_REQUESTS: bool = false;

    fn env(spec: &ChainSpec, header: &Header) -> EvmEnv<OpFork> {
        spec.op_evm_env(header)
    }

    fn waived() -> OpBlockFees {
        OpBlockFees::waived()
    }

    fn refunded(tx: OpTx, refund: u64) -> OpTx {
        OpTx { refund, ..tx }
    }

    fn with_gas_limit(tx: OpTx, gas: u64) -> OpTx {
        OpTx { base: TxEnv { gas_limit: gas, ..tx.base }, ..tx }
    }

    fn handle(evm: &mut RunEvm<'_, Self>) -> Result<ExecutionResult, Error> {
        with_gasless(evm, |evm| OpHandler::default().run(evm))
    }

    fn handle_system_call(evm: &mut RunEvm<'_, Self>) -> Result<ExecutionResult, Error> {
        OpHandler::default().run_system_call(evm)
    }

    fn inspect<'a, I: Inspector<Host<'a, Self>>>(evm: &mut RunEvm<'a, Self, I>) -> Result<ExecutionResult, Error> {
        with_gasless(evm, |evm| OpHandler::default().inspect_run(evm))
    }
}

/// Runs the transaction that `evm` is set to by `run`, as a gasless one if it is: while it runs, the base fee is zero.
fn with_gasless<'a, I, T>(
    evm: &mut RunEvm<'a, OpStack, I>,
    run: impl FnOnce(&mut RunEvm<'a, OpStack, I>) -> Result<T, Error>,
) -> Result<T, Error> {
    if !is_gasless(evm)? {
        return run(evm);
    }
    let ctx = &mut evm.inner.ctx;
    ctx.tx.gasless = true;
    let base_fee = std::mem::take(&mut ctx.block.basefee);
    let result = run(evm);
    evm.inner.ctx.block.basefee = base_fee;
    result
}

/// Returns whether the transaction that `evm` is set to is gasless. If it offers no fee, the chain's contract decides.
///
/// A system call asks the contract: its changes are discarded, its gas is not counted, and no inspector sees it.
/// Missing state of the call counts as missing for the transaction.
fn is_gasless<I>(evm: &mut RunEvm<'_, OpStack, I>) -> Result<bool, Error> {
    let ctx = &evm.inner.ctx;
    let tx = &ctx.tx;
    // An unsigned call whose price is not checked pays nothing anyway.
    let is_checked = !tx.encoded.is_empty() || !ctx.cfg.disable_base_fee;
    let (None, 0, TxKind::Call(recipient), true) = (tx.deposit, tx.base.gas_price, tx.base.kind, is_checked) else {
        return Ok(false);
    };
    let Some(contract) = gasless_contract(ctx.cfg.chain_id) else { return Ok(false) };
    let question = gasless_question(recipient, &tx.base.data).into();
    let question = OpTx::new_system_tx_with_caller(SYSTEM_ADDRESS, contract, question);
    let tx = std::mem::replace(&mut evm.inner.ctx.tx, question);
    let numbers = std::mem::take(&mut evm.inner.ctx.journaled_state.database.log_numbers);
    let answer = OpHandler::default().run_system_call(evm);
    evm.discard();
    evm.inner.ctx.journaled_state.database.log_numbers = numbers;
    let gas_limit = tx.base.gas_limit;
    evm.inner.ctx.set_tx(tx);
    let allowance = match &answer? {
        ExecutionResult::Success { output: Output::Call(answer), .. } => gasless_allowance(answer),
        _ => None,
    };
    Ok(allowance.is_some_and(|allowance| gas_limit <= allowance))
}
