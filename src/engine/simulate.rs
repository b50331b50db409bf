//! `eth_simulateV1` and `presim_simulate`: calls in consecutive blocks, each block with its overrides, and with what the
//! request asks for of its results.

mod calls;
mod outputs;
mod plan;

pub use outputs::{AccountDiff, Asset, CoinbaseIncome, NetChange, TokenInfo, ValueChange};

use std::{borrow::Cow, cmp::Ordering, collections::BTreeMap, sync::Arc};

use alloy_consensus::{Header, TxType};
use alloy_eips::{
    eip2930::AccessList, eip2935::HISTORY_STORAGE_ADDRESS, eip4788::BEACON_ROOTS_ADDRESS, eip4895::Withdrawals,
    eip6110, eip7685::Requests,
};
use alloy_evm::{
    Evm,
    block::{SystemCaller, state_changes::post_block_balance_increments},
};
use alloy_hardforks::EthereumHardforks;
use alloy_op_hardforks::OpHardforks;
use alloy_primitives::{Address, B256, Bytes, Sealable, Sealed, map::AddressMap};
use op_alloy::consensus::L2_TO_L1_MESSAGE_PASSER_ADDRESS;
use op_revm::constants::{BASE_FEE_RECIPIENT, L1_FEE_RECIPIENT, OPERATOR_FEE_RECIPIENT};
use revm::{context::result::HaltReason, database::DatabaseCommitExt};

use self::{
    calls::{BlockCalls, BlockRun, TransactionList},
    outputs::{AssetRecord, Tokens},
    plan::{PlannedBlock, plan},
};
use super::{
    Engine,
    call::{lift_checks, set_blob_base_fee},
    error::SimulationError,
    evm::{Ethereum, FamilyEvm, OpStack, RunEvm},
    fees::ListedTx,
    overrides,
    request::{BaseFeeRule, CallPlace, Outputs, Simulation, SimulationRules},
    trace::{Trace, TraceBudget},
    transfers::{NumberedLog, Transfer},
};
use crate::{
    chain::{Attributes, BlockTotals, ChainSpec, Family, block_size, ordered_roots},
    state::{AccountReads, BlockReads, CodeCache, Overlay, Snapshot, StateRoots, TransferLogs},
};

/// The results of a simulation.
#[derive(Debug, Default)]
pub struct Simulated {
    /// The blocks, in order, as far as they ran.
    pub blocks: Vec<SimulatedBlock>,
    /// The call that did not end as the bundle requires, and with which the run ended.
    pub dropped: Option<CallPlace>,
    /// What the tokens among the [assets](Outputs::ASSETS) say of themselves.
    pub tokens: AddressMap<TokenInfo>,
    /// Gas that the calls used.
    pub gas_used: u64,
}

/// A block that was simulated.
#[derive(Clone, Debug)]
pub struct SimulatedBlock {
    /// Whether the request did not ask for the block, which fills a gap between block numbers.
    pub filler: bool,
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
            Family::Ethereum => self.simulate_on::<Ethereum>(snapshot, simulation),
            Family::OpStack => self.simulate_on::<OpStack>(snapshot, simulation),
        }
    }

    fn simulate_on<F: FamilyEvm>(
        &mut self,
        snapshot: &Snapshot,
        simulation: &Simulation,
    ) -> Result<Simulated, SimulationError> {
        let Self { spec, rules, codes, ref mut overlay } = *self;
        note_plan(simulation, overlay);
        let plan = plan(spec, snapshot, simulation, rules)?;
        let mut simulator = Simulator {
            spec,
            codes,
            rules,
            overlay,
            simulation,
            gas_left: rules.gas_cap,
            parent: Cow::Borrowed(&snapshot.head.header),
            roots: snapshot.world.local().filter(|_| rules.state_roots).map(StateRoots::of),
            begun: false,
            block_reads: BlockReads::empty(),
            traces: TraceBudget::new(rules.max_trace),
            tokens: Tokens::default(),
        };
        let mut blocks = Vec::with_capacity(plan.len());
        let (last, mut asked, mut dropped) = (plan.len().saturating_sub(1), 0, None);
        for (index, planned) in plan.into_iter().enumerate() {
            let place = BlockPlace { asked, is_first: index == 0, is_last: index == last };
            asked += usize::from(!planned.filler);
            let (block, broken) = simulator.block::<F>(planned, place)?;
            blocks.push(block);
            if let Some(call) = broken {
                dropped = Some(CallPlace { block: place.asked, call });
                break;
            }
        }
        let gas_used = rules.gas_cap - simulator.gas_left;
        let (tokens, reads) = (simulator.tokens, simulator.block_reads);
        overlay.note_block(reads);
        Ok(Simulated { blocks, dropped, tokens, gas_used })
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
    }
}

struct Simulator<'a> {
    spec: &'a ChainSpec,
    codes: &'a CodeCache,
    rules: &'a SimulationRules,
    overlay: &'a mut Overlay,
    simulation: &'a Simulation,
    gas_left: u64,
    parent: Cow<'a, Sealed<Header>>,
    /// The tries after the previous block. `None` if no roots are computed.
    roots: Option<StateRoots<'a>>,
    /// Whether any block so far has begun with its system calls.
    begun: bool,
    /// The fields of the first block that have been read so far, or that follow from such.
    block_reads: BlockReads,
    traces: TraceBudget,
    tokens: Tokens,
}

/// The place of a block in its simulation.
#[derive(Clone, Copy, Debug)]
struct BlockPlace {
    /// Its index among the blocks that the request asks for.
    asked: usize,
    is_first: bool,
    is_last: bool,
}

impl Simulator<'_> {
    /// Runs a block. Returns, besides, the index of the call that broke the bundle's conditions, if one did.
    fn block<F: FamilyEvm>(
        &mut self,
        planned: PlannedBlock<'_>,
        place: BlockPlace,
    ) -> Result<(SimulatedBlock, Option<usize>), SimulationError> {
        self.overlay.meter.between_calls()?;
        // The snapshot knows the hashes of the blocks before the first simulated one.
        if let Cow::Owned(simulated) = &self.parent {
            self.overlay.push_hash(simulated.number, simulated.hash());
        }
        let mut header = self.header(&planned);
        let ran = self.run::<F>(&planned, &header, place);
        self.note_fields(&planned, place);
        let mut ran = ran.map_err(|error| {
            // If the meter stopped the run, that is the reason, whatever the EVM's error says.
            self.overlay.meter.stopped().map_or(error, SimulationError::from)
        })?;
        let listing = match ran.listing.take() {
            Some(list) if ran.broken.is_none() => Some(self.listed(&planned, &mut header, &ran, list)),
            _ => None,
        };
        let spec = self.spec;
        let gets_fees = |address: &Address| {
            *address == header.beneficiary
                || spec.family() == Family::OpStack
                    && [L1_FEE_RECIPIENT, BASE_FEE_RECIPIENT, OPERATOR_FEE_RECIPIENT].contains(address)
        };
        let diff = ran.diff.map(|diff| diff.finish(gets_fees));
        for (address, change) in diff.iter().flatten() {
            note_diff(*address, change, self.overlay);
        }
        Ok((
            SimulatedBlock {
                filler: planned.filler,
                calls: ran.calls,
                listing: listing.filter(|_| self.simulation.outputs.contains(Outputs::HEADER)),
                diff,
                assets: ran.assets.map(AssetRecord::finish),
                coinbase: ran.coinbase,
            },
            ran.broken,
        ))
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
            header.withdrawals_root = self.parent.withdrawals_root.or(header.withdrawals_root);
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
        self.parent = Cow::Owned(header.clone());
        let transactions = list.transactions.into_iter().zip(hashes);
        BlockListing {
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
        self.begun |= planned.continues.is_none();
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
        // The fees of a later block follow from the whole header of the one before.
        if !place.is_first && read.intersects(BlockReads::BASE_FEE | BlockReads::BLOB_BASE_FEE) {
            read = BlockReads::all();
        }
        // System calls, which are not recorded, have written the parent's hash and time into these contracts.
        let contracts = [HISTORY_STORAGE_ADDRESS, BEACON_ROOTS_ADDRESS];
        if self.begun && contracts.iter().any(|contract| self.overlay.has_read_code(contract)) {
            read = BlockReads::all();
            if !place.is_first {
                self.overlay.note_everything();
            }
        }
        self.block_reads |= read;
    }

    /// Returns a block's header as it is before the calls run.
    fn header(&self, planned: &PlannedBlock<'_>) -> Header {
        let overrides = &planned.block.block;
        let parent = self.parent.inner();
        let base_fee = overrides.base_fee.map(Some).unwrap_or_else(|| {
            if !self.simulation.validation && self.rules.base_fee == BaseFeeRule::ZeroWhenFree {
                return self.spec.is_london_active_at_block(planned.number).then_some(0);
            }
            match planned.continues {
                Some(open) => open.base_fee_per_gas,
                None => self.spec.next_base_fee(parent, planned.number, planned.time),
            }
        });
        let attributes = Attributes {
            timestamp: planned.time,
            fee_recipient: planned.fee_recipient,
            prev_randao: overrides.prev_randao.unwrap_or_default(),
            beacon_root: planned.beacon_root,
            gas_limit: planned.gas_limit,
        };
        Header {
            difficulty: planned.difficulty,
            base_fee_per_gas: base_fee,
            ..self.spec.next_header(&self.parent, planned.number, attributes)
        }
    }

    fn run<F: FamilyEvm>(
        &mut self,
        planned: &PlannedBlock<'_>,
        header: &Header,
        place: BlockPlace,
    ) -> Result<BlockRun, SimulationError> {
        let Simulation { outputs, validation, trace_transfers, ref when, .. } = *self.simulation;
        let mut env = F::env(self.spec, header);
        let strict = env.cfg_env.clone();
        lift_checks(&mut env);
        env.cfg_env.disable_nonce_check = !validation;
        if let Some(price) = planned.block.block.blob_base_fee {
            set_blob_base_fee(&mut env.block_env, price);
        }
        let precompiles = overrides::apply(&planned.block.state, self.overlay, self.codes, env.cfg_env.spec)?;
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
            available: header.gas_limit.saturating_sub(planned.continues.map_or(0, |open| open.gas_used)),
            continues: planned.continues.is_some(),
        };
        let mut ran = BlockRun::new(planned.block.calls.len(), outputs, lists);
        self.overlay.log_numbers.restart();
        let before = outputs.contains(Outputs::COINBASE).then(|| self.overlay.balance_and_nonce(header.beneficiary).0);
        let mut evm = RunEvm::<F>::new(&mut *self.overlay, env, precompiles).with_transfers(transfers);
        let mut system = SystemCaller::new(self.spec);
        if planned.continues.is_none() {
            unrecorded(&mut evm, |evm| {
                system_call(system.apply_blockhashes_contract_call(header.parent_hash, &mut *evm))?;
                system_call(system.apply_beacon_root_contract_call(header.parent_beacon_block_root, evm))
            })?;
        }

        for (index, call) in planned.block.calls.iter().enumerate() {
            evm.db_mut().meter.between_calls()?;
            let done = match calls.run(call, &mut evm, &mut ran, &mut self.gas_left, &mut self.traces) {
                Ok(done) => done,
                Err(error) => {
                    evm.rest();
                    return Err(error);
                }
            };
            let place = CallPlace { block: place.asked, call: index };
            if when.as_ref().is_some_and(|when| !when.allow(place, done)) {
                ran.broken = Some(index);
                evm.rest();
                return Ok(ran);
            }
        }
        if let Some(before) = before {
            let to = evm.db_mut().balance_and_nonce(header.beneficiary).0;
            ran.coinbase = Some(CoinbaseIncome { fees: ran.fees, balance: ValueChange { from: before, to } });
        }
        if place.is_last && outputs.contains(Outputs::ASSETS) {
            self.tokens = ran.ask_tokens(&mut evm);
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
        Ok(ran)
    }
}

/// Runs system calls without recording what they read. What they write is recorded as read where code reads it.
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
