//! A connection to an upstream over WebSocket or IPC, which is opened again when it is lost.

use std::{
    collections::{HashMap, VecDeque},
    path::{Path, PathBuf},
    pin::Pin,
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
use futures::{Sink, SinkExt, StreamExt, future::try_join_all, stream::BoxStream};
use serde_json::value::RawValue;
use tokio::{
    net::UnixStream,
    sync::{OwnedSemaphorePermit, mpsc, oneshot},
    time::{Instant, timeout},
};
use tokio_tungstenite::{
    connect_async_with_config,
    tungstenite::{self, Message, client::IntoClientRequest},
};
use tokio_util::codec::{BytesCodec, Decoder, FramedRead, FramedWrite};

use super::{
    answer_budget::{AnswerBudget, AnswerPermit},
    http::install_tls,
    message::SocketMessage,
};

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
    /// The most bytes of messages: of the one that is being read, and of answers that are not used yet.
    pub max_messages: usize,
}

impl SocketLimits {
    /// Returns the most bytes of one message. As many remain for the answers that are not used yet.
    const fn max_message(&self) -> usize {
        self.max_messages / 2
    }
}

/// Sends requests over a connection to an upstream.
///
/// A task has the connection. While there is none, requests fail at once, and who sends them decides whether to send them
/// again.
#[derive(Debug)]
pub(super) struct Socket {
    // Not bounded, because each request waits for its answer, and the requests under way are bounded.
    requests: mpsc::UnboundedSender<Vec<WaitingRequest>>,
    connection: Arc<AtomicU64>,
}

/// An answer, and the permit for its bytes.
type Answer = (Response, OwnedSemaphorePermit);
/// The requests of each message to be sent.
type Requests = mpsc::UnboundedReceiver<Vec<WaitingRequest>>;
type Subscriber = mpsc::Sender<Box<RawValue>>;

/// A request that waits for its answer.
#[derive(Debug)]
struct WaitingRequest {
    request: SerializedRequest,
    answer: oneshot::Sender<TransportResult<Answer>>,
    /// The receiver of the notifications, if the request is a subscription.
    subscriber: Option<Subscriber>,
}

impl WaitingRequest {
    fn new(
        request: SerializedRequest,
        subscriber: Option<Subscriber>,
    ) -> (Self, oneshot::Receiver<TransportResult<Answer>>) {
        let (answer, answered) = oneshot::channel();
        (Self { request, answer, subscriber }, answered)
    }

    fn reject(self, problem: &str) {
        self.answer(Err(TransportErrorKind::custom_str(problem)));
    }

    fn answer(self, answer: TransportResult<Answer>) {
        // The caller may not wait any more.
        let _ = self.answer.send(answer);
    }
}

impl Socket {
    /// The most notifications of a subscription that wait to be received. Beyond them, notifications are dropped.
    const MAX_UNREAD_NOTIFICATIONS: usize = 16;

    /// Opens a connection, and opens it again whenever it is lost.
    ///
    /// # Errors
    ///
    /// Returns the cause if the first connection cannot be opened.
    pub async fn connect(address: Address, limits: SocketLimits) -> Result<Self, String> {
        let first = SocketLink::open(&address, limits).await?;
        let (requests, outgoing) = mpsc::unbounded_channel();
        let connection = Arc::new(AtomicU64::new(1));
        tokio::spawn(stay_connected(address, limits, first, outgoing, connection.clone()));
        Ok(Self { requests, connection })
    }

    /// Returns the number of the newest connection, from 1.
    pub fn connection(&self) -> u64 {
        self.connection.load(Relaxed)
    }

    /// Sends a request, or a batch as one message. Returns the answers, and the permit for their bytes.
    ///
    /// # Errors
    ///
    /// Returns the cause if there is no connection, or if it is lost before the answers have come.
    pub async fn send(&self, packet: RequestPacket) -> TransportResult<(ResponsePacket, AnswerPermit)> {
        let requests = match packet {
            RequestPacket::Single(request) => {
                let (response, permit) = self.send_one(request, None).await?;
                return Ok((ResponsePacket::Single(response), Some(permit)));
            }
            RequestPacket::Batch(requests) => requests,
        };
        let (requests, answers): (Vec<_>, Vec<_>) =
            requests.into_iter().map(|request| WaitingRequest::new(request, None)).unzip();
        self.requests.send(requests).map_err(|_| TransportErrorKind::backend_gone())?;
        let answers = answers.into_iter().map(received);
        let (responses, permits): (Vec<_>, Vec<_>) = try_join_all(answers).await?.into_iter().unzip();
        let merged = |mut all: OwnedSemaphorePermit, more| {
            all.merge(more);
            all
        };
        Ok((ResponsePacket::Batch(responses), permits.into_iter().reduce(merged)))
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
        let (subscriber, notifications) = mpsc::channel(Self::MAX_UNREAD_NOTIFICATIONS);
        let (response, _permit) = self.send_one(request, Some(subscriber)).await?;
        Ok((response, notifications))
    }

    async fn send_one(&self, request: SerializedRequest, subscriber: Option<Subscriber>) -> TransportResult<Answer> {
        let (request, answered) = WaitingRequest::new(request, subscriber);
        self.requests.send(vec![request]).map_err(|_| TransportErrorKind::backend_gone())?;
        received(answered).await
    }
}

/// Waits for an answer. The task runs for as long as the sender lives, and it answers each request.
async fn received(answered: oneshot::Receiver<TransportResult<Answer>>) -> TransportResult<Answer> {
    answered.await.map_err(|_| TransportErrorKind::backend_gone())?
}

/// The shortest pause before a connection is opened again.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause after a connection that could not be opened, which costs the upstream little.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after a connection that has brought nothing usable.
const MAX_USELESS_PAUSE: Duration = Duration::from_secs(30);
/// The part of the time without anything usable that a pause takes.
const PAUSE_PART: u32 = 8;

/// Returns the pause before a connection is opened again. It grows with the time for which no connection has brought anything
/// usable, so an upstream that is back after a short time is connected to again after a shorter one.
fn pause(useless_for: Duration, was_open: bool) -> Duration {
    let longest = if was_open { MAX_USELESS_PAUSE } else { MAX_PAUSE };
    (useless_for / PAUSE_PART).clamp(FIRST_PAUSE, longest)
}

/// Serves requests over `link`, and over the connections that follow it, until no sender is left.
async fn stay_connected(
    address: Address,
    limits: SocketLimits,
    mut link: SocketLink,
    mut outgoing: Requests,
    connection: Arc<AtomicU64>,
) {
    let budget = AnswerBudget::new(limits.max_messages - limits.max_message());
    let mut useless_since = None;
    loop {
        let Some(LinkEnd { mut problem, was_useful }) = link.serve(&mut outgoing, &budget).await else { return };
        tracing::warn!(problem, "the connection to the upstream is lost");
        if was_useful {
            useless_since = None;
        }
        let since = *useless_since.get_or_insert_with(Instant::now);
        let mut was_open = true;
        link = loop {
            let opening = async {
                tokio::time::sleep(pause(since.elapsed(), was_open)).await;
                SocketLink::open(&address, limits).await
            };
            let Some(opened) = reject_meanwhile(&mut outgoing, &problem, opening).await else { return };
            match opened {
                Ok(link) => break link,
                Err(error) => (problem, was_open) = (error, false),
            }
        };
        tracing::info!("connected to the upstream again");
        connection.fetch_add(1, Relaxed);
    }
}

/// Rejects requests until `done` is ready. Returns `None` if no sender is left.
async fn reject_meanwhile<T>(outgoing: &mut Requests, problem: &str, done: impl Future<Output = T>) -> Option<T> {
    let mut done = std::pin::pin!(done);
    loop {
        tokio::select! {
            biased;
            done = &mut done => return Some(done),
            requests = outgoing.recv() => requests?.into_iter().for_each(|request| request.reject(problem)),
        }
    }
}

/// An open connection.
struct SocketLink {
    reader: LinkReader,
    writer: LinkWriter,
    /// Whether the upstream answers pings, which it does over WebSocket. Over IPC, a ping is written as nothing.
    is_pinged: bool,
    limits: SocketLimits,
}

/// The messages of a connection. `None` is a sign of life that holds none.
type LinkReader = BoxStream<'static, Result<Option<Bytes>, String>>;
type LinkWriter = Pin<Box<dyn Sink<Message, Error = String> + Send>>;

/// The end of a connection.
struct LinkEnd {
    problem: String,
    /// Whether the connection has brought an answer or a notification.
    was_useful: bool,
}

impl SocketLink {
    /// The time without a message after which the upstream is asked for one by a ping, and the time that the ping has.
    const PING_AFTER: Duration = Duration::from_secs(5);
    const PONG_WITHIN: Duration = Duration::from_secs(5);
    /// The most bytes of a notification. The header of a block has two thousand.
    const MAX_NOTIFICATION_BYTES: usize = 64 << 10;

    async fn open(address: &Address, limits: SocketLimits) -> Result<Self, String> {
        let opening = async {
            match address {
                Address::WebSocket(url) => open_web_socket(url, limits).await,
                Address::Ipc(path) => open_ipc(path, limits).await,
            }
        };
        let opened = timeout(limits.timeout, opening).await;
        let (reader, writer) = opened.map_err(|_| format!("no connection within {:?}", limits.timeout))??;
        Ok(Self { reader, writer, is_pinged: matches!(address, Address::WebSocket(_)), limits })
    }

    /// Sends requests, and hands out their answers and notifications, for as long as the connection lives. An upstream that has
    /// fallen silent ends it: one that answers nothing for two time-outs after a request, or sends nothing at all. Returns `None`
    /// if no sender is left.
    async fn serve(mut self, outgoing: &mut Requests, budget: &AnswerBudget) -> Option<LinkEnd> {
        let answer_timeout = 2 * self.limits.timeout;
        let mut waiting: HashMap<Id, WaitingRequest> = HashMap::new();
        // The ids of the batches that are not answered, oldest first.
        let mut batches: VecDeque<Vec<Id>> = VecDeque::new();
        let mut subscribers: HashMap<SubId, Subscriber> = HashMap::new();
        let (mut heard, mut pinged, mut was_useful) = (Instant::now(), None, false);
        // The time of the first request that was sent after the newest answer.
        let mut unanswered: Option<Instant> = None;
        let problem = loop {
            let silent_at = match pinged {
                Some(pinged) => pinged + Self::PONG_WITHIN,
                None => heard + Self::PING_AFTER,
            };
            let due = unanswered.map_or(silent_at, |since| silent_at.min(since + answer_timeout));
            tokio::select! {
                requests = outgoing.recv() => {
                    let requests = requests?;
                    let texts: Vec<_> = requests.iter().map(|request| request.request.serialized().get()).collect();
                    let text = match &texts[..] {
                        [text] => (*text).to_owned(),
                        texts => format!("[{}]", texts.join(",")),
                    };
                    // Requests whose callers have stopped waiting may never be answered.
                    if waiting.len() + requests.len() > waiting.capacity() {
                        waiting.retain(|_, other| !other.answer.is_closed());
                    }
                    batches.retain(|batch| batch.iter().any(|id| waiting.contains_key(id)));
                    if requests.len() > 1 {
                        batches.push_back(requests.iter().map(|request| request.request.id().clone()).collect());
                    }
                    waiting.extend(requests.into_iter().map(|request| (request.request.id().clone(), request)));
                    if let Err(problem) = self.write(Message::text(text)).await {
                        break problem;
                    }
                    unanswered.get_or_insert_with(Instant::now);
                }
                message = self.reader.next() => {
                    (heard, pinged) = (Instant::now(), None);
                    let text = match message {
                        Some(Ok(Some(text))) => text,
                        Some(Ok(None)) => continue,
                        Some(Err(problem)) => break problem,
                        None => break "the upstream has closed the connection".to_owned(),
                    };
                    match SocketMessage::read(&text) {
                        Ok(SocketMessage::Notification { subscription, result }) => {
                            was_useful = true;
                            if let Some(subscriber) = subscribers.get(&subscription)
                                && text.len() <= Self::MAX_NOTIFICATION_BYTES
                            {
                                // A subscriber that is slow asks for the newest block itself.
                                let _ = subscriber.try_send(result);
                            }
                        }
                        Ok(SocketMessage::Other) => {}
                        Ok(SocketMessage::Responses(responses)) => {
                            let bytes = text.len() / responses.len().max(1);
                            for response in named(responses, &waiting, &mut batches) {
                                let Some(mut request) = waiting.remove(&response.id) else { continue };
                                (was_useful, unanswered) = (true, None);
                                if let Some(subscriber) = request.subscriber.take()
                                    && let Some(id) = response.payload.as_success()
                                    && let Ok(id) = serde_json::from_str(id.get())
                                {
                                    subscribers.insert(id, subscriber);
                                }
                                request.answer(budget.take(bytes).map(|permit| (response, permit)));
                            }
                        }
                        Err(error) => break format!("the answer is no JSON-RPC response: {error}"),
                    }
                }
                () = tokio::time::sleep_until(due) => {
                    if unanswered.is_some_and(|since| since.elapsed() >= answer_timeout) {
                        break format!("the upstream has answered nothing for {answer_timeout:?}");
                    }
                    if pinged.is_some() {
                        break format!("the upstream has sent nothing for {:?}", heard.elapsed());
                    }
                    if let Err(problem) = self.write(Message::Ping(Bytes::new())).await {
                        break problem;
                    }
                    match self.is_pinged {
                        true => pinged = Some(Instant::now()),
                        // There are no pings over IPC.
                        false => heard = Instant::now(),
                    }
                }
            }
        };
        waiting.into_values().for_each(|request| request.reject(&problem));
        Some(LinkEnd { problem, was_useful })
    }

    async fn write(&mut self, message: Message) -> Result<(), String> {
        let written = timeout(self.limits.timeout, self.writer.send(message)).await;
        written.unwrap_or_else(|_| Err("the upstream does not read what is sent".to_owned()))
    }
}

/// Gives a response without an id the ids of the requests that it answers: the only request that waits, or the oldest batch. A node
/// that cannot read a message does not know its ids.
fn named(
    mut responses: Vec<Response>,
    waiting: &HashMap<Id, WaitingRequest>,
    batches: &mut VecDeque<Vec<Id>>,
) -> Vec<Response> {
    if let [response] = &mut responses[..]
        && response.id == Id::None
    {
        if let (1, Some(only)) = (waiting.len(), waiting.keys().next()) {
            response.id = only.clone();
        } else if let Some(batch) = batches.pop_front() {
            return batch.into_iter().map(|id| Response { id, ..response.clone() }).collect();
        }
    }
    responses
}

/// Opens a WebSocket whose small messages are sent at once. With Nagle's algorithm, the second message of a wave would wait for
/// the acknowledgement of the first, and so up to 40 ms.
async fn open_web_socket(url: &str, limits: SocketLimits) -> Result<(LinkReader, LinkWriter), String> {
    install_tls();
    let config = WebSocketConfig::default()
        .max_message_size(Some(limits.max_message()))
        .max_frame_size(Some(limits.max_message()));
    let request = WsConnect::new(url).into_client_request().map_err(|error| error.to_string())?;
    let connecting = connect_async_with_config(request, Some(config), true);
    let (socket, _) = connecting.await.map_err(|error| error.to_string())?;
    let (writer, reader) = socket.split();
    let read = |message: Result<Message, tungstenite::Error>| match message {
        Ok(Message::Close(Some(frame))) => Err(format!("the upstream has closed the connection: {frame}")),
        Ok(Message::Close(None)) => Err("the upstream has closed the connection".to_owned()),
        Ok(message @ (Message::Text(_) | Message::Binary(_))) => Ok(Some(message.into_data())),
        Ok(_) => Ok(None),
        Err(error) => Err(error.to_string()),
    };
    let writer = writer.sink_map_err(|error: tungstenite::Error| error.to_string());
    Ok((reader.map(read).boxed(), Box::pin(writer)))
}

async fn open_ipc(path: &Path, limits: SocketLimits) -> Result<(LinkReader, LinkWriter), String> {
    let (reader, writer) = UnixStream::connect(path).await.map_err(|error| error.to_string())?.into_split();
    let frames = JsonFrames { most: limits.max_message(), ..JsonFrames::default() };
    let reader = FramedRead::new(reader, frames).map(|read| read.map(Some).map_err(|error| error.to_string()));
    let writer = FramedWrite::<_, BytesCodec>::new(writer, BytesCodec::new());
    let bytes = |message: Message| std::future::ready(Ok::<Bytes, std::io::Error>(message.into_data()));
    let writer = writer.with(bytes).sink_map_err(|error: std::io::Error| error.to_string());
    Ok((reader.boxed(), Box::pin(writer)))
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::{Bytes, BytesMut};
    use tokio_util::codec::Decoder;

    use super::{JsonFrames, pause};

    #[test]
    fn pauses_grow_with_the_time_without_anything_usable() {
        let after = |seconds, was_open| pause(Duration::from_secs(seconds), was_open).as_millis();
        assert_eq!(
            [0, 2, 4, 8, 80, 240, 1_000].map(|at| after(at, true)),
            [250, 250, 500, 1_000, 10_000, 30_000, 30_000]
        );
        assert_eq!([0, 2, 4, 8, 80].map(|at| after(at, false)), [250, 250, 500, 1_000, 1_000]);
    }

    #[test]
    fn messages_of_an_ipc_socket_are_found_whatever_is_between_them() {
        let messages = [r#"{"a":"}\"]"}"#, r#"[{"b":[1,2]},{}]"#, "{}"];
        let stream = messages.join("\n ") + "\r\n";
        for step in [1, 3, stream.len()] {
            let (mut frames, mut buffer) = (JsonFrames { most: 32, ..JsonFrames::default() }, BytesMut::new());
            let mut found = Vec::new();
            for part in stream.as_bytes().chunks(step) {
                buffer.extend_from_slice(part);
                while let Some(frame) = frames.decode(&mut buffer).unwrap() {
                    found.push(frame);
                }
            }
            assert_eq!(found, messages.map(|message| Bytes::from_static(message.as_bytes())), "{step} bytes at a time");
        }
        let mut long = BytesMut::from(format!("[\"{}", "x".repeat(40)).as_str());
        assert!(JsonFrames { most: 32, ..JsonFrames::default() }.decode(&mut long).is_err());
    }
}
