//! The precompiles of a run: the fork's, without those that overrides removed, and with those that overrides moved.

use alloy_evm::precompiles::PrecompilesMap;
use alloy_primitives::Address;
use op_revm::precompiles::OpPrecompiles;
use revm::{
    context_interface::{Cfg, ContextTr},
    handler::PrecompileProvider,
    interpreter::{CallInputs, Gas, InstructionResult, InterpreterResult},
    precompile::{PrecompileSpecId, Precompiles},
};

use crate::chain::Fork;

/// The precompiles of a run.
///
/// Overriding a precompile's account removes the precompile, but its address stays as warm as the fork makes it: the
/// accessed addresses of a transaction begin with the fork's precompiles (EIP-2929), whatever a request overrides.
#[derive(Clone, Debug)]
pub struct RunPrecompiles {
    fork: &'static Precompiles,
    active: PrecompilesMap,
    /// Gas that precompiles may still use. `None` if the run need not be short.
    short: Option<u64>,
    /// Whether a precompile needed more than that.
    too_long: bool,
}

/// Gas that all precompiles of a short run may use together: some tens of microseconds of the most expensive one.
const SHORT_GAS: u64 = 100_000;

impl RunPrecompiles {
    /// Returns the precompiles of a fork.
    pub fn of(fork: impl Into<Fork>) -> Self {
        let fork = match fork.into() {
            Fork::Ethereum(spec) => Precompiles::new(PrecompileSpecId::from_spec_id(spec)),
            Fork::OpStack(spec) => OpPrecompiles::new_with_spec(spec).precompiles(),
        };
        Self { fork, active: PrecompilesMap::from_static(fork), short: None, too_long: false }
    }

    /// Stops the run if its precompiles would take long. The meter cannot do that, because it ticks only on opcodes.
    pub const fn keep_short(&mut self) {
        self.short = Some(SHORT_GAS);
    }

    /// Returns whether the run was stopped because its precompiles would take long.
    pub const fn was_too_long(&self) -> bool {
        self.too_long
    }

    /// Returns whether a precompile is at `address`.
    pub fn is_at(&self, address: &Address) -> bool {
        self.active.get(address).is_some()
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

impl<CTX: ContextTr> PrecompileProvider<CTX> for RunPrecompiles
where
    PrecompilesMap: PrecompileProvider<CTX, Output = InterpreterResult>,
{
    type Output = InterpreterResult;

    fn set_spec(&mut self, spec: <CTX::Cfg as Cfg>::Spec) -> bool {
        PrecompileProvider::<CTX>::set_spec(&mut self.active, spec)
    }

    fn run(&mut self, context: &mut CTX, inputs: &CallInputs) -> Result<Option<InterpreterResult>, String> {
        let Some(left) = &mut self.short else { return self.active.run(context, inputs) };
        if self.active.get(&inputs.bytecode_address).is_none() {
            return Ok(None);
        }
        // The result and the cost of a precompile do not depend on its gas limit, unless the limit is too low.
        let bounded = CallInputs { gas_limit: inputs.gas_limit.min(*left), ..inputs.clone() };
        let Some(mut result) = self.active.run(context, &bounded)? else { return Ok(None) };
        if result.result == InstructionResult::PrecompileOOG && inputs.gas_limit > *left {
            self.too_long = true;
            return Err("the precompiles take too long to run inline".to_owned());
        }
        let used = result.gas.total_gas_spent();
        // A precompile that fails has worked for an unknown part of the gas that the call loses, so all of it counts.
        *left = left.saturating_sub(if result.result.is_ok() { used } else { bounded.gas_limit });
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
