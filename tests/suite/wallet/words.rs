//! The words in which an approver reads calls, with `presim wallet watch` on a terminal.

use alloy_primitives::{Address, U256, address, bytes, utils::parse_ether};
use alloy_sol_types::{SolCall, sol};
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
    function swapExactTokensForETH(uint256 amount, uint256 limit, address[] path, address to, uint256 deadline);
}

fn one() -> U256 {
    parse_ether("1").unwrap()
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
