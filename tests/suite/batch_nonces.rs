//! Nonces of batches that wait one behind the other.

use serde_json::{Value, json};

use crate::{support::TestNode, witness::Rpc};

/// An account that delegates itself also uses up the nonce after its transaction's (EIP-7702). A batch that is signed
/// while the delegating transaction waits must use the nonce after both.
#[tokio::test(flavor = "multi_thread")]
async fn batches_behind_one_that_delegates_their_account_are_mined() {
    let node = TestNode::start(&["--traffic", "0", "--sub-block-ms", "1000"]);
    let rpc = Rpc::new(node.url("/"));
    let from = node.account(1);
    let batch = |atomic: bool| {
        let calls: Value =
            (0..2).map(|_| json!({"to": "0x00000000000000000000000000000000000abcde", "value": "0x1"})).collect();
        json!([{"version": "2.0.0", "from": from, "chainId": "0x7a69", "atomicRequired": atomic, "calls": calls}])
    };
    let mut ids = Vec::new();
    for atomic in [false, true, false, true, false] {
        ids.push(rpc.result("wallet_sendCalls", batch(atomic)).await["batchId"].clone());
    }
    let nonce = rpc.result("eth_getTransactionCount", json!([from, "pending"])).await;
    let mined = async || {
        let statuses = rpc.results("wallet_getCallsStatus", ids.iter().map(|id| json!([id]))).await;
        statuses.iter().all(|status| status["status"] != 100).then_some(statuses)
    };
    for status in node.when("all are mined", mined).await {
        assert_eq!(status["status"], 200, "{status}");
    }
    assert_eq!(rpc.result("eth_getTransactionCount", json!([from, "pending"])).await, nonce);
}
