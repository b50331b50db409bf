//! An upstream that is far away: the state that blocks will read is fetched before their turn, by as few round trips as possible.

use std::time::Duration;

use alloy_primitives::{Address, B256, U256};
use serde_json::{Value, json};

use super::{
    built::{Built, CHASES, ETHEREUM, SOMEBODY, chase, is_on_trail, trail_slot, transfer},
    head, serve, start,
};
use crate::{
    support::{TestNode, hex},
    upstream::SmallUpstream,
};

/// The time of a round trip, with which an upstream counts as far away.
const FAR: Duration = Duration::from_millis(60);
/// An account that no block changes.
const QUIET: Address = CHASES[0].0;

async fn far(flags: &[&str]) -> (SmallUpstream, TestNode, Built) {
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    upstream.delay(FAR);
    let node = start(&upstream.ws_url(), &first.config, flags).await;
    (upstream, node, first)
}

/// Answers `debug_traceBlockByHash` for a block, by whether differences are asked for.
fn trace(upstream: &SmallUpstream, hash: B256, answer: impl Fn(bool) -> Value + Send + 'static) {
    upstream.script(move |method, params| {
        let is_asked = method == "debug_traceBlockByHash" && params[0] == json!(hash);
        is_asked.then(|| Ok(json!([{"result": answer(params[1]["tracerConfig"]["diffMode"] == true)}])))
    });
}

/// Returns how many blocks were executed.
fn executed(node: &TestNode) -> f64 {
    node.metric("presim_upstream_blocks_total{outcome=\"executed\"}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_of_the_block_saves_its_dependent_reads() {
    let (upstream, node, first) = far(&[]).await;
    let (contract, reads) = CHASES[2];
    let next = first.next(vec![chase(0, ETHEREUM, 0, contract, 5)], 1);
    let signer = next.sender(0);
    let traced = json!({
        signer.to_string(): first.traced(signer, |_| true),
        contract.to_string(): first.traced(contract, |slot| is_on_trail(slot, 5)),
        next.header().beneficiary.to_string(): first.traced(next.header().beneficiary, |_| true),
    });
    assert_eq!(traced[contract.to_string()]["storage"].as_object().unwrap().len(), reads);
    trace(&upstream, next.hash(), move |_| traced.clone());
    upstream.push(next.block.clone());
    head(&node, next.hash()).await;
    assert_eq!(executed(&node), 1.0);
    assert_eq!(upstream.asked(&format!("eth_getStorageAt {contract:#x}")), 0, "the trace had the slots");
    assert_eq!(node.result("/", "eth_getBalance", json!([signer, "latest"])).await, json!(next.balance(signer)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_is_executed_without_a_trace_that_is_wrong() {
    let (upstream, node, first) = far(&[]).await;
    let next = first.next(vec![transfer(ETHEREUM, 0, 7)], 1);
    let signer = next.sender(0);
    let mut wrong = first.traced(signer, |_| true);
    wrong["nonce"] = json!(9);
    trace(&upstream, next.hash(), move |_| json!({signer.to_string(): wrong}));
    upstream.push(next.block.clone());
    head(&node, next.hash()).await;
    assert_eq!(upstream.asked("debug_traceBlockByHash"), 1);
    assert_eq!(executed(&node), 1.0);
    assert_eq!(node.result("/", "eth_getTransactionCount", json!([signer, "latest"])).await, "0x1");
    // The next one is not traced.
    let last = next.next(vec![transfer(ETHEREUM, 1, 7)], 1);
    upstream.push(last.block.clone());
    head(&node, last.hash()).await;
    assert_eq!((upstream.asked("debug_traceBlockByHash"), executed(&node)), (1, 2.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_of_blocks_behind_one_that_waits_is_fetched_with_its_own() {
    let (upstream, node, first) = far(&[]).await;
    let (contract, reads) = CHASES[2];
    let mut blocks: Vec<Built> = Vec::new();
    for trail in 0..5 {
        let on = blocks.last().unwrap_or(&first);
        let next = on.next(vec![chase(0, ETHEREUM, trail, contract, trail)], 1);
        blocks.push(next);
    }
    // Long enough for a busy machine to ask for all of a round before the first answer.
    upstream.delay(4 * FAR);
    let before = upstream.waves();
    let last = blocks.last().unwrap();
    upstream.change(|chain| blocks.iter().for_each(|block| chain.put(block.block.clone())));
    upstream.announce(last.block.fields.clone());
    head(&node, last.hash()).await;
    assert_eq!(executed(&node), 5.0);
    // One after the other, they need a wave for each of their reads.
    let waves = upstream.waves() - before;
    assert!(waves < 3 * reads, "{waves} waves for 5 blocks of {reads} dependent reads");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_is_not_executed_ends_only_what_it_has_changed() {
    for is_traced in [true, false] {
        let first = Built::ethereum();
        let upstream = serve(&[&first]).await;
        let node = start(&upstream.ws_url(), &first.config, &["--upstream-execute-ms", "0"]).await;
        let balance = async |of: Address| node.result("/", "eth_getBalance", json!([of, "latest"])).await;
        let asked = |of: Address| upstream.asked(&format!("eth_getBalance {of:#x}"));
        assert_eq!(balance(QUIET).await, "0x0");
        assert_eq!(balance(SOMEBODY).await, "0x0");
        let (quiet, somebody) = (asked(QUIET), asked(SOMEBODY));
        let next = first.next(vec![transfer(ETHEREUM, 0, 7)], 1);
        let signer = next.sender(0);
        let (pre, post) = (json!({signer.to_string(): {}}), json!({signer.to_string(): {}, SOMEBODY.to_string(): {}}));
        if is_traced {
            trace(&upstream, next.hash(), move |is_diff| match is_diff {
                true => json!({"pre": pre, "post": post}),
                false => json!({}),
            });
        }
        upstream.push(next.block.clone());
        head(&node, next.hash()).await;
        assert_eq!(balance(QUIET).await, "0x0");
        assert_eq!(balance(SOMEBODY).await, "0x7");
        assert_eq!(asked(SOMEBODY), somebody + 1, "{is_traced}");
        assert_eq!(asked(QUIET), quiet + usize::from(!is_traced), "{is_traced}");
        assert_eq!(executed(&node), 0.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_is_not_taken_without_proofs_where_they_are_asked_for() {
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    upstream.delay(FAR);
    let next = first.next(vec![transfer(ETHEREUM, 0, 7)], 1);
    let signer = next.sender(0);
    let mut wrong = first.traced(SOMEBODY, |_| true);
    wrong["balance"] = json!("0x64");
    let traced = json!([{"result": {signer.to_string(): first.traced(signer, |_| true), SOMEBODY.to_string(): wrong}}]);
    let proven = first.clone();
    upstream.script(move |method, params| match method {
        "debug_traceBlockByHash" => Some(Ok(traced.clone())),
        "eth_getProof" => {
            let address = serde_json::from_value(params[0].clone()).ok()?;
            let slots: Vec<U256> = serde_json::from_value(params[1].clone()).ok()?;
            Some(Ok(proven.proof(address, &slots)))
        }
        _ => None,
    });
    let node = start(&upstream.ws_url(), &first.config, &["--verify-proofs"]).await;
    upstream.push(next.block.clone());
    head(&node, next.hash()).await;
    assert_eq!((upstream.asked("debug_traceBlockByHash"), executed(&node)), (1, 1.0));
    assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, "0x7");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_of_a_call_saves_its_dependent_reads() {
    let (upstream, node, first) = far(&[]).await;
    let (contract, reads) = CHASES[2];
    let traced = json!({contract.to_string(): first.traced(contract, |slot| is_on_trail(slot, 5))});
    upstream.script(move |method, _| (method == "debug_traceCall").then(|| Ok(traced.clone())));
    let call = |trail: u64| json!([{"to": contract, "data": B256::from(U256::from(trail_slot(trail)))}, "latest"]);
    let before = upstream.waves();
    node.result("/", "eth_call", call(5)).await;
    assert_eq!(upstream.asked(&format!("eth_getStorageAt {contract:#x}")), 0, "the trace had the slots");
    assert!(upstream.waves() - before < reads, "{} waves", upstream.waves() - before);
    // The trace of another call, which reads other slots than the trace has, is a prediction.
    node.result("/", "eth_call", call(6)).await;
    assert!(upstream.asked(&format!("eth_getStorageAt {contract:#x}")) >= reads);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_calls_of_a_batch_are_one_message_over_a_websocket() {
    let (upstream, node, _) = far(&[]).await;
    let slots: Vec<Value> = (0..80).map(|slot| hex(1_000 + slot)).collect();
    let before = upstream.asked("messages");
    node.result("/", "eth_getStorageValues", json!([{QUIET.to_string(): slots}, "latest"])).await;
    assert_eq!(upstream.asked(&format!("eth_getStorageAt {QUIET:#x}")), 80);
    let messages = upstream.asked("messages") - before;
    assert!(messages < 20, "{messages} messages for 80 slots");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_many_slots_does_not_delay_a_block() {
    let (upstream, node, first) = far(&["--upstream-batch", "10", "--upstream-concurrency", "4"]).await;
    upstream.delay(2 * FAR);
    let slots: Vec<Value> = (0..1_000).map(|slot| hex(10_000 + slot)).collect();
    let params = json!([{QUIET.to_string(): slots}, "latest"]);
    let read = node.result("/", "eth_getStorageValues", params);
    let follow = async {
        let method = format!("eth_getStorageAt {QUIET:#x}");
        upstream.is_asked(&method, 20).await;
        let next = first.next(vec![transfer(ETHEREUM, 0, 7)], 1);
        upstream.push(next.block.clone());
        head(&node, next.hash()).await;
        (executed(&node), upstream.asked(&method))
    };
    let (_, (executed, read_before)) = tokio::join!(read, follow);
    assert_eq!(executed, 1.0);
    // One after the other, all of the slots come first.
    assert!(read_before < 1_000, "{read_before} slots were read before the block");
}
