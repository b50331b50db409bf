//! A node in this process on a port of its own, and a client that speaks real HTTP to it.

use std::{
    collections::VecDeque,
    ffi::OsString,
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use futures::{SinkExt, StreamExt};
use presim::{config::Config, node::Node};
use reqwest::header::HeaderMap;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async,
    tungstenite::{Error, Message, protocol::CloseFrame},
};

/// A test that waits for longer than this hangs. It bounds no work: a busy machine needs far less.
pub const BOUND: Duration = Duration::from_secs(120);

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
                    std::thread::yield_now();
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

    /// Returns the snapshot id of a sequence in the node's epoch.
    pub fn id(&self, sequence: u64) -> u64 {
        (self.node.snapshots().newest().id.epoch() << 32) + sequence
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.node.info().listen)
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
    presim::upstream::http_client(HeaderMap::new()).expect("it needs no certificates")
}

/// Returns the path of a file beside the project. If it does not exist, prints that the test is skipped and returns `None`.
pub fn shared(path: &str) -> Option<PathBuf> {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared").join(path);
    if file.exists() {
        return Some(file);
    }
    say_skipped(&format!("../shared/{path} is not here"));
    None
}

/// Prints that the test is skipped because this machine lacks something.
///
/// # Panics
///
/// Panics if the variable `CI` is `true`, because what the tests need is installed there.
pub fn skip(reason: &str) {
    say_skipped(reason);
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "skipped although CI=true: {reason}");
}

/// Returns whether a program can be run. If not, prints that the test is [skipped](skip), and the Debian package that has the program.
pub fn has_program(name: &str, package: &str) -> bool {
    let run = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if run.is_err() {
        skip(&format!("{name} is not installed (Debian: apt-get install {package})"));
    }
    run.is_ok()
}

fn say_skipped(reason: &str) {
    // The harness names the thread of a test after it.
    say(&format!("SKIPPED {}: {reason}", std::thread::current().name().unwrap_or("a test")));
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
pub fn token_file(clients: &[(&str, u32)]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
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

/// Prints a line even if the test passes: the harness captures only the output of the printing macros.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
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
        let (stream, _) = connect_async(format!("ws://{}{path}", node.node.info().listen)).await.expect("it opens");
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
