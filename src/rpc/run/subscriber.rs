//! The receiver of a connection's answers and notifications: a WebSocket, with bounds on unsent bytes.

use std::sync::{
    Arc,
    atomic::{
        AtomicBool, AtomicU64, AtomicUsize,
        Ordering::{AcqRel, Relaxed},
    },
};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::rpc::limits::memory::{MemoryQuota, SharedBytes};

/// The bounds of one connection.
#[derive(Clone, Copy, Debug)]
pub struct SocketBounds {
    /// Messages in progress or unsent.
    pub max_in_flight: usize,
    /// Bytes unsent.
    pub max_unsent: usize,
    /// Notifications unsent.
    pub max_notifications: usize,
}

/// A notification of a subscription. Its text is assembled when it is sent; until then all subscribers share the
/// result.
#[derive(Clone, Debug)]
pub struct Notification {
    pub prefix: Bytes,
    pub result: Bytes,
}

impl Notification {
    const END: &[u8] = b"}}";

    /// Returns the length of the text in bytes.
    pub const fn size(&self) -> usize {
        self.prefix.len() + self.result.len() + Self::END.len()
    }

    /// Returns the JSON.
    pub fn text(&self) -> Vec<u8> {
        [&self.prefix, &self.result, Self::END].concat()
    }
}

/// A message for the task that writes the connection.
#[derive(Debug)]
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

/// A connection that can subscribe.
#[derive(Debug)]
pub struct Subscriber {
    id: u64,
    memory: Arc<MemoryQuota>,
    bounds: SocketBounds,
    /// The queue of the task that writes.
    out: mpsc::UnboundedSender<Outgoing>,
    /// The notifications and the bytes that are not sent yet.
    unsent_notifications: AtomicUsize,
    unsent_bytes: AtomicUsize,
    /// Whether nothing can be subscribed any more.
    ended: AtomicBool,
    /// The reason why the connection must end, once there is one.
    ending: watch::Sender<Option<String>>,
}

/// The bytes of a notification in addition to its text.
const ENTRY: usize = 128;

impl Subscriber {
    /// Creates the subscriber of a connection that holds bytes in `memory`. Its messages are sent to `out`.
    pub fn new(memory: Arc<MemoryQuota>, bounds: SocketBounds, out: mpsc::UnboundedSender<Outgoing>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Relaxed),
            memory,
            bounds,
            out,
            unsent_notifications: AtomicUsize::new(0),
            unsent_bytes: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            ending: watch::Sender::new(None),
        }
    }

    /// Returns the connection's id.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Counts bytes to be sent. Returns the reason to close if there are too many.
    fn count(&self, bytes: usize) -> Result<(), String> {
        if self.unsent_bytes.fetch_add(bytes, AcqRel) + bytes > self.bounds.max_unsent {
            return Err(format!("more than {} bytes are unsent", self.bounds.max_unsent));
        }
        Ok(())
    }

    /// Counts a notification to be sent. Returns the reason to close if there are too many, or too many bytes.
    fn count_notification(&self, size: usize) -> Result<SharedBytes, String> {
        let most = self.bounds.max_notifications;
        if self.unsent_notifications.fetch_add(1, AcqRel) >= most {
            return Err(format!("more than {most} notifications are unsent"));
        }
        self.count(size)?;
        let no_room = || "its unsent notifications find no room (--max-memory-io)".to_owned();
        self.memory.take_shared(size + ENTRY).ok_or_else(no_room)
    }

    /// Passes an answer on, with its message's permit.
    ///
    /// # Errors
    ///
    /// Returns the reason to close if too much is unsent already.
    pub fn answer(&self, text: Bytes, permit: Option<OwnedSemaphorePermit>) -> Result<(), String> {
        self.count(text.len())?;
        self.send(Outgoing::Answer(text, permit));
        Ok(())
    }

    /// Passes the last answer on, which is always granted.
    pub fn answer_last(&self, text: Vec<u8>) {
        self.unsent_bytes.fetch_add(text.len(), AcqRel);
        let held = self.memory.take_always(text.len());
        self.send(Outgoing::Answer(held.attach(text), None));
    }

    /// Passes a message on without counting it.
    pub fn send(&self, message: Outgoing) {
        let _ = self.out.send(message);
    }

    /// Passes a notification on without waiting. Returns false if the connection cannot take it; the connection is then
    /// being closed.
    pub fn notify(&self, notification: Notification) -> bool {
        match self.count_notification(notification.size()) {
            Ok(held) => self.out.send(Outgoing::Notification(notification, held)).is_ok(),
            Err(reason) => {
                tracing::info!(connection = self.id, reason, "a slow subscriber is disconnected");
                self.ending.send_replace(Some(format!("slow subscriber: {reason}")));
                false
            }
        }
    }

    /// Notes that an answer was sent.
    pub fn sent_answer(&self, bytes: usize) {
        self.unsent_bytes.fetch_sub(bytes, AcqRel);
    }

    /// Notes that a notification was sent, or dropped.
    pub fn sent_notification(&self, bytes: usize) {
        self.unsent_notifications.fetch_sub(1, AcqRel);
        self.unsent_bytes.fetch_sub(bytes, AcqRel);
    }

    /// Notes that the connection has ended, so that nothing can be subscribed on it any more.
    pub fn end(&self) {
        self.ended.store(true, Relaxed);
    }

    /// Returns whether it has.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Returns the reason why the connection must end, as it changes.
    pub fn ending(&self) -> watch::Receiver<Option<String>> {
        self.ending.subscribe()
    }

    /// Returns whether the connection must end.
    pub fn is_ending(&self) -> bool {
        self.ending.borrow().is_some()
    }
}
