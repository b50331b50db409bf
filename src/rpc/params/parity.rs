//! The parameters of Parity's trace methods.

use alloy_primitives::B256;
use alloy_rpc_types_trace::filter::{TraceFilter, TraceFilterMatcher, TraceFilterMode};
use serde::Deserialize;

use super::{
    SelectorParam, ShapeLimits, TraceRequest,
    call::{BlockOverridesParam, CallObject, StateOverridesParam, call_block_overrides, state_overrides},
    many::ManyRequest,
    parse, select,
};
use crate::{
    engine::{ParityOptions, SimBlock, StateOverrides, Tracer},
    ledger::Selector,
    rpc::{
        json::hex::{Fixed, Number},
        protocol::{
            dialect::Dialect,
            error::{Result, RpcError},
        },
    },
};

/// The parts of a trace to return.
#[derive(Debug, Deserialize)]
struct TraceTypes(Vec<TraceTypeParam>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum TraceTypeParam {
    Trace,
    VmTrace,
    StateDiff,
}

params! {
    ParityCallParams(CallObject, TraceTypes; SelectorParam, StateOverridesParam, BlockOverridesParam)
        = "2 to 5 parameters: call, trace types, block, state overrides, block overrides";
    ParityManyParams(Vec<TypedCall>; SelectorParam) = "1 or 2 parameters: calls with their trace types, block";
    ReplayBlockParams(SelectorParam, TraceTypes) = "2 parameters: block, trace types";
    ReplayTransactionParams(Fixed<32>, TraceTypes) = "2 parameters: a transaction's hash, trace types";
    TraceGetParams(Fixed<32>, Vec<Number<u64>>)
        = "2 parameters: a transaction's hash, a list with the index of a trace";
    TraceFilterParams(TraceFilterParam) = "1 parameter: a filter";
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "a call and its trace types")]
struct TypedCall(CallObject, TraceTypes);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TraceFilterParam {
    from_block: Option<SelectorParam>,
    to_block: Option<SelectorParam>,
    from_address: Option<Vec<Fixed<20>>>,
    to_address: Option<Vec<Fixed<20>>>,
    mode: Option<TraceFilterMode>,
    after: Option<Number<u64>>,
    count: Option<Number<u64>>,
}

/// A search for traces.
#[derive(Debug)]
pub struct TraceSearch {
    /// The first block.
    pub from: Selector,
    /// The last block.
    pub to: Selector,
    /// The traces that match.
    pub matcher: TraceFilterMatcher,
    /// The number of matching traces to skip.
    pub after: u64,
    /// The most traces to return. `None` returns all.
    pub count: Option<u64>,
}

impl TraceTypes {
    fn tracer(self) -> Tracer {
        let has = |one| self.0.contains(&one);
        Tracer::Parity(ParityOptions {
            trace: has(TraceTypeParam::Trace),
            vm_trace: has(TraceTypeParam::VmTrace),
            state_diff: has(TraceTypeParam::StateDiff),
        })
    }
}

/// Parses the parameters of `trace_call`.
pub fn parse_parity_call(params: &str, dialect: &Dialect) -> Result<TraceRequest> {
    let ParityCallParams(call, types, selector, state, block, ()) = parse(params, dialect)?;
    let state = state.map(|state| state_overrides(state, "params[3]")).transpose()?.unwrap_or_default();
    let block = block.map(|block| call_block_overrides(block, "params[4]", "trace_call")).transpose()?;
    let calls = vec![call.into_call("params[0]", dialect)?.into()];
    let bundle = SimBlock { calls, block: block.unwrap_or_default(), ..SimBlock::default() };
    Ok(request(state, bundle, select(selector), vec![types.tracer()]))
}

/// Parses the parameters of `trace_callMany`.
pub fn parse_parity_call_many(params: &str, dialect: &Dialect, limits: &ShapeLimits) -> Result<TraceRequest> {
    let ParityManyParams(calls, selector, ()) = parse(params, dialect)?;
    let most = limits.max_block_calls.min(limits.max_calls);
    if calls.len() > most {
        return Err(RpcError::limit(format!("params[0]: too many calls: {}, at most {most}", calls.len())));
    }
    let (mut bundle, mut tracers) = (SimBlock::default(), Vec::with_capacity(calls.len()));
    for (index, TypedCall(call, types)) in calls.into_iter().enumerate() {
        bundle.calls.push(call.into_call(format_args!("params[0][{index}][0]"), dialect)?.into());
        tracers.push(types.tracer());
    }
    let selector = selector.map_or(Selector::Pending, Selector::from);
    Ok(request(StateOverrides::default(), bundle, selector, tracers))
}

fn request(state: StateOverrides, bundle: SimBlock, selector: Selector, tracers: Vec<Tracer>) -> TraceRequest {
    let bundles = vec![bundle];
    TraceRequest { calls: ManyRequest { state, bundles, selector, index: None, timeout: None }, tracers }
}

/// Parses the parameters of `trace_replayBlockTransactions`.
pub fn parse_replay_block(params: &str, dialect: &Dialect) -> Result<(Selector, Tracer)> {
    let ReplayBlockParams(block, types, ()) = parse(params, dialect)?;
    Ok((block.into(), types.tracer()))
}

/// Parses the parameters of `trace_replayTransaction`.
pub fn parse_replay_transaction(params: &str, dialect: &Dialect) -> Result<(B256, Tracer)> {
    let ReplayTransactionParams(hash, types, ()) = parse(params, dialect)?;
    Ok((hash.into(), types.tracer()))
}

/// Parses the parameters of `trace_get`. The list of indices selects a trace only if it has one element, as in Erigon
/// and reth.
pub fn parse_trace_get(params: &str, dialect: &Dialect) -> Result<(B256, Option<usize>)> {
    let TraceGetParams(hash, indices, ()) = parse(params, dialect)?;
    let index = match indices[..] {
        [Number(index)] => usize::try_from(index).ok(),
        _ => None,
    };
    Ok((hash.into(), index))
}

/// Parses the parameters of `trace_filter`.
pub fn parse_trace_filter(params: &str, dialect: &Dialect) -> Result<TraceSearch> {
    let TraceFilterParams(filter, ()) = parse(params, dialect)?;
    let addresses = |list: Option<Vec<Fixed<20>>>| list.unwrap_or_default().into_iter().map(Fixed::into).collect();
    let addresses = TraceFilter {
        from_address: addresses(filter.from_address),
        to_address: addresses(filter.to_address),
        mode: filter.mode.unwrap_or_default(),
        ..TraceFilter::default()
    };
    Ok(TraceSearch {
        from: filter.from_block.map_or(Selector::Earliest, Selector::from),
        to: select(filter.to_block),
        matcher: addresses.matcher(),
        after: filter.after.map_or(0, |after| after.0),
        count: filter.count.map(|count| count.0),
    })
}
