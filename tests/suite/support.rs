//! A node in this process on a port of its own, and a client that speaks real HTTP to it.

use std::{ffi::OsString, io::Write, path::PathBuf};

use presim::{config::Config, node::Node};
use serde_json::{Value, json};

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
        Self::start(&["--traffic", "0", "--sub-block-ms", "60000"])
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
        self.send(path, &json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})).await
    }

    /// Calls a method that must succeed, and returns its result.
    pub async fn result(&self, path: &str, method: &str, params: Value) -> Value {
        let mut answer = self.call(path, method, params).await;
        assert!(answer.get("error").is_none(), "{method} failed: {answer}");
        answer["result"].take()
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
