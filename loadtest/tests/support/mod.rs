//! Scripted servers, and the load test's binary run against them.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::{
    net::SocketAddr,
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::{Semaphore, oneshot},
};
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::tungstenite::Message;

/// A script's reply to a request.
pub enum Reply {
    Result(Value),
    /// The result, with this `x-presim-snapshot` header.
    From(String, Value),
    Error(i64),
    /// A raw body, with an HTTP status.
    Raw(u16, String),
    /// The result under another id.
    WrongId(Value),
    /// No answer: the connection ends.
    Drop,
    /// The result, after this time.
    After(Duration, Value),
    /// The result, after this time with a permit of the semaphore.
    Within(Arc<Semaphore>, Duration, Value),
}

type Script = dyn Fn(u64, &Value) -> Reply + Send + Sync;

/// A server that runs until it is dropped.
pub struct Server {
    pub address: SocketAddr,
    /// Requests of the load, without the load test's own queries.
    pub served: Arc<AtomicU64>,
    asked: Arc<AtomicU64>,
    _stop: oneshot::Sender<()>,
}

impl Server {
    /// Starts a server. `script` gets the number of each request of the load, from 1, and the request.
    pub fn start(script: impl Fn(u64, &Value) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_any(false, None, script)
    }

    pub fn web_socket(script: impl Fn(u64, &Value) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_any(true, None, script)
    }

    /// Starts a server over TLS, for HTTP or WebSocket.
    pub fn secure(
        web_socket: bool,
        tls: TlsAcceptor,
        script: impl Fn(u64, &Value) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::start_any(web_socket, Some(tls), script)
    }

    fn start_any(
        web_socket: bool,
        tls: Option<TlsAcceptor>,
        script: impl Fn(u64, &Value) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let served = Arc::new(AtomicU64::new(0));
        let asked = Arc::new(AtomicU64::new(0));
        let state = State { script: Arc::new(script), served: served.clone(), asked: asked.clone() };
        let (stop, stopped) = oneshot::channel::<()>();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).expect("a listener");
                let accept = async {
                    loop {
                        let (stream, _) = listener.accept().await.expect("a connection");
                        stream.set_nodelay(true).expect("a socket");
                        let (tls, state) = (tls.clone(), state.clone());
                        tokio::spawn(async move {
                            match (tls, web_socket) {
                                (None, true) => speak_web_socket(stream, state).await,
                                (None, false) => speak_http(stream, state).await,
                                (Some(tls), _) => {
                                    // The handshake fails if the client does not trust the certificate.
                                    let Ok(stream) = tls.accept(stream).await else { return };
                                    match web_socket {
                                        true => speak_web_socket(stream, state).await,
                                        false => speak_http(stream, state).await,
                                    }
                                }
                            }
                        });
                    }
                };
                tokio::select! { () = accept => {} _ = stopped => {} }
            });
        });
        Self { address, served, asked, _stop: stop }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn served(&self) -> u64 {
        self.served.load(Ordering::SeqCst)
    }

    /// Returns the number of requests of every kind.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }
}

#[derive(Clone)]
struct State {
    script: Arc<Script>,
    served: Arc<AtomicU64>,
    asked: Arc<AtomicU64>,
}

impl State {
    /// Answers the load test's own queries, except `presim_snapshot`, which goes to the script as number 0.
    fn reply(&self, request: &Value) -> Reply {
        self.asked.fetch_add(1, Ordering::SeqCst);
        match request["method"].as_str() {
            Some("eth_chainId") => Reply::Result(json!("0x7a69")),
            Some("web3_clientVersion") => Reply::Result(json!("scripted/1")),
            Some("eth_getBlockByNumber") => Reply::Result(json!({"number": "0x1", "hash": "0xabcd"})),
            Some("eth_getBalance") => Reply::Result(json!("0x0")),
            Some("presim_snapshot") => (self.script)(0, request),
            _ => (self.script)(self.served.fetch_add(1, Ordering::SeqCst) + 1, request),
        }
    }
}

fn answer(id: &Value, result: Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()
}

/// Returns the HTTP status, the snapshot header and the body; `None` if the connection is to end.
async fn text(reply: Reply, id: &Value) -> Option<(u16, Option<String>, String)> {
    Some(match reply {
        Reply::Result(result) => (200, None, answer(id, result)),
        Reply::From(stamp, result) => (200, Some(stamp), answer(id, result)),
        Reply::Error(code) => {
            (200, None, json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": "no"}}).to_string())
        }
        Reply::Raw(status, body) => (status, None, body),
        Reply::WrongId(result) => (200, None, answer(&json!("somebody else's"), result)),
        Reply::Drop => return None,
        Reply::After(time, result) => {
            tokio::time::sleep(time).await;
            (200, None, answer(id, result))
        }
        Reply::Within(places, time, result) => {
            let place = places.acquire().await;
            tokio::time::sleep(time).await;
            drop(place);
            (200, None, answer(id, result))
        }
    })
}

async fn speak_http(stream: impl AsyncRead + AsyncWrite + Unpin, state: State) {
    let service = service_fn(move |request: Request<Incoming>| {
        let state = state.clone();
        async move {
            let Ok(body) = request.into_body().collect().await else { return Err("no body") };
            let Ok(request) = serde_json::from_slice::<Value>(&body.to_bytes()) else { return Err("no JSON") };
            let Some((status, stamp, body)) = text(state.reply(&request), &request["id"]).await else {
                return Err("dropped");
            };
            let mut response = Response::builder().status(status);
            if let Some(stamp) = stamp {
                response = response.header("x-presim-snapshot", stamp);
            }
            Ok(response.body(Full::new(Bytes::from(body))).expect("a response"))
        }
    });
    drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
}

async fn speak_web_socket(stream: impl AsyncRead + AsyncWrite + Unpin, state: State) {
    let Ok(mut socket) = tokio_tungstenite::accept_async(stream).await else { return };
    while let Some(Ok(message)) = socket.next().await {
        let Ok(request) = serde_json::from_slice::<Value>(&message.into_data()) else { continue };
        let Some((_, _, body)) = text(state.reply(&request), &request["id"]).await else { return };
        if socket.send(Message::text(body)).await.is_err() {
            return;
        }
    }
}

/// One run of the binary.
pub struct Run {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// The JSON report; null if none was written.
    pub report: Value,
    pub html: String,
}

/// Runs the load test with these arguments, on a recorded `eth_call` at `latest`.
pub fn run(arguments: &[&str]) -> Run {
    run_on(r#"{"jsonrpc":"2.0","id":7,"method":"eth_call","params":[{"to":"0x01"},"latest"]}"#, arguments)
}

/// Runs the load test with these arguments, on other bodies.
pub fn run_on(bodies: &str, arguments: &[&str]) -> Run {
    let folder = TempDir::new().expect("a directory");
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("bodies.ndjson"), bodies).expect("a file");
    let mut command = binary();
    command.arg("--bodies").arg(file("bodies.ndjson")).arg("--out").arg(folder.path());
    let output = command.args(arguments).output().expect("the binary runs");
    let read = |name: &str| std::fs::read_to_string(file(name)).unwrap_or_default();
    let Output { status, stdout, stderr } = output;
    Run {
        code: status.code(),
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
        report: serde_json::from_str(&read("report.json")).unwrap_or_default(),
        html: read("report.html"),
    }
}

pub fn binary() -> Command {
    Command::new(env!("CARGO_BIN_EXE_loadtest"))
}

impl Run {
    /// Returns a number of the first target's summary, as in `/faults/wrong_id`.
    pub fn summary(&self, pointer: &str) -> f64 {
        let value = self.report.pointer(&format!("/targets/0/summary{pointer}"));
        value.and_then(Value::as_f64).unwrap_or_else(|| panic!("no {pointer}: {}\n{}", self.stdout, self.stderr))
    }

    pub fn fault(&self, name: &str) -> u64 {
        self.summary(&format!("/faults/{name}")) as u64
    }
}
