//! The Unix socket through which the node's user approves and rejects batches: a request is one line of JSON, and so is
//! its answer.

use std::{
    io,
    os::unix::{
        fs::{FileTypeExt, MetadataExt, PermissionsExt},
        net::UnixListener as Listener,
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use alloy_primitives::{Address, B256, U256};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    task::JoinSet,
};

use super::{Approvals, AskedCall, BatchId, DigestPrefix, approval::Question};

/// The socket's name in the data directory.
pub const SOCKET: &str = "wallet.sock";
/// The most bytes of a socket's path on Unix (`sun_path`, whose last byte is zero).
const LONGEST_PATH: usize = 107;
/// The number of connections served at once. More connections wait.
const MOST_CONNECTIONS: usize = 16;
/// The most bytes of a request: the longest id fits, with each byte escaped.
const LONGEST_REQUEST: usize = 6 * BatchId::LONGEST + 1024;
/// Bytes of data and text after which a list ends. The rest is only counted.
const LONG_LIST: usize = 8 << 20;
/// The time-out for a client to send its request, and then to read the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A request over the socket.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) enum SocketRequest {
    /// Lists the waiting batches.
    List {},
    /// Shows a batch.
    Show {
        /// The batch's id, or a beginning of it.
        id: String,
    },
    /// Approves the batch if it has this digest.
    Approve {
        /// The batch's id, or a beginning of it.
        id: String,
        /// The batch's digest, or a beginning of it.
        digest: DigestPrefix,
    },
    /// Rejects the batch.
    Reject {
        /// The batch's id, or a beginning of it.
        id: String,
    },
}

/// An answer over the socket.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum SocketAnswer {
    /// The waiting batches.
    Waiting(WaitingList),
    /// The requested batch.
    Shown(Box<Listed>),
    /// The batch is approved, and will be sent.
    Approved {
        /// The batch's id.
        id: String,
    },
    /// The batch is rejected.
    Rejected {
        /// The batch's id.
        id: String,
    },
    /// The request failed.
    Error {
        /// The reason.
        message: String,
    },
}

/// The waiting batches.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WaitingList {
    /// The batches, the one that has waited longest first.
    pub(super) batches: Vec<Listed>,
    /// The number of further batches that do not fit into the list.
    pub(super) more: usize,
}

/// A waiting batch.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Listed {
    pub(super) id: String,
    pub(super) digest: B256,
    pub(super) from: Address,
    pub(super) chain_id: u64,
    pub(super) atomic: bool,
    /// The code to which the account is to be delegated.
    pub(super) upgrade: Option<Address>,
    /// The number of transactions to sign.
    pub(super) transactions: usize,
    /// The highest fees of the transactions for gas, in wei.
    pub(super) most_fees: U256,
    pub(super) waited_ms: u64,
    /// The milliseconds until the batch is rejected.
    pub(super) left_ms: u64,
    pub(super) calls: Vec<AskedCall>,
}

/// The socket, served until it is stopped or dropped.
#[derive(Debug)]
pub struct ApprovalSocket {
    path: PathBuf,
    /// Device and inode of the socket's file.
    identity: Option<(u64, u64)>,
    /// The task that serves the socket, which ends with this value.
    _serving: JoinSet<()>,
}

/// The reason why a socket cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The path does not fit into a socket's address.
    #[error(
        "{}: {} bytes: a Unix socket's path has {LONGEST_PATH} at most: give a --data-dir with a shorter path",
        path.display(), path.as_os_str().len()
    )]
    TooLong {
        /// The socket's path.
        path: PathBuf,
    },
    /// Another kind of file is at the socket's path.
    #[error("{}: another file is at the path of the wallet's socket: move it away", path.display())]
    Taken {
        /// The socket's path.
        path: PathBuf,
    },
    /// Another node listens there.
    #[error("{}: another node listens there: give each node a --data-dir of its own", path.display())]
    InUse {
        /// The socket's path.
        path: PathBuf,
    },
    /// The system refuses an operation.
    #[error("{}: {problem}: {source}", path.display())]
    System {
        /// The socket's path.
        path: PathBuf,
        /// The failed operation.
        problem: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl ApprovalSocket {
    /// Listens in this directory, which must exist, and serves these approvals. Only the process's own user can open
    /// the socket. A socket that a node left behind is replaced. Must be called within a Tokio runtime.
    ///
    /// # Errors
    ///
    /// Returns a [`SocketError`] if the socket cannot be created.
    pub fn serve(data_dir: &Path, approvals: Arc<Approvals>) -> Result<Self, SocketError> {
        let path = socket_path(data_dir)?;
        let listener = bind(data_dir, &path)?;
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, approvals));
        Ok(Self { identity: identity(&path), path, _serving: serving })
    }

    /// Returns the socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ApprovalSocket {
    fn drop(&mut self) {
        // Another node's socket may be at this path, if the directory was removed and created anew.
        if identity(&self.path) != self.identity {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the wallet's socket cannot be removed");
        }
    }
}

/// Returns the path of the socket in a data directory.
pub(super) fn socket_path(data_dir: &Path) -> Result<PathBuf, SocketError> {
    let path = data_dir.join(SOCKET);
    if path.as_os_str().len() > LONGEST_PATH { Err(SocketError::TooLong { path }) } else { Ok(path) }
}

/// Returns device and inode of a file, if it exists.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Binds in a directory that only this user can enter, and moves the socket to its path after setting its mode. So no
/// other user can open it at any moment, and an old socket is replaced in one step.
fn bind(data_dir: &Path, path: &Path) -> Result<UnixListener, SocketError> {
    let fail = |problem| move |source| SocketError::System { path: path.into(), problem, source };
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => return Err(SocketError::Taken { path: path.into() }),
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            return Err(SocketError::InUse { path: path.into() });
        }
        _ => {}
    }
    // The name is short, so that the path is no longer than the socket's own.
    let private = tempfile::Builder::new()
        .prefix(".w")
        .rand_bytes(6)
        .permissions(std::fs::Permissions::from_mode(0o700))
        .tempdir_in(data_dir)
        .map_err(fail("no directory can be made beside it"))?;
    let first = private.path().join("s");
    let listener = Listener::bind(&first).map_err(fail("a socket cannot be bound"))?;
    std::fs::set_permissions(&first, std::fs::Permissions::from_mode(0o600)).map_err(fail("its mode cannot be set"))?;
    std::fs::rename(&first, path).map_err(fail("the socket cannot be moved there"))?;
    listener.set_nonblocking(true).map_err(fail("cannot listen"))?;
    UnixListener::from_std(listener).map_err(fail("cannot listen"))
}

async fn serve(listener: UnixListener, approvals: Arc<Approvals>) {
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut connections = JoinSet::new();
    while let Ok(permit) = room.clone().acquire_owned().await {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let approvals = approvals.clone();
                connections.spawn(async move {
                    // A client that disconnects or stalls harms only itself.
                    let _ = converse(stream, &approvals).await;
                    drop(permit);
                });
            }
            Err(error) => {
                // Mostly a lack of file descriptors. Connections that end will free some.
                tracing::warn!(%error, "cannot accept a connection of an approver");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// Reads one request, and answers it.
async fn converse(mut stream: UnixStream, approvals: &Approvals) -> io::Result<()> {
    let (read, mut write) = stream.split();
    let mut line = Vec::new();
    let mut lines = BufReader::new(read.take(LONGEST_REQUEST as u64 + 1));
    tokio::time::timeout(PATIENCE, lines.read_until(b'\n', &mut line)).await??;
    let mut text = serde_json::to_vec(&answer(&line, approvals))?;
    text.push(b'\n');
    tokio::time::timeout(PATIENCE, write.write_all(&text)).await??;
    write.shutdown().await
}

fn answer(line: &[u8], approvals: &Approvals) -> SocketAnswer {
    if line.len() > LONGEST_REQUEST {
        return SocketAnswer::Error { message: format!("the request has more than {LONGEST_REQUEST} bytes") };
    }
    // A line without its end may be a part of a request.
    let Some(line) = line.strip_suffix(b"\n") else {
        return SocketAnswer::Error { message: "the request does not end its line".to_owned() };
    };
    let request = match serde_json::from_slice(line) {
        Ok(request) => request,
        Err(error) => {
            let expected = r#"{"list":{}}, {"show":{"id":…}}, {"approve":{"id":…,"digest":…}} or {"reject":{"id":…}}"#;
            return SocketAnswer::Error { message: format!("the request: {error}: expected {expected}") };
        }
    };
    let done = match request {
        SocketRequest::List {} => return SocketAnswer::Waiting(WaitingList::new(approvals.waiting())),
        SocketRequest::Show { id } => {
            approvals.find(&id).map(|question| SocketAnswer::Shown(Box::new(Listed::new(question))))
        }
        SocketRequest::Approve { id, digest } => {
            approvals.approve(&id, &digest).map(|id| SocketAnswer::Approved { id: id.as_str().to_owned() })
        }
        SocketRequest::Reject { id } => {
            approvals.reject(&id).map(|id| SocketAnswer::Rejected { id: id.as_str().to_owned() })
        }
    };
    done.unwrap_or_else(|error| SocketAnswer::Error { message: error.to_string() })
}

impl WaitingList {
    fn new(waiting: Vec<Question>) -> Self {
        let count = waiting.len();
        let (mut batches, mut length) = (Vec::new(), 0);
        for question in waiting {
            // At least one batch, so that after its decision the next one is seen.
            if length > LONG_LIST {
                break;
            }
            let listed = Listed::new(question);
            let calls = listed.calls.iter().map(|call| 2 * call.data.len() + call.outcome.len() + 256);
            length += listed.id.len() + calls.sum::<usize>();
            batches.push(listed);
        }
        Self { more: count - batches.len(), batches }
    }
}

impl Listed {
    fn new(Question { asked, digest, waited, left }: Question) -> Self {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self {
            id: asked.id.as_str().to_owned(),
            digest,
            from: asked.from,
            chain_id: asked.chain_id,
            atomic: asked.atomic,
            upgrade: asked.upgrade,
            transactions: asked.transactions,
            most_fees: asked.most_fees,
            waited_ms: ms(waited),
            left_ms: ms(left),
            calls: asked.calls,
        }
    }
}
