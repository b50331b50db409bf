//! Real nodes under the load test: it makes requests from a node's world, and a reference reveals another state.

mod support;

use std::{
    ffi::OsString,
    path::Path,
    process::{Command, Output},
};

use presim::testing::{Config, Node};
use serde_json::{Value, json};
use support::binary;
use tempfile::TempDir;

/// An account of the genesis below, whose balance is read.
const ACCOUNT: &str = "0x70997970c51812dc3a010c7d01b50e0d17dc79c8";
/// A contract of that genesis, which returns the balance of its caller.
const CONTRACT: &str = "0x00000000000000000000000000000000000000cc";

/// Starts a node in this process, on a free port.
fn node(flags: &[&str]) -> Node {
    let args = ["presim", "--listen", "127.0.0.1:0"].iter().chain(flags).map(OsString::from);
    let config = Config::load(args).unwrap_or_else(|error| panic!("the flags are refused: {error:#}"));
    Node::start(config).unwrap_or_else(|error| panic!("the node did not start: {error:#}"))
}

/// Starts a node with a static chain, on which the account has this balance.
fn still(folder: &Path, name: &str, balance: &str) -> Node {
    let genesis = json!({
        "config": {"chainId": 1337, "terminalTotalDifficulty": 0, "shanghaiTime": 0, "cancunTime": 0, "homesteadBlock": 0, "eip150Block": 0,
                   "eip155Block": 0, "eip158Block": 0, "byzantiumBlock": 0, "constantinopleBlock": 0, "petersburgBlock": 0, "istanbulBlock": 0,
                   "berlinBlock": 0, "londonBlock": 0,
                   "blobSchedule": {"cancun": {"target": 3, "max": 6, "baseFeeUpdateFraction": 3338477}}},
        "gasLimit": "0x1c9c380", "difficulty": "0x0", "timestamp": "0x6900ffff", "baseFeePerGas": "0x1", "nonce": "0x0",
        "extraData": "0x", "mixHash": format!("0x{:064x}", 0), "coinbase": format!("0x{:040x}", 0),
        // CALLER BALANCE PUSH0 MSTORE PUSH1 32 PUSH0 RETURN
        "alloc": {ACCOUNT: {"balance": balance}, CONTRACT: {"balance": "0x0", "code": "0x33315f5260205ff3"}},
    });
    let file = folder.join(name);
    std::fs::write(&file, genesis.to_string()).expect("a file");
    node(&["--feed", "static", "--genesis", file.to_str().expect("the path is UTF-8")])
}

/// Starts nodes until their snapshots have the same ids: answers at `pending` are compared by id, which begins with the
/// second in which a node started.
fn still_in_one_second<const N: usize>(folder: &Path, nodes: [(&str, &str); N]) -> [Node; N] {
    for _ in 0..100 {
        let nodes = nodes.map(|(name, balance)| still(folder, name, balance));
        let ids = nodes.each_ref().map(|node| node.snapshots().load().newest.id);
        if ids.iter().all(|id| *id == ids[0]) {
            return nodes;
        }
    }
    panic!("no start of {N} nodes fell into one second");
}

fn url(node: &Node) -> String {
    format!("http://{}", node.info().listen.expect("it listens"))
}

fn output(command: &mut Command) -> (Output, Value) {
    let folder = TempDir::new().expect("a directory");
    let report = folder.path().join("report.json");
    let output = command.arg("--json").arg(&report).output().expect("the binary runs");
    let report = std::fs::read_to_string(report).unwrap_or_default();
    (output, serde_json::from_str(&report).unwrap_or_default())
}

#[test]
fn a_node_with_another_state_than_the_references_is_caught() {
    let folder = TempDir::new().expect("a directory");
    let [right, same, wrong] =
        still_in_one_second(folder.path(), [("right", "0x64"), ("same", "0x64"), ("wrong", "0x65")]);
    let call = json!({"from": ACCOUNT, "to": CONTRACT});
    let bodies = folder.path().join("bodies");
    let body = |id: u64, method: &str, params: Value| {
        format!("{}\n", json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
    };
    let lines = [
        body(1, "eth_call", json!([call, "latest"])),
        body(2, "eth_simulateV1", json!([{"blockStateCalls": [{"calls": [call]}]}, "latest"])),
    ];
    std::fs::write(&bodies, lines.concat()).expect("a file");
    for tag in ["latest", "pending"] {
        let test = |target: &Node, reference: &Node| {
            let mut command = binary();
            command.arg(url(target)).args(["--reference", &url(reference), "--check-sample=2", "--tag", tag]);
            command.args(["--duration=300ms", "--warmup=0s", "--connections=2", "--assert=mismatches=0,checked>0"]);
            output(command.arg("--bodies").arg(&bodies))
        };
        let (run, report) = test(&same, &right);
        assert_eq!(run.status.code(), Some(0), "{tag}: {run:?}");
        assert!(!report["notes"].to_string().contains("block 0"), "{tag}: they are on one chain: {report}");
        let (run, report) = test(&wrong, &right);
        assert_eq!(run.status.code(), Some(1), "{tag}: {run:?}");
        let summary = &report["targets"][0]["summary"];
        assert_eq!(summary["faults"]["mismatch"], summary["checked"], "{tag}: every answer depends on the balance");
        let text = String::from_utf8_lossy(&run.stdout).into_owned();
        assert!(text.contains("FAIL mismatches=0") && text.contains("PASS checked>0"), "{tag}: {text}");
        assert!(text.contains("block 0 is not that of"), "{tag}: the reader is told why: {text}");
    }
}

#[test]
fn every_kind_of_request_is_answered_right_while_blocks_are_made() {
    // A busy machine takes long for a request, and refuses none.
    let patient = ["--deadline-ms", "120000", "--queue-wait-ms", "120000", "--overload-wait", "1000000"];
    let folder = TempDir::new().expect("a directory");
    let socket = folder.path().join("presim.ipc").to_str().expect("the path is UTF-8").to_owned();
    let node = node(&[&["--sub-block-ms", "50", &format!("--ipc={socket}")], &patient[..]].concat());
    for url in [url(&node), url(&node).replace("http", "ws"), socket] {
        // Until each kind has been asked for and answered.
        let done = ["2s", "8s", "32s", "128s"].iter().any(|duration| answers_every_kind(&url, duration));
        assert!(done, "{url}: a kind of request is never answered");
    }
}

/// Returns whether each kind of request was answered. Checks that every answer was right.
fn answers_every_kind(url: &str, duration: &str) -> bool {
    let mut command = binary();
    command.arg(url).args([
        "--mix=balance,quote,code,swap,sandwich,multi,big,override,search,batch,wallet",
        "--duration",
        duration,
        "--warmup=100ms",
        "--bodies-per-kind=4",
        "--check-sample=3",
        "--timeout=120s",
        "--assert=errors=0,stale=0,mismatches=0,checked>0",
    ]);
    let (run, report) = output(&mut command);
    assert_eq!(run.status.code(), Some(0), "{url}: {run:?}");
    let workloads = report["targets"][0]["workloads"].as_array().cloned().unwrap_or_default();
    assert_eq!(workloads.len(), 11);
    let right = |workload: &Value| workload["right"].as_u64().unwrap_or_default();
    // All workloads but the wallet's ask for the pending state.
    let pending = workloads.iter().filter(|workload| workload["name"] != "wallet").map(right).sum::<u64>();
    let dated = report["targets"][0]["summary"]["age"]["answers"].as_u64();
    assert_eq!(dated, Some(pending), "{url}: each is dated");
    workloads.iter().all(|workload| right(workload) > 0)
}

#[test]
fn the_bodies_of_a_running_devnet_are_the_same_again_and_are_answered_right() {
    let node = node(&["--traffic=0", "--deadline-ms=120000", "--queue-wait-ms=120000", "--overload-wait=1000000"]);
    let folder = TempDir::new().expect("a directory");
    let make = |out: &str| {
        let out = folder.path().join(out);
        let made = binary()
            .args(["bodies", "--from", &url(&node), "--count=2", "--tag=pending", "--out"])
            .arg(&out)
            .output()
            .expect("the binary runs");
        assert_eq!(made.status.code(), Some(0), "{made:?}");
        let mut files: Vec<_> =
            std::fs::read_dir(out).expect("a folder").map(|file| file.expect("a file").path()).collect();
        files.sort();
        files
    };
    let files = make("bodies");
    let names: Vec<_> = files.iter().map(|file| file.file_stem().expect("a name").to_str().expect("UTF-8")).collect();
    let kinds = ["balance", "batch", "big", "code", "multi", "override", "quote", "sandwich", "search", "swap"];
    assert_eq!(names, kinds);
    let bodies: Vec<String> = files.iter().map(|file| std::fs::read_to_string(file).expect("bodies")).collect();
    let again: Vec<String> = make("again").iter().map(|file| std::fs::read_to_string(file).expect("bodies")).collect();
    assert_eq!(bodies, again, "the devnet stands still but for its blocks");
    for (name, lines) in names.iter().zip(&bodies) {
        assert_eq!(lines.lines().count(), 2, "{name}");
        for line in lines.lines() {
            let body: Value = serde_json::from_str(line).expect("JSON");
            let requests = body.as_array().cloned().unwrap_or_else(|| vec![body]);
            assert!(requests.iter().all(|request| request["params"][1] == "pending"), "{line}");
        }
    }
    let all = folder.path().join("all.ndjson");
    std::fs::write(&all, bodies.concat()).expect("a file");
    let mut command = binary();
    command.arg(url(&node)).arg("--bodies").arg(&all);
    command.args(["--duration=2s", "--warmup=0s", "--timeout=120s", "--assert=errors=0,failed_calls=0,requests>0"]);
    let (run, _) = output(&mut command);
    assert_eq!(run.status.code(), Some(0), "{run:?}");

    let refused = binary().args(["bodies", "--from", "http://127.0.0.1:1"]).output().expect("the binary runs");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && text.contains("--from"), "{text}");
}
