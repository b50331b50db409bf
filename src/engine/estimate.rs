//! `eth_estimateGas`: the smallest gas limit with which a call succeeds, searched as geth's `eth/gasestimator` does.

use alloy_consensus::Header;
use alloy_eips::{eip4844::DATA_GAS_PER_BLOB, eip7825::MAX_TX_GAS_LIMIT_OSAKA};
use alloy_primitives::{Bytes, TxKind, U256};
use revm::{
    Database,
    context::{
        TxEnv,
        result::{EVMError, ExecutionResult, HaltReason, InvalidTransaction},
    },
    context_interface::cfg::gas::CALL_STIPEND,
    primitives::hardfork::SpecId,
};

use super::{
    Engine,
    call::{PreparedCall, explain},
    error::SimulationError,
    evm::{Ethereum, FamilyEvm, OpStack, RunEvm},
    fees::max_fee,
    request::{Call, CallRequest, SimulationRules},
};
use crate::{chain::Family, state::Overlay};

/// What a call needs to succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Estimate {
    /// It succeeds with this gas limit, and not with less.
    Gas {
        /// The limit.
        limit: u64,
        /// Gas that all the runs of the search used together.
        simulated: u64,
    },
    /// With all the gas it may have, it reverts with this data.
    Revert(Bytes),
    /// With all the gas it may have, the EVM stops it, and not for want of gas.
    Halt(HaltReason),
    /// It needs more than the gas it may have, which is this.
    TooLittle(u64),
}

/// Gas of a transaction that only transfers value.
const TRANSFER_GAS: u64 = 21_000;

impl Engine<'_> {
    /// Finds the smallest gas limit with which a call succeeds in `header`'s block.
    ///
    /// The search is geth's. Whatever it answers has succeeded; without geth's tolerance ([`SimulationRules::estimate_tolerance`]), one less has failed or is
    /// less than what the call used. A call that does something else when it has less gas, and succeeds all the same, is not searched below what it
    /// used with all the gas it may have.
    ///
    /// # Errors
    /// That it cannot be run, or was stopped.
    pub fn estimate_gas(&mut self, header: &Header, request: &CallRequest) -> Result<Estimate, SimulationError> {
        match self.spec.family() {
            Family::Ethereum => self.estimate_on::<Ethereum>(header, request),
            Family::OpStack => self.estimate_on::<OpStack>(header, request),
        }
    }

    fn estimate_on<F: FamilyEvm>(
        &mut self,
        header: &Header,
        request: &CallRequest,
    ) -> Result<Estimate, SimulationError> {
        let prepared = self.prepare::<F>(header, request)?;
        let call = &request.call;
        let allowance = allowance(call, &prepared, self.rules, self.overlay)?;
        let tolerance = self.rules.estimate_tolerance;
        let mut search = Search { call, prepared, overlay: self.overlay, tolerance, simulated: 0 };
        // Transactions of other fields than a transfer's may need more, so it is tried and not assumed.
        if search.is_transfer() && search.succeeds(TRANSFER_GAS).unwrap_or(false) {
            return Ok(Estimate::Gas { limit: TRANSFER_GAS, simulated: search.simulated });
        }
        let gas = match search.run(allowance)? {
            Some(ExecutionResult::Success { gas, .. }) => gas,
            Some(ExecutionResult::Revert { output, .. }) => return Ok(Estimate::Revert(output)),
            None | Some(ExecutionResult::Halt { reason: HaltReason::OutOfGas(_), .. }) => {
                return Ok(Estimate::TooLittle(allowance));
            }
            Some(ExecutionResult::Halt { reason, .. }) => return Ok(Estimate::Halt(reason)),
        };
        // What it used before refunds; in the floor's case (EIP-7623), the floor.
        let used = gas.total_gas_spent().max(gas.floor_gas());
        let limit = search.smallest(gas.tx_gas_used(), used, allowance)?;
        Ok(Estimate::Gas { limit, simulated: search.simulated })
    }
}

/// The most gas that the call may have: what it asks for or else the block's limit, within the transaction cap (EIP-7825), the means of
/// its sender where it pays for gas, and the node's cap.
fn allowance<F: FamilyEvm>(
    call: &Call,
    prepared: &PreparedCall<F>,
    rules: &SimulationRules,
    overlay: &mut Overlay,
) -> Result<u64, SimulationError> {
    let fork: SpecId = prepared.env.cfg_env.spec.into();
    let mut most = call.gas.filter(|gas| *gas >= TRANSFER_GAS).unwrap_or(prepared.env.block_env.gas_limit);
    if fork.is_enabled_in(SpecId::OSAKA) {
        most = most.min(MAX_TX_GAS_LIMIT_OSAKA);
    }
    let price = U256::from(max_fee(call));
    if !price.is_zero() {
        let balance = overlay.balance_and_nonce(call.from).0;
        let address = call.from;
        if call.value >= balance {
            let text = format!(
                "insufficient funds for transfer: address {address} have {balance} want more than {}",
                call.value
            );
            return Err(SimulationError::Refused(text));
        }
        let mut left = balance - call.value;
        if fork.is_enabled_in(SpecId::CANCUN)
            && let Some(blobs) = &call.blob_hashes
        {
            let blob_gas = U256::from(blobs.len()) * U256::from(DATA_GAS_PER_BLOB);
            let cost = blob_gas.saturating_mul(U256::from(call.max_fee_per_blob_gas.unwrap_or_default()));
            if cost >= left {
                let text = format!(
                    "insufficient funds for gas * price + value: address {address} have {balance} want more than {}",
                    call.value.saturating_add(cost)
                );
                return Err(SimulationError::Refused(text));
            }
            left -= cost;
        }
        most = most.min((left / price).saturating_to());
    }
    Ok(most.min(rules.gas_cap))
}

/// Runs of one call with different gas limits, each from the same state.
struct Search<'a, F: FamilyEvm> {
    call: &'a Call,
    prepared: PreparedCall<F>,
    overlay: &'a mut Overlay,
    tolerance: f64,
    simulated: u64,
}

impl<F: FamilyEvm> Search<'_, F> {
    /// Whether the call only transfers value: it has no data, and its callee no code.
    fn is_transfer(&mut self) -> bool {
        let TxKind::Call(to) = self.call.to else { return false };
        let Ok(callee) = self.overlay.basic(to);
        self.call.data.is_empty() && callee.is_none_or(|account| account.is_empty_code_hash())
    }

    /// Runs the call with a gas limit. None where it cannot even begin with that.
    fn run(&mut self, gas: u64) -> Result<Option<ExecutionResult>, SimulationError> {
        self.overlay.meter.between_calls()?;
        let PreparedCall { env, precompiles, tx } = self.prepared.clone();
        let base_fee = env.block_env.basefee;
        let tx = TxEnv { gas_limit: gas, ..tx };
        let mut evm = RunEvm::<F>::new(self.overlay, env, precompiles);
        let ran = evm.run(tx);
        evm.rest();
        match ran {
            // What the run changed is dropped: the next one starts from the overrides alone.
            Ok(ran) => {
                self.simulated = self.simulated.saturating_add(ran.tx_gas_used());
                Ok(Some(ran))
            }
            Err(EVMError::Transaction(
                InvalidTransaction::CallGasCostMoreThanGasLimit { .. }
                | InvalidTransaction::GasFloorMoreThanGasLimit { .. },
            )) => Ok(None),
            Err(error) => Err(match explain(error, self.call, base_fee, self.overlay) {
                error @ (SimulationError::Stopped(_) | SimulationError::Internal(_)) => error,
                error => SimulationError::Refused(format!("failed with {gas} gas: {error}")),
            }),
        }
    }

    fn succeeds(&mut self, gas: u64) -> Result<bool, SimulationError> {
        Ok(self.run(gas)?.is_some_and(|result| result.is_success()))
    }

    /// The smallest limit that succeeds, where one of `allowance` does, and then uses `charged` gas after refunds and `used` before.
    fn smallest(&mut self, charged: u64, used: u64, allowance: u64) -> Result<u64, SimulationError> {
        let (mut fails, mut succeeds) = (charged.saturating_sub(1), allowance);
        // Most calls need just what they use, and what calls leave to their callers (EIP-150) is seldom more than a 64th. A search that
        // need not be exact asks for the latter alone, as geth does.
        let likely = [used, used.saturating_add(CALL_STIPEND).saturating_mul(64) / 63];
        let exact = self.tolerance == 0.0;
        for gas in likely.into_iter().skip(usize::from(!exact)) {
            if fails < gas && gas < succeeds {
                if self.succeeds(gas)? {
                    succeeds = gas;
                    break;
                }
                fails = gas;
            }
        }
        // Refunds make the first bound too low. One run tells whether what was used is the answer.
        if exact && succeeds == used && fails + 1 < succeeds {
            match self.succeeds(used - 1)? {
                true => succeeds = used - 1,
                false => fails = used - 1,
            }
        }
        while fails + 1 < succeeds && (succeeds - fails) as f64 / succeeds as f64 >= self.tolerance {
            // Few calls need much more than they use: the search keeps to the low side.
            let middle = (fails + (succeeds - fails) / 2).min(fails.saturating_mul(2));
            match self.succeeds(middle)? {
                true => succeeds = middle,
                false => fails = middle,
            }
        }
        Ok(succeeds)
    }
}
