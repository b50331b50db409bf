//! The precompiles of a run: the fork's precompiles, except the ones that overrides removed or moved.

mod op;

use alloy_primitives::{
    Address,
    map::{AddressMap, AddressSet},
};
use revm::{
    context_interface::{Cfg, ContextTr},
    handler::{PrecompileProvider, precompile_output_to_interpreter_result},
    interpreter::{CallInputs, InterpreterResult},
    precompile::{Precompile, PrecompileHalt, PrecompileId, PrecompileSpecId, Precompiles},
};

use super::kzg::has_kzg_settings;
use crate::{
    chain::{ChainSpec, Fork, Natives},
    meter::Stopped,
    state::Overlay,
};

/// Returns the precompiles of a fork.
pub fn precompiles_of(fork: Fork) -> &'static Precompiles {
    match fork {
        Fork::Ethereum(spec) => Precompiles::new(PrecompileSpecId::from_spec_id(spec)),
        Fork::OpStack(fork) => op::precompiles(fork),
    }
}

/// The precompiles of a run.
///
/// Overriding a precompile's account removes the precompile, but its address stays as warm as the fork makes it: the
/// accessed addresses of a transaction begin with the fork's precompiles (EIP-2929), regardless of overrides.
#[derive(Clone, Debug)]
pub struct RunPrecompiles {
    /// The contracts of the chain's nodes that are missing here.
    pub natives: Natives,
    fork: &'static Precompiles,
    /// The precompiles by the addresses at which overrides have left them. `None` if they are the fork's.
    moved: Option<AddressMap<Precompile>>,
}

impl RunPrecompiles {
    /// Returns the precompiles of a fork on `chain`.
    pub fn of(chain: &ChainSpec, fork: impl Into<Fork>) -> Self {
        let fork = precompiles_of(fork.into());
        Self { natives: chain.natives().clone(), fork, moved: None }
    }

    /// Returns whether a precompile is at `address`.
    pub fn is_at(&self, address: &Address) -> bool {
        self.get(address).is_some()
    }

    /// Removes the precompile at `address`, if there is one.
    pub fn remove(&mut self, address: &Address) {
        if self.is_at(address) {
            self.moved_mut().remove(address);
        }
    }

    /// Copies the precompile at `from` to `to`, and replaces the precompile there, if any.
    pub fn copy(&mut self, from: &Address, to: Address) {
        if let Some(precompile) = self.get(from).cloned() {
            self.moved_mut().insert(to, precompile);
        }
    }

    fn get(&self, address: &Address) -> Option<&Precompile> {
        match &self.moved {
            None => self.fork.get(address),
            Some(moved) => moved.get(address),
        }
    }

    fn moved_mut(&mut self) -> &mut AddressMap<Precompile> {
        self.moved.get_or_insert_with(|| self.fork.inner().clone())
    }
}

impl<'a, CTX: ContextTr<Db = &'a mut Overlay>> PrecompileProvider<CTX> for RunPrecompiles {
    type Output = InterpreterResult;

    /// Does nothing, because a run has its fork's precompiles from the start.
    fn set_spec(&mut self, _: <CTX::Cfg as Cfg>::Spec) -> bool {
        false
    }

    /// If the run must be short, the gas of its precompiles is bounded, because the meter ticks only on opcodes, and no
    /// precompile waits for the KZG settings.
    fn run(&mut self, context: &mut CTX, inputs: &CallInputs) -> Result<Option<InterpreterResult>, String> {
        let Some(precompile) = self.get(&inputs.bytecode_address) else { return Ok(None) };
        let bound = context.db().meter.precompile_gas();
        let waits = || *precompile.id() == PrecompileId::KzgPointEvaluation && !has_kzg_settings();
        if bound.is_some() && waits() {
            return Err(too_long(context));
        }
        // The result and the cost of a precompile do not depend on its gas limit, unless the limit is too low.
        let limit = bound.map_or(inputs.gas_limit, |bound| inputs.gas_limit.min(bound));
        let output = precompile.execute(&inputs.input.as_bytes(context), limit, inputs.reservoir);
        let output = output.map_err(|error| error.to_string())?;
        let is_out_of_gas = output.gas_used > limit || output.halt_reason().is_some_and(PrecompileHalt::is_oog);
        if is_out_of_gas && limit < inputs.gas_limit {
            return Err(too_long(context));
        }
        // A precompile that fails has worked for an unknown part of the gas that the call loses, so all of it counts.
        let spent = if output.is_success() { output.gas_used } else { limit };
        context.db_mut().meter.take_precompile_gas(spent);
        Ok(Some(precompile_output_to_interpreter_result(output, inputs.gas_limit)))
    }

    fn warm_addresses(&self) -> &AddressSet {
        self.fork.addresses_set()
    }

    fn contains(&self, address: &Address) -> bool {
        self.is_at(address)
    }
}

/// Stops the run, and returns the error for the EVM. The meter's reason takes precedence over it.
fn too_long<'a>(context: &mut impl ContextTr<Db = &'a mut Overlay>) -> String {
    context.db_mut().meter.stop(Stopped::TooLong);
    Stopped::TooLong.to_string()
}
