//! Requests over NATS: replicas as a micro service, and what only the leader can answer.

use alloy_primitives::Address;
use async_nats::HeaderMap;
use serde_json::{Value, json};

use super::{QUICK, advance, ingester, live::publishing, reach, replica, server::NatsServer, start, until};
use crate::{
    live::{
        built::Built,
        stage::{launch, serve},
        with_usual,
    },
    process::Presim,
    support::{TestNode, hex, request, token, token_file},
    upstream::StreamedDevnet,
};

/// Asks the replicas of a fleet over NATS.
async fn ask(client: &async_nats::Client, headers: HeaderMap, body: String) -> Value {
    let asked = client.request_with_headers("presim.test.rpc", headers, body.into()).await.expect("a replica answers");
    serde_json::from_slice(&asked.payload).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_found_and_answer_over_nats_as_over_http() {
    let Some(server) = NatsServer::start() else { return };
    let chain = StreamedDevnet::start(&QUICK).await;
    let leader = ingester(&chain, &server.url(), &[]);
    let replicas = [(); 2].map(|()| replica(&server.url(), &[]));
    let id = advance(&leader, 2).await;
    for replica in &replicas {
        reach(replica, id).await;
    }
    let client = server.connect().await;
    let mut found = client.subscribe("presim.test.found").await.expect("it listens");
    client.publish_with_reply("$SRV.INFO.presim", "presim.test.found", Default::default()).await.expect("it is sent");
    let mut ids = std::collections::BTreeSet::new();
    use futures::StreamExt;
    while ids.len() < 2 {
        let told =
            tokio::time::timeout(crate::support::BOUND, found.next()).await.expect("both tell").expect("it goes on");
        let told: Value = serde_json::from_slice(&told.payload).expect("JSON");
        assert_eq!(told["endpoints"][0]["subject"], "presim.test.rpc", "{told}");
        ids.insert(told["id"].to_string());
    }
    let at = json!({ "snapshotId": hex(id.0) });
    for (path, params) in [("/", json!([at, true])), ("/standard", json!([at, false]))] {
        let body = request(9, "eth_getBlockByNumber", params).to_string();
        let mut headers = HeaderMap::new();
        headers.insert("x-presim-path", path);
        let (_, expected) = leader.post(path, body.clone()).await;
        for _ in 0..4 {
            assert_eq!(ask(&client, headers.clone(), body.clone()).await.to_string(), {
                let expected: Value = serde_json::from_str(&expected).expect("JSON");
                expected.to_string()
            });
        }
    }
    let batch = format!("[{},{}]", request(1, "eth_chainId", json!([])), request(2, "eth_blockNumber", json!([])));
    assert_eq!(ask(&client, HeaderMap::new(), batch).await.as_array().map(Vec::len), Some(2));
    for (body, code) in [("no JSON", -32700), ("{}", -32600)] {
        assert_eq!(ask(&client, HeaderMap::new(), body.to_owned()).await["error"]["code"], code, "{body}");
    }
    let mut headers = HeaderMap::new();
    headers.insert("x-presim-min-snapshot", format!("{:#x}", id.0 + 1_000_000).as_str());
    let late = ask(&client, headers, request(3, "eth_blockNumber", json!([])).to_string()).await;
    assert_eq!((&late["id"], &late["error"]["code"]), (&json!(3), &json!(-32000)), "{late}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_and_the_size_of_an_answer_count_over_nats_too() {
    let Some(server) = NatsServer::start_with(&["max_payload: 8192"]) else { return };
    let chain = StreamedDevnet::start(&QUICK).await;
    let leader = ingester(&chain, &server.url(), &[]);
    advance(&leader, 2).await;
    let tokens = token_file(&[("a", 1_000)]);
    let flags = ["--token-file", tokens.path().to_str().expect("UTF-8")];
    let _follower = replica(&server.url(), &flags);
    let client = server.connect().await;
    let body = request(1, "eth_chainId", json!([])).to_string();
    let refused = ask(&client, HeaderMap::new(), body.clone()).await;
    assert!(refused["error"]["message"].as_str().is_some_and(|text| text.contains("token")), "{refused}");
    let mut headers = HeaderMap::new();
    headers.insert("Authorization", format!("Bearer {}", token("a")).as_str());
    assert_eq!(ask(&client, headers.clone(), body).await["result"], "0x7a69");
    let long = ask(&client, headers, request(4, "rpc.discover", json!([])).to_string()).await;
    assert_eq!((&long["id"], &long["error"]["code"]), (&json!(4), &json!(-32005)), "{long}");
    let text = long["error"]["message"].as_str().expect("a text");
    assert!(text.contains("8192") && text.contains("max_payload"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_the_leader_has_is_answered_by_it() {
    let Some(server) = NatsServer::start() else { return };
    let chain = StreamedDevnet::start(&["--sub-block-ms", "50", "--traffic", "2", "--sub-blocks", "2"]).await;
    let leader = ingester(&chain, &server.url(), &[]);
    // Blocks that the replica's image does not have with their bodies.
    leader.sealed(3).await;
    let asked = async |node: &TestNode, method: &str, params: Value| node.call("/", method, params).await;
    let follower = replica(&server.url(), &[]);
    for (method, params) in [
        ("eth_getBlockByNumber", json!(["0x1", true])),
        ("eth_getBlockReceipts", json!(["0x1"])),
        ("eth_getLogs", json!([{ "fromBlock": "0x1", "toBlock": "0x2" }])),
        ("presim_divergences", json!([])),
    ] {
        let expected = asked(&leader, method, params.clone()).await;
        assert!(expected.get("error").is_none(), "{method}: {expected}");
        assert_eq!(asked(&follower, method, params).await, expected, "{method}");
    }
    // Accounts and the pool are each node's own.
    assert_eq!(follower.result("/", "eth_accounts", json!([])).await, json!([]));
    assert_eq!(follower.result("/", "txpool_status", json!([])).await, json!({ "pending": "0x0", "queued": "0x0" }));
    drop(leader);
    until("there is no leader", async || {
        asked(&follower, "presim_divergences", json!([])).await["error"]["code"] == -32000
    })
    .await;
    let unknown = json!(["0x00000000000000000000000000000000000000000000000000000000000000aa"]);
    let body = follower.call("/", "eth_getTransactionByHash", unknown).await;
    assert_eq!(body["error"]["code"], -32000, "a replica does not know what is not there: {body}");
    assert!(body["error"]["message"].as_str().is_some_and(|text| text.contains("no leader")), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forwarded_request_says_whose_it_is_and_how_long_it_may_take() {
    let Some(server) = NatsServer::start() else { return };
    let chain = StreamedDevnet::start(&QUICK).await;
    let leader = ingester(&chain, &server.url(), &[]);
    advance(&leader, 2).await;
    let tokens = token_file(&[("a", 1_000)]);
    let flags = ["--deadline-ms", "700", "--token-file", tokens.path().to_str().expect("UTF-8")];
    let follower = replica(&server.url(), &flags);
    reach(&follower, advance(&leader, 1).await).await;
    drop(leader);
    // A leader that hears, and never answers.
    let client = server.connect().await;
    let mut heard = client.subscribe("presim.test.leader").await.expect("it listens");
    client.flush().await.expect("the server answers");
    let mut ask = async |method: &str, params: Value| {
        for _ in 0..20 {
            let asked = follower.client.post(follower.url("/")).bearer_auth(token("a"));
            let asked = asked.json(&request(1, method, params.clone()));
            let answer: Value = asked.send().await.expect("it answers").json().await.expect("JSON");
            // A busy node may have rejected the request before it asked.
            let hears = futures::StreamExt::next(&mut heard);
            if let Ok(message) = tokio::time::timeout(std::time::Duration::from_secs(1), hears).await {
                return (answer["error"].clone(), message.expect("the leader hears").headers.expect("headers"));
            }
        }
        panic!("the leader hears none of 20 requests");
    };
    let header = |headers: &HeaderMap, name: &str| headers.get(name).map(|value| value.as_str().to_owned());
    let (error, headers) = ask("eth_sendRawTransaction", json!(["0x02"])).await;
    assert_eq!(error["code"], -32016, "{error}");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("outcome unknown")), "{error}");
    let left: u64 = header(&headers, "x-presim-left-ms").expect("its time").parse().expect("a number");
    assert!(left <= 700, "{left}");
    assert_eq!(header(&headers, "x-presim-client").as_deref(), Some("a"), "the client's token");
    assert_eq!(header(&headers, "x-presim-min-snapshot"), None, "a write is not rejected because its leader is behind");
    let (error, _) = ask("presim_divergences", json!([])).await;
    assert_eq!(error["code"], -32000, "a read has changed nothing: {error}");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("not answered in time")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_banner_of_a_replica_says_what_it_is() {
    let Some(server) = NatsServer::start() else { return };
    let chain = StreamedDevnet::start(&QUICK).await;
    let leader = ingester(&chain, &server.url(), &[]);
    advance(&leader, 2).await;
    let follower = tokio::task::block_in_place(|| Presim::start(&["--follow", &server.url(), "--fleet", "test"]));
    let told = format!("replica: follows the leader of the fleet test at {}", server.url());
    assert!(follower.banner.contains(&told), "{}", follower.banner);
    assert!(!follower.banner.contains("devnet"), "{}", follower.banner);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_is_not_retained_is_the_nodes_own_error() {
    let Some(server) = NatsServer::start() else { return };
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    let url = server.url();
    let leader = launch(&upstream.url(), Some(&first.config), &with_usual(&publishing(&url))).await;
    let leader = leader.unwrap_or_else(|error| panic!("the node did not start: {error:#}"));
    let (own, without) = (
        start(&["--follow", &server.url(), "--fleet", "test", "--upstream", &upstream.url()]),
        start(&["--follow", &server.url(), "--fleet", "test"]),
    );
    for node in [&leader, &own, &without] {
        for (method, params) in [
            ("eth_getBlockByNumber", json!([{ "snapshotId": "0x1" }, true])),
            ("eth_getBlockReceipts", json!([{ "snapshotId": "0x1" }])),
            ("eth_getBalance", json!(["0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266", { "snapshotId": "0x1" }])),
        ] {
            let answer = node.call("/", method, params).await;
            assert_eq!(answer["error"]["code"], -32000, "{method}: {answer}");
            let text = answer["error"]["message"].as_str().unwrap_or_default();
            assert!(text.contains("snapshot 0x1 is not retained"), "{method}: {answer}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_the_wallet_is_rejected_over_nats() {
    let Some(server) = NatsServer::start() else { return };
    let (tokens, wallet) = (token_file(&[("reader", 1_000)]), token_file(&[("signer", 1_000)]));
    let chain = StreamedDevnet::start(&QUICK).await;
    let leader = ingester(&chain, &server.url(), &[]);
    let path = |file: &tempfile::NamedTempFile| file.path().to_str().expect("UTF-8").to_owned();
    let follower = replica(&server.url(), &["--token-file", &path(&tokens), "--wallet-token-file", &path(&wallet)]);
    reach(&follower, advance(&leader, 2).await).await;
    let client = server.connect().await;
    let ask_as = async |name: &str, method: &str, params: Value| -> Value {
        let mut headers = HeaderMap::new();
        headers.insert("Authorization", format!("Bearer {}", token(name)).as_str());
        ask(&client, headers, request(1, method, params).to_string()).await
    };
    assert_eq!(ask_as("reader", "eth_chainId", json!([])).await["result"], "0x7a69");
    for (method, params) in [("eth_chainId", json!([])), ("personal_sign", json!(["0x68", Address::ZERO]))] {
        let answer = ask_as("signer", method, params).await;
        let text = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(text.contains("--wallet-token-file") && text.contains("NATS"), "{answer}");
    }
}
