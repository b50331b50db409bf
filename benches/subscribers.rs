//! The cost of subscribers for the feed: the time to publish a snapshot with a thousand subscribers and with none.
//!
//! `cargo bench --bench subscribers`. The subscribers are connections of another process, as in production. Phases with
//! and without them alternate on one node, and the node's own histogram is read at the end of each.

#[path = "world/process.rs"]
mod process;

use std::{
    env,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use futures::{SinkExt, StreamExt, future::join_all};
use tokio_tungstenite::{connect_async, tungstenite::Message};

use self::process::{Histogram, NodeProcess, PUBLISHING};

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
    let node = NodeProcess::start(&["--sub-block-ms", "50", "--max-connections", "1100"]);
    let mut counts = [Histogram::default(), Histogram::default()];
    for _ in 0..PHASES {
        for (subscribed, count) in counts.iter_mut().enumerate() {
            let others = (subscribed == 1).then(|| Subscribers::start(node.listen));
            let before = node.histogram(PUBLISHING);
            thread::sleep(PHASE);
            count.add(&node.histogram(PUBLISHING), &before);
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
