//! `presim_simulate`: each output is what its name says, and nothing else is in the answer.

use alloy_consensus::TxEip1559;
use alloy_primitives::{Address, B256, U256, hex, keccak256};
use serde_json::{Value, json};

use crate::{
    sending::{blob_tx, key, plain, raw},
    support::{TestNode, items, number, request},
};

const ALICE: &str = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";
const BOB: &str = "0x000000000000000000000000000000000000b0b0";
const WETH: &str = "0x5fbdb2315678afecb367f032d93f642f64180aa3";
const ALPHA: &str = "0x9fe46736679d2d9a65f0992f2272de9f3c7fa6e0";
const ROUTER: &str = "0xdc64a140aa3e981100a9becA4e685f962f0cf6c9";
/// An account that an override gives code.
const MADE: &str = "0x00000000000000000000000000000000000c0de0";
const OTHER: &str = "0x00000000000000000000000000000000000c0de1";
const ETHER: &str = "0xde0b6b3a7640000";

/// Code that logs one word, 42, with the topic 7, and returns it.
const LOGS: &str = "0x602a5f52600760205fa160205ff3";
fn word(value: u64) -> String {
    format!("{value:#066x}")
}

/// Returns a payload of one block.
fn payload(state: Value, calls: Value, more: Value) -> Value {
    let mut payload = json!({ "blockStateCalls": [{ "stateOverrides": state, "calls": calls }] });
    payload.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    payload
}

async fn simulate(node: &TestNode, payload: Value) -> Value {
    node.result("/", "presim_simulate", json!([payload, "latest"])).await
}

/// Returns code that reverts with the data at its own end.
fn reverts_with(data: &str) -> String {
    let length = data.len() / 2;
    // PUSH2 length, PUSH1 12, PUSH0, CODECOPY, PUSH2 length, PUSH0, REVERT
    format!("0x61{length:04x}600c5f3961{length:04x}5ffd{data}")
}

#[tokio::test]
async fn the_outputs_of_eth_simulate_v1_keep_its_bytes() {
    let node = TestNode::quiet();
    let state = json!({ MADE: { "code": LOGS }, OTHER: { "code": reverts_with("08c379a0") } });
    let calls = json!([
        { "from": ALICE, "to": MADE },
        { "from": ALICE, "to": OTHER },
        { "from": ALICE, "to": BOB, "value": "0x7" },
        { "from": ALICE, "to": MADE },
    ]);
    let all = json!(["status", "gasUsed", "returnData", "error", "logs", "header"]);
    for path in ["/", "/standard"] {
        for more in [json!({}), json!({ "traceTransfers": true }), json!({ "returnFullTransactions": true })] {
            let mut asked = payload(state.clone(), calls.clone(), more);
            asked["blockStateCalls"].as_array_mut().unwrap().push(json!({ "calls": [{ "from": ALICE, "to": BOB }] }));
            let answer = async |method: &str, asked: &Value| {
                node.post(path, request(1, method, json!([asked, "latest"])).to_string()).await.1
            };
            let whole = answer("eth_simulateV1", &asked).await;
            // The fork of each block is presim's own.
            let ours = async |asked: &Value| {
                let answer = answer("presim_simulate", asked).await;
                let without = answer.replace("\"fork\":\"osaka\",", "");
                assert!(without.len() < answer.len(), "{answer}");
                without
            };
            asked["outputs"] = all.clone();
            assert_eq!(ours(&asked).await, whole);
            asked.as_object_mut().unwrap().remove("outputs");
            assert_eq!(ours(&asked).await, whole, "without outputs, the same");
        }
    }
}

#[tokio::test]
async fn only_what_is_named_is_in_the_answer() {
    let node = TestNode::quiet();
    let asked = |outputs: Value| {
        let state = json!({ MADE: { "code": LOGS } });
        payload(state, json!([{ "from": ALICE, "to": MADE }]), json!({ "outputs": outputs }))
    };
    let log = json!({ "address": MADE, "topics": [word(7)], "data": word(42), "logIndex": "0x0" });
    for (outputs, call) in [
        (json!([]), json!({})),
        (json!(["status"]), json!({ "status": "0x1" })),
        (json!(["returnData"]), json!({ "returnData": word(42) })),
        (json!(["logs"]), json!({ "logs": [log] })),
        (json!(["error", "transfers"]), json!({ "transfers": [] })),
    ] {
        assert_eq!(
            simulate(&node, asked(outputs.clone())).await,
            json!([{ "fork": "osaka", "calls": [call] }]),
            "{outputs}"
        );
    }
    let gas = simulate(&node, asked(json!(["gasUsed"]))).await;
    let keys: Vec<&String> = gas[0]["calls"][0].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["gasUsed", "maxUsedGas"]);
    let error = node.error("/", "presim_simulate", json!([asked(json!(["speed"])), "latest"])).await;
    assert!(error["message"].as_str().unwrap().contains("params[0].outputs[0]"), "{error}");
    let error = node.error("/", "eth_simulateV1", json!([asked(json!(["status"])), "latest"])).await;
    assert!(error["message"].as_str().unwrap().contains("outputs: unknown field"), "{error}");
}

#[tokio::test]
async fn transfers_state_and_accesses_are_those_of_the_calls() {
    let node = TestNode::quiet();
    // Sends 2 wei on to another account, and sets slot 1 to 5.
    let sends = format!("0x5f5f5f5f600273{}5af1506005600155", &BOB[2..]);
    let state =
        json!({ MADE: { "code": sends, "stateDiff": { word(1): word(3) } }, OTHER: { "code": reverts_with("00") } });
    let calls = json!([
        { "from": ALICE, "to": MADE, "value": "0x5" },
        { "from": ALICE, "to": OTHER, "value": "0x9" },
    ]);
    let outputs = json!(["transfers", "stateDiff", "accessList"]);
    let ran = simulate(&node, payload(state.clone(), calls, json!({ "outputs": outputs }))).await;
    let transfers = json!([
        { "from": ALICE, "to": MADE, "value": "0x5" },
        { "from": MADE, "to": BOB, "value": "0x2" },
    ]);
    assert_eq!((&ran[0]["calls"][0]["transfers"], &ran[0]["calls"][1]["transfers"]), (&transfers, &json!([])), "{ran}");
    let diff = &ran[0]["stateDiff"];
    assert_eq!(
        diff[MADE],
        json!({ "balance": { "from": "0x0", "to": "0x3" }, "storage": { word(1): { "from": word(3), "to": word(5) } } })
    );
    assert_eq!(diff[BOB], json!({ "balance": { "from": "0x0", "to": "0x2" } }));
    assert!(diff.get(OTHER).is_none(), "what reverted changes nothing: {diff}");
    let nonce = &diff[ALICE]["nonce"];
    assert_eq!(number(&nonce["to"]), number(&nonce["from"]) + 2);
    let balance = |end: &str| diff[ALICE]["balance"][end].as_str().unwrap().parse::<alloy_primitives::U256>().unwrap();
    assert_eq!(balance("from") - balance("to"), alloy_primitives::U256::from(5));

    // Sets slot 0 to 1 and destroys itself in its creation.
    let created =
        json!([{ "from": ALICE, "to": null, "value": "0x5", "data": format!("0x600160005573{}ff", &BOB[2..]) }]);
    let gone = simulate(&node, payload(json!({}), created, json!({ "outputs": ["stateDiff"] }))).await;
    let mut changed: Vec<&String> = gone[0]["stateDiff"].as_object().unwrap().keys().collect();
    changed.sort();
    assert!(changed.iter().all(|one| one.eq_ignore_ascii_case(ALICE) || one.eq_ignore_ascii_case(BOB)), "{gone}");
    assert_eq!(gone[0]["stateDiff"][BOB], json!({ "balance": { "from": "0x0", "to": "0x5" } }));

    let call = json!({ "from": ALICE, "to": MADE, "value": "0x5" });
    let list = node.result("/", "eth_createAccessList", json!([call, "latest", state])).await;
    let slot = json!({ "address": MADE, "storageKeys": [word(1)] });
    assert!(items(&list["accessList"]).contains(&slot), "{list}");
    assert!(items(&ran[0]["calls"][0]["accessList"]).contains(&slot), "{ran}");
}

/// Returns code that creates a contract from the code in memory, whose address it leaves on the stack, with 3 wei.
fn creates(init: &str) -> String {
    let length = init.len() / 2;
    // PUSH init, PUSH0, MSTORE; then the length, the offset and the value, CREATE.
    format!("{:02x}{init}5f5260{length:02x}60{:02x}6003f0", 0x5f + length, 32 - length)
}

#[tokio::test]
async fn ether_of_a_contract_that_is_destroyed_in_the_call_that_creates_it_is_burnt() {
    let node = TestNode::quiet();
    let maker = MADE.parse::<Address>().unwrap();
    let child = format!("{:#x}", maker.create(0));
    // Destroys itself in its creation, in favour of itself or of another account.
    let (to_itself, to_bob) = ("30ff".to_owned(), format!("73{}ff", &BOB[2..]));
    // Sends 2 wei to the address on the stack.
    let sends = "5f5f5f5f6002855af1";
    let lost = |by: &str| json!([{ "type": "ether", "change": format!("-{by}") }]);
    let gained = |by: &str| json!([{ "type": "ether", "change": by }]);
    for (what, code, had, expected) in [
        ("in favour of itself", creates(&to_itself), 0, json!({ ALICE: lost("9"), MADE: gained("6") })),
        ("then paid", creates(&to_itself) + sends, 0, json!({ ALICE: lost("9"), MADE: gained("4") })),
        (
            "in favour of another account, then paid",
            creates(&to_bob) + sends,
            0,
            json!({ ALICE: lost("9"), MADE: gained("4"), BOB: gained("3") }),
        ),
        (
            "with ether of its own before",
            creates(&to_itself) + sends,
            5,
            json!({ ALICE: lost("9"), MADE: gained("4"), &child: lost("5") }),
        ),
        (
            "not destroyed",
            creates("5f5ff3") + sends,
            5,
            json!({ ALICE: lost("9"), MADE: gained("4"), &child: gained("5") }),
        ),
    ] {
        let state = json!({
            MADE: { "code": format!("0x{code}"), "nonce": "0x0" },
            &child: { "balance": format!("{had:#x}") },
        });
        let call = json!([{ "from": ALICE, "to": MADE, "value": "0x9" }]);
        for outputs in [json!(["status", "assets"]), json!(["status", "assets", "trace"])] {
            let ran = simulate(&node, payload(state.clone(), call.clone(), json!({ "outputs": outputs }))).await;
            assert_eq!(ran[0]["calls"][0]["status"], "0x1", "{what}: {ran}");
            assert_eq!(ran[0]["assets"], expected, "{what}");
        }
    }
}

#[tokio::test]
async fn on_a_chain_that_is_not_known_the_wrapper_is_found_by_its_name() {
    let node = TestNode::still(&presim::testing::source::devnet::world::dev_signers().unwrap(), &[]);
    // Logs a deposit of 7 by the sender and a withdrawal of 2; where it is asked something, it answers with its name.
    let event = |text: &str| U256::from_be_bytes(keccak256(text).0);
    let alice = U256::from_be_bytes(ALICE.parse::<Address>().unwrap().into_word().0);
    let moves = [("Deposit(address,uint256)", 7), ("Withdrawal(address,uint256)", 2)]
        .map(|(text, value)| logs(&[event(text), alice], &[U256::from(value)]))
        .concat();
    let code = |name: &str| {
        let text: String =
            [format!("{:064x}", 32), format!("{:064x}", name.len()), format!("{:0<64}", hex::encode(name))].concat();
        // PUSH1 96, PUSH2 text, PUSH0, CODECOPY, PUSH1 96, PUSH0, RETURN, and the text itself.
        let at = 8 + moves.len() / 2 + 2 + 11;
        let answer = format!("606061{at:04x}5f3960605ff3{text}");
        // CALLDATASIZE, PUSH1 4, EQ, PUSH2 answer, JUMPI
        format!("0x3660041461{:04x}57{moves}005b{answer}", 8 + moves.len() / 2 + 1)
    };
    let call = json!([{ "from": ALICE, "to": MADE }, { "from": ALICE, "to": OTHER }]);
    let state = json!({ MADE: { "code": code("Wrapped Ether") }, OTHER: { "code": code("A vault") } });
    let two = json!({ "blockStateCalls": [
        { "stateOverrides": state, "calls": call }, { "calls": call },
    ], "outputs": ["status", "assets"] });
    let ran = simulate(&node, two).await;
    let change =
        json!({ "type": "erc20", "token": MADE, "change": "5", "symbol": "Wrapped Ether", "decimals": "0x20" });
    for block in items(&ran) {
        assert_eq!(
            (&block["calls"][0]["status"], &block["calls"][1]["status"]),
            (&json!("0x1"), &json!("0x1")),
            "{ran}"
        );
        assert_eq!(block["assets"], json!({ ALICE: [change] }), "{ran}");
    }
    // The wrapper of the built-in devnet is known, and no other contract is.
    let node = TestNode::quiet();
    let ran = simulate(&node, payload(state, call, json!({ "outputs": ["assets"] }))).await;
    assert_eq!(ran[0]["assets"], json!({}));
}

#[tokio::test]
async fn assets_of_a_swap_are_net_and_the_wrapper_counts() {
    let node = TestNode::quiet();
    let data = |selector: &str, words: &[String]| format!("0x{selector}{}", words.concat());
    let (bare, address) =
        (|value: u64| word(value)[2..].to_owned(), |address: &str| format!("{:0>64}", address[2..].to_lowercase()));
    // swapExactETHForTokens(0, [WETH, ALPHA], ALICE, far)
    let swap = data(
        "7ff36ab5",
        &[bare(0), bare(0x80), address(ALICE), bare(u64::MAX), bare(2), address(WETH), address(ALPHA)],
    );
    let calls = json!([
        { "from": ALICE, "to": ROUTER, "value": ETHER, "data": swap },
        { "from": ALICE, "to": WETH, "value": "0x7", "data": "0xd0e30db0" },
        { "from": ALICE, "to": BOB, "value": "0x5" },
    ]);
    let ran = simulate(&node, payload(json!({}), calls, json!({ "outputs": ["returnData", "assets"] }))).await;
    let got = &ran[0]["calls"][0]["returnData"].as_str().unwrap()[2..];
    let bought = u128::from_str_radix(&got[got.len() - 32..], 16).unwrap();
    let alice = items(&ran[0]["assets"][ALICE]);
    let ether = format!("-{}", 10_u64.pow(18) + 12);
    let all = json!([
        { "type": "ether", "change": ether },
        { "type": "erc20", "token": WETH, "change": "7", "symbol": "WETH", "decimals": "0x12" },
        { "type": "erc20", "token": ALPHA, "change": bought.to_string(), "symbol": "ALPHA", "decimals": "0x12" },
    ]);
    for one in items(&all) {
        assert!(alice.contains(one), "{one} is not in {alice:?}");
    }
    assert_eq!(alice.len(), 3);
    assert_eq!(ran[0]["assets"][BOB], json!([{ "type": "ether", "change": "5" }]));
}

#[tokio::test]
async fn a_token_is_named_in_each_block_that_moves_it() {
    let node = TestNode::quiet();
    let wrap = json!({ "from": ALICE, "to": WETH, "value": "0x7", "data": "0xd0e30db0" });
    let pay = json!({ "from": ALICE, "to": BOB, "value": "0x5" });
    let blocks = json!([{ "calls": [wrap] }, { "calls": [pay] }]);
    let ran = simulate(&node, json!({ "blockStateCalls": blocks, "outputs": ["assets"] })).await;
    let weth = json!({ "type": "erc20", "token": WETH, "change": "7", "symbol": "WETH", "decimals": "0x12" });
    assert!(items(&ran[0]["assets"][ALICE]).contains(&weth), "{ran}");
    assert_eq!(ran[1]["assets"][BOB], json!([{ "type": "ether", "change": "5" }]));
}

#[tokio::test]
async fn errors_are_told_in_words_and_the_producer_s_income_apart() {
    let node = TestNode::quiet();
    // Error("no"), Panic(0x11), Expired(9) and nothing known.
    let no = format!("08c379a0{}{}{}", &word(0x20)[2..], &word(2)[2..], format_args!("{:0<64}", "6e6f"));
    let panic = format!("4e487b71{}", &word(0x11)[2..]);
    let selector = &alloy_primitives::hex::encode(&alloy_primitives::keccak256("Expired(uint256)")[..4]);
    let expired = format!("{selector}{}", &word(9)[2..]);
    for (code, expected) in [
        (reverts_with(&no), "no"),
        (reverts_with(&panic), "overflow"),
        (reverts_with(&expired), "Expired(9)"),
        ("0xfe".to_owned(), "invalid opcode"),
    ] {
        let more = json!({ "outputs": ["status", "error"], "errors": ["error Expired(uint256 deadline)"] });
        let ran =
            simulate(&node, payload(json!({ MADE: { "code": code } }), json!([{ "from": ALICE, "to": MADE }]), more))
                .await;
        let call = &ran[0]["calls"][0];
        assert_eq!(call["status"], "0x0");
        assert!(call["error"].to_string().contains(expected), "{call}: expected {expected}");
    }
    // Pays 3 wei to the fee recipient, and 2 gwei a unit of gas for priority.
    let pays = "0x5f5f5f5f6003415af1";
    let call = json!({ "from": ALICE, "to": MADE, "value": "0x3", "maxFeePerGas": "0x174876e800", "maxPriorityFeePerGas": "0x77359400" });
    let more = json!({ "outputs": ["gasUsed", "coinbase"], "validation": true });
    let mut asked = payload(json!({ MADE: { "code": pays } }), json!([call]), more);
    asked["blockStateCalls"][0]["blockOverrides"] = json!({ "feeRecipient": BOB });
    let ran = simulate(&node, asked).await;
    let gas = number(&ran[0]["calls"][0]["gasUsed"]);
    let income = json!({ "fees": format!("{:#x}", gas * 2_000_000_000), "transfers": "3" });
    assert_eq!(ran[0]["coinbase"], income, "{ran}");
}

/// Returns an error's data: its selector, and these words.
fn declared(signature: &str, words: &[u64]) -> String {
    let selector = alloy_primitives::hex::encode(&alloy_primitives::keccak256(signature)[..4]);
    let words: String = words.iter().map(|value| word(*value)[2..].to_owned()).collect();
    format!("{selector}{words}")
}

#[tokio::test]
async fn arguments_of_declared_errors_are_explained_as_long_as_they_are_few() {
    let node = TestNode::quiet();
    // Each of the arrays but the last has 16 elements, which all are the next one: 2^32 values.
    let nested = format!("Many(uint256{})", "[]".repeat(8));
    let level = |last: bool| {
        let start = if last { 7 } else { 16 * 32 };
        [16].into_iter().chain((0..16).map(move |_| start)).collect::<Vec<u64>>()
    };
    let mut many = vec![32];
    (0..8).for_each(|depth| many.extend(level(depth == 7)));
    for (signature, words, expected) in [
        ("None()", vec![], "None()"),
        ("Pair(uint256,(bool,uint8[2]))", vec![7, 1, 2, 3], "Pair(7, (true, [2, 3]))"),
        ("List(uint256[],bool)", vec![64, 1, 2, 5, 6], "List([5, 6], true)"),
        ("Lists(uint8[][2])", vec![32, 64, 64, 1, 9], "Lists([[9], [9]])"),
        ("Text((uint8,string)[])", vec![32, 1, 32, 4, 64, 0], "Text([(4, \"\")])"),
        ("Short(uint256[],bool)", vec![64, 1, 2, 5], "execution reverted"),
        ("Far(uint256[])", vec![1 << 40], "execution reverted"),
        ("Wide(uint256[1000000000000])", vec![1], "execution reverted"),
        (nested.as_str(), many, "execution reverted"),
    ] {
        let state = json!({ MADE: { "code": reverts_with(&declared(signature, &words)) } });
        let more = json!({ "outputs": ["error"], "errors": [format!("error {signature}")] });
        let ran = simulate(&node, payload(state, json!([{ "from": ALICE, "to": MADE }]), more)).await;
        assert_eq!(ran[0]["calls"][0]["error"], expected, "{signature}");
    }
}

#[tokio::test]
async fn what_is_no_declared_error_is_refused() {
    let node = TestNode::quiet();
    let deep = |text: &str| format!("error Deep(uint256{} a)", text.repeat(300_000));
    let item = |ty: &str| json!({ "type": "error", "name": "Item", "inputs": [{ "name": "a", "type": ty }] });
    let tuple =
        json!({ "type": "error", "name": "Item", "inputs": [{ "name": "a", "type": "tuple", "components": [] }] });
    for (item, expected) in [
        (json!(5), "an item of an ABI"),
        (json!("nope"), "\"nope\": expected `(`: expected a text like"),
        (json!("event Sent(uint256 a)"), "expected a text like"),
        (json!("error Odd(uint257 a)"), "Odd: "),
        (json!("error Odd(Custom a)"), "expected types of an ABI"),
        (json!(deep("[]")), "Deep: expected arguments of at most 16 arrays and tuples"),
        (json!(deep("[2]")), "Deep: expected arguments of at most 16 arrays and tuples"),
        (json!(format!("error Deep({}uint256{} a)", "(".repeat(100_000), ")".repeat(100_000))), "expected a text like"),
        (json!("error Empty(()[9] a)"), "expected types of an ABI"),
        (item("uint257"), "Item: "),
        (item(&format!("uint256{}", "[]".repeat(17))), "Item: expected arguments of at most 16"),
        (tuple, "expected types of an ABI"),
        (json!({ "type": "error" }), "name"),
        (json!({ "type": "error", "name": "Item", "inputs": [["a", "uint256"]] }), "expected an object"),
        (json!({ "name": "Item", "inputs": [] }), "missing field `type`: expected an item of an ABI"),
        (json!({ "type": 7, "name": "Item", "inputs": [] }), "expected an item of an ABI"),
    ] {
        let asked = payload(json!({}), json!([]), json!({ "errors": [item] }));
        let error = node.error("/", "presim_simulate", json!([asked, "latest"])).await;
        let message = error["message"].as_str().unwrap();
        assert_eq!(error["code"], -32602, "{message}");
        assert!(message.starts_with("params[0].errors[0]") && message.contains(expected), "{message}: {expected}");
        assert!(message.len() < 600 && !message.contains('\n'), "{message}");
    }
}

#[tokio::test]
async fn a_whole_abi_is_taken_for_its_errors_whatever_its_other_items_are() {
    let node = TestNode::quiet();
    let abi = json!([
        { "type": "function", "name": "f", "inputs": [], "outputs": [], "stateMutability": "view" },
        // Early compilers and those of other languages have other members.
        { "constant": true, "payable": false, "name": "old", "inputs": [], "outputs": [], "type": "function" },
        { "type": "function", "name": "vyper", "inputs": [], "outputs": [], "stateMutability": "view", "gas": 1234 },
        { "type": "event", "name": "NotDeclared", "inputs": [{ "type": "uint257", "indexed": 1 }] },
        { "type": "constructor" },
        { "type": "receive", "stateMutability": 5 },
        { "type": "modifier", "name": "of another language" },
        { "name": "Expired", "inputs": [{ "name": "at", "type": "uint256", "internalType": "uint256" }], "type": "error" },
        "error Other(bool)",
    ]);
    for path in ["/", "/standard"] {
        for (data, expected) in
            [(declared("Expired(uint256)", &[9]), "Expired(9)"), (declared("Other(bool)", &[1]), "Other(true)")]
        {
            let state = json!({ MADE: { "code": reverts_with(&data) } });
            let more = json!({ "outputs": ["error"], "errors": abi });
            let asked = payload(state, json!([{ "from": ALICE, "to": MADE }]), more);
            let ran = node.result(path, "presim_simulate", json!([asked, "latest"])).await;
            assert!(ran[0]["calls"][0]["error"].to_string().contains(expected), "{path}: {ran}");
        }
    }
}

#[tokio::test]
async fn a_bundle_with_conditions_is_whole_or_dropped() {
    let node = TestNode::quiet();
    let state = json!({ MADE: { "code": LOGS }, OTHER: { "code": reverts_with("00") } });
    let calls = json!([{ "from": ALICE, "to": MADE }, { "from": ALICE, "to": OTHER }, { "from": ALICE, "to": MADE }]);
    let when = |when: Value| payload(state.clone(), calls.clone(), json!({ "outputs": ["status"], "when": when }));
    let dropped = |call: usize| json!({ "dropped": { "block": 0, "call": call } });
    let calls_of_all = json!([{ "status": "0x1" }, { "status": "0x0" }, { "status": "0x1" }]);
    let whole = json!([{ "fork": "osaka", "calls": calls_of_all }]);
    for (conditions, expected) in [
        (json!([]), dropped(1)),
        (json!([{ "block": 0, "call": 1, "status": "failure" }]), whole.clone()),
        (json!([{ "block": 0, "call": 1, "status": "any" }]), whole.clone()),
        (json!([{ "block": 0, "call": 1, "status": "success" }]), dropped(1)),
        (
            json!([{ "block": 0, "call": 0, "status": "failure" }, { "block": 0, "call": 1, "status": "any" }]),
            dropped(0),
        ),
    ] {
        assert_eq!(simulate(&node, when(conditions.clone())).await, expected, "{conditions}");
    }
    let free = payload(state, calls, json!({ "outputs": ["status"] }));
    assert_eq!(simulate(&node, free).await, whole, "without conditions, calls may fail");
}

/// Returns code that logs these words with these topics.
fn logs(topics: &[U256], words: &[U256]) -> String {
    let mut code = Vec::new();
    for (at, word) in words.iter().enumerate() {
        // PUSH32 word, PUSH2 offset, MSTORE
        code.extend([&[0x7f], word.to_be_bytes::<32>().as_slice(), &[0x61, 0, 32 * at as u8, 0x52]].concat());
    }
    for topic in topics.iter().rev() {
        code.extend([&[0x7f], topic.to_be_bytes::<32>().as_slice()].concat());
    }
    // PUSH2 length, PUSH0, LOG
    code.extend([0x61, (words.len() >> 3) as u8, (words.len() << 5) as u8, 0x5f, 0xa0 + topics.len() as u8]);
    hex::encode(code)
}

#[tokio::test]
async fn items_of_collections_are_assets_by_their_logs() {
    let node = TestNode::quiet();
    let event = |text: &str| U256::from_be_bytes(keccak256(text).0);
    let of = |address: &str| U256::from_be_bytes(address.parse::<Address>().unwrap().into_word().0);
    let number = U256::from::<u64>;
    let (alice, bob, none) = (of(ALICE), of(BOB), U256::ZERO);
    let single = event("TransferSingle(address,address,address,uint256,uint256)");
    let batch = event("TransferBatch(address,address,address,uint256[],uint256[])");
    let code = [
        logs(&[event("Transfer(address,address,uint256)"), alice, bob, number(7)], &[]),
        logs(&[single, alice, none, bob], &[number(8), number(3)]),
        logs(&[batch, alice, bob, alice], &[64, 160, 2, 8, 9, 2, 1, 5].map(number)),
    ]
    .concat();
    let state = json!({ MADE: { "code": format!("0x{code}") } });
    let more = json!({ "outputs": ["assets"] });
    let ran = simulate(&node, payload(state, json!([{ "from": ALICE, "to": MADE }]), more)).await;
    let item = |kind: &str, id: &str, change: &str| json!({ "type": kind, "token": MADE, "id": id, "change": change });
    let expected = json!({
        BOB: [item("erc721", "0x7", "1"), item("erc1155", "0x8", "2"), item("erc1155", "0x9", "-5")],
        ALICE: [item("erc721", "0x7", "-1"), item("erc1155", "0x8", "1"), item("erc1155", "0x9", "5")],
    });
    assert_eq!(ran[0]["assets"], expected);
}

#[tokio::test]
async fn a_token_is_named_only_if_its_name_is_short_and_told_with_little_gas() {
    let node = TestNode::quiet();
    let of = |address: &str| U256::from_be_bytes(address.parse::<Address>().unwrap().into_word().0);
    let transfer = U256::from_be_bytes(keccak256("Transfer(address,address,uint256)").0);
    let moves = logs(&[transfer, of(ALICE), of(BOB)], &[U256::from(7)]);
    // A question has 4 bytes of data. Its answer is a text of zeros, whose first word is 32.
    let text = |length: u8| format!("60205f5260{length:02x}60205260c05ff3");
    for (answer, told) in [
        (text(64), json!({ "symbol": "\0".repeat(64), "decimals": "0x20" })),
        (text(65), json!({ "decimals": "0x20" })),
        // A loop until the gas is used up.
        (format!("5b61{:04x}56", 8 + moves.len() / 2 + 2), json!({})),
    ] {
        // CALLDATASIZE, PUSH1 4, EQ, PUSH2 question, JUMPI
        let code = format!("0x3660041461{:04x}57{moves}005b{answer}", 8 + moves.len() / 2 + 1);
        let asked = payload(
            json!({ MADE: { "code": code } }),
            json!([{ "from": ALICE, "to": MADE, "gas": "0x186a0" }]),
            json!({ "outputs": ["assets"] }),
        );
        let mut expected = json!({ "type": "erc20", "token": MADE, "change": "7" });
        expected.as_object_mut().unwrap().extend(told.as_object().unwrap().clone());
        assert_eq!(simulate(&node, asked).await[0]["assets"][BOB], json!([expected]), "{answer}");
    }
}

#[tokio::test]
async fn a_signed_transaction_is_checked_and_pays_as_on_the_chain() {
    let node = TestNode::quiet();
    let (signer, from) = (key(3), key(3).address().to_string().to_lowercase());
    let signed = |nonce: u64| raw(TxEip1559 { to: BOB.parse::<Address>().unwrap().into(), ..plain(nonce) }, &signer);
    let asked = |calls: Value| {
        let mut asked = payload(json!({}), calls, json!({ "outputs": ["status", "gasUsed", "stateDiff"] }));
        asked["validation"] = false.into();
        asked
    };
    let ran = simulate(&node, asked(json!([signed(0), { "from": ALICE, "to": BOB }, signed(1)]))).await;
    assert_eq!(items(&ran[0]["calls"]).iter().filter(|call| call["status"] == "0x1").count(), 3, "{ran}");
    let balance = |end: &str| ran[0]["stateDiff"][&from]["balance"][end].as_str().unwrap().parse::<U256>().unwrap();
    let least = U256::from(2 * (21_000_u64 * 1_000_000_000 + 1));
    assert!(balance("from") - balance("to") > least, "it pays its tip and the base fee: {ran}");
    for (calls, expected) in [
        (json!([signed(1)]), "nonce too high"),
        (json!([signed(0), signed(0)]), "nonce too low"),
        (json!(["0x02"]), "params[0].blockStateCalls[0].calls[0]: not a signed transaction"),
        (json!([raw(TxEip1559 { chain_id: 1, ..plain(0) }, &signer)]), "invalid chain id"),
    ] {
        let error = node.error("/", "presim_simulate", json!([asked(calls), "latest"])).await;
        assert!(error["message"].as_str().unwrap().contains(expected), "{error}: expected {expected}");
    }
    // No block has room for so many blobs.
    let mut hash = B256::repeat_byte(5);
    hash[0] = 1;
    let blobs: Vec<_> = (0..9).map(|nonce| raw(blob_tx(nonce, vec![hash; 6]), &signer)).collect();
    let error = node.error("/", "presim_simulate", json!([asked(json!(blobs)), "latest"])).await;
    assert!(error["message"].as_str().unwrap().contains("blob gas limit reached"), "{error}");
    assert_eq!(simulate(&node, asked(json!([blobs[0]]))).await[0]["calls"][0]["status"], "0x1");
}

#[tokio::test]
async fn frames_and_reads_are_those_of_the_calls() {
    let node = TestNode::quiet();
    let state = json!({ MADE: { "code": LOGS } });
    // Asks ALPHA for its supply.
    let calls = json!([{ "from": ALICE, "to": MADE }, { "from": ALICE, "to": ALPHA, "data": "0x18160ddd" }]);
    let more = json!({ "outputs": ["trace", "readSet"] });
    let ran = simulate(&node, payload(state.clone(), calls.clone(), more)).await;
    for (index, call) in items(&calls).iter().enumerate() {
        let options = json!({ "tracer": "callTracer", "stateOverrides": state });
        let traced = node.result("/", "debug_traceCall", json!([call, "latest", options])).await;
        let mut frame = ran[0]["calls"][index]["trace"].clone();
        frame["gas"] = traced["gas"].clone();
        assert_eq!(frame, traced);
    }
    // The frames have their logs if those are asked for, too.
    let with_logs =
        simulate(&node, payload(state.clone(), calls.clone(), json!({ "outputs": ["trace", "logs"] }))).await;
    let options = json!({ "tracer": "callTracer", "tracerConfig": { "withLog": true }, "stateOverrides": state });
    let traced = node.result("/", "debug_traceCall", json!([calls[0], "latest", options])).await;
    assert_eq!(with_logs[0]["calls"][0]["trace"]["logs"], traced["logs"]);
    assert!(!items(&traced["logs"]).is_empty(), "{traced}");
    let reads = &ran[0]["readSet"];
    assert_eq!(reads["everything"], false, "{reads}");
    let token = &reads["accounts"][ALPHA];
    assert_eq!((&token["parts"], &token["slots"]), (&json!(["code"]), &json!([word(2)])), "{reads}");
    assert!(!items(&reads["accounts"][MADE]["parts"]).contains(&json!("code")), "an override is no read: {reads}");
    assert_eq!(reads["blockHashes"], json!([]));
}
