//! Accounts of key files, and clients with tokens.

use alloy_primitives::{Bytes, bytes, hex};
use alloy_signer_local::PrivateKeySigner;
use presim::testing::source::devnet::world::traffic_signers;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use super::{
    NOBODY, QUICK, REVERTER, WITNESS, WalletChain, account, batch, call, logs, nonce, refusal, send, settled, status,
    witnessed,
};
use crate::{
    process::{file, text},
    support::{items, number, token_file},
};

/// Returns an account that the devnet does not have, and its key file.
pub(super) fn keyed() -> (PrivateKeySigner, NamedTempFile) {
    let signer = traffic_signers().unwrap().swap_remove(0);
    let file = file(&hex::encode(signer.to_bytes()));
    (signer, file)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_of_a_key_file_sends_batches_and_nothing_else() {
    let (signer, key) = keyed();
    let (chain, from) = (WalletChain::new(), signer.address());
    let node = chain.node(&[&QUICK, &["--wallet-key-file", text(key.path())]]);
    let accounts: Vec<Bytes> = serde_json::from_value(node.result("/", "eth_accounts", json!([])).await).unwrap();
    assert_eq!((accounts.len(), &accounts[10][..]), (11, from.as_slice()));
    for atomic in [false, true] {
        let (id, _) = send(&node, batch(from, atomic, &[call(WITNESS, 0, bytes!("01"))])).await;
        let status = settled(&node, &id).await;
        assert_eq!((&status["status"], &status["atomic"]), (&json!(200), &json!(atomic)), "{status}");
        assert_eq!(logs(&status["receipts"][0]), [witnessed(from, 0, bytes!("01"))]);
    }
    let error = node.error("/", "eth_sendTransaction", json!([{"from": from, "to": NOBODY, "value": "0x1"}])).await;
    assert_eq!(error["code"], -32000, "{error}");
    assert!(error["message"].as_str().unwrap().contains("wallet_sendCalls"), "{error}");
    let unsent = json!({"from": from, "to": NOBODY, "gas": "0x5208", "gasPrice": "0x77359400", "nonce": "0x0"});
    let error = node.error("/standard", "eth_signTransaction", json!([unsent])).await;
    assert_eq!(error["code"], 4001, "{error}");
    assert!(error["data"].as_str().unwrap().contains("--wallet-approval ask"), "{error}");
    // The devnet's own accounts stay usable.
    node.result("/", "eth_sendTransaction", json!([{"from": account(0), "to": NOBODY, "value": "0x1"}])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_standard_an_account_of_a_key_file_sends_transactions() {
    let (signer, key) = keyed();
    let (chain, from) = (WalletChain::new(), signer.address());
    let node = chain.node(&[&QUICK, &["--wallet-key-file", text(key.path())]]);
    let tx = |fields: Value| {
        let mut tx = json!({"from": from, "to": WITNESS, "data": "0x01"});
        tx.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!([tx])
    };
    for (nonce, kind, fields) in [
        (0, "0x2", json!({})),
        (1, "0x0", json!({"gasPrice": "0x12a05f200", "gas": "0x186a0", "nonce": "0x1", "chainId": "0x7a69"})),
        (2, "0x2", json!({"maxFeePerGas": "0x12a05f200", "maxPriorityFeePerGas": "0x7", "value": "0x5"})),
        (3, "0x1", json!({"gasPrice": "0x12a05f200", "accessList": [{"address": NOBODY, "storageKeys": []}]})),
    ] {
        let hash = node.result("/standard", "eth_sendTransaction", tx(fields.clone())).await;
        let sent = node.result("/standard", "eth_getTransactionByHash", json!([hash])).await;
        assert_eq!((number(&sent["nonce"]), &sent["type"]), (nonce, &json!(kind)), "{fields}: {sent}");
        for (field, given) in fields.as_object().unwrap().iter().filter(|(field, _)| *field != "gasPrice") {
            assert_eq!(sent[field], *given, "{sent}");
        }
        node.mined(&hash).await;
        let receipt = node.result("/", "eth_getTransactionReceipt", json!([hash])).await;
        assert_eq!(logs(&receipt), [witnessed(from, if nonce == 2 { 5 } else { 0 }, bytes!("01"))]);
    }
    // A transaction that cannot be sent as it is says why, and nothing is signed.
    let authorization =
        json!({"chainId": "0x7a69", "address": NOBODY, "nonce": "0x0", "yParity": "0x0", "r": "0x1", "s": "0x1"});
    for (fields, message) in [
        (json!({"nonce": "0x3"}), "nonce too low: next nonce 4, tx nonce 3"),
        (json!({"nonce": "0x9"}), "nonce too high: next nonce 4, tx nonce 9"),
        (json!({"to": REVERTER, "data": "0x"}), "execution reverted"),
        (json!({"chainId": "0x1"}), "chainId does not match node's (have=1, want=31337)"),
        (json!({"authorizationList": [authorization]}), "wallet_sendCalls"),
        (json!({"maxFeePerGas": "0x1", "maxPriorityFeePerGas": "0x2"}), "maxFeePerGas (1) < maxPriorityFeePerGas (2)"),
    ] {
        let error = node.error("/standard", "eth_sendTransaction", tx(fields)).await;
        assert!(error["message"].as_str().unwrap().contains(message), "{message}: {error}");
    }
    assert_eq!(nonce(&node, from).await, 4);
    let node = chain.node(&[&QUICK, &["--wallet-key-file", text(key.path()), "--wallet-approval", "deny"]]);
    assert_eq!(node.error("/standard", "eth_sendTransaction", tx(json!({}))).await["code"], 4001);
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_chain_that_stands_still_the_wallet_is_off_until_it_has_a_key() {
    let (signer, key) = keyed();
    let (chain, from) = (WalletChain::new(), signer.address());
    let still = ["--feed", "static"];
    let node = chain.node(&[&still]);
    assert_eq!(node.result("/", "eth_accounts", json!([])).await, json!([]));
    let mut nobodys = batch(from, false, &[call(WITNESS, 0, bytes!("01"))]);
    assert_eq!(refusal(&node, "/", nobodys.clone()).await["code"], 4100);
    nobodys[0].as_object_mut().unwrap().remove("from");
    assert_eq!(refusal(&node, "/standard", nobodys).await["code"], 4100);
    assert_eq!(node.error("/", "wallet_getCapabilities", json!([from])).await["code"], 4100);

    let node = chain.node(&[&still, &["--wallet-key-file", text(key.path())]]);
    let (id, capabilities) = send(&node, batch(from, false, &[call(WITNESS, 0, bytes!("01"))])).await;
    assert_eq!(capabilities["simulation"]["calls"][0]["status"], "0x1", "{capabilities}");
    // No block is mined here, so the batch waits.
    assert_eq!(status(&node, &id).await["status"], 100);
    assert_eq!(refusal(&node, "/", batch(account(0), false, &[call(WITNESS, 0, bytes!())])).await["code"], 4100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_the_wallet_sends_a_batch_and_sees_its_status() {
    let (signer, key) = keyed();
    let (tokens, wallet) = (token_file(&[("node", 1_000)]), token_file(&[("wallet", 1_000)]));
    let (chain, from) = (WalletChain::new(), signer.address());
    let flags = [
        ["--wallet-key-file", text(key.path())],
        ["--token-file", text(tokens.path())],
        ["--wallet-token-file", text(wallet.path())],
    ]
    .concat();
    let node = chain.node(&[&QUICK, &flags]);
    let params = batch(from, false, &[call(WITNESS, 0, bytes!("01"))]);
    let call = async |name: &str, method: &str, params: Value| node.call_by(Some(name), "/", method, params).await;
    let answer = node.call_by(None, "/", "wallet_sendCalls", params.clone()).await;
    assert!(answer["error"]["message"].as_str().unwrap().contains("unauthorized"), "{answer}");
    let answer = call("node", "wallet_sendCalls", params.clone()).await;
    assert_eq!(answer["error"]["code"], 4100, "{answer}");
    let answer = call("wallet", "wallet_sendCalls", params).await;
    let id = answer["result"]["id"].clone();
    assert!(id.is_string(), "{answer}");
    let status = async || {
        let answer = call("wallet", "wallet_getCallsStatus", json!([id])).await;
        (answer["result"]["status"] != 100).then_some(answer)
    };
    let status = node.when("it is settled", status).await;
    assert_eq!((&status["result"]["status"], items(&status["result"]["receipts"]).len()), (&json!(200), 1), "{status}");
    let sending = json!([{"from": from, "to": NOBODY, "value": "0x1"}]);
    for (name, code) in [("node", json!(4100)), ("wallet", Value::Null)] {
        let answer = node.call_by(Some(name), "/standard", "eth_sendTransaction", sending.clone()).await;
        assert_eq!(answer["error"]["code"], code, "{answer}");
    }
    // Another client cannot see the batch, and gets no signature.
    for (method, params) in [
        ("eth_requestAccounts", json!([])),
        ("wallet_requestPermissions", json!([{"eth_accounts": {}}])),
        ("wallet_switchEthereumChain", json!([{"chainId": "0x7a69"}])),
        ("personal_sign", json!(["hi", from])),
    ] {
        let answer = call("node", method, params.clone()).await;
        assert_eq!(answer["error"]["code"], 4100, "{method}: {answer}");
        let answer = call("wallet", method, params).await;
        assert!(answer.get("error").is_none(), "{method}: {answer}");
    }
    for (name, count) in [("node", 0), ("wallet", 1)] {
        let answer = call(name, "wallet_getPermissions", json!([])).await;
        assert_eq!(items(&answer["result"]).len(), count, "{answer}");
    }
    let answer = call("node", "wallet_getCallsStatus", json!([id])).await;
    assert_eq!(answer["error"]["code"], 4100, "{answer}");
}
