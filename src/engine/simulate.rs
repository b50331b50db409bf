//! `eth_simulateV1` and `presim_simulate`: calls in consecutive blocks, each block with its overrides, and with what the
//! request asks for of its results.

mod calls;
mod context;
mod outputs;
mod plan;

pub use context::{BlockContext, ContextChange};
pub use outputs::{AccountDiff, Asset, CoinbaseIncome, NetChange, TokenInfo, ValueChange};

use std::{cmp::Ordering, collections::BTreeMap, sync::Arc};

use alloy_consensus::{Header, TxType};
use alloy_eips::{
    eip2930::AccessList, eip2935::HISTORY_STORAGE_ADDRESS, eip4788::BEACON_ROOTS_ADDRESS, eip4895::Withdrawals,
    eip6110, eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS, eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
    eip7685::Requests,
};
use alloy_evm::{
    Evm,
    block::{SystemCaller, state_changes::post_block_balance_increments},
};
use alloy_hardforks::EthereumHardforks;
use alloy_op_hardforks::OpHardforks;
use alloy_primitives::{Address, B256, Bytes, I256, Sealable, Sealed, U256, map::AddressMap};
use op_alloy::consensus::L2_TO_L1_MESSAGE_PASSER_ADDRESS;
use op_revm::constants::{BASE_FEE_RECIPIENT, L1_FEE_RECIPIENT, OPERATOR_FEE_RECIPIENT};
use revm::{context::result::HaltReason, database::DatabaseCommitExt};

use self::{
    calls::{BlockCalls, BlockRun, TransactionList, measure},
    outputs::{AssetRecord, Tokens},
    plan::{PlannedBlock, plan},
};
use super::{
    Engine,
    call::{environment, lift_checks, set_blob_base_fee},
    error::SimulationError,
    evm::{Ethereum, FamilyEvm, OpStack, RunEvm},
    fees::ListedTx,
    overrides,
    precompiles::RunPrecompiles,
    request::{BaseFeeRule, BlockOverrides, CallPlace, Objective, Outputs, Simulation, SimulationRules},
    trace::{Trace, TraceBudget},
    transfers::{NumberedLog, Transfer},
};
use crate::{
    chain::{BASE_TIME, BASE_TIME_SLOT, BlockTotals, ChainSpec, Family, block_size, ordered_roots, timestamp_ms},
    state::{AccountReads, BlockReads, CodeCache, Overlay, SavedOverlay, Snapshot, StateRoots, TransferLogs},
};

/// The results of a simulation.
#[derive(Debug, Default)]
pub struct Simulated {
    /// The blocks, in order, as far as they ran.
    pub blocks: Vec<SimulatedBlock>,
    /// The call that did not end as the bundle requires, and with which the run ended.
    pub dropped: Option<CallPlace>,
    /// The names and decimals of the tokens among the [assets](Outputs::ASSETS).
    pub tokens: AddressMap<TokenInfo>,
    /// Gas that the calls used.
    pub gas_used: u64,
    /// By how much the objective grew, if the request has one.
    pub objective: Option<I256>,
}

/// A block that was simulated.
#[derive(Clone, Debug)]
pub struct SimulatedBlock {
    /// Whether the request did not ask for the block, which fills a gap between block numbers.
    pub filler: bool,
    /// The base fee, wei. Zero before London.
    pub base_fee: u64,
    /// The results of the calls, in order.
    pub calls: Vec<CallResult>,
    /// The block as a chain would have it ([`Outputs::HEADER`]).
    pub listing: Option<BlockListing>,
    /// The changes of the state by the calls ([`Outputs::STATE_DIFF`]).
    pub diff: Option<BTreeMap<Address, AccountDiff>>,
    /// The net changes of accounts' assets ([`Outputs::ASSETS`]).
    pub assets: Option<BTreeMap<Address, BTreeMap<Asset, NetChange>>>,
    /// The producer's income ([`Outputs::COINBASE`]).
    pub coinbase: Option<CoinbaseIncome>,
}

/// A simulated block as a chain would have it.
#[derive(Clone, Debug)]
pub struct BlockListing {
    /// The header. Its state root is zero if none was computed.
    pub header: Sealed<Header>,
    /// The calls as transactions, in order.
    pub transactions: Vec<SimulatedTx>,
    /// The time of the block in milliseconds, where the chain's blocks tell it.
    pub timestamp_ms: Option<u64>,
    /// Withdrawals (EIP-4895). `None` before Shanghai.
    pub withdrawals: Option<Withdrawals>,
    /// Size of the block's RLP, in bytes.
    pub size: usize,
}

/// A call as the transaction that its block lists.
#[derive(Clone, Debug)]
pub struct SimulatedTx {
    /// The sender.
    pub from: Address,
    /// The transaction.
    pub tx: ListedTx,
    /// The hash of the transaction's encoding (EIP-2718).
    pub hash: B256,
}

/// The result of a call.
#[derive(Clone, Debug)]
pub struct CallResult {
    /// The way in which the call ended.
    pub outcome: CallOutcome,
    /// Gas used, after refunds.
    pub gas_used: u64,
    /// Gas used before refunds, or the floor (EIP-7623) if that is higher.
    pub max_used_gas: u64,
    /// The call's output, or the data of its revert.
    pub return_data: Bytes,
    /// Logs, including transfers of the native currency if the request traces them. Empty if the call failed.
    pub logs: Vec<NumberedLog>,
    /// The transfers of the native currency ([`Outputs::TRANSFERS`]). Empty if the call failed.
    pub transfers: Vec<Transfer>,
    /// The accounts and slots that the call accessed ([`Outputs::ACCESS_LIST`]), without those that are always warm.
    pub access_list: Option<AccessList>,
    /// The frames of the call ([`Outputs::TRACE`]).
    pub trace: Option<Arc<Trace>>,
    /// The change of the fee recipient's balance by the call, wei ([`Outputs::COINBASE`]).
    pub income: Option<I256>,
}

/// The way in which a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The call ran to its end.
    Success,
    /// The call reverted. Its return data contains the reason.
    Revert,
    /// The EVM stopped the call.
    Halt(HaltReason),
}

impl Engine<'_> {
    /// Runs `simulation` on `snapshot`, whose state must be under the overlay. A simulated block with the number of the
    /// block being built continues that block, because the calls would land there.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] if a block or a call is refused, or if the meter stopped the run.
    pub fn simulate(&mut self, snapshot: &Snapshot, simulation: &Simulation) -> Result<Simulated, SimulationError> {
        match self.spec.family() {
            Family::Ethereum => self.simulate_from::<Ethereum>(snapshot, simulation, None, None),
            Family::OpStack => self.simulate_from::<OpStack>(snapshot, simulation, None, None),
        }
        .map(|state| state.end(self.rules, simulation))
    }

    /// Runs the beginning of `simulation`, from a shorter beginning if there is one, up to the call at `until`, or up to
    /// the overrides of its block. Returns what [`Engine::resume`] continues from. If the bundle breaks before, this is
    /// its end.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] if a block or a call is refused, or if the meter stopped the run.
    pub fn begin(
        &mut self,
        snapshot: &Snapshot,
        simulation: &Simulation,
        from: Option<&Beginning>,
        until: Until,
    ) -> Result<Beginning, SimulationError> {
        if let Some(from) = from {
            if from.progress.dropped.is_some() {
                return Ok(from.clone());
            }
            self.overlay.restore(&from.overlay);
        }
        let progress = match self.spec.family() {
            Family::Ethereum => self.simulate_from::<Ethereum>(snapshot, simulation, from, Some(until)),
            Family::OpStack => self.simulate_from::<OpStack>(snapshot, simulation, from, Some(until)),
        }?;
        Ok(Beginning { overlay: self.overlay.save(), progress })
    }

    /// Runs the rest of `simulation`, whose beginning is that of the simulation that has made `beginning` on the same
    /// snapshot. The results are those of a run from the start.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] if a block or a call is refused, or if the meter stopped the run.
    pub fn resume(
        &mut self,
        snapshot: &Snapshot,
        simulation: &Simulation,
        beginning: &Beginning,
    ) -> Result<Simulated, SimulationError> {
        self.overlay.restore(&beginning.overlay);
        let done = match self.spec.family() {
            _ if beginning.progress.dropped.is_some() => {
                return Ok(beginning.progress.clone().end(self.rules, simulation));
            }
            Family::Ethereum => self.simulate_from::<Ethereum>(snapshot, simulation, Some(beginning), None),
            Family::OpStack => self.simulate_from::<OpStack>(snapshot, simulation, Some(beginning), None),
        };
        done.map(|state| state.end(self.rules, simulation))
    }

    /// Asks a contract for the symbol and the decimals of its token, on the state under the overlay and in the block of
    /// `header`. What the contract does not tell in time is `None`.
    pub fn token_info(&mut self, header: &Header, token: Address) -> TokenInfo {
        match self.spec.family() {
            Family::Ethereum => self.token_info_on::<Ethereum>(header, token),
            Family::OpStack => self.token_info_on::<OpStack>(header, token),
        }
    }

    fn token_info_on<F: FamilyEvm>(&mut self, header: &Header, token: Address) -> TokenInfo {
        let mut env = environment::<F>(self.spec, header, &BlockOverrides::default());
        lift_checks(&mut env);
        let precompiles = RunPrecompiles::of(self.spec, env.cfg_env.spec);
        let mut evm = RunEvm::<F>::new(self.overlay, env, precompiles);
        let info = calls::token_info(token, &mut evm);
        evm.rest();
        info
    }

    fn simulate_from<F: FamilyEvm>(
        &mut self,
        snapshot: &Snapshot,
        simulation: &Simulation,
        from: Option<&Beginning>,
        until: Option<Until>,
    ) -> Result<RunProgress, SimulationError> {
        let Self { spec, rules, codes, ref mut overlay } = *self;
        note_plan(simulation, overlay);
        let plan = plan(spec, snapshot, simulation, rules)?;
        if let [first, _, ..] = plan.as_slice()
            && spec.changes_after(first.number, first.time)
        {
            // A later block may be the first of a fork.
            overlay.note_block(BlockReads::NUMBER | BlockReads::TIMESTAMP);
        }
        let mut simulator = Simulator {
            spec,
            codes,
            rules,
            overlay,
            simulation,
            state: from.map_or_else(|| RunProgress::new(rules), |from| from.progress.clone()),
            parent: &snapshot.head.header,
            roots: snapshot.world.local().filter(|_| rules.state_roots).map(StateRoots::of),
        };
        let ran = simulator.blocks::<F>(plan, until);
        let state = simulator.state;
        // The causes of an error are read, too.
        if !matches!(ran, Ok(BlockEnd::Paused)) {
            overlay.note_block(state.block_reads);
        }
        ran.map(|_| state)
    }
}

/// The place up to which a simulation's beginning runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Up to a block, without its overrides. The block is named by its index in the request.
    Overrides(usize),
    /// Up to a call.
    Call(CallPlace),
}

impl Until {
    const fn block(self) -> usize {
        match self {
            Self::Overrides(block) => block,
            Self::Call(place) => place.block,
        }
    }
}

/// The beginning of a simulation, which several simulations continue.
#[derive(Clone, Debug)]
pub struct Beginning {
    overlay: SavedOverlay,
    progress: RunProgress,
}

impl Beginning {
    /// Returns about how many bytes it takes, without the snapshot's state.
    pub fn size(&self) -> usize {
        let calls = self.progress.run.iter().flat_map(|run| &run.calls);
        let blocks = self.progress.blocks.iter().flat_map(|block| &block.calls);
        let call = |call: &CallResult| {
            let logs = call.logs.iter().map(|log| 256 + log.log.data.data.len());
            size_of::<CallResult>() + call.return_data.len() + logs.sum::<usize>()
        };
        self.overlay.size() + size_of::<Self>() + calls.chain(blocks).map(call).sum::<usize>()
    }
}

/// The progress of a simulation, besides the state in the overlay.
#[derive(Clone, Debug)]
struct RunProgress {
    /// The index of the planned block that runs.
    index: usize,
    /// The blocks that have run.
    blocks: Vec<SimulatedBlock>,
    /// The calls of the current block so far, if it has begun.
    run: Option<BlockRun>,
    /// The header of the simulated block before the current one.
    parent: Option<Sealed<Header>>,
    gas_left: u64,
    /// Whether any block so far has begun with its system calls.
    begun: bool,
    /// The fields of the first block that have been read so far, or that follow from such.
    block_reads: BlockReads,
    traces: TraceBudget,
    /// The objective before the first call.
    before: U256,
    /// By how much the objective has grown.
    gained: I256,
    tokens: Tokens,
    /// The call that broke the bundle.
    dropped: Option<CallPlace>,
}

impl RunProgress {
    fn new(rules: &SimulationRules) -> Self {
        Self {
            index: 0,
            blocks: Vec::new(),
            run: None,
            parent: None,
            gas_left: rules.gas_cap,
            begun: false,
            block_reads: BlockReads::empty(),
            traces: TraceBudget::new(rules.max_trace),
            before: U256::ZERO,
            gained: I256::ZERO,
            tokens: Tokens::default(),
            dropped: None,
        }
    }

    /// Returns the results of a run that has come to its end.
    fn end(self, rules: &SimulationRules, simulation: &Simulation) -> Simulated {
        Simulated {
            blocks: self.blocks,
            dropped: self.dropped,
            tokens: self.tokens,
            gas_used: rules.gas_cap - self.gas_left,
            objective: simulation.objective.map(|_| self.gained),
        }
    }
}

/// Records what the plan of a simulation reads, besides what its calls do.
fn note_plan(simulation: &Simulation, overlay: &mut Overlay) {
    if simulation.outputs.contains(Outputs::HEADER) {
        overlay.note_everything();
    }
    for block in &simulation.blocks {
        // A block that is set must come after the snapshot's, and the gap between the two is filled.
        if block.block.number.is_some() {
            overlay.note_block(BlockReads::NUMBER);
        }
        if block.block.time.is_some() {
            overlay.note_block(BlockReads::TIMESTAMP);
        }
        // System calls, which are not recorded, run in the accounts as they are overridden.
        if block.state.iter().any(|(address, _)| BEFORE_CALLS.contains(address) || AFTER_CALLS.contains(address)) {
            overlay.note_everything();
        }
    }
}

/// The contracts that are written before the calls of a block.
const BEFORE_CALLS: [Address; 3] = [HISTORY_STORAGE_ADDRESS, BEACON_ROOTS_ADDRESS, BASE_TIME];
/// The contracts that system calls run after the calls of a block, if another block follows.
const AFTER_CALLS: [Address; 2] = [WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS, CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS];

struct Simulator<'a> {
    spec: &'a ChainSpec,
    codes: &'a CodeCache,
    rules: &'a SimulationRules,
    overlay: &'a mut Overlay,
    simulation: &'a Simulation,
    state: RunProgress,
    /// The header of the snapshot's head.
    parent: &'a Sealed<Header>,
    /// The tries after the previous block. `None` if no roots are computed.
    roots: Option<StateRoots<'a>>,
}

/// The end of a block's run.
enum BlockEnd {
    /// The block is complete.
    Done,
    /// The run has come to the place up to which it was asked for.
    Paused,
    /// The call with this index did not end as the bundle requires.
    Broken(usize),
}

/// The place of a block in its simulation.
#[derive(Clone, Copy, Debug)]
struct BlockPlace {
    /// The block's index among those that the request asks for.
    asked: usize,
    is_first: bool,
    is_last: bool,
}

impl Simulator<'_> {
    /// Runs the blocks, up to `until`.
    fn blocks<F: FamilyEvm>(
        &mut self,
        plan: Vec<PlannedBlock<'_>>,
        until: Option<Until>,
    ) -> Result<BlockEnd, SimulationError> {
        let last = plan.len().saturating_sub(1);
        // The tries after a block are not saved, so where roots are computed, only the first block's beginning is shared.
        let begins_later = |until: &Until| {
            let mut asked = plan.iter().enumerate().filter(|(_, planned)| !planned.filler);
            asked.nth(until.block()).is_some_and(|(index, _)| index > 0)
        };
        if self.roots.is_some() && until.as_ref().is_some_and(begins_later) {
            return Ok(BlockEnd::Paused);
        }
        let mut asked = plan.iter().take(self.state.index).filter(|planned| !planned.filler).count();
        for (index, planned) in plan.into_iter().enumerate().skip(self.state.index) {
            let place = BlockPlace { asked, is_first: index == 0, is_last: index == last };
            asked += usize::from(!planned.filler);
            self.state.index = index;
            let end = until.filter(|until| until.block() == place.asked && !planned.filler);
            if end == Some(Until::Overrides(place.asked)) {
                return Ok(BlockEnd::Paused);
            }
            match self.block::<F>(planned, place, end)? {
                BlockEnd::Done => {}
                BlockEnd::Paused => return Ok(BlockEnd::Paused),
                BlockEnd::Broken(call) => {
                    self.state.dropped = Some(CallPlace { block: place.asked, call });
                    return Ok(BlockEnd::Broken(call));
                }
            }
        }
        Ok(BlockEnd::Done)
    }

    /// Runs a block, or what is left of it, up to `until`.
    fn block<F: FamilyEvm>(
        &mut self,
        planned: PlannedBlock<'_>,
        place: BlockPlace,
        until: Option<Until>,
    ) -> Result<BlockEnd, SimulationError> {
        self.overlay.meter.between_calls()?;
        // The snapshot knows the hashes of the blocks before the first simulated one.
        if let Some(simulated) = self.state.parent.as_ref().filter(|_| self.state.run.is_none()) {
            self.overlay.push_hash(simulated.number, simulated.hash());
        }
        let mut header = self.header(&planned);
        let ran = self.run::<F>(&planned, &header, place, until);
        self.note_fields(&planned, place);
        let (mut ran, end) = ran.map_err(|error| {
            // If the meter stopped the run, that is the reason, whatever the EVM's error says.
            self.overlay.meter.stopped().map_or(error, SimulationError::from)
        })?;
        if matches!(end, BlockEnd::Paused) {
            self.state.run = Some(ran);
            return Ok(end);
        }
        let listing = match ran.listing.take() {
            Some(list) if matches!(end, BlockEnd::Done) => Some(self.listed(&planned, &mut header, &ran, list)),
            _ => None,
        };
        let gets_fees = |address: &Address| {
            *address == header.beneficiary
                || F::HAS_VAULTS && [L1_FEE_RECIPIENT, BASE_FEE_RECIPIENT, OPERATOR_FEE_RECIPIENT].contains(address)
        };
        if !ran.fees.is_zero() && self.simulation.outputs.intersects(Outputs::STATE_DIFF | Outputs::COINBASE) {
            // The outputs show what the fees add to a balance, which is less where that would overflow.
            self.overlay.note_account(header.beneficiary, AccountReads::EXISTENCE);
            if ran.diff.is_some() && planned.block.block.fee_recipient.is_none() {
                self.state.block_reads |= BlockReads::FEE_RECIPIENT;
            }
        }
        let diff = ran.diff.map(|diff| diff.finish(gets_fees));
        if diff.as_ref().is_some_and(|diff| diff.contains_key(&header.beneficiary))
            && planned.block.block.fee_recipient.is_none()
        {
            self.state.block_reads |= BlockReads::FEE_RECIPIENT;
        }
        for (address, change) in diff.iter().flatten() {
            note_diff(*address, change, self.overlay);
        }
        let outputs = self.simulation.outputs;
        self.state.blocks.push(SimulatedBlock {
            filler: planned.filler,
            base_fee: header.base_fee_per_gas.unwrap_or_default(),
            calls: ran.calls,
            listing: listing.filter(|_| outputs.contains(Outputs::HEADER)),
            diff,
            assets: ran.assets.map(AssetRecord::finish),
            coinbase: ran.coinbase.filter(|_| outputs.contains(Outputs::COINBASE)),
        });
        Ok(end)
    }

    /// Completes the header of a block that ran, and returns the block as a chain would have it. The next block builds
    /// on it.
    fn listed(
        &mut self,
        planned: &PlannedBlock<'_>,
        header: &mut Header,
        ran: &BlockRun,
        list: TransactionList,
    ) -> BlockListing {
        header.requests_hash = list.requests.as_ref().map(Requests::requests_hash);
        let transactions: Vec<&[u8]> = list.transactions.iter().map(|(_, tx)| tx.encoded.as_slice()).collect();
        let receipts: Vec<&[u8]> = list.receipts.iter().map(Vec::as_slice).collect();
        let ([transactions_root, receipts_root], hashes) = ordered_roots([&transactions, &receipts], &transactions);
        BlockTotals {
            gas_used: ran.gas_used,
            blob_gas_used: ran.blob_gas_used,
            transactions_root,
            receipts_root,
            logs_bloom: list.bloom,
        }
        .close(header);

        let withdrawals = self
            .spec
            .is_shanghai_active_at_timestamp(planned.time)
            .then(|| planned.block.block.withdrawals.clone().unwrap_or_default());
        header.withdrawals_root =
            withdrawals.as_ref().map(|list| alloy_consensus::proofs::calculate_withdrawals_root(list));
        // Since Isthmus, this proves withdrawals to L1 (<https://specs.optimism.io/protocol/isthmus/exec-engine.html>).
        let proves_messages = self.spec.is_isthmus_active_at_timestamp(planned.time);
        if proves_messages {
            // If no root is computed, the parent's stays.
            header.withdrawals_root = self.parent().withdrawals_root.or(header.withdrawals_root);
        }
        if let Some(roots) = &mut self.roots {
            header.state_root = roots.after(self.overlay.changes());
            if proves_messages {
                header.withdrawals_root = Some(roots.storage_root_of(L2_TO_L1_MESSAGE_PASSER_ADDRESS));
            }
            // From here on, the overlay reports only the next block's changes.
            self.overlay.settle();
        }
        let sizes = list.transactions.iter().map(|(_, tx)| (tx.encoded.len(), tx.tx.tx_type() == TxType::Legacy));
        let size = block_size(header, sizes, &[], withdrawals.as_ref().map(|list| list.as_slice()));
        let header = header.clone().seal_slow();
        self.state.parent = Some(header.clone());
        let transactions = list.transactions.into_iter().zip(hashes);
        BlockListing {
            timestamp_ms: planned.millis.map(|millis| timestamp_ms(planned.time, millis)),
            header,
            transactions: transactions.map(|((from, tx), hash)| SimulatedTx { from, tx, hash }).collect(),
            withdrawals,
            size,
        }
    }

    /// Converts the fields that a block's calls have read to those of the first block from which they follow.
    fn note_fields(&mut self, planned: &PlannedBlock<'_>, place: BlockPlace) {
        if !self.overlay.records_reads() {
            return;
        }
        self.state.begun |= planned.continues.is_none();
        let mut read = self.overlay.take_block_reads();
        let set = &planned.block.block;
        for (is_set, field) in [
            (set.gas_limit.is_some(), BlockReads::GAS_LIMIT),
            (set.fee_recipient.is_some(), BlockReads::FEE_RECIPIENT),
            (set.prev_randao.is_some(), BlockReads::PREV_RANDAO),
            (set.base_fee.is_some(), BlockReads::BASE_FEE),
            (set.blob_base_fee.is_some(), BlockReads::BLOB_BASE_FEE),
        ] {
            read.set(field, read.contains(field) && !is_set);
        }
        let fees = BlockReads::BASE_FEE | BlockReads::BLOB_BASE_FEE;
        if read.intersects(fees) {
            if !place.is_first {
                // The fees follow from the header of the block before, whose gas is that of the calls alone.
                read |= BlockReads::NUMBER | BlockReads::TIMESTAMP | BlockReads::GAS_LIMIT | BlockReads::HEADER | fees;
            } else if set.time.is_some() {
                // The fees follow from the parent by the rules of this time.
                read |= BlockReads::HEADER;
            }
        }
        // Writes that are not recorded have changed these contracts: before the calls the parent's hash and the block's
        // time, and after the calls what follows from requests.
        let has_accessed = |contract: &Address| self.overlay.has_accessed(contract);
        if self.state.begun && BEFORE_CALLS.iter().any(has_accessed) {
            read = BlockReads::all();
        }
        let follows = !place.is_first
            && (self.state.begun && BEFORE_CALLS.iter().any(has_accessed) || AFTER_CALLS.iter().any(has_accessed));
        if follows {
            self.overlay.note_everything();
        }
        self.state.block_reads |= read;
    }

    /// Returns the header of the block before the current one.
    fn parent(&self) -> &Sealed<Header> {
        self.state.parent.as_ref().unwrap_or(self.parent)
    }

    /// Returns a block's header as it is before the calls run.
    fn header(&self, planned: &PlannedBlock<'_>) -> Header {
        let has_free_base_fee = !self.simulation.validation && self.rules.base_fee == BaseFeeRule::ZeroWhenFree;
        let header = planned.header(self.spec, self.parent());
        match (planned.block.block.base_fee, header.base_fee_per_gas) {
            (None, Some(_)) if has_free_base_fee => Header { base_fee_per_gas: Some(0), ..header },
            _ => header,
        }
    }

    fn run<F: FamilyEvm>(
        &mut self,
        planned: &PlannedBlock<'_>,
        header: &Header,
        place: BlockPlace,
        until: Option<Until>,
    ) -> Result<(BlockRun, BlockEnd), SimulationError> {
        let Simulation { outputs, validation, trace_transfers, ref when, objective, .. } = *self.simulation;
        let mut env = F::env(self.spec, header);
        let strict = env.cfg_env.clone();
        lift_checks(&mut env);
        env.cfg_env.disable_nonce_check = !validation;
        if let Some(price) = planned.block.block.blob_base_fee {
            set_blob_base_fee(&mut env.block_env, price);
        }
        let begun = self.state.run.take();
        let precompiles = match begun {
            Some(_) => overrides::precompiles(&planned.block.state, self.spec, env.cfg_env.spec)?,
            None => overrides::apply(&planned.block.state, self.overlay, self.codes, self.spec, env.cfg_env.spec)?,
        };
        // The block's hash is needed where it is shown, and where a later block follows from it.
        let lists = outputs.contains(Outputs::HEADER) || !place.is_last;
        let shows_transfers = outputs.intersects(Outputs::TRANSFERS | Outputs::ASSETS);
        let transfers = match (trace_transfers, shows_transfers) {
            (true, _) => TransferLogs::Numbered,
            (false, true) => TransferLogs::Aside,
            (false, false) => TransferLogs::Hidden,
        };
        let calls = BlockCalls {
            spec: self.spec,
            simulation: self.simulation,
            strict,
            market: self.spec.is_market(&env),
            base_fee: header.base_fee_per_gas.unwrap_or_default(),
            blob_base_fee: env.block_env.blob_excess_gas_and_price.map_or(0, |blob| blob.blob_gasprice),
            fee_recipient: header.beneficiary,
            // The gas that the block being built has used is not available. `gasUsed` counts only the simulated calls.
            available: header.gas_limit.saturating_sub(planned.continues.map_or(0, |open| open.header.gas_used)),
            blob_gas: (
                self.spec.blob_params(header.timestamp).map_or(0, |params| params.max_blob_gas_per_block()),
                planned.continues.map_or(0, |open| open.blob_gas_used),
            ),
            continues: planned.continues.is_some(),
            sets_gas_limit: planned.block.block.gas_limit.is_some(),
        };
        let counts_income = outputs.contains(Outputs::COINBASE) || objective == Some(Objective::Coinbase);
        let is_new = begun.is_none();
        if is_new {
            self.overlay.log_numbers.restart();
        }
        let mut ran = begun.unwrap_or_else(|| BlockRun {
            producer_had: counts_income.then(|| {
                if F::HAS_VAULTS {
                    // A vault that is the fee recipient gets more than the producer's fees.
                    self.overlay.note_block(BlockReads::FEE_RECIPIENT);
                }
                self.overlay.balance_and_nonce(header.beneficiary).0
            }),
            ..BlockRun::new(planned.block.calls.len(), outputs, lists)
        });
        let mut evm = RunEvm::<F>::new(&mut *self.overlay, env, precompiles).with_transfers(transfers);
        let mut system = SystemCaller::new(self.spec);
        if is_new && planned.continues.is_none() {
            unrecorded(&mut evm, |evm| {
                system_call(system.apply_blockhashes_contract_call(header.parent_hash, &mut *evm))?;
                system_call(system.apply_beacon_root_contract_call(header.parent_beacon_block_root, evm))
            })?;
            // The block's deposit would have set them.
            if let Some(millis) = planned.millis {
                evm.db_mut().set_slot(BASE_TIME, BASE_TIME_SLOT, U256::from(millis));
            }
        }
        if let Some(objective) = objective.filter(|_| is_new && place.asked == 0 && !planned.filler) {
            self.state.before = measure(objective, &mut evm)?;
        }

        for (index, call) in planned.block.calls.iter().enumerate().skip(ran.calls.len()) {
            let place = CallPlace { block: place.asked, call: index };
            if until == Some(Until::Call(place)) {
                evm.rest();
                return Ok((ran, BlockEnd::Paused));
            }
            evm.db_mut().meter.between_calls()?;
            let RunProgress { gas_left, traces, .. } = &mut self.state;
            let done = match calls.run(call, &mut evm, &mut ran, gas_left, traces) {
                Ok(done) => done,
                Err(error) => {
                    evm.rest();
                    return Err(error);
                }
            };
            if when.as_ref().is_some_and(|when| !when.allow(place, done)) {
                evm.rest();
                return Ok((ran, BlockEnd::Broken(index)));
            }
        }
        if matches!(until, Some(Until::Call(_))) {
            evm.rest();
            return Ok((ran, BlockEnd::Paused));
        }
        if let Some(from) = ran.producer_had {
            let to = evm.db_mut().balance_and_nonce(header.beneficiary).0;
            let income = CoinbaseIncome { fees: ran.fees, balance: ValueChange { from, to } };
            if objective == Some(Objective::Coinbase) {
                self.state.gained = self.state.gained.saturating_add(difference(from, to));
            }
            ran.coinbase = Some(income);
        }
        if let Some(objective) = objective.filter(|objective| place.is_last && *objective != Objective::Coinbase) {
            self.state.gained = difference(self.state.before, measure(objective, &mut evm)?);
        }
        if place.is_last && outputs.contains(Outputs::ASSETS) {
            self.state.tokens = ran.ask_tokens(&mut evm);
        }

        if let Some(list) = &mut ran.listing
            && self.spec.is_prague_active_at_timestamp(header.timestamp)
        {
            let mut requests = Requests::default();
            if !list.deposits.is_empty() {
                requests.push_request_with_type(eip6110::DEPOSIT_REQUEST_TYPE, std::mem::take(&mut list.deposits));
            }
            // The OP stack has no requests: their list is empty.
            if self.spec.family() == Family::Ethereum {
                unrecorded(&mut evm, |evm| system_call(system.append_post_execution_changes(evm, &mut requests)))?;
            }
            list.requests = Some(requests);
        }
        let increments = post_block_balance_increments::<Header>(
            self.spec,
            evm.block(),
            &[],
            planned.block.block.withdrawals.as_deref().map(Vec::as_slice),
        );
        let Ok(()) = evm.rest().increment_balances(increments);
        Ok((ran, BlockEnd::Done))
    }
}

/// Returns by how much a value grows. A difference that is too large stays at the limit.
fn difference(from: U256, to: U256) -> I256 {
    let signed = |value: U256| I256::try_from(value).unwrap_or(I256::MAX);
    if to >= from { signed(to - from) } else { -signed(from - to) }
}

/// Runs system calls without recording what they read. What they write is recorded as read where code reads it. Their
/// contracts are those of their EIPs, whose code never changes.
fn unrecorded<F: FamilyEvm, T>(evm: &mut RunEvm<'_, F>, run: impl FnOnce(&mut RunEvm<'_, F>) -> T) -> T {
    let records = evm.db().records_reads();
    evm.db_mut().record_reads(false);
    let done = run(evm);
    evm.db_mut().record_reads(records);
    done
}

/// Records that an output shows the account's change.
fn note_diff(address: Address, diff: &AccountDiff, overlay: &mut Overlay) {
    let (from, to) = (diff.info.from.clone().unwrap_or_default(), diff.info.to.clone().unwrap_or_default());
    let mut parts = AccountReads::empty();
    parts.set(AccountReads::BALANCE, from.balance != to.balance && !diff.gets_fees);
    parts.set(AccountReads::NONCE, from.nonce != to.nonce);
    parts.set(AccountReads::CODE, from.code_hash != to.code_hash);
    if !parts.is_empty() {
        overlay.note_account(address, parts);
    }
}

/// Checks a call's nonce before its fees, which is geth's order; revm checks fees first. The largest nonce is invalid
/// (EIP-2681).
fn check_nonce(address: Address, tx: u64, state: u64) -> Result<(), SimulationError> {
    match tx.cmp(&state) {
        Ordering::Less => Err(SimulationError::NonceTooLow { address, tx, state }),
        Ordering::Greater => Err(SimulationError::NonceTooHigh { address, tx, state }),
        Ordering::Equal if state == u64::MAX => {
            Err(SimulationError::Invalid(format!("nonce has max value: address {address}, nonce: {state}")))
        }
        Ordering::Equal => Ok(()),
    }
}

fn system_call<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<T, SimulationError> {
    result.map_err(|error| SimulationError::Refused(format!("system call: {error}")))
}
