//! Names and parameters of functions, events and errors, by which the data of calls, logs and reverts is decoded.
//!
//! An [`AbiBook`] holds some hundreds of usual signatures (`signatures.txt`), and whatever ABI files are added to it. A
//! selector has four bytes, so a name tells what data usually means, not what a contract does with it.

mod console;
mod files;
mod item;
mod short;
mod text;

pub use self::{
    console::{CONSOLE, console_line},
    short::{head_words, is_short},
    text::{hinted, value_text},
};

use std::sync::LazyLock;

use alloy_dyn_abi::{DynSolValue, ErrorExt, EventExt, FunctionExt, JsonAbiExt};
use alloy_json_abi::{AbiItem, Error as AbiError, Event, Function, Param};
use alloy_primitives::{B256, LogData, Selector, map::HashMap};
use alloy_sol_types::{PanicKind, Revert, SolError};

/// The usual signatures of functions, events and errors, one to a line, as Solidity writes them.
pub const SIGNATURES: &str = include_str!("signatures.txt");

/// Functions, events and errors, by selector and by topic.
#[derive(Clone, Debug, Default)]
pub struct AbiBook {
    functions: HashMap<Selector, Vec<Function>>,
    events: HashMap<B256, Vec<Event>>,
    errors: HashMap<Selector, Vec<AbiError>>,
}

/// A decoded parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedValue {
    /// The parameter's name. Empty if the ABI has none.
    pub name: String,
    /// The decoded value.
    pub value: DynSolValue,
}

/// The data of a call, decoded.
#[derive(Clone, Debug)]
pub struct DecodedInput<'a> {
    /// The function.
    pub function: &'a Function,
    /// The arguments.
    pub params: Vec<NamedValue>,
}

/// A log, decoded.
#[derive(Clone, Debug)]
pub struct DecodedLog<'a> {
    /// The event.
    pub event: &'a Event,
    /// The parameters in the order of the event's declaration.
    pub params: Vec<NamedValue>,
}

impl AbiBook {
    /// Returns the usual signatures.
    pub fn usual() -> &'static Self {
        static USUAL: LazyLock<AbiBook> = LazyLock::new(|| {
            let mut book = AbiBook::default();
            let lines = SIGNATURES.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
            // A test parses each line.
            lines.filter_map(|line| AbiItem::parse(line).ok()).for_each(|item| book.add(item, false));
            for (selector, function) in console::functions() {
                push(book.functions.entry(selector).or_default(), function, false);
            }
            book
        });
        &USUAL
    }

    /// Adds a function before those with the same selector, so that it decodes, unless it says nothing that a known one with the same
    /// signature does not: no names, and no results.
    pub fn prefer_function(&mut self, function: Function) {
        let tells = !function.outputs.is_empty() || function.inputs.iter().any(|input| !input.name.is_empty());
        let same = |known: &Function| known.signature() == function.signature();
        if tells || !self.functions.get(&function.selector()).is_some_and(|known| known.iter().any(same)) {
            self.add(function.into(), true);
        }
    }

    fn add(&mut self, item: AbiItem<'_>, first: bool) {
        match item {
            AbiItem::Function(function) => {
                push(self.functions.entry(function.selector()).or_default(), function.into_owned(), first);
            }
            AbiItem::Event(event) => push(self.events.entry(event.selector()).or_default(), event.into_owned(), first),
            AbiItem::Error(error) => push(self.errors.entry(error.selector()).or_default(), error.into_owned(), first),
            AbiItem::Constructor(_) | AbiItem::Fallback(_) | AbiItem::Receive(_) => {}
        }
    }

    /// Returns the functions with this name.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Function> {
        self.functions.values().flatten().filter(move |function| function.name == name)
    }

    /// Returns all names of functions.
    pub fn function_names(&self) -> impl Iterator<Item = &str> {
        self.functions.values().flatten().map(|function| function.name.as_str())
    }

    /// Decodes the data of a call. Returns `None` if no known function has its selector and takes its arguments.
    pub fn input(&self, data: &[u8]) -> Option<DecodedInput<'_>> {
        let (selector, arguments) = data.split_first_chunk::<4>()?;
        let known = self.functions.get(selector)?.iter();
        known.filter(|function| short::are_short(&function.inputs, arguments)).find_map(|function| {
            let values = function.abi_decode_input(arguments).ok()?;
            Some(DecodedInput { function, params: named(&function.inputs, values) })
        })
    }

    /// Decodes a log. Returns `None` if no known event has its first topic and its number of topics.
    pub fn log(&self, log: &LogData) -> Option<DecodedLog<'_>> {
        let known = self.events.get(log.topics().first()?)?.iter();
        let body = |event: &&Event| short::are_short(event.inputs.iter().filter(|input| !input.indexed), &log.data);
        known.filter(body).find_map(|event| {
            let decoded = event.decode_log(log).ok()?;
            let (mut indexed, mut body) = (decoded.indexed.into_iter(), decoded.body.into_iter());
            let params = event.inputs.iter().map(|input| {
                let value = if input.indexed { indexed.next() } else { body.next() }?;
                Some(NamedValue { name: input.name.clone(), value })
            });
            Some(DecodedLog { event, params: params.collect::<Option<_>>()? })
        })
    }

    /// Explains the data of a revert by a declared error, as `Name(1, 0x…, "text")`. Returns `None` if none fits.
    pub fn custom_error(&self, data: &[u8]) -> Option<String> {
        let (selector, arguments) = data.split_first_chunk::<4>()?;
        let known = self.errors.get(selector)?.iter();
        known.filter(|error| short::are_short(&error.inputs, arguments)).find_map(|error| {
            let values = error.decode_error(data).ok()?.body;
            let values: Vec<String> = values.iter().map(value_text).collect();
            Some(format!("{}({})", error.name, values.join(", ")))
        })
    }

    /// Explains the data of a revert: a reason, a panic, or a declared error. Returns `None` if nothing fits.
    pub fn revert(&self, data: &[u8]) -> Option<String> {
        if let Ok(revert) = Revert::abi_decode(data) {
            return Some(text::quoted(&revert.reason));
        }
        if let Ok(panic) = alloy_sol_types::Panic::abi_decode(data) {
            let kind = u32::try_from(panic.code).ok().and_then(PanicKind::from_number);
            return Some(match kind {
                Some(kind) => format!("panic {:#04x}: {}", panic.code, kind.as_str()),
                None => format!("panic {:#04x}", panic.code),
            });
        }
        self.custom_error(data)
    }
}

/// Returns the values that a call of `function` has returned. Returns `None` if the function declares no results, or
/// others.
pub fn output(function: &Function, data: &[u8]) -> Option<Vec<NamedValue>> {
    if function.outputs.is_empty() || !short::are_short(&function.outputs, data) {
        return None;
    }
    Some(named(&function.outputs, function.abi_decode_output(data).ok()?))
}

fn named(params: &[Param], values: Vec<DynSolValue>) -> Vec<NamedValue> {
    params.iter().zip(values).map(|(param, value)| NamedValue { name: param.name.clone(), value }).collect()
}

fn push<T: PartialEq>(all: &mut Vec<T>, one: T, first: bool) {
    if all.contains(&one) && !first {
        return;
    }
    all.retain(|known| *known != one);
    all.insert(if first { 0 } else { all.len() }, one);
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::hex;

    #[test]
    fn each_line_of_the_usual_signatures_is_one_and_is_there_once() {
        let mut seen = std::collections::BTreeSet::new();
        for line in SIGNATURES.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            AbiItem::parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert!(seen.insert(line), "twice: {line}");
        }
        assert!(seen.len() > 300, "{}", seen.len());
    }

    #[test]
    fn the_usual_signatures_have_the_selectors_that_the_chain_knows() {
        let book = AbiBook::usual();
        for (name, selector) in [
            ("transfer", "a9059cbb"),
            ("swapExactTokensForTokens", "38ed1739"),
            ("exactInputSingle", "414bf389"),
            ("exactInputSingle", "04e45aaf"),
            ("quoteExactInputSingle", "c6a5026a"),
            ("execTransaction", "6a761202"),
            ("aggregate3", "82ad56cb"),
            ("permitTransferFrom", "30f28b7a"),
            ("flashLoanSimple", "42b0b77c"),
            ("latestRoundData", "feaf968c"),
            ("handleOps", "765e827f"),
            ("handleOps", "1fad948c"),
            ("setL1BlockValuesEcotone", "440a5e20"),
            ("exchange", "3df02124"),
            ("batchSwap", "945bcec9"),
            ("unlock", "48c89491"),
            ("modifyLiquidities", "dd46508f"),
        ] {
            let selector = hex::decode(selector).unwrap();
            let found = book.functions.get(selector.as_slice());
            assert!(found.is_some_and(|all| all.iter().any(|one| one.name == name)), "{name}: {found:?}");
        }
        for (name, topic) in [
            ("Swap", "d78ad95fa46c994b6551d0da85fc275fe613ce37657fb8d5e3d130840159d822"),
            ("Swap", "c42079f94a6350d7e6235f29174924f928cc2ac818eb64fed8004e115fbcca67"),
            ("Swap", "40e9cecb9f5f1f1c5b9c97dec2917b7ee92e57ba5563708daca94dd84ad7112f"),
            ("Swap", "2170c741c41531aec20e7c107c24eecfdd15e69c9bb0a8dd37b1840b9e0b207b"),
            ("TransferSingle", "c3d58168c5ae7397731d063d5bbf3d657854427343f4c083240f7aacaa2d0f62"),
        ] {
            let topic: B256 = topic.parse().unwrap();
            assert!(book.events.get(&topic).is_some_and(|all| all[0].name == name), "{name} {topic}");
        }
    }

    #[test]
    fn a_log_is_decoded_by_its_number_of_topics() {
        let book = AbiBook::usual();
        let word = B256::with_last_byte(7);
        let topic = alloy_primitives::keccak256("Transfer(address,address,uint256)");
        let fungible = LogData::new_unchecked(vec![topic, word, word], word.to_vec().into());
        let item = LogData::new_unchecked(vec![topic, word, word, word], Default::default());
        let last = |log: &LogData| book.log(log).unwrap().params.pop().unwrap().name;
        assert_eq!((last(&fungible), last(&item)), ("value".to_owned(), "tokenId".to_owned()));
    }

    #[test]
    fn a_revert_is_a_reason_a_panic_or_a_declared_error() {
        let book = AbiBook::usual();
        assert_eq!(book.revert(&Revert::from("K\u{1b}").abi_encode()).unwrap(), r#""K\u{1b}""#);
        let panic = alloy_sol_types::Panic::from(PanicKind::UnderOverflow).abi_encode();
        assert!(book.revert(&panic).unwrap().starts_with("panic 0x11: "), "{:?}", book.revert(&panic));
        let error = AbiError::parse("error InsufficientBalance(uint256 balance, uint256 needed)").unwrap();
        let data = [&error.selector()[..], &B256::with_last_byte(1)[..], &B256::with_last_byte(2)[..]].concat();
        assert_eq!(book.revert(&data).unwrap(), "InsufficientBalance(1, 2)");
        assert_eq!(book.revert(&[1, 2, 3, 4]), None);
    }
}
