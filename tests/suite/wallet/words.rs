//! The words in which an approver reads calls, with `presim wallet watch` on a terminal.

use alloy_primitives::{Address, Bytes, U256, address, bytes, utils::parse_ether};
use alloy_sol_types::{SolCall, sol};
use presim::testing::{
    engine::TokenInfo,
    wallet::{ReadCall, WordReader},
};
use serde_json::{Value, json};

use super::{
    QUICK, WITNESS, account,
    approval::{Asking, answer},
    batch, call, named,
};
use crate::{process::text, support::items, terminal::Terminal};

const WETH: Address = address!("0x5FbDB2315678afecb367f032d93F642f64180aa3");
const ALPHA: Address = address!("0x9fE46736679d2D9a65F0992F2272dE9f3c7fa6e0");
const ROUTER: Address = address!("0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9");
const OTHER: Address = address!("0x00000000000000000000000000000000000000aa");

sol! {
    function approve(address spender, uint256 value);
    function transferFrom(address from, address to, uint256 value);
    function setApprovalForAll(address operator, bool approved);
    function deposit();
    function multicall(bytes[] calls);
    function unknown(uint256 value);
    function swapExactTokensForETH(uint256 amount, uint256 limit, address[] path, address to, uint256 deadline);
    function swapETHForExactTokens(uint256 amount, address[] path, address to, uint256 deadline);
    function swapExactTokensForTokens(uint256 amount, uint256 limit, address[] path, address to, uint256 deadline);
}

fn one() -> U256 {
    parse_ether("1").unwrap()
}

/// Returns the words for a call of the first account. Only ALPHA and WETH are tokens.
fn words(to: Address, value: U256, data: impl Into<Bytes>) -> Vec<String> {
    let mut tokens = |token: Address| match token {
        ALPHA => TokenInfo { symbol: Some("ALPHA".to_owned()), decimals: Some(18) },
        WETH => TokenInfo { symbol: Some("WETH".to_owned()), decimals: Some(18) },
        ROUTER => TokenInfo { symbol: Some("ALPHA to 0x12\u{1b}[2J and a long name".to_owned()), decimals: Some(6) },
        _ => TokenInfo::default(),
    };
    let data = data.into();
    WordReader::new(&mut tokens).call(ReadCall { account: account(0), to, value, data: &data }).lines
}

#[test]
fn the_usual_calls_are_told_in_words() {
    let (me, half) = (account(0), one() / U256::from(2));
    let path = || vec![ALPHA, WETH];
    let approve = |value| approveCall { spender: ROUTER, value }.abi_encode();
    let swap = |limit, to| {
        swapExactTokensForETHCall { amount: one(), limit, path: path(), to, deadline: U256::MAX }.abi_encode()
    };
    let shown = format!("by the path ALPHA ({ALPHA}) > WETH ({WETH})");
    for (to, value, data, expected) in [
        (OTHER, half, vec![], format!("send 0.5 ether to {OTHER}")),
        (ALPHA, U256::ZERO, approve(U256::MAX), format!("approve UNLIMITED ALPHA to {ROUTER}")),
        (ALPHA, U256::ZERO, approve(half), format!("approve 0.5 ALPHA to {ROUTER}")),
        (ALPHA, U256::ZERO, approve(U256::ZERO), format!("withdraw the approval of ALPHA from {ROUTER}")),
        // A token that says nothing, and one whose symbol reads like a sentence.
        (
            OTHER,
            U256::ZERO,
            approve(U256::from(5)),
            format!("approve 5 (units, or the number of an item) of this contract's tokens to {ROUTER}"),
        ),
        (
            ROUTER,
            U256::ZERO,
            approve(U256::from(1_500_000)),
            format!("approve 1.5 \"ALPHA to 0x12\\u{{1b}}[2J an...\" to {ROUTER}"),
        ),
        (
            ALPHA,
            U256::ZERO,
            transferFromCall { from: OTHER, to: me, value: one() }.abi_encode(),
            format!("send 1 ALPHA of {OTHER} to {me}"),
        ),
        (
            OTHER,
            U256::ZERO,
            setApprovalForAllCall { operator: ROUTER, approved: true }.abi_encode(),
            format!("approve ALL items of this contract's tokens to {ROUTER}"),
        ),
        (WETH, half, depositCall {}.abi_encode(), "wrap 0.5 ether as WETH".to_owned()),
        (
            ROUTER,
            U256::ZERO,
            swap(half, me),
            format!("swap 1 ALPHA for at least 0.5 ether, {shown}, for the account itself"),
        ),
        (
            ROUTER,
            U256::ZERO,
            swap(U256::ZERO, OTHER),
            format!("swap 1 ALPHA for ANY amount, even none, {shown}, for ANOTHER account, {OTHER}"),
        ),
        (
            ROUTER,
            half,
            swapETHForExactTokensCall { amount: one(), path: vec![WETH, ALPHA], to: me, deadline: U256::MAX }
                .abi_encode(),
            format!(
                "swap at most 0.5 ether for 1 ALPHA, by the path WETH ({WETH}) > ALPHA ({ALPHA}), for the account itself"
            ),
        ),
        (
            ROUTER,
            U256::ZERO,
            swapExactTokensForTokensCall { amount: one(), limit: half, path: vec![], to: me, deadline: U256::MAX }
                .abi_encode(),
            "swap along an empty path".to_owned(),
        ),
    ] {
        assert_eq!(words(to, value, data), [expected]);
    }
    // Unknown functions, and data that is cut off, have no words.
    for data in [unknownCall { value: one() }.abi_encode(), approve(one())[..40].to_vec(), vec![1, 2]] {
        assert_eq!(words(ALPHA, U256::ZERO, data), [""; 0]);
    }
}

#[test]
fn the_calls_in_a_multicall_are_told_one_by_one() {
    let approve = approveCall { spender: OTHER, value: U256::MAX }.abi_encode();
    let unknown = unknownCall { value: one() }.abi_encode();
    let nested =
        |calls: &[Vec<u8>]| multicallCall { calls: calls.iter().cloned().map(Bytes::from).collect() }.abi_encode();
    let expected = [
        "multicall of 3 calls:".to_owned(),
        format!("  approve UNLIMITED ALPHA to {OTHER}"),
        "  multicall of 1 call:".to_owned(),
        format!("    a call of the unknown function 0x{}", alloy_primitives::hex::encode(&unknown[..4])),
        "  a call of no function".to_owned(),
    ];
    assert_eq!(words(ALPHA, U256::ZERO, nested(&[approve.clone(), nested(&[unknown]), vec![]])), expected);
    // Neither depth nor number is without bound.
    let deep = (0..50).fold(approve.clone(), |inner, _| nested(&[inner]));
    assert!(words(ALPHA, U256::ZERO, deep).len() <= 5);
    let many = words(ALPHA, U256::ZERO, nested(&vec![approve; 1_000]));
    assert!(many.len() <= 65 && many.last().unwrap().starts_with("and "), "{many:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_tells_what_a_batch_does_and_what_it_moves() {
    let asking = Asking::trading();
    let me = account(6);
    let swap = swapExactTokensForETHCall {
        amount: one(),
        limit: U256::from(1),
        path: vec![ALPHA, WETH],
        to: me,
        deadline: U256::MAX,
    };
    let calls = [
        call(ALPHA, 0, approveCall { spender: ROUTER, value: U256::MAX }.abi_encode()),
        call(ROUTER, 0, swap.abi_encode()),
    ];
    let mut terminal = Terminal::start(&["wallet", "watch", "--data-dir", text(asking.dir())]);
    for atomic in [false, true] {
        let id = format!("atomic-{atomic}");
        let asked = asking.ask(named(batch(me, atomic, &calls), &id)).await;
        let list = asking.list();
        let assets: Vec<&str> = items(&list[0]["assets"]).iter().map(|line| line.as_str().unwrap()).collect();
        let [ether, alpha] = assets[..] else { panic!("{assets:?}") };
        assert!(ether.starts_with("+0.0004") && ether.ends_with(" ether"), "{assets:?}");
        assert_eq!(alpha, format!("-1 ALPHA ({ALPHA})"));
        let shown = tokio::task::block_in_place(|| terminal.shows_after(&format!("\n{id}\n"), "[y/n] "));
        for part in [
            format!("     = approve UNLIMITED ALPHA to {ROUTER}\n"),
            format!(
                "     = swap 1 ALPHA for at least 0.000000000000000001 ether, by the path ALPHA ({ALPHA}) > WETH ({WETH}), for the account itself\n"
            ),
            format!("  assets   {ether}\n           {alpha}\n"),
        ] {
            assert!(shown.contains(&part), "{part}: {shown}");
        }
        terminal.types("y\n");
        assert_eq!(answer(asked).await["result"]["id"], json!(id));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_is_told_in_words() {
    let asking = Asking::trading();
    let uint = |name: &str| json!({"name": name, "type": "uint256"});
    let of = |name: &str| json!({"name": name, "type": "address"});
    let permit = json!({
        "types": {
            "EIP712Domain": [of("verifyingContract")],
            "Permit": [of("owner"), of("spender"), uint("value"), uint("nonce"), uint("deadline")],
        },
        "primaryType": "Permit",
        "domain": {"verifyingContract": ALPHA},
        "message": {"owner": account(1), "spender": OTHER, "value": U256::MAX, "nonce": 0, "deadline": U256::MAX},
    });
    let asked = asking.request("eth_signTypedData_v4", json!([account(1), permit]));
    let list = asking.listed(|list| list.len() == 1).await;
    let expected = format!("whoever has the signature can approve UNLIMITED ALPHA ({ALPHA}) to {OTHER}, for ever");
    assert_eq!(list[0]["words"], json!([expected]), "{list:?}");
    let said = asking.says(&["list"]);
    assert!(said.contains("The domain names no chain") && said.contains("  means    whoever has"), "{said}");
    asked.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_contract_that_was_not_there_before_is_young() {
    let asking = Asking::start(&[&QUICK]);
    let node = &asking.node;
    // Deploys a contract that returns 42.
    let create = json!([{"from": account(0), "to": null, "data": "0x600a600c600039600a6000f3602a60005260206000f3"}]);
    let hash = node.result("/", "eth_sendTransaction", create).await;
    node.mined(&hash).await;
    let receipt = node.result("/", "eth_getTransactionReceipt", json!([hash])).await;
    let young: Address = serde_json::from_value(receipt["contractAddress"].clone()).unwrap();
    let calls = [
        call(young, 0, bytes!("01")),
        call(WITNESS, 0, approveCall { spender: young, value: one() }.abi_encode()),
        call(WITNESS, 0, bytes!("01")),
    ];
    let asked = asking.ask(named(batch(account(1), false, &calls), "young")).await;
    let list = asking.list();
    let words: Vec<&Value> = items(&list[0]["calls"]).iter().map(|call| &call["words"]).collect();
    let last = |words: &Value| items(words).last().map(|line| line.as_str().unwrap().to_owned()).unwrap_or_default();
    assert!(last(words[0]).starts_with("calls a contract that is younger than a day"), "{words:?}");
    assert!(last(words[1]).starts_with(&format!("{young} is a contract that is younger than a day")), "{words:?}");
    assert_eq!(items(words[2]).len(), 0, "{words:?}");
    asked.abort();
}

#[test]
fn a_call_in_a_multicall_without_words_has_the_name_of_its_usual_signature() {
    let sync = Bytes::copy_from_slice(&alloy_primitives::keccak256("sync()")[..4]);
    let calls = multicallCall { calls: vec![sync] }.abi_encode();
    assert_eq!(words(ALPHA, U256::ZERO, calls), ["multicall of 1 call:", "  a call of sync()"]);
}
