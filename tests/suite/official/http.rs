//! A sample of the state tests over HTTP: the whole state of a test and its transaction in one `eth_simulateV1`.

use std::{collections::BTreeMap, time::Duration};

use alloy_primitives::{Bytes, Log, U64, U128, U256, keccak256};
use presim::testing::chain::ChainSpec;
use serde_json::{Value, json};

use super::{
    cases::{ARCHIVE, Expected, StateTest, TestConfig, files, is_precompile},
    network,
};
use crate::support::{TestNode, say};

/// One file in so many is in the sample, from its first test.
const ONE_IN: usize = 8;

/// A case as a request, with the answer that is expected.
struct Sample {
    /// The genesis of the node that the request is for.
    genesis: String,
    name: String,
    request: Value,
    root: String,
    logs: alloy_primitives::B256,
}

/// Returns a genesis in geth's format without accounts, of a network that the tests name.
pub(super) fn request_genesis(network: &str, config: Option<&TestConfig>) -> Option<Value> {
    let config = network::genesis_config(network, config)?;
    Some(json!({"config": config, "alloc": {}, "gasLimit": "0x1000000", "difficulty": "0x0", "timestamp": "0x0"}))
}

/// Returns a case as the payload of an `eth_simulateV1`: its environment as overrides of the block, its state as those of
/// the state.
pub(super) fn payload(test: &StateTest, network: &str, expected: &Expected) -> Option<Value> {
    let env = &test.env;
    let blob_base_fee = env.current_excess_blob_gas.and_then(|excess| {
        let config = serde_json::from_value(network::genesis_config(network, test.config.as_ref())?).ok()?;
        let spec = ChainSpec::new(config, Duration::from_secs(12)).ok()?;
        Some(json!(U128::from(spec.blob_params(env.current_timestamp.to())?.calc_blob_fee(excess.to()))))
    });
    let mut block = json!({
        "number": env.current_number,
        "time": env.current_timestamp,
        "gasLimit": U64::from(env.current_gas_limit.saturating_to::<u64>()),
        "feeRecipient": env.current_coinbase,
        "prevRandao": env.current_random,
        "baseFeePerGas": env.current_base_fee,
    });
    if let Some(fee) = blob_base_fee {
        block["blobBaseFee"] = fee;
    }
    if let Some(slot) = env.slot_number {
        block["slotNumber"] = json!(slot);
    }
    let word = |word: &U256| format!("{word:#066x}");
    let overrides: BTreeMap<_, _> = test
        .pre
        .iter()
        .map(|(address, account)| {
            let slots = account.storage.iter().map(|(slot, value)| (word(slot), word(value)));
            let state = json!({
                "balance": account.balance,
                "nonce": U64::from(account.nonce.to::<u64>()),
                "code": account.code,
                "state": slots.collect::<BTreeMap<_, _>>(),
            });
            (*address, state)
        })
        .collect();
    Some(json!({
        "blockStateCalls": [{
            "blockOverrides": block,
            "stateOverrides": overrides,
            "calls": [test.transaction.call(&expected.indexes)?],
        }],
        "validation": true,
    }))
}

/// Returns the first case of `test` that ends well after the merge, in a block after the genesis.
fn sample(path: &str, test: &StateTest) -> Option<Sample> {
    let env = &test.env;
    let follows_genesis = env.current_number == U256::ONE && env.current_timestamp > U256::ZERO;
    if !follows_genesis || test.pre.keys().any(is_precompile) {
        return None;
    }
    let (fork, expected) = test.post.iter().rev().find_map(|(fork, cases)| {
        let first = cases.iter().find(|case| case.expect_exception.is_none())?;
        Some((fork, first))
    })?;
    let genesis = request_genesis(fork, test.config.as_ref())?;
    genesis["config"].get("terminalTotalDifficulty")?;
    Some(Sample {
        genesis: genesis.to_string(),
        name: format!("{path} {fork}"),
        request: json!([payload(test, fork, expected)?, "latest"]),
        root: expected.hash.to_string(),
        logs: expected.logs,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sample_of_state_tests_passes_over_http() {
    let Some(eest) = files(ARCHIVE, "eest/state_tests/") else { return };
    let files = eest.into_iter().chain(files(ARCHIVE, "tests/GeneralStateTests/").unwrap_or_default());
    let chosen = files.filter(|(path, _)| usize::from(keccak256(path)[0]) % ONE_IN == 0 && !path.contains("lockchain"));
    let samples: Vec<Sample> = chosen
        .filter_map(|(path, content)| {
            let tests: BTreeMap<String, StateTest> = serde_json::from_slice(&content).unwrap();
            sample(&path, tests.values().next()?)
        })
        .collect();
    let mut nodes = BTreeMap::new();
    let mut failures = Vec::new();
    for sample in &samples {
        let node = nodes.entry(&sample.genesis).or_insert_with(|| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), &sample.genesis).unwrap();
            let path = file.path().to_str().unwrap();
            TestNode::quiet_with(&["--genesis", path, "--gas-cap", "9223372036854775807", "--deadline-ms", "60000"])
        });
        let answer = node.call("/standard", "eth_simulateV1", sample.request.clone()).await;
        let block = &answer["result"][0];
        let logs: Option<Vec<Log>> = block["calls"][0]["logs"].as_array().map(|logs| {
            let log = |log: &Value| {
                let topics = serde_json::from_value(log["topics"].clone()).unwrap();
                let data: Bytes = serde_json::from_value(log["data"].clone()).unwrap();
                Log::new_unchecked(serde_json::from_value(log["address"].clone()).unwrap(), topics, data)
            };
            logs.iter().map(log).collect()
        });
        let logs = logs.map(|logs| keccak256(alloy_rlp::encode(&logs)));
        if block["stateRoot"] != sample.root.as_str() || logs != Some(sample.logs) {
            failures.push(format!("{}: {}", sample.name, answer.to_string().chars().take(400).collect::<String>()));
        }
    }
    say(&format!("OFFICIAL over HTTP: {} cases on {} chains", samples.len(), nodes.len()));
    assert!(failures.is_empty(), "{} cases failed:\n{}", failures.len(), failures.join("\n"));
    assert!(samples.len() > 100, "{} cases", samples.len());
}
