//! The task that writes a connection.

use std::sync::Arc;

use bytes::Bytes;
use futures::{SinkExt, stream::SplitSink};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message, Utf8Bytes,
        protocol::{
            CloseFrame,
            frame::{
                Frame,
                coding::{Data, OpCode},
            },
        },
    },
};

use crate::rpc::{
    limits::frames::FrameReader,
    run::subscriber::{Outgoing, Subscriber},
};

/// The WebSocket of a connection.
pub type Socket = WebSocketStream<FrameReader<TokioIo<Upgraded>>>;

/// The most bytes of one frame. A longer answer is sent in several (RFC 6455, 5.4), so that no connection keeps a
/// buffer as long as its longest answer.
const FRAME: usize = 64 << 10;
/// Bytes that wait for the socket: a frame, its header, and the pongs between frames. A pong without room is dropped.
pub const WRITE_BUFFER: usize = 2 * FRAME;

/// Writes the messages until the connection is closed or broken, and returns the socket's end.
pub async fn write(
    mut sink: SplitSink<Socket, Message>,
    mut outgoing: mpsc::UnboundedReceiver<Outgoing>,
    subscriber: Arc<Subscriber>,
) -> SplitSink<Socket, Message> {
    while let Some(next) = outgoing.recv().await {
        let sent = match next {
            Outgoing::Answer(text, permit) => {
                let bytes = text.len();
                let sent = send(&mut sink, text).await;
                drop(permit);
                subscriber.sent_answer(bytes);
                sent
            }
            Outgoing::Notification(notification, held) => {
                let bytes = notification.size();
                // An ending connection is sent the reason next, and no further messages.
                let sent =
                    if subscriber.is_ending() { Ok(()) } else { send(&mut sink, notification.text().into()).await };
                drop((notification, held));
                subscriber.sent_notification(bytes);
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
