//! The schemas of `rpc.discover` fit its own examples, and what a node takes and answers.

use serde_json::{Map, Value, json};

use crate::support::TestNode;

const ADDRESS: &str = "0x70997970c51812dc3a010c7d01b50e0d17dc79c8";
/// A contract that logs a topic and reverts if it is called with data.
const CODE: &str = "0x36600c5760015f5fa1005b5f5ffd";

/// Requests whose parameters and answers are compared with the document, about a block, a transaction in it, two filters
/// (of logs and of blocks), and a contract with storage.
fn requests(block: &Value, transaction: &Value, [logs, blocks, weth]: &[Value; 3]) -> Vec<(&'static str, Value)> {
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
    chosen["outputs"] = json!([
        "status",
        "gasUsed",
        "returnData",
        "error",
        "logs",
        "header",
        "transfers",
        "stateDiff",
        "accessList",
        "blockAccessList",
        "readSet",
        "assets",
        "coinbase",
        "trace"
    ]);
    chosen["when"] = json!([{"block": 0, "call": 1, "status": "failure"}]);
    chosen["errors"] = json!(["error Refused(uint256 why)", {"type": "function", "name": "run"}]);
    let mut dropped = chosen.clone();
    dropped["when"] = json!([{"block": 0, "call": 1, "status": "success"}]);
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
        ("eth_call", json!([{"to": ADDRESS}, "pending", {ADDRESS: {"nonce": "0x5"}}, {"random": block}])),
        ("eth_estimateGas", json!([{"to": ADDRESS, "type": "0x2"}, "latest"])),
        ("eth_gasPrice", json!([])),
        ("eth_maxPriorityFeePerGas", json!([])),
        ("eth_baseFee", json!([])),
        ("eth_blobBaseFee", json!([])),
        ("eth_feeHistory", json!(["0x2", "latest", [10, 50.5]])),
        ("eth_createAccessList", json!([{"to": ADDRESS}, "latest"])),
        ("eth_getBlockByNumber", json!(["pending", true])),
        ("eth_getBlockByNumber", json!(["0xffffff", false])),
        ("eth_getBlockByHash", json!([block, true])),
        ("eth_getBlockTransactionCountByNumber", json!(["latest"])),
        ("eth_getBlockTransactionCountByHash", json!([block])),
        ("eth_getUncleCountByBlockNumber", json!(["earliest"])),
        ("eth_getUncleCountByBlockHash", json!([block])),
        ("eth_getBlockReceipts", json!([block])),
        ("eth_getTransactionByHash", json!([transaction])),
        ("eth_getTransactionByHash", json!([block])),
        ("eth_getTransactionByBlockNumberAndIndex", json!(["0x1", "0x0"])),
        ("eth_getTransactionByBlockHashAndIndex", json!([block, "0x0"])),
        ("eth_getTransactionReceipt", json!([transaction])),
        ("eth_getLogs", json!([{"fromBlock": "earliest", "toBlock": "pending"}])),
        ("eth_getLogs", json!([{"blockHash": block, "address": [ADDRESS], "topics": [null, block, [block, null]]}])),
        ("eth_newFilter", json!([{"fromBlock": "0x0", "toBlock": "latest", "address": ADDRESS, "topics": []}])),
        ("eth_newBlockFilter", json!([])),
        ("eth_newPendingTransactionFilter", json!([])),
        ("eth_getFilterLogs", json!([logs])),
        ("eth_getFilterChanges", json!([logs])),
        ("eth_getFilterChanges", json!([blocks])),
        ("eth_uninstallFilter", json!(["0x1"])),
        ("eth_getHeaderByNumber", json!(["latest"])),
        ("eth_getHeaderByHash", json!([block])),
        ("debug_getRawHeader", json!(["latest"])),
        ("debug_getRawBlock", json!(["0xffffff"])),
        ("debug_getRawReceipts", json!([block])),
        ("debug_getRawTransaction", json!([transaction])),
        ("eth_getBlockAccessList", json!(["pending"])),
        ("eth_getRawTransactionByHash", json!([block])),
        ("eth_getRawTransactionByBlockNumberAndIndex", json!(["0x1", "0x0"])),
        ("eth_getRawTransactionByBlockHashAndIndex", json!([block, "0x0"])),
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
        ("eth_getBalance", json!([ADDRESS, "latest"])),
        ("eth_getTransactionCount", json!([ADDRESS, {"blockNumber": "0x0"}])),
        ("eth_getCode", json!([ADDRESS, "pending"])),
        ("eth_getStorageAt", json!([ADDRESS, "0x0", "latest"])),
        ("eth_getStorageValues", json!([{ADDRESS: ["0x0", "0x1"]}, "latest"])),
        ("eth_getProof", json!([ADDRESS, ["0x0"], "latest"])),
        ("eth_simulateV1", json!([payload, "pending"])),
        ("presim_simulate", json!([payload, "latest"])),
        ("presim_simulate", json!([chosen, "pending"])),
        ("presim_simulate", json!([dropped, "pending"])),
    ];
    traces.chain(others).collect()
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

#[tokio::test(flavor = "multi_thread")]
async fn requests_and_answers_have_the_shapes_of_the_document() {
    let node = TestNode::start(&["--sub-block-ms", "50", "--sub-blocks", "2", "--log", "off"]);
    let others = [
        node.result("/", "eth_newFilter", json!([{"fromBlock": "earliest"}])).await,
        node.result("/", "eth_newBlockFilter", json!([])).await,
        json!(node.node.info().trading.unwrap().weth),
    ];
    node.sealed(2).await;
    let block = node.result("/", "eth_getBlockByNumber", json!(["0x1", false])).await;
    let (block, transaction) = (&block["hash"], &block["transactions"][0]);
    for path in ["/", "/standard"] {
        let document = node.result(path, "rpc.discover", json!([])).await;
        let entry = |method: &str| {
            let mut methods = document["methods"].as_array().unwrap().iter();
            methods.find(|entry| entry["name"] == method).unwrap_or_else(|| panic!("{method} is not in the document"))
        };
        for (method, params) in requests(block, transaction, &others) {
            let (entry, what) = (entry(method), format!("{path} {method}"));
            for (param, value) in entry["params"].as_array().unwrap().iter().zip(params.as_array().unwrap()) {
                check(&document, &param["schema"], value, &format!("{what} {}", param["name"]));
            }
            let answer = node.result(path, method, params).await;
            check(&document, &entry["result"]["schema"], &answer, &what);
        }
        let mut count = 0;
        for entry in document["methods"].as_array().unwrap() {
            assert!(entry["summary"].as_str().is_some_and(|text| !text.is_empty()), "{path} {}", entry["name"]);
            for example in entry["examples"].as_array().into_iter().flatten() {
                count += 1;
                let what = format!("{path} {}, the example", entry["name"]);
                for (param, given) in
                    entry["params"].as_array().unwrap().iter().zip(example["params"].as_array().unwrap())
                {
                    check(&document, &param["schema"], &given["value"], &what);
                }
                check(&document, &entry["result"]["schema"], &example["result"]["value"], &what);
            }
        }
        assert!(count > 5, "{count} examples");
    }
}

/// A block is required where the dialect requires it.
#[tokio::test(flavor = "multi_thread")]
async fn the_document_describes_the_dialect_that_it_is_asked_in() {
    let node = TestNode::quiet();
    for (path, is_required) in [("/", true), ("/standard", false)] {
        let document = node.result(path, "rpc.discover", json!([])).await;
        let methods = document["methods"].as_array().unwrap();
        let code = methods.iter().find(|entry| entry["name"] == "eth_getCode").unwrap();
        assert_eq!(code["params"][1]["required"], is_required, "{path}");
        assert_eq!(code["params"][1]["name"], "block");
    }
}
