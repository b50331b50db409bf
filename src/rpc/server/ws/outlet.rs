//! The sending end of a connection: its bounds, and the task that writes.

use std::sync::{
    Arc,
    atomic::{
        AtomicBool, AtomicU64, AtomicUsize,
        Ordering::{AcqRel, Relaxed},
    },
};

use bytes::Bytes;
use futures::{SinkExt, stream::SplitSink};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message, Utf8Bytes,
        protocol::{
            CloseFrame,
            frame::{
                Frame,
                coding::{CloseCode, Data, OpCode},
            },
        },
    },
};

use crate::rpc::{
    run::memory::SharedBytes,
    run::subscriptions::{Notification, Subscriber},
    server::{inbox::Inbox, link::Link},
};

/// The bounds of one connection.
#[derive(Clone, Copy, Debug)]
pub struct SocketBounds {
    /// Messages under way or unsent.
    pub max_in_flight: usize,
    /// Bytes unsent.
    pub max_unsent: usize,
    /// Notifications unsent.
    pub max_notifications: usize,
}

/// The WebSocket of a connection.
pub type Socket = WebSocketStream<Inbox<TokioIo<Upgraded>>>;

/// The most bytes of one frame. A longer answer is sent in several (RFC 6455, 5.4), so that no connection keeps a
/// buffer as long as its longest answer.
const FRAME: usize = 64 << 10;
/// Bytes that wait for the socket: a frame, its header, and the pongs between frames. A pong without room is dropped.
pub const WRITE_BUFFER: usize = 2 * FRAME;

/// A message for the writer.
pub enum Outgoing {
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
pub struct Unsent {
    notifications: AtomicUsize,
    pub bytes: AtomicUsize,
}

/// The sending end of a connection, with its bounds.
#[derive(Debug)]
pub struct Outlet {
    id: u64,
    /// The connection.
    pub link: Arc<Link>,
    /// The messages that are not sent yet.
    pub unsent: Unsent,
    bounds: SocketBounds,
    /// The writer's queue.
    pub out: mpsc::UnboundedSender<Outgoing>,
    /// Whether nothing can be subscribed any more.
    ended: AtomicBool,
    /// The reason why the connection must end, once there is one.
    pub ending: watch::Sender<Option<String>>,
}

impl Outlet {
    /// Creates the sending end of a connection, and passes its messages to `out`.
    pub fn new(link: Arc<Link>, bounds: SocketBounds, out: mpsc::UnboundedSender<Outgoing>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Relaxed);
        let (ended, ending) = (AtomicBool::new(false), watch::Sender::new(None));
        Self { id, link, unsent: Unsent::default(), bounds, out, ended, ending }
    }

    /// Counts bytes to be sent. Returns the reason to close if there are too many.
    fn count(&self, bytes: usize) -> Result<(), String> {
        if self.unsent.bytes.fetch_add(bytes, AcqRel) + bytes > self.bounds.max_unsent {
            return Err(format!("more than {} bytes are unsent", self.bounds.max_unsent));
        }
        Ok(())
    }

    /// Passes an answer to the writer, unless too much waits there already.
    pub fn answer(&self, text: Bytes, permit: Option<OwnedSemaphorePermit>) -> Result<(), String> {
        self.count(text.len())?;
        let _ = self.out.send(Outgoing::Answer(text, permit));
        Ok(())
    }

    /// Counts a notification to be sent. Returns the reason to close if there are too many, or too many bytes.
    fn count_notification(&self, size: usize) -> Result<SharedBytes, String> {
        let most = self.bounds.max_notifications;
        if self.unsent.notifications.fetch_add(1, AcqRel) >= most {
            return Err(format!("more than {most} notifications are unsent"));
        }
        self.count(size)?;
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
        match self.count_notification(notification.size()) {
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

/// Writes the messages until the connection is closed or broken, and returns the socket's end.
pub async fn write(
    mut sink: SplitSink<Socket, Message>,
    mut outgoing: mpsc::UnboundedReceiver<Outgoing>,
    outlet: Arc<Outlet>,
) -> SplitSink<Socket, Message> {
    let unsent = &outlet.unsent;
    while let Some(next) = outgoing.recv().await {
        let sent = match next {
            Outgoing::Answer(text, permit) => {
                let bytes = text.len();
                let sent = send(&mut sink, text).await;
                drop(permit);
                unsent.bytes.fetch_sub(bytes, AcqRel);
                sent
            }
            Outgoing::Notification(notification, held) => {
                let bytes = notification.size();
                // An ending connection is sent the reason next, and no further messages.
                let is_ending = outlet.ending.borrow().is_some();
                let sent = if is_ending { Ok(()) } else { send(&mut sink, notification.text().into()).await };
                drop((notification, held));
                unsent.notifications.fetch_sub(1, AcqRel);
                unsent.bytes.fetch_sub(bytes, AcqRel);
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
