//! The reading end of a connection, which runs the requests.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use bytestring::ByteString;
use futures::FutureExt;
use jsonrpsee::types::Id;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
    time::{Instant, interval, timeout},
};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::framing::{Incoming, MessageReader, ReadError};
use crate::rpc::{
    dispatch::{
        front::Dispatcher,
        service::{self, error_answer, failure},
    },
    limits::message::MessageBytes,
    protocol::error::RpcError,
    run::{
        request::Caller,
        subscriber::{Outgoing, Subscriber},
        subscriptions::{PendingSubscriptions, Subscriptions},
    },
    server::connection::Connection,
};

/// The time that an ending connection may take to send its last messages.
pub const GRACE: Duration = Duration::from_secs(5);
/// The time after which the answers of one connection give way to the other connections of its thread.
const STRETCH: Duration = Duration::from_micros(500);
/// The interval of pings.
const PING: Duration = Duration::from_secs(20);
/// The time that a peer may send nothing, not even a pong.
const SILENCE: Duration = Duration::from_secs(60);

/// The reader of a connection, which runs its requests.
pub struct ConnectionReader {
    pub front: Arc<Dispatcher>,
    pub caller: Arc<Caller>,
    pub connection: Arc<Connection>,
    pub subscriber: Arc<Subscriber>,
    /// The bytes of the message being read.
    pub bytes: Arc<MessageBytes>,
    /// The most bytes of a message.
    pub max_body: usize,
    pub subscriptions: Arc<Subscriptions>,
    /// Permits for messages in progress or unsent.
    pub permits: Arc<Semaphore>,
    /// The requests in progress.
    pub running: JoinSet<Result<(), String>>,
}

impl ConnectionReader {
    /// Reads until the connection is to end, and returns the reason.
    pub async fn read<R: MessageReader>(mut self, reader: &mut R) -> (CloseCode, String) {
        let mut pings = interval(PING);
        let mut heard = Instant::now();
        let mut ending = self.subscriber.ending();
        let (connection, client) = (self.connection.clone(), self.caller.client.clone());
        let (progress, withdrawn, stopped) = (&connection.progress, client.withdrawn(), connection.stopped());
        tokio::pin!(withdrawn, stopped);
        let (mut permit, mut has_ended) = (None, false);
        let mut began = Instant::now();
        loop {
            if has_ended && self.running.is_empty() {
                return (CloseCode::Normal, String::new());
            }
            if permit.is_none() {
                permit = self.permits.clone().try_acquire_owned().ok();
            }
            tokio::select! {
                // Backpressure: at the bound of messages in progress or unsent, nothing is read.
                granted = self.permits.clone().acquire_owned(), if permit.is_none() => {
                    permit = granted.ok();
                    heard = Instant::now();
                }
                arrived = reader.read(), if permit.is_some() && !has_ended => {
                    heard = Instant::now();
                    match arrived {
                        Some(Ok(Incoming::Message(bytes))) => {
                            if let Err(reason) = self.take(bytes, &mut permit) {
                                return self.close_with(reason);
                            }
                            if began.elapsed() > STRETCH {
                                tokio::task::yield_now().await;
                                began = Instant::now();
                            }
                        }
                        Some(Ok(Incoming::Control)) => {}
                        Some(Ok(Incoming::End)) => has_ended = true,
                        Some(Err(error)) => return self.broken(error),
                        None => return (CloseCode::Normal, String::new()),
                    }
                }
                Some(done) = self.running.join_next(), if !self.running.is_empty() => {
                    if let Ok(Err(reason)) = done {
                        return self.close_with(reason);
                    }
                }
                reason = ending_reason(&mut ending) => return self.close_with(reason),
                () = &mut withdrawn => {
                    let reason = "unauthorized: the token was withdrawn";
                    self.send_closing_error(RpcError::new(-32000, reason));
                    return (CloseCode::Policy, reason.to_owned());
                }
                () = progress.closed() => {
                    return self.close_with(progress.problem().unwrap_or("it stood still, and its place is needed (--io-timeout-ms, --max-connections)").to_owned());
                }
                _ = pings.tick() => {
                    if R::PINGS && permit.is_some() && heard.elapsed() > SILENCE {
                        return (CloseCode::Away, "no sign of life".to_owned());
                    }
                    self.subscriber.send(Outgoing::Ping);
                }
                () = &mut stopped => {
                    // Requests in progress are still answered.
                    let all = async { while self.running.join_next().await.is_some() {} };
                    let _ = timeout(GRACE, all).await;
                    return (CloseCode::Away, "the node is stopping".to_owned());
                }
            }
        }
    }

    /// Starts to answer a message, which takes the permit.
    fn take(&mut self, bytes: Bytes, permit: &mut Option<OwnedSemaphorePermit>) -> Result<(), String> {
        self.connection.progress.mark_known();
        let held = self.bytes.message();
        let permit = permit.take();
        let (subscriber, caller) = (self.subscriber.clone(), self.caller.clone());
        if bytes.len() > self.max_body {
            return subscriber.answer(error_answer(&caller, "", too_large(self.max_body)), permit);
        }
        let body = match ByteString::try_from(bytes) {
            Ok(body) => body,
            Err(error) => {
                let error = RpcError::parse(format!("parse error: not UTF-8: {error}"));
                return subscriber.answer(error_answer(&caller, "", error), permit);
            }
        };
        let (front, subscriptions) = (self.front.clone(), self.subscriptions.clone());
        let starting = Arc::new(PendingSubscriptions::new(subscriptions, subscriber.clone(), caller.dialect, permit));
        let mut request = Box::pin(async move {
            let published = front.services.runner.published();
            let message = service::Message::new(&front, &caller, &published, Some(&starting));
            let answer = message.answer(body, held).await;
            starting.begin(|permit| subscriber.answer(answer.text, permit))
        });
        // A request that runs inline is answered at once, without a task.
        match (&mut request).now_or_never() {
            Some(answered) => answered,
            None => {
                self.running.spawn(request);
                Ok(())
            }
        }
    }

    /// Returns the close of a connection beyond a bound, after sending it the reason as its last message.
    fn close_with(&self, reason: String) -> (CloseCode, String) {
        self.send_closing_error(RpcError::limit(format!("closing the connection: {reason}")));
        (CloseCode::Policy, reason)
    }

    fn broken(&self, error: ReadError) -> (CloseCode, String) {
        match error {
            ReadError::TooLarge => {
                let error = too_large(self.max_body);
                self.send_closing_error(error.clone());
                (CloseCode::Size, error.into_object().message().to_owned())
            }
            ReadError::NoRoom => {
                let error = self.connection.memory.memory().full("a message", self.bytes.count());
                self.send_closing_error(error);
                (CloseCode::Size, "a message finds no room (--max-memory-io)".to_owned())
            }
            ReadError::Protocol(problem) => (CloseCode::Protocol, problem.chars().take(100).collect()),
        }
    }

    fn send_closing_error(&self, error: RpcError) {
        self.subscriber.answer_last(failure(&Id::Null, error));
    }
}

fn too_large(limit: usize) -> RpcError {
    RpcError::limit(format!("message too large: at most {limit} bytes (--max-body)"))
}

/// Returns the reason when a connection must end.
async fn ending_reason(ending: &mut watch::Receiver<Option<String>>) -> String {
    let told = ending.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
    match told {
        Some(reason) => reason,
        // The sender is gone, so the node never stops.
        None => std::future::pending().await,
    }
}
