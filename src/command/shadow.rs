//! `presim shadow`: which transactions of real blocks would behave differently under another fork.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{IsTerminal, Write},
    path::PathBuf,
    str::FromStr,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use alloy_primitives::{Address, B256, U64};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{
    error::CommandError,
    link::{NodeArgs, NodeLink, Reply},
    names::LazyLink,
    show::{table, table_text},
};
use crate::{
    objects,
    shown::{self, grouped, printable},
};

/// The time between two looks for the next block.
const PAUSE: Duration = Duration::from_millis(100);
/// The time that a block may take beyond --timeout-ms. The deadline of the command's node bounds it.
const BLOCK_TIME: Duration = Duration::from_secs(86_400);
/// The code of an answer about a fork that the chain does not have.
const UNKNOWN_FORK: i64 = -32602;
/// The error code of an answer about a block whose state cannot be fetched now.
const NO_STATE: i64 = -32603;
/// The number of such answers in a row with which the command ends.
const MOST_IN_A_ROW: u32 = 3;
/// Maximum rows of a table of totals.
const MOST_SUMS: usize = 20;

/// The flags of `presim shadow`.
#[derive(Clone, Debug, clap::Args)]
pub struct ShadowArgs {
    /// Fork under which each transaction runs again: any later or earlier fork of the chain.
    #[arg(long, value_name = "FORK")]
    pub under: String,
    /// Blocks to run: `N`, or `N..M`, both included. The default is the newest block and those that follow, until interrupted.
    #[arg(long, value_name = "N[..M]")]
    pub blocks: Option<BlockRange>,
    /// Also show the gas of every transaction, regardless of --contracts.
    #[arg(long)]
    pub gas: bool,
    /// Show only transactions that concern these contracts: a file with one address per line. `#` begins a comment.
    #[arg(long, value_name = "FILE")]
    pub contracts: Option<PathBuf>,
    /// Print one line of JSON per block, without sums.
    #[arg(long)]
    pub json: bool,
    /// The node.
    #[command(flatten)]
    pub node: NodeArgs,
}

/// Blocks from one to another, both included.
#[derive(Clone, Copy, Debug)]
pub struct BlockRange {
    first: u64,
    last: u64,
}

impl FromStr for BlockRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            text.parse::<u64>()
                .map_err(|error| format!("{text:?}: {error}: expected N or N..M, as in 19000000..19000999"))
        };
        let (first, last) = match text.split_once("..") {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(text)?, number(text)?),
        };
        if last < first {
            return Err(format!("{text}: the last block is before the first"));
        }
        if first == 0 {
            return Err("block 0 has no transactions: expected 1 or later".to_owned());
        }
        Ok(Self { first, last })
    }
}

/// A block that has run twice, as far as it is shown.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ShadowAnswer {
    number: U64,
    fork: String,
    under: String,
    transactions: u64,
    gas_used: U64,
    gas_used_under: U64,
    differences: Vec<DifferenceAnswer>,
    #[serde(default)]
    gas: Vec<GasAnswer>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct GasAnswer {
    index: u64,
    hash: B256,
    gas_used: U64,
    gas_used_under: Option<U64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DifferenceAnswer {
    index: u64,
    hash: B256,
    gas_used: U64,
    gas_used_under: Option<U64>,
    status: U64,
    status_under: Option<U64>,
    invalid: Option<String>,
    differs: Vec<String>,
    cause: String,
    at: Option<StepAnswer>,
    contracts: Vec<Address>,
    succeeds_with: MoreGasAnswer,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MoreGasAnswer {
    half_more: bool,
    twice: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StepAnswer {
    kind: String,
    code: Address,
    pc: u64,
    op: String,
    own: Option<PlaceAnswer>,
    under: Option<PlaceAnswer>,
}

#[derive(Debug, Deserialize)]
struct PlaceAnswer {
    pc: u64,
    op: String,
}

/// The totals of the blocks shown so far.
#[derive(Debug, Default)]
struct Sums {
    blocks: u64,
    transactions: u64,
    gas: u64,
    gas_under: u64,
    /// The blocks that could not be run.
    not_run: u64,
    differences: u64,
    invalid: u64,
    by_contract: BTreeMap<Address, Sum>,
    by_cause: BTreeMap<String, Sum>,
}

/// The transactions that one contract or one cause has in common.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    transactions: u64,
    /// The number that succeeds as it is, and not under the other fork.
    broken: u64,
    /// The number of the broken ones that succeed with twice the gas.
    fixed: u64,
}

/// Shadows the blocks, and shows which transactions differ, and sums.
///
/// # Errors
///
/// Returns [`CommandError::Input`] if the file of contracts cannot be used, or the chain does not have the fork, [`CommandError::Failed`] if
/// a block could not be run, and the errors of the node and of the output.
pub fn run(
    args: &ShadowArgs,
    link: &LazyLink<'_>,
    stop: &AtomicBool,
    out: &mut impl Write,
) -> Result<(), CommandError> {
    let contracts = args.contracts.as_ref().map(read_contracts).transpose()?;
    if !link.is_own() {
        let text = "--upstream: missing: expected the node whose blocks are run: `presim shadow` starts a node of its own, \
                    so that no other shares its processors with it";
        return Err(CommandError::Input(text.to_owned()));
    }
    let node = link.open()?;
    let newest = newest(node)?;
    let range = args.blocks.unwrap_or(BlockRange { first: newest.max(1), last: u64::MAX });
    if args.blocks.is_some() && range.last > newest {
        let text = format!("--blocks: {}: the newest block is {newest}", range.last);
        return Err(CommandError::Input(text));
    }
    let mut shadow = ShadowRun { args, node, contracts, stop, progress: progress(args, range), sums: Sums::default() };
    let ended = shadow.blocks(range, out);
    let ShadowRun { progress, sums, .. } = shadow;
    progress.finish_and_clear();
    // An error ends the command. The totals of the blocks that have run are printed nevertheless.
    if !args.json && !matches!(ended, Err(CommandError::Input(_))) {
        sums.write(&args.under, out)?;
    }
    out.flush()?;
    ended?;
    match sums.not_run {
        0 => Ok(()),
        count => Err(CommandError::Failed(format!("{} blocks could not be run", grouped(count)))),
    }
}

/// A command that runs.
struct ShadowRun<'a> {
    args: &'a ShadowArgs,
    node: &'a NodeLink,
    /// The contracts to which the answer is restricted.
    contracts: Option<BTreeSet<Address>>,
    stop: &'a AtomicBool,
    progress: ProgressBar,
    sums: Sums,
}

impl ShadowRun<'_> {
    /// Shadows the blocks of a range, as far as the chain has them and until the command is stopped.
    fn blocks(&mut self, range: BlockRange, out: &mut impl Write) -> Result<(), CommandError> {
        // The blocks since the last that has run which were not, because their state could not be fetched.
        let mut in_a_row = 0;
        for number in range.first..=range.last {
            let answered = match await_block(self.node, number, self.stop)? {
                true => self.ask(number)?,
                false => None,
            };
            match answered {
                Some(Ok((answer, text))) => {
                    in_a_row = 0;
                    self.show(answer, &text, out)?;
                }
                Some(Err(refusal)) if refusal.code == UNKNOWN_FORK => {
                    return Err(self.node.refused("presim_shadow", &refusal));
                }
                Some(Err(refusal)) => {
                    self.skip(number, &refusal.message, out)?;
                    in_a_row = if refusal.code == NO_STATE { in_a_row + 1 } else { 0 };
                    if in_a_row == MOST_IN_A_ROW {
                        let text = format!("the state of {in_a_row} blocks in a row could not be fetched");
                        return Err(CommandError::NoNode(text));
                    }
                }
                None if self.args.blocks.is_none() => return Ok(()),
                None => return Err(CommandError::Failed(format!("interrupted before block {number} was run"))),
            }
            self.progress.set_message(format!("{} differ", grouped(self.sums.differences)));
            self.progress.inc(1);
        }
        Ok(())
    }

    /// Asks the node for a block. Returns `None` if the command is stopped first.
    fn ask(&self, number: u64) -> Result<Option<Reply<ShadowAnswer>>, CommandError> {
        let options = json!({"under": self.args.under, "gas": self.args.gas});
        let stopped = async {
            while !self.stop.load(Relaxed) {
                tokio::time::sleep(PAUSE).await;
            }
        };
        self.node.ask_until("presim_shadow", (format!("{number:#x}"), options), BLOCK_TIME, stopped)
    }

    fn show(&mut self, mut answer: ShadowAnswer, text: &RawValue, out: &mut impl Write) -> Result<(), CommandError> {
        if let Some(contracts) = &self.contracts {
            answer.differences.retain(|one| one.contracts.iter().any(|contract| contracts.contains(contract)));
        }
        self.sums.add(&answer, self.contracts.as_ref());
        self.progress.suspend(|| match self.args.json {
            true => writeln!(out, "{}", shown::json(&line(text, self.contracts.as_ref())?)),
            false => write_block(&answer, out),
        })?;
        Ok(out.flush()?)
    }

    /// Reports a block that cannot be run. The command continues with the next one.
    fn skip(&mut self, number: u64, reason: &str, out: &mut impl Write) -> Result<(), CommandError> {
        self.sums.not_run += 1;
        self.progress.suspend(|| match self.args.json {
            true => {
                let line = json!({"number": format!("{number:#x}"), "error": reason});
                writeln!(out, "{}", shown::json(&line.to_string()))
            }
            false => writeln!(out, "block {number} could not be run: {}", printable(reason)),
        })?;
        Ok(out.flush()?)
    }
}

/// Returns the number of the newest block.
fn newest(node: &NodeLink) -> Result<u64, CommandError> {
    let (head, _) = node.ask_quietly::<HeadAnswer>("eth_getBlockByNumber", ("latest", false), Duration::ZERO)?;
    Ok(head.number.to())
}

#[derive(Debug, Deserialize)]
struct HeadAnswer {
    number: U64,
}

/// Waits until the chain has block `number`. Returns false if the command is to stop.
fn await_block(node: &NodeLink, number: u64, stop: &AtomicBool) -> Result<bool, CommandError> {
    let mut known = 0;
    while !stop.load(Relaxed) {
        if known >= number {
            return Ok(true);
        }
        known = newest(node)?;
        if known < number {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(false)
}

/// Returns the progress of a range of blocks: on a terminal, with the time left.
fn progress(args: &ShadowArgs, range: BlockRange) -> ProgressBar {
    let is_shown = args.blocks.is_some() && range.last > range.first && std::io::stderr().is_terminal();
    let target = if is_shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(range.last.saturating_sub(range.first).saturating_add(1)), target);
    let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} blocks, {msg}, {eta} left");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Reads the addresses of a file.
fn read_contracts(path: &PathBuf) -> Result<BTreeSet<Address>, CommandError> {
    let input = |text: String| CommandError::Input(format!("--contracts {}: {text}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| input(error.to_string()))?;
    let lines =
        text.lines().enumerate().map(|(index, line)| (index, line.split('#').next().unwrap_or_default().trim()));
    let addresses = lines.filter(|(_, line)| !line.is_empty()).map(|(index, line)| {
        line.parse().map_err(|error| input(format!("line {}: {error}: expected 0x and 40 hex digits", index + 1)))
    });
    let addresses = addresses.collect::<Result<BTreeSet<_>, _>>()?;
    if addresses.is_empty() {
        return Err(input("no address: expected one in each line".to_owned()));
    }
    Ok(addresses)
}

/// Returns the answer of a block without the differences that concern none of the contracts.
fn line(answer: &RawValue, contracts: Option<&BTreeSet<Address>>) -> Result<String, std::io::Error> {
    let Some(contracts) = contracts else { return Ok(answer.get().to_owned()) };
    let mut block: Value = objects::from_str(answer.get())?;
    let concerns = |one: &Value| {
        let all = one["contracts"].as_array().into_iter().flatten().filter_map(Value::as_str);
        all.filter_map(|contract| contract.parse().ok()).any(|contract: Address| contracts.contains(&contract))
    };
    if let Some(differences) = block["differences"].as_array_mut() {
        differences.retain(concerns);
    }
    Ok(block.to_string())
}

fn write_block(answer: &ShadowAnswer, out: &mut impl Write) -> std::io::Result<()> {
    let ShadowAnswer { number, fork, under, transactions, gas_used, gas_used_under, differences, gas } = answer;
    if differences.is_empty() && gas.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "block {number}: {} of {} transactions differ; gas {} under {}, {} under {}",
        grouped(differences.len() as u64),
        grouped(*transactions),
        grouped(gas_used.to()),
        printable(fork),
        grouped(gas_used_under.to()),
        printable(under)
    )?;
    for one in gas {
        let gas_under = one.gas_used_under.map_or_else(|| "invalid".to_owned(), |gas| grouped(gas.to()));
        writeln!(out, "  {:>3} {} gas {} → {gas_under}", one.index, one.hash, grouped(one.gas_used.to()))?;
    }
    for one in differences {
        writeln!(out, "  {:>3} {} {}", one.index, one.hash, one.end())?;
        writeln!(out, "      {}{}", printable(&one.cause), one.place())?;
        let gas_under = one.gas_used_under.map_or_else(String::new, |gas| format!(" → {}", grouped(gas.to())));
        writeln!(out, "      gas {}{gas_under}; {}", grouped(one.gas_used.to()), one.more_gas())?;
        let contracts: Vec<String> = one.contracts.iter().map(ToString::to_string).collect();
        writeln!(
            out,
            "      contracts {}",
            if contracts.is_empty() { "none".to_owned() } else { contracts.join(", ") }
        )?;
    }
    Ok(())
}

impl DifferenceAnswer {
    /// Returns whether the transaction succeeds as it is, and not under the other fork.
    fn is_broken(&self) -> bool {
        self.status == U64::ONE && self.status_under != Some(U64::ONE)
    }

    fn end(&self) -> String {
        let word = |status: U64| if status == U64::ONE { "success" } else { "failed" };
        let under = match (&self.invalid, self.status_under) {
            (Some(reason), _) => format!("invalid ({})", printable(reason)),
            (None, under) => word(under.unwrap_or_default()).to_owned(),
        };
        let differs = if self.differs.is_empty() { String::new() } else { format!(": {}", self.differs.join(", ")) };
        format!("{} → {under}{differs}", word(self.status))
    }

    fn place(&self) -> String {
        let Some(StepAnswer { kind, code, pc, op, own, under }) = &self.at else { return String::new() };
        let next = |place: &Option<PlaceAnswer>| {
            place
                .as_ref()
                .map_or_else(|| "the end".to_owned(), |place| format!("pc {} {}", place.pc, printable(&place.op)))
        };
        let parts = match kind.as_str() {
            "pc" => format!(", then {} and {}", next(own), next(under)),
            "operands" => return format!("; operands differ at pc {pc} {} of {code}", printable(op)),
            _ => String::new(),
        };
        format!(" at pc {pc} {} of {code}{parts}", printable(op))
    }

    fn more_gas(&self) -> String {
        match (self.succeeds_with.half_more, self.succeeds_with.twice) {
            (true, _) => "succeeds with 1.5 times its gas limit".to_owned(),
            (false, true) => "succeeds with twice its gas limit".to_owned(),
            (false, false) => "fails with twice its gas limit".to_owned(),
        }
    }
}

impl Sums {
    /// Adds a block. A transaction counts for the innermost of the requested contracts.
    fn add(&mut self, answer: &ShadowAnswer, contracts: Option<&BTreeSet<Address>>) {
        self.blocks += 1;
        self.transactions += answer.transactions;
        self.gas += answer.gas_used.to::<u64>();
        self.gas_under += answer.gas_used_under.to::<u64>();
        for one in &answer.differences {
            self.differences += 1;
            self.invalid += u64::from(one.invalid.is_some());
            let broken = one.is_broken();
            let fixed = broken && one.succeeds_with.twice;
            let add = |sum: &mut Sum| {
                sum.transactions += 1;
                sum.broken += u64::from(broken);
                sum.fixed += u64::from(fixed);
            };
            add(self.by_cause.entry(one.cause.clone()).or_default());
            let mut concerned = one.contracts.iter();
            if let Some(contract) = concerned.find(|one| contracts.is_none_or(|asked| asked.contains(*one))) {
                add(self.by_contract.entry(*contract).or_default());
            }
        }
    }

    fn write(&self, under: &str, out: &mut impl Write) -> std::io::Result<()> {
        let (differences, invalid) = (grouped(self.differences), grouped(self.invalid));
        writeln!(
            out,
            "{} blocks, {} transactions: {differences} differ under {under}, {invalid} of them invalid; gas {} → {}",
            grouped(self.blocks),
            grouped(self.transactions),
            grouped(self.gas),
            grouped(self.gas_under)
        )?;
        if self.not_run > 0 {
            writeln!(out, "{} blocks could not be run", grouped(self.not_run))?;
        }
        if self.differences == 0 {
            return Ok(());
        }
        let causes = self.by_cause.iter().map(|(cause, sum)| (printable(cause), *sum)).collect();
        writeln!(out, "\n{}", sums_table("CAUSE", causes))?;
        let contracts = self.by_contract.iter().map(|(contract, sum)| (contract.to_string(), *sum)).collect();
        write!(out, "{}", sums_table("CONTRACT", contracts))
    }
}

/// Returns a table of sums, the largest first.
fn sums_table(heading: &str, mut sums: Vec<(String, Sum)>) -> String {
    sums.sort_by(|(one, a), (other, b)| b.transactions.cmp(&a.transactions).then_with(|| one.cmp(other)));
    let mut rows = table(&[heading, "DIFFER", "BREAK", "FIXED BY 2× GAS"]);
    for (name, Sum { transactions, broken, fixed }) in sums.iter().take(MOST_SUMS) {
        rows.add_row([name.clone(), grouped(*transactions), grouped(*broken), grouped(*fixed)]);
    }
    let more = sums.len().saturating_sub(MOST_SUMS);
    let more = if more == 0 { String::new() } else { format!("and {} more\n", grouped(more as u64)) };
    table_text(&rows) + &more
}
