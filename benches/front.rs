//! The front's requests a second. Compared are a jsonrpsee server with an empty method, and servers that write the
//! bytes of presim's answer without reading the request: the maximum of this machine, client included.
//!
//! `cargo bench --bench front`. One client thread uses eight connections to servers in the same process. For the table
//! at the end, the servers take turns, so that disturbances of the machine affect all alike. With `../shared/bench`
//! beside the project, the recorded chain is used, and a code of 22 kB is read.

#[path = "world/client.rs"]
mod client;

use std::{
    ffi::OsString,
    hint::black_box,
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::address;
use criterion::{Criterion, Throughput};
use memchr::memmem;
use presim::testing::{Config, Node};
use support::figures::median;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Runtime,
};

use self::client::{CONNECTIONS, connect, exchange, post};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of requests of one measurement, over all connections.
const REQUESTS: usize = 4_000;
/// The number of turns of each server in the table.
const ROUNDS: usize = 15;
/// The minimum throughput of a look-up with a short answer, as a share of an empty method's.
const FLOOR: f64 = 0.8;

const GENESIS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/bench/genesis.json");

/// A request to a server, and the connections that it is sent over.
struct Client {
    name: String,
    request: Vec<u8>,
    streams: Vec<TcpStream>,
}

impl Client {
    /// Connects to `server`. Returns the client and the server's answer.
    async fn connect(name: &str, server: SocketAddr, method: &str, params: &str) -> (Self, Vec<u8>) {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        let mut client = Self { name: name.to_owned(), request: post(&body), streams: connect(server).await };
        let mut answer = Vec::new();
        exchange(&mut client.streams[0], &client.request, &mut answer).await;
        assert!(memmem::find(&answer, b"\"result\"").is_some(), "{name} answers: {}", String::from_utf8_lossy(&answer));
        (client, answer)
    }

    /// Sends `count` requests, divided over the connections, each of which sends its share in sequence.
    async fn run(&mut self, count: usize) {
        let request = &self.request;
        let each = self.streams.iter_mut().map(|stream| async move {
            let mut buffer = Vec::new();
            for _ in 0..count / CONNECTIONS {
                black_box(exchange(stream, request, &mut buffer).await.len());
            }
        });
        futures::future::join_all(each).await;
    }

    /// Returns the requests answered a second.
    async fn throughput(&mut self) -> f64 {
        let began = Instant::now();
        self.run(REQUESTS).await;
        REQUESTS as f64 / began.elapsed().as_secs_f64()
    }
}

/// Starts a jsonrpsee server with one method that returns a constant.
async fn empty_jsonrpsee() -> SocketAddr {
    let server = jsonrpsee::server::ServerBuilder::default().build("127.0.0.1:0").await.expect("a free port");
    let address = server.local_addr().expect("it has an address");
    let mut module = jsonrpsee::RpcModule::new(());
    module.register_method("empty", |_, (), _| "0x0").expect("the name is free");
    tokio::spawn(server.start(module).stopped());
    address
}

/// Starts a server that takes anything it reads for a request and writes `answer`.
async fn canned(answer: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let (address, answer) = (listener.local_addr().expect("it has an address"), Arc::new(answer));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.set_nodelay(true).expect("a socket option");
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut request = [0; 4096];
                while stream.read(&mut request).await.is_ok_and(|length| length > 0) {
                    if stream.write_all(&answer).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

fn main() {
    // One runtime for the servers, and one thread for the client.
    let servers = Runtime::new().expect("threads");
    let client = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a thread");
    let mut flags =
        ["presim", "--listen", "127.0.0.1:0", "--log", "warn", "--prefix-cache-mb", "0"].map(OsString::from).to_vec();
    let recorded = Path::new(GENESIS).exists();
    if recorded {
        flags.extend(["--genesis", GENESIS, "--feed", "devnet"].map(OsString::from));
    }
    let node = Node::start(Config::load(flags).expect("the flags are right")).expect("the node starts");
    let presim = node.info().listen.expect("it listens");
    // In the recorded world, an account and a token with a long code; otherwise the devnet's own.
    let (account, contract) = match (recorded, node.info().trading) {
        (false, Some(trading)) => (node.info().accounts[0].address(), trading.weth),
        _ => {
            (address!("5ea0000000000000000000000000000000000000"), address!("dc64a140aa3e981100a9beca4e685f962f0cf6c9"))
        }
    };
    let empty = servers.block_on(empty_jsonrpsee());

    let reads = [
        ("eth_getBalance", "eth_getBalance", format!(r#"["{account}","latest"]"#)),
        ("eth_getStorageAt", "eth_getStorageAt", format!(r#"["{contract}","0x2","pending"]"#)),
        ("eth_getCode, none", "eth_getCode", format!(r#"["{account}","latest"]"#)),
        ("eth_getCode", "eth_getCode", format!(r#"["{contract}","latest"]"#)),
        ("eth_chainId", "eth_chainId", "[]".to_owned()),
    ];
    let mut clients = vec![client.block_on(Client::connect("empty jsonrpsee method", empty, "empty", "[]")).0];
    let mut cans = Vec::new();
    for (name, method, params) in &reads {
        let (asked, answer) = client.block_on(Client::connect(name, presim, method, params));
        let name = format!("{name}, {} bytes", answer.len());
        let server = servers.block_on(canned(answer));
        clients.push(asked);
        cans.push(client.block_on(Client::connect(&name, server, method, params)).0);
    }

    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    {
        let mut group = criterion.benchmark_group("front");
        group.throughput(Throughput::Elements(REQUESTS as u64)).sample_size(10);
        for one in &mut clients {
            group.bench_function(one.name.clone(), |bencher| bencher.iter(|| client.block_on(one.run(REQUESTS))));
        }
        group.finish();
    }
    criterion.final_summary();
    if std::env::args().any(|arg| arg == "--test" || arg == "--list") {
        return;
    }

    let mut rounds = vec![Vec::with_capacity(ROUNDS); clients.len() + cans.len()];
    for _ in 0..ROUNDS {
        for (one, results) in clients.iter_mut().chain(&mut cans).zip(&mut rounds) {
            results.push(client.block_on(one.throughput()));
        }
    }
    let medians: Vec<f64> = rounds.into_iter().map(median).collect();
    let (presim, canned) = medians.split_at(clients.len());
    println!(
        "\nrequests a second, medians of {ROUNDS} interleaved rounds ({CONNECTIONS} connections); floor {FLOOR} of the empty method"
    );
    println!("{:30} {:10.0}", clients[0].name, presim[0]);
    println!("{:30} {:>10} {:>10} {:>10} {:>16}", "", "presim", "canned", "of canned", "of empty method");
    for ((can, requests), canned) in cans.iter().zip(&presim[1..]).zip(canned) {
        let (of_canned, of_empty) = (requests / canned, requests / presim[0]);
        println!("{:30} {requests:10.0} {canned:10.0} {of_canned:10.2} {of_empty:16.2}", can.name);
    }
}
