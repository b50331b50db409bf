//! The page for browsers over HTTP: who gets it, its headers, the token of its WebSocket, and the methods it reads.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use reqwest::{Response, Url};
use serde_json::{Value, json};
use tokio_tungstenite::{
    connect_async,
    tungstenite::{Error, client::IntoClientRequest},
};

use crate::{
    process::text,
    support::{BOUND, Socket, TestNode, chain_id, items, token, token_file},
};

const HTML: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
/// The token of [`token`] for the client `a`, in base64url.
const TOKEN_IN_BASE64: &str = "YS10b2tlbi1vZi1zb21lLWxlbmd0aA";

/// Sends a request without a body.
async fn ask(node: &TestNode, method: Method, path: &str, headers: &[(&str, &str)]) -> Response {
    let headers: HeaderMap = headers
        .iter()
        .map(|(name, value)| (name.parse::<header::HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap()))
        .collect();
    node.client.request(method, node.url(path)).headers(headers).send().await.expect("it answers")
}

/// Returns a file of the page.
async fn file(node: &TestNode, path: &str) -> (HeaderMap, String) {
    let answer = ask(node, Method::GET, path, &[("accept", HTML)]).await;
    assert_eq!(answer.status(), StatusCode::OK, "{path}");
    let headers = answer.headers().clone();
    (headers, answer.text().await.expect("it is text"))
}

/// Returns the paths of all files of the page, with their texts: those that documents link to, and those that scripts
/// import. Fails if a link leads nowhere.
async fn files(node: &TestNode) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    let mut pending = vec!["/".to_owned()];
    while let Some(path) = pending.pop() {
        if found.contains_key(&path) {
            continue;
        }
        let (_, text) = file(node, &path).await;
        let base = Url::parse(&node.url(&path)).unwrap();
        let marks: &[&str] = if path.ends_with(".js") { &["from \""] } else { &["href=\"", "src=\""] };
        let names = marks.iter().flat_map(|before| text.split(before).skip(1));
        for name in names.filter_map(|after| after.split('"').next()) {
            let target = base.join(name).unwrap();
            // Views have names in place of anchors.
            if target.origin() == base.origin() && path.ends_with(".md") {
                anchors.extend(target.fragment().map(|anchor| (target.path().to_owned(), anchor.to_owned())));
            }
            if target.origin() == base.origin() {
                pending.push(target.path().to_owned());
            }
        }
        found.insert(path, text);
    }
    for (path, anchor) in anchors {
        assert!(found[&path].contains(&format!("id=\"{anchor}\"")), "{path} has no place {anchor}");
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn browsers_get_the_page_and_clients_get_json_rpc() {
    let node = TestNode::quiet();
    for (method, accept, status) in [
        (Method::GET, Some(HTML), 200),
        (Method::HEAD, Some("text/html"), 200),
        (Method::GET, Some("Text/HTML;q=0.5"), 200),
        (Method::GET, Some("*/*"), 405),
        (Method::GET, Some("application/json"), 405),
        (Method::GET, Some("text/html;q=0, */*"), 405),
        (Method::GET, None, 405),
        (Method::PUT, Some(HTML), 405),
        (Method::DELETE, Some(HTML), 405),
    ] {
        let headers: Vec<_> = accept.map(|accept| ("accept", accept)).into_iter().collect();
        let answer = ask(&node, method.clone(), "/", &headers).await;
        assert_eq!(answer.status(), status, "{method} {accept:?}");
        let is_page = answer.headers()[header::CONTENT_TYPE] == "text/html; charset=utf-8";
        assert_eq!(is_page, status == 200, "{method} {accept:?}");
        if method == Method::HEAD {
            assert_eq!(answer.text().await.unwrap(), "");
        }
    }
    // `Accept` does not matter where there is a body or an upgrade, nor on the other path.
    let post = node.client.post(node.url("/")).header("accept", HTML).header("content-type", "application/json");
    let answer: Value = post.body(chain_id()).send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["result"], "0x7a69");
    let mut request = format!("ws://{}/", node.node.info().listen.expect("it listens")).into_client_request().unwrap();
    request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static(HTML));
    connect_async(request).await.expect("it is upgraded");
    assert_eq!(ask(&node, Method::GET, "/standard", &[("accept", HTML)]).await.status(), 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_file_allows_the_browser_nothing_but_the_nodes_own() {
    let node = TestNode::quiet();
    let files = files(&node).await;
    assert!(files.len() > 10 && files.contains_key("/page/signatures.js"), "{:?}", files.keys());
    assert!(files.keys().filter(|path| path.ends_with(".md")).count() > 10, "{:?}", files.keys());
    for path in files.into_keys() {
        let (headers, text) = file(&node, &path).await;
        let policy = headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        let rules: BTreeSet<_> = policy.split("; ").collect();
        for rule in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ] {
            assert!(rules.contains(rule), "{path}: {rule}: {policy}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains("http"), "{path}: {policy}");
        let kind = headers[header::CONTENT_TYPE].to_str().unwrap();
        let expected = match path.rsplit_once('.').map(|(_, end)| end) {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "text/html; charset=utf-8",
        };
        assert_eq!(kind, expected, "{path}");
        assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff", "{path}");
        assert_eq!(headers[header::REFERRER_POLICY], "no-referrer", "{path}");
        assert!(!headers.contains_key("x-presim-snapshot") && !headers.contains_key(header::SET_COOKIE), "{path}");
        // Nothing is loaded from elsewhere, and nothing is inline, which the policy would stop.
        if path.ends_with(".md") {
            assert!(!text.contains("src=") && !text.contains("<script"), "{path} loads something");
        } else {
            let named = text.matches("://").count();
            let names =
                ["http://www.w3.org/", "https://docs.soliditylang.org/"].map(|known| text.matches(known).count());
            assert_eq!(named, names.iter().sum::<usize>(), "{path} names another host");
        }
        assert!(!text.contains(" style=\"") && !text.contains("<style") && !text.contains(" onclick="), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_that_has_a_file_gets_it_no_second_time() {
    let node = TestNode::quiet();
    let mut etags = BTreeSet::new();
    for path in files(&node).await.into_keys() {
        let (headers, text) = file(&node, &path).await;
        let etag = headers[header::ETAG].to_str().unwrap().to_owned();
        assert_eq!(headers[header::CACHE_CONTROL], "no-cache", "{path}");
        for (known, status) in [
            (etag.clone(), 304),
            (format!("\"other\", W/{etag}"), 304),
            ("*".to_owned(), 304),
            ("\"other\"".to_owned(), 200),
        ] {
            let headers = [("accept", HTML), ("if-none-match", known.as_str())];
            let answer = ask(&node, Method::GET, &path, &headers).await;
            assert_eq!(answer.status(), status, "{path}: {known}");
            assert_eq!(answer.headers()[header::ETAG].to_str().unwrap(), etag, "{path}");
            assert_eq!(answer.text().await.unwrap(), if status == 304 { "" } else { text.as_str() }, "{path}");
        }
        assert!(etags.insert(etag), "{path}: another file has its validator");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_paths_and_methods_are_refused_as_ever() {
    let node = TestNode::quiet();
    for path in ["/page", "/page/", "/page/nothing.js", "/page/../page/main.js/x", "/index.html", "/favicon.ico"] {
        let answer = ask(&node, Method::GET, path, &[("accept", HTML)]).await;
        assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{path}");
    }
    for method in [Method::POST, Method::PUT, Method::DELETE] {
        let answer = ask(&node, method.clone(), "/page/main.js", &[]).await;
        assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED, "{method}");
        assert_eq!(answer.headers()[header::ALLOW], "GET, HEAD", "{method}");
        let body: Value = answer.json().await.unwrap();
        assert!(body["error"]["message"].as_str().unwrap().contains("expected GET"), "{body}");
    }
    // A name that a stranger has pointed at this machine gets no page either.
    for path in ["/", "/page/main.js"] {
        let answer = ask(&node, Method::GET, path, &[("accept", HTML), ("host", "evil.example:8545")]).await;
        assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_page_there_are_none_of_its_files() {
    let node = TestNode::quiet_with(&["--no-page"]);
    assert_eq!(ask(&node, Method::GET, "/", &[("accept", HTML)]).await.status(), 405);
    assert_eq!(ask(&node, Method::GET, "/page/main.js", &[("accept", HTML)]).await.status(), 404);
    assert_eq!(node.result("/", "eth_chainId", json!([])).await, "0x7a69");
}

/// Opens a WebSocket that offers these subprotocols. Returns the selected one, or the status of the refusal.
async fn upgrade(node: &TestNode, offered: &str, headers: &[(&'static str, &str)]) -> Result<Option<String>, u16> {
    let mut request = format!("ws://{}/", node.node.info().listen.expect("it listens")).into_client_request().unwrap();
    if !offered.is_empty() {
        request.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, offered.parse().unwrap());
    }
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    match connect_async(request).await {
        Ok((_, response)) => Ok(response
            .headers()
            .get(header::SEC_WEBSOCKET_PROTOCOL)
            .map(|selected| selected.to_str().unwrap().to_owned())),
        Err(Error::Http(response)) => Err(response.status().as_u16()),
        Err(error) => panic!("{offered}: {error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_may_offer_its_token_as_a_subprotocol() {
    assert_eq!(token("a"), "a-token-of-some-length");
    let file = token_file(&[("a", 1000)]);
    let node = TestNode::quiet_with(&["--token-file", text(file.path())]);
    let good = format!("presim.token.{TOKEN_IN_BASE64}");
    let bearer = format!("Bearer {}", token("a"));
    // The answer repeats the token only where nothing else was offered, because a browser wants one of its offers.
    assert_eq!(upgrade(&node, &format!("presim, {good}"), &[]).await, Ok(Some("presim".to_owned())));
    assert_eq!(upgrade(&node, &format!("{good},presim"), &[]).await, Ok(Some("presim".to_owned())));
    assert_eq!(upgrade(&node, &good, &[]).await, Ok(Some(good.clone())));
    let other = "presim.token.bm90LXRoZS10b2tlbi1vZi1h";
    for refused in [
        "",
        "presim",
        "presim.token.",
        other,
        "presim.token.no!base64",
        &format!("presim.token.{}", token("a")),
        &token("a"),
    ] {
        assert_eq!(upgrade(&node, refused, &[]).await, Err(401), "{refused}");
    }
    // A header counts more than an offer.
    assert_eq!(upgrade(&node, "presim", &[("authorization", &bearer)]).await, Ok(Some("presim".to_owned())));
    assert_eq!(upgrade(&node, &good, &[("authorization", "Bearer wrong")]).await, Err(401));
    // Over HTTP, only the header names a client.
    let answer = ask(&node, Method::POST, "/", &[("sec-websocket-protocol", &good)]).await;
    assert_eq!(answer.status(), 401);
    // The token lets no other page in.
    let evil = [("origin", "https://evil.example")];
    assert_eq!(upgrade(&node, &format!("presim, {good}"), &evil).await, Err(403));
    let own = format!("http://{}", node.node.info().listen.expect("it listens"));
    assert_eq!(upgrade(&node, &format!("presim, {good}"), &[("origin", &own)]).await, Ok(Some("presim".to_owned())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_tokens_selects_the_pages_subprotocol_and_no_other() {
    let node = TestNode::quiet();
    assert_eq!(upgrade(&node, "presim", &[]).await, Ok(Some("presim".to_owned())));
    assert_eq!(upgrade(&node, "", &[]).await, Ok(None));
    // A token is not needed, and a browser that still has one gets in.
    let stale = format!("presim, presim.token.{TOKEN_IN_BASE64}");
    assert_eq!(upgrade(&node, &stale, &[]).await, Ok(Some("presim".to_owned())));
}

#[tokio::test(flavor = "multi_thread")]
async fn files_need_no_token_and_say_that_the_node_does() {
    let tokens = token_file(&[("a", 1000)]);
    let node = TestNode::quiet_with(&["--token-file", text(tokens.path())]);
    for path in files(&node).await.into_keys() {
        file(&node, &path).await;
    }
    let asks = |page: String| page.contains("data-token=\"needed\"");
    assert!(asks(file(&node, "/").await.1));
    assert!(!asks(file(&TestNode::quiet(), "/").await.1));
    assert_eq!(ask(&node, Method::GET, "/", &[]).await.status(), 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_counts_what_was_asked() {
    let node = TestNode::quiet();
    let first = node.result("/", "presim_status", json!([])).await;
    assert_eq!((&first["chainId"], &first["feed"]), (&json!("0x7a69"), &json!({"state": "live", "everyMs": 60_000})));
    assert_eq!(items(&first["contracts"])[0]["name"], "WETH");
    for _ in 0..20 {
        node.result("/", "eth_chainId", json!([])).await;
        node.error("/", "eth_call", json!([])).await;
    }
    let counted = async {
        loop {
            let status = node.result("/", "presim_status", json!([])).await;
            let method = |name: &str| items(&status["methods"]).iter().find(|one| one["method"] == name).cloned();
            if let (Some(read), Some(call)) = (method("eth_chainId"), method("eth_call")) {
                break (status.clone(), read, call);
            }
            // A reading is half a second old at most.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let (status, read, call) = tokio::time::timeout(BOUND, counted).await.expect("they are counted");
    assert_eq!((&read["total"], &call["total"]), (&json!(20), &json!(20)), "{status}");
    assert!(read["perSecond"].as_f64() > Some(0.0) && call["failedPerSecond"].as_f64() > Some(0.0), "{status}");
    let (p50, p99) = (read["p50Us"].as_u64().unwrap(), read["p99Us"].as_u64().unwrap());
    assert!(p50 > 0 && p50 <= p99, "{status}");
    assert!(status["requests"]["total"].as_u64() >= Some(41), "{status}");
    let lanes: Vec<_> = status["lanes"].as_object().unwrap().keys().collect();
    assert_eq!(lanes, ["bundle", "past", "read", "short", "watch"]);
    assert_eq!(node.error("/", "presim_status", json!([1])).await["code"], -32602);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_sees_its_own_standing_bundles_by_their_objective() {
    let tokens = token_file(&[("a", 1000), ("b", 1000)]);
    let node = TestNode::quiet_with(&["--token-file", text(tokens.path())]);
    let account = "0x9965507d1a55bcc2695c58ba16fb37d819b0a4dc";
    let search = |name: &str, value: &str| {
        let calls = json!([{"from": account, "to": "0x00000000000000000000000000000000000000aa", "value": "0x1", "gas": "0x5208"}]);
        json!({"name": name, "search": {
            "blockStateCalls": [{"calls": calls}],
            "vary": [{"path": "blocks[0].calls[0].value", "values": [value]}],
            "objective": {"account": account},
        }})
    };
    let bundles = json!([[search("worse", "0x5"), search("better", "0x2")], "pending"]);
    let begun = node.call_as(&token("a"), "presim_watch", bundles).await;
    let watch = begun["result"]["watch"].clone();
    assert!(watch.is_string(), "{begun}");
    let polled = node.call_as(&token("a"), "presim_results", json!([watch, "0x0", 20_000])).await;
    assert_eq!(items(&polled["result"]["changed"]).len(), 2, "{polled}");
    let status = node.call_as(&token("a"), "presim_status", json!([])).await;
    let standing = &status["result"]["standing"];
    let shown: Vec<_> = items(&standing["best"]).iter().map(|one| (&one["name"], &one["objective"])).collect();
    assert_eq!(shown, [(&json!("better"), &json!("-2")), (&json!("worse"), &json!("-5"))], "{status}");
    assert_eq!(standing["count"], 2);
    assert!(!status.to_string().contains(watch.as_str().unwrap()), "the name of the watch gives access: {status}");
    let other = node.call_as(&token("b"), "presim_status", json!([])).await;
    assert_eq!(other["result"]["standing"], json!({"count": 0, "best": []}));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_approval_is_shown_to_those_who_may_use_the_wallet() {
    let (node_tokens, wallet_tokens) = (token_file(&[("a", 1000)]), token_file(&[("b", 1000)]));
    let dir = tempfile::tempdir().unwrap();
    let node = TestNode::quiet_with(&[
        "--data-dir",
        text(dir.path()),
        "--wallet-approval",
        "ask",
        "--token-file",
        text(node_tokens.path()),
        "--wallet-token-file",
        text(wallet_tokens.path()),
    ]);
    let refused = node.call_as(&token("a"), "presim_approvals", json!([])).await;
    assert_eq!(refused["error"]["code"], 4100, "{refused}");
    let waiting = async || node.call_as(&token("b"), "presim_approvals", json!([])).await["result"].take();
    assert_eq!(waiting().await, json!({"batches": [], "more": 0, "withdrawn": []}));
    let from = node.call_as(&token("b"), "eth_accounts", json!([])).await["result"][0].clone();
    let batch = json!([{
        "version": "2.0.0", "id": "payroll-7", "from": from, "chainId": "0x7a69", "atomicRequired": false,
        "calls": [{"to": "0x00000000000000000000000000000000000000aa", "value": "0x1"}],
    }]);
    let wallet_token = token("b");
    let asking = node.call_as(&wallet_token, "wallet_sendCalls", batch);
    let seen = async {
        loop {
            let shown = waiting().await;
            if !items(&shown["batches"]).is_empty() {
                break shown;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let shown = tokio::select! {
        shown = tokio::time::timeout(BOUND, seen) => shown.expect("it waits"),
        answer = asking => panic!("it did not wait: {answer}"),
    };
    let one = &shown["batches"][0];
    assert_eq!(
        (&one["id"], &one["kind"], &one["client"]),
        (&json!("payroll-7"), &json!("batch"), &json!("b")),
        "{shown}"
    );
    assert_eq!(one["calls"][0]["value"], "0x1", "{shown}");
    assert!(one["digest"].is_string() && one["leftMs"].as_u64() > Some(0), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_reads_its_methods_over_one_websocket() {
    let node = TestNode::quiet();
    let mut socket = Socket::open(&node, "/").await;
    for method in ["presim_status", "presim_approvals", "presim_snapshot", "eth_accounts", "rpc.discover"] {
        let answer = socket.call(method, json!([])).await;
        assert!(answer.get("result").is_some(), "{method}: {answer}");
    }
}
