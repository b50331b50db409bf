//! The parameters of `presim_search`.

use std::{fmt::Display, str::FromStr, sync::Arc};

use alloy_primitives::{Address, B256, U256};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

use crate::rpc::params::{AbiItemParam, CustomErrors, SelectorParam, ShapeLimits};
use crate::{
    engine::{
        Aim, BundleSearch, CallFees, CallIndex, Objective, Outputs, SearchedValues, SimCall, Simulation,
        StorageOverride, ValueList, VariedPart, VariedTarget,
    },
    ledger::Selector,
    rpc::{
        api::simulate::{ConditionParam, OutputParam, Payload, SimBlockParam, SimulationRequest, conditions},
        json::{
            form::{Forms, text},
            hex::{Fixed, Number, SignedNumber, parse_quantity},
        },
        protocol::{
            dialect::Dialect,
            error::{Result, RpcError},
        },
    },
    shown::cut,
};

/// A search, the state that it runs on, and how the best variant is shown.
#[derive(Debug)]
pub struct SearchRequest {
    /// The search.
    pub search: Arc<BundleSearch>,
    /// The block on whose state it runs.
    pub selector: Selector,
    /// The form in which the best variant is shown.
    pub form: ResultForm,
}

/// The form in which the best variant of a search is shown.
#[derive(Debug)]
pub struct ResultForm {
    /// The parts of the result.
    pub outputs: Outputs,
    /// Whether transactions are shown in full.
    pub full_transactions: bool,
    /// The errors used to decode the data of reverts.
    pub errors: CustomErrors,
}

/// Runs a bundle with many values of one or two fields, and returns the values that optimise an objective.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 or 2 parameters: payload, block")]
pub struct Search {
    payload: SearchPayload,
    #[serde(default)]
    #[schemars(extend("x-needed" = "on /"))]
    block: Option<SelectorParam>,
}

/// The payload of `presim_search`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SearchPayload {
    /// The blocks, in their order.
    #[schemars(length(min = 1))]
    block_state_calls: Vec<SimBlockParam>,
    /// Whether transfers of ether are shown as logs.
    trace_transfers: Option<bool>,
    /// Whether calls must be valid transactions, and pay for their gas.
    validation: Option<bool>,
    /// Whether transactions are shown in full, and not by their hashes.
    return_full_transactions: Option<bool>,
    /// The parts of the best variant's result. Without it, there is no result.
    outputs: Option<Vec<OutputParam>>,
    /// Items of an ABI, or texts like "error Name(uint256 value)", used to decode the data of reverts.
    errors: Option<Vec<AbiItemParam>>,
    /// The fields that vary, each with values in one form.
    #[schemars(length(min = 1, max = 2))]
    vary: Vec<VaryParam>,
    /// The amount that the search maximizes; gasUsed is minimized.
    objective: ObjectiveParam,
    require: Option<RequireParam>,
    /// The number of variants that are returned. 1 by default.
    #[schemars(range(min = 1))]
    top: Option<usize>,
}

/// A field that varies, and its values in one of four forms: a list, steps, points, or a range to search for its best
/// value.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Vary")]
struct VaryParam {
    /// blocks[0].calls[1].data (with word), .value, .gas, .gasPrice, .maxFeePerGas or .maxPriorityFeePerGas, or
    /// blocks[0].stateOverrides.ADDRESS.stateDiff.SLOT.
    path: String,
    /// Word n of the data begins at byte 4 + 32n.
    word: Option<usize>,
    values: Option<Vec<Number<U256>>>,
    from: Option<Number<U256>>,
    to: Option<Number<U256>>,
    step: Option<Number<U256>>,
    points: Option<usize>,
    scale: Option<ScaleParam>,
    maximize: Option<MaximizeParam>,
}

/// The distance between points: the same difference, or the same factor.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Scale")]
#[serde(rename_all = "camelCase", expecting = "\"linear\" or \"geometric\"")]
enum ScaleParam {
    Linear,
    Geometric,
}

/// A range in which the best value is looked for, to within a tolerance.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Maximize")]
struct MaximizeParam {
    from: Number<U256>,
    to: Number<U256>,
    tolerance: Option<Number<U256>>,
}

#[derive(Debug, JsonSchema)]
#[schemars(rename = "Objective")]
#[serde(untagged)]
enum ObjectiveParam {
    Named(NamedObjective),
    Account(AccountObjective),
}

/// The income of the block's producer, or the gas that the bundle uses.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
#[serde(rename_all = "camelCase")]
enum NamedObjective {
    Coinbase,
    GasUsed,
}

/// The gain of an account, in wei or in a token, less the gas at a price.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AccountObjective {
    account: Fixed<20>,
    token: Option<Fixed<20>>,
    gas_price: Option<Number<U256>>,
}

/// The conditions on variants.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "Require")]
struct RequireParam {
    /// The ends that calls must have. Calls that are not named must succeed.
    when: Option<Vec<ConditionParam>>,
    /// The least objective.
    least: Option<SignedNumber>,
}

impl SearchRequest {
    /// Returns about how many bytes it takes.
    pub fn size(&self) -> usize {
        size_of::<Self>() + self.search.size() + self.form.errors.size()
    }
}

impl Search {
    /// Checks a search against the limits, and converts it.
    ///
    /// # Errors
    ///
    /// Returns -32602 with the path of the wrong field, -38026 if there are too many blocks or calls, or -32005 if there
    /// are too many variants.
    pub fn into_request(self, dialect: &Dialect, limits: &ShapeLimits) -> Result<SearchRequest> {
        let SearchPayload { vary, objective, require, top, outputs, errors, .. } = self.payload;
        let SearchPayload { block_state_calls, trace_transfers, validation, return_full_transactions, .. } =
            self.payload;
        let RequireParam { when, least } = require.unwrap_or_default();
        let when = when.map(|when| conditions(when, &block_state_calls, "params[0].require.when")).transpose()?;
        let shows = outputs.is_some();
        let simulated = Payload {
            block_state_calls,
            trace_transfers,
            validation,
            return_full_transactions,
            outputs,
            errors,
            when: None,
        };
        let SimulationRequest { simulation, selector, full_transactions, errors, .. } =
            simulated.into_request(self.block, dialect, limits, true)?;
        let form = ResultForm { outputs: simulation.outputs, full_transactions, errors };
        let simulation = Simulation { when, ..simulation };
        if vary.is_empty() || vary.len() > 2 {
            let text = format!("params[0].vary: {} places: expected one, or two as a grid", vary.len());
            return Err(RpcError::params(text));
        }
        let mut targets = Vec::with_capacity(vary.len());
        for (index, one) in vary.iter().enumerate() {
            let target = one
                .target(&simulation)
                .map_err(|problem| RpcError::params(format!("params[0].vary[{index}].{problem}")))?;
            if targets.contains(&target) {
                return Err(RpcError::params(format!(
                    "params[0].vary[{index}].path: names the same place again: expected another"
                )));
            }
            targets.push(target);
        }
        let values = values(&vary, &targets, limits.max_search_runs)?;
        let aim = match objective {
            ObjectiveParam::Named(NamedObjective::Coinbase) => Aim::Gain(Objective::Coinbase, U256::ZERO),
            ObjectiveParam::Named(NamedObjective::GasUsed) => Aim::GasUsed,
            ObjectiveParam::Account(AccountObjective { account, token, gas_price }) => {
                let account = Address::from(account);
                let objective = match token {
                    Some(token) => Objective::Token { account, token: token.into() },
                    None => Objective::Ether(account),
                };
                Aim::Gain(objective, gas_price.map_or(U256::ZERO, |price| price.0))
            }
        };
        if aim == Aim::GasUsed && least.is_some() {
            return Err(RpcError::params(
                "params[0].require.least: not with the objective gasUsed, of which less is better",
            ));
        }
        let top = top.unwrap_or(1);
        if top == 0 || top > limits.max_search_runs {
            let text = format!("params[0].top: {top}: expected a number from 1 to {}", limits.max_search_runs);
            return Err(RpcError::params(text));
        }
        let search = BundleSearch { simulation, shows, targets, values, aim, least: least.map(|least| least.0), top };
        Ok(SearchRequest { search: Arc::new(search), selector, form })
    }
}

/// Returns the values of all variants.
fn values(vary: &[VaryParam], targets: &[VariedTarget], most: usize) -> Result<SearchedValues> {
    let at = |index: usize, problem: String| RpcError::params(format!("params[0].vary[{index}]{problem}"));
    if let Some((index, maximize)) = vary.iter().enumerate().find_map(|(index, one)| Some((index, one.maximize?))) {
        if vary.len() > 1 {
            return Err(at(index, ".maximize: expected a single place that varies".into()));
        }
        if vary[index].forms() > 1 {
            return Err(at(index, ": several forms of values: expected values, or from and to, or maximize".into()));
        }
        let (Number(from), Number(to)) = (maximize.from, maximize.to);
        let tolerance = maximize.tolerance.map_or(U256::ONE, |tolerance| tolerance.0);
        if from >= to {
            return Err(at(index, format!(".maximize.to: {to}: expected a number above from, {from}")));
        }
        if tolerance.is_zero() {
            return Err(at(index, ".maximize.tolerance: 0: expected a number from 1".into()));
        }
        check_range(&targets[index], to).map_err(|problem| at(index, format!(".maximize.to: {problem}")))?;
        let values = SearchedValues::Maximize { from, to, tolerance };
        let runs = values.most();
        if runs > most {
            let text = format!(
                "params[0].vary[{index}].maximize.tolerance: {tolerance}: takes up to {runs} variants, at most {most} (--max-search-runs): expected a larger one"
            );
            return Err(RpcError::limit(text));
        }
        return Ok(values);
    }
    let mut lists = Vec::with_capacity(vary.len());
    for (index, (one, target)) in vary.iter().zip(targets).enumerate() {
        let list = one.list(&format!("params[0].vary[{index}]"), most)?;
        let wrong = |problem: String| at(index, problem);
        match (&list, one.to) {
            (ValueList::Listed(values), _) => {
                for (value, number) in values.iter().zip(0..) {
                    check_range(target, *value).map_err(|problem| wrong(format!(".values[{number}]: {problem}")))?;
                }
            }
            (_, Some(Number(to))) => check_range(target, to).map_err(|problem| wrong(format!(".to: {problem}")))?,
            _ => {}
        }
        lists.push(list);
    }
    let values = SearchedValues::Each(lists);
    let runs = values.most();
    if runs > most {
        return Err(too_many("params[0].vary", &runs, "variants", most));
    }
    Ok(values)
}

/// Returns the error of a field that asks for more variants than the node runs.
fn too_many(field: &str, count: &impl Display, what: &str, most: usize) -> RpcError {
    RpcError::limit(format!("{field}: {count} {what}: expected at most {most} variants (--max-search-runs)"))
}

/// Returns the text that names the expected item of a path, of which there are `count`.
fn expected_index(what: &str, count: usize) -> String {
    match count {
        0 => format!("expected {what}, but there is none"),
        count => format!("expected {what}, from 0 to {}", count - 1),
    }
}

/// Checks that a target can hold a value.
fn check_range(target: &VariedTarget, value: U256) -> Result<(), String> {
    let bits = match target {
        VariedTarget::Call(_, VariedPart::Gas) => 64,
        VariedTarget::Call(_, VariedPart::GasPrice | VariedPart::MaxFee | VariedPart::MaxPriorityFee) => 128,
        VariedTarget::Call(_, VariedPart::Word(_) | VariedPart::Value) | VariedTarget::Slot { .. } => 256,
    };
    match value.bit_len() > bits {
        true => Err(format!("{value:#x}: out of range: at most {bits} bits")),
        false => Ok(()),
    }
}

impl VaryParam {
    /// Returns the number of forms in which values are given.
    fn forms(&self) -> usize {
        let range = self.from.is_some() || self.to.is_some() || self.step.is_some() || self.points.is_some();
        [self.values.is_some(), range || self.scale.is_some(), self.maximize.is_some()]
            .into_iter()
            .filter(|is| *is)
            .count()
    }

    /// Returns the listed values, or the values of a range, at most `most`. `field` is the path of these parameters.
    fn list(&self, field: &str, most: usize) -> Result<ValueList> {
        const EXPECTED: &str = "expected values, or from and to with step or with points and scale, or maximize";
        let wrong = |problem: String| RpcError::params(format!("{field}{problem}"));
        if self.forms() != 1 {
            return Err(wrong(format!(": {} forms of values: {EXPECTED}", self.forms())));
        }
        if let Some(values) = &self.values {
            return match values.len() {
                0 => Err(wrong(".values: empty: expected at least one value".into())),
                count if count > most => Err(too_many(&format!("{field}.values"), &count, "values", most)),
                _ => Ok(ValueList::Listed(values.iter().map(|value| value.0).collect())),
            };
        }
        let (Some(Number(from)), Some(Number(to))) = (self.from, self.to) else {
            return Err(wrong(format!(": from or to is missing: {EXPECTED}")));
        };
        if from > to {
            return Err(wrong(format!(".to: {to}: expected a number from {from} on")));
        }
        match (self.step, self.points) {
            (Some(Number(step)), None) if self.scale.is_none() => {
                if step.is_zero() {
                    return Err(wrong(".step: 0: expected a number from 1".into()));
                }
                let count = ((to - from) / step).saturating_add(U256::ONE);
                let fits = usize::try_from(count).ok().filter(|count| *count <= most);
                let count = fits.ok_or_else(|| too_many(&format!("{field}.step"), &count, "values", most))?;
                Ok(ValueList::Steps { from, step, count })
            }
            (None, Some(points)) => {
                if points < 2 {
                    return Err(wrong(format!(".points: {points}: expected a number from 2")));
                }
                if points > most {
                    return Err(too_many(&format!("{field}.points"), &points, "values", most));
                }
                Ok(match self.scale.unwrap_or(ScaleParam::Linear) {
                    ScaleParam::Geometric => ValueList::Geometric { from, to, count: points },
                    ScaleParam::Linear => ValueList::Linear { from, to, count: points },
                })
            }
            _ => Err(wrong(format!(": from and to: {EXPECTED}"))),
        }
    }

    /// Returns the target that the path names in `simulation`.
    fn target(&self, simulation: &Simulation) -> Result<VariedTarget, String> {
        const EXPECTED: &str = "expected a path like blocks[0].calls[1].data (with word), .value, .gas, .gasPrice, .maxFeePerGas or .maxPriorityFeePerGas, or blocks[0].stateOverrides.ADDRESS.stateDiff.SLOT";
        let shown = cut(&self.path, 200);
        let unknown = || format!("path: {shown:?}: {EXPECTED}");
        let rest = self.path.strip_prefix("blocks").or_else(|| self.path.strip_prefix("blockStateCalls"));
        let (block, rest) = rest.and_then(index).ok_or_else(unknown)?;
        let in_block = simulation.blocks.get(block);
        let in_block = in_block
            .ok_or_else(|| format!("path: {shown:?}: {}", expected_index("a block", simulation.blocks.len())))?;
        if let Some(rest) = rest.strip_prefix(".stateOverrides.") {
            let parts: Vec<&str> = rest.split('.').collect();
            let [address, "state" | "stateDiff", slot] = parts.as_slice() else { return Err(unknown()) };
            let address = Address::from_str(address).map_err(|_| unknown())?;
            let word = B256::from_str(slot).map(|word| U256::from_be_bytes(word.0));
            let slot = word.or_else(|_| parse_quantity(slot)).map_err(|_| unknown())?;
            let account = in_block
                .state
                .iter()
                .find(|(overridden, _)| *overridden == address)
                .map(|(_, account)| &account.storage);
            let (Some(StorageOverride::Replace(slots)) | Some(StorageOverride::Diff(slots))) = account else {
                return Err(format!("path: {shown:?}: expected an account whose storage is overridden"));
            };
            if !slots.iter().any(|(key, _)| *key == slot) {
                return Err(format!("path: {shown:?}: expected a slot that stateOverrides sets"));
            }
            return self.without_word(VariedTarget::Slot { block, address, slot });
        }
        let (call, part) = rest.strip_prefix(".calls").and_then(index).ok_or_else(unknown)?;
        let found = in_block.calls.get(call);
        let found = found.ok_or_else(|| {
            format!("path: {shown:?}: {}", expected_index("a call of the block", in_block.calls.len()))
        })?;
        let SimCall::Unsigned(called) = found else {
            return Err(format!("path: {shown:?}: a signed transaction cannot vary: expected a call object"));
        };
        let index = CallIndex { block, call };
        match part {
            ".data" | ".input" => {
                let word = self
                    .word
                    .ok_or("word: missing: expected the number of a word of the data: word n begins at byte 4 + 32n")?;
                let ends = word.checked_mul(32).and_then(|at| at.checked_add(36));
                if ends.is_none_or(|ends| ends > called.data.len()) {
                    return Err(format!(
                        "word: {word}: the data has {} bytes: word n takes 32 bytes from byte 4 + 32n",
                        called.data.len()
                    ));
                }
                Ok(VariedTarget::Call(index, VariedPart::Word(word)))
            }
            ".value" => self.without_word(VariedTarget::Call(index, VariedPart::Value)),
            ".gas" => self.without_word(VariedTarget::Call(index, VariedPart::Gas)),
            ".gasPrice"
                if matches!(
                    called.fees,
                    CallFees::Market { max_fee: None, max_priority: None } | CallFees::GasPrice(_)
                ) =>
            {
                self.without_word(VariedTarget::Call(index, VariedPart::GasPrice))
            }
            ".gasPrice" => Err(format!(
                "path: {shown:?}: the call has EIP-1559 fees: expected a call without, or the path of one of them"
            )),
            ".maxFeePerGas" | ".maxPriorityFeePerGas" if matches!(called.fees, CallFees::GasPrice(_)) => Err(format!(
                "path: {shown:?}: the call has a gasPrice: expected a call without, or the path of the gasPrice"
            )),
            ".maxFeePerGas" => self.without_word(VariedTarget::Call(index, VariedPart::MaxFee)),
            ".maxPriorityFeePerGas" => self.without_word(VariedTarget::Call(index, VariedPart::MaxPriorityFee)),
            _ => Err(unknown()),
        }
    }

    fn without_word(&self, target: VariedTarget) -> Result<VariedTarget, String> {
        match self.word {
            Some(word) => Err(format!("word: {word}: only data has words: expected none")),
            None => Ok(target),
        }
    }
}

/// Reads an index in brackets. Returns it with the text after it.
fn index(text: &str) -> Option<(usize, &str)> {
    let (digits, rest) = text.strip_prefix('[')?.split_once(']')?;
    // A number may have a sign when it is parsed, and an index has none.
    let digits = digits.bytes().all(|digit| digit.is_ascii_digit()).then_some(digits)?;
    Some((digits.parse().ok()?, rest))
}

impl<'de> Deserialize<'de> for ObjectiveParam {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const EXPECTED: &str = "\"coinbase\", \"gasUsed\", or an object with account, and token or gasPrice if wanted";
        const NAMED: fn(&str) -> Result<ObjectiveParam, String> = |text| match text {
            "coinbase" => Ok(ObjectiveParam::Named(NamedObjective::Coinbase)),
            "gasUsed" => Ok(ObjectiveParam::Named(NamedObjective::GasUsed)),
            _ => Err(format!("invalid value: string {text:?}, expected {EXPECTED}")),
        };
        deserializer.deserialize_any(Forms {
            expected: EXPECTED,
            scalar: |given| text(given).map(NAMED),
            object: Some(|account| Ok(Self::Account(account))),
        })
    }
}
