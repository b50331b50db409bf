//! The reading end of a connection, which runs the requests.

use std::{
    io,
    sync::{Arc, atomic::Ordering::AcqRel},
    time::Duration,
};

use bytes::Bytes;
use bytestring::ByteString;
use futures::{StreamExt, stream::SplitStream};
use jsonrpsee::types::Id;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
    time::{Instant, interval, timeout},
};
use tokio_tungstenite::tungstenite::{
    self, Message,
    error::{CapacityError, ProtocolError},
    protocol::frame::coding::CloseCode,
};

use super::outlet::{Outgoing, Outlet, Socket};
use crate::rpc::{
    dispatch::service::{Session, failure},
    protocol::error::RpcError,
    run::subscriptions::{Starting, Subscriptions},
    server::inbox::Pieces,
};

/// The time that an ending connection may take to send its last messages.
pub const GRACE: Duration = Duration::from_secs(5);
/// The interval of pings.
const PING: Duration = Duration::from_secs(20);
/// The time that a peer may send nothing, not even a pong.
const SILENCE: Duration = Duration::from_secs(60);

/// The reader of a connection, which runs its requests.
pub struct ConnectionReader {
    pub session: Session,
    pub outlet: Arc<Outlet>,
    pub pieces: Arc<Pieces>,
    pub subscriptions: Arc<Subscriptions>,
    /// Permits for messages under way or unsent.
    pub permits: Arc<Semaphore>,
    /// The requests under way.
    pub running: JoinSet<Result<(), String>>,
}

impl ConnectionReader {
    /// Reads until the connection is to end, and returns the reason.
    pub async fn read(
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
                                return self.close_with(reason);
                            }
                        }
                        Some(Err(error)) => return self.broken(&error),
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
                () = link.closed() => {
                    return self.close_with(link.problem().unwrap_or("it stood still, and its place is needed (--io-timeout-ms, --max-connections)").to_owned());
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
        self.outlet.link.know();
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
            let published = session.front.services.runner.published();
            let reply = session.answer(body, held, &published, Some(&starting)).await;
            starting.begin(|permit| outlet.answer(reply.text, permit))
        });
        Ok(())
    }

    /// Returns the close of a connection beyond a bound, after sending it the reason as its last message.
    fn close_with(&self, reason: String) -> (CloseCode, String) {
        self.send_closing_error(RpcError::limit(format!("closing the connection: {reason}")));
        (CloseCode::Policy, reason)
    }

    fn broken(&self, error: &tungstenite::Error) -> (CloseCode, String) {
        match error {
            tungstenite::Error::Capacity(CapacityError::MessageTooLong { .. }) => {
                let error = too_large(self.session.limits.max_body);
                self.send_closing_error(error.clone());
                (CloseCode::Size, error.into_object().message().to_owned())
            }
            tungstenite::Error::Io(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                let error = self.outlet.link.share().memory().full("a message", self.pieces.bytes());
                self.send_closing_error(error.clone());
                (CloseCode::Size, "a message finds no room (--max-memory-io)".to_owned())
            }
            tungstenite::Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => {
                (CloseCode::Normal, String::new())
            }
            other => (CloseCode::Protocol, other.to_string().chars().take(100).collect()),
        }
    }

    fn send_closing_error(&self, error: RpcError) {
        let text = failure(&Id::Null, error);
        self.outlet.unsent.bytes.fetch_add(text.len(), AcqRel);
        let held = self.outlet.link.share().take_always(text.len());
        let _ = self.outlet.out.send(Outgoing::Answer(held.around(text), None));
    }
}

/// Returns when the node stops.
pub async fn stopped(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
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
