//! Traces in Parity's form: of calls, and of the transactions of blocks.

use alloy_primitives::map::HashSet;
use alloy_rpc_types_trace::parity::TraceType;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{
    run::{find_block, find_traced, replay, trace_call, trace_calls},
    schema::ParityTrace,
};
use crate::{
    engine::{SimBlock, StateOverrides, Trace, Tracer},
    ledger::Selector,
    rpc::{
        api::{Example, Method},
        json::{self, hex::Fixed},
        params::{
            BlockOverridesParam, CallObject, ManyRequest, SelectorParam, StateOverridesParam, call_block_overrides,
            select, state_overrides,
        },
        protocol::error::{Result, RpcError},
        run::{Attempt, Backend},
    },
};

/// The parts of a trace.
#[derive(Debug, Deserialize, JsonSchema)]
struct TraceTypes(
    #[schemars(with = "Vec<String>", extend("items" = json!({"enum": ["trace", "vmTrace", "stateDiff"]})))]
    HashSet<TraceType>,
);

/// Returns the request for a bundle of calls on the state of a block.
fn on_block(selector: Selector, bundle: SimBlock, state: StateOverrides) -> ManyRequest {
    ManyRequest { state, bundles: vec![bundle], selector, index: None, timeout: None }
}

/// Traces a call in Parity's form.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    expecting = "2 to 5 parameters: call, trace types, block, state overrides, block overrides"
)]
pub struct Call {
    call: CallObject,
    trace_types: TraceTypes,
    #[serde(default)]
    block: Option<SelectorParam>,
    #[serde(default)]
    state_overrides: Option<StateOverridesParam>,
    #[serde(default)]
    block_overrides: Option<BlockOverridesParam>,
}

impl Method for Call {
    type Answer = ParityTrace;
    const EXAMPLE: Example = Example {
        params: r#"[{"to": "0x00000000000000000000000000000000000000aa"}, ["stateDiff"], "latest"]"#,
        answer: r#"{"output": "0x", "stateDiff": {}, "trace": [], "vmTrace": null}"#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let state = state_overrides(self.state_overrides, "params[3]")?;
        let block = call_block_overrides(self.block_overrides, "params[4]", "trace_call")?;
        let calls = vec![self.call.into_call("params[0]", run.dialect)?.into()];
        let call = on_block(select(self.block), SimBlock { calls, block, ..SimBlock::default() }, state);
        trace_call(backend, run, &call, Tracer::Parity(self.trace_types.0))
    }
}

/// Traces calls in Parity's form, each on the state left by the previous ones, by default on the block being built.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 or 2 parameters: calls with their trace types, block")]
pub struct CallMany {
    /// Pairs of a call and its trace types.
    calls: Vec<TypedCall>,
    #[serde(default)]
    block: Option<SelectorParam>,
}

/// A call and its trace types.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "a call and its trace types")]
struct TypedCall(CallObject, TraceTypes);

impl Method for CallMany {
    type Answer = Vec<ParityTrace>;
    const EXAMPLE: Example = Example {
        params: r#"[[[{"to": "0x00000000000000000000000000000000000000aa"}, ["stateDiff"]]], "pending"]"#,
        answer: r#"[{"output": "0x", "stateDiff": {}, "trace": [], "vmTrace": null}]"#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let (count, limits) = (self.calls.len(), &backend.limits.shape);
        let most = limits.max_block_calls.min(limits.max_calls);
        if count > most {
            return Err(RpcError::limit(format!("params[0]: too many calls: {count}, at most {most}")));
        }
        let (mut bundle, mut tracers) = (SimBlock::default(), Vec::with_capacity(count));
        for (index, TypedCall(call, types)) in self.calls.into_iter().enumerate() {
            bundle.calls.push(call.into_call(format_args!("params[0][{index}][0]"), run.dialect)?.into());
            tracers.push(Tracer::Parity(types.0));
        }
        let calls = on_block(self.block.map_or(Selector::Pending, Selector::from), bundle, StateOverrides::default());
        let traces = trace_calls(backend, run, &calls, &tracers, "", |_, call| format!("params[0][{call}][0]"))?;
        json::try_list(&mut run.out, traces.iter().flatten(), |out, trace| {
            json::trace(out, trace, backend.limits.max_response)
        })
    }
}

/// Traces the transactions of a block in Parity's form.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", expecting = "2 parameters: block, trace types")]
pub struct ReplayBlock {
    block: SelectorParam,
    trace_types: TraceTypes,
}

impl Method for ReplayBlock {
    type Answer = Vec<ParityTrace>;
    const EXAMPLE: Example = Example { params: r#"["latest", ["trace"]]"#, answer: "[]" };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let block = find_block(backend, run.published, self.block.into())?;
        run.out.push(b'[');
        if !block.is_empty() {
            let tracer = Tracer::Parity(self.trace_types.0);
            replay(backend, run, &block, 0..block.len(), &tracer, |out, included, trace| {
                let Trace::Parity(trace) = trace else {
                    return Err(RpcError::internal("another tracer has run than Parity's"));
                };
                if included.index > 0 {
                    out.push(b',');
                }
                json::parity_results(out, &trace, Some(*included.tx.tx_hash()), backend.limits.max_response)
            })?;
        }
        run.out.push(b']');
        Ok(())
    }
}

/// Traces a transaction in Parity's form.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", expecting = "2 parameters: a transaction's hash, trace types")]
pub struct ReplayTransaction {
    hash: Fixed<32>,
    trace_types: TraceTypes,
}

impl Method for ReplayTransaction {
    type Answer = ParityTrace;
    const EXAMPLE: Example = Example {
        params: r#"["0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421", ["trace"]]"#,
        answer: r#"{"output": "0x", "stateDiff": null, "trace": [], "vmTrace": null}"#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let (block, index) = find_traced(run.published, self.hash)?;
        replay(backend, run, &block, index..index + 1, &Tracer::Parity(self.trace_types.0), |out, _, trace| {
            json::trace(out, &trace, backend.limits.max_response)
        })
    }
}
