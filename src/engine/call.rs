//! `eth_call`, and the preparation of calls for the other methods.

use alloy_consensus::Header;
use alloy_evm::EvmEnv;
use revm::{
    context::{BlockEnv, TxEnv, result::ExecutionResult},
    context_interface::block::BlobExcessGasAndPrice,
};

use super::{
    Engine,
    error::{SimulationError, explain},
    evm::{FamilyEvm, RunEvm},
    fees::{FilledCall, check_chain, tx_env},
    overrides,
    precompiles::RunPrecompiles,
    request::{BaseFeeRule, BlockOverrides, Call, CallRequest},
};
use crate::{chain::ChainSpec, state::Overlay};

impl BlockOverrides {
    /// Returns the rules of the block on a chain with the rules `spec`.
    ///
    /// # Errors
    ///
    /// Returns [`SimulationError::Params`] if the chain does not have the fork.
    pub(super) fn rules<'a>(&self, spec: &'a ChainSpec) -> Result<&'a ChainSpec, SimulationError> {
        match &self.fork {
            None => Ok(spec),
            Some(fork) => {
                spec.under(fork).map_err(|error| SimulationError::Params(format!("blockOverrides.fork: {error}")))
            }
        }
    }
}

impl Engine<'_> {
    /// Runs a call in `header`'s block. Its changes stay in the overlay if `keeps`.
    pub(super) fn call_on<F: FamilyEvm>(
        &mut self,
        header: &Header,
        request: &CallRequest,
        keeps: bool,
    ) -> Result<ExecutionResult, SimulationError> {
        if keeps {
            self.overlay.meter.between_calls()?;
        }
        let PreparedCall { env, precompiles, tx } = self.prepare::<F>(header, request)?;
        let base_fee = env.block_env.basefee;
        let mut evm = RunEvm::<F>::new(self.overlay, env, precompiles);
        let ran = if keeps { evm.commit(tx.into(), Some(F::waived()), |_, _| ()) } else { evm.run(tx) };
        evm.finish();
        ran.map_err(|error| explain(error, request.call.named(), base_fee, self.overlay))
    }

    /// Applies the state overrides of `request` to the overlay, and returns all else that its runs need.
    pub(super) fn prepare<F: FamilyEvm>(
        &mut self,
        header: &Header,
        request: &CallRequest,
    ) -> Result<PreparedCall<F>, SimulationError> {
        let Self { spec, rules, codes, ref mut overlay } = *self;
        let (call, spec) = (&request.call, request.block.rules(spec)?);
        check_chain(call, spec)?;
        let mut env = environment::<F>(spec, header, &request.block);
        let precompiles = overrides::apply(&request.state, overlay, codes, spec, env.cfg_env.spec)?;
        let tx = fill::<F>(spec, call, rules.gas_cap, rules.base_fee, &mut env, overlay);
        Ok(PreparedCall { env, precompiles, tx })
    }
}

/// A call that is ready to run any number of times. Its state overrides are in the overlay.
#[derive(Clone, Debug)]
pub(super) struct PreparedCall<F: FamilyEvm> {
    /// The block that the call sees, and the checks that it must pass.
    pub env: EvmEnv<F::Spec>,
    /// The precompiles that remain under the overrides.
    pub precompiles: RunPrecompiles,
    /// The call, with its gas limited to the node's cap.
    pub tx: TxEnv,
}

/// Returns the environment of `header`'s block with overrides, which also determine the fork.
pub(super) fn environment<F: FamilyEvm>(
    spec: &ChainSpec,
    header: &Header,
    overrides: &BlockOverrides,
) -> EvmEnv<F::Spec> {
    let mut env = F::env(spec, &overridden(spec, header, overrides));
    if let Some(price) = overrides.blob_base_fee {
        set_blob_base_fee(&mut env.block_env, price);
    }
    env
}

/// Returns `header` with the overrides that calls in its block see, except for the price of blob gas.
pub(super) fn overridden(spec: &ChainSpec, header: &Header, overrides: &BlockOverrides) -> Header {
    let mut header = Header {
        number: overrides.number.unwrap_or(header.number),
        timestamp: overrides.time.unwrap_or(header.timestamp),
        gas_limit: overrides.gas_limit.unwrap_or(header.gas_limit),
        beneficiary: overrides.fee_recipient.unwrap_or(header.beneficiary),
        mix_hash: overrides.prev_randao.unwrap_or(header.mix_hash),
        base_fee_per_gas: overrides.base_fee.or(header.base_fee_per_gas),
        slot_number: overrides.slot_number.or(header.slot_number),
        difficulty: overrides.difficulty.unwrap_or(header.difficulty),
        ..header.clone()
    };
    if spec.blob_params(header.timestamp).is_some() {
        header.excess_blob_gas.get_or_insert(0);
    }
    header
}

/// Returns the transaction of a call, with at most `gas_cap` gas, and the account's nonce if the call has none. Lifts
/// the checks of `env` that an unsigned call need not pass, and sets the base fee that the call sees.
pub(super) fn fill<F: FamilyEvm>(
    spec: &ChainSpec,
    call: &Call,
    gas_cap: u64,
    base_fee: BaseFeeRule,
    env: &mut EvmEnv<F::Spec>,
    overlay: &mut Overlay,
) -> TxEnv {
    let nonce = call.nonce.unwrap_or_else(|| overlay.balance_and_nonce(call.from).1);
    let filled = FilledCall {
        gas: call.gas.map_or(gas_cap, |gas| gas.min(gas_cap)),
        nonce: nonce.min(u64::MAX - 1),
        chain_id: spec.chain_id(),
        market: spec.is_market(env),
    };
    lift_checks(env);
    env.cfg_env.disable_base_fee = call.fees.is_free();
    waive_fees(call, base_fee, &mut env.block_env);
    tx_env(call, filled)
}

/// Sets the fees that a call alone in its block sees. Each fee for which the call offers nothing is zero.
pub(super) fn waive_fees(call: &Call, base_fee: BaseFeeRule, block: &mut BlockEnv) {
    if call.fees.is_free() && base_fee == BaseFeeRule::ZeroWhenFree {
        block.basefee = 0;
    }
    if call.blob_hashes.is_some() && call.max_fee_per_blob_gas.unwrap_or_default() == 0 {
        set_blob_base_fee(block, 0);
    }
}

/// Lifts the checks that an unsigned call cannot or need not pass. From Amsterdam on, the cap of a transaction's gas bounds
/// its regular gas and forbids nothing (EIP-8037), so it stays.
pub fn lift_checks<S>(env: &mut EvmEnv<S>) {
    let cfg = &mut env.cfg_env;
    cfg.disable_nonce_check = true;
    cfg.disable_eip3607 = true;
    cfg.disable_block_gas_limit = true;
    if !cfg.enable_amsterdam_eip8037 {
        cfg.tx_gas_limit_cap = Some(u64::MAX);
    }
    cfg.tx_chain_id_check = false;
}

pub(super) fn set_blob_base_fee(env: &mut BlockEnv, price: u128) {
    let excess_blob_gas = env.blob_excess_gas_and_price.map_or(0, |blob| blob.excess_blob_gas);
    env.blob_excess_gas_and_price = Some(BlobExcessGasAndPrice { excess_blob_gas, blob_gasprice: price });
}
