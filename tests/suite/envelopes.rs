//! Well-formed and malformed bodies: HTTP and WebSocket give the same answer, as do both internal code paths.

use std::sync::Arc;

use bytestring::ByteString;
use presim::{
    rpc::{
        Caller, Client, Front, IoMemory, Message, RequestRunner, Subscriptions, Testing, Waiters, Watches,
        dialect::PRESIM,
    },
    scheduler::{Executor, ExecutorConfig},
    telemetry::Metrics,
    watch::WatchLimits,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    remote_state::world::BodiesChain,
    support::{BOUND, Socket, TestNode, say, shared},
};

/// A body, and the code of the error that answers it.
#[derive(Deserialize)]
struct BadBody {
    body_hex: String,
    error: Option<i64>,
}

impl BadBody {
    fn body(&self) -> Vec<u8> {
        const_hex::decode(&self.body_hex).expect("hex")
    }
}

/// Reads the bodies of the test vectors; `None` if the file does not exist.
fn envelopes() -> Option<Vec<BadBody>> {
    let text = std::fs::read_to_string(shared("vectors/envelopes.json")?).expect("it can be read");
    Some(serde_json::from_str(&text).expect("a list of bodies"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_gets_its_code_at_both_doors() {
    let Some(envelopes) = envelopes() else { return };
    let node = TestNode::quiet();
    let mut socket = Socket::open(&node, "/").await;
    let mut wrong = 0;
    for envelope in &envelopes {
        let body = envelope.body();
        let (status, text) = node.post("/", body.clone()).await;
        let over_http: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        // A binary message, because some bodies are not UTF-8.
        socket.write_binary(body.clone()).await.expect("it takes a message");
        let over_websocket = socket.read().await.expect("it answers");
        let code = |answer: &Value| answer["error"]["code"].as_i64();
        let right = code(&over_http) == envelope.error && over_websocket == over_http;
        wrong += usize::from(!right);
        let shown: String = String::from_utf8_lossy(body.trim_ascii()).chars().take(76).collect();
        let codes =
            [code(&over_http), code(&over_websocket)].map(|code| code.map_or("-".into(), |code| code.to_string()));
        let verdict = if right { "" } else { "  WRONG" };
        say(&format!("{shown:76}  HTTP {status} {:>7}  WebSocket {:>7}{verdict}", codes[0], codes[1]));
    }
    assert_eq!((envelopes.len(), wrong), (34, 0));
}

/// A request is an object: the order of its fields means nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_array_is_never_a_request() {
    let node = TestNode::quiet();
    let mut socket = Socket::open(&node, "/").await;
    let invalid = json!({"jsonrpc": "2.0", "id": null, "error": {
        "code": -32600,
        "message": "invalid request: expected an object with jsonrpc \"2.0\", an id and a method",
    }});
    let right = |id: u64| json!({"jsonrpc": "2.0", "id": id, "result": "0x7a69"});
    let invalid = |count: usize| vec![invalid.clone(); count];
    let call = r#"{"jsonrpc":"2.0","id":8,"method":"eth_chainId","params":[]}"#;
    // Nested arrays in the parameters of an entry are none of the batch.
    let many = r#"{"jsonrpc":"2.0","id":9,"method":"eth_callMany","params":[[{"transactions":[{"to":null}]}],{"blockNumber":"latest"}]}"#;
    let many_answer = json!({"jsonrpc": "2.0", "id": 9, "result": [[{"value": "0x"}]]});
    for (body, answers) in [
        (r#"["2.0",7,"eth_chainId",[]]"#.to_owned(), invalid(4)),
        (r#" [ "2.0" , 7 , "eth_chainId" ]"#.to_owned(), invalid(3)),
        (r#"[["2.0",7,"eth_chainId",[]]]"#.to_owned(), invalid(1)),
        (r#"[["2.0","eth_chainId",[]]]"#.to_owned(), invalid(1)),
        ("[[7]]".to_owned(), invalid(1)),
        (format!("[ [\"2.0\",7,\"eth_chainId\",[]] ,\n [5], {call}]"), [invalid(2), vec![right(8)]].concat()),
        (
            format!("[{call},[\"2.0\",7,\"eth_chainId\",[]],{many}]"),
            [vec![right(8)], invalid(1), vec![many_answer.clone()]].concat(),
        ),
        (format!("[{many},{call}]"), vec![many_answer, right(8)]),
    ] {
        let (_, text) = node.post("/", body.clone()).await;
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), Value::Array(answers.clone()), "{body}");
        socket.write(body.clone()).await.expect("it takes a message");
        assert_eq!(socket.read().await.expect("it answers"), Value::Array(answers), "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_answered_alike_by_the_short_cut_and_by_jsonrpsee() {
    let Some(genesis) = shared("bench/genesis.json") else { return };
    let node = TestNode::start(&["--genesis", genesis.to_str().unwrap(), "--feed", "static", "--block-time", "1"]);
    let Some(BodiesChain { backend, .. }) = BodiesChain::load() else { return };
    let metrics = Metrics::default();
    let executor = ExecutorConfig {
        workers: 1,
        queue_short: 100,
        queue_bundle: 100,
        queue_wait: BOUND,
        overload_wait: 100,
        deadline: BOUND,
    };
    let executor = Executor::start(executor, &metrics).unwrap();
    let subscriptions = Arc::new(Subscriptions::new(1, Arc::new(IoMemory::new(1 << 30, 1)), &metrics));
    let watches = Watches::new(WatchLimits::default(), &executor, subscriptions, &metrics);
    let (backend, waiters) = (Arc::new(backend), Waiters::new(1));
    let (snapshots, remote, leader) = (node.node.snapshots().clone(), None, None);
    let runner = RequestRunner::new(backend, executor, snapshots, waiters, remote, leader);
    let front = Front::new(runner, watches, Testing::Off, Vec::new(), &metrics);
    let (front, memory) = (Arc::new(front), Arc::new(IoMemory::new(1 << 30, 1)).quota());
    let client = Arc::new(Client::without_token(true));
    let caller = Arc::new(Caller { client, dialect: &PRESIM, page: None, memory: memory.clone(), until: None });
    let mut bodies: Vec<Vec<u8>> =
        envelopes().into_iter().flatten().filter(|one| one.error.is_none()).map(|one| one.body()).collect();
    let account = "0x5ea0000000000000000000000000000000000000";
    for (id, method, params) in [
        (json!(1), "eth_getBalance", json!([account, "latest"])),
        (json!("a \"quoted\" id"), "eth_call", json!([{"to": account}, "latest", {account: {"code": "0x60206000f3"}}])),
        (json!(null), "eth_call", json!([{"to": account}, "latest", {account: {"code": "0x5f5ffd"}}])),
        (json!(2), "eth_simulateV1", json!([{"blockStateCalls": [{"calls": [{"to": account}]}]}, "latest"])),
        (json!(3), "eth_call", json!([{"to": account, "foo": 1}, "latest"])),
        (json!(4), "eth_getBlockByNumber", json!(["0x7", false])),
        (json!(5), "eth_nothing", json!([])),
        (json!(6), "eth_subscribe", json!(["newHeads"])),
    ] {
        bodies.push(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string().into());
    }
    let workloads = ["call_balance", "call_quote", "get_code", "sim_swap", "sim_override", "batch_search"];
    for workload in workloads {
        let text = std::fs::read_to_string(shared(&format!("bench/{workload}.ndjson")).unwrap()).unwrap();
        bodies.extend(text.lines().take(2).map(|line| line.as_bytes().to_vec()));
    }
    let published = node.node.snapshots().load();
    for body in bodies {
        let body = ByteString::try_from(body).expect("UTF-8");
        let message = || Message::new(&front, &caller, &published, None);
        let held = || memory.clone().nothing();
        let by_short_cut = message().answer(body.clone(), held()).await;
        let by_jsonrpsee = message().answer_by_jsonrpsee(body.clone(), held()).await;
        assert_eq!(by_short_cut.text, by_jsonrpsee.text, "{body}");
        assert_eq!(by_short_cut.single, by_jsonrpsee.single, "{body}");
    }
}
