//! Real transactions again: the executor of blocks, and the state in the middle of one.

use super::{error::SimulationError, evm::RunEvm, precompiles::RunPrecompiles};
use crate::{
    chain::ChainSpec,
    state::{Overlay, Snapshot},
};
use alloy_consensus::{Header, TxEnvelope, transaction::Recovered};
use alloy_eips::eip4895::Withdrawals;
use alloy_evm::{
    Evm,
    block::{BlockExecutionError, BlockExecutor},
    eth::{EthBlockExecutionCtx, EthBlockExecutor, receipt_builder::AlloyReceiptBuilder},
};

/// Executes a block's system calls and transactions in an overlay.
pub type ChainExecutor<'a> = EthBlockExecutor<'a, RunEvm<'a>, &'a ChainSpec, AlloyReceiptBuilder>;

/// The executor of `header`'s block, on the state that `overlay` has.
pub fn block_executor<'a>(
    spec: &'a ChainSpec,
    overlay: &'a mut Overlay,
    header: &'a Header,
    withdrawals: Option<&'a Withdrawals>,
    ommers: &'a [Header],
) -> ChainExecutor<'a> {
    let context = EthBlockExecutionCtx {
        parent_hash: header.parent_hash,
        parent_beacon_block_root: header.parent_beacon_block_root,
        ommers,
        withdrawals: withdrawals.map(|list| std::borrow::Cow::Borrowed(list.as_slice())),
        extra_data: header.extra_data.clone(),
        tx_count_hint: None,
        slot_number: None,
    };
    let env = spec.evm_env(header);
    let precompiles = RunPrecompiles::of(env.cfg_env.spec);
    let evm = RunEvm::new(overlay, env, precompiles);
    EthBlockExecutor::new(evm, context, spec, AlloyReceiptBuilder::default())
}

/// How many transactions the newest block of `snapshot` has: those so far, where it is being built.
pub fn transaction_count(snapshot: &Snapshot) -> usize {
    snapshot.open.as_ref().map_or(snapshot.head.body().transactions.len(), |open| open.transactions.len())
}

/// Brings `overlay`, which stands over the state of the parent of `snapshot`'s newest block, into the middle of that block: its pre-block
/// system calls and its first `count` transactions have run.
///
/// # Errors
/// That the run was stopped, or a transaction that was in the block cannot run, which is a fault.
pub fn replay(
    spec: &ChainSpec,
    snapshot: &Snapshot,
    count: usize,
    overlay: &mut Overlay,
) -> Result<(), SimulationError> {
    let header = snapshot.header();
    let ran = match &snapshot.open {
        Some(open) => run(spec, header, open.transactions.iter().take(count), overlay),
        None => run(spec, header, snapshot.head.body().transactions.iter().take(count), overlay),
    };
    ran.map_err(|error| match overlay.meter.stopped() {
        Some(stopped) => stopped.into(),
        None => SimulationError::Internal(format!("block {} cannot be replayed: {error}", header.number)),
    })
}

fn run<'t>(
    spec: &ChainSpec,
    header: &Header,
    transactions: impl Iterator<Item = &'t Recovered<TxEnvelope>>,
    overlay: &mut Overlay,
) -> Result<(), BlockExecutionError> {
    let mut executor = block_executor(spec, overlay, header, None, &[]);
    executor.apply_pre_execution_changes()?;
    for tx in transactions {
        executor.evm.db_mut().meter.between_calls().map_err(BlockExecutionError::other)?;
        executor.execute_transaction(tx)?;
    }
    Ok(())
}
