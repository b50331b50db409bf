//! `presim simulate`: runs a bundle of calls, and shows the effect of each call.

use std::io::Write;

use serde_json::{Map, Value, json};

use super::{
    answer::{BlockAnswer, CallPosition, SimulationAnswer, SnapshotAnswer},
    error::CommandError,
    input::{BundleArgs, BundleInput, BundlePayload},
    link::NodeLink,
    names::{Labels, LazyLink},
    show::{ShownCall, add_symbols, assets_table, calls_table, logs_table, profits, signed_units, table_text},
    tree::write_tree,
};
use crate::{
    abi::AbiBook,
    shown::{self, printable},
    wallet::{ether, units},
};

/// The outputs that are shown.
const OUTPUTS: [&str; 8] = ["status", "gasUsed", "returnData", "error", "logs", "header", "assets", "coinbase"];

/// The flags of `presim simulate`.
#[derive(Clone, Debug, clap::Args)]
pub struct SimulateArgs {
    /// Show the tree of calls, with gas, logs and results.
    #[arg(long)]
    pub trace: bool,
    /// The bundle.
    #[command(flatten)]
    pub bundle: BundleArgs,
}

/// Simulates a bundle, and shows it.
///
/// # Errors
///
/// Returns [`CommandError::Failed`] if a call failed that must not, and the errors of the node and of the output.
pub fn run(
    args: &SimulateArgs,
    input: BundleInput,
    link: &LazyLink<'_>,
    out: &mut impl Write,
) -> Result<(), CommandError> {
    let BundleInput { payload: BundlePayload::One(mut payload), mut block, may_fail, book, .. } = input else {
        let text = "FILE: a list of bundles: expected one payload of presim_simulate: presim watch takes lists";
        return Err(CommandError::Input(text.to_owned()));
    };
    if payload.contains_key("vary") {
        let text = "FILE: vary: expected a payload of presim_simulate: presim search takes those of presim_search";
        return Err(CommandError::Input(text.to_owned()));
    }
    let unshown = add_outputs(&mut payload, &OUTPUTS, args.trace, args.bundle.json);
    let node = link.open()?;
    let snapshot = pinned(node, &mut block)?;
    let conditions = payload.contains_key("when");
    let (mut answer, mut text) = node.ask::<SimulationAnswer>("presim_simulate", (&payload, &block))?;
    let mut dropped = None;
    if let SimulationAnswer::Dropped(at) = answer {
        dropped = Some(at);
        // The same bundle without conditions shows why it was dropped.
        if !args.bundle.json {
            payload.remove("when");
            (answer, text) = node.ask("presim_simulate", (&payload, &block))?;
        }
    }
    if args.bundle.json {
        writeln!(out, "{}", shown::json(text.get()))?;
    } else if let SimulationAnswer::Ran(blocks) = &answer {
        let view = BundleView { calls: ShownCall::all(&payload), book, labels: link.labels(), trace: args.trace };
        if let Some(snapshot) = snapshot {
            writeln!(out, "{}", snapshot_line(&snapshot))?;
        }
        view.write(blocks, dropped, out)?;
        if !unshown.is_empty() {
            writeln!(out, "\n--json shows {} too", unshown.join(", "))?;
        }
    }
    out.flush()?;
    if let Some(CallPosition { block, call }) = dropped {
        return Err(CommandError::Failed(format!(
            "the bundle is dropped: call {call} of block {block} did not end as it must"
        )));
    }
    let SimulationAnswer::Ran(blocks) = answer else { return Ok(()) };
    match first_failure(&blocks) {
        Some((block, call)) if !may_fail && !conditions => Err(CommandError::Failed(format!(
            "call {call}{} failed (--may-fail lets calls fail)",
            if blocks.len() > 1 { format!(" of block {block}") } else { String::new() }
        ))),
        _ => Ok(()),
    }
}

fn first_failure(blocks: &[BlockAnswer]) -> Option<(usize, usize)> {
    blocks.iter().enumerate().find_map(|(at, block)| {
        block.calls.iter().position(|call| call.status.is_some() && !call.succeeded()).map(|call| (at, call))
    })
}

/// Adds the outputs that the command shows to the outputs of a payload. Returns the payload's own outputs that the
/// command does not show. A payload whose answer is printed as JSON keeps its own outputs.
pub fn add_outputs(payload: &mut Map<String, Value>, shown: &[&str], trace: bool, json: bool) -> Vec<String> {
    let own = payload.get("outputs").and_then(Value::as_array).cloned();
    if json && own.is_some() {
        return Vec::new();
    }
    let mut shown: Vec<Value> = shown.iter().map(|name| json!(name)).collect();
    if trace {
        shown.push(json!("trace"));
    }
    // The payload's own outputs come first, so that an error names their index in the file.
    let mut all = own.unwrap_or_default();
    let unshown = all.iter().filter(|name| !shown.contains(name)).filter_map(Value::as_str).map(printable).collect();
    shown.retain(|name| !all.contains(name));
    all.extend(shown);
    payload.insert("outputs".into(), Value::Array(all));
    unshown
}

/// Replaces `pending` by the newest snapshot, so that all requests of a command run on one state. Returns the snapshot.
///
/// # Errors
///
/// Returns the errors of the node.
pub fn pinned(node: &NodeLink, block: &mut Value) -> Result<Option<SnapshotAnswer>, CommandError> {
    if *block != json!("pending") {
        return Ok(None);
    }
    let (snapshot, _) = node.ask::<SnapshotAnswer>("presim_snapshot", ())?;
    *block = json!({"snapshotId": snapshot.id});
    Ok(Some(snapshot))
}

/// Returns the snapshot on which a bundle runs, in a line.
pub fn snapshot_line(snapshot: &SnapshotAnswer) -> String {
    let SnapshotAnswer { id, block_number, index, age_ms, feed, reason } = snapshot;
    let because = reason.as_ref().map_or_else(String::new, |reason| format!(": {}", printable(reason)));
    format!(
        "on snapshot {id:#x}: block {block_number}, sub-block {index}, {age_ms} ms old; the feed is {}{because}",
        printable(feed)
    )
}

/// The form in which a simulation is shown.
pub struct BundleView {
    /// The calls of each block.
    pub calls: Vec<Vec<ShownCall>>,
    /// The signatures by which data is decoded.
    pub book: AbiBook,
    /// The names of contracts.
    pub labels: Labels,
    /// Whether the trees of calls are shown.
    pub trace: bool,
}

impl BundleView {
    /// Writes simulated blocks: calls, trees, logs, changes of assets, and profits. Writes only the calls up to the one
    /// that broke the bundle's conditions, if there is one.
    ///
    /// # Errors
    ///
    /// Returns [`CommandError::Output`] if the output cannot be written.
    pub fn write(
        &self,
        blocks: &[BlockAnswer],
        dropped: Option<CallPosition>,
        out: &mut impl Write,
    ) -> Result<(), CommandError> {
        let mut labels = self.labels.clone();
        add_symbols(&mut labels, blocks);
        for block in blocks {
            let number = block.number.map(|number| format!("block {number}"));
            let time = block.timestamp.map(|time| format!("time {time}"));
            let fee = block.base_fee_per_gas.map(|fee| format!("base fee {} gwei", units(fee, 9)));
            let facts: Vec<String> = [number, time, fee].into_iter().flatten().collect();
            if !facts.is_empty() {
                writeln!(out, "{}", facts.join(", "))?;
            }
        }
        writeln!(out, "\n{}", table_text(&calls_table(blocks, &self.calls, &self.book, &labels)).trim_end())?;
        if self.trace {
            writeln!(out, "\nTraces:")?;
            for call in blocks.iter().flat_map(|block| &block.calls) {
                if let Some(trace) = &call.trace {
                    write_tree(trace, &self.book, &labels, out)?;
                }
            }
        }
        if let Some(CallPosition { block, call }) = dropped {
            writeln!(
                out,
                "\ndropped at call {call} of block {block}: the bundle is atomic, so nothing of it would be included"
            )?;
            return Ok(());
        }
        if let Some(logs) = logs_table(blocks, &self.book, &labels) {
            writeln!(out, "\n{}", table_text(&logs).trim_end())?;
        }
        for (at, block) in blocks.iter().enumerate() {
            if let Some(assets) = assets_table(block) {
                writeln!(out, "\n{}", table_text(&assets).trim_end())?;
            }
            let mut lines = profits(block, self.calls.get(at).map_or(&[], Vec::as_slice));
            if let Some(income) = block.coinbase.as_ref().filter(|one| !(one.fees.is_zero() && one.transfers.is_zero()))
            {
                let (fees, transfers) = (ether(income.fees), signed_units(income.transfers, 18));
                lines.push(format!("producer of the block: {fees} ether of fees, {transfers} ether of transfers"));
            }
            if !lines.is_empty() {
                writeln!(out, "\n{}", lines.join("\n"))?;
            }
        }
        let gas: u64 = blocks
            .iter()
            .flat_map(|block| &block.calls)
            .filter_map(|call| call.gas_used)
            .map(|gas| gas.to::<u64>())
            .sum();
        let calls = blocks.iter().map(|block| block.calls.len()).sum::<usize>();
        if calls > 1 {
            writeln!(out, "{calls} calls, gas {}", shown::grouped(gas))?;
        }
        Ok(())
    }
}
