//! The Unix socket for the decisions of the node's operator: one line of JSON is the request, one line the answer.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};

use super::protocol::{Answer, Request, WaitingList};
use crate::{
    objects,
    unix_socket::{BoundSocket, SocketError, SocketFile, accept, check_length},
    wallet::{BatchId, Wallet},
};

/// The name of the socket in the data directory.
pub const SOCKET: &str = "wallet.sock";
/// The flag that chooses the directory of the socket.
const SETTING: &str = "--data-dir";
/// Maximum number of connections that are served at once. Further ones wait.
const MAX_CONNECTIONS: usize = 16;
/// Maximum length of a request in bytes. The longest id fits, with each of its bytes escaped.
const MAX_REQUEST: usize = 6 * BatchId::MAX_LENGTH + 1024;
/// Maximum time for a client to send the request, and again to receive the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time that a client waits for the next batch before it asks again.
const MAX_WAIT: Duration = Duration::from_secs(15);
/// Maximum number of clients that wait for the next batch. They are not among the connections that are served.
const MAX_WATCHERS: usize = 16;

/// The approver's socket. Served until it is dropped.
#[derive(Debug)]
pub struct ApprovalSocket {
    _file: SocketFile,
    _serving: JoinSet<()>,
}

impl ApprovalSocket {
    /// Creates the socket in this directory, which must exist, and serves the approvals of `wallet` in the current Tokio runtime, and the
    /// replacing of transactions of its batches. Only the user of the process may open the socket. A socket that a stopped node left
    /// behind is replaced.
    ///
    /// # Errors
    ///
    /// Returns a [`SocketError`] if the socket cannot be created.
    pub fn serve(data_dir: &Path, wallet: Arc<Wallet>) -> Result<Self, SocketError> {
        let (listener, file) = BoundSocket::bind(&socket_path(data_dir)?, SETTING)?.listen()?;
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, wallet));
        Ok(Self { _file: file, _serving: serving })
    }
}

/// Returns the path of the socket of a data directory.
///
/// # Errors
///
/// Returns [`SocketError::TooLong`] if the path does not fit in the address of a socket.
pub fn socket_path(data_dir: &Path) -> Result<PathBuf, SocketError> {
    let path = data_dir.join(SOCKET);
    check_length(&path, SETTING)?;
    Ok(path)
}

async fn serve(listener: UnixListener, wallet: Arc<Wallet>) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let watchers = Arc::new(Semaphore::new(MAX_WATCHERS));
    let mut connections = JoinSet::new();
    while let Ok(permit) = room.clone().acquire_owned().await {
        while connections.try_join_next().is_some() {}
        let (stream, wallet, watchers) = (accept(&listener).await, wallet.clone(), watchers.clone());
        connections.spawn(async move {
            // Errors of a client that disconnects or stalls concern no other client.
            let _ = converse(stream, &wallet, &watchers, permit).await;
        });
    }
}

/// Reads one request and writes its answer. `permit` is released while the request waits for a batch.
async fn converse(
    mut stream: UnixStream,
    wallet: &Wallet,
    watchers: &Semaphore,
    permit: OwnedSemaphorePermit,
) -> io::Result<()> {
    let mut permit = Some(permit);
    let (read, mut write) = stream.split();
    let mut line = Vec::new();
    let mut lines = BufReader::new(read.take(MAX_REQUEST as u64 + 1));
    tokio::time::timeout(CLIENT_TIMEOUT, lines.read_until(b'\n', &mut line)).await??;
    let answer = match parse(&line) {
        Ok(request) => wallet.answer(request, watchers, &mut permit).await,
        Err(message) => Err(message),
    };
    let mut text = serde_json::to_vec(&answer.unwrap_or_else(|message| Answer::Error { message }))?;
    text.push(b'\n');
    tokio::time::timeout(CLIENT_TIMEOUT, write.write_all(&text)).await??;
    write.shutdown().await
}

fn parse(line: &[u8]) -> Result<Request, String> {
    if line.len() > MAX_REQUEST {
        return Err(format!("the request has more than {MAX_REQUEST} bytes"));
    }
    // Without a newline, the request may be incomplete.
    let line = line.strip_suffix(b"\n").ok_or_else(|| "the request does not end with a newline".to_owned())?;
    objects::from_slice(line).map_err(|error| {
        let expected =
            r#"{"list":{}}, {"show":{"id":…}}, {"next":{"from":…}}, {"approve":{"id":…,"digest":…}} or {"reject":{"id":…}}"#;
        format!("the request: {error}: expected {expected}")
    })
}

impl Wallet {
    /// Returns the answer to a request, or the text of its error. `permit` is released while the request waits for a batch.
    async fn answer(
        &self,
        request: Request,
        watchers: &Semaphore,
        permit: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<Answer, String> {
        let (approvals, text) = (&self.approvals, |error: eyre::Report| error.to_string());
        match request {
            Request::List {} => Ok(Answer::Waiting(WaitingList::of(approvals))),
            Request::Show { id } => approvals.find(&id).map(|question| Answer::Shown(Box::new(question))),
            Request::Next { from } => {
                drop(permit.take());
                let full = |_| format!("{MAX_WATCHERS} others watch already: end one of them");
                let _permit = watchers.try_acquire().map_err(full)?;
                let found = tokio::time::timeout(MAX_WAIT, approvals.next(from)).await.ok();
                Ok(Answer::Next(found.map(Box::new)))
            }
            Request::Approve { id, digest } => approvals.approve(&id, &digest).map(|id| Answer::Approved { id }),
            Request::Reject { id } => approvals.reject(&id).map(|id| Answer::Rejected { id }),
            Request::Quote { id, how } => self.quote(&id, how).await.map(Answer::Quoted).map_err(text),
            Request::Replace { id, how, bounds } => {
                self.replace(id.as_str(), how, bounds).await.map(Answer::Replaced).map_err(text)
            }
        }
    }
}
