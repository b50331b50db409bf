//! `eth_callMany` and the traces of calls: each call sees the changes of the previous ones.

use alloy_consensus::Header;
use alloy_evm::EvmEnv;
use revm::context::{TxEnv, result::ExecutionResult};

use super::{
    Engine,
    call::{environment, fill},
    error::{SimulationError, explain},
    evm::{FamilyEvm, RunEvm, TxSetup, with_family},
    fees::check_chain,
    overrides,
    precompiles::RunPrecompiles,
    recorder::trace,
    request::{BlockOverrides, Bundles, Call},
    trace::{Trace, TraceBudget, Tracer},
};
use crate::state::Overlay;

/// The reason why bundles of calls did not run to their end.
#[derive(Debug, thiserror::Error)]
pub enum ManyError {
    /// A reason that belongs to no single call: an override, a stop by the meter, or a fault of the node.
    #[error(transparent)]
    Request(#[from] SimulationError),
    /// A call is refused.
    #[error("call {call} of bundle {bundle}: {error}")]
    Call {
        /// Index of the bundle, from 0.
        bundle: usize,
        /// Index of the call in its bundle, from 0.
        call: usize,
        /// The reason.
        error: Box<SimulationError>,
    },
}

impl Engine<'_> {
    /// Runs bundles in `header`'s block, one call after another. Returns one list of results per bundle.
    ///
    /// # Errors
    ///
    /// Returns [`ManyError::Call`] if a call is refused, else [`ManyError::Request`].
    pub fn call_many(&mut self, header: &Header, request: &Bundles) -> Result<Vec<Vec<ExecutionResult>>, ManyError> {
        with_family!(self.spec, |F| self.each_call::<F, _>(header, request, |call, (tx, env, precompiles), overlay| {
            let base_fee = env.block_env.basefee;
            let mut evm = RunEvm::<F>::new(&mut *overlay, env, precompiles);
            let ran = evm.commit(tx);
            evm.rest();
            let ran = ran.map_err(|error| explain(error, call, base_fee, overlay))?;
            let gas_used = ran.tx_gas_used();
            Ok((ran, gas_used))
        }))
    }

    /// Traces bundles, with `budget` for all traces. `tracers` are those of the calls, in order; the last one serves all
    /// further calls. Returns one list of traces per bundle, and the gas used.
    ///
    /// # Errors
    ///
    /// Returns [`ManyError::Call`] if a call is refused or its trace exceeds the budget, else [`ManyError::Request`].
    pub fn trace_many(
        &mut self,
        header: &Header,
        request: &Bundles,
        tracers: &[Tracer],
        mut budget: TraceBudget,
    ) -> Result<(Vec<Vec<Trace>>, u64), ManyError> {
        let (mut gas_used, mut next) = (0, tracers.iter());
        let mut tracer = &Tracer::Noop;
        let traces = with_family!(self.spec, |F| {
            self.each_call::<F, _>(header, request, |call, (tx, env, precompiles), overlay| {
                tracer = next.next().unwrap_or(tracer);
                let base_fee = env.block_env.basefee;
                let setup = TxSetup::unsigned(tx, env, precompiles);
                let (trace, used) = trace::<F>(setup, tracer, &mut budget, overlay, |error, overlay| {
                    explain(error, call, base_fee, overlay)
                })?;
                gas_used += used;
                Ok((trace, used))
            })
        })?;
        Ok((traces, gas_used))
    }

    /// Passes each call, filled in, to `run`, which keeps the call's changes and returns its result and the gas used.
    ///
    /// The rules are those of Erigon, which introduced `eth_callMany`. State overrides apply once, at the start. The
    /// default block number, timestamp and slot of a bundle are those of the previous bundle, plus one.
    fn each_call<F: FamilyEvm, T>(
        &mut self,
        header: &Header,
        request: &Bundles,
        mut run: impl FnMut(&Call, CallSetup<F>, &mut Overlay) -> Result<(T, u64), SimulationError>,
    ) -> Result<Vec<Vec<T>>, ManyError> {
        let Self { spec, rules, codes, ref mut overlay } = *self;
        let mut gas_left = rules.gas_cap;
        let mut results = Vec::with_capacity(request.bundles.len());
        let (mut number, mut time, mut slot) = (header.number, header.timestamp, header.slot_number);
        for (index, bundle) in request.bundles.iter().enumerate() {
            number = bundle.block.number.unwrap_or(number);
            time = bundle.block.time.unwrap_or(time);
            slot = bundle.block.slot_number.or(slot);
            let block =
                BlockOverrides { number: Some(number), time: Some(time), slot_number: slot, ..bundle.block.clone() };
            let env = environment::<F>(spec, header, &block);
            let precompiles = if index == 0 {
                overrides::apply(&request.state, overlay, codes, spec, env.cfg_env.spec)?
            } else {
                overrides::precompiles(&request.state, spec, env.cfg_env.spec)?
            };
            let mut done = Vec::with_capacity(bundle.calls.len());
            for (at, call) in bundle.calls.iter().enumerate() {
                overlay.meter.between_calls().map_err(SimulationError::from)?;
                let refused = |error| match error {
                    error @ (SimulationError::Stopped(_) | SimulationError::Internal(_)) => ManyError::Request(error),
                    error => ManyError::Call { bundle: index, call: at, error: Box::new(error) },
                };
                check_chain(call, spec).map_err(refused)?;
                if gas_left == 0 {
                    return Err(refused(SimulationError::Refused(format!(
                        "no gas is left: the previous calls have used the {} that a request may use: set the gas of each call, or raise --gas-cap",
                        rules.gas_cap
                    ))));
                }
                let mut env = env.clone();
                let tx = fill::<F>(spec, call, gas_left, rules.base_fee, &mut env, overlay);
                let (result, gas_used) = run(call, (tx, env, precompiles.clone()), overlay).map_err(refused)?;
                gas_left = gas_left.saturating_sub(gas_used);
                done.push(result);
            }
            results.push(done);
            (number, time) = (number.saturating_add(1), time.saturating_add(1));
            slot = slot.map(|slot| slot.saturating_add(1));
        }
        Ok(results)
    }
}

/// A call that is ready to run once: its transaction, environment and precompiles.
type CallSetup<F> = (TxEnv, EvmEnv<<F as FamilyEvm>::Spec>, RunPrecompiles);
