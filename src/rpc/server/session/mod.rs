//! A connection with many concurrent messages, on any transport.
//!
//! One task reads a connection and another writes it. Requests run concurrently, and answers are sent when they are
//! ready. While a client has reached its bound of messages in progress or unsent, nothing more is read from it. Its
//! unsent bytes are bounded, too, and count in the node's memory for connections. A connection beyond that bound is
//! sent the reason and closed.

pub mod framing;
mod reader;
mod writer;

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::timeout,
};

use self::{
    framing::MessageReader,
    reader::{ConnectionReader, GRACE},
    writer::write,
};
use super::connection::Connection;
use crate::rpc::{
    dispatch::front::Dispatcher,
    limits::message::MessageBytes,
    run::{
        request::Caller,
        subscriber::{Outgoing, SocketBounds, Subscriber},
        subscriptions::Subscriptions,
    },
};

/// The parts of the node that serve such connections.
#[derive(Debug)]
pub struct Session {
    /// The front that answers.
    pub front: Arc<Dispatcher>,
    /// The subscriptions.
    pub subscriptions: Arc<Subscriptions>,
    /// The bounds of one connection.
    pub bounds: SocketBounds,
    /// The most bytes of a message.
    pub max_body: usize,
}

/// The time during which a peer's data is read after the close.
const LINGER: Duration = Duration::from_secs(1);

impl Session {
    /// Returns the most bytes of a message that are read. A message slightly beyond the limit is answered with an error; one
    /// far beyond it ends the connection.
    pub const fn max_read(&self) -> usize {
        self.max_body.saturating_mul(2)
    }

    /// Serves a connection until it ends. `bytes` counts the bytes of the message that `reader` is reading.
    pub async fn serve<R: MessageReader>(
        self,
        mut reader: R,
        writer: R::Writer,
        bytes: Arc<MessageBytes>,
        caller: Arc<Caller>,
        connection: Arc<Connection>,
    ) {
        let Self { front, subscriptions, bounds, max_body } = self;
        let (out, outgoing) = mpsc::unbounded_channel();
        let grace = GRACE.min(connection.progress.timeout);
        let subscriber = Arc::new(Subscriber::new(connection.memory.clone(), bounds, out));
        let mut writer = tokio::spawn(write(writer, outgoing, subscriber.clone()));
        let reading = ConnectionReader {
            front,
            caller,
            connection: connection.clone(),
            subscriber: subscriber.clone(),
            bytes,
            max_body,
            subscriptions: subscriptions.clone(),
            permits: Arc::new(Semaphore::new(bounds.max_in_flight.min(Semaphore::MAX_PERMITS))),
            running: JoinSet::new(),
        };
        tokio::select! {
            (code, reason) = reading.read(&mut reader) => {
                subscriptions.forget(&subscriber);
                subscriber.send(Outgoing::Close(code, reason));
                match timeout(grace, &mut writer).await {
                    // Closing with unread bytes would reset the connection and lose the last messages.
                    Ok(Ok(writer)) => drop(timeout(LINGER, reader.discard(writer)).await),
                    // A peer that does not take the last messages is disconnected.
                    _ => writer.abort(),
                }
            }
            // The peer is gone, so its requests are dropped with the reader.
            _ = &mut writer => subscriptions.forget(&subscriber),
        }
    }
}
