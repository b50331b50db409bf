//! `eth_estimateGas`: searches the smallest gas limit with which a call succeeds, as geth's `eth/gasestimator` does.

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
    call::PreparedCall,
    error::{SimulationError, explain},
    evm::{FamilyEvm, MAX_TX_GAS_LIMIT, RunEvm},
    request::{Call, CallRequest, SimulationRules},
};
use crate::{chain::ChainSpec, state::Overlay};

/// The gas that a call needs to succeed, or the reason why it fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Estimate {
    /// The call succeeds with this gas limit.
    Gas {
        /// The gas limit.
        limit: u64,
        /// Gas used by all runs of the search.
        simulated: u64,
    },
    /// With all the gas it may have, the call reverts with this data.
    Revert(Bytes),
    /// With all the gas it may have, the EVM stops the call, and not for lack of gas.
    Halt(HaltReason),
    /// The call needs more than the gas it may have, which is this value.
    TooLittle(u64),
}

/// Gas of a transaction that only transfers value.
const TRANSFER_GAS: u64 = 21_000;

impl Engine<'_> {
    pub(super) fn estimate_on<F: FamilyEvm>(
        &mut self,
        header: &Header,
        request: &CallRequest,
    ) -> Result<Estimate, SimulationError> {
        let prepared = self.prepare::<F>(header, request)?;
        let call = &request.call;
        let allowance = allowance(call, &prepared, self.spec, self.rules, self.overlay)?;
        let tolerance = self.rules.estimate_tolerance;
        let mut search = Search { call, prepared, overlay: self.overlay, tolerance, simulated: 0 };
        // Fields that a plain transfer lacks may cost more gas, so this limit is tried and not assumed. From Amsterdam on,
        // a transfer may cost less, too (EIP-2780).
        if !search.prepared.env.cfg_env.enable_amsterdam_eip8037
            && search.is_transfer()
            && search.succeeds(TRANSFER_GAS).unwrap_or(false)
        {
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
        // The gas used before refunds, or the floor (EIP-7623) if that is higher.
        let used = gas.total_gas_spent().max(gas.floor_gas());
        let limit = search.smallest(gas.tx_gas_used(), used, allowance)?;
        Ok(Estimate::Gas { limit, simulated: search.simulated })
    }
}

/// Returns the maximum gas that the call may have: its own limit or else the block's, capped by the transaction limit
/// (EIP-7825), by the sender's balance if the call pays for gas, and by the node's cap.
fn allowance<F: FamilyEvm>(
    call: &Call,
    prepared: &PreparedCall<F>,
    spec: &ChainSpec,
    rules: &SimulationRules,
    overlay: &mut Overlay,
) -> Result<u64, SimulationError> {
    let fork: SpecId = prepared.env.cfg_env.spec.into();
    let mut most = call.gas.filter(|gas| *gas >= TRANSFER_GAS).unwrap_or(prepared.env.block_env.gas_limit);
    // From Amsterdam on, that cap bounds only regular gas, and 32 bits bound the total (EIP-8037).
    if fork.is_enabled_in(SpecId::AMSTERDAM) {
        most = most.min(MAX_TX_GAS_LIMIT);
    } else if fork.is_enabled_in(SpecId::OSAKA) && !spec.lifted().any_tx_gas {
        most = most.min(MAX_TX_GAS_LIMIT_OSAKA);
    }
    let price = U256::from(call.max_fee());
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

/// Runs one call with different gas limits, each time from the same state.
struct Search<'a, F: FamilyEvm> {
    call: &'a Call,
    prepared: PreparedCall<F>,
    overlay: &'a mut Overlay,
    tolerance: f64,
    simulated: u64,
}

impl<F: FamilyEvm> Search<'_, F> {
    /// Returns whether the call only transfers value: it has no data, and its callee has no code.
    fn is_transfer(&mut self) -> bool {
        let TxKind::Call(to) = self.call.to else { return false };
        let Ok(callee) = self.overlay.basic(to);
        self.call.data.is_empty() && callee.is_none_or(|account| account.is_empty_code_hash())
    }

    /// Runs the call with a gas limit. Returns `None` if the limit does not even allow the call to begin.
    fn run(&mut self, gas: u64) -> Result<Option<ExecutionResult>, SimulationError> {
        self.overlay.meter.check()?;
        let PreparedCall { env, precompiles, tx } = self.prepared.clone();
        let base_fee = env.block_env.basefee;
        let tx = TxEnv { gas_limit: gas, ..tx };
        let mut evm = RunEvm::<F>::new(self.overlay, env, precompiles);
        let ran = evm.run(tx);
        evm.finish();
        match ran {
            // The run's changes are discarded, so the next run starts with only the overrides.
            Ok(ran) => {
                self.simulated = self.simulated.saturating_add(ran.tx_gas_used());
                Ok(Some(ran))
            }
            Err(EVMError::Transaction(
                InvalidTransaction::CallGasCostMoreThanGasLimit { .. }
                | InvalidTransaction::GasFloorMoreThanGasLimit { .. },
            )) => Ok(None),
            Err(error) => Err(match explain(error, self.call.named(), base_fee, self.overlay) {
                error @ (SimulationError::Stopped(_) | SimulationError::Internal(_)) => error,
                error => SimulationError::Refused(format!("failed with {gas} gas: {error}")),
            }),
        }
    }

    fn succeeds(&mut self, gas: u64) -> Result<bool, SimulationError> {
        Ok(self.run(gas)?.is_some_and(|result| result.is_success()))
    }

    /// Finds the smallest limit that succeeds. With `allowance`, the call used `used` gas, and `charged` after refunds.
    fn smallest(&mut self, charged: u64, used: u64, allowance: u64) -> Result<u64, SimulationError> {
        let (mut fails, mut succeeds) = (charged.saturating_sub(1), allowance);
        // Most calls need exactly the gas they use, and the part that calls leave to their callers (EIP-150) is rarely
        // more than a 64th. A search that need not be exact tries only the second limit, as geth does.
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
        // Refunds make the first lower bound too low. One run shows whether the gas used is the answer.
        if exact && succeeds == used && fails + 1 < succeeds {
            match self.succeeds(used - 1)? {
                true => succeeds = used - 1,
                false => fails = used - 1,
            }
        }
        while fails + 1 < succeeds && (succeeds - fails) as f64 / succeeds as f64 >= self.tolerance {
            // Few calls need much more gas than they use, so the search keeps to the low side.
            let middle = (fails + (succeeds - fails) / 2).min(fails.saturating_mul(2));
            match self.succeeds(middle)? {
                true => succeeds = middle,
                false => fails = middle,
            }
        }
        Ok(succeeds)
    }
}
