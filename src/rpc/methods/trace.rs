//! `debug_traceCall` and `debug_traceCallMany`.

use super::{
    Asked, Backend, Worker,
    many::{in_bundles, refusal},
};
use crate::{
    engine::{Trace, TraceBudget},
    rpc::{
        encode,
        error::RpcError,
        wire::{self, TraceRequest},
    },
};

impl Backend {
    pub(super) fn trace_call(&self, asked: Asked<'_>, worker: Worker<'_>, out: &mut Vec<u8>) -> Result<(), RpcError> {
        let request = wire::parse_trace_call(asked.params, asked.dialect)?;
        let bundles = self.trace(asked, &request, "params[2].txIndex", |_, _| "params[0]".to_owned(), worker)?;
        match bundles.first().and_then(|bundle| bundle.first()) {
            Some(trace) => encode::trace(out, trace, self.limits.max_response),
            None => Err(RpcError::internal("a call that ran has no trace")),
        }
    }

    pub(super) fn trace_call_many(
        &self,
        asked: Asked<'_>,
        worker: Worker<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), RpcError> {
        let request = wire::parse_trace_many(asked.params, asked.dialect, &self.limits.shape)?;
        let bundles = self.trace(asked, &request, "params[1].transactionIndex", in_bundles, worker)?;
        let mut encoded = Ok(());
        encode::list(out, &bundles, |out, bundle| {
            encode::list(out, bundle, |out, trace| {
                if encoded.is_ok() {
                    encoded = encode::trace(out, trace, self.limits.max_response);
                }
            });
        });
        encoded
    }

    fn trace(
        &self,
        asked: Asked<'_>,
        TraceRequest { calls, tracer }: &TraceRequest,
        index: &str,
        place: fn(usize, usize) -> String,
        worker: Worker<'_>,
    ) -> Result<Vec<Vec<Trace>>, RpcError> {
        let (snapshot, overlay) = self.stand(asked.published, calls, index, worker)?;
        let rules = self.rules(asked.dialect);
        let budget = TraceBudget::new(self.limits.max_trace);
        let (traces, gas_used) = self
            .engine(&rules, overlay)
            .trace_many(snapshot.header(), &calls.bundles, tracer, budget)
            .map_err(|error| refusal(error, place))?;
        self.gas.0.increment(gas_used);
        Ok(traces)
    }
}
