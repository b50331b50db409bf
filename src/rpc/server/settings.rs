//! The settings of a server.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::net::{TcpListener, TcpSocket};

use super::{auth::origins::Origins, connection::ConnectionLimits};
use crate::rpc::{protocol::dialect::Dialect, run::subscriber::SocketBounds};

/// Bytes that the system may buffer of the data sent over a connection.
const SEND_BUFFER: u32 = 512 << 10;

/// Connections that the system queues until they are accepted.
const BACKLOG: u32 = 1024;

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The dialect of `/`.
    pub root: &'static Dialect,
    /// The dialect of `/standard`.
    pub standard: &'static Dialect,
    /// Maximum bytes of a body or a message.
    pub max_body: usize,
    /// Maximum time for a client to send a request.
    pub read_timeout: Duration,
    /// Maximum time that a request waits for the snapshot that it asks for at least.
    pub max_catch_up: Duration,
    /// Maximum time for which a connection may make no progress.
    pub io_timeout: Duration,
    /// The hosts that requests may name, in addition to this machine's names and the address of the port.
    pub hosts: Vec<String>,
    /// The origins of pages that may call.
    pub origins: Vec<String>,
    /// The limits on connections.
    pub connections: ConnectionLimits,
    /// The bounds of a WebSocket connection.
    pub sockets: SocketBounds,
    /// The address of the metrics.
    pub metrics: Option<SocketAddr>,
    /// The lag of the feed, and the age of the newest canonical block, past which the node is not ready.
    pub ready_lag: Option<Duration>,
}

impl ServerConfig {
    /// Returns the hosts that requests to the port at `address` may name, and the pages that may send them.
    pub fn origins(&self, address: SocketAddr) -> Arc<Origins> {
        let mut hosts = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "[::1]".to_owned()];
        if !address.ip().is_unspecified() {
            hosts.push(match address {
                SocketAddr::V4(addr) => addr.ip().to_string(),
                SocketAddr::V6(addr) => format!("[{}]", addr.ip()),
            });
        }
        hosts.extend(self.hosts.iter().cloned());
        Arc::new(Origins::new(hosts, self.origins.clone()))
    }

    /// Binds the port.
    ///
    /// # Errors
    ///
    /// Returns the system's error if the port is taken, or not allowed for this process.
    pub fn bind(&self) -> io::Result<TcpListener> {
        let socket = if self.listen.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        // Connections inherit the size. The system reports a socket as writable only when a third of its buffer is free
        // again. With a buffer of the size to which it grows by itself, that takes a slow peer longer than it may
        // stall.
        socket.set_send_buffer_size(SEND_BUFFER)?;
        socket.bind(self.listen)?;
        socket.listen(BACKLOG)
    }
}
