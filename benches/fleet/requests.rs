//! The requests that a replica answers: beside those of a single node, and over NATS beside HTTP.

use std::{cell::Cell, path::Path, time::Instant};

use bytes::Bytes;
use futures::future::join_all;
use support::figures::at_least;
use tokio::net::TcpStream;

use crate::{
    Extent, FLEET,
    client::{CONNECTIONS, connect, exchange, post},
    ingester, median,
    process::{NodeProcess, cpu_of},
    publishing::runtime,
    replica, serve,
};

const BENCH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/bench");
/// The rounds whose spread is judged.
const ROUNDS: usize = 5;
/// Each request runs as a whole.
const WHOLE_RUNS: [&str; 2] = ["--prefix-cache-mb", "0"];

/// A static chain, which is the upstream of all nodes, and the bodies of the requests.
struct StaticWorld {
    upstream: NodeProcess,
    genesis: String,
    bodies: Vec<String>,
}

impl StaticWorld {
    /// Loads the world. If it does not exist, prints a line and returns `None`.
    fn load() -> Option<Self> {
        let folder = Path::new(BENCH);
        let Ok(bodies) = std::fs::read_to_string(folder.join("sim_sandwich.ndjson")) else {
            println!("skipped: no sim_sandwich.ndjson in {BENCH}");
            return None;
        };
        let genesis = folder.join("genesis.json").to_str().expect("the path is UTF-8").to_owned();
        let upstream = NodeProcess::start(&["--genesis", &genesis, "--feed", "static"]);
        Some(Self { upstream, genesis, bodies: bodies.lines().map(ToOwned::to_owned).collect() })
    }

    /// Returns the flags of a node that follows the chain.
    fn flags(&self) -> Vec<String> {
        let upstream = format!("ws://{}", self.upstream.listen);
        let flags = ["--upstream", &upstream, "--genesis", &self.genesis];
        flags.iter().chain(&WHOLE_RUNS).map(ToString::to_string).collect()
    }

    /// Returns the flags of a node that publishes the chain.
    fn publishing(&self, url: &str) -> Vec<String> {
        let fleet = ["--publish", url, "--fleet", FLEET].map(ToOwned::to_owned);
        fleet.into_iter().chain(self.flags()).collect()
    }
}

/// Compares a replica with a node that follows the upstream itself. The chain does not change meanwhile.
pub fn beside_a_single_node(extent: Extent) {
    let Some(world) = StaticWorld::load() else { return };
    let server = serve();
    let single = ingester(&world.flags(), &[]);
    let _leader = ingester(&world.publishing(&server.url()), &[]);
    let follower = replica(&server.url(), &WHOLE_RUNS);
    let runtime = runtime();
    let mut ratios = Vec::new();
    runtime.block_on(async {
        let mut clients = [HttpClient::connect(&follower, &world).await, HttpClient::connect(&single, &world).await];
        for _ in 0..ROUNDS {
            let [one, other] = &mut clients;
            let (replica, single) = (one.throughput(extent).await, other.throughput(extent).await);
            println!("  {replica:.0} requests a second of the replica, {single:.0} of the single node");
            ratios.push(replica / single);
        }
    });
    let most = ratios.iter().copied().fold(0.0, f64::max);
    median("ratios of the rounds", ratios);
    at_least("a replica's requests beside a single node's, the best round", most, 0.99);
}

/// Compares requests to the micro service with requests over HTTP to the same replica.
pub fn over_nats(extent: Extent) {
    let Some(world) = StaticWorld::load() else { return };
    let server = serve();
    let _leader = ingester(&world.publishing(&server.url()), &[]);
    let follower = replica(&server.url(), &WHOLE_RUNS);
    let runtime = runtime();
    let mut ratios = Vec::new();
    runtime.block_on(async {
        let mut http = HttpClient::connect(&follower, &world).await;
        let nats = NatsClient { client: server.connect().await, bodies: texts(&world) };
        for body in &nats.bodies {
            check(&nats.ask(body).await);
        }
        for _ in 0..ROUNDS {
            let used = || [follower.cpu(), cpu_of(&server.child)].map(|cpu| cpu.as_secs_f64());
            let begun = used();
            let over_nats = nats.throughput(extent).await;
            let between = used();
            let over_http = http.throughput(extent).await;
            let ended = used();
            // Microseconds of CPU time of a request.
            let each = |from: f64, to: f64, throughput: f64| 1e6 * (to - from) / (throughput * extent.turn.as_secs_f64());
            println!(
                "  {over_nats:.0} requests a second over NATS ({:.0} µs of CPU each, and {:.0} µs of nats-server), {over_http:.0} over HTTP ({:.0} µs)",
                each(begun[0], between[0], over_nats),
                each(begun[1], between[1], over_nats),
                each(between[0], ended[0], over_http),
            );
            ratios.push(over_nats / over_http);
        }
    });
    at_least("requests over NATS beside HTTP", median("ratios of the rounds", ratios), 0.6);
}

fn texts(world: &StaticWorld) -> Vec<Bytes> {
    world.bodies.iter().map(|body| Bytes::from(body.clone())).collect()
}

/// Checks that an answer is no error.
fn check(answer: &[u8]) {
    let text = String::from_utf8_lossy(answer);
    assert!(text.contains("\"result\""), "{text}");
}

/// A client over HTTP.
struct HttpClient {
    streams: Vec<TcpStream>,
    requests: Vec<Vec<u8>>,
}

impl HttpClient {
    /// Connects to a node, and asks all once.
    async fn connect(node: &NodeProcess, world: &StaticWorld) -> Self {
        let mut streams = connect(node.listen).await;
        let requests: Vec<Vec<u8>> = world.bodies.iter().map(|body| post(body)).collect();
        let mut buffer = Vec::new();
        for request in &requests {
            check(exchange(&mut streams[0], request, &mut buffer).await);
        }
        Self { streams, requests }
    }

    /// Returns the requests answered a second, each connection one after the other.
    async fn throughput(&mut self, extent: Extent) -> f64 {
        let (began, done, requests) = (Instant::now(), Cell::new(0), &self.requests);
        let each = self.streams.iter_mut().map(|stream| {
            let done = &done;
            async move {
                let mut buffer = Vec::new();
                while began.elapsed() < extent.turn {
                    exchange(stream, &requests[done.get() % requests.len()], &mut buffer).await;
                    done.set(done.get() + 1);
                }
            }
        });
        join_all(each).await;
        done.get() as f64 / began.elapsed().as_secs_f64()
    }
}

/// A client over NATS.
struct NatsClient {
    client: async_nats::Client,
    bodies: Vec<Bytes>,
}

impl NatsClient {
    async fn ask(&self, body: &Bytes) -> Bytes {
        let subject = format!("presim.{FLEET}.rpc");
        self.client.request(subject, body.clone()).await.expect("a replica answers").payload
    }

    /// Returns the requests answered a second, as many at once as over HTTP.
    async fn throughput(&self, extent: Extent) -> f64 {
        let (began, done) = (Instant::now(), Cell::new(0));
        let each = (0..CONNECTIONS).map(|_| {
            let done = &done;
            async move {
                while began.elapsed() < extent.turn {
                    self.ask(&self.bodies[done.get() % self.bodies.len()]).await;
                    done.set(done.get() + 1);
                }
            }
        });
        join_all(each).await;
        done.get() as f64 / began.elapsed().as_secs_f64()
    }
}
