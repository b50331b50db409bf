//! Bundles from a file, from the standard input, or from flags.

use std::{
    fs::File,
    io::{self, IsTerminal, Read},
    path::{Path, PathBuf},
};

use alloy_json_abi::Function;
use serde_json::{Map, Value, json};

use super::{
    calls::{ShortCall, ShortCalls, amount},
    error::CommandError,
    link::NodeArgs,
    names::LazyLink,
};
use crate::{abi::AbiBook, objects, rpc::BLOCK_ALIASES};

/// Maximum bytes of a bundle that is read.
const MAX_LENGTH: u64 = 64 << 20;

/// The ABIs by which data is decoded.
#[derive(Clone, Debug, clap::Args)]
pub struct AbiArgs {
    /// Decode data with this ABI as well: a file, or a folder like foundry's `out` or hardhat's `artifacts`. Repeat for several.
    #[arg(long, value_name = "PATH", env = "PRESIM_ABI")]
    pub abi: Vec<PathBuf>,
}

impl AbiArgs {
    /// Returns the usual signatures and those of the files.
    ///
    /// # Errors
    ///
    /// Returns [`CommandError::Input`] if a file or a folder cannot be read, or has no ABI.
    pub fn book(&self) -> Result<AbiBook, CommandError> {
        let mut book = AbiBook::usual().clone();
        for path in &self.abi {
            book.add_files(path).map_err(|error| CommandError::Input(format!("--abi {error}")))?;
        }
        Ok(book)
    }
}

/// The flags of a bundle.
#[derive(Clone, Debug, clap::Args)]
pub struct BundleArgs {
    /// File with the bundle, in JSON: a payload, or a whole JSON-RPC request. `-` is the standard input.
    pub file: Option<PathBuf>,
    /// The calls by flags.
    #[command(flatten)]
    pub calls: ShortCalls,
    /// Run on this block: pending, latest, a number, a hash, or `snapshot:0x12`. `N:K` is the state within block N, after its
    /// first K transactions. The default is the block named in the file, otherwise pending.
    #[arg(long, value_name = "BLOCK", value_parser = parse_block)]
    pub block: Option<Value>,
    /// Override a field of the block in which the bundle runs: number, time, gasLimit, feeRecipient, prevRandao, baseFeePerGas, blobBaseFee,
    /// beaconRoot, difficulty, slotNumber, or fork, as in `fork=amsterdam`. Repeat for several.
    #[arg(long = "block-override", value_name = "FIELD=VALUE")]
    pub block_override: Vec<String>,
    /// Print the node's answer as JSON.
    #[arg(long)]
    pub json: bool,
    /// The ABIs.
    #[command(flatten)]
    pub abi: AbiArgs,
    /// The node.
    #[command(flatten)]
    pub node: NodeArgs,
}

/// A bundle, and the names by which it is shown.
#[derive(Clone, Debug)]
pub struct BundleInput {
    /// The payload.
    pub payload: BundlePayload,
    /// The block whose state it runs on.
    pub block: Value,
    /// Whether calls may fail that `when` does not name.
    pub may_fail: bool,
    /// The functions of the last call by flags.
    pub function: Option<Function>,
    /// The signatures by which data is decoded.
    pub book: AbiBook,
}

/// The content of a file: a payload, or a list of bundles to be watched.
#[derive(Clone, Debug)]
pub enum BundlePayload {
    /// A payload of `presim_simulate` or `presim_search`.
    One(Map<String, Value>),
    /// Bundles of `presim_watch`.
    Watched(Vec<Value>),
}

impl BundleArgs {
    /// Reads the bundle, and the ABIs. `node` has the contracts that flags name.
    ///
    /// # Errors
    ///
    /// Returns [`CommandError::Input`] if there is no bundle or two, or if one cannot be read, and the errors of the node.
    pub fn read(&self, node: &LazyLink<'_>) -> Result<BundleInput, CommandError> {
        let overrides =
            self.block_override.iter().map(|text| block_override(text, node)).collect::<Result<Vec<_>, _>>()?;
        let mut bundle = self.read_bundle(node)?;
        match &mut bundle.payload {
            BundlePayload::One(payload) => override_blocks(payload, &overrides),
            BundlePayload::Watched(bundles) => {
                let kinds = bundles.iter_mut().filter_map(Value::as_object_mut).flat_map(|bundle| bundle.values_mut());
                kinds.filter_map(Value::as_object_mut).for_each(|payload| override_blocks(payload, &overrides));
            }
        }
        Ok(bundle)
    }

    fn read_bundle(&self, node: &LazyLink<'_>) -> Result<BundleInput, CommandError> {
        let mut book = self.abi.book()?;
        let usual = || json!("pending");
        let Some(path) = self.file.as_deref().or_else(|| self.piped()) else {
            let Some(_) = self.calls.first else {
                let text = "FILE: missing: expected a file, `-` for the standard input, or a call by --to";
                return Err(CommandError::Input(text.to_owned()));
            };
            let calls = self.calls.written(&book, node)?;
            let mut function = None;
            for call in &calls {
                if let Some(known) = &call.function {
                    book.prefer_function(known.clone());
                }
                function.clone_from(&call.function);
            }
            let may_fail = self.calls.calls.iter().map(ShortCall::may_fail).collect::<Vec<_>>();
            let objects: Vec<Value> = calls.into_iter().map(|call| Value::Object(call.object)).collect();
            let mut payload = Map::new();
            // If some calls may fail and others must not, this is a condition of the bundle itself.
            if may_fail.contains(&true) && may_fail.contains(&false) {
                let named = may_fail.iter().enumerate().filter(|(_, may_fail)| **may_fail);
                let when = named.map(|(call, _)| json!({"block": 0, "call": call, "status": "any"}));
                payload.insert("when".into(), when.collect());
            }
            payload.insert("blockStateCalls".into(), json!([{"calls": objects}]));
            let block = self.block.clone().unwrap_or_else(usual);
            let may_fail = self.calls.all_may_fail();
            return Ok(BundleInput { payload: BundlePayload::One(payload), block, may_fail, function, book });
        };
        if let Some(flag) = self.calls.first {
            let text =
                format!("--{} and FILE: the bundle is one or the other: leave one of them out", flag.replace('_', "-"));
            return Err(CommandError::Input(text));
        }
        let (payload, block) = parsed(path)?;
        let block = self.block.clone().or(block).unwrap_or_else(usual);
        Ok(BundleInput { payload, block, may_fail: self.calls.all_may_fail(), function: None, book })
    }

    /// Returns the standard input if there is no other bundle and a program writes to it.
    fn piped(&self) -> Option<&'static Path> {
        let is_piped = self.calls.first.is_none() && !io::stdin().is_terminal();
        is_piped.then(|| Path::new("-"))
    }

    /// Returns the name of the bundle, which is the name of its file.
    pub fn name(&self) -> String {
        let stem = self.file.as_ref().filter(|path| path.as_os_str() != "-").and_then(|path| path.file_stem());
        stem.map_or_else(|| "bundle".to_owned(), |stem| stem.to_string_lossy().into_owned())
    }
}

/// The fields of a block that are numbers.
const NUMBERS: [&str; 7] = ["number", "time", "gasLimit", "baseFeePerGas", "blobBaseFee", "difficulty", "slotNumber"];
/// The fields that the blocks after the first follow from it.
const OF_FIRST: [&str; 3] = ["number", "time", "slotNumber"];

/// Reads a field of a block and its value, as `presim_simulate` takes them.
fn block_override(text: &str, node: &LazyLink<'_>) -> Result<(String, Value), CommandError> {
    let flag = format!("--block-override {text}");
    let Some((field, value)) = text.split_once('=') else {
        return Err(CommandError::Input(format!("{flag}: expected FIELD=VALUE, as in fork=amsterdam")));
    };
    let value = match field {
        "fork" | "prevRandao" | "beaconRoot" => json!(value),
        "feeRecipient" => json!(node.address(&flag, value)?),
        number if NUMBERS.contains(&number) => json!(amount(&flag, value)?),
        _ => {
            let text = format!(
                "{flag}: unknown field: expected one of {}, feeRecipient, prevRandao, beaconRoot, fork",
                NUMBERS.join(", ")
            );
            return Err(CommandError::Input(text));
        }
    };
    Ok((field.to_owned(), value))
}

/// Overrides fields of the blocks of a payload. A flag wins over the payload's own.
fn override_blocks(payload: &mut Map<String, Value>, overrides: &[(String, Value)]) {
    let blocks = payload.get_mut("blockStateCalls").and_then(Value::as_array_mut).into_iter().flatten();
    for (index, block) in blocks.filter_map(Value::as_object_mut).enumerate() {
        let fields = overrides.iter().filter(|(field, _)| index == 0 || !OF_FIRST.contains(&field.as_str()));
        for (field, value) in fields {
            let own = block.entry("blockOverrides").or_insert_with(|| json!({}));
            if own.is_null() {
                *own = json!({});
            }
            if let Some(own) = own.as_object_mut() {
                for (_, alias) in BLOCK_ALIASES.iter().filter(|(name, _)| name == field) {
                    own.remove(*alias);
                }
                own.insert(field.clone(), value.clone());
            }
        }
    }
}

/// Reads a payload, and the block that the file may name in addition.
fn parsed(path: &Path) -> Result<(BundlePayload, Option<Value>), CommandError> {
    let shown = if path.as_os_str() == "-" { "the standard input".to_owned() } else { path.display().to_string() };
    let input = |text: String| CommandError::Input(format!("{shown}: {text}"));
    let source: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(io::stdin()),
        false => Box::new(File::open(path).map_err(|error| input(error.to_string()))?),
    };
    let mut text = String::new();
    source.take(MAX_LENGTH + 1).read_to_string(&mut text).map_err(|error| input(error.to_string()))?;
    if text.len() as u64 > MAX_LENGTH {
        return Err(input(format!("more than {MAX_LENGTH} bytes: expected a bundle")));
    }
    if text.trim().is_empty() {
        return Err(input("empty: expected a bundle in JSON".to_owned()));
    }
    let value: Value = objects::from_str(&text).map_err(|error| input(format!("no JSON: {error}")))?;
    let wrong = || {
        let text = "expected a payload with `blockStateCalls`, `[payload, block]`, a JSON-RPC request with them as its params, or \
                    for `presim watch` a list of bundles with a `name`";
        input(text.to_owned())
    };
    let params = match value {
        Value::Object(mut object) if object.contains_key("method") => object.remove("params").ok_or_else(wrong)?,
        value => value,
    };
    let is_watched = |one: &Value| one.get("simulate").is_some() || one.get("search").is_some();
    match params {
        Value::Object(payload) if payload.contains_key("blockStateCalls") => Ok((BundlePayload::One(payload), None)),
        Value::Array(list) if !list.is_empty() && list.iter().all(is_watched) => {
            Ok((BundlePayload::Watched(list), None))
        }
        Value::Array(list) => {
            let mut list = list.into_iter();
            match (list.next(), list.next(), list.next()) {
                (Some(Value::Object(payload)), block, None) if payload.contains_key("blockStateCalls") => {
                    Ok((BundlePayload::One(payload), block))
                }
                (Some(Value::Array(bundles)), block, None) if bundles.iter().all(is_watched) => {
                    Ok((BundlePayload::Watched(bundles), block))
                }
                _ => Err(wrong()),
            }
        }
        _ => Err(wrong()),
    }
}

/// Parses the block of a flag.
fn parse_block(text: &str) -> Result<Value, String> {
    if let Some(id) = text.strip_prefix("snapshot:") {
        return Ok(json!({"snapshotId": id}));
    }
    if let Some((block, count)) = text.split_once(':') {
        let count = count.parse::<u64>().map_err(|error| {
            format!(
                "{count}: {error}: expected the number of the block's transactions that run first, as in 19000000:7"
            )
        })?;
        return match parse_block(block)? {
            Value::Object(mut named) => {
                named.insert("transactionIndex".to_owned(), json!(count));
                Ok(Value::Object(named))
            }
            number if block.starts_with(|first: char| first.is_ascii_digit()) => {
                Ok(json!({"blockNumber": number, "transactionIndex": count}))
            }
            _ => Err(format!("{block}: expected the number or the hash of a block before the colon")),
        };
    }
    if let Ok(number) = text.parse::<u64>() {
        return Ok(json!(format!("{number:#x}")));
    }
    let is_hash = text.len() == 66 && text.starts_with("0x");
    match text {
        "pending" | "latest" | "safe" | "finalized" | "earliest" => Ok(json!(text)),
        _ if is_hash => Ok(json!({"blockHash": text})),
        _ if text.starts_with("0x") => Ok(json!(text)),
        _ => {
            let text = "expected pending, latest, safe, finalized, earliest, a number, a hash, N:K, or snapshot:0x12";
            Err(text.to_owned())
        }
    }
}
