//! A restarted node continues where it stopped.

use std::{fs, path::Path, time::Instant};

use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope};
use alloy_eips::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, address, bytes, hex};
use alloy_signer::SignerSync;
use presim::testing::source::devnet::world::{dev_genesis, dev_signers};
use serde_json::{Value, json};

use crate::{
    disk::Disk,
    power_loss::start_on,
    process::{Presim, text},
    support::{TestNode, hex as quantity, items, number, say, shared, without_block_hash},
    witness::{Rpc, transfer},
};

const GWEI: u128 = 1_000_000_000;

fn start(dir: &Path, flags: &[&str]) -> (TestNode, Rpc) {
    let node = TestNode::start(&[&["--log", "off", "--data-dir", text(dir)], flags].concat());
    let rpc = Rpc::new(node.url("/"));
    (node, rpc)
}

/// The flags of a devnet in which nothing happens by itself.
const STILL: &[&str] = &["--traffic", "0", "--sub-block-ms", "60000"];

/// Requests whose answers never change, and the answers.
struct Facts(Vec<(&'static str, Value, Value)>);

impl Facts {
    /// Asks about the sealed blocks up to `head`, and about accounts at these states.
    async fn ask(rpc: &Rpc, head: u64, states: impl IntoIterator<Item = Value>, accounts: &[Address]) -> Self {
        let mut asked = vec![("eth_getLogs", json!([{"fromBlock": "0x0", "toBlock": quantity(head)}]))];
        for block in 0..=head {
            asked.push(("eth_getBlockByNumber", json!([quantity(block), true])));
            asked.push(("eth_getBlockReceipts", json!([quantity(block)])));
        }
        for at in states {
            for account in accounts {
                asked.push(("eth_getBalance", json!([account, at])));
                asked.push(("eth_getTransactionCount", json!([account, at])));
                asked.push(("eth_getCode", json!([account, at])));
                for slot in 0..16_u64 {
                    asked.push(("eth_getStorageAt", json!([account, quantity(slot), at])));
                }
            }
        }
        let mut facts = Vec::with_capacity(asked.len());
        for (method, params) in asked {
            let answer = rpc.result(method, params.clone()).await;
            facts.push((method, params, answer));
        }
        Self(facts)
    }

    async fn hold(&self, rpc: &Rpc) {
        for (method, params, answer) in &self.0 {
            assert_eq!(rpc.result(method, params.clone()).await, *answer, "{method} {params}");
        }
    }
}

async fn head(rpc: &Rpc) -> u64 {
    number(&rpc.result("eth_blockNumber", json!([])).await)
}

async fn send(rpc: &Rpc, tx: &TxEnvelope) -> B256 {
    let raw = Bytes::from(tx.encoded_2718());
    rpc.result("eth_sendRawTransaction", json!([raw])).await.as_str().unwrap().parse().unwrap()
}

fn dev_accounts() -> Vec<Address> {
    dev_signers().unwrap().iter().take(3).map(|signer| signer.address()).collect()
}

// The same chain.

#[tokio::test(flavor = "multi_thread")]
async fn blocks_states_and_snapshots_are_there_after_a_restart_and_with_other_flags() {
    let dir = tempfile::tempdir().unwrap();
    let (node, rpc) =
        start(dir.path(), &["--sub-block-ms", "20", "--sub-blocks", "3", "--traffic", "3", "--keep-snapshots", "4000"]);
    let trading = node.node.info().trading.unwrap();
    let accounts = [dev_accounts(), vec![trading.weth, trading.alpha, trading.beta, trading.router]].concat();
    node.sealed(8).await;
    let snapshot = json!({"snapshotId": quantity(rpc.snapshot().await)});
    let facts = Facts::ask(&rpc, 8, (0..=8).map(quantity).chain([snapshot]), &accounts).await;
    assert!(!items(&facts.0[0].2).is_empty(), "there are logs");
    node.node.stop();
    for flags in [
        &["--sub-block-ms", "30", "--sub-blocks", "2", "--keep-snapshots", "4000"][..],
        &["--traffic", "0", "--sub-block-ms", "10", "--keep-snapshots", "100000", "--keep-blocks", "1000"],
        &["--traffic", "0", "--sub-block-ms", "60000", "--keep-snapshots", "100000"],
    ] {
        let (node, rpc) = start(dir.path(), flags);
        facts.hold(&rpc).await;
        if flags.contains(&"60000") {
            continue;
        }
        let goal = head(&rpc).await + 3;
        node.sealed(goal).await;
        facts.hold(&rpc).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_goes_on_after_sigterm() {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--data-dir", text(dir.path()), "--sub-block-ms", "20", "--sub-blocks", "2", "--log", "off"];
    let mut presim = Presim::start(&flags);
    let rpc = Rpc::new(&presim.url);
    let to = Address::repeat_byte(0x77);
    let hash = send(&rpc, &transfer(&dev_signers().unwrap()[1], 0, to, 5, GWEI)).await;
    let snapshot = rpc.snapshot().await;
    let sealed = head(&rpc).await;
    let facts = Facts::ask(&rpc, sealed, (0..=sealed).map(quantity), &dev_accounts()).await;
    presim.signal("TERM");
    let (status, told) = presim.ended().await;
    assert!(status.success(), "{status}: {told}");
    let presim = Presim::start(&flags);
    let rpc = Rpc::new(&presim.url);
    assert!(rpc.snapshot().await >= snapshot);
    facts.hold(&rpc).await;
    assert_eq!(rpc.result("eth_getTransactionByHash", json!([hash])).await["hash"], json!(hash));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_open_block_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let signer = dev_signers().unwrap()[1].clone();
    let endless = ["--traffic", "1", "--sub-block-ms", "30", "--sub-blocks", "10000"];
    let (node, rpc) = start(dir.path(), &endless);
    for nonce in 0..3 {
        send(&rpc, &transfer(&signer, nonce, Address::repeat_byte(0x77), 5, GWEI)).await;
    }
    let balance = async || rpc.result("eth_getBalance", json!([Address::repeat_byte(0x77), "pending"])).await;
    node.when("all are mined", async || (balance().await == "0xf").then_some(())).await;
    node.node.stop();

    let (node, rpc) = start(dir.path(), STILL);
    let newest = node.node.snapshots().newest();
    let (id, index) = (newest.id, newest.index());
    assert!(index >= 1);
    let block = rpc.result("eth_getBlockByNumber", json!(["pending", true])).await;
    assert!(items(&block["transactions"]).len() >= 3, "{block}");
    assert_eq!(rpc.result("eth_getBalance", json!([Address::repeat_byte(0x77), "pending"])).await, "0xf");
    let receipts = rpc.result("eth_getBlockReceipts", json!(["pending"])).await;
    assert_eq!(items(&receipts).len(), items(&block["transactions"]).len());
    node.node.stop();

    let (node, rpc) = start(dir.path(), &["--traffic", "0", "--sub-block-ms", "30", "--sub-blocks", "10000"]);
    let newest = node.node.snapshots().newest();
    assert!(newest.id >= id && newest.index() >= index);
    node.node.stop();
    let (node, rpc_sealed) = start(dir.path(), &["--traffic", "0", "--sub-block-ms", "30", "--sub-blocks", "2"]);
    drop(rpc);
    node.sealed(1).await;
    let sealed = rpc_sealed.result("eth_getBlockReceipts", json!(["0x1"])).await;
    assert_eq!(without_block_hash(&sealed), without_block_hash(&receipts));
    let one = rpc_sealed.result("eth_getBlockByNumber", json!(["0x1", true])).await;
    for field in ["number", "parentHash", "timestamp", "baseFeePerGas", "mixHash", "gasLimit"] {
        assert_eq!(one[field], block[field], "{field}");
    }
}

// Waiting transactions.

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_goes_on_waiting_and_is_mined_in_its_order() {
    let dir = tempfile::tempdir().unwrap();
    let signers = dev_signers().unwrap();
    let to = Address::repeat_byte(0x77);
    let (node, rpc) = start(dir.path(), STILL);
    let early = send(&rpc, &transfer(&signers[1], 0, to, 1, GWEI)).await;
    let late = send(&rpc, &transfer(&signers[2], 0, to, 1, GWEI)).await;
    let gap = send(&rpc, &transfer(&signers[3], 1, to, 1, GWEI)).await;
    let dear = send(&rpc, &transfer(&signers[4], 0, to, 1, 2 * GWEI)).await;
    let replaced = send(&rpc, &transfer(&signers[5], 0, to, 1, GWEI)).await;
    let replacing = TxEip1559 {
        chain_id: 31337,
        nonce: 0,
        gas_limit: 21_000,
        max_fee_per_gas: 20 * GWEI,
        max_priority_fee_per_gas: 3 * GWEI,
        to: to.into(),
        value: U256::from(1),
        ..TxEip1559::default()
    };
    let signature = signers[5].sign_hash_sync(&replacing.signature_hash()).unwrap();
    let dearest = send(&rpc, &replacing.into_signed(signature).into()).await;
    node.node.stop();

    let waiting = [early, late, gap, dear, dearest];
    let (node, rpc) = start(dir.path(), STILL);
    for (hash, tx) in
        waiting.iter().zip(rpc.results("eth_getTransactionByHash", waiting.iter().map(|hash| json!([hash]))).await)
    {
        assert_eq!((&tx["hash"], &tx["blockHash"]), (&json!(hash), &Value::Null), "{tx}");
    }
    assert_eq!(rpc.result("eth_getTransactionByHash", json!([replaced])).await, Value::Null);
    assert_eq!(rpc.result("eth_getTransactionCount", json!([signers[1].address(), "pending"])).await, "0x1");
    node.node.stop();

    let (node, rpc) = start(dir.path(), &["--traffic", "0", "--sub-block-ms", "200", "--sub-blocks", "1"]);
    node.sealed(1).await;
    let block = rpc.result("eth_getBlockByNumber", json!(["0x1", false])).await;
    assert_eq!(block["transactions"], json!([dearest, dear, early, late]));
    // The missing transaction arrives, and the one that has waited for it since before the restarts is mined with it.
    let missing = send(&rpc, &transfer(&signers[3], 0, to, 1, GWEI)).await;
    node.mined(&json!(gap)).await;
    assert!(rpc.result("eth_getTransactionReceipt", json!([missing])).await.is_object());
}

/// Nothing is mined on a static chain, but its waiting transactions are kept.
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_that_stands_still_keeps_its_pool_and_its_states() {
    let Some(folder) = shared("vectors/execution-apis") else { return };
    let (genesis, chain) = (folder.join("genesis.json"), folder.join("chain.rlp"));
    let flags = ["--genesis", text(&genesis), "--chain", text(&chain)];
    let raw = |name: &str| -> Vec<Value> {
        let text = fs::read_to_string(folder.join("eth_sendRawTransaction").join(name)).unwrap();
        let requests = text.lines().filter_map(|line| line.strip_prefix(">> "));
        requests.map(|line| serde_json::from_str::<Value>(line).unwrap()["params"].clone()).collect()
    };
    let dir = tempfile::tempdir().unwrap();
    let (node, rpc) = start(dir.path(), &flags);
    let mut waiting = Vec::new();
    for params in raw("send-legacy-transaction.io").into_iter().chain(raw("send-dynamic-fee-transaction.io")) {
        waiting.push(rpc.result("eth_sendRawTransaction", params).await);
    }
    assert!(!waiting.is_empty());
    let head = head(&rpc).await;
    let accounts = [Address::ZERO, address!("0x7dcd17433742f4c0ca53122ab541d0ba67fc27df")];
    let facts = Facts::ask(&rpc, head, (1..=head).map(quantity), &accounts).await;
    node.node.stop();
    for _ in 0..2 {
        let (node, rpc) = start(dir.path(), &flags);
        facts.hold(&rpc).await;
        for hash in &waiting {
            let tx = rpc.result("eth_getTransactionByHash", json!([hash])).await;
            assert_eq!((&tx["hash"], &tx["blockHash"]), (hash, &Value::Null), "{tx}");
        }
        node.node.stop();
    }
}

// The base.

/// Stores its second word under its first; called without data, it destroys itself.
const RUNTIME: [u8; 15] = hex!("36600657 33ff 5b 602035 600035 55 00");

/// Returns a genesis before Cancun, where SELFDESTRUCT deletes the account and its storage. `doomed` and `kept` have
/// [`RUNTIME`] and some storage.
fn shanghai(doomed: Address, kept: Address) -> Value {
    let mut genesis = serde_json::to_value(dev_genesis(&dev_signers().unwrap(), 1_000)).unwrap();
    let config = genesis["config"].as_object_mut().unwrap();
    for fork in ["cancunTime", "pragueTime", "osakaTime", "blobSchedule"] {
        config.remove(fork);
    }
    let word = |number: u64| format!("{:#066x}", number);
    for address in [doomed, kept] {
        let storage = json!({word(1): word(1), word(2): word(2), word(9): word(9)});
        genesis["alloc"][format!("{address:#x}")] =
            json!({"balance": "0x1", "code": Bytes::from(RUNTIME), "storage": storage});
    }
    genesis
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changed_in_blocks_whose_states_are_gone_is_in_the_state() {
    let (doomed, kept) = (Address::repeat_byte(0xd0), Address::repeat_byte(0xd1));
    let files = tempfile::tempdir().unwrap();
    let genesis = files.path().join("genesis.json");
    fs::write(&genesis, shanghai(doomed, kept).to_string()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--genesis", text(&genesis), "--traffic=0", "--sub-block-ms=20", "--sub-blocks=1", "--keep-blocks=3"];
    // Stores 7 under 7 and deploys the code.
    let init = hex!("6007600755 600f 6011 6000 39 600f 6000 f3");
    let init = Bytes::from([&init[..], &RUNTIME].concat());
    let proxy = crate::live::built::DEPLOYMENT_PROXY;
    let again = proxy.create2_from_code(B256::ZERO, &init);
    let deploy = Bytes::from([B256::ZERO.as_slice(), &init].concat());
    let store = |key: u64, value: u64| -> Bytes {
        [U256::from(key).to_be_bytes::<32>(), U256::from(value).to_be_bytes::<32>()].concat().into()
    };
    let nothing = bytes!("");
    // Each step is in a block of its own.
    let steps = [
        (doomed, store(3, 3)),
        (doomed, store(1, 0)),
        (kept, store(1, 0)),
        (kept, store(4, 4)),
        (doomed, nothing.clone()),
        (proxy, deploy.clone()),
        (again, store(8, 8)),
        (again, nothing.clone()),
        (proxy, deploy.clone()),
        (again, store(9, 9)),
        (kept, store(2, 5)),
        (again, nothing),
        (proxy, deploy),
        (again, store(5, 5)),
    ];
    let accounts = [doomed, kept, again];
    let signer = dev_signers().unwrap()[1].clone();
    let mut facts: Option<Facts> = None;
    for (nonce, (to, input)) in steps.into_iter().enumerate() {
        let (node, rpc) = start(dir.path(), &flags);
        if let Some(facts) = facts.take() {
            facts.hold(&rpc).await;
        }
        let tx = TxEip1559 {
            chain_id: 31337,
            nonce: nonce as u64,
            gas_limit: 300_000,
            max_fee_per_gas: 10 * GWEI,
            max_priority_fee_per_gas: GWEI,
            to: TxKind::Call(to),
            input,
            ..TxEip1559::default()
        };
        let signature = signer.sign_hash_sync(&tx.signature_hash()).unwrap();
        let hash = send(&rpc, &tx.into_signed(signature).into()).await;
        let mined = node.receipt(&json!(hash)).await;
        assert_eq!(mined["status"], "0x1", "step {nonce}: {mined}");
        node.sealed(number(&mined["blockNumber"]) + nonce as u64 % 4).await;
        facts = Some(Facts::ask(&rpc, 0, [json!("latest")], &accounts).await);
        node.node.stop();
    }
    let (node, rpc) = start(dir.path(), &flags);
    let goal = head(&rpc).await + 12;
    node.sealed(goal).await;
    node.node.stop();
    let (_node, rpc) = start(dir.path(), &[&flags[..2], STILL, &["--keep-blocks", "3"]].concat());
    facts.unwrap().hold(&rpc).await;
    let slots = async |of: Address| {
        let asked = rpc.results("eth_getStorageAt", (0..10_u64).map(|slot| json!([of, quantity(slot), "latest"])));
        let values = asked.await.into_iter().map(|value| value.as_str().unwrap().parse::<U256>().unwrap());
        values.map(|value| value.to::<u64>()).collect::<Vec<_>>()
    };
    assert_eq!(slots(doomed).await, [0; 10]);
    assert_eq!(slots(kept).await, [0, 0, 5, 0, 4, 0, 0, 0, 0, 9]);
    assert_eq!(slots(again).await, [0, 0, 0, 0, 0, 5, 0, 7, 0, 0]);
    assert_eq!(rpc.result("eth_getCode", json!([doomed, "latest"])).await, "0x");
    let pruned = rpc.call("eth_getBalance", json!([kept, "0x1"])).await;
    assert!(pruned["error"]["message"].as_str().unwrap().contains("is not retained"), "{pruned}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_genesis_goes_on() {
    let Some(genesis) = shared("bench/genesis.json") else { return };
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--genesis", text(&genesis), "--sub-block-ms", "50", "--sub-blocks", "1", "--keep-blocks", "3"];
    let (node, rpc) = start(dir.path(), &flags);
    node.sealed(8).await;
    let sealed = head(&rpc).await;
    let blocks = Facts::ask(&rpc, sealed, [], &[]).await;
    node.node.stop();
    let still = [&flags[..2], STILL].concat();
    let (node, rpc) = start(dir.path(), &still);
    blocks.hold(&rpc).await;
    let sealed = head(&rpc).await;
    let snapshot = json!({"snapshotId": quantity(rpc.snapshot().await)});
    let states = [quantity(sealed - 2), json!("latest"), json!("pending"), snapshot];
    let facts = Facts::ask(&rpc, sealed, states, &dev_accounts()).await;
    node.node.stop();
    let (_node, rpc) = start(dir.path(), &still);
    facts.hold(&rpc).await;
    assert_eq!(head(&rpc).await, sealed);
}

// Start-up time.

/// The length of a long chain; shorter in unoptimised builds, which take long to make it.
const LONG: u64 = if cfg!(debug_assertions) { 1_000 } else { 10_000 };

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_blocks_open_without_a_second_look_at_each() {
    let disk = Disk::default();
    let node = start_on(&disk, &["--sub-block-ms", "1", "--sub-blocks", "1", "--traffic", "1", "--log", "off"]);
    let began = Instant::now();
    node.sealed(LONG).await;
    let made = began.elapsed();
    let (rpc, killed) = (Rpc::new(node.url("/")), disk.copy());
    let newest = rpc.result("eth_getBlockByNumber", json!([quantity(LONG), true])).await;
    node.node.stop();
    say(&format!("{LONG} blocks made in {made:?}"));
    for (how, disk) in [("stopped", disk), ("killed", killed)] {
        let (began, before) = (Instant::now(), disk.read_bytes());
        let node = start_on(&disk, STILL);
        let (opened, read) = (began.elapsed(), disk.read_bytes() - before);
        let published = node.node.snapshots().load();
        let transactions: usize = published.blocks(0, LONG).map(|block| block.body().transactions.len()).sum();
        say(&format!(
            "{how}: {LONG} blocks with {transactions} transactions opened in {opened:?}: {read} bytes read of {}",
            disk.size()
        ));
        let rpc = Rpc::new(node.url("/"));
        assert_eq!(rpc.result("eth_getBlockByNumber", json!([quantity(LONG), true])).await, newest);
        assert!(read <= 2 * disk.size(), "{how}: {read} bytes read of {}", disk.size());
    }
}
