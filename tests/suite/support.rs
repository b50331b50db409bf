//! A node in this process on a port of its own, and a client that speaks real HTTP to it.

use std::{ffi::OsString, io::Write, path::PathBuf, time::Duration};

use futures::{SinkExt, StreamExt};
use presim::{config::Config, node::Node};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async,
    tungstenite::{Error, Message, protocol::CloseFrame},
};

/// Longer than anything that a test waits for may take.
pub const BOUND: Duration = Duration::from_secs(30);

/// A node that runs while the test does.
pub struct TestNode {
    pub node: Node,
    pub client: reqwest::Client,
}

impl TestNode {
    /// A node with these flags, on a free port.
    pub fn start(flags: &[&str]) -> Self {
        Self::try_start(flags).unwrap_or_else(|error| panic!("the node did not start: {error:#}"))
    }

    /// The same, for flags that a node may refuse.
    pub fn try_start(flags: &[&str]) -> eyre::Result<Self> {
        let args = ["presim", "--listen", "127.0.0.1:0"].iter().chain(flags).map(OsString::from);
        let node = Node::start(Config::load(args)?)?;
        Ok(Self { node, client: reqwest::Client::new() })
    }

    /// A devnet without traffic and with slow blocks: nothing happens in it by itself.
    pub fn quiet() -> Self {
        Self::quiet_with(&[])
    }

    /// The same, with more flags.
    pub fn quiet_with(flags: &[&str]) -> Self {
        Self::start(&[&["--traffic", "0", "--sub-block-ms", "60000"], flags].concat())
    }

    /// The official chain of execution-apis, as it stands; none where it is absent.
    pub fn official() -> Option<Self> {
        let folder = shared("vectors/execution-apis")?;
        let file = |name: &str| folder.join(name).to_str().expect("the path is UTF-8").to_owned();
        Some(Self::start(&["--genesis", &file("genesis.json"), "--chain", &file("chain.rlp")]))
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.node.info().listen)
    }

    /// Posts a body, and returns status and text.
    pub async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> (u16, String) {
        let request = self.client.post(self.url(path)).header("content-type", "application/json").body(body);
        let response = request.send().await.expect("the node answers");
        (response.status().as_u16(), response.text().await.expect("the answer is text"))
    }

    /// Posts a JSON value, and returns the answer's.
    pub async fn send(&self, path: &str, body: &Value) -> Value {
        let (_, text) = self.post(path, body.to_string()).await;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("no JSON: {error}: {text}"))
    }

    /// Calls a method, and returns the whole answer.
    pub async fn call(&self, path: &str, method: &str, params: Value) -> Value {
        self.send(path, &request(1, method, params)).await
    }

    /// Calls a method that must succeed, and returns its result.
    pub async fn result(&self, path: &str, method: &str, params: Value) -> Value {
        let mut answer = self.call(path, method, params).await;
        assert!(answer.get("error").is_none(), "{method} failed: {answer}");
        answer["result"].take()
    }

    /// Calls methods in one batch, all of which must succeed, and returns their results: they are of one moment.
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

    /// What a counter or a gauge shows.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.node.metrics().render();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is not shown: {text}")).parse().expect("a number")
    }

    /// Calls a method that must fail, and returns its error.
    pub async fn error(&self, path: &str, method: &str, params: Value) -> Value {
        let mut answer = self.call(path, method, params).await;
        assert!(answer.get("result").is_none(), "{method} did not fail: {answer}");
        answer["error"].take()
    }
}

/// A file beside the project that a test may read; none where it is absent, with a line that says what is skipped.
pub fn shared(path: &str) -> Option<PathBuf> {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared").join(path);
    if file.exists() {
        return Some(file);
    }
    say(&format!("SKIPPED: ../shared/{path} is not here"));
    None
}

/// Says something that is to be seen though the test passes: the harness keeps back only what the printing macros write.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A quantity as a number.
pub fn number(value: &Value) -> u64 {
    let text = value.as_str().unwrap_or_else(|| panic!("no quantity: {value}"));
    u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// A quantity's text.
pub fn hex(number: u64) -> Value {
    json!(format!("{number:#x}"))
}

/// The elements of an array.
pub fn items(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("no array: {value}"))
}

/// A request.
pub fn request(id: u64, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// A client's end of a WebSocket connection.
pub struct Socket {
    stream: WebSocketStream<MaybeTlsStream<TcpStream>>,
    /// Why the node closed it, once it has.
    pub closed: Option<CloseFrame>,
}

impl Socket {
    pub async fn open(node: &TestNode, path: &str) -> Self {
        let (stream, _) = connect_async(format!("ws://{}{path}", node.node.info().listen)).await.expect("it opens");
        Self { stream, closed: None }
    }

    pub async fn write(&mut self, text: impl Into<String>) -> Result<(), Error> {
        self.stream.send(Message::text(text.into())).await
    }

    /// Sends bytes that need not be text.
    pub async fn write_binary(&mut self, bytes: Vec<u8>) -> Result<(), Error> {
        self.stream.send(Message::binary(bytes)).await
    }

    /// The next message; none where the connection has ended.
    pub async fn read(&mut self) -> Option<Value> {
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

    pub async fn send(&mut self, text: impl Into<String>) -> Value {
        self.write(text).await.expect("it takes a message");
        self.read().await.expect("it answers")
    }

    pub async fn call(&mut self, method: &str, params: Value) -> Value {
        self.send(request(1, method, params).to_string()).await
    }

    /// Subscribes where nothing else can come before the answer, and returns the id.
    pub async fn subscribe(&mut self, params: Value) -> Value {
        let mut answer = self.call("eth_subscribe", params).await;
        assert!(answer["result"].is_string(), "{answer}");
        answer["result"].take()
    }

    /// The next notification of a subscription; those of others are passed by.
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

/// A transaction, a receipt, a log or a list of such without what sealing their block changes.
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
