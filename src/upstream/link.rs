//! A connection to a peer, over WebSocket or IPC: opened within a time, kept alive by pings, and opened again when it is lost.

use std::{path::PathBuf, time::Duration};

use alloy_transport_ws::{WebSocketConfig, WsConnect};
use bytes::Bytes;
use futures::{SinkExt, StreamExt, future::Either};
use tokio::{
    net::{TcpStream, UnixStream},
    time::{Instant, Interval, interval, sleep, sleep_until, timeout},
};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async_with_config,
    tungstenite::{
        self, Message,
        client::IntoClientRequest,
        error::{CapacityError, UrlError},
        protocol::CloseFrame,
    },
};
use tokio_util::codec::Framed;

use super::{http::install_tls, json_frames::JsonFrames};

/// The address of a peer.
#[derive(Clone, Debug)]
pub enum Address {
    /// A `ws://` or `wss://` URL. A user and a password in it become a header.
    WebSocket(String),
    /// The path of an IPC socket.
    Ipc(PathBuf),
}

/// The bounds and intervals of a connection.
#[derive(Clone, Debug)]
pub struct LinkSettings {
    /// The time-out for opening a connection, TLS and upgrade included.
    pub connect_timeout: Duration,
    /// The interval of pings. There are none over IPC.
    pub ping_every: Duration,
    /// The time without any message, not even a pong, after which the connection counts as lost, and the time that a message to the
    /// peer may take.
    pub idle_timeout: Duration,
    /// The shortest pause before a connection is opened again.
    pub min_pause: Duration,
    /// The most bytes of a message from the peer.
    pub max_message: usize,
}

/// Maximum pause after an attempt that has not reached the peer, and so costs it little.
const MAX_PAUSE_UNREACHED: Duration = Duration::from_secs(1);
/// The longest pause after a connection that has brought nothing usable, or that the peer has refused.
const MAX_PAUSE_USELESS: Duration = Duration::from_secs(30);
/// The part of the time without anything usable that a pause takes.
const PAUSE_PART: u32 = 8;
/// The most bytes that wait for the peer to read them. It can make this end owe it pongs.
const MAX_UNSENT: usize = 64 << 20;

/// The reason why a connection was lost or could not be opened. No text contains the URL, because it may contain a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The connection was not open in time.
    #[error("no connection within {} ms", .0.as_millis())]
    ConnectTimeout(Duration),
    /// The server answered with this HTTP status instead of a WebSocket.
    #[error("the server answered with HTTP status {0}, expected a WebSocket upgrade (101)")]
    Status(u16),
    /// The server closed the connection.
    #[error("the server closed the connection: {0}")]
    Closed(String),
    /// Nothing arrived, not even a pong, or the server did not read.
    #[error("the server has sent nothing for {} ms", .0.as_millis())]
    Idle(Duration),
    /// Nothing arrived that can be used: no sub-block, or no answer to a request.
    #[error("the server has sent nothing usable for {} ms", .0.as_millis())]
    Stalled(Duration),
    /// A message was longer than allowed.
    #[error("a message has more than {limit} bytes")]
    MessageTooLong { limit: usize },
    /// Another failure: of the network, of TLS, or of the protocol.
    #[error("{0}")]
    Other(String),
}

impl From<tungstenite::Error> for LinkError {
    fn from(error: tungstenite::Error) -> Self {
        use tungstenite::Error;
        match error {
            Error::ConnectionClosed | Error::AlreadyClosed => closed(None),
            Error::Http(response) => Self::Status(response.status().as_u16()),
            Error::Capacity(CapacityError::MessageTooLong { max_size, .. }) => Self::MessageTooLong { limit: max_size },
            // The library's error contains the address, so its text is replaced.
            Error::Url(UrlError::UnableToConnect(_)) => Self::Other("cannot connect".to_owned()),
            error => Self::Other(error.to_string()),
        }
    }
}

/// Returns the error for a connection that the peer has closed, with its reason, shortened for a log line.
fn closed(frame: Option<CloseFrame>) -> LinkError {
    const MAX_LENGTH: usize = 123;
    let Some(CloseFrame { code, reason }) = frame else { return LinkError::Closed("without a reason".to_owned()) };
    let reason: String = reason.chars().filter(|char| !char.is_control()).take(MAX_LENGTH).collect();
    let code = u16::from(code).to_string();
    LinkError::Closed(if reason.is_empty() { code } else { format!("{code} {reason}") })
}

/// Opens connections to a peer, one after the other.
#[derive(Debug)]
pub struct Connector {
    address: Address,
    settings: LinkSettings,
    /// The time since which no connection has brought anything usable; `None` before the first.
    useless_since: Option<Instant>,
    /// Whether the newest try has reached the peer.
    was_reached: bool,
}

impl Connector {
    /// Creates a connector that has opened nothing yet.
    pub const fn new(address: Address, settings: LinkSettings) -> Self {
        Self { address, settings, useless_since: None, was_reached: false }
    }

    /// Opens a connection, after a pause unless it is the first.
    ///
    /// # Errors
    ///
    /// Returns the reason why it cannot be opened.
    pub async fn connect(&mut self) -> Result<Link, LinkError> {
        if let Some(since) = self.useless_since {
            // Longer by chance, so that clients that were cut off together do not return together.
            sleep(self.pause(since.elapsed()).mul_f64(1.0 + rand::random::<f64>() / 2.0)).await;
        }
        self.useless_since.get_or_insert_with(Instant::now);
        let opened = Link::open(&self.address, &self.settings).await;
        self.was_reached = matches!(opened, Ok(_) | Err(LinkError::Status(_)));
        opened
    }

    /// Returns the shortest pause before a connection is opened again. It grows with the time for which no connection has brought
    /// anything usable, so a peer that is back after a short time is connected to again after a shorter one.
    fn pause(&self, useless_for: Duration) -> Duration {
        let longest = if self.was_reached { MAX_PAUSE_USELESS } else { MAX_PAUSE_UNREACHED };
        (useless_for / PAUSE_PART).clamp(self.settings.min_pause, longest)
    }

    /// Notes that the connection that is lost now has brought something usable.
    pub fn note_use(&mut self) {
        self.useless_since = Some(Instant::now());
    }
}

/// An open connection.
#[derive(Debug)]
pub struct Link {
    transport: Either<Box<WebSocketStream<MaybeTlsStream<TcpStream>>>, Framed<UnixStream, JsonFrames>>,
    idle_timeout: Duration,
    ping: Interval,
    /// The time of the newest message.
    heard: Instant,
}

impl Link {
    async fn open(address: &Address, settings: &LinkSettings) -> Result<Self, LinkError> {
        let most = settings.max_message;
        let opening = async {
            Ok(match address {
                Address::WebSocket(url) => {
                    install_tls();
                    let config = WebSocketConfig::default()
                        .max_message_size(Some(most))
                        .max_frame_size(Some(most))
                        .max_write_buffer_size(MAX_UNSENT);
                    let request = WsConnect::new(url).into_client_request()?;
                    // Small messages are sent at once. With Nagle's algorithm, the second message of a wave would wait for the
                    // acknowledgement of the first, and so up to 40 ms.
                    let (socket, _) = connect_async_with_config(request, Some(config), true).await?;
                    Either::Left(Box::new(socket))
                }
                Address::Ipc(path) => {
                    let socket = UnixStream::connect(path).await;
                    let socket = socket.map_err(|error| LinkError::Other(error.to_string()))?;
                    Either::Right(Framed::new(socket, JsonFrames::new(most)))
                }
            })
        };
        let opened: Result<Result<_, LinkError>, _> = timeout(settings.connect_timeout, opening).await;
        let transport = opened.map_err(|_| LinkError::ConnectTimeout(settings.connect_timeout))??;
        let mut ping = interval(settings.ping_every.max(Duration::from_millis(1)));
        ping.reset();
        Ok(Self { transport, idle_timeout: settings.idle_timeout, ping, heard: Instant::now() })
    }

    /// Returns the next message, text or binary, and pings the peer meanwhile. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    ///
    /// Returns the reason why the connection is lost: it has ended, the peer has fallen silent, or a message is too long.
    pub async fn next(&mut self) -> Result<Message, LinkError> {
        loop {
            let (silent_at, is_pinged) = (self.heard + self.idle_timeout, matches!(self.transport, Either::Left(_)));
            let message = tokio::select! {
                biased;
                message = self.transport.next() => message,
                _ = self.ping.tick(), if is_pinged => {
                    self.send(Message::Ping(Bytes::new())).await?;
                    if let Either::Left(socket) = &self.transport {
                        acknowledge_at_once(socket.get_ref());
                    }
                    continue;
                }
                () = sleep_until(silent_at), if is_pinged => return Err(LinkError::Idle(self.idle_timeout)),
            };
            self.heard = Instant::now();
            match message.transpose()? {
                Some(message @ (Message::Text(_) | Message::Binary(_))) => return Ok(message),
                Some(Message::Close(frame)) => return Err(closed(frame)),
                Some(_) => {}
                None => return Err(closed(None)),
            }
        }
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// Returns the reason why the connection is lost: it has ended, or the peer does not read.
    pub async fn send(&mut self, message: Message) -> Result<(), LinkError> {
        let sent = timeout(self.idle_timeout, self.transport.send(message)).await;
        Ok(sent.map_err(|_| LinkError::Idle(self.idle_timeout))??)
    }
}

/// Makes the kernel acknowledge arriving data at once, which it stops doing after a ping: then it considers the
/// connection interactive, and waits up to 40 ms for more data to send (tcp(7), `TCP_QUICKACK`). A server with Nagle's
/// algorithm sends the end of a message only after the acknowledgement of its beginning.
#[cfg(target_os = "linux")]
fn acknowledge_at_once(stream: &MaybeTlsStream<TcpStream>) {
    let socket = match stream {
        MaybeTlsStream::Plain(socket) => socket,
        MaybeTlsStream::Rustls(tls) => tls.get_ref().0,
        _ => return,
    };
    if let Err(error) = rustix::net::sockopt::set_tcp_quickack(socket, true) {
        tracing::debug!(%error, "the end of a message may be late after a ping");
    }
}

#[cfg(not(target_os = "linux"))]
fn acknowledge_at_once(_: &MaybeTlsStream<TcpStream>) {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Address, Connector, LinkSettings};

    #[test]
    fn pauses_grow_with_the_time_without_anything_usable() {
        let settings = LinkSettings {
            connect_timeout: Duration::ZERO,
            ping_every: Duration::ZERO,
            idle_timeout: Duration::ZERO,
            min_pause: Duration::from_millis(250),
            max_message: 0,
        };
        let mut connector = Connector::new(Address::WebSocket(String::new()), settings);
        let mut after = |seconds, was_reached| {
            connector.was_reached = was_reached;
            connector.pause(Duration::from_secs(seconds)).as_millis()
        };
        assert_eq!(
            [0, 2, 4, 8, 80, 240, 1_000].map(|at| after(at, true)),
            [250, 250, 500, 1_000, 10_000, 30_000, 30_000]
        );
        assert_eq!([0, 2, 4, 8, 80].map(|at| after(at, false)), [250, 250, 500, 1_000, 1_000]);
    }
}
