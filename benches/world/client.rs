//! A client over HTTP that costs as little as possible, because it shares the machine with the server.

use std::net::SocketAddr;

use memchr::memmem;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// The number of a client's connections.
pub const CONNECTIONS: usize = 8;

/// Opens the client's connections.
pub async fn connect(server: SocketAddr) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(server).await.expect("the server listens");
        stream.set_nodelay(true).expect("a socket option");
        streams.push(stream);
    }
    streams
}

/// Returns the HTTP request that posts a body.
pub fn post(body: &str) -> Vec<u8> {
    let head = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length:";
    format!("{head} {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Sends one request and reads the whole answer, head included.
pub async fn exchange<'a>(stream: &mut TcpStream, request: &[u8], buffer: &'a mut Vec<u8>) -> &'a [u8] {
    stream.write_all(request).await.expect("it is sent");
    buffer.clear();
    loop {
        let read = stream.read_buf(buffer).await.expect("it is answered");
        assert!(read > 0, "the server closed the connection");
        // The servers write header names in lower case. The parsing is minimal, because the client is not measured.
        let Some(head) = memmem::find(buffer, b"\r\n\r\n") else { continue };
        let length = memmem::find(&buffer[..head], b"content-length: ").map(|at| &buffer[at + 16..head]);
        let digits = length.expect("the answer has a length").iter().take_while(|byte| byte.is_ascii_digit());
        let length = digits.fold(0, |length, digit| 10 * length + usize::from(digit - b'0'));
        if buffer.len() >= head + 4 + length {
            break;
        }
    }
    buffer
}
