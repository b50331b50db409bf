//! From one snapshot to the next: opening a block, extending it by a sub-block, and sealing it; and executing whole
//! blocks.

use std::sync::Arc;

use alloy_consensus::{EMPTY_ROOT_HASH, Eip658Value, Header, ReceiptEnvelope, TxReceipt, transaction::Recovered};
use alloy_eips::{
    eip4895::Withdrawals,
    eip7685::Requests,
    eip7928::{BlockAccessList, compute_block_access_list_hash},
};
use alloy_evm::block::BlockExecutionError;
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::B256;
use op_alloy::consensus::L2_TO_L1_MESSAGE_PASSER_ADDRESS;

use crate::{
    abi::CONSOLE,
    chain::{
        Attributes, BlockBody, BlockTotals, ChainReceipt, ChainSpec, ChainTx, Family, GasLeft, GasRefunds, OpFork,
        SealedBlock, Unexecutable, merged_access_list,
    },
    engine::{BlockProgress, BlockResult, ChainExecutor},
    ledger::{OpenBlock, Record, Snapshot},
    meter::Meter,
    pool::BlockSpace,
    state::{AccountChange, LocalWorld, Missed, Overlay, World},
};

/// A snapshot made from another, and the changes of state between them.
#[derive(Debug)]
pub struct Applied {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// The changes, each account once.
    pub changes: Arc<Vec<AccountChange>>,
    /// State of an upstream that was not known. Unless empty, everything else here is invalid.
    pub missed: Missed,
    /// Whether the console of test libraries was called.
    pub calls_console: bool,
}

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
/// what its producer has decided: number, time, fee recipient, randomness, gas limit, base fee, extra data and beacon
/// root. Gas, roots and bloom are computed here.
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

/// Extends the block being built by a sub-block that `fill` fills. Costs what its transactions use and change, whatever
/// the block or the state holds already.
pub fn extend(spec: &ChainSpec, on: &Snapshot, open: &OpenBlock, fill: impl FnOnce(&mut SubBlock<'_>)) -> Applied {
    let mut overlay = Overlay::new(on.world.clone(), on.hashes.clone());
    let mut executor = ChainExecutor::new(spec, &mut overlay, &open.header, None, &[]);
    executor.resume(BlockProgress::of(open));
    executor.refund(open.refunds.clone());
    let max_blob_gas = spec.blob_params(open.header.timestamp).map_or(0, |params| params.max_blob_gas_per_block());
    let mut sub_block = SubBlock { spec, header: &open.header, executor, transactions: Vec::new(), max_blob_gas };
    fill(&mut sub_block);
    let SubBlock { mut executor, transactions, .. } = sub_block;
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

/// Transactions of a block that have run, up to one that needs state which is not known.
#[derive(Debug)]
pub struct Stretch {
    /// The snapshot after the transactions that have run, with the block still open.
    pub snapshot: Snapshot,
    /// Their changes, each account once.
    pub changes: Arc<Vec<AccountChange>>,
    /// The number of transactions that have run.
    pub executed: usize,
    /// The state of an upstream that the transaction after them needs first.
    pub missed: Missed,
    /// The error of the transaction after them, if it is invalid in the block.
    pub failed: Option<BlockExecutionError>,
}

/// Extends the block being built by transactions, as far as the state that they read is known, and not much further than
/// `gas`. What has run need not run again: the rest is executed on the returned snapshot when the missing state is there.
pub fn extend_known(
    spec: &ChainSpec,
    on: &Snapshot,
    open: &OpenBlock,
    transactions: &[Recovered<ChainTx>],
    gas: u64,
) -> Stretch {
    let mut failed = None;
    let mut executed = 0;
    let enough = open.header.gas_used.saturating_add(gas);
    let applied = extend(spec, on, open, |sub_block| {
        for tx in transactions {
            match sub_block.executor.execute_known(tx) {
                Ok(true) => sub_block.transactions.push(tx.clone()),
                Ok(false) => return,
                Err(error) => {
                    failed = Some(error);
                    return;
                }
            }
            executed += 1;
            if sub_block.executor.progress().gas.used() >= enough {
                return;
            }
        }
    });
    let Applied { snapshot, changes, missed, .. } = applied;
    Stretch { snapshot, changes, executed, missed, failed }
}

/// Runs transactions of a block without order or effect, to find the state that they will need: adds what is not known to
/// `missed`, and returns the transactions among `which`, by their indices, that have missed something.
pub fn prefetch(
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
        // The transaction is only looked at: its errors are found when its turn comes.
        let _ = executor.execute(tx);
        let found = executor.overlay().take_missed().state();
        // A native contract stops one transaction, and not those after it.
        executor.overlay().meter = Meter::default();
        if !found.is_empty() {
            still.push(*index);
            missed.extend(found);
        }
    }
    still
}

/// Runs the withdrawals and the system calls that end the block that `on` is building, without effect: adds the state that is not
/// known to `missed`.
pub fn prefetch_end(spec: &ChainSpec, on: &Snapshot, withdrawals: Option<&Withdrawals>, missed: &mut Missed) {
    if let Some(open) = &on.open
        && let Ok(closed) = close(spec, on, open, withdrawals)
    {
        missed.extend(closed.missed.state());
    }
}

/// A sub-block being filled.
pub struct SubBlock<'a> {
    spec: &'a ChainSpec,
    header: &'a Header,
    executor: ChainExecutor<'a>,
    transactions: Vec<Recovered<ChainTx>>,
    max_blob_gas: u64,
}

/// The reason why a bundle does not fit in a sub-block.
#[expect(missing_docs, reason = "the names of the fields say what they hold")]
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
    /// State of an upstream is not known, which the sub-block [has missed](SubBlock::has_missed).
    #[error("transaction {index} of the bundle reads state that is not known")]
    Unknown { index: usize },
}

impl SubBlock<'_> {
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
        let is_known = run_whole(&mut self.executor, &tx)?;
        if is_known {
            self.transactions.push(tx);
        }
        Ok(is_known)
    }

    /// Executes the transactions of a bundle at the end of the sub-block, one after the other, all or none of them. Only
    /// those for which `may_fail` holds may fail, which is to be included without success.
    ///
    /// They run twice: first on a copy of the state, because an executor cannot take a transaction back. That run ends
    /// where `has_time` does not hold.
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

/// Returns an error if there is a reason why a transaction is not executed: presim does not guess.
fn check_executable(why: Option<Unexecutable>) -> Result<(), BlockExecutionError> {
    why.map_or(Ok(()), |why| Err(BlockExecutionError::msg(why)))
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

/// Seals the block being built: withdrawals, requests, roots and hash. Returns the requests too (EIP-7685). Blocks
/// before Shanghai have no `withdrawals`, and ignore them. On an upstream's state, of which only a part is known, the
/// state root is zero.
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
    let Executed { world, changes, missed, receipts, requests, access_list, gas_used, blob_gas_used } =
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
    let changes = Arc::new(changes);
    let snapshot = Snapshot::at_head(world, Arc::new(sealed), hashes).after(on, changes.clone());
    Ok((Applied { snapshot, changes, missed, calls_console: false }, requests))
}

/// Runs what comes after the last transaction of the block that `on` is building: withdrawals and requests. The changes
/// are those of this part alone; receipts, gas and access list are the whole block's.
///
/// # Errors
///
/// Returns a [`BlockExecutionError`] if a system call fails.
pub fn close(
    spec: &ChainSpec,
    on: &Snapshot,
    open: &OpenBlock,
    withdrawals: Option<&Withdrawals>,
) -> Result<Executed, BlockExecutionError> {
    let mut overlay = Overlay::new(on.world.clone(), on.hashes.clone());
    let mut executor = ChainExecutor::new(spec, &mut overlay, &open.header, withdrawals, &[]);
    executor.resume(BlockProgress::of(open));
    let result = executor.finish(open.receipts.iter().cloned());
    let mut executed = Executed::of(overlay, result)?;
    if let Some(last) = executed.access_list.take() {
        let mut parts = open.access_lists.clone();
        parts.push_back(Arc::new(last));
        executed.access_list = merged_access_list(&parts, 0);
    }
    Ok(executed)
}

/// The result of executing a whole block.
#[derive(Debug)]
pub struct Executed {
    /// The state after the block.
    pub world: World,
    /// The changes, each account once.
    pub changes: Vec<AccountChange>,
    /// State of an upstream that was not known. Unless empty, everything else here is invalid.
    pub missed: Missed,
    /// The receipts. Those before Byzantium hold the state root after their transaction.
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
) -> Result<Executed, BlockExecutionError> {
    let mut overlay = Overlay::new(parent.world.clone(), parent.hashes.clone());
    let result = run(spec, &mut overlay, header, transactions, ommers, withdrawals);
    Executed::of(overlay, result)
}

impl Executed {
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

fn run(
    spec: &ChainSpec,
    overlay: &mut Overlay,
    header: &Header,
    transactions: &[Recovered<ChainTx>],
    ommers: &[Header],
    withdrawals: Option<&Withdrawals>,
) -> Result<BlockResult, BlockExecutionError> {
    let refunds = GasRefunds::of_block(spec.has_post_exec(header.timestamp), header.number, transactions)
        .map_err(|(index, broken)| BlockExecutionError::msg(format!("transaction {index}: {broken}")))?;
    let mut executor = ChainExecutor::new(spec, overlay, header, withdrawals, ommers);
    executor.refund(refunds);
    let begun = executor.begin();
    if !executor.overlay().has_missed() {
        begun?;
    }
    let with_roots = spec.family() == Family::Ethereum && !spec.is_byzantium_active_at_block(header.number);
    for tx in transactions {
        match executor.execute(tx) {
            // The following transactions run too, to find what else is missing.
            Err(_) if executor.overlay().has_missed() => continue,
            executed => executed?,
        }
        if with_roots {
            let root = executor.overlay().changed_world().local().map(LocalWorld::state_root);
            if let (Some(root), Some(ChainReceipt::Signed(ReceiptEnvelope::Legacy(receipt)))) =
                (root, executor.receipts_mut().last_mut())
            {
                receipt.receipt.status = Eip658Value::PostState(root);
            }
        }
    }
    executor.finish([])
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
    let changes = Arc::new(changes);
    let snapshot = Snapshot::new(world, on.head.clone(), Some(open), on.hashes.clone());
    Applied { snapshot: snapshot.after(on, changes.clone()), changes, missed, calls_console }
}
