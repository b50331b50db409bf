//! The frames of a WebSocket.

use std::{io, sync::Arc};

use bytes::Bytes;
use futures::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message, Utf8Bytes,
        error::{CapacityError, ProtocolError},
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
    limits::{frames::FrameReader, message::MessageBytes},
    server::session::framing::{Broken, Incoming, MessageReader, MessageWriter, ReadError},
};

/// The WebSocket of a connection.
pub type Socket = WebSocketStream<FrameReader<TokioIo<Upgraded>>>;

/// The most bytes of one frame. A longer answer is sent in several (RFC 6455, 5.4), so that no connection keeps a
/// buffer as long as its longest answer.
const FRAME: usize = 64 << 10;
/// Bytes that wait for the socket: a frame, its header, and the pongs between frames. A pong without room is dropped.
pub const WRITE_BUFFER: usize = 2 * FRAME;

/// The reading end of a WebSocket.
pub struct FramesIn {
    pub stream: SplitStream<Socket>,
    /// The bytes of the message being read.
    pub bytes: Arc<MessageBytes>,
}

/// The writing end of a WebSocket.
pub struct FramesOut(pub SplitSink<Socket, Message>);

impl MessageReader for FramesIn {
    type Writer = FramesOut;
    const PINGS: bool = true;

    async fn read(&mut self) -> Option<Result<Incoming, ReadError>> {
        Some(match self.stream.next().await? {
            Ok(Message::Text(text)) => Ok(Incoming::Message(text.into())),
            Ok(Message::Binary(bytes)) => Ok(Incoming::Message(bytes)),
            Ok(Message::Ping(payload) | Message::Pong(payload)) => {
                self.bytes.control_frame(payload.len());
                Ok(Incoming::Control)
            }
            Ok(Message::Frame(_) | Message::Close(_)) => Ok(Incoming::Control),
            Err(tungstenite::Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)) => return None,
            Err(tungstenite::Error::Capacity(CapacityError::MessageTooLong { .. })) => Err(ReadError::TooLarge),
            Err(tungstenite::Error::Io(error)) if error.kind() == io::ErrorKind::FileTooLarge => Err(ReadError::NoRoom),
            Err(other) => Err(ReadError::Protocol(other.to_string())),
        })
    }

    async fn discard(self, FramesOut(sink): FramesOut) {
        let Ok(mut socket) = sink.reunite(self.stream) else { return };
        let _ = tokio::io::copy(socket.get_mut().uncounted(), &mut tokio::io::sink()).await;
    }
}

impl MessageWriter for FramesOut {
    /// Sends a text, in several frames if it is long.
    async fn send(&mut self, mut text: Bytes) -> Result<(), Broken> {
        let Self(sink) = self;
        // Pongs may wait for the socket, and a frame needs the buffer to itself.
        sink.flush().await?;
        if text.len() <= FRAME {
            return Ok(sink.send(text_message(text)).await?);
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

    async fn ping(&mut self) -> Result<(), Broken> {
        Ok(self.0.send(Message::Ping(Bytes::new())).await?)
    }

    async fn close(&mut self, code: CloseCode, reason: String) {
        let reason = Utf8Bytes::from(reason);
        let _ = self.0.send(Message::Close(Some(CloseFrame { code, reason }))).await;
        let _ = self.0.close().await;
    }
}

impl From<tungstenite::Error> for Broken {
    fn from(_: tungstenite::Error) -> Self {
        Self
    }
}

/// Returns the text as a message. JSON is valid UTF-8.
fn text_message(text: Bytes) -> Message {
    match Utf8Bytes::try_from(text) {
        Ok(text) => Message::Text(text),
        Err(_) => Message::Text(Utf8Bytes::from_static("null")),
    }
}
