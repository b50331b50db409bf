//! The WebSocket transport: the same messages as over HTTP, with many under way at once.
//!
//! One task reads a connection and another writes it. Requests run concurrently, and answers are sent as they are made.
//! While a client has its bound of messages under way or unsent, nothing more is read from it. The bytes that it has
//! not taken yet are bounded, too, and count in the node's memory for connections. A connection beyond that bound is
//! sent the reason and closed.

mod offer;
mod outlet;
mod reader;

pub use self::{
    offer::{is_upgrade, offered_token},
    outlet::SocketBounds,
    reader::stopped,
};

use std::{sync::Arc, time::Duration};

use futures::{
    StreamExt,
    stream::{SplitSink, SplitStream},
};
use http::{Request, StatusCode, header};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::{
    sync::{Semaphore, mpsc, watch},
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
    outlet::{Outgoing, Outlet, Socket, WRITE_BUFFER, write},
    reader::{ConnectionReader, GRACE},
};
use super::{
    connections::ConnectionEntry,
    inbox::{Inbox, Pieces},
    link::Link,
    response::{AnswerBody, HttpResponse, refuse},
};
use crate::rpc::{dispatch::service::Session, protocol::error::RpcError, run::subscriptions::Subscriptions};

/// The state that all WebSocket connections share.
#[derive(Debug)]
pub struct Sockets {
    /// The subscriptions.
    pub subscriptions: Arc<Subscriptions>,
    /// The bounds of one connection.
    pub bounds: SocketBounds,
    /// Turns true when the node stops.
    pub stopping: watch::Receiver<bool>,
}

/// The time during which a peer's data is read after the close.
const LINGER: Duration = Duration::from_secs(1);

impl Sockets {
    /// Upgrades a request, and serves the connection until it ends.
    pub fn accept(
        &self,
        request: Request<Incoming>,
        session: Session,
        link: Arc<Link>,
        entry: Arc<ConnectionEntry>,
    ) -> HttpResponse {
        let mut response = match create_response_with_body(&request, AnswerBody::default) {
            Ok(response) => response,
            Err(error) => {
                return refuse(StatusCode::BAD_REQUEST, RpcError::request(format!("WebSocket upgrade: {error}")));
            }
        };
        if let Some(selected) = selected(&request) {
            response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, selected);
        }
        if !entry.upgrade() {
            return refuse(StatusCode::SERVICE_UNAVAILABLE, RpcError::limit("too many WebSocket connections are open"));
        }
        let (bounds, stopping, subscriptions) = (self.bounds, self.stopping.clone(), self.subscriptions.clone());
        tokio::spawn(async move {
            // Messages slightly beyond the limit are read and answered with an error. Messages far beyond it are not
            // read.
            let config = WebSocketConfig::default()
                .max_message_size(Some(session.limits.max_body.saturating_mul(2)))
                .max_frame_size(Some(session.limits.max_body.saturating_mul(2)))
                .write_buffer_size(0)
                .max_write_buffer_size(WRITE_BUFFER);
            match hyper::upgrade::on(request).await {
                Ok(upgraded) => {
                    let pieces = Arc::new(Pieces::new(link.clone()));
                    let socket = Inbox::new(TokioIo::new(upgraded), pieces.clone());
                    let socket = WebSocketStream::from_raw_socket(socket, Role::Server, Some(config)).await;
                    serve(socket, link, pieces, session, bounds, subscriptions, stopping).await;
                }
                Err(error) => tracing::debug!(%error, "a WebSocket upgrade failed"),
            }
            drop(entry);
        });
        response
    }
}

async fn serve(
    socket: Socket,
    link: Arc<Link>,
    pieces: Arc<Pieces>,
    session: Session,
    bounds: SocketBounds,
    subscriptions: Arc<Subscriptions>,
    stopping: watch::Receiver<bool>,
) {
    let (sink, mut stream) = socket.split();
    let (out, outgoing) = mpsc::unbounded_channel();
    let grace = GRACE.min(link.timeout());
    let outlet = Arc::new(Outlet::new(link, bounds, out));
    let mut writer = tokio::spawn(write(sink, outgoing, outlet.clone()));
    let reader = ConnectionReader {
        session,
        outlet: outlet.clone(),
        pieces,
        subscriptions: subscriptions.clone(),
        permits: Arc::new(Semaphore::new(bounds.max_in_flight.min(Semaphore::MAX_PERMITS))),
        running: JoinSet::new(),
    };
    tokio::select! {
        (code, reason) = reader.read(&mut stream, stopping) => {
            subscriptions.forget(outlet.as_ref());
            let _ = outlet.out.send(Outgoing::Close(code, reason));
            match timeout(grace, &mut writer).await {
                Ok(Ok(sink)) => linger(sink, stream).await,
                // A peer that does not take the last messages is disconnected.
                _ => writer.abort(),
            }
        }
        // The peer is gone, so its requests are dropped with the reader.
        _ = &mut writer => subscriptions.forget(outlet.as_ref()),
    }
}

/// Reads for a moment what the peer is still sending, because closing with unread bytes would reset the connection and
/// lose the last messages.
async fn linger(sink: SplitSink<Socket, Message>, stream: SplitStream<Socket>) {
    let Ok(mut socket) = sink.reunite(stream) else { return };
    let _ = timeout(LINGER, tokio::io::copy(socket.get_mut().uncounted(), &mut tokio::io::sink())).await;
}
