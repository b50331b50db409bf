//! The random programs of Amsterdam's tests (EIP-7773) over HTTP.

use std::collections::BTreeMap;

use alloy_primitives::{Bytes, Log, keccak256};
use futures::{StreamExt, stream};
use serde_json::{Value, json};

use super::{
    cases::{AMSTERDAM, Expected, StateTest, files},
    http::{payload, request_genesis},
};
use crate::support::{TestNode, number, say};

/// The files of random programs.
const RANDOM: &str = "random/random_";
/// Requests that wait for their answers at once.
const AT_ONCE: usize = 4;

/// Returns the difference of an answer from what is expected.
fn difference(expected: &Expected, answer: &Value) -> Option<String> {
    let shown = || answer.to_string().chars().take(400).collect::<String>();
    if expected.expect_exception.is_some() {
        return answer["error"].is_null().then(|| format!("accepted: {}", shown()));
    }
    let Some(receipt) = &expected.receipt else { return Some("no receipt is expected".to_owned()) };
    let call = &answer["result"][0]["calls"][0];
    let Some(logs) = call["logs"].as_array() else { return Some(shown()) };
    let log = |log: &Value| {
        let topics = serde_json::from_value(log["topics"].clone()).unwrap();
        let data: Bytes = serde_json::from_value(log["data"].clone()).unwrap();
        Log::new_unchecked(serde_json::from_value(log["address"].clone()).unwrap(), topics, data)
    };
    let logs: Vec<Log> = logs.iter().map(log).collect();
    let is_same = call["status"] == if receipt.succeeds() { "0x1" } else { "0x0" }
        && number(&call["gasUsed"]) == receipt.gas_used.to::<u64>()
        && keccak256(alloy_rlp::encode(&logs)) == expected.logs;
    (!is_same).then(shown)
}

#[tokio::test(flavor = "multi_thread")]
async fn amsterdams_random_programs_pass_over_http() {
    let Some(files) = files(AMSTERDAM, RANDOM) else { return };
    let mut cases = Vec::new();
    for (path, content) in files {
        let tests: BTreeMap<String, StateTest> = serde_json::from_slice(&content).unwrap();
        cases.extend(tests.into_iter().map(|(name, test)| (format!("{path} {name}"), test)));
    }
    let config = cases.first().and_then(|(_, test)| test.config.as_ref());
    let genesis = request_genesis("Amsterdam", config).unwrap();
    let node = TestNode::on(&genesis, &["--traffic", "0", "--sub-block-ms", "60000", "--deadline-ms", "60000"]);
    let run = async |(name, test): (String, StateTest)| {
        let expected = test.post["Amsterdam"].first()?;
        let Some(payload) = payload(&test, "Amsterdam", expected) else { return Some(format!("{name}: no request")) };
        let answer = node.call("/standard", "eth_simulateV1", json!([payload, "latest"])).await;
        difference(expected, &answer).map(|difference| format!("{name}: {difference}"))
    };
    let count = cases.len();
    let failures: Vec<String> =
        stream::iter(cases).map(run).buffer_unordered(AT_ONCE).filter_map(async |failure| failure).collect().await;
    say(&format!("OFFICIAL Amsterdam over HTTP: {} of {count} random programs", count - failures.len()));
    let shown = failures.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{} cases failed:\n{shown}", failures.len());
}
