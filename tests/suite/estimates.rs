//! `eth_estimateGas` and `eth_createAccessList` on the devnet's trading world.

use alloy_primitives::{Address, Bytes, U256, hex};
use alloy_signer::SignerSync;
use alloy_sol_types::{SolCall, sol};
use presim::testing::source::devnet::world::{dev_genesis, dev_signers};
use serde_json::{Value, json};

use crate::support::{CODE_AT, TestNode, number};

sol! {
    interface IRouter {
        function swapExactTokensForTokens(uint256 amountIn, uint256 amountOutMin, address[] calldata path, address to, uint256 deadline) external returns (uint256[] memory amounts);
    }
}

/// Another address without an account, where tests put code.
const OTHER: &str = "0x00000000000000000000000000000000000c0de1";
/// An address that stays without an account.
const NOBODY: &str = "0x00000000000000000000000000000000000000fe";
/// The gas limit of a transaction (EIP-7825).
const TX_GAS_CAP: u64 = 1 << 24;
/// Code that loops forever.
const LOOP: &str = "0x5b5f56";
/// Code that writes five slots, for more than 100,000 gas.
const FIVE_SLOTS: &str = "0x6001600155600160025560016003556001600455600160055500";

/// Returns a swap of 1,000 ALPHA for BETA by the second account, with this deadline.
fn swap(node: &TestNode, deadline: U256) -> Value {
    let world = node.node.info().trading.expect("the devnet has a trading world");
    let trader = node.account(1);
    let call = IRouter::swapExactTokensForTokensCall {
        amountIn: U256::from(1_000_u128 * 10_u128.pow(18)),
        amountOutMin: U256::ZERO,
        path: vec![world.alpha, world.beta],
        to: trader,
        deadline,
    };
    json!({"from": trader, "to": world.router, "data": Bytes::from(call.abi_encode())})
}

/// Returns code that calls [`OTHER`] with all but 1/64 of its gas (EIP-150) and reverts if the call fails.
fn forwarding() -> String {
    format!("0x5f5f5f5f5f73{}5af115602157005b5f5ffd", OTHER.trim_start_matches("0x"))
}

fn with(mut object: Value, field: &str, value: Value) -> Value {
    object[field] = value;
    object
}

/// Returns the gas that the call uses, after refunds, when its limit is not a constraint.
async fn gas_used(node: &TestNode, call: &Value, state: &Value) -> u64 {
    let block = json!({"calls": [call], "stateOverrides": state});
    let blocks = node.result("/", "eth_simulateV1", json!([{"blockStateCalls": [block]}, "pending"])).await;
    assert_eq!(blocks[0]["calls"][0]["status"], "0x1", "{blocks}");
    number(&blocks[0]["calls"][0]["gasUsed"])
}

/// Returns the estimate and checks by `eth_call` that it suffices and that one gas less does not.
async fn exact_estimate(node: &TestNode, call: &Value, state: &Value) -> u64 {
    let estimate = number(&node.result("/", "eth_estimateGas", json!([call, "pending", state])).await);
    let params = |gas: u64| json!([with(call.clone(), "gas", json!(format!("{gas:#x}"))), "pending", state]);
    node.result("/", "eth_call", params(estimate)).await;
    node.error("/", "eth_call", params(estimate - 1)).await;
    estimate
}

#[tokio::test(flavor = "multi_thread")]
async fn an_estimate_is_the_smallest_limit_that_succeeds() {
    let node = TestNode::quiet();
    let (a1, a2) = (node.account(1), node.account(2));
    // The last field is whether the estimate exceeds the gas used.
    let cases = [
        ("a transfer", json!({"from": a1, "to": a2, "value": "0x1"}), json!({}), false),
        // The pair resets its lock, which gives a refund.
        ("a swap", swap(&node, U256::MAX), json!({}), true),
        ("a refund", json!({"to": CODE_AT}), json!({CODE_AT: {"code": "0x5f5f5500", "state": {"0x0": "0x1"}}}), true),
        (
            "gas that a callee does not get",
            json!({"to": CODE_AT}),
            json!({CODE_AT: {"code": forwarding()}, OTHER: {"code": FIVE_SLOTS}}),
            true,
        ),
        // The init code returns 32 bytes as code.
        ("a creation", json!({"from": a1, "to": null, "data": "0x60205ff3"}), json!({}), false),
        (
            "calldata at the floor's price",
            json!({"to": NOBODY, "data": format!("0x{}", "ff".repeat(1_000))}),
            json!({}),
            false,
        ),
    ];
    for (what, call, state, refunds_or_reserves) in cases {
        let estimate = exact_estimate(&node, &call, &state).await;
        let used = gas_used(&node, &call, &state).await;
        assert_eq!(estimate > used, refunds_or_reserves, "{what}: estimate {estimate}, used {used}");
        assert!(estimate >= used, "{what}: estimate {estimate}, used {used}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn estimates_are_what_the_gas_schedule_says() {
    let node = TestNode::quiet();
    let call_to = |fields: Value| {
        let mut call = json!({"from": node.account(1), "to": node.account(2)});
        call.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        call
    };
    let blob = format!("0x01{}", "00".repeat(31));
    let authorization = {
        let unsigned = alloy_eips::eip7702::Authorization { chain_id: U256::ZERO, address: Address::ZERO, nonce: 0 };
        let signature = node.node.info().accounts[3].sign_hash_sync(&unsigned.signature_hash()).unwrap();
        serde_json::to_value(unsigned.into_signed(signature)).unwrap()
    };
    let cases = [
        ("a transfer", call_to(json!({"value": "0x1"})), 21_000),
        (
            "EIP-2930: an address and a slot",
            call_to(json!({"accessList": [{"address": NOBODY, "storageKeys": [format!("0x{}", "00".repeat(32))]}]})),
            21_000 + 2_400 + 1_900,
        ),
        (
            "EIP-4844: blobs are paid for apart",
            call_to(json!({"blobVersionedHashes": [blob], "maxFeePerBlobGas": "0x1"})),
            21_000,
        ),
        // Part of this is refunded, but the gas limit must cover all of it.
        ("EIP-7702: an authorization", call_to(json!({"authorizationList": [authorization]})), 21_000 + 25_000),
        ("EIP-7623: the floor", call_to(json!({"data": format!("0x{}", "ff".repeat(1_000))})), 21_000 + 40 * 1_000),
        ("EIP-2028: sixteen a byte, and the floor is more", call_to(json!({"data": "0xff"})), 21_000 + 40),
        // 32,000 for the creation, 2 per word of init code, the calldata, the execution, and 200 per deployed byte.
        (
            "EIP-3860: a creation",
            json!({"from": node.account(1), "to": null, "data": "0x60205ff3"}),
            21_000 + 32_000 + 2 + 4 * 16 + 3 + 2 + 3 + 32 * 200,
        ),
    ];
    for (what, call, expected) in cases {
        assert_eq!(exact_estimate(&node, &call, &json!({})).await, expected, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_estimate_sees_the_overrides_of_block_and_state() {
    let node = TestNode::quiet();
    // Reverts unless it is block 1,000,000: NUMBER, PUSH3, EQ, JUMPI, revert.
    let state = json!({CODE_AT: {"code": "0x43620f424014600c575f5ffd5b00"}});
    let call = json!({"to": CODE_AT});
    assert_eq!(node.error("/", "eth_estimateGas", json!([call, "pending", state])).await["code"], -32000);
    let block = json!({"number": "0xf4240"});
    let estimate = node.result("/", "eth_estimateGas", json!([call, "pending", state, block])).await;
    assert_eq!(number(&estimate), 21_000 + 2 + 3 + 3 + 3 + 10 + 1);

    // An override gives the sender its funds, and the call has a gas price.
    let call = json!({"from": NOBODY, "to": node.account(1), "value": "0x1", "gasPrice": "0x77359400"});
    let rich = json!({NOBODY: {"balance": "0xde0b6b3a7640000"}});
    assert_eq!(number(&node.result("/", "eth_estimateGas", json!([call, "pending", rich])).await), 21_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_probes_of_an_estimate_leave_nothing_behind() {
    let node = TestNode::quiet();
    // Does nothing if its slot is set; otherwise sets it and needs gas that a search must find.
    let code = format!("0x5f5415600757005b60015f55{}", &forwarding()[2..].replace("602157005b", "602d57005b"));
    let state = json!({CODE_AT: {"code": code}, OTHER: {"code": FIVE_SLOTS}});
    let call = json!({"to": CODE_AT});
    let first = exact_estimate(&node, &call, &state).await;
    assert!(first > 21_000 + 6 * 22_100, "the slots were written: {first}");
    assert_eq!(exact_estimate(&node, &call, &state).await, first);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_block_the_estimate_is_at_latest_on_standard() {
    let node = TestNode::quiet();
    // Succeeds only in the block being built: NUMBER, PUSH1 the open block's, EQ.
    let open = number(&node.block("pending").await["number"]);
    assert!(open < 0x100);
    let state = json!({CODE_AT: {"code": format!("0x4360{open:02x}14600a575f5ffd5b00")}});
    let call = json!({"to": CODE_AT});
    node.result("/standard", "eth_estimateGas", json!([call, "pending", state])).await;
    assert_eq!(node.error("/standard", "eth_estimateGas", json!([call, null, state])).await["code"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_succeed_is_refused_in_geths_words() {
    let node = TestNode::quiet();
    let a1 = node.account(1);
    let code = |code: &str| json!({CODE_AT: {"code": code}});
    let call = json!({"to": CODE_AT});
    let poor = json!({"from": NOBODY, "to": a1, "gasPrice": "0x77359400"});
    // The price of 20,999 gas at 2 gwei.
    let almost = json!({NOBODY: {"balance": format!("{:#x}", 20_999_u64 * 2_000_000_000)}});
    let blobs = json!({"from": a1, "to": NOBODY, "gasPrice": "0x77359400", "maxFeePerBlobGas": format!("{:#x}", 10_u128.pow(18)), "blobVersionedHashes": [format!("0x01{}", "00".repeat(31))]});
    let cases = [
        ("a loop", call.clone(), code(LOOP), json!({}), format!("gas required exceeds allowance ({TX_GAS_CAP})")),
        (
            "too little gas",
            with(call.clone(), "gas", json!("0x7530")),
            code(LOOP),
            json!({}),
            "gas required exceeds allowance (30000)".into(),
        ),
        (
            "a small block",
            call.clone(),
            code(LOOP),
            json!({"gasLimit": "0x61a8"}),
            "gas required exceeds allowance (25000)".into(),
        ),
        ("no opcode", call.clone(), code("0xfe"), json!({}), "invalid opcode: INVALID".into()),
        ("no funds", poor.clone(), json!({}), json!({}), "insufficient funds for transfer".into()),
        ("funds for less", poor, almost, json!({}), "gas required exceeds allowance (20999)".into()),
        (
            "value of all",
            with(
                json!({"from": a1, "to": NOBODY, "gasPrice": "0x77359400"}),
                "value",
                json!(format!("{:#x}", 10_000 * 10_u128.pow(18))),
            ),
            json!({}),
            json!({}),
            "insufficient funds for transfer".into(),
        ),
        ("dear blobs", blobs, json!({}), json!({}), "insufficient funds for gas * price + value".into()),
        (
            "a low price",
            json!({"from": a1, "to": NOBODY, "maxFeePerGas": "0x1"}),
            json!({}),
            json!({}),
            format!(
                "failed with {TX_GAS_CAP} gas: max fee per gas less than block base fee: address {a1}, maxFeePerGas: 1"
            ),
        ),
        (
            "another chain",
            json!({"to": a1, "chainId": "0x1"}),
            json!({}),
            json!({}),
            "chainId does not match node's (have=1, want=31337)".into(),
        ),
    ];
    for (what, call, state, block, expected) in cases {
        for path in ["/", "/standard"] {
            let error = node.error(path, "eth_estimateGas", json!([call, "pending", state, block])).await;
            assert_eq!(error["code"], -32000, "{what} on {path}: {error}");
            let message = error["message"].as_str().unwrap();
            assert!(message.starts_with(&expected), "{what} on {path}: {message}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_estimate_that_reverts_bears_the_reason_and_the_data() {
    let node = TestNode::quiet();
    let params = json!([swap(&node, U256::ZERO), "pending"]);
    let mut data = hex!("08c379a0").to_vec();
    data.extend(U256::from(32).to_be_bytes::<32>());
    data.extend(U256::from(15).to_be_bytes::<32>());
    data.extend(b"Router: expired\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    let data = format!("0x{}", hex::encode(data));
    assert_eq!(
        node.error("/", "eth_estimateGas", params.clone()).await,
        json!({"code": -32000, "message": "execution reverted", "data": data})
    );
    assert_eq!(
        node.error("/standard", "eth_estimateGas", params).await,
        json!({"code": 3, "message": "execution reverted: Router: expired", "data": data})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_parameters_are_named() {
    let node = TestNode::quiet();
    let call = json!({"to": NOBODY});
    let cases = [
        (json!([]), "params: "),
        (json!([{"from": NOBODY}, "latest"]), "params[0].to: missing"),
        (json!([with(call.clone(), "gas", json!("21000")), "latest"]), "params[0].gas: "),
        (json!([with(call.clone(), "gasLimit", json!("0x1")), "latest"]), "params[0].gasLimit: unknown field"),
        (json!([call, "newest"]), "params[1]: "),
        (json!([call, "latest", {"0x1": {}}]), "params[2]"),
        (
            json!([call, "latest", {}, {"beaconRoot": format!("0x{}", "00".repeat(32))}]),
            "params[3].beaconRoot: not supported by eth_",
        ),
        (json!([call, "latest", {}, {}, 1]), "params: "),
    ];
    for method in ["eth_estimateGas", "eth_createAccessList"] {
        for (params, place) in &cases {
            let error = node.error("/", method, params.clone()).await;
            assert_eq!(error["code"], -32602, "{method} {params}: {error}");
            assert!(error["message"].as_str().unwrap().starts_with(place), "{method} {params}: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_end_at_the_deadline() {
    // Before Osaka, only the node's cap bounds the gas of a call. This one loops for minutes.
    let mut genesis = dev_genesis(&dev_signers().unwrap(), 1_000);
    genesis.config.osaka_time = None;
    let cap = u64::MAX.to_string();
    let node = TestNode::on(&genesis, &["--feed", "static", "--deadline-ms", "50", "--gas-cap", &cap]);
    let call = json!({"to": CODE_AT, "gas": format!("{:#x}", u64::MAX / 2)});
    for method in ["eth_estimateGas", "eth_createAccessList"] {
        let error = node.error("/", method, json!([call, "latest", {CODE_AT: {"code": LOOP}}])).await;
        assert_eq!(error["code"], -32016, "{error}");
    }
}

// eth_createAccessList.

#[tokio::test(flavor = "multi_thread")]
async fn the_access_list_of_a_swap_is_stable_and_saves_gas() {
    let node = TestNode::quiet();
    let world = node.node.info().trading.expect("the devnet has a trading world");
    let call = swap(&node, U256::MAX);
    let first = node.result("/", "eth_createAccessList", json!([call, "pending"])).await;
    let addresses: Vec<Address> = serde_json::from_value(
        first["accessList"].as_array().unwrap().iter().map(|item| item["address"].clone()).collect(),
    )
    .unwrap();
    assert!(addresses.is_sorted() && addresses.contains(&world.alpha) && addresses.contains(&world.beta), "{first}");
    assert!(!addresses.contains(&world.router) && !addresses.contains(&node.account(1)), "{first}");
    for item in first["accessList"].as_array().unwrap() {
        let keys: Vec<U256> = serde_json::from_value(item["storageKeys"].clone()).unwrap();
        assert!(keys.is_sorted(), "{first}");
    }
    assert_eq!(first.get("error"), None);

    let listed = with(call.clone(), "accessList", first["accessList"].clone());
    assert_eq!(node.result("/", "eth_createAccessList", json!([listed, "pending"])).await, first);
    let (without, with) = (gas_used(&node, &call, &json!({})).await, gas_used(&node, &listed, &json!({})).await);
    assert_eq!(number(&first["gasUsed"]), with);
    assert!(with < without, "{with} and {without}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_warm_anyway_is_listed_for_slots_alone() {
    let node = TestNode::quiet();
    let a1 = node.account(1);
    let list = async |code: &str, call: Value| {
        let params = json!([call, "pending", {CODE_AT: {"code": code}}]);
        node.result("/standard", "eth_createAccessList", params).await["accessList"].take()
    };
    // BALANCE of the sender, the contract itself and a precompile; below, also of another account.
    let looks = "0x333150303150600131506000";
    let call = json!({"from": a1, "to": CODE_AT});
    assert_eq!(list(looks, call.clone()).await, json!([]));
    let somebody = json!([{"address": "0x0000000000000000000000000000000000000101", "storageKeys": []}]);
    assert_eq!(list("0x333150303150600131506101013150", call.clone()).await, somebody);
    // A slot of the contract itself.
    let slot = |slot: u8| format!("0x{slot:064x}");
    assert_eq!(list("0x60075450", call.clone()).await, json!([{"address": CODE_AT, "storageKeys": [slot(7)]}]));
    // Of a given list, warm addresses without slots are removed; the rest is sorted and has no duplicates.
    let brought = json!([
        {"address": CODE_AT, "storageKeys": []},
        {"address": OTHER, "storageKeys": [slot(2), slot(1), slot(2)]},
        {"address": NOBODY, "storageKeys": []},
    ]);
    let expected = json!([
        {"address": NOBODY, "storageKeys": []},
        {"address": OTHER, "storageKeys": [slot(1), slot(2)]},
    ]);
    assert_eq!(list(looks, with(call.clone(), "accessList", brought)).await, expected);
    // An authority (EIP-7702) is loaded before the call begins.
    let authority = node.account(3);
    let authorization = {
        let unsigned = alloy_eips::eip7702::Authorization { chain_id: U256::ZERO, address: Address::ZERO, nonce: 0 };
        let signature = node.node.info().accounts[3].sign_hash_sync(&unsigned.signature_hash()).unwrap();
        serde_json::to_value(unsigned.into_signed(signature)).unwrap()
    };
    let look = format!("0x73{}3150", hex::encode(authority));
    assert_eq!(list(&look, call.clone()).await, json!([{"address": authority, "storageKeys": []}]));
    assert_eq!(list(&look, with(call, "authorizationList", json!([authorization]))).await, json!([]));
    // The created contract is warm, and is not listed for its slots either.
    let created = a1.create(number(&node.result("/", "eth_getTransactionCount", json!([a1, "pending"])).await));
    let creation = |code: &str| json!({"from": a1, "data": code});
    assert_eq!(list("0x", creation("0x3031503331505f5ff3")).await, json!([]));
    assert_eq!(list("0x", creation("0x60016009555f5ff3")).await, json!([]));
    let item = json!([{"address": created, "storageKeys": [slot(9)]}]);
    assert_eq!(list("0x", with(creation("0x60016009555f5ff3"), "accessList", item)).await, json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_changes_what_is_touched_is_followed_to_its_end() {
    let node = TestNode::quiet();
    // Reads slot 0, and slot 1 if slot 0 was warm, that is if the GAS before less the GAS after is under 1,000.
    let code = "0x5a5f54505a90036103e811600f57005b60015450";
    let params = json!([{"to": CODE_AT}, "pending", {CODE_AT: {"code": code}}]);
    let result = node.result("/", "eth_createAccessList", params).await;
    let slot = |slot: u8| format!("0x{slot:064x}");
    assert_eq!(result["accessList"], json!([{"address": CODE_AT, "storageKeys": [slot(0), slot(1)]}]));
    let listed = json!({"to": CODE_AT, "accessList": result["accessList"]});
    assert_eq!(number(&result["gasUsed"]), gas_used(&node, &listed, &json!({CODE_AT: {"code": code}})).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_of_a_call_that_fails_bears_the_error() {
    let node = TestNode::quiet();
    let slot = |slot: u8| format!("0x{slot:064x}");
    let cases = [
        ("0x600354505f5ffd", "execution reverted"),
        ("0x60035450fe", "invalid opcode: INVALID"),
        ("0x600354505b600556", "invalid jump destination"),
        ("0x600354505b600456", "out of gas"),
    ];
    for (code, error) in cases {
        for path in ["/", "/standard"] {
            let params = json!([{"to": CODE_AT, "gas": "0x186a0"}, "latest", {CODE_AT: {"code": code}}]);
            let result = node.result(path, "eth_createAccessList", params).await;
            assert_eq!(result["error"], error, "{path}: {result}");
            assert_eq!(result["accessList"], json!([{"address": CODE_AT, "storageKeys": [slot(3)]}]), "{path}");
            assert!(number(&result["gasUsed"]) > 21_000, "{path}: {result}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_cannot_begin_has_no_access_list() {
    let node = TestNode::quiet();
    let cases = [
        (json!({"to": NOBODY, "gas": "0x5207"}), "intrinsic gas too low"),
        (json!({"from": NOBODY, "to": NOBODY, "value": "0x1"}), "insufficient funds"),
    ];
    for (call, expected) in cases {
        let error = node.error("/", "eth_createAccessList", json!([call, "pending"])).await;
        assert_eq!(error["code"], -32000, "{error}");
        assert!(error["message"].as_str().unwrap().contains(expected), "{error}");
    }
}
