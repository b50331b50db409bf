//! Amsterdam (EIP-7773) on the devnet: headers, slots, gas in two dimensions, and access lists of blocks made in parts.

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use alloy_consensus::{Header, SignableTransaction, TxEip1559, TxEnvelope};
use alloy_eips::{
    Encodable2718,
    eip7928::AccountChanges,
    eip8282::{BUILDER_DEPOSIT_CONTRACT_ADDRESS, BUILDER_EXIT_CONTRACT_ADDRESS},
};
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, address, keccak256};
use alloy_rlp::Decodable;
use alloy_signer::SignerSync;
use presim::testing::{
    chain::{BlockHashes, ChainSpec, ForkTime, genesis_block, set_forks},
    ledger::{FeedProblem, Snapshot},
    source::{
        chain_file::import_bytes,
        devnet::world::{add_contracts_of_forks, build, dev_genesis, dev_signers, traffic_signers},
    },
    state::CodeCache,
};
use serde_json::{Value, json};

use crate::{
    live::{built::DEPLOYMENT_PROXY, stage::launch},
    remote_state::{Proxy, ProxyReply},
    support::{Socket, TestNode, hex, number},
};

const ALICE: Address = address!("0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266");
/// An account that nobody has.
const STRANGER: Address = Address::repeat_byte(0x5a);
/// A contract that counts in its slot 0.
const COUNTER: Address = Address::repeat_byte(0xc0);
/// Returns the slot: SLOTNUM PUSH0 MSTORE PUSH1 32 PUSH0 RETURN.
const SLOTNUM: &str = "0x4b5f5260205ff3";
/// The account that logs transfers (EIP-7708).
const SYSTEM: &str = "0xfffffffffffffffffffffffffffffffffffffffe";
/// The hash of a list without accounts.
const NO_ACCESSES: &str = "0x1dcc4de8dec75d7aab85b567b6ccd41ad312451b948a7413f0a142fd40d49347";

async fn block(node: &TestNode, path: &str, at: impl Into<Value>) -> Value {
    node.result(path, "eth_getBlockByNumber", json!([at.into(), false])).await
}

/// Returns the slot of a block, and checks that the access list's hash is there if the slot is, on both dialects.
async fn slot(node: &TestNode, at: u64) -> Option<u64> {
    let [one, other] = [block(node, "/", hex(at)).await, block(node, "/standard", hex(at)).await];
    for one in [&one, &other] {
        assert_eq!(one.get("slotNumber").is_some(), one.get("blockAccessListHash").is_some(), "{one}");
    }
    assert_eq!(one["slotNumber"], other["slotNumber"]);
    let raw: Bytes = serde_json::from_value(node.result("/", "debug_getRawHeader", json!([hex(at)])).await).unwrap();
    assert_eq!(json!(keccak256(&raw)), one["hash"]);
    let header = Header::decode(&mut raw.as_ref()).unwrap();
    assert_eq!(json!(header.block_access_list_hash), one["blockAccessListHash"]);
    one.get("slotNumber").map(number)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_block_of_the_fork_has_the_slot_0() {
    const FORK: u64 = 9_000_000_000;
    let node =
        TestNode::start(&["--testing", "--dialect", "project", "--no-mining", "--fork", &format!("amsterdam={FORK}")]);
    let mut socket = Socket::open(&node, "/").await;
    let heads = socket.subscribe(json!(["newHeads"])).await;
    node.result("/", "evm_mine", json!([])).await;
    node.result("/", "evm_setNextBlockTimestamp", json!([FORK])).await;
    // A simulated block of the fork on a block before it.
    let simulated = |at: &'static str, overrides: Value| {
        let calls = json!([{"from": ALICE, "input": SLOTNUM, "to": null}, {"from": ALICE, "to": STRANGER}]);
        let state = json!({STRANGER.to_string(): {"code": SLOTNUM}});
        let blocks = json!([{"blockOverrides": overrides, "stateOverrides": state, "calls": calls}, {}]);
        node.result("/standard", "eth_simulateV1", json!([{"blockStateCalls": blocks}, at]))
    };
    let slots = |blocks: &Value| {
        let told = number(&blocks[0]["calls"][1]["returnData"]);
        let slot = |index: usize| blocks[index].get("slotNumber").map(number);
        (slot(0), slot(1), told)
    };
    let early = simulated("latest", json!({"time": hex(FORK)})).await;
    assert_eq!(slots(&early), (None, None, 0), "{early}");
    assert!(early[0]["blockAccessListHash"].is_string(), "{early}");
    let early = simulated("latest", json!({"time": hex(FORK), "slotNumber": "0x7"})).await;
    assert_eq!(slots(&early), (Some(7), Some(8), 7), "{early}");

    node.result("/", "anvil_mine", json!([2])).await;
    assert_eq!([slot(&node, 0).await, slot(&node, 1).await], [None, None]);
    assert_eq!([slot(&node, 2).await, slot(&node, 3).await], [Some(0), Some(1)]);
    for expected in [None, Some(0), Some(1)] {
        let head = socket.notification(&heads).await;
        assert_eq!(head.get("slotNumber").map(number), expected, "{head}");
        assert_eq!(head.get("blockAccessListHash").is_some(), expected.is_some(), "{head}");
    }
    for at in ["latest", "pending"] {
        let next = simulated(at, json!({})).await;
        assert_eq!(slots(&next), (Some(2), Some(3), 2), "{at}: {next}");
    }
    let call = |overrides: Value| {
        let state = json!({STRANGER.to_string(): {"code": SLOTNUM}});
        node.result("/standard", "eth_call", json!([{"to": STRANGER}, "latest", state, overrides]))
    };
    assert_eq!(number(&call(json!({})).await), 1);
    assert_eq!(number(&call(json!({"slotNumber": "0x1f"})).await), 0x1f);
}

/// EIP-8037, EIP-7708: a new account costs state gas, and a transfer is logged.
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_in_the_fork_from_its_genesis_on_has_its_rules() {
    let node = TestNode::start(&["--testing", "--dialect", "project", "--no-mining", "--fork", "amsterdam=0"]);
    let genesis = block(&node, "/", "0x0").await;
    assert_eq!((&genesis["slotNumber"], &genesis["blockAccessListHash"]), (&json!("0x0"), &json!(NO_ACCESSES)));
    for contract in [BUILDER_DEPOSIT_CONTRACT_ADDRESS, BUILDER_EXIT_CONTRACT_ADDRESS, DEPLOYMENT_PROXY] {
        let code = node.result("/", "eth_getCode", json!([contract, "latest"])).await;
        assert_ne!(code, "0x", "{contract}");
    }
    // A block that is built on request, of the slot that is asked for.
    let root = B256::ZERO;
    let attributes = json!({
        "timestamp": hex(number(&genesis["timestamp"]) + 1), "prevRandao": root, "suggestedFeeRecipient": STRANGER,
        "withdrawals": [], "parentBeaconBlockRoot": root, "slotNumber": "0x63",
    });
    let built = node.result("/", "testing_buildBlockV1", json!([genesis["hash"], attributes, []])).await;
    let payload = &built["executionPayload"];
    assert_eq!(payload["slotNumber"], "0x63");
    let list: Bytes = serde_json::from_value(payload["blockAccessList"].clone()).unwrap();
    let list = Vec::<AccountChanges>::decode(&mut list.as_ref()).unwrap();
    assert!(list.iter().any(|account| account.address == BUILDER_EXIT_CONTRACT_ADDRESS), "{list:?}");

    let transfer = json!({"from": ALICE, "to": STRANGER, "value": "0x1", "gas": "0x40000"});
    let payload = json!({"blockStateCalls": [{"calls": [transfer]}], "traceTransfers": true});
    let simulated = node.result("/standard", "eth_simulateV1", json!([payload, "latest"])).await;
    let sent = node.result("/", "eth_sendTransaction", json!([transfer])).await;
    node.result("/", "evm_mine", json!([])).await;
    let mined = block(&node, "/", "latest").await;
    assert_eq!(slot(&node, 1).await, Some(1));
    let receipt = node.result("/", "eth_getTransactionReceipt", json!([sent])).await;
    for outcome in [&receipt, &simulated[0]["calls"][0]] {
        assert_eq!(number(&outcome["gasUsed"]), 21_000 + 183_600, "{outcome}");
        assert_eq!(outcome["logs"].as_array().map(Vec::len), Some(1), "{outcome}");
        assert_eq!(outcome["logs"][0]["address"], SYSTEM, "{outcome}");
    }
    // The larger of both dimensions.
    assert_eq!(number(&mined["gasUsed"]), 183_600, "{mined}");
    assert_eq!(simulated[0]["gasUsed"], mined["gasUsed"]);
}

fn start(dir: &Path) -> TestNode {
    let dir = dir.to_str().unwrap();
    let flags = ["--log", "off", "--data-dir", dir, "--traffic", "3", "--sub-block-ms", "40", "--fork", "amsterdam=0"];
    TestNode::start(&flags)
}

/// EIP-7928: each sub-block is executed by itself, and a restart comes between two of them. An import executes the blocks
/// as a whole, and compares the hashes of their access lists.
#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_were_made_in_parts_are_valid_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let transfer = |nonce: u64| {
        let tx = TxEip1559 {
            chain_id: 31337,
            nonce,
            gas_limit: 300_000,
            max_fee_per_gas: 10_000_000_000,
            max_priority_fee_per_gas: 1,
            to: TxKind::Call(Address::with_last_byte(nonce as u8)),
            value: U256::ONE,
            ..TxEip1559::default()
        };
        let signature = dev_signers().unwrap()[0].sign_hash_sync(&tx.signature_hash()).unwrap();
        Bytes::from(TxEnvelope::from(tx.into_signed(signature)).encoded_2718())
    };
    let mut node = start(dir.path());
    let first = number(&node.result("/", "eth_getTransactionCount", json!([ALICE, "pending"])).await);
    let mut head = 0;
    for nonce in first..first + 4 {
        let receipt = node.result("/", "eth_sendRawTransactionSync", json!([transfer(nonce)])).await;
        head = number(&receipt["blockNumber"]);
        drop(node);
        node = start(dir.path());
    }
    node.sealed(head + 1).await;
    let timestamp = number(&block(&node, "/", "0x0").await["timestamp"]);
    let signers: Vec<_> = dev_signers().unwrap().into_iter().chain(traffic_signers().unwrap()).collect();
    let mut genesis = dev_genesis(&signers, timestamp);
    let fork: ForkTime = "amsterdam=0".parse().unwrap();
    set_forks(&mut genesis.config, &[fork]).unwrap();
    add_contracts_of_forks(&mut genesis);
    let spec = ChainSpec::new(genesis.config.clone(), Duration::from_millis(400)).unwrap();
    let (world, _) = build(&genesis, &spec, &signers, &CodeCache::new(1 << 24)).unwrap();
    let genesis = genesis_block(&genesis, &spec, world.state_root_in_parallel());
    assert_eq!(json!(genesis.hash()), block(&node, "/", "0x0").await["hash"]);
    let mut hashes = BlockHashes::default();
    hashes.push(0, genesis.hash());
    let mut blocks = Vec::new();
    for at in 1..=head + 1 {
        let raw: Bytes = serde_json::from_value(node.result("/", "debug_getRawBlock", json!([hex(at)])).await).unwrap();
        blocks.extend_from_slice(&raw);
    }
    let mut transactions = 0;
    let imported = import_bytes(&spec, Snapshot::at_head(world, Arc::new(genesis), hashes), &blocks, |head, _| {
        transactions += head.head.body().transactions.len();
        assert_ne!(head.head.header.block_access_list_hash, Some(B256::ZERO));
    });
    let imported = imported.map_err(|error| format!("{:#}", eyre::Report::new(error))).unwrap();
    assert_eq!(imported.head.number(), head + 1);
    assert!(transactions >= 4, "{transactions}");
}

/// Changes the answer with a block's access list.
fn change_list(answer: &mut Value, change: impl FnOnce(&mut Value)) {
    let is_list = |accounts: &Vec<Value>| accounts.iter().any(|account| account.get("balanceChanges").is_some());
    if answer["result"].as_array().is_some_and(is_list) {
        change(answer);
    }
}

/// Answers as a node without access lists.
fn refuse_list(answer: &mut Value) {
    change_list(answer, |answer| {
        *answer = json!({"jsonrpc": "2.0", "id": answer["id"], "error": {"code": -32601, "message": "no such method"}});
    });
}

/// Makes somebody rich.
fn forge_list(answer: &mut Value) {
    change_list(answer, |answer| {
        let all = answer["result"].as_array_mut().unwrap();
        let changes = all.iter_mut().flat_map(|account| account["balanceChanges"].as_array_mut().unwrap());
        changes.for_each(|change| change["value"] = json!("0xffffffffffffffff"));
    });
}

/// Blocks of a followed chain are applied from their access lists, or executed where the upstream has none, and one in 32 all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_the_fork_is_followed() {
    let upstream = TestNode::start(&["--testing", "--dialect", "project", "--no-mining", "--fork", "amsterdam=0"]);
    // Counts in its slot 0.
    upstream.result("/", "anvil_setCode", json!([COUNTER, "0x5f54600101805f5500"])).await;
    let mine = async |count: u64| {
        for to in [STRANGER, COUNTER] {
            let transfer = json!({"from": ALICE, "to": to, "value": "0x1", "gas": "0x40000"});
            upstream.result("/", "eth_sendTransaction", json!([transfer])).await;
        }
        upstream.result("/", "anvil_mine", json!([hex(count)])).await;
    };
    mine(1).await;
    let config = json!({
        "chainId": 31337, "homesteadBlock": 0, "eip150Block": 0, "eip155Block": 0, "eip158Block": 0, "byzantiumBlock": 0,
        "constantinopleBlock": 0, "petersburgBlock": 0, "istanbulBlock": 0, "berlinBlock": 0, "londonBlock": 0,
        "terminalTotalDifficulty": 0, "terminalTotalDifficultyPassed": true, "shanghaiTime": 0, "cancunTime": 0,
        "pragueTime": 0, "osakaTime": 0, "amsterdamTime": 0,
    });
    let behind =
        |change: fn(&mut Value)| Proxy::start(&upstream, Duration::ZERO, move |_, _| ProxyReply::Change(change));
    let (refusing, lying) = (behind(refuse_list).await, behind(forge_list).await);
    let node = async |url: &str| launch(url, Some(&config), &[]).await.unwrap();
    let listing = node(&upstream.url("/standard")).await;
    let (executing, deceived) = (node(&refusing.url).await, node(&lying.url).await);
    let blocks =
        |node: &TestNode, outcome: &str| node.metric(&format!("presim_upstream_blocks_total{{outcome=\"{outcome}\"}}"));
    for number in 2..5 {
        mine(1).await;
        for node in [&listing, &executing, &deceived] {
            node.sealed(number).await;
            for (method, params) in [
                ("eth_getBlockByNumber", json!([hex(number), true])),
                ("eth_getBlockReceipts", json!([hex(number)])),
                ("eth_getBalance", json!([STRANGER, "latest"])),
                ("eth_getBalance", json!([ALICE, "latest"])),
                ("eth_getTransactionCount", json!([ALICE, "latest"])),
                ("eth_getStorageAt", json!([COUNTER, "0x0", "latest"])),
            ] {
                let [one, other] = [&upstream, node].map(|node| node.result("/standard", method, params.clone()));
                assert_eq!(one.await, other.await, "{method} {number}");
            }
        }
    }
    for (node, verified) in [(&listing, "list"), (&executing, "full"), (&deceived, "full")] {
        let snapshot = node.result("/", "presim_snapshot", json!([])).await;
        assert_eq!((&snapshot["feed"], &snapshot["verified"]), (&json!("live"), &json!(verified)));
        assert_eq!(slot(node, 4).await, Some(4));
    }
    assert_eq!((blocks(&listing, "listed"), blocks(&listing, "executed")), (3.0, 0.0));
    for node in [&executing, &deceived] {
        assert_eq!((blocks(node, "listed"), blocks(node, "executed")), (0.0, 3.0));
    }
    mine(29).await;
    listing.sealed(33).await;
    assert_eq!((blocks(&listing, "listed"), blocks(&listing, "executed")), (31.0, 1.0));
    for problem in FeedProblem::ALL {
        let name = format!("presim_feed_fallbacks_total{{reason=\"{}\"}}", problem.as_str());
        assert_eq!(listing.metric(&name) + executing.metric(&name), 0.0, "{problem:?}");
    }
}

/// execution-apis 851 says what is null, and what is an error.
#[tokio::test(flavor = "multi_thread")]
async fn the_access_list_of_a_block_is_told_as_json_and_as_the_bytes_of_its_hash() {
    let flags = ["--testing", "--dialect", "project", "--no-mining", "--fork", "amsterdam=0", "--keep-blocks", "2"];
    let node = TestNode::start(&[&flags[..], &["--keep-history", "2"]].concat());
    // Creates a contract that stores 7 in the slot 5, and reads the slot 6.
    let create =
        json!([{"from": ALICE, "to": null, "data": "0x600760055560065450", "gas": "0x200000", "value": "0x1"}]);
    let hash = node.result("/", "eth_sendTransaction", create).await;
    node.result("/", "evm_mine", json!([])).await;
    let receipt = node.result("/", "eth_getTransactionReceipt", json!([hash])).await;
    assert_eq!(receipt["status"], "0x1", "{receipt}");
    let header = block(&node, "/", "latest").await;
    for path in ["/", "/standard"] {
        let raw: Bytes =
            serde_json::from_value(node.result(path, "debug_getRawBlockAccessList", json!(["latest"])).await).unwrap();
        assert_eq!(json!(keccak256(&raw)), header["blockAccessListHash"]);
        let told = node.result(path, "eth_getBlockAccessList", json!([header["hash"]])).await;
        // The library reads the same list from both.
        let accounts = Vec::<AccountChanges>::decode(&mut raw.as_ref()).unwrap();
        assert_eq!(serde_json::from_value::<Vec<AccountChanges>>(told.clone()).unwrap(), accounts);
        let created = told.as_array().unwrap().iter().find(|one| one["address"] == receipt["contractAddress"]).unwrap();
        let word = |number: u64| json!(B256::from(U256::from(number)));
        let expected = json!({
            "address": receipt["contractAddress"],
            "storageChanges": [{"key": word(5), "changes": [{"index": "0x1", "value": word(7)}]}],
            "storageReads": [word(6)],
            "balanceChanges": [{"index": "0x1", "value": "0x1"}],
            "nonceChanges": [{"index": "0x1", "value": "0x1"}],
            "codeChanges": [],
        });
        assert_eq!(*created, expected);
        for at in ["pending", "0x777"] {
            assert_eq!(node.result(path, "eth_getBlockAccessList", json!([at])).await, Value::Null, "{at}");
            assert_eq!(node.error(path, "debug_getRawBlockAccessList", json!([at])).await["code"], -32001, "{at}");
        }
    }
    node.result("/", "anvil_mine", json!([4])).await;
    let before = TestNode::start(&["--testing", "--dialect", "project", "--no-mining"]);
    for method in ["eth_getBlockAccessList", "debug_getRawBlockAccessList"] {
        assert_eq!(node.error("/", method, json!(["0x1"])).await["code"], 4444, "{method}: pruned");
        assert_eq!(before.error("/", method, json!(["latest"])).await["code"], -32001, "{method}: before the fork");
    }
}

/// Creates a contract, which stores in a fresh slot and reads another.
const STORES: &str = "0x600760055560065450";

#[tokio::test(flavor = "multi_thread")]
async fn the_access_list_of_a_simulated_block_is_an_output() {
    let node = TestNode::start(&["--testing", "--dialect", "project", "--no-mining", "--fork", "amsterdam=0"]);
    let calls = json!([{"from": ALICE, "to": null, "data": STORES}, {"from": ALICE, "to": STRANGER, "value": "0x1"}]);
    let withdrawal = json!({"index": "0x0", "validatorIndex": "0x0", "address": SYSTEM, "amount": "0x1"});
    let blocks = json!([{"calls": calls, "blockOverrides": {"withdrawals": [withdrawal]}}, {"calls": [{"from": ALICE, "to": STRANGER}]}]);
    let payload = |outputs: Value| json!({"blockStateCalls": blocks, "outputs": outputs});
    for path in ["/", "/standard"] {
        for at in ["latest", "pending"] {
            let both = payload(json!(["header", "blockAccessList"]));
            let both = node.result(path, "presim_simulate", json!([both, at])).await;
            let alone = node.result(path, "presim_simulate", json!([payload(json!(["blockAccessList"])), at])).await;
            assert_eq!(both.as_array().map(Vec::len), Some(2), "{both}");
            for (both, alone) in both.as_array().unwrap().iter().zip(alone.as_array().unwrap()) {
                let list: Vec<AccountChanges> = serde_json::from_value(both["blockAccessList"].clone()).unwrap();
                assert_eq!(json!(keccak256(alloy_rlp::encode(&list))), both["blockAccessListHash"], "{both}");
                assert!(list.iter().any(|account| account.address == ALICE), "{both}");
                assert_eq!(alone["blockAccessList"], both["blockAccessList"]);
                assert!(alone.get("hash").is_none(), "{alone}");
            }
        }
    }
    let before = TestNode::start(&["--testing", "--dialect", "project", "--no-mining"]);
    let none = before.result("/", "presim_simulate", json!([payload(json!(["blockAccessList"])), "latest"])).await;
    assert_eq!(none[0], json!({"fork": "osaka", "calls": [{}, {}]}));
}

/// execution-apis 852.
#[tokio::test(flavor = "multi_thread")]
async fn traces_tell_gas_in_both_dimensions() {
    let node = TestNode::start(&["--testing", "--dialect", "project", "--no-mining", "--fork", "amsterdam=0"]);
    let before = TestNode::start(&["--testing", "--dialect", "project", "--no-mining"]);
    // Stores in a slot that stays and in one that is cleared again, and calls an account.
    let code = "0x600160005560016001555f6001555f5f5f5f5f305f5050505050505f5f5f5f5f335af1";
    let call = json!({"from": ALICE, "to": STRANGER, "gas": "0x100000"});
    let trace = async |node: &TestNode, tracer: Option<&str>| {
        let mut options = json!({"stateOverrides": {STRANGER.to_string(): {"code": code}}});
        if let Some(tracer) = tracer {
            options["tracer"] = json!(tracer);
        }
        node.result("/standard", "debug_traceCall", json!([call, "latest", options])).await
    };
    let sum = trace(&node, Some("stateGasTracer")).await;
    let [regular, state, used, refund] =
        ["regularGasUsed", "stateGasUsed", "gasUsed", "gasRefund"].map(|name| number(&sum[name]));
    // A slot of 64 bytes, at 1,530 gas for each.
    assert_eq!(state, 64 * 1_530, "{sum}");
    assert!(refund > 0, "{sum}");
    assert_eq!(regular + state, used + refund, "{sum}");
    let frames = trace(&node, Some("callTracer")).await;
    for name in ["regularGasUsed", "stateGasUsed", "gasRefund", "gasUsed"] {
        assert_eq!(frames[name], sum[name], "{frames}");
        assert!(name == "gasUsed" || frames["calls"][0].get(name).is_none(), "{frames}");
    }
    assert!(frames["calls"][0].is_object(), "{frames}");
    let steps = trace(&node, None).await;
    let told = ["regularGasUsed", "stateGasUsed", "gas", "gasRefund"].map(|name| steps[name].as_u64());
    assert_eq!(told, [regular, state, used, refund].map(Some), "{steps}");
    for tracer in [None, Some("callTracer")] {
        let trace = trace(&before, tracer).await;
        for name in ["regularGasUsed", "stateGasUsed", "gasRefund"] {
            assert!(trace.get(name).is_none(), "{trace}");
        }
    }
    let sum = trace(&before, Some("stateGasTracer")).await;
    assert_eq!(sum["stateGasUsed"], "0x0", "{sum}");
    assert_eq!(number(&sum["regularGasUsed"]), number(&sum["gasUsed"]) + number(&sum["gasRefund"]), "{sum}");
    // A mined transaction's dimensions are those that its block counts.
    let sent = node.result(
        "/",
        "eth_sendTransaction",
        json!([{"from": ALICE, "to": STRANGER, "value": "0x1", "gas": "0x40000"}]),
    );
    let sent = sent.await;
    node.result("/", "evm_mine", json!([])).await;
    let options = json!([sent, {"tracer": "stateGasTracer"}]);
    let sum = node.result("/standard", "debug_traceTransaction", options).await;
    assert_eq!(
        sum,
        json!({"gasUsed": hex(204_600), "regularGasUsed": hex(21_000), "stateGasUsed": hex(183_600), "gasRefund": "0x0"})
    );
}

/// The result succeeds, and one less fails.
#[tokio::test(flavor = "multi_thread")]
async fn estimates_are_the_smallest_sufficient_limits() {
    let flags = ["--testing", "--dialect=project", "--no-mining", "--fork=amsterdam=0", "--gas-limit=60000000"];
    let node = TestNode::start(&flags);
    let bob = "0x70997970c51812dc3a010c7d01b50e0d17dc79c8";
    let [at, child] = [Address::repeat_byte(0xc0), Address::repeat_byte(0xc1)];
    // Calls `child` with all its gas, and reverts if the child fails, or if it has returned no data.
    let calls = |needs_data: bool| {
        let check = if needs_data { "503d156023" } else { "156021" };
        format!("0x5f5f5f5f5f73{}5af1{check}57005b5f5ffd", &format!("{child:#x}")[2..])
    };
    // Stores in `count` fresh slots, and ends with `end`.
    let stores = |count: u8, end: &str| {
        let stores: String = (1..=count).map(|slot| format!("600160{slot:02x}55")).collect();
        format!("0x{stores}{end}")
    };
    let none = json!({});
    let state =
        |code: String, other: String| json!({at.to_string(): {"code": code}, child.to_string(): {"code": other}});
    let to = |to: Value, more: Value| {
        let mut call = json!({"from": ALICE, "to": to});
        call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        call
    };
    // Returns a call of code that creates a contract of `size` bytes.
    let creates = |size: u16| json!(format!("0x61{size:04x}5ff3"));
    let authorization = {
        let signer = &dev_signers().unwrap()[3];
        let inner = alloy_eips::eip7702::Authorization { chain_id: U256::from(31337), address: at, nonce: 0 };
        let signed = signer.sign_hash_sync(&inner.signature_hash()).unwrap();
        json!([inner.into_signed(signed)])
    };
    let cases = [
        ("value to a new account", to(json!(STRANGER), json!({"value": "0x1"})), none.clone()),
        ("value to an account", to(json!(bob), json!({"value": "0x1"})), none.clone()),
        ("value to itself", to(json!(ALICE), json!({"value": "0x1"})), none.clone()),
        ("nothing to an account", to(json!(bob), json!({})), none.clone()),
        ("a contract", to(Value::Null, json!({"data": STORES})), none.clone()),
        ("a large contract", to(Value::Null, json!({"data": creates(0x5000)})), none.clone()),
        ("a fresh slot", to(json!(at), json!({})), state(stores(1, "00"), "0x".into())),
        ("a slot that is cleared", to(json!(at), json!({})), state("0x60016001555f60015500".into(), "0x".into())),
        ("a child that stores", to(json!(at), json!({})), state(calls(false), stores(5, "00"))),
        ("a child that reverts", to(json!(at), json!({})), state(calls(true), stores(5, "60205ffd"))),
        ("an authorization", to(json!(bob), json!({"authorizationList": authorization})), none.clone()),
        ("data to its floor", to(json!(bob), json!({"data": Bytes::from(vec![1; 4_096])})), none.clone()),
    ];
    for (name, call, state) in cases {
        let run = async |gas: u64| {
            let mut call = call.clone();
            call["gas"] = hex(gas);
            let answer = node.call("/", "eth_call", json!([call, "latest", state])).await;
            answer.get("error").is_none()
        };
        let gas = number(&node.result("/", "eth_estimateGas", json!([call, "latest", state])).await);
        assert!(run(gas).await, "{name}: {gas} is too little");
        assert!(!run(gas - 1).await, "{name}: {gas} is too much");
    }
    // Regular gas is capped at 2^24 (EIP-7825), and state gas may come on top: 100 slots that are kept cost 9.8 million, and
    // 200 more of them more than the cap.
    let many: String = (1..=250_u16).map(|slot| format!("600161{slot:04x}55")).collect();
    let state = json!({at.to_string(): {"code": format!("0x{many}00")}});
    let gas = number(&node.result("/", "eth_estimateGas", json!([{"from": ALICE, "to": at}, "latest", state])).await);
    assert!(gas > 1 << 24, "{gas}");
}

/// execution-apis 881: what `eth_callMany` and `eth_callBundle` run sees the slot of its block.
#[tokio::test(flavor = "multi_thread")]
async fn bundles_see_the_slot_of_their_block() {
    let node = TestNode::start(&["--testing", "--dialect", "project", "--no-mining", "--fork", "amsterdam=0"]);
    node.result("/", "anvil_mine", json!([3])).await;
    let state = json!({STRANGER.to_string(): {"code": SLOTNUM}});
    let transactions = json!([{"from": ALICE, "to": STRANGER}]);
    let bundles = json!([{"transactions": transactions}, {"transactions": transactions}]);
    let slots = |at: &'static str, path: &'static str| {
        let params = json!([bundles, {"blockNumber": at}, state]);
        let many = node.result(path, "eth_callMany", params);
        async move {
            let many = many.await;
            [number(&many[0][0]["value"]), number(&many[1][0]["value"])]
        }
    };
    for path in ["/", "/standard"] {
        assert_eq!(slots("latest", path).await, [3, 4], "{path}");
        assert_eq!(slots("pending", path).await, [4, 5], "{path}");
    }
    node.result("/", "anvil_setCode", json!([STRANGER, SLOTNUM])).await;
    let open = number(&block(&node, "/", "pending").await["number"]);
    let tx = TxEip1559 {
        chain_id: 31_337,
        gas_limit: 1_000_000,
        max_fee_per_gas: 100_000_000_000,
        to: TxKind::Call(STRANGER),
        ..TxEip1559::default()
    };
    let txs = [crate::sending::raw(tx, &crate::sending::key(0))];
    // The bundle's block is the one being built, or comes right after the state's.
    for (path, at, block) in [("/", "pending", open), ("/standard", "pending", open), ("/", "latest", open + 1)] {
        let bundle = json!([{"txs": txs, "blockNumber": hex(block), "stateBlockNumber": at}]);
        let result = node.result(path, "eth_callBundle", bundle).await;
        assert_eq!(number(&result["results"][0]["value"]), 4, "{path} {at} {block}: {result}");
    }
}

/// execution-apis 881.
#[tokio::test(flavor = "multi_thread")]
async fn a_simulated_block_has_the_fields_and_the_accesses_of_a_mined_one() {
    let node = TestNode::start(&["--testing", "--dialect", "project", "--no-mining", "--fork", "amsterdam=0"]);
    let sent = json!([{"from": ALICE, "to": STRANGER, "value": "0x1", "gas": "0x40000"}]);
    node.result("/", "eth_sendTransaction", sent).await;
    node.result("/", "anvil_mine", json!([1])).await;
    for path in ["/", "/standard"] {
        let mined = block(&node, path, "latest").await;
        let calls = json!({"blockStateCalls": [{"calls": [{"from": ALICE, "to": STRANGER, "value": "0x1"}]}]});
        let simulated = node.result(path, "eth_simulateV1", json!([calls, "latest"])).await[0].clone();
        let keys = |block: &Value| block.as_object().expect("a block").keys().cloned().collect::<BTreeSet<_>>();
        let more: BTreeSet<_> = keys(&simulated).difference(&keys(&mined)).cloned().collect();
        assert_eq!(more, BTreeSet::from(["calls".to_owned()]), "{path}");
        assert!(keys(&simulated).is_superset(&keys(&mined)), "{path}: {simulated} {mined}");
        let mut outputs = calls.clone();
        outputs["outputs"] = json!(["header", "blockAccessList"]);
        let simulated = node.result(path, "presim_simulate", json!([outputs, "latest"])).await[0].clone();
        let list: Vec<AccountChanges> = serde_json::from_value(simulated["blockAccessList"].clone()).unwrap();
        let of = |address: Address| list.iter().find(|account| account.address == address);
        // Calls that pay nothing use their senders' nonces, and touch the fee recipient all the same.
        assert_eq!(of(ALICE).expect("the sender").nonce_changes.len(), 1, "{simulated}");
        let recipient: Address = serde_json::from_value(simulated["miner"].clone()).unwrap();
        assert!(of(recipient).is_some_and(|account| account.balance_changes.is_empty()), "{simulated}");
    }
}
