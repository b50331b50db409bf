//! The cost of subscribers for the feed: the time to publish a snapshot with a thousand subscribers and with none.
//!
//! `cargo bench --bench subscribers`. The subscribers are connections of another process, as in production. Phases with
//! and without them alternate on one node, and the node's own histogram is read at the end of each.

use std::{
    env,
    ffi::OsString,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use futures::{SinkExt, StreamExt, future::join_all};
use presim::{Config, Node, testing::telemetry::PUBLISH_SECONDS};
use tokio_tungstenite::{connect_async, tungstenite::Message};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SUBSCRIBERS: usize = 1_000;
/// The number of phases of each kind. `PHASE` is the duration of one.
const PHASES: usize = 4;
const PHASE: Duration = Duration::from_secs(6);
/// The maximum growth of the publishing time at the 99th percentile.
const LIMIT: f64 = 1.2;

fn main() {
    let args: Vec<String> = env::args().collect();
    if let Some(at) = args.iter().position(|arg| arg == "--subscribe") {
        return subscribe(args[at + 1].parse().expect("an address"));
    }
    if args.iter().any(|arg| arg == "--test" || arg == "--list") {
        return;
    }
    let flags =
        ["presim", "--listen", "127.0.0.1:0", "--log", "warn", "--sub-block-ms", "50", "--max-connections", "1100"];
    let node = Node::start(Config::load(flags.map(OsString::from)).expect("the flags are right")).expect("it starts");
    let mut counts = [Histogram::default(), Histogram::default()];
    for _ in 0..PHASES {
        for (subscribed, count) in counts.iter_mut().enumerate() {
            let others = (subscribed == 1).then(|| Subscribers::start(node.info().listen));
            let before = Histogram::read(&node);
            thread::sleep(PHASE);
            count.add(&Histogram::read(&node), &before);
            drop(others);
        }
    }
    println!("time to publish, {PHASES} interleaved phases of {PHASE:?} each; limit {LIMIT} at p99");
    println!("{:12} {:>10} {:>10} {:>10}", "subscribers", "snapshots", "p50 ms", "p99 ms");
    for (subscribers, histogram) in [0, SUBSCRIBERS].iter().zip(&counts) {
        let [p50, p99] = [0.5, 0.99].map(|part| histogram.percentile(part) * 1e3);
        println!("{subscribers:12} {:10} {p50:10.3} {p99:10.3}", histogram.total());
    }
    println!("ratio at p99: {:.2}", counts[1].percentile(0.99) / counts[0].percentile(0.99));
}

/// A cumulative histogram: upper bounds in seconds, and the number of samples at or below each.
#[derive(Default)]
struct Histogram(Vec<(f64, f64)>);

impl Histogram {
    fn read(node: &Node) -> Self {
        let bucket = format!("{PUBLISH_SECONDS}_bucket{{le=\"");
        let text = node.metrics().render();
        let lines = text.lines().filter_map(|line| line.strip_prefix(&bucket)?.split_once("\"} "));
        Self(lines.filter_map(|(bound, count)| Some((bound.parse().ok()?, count.parse().ok()?))).collect())
    }

    fn add(&mut self, after: &Self, before: &Self) {
        if self.0.is_empty() {
            self.0 = after.0.iter().map(|(bound, _)| (*bound, 0.0)).collect();
        }
        let before = |at: usize| before.0.get(at).map_or(0.0, |(_, count)| *count);
        for (at, (sum, (_, count))) in self.0.iter_mut().zip(&after.0).enumerate() {
            sum.1 += count - before(at);
        }
    }

    fn total(&self) -> f64 {
        self.0.last().map_or(0.0, |(_, count)| *count)
    }

    /// Returns a percentile, interpolated within its bucket as Prometheus does.
    fn percentile(&self, part: f64) -> f64 {
        let rank = self.total() * part;
        let (mut low, mut under) = (0.0, 0.0);
        for &(bound, count) in &self.0 {
            if count >= rank {
                return low + (bound - low) * (rank - under) / (count - under).max(1.0);
            }
            (low, under) = (bound, count);
        }
        low
    }
}

/// The process that subscribes, which is ended when dropped.
struct Subscribers(Child);

impl Subscribers {
    fn start(node: SocketAddr) -> Self {
        let program = env::current_exe().expect("this program");
        let child = Command::new(program).args(["--subscribe", &node.to_string()]).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("it starts");
        let mut said = String::new();
        let output = child.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut said).expect("it says when it is ready");
        assert_eq!(said.trim(), "ready");
        Self(child)
    }
}

impl Drop for Subscribers {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Subscribes and reads notifications until the process is ended.
fn subscribe(node: SocketAddr) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a thread");
    runtime.block_on(async {
        let mut sockets = Vec::new();
        for _ in 0..SUBSCRIBERS {
            let (mut socket, _) = connect_async(format!("ws://{node}")).await.expect("it connects");
            let request = r#"{"jsonrpc":"2.0","id":1,"method":"eth_subscribe","params":["newHeads"]}"#;
            socket.send(Message::text(request)).await.expect("it sends");
            socket.next().await.expect("it is answered").expect("a message");
            sockets.push(socket);
        }
        println!("ready");
        join_all(sockets.iter_mut().map(|socket| async { while let Some(Ok(_)) = socket.next().await {} })).await;
    });
}
