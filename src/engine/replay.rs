//! Runs the transactions of a block again, to restore the state in the middle of the block.

use alloy_consensus::{Header, transaction::Recovered};
use alloy_evm::block::BlockExecutionError;

use super::{block_executor::ChainExecutor, error::SimulationError};
use crate::{
    chain::{ChainSpec, ChainTx},
    state::{Overlay, Snapshot},
};

/// Returns the number of transactions in the newest block of `snapshot`: those so far, if it is being built.
pub fn transaction_count(snapshot: &Snapshot) -> usize {
    snapshot.open.as_ref().map_or(snapshot.head.body().transactions.len(), |open| open.transactions.len())
}

/// Runs the pre-block system calls and the first `count` transactions of `snapshot`'s newest block. `overlay` must be
/// over the state of that block's parent.
///
/// # Errors
///
/// Returns [`SimulationError::Stopped`] if the run was stopped, or [`SimulationError::Internal`] if part of it fails.
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
