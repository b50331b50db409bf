//! The connection to a Flashblocks server: kept, checked and opened again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures::{SinkExt, StreamExt};
use tokio::{
    net::TcpStream,
    runtime::Handle,
    sync::mpsc::{Receiver, Sender, channel, error::TrySendError},
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async_with_config,
    tungstenite::{self, Message, Utf8Bytes, protocol::WebSocketConfig},
};
use url::Url;

use super::decode::{DecodeError, Flashblock};

/// The settings of a stream.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The server's URL: ws or wss.
    pub url: Url,
    /// The time-out for opening a connection, TLS and upgrade included.
    pub connect_timeout: Duration,
    /// The interval of pings.
    pub ping_every: Duration,
    /// The time without any message, not even a pong, after which the connection counts as lost.
    pub idle_timeout: Duration,
    /// The time without sub-blocks after which [`Event::Silent`] is sent.
    pub silent_after: Duration,
    /// The time without sub-blocks after which the connection counts as lost, pongs or not, because the server may be
    /// cut off from its builder.
    pub stalled_after: Duration,
    /// The longest pause before the second try. It doubles with each try.
    pub min_backoff: Duration,
    /// The longest pause before any try.
    pub max_backoff: Duration,
    /// The most bytes of a message as received.
    pub max_message: usize,
    /// The most bytes of a message after decompression.
    pub max_decoded: usize,
    /// The number of events that may wait for their reader.
    pub capacity: usize,
    /// The bytes of sub-blocks, as JSON, that may wait for their reader. One sub-block may always wait.
    pub max_waiting: usize,
}

impl Settings {
    /// Returns the usual bounds, for a stream at `url`.
    pub const fn new(url: Url) -> Self {
        Self {
            url,
            connect_timeout: Duration::from_secs(5),
            ping_every: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(15),
            silent_after: Duration::from_secs(2),
            stalled_after: Duration::from_secs(30),
            min_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(10),
            max_message: 16 << 20,
            max_decoded: 32 << 20,
            capacity: 256,
            max_waiting: 64 << 20,
        }
    }
}

/// An event of the stream.
#[derive(Clone, Debug)]
pub enum Event {
    /// The connection is open.
    Connected,
    /// A sub-block has arrived.
    Flashblock {
        /// The sub-block.
        flashblock: Arc<Flashblock>,
        /// The time of arrival.
        received: Instant,
    },
    /// A message has arrived that is not a sub-block.
    Garbage(DecodeError),
    /// The connection is open, but no sub-block has arrived for [`Settings::silent_after`]. Sent once, until the next
    /// one arrives.
    Silent,
    /// Sub-blocks were dropped, because the reader was too slow. The next event comes after them.
    Lagged {
        /// The number of dropped messages.
        missed: u64,
    },
    /// The connection was lost, or could not be opened. The stream tries again.
    Disconnected(StreamError),
}

/// The reason why a connection was lost or could not be opened. No text contains the URL, which may hold a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The connection was not open in time.
    #[error("no connection within {} ms", .0.as_millis())]
    ConnectTimeout(Duration),
    /// The server answered with this HTTP status instead of a WebSocket.
    #[error("the server answered with HTTP status {0}, expected a WebSocket upgrade (101)")]
    Status(u16),
    /// The server closed the connection.
    #[error("the server closed the connection: {0}")]
    Closed(String),
    /// Nothing arrived, not even a pong.
    #[error("the server has sent nothing for {} ms", .0.as_millis())]
    Idle(Duration),
    /// No sub-block arrived.
    #[error("no sub-block has arrived for {} ms", .0.as_millis())]
    Stalled(Duration),
    /// A message was longer than allowed.
    #[error("a message has more than {limit} bytes")]
    MessageTooLong { limit: usize },
    /// Another failure: of the network, of TLS, or of the protocol.
    #[error("{0}")]
    Other(String),
}

/// The reading end of a stream. Dropping it closes the connection.
#[derive(Debug)]
pub struct Events {
    receiver: Receiver<Event>,
    /// Bytes of the sub-blocks in the channel.
    waiting: Arc<AtomicUsize>,
    /// The task that reads the connection, if there is one, and how it was begun.
    task: Option<StreamTask>,
}

#[derive(Debug)]
struct StreamTask {
    settings: Settings,
    runtime: Handle,
    _task: JoinSet<()>,
}

impl Events {
    /// Creates the reading end of a stream whose events come through `receiver`.
    pub fn from_receiver(receiver: Receiver<Event>) -> Self {
        Self { receiver, waiting: Arc::default(), task: None }
    }

    /// Opens the stream again with a new task, and drops the events that wait. Returns false, and does nothing, if the events
    /// come from elsewhere.
    pub fn reopen(&mut self) -> bool {
        let Some(StreamTask { settings, runtime, .. }) = &self.task else { return false };
        let reopened = open_on(runtime.clone(), settings.clone());
        *self = reopened;
        true
    }

    /// Returns the next event; `None` only if the task that reads the stream has ended.
    pub async fn next(&mut self) -> Option<Event> {
        let event = self.receiver.recv().await?;
        if let Event::Flashblock { flashblock, .. } = &event {
            // Saturates, because what comes from elsewhere is not counted.
            let _ =
                self.waiting.fetch_update(Relaxed, Relaxed, |waiting| Some(waiting.saturating_sub(flashblock.size)));
        }
        Some(event)
    }
}

/// Opens a stream and keeps it open. Must be called on a tokio runtime.
pub fn open(settings: Settings) -> Events {
    open_on(Handle::current(), settings)
}

fn open_on(runtime: Handle, settings: Settings) -> Events {
    let (sender, receiver) = channel(settings.capacity.max(1));
    let waiting = Arc::new(AtomicUsize::new(0));
    let mut task = JoinSet::new();
    task.spawn_on(stay_connected(settings.clone(), sender, waiting.clone()), &runtime);
    Events { receiver, waiting, task: Some(StreamTask { settings, runtime, _task: task }) }
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Connects, reads until the connection is lost, pauses, and repeats.
async fn stay_connected(settings: Settings, sender: Sender<Event>, waiting: Arc<AtomicUsize>) {
    let mut backoff = backoff(&settings);
    loop {
        let lost = match connect(&settings).await {
            Ok(socket) => {
                if sender.send(Event::Connected).await.is_err() {
                    return;
                }
                let outbox = Outbox { sender: &sender, waiting: &waiting, max: settings.max_waiting, missed: 0 };
                let mut reading = Reading { settings: &settings, outbox, any: false };
                let Err(lost) = reading.read(socket).await else { return };
                let missed = reading.outbox.missed;
                if missed > 0 && sender.send(Event::Lagged { missed }).await.is_err() {
                    return;
                }
                // A server that accepts connections and sends nothing is not asked again at once.
                if reading.any {
                    backoff = self::backoff(&settings);
                }
                lost
            }
            Err(error) => error,
        };
        if sender.send(Event::Disconnected(lost)).await.is_err() {
            return;
        }
        let longest = backoff.next().unwrap_or(settings.max_backoff);
        // Full jitter, so that clients that were cut off together do not return together.
        sleep(longest.mul_f64(rand::random())).await;
    }
}

fn backoff(settings: &Settings) -> ExponentialBackoff {
    let builder = ExponentialBuilder::new().with_min_delay(settings.min_backoff).with_max_delay(settings.max_backoff);
    builder.without_max_times().build()
}

async fn connect(settings: &Settings) -> Result<Socket, StreamError> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(settings.max_message))
        .max_frame_size(Some(settings.max_message))
        // A peer can only make this end owe it pongs, which are small.
        .max_write_buffer_size(1 << 20);
    let connecting = connect_async_with_config(settings.url.as_str(), Some(config), true);
    match timeout(settings.connect_timeout, connecting).await {
        Ok(Ok((socket, _))) => Ok(socket),
        Ok(Err(error)) => Err(lost(error, settings)),
        Err(_) => Err(StreamError::ConnectTimeout(settings.connect_timeout)),
    }
}

/// Makes the kernel acknowledge what arrives at once, which it no longer does after a ping: then it takes the connection
/// for a dialogue, and waits up to 40 ms for more to send (tcp(7), `TCP_QUICKACK`). A server with Nagle's algorithm sends
/// the end of a message only after the acknowledgement of its beginning.
#[cfg(target_os = "linux")]
fn acknowledge_at_once(stream: &MaybeTlsStream<TcpStream>) {
    let socket = match stream {
        MaybeTlsStream::Plain(socket) => socket,
        MaybeTlsStream::Rustls(tls) => tls.get_ref().0,
        _ => return,
    };
    if let Err(error) = rustix::net::sockopt::set_tcp_quickack(socket, true) {
        tracing::debug!(%error, "the end of a Flashblock may be late after a ping");
    }
}

#[cfg(not(target_os = "linux"))]
fn acknowledge_at_once(_: &MaybeTlsStream<TcpStream>) {}

/// The reading of one connection.
struct Reading<'a> {
    settings: &'a Settings,
    outbox: Outbox<'a>,
    /// Whether a sub-block has arrived.
    any: bool,
}

impl Reading<'_> {
    /// Reads until the connection is lost, and returns the reason as an error; `Ok` if no one reads the events any
    /// more.
    async fn read(&mut self, mut socket: Socket) -> Result<(), StreamError> {
        let (settings, sender) = (self.settings, self.outbox.sender);
        let mut ping = tokio::time::interval(settings.ping_every.max(Duration::from_millis(1)));
        ping.reset();
        let mut heard = Instant::now();
        let mut given = heard;
        let mut silent = false;
        loop {
            let idle = heard + settings.idle_timeout;
            let stalled = given + settings.stalled_after;
            tokio::select! {
                biased;
                () = sender.closed() => return Ok(()),
                room = self.outbox.room(), if self.outbox.missed > 0 => if room.is_none() { return Ok(()) },
                message = socket.next() => {
                    heard = Instant::now();
                    match message {
                        Some(Ok(message)) => if self.take(message)? {
                            (given, silent) = (heard, false);
                        },
                        Some(Err(error)) => return Err(lost(error, settings)),
                        None => return Err(StreamError::Closed("without a reason".to_owned())),
                    }
                }
                _ = ping.tick() => {
                    // A peer that does not read is treated as lost.
                    let sent = timeout(settings.idle_timeout, socket.send(Message::Ping(Default::default()))).await;
                    sent.map_err(|_| StreamError::Idle(settings.idle_timeout))?.map_err(|error| lost(error, settings))?;
                    acknowledge_at_once(socket.get_ref());
                }
                () = sleep_until(idle) => return Err(StreamError::Idle(settings.idle_timeout)),
                () = sleep_until(stalled) => return Err(StreamError::Stalled(settings.stalled_after)),
                () = sleep_until(given + settings.silent_after), if !silent => {
                    silent = true;
                    self.outbox.put(Event::Silent);
                }
            }
        }
    }

    /// Handles a message, and returns whether it was a sub-block.
    fn take(&mut self, message: Message) -> Result<bool, StreamError> {
        let received = Instant::now();
        let limit = self.settings.max_decoded;
        let decoded = match message {
            Message::Text(text) => Flashblock::from_text(text.as_bytes(), limit),
            Message::Binary(bytes) => Flashblock::from_binary(&bytes, limit),
            Message::Close(frame) => {
                let reason = frame
                    .map_or_else(|| "without a reason".to_owned(), |frame| describe(frame.code.into(), &frame.reason));
                return Err(StreamError::Closed(reason));
            }
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => return Ok(false),
        };
        match decoded {
            Ok(flashblock) => {
                self.any = true;
                self.outbox.put(Event::Flashblock { flashblock: Arc::new(flashblock), received });
                Ok(true)
            }
            // The next block begins with an index 0, whether or not the one before was said to be complete.
            Err(DecodeError::End { .. }) => Ok(false),
            Err(error) => {
                self.outbox.put(Event::Garbage(error));
                Ok(false)
            }
        }
    }
}

/// Events for a reader who may be slow. Events without room are dropped and counted, and the reader is notified of
/// their number.
struct Outbox<'a> {
    sender: &'a Sender<Event>,
    waiting: &'a AtomicUsize,
    max: usize,
    missed: u64,
}

impl Outbox<'_> {
    fn put(&mut self, event: Event) {
        // After a loss, the event that reports it comes first.
        if self.missed > 0 {
            self.missed += 1;
            return;
        }
        let size = if let Event::Flashblock { flashblock, .. } = &event { flashblock.size } else { 0 };
        let before = self.waiting.fetch_add(size, Relaxed);
        let has_room = before == 0 || before.saturating_add(size) <= self.max;
        if !has_room || matches!(self.sender.try_send(event), Err(TrySendError::Full(_))) {
            self.waiting.fetch_sub(size, Relaxed);
            self.missed = 1;
        }
    }

    /// Waits for room and reports the dropped events. `None` if no one reads any more.
    async fn room(&mut self) -> Option<()> {
        let permit = self.sender.reserve().await.ok()?;
        permit.send(Event::Lagged { missed: std::mem::take(&mut self.missed) });
        Some(())
    }
}

fn lost(error: tungstenite::Error, settings: &Settings) -> StreamError {
    use tungstenite::{Error, error::CapacityError};
    match error {
        Error::ConnectionClosed | Error::AlreadyClosed => StreamError::Closed("without a reason".to_owned()),
        Error::Http(response) => StreamError::Status(response.status().as_u16()),
        Error::Capacity(CapacityError::MessageTooLong { .. }) => {
            StreamError::MessageTooLong { limit: settings.max_message }
        }
        // The library's error names the address, which is hidden here.
        Error::Url(error) => StreamError::Other(match error {
            tungstenite::error::UrlError::UnableToConnect(_) => "cannot connect".to_owned(),
            error => error.to_string(),
        }),
        error => StreamError::Other(error.to_string()),
    }
}

/// Returns a server's reason to close, shortened for a log line.
fn describe(code: u16, reason: &Utf8Bytes) -> String {
    const MAX_LENGTH: usize = 123;
    let reason: String = reason.chars().filter(|char| !char.is_control()).take(MAX_LENGTH).collect();
    if reason.is_empty() { code.to_string() } else { format!("{code} {reason}") }
}
