//! Every limit that a request can exceed: its error code, and that later requests are still served.

use std::ffi::OsString;

use futures::future::join_all;
use presim::testing::Config;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    process::{file, text},
    raw::{Answer, Frames, Http1, Http2, Transport, WIDE},
    stalls::long_request,
    support::{CODE_AT, ONE_WORKER, PATHS, TestNode, endless_bundle, endless_call, number, request, token, token_file},
};

/// Code that never ends.
const LOOP: &str = "0x5b600056";
/// More gas than any deadline here allows to burn.
const ENDLESS_GAS: &str = "1000000000000000";

/// Returns the parameters of a bundle that ends at once.
fn short_bundle() -> Value {
    json!([{"blockStateCalls": [{"calls": [{"to": CODE_AT}]}]}, "pending"])
}

/// Checks that the next requests, among them a call and a bundle, are served.
async fn serves(node: &TestNode) {
    assert_eq!(node.result("/", "eth_chainId", json!([])).await, "0x7a69");
    assert_eq!(node.result("/", "eth_call", json!([{"to": CODE_AT}, "pending"])).await, "0x");
    let blocks = node.result("/", "eth_simulateV1", short_bundle()).await;
    assert_eq!(blocks[0]["calls"][0]["status"], "0x1");
}

/// Sends a text by each transport. Returns the answers.
async fn by_each(node: &TestNode, text: &str) -> [(Transport, Answer); 3] {
    let [http1, http2, socket] = Transport::ALL;
    let ask = async |transport: Transport| (transport, transport.ask(node.at(), &[], text).await);
    [ask(http1).await, ask(http2).await, ask(socket).await]
}

// Sizes.

#[tokio::test(flavor = "multi_thread")]
async fn a_body_past_max_body_is_refused() {
    let node = TestNode::quiet_with(&["--max-body", "2000"]);
    for (_, answer) in by_each(&node, &long_request(2_000)).await {
        assert_eq!((answer.status, &answer.json()["result"]), (200, &json!("0x7a69")));
    }
    let batch = Value::Array(vec![request(1, "eth_chainId", json!([])); 45]).to_string();
    assert!((2_001..4_000).contains(&batch.len()), "{}", batch.len());
    for text in [long_request(2_001), long_request(100_000), batch] {
        for (transport, answer) in by_each(&node, &text).await {
            let status = if transport == Transport::WebSocket { 200 } else { 413 };
            assert_eq!((answer.status, answer.code()), (status, -32005), "{transport:?}: {answer:?}");
            assert!(answer.message().contains("at most 2000 bytes (--max-body)"), "{transport:?}: {answer:?}");
        }
    }
    let (_, text) = node.post("/", " ".repeat(2_001)).await;
    let error = json!({"code": -32005, "message": "body too large: at most 2000 bytes (--max-body)"});
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(answer, json!({"jsonrpc": "2.0", "id": null, "error": error}));
    serves(&node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bundles_of_a_whole_watch_fit_into_a_body_by_default() {
    // 10,000 bundles of 3 kB.
    let (status, text) = TestNode::quiet().post("/", long_request(30_000_000)).await;
    assert!(status == 200 && text.contains("0x7a69"), "{status} {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_past_max_batch_is_refused_as_a_whole() {
    let node = TestNode::quiet_with(&["--max-batch", "3"]);
    let batch = |count| Value::Array(vec![request(1, "eth_chainId", json!([])); count]).to_string();
    for (transport, answer) in by_each(&node, &batch(3)).await {
        assert_eq!(answer.json().as_array().map(Vec::len), Some(3), "{transport:?}: {answer:?}");
    }
    for (transport, answer) in by_each(&node, &batch(4)).await {
        assert_eq!((answer.code(), &answer.json()["id"]), (-32005, &Value::Null), "{transport:?}: {answer:?}");
    }
    serves(&node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_past_max_response_is_refused() {
    let node = TestNode::quiet_with(&["--max-response", "4096"]);
    // RETURN(0, size)
    let call = |size: u16| {
        let code = json!({CODE_AT: {"code": format!("0x61{size:04x}6000f3")}});
        request(1, "eth_call", json!([{"to": CODE_AT}, "pending", code]))
    };
    for (transport, answer) in by_each(&node, &json!([call(1_024)]).to_string()).await {
        assert_eq!(answer.json()[0]["result"].as_str().map(str::len), Some(2_050), "{transport:?}");
    }
    let blocks = json!([{"blockStateCalls": vec![json!({}); 10]}, "pending"]);
    for long in [
        call(4_096),
        // An answer that is too long only with its JSON-RPC envelope.
        call(2_045),
        request(1, "eth_simulateV1", blocks),
        // The answers of a batch count together.
        json!(vec![call(1_024); 4]),
    ] {
        for (transport, answer) in by_each(&node, &long.to_string()).await {
            assert_eq!(answer.code(), -32005, "{transport:?} {long:.200}: {answer:?}");
        }
    }
    serves(&node).await;
}

// Shapes of a simulation.

#[tokio::test(flavor = "multi_thread")]
async fn a_simulation_past_its_bounds_is_minus_38026() {
    let node = TestNode::quiet_with(&["--max-blocks", "4", "--max-block-calls", "3", "--max-calls", "5"]);
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
    let node = TestNode::quiet_with(&["--gas-cap", "100000"]);
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
    let node = TestNode::quiet_with(&["--gas-cap", "100000"]);
    let payload = json!({"blockStateCalls": [{"stateOverrides": {CODE_AT: {"code": LOOP}}, "calls": [{"to": CODE_AT, "gas": "0xea60"}, {"to": CODE_AT}]}]});
    let blocks = node.result("/", "eth_simulateV1", json!([payload, "pending"])).await;
    let used: Vec<u64> = (0..2).map(|index| number(&blocks[0]["calls"][index]["gasUsed"])).collect();
    assert_eq!(used, [60_000, 40_000]);
    serves(&node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_never_ends_is_stopped_at_its_deadline() {
    let node = TestNode::quiet_with(&["--deadline-ms", "400", "--gas-cap", ENDLESS_GAS]);
    for (method, params) in [("eth_call", endless_call()), ("eth_simulateV1", endless_bundle())] {
        for path in PATHS {
            let error = node.error(path, method, params.clone()).await;
            assert_eq!(error["code"], -32016, "{method} on {path}: {error}");
        }
        // Each entry of a batch has a deadline of its own.
        let answers = node.send("/", &json!([request(1, method, params), request(2, "eth_chainId", json!([]))])).await;
        let codes = (&answers[0]["error"]["code"], &answers[1]["result"]);
        assert_eq!(codes, (&json!(-32016), &json!("0x7a69")), "{answers}");
    }
    serves(&node).await;
}

// Queues.

/// Occupies the only worker with an endless request, lets two more wait, and checks that the lane rejects all others before the worker
/// has ended anything. The lane serves again once its clients are gone.
async fn rejects_past_two_that_wait(node: &TestNode, lane: &str, method: &str, params: &Value) {
    let running = async |count: u64| node.shows(&format!("presim_jobs_running{{lane=\"{lane}\"}} {count}")).await;
    let waiting = async |count: u64| node.shows(&format!("presim_queue_depth{{lane=\"{lane}\"}} {count}")).await;
    let mut inside = JoinSet::new();
    for already_inside in 0..3 {
        inside.spawn(node.client.post(node.url("/")).json(&request(1, method, params.clone())).send());
        running(1).await;
        waiting(already_inside).await;
    }
    const MORE: usize = 40;
    let rejected = join_all((0..MORE).map(|_| node.error("/", method, params.clone()))).await;
    assert!(rejected.iter().all(|error| error["code"] == -32005), "{rejected:?}");
    assert_eq!(node.metric("presim_rejection_seconds_count"), MORE as f64);
    assert!(inside.try_join_next().is_none(), "those inside are not answered yet");
    drop(inside);
    waiting(0).await;
    running(0).await;
    serves(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_past_queue_bundle_is_refused_without_waiting_for_a_worker() {
    let node = TestNode::quiet_with(&[&ONE_WORKER[..], &["--queue-bundle", "2"]].concat());
    rejects_past_two_that_wait(&node, "bundle", "eth_simulateV1", &endless_bundle()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_past_queue_short_is_refused_without_waiting_for_a_worker() {
    let node = TestNode::quiet_with(&[&ONE_WORKER[..], &["--queue-short", "2"]].concat());
    rejects_past_two_that_wait(&node, "short", "eth_call", &endless_call()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_takes_one_place_in_its_lane() {
    let node = TestNode::quiet_with(&["--workers", "1", "--queue-short", "1", "--queue-bundle", "1"]);
    for (method, params) in [("eth_call", json!([{"to": CODE_AT}, "pending"])), ("eth_simulateV1", short_bundle())] {
        let answers = node.send("/", &json!(vec![request(1, method, params); 100])).await;
        let results = answers.as_array().expect("a list").iter().filter(|answer| answer.get("result").is_some());
        assert_eq!(results.count(), 100, "{method}: {answers}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_blocks_without_calls_need_no_worker() {
    let node = TestNode::quiet();
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
    let node = TestNode::quiet_with(&ONE_WORKER);
    let running = async |count: u64| node.shows(&format!("presim_jobs_running{{lane=\"bundle\"}} {count}")).await;
    let endless = request(1, "eth_simulateV1", endless_bundle()).to_string();
    let mut http1 = Http1::open(node.at()).await;
    http1.send(&[], &endless).await;
    running(1).await;
    drop(http1);
    running(0).await;
    let mut http2 = Http2::open(node.at(), WIDE).await;
    let (answer, mut body) = http2.begin(&[]).await;
    body.send_data(endless.clone().into(), true).expect("it is sent");
    running(1).await;
    drop((http2, answer, body));
    running(0).await;
    let mut socket = Frames::open(node.at(), &[]).await.expect("it is upgraded");
    socket.send(&endless).await;
    running(1).await;
    drop(socket);
    running(0).await;
    serves(&node).await;
}

// Access.

/// Sends a request with this `authorization`. Returns status and JSON.
async fn authorized(node: &TestNode, value: &str) -> (u16, Value) {
    let post = node.client.post(node.url("/")).json(&request(1, "eth_chainId", json!([])));
    let response = post.header("authorization", value).send().await.expect("it answers");
    (response.status().as_u16(), response.json().await.expect("JSON"))
}

fn bearer(name: &str) -> String {
    format!("Bearer {}", token(name))
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_right_token_a_request_is_401() {
    let tokens = token_file(&[("fast", 1_000)]);
    for flag in ["--token-file", "--wallet-token-file"] {
        let node = TestNode::quiet_with(&[flag, text(tokens.path())]);
        for value in ["Bearer wrong-token-of-length", "Bearer ", &token("fast"), "Basic YTpi"] {
            let (status, answer) = authorized(&node, value).await;
            assert_eq!(status, 401, "{flag} {value}");
            assert!(answer["error"]["code"].is_i64() && answer["id"].is_null(), "{flag} {value}: {answer}");
        }
        let (status, answer) = authorized(&node, &bearer("fast")).await;
        assert_eq!((status, &answer["result"]), (200, &json!("0x7a69")), "{flag}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_past_its_rate_is_refused_and_others_are_not() {
    let tokens = token_file(&[("fast", 1_000), ("slow", 1)]);
    let node = TestNode::quiet_with(&["--token-file", text(tokens.path())]);
    assert_eq!(authorized(&node, &bearer("slow")).await.1["result"], "0x7a69");
    let slow = bearer("slow");
    let answers = join_all((0..8).map(|_| authorized(&node, &slow))).await;
    assert!(answers.iter().any(|(_, answer)| answer["error"]["code"] == -32005), "{answers:?}");
    let (status, answer) = authorized(&node, &bearer("fast")).await;
    assert_eq!((status, &answer["result"]), (200, &json!("0x7a69")));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_entry_of_a_batch_counts_against_the_rate() {
    let tokens = token_file(&[("slow", 1)]);
    let node = TestNode::quiet_with(&["--token-file", text(tokens.path())]);
    let batch = Value::Array(vec![request(1, "eth_chainId", json!([])); 5]);
    let post = node.client.post(node.url("/")).bearer_auth(token("slow")).json(&batch);
    let answers: Value = post.send().await.expect("it answers").json().await.expect("JSON");
    let refused = answers.as_array().expect("a list").iter().filter(|answer| answer["error"]["code"] == -32005).count();
    assert_eq!(refused, 4, "{answers}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wallet_token_file_keeps_the_wallet_for_its_tokens() {
    let (tokens, wallet) = (token_file(&[("node", 1_000)]), token_file(&[("wallet", 1_000)]));
    let (tokens, wallet) = (["--token-file", text(tokens.path())], ["--wallet-token-file", text(wallet.path())]);
    // Whether a client may use the wallet without a token, with one of the first file, and with one of the second; `None`: not even the node.
    for (flags, expected) in [
        (&[][..], [Some(true), Some(true), Some(true)]),
        (&[tokens][..], [None, Some(true), None]),
        (&[wallet][..], [Some(false), None, Some(true)]),
        (&[tokens, wallet][..], [None, Some(false), Some(true)]),
    ] {
        let node = TestNode::quiet_with(&flags.concat());
        for (name, expected) in ["", "node", "wallet"].into_iter().zip(expected) {
            let post = node.client.post(node.url("/")).json(&request(1, "eth_requestAccounts", json!([])));
            let post = if name.is_empty() { post } else { post.bearer_auth(token(name)) };
            let response = post.send().await.expect("it answers");
            let may_use_node = response.status() != 401;
            let answer: Value = response.json().await.expect("JSON");
            let may_use_wallet = may_use_node.then_some(answer["error"]["code"] != 4100);
            assert_eq!(may_use_wallet, expected, "{flags:?} {name:?}: {answer}");
        }
    }
}

#[test]
fn a_wallet_token_file_is_read_as_strictly_as_a_token_file() {
    let tokens = token_file(&[("slow", 1)]);
    let same = file(&format!("[[token]]\nname = \"both\"\ntoken = \"{}\"\nrate = 1\n", token("slow")));
    let told = TestNode::refusal(&["--token-file", text(tokens.path()), "--wallet-token-file", text(same.path())]);
    assert!(told.contains("--wallet-token-file") && told.contains("\"slow\" of --token-file and \"both\""), "{told}");
    let told = TestNode::refusal(&["--wallet-token-file", text(file("").path())]);
    assert!(told.contains("--wallet-token-file") && told.contains("no [[token]]"), "{told}");
    let told = TestNode::refusal(&["--wallet-token-file", "/nowhere/tokens.toml"]);
    assert!(told.contains("--wallet-token-file /nowhere/tokens.toml"), "{told}");
}

#[test]
fn an_address_that_is_not_loopback_needs_a_token_file() {
    let load = |flags: &[&str]| Config::load(["presim"].iter().chain(flags).map(OsString::from));
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:8545"] {
        let error = load(&["--listen", listen]).expect_err("it is refused").to_string();
        assert!(error.contains("--token-file"), "{listen}: {error}");
    }
    let tokens = token_file(&[("one", 1)]);
    load(&["--listen", "0.0.0.0:0", "--token-file", text(tokens.path())]).expect("with tokens it is not");
    load(&["--listen", "0.0.0.0:0", "--wallet-token-file", text(tokens.path())])
        .expect_err("one for the wallet lets anybody use the node");
    load(&["--listen", "[::1]:0"]).expect("loopback needs none");
}

#[test]
fn a_token_file_that_protects_nobody_is_refused() {
    let one = |name: &str, token: &str| format!("[[token]]\nname = \"{name}\"\ntoken = \"{token}\"\nrate = 1\n");
    let (right, wrong) = ("1234567890123456", "expected ASCII characters without spaces");
    for (content, expected) in [
        (String::new(), "[[token]]"),
        (one("a", &right[..15]), "at least 16"),
        ("token = [[\"a\", \"1234567890123456\", 1]]\n".to_owned(), "[[token]] tables"),
        (one("a", "12345678 90123456"), wrong),
        (one("a", "1234567890123456é"), wrong),
        (one("a", right).replace("rate = 1", "rate = 0"), "rate"),
        ("[[token]]\nname = \"a\"\nrate = 1\n".to_owned(), "token"),
        (one("a", right) + &one("b", right), "same token"),
        ("not toml".to_owned(), "token-file"),
    ] {
        let told = TestNode::refusal(&["--token-file", text(file(&content).path())]);
        assert!(told.contains(expected), "{content:?}: {told}");
    }
}
