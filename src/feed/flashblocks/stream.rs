//! The connection to a Flashblocks server: kept, checked and opened again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures::{SinkExt, StreamExt};
use tokio::{
    net::TcpStream,
    sync::mpsc::{Receiver, Sender, channel, error::TrySendError},
    task::AbortHandle,
    time::{sleep, sleep_until, timeout},
};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async_with_config,
    tungstenite::{self, Message, Utf8Bytes, protocol::WebSocketConfig},
};
use url::Url;

use super::decode::{DecodeError, Flashblock};

/// How a stream is kept.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where it is: ws or wss.
    pub url: Url,
    /// For a connection to be opened in, TLS and upgrade included.
    pub connect_timeout: Duration,
    /// How often the server is asked whether it is still there.
    pub ping_every: Duration,
    /// How long the server may say nothing at all, not even a pong, before the connection counts as lost.
    pub idle_timeout: Duration,
    /// How long sub-blocks may stay away before [`Event::Silent`].
    pub silent_after: Duration,
    /// How long they may stay away before the connection counts as lost, pongs or not: the server may be cut off from its builder.
    pub stalled_after: Duration,
    /// The longest wait before the second try; it doubles with each.
    pub min_backoff: Duration,
    /// The longest wait before any try.
    pub max_backoff: Duration,
    /// The most bytes of a message, as it comes.
    pub max_message: usize,
    /// The most bytes of a message, decompressed.
    pub max_decoded: usize,
    /// How many events may wait for their reader.
    pub capacity: usize,
    /// How many bytes of sub-blocks may wait for it, as JSON; one may always wait.
    pub max_waiting: usize,
}

impl Settings {
    /// The usual bounds, for a stream at `url`.
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

/// What happened on the stream.
#[derive(Clone, Debug)]
pub enum Event {
    /// The connection is open.
    Connected,
    /// A sub-block has come.
    Flashblock {
        /// The sub-block.
        flashblock: Arc<Flashblock>,
        /// When it had come.
        received: Instant,
    },
    /// A message came that is no sub-block.
    Garbage(DecodeError),
    /// The connection is open, and no sub-block has come for as long as [`Settings::silent_after`]. Told once, until the next comes.
    Silent,
    /// Sub-blocks were dropped, because the reader was too slow. What comes next is after them.
    Lagged {
        /// How many messages.
        missed: u64,
    },
    /// The connection is lost, or could not be opened. It is tried again.
    Disconnected(StreamError),
}

/// Why a connection is lost, or could not be opened. None of the texts has the URL in it: that may bear a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// It was not open in time.
    #[error("no connection within {} ms", .0.as_millis())]
    ConnectTimeout(Duration),
    /// The server answered with something else than a WebSocket.
    #[error("the server answered with HTTP status {0}, expected a WebSocket upgrade (101)")]
    Status(u16),
    /// The server closed it.
    #[error("the server closed the connection: {0}")]
    Closed(String),
    /// Nothing came, not even a pong.
    #[error("the server has said nothing for {} ms", .0.as_millis())]
    Idle(Duration),
    /// No sub-block came.
    #[error("no sub-block has come for {} ms", .0.as_millis())]
    Stalled(Duration),
    /// A message was longer than allowed.
    #[error("a message has more than {limit} bytes")]
    MessageTooLong {
        /// The most bytes.
        limit: usize,
    },
    /// Anything else: the network, TLS, the protocol.
    #[error("{0}")]
    Other(String),
}

/// A stream's reading end. The connection is closed when this is dropped.
#[derive(Debug)]
pub struct Events {
    receiver: Receiver<Event>,
    /// Bytes of the sub-blocks in the channel.
    waiting: Arc<AtomicUsize>,
    task: AbortHandle,
}

impl Events {
    /// The next event; none only when the runtime ends.
    pub async fn next(&mut self) -> Option<Event> {
        let event = self.receiver.recv().await?;
        if let Event::Flashblock { flashblock, .. } = &event {
            self.waiting.fetch_sub(flashblock.size, Relaxed);
        }
        Some(event)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Opens a stream and keeps it open. To be called on a tokio runtime.
pub fn open(settings: Settings) -> Events {
    let (sender, receiver) = channel(settings.capacity.max(1));
    let waiting = Arc::new(AtomicUsize::new(0));
    let task = tokio::spawn(keep(settings, sender, waiting.clone())).abort_handle();
    Events { receiver, waiting, task }
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Connects, reads until the connection is lost, waits, and so on.
async fn keep(settings: Settings, sender: Sender<Event>, waiting: Arc<AtomicUsize>) {
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
                // A server that takes connections and gives nothing is not to be asked again and again.
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
        // Full jitter: clients that were cut off together do not come back together.
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
        // What a peer can make this end owe it is small: pongs.
        .max_write_buffer_size(1 << 20);
    let connecting = connect_async_with_config(settings.url.as_str(), Some(config), true);
    match timeout(settings.connect_timeout, connecting).await {
        Ok(Ok((socket, _))) => Ok(socket),
        Ok(Err(error)) => Err(lost(error, settings)),
        Err(_) => Err(StreamError::ConnectTimeout(settings.connect_timeout)),
    }
}

/// One connection being read.
struct Reading<'a> {
    settings: &'a Settings,
    outbox: Outbox<'a>,
    /// Whether a sub-block has come.
    any: bool,
}

impl Reading<'_> {
    /// Reads until the connection is lost: that is the error. `Ok`: nobody reads the events any more.
    async fn read(&mut self, mut socket: Socket) -> Result<(), StreamError> {
        let (settings, sender) = (self.settings, self.outbox.sender);
        let mut ping = tokio::time::interval(settings.ping_every.max(Duration::from_millis(1)));
        ping.reset();
        let mut heard = tokio::time::Instant::now();
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
                    heard = tokio::time::Instant::now();
                    match message {
                        Some(Ok(message)) => if self.take(message)? {
                            (given, silent) = (heard, false);
                        },
                        Some(Err(error)) => return Err(lost(error, settings)),
                        None => return Err(StreamError::Closed("without a reason".to_owned())),
                    }
                }
                _ = ping.tick() => {
                    // A peer that reads nothing is as good as gone.
                    let sent = timeout(settings.idle_timeout, socket.send(Message::Ping(Default::default()))).await;
                    sent.map_err(|_| StreamError::Idle(settings.idle_timeout))?.map_err(|error| lost(error, settings))?;
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

    /// Takes a message, and returns whether it was a sub-block.
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
            Err(error) => {
                self.outbox.put(Event::Garbage(error));
                Ok(false)
            }
        }
    }
}

/// Events for a reader who may be slow: what there is no room for is dropped, counted and told.
struct Outbox<'a> {
    sender: &'a Sender<Event>,
    waiting: &'a AtomicUsize,
    max: usize,
    missed: u64,
}

impl Outbox<'_> {
    fn put(&mut self, event: Event) {
        // After a loss nothing may come before the event that tells of it.
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

    /// Waits for room and tells what was dropped. None where nobody reads any more.
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
        // It names the address it was given.
        Error::Url(error) => StreamError::Other(match error {
            tungstenite::error::UrlError::UnableToConnect(_) => "cannot connect".to_owned(),
            error => error.to_string(),
        }),
        error => StreamError::Other(error.to_string()),
    }
}

/// A server's reason to close, cut to what a log line bears.
fn describe(code: u16, reason: &Utf8Bytes) -> String {
    const LONGEST: usize = 123;
    let reason: String = reason.chars().filter(|char| !char.is_control()).take(LONGEST).collect();
    if reason.is_empty() { code.to_string() } else { format!("{code} {reason}") }
}
