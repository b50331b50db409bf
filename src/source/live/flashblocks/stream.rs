//! The connection to a Flashblocks server: kept, checked and opened again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::mpsc::{Receiver, Sender, channel, error::TrySendError},
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_tungstenite::tungstenite::Message;
use url::Url;

use super::decode::{DecodeError, Flashblock};
use crate::upstream::link::{Address, Connector, Link, LinkError, LinkSettings};

/// The settings of a stream.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The server's URL: ws or wss.
    pub url: Url,
    /// The bounds of its connection. Bounds on a message also apply to its decompressed size.
    pub link: LinkSettings,
    /// The time without sub-blocks after which [`Event::Silent`] is sent.
    pub silent_after: Duration,
    /// The time without sub-blocks after which the connection counts as lost, pongs or not, because the server may be
    /// cut off from its builder.
    pub stalled_after: Duration,
    /// The number of events that may wait for their reader.
    pub capacity: usize,
    /// Maximum bytes of sub-blocks, as JSON, that wait for their reader. One sub-block may always wait.
    pub max_waiting: usize,
}

impl Settings {
    /// Returns the usual bounds, for a stream at `url`.
    pub const fn new(url: Url) -> Self {
        Self {
            url,
            link: LinkSettings {
                connect_timeout: Duration::from_secs(5),
                ping_every: Duration::from_secs(5),
                idle_timeout: Duration::from_secs(15),
                min_pause: Duration::from_millis(100),
                max_message: 16 << 20,
            },
            silent_after: Duration::from_secs(2),
            stalled_after: Duration::from_secs(30),
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
    /// Sub-blocks were dropped because the reader was too slow. The next event follows them.
    Lagged {
        /// The number of dropped messages.
        missed: u64,
    },
    /// The connection was lost, or could not be opened. The stream tries again.
    Disconnected(LinkError),
}

/// The reading end of a stream. Dropping it closes the connection.
#[derive(Debug)]
pub struct Events {
    receiver: Receiver<Event>,
    /// Bytes of the sub-blocks in the channel.
    waiting: Arc<AtomicUsize>,
    /// The settings of the stream and its runtime. `None` if the events have another source.
    origin: Option<(Settings, Handle)>,
    /// The task that reads the connection.
    _task: JoinSet<()>,
}

impl Events {
    /// Creates the reading end of a stream that receives its events from `receiver`.
    #[cfg(test)]
    pub fn from_receiver(receiver: Receiver<Event>) -> Self {
        Self { receiver, waiting: Arc::default(), origin: None, _task: JoinSet::new() }
    }

    /// Opens the stream again with a new task, and drops the waiting events. Returns false and does nothing if the
    /// events have another source.
    pub fn reopen(&mut self) -> bool {
        let Some((settings, runtime)) = self.origin.take() else { return false };
        *self = open_on(runtime, settings);
        true
    }

    /// Returns the next event; `None` only if the task that reads the stream has ended.
    pub async fn next(&mut self) -> Option<Event> {
        let event = self.receiver.recv().await?;
        if let Event::Flashblock { flashblock, .. } = &event {
            // Saturates, because events from another source are not counted.
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
    let reader = Reader { settings: settings.clone(), sender, waiting: waiting.clone(), missed: 0, is_useful: false };
    let mut task = JoinSet::new();
    task.spawn_on(reader.stay_connected(), &runtime);
    Events { receiver, waiting, origin: Some((settings, runtime)), _task: task }
}

/// The reader of a connection. If its consumer is slow, events without room are dropped and counted, and their number
/// is reported.
struct Reader {
    settings: Settings,
    sender: Sender<Event>,
    waiting: Arc<AtomicUsize>,
    /// The number of dropped events that are not reported yet.
    missed: u64,
    /// Whether a sub-block has arrived over the connection.
    is_useful: bool,
}

impl Reader {
    /// Connects, reads until the connection is lost, and repeats, until no one reads the events any more.
    async fn stay_connected(mut self) {
        let address = Address::WebSocket(self.settings.url.to_string());
        let mut connector = Connector::new(address, self.settings.link.clone());
        loop {
            let lost = match connector.connect().await {
                Ok(link) => {
                    if self.sender.send(Event::Connected).await.is_err() {
                        return;
                    }
                    self.is_useful = false;
                    let Err(lost) = self.read(link).await else { return };
                    let missed = std::mem::take(&mut self.missed);
                    if missed > 0 && self.sender.send(Event::Lagged { missed }).await.is_err() {
                        return;
                    }
                    // A server that accepts connections and sends nothing is not asked again at once.
                    if self.is_useful {
                        connector.note_use();
                    }
                    lost
                }
                Err(error) => error,
            };
            if self.sender.send(Event::Disconnected(lost)).await.is_err() {
                return;
            }
        }
    }

    /// Reads until the connection is lost, and returns the reason as an error; `Ok` if no one reads the events any
    /// more.
    async fn read(&mut self, mut link: Link) -> Result<(), LinkError> {
        let Settings { silent_after, stalled_after, .. } = self.settings;
        let (sender, mut given, mut silent) = (self.sender.clone(), Instant::now(), false);
        loop {
            tokio::select! {
                biased;
                () = sender.closed() => return Ok(()),
                room = sender.reserve(), if self.missed > 0 => match room {
                    Ok(room) => room.send(Event::Lagged { missed: std::mem::take(&mut self.missed) }),
                    Err(_) => return Ok(()),
                },
                message = link.next() => {
                    let message = message?;
                    let received = Instant::now();
                    if self.take(message, received) {
                        (given, silent) = (received, false);
                    }
                }
                () = sleep_until(given + stalled_after) => return Err(LinkError::Stalled(stalled_after)),
                () = sleep_until(given + silent_after), if !silent => {
                    silent = true;
                    self.put(Event::Silent);
                }
            }
        }
    }

    /// Handles a message, and returns whether it was a sub-block.
    fn take(&mut self, message: Message, received: Instant) -> bool {
        let limit = self.settings.link.max_message;
        let decoded = match message {
            Message::Text(text) => Flashblock::from_text(text.as_bytes(), limit),
            message => Flashblock::from_binary(&message.into_data(), limit),
        };
        match decoded {
            Ok(flashblock) => {
                self.is_useful = true;
                self.put(Event::Flashblock { flashblock: Arc::new(flashblock), received });
                return true;
            }
            // The next block begins with an index 0, whether or not the previous one was reported as complete.
            Err(DecodeError::End { .. }) => {}
            Err(error) => self.put(Event::Garbage(error)),
        }
        false
    }

    fn put(&mut self, event: Event) {
        // After a loss, the event that reports it comes first.
        if self.missed > 0 {
            self.missed += 1;
            return;
        }
        let size = if let Event::Flashblock { flashblock, .. } = &event { flashblock.size } else { 0 };
        let before = self.waiting.fetch_add(size, Relaxed);
        let has_room = before == 0 || before.saturating_add(size) <= self.settings.max_waiting;
        if !has_room || matches!(self.sender.try_send(event), Err(TrySendError::Full(_))) {
            self.waiting.fetch_sub(size, Relaxed);
            self.missed = 1;
        }
    }
}

#[cfg(test)]
mod tests;
