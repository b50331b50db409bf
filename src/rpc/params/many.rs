//! Bundles of calls, and positions in a block.

use std::{borrow::Cow, fmt, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{Error, Unexpected, value},
};

use super::{
    SelectorParam, ShapeLimits,
    call::{BlockOverridesParam, CallObject, call_block_overrides},
    schema::add_aliases,
    select,
};
use crate::{
    engine::{SimBlock, SimCall, StateOverrides},
    ledger::Selector,
    rpc::{
        json::{
            form::Forms,
            hex::{Number, Quantity},
        },
        protocol::{
            dialect::Dialect,
            error::{Result, RpcError},
        },
    },
};

/// Bundles of calls, and the position in a block where they run.
#[derive(Debug)]
pub struct ManyRequest {
    /// Overrides of the state before the first call.
    pub state: StateOverrides,
    /// The bundles, as blocks without overrides of the state.
    pub bundles: Vec<SimBlock>,
    /// The block on whose state the bundles run.
    pub selector: Selector,
    /// The number of that block's transactions that run before the bundles. `None` means all of them.
    pub index: Option<u64>,
    /// The request's own time limit. `None` leaves the node's limit.
    pub timeout: Option<Duration>,
}

/// Calls that run in a block.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "CallBundle", transform = add_aliases(&[("blockOverride", "blockOverrides")]))]
pub struct CallManyBundleParam {
    transactions: Vec<CallObject>,
    #[serde(alias = "blockOverrides")]
    block_override: Option<BlockOverridesParam>,
}

/// A position in a block.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "StateContext")]
pub struct StateContextParam {
    block_number: Option<SelectorParam>,
    /// The number of the block's transactions that run first, or -1 for all of them.
    transaction_index: Option<IndexParam>,
}

/// A count of a block's transactions, or `None` (-1 in JSON) for all of them.
#[derive(Clone, Copy, Debug)]
pub struct IndexParam(pub Option<u64>);

/// A time limit in milliseconds.
#[derive(Clone, Copy, Debug, JsonSchema)]
#[schemars(inline)]
pub struct Milliseconds(pub u64);

/// Converts the bundles in the first parameter of `method`. A bundle has the limits of a simulation's block.
pub fn into_bundles(
    bundles: Vec<CallManyBundleParam>,
    method: &str,
    dialect: &Dialect,
    limits: &ShapeLimits,
) -> Result<Vec<SimBlock>> {
    if bundles.iter().all(|bundle| bundle.transactions.is_empty()) {
        return Err(RpcError::params("params[0]: empty bundles: expected at least one with a transaction"));
    }
    if bundles.len() > limits.max_blocks {
        let text = format!("params[0]: too many bundles: {}, at most {}", bundles.len(), limits.max_blocks);
        return Err(RpcError::limit(text));
    }
    let mut calls = 0;
    for (index, bundle) in bundles.iter().enumerate() {
        let count = bundle.transactions.len();
        calls += count;
        if count > limits.max_block_calls || calls > limits.max_calls {
            return Err(RpcError::limit(format!(
                "params[0][{index}].transactions: too many calls: at most {} in a bundle and {} in all",
                limits.max_block_calls, limits.max_calls
            )));
        }
    }
    let bundles = bundles.into_iter().enumerate();
    bundles.map(|(index, bundle)| bundle.into_bundle(format_args!("params[0][{index}]"), method, dialect)).collect()
}

impl CallManyBundleParam {
    fn into_bundle(self, path: impl fmt::Display, method: &str, dialect: &Dialect) -> Result<SimBlock> {
        let calls = self.transactions.into_iter().enumerate();
        Ok(SimBlock {
            state: StateOverrides::default(),
            calls: calls
                .map(|(index, call)| {
                    call.into_call(format_args!("{path}.transactions[{index}]"), dialect).map(SimCall::from)
                })
                .collect::<Result<_, _>>()?,
            block: call_block_overrides(self.block_override, format_args!("{path}.blockOverride"), method)?,
        })
    }
}

impl StateContextParam {
    /// Returns the block, and the number of its transactions that run first. `None` means all of them.
    pub fn into_position(self) -> (Selector, Option<u64>) {
        (select(self.block_number), self.transaction_index.and_then(|index| index.0))
    }
}

impl JsonSchema for IndexParam {
    fn schema_name() -> Cow<'static, str> {
        "TransactionIndex".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let quantity = generator.subschema_for::<Quantity<u64>>();
        json_schema!({"anyOf": [quantity, {"type": "integer", "minimum": -1}]})
    }
}

impl<'de> Deserialize<'de> for IndexParam {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const EXPECTED: &str = "a count of the block's transactions, or -1 for all of them";
        deserializer.deserialize_any(Forms::<Self> {
            expected: EXPECTED,
            scalar: |given| match given {
                Unexpected::Signed(-1) => Some(Ok(Self(None))),
                Unexpected::Signed(_) => Some(Err(value::Error::invalid_value(given, &EXPECTED).to_string())),
                given => Number::of_scalar(given).map(|count| count.map(|Number(count)| Self(Some(count)))),
            },
            object: None,
        })
    }
}

impl<'de> Deserialize<'de> for Milliseconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Forms::<Self> {
            expected: "a timeout in milliseconds, a whole number from 0",
            scalar: |given| if let Unexpected::Unsigned(time) = given { Some(Ok(Self(time))) } else { None },
            object: None,
        })
    }
}
