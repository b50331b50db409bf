//! The precompiles of a run: the fork's own, less those that overrides took away, plus those that they moved.

use alloy_evm::precompiles::PrecompilesMap;
use alloy_primitives::Address;
use revm::{
    context_interface::{Cfg, ContextTr},
    handler::PrecompileProvider,
    interpreter::{CallInputs, InterpreterResult},
    precompile::{PrecompileSpecId, Precompiles},
    primitives::hardfork::SpecId,
};

/// The precompiles of a run.
///
/// Overriding a precompile's account takes its code away, but leaves its address as warm as the fork makes it: the access list of a
/// transaction begins with the fork's precompiles (EIP-2929), whatever a request has put there.
#[derive(Clone, Debug)]
pub struct RunPrecompiles {
    fork: &'static Precompiles,
    active: PrecompilesMap,
}

impl RunPrecompiles {
    /// Those of a fork.
    pub fn of(spec: SpecId) -> Self {
        let fork = Precompiles::new(PrecompileSpecId::from_spec_id(spec));
        Self { fork, active: PrecompilesMap::from_static(fork) }
    }

    /// Whether a precompile is at `address`.
    pub fn is_at(&self, address: &Address) -> bool {
        self.active.get(address).is_some()
    }

    /// Takes the precompile at `address` away, if one is there.
    pub fn remove(&mut self, address: &Address) {
        if self.is_at(address) {
            self.active.apply_precompile(address, |_| None);
        }
    }

    /// Puts the precompile at `from` at `to` as well, in the place of what is there.
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
        self.active.run(context, inputs)
    }

    fn warm_addresses(&self) -> Box<impl Iterator<Item = Address>> {
        Box::new(self.fork.addresses().copied())
    }

    fn contains(&self, address: &Address) -> bool {
        PrecompileProvider::<CTX>::contains(&self.active, address)
    }
}
