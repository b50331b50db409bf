//! The command `presim wallet`: asks a running node through its socket, and prints the answer.

use std::{
    io::{self, BufRead, BufReader, ErrorKind, IsTerminal, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use alloy_primitives::{Bytes, U256, utils::format_ether};
use serde::de::Error;

use super::{
    BatchId, DigestPrefix, SocketError,
    socket::{Listed, SocketAnswer, SocketRequest, WaitingList, socket_path},
};
use crate::command::WalletTask;

/// Maximum time for the node to answer: longer than clients that came earlier may keep the node waiting.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum length of an answer in bytes.
const LONGEST_ANSWER: u64 = 1 << 30;
/// Maximum length of a line from the terminal in bytes.
const LONGEST_LINE: u64 = 4096;
/// Number of bytes of a call's data that a list shows.
const SHOWN_DATA: usize = 36;
/// Number of characters of an id that a list shows: 32 bytes in hex fit.
const SHOWN_ID: usize = 72;
/// Number of those characters that are the end of a longer id.
const SHOWN_END: usize = 16;

/// The reason why a command has failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The path of the socket is not valid.
    #[error(transparent)]
    Path(#[from] SocketError),
    /// No node listens on the socket.
    #[error(
        "no node listens on {}: start one with --wallet-approval ask and this --data-dir",
        path.display()
    )]
    Nobody {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The system denies access to the socket.
    #[error("{}: permission denied: run this command as the user that the node runs as", path.display())]
    Denied {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The connection failed.
    #[error("{}: the node does not answer: {source}", path.display())]
    Broken {
        /// Path of the socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The answer cannot be parsed, or does not fit the request.
    #[error("{}: unexpected answer: {source}: does the node run another version of presim?", path.display())]
    Strange {
        /// Path of the socket.
        path: PathBuf,
        /// The error of the JSON parser.
        source: serde_json::Error,
    },
    /// The command or the node rejects the request, with this reason.
    #[error("{0}")]
    Refused(String),
    /// No digest was given, and there is no terminal to ask on.
    #[error(
        "DIGEST: missing, and there is no terminal to ask on: expected the digest that `presim wallet list` shows, or its first eight digits"
    )]
    NoTerminal,
    /// The user did not confirm the approval of the batch with this id.
    #[error("not approved: {0} still waits: reject it with `presim wallet reject`")]
    NotApproved(String),
    /// The user's answer cannot be read.
    #[error("the terminal cannot be read: {0}")]
    Read(io::Error),
    /// The output cannot be written.
    #[error("the answer cannot be written: {0}")]
    Show(io::Error),
}

/// Sends the request of a task to the node of this data directory, and writes the answer to `out`.
///
/// # Errors
/// Returns [`ClientError::Nobody`] if no node listens, [`ClientError::Refused`] if the request is rejected, and the
/// other variants of [`ClientError`] if the connection, the terminal or the output fails.
pub fn run(data_dir: &Path, task: &WalletTask, out: &mut impl Write) -> Result<(), ClientError> {
    let path = socket_path(data_dir)?;
    let request = match task {
        WalletTask::Approve { id, .. } | WalletTask::Reject { id } if id.len() > BatchId::LONGEST => {
            let text = format!("ID: {} bytes: a batch's id has {} at most", id.len(), BatchId::LONGEST);
            return Err(ClientError::Refused(text));
        }
        WalletTask::List { .. } => SocketRequest::List {},
        WalletTask::Approve { id, digest: Some(digest) } => {
            let wrong = |error| ClientError::Refused(format!("DIGEST: {digest:?}: {error}"));
            SocketRequest::Approve { id: id.clone(), digest: digest.parse::<DigestPrefix>().map_err(wrong)? }
        }
        WalletTask::Approve { id, digest: None } => confirm(&path, id, out)?,
        WalletTask::Reject { id } => SocketRequest::Reject { id: id.clone() },
    };
    let text = match ask(&path, &request)? {
        SocketAnswer::Error { message } => return Err(ClientError::Refused(message)),
        SocketAnswer::Approved { id } => format!("approved {}\n", plain(&id)),
        SocketAnswer::Rejected { id } => format!("rejected {}\n", plain(&id)),
        SocketAnswer::Waiting(list) if matches!(task, WalletTask::List { json: true }) => {
            let text = serde_json::to_string_pretty(&list).map(|text| without_controls(&text));
            format!("{}\n", text.map_err(|source| ClientError::Strange { path, source })?)
        }
        SocketAnswer::Waiting(list) => table(&list),
        SocketAnswer::Shown(batch) => entry(&batch),
    };
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader of a pipe may close it early.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(ClientError::Show),
    }
}

/// Shows a batch on the terminal, asks whether to approve it, and returns the request that approves exactly this batch.
fn confirm(path: &Path, id: &str, out: &mut impl Write) -> Result<SocketRequest, ClientError> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(ClientError::NoTerminal);
    }
    let batch = match ask(path, &SocketRequest::Show { id: id.to_owned() })? {
        SocketAnswer::Shown(batch) => batch,
        SocketAnswer::Error { message } => return Err(ClientError::Refused(message)),
        _ => {
            let source = serde_json::Error::custom("expected a batch");
            return Err(ClientError::Strange { path: path.into(), source });
        }
    };
    write!(out, "{}\napprove it? [y/N] ", entry(&batch)).and_then(|()| out.flush()).map_err(ClientError::Show)?;
    let mut answer = String::new();
    io::stdin().lock().take(LONGEST_LINE).read_line(&mut answer).map_err(ClientError::Read)?;
    if !["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()) {
        return Err(ClientError::NotApproved(shortened(&batch.id)));
    }
    Ok(SocketRequest::Approve { id: batch.id, digest: batch.digest.into() })
}

fn ask(path: &Path, request: &SocketRequest) -> Result<SocketAnswer, ClientError> {
    let broken = |source| ClientError::Broken { path: path.into(), source };
    let strange = |source| ClientError::Strange { path: path.into(), source };
    let mut stream = UnixStream::connect(path).map_err(|source| match source.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::NotADirectory => {
            ClientError::Nobody { path: path.into() }
        }
        ErrorKind::PermissionDenied => ClientError::Denied { path: path.into() },
        _ => broken(source),
    })?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(broken)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(broken)?;
    let mut line = serde_json::to_vec(request).map_err(strange)?;
    line.push(b'\n');
    stream.write_all(&line).map_err(broken)?;
    let mut answer = Vec::new();
    BufReader::new(stream.take(LONGEST_ANSWER)).read_until(b'\n', &mut answer).map_err(broken)?;
    if answer.last() != Some(&b'\n') {
        return Err(broken(ErrorKind::UnexpectedEof.into()));
    }
    serde_json::from_slice(&answer).map_err(strange)
}

fn table(list: &WaitingList) -> String {
    let count = list.batches.len() + list.more;
    let mut text = match count {
        0 => return "no batch waits for approval\n".to_owned(),
        1 => "1 batch waits for approval\n".to_owned(),
        _ => format!("{count} batches wait for approval\n"),
    };
    for batch in &list.batches {
        text.push_str(&entry(batch));
    }
    if list.more > 0 {
        text.push_str(&format!("\nand {} more, which are shown when these are decided\n", list.more));
    }
    text
}

fn entry(batch: &Listed) -> String {
    let mode = if batch.atomic { "atomic: all calls or none" } else { "one after another: some may fail" };
    let mut text = format!(
        "\n{}\n  digest   {}\n  account  {} on chain {}\n  waiting  {} s; rejected in {} s\n  mode     {mode}\n",
        shortened(&batch.id),
        batch.digest,
        batch.from,
        batch.chain_id,
        batch.waited_ms / 1000,
        batch.left_ms.div_ceil(1000)
    );
    if let Some(code) = batch.upgrade {
        text.push_str(&format!("  upgrade  the account is to be delegated to the code of {code} (EIP-7702)\n"));
    }
    let plural = if batch.transactions == 1 { "" } else { "s" };
    text.push_str(&format!(
        "  signs    {} transaction{plural}, for at most {} ether of gas fees\n",
        batch.transactions,
        ether(batch.most_fees)
    ));
    let rows: Vec<[String; 6]> =
        std::iter::once(["#", "TO", "ETHER", "DATA", "GAS LIMIT", "SIMULATION"].map(str::to_owned))
            .chain(batch.calls.iter().enumerate().map(|(index, call)| {
                let to = call.to.map_or_else(|| "(creates a contract)".to_owned(), |to| to.to_string());
                let gas_limit = call.gas_limit.map_or_else(|| "-".to_owned(), |gas| gas.to_string());
                [(index + 1).to_string(), to, ether(call.value), data(&call.data), gas_limit, escaped(&call.outcome)]
            }))
            .collect();
    let mut widths = [0; 6];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(&format!("  {}\n", line.trim_end()));
    }
    text
}

/// Formats an amount of wei in ether, without trailing zeros.
fn ether(wei: U256) -> String {
    let text = format_ether(wei);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
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

fn shortened(id: &str) -> String {
    let count = id.chars().count();
    if count <= SHOWN_ID {
        return plain(id);
    }
    let part = |from: usize, count: usize| plain(&id.chars().skip(from).take(count).collect::<String>());
    format!("{}…{} ({count} characters)", part(0, SHOWN_ID - SHOWN_END), part(count - SHOWN_END, SHOWN_END))
}

/// Quotes and escapes untrusted text if needed, so that no two texts look the same and no terminal obeys one.
fn plain(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_graphic() && !matches!(letter, '"' | '\\');
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("\"{}\"", text.escape_default())
}

/// Escapes a contract's text within other text, so that no terminal obeys it.
fn escaped(text: &str) -> String {
    let escape = |letter: char| match letter {
        '"' | '\'' => letter.to_string(),
        _ => letter.escape_default().to_string(),
    };
    text.chars().map(escape).collect()
}

/// Escapes U+007F to U+009F, which JSON allows unescaped: ids are untrusted text, and terminals obey some of these.
fn without_controls(json: &str) -> String {
    let escaped = json.chars().map(|letter| match letter {
        '\u{7f}'..='\u{9f}' => format!("\\u{:04x}", u32::from(letter)),
        other => other.to_string(),
    });
    escaped.collect()
}
