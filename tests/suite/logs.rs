//! `eth_getLogs`: filters, ranges up to `pending`, bounds, and cost.

use std::sync::Arc;

use alloy_consensus::{BlockBody, SignableTransaction, TxEip1559, TxEnvelope, transaction::Recovered};
use alloy_eips::eip4895::Withdrawals;
use alloy_genesis::GenesisAccount;
use alloy_primitives::{Address, B256, Bytes, TxKind, U256};
use alloy_rlp::Encodable;
use alloy_signer::SignerSync;
use presim::testing::{
    chain::{Attributes, BlockHashes, ChainSpec, genesis_block},
    engine::{open_block, seal},
    ledger::Snapshot,
    source::{
        devnet::world::{dev_genesis, dev_signers},
        sub_block::extend,
    },
    state::{CodeCache, LocalWorld},
};
use serde_json::{Value, json};

use crate::{
    support::{PATHS, Socket, TestNode, chain_files, hex, items, number, request, without_block_hash},
    watch,
};

/// Returns a contract that writes a log with `topics` topics from the words of its input, and the next word as data.
fn emitter(topics: u8) -> (Address, Bytes) {
    let mut code = vec![0x60, 0x20, 0x60, 32 * topics, 0x5f, 0x37];
    (0..topics).rev().for_each(|index| code.extend([0x60, 32 * index, 0x35]));
    code.extend([0x60, 0x20, 0x5f, 0xa0 + topics, 0x00]);
    (Address::with_last_byte(0xe0 + topics), code.into())
}

fn word(value: u64) -> B256 {
    U256::from(value).into()
}

/// The topics of a log to write. Its data is a counter.
type Topics = Vec<u64>;

/// Starts a node on a chain with these logs: one transaction per log, one block per list.
fn node_with(blocks: &[Vec<Topics>], flags: &[&str]) -> TestNode {
    let signers = dev_signers().expect("the mnemonic is right");
    let mut genesis = dev_genesis(&signers, 1_700_000_000);
    for (address, code) in (0..=4).map(emitter) {
        genesis.alloc.insert(address, GenesisAccount { code: Some(code), ..GenesisAccount::default() });
    }
    let (spec, codes) =
        (ChainSpec::new(genesis.config.clone(), std::time::Duration::from_secs(12)).unwrap(), CodeCache::new(1 << 20));
    let world = LocalWorld::of_genesis(&genesis, &codes);
    let block = genesis_block(&genesis, &spec, world.state_root());
    let mut hashes = BlockHashes::default();
    hashes.push(block.number(), block.hash());
    let mut head = Snapshot::at_head(world, Arc::new(block), hashes);
    let (mut nonce, mut file) = (0, Vec::new());
    for logs in blocks {
        let parent = head.head.header.inner();
        let attributes = Attributes {
            timestamp: parent.timestamp + 12,
            fee_recipient: Address::ZERO,
            prev_randao: B256::ZERO,
            beacon_root: B256::ZERO,
            gas_limit: parent.gas_limit,
        };
        let open = open_block(&spec, &head, attributes).expect("a block opens").snapshot;
        let transactions: Vec<Recovered<TxEnvelope>> = logs
            .iter()
            .map(|topics| {
                let input: Vec<u8> = topics.iter().chain([&nonce]).flat_map(|one| word(*one).0).collect();
                let tx = TxEip1559 {
                    chain_id: genesis.config.chain_id,
                    nonce,
                    gas_limit: 100_000,
                    max_fee_per_gas: 10_000_000_000,
                    to: TxKind::Call(emitter(topics.len() as u8).0),
                    input: input.into(),
                    ..TxEip1559::default()
                };
                nonce += 1;
                let signature = signers[0].sign_hash_sync(&tx.signature_hash()).expect("it signs");
                Recovered::new_unchecked(tx.into_signed(signature).into(), signers[0].address())
            })
            .collect();
        let extended = extend(&spec, &open, open.open.as_ref().expect("it is open"), |sub_block| {
            transactions.into_iter().for_each(|tx| assert!(sub_block.push(tx.convert()).expect("it is included")));
        })
        .snapshot;
        let open = extended.open.as_ref().expect("it is open");
        head = seal(&spec, &extended, open, Withdrawals::default()).expect("it seals").0.snapshot;
        let sealed = &head.head;
        let transactions = sealed.body().transactions.iter().map(|tx| tx.inner().clone()).collect();
        let body = BlockBody { transactions, ommers: Vec::new(), withdrawals: sealed.body().withdrawals.clone() };
        alloy_consensus::Block { header: sealed.header.inner().clone(), body }.encode(&mut file);
    }
    let (_folder, files) = chain_files(&genesis, &file);
    TestNode::start(&files.iter().map(String::as_str).chain(flags.iter().copied()).collect::<Vec<_>>())
}

async fn logs(node: &TestNode, path: &str, filter: &Value) -> Vec<Value> {
    items(&node.result(path, "eth_getLogs", json!([filter])).await).to_vec()
}

/// Returns the logs of blocks from their receipts, and checks the position fields of each.
async fn from_receipts(node: &TestNode, from: u64, to: u64) -> Vec<Value> {
    let mut all = Vec::new();
    for at in from..=to {
        all.extend(of_receipts(&node.result("/", "eth_getBlockReceipts", json!([hex(at)])).await));
    }
    all
}

fn of_receipts(receipts: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    for receipt in items(receipts) {
        for log in items(&receipt["logs"]) {
            for field in ["blockNumber", "blockHash", "transactionHash", "transactionIndex"] {
                assert_eq!(log[field], receipt[field], "{field}: {log}");
            }
            assert_eq!((&log["logIndex"], &log["removed"]), (&hex(all.len() as u64), &json!(false)), "{log}");
            all.push(log.clone());
        }
    }
    all
}

/// Returns whether a log matches, by geth's rule: every position of the filter needs a topic among its alternatives.
fn passes(log: &Value, addresses: &[Value], topics: &[Vec<Value>]) -> bool {
    let own = items(&log["topics"]);
    (addresses.is_empty() || addresses.contains(&log["address"]))
        && topics.len() <= own.len()
        && topics.iter().zip(own).all(|(any, topic)| any.is_empty() || any.contains(topic))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_passes_what_it_says_and_nothing_else() {
    let all: Vec<Topics> = vec![
        vec![],
        vec![1],
        vec![2],
        vec![1, 2],
        vec![2, 1],
        vec![1, 2, 3],
        vec![3, 2, 1],
        vec![1, 2, 3, 4],
        vec![4, 4, 4, 4],
    ];
    let node = node_with(&[all.clone(), vec![], all.clone(), vec![vec![9]]], &[]);
    let everything = from_receipts(&node, 0, 4).await;
    assert_eq!(everything.len(), 2 * all.len() + 1);
    let address = |topics: u8| json!(emitter(topics).0);
    let topic = |value: u64| json!(word(value));
    let any = Value::Null;
    let cases = [
        (json!(null), json!(null)),
        (address(1), json!(null)),
        (json!([address(0), address(4)]), json!(null)),
        (json!([]), json!([])),
        (json!(Address::ZERO), json!(null)),
        (any.clone(), json!([topic(1)])),
        (any.clone(), json!([[topic(1)]])),
        (any.clone(), json!([[topic(1), topic(4)]])),
        (any.clone(), json!([any, topic(2)])),
        (any.clone(), json!([[], topic(2)])),
        (any.clone(), json!([any, [topic(1), topic(2)], topic(3)])),
        (any.clone(), json!([topic(1), any, topic(3)])),
        (any.clone(), json!([any])),
        (any.clone(), json!([any, any])),
        (any.clone(), json!([any, any, any, any])),
        (any.clone(), json!([any, any, any, topic(4)])),
        (any.clone(), json!([topic(1), topic(1)])),
        (any.clone(), json!([[topic(1), any]])),
        (address(2), json!([topic(2)])),
        (address(1), json!([topic(9)])),
        (address(3), json!([topic(9)])),
    ];
    let mut counts = Vec::new();
    for path in PATHS {
        for (address, topics) in &cases {
            let filter = json!({"fromBlock": "earliest", "toBlock": "latest", "address": address, "topics": topics});
            let got = logs(&node, path, &filter).await;
            let list = |value: &Value| match value {
                Value::Null => Vec::new(),
                // Null among the alternatives matches any topic.
                Value::Array(all) if all.contains(&any) => Vec::new(),
                Value::Array(all) => all.clone(),
                one => vec![one.clone()],
            };
            let wanted_topics: Vec<_> = topics.as_array().into_iter().flatten().map(list).collect();
            let wanted: Vec<_> =
                everything.iter().filter(|log| passes(log, &list(address), &wanted_topics)).cloned().collect();
            assert_eq!(got, wanted, "{filter} on {path}");
            counts.push(got.len());
        }
    }
    let (first, second) = counts.split_at(cases.len());
    assert_eq!(first, second);
    assert_eq!(first, [19, 5, 6, 19, 0, 8, 8, 10, 8, 8, 4, 4, 17, 12, 4, 4, 0, 17, 2, 1, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_has_the_blocks_that_it_names() {
    let node = node_with(&[vec![vec![1]], vec![vec![2], vec![2, 2]], vec![], vec![vec![4]]], &[]);
    let hash = node.block("0x2").await["hash"].clone();
    for path in PATHS {
        for (filter, from, to) in [
            (json!({}), 4, 4),
            (json!({"fromBlock": "0x2"}), 2, 4),
            (json!({"fromBlock": "0x0", "toBlock": "0x2"}), 0, 2),
            (json!({"fromBlock": "0x2", "toBlock": "0x2"}), 2, 2),
            (json!({"fromBlock": "earliest", "toBlock": "finalized"}), 0, 4),
            (json!({"fromBlock": "earliest", "toBlock": "pending"}), 0, 4),
            (json!({"fromBlock": "0x3", "toBlock": "0x3"}), 3, 3),
            (json!({"blockHash": hash}), 2, 2),
        ] {
            let wanted: Vec<_> = from_receipts(&node, from, to).await;
            assert_eq!(logs(&node, path, &filter).await, wanted, "{filter} on {path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_may_end_in_the_block_being_built() {
    let flags = ["--sub-block-ms", "10", "--sub-blocks", "20", "--keep-snapshots", "100000"];
    let node = TestNode::start(&[&flags[..], &["--standard-receipts", "preconfirmed"]].concat());
    node.sealed(2).await;
    for path in PATHS {
        let answers = loop {
            let answers = node
                .batch(
                    path,
                    &[
                        ("eth_getLogs", json!([{"fromBlock": "0x1", "toBlock": "pending"}])),
                        ("eth_getLogs", json!([{"fromBlock": "pending", "toBlock": "pending"}])),
                        ("eth_getBlockReceipts", json!(["pending"])),
                        ("eth_getBlockByNumber", json!(["pending", false])),
                        ("presim_snapshot", json!([])),
                    ],
                )
                .await;
            if !items(&answers[1]).is_empty() {
                break answers;
            }
        };
        let open = number(&answers[3]["number"]);
        let pending = of_receipts(&answers[2]);
        assert!(!pending.is_empty());
        assert_eq!(items(&answers[1]), pending);
        let before = from_receipts(&node, 1, open - 1).await;
        assert_eq!(items(&answers[0]), [before, pending.clone()].concat(), "{path}");

        node.sealed(open).await;
        let sealed = logs(&node, path, &json!({"fromBlock": hex(open), "toBlock": hex(open)})).await;
        for (before, after) in pending.iter().zip(&sealed) {
            assert_eq!(without_block_hash(before), without_block_hash(after));
        }
        let hash = node.result(path, "eth_getBlockByNumber", json!([hex(open)])).await["hash"].clone();
        assert_eq!(logs(&node, path, &json!({"blockHash": hash})).await, sealed);
        assert!(sealed.iter().all(|log| log["blockHash"] == hash));
        // The snapshot still has the block unchanged.
        let moment = json!({"snapshotId": answers[4]["id"]});
        assert_eq!(logs(&node, path, &json!({"fromBlock": moment, "toBlock": moment})).await, pending);
        assert_eq!(logs(&node, path, &json!({"fromBlock": "0x1", "toBlock": moment})).await, items(&answers[0]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_block_being_built_answers_by_its_hash_too() {
    let node = TestNode::start(&["--sub-block-ms", "200", "--sub-blocks", "10000"]);
    loop {
        let block = node.block("pending").await;
        let calls =
            [("eth_getLogs", json!([{"blockHash": block["hash"]}])), ("eth_getBlockReceipts", json!([block["hash"]]))];
        let body: Vec<Value> =
            calls.iter().map(|(method, params)| crate::support::request(1, method, params.clone())).collect();
        let answers = node.send("/", &json!(body)).await;
        // If a sub-block arrived in between, the hash is no longer that of the block being built.
        if answers[0].get("result").is_some_and(|logs| !items(logs).is_empty()) {
            assert_eq!(items(&answers[0]["result"]), of_receipts(&answers[1]["result"]));
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_wide_is_refused_by_its_bound() {
    let logs_of = |count: usize| vec![vec![1]; count];
    let node = node_with(
        &[logs_of(2), logs_of(3), logs_of(0), logs_of(6), logs_of(1)],
        &["--max-log-blocks", "3", "--max-logs", "5"],
    );
    for path in PATHS {
        for (from, to, count) in [(1, 2, 5), (1, 3, 5), (2, 3, 3), (5, 5, 1)] {
            let filter = json!({"fromBlock": hex(from), "toBlock": hex(to)});
            assert_eq!(logs(&node, path, &filter).await.len(), count, "{filter} on {path}");
        }
        for (from, to, text) in [
            (1, 4, "a range of 4 blocks: at most 3"),
            (4, 4, "more than 5 logs match"),
            (3, 5, "more than 5 logs match"),
            (0, u64::MAX, "blocks: at most 3"),
        ] {
            let filter = json!({"fromBlock": hex(from), "toBlock": hex(to)});
            let error = node.error(path, "eth_getLogs", json!([filter])).await;
            assert_eq!(error["code"], -32005, "{filter}: {error}");
            assert!(error["message"].as_str().is_some_and(|message| message.contains(text)), "{filter}: {error}");
        }
        // A narrower filter stays within the bound of results.
        let narrow = json!({"fromBlock": "0x3", "toBlock": "0x5", "topics": [word(2)]});
        assert!(logs(&node, path, &narrow).await.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_longer_than_they_may_be_are_refused() {
    let node = node_with(&vec![vec![vec![1]; 4]; 4], &["--max-response", "4096"]);
    let error = node.error("/", "eth_getLogs", json!([{"fromBlock": "0x1", "toBlock": "0x4"}])).await;
    assert_eq!(error["code"], -32005, "{error}");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("longer than 4096 bytes")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_filters_are_named() {
    let node = node_with(&[vec![], vec![]], &[]);
    let hash = B256::repeat_byte(0xee);
    let many: Vec<Value> = (0..1001u64).map(|index| json!(word(index))).collect();
    let addresses: Vec<Address> = (0..1001u64).map(|index| Address::from_word(word(index))).collect();
    let cases = [
        (json!([]), -32602, "1 parameter: a filter"),
        (json!([{}, {}]), -32602, "more parameters"),
        (json!(["0x1"]), -32602, "params[0]"),
        (json!([{"fromBlock": "newest"}]), -32602, "params[0].fromBlock"),
        (json!([{"toBlock": "0x01"}]), -32602, "params[0].toBlock"),
        (json!([{"toBlock": 1}]), -32602, "params[0].toBlock"),
        (json!([{"blockHash": "0x12"}]), -32602, "params[0].blockHash"),
        (json!([{"blockHash": hash, "fromBlock": "0x0"}]), -32602, "params[0].blockHash"),
        (json!([{"blockHash": hash, "toBlock": "latest"}]), -32602, "params[0].blockHash"),
        (json!([{"blockHash": hash}]), -32000, "unknown block"),
        (json!([{"fromBlock": "0x2", "toBlock": "0x1"}]), -32602, "params[0].fromBlock: invalid block range"),
        (json!([{"fromBlock": "0x1", "toBlock": "0x3"}]), -32602, "params[0].toBlock: block range extends beyond"),
        (json!([{"fromBlock": "0xffffffffffffffff", "toBlock": "0xffffffffffffffff"}]), -32602, "params[0].toBlock"),
        (json!([{"fromBlock": {"snapshotId": "0xffff"}}]), -32000, "snapshot 0xffff is not retained"),
        (json!([{"address": "0x12"}]), -32602, "params[0].address"),
        (json!([{"address": 5}]), -32602, "params[0].address"),
        (json!([{"address": [Address::ZERO, "0x12"]}]), -32602, "params[0].address"),
        (json!([{"address": [null]}]), -32602, "params[0].address[0]: null"),
        (json!([{"address": addresses}]), -32602, "params[0].address: too many: 1001, at most 1000"),
        (json!([{"topics": "0x12"}]), -32602, "params[0].topics"),
        (json!([{"topics": ["0x12"]}]), -32602, "params[0].topics[0]"),
        (json!([{"topics": [null, [hash, "0x12"]]}]), -32602, "params[0].topics[1]"),
        (json!([{"topics": [null, null, null, null, null]}]), -32602, "params[0].topics: 5 topics"),
        (json!([{"topics": [null, many]}]), -32602, "params[0].topics[1]: too many: 1001, at most 1000"),
    ];
    for path in PATHS {
        for (params, code, text) in &cases {
            let error = node.error(path, "eth_getLogs", params.clone()).await;
            let message = error["message"].as_str().expect("a message");
            assert!(error["code"] == *code && message.contains(text), "{params} on {path}: {error}, not {code} {text}");
        }
    }
    let error = node.error("/", "eth_getLogs", json!([{"blockhash": hash}])).await;
    assert!(
        error["message"].as_str().is_some_and(|text| text.contains("params[0].blockhash: unknown field")),
        "{error}"
    );
    assert!(node.call("/standard", "eth_getLogs", json!([{"foo": 1}])).await.get("result").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_of_many_blocks_gives_the_one_log_that_matches() {
    // Each block has a log, so that no bloom is empty. One log matches.
    let blocks: Vec<Vec<Topics>> = (0..256).map(|index| vec![vec![if index == 100 { 77 } else { 1 }]]).collect();
    let node = node_with(&blocks, &[]);
    let filter = json!({"fromBlock": "0x1", "toBlock": "0x100", "address": emitter(1).0, "topics": [word(77)]});
    let found = logs(&node, "/", &filter).await;
    assert_eq!((found.len(), &found[0]["blockNumber"]), (1, &hex(101)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_pauses_for_a_scan_of_many_logs_does_not_wait_for_its_end() {
    const LOGS: usize = 15_000;
    let node = watch::node_with(&["--workers", "1", "--deadline-ms", "120000", "--gas-cap", "1000000000000"]);
    let [writer, looper] = [0xa1, 0xa2].map(|byte| Address::with_last_byte(byte).to_string());
    // Counts down from `LOGS`, and writes a log of a word each time. The other code loops until it is stopped.
    let writes = format!("0x61{LOGS:04x}5b60205fa0600190038060035700");
    for (address, code) in [(&writer, writes.as_str()), (&looper, "0x5b5f56")] {
        node.result("/", "anvil_setCode", json!([address, code])).await;
    }
    let sender = node.result("/", "eth_accounts", json!([])).await[0].clone();
    node.result("/", "eth_sendTransaction", json!([{"from": sender, "to": writer, "gas": "0xb71b00"}])).await;
    node.result("/", "anvil_mine", json!([])).await;
    let mut socket = Socket::open(&node, "/").await;
    let call = json!([{"to": looper, "gas": "0xe8d4a51000"}, "latest", {"tracer": "callTracer", "timeout": "2s"}]);
    socket.write(request(1, "debug_traceCall", call).to_string()).await.unwrap();
    node.shows("presim_jobs_running{lane=\"bundle\"} 1").await;
    let filter = json!([{"fromBlock": "0x0", "toBlock": "latest", "address": writer}]);
    socket.write(request(2, "eth_getLogs", filter).to_string()).await.unwrap();
    let (first, second) = (socket.read().await.unwrap(), socket.read().await.unwrap());
    assert_eq!((&first["id"], first["error"].is_object()), (&json!(1), true), "the run ends first: {first}");
    assert_eq!((&second["id"], items(&second["result"]).len()), (&json!(2), LOGS), "the scan is whole");
}
