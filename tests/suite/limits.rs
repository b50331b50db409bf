//! Every limit that a request can exceed: its error code, and that later requests are still served.

use std::{
    ffi::OsString,
    io::Write,
    time::{Duration, Instant},
};

use futures::future::join_all;
use presim::{config::Config, rpc::Access};
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::task::JoinSet;

use crate::support::{BOUND, TestNode, http, number};

/// An address without an account, where tests put their code.
const CODE_AT: &str = "0x00000000000000000000000000000000000c0de0";
/// Code that never ends.
const LOOP: &str = "0x5b600056";
/// A deadline after the end of every test.
const NEVER_MS: &str = "3600000";
/// More gas than any deadline here allows to burn.
const ENDLESS_GAS: &str = "1000000000000000";

/// Starts a node in which nothing happens by itself, with further flags.
fn quiet(flags: &[&str]) -> TestNode {
    TestNode::start(&[&["--traffic", "0", "--sub-block-ms", "60000"], flags].concat())
}

/// Returns the parameters of a call that runs until its deadline.
fn endless_call() -> Value {
    json!([{"to": CODE_AT}, "pending", {CODE_AT: {"code": LOOP}}])
}

/// Returns the parameters of a bundle that runs until its deadline.
fn endless_bundle() -> Value {
    let block = json!({
        "blockOverrides": {"gasLimit": "0x38d7ea4c68000"},
        "stateOverrides": {CODE_AT: {"code": LOOP}},
        "calls": [{"to": CODE_AT}],
    });
    json!([{"blockStateCalls": [block]}, "pending"])
}

/// Returns the parameters of a bundle that ends at once.
fn short_bundle() -> Value {
    json!([{"blockStateCalls": [{"calls": [{"to": CODE_AT}]}]}, "pending"])
}

fn request(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("no JSON: {error}: {text}"))
}

/// Checks that the next requests, among them a call and a bundle, are served.
async fn serves(node: &TestNode) {
    assert_eq!(node.result("/", "eth_chainId", json!([])).await, "0x7a69");
    assert_eq!(node.result("/", "eth_call", json!([{"to": CODE_AT}, "pending"])).await, "0x");
    let blocks = node.result("/", "eth_simulateV1", short_bundle()).await;
    assert_eq!(blocks[0]["calls"][0]["status"], "0x1");
}

// Sizes.

#[tokio::test(flavor = "multi_thread")]
async fn a_body_past_max_body_is_413_with_a_json_rpc_body() {
    let node = quiet(&["--max-body", "2000"]);
    let (status, text) = node.post("/", " ".repeat(2_001)).await;
    assert_eq!(status, 413);
    let answer = json_of(&text);
    assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32005), &Value::Null), "{answer}");
    assert_eq!(answer["error"]["message"], "body too large: at most 2000 bytes (--max-body)");
    serves(&node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bundles_of_a_whole_watch_fit_into_a_body_by_default() {
    let node = quiet(&[]);
    let mut body = request("eth_chainId", json!([])).to_string();
    // 10,000 bundles of 3 kB.
    body.push_str(&" ".repeat(30_000_000));
    let (status, text) = node.post("/", body).await;
    assert_eq!((status, &json_of(&text)["result"]), (200, &json!("0x7a69")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_exactly_max_body_is_read() {
    let node = quiet(&["--max-body", "2000"]);
    let body = format!("{:<2000}", request("eth_chainId", json!([])).to_string());
    let (status, text) = node.post("/", body).await;
    assert_eq!((status, &json_of(&text)["result"]), (200, &json!("0x7a69")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_past_max_batch_is_refused_as_a_whole() {
    let node = quiet(&["--max-batch", "3"]);
    let batch = |count| Value::Array(vec![request("eth_chainId", json!([])); count]);
    assert_eq!(node.send("/", &batch(3)).await.as_array().map(Vec::len), Some(3));
    let answer = node.send("/", &batch(4)).await;
    assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32005), &Value::Null), "{answer}");
    serves(&node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_past_max_response_is_refused() {
    let node = quiet(&["--max-response", "4096"]);
    // RETURN(0, 4096)
    let long = json!([{"to": CODE_AT}, "pending", {CODE_AT: {"code": "0x6110006000f3"}}]);
    assert_eq!(node.error("/", "eth_call", long.clone()).await["code"], -32005);
    let blocks = vec![json!({}); 10];
    let error = node.error("/", "eth_simulateV1", json!([{"blockStateCalls": blocks}, "pending"])).await;
    assert_eq!(error["code"], -32005);
    serves(&node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answers_of_a_batch_count_together() {
    let node = quiet(&["--max-response", "4096"]);
    // RETURN(0, 1024): one answer fits, four together do not.
    let fits = request("eth_call", json!([{"to": CODE_AT}, "pending", {CODE_AT: {"code": "0x6104006000f3"}}]));
    assert_eq!(node.send("/", &json!([fits])).await[0]["result"].as_str().map(str::len), Some(2050));
    let answer = node.send("/", &json!([fits, fits, fits, fits])).await;
    assert_eq!(answer["error"]["code"], -32005, "{answer}");
    serves(&node).await;
}

// Shapes of a simulation.

#[tokio::test(flavor = "multi_thread")]
async fn a_simulation_past_its_bounds_is_minus_38026() {
    let node = quiet(&["--max-blocks", "4", "--max-block-calls", "3", "--max-calls", "5"]);
    let calls = |count: usize| json!({"calls": vec![json!({"to": CODE_AT}); count]});
    let cases = [
        ("--max-blocks", json!([{}, {}, {}, {}, {}]), false),
        ("--max-blocks", json!([{}, {}, {}, {}]), true),
        ("--max-blocks, gaps included", json!([{"blockOverrides": {"number": "0x5"}}]), false),
        ("--max-blocks, gaps included", json!([{"blockOverrides": {"number": "0x4"}}]), true),
        ("--max-block-calls", json!([calls(4)]), false),
        ("--max-block-calls", json!([calls(3)]), true),
        ("--max-calls", json!([calls(3), calls(3)]), false),
        ("--max-calls", json!([calls(3), calls(2)]), true),
    ];
    for (limit, blocks, allowed) in cases {
        let answer = node.call("/", "eth_simulateV1", json!([{"blockStateCalls": blocks}, "pending"])).await;
        if allowed {
            assert!(answer["result"].is_array(), "{limit}: {answer}");
        } else {
            assert_eq!(answer["error"]["code"], -38026, "{limit}: {answer}");
        }
    }
    serves(&node).await;
}

// Gas and time.

#[tokio::test(flavor = "multi_thread")]
async fn a_call_has_no_more_gas_than_the_cap() {
    let node = quiet(&["--gas-cap", "100000"]);
    // GAS as a word.
    let state = json!({CODE_AT: {"code": "0x5a60005260206000f3"}});
    for call in [json!({"to": CODE_AT}), json!({"to": CODE_AT, "gas": "0xffffffff"})] {
        let left = number(&node.result("/", "eth_call", json!([call, "pending", state])).await);
        assert_eq!(left, 100_000 - 21_000 - 2, "{call}");
    }
    let error = node.error("/", "eth_call", endless_call()).await;
    assert_eq!((&error["code"], &error["message"]), (&json!(-32000), &json!("out of gas")));
    serves(&node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_calls_of_a_bundle_share_the_gas_cap() {
    let node = quiet(&["--gas-cap", "100000"]);
    let payload = json!({"blockStateCalls": [{"stateOverrides": {CODE_AT: {"code": LOOP}}, "calls": [{"to": CODE_AT, "gas": "0xea60"}, {"to": CODE_AT}]}]});
    let blocks = node.result("/", "eth_simulateV1", json!([payload, "pending"])).await;
    let used: Vec<u64> = (0..2).map(|index| number(&blocks[0]["calls"][index]["gasUsed"])).collect();
    assert_eq!(used, [60_000, 40_000]);
    serves(&node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_never_ends_is_stopped_at_its_deadline() {
    let node = quiet(&["--deadline-ms", "400", "--gas-cap", ENDLESS_GAS]);
    for (method, params) in [("eth_call", endless_call()), ("eth_simulateV1", endless_bundle())] {
        for path in ["/", "/standard"] {
            let began = Instant::now();
            let error = node.error(path, method, params.clone()).await;
            let took = began.elapsed();
            assert_eq!(error["code"], -32016, "{method}: {error}");
            assert!(took >= Duration::from_millis(390), "{method} on {path} was stopped after {took:?}");
        }
    }
    serves(&node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_of_a_batch_are_stopped_at_their_deadline_each() {
    let node = quiet(&["--deadline-ms", "400", "--gas-cap", ENDLESS_GAS]);
    let batch = json!([request("eth_call", endless_call()), request("eth_chainId", json!([]))]);
    let answers = node.send("/", &batch).await;
    assert_eq!(answers[0]["error"]["code"], -32016, "{answers}");
    assert_eq!(answers[1]["result"], "0x7a69");
}

// Queues.

/// Flags of a node with one worker, which an endless request occupies for as long as its client waits.
const ONE_WORKER: [&str; 6] = ["--workers", "1", "--deadline-ms", NEVER_MS, "--gas-cap", ENDLESS_GAS];

/// Occupies the only worker with an endless request, lets two more wait, and checks that the lane rejects all others before the worker
/// has ended anything. The lane serves again once its clients are gone.
async fn rejects_past_two_that_wait(node: &TestNode, lane: &str, method: &str, params: &Value) {
    let running = async |count: u64| node.shows(&format!("presim_jobs_running{{lane=\"{lane}\"}} {count}")).await;
    let waiting = async |count: u64| node.shows(&format!("presim_queue_depth{{lane=\"{lane}\"}} {count}")).await;
    let mut inside = JoinSet::new();
    for already_inside in 0..3 {
        let post = node.client.post(node.url("/")).header("content-type", "application/json");
        inside.spawn(post.body(request(method, params.clone()).to_string()).send());
        running(1).await;
        waiting(already_inside).await;
    }
    const MORE: usize = 40;
    let rejected = join_all((0..MORE).map(|_| node.error("/", method, params.clone()))).await;
    assert!(rejected.iter().all(|error| error["code"] == -32005), "{rejected:?}");
    assert_eq!(node.metric("presim_refusal_seconds_count"), MORE as f64);
    assert!(inside.try_join_next().is_none(), "those inside are not answered yet");
    drop(inside);
    waiting(0).await;
    running(0).await;
    serves(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_past_queue_bundle_is_refused_without_waiting_for_a_worker() {
    let node = quiet(&[&ONE_WORKER[..], &["--queue-bundle", "2"]].concat());
    rejects_past_two_that_wait(&node, "bundle", "eth_simulateV1", &endless_bundle()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_past_queue_short_is_refused_without_waiting_for_a_worker() {
    let node = quiet(&[&ONE_WORKER[..], &["--queue-short", "2"]].concat());
    rejects_past_two_that_wait(&node, "short", "eth_call", &endless_call()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_takes_one_place_in_its_lane() {
    let node = quiet(&["--workers", "1", "--queue-short", "1", "--queue-bundle", "1"]);
    for (method, params) in [("eth_call", json!([{"to": CODE_AT}, "pending"])), ("eth_simulateV1", short_bundle())] {
        let answers = node.send("/", &json!(vec![request(method, params); 100])).await;
        let results = answers.as_array().expect("a list").iter().filter(|answer| answer.get("result").is_some());
        assert_eq!(results.count(), 100, "{method}: {answers}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_blocks_without_calls_need_no_worker() {
    let node = quiet(&[]);
    let waited = || node.metric("presim_queue_wait_seconds_count{lane=\"bundle\"}");
    for (blocks, jobs) in [(1, 0.0), (64, 0.0), (65, 1.0)] {
        let before = waited();
        let params = json!([{ "blockStateCalls": vec![json!({}); blocks] }, "latest"]);
        let answer = node.result("/", "eth_simulateV1", params).await;
        assert_eq!(answer.as_array().map(Vec::len), Some(blocks));
        assert_eq!(waited() - before, jobs, "{blocks} blocks");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_frees_its_worker() {
    let node = quiet(&[&ONE_WORKER[..], &["--sub-blocks", "2"]].concat());
    let sent = {
        let client = http();
        let body = request("eth_simulateV1", endless_bundle()).to_string();
        let sent = client.post(node.url("/")).header("content-type", "application/json").body(body).send();
        tokio::spawn(sent)
    };
    node.shows("presim_jobs_running{lane=\"bundle\"} 1").await;
    sent.abort();
    let served = tokio::time::timeout(BOUND, serves(&node)).await;
    served.expect("the worker is free long before the deadline of what it ran");
}

// Connections.

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_past_max_connections_is_told_so() {
    let node = quiet(&[&ONE_WORKER[..], &["--max-connections", "1"]].concat());
    let other = http();
    let ask = || {
        let body = request("eth_chainId", json!([])).to_string();
        other.post(node.url("/")).header("content-type", "application/json").body(body).send()
    };
    // This connection has a request running and uses the only slot.
    let held = node.client.post(node.url("/")).header("content-type", "application/json");
    let held = tokio::spawn(held.body(request("eth_simulateV1", endless_bundle()).to_string()).send());
    node.shows("presim_jobs_running{lane=\"bundle\"} 1").await;
    let began = Instant::now();
    let refused = loop {
        match ask().await {
            Ok(response) if response.status() == 503 => break response.text().await.expect("a body"),
            other => assert!(began.elapsed() < BOUND, "never refused: {other:?}"),
        }
    };
    let answer = json_of(&refused);
    assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32005), &Value::Null), "{answer}");
    held.abort();
    let began = Instant::now();
    while !ask().await.is_ok_and(|response| response.status() == 200) {
        assert!(began.elapsed() < BOUND, "never served again");
    }
}

// Access.

/// Sends a request with this header. Returns status, JSON and headers.
async fn with_header(node: &TestNode, name: &str, value: &str) -> (u16, Value, reqwest::header::HeaderMap) {
    let request = node.client.post(node.url("/")).header("content-type", "application/json").header(name, value);
    let response = request.body(self::request("eth_chainId", json!([])).to_string()).send().await.expect("it answers");
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    (status, json_of(&response.text().await.expect("a body")), headers)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_host_is_403() {
    let node = quiet(&[]);
    for host in ["evil.example", "evil.example:8545", "127.0.0.1.evil.example", "localhost.evil.example:80"] {
        let (status, answer, _) = with_header(&node, "host", host).await;
        assert_eq!(status, 403, "{host}");
        assert_eq!(answer["error"]["code"], -32600, "{host}: {answer}");
    }
    serves(&node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nodes_own_names_and_those_allowed_are_served() {
    let node = quiet(&["--allow-host", "sim.example,other.example"]);
    for host in ["localhost", "LOCALHOST:1", "127.0.0.1:8545", "[::1]:8545", "sim.example", "other.example:443"] {
        let (status, answer, _) = with_header(&node, "host", host).await;
        assert_eq!((status, &answer["result"]), (200, &json!("0x7a69")), "{host}");
    }
    assert_eq!(with_header(&node, "host", "third.example").await.0, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_page_may_read_answers_by_default() {
    let node = quiet(&[]);
    let (_, _, headers) = with_header(&node, "origin", "http://page.example").await;
    assert_eq!(headers.get("access-control-allow-origin"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_pages_of_allowed_origins_may_read_answers() {
    let node = quiet(&["--allow-origin", "http://page.example"]);
    let (status, _, headers) = with_header(&node, "origin", "http://page.example").await;
    assert_eq!(status, 200);
    assert_eq!(
        headers.get("access-control-allow-origin").map(|value| value.as_bytes()),
        Some(&b"http://page.example"[..])
    );
    let (_, _, headers) = with_header(&node, "origin", "http://other.example").await;
    assert_eq!(headers.get("access-control-allow-origin"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preflight_of_an_allowed_origin_allows_post() {
    let node = quiet(&["--allow-origin", "http://page.example"]);
    let response = node
        .client
        .request(reqwest::Method::OPTIONS, node.url("/"))
        .header("origin", "http://page.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "content-type")
        .send()
        .await
        .expect("it answers");
    assert_eq!(response.status(), 200);
    let header =
        |name| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    assert_eq!(header("access-control-allow-origin"), "http://page.example");
    assert!(header("access-control-allow-methods").contains("POST"));
    assert!(header("access-control-allow-headers").contains("content-type"));
}

/// Creates a token file with this text.
fn tokens(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a file can be made");
    file.write_all(text.as_bytes()).expect("it can be written");
    file
}

const FAST: &str = "a-token-that-is-fast";
const SLOW: &str = "a-token-that-is-slow";

fn two_tokens() -> NamedTempFile {
    tokens(&format!(
        "[[token]]\nname = \"fast\"\ntoken = \"{FAST}\"\nrate = 1000\n[[token]]\nname = \"slow\"\ntoken = \"{SLOW}\"\nrate = 1\n"
    ))
}

fn path(file: &NamedTempFile) -> &str {
    file.path().to_str().expect("the path is UTF-8")
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_right_token_a_request_is_401() {
    let file = two_tokens();
    let node = quiet(&["--token-file", path(&file)]);
    let (status, text) = node.post("/", request("eth_chainId", json!([])).to_string()).await;
    assert_eq!(status, 401);
    let answer = json_of(&text);
    assert!(answer["error"]["code"].is_i64() && answer["id"].is_null(), "{answer}");
    for value in ["Bearer wrong-token-of-length", "Bearer ", FAST, "Basic YTpi"] {
        assert_eq!(with_header(&node, "authorization", value).await.0, 401, "{value}");
    }
    let (status, answer, _) = with_header(&node, "authorization", &format!("Bearer {FAST}")).await;
    assert_eq!((status, &answer["result"]), (200, &json!("0x7a69")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_past_its_rate_is_refused_and_others_are_not() {
    let file = two_tokens();
    let node = quiet(&["--token-file", path(&file)]);
    let slow = format!("Bearer {SLOW}");
    assert_eq!(with_header(&node, "authorization", &slow).await.1["result"], "0x7a69");
    let answers = join_all((0..8).map(|_| with_header(&node, "authorization", &slow))).await;
    assert!(answers.iter().any(|(_, answer, _)| answer["error"]["code"] == -32005), "{answers:?}");
    let (status, answer, _) = with_header(&node, "authorization", &format!("Bearer {FAST}")).await;
    assert_eq!((status, &answer["result"]), (200, &json!("0x7a69")));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_entry_of_a_batch_counts_against_the_rate() {
    let file = two_tokens();
    let node = quiet(&["--token-file", path(&file)]);
    let body = Value::Array(vec![request("eth_chainId", json!([])); 5]).to_string();
    let post = node.client.post(node.url("/")).header("content-type", "application/json");
    let response = post.header("authorization", format!("Bearer {SLOW}")).body(body).send().await.expect("it answers");
    let answers = json_of(&response.text().await.expect("a body"));
    let refused = answers.as_array().expect("a list").iter().filter(|answer| answer["error"]["code"] == -32005).count();
    assert_eq!(refused, 4, "{answers}");
}

const WALLET: &str = "a-token-for-the-wallet";

fn wallet_token() -> NamedTempFile {
    tokens(&format!("[[token]]\nname = \"wallet\"\ntoken = \"{WALLET}\"\nrate = 1000\n"))
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_wallet_token_file_alone_the_node_needs_no_token() {
    let file = wallet_token();
    let node = quiet(&["--wallet-token-file", path(&file)]);
    serves(&node).await;
    let (status, answer, _) = with_header(&node, "authorization", &format!("Bearer {WALLET}")).await;
    assert_eq!((status, &answer["result"]), (200, &json!("0x7a69")));
    // A request that presents a token must present a known one.
    for value in [format!("Bearer {FAST}"), "Bearer ".to_owned(), WALLET.to_owned()] {
        assert_eq!(with_header(&node, "authorization", &value).await.0, 401, "{value}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_either_file_may_use_the_node() {
    let (file, wallet) = (two_tokens(), wallet_token());
    let node = quiet(&["--token-file", path(&file), "--wallet-token-file", path(&wallet)]);
    for token in [FAST, SLOW, WALLET] {
        let (status, answer, _) = with_header(&node, "authorization", &format!("Bearer {token}")).await;
        assert_eq!((status, &answer["result"]), (200, &json!("0x7a69")), "{token}");
    }
    let (status, _) = node.post("/", request("eth_chainId", json!([])).to_string()).await;
    assert_eq!(status, 401);
}

#[test]
fn a_wallet_token_file_keeps_the_wallet_for_its_tokens() {
    let (file, wallet) = (two_tokens(), wallet_token());
    let access = |token_file: bool, wallet_token_file: bool| {
        let (file, wallet) = (file.path().to_path_buf(), wallet.path().to_path_buf());
        Access::new(token_file.then_some(file), wallet_token_file.then_some(wallet)).expect("the files are right")
    };
    // Which files exist, the token of a request, and whether it may use the wallet (`None`: not even the node).
    let cases = [
        (false, false, None, Some(true)),
        (false, false, Some(FAST), Some(true)),
        (true, false, None, None),
        (true, false, Some(FAST), Some(true)),
        (true, false, Some(WALLET), None),
        (false, true, None, Some(false)),
        (false, true, Some(FAST), None),
        (false, true, Some(WALLET), Some(true)),
        (true, true, None, None),
        (true, true, Some(FAST), Some(false)),
        (true, true, Some(WALLET), Some(true)),
    ];
    for (token_file, wallet_token_file, token, expected) in cases {
        let access = access(token_file, wallet_token_file);
        let header = token.map(|token| format!("Bearer {token}"));
        let client = access.client(header.as_deref().map(str::as_bytes));
        let may = client.ok().map(|client| client.map_or(access.opens_wallet(), |client| client.may_use_wallet()));
        assert_eq!(may, expected, "--token-file {token_file}, --wallet-token-file {wallet_token_file}, {token:?}");
    }
}

#[test]
fn a_wallet_token_file_is_read_as_strictly_as_a_token_file() {
    let same = tokens(&format!("[[token]]\nname = \"both\"\ntoken = \"{SLOW}\"\nrate = 1\n"));
    let (file, empty) = (two_tokens(), tokens(""));
    let refusal = |flags: &[&str]| format!("{:#}", TestNode::try_start(flags).map(drop).expect_err("it is refused"));
    let told = refusal(&["--token-file", path(&file), "--wallet-token-file", path(&same)]);
    assert!(told.contains("--wallet-token-file") && told.contains("\"slow\" of --token-file and \"both\""), "{told}");
    let told = refusal(&["--wallet-token-file", path(&empty)]);
    assert!(told.contains("--wallet-token-file") && told.contains("no [[token]]"), "{told}");
    let told = refusal(&["--wallet-token-file", "/nowhere/tokens.toml"]);
    assert!(told.contains("--wallet-token-file /nowhere/tokens.toml"), "{told}");
}

#[test]
fn an_address_that_is_not_loopback_needs_a_token_file() {
    let load = |flags: &[&str]| Config::load(["presim"].iter().chain(flags).map(OsString::from));
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:8545"] {
        let error = load(&["--listen", listen]).expect_err("it is refused").to_string();
        assert!(error.contains("--token-file"), "{listen}: {error}");
    }
    let file = two_tokens();
    load(&["--listen", "0.0.0.0:0", "--token-file", path(&file)]).expect("with tokens it is not");
    load(&["--listen", "0.0.0.0:0", "--wallet-token-file", path(&file)])
        .expect_err("one for the wallet lets anybody use the node");
    load(&["--listen", "[::1]:0"]).expect("loopback needs none");
}

#[test]
fn a_token_file_that_protects_nobody_is_refused() {
    let cases = [
        ("", "[[token]]"),
        ("[[token]]\nname = \"a\"\ntoken = \"123456789012345\"\nrate = 1\n", "at least 16"),
        ("token = [[\"a\", \"1234567890123456\", 1]]\n", "[[token]] tables"),
        (
            "[[token]]\nname = \"a\"\ntoken = \"12345678 90123456\"\nrate = 1\n",
            "expected ASCII characters without spaces",
        ),
        (
            "[[token]]\nname = \"a\"\ntoken = \"1234567890123456é\"\nrate = 1\n",
            "expected ASCII characters without spaces",
        ),
        ("[[token]]\nname = \"a\"\ntoken = \"1234567890123456\"\nrate = 0\n", "rate"),
        ("[[token]]\nname = \"a\"\nrate = 1\n", "token"),
        (
            "[[token]]\nname = \"a\"\ntoken = \"1234567890123456\"\nrate = 1\n[[token]]\nname = \"b\"\ntoken = \"1234567890123456\"\nrate = 1\n",
            "same token",
        ),
        ("not toml", "token-file"),
    ];
    for (text, expected) in cases {
        let file = tokens(text);
        let error = TestNode::try_start(&["--token-file", path(&file)]).map(drop).expect_err("it is refused");
        let error = format!("{error:#}");
        assert!(error.contains(expected), "{text:?}: {error}");
    }
}

#[test]
fn an_origin_that_is_none_is_refused_at_the_start() {
    for origin in ["app.example", "https://app.example/path", "https://", "null", "https://a b\u{7f}"] {
        let error = TestNode::try_start(&["--allow-origin", origin]).map(drop).expect_err("it is refused").to_string();
        assert!(error.contains("--allow-origin") && error.contains("expected `*`"), "{origin}: {error}");
    }
}
