//! The parameters of the methods for standing bundles.

use std::collections::HashSet;

use alloy_primitives::I256;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::rpc::{
    api::search::request::{SearchRequest, SignedParam, parse_search},
    params::{SelectorParam, ShapeLimits, parse},
};
use crate::watch::WatchId;
use crate::{
    engine::{Aim, SimCall, Simulation, VariedPart, VariedPlace},
    ledger::{Selector, SnapshotId},
    rpc::{
        api::simulate::{SimulationRequest, parse_presim_simulation},
        json::hex::{Fixed, Number, Quantity},
        protocol::{
            dialect::Dialect,
            error::{Result, RpcError},
        },
    },
    shown,
};

/// The bundles that a client lets stand.
#[derive(Debug)]
pub struct WatchRequest {
    /// The bundles with their names.
    pub bundles: Vec<(String, WatchedBundle)>,
    /// The snapshots on which they run: those that `pending` or `latest` selects.
    pub selector: Selector,
    /// About how many bytes the bundles take.
    pub bytes: usize,
}

/// A bundle that stands.
#[derive(Debug)]
pub struct WatchedBundle {
    /// The payload.
    pub payload: WatchedPayload,
    /// Whether it runs only on newly opened blocks.
    pub every_block: bool,
    /// The objective above which its answers are told.
    pub above: Option<I256>,
}

/// The payload of a bundle that stands.
#[derive(Debug)]
pub enum WatchedPayload {
    /// A payload of `presim_simulate`.
    Simulate(SimulationRequest),
    /// A payload of `presim_search`.
    Search(Box<SearchRequest>),
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "1 or 2 parameters: the bundles, \"pending\" or \"latest\"")]
struct WatchParams(Vec<WatchedParam>, #[serde(default)] Option<SelectorParam>);

#[derive(Debug, Deserialize)]
struct WatchedParam {
    name: String,
    simulate: Option<Box<RawValue>>,
    search: Option<Box<RawValue>>,
    every: Option<EveryParam>,
    only: Option<OnlyParam>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "\"block\" or \"snapshot\"")]
enum EveryParam {
    Block,
    Snapshot,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct OnlyParam {
    above: SignedParam,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "2 parameters: the watch, the id of a snapshot")]
struct RewatchParams(Fixed<16>, Quantity<u64>);

#[derive(Debug, Deserialize)]
#[serde(expecting = "2 or 3 parameters: the watch, the id of a snapshot, milliseconds to wait")]
struct ResultsParams(Fixed<16>, Quantity<u64>, #[serde(default)] Option<Number<u64>>);

#[derive(Debug, Deserialize)]
#[serde(expecting = "1 parameter: the watch")]
struct UnwatchParams {
    watch: Fixed<16>,
}

/// Parses the bundles of `presim_watch`, at most `most` in at most `room` bytes.
///
/// # Errors
///
/// Returns -32602 with the path of the wrong field, -32005 if there are too many bundles or if they take more bytes, or
/// the errors of `presim_simulate` and `presim_search`.
pub fn parse_watch(
    params: &str,
    dialect: &Dialect,
    limits: &ShapeLimits,
    most: usize,
    room: usize,
) -> Result<WatchRequest> {
    let WatchParams(bundles, selector) = parse(params, dialect)?;
    let selector = selector.map_or(Selector::Pending, Selector::from);
    if !matches!(selector, Selector::Pending | Selector::Latest) {
        return Err(RpcError::params("params[1]: one state: expected \"pending\" or \"latest\", which move on"));
    }
    if bundles.is_empty() {
        return Err(RpcError::params("params[0]: empty: expected at least one bundle"));
    }
    if bundles.len() > most {
        let text = format!("params[0]: too many bundles: {}, at most {most} (--max-watched)", bundles.len());
        return Err(RpcError::limit(text));
    }
    let mut names = HashSet::with_capacity(bundles.len());
    if let Some((index, one)) = bundles.iter().enumerate().find(|(_, one)| !names.insert(one.name.as_str())) {
        let name = shown::wrong(&one.name);
        return Err(RpcError::params(format!("params[0][{index}].name: {name} again: expected another name")));
    }
    let (mut watched, mut bytes) = (Vec::with_capacity(bundles.len()), 0);
    for (index, bundle) in bundles.into_iter().enumerate() {
        let name = bundle.name.clone();
        let bundle = bundle.into_watched(&format!("params[0][{index}]"), dialect, limits)?;
        bytes += name.len() + bundle.size();
        if bytes > room {
            let count = index + 1;
            let text = format!("params[0]: {count} bundles take {bytes} bytes, and {room} are left (--watch-mb)");
            return Err(RpcError::limit(text));
        }
        watched.push((name, bundle));
    }
    Ok(WatchRequest { bundles: watched, selector, bytes })
}

/// Parses the parameters of `presim_rewatch`.
pub fn parse_rewatch(params: &str, dialect: &Dialect) -> Result<(WatchId, SnapshotId)> {
    let RewatchParams(watch, Quantity(id)) = parse(params, dialect)?;
    Ok((WatchId(watch.0), SnapshotId(id)))
}

/// Parses the parameters of `presim_results`. The last value is how long to wait, in milliseconds.
pub fn parse_results(params: &str, dialect: &Dialect) -> Result<(WatchId, SnapshotId, u64)> {
    let ResultsParams(watch, Quantity(id), wait) = parse(params, dialect)?;
    Ok((WatchId(watch.0), SnapshotId(id), wait.map_or(0, |wait| wait.0)))
}

/// Parses the parameter of `presim_unwatch`.
pub fn parse_unwatch(params: &str, dialect: &Dialect) -> Result<WatchId> {
    let UnwatchParams { watch } = parse(params, dialect)?;
    Ok(WatchId(watch.0))
}

impl WatchedParam {
    fn into_watched(self, place: &str, dialect: &Dialect, limits: &ShapeLimits) -> Result<WatchedBundle> {
        // A payload is that of another method, whose errors name its first parameter.
        let payload_of = |raw: &RawValue| format!("[{}, \"pending\"]", raw.get());
        let at = |member: &str, error: RpcError| {
            error.with_message(|text| text.replacen("params[0]", &format!("{place}.{member}"), 1))
        };
        let payload = match (&self.simulate, &self.search) {
            (Some(simulate), None) => {
                let request = parse_presim_simulation(&payload_of(simulate), dialect, limits)
                    .map_err(|error| at("simulate", error))?;
                check_gas(&request.simulation, &[])
                    .map_err(|path| RpcError::params(format!("{place}.simulate.{path}.gas: missing: {NEEDS_GAS}")))?;
                WatchedPayload::Simulate(request)
            }
            (None, Some(search)) => {
                let request =
                    parse_search(&payload_of(search), dialect, limits).map_err(|error| at("search", error))?;
                check_gas(&request.search.simulation, &request.search.places)
                    .map_err(|path| RpcError::params(format!("{place}.search.{path}.gas: missing: {NEEDS_GAS}")))?;
                WatchedPayload::Search(Box::new(request))
            }
            _ => {
                let text = format!("{place}: expected either simulate or search, the payload of the method");
                return Err(RpcError::params(text));
            }
        };
        let above = self.only.map(|only| only.above.0);
        match &payload {
            WatchedPayload::Simulate(_) if above.is_some() => {
                return Err(RpcError::params(format!("{place}.only: without an objective: expected it beside search")));
            }
            WatchedPayload::Search(request) if above.is_some() && request.search.aim == Aim::GasUsed => {
                let text = format!("{place}.only.above: not with the objective gasUsed, of which less is better");
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
    "expected a number, so that the gas that the block has left is a bound of the answer, and not a part of it";

/// Checks that all unsigned calls name their gas, except for those whose gas varies. Returns the path of the first that
/// does not.
fn check_gas(simulation: &Simulation, varied: &[VariedPlace]) -> Result<(), String> {
    for (block, calls) in simulation.blocks.iter().enumerate() {
        for (index, call) in calls.calls.iter().enumerate() {
            let SimCall::Unsigned(call) = call else { continue };
            let varies = varied.iter().any(|place| {
                matches!(place, VariedPlace::Call(at, VariedPart::Gas) if (at.block, at.call) == (block, index))
            });
            if call.gas.is_none() && !varies {
                return Err(format!("blockStateCalls[{block}].calls[{index}]"));
            }
        }
    }
    Ok(())
}
