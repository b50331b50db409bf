//! One connection to a target, with one request under way at a time.

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::{Method, Request};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpStream, UnixStream},
    task::AbortHandle,
};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, client_async_with_config,
    tungstenite::{Message, Utf8Bytes, client::IntoClientRequest, protocol::WebSocketConfig},
};

use crate::{
    answer::Answer,
    dating::{self, Dating, Stamp},
    target::{Protocol, Target},
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
    #[error("the connection was closed")]
    Closed,
    #[error("the Unix socket failed: {0}")]
    Unix(std::io::Error),
    #[error("an answer has more than {MAX_ANSWER} bytes")]
    TooLong,
}

impl From<tokio_tungstenite::tungstenite::Error> for ConnectionError {
    fn from(error: tokio_tungstenite::tungstenite::Error) -> Self {
        Self::WebSocket(Box::new(error))
    }
}

/// A connection whose requests and answers are messages.
pub enum Messages {
    WebSocket(Box<WebSocketStream<Stream>>),
    /// A line each, on a Unix socket.
    Lines(BufReader<UnixStream>),
}

/// The byte stream of a connection, with or without TLS.
type Stream = MaybeTlsStream<TcpStream>;

/// An open connection to a target.
pub struct Connection {
    wire: Wire,
}

enum Wire {
    Http { sender: SendRequest<Full<Bytes>>, head: Box<http::request::Parts>, driver: AbortHandle },
    Messages(Messages),
}

impl Connection {
    /// # Errors
    ///
    /// Returns an error if no server listens at the target, or if it does not speak the protocol.
    pub async fn open(target: &Target) -> Result<Self, ConnectionError> {
        if target.has_messages() {
            return Ok(Self { wire: Wire::Messages(Messages::open(target).await?) });
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
            Wire::Messages(_) => true,
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
            Wire::Messages(messages) => {
                let mut asked = dating == Dating::Message;
                let question = asked.then_some(Bytes::from_static(dating::QUESTION.as_bytes()));
                messages.send(question.into_iter().chain([body])).await?;
                let (mut stamp, mut answer) = (None, None);
                loop {
                    let body = match (messages.next().await, answer.take()) {
                        (Ok(body), earlier) => {
                            answer = earlier;
                            body
                        }
                        (Err(_), Some(body)) => return Ok(Answer { status: 200, stamp, body }),
                        (Err(error), None) => return Err(error),
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

impl Messages {
    /// Opens a WebSocket to a target, or its Unix socket.
    ///
    /// # Errors
    ///
    /// Returns an error if no server listens at the target, or if it does not speak WebSocket.
    pub async fn open(target: &Target) -> Result<Self, ConnectionError> {
        let target = target.for_messages();
        if target.protocol == Protocol::Lines {
            let stream = UnixStream::connect(&target.path).await.map_err(ConnectionError::Connect)?;
            return Ok(Self::Lines(BufReader::new(stream)));
        }
        let stream = connect(&target).await?;
        let mut request = target.url().into_client_request()?;
        for (name, value) in &target.headers {
            if *name != http::header::CONTENT_TYPE {
                request.headers_mut().insert(name.clone(), value.clone());
            }
        }
        let config = WebSocketConfig::default().max_message_size(Some(MAX_ANSWER)).max_frame_size(Some(MAX_ANSWER));
        Ok(Self::WebSocket(Box::new(client_async_with_config(request, stream, Some(config)).await?.0)))
    }

    /// Sends messages, together.
    ///
    /// # Errors
    ///
    /// Returns an error if the connection has ended.
    pub async fn send(&mut self, texts: impl IntoIterator<Item = Bytes>) -> Result<(), ConnectionError> {
        match self {
            Self::WebSocket(socket) => {
                for text in texts {
                    // The conversion does not fail, because bodies are made of text.
                    let text = Utf8Bytes::try_from(text).map_err(|error| ConnectionError::Body(error.into()))?;
                    socket.feed(Message::Text(text)).await?;
                }
                Ok(socket.flush().await?)
            }
            Self::Lines(stream) => {
                let mut lines = Vec::new();
                for text in texts {
                    lines.extend_from_slice(&text);
                    lines.push(b'\n');
                }
                stream.write_all(&lines).await.map_err(ConnectionError::Unix)
            }
        }
    }

    /// Returns the next message.
    ///
    /// # Errors
    ///
    /// Returns an error if the connection has ended.
    pub async fn next(&mut self) -> Result<Bytes, ConnectionError> {
        match self {
            Self::WebSocket(socket) => loop {
                match socket.next().await {
                    Some(Ok(Message::Text(text))) => return Ok(text.into()),
                    Some(Ok(Message::Binary(body))) => return Ok(body),
                    Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                    Some(Err(error)) => return Err(error.into()),
                    Some(Ok(Message::Close(_))) | None => return Err(ConnectionError::Closed),
                }
            },
            Self::Lines(stream) => {
                let mut line = Vec::new();
                let mut bounded = stream.take(MAX_ANSWER as u64 + 1);
                bounded.read_until(b'\n', &mut line).await.map_err(ConnectionError::Unix)?;
                match line.pop() {
                    Some(b'\n') => Ok(line.into()),
                    _ if line.len() >= MAX_ANSWER => Err(ConnectionError::TooLong),
                    _ => Err(ConnectionError::Closed),
                }
            }
        }
    }
}

async fn connect(target: &Target) -> Result<Stream, ConnectionError> {
    let stream = TcpStream::connect((target.host.as_str(), target.port)).await.map_err(ConnectionError::Connect)?;
    stream.set_nodelay(true).map_err(ConnectionError::Connect)?;
    Ok(match target.tls {
        true => MaybeTlsStream::Rustls(secure(stream, &target.host).await?),
        false => MaybeTlsStream::Plain(stream),
    })
}
