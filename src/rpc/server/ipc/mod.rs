//! The Unix socket (`--ipc`): the messages of `/standard`, for users who may open its file.

mod texts;

use std::sync::Arc;

use tokio::net::{UnixListener, UnixStream};

use self::texts::{TextsIn, TextsOut};
use super::{
    connection::{Connection, Connections},
    http::HttpService,
    io::IoThreads,
};
use crate::{
    rpc::{
        dispatch::service::failure,
        limits::{message::MessageBytes, stalls::NotedStream},
        protocol::error::RpcError,
        run::{client::Client, request::Caller},
    },
    unix_socket::accept,
};

/// The name of the socket in the data directory.
pub const IPC_SOCKET: &str = "presim.ipc";

/// The acceptor of the socket's connections.
pub struct IpcAcceptor {
    pub service: Arc<HttpService>,
    pub io: Arc<IoThreads>,
    pub connections: Arc<Connections>,
}

impl IpcAcceptor {
    /// Accepts connections, and serves them on the threads of connections.
    pub async fn run(self, listener: UnixListener) {
        loop {
            let stream = accept(&listener).await;
            let Some(connection) = self.connections.open_ipc(self.service.config.io_timeout) else {
                reject(&stream);
                continue;
            };
            let Ok(stream) = stream.into_std() else { continue };
            let service = self.service.clone();
            self.io.assign(|| UnixStream::from_std(stream), |stream| serve(service, stream, connection));
        }
    }
}

/// Serves a connection. Its client has all rights of a client with a token of the wallet, and no rate limit.
async fn serve(service: Arc<HttpService>, stream: UnixStream, connection: Arc<Connection>) {
    let client = Arc::new(Client::without_token(true));
    let memory = connection.memory.clone();
    let caller = Arc::new(Caller { client, dialect: service.config.standard, page: None, memory, until: None });
    let session = service.session();
    let bytes = Arc::new(MessageBytes::new(connection.memory.clone(), connection.progress.clone()));
    let (reads, writes) = stream.into_split();
    let reader = TextsIn::new(reads, bytes.clone(), session.max_read());
    let writer = TextsOut(NotedStream::new(writes, connection.progress.clone()));
    session.serve(reader, writer, bytes, caller, connection).await;
}

/// Answers a connection beyond the limit with an error. The buffer of a new connection has room for it.
fn reject(stream: &UnixStream) {
    let mut text = failure(&jsonrpsee::types::Id::Null, RpcError::limit("too many connections are open"));
    text.push(b'\n');
    let _ = stream.try_write(&text);
}
