//! Traces: of calls (`debug_traceCall` and `debug_traceCallMany`), and of what happened.

mod parity;
mod replay;
mod storage;

use std::sync::Arc;

use super::many::{in_bundles, refusal};
use crate::rpc::run::{Backend, Run};
use crate::{
    engine::Trace,
    rpc::{
        json,
        params::TraceRequest,
        protocol::error::{Result, RpcError},
    },
};

impl Backend {
    pub fn trace_call(&self, run: &mut Run<'_>, request: TraceRequest) -> Result<()> {
        let bundles = self.trace(run, &request, "params[2].txIndex", |_, _| "params[0]".to_owned())?;
        match bundles.first().and_then(|bundle| bundle.first()) {
            Some(trace) => json::trace(&mut run.out, trace, None, self.limits.max_response),
            None => Err(RpcError::internal("a call that ran has no trace")),
        }
    }

    pub fn trace_call_many(&self, run: &mut Run<'_>, request: TraceRequest) -> Result<()> {
        let bundles = self.trace(run, &request, "params[1].transactionIndex", in_bundles)?;
        let mut encoded = Ok(());
        json::list(&mut run.out, &bundles, |out, bundle| {
            json::list(out, bundle, |out, trace| {
                if encoded.is_ok() {
                    encoded = json::trace(out, trace, None, self.limits.max_response);
                }
            });
        });
        encoded
    }

    /// Traces calls. `index` is the field of the position in the block, and `place` returns that of a call, for errors.
    fn trace(
        &self,
        run: &mut Run<'_>,
        TraceRequest { calls, tracers }: &TraceRequest,
        index: &str,
        place: fn(usize, usize) -> String,
    ) -> Result<Vec<Vec<Arc<Trace>>>> {
        let rules = self.rules(run.dialect);
        let (snapshot, overlay) = self.set_up(calls, index, run)?;
        let done = self
            .engine(&rules, overlay)
            .call_many(&snapshot, &calls.state, &calls.bundles, tracers)
            .map_err(|error| refusal(error, place))?;
        self.gas.increment(done.gas_used);
        let traces =
            done.blocks.into_iter().map(|bundle| bundle.calls.into_iter().filter_map(|call| call.trace).collect());
        Ok(traces.collect())
    }
}
