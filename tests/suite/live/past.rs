//! State at blocks that are older than those that a node retains, or than the one at which it began.

use alloy_primitives::{Address, B256};
use serde_json::{Value, json};

use super::{
    built::{Built, ETHEREUM, SOMEBODY, STORE, store, transfer},
    head, serve, start,
};
use crate::{
    support::{TestNode, hex},
    upstream::SmallUpstream,
};

/// The blocks of the chain, the first of which is the one at which it begins.
const BLOCKS: u64 = 12;

/// Flags for the states of two blocks.
const KEPT: [&str; 4] = ["--keep-blocks", "2", "--flashblocks-ahead", "1"];

/// Starts a node on the newest block of a chain whose blocks send their number to an account, and store it.
async fn chain(flags: &[&str]) -> (SmallUpstream, TestNode, Vec<Built>) {
    let mut blocks = vec![Built::ethereum()];
    for number in 1..BLOCKS {
        let on = blocks.last().unwrap();
        let nonce = 2 * (number - 1);
        let next = on.next(vec![transfer(ETHEREUM, nonce, number), store(ETHEREUM, nonce + 1, number)], 1);
        blocks.push(next);
    }
    let upstream = serve(&blocks.iter().collect::<Vec<_>>()).await;
    let node = start(&upstream.ws_url(), &blocks[0].config, flags).await;
    head(&node, blocks.last().unwrap().hash()).await;
    (upstream, node, blocks)
}

/// Returns the call of a contract without code, made of the override's, that returns a slot of [`STORE`] and a balance.
fn look() -> (Value, Value) {
    // SELFBALANCE of the account that is overridden tells its balance, SLOAD the slot of its storage.
    let call = json!({"to": STORE, "data": "0x"});
    let overrides = json!({STORE.to_string(): {"code": format!("0x5f545f5273{}31602052604060 00f3", SOMEBODY.to_string().trim_start_matches("0x")).replace(' ', "")}});
    (call, overrides)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_run_at_any_block_of_which_the_upstream_has_the_state() {
    let (upstream, node, blocks) = chain(&KEPT).await;
    let (call, overrides) = look();
    let word = |value: u64| format!("{:064x}", value);
    for (number, block) in (0..BLOCKS).zip(&blocks) {
        let sum: u64 = (1..=number).sum();
        let expected = format!("0x{}{}", word(number), word(sum));
        for selector in [json!(hex(number)), json!({"blockHash": block.hash()}), json!({"blockNumber": hex(number)})] {
            let params = json!([call, selector, overrides]);
            assert_eq!(node.result("/", "eth_call", params).await, expected, "{selector}");
        }
        let simulated = json!([{"blockStateCalls": [{"calls": [call], "stateOverrides": overrides}]}, hex(number)]);
        let simulated = node.result("/", "eth_simulateV1", simulated).await;
        assert_eq!(simulated[0]["calls"][0]["returnData"], expected);
        assert_eq!(simulated[0]["number"], hex(number + 1));
        assert_eq!(simulated[0]["parentHash"], json!(block.hash()));
        let gas = json!([{"from": blocks[1].sender(0), "to": SOMEBODY, "value": "0x1"}, hex(number)]);
        assert_eq!(node.result("/", "eth_estimateGas", gas).await, "0x5208");
    }
    // Each value is fetched once for a block that is named by its hash.
    let asked = upstream.asked(&format!("eth_getStorageAt {STORE:#x}"));
    let again = json!([call, {"blockHash": blocks[3].hash()}, overrides]);
    assert_eq!(node.result("/", "eth_call", again).await, format!("0x{}{}", word(3), word(6)));
    assert_eq!(upstream.asked(&format!("eth_getStorageAt {STORE:#x}")), asked);
}

#[tokio::test(flavor = "multi_thread")]
async fn state_that_the_upstream_does_not_have_is_refused_at_once() {
    let (upstream, node, blocks) = chain(&KEPT).await;
    let (call, overrides) = look();
    let at = |selector: Value| json!([call, selector, overrides]);
    upstream.refuse("eth_getBalance", Some((-32000, "missing trie node 00 (path ) state 0x00 is not available")));
    let asked = upstream.asked("eth_getBalance");
    for selector in [json!("0x3"), json!({"blockHash": blocks[3].hash()})] {
        let error = node.error("/", "eth_call", at(selector)).await;
        assert_eq!(error["code"], 4444, "{error}");
        assert!(error["message"].as_str().unwrap().contains("the state of block 3"), "{error}");
    }
    assert_eq!(upstream.asked("eth_getBalance"), asked + 2, "it is not asked again");
    upstream.refuse("eth_getBalance", None);
    node.result("/", "eth_call", at(json!("0x3"))).await;
    // A block that nobody has, one to come, and one of a devnet's past are unknown as ever.
    for selector in [json!({"blockHash": B256::repeat_byte(9)}), json!(hex(BLOCKS + 1))] {
        assert_eq!(node.error("/", "eth_call", at(selector)).await["code"], -32000);
    }
    let quiet = TestNode::quiet();
    let nobody = json!([{"to": Address::ZERO}, {"blockHash": B256::repeat_byte(9)}]);
    assert_eq!(quiet.error("/", "eth_call", nobody).await["code"], -32000);
}
