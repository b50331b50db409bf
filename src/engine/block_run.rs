//! The execution of a block: opened on its parent, extended by transactions, and ended. It runs in parts, as far as
//! the state that they read is known.

use std::sync::Arc;

use alloy_consensus::{
    EMPTY_ROOT_HASH, Eip658Value, Header, ReceiptEnvelope, Transaction, TxEnvelope, transaction::Recovered,
};
use alloy_eips::{
    eip4895::Withdrawals,
    eip7685::Requests,
    eip7928::{BlockAccessList, compute_block_access_list_hash},
};
use alloy_evm::block::BlockExecutionError;
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::B256;
use op_alloy::consensus::L2_TO_L1_MESSAGE_PASSER_ADDRESS;

use super::block_executor::{BlockProgress, BlockResult, ChainExecutor};
use crate::{
    abi::CONSOLE,
    chain::{
        Attributes, BlockBody, BlockTotals, ChainReceipt, ChainSpec, ChainTx, Family, GasRefunds, OpFork, SealedBlock,
        Unexecutable, merged_access_list,
    },
    ledger::{OpenBlock, Snapshot, StateStep},
    meter::{Meter, Stopped},
    state::{AccountChange, LocalWorld, Missed, Overlay, World, merged_changes},
};

/// A snapshot made from another, with the step of state between them.
#[derive(Debug)]
pub struct Applied {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// State of an upstream that was not known. Unless empty, everything else here is invalid.
    pub missed: Missed,
    /// Whether the console of test libraries was called.
    pub calls_console: bool,
}

/// Opens the next block on the head of `on`: empty, after its pre-block system calls. The first block of Amsterdam begins
/// the chain's slots at 0, because no beacon chain numbers them.
///
/// # Errors
///
/// Returns a [`BlockExecutionError`] if a system call fails.
pub fn open_block(spec: &ChainSpec, on: &Snapshot, attributes: Attributes) -> Result<Applied, BlockExecutionError> {
    open_block_with(spec, on, next_header(spec, on, attributes))
}

/// Returns the header of the next block on the head of `on`, for [`open_block_with`].
pub fn next_header(spec: &ChainSpec, on: &Snapshot, attributes: Attributes) -> Header {
    let mut header = spec.next_header(&on.head.header, on.head.number() + 1, attributes);
    if header.block_access_list_hash.is_some() {
        header.slot_number.get_or_insert_default();
    }
    header
}

/// Opens the next block on the head of `on` with a given header, after its pre-block system calls. The header holds
/// the producer's choices: number, time, fee recipient, randomness, gas limit, base fee, extra data and beacon root.
/// Gas, roots and bloom are computed here.
///
/// # Errors
///
/// Returns a [`BlockExecutionError`] if a system call fails.
pub fn open_block_with(spec: &ChainSpec, on: &Snapshot, header: Header) -> Result<Applied, BlockExecutionError> {
    let header = Header { gas_used: 0, blob_gas_used: header.blob_gas_used.map(|_| 0), ..header };
    let mut overlay = Overlay::new(on.world.clone(), on.hashes.clone());
    let mut executor = ChainExecutor::new(spec, &mut overlay, &header, None, &[]);
    let begun = executor.begin();
    drop(executor);
    check_executable(overlay.unexecutable())?;
    if !overlay.has_missed() {
        begun?;
    }
    let mut open = OpenBlock::new(header);
    open.access_lists.extend(overlay.take_access_list().map(Arc::new));
    Ok(next(on, &mut overlay, open))
}

/// Extends the block being built by a part, whose transactions `fill` executes and returns. The cost depends on what
/// they use and change, not on the size of the block or the state.
pub fn extend(
    spec: &ChainSpec,
    on: &Snapshot,
    open: &OpenBlock,
    fill: impl FnOnce(&mut ChainExecutor<'_>) -> Vec<Recovered<ChainTx>>,
) -> Applied {
    let mut overlay = Overlay::new(on.world.clone(), on.hashes.clone());
    let mut executor = ChainExecutor::new(spec, &mut overlay, &open.header, None, &[]);
    executor.resume(BlockProgress::of(open));
    executor.refund(open.refunds.clone());
    let transactions = fill(&mut executor);
    let mut grown = open.clone();
    let BlockProgress { gas, blob_gas, .. } = executor.progress();
    grown.set_gas(gas);
    grown.blob_gas_used = blob_gas;
    grown.index += 1;
    let receipts = std::mem::take(executor.receipts_mut());
    transactions.into_iter().zip(receipts).for_each(|(tx, receipt)| grown.push(tx, receipt));
    drop(executor);
    grown.access_lists.extend(overlay.take_access_list().map(Arc::new));
    next(on, &mut overlay, grown)
}

/// A block that is executed in parts, each as far as the state that its transactions read is known. Executed
/// transactions are not run again: the rest continues once the missing state is known.
#[derive(Clone, Debug)]
pub struct BlockRun {
    /// The state after the transactions so far, with the block open.
    at: Arc<Snapshot>,
    /// The steps of the parts.
    path: Vec<Arc<StateStep>>,
    /// The number of transactions that have been executed in this run.
    executed: usize,
}

/// A transaction that is invalid in its block.
#[derive(Debug, thiserror::Error)]
#[error("transaction {index}: {error}")]
pub struct InvalidTransaction {
    /// The number of transactions that have been executed in the run before it.
    pub index: usize,
    /// The reason.
    pub error: BlockExecutionError,
}

impl BlockRun {
    /// Begins the block of `header` on its parent: runs the opening system calls. Also returns the state that they
    /// miss. Unless that is empty, the run can only be used to look ahead.
    ///
    /// # Errors
    ///
    /// Returns a [`BlockExecutionError`] if a system call fails.
    pub fn begin(spec: &ChainSpec, on: &Snapshot, header: Header) -> Result<(Self, Missed), BlockExecutionError> {
        let Applied { snapshot, missed, .. } = open_block_with(spec, on, header)?;
        Ok((Self { path: snapshot.path.clone(), at: Arc::new(snapshot), executed: 0 }, missed))
    }

    /// Creates a run that continues the block that `at` is building.
    pub fn resume(at: Arc<Snapshot>) -> Self {
        Self { at, path: Vec::new(), executed: 0 }
    }

    /// Sets the refunds of gas of the block's transactions.
    pub fn refund(&mut self, refunds: GasRefunds) {
        self.at = Arc::new(self.at.with_refunds(refunds));
    }

    /// Returns the state after the transactions so far.
    pub const fn at(&self) -> &Arc<Snapshot> {
        &self.at
    }

    /// Returns the number of transactions that have been executed in this run.
    pub const fn executed(&self) -> usize {
        self.executed
    }

    /// Returns the state after the transactions so far, with the steps to it from where the run began.
    pub fn into_snapshot(self) -> Snapshot {
        let mut snapshot = self.at.copy();
        snapshot.path = self.path;
        snapshot
    }

    /// Executes the next transactions, as far as the state that they read is known, and not much further than `gas`.
    /// Returns the state that the first transaction not executed needs.
    ///
    /// # Errors
    ///
    /// Returns an [`InvalidTransaction`] if one is invalid in the block. The transactions before it have been
    /// executed.
    pub fn go_on(
        &mut self,
        spec: &ChainSpec,
        transactions: &[Recovered<ChainTx>],
        gas: u64,
    ) -> Result<Missed, InvalidTransaction> {
        let at = self.at.clone();
        let Some(open) = &at.open else {
            let error = BlockExecutionError::msg("no block is open");
            return Err(InvalidTransaction { index: self.executed, error });
        };
        let (mut failed, mut executed) = (None, 0);
        let enough = open.header.gas_used.saturating_add(gas);
        let Applied { snapshot, missed, .. } = extend(spec, &at, open, |executor| {
            for tx in transactions {
                match executor.execute_known(tx) {
                    Ok(true) => executed += 1,
                    Ok(false) => break,
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
                if executor.progress().gas.used() >= enough {
                    break;
                }
            }
            transactions[..executed].to_vec()
        });
        self.executed += executed;
        self.path.extend(snapshot.path.iter().cloned());
        self.at = Arc::new(snapshot);
        failed.map_or(Ok(missed), |error| Err(InvalidTransaction { index: self.executed, error }))
    }

    /// Runs the withdrawals and the closing system calls without effect: adds the state that is not known to `missed`.
    pub fn read_at_end(&self, spec: &ChainSpec, withdrawals: Option<&Withdrawals>, missed: &mut Missed) {
        if let Ok(end) = self.end(spec, withdrawals) {
            missed.extend(end.missed.state());
        }
    }

    /// Runs the end of the block: withdrawals, requests, and the closing system calls. The changes cover only this
    /// part; receipts, gas and access list cover the whole block.
    ///
    /// # Errors
    ///
    /// Returns a [`BlockExecutionError`] if a system call fails.
    pub fn end(&self, spec: &ChainSpec, withdrawals: Option<&Withdrawals>) -> Result<BlockEnd, BlockExecutionError> {
        let Some(open) = &self.at.open else { return Err(BlockExecutionError::msg("no block is open")) };
        close(spec, &self.at, open, withdrawals)
    }

    /// Returns the changes of the parts so far, and of `end`, each account once.
    pub fn changes(&self, end: &BlockEnd) -> Vec<AccountChange> {
        merged_changes(self.path.iter().flat_map(|step| step.changes.iter()).chain(end.changes.iter()))
    }
}

/// Runs transactions of a block out of order and without effect, to find the state that they will need. Adds unknown
/// state to `missed`, and returns the transactions among `which`, by their indices, that have missed something.
pub fn look_ahead(
    spec: &ChainSpec,
    on: &Snapshot,
    transactions: &[Recovered<ChainTx>],
    which: &[usize],
    missed: &mut Missed,
) -> Vec<usize> {
    let mut overlay = Overlay::new(on.world.clone(), on.hashes.clone());
    let mut executor = ChainExecutor::new(spec, &mut overlay, on.header(), None, &[]).lenient();
    let mut still = Vec::new();
    for index in which {
        let Some(tx) = transactions.get(*index) else { continue };
        // Errors are ignored here, because the transaction's actual execution finds them.
        let _ = executor.execute(tx);
        let found = executor.overlay().take_missed().state();
        // A native contract stops one transaction, but not the following ones.
        executor.overlay().meter = Meter::default();
        if !found.is_empty() {
            still.push(*index);
            missed.extend(found);
        }
    }
    still
}

/// Runs transactions that wait for later blocks, in order, on the state of `on`, whose gas and nonces they need not
/// fit. A transaction that no block could include, even after others, has no effect. Returns the resulting state, the
/// missed state, and why `meter` has stopped the run, if it has.
pub fn run_waiting(
    spec: &ChainSpec,
    on: &Snapshot,
    waiting: &[Arc<Recovered<TxEnvelope>>],
    meter: Meter,
) -> (World, Missed, Option<Stopped>) {
    let mut overlay = Overlay::new(on.world.clone(), on.hashes.clone());
    overlay.meter = meter;
    let mut executor = ChainExecutor::new(spec, &mut overlay, on.header(), None, &[]).lenient();
    for tx in waiting {
        executor.resume(BlockProgress::default());
        executor.overlay().set(tx.signer(), None, Some(tx.nonce()), None);
        let chain_tx = Recovered::new_unchecked(ChainTx::from(tx.inner().clone()), tx.signer());
        if let Err(error) = executor.execute(&chain_tx) {
            tracing::debug!(hash = %tx.tx_hash(), %error, "a waiting transaction is not part of the simulation");
        }
        if executor.overlay().meter.between_calls().is_err() {
            break;
        }
    }
    drop(executor);
    (overlay.changed_world(), overlay.take_missed(), overlay.meter.stopped())
}

/// Checks that a transaction is executable, because presim does not guess.
///
/// # Errors
///
/// Returns a [`BlockExecutionError`] with the reason if it is not.
pub fn check_executable(why: Option<Unexecutable>) -> Result<(), BlockExecutionError> {
    why.map_or(Ok(()), |why| Err(BlockExecutionError::msg(why)))
}

/// Seals the block being built: withdrawals, requests, roots and hash. Also returns the requests (EIP-7685). Blocks
/// before Shanghai have no `withdrawals`, and ignore them. The state root is zero on an upstream's state, which is
/// known only in part.
///
/// # Errors
///
/// Returns a [`BlockExecutionError`] if a system call fails.
pub fn seal(
    spec: &ChainSpec,
    on: &Snapshot,
    open: &OpenBlock,
    withdrawals: Withdrawals,
) -> Result<(Applied, Requests), BlockExecutionError> {
    let withdrawals = spec.is_shanghai_active_at_timestamp(open.header.timestamp).then_some(withdrawals);
    let BlockEnd { world, changes, missed, receipts, requests, access_list, gas_used, blob_gas_used } =
        close(spec, on, open, withdrawals.as_ref())?;
    let transactions: Vec<_> = open.transactions.iter().cloned().collect();
    let mut header = open.header.clone();
    BlockTotals { gas_used, blob_gas_used, ..open.totals() }.close(&mut header);
    header.withdrawals_root = withdrawals_root(spec, &header, &world, withdrawals.as_ref());
    header.requests_hash = spec.is_prague_active_at_timestamp(header.timestamp).then(|| requests.requests_hash());
    header.block_access_list_hash = access_list.as_deref().map(compute_block_access_list_hash);
    header.state_root = world.local().map_or(B256::ZERO, LocalWorld::state_root_in_parallel);
    let ommers = Vec::new();
    let sealed = SealedBlock::new(header, BlockBody { transactions, receipts, ommers, withdrawals, access_list });
    let mut hashes = on.hashes.clone();
    hashes.push(sealed.number(), sealed.hash());
    let snapshot = Snapshot::at_head(world, Arc::new(sealed), hashes).after(on, Arc::new(changes));
    Ok((Applied { snapshot, missed, calls_console: false }, requests))
}

/// Runs the end of the block that `on` is building: withdrawals and requests. The changes cover only this part;
/// receipts, gas and access list cover the whole block.
///
/// # Errors
///
/// Returns a [`BlockExecutionError`] if a system call fails.
fn close(
    spec: &ChainSpec,
    on: &Snapshot,
    open: &OpenBlock,
    withdrawals: Option<&Withdrawals>,
) -> Result<BlockEnd, BlockExecutionError> {
    let mut overlay = Overlay::new(on.world.clone(), on.hashes.clone());
    let mut executor = ChainExecutor::new(spec, &mut overlay, &open.header, withdrawals, &[]);
    executor.resume(BlockProgress::of(open));
    let result = executor.finish(open.receipts.iter().cloned());
    let mut end = BlockEnd::of(overlay, result)?;
    if let Some(last) = end.access_list.take() {
        let mut parts = open.access_lists.clone();
        parts.push_back(Arc::new(last));
        end.access_list = merged_access_list(&parts, 0);
    }
    Ok(end)
}

/// The result of executing a whole block.
#[derive(Debug)]
pub struct BlockEnd {
    /// The state after the block.
    pub world: World,
    /// The changes, each account once.
    pub changes: Vec<AccountChange>,
    /// State of an upstream that was not known. Unless empty, everything else here is invalid.
    pub missed: Missed,
    /// The receipts. Before Byzantium, each holds the state root after its transaction.
    pub receipts: Vec<ChainReceipt>,
    /// The requests (EIP-7685).
    pub requests: Requests,
    /// The access list (EIP-7928). `None` before Amsterdam.
    pub access_list: Option<BlockAccessList>,
    /// Gas used.
    pub gas_used: u64,
    /// Blob gas used.
    pub blob_gas_used: u64,
}

/// Executes a whole block by its header, on the state of its parent, with the refunds of its last transaction.
///
/// # Errors
///
/// Returns a [`BlockExecutionError`] if the block is invalid.
pub fn execute_block(
    spec: &ChainSpec,
    parent: &Snapshot,
    header: &Header,
    transactions: &[Recovered<ChainTx>],
    ommers: &[Header],
    withdrawals: Option<&Withdrawals>,
) -> Result<BlockEnd, BlockExecutionError> {
    let mut overlay = Overlay::new(parent.world.clone(), parent.hashes.clone());
    let refunds = GasRefunds::of_block(spec.has_post_exec(header.timestamp), header.number, transactions)
        .map_err(|(index, broken)| BlockExecutionError::msg(format!("transaction {index}: {broken}")))?;
    let with_roots = spec.family() == Family::Ethereum && !spec.is_byzantium_active_at_block(header.number);
    let mut executor = ChainExecutor::new(spec, &mut overlay, header, withdrawals, ommers);
    let ran = execute(&mut executor, refunds, transactions.iter().map(|tx| ((), tx)), |(), ran, executor| {
        ran?;
        if with_roots
            && let Some(root) = executor.overlay().changed_world().local().map(LocalWorld::state_root)
            && let Some(ChainReceipt::Signed(ReceiptEnvelope::Legacy(receipt))) = executor.receipts_mut().last_mut()
        {
            receipt.receipt.status = Eip658Value::PostState(root);
        }
        Ok(())
    });
    let result = ran.and_then(|()| executor.finish([]));
    BlockEnd::of(overlay, result)
}

/// Begins a block, and executes its transactions from the first on. Passes each result to `check`, with the value from
/// `transactions`.
///
/// A run that has missed state continues after failures, to find what else it will miss, and checks nothing.
///
/// # Errors
///
/// Returns the error of a system call or of `check`, or that the run was stopped.
pub(super) fn execute<'a, 't, T>(
    executor: &mut ChainExecutor<'a>,
    refunds: GasRefunds,
    transactions: impl Iterator<Item = (T, &'t Recovered<ChainTx>)>,
    mut check: impl FnMut(T, Result<(), BlockExecutionError>, &mut ChainExecutor<'a>) -> Result<(), BlockExecutionError>,
) -> Result<(), BlockExecutionError> {
    executor.refund(refunds);
    let begun = executor.begin();
    if !executor.overlay().has_missed() {
        begun?;
    }
    for (known, tx) in transactions {
        executor.overlay().meter.between_calls().map_err(BlockExecutionError::other)?;
        let ran = executor.execute(tx);
        if !executor.overlay().has_missed() {
            check(known, ran, executor)?;
        }
    }
    Ok(())
}

impl BlockEnd {
    /// Returns the result of a block with the changes in `overlay`.
    fn of(mut overlay: Overlay, result: Result<BlockResult, BlockExecutionError>) -> Result<Self, BlockExecutionError> {
        let missed = overlay.take_missed();
        check_executable(missed.unexecutable())?;
        let BlockResult { receipts, requests, gas_used, blob_gas_used } = match result {
            // The failure may be caused by the missing state.
            Err(_) if !missed.is_empty() => BlockResult::default(),
            result => result?,
        };
        let access_list = overlay.take_access_list();
        let (world, changes) = overlay.changed();
        Ok(Self { world, changes, missed, receipts, requests, access_list, gas_used, blob_gas_used })
    }
}

/// Returns the `withdrawalsRoot` of a header on the state `world`: the root of its withdrawals from Shanghai on; on the
/// OP stack from Isthmus on, the storage root of the contract for withdrawals to L1
/// (<https://specs.optimism.io/protocol/isthmus/exec-engine.html>), which is zero on an upstream's state.
pub fn withdrawals_root(
    spec: &ChainSpec,
    header: &Header,
    world: &World,
    withdrawals: Option<&Withdrawals>,
) -> Option<B256> {
    if spec.has_op_fork(OpFork::Isthmus, header.timestamp) {
        let Some(world) = world.local() else { return Some(B256::ZERO) };
        let passer = world.account(&L2_TO_L1_MESSAGE_PASSER_ADDRESS);
        return Some(passer.map_or(EMPTY_ROOT_HASH, |account| account.trie_account().storage_root));
    }
    withdrawals.map(|list| alloy_consensus::proofs::calculate_withdrawals_root(list))
}

fn next(on: &Snapshot, overlay: &mut Overlay, open: OpenBlock) -> Applied {
    let (missed, calls_console) = (overlay.take_missed(), overlay.has_read(&CONSOLE));
    let (world, changes) = overlay.changed();
    let snapshot = Snapshot::new(world, on.head.clone(), Some(open), on.hashes.clone());
    Applied { snapshot: snapshot.after(on, Arc::new(changes)), missed, calls_console }
}
