//! The WebSocket transport: the same messages as over HTTP, with many in progress at once.

mod framing;
mod offer;

pub use self::offer::{is_upgrade, offered_token};

use std::sync::Arc;

use futures::StreamExt;
use http::{Request, StatusCode, header};
use hyper::{body::Incoming, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        handshake::server::create_response_with_body,
        protocol::{Role, WebSocketConfig},
    },
};

use self::{
    framing::{FramesIn, FramesOut, Socket, WRITE_BUFFER},
    offer::selected,
};
use super::{
    connection::Connection,
    response::{AnswerBody, HttpResponse, refuse},
    session::Session,
};
use crate::rpc::{
    limits::{frames::FrameReader, message::MessageBytes},
    protocol::error::RpcError,
    run::request::Caller,
};

/// Upgrades a request, and serves the connection until it ends.
pub fn accept(
    session: Session,
    request: Request<Incoming>,
    caller: Arc<Caller>,
    connection: Arc<Connection>,
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
    if !connection.upgrade() {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, RpcError::limit("too many WebSocket connections are open"));
    }
    tokio::spawn(async move {
        match hyper::upgrade::on(request).await {
            Ok(upgraded) => serve(session, TokioIo::new(upgraded), caller, connection).await,
            Err(error) => tracing::debug!(%error, "a WebSocket upgrade failed"),
        }
    });
    response
}

async fn serve(session: Session, stream: TokioIo<Upgraded>, caller: Arc<Caller>, connection: Arc<Connection>) {
    let config = WebSocketConfig::default()
        .max_message_size(Some(session.max_read()))
        .max_frame_size(Some(session.max_read()))
        .write_buffer_size(0)
        .max_write_buffer_size(WRITE_BUFFER);
    let bytes = Arc::new(MessageBytes::new(connection.memory.clone(), connection.progress.clone()));
    let socket = FrameReader::new(stream, bytes.clone());
    let socket: Socket = WebSocketStream::from_raw_socket(socket, Role::Server, Some(config)).await;
    let (sink, stream) = socket.split();
    let reader = FramesIn { stream, bytes: bytes.clone() };
    session.serve(reader, FramesOut(sink), bytes, caller, connection).await;
}
