//! Quantities: numbers as Ethereum's JSON-RPC writes them.

use serde_json::Value;

/// A quantity as a number.
pub fn quantity(value: &Value) -> Option<u64> {
    number(value.as_str()?)
}

/// A quantity's text as a number.
pub fn number(quantity: &str) -> Option<u64> {
    u64::from_str_radix(quantity.strip_prefix("0x")?, 16).ok()
}
