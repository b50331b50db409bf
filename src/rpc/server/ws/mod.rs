//! The WebSocket transport: the same messages as over HTTP, with many under way at once.
//!
//! One task reads a connection and another writes it. Requests run concurrently, and answers are sent as they are made.
//! While a client has its bound of messages under way or unsent, nothing more is read from it. The bytes that it has
//! not taken yet are bounded, too, and count in the node's memory for connections. A connection beyond that bound is
//! sent the reason and closed.

mod offer;
mod reader;
mod writer;

pub use self::offer::{is_upgrade, offered_token};

use std::{sync::Arc, time::Duration};

use futures::{
    StreamExt,
    stream::{SplitSink, SplitStream},
};
use http::{Request, StatusCode, header};
use hyper::{body::Incoming, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        handshake::server::create_response_with_body,
        protocol::{Role, WebSocketConfig},
    },
};

use self::{
    offer::selected,
    reader::{ConnectionReader, GRACE},
    writer::{Socket, WRITE_BUFFER, write},
};
use super::{
    connection::Connection,
    response::{AnswerBody, HttpResponse, refuse},
};
use crate::rpc::{
    dispatch::front::Front,
    limits::frames::{FrameReader, MessageBytes},
    protocol::error::RpcError,
    run::{
        request::Caller,
        subscriber::{Outgoing, SocketBounds, Subscriber},
        subscriptions::Subscriptions,
    },
};

/// The state that all WebSocket connections share.
#[derive(Debug)]
pub struct Sockets {
    /// The front that answers.
    pub front: Arc<Front>,
    /// The subscriptions.
    pub subscriptions: Arc<Subscriptions>,
    /// The bounds of one connection.
    pub bounds: SocketBounds,
    /// The most bytes of a message.
    pub max_body: usize,
}

/// The time during which a peer's data is read after the close.
const LINGER: Duration = Duration::from_secs(1);

impl Sockets {
    /// Upgrades a request, and serves the connection until it ends.
    pub fn accept(self, request: Request<Incoming>, caller: Arc<Caller>, connection: Arc<Connection>) -> HttpResponse {
        let mut response = match create_response_with_body(&request, AnswerBody::default) {
            Ok(response) => response,
            Err(error) => {
                return refuse(StatusCode::BAD_REQUEST, RpcError::request(format!("WebSocket upgrade: {error}")));
            }
        };
        if let Some(selected) = selected(&request) {
            response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, selected);
        }
        if !connection.upgrade() {
            return refuse(StatusCode::SERVICE_UNAVAILABLE, RpcError::limit("too many WebSocket connections are open"));
        }
        tokio::spawn(async move {
            match hyper::upgrade::on(request).await {
                Ok(upgraded) => self.serve(TokioIo::new(upgraded), caller, connection).await,
                Err(error) => tracing::debug!(%error, "a WebSocket upgrade failed"),
            }
        });
        response
    }

    async fn serve(self, stream: TokioIo<Upgraded>, caller: Arc<Caller>, connection: Arc<Connection>) {
        let Self { front, subscriptions, bounds, max_body } = self;
        // Messages slightly beyond the limit are read and answered with an error. Messages far beyond it are not read.
        let config = WebSocketConfig::default()
            .max_message_size(Some(max_body.saturating_mul(2)))
            .max_frame_size(Some(max_body.saturating_mul(2)))
            .write_buffer_size(0)
            .max_write_buffer_size(WRITE_BUFFER);
        let bytes = Arc::new(MessageBytes::new(connection.memory.clone(), connection.progress.clone()));
        let socket = FrameReader::new(stream, bytes.clone());
        let socket: Socket = WebSocketStream::from_raw_socket(socket, Role::Server, Some(config)).await;
        let (sink, mut stream) = socket.split();
        let (out, outgoing) = mpsc::unbounded_channel();
        let grace = GRACE.min(connection.progress.timeout);
        let subscriber = Arc::new(Subscriber::new(connection.memory.clone(), bounds, out));
        let mut writer = tokio::spawn(write(sink, outgoing, subscriber.clone()));
        let reader = ConnectionReader {
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
            (code, reason) = reader.read(&mut stream) => {
                subscriptions.forget(&subscriber);
                subscriber.send(Outgoing::Close(code, reason));
                match timeout(grace, &mut writer).await {
                    Ok(Ok(sink)) => linger(sink, stream).await,
                    // A peer that does not take the last messages is disconnected.
                    _ => writer.abort(),
                }
            }
            // The peer is gone, so its requests are dropped with the reader.
            _ = &mut writer => subscriptions.forget(&subscriber),
        }
    }
}

/// Reads for a moment what the peer is still sending, because closing with unread bytes would reset the connection and
/// lose the last messages.
async fn linger(sink: SplitSink<Socket, Message>, stream: SplitStream<Socket>) {
    let Ok(mut socket) = sink.reunite(stream) else { return };
    let _ = timeout(LINGER, tokio::io::copy(socket.get_mut().uncounted(), &mut tokio::io::sink())).await;
}
