//! The wallet of a fleet stays with its data directory, whichever node leads.

use alloy_primitives::Address;
use presim::source::devnet::world::dev_signers;
use serde_json::{Value, json};

use super::{advance, ingester, reach, replica, server::NatsServer, until};
use crate::support::TestNode;

/// The account that the batch pays.
const PAID: Address = Address::repeat_byte(0xb7);

/// A batch with an id, which pays 5 wei to [`PAID`].
fn batch(id: &str) -> Value {
    let from = dev_signers().expect("the mnemonic is valid")[0].address();
    let calls = [json!({ "to": PAID, "value": "0x5", "data": "0x" })];
    json!([{ "version": "2.0.0", "id": id, "from": from, "chainId": "0x7a69", "atomicRequired": false, "calls": calls }])
}

/// Waits until a batch is confirmed, as a node sees it, and so much was paid in all.
async fn confirmed(node: &TestNode, id: &str, paid: &str) {
    until("the batch is confirmed", async || {
        let status = node.call("/", "wallet_getCallsStatus", json!([id])).await;
        status["result"]["status"] == 200
    })
    .await;
    until("its payment is seen", async || node.result("/", "eth_getBalance", json!([PAID, "pending"])).await == paid)
        .await;
}

/// Asserts that a request for the wallet is rejected because the node that has it is not the one that was asked.
fn is_elsewhere(rejected: &Value) {
    let text = rejected["error"]["message"].as_str().unwrap_or_default();
    assert_eq!(rejected["error"]["code"], -32000, "{rejected}");
    assert!(text.contains("the wallet of the fleet is with") && text.contains("/127.0.0.1:0/"), "{rejected}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_never_runs_twice_and_its_wallet_answers_without_leading() {
    let Some(server) = NatsServer::start() else { return };
    let url = server.url();
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let [first_dir, second_dir] = [&dirs[0], &dirs[1]].map(|dir| dir.path().to_str().expect("UTF-8"));
    let publish = |dir: &str| ingester(&url, &["--sub-block-ms", "50", "--sub-blocks", "2", "--data-dir", dir]);
    let first = publish(first_dir);
    advance(&first, 2).await;
    let follower = replica(&url, &[]);
    follower.result("/", "wallet_sendCalls", batch("once")).await;
    confirmed(&follower, "once", "0x5").await;
    // A node that stands by has no wallet, and says which node has.
    let second = publish(second_dir);
    reach(&second, advance(&first, 2).await).await;
    is_elsewhere(&second.call("/", "wallet_sendCalls", batch("once")).await);
    drop(first);
    let stood = second.node.snapshots().newest().id;
    until("the second leads", async || second.node.snapshots().newest().id.epoch() > stood.epoch()).await;
    reach(&follower, advance(&second, 2).await).await;
    // The leader has another data directory, which does not know the batch: it must not run it again.
    is_elsewhere(&second.call("/", "wallet_sendCalls", batch("once")).await);
    is_elsewhere(&follower.call("/", "wallet_sendCalls", batch("once")).await);
    is_elsewhere(&follower.call("/", "wallet_getCallsStatus", json!(["once"])).await);
    // With its directory it answers again, without leading, and the leader mines what it signs.
    let again = publish(first_dir);
    reach(&again, advance(&second, 2).await).await;
    assert_eq!(follower.call("/", "wallet_sendCalls", batch("once")).await["error"]["code"], 5720);
    confirmed(&follower, "once", "0x5").await;
    follower.result("/", "wallet_sendCalls", batch("twice")).await;
    // Each batch has paid once.
    confirmed(&follower, "twice", "0xa").await;
    assert_eq!(second.node.snapshots().newest().id.epoch(), again.node.snapshots().newest().id.epoch());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wallet_whose_directory_is_lost_is_taken_when_an_operator_says_so() {
    let Some(server) = NatsServer::start() else { return };
    let url = server.url();
    let first = ingester(&url, &["--sub-block-ms", "50"]);
    advance(&first, 2).await;
    first.result("/", "wallet_sendCalls", batch("a")).await;
    let second = ingester(&url, &["--sub-block-ms", "50"]);
    reach(&second, advance(&first, 2).await).await;
    drop(first);
    let rejected = second.call("/", "wallet_getCapabilities", json!([])).await;
    assert_eq!(rejected["error"]["code"], -32000, "{rejected}");
    drop(second);
    let third = ingester(&url, &["--sub-block-ms", "50", "--take-wallet"]);
    advance(&third, 2).await;
    third.result("/", "wallet_sendCalls", batch("b")).await;
    confirmed(&third, "b", "0xa").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_nobody_can_answer_is_rejected_at_once_and_changes_nothing() {
    let Some(server) = NatsServer::start() else { return };
    let leader = ingester(&server.url(), &["--sub-block-ms", "50"]);
    advance(&leader, 2).await;
    let standby = ingester(&server.url(), &["--sub-block-ms", "50"]);
    let follower = replica(&server.url(), &[]);
    let hash = leader.result(
        "/",
        "eth_sendTransaction",
        json!([{
            "from": dev_signers().expect("the mnemonic is valid")[0].address(), "to": PAID, "value": "0x1"
        }]),
    );
    let hash = hash.await;
    let receipt = async |node: &TestNode| node.call("/", "eth_getTransactionReceipt", json!([hash])).await;
    until("it is mined", async || receipt(&leader).await["result"].is_object()).await;
    reach(&standby, advance(&leader, 2).await).await;
    // A transaction from before their images is answered by the leader, for whoever stands by too.
    for node in [&standby, &follower] {
        let body = receipt(node).await;
        assert_eq!(body["result"]["transactionHash"], hash, "{body}");
    }
    drop(standby);
    drop(leader);
    let unknown = json!(["0x00000000000000000000000000000000000000000000000000000000000000aa"]);
    let body = follower.call("/", "eth_getTransactionByHash", unknown).await;
    assert_eq!(body["error"]["code"], -32000, "a replica does not know what is not there: {body}");
    let body = follower.call("/", "txpool_status", json!([])).await;
    assert!(body["error"]["message"].as_str().is_some_and(|text| text.contains("no leader")), "{body}");
}
