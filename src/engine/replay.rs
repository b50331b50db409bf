//! Runs the transactions of a block again: to restore the state in the middle of the block, and to trace them.

use std::{fmt::Display, ops::Range};

use alloy_consensus::{TxReceipt, transaction::TransactionInfo};
use alloy_evm::block::BlockExecutionError;
use revm::{DatabaseCommit, context::result::ResultAndState};

use super::{
    block_executor::{BlockProgress, ChainExecutor},
    block_run::execute,
    error::SimulationError,
    evm::{FamilyEvm, TxSetup},
    families::by_family,
    recorder,
    trace::{Trace, TraceBudget, Tracer},
};
use crate::{
    chain::{ChainReceipt, ChainSpec},
    ledger::{Block, Included},
    state::Overlay,
};

/// Runs the pre-block system calls and the first `count` transactions of `block`, and returns what they have used.
/// `overlay` must be over the state of that block's parent.
///
/// A run that has missed state continues after a failure, to find what else it will miss.
///
/// # Errors
///
/// Returns [`SimulationError::Stopped`] if the run was stopped. If part of it fails, or its gas differs from the
/// receipt's, returns [`SimulationError::WrongState`] over the state of an upstream, and [`SimulationError::Internal`]
/// otherwise.
pub fn replay(
    spec: &ChainSpec,
    block: &Block,
    count: usize,
    overlay: &mut Overlay,
) -> Result<BlockProgress, SimulationError> {
    let is_remote = overlay.is_remote();
    let mut executor = ChainExecutor::new(spec, overlay, block.context(), None, &[]);
    let transactions = block.transactions().take(count).map(|included| (included, included.tx));
    let ran = execute(&mut executor, block.refunds(), transactions, |included, ran, executor| {
        ran.map_err(|error| BlockExecutionError::msg(format!("transaction {}: {error}", included.index)))?;
        let used = executor.receipts_mut().last().map_or(0, ChainReceipt::cumulative_gas_used);
        match is_remote {
            true => {
                check_gas(&included, used, included.receipt.cumulative_gas_used()).map_err(BlockExecutionError::msg)
            }
            false => Ok(()),
        }
    });
    let progress = executor.progress();
    ran.map(|()| progress).map_err(|error| failure(block, error, overlay))
}

/// Replays `block` up to the end of `traced`, a range of its transactions, and passes each of their traces to `take`,
/// one after another. So `limit` bytes apply to each trace. `overlay` must be over the state of the block's parent. A
/// post-execution transaction runs no code, and has no trace.
///
/// # Errors
///
/// Returns the error of `take`, [`SimulationError::TraceTooLong`] if a trace exceeds the limit, or an error of
/// [`replay`].
pub fn trace_block<E: From<SimulationError>>(
    spec: &ChainSpec,
    block: &Block,
    traced: Range<usize>,
    tracer: (&Tracer, usize),
    overlay: &mut Overlay,
    mut take: impl FnMut(&Included<'_>, Trace) -> Result<(), E>,
) -> Result<(), E> {
    replay(spec, block, traced.start, overlay)?;
    let included = block.transactions_from(traced.start).take(traced.len());
    for included in included.filter(|included| included.tx.as_post_exec().is_none()) {
        overlay.meter.between_calls().map_err(SimulationError::from)?;
        match by_family!(spec, F => trace::<F>(spec, block, &included, tracer, overlay)) {
            Err(SimulationError::Internal(_) | SimulationError::WrongState { .. }) if overlay.has_missed() => {}
            Err(error) => return Err(error.into()),
            Ok((trace, ran)) => {
                if !overlay.has_missed() {
                    check_gas(&included, ran.result.tx_gas_used(), included.evm_gas_used())
                        .map_err(|mismatch| failure(block, mismatch, overlay))?;
                }
                overlay.commit(ran.state);
                take(&included, trace)?;
            }
        }
    }
    Ok(())
}

/// Traces a transaction of `block`, and discards its changes.
fn trace<F: FamilyEvm>(
    spec: &ChainSpec,
    block: &Block,
    included: &Included<'_>,
    (tracer, limit): (&Tracer, usize),
    overlay: &mut Overlay,
) -> Result<(Trace, ResultAndState), SimulationError> {
    let setup = TxSetup::<F>::included(included.tx, included.refund, spec, F::env(spec, block.context()));
    let explain =
        |error, overlay: &mut Overlay| failure(block, format!("transaction {}: {error}", included.index), overlay);
    let position = TransactionInfo {
        hash: Some(*included.tx.tx_hash()),
        index: Some(included.index as u64),
        block_hash: Some(block.header().hash()),
        block_number: Some(block.number()),
        ..TransactionInfo::default()
    };
    recorder::trace(setup, position, tracer, None, &mut TraceBudget::new(limit), overlay, explain)
}

/// Returns the reason why a replay of `block` failed. A stop by the meter takes precedence.
pub(super) fn failure(block: &Block, error: impl Display, overlay: &Overlay) -> SimulationError {
    let (number, mismatch) = (block.number(), error.to_string());
    match overlay.meter.stopped() {
        Some(stopped) => stopped.into(),
        None if overlay.is_remote() => {
            SimulationError::WrongState { number, parent: block.context().parent_hash, mismatch }
        }
        None => SimulationError::Internal(format!("block {number} cannot be replayed: {mismatch}")),
    }
}

/// Checks the gas that was used up to a transaction, or by it, against its receipt.
pub(super) fn check_gas(included: &Included<'_>, used: u64, expected: u64) -> Result<(), String> {
    if used == expected {
        return Ok(());
    }
    Err(format!("transaction {} used {used} gas, expected {expected} as its receipt has it", included.index))
}
