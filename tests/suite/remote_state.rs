//! State of an upstream: fetched once, in few waves, and never guessed.

#[path = "../../benches/world/mod.rs"]
pub mod world;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use alloy_primitives::{Address, U256};
use bytestring::ByteString;
use futures::future::join_all;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use jsonrpsee::types::Id;
use presim::testing::{
    ledger::{FeedState, Record, Retention, Snapshot, Snapshots},
    rpc::{
        AnswerFacts, AnswerRoom, Caller, Client, Dispatcher, ForwardedMethods, IoMemory, PastStates, Request,
        RequestRunner, RpcError, Subscriptions, Testing, UpstreamGateway, Waiters, Watches, dialect::PRESIM, table,
    },
    scheduler::{Executor, ExecutorConfig},
    state::{Fetched, RemoteSettings, RemoteState, RemoteView, World},
    store::{DataDir, StoredImage, UPSTREAM_FILE, read_image},
    telemetry::Metrics,
    upstream::{Fetcher, FetcherConfig, Upstream, UpstreamConfig, UpstreamState},
    watch::WatchLimits,
};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};

use self::world::BodiesChain;
use crate::support::{TestNode, say, shared};

/// The ways in which the proxy between presim and its upstream handles a request.
pub enum ProxyReply {
    /// Forwards the request and the answer.
    Pass,
    /// Answers with this status and body.
    Answer(u16, String),
    /// Forwards the request and changes the answer.
    Change(fn(&mut Value)),
    /// Never answers.
    Hang,
}

type Script = Box<dyn FnMut(usize, &Value) -> ProxyReply + Send>;

/// A scripted proxy before a node, which counts and delays requests.
pub struct Proxy {
    pub url: String,
    /// The number of groups of concurrent requests.
    waves: AtomicUsize,
    /// Cloned by each request that is under way: a client may drop one before it is answered.
    under_way: Arc<()>,
    requests: AtomicUsize,
    /// The number of calls by method and parameters.
    calls: Mutex<HashMap<String, usize>>,
    gone: Notify,
}

impl Proxy {
    pub async fn start(
        node: &TestNode,
        delay: Duration,
        script: impl FnMut(usize, &Value) -> ProxyReply + Send + 'static,
    ) -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Arc::new(Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            waves: AtomicUsize::new(0),
            under_way: Arc::new(()),
            requests: AtomicUsize::new(0),
            calls: Mutex::default(),
            gone: Notify::new(),
        });
        let script: Arc<Mutex<Script>> = Arc::new(Mutex::new(Box::new(script)));
        let (target, client, this) = (node.url("/standard"), node.client.clone(), proxy.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (this, target, client, script) = (this.clone(), target.clone(), client.clone(), script.clone());
                let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
                    let (this, target, client, script) = (this.clone(), target.clone(), client.clone(), script.clone());
                    async move {
                        let body = request.into_body().collect().await?.to_bytes();
                        let (status, text) = this.answer(&target, &client, &script, delay, body).await;
                        let mut response = http::Response::new(Full::new(Bytes::from(text)));
                        *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
                        Ok::<_, hyper::Error>(response)
                    }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        proxy
    }

    async fn answer(
        &self,
        target: &str,
        client: &reqwest::Client,
        script: &Mutex<Script>,
        delay: Duration,
        body: Bytes,
    ) -> (u16, String) {
        if Arc::strong_count(&self.under_way) == 1 {
            self.waves.fetch_add(1, SeqCst);
        }
        let _under_way = self.under_way.clone();
        let number = self.requests.fetch_add(1, SeqCst);
        let request: Value = serde_json::from_slice(&body).unwrap();
        {
            let mut calls = self.calls.lock().unwrap();
            let all = request.as_array().cloned().unwrap_or_else(|| vec![request.clone()]);
            for call in all {
                *calls.entry(format!("{}{}", call["method"], call["params"])).or_default() += 1;
            }
        }
        let reply = (script.lock().unwrap())(number, &request);
        let pass = async {
            let sent = client.post(target).header("content-type", "application/json").body(body).send().await.unwrap();
            sent.json::<Value>().await.unwrap()
        };
        let answer = match reply {
            ProxyReply::Pass => (200, pass.await.to_string()),
            ProxyReply::Change(change) => {
                let mut answer = pass.await;
                match &mut answer {
                    Value::Array(all) => all.iter_mut().for_each(change),
                    one => change(one),
                }
                (200, answer.to_string())
            }
            ProxyReply::Answer(status, text) => (status, text),
            ProxyReply::Hang => {
                self.gone.notified().await;
                (500, String::new())
            }
        };
        tokio::time::sleep(delay).await;
        answer
    }

    fn waves(&self) -> usize {
        self.waves.load(SeqCst)
    }
}

/// The benchmark world on a node, and a front whose state comes from that node.
struct Setup {
    node: TestNode,
    proxy: Arc<Proxy>,
    front: Arc<Dispatcher>,
    view: RemoteView,
    snapshots: Arc<Snapshots>,
    fetcher: Arc<Fetcher>,
}

impl Setup {
    async fn start(
        delay: Duration,
        deadline: Duration,
        verify_proofs: bool,
        script: impl FnMut(usize, &Value) -> ProxyReply + Send + 'static,
    ) -> Option<Self> {
        let genesis = shared("bench/genesis.json")?;
        let same = ["--feed", "static", "--block-time", "1", "--gas-cap", "1099511627776"];
        let node = TestNode::start(&[&["--genesis", genesis.to_str().unwrap()], same.as_slice()].concat());
        let proxy = Proxy::start(&node, delay, script).await;
        let backend = BodiesChain::start(&["--block-time", "1"])?.node.runner().backend.clone();
        let metrics = Metrics::default();
        let config = UpstreamConfig {
            url: proxy.url.clone(),
            timeout: MINUTE,
            concurrency: 64,
            batch: 100,
            max_response: 1 << 24,
            jitter_seed: None,
        };
        let upstream = Arc::new(Upstream::connect(config, &metrics).await.unwrap());
        let head = node.node.snapshots().newest();
        let view = RemoteState::begin(RemoteSettings::of_bytes(64 << 20), head.head.number(), head.head_hash());
        let first = Snapshot::at_head(World::on(view.clone()), head.head.clone(), head.hashes.clone());
        let snapshots = Arc::new(Snapshots::new(
            first,
            FeedState::Static,
            Retention { blocks: 1, snapshots: 1, history: 1, history_bytes: u64::MAX },
        ));
        let config = FetcherConfig { wave_timeout: MINUTE, verify_proofs, max_in_flight: 100_000 };
        let fetcher = Arc::new(Fetcher::new(upstream, backend.codes.clone(), config, &metrics));
        let executor = ExecutorConfig {
            workers: 2,
            queue_short: 10_000,
            queue_bundle: 10_000,
            queue_wait: MINUTE,
            overload_wait: 100_000,
            deadline,
        };
        let executor = Executor::start(executor, &metrics).unwrap();
        let subscriptions = Arc::new(Subscriptions::new(1, Arc::new(IoMemory::new(1 << 30, 1)), &metrics));
        let watches = Watches::new(WatchLimits::default(), &executor, subscriptions, &metrics);
        let remote = UpstreamGateway {
            fetcher: fetcher.clone(),
            rounds: 32,
            lacks_rules: false,
            forwarded: ForwardedMethods::default(),
            executed: metrics.counter("presim_executed_by_upstream_total", ""),
            past: PastStates::new(1 << 20),
            permits: Semaphore::new(1),
        };
        let runner =
            RequestRunner::new(backend, executor, snapshots.clone(), Waiters::new(1), Some(Arc::new(remote)), None);
        let front = Arc::new(Dispatcher::new(runner, watches, Testing::Off, Vec::new(), &metrics));
        Some(Self { node, proxy, front, view, snapshots, fetcher })
    }

    /// Asks the front.
    async fn ask(&self, method: &str, params: &Value) -> Result<Value, RpcError> {
        ask(&self.front, method, params).await
    }

    /// Asks the node, whose state is local.
    async fn expected(&self, method: &str, params: &Value) -> Value {
        self.node.result("/", method, params.clone()).await
    }
}

async fn ask(front: &Dispatcher, method: &str, params: &Value) -> Result<Value, RpcError> {
    let memory = Arc::new(IoMemory::new(1 << 30, 1)).quota();
    let room = AnswerRoom::of(memory.clone().empty());
    let client = Arc::new(Client::without_token(false));
    let caller = Arc::new(Caller { client, dialect: &PRESIM, page: None, memory, until: None });
    let method = table::by_name(method).unwrap();
    let request = Request {
        id: Id::Number(1),
        method: &method.info,
        params: ByteString::from(params.to_string()),
        room,
        ticket: front.services.runner.ticket(&caller),
        caller,
        published: front.services.runner.published(),
        starting: None,
    };
    let mut answer = front.answer(method, request, &mut AnswerFacts::default()).await?;
    answer.push(b'}');
    Ok(serde_json::from_slice::<Value>(&answer).unwrap()["result"].take())
}

/// Returns the upstream's answer that refuses one request or each of a batch.
pub fn refused(request: &Value, message: &str) -> Value {
    let refuse =
        |call: &Value| json!({"jsonrpc": "2.0", "id": call["id"], "error": {"code": -32000, "message": message}});
    request.as_array().map_or_else(|| refuse(request), |all| all.iter().map(refuse).collect())
}

/// Returns the first request of a benchmark workload.
fn body(workload: &str) -> (String, Value) {
    let text = std::fs::read_to_string(shared(&format!("bench/{workload}.ndjson")).unwrap()).unwrap();
    let request: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    (request["method"].as_str().unwrap().to_owned(), request["params"].clone())
}

fn is_prediction(request: &Value) -> bool {
    let is = |call: &Value| call["method"] == "eth_createAccessList" || call["method"] == "debug_traceCall";
    request.as_array().map_or_else(|| is(request), |all| all.iter().any(is))
}

const MINUTE: Duration = Duration::from_secs(60);
/// A deadline that ends retries.
const RETRIES: Duration = Duration::from_secs(8);
/// Requests of one wave come within this time, and predictions do not take longer.
const NEAR: Duration = Duration::from_millis(300);

#[tokio::test(flavor = "multi_thread")]
async fn a_cold_swap_takes_four_waves_and_a_warm_one_none() {
    let Some(setup) = Setup::start(NEAR, MINUTE, false, |_, _| ProxyReply::Pass).await else { return };
    let (method, params) = body("sim_swap");
    let expected = setup.expected(&method, &params).await;
    let answer = setup.ask(&method, &params).await.unwrap();
    assert_eq!(answer, expected);
    assert_eq!(answer[0]["calls"][0]["status"], "0x1");
    let cold = setup.proxy.waves();
    say(&format!("a cold swap: {cold} waves"));
    assert!(cold <= 4, "{cold} waves");
    assert_eq!(setup.ask(&method, &params).await.unwrap(), answer);
    assert_eq!(setup.proxy.waves(), cold, "a warm one asks nobody");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_predictions_a_cold_swap_takes_eight_waves() {
    let refuse = |_, request: &Value| match is_prediction(request) {
        true => ProxyReply::Answer(
            200,
            json!({"jsonrpc": "2.0", "id": 0, "error": {"code": -32601, "message": "the method does not exist"}})
                .to_string(),
        ),
        false => ProxyReply::Pass,
    };
    let Some(setup) = Setup::start(NEAR, MINUTE, false, refuse).await else { return };
    let (method, params) = body("sim_swap");
    let expected = setup.expected(&method, &params).await;
    let answer = setup.ask(&method, &params).await.unwrap();
    assert_eq!(answer, expected);
    let cold = setup.proxy.waves();
    say(&format!("a cold swap without predictions: {cold} waves"));
    assert!(cold <= 8, "{cold} waves");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_those_of_local_state() {
    for verify_proofs in [false, true] {
        let Some(setup) = Setup::start(Duration::ZERO, MINUTE, verify_proofs, |_, _| ProxyReply::Pass).await else {
            return;
        };
        for workload in
            ["sim_swap", "sim_sandwich", "sim_multi", "sim_override", "call_quote", "call_balance", "get_code"]
        {
            let (method, params) = body(workload);
            let expected = setup.expected(&method, &params).await;
            let answer = setup.ask(&method, &params).await.unwrap_or_else(|error| panic!("{workload}: {error:?}"));
            assert_eq!(answer, expected, "{workload}");
        }
        let searcher = "0x5ea0000000000000000000000000000000000000";
        let token = "0xe7f1725e7734ce288f8367e1bb143e90bb3f0512";
        for (method, params) in [
            ("eth_getBalance", json!([searcher, "latest"])),
            ("eth_getTransactionCount", json!([searcher, "latest"])),
            ("eth_getCode", json!([token, "latest"])),
            ("eth_getStorageAt", json!([token, "0x0", "latest"])),
            ("eth_getStorageValues", json!([{token: ["0x0", "0x1", "0x7"]}, "latest"])),
            ("eth_getProof", json!([token, ["0x0"], "latest"])),
            ("eth_getBalance", json!(["0x00000000000000000000000000000000000beef1", "latest"])),
            ("eth_estimateGas", json!([{"from": searcher, "to": token, "data": "0x06fdde03"}, "latest"])),
        ] {
            let expected = setup.expected(method, &params).await;
            assert_eq!(setup.ask(method, &params).await.unwrap(), expected, "{method} {params}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_thousand_requests_want_is_fetched_once() {
    let Some(setup) = Setup::start(NEAR, MINUTE, false, |_, _| ProxyReply::Pass).await else { return };
    let token = "0xe7f1725e7734ce288f8367e1bb143e90bb3f0512";
    let params = json!([token, "0x7", "latest"]);
    let expected = setup.expected("eth_getStorageAt", &params).await;
    let all = (0..1000).map(|_| {
        let (front, params) = (setup.front.clone(), params.clone());
        tokio::spawn(async move { ask(&front, "eth_getStorageAt", &params).await })
    });
    for answer in join_all(all).await {
        assert_eq!(answer.unwrap().unwrap(), expected);
    }
    let calls = setup.proxy.calls.lock().unwrap().clone();
    assert_eq!(calls.values().copied().collect::<Vec<_>>(), [1], "{calls:?}");
    assert_eq!(setup.proxy.requests.load(SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_passes_is_asked_again() {
    let busy =
        json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32005, "message": "limit exceeded"}}).to_string();
    let short = json!([]).to_string();
    for (status, text) in
        [(429, "slow down".to_owned()), (200, busy), (503, String::new()), (200, "<html>".to_owned()), (200, short)]
    {
        let answer = text.clone();
        let script = move |number, _: &Value| {
            if number < 2 { ProxyReply::Answer(status, answer.clone()) } else { ProxyReply::Pass }
        };
        let Some(setup) = Setup::start(Duration::ZERO, MINUTE, false, script).await else { return };
        let (method, params) = body("call_quote");
        let expected = setup.expected(&method, &params).await;
        assert_eq!(setup.ask(&method, &params).await.unwrap(), expected, "after {status} {text}");
        assert_eq!(setup.fetcher.upstream().map(|upstream| upstream.state()), Some(UpstreamState::Ok));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_does_not_answer_rightly_is_an_error_with_its_cause_in_time() {
    type Fault = fn() -> ProxyReply;
    let cases: [(Fault, &str); 6] = [
        (|| ProxyReply::Answer(429, "slow down".to_owned()), "429"),
        (|| ProxyReply::Answer(200, "<html>".to_owned()), "no JSON-RPC response"),
        (|| ProxyReply::Answer(200, "[]".to_owned()), "no"),
        (|| ProxyReply::Hang, "in time"),
        (|| ProxyReply::Change(|answer| answer["result"] = Value::Null), "null"),
        (
            || {
                ProxyReply::Change(|answer| {
                    *answer = json!({"jsonrpc": "2.0", "id": answer["id"], "error": {"code": -32000, "message": "missing trie node"}});
                })
            },
            "missing trie node",
        ),
    ];
    let refused = cases.map(async |(reply, cause)| {
        // The deadline ends the retries. The first answer comes long before it.
        let Some(setup) = Setup::start(Duration::ZERO, RETRIES, false, move |_, _| reply()).await else { return };
        let (method, params) = body("call_quote");
        let error = setup.ask(&method, &params).await.unwrap_err();
        assert_eq!(error.code(), -32603, "{error:?}");
        let error = error.into_object();
        assert!(error.message().contains(cause), "{cause}: {error:?}");
        // A request that needs no upstream is still answered.
        assert_eq!(setup.ask("eth_blockNumber", &json!([])).await.unwrap(), "0x0");
        setup.proxy.gone.notify_waiters();
    });
    join_all(refused).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_is_never_answered_does_not_hide_the_first_cause() {
    let script = |number, _: &Value| match number {
        0 => ProxyReply::Answer(500, "something is broken".to_owned()),
        _ => ProxyReply::Hang,
    };
    let Some(setup) = Setup::start(Duration::ZERO, RETRIES, false, script).await else { return };
    let params = json!(["0x5ea0000000000000000000000000000000000000", "latest"]);
    let error = setup.ask("eth_getBalance", &params).await.unwrap_err().into_object();
    assert!(error.message().contains("500") && error.message().contains("something is broken"), "{error:?}");
    setup.proxy.gone.notify_waiters();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lie_does_not_pass_where_proofs_are_asked_for() {
    let lie: fn(&mut Value) = |answer| {
        if answer["result"]["balance"].is_string() {
            answer["result"]["balance"] = json!("0x1234");
        }
    };
    let Some(setup) = Setup::start(Duration::ZERO, RETRIES, true, move |_, _| ProxyReply::Change(lie)).await else {
        return;
    };
    let params = json!(["0x5ea0000000000000000000000000000000000000", "latest"]);
    let error = setup.ask("eth_getBalance", &params).await.unwrap_err();
    assert_eq!(error.code(), -32603);
    let error = error.into_object();
    assert!(error.message().contains("proof does not check"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_that_brings_nothing_ends_the_request_and_names_what_is_missing() {
    // The proof of the account comes without that of the slot.
    let lie: fn(&mut Value) = |answer| {
        if answer["result"]["storageProof"].is_array() {
            answer["result"]["storageProof"] = json!([]);
        }
    };
    let Some(setup) = Setup::start(Duration::ZERO, MINUTE, true, move |_, _| ProxyReply::Change(lie)).await else {
        return;
    };
    let token = "0xe7f1725e7734ce288f8367e1bb143e90bb3f0512";
    let error = setup.ask("eth_getStorageAt", &json!([token, "0x7", "latest"])).await.unwrap_err();
    assert_eq!(error.code(), -32603);
    let error = error.into_object();
    let hash = setup.view.hash().to_string();
    for part in ["slot 0x7", "0xe7f1725E7734CE288F8367e1Bb143E90bb3F0512", "block 0", &hash] {
        assert!(error.message().contains(part), "{part}: {error:?}");
    }
    let asked: usize = setup
        .proxy
        .calls
        .lock()
        .unwrap()
        .iter()
        .filter(|(call, _)| call.contains("eth_getProof"))
        .map(|(_, count)| count)
        .sum();
    assert_eq!(asked, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_block_the_upstream_has_dropped_goes_on_with_the_one_that_replaced_it() {
    let script = |number, request: &Value| match number {
        0 => ProxyReply::Answer(200, refused(request, "header not found").to_string()),
        _ => ProxyReply::Pass,
    };
    let Some(setup) = Setup::start(Duration::ZERO, MINUTE, false, script).await else { return };
    let (method, params) = ("eth_getBalance", json!(["0x5ea0000000000000000000000000000000000000", "latest"]));
    let expected = setup.expected(method, &params).await;
    let view = setup.view.begin_anew(setup.view.number(), setup.view.hash());
    let asked = tokio::spawn({
        let (front, params) = (setup.front.clone(), params.clone());
        async move { ask(&front, method, &params).await }
    });
    let old = setup.snapshots.newest();
    let sealed = Snapshot::at_head(World::on(view), old.head.clone(), old.hashes.clone());
    setup.snapshots.apply(Record::Seal { sealed, next: None }).unwrap();
    assert_eq!(asked.await.unwrap().unwrap(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_of_a_block_that_a_reorg_has_removed_is_fetched_by_its_hash() {
    let Some(setup) = Setup::start(Duration::ZERO, MINUTE, false, |_, _| ProxyReply::Pass).await else { return };
    let (method, params) = body("call_quote");
    let expected = setup.expected(&method, &params).await;
    let _other = setup.view.begin_anew(setup.view.number(), setup.view.hash());
    assert!(setup.view.is_abandoned());
    assert_eq!(setup.ask(&method, &params).await.unwrap(), expected, "nothing newer is shown");
    let asked = setup.proxy.waves();
    assert_eq!(setup.ask(&method, &params).await.unwrap(), expected);
    assert_eq!(setup.proxy.waves(), asked, "what was fetched is cached");
}

#[test]
fn an_image_on_the_disk_is_what_was_written_or_nothing() {
    let view = RemoteState::begin(RemoteSettings::of_bytes(1 << 20), 1, Default::default());
    let slot = |slot| Fetched::Slot { address: Address::ZERO, slot: U256::from(slot), value: U256::from(slot + 1) };
    view.insert((0..9).map(slot));
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open(dir.path(), false).unwrap();
    assert_eq!(read_image(&data, UPSTREAM_FILE, 1 << 20).unwrap(), None);
    let image = view.export();
    StoredImage::new(&image).write(&data, UPSTREAM_FILE).unwrap();
    assert_eq!(read_image(&data, UPSTREAM_FILE, 1 << 20).unwrap(), Some(image));
    assert!(read_image(&data, UPSTREAM_FILE, 10).unwrap_err().to_string().contains("longer than 10 bytes"));
    let file = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    assert!(read_image(&data, UPSTREAM_FILE, 1 << 20).unwrap_err().to_string().contains("the checksum does not match"));
}

/// Returns the resident memory of this process in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn a_hundred_thousand_slots_are_less_than_64_mib() {
    // The test runs in a process of its own, so that other tests do not change its memory.
    const ALONE: &str = "PRESIM_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let test = "remote_state::a_hundred_thousand_slots_are_less_than_64_mib";
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let output = alone.args([test, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
        let (text, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && text.contains("1 passed"), "{text}{said}");
        return say(said.trim());
    }
    let before = resident();
    let view = RemoteState::begin(RemoteSettings::of_bytes(64 << 20), 1, Default::default());
    for account in 0..10_000_u64 {
        let address = Address::left_padding_from(&(account + 1).to_be_bytes());
        let fields = Fetched::Account { address, balance: U256::from(account), nonce: 1, code: Default::default() };
        let slots = (0..10).map(|slot| Fetched::Slot { address, slot: U256::from(slot), value: U256::from(account) });
        view.insert(slots.chain([fields]));
    }
    let (stats, grown) = (view.state().stats(), resident().saturating_sub(before));
    say(&format!("110,000 entries: {} KiB resident, {} KiB counted", grown >> 10, stats.bytes >> 10));
    assert_eq!((stats.entries, stats.evicted), (110_000, 0));
    assert!(grown < 64 << 20, "{grown} bytes");
    assert!(grown < stats.bytes * 2, "{grown} bytes, and {} are counted", stats.bytes);
}
