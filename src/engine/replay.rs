//! Real transactions again: the state in the middle of a block.

use alloy_consensus::{Header, transaction::Recovered};
use alloy_evm::block::BlockExecutionError;

use super::{block_executor::ChainExecutor, error::SimulationError};
use crate::{
    chain::{ChainSpec, ChainTx},
    state::{Overlay, Snapshot},
};

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
    transactions: impl Iterator<Item = &'t Recovered<ChainTx>>,
    overlay: &mut Overlay,
) -> Result<(), BlockExecutionError> {
    let mut executor = ChainExecutor::new(spec, overlay, header, None, &[]);
    executor.begin()?;
    for tx in transactions {
        executor.overlay().meter.between_calls().map_err(BlockExecutionError::other)?;
        executor.execute(tx)?;
    }
    Ok(())
}
