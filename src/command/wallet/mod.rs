//! The command `presim wallet`: asks a running node through its socket, and prints the answer.

mod show;

use std::{
    fmt::Display,
    io::{self, BufRead, BufReader, ErrorKind, IsTerminal, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use clap::Subcommand;
use rustix::termios::{QueueSelector, tcflush};

use self::show::{entry, plain, quote, shortened, table};
use super::error::CommandError;
use crate::{
    objects, shown,
    wallet::{
        BatchId, DigestPrefix, Question, ReplacedBatch, ReplacementQuote, Replacing,
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

/// Returns the error of a command that has failed for this reason.
fn failed(reason: impl Display) -> CommandError {
    CommandError::Failed(reason.to_string())
}

/// Sends the request of a task to the node of this data directory, and writes the answer to `out`.
///
/// # Errors
///
/// Returns [`CommandError::Failed`] if no node listens, if the request is rejected, or if the connection, the terminal or the output
/// fails.
pub fn run(data_dir: &Path, task: &WalletTask, out: &mut impl Write) -> Result<(), CommandError> {
    let path = socket_path(data_dir).map_err(failed)?;
    let request = match task {
        WalletTask::Approve { id, .. }
        | WalletTask::Reject { id }
        | WalletTask::Bump { id, .. }
        | WalletTask::Cancel { id, .. }
            if id.len() > BatchId::MAX_LENGTH =>
        {
            return Err(failed(format!("ID: {} bytes: a batch's id has {} at most", id.len(), BatchId::MAX_LENGTH)));
        }
        WalletTask::List { .. } => Request::List {},
        WalletTask::Watch => return watch(&path, out),
        WalletTask::Approve { id, digest: Some(digest) } => {
            let wrong = |error| failed(format!("DIGEST: {digest:?}: {error}"));
            Request::Approve { id: id.clone(), digest: digest.parse::<DigestPrefix>().map_err(wrong)? }
        }
        WalletTask::Approve { id, digest: None } => confirm(&path, id, out)?,
        WalletTask::Reject { id } => Request::Reject { id: id.clone() },
        WalletTask::Bump { id, yes } => confirm_replacement(&path, id, Replacing::Bump, *yes, out)?,
        WalletTask::Cancel { id, yes } => confirm_replacement(&path, id, Replacing::Cancel, *yes, out)?,
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
            format!("{}\n", text.map_err(|error| strange(&path, error))?)
        }
        Answer::Waiting(list) => table(&list),
        Answer::Shown(batch) => entry(&batch),
    };
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader of a pipe may close it early.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(unwritten),
    }
}

/// Shows a batch on the terminal, asks whether to approve it, and returns the request that approves exactly this batch.
fn confirm(path: &Path, id: &str, out: &mut impl Write) -> Result<Request, CommandError> {
    if !has_terminal() {
        return Err(failed(
            "DIGEST: missing, and there is no terminal to ask on: expected the digest that `presim wallet list` shows, or its first eight digits",
        ));
    }
    let Answer::Shown(batch) = ask(path, &Request::Show { id: id.to_owned() })? else {
        return Err(strange(path, "expected a batch"));
    };
    if !agrees(&format!("{}\napprove it? [y/N] ", entry(&batch)), out)? {
        return Err(not_approved(&batch));
    }
    Ok(approval(&batch))
}

/// Shows what it costs to replace the transactions of a batch. Asks on the terminal, if there is one, whether to do so, unless `yes`.
/// Returns the request that replaces them.
fn confirm_replacement(
    path: &Path,
    id: &str,
    how: Replacing,
    yes: bool,
    out: &mut impl Write,
) -> Result<Request, CommandError> {
    let Answer::Quoted(found) = ask(path, &Request::Quote { id: id.to_owned(), how })? else {
        return Err(strange(path, "expected the fees of a replacement"));
    };
    show(out, &quote(&found))?;
    if !yes && has_terminal() && !agrees("sign it? [y/N] ", out)? {
        return Err(failed(format!("not replaced: the transactions of {} still wait", shortened(&found.id))));
    }
    let ReplacementQuote { id, bounds, .. } = found;
    Ok(Request::Replace { id, how, bounds })
}

/// Asks a question on the terminal. Returns whether the answer is yes.
fn agrees(question: &str, out: &mut impl Write) -> Result<bool, CommandError> {
    show(out, question)?;
    Ok(matches!(line()?.as_str(), "y" | "yes"))
}

/// Shows each batch as it arrives, asks whether to approve it, and sends the decision. Returns at the end of the input.
fn watch(path: &Path, out: &mut impl Write) -> Result<(), CommandError> {
    if !has_terminal() {
        return Err(failed(
            "there is no terminal to ask on: scripts use `presim wallet list --json` and `presim wallet approve`",
        ));
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
            tcflush(io::stdin(), QueueSelector::IFlush).map_err(unread)?;
            show(out, "\napprove it? [y/n] ")?;
            match line()?.as_str() {
                "y" | "yes" => break approval(&batch),
                "n" | "no" => break Request::Reject { id: batch.asked.id.as_str().to_owned() },
                // The end of the input.
                "" => return Err(not_approved(&batch)),
                _ => {}
            }
        };
        let done = match exchange(path, &request)? {
            Answer::Approved { id } => format!("approved {}\n", shortened(&id)),
            Answer::Rejected { id } => format!("rejected {}\n", shortened(&id)),
            // The batch was withdrawn, its time was up, or another approver was faster.
            Answer::Error { message } => format!("not decided: {}\n", shown::printable(&message)),
            _ => return Err(strange(path, "expected a decision")),
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

fn show(out: &mut impl Write, text: &str) -> Result<(), CommandError> {
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(unwritten)
}

fn unwritten(error: io::Error) -> CommandError {
    failed(format!("the answer cannot be written: {error}"))
}

fn unread(error: impl Display) -> CommandError {
    failed(format!("the terminal cannot be read: {error}"))
}

fn not_approved(batch: &Question) -> CommandError {
    let id = shortened(&batch.asked.id);
    failed(format!("not approved: {id} still waits: reject it with `presim wallet reject`"))
}

/// Reads a line from the terminal, in lower case. At the end of the input it is empty; a line without text is a space.
fn line() -> Result<String, CommandError> {
    let mut line = String::new();
    io::stdin().lock().take(MAX_LINE).read_line(&mut line).map_err(unread)?;
    match line.trim() {
        "" if !line.is_empty() => Ok(" ".to_owned()),
        text => Ok(text.to_ascii_lowercase()),
    }
}

fn strange(path: &Path, problem: impl Display) -> CommandError {
    let path = path.display();
    failed(format!("{path}: unexpected answer: {problem}: does the node run another version of presim?"))
}

/// Returns the answer to a request that the node accepts.
fn ask(path: &Path, request: &Request) -> Result<Answer, CommandError> {
    match exchange(path, request)? {
        Answer::Error { message } => Err(failed(message)),
        answer => Ok(answer),
    }
}

/// Sends a request, and returns the answer.
fn exchange(path: &Path, request: &Request) -> Result<Answer, CommandError> {
    let shown = path.display();
    let broken = |error: io::Error| failed(format!("{shown}: the node does not answer: {error}"));
    let mut stream = UnixStream::connect(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::NotADirectory => failed(format!(
            "no node listens on {shown}: start one with this --data-dir, and with --wallet-approval ask, or with --upstream and --wallet-key-file"
        )),
        ErrorKind::PermissionDenied => {
            failed(format!("{shown}: permission denied: run this command as the user that the node runs as"))
        }
        _ => broken(error),
    })?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(broken)?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT)).map_err(broken)?;
    let mut line = serde_json::to_vec(request).map_err(|error| strange(path, error))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(broken)?;
    let mut answer = Vec::new();
    BufReader::new(stream.take(MAX_ANSWER)).read_until(b'\n', &mut answer).map_err(broken)?;
    if answer.last() != Some(&b'\n') {
        return Err(broken(ErrorKind::UnexpectedEof.into()));
    }
    objects::from_slice(&answer).map_err(|error| strange(path, error))
}
