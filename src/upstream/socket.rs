//! A connection to an upstream over WebSocket or IPC. It is reopened if it is lost.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use alloy_json_rpc::{Id, RequestPacket, Response, ResponsePacket, SerializedRequest, SubId};
use alloy_transport::{TransportError, TransportErrorKind, TransportResult};
use futures::future::{OptionFuture, try_join_all};
use serde_json::value::RawValue;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, oneshot},
    time::{Instant, sleep_until},
};
use tokio_tungstenite::tungstenite::Message;

use super::{
    answer_budget::{AnswerBudget, AnswerPermit},
    link::{Address, Connector, Link, LinkError, LinkSettings},
    message::SocketMessage,
};

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

    fn answer(self, answer: TransportResult<Answer>) {
        // The caller may not wait any more.
        let _ = self.answer.send(answer);
    }
}

impl Socket {
    /// The most notifications of a subscription that wait to be received. Beyond them, notifications are dropped.
    const MAX_UNREAD_NOTIFICATIONS: usize = 16;

    /// Spawns a task that opens a connection, and opens it again whenever it is lost. Requests wait for the first attempt.
    /// `timeout` is the time limit for opening a connection, and the time in which an answer usually arrives. The message
    /// that is being read and the unused answers have at most `max_bytes` together.
    pub fn open(address: Address, timeout: Duration, max_bytes: usize) -> Self {
        let max_message = max_bytes / 2;
        let settings = LinkSettings {
            connect_timeout: timeout,
            ping_every: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(10),
            min_pause: Duration::from_millis(250),
            max_message,
        };
        let (requests, outgoing) = mpsc::unbounded_channel();
        let connection = Arc::new(AtomicU64::new(0));
        let link =
            SocketLink { outgoing, answer_timeout: 2 * timeout, budget: AnswerBudget::new(max_bytes - max_message) };
        tokio::spawn(link.stay_connected(Connector::new(address, settings), connection.clone()));
        Self { requests, connection }
    }

    /// Returns the number of the newest connection, from 1. Returns 0 before the first.
    pub fn connection(&self) -> u64 {
        self.connection.load(Relaxed)
    }

    /// Sends a request, or a batch as one message. Returns the answers, and the permit for their bytes.
    ///
    /// # Errors
    ///
    /// Returns the cause if there is no connection, or if it is lost before the answers have arrived.
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

/// The task that has the connection.
struct SocketLink {
    outgoing: Requests,
    /// The time after a request without any answer, from which on the upstream counts as silent.
    answer_timeout: Duration,
    budget: AnswerBudget,
}

impl SocketLink {
    /// The most bytes of a notification. The header of a block has two thousand.
    const MAX_NOTIFICATION_BYTES: usize = 64 << 10;

    /// Serves requests over one connection after the other, until no sender is left.
    async fn stay_connected(mut self, mut connector: Connector, connection: Arc<AtomicU64>) {
        let mut opened = connector.connect().await;
        let mut was_lost = opened.is_err();
        loop {
            let problem = match opened {
                Ok(link) => {
                    connection.fetch_add(1, Relaxed);
                    if was_lost {
                        tracing::info!("connected to the upstream again");
                    }
                    let Some((problem, was_useful)) = self.serve(link).await else { return };
                    tracing::warn!(%problem, "the connection to the upstream is lost");
                    if was_useful {
                        connector.note_use();
                    }
                    problem
                }
                Err(problem) => problem,
            };
            was_lost = true;
            let failure = || match problem {
                // A wrong URL or key, of which a start must tell at once.
                LinkError::Status(400..=428 | 430..=499) if connection.load(Relaxed) == 0 => {
                    TransportErrorKind::non_retryable(problem.clone())
                }
                _ => TransportErrorKind::custom(problem.clone()),
            };
            opened = match self.reject_meanwhile(failure, connector.connect()).await {
                Some(opened) => opened,
                None => return,
            };
        }
    }

    /// Rejects requests until `done` is ready. Returns `None` if no sender is left.
    async fn reject_meanwhile<T>(
        &mut self,
        failure: impl Fn() -> TransportError,
        done: impl Future<Output = T>,
    ) -> Option<T> {
        let mut done = std::pin::pin!(done);
        loop {
            tokio::select! {
                biased;
                done = &mut done => return Some(done),
                requests = self.outgoing.recv() => requests?.into_iter().for_each(|request| request.answer(Err(failure()))),
            }
        }
    }

    /// Sends requests, and hands out their answers and notifications, for as long as the connection lives. An upstream that answers
    /// nothing for a time after a request ends it. Returns the end of the connection, and whether it has brought an answer or a
    /// notification; `None` if no sender is left.
    async fn serve(&mut self, mut link: Link) -> Option<(LinkError, bool)> {
        let mut waiting: HashMap<Id, WaitingRequest> = HashMap::new();
        // The ids of the batches that are not answered, oldest first.
        let mut batches: VecDeque<Vec<Id>> = VecDeque::new();
        let mut subscribers: HashMap<SubId, Subscriber> = HashMap::new();
        let mut was_useful = false;
        // The time of the first request that was sent after the newest answer.
        let mut unanswered: Option<Instant> = None;
        let problem = loop {
            tokio::select! {
                requests = self.outgoing.recv() => {
                    let requests = requests?;
                    let texts: Vec<_> = requests.iter().map(|request| request.request.serialized().get()).collect();
                    let text = match &texts[..] {
                        [text] => (*text).to_owned(),
                        texts => format!("[{}]", texts.join(",")),
                    };
                    // Requests whose callers no longer wait may never be answered.
                    if waiting.len() + requests.len() > waiting.capacity() {
                        waiting.retain(|_, other| !other.answer.is_closed());
                    }
                    batches.retain(|batch| batch.iter().any(|id| waiting.contains_key(id)));
                    if requests.len() > 1 {
                        batches.push_back(requests.iter().map(|request| request.request.id().clone()).collect());
                    }
                    waiting.extend(requests.into_iter().map(|request| (request.request.id().clone(), request)));
                    if let Err(problem) = link.send(Message::text(text)).await {
                        break problem;
                    }
                    unanswered.get_or_insert_with(Instant::now);
                }
                message = link.next() => {
                    let text = match message {
                        Ok(message) => message.into_data(),
                        Err(problem) => break problem,
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
                                request.answer(self.budget.take(bytes).map(|permit| (response, permit)));
                            }
                        }
                        Err(error) => break LinkError::Other(format!("the answer is no JSON-RPC response: {error}")),
                    }
                }
                Some(()) = OptionFuture::from(unanswered.map(|since| sleep_until(since + self.answer_timeout))) => {
                    break LinkError::Stalled(self.answer_timeout);
                }
            }
        };
        waiting.into_values().for_each(|request| request.answer(Err(TransportErrorKind::custom(problem.clone()))));
        Some((problem, was_useful))
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
