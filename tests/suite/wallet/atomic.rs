//! Atomic batches: one transaction of a delegated account (EIP-7702).

use alloy_consensus::TxEip7702;
use alloy_eips::eip7702::Authorization;
use alloy_primitives::{Address, Bytes, U256, bytes};
use alloy_signer::SignerSync;
use alloy_sol_types::{Revert, SolError, SolValue};
use presim::testing::wallet::BatchExecutor;
use serde_json::{Value, json};

use super::{
    FEES, GATE, LOOP, METER, NOBODY, QUICK, QUIET, REVERTER, WITNESS, WalletChain, account, batch, call, came, code,
    designator, key, limited, logs, mine, named, nonce, refusal, send, settled, successes, transactions, watch_pool,
    witnessed,
};
use crate::{
    sending::raw,
    support::{TestNode, items, number},
};

fn reason(text: &str) -> Bytes {
    Revert { reason: text.to_owned() }.abi_encode().into()
}

async fn capability(node: &TestNode, of: Address) -> Value {
    node.result("/", "wallet_getCapabilities", json!([of])).await["0x7a69"]["atomic"]["status"].take()
}

/// Delegates an account by a transaction of its own.
async fn delegate(node: &TestNode, index: usize, to: Address) {
    let raw = delegating(node, index, to).await;
    assert_eq!(mine(node, raw).await["status"], "0x1");
    assert_eq!(code(node, account(index)).await, designator(to));
}

/// Returns a signed transaction of an account that delegates itself.
async fn delegating(node: &TestNode, index: usize, to: Address) -> Bytes {
    let signer = key(index);
    let nonce = nonce(node, signer.address()).await;
    let authorization = Authorization { chain_id: U256::from(31_337), address: to, nonce: nonce + 1 };
    let signature = signer.sign_hash_sync(&authorization.signature_hash()).unwrap();
    let tx = TxEip7702 {
        chain_id: 31_337,
        nonce,
        gas_limit: 100_000,
        max_fee_per_gas: 10_000_000_000,
        max_priority_fee_per_gas: 1_000_000_000,
        to: NOBODY,
        authorization_list: vec![authorization.into_signed(signature)],
        ..TxEip7702::default()
    };
    raw(tx, &signer)
}

/// Returns a batch that cannot fail.
fn witnesses(from: Address, atomic: bool) -> Value {
    batch(from, atomic, &[call(WITNESS, 7, bytes!("aa")), call(NOBODY, 1, bytes!()), call(WITNESS, 0, bytes!("bb"))])
}

fn check_witnesses(status: &Value, from: Address) {
    assert_eq!((&status["status"], &status["atomic"]), (&json!(200), &json!(true)), "{status}");
    assert_eq!(items(&status["receipts"]).len(), 1, "{status}");
    let expected = [witnessed(from, 7, bytes!("aa")), witnessed(from, 0, bytes!("bb"))];
    assert_eq!(logs(&status["receipts"][0]), expected, "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_batch_deploys_the_executor_and_delegates_and_later_ones_need_not() {
    let (chain, from, other) = (WalletChain::new(), account(1), account(2));
    let node = chain.node(&[&QUICK]);
    let executor = BatchExecutor::default_address();
    assert_eq!((code(&node, executor).await, capability(&node, from).await), (Bytes::new(), json!("ready")));

    let (id, _) = send(&node, witnesses(from, true)).await;
    let status = settled(&node, &id).await;
    check_witnesses(&status, from);
    let sent = &transactions(&node, &status).await[0];
    assert_eq!(
        (&sent["type"], &sent["to"], &sent["value"]),
        (&json!("0x4"), &json!(format!("{from:?}")), &json!("0x0"))
    );
    assert_eq!(items(&sent["authorizationList"]).len(), 1, "{sent}");
    // One nonce each for the deployment, the batch, and its authorization.
    assert_eq!((number(&sent["nonce"]), nonce(&node, from).await), (1, 3), "{sent}");
    assert_eq!(code(&node, executor).await, *BatchExecutor::runtime_code());
    assert_eq!(code(&node, from).await, designator(executor));
    assert_eq!((capability(&node, from).await, capability(&node, other).await), (json!("supported"), json!("ready")));
    assert_eq!(node.balance(NOBODY, "pending").await, U256::from(1));

    // The batch of a delegated account is atomic even if the client does not require it.
    for (required, at) in [(true, 3), (false, 4)] {
        let (id, _) = send(&node, witnesses(from, required)).await;
        let status = settled(&node, &id).await;
        check_witnesses(&status, from);
        let sent = &transactions(&node, &status).await[0];
        assert_eq!((&sent["type"], number(&sent["nonce"])), (&json!("0x2"), at), "{sent}");
        assert_eq!(nonce(&node, from).await, at + 1);
    }

    // The executor is not deployed again.
    let (id, _) = send(&node, witnesses(other, true)).await;
    let status = settled(&node, &id).await;
    check_witnesses(&status, other);
    let sent = &transactions(&node, &status).await[0];
    assert_eq!((&sent["type"], number(&sent["nonce"]), nonce(&node, other).await), (&json!("0x4"), 0, 2), "{sent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_executed_though_a_transaction_before_it_takes_the_delegation_away() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.node(&[&["--sub-block-ms", "400"]]);
    let (first, _) = send(&node, witnesses(from, true)).await;
    check_witnesses(&settled(&node, &first).await, from);
    for (to, required) in [(Address::ZERO, true), (REVERTER, true), (REVERTER, false)] {
        // Both wait for the same sub-block, or for two consecutive ones.
        let away = delegating(&node, 1, to).await;
        node.result("/", "eth_sendRawTransaction", json!([away])).await;
        let before = node.balance(NOBODY, "pending").await;
        let (id, _) = send(&node, witnesses(from, required)).await;
        let status = settled(&node, &id).await;
        assert_eq!(status["status"], 200, "{to} {required}: {status}");
        assert_eq!(node.balance(NOBODY, "pending").await - before, U256::from(1), "{to} {required}: {status}");
        if required {
            check_witnesses(&status, from);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_first_batches_at_once_both_go() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.node(&[&["--sub-block-ms", "400"]]);
    let mut ids = Vec::new();
    for from in [from, from, account(2)] {
        ids.push((from, send(&node, witnesses(from, true)).await.0));
    }
    for (from, id) in ids {
        check_witnesses(&settled(&node, &id).await, from);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nonce_that_an_authorization_uses_is_left_out_by_what_comes_after_it() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.lasting(&[&QUIET]);
    let (atomic, _) = send(&node, witnesses(from, true)).await;
    // The deployment has nonce 0, the batch 1, its authorization 2.
    assert_eq!(nonce(&node, from).await, 3);
    let (sequential, _) =
        send(&node, batch(from, false, &[call(WITNESS, 0, bytes!("01")), call(NOBODY, 1, bytes!())])).await;
    let hash = node.result("/", "eth_sendTransaction", json!([{"from": from, "to": NOBODY, "value": "0x1"}])).await;
    assert_eq!(number(&node.result("/", "eth_getTransactionByHash", json!([hash])).await["nonce"]), 5);
    assert_eq!(nonce(&node, from).await, 6);
    node.node.stop();

    // After a restart, the nonces of waiting transactions are still counted.
    let node = chain.lasting(&[&QUIET]);
    assert_eq!(nonce(&node, from).await, 6);
    node.node.stop();
    let node = chain.lasting(&[&["--sub-block-ms", "1000"]]);
    check_witnesses(&settled(&node, &atomic).await, from);
    // All are in the same sub-block, because no nonce between them is missing.
    let status = node.result("/", "wallet_getCallsStatus", json!([sequential])).await;
    assert_eq!((&status["status"], successes(&status)), (&json!(200), vec![true; 2]), "{status}");
    assert_eq!(node.balance(NOBODY, "pending").await, U256::from(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_would_revert_is_refused_with_what_it_reverts_with() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.node(&[&QUIET]);
    let watch = watch_pool(&node).await;
    let params = |data: Bytes| {
        let calls = [call(WITNESS, 0, bytes!("01")), call(REVERTER, 0, data), call(WITNESS, 0, bytes!("02"))];
        named(batch(from, true, &calls), "the same")
    };
    for (data, message) in [
        (reason("not today"), "execution reverted: not today"),
        (bytes!("c0ffee"), "execution reverted"),
        (bytes!(), "execution reverted"),
    ] {
        let error = refusal(&node, "/", params(data.clone())).await;
        assert_eq!(error, json!({"code": -32000, "message": "execution reverted", "data": data}));
        let error = refusal(&node, "/standard", params(data.clone())).await;
        assert_eq!(error, json!({"code": 3, "message": message, "data": data}));
    }
    // The calls are simulated together.
    let error = refusal(&node, "/", batch(from, true, &[call(GATE, 0, bytes!("01")), call(GATE, 0, bytes!())])).await;
    assert_eq!(error["message"], "execution reverted", "{error}");
    assert_eq!((came(&node, &watch).await, nonce(&node, from).await), (Vec::new(), 0));
    let (id, _) = send(&node, named(witnesses(from, true), "the same")).await;
    assert_eq!((id.as_str(), came(&node, &watch).await.len()), ("the same", 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_would_revert_is_sent_where_that_is_the_policy() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.node(&[&QUICK, &["--wallet-revert", "send"]]);
    let calls = [call(WITNESS, 3, bytes!("01")), call(REVERTER, 0, reason("not today"))];
    for _ in 0..2 {
        let (id, _) = send(&node, batch(from, true, &calls)).await;
        let status = settled(&node, &id).await;
        assert_eq!((&status["status"], &status["atomic"]), (&json!(500), &json!(true)), "{status}");
        assert_eq!(successes(&status), [false], "{status}");
    }
    // The batch is all or nothing: no call took effect.
    assert_eq!(node.balance(WITNESS, "pending").await, U256::ZERO);
    // The delegation took effect nevertheless, so the account can make calls.
    let (id, _) = send(&node, witnesses(from, true)).await;
    check_witnesses(&settled(&node, &id).await, from);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_upgrades_are_denied_only_a_delegated_account_has_atomic_batches() {
    let (chain, from, other) = (WalletChain::new(), account(1), account(2));
    let node = chain.lasting(&[&QUICK]);
    let (id, _) = send(&node, witnesses(from, true)).await;
    check_witnesses(&settled(&node, &id).await, from);
    node.node.stop();

    let node = chain.lasting(&[&QUICK, &["--wallet-upgrade", "deny"]]);
    assert_eq!(capability(&node, from).await, "supported");
    assert_eq!(capability(&node, other).await, "unsupported");
    let (id, _) = send(&node, witnesses(from, true)).await;
    check_witnesses(&settled(&node, &id).await, from);
    let error = refusal(&node, "/", witnesses(other, true)).await;
    assert_eq!(error["code"], 5750, "{error}");
    // An account that delegated to another contract is not delegated to the executor.
    delegate(&node, 2, WITNESS).await;
    assert_eq!(refusal(&node, "/", witnesses(other, true)).await["code"], 5750);
    // A sequential batch of the account works as before.
    let (id, _) = send(&node, witnesses(other, false)).await;
    let status = settled(&node, &id).await;
    assert_eq!((&status["status"], &status["atomic"]), (&json!(200), &json!(false)), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delegation_to_something_else_is_replaced() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.node(&[&QUICK]);
    delegate(&node, 1, REVERTER).await;
    assert_eq!(capability(&node, from).await, "ready");
    let (id, _) = send(&node, witnesses(from, true)).await;
    check_witnesses(&settled(&node, &id).await, from);
    assert_eq!(code(&node, from).await, designator(BatchExecutor::default_address()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_address_0_is_a_callee_like_others() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.node(&[&QUICK]);
    let before = node.balance(Address::ZERO, "pending").await;
    let calls = [call(Address::ZERO, 7, bytes!()), call(WITNESS, 0, bytes!("01"))];
    let (id, _) = send(&node, batch(from, true, &calls)).await;
    let status = settled(&node, &id).await;
    assert_eq!(status["status"], 200, "{status}");
    assert_eq!(node.balance(Address::ZERO, "pending").await, before + U256::from(7));
    assert!(node.balance(FEES.parse().unwrap(), "pending").await > U256::ZERO);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gas_limit_override_is_what_the_callee_has() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.node(&[&QUICK]);
    let calls = [
        limited(call(METER, 0, bytes!()), 54_321),
        limited(call(METER, 1, bytes!()), 12_345),
        call(METER, 0, bytes!()),
        limited(call(METER, 0, bytes!()), 1_000_000),
    ];
    let (id, _) = send(&node, batch(from, true, &calls)).await;
    let status = settled(&node, &id).await;
    assert_eq!(status["status"], 200, "{status}");
    let logs = logs(&status["receipts"][0]);
    let seen =
        |index: usize| U256::abi_decode(&logs[index]["data"].as_str().unwrap().parse::<Bytes>().unwrap()).unwrap();
    assert_eq!([seen(0), seen(1), seen(3)], [54_319, 12_343, 999_998].map(U256::from), "{logs:?}");

    // A limit that is too low for the callee fails the batch.
    let error = refusal(&node, "/", batch(from, true, &[limited(call(METER, 0, bytes!()), 100)])).await;
    assert_eq!((&error["code"], &error["message"]), (&json!(-32000), &json!("execution reverted")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_needs_more_gas_than_a_transaction_may_have_is_too_large() {
    let (chain, from) = (WalletChain::new(), account(1));
    // Ten million gas take a while in an unoptimised build.
    let node = chain.node(&[&QUIET, &["--deadline-ms", "60000"]]);
    let watch = watch_pool(&node).await;
    // Each call uses about ten million gas.
    let turns = call(LOOP, 0, U256::from(400_000).to_be_bytes_vec());
    for calls in [vec![turns.clone(); 2], vec![turns.clone(), limited(turns.clone(), 12_000_000)]] {
        let error = refusal(&node, "/", named(batch(from, true, &calls), "large")).await;
        assert_eq!(
            (&error["code"], &error["message"]),
            (&json!(5740), &json!("The batch is too large for the wallet to process")),
            "{error}"
        );
        assert!(error["data"].as_str().unwrap().contains("16777216 gas"), "{error}");
    }
    assert_eq!(came(&node, &watch).await, [] as [Value; 0]);
    // One call is not too large, nor are two in a sequential batch.
    send(&node, named(batch(from, true, std::slice::from_ref(&turns)), "large")).await;
    send(&node, batch(account(2), false, &[turns.clone(), turns])).await;
    // An endless call is not too large: no amount of gas would suffice.
    let endless = call(LOOP, 0, U256::ZERO.to_be_bytes_vec());
    let error = refusal(&node, "/", batch(account(3), true, &[endless])).await;
    assert_eq!((&error["code"], &error["data"]), (&json!(-32000), &json!("0x")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_fits_into_a_transaction_with_its_upgrade_is_sent() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.node(&[&QUICK, &["--deadline-ms", "60000"]]);
    // 26 gas a turn: 14.6 million, which exceeds the maximum with the margin, but not without it.
    let turns = call(LOOP, 0, U256::from(561_600).to_be_bytes_vec());
    let (id, _) = send(&node, batch(from, true, &[turns])).await;
    let status = settled(&node, &id).await;
    assert_eq!((&status["status"], &status["atomic"]), (&json!(200), &json!(true)), "{status}");
    assert!(number(&status["receipts"][0]["gasUsed"]) > 14_600_000, "{status}");
    assert_eq!(number(&transactions(&node, &status).await[0]["gas"]), 1 << 24);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_that_is_not_there_is_refused_with_what_to_do() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.node(&[&QUIET, &["--wallet-executor", &NOBODY.to_string()]]);
    let watch = watch_pool(&node).await;
    assert_eq!(capability(&node, from).await, "unsupported");
    let error = refusal(&node, "/", named(witnesses(from, true), "x")).await;
    assert_eq!(error["code"], 5750, "{error}");
    let detail = error["data"].as_str().unwrap();
    assert!(detail.contains("--wallet-executor") && detail.contains(&NOBODY.to_string()), "{error}");
    assert_eq!(came(&node, &watch).await, [] as [Value; 0]);
    send(&node, named(witnesses(from, false), "x")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_deployment_proxy_the_executor_must_be_named() {
    let mut chain = WalletChain::new();
    let mut genesis: Value = serde_json::from_slice(&std::fs::read(chain.genesis.path()).unwrap()).unwrap();
    let proxy = format!("{:?}", crate::live::built::DEPLOYMENT_PROXY);
    assert!(genesis["alloc"].as_object_mut().unwrap().remove(&proxy).is_some());
    genesis["alloc"][format!("{:?}", account(2))]["code"] = json!("0x00");
    chain.genesis = crate::process::file(&genesis.to_string());
    let node = chain.node(&[&QUIET]);
    let error = refusal(&node, "/", witnesses(account(1), true)).await;
    assert_eq!(error["code"], 5750, "{error}");
    assert!(error["data"].as_str().unwrap().contains("--wallet-executor"), "{error}");
    // Nor can a contract be delegated.
    assert_eq!(capability(&node, account(2)).await, "unsupported");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_the_account_cannot_pay_fails_the_batch() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.node(&[&QUIET]);
    let watch = watch_pool(&node).await;
    let mut dear = call(NOBODY, 0, bytes!());
    dear["value"] = json!(format!("{:#x}", U256::from(10).pow(U256::from(23))));
    let error = refusal(&node, "/", named(batch(from, true, &[call(WITNESS, 0, bytes!()), dear]), "dear")).await;
    assert_eq!(error["code"], -32000, "{error}");
    assert_eq!((came(&node, &watch).await, nonce(&node, from).await), (Vec::new(), 0));
    send(&node, named(witnesses(from, true), "dear")).await;
}
