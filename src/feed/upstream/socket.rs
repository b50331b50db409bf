//! A connection to an upstream over WebSocket or IPC, which is opened again when it is lost.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use alloy_json_rpc::{Id, RequestPacket, Response, ResponsePacket, SerializedRequest, SubId};
use alloy_transport::{TransportErrorKind, TransportResult};
use alloy_transport_ws::{WebSocketConfig, WsConnect};
use bytes::{Buf, Bytes, BytesMut};
use futures::{
    SinkExt, StreamExt,
    future::try_join_all,
    stream::{SplitSink, SplitStream},
};
use serde_json::value::RawValue;
use tokio::{
    io::AsyncWriteExt,
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async_with_config,
    tungstenite::{Message, client::IntoClientRequest},
};
use tokio_util::codec::{Decoder, FramedRead};

use super::{http::install_tls, message::SocketMessage};

/// The address of an upstream that is reached over a connection of its own.
#[derive(Clone, Debug)]
pub(super) enum Address {
    /// A `ws://` or `wss://` URL. A user and a password in it become a header.
    WebSocket(String),
    /// The path of an IPC socket.
    Ipc(PathBuf),
}

/// The bounds of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct SocketLimits {
    /// The time in which a connection has to be opened, and an answer usually comes.
    pub timeout: Duration,
    /// The most bytes of a message.
    pub max_message: usize,
}

/// Sends requests over a connection to an upstream.
///
/// A task has the connection. While there is none, requests fail at once, and who sends them decides whether to send them
/// again.
#[derive(Debug)]
pub(super) struct Socket {
    // Not bounded, because each request waits for its answer, and the requests under way are bounded.
    requests: mpsc::UnboundedSender<Outgoing>,
    connection: Arc<AtomicU64>,
}

/// A request that waits for its answer.
#[derive(Debug)]
struct Outgoing {
    request: SerializedRequest,
    answer: oneshot::Sender<TransportResult<Response>>,
    /// The receiver of the notifications, if the request is a subscription.
    subscriber: Option<mpsc::Sender<Box<RawValue>>>,
}

impl Outgoing {
    fn reject(self, problem: &str) {
        // The caller may not wait any more.
        let _ = self.answer.send(Err(TransportErrorKind::custom_str(problem)));
    }
}

impl Socket {
    /// The most notifications of a subscription that wait to be received. Beyond them, notifications are dropped.
    const NOTIFICATIONS: usize = 16;

    /// Opens a connection, and opens it again whenever it is lost.
    ///
    /// # Errors
    ///
    /// Returns the cause if the first connection cannot be opened.
    pub async fn connect(address: Address, limits: SocketLimits) -> Result<Self, String> {
        let first = Link::open(&address, limits).await?;
        let (requests, outgoing) = mpsc::unbounded_channel();
        let connection = Arc::new(AtomicU64::new(1));
        tokio::spawn(keep_connected(address, limits, first, outgoing, connection.clone()));
        Ok(Self { requests, connection })
    }

    /// Returns the number of the newest connection, from 1.
    pub fn connection(&self) -> u64 {
        self.connection.load(Relaxed)
    }

    /// Sends a request, or each of a batch by itself, and waits for the answers.
    ///
    /// # Errors
    ///
    /// Returns the cause if there is no connection, or if it is lost before the answers have come.
    pub async fn send(&self, packet: RequestPacket) -> TransportResult<ResponsePacket> {
        match packet {
            RequestPacket::Single(request) => Ok(ResponsePacket::Single(self.send_one(request, None).await?)),
            RequestPacket::Batch(requests) => {
                let answers = requests.into_iter().map(|request| self.send_one(request, None));
                Ok(ResponsePacket::Batch(try_join_all(answers).await?))
            }
        }
    }

    /// Sends a request for a subscription. Returns its answer, and the notifications, which end with the connection.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`send`](Self::send).
    pub async fn subscribe(
        &self,
        request: SerializedRequest,
    ) -> TransportResult<(Response, mpsc::Receiver<Box<RawValue>>)> {
        let (subscriber, notifications) = mpsc::channel(Self::NOTIFICATIONS);
        Ok((self.send_one(request, Some(subscriber)).await?, notifications))
    }

    async fn send_one(
        &self,
        request: SerializedRequest,
        subscriber: Option<mpsc::Sender<Box<RawValue>>>,
    ) -> TransportResult<Response> {
        let (answer, answered) = oneshot::channel();
        // The task runs for as long as the sender lives, and it answers each request.
        let sent = self.requests.send(Outgoing { request, answer, subscriber });
        sent.map_err(|_| TransportErrorKind::backend_gone())?;
        answered.await.map_err(|_| TransportErrorKind::backend_gone())?
    }
}

/// The first pause before a lost connection is opened again, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Serves requests over `link`, and over the connections that follow it, until nobody can send any.
async fn keep_connected(
    address: Address,
    limits: SocketLimits,
    mut link: Link,
    mut outgoing: mpsc::UnboundedReceiver<Outgoing>,
    connection: Arc<AtomicU64>,
) {
    loop {
        let Some(mut problem) = link.serve(&mut outgoing).await else { return };
        tracing::warn!(problem, "the connection to the upstream is lost");
        let lost = Instant::now();
        link = loop {
            let pause = (lost.elapsed() / 4).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            let opening = async {
                tokio::time::sleep(pause).await;
                Link::open(&address, limits).await
            };
            let Some(opened) = reject_meanwhile(&mut outgoing, &problem, opening).await else { return };
            match opened {
                Ok(link) => break link,
                Err(error) => problem = error,
            }
        };
        tracing::info!("connected to the upstream again");
        connection.fetch_add(1, Relaxed);
    }
}

/// Rejects requests until `done` is ready. Returns `None` if nobody can send any more.
async fn reject_meanwhile<T>(
    outgoing: &mut mpsc::UnboundedReceiver<Outgoing>,
    problem: &str,
    done: impl Future<Output = T>,
) -> Option<T> {
    let mut done = std::pin::pin!(done);
    loop {
        tokio::select! {
            biased;
            done = &mut done => return Some(done),
            request = outgoing.recv() => request?.reject(problem),
        }
    }
}

/// An open connection.
struct Link {
    reader: LinkReader,
    writer: LinkWriter,
    limits: SocketLimits,
}

enum LinkReader {
    WebSocket(SplitStream<WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>>),
    Ipc(FramedRead<OwnedReadHalf, JsonFrames>),
}

enum LinkWriter {
    WebSocket(SplitSink<WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>, Message>),
    Ipc(OwnedWriteHalf),
}

impl Link {
    /// The time without a message after which the upstream is asked for one by a ping.
    const PING_AFTER: Duration = Duration::from_secs(5);

    async fn open(address: &Address, limits: SocketLimits) -> Result<Self, String> {
        let opening = async {
            match address {
                Address::WebSocket(url) => open_web_socket(url, limits).await,
                Address::Ipc(path) => {
                    let (reader, writer) =
                        UnixStream::connect(path).await.map_err(|error| error.to_string())?.into_split();
                    let frames = JsonFrames { most: limits.max_message, ..JsonFrames::default() };
                    Ok((LinkReader::Ipc(FramedRead::new(reader, frames)), LinkWriter::Ipc(writer)))
                }
            }
        };
        let opened = timeout(limits.timeout, opening).await;
        let (reader, writer) = opened.map_err(|_| format!("no connection within {:?}", limits.timeout))??;
        Ok(Self { reader, writer, limits })
    }

    /// Sends requests, and hands out their answers and notifications, for as long as the connection lives. Returns the reason
    /// of its end, or `None` if nobody can send any more.
    async fn serve(mut self, outgoing: &mut mpsc::UnboundedReceiver<Outgoing>) -> Option<String> {
        let mut waiting: HashMap<Id, Outgoing> = HashMap::new();
        let mut subscribers: HashMap<SubId, mpsc::Sender<Box<RawValue>>> = HashMap::new();
        let mut heard = Instant::now();
        let problem = loop {
            tokio::select! {
                request = outgoing.recv() => {
                    let request = request?;
                    let text = request.request.serialized().get().to_owned();
                    // Requests whose callers have stopped waiting may never be answered.
                    if waiting.len() == waiting.capacity() {
                        waiting.retain(|_, other| !other.answer.is_closed());
                    }
                    waiting.insert(request.request.id().clone(), request);
                    if let Err(problem) = self.write(Message::text(text)).await {
                        break problem;
                    }
                }
                message = self.reader.next() => {
                    heard = Instant::now();
                    let text = match message {
                        Some(Ok(Some(text))) => text,
                        Some(Ok(None)) => continue,
                        Some(Err(problem)) => break problem,
                        None => break "the upstream has closed the connection".to_owned(),
                    };
                    match SocketMessage::read(&text) {
                        Ok(SocketMessage::Notification { subscription, result }) => {
                            if let Some(subscriber) = subscribers.get(&subscription) {
                                // A subscriber that is slow asks for the newest block itself.
                                let _ = subscriber.try_send(result);
                            }
                        }
                        Ok(SocketMessage::Response(response)) => {
                            let Some(request) = waiting.remove(&response.id) else { continue };
                            if let Some(subscriber) = request.subscriber
                                && let Some(id) = response.payload.as_success()
                                && let Ok(id) = serde_json::from_str(id.get())
                            {
                                subscribers.insert(id, subscriber);
                            }
                            // The caller may not wait any more.
                            let _ = request.answer.send(Ok(response));
                        }
                        Err(error) => break format!("the answer is no JSON-RPC response: {error}"),
                    }
                }
                () = tokio::time::sleep_until(heard + Self::PING_AFTER) => {
                    heard = Instant::now();
                    if let Err(problem) = self.write(Message::Ping(Bytes::new())).await {
                        break problem;
                    }
                }
            }
        };
        waiting.into_values().for_each(|request| request.reject(&problem));
        Some(problem)
    }

    /// Writes a message. A ping does nothing over IPC.
    async fn write(&mut self, message: Message) -> Result<(), String> {
        let writing = async {
            match &mut self.writer {
                LinkWriter::WebSocket(socket) => socket.send(message).await.map_err(|error| error.to_string()),
                LinkWriter::Ipc(socket) => match message {
                    Message::Text(text) => socket.write_all(text.as_bytes()).await.map_err(|error| error.to_string()),
                    _ => Ok(()),
                },
            }
        };
        let written = timeout(self.limits.timeout, writing).await;
        written.unwrap_or_else(|_| Err("the upstream does not read what is sent".to_owned()))
    }
}

/// Opens a WebSocket whose small messages are sent at once. With Nagle's algorithm, the second message of a wave would wait for
/// the acknowledgement of the first, and so up to 40 ms.
async fn open_web_socket(url: &str, limits: SocketLimits) -> Result<(LinkReader, LinkWriter), String> {
    install_tls();
    let config =
        WebSocketConfig::default().max_message_size(Some(limits.max_message)).max_frame_size(Some(limits.max_message));
    let request = WsConnect::new(url).into_client_request().map_err(|error| error.to_string())?;
    let connecting = connect_async_with_config(request, Some(config), true);
    let (socket, _) = connecting.await.map_err(|error| error.to_string())?;
    let (writer, reader) = socket.split();
    Ok((LinkReader::WebSocket(reader), LinkWriter::WebSocket(writer)))
}

impl LinkReader {
    /// Returns the next message, or `Some(Ok(None))` for a sign of life that holds none.
    async fn next(&mut self) -> Option<Result<Option<Bytes>, String>> {
        match self {
            Self::WebSocket(socket) => Some(match socket.next().await? {
                Ok(Message::Close(frame)) => Err(match frame {
                    Some(frame) => format!("the upstream has closed the connection: {frame}"),
                    None => "the upstream has closed the connection".to_owned(),
                }),
                Ok(message @ (Message::Text(_) | Message::Binary(_))) => Ok(Some(message.into_data())),
                Ok(_) => Ok(None),
                Err(error) => Err(error.to_string()),
            }),
            Self::Ipc(socket) => Some(socket.next().await?.map(Some).map_err(|error| error.to_string())),
        }
    }
}

/// Cuts what comes over an IPC socket into JSON objects and lists. Nodes do not agree on what is between them.
#[derive(Debug, Default)]
struct JsonFrames {
    /// The most bytes of a message.
    most: usize,
    /// The bytes of the buffer that were looked at.
    seen: usize,
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
}

impl Decoder for JsonFrames {
    type Item = Bytes;
    type Error = std::io::Error;

    fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Bytes>, std::io::Error> {
        if self.depth == 0 {
            let between = buffer.iter().take_while(|byte| !matches!(byte, b'{' | b'[')).count();
            buffer.advance(between);
        }
        while let Some(byte) = buffer.get(self.seen) {
            self.seen += 1;
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = self.is_in_string,
                b'"' => self.is_in_string = !self.is_in_string,
                b'{' | b'[' if !self.is_in_string => self.depth += 1,
                b'}' | b']' if !self.is_in_string => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        let frame = buffer.split_to(self.seen).freeze();
                        self.seen = 0;
                        return Ok(Some(frame));
                    }
                }
                _ => {}
            }
        }
        if buffer.len() > self.most {
            return Err(std::io::Error::other(format!("the answer is longer than {} bytes", self.most)));
        }
        Ok(None)
    }
}
