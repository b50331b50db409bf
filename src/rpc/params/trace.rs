//! The parameters of the methods that trace calls, transactions and blocks, and their tracers.

use std::time::Duration;

use alloy_primitives::B256;
use alloy_rpc_types_trace::geth::{CallConfig, FlatCallConfig, PreStateConfig};
use serde::Deserialize;
use serde_json::Value;

use super::{
    SelectorParam, ShapeLimits,
    block::NamesBlock,
    call::{BlockOverridesParam, CallObject, StateOverridesParam, call_block_overrides, state_overrides},
    many::{CallManyBundleParam, ManyRequest, StateContextParam, into_bundles},
    parse, parse_aside, select,
};
use crate::{
    engine::{SimBlock, StepOptions, Tracer},
    ledger::Selector,
    rpc::{
        json::hex::{Fixed, Quantity},
        protocol::{
            dialect::Dialect,
            error::{Result, RpcError},
        },
    },
    shown::{self, cut},
};

/// Calls to trace, and the tracer.
#[derive(Debug)]
pub struct TraceRequest {
    /// The calls, and the position in a block where they run.
    pub calls: ManyRequest,
    /// The tracer of each call, in order. The last one serves all further calls.
    pub tracers: Vec<Tracer>,
}

params! {
    TraceCallParams(CallObject; SelectorParam, CallOptions) = "1 to 3 parameters: call, block, options";
    TraceManyParams(Vec<CallManyBundleParam>; StateContextParam, ManyOptions)
        = "1 to 3 parameters: bundles, state context, options";
    TraceBlockParams<B>(B; CallOptions) = "1 or 2 parameters: block, options";
    TraceTransactionParams(Fixed<32>; CallOptions) = "1 or 2 parameters: a transaction's hash, options";
}

/// The options of `debug_traceCall`: geth's `TraceCallConfig`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CallOptions {
    tracer: Option<String>,
    /// The tracer's config, whose fields depend on the tracer.
    tracer_config: Option<Value>,
    timeout: Option<String>,
    state_overrides: Option<StateOverridesParam>,
    block_overrides: Option<BlockOverridesParam>,
    tx_index: Option<Quantity<u64>>,
    enable_memory: Option<bool>,
    disable_stack: Option<bool>,
    disable_storage: Option<bool>,
    enable_return_data: Option<bool>,
    limit: Option<u64>,
    /// The number of blocks that geth may run again to rebuild a state. Ignored, because presim retains states.
    #[serde(rename = "reexec")]
    _reexec: Option<u64>,
    /// Makes geth print the end of the run to its own console. Ignored.
    #[serde(rename = "debug")]
    _debug: Option<bool>,
}

/// The options of `debug_traceCallMany`: the same, except that the state context names the position.
type ManyOptions = CallOptions;

/// A block or a transaction to trace, and the tracer.
#[derive(Debug)]
pub struct ReplayRequest<T> {
    /// The block or the transaction to trace.
    pub subject: T,
    /// The tracer that observes each transaction.
    pub tracer: Tracer,
    /// The request's own time limit. `None` leaves the node's limit.
    pub timeout: Option<Duration>,
}

/// Parses the parameters of `debug_traceBlockByNumber` and `debug_traceBlockByHash`.
pub fn parse_trace_block<B: NamesBlock>(params: &str, dialect: &Dialect) -> Result<ReplayRequest<Selector>> {
    let TraceBlockParams::<B>(block, options, ()) = parse(params, dialect)?;
    options.unwrap_or_default().into_replay(block.into(), dialect)
}

/// Parses the parameters of `debug_traceTransaction`.
pub fn parse_trace_transaction(params: &str, dialect: &Dialect) -> Result<ReplayRequest<B256>> {
    let TraceTransactionParams(hash, options, ()) = parse(params, dialect)?;
    options.unwrap_or_default().into_replay(hash.into(), dialect)
}

/// Parses the parameters of `debug_traceCall`.
pub fn parse_trace_call(params: &str, dialect: &Dialect) -> Result<TraceRequest> {
    let TraceCallParams(call, selector, options, ()) = parse(params, dialect)?;
    let selector = select(selector);
    let mut options = options.unwrap_or_default();
    let block = options
        .block_overrides
        .take()
        .map(|block| call_block_overrides(block, "params[2].blockOverrides", "debug_traceCall"))
        .transpose()?
        .unwrap_or_default();
    let state = options.take_state()?;
    let calls = vec![call.into_call("params[0]", dialect)?.into()];
    let calls = ManyRequest {
        state,
        bundles: vec![SimBlock { calls, block, ..SimBlock::default() }],
        selector,
        index: options.tx_index.map(|index| index.0),
        timeout: options.timeout("params[2]")?,
    };
    Ok(TraceRequest { calls, tracers: vec![options.tracer("params[2]", dialect)?] })
}

/// Parses the parameters of `debug_traceCallMany`.
pub fn parse_trace_many(params: &str, dialect: &Dialect, limits: &ShapeLimits) -> Result<TraceRequest> {
    let TraceManyParams(bundles, context, options, ()) = parse(params, dialect)?;
    let mut options = options.unwrap_or_default();
    if options.tx_index.is_some() {
        return Err(RpcError::params(
            "params[2].txIndex: not supported by debug_traceCallMany: use params[1].transactionIndex",
        ));
    }
    let (selector, index) = context.unwrap_or_default().into_place();
    let mut bundles = into_bundles(bundles, "debug_traceCallMany", dialect, limits)?;
    if let Some(block) = options.block_overrides.take() {
        // These overrides apply to all bundles. A bundle's own overrides take precedence.
        let all = call_block_overrides(block, "params[2].blockOverrides", "debug_traceCallMany")?;
        for (index, bundle) in bundles.iter_mut().enumerate() {
            bundle.block = std::mem::take(&mut bundle.block).or(&all, index == 0);
        }
    }
    let state = options.take_state()?;
    let timeout = options.timeout("params[2]")?;
    let calls = ManyRequest { state, bundles, selector, index, timeout };
    Ok(TraceRequest { calls, tracers: vec![options.tracer("params[2]", dialect)?] })
}

impl CallOptions {
    fn take_state(&mut self) -> Result<crate::engine::StateOverrides> {
        let state = self.state_overrides.take().map(|state| state_overrides(state, "params[2].stateOverrides"));
        Ok(state.transpose()?.unwrap_or_default())
    }

    /// Returns the request for transactions of the past, to which overrides cannot apply.
    fn into_replay<T>(self, subject: T, dialect: &Dialect) -> Result<ReplayRequest<T>> {
        let overrides = [
            ("stateOverrides", self.state_overrides.is_some()),
            ("blockOverrides", self.block_overrides.is_some()),
            ("txIndex", self.tx_index.is_some()),
        ];
        // geth ignores these fields here.
        if let Some((field, _)) = overrides.iter().find(|(_, set)| *set && dialect.refuses_unknown_fields) {
            return Err(RpcError::params(format!(
                "params[1].{field}: only calls take this field: use debug_traceCall"
            )));
        }
        let timeout = self.timeout("params[1]")?;
        Ok(ReplayRequest { subject, tracer: self.tracer("params[1]", dialect)?, timeout })
    }

    /// Returns the time limit. `place` is the path of the options, for errors.
    fn timeout(&self, place: &str) -> Result<Option<Duration>> {
        let Some(text) = &self.timeout else { return Ok(None) };
        go_duration(text).map(Some).ok_or_else(|| {
            RpcError::params(format!(
                "{place}.timeout: {}: expected a duration, like \"5s\", \"1m30s\" or \"250ms\"",
                shown::wrong(text)
            ))
        })
    }

    /// Returns the tracer. `place` is the path of the options, for errors.
    fn tracer(&self, place: &str, dialect: &Dialect) -> Result<Tracer> {
        let (config, config_place) = (self.tracer_config.as_ref(), format!("{place}.tracerConfig"));
        match &self.tracer {
            Some(name) => tracer(name, config, (&format!("{place}.tracer"), &config_place), dialect, true),
            None => {
                // As in geth, the struct logger takes its options from fields beside the config, which must be empty.
                parse_aside::<NoConfig>(config, &config_place, dialect)?;
                Ok(Tracer::Steps(StepOptions {
                    memory: self.enable_memory.unwrap_or_default(),
                    stack: !self.disable_stack.unwrap_or_default(),
                    storage: !self.disable_storage.unwrap_or_default(),
                    return_data: self.enable_return_data.unwrap_or_default(),
                    limit: usize::try_from(self.limit.unwrap_or_default()).unwrap_or(usize::MAX),
                }))
            }
        }
    }
}

/// The config of a tracer that takes no options.
#[derive(Debug, Default, Deserialize)]
struct NoConfig {}

/// The config of `muxTracer`: the config of each tracer, by the tracer's name.
type MuxConfig = std::collections::BTreeMap<String, Value>;

/// The names of the tracers, for error texts.
const TRACERS: &str = "callTracer, prestateTracer, 4byteTracer, flatCallTracer, stateGasTracer, noopTracer, muxTracer";

/// Returns the tracer called `name`. `mux` allows `muxTracer`, which cannot be nested.
fn tracer(
    name: &str,
    config: Option<&Value>,
    (name_place, config_place): (&str, &str),
    dialect: &Dialect,
    mux: bool,
) -> Result<Tracer> {
    Ok(match name {
        "callTracer" => Tracer::Calls(parse_aside::<CallConfig>(config, config_place, dialect)?),
        "prestateTracer" => Tracer::PreState(parse_aside::<PreStateConfig>(config, config_place, dialect)?),
        "flatCallTracer" => Tracer::FlatCalls(parse_aside::<FlatCallConfig>(config, config_place, dialect)?),
        "4byteTracer" | "stateGasTracer" | "noopTracer" => {
            parse_aside::<NoConfig>(config, config_place, dialect)?;
            match name {
                "4byteTracer" => Tracer::FourByte,
                "stateGasTracer" => Tracer::StateGas,
                _ => Tracer::Noop,
            }
        }
        "muxTracer" if mux => {
            let tracers = parse_aside::<MuxConfig>(config, config_place, dialect)?;
            if tracers.is_empty() {
                return Err(RpcError::params(format!("{config_place}: missing: expected a config for each tracer")));
            }
            let tracers = tracers.into_iter().map(|(name, config)| {
                let place = format!("{config_place}.{}", cut(&name, 80));
                tracer(&name, Some(&config), (&place, &place), dialect, false)
            });
            Tracer::Mux(tracers.collect::<Result<_>>()?)
        }
        "muxTracer" => return Err(RpcError::params(format!("{name_place}: a muxTracer cannot be nested"))),
        script if script.contains(['{', '(', '\n']) => {
            return Err(RpcError::params(format!(
                "{name_place}: JavaScript tracers are not supported: expected one of {TRACERS}"
            )));
        }
        unknown => {
            return Err(RpcError::params(format!(
                "{name_place}: {}: unknown tracer: expected one of {TRACERS}",
                shown::wrong(unknown)
            )));
        }
    })
}

/// Parses a Go duration: decimal numbers, each with its unit. Returns `None` if `text` is malformed or negative.
fn go_duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let unit = match &rest[..end] {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        seconds += number * unit;
        rest = &rest[end..];
    }
    Duration::try_from_secs_f64(seconds).ok()
}
