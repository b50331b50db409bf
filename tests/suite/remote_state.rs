//! State of an upstream: fetched once, in few waves, and never guessed.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::future::join_all;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::{
    live::stage::launch,
    support::{TestNode, say, shared},
};

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

/// A scripted proxy before a node, which delays requests and counts those for state.
pub struct Proxy {
    pub url: String,
    /// The number of groups of concurrent requests for state.
    waves: AtomicUsize,
    /// Cloned by each request that is under way: a client may drop one before it is answered.
    under_way: Arc<()>,
    requests: AtomicUsize,
    /// The number of calls for state by method and parameters.
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
        let request: Value = serde_json::from_slice(&body).unwrap();
        let of_state = asks_for_state(&request);
        if of_state && Arc::strong_count(&self.under_way) == 1 {
            self.waves.fetch_add(1, SeqCst);
        }
        let _under_way = of_state.then(|| self.under_way.clone());
        let number = self.requests.fetch_add(usize::from(of_state), SeqCst);
        for call in calls(&request).iter().filter(|_| of_state) {
            *self.calls.lock().unwrap().entry(format!("{}{}", call["method"], call["params"])).or_default() += 1;
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

/// Returns the calls of a request, alone or in a batch.
fn calls(request: &Value) -> &[Value] {
    request.as_array().map_or(std::slice::from_ref(request), Vec::as_slice)
}

fn asks_for_state(request: &Value) -> bool {
    const METHODS: [&str; 6] = [
        "eth_createAccessList",
        "eth_getBalance",
        "eth_getCode",
        "eth_getProof",
        "eth_getStorageAt",
        "eth_getTransactionCount",
    ];
    calls(request).iter().any(|call| METHODS.iter().any(|method| call["method"] == *method))
}

/// The benchmark world on a node, and a front whose state comes from that node.
struct Setup {
    node: TestNode,
    proxy: Arc<Proxy>,
    front: TestNode,
}

impl Setup {
    /// Starts both. `script` says what becomes of the front's requests for state, once it runs.
    async fn start(
        delay: Duration,
        deadline: Duration,
        more: &[&str],
        mut script: impl FnMut(usize, &Value) -> ProxyReply + Send + 'static,
    ) -> Option<Self> {
        let genesis = shared("bench/genesis.json")?;
        let same = ["--genesis", genesis.to_str().unwrap(), "--block-time", "1", "--gas-cap", "1099511627776"];
        let node = TestNode::start(&[&same[..], &["--feed", "static"]].concat());
        let runs = Arc::new(AtomicBool::new(false));
        let begun = runs.clone();
        let script = move |number, request: &Value| match begun.load(SeqCst) && asks_for_state(request) {
            true => script(number, request),
            false => ProxyReply::Pass,
        };
        let proxy = Proxy::start(&node, delay, script).await;
        let deadline = deadline.as_millis().to_string();
        let own = ["--deadline-ms", &deadline, "--upstream-timeout-ms", "60000", "--upstream-poll-ms", "60000"];
        let many = ["--queue-short", "10000", "--queue-wait-ms", "60000", "--overload-wait", "100000"];
        let front = launch(&proxy.url, None, &[&same[..], &own, &many, more].concat()).await.unwrap();
        // The requests of its start do not count.
        runs.store(true, SeqCst);
        proxy.waves.store(0, SeqCst);
        proxy.requests.store(0, SeqCst);
        proxy.calls.lock().unwrap().clear();
        Some(Self { node, proxy, front })
    }

    /// Asks the front, for a result.
    async fn ask(&self, method: &str, params: &Value) -> Value {
        self.front.result("/", method, params.clone()).await
    }

    /// Asks the front, for the error of a method that must fail.
    async fn error(&self, method: &str, params: &Value) -> String {
        let error = self.front.error("/", method, params.clone()).await;
        assert_eq!(error["code"], -32603, "{error}");
        error["message"].as_str().unwrap().to_owned()
    }

    /// Asks the node, whose state is local.
    async fn expected(&self, method: &str, params: &Value) -> Value {
        self.node.result("/", method, params.clone()).await
    }
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
    let methods = ["eth_createAccessList", "debug_traceCall"];
    calls(request).iter().any(|call| methods.iter().any(|method| call["method"] == *method))
}

const MINUTE: Duration = Duration::from_secs(60);
/// A deadline that ends retries.
const RETRIES: Duration = Duration::from_secs(8);
/// Requests of one wave come within this time, and predictions do not take longer.
const NEAR: Duration = Duration::from_millis(300);

#[tokio::test(flavor = "multi_thread")]
async fn a_cold_swap_takes_four_waves_and_a_warm_one_none() {
    let Some(setup) = Setup::start(NEAR, MINUTE, &[], |_, _| ProxyReply::Pass).await else { return };
    let (method, params) = body("sim_swap");
    let expected = setup.expected(&method, &params).await;
    let answer = setup.ask(&method, &params).await;
    assert_eq!(answer, expected);
    assert_eq!(answer[0]["calls"][0]["status"], "0x1");
    let cold = setup.proxy.waves();
    say(&format!("a cold swap: {cold} waves"));
    assert!(cold <= 4, "{cold} waves");
    assert_eq!(setup.ask(&method, &params).await, answer);
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
    let Some(setup) = Setup::start(NEAR, MINUTE, &[], refuse).await else { return };
    let (method, params) = body("sim_swap");
    let expected = setup.expected(&method, &params).await;
    let answer = setup.ask(&method, &params).await;
    assert_eq!(answer, expected);
    let cold = setup.proxy.waves();
    say(&format!("a cold swap without predictions: {cold} waves"));
    assert!(cold <= 8, "{cold} waves");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_those_of_local_state() {
    for proofs in [&[][..], &["--verify-proofs"]] {
        let Some(setup) = Setup::start(Duration::ZERO, MINUTE, proofs, |_, _| ProxyReply::Pass).await else {
            return;
        };
        for workload in
            ["sim_swap", "sim_sandwich", "sim_multi", "sim_override", "call_quote", "call_balance", "get_code"]
        {
            let (method, params) = body(workload);
            let expected = setup.expected(&method, &params).await;
            let answer = setup.ask(&method, &params).await;
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
            assert_eq!(setup.ask(method, &params).await, expected, "{method} {params}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_thousand_requests_want_is_fetched_once() {
    let Some(setup) = Setup::start(NEAR, MINUTE, &[], |_, _| ProxyReply::Pass).await else { return };
    let token = "0xe7f1725e7734ce288f8367e1bb143e90bb3f0512";
    let params = json!([token, "0x7", "latest"]);
    let expected = setup.expected("eth_getStorageAt", &params).await;
    let asked: Vec<_> = (0..10).map(|_| vec![("eth_getStorageAt", params.clone()); 100]).collect();
    for answers in join_all(asked.iter().map(|calls| setup.front.batch("/", calls))).await {
        assert_eq!(answers, vec![expected.clone(); 100]);
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
        let Some(setup) = Setup::start(Duration::ZERO, MINUTE, &[], script).await else { return };
        let (method, params) = body("call_quote");
        let expected = setup.expected(&method, &params).await;
        assert_eq!(setup.ask(&method, &params).await, expected, "after {status} {text}");
        let health = setup.front.client.get(setup.front.url("/health")).send().await.unwrap();
        assert_eq!(health.json::<Value>().await.unwrap()["upstream"], "ok");
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
        let Some(setup) = Setup::start(Duration::ZERO, RETRIES, &[], move |_, _| reply()).await else { return };
        let (method, params) = body("call_quote");
        let error = setup.error(&method, &params).await;
        assert!(error.contains(cause), "{cause}: {error}");
        // A request that needs no upstream is still answered.
        assert_eq!(setup.ask("eth_blockNumber", &json!([])).await, "0x0");
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
    let Some(setup) = Setup::start(Duration::ZERO, RETRIES, &[], script).await else { return };
    let params = json!(["0x5ea0000000000000000000000000000000000000", "latest"]);
    let error = setup.error("eth_getBalance", &params).await;
    assert!(error.contains("500") && error.contains("something is broken"), "{error}");
    setup.proxy.gone.notify_waiters();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lie_does_not_pass_where_proofs_are_asked_for() {
    let lie: fn(&mut Value) = |answer| {
        if answer["result"]["balance"].is_string() {
            answer["result"]["balance"] = json!("0x1234");
        }
    };
    let Some(setup) =
        Setup::start(Duration::ZERO, RETRIES, &["--verify-proofs"], move |_, _| ProxyReply::Change(lie)).await
    else {
        return;
    };
    let params = json!(["0x5ea0000000000000000000000000000000000000", "latest"]);
    let error = setup.error("eth_getBalance", &params).await;
    assert!(error.contains("proof does not check"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_that_brings_nothing_ends_the_request_and_names_what_is_missing() {
    // The proof of the account comes without that of the slot.
    let lie: fn(&mut Value) = |answer| {
        if answer["result"]["storageProof"].is_array() {
            answer["result"]["storageProof"] = json!([]);
        }
    };
    let Some(setup) =
        Setup::start(Duration::ZERO, MINUTE, &["--verify-proofs"], move |_, _| ProxyReply::Change(lie)).await
    else {
        return;
    };
    let token = "0xe7f1725e7734ce288f8367e1bb143e90bb3f0512";
    let error = setup.error("eth_getStorageAt", &json!([token, "0x7", "latest"])).await;
    let hash = setup.node.block("latest").await["hash"].as_str().unwrap().to_owned();
    for part in ["slot 0x7", "0xe7f1725E7734CE288F8367e1Bb143E90bb3F0512", "block 0", &hash] {
        assert!(error.contains(part), "{part}: {error}");
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
