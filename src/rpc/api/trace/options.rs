//! The options of geth's traces: the tracer with its config, a time limit, and the overrides of calls.

use std::{collections::BTreeMap, time::Duration};

use alloy_rpc_types_trace::geth::{CallConfig, FlatCallConfig, PreStateConfig};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    engine::{BlockOverrides, StateOverrides, StepOptions, Tracer},
    rpc::{
        json::hex::Quantity,
        params::{BlockOverridesParam, StateOverridesParam, call_block_overrides, parse_aside, state_overrides},
        protocol::{
            dialect::Dialect,
            error::{Result, RpcError},
        },
    },
    shown::cut,
};

/// The names of the tracers.
const TRACERS: &str = "callTracer, prestateTracer, 4byteTracer, flatCallTracer, stateGasTracer, noopTracer, muxTracer";

/// The options of a trace: geth's `TraceConfig`, and for calls its `TraceCallConfig`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "TraceOptions")]
pub struct Options {
    /// The name of the tracer. Without it, the struct logger records each opcode.
    #[schemars(extend("enum" = TRACERS.split(", ").collect::<Vec<_>>()))]
    tracer: Option<String>,
    #[schemars(with = "Option<TracerConfig>")]
    tracer_config: Option<Value>,
    /// A Go duration, like 5s. It can only shorten the node's own deadline.
    timeout: Option<String>,
    /// Only calls take it.
    state_overrides: Option<StateOverridesParam>,
    /// Only calls take it.
    block_overrides: Option<BlockOverridesParam>,
    /// The number of the block's transactions before the call, by default all. Only `debug_traceCall` takes it.
    pub tx_index: Option<Quantity<u64>>,
    enable_memory: Option<bool>,
    disable_stack: Option<bool>,
    disable_storage: Option<bool>,
    enable_return_data: Option<bool>,
    /// The maximum number of steps that the struct logger records; 0 is no limit.
    limit: Option<u64>,
    /// The number of blocks that geth may run again to rebuild a state. Ignored, because presim retains states.
    #[serde(rename = "reexec")]
    _reexec: Option<u64>,
    /// Makes geth print the end of the run to its own console. Ignored.
    #[serde(rename = "debug")]
    _debug: Option<bool>,
}

/// The config of a tracer. Each tracer takes its own fields only; muxTracer takes the configs of others by
/// their names.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "the shape of all configs, each of which is parsed for its tracer")]
struct TracerConfig {
    /// A field of callTracer.
    only_top_call: Option<bool>,
    /// A field of callTracer.
    with_log: Option<bool>,
    /// A field of prestateTracer.
    diff_mode: Option<bool>,
    /// A field of prestateTracer.
    disable_code: Option<bool>,
    /// A field of prestateTracer.
    disable_storage: Option<bool>,
    /// A field of flatCallTracer.
    convert_parity_errors: Option<bool>,
    /// A field of flatCallTracer.
    include_precompiles: Option<bool>,
    #[serde(flatten)]
    by_tracer: BTreeMap<String, BTreeMap<String, bool>>,
}

impl Options {
    /// Removes the overrides of a call of `method`, and returns them.
    pub fn take_overrides(&mut self, method: &str) -> Result<(BlockOverrides, StateOverrides)> {
        let block = call_block_overrides(self.block_overrides.take(), "params[2].blockOverrides", method)?;
        Ok((block, state_overrides(self.state_overrides.take(), "params[2].stateOverrides")?))
    }

    /// Returns the tracer and the time limit for transactions of the past, to which overrides cannot apply.
    pub fn tracer_of_past(&self, dialect: &Dialect) -> Result<(Tracer, Option<Duration>)> {
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
        self.tracer("params[1]", dialect)
    }

    /// Returns the tracer and the request's own time limit. `path` is the path of the options, for errors.
    pub fn tracer(&self, path: &str, dialect: &Dialect) -> Result<(Tracer, Option<Duration>)> {
        let timeout = self.timeout(path)?;
        let (config, config_path) = (self.tracer_config.as_ref(), format!("{path}.tracerConfig"));
        let tracer = match &self.tracer {
            Some(name) => tracer(name, config, (&format!("{path}.tracer"), &config_path), dialect, true)?,
            None => {
                // As in geth, the struct logger takes its options from fields next to the config, which must be empty.
                parse_aside::<NoConfig>(config, &config_path, dialect)?;
                Tracer::Steps(StepOptions {
                    memory: self.enable_memory.unwrap_or_default(),
                    stack: !self.disable_stack.unwrap_or_default(),
                    storage: !self.disable_storage.unwrap_or_default(),
                    return_data: self.enable_return_data.unwrap_or_default(),
                    limit: usize::try_from(self.limit.unwrap_or_default()).unwrap_or(usize::MAX),
                })
            }
        };
        Ok((tracer, timeout))
    }

    /// Returns the time limit. `path` is the path of the options, for errors.
    fn timeout(&self, path: &str) -> Result<Option<Duration>> {
        let Some(text) = &self.timeout else { return Ok(None) };
        go_duration(text).map(Some).ok_or_else(|| {
            RpcError::params(format!(
                "{path}.timeout: {:?}: expected a duration, like \"5s\", \"1m30s\" or \"250ms\"",
                cut(text, 80)
            ))
        })
    }
}

/// The config of a tracer that takes no options.
#[derive(Debug, Default, Deserialize)]
struct NoConfig {}

/// The config of `muxTracer`: the config of each tracer, by the tracer's name.
type MuxConfig = BTreeMap<String, Value>;

/// Returns the tracer called `name`. `mux` allows `muxTracer`, which cannot be nested.
fn tracer(
    name: &str,
    config: Option<&Value>,
    (name_path, config_path): (&str, &str),
    dialect: &Dialect,
    mux: bool,
) -> Result<Tracer> {
    Ok(match name {
        "callTracer" => Tracer::Calls(parse_aside::<CallConfig>(config, config_path, dialect)?),
        "prestateTracer" => Tracer::PreState(parse_aside::<PreStateConfig>(config, config_path, dialect)?),
        "flatCallTracer" => Tracer::FlatCalls(parse_aside::<FlatCallConfig>(config, config_path, dialect)?),
        "4byteTracer" | "stateGasTracer" | "noopTracer" => {
            parse_aside::<NoConfig>(config, config_path, dialect)?;
            match name {
                "4byteTracer" => Tracer::FourByte,
                "stateGasTracer" => Tracer::StateGas,
                _ => Tracer::Noop,
            }
        }
        "muxTracer" if mux => {
            let tracers = parse_aside::<MuxConfig>(config, config_path, dialect)?;
            if tracers.is_empty() {
                return Err(RpcError::params(format!("{config_path}: missing: expected a config for each tracer")));
            }
            let tracers = tracers.into_iter().map(|(name, config)| {
                let path = format!("{config_path}.{}", cut(&name, 80));
                tracer(&name, Some(&config), (&path, &path), dialect, false)
            });
            Tracer::Mux(tracers.collect::<Result<_>>()?)
        }
        "muxTracer" => return Err(RpcError::params(format!("{name_path}: a muxTracer cannot be nested"))),
        script if script.contains(['{', '(', '\n']) => {
            return Err(RpcError::params(format!(
                "{name_path}: JavaScript tracers are not supported: expected one of {TRACERS}"
            )));
        }
        unknown => {
            return Err(RpcError::params(format!(
                "{name_path}: {:?}: unknown tracer: expected one of {TRACERS}",
                cut(unknown, 80)
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
