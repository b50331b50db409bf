//! The errors that contracts declare in their ABI, and the reverts that they explain.

use std::fmt;

use alloy_dyn_abi::{DynSolError, DynSolType, DynSolValue, Specifier};
use alloy_json_abi::{AbiItem, Error as AbiError, Param};
use alloy_primitives::U256;
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor, value::MapAccessDeserializer},
};

/// Maximum nesting of arrays and tuples in an argument.
const DEEPEST: usize = 16;
/// Maximum words that the arguments of an error have once they are decoded. Data may name a part of itself many times,
/// so that little data has many values.
const MOST_WORDS: usize = 4096;

/// An item of a contract's ABI, as JSON or as Solidity writes it. Items other than errors are passed over.
#[derive(Debug)]
pub(super) struct AbiItemParam(Option<CustomError>);

/// The errors that a contract declares, by which the data of a revert is explained.
#[derive(Clone, Debug, Default)]
pub struct CustomErrors(Vec<CustomError>);

#[derive(Clone, Debug)]
struct CustomError {
    name: String,
    error: DynSolError,
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
        let fits = |one: &&CustomError| DecodedWords(MOST_WORDS).take_all(one.error.body(), arguments).is_some();
        let (name, values) =
            declared.filter(fits).find_map(|one| Some((&one.name, one.error.decode_error(data).ok()?.body)))?;
        let values: Vec<String> = values.iter().map(text_of).collect();
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
        let shown: String = error.name.chars().take(80).collect();
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

/// The words that may still be decoded.
struct DecodedWords(usize);

impl DecodedWords {
    /// Takes the words of values of these types, whose encoding begins with `data`. Returns `None` if there are too
    /// many, or if the data end before.
    fn take_all<'a>(&mut self, types: impl IntoIterator<Item = &'a DynSolType>, data: &[u8]) -> Option<()> {
        let mut at = 0_usize;
        for ty in types {
            match head_words(ty) {
                Some(words) => {
                    self.take(words)?;
                    at = at.checked_add(words)?;
                }
                None => {
                    self.take(1)?;
                    self.take_tail(ty, data.get(word(data, at)?..)?)?;
                    at += 1;
                }
            }
        }
        Some(())
    }

    /// Takes the words of a value of dynamic length.
    fn take_tail(&mut self, ty: &DynSolType, data: &[u8]) -> Option<()> {
        match ty {
            DynSolType::Array(ty) => self.take_all(std::iter::repeat_n(&**ty, word(data, 0)?), data.get(32..)?),
            DynSolType::FixedArray(ty, length) => self.take_all(std::iter::repeat_n(&**ty, *length), data),
            DynSolType::Tuple(types) => self.take_all(types, data),
            _ => self.take(word(data, 0)?.div_ceil(32)),
        }
    }

    fn take(&mut self, words: usize) -> Option<()> {
        self.0 = self.0.checked_sub(words)?;
        Some(())
    }
}

/// Returns the number of words of a value, at least one because no tuple is empty; `None` if its length is in the data.
fn head_words(ty: &DynSolType) -> Option<usize> {
    match ty {
        DynSolType::Bytes | DynSolType::String | DynSolType::Array(_) => None,
        DynSolType::FixedArray(ty, length) => Some(head_words(ty)?.saturating_mul(*length)),
        DynSolType::Tuple(types) => types.iter().try_fold(0_usize, |sum, ty| Some(sum.saturating_add(head_words(ty)?))),
        _ => Some(1),
    }
}

/// Returns a word of the data, as a length or an offset.
fn word(data: &[u8], at: usize) -> Option<usize> {
    let start = at.checked_mul(32)?;
    let word = data.get(start..start.checked_add(32)?)?;
    U256::from_be_slice(word).try_into().ok()
}

fn last_line(text: &str) -> String {
    text.lines().next_back().unwrap_or_default().chars().take(200).collect()
}

/// Returns a value as people read it.
fn text_of(value: &DynSolValue) -> String {
    let list = |values: &[DynSolValue]| values.iter().map(text_of).collect::<Vec<_>>().join(", ");
    match value {
        DynSolValue::Bool(value) => value.to_string(),
        DynSolValue::Int(value, _) => value.to_string(),
        DynSolValue::Uint(value, _) => value.to_string(),
        DynSolValue::FixedBytes(word, size) => const_hex::encode_prefixed(&word[..*size]),
        DynSolValue::Address(address) => address.to_string(),
        DynSolValue::Function(function) => function.to_string(),
        DynSolValue::Bytes(bytes) => const_hex::encode_prefixed(bytes),
        DynSolValue::String(text) => format!("{text:?}"),
        DynSolValue::Array(values) | DynSolValue::FixedArray(values) => format!("[{}]", list(values)),
        DynSolValue::Tuple(values) | DynSolValue::CustomStruct { tuple: values, .. } => format!("({})", list(values)),
    }
}

impl<'de> Deserialize<'de> for AbiItemParam {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ItemVisitor;

        impl<'de> Visitor<'de> for ItemVisitor {
            type Value = AbiItemParam;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an item of an ABI, or a text like \"error Name(uint256 value)\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<AbiItemParam, E> {
                let error = AbiError::parse(text).map_err(|problem| {
                    let (shown, problem) = (text.chars().take(80).collect::<String>(), last_line(&problem.to_string()));
                    E::custom(format_args!("{shown:?}: {problem}: expected a text like \"error Name(uint256 value)\""))
                })?;
                CustomError::new(error).map(|error| AbiItemParam(Some(error))).map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<AbiItemParam, A::Error> {
                let item = AbiItem::deserialize(MapAccessDeserializer::new(map)).map_err(A::Error::custom)?;
                match item {
                    AbiItem::Error(error) => CustomError::new(error.into_owned())
                        .map(|error| AbiItemParam(Some(error)))
                        .map_err(A::Error::custom),
                    _ => Ok(AbiItemParam(None)),
                }
            }
        }

        deserializer.deserialize_any(ItemVisitor)
    }
}
