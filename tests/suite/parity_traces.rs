//! Parity's trace methods, compared with geth's tracers on the same transactions.

use serde_json::{Value, json};

use crate::{
    support::{TestNode, hex, items, number, shared},
    tracing::{PROBE, TRADER, swap},
};
use alloy_primitives::U256;

/// Returns the opcodes of a `vmTrace` in the order in which they ran.
fn opcodes(vm: &Value) -> Vec<&Value> {
    let mut all = Vec::new();
    for op in items(&vm["ops"]) {
        all.push(op);
        if op["sub"].is_object() {
            all.extend(opcodes(&op["sub"]));
        }
    }
    all
}

/// Returns a localized frame without its position.
fn bare(frame: &Value) -> Value {
    let mut frame = frame.clone();
    for field in ["blockHash", "blockNumber", "transactionHash", "transactionPosition"] {
        frame.as_object_mut().unwrap().remove(field);
    }
    frame
}

#[tokio::test(flavor = "multi_thread")]
async fn the_traces_of_the_official_chain_agree_with_each_other_and_with_geths() {
    let Some(node) = TestNode::official() else { return };
    let head = node.height().await;
    let types = json!(["trace", "vmTrace", "stateDiff"]);
    let genesis = std::fs::read(shared("vectors/execution-apis/genesis.json").unwrap()).unwrap();
    let config = serde_json::from_slice::<Value>(&genesis).unwrap()["config"].take();
    let (mut all, mut rewarded) = (Vec::new(), 0);
    for height in 1..=head {
        let block = node.result("/", "eth_getBlockByNumber", json!([hex(height), true])).await;
        let traces = node.result("/", "trace_block", json!([hex(height)])).await;
        let (rewards, frames): (Vec<Value>, Vec<Value>) =
            items(&traces).iter().cloned().partition(|trace| trace["type"] == "reward");
        let paid = if block["difficulty"] == "0x0" { 0 } else { 1 + items(&block["uncles"]).len() };
        assert_eq!(rewards.len(), paid, "block {height}");
        if let Some(own) = rewards.first() {
            // 5 ether, 3 from Byzantium on, 2 from Constantinople on.
            let ether = match height {
                _ if height >= config["constantinopleBlock"].as_u64().unwrap() => 2,
                _ if height >= config["byzantiumBlock"].as_u64().unwrap() => 3,
                _ => 5,
            };
            // One part in 32 more for each uncle.
            let uncles = items(&block["uncles"]).len() as u128;
            let value = format!("{:#x}", ether * 10_u128.pow(18) / 32 * (32 + uncles));
            let action = json!({"author": block["miner"], "rewardType": "block", "value": value});
            assert_eq!((&own["action"], &own["blockHash"]), (&action, &block["hash"]));
            assert!(own["transactionHash"].is_null() && own["result"].is_null(), "{own}");
            assert!(rewards[1..].iter().all(|uncle| uncle["action"]["rewardType"] == "uncle"));
            rewarded += 1;
        }
        all.extend(items(&traces).to_vec());
        let replayed = node.result("/", "trace_replayBlockTransactions", json!([hex(height), types])).await;
        let flat = json!([hex(height), {"tracer": "flatCallTracer"}]);
        let flat = node.result("/", "debug_traceBlockByNumber", flat).await;
        let steps = node.result("/", "debug_traceBlockByNumber", json!([hex(height)])).await;
        assert_eq!(items(&replayed).len(), items(&block["transactions"]).len());
        for (index, (tx, trace)) in items(&block["transactions"]).iter().zip(items(&replayed)).enumerate() {
            assert_eq!(trace["transactionHash"], tx["hash"]);
            let own: Vec<&Value> = frames.iter().filter(|frame| frame["transactionHash"] == tx["hash"]).collect();
            assert_eq!(trace["trace"], own.iter().map(|frame| bare(frame)).collect::<Value>());
            let localized = node.result("/", "trace_transaction", json!([tx["hash"]])).await;
            assert_eq!(items(&localized).iter().collect::<Vec<_>>(), own);
            assert_eq!((&own[0]["transactionPosition"], &own[0]["blockHash"]), (&json!(index), &block["hash"]));
            let last = json!([tx["hash"], [own.len() - 1]]);
            assert_eq!(&node.result("/", "trace_get", last).await, own[own.len() - 1]);
            // geth's frames have the gas of the whole transaction.
            let geths = items(&flat[index]["result"]);
            assert_eq!(geths.len(), own.len());
            for (geths, own) in geths.iter().zip(&own) {
                assert_eq!((&geths["traceAddress"], &geths["type"]), (&own["traceAddress"], &own["type"]));
                assert_eq!(geths.get("error").is_some(), own.get("error").is_some());
            }
            // All steps but those past the end of a code, where the machine stops.
            let logged = items(&steps[index]["result"]["structLogs"]).iter().filter(|step| step["gasCost"] != 0);
            let logged: Vec<_> = logged.map(|step| (&step["pc"], &step["op"], &step["gasCost"])).collect();
            let ran = opcodes(&trace["vmTrace"]).into_iter().filter(|op| op["cost"] != 0);
            assert_eq!(ran.map(|op| (&op["pc"], &op["op"], &op["cost"])).collect::<Vec<_>>(), logged, "{}", tx["hash"]);
            let nonce = &trace["stateDiff"][tx["from"].as_str().unwrap()]["nonce"]["*"];
            assert_eq!(number(&nonce["from"]), number(&tx["nonce"]));
            assert!(number(&nonce["to"]) > number(&nonce["from"]));
            let one = node.result("/", "trace_replayTransaction", json!([tx["hash"], ["stateDiff"]])).await;
            assert_eq!(one["stateDiff"], trace["stateDiff"]);
            assert_eq!((&one["vmTrace"], &one["trace"]), (&Value::Null, &json!([])));
        }
    }
    assert!(rewarded > 0, "the chain begins before the merge");
    // A filter without addresses finds all of them, page by page.
    let range = |more: Value| {
        let mut filter = json!({"fromBlock": "0x1", "toBlock": hex(head)});
        filter.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!([filter])
    };
    assert_eq!(node.result("/", "trace_filter", range(json!({}))).await, json!(all));
    let mut paged = Vec::new();
    while paged.len() < all.len() {
        let page = node.result("/", "trace_filter", range(json!({"after": paged.len(), "count": 37}))).await;
        assert_eq!(items(&page).len(), 37.min(all.len() - paged.len()));
        paged.extend(items(&page).to_vec());
    }
    assert_eq!(paged, all);
    assert_eq!(node.result("/", "trace_filter", range(json!({"after": all.len()}))).await, json!([]));
    let (from, to) = (&all[all.len() / 2]["action"]["from"], &all[0]["action"]["from"]);
    let by = |from: &Value| all.iter().filter(|trace| trace["action"]["from"] == *from).cloned().collect::<Vec<_>>();
    let found = node.result("/", "trace_filter", range(json!({"fromAddress": [from]}))).await;
    assert!(!by(from).is_empty() && found == json!(by(from)), "{found}");
    let called = |trace: &Value| trace["action"]["to"] == *to || trace["result"]["address"] == *to;
    let union: Vec<_> = all.iter().filter(|trace| trace["action"]["from"] == *from || called(trace)).cloned().collect();
    let filter = json!({"fromAddress": [from], "toAddress": [to], "mode": "union"});
    assert_eq!(node.result("/", "trace_filter", range(filter)).await, json!(union));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_with_a_wrong_range_is_refused() {
    let Some(node) = TestNode::official() else { return };
    let error = async |filter: Value| node.error("/", "trace_filter", json!([filter])).await;
    let reversed = error(json!({"fromBlock": "0x2", "toBlock": "0x1"})).await;
    assert_eq!(
        (&reversed["code"], &reversed["message"]),
        (&json!(-32602), &json!("params[0].fromBlock: 2 is after toBlock, 1"))
    );
    assert_eq!(error(json!({"toBlock": "0x63"})).await, json!({"code": -32000, "message": "block #99 not found"}));
    // Genesis, which begins the default range, has no transactions.
    assert!(!items(&node.result("/", "trace_filter", json!([{"toBlock": "0x3"}])).await).is_empty());
    assert_eq!(node.result("/", "trace_block", json!(["0x0"])).await, json!([]));
    let unknown = format!("0x{:064x}", 1);
    assert_eq!(node.result("/", "trace_transaction", json!([unknown])).await, Value::Null);
    assert_eq!(node.result("/", "trace_get", json!([unknown, [0]])).await, Value::Null);
    let error = node.error("/", "trace_replayTransaction", json!([unknown, ["trace"]])).await;
    assert_eq!(error, json!({"code": -32000, "message": "transaction not found"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_and_its_traces_are_bounded() {
    let Some(folder) = shared("vectors/execution-apis") else { return };
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let chain = ["--genesis", &file("genesis.json"), "--chain", &file("chain.rlp")];
    let node = TestNode::start(&[&chain[..], &["--max-log-blocks", "10", "--max-trace-bytes", "30000"]].concat());
    let error = node.error("/", "trace_filter", json!([{"fromBlock": "0x1", "toBlock": "0xb"}])).await;
    assert!(error["code"] == -32005 && error["message"].as_str().unwrap().contains("--max-log-blocks"), "{error}");
    let error = node.error("/", "trace_replayBlockTransactions", json!(["0x1", ["vmTrace"]])).await;
    assert!(error["code"] == -32005 && error["message"].as_str().unwrap().contains("--max-trace-bytes"), "{error}");
    node.result("/", "trace_replayBlockTransactions", json!(["0x1", ["trace"]])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_traced_with_its_frames_its_opcodes_and_its_changes() {
    let node = TestNode::quiet();
    let call = swap(U256::ONE);
    let options = json!({"tracer": "flatCallTracer"});
    let flat = node.result("/", "debug_traceCall", json!([call, "latest", options])).await;
    let steps = node.result("/", "debug_traceCall", json!([call, "latest", {"enableMemory": true}])).await;
    let types = json!(["trace", "vmTrace", "stateDiff"]);
    let traced = node.result("/", "trace_call", json!([call, types])).await;
    assert_eq!(traced["output"], steps["returnValue"]);
    assert_eq!(items(&traced["trace"]).len(), items(&flat).len());
    for (frame, geths) in items(&traced["trace"]).iter().zip(items(&flat)).skip(1) {
        assert_eq!(*frame, bare(geths));
    }
    let ops = opcodes(&traced["vmTrace"]);
    let steps = items(&steps["structLogs"]);
    assert_eq!(ops.len(), steps.len());
    let stored: Vec<_> = ops.iter().filter(|op| op["op"] == "SSTORE").collect();
    assert!(stored.iter().all(|op| op["ex"]["store"]["key"].is_string()) && stored.len() > 3, "{stored:?}");
    for (op, pair) in ops.iter().zip(steps.windows(2)).filter(|(_, pair)| pair[0]["depth"] == pair[1]["depth"]) {
        assert_eq!(op["ex"]["used"], pair[1]["gas"]);
        let (pushed, stack) = (items(&op["ex"]["push"]), items(&pair[1]["stack"]));
        assert_eq!(pushed, &stack[stack.len() - pushed.len()..], "{op}");
        if op["op"] == "MSTORE" {
            let (offset, word) = (op["ex"]["mem"]["off"].as_u64().unwrap(), items(&pair[0]["stack"]));
            assert_eq!(offset, number(&word[word.len() - 1]));
            let value: U256 = word[word.len() - 2].as_str().unwrap().parse().unwrap();
            assert_eq!(op["ex"]["mem"]["data"], format!("0x{value:064x}"));
        }
    }
    let code = node.result("/", "eth_getCode", json!([call["to"], "latest"])).await;
    assert_eq!(traced["vmTrace"]["code"], code);
    let sender = &traced["stateDiff"][TRADER.to_string().to_lowercase()];
    assert_eq!(sender["balance"], "=", "a call without a price pays nothing: {sender}");

    // Each call sees what the calls before it did.
    let state = json!({"from": TRADER, "to": PROBE, "value": "0x5"});
    let many = json!([[[state, ["stateDiff"]], [state, ["stateDiff", "trace"]], [state, []]], "latest"]);
    let many = node.result("/", "trace_callMany", many).await;
    let balance = |index: usize| many[index]["stateDiff"][PROBE.to_string().to_lowercase()]["balance"].clone();
    assert_eq!(balance(1)["*"], json!({"from": "0x5", "to": "0xa"}), "{many}");
    assert_eq!((items(&many[0]["trace"]).len(), items(&many[1]["trace"]).len()), (0, 1));
    assert_eq!(many[2], json!({"output": "0x", "stateDiff": null, "trace": [], "vmTrace": null}));
    // Overrides apply, and a revert is a trace.
    let overrides = json!([{"to": PROBE}, ["trace"], "latest", {PROBE.to_string(): {"code": "0x435f5260205ffd"}}, {"number": "0x1234"}]);
    let reverted = node.result("/", "trace_call", overrides).await;
    assert_eq!(reverted["output"], format!("0x{:064x}", 0x1234));
    assert_eq!(reverted["trace"][0]["error"], "Reverted");
    for (params, place) in [
        (json!([{"to": PROBE}, ["none"]]), "params[1]"),
        (json!([{"to": PROBE, "gas": "none"}, ["trace"]]), "params[0].gas"),
    ] {
        let error = node.error("/", "trace_call", params).await;
        assert!(error["code"] == -32602 && error["message"].as_str().unwrap().starts_with(place), "{error}");
    }
}
