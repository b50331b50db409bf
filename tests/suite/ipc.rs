//! The Unix socket of `--ipc`: its file, its messages, the rights of who opens it, and its bounds.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
};

use alloy_provider::{Provider, ProviderBuilder};
use alloy_rpc_client::IpcConnect;
use futures::StreamExt;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::timeout,
};

use crate::{
    process::text,
    support::{BOUND, CODE_AT, ONE_WORKER, TestNode, endless_bundle, request, token_file},
};

/// A node with a socket in a folder of its own.
struct Served {
    folder: TempDir,
    path: PathBuf,
    node: TestNode,
}

impl Served {
    /// Starts a devnet in which nothing happens by itself.
    fn start(flags: &[&str]) -> Self {
        Self::start_with(TestNode::quiet_with, flags)
    }

    /// Starts a devnet with 20 sub-blocks a second.
    fn building() -> Self {
        Self::start_with(TestNode::start, &["--traffic", "0", "--sub-block-ms", "50"])
    }

    fn start_with(start: impl FnOnce(&[&str]) -> TestNode, flags: &[&str]) -> Self {
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join("node.ipc");
        let node = start(&[&[at(&path).as_str()], flags].concat());
        Self { folder, path, node }
    }

    async fn open(&self) -> Ipc {
        Ipc::open(&self.path).await
    }
}

/// The flag of a socket at this path.
fn at(path: &Path) -> String {
    format!("--ipc={}", text(path))
}

/// The client's end of a connection.
struct Ipc {
    reads: BufReader<OwnedReadHalf>,
    writes: OwnedWriteHalf,
}

impl Ipc {
    async fn open(path: &Path) -> Self {
        let (reads, writes) = UnixStream::connect(path).await.expect("it opens").into_split();
        Self { reads: BufReader::new(reads), writes }
    }

    async fn write(&mut self, text: impl AsRef<[u8]>) {
        self.writes.write_all(text.as_ref()).await.expect("it takes a message");
    }

    /// Returns the next line, which must be JSON, or `None` if the connection has ended.
    async fn read(&mut self) -> Option<Value> {
        let mut line = String::new();
        let read = timeout(BOUND, self.reads.read_line(&mut line)).await.expect("something comes");
        if read.expect("it is UTF-8") == 0 {
            return None;
        }
        assert!(line.ends_with('\n'), "no line: {line}");
        Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("no JSON: {error}: {line}")))
    }

    async fn send(&mut self, text: impl AsRef<[u8]>) -> Value {
        self.write(text).await;
        self.read().await.expect("it answers")
    }

    async fn call(&mut self, method: &str, params: Value) -> Value {
        self.send(request(1, method, params).to_string()).await
    }

    async fn serves(&mut self) {
        assert_eq!(self.call("eth_chainId", json!([])).await["result"], "0x7a69");
    }

    /// Checks that the node ends the connection.
    async fn ends(mut self) {
        let mut rest = Vec::new();
        let _ = timeout(BOUND, self.reads.read_to_end(&mut rest)).await.expect("it stays open");
    }
}

fn endless(id: u64) -> String {
    request(id, "eth_simulateV1", endless_bundle()).to_string()
}

fn names(folder: &Path) -> Vec<String> {
    fs::read_dir(folder).unwrap().map(|one| one.unwrap().file_name().into_string().unwrap()).collect()
}

// The file.

#[tokio::test(flavor = "multi_thread")]
async fn only_its_user_may_open_the_socket_and_it_goes_with_the_node() {
    let Served { folder, path, node } = Served::start(&[]);
    let found = fs::symlink_metadata(&path).unwrap();
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    assert_eq!(names(folder.path()), ["node.ipc"]);
    assert_eq!(node.node.info().ipc.as_deref(), Some(path.as_path()));
    drop(node);
    assert!(names(folder.path()).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_path_the_socket_is_in_the_data_directory() {
    let folder = TempDir::new().unwrap();
    let settings = folder.path().join("settings.toml");
    fs::write(&settings, "ipc = true\n").unwrap();
    let data_dir = folder.path().join("data");
    for flags in [&["--ipc"][..], &["--ipc=true"], &["--config", text(&settings)]] {
        let node = TestNode::start_unlocked(&[&["--data-dir", text(&data_dir)], flags].concat()).expect("it starts");
        Ipc::open(&data_dir.join("presim.ipc")).await.serves().await;
        drop(node);
        let told = TestNode::refusal(flags);
        assert!(told.contains("--ipc without a path needs --data-dir"), "{told}");
    }
    for empty in ["--ipc=", "--ipc=false"] {
        let told = TestNode::refusal(&[empty]);
        assert!(told.contains("--ipc"), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_socket_on_which_nobody_listens_is_replaced() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let told = |path: &Path| TestNode::refusal(&[&at(path)]);

    drop(UnixListener::bind(path("left")).unwrap());
    let node = TestNode::quiet_with(&[&at(&path("left"))]);
    Ipc::open(&path("left")).await.serves().await;

    let error = told(&path("left"));
    assert!(error.contains("another node listens on this socket: give each node its own --ipc"), "{error}");
    Ipc::open(&path("left")).await.serves().await;
    drop(node);

    fs::write(path("file"), "mine").unwrap();
    let error = told(&path("file"));
    assert!(error.contains("not a socket"), "{error}");
    assert_eq!(fs::read_to_string(path("file")).unwrap(), "mine");

    drop(UnixListener::bind(path("target")).unwrap());
    for (link, target) in [("link", path("target")), ("dangling", path("nothing"))] {
        symlink(&target, path(link)).unwrap();
        let error = told(&path(link));
        assert!(error.contains("not a socket"), "{error}");
        assert_eq!(fs::read_link(path(link)).unwrap(), target);
    }
    assert!(path("target").exists() && !path("nothing").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_of_another_user_is_refused() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("node.ipc");
    drop(UnixListener::bind(&path).unwrap());
    // Only root may give a file away.
    if chown(&path, Some(65_534), None).is_err() {
        return;
    }
    let told = TestNode::refusal(&[&at(&path)]);
    assert!(told.contains("a socket of another user (uid 65534)") && told.contains("--ipc"), "{told}");
    assert!(path.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_too_long_for_a_socket_is_refused() {
    let folder = TempDir::new().unwrap();
    let path = |length: usize| folder.path().join("n".repeat(length - text(folder.path()).len() - 1));
    let told = TestNode::refusal(&[&at(&path(108))]);
    assert!(told.contains("108 bytes") && told.contains("give a shorter --ipc"), "{told}");
    let node = TestNode::quiet_with(&[&at(&path(107))]);
    Ipc::open(&path(107)).await.serves().await;
    drop(node);
    let told = TestNode::refusal(&[&at(&folder.path().join("nowhere/node.ipc"))]);
    assert!(told.contains("nowhere/node.ipc"), "{told}");
}

// Messages.

#[tokio::test(flavor = "multi_thread")]
async fn the_dialect_is_the_standard_one_whatever_dialect_says() {
    let params = json!([{"to": CODE_AT}, "pending", {CODE_AT: {"code": "0x5f5ffd"}}]);
    for dialect in ["project", "standard"] {
        let served = Served::start(&["--dialect", dialect]);
        let answer = served.open().await.call("eth_call", params.clone()).await;
        assert_eq!(answer, served.node.call("/standard", "eth_call", params.clone()).await, "{dialect}");
        assert_eq!(answer["error"]["code"], 3, "{dialect}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_need_no_newline_between_them() {
    let served = Served::start(&[]);
    let mut ipc = served.open().await;
    let text = |id| request(id, "eth_chainId", json!([])).to_string();
    let sent = [text(1), text(2), " \n".into(), text(3), "\r\n".into(), format!("[{},{}]", text(4), text(5))].concat();
    // However the system cuts it into parts.
    for size in [sent.len(), 7, 1] {
        for part in sent.as_bytes().chunks(size) {
            ipc.write(part).await;
            tokio::task::yield_now().await;
        }
        let mut ids = Vec::new();
        for _ in 0..4 {
            let answer = ipc.read().await.expect("an answer");
            let answers = answer.as_array().cloned().unwrap_or_else(|| vec![answer]);
            assert!(answers.iter().all(|answer| answer["result"] == "0x7a69"), "{answers:?}");
            ids.extend(answers.iter().map(|answer| answer["id"].as_u64().expect("an id")));
        }
        ids.sort_unstable();
        assert_eq!(ids, [1, 2, 3, 4, 5], "in parts of {size} bytes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_json_is_answered_and_the_next_line_is_understood() {
    let served = Served::start(&[]);
    let mut ipc = served.open().await;
    let cases: [(&[u8], i64); 8] = [
        (b"hello {\n", -32700),
        (b"}\n", -32700),
        (b"{\"a\":}", -32700),
        (b"{\"a\":1]", -32700),
        (b"{\"a\n", -32700),
        (b"{\"a\":\"\xff\"}", -32700),
        (b"5\n", -32600),
        (b"{}", -32600),
    ];
    for (sent, code) in cases {
        let answer = ipc.send(sent).await;
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(code), &Value::Null), "{sent:?}: {answer}");
    }
    ipc.serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_no_more_gets_its_answers() {
    let served = Served::start(&["--deadline-ms", "300", "--gas-cap", "1000000000000000"]);
    let Ipc { mut reads, mut writes } = served.open().await;
    writes.write_all(endless(1).as_bytes()).await.unwrap();
    writes.write_all(b"{\"cut\":").await.unwrap();
    writes.shutdown().await.unwrap();
    let mut answers = String::new();
    timeout(BOUND, reads.read_to_string(&mut answers)).await.expect("it ends").expect("UTF-8");
    let mut codes: Vec<i64> = answers
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["error"]["code"].as_i64().unwrap())
        .collect();
    codes.sort_unstable();
    assert_eq!(codes, [-32700, -32016], "{answers}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_frees_the_worker() {
    let served = Served::start(&ONE_WORKER);
    let mut ipc = served.open().await;
    ipc.write(endless(1)).await;
    served.node.shows("presim_jobs_running{lane=\"bundle\"} 1").await;
    drop(ipc);
    served.node.shows("presim_jobs_running{lane=\"bundle\"} 0").await;
    served.node.shows("presim_connections{kind=\"ipc\"} 0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn alloy_calls_and_subscribes() {
    let served = Served::building();
    let provider = ProviderBuilder::new().connect_ipc(IpcConnect::new(served.path.clone())).await.expect("it connects");
    assert_eq!(provider.get_chain_id().await.expect("it answers"), 31337);
    let mut heads = provider.subscribe_blocks().await.expect("it subscribes").into_stream();
    let first = timeout(BOUND, heads.next()).await.expect("a head comes").expect("a head");
    let second = timeout(BOUND, heads.next()).await.expect("a head comes").expect("a head");
    assert_eq!(second.number, first.number + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_follows_another_over_its_socket() {
    let served = Served::building();
    served.node.sealed(1).await;
    let path = text(&served.path).to_owned();
    // A start waits for the upstream, so it has a thread of its own.
    let start = tokio::task::spawn_blocking(move || TestNode::start(&["--upstream", &path]));
    let follower = start.await.expect("it starts");
    assert_eq!(follower.result("/", "eth_chainId", json!([])).await, "0x7a69");
    follower.sealed(3).await;
}

// Rights.

#[tokio::test(flavor = "multi_thread")]
async fn who_opens_the_socket_needs_no_token_and_may_use_the_wallet() {
    let (tokens, wallet) = (token_file(&[("a", 1)]), token_file(&[("w", 1)]));
    let (tokens, wallet) = (text(tokens.path()), text(wallet.path()));
    let served = Served::start(&["--token-file", tokens, "--wallet-token-file", wallet]);
    let (status, _) = served.node.post("/", request(1, "eth_chainId", json!([])).to_string()).await;
    assert_eq!(status, 401);
    let mut ipc = served.open().await;
    // More than any rate here admits.
    let batch = Value::Array(vec![request(1, "eth_chainId", json!([])); 100]).to_string();
    let answers = ipc.send(batch).await;
    assert!(answers.as_array().unwrap().iter().all(|answer| answer["result"] == "0x7a69"), "{answers}");
    let hello = "0x68656c6c6f";
    let answer = ipc.call("eth_accounts", json!([])).await;
    let signed = ipc.call("personal_sign", json!([hello, answer["result"][0]])).await;
    assert!(signed["result"].is_string(), "{signed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_are_made_on_the_socket_of_the_approver_alone() {
    let folder = TempDir::new().unwrap();
    let flags = ["--ipc", "--data-dir", text(folder.path()), "--wallet-approval", "ask"];
    let _node = TestNode::start_unlocked(&flags).expect("it starts");
    let mut ipc = Ipc::open(&folder.path().join("presim.ipc")).await;
    let waiting = ipc.call("presim_approvals", json!([])).await;
    assert_eq!(waiting["result"]["batches"], json!([]), "{waiting}");
    for decision in [json!({"list": {}}), json!({"reject": {"id": "a"}})] {
        assert_eq!(ipc.send(decision.to_string()).await["error"]["code"], -32600, "{decision}");
    }
    let mut approver = Ipc::open(&folder.path().join("wallet.sock")).await;
    let answer = approver.send(request(1, "eth_chainId", json!([])).to_string() + "\n").await;
    assert!(answer.get("result").is_none(), "{answer}");
}

// Bounds.

#[tokio::test(flavor = "multi_thread")]
async fn a_message_past_max_body_is_refused_and_the_node_goes_on() {
    let served = Served::start(&["--max-body", "2000"]);
    for (length, goes_on) in [(2_100, true), (100_000, false)] {
        let mut ipc = served.open().await;
        let data = format!("0x{}", "00".repeat(length / 2));
        let text = request(1, "eth_call", json!([{"to": CODE_AT, "data": data}, "pending"])).to_string();
        // A node that reads no further may end the connection before it has taken all.
        let _ = ipc.writes.write_all(text.as_bytes()).await;
        let answer = ipc.read().await.expect("the reason");
        assert_eq!(answer["error"]["code"], -32005, "{answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("--max-body")), "{answer}");
        if goes_on { ipc.serves().await } else { ipc.ends().await }
    }
    served.open().await.serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_never_finds_room_ends_the_connection() {
    let served = Served::start(&["--max-memory-io", "33554432", "--max-body", "30000000"]);
    let mut ipc = served.open().await;
    let (reads, mut writes) = (&mut ipc.reads, ipc.writes);
    let sending = tokio::spawn(async move {
        let text = format!("[\"{}\"]", "a".repeat(20_000_000));
        let _ = writes.write_all(text.as_bytes()).await;
        writes
    });
    let mut line = String::new();
    timeout(BOUND, reads.read_line(&mut line)).await.expect("something comes").expect("UTF-8");
    assert!(line.contains("-32005") && line.contains("--max-memory-io"), "{line}");
    let writes = sending.await.expect("it ends");
    Ipc { reads: ipc.reads, writes }.ends().await;
    served.open().await.serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_does_not_go_on_ends_its_connection_and_silence_does_not() {
    let served = Served::start(&["--io-timeout-ms", "300"]);
    let (mut silent, mut half) = (served.open().await, served.open().await);
    half.write("{\"jsonrpc\":").await;
    let answer = half.read().await.expect("the reason");
    assert_eq!(answer["error"]["code"], -32005, "{answer}");
    half.ends().await;
    silent.serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_connections_as_allowed_are_served_beside_those_of_the_port() {
    let served = Served::start(&["--max-connections", "2"]);
    assert_eq!(served.node.result("/", "eth_chainId", json!([])).await, "0x7a69");
    let (mut first, silent) = (served.open().await, served.open().await);
    first.serves().await;
    // The one that has sent nothing is closed for another.
    let mut third = served.open().await;
    third.serves().await;
    silent.ends().await;
    let mut fourth = served.open().await;
    let refused = fourth.read().await.expect("the reason");
    assert_eq!(refused["error"], json!({"code": -32005, "message": "too many connections are open"}));
    fourth.ends().await;
    first.serves().await;
    third.serves().await;
    served.node.shows("presim_connections{kind=\"ipc\"} 2").await;
    assert_eq!(served.node.result("/", "eth_chainId", json!([])).await, "0x7a69");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_that_does_not_read_is_told_and_disconnected() {
    let flags = ["--sub-block-ms", "5", "--traffic", "8", "--max-ws-notifications", "50"];
    let served = Served::start_with(TestNode::start, &flags);
    let mut ipc = served.open().await;
    // The client subscribes many times and reads nothing.
    let batch: Vec<_> = (0..100).map(|id| request(id, "eth_subscribe", json!(["newFlashblocks"]))).collect();
    ipc.write(json!(batch).to_string()).await;
    served.node.shows("presim_subscribers_dropped_total 1").await;
    let mut last = Value::Null;
    while let Some(message) = ipc.read().await {
        last = message;
    }
    let told = last["error"]["message"].as_str().unwrap_or_else(|| panic!("no reason: {last}"));
    assert!(told.contains("slow subscriber: more than 50 notifications are unsent"), "{told}");
}
