//! Fees recomputed from the blocks, the fork schedule, and the node's information about itself.

use std::{collections::BTreeMap, fs};

use alloy_eip2124::ForkHash;
use alloy_eips::{eip1559::BaseFeeParams, eip7840::BlobParams};
use alloy_primitives::B256;
use presim::testing::source::devnet::world::{dev_genesis, dev_signers};
use serde_json::{Value, json};

use crate::support::{PATHS, TestNode, hex, items, number, shared};

/// A sealed block with its receipts.
struct Whole {
    block: Value,
    receipts: Value,
}

impl Whole {
    async fn read(node: &TestNode, at: &Value) -> Self {
        let calls = [("eth_getBlockByNumber", json!([at, true])), ("eth_getBlockReceipts", json!([at]))];
        let [block, receipts] = node.batch("/standard", &calls).await.try_into().expect("two answers");
        Self { block, receipts }
    }

    fn field(&self, name: &str) -> u64 {
        self.block.get(name).map_or(0, number)
    }

    /// Returns the tip of each transaction, in wei per gas, and its gas used, ordered by tip.
    fn tips(&self) -> Vec<(u64, u64)> {
        let base_fee = self.field("baseFeePerGas");
        let tip = |receipt: &Value| (number(&receipt["effectiveGasPrice"]) - base_fee, number(&receipt["gasUsed"]));
        let mut tips: Vec<_> = items(&self.receipts).iter().map(tip).collect();
        tips.sort_unstable();
        tips
    }

    /// Returns the tip at each percentile of the gas used: with the gas in order of tip, the tip of that unit of gas.
    fn rewards(&self, percentiles: &[u64]) -> Vec<Value> {
        let tips = self.tips();
        let at = |percentile: u64| {
            let unit = self.field("gasUsed") * percentile / 100;
            let reaches = |index: usize| tips[..=index].iter().map(|(_, gas)| gas).sum::<u64>() >= unit;
            (0..tips.len()).find(|index| reaches(*index)).map_or(0, |index| tips[index].0)
        };
        percentiles.iter().map(|percentile| hex(at(*percentile))).collect()
    }

    fn next_base_fee(&self) -> u64 {
        alloy_eips::calc_next_block_base_fee(
            self.field("gasUsed"),
            self.field("gasLimit"),
            self.field("baseFeePerGas"),
            BaseFeeParams::ethereum(),
        )
    }
}

fn ratio(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suggested_tip_is_a_percentile_of_what_was_paid_lately() {
    let Some(node) = TestNode::official() else { return };
    let head = node.height().await;
    let mut tips = Vec::new();
    for at in head - 19..=head {
        let whole = Whole::read(&node, &hex(at)).await;
        let base_fee = whole.field("baseFeePerGas");
        let mut paid: Vec<u64> = items(&whole.block["transactions"])
            .iter()
            .filter(|tx| tx["from"] != whole.block["miner"])
            .map(|tx| number(&tx["gasPrice"]) - base_fee)
            .filter(|tip| *tip >= 2)
            .collect();
        paid.sort_unstable();
        tips.extend(paid.into_iter().take(3));
    }
    tips.sort_unstable();
    let tip = match tips.len() {
        0 => 1_000_000_000,
        count => tips[(count - 1) * 60 / 100],
    };
    let last = Whole::read(&node, &json!("latest")).await;
    for path in PATHS {
        assert_eq!(node.result(path, "eth_maxPriorityFeePerGas", json!([])).await, hex(tip), "{tips:?}");
        assert_eq!(node.result(path, "eth_baseFee", json!([])).await, hex(last.next_base_fee()));
        assert_eq!(node.result(path, "eth_gasPrice", json!([])).await, hex(last.next_base_fee() + tip));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_devnet_suggests_what_its_traffic_pays() {
    let node = TestNode::start(&["--sub-block-ms", "10"]);
    node.sealed(3).await;
    for path in PATHS {
        let calls = [
            ("eth_maxPriorityFeePerGas", json!([])),
            ("eth_gasPrice", json!([])),
            ("eth_baseFee", json!([])),
            ("eth_blobBaseFee", json!([])),
            ("eth_getBlockByNumber", json!(["pending", false])),
        ];
        let answers = node.batch(path, &calls).await;
        let base_fee = number(&answers[4]["baseFeePerGas"]);
        assert_eq!(answers[0], hex(1_000_000_000));
        assert_eq!(answers[1], hex(base_fee + 1_000_000_000));
        assert_eq!(answers[2], hex(base_fee));
        assert_eq!(answers[3], "0x1", "no blob was ever sent");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fee_history_follows_from_the_blocks() {
    let Some(node) = TestNode::official() else { return };
    let head = node.height().await;
    let percentiles = [0, 10, 50, 95, 100];
    let mut blocks = Vec::new();
    for at in 0..=head {
        blocks.push(Whole::read(&node, &hex(at)).await);
    }
    let ask =
        |path, count: Value, newest: Value| node.result(path, "eth_feeHistory", json!([count, newest, percentiles]));
    let mut paid = false;
    for (count, newest) in [(1, head), (20, head), (5, 20), (1024, head), (9, 3)] {
        let oldest = (newest + 1).saturating_sub(count);
        let history = ask("/", hex(count), hex(newest)).await;
        assert_eq!(ask("/standard", json!(count), hex(newest)).await, history, "a plain number is a count too");
        assert_eq!(history["oldestBlock"], hex(oldest));
        let wanted = &blocks[oldest as usize..=newest as usize];
        for (index, whole) in wanted.iter().enumerate() {
            assert_eq!(history["reward"][index], json!(whole.rewards(&percentiles)), "block {}", whole.block["number"]);
            paid |= history["reward"][index][4] != "0x0";
            assert_eq!(history["baseFeePerGas"][index], hex(whole.field("baseFeePerGas")));
            let used = whole.field("gasUsed") as f64 / whole.field("gasLimit") as f64;
            assert_eq!(ratio(&history["gasUsedRatio"][index]), used);
            for receipt in items(&whole.receipts).iter().filter(|receipt| receipt.get("blobGasPrice").is_some()) {
                assert_eq!(history["baseFeePerBlobGas"][index], receipt["blobGasPrice"]);
                assert!(ratio(&history["blobGasUsedRatio"][index]) > 0.0);
            }
        }
        let lengths = ["reward", "baseFeePerGas", "gasUsedRatio", "baseFeePerBlobGas", "blobGasUsedRatio"]
            .map(|field| items(&history[field]).len());
        assert_eq!(lengths, [0, 1, 0, 1, 0].map(|more| wanted.len() + more));
        // The fees of the next block are known before it exists.
        let last = wanted.last().expect("a block");
        let next = match blocks.get(newest as usize + 1) {
            Some(next) => next.field("baseFeePerGas"),
            None => last.next_base_fee(),
        };
        assert_eq!(history["baseFeePerGas"][wanted.len()], hex(next));
    }
    assert!(paid, "nobody ever paid a tip: this tells nothing of rewards");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_fee_history_is_right_by_value() {
    let (Some(folder), Some(node)) = (shared("vectors/execution-apis/eth_feeHistory"), TestNode::official()) else {
        return;
    };
    let mut seen = 0;
    for file in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let line = |start: &str| -> Value {
            let line = text.lines().find_map(|line| line.strip_prefix(start)).expect("the vector has both lines");
            serde_json::from_str(line).unwrap()
        };
        let (asked, told) = (line(">> "), line("<< "));
        let got = node.send("/standard", &asked).await;
        for (field, expected) in told["result"].as_object().expect("a result") {
            let got = &got["result"][field];
            match field.ends_with("Ratio") {
                true => assert_eq!(
                    items(got).iter().map(ratio).collect::<Vec<_>>(),
                    items(expected).iter().map(ratio).collect::<Vec<_>>(),
                    "{field}"
                ),
                false => assert_eq!(got, expected, "{field}"),
            }
        }
        seen += 1;
    }
    assert_ne!(seen, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fee_history_may_end_in_the_block_being_built() {
    let node = TestNode::start(&["--sub-block-ms", "10"]);
    node.sealed(4).await;
    for path in PATHS {
        let calls = [
            ("eth_feeHistory", json!(["0x3", "pending", [50]])),
            ("eth_getBlockByNumber", json!(["pending", false])),
            ("eth_getBlockByNumber", json!(["latest", false])),
            ("eth_feeHistory", json!(["0x3", "latest"])),
            ("eth_feeHistory", json!(["0x0", "latest", []])),
            ("eth_feeHistory", json!(["0x3", "latest", []])),
        ];
        let answers = node.batch(path, &calls).await;
        let (history, pending, latest) = (&answers[0], &answers[1], &answers[2]);
        assert_eq!(number(&history["oldestBlock"]), number(&pending["number"]) - 2);
        assert_eq!(history["baseFeePerGas"][2], pending["baseFeePerGas"]);
        assert_eq!(history["baseFeePerGas"][1], latest["baseFeePerGas"]);
        let used = number(&pending["gasUsed"]) as f64 / number(&pending["gasLimit"]) as f64;
        assert_eq!(ratio(&history["gasUsedRatio"][2]), used);
        assert_eq!(items(&history["baseFeePerGas"]).len(), 4);
        assert_eq!(number(&answers[3]["oldestBlock"]), number(&latest["number"]) - 2);
        assert_eq!(answers[3]["baseFeePerGas"][3], pending["baseFeePerGas"], "the next block's fee is the open one's");
        assert!(answers[3].get("reward").is_none(), "no percentiles, no rewards");
        assert_eq!(answers[5], answers[3], "no percentile is as none given");
        assert_eq!(answers[4]["oldestBlock"], "0x0");
        assert_eq!(answers[4]["baseFeePerGas"], json!([]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_forks_to_come_are_told() {
    const DAY: u64 = 86_400;
    let mut genesis = dev_genesis(&dev_signers().unwrap(), 1_700_000_000);
    let blobs = |target, max| BlobParams { target_blob_count: target, max_blob_count: max, ..BlobParams::osaka() };
    genesis.config.prague_time = Some(genesis.timestamp + DAY);
    genesis.config.osaka_time = Some(genesis.timestamp + 2 * DAY);
    genesis.config.bpo1_time = Some(genesis.timestamp + 3 * DAY);
    genesis.config.blob_schedule.insert("bpo1".to_owned(), blobs(10, 15));
    let node = TestNode::on(&genesis, &["--feed", "static"]);
    let hash: B256 = serde_json::from_value(node.block("0x0").await["hash"].take()).unwrap();
    let times = [1, 2, 3].map(|days| genesis.timestamp + days * DAY);
    let id = |count: usize| {
        json!(alloy_primitives::Bytes::from(times[..count].iter().fold(ForkHash::from(hash), |id, time| id + *time).0))
    };
    for path in PATHS {
        let config = node.result(path, "eth_config", json!([])).await;
        let [current, next, last] = ["current", "next", "last"].map(|name| &config[name]);
        let at = [current, next, last].map(|fork| fork["activationTime"].clone());
        assert_eq!(at, [json!(0), json!(times[0]), json!(times[2])], "{config}");
        assert_eq!([current, next, last].map(|fork| fork["forkId"].clone()), [id(0), id(1), id(3)], "{config}");
        let blobs = [current, next, last]
            .map(|fork| (fork["blobSchedule"]["target"].clone(), fork["blobSchedule"]["max"].clone()));
        assert_eq!(blobs, [(json!(3), json!(6)), (json!(6), json!(9)), (json!(10), json!(15))], "{config}");
        let has = |fork: &Value, list: &str, name: &str| fork[list].get(name).is_some();
        for (fork, prague, osaka) in [(current, false, false), (next, true, false), (last, true, true)] {
            assert!(
                has(fork, "precompiles", "KZG_POINT_EVALUATION")
                    && has(fork, "systemContracts", "BEACON_ROOTS_ADDRESS")
            );
            assert_eq!(has(fork, "precompiles", "BLS12_G1ADD"), prague, "{fork}");
            assert_eq!(has(fork, "systemContracts", "HISTORY_STORAGE_ADDRESS"), prague, "{fork}");
            assert_eq!(has(fork, "precompiles", "P256VERIFY"), osaka, "{fork}");
            assert_eq!(fork["chainId"], hex(31337));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_fork_is_to_come_none_is_told() {
    let node = TestNode::quiet();
    for path in PATHS {
        let config = node.result(path, "eth_config", json!([])).await;
        assert_eq!((&config["next"], &config["last"]), (&Value::Null, &Value::Null), "{config}");
        assert_eq!(config["current"]["activationTime"], 0, "{config}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_says_what_it_is() {
    const RECIPIENT: &str = "0x00000000000000000000000000000000000000fe";
    let node = TestNode::quiet_with(&["--fee-recipient", RECIPIENT]);
    let told = BTreeMap::from([
        ("eth_syncing", json!(false)),
        ("debug_getBadBlocks", json!([])),
        ("eth_chainId", json!("0x7a69")),
        ("net_version", json!("31337")),
        ("net_listening", json!(true)),
        ("net_peerCount", json!("0x0")),
        ("web3_clientVersion", json!(concat!("presim/v", env!("CARGO_PKG_VERSION")))),
    ]);
    for path in PATHS {
        for (method, expected) in &told {
            assert_eq!(node.result(path, method, json!([])).await, *expected, "{method} on {path}");
        }
        assert_eq!(node.result(path, "eth_coinbase", json!([])).await, RECIPIENT);
        // The examples of the Ethereum wiki.
        for (bytes, hash) in [
            ("0x68656c6c6f20776f726c64", "0x47173285a8d7341e5e972fc677286384f802f8ef42a5ec5f03bbfa254cb01fad"),
            ("0x", "0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"),
        ] {
            assert_eq!(node.result(path, "web3_sha3", json!([bytes])).await, hash);
        }
    }
}
