//! Forks that a flag moves.

use serde_json::{Value, json};

use crate::support::{TestNode, items, number};

/// Starts a chain that stands still at its genesis, which has every fork to Osaka.
fn still(flags: &[&str]) -> TestNode {
    let genesis = json!({
        "config": {
            "chainId": 4711, "homesteadBlock": 0, "eip150Block": 0, "eip155Block": 0, "eip158Block": 0, "byzantiumBlock": 0,
            "constantinopleBlock": 0, "petersburgBlock": 0, "istanbulBlock": 0, "berlinBlock": 0, "londonBlock": 0,
            "terminalTotalDifficulty": 0, "terminalTotalDifficultyPassed": true, "shanghaiTime": 0, "cancunTime": 0,
            "pragueTime": 0, "osakaTime": 0,
            "blobSchedule": {
                "cancun": {"target": 3, "max": 6, "baseFeeUpdateFraction": 3_338_477},
                "prague": {"target": 6, "max": 9, "baseFeeUpdateFraction": 5_007_716},
                "osaka": {"target": 6, "max": 9, "baseFeeUpdateFraction": 5_007_716},
            },
        },
        "alloc": {}, "difficulty": "0x0", "gasLimit": "0x1c9c380", "nonce": "0x0", "timestamp": "0x65000000", "extraData": "0x",
        "baseFeePerGas": "0x3b9aca00", "mixHash": format!("0x{:064x}", 0), "coinbase": format!("0x{:040x}", 0),
    });
    TestNode::on(&genesis, &[&["--feed", "static"], flags].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn flags_move_forks_and_set_a_block_time_below_a_second() {
    // CLZ (EIP-7939) exists from Osaka on.
    let clz = json!([{"to": null, "data": "0x60011e5f5260205ff3"}, "latest"]);
    let node = still(&[]);
    assert_eq!(node.result("/", "eth_call", clz.clone()).await, json!(format!("0x{:064x}", 255)));
    let node = still(&["--fork", "osaka=never"]);
    node.error("/", "eth_call", clz).await;

    let node = still(&["--block-time", "200ms"]);
    let blocks = |overrides: &[Value]| {
        let blocks: Vec<_> = overrides.iter().map(|one| json!({"blockOverrides": one})).collect();
        json!([{"blockStateCalls": blocks}, "latest"])
    };
    let head = number(&node.block("latest").await["timestamp"]);
    let times =
        |answer: Value| -> Vec<u64> { items(&answer).iter().map(|block| number(&block["timestamp"]) - head).collect() };
    let none = json!({});
    let twelve = vec![none.clone(); 12];
    let answer = node.result("/", "eth_simulateV1", blocks(&twelve)).await;
    assert_eq!(times(answer), [0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2]);
    let answer = node.result("/standard", "eth_simulateV1", blocks(&twelve[..2])).await;
    assert_eq!(times(answer), [12, 24]);
    // An override may repeat, and not go back.
    let same = json!({"time": format!("{head:#x}")});
    let answer = node.result("/", "eth_simulateV1", blocks(&[same.clone(), same.clone(), none])).await;
    assert_eq!(times(answer), [0, 0, 0]);
    let back = json!({"time": format!("{:#x}", head - 1)});
    let error = node.error("/", "eth_simulateV1", blocks(&[back])).await;
    assert_eq!(error["code"], -38021, "{error}");
    let error = node.error("/standard", "eth_simulateV1", blocks(&[same])).await;
    assert_eq!(error["code"], -38021, "{error}");
}

#[test]
fn flags_that_are_no_forks_or_times_are_refused() {
    for (flags, named) in [
        (["--block-time", "200us"], "200ms"),
        (["--block-time", "0"], "86400s"),
        (["--fork", "osaka"], "NAME=TIME"),
        (["--fork", "jovian=5"], "jovian"),
    ] {
        let error = TestNode::refusal(&flags);
        assert!(error.contains(named), "{flags:?}: {error}");
    }
}
