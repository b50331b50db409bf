//! Batches that need approval, over HTTP and WebSocket.

use std::{path::Path, process::Output};

use alloy_primitives::{B256, U256, bytes};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{
    GATE, NOBODY, QUICK, QUIET, TOLL, WITNESS, WalletChain, account, batch, call, came, keyed::keyed, named, nonce,
    refusal, send, settled, watch_pool,
};
use crate::{
    process::{command, eventually, text},
    support::{BOUND, Socket, TestNode, items, number, request},
};

pub(super) const ASK: [&str; 2] = ["--wallet-approval", "ask"];

/// A node that asks for approval, and the chain whose directory its approver connects by.
pub(super) struct Asking {
    pub(super) chain: WalletChain,
    pub(super) node: TestNode,
}

impl Asking {
    pub(super) fn start(flags: &[&[&str]]) -> Self {
        let chain = WalletChain::new();
        let node = chain.lasting(&[&[&ASK[..]], flags].concat());
        Self { chain, node }
    }

    /// Starts the built-in devnet, with its tokens and its router.
    pub(super) fn trading() -> Self {
        let chain = WalletChain::new();
        let node = TestNode::quiet_with(&[&ASK[..], &["--data-dir", text(chain.data.path())]].concat());
        Self { chain, node }
    }

    pub(super) fn dir(&self) -> &Path {
        self.chain.data.path()
    }

    /// Runs `presim wallet` with these arguments. Returns the exit code, and its output or error.
    pub(super) fn wallet(&self, args: &[&str]) -> (Option<i32>, String) {
        let all = [&["wallet", "--data-dir", text(self.dir())], args].concat();
        let Output { status, stdout, stderr } =
            tokio::task::block_in_place(|| command(&all, &[]).output()).expect("the program runs");
        (status.code(), String::from_utf8(if status.success() { stdout } else { stderr }).unwrap())
    }

    /// Runs `presim wallet`, which must succeed, and returns its output.
    pub(super) fn says(&self, args: &[&str]) -> String {
        let (code, said) = self.wallet(args);
        assert_eq!(code, Some(0), "{args:?}: {said}");
        said
    }

    /// Runs `presim wallet`, which must fail with one line of error, and returns it.
    pub(super) fn fails(&self, args: &[&str]) -> String {
        let (code, told) = self.wallet(args);
        assert_eq!((code, told.lines().count()), (Some(1), 1), "{args:?}: {told}");
        told
    }

    /// Returns the digest of the batch that is listed under this id.
    pub(super) fn digest(&self, id: &str) -> String {
        let list = self.list();
        let batch = list.iter().find(|one| one["id"] == id).unwrap_or_else(|| panic!("{id} is not listed: {list:?}"));
        batch["digest"].as_str().unwrap().to_owned()
    }

    /// Approves the batch that is listed under this id.
    pub(super) fn approve(&self, id: &str) -> String {
        self.says(&["approve", id, &self.digest(id)[..10]])
    }

    pub(super) fn list(&self) -> Vec<Value> {
        let said: Value = serde_json::from_str(&self.says(&["list", "--json"])).unwrap();
        items(&said["batches"]).to_vec()
    }

    /// Waits until the list satisfies a condition and returns it.
    pub(super) async fn listed(&self, is: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        eventually("the list is so", async || Some(self.list()).filter(|list| is(list))).await
    }

    /// Sends a batch and returns once it waits for approval.
    pub(super) async fn ask(&self, params: Value) -> JoinHandle<Value> {
        let id = params[0]["id"].clone();
        let asked = self.send(params);
        self.listed(|list| list.iter().any(|one| one["id"] == id)).await;
        asked
    }

    fn send(&self, params: Value) -> JoinHandle<Value> {
        self.request("wallet_sendCalls", params)
    }

    pub(super) fn request(&self, method: &str, params: Value) -> JoinHandle<Value> {
        let body = request(1, method, params).to_string();
        let post = self.node.client.post(self.node.url("/")).header("content-type", "application/json").body(body);
        tokio::spawn(async move { post.send().await.expect("it answers").json().await.expect("JSON") })
    }
}

pub(super) async fn answer(asked: JoinHandle<Value>) -> Value {
    tokio::time::timeout(BOUND, asked).await.expect("it is answered").expect("no panic")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_a_key_files_account_waits_for_approval_as_a_batch_does() {
    let (signer, key) = keyed();
    let asking = Asking::start(&[&QUICK, &["--wallet-key-file", text(key.path()), "--dialect", "standard"]]);
    let tx = json!([{"from": signer.address(), "to": WITNESS, "data": "0x01", "value": "0x2", "gas": "0x186a0"}]);
    let asked = asking.request("eth_sendTransaction", tx.clone());
    let one = asking.listed(|list| list.len() == 1).await.pop().unwrap();
    assert_eq!((&one["kind"], &one["from"]), (&json!("batch"), &json!(signer.address())), "{one}");
    let call = &one["calls"][0];
    assert_eq!(
        (&call["to"], &call["value"], &call["gasLimit"]),
        (&json!(WITNESS), &json!("0x2"), &json!(100_000)),
        "{one}"
    );
    assert_eq!(nonce(&asking.node, signer.address()).await, 0);
    asking.approve(one["id"].as_str().unwrap());
    let answer_of_it = answer(asked).await;
    let hash = &answer_of_it["result"];
    let sent = asking.node.result("/", "eth_getTransactionByHash", json!([hash])).await;
    assert_eq!((&sent["from"], &sent["gas"]), (&json!(signer.address()), &json!("0x186a0")), "{answer_of_it}");
    let asked = asking.request("eth_sendTransaction", tx);
    let one = asking.listed(|list| list.len() == 1).await.pop().unwrap();
    asking.says(&["reject", one["id"].as_str().unwrap()]);
    check_rejected(&answer(asked).await, "the approver rejected the batch");
    assert_eq!(nonce(&asking.node, signer.address()).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn gas_fees_above_those_shown_are_never_signed() {
    // One block takes all that is mined, so that the base fee stays.
    let asking = Asking::start(&[&QUICK, &["--sub-blocks", "10000", "--wallet-fee-margin", "10"]]);
    let node = &asking.node;
    let most_fees = |one: &Value| one["mostFees"].as_str().unwrap().parse::<U256>().unwrap();
    let set = async |times: u64| {
        let tx = json!([{"from": account(0), "to": TOLL, "data": B256::from(U256::from(times))}]);
        node.mined(&node.result("/", "eth_sendTransaction", tx).await).await;
    };
    let asks = |id| named(batch(account(1), false, &[call(TOLL, 0, bytes!())]), id);
    set(1_000).await;
    let dearer = asking.ask(asks("dearer")).await;
    let shown = most_fees(&asking.list()[0]);
    // The contract needs half as much more by now, so that the price is lower.
    set(2_000).await;
    asking.approve("dearer");
    let answered = answer(dearer).await;
    assert_eq!(answered["result"]["id"], "dearer", "{answered}");
    let status = settled(node, "dearer").await;
    let hash = &status["receipts"][0]["transactionHash"];
    let sent = node.result("/", "eth_getTransactionByHash", json!([hash])).await;
    let signed = U256::from(number(&sent["gas"])) * U256::from(number(&sent["maxFeePerGas"]));
    assert!(signed <= shown && signed * U256::from(100) > shown * U256::from(99), "{signed} of {shown}");
    // And now ten times as much, which no price that a block takes can pay.
    let much = asking.ask(asks("much")).await;
    let shown = presim::testing::wallet::ether(most_fees(&asking.list()[0]));
    set(20_000).await;
    asking.approve("much");
    let answered = answer(much).await;
    check_rejected(&answered, &format!("at most {shown} ether was shown, and at least "));
    assert_eq!(nonce(node, account(1)).await, 1);
}

pub(super) fn witness(id: &str) -> Value {
    named(batch(account(1), false, &[call(WITNESS, 0, bytes!("01"))]), id)
}

pub(super) fn check_rejected(answer: &Value, detail: &str) {
    let error = &answer["error"];
    assert_eq!((&error["code"], &error["message"]), (&json!(4001), &json!("User rejected the request")), "{answer}");
    assert!(error["data"].as_str().unwrap().contains(detail), "{detail}: {answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_signed_when_it_is_approved_and_not_before() {
    let asking = Asking::start(&[&QUICK, &["--deadline-ms", "200"]]);
    let node = &asking.node;
    let watch = watch_pool(node).await;
    let calls = [call(WITNESS, 3, bytes!("aa")), call(GATE, 0, bytes!())];
    let asked = asking.ask(named(batch(account(1), true, &calls), "yes")).await;
    // A waiting batch is not subject to `--deadline-ms`.
    let list = asking.listed(|list| list[0]["waitedMs"].as_u64().unwrap() > 1_000).await;
    let one = &list[0];
    assert_eq!((&one["id"], &one["from"], &one["chainId"]), (&json!("yes"), &json!(account(1)), &json!(31_337)));
    assert_eq!((&one["atomic"], one["upgrade"].is_string()), (&json!(true), true), "{one}");
    assert_eq!(one["transactions"], 2, "{one}");
    let most: U256 = one["mostFees"].as_str().unwrap().parse().unwrap();
    assert_eq!((&one["calls"][0]["value"], &one["calls"][0]["data"]), (&json!("0x3"), &json!("0xaa")), "{one}");
    assert_eq!((nonce(node, account(1)).await, came(node, &watch).await), (0, Vec::new()));
    assert!(node.error("/", "wallet_getCallsStatus", json!(["yes"])).await["code"] == 5730);

    assert_eq!(asking.approve("yes"), "approved yes\n");
    let answer = answer(asked).await;
    assert_eq!((&answer["result"]["id"], &answer["result"]["status"]), (&json!("yes"), &json!("pending")), "{answer}");
    let status = settled(node, "yes").await;
    assert_eq!(status["status"], 200, "{status}");
    let signed = came(node, &watch).await;
    assert_eq!((signed.len(), asking.list().len()), (2, 0));
    let mut paid = U256::ZERO;
    for hash in signed {
        let receipt = node.result("/", "eth_getTransactionReceipt", json!([hash])).await;
        paid += U256::from(number(&receipt["gasUsed"])) * U256::from(number(&receipt["effectiveGasPrice"]));
    }
    // The listed maximum is a bound, and not more than ten times the actual fees.
    assert!(paid < most && most < U256::from(10) * paid, "{paid} {most}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_rejected_or_too_late_is_4001_and_leaves_its_id_free() {
    let late = Asking::start(&[&QUIET, &["--wallet-approval-timeout-ms", "1000"]]);
    let watch = watch_pool(&late.node).await;
    for _ in 0..2 {
        let detail = "was neither approved nor rejected within 1s: --wallet-approval-timeout-ms";
        check_rejected(&answer(late.send(witness("same"))).await, detail);
    }
    assert_eq!((late.list().len(), came(&late.node, &watch).await), (0, Vec::new()));

    let asking = Asking::start(&[&QUIET]);
    let watch = watch_pool(&asking.node).await;
    let asked = asking.ask(witness("same")).await;
    assert_eq!(asking.says(&["reject", "same"]), "rejected same\n");
    check_rejected(&answer(asked).await, "the approver rejected the batch");
    assert_eq!((asking.list().len(), came(&asking.node, &watch).await), (0, Vec::new()));

    let asked = asking.ask(witness("same")).await;
    asking.approve("same");
    assert_eq!(answer(asked).await["result"]["id"], "same");
    assert_eq!(came(&asking.node, &watch).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_batch_than_the_one_listed_is_not_signed() {
    let asking = Asking::start(&[&QUIET]);
    let watch = watch_pool(&asking.node).await;
    let payroll = |id, wei: U256| {
        let calls = json!([{"to": NOBODY, "value": wei}]);
        named(batch(account(1), false, items(&calls)), id)
    };
    let all = U256::from(5_000) * U256::from(10).pow(U256::from(18));
    let listed = asking.ask(payroll("payroll-7", U256::from(1))).await;
    let digest = asking.list()[0]["digest"].as_str().unwrap_or_default().to_owned();
    listed.abort();
    asking.listed(<[Value]>::is_empty).await;

    // While the approver decides, the client sends another batch under the same id.
    let other = asking.send(payroll("payroll-7", all));
    asking.listed(|list| other.is_finished() || list.len() == 1).await;
    asking.wallet(&["approve", "payroll-7"]);
    let refused = answer(other).await;
    assert_eq!((&refused["error"]["code"], came(&asking.node, &watch).await), (&json!(5720), Vec::new()), "{refused}");

    // The client sends another batch whose id begins with the approved one, which must not match it.
    let other = asking.ask(payroll("payroll-70", all)).await;
    for args in [&["approve", "payroll-7", &digest][..], &["approve", "payroll-7"]] {
        let (code, told) = asking.wallet(args);
        assert_eq!(code, Some(1), "{args:?}: {told}");
    }
    assert_eq!((other.is_finished(), came(&asking.node, &watch).await), (false, Vec::new()));
    asking.approve("payroll-70");
    assert_eq!(answer(other).await["result"]["id"], "payroll-70");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_withdraws_its_batch() {
    let asking = Asking::start(&[&QUIET]);
    let asked = asking.ask(witness("same")).await;
    asked.abort();
    asking.listed(<[Value]>::is_empty).await;
    let mut socket = Socket::open(&asking.node, "/").await;
    socket.write(request(7, "wallet_sendCalls", witness("other")).to_string()).await.unwrap();
    asking.listed(|list| list.len() == 1).await;
    drop(socket);
    asking.listed(<[Value]>::is_empty).await;
    // Nothing was signed, and the ids stay taken until the node restarts.
    assert_eq!(nonce(&asking.node, account(1)).await, 0);
    for id in ["same", "other"] {
        for path in ["/", "/standard"] {
            let error = refusal(&asking.node, path, witness(id)).await;
            assert_eq!(error["code"], 5720, "{error}");
            assert!(error["data"].as_str().unwrap().contains("was withdrawn"), "{error}");
        }
    }
    let Asking { chain, node } = asking;
    tokio::task::spawn_blocking(move || node.node.stop()).await.unwrap();
    send(&chain.lasting(&[&QUIET]), witness("same")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_rejects_what_waits() {
    let asking = Asking::start(&[&QUIET]);
    let asked = asking.ask(witness("late")).await;
    let Asking { chain, node } = asking;
    tokio::task::spawn_blocking(move || node.node.stop()).await.unwrap();
    check_rejected(&answer(asked).await, "the node stops");
    // After the restart, nothing of the batch is left.
    let node = chain.lasting(&[&QUIET]);
    assert_eq!(nonce(&node, account(1)).await, 0);
    send(&node, witness("late")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_revert_by_now_is_refused_after_the_approval() {
    let asking = Asking::start(&[&QUICK]);
    let node = &asking.node;
    let atomic = |id| named(batch(account(1), true, &[call(GATE, 0, bytes!()), call(WITNESS, 0, bytes!("01"))]), id);
    let first = asking.ask(atomic("first")).await;
    let sequential = batch(account(2), false, &[call(GATE, 0, bytes!()), call(WITNESS, 0, bytes!("02"))]);
    let second = asking.ask(named(sequential, "second")).await;
    let close = json!([{"from": account(0), "to": GATE, "data": "0x01"}]);
    node.mined(&node.result("/", "eth_sendTransaction", close).await).await;
    for id in ["first", "second"] {
        asking.approve(id);
    }
    let answered = answer(first).await;
    assert_eq!(answered["error"], json!({"code": -32000, "message": "execution reverted", "data": "0x"}), "{answered}");
    assert_eq!(nonce(node, account(1)).await, 0);
    // The batch that is sent anyway has the results of a simulation after the approval.
    let answered = answer(second).await;
    let simulated = &answered["result"]["capabilities"]["simulation"]["calls"];
    assert_eq!((&simulated[0]["status"], &simulated[1]["status"]), (&json!("0x0"), &json!("0x1")), "{answered}");
    assert_eq!(settled(node, "second").await["status"], 600);
    let again = asking.ask(named(witness("first"), "first")).await;
    asking.approve("first");
    assert_eq!(answer(again).await["result"]["id"], "first");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_be_signed_otherwise_than_it_was_approved_is_rejected() {
    let asking = Asking::start(&[&QUICK]);
    let node = &asking.node;
    let atomic = |from, id| named(batch(from, true, &[call(WITNESS, 0, bytes!("01"))]), id);
    let (first, second) =
        (asking.ask(atomic(account(1), "first")).await, asking.ask(atomic(account(2), "second")).await);
    asking.approve("first");
    assert_eq!(answer(first).await["result"]["id"], "first");
    assert_eq!(settled(node, "first").await["status"], 200);
    // The executor is deployed by now, so the batch would be another than the approved one.
    asking.approve("second");
    let refused = answer(second).await;
    check_rejected(&refused, "approved as 2 transactions, all calls or none, the account delegated to");
    check_rejected(&refused, "would be 1 transaction, all calls or none");
    assert_eq!(nonce(node, account(2)).await, 0);
    let again = asking.ask(atomic(account(2), "second")).await;
    assert_eq!(asking.list()[0]["transactions"], 1);
    asking.approve("second");
    assert_eq!(answer(again).await["result"]["id"], "second");
    assert_eq!(settled(node, "second").await["status"], 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_one_waits_its_id_is_taken_and_no_more_wait_than_may() {
    let asking = Asking::start(&[&QUIET, &["--wallet-max-waiting", "2"]]);
    let node = &asking.node;
    let one = asking.ask(witness("one")).await;
    assert_eq!(refusal(node, "/", witness("one")).await["code"], 5720);
    let two = asking.ask(witness("two")).await;
    let error = refusal(node, "/", witness("three")).await;
    assert_eq!(error["code"], -32005, "{error}");
    assert!(error["message"].as_str().unwrap().contains("--wallet-max-waiting"), "{error}");
    asking.approve("two");
    assert_eq!(answer(two).await["result"]["id"], "two");
    let three = asking.ask(witness("three")).await;
    for (id, asked) in [("three", three), ("one", one)] {
        asking.approve(id);
        assert_eq!(answer(asked).await["result"]["id"], id);
    }
    assert_eq!(nonce(node, account(1)).await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_answers_others_while_a_batch_of_its_waits() {
    let asking = Asking::start(&[&QUICK]);
    let mut socket = Socket::open(&asking.node, "/").await;
    socket.write(request(7, "wallet_sendCalls", witness("socket")).to_string()).await.unwrap();
    asking.listed(|list| list.len() == 1).await;
    let other = socket.send(request(8, "eth_chainId", json!([])).to_string()).await;
    assert_eq!((&other["id"], &other["result"]), (&json!(8), &json!("0x7a69")));
    asking.approve("socket");
    let answer = socket.read().await.expect("it answers");
    assert_eq!((&answer["id"], &answer["result"]["id"]), (&json!(7), &json!("socket")), "{answer}");
    assert_eq!(settled(&asking.node, "socket").await["status"], 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_in_an_array_wait_side_by_side() {
    let asking = Asking::start(&[&QUIET]);
    let all = Value::Array(
        ["a", "b", "c"]
            .iter()
            .enumerate()
            .map(|(at, id)| request(at as u64, "wallet_sendCalls", witness(id)))
            .collect(),
    );
    let post = asking.node.client.post(asking.node.url("/")).header("content-type", "application/json");
    let post = post.body(all.to_string());
    let asked = tokio::spawn(async move { post.send().await.unwrap().json::<Value>().await.unwrap() });
    asking.listed(|list| list.len() == 3).await;
    asking.approve("a");
    asking.says(&["reject", "b"]);
    asking.approve("c");
    let answers = answer(asked).await;
    let said: Vec<_> =
        items(&answers).iter().map(|one| (one["result"]["id"].clone(), one["error"]["code"].clone())).collect();
    assert_eq!(said, [(json!("a"), Value::Null), (Value::Null, json!(4001)), (json!("c"), Value::Null)], "{answers}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_by_a_rule_or_by_the_simulation_asks_nobody() {
    let asking = Asking::start(&[&QUIET]);
    let mut dear = call(NOBODY, 0, bytes!());
    dear["value"] = json!(U256::MAX);
    for (params, code) in [
        (batch(NOBODY, false, &[call(WITNESS, 0, bytes!())]), 4100),
        (batch(account(1), true, &[call(super::REVERTER, 0, bytes!())]), -32000),
        (batch(account(1), false, &[dear]), -32000),
    ] {
        // A batch that asked for approval would wait for minutes.
        let refused = tokio::time::timeout(BOUND, refusal(&asking.node, "/", params)).await;
        assert_eq!(refused.expect("at once")["code"], code);
    }
}
