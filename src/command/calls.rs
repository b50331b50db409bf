//! Calls by flags: `--to ADDRESS --sig "transfer(address,uint256)" --args ADDRESS 1ether`, and again for the next call.

use std::borrow::Cow;

use alloy_dyn_abi::{DynSolType, JsonAbiExt, Specifier};
use alloy_json_abi::Function;
use alloy_primitives::{Bytes, U256, hex};
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches};
use serde_json::{Map, Value, json};

use super::{error::CommandError, names::LazyLink};
use crate::{
    abi::{AbiBook, head_words},
    nearest::nearest,
};

/// The flags of a call that have a value: their ids, the names of their values, and their help.
const FLAGS: [(&str, &str, &str); 9] = [
    (
        "to",
        "ADDRESS",
        "Call this account. Repeat for several calls: the flags after it are its own. A contract of the devnet may be named: router",
    ),
    ("create", "CODE", "Create a contract with this init code instead of a call"),
    ("from", "ADDRESS", "Sender. Before the first --to, that of all calls"),
    (
        "sig",
        "FUNCTION",
        "Function: \"swap(uint256)\", \"balanceOf(address)(uint256)\", or a name that only one known function has",
    ),
    ("args", "VALUE", "Arguments: 0x…, ALPHA, 1.5ether, true, text, [1,2] or (1,2)"),
    ("data", "HEX", "Call data, in the place of --sig and --args"),
    ("value", "AMOUNT", "Ether that is sent: in wei, or with a unit, as 1.5ether or 30gwei"),
    ("gas", "GAS", "Gas limit"),
    ("gas_price", "AMOUNT", "Price of a unit of gas: in wei, or with a unit"),
];

/// The flag of a call that has no value.
const MAY_FAIL: &str = "may_fail";

/// The calls that flags describe. Empty if there is no such flag.
#[derive(Clone, Debug, Default)]
pub struct ShortCalls {
    /// The calls in order.
    pub calls: Vec<ShortCall>,
    /// The first flag that was given, for errors.
    pub first: Option<&'static str>,
}

/// A call that flags describe: their ids and values, in order. The values are not parsed yet.
#[derive(Clone, Debug, Default)]
pub struct ShortCall(Vec<(&'static str, String)>);

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
        let command = FLAGS.into_iter().fold(command, |command, (id, value, help)| {
            let flag = Arg::new(id).long(id.replace('_', "-")).value_name(value).help(help).help_heading("Call");
            let flag = flag.action(ArgAction::Append).allow_negative_numbers(true);
            let flag = flag.hide_short_help(matches!(id, "gas" | "gas_price"));
            command.arg(if id == "args" { flag.num_args(1..) } else { flag })
        });
        command.arg(
            Arg::new(MAY_FAIL)
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
        let mut given: Vec<(usize, (&'static str, String))> = Vec::new();
        for id in FLAGS.map(|(id, ..)| id).into_iter().chain([MAY_FAIL]) {
            let values = matches.get_many::<String>(id).into_iter().flatten();
            let indices = matches.indices_of(id).into_iter().flatten();
            given.extend(indices.zip(values).map(|(index, value)| (index, (id, value.clone()))));
        }
        given.sort_by_key(|(index, ..)| *index);
        Ok(Self::of(given.into_iter().map(|(_, flag)| flag).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl ShortCalls {
    fn of(given: Vec<(&'static str, String)>) -> Self {
        let is_target = |id: &str| matches!(id, "to" | "create");
        let targets = given.iter().filter(|(id, _)| is_target(id)).count();
        let first = given.iter().map(|(id, _)| *id).find(|id| *id != MAY_FAIL);
        // With one call the order of its flags does not matter.
        if targets <= 1 {
            return Self { calls: vec![ShortCall(given)], first };
        }
        let mut common = ShortCall::default();
        let mut calls: Vec<ShortCall> = Vec::new();
        for (id, value) in given {
            if is_target(id) {
                calls.push(common.clone());
            }
            calls.last_mut().unwrap_or(&mut common).0.push((id, value));
        }
        Self { calls, first }
    }

    /// Returns whether all calls may fail. A payload file has no flag for that.
    pub fn all_may_fail(&self) -> bool {
        self.calls.iter().all(ShortCall::may_fail) && !self.calls.is_empty()
    }

    /// Returns the calls as the node takes them, with the functions that `book` knows by their names, and the contracts
    /// that `node` knows.
    ///
    /// # Errors
    ///
    /// Returns [`CommandError::Input`] with the flag that has a wrong value, and the errors of the node.
    pub fn written(&self, book: &AbiBook, node: &LazyLink<'_>) -> Result<Vec<WrittenCall>, CommandError> {
        self.calls.iter().map(|call| call.written(book, node)).collect()
    }
}

impl ShortCall {
    /// Returns the last value of a flag.
    fn get(&self, id: &str) -> Option<&String> {
        self.0.iter().rfind(|(given, _)| *given == id).map(|(_, value)| value)
    }

    /// Returns whether the call may fail.
    pub fn may_fail(&self) -> bool {
        self.get(MAY_FAIL).is_some()
    }

    fn written(&self, book: &AbiBook, node: &LazyLink<'_>) -> Result<WrittenCall, CommandError> {
        let mut object = Map::new();
        if let Some(from) = self.get("from") {
            object.insert("from".into(), json!(node.address("--from", from)?));
        }
        match (self.get("to"), self.get("create")) {
            (Some(to), None) => object.insert("to".into(), json!(node.address("--to", to)?)),
            (None, Some(_)) => object.insert("to".into(), Value::Null),
            _ => return Err(input("--to: missing: expected the account that is called, or --create with init code")),
        };
        let args: Vec<&String> = self.0.iter().filter(|(id, _)| *id == "args").map(|(_, value)| value).collect();
        let mut function = None;
        let data = match (self.get("sig"), self.get("data"), self.get("create")) {
            (Some(sig), None, None) => {
                let found = function_of(sig, args.len(), book)?;
                let data = encoded(&found, &args, node)?;
                function = Some(found);
                Some(data)
            }
            (None, Some(data), None) => Some(bytes("--data", data)?),
            (None, None, Some(code)) => Some(bytes("--create", code)?),
            (None, None, None) => None,
            _ => return Err(input("--sig, --data, --create: expected one of them for a call")),
        };
        if function.is_none() && !args.is_empty() {
            return Err(input("--args: needs --sig: the function that takes them"));
        }
        if let Some(data) = data {
            object.insert("data".into(), json!(data));
        }
        for (flag, id, name) in
            [("--value", "value", "value"), ("--gas-price", "gas_price", "gasPrice"), ("--gas", "gas", "gas")]
        {
            if let Some(text) = self.get(id) {
                object.insert(name.into(), json!(amount(flag, text)?));
            }
        }
        Ok(WrittenCall { object, function })
    }
}

/// Returns the position of a static argument in the data of a call to `function`, as the number of its word.
pub fn word_of(function: &Function, argument: usize) -> Option<usize> {
    let words = |param: &alloy_json_abi::Param| param.resolve().ok().and_then(|ty| head_words(&ty));
    words(function.inputs.get(argument)?).filter(|words| *words == 1)?;
    // A dynamic argument has one word in the head, which points to its data.
    Some(function.inputs.iter().take(argument).map(|param| words(param).unwrap_or(1)).sum())
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

fn bytes(flag: &str, text: &str) -> Result<Bytes, CommandError> {
    hex::decode(text).map(Bytes::from).map_err(|error| input(format!("{flag}: {error}: expected bytes in hex")))
}

fn input(text: impl Into<String>) -> CommandError {
    CommandError::Input(text.into())
}

/// Returns the function of a signature, or the only known function with this name and number of arguments.
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

fn encoded(function: &Function, args: &[&String], node: &LazyLink<'_>) -> Result<Bytes, CommandError> {
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
        let kind = param.selector_type();
        // A name in a text stays a text.
        let has_names = kind.contains("address") && !kind.contains("string");
        let text = match has_names {
            true => Cow::from(node.with_addresses(&format!("--args: value {index}"), text)?),
            false => Cow::from(text.as_str()),
        };
        ty.coerce_str(&text).map_err(|error| wrong(error.to_string().replace('\n', " ")))
    });
    let values = values.collect::<Result<Vec<_>, _>>()?;
    let data = function.abi_encode_input(&values).map_err(|error| input(format!("--args: {error}")))?;
    Ok(data.into())
}
