//! Requests that wait for approval as text for a terminal. Texts of clients and contracts are escaped and cut, so that
//! no terminal obeys them and none looks like a line of presim's.

use alloy_primitives::{Bytes, U256};
use comfy_table::{Table, presets::NOTHING};

use crate::{
    shown::{self, escaped, printable, quoted},
    wallet::{
        Asked, AskedBatch, AskedMessage, AskedTransaction, AskedTypedData, BatchId, Question, ReplacementQuote,
        RequestedAction, ShownField, ether,
        protocol::{WaitingList, WithdrawnIds},
    },
};

/// Number of bytes of a call's data that a list shows.
const SHOWN_DATA: usize = 36;
/// Number of characters of an id that a list shows: 32 bytes in hex fit.
const SHOWN_ID: usize = 72;
/// Number of those characters that are the end of a longer id.
const SHOWN_END: usize = 16;
/// Number of lines of a message, and of fields of typed data, that a list shows.
const SHOWN_LINES: usize = 100;
/// Number of characters of such a line or field that a list shows.
const SHOWN_WIDTH: usize = 256;

/// Returns the text of a list.
pub(super) fn table(list: &WaitingList) -> String {
    let count = list.batches.len() + list.more;
    let are_batches = list.batches.iter().all(|one| matches!(one.asked.act, RequestedAction::Batch(_)));
    let has_transaction = list.batches.iter().any(|one| matches!(one.asked.act, RequestedAction::Transaction(_)));
    let mut text = match (count, are_batches) {
        (1, _) if has_transaction => "1 transaction waits for approval\n".to_owned(),
        (_, _) if has_transaction => format!("{count} requests wait for approval\n"),
        (0, _) => "no batch waits for approval\n".to_owned(),
        (1, true) => "1 batch waits for approval\n".to_owned(),
        (_, true) => format!("{count} batches wait for approval\n"),
        (1, false) => "1 message waits for approval\n".to_owned(),
        (_, false) => format!("{count} batches and messages wait for approval\n"),
    };
    for one in &list.batches {
        text.push_str(&entry(one));
    }
    if list.more > 0 {
        text.push_str(&format!("\nand {} more, which are shown when these are decided\n", list.more));
    }
    for WithdrawnIds { client, ids } in &list.withdrawn {
        let client = match client {
            Some(name) => format!("client {}", plain(&shown::cut(name, SHOWN_ID))),
            None => "clients without a token".to_owned(),
        };
        text.push_str(&format!("\nids that stay taken because their requests were withdrawn: {ids}, of {client}\n"));
    }
    text
}

/// Returns the text of one request.
pub(super) fn entry(question: &Question) -> String {
    let Asked { id, from, chain_id, asker, act } = &question.asked;
    let (id, digest) = (shortened(id), question.digest);
    let mut text = format!("\n{id}\n  digest   {digest}\n  account  {from} on chain {chain_id}\n");
    if let Some(client) = &asker.client {
        text.push_str(&format!("  client   {}\n", plain(&shown::cut(client, SHOWN_ID))));
    }
    if let Some(page) = &asker.page {
        text.push_str(&format!("  page     {}\n", plain(&shown::cut(page, SHOWN_ID))));
    }
    let (waited, left) = (question.waited_ms / 1000, question.left_ms.div_ceil(1000));
    text.push_str(&format!("  waiting  {waited} s; rejected in {left} s\n"));
    match act {
        RequestedAction::Batch(batch) => add_batch(&mut text, batch),
        RequestedAction::Message(message) => add_message(&mut text, message),
        RequestedAction::TypedData(data) => add_typed_data(&mut text, data),
        RequestedAction::Transaction(tx) => add_transaction(&mut text, tx),
    }
    text
}

fn add_batch(text: &mut String, batch: &AskedBatch) {
    let mode = if batch.atomic { "atomic: all calls or none" } else { "one after another: some may fail" };
    text.push_str(&format!("  mode     {mode}\n"));
    if let Some(code) = batch.upgrade {
        text.push_str(&format!("  upgrade  the account is to be delegated to the code of {code} (EIP-7702)\n"));
    }
    let plural = if batch.transactions == 1 { "" } else { "s" };
    let fees = fees(batch.most_fees, batch.data_fees);
    text.push_str(&format!("  signs    {} transaction{plural}, {fees}\n", batch.transactions));
    // Each call has one line, however wide the terminal is.
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["#", "TO", "ETHER", "DATA", "GAS LIMIT", "SIMULATION"]);
    for (index, call) in batch.calls.iter().enumerate() {
        let to = call.to.map_or_else(|| "(creates a contract)".to_owned(), |to| to.to_string());
        let gas_limit = call.gas_limit.map_or_else(|| "-".to_owned(), |gas| gas.to_string());
        let (number, outcome) = ((index + 1).to_string(), escaped(&call.outcome, "\\"));
        table.add_row([number, to, ether(call.value), data(&call.data), gas_limit, outcome]);
    }
    // The first line is the heading, which has no words.
    let words = std::iter::once([].as_slice()).chain(batch.calls.iter().map(|call| call.words.as_slice()));
    let width = batch.calls.len().to_string().len();
    for (line, words) in table.lines().zip(words) {
        text.push_str(&format!(" {}\n", line.trim_end()));
        for line in words {
            text.push_str(&format!("  {:width$}  = {}\n", "", printable(line)));
        }
    }
    add_lines(text, "assets", batch.assets.iter().map(|line| printable(line)));
}

/// Returns the fees to which an approver agrees.
fn fees(gas: U256, data: U256) -> String {
    let beside = match data {
        U256::ZERO => String::new(),
        data => format!(", and about {} more, set by the chain for data on L1", ether(data)),
    };
    format!("for at most {} ether of gas fees{beside}", ether(gas))
}

/// Returns the text of the fees of a replacement.
pub(super) fn quote(ReplacementQuote { id, transactions, bounds }: &ReplacementQuote) -> String {
    let plural = if *transactions == 1 { "" } else { "s" };
    let (id, fees) = (shortened(id), fees(bounds.gas, bounds.data));
    format!("{id}: signs {transactions} transaction{plural} once more, {fees}\n")
}

fn add_message(text: &mut String, AskedMessage { message, hash }: &AskedMessage) {
    text.push_str(&format!("  signs    a message of {} bytes, as {hash} (EIP-191)\n", message.len()));
    let Ok(readable) = std::str::from_utf8(message) else {
        text.push_str(&format!("  message  {}: no text\n", data(message)));
        return;
    };
    let count = readable.split('\n').count();
    let lines = readable
        .split('\n')
        .take(SHOWN_LINES)
        .map(|line| format!("| {}", escaped(&shown::cut(line, SHOWN_WIDTH), "\\")));
    add_lines(text, "message", lines);
    add_rest(text, count, "lines");
}

fn add_typed_data(text: &mut String, data: &AskedTypedData) {
    let name = plain(&shown::cut(&data.primary_type, SHOWN_ID));
    text.push_str(&format!("  signs    typed data, {name}, as {} (EIP-712)\n", data.hash));
    if !data.domain.iter().any(|field| field.name == "chainId") {
        text.push_str("           The domain names no chain: the signature may be valid on others.\n");
    }
    add_fields(text, "domain", &data.domain);
    add_fields(text, "fields", &data.fields);
    add_lines(text, "means", data.words.iter().map(|line| printable(line)));
}

fn add_transaction(text: &mut String, AskedTransaction { fields, words, hash }: &AskedTransaction) {
    text.push_str(&format!("  signs    a transaction, as {hash}, which whoever asks may send at any time\n"));
    add_fields(text, "fields", fields);
    add_lines(text, "means", words.iter().map(|line| printable(line)));
}

fn add_fields(text: &mut String, title: &str, fields: &[ShownField]) {
    let shown = &fields[..fields.len().min(SHOWN_LINES)];
    let names: Vec<String> = shown.iter().map(|field| printable(&shown::cut(&field.name, SHOWN_WIDTH))).collect();
    let width = names.iter().map(String::len).max().unwrap_or_default();
    let lines = names
        .iter()
        .zip(shown)
        .map(|(name, field)| format!("{name:width$}  {}", printable(&shown::cut(&field.value, SHOWN_WIDTH))));
    add_lines(text, title, lines);
    add_rest(text, fields.len(), "fields");
}

/// Adds lines, with a title before the first.
fn add_lines(text: &mut String, title: &str, lines: impl Iterator<Item = String>) {
    for (index, line) in lines.enumerate() {
        text.push_str(&format!("  {:8} {line}\n", if index == 0 { title } else { "" }));
    }
}

/// Adds the number of lines that are not shown.
fn add_rest(text: &mut String, count: usize, what: &str) {
    if count > SHOWN_LINES {
        let more = count - SHOWN_LINES;
        text.push_str(&format!("           and {more} {what} more: `presim wallet list --json` has all of them\n"));
    }
}

/// Formats the first bytes of call data, and its length.
fn data(bytes: &Bytes) -> String {
    match bytes.get(..SHOWN_DATA) {
        Some(first) if bytes.len() > SHOWN_DATA => {
            format!("{}… ({} bytes)", const_hex::encode_prefixed(first), bytes.len())
        }
        _ => format!("{bytes} ({} bytes)", bytes.len()),
    }
}

/// Returns an id as it is shown: a long one without its middle.
pub(super) fn shortened(id: &BatchId) -> String {
    let id = id.as_str();
    let count = id.chars().count();
    if count <= SHOWN_ID {
        return plain(id);
    }
    let part = |from: usize, count: usize| plain(&id.chars().skip(from).take(count).collect::<String>());
    format!("{}…{} ({count} characters)", part(0, SHOWN_ID - SHOWN_END), part(count - SHOWN_END, SHOWN_END))
}

/// Quotes and escapes untrusted text if needed, so that no two texts look the same and no terminal obeys one.
pub(super) fn plain(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_graphic() && !matches!(letter, '"' | '\\');
    if !text.is_empty() && text.chars().all(is_plain) { text.to_owned() } else { quoted(text) }
}
