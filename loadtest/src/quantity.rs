//! Quantities: numbers as Ethereum's JSON-RPC writes them.

use serde_json::Value;

/// Returns a quantity as a number; `None` if `value` is not a quantity.
pub fn quantity(value: &Value) -> Option<u64> {
    number(value.as_str()?)
}

/// Returns a quantity's text as a number; `None` if the text is not a quantity.
pub fn number(quantity: &str) -> Option<u64> {
    u64::from_str_radix(quantity.strip_prefix("0x")?, 16).ok()
}
