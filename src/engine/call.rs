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
    evm::{FamilyEvm, RunEvm, with_family},
    fees::{FilledCall, check_chain, tx_env},
    overrides,
    precompiles::RunPrecompiles,
    request::{BaseFeeRule, BlockOverrides, Call, CallRequest},
};
use crate::{chain::ChainSpec, state::Overlay};

impl Engine<'_> {
    /// Runs a call in `header`'s block, and discards its changes.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] if the call or an override is refused, or if the meter stopped the run.
    pub fn call(&mut self, header: &Header, request: &CallRequest) -> Result<ExecutionResult, SimulationError> {
        with_family!(self.spec, |F| {
            let PreparedCall { env, precompiles, tx } = self.prepare::<F>(header, request)?;
            let base_fee = env.block_env.basefee;
            let mut evm = RunEvm::<F>::new(self.overlay, env, precompiles);
            let ran = evm.run(tx);
            evm.rest();
            ran.map_err(|error| explain(error, &request.call, base_fee, self.overlay))
        })
    }

    /// Applies the state overrides of `request` to the overlay, and returns all else that its runs need.
    pub(super) fn prepare<F: FamilyEvm>(
        &mut self,
        header: &Header,
        request: &CallRequest,
    ) -> Result<PreparedCall<F>, SimulationError> {
        let Self { spec, rules, codes, ref mut overlay } = *self;
        let call = &request.call;
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
    let mut header = header.clone();
    header.number = overrides.number.unwrap_or(header.number);
    header.timestamp = overrides.time.unwrap_or(header.timestamp);
    if spec.blob_params(header.timestamp).is_some() {
        header.excess_blob_gas.get_or_insert(0);
    }
    let mut env = F::env(spec, &header);
    override_block(overrides, &mut env.block_env);
    env
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
    let free = call.fees.is_free();
    env.cfg_env.disable_base_fee = free;
    if free && base_fee == BaseFeeRule::ZeroWhenFree {
        env.block_env.basefee = 0;
    }
    if call.blob_hashes.is_some() && call.max_fee_per_blob_gas.unwrap_or_default() == 0 {
        set_blob_base_fee(&mut env.block_env, 0);
    }
    tx_env(call, filled)
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

/// Applies the block overrides that a call sees to `env`.
pub(super) fn override_block(overrides: &BlockOverrides, env: &mut BlockEnv) {
    use alloy_primitives::U256;
    env.number = overrides.number.map_or(env.number, U256::from);
    env.timestamp = overrides.time.map_or(env.timestamp, U256::from);
    env.gas_limit = overrides.gas_limit.unwrap_or(env.gas_limit);
    env.beneficiary = overrides.fee_recipient.unwrap_or(env.beneficiary);
    env.prevrandao = env.prevrandao.map(|random| overrides.prev_randao.unwrap_or(random));
    env.basefee = overrides.base_fee.unwrap_or(env.basefee);
    env.slot_num = overrides.slot_number.unwrap_or(env.slot_num);
    if env.prevrandao.is_none() {
        env.difficulty = overrides.difficulty.unwrap_or(env.difficulty);
    }
    if let Some(price) = overrides.blob_base_fee {
        set_blob_base_fee(env, price);
    }
}

pub(super) fn set_blob_base_fee(env: &mut BlockEnv, price: u128) {
    let excess_blob_gas = env.blob_excess_gas_and_price.map_or(0, |blob| blob.excess_blob_gas);
    env.blob_excess_gas_and_price = Some(BlobExcessGasAndPrice { excess_blob_gas, blob_gasprice: price });
}
