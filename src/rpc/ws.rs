//! The WebSocket transport: the same messages as over HTTP, with many under way at once.
//!
//! One task reads a connection and another writes it. Requests run concurrently, and answers are sent as they are made.
//! While a client has its bound of messages under way or unsent, nothing more is read from it. The bytes that it has
//! not taken yet are bounded, too, and count in the node's memory for connections. A connection beyond that bound is
//! sent the reason and closed.

use std::{
    io,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{AcqRel, Relaxed},
        },
    },
    time::Duration,
};

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use bytes::Bytes;
use bytestring::ByteString;
use futures::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use http::{HeaderValue, Request, StatusCode, header};
use hyper::{body::Incoming, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use jsonrpsee::types::Id;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::JoinSet,
    time::{Instant, interval, timeout},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message, Utf8Bytes,
        error::{CapacityError, ProtocolError},
        handshake::server::create_response_with_body,
        protocol::{
            CloseFrame, Role, WebSocketConfig,
            frame::{
                Frame,
                coding::{CloseCode, Data, OpCode},
            },
        },
    },
};

use super::{
    connections::ConnectionEntry,
    error::RpcError,
    inbox::{Inbox, Pieces},
    link::Link,
    memory::SharedBytes,
    response::{AnswerBody, HttpResponse, refuse},
    service::{Session, failure},
    subscriptions::{Notification, Starting, Subscriber, Subscriptions},
};

/// The state that all WebSocket connections share.
#[derive(Debug)]
pub struct Sockets {
    /// The subscriptions.
    pub subscriptions: Arc<Subscriptions>,
    /// The bounds of one connection.
    pub bounds: Bounds,
    /// Turns true when the node stops.
    pub stopping: watch::Receiver<bool>,
}

/// The bounds of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Messages under way or unsent.
    pub max_in_flight: usize,
    /// Bytes unsent.
    pub max_unsent: usize,
    /// Notifications unsent.
    pub max_notifications: usize,
}

/// The time that an ending connection may take to send its last messages.
const GRACE: Duration = Duration::from_secs(5);
/// The time during which a peer's data is read after the close.
const LINGER: Duration = Duration::from_secs(1);
/// The most bytes of one frame. A longer answer is sent in several (RFC 6455, 5.4), so that no connection keeps a
/// buffer as long as its longest answer.
const FRAME: usize = 64 << 10;
/// Bytes that wait for the socket: a frame, its header, and the pongs between frames. A pong without room is dropped.
const WRITE_BUFFER: usize = 2 * FRAME;
/// The interval of pings.
const PING: Duration = Duration::from_secs(20);
/// The time that a peer may send nothing, not even a pong.
const SILENCE: Duration = Duration::from_secs(60);

type Socket = WebSocketStream<Inbox<TokioIo<Upgraded>>>;

/// The subprotocol of presim's page.
const PROTOCOL: &str = "presim";
/// The beginning of the subprotocol that is a token: `presim.token.` and the token in base64url (RFC 4648, 5).
const TOKEN_PROTOCOL: &str = "presim.token.";

/// The reason why a token that a WebSocket offers cannot be read. The token is not shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the subprotocol {TOKEN_PROTOCOL}…: no base64url: expected the token in base64url without padding")]
pub struct OfferedTokenError;

/// Returns the subprotocols that a request offers, in order.
fn offered<B>(request: &Request<B>) -> impl Iterator<Item = &str> {
    let values = request.headers().get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).map(str::trim)
}

/// Returns the token that a WebSocket upgrade offers among its subprotocols.
pub fn offered_token<B>(request: &Request<B>) -> Option<Result<Vec<u8>, OfferedTokenError>> {
    let text = offered(request).find_map(|protocol| protocol.strip_prefix(TOKEN_PROTOCOL))?;
    is_upgrade(request).then(|| BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| OfferedTokenError))
}

/// Returns the subprotocol that the node selects among those that a request offers (RFC 6455, 4.2.2): the page's, so
/// that the answer does not repeat the token, or else the one with the token, because a browser ends a connection whose
/// offers are all declined.
fn selected<B>(request: &Request<B>) -> Option<HeaderValue> {
    let named = offered(request).find(|protocol| *protocol == PROTOCOL);
    let selected = named.or_else(|| offered(request).find(|protocol| protocol.starts_with(TOKEN_PROTOCOL)))?;
    let mut selected = HeaderValue::from_str(selected).ok()?;
    selected.set_sensitive(true);
    Some(selected)
}

/// Returns whether a request asks for a WebSocket.
pub fn is_upgrade<B>(request: &Request<B>) -> bool {
    let upgrade = request.headers().get(header::UPGRADE).map(HeaderValue::as_bytes);
    upgrade.is_some_and(|value| value.eq_ignore_ascii_case(b"websocket"))
}

impl Sockets {
    /// Upgrades a request, and serves the connection until it ends.
    pub fn accept(
        &self,
        request: Request<Incoming>,
        session: Session,
        link: Arc<Link>,
        entry: Arc<ConnectionEntry>,
    ) -> HttpResponse {
        let mut response = match create_response_with_body(&request, AnswerBody::default) {
            Ok(response) => response,
            Err(error) => {
                return refuse(StatusCode::BAD_REQUEST, RpcError::request(format!("WebSocket upgrade: {error}")));
            }
        };
        if let Some(selected) = selected(&request) {
            response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, selected);
        }
        if !entry.upgrade() {
            return refuse(StatusCode::SERVICE_UNAVAILABLE, RpcError::limit("too many WebSocket connections are open"));
        }
        let (bounds, stopping, subscriptions) = (self.bounds, self.stopping.clone(), self.subscriptions.clone());
        tokio::spawn(async move {
            // Messages slightly beyond the limit are read and answered with an error. Messages far beyond it are not
            // read.
            let config = WebSocketConfig::default()
                .max_message_size(Some(session.limits.max_body.saturating_mul(2)))
                .max_frame_size(Some(session.limits.max_body.saturating_mul(2)))
                .write_buffer_size(0)
                .max_write_buffer_size(WRITE_BUFFER);
            match hyper::upgrade::on(request).await {
                Ok(upgraded) => {
                    let pieces = Arc::new(Pieces::new(link.clone()));
                    let socket = Inbox::new(TokioIo::new(upgraded), pieces.clone());
                    let socket = WebSocketStream::from_raw_socket(socket, Role::Server, Some(config)).await;
                    serve(socket, link, pieces, session, bounds, subscriptions, stopping).await;
                }
                Err(error) => tracing::debug!(%error, "a WebSocket upgrade failed"),
            }
            drop(entry);
        });
        response
    }
}

/// Returns when the node stops.
pub async fn stopped(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// Returns the reason when a connection must end.
async fn told_to_end(ending: &mut watch::Receiver<Option<String>>) -> String {
    let told = ending.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
    match told {
        Some(reason) => reason,
        // The sender is gone, so the node never stops.
        None => std::future::pending().await,
    }
}

/// A message for the writer.
enum Outgoing {
    /// An answer, and its message's permit.
    Answer(Bytes, Option<OwnedSemaphorePermit>),
    /// A notification, and its bytes.
    Notification(Notification, SharedBytes),
    /// A ping.
    Ping,
    /// The close, and its reason.
    Close(CloseCode, String),
}

/// The bytes and notifications that are not sent yet.
#[derive(Debug, Default)]
struct Owed {
    notifications: AtomicUsize,
    bytes: AtomicUsize,
}

/// The sending end of a connection, with its bounds.
#[derive(Debug)]
struct Outlet {
    id: u64,
    link: Arc<Link>,
    owed: Owed,
    bounds: Bounds,
    out: mpsc::UnboundedSender<Outgoing>,
    /// Whether nothing can be subscribed any more.
    ended: AtomicBool,
    /// The reason why the connection must end, once there is one.
    ending: watch::Sender<Option<String>>,
}

impl Outlet {
    fn new(link: Arc<Link>, bounds: Bounds, out: mpsc::UnboundedSender<Outgoing>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Relaxed);
        let (ended, ending) = (AtomicBool::new(false), watch::Sender::new(None));
        Self { id, link, owed: Owed::default(), bounds, out, ended, ending }
    }

    /// Counts bytes to be sent. Returns the reason to close if there are too many.
    fn owe(&self, bytes: usize) -> Result<(), String> {
        if self.owed.bytes.fetch_add(bytes, AcqRel) + bytes > self.bounds.max_unsent {
            return Err(format!("more than {} bytes are unsent", self.bounds.max_unsent));
        }
        Ok(())
    }

    /// Passes an answer to the writer, unless too much waits there already.
    fn answer(&self, text: Bytes, permit: Option<OwnedSemaphorePermit>) -> Result<(), String> {
        self.owe(text.len())?;
        let _ = self.out.send(Outgoing::Answer(text, permit));
        Ok(())
    }

    /// Counts a notification to be sent. Returns the reason to close if there are too many, or too many bytes.
    fn owe_notification(&self, size: usize) -> Result<SharedBytes, String> {
        let most = self.bounds.max_notifications;
        if self.owed.notifications.fetch_add(1, AcqRel) >= most {
            return Err(format!("more than {most} notifications are unsent"));
        }
        self.owe(size)?;
        let no_room = || "its unsent notifications find no room (--max-memory-io)".to_owned();
        self.link.share().try_share(size + ENTRY).ok_or_else(no_room)
    }
}

/// The bytes of a notification beside its text.
const ENTRY: usize = 128;

impl Subscriber for Outlet {
    fn id(&self) -> u64 {
        self.id
    }

    fn notify(&self, notification: Notification) -> bool {
        match self.owe_notification(notification.size()) {
            Ok(held) => self.out.send(Outgoing::Notification(notification, held)).is_ok(),
            Err(reason) => {
                tracing::info!(connection = self.id, reason, "a slow subscriber is disconnected");
                self.ending.send_replace(Some(format!("slow subscriber: {reason}")));
                false
            }
        }
    }

    fn end(&self) {
        self.ended.store(true, Relaxed);
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }
}

async fn serve(
    socket: Socket,
    link: Arc<Link>,
    pieces: Arc<Pieces>,
    session: Session,
    bounds: Bounds,
    subscriptions: Arc<Subscriptions>,
    stopping: watch::Receiver<bool>,
) {
    let (sink, mut stream) = socket.split();
    let (out, outgoing) = mpsc::unbounded_channel();
    let grace = GRACE.min(link.timeout());
    let outlet = Arc::new(Outlet::new(link, bounds, out));
    let mut writer = tokio::spawn(write(sink, outgoing, outlet.clone()));
    let reader = ConnectionReader {
        session,
        outlet: outlet.clone(),
        pieces,
        subscriptions: subscriptions.clone(),
        permits: Arc::new(Semaphore::new(bounds.max_in_flight.min(Semaphore::MAX_PERMITS))),
        running: JoinSet::new(),
    };
    tokio::select! {
        (code, reason) = reader.read(&mut stream, stopping) => {
            subscriptions.forget(outlet.as_ref());
            let _ = outlet.out.send(Outgoing::Close(code, reason));
            match timeout(grace, &mut writer).await {
                Ok(Ok(sink)) => linger(sink, stream).await,
                // A peer that does not take the last messages is disconnected.
                _ => writer.abort(),
            }
        }
        // The peer is gone, so its requests are dropped with the reader.
        _ = &mut writer => subscriptions.forget(outlet.as_ref()),
    }
}

/// Reads for a moment what the peer is still sending, because closing with unread bytes would reset the connection and
/// lose the last messages.
async fn linger(sink: SplitSink<Socket, Message>, stream: SplitStream<Socket>) {
    let Ok(mut socket) = sink.reunite(stream) else { return };
    let _ = timeout(LINGER, tokio::io::copy(socket.get_mut().uncounted(), &mut tokio::io::sink())).await;
}

async fn write(
    mut sink: SplitSink<Socket, Message>,
    mut outgoing: mpsc::UnboundedReceiver<Outgoing>,
    outlet: Arc<Outlet>,
) -> SplitSink<Socket, Message> {
    let owed = &outlet.owed;
    while let Some(next) = outgoing.recv().await {
        let sent = match next {
            Outgoing::Answer(text, permit) => {
                let bytes = text.len();
                let sent = send(&mut sink, text).await;
                drop(permit);
                owed.bytes.fetch_sub(bytes, AcqRel);
                sent
            }
            Outgoing::Notification(notification, held) => {
                let bytes = notification.size();
                // An ending connection is sent the reason next, and no further messages.
                let is_ending = outlet.ending.borrow().is_some();
                let sent = if is_ending { Ok(()) } else { send(&mut sink, notification.text().into()).await };
                drop((notification, held));
                owed.notifications.fetch_sub(1, AcqRel);
                owed.bytes.fetch_sub(bytes, AcqRel);
                sent
            }
            Outgoing::Ping => sink.send(Message::Ping(Bytes::new())).await,
            Outgoing::Close(code, reason) => {
                let reason = Utf8Bytes::from(reason);
                let _ = sink.send(Message::Close(Some(CloseFrame { code, reason }))).await;
                let _ = sink.close().await;
                return sink;
            }
        };
        if sent.is_err() {
            break;
        }
    }
    sink
}

/// Sends a text, in several frames if it is long.
async fn send(sink: &mut SplitSink<Socket, Message>, mut text: Bytes) -> Result<(), tungstenite::Error> {
    // Pongs may wait for the socket, and a frame needs the buffer to itself.
    sink.flush().await?;
    if text.len() <= FRAME {
        return sink.send(text_message(text)).await;
    }
    let mut kind = Data::Text;
    while !text.is_empty() {
        let part = text.split_to(text.len().min(FRAME));
        let frame = Frame::message(part, OpCode::Data(kind), text.is_empty());
        sink.send(Message::Frame(frame)).await?;
        kind = Data::Continue;
    }
    Ok(())
}

/// Returns the text as a message. JSON is valid UTF-8.
fn text_message(text: Bytes) -> Message {
    match Utf8Bytes::try_from(text) {
        Ok(text) => Message::Text(text),
        Err(_) => Message::Text(Utf8Bytes::from_static("null")),
    }
}

/// The reader of a connection, which runs its requests.
struct ConnectionReader {
    session: Session,
    outlet: Arc<Outlet>,
    pieces: Arc<Pieces>,
    subscriptions: Arc<Subscriptions>,
    /// Permits for messages under way or unsent.
    permits: Arc<Semaphore>,
    running: JoinSet<Result<(), String>>,
}

impl ConnectionReader {
    /// Reads until the connection is to end, and returns the reason.
    async fn read(
        mut self,
        stream: &mut SplitStream<Socket>,
        mut stopping: watch::Receiver<bool>,
    ) -> (CloseCode, String) {
        let mut pings = interval(PING);
        let mut heard = Instant::now();
        let mut ending = self.outlet.ending.subscribe();
        let link = self.outlet.link.clone();
        let caller = self.session.caller.clone();
        let withdrawn = async {
            match &caller.client {
                Some(client) => client.withdrawn().await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(withdrawn);
        let mut permit = None;
        loop {
            if permit.is_none() {
                permit = self.permits.clone().try_acquire_owned().ok();
            }
            tokio::select! {
                // Backpressure: at the bound of messages under way or unsent, nothing is read.
                granted = self.permits.clone().acquire_owned(), if permit.is_none() => {
                    permit = granted.ok();
                    heard = Instant::now();
                }
                message = stream.next(), if permit.is_some() => {
                    heard = Instant::now();
                    match message {
                        Some(Ok(message)) => {
                            if let Err(reason) = self.take(message, &mut permit) {
                                return self.tell(reason);
                            }
                        }
                        Some(Err(error)) => return self.broken(&error),
                        None => return (CloseCode::Normal, String::new()),
                    }
                }
                Some(done) = self.running.join_next(), if !self.running.is_empty() => {
                    if let Ok(Err(reason)) = done {
                        return self.tell(reason);
                    }
                }
                reason = told_to_end(&mut ending) => return self.tell(reason),
                () = &mut withdrawn => {
                    let reason = "unauthorized: the token was withdrawn";
                    self.last_words(RpcError::new(-32000, reason));
                    return (CloseCode::Policy, reason.to_owned());
                }
                () = link.closed() => {
                    return self.tell(link.problem().unwrap_or("it stood still (--io-timeout-ms)").to_owned());
                }
                _ = pings.tick() => {
                    if permit.is_some() && heard.elapsed() > SILENCE {
                        return (CloseCode::Away, "no sign of life".to_owned());
                    }
                    let _ = self.outlet.out.send(Outgoing::Ping);
                }
                () = stopped(&mut stopping) => {
                    // Requests under way are still answered.
                    let all = async { while self.running.join_next().await.is_some() {} };
                    let _ = timeout(GRACE, all).await;
                    return (CloseCode::Away, "the node is stopping".to_owned());
                }
            }
        }
    }

    /// Starts to answer a message, which takes the permit if it needs an answer.
    fn take(&mut self, message: Message, permit: &mut Option<OwnedSemaphorePermit>) -> Result<(), String> {
        let bytes = match message {
            Message::Text(text) => Bytes::from(text),
            Message::Binary(bytes) => bytes,
            Message::Ping(payload) | Message::Pong(payload) => {
                self.pieces.control_frame(payload.len());
                return Ok(());
            }
            Message::Frame(_) | Message::Close(_) => return Ok(()),
        };
        let held = self.pieces.message();
        let permit = permit.take();
        let outlet = self.outlet.clone();
        let limit = self.session.limits.max_body;
        if bytes.len() > limit {
            return outlet.answer(self.session.refuse(too_large(limit)), permit);
        }
        let body = match ByteString::try_from(bytes) {
            Ok(body) => body,
            Err(error) => {
                let error = RpcError::parse(format!("parse error: not UTF-8: {error}"));
                return outlet.answer(self.session.refuse(error), permit);
            }
        };
        let session = self.session.clone();
        let dialect = self.session.caller.dialect;
        let starting = Arc::new(Starting::new(self.subscriptions.clone(), outlet.clone(), dialect, permit));
        self.running.spawn(async move {
            let published = session.front.published();
            let reply = session.answer(body, held, &published, Some(&starting)).await;
            starting.begin(|permit| outlet.answer(reply.text, permit))
        });
        Ok(())
    }

    /// Returns the close of a connection beyond a bound, after sending it the reason as its last message.
    fn tell(&self, reason: String) -> (CloseCode, String) {
        self.last_words(RpcError::limit(format!("closing the connection: {reason}")));
        (CloseCode::Policy, reason)
    }

    fn broken(&self, error: &tungstenite::Error) -> (CloseCode, String) {
        match error {
            tungstenite::Error::Capacity(CapacityError::MessageTooLong { .. }) => {
                let error = too_large(self.session.limits.max_body);
                self.last_words(error.clone());
                (CloseCode::Size, error.into_object().message().to_owned())
            }
            tungstenite::Error::Io(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                let error = self.outlet.link.share().memory().full("a message", self.pieces.bytes());
                self.last_words(error.clone());
                (CloseCode::Size, "a message finds no room (--max-memory-io)".to_owned())
            }
            tungstenite::Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => {
                (CloseCode::Normal, String::new())
            }
            other => (CloseCode::Protocol, other.to_string().chars().take(100).collect()),
        }
    }

    fn last_words(&self, error: RpcError) {
        let text = failure(&Id::Null, error);
        self.outlet.owed.bytes.fetch_add(text.len(), AcqRel);
        let held = self.outlet.link.share().take_always(text.len());
        let _ = self.outlet.out.send(Outgoing::Answer(held.around(text), None));
    }
}

fn too_large(limit: usize) -> RpcError {
    RpcError::limit(format!("message too large: at most {limit} bytes"))
}
