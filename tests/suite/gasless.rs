//! X Layer's gasless transactions: a contract says which transactions pay nothing.

use alloy_consensus::{TxEip1559, TxLegacy, TxReceipt};
use alloy_eips::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, keccak256};
use presim::testing::{chain::ChainTx, engine::BlockEnd};
use serde_json::{Value, json};

use crate::{
    lagoon::{OpChain, balance, ether, wei},
    live::built::{GASLESS_CONTRACT, SOMEBODY},
    op_chain::{ATTRIBUTED, BASE_FEE_VAULT, L1_FEE_VAULT, OPERATOR_FEE_VAULT, SEQUENCER_FEE_VAULT, config, post_exec},
    support::{TestNode, hex, items, number},
};

/// Says what gas limit is allowed: the value of the slot `keccak(input) ^ recipient`, for whoever is the system and uses the right
/// selector. Writes to a slot and a log before, neither of which may stay.
const CONTRACT_CODE: &str = concat!(
    "0x60015f555f5fa0",
    // v = sload(keccak(input) ^ recipient)
    "6044358060645f375f206004351854",
    // v *= (caller == system) * (selector == 0xbad12ebe)
    "3373fffffffffffffffffffffffffffffffffffffffe14025f3560e01c63bad12ebe1402",
    // return (v != 0, v)
    "80602052",
    "15155f52",
    "60405ff3",
);
/// A contract that stores the base fee, plus one, in slot 0, and clears slot 1, which refunds gas.
const WITNESS: Address = Address::repeat_byte(0xbb);
const WITNESS_CODE: &str = "0x486001015f555f600155";
/// The input of the transactions to [`WITNESS`].
const INPUT: [u8; 3] = [1, 2, 3];

/// Returns an account of the contract that allows these limits, each for a recipient and an input.
pub fn contract(allowed: &[(Address, &[u8], u64)]) -> Value {
    let slot = |recipient: &Address, input: &[u8]| keccak256(input) ^ recipient.into_word();
    let word = |gas: u64| json!(B256::from(U256::from(gas)));
    let storage = allowed.iter().map(|(recipient, input, gas)| (slot(recipient, input).to_string(), word(*gas)));
    let storage: serde_json::Map<String, Value> = storage.collect();
    json!({ "balance": "0x0", "code": CONTRACT_CODE, "storage": storage })
}

/// Returns a chain with this id, up to this fork, with this account in the contract's place.
fn chain(chain_id: u64, last: &str, contract: &Value) -> OpChain {
    let one = format!("{:#066x}", 1);
    let witness = json!({ "balance": "0x0", "code": WITNESS_CODE, "storage": { one.clone(): one } });
    OpChain::of(config(chain_id, last), json!({ GASLESS_CONTRACT.to_string(): contract, WITNESS.to_string(): witness }))
}

/// Returns a chain on which transfers to somebody are gasless up to 21,000 gas, and those to the witness up to 70,000.
fn x_layer(chain_id: u64, last: &str) -> OpChain {
    chain(chain_id, last, &contract(&[(SOMEBODY, &[], 21_000), (WITNESS, &INPUT, 70_000)]))
}

fn call(chain: &OpChain, to: TxKind, input: &[u8], gas_limit: u64, price: u128) -> TxEip1559 {
    let (chain_id, input) = (chain.spec.chain_id(), Bytes::copy_from_slice(input));
    TxEip1559 { chain_id, gas_limit, max_fee_per_gas: price, to, input, ..TxEip1559::default() }
}

/// Executes a block of the L1 attributes and these transactions.
fn execute(chain: &OpChain, transactions: impl IntoIterator<Item = ChainTx>) -> Result<BlockEnd, String> {
    chain.execute(SEQUENCER_FEE_VAULT, [ATTRIBUTED.deposit()].into_iter().chain(transactions).collect())
}

/// Returns the gas that the transaction at `index` has used.
fn used(executed: &BlockEnd, index: usize) -> u64 {
    let cumulative = |at: usize| executed.receipts[at].cumulative_gas_used();
    cumulative(index) - cumulative(index - 1)
}

#[test]
fn a_gasless_transaction_pays_nothing_and_nobody_gets_anything() {
    for chain_id in [196, 1952] {
        let chain = x_layer(chain_id, "jovian");
        let transfer = TxEip1559 { value: wei(5), ..call(&chain, SOMEBODY.into(), &[], 21_000, 0) };
        let legacy = TxLegacy {
            chain_id: Some(chain_id),
            gas_limit: 70_000,
            to: WITNESS.into(),
            input: INPUT.into(),
            ..TxLegacy::default()
        };
        let (transfer, witness) = (chain.sign(0, transfer), chain.sign(1, legacy));
        let executed = execute(&chain, [transfer, witness]).expect("it is valid");
        assert_eq!(balance(&executed, chain.address(0)), ether(100) - wei(5));
        assert_eq!(balance(&executed, chain.address(1)), ether(100));
        for nothing in [SEQUENCER_FEE_VAULT, BASE_FEE_VAULT, L1_FEE_VAULT, OPERATOR_FEE_VAULT] {
            assert_eq!(balance(&executed, nothing), U256::ZERO, "{nothing}");
        }
        for who in [0, 1] {
            assert_eq!(executed.world.account(&chain.address(who)).unwrap().nonce, 1);
        }
        let slot = |of: Address, slot: u64| executed.world.account(&of).unwrap().slot(&wei(slot));
        assert_eq!((slot(WITNESS, 0), slot(WITNESS, 1)), (wei(1), wei(0)), "BASEFEE is zero");
        assert_eq!(slot(GASLESS_CONTRACT, 0), wei(0), "what the contract changes when it is asked is discarded");
        assert!(executed.receipts.iter().all(|receipt| receipt.logs().is_empty()), "and what it logs");
        // 21,000 and 3 bytes of data; a word from zero and one to zero, both cold, and six cheap opcodes. What is cleared refunds.
        let gas = 21_000 + 3 * 16 + 22_100 + 5_000 + 15;
        assert_eq!((used(&executed, 1), used(&executed, 2)), (21_000, gas - 4_800));
        assert_eq!(executed.gas_used, executed.receipts[2].cumulative_gas_used());
        // The DA footprint counts both.
        assert_eq!(executed.blob_gas_used, 2 * 100 * 400);
    }
}

#[test]
fn what_is_not_gasless_has_to_pay() {
    let chain = x_layer(196, "jovian");
    let witness = TxKind::Call(WITNESS);
    let refused = |tx: TxEip1559, why: &str| {
        let error = execute(&chain, [chain.sign(0, tx)]).map(|_| ()).expect_err(why);
        assert!(error.contains("gas price is less than basefee"), "{why}: {error}");
    };
    refused(call(&chain, witness, &INPUT, 70_001, 0), "a gas limit above the allowance");
    refused(call(&chain, witness, &[1, 2], 70_000, 0), "another input");
    refused(call(&chain, Address::repeat_byte(0x77).into(), &INPUT, 70_000, 0), "another recipient");
    refused(call(&chain, TxKind::Create, &INPUT, 70_000, 0), "no recipient");
    refused(call(&chain, witness, &INPUT, 70_000, 1), "a price that is not zero");
    // A price at or above the base fee is paid, whatever the contract says.
    let price = u128::from(chain.base_fee());
    let executed = execute(&chain, [chain.sign(0, call(&chain, SOMEBODY.into(), &[], 21_000, price))]).unwrap();
    assert_eq!(balance(&executed, BASE_FEE_VAULT), wei(21_000) * U256::from(price));
    assert_eq!(balance(&executed, L1_FEE_VAULT), ATTRIBUTED.l1_fee());
    // No other chain has gasless transactions.
    let other = x_layer(4242, "jovian");
    execute(&other, [other.sign(0, call(&other, witness, &INPUT, 70_000, 0))]).map(|_| ()).expect_err("another chain");
}

#[test]
fn an_answer_that_allows_nothing_is_as_good_as_none() {
    let answers = |code: &str| json!({ "balance": "0x0", "code": code });
    let (one, much) = ("60015f52", "69ffffffffffffffffffff602052");
    for (account, is_gasless, what) in [
        (answers(&format!("0x{one}{much}60405ff3")), true, "what is above 64 bits does not count"),
        (answers(&format!("0x{one}{much}60605ff3")), true, "a longer answer"),
        (answers(&format!("0x{one}{much}603f5ff3")), false, "a short answer"),
        (answers(&format!("0x{one}{much}60405ffd")), false, "a revert"),
        (answers(&format!("0x60025f52{much}60405ff3")), false, "another word than 1"),
        (answers(&format!("0x7f01{}015f52{much}60405ff3", "00".repeat(30))), false, "a word with other bits"),
        (answers(&format!("0x{one}60405ff3")), false, "an allowance of 0"),
        (answers("0xfe"), false, "a failure"),
        (json!({ "balance": "0x1" }), false, "no code"),
    ] {
        let chain = chain(196, "jovian", &account);
        let executed = execute(&chain, [chain.sign(0, call(&chain, SOMEBODY.into(), &[], 21_000, 0))]);
        assert_eq!(executed.is_ok(), is_gasless, "{what}: {:?}", executed.err());
    }
}

#[test]
fn nonce_value_and_code_of_a_gasless_sender_are_checked() {
    let chain = x_layer(196, "jovian");
    let gasless = || call(&chain, SOMEBODY.into(), &[], 21_000, 0);
    let all = chain.sign(0, TxEip1559 { value: ether(100), ..gasless() });
    let executed = execute(&chain, [all]).expect("nothing but the value is needed");
    assert_eq!((balance(&executed, chain.address(0)), balance(&executed, SOMEBODY)), (U256::ZERO, ether(100)));
    for (tx, problem) in [
        (TxEip1559 { value: ether(100) + wei(1), ..gasless() }, "lack of funds"),
        (TxEip1559 { nonce: 1, ..gasless() }, "nonce"),
        (TxEip1559 { max_priority_fee_per_gas: 1, ..gasless() }, "priority fee"),
        (TxEip1559 { gas_limit: 20_999, ..gasless() }, "gas"),
    ] {
        let error = execute(&chain, [chain.sign(0, tx)]).map(|_| ()).expect_err(problem);
        assert!(error.contains(problem), "{problem}: {error}");
    }
}

#[test]
fn a_refund_by_the_sequencer_returns_gas_alone_to_a_gasless_transaction() {
    let chain = x_layer(196, "lagoon");
    let block = |refund| {
        let pays = call(&chain, SOMEBODY.into(), &[], 21_000, u128::from(chain.base_fee()));
        let gasless = call(&chain, SOMEBODY.into(), &[], 21_000, 0);
        [chain.sign(1, pays), chain.sign(0, gasless), post_exec(1, &[(2, refund)])]
    };
    let executed = execute(&chain, block(21_000)).expect("it is valid");
    assert_eq!((used(&executed, 1), used(&executed, 2)), (21_000, 0));
    assert_eq!(balance(&executed, chain.address(0)), ether(100));
    assert_eq!(balance(&executed, BASE_FEE_VAULT), wei(21_000) * wei(chain.base_fee()));
    assert_eq!(balance(&executed, OPERATOR_FEE_VAULT), ATTRIBUTED.operator_fee(21_000));
    let error = execute(&chain, block(21_001)).map(|_| ()).expect_err("more than its gas");
    assert!(error.contains("a refund of 21001 gas"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_and_simulations_follow_the_rule_where_they_are_checked() {
    let mut chain = x_layer(196, "jovian");
    let gasless = chain.sign(0, call(&chain, WITNESS.into(), &INPUT, 70_000, 0));
    chain.append(vec![ATTRIBUTED.deposit(), gasless.clone()]);
    let (_folder, flags) = chain.files();
    let node = TestNode::start(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    // The block was imported with it.
    let receipt = node.result("/", "eth_getTransactionReceipt", json!([gasless.tx_hash()])).await;
    assert_eq!((&receipt["status"], &receipt["effectiveGasPrice"]), (&json!("0x1"), &json!("0x0")));
    assert_eq!(
        node.result("/", "eth_getBalance", json!([chain.address(0), "latest"])).await,
        json!(ether(100)),
        "nothing was paid"
    );
    // A trace of it runs as the block did, and shows nothing of the question.
    let traced =
        node.result("/", "debug_traceTransaction", json!([gasless.tx_hash(), { "tracer": "callTracer" }])).await;
    assert_eq!((&traced["gasUsed"], traced.get("calls")), (&receipt["gasUsed"], None), "{traced}");
    let steps = node.result("/", "debug_traceTransaction", json!([gasless.tx_hash()])).await;
    assert_eq!(items(&steps["structLogs"])[0]["op"], "BASEFEE", "{steps}");
    let diff = json!([gasless.tx_hash(), { "tracer": "prestateTracer", "tracerConfig": { "diffMode": true } }]);
    let diff = node.result("/", "debug_traceTransaction", diff).await;
    assert!(diff["post"].get(GASLESS_CONTRACT.to_string().to_lowercase()).is_none(), "{diff}");

    let from = chain.address(1);
    let simulate = async |call: Value, validation: bool| {
        let params = json!([{ "blockStateCalls": [{ "calls": [call] }], "validation": validation }, "latest"]);
        node.call("/", "eth_simulateV1", params).await
    };
    let base = json!({ "from": from, "to": WITNESS, "input": Bytes::from(INPUT), "gas": hex(70_000) });
    let with = |fields: Value| {
        let mut call = base.clone();
        call.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        call
    };
    for price in [json!({ "gasPrice": "0x0" }), json!({ "maxFeePerGas": "0x0", "maxPriorityFeePerGas": "0x0" })] {
        let ran = simulate(with(price.clone()), true).await;
        assert_eq!(ran["result"][0]["calls"][0]["status"], "0x1", "{price}: {ran}");
        let mut above = with(price);
        above["gas"] = hex(70_001);
        let error = simulate(above, true).await;
        assert_eq!(error["error"]["code"], -38012, "a gas limit above the allowance: {error}");
    }
    // Without validation, a call without a price pays nothing as everywhere, and sees the block's base fee.
    let code = json!({ "to": SOMEBODY, "from": from, "gas": hex(70_000) });
    let returns_base_fee = json!({ SOMEBODY.to_string(): { "code": "0x485f5260205ff3" } });
    let params = json!([{ "blockStateCalls": [{ "stateOverrides": returns_base_fee, "calls": [code] }] }, "latest"]);
    let ran = node.result("/", "eth_simulateV1", params).await;
    assert!(
        number(&ran[0]["calls"][0]["returnData"].as_str().map(|word| json!(format!("0x{}", &word[50..]))).unwrap()) > 0
    );
    // A signed transaction lands in a bundle.
    let signed = chain.sign(1, call(&chain, WITNESS.into(), &INPUT, 70_000, 0));
    let bundle =
        json!([{ "txs": [Bytes::from(signed.encoded_2718())], "blockNumber": "0x2", "stateBlockNumber": "latest" }]);
    let ran = node.result("/", "eth_callBundle", bundle).await;
    assert_eq!((&ran["results"][0]["gasPrice"], ran["results"][0].get("error")), (&json!("0"), None), "{ran}");
}
