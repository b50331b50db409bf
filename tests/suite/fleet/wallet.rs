//! The wallet of a fleet works on the node that has its data directory. The others name that node.

use std::time::Duration;

use alloy_primitives::{Address, hex};
use presim::testing::source::devnet::world::dev_signers;
use serde_json::{Value, json};

use super::{QUICK, advance, ingester, reach, replica, server::NatsServer};
use crate::{process::file, support::TestNode, upstream::StreamedDevnet};

/// The account that the batch pays.
const PAID: Address = Address::repeat_byte(0xb7);

/// Returns the requests that only a wallet answers.
fn requests(from: Address) -> Vec<(&'static str, Value)> {
    let calls = [json!({ "to": PAID, "value": "0x5", "data": "0x" })];
    let batch = json!([{ "version": "2.0.0", "id": "once", "from": from, "chainId": "0x7a69", "atomicRequired": false, "calls": calls }]);
    vec![
        ("wallet_sendCalls", batch),
        ("wallet_getCallsStatus", json!(["once"])),
        ("wallet_getCapabilities", json!([from])),
        ("personal_sign", json!(["0x68656c6c6f", from])),
        ("eth_sendTransaction", json!([{ "from": from, "to": PAID, "value": "0x1" }])),
    ]
}

async fn all_name(node: &TestNode, from: Address, named: &str) {
    for (method, params) in requests(from) {
        let rejected = node.call("/", method, params).await;
        let text = rejected["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(rejected["error"]["code"], -32000, "{method}: {rejected}");
        assert!(text.contains(named), "{method}: {rejected}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wallet_works_on_its_node_alone_and_the_others_name_it() {
    let Some(server) = NatsServer::start() else { return };
    let (url, chain) = (server.url(), StreamedDevnet::start(&QUICK).await);
    let signer = &dev_signers().expect("the mnemonic is valid")[0];
    let (key, dir) = (file(&hex::encode(signer.to_bytes())), tempfile::tempdir().expect("a directory"));
    let leader = ingester(&chain, &url, &[]);
    advance(&leader, 2).await;
    let follower = replica(&url, &[]);
    all_name(&follower, signer.address(), "no node of the fleet has a wallet").await;
    let path = |path: &std::path::Path| path.to_str().expect("UTF-8").to_owned();
    let kept = ["--data-dir", &path(dir.path()), "--wallet-key-file", &path(key.path()), "--wallet-approval", "auto"];
    // This node stands by: the wallet needs no lead.
    let holder = ingester(&chain, &url, &kept);
    reach(&holder, advance(&leader, 2).await).await;
    for node in [&leader, &follower] {
        all_name(node, signer.address(), "the wallet of the fleet is on node ").await;
        all_name(node, signer.address(), "/127.0.0.1:0/").await;
    }
    let sent = holder.result("/", "wallet_sendCalls", requests(signer.address()).swap_remove(0).1).await;
    assert_eq!(sent["id"], "once");
    let confirmed = async {
        while holder.result("/", "wallet_getCallsStatus", json!(["once"])).await["status"] != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(crate::support::BOUND, confirmed).await.expect("the batch is mined by the upstream");
    for node in [&leader, &holder, &follower] {
        node.when("its payment is seen", async || {
            (node.result("/", "eth_getBalance", json!([PAID, "pending"])).await == "0x5").then_some(())
        })
        .await;
    }
    // The name stays where another node leads.
    drop(leader);
    all_name(&follower, signer.address(), "the wallet of the fleet is on node ").await;
}
