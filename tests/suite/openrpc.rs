//! The schemas of `rpc.discover` fit its own examples, and what a node takes and answers.

use std::collections::BTreeSet;

use alloy_rpc_types_mev::EthSendBundle;
use presim::testing::source::devnet::world::dev_signers;
use serde_json::{Map, Value, json};

use crate::{
    sending,
    support::{PATHS, Socket, TestNode, number},
};

const ADDRESS: &str = "0x70997970c51812dc3a010c7d01b50e0d17dc79c8";
/// A contract that logs a topic and reverts if it is called with data.
const CODE: &str = "0x36600c5760015f5fa1005b5f5ffd";

/// Requests with more in their parameters and answers than the document's examples have, about a block, a transaction in it, two
/// filters (of logs and of blocks), and a contract with storage.
fn requests(
    block: &Value,
    transaction: &Value,
    [logs, blocks, weth]: &[Value; 3],
    raw: &Value,
    watch: &Value,
) -> Vec<(&'static str, Value)> {
    let overrides = json!({
        "stateOverrides": {ADDRESS: {"balance": "0xffffffffffffffff", "code": CODE, "stateDiff": {"0x1": "0x2"}}},
        "blockOverrides": {"timestamp": "0xffffffff", "withdrawals": []},
    });
    let calls = json!([
        {"to": ADDRESS, "from": ADDRESS, "value": "0x1", "gas": "0xffff"},
        {"to": ADDRESS, "data": "0x00", "accessList": [{"address": ADDRESS, "storageKeys": []}]},
    ]);
    let mut simulated = overrides;
    simulated["calls"] = calls;
    let payload = json!({"blockStateCalls": [simulated, {}], "traceTransfers": true, "returnFullTransactions": true});
    let mut chosen = payload.clone();
    let outputs = "status gasUsed returnData error logs header transfers stateDiff accessList blockAccessList \
        readSet assets coinbase trace";
    chosen["outputs"] = outputs.split(' ').collect();
    chosen["when"] = json!([{"block": 0, "call": 1, "status": "failure"}]);
    chosen["errors"] = json!(["error Refused(uint256 why)", {"type": "function", "name": "run"}]);
    let mut dropped = chosen.clone();
    dropped["when"] = json!([{"block": 0, "call": 1, "status": "success"}]);
    let mut searched = payload.clone();
    for call in searched["blockStateCalls"][0]["calls"].as_array_mut().unwrap() {
        call["gas"] = "0xffff".into();
    }
    let mut watched = chosen.clone();
    watched["blockStateCalls"] = searched["blockStateCalls"].clone();
    searched["vary"] =
        json!([{"path": "blocks[0].calls[0].value", "from": "0x1", "to": 9, "points": 3, "scale": "linear"}]);
    searched["objective"] = json!({"account": ADDRESS, "gasPrice": "0x0"});
    searched["require"] = json!({"when": [{"block": 0, "call": 1, "status": "any"}], "least": "-5"});
    searched["outputs"] = json!(["status"]);
    let bundles = json!([
        {"name": "one", "simulate": watched, "every": "snapshot"},
        {"name": "two", "search": searched, "every": "block", "only": {"above": "0"}},
    ]);
    let inclusion = json!({"block": "0x1", "maxBlock": 2});
    let shared = json!({
        "version": "v0.1",
        "inclusion": inclusion,
        "body": [{"tx": raw, "canRevert": true}],
        "validity": {"refund": [], "refundConfig": [{"address": ADDRESS, "percent": 10}]},
    });
    let around = json!({"version": "beta-1", "inclusion": inclusion, "body": [{"bundle": shared}]});
    let (called, code) = (json!({"to": ADDRESS, "data": "0x00", "gas": "0xffff"}), json!({ADDRESS: {"code": CODE}}));
    let tracers = json!([
        {"enableMemory": true, "enableReturnData": true, "limit": 9},
        {"tracer": "callTracer", "tracerConfig": {"withLog": true}},
        {"tracer": "flatCallTracer"},
        {"tracer": "prestateTracer"},
        {"tracer": "prestateTracer", "tracerConfig": {"diffMode": true}},
        {"tracer": "4byteTracer"},
        {"tracer": "stateGasTracer"},
        {"tracer": "noopTracer", "timeout": "5s"},
        {"tracer": "muxTracer", "tracerConfig": {"callTracer": {"onlyTopCall": true}, "stateGasTracer": {}}},
    ]);
    let traces = tracers.as_array().unwrap().iter().flat_map(|options| {
        let mut of_call = options.clone();
        of_call["stateOverrides"] = code.clone();
        let bundles = json!([{"transactions": [called, {"to": ADDRESS}], "blockOverride": {"time": "0xffffffff"}}]);
        let context = json!({"blockNumber": "latest", "transactionIndex": -1});
        [
            ("debug_traceCall", json!([called, "latest", of_call])),
            ("debug_traceCallMany", json!([bundles, context, of_call])),
            ("debug_traceBlockByNumber", json!(["0x1", options])),
            ("debug_traceBlockByHash", json!([block, options])),
            ("debug_traceTransaction", json!([transaction, options])),
        ]
    });
    let others = vec![
        ("presim_search", json!([searched, "pending"])),
        ("presim_watch", json!([bundles, "latest"])),
        ("presim_results", json!([watch, "0x0", 50])),
        ("mev_simBundle", json!([around, {"parentBlock": "0x0", "coinbase": ADDRESS, "baseFee": "0x1"}])),
        (
            "eth_callBundle",
            json!([{"txs": [raw], "blockNumber": "0x1", "stateBlockNumber": "0x0", "transactionIndex": -1}]),
        ),
        (
            "eth_callMany",
            json!([
                [{"transactions": [{"to": ADDRESS}], "blockOverride": {"number": "0xffff"}}, {"transactions": []}],
                {"blockNumber": "latest", "transactionIndex": 0},
                {ADDRESS: {"code": "0x5f5ffd"}},
                100,
            ]),
        ),
        ("eth_call", json!([{"to": ADDRESS}, "pending", {ADDRESS: {"nonce": "0x5"}}, {"random": block}])),
        ("eth_estimateGas", json!([{"to": ADDRESS, "type": "0x2"}, "latest"])),
        ("eth_feeHistory", json!(["0x2", "latest", [10, 50.5]])),
        ("eth_getBlockByNumber", json!(["pending", true])),
        ("eth_getBlockByNumber", json!(["0xffffff", false])),
        ("eth_getBlockByHash", json!([block, true])),
        ("eth_getBlockReceipts", json!([block])),
        ("eth_getTransactionByHash", json!([transaction])),
        ("eth_getTransactionByHash", json!([block])),
        ("eth_getTransactionByBlockNumberAndIndex", json!(["0x1", "0x0"])),
        ("eth_getTransactionByBlockHashAndIndex", json!([block, "0x0"])),
        ("eth_getTransactionReceipt", json!([transaction])),
        ("eth_getLogs", json!([{"fromBlock": "earliest", "toBlock": "pending"}])),
        ("eth_getLogs", json!([{"blockHash": block, "address": [ADDRESS], "topics": [null, block, [block, null]]}])),
        ("eth_newFilter", json!([{"fromBlock": "0x0", "toBlock": "latest", "address": ADDRESS, "topics": []}])),
        ("eth_getFilterLogs", json!([logs])),
        ("eth_getFilterChanges", json!([logs])),
        ("eth_getFilterChanges", json!([blocks])),
        ("debug_getRawReceipts", json!([block])),
        ("eth_getRawTransactionByHash", json!([block])),
        ("debug_storageRangeAt", json!([block, 1, weth, "0x", 2])),
        ("trace_call", json!([called, ["trace", "vmTrace", "stateDiff"], "latest", code, {}])),
        (
            "trace_callMany",
            json!([[[{"to": ADDRESS, "from": ADDRESS, "value": "0x1"}, ["trace", "stateDiff"]], [called, []]]]),
        ),
        ("trace_block", json!(["0x1"])),
        ("trace_transaction", json!([transaction])),
        ("trace_transaction", json!([block])),
        ("trace_get", json!([transaction, ["0x0"]])),
        ("trace_filter", json!([{"fromBlock": "0x1", "toBlock": "0x1", "mode": "union", "after": 1, "count": "0x2"}])),
        ("trace_replayBlockTransactions", json!(["0x1", ["trace", "vmTrace", "stateDiff"]])),
        ("trace_replayTransaction", json!([transaction, ["vmTrace"]])),
        ("eth_getProof", json!([ADDRESS, ["0x0"], "latest"])),
        ("eth_simulateV1", json!([payload, "pending"])),
        ("presim_simulate", json!([payload, "latest"])),
        ("presim_simulate", json!([chosen, "pending"])),
        ("presim_simulate", json!([dropped, "pending"])),
        ("eth_subscribe", json!(["newPendingTransactions", true])),
        ("eth_subscribe", json!(["logs", {"address": [ADDRESS], "topics": [block, null, [block, null]]}])),
        ("eth_subscribe", json!(["presim_stateChanges", {"address": ADDRESS, "slots": ["0x1"], "from": "0x0"}])),
        ("eth_subscribe", json!(["presim_watch", bundles, "pending"])),
        ("presim_outcome", json!([block])),
    ];
    traces.chain(others).collect()
}

/// Requests of a devnet under test with more than the document's examples have, or in another form, about a block of its chain.
fn testing_requests(parent: &Value) -> Vec<(&'static str, Value)> {
    let withdrawal = json!({"index": "0x0", "validatorIndex": "0x0", "address": ADDRESS, "amount": "0x1"});
    let attributes = json!({
        "timestamp": "0xffffffff",
        "prevRandao": parent,
        "suggestedFeeRecipient": ADDRESS,
        "withdrawals": [withdrawal],
        "parentBeaconBlockRoot": parent,
    });
    vec![
        ("anvil_revert", json!(["0xffff"])),
        ("hardhat_mine", json!([])),
        ("evm_setAccountNonce", json!([ADDRESS, 1000])),
        ("anvil_setAutomine", json!([false])),
        ("evm_setIntervalMining", json!([0])),
        ("hardhat_autoImpersonateAccount", json!([false])),
        ("anvil_dropTransaction", json!([parent])),
        ("hardhat_dropTransaction", json!([parent])),
        ("anvil_addBalance", json!([ADDRESS, 1])),
        ("anvil_setNextBlockBaseFeePerGas", json!([1_000_000_000])),
        ("anvil_rollback", json!([])),
        ("evm_mine_detailed", json!([{"blocks": 1}])),
        ("anvil_reorg", json!([1, [[{"from": ADDRESS, "to": ADDRESS, "value": "0x0"}, 0]]])),
        ("anvil_setChainId", json!([31337])),
        ("hardhat_loadState", json!(["0x7b226163636f756e7473223a7b7d7d"])),
        ("evm_setTime", json!(["0xfffffffff"])),
        ("testing_buildBlockV1", json!([parent, attributes, null, "0x"])),
        ("hardhat_reset", json!([])),
    ]
}

/// Returns a part of the document whose objects have no other fields than those that it names.
fn closed(part: &Value) -> Value {
    match part {
        Value::Array(items) => items.iter().map(closed).collect(),
        Value::Object(fields) => {
            let mut fields: Map<String, Value> =
                fields.iter().map(|(name, value)| (name.clone(), closed(value))).collect();
            if fields.get("properties").is_some_and(Value::is_object)
                && fields.get("type").is_some_and(Value::is_string)
            {
                fields.entry("additionalProperties").or_insert(false.into());
            }
            fields.into()
        }
        other => other.clone(),
    }
}

/// Panics if a value has not the shape of a schema of the document, or has fields that it does not name.
fn check(document: &Value, schema: &Value, value: &Value, what: &str) {
    let whole = json!({"components": closed(&document["components"]), "allOf": [closed(schema)]});
    let validator = jsonschema::draft7::new(&whole).unwrap_or_else(|error| panic!("{what}: {error}: {schema}"));
    let problems: Vec<String> =
        validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path)).collect();
    assert!(problems.is_empty(), "{what}: {problems:#?}");
}

fn entry<'a>(document: &'a Value, method: &str) -> &'a Value {
    let mut methods = document["methods"].as_array().unwrap().iter();
    methods.find(|entry| entry["name"] == method).unwrap_or_else(|| panic!("{method} is not in the document"))
}

/// Panics if parameters of a method have not the shapes of the document.
fn check_params(document: &Value, method: &str, params: &Value) {
    let documented = entry(document, method)["params"].as_array().unwrap();
    for (param, value) in documented.iter().zip(params.as_array().unwrap()) {
        check(document, &param["schema"], value, &format!("{method} {}", param["name"]));
    }
}

/// Returns the names of the methods that a node has, as its document says.
async fn methods_of(node: &TestNode, path: &str) -> BTreeSet<String> {
    let document = node.result(path, "rpc.discover", json!([])).await;
    let name = |entry: &Value| entry["name"].as_str().unwrap().to_owned();
    document["methods"].as_array().unwrap().iter().map(name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_and_answers_have_the_shapes_of_the_document() {
    let node = TestNode::start(&["--sub-block-ms", "50", "--sub-blocks", "2", "--keep-blocks", "8192", "--log", "off"]);
    let others = [
        node.result("/", "eth_newFilter", json!([{"fromBlock": "earliest"}])).await,
        node.result("/", "eth_newBlockFilter", json!([])).await,
        json!(node.node.info().trading.unwrap().weth),
    ];
    node.sealed(2).await;
    let block = node.block("0x1").await;
    let (block, transaction) = (&block["hash"], &block["transactions"][0]);
    let raw = node.result("/", "debug_getRawTransaction", json!([transaction])).await;
    let standing =
        json!([[{"name": "one", "simulate": {"blockStateCalls": [{"calls": [{"to": ADDRESS, "gas": "0xffff"}]}]}}]]);
    let watch = node.result("/", "presim_watch", standing).await;
    let testing = TestNode::start(&["--testing", "--dialect", "project", "--no-mining"]);
    let parent = testing.block("earliest").await;
    for path in PATHS {
        // The document of a devnet under test has all methods.
        let document = testing.result(path, "rpc.discover", json!([])).await;
        let mut socket = Socket::open(&node, path).await;
        let asked = requests(block, transaction, &others, &raw, &watch["watch"]).into_iter();
        let asked = asked.map(|request| (&node, request));
        for (node, (method, params)) in
            asked.chain(testing_requests(&parent["hash"]).into_iter().map(|request| (&testing, request)))
        {
            check_params(&document, method, &params);
            let answer = match method.ends_with("subscribe") {
                true => socket.call(method, params).await["result"].take(),
                false => node.result(path, method, params).await,
            };
            check(&document, &entry(&document, method)["result"]["schema"], &answer, &format!("{path} {method}"));
            if method == "eth_subscribe" {
                assert_eq!(socket.call("eth_unsubscribe", json!([answer])).await["result"], true);
            }
        }
        for entry in document["methods"].as_array().unwrap() {
            assert!(entry["summary"].as_str().is_some_and(|text| !text.is_empty()), "{path} {}", entry["name"]);
            let what = format!("{path} {}, the example", entry["name"]);
            let [example] = &entry["examples"].as_array().unwrap()[..] else { panic!("{what} is not one") };
            let (params, given) = (entry["params"].as_array().unwrap(), example["params"].as_array().unwrap());
            let required = params.iter().filter(|param| param["required"] == true).count();
            assert!(given.len() >= required, "{what} has {} of {required} parameters", given.len());
            for (param, given) in params.iter().zip(given) {
                check(&document, &param["schema"], &given["value"], &what);
            }
            check(&document, &entry["result"]["schema"], &example["result"]["value"], &what);
        }
    }
}

/// A block is required where the dialect requires it.
#[tokio::test(flavor = "multi_thread")]
async fn the_document_describes_the_dialect_that_it_is_asked_in() {
    let node = TestNode::quiet();
    for (path, is_required) in [("/", true), ("/standard", false)] {
        let document = node.result(path, "rpc.discover", json!([])).await;
        for method in ["eth_call", "eth_simulateV1", "presim_simulate", "presim_search", "eth_getCode"] {
            let entry = entry(&document, method);
            assert_eq!(entry["params"][1]["required"], is_required, "{path} {method}");
            assert_eq!(entry["params"][1]["name"], "block", "{method}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_has_the_methods_that_the_node_has() {
    let tested = ["--testing", "--dialect", "project"];
    let nodes = [
        TestNode::start(&["--traffic", "0"]),
        TestNode::still(&dev_signers().unwrap(), &tested),
        // The devnet under test has all methods.
        TestNode::start(&tested),
    ];
    for path in PATHS {
        let all = methods_of(&nodes[2], path).await;
        let mut fewer = 0;
        for node in &nodes {
            let listed = methods_of(node, path).await;
            assert!(listed.is_subset(&all) && listed.len() > fewer, "{path} {listed:?}");
            fewer = listed.len();
            // There are no subscriptions over HTTP.
            for method in all.iter().filter(|method| !method.ends_with("subscribe")) {
                let answer = node.call(path, method, json!([])).await;
                let is_missing = answer["error"]["code"] == -32601;
                assert_eq!(is_missing, !listed.contains(method), "{path} {method} {answer}");
            }
        }
    }
}

/// An example names blocks, transactions, filters and watches that no node has. Those of a node take their places.
#[tokio::test(flavor = "multi_thread")]
async fn each_example_of_the_document_has_a_result() {
    const BLOCK: &str = "0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470";
    const TRANSACTION: &str = "0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421";
    const FILTER: &str = "0x1f2e3d4c5b6a7988";
    const WATCH: &str = "0x4ae1b3f7ad0b86a0f5f2c3d8ab0c1d2e";
    const SNAPSHOT: &str = "0x6b066fff00000001";
    let quick = ["--traffic", "0", "--sub-block-ms", "50", "--sub-blocks", "2"];
    for path in PATHS {
        let testing = TestNode::start(&["--testing", "--dialect", "project", "--no-mining"]);
        let document = testing.result(path, "rpc.discover", json!([])).await;
        let node = TestNode::start(&[&quick[..], &["--keep-blocks", "8192"]].concat());
        node.sealed(2).await;
        let (sender, own) = (sending::key(4), sending::key(5).address());
        let sent =
            node.result(path, "eth_sendRawTransactionSync", json!([sending::raw(sending::plain(0), &sender), 60_000]));
        let sent = sent.await;
        let in_block = number(&sent["blockNumber"]);
        node.sealed(in_block).await;
        let block = node.result(path, "eth_getBlockByNumber", json!([sent["blockNumber"], false])).await;
        let batch = json!({
            "version": "2.0.0", "id": "one", "from": own, "chainId": "0x7a69", "atomicRequired": false,
            "calls": [{"to": ADDRESS, "value": "0x1"}],
        });
        node.result(path, "wallet_sendCalls", json!([batch])).await;
        let standing =
            json!([{"name": "one", "simulate": {"blockStateCalls": [{"calls": [{"to": ADDRESS, "gas": "0xffff"}]}]}}]);
        let watch = node.result(path, "presim_watch", json!([standing])).await;
        let filter = node.result(path, "eth_newFilter", json!([{}])).await;
        let of_any = methods_of(&node, path).await;
        let newest = testing.result(path, "eth_getBlockByNumber", json!(["latest", false])).await;
        let mut socket = Socket::open(&node, path).await;
        let mut subscription = Value::Null;
        for entry in document["methods"].as_array().unwrap() {
            let method = entry["name"].as_str().unwrap();
            let is_testing = !of_any.contains(method);
            let values = entry["examples"][0]["params"].as_array().unwrap().iter();
            let params: Vec<Value> = values.map(|param| param["value"].clone()).collect();
            let place = |name: &str| {
                Some(match name {
                    BLOCK if is_testing => newest["hash"].clone(),
                    BLOCK => block["hash"].clone(),
                    TRANSACTION => sent["transactionHash"].clone(),
                    FILTER => filter.clone(),
                    WATCH => watch["watch"].clone(),
                    SNAPSHOT => watch["id"].clone(),
                    "0x1" if method == "eth_unsubscribe" => subscription.clone(),
                    _ => return None,
                })
            };
            let params = json!(params.iter().map(|param| placed(param, &place)).collect::<Vec<_>>());
            let mut answer = match method {
                // Each uses the same nonce of the same account.
                "eth_sendRawTransaction" | "eth_sendRawTransactionSync" | "eth_sendBundle" => {
                    TestNode::start(&quick).call(path, method, params.clone()).await
                }
                "debug_getRawBlockAccessList" => {
                    let amsterdam = TestNode::start(&[&quick[..], &["--fork", "amsterdam=0"]].concat());
                    amsterdam.sealed(1).await;
                    amsterdam.call(path, method, params.clone()).await
                }
                // The time of the example has passed where the method of `anvil_` was called.
                "evm_setNextBlockTimestamp" => {
                    TestNode::start(&["--testing", "--dialect", "project", "--no-mining"])
                        .call(path, method, params.clone())
                        .await
                }
                // On a token of the trading world.
                "anvil_dealERC20" | "hardhat_dealERC20" | "anvil_setERC20Allowance" => {
                    TestNode::start(&["--testing", "--world"]).call(path, method, params.clone()).await
                }
                // On a fork, of a node that is there.
                "anvil_setRpcUrl" => {
                    let url = testing.url("/standard");
                    let flags = ["--testing", "--fork-url", &url];
                    let fork = tokio::task::block_in_place(|| TestNode::start(&flags));
                    fork.call(path, method, json!([url])).await
                }
                // Of chains before London.
                "anvil_setMinGasPrice" | "hardhat_setMinGasPrice" => {
                    TestNode::start(&["--testing", "--hardfork", "berlin"]).call(path, method, params.clone()).await
                }
                _ if is_testing => testing.call(path, method, params.clone()).await,
                _ => socket.call(method, params.clone()).await,
            };
            assert!(answer.get("error").is_none(), "{path} {method} {params}: {answer}");
            check(&document, &entry["result"]["schema"], &answer["result"], &format!("{path} {method}"));
            if method == "eth_subscribe" {
                subscription = answer["result"].take();
            }
        }
    }
}

/// Returns a parameter with other texts in the places of those for which `place` has one.
fn placed(param: &Value, place: &dyn Fn(&str) -> Option<Value>) -> Value {
    match param {
        Value::String(text) => place(text).unwrap_or_else(|| param.clone()),
        Value::Array(items) => items.iter().map(|item| placed(item, place)).collect(),
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), placed(value, place))).collect(),
        other => other.clone(),
    }
}

/// Each path has its own accounts, because a nonce is used once.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_sent_or_signed_has_the_shape_of_the_document() {
    let node = TestNode::start(&["--traffic", "0", "--sub-block-ms", "50", "--sub-blocks", "2"]);
    for (index, path) in PATHS.into_iter().enumerate() {
        let document = node.result(path, "rpc.discover", json!([])).await;
        let (sender, other) = (sending::key(index), sending::key(index + 2));
        let signed = |nonce| sending::raw(sending::plain(nonce), &sender);
        // Far enough for a slow machine, and not past the 25 blocks that a bundle may wait.
        let block = node.node.snapshots().newest().head.number() + 20;
        let bundle = json!({
            "txs": [sending::raw(sending::plain(0), &other)], "blockNumber": block, "maxBlockNumber": block + 1,
            "minTimestamp": 0, "maxTimestamp": "0xffffffff", "revertingTxHashes": [], "uuid": path,
        });
        let hash = EthSendBundle { txs: vec![sending::raw(sending::plain(0), &other)], ..EthSendBundle::default() };
        let hash = hash.bundle_hash();
        let account = other.address();
        let batch = json!({
            "version": "2.0.0", "id": path, "from": account, "chainId": "0x7a69", "atomicRequired": false,
            "calls": [{"to": ADDRESS, "value": "0x1", "capabilities": {"gasLimitOverride": {"value": "0xffff"}}}],
            "capabilities": {"other": {"optional": true}},
        });
        let typed_data = json!({
            "types": {"EIP712Domain": [{"name": "name", "type": "string"}], "Mail": [{"name": "text", "type": "string"}]},
            "primaryType": "Mail", "domain": {"name": "Post"}, "message": {"text": "hi"},
        });
        for (method, params) in [
            ("eth_sendBundle", json!([bundle])),
            ("eth_cancelBundle", json!([{"replacementUuid": path}])),
            ("presim_outcome", json!([hash])),
            ("eth_sendRawTransaction", json!([signed(0)])),
            ("eth_sendRawTransactionSync", json!([signed(1), 60_000])),
            ("eth_sendRawTransaction", json!([signed(4)])),
            ("eth_sendTransaction", json!([{"from": sender.address(), "to": ADDRESS, "nonce": "0x5"}])),
            ("eth_fillTransaction", json!([{"from": sender.address(), "to": ADDRESS, "value": "0x1"}])),
            ("eth_fillTransaction", json!([{"to": ADDRESS, "gas": "0x5208", "gasPrice": "0x77359400"}])),
            (
                "eth_signTransaction",
                json!([{"to": ADDRESS, "gas": "0x5208", "gasPrice": "0x77359400", "nonce": "0x0"}]),
            ),
            ("txpool_content", json!([])),
            ("txpool_contentFrom", json!([sender.address()])),
            ("txpool_inspect", json!([])),
            ("wallet_getCapabilities", json!([account, ["0x7a69"]])),
            ("wallet_sendCalls", json!([batch])),
            ("wallet_getCallsStatus", json!([path])),
            ("wallet_showCallsStatus", json!([path])),
            ("personal_sign", json!(["hi", account, "secret"])),
            ("eth_signTypedData_v4", json!([account, typed_data])),
            ("eth_signTypedData_v4", json!([account, typed_data.to_string()])),
        ] {
            check_params(&document, method, &params);
            let answer = node.result(path, method, params).await;
            check(&document, &entry(&document, method)["result"]["schema"], &answer, &format!("{path} {method}"));
        }
        node.sealed(node.node.snapshots().newest().head.number() + 2).await;
        let status = node.result(path, "wallet_getCallsStatus", json!([path])).await;
        assert_eq!(status["receipts"].as_array().map(Vec::len), Some(1), "{status}");
        let schema = &entry(&document, "wallet_getCallsStatus")["result"]["schema"];
        check(&document, schema, &status, "the status of a batch that is mined");
    }
}
