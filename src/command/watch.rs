//! `presim watch`: bundles that run again when a snapshot changes the state that they read. Shows a table on a
//! terminal, otherwise a line for each answer that changes.

use std::{collections::BTreeMap, io::Write, time::Duration};

use console::{Term, truncate_str};
use serde_json::{Map, Value, json};

use super::{
    answer::{ChangeAnswer, NewsAnswer, SearchAnswer, SimulationAnswer, WatchAnswer},
    error::CommandError,
    input::{BundleArgs, BundleInput, BundlePayload},
    link::NodeLink,
    names::{Labels, LazyLink},
    search::end_of,
    show::{ShownCall, asset_text, result_text, table, table_text},
    simulate::add_outputs,
};
use crate::{
    abi::AbiBook,
    objects,
    shown::{self, printable},
};

/// The outputs that are shown.
const OUTPUTS: [&str; 5] = ["status", "gasUsed", "returnData", "error", "assets"];
/// Gas of a call that names none, because a standing bundle must not depend on the gas that its block has left.
const USUAL_GAS: u64 = 2_000_000;
/// The time for which one request for news waits.
const POLL_TIMEOUT: Duration = Duration::from_secs(10);

/// The flags of `presim watch`.
#[derive(Clone, Debug, clap::Args)]
pub struct WatchArgs {
    /// The bundles.
    #[command(flatten)]
    pub bundle: BundleArgs,
    /// End after this number of changed answers. The default is to run until interrupted.
    #[arg(long, value_name = "N", help_heading = "Watch")]
    pub count: Option<u64>,
    /// Run only on the first snapshot of each block.
    #[arg(long, help_heading = "Watch")]
    pub every_block: bool,
}

/// The bundles to be watched.
#[derive(Clone, Debug)]
pub struct WatchInput {
    bundles: Vec<Value>,
    block: Value,
    book: AbiBook,
}

impl WatchArgs {
    /// Reads the bundles.
    ///
    /// # Errors
    ///
    /// Returns [`CommandError::Input`] if there are none, or if one cannot be read, and the errors of the node.
    pub fn read(&self, node: &LazyLink<'_>) -> Result<WatchInput, CommandError> {
        let BundleInput { payload, block, book, .. } = self.bundle.read(node)?;
        let mut bundles = match payload {
            BundlePayload::Watched(bundles) => bundles,
            BundlePayload::One(payload) => {
                let kind = if payload.contains_key("vary") { "search" } else { "simulate" };
                vec![json!({"name": self.bundle.name(), kind: payload})]
            }
        };
        for (index, bundle) in bundles.iter_mut().enumerate() {
            let Some(fields) = bundle.as_object_mut() else { continue };
            fields.entry("name").or_insert_with(|| json!(format!("bundle {index}")));
            if self.every_block {
                fields.insert("every".into(), json!("block"));
            }
            for kind in ["simulate", "search"] {
                let Some(payload) = fields.get_mut(kind).and_then(Value::as_object_mut) else { continue };
                if kind == "simulate" {
                    add_outputs(payload, &OUTPUTS, false, self.bundle.json);
                }
                add_gas(payload);
            }
        }
        Ok(WatchInput { bundles, block, book })
    }
}

/// Adds the usual gas limit to the calls that have none.
fn add_gas(payload: &mut Map<String, Value>) {
    let blocks = payload.get_mut("blockStateCalls").and_then(Value::as_array_mut).into_iter().flatten();
    let calls = blocks.filter_map(|block| block.get_mut("calls").and_then(Value::as_array_mut)).flatten();
    for call in calls.filter_map(Value::as_object_mut) {
        call.entry("gas").or_insert_with(|| json!(format!("{USUAL_GAS:#x}")));
    }
}

/// Watches the bundles, until so many answers have changed as the flags say.
///
/// # Errors
///
/// Returns the errors of the node and of the output.
pub fn run(args: &WatchArgs, input: WatchInput, node: &NodeLink, out: &mut impl Write) -> Result<(), CommandError> {
    let WatchInput { bundles, block, book } = input;
    let (WatchAnswer { watch, id }, _) = node.ask::<WatchAnswer>("presim_watch", (&bundles, &block))?;
    let mut view = WatchView::new(&bundles, book);
    let (mut since, mut shown) = (id, 0);
    let screen = Term::stdout();
    let is_live = screen.is_term() && !args.bundle.json;
    while args.count.is_none_or(|count| shown < count) {
        let request = (&watch, since, POLL_TIMEOUT.as_millis() as u64);
        let (news, text) = node.ask_quietly::<NewsAnswer>("presim_results", request, POLL_TIMEOUT)?;
        since = news.id;
        // An answer may be shown again until its snapshot is final.
        let changed: Vec<ChangeAnswer> = news.changed.into_iter().filter(|change| view.is_news(change)).collect();
        if changed.is_empty() {
            continue;
        }
        shown += changed.len() as u64;
        if args.bundle.json {
            writeln!(out, "{}", shown::json(text.get()))?;
        }
        for change in &changed {
            let row = view.note(change, news.behind.iter().any(|behind| behind.name == change.name));
            if !is_live && !args.bundle.json {
                writeln!(out, "{row}")?;
            }
        }
        if is_live {
            view.draw(&screen)?;
        }
        out.flush()?;
    }
    let _ = node.ask_quietly::<bool>("presim_unwatch", (&watch,), Duration::ZERO);
    Ok(())
}

/// The newest answer of a bundle, as it is shown.
#[derive(Clone, Debug, Default)]
struct WatchRow {
    snapshot: String,
    status: String,
    gas: String,
    result: String,
    changes: u64,
    /// The answer as text, for comparison.
    text: String,
}

/// The newest answers of all bundles.
struct WatchView {
    rows: BTreeMap<String, WatchRow>,
    /// The order of the bundles.
    names: Vec<String>,
    /// The last call of each bundle, whose result is shown.
    calls: BTreeMap<String, ShownCall>,
    book: AbiBook,
    /// Number of lines on the screen.
    lines: usize,
}

impl WatchView {
    fn new(bundles: &[Value], book: AbiBook) -> Self {
        let name = |bundle: &Value| bundle.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let calls = bundles.iter().filter_map(|bundle| {
            let payload = bundle.get("simulate")?.as_object()?;
            Some((name(bundle), ShownCall::all(payload).into_iter().flatten().last()?))
        });
        let calls = calls.collect();
        Self { rows: BTreeMap::new(), names: bundles.iter().map(name).collect(), calls, book, lines: 0 }
    }

    fn text(change: &ChangeAnswer) -> String {
        match (&change.result, &change.error) {
            (Some(result), _) => result.get().to_owned(),
            (None, Some(error)) => error.message().to_owned(),
            (None, None) => "below".to_owned(),
        }
    }

    /// Returns whether an answer is another than the last one.
    fn is_news(&self, change: &ChangeAnswer) -> bool {
        self.rows.get(&change.name).is_none_or(|row| row.text != Self::text(change))
    }

    /// Records an answer, and returns it as a line.
    fn note(&mut self, change: &ChangeAnswer, is_behind: bool) -> String {
        let (snapshot, [status, gas, result]) = (change.id, self.summary(change));
        let row = self.rows.entry(change.name.clone()).or_default();
        row.changes += 1;
        row.text = Self::text(change);
        row.snapshot = if is_behind { format!("{snapshot:#x}, due again") } else { format!("{snapshot:#x}") };
        (row.status, row.gas, row.result) = (status, gas, result);
        let gas = if row.gas.is_empty() { String::new() } else { format!("gas {}  ", row.gas) };
        format!("{snapshot:#x}  {}  {}  {gas}{}", printable(&change.name), row.status, row.result)
    }

    /// Returns status, gas and result of an answer.
    fn summary(&self, change: &ChangeAnswer) -> [String; 3] {
        let plain = |status: &str, result: String| [status.to_owned(), String::new(), result];
        if change.below {
            return plain("below", "the objective is no longer above what `only` asks for".to_owned());
        }
        let Some(text) = &change.result else {
            let shown = change.error.as_ref().map_or("no answer", |error| error.message());
            return plain("error", printable(shown));
        };
        if let Ok(found) = objects::from_str::<SearchAnswer>(text.get()) {
            let Some(best) = found.best.first() else { return plain("none", String::new()) };
            let values: Vec<String> = best.values.iter().map(ToString::to_string).collect();
            let objective = best.objective.map_or_else(String::new, |objective| format!("objective {objective}, "));
            let gas = best.gas_used.map(|gas| shown::grouped(gas.to())).unwrap_or_default();
            return [end_of(best), gas, format!("{objective}values {}", values.join(", "))];
        }
        match objects::from_str::<SimulationAnswer>(text.get()) {
            Ok(SimulationAnswer::Dropped(at)) => plain("dropped", format!("at call {} of block {}", at.call, at.block)),
            Ok(SimulationAnswer::Ran(blocks)) => {
                let calls: Vec<_> = blocks.iter().flat_map(|block| &block.calls).collect();
                let failed = calls.iter().find(|call| call.status.is_some() && !call.succeeded());
                let shown = self.calls.get(&change.name).cloned().unwrap_or_default();
                let result =
                    failed.or(calls.last()).map(|call| result_text(&shown, call, &self.book, &Labels::default()));
                let gas: u64 = calls.iter().filter_map(|call| call.gas_used).map(|gas| gas.to::<u64>()).sum();
                let gains = blocks.iter().filter_map(|block| block.assets.get(&shown.from)).flatten().map(asset_text);
                let result =
                    result.into_iter().chain(gains).filter(|text| !text.is_empty()).collect::<Vec<_>>().join("; ");
                [if failed.is_some() { "failed" } else { "success" }.to_owned(), shown::grouped(gas), result]
            }
            Err(_) => plain("answered", printable(&beginning(text.get()))),
        }
    }

    /// Draws the table over the last one.
    fn draw(&mut self, screen: &Term) -> Result<(), CommandError> {
        let mut rows = table(&["BUNDLE", "SNAPSHOT", "STATUS", "GAS", "RESULT", "CHANGES"]);
        for name in &self.names {
            let row = self.rows.get(name).cloned().unwrap_or_default();
            rows.add_row([printable(name), row.snapshot, row.status, row.gas, row.result, row.changes.to_string()]);
        }
        let (height, width) = screen.size();
        let text = table_text(&rows);
        let mut lines: Vec<String> = text
            .lines()
            .map(|line| truncate_str(line, usize::from(width).saturating_sub(1), "…").into_owned())
            .collect();
        // Lines that have scrolled away cannot be drawn over.
        let most = usize::from(height).saturating_sub(2).max(2);
        if lines.len() > most {
            let more = lines.len() - most + 1;
            lines.truncate(most - 1);
            lines.push(format!("and {more} lines more: the terminal is too low"));
        }
        lines.push("Ctrl-C ends".to_owned());
        screen.clear_last_lines(self.lines)?;
        for line in &lines {
            screen.write_line(line)?;
        }
        self.lines = lines.len();
        Ok(())
    }
}

/// Returns the beginning of a text.
fn beginning(text: &str) -> String {
    text.chars().take(200).collect()
}
