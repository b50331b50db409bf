//! The parameters of the methods for standing bundles.

use std::collections::HashSet;

use alloy_primitives::I256;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::rpc::{
    api::search::request::{Search, SearchPayload, SearchRequest},
    params::{SelectorParam, ShapeLimits, parse},
};
use crate::{
    engine::{Aim, SimCall, Simulation, VariedPart, VariedTarget},
    ledger::Selector,
    rpc::{
        api::simulate::{Payload, SimulationRequest, parse_presim_simulation},
        json::hex::{Fixed, Number, Quantity, SignedNumber},
        protocol::{
            dialect::Dialect,
            error::{Result, RpcError},
        },
    },
    shown,
};

/// The bundles that a client wants to watch.
#[derive(Debug)]
pub struct WatchRequest {
    /// The bundles with their names.
    pub bundles: Vec<(String, WatchedBundle)>,
    /// The snapshots on which they run: the ones that `pending` or `latest` selects.
    pub selector: Selector,
    /// About how many bytes the bundles take.
    pub bytes: usize,
}

/// A standing bundle.
#[derive(Debug)]
pub struct WatchedBundle {
    /// The payload.
    pub payload: WatchedPayload,
    /// Whether it runs only on newly opened blocks.
    pub every_block: bool,
    /// The objective above which its answers are sent.
    pub above: Option<I256>,
}

/// The payload of a standing bundle.
#[derive(Debug)]
pub enum WatchedPayload {
    /// A payload of `presim_simulate`.
    Simulate(SimulationRequest),
    /// A payload of `presim_search`.
    Search(Box<SearchRequest>),
}

/// Watches bundles: each runs again when a new snapshot changes its reads, and changed answers are sent.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 or 2 parameters: the bundles, \"pending\" or \"latest\"")]
pub struct Begin {
    #[schemars(length(min = 1))]
    pub bundles: Vec<WatchedParam>,
    /// pending or latest: the snapshots on which the bundles run. pending by default.
    #[serde(default)]
    pub block: Option<SelectorParam>,
}

/// The parameters of `eth_subscribe` with `presim_watch` as the first.
#[derive(Debug, Deserialize)]
#[serde(expecting = "2 or 3 parameters: \"presim_watch\", the bundles, \"pending\" or \"latest\"")]
pub struct BeginBySubscription {
    _subject: String,
    pub bundles: Vec<WatchedParam>,
    #[serde(default)]
    pub block: Option<SelectorParam>,
}

/// The bounds of a request to watch bundles.
#[derive(Clone, Copy, Debug)]
pub struct WatchRoom {
    /// Maximum number of bundles.
    pub bundles: usize,
    /// Maximum bytes that they take.
    pub bytes: usize,
}

/// A bundle with its name, and the condition under which its news are sent.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "WatchedBundle")]
pub struct WatchedParam {
    name: String,
    /// A simulation. Every unsigned call names its gas.
    #[schemars(with = "Option<Payload>")]
    simulate: Option<Box<RawValue>>,
    /// A search. Every unsigned call names its gas.
    #[schemars(with = "Option<SearchPayload>")]
    search: Option<Box<RawValue>>,
    /// block: the bundle runs on newly opened blocks only.
    every: Option<EveryParam>,
    only: Option<OnlyParam>,
}

/// The snapshots on which a bundle runs.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Every")]
#[serde(rename_all = "camelCase", expecting = "\"block\" or \"snapshot\"")]
enum EveryParam {
    Block,
    Snapshot,
}

/// The condition under which answers are sent.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Only")]
struct OnlyParam {
    /// The objective above which answers are sent.
    above: SignedNumber,
}

/// Sends a connection the changes since a snapshot, and all later changes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "2 parameters: the watch, the id of a snapshot")]
pub struct Rewatch {
    pub watch: Fixed<16>,
    pub id: Quantity<u64>,
}

/// The answers of standing bundles that changed after a snapshot. Waits until one has.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    expecting = "2 or 3 parameters: the watch, the id of a snapshot, milliseconds to wait"
)]
pub struct Results {
    pub watch: Fixed<16>,
    pub id: Quantity<u64>,
    /// Milliseconds to wait for a change. 0 by default.
    #[serde(default)]
    pub wait_ms: Option<Number<u64>>,
}

/// Takes standing bundles back.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: the watch")]
pub struct End {
    pub watch: Fixed<16>,
}

impl WatchRequest {
    /// Checks and converts the bundles, which are the parameter `index`, and the block after it.
    ///
    /// # Errors
    ///
    /// Returns -32602 with the path of the wrong field, -32005 if there are too many bundles or if they take too many bytes, or
    /// the errors of `presim_simulate` and `presim_search`.
    pub fn of(
        bundles: Vec<WatchedParam>,
        block: Option<SelectorParam>,
        index: usize,
        dialect: &Dialect,
        limits: &ShapeLimits,
        room: WatchRoom,
    ) -> Result<Self> {
        let path = format!("params[{index}]");
        let selector = block.map_or(Selector::Pending, Selector::from);
        if !matches!(selector, Selector::Pending | Selector::Latest) {
            let text = "one state: expected \"pending\" or \"latest\", which move on";
            return Err(RpcError::params(format!("params[{}]: {text}", index + 1)));
        }
        if bundles.is_empty() {
            return Err(RpcError::params(format!("{path}: empty: expected at least one bundle")));
        }
        let WatchRoom { bundles: most, bytes: room } = room;
        if bundles.len() > most {
            let text = format!("{path}: too many bundles: {}, at most {most} (--max-watched)", bundles.len());
            return Err(RpcError::limit(text));
        }
        let mut names = HashSet::with_capacity(bundles.len());
        if let Some((index, one)) = bundles.iter().enumerate().find(|(_, one)| !names.insert(one.name.as_str())) {
            let name = shown::wrong(&one.name);
            return Err(RpcError::params(format!("{path}[{index}].name: {name} again: expected another name")));
        }
        let (mut watched, mut bytes) = (Vec::with_capacity(bundles.len()), 0);
        for (index, bundle) in bundles.into_iter().enumerate() {
            let name = bundle.name.clone();
            let bundle = bundle.into_watched(&format!("{path}[{index}]"), dialect, limits)?;
            bytes += name.len() + bundle.size();
            if bytes > room {
                let count = index + 1;
                let text = format!("{path}: {count} bundles take {bytes} bytes, and {room} are left (--watch-mb)");
                return Err(RpcError::limit(text));
            }
            watched.push((name, bundle));
        }
        Ok(Self { bundles: watched, selector, bytes })
    }
}

impl WatchedParam {
    fn into_watched(self, path: &str, dialect: &Dialect, limits: &ShapeLimits) -> Result<WatchedBundle> {
        // The payload belongs to another method, whose errors name its first parameter.
        let payload_of = |raw: &RawValue| format!("[{}, \"pending\"]", raw.get());
        let at = |member: &str, error: RpcError| {
            error.with_message(|text| text.replacen("params[0]", &format!("{path}.{member}"), 1))
        };
        let payload = match (&self.simulate, &self.search) {
            (Some(simulate), None) => {
                let request = parse_presim_simulation(&payload_of(simulate), dialect, limits)
                    .map_err(|error| at("simulate", error))?;
                check_gas(&request.simulation, &[])
                    .map_err(|call| RpcError::params(format!("{path}.simulate.{call}.gas: missing: {NEEDS_GAS}")))?;
                WatchedPayload::Simulate(request)
            }
            (None, Some(search)) => {
                let request = parse::<Search>(&payload_of(search), dialect)
                    .and_then(|search| search.into_request(dialect, limits))
                    .map_err(|error| at("search", error))?;
                check_gas(&request.search.simulation, &request.search.targets)
                    .map_err(|call| RpcError::params(format!("{path}.search.{call}.gas: missing: {NEEDS_GAS}")))?;
                WatchedPayload::Search(Box::new(request))
            }
            _ => {
                let text = format!("{path}: expected either simulate or search, the payload of the method");
                return Err(RpcError::params(text));
            }
        };
        let above = self.only.map(|only| only.above.0);
        match &payload {
            WatchedPayload::Simulate(_) if above.is_some() => {
                return Err(RpcError::params(format!("{path}.only: without an objective: expected it beside search")));
            }
            WatchedPayload::Search(request) if above.is_some() && request.search.aim == Aim::GasUsed => {
                let text = format!("{path}.only.above: not with the objective gasUsed, of which less is better");
                return Err(RpcError::params(text));
            }
            _ => {}
        }
        let every_block = matches!(self.every, Some(EveryParam::Block));
        Ok(WatchedBundle { payload, every_block, above })
    }
}

impl WatchedBundle {
    /// Returns about how many bytes it takes.
    fn size(&self) -> usize {
        let payload = match &self.payload {
            WatchedPayload::Simulate(request) => request.size(),
            WatchedPayload::Search(request) => request.size(),
        };
        size_of::<Self>() + payload
    }
}

const NEEDS_GAS: &str =
    "expected a gas limit, because the default, the gas left in the block, changes with each snapshot";

/// Checks that all unsigned calls name their gas, except if it varies. Returns the path of the first call that does
/// not.
fn check_gas(simulation: &Simulation, varied: &[VariedTarget]) -> Result<(), String> {
    for (block, calls) in simulation.blocks.iter().enumerate() {
        for (index, call) in calls.calls.iter().enumerate() {
            let SimCall::Unsigned(call) = call else { continue };
            let varies = varied.iter().any(|target| {
                matches!(target, VariedTarget::Call(at, VariedPart::Gas) if (at.block, at.call) == (block, index))
            });
            if call.gas.is_none() && !varies {
                return Err(format!("blockStateCalls[{block}].calls[{index}]"));
            }
        }
    }
    Ok(())
}
