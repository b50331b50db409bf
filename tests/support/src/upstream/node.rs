//! An upstream node that serves blocks and states from memory.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io::{self, Write},
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use alloy_primitives::{B256, Bytes, keccak256};
use bytes::Bytes as Body;
use flate2::{Compression, write::GzEncoder};
use futures::{
    SinkExt, StreamExt,
    stream::{self, FuturesUnordered},
};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, broadcast, watch},
    task::JoinHandle,
    time::timeout,
};
use tokio_tungstenite::{accept_async, tungstenite::Message};

use super::{UpstreamBlock, UpstreamChain, chain::slot};
use crate::BOUND;

/// A JSON-RPC node on a port of its own: HTTP, and WebSocket with `newHeads`, at the same address, both with batches.
///
/// It serves its [`UpstreamChain`] and nothing else: an unknown method is -32601, an unknown block is null, and the state of an
/// unknown block is -32000. Tests change the chain ([`push`](Self::push), [`reorganise`](Self::reorganise)), make it
/// fail ([`fail`](Self::fail), [`delay`](Self::delay), [`lie`](Self::lie), [`go_away`](Self::go_away)) and count calls.
pub struct SmallUpstream {
    shared: Arc<NodeState>,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

/// A way to answer requests wrongly. WebSocket connections are closed where HTTP would return an error status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// HTTP status 429.
    TooManyRequests,
    /// JSON-RPC error -32005.
    LimitExceeded,
    /// HTTP status 500.
    ServerError,
    /// A body that is not JSON.
    Garbage,
    /// JSON that is not a JSON-RPC response.
    NoAnswer,
    /// The connection is closed without an answer.
    Closed,
    /// No answer is ever sent.
    Silence,
}

/// A way to answer requests that some nodes have and others do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// A request whose parameters are `null` is rejected.
    Strict,
    /// Each result has an `error` beside it, which is `null`.
    NullErrors,
    /// There are no subscriptions.
    NoSubscriptions,
    /// Answers are compressed if the client accepts that.
    Compressed,
    /// Batches of more requests are rejected: with this HTTP status, or, where that is 200, with the code -32600.
    SmallBatches(usize, u16),
}

/// A pause that a node asks for over HTTP.
struct AskedPause {
    retry_after: &'static str,
    length: Duration,
    /// The end of the pause, which begins with the first request.
    until: Option<Instant>,
}

struct NodeState {
    address: SocketAddr,
    chain_id: u64,
    chain: Mutex<UpstreamChain>,
    heads: broadcast::Sender<Value>,
    /// The fault, and the number of requests it still applies to.
    fault: Mutex<Option<(Fault, usize)>>,
    delay: Mutex<Duration>,
    /// The additional delay of requests for a method.
    slow: Mutex<BTreeMap<&'static str, Duration>>,
    /// Ends the delays of the requests that have arrived.
    hurry: Notify,
    lie: Mutex<Option<Lie>>,
    /// The answers of methods that the chain does not give.
    script: Mutex<Option<Script>>,
    /// Whether requests with an EIP-1898 block hash are rejected.
    no_hashes: AtomicBool,
    manners: Mutex<Vec<Manner>>,
    pause: Mutex<Option<AskedPause>>,
    /// The requests that were rejected during a pause, the batches that were rejected, and the answers that were compressed.
    hasty: AtomicUsize,
    rejected: AtomicUsize,
    compressed: AtomicUsize,
    /// The error code and message that a method is answered with.
    refusals: Mutex<BTreeMap<&'static str, (i64, &'static str)>>,
    asked: watch::Sender<BTreeMap<String, usize>>,
    sent: watch::Sender<Vec<Bytes>>,
    waves: Mutex<Waves>,
    /// The times at which connections were opened.
    connections: Mutex<Vec<Instant>>,
    /// Whether answers may be sent whole. Before, all but the last byte of each over HTTP is sent.
    whole: watch::Sender<bool>,
    gone: watch::Sender<bool>,
}

type Lie = Box<dyn Fn(&str, &Value, Value) -> Value + Send>;
/// Returns what a method is answered with, or nothing if it is not in the script.
type Script = Box<dyn Fn(&str, &Value) -> Option<Answer> + Send>;

/// Counts waves of state reads. A wave is the set of requests that arrive before any of them is answered.
#[derive(Default)]
struct Waves {
    count: usize,
    /// Whether no request of the newest wave has been answered.
    open: bool,
}

impl Waves {
    /// Records a request and returns its wave.
    fn ask(&mut self) -> usize {
        if !self.open {
            *self = Self { count: self.count + 1, open: true };
        }
        self.count
    }

    /// Records that a request of this wave is answered.
    fn answer(&mut self, wave: usize) {
        self.open &= wave != self.count;
    }
}

/// The methods that read state, which [`Waves`] counts.
const STATE: [&str; 6] = [
    "eth_getBalance",
    "eth_getTransactionCount",
    "eth_getCode",
    "eth_getStorageAt",
    "eth_getProof",
    "eth_createAccessList",
];

impl SmallUpstream {
    /// Starts a node that serves this chain.
    pub async fn start(chain_id: u64, chain: UpstreamChain) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let shared = Arc::new(NodeState {
            address: listener.local_addr().expect("an address"),
            chain_id,
            chain: Mutex::new(chain),
            heads: broadcast::Sender::new(4_096),
            fault: Mutex::default(),
            delay: Mutex::default(),
            slow: Mutex::default(),
            hurry: Notify::new(),
            lie: Mutex::default(),
            script: Mutex::default(),
            no_hashes: AtomicBool::new(false),
            manners: Mutex::default(),
            pause: Mutex::default(),
            hasty: AtomicUsize::new(0),
            rejected: AtomicUsize::new(0),
            compressed: AtomicUsize::new(0),
            refusals: Mutex::default(),
            asked: watch::Sender::default(),
            sent: watch::Sender::default(),
            waves: Mutex::default(),
            connections: Mutex::default(),
            whole: watch::Sender::new(true),
            gone: watch::Sender::new(false),
        });
        let accepting = Mutex::new(Some(accept(listener, shared.clone())));
        Self { shared, accepting }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.shared.address)
    }

    pub fn ws_url(&self) -> String {
        format!("ws://{}", self.shared.address)
    }

    /// Appends a block to its parent and notifies subscribers.
    pub fn push(&self, block: UpstreamBlock) {
        self.reorganise(vec![block]);
    }

    /// Appends blocks to the parent of the first, replacing the branch there. Notifies subscribers of each block.
    pub fn reorganise(&self, branch: Vec<UpstreamBlock>) {
        let mut chain = self.shared.chain();
        let heads: Vec<Value> = branch.iter().map(|block| block.fields.clone()).collect();
        branch.into_iter().for_each(|block| chain.put(block));
        // The lock is held so that a notified subscriber can already read the block.
        for head in heads {
            let _ = self.shared.heads.send(head);
        }
    }

    /// Notifies subscribers of a head, whether or not the chain has that block.
    pub fn announce(&self, head: Value) {
        // Sending fails if nobody has subscribed.
        let _ = self.shared.heads.send(head);
    }

    /// Changes the chain without notifying subscribers.
    pub fn change(&self, change: impl FnOnce(&mut UpstreamChain)) {
        change(&mut self.shared.chain());
    }

    /// Answers so many requests (a batch is one) with a fault; `usize::MAX` means until [`well`](Self::well).
    pub fn fail(&self, fault: Fault, requests: usize) {
        *lock(&self.shared.fault) = Some((fault, requests));
    }

    /// Removes the fault, the delay and the lie.
    pub fn well(&self) {
        *lock(&self.shared.fault) = None;
        *lock(&self.shared.lie) = None;
        self.delay(Duration::ZERO);
    }

    /// Delays every answer by this much.
    pub fn delay(&self, delay: Duration) {
        *lock(&self.shared.delay) = delay;
    }

    /// Delays the answers of one method by this much more.
    pub fn slow(&self, method: &'static str, delay: Duration) {
        lock(&self.shared.slow).insert(method, delay);
    }

    /// Answers at once what is delayed now.
    pub fn answer_now(&self) {
        lock(&self.shared.slow).clear();
        self.shared.hurry.notify_waiters();
    }

    /// Changes results: `lie` gets the method, the params and the true result, and returns the result to send.
    pub fn lie(&self, lie: impl Fn(&str, &Value, Value) -> Value + Send + 'static) {
        *lock(&self.shared.lie) = Some(Box::new(lie));
    }

    /// Answers a method with this error code and message; `None` restores its true answer.
    pub fn refuse(&self, method: &'static str, refusal: Option<(i64, &'static str)>) {
        let mut refusals = lock(&self.shared.refusals);
        match refusal {
            Some(refusal) => refusals.insert(method, refusal),
            None => refusals.remove(method),
        };
    }

    /// Answers in this manner from now on.
    pub fn has(&self, manner: Manner) {
        lock(&self.shared.manners).push(manner);
    }

    /// Answers HTTP requests with status 429 and this `Retry-After` from the next one on, for this long.
    pub fn pause(&self, retry_after: &'static str, length: Duration) {
        *lock(&self.shared.pause) = Some(AskedPause { retry_after, length, until: None });
    }

    /// Returns how many requests were rejected because they came during a pause.
    pub fn hasty(&self) -> usize {
        self.shared.hasty.load(SeqCst)
    }

    /// Returns how many batches were rejected because they were too large.
    pub fn rejected(&self) -> usize {
        self.shared.rejected.load(SeqCst)
    }

    /// Returns how many answers were compressed.
    pub fn compressed(&self) -> usize {
        self.shared.compressed.load(SeqCst)
    }

    /// Rejects block hashes in place of block numbers from now on, as a node without EIP-1898 does.
    pub fn take_no_hashes(&self) {
        self.shared.no_hashes.store(true, SeqCst);
    }

    /// Answers methods that the chain does not answer, by their params. What the script does not answer is unknown.
    pub fn script(&self, answer: impl Fn(&str, &Value) -> Option<Answer> + Send + 'static) {
        *lock(&self.shared.script) = Some(Box::new(answer));
    }

    /// Ends all connections and accepts no more.
    pub fn go_away(&self) {
        if let Some(accepting) = &*lock(&self.accepting) {
            accepting.abort();
        }
        self.shared.gone.send_replace(true);
    }

    /// Accepts connections again, at the same address.
    pub async fn come_back(&self) {
        self.come_back_after(0).await;
    }

    /// Drops so many connections at once, and accepts those that come then.
    pub async fn come_back_after(&self, dropped: usize) {
        let accepting = lock(&self.accepting).take().expect("it has accepted before");
        accepting.abort();
        // The old listener is closed once its task has ended.
        let _ = timeout(BOUND, accepting).await.expect("the task ends");
        let listener = TcpListener::bind(self.shared.address).await.expect("the port is free again");
        for _ in 0..dropped {
            timeout(BOUND, listener.accept()).await.expect("it is connected to again").expect("it accepts");
        }
        self.shared.gone.send_replace(false);
        *lock(&self.accepting) = Some(accept(listener, self.shared.clone()));
    }

    /// Returns how many connections have been opened.
    pub fn connections(&self) -> usize {
        lock(&self.shared.connections).len()
    }

    /// Returns the times at which connections were opened.
    pub fn connected_at(&self) -> Vec<Instant> {
        lock(&self.shared.connections).clone()
    }

    /// Withholds the last byte of each answer over HTTP, until it is called with `false`.
    pub fn withhold(&self, withholds: bool) {
        self.shared.whole.send_replace(!withholds);
    }

    /// Returns the number of newHeads subscriptions.
    pub fn subscribers(&self) -> usize {
        self.shared.heads.receiver_count()
    }

    /// Returns how often a method was requested, alone and in batches. A method may have its first parameter after it. `messages`
    /// are all requests, a batch being one.
    pub fn asked(&self, method: &str) -> usize {
        self.shared.asked.borrow().get(method).copied().unwrap_or_default()
    }

    /// Waits until a method was requested at least `times` times.
    pub async fn is_asked(&self, method: &str, times: usize) {
        let mut asked = self.shared.asked.subscribe();
        let reached = asked.wait_for(|asked| asked.get(method).copied().unwrap_or_default() >= times);
        let waited = timeout(BOUND, reached).await;
        waited.unwrap_or_else(|_| panic!("{method} is not asked {times} times in time")).expect("the server runs");
    }

    /// Waits until at least `count` of these methods were requested.
    pub async fn are_asked(&self, methods: &[String], count: usize) {
        let mut asked = self.shared.asked.subscribe();
        let reached =
            asked.wait_for(|asked| methods.iter().filter(|method| asked.contains_key(*method)).count() >= count);
        let waited = timeout(BOUND, reached).await;
        waited.unwrap_or_else(|_| panic!("{count} of {methods:?} are not asked in time")).expect("the server runs");
    }

    /// Returns the number of waves of state reads so far.
    pub fn waves(&self) -> usize {
        lock(&self.shared.waves).count
    }

    /// Returns the raw transactions that were sent.
    pub fn sent(&self) -> Vec<Bytes> {
        self.shared.sent.borrow().clone()
    }

    /// Waits until at least `count` transactions were sent, and returns them.
    pub async fn has_sent(&self, count: usize) -> Vec<Bytes> {
        let mut sent = self.shared.sent.subscribe();
        let waited = timeout(BOUND, sent.wait_for(|sent| sent.len() >= count)).await;
        waited.expect("transactions are sent in time").expect("the server runs").clone()
    }
}

impl Drop for SmallUpstream {
    fn drop(&mut self) {
        self.go_away();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics with it")
}

fn accept(listener: TcpListener, shared: Arc<NodeState>) -> JoinHandle<()> {
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            lock(&shared.connections).push(Instant::now());
            // As geth and reth do: else the second of two answers waits for the acknowledgement of the first.
            let _ = stream.set_nodelay(true);
            let shared = shared.clone();
            tokio::spawn(async move {
                let mut gone = shared.gone.subscribe();
                tokio::select! {
                    _ = gone.wait_for(|gone| *gone) => {}
                    () = serve(stream, shared.clone()) => {}
                }
            });
        }
    })
}

/// Serves one connection. An upgrade begins with GET; every other request is POST.
async fn serve(stream: TcpStream, shared: Arc<NodeState>) {
    let mut first = [0; 1];
    match stream.peek(&mut first).await {
        Ok(1) if first == *b"G" => serve_socket(stream, shared).await,
        _ => {
            let service = service_fn(|request| post(request, shared.clone()));
            // An error only means that the connection ended.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        }
    }
}

/// The body of an answer.
type AnswerBody = UnsyncBoxBody<Body, Infallible>;

async fn post(request: Request<Incoming>, shared: Arc<NodeState>) -> Result<Response<AnswerBody>, io::Error> {
    let accepted = request.headers().get("accept-encoding").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let compresses = accepted.contains("gzip") && shared.has(Manner::Compressed);
    let body = request.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
    let mut response = Response::builder().header("content-type", "application/json");
    if let Some(retry_after) = shared.asks_to_pause() {
        response = response.header("retry-after", retry_after).status(StatusCode::TOO_MANY_REQUESTS);
        return response.body(Full::from("slow down").boxed_unsync()).map_err(io::Error::other);
    }
    let arrived = shared.arrived(&body).delayed(shared.clone()).await;
    let (status, text) = match shared.reply(arrived, None) {
        Reply::Text(text) => (StatusCode::OK, text),
        Reply::Status(status) => (status, "the batch is too large".to_owned()),
        Reply::Fault(Fault::TooManyRequests) => (StatusCode::TOO_MANY_REQUESTS, "slow down".to_owned()),
        Reply::Fault(Fault::ServerError) => (StatusCode::INTERNAL_SERVER_ERROR, "something is broken".to_owned()),
        Reply::Fault(_) => return Err(io::Error::other("the connection is to end")),
    };
    let mut bytes = text.into_bytes();
    if compresses {
        shared.compressed.fetch_add(1, SeqCst);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&bytes)?;
        bytes = encoder.finish()?;
        response = response.header("content-encoding", "gzip");
    }
    let mut whole = shared.whole.subscribe();
    let body = if *whole.borrow_and_update() {
        Full::from(bytes).boxed_unsync()
    } else {
        let mut first = Body::from(bytes);
        let last = first.split_off(first.len() - 1);
        let withheld = async move {
            // The node ends with the test.
            let _ = whole.wait_for(|whole| *whole).await;
            last
        };
        let parts = stream::iter([first]).chain(stream::once(withheld));
        StreamBody::new(parts.map(|part| Ok(Frame::data(part)))).boxed_unsync()
    };
    response.status(status).body(body).map_err(io::Error::other)
}

async fn serve_socket(stream: TcpStream, shared: Arc<NodeState>) {
    let Ok(mut socket) = accept_async(stream).await else { return };
    let mut subscriptions = Subscriptions { heads: None, ids: Vec::new() };
    // A node that is far takes the next request before it has answered the last.
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            head = subscriptions.next() => {
                for id in &subscriptions.ids {
                    let params = json!({"subscription": id, "result": head});
                    let message = json!({"jsonrpc": "2.0", "method": "eth_subscription", "params": params});
                    if socket.send(Message::text(message.to_string())).await.is_err() {
                        return;
                    }
                }
            }
            message = socket.next() => {
                let Some(Ok(message)) = message else { return };
                if !message.is_text() && !message.is_binary() {
                    continue;
                }
                under_way.push(shared.arrived(&message.into_data()).delayed(shared.clone()));
            }
            Some(arrived) = under_way.next() => match shared.reply(arrived, Some(&mut subscriptions)) {
                Reply::Text(text) => if socket.send(Message::text(text)).await.is_err() { return },
                Reply::Fault(_) | Reply::Status(_) => return,
            }
        }
    }
}

/// The subscriptions of one WebSocket.
struct Subscriptions {
    heads: Option<broadcast::Receiver<Value>>,
    ids: Vec<String>,
}

impl Subscriptions {
    /// Returns the next head, or waits forever without a subscription.
    async fn next(&mut self) -> Value {
        match &mut self.heads {
            Some(heads) => heads.recv().await.expect("the server runs, and a test has fewer blocks than it keeps"),
            None => std::future::pending().await,
        }
    }

    fn add(&mut self, shared: &NodeState) -> Value {
        self.heads.get_or_insert_with(|| shared.heads.subscribe());
        let id = format!("{:#x}", self.ids.len() + 1);
        self.ids.push(id.clone());
        json!(id)
    }

    fn remove(&mut self, id: &Value) -> Value {
        let before = self.ids.len();
        self.ids.retain(|known| json!(known) != *id);
        if self.ids.is_empty() {
            self.heads = None;
        }
        json!(self.ids.len() < before)
    }
}

/// A request or a batch that is not answered yet.
struct Arrived {
    request: Value,
    /// The request, or those of the batch.
    requests: Vec<Value>,
    wave: Option<usize>,
    fault: Option<Fault>,
    delay: Duration,
}

impl Arrived {
    /// Waits until it is to be answered.
    async fn delayed(self, shared: Arc<NodeState>) -> Self {
        if !self.delay.is_zero() {
            tokio::select! {
                () = tokio::time::sleep(self.delay) => {}
                () = shared.hurry.notified() => {}
            }
        }
        if self.fault == Some(Fault::Silence) {
            std::future::pending::<()>().await;
        }
        self
    }
}

fn method(request: &Value) -> String {
    request["method"].as_str().unwrap_or_default().to_owned()
}

enum Reply {
    Text(String),
    /// An HTTP status without a JSON-RPC answer.
    Status(StatusCode),
    Fault(Fault),
}

/// A result, or the code, message and data of an error.
pub type Answer = Result<Value, (i64, &'static str)>;

impl NodeState {
    fn chain(&self) -> MutexGuard<'_, UpstreamChain> {
        lock(&self.chain)
    }

    fn has(&self, manner: Manner) -> bool {
        lock(&self.manners).contains(&manner)
    }

    /// Returns the `Retry-After` of a pause, and counts the request that comes in it.
    fn asks_to_pause(&self) -> Option<&'static str> {
        let mut pause = lock(&self.pause);
        let asked = pause.as_mut()?;
        let now = Instant::now();
        if now < *asked.until.get_or_insert(now + asked.length) {
            self.hasty.fetch_add(1, SeqCst);
            return Some(asked.retry_after);
        }
        *pause = None;
        None
    }

    /// Rejects a batch that is too large.
    fn rejects(&self, size: usize) -> Option<Reply> {
        let limit = lock(&self.manners).iter().find_map(|manner| match manner {
            Manner::SmallBatches(most, status) if size > *most => Some(*status),
            _ => None,
        })?;
        self.rejected.fetch_add(1, SeqCst);
        let error = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32600, "message": "no"}});
        match StatusCode::from_u16(limit).expect("a status") {
            StatusCode::OK => Some(Reply::Text(error.to_string())),
            status => Some(Reply::Status(status)),
        }
    }

    /// Counts a request or a batch.
    fn arrived(&self, body: &[u8]) -> Arrived {
        let request: Value = serde_json::from_slice(body).unwrap_or_default();
        let requests = request.as_array().cloned().unwrap_or_else(|| vec![request.clone()]);
        let reads_state = requests.iter().any(|request| STATE.contains(&method(request).as_str()));
        self.asked.send_modify(|asked| {
            *asked.entry("messages".to_owned()).or_default() += 1;
            for request in &requests {
                let method = method(request);
                if let Some(first) = request["params"][0].as_str() {
                    *asked.entry(format!("{method} {first}")).or_default() += 1;
                }
                *asked.entry(method).or_default() += 1;
            }
        });
        let wave = reads_state.then(|| lock(&self.waves).ask());
        let fault = self.next_fault();
        let slow = requests.iter().filter_map(|request| lock(&self.slow).get(method(request).as_str()).copied()).max();
        let delay = *lock(&self.delay) + slow.unwrap_or_default();
        Arrived { request, requests, wave, fault, delay }
    }

    /// Answers a request or a batch.
    fn reply(&self, arrived: Arrived, mut subscriptions: Option<&mut Subscriptions>) -> Reply {
        let Arrived { request, requests, wave, fault, .. } = arrived;
        if request.is_array()
            && let Some(rejection) = self.rejects(requests.len())
        {
            self.end(wave);
            return rejection;
        }
        let mut answer = |request: &Value| {
            let answer = match fault {
                None if self.has(Manner::Strict) && request.get("params").is_some_and(Value::is_null) => {
                    Err((-32600, "params: expected an array or an object"))
                }
                Some(Fault::LimitExceeded) => Err((-32005, "daily request count exceeded, request rate limited")),
                _ => self.answer(&method(request), &request["params"], subscriptions.as_deref_mut()),
            };
            match answer {
                Ok(result) if self.has(Manner::NullErrors) => {
                    json!({"jsonrpc": "2.0", "id": request["id"], "result": result, "error": null})
                }
                Ok(result) => json!({"jsonrpc": "2.0", "id": request["id"], "result": result}),
                Err((code, message)) => {
                    json!({"jsonrpc": "2.0", "id": request["id"], "error": {"code": code, "message": message}})
                }
            }
        };
        let text = match fault {
            Some(Fault::Garbage) => "<html>\u{fffd} bad gateway".to_owned(),
            Some(Fault::NoAnswer) => json!({"hello": ["world"]}).to_string(),
            Some(fault @ (Fault::TooManyRequests | Fault::ServerError | Fault::Closed | Fault::Silence)) => {
                self.end(wave);
                return Reply::Fault(fault);
            }
            Some(Fault::LimitExceeded) | None if request.is_array() => {
                requests.iter().map(answer).collect::<Value>().to_string()
            }
            Some(Fault::LimitExceeded) | None => answer(&request).to_string(),
        };
        self.end(wave);
        Reply::Text(text)
    }

    fn end(&self, wave: Option<usize>) {
        if let Some(wave) = wave {
            lock(&self.waves).answer(wave);
        }
    }

    fn next_fault(&self) -> Option<Fault> {
        let mut fault = lock(&self.fault);
        let (kind, left) = fault.as_mut()?;
        let kind = *kind;
        if *left != usize::MAX {
            *left = left.saturating_sub(1);
        }
        if *left == 0 {
            *fault = None;
        }
        Some(kind)
    }

    fn answer(&self, method: &str, params: &Value, subscriptions: Option<&mut Subscriptions>) -> Answer {
        let answer = match (method, subscriptions) {
            ("eth_subscribe", _) if self.has(Manner::NoSubscriptions) => Err(UNKNOWN),
            ("eth_subscribe", Some(subscriptions)) if params[0] == "newHeads" => Ok(subscriptions.add(self)),
            ("eth_subscribe", Some(_)) => Err((-32602, "no such subscription")),
            ("eth_unsubscribe", Some(subscriptions)) => Ok(subscriptions.remove(&params[0])),
            _ => self.read(method, params),
        };
        match &*lock(&self.lie) {
            Some(lie) => Ok(lie(method, params, answer?)),
            None => answer,
        }
    }

    fn read(&self, method: &str, params: &Value) -> Answer {
        if let Some(refusal) = lock(&self.refusals).get(method) {
            return Err(*refusal);
        }
        let names_hash = |param: &Value| param.get("blockHash").is_some();
        if self.no_hashes.load(SeqCst) && params.as_array().is_some_and(|params| params.iter().any(names_hash)) {
            return Err((-32602, "invalid argument 1: cannot unmarshal object into a block number"));
        }
        let chain = self.chain();
        let quantity = |number: u64| json!(format!("{number:#x}"));
        let account = |at: usize| -> Result<_, (i64, &'static str)> {
            let address =
                serde_json::from_value(params[0].clone()).map_err(|_| (-32602, "params[0]: expected an address"))?;
            let block = find(&chain, &params[at])?.ok_or((-32000, "header not found"))?;
            Ok((block, address))
        };
        Ok(match method {
            "eth_chainId" => quantity(self.chain_id),
            "net_version" => json!(self.chain_id.to_string()),
            "web3_clientVersion" => json!("small/1"),
            "eth_syncing" => json!(false),
            "eth_blockNumber" => quantity(chain.head().number),
            "eth_getBlockByNumber" | "eth_getBlockByHash" => {
                let full = params[1].as_bool().ok_or((-32602, "params[1]: expected a boolean"))?;
                find(&chain, &params[0])?.map_or(Value::Null, |block| block.json(full))
            }
            "eth_getBlockReceipts" => match find(&chain, &params[0])? {
                Some(block) => json!(block.receipts.as_ref().ok_or((-32000, "the receipts are not known"))?),
                None => Value::Null,
            },
            "eth_getTransactionReceipt" => {
                let mut receipts = chain.canonical.iter().filter_map(|block| block.receipts.as_ref()).flatten();
                json!(receipts.find(|receipt| receipt["transactionHash"] == params[0]))
            }
            "eth_getLogs" => {
                let at = |field: &str| Ok(find(&chain, &params[0][field])?.map(|block| block.number));
                let (from, to) = (at("fromBlock")?.unwrap_or_default(), at("toBlock")?.unwrap_or(u64::MAX));
                let range = chain.canonical.iter().filter(|block| (from..=to).contains(&block.number));
                let blocks: Vec<_> = match params[0].get("blockHash") {
                    Some(hash) => vec![find(&chain, hash)?.ok_or((-32000, "unknown block"))?],
                    None => range.collect(),
                };
                let receipts = blocks.into_iter().filter_map(|block| block.receipts.as_ref()).flatten();
                receipts.flat_map(|receipt| receipt["logs"].as_array().cloned().unwrap_or_default()).collect()
            }
            "eth_getBalance" => {
                let (block, address) = account(1)?;
                json!(block.state.get(&address).map(|account| account.balance).unwrap_or_default())
            }
            "eth_getTransactionCount" => {
                let (block, address) = account(1)?;
                quantity(block.state.get(&address).and_then(|account| account.nonce).unwrap_or_default())
            }
            "eth_getCode" => {
                let (block, address) = account(1)?;
                json!(block.state.get(&address).and_then(|account| account.code.clone()).unwrap_or_default())
            }
            "eth_getStorageAt" => {
                let (block, address) = account(2)?;
                let key = serde_json::from_value::<alloy_primitives::U256>(params[1].clone());
                let key = key.map_err(|_| (-32602, "params[1]: expected a slot"))?;
                json!(B256::from(slot(&block.state, &address, key.into())))
            }
            "eth_sendRawTransaction" => {
                let raw: Bytes =
                    serde_json::from_value(params[0].clone()).map_err(|_| (-32602, "params[0]: expected bytes"))?;
                let hash = keccak256(&raw);
                self.sent.send_modify(|sent| sent.push(raw));
                json!(hash)
            }
            _ => match lock(&self.script).as_ref().and_then(|script| script(method, params)) {
                Some(answer) => answer?,
                None => return Err(UNKNOWN),
            },
        })
    }
}

const UNKNOWN: (i64, &str) = (-32601, "the method does not exist/is not available");

/// Finds the block of a tag, a number, a hash or an EIP-1898 object.
fn find<'a>(chain: &'a UpstreamChain, selector: &Value) -> Result<Option<&'a UpstreamBlock>, (i64, &'static str)> {
    let wrong = (-32602, "expected a block");
    if let Some(hash) = selector.get("blockHash") {
        let hash: B256 = serde_json::from_value(hash.clone()).map_err(|_| wrong)?;
        let block = chain.by_hash(hash);
        let canonical = |block: &&UpstreamBlock| chain.by_number(block.number).is_some_and(|own| own.hash == hash);
        return match block {
            Some(block) if selector["requireCanonical"] == true && !canonical(&block) => {
                Err((-32000, "hash is not currently canonical"))
            }
            block => Ok(block),
        };
    }
    let selector = selector.get("blockNumber").unwrap_or(selector);
    let first = chain.canonical[0].number;
    Ok(match selector {
        Value::Null => Some(chain.head()),
        Value::String(text) => match text.as_str() {
            "latest" | "pending" => Some(chain.head()),
            "earliest" => chain.by_number(first),
            "finalized" => chain.by_number(chain.finalized.unwrap_or(first)),
            "safe" => chain.by_number(chain.safe.unwrap_or(first)),
            hash if hash.len() == 66 => chain.by_hash(hash.parse().map_err(|_| wrong)?),
            number => {
                let number = number.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
                chain.by_number(number.ok_or(wrong)?)
            }
        },
        _ => return Err(wrong),
    })
}
