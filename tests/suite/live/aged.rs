//! Blocks whose states are no longer retained while their values are fetched.

use std::time::Duration;

use alloy_primitives::Address;
use presim::testing::ledger::Selector;
use serde_json::json;

use super::{
    built::{Built, ETHEREUM, SOMEBODY, transfer},
    head, serve, start,
};
use crate::support::request;

/// Longer than any test.
const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_is_fetched_for_a_block_that_ages_meanwhile_is_fetched_once() {
    let genesis = Built::ethereum();
    let upstream = serve(&[&genesis]).await;
    // Nothing of the blocks is executed, so no other state is asked for.
    let flags =
        ["--keep-blocks", "2", "--flashblocks-ahead", "1", "--upstream-execute-ms", "0", "--deadline-ms", "100000"];
    let node = start(&upstream.url(), &genesis.config, &flags).await;
    let unknown = Address::repeat_byte(0x77);
    let before = upstream.asked("eth_getBalance");
    upstream.slow("eth_getBalance", HOUR);
    let body = request(1, "eth_getBalance", json!([unknown, "latest"])).to_string();
    let asking = tokio::spawn({
        let (client, url) = (node.client.clone(), node.url("/"));
        async move {
            let sent = client.post(url).header("content-type", "application/json").body(body).send().await;
            sent.expect("it is sent").json::<serde_json::Value>().await.expect("JSON")
        }
    });
    upstream.is_asked("eth_getBalance", before + 1).await;
    let mut at = genesis.clone();
    for nonce in 0..4 {
        at = at.next(vec![transfer(ETHEREUM, nonce, 5)], 1);
        upstream.push(at.block.clone());
        head(&node, at.hash()).await;
    }
    assert!(node.node.snapshots().load().select(Selector::Number(0)).is_err(), "its state is no longer retained");
    upstream.answer_now();
    let answer = asking.await.expect("no panic");
    assert_eq!(answer["result"], json!(genesis.balance(unknown)), "{answer}");
    assert_eq!(upstream.asked("eth_getBalance"), before + 1);
    assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, json!(at.balance(SOMEBODY)));
}
