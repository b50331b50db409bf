//! The precompiles of a run: the fork's, without those that overrides removed, and with those that overrides moved.

use std::sync::OnceLock;

use alloy_evm::precompiles::{Precompile, PrecompilesMap};
use alloy_primitives::Address;
use op_revm::{OpSpecId, precompiles::OpPrecompiles};
use revm::{
    context_interface::{Cfg, ContextTr},
    handler::PrecompileProvider,
    interpreter::{CallInputs, Gas, InstructionResult, InterpreterResult},
    precompile::{
        EthPrecompileResult, Precompile as Bn254Pairing, PrecompileHalt, PrecompileId, PrecompileSpecId, Precompiles,
        bn254, eth_precompile_fn,
    },
};

use super::kzg::has_kzg_settings;
use crate::{
    chain::{ChainSpec, Fork, Natives},
    meter::Stopped,
    state::Overlay,
};

/// The longest input of the pairing precompile from
/// [Karst](https://specs.optimism.io/protocol/karst/exec-engine.html#precompile-input-size-restrictions) on, in bytes:
/// 300 pairs.
const KARST_PAIRING_INPUT: usize = 57_600;

/// Returns the precompiles of Karst. op-revm's have Jovian's limit for the pairing precompile, which Base has, too.
fn karst() -> &'static Precompiles {
    static KARST: OnceLock<Precompiles> = OnceLock::new();
    KARST.get_or_init(|| {
        let mut precompiles = OpPrecompiles::new_with_spec(OpSpecId::KARST).precompiles().clone();
        precompiles.extend([Bn254Pairing::new(PrecompileId::Bn254Pairing, bn254::pair::ADDRESS, pairing)]);
        precompiles
    })
}

fn bounded_pairing(input: &[u8], gas_limit: u64) -> EthPrecompileResult {
    if input.len() > KARST_PAIRING_INPUT {
        return Err(PrecompileHalt::Bn254PairLength);
    }
    bn254::run_pair(input, bn254::pair::ISTANBUL_PAIR_PER_POINT, bn254::pair::ISTANBUL_PAIR_BASE, gas_limit)
}

eth_precompile_fn!(pairing, bounded_pairing);

/// The precompiles of a run.
///
/// Overriding a precompile's account removes the precompile, but its address stays as warm as the fork makes it: the
/// accessed addresses of a transaction begin with the fork's precompiles (EIP-2929), whatever a request overrides.
#[derive(Clone, Debug)]
pub struct RunPrecompiles {
    /// The contracts of the chain's nodes that are missing here.
    pub natives: Natives,
    fork: &'static Precompiles,
    active: PrecompilesMap,
}

impl RunPrecompiles {
    /// Returns the precompiles of a fork on `chain`.
    pub fn of(chain: &ChainSpec, fork: impl Into<Fork>) -> Self {
        let fork = match fork.into() {
            Fork::Ethereum(spec) => Precompiles::new(PrecompileSpecId::from_spec_id(spec)),
            Fork::OpStack(OpSpecId::KARST) if chain.has_karst() => karst(),
            Fork::OpStack(spec) => OpPrecompiles::new_with_spec(spec).precompiles(),
        };
        Self { natives: chain.natives().clone(), fork, active: PrecompilesMap::from_static(fork) }
    }

    /// Returns whether a precompile is at `address`.
    pub fn is_at(&self, address: &Address) -> bool {
        self.active.get(address).is_some()
    }

    /// Returns the addresses that the fork makes warm, whatever a request overrides.
    pub fn addresses(&self) -> impl Iterator<Item = Address> {
        self.fork.addresses().copied()
    }

    /// Removes the precompile at `address`, if there is one.
    pub fn remove(&mut self, address: &Address) {
        if self.is_at(address) {
            self.active.apply_precompile(address, |_| None);
        }
    }

    /// Copies the precompile at `from` to `to`, and replaces the precompile there, if any.
    pub fn copy(&mut self, from: &Address, to: Address) {
        let mut found = None;
        self.active.ensure_dynamic_precompiles();
        self.active.apply_precompile(from, |precompile| {
            found = precompile.clone();
            precompile
        });
        self.active.apply_precompile(&to, |_| found);
    }
}

impl<'a, CTX: ContextTr<Db = &'a mut Overlay>> PrecompileProvider<CTX> for RunPrecompiles
where
    PrecompilesMap: PrecompileProvider<CTX, Output = InterpreterResult>,
{
    type Output = InterpreterResult;

    fn set_spec(&mut self, spec: <CTX::Cfg as Cfg>::Spec) -> bool {
        PrecompileProvider::<CTX>::set_spec(&mut self.active, spec)
    }

    /// If the run must be short, the gas of its precompiles is bounded, because the meter ticks only on opcodes, and no
    /// precompile waits for the KZG settings.
    fn run(&mut self, context: &mut CTX, inputs: &CallInputs) -> Result<Option<InterpreterResult>, String> {
        // A precompile that fails has worked for an unknown part of the gas that the call loses, so all of it counts.
        let spent = |result: &InterpreterResult, limit: u64| match result.result.is_ok() {
            true => result.gas.total_gas_spent(),
            false => limit,
        };
        let Some(left) = context.db().meter.precompile_gas() else {
            let result = self.active.run(context, inputs)?;
            let spent = result.as_ref().map_or(0, |result| spent(result, inputs.gas_limit));
            context.db_mut().meter.take_precompile_gas(spent);
            return Ok(result);
        };
        let Some(precompile) = self.active.get(&inputs.bytecode_address) else { return Ok(None) };
        let waits = *precompile.precompile_id() == PrecompileId::KzgPointEvaluation && !has_kzg_settings();
        drop(precompile);
        if waits {
            return Err(too_long(context));
        }
        // The result and the cost of a precompile do not depend on its gas limit, unless the limit is too low.
        let bounded = CallInputs { gas_limit: inputs.gas_limit.min(left), ..inputs.clone() };
        let Some(mut result) = self.active.run(context, &bounded)? else { return Ok(None) };
        if result.result == InstructionResult::PrecompileOOG && inputs.gas_limit > left {
            return Err(too_long(context));
        }
        let used = result.gas.total_gas_spent();
        context.db_mut().meter.take_precompile_gas(spent(&result, bounded.gas_limit));
        result.gas = Gas::new(inputs.gas_limit);
        result.gas.set_spent(used);
        Ok(Some(result))
    }

    fn warm_addresses(&self) -> Box<impl Iterator<Item = Address>> {
        Box::new(self.fork.addresses().copied())
    }

    fn contains(&self, address: &Address) -> bool {
        PrecompileProvider::<CTX>::contains(&self.active, address)
    }
}

/// Stops the run, and returns the error for the EVM. The meter's reason takes precedence over it.
fn too_long<'a>(context: &mut impl ContextTr<Db = &'a mut Overlay>) -> String {
    context.db_mut().meter.stop(Stopped::TooLong);
    Stopped::TooLong.to_string()
}
