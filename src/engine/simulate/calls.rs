//! The run of a block's calls: how each is filled in and executed, and which parts of its result are retained.

use std::{cmp::Ordering, convert::Infallible};

use alloy_consensus::{
    Header, Receipt, ReceiptWithBloom, Transaction as _, TxEnvelope, TxType,
    transaction::{Recovered, TransactionInfo},
};
use alloy_eips::{
    eip2930::AccessList, eip4844::DATA_GAS_PER_BLOB, eip6110::MAINNET_DEPOSIT_CONTRACT_ADDRESS, eip7685::Requests,
    eip7928::BlockAccessList,
};
use alloy_evm::{
    Evm, EvmEnv, FromRecoveredTx,
    block::BlockValidationError,
    eth::{eip6110, spec::EthExecutorSpec},
};
use alloy_primitives::{Address, Bloom, Bytes, Log, TxKind, U256, logs_bloom};
use alloy_rlp::Encodable;
use revm::{
    DatabaseCommit,
    context::{
        BlockEnv, CfgEnv, Transaction,
        result::{EVMError, ExecutionResult, ResultGas},
    },
    state::EvmState,
};

use super::{
    outputs::{AssetRecord, CoinbaseIncome, DestroyedAccount, DiffRecord, difference},
    plan::{CallRules, PlannedBlock},
    results::{CallOutcome, CallResult},
};
use crate::{
    chain::{BlockGas, GasLeft},
    engine::{
        access_list::AccessRecorder,
        call::waive_fees,
        error::{SimulationError, explain},
        evm::{FamilyEvm, RunEvm, TxSetup, inspect},
        fees::{
            FilledCall, ListedTx, check_blob_gas, check_blob_type, check_chain, check_signer_chain, tx_env, unsigned_tx,
        },
        recorder::trace,
        request::{Call, Outputs, SimCall, Simulation, SimulationRules},
        system_calls,
        trace::{Trace, TraceBudget, Tracer},
        transfers::{NumberedLog, Transfer},
    },
    state::{AccountReads, BlockReads, LogMark, LogOrigin, Overlay},
};

/// The facts that the calls of a block share.
pub(super) struct BlockCalls<'a, F: FamilyEvm> {
    pub simulation: &'a Simulation,
    /// The checks of signed transactions.
    pub strict: CfgEnv<F::Spec>,
    /// Whether the block has a base fee.
    pub market: bool,
    pub base_fee: u64,
    pub blob_base_fee: u128,
    /// The rules of the node and the dialect.
    pub rules: &'a SimulationRules,
    pub planned: &'a PlannedBlock<'a>,
    /// The block as calls see it, if each may see other fees.
    pub block: Option<BlockEnv>,
    /// Gas of the block for simulated calls, and how much was used before them.
    pub available: GasLeft,
    pub used_before: BlockGas,
    /// The block's header before the calls.
    pub header: &'a Header,
    /// Blob gas that the block may have, and that it had before the simulated calls.
    pub blob_gas: (u64, u64),
}

/// The results of a block's calls so far, and the values that its header needs.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockRun {
    pub calls: Vec<CallResult>,
    /// Gas that the calls have used by their receipts.
    pub gas_used: u64,
    /// Gas that the calls have used of the block's.
    pub block_gas: BlockGas,
    pub blob_gas_used: u64,
    /// The producer's fees for gas, without the base fee, wei.
    pub fees: U256,
    /// `None` if neither the request nor a later block needs the block's hash.
    pub listing: Option<TransactionList>,
    pub diff: Option<DiffRecord>,
    pub assets: Option<AssetRecord>,
    /// The fee recipient's balance before the calls, if the producer's income is requested.
    pub producer_had: Option<U256>,
    pub coinbase: Option<CoinbaseIncome>,
}

/// The transactions of a block with their receipts.
#[derive(Clone, Debug, Default)]
pub(super) struct TransactionList {
    pub transactions: Vec<(Address, ListedTx)>,
    /// The encoded receipts (EIP-2718).
    pub receipts: Vec<Vec<u8>>,
    pub bloom: Bloom,
    /// The deposit requests in the logs (EIP-6110).
    pub deposits: Vec<u8>,
    pub requests: Option<Requests>,
    /// The accesses of the block (EIP-7928). `None` before Amsterdam.
    pub access_list: Option<BlockAccessList>,
}

/// A call that was executed.
struct ExecutedCall {
    result: ExecutionResult,
    trace: Option<Trace>,
    access_list: Option<AccessList>,
    /// The accounts that the call destroyed, if assets are requested.
    destroyed: Vec<DestroyedAccount>,
    listed: Option<ListedTx>,
    /// The price of gas that the producer gets, wei.
    tip: u128,
    blobs: usize,
}

impl<F: FamilyEvm> BlockCalls<'_, F> {
    /// Runs a call, and adds its result to `ran`. Returns whether the call succeeded. `gas_left` is the gas that the
    /// whole request has left.
    pub fn run(
        &self,
        call: &SimCall,
        evm: &mut RunEvm<'_, F>,
        ran: &mut BlockRun,
        gas_left: &mut u64,
        (tracer, traces): (Option<&Tracer>, &mut TraceBudget),
    ) -> Result<bool, SimulationError> {
        let counts_income = self.simulation.outputs.contains(Outputs::COINBASE);
        let had = counts_income.then(|| evm.db_mut().balance_and_nonce(self.header.beneficiary).0);
        let executed = match call {
            SimCall::Unsigned(call) => self.unsigned(call, evm, ran, *gas_left, (tracer, traces))?,
            SimCall::Signed(tx) => self.signed(tx, evm, ran, *gas_left, (tracer, traces))?,
        };
        let income = had.map(|had| difference(had, evm.db_mut().balance_and_nonce(self.header.beneficiary).0));
        let marks = evm.db().log_numbers.marks(executed.result.logs().len());
        let result = ran.add(executed, call.sender(), marks, self).map_err(system_calls::refused)?;
        let result = CallResult { income, ..result };
        *gas_left = gas_left.saturating_sub(result.gas_used);
        let success = result.outcome == CallOutcome::Success;
        ran.calls.push(result);
        Ok(success)
    }

    fn unsigned(
        &self,
        call: &Call,
        evm: &mut RunEvm<'_, F>,
        ran: &mut BlockRun,
        gas_left: u64,
        traces: (Option<&Tracer>, &mut TraceBudget),
    ) -> Result<ExecutedCall, SimulationError> {
        let validation = self.simulation.validation;
        let is_alone = self.block.is_some();
        check_chain(call, self.planned.spec)?;
        let gas = match is_alone {
            true => self.capped_gas(call.gas, gas_left)?,
            false => self.gas(call.gas, ran.block_gas, gas_left, evm.db_mut())?,
        };
        let filled = FilledCall {
            gas,
            nonce: call.nonce.unwrap_or_else(|| evm.db_mut().balance_and_nonce(call.from).1),
            chain_id: self.planned.spec.chain_id(),
            market: self.market,
        };
        let listed = ran.listing.is_some().then(|| unsigned_tx(call, filled)).transpose()?;
        let mut tx = tx_env(call, filled);
        if validation {
            check_nonce(call.from, tx.nonce, evm.db_mut())?;
        } else {
            // Nonces are not checked here, and revm rejects a nonce of `u64::MAX`.
            tx.nonce = tx.nonce.min(u64::MAX - 1);
            if tx.max_fee_per_blob_gas == 0 && !is_alone {
                tx.max_fee_per_blob_gas = self.blob_base_fee;
            }
        }
        let wraps = !validation
            && !is_alone
            && matches!(call.to, TxKind::Call(_))
            && evm.db_mut().balance_and_nonce(call.from).1 == u64::MAX;
        let pays_nothing = !validation && call.fees.is_free();
        evm.cfg_mut().disable_base_fee = pays_nothing;
        if let Some(block) = &self.block {
            let mut block = block.clone();
            waive_fees(call, self.rules.base_fee, &mut block);
            *evm.block_mut() = block;
        }
        self.note_fees(!pays_nothing, call.blob_hashes.is_some(), evm.db_mut());
        let tip = tip(&tx, self.base_fee);
        let blobs = call.blob_hashes.as_ref().map_or(0, Vec::len);
        let explain = |error, overlay: &mut Overlay| explain(error, call.named(), self.base_fee, overlay);
        let executed = self.execute((tx.into(), Some(F::waived())), evm, ran, traces, explain)?;
        if wraps {
            // Without validation, the account's nonce wraps around, as in geth.
            evm.db_mut().set(call.from, None, Some(0), None);
        }
        Ok(ExecutedCall { listed, tip, blobs, ..executed })
    }

    /// Runs a signed transaction, which can land only if the chain's checks allow it.
    fn signed(
        &self,
        tx: &Recovered<TxEnvelope>,
        evm: &mut RunEvm<'_, F>,
        ran: &mut BlockRun,
        gas_left: u64,
        traces: (Option<&Tracer>, &mut TraceBudget),
    ) -> Result<ExecutedCall, SimulationError> {
        let from = tx.signer();
        let is_bundle = matches!(self.planned.rules, CallRules::Bundle);
        let refused = |problem: String| match is_bundle {
            true => SimulationError::Refused(problem),
            false => SimulationError::Refused(format!("transaction {}: {problem}", tx.tx_hash())),
        };
        check_signer_chain(tx, self.planned.spec).map_err(refused)?;
        if !is_bundle {
            self.check_blobs(tx, ran.blob_gas_used, evm.db_mut()).map_err(refused)?;
        }
        let asked = tx.gas_limit();
        let gas = self.gas(Some(asked), ran.block_gas, gas_left, evm.db_mut())?;
        if gas < asked {
            let left = match is_bundle {
                true => format!("the bundle has used {} of {}", self.rules.gas_cap - gas_left, self.rules.gas_cap),
                false => format!("{gas} gas is left for the request"),
            };
            let limit = format!("the node's gas cap (--gas-cap): {left}, the transaction's gas limit is {asked}");
            return Err(refused(limit));
        }
        if is_bundle {
            self.check_blobs(tx, ran.blob_gas_used, evm.db_mut()).map_err(refused)?;
        } else {
            check_nonce(from, tx.nonce(), evm.db_mut())?;
        }
        self.note_fees(true, tx.is_eip4844(), evm.db_mut());
        let listed = ran.listing.is_some().then(|| ListedTx::signed(tx));
        let lifted = std::mem::replace(evm.cfg_mut(), self.strict.clone());
        let call = F::Tx::from_recovered_tx(&tx.inner().clone().into(), from);
        let tip = tip(&call, self.base_fee);
        let blobs = tx.blob_versioned_hashes().map_or(0, <[_]>::len);
        let named = (from, tx.max_fee_per_gas(), tx.input().len());
        let explain = |error, overlay: &mut Overlay| explain(error, named, self.base_fee, overlay);
        let executed = self.execute((call, None), evm, ran, traces, explain);
        *evm.cfg_mut() = lifted;
        Ok(ExecutedCall { listed, tip, blobs, ..executed? })
    }

    /// Returns the gas limit of a call that asks for `asked`, and that the block does not bound.
    fn capped_gas(&self, asked: Option<u64>, gas_left: u64) -> Result<u64, SimulationError> {
        match gas_left {
            0 => Err(SimulationError::Refused(format!(
                "no gas is left: the previous calls have used the {} that a request may use: set the gas of each call, or raise --gas-cap",
                self.rules.gas_cap
            ))),
            left => Ok(asked.map_or(left, |gas| gas.min(left))),
        }
    }

    /// Returns the gas limit of a call that requests `asked`, and records on which fields of the block it depends.
    fn gas(
        &self,
        asked: Option<u64>,
        used: BlockGas,
        gas_left: u64,
        overlay: &mut Overlay,
    ) -> Result<u64, SimulationError> {
        let used = self.used_before.plus(used);
        let remaining = self.available.after(used).most();
        let asked_gas = asked.unwrap_or(remaining);
        let gas = asked_gas.min(gas_left);
        let fits = self.available.check(used, asked_gas);
        let is_bound = fits.is_ok() && (asked.is_some() || gas < remaining);
        // With another gas limit, the bound would differ, too. A bound is recorded in one dimension only.
        let sets_limit = self.planned.block.block.gas_limit.is_some();
        match (self.planned.continues.is_some(), is_bound && !sets_limit && !self.available.has_two_dimensions()) {
            (true, true) => {
                overlay.note_gas(used.regular.saturating_add(if asked.is_some() { asked_gas } else { gas + 1 }));
            }
            (true, false) => overlay.note_block(BlockReads::GAS_LEFT),
            (false, _) => overlay.note_block(BlockReads::GAS_LIMIT),
        }
        fits.map_err(|(used, limit)| SimulationError::BlockGasLimit { used, limit, asked: asked_gas })?;
        Ok(gas)
    }

    /// Checks that the chain has blobs, and that the block has room for the transaction's blobs (EIP-4844) after the
    /// previous calls.
    fn check_blobs(&self, tx: &TxEnvelope, used: u64, overlay: &mut Overlay) -> Result<(), String> {
        check_blob_type(tx, self.planned.spec)?;
        if tx.blob_gas_used().is_none_or(|needs| needs == 0) {
            return Ok(());
        }
        // The blobs of the block so far are not among the fields that are recorded.
        overlay.note_everything();
        let (most, before) = self.blob_gas;
        check_blob_gas(tx, before.saturating_add(used), most)
    }

    /// Records the prices that decide the call's payment.
    fn note_fees(&self, pays: bool, has_blobs: bool, overlay: &mut Overlay) {
        if pays {
            overlay.note_block(BlockReads::BASE_FEE);
        }
        if has_blobs {
            overlay.note_block(BlockReads::BLOB_BASE_FEE);
        }
    }

    /// Executes a call, whose fees may be waived, and keeps its changes. Leaves the fields that derive from its
    /// transaction empty.
    fn execute(
        &self,
        (tx, waived): (F::Tx, Option<F::Chain>),
        evm: &mut RunEvm<'_, F>,
        ran: &mut BlockRun,
        (tracer, traces): (Option<&Tracer>, &mut TraceBudget),
        explain: impl FnOnce(EVMError<Infallible>, &mut Overlay) -> SimulationError,
    ) -> Result<ExecutedCall, SimulationError> {
        let outputs = self.simulation.outputs;
        let mut accesses = outputs.contains(Outputs::ACCESS_LIST).then(AccessRecorder::default);
        let (diff, mut destroyed) = (&mut ran.diff, Vec::new());
        let mut see = |state: &EvmState, before: &Overlay| {
            if let Some(diff) = diff {
                diff.add(state, before);
            }
            if outputs.contains(Outputs::ASSETS) {
                destroyed = DestroyedAccount::all_of(state, before);
            }
        };
        if tracer.is_none() && accesses.is_none() {
            let result = evm.commit(tx, waived, see).map_err(|error| explain(error, evm.db_mut()))?;
            return Ok(ExecutedCall { destroyed, ..ExecutedCall::of(result) });
        }
        let env = EvmEnv { cfg_env: evm.cfg_env().clone(), block_env: evm.block().clone() };
        let setup = TxSetup { tx, waived, env, precompiles: evm.components().2.clone() };
        let (trace, ran) = match (tracer, &mut accesses) {
            (Some(tracer), accesses) => {
                let number = Some(setup.env.block_env.number.saturating_to());
                let position = TransactionInfo { block_number: number, ..TransactionInfo::default() };
                let (trace, ran) =
                    trace::<F>(setup, position, tracer, accesses.as_mut(), traces, evm.db_mut(), explain)?;
                (Some(trace), ran)
            }
            (None, accesses) => {
                let ran = inspect::<F, _>(evm.db_mut(), setup, accesses.get_or_insert_default());
                (None, ran.map_err(|error| explain(error, evm.db_mut()))?)
            }
        };
        see(&ran.state, evm.db_mut());
        evm.db_mut().commit(ran.state);
        let access_list = accesses.map(|accesses| accesses.list());
        Ok(ExecutedCall { trace, access_list, destroyed, ..ExecutedCall::of(ran.result) })
    }
}

impl ExecutedCall {
    const fn of(result: ExecutionResult) -> Self {
        Self { result, trace: None, access_list: None, destroyed: Vec::new(), listed: None, tip: 0, blobs: 0 }
    }
}

/// Returns the price of gas that the producer gets, wei.
fn tip(tx: &impl Transaction, base_fee: u64) -> u128 {
    tx.effective_gas_price(base_fee.into()).saturating_sub(base_fee.into())
}

impl BlockRun {
    /// Creates the record of a block of `calls` calls. `lists` is whether the block's hash is needed.
    pub fn new(calls: usize, outputs: Outputs, lists: bool) -> Self {
        Self {
            calls: Vec::with_capacity(calls),
            listing: lists.then(|| TransactionList {
                transactions: Vec::with_capacity(calls),
                receipts: Vec::with_capacity(calls),
                ..TransactionList::default()
            }),
            diff: outputs.contains(Outputs::STATE_DIFF).then(DiffRecord::default),
            assets: outputs.contains(Outputs::ASSETS).then(AssetRecord::default),
            ..Self::default()
        }
    }

    /// Returns about how many bytes it takes, without its traces.
    pub fn size(&self) -> usize {
        let listing = self.listing.as_ref().map_or(0, |list| {
            let txs = list.transactions.iter().map(|(_, tx)| size_of::<(Address, ListedTx)>() + 2 * tx.encoded.len());
            txs.chain(list.receipts.iter().map(|receipt| size_of::<Vec<u8>>() + receipt.len())).sum()
        });
        let diff = self.diff.as_ref().map_or(0, DiffRecord::size);
        let calls: usize = self.calls.iter().map(CallResult::size).sum();
        calls + listing + diff + self.assets.as_ref().map_or(0, AssetRecord::size)
    }

    /// Adds a call's gas, logs and receipt to the block, and returns the call's result. `marks` belong to its logs.
    ///
    /// # Errors
    ///
    /// Returns `BlockValidationError::DepositRequestDecode` if a log of the deposit contract cannot be decoded.
    fn add<F: FamilyEvm>(
        &mut self,
        executed: ExecutedCall,
        from: Address,
        marks: &[LogMark],
        block: &BlockCalls<'_, F>,
    ) -> Result<CallResult, BlockValidationError> {
        let ExecutedCall { result, trace, access_list, destroyed, listed, tip, blobs } = executed;
        let gas: ResultGas = *result.gas();
        let gas_used = gas.tx_gas_used();
        self.gas_used += gas_used;
        self.block_gas = self.block_gas.plus(BlockGas::of_transaction(block.planned.spec, block.header, &gas));
        self.blob_gas_used += DATA_GAS_PER_BLOB * u64::try_from(blobs).unwrap_or(u64::MAX);
        self.fees = self.fees.saturating_add(U256::from(tip) * U256::from(gas_used));

        let (outcome, return_data, logs) = match result {
            ExecutionResult::Success { output, logs, .. } => (CallOutcome::Success, output.into_data(), logs),
            ExecutionResult::Revert { output, .. } => (CallOutcome::Revert, output, Vec::new()),
            ExecutionResult::Halt { reason, .. } => (CallOutcome::Halt(reason), Bytes::new(), Vec::new()),
        };
        let written = || logs.iter().zip(marks).filter(|(_, mark)| mark.origin.is_real()).map(|(log, _)| log);
        if let (Some(list), Some(listed)) = (&mut self.listing, listed) {
            if F::HAS_REQUESTS {
                let deposits =
                    block.planned.spec.deposit_contract_address().unwrap_or(MAINNET_DEPOSIT_CONTRACT_ADDRESS);
                eip6110::accumulate_deposits_from_logs(deposits, written(), &mut list.deposits)?;
            }
            let logs_bloom = logs_bloom(written());
            list.bloom |= logs_bloom;
            let status = (outcome == CallOutcome::Success).into();
            let receipt = Receipt { status, cumulative_gas_used: self.gas_used, logs: written().collect::<Vec<_>>() };
            list.receipts.push(encoded(listed.tx.tx_type(), &ReceiptWithBloom { receipt, logs_bloom }));
            list.transactions.push((from, listed));
        }
        let Simulation { outputs, trace_transfers, .. } = *block.simulation;
        let mut transfers = Vec::new();
        if outputs.intersects(Outputs::TRANSFERS | Outputs::ASSETS) {
            let logged = logs.iter().zip(marks).filter(|(_, mark)| mark.origin.is_transfer());
            transfers.extend(logged.filter_map(|(log, _)| Transfer::of_log(log)));
        }
        if let Some(assets) = &mut self.assets {
            assets.transfers(&transfers, &destroyed);
            // The protocol's logs look like a token's.
            let of_contracts = logs.iter().zip(marks).filter(|(_, mark)| mark.origin == LogOrigin::Contract);
            of_contracts.for_each(|(log, _)| assets.log(log, block.planned.spec.wrapper()));
        }
        let max_used_gas = gas.total_gas_spent().max(gas.floor_gas());
        let logs = logs.into_iter().zip(marks).filter(|(_, mark)| trace_transfers || mark.origin.is_real());
        let logs = logs.map(|(log, mark)| NumberedLog { number: mark.number, log }).collect();
        Ok(CallResult {
            outcome,
            gas_used,
            max_used_gas,
            return_data,
            logs,
            transfers,
            access_list,
            trace: trace.map(Into::into),
            income: None,
        })
    }
}

/// Checks a call's nonce before its fees, which is geth's order; revm checks fees first. The largest nonce is invalid
/// (EIP-2681).
fn check_nonce(address: Address, tx: u64, overlay: &mut Overlay) -> Result<(), SimulationError> {
    overlay.note_account(address, AccountReads::NONCE);
    let state = overlay.balance_and_nonce(address).1;
    match tx.cmp(&state) {
        Ordering::Less => Err(SimulationError::NonceTooLow { address, tx, state }),
        Ordering::Greater => Err(SimulationError::NonceTooHigh { address, tx, state }),
        Ordering::Equal if state == u64::MAX => {
            Err(SimulationError::Invalid(format!("nonce has max value: address {address}, nonce: {state}")))
        }
        Ordering::Equal => Ok(()),
    }
}

/// Returns a receipt's encoding (EIP-2718).
fn encoded(kind: TxType, receipt: &ReceiptWithBloom<Receipt<&Log>>) -> Vec<u8> {
    let mut out = Vec::with_capacity(receipt.length() + 1);
    if kind != TxType::Legacy {
        out.push(kind.into());
    }
    receipt.encode(&mut out);
    out
}
