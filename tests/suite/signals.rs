//! Signals end the program at any moment of its life, and a starting node reports what it waits for.

use std::{
    fs,
    io::{ErrorKind, Read},
    net::TcpListener,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    process::{Presim, command, eventually, refusal, text, until_it_ends},
    support::{BOUND, http, request, signal},
};

/// A starting program, which is ended when dropped.
pub struct Starting {
    child: Child,
    http: reqwest::Client,
}

impl Starting {
    pub fn spawn(flags: &[&str]) -> Self {
        let child = command(&[&["--listen", "127.0.0.1:0"], flags].concat(), &[]).spawn().expect("the program runs");
        Self { child, http: http() }
    }

    /// Returns the URL of the port that the program listens on, or `None` if it does not yet: its banner comes later.
    pub fn url(&self) -> Option<String> {
        let process = format!("/proc/{}", self.child.id());
        let files = fs::read_dir(format!("{process}/fd")).ok()?;
        let files: Vec<PathBuf> = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok()).collect();
        // Local address, state (0A is listening) and inode of each socket.
        let sockets = fs::read_to_string(format!("{process}/net/tcp")).ok()?;
        let port = sockets.lines().find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let is_own = fields[3] == "0A" && files.contains(&format!("socket:[{}]", fields[9]).into());
            is_own.then(|| fields[1].split_once(':')).flatten()
        });
        Some(format!("http://127.0.0.1:{}", u16::from_str_radix(port?.1, 16).expect("a port")))
    }

    /// Returns the status and the document of `/health`, or `None` if nothing listens.
    pub async fn health(&self) -> Option<(u16, Value)> {
        let answer = self.http.get(self.url()? + "/health").send().await.ok()?;
        Some((answer.status().as_u16(), answer.json().await.expect("JSON")))
    }

    /// Waits until the reason in `/health` contains `reason`.
    pub async fn waits_for(&self, reason: &str) {
        let (status, health) = eventually(reason, async || {
            let health = self.health().await?;
            health.1["reason"].as_str().is_some_and(|text| text.contains(reason)).then_some(health)
        })
        .await;
        let (state, cause) = (&health["status"], &health["cause"]);
        assert_eq!((status, state, cause), (503, &json!("starting"), &json!("connecting")), "{health}");
        let ready = self.http.get(self.url().unwrap() + "/ready").send().await.expect("it answers");
        assert_eq!(ready.status(), 503);
        let ready: Value = ready.json().await.expect("JSON");
        assert!(ready["status"] == "starting" && ready["reason"].is_string(), "{ready}");
    }

    /// Sends a request. Returns the HTTP status and the answer.
    pub async fn ask(&self, path: &str, method: &str) -> (u16, Value) {
        let post = self.http.post(self.url().unwrap() + path).json(&request(1, method, json!([])));
        let answer = post.send().await.expect("it answers");
        (answer.status().as_u16(), answer.json().await.expect("JSON"))
    }

    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Checks that the program ends in order.
    pub fn ends_in_order(mut self) {
        let status = until_it_ends(self.child.id(), || self.child.wait()).unwrap();
        let mut told = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert_eq!(status.code(), Some(0), "{status}: {told}");
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until the process handles SIGTERM.
fn hears_signals(child: &Child) {
    const SIGTERM: u32 = 15;
    let deadline = Instant::now() + BOUND;
    loop {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        if u64::from_str_radix(caught, 16).unwrap() & (1 << (SIGTERM - 1)) != 0 {
            return;
        }
        assert!(Instant::now() < deadline, "it does not hear signals");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Creates a file that nothing writes to, so that opening it blocks.
fn endless(folder: &TempDir) -> PathBuf {
    let path = folder.path().join("endless");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_takes_long_is_told_of_and_can_be_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let endless = endless(&folder);
    let genesis = folder.path().join("genesis.json");
    fs::write(&genesis, r#"{"config":{"chainId":1},"alloc":{},"gasLimit":"0x1c9c380","difficulty":"0x0"}"#).unwrap();
    let cases: [(&[&str], &str, &str); 3] = [
        (&["--wallet-key-file", text(&endless)], "it reads the keys of its wallet", "TERM"),
        (&["--genesis", text(&endless)], "it builds its first block", "INT"),
        (&["--genesis", text(&genesis), "--chain", text(&endless)], "it imports the blocks of --chain", "TERM"),
    ];
    for (flags, reason, name) in cases {
        let presim = Starting::spawn(flags);
        presim.waits_for(&format!("the node is starting: {reason}")).await;
        for path in ["/", "/standard", "/nowhere"] {
            let (status, answer) = presim.ask(path, "eth_chainId").await;
            let error = json!({"code": -32000, "message": format!("the node is starting: {reason}")});
            assert_eq!((status, answer), (503, json!({"jsonrpc": "2.0", "id": null, "error": error})));
        }
        presim.signal(name);
        presim.ends_in_order();
    }
}

/// As on a running node, requests for other hosts are refused, but for those of load balancers.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_points_a_name_at_a_node_that_starts_learns_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let presim = Starting::spawn(&["--genesis", text(&endless(&folder))]);
    presim.waits_for("the node is starting").await;
    let request = presim.http.get(presim.url().unwrap()).header("host", "evil.example");
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 403);
    assert!(!answer.text().await.unwrap().contains("starting"));
    // The probes of a load balancer name the node by its address.
    let probe = presim.http.get(presim.url().unwrap() + "/ready").header("host", "10.0.0.7:8545").send().await.unwrap();
    assert_eq!(probe.status(), 503);
    assert!(probe.text().await.unwrap().contains("starting"));
}

/// A large body is read to its end, so that its sender sees the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_request_to_a_node_that_starts_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let presim = Starting::spawn(&["--genesis", text(&endless(&folder))]);
    presim.waits_for("the node is starting").await;
    let answer = presim.http.post(presim.url().unwrap()).body(vec![b' '; 8 << 20]).send().await.expect("it answers");
    assert_eq!(answer.status(), 503);
    let answer: Value = answer.json().await.unwrap();
    assert_eq!(answer["error"]["code"], -32000, "{answer}");
}

#[test]
fn a_command_line_that_takes_long_to_read_can_be_stopped() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["TERM", "INT"] {
        let presim = Starting::spawn(&["--config", text(&endless(&folder))]);
        hears_signals(&presim.child);
        presim.signal(name);
        presim.ends_in_order();
        fs::remove_file(folder.path().join("endless")).unwrap();
    }
}

/// The moments range from the installation of the signal handlers to a node that serves.
#[test]
fn a_signal_at_any_moment_of_the_start_ends_it_in_order() {
    let data = tempfile::tempdir().unwrap();
    let flags = ["--data-dir", text(data.path()), "--sub-block-ms", "20"];
    for moment in 0..20 {
        let presim = Starting::spawn(&flags);
        hears_signals(&presim.child);
        std::thread::sleep(Duration::from_millis(moment * 10));
        presim.signal(if moment % 2 == 0 { "TERM" } else { "INT" });
        presim.ends_in_order();
    }
    // The data directory that it leaves can be opened.
    drop(Presim::start(&flags));
}

#[test]
fn an_interrupted_approver_does_not_pass_for_one_who_was_heard() {
    // A node that reads the request and never answers.
    let folder = tempfile::tempdir().unwrap();
    let node = UnixListener::bind(folder.path().join("wallet.sock")).unwrap();
    let approve = ["wallet", "approve", "payroll", "0x12345678", "--data-dir", text(folder.path())];
    let mut child = command(&approve, &[]).spawn().unwrap();
    let _unanswered = caller(&node, &mut child);
    signal(child.id(), "INT");
    let status = until_it_ends(child.id(), || child.wait()).unwrap();
    let mut told = String::new();
    child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!(status.code(), Some(1), "{told}");
    assert!(told.contains("error: interrupted"), "{told}");
}

/// Accepts a connection of the child. Panics if the child ends before it connects.
fn caller(node: &UnixListener, child: &mut Child) -> UnixStream {
    node.set_nonblocking(true).unwrap();
    loop {
        match node.accept() {
            Ok((stream, _)) => return stream,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        assert_eq!(child.try_wait().unwrap(), None, "it ended without a call");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_port_that_is_taken_is_told_of_before_anything_that_takes_long() {
    let folder = tempfile::tempdir().unwrap();
    let genesis: &Path = &endless(&folder);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (flag, flags) in [("--listen", &[][..]), ("--metrics", &["--listen", "127.0.0.1:0"])] {
        let (code, told) = refusal(&[flags, &[flag, &address, "--genesis", text(genesis)]].concat(), &[]);
        assert_eq!(code, Some(1), "{told}");
        assert!(told.contains(&format!("on {address}: ")), "{told}");
        assert!(told.contains(&format!("give another address with {flag}")), "{told}");
    }
}
