//! One connection to a target, with one request under way at a time.

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::{Method, Request};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, task::AbortHandle};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, client_async_with_config,
    tungstenite::{Message, Utf8Bytes, client::IntoClientRequest, protocol::WebSocketConfig},
};

use crate::{
    answer::Answer,
    dating::{self, Dating, Stamp},
    target::Target,
    tls::{TlsError, secure},
};

/// Most bytes of an answer. The connection is closed beyond that.
pub const MAX_ANSWER: usize = 256 << 20;

/// Why a connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    #[error("cannot connect: {0}")]
    Connect(std::io::Error),
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] TlsError),
    #[error("the connection ended: {0}")]
    Http(#[from] hyper::Error),
    #[error("cannot build the HTTP request: {0}")]
    Request(#[from] http::Error),
    #[error("the answer could not be read: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    #[error("the WebSocket failed: {0}")]
    WebSocket(Box<tokio_tungstenite::tungstenite::Error>),
    #[error("the WebSocket was closed")]
    Closed,
}

impl From<tokio_tungstenite::tungstenite::Error> for ConnectionError {
    fn from(error: tokio_tungstenite::tungstenite::Error) -> Self {
        Self::WebSocket(Box::new(error))
    }
}

/// A WebSocket to a target.
pub type Socket = WebSocketStream<Stream>;

/// The byte stream of a connection, with or without TLS.
type Stream = MaybeTlsStream<TcpStream>;

/// An open connection to a target.
pub struct Connection {
    wire: Wire,
}

enum Wire {
    Http { sender: SendRequest<Full<Bytes>>, head: Box<http::request::Parts>, driver: AbortHandle },
    WebSocket(Box<Socket>),
}

impl Connection {
    /// # Errors
    ///
    /// Returns an error if no server listens at the target, or if it does not speak the protocol.
    pub async fn open(target: &Target) -> Result<Self, ConnectionError> {
        if target.web_socket {
            return Ok(Self { wire: Wire::WebSocket(Box::new(web_socket(target).await?)) });
        }
        let (sender, connection) = http1::handshake(TokioIo::new(connect(target).await?)).await?;
        // The request in flight gets the connection's error as well.
        let driver = tokio::spawn(async { drop(connection.await) }).abort_handle();
        let request = Request::builder().method(Method::POST).uri(target.path.as_str()).body(())?;
        let (mut head, ()) = request.into_parts();
        head.headers = target.headers.clone();
        Ok(Self { wire: Wire::Http { sender, head: Box::new(head), driver } })
    }

    /// Returns whether a request can be sent. A server may close the connection between two requests at any time.
    pub async fn ready(&mut self) -> bool {
        match &mut self.wire {
            Wire::Http { sender, .. } => sender.ready().await.is_ok(),
            Wire::WebSocket(_) => true,
        }
    }

    /// Sends a body and waits for its answer. A caller that gives up must drop the connection: the answer may follow.
    ///
    /// # Errors
    ///
    /// Returns an error if the connection ends before the answer does.
    pub async fn call(&mut self, body: Bytes) -> Result<Answer, ConnectionError> {
        self.call_dated(body, Dating::Header).await
    }

    /// Sends a body like [`Self::call`], and learns which snapshot the answer came from.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`Self::call`].
    pub async fn call_dated(&mut self, body: Bytes, dating: Dating) -> Result<Answer, ConnectionError> {
        match &mut self.wire {
            Wire::Http { sender, head, .. } => {
                let response = sender.send_request(Request::from_parts(*head.clone(), Full::new(body))).await?;
                let (head, body) = response.into_parts();
                let stamp =
                    head.headers.get("x-presim-snapshot").and_then(|value| Stamp::of_header(value.to_str().ok()?));
                let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(ConnectionError::Body)?.to_bytes();
                Ok(Answer { status: head.status.as_u16(), stamp, body })
            }
            Wire::WebSocket(socket) => {
                // The conversion does not fail, because bodies are made of text.
                let text = Utf8Bytes::try_from(body).map_err(|error| ConnectionError::Body(error.into()))?;
                let mut asked = dating == Dating::Message;
                if asked {
                    socket.feed(Message::text(dating::QUESTION)).await?;
                }
                socket.send(Message::Text(text)).await?;
                let (mut stamp, mut answer) = (None, None);
                loop {
                    let body = match socket.next().await {
                        Some(Ok(Message::Text(text))) => text.into(),
                        Some(Ok(Message::Binary(body))) => body,
                        Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
                        ended => match (answer, ended) {
                            (Some(body), _) => return Ok(Answer { status: 200, stamp, body }),
                            (None, Some(Err(error))) => return Err(error.into()),
                            (None, _) => return Err(ConnectionError::Closed),
                        },
                    };
                    match if asked { dating::answered(&body) } else { None } {
                        Some(answered) => (asked, stamp) = (false, answered),
                        None => answer = Some(body),
                    }
                    // Answers may come in any order.
                    if let Some(body) = answer.take_if(|_| !asked) {
                        return Ok(Answer { status: 200, stamp, body });
                    }
                }
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Wire::Http { driver, .. } = &self.wire {
            driver.abort();
        }
    }
}

/// Opens a WebSocket to a target.
///
/// # Errors
///
/// Returns an error if no server listens at the target, or if it does not speak WebSocket.
pub async fn web_socket(target: &Target) -> Result<Socket, ConnectionError> {
    let stream = connect(target).await?;
    let mut request = target.over(true).url().into_client_request()?;
    for (name, value) in &target.headers {
        if *name != http::header::CONTENT_TYPE {
            request.headers_mut().insert(name.clone(), value.clone());
        }
    }
    let config = WebSocketConfig::default().max_message_size(Some(MAX_ANSWER)).max_frame_size(Some(MAX_ANSWER));
    Ok(client_async_with_config(request, stream, Some(config)).await?.0)
}

async fn connect(target: &Target) -> Result<Stream, ConnectionError> {
    let stream = TcpStream::connect((target.host.as_str(), target.port)).await.map_err(ConnectionError::Connect)?;
    stream.set_nodelay(true).map_err(ConnectionError::Connect)?;
    Ok(match target.tls {
        true => MaybeTlsStream::Rustls(secure(stream, &target.host).await?),
        false => MaybeTlsStream::Plain(stream),
    })
}
