//! Requests refused before they are parsed: long heads, two hosts, metrics for strangers, tokens whose junk exceeds the
//! rate; and the places that idle connections take.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::{
    process::{refusal, text},
    raw::{Answer, Frames, Headers, Http1, Http2, WIDE, drain, head, served, whole},
    support::{BOUND, TestNode, chain_id, token, token_file},
};

// Heads.

/// Sends a request to this path over HTTP/1 and HTTP/2 and returns the answers.
async fn both(node: &TestNode, path: &str, headers: Headers<'_>) -> [Answer; 2] {
    let text = chain_id();
    let mut http1 = Http1::open(node.at()).await;
    let head = head(node.at(), headers, text.len()).replacen("POST / ", &format!("POST {path} "), 1);
    http1.write(format!("{head}{text}").as_bytes()).await;
    let first = http1.read().await.expect("HTTP/1 is answered");
    let mut http2 = Http2::open(node.at(), WIDE).await;
    let (answer, mut body) = http2.begin_at(path, headers).await;
    // The request may be refused before its body has arrived.
    let _ = body.send_data(text.into(), true);
    let second = whole(answer.await.expect("HTTP/2 is answered")).await.expect("HTTP/2 is answered");
    [first, second]
}

fn told(answer: &Answer, status: u16) {
    assert_eq!(answer.status, status, "{:.300}", answer.body);
    let body = answer.json();
    assert!(body["error"]["code"].is_i64() && body["error"]["message"].is_string(), "{body}");
    assert_eq!((&body["jsonrpc"], &body["id"]), (&json!("2.0"), &Value::Null), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_of_more_than_16_kib_is_431_with_a_json_rpc_body() {
    let node = TestNode::quiet();
    for (length, status) in [(14_000, 200), (17_000, 431), (40_000, 431)] {
        let one = "a".repeat(length);
        let part = "a".repeat(length / 40);
        let names: Vec<String> = (0..40).map(|index| format!("x-{index}")).collect();
        let many: Vec<_> = names.iter().map(|name| (name.as_str(), part.as_str())).collect();
        for headers in [&[("x-long", one.as_str())][..], &many] {
            for answer in both(&node, "/", headers).await {
                if status == 200 {
                    served(&answer);
                } else {
                    told(&answer, status);
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_uri_of_more_than_2_kib_is_414_with_a_json_rpc_body() {
    let node = TestNode::quiet();
    for (length, status) in [(1_900, 200), (2_100, 414), (10_000, 414)] {
        for answer in both(&node, &format!("/?{}", "a".repeat(length)), &[]).await {
            if status == 200 {
                served(&answer);
            } else {
                told(&answer, status);
            }
        }
    }
}

// Metrics.

async fn scraped(at: SocketAddr, headers: Headers<'_>) -> u16 {
    let mut connection = Http1::open(at).await;
    let request = head(at, headers, 0).replacen("POST / ", "GET /metrics ", 1);
    connection.write(request.as_bytes()).await;
    connection.read().await.expect("it answers").status
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_beyond_loopback_need_a_token() {
    let tokens = token_file(&[("one", 1_000)]);
    let flags = ["--metrics", "0.0.0.0:0", "--token-file", text(tokens.path()), "--allow-host", "metrics.example"];
    let node = TestNode::quiet_with(&flags);
    let port = node.node.info().metrics.expect("they are served").port();
    let at = SocketAddr::from(([127, 0, 0, 1], port));
    assert_eq!(scraped(at, &[]).await, 401);
    for value in [format!("Bearer {}x", token("one")), "Bearer ".into(), token("one")] {
        assert_eq!(scraped(at, &[("authorization", &value)]).await, 401, "{value}");
    }
    let right = format!("Bearer {}", token("one"));
    assert_eq!(scraped(at, &[("authorization", &right)]).await, 200);
    for (host, status) in [("metrics.example", 200), ("evil.example", 403)] {
        assert_eq!(scraped(at, &[("authorization", &right), ("host", host)]).await, status, "{host}");
    }
}

#[test]
fn metrics_beyond_loopback_without_tokens_are_refused_at_the_start() {
    let (code, told) = refusal(&["--listen", "127.0.0.1:0", "--metrics", "0.0.0.0:0"], &[]);
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("--metrics") && told.contains("--token-file"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_given_under_the_hosts_that_are_allowed() {
    let node = TestNode::quiet_with(&["--metrics", "127.0.0.1:0", "--allow-host", "node-3.internal"]);
    let at = node.node.info().metrics.expect("they are served");
    for host in ["127.0.0.1", "localhost:9000", "[::1]:9000", "node-3.internal", "Node-3.internal:80"] {
        assert_eq!(scraped(at, &[("host", host)]).await, 200, "{host}");
    }
    for host in ["evil.example", "10.0.0.7:8545", "127.0.0.1.evil.example", ""] {
        assert_eq!(scraped(at, &[("host", host)]).await, 403, "{host}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_readiness_are_given_under_any_host() {
    let node = TestNode::quiet();
    for host in ["127.0.0.1", "localhost:9000", "10.0.0.7:8545", "node-3.internal", ""] {
        for (path, status) in [("/health", 200), ("/ready", 200), ("/metrics", 404)] {
            let asked = node.client.get(node.url(path)).header("host", host).send().await.expect("it answers");
            assert_eq!(asked.status(), status, "{path} of {host:?}");
        }
    }
    let asked = node.client.get(node.url("/")).header("host", "node-3.internal").send().await.expect("it answers");
    assert_eq!(asked.status(), 403, "requests name a host that is allowed");
}

/// Opens connections that send this beginning of a request, and nothing more.
async fn silent(at: SocketAddr, count: usize, beginning: &str) -> Vec<Http1> {
    let mut connections = Vec::new();
    for _ in 0..count {
        let mut connection = Http1::open(at).await;
        connection.write(beginning.as_bytes()).await;
        connections.push(connection);
    }
    connections
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_keep_no_scraper_out() {
    let node = TestNode::quiet_with(&["--metrics", "127.0.0.1:0"]);
    let at = node.node.info().metrics.expect("they are served");
    for beginning in ["", "GET /metrics HTTP/1.1\r\n"] {
        let mut silent = silent(at, 40, beginning).await;
        assert_eq!(scraped(at, &[]).await, 200, "{beginning:?}");
        // The ones that have been idle longest have gone, and the others go when their heads have taken too long.
        for connection in &mut silent {
            assert!(drain(&mut connection.stream, BOUND).await.is_some(), "{beginning:?}: it stays open");
        }
    }
}

// Places.

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_a_token_close_none_that_has_sent_one() {
    let tokens = token_file(&[("one", 1_000)]);
    let node = TestNode::quiet_with(&["--token-file", text(tokens.path()), "--max-connections", "4"]);
    let bearer = format!("Bearer {}", token("one"));
    let headers = [("authorization", bearer.as_str())];
    let mut known = Vec::new();
    for _ in 0..3 {
        let mut connection = Http1::open(node.at()).await;
        served(&connection.ask(&headers, &chain_id()).await);
        known.push(connection);
    }
    let mut strangers = silent(node.at(), 10, "").await;
    for _ in 0..10 {
        let mut stranger = Http1::open(node.at()).await;
        assert_eq!(stranger.ask(&[], &chain_id()).await.status, 401);
        strangers.push(stranger);
    }
    for connection in &mut known {
        served(&connection.ask(&headers, &chain_id()).await);
    }
    served(&Http1::open(node.at()).await.ask(&headers, &chain_id()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_that_brings_no_request_goes_for_another() {
    let node = TestNode::quiet_with(&["--max-connections", "2"]);
    let mut working = Frames::open(node.at(), &[]).await.expect("it is upgraded");
    served(&working.ask(&chain_id()).await);
    let mut silent = Vec::new();
    for _ in 0..5 {
        silent.push(Frames::open(node.at(), &[]).await.expect("it is upgraded"));
    }
    served(&silent[4].ask(&chain_id()).await);
    served(&working.ask(&chain_id()).await);
    assert!(Frames::open(node.at(), &[]).await.is_err_and(|refused| refused.status == 503));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_head_does_not_have_the_time_of_a_body() {
    let node = TestNode::quiet_with(&["--io-timeout-ms", "3600000"]);
    for beginning in ["", "POST / HTTP/1.1\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut silent = silent(node.at(), 1, beginning).await;
        assert!(drain(&mut silent[0].stream, BOUND).await.is_some(), "{beginning:?}: it stays open");
    }
}

// Hosts.

#[tokio::test(flavor = "multi_thread")]
async fn two_hosts_are_400() {
    let node = TestNode::quiet_with(&["--metrics", "127.0.0.1:0"]);
    let metrics = node.node.info().metrics.expect("they are served");
    for hosts in [["127.0.0.1", "evil.example"], ["evil.example", "127.0.0.1"], ["127.0.0.1", "127.0.0.1"]] {
        let headers = hosts.map(|host| ("host", host));
        let answer = Http1::open(node.at()).await.ask(&headers, &chain_id()).await;
        told(&answer, 400);
        assert_eq!(answer.message(), "2 Host headers: expected one");
        assert_eq!(scraped(metrics, &headers).await, 400, "{hosts:?}");
    }
}

// Rates.

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_json_rpc_counts_against_a_token_s_rate() {
    let bearer = format!("Bearer {}", token("one"));
    let headers = [("authorization", bearer.as_str())];
    for junk in ["", "{", "5", "[]", "{}", "[5]", r#"{"jsonrpc":"2.0","method":"eth_chainId"}"#] {
        let tokens = token_file(&[("one", 1)]);
        let node = TestNode::quiet_with(&["--token-file", text(tokens.path())]);
        let mut http1 = Http1::open(node.at()).await;
        let mut http2 = Http2::open(node.at(), WIDE).await;
        let mut socket = Frames::open(node.at(), &headers).await.expect("it is upgraded");
        // This request may use up the rate of the current second.
        http1.ask(&headers, junk).await;
        for round in 0..2 {
            let answers = [
                http1.ask(&headers, junk).await,
                http2.ask(&headers, junk).await,
                socket.ask(junk).await,
                http1.ask(&headers, &chain_id()).await,
            ];
            let limited = answers.iter().filter(|answer| answer.body.contains("-32005")).count();
            // The second may end in between, which allows one more request.
            assert!(limited >= 3, "{junk:?}, round {round}: {answers:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_post_of_json_counts_against_a_token_s_rate() {
    let bearer = format!("Bearer {}", token("one"));
    let authorization = ("authorization", bearer.as_str());
    let text_plain: Headers<'_> = &[authorization, ("content-type", "text/plain")];
    for (method, headers) in [("GET", &[authorization][..]), ("PUT", &[authorization]), ("POST", text_plain)] {
        let tokens = token_file(&[("one", 1)]);
        let node = TestNode::quiet_with(&["--token-file", text(tokens.path())]);
        for _ in 0..3 {
            let mut connection = Http1::open(node.at()).await;
            let request = head(node.at(), headers, 0).replacen("POST", method, 1);
            connection.write(request.as_bytes()).await;
            connection.read().await.expect("it answers");
        }
        let answer = Http1::open(node.at()).await.ask(&[authorization], &chain_id()).await;
        assert_eq!(answer.code(), -32005, "{method} {headers:?}: {answer:?}");
    }
}
