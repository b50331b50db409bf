//! Answers as text: tables that fit the terminal, or full lines if a program reads them.

use alloy_consensus::{Transaction, TxEnvelope, transaction::SignerRecoverable};
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{Address, Bytes, I256, Log, U256, hex};
use comfy_table::{ContentArrangement, Table, presets::NOTHING};
use console::Term;
use serde_json::Value;

use super::{
    answer::{AssetAnswer, BlockAnswer, CallAnswer},
    names::{Labels, symbol},
};
use crate::{
    abi::{AbiBook, NamedValue, output, value_text},
    shown::{self, printable},
    wallet::{ether, units},
};

/// Maximum number of characters of a call or a result in a table.
const MAX_CELL: usize = 600;

/// A call of a payload, as far as it is shown.
#[derive(Clone, Debug, Default)]
pub struct ShownCall {
    /// The sender; the zero address if the call names none.
    pub from: Address,
    /// The callee. `None` if the call creates a contract.
    pub to: Option<Address>,
    /// Value in wei.
    pub value: U256,
    /// Call data.
    pub data: Bytes,
}

impl ShownCall {
    /// Reads a call of a payload: an object, or a signed transaction.
    pub fn of(call: &Value) -> Self {
        if let Value::String(raw) = call {
            let decoded = hex::decode(raw).ok().and_then(|bytes| TxEnvelope::decode_2718(&mut bytes.as_slice()).ok());
            return decoded.map_or_else(Self::default, |tx| Self {
                from: tx.recover_signer().unwrap_or_default(),
                to: tx.to(),
                value: tx.value(),
                data: tx.input().clone(),
            });
        }
        let text = |name: &str| call.get(name).and_then(Value::as_str);
        let data = text("data").or_else(|| text("input")).and_then(|data| data.parse().ok());
        Self {
            from: text("from").and_then(|from| from.parse().ok()).unwrap_or_default(),
            to: text("to").and_then(|to| to.parse().ok()),
            value: text("value").and_then(|value| value.parse().ok()).unwrap_or_default(),
            data: data.unwrap_or_default(),
        }
    }

    /// Returns the calls of each block of a payload.
    pub fn all(payload: &serde_json::Map<String, Value>) -> Vec<Vec<Self>> {
        let blocks = payload.get("blockStateCalls").and_then(Value::as_array).into_iter().flatten();
        let calls =
            |block: &Value| block.get("calls").and_then(Value::as_array).into_iter().flatten().map(Self::of).collect();
        blocks.map(calls).collect()
    }
}

/// Returns an empty table. Its lines are as wide as the terminal, or as long as they are.
pub fn table(heading: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(heading.iter().map(|word| (*word).to_owned()));
    let terminal = Term::stdout();
    if terminal.is_term() {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(terminal.size().1);
    }
    table
}

/// Returns the text of a table, without spaces at the ends of its lines.
pub fn table_text(table: &Table) -> String {
    let lines = table.lines().map(|line| format!("{}\n", line.trim_end()));
    lines.collect()
}

/// Adds the names of the tokens in an answer.
pub fn add_symbols<'a>(labels: &mut Labels, blocks: impl IntoIterator<Item = &'a BlockAnswer>) {
    for change in blocks.into_iter().flat_map(|block| block.assets.values().flatten()) {
        let (Some(token), Some(text)) = (change.token, change.symbol.as_deref()) else { continue };
        labels.add_token(token, symbol(text), change.decimals.and_then(|decimals| decimals.try_into().ok()));
    }
}

/// Returns the calls of simulated blocks as a table.
pub fn calls_table(blocks: &[BlockAnswer], calls: &[Vec<ShownCall>], book: &AbiBook, labels: &Labels) -> Table {
    let mut table = table(&["#", "TO", "CALL", "STATUS", "GAS", "RESULT"]);
    for (at, block) in blocks.iter().enumerate() {
        for (index, call) in block.calls.iter().enumerate() {
            let shown = calls.get(at).and_then(|calls| calls.get(index)).cloned().unwrap_or_default();
            let to = match shown.to {
                Some(to) => labelled(to, labels),
                None => "(creates a contract)".to_owned(),
            };
            let status = if call.succeeded() { "success" } else { "failed" };
            let gas = call.gas_used.map(|gas| shown::grouped(gas.to())).unwrap_or_default();
            let number = if calls.len() > 1 { format!("{at}.{index}") } else { index.to_string() };
            table.add_row([
                number,
                to,
                call_text(&shown, book, labels),
                status.to_owned(),
                gas,
                result_text(&shown, call, book, labels),
            ]);
        }
    }
    table
}

/// Returns the logs of simulated blocks as a table; `None` if there are none.
pub fn logs_table(blocks: &[BlockAnswer], book: &AbiBook, labels: &Labels) -> Option<Table> {
    let mut table = table(&["LOGS OF", "EMITTED BY", "EVENT"]);
    for (at, block) in blocks.iter().enumerate() {
        for (index, call) in block.calls.iter().enumerate() {
            let number = if blocks.len() > 1 { format!("{at}.{index}") } else { index.to_string() };
            for log in &call.logs {
                let event = log_text(log, book, labels);
                table.add_row([number.clone(), labelled(log.address, labels), cut(&event)]);
            }
        }
    }
    (!table.is_empty()).then_some(table)
}

/// Returns the net changes of assets in a block as a table; `None` if there are none.
pub fn assets_table(block: &BlockAnswer) -> Option<Table> {
    let mut table = table(&["ASSETS OF", "CHANGE", "TOKEN"]);
    for (account, changes) in &block.assets {
        for change in changes {
            let token = change.token.map_or_else(String::new, |token| token.to_string());
            table.add_row([account.to_string(), asset_text(change), token]);
        }
    }
    (!table.is_empty()).then_some(table)
}

/// Returns the profit of each sender: the changes of its assets, less the gas of its calls at the block's base fee.
pub fn profits(block: &BlockAnswer, calls: &[ShownCall]) -> Vec<String> {
    let mut senders: Vec<(Address, u64)> = Vec::new();
    for (shown, call) in calls.iter().zip(&block.calls) {
        let gas = call.gas_used.map_or(0, |gas| gas.to());
        match senders.iter_mut().find(|(sender, _)| *sender == shown.from) {
            Some((_, all)) => *all += gas,
            None => senders.push((shown.from, gas)),
        }
    }
    let profit = |(sender, gas): (Address, u64)| {
        let changes = block.assets.get(&sender).into_iter().flatten().map(asset_text).collect::<Vec<_>>();
        let changes = if changes.is_empty() { "nothing".to_owned() } else { changes.join(", ") };
        let fee = block.base_fee_per_gas.map(|fee| {
            format!(", which is {} ether at the base fee of {} gwei", ether(fee * U256::from(gas)), units(fee, 9))
        });
        format!("profit of {sender}: {changes}; gas {}{}", shown::grouped(gas), fee.unwrap_or_default())
    };
    // A call without a sender is sent from the zero address, which has no profit to show.
    senders.into_iter().filter(|(sender, _)| !sender.is_zero()).map(profit).collect()
}

/// Returns a call as `name(parameter: value, …)`, or its data.
pub fn call_text(call: &ShownCall, book: &AbiBook, labels: &Labels) -> String {
    let Some(to) = call.to else { return format!("{} bytes of init code", call.data.len()) };
    let value = if call.value.is_zero() { String::new() } else { format!("{{value: {} ether}}", ether(call.value)) };
    match book.input(&call.data) {
        Some(input) => {
            let amounts = Amounts { of: to, function: &input.function.name, labels };
            cut(&format!("{}{value}({})", input.function.name, amounts.listed(&input.params)))
        }
        None if call.data.is_empty() => format!("send {} ether", ether(call.value)),
        None => cut(&format!("{}{value}", call.data)),
    }
}

/// Returns the result of a call, or the reason why it failed.
pub fn result_text(shown: &ShownCall, call: &CallAnswer, book: &AbiBook, labels: &Labels) -> String {
    if !call.succeeded() {
        let data = call.revert_data();
        let message = call.error.as_ref().map_or("failed", |error| error.message());
        return cut(&match book.revert(&data) {
            Some(reason) => format!("reverted: {reason}"),
            None if data.is_empty() => printable(message),
            None => format!("{}: {}", printable(message), data),
        });
    }
    let Some(to) = shown.to else { return format!("{} bytes of code", call.return_data.len()) };
    let decoded = book.input(&shown.data).and_then(|input| {
        let values = output(input.function, &call.return_data)?;
        Some(Amounts { of: to, function: &input.function.name, labels }.listed(&values))
    });
    match decoded {
        Some(values) => cut(&values),
        None if call.return_data.is_empty() => String::new(),
        None => cut(&call.return_data.to_string()),
    }
}

/// Returns a log as `Name(parameter: value, …)`, or its topics and data.
pub fn log_text(log: &Log, book: &AbiBook, labels: &Labels) -> String {
    match book.log(&log.data) {
        Some(decoded) => {
            let amounts = Amounts { of: log.address, function: &decoded.event.name, labels };
            format!("{}({})", decoded.event.name, amounts.listed(&decoded.params))
        }
        None => {
            let topics: Vec<String> = log.topics().iter().map(ToString::to_string).collect();
            format!("topics [{}] data {}", topics.join(", "), log.data.data)
        }
    }
}

/// Returns a change of an asset, as `-1.5 WETH`.
pub fn asset_text(change: &AssetAnswer) -> String {
    let name = match (&change.symbol, change.token) {
        _ if change.kind == "ether" => "ether".to_owned(),
        (Some(text), _) => symbol(text),
        (None, token) => token.map_or_else(String::new, |token| token.to_string()),
    };
    let decimals =
        if change.kind == "ether" { Some(18) } else { change.decimals.map(|decimals| decimals.saturating_to::<u8>()) };
    let amount = signed_units(change.change, decimals.unwrap_or_default());
    match change.id {
        Some(id) => format!("{amount} of item {id} of {name}"),
        None => format!("{amount} {name}"),
    }
}

/// Returns a signed amount with its sign, in units of so many decimals.
pub fn signed_units(change: I256, decimals: u8) -> String {
    let sign = if change.is_negative() { '-' } else { '+' };
    format!("{sign}{}", units(change.unsigned_abs(), decimals))
}

fn labelled(address: Address, labels: &Labels) -> String {
    match labels.name(&address) {
        Some(name) => format!("{name} {address}"),
        None => address.to_string(),
    }
}

/// The values of a function or an event, which may be amounts of the token that declares it.
struct Amounts<'a> {
    of: Address,
    function: &'a str,
    labels: &'a Labels,
}

impl Amounts<'_> {
    fn listed(&self, params: &[NamedValue]) -> String {
        let texts = params.iter().map(|NamedValue { name, value }| {
            let name = if name.is_empty() { String::new() } else { format!("{}: ", printable(name)) };
            let amount = self.labels.amount(&self.of, self.function, value);
            let amount = amount.map(|amount| format!(" [{amount}]")).unwrap_or_default();
            format!("{name}{}{amount}", value_text(value))
        });
        texts.collect::<Vec<_>>().join(", ")
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_CELL) {
        Some((end, _)) => format!("{}… ({} characters)", &text[..end], text.chars().count()),
        None => text.to_owned(),
    }
}
