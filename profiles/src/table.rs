//! The tables of CPU time, as Markdown.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use crate::{
    parts::part,
    perf::{RATE, Stack},
};

/// The facts about a recording.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The workload.
    pub workload: &'a str,
    /// The block selector.
    pub tag: &'a str,
    /// Connections of the load.
    pub connections: u16,
    /// The duration of the recording.
    pub time: Duration,
    /// Requests per second before the recording.
    pub rate: f64,
    /// Requests per second during the recording.
    pub recorded_rate: f64,
}

/// The number of symbols that are shown.
const SYMBOLS: usize = 15;
/// The number of callers that are shown per symbol.
const CALLERS: usize = 3;
/// The length at which a name is cut.
const NAME: usize = 110;

/// Returns the tables of `stacks` by part and by symbol.
pub fn render(facts: &Facts<'_>, stacks: &[Stack]) -> String {
    let Facts { workload, tag, connections, time, rate, recorded_rate } = facts;
    let total: u64 = stacks.iter().map(|stack| stack.count).sum();
    let cpu = total as f64 / f64::from(RATE);
    let request = cpu * 1e6 / (recorded_rate * time.as_secs_f64());
    let share = |count: u64| count as f64 / total as f64;
    let mut text = format!(
        "# {workload} at `{tag}`\n\n{rate:.0} requests a second on {connections} connections; {recorded_rate:.0} while perf recorded. \
         {total} samples in {} s: {:.2} CPUs busy, {request:.1} µs of CPU time a request.\n\n\
         | part | share | µs a request |\n|---|---:|---:|\n",
        time.as_secs(),
        cpu / time.as_secs_f64(),
    );
    for (name, count) in sums(stacks.iter().map(|stack| (part(stack), stack.count))) {
        let _ = writeln!(text, "| {name} | {:.1} % | {:.2} |", 100.0 * share(count), request * share(count));
    }
    text.push_str("\n| symbol, its own time | share | µs a request | called by |\n|---|---:|---:|---|\n");
    let symbols = sums(stacks.iter().map(|stack| (stack.innermost(), stack.count)));
    for (symbol, count) in symbols.into_iter().take(SYMBOLS) {
        let of_symbol = stacks.iter().filter(|stack| stack.innermost() == symbol);
        let callers = sums(of_symbol.map(|stack| (caller(stack), stack.count)));
        let callers: Vec<String> = callers
            .into_iter()
            .take(CALLERS)
            .map(|(caller, of_it)| format!("`{}` {:.0} %", short(caller), 100.0 * of_it as f64 / count as f64))
            .collect();
        let _ = writeln!(
            text,
            "| `{}` | {:.1} % | {:.2} | {} |",
            short(symbol),
            100.0 * share(count),
            request * share(count),
            callers.join(", ")
        );
    }
    text
}

/// Returns the innermost frame below the running one that belongs to presim, else to a library, else to the kernel.
fn caller(stack: &Stack) -> &str {
    let below = &stack.frames[..stack.frames.len() - 1];
    let last = |fits: fn(&str) -> bool| below.iter().rev().find(|frame| fits(frame));
    let ours = last(|frame| frame.contains("presim::"))
        .or_else(|| last(|frame| frame.contains("::") && !frame.ends_with("_[k]")));
    ours.or(below.last()).map_or("", String::as_str)
}

/// Returns the sums by name, the largest first.
fn sums<'a>(counts: impl Iterator<Item = (&'a str, u64)>) -> Vec<(&'a str, u64)> {
    let mut sums = BTreeMap::<&str, u64>::new();
    counts.for_each(|(name, count)| *sums.entry(name).or_default() += count);
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    sums
}

/// Returns a name that fits in a table.
fn short(name: &str) -> String {
    let name = name.replace('|', "\\|");
    match name.char_indices().nth(NAME) {
        Some((at, _)) => format!("{}…", &name[..at]),
        None => name,
    }
}
