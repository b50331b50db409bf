//! Silent and idle connections: how long they stay, and which of them is closed to make room.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use futures::{FutureExt, future::join_all};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use crate::{
    process::Presim,
    raw::{Frames, Http1, Http2, Transport, WIDE, address, connect, drain, served},
    support::{BOUND, TestNode, chain_id, endless_bundle, request},
};

/// The timeout of silent connections in these tests.
const TIMEOUT: Duration = Duration::from_millis(1_500);
/// Milliseconds after the end of every test.
const NEVER_MS: &str = "3600000";

/// The start of an HTTP/2 connection (RFC 9113, 3.4): the preface, and empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
/// The first byte of an incomplete HTTP/2 head (HEADERS of stream 1).
const HALF_HEADERS: &[u8] = &[0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82];
/// A PING frame of HTTP/2.
const PING: &[u8] = &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

fn impatient() -> TestNode {
    TestNode::quiet_with(&["--io-timeout-ms", "1500"])
}

/// Returns a bundle that runs for as long as its client waits.
fn endless() -> String {
    request(1, "eth_simulateV1", endless_bundle()).to_string()
}

/// Starts a node on which endless bundles run for as long as their clients wait.
fn busy(flags: &[&str]) -> TestNode {
    let slow = ["--deadline-ms", NEVER_MS, "--gas-cap", "1000000000000000", "--workers", "2"];
    TestNode::quiet_with(&[&slow, flags].concat())
}

/// Waits until this many bundles run.
async fn running(node: &TestNode, bundles: usize) {
    node.shows(&format!("presim_jobs_running{{lane=\"bundle\"}} {bundles}")).await;
}

/// Opens a connection and sends one request on it.
async fn idle(at: SocketAddr) -> Http1 {
    let mut connection = Http1::open(at).await;
    served(&connection.ask(&[], &chain_id()).await);
    connection
}

/// Opens connections until one is served, because an eviction takes a moment.
async fn joins(at: SocketAddr) -> Http1 {
    let began = Instant::now();
    loop {
        let mut connection = Http1::open(at).await;
        connection.send(&[], &chain_id()).await;
        match connection.read().await {
            Some(answer) if answer.status == 200 => return connection,
            other => assert!(began.elapsed() < BOUND, "never let in: {other:?}"),
        }
    }
}

/// Checks that the node closes this connection.
async fn goes(connection: &mut Http1) {
    assert!(drain(&mut connection.stream, BOUND).await.is_some(), "it stays open");
}

// Silence.

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_brings_no_whole_head_is_cut() {
    let node = impatient();
    let beginnings: [&[u8]; 9] = [
        b"",
        b"P",
        b"POST / HT",
        b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\n",
        b"GET / HTTP/1.1\r\nconnection: Upgrade\r\nupgrade: websocket\r\n",
        PREFACE,
        &[PREFACE, SETTINGS].concat(),
        &[PREFACE, SETTINGS, HALF_HEADERS].concat(),
        &[PREFACE, SETTINGS, PING].concat(),
    ];
    let cut = beginnings.map(async |beginning| {
        let began = Instant::now();
        let mut stream = connect(node.at()).await;
        stream.write_all(beginning).await.expect("it is taken");
        let told = String::from_utf8_lossy(beginning);
        assert!(drain(&mut stream, BOUND).await.is_some(), "{told:?} stays open");
        let after = began.elapsed();
        assert!(after >= TIMEOUT * 4 / 5, "{told:?} is cut after {after:?}");
    });
    join_all(cut).await;
    served(&idle(node.at()).await.ask(&[], &chain_id()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_comes_by_drops_is_cut() {
    let node = impatient();
    let head: Vec<Vec<u8>> = format!("POST / HTTP/1.1\r\nx: {}", "a".repeat(1_000)).bytes().map(|b| vec![b]).collect();
    // Pings do not count as requests.
    let pings = [vec![[PREFACE, SETTINGS].concat()], vec![PING.to_vec(); 1_000]].concat();
    let cut = [head, pings].map(async |drops| {
        let stream = connect(node.at()).await;
        let (mut reads, mut writes) = stream.into_split();
        let dripping = async {
            for drop in drops {
                let _ = writes.write_all(&drop).await;
                tokio::time::sleep(TIMEOUT / 10).await;
            }
        };
        tokio::select! {
            ended = drain(&mut reads, BOUND) => assert!(ended.is_some(), "it stays open"),
            () = dripping => panic!("all of it was taken"),
        }
    });
    join_all(cut).await;
}

// No room.

#[tokio::test(flavor = "multi_thread")]
async fn past_max_connections_the_oldest_without_a_request_goes() {
    let node = TestNode::quiet_with(&["--max-connections", "3"]);
    let mut first = idle(node.at()).await;
    let mut second = idle(node.at()).await;
    let mut third = Http2::open(node.at(), WIDE).await;
    served(&third.ask(&[], &chain_id()).await);
    let mut fourth = joins(node.at()).await;
    goes(&mut first).await;
    for kept in [&mut second, &mut fourth] {
        served(&kept.ask(&[], &chain_id()).await);
    }
    served(&third.ask(&[], &chain_id()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_of_http_2_goes_as_well() {
    let node = TestNode::quiet_with(&["--max-connections", "1"]);
    let mut idle = Http2::open(node.at(), WIDE).await;
    served(&idle.ask(&[], &chain_id()).await);
    let mut next = joins(node.at()).await;
    assert!(idle.ended(BOUND).await, "it stays open");
    served(&next.ask(&[], &chain_id()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_with_a_request_under_way_stays() {
    let node = busy(&["--max-connections", "3"]);
    let mut first = Http1::open(node.at()).await;
    first.send(&[], &endless()).await;
    let mut second = Http2::open(node.at(), WIDE).await;
    let (answer, mut body) = second.begin(&[]).await;
    body.send_data(endless().into(), true).expect("it is sent");
    running(&node, 2).await;
    let mut third = idle(node.at()).await;
    let mut fourth = joins(node.at()).await;
    goes(&mut third).await;
    served(&fourth.ask(&[], &chain_id()).await);
    // A client that is cut off frees its worker.
    running(&node, 2).await;
    assert!(first.read().now_or_never().is_none() && answer.now_or_never().is_none(), "both still wait");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_all_have_a_request_under_way_the_next_is_told_so() {
    for bound in ["--max-connections", "--max-connections-per-address"] {
        let node = busy(&[bound, "1"]);
        let mut first = Http1::open(node.at()).await;
        first.send(&[], &endless()).await;
        running(&node, 1).await;
        let answer = Http1::open(node.at()).await.ask(&[], &chain_id()).await;
        assert_eq!((answer.status, answer.code()), (503, -32005), "{bound}: {answer:?}");
        assert!(answer.json()["id"].is_null(), "{bound}: {answer:?}");
        assert!(first.read().now_or_never().is_none(), "{bound}: it still waits");
        drop(first);
        joins(node.at()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_never_goes_for_another() {
    for bound in ["--max-connections", "--max-connections-per-address"] {
        let node = TestNode::quiet_with(&[bound, "2"]);
        let mut socket = Frames::open(node.at(), &[]).await.expect("it is upgraded");
        served(&socket.ask(&chain_id()).await);
        for _ in 0..6 {
            joins(node.at()).await;
        }
        // Other connections are opened and stay silent.
        let mut silent: Vec<TcpStream> = Vec::new();
        for _ in 0..6 {
            silent.push(connect(node.at()).await);
        }
        served(&joins(node.at()).await.ask(&[], &chain_id()).await);
        served(&socket.ask(&chain_id()).await);
    }
}

/// Opens a connection from another address of this machine.
async fn from(address: &str, at: SocketAddr) -> Http1 {
    let socket = TcpSocket::new_v4().expect("there are sockets");
    socket.bind(format!("{address}:0").parse().expect("an address")).expect("loopback has many addresses");
    Http1 { at, stream: socket.connect(at).await.expect("it listens") }
}

#[tokio::test(flavor = "multi_thread")]
async fn past_the_bound_of_an_address_its_oldest_goes_and_no_other_s() {
    let node = TestNode::quiet_with(&["--max-connections-per-address", "2"]);
    let mut other = from("127.0.0.2", node.at()).await;
    served(&other.ask(&[], &chain_id()).await);
    let mut first = idle(node.at()).await;
    let mut second = idle(node.at()).await;
    let mut third = joins(node.at()).await;
    goes(&mut first).await;
    for kept in [&mut other, &mut second, &mut third] {
        served(&kept.ask(&[], &chain_id()).await);
    }
}

/// Raises the limit of open files, for this process and its children, to the maximum.
fn many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("a soft limit may be raised to the hard one");
}

#[tokio::test(flavor = "multi_thread")]
async fn eleven_hundred_silent_connections_keep_no_honest_client_out() {
    many_files();
    let presim = Presim::start(&["--traffic", "0", "--io-timeout-ms", NEVER_MS]);
    let at = address(&presim.url);
    let mut socket = Frames::open(at, &[]).await.expect("it is upgraded");
    // One after the other, because the system may accept some of many simultaneous ones without the node seeing them.
    let mut silent = Vec::new();
    for beginning in [b"", &b"P"[..], PREFACE].into_iter().cycle().take(1_100) {
        let mut stream = connect(at).await;
        // The node may already have closed it.
        let _ = stream.write_all(beginning).await;
        silent.push(stream);
    }
    let files = format!("/proc/{}/fd", presim.child.id());
    let began = Instant::now();
    while std::fs::read_dir(&files).expect("it runs").count() < 1_000 {
        assert!(began.elapsed() < BOUND, "it does not hold as many connections as it may");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for transport in Transport::ALL {
        let answer = timeout(BOUND, transport.ask(at, &[], &chain_id())).await;
        served(&answer.unwrap_or_else(|_| panic!("{transport:?}: not served")));
    }
    served(&socket.ask(&chain_id()).await);
    drop(silent);
}
