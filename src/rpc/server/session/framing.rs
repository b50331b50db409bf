//! The two ends of a connection, as its transport cuts its bytes into messages.

use bytes::Bytes;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

/// The reading end of a connection, which cuts what arrives into messages.
pub trait MessageReader: Send {
    /// The writing end of the same connection.
    type Writer: MessageWriter;
    /// Whether peers answer pings, so that a silent peer is gone.
    const PINGS: bool;

    /// Reads on. Returns `None` if the peer is gone. Dropping the future loses nothing that has arrived.
    fn read(&mut self) -> impl Future<Output = Option<Result<Incoming, ReadError>>> + Send;

    /// Reads and discards the rest of the peer's data, until it ends.
    fn discard(self, writer: Self::Writer) -> impl Future<Output = ()> + Send;
}

/// The writing end of a connection.
pub trait MessageWriter: Send + 'static {
    /// Writes a message.
    ///
    /// # Errors
    ///
    /// Returns [`Broken`] if the connection takes nothing any more.
    fn send(&mut self, text: Bytes) -> impl Future<Output = Result<(), Broken>> + Send;

    /// Checks that the peer is still there.
    ///
    /// # Errors
    ///
    /// Returns [`Broken`] if it is not.
    fn ping(&mut self) -> impl Future<Output = Result<(), Broken>> + Send;

    /// Writes that nothing follows.
    fn close(&mut self, code: CloseCode, reason: String) -> impl Future<Output = ()> + Send;
}

/// A message or another sign of a connection's peer.
#[derive(Debug)]
pub enum Incoming {
    /// A message.
    Message(Bytes),
    /// A sign of life.
    Control,
    /// The end of the peer's data. The peer still reads answers.
    End,
}

/// The reason why a connection cannot be read on.
#[derive(Debug)]
pub enum ReadError {
    /// A message is far longer than the limit.
    TooLarge,
    /// A message is longer than a connection may ever hold.
    NoRoom,
    /// The peer breaks the protocol.
    Protocol(String),
}

/// A connection that takes nothing any more.
#[derive(Debug)]
pub struct Broken;
