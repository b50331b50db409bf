//! `eth_simulateV1`: calls in consecutive blocks, each block with its overrides, header and roots.

mod plan;

use std::{borrow::Cow, cmp::Ordering};

use alloy_consensus::{Header, Receipt, ReceiptWithBloom, TxType};
use alloy_eips::{
    eip4844::DATA_GAS_PER_BLOB, eip4895::Withdrawals, eip6110::MAINNET_DEPOSIT_CONTRACT_ADDRESS, eip7685::Requests,
};
use alloy_evm::{
    Evm,
    block::{BlockValidationError, SystemCaller, state_changes::post_block_balance_increments},
    eth::{eip6110, spec::EthExecutorSpec},
};
use alloy_hardforks::EthereumHardforks;
use alloy_op_hardforks::OpHardforks;
use alloy_primitives::{Address, B256, Bloom, Bytes, Log, Sealable, Sealed, TxKind, logs_bloom};
use alloy_rlp::Encodable;
use op_alloy::consensus::L2_TO_L1_MESSAGE_PASSER_ADDRESS;
use revm::{
    context::result::{ExecutionResult, HaltReason, ResultGas},
    database::DatabaseCommitExt,
};

use self::plan::{PlannedBlock, plan};
use super::{
    Engine,
    call::{explain, lift_checks, set_blob_base_fee},
    error::SimulationError,
    evm::{Ethereum, FamilyEvm, OpStack, RunEvm},
    fees::{FilledCall, UnsignedTx, check_chain, tx_env, unsigned_tx},
    overrides,
    request::{BaseFeeRule, Call, Simulation, SimulationRules},
    transfers::NumberedLog,
};
use crate::{
    chain::{Attributes, BlockTotals, ChainSpec, Family, block_size, ordered_roots},
    state::{CodeCache, LogMark, Overlay, Snapshot, StateRoots},
};

/// A block that was simulated.
#[derive(Debug)]
pub struct SimulatedBlock {
    /// The header. Its state root is zero if none was computed.
    pub header: Sealed<Header>,
    /// Whether the request did not ask for the block, which fills a gap between block numbers.
    pub filler: bool,
    /// The results of the calls, in order.
    pub calls: Vec<CallResult>,
    /// The calls as transactions, in order.
    pub transactions: Vec<SimulatedTx>,
    /// Withdrawals (EIP-4895). `None` before Shanghai.
    pub withdrawals: Option<Withdrawals>,
    /// Size of the block's RLP, in bytes.
    pub size: usize,
}

/// A call as the transaction that its block lists.
#[derive(Debug)]
pub struct SimulatedTx {
    /// The sender.
    pub from: Address,
    /// The transaction, without a signature.
    pub tx: UnsignedTx,
    /// The hash of the transaction's encoding (EIP-2718).
    pub hash: B256,
}

/// The result of a call.
#[derive(Debug)]
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
    pub fn simulate(
        &mut self,
        snapshot: &Snapshot,
        simulation: &Simulation,
    ) -> Result<Vec<SimulatedBlock>, SimulationError> {
        match self.spec.family() {
            Family::Ethereum => self.simulate_on::<Ethereum>(snapshot, simulation),
            Family::OpStack => self.simulate_on::<OpStack>(snapshot, simulation),
        }
    }

    fn simulate_on<F: FamilyEvm>(
        &mut self,
        snapshot: &Snapshot,
        simulation: &Simulation,
    ) -> Result<Vec<SimulatedBlock>, SimulationError> {
        let Self { spec, rules, codes, ref mut overlay } = *self;
        let plan = plan(spec, snapshot, simulation, rules)?;
        let mut simulator = Simulator {
            spec,
            codes,
            rules,
            overlay,
            validation: simulation.validation,
            trace_transfers: simulation.trace_transfers,
            gas_left: rules.gas_cap,
            parent: Cow::Borrowed(&snapshot.head.header),
            roots: snapshot.world.local().filter(|_| rules.state_roots).map(StateRoots::of),
        };
        plan.into_iter().map(|planned| simulator.block::<F>(planned)).collect()
    }
}

struct Simulator<'a> {
    spec: &'a ChainSpec,
    codes: &'a CodeCache,
    rules: &'a SimulationRules,
    overlay: &'a mut Overlay,
    validation: bool,
    trace_transfers: bool,
    gas_left: u64,
    parent: Cow<'a, Sealed<Header>>,
    /// The tries after the previous block. `None` if no roots are computed.
    roots: Option<StateRoots<'a>>,
}

/// The results of a block's calls, and the values that its header needs.
struct BlockRun {
    calls: Vec<CallResult>,
    transactions: Vec<(Address, UnsignedTx)>,
    /// The encoded receipts (EIP-2718).
    receipts: Vec<Vec<u8>>,
    bloom: Bloom,
    /// The deposit requests in the logs (EIP-6110).
    deposits: Vec<u8>,
    gas_used: u64,
    blob_gas_used: u64,
    requests: Option<Requests>,
}

impl Simulator<'_> {
    fn block<F: FamilyEvm>(&mut self, planned: PlannedBlock<'_>) -> Result<SimulatedBlock, SimulationError> {
        self.overlay.meter.between_calls()?;
        // The snapshot knows the hashes of the blocks before the first simulated one.
        if let Cow::Owned(simulated) = &self.parent {
            self.overlay.push_hash(simulated.number, simulated.hash());
        }
        let mut header = self.header(&planned);
        let ran = self.run::<F>(&planned, &header).map_err(|error| {
            // If the meter stopped the run, that is the reason, whatever the EVM's error says.
            self.overlay.meter.stopped().map_or(error, SimulationError::from)
        })?;
        header.requests_hash = ran.requests.as_ref().map(Requests::requests_hash);
        let transactions: Vec<&[u8]> = ran.transactions.iter().map(|(_, tx)| tx.encoded.as_slice()).collect();
        let receipts: Vec<&[u8]> = ran.receipts.iter().map(Vec::as_slice).collect();
        let ([transactions_root, receipts_root], hashes) = ordered_roots([&transactions, &receipts], &transactions);
        BlockTotals {
            gas_used: ran.gas_used,
            blob_gas_used: ran.blob_gas_used,
            transactions_root,
            receipts_root,
            logs_bloom: ran.bloom,
        }
        .close(&mut header);

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
        let sizes = ran.transactions.iter().map(|(_, tx)| (tx.encoded.len(), tx.tx.tx_type() == TxType::Legacy));
        let size = block_size(&header, sizes, &[], withdrawals.as_ref().map(|list| list.as_slice()));
        let header = header.seal_slow();
        self.parent = Cow::Owned(header.clone());
        let transactions = ran.transactions.into_iter().zip(hashes);
        Ok(SimulatedBlock {
            header,
            filler: planned.filler,
            calls: ran.calls,
            transactions: transactions.map(|((from, tx), hash)| SimulatedTx { from, tx, hash }).collect(),
            withdrawals,
            size,
        })
    }

    /// Returns a block's header as it is before the calls run.
    fn header(&self, planned: &PlannedBlock<'_>) -> Header {
        let overrides = &planned.block.block;
        let parent = self.parent.inner();
        let base_fee = overrides.base_fee.map(Some).unwrap_or_else(|| {
            if !self.validation && self.rules.base_fee == BaseFeeRule::ZeroWhenFree {
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

    fn run<F: FamilyEvm>(&mut self, planned: &PlannedBlock<'_>, header: &Header) -> Result<BlockRun, SimulationError> {
        let mut env = F::env(self.spec, header);
        lift_checks(&mut env);
        env.cfg_env.disable_nonce_check = !self.validation;
        if let Some(price) = planned.block.block.blob_base_fee {
            set_blob_base_fee(&mut env.block_env, price);
        }
        let precompiles = overrides::apply(&planned.block.state, self.overlay, self.codes, env.cfg_env.spec)?;
        let market = self.spec.is_market(&env);
        let blob_base_fee = env.block_env.blob_excess_gas_and_price.map_or(0, |blob| blob.blob_gasprice);

        // The gas that the block being built has used is not available. `gasUsed` counts only the simulated calls.
        let available = header.gas_limit.saturating_sub(planned.continues.map_or(0, |open| open.gas_used));
        let mut ran = BlockRun {
            calls: Vec::with_capacity(planned.block.calls.len()),
            transactions: Vec::with_capacity(planned.block.calls.len()),
            receipts: Vec::with_capacity(planned.block.calls.len()),
            bloom: Bloom::ZERO,
            deposits: Vec::new(),
            gas_used: 0,
            blob_gas_used: 0,
            requests: None,
        };
        let base_fee = header.base_fee_per_gas.unwrap_or_default();
        self.overlay.log_numbers.restart();
        let mut evm = RunEvm::<F>::new(&mut *self.overlay, env, precompiles).with_transfers(self.trace_transfers);
        let mut system = SystemCaller::new(self.spec);
        if planned.continues.is_none() {
            system_call(system.apply_blockhashes_contract_call(header.parent_hash, &mut evm))?;
            system_call(system.apply_beacon_root_contract_call(header.parent_beacon_block_root, &mut evm))?;
        }

        for call in &planned.block.calls {
            evm.db_mut().meter.between_calls()?;
            let place =
                CallPosition { spec: self.spec, gas_left: self.gas_left, available, used: ran.gas_used, market };
            let filled = place.fill(call, evm.db_mut())?;
            let listed = unsigned_tx(call, filled)?;
            let mut tx = tx_env(call, filled);
            if self.validation {
                check_nonce(call.from, tx.nonce, evm.db_mut().balance_and_nonce(call.from).1)?;
            } else {
                // Nonces are not checked here, and revm rejects a nonce of `u64::MAX`.
                tx.nonce = tx.nonce.min(u64::MAX - 1);
                if tx.max_fee_per_blob_gas == 0 {
                    tx.max_fee_per_blob_gas = blob_base_fee;
                }
            }
            let wraps = !self.validation
                && matches!(call.to, TxKind::Call(_))
                && evm.db_mut().balance_and_nonce(call.from).1 == u64::MAX;
            evm.cfg_mut().disable_base_fee = !self.validation && call.fees.is_free();
            let result = match evm.commit(tx) {
                Ok(result) => result,
                Err(error) => {
                    evm.rest();
                    return Err(explain(error, call, base_fee, self.overlay));
                }
            };
            if wraps {
                // Without validation, the account's nonce wraps around, as in geth.
                evm.db_mut().set(call.from, None, Some(0), None);
            }
            let marks = evm.db().log_numbers.standing(result.logs().len());
            let result = system_call(ran.add(result, marks, call, &listed, self.spec))?;
            self.gas_left = self.gas_left.saturating_sub(result.gas_used);
            ran.calls.push(result);
            ran.transactions.push((call.from, listed));
        }

        if self.spec.is_prague_active_at_timestamp(header.timestamp) {
            let mut requests = Requests::default();
            if !ran.deposits.is_empty() {
                requests.push_request_with_type(eip6110::DEPOSIT_REQUEST_TYPE, std::mem::take(&mut ran.deposits));
            }
            // The OP stack has no requests: their list is empty.
            if self.spec.family() == Family::Ethereum {
                system_call(system.append_post_execution_changes(&mut evm, &mut requests))?;
            }
            ran.requests = Some(requests);
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

/// The gas and the rules that a call finds at its position in a block.
struct CallPosition<'a> {
    spec: &'a ChainSpec,
    /// Gas that the whole request has left.
    gas_left: u64,
    /// Gas of the block for simulated calls, and the used part of it.
    available: u64,
    used: u64,
    /// Whether the block has a base fee.
    market: bool,
}

impl CallPosition<'_> {
    /// Returns a call's gas and nonce, with defaults for what the call does not name.
    fn fill(&self, call: &Call, overlay: &mut Overlay) -> Result<FilledCall, SimulationError> {
        check_chain(call, self.spec)?;
        let remaining = self.available.saturating_sub(self.used);
        let asked = call.gas.unwrap_or(remaining);
        if asked > remaining {
            return Err(SimulationError::BlockGasLimit { used: self.used, limit: self.available, asked });
        }
        Ok(FilledCall {
            gas: asked.min(self.gas_left),
            nonce: call.nonce.unwrap_or_else(|| overlay.balance_and_nonce(call.from).1),
            chain_id: self.spec.chain_id(),
            market: self.market,
        })
    }
}

impl BlockRun {
    /// Adds a call's gas, logs and receipt to the block, and returns the call's result. `marks` are those of its logs.
    ///
    /// # Errors
    ///
    /// Returns `BlockValidationError::DepositRequestDecode` if a log of the deposit contract cannot be decoded.
    fn add(
        &mut self,
        result: ExecutionResult,
        marks: &[LogMark],
        call: &Call,
        listed: &UnsignedTx,
        spec: &ChainSpec,
    ) -> Result<CallResult, BlockValidationError> {
        let gas: ResultGas = *result.gas();
        let gas_used = gas.tx_gas_used();
        self.gas_used += gas_used;
        let blobs = call.blob_hashes.as_ref().map_or(0, Vec::len);
        self.blob_gas_used += DATA_GAS_PER_BLOB * u64::try_from(blobs).unwrap_or(u64::MAX);

        let (outcome, return_data, logs) = match result {
            ExecutionResult::Success { output, logs, .. } => (CallOutcome::Success, output.into_data(), logs),
            ExecutionResult::Revert { output, .. } => (CallOutcome::Revert, output, Vec::new()),
            ExecutionResult::Halt { reason, .. } => (CallOutcome::Halt(reason), Bytes::new(), Vec::new()),
        };
        let written: Vec<&Log> =
            logs.iter().zip(marks).filter(|(_, mark)| !mark.transfer).map(|(log, _)| log).collect();
        if spec.family() == Family::Ethereum {
            let deposits = spec.deposit_contract_address().unwrap_or(MAINNET_DEPOSIT_CONTRACT_ADDRESS);
            eip6110::accumulate_deposits_from_logs(deposits, written.iter().copied(), &mut self.deposits)?;
        }
        let logs_bloom = logs_bloom(written.iter().copied());
        self.bloom |= logs_bloom;
        let status = (outcome == CallOutcome::Success).into();
        let receipt = Receipt { status, cumulative_gas_used: self.gas_used, logs: written };
        self.receipts.push(encoded(listed.tx.tx_type(), &ReceiptWithBloom { receipt, logs_bloom }));
        let max_used_gas = gas.total_gas_spent().max(gas.floor_gas());
        let logs = logs.into_iter().zip(marks).map(|(log, mark)| NumberedLog { number: mark.number, log }).collect();
        Ok(CallResult { outcome, gas_used, max_used_gas, return_data, logs })
    }
}

fn system_call<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<T, SimulationError> {
    result.map_err(|error| SimulationError::Refused(format!("system call: {error}")))
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
