//! Calls by flags: `--to ADDRESS --sig "transfer(address,uint256)" --args ADDRESS 1ether`, and again for the next call.

use std::ops::Range;

use alloy_dyn_abi::{DynSolType, JsonAbiExt, Specifier};
use alloy_json_abi::Function;
use alloy_primitives::{Address, Bytes, U256, hex};
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches};
use serde_json::{Map, Value, json};

use super::error::CommandError;
use crate::{abi::AbiBook, nearest::nearest};

/// The flags of a call, by their ids.
const FLAGS: [(&str, CallFlag); 10] = [
    ("to", CallFlag::To),
    ("create", CallFlag::Create),
    ("from", CallFlag::From),
    ("sig", CallFlag::Sig),
    ("args", CallFlag::Args),
    ("data", CallFlag::Data),
    ("value", CallFlag::Value),
    ("gas", CallFlag::Gas),
    ("gas_price", CallFlag::GasPrice),
    ("may_fail", CallFlag::MayFail),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallFlag {
    To,
    Create,
    From,
    Sig,
    Args,
    Data,
    Value,
    Gas,
    GasPrice,
    MayFail,
}

/// The calls that flags describe. Empty if there is no such flag.
#[derive(Clone, Debug, Default)]
pub struct ShortCalls {
    /// The calls in order.
    pub calls: Vec<ShortCall>,
    /// The first flag that was given, for errors.
    pub first: Option<&'static str>,
}

/// A call that flags describe. The texts are not parsed yet.
#[derive(Clone, Debug, Default)]
pub struct ShortCall {
    to: Option<String>,
    create: Option<String>,
    from: Option<String>,
    sig: Option<String>,
    args: Vec<String>,
    data: Option<String>,
    value: Option<String>,
    gas: Option<String>,
    gas_price: Option<String>,
    /// Whether the call may fail.
    pub may_fail: bool,
}

/// A call as `presim_simulate` takes it, and the function that it calls.
#[derive(Clone, Debug)]
pub struct WrittenCall {
    /// The call object.
    pub object: Map<String, Value>,
    /// The function of `--sig`.
    pub function: Option<Function>,
}

impl Args for ShortCalls {
    fn augment_args(command: clap::Command) -> clap::Command {
        let flag = |id: &'static str, value: &'static str, help: &'static str| {
            let arg = Arg::new(id).long(id.replace('_', "-")).help(help).help_heading("Call");
            arg.value_name(value).action(ArgAction::Append).allow_negative_numbers(true)
        };
        command
            .arg(flag("to", "ADDRESS", "Call this account. Repeat for several calls: the flags after it are its own"))
            .arg(flag("create", "CODE", "Create a contract with this init code instead of a call"))
            .arg(flag("from", "ADDRESS", "Sender. Before the first --to, that of all calls"))
            .arg(flag(
                "sig",
                "FUNCTION",
                "Function: \"swap(uint256)\", \"balanceOf(address)(uint256)\", or a name that only one known function has",
            ))
            .arg(
                flag("args", "VALUE", "Arguments: 0x…, 1.5ether, true, text, [1,2] or (1,2)").num_args(1..),
            )
            .arg(flag("data", "HEX", "Call data, in the place of --sig and --args"))
            .arg(flag("value", "AMOUNT", "Ether that is sent: in wei, or with a unit, as 1.5ether or 30gwei"))
            .arg(flag("gas", "GAS", "Gas limit").hide_short_help(true))
            .arg(flag("gas_price", "AMOUNT", "Price of a unit of gas: in wei, or with a unit").hide_short_help(true))
            .arg(
                Arg::new("may_fail")
                    .long("may-fail")
                    .action(ArgAction::Append)
                    .num_args(0)
                    .default_missing_value("true")
                    .help_heading("Call")
                    .help("Let the call fail without failing the command. Before the first --to, or with FILE: all calls"),
            )
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ShortCalls {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given: Vec<(usize, &'static str, CallFlag, String)> = Vec::new();
        for (id, flag) in FLAGS {
            let values = matches.get_many::<String>(id).into_iter().flatten();
            let indices = matches.indices_of(id).into_iter().flatten();
            given.extend(indices.zip(values).map(|(index, value)| (index, id, flag, value.clone())));
        }
        given.sort_by_key(|(index, ..)| *index);
        Ok(Self::of(given))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl ShortCalls {
    fn of(given: Vec<(usize, &'static str, CallFlag, String)>) -> Self {
        let is_target = |flag: CallFlag| matches!(flag, CallFlag::To | CallFlag::Create);
        let targets = given.iter().filter(|(_, _, flag, _)| is_target(*flag)).count();
        let first = given.iter().find(|(_, _, flag, _)| *flag != CallFlag::MayFail).map(|(_, id, ..)| *id);
        // With one call the order of its flags does not matter.
        if targets <= 1 {
            let mut call = ShortCall::default();
            given.into_iter().for_each(|(_, _, flag, value)| call.set(flag, value));
            return Self { calls: vec![call], first };
        }
        let mut common = ShortCall::default();
        let mut calls: Vec<ShortCall> = Vec::new();
        for (_, _, flag, value) in given {
            if is_target(flag) {
                calls.push(common.clone());
            }
            calls.last_mut().unwrap_or(&mut common).set(flag, value);
        }
        Self { calls, first }
    }

    /// Returns whether all calls may fail, which a file has no flag for.
    pub fn all_may_fail(&self) -> bool {
        self.calls.iter().all(|call| call.may_fail) && !self.calls.is_empty()
    }

    /// Returns the calls as the node takes them, with the functions that `book` knows by their names.
    ///
    /// # Errors
    ///
    /// Returns [`CommandError::Input`] with the flag that has a wrong value.
    pub fn written(&self, book: &AbiBook) -> Result<Vec<WrittenCall>, CommandError> {
        self.calls.iter().map(|call| call.written(book)).collect()
    }
}

impl ShortCall {
    fn set(&mut self, flag: CallFlag, value: String) {
        match flag {
            CallFlag::To => self.to = Some(value),
            CallFlag::Create => self.create = Some(value),
            CallFlag::From => self.from = Some(value),
            CallFlag::Sig => self.sig = Some(value),
            CallFlag::Args => self.args.push(value),
            CallFlag::Data => self.data = Some(value),
            CallFlag::Value => self.value = Some(value),
            CallFlag::Gas => self.gas = Some(value),
            CallFlag::GasPrice => self.gas_price = Some(value),
            CallFlag::MayFail => self.may_fail = true,
        }
    }

    fn written(&self, book: &AbiBook) -> Result<WrittenCall, CommandError> {
        let mut object = Map::new();
        if let Some(from) = &self.from {
            object.insert("from".into(), json!(address("--from", from)?));
        }
        match (&self.to, &self.create) {
            (Some(to), None) => object.insert("to".into(), json!(address("--to", to)?)),
            (None, Some(_)) => object.insert("to".into(), Value::Null),
            _ => return Err(input("--to: missing: expected the account that is called, or --create with init code")),
        };
        let mut function = None;
        let data = match (&self.sig, &self.data, &self.create) {
            (Some(sig), None, None) => {
                let found = function_of(sig, self.args.len(), book)?;
                let data = encoded(&found, &self.args)?;
                function = Some(found);
                Some(data)
            }
            (None, Some(data), None) => Some(bytes("--data", data)?),
            (None, None, Some(code)) => Some(bytes("--create", code)?),
            (None, None, None) => None,
            _ => return Err(input("--sig, --data, --create: expected one of them for a call")),
        };
        if function.is_none() && !self.args.is_empty() {
            return Err(input("--args: needs --sig: the function that takes them"));
        }
        if let Some(data) = data {
            object.insert("data".into(), json!(data));
        }
        for (flag, name, value) in [
            ("--value", "value", &self.value),
            ("--gas-price", "gasPrice", &self.gas_price),
            ("--gas", "gas", &self.gas),
        ] {
            if let Some(text) = value {
                object.insert(name.into(), json!(amount(flag, text)?));
            }
        }
        Ok(WrittenCall { object, function })
    }
}

/// Returns the place of a static argument in the data of a call to `function`, as the number of its word.
pub fn word_of(function: &Function, argument: usize) -> Option<usize> {
    let words = |param: &alloy_json_abi::Param| param.resolve().ok().and_then(|ty| static_words(&ty));
    // A dynamic argument has one word in the head, which points to its data.
    let before: Range<usize> = 0..argument;
    words(function.inputs.get(argument)?).filter(|words| *words == 1)?;
    Some(before.filter_map(|index| function.inputs.get(index)).map(|param| words(param).unwrap_or(1)).sum())
}

/// Returns the number of words of a type without dynamic parts.
fn static_words(ty: &DynSolType) -> Option<usize> {
    match ty {
        DynSolType::Bytes | DynSolType::String | DynSolType::Array(_) => None,
        DynSolType::FixedArray(inner, length) => Some(static_words(inner)? * length),
        DynSolType::Tuple(all) | DynSolType::CustomStruct { tuple: all, .. } => all.iter().map(static_words).sum(),
        _ => Some(1),
    }
}

/// Parses an amount: a number, or one with a unit of ether.
///
/// # Errors
///
/// Returns [`CommandError::Input`] with the flag if the text is no amount.
pub fn amount(flag: &str, text: &str) -> Result<U256, CommandError> {
    let value = DynSolType::Uint(256).coerce_str(text).ok().and_then(|value| value.as_uint().map(|(value, _)| value));
    value.ok_or_else(|| {
        input(format!("{flag}: {text:?}: no amount: expected a number like 1000, 0x3e8, 1.5ether or 30gwei"))
    })
}

/// Parses an address.
///
/// # Errors
///
/// Returns [`CommandError::Input`] with the flag if the text is no address.
pub fn address(flag: &str, text: &str) -> Result<Address, CommandError> {
    text.parse().map_err(|error| input(format!("{flag}: {text:?}: no address: {error}: expected 0x and 40 hex digits")))
}

fn bytes(flag: &str, text: &str) -> Result<Bytes, CommandError> {
    hex::decode(text).map(Bytes::from).map_err(|error| input(format!("{flag}: {error}: expected bytes in hex")))
}

fn input(text: impl Into<String>) -> CommandError {
    CommandError::Input(text.into())
}

/// Returns the function of a signature, or the only one that is known by this name and takes so many arguments.
fn function_of(sig: &str, arguments: usize, book: &AbiBook) -> Result<Function, CommandError> {
    let sig = sig.trim();
    if sig.contains('(') {
        // The results may follow in parentheses of their own: `balanceOf(address)(uint256)`.
        let written = match sig.contains("returns") {
            true => sig.to_owned(),
            false => sig.replacen(")(", ") returns (", 1),
        };
        let parsed = Function::parse(&written).or_else(|_| Function::parse(sig));
        return parsed.map_err(|error| {
            let problem = error.to_string().replace('\n', " ");
            input(format!("--sig: {sig:?}: {problem}: expected a function like \"transfer(address,uint256)\""))
        });
    }
    let mut found: Vec<&Function> = book.named(sig).filter(|one| one.inputs.len() == arguments).collect();
    found.sort_by_key(|one| one.signature());
    found.dedup_by_key(|one| one.signature());
    match found.as_slice() {
        [one] => Ok((*one).clone()),
        [] => {
            let mut others: Vec<String> = book.named(sig).map(Function::signature).collect();
            others.sort();
            others.dedup();
            let tip = match nearest(sig, book.function_names()) {
                _ if !others.is_empty() => format!("known with other arguments: {}", others.join(", ")),
                Some(near) => format!("did you mean {near}? Or give its signature, as \"{sig}(uint256)\""),
                None => format!("give its signature, as \"{sig}(uint256)\", or its ABI by --abi"),
            };
            Err(input(format!("--sig: {sig:?}: no known function has this name and {arguments} arguments: {tip}")))
        }
        several => {
            let signatures: Vec<String> = several.iter().map(|one| one.signature()).collect();
            Err(input(format!(
                "--sig: {sig:?}: several functions have this name: expected one of {}",
                signatures.join(", ")
            )))
        }
    }
}

fn encoded(function: &Function, args: &[String]) -> Result<Bytes, CommandError> {
    if args.len() != function.inputs.len() {
        let text = format!(
            "--args: {} values: expected {} for {}: quote lists and values with spaces",
            args.len(),
            function.inputs.len(),
            function.signature()
        );
        return Err(input(text));
    }
    let values = function.inputs.iter().zip(args).enumerate().map(|(index, (param, text))| {
        let wrong = |problem: String| {
            let name = if param.name.is_empty() { String::new() } else { format!(" {}", param.name) };
            input(format!("--args: value {index}: {text:?}: {problem}: expected {}{name}", param.selector_type()))
        };
        let ty = param.resolve().map_err(|error| wrong(error.to_string()))?;
        ty.coerce_str(text).map_err(|error| wrong(error.to_string().replace('\n', " ")))
    });
    let values = values.collect::<Result<Vec<_>, _>>()?;
    let data = function.abi_encode_input(&values).map_err(|error| input(format!("--args: {error}")))?;
    Ok(data.into())
}
