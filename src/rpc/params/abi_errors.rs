//! The errors that contracts declare in their ABI, and the reverts that they explain.

use std::borrow::Cow;

use alloy_dyn_abi::{DynSolError, DynSolType, Specifier};
use alloy_json_abi::{Error as AbiError, Param};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::value::RawValue;

use crate::{
    abi::{is_short, value_text},
    objects,
    shown::cut,
};

/// Maximum nesting of arrays and tuples in an argument.
const DEEPEST: usize = 16;

/// An item of a contract's ABI, as JSON or in Solidity's syntax. Items of other types than `error` are skipped,
/// regardless of their content, because clients send whole ABIs, from any compiler.
#[derive(Debug)]
pub struct AbiItemParam(Option<CustomError>);

/// The errors that a contract declares, used to decode the data of a revert.
#[derive(Clone, Debug, Default)]
pub struct CustomErrors(Vec<CustomError>);

#[derive(Clone, Debug)]
struct CustomError {
    name: String,
    error: DynSolError,
}

impl JsonSchema for AbiItemParam {
    fn schema_name() -> Cow<'static, str> {
        "AbiItem".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "string"}, {"type": "object", "properties": {"type": {"type": "string"}}, "additionalProperties": true}]})
    }
}

impl FromIterator<AbiItemParam> for CustomErrors {
    fn from_iter<I: IntoIterator<Item = AbiItemParam>>(items: I) -> Self {
        Self(items.into_iter().filter_map(|item| item.0).collect())
    }
}

impl CustomErrors {
    /// Returns the error in the data of a revert with its arguments, as `Name(1, 0x…, "text")`.
    pub fn explain(&self, data: &[u8]) -> Option<String> {
        let (selector, arguments) = data.split_first_chunk::<4>()?;
        let declared = self.0.iter().filter(|one| one.error.selector() == *selector);
        let fits = |one: &&CustomError| is_short(one.error.body(), arguments);
        let (name, values) =
            declared.filter(fits).find_map(|one| Some((&one.name, one.error.decode_error(data).ok()?.body)))?;
        let values: Vec<String> = values.iter().map(value_text).collect();
        Some(format!("{name}({})", values.join(", ")))
    }

    /// Returns about how many bytes they take.
    pub fn size(&self) -> usize {
        let size = |one: &CustomError| size_of::<CustomError>() + one.name.len() + sizes(one.error.body());
        self.0.iter().map(size).sum()
    }
}

impl CustomError {
    /// Checks the types of an error's arguments.
    fn new(error: AbiError) -> Result<Self, String> {
        let shown = cut(&error.name, 80);
        if error.inputs.iter().any(|input| depth(input) > DEEPEST) {
            return Err(format!("{shown}: expected arguments of at most {DEEPEST} arrays and tuples in each other"));
        }
        let resolved: DynSolError = error.resolve().map_err(|problem| {
            let problem = last_line(&problem.to_string());
            format!("{shown}: {problem}: expected types of an ABI, like uint256, address[] or (bytes32,string)")
        })?;
        Ok(Self { name: error.name, error: resolved })
    }
}

/// Returns the number of arrays and tuples that are in each other.
fn depth(input: &Param) -> usize {
    input.ty.matches('[').count() + input.components.iter().map(|one| 1 + depth(one)).max().unwrap_or_default()
}

/// Returns about how many bytes types take.
fn sizes(types: &[DynSolType]) -> usize {
    let size = |ty: &DynSolType| {
        let inner = match ty {
            DynSolType::Array(ty) | DynSolType::FixedArray(ty, _) => sizes(std::slice::from_ref(ty)),
            DynSolType::Tuple(types) => sizes(types),
            _ => 0,
        };
        size_of::<DynSolType>() + inner
    };
    types.iter().map(size).sum()
}

fn last_line(text: &str) -> String {
    cut(text.lines().next_back().unwrap_or_default(), 200)
}

impl AbiItemParam {
    /// Reads the JSON of an item.
    fn read(item: &str) -> Result<Self, String> {
        const TEXT: &str = "a text like \"error Name(uint256 value)\"";
        #[derive(Deserialize)]
        struct ItemType<'a> {
            #[serde(rename = "type", borrow)]
            name: Cow<'a, str>,
        }
        let shown = cut(item, 80);
        let wrong = |error: serde_json::Error| {
            let text = error.to_string();
            let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
            format!("{shown}: {text}: expected an item of an ABI")
        };
        let error = if item.starts_with('"') {
            let text: Cow<'_, str> = objects::from_str(item).map_err(wrong)?;
            AbiError::parse(&text)
                .map_err(|problem| format!("{shown}: {}: expected {TEXT}", last_line(&problem.to_string())))?
        } else if item.starts_with('{') {
            let ItemType { name } = objects::from_str(item).map_err(wrong)?;
            if name != "error" {
                return Ok(Self(None));
            }
            objects::from_str::<AbiError>(item).map_err(wrong)?
        } else {
            return Err(format!("{shown}: expected an item of an ABI, or {TEXT}"));
        };
        CustomError::new(error).map(|error| Self(Some(error)))
    }
}

impl<'de> Deserialize<'de> for AbiItemParam {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::read(Box::<RawValue>::deserialize(deserializer)?.get()).map_err(D::Error::custom)
    }
}
