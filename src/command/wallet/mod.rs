//! The command `presim wallet`: asks a running node through its socket, and prints the answer.

mod show;

use std::{
    io::{self, BufRead, BufReader, ErrorKind, IsTerminal, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Subcommand;
use rustix::termios::{QueueSelector, tcflush};
use serde::de::Error;

use self::show::{entry, plain, quote, shortened, table};
use crate::{
    objects, shown,
    unix_socket::SocketError,
    wallet::{
        BatchId, DigestPrefix, Question, ReplacedBatch, ReplacementQuote,
        protocol::{Answer, Request},
        socket_path,
    },
};

/// Maximum time for the node to answer: longer than clients that came earlier may keep the node waiting.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum length of an answer in bytes.
const MAX_ANSWER: u64 = 1 << 30;
/// Maximum length of a line from the terminal in bytes.
const MAX_LINE: u64 = 4096;

/// The action on the batches and messages that wait for approval.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum WalletTask {
    /// Show what waits: senders, calls in words, the results of their simulation, and messages field by field.
    List {
        /// Print one JSON value, with the full data of each call.
        #[arg(long)]
        json: bool,
    },
    /// Show each batch or message as it comes, and ask on the terminal whether to approve it.
    Watch,
    /// Sign a message, or sign and send a batch. Without DIGEST, show it first, and ask on the terminal.
    Approve {
        /// The batch's id, a beginning of it with at least six characters that no other waiting batch's id has, or the
        /// whole digest.
        id: String,
        /// The batch's digest as `presim wallet list` shows it, or at least its first eight digits. A batch with
        /// another digest is not approved.
        digest: Option<String>,
    },
    /// Reject a batch or a message. Its sender gets error 4001.
    Reject {
        /// The batch's id, a beginning of it with at least six characters that no other waiting batch's id has, or the
        /// whole digest.
        id: String,
    },
    /// Sign the transactions of a batch that wait once more, with the same nonces and higher fees, and send them to the
    /// upstream. The fees are shown first, and a terminal is asked.
    Bump {
        /// The batch's id, or a beginning of it that no other batch's id has.
        id: String,
        /// Sign without a question on the terminal.
        #[arg(long)]
        yes: bool,
    },
    /// Replace the transactions of a batch that wait by ones that do nothing. A transaction that is mined first stays. The fees are
    /// shown first, and a terminal is asked.
    Cancel {
        /// The batch's id, or a beginning of it that no other batch's id has.
        id: String,
        /// Sign without a question on the terminal.
        #[arg(long)]
        yes: bool,
    },
}

/// The reason why a command has failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The path of the socket is not valid.
    #[error(transparent)]
    Path(#[from] SocketError),
    /// No node listens on the socket.
    #[error(
        "no node listens on {}: start one with this --data-dir, and with --wallet-approval ask, or with --upstream and --wallet-key-file",
        path.display()
    )]
    Nobody { path: PathBuf },
    /// The system denies access to the socket.
    #[error("{}: permission denied: run this command as the user that the node runs as", path.display())]
    Denied { path: PathBuf },
    /// The connection failed.
    #[error("{}: the node does not answer: {cause}", path.display())]
    Broken { path: PathBuf, cause: io::Error },
    /// The answer cannot be parsed, or does not fit the request.
    #[error("{}: unexpected answer: {cause}: does the node run another version of presim?", path.display())]
    Strange { path: PathBuf, cause: serde_json::Error },
    /// The command or the node rejects the request, with this reason.
    #[error("{0}")]
    Refused(String),
    /// No digest was given, and there is no terminal to ask on.
    #[error(
        "DIGEST: missing, and there is no terminal to ask on: expected the digest that `presim wallet list` shows, or its first eight digits"
    )]
    NoTerminal,
    /// There is no terminal to watch on.
    #[error("there is no terminal to ask on: scripts use `presim wallet list --json` and `presim wallet approve`")]
    NoScreen,
    /// The user did not confirm the approval of the batch with this id.
    #[error("not approved: {0} still waits: reject it with `presim wallet reject`")]
    NotApproved(String),
    /// The user did not confirm the replacement of the transactions of the batch with this id.
    #[error("not replaced: the transactions of {0} still wait")]
    NotReplaced(String),
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
        WalletTask::Approve { id, .. }
        | WalletTask::Reject { id }
        | WalletTask::Bump { id, .. }
        | WalletTask::Cancel { id, .. }
            if id.len() > BatchId::MAX_LENGTH =>
        {
            let text = format!("ID: {} bytes: a batch's id has {} at most", id.len(), BatchId::MAX_LENGTH);
            return Err(ClientError::Refused(text));
        }
        WalletTask::List { .. } => Request::List {},
        WalletTask::Watch => return watch(&path, out),
        WalletTask::Approve { id, digest: Some(digest) } => {
            let wrong = |error| ClientError::Refused(format!("DIGEST: {digest:?}: {error}"));
            Request::Approve { id: id.clone(), digest: digest.parse::<DigestPrefix>().map_err(wrong)? }
        }
        WalletTask::Approve { id, digest: None } => confirm(&path, id, out)?,
        WalletTask::Reject { id } => Request::Reject { id: id.clone() },
        WalletTask::Bump { id, yes } => confirm_replacement(&path, id, false, *yes, out)?,
        WalletTask::Cancel { id, yes } => confirm_replacement(&path, id, true, *yes, out)?,
    };
    let text = match ask(&path, &request)? {
        Answer::Approved { id } => format!("approved {}\n", plain(id.as_str())),
        Answer::Rejected { id } => format!("rejected {}\n", plain(id.as_str())),
        Answer::Replaced(ReplacedBatch { id, transactions }) => {
            let done = if matches!(task, WalletTask::Cancel { .. }) { "cancels" } else { "bumped" };
            let lines = transactions.iter().map(|(old, new)| format!("  {old}\n  by {new}\n"));
            format!(
                "{done} {}: these transactions are replaced, unless they are mined first\n{}",
                plain(id.as_str()),
                lines.collect::<String>()
            )
        }
        Answer::Next(_) | Answer::Quoted(_) | Answer::Error { .. } => {
            return Err(strange(&path, "expected a decision or a list"));
        }
        Answer::Waiting(list) if matches!(task, WalletTask::List { json: true }) => {
            let text = serde_json::to_string_pretty(&list).map(|text| shown::json(&text));
            format!("{}\n", text.map_err(|cause| ClientError::Strange { path, cause })?)
        }
        Answer::Waiting(list) => table(&list),
        Answer::Shown(batch) => entry(&batch),
    };
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader of a pipe may close it early.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(ClientError::Show),
    }
}

/// Shows a batch on the terminal, asks whether to approve it, and returns the request that approves exactly this batch.
fn confirm(path: &Path, id: &str, out: &mut impl Write) -> Result<Request, ClientError> {
    if !has_terminal() {
        return Err(ClientError::NoTerminal);
    }
    let Answer::Shown(batch) = ask(path, &Request::Show { id: id.to_owned() })? else {
        return Err(strange(path, "expected a batch"));
    };
    if !agrees(&format!("{}\napprove it? [y/N] ", entry(&batch)), out)? {
        return Err(ClientError::NotApproved(shortened(&batch.asked.id)));
    }
    Ok(approval(&batch))
}

/// Shows what it costs to replace the transactions of a batch. Asks on the terminal, if there is one, whether to do so, unless `yes`.
/// Returns the request that replaces them.
fn confirm_replacement(
    path: &Path,
    id: &str,
    cancels: bool,
    yes: bool,
    out: &mut impl Write,
) -> Result<Request, ClientError> {
    let Answer::Quoted(found) = ask(path, &Request::Quote { id: id.to_owned(), cancels })? else {
        return Err(strange(path, "expected the fees of a replacement"));
    };
    show(out, &quote(&found))?;
    if !yes && has_terminal() && !agrees("sign it? [y/N] ", out)? {
        return Err(ClientError::NotReplaced(shortened(&found.id)));
    }
    let ReplacementQuote { id, bounds, .. } = found;
    Ok(if cancels { Request::Cancel { id, bounds } } else { Request::Bump { id, bounds } })
}

/// Asks a question on the terminal. Returns whether the answer is yes.
fn agrees(question: &str, out: &mut impl Write) -> Result<bool, ClientError> {
    show(out, question)?;
    Ok(matches!(line()?.as_str(), "y" | "yes"))
}

/// Shows each batch as it arrives, asks whether to approve it, and sends the decision. Returns at the end of the input.
fn watch(path: &Path, out: &mut impl Write) -> Result<(), ClientError> {
    if !has_terminal() {
        return Err(ClientError::NoScreen);
    }
    let mut from = 0;
    // The first answer arrives at once if a batch waits. It is an error if no node listens.
    show(out, "waiting for what is to be approved; Ctrl-C ends\n")?;
    loop {
        let batch = match ask(path, &Request::Next { from })? {
            Answer::Next(Some(batch)) => batch,
            Answer::Next(None) => continue,
            _ => return Err(strange(path, "expected the next batch")),
        };
        from = batch.number + 1;
        show(out, &entry(&batch))?;
        let request = loop {
            // An answer that was typed before the question was shown is none.
            tcflush(io::stdin(), QueueSelector::IFlush).map_err(|error| ClientError::Read(error.into()))?;
            show(out, "\napprove it? [y/n] ")?;
            match line()?.as_str() {
                "y" | "yes" => break approval(&batch),
                "n" | "no" => break Request::Reject { id: batch.asked.id.as_str().to_owned() },
                // The end of the input.
                "" => return Err(ClientError::NotApproved(shortened(&batch.asked.id))),
                _ => {}
            }
        };
        let done = match ask(path, &request) {
            Ok(Answer::Approved { id }) => format!("approved {}\n", shortened(&id)),
            Ok(Answer::Rejected { id }) => format!("rejected {}\n", shortened(&id)),
            // The batch was withdrawn, its time was up, or another approver was faster.
            Err(ClientError::Refused(message)) => format!("not decided: {}\n", shown::printable(&message)),
            Err(error) => return Err(error),
            Ok(_) => return Err(strange(path, "expected a decision")),
        };
        show(out, &done)?;
    }
}

/// Returns the request that approves exactly this batch.
fn approval(batch: &Question) -> Request {
    Request::Approve { id: batch.asked.id.as_str().to_owned(), digest: batch.digest.into() }
}

fn has_terminal() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

fn show(out: &mut impl Write, text: &str) -> Result<(), ClientError> {
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(ClientError::Show)
}

/// Reads a line from the terminal, in lower case. At the end of the input it is empty; a line without text is a space.
fn line() -> Result<String, ClientError> {
    let mut line = String::new();
    io::stdin().lock().take(MAX_LINE).read_line(&mut line).map_err(ClientError::Read)?;
    match line.trim() {
        "" if !line.is_empty() => Ok(" ".to_owned()),
        text => Ok(text.to_ascii_lowercase()),
    }
}

fn strange(path: &Path, expected: &str) -> ClientError {
    ClientError::Strange { path: path.into(), cause: serde_json::Error::custom(expected) }
}

fn ask(path: &Path, request: &Request) -> Result<Answer, ClientError> {
    let broken = |cause| ClientError::Broken { path: path.into(), cause };
    let strange = |cause| ClientError::Strange { path: path.into(), cause };
    let mut stream = UnixStream::connect(path).map_err(|cause| match cause.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::NotADirectory => {
            ClientError::Nobody { path: path.into() }
        }
        ErrorKind::PermissionDenied => ClientError::Denied { path: path.into() },
        _ => broken(cause),
    })?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(broken)?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT)).map_err(broken)?;
    let mut line = serde_json::to_vec(request).map_err(strange)?;
    line.push(b'\n');
    stream.write_all(&line).map_err(broken)?;
    let mut answer = Vec::new();
    BufReader::new(stream.take(MAX_ANSWER)).read_until(b'\n', &mut answer).map_err(broken)?;
    if answer.last() != Some(&b'\n') {
        return Err(broken(ErrorKind::UnexpectedEof.into()));
    }
    match objects::from_slice(&answer).map_err(strange)? {
        Answer::Error { message } => Err(ClientError::Refused(message)),
        answer => Ok(answer),
    }
}
