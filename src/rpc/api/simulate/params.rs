//! The parameters of `eth_simulateV1` and `presim_simulate`.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de::Error};

use crate::{
    engine::{CallIndex, Conditions, Outputs, RequiredEnd, SimBlock, SimCall, Simulation},
    ledger::Selector,
    rpc::{
        json::{
            form::{Forms, from_text, text},
            hex::Data,
        },
        params::{
            AbiItemParam, BlockOverridesParam, CallObject, CustomErrors, SelectorParam, ShapeLimits,
            StateOverridesParam, block_overrides, parse, require, state_overrides, transaction,
        },
        protocol::{
            dialect::Dialect,
            error::{Result, RpcError},
        },
    },
    shown,
};

/// A simulation, the state that it runs on, and how its results are shown.
#[derive(Debug)]
pub struct SimulationRequest {
    /// The simulation.
    pub simulation: Simulation,
    /// The block on whose state it runs.
    pub selector: Selector,
    /// Whether transactions are shown in full.
    pub full_transactions: bool,
    /// The errors used to decode the data of reverts.
    pub errors: CustomErrors,
    /// Whether the results name the forks of the blocks.
    pub names_fork: bool,
}

impl SimulationRequest {
    /// Returns about how many bytes it takes.
    pub fn size(&self) -> usize {
        size_of::<Self>() + self.simulation.size() + self.errors.size()
    }
}

/// Simulates bundles of calls in blocks that follow one another.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 or 2 parameters: payload, block")]
pub struct SimulateV1 {
    payload: SimulateV1Payload,
    #[serde(default)]
    #[schemars(extend("x-needed" = "on /"))]
    block: Option<SelectorParam>,
}

/// Simulates as `eth_simulateV1` does, and returns the named outputs only. See README.md for their shapes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 or 2 parameters: payload, block")]
pub struct Simulate {
    payload: Payload,
    #[serde(default)]
    #[schemars(extend("x-needed" = "on /"))]
    block: Option<SelectorParam>,
}

/// The payload of `eth_simulateV1`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct SimulateV1Payload {
    /// The blocks, in their order.
    #[schemars(length(min = 1))]
    block_state_calls: Vec<SimBlockParam>,
    /// Whether transfers of ether are shown as logs.
    trace_transfers: Option<bool>,
    /// Whether calls must be valid transactions, and pay for their gas.
    validation: Option<bool>,
    /// Whether transactions are shown in full, and not by their hashes.
    return_full_transactions: Option<bool>,
}

/// The payload of `presim_simulate`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Payload {
    /// The blocks, in their order.
    #[schemars(length(min = 1))]
    pub block_state_calls: Vec<SimBlockParam>,
    /// Whether transfers of ether are shown as logs.
    pub trace_transfers: Option<bool>,
    /// Whether calls must be valid transactions, and pay for their gas.
    pub validation: Option<bool>,
    /// Whether transactions are shown in full, and not by their hashes.
    pub return_full_transactions: Option<bool>,
    /// The parts of the result. By default the parts of `eth_simulateV1`.
    pub outputs: Option<Vec<OutputParam>>,
    /// The ends that calls must have. Calls that are not named must succeed.
    pub when: Option<Vec<ConditionParam>>,
    /// Items of an ABI, or texts like "error Name(uint256 value)", used to decode the data of reverts.
    pub errors: Option<Vec<AbiItemParam>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "BlockCalls")]
/// A block of a simulation.
pub struct SimBlockParam {
    calls: Option<Vec<SimCallParam>>,
    state_overrides: Option<StateOverridesParam>,
    block_overrides: Option<BlockOverridesParam>,
}

/// A call, or in `presim_simulate` the bytes of a signed transaction.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "SimulatedCall")]
#[serde(untagged)]
enum SimCallParam {
    Unsigned(Box<CallObject>),
    Signed(Data),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Condition")]
/// The end that a call must have.
pub struct ConditionParam {
    block: usize,
    call: usize,
    status: StatusParam,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", expecting = "\"success\", \"failure\" or \"any\"")]
#[schemars(rename = "RequiredStatus")]
enum StatusParam {
    Success,
    Failure,
    Any,
}

/// The name of an output.
#[derive(Clone, Copy, Debug)]
pub struct OutputParam(Outputs);

/// The names of the outputs, as requests have them.
const OUTPUTS: [(&str, Outputs); 14] = [
    ("status", Outputs::STATUS),
    ("gasUsed", Outputs::GAS_USED),
    ("returnData", Outputs::RETURN_DATA),
    ("error", Outputs::ERROR),
    ("logs", Outputs::LOGS),
    ("header", Outputs::HEADER),
    ("transfers", Outputs::TRANSFERS),
    ("stateDiff", Outputs::STATE_DIFF),
    ("accessList", Outputs::ACCESS_LIST),
    ("blockAccessList", Outputs::BLOCK_ACCESS_LIST),
    ("readSet", Outputs::READ_SET),
    ("assets", Outputs::ASSETS),
    ("coinbase", Outputs::COINBASE),
    ("trace", Outputs::TRACE),
];

/// Parses the parameters of `eth_simulateV1`.
///
/// # Errors
///
/// Returns -32602 with the path of the wrong field, or -38026 if there are too many blocks or calls.
pub fn parse_simulation(params: &str, dialect: &Dialect, limits: &ShapeLimits) -> Result<SimulationRequest> {
    parse::<SimulateV1>(params, dialect)?.into_request(dialect, limits)
}

/// Parses the parameters of `presim_simulate`: the parameters of `eth_simulateV1`, with `outputs`, `when` and
/// `errors`, and with signed transactions among the calls.
///
/// # Errors
///
/// Returns -32602 with the path of the wrong field, or -38026 if there are too many blocks or calls.
pub fn parse_presim_simulation(params: &str, dialect: &Dialect, limits: &ShapeLimits) -> Result<SimulationRequest> {
    parse::<Simulate>(params, dialect)?.into_request(dialect, limits)
}

impl SimulateV1 {
    pub(super) fn into_request(self, dialect: &Dialect, limits: &ShapeLimits) -> Result<SimulationRequest> {
        let SimulateV1Payload { block_state_calls, trace_transfers, validation, return_full_transactions } =
            self.payload;
        Payload { block_state_calls, trace_transfers, validation, return_full_transactions, ..Payload::default() }
            .into_request(self.block, dialect, limits, false)
    }
}

impl Simulate {
    pub(super) fn into_request(self, dialect: &Dialect, limits: &ShapeLimits) -> Result<SimulationRequest> {
        self.payload.into_request(self.block, dialect, limits, true)
    }
}

impl Payload {
    /// Returns the request.
    ///
    /// # Errors
    ///
    /// Returns -32602 with the path of the wrong field, or -38026 if there are too many blocks or calls.
    pub fn into_request(
        self,
        selector: Option<SelectorParam>,
        dialect: &Dialect,
        limits: &ShapeLimits,
        takes_signed: bool,
    ) -> Result<SimulationRequest> {
        let blocks = &self.block_state_calls;
        if blocks.is_empty() {
            return Err(RpcError::params("params[0].blockStateCalls: empty: expected at least one block"));
        }
        if blocks.len() > limits.max_blocks {
            let text =
                format!("params[0].blockStateCalls: too many blocks: {}, at most {}", blocks.len(), limits.max_blocks);
            return Err(RpcError::new(-38026, text));
        }
        let mut calls = 0;
        for (index, block) in blocks.iter().enumerate() {
            let count = block.calls.as_ref().map_or(0, Vec::len);
            calls += count;
            if count > limits.max_block_calls || calls > limits.max_calls {
                let text = format!(
                    "params[0].blockStateCalls[{index}].calls: too many calls: at most {} in a block and {} in all",
                    limits.max_block_calls, limits.max_calls
                );
                return Err(RpcError::new(-38026, text));
            }
        }
        let when = self.when.map(|when| conditions(when, blocks, "params[0].when")).transpose()?;
        let outputs = match self.outputs {
            Some(outputs) => outputs.iter().fold(Outputs::empty(), |all, output| all | output.0),
            None => Outputs::SIMULATE_V1,
        };
        let blocks = self.block_state_calls.into_iter().enumerate();
        let blocks = blocks.map(|(index, block)| {
            block.into_block(format_args!("params[0].blockStateCalls[{index}]"), dialect, takes_signed)
        });
        let simulation = Simulation {
            blocks: blocks.collect::<Result<_, _>>()?,
            trace_transfers: self.trace_transfers.unwrap_or_default(),
            validation: self.validation.unwrap_or_default(),
            outputs,
            when,
            objective: None,
        };
        Ok(SimulationRequest {
            simulation,
            selector: require(selector, dialect)?,
            full_transactions: self.return_full_transactions.unwrap_or_default(),
            errors: self.errors.unwrap_or_default().into_iter().collect(),
            names_fork: takes_signed,
        })
    }
}

/// Returns how the calls of `blocks` must end, by the conditions at `path`.
///
/// # Errors
///
/// Returns -32602 if there is no such call, or a call is named twice.
pub fn conditions(when: Vec<ConditionParam>, blocks: &[SimBlockParam], path: &str) -> Result<Conditions> {
    let mut conditions = Conditions::default();
    for (index, ConditionParam { block, call, status }) in when.into_iter().enumerate() {
        let count = blocks.get(block).map(|block| block.calls.as_ref().map_or(0, Vec::len));
        match count {
            None => {
                let text = format!(
                    "{path}[{index}].block: {block}: there are {} blocks: expected an index from 0",
                    blocks.len()
                );
                return Err(RpcError::params(text));
            }
            Some(count) if call >= count => {
                let text =
                    format!("{path}[{index}].call: {call}: block {block} has {count} calls: expected an index from 0");
                return Err(RpcError::params(text));
            }
            Some(_) => {}
        }
        let end = match status {
            StatusParam::Success => RequiredEnd::Success,
            StatusParam::Failure => RequiredEnd::Failure,
            StatusParam::Any => RequiredEnd::Any,
        };
        if conditions.0.insert(CallIndex { block, call }, end).is_some() {
            return Err(RpcError::params(format!(
                "{path}[{index}]: call {call} of block {block} is named twice: expected one status for a call"
            )));
        }
    }
    Ok(conditions)
}

impl SimBlockParam {
    fn into_block(self, path: impl fmt::Display, dialect: &Dialect, takes_signed: bool) -> Result<SimBlock> {
        let calls = self.calls.unwrap_or_default().into_iter().enumerate();
        let calls = calls.map(|(index, call)| match call {
            SimCallParam::Unsigned(call) => {
                call.into_call(format_args!("{path}.calls[{index}]"), dialect).map(SimCall::Unsigned)
            }
            SimCallParam::Signed(_) if !takes_signed => Err(RpcError::params(format!(
                "{path}.calls[{index}]: a string: expected a call object (presim_simulate takes signed transactions)"
            ))),
            SimCallParam::Signed(raw) => {
                let tx = transaction(&raw, format_args!("{path}.calls[{index}]"))?;
                Ok(SimCall::Signed(Box::new(tx)))
            }
        });
        Ok(SimBlock {
            calls: calls.collect::<Result<_, _>>()?,
            state: state_overrides(self.state_overrides, format_args!("{path}.stateOverrides"))?,
            block: block_overrides(self.block_overrides, format_args!("{path}.blockOverrides"))?,
        })
    }
}

impl<'de> Deserialize<'de> for SimCallParam {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Forms {
            expected: "a call object",
            scalar: |given| text(given).map(|text| from_text(text).map(Self::Signed)),
            object: Some(|call: CallObject| Ok(Self::Unsigned(call.into()))),
        })
    }
}

impl JsonSchema for OutputParam {
    fn schema_name() -> Cow<'static, str> {
        "Output".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"enum": OUTPUTS.map(|(name, _)| name)})
    }
}

impl<'de> Deserialize<'de> for OutputParam {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Cow::<'de, str>::deserialize(deserializer)?;
        let found = OUTPUTS.iter().find(|(known, _)| *known == name);
        found.map(|(_, output)| Self(*output)).ok_or_else(|| {
            let shown = shown::wrong(&name);
            let names: Vec<&str> = OUTPUTS.iter().map(|(name, _)| *name).collect();
            D::Error::custom(format_args!("{shown}: unknown output: expected one of {}", names.join(", ")))
        })
    }
}
