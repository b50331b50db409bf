//! Native contracts on a chain of presim's own: a run that reaches one is rejected, because presim does not guess.

use alloy_primitives::{Address, B256, Bytes};
use presim::testing::source::devnet::world::dev_signers;
use serde_json::{Value, json};

use crate::{
    live::built::ethereum_config,
    op_chain::config,
    support::{TestNode, chain_files, hex},
};

const START: u64 = 0x6500_0000;
/// A B20 token, the factory of tokens, and the context of EIP-8130's transactions.
const TOKEN: &str = "0xb20000000000000000000078ee7ce2fe4908108c";
const FACTORY: &str = "0xb20f000000000000000000000000000000000000";
const CONTEXT: &str = "0x813000000000000000000000000000000000aa02";
const SOMEBODY: &str = "0x00000000000000000000000000000000000000c1";
/// A contract that calls the factory and ignores the result.
const CALLER: &str = "0x5f5f5f5f5f73b20f0000000000000000000000000000000000005af1505f5ff3";
/// A contract that returns the balance of the factory.
const READER: &str = "0x73b20f000000000000000000000000000000000000315f5260205ff3";

/// Returns a genesis of Base's family, with Beryl and Cobalt at these times.
fn genesis(beryl: u64, cobalt: u64) -> Value {
    let mut rules = config(4242, "jovian");
    for (fork, time) in [("azul", 0), ("beryl", beryl), ("cobalt", cobalt)] {
        rules[format!("{fork}Time")] = json!(time);
    }
    json!({
        "config": rules,
        "alloc": {
            dev_signers().unwrap()[0].address().to_string(): { "balance": "0x56bc75e2d63100000" },
            SOMEBODY: { "balance": "0x0", "code": CALLER },
        },
        "difficulty": "0x0", "gasLimit": "0x3938700", "nonce": "0x0", "timestamp": hex(START),
        "extraData": "0x01000000fa0000000600000000000f4240",
        "baseFeePerGas": "0x3b9aca00", "mixHash": B256::ZERO, "coinbase": Address::ZERO,
    })
}

/// Asserts that a request is rejected because it reaches `native`.
async fn rejected(node: &TestNode, path: &str, method: &str, params: Value, native: &str) {
    let error = node.error(path, method, params).await;
    let text = error["message"].as_str().expect("a text").to_lowercase();
    assert!(error["code"] == -32000 && text.contains(native) && text.contains("cannot execute"), "{method}: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_reaches_a_native_contract_is_rejected_on_a_chain_of_presims_own() {
    let node = TestNode::on(&genesis(0, 0), &["--feed", "static"]);
    let overridden = json!({SOMEBODY: {"code": READER}});
    let calls = |to: &str| json!({"blockStateCalls": [{"calls": [{"to": to}]}]});
    for (path, method, params, native) in [
        ("/", "eth_call", json!([{"to": TOKEN}, "latest"]), TOKEN),
        ("/standard", "eth_call", json!([{"to": CONTEXT}, "pending"]), CONTEXT),
        // In an inner frame, and without a call.
        ("/", "eth_call", json!([{"to": SOMEBODY}, "latest"]), FACTORY),
        ("/", "eth_call", json!([{"to": SOMEBODY}, "latest", overridden]), FACTORY),
        // An override does not make the contract known.
        ("/", "eth_call", json!([{"to": FACTORY}, "latest", {FACTORY: {"code": "0x00"}}]), FACTORY),
        ("/", "eth_estimateGas", json!([{"to": TOKEN}]), TOKEN),
        ("/", "eth_createAccessList", json!([{"to": SOMEBODY}]), FACTORY),
        ("/", "eth_simulateV1", json!([calls(TOKEN), "latest"]), TOKEN),
        ("/standard", "eth_simulateV1", json!([calls(SOMEBODY), "latest"]), FACTORY),
        ("/", "presim_simulate", json!([calls(TOKEN), "latest"]), TOKEN),
        ("/", "debug_traceCall", json!([{"to": TOKEN}, "latest"]), TOKEN),
    ] {
        rejected(&node, path, method, params, native).await;
    }
    // Other runs are executed, on the same workers.
    let other = json!([{"to": SOMEBODY}, "latest", {SOMEBODY: {"code": "0x60075f5260205ff3"}}]);
    assert_eq!(node.result("/", "eth_call", other).await, json!(B256::with_last_byte(7)));
    assert_eq!(node.result("/", "eth_getBalance", json!([TOKEN, "latest"])).await, "0x0");
}

#[tokio::test(flavor = "multi_thread")]
async fn natives_go_by_the_fork() {
    let node = TestNode::on(&genesis(START + 100, START + 200), &["--testing", "--dialect", "project", "--no-mining"]);
    let mine_at = async |time: u64| node.result("/", "evm_mine", json!([{"timestamp": time}])).await;
    mine_at(START + 90).await;
    let call = |to: &str, at: &str| json!([{"to": to}, at]);
    for to in [TOKEN, CONTEXT, SOMEBODY] {
        assert_eq!(node.result("/", "eth_call", call(to, "latest")).await, "0x", "before Beryl");
    }
    mine_at(START + 100).await;
    rejected(&node, "/", "eth_call", call(TOKEN, "latest"), TOKEN).await;
    rejected(&node, "/", "eth_call", call(SOMEBODY, "latest"), FACTORY).await;
    assert_eq!(node.result("/", "eth_call", call(CONTEXT, "latest")).await, "0x", "before Cobalt");
    let before = node.height().await - 1;
    let before = hex(before);
    assert_eq!(node.result("/", "eth_call", json!([{"to": TOKEN}, before])).await, "0x", "the block before Beryl");
    // A simulation that passes the fork.
    let block = |time: u64, to: &str| json!({"blockOverrides": {"time": hex(time)}, "calls": [{"to": to}]});
    let simulated = |blocks: &[Value]| json!([{"blockStateCalls": blocks}, before]);
    node.result("/", "eth_simulateV1", simulated(&[block(START + 99, TOKEN), block(START + 150, CONTEXT)])).await;
    let passing = simulated(&[block(START + 99, CONTEXT), block(START + 200, CONTEXT)]);
    rejected(&node, "/", "eth_simulateV1", passing, CONTEXT).await;
    let moved = TestNode::on(&genesis(0, 0), &["--feed", "static", "--fork", "beryl=never", "--fork", "cobalt=never"]);
    assert_eq!(moved.result("/", "eth_call", call(TOKEN, "latest")).await, "0x");
}

/// The rules of the run say what is native, whatever ran on the same worker before.
#[tokio::test(flavor = "multi_thread")]
async fn natives_go_by_the_fork_that_a_request_names() {
    let node = TestNode::on(&genesis(0, 0), &["--feed", "static"]);
    let plain = TestNode::on(&genesis(u64::MAX, u64::MAX), &["--feed", "static"]);
    let call = |to: &str, fork: &str| json!([{"to": to}, "latest", {}, {"fork": fork}]);
    for _ in 0..8 {
        rejected(&node, "/", "eth_call", json!([{"to": TOKEN}, "latest"]), TOKEN).await;
        // Before Beryl there is nothing at these addresses.
        assert_eq!(node.result("/", "eth_call", call(TOKEN, "azul")).await, "0x");
        assert_eq!(node.result("/", "eth_call", call(SOMEBODY, "jovian")).await, "0x");
        rejected(&plain, "/", "eth_call", call(FACTORY, "beryl"), "under beryl").await;
        assert_eq!(plain.result("/", "eth_call", json!([{"to": FACTORY}, "latest"])).await, "0x");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_reaches_a_native_contract_is_not_mined_and_those_after_it_are() {
    let node = TestNode::on(&genesis(0, 0), &["--testing", "--dialect", "project", "--no-mining"]);
    let from = dev_signers().unwrap()[0].address();
    let send = async |to: &str, nonce: u64| {
        let tx = json!({"from": from, "to": to, "nonce": hex(nonce), "gas": "0x186a0"});
        node.result("/", "eth_sendTransaction", json!([tx])).await
    };
    let reaches = send(SOMEBODY, 0).await;
    node.result("/", "evm_mine", json!([])).await;
    assert_eq!(node.result("/", "eth_getTransactionReceipt", json!([reaches])).await, Value::Null);
    assert_eq!(node.result("/", "txpool_status", json!([])).await["pending"], "0x0");
    let plain = send("0x00000000000000000000000000000000000000c2", 0).await;
    node.result("/", "evm_mine", json!([])).await;
    assert_eq!(node.result("/", "eth_getTransactionReceipt", json!([plain])).await["status"], "0x1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_file_with_a_block_that_reaches_a_native_contract_is_refused() {
    let genesis = genesis(START + 1_000_000_000, START + 1_000_000_000);
    let node = TestNode::on(&genesis, &["--testing", "--dialect", "project", "--no-mining"]);
    let tx = json!({"from": dev_signers().unwrap()[0].address(), "to": SOMEBODY, "gas": "0x186a0"});
    node.result("/", "eth_sendTransaction", json!([tx])).await;
    node.result("/", "evm_mine", json!([{"timestamp": START + 2}])).await;
    let raw = node.result("/", "debug_getRawBlock", json!(["latest"])).await;
    let raw: Bytes = raw.as_str().expect("a text").parse().expect("bytes");
    let (_folder, files) = chain_files(&genesis, &raw);
    let flags: Vec<&str> = files.iter().map(String::as_str).collect();
    let before = TestNode::start(&flags);
    assert_eq!(before.result("/", "eth_blockNumber", json!([])).await, "0x1");
    let text = TestNode::refusal(&[&flags[..], &["--fork", "beryl=0"]].concat()).to_lowercase();
    assert!(text.contains(FACTORY) && text.contains("cannot execute"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_in_a_block_of_an_unexecuted_fork_are_rejected_with_the_reason() {
    let mut genesis = genesis(0, 0);
    (genesis["config"], genesis["extraData"]) = (ethereum_config(), json!("0x"));
    let node = TestNode::on(&genesis, &["--feed", "static", "--fork", "bogota=4000000000"]);
    let block = |time: u64| json!({"blockOverrides": {"time": hex(time)}, "calls": [{"to": SOMEBODY}]});
    let simulated = |times: &[u64]| {
        let blocks: Vec<Value> = times.iter().map(|time| block(*time)).collect();
        json!([{"blockStateCalls": blocks}, "latest"])
    };
    for path in ["/", "/standard"] {
        node.result(path, "eth_simulateV1", simulated(&[3_999_999_998, 3_999_999_999])).await;
        for times in [&[4_000_000_000][..], &[3_999_999_999, 4_000_000_000]] {
            let error = node.error(path, "eth_simulateV1", simulated(times)).await;
            let text = error["message"].as_str().expect("a text");
            assert!(error["code"] == -32000 && text.contains("bogota") && text.contains("4000000000"), "{error}");
        }
    }
    let overridden = json!([{"to": SOMEBODY}, "latest", {}, {"time": "0xee6b2800"}]);
    assert_eq!(node.error("/standard", "eth_call", overridden).await["code"], -32000);
    assert_eq!(node.result("/", "eth_call", json!([{"to": SOMEBODY}, "latest"])).await, "0x");
    let answer = node.client.get(node.url("/health")).send().await.expect("it answers");
    assert_eq!(answer.status(), 200);
    let health: Value = answer.json().await.expect("JSON");
    let status = node.result("/", "presim_status", json!([])).await;
    let warning = health["warning"].as_str().expect("a warning");
    assert!(warning.contains("bogota") && warning.contains("4000000000"), "{health}");
    assert_eq!(status["warning"], warning);
}

/// Forks of chains of the OP stack whose rules are not public, or not built.
#[tokio::test(flavor = "multi_thread")]
async fn forks_of_chains_that_go_their_own_way_are_named_with_their_times() {
    for fork in ["zenith", "tropo", "strato"] {
        let mut genesis = genesis(0, 0);
        genesis["config"][format!("{fork}Time")] = json!(4_000_000_000_u64);
        let node = TestNode::on(&genesis, &["--feed", "static"]);
        let status = node.result("/", "presim_status", json!([])).await;
        let warning = status["warning"].as_str().expect("a warning");
        assert!(warning.contains(fork) && warning.contains("4000000000"), "{warning}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_devnet_with_an_unexecuted_fork_does_not_start() {
    for flags in [&[][..], &["--testing", "--dialect", "project"]] {
        let text = TestNode::refusal(&[flags, &["--fork", "bogota=4000000000"]].concat());
        assert!(text.contains("4000000000") && text.contains("--fork bogota=never"), "{text}");
    }
}
