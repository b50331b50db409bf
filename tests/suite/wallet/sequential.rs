//! Batches that are not atomic: one transaction for each call.

use alloy_primitives::{Bytes, U256, bytes};
use alloy_sol_types::{Revert, SolCall, SolError, sol};
use serde_json::{Value, json};

use super::{
    GATE, HALTER, LATE_HALTER, LOOP, NOBODY, QUICK, QUIET, REVERTER, SHOUTER, WITNESS, WalletChain, account, batch,
    call, came, code, limited, logs, named, nonce, refusal, send, send_to, settled, status, successes, transactions,
    watch_pool, witnessed,
};
use crate::support::{TestNode, hex, items, number};

sol! {
    interface IErc20 {
        function approve(address spender, uint256 value) external returns (bool);
        function transferFrom(address from, address to, uint256 value) external returns (bool);
        function balanceOf(address of) external view returns (uint256);
    }

    interface IRouter {
        function swapExactTokensForTokens(uint256 amountIn, uint256 amountOutMin, address[] calldata path, address to, uint256 deadline) external returns (uint256[] memory amounts);
    }
}

fn reason(text: &str) -> Bytes {
    Revert { reason: text.to_owned() }.abi_encode().into()
}

/// Returns for each simulated call whether it succeeds, and its error.
fn simulated(capabilities: &Value) -> Vec<(bool, Option<&str>)> {
    let calls = items(&capabilities["simulation"]["calls"]).iter();
    calls.map(|call| (call["status"] == "0x1", call["error"].as_str())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_is_a_transaction_in_the_order_of_the_calls() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.node(&[&QUICK]);
    // Some nonces are used already.
    let (first, _) = send(&node, batch(from, false, &[call(NOBODY, 1, bytes!())])).await;
    settled(&node, &first).await;
    let calls = [call(WITNESS, 7, bytes!("aa")), call(NOBODY, 3, bytes!()), call(WITNESS, 0, bytes!("bbcc"))];
    let (id, capabilities) = send(&node, batch(from, false, &calls)).await;
    assert_eq!(simulated(&capabilities), [(true, None); 3], "{capabilities}");
    let status = settled(&node, &id).await;
    assert_eq!((&status["status"], &status["atomic"]), (&json!(200), &json!(false)), "{status}");
    let sent = transactions(&node, &status).await;
    assert_eq!(sent.len(), 3, "{status}");
    for (index, (tx, call)) in sent.iter().zip(&calls).enumerate() {
        assert_eq!(number(&tx["nonce"]), 1 + index as u64, "{tx}");
        assert_eq!((&tx["value"], &tx["input"], &tx["type"]), (&call["value"], &call["data"], &json!("0x2")), "{tx}");
    }
    let receipts = items(&status["receipts"]);
    assert_eq!(logs(&receipts[0]), [witnessed(from, 7, bytes!("aa"))]);
    assert_eq!(logs(&receipts[1]), [] as [Value; 0]);
    assert_eq!(logs(&receipts[2]), [witnessed(from, 0, bytes!("bbcc"))]);
    assert_eq!((node.balance(NOBODY, "pending").await, nonce(&node, from).await), (U256::from(4), 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn later_calls_go_when_an_earlier_reverts() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.node(&[&QUICK]);
    let calls = [
        call(WITNESS, 0, bytes!("01")),
        call(REVERTER, 0, reason("not today")),
        call(REVERTER, 0, bytes!()),
        call(WITNESS, 0, bytes!("02")),
    ];
    let (id, capabilities) = send(&node, batch(from, false, &calls)).await;
    let said = [(true, None), (false, Some("not today")), (false, Some("execution reverted")), (true, None)];
    assert_eq!(simulated(&capabilities), said, "{capabilities}");
    let status = settled(&node, &id).await;
    assert_eq!(status["status"], 600, "{status}");
    assert_eq!(successes(&status), [true, false, false, true], "{status}");
    let receipts = items(&status["receipts"]);
    assert_eq!(logs(&receipts[3]), [witnessed(from, 0, bytes!("02"))]);
    assert_eq!(logs(&receipts[1]), [] as [Value; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reason_of_any_length_is_told_in_short() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node =
        chain.node(&[&QUIET, &["--deadline-ms", "60000", "--max-response", "131072", "--gas-cap", "1000000000"]]);
    let watch = watch_pool(&node).await;
    let (_, capabilities) = send(&node, batch(from, false, &vec![call(SHOUTER, 0, bytes!()); 50])).await;
    let said = simulated(&capabilities);
    assert_eq!(said.len(), 50);
    for (succeeds, reason) in said {
        assert!(!succeeds && reason.is_some_and(|reason| reason.chars().count() == 257), "{reason:?}");
    }
    assert_eq!(came(&node, &watch).await.len(), 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_calls_of_a_batch_have_the_gas_of_a_request_together() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.node(&[&QUIET, &["--gas-cap", "100000"]]);
    let transfers = |count: usize| batch(from, false, &vec![call(NOBODY, 1, bytes!()); count]);
    send(&node, transfers(4)).await;
    let error = refusal(&node, "/", transfers(5)).await;
    assert_eq!(error["code"], 5740, "{error}");
    assert!(
        error["data"].as_str().unwrap().contains("params[0].calls[4]: the calls so far have used 105000 gas"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_answer_would_be_too_long_is_not_sent() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.node(&[&QUIET, &["--max-response", "1024"]]);
    let watch = watch_pool(&node).await;
    let error = refusal(&node, "/", named(batch(from, false, &vec![call(NOBODY, 1, bytes!()); 50]), "long")).await;
    assert_eq!(error["code"], -32005, "{error}");
    assert!(error["message"].as_str().unwrap().contains("1024 bytes"), "{error}");
    assert_eq!((came(&node, &watch).await, nonce(&node, from).await), (Vec::new(), 0));
    send(&node, named(batch(from, false, &[call(NOBODY, 1, bytes!())]), "long")).await;
    assert_eq!(nonce(&node, from).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_halts_has_little_gas_to_lose() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.node(&[&QUICK]);
    let calls = [
        call(HALTER, 0, bytes!()),
        call(WITNESS, 0, bytes!("01")),
        call(HALTER, 0, bytes!("0102")),
        call(LATE_HALTER, 0, bytes!()),
    ];
    let (id, capabilities) = send(&node, batch(from, false, &calls)).await;
    let said = simulated(&capabilities);
    let halted = (false, Some("invalid opcode: INVALID"));
    assert_eq!(said, [halted, (true, None), halted, halted], "{capabilities}");
    let status = settled(&node, &id).await;
    assert_eq!((&status["status"], successes(&status)), (&json!(600), vec![false, true, false, false]), "{status}");
    // Two non-zero bytes cost at least 80 gas (EIP-7623).
    for (index, used) in [(0, 121_000), (2, 121_080), (3, 121_000)] {
        assert_eq!(number(&status["receipts"][index]["gasUsed"]), used, "{status}");
        assert_eq!(number(&capabilities["simulation"]["calls"][index]["gasUsed"]), used, "{capabilities}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_needs_more_gas_than_there_is_refuses_the_batch() {
    let chain = WalletChain::new();
    let node = chain.node(&[&QUIET, &["--deadline-ms", "60000"]]);
    let watch = watch_pool(&node).await;
    let turns = |count: u64| call(LOOP, 0, U256::from(count).to_be_bytes_vec());
    // Each turn is 26 gas.
    let error = refusal(&node, "/", batch(account(1), false, &[call(NOBODY, 1, bytes!()), turns(700_000)])).await;
    assert_eq!(error["code"], 5740, "{error}");
    let detail = error["data"].as_str().unwrap();
    assert!(detail.starts_with("params[0].calls[1]: ") && detail.contains("16777216 gas"), "{error}");
    // The account can pay for 100,000 gas, at three gwei or more.
    let mut emptying = call(NOBODY, 0, bytes!());
    let left = U256::from(10).pow(U256::from(15));
    emptying["value"] = json!(format!("{:#x}", node.balance(account(2), "pending").await - left));
    let error = refusal(&node, "/", batch(account(2), false, &[emptying, turns(20_000)])).await;
    assert_eq!(error["code"], -32000, "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("params[0].calls[1]: insufficient funds for gas"), "{error}");
    assert_eq!((came(&node, &watch).await, nonce(&node, account(1)).await), (Vec::new(), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn where_all_revert_the_status_is_500() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.node(&[&QUICK]);
    let calls = [call(REVERTER, 0, bytes!()), call(REVERTER, 5, reason("no"))];
    let (id, capabilities) = send(&node, batch(from, false, &calls)).await;
    assert_eq!(simulated(&capabilities), [(false, Some("execution reverted")), (false, Some("no"))]);
    let status = settled(&node, &id).await;
    assert_eq!((&status["status"], successes(&status)), (&json!(500), vec![false; 2]), "{status}");
    assert_eq!(node.balance(REVERTER, "pending").await, U256::ZERO);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_simulated_on_what_those_before_it_did() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.node(&[&QUICK]);
    let calls = [call(GATE, 0, bytes!()), call(GATE, 0, bytes!("01")), call(GATE, 0, bytes!())];
    let (id, capabilities) = send(&node, batch(from, false, &calls)).await;
    assert_eq!(simulated(&capabilities).iter().map(|one| one.0).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(successes(&settled(&node, &id).await), [true, true, false]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_counts_for_the_trade_after_it() {
    let node = TestNode::start(&["--traffic", "0", "--sub-block-ms", "50"]);
    let world = node.node.info().trading.expect("the devnet has its trading world");
    let (from, to) = (account(1), account(2));
    let approve = |spender, value| call(world.alpha, 0, IErc20::approveCall { spender, value }.abi_encode());
    let amount = U256::from(1_000_000);
    let swap = IRouter::swapExactTokensForTokensCall {
        amountIn: amount,
        amountOutMin: U256::from(1),
        path: vec![world.alpha, world.beta],
        to: from,
        deadline: U256::MAX,
    };
    let swap = call(world.router, 0, swap.abi_encode());
    let transfer = call(world.alpha, 0, IErc20::transferFromCall { from, to, value: amount }.abi_encode());
    let calls = [
        approve(world.router, U256::ZERO),
        swap.clone(),
        approve(world.router, amount),
        swap,
        transfer.clone(),
        approve(from, amount),
        transfer,
    ];
    let balances = async || {
        let mut all = Vec::new();
        for (token, of) in [(world.alpha, from), (world.beta, from), (world.alpha, to)] {
            let data = Bytes::from(IErc20::balanceOfCall { of }.abi_encode());
            let value = node.result("/", "eth_call", json!([{"to": token, "data": data}, "pending"])).await;
            all.push(value.as_str().unwrap().parse::<U256>().unwrap());
        }
        all
    };
    let before = balances().await;
    let (id, capabilities) = send(&node, batch(from, false, &calls)).await;
    let expected = [true, false, true, true, false, true, true];
    let said: Vec<bool> = simulated(&capabilities).iter().map(|one| one.0).collect();
    assert_eq!(said, expected, "{capabilities}");
    let status = settled(&node, &id).await;
    assert_eq!((&status["status"], successes(&status)), (&json!(600), expected.to_vec()), "{status}");
    let after = balances().await;
    assert_eq!(after[0], before[0] - amount - amount);
    assert!(after[1] > before[1]);
    assert_eq!(after[2], before[2] + amount);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_to_nobody_creates_a_contract_on_standard() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.node(&[&QUICK]);
    // The init code returns the one byte 5b.
    let mut params = batch(from, false, &[call(NOBODY, 1, bytes!()), json!({"data": "0x605b5f5360015ff3"})]);
    params[0]["calls"][1]["to"] = Value::Null;
    let (id, capabilities) = send_to(&node, "/standard", params).await;
    assert_eq!(simulated(&capabilities), [(true, None); 2]);
    let status = settled(&node, &id).await;
    assert_eq!(status["status"], 200, "{status}");
    let hash = &status["receipts"][1]["transactionHash"];
    let receipt = node.result("/", "eth_getTransactionReceipt", json!([hash])).await;
    assert_eq!(receipt["contractAddress"], json!(from.create(1)), "{receipt}");
    assert_eq!(code(&node, from.create(1)).await, bytes!("5b"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gas_limit_override_is_the_gas_limit_of_the_transaction() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.node(&[&QUICK]);
    let calls = [
        limited(call(NOBODY, 1, bytes!()), 0x12345),
        limited(call(NOBODY, 1, bytes!()), 21_000),
        call(NOBODY, 1, bytes!()),
        // Enough to begin, but not to finish.
        limited(call(WITNESS, 0, bytes!("01")), 21_100),
    ];
    let (id, capabilities) = send(&node, batch(from, false, &calls)).await;
    let status = settled(&node, &id).await;
    let sent = transactions(&node, &status).await;
    let limits: Vec<u64> = sent.iter().map(|tx| number(&tx["gas"])).collect();
    assert_eq!(limits, [0x12345, 21_000, 21_000, 21_100], "{status}");
    let said = simulated(&capabilities);
    assert_eq!(said[..3], [(true, None); 3]);
    assert!(!said[3].0 && said[3].1.is_some_and(|error| error.contains("out of gas")), "{capabilities}");
    assert_eq!((&status["status"], successes(&status)), (&json!(600), vec![true, true, true, false]), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_sent_sends_nothing_and_leaves_its_id_free() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.node(&[&QUIET]);
    let watch = watch_pool(&node).await;
    let good = call(NOBODY, 1, bytes!());
    let mut dear = good.clone();
    dear["value"] = json!(format!("{:#x}", U256::from(10).pow(U256::from(23))));
    let cases = [
        ("below what any transaction needs", limited(good.clone(), 20_999), -32000, "intrinsic gas too low"),
        ("above what a transaction may have", limited(good.clone(), (1 << 24) + 1), 5740, "gas limit"),
        ("more than the account has", dear, -32000, "insufficient funds"),
    ];
    for (id, bad, code, expected) in cases {
        for path in ["/", "/standard"] {
            // The bad call comes after one that could be sent.
            let params = named(batch(from, false, &[good.clone(), bad.clone()]), id);
            let error = refusal(&node, path, params).await;
            assert_eq!(error["code"], code, "{id}: {error}");
            let text = if code == -32000 { &error["message"] } else { &error["data"] };
            assert!(text.as_str().unwrap().contains(expected), "{id}: {error}");
            assert_eq!(nonce(&node, from).await, 0, "{id}");
        }
    }
    assert_eq!(came(&node, &watch).await, [] as [Value; 0]);
    for (id, at) in [("below what any transaction needs", 1), ("more than the account has", 2)] {
        let (taken, _) = send(&node, named(batch(from, false, std::slice::from_ref(&good)), id)).await;
        assert_eq!((taken.as_str(), nonce(&node, from).await), (id, at));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn value_and_sender_may_be_absent_on_standard() {
    let chain = WalletChain::new();
    let node = chain.node(&[&QUICK]);
    let mut params = batch(account(0), false, &[json!({"to": WITNESS}), json!({"to": WITNESS, "value": "0x0"})]);
    params[0].as_object_mut().unwrap().remove("from");
    let (id, _) = send_to(&node, "/standard", params).await;
    let status = settled(&node, &id).await;
    assert_eq!(status["status"], 200, "{status}");
    // The receipts' logs show the first account as the sender.
    for receipt in items(&status["receipts"]) {
        assert_eq!(logs(receipt), [witnessed(account(0), 0, bytes!())]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_may_have_one_call() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.node(&[&QUICK]);
    let (id, _) = send(&node, batch(from, false, &[call(WITNESS, 0, bytes!("07"))])).await;
    let status = settled(&node, &id).await;
    assert_eq!((&status["status"], items(&status["receipts"]).len()), (&json!(200), 1), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gas_margin_is_added_to_what_the_simulation_needed() {
    let chain = WalletChain::new();
    let mut limits = Vec::new();
    for margin in ["0", "100"] {
        let node = chain.node(&[&QUICK, &["--wallet-gas-margin", margin]]);
        let (id, _) = send(&node, batch(account(1), false, &[call(WITNESS, 0, bytes!("0708"))])).await;
        let status = settled(&node, &id).await;
        assert_eq!(status["status"], 200, "{status}");
        limits.push(number(&transactions(&node, &status).await[0]["gas"]));
    }
    assert_eq!(limits[1], 2 * limits[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tip_is_at_least_what_the_pool_takes() {
    let (chain, from) = (WalletChain::new(), account(1));
    let least = 3_000_000_001;
    let node = chain.node(&[&QUICK, &["--pool-min-tip", &least.to_string()]]);
    assert_eq!(node.result("/", "eth_maxPriorityFeePerGas", json!([])).await, hex(least));
    let (id, _) = send(&node, batch(from, false, &[call(NOBODY, 1, bytes!())])).await;
    let status = settled(&node, &id).await;
    assert_eq!(status["status"], 200, "{status}");
    assert_eq!(transactions(&node, &status).await[0]["maxPriorityFeePerGas"], hex(least));
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_one_after_another_take_nonces_that_follow() {
    let (chain, from) = (WalletChain::new(), account(1));
    let node = chain.node(&[&QUIET]);
    let mut ids = Vec::new();
    for count in 1..=4 {
        let calls = vec![call(NOBODY, 1, bytes!()); count];
        ids.push(send(&node, batch(from, false, &calls)).await.0);
    }
    assert_eq!(nonce(&node, from).await, 10);
    for id in ids {
        assert_eq!(status(&node, &id).await["status"], 100);
    }
    assert_eq!(node.result("/", "eth_getTransactionCount", json!([from, "latest"])).await, hex(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_depends_on_one_that_still_waits_has_gas_enough() {
    let node = TestNode::start(&["--traffic", "0", "--sub-block-ms", "2000"]);
    let world = node.node.info().trading.expect("the devnet has its trading world");
    let from = account(1);
    let amount = U256::from(1_000_000);
    let approve = |value| call(world.alpha, 0, IErc20::approveCall { spender: world.router, value }.abi_encode());
    let (id, _) = send(&node, batch(from, false, &[approve(U256::ZERO)])).await;
    assert_eq!(settled(&node, &id).await["status"], 200);
    let swap = IRouter::swapExactTokensForTokensCall {
        amountIn: amount,
        amountOutMin: U256::from(1),
        path: vec![world.alpha, world.beta],
        to: from,
        deadline: U256::MAX,
    };
    let (_, _) = send(&node, batch(from, false, &[approve(amount)])).await;
    let (id, capabilities) = send(&node, batch(from, false, &[call(world.router, 0, swap.abi_encode())])).await;
    // The simulation sees the transactions of the account that wait for the next sub-block.
    assert!(simulated(&capabilities)[0].0, "{capabilities}");
    let status = settled(&node, &id).await;
    assert_eq!(status["status"], 200, "{status} {capabilities}");
}
