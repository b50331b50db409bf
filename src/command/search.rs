//! `presim search`: the values of a bundle that optimise an objective.

use std::io::Write;

use alloy_primitives::{Address, U64, U256};
use alloy_rpc_types_trace::geth::CallFrame;
use serde_json::{Map, Value, json};

use super::{
    answer::{BlockAnswer, SearchAnswer, SimulationAnswer, VariantAnswer},
    calls::{amount, word_of},
    error::CommandError,
    input::{BundleArgs, BundleInput, BundlePayload},
    link::NodeLink,
    names::{LazyLink, token_name, view},
    show::{ShownCall, signed_units, table, table_text},
    simulate::{BundleView, add_outputs, pinned, snapshot_line},
};
use crate::{
    abi::AbiBook,
    objects,
    shown::{self, printable},
    wallet::units,
};

/// The outputs of the best variant that are shown.
const OUTPUTS: [&str; 9] =
    ["status", "gasUsed", "returnData", "error", "logs", "header", "assets", "coinbase", "trace"];

/// The flags of `presim search`.
#[derive(Clone, Debug, clap::Args)]
pub struct SearchArgs {
    /// Show the tree of calls of the best variant.
    #[arg(long)]
    pub trace: bool,
    /// The bundle.
    #[command(flatten)]
    pub bundle: BundleArgs,
    /// Vary a part of the last call, as `PART=VALUES`. PART is the number of an argument, from 0, or `value`. VALUES is
    /// 1ether..100ether to search this range, 1ether..100ether/20 for twenty values, or a list like 1,2,3. Two --vary make a grid.
    #[arg(long, value_name = "PLACE=VALUES", help_heading = "Search")]
    pub vary: Vec<String>,
    /// Objective: what --account gains in `ether` or in the token at this address, `coinbase`, or `gas`, which is minimised.
    /// The default is the objective named in the file, otherwise ether.
    #[arg(long, value_name = "WHAT", help_heading = "Search")]
    pub objective: Option<String>,
    /// Account of the objective. The default is the sender of the first call.
    #[arg(long, value_name = "ADDRESS", help_heading = "Search")]
    pub account: Option<String>,
    /// Minimum of the objective, in the smallest units.
    #[arg(long, value_name = "AMOUNT", help_heading = "Search", hide_short_help = true)]
    pub least: Option<String>,
    /// Number of variants to show.
    #[arg(long, value_name = "N", help_heading = "Search")]
    pub top: Option<u32>,
}

impl SearchArgs {
    /// Reads the search: the bundle, and the targets, the objective and the requirements of flags.
    ///
    /// # Errors
    ///
    /// Returns [`CommandError::Input`] if something is missing or wrong, and the errors of the node.
    pub fn read(&self, node: &LazyLink<'_>) -> Result<BundleInput, CommandError> {
        let mut bundle = self.bundle.read(node)?;
        let BundlePayload::One(payload) = &mut bundle.payload else {
            let text = "FILE: a list of bundles: expected one payload of presim_search: presim watch takes lists";
            return Err(CommandError::Input(text.to_owned()));
        };
        if !self.vary.is_empty() {
            let last = ShownCall::all(payload).last().map_or(0, Vec::len).saturating_sub(1);
            let block = ShownCall::all(payload).len().saturating_sub(1);
            let targets = self
                .vary
                .iter()
                .map(|text| target(text, bundle.function.as_ref(), &format!("blocks[{block}].calls[{last}]")));
            payload.insert("vary".into(), targets.collect::<Result<_, _>>()?);
        }
        if !payload.contains_key("vary") {
            let text = "--vary: missing: expected a place and its values, as 0=1ether..100ether";
            return Err(CommandError::Input(text.to_owned()));
        }
        if self.objective.is_some() || self.account.is_some() || !payload.contains_key("objective") {
            let objective = self.objective(payload, node)?;
            payload.insert("objective".into(), objective);
        }
        if let Some(top) = self.top {
            payload.insert("top".into(), json!(top));
        }
        // A call by flags must succeed, as in `presim simulate`.
        if self.bundle.calls.first.is_some() && !bundle.may_fail {
            let when = payload.remove("when").unwrap_or_else(|| json!([]));
            payload.insert("require".into(), json!({ "when": when }));
        }
        if let Some(least) = &self.least {
            let least = amount("--least", least)?;
            let require = payload.entry("require").or_insert_with(|| json!({}));
            require["least"] = json!(least);
        }
        Ok(bundle)
    }

    fn objective(&self, payload: &Map<String, Value>, node: &LazyLink<'_>) -> Result<Value, CommandError> {
        let given = self.account.as_ref().map(|account| node.address("--account", account)).transpose()?;
        let account = || {
            let sender = ShownCall::all(payload).into_iter().flatten().next().map(|call| call.from);
            given.or(sender).filter(|account| !account.is_zero()).ok_or_else(|| {
                CommandError::Input("--account: missing: expected the account whose balance is to grow".to_owned())
            })
        };
        Ok(match self.objective.as_deref() {
            Some("coinbase") => json!("coinbase"),
            Some("gas" | "gasUsed") => json!("gasUsed"),
            None | Some("ether") => json!({"account": account()?}),
            Some(token) => json!({"account": account()?, "token": node.address("--objective", token)?}),
        })
    }
}

/// Returns a target that varies, and its values, as `presim_search` takes them.
fn target(text: &str, function: Option<&alloy_json_abi::Function>, call: &str) -> Result<Value, CommandError> {
    let input = |problem: String| CommandError::Input(format!("--vary {text}: {problem}"));
    let Some((target, values)) = text.split_once('=') else {
        return Err(input("expected PLACE=VALUES, as 0=1ether..100ether".to_owned()));
    };
    let mut object = if target == "value" || target == "gas" || target == "gasPrice" {
        json!({"path": format!("{call}.{target}")})
    } else if let Ok(argument) = target.parse::<usize>() {
        let function = function
            .ok_or_else(|| input("the number of an argument needs --sig: the function that takes it".to_owned()))?;
        let word = word_of(function, argument).ok_or_else(|| {
            input(format!("argument {argument} of {}: expected one that is a single number", function.signature()))
        })?;
        json!({"path": format!("{call}.data"), "word": word})
    } else {
        return Err(input(format!("{target:?}: expected the number of an argument from 0, value, gas or gasPrice")));
    };
    let number = |text: &str| amount("--vary", text.trim());
    match values.split_once("..") {
        Some((from, to)) => match to.split_once('/') {
            Some((to, points)) => {
                let points: u32 =
                    points.trim().parse().map_err(|_| input(format!("{points:?}: expected a number of values")))?;
                (object["from"], object["to"]) = (json!(number(from)?), json!(number(to)?));
                object["points"] = json!(points);
            }
            None => object["maximize"] = json!({"from": number(from)?, "to": number(to)?}),
        },
        None => object["values"] = json!(values.split(',').map(number).collect::<Result<Vec<_>, _>>()?),
    }
    Ok(object)
}

/// Searches, and shows the best variants and the simulation of the best one.
///
/// # Errors
///
/// Returns [`CommandError::Failed`] if no variant meets what is required, and the errors of the node and of the output.
pub fn run(
    args: &SearchArgs,
    bundle: BundleInput,
    link: &LazyLink<'_>,
    out: &mut impl Write,
) -> Result<(), CommandError> {
    let node = link.open()?;
    let BundleInput { payload: BundlePayload::One(mut payload), mut block, book, .. } = bundle else { return Ok(()) };
    let unshown = add_outputs(&mut payload, &OUTPUTS, false, args.bundle.json);
    let snapshot = pinned(node, &mut block)?;
    let (answer, text) = node.ask::<SearchAnswer>("presim_search", (&payload, &block))?;
    if args.bundle.json {
        writeln!(out, "{}", shown::json(text.get()))?;
    } else {
        if let Some(snapshot) = snapshot {
            writeln!(out, "{}", snapshot_line(&snapshot))?;
        }
        let unit = Unit::of(&payload["objective"], node, &block, &book);
        write_best(&answer, &unit, out)?;
        if let Some(SimulationAnswer::Ran(blocks)) = &answer.result {
            writeln!(out, "\nthe best variant:")?;
            let calls = blocks.iter().map(ran_calls).collect();
            BundleView { calls, book, labels: link.labels(), trace: args.trace }.write(blocks, None, out)?;
        }
        if !unshown.is_empty() {
            writeln!(out, "\n--json shows {} too", unshown.join(", "))?;
        }
    }
    out.flush()?;
    match answer.best.first() {
        Some(best) if best.status == U64::ONE => Ok(()),
        Some(best) => Err(CommandError::Failed(format!("no value meets what is required: {}", end_of(best)))),
        None => Err(CommandError::Failed("no value was tried before the deadline".to_owned())),
    }
}

/// Returns the calls of a block with their varied data, as the traces have them.
fn ran_calls(block: &BlockAnswer) -> Vec<ShownCall> {
    let call = |trace: &str| {
        let frame: CallFrame = objects::from_str(trace).ok()?;
        let creates = frame.typ.starts_with("CREATE");
        Some(ShownCall {
            from: frame.from,
            to: frame.to.filter(|_| !creates),
            value: frame.value.unwrap_or_default(),
            data: frame.input,
        })
    };
    let traces = block.calls.iter().map(|one| one.trace.as_ref().and_then(|trace| call(trace.get())));
    traces.map(Option::unwrap_or_default).collect()
}

/// The unit in which an objective is shown.
struct Unit {
    name: String,
    decimals: u8,
    is_gas: bool,
}

impl Unit {
    /// Returns the unit of an objective. A token is asked for its symbol and its decimals.
    fn of(objective: &Value, node: &NodeLink, block: &Value, book: &AbiBook) -> Self {
        if *objective == json!("gasUsed") {
            return Self { name: "gas".to_owned(), decimals: 0, is_gas: true };
        }
        let Some(token) = objective.get("token").and_then(Value::as_str) else {
            return Self { name: "ether".to_owned(), decimals: 18, is_gas: false };
        };
        let address: Address = token.parse().unwrap_or_default();
        let symbol = token_name(address, node, block, book);
        let decimals = view(address, "decimals", node, block, book);
        let decimals = decimals.and_then(|value| u8::try_from(value.as_uint()?.0).ok());
        match (symbol, decimals) {
            (Some(name), Some(decimals)) if decimals <= 77 => Self { name, decimals, is_gas: false },
            _ => Self { name: format!("units of {}", printable(token)), decimals: 0, is_gas: false },
        }
    }
}

fn write_best(answer: &SearchAnswer, unit: &Unit, out: &mut impl Write) -> Result<(), CommandError> {
    let until = if answer.complete { "" } else { ", stopped at the deadline" };
    writeln!(out, "{} variants tried{until}\n", shown::grouped(answer.runs))?;
    let mut best = table(&["#", "VALUE", "OBJECTIVE", "GAS", "STATUS"]);
    for (at, variant) in answer.best.iter().enumerate() {
        let values: Vec<String> = variant.values.iter().map(|value| value_with_ether(*value)).collect();
        let objective = variant.objective.map_or_else(String::new, |objective| match unit.is_gas {
            true => format!("{objective} gas"),
            false => format!("{} {}", signed_units(objective, unit.decimals), unit.name),
        });
        let gas = variant.gas_used.map(|gas| shown::grouped(gas.to())).unwrap_or_default();
        best.add_row([(at + 1).to_string(), values.join(", "), objective, gas, end_of(variant)]);
    }
    writeln!(out, "{}", table_text(&best).trim_end())?;
    Ok(())
}

/// Returns a value, and large ones in units of 18 decimals too.
fn value_with_ether(value: U256) -> String {
    if value < U256::from(1_000_000_000_000_u64) {
        return value.to_string();
    }
    format!("{value} ({} at 18 decimals)", units(value, 18))
}

/// Returns how a variant has ended.
pub fn end_of(variant: &VariantAnswer) -> String {
    match (&variant.error, variant.dropped) {
        (Some(error), _) => printable(error.message()),
        (None, Some(at)) => format!("dropped at call {} of block {}", at.call, at.block),
        (None, None) if variant.status == U64::ONE => "success".to_owned(),
        (None, None) => "less than required".to_owned(),
    }
}
