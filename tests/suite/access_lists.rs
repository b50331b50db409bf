//! Access lists of `presim_simulate` and of `eth_createAccessList`: accounts and slots that would be cold (EIP-2929).

use alloy_primitives::{Address, B256, U256, address, hex};
use alloy_signer::SignerSync;
use serde_json::{Value, json};

use crate::support::{TestNode, number};

/// An account that an override gives code.
const MADE: Address = address!("0x00000000000000000000000000000000000c0de0");
/// An account whose code is delegated to [`TARGET`].
const DELEGATED: Address = address!("0x00000000000000000000000000000000000c0de1");
const TARGET: Address = address!("0x00000000000000000000000000000000000c0de2");
/// An account that only reverts, after it has looked at [`OTHER`].
const REVERTS: Address = address!("0x00000000000000000000000000000000000c0de3");
const OTHER: Address = address!("0x0000000000000000000000000000000000000101");

/// Code of a contract's creation: without code, with a write of slot 9, and one that reverts.
const EMPTY: &str = "5f5ff3";
const WRITES: &str = "60016009555f5ff3";
const FAILS: &str = "5f5ffd";

/// Returns code that creates a contract with this initial code (CREATE2), and leaves its address on the stack.
fn creates(init: &str) -> String {
    let length = init.len() / 2;
    // PUSH init, PUSH0, MSTORE; then the salt, the length, the offset and the value.
    format!("{:02x}{init}5f525f60{length:02x}60{:02x}5ff5", 0x5f + length, 32 - length)
}

/// Returns the address at which [`MADE`] creates such a contract.
fn created(init: &str) -> Address {
    MADE.create2_from_code(B256::ZERO, hex::decode(init).expect("hex"))
}

/// Returns code that calls an account, and drops the result.
fn calls(to: Address) -> String {
    format!("5f5f5f5f5f{}5af150", pushes(to))
}

fn pushes(address: Address) -> String {
    format!("73{}", hex::encode(address))
}

/// Calls the account whose address is on the stack, then asks for its balance and its code.
const USES: &str = "5f5f5f5f5f855af150803150803b50";

fn item(address: Address, slots: &[u64]) -> Value {
    let slots: Vec<B256> = slots.iter().map(|slot| B256::from(U256::from(*slot))).collect();
    json!({ "address": address, "storageKeys": slots })
}

async fn gas(node: &TestNode, call: &Value, state: &Value) -> (u64, Value) {
    let payload = json!({
        "blockStateCalls": [{ "stateOverrides": state, "calls": [call] }],
        "outputs": ["status", "gasUsed", "accessList"],
    });
    let ran = node.result("/", "presim_simulate", json!([payload, "pending"])).await;
    let call = &ran[0]["calls"][0];
    assert_eq!(call["status"], "0x1", "{call}");
    (number(&call["gasUsed"]), call["accessList"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn both_access_lists_have_what_would_be_cold_and_each_account_of_them_saves_gas() {
    let node = TestNode::quiet();
    let signers = &node.node.info().accounts;
    let (sender, authority) = (signers[1].address(), signers[3].address());
    let authorization = {
        let unsigned = alloy_eips::eip7702::Authorization { chain_id: U256::ZERO, address: TARGET, nonce: 0 };
        let signature = signers[3].sign_hash_sync(&unsigned.signature_hash()).expect("it signs");
        json!([unsigned.into_signed(signature)])
    };
    let looks = |address: Address| format!("{}3150", pushes(address));
    let reads = |slot: u8| format!("60{slot:02x}5450");
    let (made, none) = (json!(MADE), json!([]));
    for (what, to, code, expected) in [
        ("a contract that the call creates", &made, creates(EMPTY) + USES, none.clone()),
        ("a creation that failed", &made, creates(FAILS) + "50" + &looks(created(FAILS)), none.clone()),
        (
            "a contract that was looked at before its creation",
            &made,
            looks(created(EMPTY)) + &creates(EMPTY) + USES,
            json!([item(created(EMPTY), &[])]),
        ),
        ("slots of a new contract", &made, creates(WRITES) + USES, none.clone()),
        (
            "slots of a new contract that was looked at before",
            &made,
            looks(created(WRITES)) + &creates(WRITES) + USES,
            json!([item(created(WRITES), &[])]),
        ),
        ("slots of the call's own new contract", &Value::Null, WRITES.to_owned(), none.clone()),
        ("slots of the callee", &made, reads(3) + &reads(2), json!([item(MADE, &[2, 3])])),
        ("the creation of the call itself", &Value::Null, creates(EMPTY) + "3031503331505f5ff3", none.clone()),
        ("the callee's delegate", &json!(DELEGATED), looks(TARGET) + &looks(OTHER), json!([item(OTHER, &[])])),
        (
            "a call of a delegated account",
            &made,
            calls(DELEGATED) + &looks(TARGET),
            json!([item(DELEGATED, &[]), item(TARGET, &[])]),
        ),
        ("the authority", &json!(authority), looks(authority) + &looks(TARGET), none.clone()),
        ("an account that is only loaded for its authority", &made, String::new(), none.clone()),
        ("the fee recipient", &made, "413150".to_owned(), none.clone()),
        ("a precompile and the sender", &made, looks(Address::with_last_byte(1)) + &looks(sender), none.clone()),
        (
            "what a frame looked at that reverted",
            &made,
            calls(REVERTS) + &looks(OTHER),
            json!([item(OTHER, &[]), item(REVERTS, &[])]),
        ),
    ] {
        let code = format!("0x{code}");
        let is_made = *to == made;
        let state = json!({
            MADE.to_string(): { "code": if is_made { &code } else { "0x" } },
            TARGET.to_string(): { "code": if is_made { "0x" } else { &code } },
            DELEGATED.to_string(): { "code": format!("0xef0100{}", hex::encode(TARGET)) },
            REVERTS.to_string(): { "code": format!("0x{}5f5ffd", looks(OTHER)) },
        });
        let mut call = json!({ "from": sender, "to": to, "gas": "0x2dc6c0" });
        if to.is_null() {
            call["data"] = code.into();
        }
        if what.contains("authority") {
            call["authorizationList"] = authorization.clone();
        }
        let (without, listed) = gas(&node, &call, &state).await;
        assert_eq!(listed, expected, "{what}");
        let other = node.result("/", "eth_createAccessList", json!([call, "pending", state])).await;
        assert_eq!((&other["accessList"], other.get("error")), (&expected, None), "{what}");

        call["accessList"] = listed.clone();
        let (with, again) = gas(&node, &call, &state).await;
        assert_eq!((with, &again), (number(&other["gasUsed"]), &listed), "{what}: with the list");
        // A slot of an account that is warm anyway is listed too, although its account costs more than it saves.
        let accounts = listed.as_array().expect("a list");
        if accounts.iter().all(|one| one["storageKeys"] == json!([])) {
            for at in 0..accounts.len() {
                let mut fewer = accounts.clone();
                fewer.remove(at);
                call["accessList"] = fewer.into();
                assert!(with < gas(&node, &call, &state).await.0, "{what}: {} saves gas", accounts[at]);
            }
            assert!(with <= without, "{what}: {with} and {without}");
        }
    }
}
