//! Clients with tokens that ask for approval: none takes another's place, and none outlives its token.

use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::task::JoinHandle;

use super::{
    QUIET, account,
    approval::{Asking, answer, witness},
    nonce,
};
use crate::{
    process::text,
    support::{items, request, token, token_file},
};

/// Starts a node whose wallet two clients may use, named `first` and `second`.
fn start(flags: &[&str]) -> (Asking, NamedTempFile) {
    let file = token_file(&[("first", 1_000), ("second", 1_000)]);
    let asking = Asking::start(&[&QUIET, &["--wallet-token-file", text(file.path())], flags]);
    (asking, file)
}

/// Sends a batch with this id in the name of a client.
fn send(asking: &Asking, client: &str, id: &str) -> JoinHandle<Value> {
    let post = asking.node.client.post(asking.node.url("/")).bearer_auth(token(client));
    let post = post.json(&request(1, "wallet_sendCalls", witness(id)));
    tokio::spawn(async move { post.send().await.expect("it answers").json().await.expect("JSON") })
}

/// Sends a batch and returns once it waits for approval.
async fn ask(asking: &Asking, client: &str, id: &str) -> JoinHandle<Value> {
    let asked = send(asking, client, id);
    asking.listed(|list| list.iter().any(|one| one["id"] == id)).await;
    asked
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_uses_up_its_places_rejects_nobody_else() {
    let (asking, _tokens) = start(&["--wallet-max-waiting", "2"]);
    let _waiting = [ask(&asking, "first", "a").await, ask(&asking, "first", "b").await];
    let error = answer(send(&asking, "first", "c")).await;
    assert_eq!(error["error"]["code"], -32005, "{error}");
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("\"first\"") && message.contains("--wallet-max-waiting"), "{message}");
    let other = ask(&asking, "second", "d").await;
    asking.approve("d");
    assert_eq!(answer(other).await["result"]["id"], "d");
}

#[tokio::test(flavor = "multi_thread")]
async fn withdrawn_ids_are_those_of_the_client_that_left_them_and_are_listed() {
    // Three parts of two: that of each token, and that of all clients without one.
    let (asking, _tokens) = start(&["--wallet-max-waiting", "1", "--wallet-max-withdrawn", "8"]);
    for id in ["a", "b"] {
        ask(&asking, "first", id).await.abort();
        asking.listed(<[Value]>::is_empty).await;
    }
    let error = answer(send(&asking, "first", "c")).await;
    assert_eq!(error["error"]["code"], -32005, "{error}");
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("taken: 2: ") && message.contains("--wallet-max-withdrawn"), "{message}");
    // The ids are taken for all clients.
    assert_eq!(answer(send(&asking, "second", "a")).await["error"]["code"], 5720);
    let other = ask(&asking, "second", "d").await;
    let shown = asking.says(&["list"]);
    assert!(
        shown.contains("\nids that stay taken because their requests were withdrawn: 2, of client first\n"),
        "{shown}"
    );
    let listed: Value = serde_json::from_str(&asking.says(&["list", "--json"])).unwrap();
    assert_eq!((&listed["withdrawn"], items(&listed["batches"]).len()), (&json!([{"client": "first", "ids": 2}]), 1));
    assert_eq!(asking.node.metric("presim_wallet_withdrawn_ids"), 2.0);
    assert_eq!(asking.node.metric("presim_wallet_waiting"), 1.0);
    asking.approve("d");
    assert_eq!(answer(other).await["result"]["id"], "d");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_withdrawn_with_its_token() {
    let (asking, tokens_file) = start(&[]);
    let asked = ask(&asking, "first", "late").await;
    let other = ask(&asking, "second", "other").await;
    std::fs::copy(token_file(&[("second", 1_000)]).path(), tokens_file.path()).unwrap();
    assert_eq!(asking.node.node.access().read_files().unwrap(), 1);
    let answered = answer(asked).await;
    assert_eq!(answered["error"]["code"], 4100, "{answered}");
    assert!(answered["error"]["data"].as_str().unwrap().contains("withdrawn"), "{answered}");
    // An approver finds nothing to approve, and the other client's batch is untouched.
    let list = asking.list();
    assert_eq!((list.len(), &list[0]["id"]), (1, &json!("other")), "{list:?}");
    assert_eq!(nonce(&asking.node, account(1)).await, 0);
    asking.approve("other");
    assert_eq!(answer(other).await["result"]["id"], "other");
}
