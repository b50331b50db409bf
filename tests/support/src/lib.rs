//! A node in this process on a port of its own, and a client that speaks real HTTP to it. The modules have the servers that such a node
//! follows, and the blocks that they serve.

#![expect(clippy::missing_errors_doc, reason = "the errors are those of the node under test")]

pub mod built;
pub mod figures;
pub mod nats;
pub mod op_chain;
mod resources;
pub mod stage;
pub mod upstream;
mod watchdog;

pub use self::resources::{say, say_missing, shared, skip};

use std::{
    collections::VecDeque,
    ffi::OsString,
    io::Write,
    net::SocketAddr,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use alloy_primitives::{Address, B256, U256};
use alloy_signer_local::PrivateKeySigner;
use futures::{SinkExt, StreamExt};
use presim::testing::{Config, Node, source::devnet::world::dev_genesis};
use reqwest::redirect::Policy;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempDir};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async,
    tungstenite::{Error, Message, protocol::CloseFrame},
};

/// A test that waits for longer than this hangs. It bounds no work: a busy machine needs far less.
pub const BOUND: Duration = Duration::from_secs(120);

/// The paths of the two dialects.
pub const PATHS: [&str; 2] = ["/", "/standard"];
/// An address without an account, where tests put their code.
pub const CODE_AT: &str = "0x00000000000000000000000000000000000c0de0";
/// Flags of a node with one worker, which an [`endless_bundle`] occupies for as long as its client waits.
pub const ONE_WORKER: [&str; 6] = ["--workers", "1", "--deadline-ms", "3600000", "--gas-cap", "1000000000000000"];

/// A node that runs until it is dropped.
pub struct TestNode {
    pub node: Node,
    pub client: reqwest::Client,
}

impl TestNode {
    /// Starts a node with these flags on a free port.
    pub fn start(flags: &[&str]) -> Self {
        Self::start_unlocked(flags).unwrap_or_else(|error| panic!("the node did not start: {error:#}"))
    }

    /// Like [`try_start`](Self::try_start), for a data directory that no other node uses. A process that another test spawns at this
    /// moment holds the open files of this one, and their locks, until it runs its own program.
    pub fn start_unlocked(flags: &[&str]) -> eyre::Result<Self> {
        let began = Instant::now();
        loop {
            match Self::try_start(flags) {
                Err(error) if format!("{error:#}").contains("another node uses it") && began.elapsed() < BOUND => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                started => return started,
            }
        }
    }

    /// Like [`start`](Self::start), but returns the error if the node rejects the flags.
    pub fn try_start(flags: &[&str]) -> eyre::Result<Self> {
        let args = ["presim", "--listen", "127.0.0.1:0"].iter().chain(flags).map(OsString::from);
        let node = Node::start(Config::load(args)?)?;
        Ok(Self { node, client: http() })
    }

    /// Returns the error with which a node rejects the flags.
    pub fn refusal(flags: &[&str]) -> String {
        format!("{:#}", Self::try_start(flags).map(drop).expect_err("the flags are rejected"))
    }

    /// Starts a devnet without traffic and with slow blocks, in which nothing happens by itself.
    pub fn quiet() -> Self {
        Self::quiet_with(&[])
    }

    /// Like [`quiet`](Self::quiet), with more flags.
    pub fn quiet_with(flags: &[&str]) -> Self {
        Self::start(&[&["--traffic", "0", "--sub-block-ms", "60000"], flags].concat())
    }

    /// Starts a node on the unmodified chain of execution-apis. Returns `None` if its files do not exist.
    pub fn official() -> Option<Self> {
        let folder = shared("vectors/execution-apis")?;
        let file = |name: &str| folder.join(name).to_str().expect("the path is UTF-8").to_owned();
        Some(Self::start(&["--genesis", &file("genesis.json"), "--chain", &file("chain.rlp")]))
    }

    /// Starts a static chain on the devnet's genesis, with timestamp 1,000, on which these accounts have ether.
    pub fn still(signers: &[PrivateKeySigner], flags: &[&str]) -> Self {
        Self::on(&dev_genesis(signers, 1_000), &[&["--feed", "static"], flags].concat())
    }

    /// Starts a node on this genesis, whose file is read at the start alone.
    pub fn on(genesis: &impl Serialize, flags: &[&str]) -> Self {
        let file = NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), serde_json::to_vec(genesis).expect("JSON")).expect("it is written");
        Self::start(&[&["--genesis", file.path().to_str().expect("the path is UTF-8")], flags].concat())
    }

    /// Returns the address that the node listens on.
    pub fn at(&self) -> SocketAddr {
        self.node.info().listen.expect("it listens")
    }

    /// Returns one of the devnet's accounts.
    pub fn account(&self, index: usize) -> Address {
        self.node.info().accounts[index].address()
    }

    /// Returns the snapshot id of a sequence in the node's epoch.
    pub fn id(&self, sequence: u64) -> u64 {
        (self.node.snapshots().newest().id.epoch() << 32) + sequence
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.node.info().listen.expect("it listens"))
    }

    /// Posts a body. Returns the status and the text of the answer.
    pub async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> (u16, String) {
        let request = self.client.post(self.url(path)).header("content-type", "application/json").body(body);
        let response = request.send().await.expect("the node answers");
        (response.status().as_u16(), response.text().await.expect("the answer is text"))
    }

    /// Posts a JSON value. Returns the answer's JSON.
    pub async fn send(&self, path: &str, body: &Value) -> Value {
        let (_, text) = self.post(path, body.to_string()).await;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("no JSON: {error}: {text}"))
    }

    /// Calls a method and returns the whole answer.
    pub async fn call(&self, path: &str, method: &str, params: Value) -> Value {
        self.send(path, &request(1, method, params)).await
    }

    /// Calls a method in the name of a bearer token, and returns the whole answer.
    pub async fn call_as(&self, token: &str, method: &str, params: Value) -> Value {
        let post = self.client.post(self.url("/")).bearer_auth(token);
        post.json(&request(1, method, params)).send().await.expect("it answers").json().await.expect("JSON")
    }

    /// Calls a method in the name of a client of [`token_file`], or of none, and returns the whole answer.
    pub async fn call_by(&self, name: Option<&str>, path: &str, method: &str, params: Value) -> Value {
        let post = self.client.post(self.url(path)).json(&request(1, method, params));
        let post = name.into_iter().fold(post, |post, name| post.bearer_auth(token(name)));
        post.send().await.expect("it answers").json().await.expect("JSON")
    }

    /// Calls a method that must succeed and returns its result.
    pub async fn result(&self, path: &str, method: &str, params: Value) -> Value {
        let mut answer = self.call(path, method, params).await;
        assert!(answer.get("error").is_none(), "{method} failed: {answer}");
        answer["result"].take()
    }

    /// Calls methods in one batch, so that all see the same snapshot. All must succeed. Returns their results.
    pub async fn batch(&self, path: &str, calls: &[(&str, Value)]) -> Vec<Value> {
        let calls: Vec<Value> =
            calls.iter().enumerate().map(|(id, (method, params))| request(id as u64, method, params.clone())).collect();
        let Value::Array(answers) = self.send(path, &Value::Array(calls)).await else { panic!("no batch") };
        let result = |mut answer: Value| {
            assert!(answer.get("error").is_none(), "{answer}");
            answer["result"].take()
        };
        answers.into_iter().map(result).collect()
    }

    /// Asks until there is an answer, again after each publication.
    pub async fn when<T>(&self, what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
        let mut changes = self.node.snapshots().changes();
        let wait = async {
            loop {
                if let Some(answer) = ask().await {
                    return answer;
                }
                changes.changed().await.expect("the node publishes");
            }
        };
        tokio::time::timeout(BOUND, wait).await.unwrap_or_else(|_| panic!("{what}: not within {BOUND:?}"))
    }

    pub async fn height(&self) -> u64 {
        number(&self.result("/", "eth_blockNumber", json!([])).await)
    }

    /// Returns a block with the hashes of its transactions.
    pub async fn block(&self, at: impl Into<Value>) -> Value {
        self.result("/", "eth_getBlockByNumber", json!([at.into(), false])).await
    }

    pub async fn balance(&self, of: Address, at: &str) -> U256 {
        let balance = self.result("/", "eth_getBalance", json!([of, at])).await;
        serde_json::from_value(balance).expect("a quantity")
    }

    /// Waits until the newest sealed block is `number` or later.
    pub async fn sealed(&self, number: u64) {
        let mut changes = self.node.snapshots().changes();
        let wait = async {
            while self.node.snapshots().newest().head.number() < number {
                changes.changed().await.expect("the node publishes");
            }
        };
        tokio::time::timeout(BOUND, wait).await.unwrap_or_else(|_| panic!("block {number} is not sealed in time"));
    }

    /// Waits until a snapshot has the transaction.
    pub async fn mined(&self, hash: &Value) {
        let hash: B256 = serde_json::from_value(hash.clone()).unwrap_or_else(|error| panic!("{hash}: {error}"));
        self.when("it is mined", async || self.node.snapshots().load().transaction(&hash).map(drop)).await;
    }

    /// Waits until a transaction is in a block. Returns its receipt.
    pub async fn receipt(&self, hash: &Value) -> Value {
        self.mined(hash).await;
        self.result("/", "eth_getTransactionReceipt", json!([hash])).await
    }

    /// Waits until this many snapshots have been published from now on.
    pub async fn publishes(&self, snapshots: usize) {
        let mut changes = self.node.snapshots().changes();
        for _ in 0..snapshots {
            let changed = tokio::time::timeout(BOUND, changes.changed()).await;
            changed.expect("the next comes in time").expect("the node publishes");
        }
    }

    /// Returns the value of a counter or a gauge.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.node.metrics().render();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is not shown: {text}")).parse().expect("a number")
    }

    /// Waits until the metrics have this line.
    pub async fn shows(&self, line: &str) {
        let shown = || self.node.metrics().render().lines().any(|shown| shown == line);
        let wait = async {
            while !shown() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let shown = tokio::time::timeout(BOUND, wait).await;
        shown.unwrap_or_else(|_| panic!("the metrics never show {line}: {}", self.node.metrics().render()));
    }

    /// Calls a method that must fail and returns its error.
    pub async fn error(&self, path: &str, method: &str, params: Value) -> Value {
        let mut answer = self.call(path, method, params).await;
        assert!(answer.get("result").is_none(), "{method} did not fail: {answer}");
        answer["error"].take()
    }
}

/// Creates an HTTP client. `reqwest::Client::new` panics in a process that has no provider of cryptography yet.
pub fn http() -> reqwest::Client {
    watchdog::watch();
    // Fails if the provider was installed before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().redirect(Policy::none()).build().expect("it needs no certificates")
}

/// Returns whether a program can be run. If not, prints that the test is [skipped](skip), and the Debian package that has the program.
pub fn has_program(name: &str, package: &str) -> bool {
    let run = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if run.is_err() {
        skip(&format!("{name} is not installed (Debian: apt-get install {package})"));
    }
    run.is_ok()
}

/// Sends the signal of this name to a process that a test has started.
pub fn signal(process: u32, name: &str) {
    let signal = match name {
        "CONT" => Signal::CONT,
        "HUP" => Signal::HUP,
        "INT" => Signal::INT,
        "KILL" => Signal::KILL,
        "STOP" => Signal::STOP,
        "TERM" => Signal::TERM,
        other => panic!("no test sends SIG{other}"),
    };
    let process = Pid::from_raw(process.cast_signed()).expect("a process");
    kill_process(process, signal).expect("the process has not been waited for");
}

/// Creates a token file for these clients, each with its requests per second. The token of `a` is that of [`token`].
pub fn token_file(clients: &[(&str, u32)]) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a file");
    for (name, rate) in clients {
        writeln!(file, "[[token]]\nname = \"{name}\"\ntoken = \"{}\"\nrate = {rate}", token(name))
            .expect("it is written");
    }
    file
}

/// Returns the token of a client.
pub fn token(name: &str) -> String {
    format!("{name}-token-of-some-length")
}

/// Parses a quantity.
pub fn number(value: &Value) -> u64 {
    let text = value.as_str().unwrap_or_else(|| panic!("no quantity: {value}"));
    u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Returns the sequence of a snapshot id in its epoch.
pub fn sequence(id: &Value) -> u64 {
    number(id) & u64::from(u32::MAX)
}

/// Formats a quantity.
pub fn hex(number: u64) -> Value {
    json!(format!("{number:#x}"))
}

pub fn items(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("no array: {value}"))
}

/// Writes the genesis and the blocks of a chain to files. Returns their folder and the flags that name them.
pub fn chain_files(genesis: &impl Serialize, blocks: &[u8]) -> (TempDir, Vec<String>) {
    let folder = tempfile::tempdir().expect("a folder");
    let written = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).expect("it is written");
        path.to_str().expect("the path is UTF-8").to_owned()
    };
    let genesis = written("genesis.json", &serde_json::to_vec(genesis).expect("JSON"));
    let flags = vec!["--genesis".to_owned(), genesis, "--chain".to_owned(), written("chain.rlp", blocks)];
    (folder, flags)
}

/// Returns the parameters of a call that runs until its deadline.
pub fn endless_call() -> Value {
    json!([{"to": CODE_AT}, "pending", {CODE_AT: {"code": "0x5b600056"}}])
}

/// Returns the parameters of a bundle that runs until its deadline.
pub fn endless_bundle() -> Value {
    let block = json!({
        "blockOverrides": {"gasLimit": "0x38d7ea4c68000"},
        "stateOverrides": {CODE_AT: {"code": "0x5b600056"}},
        "calls": [{"to": CODE_AT}],
    });
    json!([{"blockStateCalls": [block]}, "pending"])
}

/// Returns a request that needs no worker.
pub fn chain_id() -> String {
    request(1, "eth_chainId", json!([])).to_string()
}

pub fn request(id: u64, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// The client's end of a WebSocket connection.
pub struct Socket {
    stream: WebSocketStream<MaybeTlsStream<TcpStream>>,
    /// The notifications that came before an answer.
    earlier: VecDeque<Value>,
    /// The node's close frame, once it has sent one.
    pub closed: Option<CloseFrame>,
}

impl Socket {
    pub async fn open(node: &TestNode, path: &str) -> Self {
        let (stream, _) = connect_async(format!("ws://{}{path}", node.node.info().listen.expect("it listens")))
            .await
            .expect("it opens");
        Self { stream, earlier: VecDeque::new(), closed: None }
    }

    pub async fn write(&mut self, text: impl Into<String>) -> Result<(), Error> {
        self.stream.send(Message::text(text.into())).await
    }

    /// Sends a binary message, which need not be UTF-8.
    pub async fn write_binary(&mut self, bytes: Vec<u8>) -> Result<(), Error> {
        self.stream.send(Message::binary(bytes)).await
    }

    /// Returns the next message, or `None` if the connection has ended.
    pub async fn read(&mut self) -> Option<Value> {
        match self.earlier.pop_front() {
            Some(message) => Some(message),
            None => self.read_on().await,
        }
    }

    /// Returns the next message that the connection brings.
    async fn read_on(&mut self) -> Option<Value> {
        loop {
            match tokio::time::timeout(BOUND, self.stream.next()).await.expect("something comes") {
                Some(Ok(Message::Text(text))) => {
                    return Some(
                        serde_json::from_str(&text).unwrap_or_else(|error| panic!("no JSON: {error}: {text}")),
                    );
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(frame))) => {
                    self.closed = frame;
                    return None;
                }
                Some(Ok(_) | Err(_)) | None => return None,
            }
        }
    }

    /// Sends a request, and returns its answer. Notifications that come before it stay to be read.
    pub async fn send(&mut self, text: impl Into<String>) -> Value {
        self.write(text).await.expect("it takes a message");
        loop {
            let message = self.read_on().await.expect("it answers");
            if message.get("method").is_none() {
                return message;
            }
            self.earlier.push_back(message);
        }
    }

    pub async fn call(&mut self, method: &str, params: Value) -> Value {
        self.send(request(1, method, params).to_string()).await
    }

    /// Subscribes and returns the id.
    pub async fn subscribe(&mut self, params: Value) -> Value {
        let mut answer = self.call("eth_subscribe", params).await;
        assert!(answer["result"].is_string(), "{answer}");
        answer["result"].take()
    }

    /// Returns the next notification of a subscription and skips those of others.
    pub async fn notification(&mut self, id: &Value) -> Value {
        loop {
            let mut message = self.read().await.expect("a notification comes");
            if message["params"]["subscription"] == *id {
                assert_eq!((&message["jsonrpc"], &message["method"]), (&json!("2.0"), &json!("eth_subscription")));
                return message["params"]["result"].take();
            }
        }
    }
}

/// Removes what sealing the block changes (`blockHash`) from a transaction, a receipt, a log or a list of them.
pub fn without_block_hash(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(key, _)| *key != "blockHash");
            kept.map(|(key, value)| (key.clone(), without_block_hash(value))).collect()
        }
        Value::Array(all) => all.iter().map(without_block_hash).collect(),
        other => other.clone(),
    }
}
