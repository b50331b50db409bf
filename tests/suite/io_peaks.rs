//! The memory of a node whose clients send requests without end and do not read the answers.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use futures::future::join_all;
use serde_json::json;
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use crate::{
    process::Presim,
    raw::{Frames, Http1, Http2, PING, TEXT, Transport, WIDE, address, frame, frame_head, head},
    stalls::long_call,
    support::{BOUND, request, say},
};

/// The memory that the node may use above its idle memory.
const MAX_MIB: u64 = 300;
/// The maximum duration of an attack.
const ATTACK: Duration = Duration::from_secs(8);

/// A node in a process of its own, and its memory when idle.
struct Victim {
    presim: Presim,
    at: SocketAddr,
    idle: u64,
}

impl Victim {
    async fn start() -> Self {
        let presim = Presim::start(&["--traffic", "0", "--gas-cap", "2000000000", "--deadline-ms", "60000"]);
        let at = address(&presim.url);
        let mut victim = Self { presim, at, idle: 0 };
        victim.serves().await;
        victim.has_kzg_tables().await;
        // Resets the peak (proc(5), clear_refs).
        std::fs::write(format!("/proc/{}/clear_refs", victim.presim.child.id()), "5").expect("a peak can be reset");
        victim.idle = victim.mib("VmRSS");
        victim
    }

    /// Returns a line of the process's status, in MiB.
    fn mib(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.presim.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).expect("a size in kB");
        kib.parse::<u64>().expect("a number") / 1_024
    }

    /// Waits for the tables of EIP-4844, of about 100 MiB, which a thread loads beside the start: a call of the
    /// point-evaluation precompile (address 0x0a), with the commitment and the proof of the zero polynomial.
    async fn has_kzg_tables(&self) {
        let hash = "010657f37554c781402a22917dee2f75def7ab966d7b770905398eba3c444014";
        let infinity = format!("c0{:094}", 0);
        let input = format!("0x{hash}{:0128}{infinity}{infinity}", 0);
        let to = "0x000000000000000000000000000000000000000a";
        let text = request(1, "eth_call", json!([{ "to": to, "input": input }, "latest"])).to_string();
        let answer = timeout(BOUND, Transport::Http1.ask(self.at, &[], &text)).await;
        let answer = answer.expect("the tables are loaded in time").json();
        assert_eq!(answer["result"].as_str().map(|result| result.len()), Some(2 + 128), "{answer}");
    }

    /// Checks that an honest client is served over every transport.
    async fn serves(&self) {
        let text = request(1, "eth_chainId", json!([])).to_string();
        for transport in Transport::ALL {
            let answer = timeout(BOUND, transport.ask(self.at, &[], &text)).await;
            assert_eq!(answer.expect("an honest client is served in time").json()["result"], "0x7a69", "{transport:?}");
        }
    }

    /// Checks that the memory falls to its bound while honest clients are served. The memory of finished answers may be
    /// above it for a moment, until the allocator returns it.
    async fn stands(&self, attack: &str) {
        let began = Instant::now();
        loop {
            self.serves().await;
            let (now, peak) = (self.mib("VmRSS"), self.mib("VmHWM"));
            if now <= self.idle + MAX_MIB {
                say(&format!("{attack}: {} MiB idle, {now} MiB under it, {peak} MiB at its peak", self.idle));
                return;
            }
            assert!(began.elapsed() < BOUND, "{attack}: {} MiB idle, {now} MiB under it", self.idle);
        }
    }
}

/// Writes until the node accepts no more for a second, closes the connection, or has accepted `length` bytes.
async fn push(stream: &mut TcpStream, bytes: &[u8], length: usize) {
    let began = Instant::now();
    let mut pushed = 0;
    while pushed < length && began.elapsed() < ATTACK {
        let part = &bytes[..bytes.len().min(length - pushed)];
        match timeout(Duration::from_secs(1), stream.write(part)).await {
            // The rest of a frame must follow, because the next frame would be read as its continuation.
            Ok(Ok(written @ 1..)) if written < part.len() => {
                let rest = timeout(Duration::from_secs(1), stream.write_all(&part[written..])).await;
                if !matches!(rest, Ok(Ok(()))) {
                    return;
                }
                pushed += part.len();
            }
            Ok(Ok(written @ 1..)) => pushed += written,
            _ => return,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pings_whose_pongs_nobody_reads_are_bounded() {
    let victim = Victim::start().await;
    let mut socket = Frames::open(victim.at, &[]).await.expect("it is upgraded");
    let pings = frame(PING, &[0; 125]).repeat(500);
    // One gigabyte of pings.
    push(&mut socket.0.stream, &pings, 16_000 * pings.len()).await;
    victim.stands("pings").await;
}

/// Unread answers: 40 of 45 MB.
const ANSWERS: usize = 40;
const ANSWER: usize = 45_000_000;

/// Waits until the node's memory has not grown for a second.
async fn settled(victim: &Victim) {
    let began = Instant::now();
    let (mut peak, mut since) = (victim.mib("VmHWM"), Instant::now());
    while since.elapsed() < Duration::from_secs(1) && began.elapsed() < ATTACK {
        sleep(Duration::from_millis(50)).await;
        let now = victim.mib("VmHWM");
        if now > peak {
            (peak, since) = (now, Instant::now());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_takes_are_bounded_over_http_1() {
    let victim = Victim::start().await;
    let long = long_call(ANSWER).to_string();
    let connections = (0..ANSWERS).map(async |_| {
        let mut connection = Http1::open(victim.at).await;
        connection.send(&[], &long).await;
        // Waits until an answer has begun, whatever it is.
        let _ = timeout(ATTACK, connection.stream.peek(&mut [0])).await;
        connection
    });
    let connections = join_all(connections).await;
    settled(&victim).await;
    victim.stands("answers over HTTP/1").await;
    drop(connections);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_takes_are_bounded_over_http_2() {
    let victim = Victim::start().await;
    let long = Bytes::from(long_call(ANSWER).to_string());
    let mut connection = Http2::open(victim.at, 0).await;
    let mut answers = Vec::new();
    for _ in 0..ANSWERS {
        let (answer, mut body) = connection.begin(&[]).await;
        body.send_data(long.clone(), true).expect("it is sent");
        answers.push(answer);
    }
    let answers = timeout(ATTACK, join_all(answers)).await;
    settled(&victim).await;
    victim.stands("answers over HTTP/2").await;
    drop(answers);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_takes_are_bounded_over_websocket() {
    let victim = Victim::start().await;
    let long = long_call(ANSWER).to_string();
    let sockets = (0..ANSWERS).map(async |_| {
        let mut socket = Frames::open(victim.at, &[]).await.expect("it is upgraded");
        socket.send(&long).await;
        // When its head arrives, the answer has begun.
        let _ = timeout(ATTACK, socket.read_frame_head()).await;
        socket
    });
    let sockets = join_all(sockets).await;
    settled(&victim).await;
    victim.stands("answers over WebSocket").await;
    drop(sockets);
}

/// Unfinished bodies: 150, of which 10 MB each are sent.
const BODIES: usize = 150;
const BODY: usize = 10_000_000;

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_do_not_end_are_bounded_over_http_1() {
    let victim = Victim::start().await;
    let spaces = vec![b' '; 1 << 16];
    let streams = (0..BODIES).map(async |_| {
        let mut connection = Http1::open(victim.at).await;
        connection.write(head(victim.at, &[], BODY + 1).as_bytes()).await;
        push(&mut connection.stream, &spaces, BODY).await;
        connection
    });
    let streams = join_all(streams).await;
    settled(&victim).await;
    victim.stands("bodies over HTTP/1").await;
    drop(streams);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_no_told_length_are_bounded_over_http_1() {
    let victim = Victim::start().await;
    let streams = (0..BODIES).map(async |_| {
        let mut connection = Http1::open(victim.at).await;
        let chunked = head(victim.at, &[("content-length", "x")], 0);
        let chunked = chunked.replace("content-length: x", "transfer-encoding: chunked");
        connection.write(format!("{chunked}{:x}\r\n", BODY + 1).as_bytes()).await;
        push(&mut connection.stream, &vec![b' '; 1 << 16], BODY).await;
        connection
    });
    let streams = join_all(streams).await;
    settled(&victim).await;
    victim.stands("chunked bodies over HTTP/1").await;
    drop(streams);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_do_not_end_are_bounded_over_http_2() {
    let victim = Victim::start().await;
    let mut connection = Http2::open(victim.at, WIDE).await;
    let spaces = Bytes::from(vec![b' '; BODY]);
    let mut bodies = Vec::new();
    for _ in 0..BODIES {
        // The node limits how many streams it accepts.
        let Ok((answer, mut body)) = timeout(Duration::from_secs(1), connection.begin(&[])).await else { break };
        let _ = body.send_data(spaces.clone(), false);
        bodies.push((answer, body));
    }
    settled(&victim).await;
    victim.stands("bodies over HTTP/2").await;
    drop(bodies);
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_do_not_end_are_bounded_over_websocket() {
    let victim = Victim::start().await;
    let spaces = vec![b' '; 1 << 16];
    let sockets = (0..BODIES).map(async |_| {
        let mut socket = Frames::open(victim.at, &[]).await.expect("it is upgraded");
        socket.0.write(&frame_head(TEXT, BODY + 1)).await;
        push(&mut socket.0.stream, &spaces, BODY).await;
        socket
    });
    let sockets = join_all(sockets).await;
    settled(&victim).await;
    victim.stands("messages over WebSocket").await;
    drop(sockets);
}
