//! The words in which an approver reads calls.

use alloy_primitives::{Address, Bytes, U256, address, keccak256, utils::parse_ether};
use alloy_sol_types::{SolCall, sol};

use super::{ReadCall, WordReader};
use crate::engine::TokenInfo;

const ACCOUNT: Address = Address::repeat_byte(1);
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
    WordReader::new(&mut tokens).call(ReadCall { account: ACCOUNT, to, value, data: &data }).lines
}

#[test]
fn the_usual_calls_are_told_in_words() {
    let (me, half) = (ACCOUNT, one() / U256::from(2));
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

#[test]
fn a_call_in_a_multicall_without_words_has_the_name_of_its_usual_signature() {
    let sync = Bytes::copy_from_slice(&keccak256("sync()")[..4]);
    let calls = multicallCall { calls: vec![sync] }.abi_encode();
    assert_eq!(words(ALPHA, U256::ZERO, calls), ["multicall of 1 call:", "  a call of sync()"]);
}
