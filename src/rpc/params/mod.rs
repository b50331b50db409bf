//! The parameters of the methods on the wire, and their conversion to the types that the other modules take.
//!
//! Malformed parameters are rejected with the name of the field, here or by the handlers, so the engine does not check them again.

mod abi_errors;
mod block;
mod bundle;
mod call;
mod log;
mod many;
mod schema;

pub use self::abi_errors::{AbiItemParam, CustomErrors};
pub use self::block::NamesBlock;
pub use self::bundle::{check_count, decode, transaction, with_sender};
pub use self::call::{
    AddressKey, BLOCK_ALIASES, BlockOverridesParam, CallObject, ShapeLimits, StateOverridesParam, block_overrides,
    call_block_overrides, state_overrides,
};
pub use self::log::{FilterParam, LogFilter, LogRange, OneOrMany};
pub use self::many::{CallManyBundleParam, IndexParam, ManyRequest, Milliseconds, StateContextParam, into_bundles};
pub use self::schema::add_aliases;

use std::borrow::Cow;

use alloy_eips::{BlockHashOrNumber, RpcBlockHash};
use alloy_primitives::{B256, U256};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::value::{RawValue, to_raw_value};

use super::{
    json::{
        form::{Forms, text},
        hex::{Fixed, Quantity, parse_fixed, parse_quantity},
    },
    protocol::{
        dialect::Dialect,
        error::{Result, RpcError},
    },
};
use crate::{
    ledger::{Selector, SnapshotId},
    objects::{self, ObjectsOnly, Positional},
    shown::{self, cut},
};

/// A block selector: a tag, a number, a hash, or an object of EIP-1898 or with a `snapshotId`.
#[derive(Clone, Copy, Debug)]
pub struct SelectorParam(Selector);

/// The hash of a block, for methods that accept no other selector.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct HashParam(Fixed<32>);

impl From<SelectorParam> for Selector {
    fn from(SelectorParam(selector): SelectorParam) -> Self {
        selector
    }
}

impl From<HashParam> for Selector {
    fn from(HashParam(hash): HashParam) -> Self {
        Self::Hash(hash.into())
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SelectorObject {
    block_number: Option<Quantity<u64>>,
    block_hash: Option<Fixed<32>>,
    #[serde(rename = "requireCanonical")]
    _require_canonical: Option<bool>,
    snapshot_id: Option<Quantity<u64>>,
    transaction_index: Option<IndexParam>,
}

/// Parses positional parameters.
///
/// # Errors
///
/// Returns -32602 with the path of the wrong field, which is tracked only in a second parse.
pub fn parse<T: DeserializeOwned>(params: &str, dialect: &Dialect) -> Result<T> {
    if !params.trim_start().starts_with('[') {
        return Err(RpcError::params("params: expected an array of positional parameters"));
    }
    let mut deserializer = serde_json::Deserializer::from_str(params);
    let mut unknown = UnknownField::of(dialect);
    let parsed = serde_ignored::deserialize(Positional(&mut deserializer), unknown.note());
    match (parsed, unknown.first) {
        (Ok(_), Some(path)) => Err(RpcError::params(format!("{}: unknown field", shown_path(&path)))),
        (parsed, _) => {
            parsed.and_then(|value| deserializer.end().map(|()| value)).map_err(|error| explain::<T>(params, &error))
        }
    }
}

/// The first unknown field of a request, on a path whose dialect refuses unknown fields.
struct UnknownField {
    is_refused: bool,
    first: Option<String>,
}

impl UnknownField {
    const fn of(dialect: &Dialect) -> Self {
        Self { is_refused: dialect.refuses_unknown_fields, first: None }
    }

    /// Returns a handler of serde's reports of ignored fields. It has one type for all parameters, so that the common
    /// code is compiled once.
    fn note(&mut self) -> impl FnMut(serde_ignored::Path<'_>) + use<'_> {
        |path| {
            if self.is_refused {
                self.first.get_or_insert_with(|| path.to_string());
            }
        }
    }
}

#[cold]
fn explain<T: DeserializeOwned>(params: &str, first: &serde_json::Error) -> RpcError {
    let mut deserializer = serde_json::Deserializer::from_str(params);
    let second = serde_path_to_error::deserialize::<_, T>(Positional(&mut deserializer));
    tell(second.err(), first)
}

/// Returns the error of a field, on the path that a second parse has tracked. It is apart from [`explain`], which is compiled for each
/// method.
fn tell(second: Option<serde_path_to_error::Error<serde_json::Error>>, first: &serde_json::Error) -> RpcError {
    let (path, text) = match second {
        Some(error) => (error.path().to_string(), error.inner().to_string()),
        None => (String::new(), first.to_string()),
    };
    // Drops the line and the column, because the path names the field.
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    let text = if text == "trailing characters" { "more parameters than the method takes" } else { text };
    RpcError::params(format!("{}: {}", shown_path(&path), in_words_of_json(text)))
}

/// Replaces the type that serde expected by its name in JSON.
fn in_words_of_json(text: &str) -> Cow<'_, str> {
    let Some((before, expected)) = text.rsplit_once("expected ") else { return text.into() };
    let word = match expected {
        "a sequence" => "an array",
        "a map" => "an object",
        "f64" => "a number",
        "usize" | "u64" => "a whole number, not below 0",
        "u8" => "a whole number from 0 to 255",
        "value" => "a string",
        other if other.starts_with("struct ") => "an object",
        _ => return text.into(),
    };
    format!("{before}expected {word}").into()
}

/// Parses a value that was set aside because its type depends on another field. Errors name the wrong field.
pub fn parse_aside<T: DeserializeOwned + Default>(
    aside: Option<&serde_json::Value>,
    within: &str,
    dialect: &Dialect,
) -> Result<T> {
    let Some(value) = aside.filter(|value| !value.is_null()) else { return Ok(T::default()) };
    let mut unknown = UnknownField::of(dialect);
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(value, &mut track);
    let parsed = serde_ignored::deserialize(ObjectsOnly(tracked), unknown.note());
    match (parsed, unknown.first) {
        (Err(error), _) => {
            let path = track.path().to_string();
            let dot = if path == "." { String::new() } else { format!(".{path}") };
            Err(RpcError::params(format!("{within}{dot}: {}", in_words_of_json(&error.to_string()))))
        }
        (Ok(_), Some(path)) => Err(RpcError::params(format!("{within}.{}: unknown field", cut(&path, 80)))),
        (Ok(value), _) => Ok(value),
    }
}

/// Formats `[0].a.b` or `0.a.b` as `params[0].a.b`. Long names and long paths are cut.
fn shown_path(path: &str) -> String {
    const MAX_NAME: usize = 80;
    const MAX_LENGTH: usize = 400;
    let mut out = String::from("params");
    for part in path.split('.').filter(|part| !part.is_empty() && *part != "?") {
        if out.len() > MAX_LENGTH {
            out.push('…');
            break;
        }
        if part.bytes().all(|byte| byte.is_ascii_digit()) {
            out.push_str(&format!("[{part}]"));
            continue;
        }
        if !part.starts_with('[') {
            out.push('.');
        }
        out.push_str(&cut(part, MAX_NAME));
    }
    out
}

/// Parses the parameters of a method whose second one selects a block, `latest` by default, and returns them with the
/// selector.
///
/// # Errors
///
/// Returns -32602 if the parameters are not an array, or the second one is not a block.
pub fn parse_at_block(params: &str) -> Result<(Vec<Box<RawValue>>, Selector)> {
    let params: Vec<Box<RawValue>> =
        objects::from_str(params).map_err(|error| RpcError::params(format!("params: {error}: expected an array")))?;
    let selector = params.get(1).map(|block| objects::from_str::<Option<SelectorParam>>(block.get())).transpose();
    let selector = selector.map_err(|error| RpcError::params(format!("params[1]: {error}")))?;
    Ok((params, select(selector.flatten())))
}

/// Returns the parameters with the block of this hash as the second one.
pub fn with_block(mut params: Vec<Box<RawValue>>, hash: B256) -> Vec<Box<RawValue>> {
    let block = RpcBlockHash { block_hash: hash, require_canonical: Some(false) };
    // A hash is always JSON.
    let block = to_raw_value(&block).unwrap_or_else(|_| RawValue::NULL.to_owned());
    match params.get_mut(1) {
        Some(param) => *param = block,
        None => params.push(block),
    }
    params
}

/// Returns the selector of a request, or `latest` if the request names none, as in geth.
pub fn select(selector: Option<SelectorParam>) -> Selector {
    selector.map_or(Selector::Latest, |SelectorParam(selector)| selector)
}

/// Returns the selector of a request.
///
/// # Errors
///
/// Returns -32602 if it is missing and the dialect requires one, as on `/`.
pub fn require(selector: Option<SelectorParam>, dialect: &Dialect) -> Result<Selector> {
    if selector.is_none() && dialect.requires_to_and_selector {
        return Err(RpcError::params("params[1]: missing: expected a block selector, like \"pending\" or \"latest\""));
    }
    Ok(select(selector))
}

impl JsonSchema for SelectorParam {
    fn schema_name() -> Cow<'static, str> {
        "BlockSelector".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (number, hash) = (generator.subschema_for::<Quantity<u64>>(), generator.subschema_for::<Fixed<32>>());
        json_schema!({
            "description": "latest (the newest sealed block), pending (the newest snapshot), safe, finalized, earliest, a number, a hash, or an object with one of blockNumber, blockHash and snapshotId. With transactionIndex, where a state is named: the state after the opening system calls and the first so many transactions of the block; -1 stands for the whole block.",
            "anyOf": [
                {"enum": ["latest", "pending", "safe", "finalized", "earliest"]},
                number,
                hash,
                {
                    "type": "object",
                    "properties": {
                        "blockNumber": number,
                        "blockHash": hash,
                        "requireCanonical": {"type": "boolean"},
                        "snapshotId": number,
                        "transactionIndex": generator.subschema_for::<IndexParam>(),
                    },
                },
            ],
        })
    }
}

/// Length of a block hash in characters: `0x` and 64 hex digits.
const HASH_TEXT: usize = 66;

impl<'de> Deserialize<'de> for SelectorParam {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const EXPECTED: &str = "a block selector: a hex number, a block hash, latest, pending, safe, finalized, earliest, or an object with blockNumber, blockHash or snapshotId";
        deserializer.deserialize_any(Forms {
            expected: EXPECTED,
            scalar: |given| text(given).map(|text| selector(text).map(Self)),
            object: Some(|object| selector_of(object).map(Self)),
        })
    }
}

/// Returns the selector that a string is.
fn selector(text: &str) -> Result<Selector, String> {
    Ok(match text {
        "latest" => Selector::Latest,
        "pending" => Selector::Pending,
        "safe" => Selector::Safe,
        "finalized" => Selector::Finalized,
        "earliest" => Selector::Earliest,
        // A number of this length is past 64 bits, so this is a hash.
        hash if hash.len() == HASH_TEXT => Selector::Hash(parse_fixed(hash)?.into()),
        number => {
            let number: U256 = parse_quantity(number).map_err(|reason| {
                let shown = shown::wrong(number);
                format!(
                    "{shown}: {reason}: expected a hex number, a block hash, latest, pending, safe, finalized or earliest"
                )
            })?;
            Selector::Number(number.try_into().map_err(|_| "block number out of range: at most 64 bits")?)
        }
    })
}

/// Returns the selector that an object is.
fn selector_of(object: SelectorObject) -> Result<Selector, String> {
    let block = match (object.block_number, object.block_hash, object.snapshot_id) {
        (Some(number), None, None) => BlockHashOrNumber::Number(number.0),
        (None, Some(hash), None) => BlockHashOrNumber::Hash(hash.into()),
        (None, None, Some(id)) if object.transaction_index.is_none() => {
            return Ok(Selector::Snapshot(SnapshotId(id.0)));
        }
        (None, None, Some(_)) => return Err("transactionIndex: expected beside blockNumber or blockHash".into()),
        _ => return Err("expected exactly one of blockNumber, blockHash and snapshotId".into()),
    };
    Ok(match object.transaction_index {
        Some(IndexParam(Some(count))) => Selector::Within { block, count },
        Some(IndexParam(None)) | None => block.into(),
    })
}
