//! Sub-blocks of a chain that is built here: fills them from the pool, and turns them into records to publish.

use alloy_consensus::{Header, TxReceipt, transaction::Recovered};
use alloy_evm::block::BlockExecutionError;
use alloy_primitives::B256;

use crate::{
    chain::{ChainSpec, ChainTx, GasLeft},
    engine::{self, Applied, BlockProgress, ChainExecutor, check_executable},
    ledger::{OpenBlock, Record, Snapshot},
    meter::Meter,
    pool::BlockSpace,
    state::Missed,
};

/// The next sub-block of a chain that is built here.
#[derive(Debug)]
pub struct SubBlockStep {
    /// The sealed block, if this was its last sub-block.
    pub sealed: Option<Applied>,
    /// The newest snapshot: the sub-block, or the empty block opened on the sealed one.
    pub next: Applied,
}

impl SubBlockStep {
    /// Returns whether the console of test libraries was called, apart from the block that is opened next.
    pub fn calls_console(&self) -> bool {
        self.sealed.as_ref().unwrap_or(&self.next).calls_console
    }

    /// Takes the state of an upstream that was not known. Unless empty, everything else here is invalid.
    pub fn take_missed(&mut self) -> Missed {
        let mut missed = std::mem::take(&mut self.next.missed);
        missed.extend(self.sealed.as_mut().map(|sealed| std::mem::take(&mut sealed.missed)).unwrap_or_default());
        missed
    }
}

impl From<SubBlockStep> for Record {
    fn from(SubBlockStep { sealed, next }: SubBlockStep) -> Self {
        match sealed {
            None => Self::SubBlock(next.snapshot),
            Some(sealed) => Self::Seal { sealed: sealed.snapshot, next: Some(next.snapshot) },
        }
    }
}

/// Extends the block being built by a sub-block that `fill` fills. The cost depends on what its transactions use and
/// change, not on the size of the block or the state.
pub fn extend(spec: &ChainSpec, on: &Snapshot, open: &OpenBlock, fill: impl FnOnce(&mut SubBlock<'_, '_>)) -> Applied {
    let max_blob_gas = spec.blob_params(open.header.timestamp).map_or(0, |params| params.max_blob_gas_per_block());
    engine::extend(spec, on, open, |executor| {
        let mut sub_block = SubBlock { spec, header: &open.header, executor, transactions: Vec::new(), max_blob_gas };
        fill(&mut sub_block);
        sub_block.transactions
    })
}

/// A sub-block being filled.
pub struct SubBlock<'a, 'b> {
    spec: &'a ChainSpec,
    header: &'a Header,
    executor: &'a mut ChainExecutor<'b>,
    transactions: Vec<Recovered<ChainTx>>,
    max_blob_gas: u64,
}

/// The reason why a bundle does not fit in a sub-block.
#[derive(Debug, thiserror::Error)]
pub enum Misfit {
    /// A transaction cannot be included.
    #[error("transaction {index} of the bundle: {error}")]
    Invalid { index: usize, error: BlockExecutionError },
    /// A transaction fails that must not.
    #[error("transaction {index} of the bundle fails")]
    Fails { index: usize },
    /// The bundle takes more time than it may.
    #[error("the time is up after {ran} transactions of the bundle")]
    Late { ran: usize },
    /// The block has not enough blob gas left.
    #[error("transaction {index} of the bundle: the block has not enough blob gas left")]
    Blobs { index: usize },
    /// State of an upstream is unknown, and the sub-block [has missed](SubBlock::has_missed) it.
    #[error("transaction {index} of the bundle reads state that is not known")]
    Unknown { index: usize },
}

impl SubBlock<'_, '_> {
    /// Returns the gas that the block has left.
    pub fn room(&self) -> BlockSpace {
        let BlockProgress { gas, blob_gas, .. } = self.executor.progress();
        BlockSpace {
            gas: GasLeft::of(self.spec, self.header, gas),
            blob_gas: self.max_blob_gas.saturating_sub(blob_gas),
        }
    }

    /// Returns whether something was looked for that is not known of an upstream's state.
    pub fn has_missed(&mut self) -> bool {
        self.executor.overlay().has_missed()
    }

    /// Executes a transaction at the end of the sub-block, and returns whether all the state that it reads is known. If not, it
    /// changes nothing.
    ///
    /// # Errors
    ///
    /// Returns a [`BlockExecutionError`] if the transaction cannot be included, or not be executed here. It then changes
    /// nothing.
    pub fn push(&mut self, tx: Recovered<ChainTx>) -> Result<bool, BlockExecutionError> {
        let is_known = run_whole(self.executor, &tx)?;
        if is_known {
            self.transactions.push(tx);
        }
        Ok(is_known)
    }

    /// Executes the transactions of a bundle at the end of the sub-block, in order: all or none of them. Only
    /// transactions for which `may_fail` holds may fail; they are then included as failed.
    ///
    /// They run twice: first on a copy of the state, because an executor cannot undo a transaction. That run ends when
    /// `has_time` no longer holds.
    ///
    /// # Errors
    ///
    /// Returns the [`Misfit`] of the first transaction that does not fit. The bundle then changes nothing.
    pub fn push_all(
        &mut self,
        bundle: Vec<Recovered<ChainTx>>,
        may_fail: impl Fn(&B256) -> bool,
        has_time: impl Fn() -> bool,
    ) -> Result<(), Misfit> {
        let mut overlay = self.executor.overlay().changed_copy();
        let mut trial = ChainExecutor::new(self.spec, &mut overlay, self.header, None, &[]);
        trial.resume(self.executor.progress());
        for (index, tx) in bundle.iter().enumerate() {
            if !has_time() {
                return Err(Misfit::Late { ran: index });
            }
            if !run_whole(&mut trial, tx).map_err(|error| Misfit::Invalid { index, error })? {
                drop(trial);
                self.executor.overlay().add_missed(overlay.take_missed());
                return Err(Misfit::Unknown { index });
            }
            if trial.progress().blob_gas > self.max_blob_gas {
                return Err(Misfit::Blobs { index });
            }
            let succeeded = trial.receipts_mut().last().is_some_and(|receipt| receipt.status());
            if !succeeded && !may_fail(tx.tx_hash()) {
                return Err(Misfit::Fails { index });
            }
        }
        for (index, tx) in bundle.into_iter().enumerate() {
            if !self.push(tx).map_err(|error| Misfit::Invalid { index, error })? {
                return Err(Misfit::Unknown { index });
            }
        }
        Ok(())
    }
}

/// Executes a transaction of a block that is built here, unless presim cannot. Returns whether the state that it reads is known.
fn run_whole(executor: &mut ChainExecutor<'_>, tx: &Recovered<ChainTx>) -> Result<bool, BlockExecutionError> {
    let ran = executor.execute_known(tx);
    let why = executor.overlay().take_unexecutable();
    if why.is_some() {
        // The meter was stopped.
        executor.overlay().meter = Meter::default();
    }
    check_executable(why).and(ran)
}
