//! Runs reuse memory: no run sees what an earlier one left.

use presim::testing::source::devnet::world::{dev_genesis, dev_signers};
use serde_json::{Value, json};

use crate::{process::eventually, support::TestNode};

const PROBE: &str = "0x00000000000000000000000000000000000c0de1";
const DIRT: &str = "0x00000000000000000000000000000000000c0de2";

/// Returns, a word each: MSIZE, TLOAD(1), SLOAD(1), a word of fresh memory, the gas of a first BALANCE of the account
/// that [`dirt`] touches, and RETURNDATASIZE.
const PROBE_CODE: &str = concat!(
    "0x",
    "59600052",
    "60015c602052",
    "600154604052",
    "61010051606052",
    "5a7300000000000000000000000000000000000beef031505a9003608052",
    "3d60a052",
    "60c06000f3"
);

/// Returns code that writes transient and persistent storage, memory and a log, touches the account, calls itself as
/// deep as its gas allows, and ends with `end`.
fn dirt(end: &str) -> String {
    let writes = concat!("600160015d", "6001600155", "60ff61010052", "60206000a0");
    let touch = "7300000000000000000000000000000000000beef03150";
    let recurse = "60006000600060006000305af150";
    format!("0x{writes}{touch}{recurse}{end}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_sees_nothing_of_those_before_it() {
    // One thread, so that every run reuses the memory of the one before.
    let node = TestNode::quiet_with(&["--io-threads", "1", "--workers", "1", "--deadline-ms", "2000"]);
    let probe = || json!([{"to": PROBE}, "pending", {PROBE: {"code": PROBE_CODE}}]);
    let clean = node.result("/", "eth_call", probe()).await;
    let words: Vec<&str> = (0..6).map(|word| &clean.as_str().unwrap()[2 + 64 * word..][..64]).collect();
    let word = |value: u64| format!("{value:064x}");
    // A first touch costs 2,600; the opcodes around it add their own.
    let gas = word(2_600 + 3 + 2 + 2);
    assert_eq!(words, [&word(0), &word(0), &word(0), &word(0), &gas, &word(0)]);

    // The code stops, reverts, fails, or loops until the deadline.
    for code in [dirt("00"), dirt("60006000fd"), dirt("fe"), "0x5b600056".to_owned()] {
        let call = json!([{"to": DIRT}, "pending", {DIRT: {"code": code}}]);
        node.call("/", "eth_call", call).await;
        assert_eq!(node.result("/", "eth_call", probe()).await, clean, "after {code}");

        // In a simulation, each call is a transaction: transient storage and warm accounts end with it.
        let block = json!({
            "stateOverrides": {PROBE: {"code": PROBE_CODE}, DIRT: {"code": dirt("00")}},
            "calls": [{"to": DIRT}, {"to": PROBE}],
        });
        for transfers in [true, false] {
            let params = json!([{"blockStateCalls": [block], "traceTransfers": transfers}, "pending"]);
            let result = node.result("/", "eth_simulateV1", params).await;
            assert_eq!(result[0]["calls"][1]["returnData"], clean, "{result}");
            assert_eq!(result[0]["calls"][1]["logs"], json!([]));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn precompiles_are_warm_from_their_fork_on_whatever_ran_before() {
    let mut genesis = dev_genesis(&dev_signers().unwrap(), 1_000);
    let osaka = genesis.timestamp + 1_000_000;
    genesis.config.osaka_time = Some(osaka);
    let node = TestNode::on(&genesis, &["--feed", "static", "--io-threads", "1"]);
    // Measures the gas of BALANCE of the address of P256VERIFY (EIP-7951).
    let code = "0x5a61010031505a900360005260206000f3";
    for _ in 0..3 {
        for (time, gas) in [(osaka - 1, 2_600), (osaka, 100)] {
            let params = json!([{"to": PROBE}, "latest", {PROBE: {"code": code}}, {"time": format!("{time:#x}")}]);
            let result: Value = node.result("/", "eth_call", params).await;
            assert_eq!(result, format!("0x{:064x}", gas + 3 + 2 + 2), "at {time}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cache_of_bytecode_counts_all_that_it_holds() {
    const LENGTH: usize = 24_000;
    const LIMIT: usize = 400_000;
    let node = TestNode::quiet_with(&["--code-cache", &LIMIT.to_string()]);
    let run = async |number: usize| {
        // The code begins with its number and STOP, and ends without one, so that the copy that runs is padded.
        let code = format!("0x61{number:04x}00{}", "5b".repeat(LENGTH - 4));
        node.result("/", "eth_call", json!([{"to": PROBE}, "pending", {PROBE: {"code": code}}])).await;
    };
    let held = || node.metric("presim_code_cache_bytes{kind=\"override\"}") as usize;
    run(0).await;
    // The code, its padded copy, and a bit for each byte.
    let all = 2 * LENGTH + LENGTH / 8;
    eventually("the code is counted", async || (held() >= all).then_some(())).await;
    for number in 1..20 {
        run(number).await;
    }
    let full = eventually("the cache is full", async || Some(held()).filter(|held| *held > LIMIT - 2 * all)).await;
    assert!(full <= LIMIT, "{full}");
}
