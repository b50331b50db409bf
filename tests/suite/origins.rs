//! Requests of pages in a browser: which origins are served and which are refused.

use alloy_primitives::hex;
use presim::testing::source::devnet::world::{dev_signers, traffic_signers};
use serde_json::{Value, json};

use crate::{
    process::{file, text},
    raw::{Answer, Headers, Http1, Transport},
    support::{TestNode, chain_id, request},
};

/// An address without an account, which must receive nothing.
const NOBODY: &str = "0x000000000000000000000000000000000000abcd";
const EVIL: &str = "https://evil.example";

/// Sends a request with these headers.
async fn asked(node: &TestNode, transport: Transport, headers: Headers<'_>) -> Answer {
    transport.ask(node.at(), headers, &chain_id()).await
}

/// Checks that the request was served.
fn served(answer: &Answer, case: &str) {
    assert_eq!((answer.status, &answer.json()["result"]), (200, &json!("0x7a69")), "{case}: {answer:?}");
}

/// Checks that the request was refused with a body that says how to allow the origin.
fn refused(answer: &Answer, named: &str, case: &str) {
    assert_eq!(answer.status, 403, "{case}: {answer:?}");
    let body = answer.json();
    assert_eq!((&body["jsonrpc"], &body["id"]), (&json!("2.0"), &Value::Null), "{case}: {body}");
    assert!(body["error"]["code"].is_i64(), "{case}: {body}");
    let message = answer.message();
    assert!(message.contains(named) && message.contains("--allow-origin"), "{case}: {message}");
    assert_eq!(answer.header("access-control-allow-origin"), None, "{case}: {answer:?}");
}

/// Returns the nonces of all accounts that the node signs for, and the target's balance.
async fn money(node: &TestNode) -> Vec<Value> {
    let accounts = node.result("/", "eth_accounts", json!([])).await;
    let nonces = accounts.as_array().expect("a list").iter();
    let mut calls: Vec<_> = nonces.map(|account| ("eth_getTransactionCount", json!([account, "pending"]))).collect();
    calls.push(("eth_getBalance", json!([NOBODY, "pending"])));
    node.batch("/", &calls).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_origin_sends_nothing() {
    let keyed = traffic_signers().unwrap().swap_remove(0);
    let key = file(&hex::encode(keyed.to_bytes()));
    let node = TestNode::quiet_with(&["--wallet-key-file", text(key.path())]);
    let before = money(&node).await;
    let dev = dev_signers().unwrap().swap_remove(0);
    let batch = |from| {
        let calls = [json!({"to": NOBODY, "value": "0x1"})];
        json!([{"version": "2.0.0", "from": from, "chainId": "0x7a69", "atomicRequired": false, "calls": calls}])
    };
    let thefts = [
        request(1, "eth_sendTransaction", json!([{"from": dev.address(), "to": NOBODY, "value": "0x1"}])),
        request(2, "wallet_sendCalls", batch(dev.address())),
        request(3, "wallet_sendCalls", batch(keyed.address())),
    ];
    let other_port = format!("http://127.0.0.1:{}", node.at().port() - 1);
    let cases: [Headers<'_>; 6] = [
        &[("origin", EVIL)],
        &[("origin", &other_port)],
        &[("origin", "null")],
        // A content type that a page may post without a preflight.
        &[("origin", EVIL), ("content-type", "text/plain")],
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site")],
    ];
    for transport in Transport::ALL {
        for headers in cases {
            for theft in &thefts {
                let answer = transport.ask(node.at(), headers, &theft.to_string()).await;
                assert_eq!(answer.status, 403, "{transport:?} {headers:?}: {answer:?}");
            }
        }
    }
    assert_eq!(money(&node).await, before);
    // The same requests are accepted without a page's headers.
    for theft in thefts {
        let answer = node.send("/", &theft).await;
        assert!(answer.get("result").is_some(), "{answer}");
    }
    assert_ne!(money(&node).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nodes_own_origin_is_served_and_no_other() {
    let node = TestNode::quiet_with(&["--allow-host", "sim.example,other.example"]);
    let own = node.at().to_string();
    let port = node.at().port();
    let name = format!("localhost:{port}");
    let origin = |host: &str| format!("http://{host}");
    let cases = [
        (own.clone(), origin(&own), true),
        // A proxy in front of the node may terminate TLS.
        (own.clone(), format!("https://{own}"), true),
        (name.clone(), origin(&name), true),
        (format!("LOCALHOST:{port}"), origin(&name), true),
        (format!("[::1]:{port}"), format!("http://[::1]:{port}"), true),
        ("sim.example".into(), "https://sim.example".into(), true),
        ("sim.example".into(), "http://sim.example".into(), true),
        ("sim.example:443".into(), "https://sim.example".into(), true),
        ("sim.example:8545".into(), "https://sim.example:8545".into(), true),
        // Another name of the same machine is another origin.
        (own.clone(), origin(&name), false),
        (own.clone(), "http://127.0.0.1".into(), false),
        (own.clone(), format!("http://127.0.0.1:{}", port - 1), false),
        (own.clone(), format!("http://{own}.evil.example"), false),
        (own.clone(), format!("http://{own}@evil.example"), false),
        (own.clone(), format!("http://evil.example/{own}"), false),
        (own.clone(), format!("http://evil.example#{own}"), false),
        (own.clone(), own.clone(), false),
        (own.clone(), "null".into(), false),
        (own.clone(), "file://".into(), false),
        (own.clone(), EVIL.into(), false),
        ("sim.example".into(), "https://sim.example:8443".into(), false),
        ("sim.example".into(), "https://other.example".into(), false),
        ("sim.example".into(), "https://a.sim.example".into(), false),
        ("sim.example:8080".into(), "https://sim.example".into(), false),
    ];
    for transport in Transport::ALL {
        for (host, origin, allowed) in &cases {
            let answer = asked(&node, transport, &[("host", host), ("origin", origin)]).await;
            let case = format!("{transport:?}: {origin} asks {host}");
            if *allowed { served(&answer, &case) } else { refused(&answer, origin, &case) }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_not_allowed_is_403_and_no_own_origin() {
    let node = TestNode::quiet_with(&["--allow-host", "sim.example,other.example"]);
    let others = ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "third.example"];
    let own = ["localhost", "LOCALHOST:1", "127.0.0.1:8545", "[::1]:8545", "sim.example", "other.example:443"];
    for transport in Transport::ALL {
        for host in others {
            let answer = asked(&node, transport, &[("host", host)]).await;
            assert_eq!((answer.status, answer.code()), (403, -32600), "{transport:?} {host}: {answer:?}");
        }
        for host in own {
            served(&asked(&node, transport, &[("host", host)]).await, &format!("{transport:?} {host}"));
        }
        let headers = [("host", "evil.example:8545"), ("origin", "http://evil.example:8545")];
        assert_eq!(asked(&node, transport, &headers).await.status, 403, "{transport:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn origins_are_served_as_they_are_listed() {
    let page = "https://app.example";
    let extension = "chrome-extension://nkbihfbeogaeaoehlefnkodbefgpgknn";
    let firefox = "moz-extension://0f4b2f3c-4a5e-4b0e-9a31-2f3f7a5d1c11";
    let all = [page, "http://app.example", "https://app.example:8443", extension, firefox, "null", EVIL];
    // The list of allowed origins, and those that it serves.
    let cases: [(&str, &[&str]); 5] = [
        (page, &[page]),
        ("https://app.example:8443,http://app.example", &["http://app.example", "https://app.example:8443"]),
        ("chrome-extension://*", &[extension]),
        ("moz-extension://*,https://app.example", &[firefox, page]),
        ("*", &all),
    ];
    for (list, expected) in cases {
        let node = TestNode::quiet_with(&["--allow-origin", list]);
        for transport in Transport::ALL {
            for origin in all {
                // If the origin is allowed, the browser's `sec-fetch-site` does not matter.
                for site in [None, Some("cross-site"), Some("same-site")] {
                    let headers = [Some(("origin", origin)), site.map(|site| ("sec-fetch-site", site))];
                    let headers: Vec<_> = headers.into_iter().flatten().collect();
                    let answer = asked(&node, transport, &headers).await;
                    let case = format!("{transport:?}: --allow-origin {list}: {headers:?}");
                    if expected.contains(&origin) { served(&answer, &case) } else { refused(&answer, origin, &case) }
                }
            }
        }
    }
}

/// A star within an origin stands for no page.
#[test]
fn an_origin_that_is_none_is_refused_at_the_start() {
    let stars = ["https://*", "https://*.example", "http://*,https://*"];
    for origin in
        ["app.example", "https://app.example/path", "https://", "null", "https://a b\u{7f}"].into_iter().chain(stars)
    {
        let error = TestNode::refusal(&["--allow-origin", origin]);
        assert!(error.contains("--allow-origin") && error.contains("expected `*`"), "{origin}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_origin_a_page_of_another_site_is_told_by_its_browser() {
    let node = TestNode::quiet();
    for transport in Transport::ALL {
        served(&asked(&node, transport, &[]).await, "no page");
        for site in ["same-origin", "none"] {
            served(&asked(&node, transport, &[("sec-fetch-site", site)]).await, site);
        }
        for site in ["cross-site", "same-site"] {
            let answer = asked(&node, transport, &[("sec-fetch-site", site)]).await;
            assert_eq!(answer.status, 403, "{transport:?} {site}: {answer:?}");
            assert!(answer.json()["error"]["code"].is_i64() && answer.json()["id"].is_null(), "{answer:?}");
        }
    }
}

/// Sends the preflight of a page that wants to post JSON.
async fn preflight(node: &TestNode, origin: &str) -> Answer {
    let headers = [
        ("origin", origin),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type"),
        ("access-control-request-private-network", "true"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-mode", "cors"),
    ];
    let mut connection = Http1::open(node.at()).await;
    let request = crate::raw::head(node.at(), &headers, 0).replacen("POST", "OPTIONS", 1);
    connection.write(request.as_bytes()).await;
    connection.read().await.expect("it answers")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preflight_of_a_listed_origin_allows_what_a_client_needs() {
    let extension = "chrome-extension://nkbihfbeogaeaoehlefnkodbefgpgknn";
    let cases = [
        ("https://app.example,https://b.example", "https://app.example"),
        ("chrome-extension://*", extension),
        ("*", "https://app.example"),
        ("*", "null"),
    ];
    for (list, origin) in cases {
        let node = TestNode::quiet_with(&["--allow-origin", list]);
        let answer = preflight(&node, origin).await;
        let case = format!("{list}: {origin}: {answer:?}");
        assert!([200, 204].contains(&answer.status), "{case}");
        let header = |name: &str| answer.header(name).unwrap_or_default().to_ascii_lowercase();
        let allowed = header("access-control-allow-origin");
        assert!(allowed == origin || (list == "*" && allowed == "*"), "{case}");
        assert!(header("access-control-allow-methods").contains("post"), "{case}");
        for name in ["content-type", "authorization"] {
            assert!(header("access-control-allow-headers").contains(name), "{case}");
        }
        assert_eq!(header("access-control-allow-private-network"), "true", "{case}");
        // The page may then read the answer.
        let answer = asked(&node, Transport::Http1, &[("origin", origin), ("sec-fetch-site", "cross-site")]).await;
        served(&answer, &case);
        assert_eq!(answer.header("access-control-allow-origin"), Some(allowed.as_str()), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preflight_of_an_origin_that_is_not_listed_allows_nothing() {
    for flags in [&[][..], &["--allow-origin", "https://app.example,chrome-extension://*"]] {
        let node = TestNode::quiet_with(flags);
        for origin in [EVIL, "null", "moz-extension://0f4b2f3c-4a5e-4b0e-9a31-2f3f7a5d1c11"] {
            let answer = preflight(&node, origin).await;
            assert_eq!(answer.header("access-control-allow-origin"), None, "{flags:?} {origin}: {answer:?}");
            assert_eq!(answer.header("access-control-allow-private-network"), None, "{flags:?} {origin}: {answer:?}");
        }
    }
}
