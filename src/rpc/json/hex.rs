//! Hex in JSON-RPC: quantities without leading zeros, data in whole bytes, both with a `0x`.

use std::{borrow::Cow, fmt, str::FromStr};

use alloy_primitives::{Address, B256, Bytes, FixedBytes, I256, U256};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, Unexpected, Visitor},
};

use super::form::Forms;

/// A quantity: `0x` and 1 to 64 hex digits, the first not zero unless it is the only one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quantity<T>(pub T);

/// A number as a quantity or as a JSON number, because clients send both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number<T>(pub T);

/// Data: `0x` and an even count of hex digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Data(pub Bytes);

/// Exactly `N` bytes: `0x` and `2 N` hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fixed<const N: usize>(pub [u8; N]);

/// A storage slot or value: 32 bytes. Shorter hex is padded with zeros in front, as in geth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Word(pub U256);

/// A number that may be negative: a quantity, or a decimal string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignedNumber(pub I256);

/// A storage slot of a proof, with the client's spelling, because the answer repeats it, as in geth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotKey {
    /// The slot.
    pub slot: U256,
    /// Whether the slot was written with all its 32 bytes.
    pub in_full: bool,
}

/// An integer that a quantity can hold.
pub trait Integer: Sized {
    /// The name of the type in errors.
    const NAME: &'static str;
    /// Returns the value, if it is in range.
    fn from_u256(value: U256) -> Option<Self>;
}

impl Integer for u64 {
    const NAME: &'static str = "64 bits";
    fn from_u256(value: U256) -> Option<Self> {
        value.try_into().ok()
    }
}

impl Integer for u128 {
    const NAME: &'static str = "128 bits";
    fn from_u256(value: U256) -> Option<Self> {
        value.try_into().ok()
    }
}

impl Integer for U256 {
    const NAME: &'static str = "256 bits";
    fn from_u256(value: U256) -> Option<Self> {
        Some(value)
    }
}

impl<const N: usize> Fixed<N> {
    /// Returns the address or hash that it is.
    pub fn into<T: From<[u8; N]>>(self) -> T {
        T::from(self.0)
    }
}

impl From<Fixed<20>> for Address {
    fn from(bytes: Fixed<20>) -> Self {
        Self(bytes.0.into())
    }
}

impl From<Fixed<32>> for B256 {
    fn from(bytes: Fixed<32>) -> Self {
        Self(bytes.0)
    }
}

impl<T: fmt::LowerHex> Serialize for Quantity<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", self.0))
    }
}

impl Serialize for Data {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<const N: usize> Serialize for Fixed<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        FixedBytes(self.0).serialize(serializer)
    }
}

/// Writes the slot in the client's spelling.
impl Serialize for SlotKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.in_full {
            true => Fixed(self.slot.to_be_bytes::<32>()).serialize(serializer),
            false => Quantity(self.slot).serialize(serializer),
        }
    }
}

/// Returns the value of a quantity.
pub fn parse_quantity(text: &str) -> Result<U256, Cow<'static, str>> {
    let digits = text.strip_prefix("0x").ok_or("a quantity begins with 0x")?;
    if digits.is_empty() {
        return Err("a quantity has at least one hex digit after 0x".into());
    }
    if digits.len() > 1 && digits.starts_with('0') {
        return Err("a quantity has no leading zeros".into());
    }
    if digits.len() > 64 {
        return Err("a quantity has at most 64 hex digits".into());
    }
    decode_number(digits).ok_or_else(|| "a quantity has hex digits only".into())
}

/// Returns the number of at most 64 hex digits, or `None` if one of them is not a hex digit.
fn decode_number(digits: &str) -> Option<U256> {
    let mut padded = [b'0'; 64];
    padded[64 - digits.len()..].copy_from_slice(digits.as_bytes());
    let mut bytes = [0; 32];
    decode_digits(&padded, &mut bytes)?;
    Some(U256::from_be_bytes(bytes))
}

fn decode(text: &str) -> Result<Vec<u8>, Cow<'static, str>> {
    let digits = text.strip_prefix("0x").ok_or("hex data begins with 0x")?;
    if digits.len() % 2 == 1 {
        return Err(format!("hex data has an even count of digits, this has {}", digits.len()).into());
    }
    let mut bytes = vec![0; digits.len() / 2];
    decode_digits(digits.as_bytes(), &mut bytes).ok_or("hex data has hex digits only")?;
    Ok(bytes)
}

/// Fills `bytes` with the value of twice as many hex digits. Returns `None` if one is not a hex digit. A second `0x`,
/// which `const_hex` would skip, leaves too few digits.
fn decode_digits(digits: &[u8], bytes: &mut [u8]) -> Option<()> {
    const_hex::decode_to_slice(digits, bytes).ok()
}

/// Returns the `N` bytes of a text of `0x` and `2 N` hex digits.
pub fn parse_fixed<const N: usize>(text: &str) -> Result<[u8; N], Cow<'static, str>> {
    let digits = text.strip_prefix("0x").ok_or_else(|| format!("expected 0x and {} hex digits", 2 * N))?;
    if digits.len() != 2 * N {
        return Err(format!("expected {N} bytes, {} hex digits after 0x, this has {}", 2 * N, digits.len()).into());
    }
    let mut bytes = [0; N];
    decode_digits(digits.as_bytes(), &mut bytes).ok_or("expected hex digits only")?;
    Ok(bytes)
}

/// Returns as much of a value as an error should show.
fn shown(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("\"{}…\" ({} characters)", &text[..end], text.len()),
        None => format!("{text:?}"),
    }
}

/// A visitor that passes a string to a parser.
struct ParsedText<F>(&'static str, F);

impl<T, F: FnOnce(&str) -> Result<T, Cow<'static, str>>> Visitor<'_> for ParsedText<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.1)(text).map_err(|reason| E::custom(format_args!("{}: {reason}", shown(text))))
    }
}

impl<'de, T: Integer> Deserialize<'de> for Quantity<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(ParsedText("a quantity, like \"0x1f\"", |text: &str| {
            let value = parse_quantity(text)?;
            T::from_u256(value).map(Quantity).ok_or_else(|| format!("out of range: at most {}", T::NAME).into())
        }))
    }
}

impl<T: Integer> Number<T> {
    /// Reads a quantity or a number. Returns `None` if the value is neither a string nor a whole number.
    pub fn of_scalar(given: Unexpected<'_>) -> Option<Result<Self, String>> {
        let value = match given {
            Unexpected::Unsigned(value) => Ok(U256::from(value)),
            Unexpected::Str(text) => parse_quantity(text).map_err(|reason| format!("{}: {reason}", shown(text))),
            _ => return None,
        };
        let in_range =
            |value| T::from_u256(value).map(Self).ok_or_else(|| format!("out of range: at most {}", T::NAME));
        Some(value.and_then(in_range))
    }
}

impl<'de, T: Integer> Deserialize<'de> for Number<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Forms::<Self> {
            expected: "a quantity, like \"0x1f\", or a number, like 31",
            scalar: Self::of_scalar,
            object: None,
        })
    }
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(ParsedText("hex data, like \"0x\" or \"0x00ff\"", |text: &str| {
            decode(text).map(|bytes| Self(bytes.into()))
        }))
    }
}

impl<'de, const N: usize> Deserialize<'de> for Fixed<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let what = match N {
            16 => "16 bytes: 0x and 32 hex digits",
            20 => "an address: 0x and 40 hex digits",
            _ => "32 bytes: 0x and 64 hex digits",
        };
        deserializer.deserialize_str(ParsedText(what, |text: &str| parse_fixed(text).map(Self)))
    }
}

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(ParsedText(WORD, |text: &str| parse_word(text).map(Self)))
    }
}

impl<'de> Deserialize<'de> for SignedNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(ParsedText("a quantity, or a decimal number in a string", |text: &str| {
            let number = match text.strip_prefix("0x") {
                Some(_) => parse_quantity(text).ok().and_then(|value| I256::try_from(value).ok()),
                None => Some(text).filter(|text| is_decimal(text)).and_then(|text| I256::from_str(text).ok()),
            };
            number.map(Self).ok_or_else(|| "expected a quantity, or a decimal number in a string".into())
        }))
    }
}

fn is_decimal(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

impl<'de> Deserialize<'de> for SlotKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(ParsedText(WORD, |text: &str| {
            // geth counts bytes, and a half byte as a whole one.
            parse_word(text).map(|slot| Self { slot, in_full: text.len() >= 65 })
        }))
    }
}

const WORD: &str = "a storage word: 0x and up to 64 hex digits";

fn parse_word(text: &str) -> Result<U256, Cow<'static, str>> {
    let digits = text.strip_prefix("0x").ok_or("a storage word begins with 0x")?;
    if digits.len() > 64 {
        return Err(format!("a storage word has at most 64 hex digits, this has {}", digits.len()).into());
    }
    decode_number(digits).ok_or_else(|| "a storage word has hex digits only".into())
}

/// Defines the named schema of a type that is a string.
macro_rules! named {
    ($([$($generic:ident)?] $type:ty => $name:literal, $pattern:literal, $description:literal;)*) => {$(
        impl$(<$generic>)? JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "string", "pattern": $pattern, "description": $description})
            }
        }
    )*};
}

named! {
    [T] Quantity<T> => "Quantity", "^0x(0|[1-9a-f][0-9a-f]{0,63})$", "A number in hex without leading zeros.";
    [] Data => "Bytes", "^0x([0-9a-fA-F]{2})*$", "Bytes in hex.";
    [] Fixed<16> => "WatchId", "^0x[0-9a-fA-F]{32}$", "The name of standing bundles.";
    [] Fixed<20> => "Address", "^0x[0-9a-fA-F]{40}$", "The address of an account.";
    [] Fixed<32> => "Hash", "^0x[0-9a-fA-F]{64}$", "A hash, or other 32 bytes.";
    [] SignedNumber => "SignedNumber", "^(0x(0|[1-9a-f][0-9a-f]{0,63})|-?[0-9]+)$", "A quantity, or a decimal number, which may be negative.";
    [] Word => "Word", "^0x[0-9a-fA-F]{0,64}$", "A storage slot or its value: up to 32 bytes. Shorter hex is padded with zeros in front.";
    [] SlotKey => "Word", "^0x[0-9a-fA-F]{0,64}$", "A storage slot or its value: up to 32 bytes. Shorter hex is padded with zeros in front.";
}

impl<T> JsonSchema for Number<T> {
    fn schema_name() -> Cow<'static, str> {
        "Number".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let quantity = generator.subschema_for::<Quantity<T>>();
        json_schema!({"anyOf": [quantity, {"type": "integer", "minimum": 0}]})
    }
}
