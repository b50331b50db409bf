//! Decoded values as people read them. Texts of contracts are escaped, so that no terminal obeys them.

use alloy_dyn_abi::DynSolValue;
use alloy_primitives::U256;

/// Returns a value as people read it.
pub fn value_text(value: &DynSolValue) -> String {
    written(value, &|number| number.to_string())
}

/// Returns a value as people read it, with the magnitude of large numbers beside them, as `1500000000000000000 [1.5e18]`.
pub fn hinted(value: &DynSolValue) -> String {
    written(value, &|number| match magnitude(number) {
        Some(magnitude) => format!("{number} [{magnitude}]"),
        None => number.to_string(),
    })
}

fn written(value: &DynSolValue, number: &dyn Fn(U256) -> String) -> String {
    let list =
        |values: &[DynSolValue]| values.iter().map(|value| written(value, number)).collect::<Vec<_>>().join(", ");
    match value {
        DynSolValue::Bool(value) => value.to_string(),
        DynSolValue::Int(value, _) => {
            let sign = if value.is_negative() { "-" } else { "" };
            format!("{sign}{}", number(value.unsigned_abs()))
        }
        DynSolValue::Uint(value, _) => number(*value),
        DynSolValue::FixedBytes(word, size) => const_hex::encode_prefixed(&word[..*size]),
        DynSolValue::Address(address) => address.to_string(),
        DynSolValue::Function(function) => function.to_string(),
        DynSolValue::Bytes(bytes) => const_hex::encode_prefixed(bytes),
        DynSolValue::String(text) => quoted(text),
        DynSolValue::Array(values) | DynSolValue::FixedArray(values) => format!("[{}]", list(values)),
        DynSolValue::Tuple(values) | DynSolValue::CustomStruct { tuple: values, .. } => format!("({})", list(values)),
    }
}

/// Returns a contract's text in quotes, escaped.
pub(super) fn quoted(text: &str) -> String {
    format!("{text:?}")
}

/// Returns a number of seven digits or more with up to four of them, as `1.234e18`.
fn magnitude(number: U256) -> Option<String> {
    let digits = number.to_string();
    let (first, exponent) = (digits.get(..4)?, digits.len() - 1);
    if exponent < 6 {
        return None;
    }
    let (head, tail) = first.split_at(1);
    let tail = tail.trim_end_matches('0');
    let point = if tail.is_empty() { "" } else { "." };
    Some(format!("{head}{point}{tail}e{exponent}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_have_their_magnitude_beside_them() {
        let uint = |text: &str| hinted(&DynSolValue::Uint(text.parse().unwrap(), 256));
        assert_eq!(uint("999999"), "999999");
        assert_eq!(uint("1000000000000000000"), "1000000000000000000 [1e18]");
        assert_eq!(uint("1234500000"), "1234500000 [1.234e9]");
    }
}
