//! Clients that do what libraries do not allow: requests with any header, unread answers, hand-made frames.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use h2::{RecvStream, SendStream, client::SendRequest};
use http::{Request, Response};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    task::JoinHandle,
    time::timeout,
};

use crate::support::BOUND;

pub type Headers<'a> = &'a [(&'a str, &'a str)];

/// A protocol by which a client reaches a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Http1,
    Http2,
    WebSocket,
}

impl Transport {
    pub const ALL: [Self; 3] = [Self::Http1, Self::Http2, Self::WebSocket];

    /// Sends one text over a new connection. On a WebSocket, `headers` go with the upgrade; its refusal is the answer.
    pub async fn ask(self, at: SocketAddr, headers: Headers<'_>, text: &str) -> Answer {
        match self {
            Self::Http1 => Http1::open(at).await.ask(headers, text).await,
            Self::Http2 => Http2::open(at, WIDE).await.ask(headers, text).await,
            Self::WebSocket => match Frames::open(at, headers).await {
                Ok(mut frames) => frames.ask(text).await,
                Err(refused) => refused,
            },
        }
    }
}

/// The answer of a node.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status; 200 for a WebSocket message.
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("no JSON: {error}: {self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|(key, value)| key.eq_ignore_ascii_case(name).then_some(value.as_str()))
    }

    /// Returns the error code, or 0 if there is no error.
    pub fn code(&self) -> i64 {
        self.json()["error"]["code"].as_i64().unwrap_or_default()
    }

    pub fn message(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap_or_else(|| panic!("no error: {self:?}")).to_owned()
    }
}

/// Checks that a request for the devnet's chain id was served.
#[track_caller]
pub fn served(answer: &Answer) {
    assert_eq!((answer.status, &answer.json()["result"]), (200, &json!("0x7a69")), "{answer:?}");
}

/// Parses the address in a URL of the node's banner.
pub fn address(url: &str) -> SocketAddr {
    url.trim_start_matches("http://").trim_end_matches('/').parse().unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// Opens a connection with a small receive buffer, so that unread answers stay in the node.
pub async fn connect(at: SocketAddr) -> TcpStream {
    let socket = if at.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.expect("there are sockets");
    socket.set_recv_buffer_size(32 << 10).expect("a buffer can be small");
    let stream = timeout(BOUND, socket.connect(at)).await.expect("it accepts").expect("it listens");
    stream.set_nodelay(true).expect("bytes can go out at once");
    stream
}

/// Reads until the connection ends. Returns the number of bytes, or `None` if it is open after `patience`.
pub async fn drain(stream: &mut (impl AsyncRead + Unpin), patience: Duration) -> Option<usize> {
    let mut buffer = vec![0; 1 << 16];
    let mut count = 0;
    let all = async {
        // A reset is also an end.
        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
            count += read;
        }
    };
    timeout(patience, all).await.ok().map(|()| count)
}

/// Builds the head of a POST to `/` with a body of `length` bytes. `headers` add to the usual ones or replace them.
pub fn head(at: SocketAddr, headers: Headers<'_>, length: usize) -> String {
    let usual = [
        ("host", at.to_string()),
        ("content-type", "application/json".to_owned()),
        ("content-length", length.to_string()),
    ];
    let usual = usual.iter().filter(|(name, _)| !headers.iter().any(|(own, _)| own == name));
    let all = usual.map(|(name, value)| (*name, value.as_str())).chain(headers.iter().copied());
    let lines: String = all.map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("POST / HTTP/1.1\r\n{lines}\r\n")
}

pub struct Http1 {
    pub at: SocketAddr,
    pub stream: TcpStream,
}

impl Http1 {
    pub async fn open(at: SocketAddr) -> Self {
        Self { at, stream: connect(at).await }
    }

    /// Sends a request, as far as the node reads it.
    pub async fn send(&mut self, headers: Headers<'_>, text: &str) {
        let head = head(self.at, headers, text.len());
        self.write(&[head.as_bytes(), text.as_bytes()].concat()).await;
    }

    /// Writes these bytes, as far as the node reads them: it may answer and close before it has read them all.
    pub async fn write(&mut self, bytes: &[u8]) {
        let _ = timeout(BOUND, self.stream.write_all(bytes)).await.expect("it reads or closes");
    }

    pub async fn ask(&mut self, headers: Headers<'_>, text: &str) -> Answer {
        self.send(headers, text).await;
        self.read().await.expect("it answers")
    }

    /// Returns the next answer, or `None` if the connection ends before it is complete.
    pub async fn read(&mut self) -> Option<Answer> {
        timeout(BOUND, self.read_whole()).await.expect("something comes")
    }

    async fn read_whole(&mut self) -> Option<Answer> {
        let (mut answer, length) = self.read_head().await?;
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.ok()?;
        answer.body = String::from_utf8(body).expect("a body is text");
        Some(answer)
    }

    /// Returns the next answer without its body, and the body's length; `None` if the connection ends before.
    pub async fn read_head(&mut self) -> Option<(Answer, usize)> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).expect("a head is text");
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().expect("a status is a number");
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let answer = Answer { status, headers, body: String::new() };
        let length = answer.header("content-length").map_or(0, |length| length.parse().expect("a length is a number"));
        Some((answer, length))
    }
}

/// A window that is larger than every answer.
pub const WIDE: u32 = 1 << 30;

/// A connection of HTTP/2 with prior knowledge.
pub struct Http2 {
    at: SocketAddr,
    sender: SendRequest<Bytes>,
    /// Ends when the connection does.
    pub connection: JoinHandle<Result<(), h2::Error>>,
}

impl Http2 {
    /// Opens a connection. Each answer may run `window` bytes ahead of the reader.
    pub async fn open(at: SocketAddr, window: u32) -> Self {
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(window).initial_connection_window_size(WIDE);
        let (sender, connection) = builder.handshake(connect(at).await).await.expect("it speaks HTTP/2");
        Self { at, sender, connection: tokio::spawn(connection) }
    }

    /// Begins a request to `/` and leaves its body open.
    pub async fn begin(&mut self, headers: Headers<'_>) -> (h2::client::ResponseFuture, SendStream<Bytes>) {
        self.begin_at("/", headers).await
    }

    /// Like [`begin`](Self::begin), to this path.
    pub async fn begin_at(
        &mut self,
        path: &str,
        headers: Headers<'_>,
    ) -> (h2::client::ResponseFuture, SendStream<Bytes>) {
        let host = headers.iter().find_map(|(name, value)| (*name == "host").then(|| (*value).to_owned()));
        let host = host.unwrap_or_else(|| self.at.to_string());
        let mut request = Request::post(format!("http://{host}{path}")).version(http::Version::HTTP_2);
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers.iter().filter(|(name, _)| *name != "host") {
            request = request.header(*name, *value);
        }
        let ready = timeout(BOUND, self.sender.clone().ready()).await.expect("it takes a request");
        self.sender = ready.expect("the connection is open");
        self.sender.send_request(request.body(()).expect("a request"), false).expect("it is sent")
    }

    /// Sends a request and returns its answer as soon as the head has arrived.
    pub async fn send(&mut self, headers: Headers<'_>, text: &str) -> Response<RecvStream> {
        let (response, mut body) = self.begin(headers).await;
        // The node may already have answered, because of the head alone.
        let _ = body.send_data(Bytes::copy_from_slice(text.as_bytes()), true);
        timeout(BOUND, response).await.expect("it answers in time").expect("it answers")
    }

    pub async fn ask(&mut self, headers: Headers<'_>, text: &str) -> Answer {
        let response = self.send(headers, text).await;
        whole(response).await.expect("the answer is whole")
    }

    /// Waits until the node ends the connection. Returns false if it does not within `patience`.
    pub async fn ended(&mut self, patience: Duration) -> bool {
        timeout(patience, &mut self.connection).await.is_ok()
    }
}

/// Closes the connection abruptly, as a client that disappears.
impl Drop for Http2 {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// Reads an HTTP/2 answer to its end. Returns `None` if it breaks off.
pub async fn whole(response: Response<RecvStream>) -> Option<Answer> {
    let (head, mut body) = response.into_parts();
    let mut bytes = Vec::new();
    while let Some(chunk) = timeout(BOUND, body.data()).await.expect("something comes") {
        let chunk = chunk.ok()?;
        bytes.extend_from_slice(&chunk);
        let _ = body.flow_control().release_capacity(chunk.len());
    }
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = head.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    Some(Answer { status: head.status.as_u16(), headers, body: String::from_utf8(bytes).expect("a body is text") })
}

/// Builds a frame of a WebSocket client. The mask is zero, so the payload is unchanged.
pub fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    [frame_head(opcode, payload.len()), payload.to_vec()].concat()
}

/// Builds the head of an unfragmented message or a control frame of this length.
pub fn frame_head(opcode: u8, length: usize) -> Vec<u8> {
    let mut head = vec![0x80 | opcode];
    match length {
        0..126 => head.push(0x80 | length as u8),
        126..0x1_0000 => head.extend([&[0x80 | 126][..], &(length as u16).to_be_bytes()].concat()),
        _ => head.extend([&[0x80 | 127][..], &(length as u64).to_be_bytes()].concat()),
    }
    head.extend([0; 4]);
    head
}

const CONTINUE: u8 = 0;
pub const TEXT: u8 = 1;
const CLOSE: u8 = 8;
pub const PING: u8 = 9;

/// A WebSocket, frame by frame.
pub struct Frames(pub Http1);

impl Frames {
    /// Upgrades a connection.
    ///
    /// # Errors
    ///
    /// Returns the node's answer if it refuses the upgrade.
    pub async fn open(at: SocketAddr, headers: Headers<'_>) -> Result<Self, Answer> {
        let mut connection = Http1::open(at).await;
        let upgrade = [
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        let request = head(at, &[&upgrade[..], headers].concat(), 0).replacen("POST", "GET", 1);
        connection.write(request.as_bytes()).await;
        let answer = connection.read().await.expect("it answers");
        if answer.status == 101 { Ok(Self(connection)) } else { Err(answer) }
    }

    pub async fn send(&mut self, text: &str) {
        self.0.write(&frame(TEXT, text.as_bytes())).await;
    }

    pub async fn ask(&mut self, text: &str) -> Answer {
        self.send(text).await;
        self.read().await.expect("it answers")
    }

    /// Returns the next message, or `None` if the connection has ended.
    pub async fn read(&mut self) -> Option<Answer> {
        timeout(BOUND, self.read_message()).await.expect("something comes")
    }

    async fn read_message(&mut self) -> Option<Answer> {
        let mut payload = Vec::new();
        loop {
            let (length, is_last) = self.read_frame_head().await?;
            let begun = payload.len();
            payload.resize(begun + length, 0);
            self.0.stream.read_exact(&mut payload[begun..]).await.ok()?;
            if is_last {
                break;
            }
        }
        let body = String::from_utf8(payload).expect("a message is text");
        Some(Answer { status: 200, headers: Vec::new(), body })
    }

    /// Reads a frame's head. Returns its length and whether it is the last; `None` if the connection has ended.
    pub async fn read_frame_head(&mut self) -> Option<(usize, bool)> {
        let stream = &mut self.0.stream;
        loop {
            let (first, length) = (stream.read_u8().await.ok()?, stream.read_u8().await.ok()?);
            let length = match length {
                126 => usize::from(stream.read_u16().await.ok()?),
                127 => stream.read_u64().await.ok()? as usize,
                short => usize::from(short),
            };
            match first & 15 {
                CONTINUE | TEXT => return Some((length, first & 0x80 != 0)),
                CLOSE => return None,
                _ => stream.read_exact(&mut vec![0; length]).await.ok()?,
            };
        }
    }
}
