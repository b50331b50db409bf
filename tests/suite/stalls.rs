//! Peers that stop in the middle of a body or an answer, and peers that are only slow.

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::{io::AsyncReadExt, net::TcpStream, time::sleep};

use crate::{
    raw::{Frames, Http1, Http2, TEXT, Transport, WIDE, drain, frame, frame_head, head, served, whole},
    support::{BOUND, CODE_AT, TestNode, chain_id, endless_call, request},
};

/// The timeout of reads and writes without progress, where none is made.
const TIMEOUT: Duration = Duration::from_millis(1_500);
/// The timeout where progress is made. It is much longer than a pause of a slow peer, and shorter than all of its pauses.
const LONG_TIMEOUT: Duration = Duration::from_secs(6);
/// More bytes than the system's buffers hold.
const LONG: usize = 24_000_000;

fn node(timeout: Duration) -> TestNode {
    let timeout = timeout.as_millis().to_string();
    TestNode::quiet_with(&["--io-timeout-ms", &timeout, "--gas-cap", "2000000000", "--deadline-ms", "120000"])
}

/// Returns a call whose answer has about this many bytes: RETURN(0, half of them), in hex.
pub fn long_call(bytes: usize) -> Value {
    let code = format!("0x63{:08x}6000f3", bytes / 2);
    request(1, "eth_call", json!([{"to": CODE_AT}, "pending", {CODE_AT: {"code": code}}]))
}

/// Pads a request to this many bytes with trailing white space.
pub fn padded(request: &str, bytes: usize) -> String {
    request.to_owned() + &" ".repeat(bytes - request.len())
}

/// Returns a short request padded to this many bytes.
pub fn long_request(bytes: usize) -> String {
    padded(&chain_id(), bytes)
}

// Stalled peers.

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_stops_ends_its_connection() {
    let node = node(TIMEOUT);
    let text = long_request(1_000);
    let half = &text.as_bytes()[..500];
    let http1 = async {
        let mut connection = Http1::open(node.at()).await;
        connection.write(&[head(node.at(), &[], text.len()).as_bytes(), half].concat()).await;
        assert!(drain(&mut connection.stream, BOUND).await.is_some(), "HTTP/1 stays open");
    };
    let http2 = async {
        let mut connection = Http2::open(node.at(), WIDE).await;
        let (_answer, mut body) = connection.begin(&[]).await;
        body.send_data(half.to_vec().into(), false).expect("it is sent");
        assert!(connection.ended(BOUND).await, "HTTP/2 stays open");
    };
    // An incomplete frame, and an incomplete message.
    let broken = [[frame_head(TEXT, text.len()), half.to_vec()].concat(), {
        let mut first = frame(TEXT, half);
        first[0] &= 0x7f;
        first
    }];
    let websockets = broken.map(async |bytes| {
        let mut socket = Frames::open(node.at(), &[]).await.expect("it is upgraded");
        served(&socket.ask(&chain_id()).await);
        socket.0.write(&bytes).await;
        assert!(drain(&mut socket.0.stream, BOUND).await.is_some(), "a WebSocket stays open");
    });
    tokio::join!(http1, http2, join_all(websockets));
    served(&Http1::open(node.at()).await.ask(&[], &chain_id()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_head_of_a_later_request_that_stops_ends_its_connection() {
    let node = node(TIMEOUT);
    let mut connection = Http1::open(node.at()).await;
    served(&connection.ask(&[], &chain_id()).await);
    connection.write(b"POST / HTTP/1.1\r\nhost: ").await;
    assert!(drain(&mut connection.stream, BOUND).await.is_some(), "it stays open");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_not_taken_ends_its_connection() {
    let node = node(TIMEOUT);
    let long = long_call(LONG).to_string();
    // A peer that does not read is not notified of the close.
    let closed = async |kind: &str| node.shows(&format!("presim_connections{{kind=\"{kind}\"}} 0")).await;
    let http1 = async {
        let mut connection = Http1::open(node.at()).await;
        connection.send(&[], &long).await;
        connection.stream.peek(&mut [0]).await.expect("the answer begins");
        closed("http").await;
        let came = drain(&mut connection.stream, BOUND).await.expect("HTTP/1 stays open");
        assert!(came < LONG, "HTTP/1: all of it came: {came}");
    };
    let websocket = async {
        let mut socket = Frames::open(node.at(), &[]).await.expect("it is upgraded");
        served(&socket.ask(&chain_id()).await);
        socket.send(&long).await;
        socket.0.stream.peek(&mut [0]).await.expect("the answer begins");
        closed("websocket").await;
        let came = drain(&mut socket.0.stream, BOUND).await.expect("the WebSocket stays open");
        assert!(came < LONG, "WebSocket: all of it came: {came}");
    };
    let http2 = async {
        let mut connection = Http2::open(node.at(), 0).await;
        let _answer = connection.send(&[], &long).await;
        assert!(connection.ended(BOUND).await, "HTTP/2 stays open");
    };
    tokio::join!(http1, websocket, http2);
    served(&Http1::open(node.at()).await.ask(&[], &chain_id()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn signs_of_life_keep_no_answer_that_is_not_taken() {
    let node = node(TIMEOUT);
    let stream = crate::raw::connect(node.at()).await;
    let mut builder = h2::client::Builder::new();
    let (mut sender, mut connection) =
        builder.initial_window_size(0).handshake::<_, bytes::Bytes>(stream).await.expect("it speaks HTTP/2");
    let mut pings = connection.ping_pong().expect("the first");
    let mut connection = tokio::spawn(connection);
    let ask = http::Request::post(format!("http://{}/", node.at())).header("content-type", "application/json");
    let (answer, mut body) = sender.send_request(ask.body(()).expect("a request"), false).expect("it is sent");
    body.send_data(long_call(1_000_000).to_string().into(), true).expect("it is sent");
    let _answer = answer.await.expect("its head comes");
    let pinging = async {
        while pings.ping(h2::Ping::opaque()).await.is_ok() {
            sleep(TIMEOUT / 10).await;
        }
    };
    let ended = async { tokio::join!(pinging, &mut connection) };
    assert!(tokio::time::timeout(BOUND, ended).await.is_ok(), "it stays open");
}

// Slow peers.

/// Passes a request on in parts with pauses, so that all of them take much longer than the timeout.
async fn by_parts(text: &[u8], mut take: impl AsyncFnMut(&[u8], bool)) {
    let parts: Vec<&[u8]> = text.chunks(text.len().div_ceil(15)).collect();
    for (index, part) in parts.iter().enumerate() {
        sleep(LONG_TIMEOUT / 12).await;
        take(part, index + 1 == parts.len()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_comes_slowly_is_read() {
    let node = node(LONG_TIMEOUT);
    let text = long_request(30_000);
    let http1 = async {
        let mut connection = Http1::open(node.at()).await;
        connection.write(head(node.at(), &[], text.len()).as_bytes()).await;
        by_parts(text.as_bytes(), async |part, _| connection.write(part).await).await;
        served(&connection.read().await.expect("HTTP/1 is answered"));
    };
    let http2 = async {
        let mut connection = Http2::open(node.at(), WIDE).await;
        let (answer, mut body) = connection.begin(&[]).await;
        by_parts(text.as_bytes(), async |part, last| {
            body.send_data(part.to_vec().into(), last).expect("HTTP/2 is open");
        })
        .await;
        served(&whole(answer.await.expect("HTTP/2 is answered")).await.expect("HTTP/2 is answered"));
    };
    let websocket = async {
        let mut socket = Frames::open(node.at(), &[]).await.expect("it is upgraded");
        by_parts(&frame(TEXT, text.as_bytes()), async |part, _| socket.0.write(part).await).await;
        served(&socket.read().await.expect("the WebSocket is answered"));
    };
    tokio::join!(http1, http2, websocket);
}

/// Reads this many bytes with pauses that add up to much more than the timeout.
async fn sip(stream: &mut TcpStream, length: usize) {
    // The node sees progress when a third of the system's buffer is free again: 1.4 of 4 MB.
    let mut part = vec![0; 1 << 20];
    let mut left = length;
    while left > 0 {
        let part = &mut part[..left.min(1 << 20)];
        stream.read_exact(part).await.unwrap_or_else(|error| panic!("cut {left} bytes before its end: {error}"));
        left -= part.len();
        sleep(LONG_TIMEOUT / 36).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_taken_slowly_comes_whole() {
    let node = node(LONG_TIMEOUT);
    let long = long_call(45_000_000).to_string();
    let http1 = async {
        let mut connection = Http1::open(node.at()).await;
        connection.send(&[], &long).await;
        let (_, length) = connection.read_head().await.expect("HTTP/1 is answered");
        sip(&mut connection.stream, length).await;
        served(&connection.ask(&[], &chain_id()).await);
    };
    let websocket = async {
        let mut socket = Frames::open(node.at(), &[]).await.expect("it is upgraded");
        socket.send(&long).await;
        let mut came = 0;
        loop {
            let (length, is_last) = socket.read_frame_head().await.expect("the WebSocket is answered");
            if came / (1 << 20) < (came + length) / (1 << 20) {
                sleep(LONG_TIMEOUT / 36).await;
            }
            socket.0.stream.read_exact(&mut vec![0; length]).await.expect("it is not cut");
            came += length;
            if is_last {
                break;
            }
        }
        served(&socket.ask(&chain_id()).await);
    };
    let http2 = async {
        let mut connection = Http2::open(node.at(), 200_000).await;
        let mut answer = connection.send(&[], &long_call(5_000_000).to_string()).await.into_body();
        let mut came = 0;
        while let Some(chunk) = answer.data().await {
            let chunk = chunk.unwrap_or_else(|error| panic!("HTTP/2: cut after {came} bytes: {error}"));
            let before = came;
            came += chunk.len();
            answer.flow_control().release_capacity(chunk.len()).expect("it may go on");
            if came / 100_000 > before / 100_000 {
                sleep(LONG_TIMEOUT / 42).await;
            }
        }
        assert!(came > 5_000_000, "{came}");
    };
    tokio::join!(http1, websocket, http2);
}

// Requests that only wait.

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_runs_longer_than_the_time_out_is_answered() {
    let flags = ["--io-timeout-ms", "1000", "--deadline-ms", "3000", "--gas-cap", "1000000000000000"];
    let node = TestNode::quiet_with(&[&flags[..], &["--workers", "3"]].concat());
    let endless = request(1, "eth_call", endless_call()).to_string();
    let answers = join_all(Transport::ALL.map(|transport| transport.ask(node.at(), &[], &endless))).await;
    for answer in answers {
        assert_eq!(answer.code(), -32016, "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_between_two_messages_may_be_silent() {
    let node = TestNode::quiet_with(&["--io-timeout-ms", "1000"]);
    let mut socket = Frames::open(node.at(), &[]).await.expect("it is upgraded");
    served(&socket.ask(&chain_id()).await);
    sleep(Duration::from_secs(2)).await;
    served(&socket.ask(&chain_id()).await);
}
