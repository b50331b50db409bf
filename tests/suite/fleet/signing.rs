//! The node that has the keys decides who may use them, whichever node a request comes through.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::HeaderMap;
use futures::StreamExt;
use hmac::{Hmac, Mac};
use presim::source::devnet::world::dev_signers;
use serde_json::{Value, json};
use sha2::Sha256;
use tempfile::{NamedTempFile, TempDir};

use super::{advance, reach, replica, server::NatsServer, start};
use crate::{
    process::file,
    support::{BOUND, TestNode, request, token, token_file},
};

/// A key that is no account of the devnet.
const KEY: &str = "8b3a350cf5c34c9194ca85829a2df0ec3153be0318b5e2d3348e872092edffba";

fn path(file: &NamedTempFile) -> &str {
    file.path().to_str().expect("UTF-8")
}

/// A leader with a key of its own, and with more flags.
struct Holder {
    node: TestNode,
    address: String,
    _files: (NamedTempFile, TempDir),
}

impl Holder {
    async fn start(server: &NatsServer, more: &[&str]) -> Self {
        let (key, dir) = (file(KEY), tempfile::tempdir().expect("a directory"));
        let flags = ["--publish", &server.url(), "--fleet", "test", "--sub-block-ms", "50", "--wallet-key-file"];
        let kept = ["--data-dir", dir.path().to_str().expect("UTF-8"), "--wallet-approval", "auto"];
        let node = start(&[&flags[..], &[path(&key)], &kept[..], more].concat());
        advance(&node, 2).await;
        let signer: alloy_signer_local::PrivateKeySigner = KEY.parse().expect("a key");
        Self { node, address: signer.address().to_string(), _files: (key, dir) }
    }

    fn message(&self) -> Value {
        json!(["0x68656c6c6f", self.address])
    }
}

fn is_unauthorized(answer: &Value) {
    assert_eq!(answer["error"]["code"], 4100, "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_signs_with_the_leaders_key_for_tokens_of_the_wallet_alone() {
    let Some(server) = NatsServer::start() else { return };
    let tokens = token_file(&[("signer", 1_000)]);
    let holder = Holder::start(&server, &["--wallet-token-file", path(&tokens)]).await;
    let (open, named) = (replica(&server.url(), &[]), replica(&server.url(), &["--wallet-token-file", path(&tokens)]));
    reach(&open, advance(&holder.node, 1).await).await;
    let mut heard = server.connect().await.subscribe("presim.test.>").await.expect("it listens");
    let message = holder.message();
    for node in [&holder.node, &open, &named] {
        is_unauthorized(&node.call("/", "personal_sign", message.clone()).await);
    }
    // A replica that does not know the tokens can prove nothing for whoever has one.
    is_unauthorized(&open.call_as(&token("signer"), "personal_sign", message.clone()).await);
    let signed = holder.node.call_as(&token("signer"), "personal_sign", message.clone()).await;
    assert!(signed["result"].is_string(), "{signed}");
    let forwarded = named.call_as(&token("signer"), "personal_sign", message).await;
    assert_eq!(forwarded["result"], signed["result"], "{forwarded}");
    // The token itself has not gone over NATS.
    let mut proved = 0;
    while proved == 0 {
        let message = tokio::time::timeout(BOUND, heard.next()).await.expect("it is forwarded").expect("it goes on");
        let told = format!("{:?} {}", message.headers, String::from_utf8_lossy(&message.payload));
        assert!(!told.contains(&token("signer")), "{told}");
        proved += usize::from(told.contains("x-presim-proof"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wallet_with_keys_and_without_tokens_answers_no_other_node() {
    let Some(server) = NatsServer::start() else { return };
    let holder = Holder::start(&server, &[]).await;
    let tokens = token_file(&[("signer", 1_000)]);
    let follower = replica(&server.url(), &["--wallet-token-file", path(&tokens)]);
    reach(&follower, advance(&holder.node, 1).await).await;
    let signed = holder.node.call("/", "personal_sign", holder.message()).await;
    assert!(signed["result"].is_string(), "its own clients may: {signed}");
    for (method, params) in [
        ("personal_sign", holder.message()),
        ("wallet_getCapabilities", json!([holder.address])),
        ("wallet_getCallsStatus", json!(["any"])),
        ("eth_requestAccounts", json!([])),
        ("presim_approvals", json!([])),
    ] {
        for answer in
            [follower.call("/", method, params.clone()).await, follower.call_as(&token("signer"), method, params).await]
        {
            is_unauthorized(&answer);
        }
    }
}

/// A message as the leader gets it from another node.
#[derive(Clone)]
struct Forwarded {
    subject: String,
    headers: HeaderMap,
    body: String,
}

impl Forwarded {
    /// Signs the message anew with a token.
    fn prove(mut self, token: &str) -> Self {
        let header = |name| self.headers.get(name).map_or("", |value| value.as_str()).to_owned();
        let parts = [
            self.subject.clone(),
            self.body.clone(),
            header("x-presim-path"),
            header("x-presim-page"),
            header("x-presim-time-ms"),
            header("x-presim-nonce"),
        ];
        let mut mac = Hmac::<Sha256>::new_from_slice(token.as_bytes()).expect("any length");
        for part in &parts {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part.as_bytes());
        }
        self.headers.insert("x-presim-proof", const_hex::encode(mac.finalize().into_bytes()));
        self
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.insert(name, value);
        self
    }

    async fn send(self, client: &async_nats::Client) -> Value {
        let asked = client.request_with_headers(self.subject, self.headers, self.body.into()).await;
        serde_json::from_slice(&asked.expect("the leader answers").payload).expect("JSON")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proof_counts_once_for_its_request_and_for_thirty_seconds() {
    let Some(server) = NatsServer::start() else { return };
    let tokens = token_file(&[("signer", 1_000)]);
    let holder = Holder::start(&server, &["--wallet-token-file", path(&tokens), "--wallet-forwarded", "6"]).await;
    let client = server.connect().await;
    let subject = {
        // The first request takes the wallet to the leader.
        holder.node.call_as(&token("signer"), "wallet_getCapabilities", json!([holder.address])).await;
        let facts = async_nats::jetstream::new(client.clone()).get_key_value("presim_test").await.expect("facts");
        let owner = facts.get("wallet").await.expect("an answer").expect("it has an owner");
        let owner: Value = serde_json::from_slice(&owner).expect("JSON");
        format!("presim.test.wallet.{}", owner["id"].as_str().expect("an id"))
    };
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_millis() as i64;
    let forward = |nonce: &str, time: i64| {
        let mut headers = HeaderMap::new();
        headers.insert("x-presim-client", "signer");
        headers.insert("x-presim-left-ms", "20000");
        headers.insert("x-presim-page", "https://dapp.example");
        headers.insert("x-presim-time-ms", time.to_string());
        headers.insert("x-presim-nonce", nonce);
        let body = request(1, "personal_sign", holder.message()).to_string();
        Forwarded { subject: subject.clone(), headers, body }
    };
    let sent = forward("one", now()).prove(&token("signer"));
    let answer = sent.clone().send(&client).await;
    assert!(answer["result"].is_string(), "{answer}");
    let again = sent.clone().send(&client).await;
    is_unauthorized(&again);
    assert!(again["error"]["message"].as_str().is_some_and(|text| text.contains("seen before")), "{again}");
    let other = Forwarded { body: sent.body.replace("68656c6c6f", "68656c6c70"), ..sent.clone() };
    for altered in [
        other,
        sent.clone().with("x-presim-page", "https://evil.example"),
        sent.clone().with("x-presim-path", "/standard"),
        sent.clone().with("x-presim-nonce", "two"),
        sent.clone().with("x-presim-time-ms", &(now() + 1).to_string()),
        sent.clone().with("x-presim-client", "nobody"),
        forward("three", now()).prove("a-token-that-is-in-no-file"),
        forward("four", now() - 31_000).prove(&token("signer")),
        forward("five", now() + 31_000).prove(&token("signer")),
        forward("six", now()),
    ] {
        is_unauthorized(&altered.send(&client).await);
    }
    // The memory of what was seen is bounded, and rejects when it is full.
    for at in 1..6 {
        let answer = forward(&format!("more {at}"), now()).prove(&token("signer")).send(&client).await;
        assert!(answer["result"].is_string(), "{answer}");
    }
    let full = forward("last", now()).prove(&token("signer")).send(&client).await;
    assert_eq!(full["error"]["code"], -32005, "{full}");
    assert!(full["error"]["message"].as_str().is_some_and(|text| text.contains("--wallet-forwarded")), "{full}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_the_wallet_is_rejected_over_nats() {
    let Some(server) = NatsServer::start() else { return };
    let (tokens, wallet) = (token_file(&[("reader", 1_000)]), token_file(&[("signer", 1_000)]));
    let signer = dev_signers().expect("the mnemonic is valid")[0].address();
    let leader = start(&["--publish", &server.url(), "--fleet", "test", "--sub-block-ms", "50"]);
    let follower = replica(&server.url(), &["--token-file", path(&tokens), "--wallet-token-file", path(&wallet)]);
    reach(&follower, advance(&leader, 2).await).await;
    let client = server.connect().await;
    let ask = async |name: &str, method: &str, params: Value| -> Value {
        let mut headers = HeaderMap::new();
        headers.insert("Authorization", format!("Bearer {}", token(name)).as_str());
        let asked =
            client.request_with_headers("presim.test.rpc", headers, request(1, method, params).to_string().into());
        let answer = tokio::time::timeout(Duration::from_secs(20), asked).await.expect("in time").expect("an answer");
        serde_json::from_slice(&answer.payload).expect("JSON")
    };
    assert_eq!(ask("reader", "eth_chainId", json!([])).await["result"], "0x7a69");
    for (method, params) in [("eth_chainId", json!([])), ("personal_sign", json!(["0x68", signer]))] {
        let answer = ask("signer", method, params).await;
        let text = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(text.contains("--wallet-token-file") && text.contains("NATS"), "{answer}");
    }
}
