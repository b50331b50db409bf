//! Runs the gasless transactions of X Layer.

use alloy_eips::eip4788::SYSTEM_ADDRESS;
use alloy_primitives::TxKind;
use revm::{
    context::{
        ContextSetters,
        result::{ExecutionResult, Output},
    },
    handler::{Handler, SystemCallTx},
};

use super::{OpBlockFees, OpHandler};
use crate::{
    chain::{OpFork, OpTx, gasless_allowance, gasless_contract, gasless_question},
    engine::evm::family::{Error, FamilyEvm, RunEvm},
};

/// A family with the transactions, the forks and the fees of the OP stack.
pub(super) trait OpFamily: FamilyEvm<Spec = OpFork, Tx = OpTx, Chain = OpBlockFees> {}

impl<F: FamilyEvm<Spec = OpFork, Tx = OpTx, Chain = OpBlockFees>> OpFamily for F {}

/// Runs the transaction that `evm` is set to by `run`, as a gasless one if it is: while it runs, the base fee is zero.
pub(super) fn with_gasless<'a, F: OpFamily, I, T>(
    evm: &mut RunEvm<'a, F, I>,
    run: impl FnOnce(&mut RunEvm<'a, F, I>) -> Result<T, Error>,
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

/// Returns whether the transaction that `evm` is set to is gasless, which its chain's contract is asked if it offers nothing.
///
/// The contract is asked by a system call: what it changes is discarded, its gas counts nowhere, and no inspector sees it. State of it
/// that is missing is missing for the transaction.
fn is_gasless<F: OpFamily, I>(evm: &mut RunEvm<'_, F, I>) -> Result<bool, Error> {
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
