//! The run of a simulation's blocks: the header of each, its overrides, system calls and calls.

use alloy_consensus::Header;
use alloy_eips::{eip6110, eip7685::Requests, eip7928::compute_block_access_list_hash};
use alloy_evm::{Evm, block::state_changes::post_block_balance_increments};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{Address, U256};
use revm::database::DatabaseCommitExt;

use super::{
    calls::{BlockCalls, BlockRun},
    outputs::{AssetRecord, CoinbaseIncome, ValueChange, difference},
    plan::{CallRules, PlannedBlock},
    progress::{RunPoint, RunProgress},
    questions::measure,
    results::SimulatedBlock,
    simulator::{BlockEnd, Simulator},
};
use crate::{
    chain::{BASE_FEE_VAULT, BASE_TIME, BASE_TIME_SLOT, BlockGas, GasLeft, L1_FEE_VAULT, OPERATOR_FEE_VAULT},
    engine::{
        call::{lift_checks, set_blob_base_fee},
        error::SimulationError,
        evm::FamilyEvm,
        overrides,
        request::{BaseFeeRule, CallIndex, Objective, Outputs, Simulation},
        system_calls,
    },
};

impl<F: FamilyEvm> Simulator<'_, F> {
    /// Runs the blocks, up to `self.until`.
    pub(super) fn blocks(&mut self, plan: Vec<PlannedBlock<'_>>) -> Result<BlockEnd, SimulationError> {
        let is_at = |point: RunPoint, planned: &PlannedBlock<'_>| planned.asked == Some(point.block);
        // The tries after a block are not saved, so where roots are computed, only the first block's beginning is shared.
        let ends_later = |until| plan.iter().skip(1).any(|planned| is_at(until, planned));
        if self.roots.is_some() && self.until.is_some_and(ends_later) {
            return Ok(BlockEnd::Paused);
        }
        for (index, planned) in plan.into_iter().enumerate().skip(self.state.index) {
            self.state.index = index;
            if self.until.is_some_and(|until| until.calls.is_none() && is_at(until, &planned)) {
                return Ok(BlockEnd::Paused);
            }
            let ran = self.block(&planned);
            let RunProgress { reads, blocks, .. } = &mut self.state;
            let ended = blocks.last().filter(|_| matches!(ran, Ok(BlockEnd::Done | BlockEnd::Broken)));
            reads.note_block::<F>(&planned, index == 0, self.simulation, ended, self.evm.db_mut());
            match ran? {
                BlockEnd::Done => {}
                end => return Ok(end),
            }
        }
        Ok(BlockEnd::Done)
    }

    /// Runs the rest of a block up to `self.until`.
    fn block(&mut self, planned: &PlannedBlock<'_>) -> Result<BlockEnd, SimulationError> {
        self.overlay().meter.between_calls()?;
        // The snapshot knows the hashes of the blocks before the first simulated one.
        if let Some(simulated) = self.state.parent.as_ref().filter(|_| self.state.run.is_none()) {
            self.evm.db_mut().push_hash(simulated.number, simulated.hash());
        }
        let mut header = self.header(planned);
        let ran = self.run(planned, &header);
        let (mut ran, end) = ran.map_err(|error| {
            // If the meter stopped the run, it is the reason, and the EVM's error does not matter.
            self.overlay().meter.stopped().map_or(error, SimulationError::from)
        })?;
        if matches!(end, BlockEnd::Paused) {
            self.state.run = Some(ran);
            return Ok(end);
        }
        let outputs = self.simulation.outputs;
        let access_list = ran.listing.as_mut().and_then(|list| list.access_list.take());
        header.block_access_list_hash = access_list.as_deref().map(compute_block_access_list_hash);
        let listing = match ran.listing.take() {
            Some(list) if matches!(end, BlockEnd::Done) => Some(self.listed(planned, &mut header, &ran, list)),
            _ => None,
        };
        let gets_fees = |address: &Address| {
            *address == header.beneficiary
                || F::HAS_VAULTS && [L1_FEE_VAULT, BASE_FEE_VAULT, OPERATOR_FEE_VAULT].contains(address)
        };
        let diff = ran.diff.map(|diff| diff.finish(gets_fees));
        self.state.blocks.push(SimulatedBlock {
            filler: planned.asked.is_none(),
            fork: planned.fork_name(),
            base_fee: header.base_fee_per_gas.unwrap_or_default(),
            fee_recipient: header.beneficiary,
            fees: ran.fees,
            calls: ran.calls,
            listing: listing.filter(|_| outputs.contains(Outputs::HEADER)),
            access_list: access_list.filter(|_| outputs.contains(Outputs::BLOCK_ACCESS_LIST)),
            diff,
            assets: ran.assets.map(AssetRecord::finish),
            coinbase: ran.coinbase.filter(|_| outputs.contains(Outputs::COINBASE)),
        });
        Ok(end)
    }

    /// Returns a block's header before its calls run.
    fn header(&self, planned: &PlannedBlock<'_>) -> Header {
        let has_free_base_fee = !self.simulation.validation
            && self.rules.base_fee == BaseFeeRule::ZeroWhenFree
            && matches!(planned.rules, CallRules::Simulation);
        let header = planned.header(self.parent());
        match (planned.block.block.base_fee, header.base_fee_per_gas) {
            (None, Some(_)) if has_free_base_fee => Header { base_fee_per_gas: Some(0), ..header },
            _ => header,
        }
    }

    fn run(&mut self, planned: &PlannedBlock<'_>, header: &Header) -> Result<(BlockRun, BlockEnd), SimulationError> {
        let (is_first, is_last) = (self.state.index == 0, self.state.index == self.last);
        let until = self.until.filter(|until| planned.asked == Some(until.block));
        let Simulation { outputs, validation, ref when, objective, .. } = *self.simulation;
        let mut env = F::env(planned.spec, header);
        let strict = env.cfg_env.clone();
        lift_checks(&mut env);
        env.cfg_env.disable_nonce_check = !validation;
        if let Some(price) = planned.block.block.blob_base_fee {
            set_blob_base_fee(&mut env.block_env, price);
        }
        let begun = self.state.run.take();
        let first_state = match planned.rules {
            CallRules::Many(state) => Some(state),
            CallRules::Simulation | CallRules::Bundle => None,
        };
        let is_whole = first_state.is_none();
        let (state, fork) = (first_state.unwrap_or(&planned.block.state), env.cfg_env.spec);
        let precompiles = match begun.is_none() && (is_whole || is_first) {
            true => overrides::apply(state, self.evm.db_mut(), self.codes, planned.spec, fork)?,
            false => overrides::precompiles(state, planned.spec, fork)?,
        };
        // The block's hash is needed where it is shown, and where a later block follows from it; the access list's accesses
        // are recorded with what the hash needs.
        let lists = is_whole && (outputs.intersects(Outputs::HEADER | Outputs::BLOCK_ACCESS_LIST) || !is_last);
        // A simulation's calls have the gas that is left in the block being built, and count only their own.
        let used_before = planned.continues.map_or_else(BlockGas::default, |open| open.gas);
        let (taken, used_before) = match planned.rules {
            CallRules::Bundle => (BlockGas::default(), used_before),
            CallRules::Simulation | CallRules::Many(_) => (used_before, BlockGas::default()),
        };
        let calls = BlockCalls {
            simulation: self.simulation,
            strict,
            market: planned.spec.is_market(&env),
            base_fee: header.base_fee_per_gas.unwrap_or_default(),
            blob_base_fee: env.block_env.blob_excess_gas_and_price.map_or(0, |blob| blob.blob_gasprice),
            rules: self.rules,
            planned,
            block: first_state.map(|_| env.block_env.clone()),
            available: GasLeft::of(planned.spec, header, taken),
            used_before,
            header,
            blob_gas: (
                planned.spec.blob_params(header.timestamp).map_or(0, |params| params.max_blob_gas_per_block()),
                planned.continues.map_or(0, |open| open.blob_gas_used),
            ),
        };
        let is_new = begun.is_none();
        if is_new {
            self.overlay().log_numbers.restart();
        }
        let counts_income = self.simulation.counts_income();
        let mut ran = begun.unwrap_or_else(|| BlockRun {
            producer_had: counts_income.then(|| self.overlay().balance_and_nonce(header.beneficiary).0),
            ..BlockRun::new(planned.block.calls.len(), outputs, lists)
        });
        let evm = &mut self.evm;
        evm.enter(env, precompiles);
        let lists_accesses = lists && header.block_access_list_hash.is_some();
        if is_new && lists_accesses {
            evm.db_mut().list_accesses(0);
        }
        if is_new && is_whole && planned.continues.is_none() {
            system_calls::begin_block(planned.spec, header, evm)?;
            // The block's deposit would have set them.
            if let Some(millis) = planned.millis {
                evm.db_mut().set_slot(BASE_TIME, BASE_TIME_SLOT, U256::from(millis));
            }
        }
        if let Some(objective) = objective.filter(|_| is_new && planned.asked == Some(0)) {
            self.state.before = measure(objective, evm)?;
        }

        for (index, call) in planned.block.calls.iter().enumerate().skip(ran.calls.len()) {
            if until.is_some_and(|until| until.calls == Some(index)) {
                return Ok((ran, BlockEnd::Paused));
            }
            evm.db_mut().meter.between_calls()?;
            evm.db_mut().next_access_index();
            // A block that fills a gap has no calls.
            let at = CallIndex { block: planned.asked.unwrap_or_default(), call: index };
            self.state.at = Some(at);
            let tracer = self.tracers.first();
            if self.tracers.len() > 1 {
                self.tracers = &self.tracers[1..];
            }
            let RunProgress { gas_left, traces, .. } = &mut self.state;
            let done = calls.run(call, evm, &mut ran, gas_left, (tracer, traces))?;
            if when.as_ref().is_some_and(|when| !when.allow(at, done)) {
                self.state.dropped = Some(at);
                return Ok((ran, BlockEnd::Broken));
            }
        }
        self.state.at = None;
        if until.is_some() {
            return Ok((ran, BlockEnd::Paused));
        }
        if !is_whole {
            return Ok((ran, BlockEnd::Done));
        }
        if let Some(from) = ran.producer_had {
            let to = evm.db_mut().balance_and_nonce(header.beneficiary).0;
            let income = CoinbaseIncome { fees: ran.fees, balance: ValueChange { from, to } };
            if objective == Some(Objective::Coinbase) {
                self.state.gained = self.state.gained.saturating_add(difference(from, to));
            }
            ran.coinbase = Some(income);
        }
        if let Some(objective) = objective.filter(|objective| is_last && *objective != Objective::Coinbase) {
            self.state.gained = difference(self.state.before, measure(objective, evm)?);
        }
        ran.add_wrapped(planned.spec.wrapper(), evm);
        if outputs.contains(Outputs::ASSETS) {
            ran.ask_tokens(&mut self.state.tokens, evm);
        }

        evm.db_mut().next_access_index();
        if let Some(list) = &mut ran.listing
            && planned.spec.is_prague_active_at_timestamp(header.timestamp)
        {
            let mut requests = Requests::default();
            if !list.deposits.is_empty() {
                requests.push_request_with_type(eip6110::DEPOSIT_REQUEST_TYPE, std::mem::take(&mut list.deposits));
            }
            if F::HAS_REQUESTS {
                system_calls::end_block(planned.spec, evm, &mut requests)?;
            }
            list.requests = Some(requests);
        }
        for withdrawal in planned.block.block.withdrawals.iter().flat_map(|list| list.iter()) {
            evm.db_mut().list_account(withdrawal.address);
        }
        let increments = post_block_balance_increments::<Header>(
            planned.spec,
            evm.block(),
            &[],
            planned.block.block.withdrawals.as_deref().map(Vec::as_slice),
        );
        let Ok(()) = evm.db_mut().increment_balances(increments);
        if let Some(list) = &mut ran.listing {
            list.access_list = evm.db_mut().take_access_list();
        }
        Ok((ran, BlockEnd::Done))
    }
}
