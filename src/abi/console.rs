//! `console.log` of the libraries of hardhat and forge: a call of an address without code, whose data has the values.

use alloy_dyn_abi::DynSolValue;
use alloy_json_abi::Function;
use alloy_primitives::{Address, Selector, address, keccak256};

use super::{AbiBook, text::value_text};

/// The address that the libraries call.
pub const CONSOLE: Address = address!("0x000000000000000000636f6e736f6c652e6c6f67");

/// The types of which `log` takes up to four.
const TYPES: [&str; 4] = ["uint256", "string", "bool", "address"];
/// The types of which `log` takes one.
const SINGLE: [&str; 3] = ["int256", "bytes", "bytes32"];

/// Returns the functions of the libraries with their selectors. Older libraries wrote `uint` and `int` in the text that is hashed.
pub(super) fn functions() -> impl Iterator<Item = (Selector, Function)> {
    let mut lists = vec![Vec::new()];
    let mut longest = vec![Vec::<&str>::new()];
    for _ in 0..4 {
        longest = longest.iter().flat_map(|list| TYPES.iter().map(|one| [list.clone(), vec![*one]].concat())).collect();
        lists.extend(longest.clone());
    }
    lists.extend(SINGLE.map(|one| vec![one]));
    let logs = lists.into_iter().map(|types| ("log".to_owned(), types.join(",")));
    let fixed = (1..=32).map(|size| (format!("logBytes{size}"), format!("bytes{size}")));
    let named = [("logUint", "uint256"), ("logInt", "int256"), ("logString", "string"), ("logBool", "bool")];
    let named = named.into_iter().chain([("logAddress", "address"), ("logBytes", "bytes")]);
    let named = named.map(|(name, types)| (name.to_owned(), types.to_owned()));
    logs.chain(fixed).chain(named).flat_map(|(name, types)| {
        let (new, old) = (format!("{name}({types})"), format!("{name}({})", types.replace("int256", "int")));
        let function = Function::parse(&new).ok();
        let selectors = if old == new { vec![new] } else { vec![new, old] };
        let selector = |text: String| Selector::from_slice(&keccak256(text)[..4]);
        function.into_iter().flat_map(move |function| {
            let selectors: Vec<_> = selectors.iter().cloned().map(selector).collect();
            selectors.into_iter().map(move |selector| (selector, function.clone()))
        })
    })
}

/// Returns the line that a call of [`CONSOLE`] with this data logs: its values, formatted as `console.log` does in a browser. `None` if
/// it is no such call.
pub fn console_line(data: &[u8]) -> Option<String> {
    let values = AbiBook::usual().input(data)?.params.into_iter().map(|param| param.value);
    let mut values = values.collect::<Vec<_>>().into_iter();
    let first = values.next();
    let mut line = String::new();
    if let Some(DynSolValue::String(format)) = &first {
        let mut rest = format.as_str();
        while let Some((before, after)) = rest.split_once('%') {
            line.push_str(before);
            let mut chars = after.chars();
            match chars.next() {
                Some('%') => line.push('%'),
                Some('s' | 'd' | 'i' | 'o' | 'O' | 'x' | 'e') => match values.next() {
                    Some(value) => line.push_str(&plain(&value)),
                    None => line.extend(['%'].into_iter().chain(after.chars().next())),
                },
                other => line.extend(['%'].into_iter().chain(other)),
            }
            rest = chars.as_str();
        }
        line.push_str(rest);
    } else if let Some(first) = &first {
        line.push_str(&plain(first));
    }
    for value in values {
        line.push(' ');
        line.push_str(&plain(&value));
    }
    Some(line)
}

/// Returns a value as people read it, a text without quotes.
fn plain(value: &DynSolValue) -> String {
    match value {
        DynSolValue::String(text) => text.clone(),
        other => value_text(other),
    }
}

#[cfg(test)]
mod tests {
    use alloy_dyn_abi::JsonAbiExt;

    use super::*;

    fn line(signature: &str, values: &[DynSolValue]) -> String {
        let function = Function::parse(signature).unwrap();
        console_line(&function.abi_encode_input(values).unwrap()).unwrap()
    }

    #[test]
    fn values_take_the_places_of_a_format_and_others_follow() {
        let (text, number) = (|text: &str| DynSolValue::String(text.to_owned()), DynSolValue::Uint);
        assert_eq!(line("log()", &[]), "");
        assert_eq!(line("log(uint256)", &[number("7".parse().unwrap(), 256)]), "7");
        assert_eq!(line("log(string,uint256)", &[text("is"), number("7".parse().unwrap(), 256)]), "is 7");
        let values =
            [text("%s is %d, 100%% of %s"), text("it"), number("7".parse().unwrap(), 256), DynSolValue::Bool(true)];
        assert_eq!(line("log(string,string,uint256,bool)", &values), "it is 7, 100% of true");
        assert_eq!(line("log(string)", &[text("%s and %z 5%")]), "%s and %z 5%");
        assert_eq!(line("logBytes2(bytes2)", &[DynSolValue::FixedBytes([0xab; 32].into(), 2)]), "0xabab");
    }

    #[test]
    fn older_libraries_are_understood() {
        // The selector of `log(uint)`, of which no compiler makes one.
        let data = [&[0xf5, 0xb1, 0xbb, 0xa9], [0; 31].as_slice(), &[5]].concat();
        assert_eq!(console_line(&data).unwrap(), "5");
        assert_eq!(console_line(b"nothing"), None);
    }
}
